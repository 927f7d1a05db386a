/* kv_remote.c - what the calls' ends mean for the breaker. */
#include "worker/kv/kv_remote.h"

void kv_remote_init(struct kv_remote *r, const struct kv_remote_ops *ops, void *ctx,
                    const struct clock *clk) {
    *r = (struct kv_remote){.ops = ops, .ctx = ctx, .clk = clk};
    breaker_init(&r->breaker);
}

bool kv_remote_allow(struct kv_remote *r) {
    /* A node that is down costs nothing: the client says so at once. The breaker is for nodes that
     * accept calls and then fail or keep silent. */
    return r->ops->is_up(r->ctx) && breaker_allow(&r->breaker, clock_mono_ns(r->clk));
}

void kv_remote_result(struct kv_remote *r, int rv) {
    switch (rv) {
    case 0:
    case ERR_NOTFOUND:
        breaker_ok(&r->breaker);
        break;
    case ERR_CANCELED:
    case ERR_BUSY:
    case ERR_UNAVAILABLE:
        breaker_void(&r->breaker);
        break;
    default:
        breaker_fail(&r->breaker, clock_mono_ns(r->clk));
    }
}
