/* kernels_avx512.c - row operations and attention of the AVX-512 table. Lanes are the contract's 16
 * lanes, so sums need no other order than theirs; tails are masked loads, whose zero lanes add
 * nothing to a sum of squares or of exponentials. */
#include <immintrin.h>
#include <math.h>

#include "common/check.h"
#include "worker/kernels/kern_rows.h"
#include "worker/kernels/matmul_avx512.h"

ALWAYS_INLINE __mmask16 tail_mask(size_t n) {
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

ALWAYS_INLINE float tree16(__m512 v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* kern_ref_exp() in 16 lanes. min and max take their second operand when one is a NaN. */
ALWAYS_INLINE __m512 exp16(__m512 x) {
    const __m512 magic = _mm512_set1_ps(KERN_MAGIC);
    __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-60.0f), _CMP_NLT_UQ);
    x = _mm512_min_ps(_mm512_set1_ps(88.0f), x);
    __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504f), magic);
    __m512 n = _mm512_sub_ps(t, magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    p = _mm512_add_ps(p, _mm512_set1_ps(1.0f));
    /* n << 23: the magic's own bits leave at the top. */
    __m512i e = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(keep, _mm512_castps_si512(p), e));
}

/* --- row operations ----------------------------------------------------------------------------- */

static void avx512_rms_norm(float *y, const float *x, const float *w, size_t n, float eps) {
    __m512 lanes = _mm512_setzero_ps();
    for (size_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(tail_mask(n - i), x + i);
        lanes = _mm512_fmadd_ps(v, v, lanes);
    }
    const __m512 r = _mm512_set1_ps(1.0f / sqrtf(tree16(lanes) / (float)n + eps));
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), r);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i)));
    }
}

static void avx512_rope_norm(float *x, const float *cs, size_t n_head, size_t head_dim,
                             size_t n_rot) {
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    for (size_t i = 0; i < n_rot; i += 16) {
        __mmask16 m = tail_mask(n_rot - i), pairs = tail_mask((n_rot - i) / 2) & 0xff;
        __m512 c = _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(pairs, cs + i / 2));
        __m512 s = _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(pairs, cs + (n_rot + i) / 2));
        for (size_t h = 0; h < n_head; h++) {
            float *p = x + h * head_dim + i;
            __m512 v = _mm512_maskz_loadu_ps(m, p);
            __m512 other = _mm512_mul_ps(_mm512_permute_ps(v, 0xb1), s);
            _mm512_mask_storeu_ps(p, m, _mm512_fmaddsub_ps(v, c, other));
        }
    }
}

static void avx512_rope_neox(float *x, const float *cs, size_t n_head, size_t head_dim,
                             size_t n_rot) {
    size_t half = n_rot / 2;
    for (size_t i = 0; i < half; i += 16) {
        __mmask16 m = tail_mask(half - i);
        __m512 c = _mm512_maskz_loadu_ps(m, cs + i), s = _mm512_maskz_loadu_ps(m, cs + half + i);
        for (size_t h = 0; h < n_head; h++) {
            float *p = x + h * head_dim + i;
            __m512 a = _mm512_maskz_loadu_ps(m, p), b = _mm512_maskz_loadu_ps(m, p + half);
            _mm512_mask_storeu_ps(p, m, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
            _mm512_mask_storeu_ps(p + half, m, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
        }
    }
}

static void avx512_silu_mul(float *y, const float *gate, const float *up, size_t n) {
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 g = _mm512_maskz_loadu_ps(m, gate + i);
        __m512 e = exp16(_mm512_xor_ps(g, sign));
        __m512 v = _mm512_div_ps(g, _mm512_add_ps(one, e));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, up + i)));
    }
}

/* min and max give their second operand when one is a NaN. */
static void avx512_swiglu_oai(float *y, const float *gate, const float *up, size_t n) {
    const __m512 limit = _mm512_set1_ps(KERN_OAI_LIMIT), one = _mm512_set1_ps(1.0f);
    const __m512 sign = _mm512_set1_ps(-0.0f), alpha = _mm512_set1_ps(KERN_OAI_ALPHA);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 g = _mm512_min_ps(limit, _mm512_maskz_loadu_ps(m, gate + i));
        __m512 u = _mm512_min_ps(limit, _mm512_maskz_loadu_ps(m, up + i));
        u = _mm512_max_ps(_mm512_xor_ps(limit, sign), u);
        __m512 e = exp16(_mm512_xor_ps(_mm512_mul_ps(alpha, g), sign));
        __m512 v = _mm512_div_ps(g, _mm512_add_ps(one, e));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_add_ps(u, one)));
    }
}

ALWAYS_INLINE __m512 gelu16(__m512 x) {
    __m512 in = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(KERN_GELU_IN), x), x);
    __m512 t = _mm512_mul_ps(_mm512_set1_ps(KERN_GELU_OUT), _mm512_fmadd_ps(in, x, x));
    __m512 e = exp16(_mm512_mul_ps(_mm512_set1_ps(-2.0f), t));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

static void avx512_gelu_mul(float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 g = gelu16(_mm512_maskz_loadu_ps(m, gate + i));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(g, _mm512_maskz_loadu_ps(m, up + i)));
    }
}

/* kern_ref_softcap() in 16 lanes: both branches of tanh, then a choice. */
ALWAYS_INLINE __m512 softcap16(__m512 v, float c) {
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    __m512 x = _mm512_div_ps(v, _mm512_set1_ps(c));
    __m512 a = _mm512_andnot_ps(sign, x), a2 = _mm512_mul_ps(a, a);
    __m512 p = _mm512_fmadd_ps(a2, _mm512_set1_ps(KERN_TANH_7), _mm512_set1_ps(KERN_TANH_5));
    p = _mm512_fmadd_ps(a2, p, _mm512_set1_ps(KERN_TANH_3));
    p = _mm512_fmadd_ps(_mm512_mul_ps(a, a2), p, a);
    __m512 e = _mm512_add_ps(exp16(_mm512_add_ps(a, a)), one);
    __m512 big = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), e));
    __mmask16 small = _mm512_cmp_ps_mask(a, _mm512_set1_ps(KERN_TANH_SMALL), _CMP_LT_OQ);
    __m512 t = _mm512_or_ps(_mm512_mask_mov_ps(big, small, p), _mm512_and_ps(sign, x));
    return _mm512_mul_ps(_mm512_set1_ps(c), t);
}

static void avx512_softcap(float *y, size_t n, float c) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        _mm512_mask_storeu_ps(y + i, m, softcap16(_mm512_maskz_loadu_ps(m, y + i), c));
    }
}

static void avx512_scale(float *y, size_t n, float c) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, y + i), _mm512_set1_ps(c));
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}

static void avx512_add(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, y + i), _mm512_maskz_loadu_ps(m, x + i));
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}

static void avx512_add_scaled(float *y, const float *x, float c, size_t n) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m512 v = _mm512_fmadd_ps(_mm512_set1_ps(c), _mm512_maskz_loadu_ps(m, x + i),
                                   _mm512_maskz_loadu_ps(m, y + i));
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}

static void avx512_f32_to_f16(uint16_t *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        __m256i h = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(m, x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_mask_storeu_epi16(y + i, m, h);
    }
}

/* --- attention ---------------------------------------------------------------------------------- */

ALWAYS_INLINE __m512 load_kv(const uint8_t *p, size_t i, const bool f16) {
    if (f16)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p + 2 * i)));
    return _mm512_loadu_ps(p + 4 * i);
}

/* What 32 lanes read now, read `ahead` later. Spread over the loop: a burst of 64 prefetches at a page's
 * start stalls the loads behind it and halves the speed of a decode row. */
ALWAYS_INLINE void fetch_ahead(const uint8_t *p, intptr_t ahead, const int bytes) {
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)((uintptr_t)p + (uintptr_t)ahead) + i, _MM_HINT_T0);
}

/* Scores: a lane is a token. N pairs x 32 tokens (or the last 16) in registers, one FMA chain over d. */
#define S_ZERO(i) __m512 lo##i = _mm512_setzero_ps(), hi##i = _mm512_setzero_ps();
#define S_FMA(i)                                                                                   \
    FMA_BCAST(lo##i, k0, q + (i));                                                                 \
    if (two)                                                                                       \
        FMA_BCAST(hi##i, k1, q + (i));
#define S_STORE(i)                                                                                 \
    _mm512_storeu_ps(s + (i)*16, lo##i);                                                           \
    if (two)                                                                                       \
        _mm512_storeu_ps(s + (R + (i)) * 16, hi##i);

#define DEFINE_SCORES(N)                                                                           \
    ALWAYS_INLINE void scores_part_##N(const struct attn_block *b, const uint8_t *k, float *s,     \
                                       const bool f16, const bool two) {                           \
        enum { R = N };                                                                            \
        const float *q = b->qt;                                                                    \
        ROWS_##N(S_ZERO) for (uint32_t d = 0; d < b->head_dim; d++, q += R) {                      \
            __m512 k0 = load_kv(k, 0, f16), k1 = two ? load_kv(k, 16, f16) : k0;                   \
            fetch_ahead(k, b->ahead, f16 ? 64 : 128);                                              \
            k += b->block_tokens * (f16 ? 2u : 4u);                                                \
            ROWS_##N(S_FMA)                                                                        \
        }                                                                                          \
        ROWS_##N(S_STORE)                                                                          \
    }                                                                                              \
    ALWAYS_INLINE void scores_any_##N(const struct attn_block *b, const uint8_t *k, float *s,      \
                                      uint32_t n, const bool f16) {                                \
        for (; n > 16; n = n > 32 ? n - 32 : 0, k += 32 * (f16 ? 2 : 4), s += 32 * N)              \
            scores_part_##N(b, k, s, f16, true);                                                   \
        if (n > 0)                                                                                 \
            scores_part_##N(b, k, s, f16, false);                                                  \
    }                                                                                              \
    static void scores_##N(const struct attn_block *b, const uint8_t *k, float *s, uint32_t n) {   \
        if (b->k_dtype == KV_F16)                                                                  \
            scores_any_##N(b, k, s, n, true);                                                      \
        else                                                                                       \
            scores_any_##N(b, k, s, n, false);                                                     \
    }

/* Scores of scaled K: per 32 columns the products of matmul_avx512.c's tiles, a lane is a token. K becomes
 * unsigned by adding what the queries' tile takes off again. */
#define Q_INIT(i)                                                                                  \
    __m512i d##i = _mm512_set1_epi32(*(const int32_t *)(const void *)(act + R * 32 + (i)*4));
#define Q_DOT(i) DOT_BCAST(d##i, w, act + (i)*32 + g * 4);
#define Q_DOTS(i)                                                                                  \
    DOT_BCAST(d##i, lo, act + (i)*32 + g * 8);                                                     \
    DOT_BCAST(d##i, hi, act + (i)*32 + g * 8 + 4);
#define Q_SCALE(i)                                                                                 \
    __m512 t##i = _mm512_fmadd_ps(_mm512_castsi512_ps(d##i), sk, minus);                           \
    FMA_BCAST(acc##i, t##i, act + R * 36 + (i)*4);
#define Q_ZERO(i) __m512 acc##i = _mm512_setzero_ps();
#define Q_STORE(i) _mm512_storeu_ps(s + (i)*16, acc##i);

#define DEFINE_SCALED_SCORES(N)                                                                    \
    ALWAYS_INLINE void scaled_tile_##N(const struct attn_block *b, const uint8_t *k,               \
                                       const uint16_t *ks, float *s, const bool q4) {              \
        enum { R = N };                                                                            \
        const uint8_t *act = b->q_act;                                                             \
        const size_t line = (size_t)b->block_tokens * 4;                                           \
        ROWS_##N(Q_ZERO) for (uint32_t d = 0; d < b->head_dim; d += 32) {                          \
            ROWS_##N(Q_INIT) if (q4) {                                                             \
                _Pragma("GCC unroll 4") for (int g = 0; g < 4; g++, k += line) {                   \
                    const __m512i low = _mm512_set1_epi8(15), both = _mm512_loadu_si512(k);        \
                    __m512i lo = _mm512_and_si512(both, low);                                      \
                    __m512i hi = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);                \
                    fetch_ahead(k, b->ahead, 64);                                                  \
                    ROWS_##N(Q_DOTS)                                                               \
                }                                                                                  \
            }                                                                                      \
            else {                                                                                 \
                _Pragma("GCC unroll 8") for (int g = 0; g < 8; g++, k += line) {                   \
                    __m512i w = _mm512_xor_si512(_mm512_loadu_si512(k), _mm512_set1_epi8(-128));   \
                    fetch_ahead(k, b->ahead, 64);                                                  \
                    ROWS_##N(Q_DOT)                                                                \
                }                                                                                  \
            }                                                                                      \
            __m512 sk = load_kv((const uint8_t *)ks, 0, true);                                     \
            __m512 minus = _mm512_mul_ps(sk, _mm512_set1_ps(-KERN_MAGIC));                         \
            fetch_ahead((const uint8_t *)ks, b->ahead, 64);                                        \
            ROWS_##N(Q_SCALE) ks += b->block_tokens;                                               \
            act += R * ACT_ROW_BYTES;                                                              \
        }                                                                                          \
        ROWS_##N(Q_STORE)                                                                          \
    }                                                                                              \
    static void scaled_##N(const struct attn_block *b, const uint8_t *k, const uint16_t *ks,       \
                           float *s, uint32_t n) {                                                 \
        for (uint32_t t = 0; t < n; t += 16, s += 16 * N)                                          \
            if (b->k_dtype == KV_Q4_0)                                                             \
                scaled_tile_##N(b, k + (size_t)t * 4, ks + t, s, true);                            \
            else                                                                                   \
                scaled_tile_##N(b, k + (size_t)t * 4, ks + t, s, false);                           \
    }

/* Kernels for the numbers of pairs that a block may have. */
#define BY_PAIRS(name)                                                                             \
    {                                                                                              \
        NULL, name##_1, name##_2, name##_3, name##_4, NULL, name##_6, NULL, name##_8, NULL, NULL,  \
            NULL, name##_12,                                                                       \
    }
#define FOR_PAIRS(DEFINE) DEFINE(1) DEFINE(2) DEFINE(3) DEFINE(4) DEFINE(6) DEFINE(8) DEFINE(12)

FOR_PAIRS(DEFINE_SCORES)
FOR_PAIRS(DEFINE_SCALED_SCORES)

typedef void (*scores_fn)(const struct attn_block *b, const uint8_t *k, float *s, uint32_t n);
typedef void (*scaled_fn)(const struct attn_block *b, const uint8_t *k, const uint16_t *ks,
                          float *s, uint32_t n);
static const scores_fn scores_by_pairs[KERN_ATTN_ROWS + 1] = BY_PAIRS(scores);
static const scaled_fn scaled_by_pairs[KERN_ATTN_ROWS + 1] = BY_PAIRS(scaled);

static void avx512_attn_scores(const struct attn_block *b, const uint8_t *k, const uint16_t *ks,
                               uint32_t pos0, uint32_t n) {
    float *s = b->s + (size_t)pos0 * b->rh;
    if (kv_is_scaled(b->k_dtype))
        scaled_by_pairs[b->rh](b, k, ks, s, n);
    else
        scores_by_pairs[b->rh](b, k, s, n);
}

/* The lanes of the tile that starts at pos which lie in [first, last]. */
ALWAYS_INLINE __mmask16 span16(uint32_t pos, uint32_t first, uint32_t last) {
    __mmask16 from = pos < first ? (__mmask16)(0xffffu << (first - pos)) : (__mmask16)0xffff;
    return from & tail_mask(last - pos + 1);
}

static float avx512_attn_softmax(const struct attn_block *b, uint32_t i, uint32_t first,
                                 uint32_t last, float sink) {
    const size_t step = (size_t)b->rh * 16;
    const uint32_t start = first / 16 * 16;
    float *tile = b->s + first / 16 * step + (size_t)i * 16, *s = tile;
    __m512 m = _mm512_set1_ps(sink);
    for (uint32_t pos = start; pos <= last; pos += 16, s += step) {
        __m512 v = _mm512_loadu_ps(s);
        if (b->softcap > 0.0f) {
            v = softcap16(v, b->softcap);
            _mm512_storeu_ps(s, v);
        }
        m = _mm512_mask_max_ps(m, span16(pos, first, last), m, v);
    }
    const float most = _mm512_reduce_max_ps(m);
    m = _mm512_set1_ps(most);
    __m512 sum = _mm512_setzero_ps();
    s = tile;
    for (uint32_t pos = start; pos <= last; pos += 16, s += step) {
        __m512 e = exp16(_mm512_sub_ps(_mm512_loadu_ps(s), m));
        e = _mm512_maskz_mov_ps(span16(pos, first, last), e);
        _mm512_storeu_ps(s, e);
        sum = _mm512_add_ps(sum, e);
    }
    return 1.0f / (tree16(sum) + kern_ref_exp(sink - most));
}

/* 32 values of a token, or (floats) the first 16; sv: the scale of these 32. A nibble picks its value from
 * the sixteen products. */
ALWAYS_INLINE void load_v(const uint8_t *v, const float *sv, __m512 *v0, __m512 *v1,
                          const enum kv_dtype t, const bool two) {
    if (!kv_is_scaled(t)) {
        *v0 = load_kv(v, 0, t == KV_F16);
        *v1 = two ? load_kv(v, 16, t == KV_F16) : *v0;
        return;
    }
    const __m512 scale = _mm512_set1_ps(*sv);
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)v);
    if (t == KV_Q8_0) {
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(v + 16));
        *v0 = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a)));
        *v1 = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(c)));
    } else {
        const __m512 q = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        __m512 products = _mm512_mul_ps(scale, q);
        __m512i both = _mm512_cvtepu8_epi32(a); /* the index is a lane's low four bits */
        *v0 = _mm512_permutexvar_ps(both, products);
        *v1 = _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), products);
    }
}

/* Values: a lane is a d. N pairs x 32 d in registers, one FMA chain over positions. */
#define A_LOAD(i)                                                                                  \
    __m512 lo##i = _mm512_loadu_ps(acc + (i)*dim);                                                 \
    __m512 hi##i = two ? _mm512_loadu_ps(acc + (i)*dim + 16) : lo##i;
#define A_FMA(i)                                                                                   \
    FMA_BCAST(lo##i, v0, p + (i)*16);                                                              \
    if (two)                                                                                       \
        FMA_BCAST(hi##i, v1, p + (i)*16);
#define A_STORE(i)                                                                                 \
    _mm512_storeu_ps(acc + (i)*dim, lo##i);                                                        \
    if (two)                                                                                       \
        _mm512_storeu_ps(acc + (i)*dim + 16, hi##i);

/* Calls f with the block's dtype as a constant behind the arguments. */
#define BY_V_DTYPE(b, f, ...)                                                                      \
    switch ((b)->v_dtype) {                                                                        \
    case KV_F16:                                                                                   \
        f(__VA_ARGS__, KV_F16);                                                                    \
        break;                                                                                     \
    case KV_F32:                                                                                   \
        f(__VA_ARGS__, KV_F32);                                                                    \
        break;                                                                                     \
    case KV_Q8_0:                                                                                  \
        f(__VA_ARGS__, KV_Q8_0);                                                                   \
        break;                                                                                     \
    default:                                                                                       \
        f(__VA_ARGS__, KV_Q4_0);                                                                   \
    }

#define DEFINE_VALUES(N)                                                                           \
    ALWAYS_INLINE void values_part_##N(const struct attn_block *b, const uint8_t *v,               \
                                       const float *sv, uint32_t pos, uint32_t end, float *acc,    \
                                       const enum kv_dtype t, const bool two) {                    \
        const size_t dim = b->head_dim, row = attn_v_bytes(t, dim);                                \
        ROWS_##N(A_LOAD) for (; pos < end; pos++, v += row, sv += dim / 32) {                      \
            const float *p = b->s + (size_t)(pos / 16) * (N * 16) + pos % 16;                      \
            __m512 v0, v1;                                                                         \
            load_v(v, sv, &v0, &v1, t, two);                                                       \
            fetch_ahead(v, b->ahead, t == KV_F32 ? 128 : 64);                                      \
            ROWS_##N(A_FMA)                                                                        \
        }                                                                                          \
        ROWS_##N(A_STORE)                                                                          \
    }                                                                                              \
    ALWAYS_INLINE void values_any_##N(const struct attn_block *b, const uint8_t *v,                \
                                      const float *sv, uint32_t pos, uint32_t end,                 \
                                      const enum kv_dtype t) {                                     \
        for (uint32_t d = b->d0; d < b->d1; d += 32) {                                             \
            const uint8_t *vd = v + attn_v_bytes(t, d);                                            \
            if (d + 32 <= b->d1)                                                                   \
                values_part_##N(b, vd, sv + d / 32, pos, end, b->acc + d, t, true);                \
            else                                                                                   \
                values_part_##N(b, vd, sv, pos, end, b->acc + d, t, false);                        \
        }                                                                                          \
    }                                                                                              \
    static void values_##N(const struct attn_block *b, const uint8_t *v, const float *sv,          \
                           uint32_t pos, uint32_t end) {                                           \
        BY_V_DTYPE(b, values_any_##N, b, v, sv, pos, end)                                          \
    }

FOR_PAIRS(DEFINE_VALUES)

typedef void (*values_fn)(const struct attn_block *b, const uint8_t *v, const float *sv,
                          uint32_t pos, uint32_t end);
static const values_fn values_by_pairs[KERN_ATTN_ROWS + 1] = BY_PAIRS(values);

/* The triangles at a chunk's end and at its window's start: one position, some of the pairs. */
ALWAYS_INLINE void values_of(const struct attn_block *b, const uint8_t *v, const float *sv,
                             uint32_t pos, uint32_t first, uint32_t end, const enum kv_dtype t) {
    const float *p = b->s + (size_t)(pos / 16) * b->rh * 16 + pos % 16;
    for (uint32_t d = b->d0; d < b->d1; d += 32) {
        const bool two = d + 32 <= b->d1;
        __m512 v0, v1;
        load_v(v + attn_v_bytes(t, d), sv + d / 32, &v0, &v1, t, two);
        for (uint32_t i = first; i < end; i++) {
            float *acc = b->acc + (size_t)i * b->head_dim + d;
            const __m512 pi = _mm512_set1_ps(p[i * 16]);
            _mm512_storeu_ps(acc, _mm512_fmadd_ps(pi, v0, _mm512_loadu_ps(acc)));
            if (two)
                _mm512_storeu_ps(acc + 16, _mm512_fmadd_ps(pi, v1, _mm512_loadu_ps(acc + 16)));
        }
    }
}

#define V_SCALES 512 /* of some tokens, converted together */

static void f16_to_f32(float *y, const uint16_t *x, size_t n) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = tail_mask(n - i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, x + i)));
    }
}

static void avx512_attn_values(const struct attn_block *b, const uint8_t *v, const uint16_t *vs,
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
        if (first == 0 && end == b->rh)
            values_by_pairs[b->rh](b, v + t * row, sv, pos0 + t, pos0 + t + n);
        else
            for (uint32_t i = 0; i < n; i++)
                BY_V_DTYPE(b, values_of, b, v + (t + i) * row, sv + i * n_scales, pos0 + t + i,
                           first, end)
    }
}

static const struct kern_impl impl_avx512 = {
    .tile_rows = KERN_TILE_ROWS, /* 14 integer and 14 float sums fill 28 of 32 registers */
    .quant_row = avx512_quant_row,
    .mat_quant = avx512_mat_quant,
    .mat_float = avx512_mat_float,
    .decode_panels = 8,
    .f32_to_f16 = avx512_f32_to_f16,
    .attn_scores = avx512_attn_scores,
    .attn_softmax = avx512_attn_softmax,
    .attn_values = avx512_attn_values,
};

const struct kern_ops kern_ops_avx512 = {
    .name = "avx512",
    .rms_norm = avx512_rms_norm,
    .rope_norm = avx512_rope_norm,
    .rope_neox = avx512_rope_neox,
    .silu_mul = avx512_silu_mul,
    .gelu_mul = avx512_gelu_mul,
    .swiglu_oai = avx512_swiglu_oai,
    .softcap = avx512_softcap,
    .scale = avx512_scale,
    .add = avx512_add,
    .add_scaled = avx512_add_scaled,
    .impl = &impl_avx512,
};
