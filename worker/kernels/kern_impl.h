/* kern_impl.h - private to worker/kernels: what an instruction set implements besides the row
 * operations of kernels.h, and the memory layouts that matmul.c, attn_paged.c and it agree on.
 *
 * Thread: every function may run on any thread. Nothing here allocates. */
#pragma once

#include "worker/kernels/attn_paged.h"
#include "worker/kernels/matmul.h"

#define KERN_LANES 16
/* Most rows of a row tile of any instruction set (kern_impl.tile_rows). */
#define KERN_TILE_ROWS 14
/* Most (row, head) pairs that share one walk over K and V: 12 x 2 accumulators and two loads. */
#define KERN_ATTN_ROWS 12
#define KERN_QBLOCK 32

/* x = 2^23 + 2^22 as float has its unit at 1: adding an integer below 2^22 in magnitude to these bits
 * and reading them as float gives 12582912 + that integer, without a conversion. */
#define KERN_MAGIC_BITS 0x4B400000
#define KERN_MAGIC 12582912.0f
/* Activation blocks with a largest magnitude below this are zero: keeps 127 / amax finite. */
#define KERN_AMAX_MIN 0x1p-100f

struct packed_mat {
    const struct quant_type *type;
    uint32_t n_out, n_in, n_panels;
    size_t panel_bytes;        /* multiple of 64 */
    size_t scale_off, min_off; /* in a panel */
    /* PACK_Q2_K and later (matmul.h): a panel is records of rec_blocks 32-blocks. */
    uint32_t rec_blocks;
    size_t rec_bytes, quant_bytes; /* of a record, a multiple of 64; of a block's quants */
    size_t d_off, sub_off;         /* in a record */
    uint8_t *data;                 /* n_panels panels, 64-byte aligned */
    bool owns_data;                /* from the heap; else a weight_mem's */
    size_t data_bytes;
    const uint8_t *raw; /* the file's bytes, or NULL (keep_raw) */
};

static inline const uint8_t *packed_panel(const struct packed_mat *m, uint32_t panel) {
    return m->data + (size_t)panel * m->panel_bytes;
}

/* Rows are cut into ceil(n / max) tiles as even as possible: the first `longer` have base + 1 rows. */
struct row_tiles {
    uint32_t n_rows, n_tiles, base, longer;
};

static inline struct row_tiles row_tiles_of(uint32_t n_rows, uint32_t max) {
    struct row_tiles t = {.n_rows = n_rows, .n_tiles = (n_rows + max - 1) / max};
    t.base = n_rows / t.n_tiles;
    t.longer = n_rows % t.n_tiles;
    return t;
}

static inline uint32_t row_tile_first(const struct row_tiles *t, uint32_t tile) {
    return tile * t->base + MIN(tile, t->longer);
}

static inline uint32_t row_tile_rows(const struct row_tiles *t, uint32_t tile) {
    return t->base + (tile < t->longer);
}

/* Whether a record has a d for each block, for the file's blocks are no larger: matmul.h. */
static inline bool packed_d_each_block(enum pack_form form) {
    return form == PACK_IQ4_NL || form == PACK_Q5_0 || form == PACK_Q5_1;
}

/* Whether a panel is one record. */
static inline bool packed_whole_record(enum pack_form form) {
    return packed_d_each_block(form) || form == PACK_MXFP4;
}

/* Bytes of a block's sub-scales (Q5_1: mins) in a record, behind its d (and -dmin). */
static inline size_t packed_sub_bytes(enum pack_form form) {
    if (form == PACK_IQ4_NL || form == PACK_Q5_0)
        return 0;
    return form == PACK_IQ4_XS || form == PACK_MXFP4 ? 16 : 32;
}

/* Quantised activations. Tile by tile; in a tile of R rows block by block of R * 48 bytes:
 *   int8 q[R][32], int32 corr[R], f32 da[R], f32 sa[R], int16 sums[R][2]
 * sums are of the halves of 16. corr = KERN_MAGIC_BITS - offset * sum for the weight type's offset: where
 * the integer accumulator starts, so that unsigned weights need no correction afterwards. For types with a
 * scale a half (quant_type.halves) corr is the first half's, and in sa's place, which they do not use, is
 * the second half's. */
#define ACT_ROW_BYTES 48

/* What quant_row() makes depends on the weight type in these two alone. */
struct act_class {
    int16_t offset; /* -1: float weights, nothing is quantised */
    bool halves;
};

static inline struct act_class act_class_of(const struct packed_mat *w) {
    if (w->type->block_items == 1)
        return (struct act_class){-1, false};
    return (struct act_class){w->type->offset, w->type->halves};
}

static inline bool act_class_equal(struct act_class a, struct act_class b) {
    return a.offset == b.offset && a.halves == b.halves;
}

/* Behind a block's q: the words of row r of R that quant_row() has the sums and the scale for. */
static inline void act_put_words(uint8_t *block, uint32_t rows, uint32_t r, const int32_t sum[2],
                                 float da, struct act_class c) {
    const int32_t both = sum[0] + sum[1];
    const int32_t corr[2] = {KERN_MAGIC_BITS - c.offset * (c.halves ? sum[0] : both),
                             KERN_MAGIC_BITS - c.offset * sum[1]};
    const int16_t pair[2] = {(int16_t)sum[0], (int16_t)sum[1]};
    const float sa = da * (float)both;
    uint8_t *tail = block + (size_t)rows * KERN_QBLOCK + r * 4;
    memcpy(tail, &corr[0], 4);
    memcpy(tail + rows * 4, &da, 4);
    memcpy(tail + rows * 8, c.halves ? (const void *)&corr[1] : (const void *)&sa, 4);
    memcpy(tail + rows * 12, pair, 4);
}

struct act_tile { /* view of one tile */
    const uint8_t *p;
    uint32_t rows, first_row;
};

static inline size_t act_block_bytes(uint32_t rows) {
    return (size_t)rows * ACT_ROW_BYTES;
}

/* Everything a product needs besides the range of panels. */
struct mat_args {
    const struct packed_mat *w;
    struct row_tiles tiles;
    const uint8_t *act; /* quantised: act tiles. float: tiles of [k][R] f32 */
    float *y;
    size_t y_stride;
    uint8_t *panel_scratch; /* this thread's, MAT_PANEL_BLOCK_BYTES a 32-block */
};

/* Expanded panel: per 32-block 8 x 64 bytes of u8 (or s8) quants, then 192 bytes of scales: f32 dw[16],
 * f32 -dw*KERN_MAGIC [16], f32 mw[16], or what the instruction set's file says. */
#define MAT_PANEL_BLOCK_BYTES 704

static inline struct act_tile act_tile_at(const struct mat_args *a, uint32_t tile) {
    uint32_t first = row_tile_first(&a->tiles, tile);
    return (struct act_tile){
        .p = a->act + (size_t)first * (a->w->n_in / KERN_QBLOCK) * ACT_ROW_BYTES,
        .rows = row_tile_rows(&a->tiles, tile),
        .first_row = first,
    };
}

static inline const float *act_f32_tile_at(const struct mat_args *a, uint32_t tile) {
    return (const float *)(const void *)a->act +
           (size_t)row_tile_first(&a->tiles, tile) * a->w->n_in;
}

/* Attention of up to KERN_ATTN_ROWS (row, head) pairs that read one KV head. */
struct attn_block {
    uint32_t rh; /* pairs in the layouts below: 1, 2, 3, 4, 6, 8 or 12; surplus pairs are zero */
    uint32_t head_dim, block_tokens;
    uint32_t d0,
        d1; /* attn_values: the part of head_dim to compute, multiples of 32 but for the end */
    enum kv_dtype k_dtype, v_dtype;
    float softcap;   /* of the scores, 0: none */
    const float *qt; /* [head_dim][rh], scaled */
    /* With scaled K instead: an act tile of rh rows, the scaled queries, of attn_act_class(). */
    const uint8_t *q_act;
    float *s;   /* scores, then probabilities: [position / 16][rh][16] */
    float *acc; /* [rh][head_dim] */
    /* Bytes from what a kernel reads to what will be read a few pages later; 0 near the end. A decode row
     * takes K and V from far caches, and the hardware prefetcher stops at 4 KiB. */
    intptr_t ahead;
};

/* Of the queries' tile for scaled K: the offset is what a kernel may add to a K value to make it unsigned. */
static inline struct act_class attn_act_class(enum kv_dtype t) {
    return (struct act_class){t == KV_Q4_0 ? 8 : 128, false};
}

/* Bytes of n values of one token's V. */
static inline size_t attn_v_bytes(enum kv_dtype t, size_t n) {
    return t == KV_F16 ? 2 * n : t == KV_F32 ? 4 * n : t == KV_Q8_0 ? n : n / 2;
}

struct kern_impl {
    uint32_t tile_rows; /* most rows of a row tile, at most KERN_TILE_ROWS */
    /* One row into row r of an act tile of R rows. */
    void (*quant_row)(uint8_t *tile, uint32_t rows, uint32_t r, const float *x, uint32_t n_blocks,
                      struct act_class c);
    /* Panels [begin, end) for all rows, float or quantised weights. */
    void (*mat_quant)(const struct mat_args *a, uint32_t begin, uint32_t end);
    void (*mat_float)(const struct mat_args *a, uint32_t begin, uint32_t end);
    uint32_t decode_panels; /* best number of panels of one call with one row */

    void (*f32_to_f16)(uint16_t *y, const float *x, size_t n);

    /* Scores of positions pos0 .. pos0+n-1, which are the first n tokens of one KV head's K; ks: its
     * scales, if it has any. Vector versions may also write the rest of the last 16. */
    void (*attn_scores)(const struct attn_block *b, const uint8_t *k, const uint16_t *ks,
                        uint32_t pos0, uint32_t n);
    /* Scores [first, last] of pair i become exp(capped score - max); 1 / sum. Others of the tiles of 16
     * that hold these may be overwritten. sink: -INFINITY for none, which adds exactly nothing. */
    float (*attn_softmax)(const struct attn_block *b, uint32_t i, uint32_t first, uint32_t last,
                          float sink);
    /* acc[i] += p[i][pos] * v[pos] ascending, for pairs first <= i < end (0 and rh: the fast way) and
     * the tokens t0 .. t1-1 of the head's V and its scales, if it has any, whose token 0 is position
     * pos0; d0 <= d < d1 only. */
    void (*attn_values)(const struct attn_block *b, const uint8_t *v, const uint16_t *vs,
                        uint32_t pos0, uint32_t t0, uint32_t t1, uint32_t first, uint32_t end);
};

/* matmul_blas.c: one product through OpenBLAS; in->row_pos and w->raw are set. */
void matmul_blas_run(struct matmul_blas *b, struct kern_team *team, const struct matmul_in *in,
                     const struct matmul_out *out);

/* matmul_ref.c: the products' definition. */
void ref_quant_row(uint8_t *tile, uint32_t rows, uint32_t r, const float *x, uint32_t n_blocks,
                   struct act_class c);
void ref_mat_quant(const struct mat_args *a, uint32_t begin, uint32_t end);
void ref_mat_float(const struct mat_args *a, uint32_t begin, uint32_t end);

/* exp, x / (1 + exp(-2t)) of gelu_tanh and c * tanh(x / c) as the contract defines them; kernels_ref.c. */
float kern_ref_exp(float x);
float kern_ref_gelu(float x);
float kern_ref_swiglu_oai(float gate, float up);
#define KERN_OAI_LIMIT 7.0f
#define KERN_OAI_ALPHA 1.702f
float kern_ref_softcap(float x, float c);

/* tanh's polynomial below KERN_TANH_SMALL, and gelu_tanh's constants. */
#define KERN_TANH_SMALL 0x1p-4f
#define KERN_TANH_3 (-1.0f / 3.0f)
#define KERN_TANH_5 (2.0f / 15.0f)
#define KERN_TANH_7 (-17.0f / 315.0f)
#define KERN_GELU_IN 0.044715f
#define KERN_GELU_OUT 0.79788456f

extern const struct kern_ops kern_ops_ref;
extern const struct kern_ops kern_ops_avx2;   /* defined where the build has KERN_HAVE_AVX2, */
extern const struct kern_ops kern_ops_avx512; /* KERN_HAVE_AVX512 */
