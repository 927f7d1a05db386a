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
    QUANT_BF16 = 30,
};

/* How a packed panel stores the weights (matmul.h). */
enum pack_form {
    PACK_F32,  /* [k][16] f32 */
    PACK_F16,  /* [k][16] f16 */
    PACK_BF16, /* [k][16] bf16 */
    PACK_NIB,  /* two 4-bit weights a byte */
    PACK_U8,   /* one unsigned byte a weight */
};

struct quant_type {
    const char *name;                  /* as GGUF spells it, lower case */
    uint16_t dtype;                    /* enum quant_dtype */
    uint16_t block_items, block_bytes; /* weights and bytes of a block; 1 and 2 or 4 for floats */
    uint8_t form;                      /* enum pack_form */
    uint8_t offset; /* quantised: the weight is scale * (u - offset) (+ min), u unsigned */
    bool has_min;   /* quantised: a second f16 is added to every weight of the block */
    /* One row, n a multiple of block_items. The one definition of what the file's bytes mean:
     * scale * (u - offset) is rounded once, the min joins by fmaf. */
    void (*dequant)(float *dst, const void *src, size_t n);
};

/* NULL for a type we do not compute with. */
const struct quant_type *quant_type_find(uint32_t dtype);
/* All rows of the table; ret_n gets their number. For tests and help texts. */
const struct quant_type *quant_type_table(size_t *ret_n);

/* Bytes of one row of n weights. n must be a multiple of block_items. */
static inline size_t quant_row_bytes(const struct quant_type *t, size_t n) {
    return n / t->block_items * t->block_bytes;
}

/* Embedding: row number row of a [rows, n] matrix in the file's own format, as f32. */
static inline void quant_dequant_row(const struct quant_type *t, float *dst, const void *mat,
                                     size_t row, size_t n) {
    t->dequant(dst, (const uint8_t *)mat + row * quant_row_bytes(t, n), n);
}

/* First block of p's n weights (for floats: first weight) that holds a NaN or an infinity, as its float
 * or as its scale or min; the number of blocks when none does. */
size_t quant_first_bad(const struct quant_type *t, const void *p, size_t n);

/* IEEE half <-> single in plain C. To half: round to nearest, ties to even, overflow to infinity,
 * half denormals kept: bit for bit what F16C does. */
float quant_f16_to_f32(uint16_t h);
uint16_t quant_f32_to_f16(float f);
