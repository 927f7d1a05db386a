/* prefix_touch.h - keeps hot what requests found in this worker's own pages: batched Touch.
 *
 * Without it, a prefix that every worker owns would look unused to the service and be evicted there, and
 * the next new worker would compute it.
 *
 * Thread: the loop thread. Memory: fixed; what does not fit a batch is left out, a touch is a hint. */
#pragma once

#include "worker/kv/prefix_put.h"

#define TOUCH_BATCH 64u
#define TOUCH_EVERY_MS                                                                             \
    100u /* how often the owner calls prefix_touch_flush() while there is something */

struct prefix_touch {
    struct kv_remote *r;
    struct kv_chain *chain[TOUCH_BATCH]; /* referenced; [n] waiting */
    uint32_t len[TOUCH_BATCH];
    uint32_t n;
    struct kv_chain *sent[TOUCH_BATCH]; /* of the call under way */
    const struct block_id *sent_ids[TOUCH_BATCH];
    uint32_t sent_len[TOUCH_BATCH], n_sent;
    struct kv_call *call;
    bool probing;
    void (*on_idle)(struct prefix_touch *t); /* a call ended; may be NULL */
};

void prefix_touch_init(struct prefix_touch *t, struct kv_remote *r);
void prefix_touch_add(struct prefix_touch *t, struct kv_chain *c, uint32_t n_blocks); /* refs c */
void prefix_touch_flush(struct prefix_touch *t);
/* Forgets what waits, cancels what flies; on_idle follows if something flew. */
void prefix_touch_close(struct prefix_touch *t);
