#include "proto/rpc_conn.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <uv.h>

#include "common/check.h"
#include "common/list.h"
#include "proto/rpc_sock.h"
#include "proto/wire_msg.h"

#define RPC_CONN_MAGIC 0x6e6e6f43u
#define INBUF_BYTES (16u << 10)
#define READ_AHEAD_BYTES (8u << 10) /* for pipelined small frames; of a payload it is copied */
#define TRASH_BYTES (64u << 10)
#define READ_BUDGET_BYTES (4u << 20) /* in one turn, so that one peer does not hold the loop */
#define IOV_MAX_USED 32

/* One frame in the write queue. Header and message are in one piece: inline, or in `heap` when
 * long. */
struct out_frame {
    struct list link;
    uint64_t request_id;
    size_t head_len; /* header and message */
    size_t sent;     /* of head_len + the payload's length */
    uint8_t *heap;
    struct buf *payload;
    uint8_t inl[WIRE_HDR_BYTES + RPC_CONN_INLINE_MSG];
};

/*   CONNECTING --writable--> OPEN --error--> BROKEN --close--> CLOSED
 *        \--------error--------^   \--close_after_flush--> LINGER --flushed, EOF, timeout-->
 * CLOSED */
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
    uv_timer_t linger;

    /* Receiving. in[in_off..in_len) is not yet consumed; while a payload is under way the frame's
     * header and message stay at in + frame_off. */
    uint8_t *in;
    size_t in_cap, in_off, in_len, in_need;
    size_t frame_off;
    struct wire_hdr hdr;
    struct rpc_sink sink;
    bool is_in_payload;
    size_t pay_left;
    uint64_t last_read_ns;

    /* Sending. */
    struct list out, out_free;
    uint32_t n_out, n_made;    /* queued; pool entries that were ever used */
    struct out_frame *out_pool; /* [cfg.max_out_frames], touched only as far as needed */
    uint64_t out_bytes, last_write_ns;
    char peer[80];
};

static void conn_flush(struct rpc_conn *c);

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

static void frame_free(struct rpc_conn *c, struct out_frame *f) {
    list_remove(&f->link);
    c->n_out--;
    c->out_bytes -= f->head_len + (f->payload ? f->payload->len : 0) - f->sent;
    free(f->heap);
    f->heap = NULL;
    list_push_front(&c->out_free, &f->link);
    buf_unref(TAKE_PTR(f->payload)); /* last: its release may look at this connection */
}

static void drop_queue(struct rpc_conn *c) {
    while (!list_empty(&c->out))
        frame_free(c, LIST_ENTRY(c->out.next, struct out_frame, link));
}

static void abort_payload(struct rpc_conn *c) {
    if (!c->is_in_payload)
        return;
    c->is_in_payload = false;
    if (c->ops->on_abort)
        c->ops->on_abort(c, c->arg, &c->sink);
}

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
    drop_queue(c);
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

static void on_poll(uv_poll_t *h, int status, int events);

static void update_poll(struct rpc_conn *c) {
    if (c->state == CONN_CLOSED)
        return;
    int events = 0;
    if (c->state == CONN_LINGER || (c->state == CONN_OPEN && !c->is_paused))
        events |= UV_READABLE;
    if (c->is_kicked || c->state == CONN_CONNECTING || !list_empty(&c->out))
        events |= UV_WRITABLE;
    if (c->state == CONN_BROKEN)
        events = 0;
    /* Corked frames are flushed before the turn ends, so that the common case arms no writability.
     * */
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
    update_poll(c);
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
        /* Less than asked: the kernel has no more. Asking again would only cost a call; polling is by
         * level, so nothing is lost. */
        if ((size_t)n < asked || (size_t)n >= budget)
            break;
        budget -= (size_t)n;
    }
    c->is_corked = false;
}

/* ---- sending ---- */

static bool out_is_writable(const struct rpc_conn *c) {
    return c->out_bytes < c->cfg.writable_bytes && c->n_out * 2 < c->cfg.max_out_frames;
}

static size_t gather(struct rpc_conn *c, struct iovec iov[IOV_MAX_USED]) {
    size_t n = 0;
    LIST_FOREACH(&c->out, it) {
        struct out_frame *f = LIST_ENTRY(it, struct out_frame, link);
        if (n + 2 > IOV_MAX_USED)
            break;
        size_t at = f->sent;
        if (at < f->head_len) {
            iov[n++] = (struct iovec){(f->heap ? f->heap : f->inl) + at, f->head_len - at};
            at = f->head_len;
        }
        if (f->payload && f->payload->len > at - f->head_len)
            iov[n++] = (struct iovec){f->payload->data + (at - f->head_len),
                                      f->payload->len - (at - f->head_len)};
    }
    return n;
}

static void note_sent(struct rpc_conn *c, size_t n) {
    c->last_write_ns = clock_mono_ns(c->cfg.clk);
    while (n > 0) {
        struct out_frame *f = LIST_ENTRY(c->out.next, struct out_frame, link);
        size_t left = f->head_len + (f->payload ? f->payload->len : 0) - f->sent;
        size_t k = MIN(n, left);
        f->sent += k;
        c->out_bytes -= k;
        n -= k;
        if (k == left)
            frame_free(c, f);
    }
}

/* Writes until the queue is empty or the kernel full. Errors wait in c->pending for the loop. */
static void conn_flush(struct rpc_conn *c) {
    while (!list_empty(&c->out) && c->pending == 0 &&
           (c->state == CONN_OPEN || c->state == CONN_LINGER)) {
        struct iovec iov[IOV_MAX_USED];
        struct msghdr mh = {.msg_iov = iov, .msg_iovlen = gather(c, iov)};
        ssize_t n = sendmsg(c->fd, &mh, MSG_NOSIGNAL);
        if (n >= 0)
            note_sent(c, (size_t)n);
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            c->pending = -errno;
    }
}

static struct out_frame *frame_take(struct rpc_conn *c) {
    struct list *n = list_pop_front(&c->out_free);
    if (n)
        return LIST_ENTRY(n, struct out_frame, link);
    return c->n_made < c->cfg.max_out_frames ? &c->out_pool[c->n_made++] : NULL;
}

static int frame_fill(struct rpc_conn *c, const struct wire_hdr *hdr, const void *msg,
                      size_t msg_len, struct buf *payload) {
    size_t pay_len = payload ? payload->len : 0;
    if (msg_len > WIRE_MAX_MSG_BYTES || pay_len > UINT32_MAX)
        return ERR_TOOBIG;
    /* BROKEN takes an error frame for rpc_conn_close_after_flush(). */
    if (c->state == CONN_LINGER || c->state == CONN_CLOSED || c->pending)
        return ERR_CLOSED;
    if (c->out_bytes > 0 && c->out_bytes + pay_len > c->cfg.max_out_bytes)
        return ERR_BUSY;
    struct out_frame *f = frame_take(c);
    if (!f)
        return ERR_BUSY;
    list_init(&f->link);
    f->heap = msg_len > RPC_CONN_INLINE_MSG ? malloc(WIRE_HDR_BYTES + msg_len) : NULL;
    if (msg_len > RPC_CONN_INLINE_MSG && !f->heap) {
        list_push_front(&c->out_free, &f->link);
        return ERR_NOMEM;
    }
    struct wire_hdr h = *hdr;
    h.version = WIRE_VERSION;
    h.msg_len = (uint32_t)msg_len;
    h.payload_len = (uint32_t)pay_len;
    uint8_t *at = f->heap ? f->heap : f->inl;
    wire_hdr_encode(&h, msg, at);
    if (msg_len)
        memcpy(at + WIRE_HDR_BYTES, msg, msg_len);
    f->request_id = h.request_id;
    f->head_len = WIRE_HDR_BYTES + msg_len;
    f->sent = 0;
    f->payload = payload;
    if (list_empty(&c->out))
        c->last_write_ns = clock_mono_ns(c->cfg.clk);
    list_push_back(&c->out, &f->link);
    c->n_out++;
    c->out_bytes += f->head_len + pay_len;
    return 0;
}

int rpc_conn_send(struct rpc_conn *c, const struct wire_hdr *hdr, const void *msg, size_t msg_len,
                  struct buf *take_payload) {
    CHECK(c->magic == RPC_CONN_MAGIC);
    int rv = frame_fill(c, hdr, msg, msg_len, take_payload);
    if (rv < 0) {
        c->want_drain = c->want_drain || rv == ERR_BUSY;
        buf_unref(take_payload);
        return rv;
    }
    /* Inside a read turn answers are collected and leave in one call at its end. */
    if (c->is_corked && out_is_writable(c))
        return 0;
    conn_flush(c);
    if (c->pending || (c->want_drain && out_is_writable(c)))
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
    struct wire_hdr h = {.method = request->method,
                         .request_id = request->request_id,
                         .flags = WIRE_F_RESPONSE | WIRE_F_END | WIRE_F_ERROR};
    return rpc_conn_send(c, &h, out.data, out.len, NULL);
}

/* The unsent rest of the payload moves to a heap copy, at the same offset; the source is given
 * back. */
static int frame_detach(struct out_frame *f) {
    if (!f->payload)
        return 0;
    struct buf *copy = buf_new(f->payload->len);
    if (!copy)
        return ERR_NOMEM;
    size_t done = f->sent > f->head_len ? f->sent - f->head_len : 0;
    copy->len = f->payload->len;
    memcpy(copy->data + done, f->payload->data + done, copy->len - done);
    struct buf *source = f->payload;
    f->payload = copy;
    buf_unref(source);
    return 0;
}

int rpc_conn_drop_queued(struct rpc_conn *c, uint64_t request_id) {
    int rv = 0;
    LIST_FOREACH_SAFE(&c->out, it, tmp) {
        struct out_frame *f = LIST_ENTRY(it, struct out_frame, link);
        if (f->request_id != request_id)
            continue;
        if (f->sent > 0)
            rv = frame_detach(f);
        else
            frame_free(c, f);
    }
    if (c->want_drain && out_is_writable(c))
        kick(c);
    return rv;
}

/* ---- the loop ---- */

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
    conn_flush(c);
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
    c->is_kicked = false;
    if (c->state == CONN_CONNECTING)
        finish_connect(c);
    else if (c->state == CONN_OPEN) {
        if (was_kicked)
            process_in(c);
        if (c->state == CONN_OPEN && ((events & UV_READABLE) || status < 0))
            on_readable(c);
    }
    conn_flush(c);
    if (c->state == CONN_LINGER) {
        linger_step(c);
        update_poll(c);
        return;
    }
    if (c->pending)
        conn_fail(c, c->pending, NULL);
    if (c->state == CONN_OPEN && c->want_drain && out_is_writable(c)) {
        c->want_drain = false;
        if (c->ops->on_drain)
            c->ops->on_drain(c, c->arg);
    }
    update_poll(c);
}

/* ---- small things ---- */

bool rpc_conn_writable(struct rpc_conn *c) {
    bool ok = out_is_writable(c);
    c->want_drain = c->want_drain || !ok;
    return ok;
}

bool rpc_conn_crowded(struct rpc_conn *c) {
    bool is_crowded =
        c->out_bytes > c->cfg.max_out_bytes / 2 || c->n_out * 4 > c->cfg.max_out_frames * 3;
    c->want_drain = c->want_drain || is_crowded;
    return is_crowded;
}

uint64_t rpc_conn_queued_bytes(const struct rpc_conn *c) {
    return c->out_bytes;
}

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
        kick(c); /* frames that are buffered already make no readability */
    update_poll(c);
}

uint64_t rpc_conn_stalled_ns(const struct rpc_conn *c) {
    return list_empty(&c->out) ? 0 : clock_mono_ns(c->cfg.clk) - c->last_write_ns;
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
