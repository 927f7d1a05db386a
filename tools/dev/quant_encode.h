/* quant_encode.h - f32 rows into the weight types, for tests and mkmodel.
 *
 * Plain round-to-nearest per block, no search for better scales: the result is a valid file of the type,
 * not the best one. Thread: any. */
#pragma once

#include "common/compiler.h"

/* The types of kernels/quant.h. dst has n / block_items * block_bytes bytes. False: another type. */
bool quant_encode(uint32_t dtype, void *dst, const float *src, size_t n);
