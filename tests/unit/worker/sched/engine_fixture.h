/* engine_fixture.h - an engine over a fake model and a fake cache service, on a real loop.
 *
 * The fake model keeps a running hash: row p's value is a hash of row p-1's value, read from the page,
 * and token p. Its logits follow from the row's value, so a wrong, stale or half-written page anywhere
 * in the prefix gives other tokens.
 *
 * The fake service keeps blocks in memory and can be slow, silent, broken or full. */
#pragma once

#include <uv.h>

#include <stdatomic.h>

#include "common/block_id.h"
#include "common/list.h"
#include "common/loop_work.h"
#include "worker/kv/kv_remote.h"
#include "worker/sched/engine.h"
#include "worker/worker_metrics.h"

#define FX_B 4u
#define FX_VOCAB 259u
#define FX_EOG 256
#define FX_CTRL 257
#define FX_RANGES 2u
#define FX_PAGE (FX_RANGES * FX_B * 8u)

/* Time that only the fake model's steps move. */
struct fx_clock {
    struct clock clk;
    atomic_uint_least64_t ns;
};

struct fake_model {
    atomic_uint steps, rows, max_rows, max_seqs;
    atomic_int fail_rv;   /* returned by the next steps */
    atomic_int poison;    /* rows of this token are not finite; 0: none */
    atomic_uint step_us;  /* a step takes so long */
    atomic_bool is_paced; /* steps begin by permit only; see fx_hold() */
    atomic_int permits;
    atomic_bool is_held;        /* one waits for a permit */
    atomic_uint max_mixed_rows; /* of a step in which some sequence decodes */
    /* With fx_clock: what a step and each of its rows add to the time. */
    uint64_t ns_a_step, ns_a_row;
    struct fx_clock *clock;
    uint32_t eog_every; /* 0: never likely */
};

#define REMOTE_MAX 512
struct fake_remote {
    uv_loop_t *loop;
    struct {
        struct block_id id;
        uint8_t bytes[FX_PAGE];
        bool there;
    } block[REMOTE_MAX];
    uint32_t n_blocks;
    struct list calls;
    /* knobs */
    bool down;            /* not reachable */
    int lookup_rv;        /* what lookups end with */
    bool lookup_silent;   /* no answer ever */
    uint32_t fetch_limit; /* blocks sent before silence; UINT32_MAX: all */
    uint32_t corrupt_at;  /* the block of a fetch that arrives broken; UINT32_MAX: none */
    uint32_t block_delay_ms;
    bool reverse;   /* sends blocks last first */
    int put_status; /* of each block, 0: stored */
    bool put_silent;
    /* seen */
    uint32_t n_lookups, n_fetches, n_blocks_sent, n_puts, n_put_blocks, n_touches, n_touched_blocks;
    uint32_t n_leases_open, n_cancels;
    uint32_t lookup_flags; /* of the last one */
};

struct engine_fx {
    uv_loop_t loop;
    struct loop_work *work;
    struct tokenizer *tok;
    struct fake_model model;
    struct fake_remote fake;
    struct kv_remote remote;
    struct worker_metrics met;
    struct fx_clock clock; /* not used unless engine_fx_use_clock() */
    struct engine_cfg cfg;
    struct engine *engine;
    uint32_t n_closed;
    unsigned steps_at_open;
};

/* Defaults in f->cfg; change them, then engine_fx_open(). */
void engine_fx_init(struct engine_fx *f);
void engine_fx_use_clock(struct engine_fx *f, uint64_t ns_a_step, uint64_t ns_a_row);
void engine_fx_open(struct engine_fx *f);
void engine_fx_close_engine(struct engine_fx *f); /* and wait */
void engine_fx_fini(struct engine_fx *f);

struct fx_req {
    struct gen_request *r;
    struct tok_part part;
    uint32_t n_tokens, n_done;
    char text[1024];
    size_t len;
    enum finish_reason why;
    uint32_t cancel_after; /* tokens; 0: never */
    struct engine_fx *f;
    /* copied in on_done */
    struct gen_usage usage;
    int err;
    int32_t ids[128];
};
/* A request for text with n tokens to generate, greedy. */
void fx_req_init(struct fx_req *q, struct engine_fx *f, const char *text, uint32_t max_tokens);
int fx_submit(struct fx_req *q);
void fx_wait(struct engine_fx *f, struct fx_req *q, uint32_t n); /* until all of q[0..n) are done */
void fx_run(struct engine_fx *f, struct fx_req *q);              /* submit and wait */
void fx_wait_puts(struct engine_fx *f);                          /* until no put is pending */
void fx_req_fini(struct fx_req *q);

/* From now on no step begins but those let through; fx_go() ends that. */
void fx_hold(struct engine_fx *f);
void fx_steps(struct engine_fx *f, int n); /* lets n through, waits until the next one stands */
void fx_go(struct engine_fx *f);
/* All that was submitted has been tokenized and lies in the engine's mail. */
void fx_fence(struct engine_fx *f);

/* What the fake model must generate for text: computed without an engine. */
void fx_expect(const char *text, uint32_t n, int32_t *ids);
