#include "proto/rpc_out.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define IOV_MAX_USED 32
/* Messages on the heap that a peer may leave unread before it counts as crowded: what a client that
 * asks and never reads can make us hold is bounded by this and one more message. */
#define HEAP_CROWDED_BYTES (256u << 10)

/* Header and message are in one piece: inline, or in `heap` when long. */
struct rpc_out_frame {
    struct list link;
    uint64_t request_id;
    size_t head_len; /* header and message */
    size_t sent;     /* of head_len + the payload's length */
    uint8_t *heap;
    struct buf *payload;
    uint8_t inl[WIRE_HDR_BYTES + RPC_OUT_INLINE_MSG];
};

int rpc_out_init(struct rpc_out *q, const struct rpc_out_cfg *cfg) {
    *q = (struct rpc_out){.cfg = *cfg};
    list_init(&q->frames);
    list_init(&q->free);
    q->last_write_ns = clock_mono_ns(cfg->clk);
    /* Not cleared: from memory that was used before calloc() would touch all of it, 140 KiB a connection. A
     * frame is filled when it is taken. */
    q->pool = malloc(cfg->max_frames * sizeof(*q->pool));
    return q->pool ? 0 : ERR_NOMEM;
}

void rpc_out_fini(struct rpc_out *q) {
    free(TAKE_PTR(q->pool));
}

/* ---- the queue ---- */

static void frame_free(struct rpc_out *q, struct rpc_out_frame *f) {
    list_remove(&f->link);
    q->n--;
    q->bytes -= f->head_len + (f->payload ? f->payload->len : 0) - f->sent;
    q->heap_bytes -= f->heap ? f->head_len : 0;
    free(f->heap);
    f->heap = NULL;
    list_push_front(&q->free, &f->link);
    buf_unref(TAKE_PTR(f->payload)); /* last: its release may look at this queue */
}

void rpc_out_clear(struct rpc_out *q) {
    while (!list_empty(&q->frames))
        frame_free(q, LIST_ENTRY(q->frames.next, struct rpc_out_frame, link));
}

/* Recycled frames first (their memory is warm), then the next untouched one of the pool. */
static struct rpc_out_frame *frame_take(struct rpc_out *q) {
    struct list *n = list_pop_front(&q->free);
    if (n)
        return LIST_ENTRY(n, struct rpc_out_frame, link);
    return q->n_made < q->cfg.max_frames ? &q->pool[q->n_made++] : NULL;
}

int rpc_out_push(struct rpc_out *q, const struct wire_hdr *hdr, const void *msg, size_t msg_len,
                 struct buf *payload) {
    size_t pay_len = payload ? payload->len : 0;
    if (msg_len > WIRE_MAX_MSG_BYTES || pay_len > UINT32_MAX)
        return ERR_TOOBIG;
    if (q->bytes > 0 && q->bytes + pay_len > q->cfg.max_bytes)
        return ERR_BUSY;
    struct rpc_out_frame *f = frame_take(q);
    if (!f)
        return ERR_BUSY;
    list_init(&f->link);
    f->heap = msg_len > RPC_OUT_INLINE_MSG ? malloc(WIRE_HDR_BYTES + msg_len) : NULL;
    if (msg_len > RPC_OUT_INLINE_MSG && !f->heap) {
        list_push_front(&q->free, &f->link);
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
    if (list_empty(&q->frames))
        q->last_write_ns = clock_mono_ns(q->cfg.clk);
    list_push_back(&q->frames, &f->link);
    q->n++;
    q->bytes += f->head_len + pay_len;
    q->heap_bytes += f->heap ? f->head_len : 0;
    return 0;
}

/* ---- sending ---- */

/* As many queued pieces as one sendmsg takes: header and message, payload, header and message ...
 * No byte of payload is copied on our side. */
static size_t gather(struct rpc_out *q, struct iovec iov[IOV_MAX_USED]) {
    size_t n = 0;
    LIST_FOREACH(&q->frames, it) {
        struct rpc_out_frame *f = LIST_ENTRY(it, struct rpc_out_frame, link);
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
static void note_sent(struct rpc_out *q, size_t n) {
    q->last_write_ns = clock_mono_ns(q->cfg.clk);
    while (n > 0) {
        struct rpc_out_frame *f = LIST_ENTRY(q->frames.next, struct rpc_out_frame, link);
        size_t left = f->head_len + (f->payload ? f->payload->len : 0) - f->sent;
        size_t k = MIN(n, left);
        f->sent += k;
        q->bytes -= k;
        n -= k;
        if (k == left)
            frame_free(q, f);
    }
}

int rpc_out_flush(struct rpc_out *q, int fd) {
    while (!list_empty(&q->frames)) {
        struct iovec iov[IOV_MAX_USED];
        struct msghdr mh = {.msg_iov = iov, .msg_iovlen = gather(q, iov)};
        ssize_t n = sendmsg(fd, &mh, MSG_NOSIGNAL);
        if (n >= 0)
            note_sent(q, (size_t)n);
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            return -errno;
    }
    return 0;
}

/* The unsent rest of the payload moves to a heap copy, at the same offset; the source is given
 * back. */
static int frame_detach(struct rpc_out_frame *f) {
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

int rpc_out_drop(struct rpc_out *q, uint64_t request_id) {
    int rv = 0;
    LIST_FOREACH_SAFE(&q->frames, it, tmp) {
        struct rpc_out_frame *f = LIST_ENTRY(it, struct rpc_out_frame, link);
        if (f->request_id != request_id)
            continue;
        if (f->sent == 0)
            frame_free(q, f);
        else if (frame_detach(f) < 0)
            rv = ERR_NOMEM;
    }
    return rv;
}

/* ---- how full it is ---- */

bool rpc_out_has_room(const struct rpc_out *q) {
    return q->bytes < q->cfg.writable_bytes && q->n * 2 < q->cfg.max_frames;
}

bool rpc_out_is_crowded(const struct rpc_out *q) {
    return q->bytes > q->cfg.max_bytes / 2 || q->n * 4 > q->cfg.max_frames * 3 ||
           q->heap_bytes > HEAP_CROWDED_BYTES;
}

/* Only a queue that has something in it can be stalled; a silent peer without requests is just
 * idle. */
uint64_t rpc_out_stalled_ns(const struct rpc_out *q) {
    return list_empty(&q->frames) ? 0 : clock_mono_ns(q->cfg.clk) - q->last_write_ns;
}
