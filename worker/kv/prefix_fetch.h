/* prefix_fetch.h - one request's way to the cache service: look up the whole chain, fetch what is decided.
 *
 *   lookup_start -> on_lookup -> fetch_start -> on_block* -> on_end
 *        \-------------------------\---- cancel ---------------^
 *
 * Blocks are received straight into the pages given; a block is reported after its checksum was
 * verified. Late, missing or broken: the report says so and the caller computes.
 *
 * Thread: the loop thread, callbacks too. Never calls back from inside a call.
 * Memory: embedded in the caller's object, which lives until on_end. Chain and pages are borrowed. */
#pragma once

#include "worker/kv/kv_remote.h"

struct prefix_fetch {
    struct kv_remote *r;
    struct kv_call *call; /* NULL: none under way */
    struct kv_lease lease;
    bool has_lease, probing; /* probing: an answer to kv_remote_allow() is owed */
    bool silent;             /* no block of this fetch has come */
    uint32_t n_used;
    const struct block_id *chain;
    uint32_t n_chain;
    const char *traceparent;

    /* n_have: as asked. n_prefix >= n_have: blocks from 0 that are owned or resident. first_absent: first
     * block of all that the service lacks, owned here or not (n when it lacks none). rv != 0: a miss. */
    void (*on_lookup)(struct prefix_fetch *f, int rv, uint32_t n_prefix, uint32_t first_absent);
    void (*on_block)(struct prefix_fetch *f, uint32_t i, int rv); /* i counts from `first` */
    /* All pages may be used otherwise from now on. */
    void (*on_end)(struct prefix_fetch *f, int rv);
};

/* 0: on_lookup follows. < 0: nothing was started (no node up, breaker open, at a limit). */
int prefix_lookup_start(struct prefix_fetch *f, struct kv_remote *r, const struct block_id *chain,
                        uint32_t n, uint32_t n_have, uint32_t deadline_ms);
/* After on_lookup. 0: on_end follows. */
int prefix_fetch_start(struct prefix_fetch *f, uint32_t first, uint32_t n, uint8_t *const *dst,
                       uint32_t deadline_ms);
/* Hurries on_lookup or on_end (ERR_CANCELED). late: the service is to blame, not the client. */
void prefix_fetch_cancel(struct prefix_fetch *f, bool late);
/* Gives the lease back; n_used blocks of it were of use. After on_lookup, with nothing under way. */
void prefix_fetch_release(struct prefix_fetch *f, uint32_t n_used);
