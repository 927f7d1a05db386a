/* packed_mat.c - from a GGUF tensor's bytes to panels of 16 outputs (layout: matmul.h). */
#include "worker/kernels/kern_impl.h"

#define PANEL_ALIGN 64

static uint16_t load_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

/* Column `o` of a block from 16 bytes of nibbles: file order already is (k, k + 16) in one byte. */
static void pack_nibbles(uint8_t *block, uint32_t o, const uint8_t *qs) {
    for (uint32_t g = 0; g < 4; g++)
        memcpy(block + g * 64 + 4 * o, qs + 4 * g, 4);
}

static void put_u8(uint8_t *block, uint32_t o, uint32_t k, uint8_t u) {
    block[k / 4 * 64 + 4 * o + k % 4] = u;
}

static void pack_u8_q8(uint8_t *block, uint32_t o, const uint8_t *qs) {
    for (uint32_t k = 0; k < KERN_QBLOCK; k++)
        put_u8(block, o, k, qs[k] ^ 0x80u); /* int8 + 128 */
}

/* One file block into column o of block b. */
static void pack_block(const struct packed_mat *m, uint8_t *panel, uint32_t b, uint32_t o,
                       const uint8_t *src) {
    uint16_t *dw = (uint16_t *)(void *)(panel + m->scale_off) + b * KERN_LANES + o;
    *dw = load_u16(src);
    const uint8_t *q = src + 2;
    if (m->type->has_min) {
        uint16_t *mw = (uint16_t *)(void *)(panel + m->min_off) + b * KERN_LANES + o;
        *mw = load_u16(q);
        q += 2;
    }
    if (m->type->form == PACK_NIB)
        pack_nibbles(panel + (size_t)b * 256, o, q);
    else
        pack_u8_q8(panel + (size_t)b * 512, o, q);
}

/* --- records ------------------------------------------------------------------------------------- */

/* w[g] has the quants 4g .. 4g+3 of one output, a byte each: to the words of the vectors that hold a block
 * (matmul.h). No byte gets bits of its neighbour. Returns the number of vectors. */
static uint32_t squeeze(enum pack_form form, const uint32_t w[8], uint32_t v[6]) {
#define IN_EACH(b) (0x01010101u * (b))
    switch (form) {
    case PACK_Q2_K:
        for (int i = 0; i < 2; i++)
            v[i] = w[4 * i] | w[4 * i + 1] << 2 | w[4 * i + 2] << 4 | w[4 * i + 3] << 6;
        return 2;
    case PACK_Q3_K:
        v[0] = w[0] | w[1] << 3 | (w[6] & IN_EACH(3)) << 6;
        v[1] = w[2] | w[3] << 3 | (w[7] & IN_EACH(3)) << 6;
        v[2] = w[4] | w[5] << 3 | (w[6] & IN_EACH(4)) << 4 | (w[7] & IN_EACH(4)) << 5;
        return 3;
    case PACK_Q5_K:
    case PACK_Q5_0:
    case PACK_Q5_1:
        v[0] = w[0] | (w[5] & IN_EACH(7)) << 5;
        v[1] = w[1] | (w[5] & IN_EACH(24)) << 3 | (w[7] & IN_EACH(8)) << 2;
        v[2] = w[2] | (w[6] & IN_EACH(7)) << 5;
        v[3] = w[3] | (w[6] & IN_EACH(24)) << 3 | (w[7] & IN_EACH(16)) << 1;
        v[4] = w[4] | (w[7] & IN_EACH(7)) << 5;
        return 5;
    case PACK_Q6_K:
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 3; j++)
                v[3 * i + j] = w[4 * i + j] | (w[4 * i + 3] & IN_EACH(3u << 2 * j)) << (6 - 2 * j);
        return 6;
    default: /* nibbles */
        for (int i = 0; i < 4; i++)
            v[i] = w[i] | w[i + 4] << 4;
        return 4;
    }
}

/* d and -dmin of a record (of a block where that is what a record of the file has), then the block's own. */
static void pack_scales(const struct packed_mat *m, uint8_t *rec, uint32_t j, uint32_t o,
                        const struct quant_unit *q, const uint8_t *src) {
    const struct quant_type *t = m->type;
    uint8_t *sub = rec + m->sub_off + j * packed_sub_bytes(t->form) + o;
    if (t->form == PACK_MXFP4) {
        *sub = src[0];
        return;
    }
    const bool each = packed_d_each_block((enum pack_form)t->form);
    uint16_t d = load_u16(src + t->d_at);
    memcpy(rec + m->d_off + (each ? 32 * j : 0) + 2 * o, &d, 2);
    if (t->form == PACK_Q5_1) {
        d = load_u16(src + t->d_at + 2);
        memcpy(sub + o, &d, 2); /* in all 2 * o */
        return;
    }
    if (t->has_min) {
        d = load_u16(src + t->d_at + 2) ^ 0x8000u;
        memcpy(rec + m->d_off + 32 + 2 * o, &d, 2);
    }
    if (t->form == PACK_Q2_K) {
        sub[0] = (uint8_t)(q->sc[0] | q->m[0] << 4);
        sub[KERN_LANES] = (uint8_t)(q->sc[1] | q->m[1] << 4);
    } else if (!each) {
        sub[0] = (uint8_t)q->sc[0];
        if (t->halves || t->has_min)
            sub[KERN_LANES] = t->halves ? (uint8_t)q->sc[1] : q->m[0];
    }
}

static void pack_unit(const struct packed_mat *m, uint8_t *panel, uint32_t b, uint32_t o,
                      const uint8_t *src) {
    uint8_t *rec = panel + b / m->rec_blocks * m->rec_bytes;
    const uint32_t j = b % m->rec_blocks, units = m->type->block_items / KERN_QBLOCK;
    struct quant_unit q;
    uint32_t w[8], v[6];
    m->type->unit(&q, src, b % units);
    memcpy(w, q.u, sizeof w);
    for (uint32_t i = 0, n = squeeze(m->type->form, w, v); i < n; i++)
        memcpy(rec + j * m->quant_bytes + i * 64 + 4 * o, &v[i], 4);
    pack_scales(m, rec, j, o, &q, src);
}

static void pack_quant(struct packed_mat *m, const struct packed_src *src) {
    size_t row_bytes = quant_row_bytes(m->type, m->n_in);
    const uint32_t units = m->type->block_items / KERN_QBLOCK;
    for (uint32_t r = 0; r < m->n_out; r++) {
        const uint8_t *row = (const uint8_t *)src->bytes + r * row_bytes;
        uint8_t *panel = m->data + (size_t)(r / KERN_LANES) * m->panel_bytes;
        for (uint32_t b = 0; b < m->n_in / KERN_QBLOCK; b++)
            (m->type->unit ? pack_unit : pack_block)(
                m, panel, b, r % KERN_LANES, row + (size_t)(b / units) * m->type->block_bytes);
    }
}

/* n rows (up to 16) side by side: item k of row r to [k][16] + r. memcpy of a constant size is a move;
 * the rows of a mapped file need not be aligned. */
static void interleave_u16(uint8_t *dst, const uint8_t *src, size_t row_bytes, uint32_t n,
                           uint32_t n_in) {
    for (size_t k = 0; k < n_in; k++, dst += 2 * KERN_LANES)
        for (size_t r = 0; r < n; r++)
            memcpy(dst + 2 * r, src + r * row_bytes + 2 * k, 2);
}

static void interleave_u32(uint8_t *dst, const uint8_t *src, size_t row_bytes, uint32_t n,
                           uint32_t n_in) {
    for (size_t k = 0; k < n_in; k++, dst += 4 * KERN_LANES)
        for (size_t r = 0; r < n; r++)
            memcpy(dst + 4 * r, src + r * row_bytes + 4 * k, 4);
}

static void pack_float(struct packed_mat *m, const struct packed_src *src) {
    size_t row_bytes = quant_row_bytes(m->type, m->n_in);
    for (uint32_t p = 0; p < m->n_panels; p++) {
        uint32_t row = p * KERN_LANES, n = MIN(KERN_LANES, m->n_out - row);
        const uint8_t *rows = (const uint8_t *)src->bytes + row * row_bytes;
        (m->type->form == PACK_F32 ? interleave_u32 : interleave_u16)(m->data + p * m->panel_bytes,
                                                                      rows, row_bytes, n, m->n_in);
    }
}

static size_t round_up(size_t n) {
    return (n + PANEL_ALIGN - 1) / PANEL_ALIGN * PANEL_ALIGN;
}

/* A record is the file's block, or the whole panel where that has no more than 32 columns. */
static size_t layout_records(struct packed_mat *m, uint32_t blocks) {
    const struct quant_type *t = m->type;
    const uint32_t w[8] = {0};
    uint32_t v[6];
    m->rec_blocks = t->block_items == KERN_QBLOCK ? blocks : t->block_items / KERN_QBLOCK;
    m->quant_bytes = squeeze(t->form, w, v) * 64u;
    m->d_off = m->rec_blocks * m->quant_bytes;
    m->sub_off =
        m->d_off + (t->form == PACK_MXFP4                          ? 0
                    : packed_d_each_block((enum pack_form)t->form) ? 32u * m->rec_blocks
                                                                   : 32u + 32u * t->has_min);
    m->rec_bytes = round_up(m->sub_off + m->rec_blocks * packed_sub_bytes(t->form));
    return blocks / m->rec_blocks * m->rec_bytes;
}

/* Offsets in a panel. Padding outputs have zero weights: their results are computed and not stored. */
static void layout_panel(struct packed_mat *m) {
    size_t bytes, blocks = m->n_in / KERN_QBLOCK;
    if (m->type->block_items == 1) {
        bytes = (size_t)m->n_in * KERN_LANES * m->type->block_bytes;
    } else if (m->type->unit) {
        bytes = layout_records(m, (uint32_t)blocks);
    } else {
        m->scale_off = blocks * (m->type->form == PACK_NIB ? 256 : 512);
        m->min_off = m->scale_off + blocks * KERN_LANES * 2;
        bytes = m->min_off + (m->type->has_min ? blocks * KERN_LANES * 2 : 0);
    }
    m->panel_bytes = round_up(bytes);
    m->n_panels = (m->n_out + KERN_LANES - 1) / KERN_LANES;
    m->data_bytes = m->panel_bytes * m->n_panels;
}

static int check_src(const struct quant_type *t, const struct packed_src *src, struct errbuf *eb) {
    if (!t)
        return err_set(eb, ERR_UNSUPPORTED, "weights of GGUF type %u", src->dtype);
    if (src->n_out == 0 || src->n_in == 0 || src->n_in % t->block_items != 0)
        return err_set(eb, ERR_INVALID, "%s weights of %u x %u: columns must be a multiple of %u",
                       t->name, src->n_out, src->n_in, t->block_items);
    /* Far above any model; keeps every offset below in 64 bits. */
    if (src->n_in > 1u << 24 || src->n_out > 1u << 28)
        return err_set(eb, ERR_INVALID, "%s weights of %u x %u", t->name, src->n_out, src->n_in);
    if (src->n_bytes != quant_row_bytes(t, src->n_in) * src->n_out)
        return err_set(eb, ERR_INVALID, "%s weights of %u x %u: %zu bytes", t->name, src->n_out,
                       src->n_in, src->n_bytes);
    size_t row_blocks = src->n_in / t->block_items;
    size_t bad = quant_first_bad(t, src->bytes, (size_t)src->n_in * src->n_out);
    if (bad < row_blocks * src->n_out)
        return err_set(eb, ERR_CORRUPT, "%s weights: %s %zu of row %zu %s", t->name,
                       t->block_items == 1 ? "weight" : "scale of block", bad % row_blocks,
                       bad / row_blocks, quant_bad_text(t));
    return 0;
}

int packed_mat_new(struct packed_mat **ret, const struct packed_src *src, struct errbuf *eb) {
    const struct quant_type *t = quant_type_find(src->dtype);
    int rv = check_src(t, src, eb);
    if (rv < 0)
        return rv;
    struct packed_mat *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(eb, ERR_NOMEM, "packed weights");
    m->type = t;
    m->n_out = src->n_out;
    m->n_in = src->n_in;
    m->raw = src->keep_raw ? src->bytes : NULL;
    layout_panel(m);
    m->owns_data = !src->mem;
    m->data = src->mem ? weight_mem_take(src->mem, m->data_bytes)
                       : aligned_alloc(PANEL_ALIGN, m->data_bytes);
    if (!m->data) {
        rv = err_set(eb, ERR_NOMEM, "%zu bytes of packed weights", m->data_bytes);
        packed_mat_free(m);
        return rv;
    }
    if (m->owns_data)
        memset(m->data, 0, m->data_bytes);
    if (t->block_items == 1)
        pack_float(m, src);
    else
        pack_quant(m, src);
    *ret = m;
    return 0;
}

void packed_mat_free(struct packed_mat *m) {
    if (!m)
        return;
    if (m->owns_data)
        free(m->data);
    free(m);
}

uint32_t packed_mat_n_out(const struct packed_mat *m) {
    return m->n_out;
}

uint32_t packed_mat_n_in(const struct packed_mat *m) {
    return m->n_in;
}

size_t packed_mat_size(const struct quant_type *t, uint32_t n_out, uint32_t n_in) {
    struct packed_mat m = {.type = t, .n_out = n_out, .n_in = n_in};
    layout_panel(&m);
    return m.data_bytes;
}

size_t packed_mat_bytes(const struct packed_mat *m) {
    return m->data_bytes;
}
