#include "proto/rpc_conn_impl.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "proto/rpc_sock.h"

#define INBUF_BYTES (16u << 10)
#define READ_AHEAD_BYTES (8u << 10) /* for pipelined small frames; of a payload it is copied */
#define TRASH_BYTES (64u << 10)
#define READ_BUDGET_BYTES (4u << 20) /* in one turn, so that one peer does not hold the loop */

/* ---- life ---- */

static void conn_defaults(struct rpc_conn_cfg *cfg) {
    if (!cfg->limits.max_msg_bytes)
        cfg->limits.max_msg_bytes = WIRE_MAX_MSG_BYTES;
    if (!cfg->limits.max_payload_bytes)
        cfg->limits.max_payload_bytes = WIRE_MAX_PAYLOAD_BYTES;
    if (!cfg->max_out_frames)
        cfg->max_out_frames = 128;
    if (!cfg->max_out_bytes)
        cfg->max_out_bytes = 64u << 20;
    if (!cfg->writable_bytes)
        cfg->writable_bytes = 4u << 20;
    if (!cfg->read_cap_bytes)
        cfg->read_cap_bytes = 256u << 10;
    if (!cfg->clk)
        cfg->clk = clock_real();
}

static void conn_free(struct rpc_conn *c) {
    c->magic = 0;
    free(c->in);
    free(c->out_pool);
    free(c);
}

struct rpc_conn *rpc_conn_ref(struct rpc_conn *c) {
    CHECK(c->magic == RPC_CONN_MAGIC);
    c->refs++;
    return c;
}

void rpc_conn_unref(struct rpc_conn *c) {
    if (!c)
        return;
    CHECK(c->magic == RPC_CONN_MAGIC && c->refs > 0);
    if (--c->refs == 0)
        conn_free(c);
}

/* A payload that will not be whole: its owner takes the destination back. Nothing when none is
 * under way. */
static void abort_payload(struct rpc_conn *c) {
    if (!c->is_in_payload)
        return;
    c->is_in_payload = false;
    if (c->ops->on_abort)
        c->ops->on_abort(c, c->arg, &c->sink);
}

/* The last handle is closed: nothing can call back any more, so the descriptor may be given to
 * somebody else and the owner's reference ends. */
static void on_handle_closed(uv_handle_t *h) {
    struct rpc_conn *c = h->data;
    if (--c->live > 0)
        return;
    close(c->fd);
    if (c->close_cb)
        c->close_cb(c, c->arg);
    rpc_conn_unref(c);
}

static void conn_close_handles(struct rpc_conn *c) {
    c->state = CONN_CLOSED;
    rpc_conn_drop_queue(c);
    uv_close((uv_handle_t *)&c->poll, on_handle_closed);
    uv_close((uv_handle_t *)&c->linger, on_handle_closed);
}

void rpc_conn_close(struct rpc_conn *c, rpc_conn_close_cb cb) {
    CHECK(c->magic == RPC_CONN_MAGIC && c->state != CONN_CLOSED && c->state != CONN_LINGER);
    c->close_cb = cb;
    c->state = CONN_CLOSED;
    abort_payload(c);
    conn_close_handles(c);
}

/* ---- poll ---- */

/* The one place that callbacks come from. Order: read, then write what the callbacks queued in one
 * go, then tell errors, then say that there is room; each step may end the connection, so each
 * asks the state. */
static void on_poll(uv_poll_t *h, int status, int events);

void rpc_conn_update_poll(struct rpc_conn *c) {
    if (c->state == CONN_CLOSED)
        return;
    int events = 0;
    if (c->state == CONN_LINGER || (c->state == CONN_OPEN && !c->is_paused))
        events |= UV_READABLE;
    if (c->is_kicked || c->state == CONN_CONNECTING || !list_empty(&c->out))
        events |= UV_WRITABLE;
    if (c->state == CONN_BROKEN)
        events = 0;
    /* Corked frames are flushed before the turn ends: the common case arms no writability. */
    /* Only on a change: each start makes libuv take the descriptor out of epoll and put it in again. */
    if (events == c->poll_events)
        return;
    c->poll_events = events;
    int rv = events ? uv_poll_start(&c->poll, events, on_poll) : uv_poll_stop(&c->poll);
    CHECK(rv == 0);
}

/* Something is to be done from the loop: an error to tell, buffered frames to read, on_drain. A
 * stream socket that is not writable has on_poll armed already or is broken, which epoll reports
 * as well. */
void rpc_conn_kick(struct rpc_conn *c) {
    if (c->is_kicked || c->state == CONN_CLOSED || c->state == CONN_BROKEN)
        return;
    c->is_kicked = true;
    rpc_conn_update_poll(c);
}

/* Tells the owner once that the connection is of no use. Called from the loop only, never from
 * inside a call of the owner's. In LINGER there is nobody left to tell. */
static void conn_fail(struct rpc_conn *c, int err, const struct wire_hdr *h) {
    if (c->state == CONN_CLOSED || c->state == CONN_BROKEN)
        return;
    if (c->state == CONN_LINGER) {
        conn_close_handles(c);
        return;
    }
    c->state = CONN_BROKEN;
    rpc_conn_update_poll(c);
    abort_payload(c);
    if (c->state == CONN_BROKEN) /* on_abort may have closed it */
        c->ops->on_close(c, c->arg, err, h);
}

int rpc_conn_open(struct rpc_conn **ret, uv_loop_t *loop, int fd, bool is_tcp,
                  const struct rpc_conn_cfg *cfg, const struct rpc_conn_ops *ops, void *arg) {
    struct rpc_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return ERR_NOMEM;
    *c = (struct rpc_conn){.magic = RPC_CONN_MAGIC, .refs = 1, .fd = fd, .is_tcp = is_tcp,
                           .cfg = *cfg, .ops = ops, .arg = arg, .in_cap = INBUF_BYTES};
    conn_defaults(&c->cfg);
    c->state = cfg->connecting ? CONN_CONNECTING : CONN_OPEN;
    list_init(&c->out);
    list_init(&c->out_free);
    c->last_read_ns = c->last_write_ns = clock_mono_ns(c->cfg.clk);
    c->in = malloc(c->in_cap);
    c->out_pool = calloc(c->cfg.max_out_frames, sizeof(*c->out_pool));
    int rv = c->in && c->out_pool ? uv_poll_init(loop, &c->poll, fd) : ERR_NOMEM;
    if (rv < 0) {
        conn_free(c);
        return rv;
    }
    uv_timer_init(loop, &c->linger);
    c->poll.data = c->linger.data = c;
    c->live = 2;
    rpc_sock_peer_name(fd, c->peer, sizeof(c->peer));
    rpc_conn_update_poll(c);
    *ret = c;
    return 0;
}

/* ---- receiving ---- */

/* Room for `more` bytes behind in_len, keeping the frame that begins at in_off. */
static int reserve_in(struct rpc_conn *c, size_t more) {
    if (c->in_cap - c->in_len >= more)
        return 0;
    if (c->in_off > 0) {
        memmove(c->in, c->in + c->in_off, c->in_len - c->in_off);
        c->in_len -= c->in_off;
        c->in_off = 0;
    }
    if (c->in_cap - c->in_len >= more)
        return 0;
    size_t cap = c->in_len + more + READ_AHEAD_BYTES;
    uint8_t *in = realloc(c->in, cap);
    if (!in)
        return ERR_NOMEM;
    c->in = in;
    c->in_cap = cap;
    return 0;
}

/* n more bytes of the payload are at the destination: its owner may check them while they are
 * warm. */
static void note_payload(struct rpc_conn *c, size_t n) {
    c->pay_left -= n;
    if (c->sink.dst && c->sink.part && n)
        c->sink.part(&c->sink, c->hdr.payload_len - c->pay_left);
}

/* The payload is whole. */
static void finish_frame(struct rpc_conn *c) {
    struct rpc_sink sink = c->sink;
    c->is_in_payload = false;
    if (c->in_off == c->in_len) /* start over at the front; the message stays where it is */
        c->in_off = c->in_len = 0;
    c->ops->on_frame(c, c->arg, &c->hdr, c->in + c->frame_off + WIRE_HDR_BYTES, &sink);
}

/* Header and message at in_off are whole: ask where the payload goes, take what is there of it. */
static int begin_frame(struct rpc_conn *c) {
    c->frame_off = c->in_off;
    c->in_off += WIRE_HDR_BYTES + (size_t)c->hdr.msg_len;
    c->sink = (struct rpc_sink){0};
    const uint8_t *msg = c->in + c->frame_off + WIRE_HDR_BYTES;
    int rv = c->ops->on_head(c, c->arg, &c->hdr, msg, &c->sink);
    if (rv < 0)
        return rv;
    c->is_in_payload = true;
    if (c->state != CONN_OPEN) { /* closed by the callback */
        c->is_in_payload = false;
        if (c->ops->on_abort)
            c->ops->on_abort(c, c->arg, &c->sink);
        return 0;
    }
    c->pay_left = c->hdr.payload_len;
    size_t n = MIN(c->pay_left, c->in_len - c->in_off);
    if (n && c->sink.dst)
        memcpy(c->sink.dst, c->in + c->in_off, n);
    c->in_off += n;
    note_payload(c, n);
    return 0;
}

/* Consumes what is buffered, frame by frame. */
static void process_in(struct rpc_conn *c) {
    while (c->state == CONN_OPEN && !c->is_paused) {
        if (c->is_in_payload) {
            if (c->pay_left > 0)
                return;
            finish_frame(c);
            continue;
        }
        int64_t r = wire_frame_read(&c->cfg.limits, c->in + c->in_off, c->in_len - c->in_off,
                                    &c->hdr);
        bool has_hdr = c->in_len - c->in_off >= WIRE_HDR_BYTES;
        if (r == 0)
            r = begin_frame(c);
        else if (r > 0) {
            c->in_need = (size_t)r;
            return;
        }
        if (r < 0) {
            struct wire_hdr h = c->hdr;
            conn_fail(c, (int)r, has_hdr && r != ERR_PROTO ? &h : NULL);
            return;
        }
    }
}

/* One recvmsg: into the payload's destination, with the room behind the message as second piece,
 * so that the next header comes with the same call; or into the read buffer. Returns bytes, 0 at
 * EOF, < 0. */
static ssize_t read_some(struct rpc_conn *c, size_t *ret_asked) {
    uint8_t trash[TRASH_BYTES];
    struct iovec iov[2];
    struct msghdr mh = {.msg_iov = iov, .msg_iovlen = 1};
    size_t pay = 0;
    if (c->is_in_payload && c->pay_left > 0) {
        size_t cap = c->is_tcp ? c->cfg.read_cap_bytes : c->pay_left;
        pay = MIN(c->pay_left, c->sink.dst ? cap : MIN(cap, TRASH_BYTES));
        uint8_t *at = c->sink.dst ? c->sink.dst + (c->hdr.payload_len - c->pay_left) : trash;
        iov[0] = (struct iovec){at, pay};
        if (pay == c->pay_left && c->in_cap > c->in_len) {
            iov[1] = (struct iovec){c->in + c->in_len,
                                    MIN(c->in_cap - c->in_len, (size_t)READ_AHEAD_BYTES)};
            mh.msg_iovlen = 2;
        }
    } else {
        int rv = reserve_in(c, MAX(c->in_need, (size_t)1));
        if (rv < 0)
            return rv;
        size_t n = MIN(c->in_cap - c->in_len, c->in_need + READ_AHEAD_BYTES);
        iov[0] = (struct iovec){c->in + c->in_len, n};
    }
    *ret_asked = iov[0].iov_len + (mh.msg_iovlen == 2 ? iov[1].iov_len : 0);
    ssize_t n = recvmsg(c->fd, &mh, 0);
    if (n < 0)
        return -errno;
    size_t into_pay = MIN((size_t)n, pay);
    c->in_len += (size_t)n - into_pay;
    if (into_pay)
        note_payload(c, into_pay);
    return n;
}

/* Reads until the kernel has no more, the peer had its share of this turn, or somebody paused or
 * closed the connection from a callback. */
static void on_readable(struct rpc_conn *c) {
    size_t budget = READ_BUDGET_BYTES;
    c->is_corked = true;
    while (c->state == CONN_OPEN && !c->is_paused) {
        size_t asked;
        ssize_t n = read_some(c, &asked);
        if (n == -EINTR)
            continue;
        if (n == -EAGAIN)
            break;
        if (n <= 0) {
            conn_fail(c, n == 0 ? ERR_CLOSED : (int)n, NULL);
            break;
        }
        c->last_read_ns = clock_mono_ns(c->cfg.clk);
        process_in(c);
        /* Less than asked: the kernel has no more. Asking again would only cost a call; polling is
         * by level, so nothing is lost. */
        if ((size_t)n < asked || (size_t)n >= budget)
            break;
        budget -= (size_t)n;
    }
    c->is_corked = false;
}

/* ---- the loop ---- */

/* The socket became writable or failed: SO_ERROR tells which, and only now the peer has a name. */
static void finish_connect(struct rpc_conn *c) {
    int err = 0;
    socklen_t len = sizeof(err);
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
        err = errno;
    if (err) {
        conn_fail(c, -err, NULL);
        return;
    }
    c->state = CONN_OPEN;
    rpc_sock_peer_name(c->fd, c->peer, sizeof(c->peer));
}

/* Everything is out: say so, then wait for the peer's end, since closing with unread bytes would
 * reset the connection and take our last frame with it. */
static void linger_step(struct rpc_conn *c) {
    if (list_empty(&c->out) && !c->is_shut) {
        c->is_shut = true;
        if (shutdown(c->fd, SHUT_WR) < 0) {
            conn_close_handles(c);
            return;
        }
    }
    uint8_t trash[TRASH_BYTES];
    ssize_t n = recv(c->fd, trash, sizeof(trash), 0);
    if (c->pending || n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        conn_close_handles(c);
}

/* The peer neither read everything nor closed in time: its answer is lost, as it would be with any
 * other end. */
static void on_linger_end(uv_timer_t *h) {
    conn_close_handles(h->data);
}

void rpc_conn_close_after_flush(struct rpc_conn *c, uint32_t linger_ms, rpc_conn_close_cb cb) {
    CHECK(c->magic == RPC_CONN_MAGIC && c->state != CONN_CLOSED && c->state != CONN_LINGER);
    if (c->state == CONN_CONNECTING || c->pending) {
        rpc_conn_close(c, cb);
        return;
    }
    c->close_cb = cb;
    c->state = CONN_LINGER;
    abort_payload(c);
    rpc_conn_flush(c);
    uv_timer_start(&c->linger, on_linger_end, linger_ms, 0);
    rpc_conn_kick(c);
    rpc_conn_update_poll(c);
}

void rpc_conn_cut(struct rpc_conn *c) {
    if (c->state == CONN_LINGER)
        conn_close_handles(c);
}

static void on_poll(uv_poll_t *h, int status, int events) {
    struct rpc_conn *c = h->data;
    bool was_kicked = c->is_kicked;
    if (status < 0)
        c->poll_events = 0; /* libuv has stopped the handle */
    c->is_kicked = false;
    if (c->state == CONN_CONNECTING)
        finish_connect(c);
    else if (c->state == CONN_OPEN) {
        if (was_kicked)
            process_in(c);
        if (c->state == CONN_OPEN && ((events & UV_READABLE) || status < 0))
            on_readable(c);
    }
    rpc_conn_flush(c);
    if (c->state == CONN_LINGER) {
        linger_step(c);
        rpc_conn_update_poll(c);
        return;
    }
    if (c->pending)
        conn_fail(c, c->pending, NULL);
    if (c->state == CONN_OPEN && c->want_drain && rpc_conn_has_room(c)) {
        c->want_drain = false;
        if (c->ops->on_drain)
            c->ops->on_drain(c, c->arg);
    }
    rpc_conn_update_poll(c);
}

/* ---- small things ---- */

bool rpc_conn_redirect(struct rpc_conn *c, const void *sink_ctx) {
    if (!c->is_in_payload || c->sink.ctx != sink_ctx)
        return false;
    c->sink.dst = NULL;
    c->sink.part = NULL;
    return true;
}

void rpc_conn_pause(struct rpc_conn *c, bool paused) {
    if (c->is_paused == paused)
        return;
    c->is_paused = paused;
    if (!paused)
        rpc_conn_kick(c); /* frames that are buffered already make no readability */
    rpc_conn_update_poll(c);
}

uint64_t rpc_conn_idle_ns(const struct rpc_conn *c) {
    return clock_mono_ns(c->cfg.clk) - c->last_read_ns;
}

void rpc_conn_set_arg(struct rpc_conn *c, void *arg) {
    c->arg = arg;
}

void *rpc_conn_user(const struct rpc_conn *c) {
    return c->user;
}

void rpc_conn_set_user(struct rpc_conn *c, void *user) {
    c->user = user;
}

uint32_t rpc_conn_grants(const struct rpc_conn *c) {
    return c->grants;
}

void rpc_conn_set_grants(struct rpc_conn *c, uint32_t grants) {
    c->grants = grants;
}

bool rpc_conn_is_tcp(const struct rpc_conn *c) {
    return c->is_tcp;
}

bool rpc_conn_is_closed(const struct rpc_conn *c) {
    return c->state != CONN_OPEN && c->state != CONN_CONNECTING;
}

const char *rpc_conn_peer(const struct rpc_conn *c) {
    return c->peer;
}

void rpc_conn_set_limits(struct rpc_conn *c, const struct wire_limits *lim) {
    c->cfg.limits = *lim;
}
