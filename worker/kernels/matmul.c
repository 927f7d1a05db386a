/* matmul.c - prepares the input once (quantised or transposed row tiles), then lets the team compute
 * panels. Threads split outputs, never sums, so bits do not depend on them. */
#include "worker/kernels/matmul.h"

#include <malloc.h>

#include "common/check.h"
#include "worker/kernels/kern_impl.h"

/* Below this many floats the caller prepares the input alone: waking the team costs more. */
#define PREPARE_ALONE_FLOATS 16384

struct matmul_scratch {
    uint32_t max_rows, max_n_in;
    unsigned n_threads;
    uint8_t *act_q;  /* act tiles */
    float *act_f;    /* [k][R] tiles */
    uint8_t *panels; /* one a thread */
    size_t panel_bytes;
};

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

int matmul_scratch_new(struct matmul_scratch **ret, uint32_t max_rows, uint32_t max_n_in,
                       unsigned n_threads) {
    struct matmul_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return ERR_NOMEM;
    size_t blocks = (max_n_in + KERN_QBLOCK - 1) / KERN_QBLOCK;
    s->max_rows = max_rows;
    s->max_n_in = max_n_in;
    s->n_threads = n_threads;
    s->panel_bytes = round_up(blocks * MAT_PANEL_BLOCK_BYTES, 4096);
    s->act_q = aligned_alloc(64, round_up(max_rows * blocks * ACT_ROW_BYTES, 64));
    s->act_f = aligned_alloc(64, round_up((size_t)max_rows * max_n_in * sizeof(float), 64));
    s->panels = aligned_alloc(64, s->panel_bytes * n_threads);
    if (!s->act_q || !s->act_f || !s->panels) {
        matmul_scratch_free(s);
        return ERR_NOMEM;
    }
    *ret = s;
    return 0;
}

size_t matmul_scratch_bytes(const struct matmul_scratch *s) {
    return malloc_usable_size(s->act_q) + malloc_usable_size(s->act_f) +
           malloc_usable_size(s->panels);
}

void matmul_scratch_free(struct matmul_scratch *s) {
    if (!s)
        return;
    free(s->act_q);
    free(s->act_f);
    free(s->panels);
    free(s);
}

/* --- input ------------------------------------------------------------------------------------- */

struct prepare {
    const struct kern_ops *ops;
    const struct matmul_in *in;
    struct row_tiles tiles;
    uint32_t n_in;
    struct act_class cls;
    struct matmul_scratch *scratch;
};

/* The tile that row r is in. */
static uint32_t tile_of_row(const struct row_tiles *t, uint32_t r) {
    uint32_t in_longer = t->longer * (t->base + 1);
    return r < in_longer ? r / (t->base + 1) : t->longer + (r - in_longer) / t->base;
}

static void quant_rows(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct prepare *p = arg;
    size_t blocks = p->n_in / KERN_QBLOCK;
    for (uint32_t r = (uint32_t)begin; r < end; r++) {
        uint32_t tile = tile_of_row(&p->tiles, r), first = row_tile_first(&p->tiles, tile);
        uint8_t *dst = p->scratch->act_q + first * blocks * ACT_ROW_BYTES;
        p->ops->impl->quant_row(dst, row_tile_rows(&p->tiles, tile), r - first,
                                p->in->x + r * p->in->x_stride, (uint32_t)blocks, p->cls);
    }
}

/* Rows into [k][R], so that a kernel finds the R inputs of one k side by side. */
static void transpose_rows(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct prepare *p = arg;
    for (uint32_t r = (uint32_t)begin; r < end; r++) {
        uint32_t tile = tile_of_row(&p->tiles, r), first = row_tile_first(&p->tiles, tile);
        uint32_t rows = row_tile_rows(&p->tiles, tile);
        float *dst = p->scratch->act_f + (size_t)first * p->n_in + (r - first);
        const float *x = p->in->x + r * p->in->x_stride;
        for (uint32_t k = 0; k < p->n_in; k++)
            dst[(size_t)k * rows] = x[k];
    }
}

static void prepare_rows(const struct matmul_env *env, struct prepare *p, kern_fn fn) {
    uint32_t n = p->tiles.n_rows;
    bool alone = (size_t)n * p->n_in <= PREPARE_ALONE_FLOATS;
    uint32_t grain = alone ? n : MAX(1u, n / (4 * kern_team_size(env->team)));
    kern_team_for(env->team, n, grain, fn, p);
}

/* --- panels ------------------------------------------------------------------------------------ */

/* One class of outs at a time: all for which the input is prepared alike. */
struct panels_job {
    const struct matmul_env *env;
    const struct matmul_out *outs;
    size_t n_outs;
    struct row_tiles tiles;
    struct act_class cls;
};

static void run_out(const struct panels_job *j, const struct matmul_out *o, uint32_t begin,
                    uint32_t end, unsigned thread) {
    const struct matmul_scratch *s = j->env->scratch;
    struct mat_args a = {
        .w = o->w,
        .tiles = j->tiles,
        .act = j->cls.offset < 0 ? (const uint8_t *)s->act_f : s->act_q,
        .y = o->y,
        .y_stride = o->y_stride,
        .panel_scratch = s->panels + thread * s->panel_bytes,
    };
    const struct kern_impl *impl = j->env->ops->impl;
    (j->cls.offset < 0 ? impl->mat_float : impl->mat_quant)(&a, begin, end);
}

/* Panels of all outs of the class, numbered through. */
static void run_panels(void *arg, size_t begin, size_t end, unsigned thread) {
    const struct panels_job *j = arg;
    size_t first = 0;
    for (size_t i = 0; i < j->n_outs; i++) {
        const struct matmul_out *o = &j->outs[i];
        if (!act_class_equal(act_class_of(o->w), j->cls))
            continue;
        size_t b = MAX(begin, first), e = MIN(end, first + o->w->n_panels);
        if (b < e)
            run_out(j, o, (uint32_t)(b - first), (uint32_t)(e - first), thread);
        first += o->w->n_panels;
    }
}

/* Eight pieces a thread even out late starters; with one row a piece is a multiple of what the kernel
 * computes side by side. */
static size_t panel_grain(const struct matmul_env *env, uint32_t n_rows, size_t n_panels) {
    size_t unit = n_rows == 1 ? env->ops->impl->decode_panels : 1;
    size_t per_piece = n_panels / (8 * (size_t)kern_team_size(env->team));
    return MAX(unit, per_piece / unit * unit);
}

static void run_class(const struct matmul_env *env, const struct matmul_in *in,
                      const struct matmul_out *outs, size_t n_outs, struct act_class cls) {
    struct row_tiles tiles = row_tiles_of(in->n_rows, env->ops->impl->tile_rows);
    struct prepare prep = {env->ops, in, tiles, outs[0].w->n_in, cls, env->scratch};
    prepare_rows(env, &prep, cls.offset < 0 ? transpose_rows : quant_rows);
    struct panels_job job = {env, outs, n_outs, tiles, cls};
    size_t n_panels = 0;
    for (size_t i = 0; i < n_outs; i++)
        if (act_class_equal(act_class_of(outs[i].w), cls))
            n_panels += outs[i].w->n_panels;
    kern_team_for(env->team, n_panels, panel_grain(env, in->n_rows, n_panels), run_panels, &job);
}

void matmul(const struct matmul_env *env, const struct matmul_in *in, const struct matmul_out *outs,
            size_t n_outs) {
    CHECK(n_outs > 0 && in->n_rows > 0 && in->n_rows <= env->scratch->max_rows);
    CHECK(kern_team_size(env->team) <= env->scratch->n_threads);
    CHECK(outs[0].w->n_in <= env->scratch->max_n_in);
    for (size_t i = 0; i < n_outs; i++)
        CHECK(outs[i].w->n_in == outs[0].w->n_in);
    if (env->blas && in->row_pos) {
        for (size_t i = 0; i < n_outs; i++)
            matmul_blas_run(env->blas, env->team, in, &outs[i]);
        return;
    }
    for (size_t i = 0; i < n_outs; i++) { /* each class once, at its first member */
        const struct act_class cls = act_class_of(outs[i].w);
        bool seen = false;
        for (size_t j = 0; j < i; j++)
            seen = seen || act_class_equal(act_class_of(outs[j].w), cls);
        if (!seen)
            run_class(env, in, outs, n_outs, cls);
    }
}
