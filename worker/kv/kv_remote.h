/* kv_remote.h - the cache service as the worker sees it: proto's client behind a table, and the breaker.
 *
 * The table exists for tests, which put a scripted service in the client's place; its functions keep
 * kv_client.h's contracts (one callback a call, destinations left alone after a cancel).
 *
 * Thread: the loop thread. */
#pragma once

#include "proto/kv_client.h"
#include "worker/kv/prefix_policy.h"

struct kv_remote_ops {
    int (*lookup)(void *ctx, const struct kv_lookup *q, kv_lookup_cb cb, void *arg,
                  struct kv_call **ret);
    int (*fetch)(void *ctx, const struct kv_fetch *q, kv_fetch_cb cb, void *arg,
                 struct kv_call **ret);
    int (*put)(void *ctx, const struct kv_put *q, kv_put_cb cb, void *arg, struct kv_call **ret);
    int (*touch)(void *ctx, const struct kv_touch *q, kv_done_cb cb, void *arg,
                 struct kv_call **ret);
    void (*release)(void *ctx, const struct kv_lease *lease, uint32_t used);
    void (*cancel)(void *ctx, struct kv_call *call);
    bool (*is_up)(void *ctx); /* some node could be asked now */
};

struct kv_remote {
    const struct kv_remote_ops *ops;
    void *ctx;
    uint32_t ns; /* kv_client_namespace()'s handle */
    const struct clock *clk;
    struct breaker breaker;
};

/* Binds proto's client; c outlives the remote. */
void kv_remote_init_client(struct kv_remote *r, struct kv_client *c, uint32_t ns,
                           const struct clock *clk);
void kv_remote_init(struct kv_remote *r, const struct kv_remote_ops *ops, void *ctx,
                    const struct clock *clk);

/* True: a call may be made now (a node is up and the breaker lets it through). Every true must be
 * answered by kv_remote_result(). */
bool kv_remote_allow(struct kv_remote *r);
/* What a call's end says about the service: 0 and misses fine, ERR_CANCELED nothing, the rest failure. */
void kv_remote_result(struct kv_remote *r, int rv);
