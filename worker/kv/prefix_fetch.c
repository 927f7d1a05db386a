/* prefix_fetch.c - lookup and fetch through the client, answers to the breaker, the lease. */
#include "worker/kv/prefix_fetch.h"

#include "common/check.h"

static bool is_resident(uint8_t status) {
    return status == MSG_LOOKUP_RAM || status == MSG_LOOKUP_DISK;
}

/* What the breaker hears; exactly once for each kv_remote_allow(). */
static void settle(struct prefix_fetch *f, int rv) {
    if (!f->probing)
        return;
    f->probing = false;
    kv_remote_result(f->r, rv);
}

static void on_lookup_done(void *arg, int rv, const struct kv_lookup_res *res) {
    struct prefix_fetch *f = arg;
    uint32_t n_prefix = 0, first_absent = 0;
    f->call = NULL;
    settle(f, rv);
    if (rv == 0 && res) {
        n_prefix = MIN(res->n_prefix, f->n_chain);
        while (first_absent < res->n && is_resident(res->status[first_absent]))
            first_absent++;
        if (res->lease) {
            f->lease = *res->lease;
            f->has_lease = f->lease.n > 0;
        }
    }
    f->on_lookup(f, rv, n_prefix, first_absent);
}

int prefix_lookup_start(struct prefix_fetch *f, struct kv_remote *r, const struct block_id *chain,
                        uint32_t n, uint32_t n_have, uint32_t deadline_ms) {
    CHECK(!f->call && n_have <= n);
    f->r = r;
    f->chain = chain;
    f->n_chain = n;
    f->n_used = 0;
    if (!kv_remote_allow(r))
        return ERR_UNAVAILABLE;
    f->probing = f->silent = true;
    const struct kv_lookup q = {
        .ns = r->ns,
        .chain = chain,
        .n = n,
        .have = n_have,
        .flags = MSG_LOOKUP_F_TOUCH | MSG_LOOKUP_F_LEASE,
        .traceparent = f->traceparent,
        .deadline_ms = deadline_ms,
    };
    int rv = r->ops->lookup(r->ctx, &q, on_lookup_done, f, &f->call);
    if (rv < 0)
        settle(f, ERR_CANCELED); /* not sent: says nothing */
    return rv;
}

static void on_block(void *arg, uint32_t i, int rv) {
    struct prefix_fetch *f = arg;
    f->silent = f->silent && rv != 0;
    f->on_block(f, i, rv);
}

static void on_fetch_done(void *arg, int rv, const struct kv_fetch_res *res) {
    struct prefix_fetch *f = arg;
    (void)res;
    f->call = NULL;
    settle(f, rv);
    f->on_end(f, rv);
}

int prefix_fetch_start(struct prefix_fetch *f, uint32_t first, uint32_t n, uint8_t *const *dst,
                       uint32_t deadline_ms) {
    CHECK(!f->call && first + n <= f->n_chain);
    if (!kv_remote_allow(f->r))
        return ERR_UNAVAILABLE;
    f->probing = f->silent = true;
    const struct kv_fetch q = {
        .ns = f->r->ns,
        .chain = f->chain,
        .first = first,
        .n = n,
        .dst = dst,
        .traceparent = f->traceparent,
        .deadline_ms = deadline_ms,
        .on_block = on_block,
    };
    int rv = f->r->ops->fetch(f->r->ctx, &q, on_fetch_done, f, &f->call);
    if (rv < 0)
        settle(f, ERR_CANCELED);
    return rv;
}

void prefix_fetch_cancel(struct prefix_fetch *f, bool late) {
    if (!f->call)
        return;
    /* Slow is no failure (the measured rate will decide next time), silent is one. */
    settle(f, late && f->silent ? ERR_TIMEOUT : ERR_CANCELED);
    f->r->ops->cancel(f->r->ctx, f->call);
}

void prefix_fetch_release(struct prefix_fetch *f, uint32_t n_used) {
    if (!f->has_lease)
        return;
    f->has_lease = false;
    f->r->ops->release(f->r->ctx, &f->lease, n_used);
}
