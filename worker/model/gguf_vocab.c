#include "worker/model/gguf_vocab.h"

/* Largest vocabulary known has 262,144 entries; ids are int32. */
#define MAX_VOCAB (1u << 24)
#define KEY(name) "tokenizer.ggml." name

static char *copy_str(struct gguf_str s) {
    return strndup(s.p, s.len); /* stops at an embedded NUL, which then names no known tokenizer */
}

static int read_name(const struct gguf *g, const char *key, char **ret, struct errbuf *eb) {
    struct gguf_str s;
    int rv = gguf_get_str(g, key, &s, eb);
    if (rv <= 0)
        return rv;
    *ret = copy_str(s);
    return *ret ? 1 : err_set(eb, ERR_NOMEM, "%s", key);
}

static int read_strings(const struct gguf *g, const char *key, struct tok_str **ret,
                        uint32_t *ret_n, struct errbuf *eb) {
    const struct gguf_kv *kv;
    int rv = gguf_get_array(g, key, GGUF_STRING, &kv, eb);
    if (rv <= 0)
        return rv;
    if (kv->count > MAX_VOCAB)
        return err_set(eb, ERR_TOOBIG, "key '%s': %llu entries", key,
                       (unsigned long long)kv->count);
    struct tok_str *v = alloc_array((size_t)kv->count, sizeof(*v));
    if (!v)
        return err_set(eb, ERR_NOMEM, "%s", key);
    struct gguf_str_iter it = {.kv = kv};
    struct gguf_str s;
    for (size_t i = 0; gguf_str_next(&it, &s); i++)
        v[i] = (struct tok_str){s.p, (uint32_t)s.len}; /* the loader's limit is 2^30 */
    *ret = v;
    *ret_n = (uint32_t)kv->count;
    return 1;
}

/* The array must have one entry a token. */
static int check_len(const struct gguf_kv *kv, uint32_t n, const char *key, struct errbuf *eb) {
    if (kv->count == n)
        return 0;
    return err_set(eb, ERR_INVALID, "key '%s' has %llu entries for %u tokens", key,
                   (unsigned long long)kv->count, n);
}

static int read_scores(struct gguf_vocab *v, const struct gguf *g, struct errbuf *eb) {
    const struct gguf_kv *kv;
    int rv = gguf_get_array(g, KEY("scores"), GGUF_F32, &kv, eb);
    if (rv > 0)
        rv = check_len(kv, v->src.n_tokens, KEY("scores"), eb) < 0 ? ERR_INVALID : 1;
    if (rv <= 0)
        return rv;
    v->scores = alloc_array((size_t)kv->count, sizeof(*v->scores));
    if (!v->scores)
        return err_set(eb, ERR_NOMEM, KEY("scores"));
    for (uint64_t i = 0; i < kv->count; i++)
        v->scores[i] = gguf_elem_f32(kv, i);
    v->src.scores = v->scores;
    return 1;
}

static int read_types(struct gguf_vocab *v, const struct gguf *g, struct errbuf *eb) {
    const char *key = KEY("token_type");
    const struct gguf_kv *kv;
    int rv = gguf_get_int_array(g, key, INT32_MIN, INT32_MAX, &kv, eb);
    if (rv <= 0)
        return rv;
    rv = check_len(kv, v->src.n_tokens, key, eb);
    if (rv < 0)
        return rv;
    v->types = alloc_array((size_t)kv->count, sizeof(*v->types));
    if (!v->types)
        return err_set(eb, ERR_NOMEM, "%s", key);
    for (uint64_t i = 0; i < kv->count; i++)
        v->types[i] = (int32_t)gguf_elem_i64(kv, i);
    v->src.types = v->types;
    return 1;
}

static int read_ids(struct tokenizer_src *s, const struct gguf *g, struct errbuf *eb) {
    const struct {
        const char *key;
        int32_t *ret;
    } ids[] = {
        {KEY("bos_token_id"), &s->bos_id},     {KEY("eos_token_id"), &s->eos_id},
        {KEY("eot_token_id"), &s->eot_id},     {KEY("eom_token_id"), &s->eom_id},
        {KEY("unknown_token_id"), &s->unk_id}, {KEY("padding_token_id"), &s->pad_id},
    };
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        const struct gguf_kv *kv = gguf_find(g, ids[i].key);
        if (!kv)
            continue;
        if (kv->is_array || !gguf_is_integer(kv->type))
            return err_set(eb, ERR_INVALID, "key '%s' is not an integer", ids[i].key);
        int64_t id = gguf_elem_i64(kv, 0);
        if (id == -1 || id == UINT32_MAX) /* converters write either for "none" */
            continue;
        if (id < 0 || id >= (int64_t)s->n_tokens)
            return err_set(eb, ERR_INVALID, "key '%s': id %lld of %u tokens", ids[i].key,
                           (long long)id, s->n_tokens);
        *ids[i].ret = (int32_t)id;
    }
    return 0;
}

static int read_flags(struct tokenizer_src *s, const struct gguf *g, struct errbuf *eb) {
    const struct {
        const char *key;
        int8_t *ret;
    } flags[] = {
        {KEY("add_bos_token"), &s->add_bos},
        {KEY("add_eos_token"), &s->add_eos},
        {KEY("add_space_prefix"), &s->add_space_prefix},
        {KEY("remove_extra_whitespaces"), &s->remove_extra_whitespaces},
    };
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        bool on;
        int rv = gguf_get_bool(g, flags[i].key, &on, eb);
        if (rv < 0)
            return rv;
        if (rv > 0)
            *flags[i].ret = on;
    }
    return 0;
}

static int read_vocab(struct gguf_vocab *v, const struct gguf *g, struct errbuf *eb) {
    struct tokenizer_src *s = &v->src;
    int rv = read_name(g, KEY("model"), &v->model, eb);
    if (rv > 0)
        rv = read_strings(g, KEY("tokens"), &v->tokens, &s->n_tokens, eb);
    if (rv == 0)
        return err_set(eb, ERR_INVALID, "the file has no %s",
                       v->model ? KEY("tokens") : KEY("model"));
    if (rv < 0)
        return rv;
    rv = read_name(g, KEY("pre"), &v->pre, eb);
    if (rv >= 0)
        rv = read_strings(g, KEY("merges"), &v->merges, &s->n_merges, eb);
    if (rv >= 0)
        rv = read_scores(v, g, eb);
    if (rv >= 0)
        rv = read_types(v, g, eb);
    if (rv >= 0)
        rv = read_ids(s, g, eb);
    if (rv >= 0)
        rv = read_flags(s, g, eb);
    if (rv >= 0)
        rv = gguf_get_str(g, "tokenizer.chat_template", &v->chat_template, eb);
    s->model = v->model;
    s->pre = v->pre;
    s->tokens = v->tokens;
    s->merges = v->merges;
    return rv < 0 ? rv : 0;
}

int gguf_vocab_read(struct gguf_vocab *ret, const struct gguf *g, struct errbuf *eb) {
    struct gguf_vocab v = {.src = TOKENIZER_SRC_EMPTY, .chat_template = {"", 0}};
    int rv = read_vocab(&v, g, eb);
    if (rv < 0) {
        gguf_vocab_fini(&v);
        return rv;
    }
    *ret = v;
    return 0;
}

void gguf_vocab_fini(struct gguf_vocab *v) {
    free(v->model);
    free(v->pre);
    free(v->tokens);
    free(v->merges);
    free(v->scores);
    free(v->types);
    *v = (struct gguf_vocab){.src = TOKENIZER_SRC_EMPTY};
}
