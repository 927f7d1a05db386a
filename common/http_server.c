/* Listener, connections and parsing. Requests and answers: http_req.c. */
#include "common/http_server.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/check.h"
#include "common/http_priv.h"

#define LINGER_MS 1000u
#define LINGER_MAX_BYTES (1u << 20)
#define TRAILER_MAX_BYTES 8192u
#define REFUSED_EXTRA 64u /* connections over the limit that are told so at one time */
#define READ_BYTES (64u << 10)

static const struct sm_state conn_states[CONN_STATE_NR] = {
    [CONN_IDLE] = {"idle", SM_INITIAL, BIT(CONN_HEAD) | BIT(CONN_FLUSH) | BIT(CONN_DROPPED)},
    [CONN_HEAD] = {"head", 0,
                   BIT(CONN_BODY) | BIT(CONN_HANDLE) | BIT(CONN_FLUSH) | BIT(CONN_DROPPED)},
    [CONN_BODY] = {"body", 0, BIT(CONN_HANDLE) | BIT(CONN_FLUSH) | BIT(CONN_DROPPED)},
    [CONN_HANDLE] = {"handle", 0, BIT(CONN_FLUSH) | BIT(CONN_DROPPED)},
    [CONN_FLUSH] = {"flush", 0, BIT(CONN_IDLE) | BIT(CONN_LINGER) | BIT(CONN_DROPPED)},
    [CONN_LINGER] = {"linger", 0, BIT(CONN_DROPPED)},
    [CONN_DROPPED] = {"dropped", SM_FINAL, 0},
};

enum head_scan { SCAN_BEFORE, SCAN_HEAD, SCAN_AFTER };

struct http_server {
    uv_loop_t *loop;
    struct http_server_cfg cfg;
    union {
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } listener;
    bool listener_open, is_unix, draining, closing;
    char unix_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    llhttp_settings_t settings;
    struct list conns;
    struct http_conn *spare; /* for accept() when memory is out; see on_connection() */
    bool accept_waits;       /* a connection could not be accepted for lack of the spare */
    uint32_t n_reqs;
    struct http_server_stats stats;
    char read_buf[READ_BYTES]; /* one read is parsed or copied before the next begins */
    void (*close_cb)(void *arg);
    void *close_arg;
};

static void conn_feed(struct http_conn *c, const char *p, size_t n);
static void conn_next(struct http_conn *c);

/* --- closing --- */

static void server_release(struct http_server *s) {
    if (!s->closing || s->listener_open || s->stats.conns || s->n_reqs)
        return;
    void (*cb)(void *arg) = s->close_cb;
    void *arg = s->close_arg;
    free(s->spare);
    free(s);
    if (cb)
        cb(arg);
}

void http_server_req_made(struct http_server *s) {
    s->n_reqs++;
}

void http_server_req_freed(struct http_server *s) {
    s->n_reqs--;
    server_release(s);
}

static void on_connection(uv_stream_t *listener, int status);

/* The memory of a closed connection becomes the spare again if that was used. */
static void conn_recycle(struct http_server *s, struct http_conn *c) {
    if (s->spare) {
        free(c);
        return;
    }
    s->spare = c;
    if (s->accept_waits && s->listener_open && !uv_is_closing((uv_handle_t *)&s->listener.stream)) {
        s->accept_waits = false;
        on_connection(&s->listener.stream, 0);
    }
}

static void on_conn_closed(uv_handle_t *h) {
    struct http_conn *c = h->data;
    if (--c->live)
        return;
    struct http_server *s = c->s;
    struct http_req *r = c->req;
    bool handed_out = r && r->method; /* a handler owns it and will end it */
    list_remove(&c->link);
    s->stats.conns--;
    strbuf_fini(&c->pending);
    conn_recycle(s, c);
    if (handed_out) {
        r->c = NULL;
        if (r->gone_cb)
            r->gone_cb(r, r->gone_arg); /* may end r, and with it the server */
        else
            server_release(s);
        return;
    }
    if (r)
        http_req_free(r);
    else
        server_release(s);
}

void http_conn_drop(struct http_conn *c) {
    if (sm_at(&c->sm) == CONN_DROPPED)
        return;
    sm_move(&c->sm, CONN_DROPPED);
    uv_close((uv_handle_t *)&c->h.stream, on_conn_closed);
    uv_close((uv_handle_t *)&c->timer, on_conn_closed);
}

/* --- timer --- */

static void conn_fail(struct http_conn *c, int status, const char *text);
static void on_timer(uv_timer_t *t);

static void arm(struct http_conn *c, uint32_t ms) {
    uv_timer_start(&c->timer, on_timer, ms, 0);
}

static void arm_stall(struct http_conn *c) {
    c->queue_seen = uv_stream_get_write_queue_size(&c->h.stream);
    arm(c, c->s->cfg.stall_timeout_ms);
}

static void on_timer(uv_timer_t *t) {
    struct http_conn *c = t->data;
    switch (sm_at(&c->sm)) {
    case CONN_HEAD:
    case CONN_BODY:
        conn_fail(c, 408, "the request did not arrive in time");
        break;
    case CONN_HANDLE:
    case CONN_FLUSH:
        if (uv_stream_get_write_queue_size(&c->h.stream) < c->queue_seen)
            arm_stall(c); /* slow, but it moves */
        else
            http_conn_drop(c);
        break;
    default:
        http_conn_drop(c);
        break;
    }
}

/* --- writing --- */

struct write_req {
    uv_write_t req;
    struct http_conn *c;
    size_t n;
    char data[];
};

static void on_shutdown(uv_shutdown_t *req, int status) {
    (void)req;
    (void)status; /* the linger timer ends it in any case */
}

static void flushed(struct http_conn *c) {
    if (!c->close_after) {
        sm_move(&c->sm, CONN_IDLE);
        conn_next(c);
        return;
    }
    /* Close in two steps: unread bytes at close() would make the kernel send RST, which can destroy
     * the answer on its way (RFC 9112 §9.6). */
    if (uv_shutdown(&c->shutdown, &c->h.stream, on_shutdown) < 0) {
        http_conn_drop(c);
        return;
    }
    sm_move(&c->sm, CONN_LINGER);
    arm(c, LINGER_MS);
}

static void on_written(uv_write_t *req, int status) {
    struct write_req *w = CONTAINER_OF(req, struct write_req, req);
    struct http_conn *c = w->c;
    c->unsent -= w->n;
    free(w);
    if (sm_at(&c->sm) == CONN_DROPPED)
        return;
    if (status < 0) {
        http_conn_drop(c);
        return;
    }
    if (c->unsent) {
        arm_stall(c);
        return;
    }
    uv_timer_stop(&c->timer);
    if (sm_at(&c->sm) == CONN_FLUSH)
        flushed(c);
    else if (c->req && c->req->drained_cb)
        c->req->drained_cb(c->req, c->req->drained_arg);
}

void http_conn_write(struct http_conn *c, struct str a, struct str b, struct str z) {
    size_t n = a.n + b.n + z.n;
    if (sm_at(&c->sm) == CONN_DROPPED)
        return;
    struct write_req *w = malloc(sizeof(*w) + n);
    if (!w) {
        http_conn_drop(c);
        return;
    }
    w->c = c;
    w->n = n;
    struct str parts[] = {a, b, z};
    size_t off = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (parts[i].n)
            memcpy(w->data + off, parts[i].p, parts[i].n);
        off += parts[i].n;
    }
    uv_buf_t buf = uv_buf_init(w->data, (unsigned)n);
    if (uv_write(&w->req, &c->h.stream, &buf, 1, on_written) < 0) {
        free(w);
        http_conn_drop(c);
        return;
    }
    if (!c->unsent)
        arm_stall(c);
    c->unsent += n;
}

void http_conn_answered(struct http_conn *c, bool close_after) {
    c->close_after = close_after;
    sm_move(&c->sm, CONN_FLUSH);
    if (!c->unsent) /* all of a stream was sent: go on from the loop, not from inside the caller */
        http_conn_write(c, STR(""), STR(""), STR(""));
}

/* An answer of the server's own to a request that no handler sees; ends the connection. */
static void conn_fail(struct http_conn *c, int status, const char *text) {
    if (!c->req)
        c->req = http_req_new(c->s, c);
    if (!c->req) {
        http_conn_drop(c);
        return;
    }
    CHECK(!c->req->method); /* not handed out */
    c->s->stats.bad_total++;
    c->req->method = "";
    c->req->keep_alive = false;
    log_debug(c->s->cfg.log, "http request refused", "status=%d why=%s", status, text);
    http_reply_error(c->req, status, status == 503 ? "server_error" : "invalid_request_error", NULL,
                     NULL, "%s", text);
}

/* --- parsing --- */

static int refuse(struct http_conn *c, int status, const char *text) {
    c->fail_status = status;
    c->fail_text = text;
    return HPE_USER;
}

static int on_url(llhttp_t *p, const char *at, size_t n) {
    struct http_req *r = ((struct http_conn *)p->data)->req;
    r->target.n += (uint32_t)n; /* first in the buffer, so it is contiguous */
    strbuf_add(&r->head, at, n);
    return 0;
}

static int on_header_field(llhttp_t *p, const char *at, size_t n) {
    struct http_conn *c = p->data;
    struct http_req *r = c->req;
    if (c->head_done) {
        c->trailer_bytes += n; /* trailers are read and dropped */
        return c->trailer_bytes > TRAILER_MAX_BYTES ? refuse(c, 431, "trailers too large") : 0;
    }
    if (r->n_headers == 0 || c->value_open) { /* a new one */
        if (r->n_headers == HTTP_HEADERS_MAX)
            return refuse(c, 431, "too many headers");
        strbuf_addc(&r->head, '\0');
        r->headers[r->n_headers].name = (struct http_span){(uint32_t)r->head.len, 0};
        r->n_headers++;
        c->value_open = false;
    }
    r->headers[r->n_headers - 1].name.n += (uint32_t)n;
    strbuf_add(&r->head, at, n);
    return 0;
}

static int on_header_value(llhttp_t *p, const char *at, size_t n) {
    struct http_conn *c = p->data;
    struct http_req *r = c->req;
    if (c->head_done) {
        c->trailer_bytes += n;
        return c->trailer_bytes > TRAILER_MAX_BYTES ? refuse(c, 431, "trailers too large") : 0;
    }
    struct http_span *v = &r->headers[r->n_headers - 1].value;
    if (!c->value_open) {
        strbuf_addc(&r->head, '\0');
        *v = (struct http_span){(uint32_t)r->head.len, 0};
        c->value_open = true;
    }
    v->n += (uint32_t)n;
    strbuf_add(&r->head, at, n);
    return 0;
}

static uint32_t count_header(const struct http_req *r, const char *name) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_headers; i++)
        n += str_eq_nocase((struct str){r->head.p + r->headers[i].name.off, r->headers[i].name.n},
                           str_of(name));
    return n;
}

/* What llhttp lets through or another server might read differently (request smuggling). */
static int check_head(struct http_conn *c, llhttp_t *p) {
    struct http_req *r = c->req;
    if (p->http_major != 1 || p->http_minor > 1)
        return refuse(c, 505, "HTTP/1.0 and HTTP/1.1 are spoken here");
    if (count_header(r, "host") > 1 || (!r->is_http10 && count_header(r, "host") == 0))
        return refuse(c, 400, "one Host header is required");
    if (count_header(r, "content-length") > 1)
        return refuse(c, 400, "more than one Content-Length");
    uint32_t n_te = count_header(r, "transfer-encoding");
    if (n_te && (n_te > 1 || r->is_http10 || count_header(r, "content-length") ||
                 !str_eq_nocase(str_trim(http_req_header(r, "transfer-encoding")), STR("chunked"))))
        return refuse(c, 400,
                      "Transfer-Encoding may only be 'chunked', once, without Content-Length");
    if (count_header(r, "content-length") && p->content_length > c->s->cfg.max_body_bytes)
        return refuse(c, 413, "request body too large");
    return 0;
}

static int on_headers_complete(llhttp_t *p) {
    struct http_conn *c = p->data;
    struct http_req *r = c->req;
    c->head_done = true;
    r->is_http10 = p->http_major == 1 && p->http_minor == 0;
    r->is_head = p->method == HTTP_HEAD;
    r->keep_alive = llhttp_should_keep_alive(p) != 0;
    p->upgrade = 0; /* no protocol is offered: the request is served as it is */
    if (r->head.oom)
        return refuse(c, 503, "out of memory");
    int rv = check_head(c, p);
    if (rv)
        return rv;
    struct str expect = http_req_header(r, "expect");
    if (expect.p && !str_eq_nocase(expect, STR("100-continue")))
        return refuse(c, 417, "only 'Expect: 100-continue' is known");
    bool has_body = p->content_length > 0 || count_header(r, "transfer-encoding");
    if (expect.p && has_body && !r->is_http10)
        http_conn_write(c, STR("HTTP/1.1 100 Continue\r\n\r\n"), STR(""), STR(""));
    if (sm_at(&c->sm) == CONN_HEAD) {
        sm_move(&c->sm, CONN_BODY);
        arm(c, c->s->cfg.body_timeout_ms);
    }
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t n) {
    struct http_conn *c = p->data;
    if (n > c->s->cfg.max_body_bytes - c->req->body.len)
        return refuse(c, 413, "request body too large");
    strbuf_add(&c->req->body, at, n);
    return c->req->body.oom ? refuse(c, 503, "out of memory") : 0;
}

static int on_message_complete(llhttp_t *p) {
    (void)p;
    return HPE_PAUSED; /* one request at a time; what follows waits in pending */
}

/* Looks at the raw head before llhttp does: size, and bare CR or LF, which llhttp accepts in
 * places. *ret_n: how many bytes may be parsed (all, or up to the offence). 0 or an HTTP status. */
static int scan_head(struct http_conn *c, const char *p, size_t n) {
    for (size_t i = 0; i < n && c->head_scan != SCAN_AFTER; i++) {
        char ch = p[i];
        if (c->head_scan == SCAN_BEFORE) {
            if (ch == '\r' || ch == '\n') {
                if (++c->head_bytes > 8)
                    return 400;
                continue; /* blank lines before a request are skipped */
            }
            c->head_scan = SCAN_HEAD;
            c->head_bytes = 0;
        }
        if ((ch == '\n') != (c->head_prev == '\r'))
            return 400;
        if (ch == '\n') {
            if (c->head_blank)
                c->head_scan = SCAN_AFTER;
            c->head_blank = true;
            c->line_done = true;
        } else if (ch != '\r') {
            c->head_blank = false;
        }
        c->head_prev = ch;
        if (++c->head_bytes > c->s->cfg.max_head_bytes)
            return c->line_done ? 431 : 414;
    }
    return 0;
}

static void begin_request(struct http_conn *c) {
    c->head_bytes = c->trailer_bytes = 0;
    c->head_scan = SCAN_BEFORE;
    c->head_prev = '\0';
    c->head_blank = c->head_done = c->line_done = c->value_open = false;
    c->fail_status = 0;
    llhttp_init(&c->parser, HTTP_REQUEST, &c->s->settings);
    c->parser.data = c;
}

static const struct http_route *find_route(struct http_server *s, const struct http_req *r,
                                           const char *method, bool *ret_path_known,
                                           struct strbuf *allow) {
    struct str path = http_req_path(r);
    const char *want = strcmp(method, "HEAD") == 0 ? "GET" : method;
    for (size_t i = 0; i < s->cfg.n_routes; i++) {
        const struct http_route *t = &s->cfg.routes[i];
        struct str rp = str_of(t->path);
        bool prefix = str_ends(rp, STR("*"));
        if (!(prefix ? str_starts(path, str_cut(rp, 0, rp.n - 1)) : str_eq(path, rp)))
            continue;
        if (strcmp(t->method, want) == 0)
            return t;
        *ret_path_known = true;
        strbuf_addf(allow, "%s%s%s", allow->len ? ", " : "", t->method,
                    strcmp(t->method, "GET") == 0 ? ", HEAD" : "");
    }
    return NULL;
}

static void dispatch(struct http_conn *c) {
    struct http_server *s = c->s;
    struct http_req *r = c->req;
    struct strbuf allow;
    bool path_known = false;
    strbuf_init(&allow);
    sm_move(&c->sm, CONN_HANDLE);
    uv_timer_stop(&c->timer);
    if (c->unsent)
        arm_stall(c);
    c->n_requests++;
    s->stats.requests_total++;
    r->method = llhttp_method_name((llhttp_method_t)c->parser.method);
    const struct http_route *t = find_route(s, r, r->method, &path_known, &allow);
    if (t) {
        t->cb(r, t->arg);
    } else if (path_known) {
        s->stats.bad_total++;
        (void)http_reply_header(r, "Allow", allow.p ? allow.p : "");
        http_reply_error(r, 405, "invalid_request_error", NULL, NULL, "method not allowed");
    } else {
        struct str path = http_req_path(r);
        s->stats.bad_total++;
        http_reply_error(r, 404, "invalid_request_error", NULL, NULL, "no such path: " STR_FMT,
                         STR_ARG(path));
    }
    strbuf_fini(&allow);
}

/* Bytes that come while a request is handled. */
static void keep_pending(struct http_conn *c, const char *p, size_t n) {
    strbuf_add(&c->pending, p, n);
    if (c->pending.oom) {
        http_conn_drop(c);
    } else if (c->pending.len >= HTTP_PENDING_MAX_BYTES && c->reading) {
        uv_read_stop(&c->h.stream);
        c->reading = false;
    }
}

/* States IDLE, HEAD, BODY. */
static void parse(struct http_conn *c, const char *p, size_t n) {
    if (sm_at(&c->sm) == CONN_IDLE) {
        c->req = http_req_new(c->s, c);
        if (!c->req) {
            http_conn_drop(c);
            return;
        }
        begin_request(c);
        sm_move(&c->sm, CONN_HEAD);
        arm(c, c->s->cfg.head_timeout_ms);
    }
    int status = scan_head(c, p, n);
    if (status) {
        conn_fail(c, status, status == 400 ? "malformed request head" : "request head too large");
        return;
    }
    llhttp_errno_t e = llhttp_execute(&c->parser, p, n);
    if (sm_at(&c->sm) == CONN_DROPPED)
        return;
    if (e == HPE_PAUSED) {
        const char *at = llhttp_get_error_pos(&c->parser);
        size_t used = (size_t)(at - p);
        if (used < n)
            keep_pending(c, p + used, n - used);
        if (sm_at(&c->sm) != CONN_DROPPED)
            dispatch(c);
    } else if (c->fail_status) {
        conn_fail(c, c->fail_status, c->fail_text);
    } else if (e != HPE_OK) {
        conn_fail(c, e == HPE_INVALID_VERSION ? 505 : 400, "malformed request");
    }
}

static void conn_feed(struct http_conn *c, const char *p, size_t n) {
    switch (sm_at(&c->sm)) {
    case CONN_IDLE:
    case CONN_HEAD:
    case CONN_BODY:
        parse(c, p, n);
        break;
    case CONN_HANDLE:
    case CONN_FLUSH:
        if (!c->close_after)
            keep_pending(c, p, n);
        break;
    case CONN_LINGER:
        c->linger_bytes += n;
        if (c->linger_bytes > LINGER_MAX_BYTES)
            http_conn_drop(c);
        break;
    default:
        break;
    }
}

/* --- reading --- */

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *buf) {
    struct http_conn *c = h->data;
    (void)want;
    *buf = uv_buf_init(c->s->read_buf, sizeof(c->s->read_buf));
}

static void on_read(uv_stream_t *st, ssize_t n, const uv_buf_t *buf) {
    struct http_conn *c = st->data;
    if (n > 0) {
        conn_feed(c, buf->base, (size_t)n);
    } else if (n == UV_EOF && sm_at(&c->sm) == CONN_FLUSH) {
        c->close_after = true; /* the peer has said all; it still gets the answer's rest */
        uv_read_stop(st);
    } else if (n < 0) {
        http_conn_drop(c);
    }
}

static void conn_next(struct http_conn *c) {
    if (c->s->draining && !c->pending.len) {
        http_conn_drop(c);
        return;
    }
    arm(c, c->s->cfg.idle_timeout_ms);
    if (c->pending.len) {
        struct strbuf ahead = c->pending;
        strbuf_init(&c->pending);
        conn_feed(c, ahead.p, ahead.len);
        strbuf_fini(&ahead);
    }
    if (!c->reading && sm_at(&c->sm) != CONN_DROPPED && c->pending.len < HTTP_PENDING_MAX_BYTES) {
        c->reading = true;
        uv_read_start(&c->h.stream, on_alloc, on_read);
    }
}

/* --- accepting --- */

static int conn_init(struct http_server *s, struct http_conn *c, bool is_pipe) {
    memset(c, 0, sizeof(*c));
    c->s = s;
    sm_init(&c->sm, conn_states, CONN_STATE_NR, CONN_IDLE);
    int rv = is_pipe ? uv_pipe_init(s->loop, &c->h.pipe, 0) : uv_tcp_init(s->loop, &c->h.tcp);
    if (rv < 0)
        return rv;
    CHECK(uv_timer_init(s->loop, &c->timer) == 0); /* cannot fail */
    c->h.stream.data = c->timer.data = c;
    c->live = 2;
    list_push_back(&s->conns, &c->link);
    s->stats.conns++;
    return 0;
}

/* libuv stays deaf until a waiting connection has been accepted, so one is always accepted, if only
 * to be closed: into the spare when there is no memory for another. */
static void on_connection(uv_stream_t *listener, int status) {
    struct http_server *s = listener->data;
    if (status < 0)
        return; /* out of descriptors: libuv tries again */
    struct http_conn *c = malloc(sizeof(*c));
    bool is_spare = !c;
    if (!c)
        c = TAKE_PTR(s->spare);
    s->accept_waits = !c;
    if (!c)
        return; /* the spare is about to come back: conn_recycle() */
    CHECK(conn_init(s, c, s->is_unix) ==
          0); /* uv_tcp_init() and uv_pipe_init() fail for wrong flags only */
    if (uv_accept(listener, &c->h.stream) < 0 || is_spare ||
        s->stats.conns > s->cfg.max_conns + REFUSED_EXTRA) {
        http_conn_drop(c);
        return;
    }
    if (!s->is_unix)
        uv_tcp_nodelay(&c->h.tcp, 1);
    s->stats.conns_total++;
    c->reading = true;
    if (uv_read_start(&c->h.stream, on_alloc, on_read) < 0) {
        http_conn_drop(c);
        return;
    }
    if (s->stats.conns > s->cfg.max_conns) {
        s->stats.refused_total++;
        conn_fail(c, 503, "too many connections");
        return;
    }
    arm(c, s->cfg.idle_timeout_ms);
}

int http_server_adopt(struct http_server *s, int take_fd) {
    struct http_conn *c = malloc(sizeof(*c));
    if (!c) {
        close(take_fd);
        return ERR_NOMEM;
    }
    CHECK(conn_init(s, c, /* is_pipe= */ true) == 0);
    int rv = uv_pipe_open(&c->h.pipe, take_fd);
    if (rv < 0)
        close(take_fd);
    c->reading = true;
    if (rv == 0)
        rv = uv_read_start(&c->h.stream, on_alloc, on_read);
    if (rv < 0)
        http_conn_drop(c);
    else
        arm(c, s->cfg.idle_timeout_ms);
    return rv;
}

/* --- the server --- */

static void set_defaults(struct http_server_cfg *c) {
    c->max_conns = c->max_conns ? c->max_conns : 1024;
    c->max_head_bytes = c->max_head_bytes ? c->max_head_bytes : 32u << 10;
    c->max_body_bytes = c->max_body_bytes ? c->max_body_bytes : 16u << 20;
    c->max_unsent_bytes = c->max_unsent_bytes ? c->max_unsent_bytes : 4u << 20;
    c->head_timeout_ms = c->head_timeout_ms ? c->head_timeout_ms : 10000;
    c->body_timeout_ms = c->body_timeout_ms ? c->body_timeout_ms : 60000;
    c->idle_timeout_ms = c->idle_timeout_ms ? c->idle_timeout_ms : 75000;
    c->stall_timeout_ms = c->stall_timeout_ms ? c->stall_timeout_ms : 30000;
    c->max_requests_per_conn = c->max_requests_per_conn ? c->max_requests_per_conn : 100000;
}

static int bind_tcp(struct http_server *s) {
    struct sockaddr_storage sa;
    int rv = uv_tcp_init(s->loop, &s->listener.tcp);
    if (rv < 0)
        return rv;
    s->listener_open = true;
    const char *host = strcmp(s->cfg.host, "localhost") == 0 ? "127.0.0.1" : s->cfg.host;
    rv = uv_ip4_addr(host, s->cfg.port, (struct sockaddr_in *)&sa);
    if (rv < 0)
        rv = uv_ip6_addr(host, s->cfg.port, (struct sockaddr_in6 *)&sa);
    return rv < 0 ? rv : uv_tcp_bind(&s->listener.tcp, (const struct sockaddr *)&sa, 0);
}

static int bind_unix(struct http_server *s) {
    struct stat st;
    int rv = uv_pipe_init(s->loop, &s->listener.pipe, 0);
    if (rv < 0)
        return rv;
    s->listener_open = true;
    if (lstat(s->unix_path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(s->unix_path); /* left by a process that was killed */
    return uv_pipe_bind(&s->listener.pipe, s->unix_path);
}

static void on_listener_closed(uv_handle_t *h) {
    struct http_server *s = h->data;
    s->listener_open = false;
    server_release(s);
}

static void close_listener(struct http_server *s) {
    if (s->listener_open && !uv_is_closing((uv_handle_t *)&s->listener.stream))
        uv_close((uv_handle_t *)&s->listener.stream, on_listener_closed);
}

static void init_settings(llhttp_settings_t *t) {
    llhttp_settings_init(t);
    t->on_url = on_url;
    t->on_header_field = on_header_field;
    t->on_header_value = on_header_value;
    t->on_headers_complete = on_headers_complete;
    t->on_body = on_body;
    t->on_message_complete = on_message_complete;
}

int http_server_open(struct http_server **ret, uv_loop_t *loop, const struct http_server_cfg *cfg,
                     struct errbuf *eb) {
    struct http_server *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(eb, ERR_NOMEM, "out of memory");
    s->loop = loop;
    s->cfg = *cfg;
    set_defaults(&s->cfg);
    s->spare = calloc(1, sizeof(*s->spare));
    if (!s->spare) {
        free(s);
        return err_set(eb, ERR_NOMEM, "out of memory");
    }
    init_settings(&s->settings);
    list_init(&s->conns);
    if (!cfg->host) {
        *ret = s;
        return 0;
    }
    s->is_unix = str_starts(str_of(cfg->host), STR("unix:"));
    if (s->is_unix && strlen(cfg->host + 5) >= sizeof(s->unix_path)) {
        free(s->spare);
        free(s);
        return err_set(eb, ERR_INVALID, "HTTP listen on '%s': path too long", cfg->host);
    }
    if (s->is_unix)
        snprintf(s->unix_path, sizeof(s->unix_path), "%s", cfg->host + 5);
    int rv = s->is_unix ? bind_unix(s) : bind_tcp(s);
    s->listener.stream.data = s;
    if (rv == 0)
        rv = uv_listen(&s->listener.stream, 1024, on_connection);
    if (rv < 0) {
        if (s->is_unix)
            err_set(eb, rv, "HTTP listen on '%s': %s", cfg->host, err_text(rv));
        else
            err_set(eb, rv, "HTTP listen on %s port %u: %s", cfg->host, cfg->port, err_text(rv));
        s->closing = true; /* freed by the listener's close callback */
        if (s->listener_open)
            close_listener(s);
        else
            server_release(s);
        return rv;
    }
    *ret = s;
    return 0;
}

uint16_t http_server_port(const struct http_server *s) {
    struct sockaddr_storage sa;
    int len = sizeof(sa);
    if (s->is_unix || !s->listener_open ||
        uv_tcp_getsockname(&s->listener.tcp, (struct sockaddr *)&sa, &len) < 0)
        return 0;
    return sa.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&sa)->sin6_port)
                                    : ntohs(((struct sockaddr_in *)&sa)->sin_port);
}

void http_server_drain(struct http_server *s) {
    s->draining = true;
    close_listener(s);
    LIST_FOREACH_SAFE(&s->conns, it, next) {
        struct http_conn *c = LIST_ENTRY(it, struct http_conn, link);
        if (sm_at(&c->sm) == CONN_IDLE)
            http_conn_drop(c);
    }
}

void http_server_close(struct http_server *s, void (*cb)(void *arg), void *arg) {
    CHECK(!s->closing);
    s->closing = true;
    s->close_cb = cb;
    s->close_arg = arg;
    LIST_FOREACH_SAFE(&s->conns, it, next) {
        http_conn_drop(LIST_ENTRY(it, struct http_conn, link));
    }
    if (s->listener_open)
        close_listener(s);
    else
        server_release(s);
}

void http_server_stats(const struct http_server *s, struct http_server_stats *ret) {
    *ret = s->stats;
    ret->requests_open = s->n_reqs;
}

const struct http_server_cfg *http_server_cfg_of(const struct http_server *s) {
    return &s->cfg;
}

bool http_server_is_draining(const struct http_server *s) {
    return s->draining;
}
