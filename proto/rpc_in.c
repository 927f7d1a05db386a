#include "proto/rpc_in.h"

#include "proto/wire_frame.h"

/* What one message can need at most: the most that one take asks for. */
#define UNIT_BYTES (WIRE_HDR_BYTES + WIRE_MAX_MSG_BYTES + RPC_IN_AHEAD_BYTES + RPC_IN_BYTES)

void rpc_in_pool_init(struct rpc_in_pool *p, uint64_t total) {
    share_init(&p->share, SHARE_RUNNING, MAX(total, (uint64_t)UNIT_BYTES), UNIT_BYTES);
    share_tenant_init(&p->tenant, &p->share);
    list_init(&p->waiting);
}

int rpc_in_init(struct rpc_in *in, struct rpc_in_pool *pool, void (*wake)(struct rpc_in *in)) {
    *in = (struct rpc_in){.cap = RPC_IN_BYTES, .pool = pool, .wake = wake};
    list_init(&in->waiting);
    if (pool)
        share_user_init(&in->user, &pool->tenant);
    in->bytes = in->small = malloc(RPC_IN_BYTES);
    if (in->small)
        return 0;
    rpc_in_fini(in);
    return ERR_NOMEM;
}

/* In turns: who waits longest first. Room that two are woken for goes to the first; the other waits on. */
static void wake_waiting(struct rpc_in_pool *p) {
    struct list batch;
    list_move(&p->waiting, &batch);
    for (struct list *l; (l = list_pop_front(&batch));) {
        struct rpc_in *in = LIST_ENTRY(l, struct rpc_in, waiting);
        list_init(&in->waiting);
        if (!share_may(&in->user, in->user.waits)) {
            list_push_back(&p->waiting, &in->waiting);
            continue;
        }
        in->is_blocked = false; /* it waits on, for the pool, until it has taken its room */
        in->wake(in);
    }
}

/* The block goes; n bytes of the pool with it. */
static void give_block(struct rpc_in *in) {
    free(in->bytes);
    in->bytes = in->small;
    if (!in->pool)
        return;
    share_give(&in->user, in->cap);
    wake_waiting(in->pool);
}

void rpc_in_fini(struct rpc_in *in) {
    list_remove(&in->waiting);
    if (in->bytes != in->small)
        give_block(in);
    free(TAKE_PTR(in->small));
    in->bytes = NULL;
    if (in->pool)
        share_user_fini(&in->user);
    in->pool = NULL;
}

static int wait_for_room(struct rpc_in *in, size_t n) {
    share_wait(&in->user, n);
    in->is_blocked = true;
    list_remove(&in->waiting);
    list_push_back(&in->pool->waiting, &in->waiting);
    return ERR_BUSY;
}

int rpc_in_reserve(struct rpc_in *in, size_t more) {
    if (in->cap - in->len >= more)
        return 0;
    if (in->off > 0) {
        memmove(in->bytes, in->bytes + in->off, in->len - in->off);
        in->len -= in->off;
        in->off = 0;
    }
    if (in->cap - in->len >= more)
        return 0;
    size_t cap = in->len + more + RPC_IN_AHEAD_BYTES;
    size_t held = in->bytes == in->small ? 0 : in->cap;
    if (in->pool && !share_take(&in->user, cap - held))
        return wait_for_room(in, cap - held);
    uint8_t *block = held ? realloc(in->bytes, cap) : malloc(cap);
    if (!block) {
        if (in->pool)
            share_give(&in->user, cap - held);
        return ERR_NOMEM;
    }
    if (!held)
        memcpy(block, in->small, in->len);
    in->bytes = block;
    in->cap = cap;
    return 0;
}

void rpc_in_settle(struct rpc_in *in) {
    size_t left = in->len - in->off;
    if (in->bytes == in->small || left > RPC_IN_BYTES)
        return;
    memcpy(in->small, in->bytes + in->off, left);
    give_block(in);
    in->cap = RPC_IN_BYTES;
    in->off = 0;
    in->len = left;
}
