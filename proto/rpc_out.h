/* rpc_out.h - the write queue of one connection: frames in, sendmsg out. Knows no connection.
 *
 * Header and message of a frame are copied (inline, or to the heap when long); the payload stays the
 * caller's and is referenced until the kernel has its bytes.
 *
 * Thread: the loop's. Memory: the pool of frames at init; a heap block for each message over
 * RPC_OUT_INLINE_MSG until it is sent. */
#pragma once

#include "common/buf.h"
#include "common/clock.h"
#include "common/list.h"
#include "proto/wire_frame.h"

#define RPC_OUT_INLINE_MSG 1024u

struct rpc_out_cfg {
    uint32_t max_frames;     /* more: ERR_BUSY */
    uint64_t max_bytes;      /* the same in bytes with payloads */
    uint64_t writable_bytes; /* rpc_out_has_room() below this */
    const struct clock *clk;
};

struct rpc_out_frame;
struct rpc_out {
    struct rpc_out_cfg cfg;
    struct list frames, free;
    struct rpc_out_frame *pool; /* [max_frames], touched only as far as needed */
    uint32_t n, n_made;         /* queued; pool entries that were ever used */
    uint64_t bytes, heap_bytes; /* queued in all; of these messages on the heap */
    uint64_t last_write_ns;
};

int rpc_out_init(struct rpc_out *q, const struct rpc_out_cfg *cfg); /* 0, ERR_NOMEM */
void rpc_out_fini(struct rpc_out *q);
static inline bool rpc_out_is_empty(const struct rpc_out *q) {
    return list_empty(&q->frames);
}

/* hdr gives flags, method, request_id, deadline_ms and version (0: WIRE_VERSION). ERR_BUSY, ERR_NOMEM,
 * ERR_TOOBIG. The payload reference is taken on success only. */
int rpc_out_push(struct rpc_out *q, const struct wire_hdr *hdr, const void *msg, size_t msg_len,
                 struct buf *payload);
/* Writes until the queue is empty or the kernel full. 0 or -errno. */
int rpc_out_flush(struct rpc_out *q, int fd);
/* Drops frames of this request. One that is half sent goes on from a copy of the rest, so every payload
 * reference of the request is given back; ERR_NOMEM when that copy failed, all else done. */
int rpc_out_drop(struct rpc_out *q, uint64_t request_id);
/* Drops everything, for the end: the peer sees a cut stream, not a wrong one. */
void rpc_out_clear(struct rpc_out *q);

/* Below the marks, so that a stream may go on. */
bool rpc_out_has_room(const struct rpc_out *q);
/* Nearly full. */
bool rpc_out_is_crowded(const struct rpc_out *q);
/* How long nothing has moved, ns; 0 when empty. */
uint64_t rpc_out_stalled_ns(const struct rpc_out *q);
