#include "proto/rpc_conn_impl.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/bump.h"
#include "proto/wire_msg.h"

#define IOV_MAX_USED 32

/* ---- the queue ---- */

static void frame_free(struct rpc_conn *c, struct out_frame *f) {
    list_remove(&f->link);
    c->n_out--;
    c->out_bytes -= f->head_len + (f->payload ? f->payload->len : 0) - f->sent;
    free(f->heap);
    f->heap = NULL;
    list_push_front(&c->out_free, &f->link);
    buf_unref(TAKE_PTR(f->payload)); /* last: its release may look at this connection */
}

/* For the end of a connection. The half sent frame goes too: the peer sees a cut stream, not a
 * wrong one. */
void rpc_conn_drop_queue(struct rpc_conn *c) {
    while (!list_empty(&c->out))
        frame_free(c, LIST_ENTRY(c->out.next, struct out_frame, link));
}

/* ---- sending ---- */

bool rpc_conn_has_room(const struct rpc_conn *c) {
    return c->out_bytes < c->cfg.writable_bytes && c->n_out * 2 < c->cfg.max_out_frames;
}

/* As many queued pieces as one sendmsg takes: header and message, payload, header and message ...
 * No byte of payload is copied on our side. */
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

/* n bytes are in the kernel: whole frames leave the queue and give their payloads back. */
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

void rpc_conn_flush(struct rpc_conn *c) {
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

/* Recycled frames first (their memory is warm), then the next untouched one of the pool. */
static struct out_frame *frame_take(struct rpc_conn *c) {
    struct list *n = list_pop_front(&c->out_free);
    if (n)
        return LIST_ENTRY(n, struct out_frame, link);
    return c->n_made < c->cfg.max_out_frames ? &c->out_pool[c->n_made++] : NULL;
}

/* Queues a frame; on error nothing has changed but possibly the heap. The payload reference moves
 * into the frame only on success. */
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
    if (!h.version)
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
    if (c->is_corked && rpc_conn_has_room(c))
        return 0;
    rpc_conn_flush(c);
    if (c->pending || (c->want_drain && rpc_conn_has_room(c)))
        rpc_conn_kick(c);
    rpc_conn_update_poll(c);
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
    if (c->want_drain && rpc_conn_has_room(c))
        rpc_conn_kick(c);
    return rv;
}

/* ---- how full it is ---- */

bool rpc_conn_writable(struct rpc_conn *c) {
    bool ok = rpc_conn_has_room(c);
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

/* Only a queue that has something in it can be stalled; a silent peer without requests is just
 * idle. */
uint64_t rpc_conn_stalled_ns(const struct rpc_conn *c) {
    return list_empty(&c->out) ? 0 : clock_mono_ns(c->cfg.clk) - c->last_write_ns;
}
