#include "worker/model/weights.h"

#include <math.h>
#include <time.h>

#include "worker/kernels/kernels.h"
#include "worker/kernels/matmul.h"
#include "worker/kernels/quant.h"
#include "worker/model/arch.h"
#include "worker/model/model_digest.h"

const char *kv_dtype_name(enum kv_dtype t) {
    return t == KV_F32 ? "f32" : "f16";
}

int kv_dtype_parse(const char *name, enum kv_dtype *ret) {
    for (unsigned t = KV_F16; t <= KV_F32; t++)
        if (strcmp(name, kv_dtype_name((enum kv_dtype)t)) == 0) {
            *ret = (enum kv_dtype)t;
            return 0;
        }
    return ERR_UNSUPPORTED;
}

/* While the tensors of a file are bound to a model. */
struct binder {
    struct model *m;
    bool keep_raw;
    struct errbuf *eb;
    bool *used;   /* [n_tensors] */
    float *next;  /* free place in m->vectors */
    char name[64];
};

/* Finds name with exactly these dimensions (n_rows 0: a vector). */
static int find_shaped(struct binder *b, uint32_t n_cols, uint32_t n_rows,
                       const struct gguf_tensor **ret) {
    const struct gguf_tensor *t = gguf_find_tensor(b->m->gguf, b->name);
    if (!t)
        return err_set(b->eb, ERR_INVALID, "tensor '%s' is missing", b->name);
    bool fits = t->ne[0] == n_cols && t->ne[1] == (n_rows ? n_rows : 1) && t->ne[2] == 1 &&
                t->ne[3] == 1;
    if (!fits)
        return err_set(b->eb, ERR_INVALID,
                       "tensor '%s' has the shape [%llu, %llu, %llu, %llu], expected [%u, %u]",
                       b->name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
                       (unsigned long long)t->ne[2], (unsigned long long)t->ne[3], n_cols,
                       n_rows ? n_rows : 1);
    b->used[t - gguf_tensor_at(b->m->gguf, 0)] = true;
    *ret = t;
    return 0;
}

static int unsupported_type(struct binder *b, const struct gguf_tensor *t) {
    const struct gguf_tensor_type *ty = gguf_tensor_type(t->type);
    return err_set(b->eb, ERR_UNSUPPORTED, "tensor '%s': weights of type %s are not supported",
                   b->name, ty ? ty->name : "?");
}

/* Small F32 vectors are copied: aligned whatever the file's alignment, and checked. */
static int bind_vector(struct binder *b, uint32_t n, const float **ret) {
    const struct gguf_tensor *t;
    int rv = find_shaped(b, n, 0, &t);
    if (rv < 0)
        return rv;
    if (t->type != QUANT_F32)
        return unsupported_type(b, t);
    memcpy(b->next, t->data, t->bytes);
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(b->next[i]))
            return err_set(b->eb, ERR_CORRUPT, "tensor '%s': element %u is not finite", b->name, i);
    *ret = b->next;
    b->next += n;
    return 0;
}

static int bind_matrix(struct binder *b, uint32_t n_in, uint32_t n_out, struct packed_mat **ret) {
    const struct gguf_tensor *t;
    int rv = find_shaped(b, n_in, n_out, &t);
    if (rv < 0)
        return rv;
    if (!quant_type_find(t->type))
        return unsupported_type(b, t);
    const struct packed_src src = {
        .dtype = t->type,
        .n_out = n_out,
        .n_in = n_in,
        .bytes = t->data,
        .n_bytes = t->bytes,
        .keep_raw = b->keep_raw,
        .mem = b->m->weights,
    };
    rv = packed_mat_new(ret, &src, b->eb);
    if (rv < 0)
        return err_wrap(b->eb, rv, "tensor '%s'", b->name);
    b->m->packed_bytes += packed_mat_bytes(*ret);
    return 0;
}

static void name_tensor(struct binder *b, const char *name) {
    (void)snprintf(b->name, sizeof(b->name), "%s.weight", name);
}

static void name_layer_tensor(struct binder *b, uint32_t layer, const char *name) {
    (void)snprintf(b->name, sizeof(b->name), "blk.%u.%s.weight", layer, name);
}

static int bind_layer(struct binder *b, uint32_t i) {
    const struct model_hparams *hp = &b->m->hp;
    struct model_layer *l = &b->m->layers[i];
    const uint32_t n_q = hp->n_head * hp->d_head, n_kv = hp->n_head_kv * hp->d_head;
    const struct {
        const char *name;
        uint32_t n_in, n_out;
        struct packed_mat **ret;
    } mats[] = {
        {"attn_q", hp->n_embd, n_q, &l->wq},           {"attn_k", hp->n_embd, n_kv, &l->wk},
        {"attn_v", hp->n_embd, n_kv, &l->wv},          {"attn_output", n_q, hp->n_embd, &l->wo},
        {"ffn_gate", hp->n_embd, hp->n_ff, &l->w_gate}, {"ffn_up", hp->n_embd, hp->n_ff, &l->w_up},
        {"ffn_down", hp->n_ff, hp->n_embd, &l->w_down},
    };
    name_layer_tensor(b, i, "attn_norm");
    int rv = bind_vector(b, hp->n_embd, &l->attn_norm);
    if (rv < 0)
        return rv;
    name_layer_tensor(b, i, "ffn_norm");
    rv = bind_vector(b, hp->n_embd, &l->ffn_norm);
    for (size_t k = 0; rv >= 0 && k < ARRAY_LEN(mats); k++) {
        name_layer_tensor(b, i, mats[k].name);
        rv = bind_matrix(b, mats[k].n_in, mats[k].n_out, mats[k].ret);
    }
    return rv;
}

/* Embedding rows are read from the file; the head is a matrix of its own or made from the same rows. */
static int bind_vocab_side(struct binder *b) {
    struct model *m = b->m;
    struct model_hparams *hp = &m->hp;
    name_tensor(b, "token_embd");
    const struct gguf_tensor *t = gguf_find_tensor(m->gguf, b->name);
    if (t && hp->n_vocab == 0 && t->ne[1] <= (1u << 24))
        hp->n_vocab = (uint32_t)t->ne[1];
    int rv = find_shaped(b, hp->n_embd, hp->n_vocab, &t);
    if (rv < 0)
        return rv;
    m->embd_type = quant_type_find(t->type);
    if (!m->embd_type)
        return unsupported_type(b, t);
    m->embd = t->data;
    hp->tied = !gguf_find_tensor(m->gguf, "output.weight");
    if (!hp->tied)
        name_tensor(b, "output");
    rv = bind_matrix(b, hp->n_embd, hp->n_vocab, &m->output);
    if (rv < 0)
        return rv;
    name_tensor(b, "output_norm");
    return bind_vector(b, hp->n_embd, &m->output_norm);
}

static int bind_rope(struct binder *b) {
    const struct model_hparams *hp = &b->m->hp;
    struct rope_cfg cfg = {.n_rot = hp->n_rot, .base = hp->rope_base, .freq_scale = hp->rope_scale};
    name_tensor(b, "rope_freqs");
    if (gguf_find_tensor(b->m->gguf, b->name)) {
        int rv = bind_vector(b, hp->n_rot / 2, &cfg.freq_factors);
        if (rv < 0)
            return rv;
        for (uint32_t i = 0; i < hp->n_rot / 2; i++)
            if (cfg.freq_factors[i] == 0)
                return err_set(b->eb, ERR_CORRUPT, "tensor '%s': factor %u is zero", b->name, i);
    }
    return rope_new(&b->m->rope, &cfg, b->eb);
}

/* A tensor that nobody reads (a bias, an expert, a norm of another architecture) changes the output of
 * the implementation that does read it. */
static int refuse_unused(const struct binder *b) {
    for (size_t i = 0; i < gguf_n_tensors(b->m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(b->m->gguf, i);
        if (!b->used[i])
            return err_set(b->eb, ERR_UNSUPPORTED,
                           "tensor '%.*s' is not used by architecture %s as implemented here",
                           (int)t->name.len, t->name.p, b->m->hp.arch);
    }
    return 0;
}

static int bind_all(struct binder *b) {
    struct model *m = b->m;
    /* Two norms a layer, the last norm, perhaps RoPE divisors. */
    size_t n = (2 * (size_t)m->hp.n_layer + 1) * m->hp.n_embd + m->hp.n_rot / 2;
    m->layers = alloc_array(m->hp.n_layer, sizeof(*m->layers));
    m->vectors = alloc_array(n, sizeof(*m->vectors));
    b->used = alloc_array(gguf_n_tensors(m->gguf), sizeof(*b->used));
    if (!m->layers || !m->vectors || !b->used)
        return err_set(b->eb, ERR_NOMEM, "model of %u layers", m->hp.n_layer);
    b->next = m->vectors;
    int rv = gguf_n_tensors(m->gguf) ? bind_vocab_side(b)
                                     : err_set(b->eb, ERR_INVALID, "the file has no tensors");
    for (uint32_t i = 0; rv >= 0 && i < m->hp.n_layer; i++)
        rv = bind_layer(b, i);
    if (rv >= 0)
        rv = bind_rope(b);
    return rv >= 0 ? refuse_unused(b) : rv;
}

static int read_hparams(struct model *m, struct errbuf *eb) {
    struct gguf_str arch = {"", 0}, name = {"", 0};
    int rv = gguf_get_str(m->gguf, "general.architecture", &arch, eb);
    if (rv >= 0)
        rv = gguf_get_str(m->gguf, "general.name", &name, eb);
    if (rv < 0)
        return rv;
    m->arch = model_arch_find(arch);
    if (!m->arch)
        return err_set(eb, ERR_UNSUPPORTED, "architecture '%.*s' is not supported (llama is)",
                       (int)MIN(arch.len, (size_t)64), arch.p);
    rv = m->arch->read_hparams(m->arch, m->gguf, &m->hp, eb);
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

static int take_digest(struct model *m, const struct model_load_cfg *cfg, struct errbuf *eb) {
    struct model_digest_cfg d = {
        .id = *gguf_file_id(m->gguf),
        .cache_dir = cfg->digest_cache_dir,
        .now_ns = wall_ns(),
    };
    d.bytes = gguf_bytes(m->gguf, &d.len);
    m->digest_remembered = model_digest(&d, m->digest);
    if (model_file_changed(m))
        return err_set(eb, ERR_CONFLICT, "the file changed while it was being loaded");
    return 0;
}

static int load(struct model *m, const struct model_load_cfg *cfg, struct errbuf *eb) {
    m->path = strdup(cfg->path);
    if (!m->path)
        return err_set(eb, ERR_NOMEM, "path");
    m->weights = weight_mem_new();
    if (!m->weights)
        return err_set(eb, ERR_NOMEM, "weights");
    int rv = read_hparams(m, eb);
    if (rv < 0)
        return rv;
    struct binder b = {.m = m, .keep_raw = cfg->keep_raw, .eb = eb};
    rv = bind_all(&b);
    free(b.used);
    return rv < 0 ? rv : take_digest(m, cfg, eb);
}

int model_load(struct model **ret, const struct model_load_cfg *cfg, struct errbuf *eb) {
    struct model *m = calloc(1, sizeof(*m));
    if (!m)
        return err_set(eb, ERR_NOMEM, "model");
    int rv = gguf_open(&m->gguf, cfg->path, eb);
    if (rv < 0) {
        model_free(m);
        return rv; /* its text names the file */
    }
    rv = load(m, cfg, eb);
    if (rv < 0) {
        model_free(m);
        return err_wrap(eb, rv, "'%s'", cfg->path);
    }
    *ret = m;
    return 0;
}

static void free_layer(struct model_layer *l) {
    packed_mat_free(l->wq);
    packed_mat_free(l->wk);
    packed_mat_free(l->wv);
    packed_mat_free(l->wo);
    packed_mat_free(l->w_gate);
    packed_mat_free(l->w_up);
    packed_mat_free(l->w_down);
}

void model_free(struct model *m) {
    if (!m)
        return;
    for (uint32_t i = 0; m->layers && i < m->hp.n_layer; i++)
        free_layer(&m->layers[i]);
    packed_mat_free(m->output);
    weight_mem_free(m->weights);
    rope_free(m->rope);
    free(m->layers);
    free(m->vectors);
    free(m->path);
    gguf_free(m->gguf);
    free(m);
}

bool model_file_changed(const struct model *m) {
    struct gguf_file_id now;
    if (gguf_file_id_of(m->path, &now) < 0)
        return true;
    const struct gguf_file_id *was = gguf_file_id(m->gguf);
    return now.dev != was->dev || now.ino != was->ino || now.size != was->size ||
           now.mtime_ns != was->mtime_ns || now.ctime_ns != was->ctime_ns;
}

static void add_u32(struct model_param *ret, size_t *n, const char *key, uint32_t v) {
    struct model_param *p = &ret[(*n)++];
    (void)snprintf(p->key, sizeof(p->key), "%s", key);
    (void)snprintf(p->value, sizeof(p->value), "%u", v);
}

static void add_f32(struct model_param *ret, size_t *n, const char *key, float v) {
    uint32_t bits;
    struct model_param *p = &ret[(*n)++];
    memcpy(&bits, &v, sizeof(bits));
    (void)snprintf(p->key, sizeof(p->key), "%s", key);
    (void)snprintf(p->value, sizeof(p->value), "%08x", bits);
}

size_t model_params(const struct model *m, struct model_param ret[MODEL_MAX_PARAMS]) {
    const struct model_hparams *hp = &m->hp;
    size_t n = 0;
    struct model_param *p = &ret[n++];
    (void)snprintf(p->key, sizeof(p->key), "architecture");
    (void)snprintf(p->value, sizeof(p->value), "%s", hp->arch);
    p = &ret[n++];
    (void)snprintf(p->key, sizeof(p->key), "weights");
    digest_hex(m->digest, DIGEST_BYTES, p->value);
    add_u32(ret, &n, "n_vocab", hp->n_vocab);
    add_u32(ret, &n, "n_layer", hp->n_layer);
    add_u32(ret, &n, "n_embd", hp->n_embd);
    add_u32(ret, &n, "n_ff", hp->n_ff);
    add_u32(ret, &n, "n_head", hp->n_head);
    add_u32(ret, &n, "n_head_kv", hp->n_head_kv);
    add_u32(ret, &n, "d_head", hp->d_head);
    add_u32(ret, &n, "n_rot", hp->n_rot);
    add_u32(ret, &n, "rope_neox", hp->rope_neox);
    add_f32(ret, &n, "rope_base", hp->rope_base);
    add_f32(ret, &n, "rope_scale", hp->rope_scale);
    add_f32(ret, &n, "rms_eps", hp->rms_eps);
    add_f32(ret, &n, "attn_scale", hp->attn_scale);
    add_u32(ret, &n, "window", 0); /* no sliding window is implemented */
    return n;
}
