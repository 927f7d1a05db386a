#include "worker/model/forward_priv.h"

#include <malloc.h>
#include <math.h>

#include "common/check.h"
#include "worker/kernels/quant.h"

/* Rows a thread takes at a time in the row-wise steps. A step of few rows stays on the caller: waking
 * the team costs more than the work. */
#define ROW_GRAIN 8

/* What ends a block and begins the next one: proj to the residual stream, the next input. NULL: not there. */
struct row_job {
    struct fwd *f;
    bool add_proj;
    const float *bias, *post; /* of proj */
    const float *norm;        /* of the norm that follows the residual addition */
};

struct layer_job {
    struct fwd *f;
    const struct model_layer *layer;
    int32_t rope; /* group; -1: not rotated */
};

float *fwd_floats(size_t rows, size_t cols) {
    size_t bytes = rows * cols * sizeof(float);
    return aligned_alloc(64, (bytes + 63) & ~(size_t)63);
}

static int alloc_buffers(struct fwd *f) {
    const struct model_hparams *hp = &f->m->hp;
    const size_t n = f->cfg.max_rows;
    f->runs = alloc_array(f->cfg.max_seqs, sizeof(*f->runs));
    f->attn = alloc_array(f->cfg.max_seqs, sizeof(*f->attn));
    f->failed = alloc_array(f->cfg.max_seqs, sizeof(*f->failed));
    f->row_run = alloc_array(n, sizeof(*f->row_run));
    f->row_pos = alloc_array(n, sizeof(*f->row_pos));
    f->x = fwd_floats(n, hp->n_embd);
    f->xn = fwd_floats(n, hp->n_embd);
    f->proj = fwd_floats(n, hp->n_embd);
    f->q = fwd_floats(n, f->n_q);
    f->k = fwd_floats(n, f->n_kv);
    f->v = fwd_floats(n, f->n_kv);
    f->att = fwd_floats(n, f->n_q);
    f->gate = fwd_floats(n, hp->n_ff);
    f->up = fwd_floats(n, hp->n_ff);
    f->cs = fwd_floats(n, (size_t)hp->n_rope * hp->n_rot);
    f->head = fwd_floats(f->cfg.max_logit_rows, hp->n_embd);
    bool ok = f->runs && f->attn && f->failed && f->row_run && f->row_pos && f->x && f->xn &&
              f->proj && f->q && f->k && f->v && f->att && f->gate && f->up && f->cs && f->head;
    return ok ? fwd_experts_new(f) : ERR_NOMEM;
}

static int alloc_scratch(struct fwd *f) {
    const struct model_hparams *hp = &f->m->hp;
    const unsigned n_threads = kern_team_size(f->cfg.team);
    const struct attn_scratch_cfg a = {
        .n_head = hp->n_head,
        .n_kv_head = hp->n_head_kv,
        .head_dim = hp->d_head,
        .max_ctx = f->cfg.max_ctx,
        .max_seqs = f->cfg.max_seqs,
        .n_threads = n_threads,
    };
    int rv = attn_scratch_new(&f->attn_scratch, &a);
    if (rv < 0)
        return rv;
    const uint32_t max_n_in = MAX(MAX(hp->n_embd, hp->n_ff), f->n_q);
    return matmul_scratch_new(&f->env.scratch, f->cfg.max_rows, max_n_in, n_threads);
}

int fwd_new(struct fwd **ret, const struct model *m, const struct fwd_cfg *cfg, struct errbuf *eb) {
    if (cfg->max_rows == 0 || cfg->max_seqs == 0 || cfg->block_tok == 0 || cfg->block_tok > 1024 ||
        cfg->max_ctx > (1u << 24) || cfg->max_logit_rows > cfg->max_rows)
        return err_set(eb, ERR_INVALID, "forward pass of %u rows, %u sequences, blocks of %u",
                       cfg->max_rows, cfg->max_seqs, cfg->block_tok);
    struct fwd *f = calloc(1, sizeof(*f));
    if (!f)
        return err_set(eb, ERR_NOMEM, "forward pass");
    const struct model_hparams *hp = &m->hp;
    f->m = m;
    f->cfg = *cfg;
    f->cfg.max_ctx = cfg->max_ctx ? cfg->max_ctx : hp->n_ctx;
    f->cfg.max_logit_rows = cfg->max_logit_rows ? cfg->max_logit_rows : cfg->max_rows;
    f->n_q = hp->n_head * hp->d_head;
    f->n_kv = hp->n_head_kv * hp->d_head;
    f->env = (struct matmul_env){.ops = cfg->ops, .team = cfg->team, .blas = cfg->blas};
    f->shape = (struct attn_shape){
        .n_head = hp->n_head,
        .n_kv_head = hp->n_head_kv,
        .head_dim = hp->d_head,
        .block_tokens = cfg->block_tok,
        .k_dtype = cfg->kv.k,
        .v_dtype = cfg->kv.v,
        .scale = hp->attn_scale,
        .softcap = hp->attn_softcap,
    };
    int rv = model_kv_layout(&f->layout, m, cfg->block_tok, cfg->kv, eb);
    if (rv >= 0 && (alloc_buffers(f) < 0 || alloc_scratch(f) < 0))
        rv = err_set(eb, ERR_NOMEM, "scratch for %u rows", cfg->max_rows);
    if (rv < 0) {
        fwd_free(f);
        return rv;
    }
    *ret = f;
    return 0;
}

size_t fwd_bytes(const struct fwd *f) {
    const void *const parts[] = {f->runs, f->attn, f->failed, f->row_run, f->row_pos, f->x,
                                 f->xn,   f->proj, f->q,      f->k,       f->v,       f->att,
                                 f->gate, f->up,   f->cs,     f->head};
    size_t bytes = attn_scratch_bytes(f->attn_scratch) + matmul_scratch_bytes(f->env.scratch) +
                   fwd_experts_bytes(f->experts);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        bytes += malloc_usable_size((void *)(uintptr_t)parts[i]);
    return bytes;
}

void fwd_free(struct fwd *f) {
    if (!f)
        return;
    matmul_scratch_free(f->env.scratch);
    attn_scratch_free(f->attn_scratch);
    kv_layout_fini(&f->layout);
    free(f->runs);
    free(f->attn);
    free(f->failed);
    free(f->row_run);
    free(f->row_pos);
    free(f->x);
    free(f->xn);
    free(f->proj);
    free(f->q);
    free(f->k);
    free(f->v);
    free(f->att);
    free(f->gate);
    free(f->up);
    free(f->cs);
    free(f->head);
    fwd_experts_free(f->experts);
    free(f);
}

struct fwd_stats fwd_stats(const struct fwd *f) {
    return f->stats;
}

/* --- taking a step apart --- */

static int check_seq(const struct fwd *f, const struct fwd_seq *s) {
    if (s->n_tok == 0 || s->n_logits > s->n_tok || (s->n_logits && !s->logits))
        return ERR_INVALID;
    if (s->n_tok > f->cfg.max_ctx || s->pos0 > f->cfg.max_ctx - s->n_tok)
        return ERR_TOOBIG;
    for (uint32_t i = 0; i < s->n_tok; i++)
        if (s->tok[i] < 0 || (uint32_t)s->tok[i] >= f->m->hp.n_vocab)
            return ERR_INVALID;
    return 0;
}

static int check_step(const struct fwd *f, const struct fwd_seq *seqs, uint32_t n_seqs) {
    if (n_seqs > f->cfg.max_seqs)
        return ERR_TOOBIG;
    uint64_t rows = 0, logit_rows = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        int rv = check_seq(f, &seqs[i]);
        if (rv < 0)
            return rv;
        rows += seqs[i].n_tok;
        logit_rows += seqs[i].n_logits;
    }
    return rows > f->cfg.max_rows || logit_rows > f->cfg.max_logit_rows ? ERR_TOOBIG : 0;
}

/* Fills row_run and row_pos for the runs as they stand. */
static void number_rows(struct fwd *f) {
    f->n_blas_rows = 0;
    for (uint32_t i = 0; i < f->n_runs; i++) {
        const struct fwd_run *r = &f->runs[i];
        for (uint32_t j = 0; j < r->n; j++) {
            f->row_run[r->row0 + j] = i;
            f->row_pos[r->row0 + j] = r->pos0 + j;
        }
        if (f->cfg.blas && !r->seq->decode)
            f->n_blas_rows += r->n;
    }
}

static void add_run(struct fwd *f, const struct fwd_seq *s) {
    f->runs[f->n_runs++] = (struct fwd_run){s, f->n_rows, s->n_tok, s->pos0};
    f->n_rows += s->n_tok;
}

/* In numerics exact the sequences keep their order, and with it the neighbourhood of their outputs. */
static void lay_out(struct fwd *f, const struct fwd_seq *seqs, uint32_t n_seqs) {
    f->n_runs = f->n_rows = 0;
    f->seqs = seqs;
    for (uint32_t i = 0; i < n_seqs; i++)
        atomic_init(&f->failed[i], false);
    for (uint32_t i = 0; i < n_seqs; i++)
        if (!f->cfg.blas || !seqs[i].decode)
            add_run(f, &seqs[i]);
    for (uint32_t i = 0; i < n_seqs; i++)
        if (f->cfg.blas && seqs[i].decode)
            add_run(f, &seqs[i]);
    number_rows(f);
}

/* --- row-wise steps, called on the team for rows [begin, end) --- */

void fwd_set_failed(struct fwd *f, const struct fwd_run *r) {
    atomic_store_explicit(&f->failed[r->seq - f->seqs], true, memory_order_relaxed);
}

static void embed_rows(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    struct fwd *f = arg;
    const struct model *m = f->m;
    const struct model_hparams *hp = &m->hp;
    for (size_t r = begin; r < end; r++) {
        const struct fwd_run *run = &f->runs[f->row_run[r]];
        int32_t tok = run->seq->tok[r - run->row0];
        float *cs = fwd_row(f->cs, r, (size_t)hp->n_rope * hp->n_rot);
        float *x = fwd_row(f->x, r, hp->n_embd);
        quant_dequant_row(m->embd_type, x, m->embd, (size_t)tok, hp->n_embd);
        if (hp->embd_scale != 1.0f)
            f->cfg.ops->scale(x, hp->n_embd, hp->embd_scale);
        for (uint32_t g = 0; g < hp->n_rope; g++)
            rope_rows(m->rope[g], f->row_pos[r], 1, cs + (size_t)g * hp->n_rot);
    }
}

/* x += proj, then xn = rms_norm(x). */
static void residual_norm_rows(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct row_job *job = arg;
    struct fwd *f = job->f;
    const struct kern_ops *ops = f->cfg.ops;
    const struct model_hparams *hp = &f->m->hp;
    const size_t n = hp->n_embd;
    for (size_t r = begin; r < end; r++) {
        float *x = fwd_row(f->x, r, n), *proj = fwd_row(f->proj, r, n);
        if (job->bias)
            ops->add(proj, job->bias, n);
        if (job->post)
            ops->rms_norm(proj, proj, job->post, n, hp->rms_eps);
        if (job->add_proj && hp->residual_scale != 1.0f)
            ops->scale(proj, n, hp->residual_scale);
        if (job->add_proj)
            ops->add(x, proj, n);
        if (job->norm)
            ops->rms_norm(fwd_row(f->xn, r, n), x, job->norm, n, hp->rms_eps);
    }
}

/* One row of q or k: bias, norm, RoPE. cs NULL: none. */
static void finish_heads(const struct fwd *f, float *x, size_t n_head, const float *bias,
                         const float *norm, const float *cs) {
    const struct model_hparams *hp = &f->m->hp;
    const struct kern_ops *ops = f->cfg.ops;
    const size_t n = n_head * hp->d_head, part = hp->qk_norm == QK_NORM_HEAD ? hp->d_head : n;
    if (bias)
        ops->add(x, bias, n);
    for (size_t i = 0; norm && i < n; i += part)
        ops->rms_norm(x + i, x + i, norm, part, hp->rms_eps);
    if (cs)
        (hp->rope_neox ? ops->rope_neox : ops->rope_norm)(x, cs, n_head, hp->d_head, hp->n_rot);
}

static void finish_qkv(const struct layer_job *job, size_t r) {
    struct fwd *f = job->f;
    const struct model_hparams *hp = &f->m->hp;
    const struct model_layer *l = job->layer;
    const float *cs = NULL;
    if (job->rope >= 0)
        cs = f->cs + (r * hp->n_rope + (size_t)job->rope) * hp->n_rot;
    finish_heads(f, fwd_row(f->q, r, f->n_q), hp->n_head, l->qkv_bias[0], l->q_norm, cs);
    finish_heads(f, fwd_row(f->k, r, f->n_kv), hp->n_head_kv, l->qkv_bias[1], l->k_norm, cs);
    if (l->qkv_bias[2])
        f->cfg.ops->add(fwd_row(f->v, r, f->n_kv), l->qkv_bias[2], f->n_kv);
}

/* Biases, norms and RoPE, then K and V into the pages, run by run: a stretch of rows of one page is
 * written together. */
static void finish_store_rows(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct layer_job *job = arg;
    struct fwd *f = job->f;
    for (size_t r = begin; r < end; r++)
        finish_qkv(job, r);
    while (begin < end) {
        const struct fwd_run *run = &f->runs[f->row_run[begin]];
        const size_t stop = MIN(end, (size_t)run->row0 + run->n);
        const struct attn_kv_rows rows = {
            .k = fwd_row(f->k, begin, f->n_kv),
            .v = fwd_row(f->v, begin, f->n_kv),
            .k_stride = f->n_kv,
            .v_stride = f->n_kv,
            .pages = run->seq->pages,
            .n_rows = (uint32_t)(stop - begin),
            .pos0 = f->row_pos[begin],
        };
        if (!attn_store_kv(f->cfg.ops, &f->shape, &rows))
            fwd_set_failed(f, run);
        begin = stop;
    }
}

/* Products of a feed-forward, their biases NULL or there. */
struct act_job {
    struct fwd *f;
    const float *gate_bias, *up_bias;
};

static void activation_rows(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    const struct act_job *job = arg;
    struct fwd *f = job->f;
    const struct kern_ops *ops = f->cfg.ops;
    const size_t n = f->m->hp.n_ff;
    void (*const acts[])(float *, const float *, const float *, size_t) = {
        [ACT_SILU] = ops->silu_mul,
        [ACT_GELU_TANH] = ops->gelu_mul,
        [ACT_SWIGLU_OAI] = ops->swiglu_oai,
    };
    for (size_t r = begin; r < end; r++) {
        float *gate = fwd_row(f->gate, r, n), *up = fwd_row(f->up, r, n);
        if (job->gate_bias)
            ops->add(gate, job->gate_bias, n);
        if (job->up_bias)
            ops->add(up, job->up_bias, n);
        acts[f->m->hp.act](gate, gate, up, n);
    }
}

void fwd_for_rows(struct fwd *f, uint32_t n, kern_fn fn, void *arg) {
    kern_team_for(f->cfg.team, n, ROW_GRAIN, fn, arg);
}

static void for_rows(struct fwd *f, kern_fn fn, void *arg) {
    fwd_for_rows(f, f->n_rows, fn, arg);
}

void fwd_activate(struct fwd *f, const float *gate_bias, const float *up_bias, uint32_t n) {
    struct act_job job = {f, gate_bias, up_bias};
    fwd_for_rows(f, n, activation_rows, &job);
}

/* --- products --- */

/* The rows [row0, row0 + n); pos NULL: by the exact kernels. */
static void product_range(struct fwd *f, const float *x, size_t n_in, struct matmul_out *outs,
                          size_t n_outs, uint32_t row0, uint32_t n, const uint32_t *pos) {
    if (n == 0)
        return;
    struct matmul_out part[3];
    CHECK(n_outs <= ARRAY_LEN(part));
    for (size_t i = 0; i < n_outs; i++) {
        part[i] = outs[i];
        part[i].y += row0 * outs[i].y_stride;
    }
    const struct matmul_in in = {
        .x = x + row0 * n_in, .x_stride = n_in, .n_rows = n, .row_pos = pos};
    matmul(&f->env, &in, part, n_outs);
}

void fwd_product(struct fwd *f, const struct fwd_rows *rows, const float *x, size_t n_in,
                 struct matmul_out *outs, size_t n_outs) {
    product_range(f, x, n_in, outs, n_outs, 0, rows->n_blas, rows->pos);
    product_range(f, x, n_in, outs, n_outs, rows->n_blas, rows->n - rows->n_blas, NULL);
}

/* Of all rows. */
static void product(struct fwd *f, const float *x, size_t n_in, struct matmul_out *outs,
                    size_t n_outs) {
    const struct fwd_rows rows = {f->n_rows, f->n_blas_rows, f->row_pos};
    fwd_product(f, &rows, x, n_in, outs, n_outs);
}

/* --- a layer --- */

static void attention(struct fwd *f) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_runs; i++) {
        const struct fwd_run *r = &f->runs[i];
        if (r->n == 0)
            continue;
        f->attn[n++] = (struct attn_seq){
            .q = fwd_row(f->q, r->row0, f->n_q),
            .out = fwd_row(f->att, r->row0, f->n_q),
            .q_stride = f->n_q,
            .out_stride = f->n_q,
            .pages = (const uint8_t *const *)r->seq->pages,
            .n_rows = r->n,
            .pos0 = r->pos0,
        };
    }
    attn_paged(f->cfg.ops, f->cfg.team, f->attn_scratch, &f->shape, f->attn, n);
}

/* After the last layer's K and V are stored only rows of which something is wanted go on. Their bits do
 * not depend on the others, so leaving those out changes nothing but the time. */
static void keep_wanted_rows(struct fwd *f) {
    const size_t n_embd = f->m->hp.n_embd;
    uint32_t at = 0;
    for (uint32_t i = 0; i < f->n_runs; i++) {
        struct fwd_run *r = &f->runs[i];
        const uint32_t keep = r->seq->hidden ? r->n : r->seq->n_logits, skip = r->n - keep;
        const uint32_t from = r->row0 + skip;
        if (from != at && keep) {
            memmove(fwd_row(f->x, at, n_embd), fwd_row(f->x, from, n_embd),
                    keep * n_embd * sizeof(float));
            memmove(fwd_row(f->q, at, f->n_q), fwd_row(f->q, from, f->n_q),
                    keep * f->n_q * sizeof(float));
        }
        *r = (struct fwd_run){r->seq, at, keep, r->pos0 + skip};
        at += keep;
    }
    f->n_rows = at;
    number_rows(f);
}

/* What the products of a block read: the normed rows, or the residual stream as it is. */
static const float *block_input(const struct fwd *f, const float *norm) {
    return norm ? f->xn : f->x;
}

static void attention_block(struct fwd *f, uint32_t i) {
    const struct model_hparams *hp = &f->m->hp;
    const struct model_layer *l = &f->m->layers[i];
    const size_t n_embd = hp->n_embd;
    struct matmul_out qkv[] = {
        {l->qkv[0], f->q, f->n_q}, {l->qkv[1], f->k, f->n_kv}, {l->qkv[2], f->v, f->n_kv}};
    product(f, block_input(f, l->attn_norm), n_embd, qkv, 3);
    struct layer_job job = {.f = f, .layer = l, .rope = hp->layer[i].rope};
    for_rows(f, finish_store_rows, &job);
    if (i == hp->n_layer - 1)
        keep_wanted_rows(f);
    if (f->n_rows == 0)
        return;
    attention(f);
    struct matmul_out wo[] = {{l->wo, f->proj, n_embd}};
    product(f, f->att, f->n_q, wo, 1);
}

static void feed_forward(struct fwd *f, const struct model_layer *l) {
    const size_t n_embd = f->m->hp.n_embd, n_ff = f->m->hp.n_ff;
    const float *from = block_input(f, l->ffn_norm);
    if (l->router) {
        fwd_experts_run(f, l, from);
        return;
    }
    struct matmul_out gate_up[] = {{l->gate_up[0], f->gate, n_ff}, {l->gate_up[1], f->up, n_ff}};
    product(f, from, n_embd, gate_up, 2);
    fwd_activate(f, l->gate_up_bias[0], l->gate_up_bias[1], f->n_rows);
    struct matmul_out down[] = {{l->w_down, f->proj, n_embd}};
    product(f, f->gate, n_ff, down, 1);
}

/* Ends block l (NULL: there is none before) and begins the one whose norm is given (NULL: none after). */
static void end_feed_forward(struct fwd *f, const struct model_layer *l, const float *norm) {
    struct row_job job = {.f = f, .norm = norm};
    if (l)
        job = (struct row_job){f, true, l->w_down_bias, l->ffn_post, norm};
    for_rows(f, residual_norm_rows, &job);
}

static void end_attention(struct fwd *f, const struct model_layer *l) {
    struct row_job job = {f, true, l->wo_bias, l->attn_post, l->ffn_norm};
    for_rows(f, residual_norm_rows, &job);
}

static void layers(struct fwd *f) {
    const struct model_layer *last = NULL;
    for (uint32_t i = 0; i < f->m->hp.n_layer && f->n_rows; i++) {
        const struct model_layer *l = &f->m->layers[i];
        f->shape.k_off = f->layout.layer[i].k;
        f->shape.k_scale_off = f->layout.layer[i].k_scale;
        f->shape.v_off = f->layout.layer[i].v;
        f->shape.v_scale_off = f->layout.layer[i].v_scale;
        f->shape.window = f->m->hp.layer[i].window;
        f->shape.sinks = l->sinks;
        end_feed_forward(f, last, l->attn_norm);
        attention_block(f, i);
        end_attention(f, l);
        feed_forward(f, l);
        last = l;
    }
    end_feed_forward(f, last, NULL);
}

/* --- the head --- */

/* Normed rows of one run to head[at...]; returns the next free row. */
static uint32_t gather_head(struct fwd *f, const struct fwd_run *r, uint32_t at) {
    const size_t n_embd = f->m->hp.n_embd;
    const uint32_t n = r->seq->n_logits;
    for (uint32_t i = 0; i < n; i++)
        f->cfg.ops->rms_norm(fwd_row(f->head, at + i, n_embd),
                             fwd_row(f->x, r->row0 + r->n - n + i, n_embd), f->m->output_norm,
                             n_embd, f->m->hp.rms_eps);
    return at + n;
}

static void head_product(struct fwd *f, uint32_t row0, uint32_t n, float *logits) {
    const size_t n_embd = f->m->hp.n_embd;
    const struct matmul_in in = {
        .x = fwd_row(f->head, row0, n_embd), .x_stride = n_embd, .n_rows = n, .row_pos = NULL};
    const struct matmul_out out = {f->m->output, logits, f->m->hp.n_vocab};
    if (n)
        matmul(&f->env, &in, &out, 1);
}

/* One product for every stretch of runs whose outputs lie one behind the other. */
static void logits(struct fwd *f) {
    const size_t n_vocab = f->m->hp.n_vocab;
    uint32_t from = 0, at = 0; /* head rows of the stretch: [from, at) */
    float *first = NULL;
    for (uint32_t i = 0; i < f->n_runs; i++) {
        const struct fwd_run *r = &f->runs[i];
        if (r->seq->n_logits == 0)
            continue;
        if (!first || r->seq->logits != first + (at - from) * n_vocab) {
            head_product(f, from, at - from, first);
            from = at;
            first = r->seq->logits;
        }
        at = gather_head(f, r, at);
    }
    head_product(f, from, at - from, first);
    f->stats.logit_rows += at;
}

/* Something to choose from: no NaN, no +infinity, and one number at least. */
static bool has_finite_max(const float *x, size_t n) {
    if (kern_all_below(x, n, INFINITY))
        return true;
    float most = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            return false;
        most = MAX(most, x[i]);
    }
    return isfinite(most);
}

/* The check comes first: a cap would make a number of an infinity. */
static void finish_logits(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)thread;
    struct fwd *f = arg;
    const struct model_hparams *hp = &f->m->hp;
    for (size_t i = begin; i < end; i++)
        for (uint32_t k = 0; k < f->runs[i].seq->n_logits; k++) {
            float *row = f->runs[i].seq->logits + (size_t)k * hp->n_vocab;
            if (!has_finite_max(row, hp->n_vocab))
                fwd_set_failed(f, &f->runs[i]);
            if (hp->logit_scale != 1.0f)
                f->cfg.ops->scale(row, hp->n_vocab, hp->logit_scale);
            if (hp->logit_softcap != 0.0f)
                f->cfg.ops->softcap(row, hp->n_vocab, hp->logit_softcap);
        }
}

static void report(const struct fwd *f, const struct fwd_seq *seqs, uint32_t n_seqs) {
    for (uint32_t i = 0; i < n_seqs; i++)
        if (seqs[i].err)
            *seqs[i].err =
                atomic_load_explicit(&f->failed[i], memory_order_relaxed) ? ERR_NUMERIC : 0;
}

static void copy_hidden(const struct fwd *f) {
    const size_t n_embd = f->m->hp.n_embd;
    for (uint32_t i = 0; i < f->n_runs; i++) {
        const struct fwd_run *r = &f->runs[i];
        if (r->seq->hidden)
            memcpy(r->seq->hidden, fwd_row(f->x, r->row0, n_embd), r->n * n_embd * sizeof(float));
    }
}

int fwd_step(struct fwd *f, const struct fwd_seq *seqs, uint32_t n_seqs) {
    int rv = check_step(f, seqs, n_seqs);
    if (rv < 0)
        return rv;
    /* Some libraries set FTZ when they are loaded; row operations also run outside the team here. */
    kern_fp_init();
    lay_out(f, seqs, n_seqs);
    f->stats.steps++;
    f->stats.rows += f->n_rows;
    f->stats.kv_rows += (uint64_t)f->n_rows * f->m->hp.n_layer;
    for_rows(f, embed_rows, f);
    layers(f);
    copy_hidden(f);
    logits(f);
    kern_team_for(f->cfg.team, f->n_runs, 1, finish_logits, f);
    report(f, seqs, n_seqs);
    return 0;
}
