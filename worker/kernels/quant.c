#include "worker/kernels/quant.h"

#include <math.h>

static uint32_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float f32_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint16_t load_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

float quant_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = (h >> 10) & 0x1fu;
    uint32_t man = h & 0x3ffu;
    if (exp == 0x1f) /* infinity or NaN; a signalling NaN comes out quiet, as from F16C */
        return f32_from_bits(sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0));
    if (exp == 0) { /* zero or denormal: man * 2^-24, exact */
        float f = (float)man * 0x1p-24f;
        return f32_from_bits(sign | f32_bits(f));
    }
    return f32_from_bits(sign | (exp + 112) << 23 | man << 13);
}

uint16_t quant_f32_to_f16(float f) {
    uint32_t u = f32_bits(f);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t abs = u & 0x7fffffffu;
    if (abs > 0x7f800000u) /* NaN: quiet, upper payload bits kept */
        return (uint16_t)(sign | 0x7e00u | ((abs >> 13) & 0x3ffu));
    if (abs >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (abs < 0x38800000u) { /* below 2^-14: a half denormal, in steps of 2^-24 */
        /* Adding 0.5 puts the unit in the last place at 2^-24: the sum rounds half to even there. */
        float r = f32_from_bits(abs) + 0.5f;
        return (uint16_t)(sign | (f32_bits(r) - 0x3f000000u));
    }
    /* Round the 13 lost bits half to even; a carry runs into the exponent as it should. */
    uint32_t rounded = abs + 0xfffu + ((abs >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

static void f32_dequant(float *dst, const void *src, size_t n) {
    memcpy(dst, src, n * sizeof *dst);
}

static void f16_dequant(float *dst, const void *src, size_t n) {
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = quant_f16_to_f32(load_u16(p + 2 * i));
}

static void bf16_dequant(float *dst, const void *src, size_t n) {
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = f32_from_bits((uint32_t)load_u16(p + 2 * i) << 16);
}

static void q4_0_dequant(float *dst, const void *src, size_t n) {
    const uint8_t *p = src;
    for (size_t b = 0; b < n / 32; b++, p += 18, dst += 32) {
        float d = quant_f16_to_f32(load_u16(p));
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((p[2 + i] & 15) - 8);
            dst[i + 16] = d * (float)((p[2 + i] >> 4) - 8);
        }
    }
}

static void q4_1_dequant(float *dst, const void *src, size_t n) {
    const uint8_t *p = src;
    for (size_t b = 0; b < n / 32; b++, p += 20, dst += 32) {
        float d = quant_f16_to_f32(load_u16(p));
        float m = quant_f16_to_f32(load_u16(p + 2));
        for (int i = 0; i < 16; i++) {
            dst[i] = fmaf(d, (float)(p[4 + i] & 15), m);
            dst[i + 16] = fmaf(d, (float)(p[4 + i] >> 4), m);
        }
    }
}

static void q5_0_dequant(float *dst, const void *src, size_t n) {
    const uint8_t *p = src;
    for (size_t b = 0; b < n / 32; b++, p += 22, dst += 32) {
        float d = quant_f16_to_f32(load_u16(p));
        uint32_t high = load_u32(p + 2);
        for (int i = 0; i < 16; i++) {
            int lo = (p[6 + i] & 15) | (int)((high >> i & 1u) << 4);
            int hi = (p[6 + i] >> 4) | (int)((high >> (i + 16) & 1u) << 4);
            dst[i] = d * (float)(lo - 16);
            dst[i + 16] = d * (float)(hi - 16);
        }
    }
}

static void q5_1_dequant(float *dst, const void *src, size_t n) {
    const uint8_t *p = src;
    for (size_t b = 0; b < n / 32; b++, p += 24, dst += 32) {
        float d = quant_f16_to_f32(load_u16(p));
        float m = quant_f16_to_f32(load_u16(p + 2));
        uint32_t high = load_u32(p + 4);
        for (int i = 0; i < 16; i++) {
            int lo = (p[8 + i] & 15) | (int)((high >> i & 1u) << 4);
            int hi = (p[8 + i] >> 4) | (int)((high >> (i + 16) & 1u) << 4);
            dst[i] = fmaf(d, (float)lo, m);
            dst[i + 16] = fmaf(d, (float)hi, m);
        }
    }
}

static void q8_0_dequant(float *dst, const void *src, size_t n) {
    const uint8_t *p = src;
    for (size_t b = 0; b < n / 32; b++, p += 34, dst += 32) {
        float d = quant_f16_to_f32(load_u16(p));
        for (int i = 0; i < 32; i++)
            dst[i] = d * (float)(int8_t)p[2 + i];
    }
}

/* Block layouts: GGUF's, see the comment of each row. */
static const struct quant_type quant_types[] = {
    {"f32", QUANT_F32, 1, 4, PACK_F32, 0, false, f32_dequant},
    {"f16", QUANT_F16, 1, 2, PACK_F16, 0, false, f16_dequant},
    {"bf16", QUANT_BF16, 1, 2, PACK_BF16, 0, false, bf16_dequant},  /* upper half of an f32 */
    {"q4_0", QUANT_Q4_0, 32, 18, PACK_NIB, 8, false, q4_0_dequant}, /* f16 d; 16 bytes of nibbles */
    {"q4_1", QUANT_Q4_1, 32, 20, PACK_NIB, 0, true, q4_1_dequant},  /* f16 d, m; nibbles */
    {"q5_0", QUANT_Q5_0, 32, 22, PACK_U8, 16, false,
     q5_0_dequant}, /* f16 d; u32 fifth bits; nibbles */
    {"q5_1", QUANT_Q5_1, 32, 24, PACK_U8, 0, true,
     q5_1_dequant}, /* f16 d, m; u32 fifth bits; nibbles */
    {"q8_0", QUANT_Q8_0, 32, 34, PACK_U8, 128, false, q8_0_dequant}, /* f16 d; int8[32] */
};

static bool is_bad_half(const uint8_t *p) {
    return (load_u16(p) & 0x7c00u) == 0x7c00u;
}

static bool is_bad_block(const struct quant_type *t, const uint8_t *p) {
    if (t->dtype == QUANT_F32)
        return (load_u32(p) & 0x7f800000u) == 0x7f800000u;
    if (t->dtype == QUANT_BF16)
        return (load_u16(p) & 0x7f80u) == 0x7f80u;
    return is_bad_half(p) || (t->has_min && is_bad_half(p + 2));
}

size_t quant_first_bad(const struct quant_type *t, const void *p, size_t n) {
    const uint8_t *at = p;
    size_t i = 0, n_blocks = n / t->block_items;
    while (i < n_blocks && !is_bad_block(t, at + i * t->block_bytes))
        i++;
    return i;
}

const struct quant_type *quant_type_find(uint32_t dtype) {
    for (size_t i = 0; i < ARRAY_LEN(quant_types); i++)
        if (quant_types[i].dtype == dtype)
            return &quant_types[i];
    return NULL;
}

const struct quant_type *quant_type_table(size_t *ret_n) {
    *ret_n = ARRAY_LEN(quant_types);
    return quant_types;
}
