/* matmul_ref.c - products in plain C: the definition that the vector tables are tested against. Straight
 * loops in the contract's order (kernels.h). */
#include <math.h>

#include "worker/kernels/kern_impl.h"

/* Half to even for |x| < 2^22: the sum has its unit at 1. */
static int32_t rint_even(float x) {
    return (int32_t)(f32_bits(x + KERN_MAGIC) - KERN_MAGIC_BITS);
}

/* Largest |x| of a block by its bits, where NaN is the largest of all. */
static float block_amax(const float *x) {
    uint32_t amax = 0;
    for (int i = 0; i < KERN_QBLOCK; i++)
        amax = MAX(amax, f32_bits(x[i]) & 0x7fffffffu);
    return bits_f32(amax);
}

void ref_quant_row(uint8_t *tile, uint32_t rows, uint32_t r, const float *x, uint32_t n_blocks,
                   struct act_class c) {
    for (uint32_t b = 0; b < n_blocks; b++, x += KERN_QBLOCK, tile += act_block_bytes(rows)) {
        int8_t *q = (int8_t *)tile + r * KERN_QBLOCK;
        float amax = block_amax(x), da = 0.0f;
        int32_t sum[2] = {0, 0};
        memset(q, 0, KERN_QBLOCK);
        if (amax >= INFINITY || amax != amax) { /* poisons the row, whatever the weights */
            da = NAN;
        } else if (amax >= KERN_AMAX_MIN) {
            da = amax / 127.0f;
            float inv = 127.0f / amax;
            for (int i = 0; i < KERN_QBLOCK; i++) {
                q[i] = (int8_t)rint_even(x[i] * inv);
                sum[i / 16] += q[i];
            }
        }
        act_put_words(tile, rows, r, sum, da, c);
    }
}

/* Quant k of the output whose words start at v (matmul.h), all bits of its type. */
static uint8_t record_quant(enum pack_form form, const uint8_t *v, uint32_t k) {
    const uint32_t g = k / 4;
    v += k % 4;
    switch (form) {
    case PACK_Q2_K:
        return v[g / 4 * 64] >> (2 * (g % 4)) & 3;
    case PACK_Q3_K:
        if (g < 6)
            return v[g / 2 * 64] >> (3 * (g % 2)) & 7;
        return (uint8_t)(v[(g - 6) * 64] >> 6 | (v[128] >> g & 1) << 2);
    case PACK_Q5_K:
    case PACK_Q5_0:
    case PACK_Q5_1:
        if (g < 5)
            return v[g * 64] & 31;
        if (g == 7)
            return (uint8_t)(v[256] >> 5 | (v[64] >> 5 & 1) << 3 | (v[192] >> 5 & 1) << 4);
        v += (g - 5) * 128;
        return (uint8_t)(v[0] >> 5 | (v[64] >> 6) << 3);
    case PACK_Q6_K:
        v += g / 4 * 192;
        if (g % 4 < 3)
            return v[g % 4 * 64] & 63;
        return (uint8_t)(v[0] >> 6 | (v[64] >> 6) << 2 | (v[128] >> 6) << 4);
    default:
        return v[g % 4 * 64] >> (g < 4 ? 0 : 4) & 15;
    }
}

/* A 32-block of one output. */
struct ref_block {
    int16_t w[KERN_QBLOCK];
    float dw, mw;        /* mw is added with its sign */
    int16_t sc[2], m[2]; /* of halves */
};

static float half_at(const uint8_t *p, uint32_t o) {
    uint16_t h;
    memcpy(&h, p + 2 * o, 2);
    return quant_f16_to_f32(h);
}

static void read_record(const struct packed_mat *w, const uint8_t *panel, uint32_t b, uint32_t o,
                        struct ref_block *ret) {
    const enum pack_form form = (enum pack_form)w->type->form;
    const uint8_t *rec = panel + b / w->rec_blocks * w->rec_bytes, *d = rec + w->d_off;
    const uint32_t j = b % w->rec_blocks;
    const uint8_t *row = rec + w->sub_off + j * packed_sub_bytes(form), *sub = row + o;
    for (uint32_t k = 0; k < KERN_QBLOCK; k++) {
        uint8_t u = record_quant(form, rec + j * w->quant_bytes + 4 * o, k);
        ret->w[k] = (int16_t)((w->type->values ? w->type->values[u] : u) - w->type->offset);
    }
    if (form == PACK_MXFP4) {
        ret->dw = bits_f32((uint32_t)(*sub + 12u) << 23) * 0x1p-13f;
        return;
    }
    ret->dw = half_at(packed_d_each_block(form) ? d + 32 * j : d, o);
    if (w->type->has_min)
        ret->mw = half_at(form == PACK_Q5_1 ? row : d + 32, o);
    for (int h = 0; h < 2 && w->type->halves; h++) {
        uint8_t s = sub[h * KERN_LANES];
        ret->sc[h] = form == PACK_Q2_K ? s & 15 : (int8_t)s;
        ret->m[h] = s >> 4;
    }
    if (form == PACK_Q4_K || form == PACK_Q5_K) {
        ret->dw *= (float)*sub;
        ret->mw *= (float)sub[KERN_LANES];
    } else if (form == PACK_IQ4_XS) {
        ret->dw *= (float)(int8_t)*sub;
    }
}

static void read_block(const struct packed_mat *w, const uint8_t *panel, uint32_t b, uint32_t o,
                       struct ref_block *ret) {
    if (w->type->unit) {
        read_record(w, panel, b, o, ret);
        return;
    }
    const bool nib = w->type->form == PACK_NIB;
    const uint8_t *block = panel + (size_t)b * (nib ? 256 : 512) + 4 * o;
    for (uint32_t k = 0; k < KERN_QBLOCK; k++) {
        uint8_t u = nib ? record_quant(PACK_NIB, block, k) : block[k / 4 * 64 + k % 4];
        ret->w[k] = (int16_t)(u - w->type->offset);
    }
    ret->dw = half_at(panel + w->scale_off + b * 32, o);
    ret->mw = w->type->has_min ? half_at(panel + w->min_off + b * 32, o) : 0.0f;
}

static int32_t dot16(const int16_t *w, const int8_t *q) {
    int32_t sum = 0;
    for (int k = 0; k < 16; k++)
        sum += w[k] * q[k];
    return sum;
}

static float add_block(const struct packed_mat *w, const struct ref_block *rb, const uint8_t *act,
                       uint32_t rows, uint32_t r, float acc) {
    const int8_t *q = (const int8_t *)act + r * KERN_QBLOCK;
    int32_t dot[2] = {dot16(rb->w, q), dot16(rb->w + 16, q + 16)};
    int16_t sums[2];
    float da, sa;
    memcpy(&da, act + rows * 36 + r * 4, 4);
    memcpy(&sa, act + rows * 40 + r * 4, 4);
    memcpy(sums, act + rows * 44 + r * 4, 4);
    if (!w->type->halves) {
        acc = fmaf(rb->dw * (float)(dot[0] + dot[1]), da, acc);
        return w->type->has_min ? fmaf(rb->mw, sa, acc) : acc;
    }
    acc = fmaf(rb->dw * (float)(rb->sc[0] * dot[0] + rb->sc[1] * dot[1]), da, acc);
    int32_t mins = rb->m[0] * sums[0] + rb->m[1] * sums[1];
    return w->type->has_min ? fmaf(rb->mw * (float)mins, da, acc) : acc;
}

static void store_outputs(const struct mat_args *a, uint32_t panel, uint32_t row,
                          const float *acc) {
    uint32_t o0 = panel * KERN_LANES, n = MIN(KERN_LANES, a->w->n_out - o0);
    memcpy(a->y + (size_t)row * a->y_stride + o0, acc, n * sizeof *acc);
}

void ref_mat_quant(const struct mat_args *a, uint32_t begin, uint32_t end) {
    const struct packed_mat *w = a->w;
    for (uint32_t p = begin; p < end; p++) {
        for (uint32_t i = 0; i < a->tiles.n_tiles; i++) {
            struct act_tile t = act_tile_at(a, i);
            float acc[KERN_TILE_ROWS][KERN_LANES] = {{0}};
            for (uint32_t b = 0; b < w->n_in / KERN_QBLOCK; b++)
                for (uint32_t o = 0; o < KERN_LANES; o++) {
                    struct ref_block rb = {.dw = 0};
                    read_block(w, packed_panel(w, p), b, o, &rb);
                    for (uint32_t r = 0; r < t.rows; r++)
                        acc[r][o] = add_block(w, &rb, t.p + b * act_block_bytes(t.rows), t.rows, r,
                                              acc[r][o]);
                }
            for (uint32_t r = 0; r < t.rows; r++)
                store_outputs(a, p, t.first_row + r, acc[r]);
        }
    }
}

static float panel_float(const struct packed_mat *w, const uint8_t *panel, size_t i) {
    uint16_t half;
    float f;
    if (w->type->form == PACK_F32) {
        memcpy(&f, panel + 4 * i, 4);
        return f;
    }
    memcpy(&half, panel + 2 * i, 2);
    return w->type->form == PACK_F16 ? quant_f16_to_f32(half) : bits_f32((uint32_t)half << 16);
}

void ref_mat_float(const struct mat_args *a, uint32_t begin, uint32_t end) {
    for (uint32_t p = begin; p < end; p++) {
        const uint8_t *panel = packed_panel(a->w, p);
        for (uint32_t i = 0; i < a->tiles.n_tiles; i++) {
            const float *x = act_f32_tile_at(a, i);
            uint32_t rows = row_tile_rows(&a->tiles, i), first = row_tile_first(&a->tiles, i);
            float acc[KERN_TILE_ROWS][KERN_LANES] = {{0}};
            for (size_t k = 0; k < a->w->n_in; k++)
                for (uint32_t o = 0; o < KERN_LANES; o++) {
                    float wf = panel_float(a->w, panel, k * KERN_LANES + o);
                    for (uint32_t r = 0; r < rows; r++)
                        acc[r][o] = fmaf(wf, x[k * rows + r], acc[r][o]);
                }
            for (uint32_t r = 0; r < rows; r++)
                store_outputs(a, p, first + r, acc[r]);
        }
    }
}
