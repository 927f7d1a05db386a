/* kv_token.h - a client's secret from a token file.
 *
 * The file is the node's own (lines "role token [namespace...]", common/secret.h), so that one secret
 * can be mounted everywhere; or it holds nothing but the token. Thread: any. */
#pragma once

#include "common/err.h"
#include "proto/wire_msg.h"

#define KV_TOKEN_MAX_BYTES 4096

/* ret gets the token of the first line of this role, *ret_len its length; no NUL. The caller
 * clears ret when done with it. warn (may be NULL): who else may read the file, or "".
 * ERR_NOTFOUND: lines with roles, but none of this one. ERR_TOOBIG: the token. */
int kv_token_load(const char *path, enum msg_role role, char ret[KV_TOKEN_MAX_BYTES],
                  size_t *ret_len, struct errbuf *warn, struct errbuf *eb);
