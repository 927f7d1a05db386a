/* matmul_avx512.h - private: products of the AVX-512 VNNI table. */
#pragma once

#include <immintrin.h>

#include "worker/kernels/kern_impl.h"
#include "worker/kernels/kern_rows.h"

void avx512_quant_row(uint8_t *tile, uint32_t rows, uint32_t r, const float *x, uint32_t n_blocks,
                      struct act_class c);
void avx512_mat_quant(const struct mat_args *a, uint32_t begin, uint32_t end);
void avx512_mat_float(const struct mat_args *a, uint32_t begin, uint32_t end);

/* acc += t * (the float at p, in all lanes); acc += dot of 4 (u8 of w, s8 at p in all lanes). Inline
 * assembly because gcc 12 otherwise loads the broadcast into a register of its own. */
#define FMA_BCAST(acc, t, p)                                                                       \
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(t), "m"(*(const float *)(p)))
#define DOT_BCAST(acc, w, p)                                                                       \
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t *)(p)))

/* One block of row i of R: the integer sum of a plain type starts (T_INIT), adds a group's products (T_DOT)
 * and becomes a term of the float sum. Names of the caller: act, w, g, dw, minus, mw, R. */
#define T_INIT(i)                                                                                  \
    __m512i d##i = _mm512_set1_epi32(*(const int32_t *)(const void *)(act + R * 32 + (i)*4));
#define T_DOT(i) DOT_BCAST(d##i, w, act + (i)*32 + g * 4);
#define T_SCALE(i)                                                                                 \
    __m512 t##i = _mm512_fmadd_ps(_mm512_castsi512_ps(d##i), dw, minus);                           \
    FMA_BCAST(acc##i, t##i, act + R * 36 + (i)*4);
#define T_MIN(i) FMA_BCAST(acc##i, mw, act + R * 40 + (i)*4);

ALWAYS_INLINE __m512 load_half16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Outputs of a panel that exist. */
static inline __mmask16 avx512_panel_mask(const struct packed_mat *w, uint32_t panel) {
    uint32_t n = MIN(KERN_LANES, w->n_out - panel * KERN_LANES);
    return (__mmask16)((1u << n) - 1);
}

/* matmul_avx512_tile.c: all row tiles of more than 8 rows over the panel p that is expanded in
 * a->panel_scratch: a block's 512 bytes of u8, then three vectors of scales. */
enum tile_kind {
    TILE_PLAIN,    /* dw, -dw * KERN_MAGIC */
    TILE_MIN,      /* dw, -dw * KERN_MAGIC, mw */
    TILE_HALF_MIN, /* dw, i16 pairs of the halves' mins, -dmin: Q2_K, whose scales are in the quants */
    TILE_HALVES, /* sc0, sc1, d: Q3_K and Q6_K */
    N_TILE_KINDS
};
void avx512_expanded_panel(const struct mat_args *a, uint32_t p, enum tile_kind kind);

/* matmul_avx512_rec.c: avx512_mat_quant() for panels of records. */
void avx512_mat_records(const struct mat_args *a, uint32_t begin, uint32_t end);
