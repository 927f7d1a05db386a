/* http_server.h - HTTP/1.1 on libuv streams, parsed by llhttp in its strict mode.
 *
 * A handler is called once a request is there in whole (body included, within max_body_bytes). It
 * answers now or later, with exactly one of
 *     http_reply(...)                                                  a body with Content-Length
 *     http_stream_begin(...), http_stream_write(...)*, http_stream_end(...)   chunked
 * and that call ends the request: r is gone after http_reply() and http_stream_end(). This holds
 * also when the client has gone: the gone callback says so once, writes then return ERR_CLOSED, and
 * the handler still ends the request with either call, which only frees it. So: one end for each
 * handler call, always.
 *
 * Keep-alive, pipelined requests (one at a time, in order), HEAD (served by GET routes), OPTIONS,
 * Expect: 100-continue. 400, 403, 404, 405 with Allow, 408, 413, 414, 415, 417, 431, 501, 503, 505 are
 * the server's own answers; Content-Length with Transfer-Encoding, bare CR or LF or a folded line in a
 * head, a repeated Host or an unknown coding is a 400 and closes, a compressed body a 415.
 *
 * A client that has shut down its sending side still gets its answer. Whether it is there at all shows
 * when something is written: "100 Continue" goes out from time to time while its answer is worked on.
 *
 * Who may take how much: connections, and bytes of bodies, are shared between clients (a client is an
 * address). Beyond max_conns the connection without a request gives way that belongs to the client with
 * most of them; a client whose bodies use up its share of max_bodies_bytes gets 503. Probes are served
 * whatever else is open. On a loopback address Host must be an address, localhost or one of `hosts`.
 * Memory: heap, bounded by max_conns times the limits and by max_bodies_bytes. Thread: loop thread. */
#pragma once

#include <uv.h>

#include "common/compiler.h"
#include "common/err.h"
#include "common/log.h"
#include "common/str.h"

struct http_server; /* opaque */
struct http_req;    /* opaque */

typedef void (*http_handler_cb)(struct http_req *r, void *arg);

struct http_route {
    const char *method; /* "GET", "POST", ... */
    const char *path;   /* exact, or a prefix when it ends in '*' */
    http_handler_cb cb;
    void *arg;
    /* Before a body is read (a request without one: before cb). False: it was answered. May be NULL. */
    bool (*on_head)(struct http_req *r, void *arg);
    bool is_probe; /* served also beyond max_conns */
};

struct http_server_cfg {
    /* Numeric address, "localhost", "unix:/path", or NULL: connections come by http_server_adopt()
     * only. */
    const char *host;
    uint16_t port; /* 0: any; see http_server_port() */
    const struct http_route *routes;
    size_t n_routes; /* borrowed for the server's life */
    struct log *log; /* may be NULL */
    bool access_log; /* a line for each request that ended, but for probes that went well */
    /* 0 in any of these: the default in brackets */
    uint32_t max_conns;        /* [1024]; fewer where RLIMIT_NOFILE holds no more */
    size_t max_head_bytes;     /* [32 KiB] request line and headers: 431 (414 for the line) */
    size_t max_body_bytes;     /* [16 MiB]: 413 */
    uint64_t max_bodies_bytes; /* [256 MiB] of all requests that are open */
    size_t max_unsent_bytes;   /* [4 MiB] of one response, before writes return ERR_BUSY */
    uint32_t head_timeout_ms;  /* [10 s] first byte to end of headers: 408 */
    uint32_t body_timeout_ms;  /* [60 s] headers to end of body: 408 */
    uint32_t idle_timeout_ms;  /* [75 s] between requests: close */
    uint32_t stall_timeout_ms; /* [30 s] less than 32 KiB of what waits was taken: close, gone */
    uint32_t max_requests_per_conn; /* [100000], then Connection: close */
    bool any_host;                  /* Host is not looked at */
    const char *const *hosts;       /* [n_hosts] further names for Host; borrowed */
    size_t n_hosts;
    const char *const *cors_origins; /* [n_cors] pages that may read answers; "*": all; borrowed */
    size_t n_cors;
};

int http_server_open(struct http_server **ret, uv_loop_t *loop, const struct http_server_cfg *cfg,
                     struct errbuf *eb);
/* Takes a connected stream socket, e.g. one end of a socketpair. Consumes fd also on error. */
int http_server_adopt(struct http_server *s, int take_fd);
uint16_t http_server_port(const struct http_server *s); /* the bound one; 0 for a Unix socket */
/* Stops listening; idle connections close, others after their answer. */
void http_server_drain(struct http_server *s);
/* Closes everything; open requests see gone; cb once the last of them has been ended. Answers that were
 * given before get a second to leave. */
void http_server_close(struct http_server *s, void (*cb)(void *arg), void *arg);

struct http_server_stats {
    uint32_t conns, requests_open;
    uint64_t conns_total, requests_total;
    uint64_t refused_total; /* at max_conns: 503, or not even that */
    uint64_t evicted_total; /* connections that gave way */
    uint64_t bad_total;     /* 4xx of our own */
};
void http_server_stats(const struct http_server *s, struct http_server_stats *ret);

/* --- a request; views live until it ends --- */
const char *http_req_method(const struct http_req *r);
struct str http_req_path(const struct http_req *r);  /* undecoded, without the query */
struct str http_req_query(const struct http_req *r); /* behind the '?'; may be empty */
/* First header of that name (any case); p is NULL when there is none. */
struct str http_req_header(const struct http_req *r, const char *name);
struct str http_req_body(const struct http_req *r); /* NUL-terminated behind n */
/* Value of key in the query, undecoded; p is NULL when there is none. */
struct str http_req_query_get(const struct http_req *r, const char *key);
/* cb at most once, before the request's end, never from inside a call on r. */
void http_req_on_gone(struct http_req *r, void (*cb)(struct http_req *r, void *arg), void *arg);
bool http_req_is_gone(const struct http_req *r);

/* The client's X-Request-Id, or one that was made; in the answer's head and in the access log. */
const char *http_req_id(const struct http_req *r);
/* One more pair for the request's line in the access log, at most HTTP_NOTES. Key and text are borrowed
 * until the request has ended. */
#define HTTP_NOTES 10
void http_req_note_u64(struct http_req *r, const char *key, uint64_t value);
void http_req_note_text(struct http_req *r, const char *key, const char *text);

/* --- answering --- */
/* A header for the answer to come. Names and values are the caller's constants or checked: a value
 * with control characters is ERR_INVALID. */
int http_reply_header(struct http_req *r, const char *name, const char *value);
/* Copies body. Ends r. ctype NULL: no Content-Type. */
void http_reply(struct http_req *r, int status, const char *ctype, struct str body);
void http_reply_json(struct http_req *r, int status, struct str body);
/* {"error":{"message":...,"type":...,"param":...,"code":...}}, as OpenAI's clients expect; param
 * and code may be NULL. Ends r. */
void http_reply_error(struct http_req *r, int status, const char *type, const char *param,
                      const char *code, const char *fmt, ...) PRINTF_LIKE(6, 7);

/* Sends the head with Transfer-Encoding: chunked (HTTP/1.0: until close). 0 or ERR_CLOSED. */
int http_stream_begin(struct http_req *r, int status, const char *ctype);
/* Copies p. 0; ERR_CLOSED when the client is gone; ERR_BUSY, nothing taken, when more than
 * max_unsent_bytes wait: try again from the drained callback, or give up. */
int http_stream_write(struct http_req *r, const void *p, size_t n);
size_t http_stream_unsent(const struct http_req *r); /* bytes not yet taken by the kernel */
/* cb from the loop each time unsent falls to 0. */
void http_stream_on_drained(struct http_req *r, void (*cb)(struct http_req *r, void *arg),
                            void *arg);
/* Ends r. */
void http_stream_end(struct http_req *r);
/* Breaks the connection off instead of the last chunk, so that a cut answer cannot look complete.
 * Ends r. */
void http_stream_abort(struct http_req *r);
