/* matmul_avx512_tile.c - tiles of R rows x 16 outputs over an expanded panel.
 *
 * Plain types (matmul_avx512.c says how) have one integer sum a row and block. Q3_K and Q6_K have two, of
 * which I = sc0 * idot16_0 + sc1 * idot16_1 is exact in float: |idot16| < 2^17 and |I| < 2^24. Their rows come
 * one after the other with the block's weights in registers; the CPU overlaps them. */
#include "worker/kernels/matmul_avx512.h"

struct tile {
    const uint8_t *panel; /* expanded, MAT_PANEL_BLOCK_BYTES a block */
    const uint8_t *act;
    float *y;
    size_t y_stride;
    uint32_t n_blocks;
    __mmask16 mask; /* outputs that exist */
};

/* acc += the products of two i16 of w and the pair at p in all lanes. */
#define PAIR_BCAST(acc, w, p)                                                                      \
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t *)(p)))

#define T_ZERO(i) __m512 acc##i = _mm512_setzero_ps();
#define T_STORE(i) _mm512_mask_storeu_ps(t->y + (i)*t->y_stride, t->mask, acc##i);
#define T_HALF_MIN(i)                                                                              \
    {                                                                                              \
        __m512i m = magic;                                                                         \
        PAIR_BCAST(m, mins, act + R * 44 + (i)*4);                                                 \
        __m512 f = _mm512_fmadd_ps(_mm512_castsi512_ps(m), dmin, minus);                           \
        FMA_BCAST(acc##i, f, act + R * 36 + (i)*4);                                                \
    }

#define DEFINE_PLAIN(N)                                                                            \
    ALWAYS_INLINE void plain_##N(const struct tile *t, const enum tile_kind kind) {                \
        enum { R = N };                                                                            \
        const __m512i magic = _mm512_set1_epi32(KERN_MAGIC_BITS);                                  \
        const __m512 minus_magic = _mm512_set1_ps(-KERN_MAGIC);                                    \
        const uint8_t *panel = t->panel, *act = t->act;                                            \
        (void)magic, (void)minus_magic;                                                            \
        ROWS_##N(T_ZERO) for (uint32_t b = 0; b < t->n_blocks; b++) {                              \
            ROWS_##N(T_INIT) _Pragma("GCC unroll 8") for (int g = 0; g < 8; g++) {                 \
                __m512i w = _mm512_loadu_si512(panel + g * 64);                                    \
                ROWS_##N(T_DOT)                                                                    \
            }                                                                                      \
            __m512 dw = _mm512_loadu_ps(panel + 512);                                              \
            __m512 minus = kind == TILE_HALF_MIN ? _mm512_mul_ps(dw, minus_magic)                  \
                                                 : _mm512_loadu_ps(panel + 576);                   \
            ROWS_##N(T_SCALE) if (kind == TILE_MIN) {                                              \
                __m512 mw = _mm512_loadu_ps(panel + 640);                                          \
                ROWS_##N(T_MIN)                                                                    \
            }                                                                                      \
            if (kind == TILE_HALF_MIN) {                                                           \
                __m512i mins = _mm512_loadu_si512(panel + 576);                                    \
                __m512 dmin = _mm512_loadu_ps(panel + 640);                                        \
                minus = _mm512_mul_ps(dmin, minus_magic);                                          \
                ROWS_##N(T_HALF_MIN)                                                               \
            }                                                                                      \
            panel += MAT_PANEL_BLOCK_BYTES;                                                        \
            act += R * ACT_ROW_BYTES;                                                              \
        }                                                                                          \
        ROWS_##N(T_STORE)                                                                          \
    }

#define H_DOT(d, g, at) DOT_BCAST(d, w##g, (at) + (g)*4);
#define H_ROW(i)                                                                                   \
    {                                                                                              \
        const uint8_t *q = act + (i)*32, *words = act + R * 32 + (i)*4;                            \
        __m512i d0 = _mm512_set1_epi32(*(const int32_t *)(const void *)words);                     \
        __m512i d1 = _mm512_set1_epi32(*(const int32_t *)(const void *)(words + R * 8));           \
        H_DOT(d0, 0, q)                                                                            \
        H_DOT(d1, 4, q)                                                                            \
        H_DOT(d0, 1, q)                                                                            \
        H_DOT(d1, 5, q)                                                                            \
        H_DOT(d0, 2, q)                                                                            \
        H_DOT(d1, 6, q)                                                                            \
        H_DOT(d0, 3, q)                                                                            \
        H_DOT(d1, 7, q)                                                                            \
        __m512 f0 = _mm512_fmadd_ps(_mm512_castsi512_ps(d0), sc0, minus);                          \
        __m512 f1 = _mm512_sub_ps(_mm512_castsi512_ps(d1), magic);                                 \
        f0 = _mm512_mul_ps(_mm512_fmadd_ps(f1, sc1, f0), dw);                                      \
        FMA_BCAST(acc##i, f0, words + R * 4);                                                      \
    }
#define H_LOAD(g) const __m512i w##g = _mm512_loadu_si512(panel + (g)*64);

#define DEFINE_HALVES(N)                                                                           \
    ALWAYS_INLINE void halves_##N(const struct tile *t) {                                          \
        enum { R = N };                                                                            \
        const __m512 magic = _mm512_set1_ps(KERN_MAGIC);                                           \
        const uint8_t *panel = t->panel, *act = t->act;                                            \
        ROWS_##N(T_ZERO) for (uint32_t b = 0; b < t->n_blocks; b++) {                              \
            ROWS_8(H_LOAD)                                                                         \
            const __m512 sc0 = _mm512_loadu_ps(panel + 512), sc1 = _mm512_loadu_ps(panel + 576);   \
            const __m512 dw = _mm512_loadu_ps(panel + 640);                                        \
            const __m512 minus = _mm512_mul_ps(sc0, _mm512_set1_ps(-KERN_MAGIC));                  \
            ROWS_##N(H_ROW) panel += MAT_PANEL_BLOCK_BYTES;                                        \
            act += R * ACT_ROW_BYTES;                                                              \
        }                                                                                          \
        ROWS_##N(T_STORE)                                                                          \
    }

#define DEFINE_TILE(N)                                                                             \
    DEFINE_PLAIN(N)                                                                                \
    DEFINE_HALVES(N)                                                                               \
    static void tile_plain_##N(const struct tile *t) {                                             \
        plain_##N(t, TILE_PLAIN);                                                                  \
    }                                                                                              \
    static void tile_min_##N(const struct tile *t) {                                               \
        plain_##N(t, TILE_MIN);                                                                    \
    }                                                                                              \
    static void tile_half_min_##N(const struct tile *t) {                                          \
        plain_##N(t, TILE_HALF_MIN);                                                               \
    }                                                                                              \
    static void tile_halves_##N(const struct tile *t) {                                            \
        halves_##N(t);                                                                             \
    }
#define TILE_ROW(N)                                                                                \
    { tile_plain_##N, tile_min_##N, tile_half_min_##N, tile_halves_##N }

DEFINE_TILE(7)
DEFINE_TILE(8)
DEFINE_TILE(9)
DEFINE_TILE(10)
DEFINE_TILE(11)
DEFINE_TILE(12)
DEFINE_TILE(13)
DEFINE_TILE(14)

/* More than 8 rows are a tile of more or, cut as evenly as possible, tiles of 7 and more. */
#define TILES_FROM 7
typedef void (*tile_fn)(const struct tile *t);
static const tile_fn tiles[KERN_TILE_ROWS - TILES_FROM + 1][N_TILE_KINDS] = {
    TILE_ROW(7),  TILE_ROW(8),  TILE_ROW(9),  TILE_ROW(10),
    TILE_ROW(11), TILE_ROW(12), TILE_ROW(13), TILE_ROW(14),
};

void avx512_expanded_panel(const struct mat_args *a, uint32_t p, enum tile_kind kind) {
    struct tile t = {
        .panel = a->panel_scratch,
        .y_stride = a->y_stride,
        .n_blocks = a->w->n_in / KERN_QBLOCK,
        .mask = avx512_panel_mask(a->w, p),
    };
    for (uint32_t i = 0; i < a->tiles.n_tiles; i++) {
        struct act_tile at = act_tile_at(a, i);
        t.act = at.p;
        t.y = a->y + (size_t)at.first_row * a->y_stride + p * KERN_LANES;
        tiles[at.rows - TILES_FROM][kind](&t);
    }
}
