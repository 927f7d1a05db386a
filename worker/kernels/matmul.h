/* matmul.h - exact products of activations with packed weights.
 *
 * y[r, o] = sum over k of x[r, k] * W[o, k]; order of the sums: kernels.h. Rows are independent, so
 * bits do not depend on how many rows share a call.
 *
 * Layout of a packed matrix: panels of 16 outputs (the last padded with zero weights), each 64-byte
 * aligned. A quantised panel is [k/32 blocks] of quants, then [blocks][16] f16 scales, then for types
 * with a min [blocks][16] f16 mins. Quants of a block: k-groups of 4 x 16 outputs = 64 bytes, byte
 * 4*o + i is output o, k = 4*group + i. PACK_U8 has 8 groups; PACK_NIB 4 x 64 bytes, group g in the
 * low and g + 4 in the high nibbles. A float panel is [k][16].
 *
 * K-quants, IQ4, MXFP4 and Q5 keep the bits that they have in the file: a panel is records of 256 columns
 * (IQ4_NL, MXFP4, Q5_0, Q5_1: of all), padded to 64 bytes, one stream for a reader that goes through it once. A
 * record is the quants of its blocks, then [16] f16 d, with mins [16] f16 -dmin (IQ4_NL, Q5_0, Q5_1:
 * [blocks][16] f16 d), then a block
 *   Q4_K Q5_K  u8 sc[16], u8 m[16]          Q2_K  u8 (sc | m << 4) [half][16]
 *   Q6_K Q3_K  i8 sc[half][16]              IQ4_XS  i8 sc[16]        MXFP4  u8 e[16]        Q5_1  f16 m[16]
 * Quants of a block: 2 to 6 vectors v of 64 bytes, in a byte bits of several groups w (bits numbered from 0):
 *   4 bits     v[g] = w[g] | w[g + 4] << 4
 *   2 bits     v[i] = w[4i] | w[4i + 1] << 2 | w[4i + 2] << 4 | w[4i + 3] << 6
 *   6 bits     v[3i + j] = w[4i + j], with bits 2j, 2j + 1 of w[4i + 3] on top
 *   3 bits     v[i] = w[2i] | w[2i + 1] << 3; on top of v[0] and v[1] bits 0, 1 of w[6] and w[7], of v[2] their
 *              bits 2
 *   5 bits     v[i] = w[i]; on top of v[0] bits 0-2 of w[5], of v[1] bit 3 of w[7] and bits 3, 4 of w[5], of
 *              v[2] and v[3] the same of w[6] with bit 4 of w[7], of v[4] bits 0-2 of w[7]
 *
 * Thread: packed_mat is read-only after packed_mat_new(). matmul() runs on the team; one call at a
 *         time per scratch.
 * Memory: matmul() does not allocate. */
#pragma once

#include "common/err.h"
#include "worker/kernels/kern_threads.h"
#include "worker/kernels/weight_mem.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/quant.h"

struct packed_mat; /* opaque */

struct packed_src {
    uint32_t dtype;       /* enum quant_dtype; others are ERR_UNSUPPORTED */
    uint32_t n_out, n_in; /* GGUF: ne[1], ne[0]; n_in % 32 == 0 for quantised types */
    const void *bytes; /* n_out rows as in the file; borrowed for the call only unless keep_raw */
    size_t n_bytes;    /* must equal n_out rows exactly */
    bool keep_raw;     /* --numerics blas: bytes must outlive the packed_mat */
    struct weight_mem *mem; /* where the packed weights go, outlives them; NULL: the heap */
};

/* ERR_INVALID for shapes, ERR_UNSUPPORTED for types, ERR_CORRUPT for a weight or scale that is a NaN or
 * an infinity. */
int packed_mat_new(struct packed_mat **ret, const struct packed_src *src, struct errbuf *eb);
void packed_mat_free(struct packed_mat *m); /* NULL is a no-op */
uint32_t packed_mat_n_out(const struct packed_mat *m);
uint32_t packed_mat_n_in(const struct packed_mat *m);
size_t packed_mat_bytes(const struct packed_mat *m); /* memory it takes */
/* Memory that such a matrix would take. */
size_t packed_mat_size(const struct quant_type *t, uint32_t n_out, uint32_t n_in);

struct matmul_scratch; /* opaque: quantised activations, one expanded panel a thread */
int matmul_scratch_new(struct matmul_scratch **ret, uint32_t max_rows, uint32_t max_n_in,
                       unsigned n_threads);
void matmul_scratch_free(struct matmul_scratch *s); /* NULL is a no-op */
size_t matmul_scratch_bytes(const struct matmul_scratch *s);

struct matmul_blas; /* matmul_blas.h */

/* What every call of one engine shares. */
struct matmul_env {
    const struct kern_ops *ops;
    struct kern_team *team; /* NULL: the caller alone */
    struct matmul_scratch *scratch;
    struct matmul_blas *blas; /* NULL: exact numerics */
};

struct matmul_in {
    const float *x;  /* [n_rows, k] */
    size_t x_stride; /* floats from row to row, >= k */
    uint32_t n_rows; /* 1 .. max_rows */
    /* --numerics blas only: [n_rows] absolute positions; the row's bits depend on position mod 32.
     * NULL: exact kernels (decode steps of either mode, logits). Ignored in exact mode. */
    const uint32_t *row_pos;
};

struct matmul_out {
    const struct packed_mat *w; /* all outs of a call share n_in */
    float *y;                   /* [n_rows, w.n_out], must not overlap x */
    size_t y_stride;            /* floats from row to row */
};

/* Several products of one input (Q, K, V; gate, up) in one pass: the input is quantised once and the
 * team is woken once. */
void matmul(const struct matmul_env *env, const struct matmul_in *in, const struct matmul_out *outs,
            size_t n_outs);
