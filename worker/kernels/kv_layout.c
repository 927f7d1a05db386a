/* kv_layout.c - sizes and offsets of a page, and the rounding of a quantised row. */
#include "worker/kernels/kv_layout.h"

#include <math.h>

#include "common/check.h"
#include "worker/kernels/quant.h"

static const struct {
    const char *name;
    uint8_t bits; /* of a value */
} dtypes[KV_N_DTYPES] = {
    [KV_F16] = {"f16", 16},
    [KV_F32] = {"f32", 32},
    [KV_Q8_0] = {"q8_0", 8},
    [KV_Q4_0] = {"q4_0", 4},
};

const char *kv_dtype_name(enum kv_dtype t) {
    return dtypes[t].name;
}

size_t kv_run_bytes(enum kv_dtype t, uint32_t n_kv_head, uint32_t d_head, uint32_t block_tok) {
    return (size_t)n_kv_head * d_head * block_tok * dtypes[t].bits / 8;
}

size_t kv_scale_bytes(enum kv_dtype t, uint32_t n_kv_head, uint32_t d_head, uint32_t block_tok) {
    return kv_is_scaled(t) ? (size_t)n_kv_head * (d_head / KV_QBLOCK) * block_tok * 2 : 0;
}

size_t kv_range_place(const struct kv_layout_cfg *c, struct kv_place *p) {
    p->k = 0;
    p->k_scale = kv_run_bytes(c->k_dtype, c->n_kv_head, c->d_head, c->block_tok);
    p->v = p->k_scale + kv_scale_bytes(c->k_dtype, c->n_kv_head, c->d_head, c->block_tok);
    p->v_scale = p->v + kv_run_bytes(c->v_dtype, c->n_kv_head, c->d_head, c->block_tok);
    return p->v_scale + kv_scale_bytes(c->v_dtype, c->n_kv_head, c->d_head, c->block_tok);
}

static int check_cfg(const struct kv_layout_cfg *c, struct errbuf *eb) {
    const bool scaled = kv_is_scaled(c->k_dtype) || kv_is_scaled(c->v_dtype);
    struct kv_place p;
    if (c->n_layer == 0 || c->n_layer > KV_MAX_RANGES)
        return err_set(eb, ERR_TOOBIG, "%u layers; a KV block has 1 to %u", c->n_layer,
                       KV_MAX_RANGES);
    if (scaled && (c->d_head % KV_QBLOCK != 0 || c->block_tok % 16 != 0))
        return err_set(
            eb, ERR_UNSUPPORTED,
            "quantised KV with heads of %u and blocks of %u tokens: multiples of %u and 16 "
            "are needed",
            c->d_head, c->block_tok, KV_QBLOCK);
    size_t bytes = kv_range_place(c, &p);
    if (bytes % KV_RANGE_ALIGN != 0 || bytes > UINT32_MAX)
        return err_set(eb, ERR_UNSUPPORTED,
                       "a layer of a KV block has %zu bytes, no multiple of %u", bytes,
                       KV_RANGE_ALIGN);
    return 0;
}

int kv_layout_init(struct kv_layout *ret, const struct kv_layout_cfg *cfg, struct errbuf *eb) {
    int rv = check_cfg(cfg, eb);
    if (rv < 0)
        return rv;
    struct kv_layout l = {.cfg = *cfg};
    l.cfg.window = NULL;
    l.layer = alloc_array(cfg->n_layer, sizeof(*l.layer));
    l.range_sizes = alloc_array(cfg->n_layer, sizeof(*l.range_sizes));
    if (!l.layer || !l.range_sizes) {
        kv_layout_fini(&l);
        return err_set(eb, ERR_NOMEM, "layout of %u layers", cfg->n_layer);
    }
    uint32_t range = 0;
    for (int windows = 0; windows < 2; windows++) {
        for (uint32_t i = 0; i < cfg->n_layer; i++) {
            struct kv_place *p = &l.layer[i];
            if ((cfg->window && cfg->window[i] != 0) != windows)
                continue;
            size_t bytes = kv_range_place(cfg, p);
            p->range = range;
            p->k += l.page_bytes;
            p->k_scale += l.page_bytes;
            p->v += l.page_bytes;
            p->v_scale += l.page_bytes;
            l.range_sizes[range++] = (uint32_t)bytes;
            l.page_bytes += bytes;
        }
        if (!windows)
            l.n_full = range;
    }
    *ret = l;
    return 0;
}

void kv_layout_fini(struct kv_layout *l) {
    free(l->layer);
    free(l->range_sizes);
    *l = (struct kv_layout){.page_bytes = 0};
}

/* Half to even for |x| < 2^22, and beyond that the clamp does not mind. */
static int32_t rint_clamped(float x, int32_t least, int32_t most) {
    if (!(x > (float)least))
        return least;
    if (x > (float)most)
        return most;
    return (int32_t)((x + 0x1.8p23f) - 0x1.8p23f);
}

bool kv_quant_row(int8_t *q, uint16_t *scale, const float *x, size_t n, enum kv_dtype t) {
    const bool q8 = t == KV_Q8_0;
    CHECK(kv_is_scaled(t) && n % KV_QBLOCK == 0);
    for (size_t b = 0; b < n / KV_QBLOCK; b++, x += KV_QBLOCK, q += KV_QBLOCK) {
        float m = x[0];
        for (uint32_t i = 0; i < KV_QBLOCK; i++) {
            if (!isfinite(x[i]))
                return false;
            m = fabsf(x[i]) > fabsf(m) ? x[i] : m;
        }
        uint16_t s = quant_f32_to_f16(q8 ? fabsf(m) / 127.0f : m / -8.0f);
        if ((s & 0x7fff) == 0)
            s = 0;
        if ((s & 0x7c00) == 0x7c00)
            return false;
        float inv = s ? 1.0f / quant_f16_to_f32(s) : 0.0f;
        for (uint32_t i = 0; i < KV_QBLOCK; i++)
            q[i] = (int8_t)(s ? rint_clamped(x[i] * inv, q8 ? -127 : -8, q8 ? 127 : 7) : 0);
        scale[b] = s;
    }
    return true;
}
