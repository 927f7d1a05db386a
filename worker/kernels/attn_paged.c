/* attn_paged.c - walks pages; the arithmetic is the instruction set's (kern_impl.h).
 *
 * Work is cut into blocks of up to 12 (row, query head) pairs of one KV head, row-major, so that one
 * walk over K and V serves them all: 4 rows of a 3-heads-per-KV-head model, or the 3 heads of a decode
 * row. A pair never sees another pair's numbers, so the cut does not change a bit. */
#include "worker/kernels/attn_paged.h"

#include "common/check.h"
#include "worker/kernels/kern_impl.h"

struct attn_scratch {
    struct attn_scratch_cfg cfg;
    size_t s_floats, qt_floats, acc_floats; /* of one thread, each a multiple of 16 */
    float *mem;
};

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

int attn_scratch_new(struct attn_scratch **ret, const struct attn_scratch_cfg *cfg) {
    struct attn_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return ERR_NOMEM;
    s->cfg = *cfg;
    s->s_floats = round_up(cfg->max_ctx, KERN_LANES) * KERN_ATTN_ROWS;
    s->qt_floats = round_up((size_t)cfg->head_dim * KERN_ATTN_ROWS, KERN_LANES);
    s->acc_floats = s->qt_floats;
    size_t floats = (s->s_floats + s->qt_floats + s->acc_floats) * cfg->n_threads;
    s->mem = aligned_alloc(64, round_up(floats * sizeof(float), 64));
    if (!s->mem) {
        free(s);
        return ERR_NOMEM;
    }
    *ret = s;
    return 0;
}

void attn_scratch_free(struct attn_scratch *s) {
    if (!s)
        return;
    free(s->mem);
    free(s);
}

/* --- one block --------------------------------------------------------------------------------- */

struct attn_job {
    const struct kern_impl *impl;
    struct attn_scratch *scratch;
    const struct attn_shape *shape;
    const struct attn_seq *seqs;
    size_t n_seqs, n_items;
};

/* Pairs [first, first + n) of one KV head of one sequence. */
struct pairs {
    const struct attn_seq *seq;
    uint32_t kv, first, n, group; /* group: query heads of a KV head */
};

static uint32_t pair_row(const struct pairs *p, uint32_t i) {
    return (p->first + i) / p->group;
}

static size_t pair_head(const struct pairs *p, uint32_t i) {
    return (size_t)p->kv * p->group + (p->first + i) % p->group;
}

static uint32_t pair_last(const struct pairs *p, uint32_t i) {
    return p->seq->pos0 + pair_row(p, i);
}

/* Kernels exist for these numbers of pairs; the surplus computes zeros that nobody reads. */
static uint32_t padded_pairs(uint32_t n) {
    static const uint8_t sizes[KERN_ATTN_ROWS + 1] = {0, 1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12};
    return sizes[n];
}

static const uint8_t *head_k(const struct attn_job *j, const struct pairs *p, uint32_t page) {
    const struct attn_shape *s = j->shape;
    size_t head_bytes = attn_kv_bytes(s) / s->n_kv_head;
    return p->seq->pages[page] + s->k_off + p->kv * head_bytes;
}

static const uint8_t *head_v(const struct attn_job *j, const struct pairs *p, uint32_t page) {
    const struct attn_shape *s = j->shape;
    size_t head_bytes = attn_kv_bytes(s) / s->n_kv_head;
    return p->seq->pages[page] + s->v_off + p->kv * head_bytes;
}

#define PAGES_AHEAD 3

static void load_queries(const struct attn_job *j, const struct pairs *p, struct attn_block *b,
                         float *qt) {
    memset(qt, 0, (size_t)b->rh * b->head_dim * sizeof *qt);
    for (uint32_t i = 0; i < p->n; i++) {
        const float *q = p->seq->q + pair_row(p, i) * p->seq->q_stride + pair_head(p, i) * b->head_dim;
        for (uint32_t d = 0; d < b->head_dim; d++)
            qt[(size_t)d * b->rh + i] = q[d] * j->shape->scale;
    }
    b->qt = qt;
}

static void block_scores(const struct attn_job *j, const struct pairs *p, struct attn_block *b,
                         uint32_t n_pos) {
    uint32_t bt = b->block_tokens;
    for (uint32_t pos = 0; pos < n_pos; pos += bt) {
        const uint8_t *k = head_k(j, p, pos / bt);
        bool more = pos + PAGES_AHEAD * bt < n_pos;
        b->ahead = more ? (intptr_t)head_k(j, p, pos / bt + PAGES_AHEAD) - (intptr_t)k : 0;
        j->impl->attn_scores(b, k, pos, MIN(bt, n_pos - pos));
    }
}

/* Positions that all pairs see go through the kernel page by page; the triangle at the end, where a
 * later row sees what an earlier one must not, position by position with the pairs that see it. */
static void block_values(const struct attn_job *j, const struct pairs *p, struct attn_block *b) {
    uint32_t bt = b->block_tokens;
    uint32_t common = pair_last(p, 0) + 1, end = pair_last(p, p->n - 1) + 1;
    for (uint32_t pos = 0; pos < common; pos += bt) {
        const uint8_t *v = head_v(j, p, pos / bt);
        bool more = pos + PAGES_AHEAD * bt < common;
        b->ahead = more ? (intptr_t)head_v(j, p, pos / bt + PAGES_AHEAD) - (intptr_t)v : 0;
        j->impl->attn_values(b, v, pos, 0, MIN(bt, common - pos), 0);
    }
    uint32_t first = 0;
    for (uint32_t pos = common; pos < end; pos++) {
        while (pair_last(p, first) < pos)
            first++;
        uint32_t page = pos / bt, t = pos % bt;
        j->impl->attn_values(b, head_v(j, p, page), page * bt, t, t + 1, first);
    }
}

static void run_block(const struct attn_job *j, const struct pairs *p, unsigned thread) {
    const struct attn_scratch *sc = j->scratch;
    float *mem = sc->mem + thread * (sc->s_floats + sc->qt_floats + sc->acc_floats);
    struct attn_block b = {
        .rh = padded_pairs(p->n),
        .head_dim = j->shape->head_dim,
        .block_tokens = j->shape->block_tokens,
        .dtype = j->shape->dtype,
        .s = mem,
        .acc = mem + sc->s_floats + sc->qt_floats,
    };
    load_queries(j, p, &b, mem + sc->s_floats);
    block_scores(j, p, &b, pair_last(p, p->n - 1) + 1);
    float rz[KERN_ATTN_ROWS];
    for (uint32_t i = 0; i < p->n; i++)
        rz[i] = j->impl->attn_softmax(&b, i, pair_last(p, i));
    memset(b.acc, 0, (size_t)b.rh * b.head_dim * sizeof *b.acc);
    block_values(j, p, &b);
    for (uint32_t i = 0; i < p->n; i++) {
        float *out = p->seq->out + pair_row(p, i) * p->seq->out_stride + pair_head(p, i) * b.head_dim;
        for (uint32_t d = 0; d < b.head_dim; d++)
            out[d] = b.acc[(size_t)i * b.head_dim + d] * rz[i];
    }
}

/* --- all blocks -------------------------------------------------------------------------------- */

static uint32_t seq_blocks(const struct attn_shape *s, const struct attn_seq *q) {
    uint32_t pairs = q->n_rows * (s->n_head / s->n_kv_head);
    return (pairs + KERN_ATTN_ROWS - 1) / KERN_ATTN_ROWS;
}

/* Item number to its block: sequences, in each KV heads, in each blocks of pairs. */
static struct pairs find_pairs(const struct attn_job *j, size_t item) {
    const struct attn_seq *seq = j->seqs;
    uint32_t n_kv = j->shape->n_kv_head, group = j->shape->n_head / n_kv;
    uint32_t blocks = seq_blocks(j->shape, seq);
    while (item >= (size_t)blocks * n_kv) {
        item -= (size_t)blocks * n_kv;
        blocks = seq_blocks(j->shape, ++seq);
    }
    uint32_t first = (uint32_t)(item % blocks) * KERN_ATTN_ROWS;
    return (struct pairs){
        .seq = seq,
        .kv = (uint32_t)(item / blocks),
        .first = first,
        .n = MIN(KERN_ATTN_ROWS, seq->n_rows * group - first),
        .group = group,
    };
}

/* From the last item back: the long blocks first, so that threads end together. */
static void run_items(void *arg, size_t begin, size_t end, unsigned thread) {
    const struct attn_job *j = arg;
    for (size_t i = begin; i < end; i++) {
        struct pairs p = find_pairs(j, j->n_items - 1 - i);
        run_block(j, &p, thread);
    }
}

void attn_paged(const struct kern_ops *ops, struct kern_team *team, struct attn_scratch *scratch,
                const struct attn_shape *shape, const struct attn_seq *seqs, size_t n_seqs) {
    struct attn_job j = {
        .impl = ops->impl,
        .scratch = scratch,
        .shape = shape,
        .seqs = seqs,
        .n_seqs = n_seqs,
    };
    CHECK(shape->n_head % shape->n_kv_head == 0 && shape->head_dim <= scratch->cfg.head_dim);
    CHECK(kern_team_size(team) <= scratch->cfg.n_threads);
    /* Odd sizes are for tests and tiny models: the reference computes the same bits. */
    if (shape->block_tokens % KERN_LANES != 0 || shape->head_dim % KERN_LANES != 0)
        j.impl = kern_ops_ref.impl;
    for (size_t i = 0; i < n_seqs; i++) {
        CHECK(seqs[i].n_rows > 0 && seqs[i].pos0 + seqs[i].n_rows <= scratch->cfg.max_ctx);
        j.n_items += (size_t)seq_blocks(shape, &seqs[i]) * shape->n_kv_head;
    }
    kern_team_for(team, j.n_items, 1, run_items, &j);
}

/* --- storing ----------------------------------------------------------------------------------- */

#define STORE_CHUNK 256 /* floats converted at a time */

static void store_f16(const struct kern_ops *ops, uint16_t *dst, size_t dst_step, const float *src,
                      size_t n) {
    if (dst_step == 1) {
        ops->impl->f32_to_f16(dst, src, n);
        return;
    }
    uint16_t half[STORE_CHUNK];
    for (size_t i = 0; i < n; i += STORE_CHUNK) {
        size_t part = MIN(STORE_CHUNK, n - i);
        ops->impl->f32_to_f16(half, src + i, part);
        for (size_t k = 0; k < part; k++)
            dst[(i + k) * dst_step] = half[k];
    }
}

static void store_f32(float *dst, size_t dst_step, const float *src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i * dst_step] = src[i];
}

/* n floats to element `at`, at + step, ... of a run of the page's dtype. */
static void store_run(const struct kern_ops *ops, const struct attn_shape *s, uint8_t *run, size_t at,
                      size_t step, const float *src) {
    if (s->dtype == KV_F16)
        store_f16(ops, (uint16_t *)(void *)run + at, step, src, s->head_dim);
    else
        store_f32((float *)(void *)run + at, step, src, s->head_dim);
}

void attn_store_kv(const struct kern_ops *ops, const struct attn_shape *shape,
                   const struct attn_kv_rows *rows) {
    size_t d = shape->head_dim, bt = shape->block_tokens;
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        uint32_t pos = rows->pos0 + r;
        uint8_t *page = rows->pages[pos / bt];
        size_t t = pos % bt;
        for (size_t h = 0; h < shape->n_kv_head; h++) {
            store_run(ops, shape, page + shape->k_off, h * d * bt + t, bt,
                      rows->k + r * rows->k_stride + h * d);
            store_run(ops, shape, page + shape->v_off, (h * bt + t) * d, 1,
                      rows->v + r * rows->v_stride + h * d);
        }
    }
}
