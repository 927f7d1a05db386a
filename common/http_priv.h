/* http_priv.h - what http_server.c (connections, parsing) and http_req.c (requests, answers) share.
 * Nobody else includes it. */
#pragma once

#include <llhttp.h>
#include <uv.h>

#include "common/http_server.h"
#include "common/list.h"
#include "common/sm.h"

#define HTTP_HEADERS_MAX 100u
#define HTTP_PENDING_MAX_BYTES (64u << 10) /* pipelined bytes kept while a request is handled */

struct http_span { /* of http_req.head, by offset since that moves */
    uint32_t off, n;
};

struct http_req {
    struct http_conn *c; /* NULL once the connection is gone */
    struct http_server *s;
    struct strbuf head; /* target, then names and values, each followed by a NUL */
    struct http_span target;
    struct {
        struct http_span name, value;
    } headers[HTTP_HEADERS_MAX];
    uint32_t n_headers;
    const char *method;
    bool is_head, is_http10, keep_alive;
    struct strbuf body;
    uint64_t start_ns;
    struct strbuf reply_headers;
    bool streaming, streamed_head;
    void *data;
    void (*gone_cb)(struct http_req *r, void *arg);
    void *gone_arg;
    void (*drained_cb)(struct http_req *r, void *arg);
    void *drained_arg;
};

/*  IDLE --byte--> HEAD --> BODY --> HANDLE --answer ended--> FLUSH --keep-alive--> IDLE
 *                    \-------\------error answer-----------^  \--close--> LINGER
 *  any --peer gone, timeout, end of linger--> DROPPED (closing handles)                         */
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

struct http_conn {
    union {
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } h;
    uv_timer_t timer;
    uv_shutdown_t shutdown;
    uint32_t live; /* open handles: memory goes at zero */
    struct http_server *s;
    struct list link;
    struct sm sm;
    llhttp_t parser;
    struct http_req *req;  /* being read, handled or answered */
    struct strbuf pending; /* read ahead, not parsed */
    bool reading, close_after;
    uint64_t n_requests;
    size_t unsent;     /* bytes handed to uv_write() and not done */
    size_t queue_seen; /* libuv's queue at the last look: progress of a write */
    /* Raw look at the head, ahead of llhttp: */
    size_t head_bytes;
    uint8_t head_scan; /* enum in http_server.c */
    char head_prev;
    bool head_blank; /* a line has just ended */
    bool head_done, line_done, value_open;
    size_t trailer_bytes, linger_bytes;
    int fail_status; /* set by a parser callback that refuses */
    const char *fail_text;
};

/* http_server.c */
void http_conn_write(struct http_conn *c, struct str a, struct str b, struct str z);
void http_conn_answered(struct http_conn *c,
                        bool close_after); /* the answer's last byte was written */
void http_conn_drop(struct http_conn *c);
void http_server_req_made(struct http_server *s);
void http_server_req_freed(struct http_server *s);
const struct http_server_cfg *http_server_cfg_of(const struct http_server *s);
bool http_server_is_draining(const struct http_server *s);

/* http_req.c */
struct http_req *http_req_new(struct http_server *s, struct http_conn *c);
void http_req_free(struct http_req *r);
const char *http_status_text(int status);
