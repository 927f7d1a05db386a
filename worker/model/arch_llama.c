/* arch_llama.c - metadata of architecture "llama": Llama 2 and 3, Mistral classic, SmolLM2. */
#include "worker/model/arch.h"

#include <math.h>

#define KEY_BYTES 96

static const struct model_arch archs[] = {
    {"llama", false, arch_llama_read_hparams},
};

const struct model_arch *model_arch_find(struct gguf_str name) {
    for (size_t i = 0; i < ARRAY_LEN(archs); i++)
        if (gguf_str_is(name, archs[i].name))
            return &archs[i];
    return NULL;
}

struct reader {
    const struct model_arch *arch;
    const struct gguf *g;
    struct errbuf *eb;
    char key[KEY_BYTES];
};

static const char *key_of(struct reader *r, const char *name) {
    (void)snprintf(r->key, sizeof(r->key), "%s.%s", r->arch->name, name);
    return r->key;
}

/* 1 there, 0 absent, or an error; the value must lie in [1, max]. */
static int read_size(struct reader *r, const char *name, uint32_t max, uint32_t *ret) {
    int rv = gguf_get_u32(r->g, key_of(r, name), ret, r->eb);
    if (rv > 0 && (*ret == 0 || *ret > max))
        return err_set(r->eb, ERR_INVALID, "key '%s': %u is out of range (1 to %u)", r->key, *ret,
                       max);
    return rv;
}

static int need_size(struct reader *r, const char *name, uint32_t max, uint32_t *ret) {
    int rv = read_size(r, name, max, ret);
    return rv == 0 ? err_set(r->eb, ERR_INVALID, "the file has no key '%s'", r->key) : rv;
}

/* Finite and positive. */
static int read_positive(struct reader *r, const char *name, float *ret) {
    float v;
    int rv = gguf_get_f32(r->g, key_of(r, name), &v, r->eb);
    if (rv <= 0)
        return rv;
    if (!isfinite(v) || v <= 0)
        return err_set(r->eb, ERR_INVALID, "key '%s': %g is not a positive number", r->key,
                       (double)v);
    *ret = v;
    return 1;
}

/* head_count_kv may be an array, one entry a layer; only equal entries fit one page layout. */
static int read_head_kv(struct reader *r, struct model_hparams *hp) {
    hp->n_head_kv = hp->n_head;
    const struct gguf_kv *kv = gguf_find(r->g, key_of(r, "attention.head_count_kv"));
    if (!kv || !kv->is_array)
        return read_size(r, "attention.head_count_kv", hp->n_head, &hp->n_head_kv);
    int rv = gguf_get_int_array(r->g, r->key, 0, UINT32_MAX, &kv, r->eb);
    if (rv < 0)
        return rv;
    if (kv->count != hp->n_layer)
        return err_set(r->eb, ERR_INVALID, "key '%s': %llu entries for %u layers", r->key,
                       (unsigned long long)kv->count, hp->n_layer);
    int64_t first = gguf_elem_i64(kv, 0);
    for (uint64_t i = 1; i < kv->count; i++)
        if (gguf_elem_i64(kv, i) != first)
            return err_set(r->eb, ERR_UNSUPPORTED,
                           "key '%s': layers with different numbers of KV "
                           "heads are not supported",
                           r->key);
    if (first < 1 || first > (int64_t)hp->n_head)
        return err_set(r->eb, ERR_INVALID, "key '%s': %lld KV heads", r->key, (long long)first);
    hp->n_head_kv = (uint32_t)first;
    return 1;
}

static int read_heads(struct reader *r, struct model_hparams *hp) {
    int rv = need_size(r, "attention.head_count", 4096, &hp->n_head);
    if (rv >= 0)
        rv = read_head_kv(r, hp);
    if (rv < 0)
        return rv;
    if (hp->n_head % hp->n_head_kv != 0)
        return err_set(r->eb, ERR_INVALID, "%u heads are no multiple of %u KV heads", hp->n_head,
                       hp->n_head_kv);
    hp->d_head = hp->n_embd / hp->n_head;
    uint32_t d_value = 0;
    bool has_key = (rv = read_size(r, "attention.key_length", 1024, &hp->d_head)) > 0;
    if (rv >= 0)
        rv = read_size(r, "attention.value_length", 1024, &d_value);
    if (rv < 0)
        return rv;
    if (rv == 0)
        d_value = hp->n_embd / hp->n_head;
    if (d_value != hp->d_head)
        return err_set(r->eb, ERR_UNSUPPORTED,
                       "key length %u and value length %u differ: not "
                       "supported",
                       hp->d_head, d_value);
    if (!has_key && hp->n_embd % hp->n_head != 0)
        return err_set(r->eb, ERR_INVALID, "embedding length %u is no multiple of %u heads",
                       hp->n_embd, hp->n_head);
    if (hp->d_head == 0 || hp->d_head > 1024 || hp->d_head % 2 != 0)
        return err_set(r->eb, ERR_UNSUPPORTED, "head dimension %u is not supported", hp->d_head);
    hp->attn_scale = 1.0f / sqrtf((float)hp->d_head);
    rv = read_positive(r, "attention.scale", &hp->attn_scale);
    return rv < 0 ? rv : 0;
}

static int read_rope_scaling(struct reader *r, struct model_hparams *hp) {
    struct gguf_str type = {"linear", 6};
    int rv = gguf_get_str(r->g, key_of(r, "rope.scaling.type"), &type, r->eb);
    if (rv < 0)
        return rv;
    bool none = gguf_str_is(type, "none");
    if (!none && !gguf_str_is(type, "linear"))
        return err_set(r->eb, ERR_UNSUPPORTED,
                       "key '%s': '%.*s' is not supported (none and linear "
                       "are)",
                       r->key, (int)MIN(type.len, (size_t)32), type.p);
    float factor = 1;
    rv = gguf_get_f32(r->g, key_of(r, "rope.scaling.factor"), &factor, r->eb);
    if (rv == 0) /* the name before 2023 */
        rv = gguf_get_f32(r->g, key_of(r, "rope.scale_linear"), &factor, r->eb);
    if (rv < 0)
        return rv;
    if (!isfinite(factor) || factor < 0)
        return err_set(r->eb, ERR_INVALID, "key '%s': %g is not a scaling factor", r->key,
                       (double)factor);
    hp->rope_scale = none || factor == 0 ? 1.0f : 1.0f / factor;
    return 0;
}

static int read_rope(struct reader *r, struct model_hparams *hp) {
    hp->rope_neox = r->arch->rope_neox;
    hp->rope_base = 10000;
    hp->n_rot = hp->d_head;
    int rv = read_positive(r, "rope.freq_base", &hp->rope_base);
    if (rv >= 0)
        rv = read_size(r, "rope.dimension_count", 1024, &hp->n_rot);
    if (rv < 0)
        return rv;
    if (hp->n_rot != hp->d_head)
        return err_set(r->eb, ERR_UNSUPPORTED,
                       "key '%s': %u of %u dimensions rotated; only whole "
                       "heads are supported",
                       r->key, hp->n_rot, hp->d_head);
    return read_rope_scaling(r, hp);
}

/* Keys under "llama." that are read above, or that describe and change nothing. */
static const char *const known_keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scale_linear",
    "tensor_data_layout",
};
/* Keys that mean "off" when they are zero. */
static const char *const zero_keys[] = {
    "expert_count",           "expert_used_count",       "attention.sliding_window",
    "attn_logit_softcapping", "final_logit_softcapping",
};

static bool is_zero(const struct gguf_kv *kv) {
    if (kv->is_array || kv->type == GGUF_STRING)
        return false;
    if (kv->type == GGUF_F32 || kv->type == GGUF_F64)
        return gguf_elem_f32(kv, 0) == 0;
    return gguf_elem_u64(kv, 0) == 0;
}

static bool is_listed(struct gguf_str s, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (gguf_str_is(s, list[i]))
            return true;
    return false;
}

/* What we do not know may change the output, so it is refused rather than ignored. */
static int refuse_unknown_keys(struct reader *r) {
    size_t prefix = strlen(r->arch->name) + 1;
    (void)key_of(r, "");
    for (size_t i = 0; i < gguf_n_kv(r->g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(r->g, i);
        if (kv->key.len <= prefix || memcmp(kv->key.p, r->key, prefix) != 0)
            continue;
        struct gguf_str name = {kv->key.p + prefix, kv->key.len - prefix};
        if (is_listed(name, known_keys, ARRAY_LEN(known_keys)))
            continue;
        if (is_listed(name, zero_keys, ARRAY_LEN(zero_keys)) && is_zero(kv))
            continue;
        return err_set(r->eb, ERR_UNSUPPORTED, "key '%.*s' is set; what it does is not implemented",
                       (int)MIN(kv->key.len, (size_t)80), kv->key.p);
    }
    return 0;
}

int arch_llama_read_hparams(const struct model_arch *a, const struct gguf *g,
                            struct model_hparams *ret, struct errbuf *eb) {
    struct reader r = {.arch = a, .g = g, .eb = eb};
    struct model_hparams hp = {.n_layer = 0};
    (void)snprintf(hp.arch, sizeof(hp.arch), "%s", a->name);
    int rv = refuse_unknown_keys(&r);
    if (rv >= 0)
        rv = need_size(&r, "block_count", 1024, &hp.n_layer);
    if (rv >= 0)
        rv = need_size(&r, "context_length", 1u << 24, &hp.n_ctx);
    if (rv >= 0)
        rv = need_size(&r, "embedding_length", 1u << 17, &hp.n_embd);
    if (rv >= 0)
        rv = need_size(&r, "feed_forward_length", 1u << 18, &hp.n_ff);
    if (rv >= 0)
        rv = read_heads(&r, &hp);
    if (rv >= 0)
        rv = read_rope(&r, &hp);
    if (rv < 0)
        return rv;
    rv = read_positive(&r, "attention.layer_norm_rms_epsilon", &hp.rms_eps);
    if (rv == 0)
        return err_set(eb, ERR_INVALID, "the file has no key '%s'", r.key);
    if (rv < 0)
        return rv;
    rv = read_size(&r, "vocab_size", 1u << 24, &hp.n_vocab); /* absent: token_embd says */
    if (rv < 0)
        return rv;
    *ret = hp;
    return 0;
}
