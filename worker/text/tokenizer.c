#include "worker/text/tokenizer.h"

#include <malloc.h>

#include "common/check.h"
#include "worker/text/tok_special.h"
#include "worker/text/tokenizer_impl.h"
#include "worker/text/unicode.h"

#define MAX_TOKENS_IN_VOCAB (1u << 24)
#define MAX_TOKEN_BYTES 4096u

static const struct tok_algo *const algos[] = {&tok_algo_bpe, &tok_algo_spm};

/* Tokens that end a generation by their spelling, whatever eos_token_id says: files name one end token
 * and chat models write another. */
static const char *const eog_texts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "</s>",
    "<|return|>",
    "<｜end▁of▁sentence｜>",
};

static int32_t type_of(const struct tokenizer_src *src, uint32_t id) {
    return src->types ? src->types[id] : TOK_TYPE_NORMAL;
}

static int check_src(const struct tokenizer_src *src, struct errbuf *eb) {
    if (src->n_tokens == 0 || src->n_tokens > MAX_TOKENS_IN_VOCAB)
        return err_set(eb, ERR_INVALID, "tokenizer.ggml.tokens: %u tokens", src->n_tokens);
    for (uint32_t i = 0; i < src->n_tokens; i++) {
        if (src->tokens[i].len > MAX_TOKEN_BYTES)
            return err_set(eb, ERR_INVALID, "tokenizer.ggml.tokens: token %u is %u bytes long", i,
                           src->tokens[i].len);
        int32_t type = type_of(src, i);
        if (type < 0 || type > TOK_TYPE_BYTE)
            return err_set(eb, ERR_INVALID, "tokenizer.ggml.token_type: token %u has type %d", i,
                           type);
    }
    const int32_t ids[] = {src->bos_id, src->eos_id, src->eot_id,
                           src->eom_id, src->unk_id, src->pad_id};
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        if (ids[i] < -1 || ids[i] >= (int32_t)src->n_tokens)
            return err_set(eb, ERR_INVALID, "special token id %d of %u tokens", ids[i],
                           src->n_tokens);
    if (src->add_eos == 1)
        return err_set(eb, ERR_UNSUPPORTED, "tokenizer.ggml.add_eos_token = true");
    return 0;
}

/* Copies the texts, sets the flags, decodes the pieces. */
static int copy_tokens(struct tokenizer *t, const struct tokenizer_src *src) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < src->n_tokens; i++)
        bytes += src->tokens[i].len;
    t->n_tokens = src->n_tokens;
    t->texts = alloc_array(t->n_tokens, sizeof(*t->texts));
    t->pieces = alloc_array(t->n_tokens, sizeof(*t->pieces));
    t->flags = alloc_array(t->n_tokens, sizeof(*t->flags));
    t->arena = alloc_array(2 * bytes, 1); /* a piece is never longer than its text */
    if (!t->texts || !t->pieces || !t->flags || !t->arena)
        return ERR_NOMEM;
    char *text = t->arena, *piece = t->arena + bytes;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        struct tok_str s = src->tokens[i];
        int32_t type = type_of(src, i);
        memcpy(text, s.p, s.len);
        t->texts[i] = (struct tok_str){text, s.len};
        t->pieces[i] = (struct tok_str){piece, t->algo->decode_piece(t, s, type, piece)};
        text += s.len;
        piece += t->pieces[i].len;
        t->max_piece = MAX(t->max_piece, t->pieces[i].len);
        if (type == TOK_TYPE_CONTROL || type == TOK_TYPE_UNKNOWN)
            t->flags[i] |= TOK_FLAG_CONTROL | TOK_FLAG_SPECIAL;
        else if (type == TOK_TYPE_USER_DEFINED)
            t->flags[i] |= TOK_FLAG_SPECIAL;
    }
    return 0;
}

static int index_tokens(struct tokenizer *t) {
    uint32_t n_special = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++)
        n_special += (t->flags[i] & TOK_FLAG_SPECIAL) != 0;
    if (vocab_map_init(&t->by_text, t->texts, t->n_tokens) < 0 ||
        vocab_map_init(&t->specials, t->texts, n_special) < 0)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        vocab_map_put(&t->by_text, (int32_t)i);
        if (t->flags[i] & TOK_FLAG_SPECIAL && t->texts[i].len)
            vocab_map_put(&t->specials, (int32_t)i);
    }
    return 0;
}

static int longer_first(const void *a, const void *b) {
    uint32_t la = ((const struct tok_special_group *)a)->len,
             lb = ((const struct tok_special_group *)b)->len;
    return la < lb ? 1 : la > lb ? -1 : 0;
}

/* One group for each length that special tokens have. */
static int group_specials(struct tokenizer *t) {
    t->groups = alloc_array(MAX_TOKEN_BYTES + 1, sizeof(*t->groups));
    if (!t->groups)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        if (!(t->flags[i] & TOK_FLAG_SPECIAL) || t->texts[i].len == 0)
            continue;
        uint32_t g = 0;
        while (g < t->n_groups && t->groups[g].len != t->texts[i].len)
            g++;
        if (g == t->n_groups)
            t->groups[t->n_groups++].len = t->texts[i].len;
        uint8_t b = (uint8_t)t->texts[i].p[0];
        t->groups[g].first_byte[b / 32] |= 1u << (b % 32);
    }
    qsort(t->groups, t->n_groups, sizeof(*t->groups), longer_first);
    return 0;
}

static void mark_eog(struct tokenizer *t, const struct tokenizer_src *src) {
    const int32_t ids[] = {t->eos, src->eot_id, src->eom_id};
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        if (ids[i] >= 0)
            t->flags[ids[i]] |= TOK_FLAG_EOG;
    for (size_t i = 0; i < ARRAY_LEN(eog_texts); i++) {
        int32_t id = vocab_map_find(&t->specials, eog_texts[i], strlen(eog_texts[i]));
        if (id >= 0)
            t->flags[id] |= TOK_FLAG_EOG;
    }
}

static void digest_int(struct digest *d, const char *key, int64_t v) {
    char line[64];
    int n = snprintf(line, sizeof(line), "%s=%lld\n", key, (long long)v);
    digest_update(d, line, (size_t)n);
}

static void digest_str(struct digest *d, struct tok_str s) {
    uint8_t len[4] = {(uint8_t)s.len, (uint8_t)(s.len >> 8), (uint8_t)(s.len >> 16),
                      (uint8_t)(s.len >> 24)};
    digest_update(d, len, sizeof(len));
    digest_update(d, s.p, s.len);
}

/* Lengths precede strings, so no two vocabularies give the same bytes. */
static int compute_digest(struct tokenizer *t, const struct tokenizer_src *src) {
    CLEANUP(digest_freep) struct digest *d = digest_new();
    if (!d)
        return ERR_NOMEM;
    digest_begin(d);
    digest_int(d, "incipit-tokenizer", TOKENIZER_REVISION);
    digest_str(d, (struct tok_str){src->model, (uint32_t)strlen(src->model)});
    const char *pre = src->pre ? src->pre : "";
    digest_str(d, (struct tok_str){pre, (uint32_t)strlen(pre)});
    digest_str(d, (struct tok_str){unicode_version(), (uint32_t)strlen(unicode_version())});
    digest_int(d, "bos", t->bos);
    digest_int(d, "unk", t->unk);
    digest_int(d, "add_bos", t->add_bos);
    digest_int(d, "add_space_prefix", t->add_space_prefix);
    digest_int(d, "tokens", src->n_tokens);
    for (uint32_t i = 0; i < src->n_tokens; i++) {
        uint32_t score = 0;
        if (src->scores)
            memcpy(&score, &src->scores[i], sizeof(score));
        uint8_t row[5] = {(uint8_t)type_of(src, i), (uint8_t)score, (uint8_t)(score >> 8),
                          (uint8_t)(score >> 16), (uint8_t)(score >> 24)};
        digest_update(d, row, sizeof(row));
        digest_str(d, src->tokens[i]);
    }
    digest_int(d, "merges", src->n_merges);
    for (uint32_t i = 0; i < src->n_merges; i++)
        digest_str(d, src->merges[i]);
    digest_end(d, t->digest);
    return 0;
}

static int build(struct tokenizer *t, const struct tokenizer_src *src, struct errbuf *eb) {
    bool spm = t->algo == &tok_algo_spm;
    /* SPM files may leave out what sentencepiece always has. */
    t->bos = src->bos_id < 0 && spm ? 1 : src->bos_id;
    t->eos = src->eos_id < 0 && spm ? 2 : src->eos_id;
    t->unk = src->unk_id < 0 && spm ? 0 : src->unk_id;
    if (t->bos >= (int32_t)src->n_tokens || t->eos >= (int32_t)src->n_tokens)
        return err_set(eb, ERR_INVALID,
                       "tokenizer.ggml.bos_token_id and eos_token_id are absent (%u tokens)",
                       src->n_tokens);
    t->add_bos = src->add_bos < 0 ? t->algo->default_bos : src->add_bos == 1;
    int rv = copy_tokens(t, src);
    if (rv == 0)
        rv = index_tokens(t);
    if (rv == 0)
        rv = group_specials(t);
    if (rv == 0)
        rv = t->algo->init(t, src, eb);
    if (rv < 0)
        return rv;
    if (t->add_bos && t->bos < 0)
        return err_set(eb, ERR_INVALID,
                       "tokenizer.ggml.add_bos_token is true and bos_token_id is absent");
    mark_eog(t, src);
    return compute_digest(t, src);
}

int tokenizer_new(struct tokenizer **ret, const struct tokenizer_src *src, struct errbuf *eb) {
    const struct tok_algo *algo = NULL;
    for (size_t i = 0; i < ARRAY_LEN(algos) && src->model; i++)
        if (strcmp(algos[i]->model, src->model) == 0)
            algo = algos[i];
    if (!algo)
        return err_set(eb, ERR_UNSUPPORTED,
                       "tokenizer.ggml.model '%s'; known: gpt2 (BPE), llama (SPM)",
                       src->model ? src->model : "(absent)");
    int rv = check_src(src, eb);
    if (rv < 0)
        return rv;
    struct tokenizer *t = calloc(1, sizeof(*t));
    if (!t)
        return err_set(eb, ERR_NOMEM, "tokenizer");
    t->algo = algo;
    rv = build(t, src, eb);
    if (rv < 0) {
        if (rv == ERR_NOMEM)
            err_set(eb, rv, "tokenizer of %u tokens", src->n_tokens);
        tokenizer_free(t);
        return rv;
    }
    *ret = t;
    return 0;
}

void tokenizer_free(struct tokenizer *t) {
    if (!t)
        return;
    vocab_map_fini(&t->by_text);
    vocab_map_fini(&t->specials);
    vocab_map_fini(&t->ordinary);
    merge_map_fini(&t->merges);
    free(t->groups);
    free(t->scores);
    free(t->texts);
    free(t->pieces);
    free(t->flags);
    free(t->arena);
    free(t);
}

bool tokenizer_may_fit(const struct tokenizer *t, const char *p, size_t n,
                       const struct tok_ids *out) {
    size_t left = out->max - MIN(out->n, out->max), longest = MAX(t->max_piece, (size_t)4),
           known = 0;
    if (!out->max || n / longest <= left)
        return true;
    if (t->scores && t->unk >= 0)
        return false; /* SPM: each character gives something */
    for (size_t i = 0; i < n; i++)
        known += t->byte_id[(uint8_t)p[i]] >= 0; /* a byte that is in no token gives none */
    return known / longest <= left;
}

static int encode_frags(const struct tokenizer *t, const char *text, const struct tok_frags *frags,
                        bool add_bos, struct tok_ids *out) {
    bool has_bos = frags->n && frags->v[0].id >= 0 && frags->v[0].id == t->bos;
    int rv = add_bos && t->add_bos && !has_bos ? tok_ids_push(out, t->bos) : 0;
    bool after_special = true;
    for (size_t i = 0; rv == 0 && i < frags->n; i++) {
        const struct tok_frag *f = &frags->v[i];
        if (f->id >= 0)
            rv = tok_ids_push(out, f->id);
        else if (!tokenizer_may_fit(t, text + f->off, f->len, out))
            rv = ERR_TOOBIG;
        else
            rv = t->algo->encode_text(t, text + f->off, f->len, after_special, out);
        after_special = f->id >= 0;
    }
    return rv;
}

int tokenizer_encode(const struct tokenizer *t, const struct tok_part *parts, size_t n_parts,
                     bool add_bos, struct tok_ids *out, struct errbuf *eb) {
    struct tok_text joined = {0};
    struct tok_frags frags = {0};
    size_t *part_end = alloc_array(n_parts, sizeof(*part_end));
    int rv = part_end ? 0 : ERR_NOMEM;
    for (size_t i = 0; rv == 0 && i < n_parts; i++) {
        rv = tok_text_add(&joined, parts[i].p, parts[i].len);
        part_end[i] = joined.len;
    }
    if (rv == 0 && joined.len > UINT32_MAX)
        rv = ERR_TOOBIG;
    if (rv == 0)
        rv = tok_special_split(t, joined.p, joined.len, parts, part_end, n_parts, &frags);
    if (rv == 0)
        rv = encode_frags(t, joined.p, &frags, add_bos, out);
    tok_frags_fini(&frags);
    tok_text_fini(&joined);
    free(part_end);
    return rv < 0 ? err_set(eb, rv, "tokenize: %s", err_text(rv)) : 0;
}

static bool has_id(const struct tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->n_tokens;
}

struct tok_str tokenizer_piece(const struct tokenizer *t, int32_t id) {
    return has_id(t, id) ? t->pieces[id] : (struct tok_str){"", 0};
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool with_control,
                     struct tok_text *out, struct errbuf *eb) {
    bool strip = t->add_space_prefix;
    int rv = tok_text_add(out, "", 0);
    for (size_t i = 0; rv == 0 && i < n; i++) {
        if (!has_id(t, ids[i]))
            return err_set(eb, ERR_INVALID, "token id %d is outside the vocabulary of %u", ids[i],
                           t->n_tokens);
        if (t->flags[ids[i]] & TOK_FLAG_CONTROL) {
            if (with_control)
                rv = tok_text_add(out, t->pieces[ids[i]].p, t->pieces[ids[i]].len);
            continue;
        }
        struct tok_str s = t->pieces[ids[i]];
        if (strip && s.len && s.p[0] == ' ') {
            s.p++;
            s.len--;
        }
        strip = false;
        rv = tok_text_add(out, s.p, s.len);
    }
    return rv < 0 ? err_set(eb, rv, "detokenize %zu ids", n) : 0;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *p, size_t len) {
    return vocab_map_find(&t->by_text, p, len);
}

bool tokenizer_is_eog(const struct tokenizer *t, int32_t id) {
    return has_id(t, id) && (t->flags[id] & TOK_FLAG_EOG);
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id) {
    return has_id(t, id) && (t->flags[id] & TOK_FLAG_CONTROL);
}

uint32_t tokenizer_n_tokens(const struct tokenizer *t) {
    return t->n_tokens;
}

int32_t tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t) {
    return t->add_bos;
}

size_t tokenizer_max_piece(const struct tokenizer *t) {
    return t->max_piece;
}

size_t tokenizer_bytes(const struct tokenizer *t) {
    const void *const parts[] = {
        t->arena,          t->texts,          t->pieces,       t->flags,  t->by_text.slots,
        t->specials.slots, t->ordinary.slots, t->merges.slots, t->groups, t->scores};
    size_t bytes = sizeof(*t);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        bytes += malloc_usable_size((void *)(uintptr_t)parts[i]);
    return bytes;
}

void tokenizer_digest(const struct tokenizer *t, uint8_t ret[DIGEST_BYTES]) {
    memcpy(ret, t->digest, DIGEST_BYTES);
}
