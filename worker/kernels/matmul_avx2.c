/* matmul_avx2.c - products with 16 registers of 8 lanes: a panel is two halves of 8 outputs, done one
 * after the other with up to 4 rows at a time.
 *
 * vpmaddubsw adds pairs into 16 bits with saturation, which exactness cannot use: nibbles (<= 15) times
 * int8 stay below even summed over a block (8 * 2 * 15 * 127 = 30,480). Bytes are expanded with their
 * sign, and the product is |w| times q with w's sign: 2 * 128 * 127 = 32,512 at most, widened at once. */
#include "worker/kernels/matmul_avx2.h"

#include <immintrin.h>

#include "worker/kernels/kern_rows.h"

/* --- activations -------------------------------------------------------------------------------- */

ALWAYS_INLINE int32_t max8(__m256i v) {
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return _mm_cvtsi128_si32(a);
}

ALWAYS_INLINE int32_t sum8(__m256i v) {
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return _mm_cvtsi128_si32(a);
}

/* 32 int32 in -127 .. 127 to bytes, in order. */
ALWAYS_INLINE __m256i pack_bytes(const __m256i q[4]) {
    __m256i a = _mm256_packs_epi32(q[0], q[1]), b = _mm256_packs_epi32(q[2], q[3]);
    __m256i bytes = _mm256_packs_epi16(a, b); /* groups of 4: 0 2 4 6 | 1 3 5 7 */
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

void avx2_quant_row(uint8_t *tile, uint32_t rows, uint32_t r, const float *x, uint32_t n_blocks,
                    int32_t offset) {
    const __m256i abs_mask = _mm256_set1_epi32(0x7fffffff);
    for (uint32_t b = 0; b < n_blocks; b++, x += KERN_QBLOCK, tile += act_block_bytes(rows)) {
        __m256i q[4], most = _mm256_setzero_si256(), total = most;
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
            total = _mm256_add_epi32(total, q[i]);
        }
        int32_t sum = sum8(total), corr = KERN_MAGIC_BITS - offset * sum;
        float sa = da * (float)sum;
        uint8_t *tail = tile + rows * KERN_QBLOCK + r * 4;
        _mm256_storeu_si256((__m256i *)(void *)(tile + r * KERN_QBLOCK), pack_bytes(q));
        memcpy(tail, &corr, 4);
        memcpy(tail + rows * 4, &da, 4);
        memcpy(tail + rows * 8, &sa, 4);
        memcpy(tail + rows * 12, &sum, 4);
    }
}

/* --- quantised weights -------------------------------------------------------------------------- */

/* Where a tile finds a panel's weights: up to 4 rows in the packed panel itself (each weight is used
 * once, memory is what they wait for), more rows in this thread's expanded copy. */
enum source { EXPANDED, NIBBLES, BYTES };

struct tile {
    const uint8_t *panel; /* from this half's first output on */
    const uint8_t *dw, *mw; /* packed only: the panel's halves from this half's first output on */
    __m256i offset; /* BYTES: of the weight type, in all bytes */
    const uint8_t *act; /* from the first of these rows on */
    uint32_t act_rows; /* of the whole tile: the strides */
    uint32_t n_blocks;
    float *out; /* [rows][16], from this half on */
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

/* Group g (0 .. 7) of a block's quants: u8 of nibbles, else s8. */
ALWAYS_INLINE __m256i quants(const struct tile *t, const uint8_t *block, int g,
                             const enum source from) {
    if (from == EXPANDED)
        return load8i(block + g * 64);
    if (from == BYTES)
        return _mm256_sub_epi8(load8i(block + g * 64), t->offset);
    __m256i v = load8i(block + g % 4 * 64);
    return _mm256_and_si256(g < 4 ? v : _mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}

#define T_ZERO(i) __m256 acc##i = _mm256_setzero_ps();
#define T_INIT(i) __m256i d##i = _mm256_setzero_si256();
#define T_DOT(i)                                                                                   \
    {                                                                                              \
        __m256i q = bcast4(act + (i) * 32 + g * 4);                                                \
        if (is_signed)                                                                             \
            d##i = _mm256_add_epi32(                                                               \
                d##i, _mm256_madd_epi16(_mm256_maddubs_epi16(w_abs, _mm256_sign_epi8(q, w)), ones)); \
        else                                                                                       \
            d##i = _mm256_add_epi16(d##i, _mm256_maddubs_epi16(w, q));                             \
    }
#define T_SCALE(i)                                                                                 \
    {                                                                                              \
        __m256i start = is_signed ? magic : bcast4(tail + (i) * 4);                                \
        __m256i dot = is_signed ? d##i : _mm256_madd_epi16(d##i, ones);                            \
        __m256 x = _mm256_castsi256_ps(_mm256_add_epi32(start, dot));                              \
        acc##i = _mm256_fmadd_ps(_mm256_fmadd_ps(x, dw, minus),                                    \
                                 _mm256_castsi256_ps(bcast4(tail + (R + (i)) * 4)), acc##i);       \
        if (has_min)                                                                               \
            acc##i = _mm256_fmadd_ps(mw, _mm256_castsi256_ps(bcast4(tail + (2 * R + (i)) * 4)),    \
                                     acc##i);                                                      \
    }
#define T_STORE(i) _mm256_storeu_ps(t->out + (i) * 16, acc##i);

#define DEFINE_TILE(N)                                                                             \
    ALWAYS_INLINE void tile_##N(const struct tile *t, uint32_t first, const bool is_signed,        \
                                const bool has_min, const enum source from) {                      \
        const uint32_t R = t->act_rows;                                                            \
        const __m256i ones = _mm256_set1_epi16(1), magic = _mm256_set1_epi32(KERN_MAGIC_BITS);     \
        const uint8_t *panel = t->panel, *act = t->act + first * 32;                               \
        const uint8_t *tail = t->act + R * 32 + first * 4;                                         \
        ROWS_##N(T_ZERO)                                                                           \
        for (size_t b = 0; b < t->n_blocks; b++) {                                                 \
            ROWS_##N(T_INIT)                                                                       \
            _Pragma("GCC unroll 8") for (int g = 0; g < 8; g++) {                                  \
                __m256i w = quants(t, panel, g, from);                                             \
                __m256i w_abs = is_signed ? _mm256_abs_epi8(w) : w;                                \
                ROWS_##N(T_DOT)                                                                    \
            }                                                                                      \
            const float *scales = (const float *)(const void *)(panel + 512);                      \
            __m256 dw = from == EXPANDED ? _mm256_loadu_ps(scales) : half8(t->dw + b * 32);        \
            __m256 minus = _mm256_mul_ps(dw, _mm256_set1_ps(-KERN_MAGIC));                         \
            __m256 mw = dw;                                                                        \
            if (has_min)                                                                           \
                mw = from == EXPANDED ? _mm256_loadu_ps(scales + 32) : half8(t->mw + b * 32);      \
            ROWS_##N(T_SCALE)                                                                      \
            panel += from == EXPANDED ? MAT_PANEL_BLOCK_BYTES : from == BYTES ? 512 : 256;         \
            act += R * ACT_ROW_BYTES;                                                              \
            tail += R * ACT_ROW_BYTES;                                                             \
        }                                                                                          \
        ROWS_##N(T_STORE)                                                                          \
    }                                                                                              \
    static void rows_##N(const struct tile *t, uint32_t first, bool is_signed, bool has_min) {     \
        if (is_signed && has_min)                                                                  \
            tile_##N(t, first, true, true, EXPANDED);                                              \
        else if (is_signed)                                                                        \
            tile_##N(t, first, true, false, EXPANDED);                                             \
        else if (has_min)                                                                          \
            tile_##N(t, first, false, true, EXPANDED);                                             \
        else                                                                                       \
            tile_##N(t, first, false, false, EXPANDED);                                            \
    }                                                                                              \
    static void direct_##N(const struct tile *t, uint32_t first, bool is_signed, bool has_min) {   \
        if (is_signed && has_min)                                                                  \
            tile_##N(t, first, true, true, BYTES);                                                 \
        else if (is_signed)                                                                        \
            tile_##N(t, first, true, false, BYTES);                                                \
        else if (has_min)                                                                          \
            tile_##N(t, first, false, true, NIBBLES);                                              \
        else                                                                                       \
            tile_##N(t, first, false, false, NIBBLES);                                             \
    }

DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)

#define ROWS_MAX 4
typedef void (*rows_fn)(const struct tile *t, uint32_t first, bool is_signed, bool has_min);
static const rows_fn rows_fns[ROWS_MAX + 1] = {NULL, rows_1, rows_2, rows_3, rows_4};
static const rows_fn direct_fns[ROWS_MAX + 1] = {NULL, direct_1, direct_2, direct_3, direct_4};

static void expand_scales(const struct packed_mat *w, const uint8_t *panel, uint32_t b, float *dst) {
    for (int half = 0; half < 16; half += 8) {
        const uint8_t *src = panel + b * 32 + half * 2;
        _mm256_storeu_ps(dst + half, half8(src + w->scale_off));
        if (w->type->has_min)
            _mm256_storeu_ps(dst + 32 + half, half8(src + w->min_off));
    }
}

/* Nibbles to u8, bytes to their signed value. */
static void expand_panel(const struct packed_mat *w, const uint8_t *panel, uint8_t *dst) {
    const __m256i low = _mm256_set1_epi8(15), off = _mm256_set1_epi8((char)w->type->offset);
    bool nib = w->type->form == PACK_NIB;
    for (uint32_t b = 0; b < w->n_in / KERN_QBLOCK; b++, dst += MAT_PANEL_BLOCK_BYTES) {
        const uint8_t *src = panel + (size_t)b * (nib ? 256 : 512);
        for (int i = 0; i < 512; i += 32) {
            __m256i v = load8i(src + (nib ? i % 256 : i));
            if (nib)
                v = _mm256_and_si256(i < 256 ? v : _mm256_srli_epi16(v, 4), low);
            else
                v = _mm256_sub_epi8(v, off);
            _mm256_storeu_si256((__m256i *)(void *)(dst + i), v);
        }
        expand_scales(w, panel, b, (float *)(void *)(dst + 512));
    }
}

static void store_rows(const struct mat_args *a, uint32_t panel, uint32_t first_row, uint32_t rows,
                       const float *out) {
    uint32_t o0 = panel * KERN_LANES, n = MIN(KERN_LANES, a->w->n_out - o0);
    for (uint32_t r = 0; r < rows; r++)
        memcpy(a->y + (size_t)(first_row + r) * a->y_stride + o0, out + r * KERN_LANES,
               n * sizeof *out);
}

static void panels_direct(const struct mat_args *a, uint32_t begin, uint32_t end) {
    const struct packed_mat *w = a->w;
    uint32_t rows = a->tiles.n_rows;
    float out[ROWS_MAX * KERN_LANES];
    struct tile t = {.act = a->act, .act_rows = rows, .n_blocks = w->n_in / KERN_QBLOCK,
                     .offset = _mm256_set1_epi8((char)w->type->offset)};
    for (uint32_t p = begin; p < end; p++) {
        for (size_t half = 0; half < 2; half++) {
            t.panel = packed_panel(w, p) + half * 32;
            t.dw = packed_panel(w, p) + w->scale_off + half * 16;
            t.mw = packed_panel(w, p) + w->min_off + half * 16;
            t.out = out + half * 8;
            direct_fns[rows](&t, 0, w->type->form == PACK_U8, w->type->has_min);
        }
        store_rows(a, p, 0, rows, out);
    }
}

void avx2_mat_quant(const struct mat_args *a, uint32_t begin, uint32_t end) {
    const struct packed_mat *w = a->w;
    bool is_signed = w->type->form == PACK_U8;
    float out[ROWS_MAX * KERN_LANES];
    if (a->tiles.n_rows <= ROWS_MAX) {
        panels_direct(a, begin, end);
        return;
    }
    for (uint32_t p = begin; p < end; p++) {
        expand_panel(w, packed_panel(w, p), a->panel_scratch);
        for (uint32_t i = 0; i < a->tiles.n_tiles; i++) {
            struct act_tile at = act_tile_at(a, i);
            struct tile t = {.act = at.p, .act_rows = at.rows, .n_blocks = w->n_in / KERN_QBLOCK};
            for (uint32_t r = 0, n; r < at.rows; r += n) {
                n = MIN(ROWS_MAX, at.rows - r);
                for (size_t half = 0; half < 2; half++) {
                    t.panel = a->panel_scratch + half * 32;
                    t.out = out + half * 8;
                    rows_fns[n](&t, r, is_signed, w->type->has_min);
                }
                store_rows(a, p, at.first_row + r, n, out);
            }
        }
    }
}

/* --- float weights ------------------------------------------------------------------------------- */

ALWAYS_INLINE __m256 load_weights(const uint8_t *p, size_t i, const enum pack_form form) {
    if (form == PACK_F32)
        return _mm256_loadu_ps((const float *)(const void *)(p + 4 * i));
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(p + 2 * i));
    if (form == PACK_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

struct ftile {
    const uint8_t *panel;
    const float *x; /* [k][x_rows], from the first of these rows on */
    uint32_t x_rows, n_in;
    size_t panel_bytes;
    float *out; /* [rows][16] */
};

#define F_ZERO(i) __m256 lo##i = _mm256_setzero_ps(), hi##i = _mm256_setzero_ps();
#define F_FMA(i)                                                                                   \
    {                                                                                              \
        __m256 xr = _mm256_broadcast_ss(x + (i));                                                  \
        lo##i = _mm256_fmadd_ps(w0, xr, lo##i);                                                    \
        hi##i = _mm256_fmadd_ps(w1, xr, hi##i);                                                    \
    }
#define F_STORE(i)                                                                                 \
    _mm256_storeu_ps(t->out + (i) * 16, lo##i);                                                    \
    _mm256_storeu_ps(t->out + (i) * 16 + 8, hi##i);

#define DEFINE_FTILE(N)                                                                            \
    ALWAYS_INLINE void ftile_##N(const struct ftile *t, const enum pack_form form) {               \
        const float *x = t->x;                                                                     \
        ROWS_##N(F_ZERO)                                                                           \
        for (size_t k = 0; k < t->n_in; k++, x += t->x_rows) {                                     \
            __m256 w0 = load_weights(t->panel, k * 16, form);                                      \
            __m256 w1 = load_weights(t->panel, k * 16 + 8, form);                                  \
            ROWS_##N(F_FMA)                                                                        \
        }                                                                                          \
        ROWS_##N(F_STORE)                                                                          \
    }                                                                                              \
    static void frows_##N(const struct ftile *t, enum pack_form form) {                            \
        if (form == PACK_F32)                                                                      \
            ftile_##N(t, PACK_F32);                                                                \
        else if (form == PACK_F16)                                                                 \
            ftile_##N(t, PACK_F16);                                                                \
        else                                                                                       \
            ftile_##N(t, PACK_BF16);                                                               \
    }

DEFINE_FTILE(1)
DEFINE_FTILE(2)
DEFINE_FTILE(3)
DEFINE_FTILE(4)
DEFINE_FTILE(5)
DEFINE_FTILE(6)

typedef void (*frows_fn)(const struct ftile *t, enum pack_form form);
static const frows_fn frows_fns[7] = {NULL, frows_1, frows_2, frows_3, frows_4, frows_5, frows_6};

/* One row: four panels side by side hide the latency of the chains. */
#define V_ZERO(i) __m256 lo##i = _mm256_setzero_ps(), hi##i = _mm256_setzero_ps();
#define V_FMA(i)                                                                                   \
    lo##i = _mm256_fmadd_ps(load_weights(t->panel + (i) * t->panel_bytes, k * 16, form), xk, lo##i); \
    hi##i = _mm256_fmadd_ps(load_weights(t->panel + (i) * t->panel_bytes, k * 16 + 8, form), xk, hi##i);

ALWAYS_INLINE void fvec4(const struct ftile *t, const enum pack_form form) {
    ROWS_4(V_ZERO)
    for (size_t k = 0; k < t->n_in; k++) {
        __m256 xk = _mm256_broadcast_ss(t->x + k);
        ROWS_4(V_FMA)
    }
    ROWS_4(F_STORE)
}

static void fpanels_one_row(const struct mat_args *a, uint32_t p) {
    float out[4 * KERN_LANES];
    struct ftile t = {.panel = packed_panel(a->w, p), .x = act_f32_tile_at(a, 0), .n_in = a->w->n_in,
                      .panel_bytes = a->w->panel_bytes, .out = out};
    enum pack_form form = a->w->type->form;
    if (form == PACK_F32)
        fvec4(&t, PACK_F32);
    else if (form == PACK_F16)
        fvec4(&t, PACK_F16);
    else
        fvec4(&t, PACK_BF16);
    for (uint32_t i = 0; i < 4; i++)
        store_rows(a, p + i, 0, 1, out + i * KERN_LANES);
}

static void fpanel(const struct mat_args *a, uint32_t p) {
    float out[6 * KERN_LANES];
    for (uint32_t i = 0; i < a->tiles.n_tiles; i++) {
        uint32_t rows = row_tile_rows(&a->tiles, i), first = row_tile_first(&a->tiles, i);
        struct ftile t = {.panel = packed_panel(a->w, p), .x_rows = rows, .n_in = a->w->n_in, .out = out};
        for (uint32_t r = 0, n; r < rows; r += n) {
            n = MIN(6, rows - r);
            t.x = act_f32_tile_at(a, i) + r;
            frows_fns[n](&t, a->w->type->form);
            store_rows(a, p, first + r, n, out);
        }
    }
}

void avx2_mat_float(const struct mat_args *a, uint32_t begin, uint32_t end) {
    for (uint32_t p = begin; p < end;) {
        if (a->tiles.n_rows == 1 && end - p >= 4) {
            fpanels_one_row(a, p);
            p += 4;
        } else {
            fpanel(a, p++);
        }
    }
}
