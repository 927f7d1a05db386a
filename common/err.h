/* err.h - one negative int space for every failure, and one text that grows on the way up.
 *
 * 0 or a positive count is success. Libuv's codes (negative errno) pass through unchanged; ours start
 * below -10000. err_text() knows both.
 * Thread: any; an errbuf belongs to its caller. */
#pragma once

#include "common/compiler.h"

/*    name            code    text */
#define ERR_LIST(X)                                                                                \
    X(ERR_NOSPACE, -10001, "no free slot or disk space")                                           \
    X(ERR_CORRUPT, -10002, "checksum or format mismatch")                                          \
    X(ERR_PROTO, -10003, "peer broke the wire protocol")                                           \
    X(ERR_TIMEOUT, -10004, "deadline passed")                                                      \
    X(ERR_BUSY, -10005, "at a limit; try again later")                                             \
    X(ERR_NOTFOUND, -10006, "not found")                                                           \
    X(ERR_CANCELED, -10007, "canceled")                                                            \
    X(ERR_NOMEM, -10008, "out of memory")                                                          \
    X(ERR_INVALID, -10009, "bad request")                                                          \
    X(ERR_UNSUPPORTED, -10010, "not supported")                                                    \
    X(ERR_UNAVAILABLE, -10011, "service not reachable")                                            \
    X(ERR_DENIED, -10012, "not allowed")                                                           \
    X(ERR_CONFLICT, -10013, "same id with another checksum")                                       \
    X(ERR_TOOBIG, -10014, "over a configured limit")                                               \
    X(ERR_CLOSED, -10015, "connection closed")                                                     \
    X(ERR_UNIMPLEMENTED, -10016, "method not implemented")                                         \
    X(ERR_EXISTS, -10017, "already there")                                                         \
    X(ERR_INTERNAL, -10018, "internal error")                                                      \
    X(ERR_NUMERIC, -10019, "a result is not a finite number")

#define X(name, code, text) name = code,
enum err { ERR_LIST(X) ERR_END_ = -10000 };
#undef X

/* Ours from the list, else libc's text for the errno. Never NULL; static storage. */
const char *err_text(int rv);
/* "ERR_NOSPACE" and so on, "E<errno>" otherwise: a stable token for logs and JSON. */
const char *err_name(int rv);

/* Text for a human, wrapped with context by each level: "load model: tensor 'x': shape ...". */
struct errbuf {
    char text[512];
};

/* Sets the text and returns rv, so that "return err_set(eb, ERR_X, ...)" works. eb may be NULL. */
int err_set(struct errbuf *eb, int rv, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Prepends "context: " to the text and returns rv. eb may be NULL. */
int err_wrap(struct errbuf *eb, int rv, const char *fmt, ...) PRINTF_LIKE(3, 4);
