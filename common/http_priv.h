/* http_priv.h - what the HTTP server's files share, each calling only those above it:
 *
 *   http_conn.c    bytes, deadlines, closing
 *   http_req.c     a request as handlers see it, and its answer
 *   http_parse.c   bytes to a request: what llhttp calls, and what it lets through
 *   http_server.c  listener, who may connect and stay, shares, routes
 *
 * Nobody else includes it. */
#pragma once

#include <llhttp.h>
#include <uv.h>

#include "common/http_conn.h"
#include "common/share.h"

#define HTTP_HEADERS_MAX 100u
#define HTTP_PENDING_MAX_BYTES (64u << 10) /* pipelined bytes kept while a request is handled */

struct http_span { /* of http_req.head, by offset since that moves */
    uint32_t off, n;
};

/* A client: everything from one address (IPv6: one /64), or all of a Unix socket. */
struct http_peer {
    struct list link; /* http_server.peers */
    uint8_t key[16];
    char text[48];            /* as in logs */
    uint32_t n_refs;          /* connections and requests: freed at 0 */
    struct share_user bodies; /* bytes */
};

struct http_req {
    struct http_link *c; /* NULL once the connection is gone */
    struct http_server *s;
    struct http_peer *peer;
    struct strbuf head; /* target, then names and values, each followed by a NUL */
    struct http_span target;
    struct {
        struct http_span name, value;
    } headers[HTTP_HEADERS_MAX];
    uint32_t n_headers;
    const char *method;
    bool handed_out; /* to a route, which ends it */
    bool is_head, is_http10, keep_alive;
    bool body_left; /* answered before its body was read: the connection can't go on */
    struct strbuf body;
    uint64_t body_bytes; /* of them charged to the peer */
    uint64_t start_ns;
    struct strbuf reply_headers;
    bool streaming, is_probe;
    char id[64];
    int status;            /* of the answer; 0: none yet */
    uint64_t handed_start; /* of the connection's bytes, when the request began */
    struct {
        const char *key, *text; /* text NULL: number */
        uint64_t number;
    } notes[HTTP_NOTES];
    uint32_t n_notes;
    void (*gone_cb)(struct http_req *r, void *arg);
    void *gone_arg;
    void (*drained_cb)(struct http_req *r, void *arg);
    void *drained_arg;
};

/* Raw look at a head, ahead of llhttp. */
struct http_scan {
    size_t bytes;
    uint8_t at; /* enum in http_parse.c */
    char prev;
    bool blank;     /* a line has just ended */
    bool line_done; /* the request line has */
};

/* A connection of the server's. */
struct http_link {
    struct http_conn conn;
    struct list link; /* http_server.conns, longest without a change in front */
    struct http_server *s;
    struct http_peer *peer;
    llhttp_t parser;
    struct http_scan scan;
    struct http_req *req;           /* being read, handled or answered */
    const struct http_route *route; /* of req, once its head is there */
    struct strbuf pending;          /* read ahead, not parsed */
    uint32_t n_probes;              /* sent to a half-closed peer for the present request */
    uint64_t n_requests;
    bool head_done, value_open;
    size_t trailer_bytes;
    int fail_status; /* set by a parser callback that refuses */
    const char *fail_text;
};

struct http_server {
    uv_loop_t *loop;
    struct http_server_cfg cfg;
    union {
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } listener;
    bool listener_open, is_unix, check_host, draining, closing;
    char unix_path[108]; /* sockaddr_un's */
    llhttp_settings_t settings;
    struct list conns, peers;
    struct share bodies;
    struct share_tenant bodies_tenant;
    struct http_link *spare; /* for accept() when memory is out; see on_connection() */
    bool accept_waits;       /* a connection could not be accepted for lack of the spare */
    uint32_t n_reqs;
    uint64_t id_seed, n_ids; /* of made request ids */
    uv_timer_t flush;        /* bounds what a close waits for answers on their way */
    bool flush_open;
    struct http_server_stats stats;
    /* Up from the lower files: a head with a body behind it is there (false: it was answered); a
     * request has been freed. */
    bool (*on_head)(struct http_link *c);
    void (*on_freed)(struct http_server *s);
    char read_buf[HTTP_READ_BYTES];
    void (*close_cb)(void *arg);
    void *close_arg;
};

/* http_req.c */
struct http_req *http_req_new(struct http_link *c);
void http_peer_unref(struct http_peer *p);
void http_req_free(struct http_req *r);
const char *http_status_text(int status);
void http_req_take_id(struct http_req *r); /* its head is there */
uint32_t http_req_count_header(const struct http_req *r, const char *name);
/* 0, or the status to refuse with: 413, 503 (the client's share of all bodies is used up). */
int http_req_add_body(struct http_req *r, const char *p, size_t n);
/* An answer of the server's own to a request that no handler sees; ends the connection. */
void http_req_refuse(struct http_req *r, int status, const char *text);

/* http_parse.c */
void http_parse_settings(llhttp_settings_t *t);
void http_parse_begin(struct http_link *c);
enum http_parsed { HTTP_PARSED_MORE, HTTP_PARSED_WHOLE, HTTP_PARSED_REFUSED, HTTP_PARSED_BAD };
/* Takes bytes of one request. WHOLE: *ret_used of them belong to it. REFUSED: c->fail_status and
 * fail_text say why. BAD: it was answered from inside on_head (below), or the connection is gone. */
enum http_parsed http_parse_feed(struct http_link *c, const char *p, size_t n, size_t *ret_used);
