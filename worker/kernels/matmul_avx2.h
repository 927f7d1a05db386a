/* matmul_avx2.h - private: products of the AVX2 + FMA + F16C table. */
#pragma once

#include "worker/kernels/kern_impl.h"

void avx2_quant_row(uint8_t *tile, uint32_t rows, uint32_t r, const float *x, uint32_t n_blocks,
                    struct act_class c);
void avx2_mat_quant(const struct mat_args *a, uint32_t begin, uint32_t end);
/* matmul_avx2_float.c */
void avx2_mat_float(const struct mat_args *a, uint32_t begin, uint32_t end);

/* out [rows][16] of a panel to the outputs that exist. */
static inline void avx2_store_rows(const struct mat_args *a, uint32_t panel, uint32_t first_row,
                                   uint32_t rows, const float *out) {
    uint32_t o0 = panel * KERN_LANES, n = MIN(KERN_LANES, a->w->n_out - o0);
    for (uint32_t r = 0; r < rows; r++)
        memcpy(a->y + (size_t)(first_row + r) * a->y_stride + o0, out + r * KERN_LANES,
               n * sizeof *out);
}
