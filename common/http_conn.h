/* http_conn.h - a connection as bytes: handles, deadlines, writing, closing in two steps. Of HTTP it
 * knows the states only; what they mean is its owner's (http_server.c), told through http_conn_ops.
 *
 *  IDLE --byte--> HEAD --> BODY --> HANDLE --answer ended--> FLUSH --keep-alive--> IDLE
 *                    \-------\------error answer-----------^  \--close--> LINGER
 *  any --peer gone, timeout, end of linger--> DROPPED (closing handles)
 *
 * Every state ends by itself: IDLE, HEAD, BODY and LINGER by their deadline; HANDLE and FLUSH when the
 * peer takes less than HTTP_STALL_MIN_BYTES of what waits for it in stall_timeout_ms.
 * Thread: loop thread. Only common/http_*.c include it. */
#pragma once

#include <uv.h>

#include "common/http_server.h"
#include "common/list.h"
#include "common/sm.h"

#define HTTP_READ_BYTES (64u << 10)
/* A reader that takes less in stall_timeout_ms (or all there is) is taken for one that has stopped:
 * 4 MiB, the most of an answer that waits, are then out within 128 such times. */
#define HTTP_STALL_MIN_BYTES (32u << 10)

enum http_conn_state {
    CONN_IDLE,
    CONN_HEAD,
    CONN_BODY,
    CONN_HANDLE,
    CONN_FLUSH,
    CONN_LINGER,
    CONN_DROPPED,
    CONN_STATE_NR
};

struct http_conn;

struct http_conn_ops {
    void (*data)(struct http_conn *c, const char *p, size_t n); /* not in LINGER */
    void (*half_closed)(struct http_conn *c); /* the peer has sent all: HANDLE or FLUSH */
    void (*late)(struct http_conn *c);        /* a deadline passed in HEAD, BODY or HANDLE */
    void (*drained)(struct http_conn *c);     /* HANDLE: nothing waits to be written any more */
    void (*next)(struct http_conn *c);        /* IDLE again, behind an answer */
    void (*closed)(struct http_conn *c);      /* all handles are: the memory is the owner's again */
};

struct http_conn {
    union {
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } h;
    uv_timer_t timer;
    uv_shutdown_t shutdown;
    uint32_t live; /* open handles */
    const struct http_conn_ops *ops;
    const struct http_server_cfg *cfg; /* idle_timeout_ms, stall_timeout_ms */
    char *read_buf; /* [HTTP_READ_BYTES], shared: one read is used up before the next */
    struct sm sm;
    bool reading, close_after, peer_done;
    size_t unsent;      /* bytes handed to uv_write() and not done */
    uint64_t handed;    /* bytes handed to it since the connection began */
    uint64_t taken_was; /* of them taken by the kernel when the stall timer was set */
    size_t unsent_was;  /* and not taken */
    size_t linger_bytes;
};

/* Initialises c (zeroed by the caller) in IDLE with open handles. */
int http_conn_init(struct http_conn *c, uv_loop_t *loop, bool is_pipe,
                   const struct http_conn_ops *ops, const struct http_server_cfg *cfg,
                   char *read_buf);
int http_conn_read(struct http_conn *c, bool on);
void http_conn_arm(struct http_conn *c, uint32_t ms); /* the deadline of the present state */
void http_conn_disarm(struct http_conn *c);           /* HANDLE: only a stall ends it */
/* Copies a, b and z and writes them as one. Drops the connection when that fails. */
void http_conn_write(struct http_conn *c, struct str a, struct str b, struct str z);
/* The answer's last byte was written. */
void http_conn_answered(struct http_conn *c, bool close_after);
void http_conn_drop(struct http_conn *c);
static inline bool http_conn_is_gone(const struct http_conn *c) {
    return sm_at(&c->sm) == CONN_DROPPED;
}
