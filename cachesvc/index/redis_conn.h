/* redis_conn.h - one pipelined Redis connection on our loop, kept up for ever.
 *
 *   RESOLVE --> CONNECT --> LOGIN (AUTH, SELECT) --> UP
 *      ^  \--------\-----------\---lost, refused, no answer in time---> WAIT --backoff--> RESOLVE
 *
 * Every address of a name is tried, one after the other and without a pause, before the backoff. It
 * doubles with each round that failed, until the owner says that the connection serves.
 *
 * hiredis parses and formats; resolving, polling, the order of answers, timeouts and backoff are ours:
 * its asynchronous half resolves names in place, knows no timeout and aborts the process when a server
 * answers more than it was asked. Nothing here ever blocks the loop.
 * Thread: loop thread. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"

typedef struct uv_loop_s uv_loop_t;
struct redisReply; /* hiredis; the few readers of replies include it */
struct redis_conn;

struct redis_conn_cfg {
    const char *addr;            /* HOST:PORT, [v6]:PORT or unix:PATH; copied */
    const char *user, *password; /* NULL or "": none; copied */
    uint32_t db;
    uint32_t connect_timeout_ms;             /* 0: 2000, login included */
    uint32_t reply_timeout_ms;               /* 0: 5000 without any answer while one is due */
    uint32_t backoff_min_ms, backoff_max_ms; /* 0: 100, 5000 */
    void (*on_up)(void *arg);
    void (*on_down)(void *arg, const char *why); /* each failed attempt, too */
    void *arg;
};

/* Connects in the background. ERR_INVALID: the address. */
int redis_conn_open(struct redis_conn **ret, uv_loop_t *loop, const struct redis_conn_cfg *cfg,
                    struct errbuf *eb);
/* What was sent gets linger_ms to be answered; callbacks run; then cb, and c is gone. */
void redis_conn_close(struct redis_conn *c, uint32_t linger_ms, void (*cb)(void *arg), void *arg);

/* The owner's judgement of a connection that is up. Settled: it serves, the backoff begins anew. Refuse:
 * it does not (a replica, a login without rights): as if it were lost; from inside a callback, too. */
void redis_conn_settled(struct redis_conn *c);
void redis_conn_refuse(struct redis_conn *c, const char *why);
/* For the next login; NULL or "": none. ERR_NOMEM: the old one stays. */
int redis_conn_set_password(struct redis_conn *c, const char *password);

uint32_t
redis_conn_backoff_ms(const struct redis_conn *c); /* the last one; 0: none since it served */
bool redis_conn_is_up(const struct redis_conn *c);
uint32_t redis_conn_outstanding(const struct redis_conn *c); /* commands without an answer yet */
/* Exactly one cb for each command that was taken: reply is NULL when the connection was lost first,
 * else valid during the call. cb may be NULL. 0 or ERR_UNAVAILABLE. */
typedef void (*redis_reply_cb)(void *arg, uint64_t tag, const struct redisReply *reply);
int redis_conn_cmd(struct redis_conn *c, int argc, const char *const *argv, const size_t *len,
                   redis_reply_cb cb, void *arg, uint64_t tag);
