/* rpc_conn.h - one framed connection on uv_poll_t with our own recvmsg and sendmsg; both sides use
 * it.
 *
 * Receiving: header and message are collected and checked; then on_head says where the payload
 * shall land, and it is received straight there. Sending: header and message are copied (small),
 * the payload is written from the caller's buffer, which is referenced until the kernel has its
 * bytes.
 *
 * Thread:  the loop's.
 * Memory:  everything is taken at open (queue, read buffer); a message that is longer than the
 *          read buffer costs one heap block until it is through (rpc_in.h), one that is sent and is
 *          long another until it is sent (rpc_out.h).
 * Close:   after on_close (the peer's fault or the network's) or at any time the owner calls
 *          rpc_conn_close() exactly once; no callback but the close callback follows. Callbacks
 * may close
 *          the connection they are called for. */
#pragma once

#include "common/buf.h"
#include "common/clock.h"
#include "common/compiler.h"
#include "common/err.h"
#include "proto/rpc_in.h"
#include "proto/wire_frame.h"

typedef struct uv_loop_s uv_loop_t;

struct rpc_conn;

/* What one peer may have of one turn of the loop, ns. Frames that are left wait for the next turn, so that whoever asks
 * little waits for one such slice of every other peer, however many requests one read has brought. Long enough
 * that a call of epoll between slices costs nothing. */
#define RPC_CONN_SLICE_NS 200000u

/* Where a payload goes. */
struct rpc_sink {
    uint8_t *dst; /* [payload_len], or NULL: the bytes are read and dropped */
    /* After each piece; the first `got` bytes are at dst. May be NULL. Called with dst != NULL
     * only. */
    void (*part)(struct rpc_sink *s, size_t got);
    void *ctx; /* the callee's, with u[] */
    uint64_t u[2];
};

struct rpc_conn_ops {
    /* Header and message are right. For payload_len > 0 fill *ret_sink (zeroed before). < 0 ends
     * the connection with that error. msg is valid until on_frame returns. */
    int (*on_head)(struct rpc_conn *c, void *arg, const struct wire_hdr *h, const uint8_t *msg,
                   struct rpc_sink *ret_sink);
    /* The frame is complete. Exactly one on_frame or on_abort follows an on_head that returned
     * 0. */
    void (*on_frame)(struct rpc_conn *c, void *arg, const struct wire_hdr *h, const uint8_t *msg,
                     struct rpc_sink *sink);
    /* The connection ended inside the payload. May be NULL. */
    void (*on_abort)(struct rpc_conn *c, void *arg, struct rpc_sink *sink);
    /* The write queue has room again after it was full or not writable. May be NULL. */
    void (*on_drain)(struct rpc_conn *c, void *arg);
    /* Broken: err says why (ERR_CLOSED: the peer closed between frames). h is the header of the
     * frame that broke the protocol, NULL otherwise: a server answers it. The owner calls
     * rpc_conn_close(). */
    void (*on_close)(struct rpc_conn *c, void *arg, int err, const struct wire_hdr *h);
};

struct rpc_conn_cfg {
    struct wire_limits limits;   /* max_msg_bytes 0: WIRE_MAX_* of both */
    uint32_t max_out_frames;     /* write queue; 0: 128 */
    uint64_t max_out_bytes;      /* the same in bytes with payloads; 0: 64 MiB */
    uint64_t writable_bytes;     /* rpc_conn_writable() below this; 0: 4 MiB */
    uint32_t read_cap_bytes;     /* longest TCP read; 0: 256 KiB */
    bool connecting;             /* connect() is under way: wait for it first */
    struct rpc_in_pool *in_pool; /* for messages longer than the read buffer; NULL: no bound */
    const struct clock *clk;     /* NULL: clock_real() */
};

typedef void (*rpc_conn_close_cb)(struct rpc_conn *c, void *arg);

/* Takes fd on success only. The connection reads from now on. */
int rpc_conn_open(struct rpc_conn **ret, uv_loop_t *loop, int fd, bool is_tcp,
                  const struct rpc_conn_cfg *cfg, const struct rpc_conn_ops *ops, void *arg);
/* Drops what is queued (references included), calls on_abort for a payload under way. cb (may be
 * NULL) runs from the loop; the memory goes when the last reference does. */
void rpc_conn_close(struct rpc_conn *c, rpc_conn_close_cb cb);
/* Sends what is queued first, for at most linger_ms; reads nothing more. */
void rpc_conn_close_after_flush(struct rpc_conn *c, uint32_t linger_ms, rpc_conn_close_cb cb);

/* Cuts the lingering of the latter short; nothing in any other state. */
void rpc_conn_cut(struct rpc_conn *c);

/* A reference keeps the memory, not the connection: sends after close are ERR_CLOSED. */
struct rpc_conn *rpc_conn_ref(struct rpc_conn *c);
void rpc_conn_unref(struct rpc_conn *c);

/* Queues one frame and starts to send. hdr gives flags, method, request_id, deadline_ms
 * and version (0: WIRE_VERSION); lengths and CRC are set here. ERR_BUSY when the queue is full, ERR_CLOSED, ERR_NOMEM,
 * ERR_TOOBIG. The payload reference is consumed in every case. Never calls back. */
int rpc_conn_send(struct rpc_conn *c, const struct wire_hdr *hdr, const void *msg, size_t msg_len,
                  struct buf *take_payload);
/* The usual answers to a request, ERROR ones with a text. */
int rpc_conn_reply(struct rpc_conn *c, const struct wire_hdr *request, bool is_last,
                   const void *msg, size_t msg_len, struct buf *take_payload);
int rpc_conn_reply_error(struct rpc_conn *c, const struct wire_hdr *request, int rv,
                         const char *text);

/* Less than writable_bytes queued and half of the frames free: a stream may go on. If not,
 * on_drain comes. */
bool rpc_conn_writable(struct rpc_conn *c);
/* on_drain comes in the next turn, or when there is room again: for a sender whose slice is over. */
void rpc_conn_go_on(struct rpc_conn *c);
/* Nearly full: a server stops reading requests, whose answers would not fit. If so, on_drain
 * comes. */
bool rpc_conn_crowded(struct rpc_conn *c);
/* Bytes queued and not yet in the kernel. */
uint64_t rpc_conn_queued_bytes(const struct rpc_conn *c);
/* Drops queued frames of this request. One that is half sent goes on from a copy of the rest, so
 * every payload reference of the request is given back; ERR_NOMEM when that copy failed, all else
 * done. */
int rpc_conn_drop_queued(struct rpc_conn *c, uint64_t request_id);
/* A payload under way is read and dropped from now on when its sink has this ctx; true if so.
 * on_frame follows with dst == NULL. */
bool rpc_conn_redirect(struct rpc_conn *c, const void *sink_ctx);
/* Stop and resume reading: backpressure on requests. */
void rpc_conn_pause(struct rpc_conn *c, bool paused);
/* How long the queue has not moved, ns; 0 when empty. */
uint64_t rpc_conn_stalled_ns(const struct rpc_conn *c);
/* Since the last byte came in, ns. */
uint64_t rpc_conn_idle_ns(const struct rpc_conn *c);
/* Since the first byte of a frame that is not whole yet, without the time that we did not read; 0: none
 * has begun. */
uint64_t rpc_conn_frame_ns(const struct rpc_conn *c);

/* When the first byte of the frame that is being handed over came in, monotonic ns. */
uint64_t rpc_conn_frame_begin_ns(const struct rpc_conn *c);

/* The owner's notes on the connection. */
void *rpc_conn_user(const struct rpc_conn *c);
void rpc_conn_set_user(struct rpc_conn *c, void *user);
/* Bits with the owner's meaning; rpc_server compares them with a method's needs. */
uint32_t rpc_conn_grants(const struct rpc_conn *c);
void rpc_conn_set_grants(struct rpc_conn *c, uint32_t grants);
bool rpc_conn_is_closed(const struct rpc_conn *c);
const char *rpc_conn_peer(const struct rpc_conn *c);
void rpc_conn_set_limits(struct rpc_conn *c, const struct wire_limits *lim);
