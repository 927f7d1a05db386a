#include "worker/model/weights.h"

#include <time.h>

#include "common/check.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/matmul.h"
#include "worker/kernels/quant.h"
#include "worker/model/arch.h"
#include "worker/model/model_digest.h"

int kv_dtype_parse(const char *name, enum kv_dtype *ret) {
    for (unsigned t = 0; t < KV_N_DTYPES; t++)
        if (strcmp(name, kv_dtype_name((enum kv_dtype)t)) == 0) {
            *ret = (enum kv_dtype)t;
            return 0;
        }
    return ERR_UNSUPPORTED;
}

/* One tensor that the architecture reads: a vector, or matrices of n_in inputs one behind the other. */
struct want {
    char name[64];
    enum { WANT_VECTOR, WANT_MATRIX, WANT_EMBD } kind;
    uint32_t n_in, n_out; /* of the tensor; n_out of a vector: how many, one behind the other */
    uint32_t n_mats;      /* its third dimension */
    bool optional, is_float;
    const float **vector;
    /* Of an embedding: the head that is made of the same rows, or NULL. */
    struct packed_mat **matrix; /* [n_parts] */
    uint32_t n_parts, rows[3];  /* outputs of each part; of all beyond them, as the last */
};

static uint32_t part_rows(const struct want *w, uint32_t part) {
    return w->rows[MIN(part, (uint32_t)ARRAY_LEN(w->rows) - 1)];
}

/* While the tensors of a file are bound to a model. */
struct binder {
    struct model *m;
    bool keep_raw;
    struct want *want;
    size_t n_want, cap_want;
    const struct want **want_of;                        /* [n_tensors] */
    float *next;                                        /* free place in m->vectors */
    const float *rope_factors, *rope_short, *rope_long; /* NULL: the file has none */
    const struct model_load_cfg *cfg;
    uint64_t n_read; /* bytes of tensors */
};

/* --- what is wanted: the one table that names, shapes and counts --- */

static struct want *add_want(struct binder *b, uint32_t n_in, uint32_t n_out, const char *name) {
    CHECK(b->n_want < b->cap_want);
    struct want *w = &b->want[b->n_want++];
    *w = (struct want){.n_in = n_in, .n_out = n_out, .n_mats = 1};
    (void)snprintf(w->name, sizeof(w->name), "%s", name);
    return w;
}

static struct want *want_vector(struct binder *b, uint32_t n, const char *name, const float **ret) {
    struct want *w = add_want(b, n, 1, name);
    w->kind = WANT_VECTOR;
    w->vector = ret;
    return w;
}

static struct want *want_matrix(struct binder *b, uint32_t n_in, uint32_t n_out, const char *name,
                                struct packed_mat **ret) {
    struct want *w = add_want(b, n_in, n_out, name);
    w->kind = WANT_MATRIX;
    w->matrix = ret;
    w->n_parts = 1;
    w->rows[0] = n_out;
    return w;
}

/* Tensors of one layer, by the names that follow "blk.N.". */
struct layer_binder {
    struct binder *b;
    uint32_t i;
    char name[64];
};

static const char *layer_name(struct layer_binder *lb, const char *name, const char *suffix) {
    (void)snprintf(lb->name, sizeof(lb->name), "blk.%u.%s.%s", lb->i, name, suffix);
    return lb->name;
}

static void layer_norm(struct layer_binder *lb, const char *name, uint32_t n, const float **ret) {
    (void)want_vector(lb->b, n, layer_name(lb, name, "weight"), ret);
}

/* kind: BIAS_* of its bias. */
static void layer_matrix(struct layer_binder *lb, const char *name, uint32_t n_in, uint32_t n_out,
                         struct packed_mat **ret, uint8_t kind, const float **ret_bias) {
    const struct model_arch *a = lb->b->m->arch;
    (void)want_matrix(lb->b, n_in, n_out, layer_name(lb, name, "weight"), ret);
    if ((a->biases | a->maybe_biases) & kind)
        want_vector(lb->b, n_out, layer_name(lb, name, "bias"), ret_bias)->optional =
            !(a->biases & kind);
}

static bool has_tensor(struct layer_binder *lb, const char *name) {
    return gguf_find_tensor(lb->b->m->gguf, layer_name(lb, name, "weight")) != NULL;
}

static void want_attention(struct layer_binder *lb, struct model_layer *l) {
    static const char *const names[3] = {"attn_q", "attn_k", "attn_v"};
    const struct model_hparams *hp = &lb->b->m->hp;
    const uint32_t n_q = hp->n_head * hp->d_head, n_kv = hp->n_head_kv * hp->d_head;
    const uint32_t rows[3] = {n_q, n_kv, n_kv};
    const bool per_head = hp->qk_norm == QK_NORM_HEAD;
    if (lb->b->m->arch->fused && has_tensor(lb, "attn_qkv")) {
        struct want *w = want_matrix(lb->b, hp->n_embd, n_q + 2 * n_kv, lb->name, l->qkv);
        w->n_parts = 3;
        memcpy(w->rows, rows, sizeof(rows));
    } else {
        for (int k = 0; k < 3; k++)
            layer_matrix(lb, names[k], hp->n_embd, rows[k], &l->qkv[k], BIAS_QKV, &l->qkv_bias[k]);
    }
    if (hp->qk_norm != QK_NORM_NONE) {
        layer_norm(lb, "attn_q_norm", per_head ? hp->d_head : n_q, &l->q_norm);
        layer_norm(lb, "attn_k_norm", per_head ? hp->d_head : n_kv, &l->k_norm);
    }
    if (hp->sinks)
        layer_norm(lb, "attn_sinks", hp->n_head, &l->sinks);
    layer_matrix(lb, "attn_output", n_q, hp->n_embd, &l->wo, BIAS_OUT, &l->wo_bias);
}

/* One tensor holds a matrix of every expert. */
static void want_experts(struct layer_binder *lb, struct model_layer *l) {
    const struct model_hparams *hp = &lb->b->m->hp;
    const struct {
        const char *name;
        uint32_t n_in, n_out;
    } kinds[3] = {{"ffn_gate_exps", hp->n_embd, hp->n_ff},
                  {"ffn_up_exps", hp->n_embd, hp->n_ff},
                  {"ffn_down_exps", hp->n_ff, hp->n_embd}};
    want_matrix(lb->b, hp->n_embd, hp->n_expert, layer_name(lb, "ffn_gate_inp", "weight"),
                &l->router)
        ->is_float = true;
    if (lb->b->m->arch->biases & BIAS_EXPERTS)
        (void)want_vector(lb->b, hp->n_expert, layer_name(lb, "ffn_gate_inp", "bias"),
                          &l->router_bias);
    for (uint32_t k = 0; k < 3; k++) {
        struct want *w =
            want_matrix(lb->b, kinds[k].n_in, kinds[k].n_out,
                        layer_name(lb, kinds[k].name, "weight"), &l->experts[k * hp->n_expert]);
        w->n_mats = w->n_parts = hp->n_expert;
        w->rows[1] = w->rows[2] = kinds[k].n_out;
        if (lb->b->m->arch->biases & BIAS_EXPERTS)
            want_vector(lb->b, kinds[k].n_out, layer_name(lb, kinds[k].name, "bias"),
                        &l->expert_bias[k])
                ->n_out = hp->n_expert;
    }
}

static void want_feed_forward(struct layer_binder *lb, struct model_layer *l) {
    static const char *const names[2] = {"ffn_gate", "ffn_up"};
    const struct model_hparams *hp = &lb->b->m->hp;
    if (lb->b->m->arch->fused && !has_tensor(lb, "ffn_gate")) {
        struct want *w = want_matrix(lb->b, hp->n_embd, 2 * hp->n_ff,
                                     layer_name(lb, "ffn_up", "weight"), l->gate_up);
        w->n_parts = 2;
        w->rows[0] = w->rows[1] = hp->n_ff;
    } else {
        for (int k = 0; k < 2; k++)
            layer_matrix(lb, names[k], hp->n_embd, hp->n_ff, &l->gate_up[k], BIAS_FFN,
                         &l->gate_up_bias[k]);
    }
    layer_matrix(lb, "ffn_down", hp->n_ff, hp->n_embd, &l->w_down, BIAS_FFN, &l->w_down_bias);
}

#define LAYER_WANTS 20
static void want_layer(struct binder *b, uint32_t i) {
    const struct model_hparams *hp = &b->m->hp;
    struct model_layer *l = &b->m->layers[i];
    struct layer_binder lb = {.b = b, .i = i};
    if (hp->norms & NORM_PRE) {
        layer_norm(&lb, "attn_norm", hp->n_embd, &l->attn_norm);
        layer_norm(&lb, b->m->arch->ffn_norm ? b->m->arch->ffn_norm : "ffn_norm", hp->n_embd,
                   &l->ffn_norm);
    }
    if (hp->norms & NORM_POST) {
        layer_norm(&lb, "post_attention_norm", hp->n_embd, &l->attn_post);
        layer_norm(&lb, "post_ffw_norm", hp->n_embd, &l->ffn_post);
    }
    want_attention(&lb, l);
    if (hp->n_expert)
        want_experts(&lb, l);
    else
        want_feed_forward(&lb, l);
}

static void want_rope_factors(struct binder *b) {
    const struct model_hparams *hp = &b->m->hp;
    want_vector(b, hp->n_rot / 2, "rope_freqs.weight", &b->rope_factors)->optional = true;
    if (!hp->longrope)
        return;
    (void)want_vector(b, hp->n_rot / 2, "rope_factors_short.weight", &b->rope_short);
    (void)want_vector(b, hp->n_rot / 2, "rope_factors_long.weight", &b->rope_long);
}

#define MODEL_WANTS 6
static int want_all(struct binder *b, struct errbuf *eb) {
    struct model *m = b->m;
    struct model_hparams *hp = &m->hp;
    const struct gguf_tensor *embd = gguf_find_tensor(m->gguf, "token_embd.weight");
    if (embd && hp->n_vocab == 0 && embd->ne[1] <= (1u << 24))
        hp->n_vocab = (uint32_t)embd->ne[1];
    hp->tied = !gguf_find_tensor(m->gguf, "output.weight");
    b->cap_want = MODEL_WANTS + (size_t)hp->n_layer * LAYER_WANTS;
    b->want = alloc_array(b->cap_want, sizeof(*b->want));
    m->layers = alloc_array(hp->n_layer, sizeof(*m->layers));
    if (!b->want || !m->layers)
        return err_set(eb, ERR_NOMEM, "model of %u layers", hp->n_layer);
    for (uint32_t i = 0; i < hp->n_layer && hp->n_expert; i++) {
        m->layers[i].experts = alloc_array(3 * (size_t)hp->n_expert, sizeof(struct packed_mat *));
        if (!m->layers[i].experts)
            return err_set(eb, ERR_NOMEM, "%u experts", hp->n_expert);
    }
    struct want *w =
        want_matrix(b, hp->n_embd, hp->n_vocab, "token_embd.weight", hp->tied ? &m->output : NULL);
    w->kind = WANT_EMBD;
    if (!hp->tied)
        (void)want_matrix(b, hp->n_embd, hp->n_vocab, "output.weight", &m->output);
    (void)want_vector(b, hp->n_embd, "output_norm.weight", &m->output_norm);
    want_rope_factors(b);
    for (uint32_t i = 0; i < hp->n_layer; i++)
        want_layer(b, i);
    return 0;
}

/* --- the file's directory against the table, before a byte of a tensor is read --- */

static int unsupported_type(const struct want *w, const struct gguf_tensor *t, struct errbuf *eb) {
    const struct gguf_tensor_type *ty = gguf_tensor_type(t->type);
    if (w->kind == WANT_VECTOR)
        return err_set(eb, ERR_UNSUPPORTED,
                       "tensor '%s': weights of type %s are not supported here "
                       "(F32 is)",
                       w->name, ty ? ty->name : "?");
    char known[160];
    size_t n_types, len = 0;
    const struct quant_type *types = quant_type_table(&n_types);
    for (size_t i = 0; i < n_types; i++)
        len += (size_t)snprintf(known + len, sizeof(known) - len, " %s", types[i].name);
    return err_set(eb, ERR_UNSUPPORTED,
                   "tensor '%s': weights of type %s are not supported; known:%s", w->name,
                   ty ? ty->name : "?", known);
}

static int check_tensor(const struct want *w, const struct gguf_tensor *t, struct errbuf *eb) {
    bool fits =
        t->ne[0] == w->n_in && t->ne[1] == w->n_out && t->ne[2] == w->n_mats && t->ne[3] == 1;
    if (!fits)
        return err_set(eb, ERR_INVALID,
                       "tensor '%s' has the shape [%llu, %llu, %llu, %llu], expected [%u, %u, %u]",
                       w->name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
                       (unsigned long long)t->ne[2], (unsigned long long)t->ne[3], w->n_in,
                       w->n_out, w->n_mats);
    if (w->is_float && t->type != QUANT_F32 && t->type != QUANT_F16 && t->type != QUANT_BF16)
        return err_set(eb, ERR_UNSUPPORTED, "tensor '%s': a router's weights must be floats",
                       w->name);
    bool known = w->kind == WANT_VECTOR ? t->type == QUANT_F32 : quant_type_find(t->type) != NULL;
    return known ? 0 : unsupported_type(w, t, eb);
}

/* A tensor that nobody reads (a bias, an expert, a norm of another architecture) changes the output of
 * the implementation that does read it. */
static int refuse_unused(const struct binder *b, struct errbuf *eb) {
    for (size_t i = 0; i < gguf_n_tensors(b->m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(b->m->gguf, i);
        if (!b->want_of[i])
            return err_set(eb, ERR_UNSUPPORTED,
                           "tensor '%.*s' is not used by architecture %s as implemented here",
                           (int)t->name.len, t->name.p, b->m->hp.arch);
    }
    return 0;
}

static int match_tensors(struct binder *b, struct errbuf *eb) {
    const struct gguf *g = b->m->gguf;
    size_t n_floats = 0;
    b->want_of = alloc_array(gguf_n_tensors(g), sizeof(*b->want_of));
    if (!b->want_of)
        return err_set(eb, ERR_NOMEM, "%zu tensors", gguf_n_tensors(g));
    for (size_t i = 0; i < b->n_want; i++) {
        const struct want *w = &b->want[i];
        const struct gguf_tensor *t = gguf_find_tensor(g, w->name);
        if (!t && w->optional)
            continue;
        int rv = t ? check_tensor(w, t, eb)
                   : err_set(eb, ERR_INVALID, "tensor '%s' is missing", w->name);
        if (rv < 0)
            return rv;
        b->want_of[t - gguf_tensor_at(g, 0)] = w;
        n_floats += w->kind == WANT_VECTOR ? (size_t)w->n_in * w->n_out : 0;
    }
    b->next = b->m->vectors = alloc_array(n_floats, sizeof(*b->m->vectors));
    if (!b->next)
        return err_set(eb, ERR_NOMEM, "%zu floats of norms", n_floats);
    return refuse_unused(b, eb);
}

/* What load_tensors() will take. */
static void measure(struct binder *b) {
    struct model_sizes *z = &b->m->sizes;
    for (size_t i = 0; i < gguf_n_tensors(b->m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(b->m->gguf, i);
        const struct want *w = b->want_of[i];
        z->largest = MAX(z->largest, t->bytes);
        if (w->kind == WANT_VECTOR)
            z->vectors += t->bytes;
        else if (w->kind == WANT_EMBD || b->keep_raw)
            z->raw += t->bytes;
        for (uint32_t p = 0; w->matrix && p < w->n_parts; p++)
            z->packed += packed_mat_size(quant_type_find(t->type), part_rows(w, p), w->n_in);
    }
}

/* --- bytes --- */

/* What is used in the file's own form goes where it stays, all else through the walk's buffer. */
static int place_tensor(void *arg, size_t i, uint8_t **ret, struct errbuf *eb) {
    struct binder *b = arg;
    const struct want *w = b->want_of[i];
    const struct gguf_tensor *t = gguf_tensor_at(b->m->gguf, i);
    if (w->kind == WANT_VECTOR || (w->kind == WANT_MATRIX && !b->keep_raw))
        return 0;
    *ret = weight_mem_take(b->m->weights, t->bytes);
    return *ret ? 0 : err_set(eb, ERR_NOMEM, "tensor '%s': %zu bytes", w->name, t->bytes);
}

static int check_finite(const struct want *w, const struct gguf_tensor *t, const uint8_t *bytes,
                        struct errbuf *eb) {
    const struct quant_type *q = quant_type_find(t->type);
    size_t bad = quant_first_bad(q, bytes, t->n_elem);
    if (bad == t->n_elem / q->block_items)
        return 0;
    return err_set(eb, ERR_CORRUPT, "tensor '%s': %s %zu %s", w->name,
                   q->block_items == 1 ? "element" : "the scale of block", bad, quant_bad_text(q));
}

static int pack_matrices(struct binder *b, const struct want *w, const struct gguf_tensor *t,
                         const uint8_t *bytes, struct errbuf *eb) {
    const size_t row_bytes = t->bytes / ((size_t)w->n_out * w->n_mats);
    for (uint32_t i = 0; i < w->n_parts; i++) {
        const struct packed_src src = {
            .dtype = t->type,
            .n_out = part_rows(w, i),
            .n_in = w->n_in,
            .bytes = bytes,
            .n_bytes = part_rows(w, i) * row_bytes,
            .keep_raw = b->keep_raw,
            .mem = b->m->weights,
        };
        int rv = packed_mat_new(&w->matrix[i], &src, eb);
        if (rv < 0)
            return err_wrap(eb, rv, "tensor '%s'", w->name);
        b->m->packed_bytes += packed_mat_bytes(w->matrix[i]);
        bytes += src.n_bytes;
    }
    return 0;
}

static int take_tensor(void *arg, size_t i, const uint8_t *bytes, struct errbuf *eb) {
    struct binder *b = arg;
    const struct want *w = b->want_of[i];
    const struct gguf_tensor *t = gguf_tensor_at(b->m->gguf, i);
    b->n_read += t->bytes;
    if (b->cfg->progress && !b->cfg->progress(b->cfg->progress_arg, b->n_read, b->m->file.size))
        return err_set(eb, ERR_CANCELED, "canceled");
    int rv = w->matrix ? 0 : check_finite(w, t, bytes, eb); /* packing checks too */
    if (rv < 0)
        return rv;
    if (w->kind == WANT_VECTOR) { /* aligned, whatever the file's alignment */
        memcpy(b->next, bytes, t->bytes);
        *w->vector = b->next;
        b->next += t->n_elem;
        return 0;
    }
    if (w->kind == WANT_EMBD) {
        b->m->embd_type = quant_type_find(t->type);
        b->m->embd = bytes;
    }
    return w->matrix ? pack_matrices(b, w, t, bytes, eb) : 0;
}

static int make_ropes(struct binder *b, struct errbuf *eb) {
    const struct model_hparams *hp = &b->m->hp;
    const float *factors =
        hp->longrope ? (hp->longrope_long ? b->rope_long : b->rope_short) : b->rope_factors;
    for (uint32_t i = 0; factors && i < hp->n_rot / 2; i++)
        if (factors[i] == 0)
            return err_set(eb, ERR_CORRUPT, "tensor '%s': factor %u is zero",
                           !hp->longrope       ? "rope_freqs.weight"
                           : hp->longrope_long ? "rope_factors_long.weight"
                                               : "rope_factors_short.weight",
                           i);
    for (uint32_t g = 0; g < hp->n_rope; g++) {
        const struct model_rope *r = &hp->rope[g];
        const struct rope_cfg cfg = {
            .n_rot = hp->n_rot,
            .base = r->base,
            .freq_scale = r->scale,
            .freq_factors = g == 0 ? factors : NULL,
            .magnitude = r->magnitude,
            .yarn_orig_ctx = r->yarn_orig_ctx,
            .beta_fast = r->beta_fast,
            .beta_slow = r->beta_slow,
            .yarn_between = r->yarn_between,
        };
        int rv = rope_new(&b->m->rope[g], &cfg, eb);
        if (rv < 0)
            return rv;
    }
    return 0;
}

/* The architectures there are, for whoever has another. */
static int unknown_arch(struct gguf_str arch, struct errbuf *eb) {
    char known[256];
    size_t n, at = 0;
    const struct model_arch *a = model_arch_table(&n);
    for (size_t i = 0; i < n && at < sizeof(known); i++)
        at += (size_t)snprintf(known + at, sizeof(known) - at, i ? ", %s" : "%s", a[i].name);
    return err_set(eb, ERR_UNSUPPORTED, "architecture '%.*s' is not supported; known: %s",
                   (int)MIN(arch.len, (size_t)64), arch.p, known);
}

static int read_hparams(struct model *m, uint32_t max_ctx, struct errbuf *eb) {
    struct gguf_str arch = {"", 0}, name = {"", 0};
    int rv = gguf_get_str(m->gguf, "general.architecture", &arch, eb);
    if (rv >= 0)
        rv = gguf_get_str(m->gguf, "general.name", &name, eb);
    if (rv < 0)
        return rv;
    m->arch = model_arch_find(arch);
    if (!m->arch)
        return unknown_arch(arch, eb);
    rv = model_arch_read(m->arch, m->gguf, max_ctx, &m->hp, eb);
    if (rv < 0)
        return rv;
    (void)snprintf(m->hp.name, sizeof(m->hp.name), "%.*s", (int)MIN(name.len, (size_t)127), name.p);
    return 0;
}

static uint64_t wall_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Reads all tensors; the digest is of the bytes that were read, or remembered for a file that had
 * settled before and was the same before and after. */
static int load_tensors(struct binder *b, struct gguf_file *f, const struct model_digest_cfg *d,
                        struct errbuf *eb) {
    struct model *m = b->m;
    struct gguf_walk w = {.arg = b, .place = place_tensor, .take = take_tensor};
    m->digest_remembered = model_digest_recall(d, m->digest);
    if (!m->digest_remembered)
        w.ret_digest = m->digest;
    int rv = gguf_file_walk(f, &w, eb);
    if (rv == 0 && !gguf_file_is_same(f))
        rv = err_set(eb, ERR_CONFLICT, "the file changed while it was being loaded");
    if (rv == 0 && !m->digest_remembered)
        model_digest_remember(d, m->digest);
    return rv;
}

/* d NULL: only an outline. */
static int bind(struct binder *b, struct gguf_file *f, const struct model_digest_cfg *d,
                struct errbuf *eb) {
    int rv = gguf_n_tensors(b->m->gguf) ? want_all(b, eb)
                                        : err_set(eb, ERR_INVALID, "the file has no tensors");
    if (rv >= 0)
        rv = match_tensors(b, eb);
    if (rv < 0)
        return rv;
    measure(b);
    if (!d)
        return 0;
    rv = load_tensors(b, f, d, eb);
    return rv >= 0 ? make_ropes(b, eb) : rv;
}

static int load(struct model *m, const struct model_load_cfg *cfg, bool with_tensors,
                struct errbuf *eb) {
    struct model_digest_cfg d = {.cache_dir = cfg->digest_cache_dir, .now_ns = wall_ns()};
    CLEANUP(gguf_file_closep) struct gguf_file *f = NULL;
    int rv = gguf_file_open(&f, cfg->path, eb);
    if (rv < 0)
        return rv;
    m->file = d.id = *gguf_file_id(f);
    m->path = strdup(cfg->path);
    m->weights = weight_mem_new();
    if (!m->path || !m->weights)
        return err_set(eb, ERR_NOMEM, "weights");
    m->gguf = gguf_file_peek(f);
    struct binder b = {.m = m, .keep_raw = cfg->keep_raw, .cfg = cfg};
    rv = read_hparams(m, cfg->max_ctx, eb);
    if (rv >= 0)
        rv = bind(&b, f, with_tensors ? &d : NULL, eb);
    free(b.want);
    free(b.want_of);
    m->gguf = rv < 0 ? NULL : gguf_file_take(f);
    return rv < 0 ? err_wrap(eb, rv, "'%s'", cfg->path) : 0;
}

static int make(struct model **ret, const struct model_load_cfg *cfg, bool with_tensors,
                struct errbuf *eb) {
    struct model *m = calloc(1, sizeof(*m));
    if (!m)
        return err_set(eb, ERR_NOMEM, "model");
    int rv = load(m, cfg, with_tensors, eb);
    if (rv < 0) {
        model_free(m);
        return rv;
    }
    *ret = m;
    return 0;
}

int model_load(struct model **ret, const struct model_load_cfg *cfg, struct errbuf *eb) {
    return make(ret, cfg, /* with_tensors= */ true, eb);
}

int model_outline(struct model **ret, const struct model_load_cfg *cfg, struct errbuf *eb) {
    return make(ret, cfg, /* with_tensors= */ false, eb);
}

static void free_layer(struct model_layer *l, uint32_t n_expert) {
    packed_mat_free(l->router);
    for (uint32_t i = 0; l->experts && i < 3 * n_expert; i++)
        packed_mat_free(l->experts[i]);
    free(l->experts);
    for (int i = 0; i < 3; i++)
        packed_mat_free(l->qkv[i]);
    packed_mat_free(l->wo);
    for (int i = 0; i < 2; i++)
        packed_mat_free(l->gate_up[i]);
    packed_mat_free(l->w_down);
}

void model_free(struct model *m) {
    if (!m)
        return;
    for (uint32_t i = 0; m->layers && i < m->hp.n_layer; i++)
        free_layer(&m->layers[i], m->hp.n_expert);
    packed_mat_free(m->output);
    weight_mem_free(m->weights);
    for (int i = 0; i < MODEL_MAX_ROPES; i++)
        rope_free(m->rope[i]);
    free(m->layers);
    free(m->vectors);
    free(m->path);
    gguf_free(m->gguf);
    free(m);
}

bool model_file_changed(const struct model *m) {
    struct gguf_file_id now;
    return gguf_file_id_of(m->path, &now) < 0 || !gguf_file_id_equal(&now, &m->file);
}

static struct kv_layout_cfg layout_cfg(const struct model *m, uint32_t block_tok,
                                       struct kv_dtypes t) {
    return (struct kv_layout_cfg){.n_layer = m->hp.n_layer,
                                  .n_kv_head = m->hp.n_head_kv,
                                  .d_head = m->hp.d_head,
                                  .block_tok = block_tok,
                                  .k_dtype = t.k,
                                  .v_dtype = t.v};
}

int model_kv_layout(struct kv_layout *ret, const struct model *m, uint32_t block_tok,
                    struct kv_dtypes t, struct errbuf *eb) {
    uint32_t window[KV_MAX_RANGES];
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        window[i] = m->hp.layer[i].window;
    struct kv_layout_cfg c = layout_cfg(m, block_tok, t);
    c.window = window;
    return kv_layout_init(ret, &c, eb);
}

size_t model_page_bytes(const struct model *m, uint32_t block_tok, struct kv_dtypes t) {
    const struct kv_layout_cfg c = layout_cfg(m, block_tok, t);
    struct kv_place p;
    return m->hp.n_layer * kv_range_place(&c, &p);
}
