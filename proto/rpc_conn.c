#include "proto/rpc_conn.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <uv.h>

#include "common/bump.h"
#include "common/check.h"
#include "proto/rpc_out.h"
#include "proto/rpc_sock.h"
#include "proto/wire_msg.h"

#define RPC_CONN_MAGIC 0x6e6e6f43u
#define TRASH_BYTES (64u << 10)

/*   CONNECTING --writable--> OPEN --error--> BROKEN --close--> CLOSED
 *        \--------error--------^   \--close_after_flush--> LINGER --flushed, EOF, timeout--> CLOSED */
enum conn_state { CONN_CONNECTING, CONN_OPEN, CONN_BROKEN, CONN_LINGER, CONN_CLOSED };

struct rpc_conn {
    uint32_t magic;
    uint32_t refs; /* the owner's, until the close callback, and those of rpc_conn_ref() */
    enum conn_state state;
    int fd;
    bool is_tcp, is_paused, is_kicked, is_corked, want_drain, is_shut;
    int live;    /* uv handles that may still call back */
    int pending; /* error found while sending, told from the loop */
    uint32_t grants;
    void *user;
    struct rpc_conn_cfg cfg;
    const struct rpc_conn_ops *ops;
    void *arg;
    rpc_conn_close_cb close_cb;
    uv_poll_t poll;
    int poll_events; /* that poll waits for */
    uv_timer_t linger;

    /* Receiving. While a payload is under way the frame's header and message stay at
     * in.bytes + frame_off. */
    struct rpc_in in;
    size_t in_need, frame_off;
    struct wire_hdr hdr;
    struct rpc_sink sink;
    bool is_in_payload;
    size_t pay_left;
    uint64_t last_read_ns, slice_end_ns;
    uint64_t frame_ns, deaf_ns; /* a frame has begun; we do not read since. 0: neither */

    struct rpc_out out;
    char peer[80];
};

static void update_poll(struct rpc_conn *c);
static void kick(struct rpc_conn *c);

/* ---- life ---- */

static void conn_defaults(struct rpc_conn_cfg *cfg) {
    if (!cfg->limits.max_msg_bytes)
        cfg->limits = (struct wire_limits){WIRE_MAX_MSG_BYTES, WIRE_MAX_PAYLOAD_BYTES};
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
    rpc_in_fini(&c->in);
    rpc_out_fini(&c->out);
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
    rpc_in_fini(&c->in); /* now: references may outlive the pool */
    if (c->close_cb)
        c->close_cb(c, c->arg);
    rpc_conn_unref(c);
}

static void conn_close_handles(struct rpc_conn *c) {
    c->state = CONN_CLOSED;
    rpc_out_clear(&c->out);
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

/* Somebody paused us, or there is no room for a long message. */
static bool is_deaf(const struct rpc_conn *c) {
    return c->is_paused || c->in.is_blocked;
}

/* The time of a frame under way stands while we do not read. */
static void note_deaf(struct rpc_conn *c) {
    uint64_t now = clock_mono_ns(c->cfg.clk);
    if (is_deaf(c)) {
        c->deaf_ns = c->deaf_ns ? c->deaf_ns : now;
    } else if (c->deaf_ns) {
        c->frame_ns += c->frame_ns ? now - c->deaf_ns : 0;
        c->deaf_ns = 0;
    }
}

static void on_in_room(struct rpc_in *in) {
    struct rpc_conn *c = CONTAINER_OF(in, struct rpc_conn, in);
    note_deaf(c);
    kick(c);
    update_poll(c);
}

/* Writes what the kernel takes. An error waits in c->pending for the loop, so that no callback runs
 * inside rpc_conn_send(). */
static void flush(struct rpc_conn *c) {
    if (c->pending == 0 && (c->state == CONN_OPEN || c->state == CONN_LINGER))
        c->pending = rpc_out_flush(&c->out, c->fd);
}

/* What the poll handle waits for, from the state and the queue. */
static void update_poll(struct rpc_conn *c) {
    if (c->state == CONN_CLOSED)
        return;
    int events = 0;
    if (c->state == CONN_LINGER || (c->state == CONN_OPEN && !is_deaf(c)))
        events |= UV_READABLE;
    if (c->is_kicked || c->state == CONN_CONNECTING || !rpc_out_is_empty(&c->out))
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
static void kick(struct rpc_conn *c) {
    if (c->is_kicked || c->state == CONN_CLOSED || c->state == CONN_BROKEN)
        return;
    c->is_kicked = true;
    update_poll(c);
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
    update_poll(c);
    abort_payload(c);
    if (c->state == CONN_BROKEN) /* on_abort may have closed it */
        c->ops->on_close(c, c->arg, err, h);
}

int rpc_conn_open(struct rpc_conn **ret, uv_loop_t *loop, int fd, bool is_tcp,
                  const struct rpc_conn_cfg *cfg, const struct rpc_conn_ops *ops, void *arg) {
    struct rpc_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return ERR_NOMEM;
    *c = (struct rpc_conn){.magic = RPC_CONN_MAGIC,
                           .refs = 1,
                           .fd = fd,
                           .is_tcp = is_tcp,
                           .cfg = *cfg,
                           .ops = ops,
                           .arg = arg};
    conn_defaults(&c->cfg);
    c->state = cfg->connecting ? CONN_CONNECTING : CONN_OPEN;
    c->last_read_ns = clock_mono_ns(c->cfg.clk);
    const struct rpc_out_cfg oc = {.max_frames = c->cfg.max_out_frames,
                                   .max_bytes = c->cfg.max_out_bytes,
                                   .writable_bytes = c->cfg.writable_bytes,
                                   .clk = c->cfg.clk};
    int rv = rpc_in_init(&c->in, c->cfg.in_pool, on_in_room);
    if (rv < 0) {
        free(c);
        return rv;
    }
    rv = rpc_out_init(&c->out, &oc);
    if (rv == 0)
        rv = uv_poll_init(loop, &c->poll, fd);
    if (rv < 0) {
        conn_free(c);
        return rv;
    }
    uv_timer_init(loop, &c->linger);
    c->poll.data = c->linger.data = c;
    c->live = 2;
    rpc_sock_peer_name(fd, c->peer, sizeof(c->peer));
    update_poll(c);
    *ret = c;
    return 0;
}

/* ---- receiving ---- */

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
    if (c->in.off == c->in.len) /* start over at the front; the message stays where it is */
        c->in.off = c->in.len = 0;
    c->ops->on_frame(c, c->arg, &c->hdr, c->in.bytes + c->frame_off + WIRE_HDR_BYTES, &sink);
    c->frame_ns = 0;
    rpc_in_settle(&c->in);
}

/* Header and message at in_off are whole: ask where the payload goes, take what is there of it. */
static int begin_frame(struct rpc_conn *c) {
    c->frame_off = c->in.off;
    c->in.off += WIRE_HDR_BYTES + (size_t)c->hdr.msg_len;
    c->sink = (struct rpc_sink){0};
    const uint8_t *msg = c->in.bytes + c->frame_off + WIRE_HDR_BYTES;
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
    size_t n = MIN(c->pay_left, c->in.len - c->in.off);
    if (n && c->sink.dst)
        memcpy(c->sink.dst, c->in.bytes + c->in.off, n);
    c->in.off += n;
    note_payload(c, n);
    return 0;
}

/* A frame that is not whole: its time runs from its first byte. */
static void note_frame(struct rpc_conn *c) {
    if (c->frame_ns == 0 && (c->is_in_payload || c->in.len > c->in.off))
        c->frame_ns = clock_mono_ns(c->cfg.clk);
}

static bool is_slice_over(const struct rpc_conn *c) {
    return clock_mono_ns(c->cfg.clk) >= c->slice_end_ns;
}

/* Consumes what is buffered, frame by frame, until the slice is over; then goes on from the next turn. */
static void process_in(struct rpc_conn *c) {
    bool has_begun = false;
    while (c->state == CONN_OPEN && !c->is_paused) {
        if (c->is_in_payload) {
            if (c->pay_left > 0) {
                note_frame(c);
                return;
            }
            finish_frame(c);
            has_begun = true;
            continue;
        }
        if (has_begun && c->in.len > c->in.off && is_slice_over(c)) {
            kick(c);
            return;
        }
        int64_t r = wire_frame_read(&c->cfg.limits, c->in.bytes + c->in.off, c->in.len - c->in.off,
                                    &c->hdr);
        bool has_hdr = c->in.len - c->in.off >= WIRE_HDR_BYTES;
        if (r == 0)
            r = begin_frame(c);
        else if (r > 0) {
            c->in_need = (size_t)r;
            note_frame(c);
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
        if (pay == c->pay_left && c->in.cap > c->in.len) {
            iov[1] = (struct iovec){c->in.bytes + c->in.len,
                                    MIN(c->in.cap - c->in.len, (size_t)RPC_IN_AHEAD_BYTES)};
            mh.msg_iovlen = 2;
        }
    } else {
        int rv = rpc_in_reserve(&c->in, MAX(c->in_need, (size_t)1));
        if (rv == ERR_BUSY)
            note_deaf(c);
        if (rv < 0)
            return rv == ERR_BUSY ? -EAGAIN : rv;
        size_t n = MIN(c->in.cap - c->in.len, c->in_need + RPC_IN_AHEAD_BYTES);
        iov[0] = (struct iovec){c->in.bytes + c->in.len, n};
    }
    *ret_asked = iov[0].iov_len + (mh.msg_iovlen == 2 ? iov[1].iov_len : 0);
    ssize_t n = recvmsg(c->fd, &mh, 0);
    if (n < 0)
        return -errno;
    size_t into_pay = MIN((size_t)n, pay);
    c->in.len += (size_t)n - into_pay;
    if (into_pay)
        note_payload(c, into_pay);
    return n;
}

/* Reads until the kernel has no more, the peer's slice of this turn is over, or somebody paused or
 * closed the connection from a callback. */
static void on_readable(struct rpc_conn *c) {
    c->is_corked = true;
    while (c->state == CONN_OPEN && !is_deaf(c)) {
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
        if ((size_t)n < asked || is_slice_over(c))
            break;
    }
    c->is_corked = false;
}

/* ---- sending ---- */

int rpc_conn_send(struct rpc_conn *c, const struct wire_hdr *hdr, const void *msg, size_t msg_len,
                  struct buf *take_payload) {
    CHECK(c->magic == RPC_CONN_MAGIC);
    /* BROKEN takes an error frame for rpc_conn_close_after_flush(). */
    bool is_over = c->state == CONN_LINGER || c->state == CONN_CLOSED || c->pending;
    int rv = is_over ? ERR_CLOSED : rpc_out_push(&c->out, hdr, msg, msg_len, take_payload);
    if (rv < 0) {
        c->want_drain = c->want_drain || rv == ERR_BUSY;
        buf_unref(take_payload);
        return rv;
    }
    /* Inside a read turn answers are collected and leave in one call at its end. */
    if (c->is_corked && rpc_out_has_room(&c->out))
        return 0;
    flush(c);
    if (c->pending || (c->want_drain && rpc_out_has_room(&c->out)))
        kick(c);
    update_poll(c);
    return 0;
}

int rpc_conn_reply(struct rpc_conn *c, const struct wire_hdr *request, bool is_last,
                   const void *msg, size_t msg_len, struct buf *take_payload) {
    struct wire_hdr h = {.method = request->method,
                         .request_id = request->request_id,
                         .flags = (uint8_t)(WIRE_F_RESPONSE | (is_last ? WIRE_F_END : 0))};
    return rpc_conn_send(c, &h, msg, msg_len, take_payload);
}

/* Without heap and scratch of a server: it must work when those are the problem. A text that does
 * not fit gives way to the code's own. */
int rpc_conn_reply_error(struct rpc_conn *c, const struct wire_hdr *request, int rv,
                         const char *text) {
    uint8_t arena[64], bytes[640];
    struct bump scratch = {.base = arena, .cap = sizeof(arena)};
    struct buf out = {.data = bytes, .cap = sizeof(bytes)};
    struct msg_error m = {.code = wire_err_to_code(rv), .text = text};
    int enc = wire_msg_error_encode(&scratch, &m, &out);
    if (enc < 0) {
        m.text = err_text(rv);
        enc = wire_msg_error_encode(&scratch, &m, &out);
        CHECK(enc == 0);
    }
    /* An asker of version 1 reads the error in a frame of its own version, whose layout is ours. */
    struct wire_hdr h = {.version = request->version == 1 ? 1 : WIRE_VERSION,
                         .method = request->method,
                         .request_id = request->request_id,
                         .flags = WIRE_F_RESPONSE | WIRE_F_END | WIRE_F_ERROR};
    return rpc_conn_send(c, &h, out.data, out.len, NULL);
}

int rpc_conn_drop_queued(struct rpc_conn *c, uint64_t request_id) {
    int rv = rpc_out_drop(&c->out, request_id);
    if (c->want_drain && rpc_out_has_room(&c->out))
        kick(c);
    return rv;
}

bool rpc_conn_writable(struct rpc_conn *c) {
    bool ok = rpc_out_has_room(&c->out);
    c->want_drain = c->want_drain || !ok;
    return ok;
}

void rpc_conn_go_on(struct rpc_conn *c) {
    c->want_drain = true;
    kick(c);
}

bool rpc_conn_crowded(struct rpc_conn *c) {
    bool is_crowded = rpc_out_is_crowded(&c->out);
    c->want_drain = c->want_drain || is_crowded;
    return is_crowded;
}

uint64_t rpc_conn_queued_bytes(const struct rpc_conn *c) {
    return c->out.bytes;
}

uint64_t rpc_conn_stalled_ns(const struct rpc_conn *c) {
    return rpc_out_stalled_ns(&c->out);
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
    if (rpc_out_is_empty(&c->out) && !c->is_shut) {
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
    flush(c);
    uv_timer_start(&c->linger, on_linger_end, linger_ms, 0);
    kick(c);
    update_poll(c);
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
    c->slice_end_ns = clock_mono_ns(c->cfg.clk) + RPC_CONN_SLICE_NS;
    if (c->state == CONN_CONNECTING)
        finish_connect(c);
    else if (c->state == CONN_OPEN) {
        if (was_kicked)
            process_in(c);
        /* Kicked again: frames that are buffered come first. */
        if (c->state == CONN_OPEN && !c->is_kicked && ((events & UV_READABLE) || status < 0))
            on_readable(c);
    }
    flush(c);
    if (c->state == CONN_LINGER) {
        linger_step(c);
        update_poll(c);
        return;
    }
    if (c->pending)
        conn_fail(c, c->pending, NULL);
    if (c->state == CONN_OPEN && c->want_drain && rpc_out_has_room(&c->out)) {
        c->want_drain = false;
        if (c->ops->on_drain)
            c->ops->on_drain(c, c->arg);
    }
    update_poll(c);
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
    note_deaf(c);
    if (!paused)
        kick(c); /* frames that are buffered already make no readability */
    update_poll(c);
}

uint64_t rpc_conn_frame_begin_ns(const struct rpc_conn *c) {
    return c->frame_ns ? c->frame_ns : c->last_read_ns;
}

uint64_t rpc_conn_frame_ns(const struct rpc_conn *c) {
    uint64_t now = c->deaf_ns ? c->deaf_ns : clock_mono_ns(c->cfg.clk);
    return c->frame_ns ? now - c->frame_ns : 0;
}

uint64_t rpc_conn_idle_ns(const struct rpc_conn *c) {
    return clock_mono_ns(c->cfg.clk) - c->last_read_ns;
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

bool rpc_conn_is_closed(const struct rpc_conn *c) {
    return c->state != CONN_OPEN && c->state != CONN_CONNECTING;
}

const char *rpc_conn_peer(const struct rpc_conn *c) {
    return c->peer;
}

void rpc_conn_set_limits(struct rpc_conn *c, const struct wire_limits *lim) {
    c->cfg.limits = *lim;
}
