#include "tests/integration/exact_run.h"

#include "common/check.h"
#include "tests/integration/exact_points.h"

/* Pages hold garbage before they are written: whoever reads an unfilled row computes with NaN. */
#define GARBAGE 0xff
#define COMPANION_TOK 96

static uint8_t **new_pages(uint32_t n, size_t bytes, int fill) {
    uint8_t **p = alloc_array(n, sizeof(*p));
    CHECK(p);
    for (uint32_t i = 0; i < n; i++) {
        p[i] = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
        CHECK(p[i]);
        memset(p[i], fill, bytes);
    }
    return p;
}

static void free_pages(uint8_t **p, uint32_t n) {
    for (uint32_t i = 0; p && i < n; i++)
        free(p[i]);
    free(p);
}

static int32_t random_tok(const struct model *m, uint64_t *rng) {
    return (int32_t)(exact_random(rng) % m->hp.n_vocab);
}

static struct fwd *new_fwd(const struct exact_ref *r, const struct kern_ops *ops,
                           struct kern_team *team, uint32_t max_rows) {
    struct fwd *f;
    struct errbuf eb;
    const struct fwd_cfg cfg = {
        .max_rows = max_rows,
        .max_seqs = EXACT_MAX_BATCH,
        .max_ctx = MAX(r->n_tok, COMPANION_TOK),
        .block_tok = r->block_tok,
        .kv = r->kv,
        .ops = ops,
        .team = team,
        .blas = r->blas,
    };
    CHECK(fwd_new(&f, r->model, &cfg, &eb) == 0);
    return f;
}

void exact_ref_open(struct exact_ref *r, const struct kern_ops *ops, uint64_t seed) {
    r->n_pages = (r->n_tok + r->block_tok - 1) / r->block_tok;
    struct errbuf eb;
    CHECK(model_kv_layout(&r->layout, r->model, r->block_tok, r->kv, &eb) == 0);
    r->page_bytes = r->layout.page_bytes;
    r->pages = new_pages(r->n_pages, r->page_bytes, 0);
    r->tok = alloc_array(r->n_tok, sizeof(*r->tok));
    r->logits = alloc_array((size_t)r->n_tok * r->model->hp.n_vocab, sizeof(float));
    CHECK(r->tok && r->logits);
    for (uint32_t i = 0; i < r->n_tok; i++)
        r->tok[i] = random_tok(r->model, &seed);
    struct fwd *f = new_fwd(r, ops, NULL, r->n_tok);
    const struct fwd_seq s = {
        .tok = r->tok,
        .n_tok = r->n_tok,
        .pages = r->pages,
        .n_logits = r->n_tok,
        .logits = r->logits,
    };
    CHECK(fwd_step(f, &s, 1) == 0);
    fwd_free(f);
}

void exact_ref_close(struct exact_ref *r) {
    free_pages(r->pages, r->n_pages);
    kv_layout_fini(&r->layout);
    free(r->tok);
    free(r->logits);
    *r = (struct exact_ref){.model = NULL};
}

/* Another sequence in the same steps, of tokens of its own; its results are not judged. */
struct companion {
    int32_t tok[COMPANION_TOK];
    uint8_t **pages;
    uint32_t pos; /* next position */
    float *logits;
};

struct runner {
    const struct exact_ref *r;
    const struct exact_conditions *c;
    struct fwd *fwd;
    uint8_t **pages; /* page table of the judged sequence */
    uint32_t n_own;  /* first pages that belong to the reference */
    struct companion others[EXACT_MAX_BATCH - 1];
    uint32_t n_others, companion_pages;
    float *logits; /* [n_tok, n_vocab] of the step */
    uint64_t rng;
    char *why;
};

static void open_companions(struct runner *k) {
    const struct exact_ref *r = k->r;
    k->n_others = k->c->batch - 1;
    k->companion_pages = (COMPANION_TOK + r->block_tok - 1) / r->block_tok;
    for (uint32_t i = 0; i < k->n_others; i++) {
        struct companion *o = &k->others[i];
        o->pages = new_pages(k->companion_pages, r->page_bytes, GARBAGE);
        o->logits = alloc_array(r->model->hp.n_vocab, sizeof(float));
        CHECK(o->logits);
        for (uint32_t t = 0; t < COMPANION_TOK; t++)
            o->tok[t] = random_tok(r->model, &k->rng);
    }
}

/* One row like a decoder, or several like a prefill; from the start again when full. */
static struct fwd_seq companion_seq(struct runner *k, struct companion *o) {
    uint32_t n = exact_random(&k->rng) % 3 ? 1 : 1 + (uint32_t)(exact_random(&k->rng) % 20);
    if (o->pos + n > COMPANION_TOK)
        o->pos = 0;
    struct fwd_seq s = {
        .tok = o->tok + o->pos,
        .n_tok = n,
        .pos0 = o->pos,
        .pages = o->pages,
        .n_logits = exact_random(&k->rng) % 2,
        .logits = o->logits,
        .decode = n == 1,
    };
    o->pos += n;
    return s;
}

static bool compare_logits(struct runner *k, uint32_t pos, uint32_t n) {
    const size_t n_vocab = k->r->model->hp.n_vocab;
    for (uint32_t i = 0; i < n; i++) {
        const float *want = k->r->logits + (pos + i) * n_vocab, *have = k->logits + i * n_vocab;
        if (memcmp(want, have, n_vocab * sizeof(float)) == 0)
            continue;
        size_t j = 0;
        while (memcmp(&want[j], &have[j], sizeof(float)) == 0)
            j++;
        (void)snprintf(k->why, 256, "logit %zu of position %u is %a, reference %a", j, pos + i,
                       (double)have[j], (double)want[j]);
        return false;
    }
    return true;
}

/* Positions [pos, pos + n) of the judged sequence in one step with the companions. */
static bool step(struct runner *k, uint32_t pos, uint32_t n) {
    struct fwd_seq seqs[EXACT_MAX_BATCH];
    const uint32_t want[3] = {n, 1, 0};
    uint32_t n_logits = want[exact_random(&k->rng) % 3];
    if (pos + n == k->r->n_tok && n_logits == 0)
        n_logits = 1;
    const uint32_t slot = k->c->slot % k->c->batch;
    for (uint32_t i = 0, o = 0; i < k->c->batch; i++)
        seqs[i] = i == slot ? (struct fwd_seq){.tok = k->r->tok + pos,
                                               .n_tok = n,
                                               .pos0 = pos,
                                               .pages = k->pages,
                                               .n_logits = n_logits,
                                               .logits = k->logits,
                                               .decode = n == 1 && !k->r->blas}
                            : companion_seq(k, &k->others[o++]);
    CHECK(fwd_step(k->fwd, seqs, k->c->batch) == 0);
    return compare_logits(k, pos + n - n_logits, n_logits);
}

/* Whole blocks of the reference: the same pages, or copies of their bytes. */
static void take_prefix(struct runner *k) {
    const uint32_t n = k->c->source == SOURCE_COLD ? 0 : k->c->reuse_blocks;
    CHECK(n * k->r->block_tok < k->r->n_tok);
    k->n_own = k->c->source == SOURCE_OWN ? n : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (k->c->source == SOURCE_OWN) {
            free(k->pages[i]);
            k->pages[i] = k->r->pages[i];
        } else {
            memcpy(k->pages[i], k->r->pages[i], k->r->page_bytes);
        }
    }
}

static bool same_bytes(const uint8_t *a, const uint8_t *b, size_t off, size_t n) {
    return memcmp(a + off, b + off, n) == 0;
}

/* The first n_fill tokens of one head: runs of [token][unit] of K, rows of V, and the scales of both. */
static bool same_head(const struct exact_ref *r, const uint8_t *a, const uint8_t *b, size_t l,
                      uint32_t h, uint32_t n_fill) {
    const uint32_t d = r->model->hp.d_head, blk = r->block_tok;
    const struct kv_place *at = &r->layout.layer[l];
    const size_t unit = kv_is_scaled(r->kv.k) ? 4 : kv_run_bytes(r->kv.k, 1, 1, 1);
    const size_t k = kv_run_bytes(r->kv.k, 1, d, blk),
                 k_scales = kv_scale_bytes(r->kv.k, 1, d, blk);
    const size_t v = kv_run_bytes(r->kv.v, 1, d, blk),
                 v_scales = kv_scale_bytes(r->kv.v, 1, d, blk);
    for (size_t off = 0; off < k; off += unit * blk)
        if (!same_bytes(a, b, at->k + h * k + off, unit * n_fill))
            return false;
    for (size_t off = 0; off < k_scales; off += 2 * (size_t)blk)
        if (!same_bytes(a, b, at->k_scale + h * k_scales + off, 2 * n_fill))
            return false;
    return same_bytes(a, b, at->v + h * v, v / blk * n_fill) &&
           same_bytes(a, b, at->v_scale + h * v_scales, v_scales / blk * n_fill);
}

/* The rows of a partly filled page that count. */
static bool same_filled(const struct runner *k, const uint8_t *a, const uint8_t *b,
                        uint32_t n_fill) {
    for (size_t l = 0; l < k->r->model->hp.n_layer; l++)
        for (uint32_t h = 0; h < k->r->model->hp.n_head_kv; h++)
            if (!same_head(k->r, a, b, l, h, n_fill))
                return false;
    return true;
}

static bool compare_pages(struct runner *k) {
    for (uint32_t i = 0; i < k->r->n_pages; i++) {
        uint32_t fill = MIN(k->r->block_tok, k->r->n_tok - i * k->r->block_tok);
        if (!same_filled(k, k->pages[i], k->r->pages[i], fill)) {
            (void)snprintf(k->why, 256, "KV bytes of block %u differ", i);
            return false;
        }
    }
    return true;
}

static bool run_steps(struct runner *k) {
    const uint32_t n_tok = k->r->n_tok;
    uint32_t pos = k->c->source == SOURCE_COLD ? 0 : k->c->reuse_blocks * k->r->block_tok;
    /* Sometimes the last rows come one by one, as generated tokens do. */
    uint32_t tail = !k->r->blas && exact_random(&k->rng) % 2 ? 3 : 0;
    while (pos < n_tok) {
        uint32_t n = pos + tail < n_tok ? MIN(k->c->chunk, n_tok - tail - pos) : 1;
        if (!step(k, pos, n))
            return false;
        pos += n;
    }
    return compare_pages(k);
}

bool exact_run(const struct exact_ref *r, const struct exact_conditions *c, char why[256]) {
    struct runner k = {.r = r, .c = c, .rng = c->seed, .why = why};
    k.fwd = new_fwd(r, c->ops, c->team, MIN(c->chunk, r->n_tok) + 21 * EXACT_MAX_BATCH);
    k.pages = new_pages(r->n_pages, r->page_bytes, GARBAGE);
    k.logits = alloc_array((size_t)MIN(c->chunk, r->n_tok) * r->model->hp.n_vocab, sizeof(float));
    CHECK(k.logits);
    open_companions(&k);
    take_prefix(&k);
    bool ok = run_steps(&k);
    for (uint32_t i = 0; i < k.n_own; i++)
        k.pages[i] = NULL; /* the reference's */
    free_pages(k.pages, r->n_pages);
    for (uint32_t i = 0; i < k.n_others; i++) {
        free_pages(k.others[i].pages, k.companion_pages);
        free(k.others[i].logits);
    }
    free(k.logits);
    fwd_free(k.fwd);
    return ok;
}
