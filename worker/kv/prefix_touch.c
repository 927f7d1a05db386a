/* prefix_touch.c - one batch waiting, one under way. */
#include "worker/kv/prefix_touch.h"

#define TOUCH_DEADLINE_MS 2000u

void prefix_touch_init(struct prefix_touch *t, struct kv_remote *r) {
    *t = (struct prefix_touch){.r = r};
}

static void drop(struct kv_chain **chains, uint32_t *n) {
    while (*n > 0)
        kv_chain_unref(chains[--*n]);
}

void prefix_touch_add(struct prefix_touch *t, struct kv_chain *c, uint32_t n_blocks) {
    if (!n_blocks)
        return;
    if (t->n == TOUCH_BATCH)
        prefix_touch_flush(t);
    if (t->n == TOUCH_BATCH)
        return;
    t->len[t->n] = n_blocks;
    t->chain[t->n++] = kv_chain_ref(c);
}

static void settle(struct prefix_touch *t, int rv) {
    if (t->probing)
        kv_remote_result(t->r, rv);
    t->probing = false;
}

static void on_done(void *arg, int rv) {
    struct prefix_touch *t = arg;
    t->call = NULL;
    settle(t, rv);
    drop(t->sent, &t->n_sent);
    if (t->on_idle)
        t->on_idle(t);
}

void prefix_touch_flush(struct prefix_touch *t) {
    if (t->call || !t->n)
        return;
    if (!kv_remote_allow(t->r)) {
        drop(t->chain, &t->n);
        return;
    }
    t->probing = true;
    for (uint32_t i = 0; i < t->n; i++) {
        t->sent[i] = t->chain[i];
        t->sent_ids[i] = t->chain[i]->ids;
        t->sent_len[i] = t->len[i];
    }
    t->n_sent = t->n;
    t->n = 0;
    const struct kv_touch q = {
        .ns = t->r->ns,
        .chains = t->sent_ids,
        .lens = t->sent_len,
        .n_chains = t->n_sent,
        .deadline_ms = TOUCH_DEADLINE_MS,
    };
    if (t->r->ops->touch(t->r->ctx, &q, on_done, t, &t->call) < 0) {
        t->call = NULL;
        settle(t, ERR_CANCELED);
        drop(t->sent, &t->n_sent);
    }
}

void prefix_touch_close(struct prefix_touch *t) {
    drop(t->chain, &t->n);
    if (t->call) {
        settle(t, ERR_CANCELED);
        t->r->ops->cancel(t->r->ctx, t->call);
    }
}
