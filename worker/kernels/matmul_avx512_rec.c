/* matmul_avx512_rec.c - panels of records (matmul.h): K-quants, IQ4, MXFP4, Q5.
 *
 * A few rows unpack in registers as they go along the stream; more rows expand the panel once into L1 for the
 * tiles of matmul_avx512_tile.c. Q2_K's quants become u * sc, at most 45, by a look-up, so that a block has
 * one sum. */
#include "worker/kernels/matmul_avx512.h"

#include "common/check.h"

/* Bytes from what one row reads to what is fetched into L2 meanwhile. */
#define AHEAD 16384

/* --- quants -------------------------------------------------------------------------------------- */

/* Bits of a where the constant has ones, else of b. */
#define SELECT(ones, a, b) _mm512_ternarylogic_epi32(_mm512_set1_epi8(ones), a, b, 0xca)
#define MASK(ones, a) _mm512_and_si512(_mm512_set1_epi8(ones), a)
#define VEC(i) _mm512_loadu_si512(v + (i)*64)

/* Bits of the next byte come in at the top of each: to be masked. */
ALWAYS_INLINE __m512i right(__m512i a, unsigned n) {
    return n ? _mm512_srli_epi64(a, n) : a;
}

ALWAYS_INLINE __m512i quants3(const uint8_t *v, unsigned g) {
    if (g < 6)
        return MASK(7, right(VEC(g / 2), 3u * (g % 2)));
    return MASK(7, SELECT(3, right(VEC(g - 6), 6), right(VEC(2), g - 2)));
}

ALWAYS_INLINE __m512i quants5(const uint8_t *v, unsigned g) {
    if (g < 5)
        return MASK(31, VEC(g));
    if (g == 7)
        return MASK(31, SELECT(7, right(VEC(4), 5), SELECT(8, right(VEC(1), 2), right(VEC(3), 1))));
    v += (g - 5) * 128;
    return MASK(31, SELECT(7, right(VEC(0), 5), right(VEC(1), 3)));
}

ALWAYS_INLINE __m512i quants6(const uint8_t *v, unsigned g) {
    v += g / 4 * 192;
    if (g % 4 < 3)
        return MASK(63, VEC(g % 4));
    return MASK(63, SELECT(15, SELECT(3, right(VEC(0), 6), right(VEC(1), 4)), right(VEC(2), 2)));
}

/* What varies from block to block besides the quants; a form uses some of it. */
struct scales {
    __m512i table0, table1; /* of quants 0-15 and 16-31: values, or a lane's multiples of sc */
    __m512i mins;           /* pairs of i16 */
    __m512 dw, mw;          /* factor of I; term of sa, or -dmin */
    __m512 sc0, sc1;
};

/* Group g (0 .. 7) of a block's quants as u8. */
ALWAYS_INLINE __m512i quants(const uint8_t *v, unsigned g, const struct scales *s,
                             const enum pack_form form) {
    if (form == PACK_Q3_K)
        return quants3(v, g);
    if (form == PACK_Q5_K || form == PACK_Q5_0 || form == PACK_Q5_1)
        return quants5(v, g);
    if (form == PACK_Q6_K)
        return quants6(v, g);
    if (form == PACK_Q2_K) { /* the low bits choose in their lane's four bytes */
        const __m512i lane =
            _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
        __m512i at = SELECT(3, right(VEC(g / 4), 2 * (g % 4)), lane);
        return _mm512_shuffle_epi8(g < 4 ? s->table0 : s->table1, at);
    }
    __m512i u = MASK(15, right(VEC(g % 4), g < 4 ? 0 : 4));
    return form == PACK_Q4_K ? u : _mm512_shuffle_epi8(s->table0, u);
}

/* --- scales -------------------------------------------------------------------------------------- */

ALWAYS_INLINE __m512i load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

ALWAYS_INLINE __m512 load_i8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* Of block j of the record whose d and sub-scales are at these places. */
ALWAYS_INLINE void load_scales(struct scales *s, const uint8_t *d, const uint8_t *sub, size_t j,
                               const enum pack_form form) {
    sub += j * packed_sub_bytes(form);
    if (form == PACK_MXFP4) { /* 2^(e - 128), which may be denormal */
        __m512i e = _mm512_add_epi32(load_u8(sub), _mm512_set1_epi32(12));
        s->dw =
            _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(e, 23)), _mm512_set1_ps(0x1p-13f));
        return;
    }
    s->dw = load_half16(packed_d_each_block(form) ? d + 32 * j : d);
    if (form == PACK_Q5_1)
        s->mw = load_half16(sub);
    if (form == PACK_IQ4_XS)
        s->dw = _mm512_mul_ps(s->dw, load_i8(sub));
    if (form == PACK_Q4_K || form == PACK_Q5_K) {
        s->dw = _mm512_mul_ps(s->dw, _mm512_cvtepi32_ps(load_u8(sub)));
        s->mw = _mm512_mul_ps(load_half16(d + 32), _mm512_cvtepi32_ps(load_u8(sub + 16)));
    }
    if (form == PACK_Q3_K || form == PACK_Q6_K) {
        s->sc0 = load_i8(sub);
        s->sc1 = load_i8(sub + 16);
    }
    if (form == PACK_Q2_K) {
        const __m512i low = _mm512_set1_epi32(15), multiples = _mm512_set1_epi32(0x03020100);
        __m512i a = load_u8(sub), b = load_u8(sub + 16);
        s->table0 = _mm512_mullo_epi32(_mm512_and_si512(a, low), multiples);
        s->table1 = _mm512_mullo_epi32(_mm512_and_si512(b, low), multiples);
        s->mins = _mm512_or_si512(_mm512_srli_epi32(a, 4),
                                  _mm512_slli_epi32(_mm512_srli_epi32(b, 4), 16));
        s->mw = load_half16(d + 32);
    }
}

/* What stays the same in a panel. */
ALWAYS_INLINE void open_scales(struct scales *s, const struct packed_mat *w) {
    static const uint8_t none[16];
    const uint8_t *values = w->type->values ? w->type->values : none;
    s->table0 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)values));
}

ALWAYS_INLINE size_t form_vectors(const enum pack_form form) {
    return form == PACK_Q2_K                                             ? 2
           : form == PACK_Q3_K                                           ? 3
           : form == PACK_Q5_K || form == PACK_Q5_0 || form == PACK_Q5_1 ? 5
           : form == PACK_Q6_K                                           ? 6
                                                                         : 4;
}

/* --- few rows ------------------------------------------------------------------------------------ */

ALWAYS_INLINE __m512 bcast(const uint8_t *p) {
    return _mm512_set1_ps(*(const float *)(const void *)p);
}

ALWAYS_INLINE __m512i bcast_i(const uint8_t *p) {
    return _mm512_set1_epi32(*(const int32_t *)(const void *)p);
}

/* A block's integer sums, which started with the activations' words, into the float sum; rows: the distance
 * of one kind of words from the next. */
ALWAYS_INLINE __m512 add_block(__m512 acc, __m512i d0, __m512i d1, const struct scales *s,
                               const uint8_t *words, size_t rows, const enum pack_form form) {
    const __m512 magic = _mm512_set1_ps(KERN_MAGIC), minus_magic = _mm512_set1_ps(-KERN_MAGIC);
    const __m512 da = bcast(words + rows * 4);
    if (form == PACK_Q3_K || form == PACK_Q6_K) {
        __m512 f0 = _mm512_mul_ps(_mm512_sub_ps(_mm512_castsi512_ps(d0), magic), s->sc0);
        __m512 f1 = _mm512_sub_ps(_mm512_castsi512_ps(d1), magic);
        return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_fmadd_ps(f1, s->sc1, f0), s->dw), da, acc);
    }
    __m512 t = _mm512_fmadd_ps(_mm512_castsi512_ps(d0), s->dw, _mm512_mul_ps(s->dw, minus_magic));
    acc = _mm512_fmadd_ps(t, da, acc);
    if (form == PACK_Q4_K || form == PACK_Q5_K || form == PACK_Q5_1)
        acc = _mm512_fmadd_ps(s->mw, bcast(words + rows * 8), acc);
    if (form == PACK_Q2_K) {
        __m512i m = _mm512_madd_epi16(s->mins, bcast_i(words + rows * 12));
        acc = _mm512_fmadd_ps(_mm512_mul_ps(s->mw, _mm512_cvtepi32_ps(m)), da, acc);
    }
    return acc;
}

#define R_ZERO(i) __m512 acc##i = _mm512_setzero_ps();
#define R_INIT(i)                                                                                  \
    __m512i d##i = bcast_i(words + (i)*4);                                                         \
    __m512i e##i = bcast_i(words + R * 8 + (i)*4);
#define R_DOT(i)                                                                                   \
    if (halves && g >= 4)                                                                          \
        DOT_BCAST(e##i, u, act + (i)*32 + g * 4);                                                  \
    else                                                                                           \
        DOT_BCAST(d##i, u, act + (i)*32 + g * 4);
#define R_ADD(i) acc##i = add_block(acc##i, d##i, e##i, &s, words + (i)*4, R, form);
#define R_STORE(i) _mm512_mask_storeu_ps(y + (i)*a->y_stride, mask, acc##i);

#define DEFINE_ROWS(N)                                                                             \
    ALWAYS_INLINE void rows_##N(const struct mat_args *a, uint32_t p, const enum pack_form form) { \
        enum { R = N };                                                                            \
        const struct packed_mat *w = a->w;                                                         \
        const uint8_t *rec = packed_panel(w, p), *end = rec + w->panel_bytes, *act = a->act;       \
        const size_t n_vec = form_vectors(form), sub_bytes = packed_sub_bytes(form);               \
        const size_t ahead = packed_whole_record(form) ? w->rec_bytes : AHEAD; /* of scales */     \
        const bool halves = form == PACK_Q3_K || form == PACK_Q6_K;                                \
        struct scales s;                                                                           \
        open_scales(&s, w);                                                                        \
        ROWS_##N(R_ZERO) for (; rec < end; rec += w->rec_bytes) {                                  \
            const uint8_t *v = rec, *d = rec + w->d_off, *sub = rec + w->sub_off;                  \
            for (size_t j = 0; j < w->rec_blocks; j++) {                                           \
                const uint8_t *words = act + R * KERN_QBLOCK;                                      \
                ROWS_##N(R_INIT) load_scales(&s, d, sub, j, form);                                 \
                if (sub_bytes)                                                                     \
                    _mm_prefetch((const char *)sub + j * sub_bytes + ahead, _MM_HINT_T1);          \
                if (packed_d_each_block(form))                                                     \
                    _mm_prefetch((const char *)d + j * 32 + ahead, _MM_HINT_T1);                   \
                _Pragma("GCC unroll 6") for (size_t i = 0; i < n_vec; i++)                         \
                    _mm_prefetch((const char *)v + i * 64 + AHEAD, _MM_HINT_T1);                   \
                _Pragma("GCC unroll 8") for (unsigned g = 0; g < 8; g++) {                         \
                    __m512i u = quants(v, g, &s, form);                                            \
                    ROWS_##N(R_DOT)                                                                \
                }                                                                                  \
                ROWS_##N(R_ADD) v += n_vec * 64;                                                   \
                act += R * ACT_ROW_BYTES;                                                          \
            }                                                                                      \
        }                                                                                          \
        float *y = a->y + p * KERN_LANES;                                                          \
        const __mmask16 mask = avx512_panel_mask(w, p);                                            \
        ROWS_##N(R_STORE)                                                                          \
    }

#define FEW_ROWS 8
DEFINE_ROWS(1)
DEFINE_ROWS(2)
DEFINE_ROWS(3)
DEFINE_ROWS(4)
DEFINE_ROWS(5)
DEFINE_ROWS(6)
DEFINE_ROWS(7)
DEFINE_ROWS(8)

/* --- more rows ----------------------------------------------------------------------------------- */

ALWAYS_INLINE void expand(const struct mat_args *a, uint32_t p, const enum pack_form form) {
    const struct packed_mat *w = a->w;
    const uint8_t *rec = packed_panel(w, p), *end = rec + w->panel_bytes;
    const size_t n_vec = form_vectors(form);
    uint8_t *dst = a->panel_scratch;
    struct scales s;
    open_scales(&s, w);
    for (; rec < end; rec += w->rec_bytes) {
        const uint8_t *v = rec, *d = rec + w->d_off, *sub = rec + w->sub_off;
        for (size_t j = 0; j < w->rec_blocks; j++, v += n_vec * 64, dst += MAT_PANEL_BLOCK_BYTES) {
            /* The next panel rides along: by the time the row tiles are through, it is in L2. */
            _Pragma("GCC unroll 6") for (size_t i = 0; i < n_vec; i++)
                _mm_prefetch((const char *)v + i * 64 + w->panel_bytes, _MM_HINT_T1);
            load_scales(&s, d, sub, j, form);
            _Pragma("GCC unroll 8") for (unsigned g = 0; g < 8; g++)
                _mm512_storeu_si512(dst + g * 64, quants(v, g, &s, form));
            if (form == PACK_Q3_K || form == PACK_Q6_K) {
                _mm512_storeu_ps(dst + 512, s.sc0);
                _mm512_storeu_ps(dst + 576, s.sc1);
                _mm512_storeu_ps(dst + 640, s.dw);
                continue;
            }
            _mm512_storeu_ps(dst + 512, s.dw);
            if (form == PACK_Q2_K)
                _mm512_storeu_si512(dst + 576, s.mins);
            else
                _mm512_storeu_ps(dst + 576, _mm512_mul_ps(s.dw, _mm512_set1_ps(-KERN_MAGIC)));
            if (form == PACK_Q2_K || form == PACK_Q4_K || form == PACK_Q5_K || form == PACK_Q5_1)
                _mm512_storeu_ps(dst + 640, s.mw);
        }
    }
}

#define DEFINE_FEW(N, form)                                                                        \
    static void rows_##N##_##form(const struct mat_args *a, uint32_t p) {                          \
        rows_##N(a, p, PACK_##form);                                                               \
    }
#define DEFINE_FORM(form)                                                                          \
    DEFINE_FEW(1, form)                                                                            \
    DEFINE_FEW(2, form)                                                                            \
    DEFINE_FEW(3, form)                                                                            \
    DEFINE_FEW(4, form)                                                                            \
    DEFINE_FEW(5, form)                                                                            \
    DEFINE_FEW(6, form)                                                                            \
    DEFINE_FEW(7, form)                                                                            \
    DEFINE_FEW(8, form)                                                                            \
    static void expand_##form(const struct mat_args *a, uint32_t p) {                              \
        expand(a, p, PACK_##form);                                                                 \
    }
#define FORM_ROW(form, kind)                                                                       \
    [PACK_##form - PACK_Q2_K] = {{rows_1_##form, rows_2_##form, rows_3_##form, rows_4_##form,      \
                                  rows_5_##form, rows_6_##form, rows_7_##form, rows_8_##form},     \
                                 expand_##form,                                                    \
                                 kind}

DEFINE_FORM(Q2_K)
DEFINE_FORM(Q3_K)
DEFINE_FORM(Q4_K)
DEFINE_FORM(Q5_K)
DEFINE_FORM(Q6_K)
DEFINE_FORM(IQ4_NL)
DEFINE_FORM(IQ4_XS)
DEFINE_FORM(MXFP4)
DEFINE_FORM(Q5_0)
DEFINE_FORM(Q5_1)

static const struct {
    void (*few[FEW_ROWS])(const struct mat_args *a, uint32_t p);
    void (*expand)(const struct mat_args *a, uint32_t p);
    enum tile_kind kind;
} forms[] = {
    FORM_ROW(Q2_K, TILE_HALF_MIN), FORM_ROW(Q3_K, TILE_HALVES), FORM_ROW(Q4_K, TILE_MIN),
    FORM_ROW(Q5_K, TILE_MIN),      FORM_ROW(Q6_K, TILE_HALVES), FORM_ROW(IQ4_NL, TILE_PLAIN),
    FORM_ROW(IQ4_XS, TILE_PLAIN),  FORM_ROW(MXFP4, TILE_PLAIN), FORM_ROW(Q5_0, TILE_PLAIN),
    FORM_ROW(Q5_1, TILE_MIN),
};

void avx512_mat_records(const struct mat_args *a, uint32_t begin, uint32_t end) {
    const unsigned f = a->w->type->form - PACK_Q2_K;
    DCHECK(f < ARRAY_LEN(forms));
    for (uint32_t p = begin; p < end; p++) {
        if (a->tiles.n_rows <= FEW_ROWS) {
            forms[f].few[a->tiles.n_rows - 1](a, p);
        } else {
            forms[f].expand(a, p);
            avx512_expanded_panel(a, p, forms[f].kind);
        }
    }
}
