/* forward_experts.c - a feed-forward of experts: the router's choice a row, then expert by expert its rows.
 *
 * Rows are gathered by expert so that each expert's weights are read once a step. A row's sum goes by
 * ascending expert id whatever rows share the step, so grouping changes no bit. */
#include "worker/model/forward_priv.h"

#include <malloc.h>

#include "worker/kernels/experts.h"

/* Of one step; sized for max_rows. */
struct fwd_experts {
    float *logits;                /* [max_rows, n_expert] */
    struct expert_choice *chosen; /* [max_rows, n_expert_used] by id */
    uint32_t *first;              /* [n_expert + 1] an expert's entries in row and weight */
    uint32_t *row;                /* [max_rows * n_expert_used] rows by expert, ascending */
    float *weight;                /* of the same entries */
    uint32_t *pos;                /* of the same entries: the row's position */
    float *x, *y;                 /* [max_rows, n_embd] of one expert's rows */
};

/* One expert's rows. */
struct expert_job {
    struct fwd *f;
    const float *from;
    const uint32_t *row;
    const float *weight;
    const float *bias; /* of its output, or NULL */
};

struct router_job {
    struct fwd *f;
    const float *bias;
};

int fwd_experts_new(struct fwd *f) {
    const struct model_hparams *hp = &f->m->hp;
    const size_t rows = f->cfg.max_rows, entries = rows * hp->n_expert_used;
    if (!hp->n_expert)
        return 0;
    struct fwd_experts *e = f->experts = calloc(1, sizeof(*e));
    if (!e)
        return ERR_NOMEM;
    e->logits = fwd_floats(rows, hp->n_expert);
    e->chosen = alloc_array(entries, sizeof(*e->chosen));
    e->first = alloc_array(hp->n_expert + 1, sizeof(*e->first));
    e->row = alloc_array(entries, sizeof(*e->row));
    e->weight = alloc_array(entries, sizeof(*e->weight));
    e->pos = alloc_array(entries, sizeof(*e->pos));
    e->x = fwd_floats(rows, hp->n_embd);
    e->y = fwd_floats(rows, hp->n_embd);
    bool ok = e->logits && e->chosen && e->first && e->row && e->weight && e->pos && e->x && e->y;
    return ok ? 0 : ERR_NOMEM;
}

void fwd_experts_free(struct fwd_experts *e) {
    if (!e)
        return;
    free(e->logits);
    free(e->chosen);
    free(e->first);
    free(e->row);
    free(e->weight);
    free(e->pos);
    free(e->x);
    free(e->y);
    free(e);
}

size_t fwd_experts_bytes(const struct fwd_experts *e) {
    if (!e)
        return 0;
    const void *const parts[] = {e->logits, e->chosen, e->first, e->row,
                                 e->weight, e->pos,    e->x,     e->y};
    size_t bytes = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        bytes += malloc_usable_size((void *)(uintptr_t)parts[i]);
    return bytes;
}

static void choose_rows(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct router_job *job = arg;
    struct fwd *f = job->f;
    struct fwd_experts *e = f->experts;
    const struct model_hparams *hp = &f->m->hp;
    for (size_t r = begin; r < end; r++) {
        float *logits = fwd_row(e->logits, r, hp->n_expert);
        if (job->bias)
            f->cfg.ops->add(logits, job->bias, hp->n_expert);
        if (!experts_choose(logits, hp->n_expert, hp->n_expert_used,
                            e->chosen + r * hp->n_expert_used))
            fwd_set_failed(f, &f->runs[f->row_run[r]]);
        memset(fwd_row(f->proj, r, hp->n_embd), 0, hp->n_embd * sizeof(float));
    }
}

/* Counts, then places: entries of an expert lie together, rows ascending. */
static void group_rows(struct fwd *f) {
    struct fwd_experts *e = f->experts;
    const struct model_hparams *hp = &f->m->hp;
    const uint32_t used = hp->n_expert_used;
    memset(e->first, 0, (hp->n_expert + 1) * sizeof(*e->first));
    for (uint32_t i = 0; i < f->n_rows * used; i++)
        e->first[e->chosen[i].id + 1]++;
    for (uint32_t i = 0; i < hp->n_expert; i++)
        e->first[i + 1] += e->first[i];
    for (uint32_t i = 0; i < f->n_rows * used; i++) {
        const uint32_t at = e->first[e->chosen[i].id]++;
        e->row[at] = i / used;
        e->weight[at] = e->chosen[i].weight;
        e->pos[at] = f->row_pos[i / used];
    }
    memmove(e->first + 1, e->first, hp->n_expert * sizeof(*e->first)); /* ends back to beginnings */
    e->first[0] = 0;
}

static void gather_rows(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct expert_job *job = arg;
    const size_t n = job->f->m->hp.n_embd;
    for (size_t i = begin; i < end; i++)
        memcpy(job->f->experts->x + i * n, job->from + job->row[i] * n, n * sizeof(float));
}

static void add_rows(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct expert_job *job = arg;
    struct fwd *f = job->f;
    const size_t n = f->m->hp.n_embd;
    for (size_t i = begin; i < end; i++) {
        float *y = fwd_row(f->experts->y, i, n);
        if (job->bias)
            f->cfg.ops->add(y, job->bias, n);
        f->cfg.ops->add_scaled(fwd_row(f->proj, job->row[i], n), y, job->weight[i], n);
    }
}

/* Row id of a table of rows, NULL without one. */
static const float *bias_of(const float *table, uint32_t id, size_t n) {
    return table ? table + id * n : NULL;
}

static void run_expert(struct fwd *f, const struct model_layer *l, uint32_t id, const float *from) {
    struct fwd_experts *e = f->experts;
    const struct model_hparams *hp = &f->m->hp;
    const uint32_t at = e->first[id], n = e->first[id + 1] - at, k = hp->n_expert;
    struct expert_job job = {f, from, e->row + at, e->weight + at,
                             bias_of(l->expert_bias[2], id, hp->n_embd)};
    struct fwd_rows rows = {.n = n, .pos = e->pos + at};
    if (n == 0)
        return;
    while (rows.n_blas < n && job.row[rows.n_blas] < f->n_blas_rows)
        rows.n_blas++;
    fwd_for_rows(f, n, gather_rows, &job);
    struct matmul_out gate_up[] = {{l->experts[id], f->gate, hp->n_ff},
                                   {l->experts[k + id], f->up, hp->n_ff}};
    fwd_product(f, &rows, e->x, hp->n_embd, gate_up, 2);
    fwd_activate(f, bias_of(l->expert_bias[0], id, hp->n_ff),
                 bias_of(l->expert_bias[1], id, hp->n_ff), n);
    struct matmul_out down[] = {{l->experts[2 * k + id], e->y, hp->n_embd}};
    fwd_product(f, &rows, f->gate, hp->n_ff, down, 1);
    fwd_for_rows(f, n, add_rows, &job);
}

void fwd_experts_run(struct fwd *f, const struct model_layer *l, const float *from) {
    const struct model_hparams *hp = &f->m->hp;
    const struct fwd_rows exact = {.n = f->n_rows}; /* the router is no product of OpenBLAS's */
    struct matmul_out router[] = {{l->router, f->experts->logits, hp->n_expert}};
    fwd_product(f, &exact, from, hp->n_embd, router, 1);
    struct router_job job = {f, l->router_bias};
    fwd_for_rows(f, f->n_rows, choose_rows, &job);
    group_rows(f);
    for (uint32_t i = 0; i < hp->n_expert; i++)
        run_expert(f, l, i, from);
}
