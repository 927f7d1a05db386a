/* forward.h - batched forward pass over several sequences' runs of new rows.
 *
 * Per layer: norm, q/k/v, RoPE, K and V rounded into the pages, then attention reads the pages (never
 * the unrounded rows of this step, so that a later reader of the page sees the same numbers), output
 * projection, feed-forward. Row r depends on that row's inputs and the weights alone: not on the batch,
 * chunk boundaries, slot, thread count or vector ISA.
 *
 * Thread:  one owner, the engine thread; it takes part in the kernel team's work during fwd_step().
 * Memory:  all scratch is sized in fwd_new(); fwd_step() never allocates.
 * Pages:   block_tok positions each, layout as model_kv_layout() says, 64-byte aligned. Unfilled rows
 *          of a page are never read. */
#pragma once

#include "worker/model/weights.h"

struct fwd;
struct kern_ops;
struct kern_team;
struct matmul_blas;

struct fwd_cfg {
    uint32_t max_rows;       /* rows of all sequences in one step */
    uint32_t max_seqs;       /* sequences in one step */
    uint32_t max_logit_rows; /* rows with logits in one step; 0: max_rows */
    uint32_t max_ctx;        /* positions of a sequence; 0: the model's n_ctx */
    uint32_t block_tok;      /* B: 1..1024 */
    struct kv_dtypes kv;
    const struct kern_ops *ops;
    struct kern_team *team;   /* borrowed; outlives the fwd; NULL: the caller alone */
    struct matmul_blas *blas; /* borrowed; NULL: exact numerics */
};

/* One sequence's run of consecutive new rows in this step. */
struct fwd_seq {
    const int32_t *tok;   /* [n_tok] */
    uint32_t n_tok, pos0; /* rows sit at positions pos0 .. pos0+n_tok-1 */
    uint8_t *const
        *pages; /* pages[p / B] holds position p; only pages that get new rows are written */
    /* Logits of the last n_logits rows (0: none, n_tok: all). When the outputs of the step's sequences
     * lie one behind the other in memory, the head's weights are read once for all of them. */
    uint32_t n_logits;
    float *logits; /* out [n_logits, n_vocab]; may be NULL when n_logits is 0 */
    float *hidden; /* out [n_tok, n_embd] after the last layer, before the final norm; or NULL */
    bool decode;   /* row of a generated token: numerics blas computes it by the exact kernels */
    /* Out, or NULL: 0, or ERR_NUMERIC: K or V of a row is not finite in the page's dtype, or logits have
     * a NaN or no finite maximum. The rows' pages must not be shared, the logits not be sampled. */
    int *err;
};

struct fwd_stats {
    uint64_t steps;   /* fwd_step() calls */
    uint64_t rows;    /* rows computed through all layers */
    uint64_t kv_rows; /* K/V rows written: rows times layers */
    uint64_t logit_rows;
};

int fwd_new(struct fwd **ret, const struct model *m, const struct fwd_cfg *cfg, struct errbuf *eb);
void fwd_free(struct fwd *f);          /* NULL is a no-op */
size_t fwd_bytes(const struct fwd *f); /* memory of its scratch */

/* ERR_TOOBIG: more rows, sequences, logit rows or a higher position than configured. ERR_INVALID: a token
 * outside the vocabulary. Nothing was written then. Sequences of one step must not share a written page. */
int fwd_step(struct fwd *f, const struct fwd_seq *seqs, uint32_t n_seqs);

struct fwd_stats fwd_stats(const struct fwd *f);
