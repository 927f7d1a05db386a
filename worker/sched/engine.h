/* engine.h - ENGINE: the one thread that owns model and pages, seen from the loop.
 *
 * engine_submit() hands a request over; on_tokens and on_done come back on the loop thread. Admission is
 * by pages: a request starts only when pages for its prompt and all of max_tokens are reserved, so a
 * running sequence never waits for memory and no set of requests can block one another. A request without
 * max_tokens reserves up to the context limit. While the first in line waits for pages, ENGINE_OVERTAKE_MAX
 * short ones (a quarter of its pages at most) may pass it, no more.
 *
 * Thread:  all functions are the loop thread's. The engine thread lives from engine_open() until the
 *          close callback.
 * Memory:  pages, logits and scratch are allocated in engine_open(); a decode step allocates nothing. */
#pragma once

#include "common/clock.h"
#include "common/err.h"
#include "worker/kv/prefix_policy.h"
#include "worker/model/forward.h"
#include "worker/sched/gen_request.h"

#define ENGINE_OVERTAKE_MAX 16u

struct uv_loop_s;
struct engine;
struct kv_remote;
struct loop_work;
struct worker_metrics;

/* The model as the engine sees it. step: worker/model's fwd_step(), or a fake in tests. */
struct engine_fwd {
    int (*step)(void *ctx, const struct fwd_seq *seqs, uint32_t n_seqs);
    void *ctx;
    uint32_t n_vocab;
    size_t page_bytes;           /* one KV block: n_ranges ranges, one a layer */
    const uint32_t *range_sizes; /* [n_ranges] */
    uint32_t n_ranges;
    bool decode_private; /* numerics blas: pages with a decoded row are neither indexed nor put */
};

struct engine_cfg {
    struct uv_loop_s *loop;
    struct loop_work *work;      /* pool for tokenizing, ids and checksums; outlives the engine */
    struct loop_work *work_long; /* the same for texts that take a while; NULL: work */
    const struct clock *clk;
    const struct tokenizer *tok;
    struct engine_fwd fwd;
    uint8_t namespace_digest[DIGEST_BYTES];
    uint32_t block_tok; /* B */
    uint32_t max_ctx;   /* prompt + generated tokens of one request */
    uint32_t max_seqs;  /* sequences in one step */
    uint32_t chunk_tok; /* rows in one step; at least max_seqs */
    uint32_t
        chunk_ms; /* what prompts' rows in one step may take beside decodes, as measured; 0: any time */
    uint32_t max_logit_rows; /* rows with logits in one step; at least max_seqs */
    uint32_t max_queue;      /* accepted requests beyond max_seqs; more are ERR_BUSY */
    uint32_t n_pages;
    enum fetch_mode fetch;
    struct kv_remote *remote;  /* NULL: no cache service; outlives the engine */
    uint32_t put_queue_blocks; /* pages that may wait for a put; 0: nothing is put */
    /* Loop thread, once: the first forward pass is through (weights are in memory, rates measured), or at
     * once where there is none. May be NULL. */
    void (*on_warm)(void *arg);
    void *on_warm_arg;
    struct worker_metrics *met; /* NULL: not counted */
};

int engine_open(struct engine **ret, const struct engine_cfg *cfg, struct errbuf *eb);
/* Ends every request (FINISH_CANCELED), waits for fetches and puts to let go of the pages, joins the
 * thread, frees e, then calls cb. */
void engine_close(struct engine *e, void (*cb)(void *data), void *data);

/* 0, ERR_BUSY (queue full), ERR_CANCELED (draining), ERR_INVALID, ERR_NOMEM. Only after 0 will on_done
 * be called, and never from inside this call. */
int engine_submit(struct engine *e, struct gen_request *r);
/* on_done(FINISH_CANCELED) follows within one chunk, unless it was already on its way with another
 * reason. Harmless to repeat. */
void engine_cancel(struct engine *e, struct gen_request *r);

/* Takes no request any more; cb once, when all accepted ones are done and the put queue is empty or
 * put_wait_ms have passed since. */
void engine_drain(struct engine *e, uint64_t put_wait_ms, void (*cb)(void *data), void *data);

/* A cache node came (back) up. It is tried at once whatever the breaker thought, and for a while requests
 * that find everything in own pages look the chain up all the same, without waiting for the answer: what
 * the node has lost is put again. */
void engine_cache_is_back(struct engine *e);

/* When the engine thread last went through its loop: at least every 250 ms and every forward pass. */
uint64_t engine_heartbeat_ns(const struct engine *e);
/* Has the engine thread been silent for limit_ms and for ten steps of usual length? Not before it is warm:
 * how long a step takes is not known then. */
bool engine_is_hung(const struct engine *e, uint64_t limit_ms);
uint32_t engine_n_open(const struct engine *e); /* accepted and not done */
