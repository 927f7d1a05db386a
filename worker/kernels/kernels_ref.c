/* kernels_ref.c - plain C for every operation: the definition that the vector tables are tested
 * against, and what runs on a CPU for which there is none. Straight loops in the contract's order. */
#include <math.h>

#include "common/check.h"
#include "worker/kernels/kern_impl.h"

static float tree16(float a[KERN_LANES]) {
    for (int w = KERN_LANES / 2; w >= 1; w /= 2)
        for (int l = 0; l < w; l++)
            a[l] += a[l + w];
    return a[0];
}

/* Cody-Waite reduction and Cephes' polynomial for expf; about 1 ulp. */
float kern_ref_exp(float x) {
    if (x < -60.0f)
        return 0.0f;
    if (x > 88.0f)
        x = 88.0f;
    float t = fmaf(x, 1.44269504f, KERN_MAGIC);
    float n = t - KERN_MAGIC;
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    return bits_f32(f32_bits(p) + ((f32_bits(t) - KERN_MAGIC_BITS) << 23));
}

/* Magnitudes compare as integers, and a NaN is above all; limit - 1 - |x| has the sign of what is not
 * below. Four at a time, because every stored row and every logit passes here. */
typedef int32_t v4 __attribute__((vector_size(16)));

bool kern_all_below(const float *x, size_t n, float limit) {
    const int32_t top = (int32_t)f32_bits(limit) - 1;
    v4 seen = {0};
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        v4 bits;
        memcpy(&bits, x + i, sizeof bits);
        seen |= top - (bits & 0x7fffffff);
    }
    int32_t rest = seen[0] | seen[1] | seen[2] | seen[3];
    for (; i < n; i++)
        rest |= top - (int32_t)(f32_bits(x[i]) & 0x7fffffffu);
    return rest >= 0;
}

/* --- row operations ---------------------------------------------------------------------------- */

static void ref_rms_norm(float *y, const float *x, const float *w, size_t n, float eps) {
    float lane[KERN_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % KERN_LANES] = fmaf(x[i], x[i], lane[i % KERN_LANES]);
    float r = 1.0f / sqrtf(tree16(lane) / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] * r) * w[i];
}

static void rotate(float *a, float *b, float c, float s) {
    float x = *a, y = *b;
    *a = fmaf(x, c, -(y * s));
    *b = fmaf(y, c, x * s);
}

static void ref_rope_norm(float *x, const float *cs, size_t n_head, size_t head_dim, size_t n_rot) {
    for (size_t h = 0; h < n_head; h++, x += head_dim)
        for (size_t i = 0; i < n_rot / 2; i++)
            rotate(&x[2 * i], &x[2 * i + 1], cs[i], cs[n_rot / 2 + i]);
}

static void ref_rope_neox(float *x, const float *cs, size_t n_head, size_t head_dim, size_t n_rot) {
    for (size_t h = 0; h < n_head; h++, x += head_dim)
        for (size_t i = 0; i < n_rot / 2; i++)
            rotate(&x[i], &x[n_rot / 2 + i], cs[i], cs[n_rot / 2 + i]);
}

static void ref_silu_mul(float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] = (gate[i] / (1.0f + kern_ref_exp(-gate[i]))) * up[i];
}

float kern_ref_gelu(float x) {
    float t = KERN_GELU_OUT * fmaf((KERN_GELU_IN * x) * x, x, x);
    return x / (1.0f + kern_ref_exp(-2.0f * t));
}

static float ref_tanh(float x) {
    float a = fabsf(x), a2 = a * a;
    if (a < KERN_TANH_SMALL) {
        float p = fmaf(a2, fmaf(a2, KERN_TANH_7, KERN_TANH_5), KERN_TANH_3);
        return copysignf(fmaf(a * a2, p, a), x);
    }
    return copysignf(1.0f - 2.0f / (kern_ref_exp(2.0f * a) + 1.0f), x);
}

float kern_ref_softcap(float x, float c) {
    return c * ref_tanh(x / c);
}

/* A NaN is below no limit. */
float kern_ref_swiglu_oai(float g, float u) {
    g = g > KERN_OAI_LIMIT ? KERN_OAI_LIMIT : g;
    u = u > KERN_OAI_LIMIT ? KERN_OAI_LIMIT : u < -KERN_OAI_LIMIT ? -KERN_OAI_LIMIT : u;
    return (g / (1.0f + kern_ref_exp(-(KERN_OAI_ALPHA * g)))) * (u + 1.0f);
}

static void ref_swiglu_oai(float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] = kern_ref_swiglu_oai(gate[i], up[i]);
}

static void ref_gelu_mul(float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] = kern_ref_gelu(gate[i]) * up[i];
}

static void ref_softcap(float *y, size_t n, float c) {
    for (size_t i = 0; i < n; i++)
        y[i] = kern_ref_softcap(y[i], c);
}

static void ref_scale(float *y, size_t n, float c) {
    for (size_t i = 0; i < n; i++)
        y[i] *= c;
}

static void ref_add(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void ref_add_scaled(float *y, const float *x, float c, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(c, x[i], y[i]);
}

static void ref_f32_to_f16(uint16_t *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] = quant_f32_to_f16(x[i]);
}

/* --- attention --------------------------------------------------------------------------------- */

static float float_at(const uint8_t *p, enum kv_dtype t, size_t i) {
    uint16_t half;
    float f;
    if (t == KV_F16) {
        memcpy(&half, p + 2 * i, 2);
        return quant_f16_to_f32(half);
    }
    memcpy(&f, p + 4 * i, 4);
    return f;
}

/* The quant of token t at d, in the orders of kv_layout.h. */
static int32_t k_quant(const struct attn_block *b, const uint8_t *k, size_t t, size_t d) {
    if (b->k_dtype == KV_Q8_0)
        return (int8_t)k[(d / 4 * b->block_tokens + t) * 4 + d % 4];
    const uint8_t two = k[(d / 8 * b->block_tokens + t) * 4 + d % 4];
    return (d % 8 < 4 ? two & 15 : two >> 4) - 8;
}

static float v_at(const struct attn_block *b, const uint8_t *v, const uint16_t *vs, size_t t,
                  size_t d) {
    const size_t i = t * b->head_dim + d;
    if (!kv_is_scaled(b->v_dtype))
        return float_at(v, b->v_dtype, i);
    const uint8_t two = v[i / 32 * 16 + d % 16];
    int32_t q = b->v_dtype == KV_Q8_0 ? (int8_t)v[i] : (d % 32 < 16 ? two & 15 : two >> 4) - 8;
    return quant_f16_to_f32(vs[i / KV_QBLOCK]) * (float)q;
}

static float *score_at(const struct attn_block *b, uint32_t i, uint32_t pos) {
    return b->s + ((size_t)(pos / KERN_LANES) * b->rh + i) * KERN_LANES + pos % KERN_LANES;
}

static float float_score(const struct attn_block *b, const uint8_t *k, uint32_t t, uint32_t i) {
    float acc = 0.0f;
    for (uint32_t d = 0; d < b->head_dim; d++)
        acc = fmaf(b->qt[d * b->rh + i], float_at(k, b->k_dtype, (size_t)d * b->block_tokens + t),
                   acc);
    return acc;
}

static float quant_score(const struct attn_block *b, const uint8_t *k, const uint16_t *ks,
                         uint32_t t, uint32_t i) {
    float acc = 0.0f;
    for (uint32_t block = 0; block < b->head_dim / KV_QBLOCK; block++) {
        const uint8_t *act = b->q_act + block * act_block_bytes(b->rh);
        const int8_t *q = (const int8_t *)act + i * KV_QBLOCK;
        float sq, sk = quant_f16_to_f32(ks[block * b->block_tokens + t]);
        int32_t idot = 0;
        memcpy(&sq, act + b->rh * 36 + i * 4, 4);
        for (uint32_t d = 0; d < KV_QBLOCK; d++)
            idot += k_quant(b, k, t, block * KV_QBLOCK + d) * q[d];
        acc = fmaf(sk * (float)idot, sq, acc);
    }
    return acc;
}

static void ref_attn_scores(const struct attn_block *b, const uint8_t *k, const uint16_t *ks,
                            uint32_t pos0, uint32_t n) {
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < b->rh; i++)
            *score_at(b, i, pos0 + t) =
                kv_is_scaled(b->k_dtype) ? quant_score(b, k, ks, t, i) : float_score(b, k, t, i);
}

static float ref_attn_softmax(const struct attn_block *b, uint32_t i, uint32_t first, uint32_t last,
                              float sink) {
    float m = sink;
    for (uint32_t p = first; p <= last; p++) {
        float *s = score_at(b, i, p);
        if (b->softcap > 0.0f)
            *s = kern_ref_softcap(*s, b->softcap);
        m = MAX(m, *s);
    }
    float lane[KERN_LANES] = {0};
    for (uint32_t p = first; p <= last; p++) {
        float *s = score_at(b, i, p);
        *s = kern_ref_exp(*s - m);
        lane[p % KERN_LANES] += *s;
    }
    return 1.0f / (tree16(lane) + kern_ref_exp(sink - m));
}

static void ref_attn_values(const struct attn_block *b, const uint8_t *v, const uint16_t *vs,
                            uint32_t pos0, uint32_t t0, uint32_t t1, uint32_t first, uint32_t end) {
    for (uint32_t t = t0; t < t1; t++)
        for (uint32_t d = b->d0; d < b->d1; d++) {
            float vf = v_at(b, v, vs, t, d);
            for (uint32_t i = first; i < end; i++) {
                float *acc = &b->acc[(size_t)i * b->head_dim + d];
                *acc = fmaf(*score_at(b, i, pos0 + t), vf, *acc);
            }
        }
}

static const struct kern_impl impl_ref = {
    .tile_rows = KERN_TILE_ROWS,
    .quant_row = ref_quant_row,
    .mat_quant = ref_mat_quant,
    .mat_float = ref_mat_float,
    .decode_panels = 1,
    .f32_to_f16 = ref_f32_to_f16,
    .attn_scores = ref_attn_scores,
    .attn_softmax = ref_attn_softmax,
    .attn_values = ref_attn_values,
};

const struct kern_ops kern_ops_ref = {
    .name = "scalar",
    .rms_norm = ref_rms_norm,
    .rope_norm = ref_rope_norm,
    .rope_neox = ref_rope_neox,
    .silu_mul = ref_silu_mul,
    .gelu_mul = ref_gelu_mul,
    .swiglu_oai = ref_swiglu_oai,
    .softcap = ref_softcap,
    .scale = ref_scale,
    .add = ref_add,
    .add_scaled = ref_add_scaled,
    .impl = &impl_ref,
};
