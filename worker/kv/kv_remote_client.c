/* kv_remote_client.c - proto's client as the worker's table of calls. */
#include "worker/kv/kv_remote.h"

static int client_lookup(void *ctx, const struct kv_lookup *q, kv_lookup_cb cb, void *arg,
                         struct kv_call **ret) {
    return kv_client_lookup(ctx, q, cb, arg, ret);
}
static int client_fetch(void *ctx, const struct kv_fetch *q, kv_fetch_cb cb, void *arg,
                        struct kv_call **ret) {
    return kv_client_fetch(ctx, q, cb, arg, ret);
}
static int client_put(void *ctx, const struct kv_put *q, kv_put_cb cb, void *arg,
                      struct kv_call **ret) {
    return kv_client_put(ctx, q, cb, arg, ret);
}
static int client_touch(void *ctx, const struct kv_touch *q, kv_done_cb cb, void *arg,
                        struct kv_call **ret) {
    return kv_client_touch(ctx, q, cb, arg, ret);
}
static void client_release(void *ctx, const struct kv_lease *lease, uint32_t used) {
    kv_client_release(ctx, lease, used);
}
static void client_cancel(void *ctx, struct kv_call *call) {
    (void)ctx;
    kv_call_cancel(call);
}
static bool client_is_up(void *ctx) {
    return kv_client_nodes_up(ctx) > 0;
}

static const struct kv_remote_ops client_ops = {
    .lookup = client_lookup,
    .fetch = client_fetch,
    .put = client_put,
    .touch = client_touch,
    .release = client_release,
    .cancel = client_cancel,
    .is_up = client_is_up,
};

void kv_remote_init_client(struct kv_remote *r, struct kv_client *c, uint32_t ns,
                           const struct clock *clk) {
    kv_remote_init(r, &client_ops, c, clk);
    r->ns = ns;
}
