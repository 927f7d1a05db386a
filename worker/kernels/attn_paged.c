/* attn_paged.c - walks pages; the arithmetic is the instruction set's (kern_impl.h).
 *
 * Work is cut into blocks of up to 12 (row, query head) pairs of one KV head, row-major, so that one
 * walk over K and V serves them all: 4 rows of a 3-heads-per-KV-head model, or the 3 heads of a decode
 * row. A pair never sees another pair's numbers, so the cut does not change a bit. */
#include "worker/kernels/attn_paged.h"

#include <malloc.h>
#include <math.h>

#include "common/check.h"
#include "worker/kernels/kern_impl.h"

/* A slot holds what one block needs: scores, queries, sums. Thread i uses slot i; when few blocks are
 * split over all threads, block i uses slot i, and there are up to twice as many blocks as threads. */
struct attn_scratch {
    struct attn_scratch_cfg cfg;
    size_t s_floats, qt_floats, acc_floats; /* of one slot, each a multiple of 16 */
    unsigned n_slots;
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
    s->n_slots = cfg->n_threads > 1 ? 2 * cfg->n_threads : 1;
    size_t floats = (s->s_floats + s->qt_floats + s->acc_floats) * s->n_slots;
    s->mem = aligned_alloc(64, round_up(floats * sizeof(float), 64));
    if (!s->mem) {
        free(s);
        return ERR_NOMEM;
    }
    *ret = s;
    return 0;
}

size_t attn_scratch_bytes(const struct attn_scratch *s) {
    return malloc_usable_size(s->mem);
}

void attn_scratch_free(struct attn_scratch *s) {
    if (!s)
        return;
    free(s->mem);
    free(s);
}

/* --- one block --------------------------------------------------------------------------------- */

/* A run of the layer and its scales: from the page's start, and what a KV head has of it. */
struct run_place {
    size_t values, scales, head_bytes, head_scale_bytes;
};

struct attn_job {
    const struct kern_impl *impl;
    struct attn_scratch *scratch;
    const struct attn_shape *shape;
    const struct attn_seq *seqs;
    size_t n_seqs, n_items;
    struct run_place k, v;
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

/* The first and the last position that pair i sees; both ascend with i. */
static uint32_t pair_last(const struct pairs *p, uint32_t i) {
    return p->seq->pos0 + pair_row(p, i);
}

static uint32_t pair_first(const struct attn_job *j, const struct pairs *p, uint32_t i) {
    uint32_t w = j->shape->window, n = pair_last(p, i) + 1;
    return w != 0 && n > w ? n - w : 0;
}

/* The first position of the first page that the block reads. */
static uint32_t pairs_start(const struct attn_job *j, const struct pairs *p) {
    return pair_first(j, p, 0) / j->shape->block_tokens * j->shape->block_tokens;
}

static float pair_softmax(const struct attn_job *j, const struct pairs *p,
                          const struct attn_block *b, uint32_t i) {
    const float *sinks = j->shape->sinks;
    return j->impl->attn_softmax(b, i, pair_first(j, p, i), pair_last(p, i),
                                 sinks ? sinks[pair_head(p, i)] : -INFINITY);
}

/* Kernels exist for these numbers of pairs; the surplus computes zeros that nobody reads. */
static uint32_t padded_pairs(uint32_t n) {
    static const uint8_t sizes[KERN_ATTN_ROWS + 1] = {0, 1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12};
    return sizes[n];
}

#define PAGES_AHEAD 3

/* What one KV head has of a page: the values' part of a run, and the scales'. */
struct head_run {
    const uint8_t *values;
    const uint16_t *scales;
};

static struct head_run head_run_at(const struct pairs *p, uint32_t page,
                                   const struct run_place *r) {
    const uint8_t *at = p->seq->pages[page];
    return (struct head_run){
        .values = at + r->values + p->kv * r->head_bytes,
        .scales = (const uint16_t *)(const void *)(at + r->scales + p->kv * r->head_scale_bytes),
    };
}

/* kern_impl.h's ahead, for a walk that ends before position `to`. */
static intptr_t bytes_ahead(const struct attn_job *j, const struct pairs *p, uint32_t page,
                            uint32_t to) {
    const uint8_t *const *pages = p->seq->pages;
    return (page + PAGES_AHEAD) * j->shape->block_tokens < to
               ? (intptr_t)pages[page + PAGES_AHEAD] - (intptr_t)pages[page]
               : 0;
}

/* The scaled queries of the block, d-major or quantised as an activation row is. */
static void load_queries(const struct attn_job *j, const struct pairs *p, struct attn_block *b,
                         float *mem) {
    const bool scaled = kv_is_scaled(b->k_dtype);
    const size_t n = b->head_dim;
    float *row = b->acc; /* not in use yet */
    memset(mem, 0, b->rh * n * sizeof *mem);
    for (uint32_t i = 0; i < p->n; i++) {
        const float *q = p->seq->q + pair_row(p, i) * p->seq->q_stride + pair_head(p, i) * n;
        for (size_t d = 0; d < n; d++)
            row[d] = q[d] * j->shape->scale;
        if (scaled)
            j->impl->quant_row((uint8_t *)mem, b->rh, i, row, b->head_dim / KV_QBLOCK,
                               attn_act_class(b->k_dtype));
        for (size_t d = 0; d < n && !scaled; d++)
            mem[d * b->rh + i] = row[d];
    }
    if (scaled)
        b->q_act = (const uint8_t *)mem;
    else
        b->qt = mem;
}

/* Scores of positions from .. to-1; from is a page's first. */
static void block_scores(const struct attn_job *j, const struct pairs *p, struct attn_block *b,
                         uint32_t from, uint32_t to) {
    uint32_t bt = b->block_tokens;
    for (uint32_t pos = from; pos < to; pos += bt) {
        struct head_run k = head_run_at(p, pos / bt, &j->k);
        b->ahead = bytes_ahead(j, p, pos / bt, to);
        j->impl->attn_scores(b, k.values, k.scales, pos, MIN(bt, to - pos));
    }
}

/* Values of n positions of one page, for pairs [first, end). */
static void values_at(const struct attn_job *j, const struct pairs *p, struct attn_block *b,
                      uint32_t pos, uint32_t n, uint32_t first, uint32_t end, intptr_t ahead) {
    const uint32_t page = pos / b->block_tokens, t = pos % b->block_tokens;
    const struct head_run v = head_run_at(p, page, &j->v);
    b->ahead = ahead;
    j->impl->attn_values(b, v.values, v.scales, pos - t, t, t + n, first, end);
}

/* Positions from .. to-1 one by one, each with the pairs that see it. */
static void edge_values(const struct attn_job *j, const struct pairs *p, struct attn_block *b,
                        uint32_t from, uint32_t to) {
    uint32_t first = 0, end = 0;
    for (uint32_t pos = from; pos < to; pos++) {
        while (pair_last(p, first) < pos)
            first++;
        while (end < p->n && pair_first(j, p, end) <= pos)
            end++;
        if (first < end)
            values_at(j, p, b, pos, 1, first, end, 0);
    }
}

/* Positions that all pairs see go through the kernel page by page; the triangles at both ends, where a
 * later row sees what an earlier one must not, or its window has left behind what an earlier one sees,
 * position by position. */
static void block_values(const struct attn_job *j, const struct pairs *p, struct attn_block *b) {
    const uint32_t bt = b->block_tokens;
    uint32_t from = pair_first(j, p, p->n - 1), to = pair_last(p, 0) + 1; /* none if from >= to */
    edge_values(j, p, b, pair_first(j, p, 0), from);
    for (uint32_t pos = from, n; pos < to; pos += n) {
        n = MIN(bt - pos % bt, to - pos);
        values_at(j, p, b, pos, n, 0, b->rh, bytes_ahead(j, p, pos / bt, to));
    }
    edge_values(j, p, b, MAX(from, to), pair_last(p, p->n - 1) + 1);
}

static struct attn_block block_open(const struct attn_job *j, const struct pairs *p, size_t slot) {
    const struct attn_scratch *sc = j->scratch;
    float *mem = sc->mem + slot * (sc->s_floats + sc->qt_floats + sc->acc_floats);
    struct attn_block b = {
        .rh = padded_pairs(p->n),
        .head_dim = j->shape->head_dim,
        .d1 = j->shape->head_dim,
        .block_tokens = j->shape->block_tokens,
        .k_dtype = j->shape->k_dtype,
        .v_dtype = j->shape->v_dtype,
        .softcap = j->shape->softcap,
        .s = mem,
        .acc = mem + sc->s_floats + sc->qt_floats,
    };
    load_queries(j, p, &b, mem + sc->s_floats);
    memset(b.acc, 0, (size_t)b.rh * b.head_dim * sizeof *b.acc);
    return b;
}

/* Writes [d0, d1) of every pair's output. rz: 1 / sum of its probabilities. */
static void block_output(const struct pairs *p, const struct attn_block *b, const float *rz) {
    for (uint32_t i = 0; i < p->n; i++) {
        float *out =
            p->seq->out + pair_row(p, i) * p->seq->out_stride + pair_head(p, i) * b->head_dim;
        for (uint32_t d = b->d0; d < b->d1; d++)
            out[d] = b->acc[(size_t)i * b->head_dim + d] * rz[i];
    }
}

static void run_block(const struct attn_job *j, const struct pairs *p, unsigned thread) {
    struct attn_block b = block_open(j, p, thread);
    block_scores(j, p, &b, pairs_start(j, p), pair_last(p, p->n - 1) + 1);
    float rz[KERN_ATTN_ROWS];
    for (uint32_t i = 0; i < p->n; i++)
        rz[i] = pair_softmax(j, p, &b, i);
    block_values(j, p, &b);
    block_output(p, &b, rz);
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

/* --- few blocks, many threads -------------------------------------------------------------------- */

/* A decode row has one block a KV head: 3 blocks for 2 threads, or 8 for 16. With a long context these
 * are split: scores by pages, softmax by pairs, values by d. Each number is still computed whole, by one
 * thread, in the same order. */
#define SPLIT_MIN_POS 512 /* below, three wake-ups cost more than idle threads */
#define SPLIT_POS 256     /* positions of a piece, about; whole pages */
#define SPLIT_D KV_QBLOCK

struct split {
    const struct attn_job *j;
    struct pairs *pairs; /* one a block */
    struct attn_block *blocks;
    float (*rz)[KERN_ATTN_ROWS];
    uint32_t piece_pos, pieces; /* of one block, the longest */
};

static void split_scores(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct split *s = arg;
    for (size_t i = begin; i < end; i++) {
        const struct pairs *p = &s->pairs[i / s->pieces];
        struct attn_block b = s->blocks[i / s->pieces];
        uint32_t n_pos = pair_last(p, p->n - 1) + 1,
                 from = pairs_start(s->j, p) + (uint32_t)(i % s->pieces) * s->piece_pos;
        if (from < n_pos)
            block_scores(s->j, p, &b, from, MIN(n_pos, from + s->piece_pos));
    }
}

static void split_softmax(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct split *s = arg;
    for (size_t i = begin; i < end; i++) {
        size_t block = i / KERN_ATTN_ROWS;
        uint32_t pair = (uint32_t)(i % KERN_ATTN_ROWS);
        const struct pairs *p = &s->pairs[block];
        if (pair < p->n)
            s->rz[block][pair] = pair_softmax(s->j, p, &s->blocks[block], pair);
    }
}

static void split_values(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct split *s = arg;
    const uint32_t d = s->j->shape->head_dim, parts = (d + SPLIT_D - 1) / SPLIT_D;
    for (size_t i = begin; i < end; i++) {
        struct attn_block b = s->blocks[i / parts];
        b.d0 = (uint32_t)(i % parts) * SPLIT_D;
        b.d1 = MIN(d, b.d0 + SPLIT_D);
        block_values(s->j, &s->pairs[i / parts], &b);
        block_output(&s->pairs[i / parts], &b, s->rz[i / parts]);
    }
}

static void run_split(struct kern_team *team, const struct attn_job *j) {
    struct pairs pairs[2 * KERN_TEAM_MAX];
    struct attn_block blocks[2 * KERN_TEAM_MAX];
    float rz[2 * KERN_TEAM_MAX][KERN_ATTN_ROWS];
    struct split s = {.j = j, .pairs = pairs, .blocks = blocks, .rz = rz};
    uint32_t most = 0, bt = j->shape->block_tokens;
    for (size_t i = 0; i < j->n_items; i++) {
        pairs[i] = find_pairs(j, i);
        blocks[i] = block_open(j, &pairs[i], i);
        most = MAX(most, pair_last(&pairs[i], pairs[i].n - 1) + 1 - pairs_start(j, &pairs[i]));
    }
    s.piece_pos = (SPLIT_POS + bt - 1) / bt * bt;
    s.pieces = (most + s.piece_pos - 1) / s.piece_pos;
    kern_team_for(team, j->n_items * s.pieces, 1, split_scores, &s);
    kern_team_for(team, j->n_items * KERN_ATTN_ROWS, 1, split_softmax, &s);
    kern_team_for(team, j->n_items * ((j->shape->head_dim + SPLIT_D - 1) / SPLIT_D), 1,
                  split_values, &s);
}

static bool worth_splitting(const struct kern_team *team, const struct attn_job *j) {
    size_t threads = kern_team_size(team);
    uint32_t most = 0;
    for (size_t i = 0; i < j->n_seqs; i++)
        most = MAX(most, j->seqs[i].pos0 + j->seqs[i].n_rows);
    if (j->shape->window != 0)
        most = MIN(most, j->shape->window);
    return j->n_items < 2 * threads && j->n_items % threads != 0 && most >= SPLIT_MIN_POS;
}

static struct run_place run_place_of(const struct attn_shape *s, enum kv_dtype t, size_t values,
                                     size_t scales) {
    return (struct run_place){
        .values = values,
        .scales = scales,
        .head_bytes = kv_run_bytes(t, 1, s->head_dim, s->block_tokens),
        .head_scale_bytes = kv_scale_bytes(t, 1, s->head_dim, s->block_tokens),
    };
}

void attn_paged(const struct kern_ops *ops, struct kern_team *team, struct attn_scratch *scratch,
                const struct attn_shape *shape, const struct attn_seq *seqs, size_t n_seqs) {
    struct attn_job j = {
        .impl = ops->impl,
        .scratch = scratch,
        .shape = shape,
        .seqs = seqs,
        .n_seqs = n_seqs,
        .k = run_place_of(shape, shape->k_dtype, shape->k_off, shape->k_scale_off),
        .v = run_place_of(shape, shape->v_dtype, shape->v_off, shape->v_scale_off),
    };
    CHECK(shape->n_head % shape->n_kv_head == 0 && shape->head_dim <= scratch->cfg.head_dim);
    CHECK(kern_team_size(team) <= scratch->cfg.n_threads);
    CHECK(!(kv_is_scaled(shape->k_dtype) || kv_is_scaled(shape->v_dtype)) ||
          (shape->head_dim % KV_QBLOCK == 0 && shape->block_tokens % 16 == 0));
    /* Odd sizes are for tests and tiny models: the reference computes the same bits. */
    if (!attn_is_vectorised(shape->head_dim, shape->block_tokens))
        j.impl = kern_ops_ref.impl;
    for (size_t i = 0; i < n_seqs; i++) {
        CHECK(seqs[i].n_rows > 0 && seqs[i].pos0 + seqs[i].n_rows <= scratch->cfg.max_ctx);
        j.n_items += (size_t)seq_blocks(shape, &seqs[i]) * shape->n_kv_head;
    }
    if (worth_splitting(team, &j))
        run_split(team, &j);
    else
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

static void store_floats(const struct kern_ops *ops, enum kv_dtype t, uint8_t *run, size_t at,
                         size_t step, const float *src, size_t n) {
    if (t == KV_F16)
        store_f16(ops, (uint16_t *)(void *)run + at, step, src, n);
    else
        store_f32((float *)(void *)run + at, step, src, n);
}

/* Two quants a byte, the second one `apart` further on. */
static uint8_t nibbles(const int8_t *q, size_t apart) {
    return (uint8_t)((q[0] + 8) | (q[apart] + 8) << 4);
}

/* One block of 32 of token t, as [d/4][token][4] or [d/8][token][4]. */
static void put_k_block(uint8_t *run, enum kv_dtype t, size_t block_tok, size_t tok,
                        const int8_t *q) {
    if (t == KV_Q8_0)
        for (size_t g = 0; g < 8; g++)
            memcpy(run + (g * block_tok + tok) * 4, q + 4 * g, 4);
    else
        for (size_t i = 0; i < 16; i++)
            run[(i / 4 * block_tok + tok) * 4 + i % 4] = nibbles(q + i / 4 * 8 + i % 4, 4);
}

static void put_v_block(uint8_t *dst, enum kv_dtype t, const int8_t *q) {
    if (t == KV_Q8_0)
        memcpy(dst, q, KV_QBLOCK);
    else
        for (size_t i = 0; i < 16; i++)
            dst[i] = nibbles(q + i, 16);
}

/* One head's row of n values into a quantised run; false: a row error, and zeros. */
static bool store_quants(enum kv_dtype t, bool is_k, uint8_t *run, uint16_t *scales,
                         size_t block_tok, size_t tok, const float *src, size_t n) {
    const size_t bytes = kv_run_bytes(t, 1, KV_QBLOCK, 1), blocks = n / KV_QBLOCK;
    bool ok = true;
    for (size_t b = 0; b < blocks; b++) {
        int8_t q[KV_QBLOCK] = {0};
        uint16_t scale = 0;
        if (!kv_quant_row(q, &scale, src + b * KV_QBLOCK, KV_QBLOCK, t)) {
            memset(q, 0, sizeof q);
            ok = false;
        }
        if (is_k)
            put_k_block(run + b * bytes * block_tok, t, block_tok, tok, q);
        else
            put_v_block(run + (tok * blocks + b) * bytes, t, q);
        scales[is_k ? b * block_tok + tok : tok * blocks + b] = scale;
    }
    return ok;
}

/* K, or V, of one token. */
static bool store_row(const struct kern_ops *ops, const struct attn_shape *s, bool is_k,
                      uint8_t *page, size_t tok, const float *src) {
    const enum kv_dtype t = is_k ? s->k_dtype : s->v_dtype;
    const size_t d = s->head_dim, bt = s->block_tokens;
    const struct run_place r = is_k ? run_place_of(s, t, s->k_off, s->k_scale_off)
                                    : run_place_of(s, t, s->v_off, s->v_scale_off);
    bool ok = kv_is_scaled(t) || /* from there on f16 is infinite */
              kern_all_below(src, s->n_kv_head * d, t == KV_F16 ? 65520.0f : INFINITY);
    for (size_t h = 0; h < s->n_kv_head; h++, src += d) {
        uint8_t *run = page + r.values + h * r.head_bytes;
        uint16_t *scales = (uint16_t *)(void *)(page + r.scales + h * r.head_scale_bytes);
        if (kv_is_scaled(t))
            ok = store_quants(t, is_k, run, scales, bt, tok, src, d) && ok;
        else if (is_k)
            store_floats(ops, t, run, tok, bt, src, d);
        else
            store_floats(ops, t, run, tok * d, 1, src, d);
    }
    return ok;
}

bool attn_store_kv(const struct kern_ops *ops, const struct attn_shape *shape,
                   const struct attn_kv_rows *rows) {
    bool ok = true;
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        const uint32_t pos = rows->pos0 + r;
        uint8_t *page = rows->pages[pos / shape->block_tokens];
        const size_t tok = pos % shape->block_tokens;
        ok = store_row(ops, shape, true, page, tok, rows->k + r * rows->k_stride) && ok;
        ok = store_row(ops, shape, false, page, tok, rows->v + r * rows->v_stride) && ok;
    }
    return ok;
}
