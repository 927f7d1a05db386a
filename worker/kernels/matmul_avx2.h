/* matmul_avx2.h - private: products of the AVX2 + FMA + F16C table. */
#pragma once

#include "worker/kernels/kern_impl.h"

void avx2_quant_row(uint8_t *tile, uint32_t rows, uint32_t r, const float *x, uint32_t n_blocks,
                    struct act_class c);
void avx2_mat_quant(const struct mat_args *a, uint32_t begin, uint32_t end);
void avx2_mat_float(const struct mat_args *a, uint32_t begin, uint32_t end);
