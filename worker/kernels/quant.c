#include "worker/kernels/quant.h"

#include <math.h>

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
        return bits_f32(sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0));
    if (exp == 0) { /* zero or denormal: man * 2^-24, exact */
        float f = (float)man * 0x1p-24f;
        return bits_f32(sign | f32_bits(f));
    }
    return bits_f32(sign | (exp + 112) << 23 | man << 13);
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
        float r = bits_f32(abs) + 0.5f;
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
        dst[i] = bits_f32((uint32_t)load_u16(p + 2 * i) << 16);
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

static void q8_0_dequant(float *dst, const void *src, size_t n) {
    const uint8_t *p = src;
    for (size_t b = 0; b < n / 32; b++, p += 34, dst += 32) {
        float d = quant_f16_to_f32(load_u16(p));
        for (int i = 0; i < 32; i++)
            dst[i] = d * (float)(int8_t)p[2 + i];
    }
}

/* --- units of 32 columns ------------------------------------------------------------------------- */

static void read_d(struct quant_unit *ret, const uint8_t *p, bool has_min) {
    ret->d = quant_f16_to_f32(load_u16(p));
    ret->dmin = has_min ? quant_f16_to_f32(load_u16(p + 2)) : 0.0f;
}

/* f16 d; nibbles as in Q4_0. The values are IQ4's table plus 128. */
static const uint8_t iq4_values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                       129, 141, 153, 166, 181, 197, 217, 241};
/* 0 1 2 3 4 6 8 12 and their negatives, plus 12. */
static const uint8_t mxfp4_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* Bits of n bytes, from place `from` on as mask says, to place `to` of u, eight bytes at a time: a model has
 * billions of them. */
static void add_bits(uint8_t *u, const uint8_t *p, size_t n, unsigned from, unsigned mask,
                     unsigned to) {
    for (size_t i = 0; i < n; i += 8) {
        uint64_t src, dst;
        memcpy(&src, p + i, 8);
        memcpy(&dst, u + i, 8);
        dst |= (src >> from & mask * 0x0101010101010101u) << to;
        memcpy(u + i, &dst, 8);
    }
}

static void read_nibbles(struct quant_unit *ret, const uint8_t *p) {
    memset(ret->u, 0, sizeof ret->u);
    add_bits(ret->u, p, 16, 0, 15, 0);
    add_bits(ret->u + 16, p, 16, 4, 15, 0);
}

/* The same bits of 32 bytes. */
static void read_bits(struct quant_unit *ret, const uint8_t *p, unsigned from, unsigned mask) {
    memset(ret->u, 0, sizeof ret->u);
    add_bits(ret->u, p, 32, from, mask, 0);
}

/* f16 d; u32 fifth bits, bit k of element k; nibbles. A weight is d * (u - 16). */
static void q5_0_unit(struct quant_unit *ret, const uint8_t *p, uint32_t i) {
    (void)i;
    read_d(ret, p, false);
    read_nibbles(ret, p + 6);
    for (uint32_t k = 0; k < 32; k++)
        ret->u[k] = (uint8_t)(ret->u[k] | (p[2 + k / 8] >> (k % 8) & 1) << 4);
    ret->sc[0] = ret->sc[1] = 1;
}

/* f16 d, m; then as Q5_0. A weight is d * u + m. */
static void q5_1_unit(struct quant_unit *ret, const uint8_t *p, uint32_t i) {
    q5_0_unit(ret, p + 2, i);
    ret->d = quant_f16_to_f32(load_u16(p));
    ret->dmin = -quant_f16_to_f32(load_u16(p + 2));
    ret->m[0] = ret->m[1] = 1;
}

static void iq4_nl_unit(struct quant_unit *ret, const uint8_t *p, uint32_t i) {
    (void)i;
    read_d(ret, p, false);
    read_nibbles(ret, p + 2);
    ret->sc[0] = ret->sc[1] = 1;
}

/* f16 d; u16 high bits of 8 scales, 4 bytes of their low nibbles; 8 x 16 bytes of nibbles. */
static void iq4_xs_unit(struct quant_unit *ret, const uint8_t *p, uint32_t i) {
    int low = p[4 + i / 2] >> (4 * (i % 2)) & 15, high = load_u16(p + 2) >> (2 * i) & 3;
    read_d(ret, p, false);
    read_nibbles(ret, p + 8 + 16 * i);
    ret->sc[0] = ret->sc[1] = (int8_t)((low | high << 4) - 32);
}

/* u8 e: 2^(e - 128), half of the format's scale as the values are doubled; nibbles. */
static void mxfp4_unit(struct quant_unit *ret, const uint8_t *p, uint32_t i) {
    (void)i;
    ret->d = bits_f32((uint32_t)(p[0] + 12u) << 23) * 0x1p-13f;
    ret->dmin = 0.0f;
    read_nibbles(ret, p + 1);
    ret->sc[0] = ret->sc[1] = 1;
}

/* Six-bit scale and min number i of Q4_K's and Q5_K's 12 bytes. */
static void read_scale_min(struct quant_unit *ret, const uint8_t *s, uint32_t i) {
    unsigned sc = s[i % 4] & 63, m = s[i % 4 + 4] & 63;
    if (i >= 4) {
        sc = (s[i + 4] & 15u) | (unsigned)(s[i - 4] >> 6) << 4;
        m = (unsigned)(s[i + 4] >> 4) | (unsigned)(s[i] >> 6) << 4;
    }
    ret->sc[0] = ret->sc[1] = (int8_t)sc;
    ret->m[0] = ret->m[1] = (uint8_t)m;
}

/* f16 d, dmin; 12 bytes of scales and mins; 4 x 32 bytes: low nibbles a unit, high ones the next. */
static void q4_k_unit(struct quant_unit *ret, const uint8_t *p, uint32_t i) {
    read_d(ret, p, true);
    read_scale_min(ret, p + 4, i);
    read_bits(ret, p + 16 + i / 2 * 32, 4 * (i % 2), 15);
}

/* As Q4_K with 32 bytes of fifth bits before the nibbles: bit i of byte k is unit i's. */
static void q5_k_unit(struct quant_unit *ret, const uint8_t *p, uint32_t i) {
    read_d(ret, p, true);
    read_scale_min(ret, p + 4, i);
    read_bits(ret, p + 48 + i / 2 * 32, 4 * (i % 2), 15);
    add_bits(ret->u, p + 16, 32, i, 1, 4);
}

/* 128 bytes of low nibbles, 64 of high pairs, 16 scales, f16 d: model-facts.md's order of each 128. */
static void q6_k_unit(struct quant_unit *ret, const uint8_t *p, uint32_t i) {
    read_d(ret, p + 208, false);
    read_bits(ret, p + i / 4 * 64 + i % 2 * 32, i % 4 < 2 ? 0 : 4, 15);
    add_bits(ret->u, p + 128 + i / 4 * 32, 32, 2 * (i % 4), 3, 4);
    for (uint32_t h = 0; h < 2; h++)
        ret->sc[h] = (int8_t)p[192 + 2 * i + h];
}

/* 32 bytes of third bits (bit i of byte k is unit i's), 64 of low pairs, 12 of 6-bit scales, f16 d. */
static void q3_k_unit(struct quant_unit *ret, const uint8_t *p, uint32_t i) {
    const uint8_t *s = p + 96;
    read_d(ret, p + 108, false);
    read_bits(ret, p + 32 + i / 4 * 32, 2 * (i % 4), 3);
    add_bits(ret->u, p, 32, i, 1, 2);
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t j = 2 * i + h;
        int nibble = s[j % 8] >> (4 * (j / 8)) & 15, top = s[8 + j % 4] >> (2 * (j / 4)) & 3;
        ret->sc[h] = (int8_t)((nibble | top << 4) - 32);
    }
}

/* 16 bytes: low nibble a scale, high nibble a min; 64 of pairs; f16 d, dmin. */
static void q2_k_unit(struct quant_unit *ret, const uint8_t *p, uint32_t i) {
    read_d(ret, p + 80, true);
    read_bits(ret, p + 16 + i / 4 * 32, 2 * (i % 4), 3);
    for (uint32_t h = 0; h < 2; h++) {
        ret->sc[h] = p[2 * i + h] & 15;
        ret->m[h] = p[2 * i + h] >> 4;
    }
}

static void dequant_units(const struct quant_type *t, float *dst, const uint8_t *src, size_t n) {
    const uint32_t units = t->block_items / 32u;
    for (size_t i = 0; i < n / 32; i++, dst += 32) {
        struct quant_unit q;
        t->unit(&q, src + i / units * t->block_bytes, (uint32_t)(i % units));
        for (uint32_t k = 0; k < 32; k++) {
            float scale = q.d * (float)q.sc[k / 16];
            float w = (float)((t->values ? t->values[q.u[k]] : q.u[k]) - t->offset);
            dst[k] = t->has_min ? fmaf(scale, w, -(q.dmin * (float)q.m[k / 16])) : scale * w;
        }
    }
}

void quant_dequant(const struct quant_type *t, float *dst, const void *src, size_t n) {
    if (t->unit)
        dequant_units(t, dst, src, n);
    else
        t->dequant(dst, src, n);
}

/* Block layouts: GGUF's, see the functions above. */
#define FLOATS(name, dtype, bytes, form, dequant)                                                  \
    { name, dtype, 1, bytes, form, 0, false, false, 0, NULL, NULL, dequant }
#define LEGACY(name, dtype, bytes, form, offset, has_min, dequant)                                 \
    { name, dtype, 32, bytes, form, offset, has_min, false, 0, NULL, NULL, dequant }
static const struct quant_type quant_types[] = {
    FLOATS("f32", QUANT_F32, 4, PACK_F32, f32_dequant),
    FLOATS("f16", QUANT_F16, 2, PACK_F16, f16_dequant),
    FLOATS("bf16", QUANT_BF16, 2, PACK_BF16, bf16_dequant),           /* upper half of an f32 */
    LEGACY("q4_0", QUANT_Q4_0, 18, PACK_NIB, 8, false, q4_0_dequant), /* f16 d; nibbles */
    LEGACY("q4_1", QUANT_Q4_1, 20, PACK_NIB, 0, true, q4_1_dequant),  /* f16 d, m; nibbles */
    {"q5_0", QUANT_Q5_0, 32, 22, PACK_Q5_0, 16, false, false, 0, NULL, q5_0_unit, NULL},
    {"q5_1", QUANT_Q5_1, 32, 24, PACK_Q5_1, 0, true, false, 0, NULL, q5_1_unit, NULL},
    LEGACY("q8_0", QUANT_Q8_0, 34, PACK_U8, 128, false, q8_0_dequant), /* f16 d; int8[32] */
    {"q2_k", QUANT_Q2_K, 256, 84, PACK_Q2_K, 0, true, true, 80, NULL, q2_k_unit, NULL},
    {"q3_k", QUANT_Q3_K, 256, 110, PACK_Q3_K, 4, false, true, 108, NULL, q3_k_unit, NULL},
    {"q4_k", QUANT_Q4_K, 256, 144, PACK_Q4_K, 0, true, false, 0, NULL, q4_k_unit, NULL},
    {"q5_k", QUANT_Q5_K, 256, 176, PACK_Q5_K, 0, true, false, 0, NULL, q5_k_unit, NULL},
    {"q6_k", QUANT_Q6_K, 256, 210, PACK_Q6_K, 32, false, true, 208, NULL, q6_k_unit, NULL},
    {"iq4_nl", QUANT_IQ4_NL, 32, 18, PACK_IQ4_NL, 128, false, false, 0, iq4_values, iq4_nl_unit,
     NULL},
    {"iq4_xs", QUANT_IQ4_XS, 256, 136, PACK_IQ4_XS, 128, false, false, 0, iq4_values, iq4_xs_unit,
     NULL},
    {"mxfp4", QUANT_MXFP4, 32, 17, PACK_MXFP4, 12, false, false, 0, mxfp4_values, mxfp4_unit, NULL},
};

static bool is_bad_half(const uint8_t *p) {
    return (load_u16(p) & 0x7c00u) == 0x7c00u;
}

static bool is_bad_block(const struct quant_type *t, const uint8_t *p) {
    if (t->dtype == QUANT_F32)
        return (load_u32(p) & 0x7f800000u) == 0x7f800000u;
    if (t->dtype == QUANT_BF16)
        return (load_u16(p) & 0x7f80u) == 0x7f80u;
    if (t->dtype == QUANT_MXFP4)
        return p[0] > QUANT_MXFP4_MAX_E;
    p += t->d_at;
    return is_bad_half(p) || (t->has_min && is_bad_half(p + 2));
}

size_t quant_first_bad(const struct quant_type *t, const void *p, size_t n) {
    const uint8_t *at = p;
    size_t i = 0, n_blocks = n / t->block_items;
    while (i < n_blocks && !is_bad_block(t, at + i * t->block_bytes))
        i++;
    return i;
}

const char *quant_bad_text(const struct quant_type *t) {
    return t->dtype == QUANT_MXFP4 ? "has an exponent above 232" : "is not finite";
}

const struct quant_type *quant_type_find(uint32_t dtype) {
    for (size_t i = 0; i < ARRAY_LEN(quant_types); i++)
        if (quant_types[i].dtype == dtype)
            return &quant_types[i];
    return NULL;
}

const struct quant_type *quant_type_named(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(quant_types); i++)
        if (strcmp(quant_types[i].name, name) == 0)
            return &quant_types[i];
    return NULL;
}

const struct quant_type *quant_type_table(size_t *ret_n) {
    *ret_n = ARRAY_LEN(quant_types);
    return quant_types;
}
