/* kv_layout.h - KV LAYOUT, version 2: where K and V lie in a page, for everyone who reads or moves one.
 *
 * A page (a KV block's bytes) is a run of ranges, one a layer: full-attention layers first, then window
 * layers, each ascending. A range is four runs without gaps, little-endian, K after RoPE:
 *
 *            K                            K scales             V                          V scales
 *   f16, f32 [kv_head][d][token]          -                    [kv_head][token][d]        -
 *   q8_0     i8 [kv_head][d/4][token][4]  f16 [h][d/32][token] i8 [kv_head][token][d]     f16 [h][token][d/32]
 *   q4_0     [kv_head][d/8][token][4],    as q8_0              [kv_head][token][d/32][16], as q8_0
 *            byte j = (q[8g+j]+8) | (q[8g+4+j]+8) << 4         byte j = (q[j]+8) | (q[j+16]+8) << 4
 *
 * K's and V's dtypes are chosen apart. K is d-major so that a vector lane is a token. Quantised rows are
 * rounded once, when they are stored (kv_quant_row()).
 *
 * Thread: any; read-only after kv_layout_init(). Units: bytes from the page's start. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"

#define KV_LAYOUT_VERSION 2
#define KV_MAX_RANGES 512u /* layers of a page */
#define KV_RANGE_ALIGN 64u /* bytes of each range are a multiple of this */
#define KV_QBLOCK 32u      /* values of a row that share a scale */

enum kv_dtype { KV_F16 = 0, KV_F32 = 1, KV_Q8_0 = 2, KV_Q4_0 = 3 };
#define KV_N_DTYPES 4

/* Rows carry a scale each KV_QBLOCK values. */
static inline bool kv_is_scaled(enum kv_dtype t) {
    return t == KV_Q8_0 || t == KV_Q4_0;
}

/* K's and V's, which are chosen apart. */
struct kv_dtypes {
    enum kv_dtype k, v;
};
const char *kv_dtype_name(enum kv_dtype t); /* "f16", "f32", "q8_0", "q4_0" */

/* One layer's K (or V): the values' run, and the scales' that follows it (0 for floats). */
size_t kv_run_bytes(enum kv_dtype t, uint32_t n_kv_head, uint32_t d_head, uint32_t block_tok);
size_t kv_scale_bytes(enum kv_dtype t, uint32_t n_kv_head, uint32_t d_head, uint32_t block_tok);

struct kv_layout_cfg {
    uint32_t n_layer, n_kv_head, d_head;
    uint32_t block_tok; /* B */
    enum kv_dtype k_dtype, v_dtype;
    const uint32_t
        *window; /* [n_layer] positions that a row sees, 0: all; NULL: every layer sees all */
};

/* Of one layer; a scale's offset is the end of its values. */
struct kv_place {
    uint32_t range;
    size_t k, k_scale, v, v_scale;
};

struct kv_layout {
    struct kv_layout_cfg cfg; /* window: NULL */
    struct kv_place *layer;   /* [n_layer] */
    uint32_t *range_sizes;    /* [n_layer], by range */
    uint32_t n_full;          /* ranges before the first window layer's */
    size_t page_bytes;
};

/* The offsets of one layer from its range's start; returns the range's bytes. Reads the sizes and dtypes of
 * cfg alone; does not check them. */
size_t kv_range_place(const struct kv_layout_cfg *cfg, struct kv_place *ret);

/* ERR_UNSUPPORTED: a range is no multiple of KV_RANGE_ALIGN, or a quantised dtype's head size is no
 * multiple of 32 or B none of 16. ERR_TOOBIG: more layers than a page may have. */
int kv_layout_init(struct kv_layout *ret, const struct kv_layout_cfg *cfg, struct errbuf *eb);
void kv_layout_fini(struct kv_layout *l); /* also of a zeroed one */

/* One row of n values, n a multiple of 32, as quants and f16 scales. Per 32: q8_0 s = f16(amax / 127); q4_0
 * s = f16(m / -8), m the value of largest magnitude, the lowest on ties; a scale of -0 becomes +0 and gives
 * zeros; q = clamp(rint_even(x * (1 / s))) to +-127 or -8..7. False: a value is a NaN or infinite, or a
 * scale is not finite. */
bool kv_quant_row(int8_t *q, uint16_t *scale, const float *x, size_t n, enum kv_dtype t);
