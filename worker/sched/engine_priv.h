/* engine_priv.h - the engine's two halves: engine_step.c (engine thread) and engine_thread.c (loop thread,
 * mailbox, libuv).
 *
 * Between them lie two mailboxes under one mutex, which is held only to move lists and flags. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "worker/sched/batcher.h"
#include "worker/sched/engine.h"
#include "worker/sched/gen_seq.h"
#include "worker/worker_metrics.h"

struct engine_loop; /* libuv's part, in engine_thread.c */

struct engine {
    struct engine_cfg cfg; /* read-only */
    struct engine_loop *loop;
    atomic_uint_least64_t heartbeat_ns, step_ns; /* step_ns: moving average of a step's time */
    atomic_bool is_warm;

    pthread_mutex_t lock;
    pthread_cond_t wake; /* the engine thread waits on it */
    /* under lock */
    struct list in_seqs, in_puts;   /* to the engine: gen_seq.in.link, put_job.link */
    struct list out_seqs, out_puts; /* to the loop: gen_seq.out.link, put_job.link */
    struct prefix_rates fetch_news; /* of fetches, moved into rates */
    uint64_t audit_until_ns;        /* engine_cache_is_back() */
    bool stop;

    /* engine thread */
    struct page_pool *pool;
    struct page_index *index;
    struct sampler *sampler;
    struct digest *digest;
    struct prefix_rates rates;
    struct list waiting; /* for pages; in order of arrival */
    struct list
        active; /* admitted, in order of arrival; DONE ones whose pages are still out, too */
    struct list released;  /* over; posted at the end of the round */
    uint32_t n_admitted;   /* active and not DONE */
    uint32_t n_running;    /* PREFILL and DECODE */
    uint32_t n_waiting;    /* in waiting */
    bool pages_short;      /* the first in line does not get its pages */
    double decode_step_ns; /* moving average of steps without prompts; 0: unknown */
    uint32_t rr;
    struct batch_limits limits;
    float *logits;             /* [max_logit_rows, n_vocab] */
    struct gen_seq **runnable; /* [max_seqs] */
    struct batch_cand *cand;   /* [max_seqs] */
    struct fwd_seq *fseq;      /* [max_seqs] */
    struct gen_seq **in_step;  /* [max_seqs] the sequences of fseq */
    struct put_job *put_jobs;  /* [n_put_jobs] */
    struct list put_free;
    uint32_t n_put_jobs, n_put_blocks; /* blocks in jobs that are out */
    uint64_t audit_ns;                 /* a copy of audit_until_ns */
    bool loop_news;                    /* something was put into out_*: poke the loop */
};

/* --- engine_thread.c, called by the engine thread --- */
/* Wakes the loop if something was posted since the last poke. */
void engine_poke_loop(struct engine *e);
/* Queues s for the loop with what fill() sets in s->out, under the lock. */
void engine_post(struct engine *e, struct gen_seq *s, void (*fill)(struct gen_seq *s, void *arg),
                 void *arg);

/* --- engine_step.c --- */
int engine_core_init(struct engine *e,
                     struct errbuf *eb); /* memory; loop thread, before the thread starts */
void engine_core_fini(struct engine *e);
void engine_run(struct engine *e); /* the thread's body */

/* --- engine_puts.c: engine thread's side of puts --- */
int engine_puts_init(struct engine *e);
void engine_puts_fini(struct engine *e);
/* Queues blocks [s->n_put, n_full) of s. */
void engine_puts_add(struct engine *e, struct gen_seq *s, uint32_t n_full);
/* A job came back: its pages and itself are free. */
void engine_puts_back(struct engine *e, struct put_job *j);
