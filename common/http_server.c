/* Listener, who may connect and stay, routes. */
#include "common/http_server.h"

#include <netdb.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/check.h"
#include "common/http_priv.h"
#include "common/sock_path.h"

/* Connections beyond max_conns that may show whether they are a probe. */
#define PROBES_EXTRA 64u
#define FDS_KEPT 128u /* of the process's descriptors, for all else */
/* A half-closed peer is asked whether it is there: soon again, since the first question only brings
 * the reset of one that is not, then now and then. */
#define PROBE_SOON_MS 100u
#define PROBE_EVERY_MS 5000u
#define CLOSE_FLUSH_MS 1000u
#define BACKLOG 1024 /* of the listener: a burst of connections between two turns of the loop */

static struct http_link *link_of(struct http_conn *conn) {
    return CONTAINER_OF(conn, struct http_link, conn);
}

/* --- closing --- */

static void on_flush_closed(uv_handle_t *h);

static void server_release(struct http_server *s) {
    if (!s->closing || s->listener_open || s->stats.conns || s->n_reqs)
        return;
    if (s->flush_open) {
        if (!uv_is_closing((uv_handle_t *)&s->flush))
            uv_close((uv_handle_t *)&s->flush, on_flush_closed);
        return;
    }
    void (*cb)(void *arg) = s->close_cb;
    void *arg = s->close_arg;
    free(s->spare);
    free(s);
    if (cb)
        cb(arg);
}

static void on_flush_closed(uv_handle_t *h) {
    struct http_server *s = h->data;
    s->flush_open = false;
    server_release(s);
}

static void on_connection(uv_stream_t *listener, int status);

/* The memory of a closed connection becomes the spare again if that was used. */
static void link_recycle(struct http_server *s, struct http_link *c) {
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

static void on_conn_closed(struct http_conn *conn) {
    struct http_link *c = link_of(conn);
    struct http_server *s = c->s;
    struct http_req *r = TAKE_PTR(c->req);
    list_remove(&c->link);
    s->stats.conns--;
    strbuf_fini(&c->pending);
    if (c->peer)
        http_peer_unref(c->peer);
    link_recycle(s, c);
    if (r)
        r->c = NULL;
    if (r && r->handed_out) { /* a handler owns it and will end it */
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

/* Connections that have not been dropped: those that are closing are counted in stats.conns until
 * their handles are. */
static uint32_t n_live(const struct http_server *s) {
    uint32_t n = 0;
    LIST_FOREACH(&s->conns, it)
    n += !http_conn_is_gone(&LIST_ENTRY(it, struct http_link, link)->conn);
    return n;
}

/* --- routes --- */

static const struct http_route *find_route(struct http_server *s, const struct http_req *r,
                                           struct strbuf *allow) {
    struct str path = http_req_path(r);
    const char *want = strcmp(r->method, "HEAD") == 0 ? "GET" : r->method;
    for (size_t i = 0; i < s->cfg.n_routes; i++) {
        const struct http_route *t = &s->cfg.routes[i];
        struct str rp = str_of(t->path);
        bool prefix = str_ends(rp, STR("*"));
        if (!(prefix ? str_starts(path, str_cut(rp, 0, rp.n - 1)) : str_eq(path, rp)))
            continue;
        if (strcmp(t->method, want) == 0)
            return t;
        strbuf_addf(allow, "%s%s%s", allow->len ? ", " : "", t->method,
                    strcmp(t->method, "GET") == 0 ? ", HEAD" : "");
    }
    return NULL;
}

/* Lets a page of an allowed origin read the answer. True when this is one. */
static bool add_cors(struct http_server *s, struct http_req *r) {
    struct str origin = http_req_header(r, "origin");
    bool ok = false;
    if (!s->cfg.n_cors || !origin.p)
        return false;
    for (size_t i = 0; i < s->cfg.n_cors; i++)
        ok |= strcmp(s->cfg.cors_origins[i], "*") == 0 ||
              str_eq(origin, str_of(s->cfg.cors_origins[i]));
    (void)http_reply_header(r, "Vary", "Origin");
    if (!ok)
        return false;
    (void)http_reply_header(r, "Access-Control-Allow-Origin", origin.p);
    (void)http_reply_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    return true;
}

static void reply_options(struct http_req *r, const char *allow, bool is_cors) {
    (void)http_reply_header(r, "Allow", allow);
    if (is_cors) {
        struct str want = http_req_header(r, "access-control-request-headers");
        (void)http_reply_header(r, "Access-Control-Allow-Methods", allow);
        if (want.p)
            (void)http_reply_header(r, "Access-Control-Allow-Headers", want.p);
        (void)http_reply_header(r, "Access-Control-Max-Age", "600");
    }
    http_reply(r, 204, NULL, STR(""));
}

static void reply_unrouted(struct http_link *c, struct strbuf *allow, bool is_cors) {
    struct http_req *r = c->req;
    if (allow->len)
        strbuf_addz(allow, ", OPTIONS");
    if (allow->len && strcmp(r->method, "OPTIONS") == 0) {
        reply_options(r, allow->p ? allow->p : "", is_cors);
        return;
    }
    c->s->stats.bad_total++;
    if (allow->len) {
        (void)http_reply_header(r, "Allow", allow->p ? allow->p : "");
        http_reply_error(r, 405, "invalid_request_error", NULL, NULL, "method not allowed");
        return;
    }
    struct str path = http_req_path(r);
    http_reply_error(r, 404, "invalid_request_error", NULL, NULL, "no such path: " STR_FMT,
                     STR_ARG(path));
}

/* Finds who serves the request, on its head alone. False: it was answered. */
static bool admit(struct http_link *c) {
    struct http_server *s = c->s;
    struct http_req *r = c->req;
    struct strbuf allow;
    strbuf_init(&allow);
    c->n_requests++;
    s->stats.requests_total++;
    r->method = llhttp_method_name((llhttp_method_t)c->parser.method);
    r->handed_out = true;
    bool is_cors = add_cors(s, r);
    const struct http_route *t = find_route(s, r, &allow);
    if (!t) {
        reply_unrouted(c, &allow, is_cors);
    } else if (!t->is_probe && s->stats.conns > s->cfg.max_conns && n_live(s) > s->cfg.max_conns) {
        s->stats.refused_total++;
        r->keep_alive = false;
        (void)http_reply_header(r, "Retry-After", "1");
        http_reply_error(r, 503, "server_error", NULL, NULL, "too many connections");
        t = NULL;
    } else if (t->on_head && !t->on_head(r, t->arg)) {
        t = NULL;
    }
    strbuf_fini(&allow);
    if (!t)
        return false;
    r->handed_out = false;
    r->is_probe = t->is_probe;
    c->route = t;
    return true;
}

static void dispatch(struct http_link *c) {
    sm_move(&c->conn.sm, CONN_HANDLE);
    http_conn_disarm(&c->conn);
    if (!c->route && !admit(c))
        return;
    c->req->handed_out = true;
    c->route->cb(c->req, c->route->arg);
}

/* --- bytes --- */

/* Bytes that come while a request is handled. */
static void keep_pending(struct http_link *c, const char *p, size_t n) {
    strbuf_add(&c->pending, p, n);
    if (c->pending.oom)
        http_conn_drop(&c->conn);
    else if (c->pending.len >= HTTP_PENDING_MAX_BYTES)
        (void)http_conn_read(&c->conn, false);
}

static bool begin_request(struct http_link *c) {
    c->req = http_req_new(c);
    if (!c->req) {
        http_conn_drop(&c->conn);
        return false;
    }
    http_parse_begin(c);
    c->n_probes = 0;
    list_remove(&c->link);
    list_push_back(&c->s->conns, &c->link);
    sm_move(&c->conn.sm, CONN_HEAD);
    http_conn_arm(&c->conn, c->s->cfg.head_timeout_ms);
    return true;
}

/* States IDLE, HEAD, BODY. */
static void parse(struct http_link *c, const char *p, size_t n) {
    size_t used = 0;
    if (sm_at(&c->conn.sm) == CONN_IDLE && !begin_request(c))
        return;
    switch (http_parse_feed(c, p, n, &used)) {
    case HTTP_PARSED_WHOLE:
        if (used < n)
            keep_pending(c, p + used, n - used);
        if (!http_conn_is_gone(&c->conn))
            dispatch(c);
        break;
    case HTTP_PARSED_REFUSED:
        http_req_refuse(c->req, c->fail_status, c->fail_text);
        break;
    default:
        break;
    }
}

static void on_data(struct http_conn *conn, const char *p, size_t n) {
    struct http_link *c = link_of(conn);
    switch (sm_at(&conn->sm)) {
    case CONN_IDLE:
    case CONN_HEAD:
    case CONN_BODY:
        parse(c, p, n);
        break;
    case CONN_HANDLE:
    case CONN_FLUSH:
        if (!conn->close_after)
            keep_pending(c, p, n);
        break;
    default:
        break;
    }
}

static void on_next(struct http_conn *conn) {
    struct http_link *c = link_of(conn);
    if (c->s->closing || (!c->pending.len && (c->s->draining || conn->peer_done))) {
        http_conn_drop(conn);
        return;
    }
    list_remove(&c->link);
    list_push_back(&c->s->conns, &c->link);
    if (c->pending.len) {
        struct strbuf ahead = c->pending;
        strbuf_init(&c->pending);
        on_data(conn, ahead.p, ahead.len);
        strbuf_fini(&ahead);
    }
    if (!http_conn_is_gone(conn) && c->pending.len < HTTP_PENDING_MAX_BYTES)
        (void)http_conn_read(conn, true);
}

/* --- a peer that says no more --- */

/* A FIN says as much of a client that left as of one that has only finished sending. One that left
 * answers the next bytes with a reset, so some are sent that every HTTP/1.1 client passes over. */
static void probe_peer(struct http_link *c) {
    if (c->req && !c->req->streaming && !c->req->is_http10) {
        c->n_probes++;
        http_conn_write(&c->conn, STR("HTTP/1.1 100 Continue\r\n\r\n"), STR(""), STR(""));
    }
}

static void on_half_closed(struct http_conn *conn) {
    if (sm_at(&conn->sm) == CONN_HANDLE)
        probe_peer(link_of(conn));
}

static void on_drained(struct http_conn *conn) {
    struct http_link *c = link_of(conn);
    if (conn->peer_done)
        http_conn_arm(conn, c->n_probes > 1 ? PROBE_EVERY_MS : PROBE_SOON_MS);
    if (c->req && c->req->streaming && c->req->drained_cb)
        c->req->drained_cb(c->req, c->req->drained_arg);
}

static void on_late(struct http_conn *conn) {
    struct http_link *c = link_of(conn);
    if (sm_at(&conn->sm) == CONN_HANDLE)
        probe_peer(c);
    else
        http_req_refuse(c->req, 408, "the request did not arrive in time");
}

static const struct http_conn_ops conn_ops = {
    .data = on_data,
    .half_closed = on_half_closed,
    .late = on_late,
    .drained = on_drained,
    .next = on_next,
    .closed = on_conn_closed,
};

/* --- clients --- */

static void peer_address(const struct http_link *c, uint8_t key[16], char *text, size_t cap) {
    struct sockaddr_storage sa;
    int len = sizeof(sa);
    memset(key, 0, 16);
    snprintf(text, cap, "unix");
    if (c->conn.h.stream.type != UV_TCP ||
        uv_tcp_getpeername(&c->conn.h.tcp, (struct sockaddr *)&sa, &len) < 0)
        return;
    if (sa.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&sa;
        memcpy(key, &in6->sin6_addr, 8); /* a host has a /64 to choose from */
        uv_ip6_name(in6, text, cap);
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&sa;
        memcpy(key + 12, &in->sin_addr, 4);
        uv_ip4_name(in, text, cap);
    }
}

static int join_peer(struct http_link *c) {
    struct http_server *s = c->s;
    uint8_t key[16];
    char text[sizeof(((struct http_peer *)0)->text)];
    peer_address(c, key, text, sizeof(text));
    LIST_FOREACH(&s->peers, it) {
        struct http_peer *p = LIST_ENTRY(it, struct http_peer, link);
        if (memcmp(p->key, key, sizeof(key)) == 0) {
            p->n_refs++;
            c->peer = p;
            return 0;
        }
    }
    struct http_peer *p = calloc(1, sizeof(*p));
    if (!p)
        return ERR_NOMEM;
    memcpy(p->key, key, sizeof(key));
    memcpy(p->text, text, sizeof(text));
    p->n_refs = 1;
    share_user_init(&p->bodies, &s->bodies_tenant);
    list_push_back(&s->peers, &p->link);
    c->peer = p;
    return 0;
}

/* How gladly a connection is let go; 0: not at all, a handler works for it. */
static uint32_t gives_way(const struct http_link *c) {
    switch (sm_at(&c->conn.sm)) {
    case CONN_IDLE:
    case CONN_FLUSH:
    case CONN_LINGER:
        return 3;
    case CONN_HEAD:
        return 2;
    case CONN_BODY:
        return 1;
    default:
        return 0;
    }
}

/* Drops one connection that nobody works for: of the client with most of them, the one without a
 * change for longest. Newcomers thus cost those who hold much, never the probe that has just come. */
static bool evict_one(struct http_server *s, const struct http_link *newcomer) {
    struct http_link *best = NULL;
    LIST_FOREACH(&s->conns, it) {
        struct http_link *c = LIST_ENTRY(it, struct http_link, link);
        uint32_t way = c == newcomer || !c->peer ? 0 : gives_way(c);
        if (way && (!best || way > gives_way(best) ||
                    (way == gives_way(best) && c->peer->n_refs > best->peer->n_refs)))
            best = c;
    }
    if (!best)
        return false;
    s->stats.evicted_total++;
    http_conn_drop(&best->conn);
    return true;
}

/* --- accepting --- */

static void link_init(struct http_server *s, struct http_link *c, bool is_pipe) {
    memset(c, 0, sizeof(*c));
    c->s = s;
    /* uv_tcp_init() and uv_pipe_init() fail for wrong flags only */
    CHECK(http_conn_init(&c->conn, s->loop, is_pipe, &conn_ops, &s->cfg, s->read_buf) == 0);
    list_push_back(&s->conns, &c->link);
    s->stats.conns++;
}

static void link_start(struct http_link *c) {
    struct http_server *s = c->s;
    s->stats.conns_total++;
    if (join_peer(c) < 0 || http_conn_read(&c->conn, true) < 0) {
        http_conn_drop(&c->conn);
        return;
    }
    http_conn_arm(&c->conn, s->cfg.idle_timeout_ms);
    if (s->stats.conns > s->cfg.max_conns && n_live(s) > s->cfg.max_conns && !evict_one(s, c) &&
        n_live(s) > s->cfg.max_conns + PROBES_EXTRA) {
        s->stats.refused_total++;
        http_conn_drop(&c->conn);
    }
}

/* libuv stays deaf until a waiting connection has been accepted, so one is always accepted, if only
 * to be closed: into the spare when there is no memory for another. */
static void on_connection(uv_stream_t *listener, int status) {
    struct http_server *s = listener->data;
    if (status < 0)
        return; /* out of descriptors: libuv tries again */
    struct http_link *c = malloc(sizeof(*c));
    bool is_spare = !c;
    if (!c)
        c = TAKE_PTR(s->spare);
    s->accept_waits = !c;
    if (!c)
        return; /* the spare is about to come back: link_recycle() */
    link_init(s, c, s->is_unix);
    if (uv_accept(listener, &c->conn.h.stream) < 0 || is_spare) {
        http_conn_drop(&c->conn);
        return;
    }
    if (!s->is_unix)
        uv_tcp_nodelay(&c->conn.h.tcp, 1);
    link_start(c);
}

int http_server_adopt(struct http_server *s, int take_fd) {
    struct http_link *c = malloc(sizeof(*c));
    if (!c) {
        close(take_fd);
        return ERR_NOMEM;
    }
    link_init(s, c, /* is_pipe= */ true);
    int rv = uv_pipe_open(&c->conn.h.pipe, take_fd);
    if (rv < 0) {
        close(take_fd);
        http_conn_drop(&c->conn);
        return rv;
    }
    link_start(c);
    return 0;
}

/* --- the server --- */

/* Where descriptors run out first, libuv drops whoever comes, probes too, without a word to us: so we
 * make room before. */
static uint32_t conns_that_fit(uint32_t max) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 ||
        limit.rlim_cur >= (rlim_t)max + PROBES_EXTRA + FDS_KEPT)
        return max;
    rlim_t kept = PROBES_EXTRA + FDS_KEPT;
    return (uint32_t)MAX(limit.rlim_cur, kept + 8) - (uint32_t)kept;
}

static void set_defaults(struct http_server_cfg *c) {
    c->max_conns = conns_that_fit(c->max_conns ? c->max_conns : 1024);
    c->max_head_bytes = c->max_head_bytes ? c->max_head_bytes : 32u << 10;
    c->max_body_bytes = c->max_body_bytes ? c->max_body_bytes : 16u << 20;
    c->max_bodies_bytes = c->max_bodies_bytes ? c->max_bodies_bytes : 256u << 20;
    c->max_unsent_bytes = c->max_unsent_bytes ? c->max_unsent_bytes : 4u << 20;
    c->head_timeout_ms = c->head_timeout_ms ? c->head_timeout_ms : 10000;
    c->body_timeout_ms = c->body_timeout_ms ? c->body_timeout_ms : 60000;
    c->idle_timeout_ms = c->idle_timeout_ms ? c->idle_timeout_ms : 75000;
    c->stall_timeout_ms = c->stall_timeout_ms ? c->stall_timeout_ms : 30000;
    c->max_requests_per_conn = c->max_requests_per_conn ? c->max_requests_per_conn : 100000;
}

static bool is_loopback(const struct sockaddr_storage *sa) {
    if (sa->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)sa)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 24 == 127;
}

/* At start: a name may take its time to resolve. */
static int resolve(const struct http_server *s, struct sockaddr_storage *ret, struct errbuf *eb) {
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *res = NULL;
    const char *host = strcmp(s->cfg.host, "localhost") == 0 ? "127.0.0.1" : s->cfg.host;
    snprintf(port, sizeof(port), "%u", s->cfg.port);
    int gai = getaddrinfo(host, port, &hints, &res);
    if (gai != 0)
        return err_set(eb, ERR_INVALID, "address '%s': %s", host, gai_strerror(gai));
    memcpy(ret, res->ai_addr, MIN((size_t)res->ai_addrlen, sizeof(*ret)));
    freeaddrinfo(res);
    return 0;
}

static int bind_tcp(struct http_server *s, struct errbuf *eb) {
    struct sockaddr_storage sa;
    int rv = resolve(s, &sa, eb);
    if (rv < 0)
        return rv;
    rv = uv_tcp_init(s->loop, &s->listener.tcp);
    s->listener_open = rv == 0;
    s->check_host = !s->cfg.any_host && is_loopback(&sa);
    if (rv == 0)
        rv = uv_tcp_bind(&s->listener.tcp, (const struct sockaddr *)&sa, 0);
    if (rv == 0) /* here, since an address in use is told by listen */
        rv = uv_listen(&s->listener.stream, BACKLOG, on_connection);
    return rv < 0 ? err_set(eb, rv, "%s port %u: %s", s->cfg.host, s->cfg.port, err_text(rv)) : 0;
}

static int bind_unix(struct http_server *s, struct errbuf *eb) {
    struct stat st;
    int rv = uv_pipe_init(s->loop, &s->listener.pipe, 0);
    s->listener_open = rv == 0;
    if (lstat(s->unix_path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(s->unix_path); /* left by a process that was killed */
    if (rv == 0)
        rv = uv_pipe_bind(&s->listener.pipe, s->unix_path);
    if (rv == 0)
        rv = uv_listen(&s->listener.stream, BACKLOG, on_connection);
    return rv < 0 ? sock_path_error(eb, rv, s->unix_path) : 0;
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

static int server_new(struct http_server **ret, uv_loop_t *loop,
                      const struct http_server_cfg *cfg) {
    struct http_server *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->spare = calloc(1, sizeof(*s->spare));
    if (!s->spare) {
        free(s);
        return ERR_NOMEM;
    }
    s->loop = loop;
    s->cfg = *cfg;
    set_defaults(&s->cfg);
    if (getrandom(&s->id_seed, sizeof(s->id_seed), 0) < 0)
        s->id_seed = uv_hrtime();
    s->on_head = admit;
    s->on_freed = server_release;
    share_init(&s->bodies, SHARE_RUNNING, s->cfg.max_bodies_bytes, HTTP_READ_BYTES);
    share_tenant_init(&s->bodies_tenant, &s->bodies);
    http_parse_settings(&s->settings);
    list_init(&s->conns);
    list_init(&s->peers);
    *ret = s;
    return 0;
}

int http_server_open(struct http_server **ret, uv_loop_t *loop, const struct http_server_cfg *cfg,
                     struct errbuf *eb) {
    struct http_server *s;
    if (server_new(&s, loop, cfg) < 0)
        return err_set(eb, ERR_NOMEM, "out of memory");
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
    int rv = s->is_unix ? bind_unix(s, eb) : bind_tcp(s, eb);
    s->listener.stream.data = s;
    if (rv < 0) {
        (void)err_wrap(eb, rv, "HTTP listen");
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
        struct http_link *c = LIST_ENTRY(it, struct http_link, link);
        if (sm_at(&c->conn.sm) == CONN_IDLE)
            http_conn_drop(&c->conn);
    }
}

static void drop_all(struct http_server *s, bool answered_too) {
    LIST_FOREACH_SAFE(&s->conns, it, next) {
        struct http_link *c = LIST_ENTRY(it, struct http_link, link);
        uint32_t state = sm_at(&c->conn.sm);
        if (answered_too || (state != CONN_FLUSH && state != CONN_LINGER))
            http_conn_drop(&c->conn);
    }
}

static void on_flush_over(uv_timer_t *t) {
    drop_all(t->data, true);
}

void http_server_close(struct http_server *s, void (*cb)(void *arg), void *arg) {
    CHECK(!s->closing);
    s->closing = s->draining = true;
    s->close_cb = cb;
    s->close_arg = arg;
    drop_all(s, false);
    if (n_live(s)) { /* answers on their way */
        uv_timer_init(s->loop, &s->flush);
        s->flush.data = s;
        s->flush_open = true;
        uv_timer_start(&s->flush, on_flush_over, CLOSE_FLUSH_MS, 0);
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
