/* attn_paged.h - causal attention over pages, and writing K and V into them.
 *
 * A page holds B consecutive positions of all layers (kv_layout.h). Query head h reads KV head
 * h / (n_head / n_kv_head). Pages that lie wholly before the window of the first row are not read, nor are
 * their pointers.
 * Two passes: all scores of a row and their exact maximum, then the values; a running maximum would
 * make the bits depend on where the tiles begin. Rows of a page beyond the last position read are
 * never used, whatever they hold. Any B >= 1 and head_dim give the same bits; vector kernels need
 * B and head_dim to be multiples of 16 (attn_is_vectorised()), others run at the reference's speed.
 *
 * Thread: attn_paged() runs on the team; one call at a time per scratch.
 * Memory: nothing allocates but attn_scratch_new(). */
#pragma once

#include "common/err.h"
#include "worker/kernels/kern_threads.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/kv_layout.h"

/* One layer's view of a page. */
struct attn_shape {
    uint32_t n_head, n_kv_head, head_dim; /* n_head a multiple of n_kv_head */
    uint32_t block_tokens;                /* B */
    enum kv_dtype k_dtype, v_dtype;       /* scaled ones: head_dim % 32 == 0, B % 16 == 0 */
    float scale;                          /* of the scores, usually 1 / sqrt(head_dim) */
    /* Bytes from the page's start to this layer's runs: struct kv_place. */
    size_t k_off, k_scale_off, v_off, v_scale_off;
    uint32_t window;    /* row i sees positions j with i - window < j <= i; 0: all j <= i */
    float softcap;      /* of the scores, after scale and before the maximum; 0: none */
    const float *sinks; /* [n_head] logits that join each row's softmax without a value, or NULL */
};

/* F19: false: the reference computes this shape, whatever the CPU has. */
static inline bool attn_is_vectorised(uint32_t head_dim, uint32_t block_tokens) {
    return head_dim % 16 == 0 && block_tokens % 16 == 0;
}

/* Consecutive new rows of one sequence. */
struct attn_seq {
    const float
        *q;     /* [n_rows, n_head, head_dim] after RoPE, not scaled; row stride q_stride floats */
    float *out; /* [n_rows, n_head, head_dim], row stride out_stride; must not overlap q */
    size_t q_stride, out_stride;
    const uint8_t *const *pages; /* pages[p / B] holds position p */
    uint32_t n_rows, pos0;       /* row i sits at position pos0 + i and sees none after it */
};

struct attn_scratch; /* opaque */
/* max_ctx: most positions a sequence may have; max_seqs: most attn_seq of a call. */
struct attn_scratch_cfg {
    uint32_t n_head, n_kv_head, head_dim, max_ctx, max_seqs;
    unsigned n_threads;
};
int attn_scratch_new(struct attn_scratch **ret, const struct attn_scratch_cfg *cfg);
void attn_scratch_free(struct attn_scratch *s); /* NULL is a no-op */
size_t attn_scratch_bytes(const struct attn_scratch *s);

/* K and V of the rows must be in the pages already (attn_store_kv()). */
void attn_paged(const struct kern_ops *ops, struct kern_team *team, struct attn_scratch *scratch,
                const struct attn_shape *shape, const struct attn_seq *seqs, size_t n_seqs);

/* Writes rows pos0 .. pos0+n_rows-1 of K (after RoPE) and V, [n_rows, n_kv_head, head_dim] f32 with
 * row strides in floats, into their pages, rounded to the page's dtypes. Rows of different positions
 * may be stored by different threads. False: a value is a NaN, infinite, or rounds to infinity, or a scale does; what
 * such a page holds must not outlive its sequence. */
struct attn_kv_rows {
    const float *k, *v;
    size_t k_stride, v_stride;
    uint8_t *const *pages;
    uint32_t n_rows, pos0;
};
bool attn_store_kv(const struct kern_ops *ops, const struct attn_shape *shape,
                   const struct attn_kv_rows *rows);
