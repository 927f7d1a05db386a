/* forward_priv.h - private to forward*.c: a step's buffers, and what both files do with rows. */
#pragma once

#include <stdatomic.h>

#include "worker/kernels/kernels.h"
#include "worker/kernels/matmul.h"
#include "worker/model/forward.h"

struct fwd_experts;

/* A sequence's rows inside the step's buffers. */
struct fwd_run {
    const struct fwd_seq *seq;
    uint32_t row0, n; /* rows [row0, row0 + n) of every buffer */
    uint32_t pos0;    /* of the first of them */
};

struct fwd {
    const struct model *m;
    struct fwd_cfg cfg;
    struct matmul_env env;
    struct attn_scratch *attn_scratch;
    struct attn_shape shape; /* of the layer in work */
    struct kv_layout layout;
    struct fwd_stats stats;

    /* One step. In numerics blas the rows that the exact kernels compute (decode) stand behind all
     * others, so that both kinds are one contiguous range. */
    struct fwd_run *runs;       /* [max_seqs] */
    struct attn_seq *attn;      /* [max_seqs] */
    const struct fwd_seq *seqs; /* of the caller */
    atomic_bool *failed; /* [max_seqs] a number of seqs[i] is not finite; any thread of the team */
    uint32_t n_runs, n_rows;
    uint32_t n_blas_rows; /* first rows, those for OpenBLAS; 0 in numerics exact */
    uint32_t *row_run;    /* [max_rows] index of the row's run */
    uint32_t *row_pos;    /* [max_rows] */
    uint32_t n_q, n_kv;   /* floats of a row of q, of k */

    float *x;                    /* [max_rows, n_embd] residual stream */
    float *xn;                   /* [max_rows, n_embd] normed, input of the products */
    float *proj;                 /* [max_rows, n_embd] output of wo and w_down, to be added to x */
    float *q;                    /* [max_rows, n_head, d_head] */
    float *k, *v;                /* [max_rows, n_head_kv, d_head] */
    float *att;                  /* [max_rows, n_head, d_head] */
    float *gate, *up;            /* [max_rows, n_ff] */
    float *cs;                   /* [max_rows, n_rope, n_rot] cos and sin of the row's position */
    struct fwd_experts *experts; /* NULL: the model has none */
    float *head; /* [max_logit_rows, n_embd] normed rows of which logits are wanted */
};

/* Rows of a product: the first n_blas through OpenBLAS, pos their positions. */
struct fwd_rows {
    uint32_t n, n_blas;
    const uint32_t *pos; /* [n_blas] */
};

static inline float *fwd_row(float *buf, size_t row, size_t cols) {
    return buf + row * cols;
}

float *fwd_floats(size_t rows, size_t cols); /* 64-byte aligned; NULL */
void fwd_set_failed(struct fwd *f, const struct fwd_run *r);
void fwd_for_rows(struct fwd *f, uint32_t n, kern_fn fn, void *arg);
/* One input buffer into up to three outputs. */
void fwd_product(struct fwd *f, const struct fwd_rows *rows, const float *x, size_t n_in,
                 struct matmul_out *outs, size_t n_outs);
/* gate = act(gate, up) of the first n rows; a bias may be NULL. */
void fwd_activate(struct fwd *f, const float *gate_bias, const float *up_bias, uint32_t n);

int fwd_experts_new(struct fwd *f);           /* ERR_NOMEM; nothing for a model without experts */
void fwd_experts_free(struct fwd_experts *e); /* NULL is a no-op */
size_t fwd_experts_bytes(const struct fwd_experts *e); /* 0 of NULL */
/* The step's rows of from into proj. */
void fwd_experts_run(struct fwd *f, const struct model_layer *l, const float *from);
