/* matmul_avx2.c - products with 16 registers of 8 lanes: a panel is two halves of 8 outputs, done
 * together with up to 6 rows at a time (bytes: 4).
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

/* Where a tile finds a panel's weights: few rows in the packed panel itself (each weight is used once,
 * memory is what they wait for), more rows in this thread's expanded copy. */
enum source { EXPANDED, NIBBLES, BYTES };

struct tile {
    const uint8_t *panel;
    const uint8_t *dw, *mw; /* packed only: the panel's halves */
    __m256i offset;         /* BYTES: of the weight type, in all bytes */
    const uint8_t *act;     /* from the first of these rows on */
    uint32_t act_rows;      /* of the whole tile: the strides */
    uint32_t n_blocks;
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

/* One half of group g (0 .. 7) of a block's quants: u8 of nibbles, else s8. */
ALWAYS_INLINE __m256i quants(const struct tile *t, const uint8_t *half, int g,
                             const enum source from) {
    if (from == EXPANDED)
        return load8i(half + g * 64);
    if (from == BYTES)
        return _mm256_sub_epi8(load8i(half + g * 64), t->offset);
    __m256i v = load8i(half + g % 4 * 64);
    return _mm256_and_si256(g < 4 ? v : _mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}

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

#define SCALE(i, SUM, PLACE)                                                                       \
    {                                                                                              \
        const uint8_t *da = tail + (R + (i)) * 4, *sa = tail + (2 * R + (i)) * 4;                  \
        __m256 lo = scale8(PLACE##_LO(i), SUM(lo##i, i), dw0, da, mw0, sa, has_min);               \
        __m256 hi = scale8(PLACE##_HI(i), SUM(hi##i, i), dw1, da, mw1, sa, has_min);               \
        PLACE##_SET(i, lo, hi);                                                                    \
    }
#define U_SCALE_REG(i) SCALE(i, U_SUM, REG)
#define U_SCALE_MEM(i) SCALE(i, U_SUM, MEM)
#define S_SCALE_REG(i) SCALE(i, S_SUM, REG)
#define S_SCALE_MEM(i) SCALE(i, S_SUM, MEM)

#define DEFINE_TILE(KIND, N, PLACE)                                                                \
    ALWAYS_INLINE void KIND##_tile_##N(const struct tile *t, uint32_t first, const bool has_min,   \
                                       const enum source from) {                                   \
        const uint32_t R = t->act_rows;                                                            \
        const __m256i ones = _mm256_set1_epi16(1), magic = _mm256_set1_epi32(KERN_MAGIC_BITS);     \
        const uint8_t *panel = t->panel, *act = t->act + first * 32;                               \
        const uint8_t *tail = t->act + R * 32 + first * 4;                                         \
        const uint8_t *dw = t->dw, *mw = t->mw;                                                    \
        const size_t ahead = t->ahead;                                                             \
        float *const out = t->out;                                                                 \
        (void)magic;                                                                               \
        ROWS_##N(PLACE##_OPEN) for (size_t b = t->n_blocks; b; b--) {                              \
            ROWS_##N(T_INIT) _Pragma("GCC unroll 8") for (int g = 0; g < 8; g++) {                 \
                __m256i w0 = quants(t, panel, g, from), w1 = quants(t, panel + 32, g, from);       \
                __m256i a0 = _mm256_abs_epi8(w0), a1 = _mm256_abs_epi8(w1);                        \
                (void)a0, (void)a1;                                                                \
                if (from == BYTES || (from == NIBBLES && g < 4))                                   \
                    _mm_prefetch((const char *)panel + ahead + g * 64, _MM_HINT_T1);               \
                ROWS_##N(KIND##_DOT)                                                               \
            }                                                                                      \
            const float *scales = (const float *)(const void *)(panel + 512);                      \
            const bool packed = from != EXPANDED;                                                  \
            __m256 dw0 = packed ? half8(dw) : _mm256_loadu_ps(scales), mw0 = dw0;                  \
            __m256 dw1 = packed ? half8(dw + 16) : _mm256_loadu_ps(scales + 8), mw1 = dw1;         \
            if (has_min) {                                                                         \
                mw0 = packed ? half8(mw) : _mm256_loadu_ps(scales + 32);                           \
                mw1 = packed ? half8(mw + 16) : _mm256_loadu_ps(scales + 40);                      \
            }                                                                                      \
            ROWS_##N(KIND##_SCALE_##PLACE) panel += from == EXPANDED ? MAT_PANEL_BLOCK_BYTES       \
                                                    : from == BYTES  ? 512                         \
                                                                     : 256;                         \
            act += R * ACT_ROW_BYTES;                                                              \
            tail += R * ACT_ROW_BYTES;                                                             \
            if (packed) {                                                                          \
                _mm_prefetch((const char *)dw + ahead, _MM_HINT_T1);                               \
                if (has_min)                                                                       \
                    _mm_prefetch((const char *)mw + ahead, _MM_HINT_T1);                           \
                dw += 32;                                                                          \
                mw += 32;                                                                          \
            }                                                                                      \
        }                                                                                          \
        ROWS_##N(PLACE##_CLOSE)                                                                    \
    }                                                                                              \
    static void KIND##_direct_##N(const struct tile *t, bool has_min) {                            \
        if (has_min)                                                                               \
            KIND##_tile_##N(t, 0, true, KIND##_PACKED);                                            \
        else                                                                                       \
            KIND##_tile_##N(t, 0, false, KIND##_PACKED);                                           \
    }
#define DEFINE_ROWS(KIND, N)                                                                       \
    static void KIND##_rows_##N(const struct tile *t, uint32_t first, bool has_min) {              \
        if (has_min)                                                                               \
            KIND##_tile_##N(t, first, true, EXPANDED);                                             \
        else                                                                                       \
            KIND##_tile_##N(t, first, false, EXPANDED);                                            \
    }
#define U_PACKED NIBBLES
#define S_PACKED BYTES

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
/* More rows than fit at once are cut as evenly as possible, so that the smallest parts do not arise. */
DEFINE_ROWS(U, 3)
DEFINE_ROWS(U, 4)
DEFINE_ROWS(U, 5)
DEFINE_ROWS(U, 6)
DEFINE_ROWS(S, 2)
DEFINE_ROWS(S, 3)
DEFINE_ROWS(S, 4)

/* Rows at a time: 6 x 2 sums of nibbles, two loads and a product fill 15 registers; bytes need their signs
 * and magnitudes too. */
#define U_MAX 6
#define S_MAX 4
struct rows_fns {
    uint32_t max;
    void (*direct[U_MAX + 1])(const struct tile *t, bool has_min); /* by number of rows */
    void (*expanded[U_MAX + 1])(const struct tile *t, uint32_t first, bool has_min);
};
static const struct rows_fns fns_of[2] = {
    {U_MAX,
     {NULL, U_direct_1, U_direct_2, U_direct_3, U_direct_4, U_direct_5, U_direct_6},
     {NULL, NULL, NULL, U_rows_3, U_rows_4, U_rows_5, U_rows_6}},
    {S_MAX,
     {NULL, S_direct_1, S_direct_2, S_direct_3, S_direct_4, NULL, NULL},
     {NULL, NULL, S_rows_2, S_rows_3, S_rows_4, NULL, NULL}},
};

static void expand_scales(const struct packed_mat *w, const uint8_t *panel, uint32_t b,
                          float *dst) {
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

static void panels_direct(const struct mat_args *a, const struct rows_fns *fns, uint32_t begin,
                          uint32_t end) {
    const struct packed_mat *w = a->w;
    const uint32_t rows = a->tiles.n_rows;
    float out[U_MAX * KERN_LANES];
    struct tile t = {.act = a->act,
                     .act_rows = rows,
                     .n_blocks = w->n_in / KERN_QBLOCK,
                     .out = out,
                     .ahead = w->panel_bytes,
                     .offset = _mm256_set1_epi8((char)w->type->offset)};
    for (uint32_t p = begin; p < end; p++) {
        t.panel = packed_panel(w, p);
        t.dw = t.panel + w->scale_off;
        t.mw = t.panel + w->min_off;
        fns->direct[rows](&t, w->type->has_min);
        store_rows(a, p, 0, rows, out);
    }
}

/* A tile's rows in parts as even as possible. */
static void expanded_tile(const struct mat_args *a, const struct rows_fns *fns, uint32_t p,
                          struct act_tile at) {
    float out[U_MAX * KERN_LANES];
    struct tile t = {.panel = a->panel_scratch,
                     .act = at.p,
                     .act_rows = at.rows,
                     .n_blocks = a->w->n_in / KERN_QBLOCK,
                     .out = out};
    uint32_t parts = (at.rows + fns->max - 1) / fns->max;
    for (uint32_t r = 0, n; parts; parts--, r += n) {
        n = (at.rows - r + parts - 1) / parts;
        fns->expanded[n](&t, r, a->w->type->has_min);
        store_rows(a, p, at.first_row + r, n, out);
    }
}

void avx2_mat_quant(const struct mat_args *a, uint32_t begin, uint32_t end) {
    const struct rows_fns *fns = &fns_of[a->w->type->form == PACK_U8];
    if (a->tiles.n_rows <= fns->max) {
        panels_direct(a, fns, begin, end);
        return;
    }
    for (uint32_t p = begin; p < end; p++) {
        expand_panel(a->w, packed_panel(a->w, p), a->panel_scratch);
        for (uint32_t i = 0; i < a->tiles.n_tiles; i++)
            expanded_tile(a, fns, p, act_tile_at(a, i));
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
    _mm256_storeu_ps(t->out + (i)*16, lo##i);                                                      \
    _mm256_storeu_ps(t->out + (i)*16 + 8, hi##i);

#define DEFINE_FTILE(N)                                                                            \
    ALWAYS_INLINE void ftile_##N(const struct ftile *t, const enum pack_form form) {               \
        const float *x = t->x;                                                                     \
        ROWS_##N(F_ZERO) for (size_t k = 0; k < t->n_in; k++, x += t->x_rows) {                    \
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
    lo##i = _mm256_fmadd_ps(load_weights(t->panel + (i)*t->panel_bytes, k * 16, form), xk, lo##i); \
    hi##i =                                                                                        \
        _mm256_fmadd_ps(load_weights(t->panel + (i)*t->panel_bytes, k * 16 + 8, form), xk, hi##i);

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
    struct ftile t = {.panel = packed_panel(a->w, p),
                      .x = act_f32_tile_at(a, 0),
                      .n_in = a->w->n_in,
                      .panel_bytes = a->w->panel_bytes,
                      .out = out};
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
        struct ftile t = {
            .panel = packed_panel(a->w, p), .x_rows = rows, .n_in = a->w->n_in, .out = out};
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
