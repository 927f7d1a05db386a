/* rpc_in.h - the read buffer of one connection, and the budget that long messages of all connections share.
 *
 * A buffer of RPC_IN_BYTES belongs to its connection for good. A message that needs more gets a block of
 * its own, charged to the pool until the message is through: half-received messages of a thousand peers
 * then hold no more than the pool, and none of them more than its share (common/share.h). Who is refused
 * waits, its socket unread, and is woken when room was given back.
 *
 *   bytes[off..len) is not yet consumed.
 * Thread: the loop's. */
#pragma once

#include "common/err.h"
#include "common/list.h"
#include "common/share.h"

#define RPC_IN_BYTES (16u << 10)
#define RPC_IN_AHEAD_BYTES (8u << 10) /* for pipelined small frames; of a payload it is copied */

struct rpc_in_pool {
    struct share share;
    struct share_tenant tenant;
    struct list waiting; /* struct rpc_in, oldest first */
};
/* total: bytes. It outlives its buffers. */
void rpc_in_pool_init(struct rpc_in_pool *p, uint64_t total);

struct rpc_in {
    uint8_t *bytes, *small; /* small: [RPC_IN_BYTES]; bytes is small or a block of its own */
    size_t cap, off, len;
    struct rpc_in_pool *pool; /* NULL: no bound */
    struct share_user user;
    struct list waiting;
    bool is_blocked;                 /* reads nothing until wake() */
    void (*wake)(struct rpc_in *in); /* there may be room now */
};
int rpc_in_init(struct rpc_in *in, struct rpc_in_pool *pool, void (*wake)(struct rpc_in *in));
void rpc_in_fini(struct rpc_in *in); /* twice does no harm */

/* Room for `more` bytes behind len, keeping what is not consumed (which may move). 0; ERR_NOMEM; ERR_BUSY:
 * the pool has none for this one now, wake() follows. */
int rpc_in_reserve(struct rpc_in *in, size_t more);
/* A frame is through: back to the small buffer if what is left fits. */
void rpc_in_settle(struct rpc_in *in);
