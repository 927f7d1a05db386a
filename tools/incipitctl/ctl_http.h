/* ctl_http.h - one blocking POST to a worker, for lookup by text.
 *
 * Thread: any; blocks for timeout_ms a step at most. */
#pragma once

#include "common/err.h"
#include "common/str.h"

/* url: http://host:port without a path. *ret_status is the HTTP status; ret_body gets the body. */
int ctl_http_post(const char *url, const char *path, struct str body, uint32_t timeout_ms,
                  int *ret_status, struct strbuf *ret_body, struct errbuf *eb);
