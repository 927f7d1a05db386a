/* matmul_avx2_float.c - float weights: a panel is two halves of 8 outputs, done together with up to 6 rows. */
#include "worker/kernels/matmul_avx2.h"

#include <immintrin.h>

#include "worker/kernels/kern_rows.h"

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
        avx2_store_rows(a, p + i, 0, 1, out + i * KERN_LANES);
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
            avx2_store_rows(a, p, first + r, n, out);
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
