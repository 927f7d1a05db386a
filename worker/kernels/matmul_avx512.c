/* matmul_avx512.c - tiles of R rows x 16 outputs in registers.
 *
 * A block of 32 weights costs a row 8 dot products and 2 (with mins 3) FMAs, nothing else: the integer
 * accumulator starts as the bits of KERN_MAGIC minus the offset's correction, so its bits read as a
 * float are KERN_MAGIC + idot, and t = fma(that, dw, -dw * KERN_MAGIC) equals dw * (float)idot exactly
 * (|idot| < 2^22; dw is a finite half). */
#include "worker/kernels/matmul_avx512.h"

#include <immintrin.h>

#include "common/check.h"
#include "worker/kernels/kern_rows.h"

#define EXPAND_TILES 16 /* row tiles from which expanding a panel pays */

/* --- activations ------------------------------------------------------------------------------- */

/* Sums of a block's two halves. */
ALWAYS_INLINE void half_sums(int32_t ret[2], __m512i q0, __m512i q1) {
    __m256i a = _mm256_add_epi32(_mm512_castsi512_si256(q0), _mm512_extracti64x4_epi64(q0, 1));
    __m256i b = _mm256_add_epi32(_mm512_castsi512_si256(q1), _mm512_extracti64x4_epi64(q1, 1));
    a = _mm256_hadd_epi32(a, b);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i *)(void *)ret, _mm_hadd_epi32(s, s));
}

void avx512_quant_row(uint8_t *tile, uint32_t rows, uint32_t r, const float *x, uint32_t n_blocks,
                      struct act_class c) {
    const __m512i abs_mask = _mm512_set1_epi32(0x7fffffff);
    for (uint32_t b = 0; b < n_blocks; b++, x += KERN_QBLOCK, tile += act_block_bytes(rows)) {
        __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
        /* Magnitudes compare as integers; a NaN is the largest. */
        __m512i a0 = _mm512_and_si512(_mm512_castps_si512(x0), abs_mask);
        __m512i a1 = _mm512_and_si512(_mm512_castps_si512(x1), abs_mask);
        int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(a0, a1));
        float amax, da = 0.0f, inv = 0.0f;
        memcpy(&amax, &bits, 4);
        if (bits >= 0x7f800000) {
            da = __builtin_nanf("");
            x0 = x1 = _mm512_setzero_ps();
        } else if (amax >= KERN_AMAX_MIN) {
            da = amax / 127.0f;
            inv = 127.0f / amax;
        }
        __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, _mm512_set1_ps(inv)));
        __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, _mm512_set1_ps(inv)));
        int32_t sum[2];
        half_sums(sum, q0, q1);
        uint8_t *q = tile + r * KERN_QBLOCK;
        _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(q0));
        _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtepi32_epi8(q1));
        act_put_words(tile, rows, r, sum, da, c);
    }
}

/* --- nibbles, many rows ------------------------------------------------------------------------- */

/* From some hundred rows on a panel of nibbles is expanded once, into L1, and used by all row tiles:
 * unpacking in every tile takes a tenth of the time on CPUs with two vector ports. */

static void expand_scales(const struct packed_mat *w, const uint8_t *panel, uint32_t n_blocks,
                          uint8_t *dst) {
    for (uint32_t b = 0; b < n_blocks; b++, dst += MAT_PANEL_BLOCK_BYTES) {
        __m512 dw = load_half16(panel + w->scale_off + b * 32);
        _mm512_storeu_ps(dst, dw);
        _mm512_storeu_ps(dst + 64, _mm512_mul_ps(dw, _mm512_set1_ps(-KERN_MAGIC)));
        if (w->type->has_min)
            _mm512_storeu_ps(dst + 128, load_half16(panel + w->min_off + b * 32));
    }
}

/* The next panel's bytes ride along: by the time the row tiles are through, they are in L2. */
static void expand_nibbles(const uint8_t *panel, size_t panel_bytes, uint32_t n_blocks,
                           uint8_t *dst) {
    const __m512i low = _mm512_set1_epi8(15);
    for (uint32_t b = 0; b < n_blocks; b++, dst += MAT_PANEL_BLOCK_BYTES, panel += 256)
        for (int g = 0; g < 4; g++) {
            __m512i v = _mm512_loadu_si512(panel + g * 64);
            _mm_prefetch((const char *)panel + panel_bytes + g * 64, _MM_HINT_T1);
            _mm512_storeu_si512(dst + g * 64, _mm512_and_si512(v, low));
            v = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
            _mm512_storeu_si512(dst + 256 + g * 64, v);
        }
}

static void panel_many_rows(const struct mat_args *a, uint32_t p) {
    const struct packed_mat *w = a->w;
    const uint8_t *panel = packed_panel(w, p);
    const uint32_t n_blocks = w->n_in / KERN_QBLOCK;
    expand_scales(w, panel, n_blocks, a->panel_scratch + 512);
    expand_nibbles(panel, w->panel_bytes, n_blocks, a->panel_scratch);
    avx512_expanded_panel(a, p, w->type->has_min ? TILE_MIN : TILE_PLAIN);
}

/* --- quantised weights, directly ----------------------------------------------------------------- */

/* Weights are unpacked in registers by every row tile. Few rows wait for memory anyway; one row takes
 * four panels side by side, so that there are enough independent sums. */
struct direct {
    const uint8_t *panel;      /* the first of 1 or 4 */
    size_t panel_bytes, ahead; /* ahead: distance of the prefetch */
    const uint8_t *act;
    float *y;
    size_t y_stride, scale_off, min_off;
    uint32_t n_blocks, n_panels;
    __mmask16 last_mask;
};

/* Group g (0 .. 7) of a block's quants as u8. */
ALWAYS_INLINE __m512i direct_quants(const uint8_t *block, int g, const bool nib) {
    if (!nib)
        return _mm512_loadu_si512(block + g * 64);
    __m512i v = _mm512_loadu_si512(block + g % 4 * 64);
    return _mm512_and_si512(g < 4 ? v : _mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
}

/* One block of a panel into the sums of R rows. */
#define D_ZERO(i) __m512 acc##i = _mm512_setzero_ps();
#define D_PANEL(N)                                                                                 \
    const uint8_t *wq = panel + b * (nib ? 256 : 512);                                             \
    ROWS_##N(T_INIT) _Pragma("GCC unroll 8") for (int g = 0; g < 8; g++) {                         \
        __m512i w = direct_quants(wq, g, nib);                                                     \
        if (g < (nib ? 4 : 8))                                                                     \
            _mm_prefetch((const char *)wq + t->ahead + g * 64, _MM_HINT_T1);                       \
        ROWS_##N(T_DOT)                                                                            \
    }                                                                                              \
    __m512 dw = load_half16(panel + t->scale_off + b * 32);                                        \
    __m512 minus = _mm512_mul_ps(dw, _mm512_set1_ps(-KERN_MAGIC));                                 \
    ROWS_##N(T_SCALE) if (has_min) {                                                               \
        __m512 mw = load_half16(panel + t->min_off + b * 32);                                      \
        ROWS_##N(T_MIN)                                                                            \
    }

#define DEFINE_DIRECT(N)                                                                           \
    ALWAYS_INLINE void direct_##N(const struct direct *t, const bool nib, const bool has_min) {    \
        enum { R = N };                                                                            \
        const uint8_t *panel = t->panel, *act = t->act;                                            \
        ROWS_##N(D_ZERO) for (size_t b = 0; b < t->n_blocks; b++, act += R * ACT_ROW_BYTES) {      \
            D_PANEL(N)                                                                             \
        }                                                                                          \
        const __mmask16 mask = t->last_mask;                                                       \
        ROWS_##N(D_STORE)                                                                          \
    }
#define D_STORE(i) _mm512_mask_storeu_ps(t->y + (i)*t->y_stride, mask, acc##i);

DEFINE_DIRECT(1)
DEFINE_DIRECT(2)
DEFINE_DIRECT(3)
DEFINE_DIRECT(4)
DEFINE_DIRECT(5)
DEFINE_DIRECT(6)
DEFINE_DIRECT(7)
DEFINE_DIRECT(8)
DEFINE_DIRECT(9)
DEFINE_DIRECT(10)
DEFINE_DIRECT(11)
DEFINE_DIRECT(12)
DEFINE_DIRECT(13)
DEFINE_DIRECT(14)

/* One row, one block, one of four panels: activations are in registers already. */
#define Q_ZERO(i) __m512 acc##i = _mm512_setzero_ps();
/* Prefetches go to L2: what a decode step reads comes from memory, and as many lines on their way into
 * L1 as it has buffers for reach 15 GB/s where L2's reach 26 (measured, Zen 4). */
#define Q_BLOCK(i)                                                                                 \
    {                                                                                              \
        const uint8_t *panel = t->panel + (i)*t->panel_bytes;                                      \
        const uint8_t *wq = panel + b * (nib ? 256 : 512);                                         \
        __m512i d = corr;                                                                          \
        _Pragma("GCC unroll 8") for (int g = 0; g < 8; g++) {                                      \
            __m512i w = direct_quants(wq, g, nib);                                                 \
            if (g < (nib ? 4 : 8))                                                                 \
                _mm_prefetch((const char *)wq + t->ahead + g * 64, _MM_HINT_T1);                   \
            DOT_BCAST(d, w, act + g * 4);                                                          \
        }                                                                                          \
        __m512 dw = load_half16(panel + t->scale_off + b * 32);                                    \
        __m512 minus = _mm512_mul_ps(dw, magic);                                                   \
        _mm_prefetch((const char *)panel + t->scale_off + b * 32 + t->ahead, _MM_HINT_T1);         \
        if (has_min)                                                                               \
            _mm_prefetch((const char *)panel + t->min_off + b * 32 + t->ahead, _MM_HINT_T1);       \
        acc##i = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_castsi512_ps(d), dw, minus), da, acc##i);  \
        if (has_min)                                                                               \
            acc##i = _mm512_fmadd_ps(load_half16(panel + t->min_off + b * 32), sa, acc##i);        \
    }
#define Q_STORE(i)                                                                                 \
    _mm512_mask_storeu_ps(t->y + (i)*16, (i) == 3 ? t->last_mask : (__mmask16)0xffff, acc##i);

ALWAYS_INLINE void direct_quad(const struct direct *t, const bool nib, const bool has_min) {
    const uint8_t *act = t->act;
    const __m512 magic = _mm512_set1_ps(-KERN_MAGIC);
    ROWS_4(Q_ZERO)
    for (size_t b = 0; b < t->n_blocks; b++, act += ACT_ROW_BYTES) {
        const __m512i corr = _mm512_set1_epi32(*(const int32_t *)(const void *)(act + 32));
        const __m512 da = _mm512_set1_ps(*(const float *)(const void *)(act + 36));
        const __m512 sa = _mm512_set1_ps(*(const float *)(const void *)(act + 40));
        ROWS_4(Q_BLOCK)
    }
    ROWS_4(Q_STORE)
}

typedef void (*direct_fn)(const struct direct *t);
#define DIRECT_FORM(N)                                                                             \
    static void direct_##N##_nib(const struct direct *t) {                                         \
        direct_##N(t, true, false);                                                                \
    }                                                                                              \
    static void direct_##N##_nib_min(const struct direct *t) {                                     \
        direct_##N(t, true, true);                                                                 \
    }                                                                                              \
    static void direct_##N##_u8(const struct direct *t) {                                          \
        direct_##N(t, false, false);                                                               \
    }
#define DIRECT_ROW(N)                                                                              \
    { direct_##N##_nib, direct_##N##_nib_min, direct_##N##_u8 }

DIRECT_FORM(quad)
DIRECT_FORM(1)
DIRECT_FORM(2)
DIRECT_FORM(3)
DIRECT_FORM(4)
DIRECT_FORM(5)
DIRECT_FORM(6)
DIRECT_FORM(7)
DIRECT_FORM(8)
DIRECT_FORM(9)
DIRECT_FORM(10)
DIRECT_FORM(11)
DIRECT_FORM(12)
DIRECT_FORM(13)
DIRECT_FORM(14)

/* [rows][form]; row 0 is one row, four panels. */
static const direct_fn directs[KERN_TILE_ROWS + 1][3] = {
    DIRECT_ROW(quad), DIRECT_ROW(1),  DIRECT_ROW(2),  DIRECT_ROW(3),  DIRECT_ROW(4),
    DIRECT_ROW(5),    DIRECT_ROW(6),  DIRECT_ROW(7),  DIRECT_ROW(8),  DIRECT_ROW(9),
    DIRECT_ROW(10),   DIRECT_ROW(11), DIRECT_ROW(12), DIRECT_ROW(13), DIRECT_ROW(14),
};

static void panels_direct(const struct mat_args *a, uint32_t begin, uint32_t end) {
    const struct packed_mat *w = a->w;
    size_t form = w->type->form == PACK_U8 ? 2 : w->type->has_min;
    struct direct t = {
        .panel_bytes = w->panel_bytes,
        .y_stride = a->y_stride,
        .scale_off = w->scale_off,
        .min_off = w->min_off,
        .n_blocks = w->n_in / KERN_QBLOCK,
    };
    for (uint32_t p = begin; p < end;) {
        uint32_t n = a->tiles.n_rows == 1 && end - p >= 4 ? 4 : 1;
        t.panel = packed_panel(w, p);
        t.ahead = n * w->panel_bytes; /* the same place of the next ones */
        t.last_mask = avx512_panel_mask(w, p + n - 1);
        for (uint32_t i = 0; i < a->tiles.n_tiles; i++) {
            struct act_tile at = act_tile_at(a, i);
            t.act = at.p;
            t.y = a->y + (size_t)at.first_row * a->y_stride + p * KERN_LANES;
            directs[n == 4 ? 0 : at.rows][form](&t);
        }
        p += n;
    }
}

void avx512_mat_quant(const struct mat_args *a, uint32_t begin, uint32_t end) {
    if (a->w->type->unit) {
        avx512_mat_records(a, begin, end);
    } else if (a->w->type->form == PACK_NIB && a->tiles.n_tiles >= EXPAND_TILES) {
        for (uint32_t p = begin; p < end; p++)
            panel_many_rows(a, p);
    } else {
        panels_direct(a, begin, end);
    }
}

/* --- float weights ------------------------------------------------------------------------------ */

ALWAYS_INLINE __m512 load_weights(const uint8_t *p, const enum pack_form form) {
    if (form == PACK_F32)
        return _mm512_loadu_ps(p);
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    if (form == PACK_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

struct ftile {
    const uint8_t *panel;
    size_t panel_bytes;
    const float *x; /* [k][R] */
    float *y;
    size_t y_stride;
    uint32_t n_in;
    __mmask16 mask0, mask1;
};

/* R rows x two panels; of a last odd panel the second is the first again and not stored. */
#define F_ZERO(i) __m512 lo##i = _mm512_setzero_ps(), hi##i = _mm512_setzero_ps();
#define F_FMA(i)                                                                                   \
    FMA_BCAST(lo##i, w0, x + (i));                                                                 \
    FMA_BCAST(hi##i, w1, x + (i));
#define F_STORE(i)                                                                                 \
    _mm512_mask_storeu_ps(t->y + (i)*t->y_stride, t->mask0, lo##i);                                \
    _mm512_mask_storeu_ps(t->y + (i)*t->y_stride + 16, t->mask1, hi##i);

#define DEFINE_FTILE(N)                                                                            \
    ALWAYS_INLINE void ftile_##N(const struct ftile *t, const enum pack_form form) {               \
        const size_t step = form == PACK_F32 ? 64 : 32;                                            \
        const uint8_t *p0 = t->panel, *p1 = p0 + t->panel_bytes;                                   \
        const float *x = t->x;                                                                     \
        ROWS_##N(F_ZERO) for (uint32_t k = 0; k < t->n_in; k++, p0 += step, p1 += step, x += N) {  \
            __m512 w0 = load_weights(p0, form), w1 = load_weights(p1, form);                       \
            ROWS_##N(F_FMA)                                                                        \
        }                                                                                          \
        ROWS_##N(F_STORE)                                                                          \
    }                                                                                              \
    static void ftile_##N##_f32(const struct ftile *t) {                                           \
        ftile_##N(t, PACK_F32);                                                                    \
    }                                                                                              \
    static void ftile_##N##_f16(const struct ftile *t) {                                           \
        ftile_##N(t, PACK_F16);                                                                    \
    }                                                                                              \
    static void ftile_##N##_bf16(const struct ftile *t) {                                          \
        ftile_##N(t, PACK_BF16);                                                                   \
    }

DEFINE_FTILE(1)
DEFINE_FTILE(2)
DEFINE_FTILE(3)
DEFINE_FTILE(4)
DEFINE_FTILE(5)
DEFINE_FTILE(6)
DEFINE_FTILE(7)
DEFINE_FTILE(8)
DEFINE_FTILE(9)
DEFINE_FTILE(10)
DEFINE_FTILE(11)
DEFINE_FTILE(12)
DEFINE_FTILE(13)
DEFINE_FTILE(14)

typedef void (*ftile_fn)(const struct ftile *t);
#define FTILE_ROW(N)                                                                               \
    { ftile_##N##_f32, ftile_##N##_f16, ftile_##N##_bf16 }
static const ftile_fn ftiles[KERN_TILE_ROWS + 1][3] = {
    {NULL, NULL, NULL}, FTILE_ROW(1),  FTILE_ROW(2),  FTILE_ROW(3),  FTILE_ROW(4),
    FTILE_ROW(5),       FTILE_ROW(6),  FTILE_ROW(7),  FTILE_ROW(8),  FTILE_ROW(9),
    FTILE_ROW(10),      FTILE_ROW(11), FTILE_ROW(12), FTILE_ROW(13), FTILE_ROW(14),
};

/* One row: eight panels side by side hide the latency of the chains. */
#define V_ZERO(i) __m512 acc##i = _mm512_setzero_ps();
#define V_FMA(i)                                                                                   \
    _mm_prefetch((const char *)p + (i)*t->panel_bytes + 1024, _MM_HINT_T0);                        \
    acc##i = _mm512_fmadd_ps(load_weights(p + (i)*t->panel_bytes, form), xk, acc##i);
#define V_STORE(i)                                                                                 \
    _mm512_mask_storeu_ps(t->y + (i)*16, (i) == 7 ? t->mask1 : (__mmask16)0xffff, acc##i);

ALWAYS_INLINE void fvec8(const struct ftile *t, const enum pack_form form) {
    const size_t step = form == PACK_F32 ? 64 : 32;
    const uint8_t *p = t->panel;
    ROWS_8(V_ZERO)
    for (uint32_t k = 0; k < t->n_in; k++, p += step) {
        const __m512 xk = _mm512_set1_ps(t->x[k]);
        ROWS_8(V_FMA)
    }
    ROWS_8(V_STORE)
}

static void fvec8_f32(const struct ftile *t) {
    fvec8(t, PACK_F32);
}

static void fvec8_f16(const struct ftile *t) {
    fvec8(t, PACK_F16);
}

static void fvec8_bf16(const struct ftile *t) {
    fvec8(t, PACK_BF16);
}

static const ftile_fn fvecs[3] = {fvec8_f32, fvec8_f16, fvec8_bf16};

static void fpanels_one_row(const struct mat_args *a, struct ftile *t, uint32_t p) {
    t->y = a->y + p * KERN_LANES;
    t->x = act_f32_tile_at(a, 0);
    t->mask1 = avx512_panel_mask(a->w, p + 7);
    fvecs[a->w->type->form](t);
}

static void fpanels_pair(const struct mat_args *a, struct ftile *t, uint32_t p, bool two) {
    t->mask0 = avx512_panel_mask(a->w, p);
    t->mask1 = two ? avx512_panel_mask(a->w, p + 1) : 0;
    t->panel_bytes = two ? a->w->panel_bytes : 0;
    for (uint32_t i = 0; i < a->tiles.n_tiles; i++) {
        t->x = act_f32_tile_at(a, i);
        t->y = a->y + (size_t)row_tile_first(&a->tiles, i) * a->y_stride + p * KERN_LANES;
        ftiles[row_tile_rows(&a->tiles, i)][a->w->type->form](t);
    }
}

void avx512_mat_float(const struct mat_args *a, uint32_t begin, uint32_t end) {
    for (uint32_t p = begin; p < end;) {
        struct ftile t = {
            .panel = packed_panel(a->w, p),
            .panel_bytes = a->w->panel_bytes,
            .y_stride = a->y_stride,
            .n_in = a->w->n_in,
        };
        if (a->tiles.n_rows == 1 && end - p >= 8) {
            fpanels_one_row(a, &t, p);
            p += 8;
        } else {
            bool two = end - p >= 2;
            fpanels_pair(a, &t, p, two);
            p += two ? 2 : 1;
        }
    }
}
