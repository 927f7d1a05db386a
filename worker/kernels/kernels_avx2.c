/* kernels_avx2.c - row operations and attention of the AVX2 table. The contract's 16 lanes are two
 * registers; what does not fill them goes through a zero-padded copy or the reference's formula. */
#include <immintrin.h>
#include <math.h>

#include "common/check.h"
#include "worker/kernels/kern_rows.h"
#include "worker/kernels/matmul_avx2.h"

ALWAYS_INLINE float tree16(__m256 lo, __m256 hi) {
    __m256 a = _mm256_add_ps(lo, hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* kern_ref_exp() in 8 lanes. min takes its second operand when one is a NaN. */
ALWAYS_INLINE __m256 exp8(__m256 x) {
    const __m256 magic = _mm256_set1_ps(KERN_MAGIC);
    __m256 keep = _mm256_cmp_ps(x, _mm256_set1_ps(-60.0f), _CMP_NLT_UQ);
    x = _mm256_min_ps(_mm256_set1_ps(88.0f), x);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504f), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    /* n << 23: the magic's own bits leave at the top. */
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
    return _mm256_and_ps(p, keep);
}

/* --- row operations ----------------------------------------------------------------------------- */

static void avx2_rms_norm(float *y, const float *x, const float *w, size_t n, float eps) {
    __m256 lo = _mm256_setzero_ps(), hi = lo;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        lo = _mm256_fmadd_ps(a, a, lo);
        hi = _mm256_fmadd_ps(b, b, hi);
    }
    if (i < n) {
        float pad[16] = {0};
        memcpy(pad, x + i, (n - i) * sizeof *x);
        __m256 a = _mm256_loadu_ps(pad), b = _mm256_loadu_ps(pad + 8);
        lo = _mm256_fmadd_ps(a, a, lo);
        hi = _mm256_fmadd_ps(b, b, hi);
    }
    const float r = 1.0f / sqrtf(tree16(lo, hi) / (float)n + eps);
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(r));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(w + i)));
    }
    for (; i < n; i++)
        y[i] = (x[i] * r) * w[i];
}

static void rotate(float *a, float *b, float c, float s) {
    float x = *a, y = *b;
    *a = fmaf(x, c, -(y * s));
    *b = fmaf(y, c, x * s);
}

static void avx2_rope_norm(float *x, const float *cs, size_t n_head, size_t head_dim,
                           size_t n_rot) {
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    for (size_t h = 0; h < n_head; h++, x += head_dim) {
        size_t i = 0;
        for (; i + 8 <= n_rot; i += 8) {
            __m128 c4 = _mm_loadu_ps(cs + i / 2), s4 = _mm_loadu_ps(cs + (n_rot + i) / 2);
            __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(c4), twice);
            __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(s4), twice);
            __m256 v = _mm256_loadu_ps(x + i);
            __m256 other = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), s);
            _mm256_storeu_ps(x + i, _mm256_fmaddsub_ps(v, c, other));
        }
        for (; i < n_rot; i += 2)
            rotate(&x[i], &x[i + 1], cs[i / 2], cs[(n_rot + i) / 2]);
    }
}

static void avx2_rope_neox(float *x, const float *cs, size_t n_head, size_t head_dim,
                           size_t n_rot) {
    size_t half = n_rot / 2;
    for (size_t h = 0; h < n_head; h++, x += head_dim) {
        size_t i = 0;
        for (; i + 8 <= half; i += 8) {
            __m256 c = _mm256_loadu_ps(cs + i), s = _mm256_loadu_ps(cs + half + i);
            __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
            _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
            _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
        }
        for (; i < half; i++)
            rotate(&x[i], &x[half + i], cs[i], cs[half + i]);
    }
}

ALWAYS_INLINE __m256 silu_mul8(__m256 g, __m256 u) {
    __m256 e = exp8(_mm256_xor_ps(g, _mm256_set1_ps(-0.0f)));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), u);
}

static void avx2_silu_mul(float *y, const float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, silu_mul8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    for (; i < n; i++)
        y[i] = (gate[i] / (1.0f + kern_ref_exp(-gate[i]))) * up[i];
}

/* min and max give their second operand when one is a NaN. */
ALWAYS_INLINE __m256 swiglu_oai8(__m256 g, __m256 u) {
    const __m256 limit = _mm256_set1_ps(KERN_OAI_LIMIT), one = _mm256_set1_ps(1.0f);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    g = _mm256_min_ps(limit, g);
    u = _mm256_max_ps(_mm256_xor_ps(limit, sign), _mm256_min_ps(limit, u));
    __m256 e = exp8(_mm256_xor_ps(_mm256_mul_ps(_mm256_set1_ps(KERN_OAI_ALPHA), g), sign));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), _mm256_add_ps(u, one));
}

static void avx2_swiglu_oai(float *y, const float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, swiglu_oai8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    for (; i < n; i++)
        y[i] = kern_ref_swiglu_oai(gate[i], up[i]);
}

ALWAYS_INLINE __m256 gelu8(__m256 x) {
    __m256 in = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(KERN_GELU_IN), x), x);
    __m256 t = _mm256_mul_ps(_mm256_set1_ps(KERN_GELU_OUT), _mm256_fmadd_ps(in, x, x));
    __m256 e = exp8(_mm256_mul_ps(_mm256_set1_ps(-2.0f), t));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

static void avx2_gelu_mul(float *y, const float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_mul_ps(gelu8(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
    for (; i < n; i++)
        y[i] = kern_ref_gelu(gate[i]) * up[i];
}

/* kern_ref_softcap() in 8 lanes: both branches of tanh, then a choice. */
ALWAYS_INLINE __m256 softcap8(__m256 v, float c) {
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 x = _mm256_div_ps(v, _mm256_set1_ps(c));
    __m256 a = _mm256_andnot_ps(sign, x), a2 = _mm256_mul_ps(a, a);
    __m256 p = _mm256_fmadd_ps(a2, _mm256_set1_ps(KERN_TANH_7), _mm256_set1_ps(KERN_TANH_5));
    p = _mm256_fmadd_ps(a2, p, _mm256_set1_ps(KERN_TANH_3));
    p = _mm256_fmadd_ps(_mm256_mul_ps(a, a2), p, a);
    __m256 e = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), one);
    __m256 big = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), e));
    __m256 small = _mm256_cmp_ps(a, _mm256_set1_ps(KERN_TANH_SMALL), _CMP_LT_OQ);
    __m256 t = _mm256_or_ps(_mm256_blendv_ps(big, p, small), _mm256_and_ps(sign, x));
    return _mm256_mul_ps(_mm256_set1_ps(c), t);
}

static void avx2_softcap(float *y, size_t n, float c) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, softcap8(_mm256_loadu_ps(y + i), c));
    for (; i < n; i++)
        y[i] = kern_ref_softcap(y[i], c);
}

static void avx2_scale(float *y, size_t n, float c) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(y + i), _mm256_set1_ps(c)));
    for (; i < n; i++)
        y[i] *= c;
}

static void avx2_add(float *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    for (; i < n; i++)
        y[i] += x[i];
}

static void avx2_add_scaled(float *y, const float *x, float c, size_t n) {
    const __m256 c8 = _mm256_set1_ps(c);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_fmadd_ps(c8, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++)
        y[i] = fmaf(c, x[i], y[i]);
}

static void avx2_f32_to_f16(uint16_t *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        y[i] = quant_f32_to_f16(x[i]);
}

/* --- attention ---------------------------------------------------------------------------------- */

ALWAYS_INLINE __m256i bcast4(const uint8_t *p) {
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)(const void *)p));
}

ALWAYS_INLINE __m256 load_kv(const uint8_t *p, size_t i, const bool f16) {
    if (f16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 2 * i)));
    return _mm256_loadu_ps((const float *)(const void *)(p + 4 * i));
}

/* The line of what 16 lanes read now, `ahead` of it (kern_impl.h). */
ALWAYS_INLINE void fetch_ahead(const uint8_t *p, intptr_t ahead) {
    _mm_prefetch((const char *)((uintptr_t)p + (uintptr_t)ahead), _MM_HINT_T0);
}

/* N of the block's pairs, from pair `first` on, x 16 tokens: a lane is a token. */
#define S_ZERO(i) __m256 lo##i = _mm256_setzero_ps(), hi##i = _mm256_setzero_ps();
#define S_FMA(i)                                                                                   \
    {                                                                                              \
        __m256 qd = _mm256_broadcast_ss(q + (i));                                                  \
        lo##i = _mm256_fmadd_ps(qd, k0, lo##i);                                                    \
        hi##i = _mm256_fmadd_ps(qd, k1, hi##i);                                                    \
    }
#define S_STORE(i)                                                                                 \
    _mm256_storeu_ps(s + (i)*16, lo##i);                                                           \
    _mm256_storeu_ps(s + (i)*16 + 8, hi##i);

/* The same pairs x 16 d: a lane is a d, positions pos .. end-1. */
#define A_LOAD(i)                                                                                  \
    __m256 lo##i = _mm256_loadu_ps(acc + (i)*dim), hi##i = _mm256_loadu_ps(acc + (i)*dim + 8);
#define A_FMA(i)                                                                                   \
    {                                                                                              \
        __m256 pr = _mm256_broadcast_ss(p + (i)*16);                                               \
        lo##i = _mm256_fmadd_ps(pr, v0, lo##i);                                                    \
        hi##i = _mm256_fmadd_ps(pr, v1, hi##i);                                                    \
    }
#define A_STORE(i)                                                                                 \
    _mm256_storeu_ps(acc + (i)*dim, lo##i);                                                        \
    _mm256_storeu_ps(acc + (i)*dim + 8, hi##i);

/* What gcc 12 may not reorder (matmul_avx2.c). */
#define STEP(sum) __asm__("" : "+x"(sum))

#define DEFINE_SCORES(N)                                                                           \
    ALWAYS_INLINE void scores_any_##N(const struct attn_block *b, const uint8_t *k, float *s,      \
                                      uint32_t first, const bool f16) {                            \
        const float *q = b->qt + first;                                                            \
        s += first * 16;                                                                           \
        ROWS_##N(S_ZERO) for (uint32_t d = 0; d < b->head_dim; d++, q += b->rh) {                  \
            __m256 k0 = load_kv(k, 0, f16), k1 = load_kv(k, 8, f16);                               \
            fetch_ahead(k, b->ahead);                                                              \
            k += b->block_tokens * (f16 ? 2u : 4u);                                                \
            ROWS_##N(S_FMA)                                                                        \
        }                                                                                          \
        ROWS_##N(S_STORE)                                                                          \
    }                                                                                              \
    static void scores_##N(const struct attn_block *b, const uint8_t *k, float *s,                 \
                           uint32_t first) {                                                       \
        if (b->k_dtype == KV_F16)                                                                  \
            scores_any_##N(b, k, s, first, true);                                                  \
        else                                                                                       \
            scores_any_##N(b, k, s, first, false);                                                 \
    }

/* Scaled K: N pairs x 8 tokens, the integer sums of 32 columns as in matmul_avx2.c. */
#define Q_ZERO(i) __m256 f##i = _mm256_setzero_ps();
#define Q_INIT(i) __m256i d##i = _mm256_setzero_si256();
#define Q_BYTES(i)                                                                                 \
    {                                                                                              \
        __m256i q = bcast4(act + (i)*32 + g * 4);                                                  \
        __m256i p = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(q, w));                       \
        d##i = _mm256_add_epi32(d##i, _mm256_madd_epi16(p, ones));                                 \
        STEP(d##i);                                                                                \
    }
#define Q_NIBBLES(i)                                                                               \
    d##i = _mm256_add_epi16(d##i, _mm256_maddubs_epi16(lo, bcast4(act + (i)*32 + g * 8)));         \
    STEP(d##i);                                                                                    \
    d##i = _mm256_add_epi16(d##i, _mm256_maddubs_epi16(hi, bcast4(act + (i)*32 + g * 8 + 4)));     \
    STEP(d##i);
#define Q_SCALE(i)                                                                                 \
    {                                                                                              \
        __m256i idot = d##i;                                                                       \
        if (q4)                                                                                    \
            idot = _mm256_add_epi32(                                                               \
                _mm256_madd_epi16(idot, ones),                                                     \
                _mm256_sub_epi32(bcast4(tail + (i)*4), _mm256_set1_epi32(KERN_MAGIC_BITS)));       \
        __m256 t = _mm256_mul_ps(sk, _mm256_cvtepi32_ps(idot));                                    \
        f##i = _mm256_fmadd_ps(t, _mm256_castsi256_ps(bcast4(tail + b->rh * 4 + (i)*4)), f##i);    \
        STEP(f##i);                                                                                \
    }
#define Q_STORE(i) _mm256_storeu_ps(s + (i)*16, f##i);

#define DEFINE_SCALED_SCORES(N)                                                                    \
    ALWAYS_INLINE void scaled_any_##N(const struct attn_block *b, const uint8_t *k,                \
                                      const uint16_t *ks, float *s, uint32_t first,                \
                                      const bool q4) {                                             \
        const __m256i ones = _mm256_set1_epi16(1);                                                 \
        const uint8_t *act = b->q_act + first * 32;                                                \
        const size_t line = (size_t)b->block_tokens * 4;                                           \
        s += first * 16;                                                                           \
        ROWS_##N(Q_ZERO) for (uint32_t d = 0; d < b->head_dim; d += 32) {                          \
            ROWS_##N(Q_INIT) for (int g = 0; g < (q4 ? 4 : 8); g++, k += line) {                   \
                __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)k);                  \
                fetch_ahead(k, b->ahead);                                                          \
                if (q4) {                                                                          \
                    const __m256i low = _mm256_set1_epi8(15);                                      \
                    __m256i lo = _mm256_and_si256(w, low);                                         \
                    __m256i hi = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);                   \
                    ROWS_##N(Q_NIBBLES)                                                            \
                } else {                                                                           \
                    __m256i magnitude = _mm256_abs_epi8(w);                                        \
                    ROWS_##N(Q_BYTES)                                                              \
                }                                                                                  \
            }                                                                                      \
            const uint8_t *tail = act - first * 32 + b->rh * 32 + first * 4;                       \
            const __m256 sk = load_kv((const uint8_t *)ks, 0, true);                               \
            ROWS_##N(Q_SCALE) ks += b->block_tokens;                                               \
            act += act_block_bytes(b->rh);                                                         \
        }                                                                                          \
        ROWS_##N(Q_STORE)                                                                          \
    }                                                                                              \
    static void scaled_##N(const struct attn_block *b, const uint8_t *k, const uint16_t *ks,       \
                           float *s, uint32_t first) {                                             \
        if (b->k_dtype == KV_Q4_0)                                                                 \
            scaled_any_##N(b, k, ks, s, first, true);                                              \
        else                                                                                       \
            scaled_any_##N(b, k, ks, s, first, false);                                             \
    }

/* 16 values of a token from d on; sv: their scale. */
ALWAYS_INLINE void load_v(const uint8_t *v, const float *sv, uint32_t d, __m256 *v0, __m256 *v1,
                          const enum kv_dtype t) {
    if (!kv_is_scaled(t)) {
        *v0 = load_kv(v, 0, t == KV_F16);
        *v1 = load_kv(v, 8, t == KV_F16);
        return;
    }
    const __m256 scale = _mm256_broadcast_ss(sv);
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)v);
    if (t == KV_Q4_0) { /* the high nibbles are the second 16 of 32 */
        a = _mm_and_si128(_mm_srl_epi16(a, _mm_cvtsi32_si128(d % 32 / 4)), _mm_set1_epi8(15));
        a = _mm_sub_epi8(a, _mm_set1_epi8(8));
    }
    *v0 = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(a)));
    *v1 = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(a, 8))));
}

#define DEFINE_VALUES(N)                                                                           \
    ALWAYS_INLINE void values_any_##N(const struct attn_block *b, const uint8_t *v,                \
                                      const float *sv, uint32_t d, uint32_t pos, uint32_t end,     \
                                      uint32_t first, const enum kv_dtype type) {                  \
        const size_t dim = b->head_dim, row = attn_v_bytes(type, dim);                             \
        float *acc = b->acc + first * dim + d;                                                     \
        v += type == KV_Q4_0 ? d / 32 * 16 : attn_v_bytes(type, d);                                \
        sv += d / 32;                                                                              \
        ROWS_##N(A_LOAD) for (; pos < end; pos++, v += row, sv += dim / 32) {                      \
            const float *p = b->s + ((size_t)(pos / 16) * b->rh + first) * 16 + pos % 16;          \
            __m256 v0, v1;                                                                         \
            load_v(v, sv, d, &v0, &v1, type);                                                      \
            fetch_ahead(v, b->ahead);                                                              \
            ROWS_##N(A_FMA)                                                                        \
        }                                                                                          \
        ROWS_##N(A_STORE)                                                                          \
    }                                                                                              \
    static void values_##N(const struct attn_block *b, const uint8_t *v, const float *sv,          \
                           uint32_t d, uint32_t pos, uint32_t end, uint32_t first) {               \
        switch (b->v_dtype) {                                                                      \
        case KV_F16:                                                                               \
            values_any_##N(b, v, sv, d, pos, end, first, KV_F16);                                  \
            break;                                                                                 \
        case KV_F32:                                                                               \
            values_any_##N(b, v, sv, d, pos, end, first, KV_F32);                                  \
            break;                                                                                 \
        case KV_Q8_0:                                                                              \
            values_any_##N(b, v, sv, d, pos, end, first, KV_Q8_0);                                 \
            break;                                                                                 \
        default:                                                                                   \
            values_any_##N(b, v, sv, d, pos, end, first, KV_Q4_0);                                 \
        }                                                                                          \
    }

#define FOR_PAIRS(DEFINE) DEFINE(1) DEFINE(2) DEFINE(3) DEFINE(4) DEFINE(5) DEFINE(6)
#define BY_PAIRS(name)                                                                             \
    { NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6 }
FOR_PAIRS(DEFINE_SCORES)
FOR_PAIRS(DEFINE_SCALED_SCORES)
FOR_PAIRS(DEFINE_VALUES)

#define ATTN_PAIRS 6 /* 12 accumulators, two loads, one broadcast: 15 of 16 registers */
#define SCALED_PAIRS 4
typedef void (*scores_fn)(const struct attn_block *b, const uint8_t *k, float *s, uint32_t first);
typedef void (*scaled_fn)(const struct attn_block *b, const uint8_t *k, const uint16_t *ks,
                          float *s, uint32_t first);
typedef void (*values_fn)(const struct attn_block *b, const uint8_t *v, const float *sv, uint32_t d,
                          uint32_t pos, uint32_t end, uint32_t first);
static const scores_fn scores_by_pairs[ATTN_PAIRS + 1] = BY_PAIRS(scores);
static const scaled_fn scaled_by_pairs[ATTN_PAIRS + 1] = BY_PAIRS(scaled);
static const values_fn values_by_pairs[ATTN_PAIRS + 1] = BY_PAIRS(values);

static void avx2_attn_scores(const struct attn_block *b, const uint8_t *k, const uint16_t *ks,
                             uint32_t pos0, uint32_t n) {
    const bool scaled = kv_is_scaled(b->k_dtype);
    const uint32_t step = scaled ? 8 : 16, most = scaled ? SCALED_PAIRS : ATTN_PAIRS;
    for (uint32_t t = 0; t < n; t += step) {
        float *s = b->s + (size_t)(pos0 + t) / 16 * 16 * b->rh + t % 16;
        for (uint32_t first = 0, part; first < b->rh; first += part) {
            part = MIN(most, b->rh - first);
            if (scaled)
                scaled_by_pairs[part](b, k + (size_t)t * 4, ks + t, s, first);
            else
                scores_by_pairs[part](b, k + t * attn_v_bytes(b->k_dtype, 1), s, first);
        }
    }
}

/* Ones in the lanes of the 8 positions from pos on that lie in [first, last]. */
ALWAYS_INLINE __m256 span8(uint32_t pos, uint32_t first, uint32_t last) {
    __m256i p =
        _mm256_add_epi32(_mm256_set1_epi32((int)pos), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i from = _mm256_cmpgt_epi32(p, _mm256_set1_epi32((int)first - 1));
    return _mm256_castsi256_ps(
        _mm256_and_si256(from, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)last + 1), p)));
}

/* Capped scores of 8 positions, those outside the span at the maximum's neutral value. */
ALWAYS_INLINE __m256 capped8(const struct attn_block *b, float *s, __m256 in) {
    __m256 v = _mm256_loadu_ps(s);
    if (b->softcap > 0.0f) {
        v = softcap8(v, b->softcap);
        _mm256_storeu_ps(s, v);
    }
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), v, in);
}

static float avx2_attn_softmax(const struct attn_block *b, uint32_t i, uint32_t first,
                               uint32_t last, float sink) {
    const size_t step = (size_t)b->rh * 16;
    const uint32_t start = first / 16 * 16;
    float *s = b->s + first / 16 * step + (size_t)i * 16, top[8];
    __m256 m0 = _mm256_set1_ps(sink), m1 = m0;
    for (uint32_t pos = start, t = 0; pos <= last; pos += 16, t++) {
        m0 = _mm256_max_ps(m0, capped8(b, s + t * step, span8(pos, first, last)));
        m1 = _mm256_max_ps(m1, capped8(b, s + t * step + 8, span8(pos + 8, first, last)));
    }
    _mm256_storeu_ps(top, _mm256_max_ps(m0, m1));
    float most = top[0];
    for (uint32_t l = 1; l < 8; l++)
        most = MAX(most, top[l]);
    const __m256 m = _mm256_set1_ps(most);
    __m256 lo = _mm256_setzero_ps(), hi = lo;
    for (uint32_t pos = start; pos <= last; pos += 16, s += step) {
        __m256 e0 = exp8(_mm256_sub_ps(_mm256_loadu_ps(s), m));
        __m256 e1 = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + 8), m));
        if (pos < first || last - pos < 15) {
            e0 = _mm256_and_ps(e0, span8(pos, first, last));
            e1 = _mm256_and_ps(e1, span8(pos + 8, first, last));
        }
        _mm256_storeu_ps(s, e0);
        _mm256_storeu_ps(s + 8, e1);
        lo = _mm256_add_ps(lo, e0);
        hi = _mm256_add_ps(hi, e1);
    }
    return 1.0f / (tree16(lo, hi) + kern_ref_exp(sink - most));
}

#define V_SCALES 512 /* of some tokens, converted together */

static void f16_to_f32(float *y, const uint16_t *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, load_kv((const uint8_t *)(x + i), 0, true));
    for (; i < n; i++)
        y[i] = _cvtsh_ss(x[i]);
}

static void avx2_attn_values(const struct attn_block *b, const uint8_t *v, const uint16_t *vs,
                             uint32_t pos0, uint32_t t0, uint32_t t1, uint32_t first,
                             uint32_t end) {
    const size_t row = attn_v_bytes(b->v_dtype, b->head_dim), n_scales = b->head_dim / 32;
    float sv[V_SCALES];
    for (uint32_t t = t0, n; t < t1; t += n) {
        n = t1 - t;
        if (kv_is_scaled(b->v_dtype)) {
            n = MIN(n, (uint32_t)(V_SCALES / n_scales));
            f16_to_f32(sv, vs + t * n_scales, n * n_scales);
        }
        for (uint32_t d = b->d0; d < b->d1; d += 16)
            for (uint32_t i = first, part; i < end; i += part) {
                part = MIN(ATTN_PAIRS, end - i);
                values_by_pairs[part](b, v + t * row, sv, d, pos0 + t, pos0 + t + n, i);
            }
    }
}

static const struct kern_impl impl_avx2 = {
    .tile_rows = 12, /* two times 6 rows of nibbles or floats, three times 4 of bytes */
    .quant_row = avx2_quant_row,
    .mat_quant = avx2_mat_quant,
    .mat_float = avx2_mat_float,
    .decode_panels = 4,
    .f32_to_f16 = avx2_f32_to_f16,
    .attn_scores = avx2_attn_scores,
    .attn_softmax = avx2_attn_softmax,
    .attn_values = avx2_attn_values,
};

const struct kern_ops kern_ops_avx2 = {
    .name = "avx2",
    .rms_norm = avx2_rms_norm,
    .rope_norm = avx2_rope_norm,
    .rope_neox = avx2_rope_neox,
    .silu_mul = avx2_silu_mul,
    .gelu_mul = avx2_gelu_mul,
    .swiglu_oai = avx2_swiglu_oai,
    .softcap = avx2_softcap,
    .scale = avx2_scale,
    .add = avx2_add,
    .add_scaled = avx2_add_scaled,
    .impl = &impl_avx2,
};
