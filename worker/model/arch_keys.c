/* arch_keys.c - a file's metadata keys, as far as its architecture's row reads them. */
#include "worker/model/arch.h"

#include <math.h>

#include "worker/kernels/experts.h"

#define KEY_BYTES 96

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
    const bool of_embd = r->arch->embd_scaled_layers == hp->n_layer;
    hp->attn_scale = 1.0f / sqrtf((float)(of_embd ? hp->n_embd / hp->n_head : hp->d_head));
    rv = read_positive(r, "attention.scale", &hp->attn_scale);
    return rv < 0 ? rv : 0;
}

/* rope.scaling.factor as an angle multiplier. */
static int read_rope_factor(struct reader *r, float *ret) {
    float factor = 1;
    int rv = gguf_get_f32(r->g, key_of(r, "rope.scaling.factor"), &factor, r->eb);
    if (rv == 0) /* the name before 2023 */
        rv = gguf_get_f32(r->g, key_of(r, "rope.scale_linear"), &factor, r->eb);
    if (rv < 0)
        return rv;
    if (!isfinite(factor) || factor < 0)
        return err_set(r->eb, ERR_INVALID, "key '%s': %g is not a scaling factor", r->key,
                       (double)factor);
    *ret = factor == 0 ? 1.0f : 1.0f / factor;
    return 0;
}

static int read_yarn(struct reader *r, struct model_hparams *hp, struct model_rope *rope) {
    float ext = 1;
    rope->yarn_orig_ctx = hp->n_ctx;
    rope->yarn_between = r->arch->yarn_between;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    int rv = read_size(r, "rope.scaling.original_context_length", 1u << 24, &rope->yarn_orig_ctx);
    if (rv >= 0)
        rv = read_positive(r, "rope.scaling.yarn_beta_fast", &rope->beta_fast);
    if (rv >= 0)
        rv = read_positive(r, "rope.scaling.yarn_beta_slow", &rope->beta_slow);
    if (rv >= 0)
        rv = read_positive(r, "rope.scaling.yarn_attn_factor", &rope->magnitude);
    if (rv >= 0)
        rv = read_positive(r, "rope.scaling.yarn_ext_factor", &ext);
    if (rv >= 0 && ext != 1)
        return err_set(r->eb, ERR_UNSUPPORTED, "key '%s': %g is not supported (1 is)", r->key,
                       (double)ext);
    return rv < 0 ? rv : 0;
}

/* The side is chosen once, so that no K of one side ever meets one of the other. */
static int read_longrope(struct reader *r, struct model_hparams *hp, uint32_t max_ctx) {
    uint32_t orig = 0;
    int rv = need_size(r, "rope.scaling.original_context_length", 1u << 24, &orig);
    hp->longrope = true;
    hp->longrope_long = (max_ctx ? MIN(max_ctx, hp->n_ctx) : hp->n_ctx) > orig;
    return rv < 0 ? rv : 0;
}

static int read_rope_scaling(struct reader *r, struct model_hparams *hp, uint32_t max_ctx) {
    struct model_rope *rope = &hp->rope[0];
    struct gguf_str type = {"linear", 6};
    int rv = gguf_get_str(r->g, key_of(r, "rope.scaling.type"), &type, r->eb);
    if (rv < 0)
        return rv;
    const bool longrope = r->arch->keys & KEYS_LONGROPE;
    const bool none = gguf_str_is(type, "none"), linear = gguf_str_is(type, "linear"),
               yarn = gguf_str_is(type, "yarn"), is_long = gguf_str_is(type, "longrope");
    if (!none && !linear && !yarn && !(is_long && longrope))
        return err_set(r->eb, ERR_UNSUPPORTED,
                       "key '%s': '%.*s' is not supported (none, linear, yarn%s are)", r->key,
                       (int)MIN(type.len, (size_t)32), type.p, longrope ? ", longrope" : "");
    rope->scale = rope->magnitude = 1;
    if (none)
        return 0;
    rv = read_positive(r, "rope.scaling.attn_factor", &rope->magnitude);
    if (rv >= 0 && !is_long)
        rv = read_rope_factor(r, &rope->scale);
    if (rv >= 0 && yarn)
        rv = read_yarn(r, hp, rope);
    /* Files of longrope do not always say so: the tensors do. */
    if (rv >= 0 && longrope && (is_long || gguf_find_tensor(r->g, "rope_factors_long.weight")))
        rv = read_longrope(r, hp, max_ctx);
    return rv < 0 ? rv : 0;
}

static int read_rope(struct reader *r, struct model_hparams *hp, uint32_t max_ctx) {
    hp->rope_neox = r->arch->rope_neox;
    hp->rope[0].base = 10000;
    hp->n_rot = hp->d_head;
    hp->n_rope = 1;
    int rv = read_positive(r, "rope.freq_base", &hp->rope[0].base);
    if (rv >= 0)
        rv = read_size(r, "rope.dimension_count", 1024, &hp->n_rot);
    if (rv < 0)
        return rv;
    if (hp->n_rot > hp->d_head || hp->n_rot % 2 || (hp->n_rot < hp->d_head && !r->arch->rope_part))
        return err_set(r->eb, ERR_UNSUPPORTED,
                       "key '%s': %u of %u dimensions rotated; only %s supported", r->key,
                       hp->n_rot, hp->d_head,
                       r->arch->rope_part ? "an even part of a head is" : "whole heads are");
    rv = read_rope_scaling(r, hp, max_ctx);
    if (rv < 0 || !(r->arch->keys & KEYS_WINDOW) || r->arch->local_rope_base == 0)
        return rv;
    hp->n_rope = 2;
    hp->rope[1] = (struct model_rope){.base = r->arch->local_rope_base, .scale = 1, .magnitude = 1};
    rv = read_positive(r, "rope.freq_base_swa", &hp->rope[1].base);
    return rv < 0 ? rv : 0;
}

static bool sees_all(uint32_t i, uint32_t period) {
    return period && i % period == period - 1;
}

/* A period, or one entry a layer that says whether it has the window. */
static int read_window_pattern(struct reader *r, struct model_hparams *hp, uint32_t window) {
    uint32_t period = r->arch->window_period;
    const struct gguf_kv *kv = gguf_find(r->g, key_of(r, "attention.sliding_window_pattern"));
    const bool is_array = kv && kv->is_array;
    if (is_array &&
        (kv->count != hp->n_layer || (kv->type != GGUF_BOOL && !gguf_is_integer(kv->type))))
        return err_set(r->eb, ERR_INVALID, "key '%s': not one flag for each of %u layers", r->key,
                       hp->n_layer);
    if (kv && !is_array) {
        int rv = gguf_get_u32(r->g, r->key, &period, r->eb);
        if (rv < 0)
            return rv;
    }
    for (uint32_t i = 0; i < hp->n_layer; i++)
        hp->layer[i].window = (is_array ? !gguf_elem_u64(kv, i) : sees_all(i, period)) ? 0 : window;
    return 0;
}

/* Windows and RoPE groups of the layers. A window that no context outgrows is none. */
static int read_layers(struct reader *r, struct model_hparams *hp) {
    uint32_t window = 0;
    int rv = 0;
    if (r->arch->keys & KEYS_WINDOW)
        rv = gguf_get_u32(r->g, key_of(r, "attention.sliding_window"), &window, r->eb);
    if (rv >= 0 && (r->arch->keys & KEYS_WINDOW))
        rv = read_window_pattern(r, hp, window);
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        const bool local = hp->layer[i].window != 0;
        hp->layer[i].rope = sees_all(i, r->arch->rope_period) ? -1 : local && hp->n_rope > 1;
        if (window >= hp->n_ctx)
            hp->layer[i].window = 0;
    }
    return rv < 0 ? rv : 0;
}

/* 0: off. */
static int read_softcap(struct reader *r, const char *name, float *ret) {
    int rv = gguf_get_f32(r->g, key_of(r, name), ret, r->eb);
    if (rv > 0 && (!isfinite(*ret) || *ret < 0))
        return err_set(r->eb, ERR_INVALID, "key '%s': %g is not a cap", r->key, (double)*ret);
    return rv;
}

static int read_factors(struct reader *r, struct model_hparams *hp) {
    const struct model_arch *a = r->arch;
    float logit_divisor = 1;
    hp->embd_scale = a->embd_sqrt ? sqrtf((float)hp->n_embd) : 1.0f;
    hp->residual_scale = 1;
    int rv = 0;
    if (a->keys & KEYS_SCALES) {
        rv = read_positive(r, "embedding_scale", &hp->embd_scale);
        if (rv >= 0)
            rv = read_positive(r, "residual_scale", &hp->residual_scale);
        if (rv >= 0)
            rv = read_positive(r, "logit_scale", &logit_divisor);
    }
    hp->logit_scale = 1.0f / logit_divisor;
    hp->attn_softcap = a->attn_softcap;
    hp->logit_softcap = a->logit_softcap;
    if (rv >= 0 && (a->keys & KEYS_SOFTCAP)) {
        rv = read_softcap(r, "attn_logit_softcapping", &hp->attn_softcap);
        if (rv >= 0)
            rv = read_softcap(r, "final_logit_softcapping", &hp->logit_softcap);
    }
    return rv < 0 ? rv : 0;
}

/* Keys that are read above, or that describe and change nothing; and the group that a row must read. */
static const struct {
    const char *name;
    uint8_t group; /* 0: every row */
} known_keys[] = {
    {"block_count", 0},
    {"context_length", 0},
    {"embedding_length", 0},
    {"feed_forward_length", 0},
    {"vocab_size", 0},
    {"attention.head_count", 0},
    {"attention.head_count_kv", 0},
    {"attention.key_length", 0},
    {"attention.value_length", 0},
    {"attention.layer_norm_rms_epsilon", 0},
    {"attention.scale", 0},
    {"rope.dimension_count", 0},
    {"rope.freq_base", 0},
    {"rope.scaling.type", 0},
    {"rope.scaling.factor", 0},
    {"rope.scaling.original_context_length", 0},
    {"rope.scaling.finetuned", 0},
    {"rope.scaling.attn_factor", 0},
    {"rope.scaling.yarn_ext_factor", 0},
    {"rope.scaling.yarn_attn_factor", 0},
    {"rope.scaling.yarn_beta_fast", 0},
    {"rope.scaling.yarn_beta_slow", 0},
    {"rope.scale_linear", 0},
    {"tensor_data_layout", 0},
    {"attention.sliding_window", KEYS_WINDOW},
    {"attention.sliding_window_pattern", KEYS_WINDOW},
    {"rope.freq_base_swa", KEYS_WINDOW},
    {"attn_logit_softcapping", KEYS_SOFTCAP},
    {"final_logit_softcapping", KEYS_SOFTCAP},
    {"expert_count", KEYS_EXPERTS},
    {"expert_used_count", KEYS_EXPERTS},
    {"expert_feed_forward_length", KEYS_EXPERTS},
    {"embedding_scale", KEYS_SCALES},
    {"residual_scale", KEYS_SCALES},
    {"logit_scale", KEYS_SCALES},
};
/* Keys that mean "off" when they are zero, for a row that does not read them. */
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

static bool is_read(const struct model_arch *a, struct gguf_str s) {
    for (size_t i = 0; i < ARRAY_LEN(known_keys); i++)
        if (gguf_str_is(s, known_keys[i].name))
            return !known_keys[i].group || (a->keys & known_keys[i].group);
    return false;
}

static bool is_off(const struct gguf_kv *kv, struct gguf_str s) {
    for (size_t i = 0; i < ARRAY_LEN(zero_keys); i++)
        if (gguf_str_is(s, zero_keys[i]))
            return is_zero(kv);
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
        if (is_read(r->arch, name) || is_off(kv, name))
            continue;
        return err_set(r->eb, ERR_UNSUPPORTED,
                       "key '%.*s' asks for what this worker does not compute",
                       (int)MIN(kv->key.len, (size_t)80), kv->key.p);
    }
    return 0;
}

static void take_row(const struct model_arch *a, struct model_hparams *hp) {
    (void)snprintf(hp->arch, sizeof(hp->arch), "%s", a->name);
    hp->act = a->act;
    hp->norms = a->norms;
    hp->qk_norm = a->qk_norm;
    hp->sinks = a->sinks;
}

static int read_experts(struct reader *r, struct model_hparams *hp) {
    int rv = gguf_get_u32(r->g, key_of(r, "expert_count"), &hp->n_expert, r->eb);
    if (rv < 0 || (hp->n_expert == 0 && !r->arch->experts))
        return rv < 0 ? rv : 0;
    rv = need_size(r, "expert_count", 1024, &hp->n_expert);
    if (rv >= 0)
        rv = need_size(r, "expert_used_count", MIN(hp->n_expert, (uint32_t)EXPERTS_MAX_USED),
                       &hp->n_expert_used);
    if (rv >= 0)
        rv = read_size(r, "expert_feed_forward_length", 1u << 18, &hp->n_ff);
    return rv < 0 ? rv : 0;
}

static int read_sizes(struct reader *r, struct model_hparams *hp) {
    int rv = need_size(r, "block_count", KV_MAX_RANGES, &hp->n_layer);
    if (rv >= 0)
        rv = need_size(r, "context_length", 1u << 24, &hp->n_ctx);
    if (rv >= 0)
        rv = need_size(r, "embedding_length", 1u << 17, &hp->n_embd);
    if (rv >= 0)
        rv = need_size(r, "feed_forward_length", 1u << 18, &hp->n_ff);
    if (rv >= 0 && (r->arch->keys & KEYS_EXPERTS))
        rv = read_experts(r, hp);
    if (rv >= 0)
        rv = read_heads(r, hp);
    if (rv < 0)
        return rv;
    rv = read_size(r, "vocab_size", 1u << 24, &hp->n_vocab); /* absent: token_embd says */
    return rv < 0 ? rv : 0;
}

int model_arch_read(const struct model_arch *a, const struct gguf *g, uint32_t max_ctx,
                    struct model_hparams *ret, struct errbuf *eb) {
    struct reader r = {.arch = a, .g = g, .eb = eb};
    struct model_hparams hp = {.n_layer = 0};
    take_row(a, &hp);
    int rv = refuse_unknown_keys(&r);
    if (rv >= 0)
        rv = read_sizes(&r, &hp);
    if (rv >= 0)
        rv = read_rope(&r, &hp, max_ctx);
    if (rv >= 0)
        rv = read_layers(&r, &hp);
    if (rv >= 0)
        rv = read_factors(&r, &hp);
    if (rv < 0)
        return rv;
    rv = read_positive(&r, "attention.layer_norm_rms_epsilon", &hp.rms_eps);
    if (rv == 0)
        return err_set(eb, ERR_INVALID, "the file has no key '%s'", r.key);
    if (rv < 0)
        return rv;
    *ret = hp;
    return 0;
}
