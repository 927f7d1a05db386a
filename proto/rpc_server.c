#include "proto/rpc_server.h"

#include <errno.h>
#include <unistd.h>
#include <uv.h>

#include "common/check.h"
#include "common/list.h"

#define ACCEPTS_PER_TURN 16
#define BACKLOG 512
#define LINGER_MS 500
#define MAX_LISTENERS 8
#define VERSION_TEXT "frame version 2 is spoken here"
_Static_assert(WIRE_VERSION == 2, "VERSION_TEXT names it");

struct listener {
    struct rpc_server *s;
    int fd; /* -1: free */
    bool is_closing;
    uv_poll_t poll;
    char unix_path[256]; /* removed when it closes; "": TCP */
};

/* What the server keeps for a connection. */
struct srv_conn {
    struct list link;
    struct rpc_server *s;
    struct rpc_conn *conn;
    bool is_closing, is_granted;
    uint64_t opened_ns;
    /* the frame under way */
    const struct rpc_method *row;
    bool has_sink; /* row->sink was called and succeeded */
    int err;       /* why it will be refused */
    struct errbuf eb;
};

struct rpc_server {
    struct rpc_server_cfg cfg;
    uv_loop_t *loop;
    struct listener listeners[MAX_LISTENERS];
    uv_timer_t sweep;
    struct list conns;
    struct rpc_server_stats stats;
    struct bump scratch;
    struct buf *out;
    struct rpc_in_pool in_pool;
    int live; /* uv handles and connections */
    bool is_closing;
    void (*close_cb)(void *arg);
    void *close_arg;
};

/* One less that may call back. At zero, and only while closing, the server is gone; the owner's
 * callback is the last thing, since it may free what we were configured with. */
static void server_release(struct rpc_server *s) {
    if (--s->live > 0 || !s->is_closing)
        return;
    void (*cb)(void *) = s->close_cb;
    void *arg = s->close_arg;
    bump_fini(&s->scratch);
    buf_unref(s->out);
    free(s);
    if (cb)
        cb(arg);
}

/* ---- one connection ---- */

/* The descriptor is closed: the owner forgets the connection. Before that it may hold
 * references. */
static void on_conn_closed(struct rpc_conn *c, void *arg) {
    struct srv_conn *sc = arg;
    struct rpc_server *s = sc->s;
    list_remove(&sc->link);
    s->stats.conns--;
    if (s->cfg.on_gone)
        s->cfg.on_gone(s->cfg.arg, c);
    free(sc);
    server_release(s);
}

/* Ends a connection without ceremony. Idempotent, since a handler, the sweep and a break may all
 * want it. */
static void drop(struct srv_conn *sc) {
    if (sc->is_closing)
        return;
    sc->is_closing = true;
    rpc_conn_close(sc->conn, on_conn_closed);
}

/* Scratch and encode buffer are the server's and reset for each call: a handler that answers later
 * must keep copies. */
static struct rpc_call make_call(struct srv_conn *sc, const struct wire_hdr *h,
                                 const uint8_t *msg) {
    struct rpc_server *s = sc->s;
    bump_reset(&s->scratch);
    s->out->len = 0;
    return (struct rpc_call){.server = s,
                             .conn = sc->conn,
                             .hdr = *h,
                             .msg = msg,
                             .scratch = &s->scratch,
                             .out = s->out,
                             .recv_ns = rpc_conn_frame_begin_ns(sc->conn)};
}

static const struct rpc_method *find_method(const struct rpc_server *s, uint16_t method) {
    for (size_t i = 0; i < s->cfg.n_methods; i++)
        if (s->cfg.methods[i].method == method)
            return &s->cfg.methods[i];
    return NULL;
}

/* May this request go to its handler? 0, or the error to answer. */
static int admit(struct srv_conn *sc, const struct wire_hdr *h) {
    sc->row = find_method(sc->s, h->method);
    if (!sc->row)
        return err_set(&sc->eb, ERR_UNIMPLEMENTED, "%s (%u) is not implemented",
                       wire_method_name(h->method), (unsigned)h->method);
    if (sc->row->need & ~rpc_conn_grants(sc->conn))
        return err_set(&sc->eb, ERR_DENIED, "%s is not allowed on this connection",
                       wire_method_name(h->method));
    if (h->payload_len && !sc->row->sink)
        return err_set(&sc->eb, ERR_INVALID, "%s takes no payload", wire_method_name(h->method));
    return 0;
}

/* Before the payload is read: is the request allowed, and where do its bytes go? A refused one is
 * not cut off: its payload is read and dropped, so that the error answer finds the connection in
 * step. */
static int on_head(struct rpc_conn *c, void *arg, const struct wire_hdr *h, const uint8_t *msg,
                   struct rpc_sink *ret_sink) {
    struct srv_conn *sc = arg;
    (void)c;
    sc->has_sink = false;
    sc->eb.text[0] = '\0';
    if (h->flags & (WIRE_F_RESPONSE | WIRE_F_ERROR))
        return ERR_PROTO; /* a server asks nothing, so nobody may answer it */
    sc->err = admit(sc, h);
    if (sc->err < 0 || h->payload_len == 0)
        return 0;
    struct rpc_call call = make_call(sc, h, msg);
    sc->err = sc->row->sink(sc->s->cfg.arg, &call, ret_sink, &sc->eb);
    sc->has_sink = sc->err == 0;
    if (sc->err < 0)
        *ret_sink = (struct rpc_sink){0};
    return 0;
}

/* The request is whole: to its handler, or back with the error that on_head found. A connection
 * whose answers pile up is not read from until they have gone. */
static void on_frame(struct rpc_conn *c, void *arg, const struct wire_hdr *h, const uint8_t *msg,
                     struct rpc_sink *sink) {
    struct srv_conn *sc = arg;
    struct rpc_server *s = sc->s;
    int rv = sc->err;
    s->stats.requests++;
    if (rv == 0) {
        struct rpc_call call = make_call(sc, h, msg);
        uint64_t deadline_ns = rpc_call_deadline_ns(&call);
        if (deadline_ns && clock_mono_ns(s->cfg.clk) > deadline_ns && !sc->has_sink)
            rv = err_set(&sc->eb, ERR_TIMEOUT, "%s: its time was over before it was read",
                         wire_method_name(h->method));
        call.sink = sc->has_sink ? sink : NULL;
        if (rv == 0)
            rv = sc->row->handle(s->cfg.arg, &call, &sc->eb);
    }
    const char *text = rv < 0 && !sc->eb.text[0] ? err_text(rv) : sc->eb.text;
    if (s->cfg.on_request)
        s->cfg.on_request(s->cfg.arg, c, h, rv, text);
    if (rv < 0) {
        s->stats.errors++;
        if (!(h->flags & WIRE_F_ONEWAY))
            rv = rpc_conn_reply_error(c, h, rv, text);
        /* A full queue although we stop reading when it is nearly full: the peer takes nothing. */
        if (rv == ERR_BUSY && !(h->flags & WIRE_F_ONEWAY))
            drop(sc);
    }
    if (!sc->is_granted && rpc_conn_grants(c)) {
        sc->is_granted = true;
        rpc_conn_set_limits(c, &s->cfg.conn.limits);
    }
    if (!sc->is_closing && rpc_conn_crowded(c))
        rpc_conn_pause(c, true);
}

/* Only a sink that its row has accepted is taken back. */
static void on_abort(struct rpc_conn *c, void *arg, struct rpc_sink *sink) {
    struct srv_conn *sc = arg;
    if (sc->has_sink && sc->row->sink_abort)
        sc->row->sink_abort(sc->s->cfg.arg, c, sink);
    sc->has_sink = false;
}

static void on_drain(struct rpc_conn *c, void *arg) {
    struct srv_conn *sc = arg;
    rpc_conn_pause(c, false);
    if (sc->s->cfg.on_drain)
        sc->s->cfg.on_drain(sc->s->cfg.arg, c);
}

/* Broken framing gets one last answer when its header could be read, so that a client of another
 * version learns why; then, or at once, the connection ends. */
static void on_broken(struct rpc_conn *c, void *arg, int err, const struct wire_hdr *h) {
    struct srv_conn *sc = arg;
    bool is_protocol =
        err == ERR_PROTO || err == ERR_UNSUPPORTED || err == ERR_TOOBIG || err == ERR_CORRUPT;
    sc->s->stats.protocol_errors += is_protocol;
    const char *text = err == ERR_UNSUPPORTED ? VERSION_TEXT : err_text(err);
    if (is_protocol && h && rpc_conn_reply_error(c, h, err, text) == 0) {
        sc->is_closing = true;
        rpc_conn_close_after_flush(c, LINGER_MS, on_conn_closed);
        return;
    }
    drop(sc);
}

static const struct rpc_conn_ops srv_conn_ops = {on_head, on_frame, on_abort, on_drain, on_broken};

int rpc_server_adopt(struct rpc_server *s, int take_fd) {
    struct srv_conn *sc = NULL;
    bool is_tcp = false;
    int rv = s->is_closing ? ERR_CLOSED : rpc_sock_tune(take_fd, &s->cfg.sock, &is_tcp);
    if (rv < 0)
        goto err_after_fd;
    rv = ERR_NOMEM;
    sc = calloc(1, sizeof(*sc));
    if (!sc)
        goto err_after_fd;
    sc->s = s;
    sc->opened_ns = clock_mono_ns(s->cfg.clk);
    struct rpc_conn_cfg cc = s->cfg.conn;
    cc.connecting = false;
    cc.clk = s->cfg.clk;
    cc.in_pool = &s->in_pool;
    cc.limits = (struct wire_limits){.max_msg_bytes = WIRE_MAX_HELLO_BYTES};
    rv = rpc_conn_open(&sc->conn, s->loop, take_fd, is_tcp, &cc, &srv_conn_ops, sc);
    if (rv < 0)
        goto err_after_fd;
    list_push_back(&s->conns, &sc->link);
    s->live++;
    s->stats.conns++;
    s->stats.accepted++;
    if (s->cfg.on_accept)
        s->cfg.on_accept(s->cfg.arg, sc->conn);
    return 0;
err_after_fd:
    free(sc);
    close(take_fd);
    s->stats.refused++;
    return rv;
}

/* ---- listening ---- */

/* Whoever has not said Hello holds its place only until somebody else wants it, the oldest first: an
 * honest client says it with its first bytes. The place is free when the descriptor is closed, a turn
 * later; until then one more than the limit is there. */
static bool make_way(struct rpc_server *s) {
    LIST_FOREACH(&s->conns, it) {
        struct srv_conn *sc = LIST_ENTRY(it, struct srv_conn, link);
        if (sc->is_granted || sc->is_closing)
            continue;
        s->stats.gave_way++;
        drop(sc);
        return true;
    }
    return false;
}

/* A bounded number of accepts a turn, so that a storm of connections does not starve the living
 * ones. */
static void on_listen_poll(uv_poll_t *h, int status, int events) {
    struct listener *l = h->data;
    struct rpc_server *s = l->s;
    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            /* Out of descriptors: the pending connection would wake us for ever. Sweep starts
             * again. */
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                uv_poll_stop(&l->poll);
            return;
        }
        if (s->stats.conns >= s->cfg.max_conns && !make_way(s)) {
            close(fd);
            s->stats.refused++;
            continue;
        }
        (void)rpc_server_adopt(s, fd); /* counted as refused */
    }
}

int rpc_server_listen(struct rpc_server *s, const struct rpc_addr *a, uint16_t *ret_port,
                      struct errbuf *eb) {
    struct listener *l = NULL;
    for (int i = 0; i < MAX_LISTENERS && !l; i++)
        l = s->listeners[i].fd < 0 && !s->listeners[i].is_closing ? &s->listeners[i] : NULL;
    if (!l)
        return err_set(eb, ERR_TOOBIG, "more than %d listening addresses", MAX_LISTENERS);
    int fd = rpc_sock_listen(a, BACKLOG, ret_port, eb);
    if (fd < 0)
        return fd;
    int rv = uv_poll_init(s->loop, &l->poll, fd);
    if (rv < 0) {
        close(fd);
        return err_set(eb, rv, "poll: %s", err_text(rv));
    }
    l->s = s;
    l->fd = fd;
    l->poll.data = l;
    snprintf(l->unix_path, sizeof(l->unix_path), "%s", a->is_unix ? a->host : "");
    s->live++;
    uv_poll_start(&l->poll, UV_READABLE, on_listen_poll);
    return 0;
}

static void on_listener_closed(uv_handle_t *h) {
    struct listener *l = h->data;
    close(l->fd);
    l->fd = -1;
    l->is_closing = false;
    server_release(l->s);
}

void rpc_server_stop_listening(struct rpc_server *s) {
    for (int i = 0; i < MAX_LISTENERS; i++) {
        struct listener *l = &s->listeners[i];
        if (l->fd < 0 || l->is_closing)
            continue;
        l->is_closing = true;
        if (l->unix_path[0])
            (void)unlink(l->unix_path);
        uv_close((uv_handle_t *)&l->poll, on_listener_closed);
    }
}

/* ---- the whole ---- */

/* Something that should have come by now. */
static bool is_late(const struct rpc_server *s, const struct srv_conn *sc, uint64_t now) {
    bool is_silent = !sc->is_granted && now - sc->opened_ns > s->cfg.grants_timeout_ms * NS_PER_MS;
    return is_silent || rpc_conn_frame_ns(sc->conn) > s->cfg.frame_timeout_ms * NS_PER_MS;
}

/* What no event tells: peers that never said Hello, frames that never end, peers that take nothing,
 * listening that stopped for want of descriptors. */
static void on_sweep(uv_timer_t *t) {
    struct rpc_server *s = t->data;
    uint64_t now = clock_mono_ns(s->cfg.clk);
    LIST_FOREACH_SAFE(&s->conns, it, tmp) {
        struct srv_conn *sc = LIST_ENTRY(it, struct srv_conn, link);
        if (sc->is_closing)
            continue;
        bool late = is_late(s, sc, now);
        s->stats.late += late;
        if (late || rpc_conn_stalled_ns(sc->conn) > s->cfg.stall_timeout_ms * NS_PER_MS)
            drop(sc);
    }
    for (int i = 0; i < MAX_LISTENERS; i++) {
        struct listener *l = &s->listeners[i];
        if (l->fd >= 0 && !l->is_closing)
            uv_poll_start(&l->poll, UV_READABLE, on_listen_poll);
    }
}

static void server_defaults(struct rpc_server_cfg *cfg) {
    if (!cfg->max_conns)
        cfg->max_conns = 1024;
    if (!cfg->grants_timeout_ms)
        cfg->grants_timeout_ms = 5000;
    if (!cfg->stall_timeout_ms)
        cfg->stall_timeout_ms = 30000;
    if (!cfg->frame_timeout_ms)
        cfg->frame_timeout_ms = 60000;
    if (!cfg->max_received_bytes)
        cfg->max_received_bytes = 64u << 20;
    if (!cfg->conn.limits.max_msg_bytes)
        cfg->conn.limits.max_msg_bytes = WIRE_MAX_MSG_BYTES;
    if (!cfg->conn.limits.max_payload_bytes)
        cfg->conn.limits.max_payload_bytes = WIRE_MAX_PAYLOAD_BYTES;
    if (!cfg->scratch_bytes)
        cfg->scratch_bytes = 4u << 20;
    if (!cfg->clk)
        cfg->clk = clock_real();
}

int rpc_server_open(struct rpc_server **ret, uv_loop_t *loop, const struct rpc_server_cfg *cfg,
                    struct errbuf *eb) {
    struct rpc_server *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(eb, ERR_NOMEM, "rpc server");
    s->cfg = *cfg;
    s->loop = loop;
    server_defaults(&s->cfg);
    list_init(&s->conns);
    rpc_in_pool_init(&s->in_pool, s->cfg.max_received_bytes);
    for (int i = 0; i < MAX_LISTENERS; i++)
        s->listeners[i].fd = -1;
    s->out = buf_new(WIRE_MAX_MSG_BYTES);
    if (!s->out || bump_init(&s->scratch, s->cfg.scratch_bytes) < 0) {
        buf_unref(s->out);
        free(s);
        return err_set(eb, ERR_NOMEM, "rpc server: scratch of %u bytes", cfg->scratch_bytes);
    }
    uv_timer_init(loop, &s->sweep);
    s->sweep.data = s;
    s->live = 1;
    uint64_t shortest =
        MIN(MIN(s->cfg.grants_timeout_ms, s->cfg.stall_timeout_ms), s->cfg.frame_timeout_ms);
    uint64_t period = MIN(shortest / 4 + 1, (uint64_t)1000);
    uv_timer_start(&s->sweep, on_sweep, period, period);
    *ret = s;
    return 0;
}

static void on_sweep_closed(uv_handle_t *h) {
    server_release(h->data);
}

void rpc_server_close(struct rpc_server *s, void (*cb)(void *arg), void *cb_arg) {
    CHECK(!s->is_closing);
    s->is_closing = true;
    s->close_cb = cb;
    s->close_arg = cb_arg;
    rpc_server_stop_listening(s);
    LIST_FOREACH_SAFE(&s->conns, it, tmp) {
        struct srv_conn *sc = LIST_ENTRY(it, struct srv_conn, link);
        rpc_conn_cut(sc->conn);
        drop(sc);
    }
    uv_close((uv_handle_t *)&s->sweep, on_sweep_closed);
}

int rpc_call_reply(struct rpc_call *call) {
    if (call->hdr.flags & WIRE_F_ONEWAY)
        return 0;
    return rpc_conn_reply(call->conn, &call->hdr, true, call->out->data, call->out->len, NULL);
}

void rpc_server_scratch(struct rpc_server *s, struct bump **ret_scratch, struct buf **ret_out) {
    bump_reset(&s->scratch);
    s->out->len = 0;
    *ret_scratch = &s->scratch;
    *ret_out = s->out;
}

static struct srv_conn *find_conn(struct rpc_server *s, const struct rpc_conn *c) {
    LIST_FOREACH(&s->conns, it) {
        struct srv_conn *sc = LIST_ENTRY(it, struct srv_conn, link);
        if (sc->conn == c)
            return sc;
    }
    return NULL;
}

void rpc_server_drop_conn(struct rpc_server *s, struct rpc_conn *c) {
    struct srv_conn *sc = find_conn(s, c);
    if (sc)
        drop(sc);
}

void rpc_server_end_conn(struct rpc_server *s, struct rpc_conn *c) {
    struct srv_conn *sc = find_conn(s, c);
    if (!sc || sc->is_closing)
        return;
    sc->is_closing = true;
    rpc_conn_close_after_flush(c, LINGER_MS, on_conn_closed);
}

void rpc_server_stats(const struct rpc_server *s, struct rpc_server_stats *ret) {
    *ret = s->stats;
    ret->bytes_received = s->in_pool.share.used;
    ret->bytes_queued = 0;
    LIST_FOREACH(&s->conns, it)
    ret->bytes_queued += rpc_conn_queued_bytes(LIST_ENTRY(it, struct srv_conn, link)->conn);
}
