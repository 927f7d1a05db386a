/* matmul_avx512.h - private: products of the AVX-512 VNNI table. */
#pragma once

#include "worker/kernels/kern_impl.h"

void avx512_quant_row(uint8_t *tile, uint32_t rows, uint32_t r, const float *x, uint32_t n_blocks,
                      int32_t offset);
void avx512_mat_quant(const struct mat_args *a, uint32_t begin, uint32_t end);
void avx512_mat_float(const struct mat_args *a, uint32_t begin, uint32_t end);

/* acc += t * (the float at p, in all lanes); acc += dot of 4 (u8 of w, s8 at p in all lanes). Inline
 * assembly because gcc 12 otherwise loads the broadcast into a register of its own. */
#define FMA_BCAST(acc, t, p)                                                                       \
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(t), "m"(*(const float *)(p)))
#define DOT_BCAST(acc, w, p)                                                                       \
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t *)(p)))
