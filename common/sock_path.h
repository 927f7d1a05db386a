/* sock_path.h - why a Unix socket could not be bound or connected, for a human.
 *
 * Thread: any. */
#pragma once

#include "common/err.h"

/* Sets "'path': ..." from what is wrong with the path's directory, else from rv; returns rv. */
int sock_path_error(struct errbuf *eb, int rv, const char *path);
