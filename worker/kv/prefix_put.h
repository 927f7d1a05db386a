/* prefix_put.h - full pages to the cache service: a bounded queue of low priority.
 *
 * A job is a run of up to PUT_JOB_BLOCKS blocks of one chain, in order. Its pages are referenced by whoever
 * made the job until on_done. Jobs go out in order of arrival, at most PUT_IN_FLIGHT at once; checksums
 * are taken on the pool. When a block of a chain is not stored, later jobs of that chain are dropped:
 * blocks behind a gap could never be found by a lookup.
 *
 * Thread:  the loop thread, on_done too; a chain may be referenced from any thread.
 * Memory:  jobs are the caller's; nothing is allocated per job. */
#pragma once

#include <stdatomic.h>

#include "common/list.h"
#include "common/loop_work.h"
#include "worker/kv/kv_remote.h"

#define PUT_JOB_BLOCKS 8u
#define PUT_IN_FLIGHT 2u
#define PUT_DEADLINE_MS 10000u

/* Block ids of one sequence, shared by the sequence and its puts. */
struct kv_chain {
    atomic_uint refs;
    atomic_bool put_dropped; /* a block was not put: nothing behind it will be */
    uint32_t cap;
    struct block_id ids[]; /* [cap]; ids of blocks that are full are final */
};
struct kv_chain *kv_chain_new(uint32_t cap); /* refs 1, or NULL */
struct kv_chain *kv_chain_ref(struct kv_chain *c);
void kv_chain_unref(struct kv_chain *c); /* NULL is a no-op */

struct put_job {
    struct list link;
    struct kv_chain *chain;        /* one reference, the job's */
    uint32_t first, n;             /* chain->ids[first .. first+n), n <= PUT_JOB_BLOCKS */
    uint32_t page[PUT_JOB_BLOCKS]; /* the caller's: which pages to let go */
    const uint8_t *bytes[PUT_JOB_BLOCKS];
    char traceparent[56];
    /* private */
    struct prefix_put *q;
    struct loop_job work;
    struct kv_call *call;
    bool probing;
    uint64_t checksum[PUT_JOB_BLOCKS];
    const uint64_t *range_ptr[PUT_JOB_BLOCKS];
    uint64_t *ranges; /* [PUT_JOB_BLOCKS][n_ranges], from prefix_put_job_init() */
};
int prefix_put_job_init(struct put_job *j,
                        uint32_t n_ranges); /* once a job object; 0 or ERR_NOMEM */
void prefix_put_job_fini(struct put_job *j);

struct prefix_put_result {
    uint32_t n_stored, n_present, n_conflict, n_failed,
        n_dropped; /* blocks; they sum to the job's n */
};

struct prefix_put {
    struct kv_remote *r;
    struct loop_work *work;
    const uint32_t *range_sizes; /* [n_ranges], borrowed */
    uint32_t n_ranges;
    struct list queue;  /* waiting */
    struct list flying; /* checksums or call under way */
    uint32_t n_flying;
    bool closing;
    /* The job is the caller's again, its chain reference dropped. */
    void (*on_done)(struct put_job *j, const struct prefix_put_result *res);
    void *arg;
};

void prefix_put_init(struct prefix_put *q, struct kv_remote *r, struct loop_work *work,
                     const uint32_t *range_sizes, uint32_t n_ranges);
void prefix_put_add(struct prefix_put *q, struct put_job *take_job);
/* Nothing is started any more; waiting jobs end as dropped, flying ones as canceled. */
void prefix_put_close(struct prefix_put *q);
static inline bool prefix_put_idle(const struct prefix_put *q) {
    return q->n_flying == 0 && list_empty(&q->queue);
}
