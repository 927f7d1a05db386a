#include "common/http_conn.h"

#include "common/check.h"

#define LINGER_MS 1000u
#define LINGER_MAX_BYTES                                                                           \
    (64u << 20) /* of what a refused client is still sending: dropped as it comes */

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

/* --- closing --- */

static void on_closed(uv_handle_t *h) {
    struct http_conn *c = h->data;
    if (--c->live == 0)
        c->ops->closed(c);
}

void http_conn_drop(struct http_conn *c) {
    if (http_conn_is_gone(c))
        return;
    sm_move(&c->sm, CONN_DROPPED);
    uv_close((uv_handle_t *)&c->h.stream, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
}

/* --- deadlines --- */

static void on_timer(uv_timer_t *t);

void http_conn_arm(struct http_conn *c, uint32_t ms) {
    uv_timer_start(&c->timer, on_timer, ms, 0);
}

static uint64_t taken(const struct http_conn *c) {
    return c->handed - uv_stream_get_write_queue_size(&c->h.stream);
}

/* Set when something begins to wait and from then on by the timer alone: were it set again by each
 * write that ends, a peer that takes a byte now and then would never be late. */
static void arm_stall(struct http_conn *c) {
    c->taken_was = taken(c);
    c->unsent_was = c->unsent;
    http_conn_arm(c, c->cfg->stall_timeout_ms);
}

void http_conn_disarm(struct http_conn *c) {
    uv_timer_stop(&c->timer);
    if (c->unsent)
        arm_stall(c);
}

static void on_timer(uv_timer_t *t) {
    struct http_conn *c = t->data;
    switch (sm_at(&c->sm)) {
    case CONN_HEAD:
    case CONN_BODY:
        c->ops->late(c);
        break;
    case CONN_HANDLE:
    case CONN_FLUSH:
        if (!c->unsent)
            c->ops->late(c);
        else if (taken(c) - c->taken_was >= MIN(c->unsent_was, (size_t)HTTP_STALL_MIN_BYTES))
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
        http_conn_arm(c, c->cfg->idle_timeout_ms);
        c->ops->next(c);
        return;
    }
    /* Close in two steps: unread bytes at close() would make the kernel send RST, which can destroy
     * the answer on its way (RFC 9112 §9.6). */
    if (c->peer_done || uv_shutdown(&c->shutdown, &c->h.stream, on_shutdown) < 0) {
        http_conn_drop(c);
        return;
    }
    sm_move(&c->sm, CONN_LINGER);
    http_conn_arm(c, LINGER_MS);
}

static void on_written(uv_write_t *req, int status) {
    struct write_req *w = CONTAINER_OF(req, struct write_req, req);
    struct http_conn *c = w->c;
    c->unsent -= w->n;
    free(w);
    if (http_conn_is_gone(c))
        return;
    if (status < 0) {
        http_conn_drop(c);
        return;
    }
    uint32_t state = sm_at(&c->sm);
    if (c->unsent || (state != CONN_HANDLE && state != CONN_FLUSH))
        return; /* elsewhere the timer is the deadline of what is read */
    uv_timer_stop(&c->timer);
    if (state == CONN_FLUSH)
        flushed(c);
    else
        c->ops->drained(c);
}

void http_conn_write(struct http_conn *c, struct str a, struct str b, struct str z) {
    size_t n = a.n + b.n + z.n;
    if (http_conn_is_gone(c))
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
    bool was_idle = !c->unsent;
    c->unsent += n;
    c->handed += n;
    bool owns_timer = sm_at(&c->sm) == CONN_HANDLE || sm_at(&c->sm) == CONN_FLUSH;
    if (was_idle && owns_timer)
        arm_stall(c);
}

void http_conn_answered(struct http_conn *c, bool close_after) {
    c->close_after = close_after;
    sm_move(&c->sm, CONN_FLUSH);
    if (!c->unsent) /* all of a stream was sent: go on from the loop, not from inside the caller */
        http_conn_write(c, STR(""), STR(""), STR(""));
    else
        arm_stall(c); /* an error answer was written in HEAD or BODY, under their deadline */
}

/* --- reading --- */

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *buf) {
    struct http_conn *c = h->data;
    (void)want;
    *buf = uv_buf_init(c->read_buf, HTTP_READ_BYTES);
}

static void on_read(uv_stream_t *st, ssize_t n, const uv_buf_t *buf) {
    struct http_conn *c = st->data;
    uint32_t state = sm_at(&c->sm);
    if (n > 0 && state == CONN_LINGER) {
        c->linger_bytes += (size_t)n;
        if (c->linger_bytes > LINGER_MAX_BYTES)
            http_conn_drop(c);
    } else if (n > 0) {
        c->ops->data(c, buf->base, (size_t)n);
    } else if (n == UV_EOF && (state == CONN_HANDLE || state == CONN_FLUSH)) {
        c->peer_done = true; /* it has said all, and may still wait for its answer */
        (void)http_conn_read(c, false);
        c->ops->half_closed(c);
    } else if (n < 0) {
        http_conn_drop(c);
    }
}

int http_conn_read(struct http_conn *c, bool on) {
    if (on == c->reading || (on && c->peer_done))
        return 0;
    c->reading = on;
    return on ? uv_read_start(&c->h.stream, on_alloc, on_read) : uv_read_stop(&c->h.stream);
}

int http_conn_init(struct http_conn *c, uv_loop_t *loop, bool is_pipe,
                   const struct http_conn_ops *ops, const struct http_server_cfg *cfg,
                   char *read_buf) {
    c->ops = ops;
    c->cfg = cfg;
    c->read_buf = read_buf;
    sm_init(&c->sm, conn_states, CONN_STATE_NR, CONN_IDLE);
    int rv = is_pipe ? uv_pipe_init(loop, &c->h.pipe, 0) : uv_tcp_init(loop, &c->h.tcp);
    if (rv < 0)
        return rv;
    CHECK(uv_timer_init(loop, &c->timer) == 0); /* cannot fail */
    c->h.stream.data = c->timer.data = c;
    c->live = 2;
    return 0;
}
