#include "tools/dev/quant_encode.h"

#include <math.h>

#include "worker/kernels/quant.h"

#define BLOCK 32

static void put_f16(uint8_t *dst, float v) {
    uint16_t h = quant_f32_to_f16(v);
    dst[0] = (uint8_t)h;
    dst[1] = (uint8_t)(h >> 8);
}

static float as_f16(float v) {
    return quant_f16_to_f32(quant_f32_to_f16(v));
}

/* The element farthest from zero, with its sign. */
static float extreme(const float *x) {
    float e = 0;
    for (int i = 0; i < BLOCK; i++)
        if (fabsf(x[i]) > fabsf(e))
            e = x[i];
    return e;
}

static void range(const float *x, float *ret_min, float *ret_max) {
    *ret_min = *ret_max = x[0];
    for (int i = 1; i < BLOCK; i++) {
        *ret_min = MIN(*ret_min, x[i]);
        *ret_max = MAX(*ret_max, x[i]);
    }
}

static unsigned clamp_level(float v, unsigned max) {
    return v <= 0 ? 0 : v >= (float)max ? max : (unsigned)lrintf(v);
}

static void encode_q8_0(uint8_t *dst, const float *x) {
    float d = as_f16(fabsf(extreme(x)) / 127.0f);
    put_f16(dst, d);
    for (int i = 0; i < BLOCK; i++) {
        float q = d > 0 ? rintf(x[i] / d) : 0;
        dst[2 + i] = (uint8_t)(int8_t)MAX(-127.0f, MIN(127.0f, q));
    }
}

/* Levels of one block: symmetric types subtract half the range, the others add the minimum. */
static size_t encode_levels(uint8_t *dst, const float *x, unsigned max, bool has_min,
                            unsigned level[BLOCK]) {
    float d, lo = 0, hi;
    const float half = (float)(max + 1) / 2;
    if (has_min) {
        range(x, &lo, &hi);
        d = as_f16((hi - lo) / (float)max);
        lo = as_f16(lo);
    } else {
        d = as_f16(extreme(x) / -half); /* the extreme element becomes level 0 exactly */
    }
    for (int i = 0; i < BLOCK; i++) {
        float v = d == 0 ? (has_min ? 0 : half) : has_min ? (x[i] - lo) / d : x[i] / d + half;
        level[i] = clamp_level(v, max);
    }
    put_f16(dst, d);
    if (has_min)
        put_f16(dst + 2, lo);
    return has_min ? 4 : 2;
}

static void encode_nibbles(uint8_t *dst, const unsigned level[BLOCK]) {
    for (int i = 0; i < BLOCK / 2; i++)
        dst[i] = (uint8_t)((level[i] & 15) | (level[i + BLOCK / 2] & 15) << 4);
}

static void encode_4bit(uint8_t *dst, const float *x, bool has_min) {
    unsigned level[BLOCK];
    dst += encode_levels(dst, x, 15, has_min, level);
    encode_nibbles(dst, level);
}

/* The fifth bits stand in a word of their own: bit i belongs to element i. */
static void encode_5bit(uint8_t *dst, const float *x, bool has_min) {
    unsigned level[BLOCK];
    dst += encode_levels(dst, x, 31, has_min, level);
    uint32_t high = 0;
    for (int i = 0; i < BLOCK; i++)
        high |= (uint32_t)(level[i] >> 4) << i;
    for (int i = 0; i < 4; i++)
        dst[i] = (uint8_t)(high >> (8 * i));
    encode_nibbles(dst + 4, level);
}

static uint16_t to_bf16(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    u += 0x7fff + ((u >> 16) & 1); /* nearest even; finite input */
    return (uint16_t)(u >> 16);
}

static void encode_float(uint32_t dtype, uint8_t *dst, const float *src, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (dtype == QUANT_F32) {
            memcpy(dst + 4 * i, &src[i], 4);
        } else {
            uint16_t h = dtype == QUANT_F16 ? quant_f32_to_f16(src[i]) : to_bf16(src[i]);
            dst[2 * i] = (uint8_t)h;
            dst[2 * i + 1] = (uint8_t)(h >> 8);
        }
    }
}

static void encode_block(uint32_t dtype, uint8_t *dst, const float *x) {
    switch (dtype) {
    case QUANT_Q8_0:
        encode_q8_0(dst, x);
        break;
    case QUANT_Q4_0:
    case QUANT_Q4_1:
        encode_4bit(dst, x, dtype == QUANT_Q4_1);
        break;
    default:
        encode_5bit(dst, x, dtype == QUANT_Q5_1);
        break;
    }
}

bool quant_encode(uint32_t dtype, void *dst, const float *src, size_t n) {
    const struct quant_type *t = quant_type_find(dtype);
    if (!t || n % t->block_items != 0)
        return false;
    if (t->block_items == 1) {
        encode_float(dtype, dst, src, n);
        return true;
    }
    for (size_t i = 0; i < n / BLOCK; i++)
        encode_block(dtype, (uint8_t *)dst + i * t->block_bytes, src + i * BLOCK);
    return true;
}
