/* matmul_avx2.c - products with 16 registers of 8 lanes: a panel is two halves of 8 outputs, done
 * together with up to 6 rows at a time (bytes: 4).
 *
 * vpmaddubsw adds pairs into 16 bits with saturation, which exactness cannot use. Three kinds of quants:
 *   U  nibbles (<= 15) stay below even summed over a block: 8 * 2 * 15 * 127 = 30,480.
 *   W  up to 63: two groups may be summed, 2 * 2 * 63 * 127 = 32,004; then vpmaddwd widens, by ones or by
 *      the scales of Q2_K, Q3_K and Q6_K, so that the sum of a block is I of the contract.
 *   S  bytes are expanded with their sign, and the product is |w| times q with w's sign: 2 * 128 * 127 =
 *      32,512 at most, widened at once. */
#include "worker/kernels/matmul_avx2.h"

#include <immintrin.h>

#include "common/check.h"
#include "worker/kernels/kern_rows.h"

/* --- activations -------------------------------------------------------------------------------- */

ALWAYS_INLINE int32_t max8(__m256i v) {
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return _mm_cvtsi128_si32(a);
}

/* Sums of a block's two halves. */
ALWAYS_INLINE void half_sums(int32_t ret[2], const __m256i q[4]) {
    __m256i a = _mm256_hadd_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i *)(void *)ret, _mm_hadd_epi32(s, s));
}

/* 32 int32 in -127 .. 127 to bytes, in order. */
ALWAYS_INLINE __m256i pack_bytes(const __m256i q[4]) {
    __m256i a = _mm256_packs_epi32(q[0], q[1]), b = _mm256_packs_epi32(q[2], q[3]);
    __m256i bytes = _mm256_packs_epi16(a, b); /* groups of 4: 0 2 4 6 | 1 3 5 7 */
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

void avx2_quant_row(uint8_t *tile, uint32_t rows, uint32_t r, const float *x, uint32_t n_blocks,
                    struct act_class c) {
    const __m256i abs_mask = _mm256_set1_epi32(0x7fffffff);
    for (uint32_t b = 0; b < n_blocks; b++, x += KERN_QBLOCK, tile += act_block_bytes(rows)) {
        __m256i q[4], most = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) /* magnitudes compare as integers; a NaN is the largest */
            most = _mm256_max_epi32(
                most, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)), abs_mask));
        int32_t bits = max8(most);
        float amax, da = 0.0f, inv = 0.0f;
        memcpy(&amax, &bits, 4);
        if (bits >= 0x7f800000) {
            da = __builtin_nanf("");
        } else if (amax >= KERN_AMAX_MIN) {
            da = amax / 127.0f;
            inv = 127.0f / amax;
        }
        for (int i = 0; i < 4; i++) {
            __m256 v = inv != 0.0f ? _mm256_loadu_ps(x + 8 * i) : _mm256_setzero_ps();
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v, _mm256_set1_ps(inv)));
        }
        int32_t sum[2];
        half_sums(sum, q);
        _mm256_storeu_si256((__m256i *)(void *)(tile + r * KERN_QBLOCK), pack_bytes(q));
        act_put_words(tile, rows, r, sum, da, c);
    }
}

/* --- quantised weights -------------------------------------------------------------------------- */

/* Where a tile finds a panel's weights: few rows in the packed panel itself, whose form
 * this is then (each weight is used once, memory is what they wait for); more rows in this thread's expanded
 * copy. */
#define EXPANDED (-1)
#define IS_RECORD(from) ((from) >= PACK_Q2_K)
#define IS_FIVE_BITS(from) ((from) == PACK_Q5_K || (from) == PACK_Q5_0 || (from) == PACK_Q5_1)
/* Forms whose blocks are scaled by halves while they are summed. */
#define IS_SCALED(from) ((from) == PACK_Q2_K || (from) == PACK_Q3_K || (from) == PACK_Q6_K)
/* Bytes from what is read of a record to what is fetched meanwhile. */
#define RECORD_AHEAD 8192

struct tile {
    const uint8_t *panel;
    const uint8_t *dw,
        *mw;        /* packed only: the panel's scales and mins, a record's d and sub-scales */
    __m256i table;  /* PACK_U8: of the weight type the offset, in all bytes; the type's values */
    int16_t offset; /* of a type that is scaled while it is summed */
    const uint8_t *act; /* from the first of these rows on */
    uint32_t act_rows;  /* of the whole tile: the strides */
    uint32_t n_blocks;
    uint32_t rec_blocks;
    size_t rec_bytes;
    /* Packed only: bytes from here to the same place of the next panel, which is fetched into L2 meanwhile.
     * What is used once comes from memory; a panel's few scales are too short a stream for the hardware
     * to see, and with fetches into L1 its few buffers halve the rate (measured, Zen 4). */
    size_t ahead;
    float *out; /* [rows][16] */
};

ALWAYS_INLINE __m256i load8i(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

ALWAYS_INLINE __m256i bcast4(const uint8_t *p) {
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)(const void *)p));
}

ALWAYS_INLINE __m256 half8(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* --- quants: one half of a group, matmul.h --- */

/* Bits of vector i, n places to the right. */
ALWAYS_INLINE __m256i bits(const uint8_t *v, int i, int n, int mask) {
    __m256i x = load8i(v + i * 64);
    return _mm256_and_si256(n ? _mm256_srli_epi16(x, n) : x, _mm256_set1_epi8((char)mask));
}

ALWAYS_INLINE __m256i quants3(const uint8_t *v, int g) {
    if (g < 6)
        return bits(v, g / 2, 3 * (g % 2), 7);
    return _mm256_or_si256(bits(v, g - 6, 6, 3), bits(v, 2, g - 2, 4));
}

ALWAYS_INLINE __m256i quants5(const uint8_t *v, int g) {
    if (g < 5)
        return bits(v, g, 0, 31);
    __asm__("" : "+r"(v)); /* loaded again: registers are too few to keep them from above */
    if (g == 7)
        return _mm256_or_si256(_mm256_or_si256(bits(v, 4, 5, 7), bits(v, 1, 2, 8)),
                               bits(v, 3, 1, 16));
    return _mm256_or_si256(bits(v, 2 * g - 10, 5, 7), bits(v, 2 * g - 9, 3, 24));
}

ALWAYS_INLINE __m256i quants6(const uint8_t *v, int g) {
    const int i = g / 4 * 3;
    if (g % 4 < 3)
        return bits(v, i + g % 4, 0, 63);
    return _mm256_or_si256(_mm256_or_si256(bits(v, i, 6, 3), bits(v, i + 1, 4, 12)),
                           bits(v, i + 2, 2, 48));
}

/* Group g (0 .. 7): u8, of kind S s8. */
ALWAYS_INLINE __m256i quants(const uint8_t *half, int g, __m256i table, const int from) {
    switch (from) {
    case EXPANDED:
        return load8i(half + g * 64);
    case PACK_U8:
        return _mm256_sub_epi8(load8i(half + g * 64), table);
    case PACK_Q2_K:
        return bits(half, g / 4, g % 4 * 2, 3);
    case PACK_Q3_K:
        return quants3(half, g);
    case PACK_Q5_K:
    case PACK_Q5_0:
    case PACK_Q5_1:
        return quants5(half, g);
    case PACK_Q6_K:
        return quants6(half, g);
    case PACK_NIB:
    case PACK_Q4_K:
        return bits(half, g % 4, g < 4 ? 0 : 4, 15);
    default:
        return _mm256_shuffle_epi8(table, bits(half, g % 4, g < 4 ? 0 : 4, 15));
    }
}

ALWAYS_INLINE size_t quant_vectors(const int from) {
    if (IS_FIVE_BITS(from))
        return 5;
    return from == PACK_Q2_K   ? 2
           : from == PACK_Q3_K ? 3
           : from == PACK_Q6_K ? 6
           : from == PACK_U8   ? 8
                               : 4;
}

/* --- scales --- */

/* Of one half, 8 outputs. */
struct scales {
    __m256 dw, mw;    /* of a scaled type d; with mins of halves mw is -dmin */
    __m256i mins;     /* i16 pairs */
    __m256i sc0, sc1; /* scaled: i16, twice in each lane */
    __m256i minus;    /* scaled: i16 pairs, the scales times -offset */
};

ALWAYS_INLINE __m256i load_u8(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

ALWAYS_INLINE __m256i load_i8(const uint8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

ALWAYS_INLINE __m256i twice(__m256i x) {
    return _mm256_blend_epi16(x, _mm256_slli_epi32(x, 16), 0xaa);
}

/* At d and sub: d and -dmin of the record and the block's row of sub-scales (else dw and mw), 8 outputs. */
ALWAYS_INLINE void record_scales(struct scales *s, const uint8_t *d, const uint8_t *sub,
                                 const int half, const int from) {
    if (from == PACK_Q5_1) /* the one with two bytes a sub-scale */
        s->mw = half8(sub + half * 16);
    d += half * 16;
    sub += half * 8;
    if (from == PACK_MXFP4) { /* 2^(e - 128), which may be denormal */
        __m256i e = _mm256_add_epi32(load_u8(sub), _mm256_set1_epi32(12));
        s->dw =
            _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(e, 23)), _mm256_set1_ps(0x1p-13f));
        return;
    }
    s->dw = half8(d);
    if (from == PACK_IQ4_XS)
        s->dw = _mm256_mul_ps(s->dw, _mm256_cvtepi32_ps(load_i8(sub)));
    if (from == PACK_Q4_K || from == PACK_Q5_K) {
        s->dw = _mm256_mul_ps(s->dw, _mm256_cvtepi32_ps(load_u8(sub)));
        s->mw = _mm256_mul_ps(half8(d + 32), _mm256_cvtepi32_ps(load_u8(sub + 16)));
    }
    if (from == PACK_Q3_K || from == PACK_Q6_K) {
        s->sc0 = twice(load_i8(sub));
        s->sc1 = twice(load_i8(sub + 16));
    }
    if (from == PACK_Q2_K) {
        const __m256i low = _mm256_set1_epi32(15);
        __m256i a = load_u8(sub), b = load_u8(sub + 16);
        s->sc0 = twice(_mm256_and_si256(a, low));
        s->sc1 = twice(_mm256_and_si256(b, low));
        s->mins = _mm256_blend_epi16(_mm256_srli_epi32(a, 4),
                                     _mm256_slli_epi32(_mm256_srli_epi32(b, 4), 16), 0xaa);
        s->mw = half8(d + 32);
    }
}

/* From where the tile is: d, sub as above, or the block's scales in the expanded panel; half 0 or 1. */
ALWAYS_INLINE void load_scales(struct scales *s, const uint8_t *d, const uint8_t *sub,
                               const int half, const int from, const bool has_min) {
    if (IS_RECORD(from)) {
        record_scales(s, d, sub, half, from);
    } else if (from == EXPANDED) {
        s->dw = _mm256_loadu_ps((const float *)(const void *)(d + half * 32));
        s->mw = _mm256_loadu_ps((const float *)(const void *)(d + 128 + half * 32));
    } else {
        s->dw = half8(d + half * 16);
        s->mw = has_min ? half8(sub + half * 16) : s->dw;
    }
}

/* Where a tile is in its panel. */
struct place {
    const uint8_t *v, *d, *sub;
    uint32_t left; /* blocks of the record */
};

ALWAYS_INLINE void next_block(struct place *at, const struct tile *t, const int from) {
    if (from == EXPANDED) {
        at->v += MAT_PANEL_BLOCK_BYTES;
        at->d += MAT_PANEL_BLOCK_BYTES;
    } else if (!IS_RECORD(from)) {
        at->v += quant_vectors(from) * 64;
        at->d += 32;
        at->sub += 32;
    } else if (--at->left) {
        at->v += quant_vectors(from) * 64;
        at->sub += packed_sub_bytes((enum pack_form)from);
        at->d += packed_d_each_block((enum pack_form)from) ? 32 : 0;
    } else {
        const size_t to = t->rec_bytes - (t->rec_blocks - 1) * quant_vectors(from) * 64;
        at->v += to;
        at->d += t->rec_bytes;
        at->sub += t->rec_bytes - (t->rec_blocks - 1) * packed_sub_bytes((enum pack_form)from);
        at->left = t->rec_blocks;
    }
}

ALWAYS_INLINE void fetch_quants(const struct place *at, size_t ahead, int g, const int from) {
    if (from != EXPANDED && g < (int)quant_vectors(from))
        _mm_prefetch((const char *)at->v + (IS_RECORD(from) ? RECORD_AHEAD : ahead) + g * 64,
                     _MM_HINT_T1);
}

ALWAYS_INLINE void fetch_scales(const struct place *at, size_t ahead, const int from,
                                const bool has_min) {
    if (from == EXPANDED)
        return;
    const enum pack_form form = (enum pack_form)from;
    const size_t to = IS_RECORD(from) && !packed_whole_record(form) ? RECORD_AHEAD : ahead;
    if (IS_RECORD(from) ? packed_sub_bytes(form) != 0 : has_min)
        _mm_prefetch((const char *)at->sub + to, _MM_HINT_T1);
    if (!IS_RECORD(from) || packed_d_each_block(form))
        _mm_prefetch((const char *)at->d + to, _MM_HINT_T1);
}

/* Of kind W. The expanded panel has sc0 and sc1 of both halves, then d; else dw, mins and -dmin. */
ALWAYS_INLINE void load_wide(struct scales *s, const struct tile *t, const struct place *at,
                             const int half, const bool scaled, const bool half_min,
                             const int from) {
    load_scales(s, at->d, at->sub, half, from, true);
    if (from == EXPANDED && scaled) {
        s->sc0 = load8i(at->d + half * 32);
        s->sc1 = load8i(at->d + 64 + half * 32);
        s->dw = s->mw;
    } else if (from == EXPANDED && half_min) {
        s->mins = load8i(at->d + 64 + half * 32);
    }
    if (scaled)
        s->minus = _mm256_mullo_epi16(_mm256_blend_epi16(s->sc0, s->sc1, 0xaa),
                                      _mm256_set1_epi16((int16_t)-t->offset));
}

ALWAYS_INLINE void load_both(struct scales *s0, struct scales *s1, const struct tile *t,
                             const struct place *at, const bool scaled, const bool half_min,
                             const int from) {
    load_wide(s0, t, at, 0, scaled, half_min, from);
    load_wide(s1, t, at, 1, scaled, half_min, from);
}

/* --- tiles --- */

/* Ends a step of a sum. Without it gcc 12 computes all products of a block first and keeps most of them
 * on the stack (tools/dev/check-spills looks for that). */
#define STEP(sum) __asm__("" : "+x"(sum))

/* N rows x 16 outputs: the integer sums of a block. */
#define T_INIT(i) __m256i lo##i = _mm256_setzero_si256(), hi##i = lo##i;
#define U_DOT(i)                                                                                   \
    {                                                                                              \
        __m256i q = bcast4(act + (i)*32 + g * 4);                                                  \
        lo##i = _mm256_add_epi16(lo##i, _mm256_maddubs_epi16(w0, q));                              \
        hi##i = _mm256_add_epi16(hi##i, _mm256_maddubs_epi16(w1, q));                              \
        STEP(lo##i);                                                                               \
        STEP(hi##i);                                                                               \
    }
#define S_DOT(i)                                                                                   \
    {                                                                                              \
        __m256i q = bcast4(act + (i)*32 + g * 4);                                                  \
        __m256i p0 = _mm256_maddubs_epi16(a0, _mm256_sign_epi8(q, w0));                            \
        __m256i p1 = _mm256_maddubs_epi16(a1, _mm256_sign_epi8(q, w1));                            \
        lo##i = _mm256_add_epi32(lo##i, _mm256_madd_epi16(p0, ones));                              \
        hi##i = _mm256_add_epi32(hi##i, _mm256_madd_epi16(p1, ones));                              \
        STEP(lo##i);                                                                               \
        STEP(hi##i);                                                                               \
    }
#define U_SUM(sum, i) _mm256_add_epi32(bcast4(tail + (i)*4), _mm256_madd_epi16(sum, ones))
#define S_SUM(sum, i) _mm256_add_epi32(magic, sum)

/* acc = fma(fma(sum as float, dw, -dw * magic), da, acc), then fma(mw, sa, acc): kernels.h. */
ALWAYS_INLINE __m256 scale8(__m256 acc, __m256i sum, __m256 dw, const uint8_t *da, __m256 mw,
                            const uint8_t *sa, const bool has_min) {
    __m256 minus = _mm256_mul_ps(dw, _mm256_set1_ps(-KERN_MAGIC));
    __m256 x = _mm256_fmadd_ps(_mm256_castsi256_ps(sum), dw, minus);
    acc = _mm256_fmadd_ps(x, _mm256_castsi256_ps(bcast4(da)), acc);
    return has_min ? _mm256_fmadd_ps(mw, _mm256_castsi256_ps(bcast4(sa)), acc) : acc;
}

/* Float sums: in registers while there are enough, else in memory, which costs a load and a store a block. */
#define REG_OPEN(i) __m256 f##i = _mm256_setzero_ps(), e##i = f##i;
#define REG_LO(i) f##i
#define REG_HI(i) e##i
#define REG_SET(i, lo, hi) f##i = lo, e##i = hi
#define REG_CLOSE(i)                                                                               \
    _mm256_storeu_ps(out + (i)*16, f##i);                                                          \
    _mm256_storeu_ps(out + (i)*16 + 8, e##i);
#define MEM_OPEN(i)                                                                                \
    _mm256_storeu_ps(out + (i)*16, _mm256_setzero_ps());                                           \
    _mm256_storeu_ps(out + (i)*16 + 8, _mm256_setzero_ps());
#define MEM_LO(i) _mm256_loadu_ps(out + (i)*16)
#define MEM_HI(i) _mm256_loadu_ps(out + (i)*16 + 8)
#define MEM_SET(i, lo, hi)                                                                         \
    _mm256_storeu_ps(out + (i)*16, lo);                                                            \
    _mm256_storeu_ps(out + (i)*16 + 8, hi);                                                        \
    __asm__ volatile("" ::: "memory") /* the next row's sums not before these are stored */
#define MEM_CLOSE(i)

/* acc of a sum that is I of the contract already: d * (float)I; with mins of halves -dmin * (float)M too. */
ALWAYS_INLINE __m256 scale_I8(__m256 acc, __m256i sum, const struct scales *s, const uint8_t *da,
                              const uint8_t *pair, const bool scaled, const bool half_min) {
    const __m256 a = _mm256_castsi256_ps(bcast4(da));
    if (scaled)
        acc = _mm256_fmadd_ps(_mm256_mul_ps(s->dw, _mm256_cvtepi32_ps(sum)), a, acc);
    else
        acc = scale8(acc, sum, s->dw, da, s->dw, da, false);
    if (!half_min)
        return acc;
    __m256 m = _mm256_cvtepi32_ps(_mm256_madd_epi16(s->mins, bcast4(pair)));
    return _mm256_fmadd_ps(_mm256_mul_ps(s->mw, m), a, acc);
}

#define SCALE(i, SUM, PLACE)                                                                       \
    {                                                                                              \
        const uint8_t *da = tail + (R + (i)) * 4, *sa = tail + (2 * R + (i)) * 4;                  \
        __m256 lo = scale8(PLACE##_LO(i), SUM(lo##i, i), s0.dw, da, s0.mw, sa, has_min);           \
        __m256 hi = scale8(PLACE##_HI(i), SUM(hi##i, i), s1.dw, da, s1.mw, sa, has_min);           \
        PLACE##_SET(i, lo, hi);                                                                    \
    }
#define U_SCALE_REG(i) SCALE(i, U_SUM, REG)
#define U_SCALE_MEM(i) SCALE(i, U_SUM, MEM)
#define S_SCALE_REG(i) SCALE(i, S_SUM, REG)
#define S_SCALE_MEM(i) SCALE(i, S_SUM, MEM)

#define DEFINE_TILE(KIND, N, PLACE)                                                                \
    ALWAYS_INLINE void KIND##_tile_##N(const struct tile *t, uint32_t first, const bool has_min,   \
                                       const int from) {                                           \
        const uint32_t R = t->act_rows;                                                            \
        const __m256i ones = _mm256_set1_epi16(1), magic = _mm256_set1_epi32(KERN_MAGIC_BITS);     \
        const __m256i table = t->table;                                                            \
        const uint8_t *act = t->act + first * 32, *tail = t->act + R * 32 + first * 4;             \
        struct place at = {t->panel, t->dw, t->mw, t->rec_blocks};                                 \
        const size_t ahead = t->ahead;                                                             \
        float *const out = t->out;                                                                 \
        (void)magic;                                                                               \
        ROWS_##N(PLACE##_OPEN) for (size_t b = t->n_blocks; b; b--) {                              \
            ROWS_##N(T_INIT) _Pragma("GCC unroll 8") for (int g = 0; g < 8; g++) {                 \
                __m256i w0 = quants(at.v, g, table, from);                                         \
                __m256i w1 = quants(at.v + 32, g, table, from);                                    \
                __m256i a0 = _mm256_abs_epi8(w0), a1 = _mm256_abs_epi8(w1);                        \
                (void)a0, (void)a1;                                                                \
                fetch_quants(&at, ahead, g, from);                                                 \
                ROWS_##N(KIND##_DOT)                                                               \
            }                                                                                      \
            struct scales s0, s1;                                                                  \
            load_scales(&s0, at.d, at.sub, 0, from, has_min);                                      \
            load_scales(&s1, at.d, at.sub, 1, from, has_min);                                      \
            ROWS_##N(KIND##_SCALE_##PLACE) fetch_scales(&at, ahead, from, has_min);                \
            next_block(&at, t, from);                                                              \
            act += R * ACT_ROW_BYTES;                                                              \
            tail += R * ACT_ROW_BYTES;                                                             \
        }                                                                                          \
        ROWS_##N(PLACE##_CLOSE)                                                                    \
    }

/* Of kind W, two groups a step. Where the sums are scaled they start with the offset's part, else with the
 * activations' correction. */
#define W_INIT(i)                                                                                  \
    __m256i lo##i, hi##i;                                                                          \
    if (scaled) {                                                                                  \
        lo##i = _mm256_madd_epi16(s0.minus, bcast4(tail + (3 * R + (i)) * 4));                     \
        hi##i = _mm256_madd_epi16(s1.minus, bcast4(tail + (3 * R + (i)) * 4));                     \
    } else {                                                                                       \
        lo##i = hi##i = bcast4(tail + (i)*4);                                                      \
    }
#define W_DOT(i)                                                                                   \
    {                                                                                              \
        __m256i q = bcast4(act + (i)*32 + g * 4), r = bcast4(act + (i)*32 + g * 4 + 4);            \
        __m256i p0 = _mm256_add_epi16(_mm256_maddubs_epi16(w0, q), _mm256_maddubs_epi16(w2, r));   \
        __m256i p1 = _mm256_add_epi16(_mm256_maddubs_epi16(w1, q), _mm256_maddubs_epi16(w3, r));   \
        lo##i = _mm256_add_epi32(lo##i, _mm256_madd_epi16(p0, m0));                                \
        hi##i = _mm256_add_epi32(hi##i, _mm256_madd_epi16(p1, m1));                                \
        STEP(lo##i);                                                                               \
        STEP(hi##i);                                                                               \
    }
#define W_SCALE(i, PLACE)                                                                          \
    {                                                                                              \
        const uint8_t *da = tail + (R + (i)) * 4, *sa = tail + (2 * R + (i)) * 4;                  \
        const uint8_t *pair = tail + (3 * R + (i)) * 4;                                            \
        __m256 lo = PLACE##_LO(i), hi = PLACE##_HI(i);                                             \
        if (scaled || half_min) {                                                                  \
            lo = scale_I8(lo, lo##i, &s0, da, pair, scaled, half_min);                             \
            hi = scale_I8(hi, hi##i, &s1, da, pair, scaled, half_min);                             \
        } else {                                                                                   \
            lo = scale8(lo, lo##i, s0.dw, da, s0.mw, sa, has_min);                                 \
            hi = scale8(hi, hi##i, s1.dw, da, s1.mw, sa, has_min);                                 \
        }                                                                                          \
        PLACE##_SET(i, lo, hi);                                                                    \
    }
#define W_SCALE_REG(i) W_SCALE(i, REG)
#define W_SCALE_MEM(i) W_SCALE(i, MEM)

#define DEFINE_WIDE(N, PLACE)                                                                      \
    ALWAYS_INLINE void W_tile_##N(const struct tile *t, uint32_t first, const bool scaled,         \
                                  const bool has_min, const bool half_min, const int from) {       \
        const uint32_t R = t->act_rows;                                                            \
        const __m256i ones = _mm256_set1_epi16(1), table = t->table;                               \
        const uint8_t *act = t->act + first * 32, *tail = t->act + R * 32 + first * 4;             \
        struct place at = {t->panel, t->dw, t->mw, t->rec_blocks};                                 \
        float *const out = t->out;                                                                 \
        ROWS_##N(PLACE##_OPEN) for (size_t b = t->n_blocks; b; b--) {                              \
            struct scales s0, s1;                                                                  \
            if (scaled)                                                                            \
                load_both(&s0, &s1, t, &at, scaled, half_min, from);                               \
            ROWS_##N(W_INIT) _Pragma("GCC unroll 4") for (int g = 0; g < 8; g += 2) {              \
                __m256i w0 = quants(at.v, g, table, from);                                         \
                __m256i w1 = quants(at.v + 32, g, table, from);                                    \
                __m256i w2 = quants(at.v, g + 1, table, from);                                     \
                __m256i w3 = quants(at.v + 32, g + 1, table, from);                                \
                __m256i m0 = !scaled ? ones : g < 4 ? s0.sc0 : s0.sc1;                             \
                __m256i m1 = !scaled ? ones : g < 4 ? s1.sc0 : s1.sc1;                             \
                fetch_quants(&at, t->ahead, g, from);                                              \
                fetch_quants(&at, t->ahead, g + 1, from);                                          \
                ROWS_##N(W_DOT)                                                                    \
            }                                                                                      \
            if (!scaled)                                                                           \
                load_both(&s0, &s1, t, &at, scaled, half_min, from);                               \
            ROWS_##N(W_SCALE_##PLACE) fetch_scales(&at, t->ahead, from, true);                     \
            next_block(&at, t, from);                                                              \
            act += R * ACT_ROW_BYTES;                                                              \
            tail += R * ACT_ROW_BYTES;                                                             \
        }                                                                                          \
        ROWS_##N(PLACE##_CLOSE)                                                                    \
    }

/* --- instantiations --- */

DEFINE_TILE(U, 1, REG)
DEFINE_TILE(U, 2, REG)
DEFINE_TILE(U, 3, MEM)
DEFINE_TILE(U, 4, MEM)
DEFINE_TILE(U, 5, MEM)
DEFINE_TILE(U, 6, MEM)
DEFINE_TILE(S, 1, REG)
DEFINE_TILE(S, 2, MEM)
DEFINE_TILE(S, 3, MEM)
DEFINE_TILE(S, 4, MEM)
DEFINE_WIDE(1, REG)
DEFINE_WIDE(2, MEM)
DEFINE_WIDE(3, MEM)
DEFINE_WIDE(4, MEM)

#define DIRECT_NIB(N)                                                                              \
    static void U_direct_##N(const struct tile *t, bool has_min) {                                 \
        if (has_min)                                                                               \
            U_tile_##N(t, 0, true, PACK_NIB);                                                      \
        else                                                                                       \
            U_tile_##N(t, 0, false, PACK_NIB);                                                     \
    }
DIRECT_NIB(1)
DIRECT_NIB(2)
DIRECT_NIB(3)
DIRECT_NIB(4)
DIRECT_NIB(5)
DIRECT_NIB(6)

/* Forms that have mins, or none, whatever the type. */
#define DIRECT_U(N, form)                                                                          \
    static void form##_direct_##N(const struct tile *t, bool has_min) {                            \
        (void)has_min;                                                                             \
        U_tile_##N(t, 0, true, form);                                                              \
    }
#define DIRECT_S(N, form)                                                                          \
    static void form##_direct_##N(const struct tile *t, bool has_min) {                            \
        (void)has_min;                                                                             \
        S_tile_##N(t, 0, false, form);                                                             \
    }
#define DIRECT_W(N, form)                                                                          \
    static void form##_direct_##N(const struct tile *t, bool has_min) {                            \
        (void)has_min;                                                                             \
        W_tile_##N(t, 0, IS_SCALED(form), form == PACK_Q5_K || form == PACK_Q5_1,                  \
                   form == PACK_Q2_K, form);                                                       \
    }
#define DIRECT_4(KIND, form)                                                                       \
    DIRECT_##KIND(1, form) DIRECT_##KIND(2, form) DIRECT_##KIND(3, form) DIRECT_##KIND(4, form)
DIRECT_4(U, PACK_Q4_K)
DIRECT_U(5, PACK_Q4_K)
DIRECT_U(6, PACK_Q4_K)
DIRECT_4(W, PACK_Q2_K)
DIRECT_4(W, PACK_Q3_K)
DIRECT_4(W, PACK_Q5_K)
DIRECT_4(W, PACK_Q6_K)
DIRECT_4(S, PACK_U8)
DIRECT_4(S, PACK_IQ4_NL)
DIRECT_4(S, PACK_IQ4_XS)
DIRECT_4(W, PACK_MXFP4)
DIRECT_4(W, PACK_Q5_0)
DIRECT_4(W, PACK_Q5_1)

/* More rows than fit at once are cut as evenly as possible, so that the smallest parts do not arise. */
#define EXPANDED_U(N)                                                                              \
    static void U_rows_##N(const struct tile *t, uint32_t first, const struct packed_mat *w) {     \
        if (w->type->has_min)                                                                      \
            U_tile_##N(t, first, true, EXPANDED);                                                  \
        else                                                                                       \
            U_tile_##N(t, first, false, EXPANDED);                                                 \
    }
EXPANDED_U(3)
EXPANDED_U(4)
EXPANDED_U(5)
EXPANDED_U(6)
#define EXPANDED_S(N)                                                                              \
    static void S_rows_##N(const struct tile *t, uint32_t first, const struct packed_mat *w) {     \
        (void)w;                                                                                   \
        S_tile_##N(t, first, false, EXPANDED);                                                     \
    }
EXPANDED_S(2)
EXPANDED_S(3)
EXPANDED_S(4)
#define EXPANDED_WIDE(N)                                                                           \
    static void W_rows_##N(const struct tile *t, uint32_t first, const struct packed_mat *w) {     \
        if (w->type->form == PACK_Q2_K)                                                            \
            W_tile_##N(t, first, false, false, true, EXPANDED);                                    \
        else if (w->type->halves)                                                                  \
            W_tile_##N(t, first, true, false, false, EXPANDED);                                    \
        else if (w->type->has_min)                                                                 \
            W_tile_##N(t, first, false, true, false, EXPANDED);                                    \
        else                                                                                       \
            W_tile_##N(t, first, false, false, false, EXPANDED);                                   \
    }
EXPANDED_WIDE(2)
EXPANDED_WIDE(3)
EXPANDED_WIDE(4)

/* Rows at a time: 6 x 2 sums of nibbles, two loads and a product fill 15 registers; bytes need their signs
 * and magnitudes too, wide quants two groups at a time. */
#define U_MAX 6
#define S_MAX 4
#define W_MAX 4
struct rows_fns {
    uint32_t max;
    void (*direct[U_MAX + 1])(const struct tile *t, bool has_min); /* by number of rows */
    void (*expanded[U_MAX + 1])(const struct tile *t, uint32_t first, const struct packed_mat *w);
};
#define U_ROWS                                                                                     \
    { NULL, NULL, NULL, U_rows_3, U_rows_4, U_rows_5, U_rows_6 }
#define S_ROWS                                                                                     \
    { NULL, NULL, S_rows_2, S_rows_3, S_rows_4 }
#define W_ROWS                                                                                     \
    { NULL, NULL, W_rows_2, W_rows_3, W_rows_4 }
#define DIRECT_ROWS(form) NULL, form##_direct_1, form##_direct_2, form##_direct_3, form##_direct_4
#define FNS(form, KIND) [form] = {KIND##_MAX, {DIRECT_ROWS(form)}, KIND##_ROWS}
static const struct rows_fns fns_of[] = {
    [PACK_NIB] = {U_MAX,
                  {NULL, U_direct_1, U_direct_2, U_direct_3, U_direct_4, U_direct_5, U_direct_6},
                  U_ROWS},
    FNS(PACK_U8, S),
    FNS(PACK_Q2_K, W),
    FNS(PACK_Q3_K, W),
    [PACK_Q4_K] = {U_MAX, {DIRECT_ROWS(PACK_Q4_K), PACK_Q4_K_direct_5, PACK_Q4_K_direct_6}, U_ROWS},
    FNS(PACK_Q5_K, W),
    FNS(PACK_Q6_K, W),
    FNS(PACK_IQ4_NL, S),
    FNS(PACK_IQ4_XS, S),
    FNS(PACK_MXFP4, W),
    FNS(PACK_Q5_0, W),
    FNS(PACK_Q5_1, W),
};

/* --- expanded panels --- */

/* One half of a block's scales to its place behind the quants. */
ALWAYS_INLINE void put_scales(uint8_t *dst, const struct scales *s, const int from, bool has_min) {
    float *f = (float *)(void *)dst;
    if (from == PACK_Q3_K || from == PACK_Q6_K) {
        _mm256_storeu_si256((__m256i *)(void *)dst, s->sc0);
        _mm256_storeu_si256((__m256i *)(void *)(dst + 64), s->sc1);
        _mm256_storeu_ps(f + 32, s->dw);
        return;
    }
    _mm256_storeu_ps(f, s->dw);
    if (IS_RECORD(from)
            ? from == PACK_Q2_K || from == PACK_Q4_K || from == PACK_Q5_K || from == PACK_Q5_1
            : has_min)
        _mm256_storeu_ps(f + 32, s->mw);
    if (from == PACK_Q2_K)
        _mm256_storeu_si256((__m256i *)(void *)(dst + 64), s->mins);
}

/* 2 bits u of each byte to u * sc: sc is in both i16 of its lane, the products in a lane's four bytes. */
ALWAYS_INLINE __m256i times_scale(__m256i u, __m256i sc) {
    const __m256i lane =
        _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    __m256i table = _mm256_mullo_epi16(sc, _mm256_set1_epi32(0x03020100));
    return _mm256_shuffle_epi8(table, _mm256_or_si256(u, lane));
}

ALWAYS_INLINE void expand(const struct tile *t, uint8_t *dst, bool has_min, const int from) {
    struct place at = {t->panel, t->dw, t->mw, t->rec_blocks};
    for (uint32_t b = 0; b < t->n_blocks; b++, dst += MAT_PANEL_BLOCK_BYTES) {
        for (int half = 0; half < 2; half++) {
            struct scales s;
            load_scales(&s, at.d, at.sub, half, from, has_min);
            _Pragma("GCC unroll 8") for (int g = 0; g < 8; g++) {
                __m256i w = quants(at.v + half * 32, g, t->table, from);
                if (from == PACK_Q2_K)
                    w = times_scale(w, g < 4 ? s.sc0 : s.sc1);
                _mm256_storeu_si256((__m256i *)(void *)(dst + g * 64 + half * 32), w);
            }
            put_scales(dst + 512 + half * 32, &s, from, has_min);
        }
        next_block(&at, t, from);
    }
}

static void expand_panel(const struct tile *t, const struct packed_mat *w, uint8_t *dst) {
#define EXPAND(form)                                                                               \
    case form:                                                                                     \
        expand(t, dst, w->type->has_min, form);                                                    \
        break;
    switch ((enum pack_form)w->type->form) {
        EXPAND(PACK_NIB)
        EXPAND(PACK_U8)
        EXPAND(PACK_Q2_K)
        EXPAND(PACK_Q3_K)
        EXPAND(PACK_Q4_K)
        EXPAND(PACK_Q5_K)
        EXPAND(PACK_Q6_K)
        EXPAND(PACK_IQ4_NL)
        EXPAND(PACK_IQ4_XS)
        EXPAND(PACK_MXFP4)
        EXPAND(PACK_Q5_0)
        EXPAND(PACK_Q5_1)
    case PACK_F32:
    case PACK_F16:
    case PACK_BF16:
        UNREACHABLE("float weights");
    }
}

/* Of kind S values are signed, so their offset is taken out here; of the others by the activations. */
static __m256i table_of(const struct packed_mat *w) {
    const __m256i offset = _mm256_set1_epi8((char)w->type->offset);
    if (!w->type->values)
        return offset;
    __m256i values = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)w->type->values));
    return w->type->form == PACK_MXFP4 ? values : _mm256_sub_epi8(values, offset);
}

static struct tile tile_of(const struct packed_mat *w, uint32_t p, float *out) {
    const bool record = w->type->unit;
    const uint8_t *panel = packed_panel(w, p);
    return (struct tile){.panel = panel,
                         .dw = panel + (record ? w->d_off : w->scale_off),
                         .mw = panel + (record ? w->sub_off : w->min_off),
                         .table = table_of(w),
                         .offset = w->type->offset,
                         .n_blocks = w->n_in / KERN_QBLOCK,
                         .rec_blocks = w->rec_blocks,
                         .rec_bytes = w->rec_bytes,
                         .ahead = w->panel_bytes,
                         .out = out};
}

static void panel_direct(const struct mat_args *a, const struct rows_fns *fns, uint32_t p) {
    const uint32_t rows = a->tiles.n_rows;
    float out[U_MAX * KERN_LANES];
    struct tile t = tile_of(a->w, p, out);
    t.act = a->act;
    t.act_rows = rows;
    fns->direct[rows](&t, a->w->type->has_min);
    avx2_store_rows(a, p, 0, rows, out);
}

/* A tile's rows in parts as even as possible. */
static void expanded_tile(const struct mat_args *a, const struct rows_fns *fns, uint32_t p,
                          struct act_tile at) {
    float out[U_MAX * KERN_LANES];
    struct tile t = tile_of(a->w, p, out);
    t.panel = a->panel_scratch;
    t.dw = t.panel + 512;
    t.act = at.p;
    t.act_rows = at.rows;
    uint32_t parts = (at.rows + fns->max - 1) / fns->max;
    for (uint32_t r = 0, n; parts; parts--, r += n) {
        n = (at.rows - r + parts - 1) / parts;
        fns->expanded[n](&t, r, a->w);
        avx2_store_rows(a, p, at.first_row + r, n, out);
    }
}

void avx2_mat_quant(const struct mat_args *a, uint32_t begin, uint32_t end) {
    const struct rows_fns *fns = &fns_of[a->w->type->form];
    for (uint32_t p = begin; p < end; p++) {
        if (a->tiles.n_rows <= fns->max) {
            panel_direct(a, fns, p);
            continue;
        }
        struct tile t = tile_of(a->w, p, NULL);
        expand_panel(&t, a->w, a->panel_scratch);
        for (uint32_t i = 0; i < a->tiles.n_tiles; i++)
            expanded_tile(a, fns, p, act_tile_at(a, i));
    }
}
