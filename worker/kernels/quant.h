/* quant.h - the weight types of a GGUF file that we compute with, one table row each.
 *
 * Thread: any; everything is constant.
 * Units:  a row of a matrix is one output neuron; its weights lie contiguous in blocks. */
#pragma once

#include "common/compiler.h"

/* GGUF's numbers. Other ids exist in files; quant_type_find() does not know them. */
enum quant_dtype {
    QUANT_F32 = 0,
    QUANT_F16 = 1,
    QUANT_Q4_0 = 2,
    QUANT_Q4_1 = 3,
    QUANT_Q5_0 = 6,
    QUANT_Q5_1 = 7,
    QUANT_Q8_0 = 8,
    QUANT_Q2_K = 10,
    QUANT_Q3_K = 11,
    QUANT_Q4_K = 12,
    QUANT_Q5_K = 13,
    QUANT_Q6_K = 14,
    QUANT_IQ4_NL = 20,
    QUANT_IQ4_XS = 23,
    QUANT_BF16 = 30,
    QUANT_MXFP4 = 39,
};

/* How a packed panel stores the weights (matmul.h). */
enum pack_form {
    PACK_F32,  /* [k][16] f32 */
    PACK_F16,  /* [k][16] f16 */
    PACK_BF16, /* [k][16] bf16 */
    PACK_NIB,  /* two 4-bit weights a byte */
    PACK_U8,   /* one unsigned byte a weight */
    /* Records: the file's bits a weight, and its scales as they are. PACK_Q2_K is the first of them. */
    PACK_Q2_K,
    PACK_Q3_K,
    PACK_Q4_K,
    PACK_Q5_K,
    PACK_Q6_K,
    PACK_IQ4_NL,
    PACK_IQ4_XS,
    PACK_MXFP4,
    PACK_Q5_0,
    PACK_Q5_1,
};

/* Largest exponent byte of MXFP4: 2^(e - 128) times 12582912 is still finite (kernels.h). */
#define QUANT_MXFP4_MAX_E 232

/* 32 columns of a row, as the contract's K-quants see them: weight k is
 * d * sc[k / 16] * (v(u[k]) - offset) - dmin * m[k / 16], v the type's values or u itself. */
struct quant_unit {
    uint8_t u[32];
    int8_t sc[2]; /* both the same where a unit has one scale; 1 without */
    uint8_t m[2];
    float d, dmin;
};

struct quant_type {
    const char *name;                  /* as GGUF spells it, lower case */
    uint16_t dtype;                    /* enum quant_dtype */
    uint16_t block_items, block_bytes; /* weights and bytes of a block; 1 and 2 or 4 for floats */
    uint8_t form;                      /* enum pack_form */
    uint8_t offset; /* quantised: the weight is scale * (u - offset) (+ min), u unsigned */
    bool has_min;   /* quantised: a second f16, of a min for every weight */
    bool halves;    /* each half of a unit of 32 columns has a scale (and a min) of its own */
    uint8_t d_at; /* quantised: bytes of a block before its f16 d, behind which a min's f16 lies */
    /* [16] where u is an index; an u of offset is a weight of zero. Else NULL. */
    const uint8_t *values;
    /* PACK_Q2_K and later: 32-column unit number i of a block. */
    void (*unit)(struct quant_unit *ret, const uint8_t *block, uint32_t i);
    /* One row, n a multiple of block_items. The one definition of what the file's bytes mean:
     * scale * (u - offset) is rounded once, the min joins by fmaf. NULL where unit() says it. */
    void (*dequant)(float *dst, const void *src, size_t n);
};

/* A single and its IEEE bits. */
static inline float bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint32_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* NULL for a type we do not compute with. */
const struct quant_type *quant_type_find(uint32_t dtype);
const struct quant_type *quant_type_named(const char *name);
/* All rows of the table; ret_n gets their number. For tests and help texts. */
const struct quant_type *quant_type_table(size_t *ret_n);

/* Bytes of one row of n weights. n must be a multiple of block_items. */
static inline size_t quant_row_bytes(const struct quant_type *t, size_t n) {
    return n / t->block_items * t->block_bytes;
}

/* n weights, a multiple of block_items, as f32. */
void quant_dequant(const struct quant_type *t, float *dst, const void *src, size_t n);

/* Embedding: row number row of a [rows, n] matrix in the file's own format, as f32. */
static inline void quant_dequant_row(const struct quant_type *t, float *dst, const void *mat,
                                     size_t row, size_t n) {
    quant_dequant(t, dst, (const uint8_t *)mat + row * quant_row_bytes(t, n), n);
}

/* First block of p's n weights (for floats: first weight) that holds a NaN or an infinity, as its float
 * or as its scale or min (MXFP4: an exponent above QUANT_MXFP4_MAX_E); the number of blocks when none does. */
size_t quant_first_bad(const struct quant_type *t, const void *p, size_t n);

/* What is wrong with it, behind "weight 3" or "the scale of block 3". */
const char *quant_bad_text(const struct quant_type *t);

/* IEEE half <-> single in plain C. To half: round to nearest, ties to even, overflow to infinity,
 * half denormals kept: bit for bit what F16C does. */
float quant_f16_to_f32(uint16_t h);
uint16_t quant_f32_to_f16(float f);
