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
static float extreme(const float *x, int n) {
    float e = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(e))
            e = x[i];
    return e;
}

static void range(const float *x, int n, float *ret_min, float *ret_max) {
    *ret_min = *ret_max = x[0];
    for (int i = 1; i < n; i++) {
        *ret_min = MIN(*ret_min, x[i]);
        *ret_max = MAX(*ret_max, x[i]);
    }
}

static unsigned clamp_level(float v, unsigned max) {
    return v <= 0 ? 0 : v >= (float)max ? max : (unsigned)lrintf(v);
}

static void encode_q8_0(uint8_t *dst, const float *x) {
    float d = as_f16(fabsf(extreme(x, BLOCK)) / 127.0f);
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
        range(x, BLOCK, &lo, &hi);
        d = as_f16((hi - lo) / (float)max);
        lo = as_f16(lo);
    } else {
        d = as_f16(extreme(x, BLOCK) / -half); /* the extreme element becomes level 0 exactly */
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

/* --- types of quant_type.unit ------------------------------------------------------------------- */

/* Scales, mins and levels of one file block, as its bytes want them: parts of 16 or 32 columns share one. */
struct parts {
    float d, dmin;
    int sc[16];
    unsigned m[16];
    unsigned u[256];
};

/* Levels 0 .. max over a scale and a min a part, both multiples of d and dmin up to most. */
static void encode_min_parts(struct parts *p, const float *x, int part, unsigned max, int most) {
    float scale[16], min[16], top = 0, deep = 0;
    const int n = 256 / part;
    for (int i = 0; i < n; i++) {
        float lo, hi;
        range(x + i * part, part, &lo, &hi);
        min[i] = MAX(0.0f, -lo);
        scale[i] = (hi + min[i]) / (float)max;
        top = MAX(top, scale[i]);
        deep = MAX(deep, min[i]);
    }
    p->d = as_f16(top / (float)most);
    p->dmin = as_f16(deep / (float)most);
    for (int i = 0; i < n; i++) {
        p->sc[i] = p->d > 0 ? (int)clamp_level(scale[i] / p->d, (unsigned)most) : 0;
        p->m[i] = p->dmin > 0 ? clamp_level(min[i] / p->dmin, (unsigned)most) : 0;
        const float step = p->d * (float)p->sc[i], lo = p->dmin * (float)p->m[i];
        for (int k = i * part; k < (i + 1) * part; k++)
            p->u[k] = step > 0 ? clamp_level((x[k] + lo) / step, max) : 0;
    }
}

/* Scales of parts whose farthest element becomes `level`, in multiples of d between -most and most. */
static void encode_signed_scales(struct parts *p, const float *x, int part, float level, int most) {
    float scale[16], top = 0;
    const int n = 256 / part;
    for (int i = 0; i < n; i++) {
        scale[i] = extreme(x + i * part, part) / level;
        top = MAX(top, fabsf(scale[i]));
    }
    p->d = as_f16(top / (float)most);
    for (int i = 0; i < n; i++)
        p->sc[i] = p->d > 0 ? (int)MAX((float)-most, MIN((float)most, rintf(scale[i] / p->d))) : 0;
}

/* Levels -half .. half - 1 with a signed scale a part of 16; the farthest element becomes -half. */
static void encode_signed_parts(struct parts *p, const float *x, unsigned half, int most) {
    encode_signed_scales(p, x, 16, -(float)half, most);
    for (int k = 0; k < 256; k++) {
        const float step = p->d * (float)p->sc[k / 16];
        p->u[k] = step != 0 ? clamp_level(x[k] / step + (float)half, 2 * half - 1) : half;
    }
}

/* The value nearest to v. */
static unsigned nearest(const struct quant_type *t, float v) {
    unsigned best = 0;
    for (unsigned u = 0; u < 16; u++)
        if (fabsf(v - (float)(t->values[u] - t->offset)) <
            fabsf(v - (float)(t->values[best] - t->offset)))
            best = u;
    return best;
}

/* 8 scales and 8 mins of six bits. */
static void put_scale_mins(uint8_t *dst, const struct parts *p) {
    for (int i = 0; i < 4; i++) {
        const unsigned sc = (unsigned)p->sc[i + 4], m = p->m[i + 4];
        dst[i] = (uint8_t)((unsigned)p->sc[i] | sc >> 4 << 6);
        dst[i + 4] = (uint8_t)(p->m[i] | m >> 4 << 6);
        dst[i + 8] = (uint8_t)((sc & 15) | (m & 15) << 4);
    }
}

/* Bits from .. from + n - 1 of unit i's levels into 32 bytes, shift places up. */
static void put_bits(uint8_t *dst, const struct parts *p, int i, int from, int n, int shift) {
    for (int k = 0; k < 32; k++)
        dst[k] = (uint8_t)(dst[k] | (p->u[32 * i + k] >> from & ((1u << n) - 1)) << shift);
}

static void encode_q45_k(uint8_t *dst, const float *x, bool five) {
    struct parts p;
    encode_min_parts(&p, x, 32, five ? 31 : 15, 63);
    put_f16(dst, p.d);
    put_f16(dst + 2, p.dmin);
    put_scale_mins(dst + 4, &p);
    for (int i = 0; i < 8; i++) {
        put_bits(dst + (five ? 48 : 16) + i / 2 * 32, &p, i, 0, 4, 4 * (i % 2));
        if (five)
            put_bits(dst + 16, &p, i, 4, 1, i);
    }
}

static void encode_q6_k(uint8_t *dst, const float *x) {
    struct parts p;
    encode_signed_parts(&p, x, 32, 127);
    for (int i = 0; i < 8; i++) {
        put_bits(dst + i / 4 * 64 + i % 2 * 32, &p, i, 0, 4, i % 4 < 2 ? 0 : 4);
        put_bits(dst + 128 + i / 4 * 32, &p, i, 4, 2, 2 * (i % 4));
    }
    for (int i = 0; i < 16; i++)
        dst[192 + i] = (uint8_t)(int8_t)p.sc[i];
    put_f16(dst + 208, p.d);
}

static void encode_q3_k(uint8_t *dst, const float *x) {
    struct parts p;
    encode_signed_parts(&p, x, 4, 31);
    for (int i = 0; i < 8; i++) {
        put_bits(dst, &p, i, 2, 1, i);
        put_bits(dst + 32 + i / 4 * 32, &p, i, 0, 2, 2 * (i % 4));
    }
    for (int j = 0; j < 16; j++) {
        const unsigned sc = (unsigned)(p.sc[j] + 32);
        dst[96 + j % 8] = (uint8_t)(dst[96 + j % 8] | (sc & 15) << (4 * (j / 8)));
        dst[104 + j % 4] = (uint8_t)(dst[104 + j % 4] | sc >> 4 << (2 * (j / 4)));
    }
    put_f16(dst + 108, p.d);
}

static void encode_q2_k(uint8_t *dst, const float *x) {
    struct parts p;
    encode_min_parts(&p, x, 16, 3, 15);
    for (int i = 0; i < 8; i++)
        put_bits(dst + 16 + i / 4 * 32, &p, i, 0, 2, 2 * (i % 4));
    for (int i = 0; i < 16; i++)
        dst[i] = (uint8_t)((unsigned)p.sc[i] | p.m[i] << 4);
    put_f16(dst + 80, p.d);
    put_f16(dst + 82, p.dmin);
}

static void encode_iq4_xs(uint8_t *dst, const float *x, const struct quant_type *t) {
    struct parts p;
    unsigned high = 0;
    encode_signed_scales(&p, x, 32, -127, 31);
    for (int i = 0; i < 8; i++) {
        const unsigned ls = (unsigned)(p.sc[i] + 32);
        const float step = p.d * (float)p.sc[i];
        for (int k = 32 * i; k < 32 * i + 32; k++)
            p.u[k] = nearest(t, step != 0 ? x[k] / step : 0);
        dst[4 + i / 2] = (uint8_t)(dst[4 + i / 2] | (ls & 15) << (4 * (i % 2)));
        high |= ls >> 4 << (2 * i);
        encode_nibbles(dst + 8 + 16 * i, p.u + 32 * i);
    }
    put_f16(dst, p.d);
    dst[2] = (uint8_t)high;
    dst[3] = (uint8_t)(high >> 8);
}

/* IQ4_NL and MXFP4: one scale for 32. */
static void encode_values(uint8_t *dst, const float *x, const struct quant_type *t) {
    unsigned u[BLOCK];
    float d = as_f16(extreme(x, BLOCK) / -127.0f);
    if (t->dtype == QUANT_MXFP4) {
        int exp;
        (void)frexpf(extreme(x, BLOCK) / 12, &exp); /* 12 * 2^exp reaches the farthest */
        exp = MAX(-128, MIN(exp, QUANT_MXFP4_MAX_E - 128));
        d = ldexpf(1.0f, exp);
        *dst++ = (uint8_t)(exp + 128);
    } else {
        put_f16(dst, d);
        dst += 2;
    }
    for (int i = 0; i < BLOCK; i++)
        u[i] = nearest(t, d != 0 ? x[i] / d : 0);
    encode_nibbles(dst, u);
}

static void encode_units(const struct quant_type *t, uint8_t *dst, const float *x) {
    memset(dst, 0, t->block_bytes);
    switch (t->dtype) {
    case QUANT_Q2_K:
        encode_q2_k(dst, x);
        break;
    case QUANT_Q3_K:
        encode_q3_k(dst, x);
        break;
    case QUANT_Q4_K:
    case QUANT_Q5_K:
        encode_q45_k(dst, x, t->dtype == QUANT_Q5_K);
        break;
    case QUANT_Q6_K:
        encode_q6_k(dst, x);
        break;
    case QUANT_IQ4_XS:
        encode_iq4_xs(dst, x, t);
        break;
    case QUANT_Q5_0:
    case QUANT_Q5_1:
        encode_5bit(dst, x, t->has_min);
        break;
    default:
        encode_values(dst, x, t);
        break;
    }
}

/* --- floats ------------------------------------------------------------------------------------- */

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
    default:
        encode_4bit(dst, x, dtype == QUANT_Q4_1);
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
    for (size_t i = 0; i < n / t->block_items; i++, src += t->block_items) {
        uint8_t *block = (uint8_t *)dst + i * t->block_bytes;
        if (t->unit)
            encode_units(t, block, src);
        else
            encode_block(dtype, block, src);
    }
    return true;
}
