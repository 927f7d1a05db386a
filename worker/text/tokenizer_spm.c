/* SPM ("llama"): spaces become U+2581, one symbol a character, then the neighbours whose joined text is
 * the token with the highest score are joined, ties leftmost; what is no token in the end falls to its
 * bytes' tokens <0xXX>. */
#include "worker/text/merge_heap.h"
#include "worker/text/tokenizer_impl.h"
#include "worker/text/unicode.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */
#define SPACE_MARK_LEN 3

/* Value of "<0xXX>", or -1. */
static int byte_token_value(struct tok_str s) {
    uint8_t b;
    if (s.len != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>')
        return -1;
    const char hex[3] = {s.p[3], s.p[4], '\0'};
    return digest_unhex(hex, 1, &b) < 0 ? -1 : b;
}

static bool is_mark(const char *p, size_t i, size_t n) {
    return n - i >= SPACE_MARK_LEN && memcmp(p + i, SPACE_MARK, SPACE_MARK_LEN) == 0;
}

static uint32_t spm_decode_piece(const struct tokenizer *t, struct tok_str text, int32_t type,
                                 char *ret) {
    (void)t;
    if (type == TOK_TYPE_BYTE) {
        int b = byte_token_value(text);
        if (b >= 0) {
            ret[0] = (char)b;
            return 1;
        }
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < text.len;) {
        if (is_mark(text.p, i, text.len)) {
            ret[n++] = ' ';
            i += SPACE_MARK_LEN;
        } else {
            ret[n++] = text.p[i++];
        }
    }
    return n;
}

/* Whether p[at] is a space mark that stands behind something else. */
static bool starts_word(const char *p, size_t at, size_t n) {
    return is_mark(p, at, n) && !(at >= SPACE_MARK_LEN && is_mark(p, at - SPACE_MARK_LEN, n));
}

/* Where a token has a mark in the middle, text must not be cut: notes the byte before it. */
static void note_glue(struct tokenizer *t, struct tok_str s) {
    for (uint32_t i = 1; i < s.len; i++)
        if (starts_word(s.p, i, s.len)) {
            uint8_t b = (uint8_t)s.p[i - 1];
            t->glue[b / 32] |= 1u << (b % 32);
        }
}

/* End of the word at i: no token reaches over it, so what is joined on one side of it never depends on the
 * other, and words are merged one by one in the time and memory of the longest. */
static size_t word_end(const struct tokenizer *t, const char *p, size_t i, size_t n) {
    for (size_t at = i + 1; at < n; at++) {
        const char *mark = memmem(p + at, n - at, SPACE_MARK, SPACE_MARK_LEN);
        if (!mark)
            break;
        at = (size_t)(mark - p);
        uint8_t b = (uint8_t)p[at - 1];
        if (starts_word(p, at, n) && !(t->glue[b / 32] >> (b % 32) & 1))
            return at;
    }
    return n;
}

static int spm_init(struct tokenizer *t, const struct tokenizer_src *src, struct errbuf *eb) {
    if (!src->scores || !src->types)
        return err_set(eb, ERR_INVALID, "tokenizer.ggml.%s is absent",
                       src->scores ? "token_type" : "scores");
    if (src->remove_extra_whitespaces == 1)
        return err_set(eb, ERR_UNSUPPORTED, "tokenizer.ggml.remove_extra_whitespaces = true");
    t->add_space_prefix = src->add_space_prefix != 0;
    t->scores = alloc_array(t->n_tokens, sizeof(float));
    if (!t->scores)
        return ERR_NOMEM;
    memcpy(t->scores, src->scores, t->n_tokens * sizeof(float));
    for (uint32_t b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    int rv = vocab_map_init(&t->ordinary, t->texts, t->n_tokens);
    for (uint32_t id = 0; rv == 0 && id < t->n_tokens; id++) {
        int b = src->types[id] == TOK_TYPE_BYTE ? byte_token_value(t->texts[id]) : -1;
        if (b >= 0)
            t->byte_id[b] = (int32_t)id;
        /* Neither "</s>" nor "<0x41>" typed by a user may become that token. */
        else if (src->types[id] != TOK_TYPE_BYTE && !(t->flags[id] & TOK_FLAG_CONTROL)) {
            vocab_map_put(&t->ordinary, (int32_t)id);
            note_glue(t, t->texts[id]);
        }
    }
    return rv;
}

static int push_pair(const struct tokenizer *t, struct merge_heap *h, const char *p,
                     uint32_t left) {
    if (left == MERGE_NONE || h->syms[left].next == MERGE_NONE)
        return 0;
    const struct merge_sym *l = &h->syms[left];
    uint32_t len = l->len + h->syms[l->next].len;
    int32_t id = vocab_map_find(&t->ordinary, p + l->off, len);
    if (id < 0)
        return 0;
    return merge_heap_push(h, (struct merge_cand){-t->scores[id], 0, left, len, id});
}

/* A character that is no token: its bytes, each <0xXX>, else the unknown token once. */
static int push_bytes(const struct tokenizer *t, const char *p, uint32_t len, struct tok_ids *out) {
    for (uint32_t i = 0; i < len; i++) {
        int32_t id = t->byte_id[(uint8_t)p[i]];
        if (id < 0)
            return t->unk < 0 ? 0 : tok_ids_push(out, t->unk);
        int rv = tok_ids_push(out, id);
        if (rv < 0)
            return rv;
    }
    return 0;
}

static int encode_word(const struct tokenizer *t, struct merge_heap *h, const char *p, size_t n,
                       struct tok_ids *out) {
    int rv = 0;
    merge_heap_clear(h);
    for (size_t i = 0; rv == 0 && i < n;) {
        uint32_t cp;
        unsigned len = utf8_decode(p + i, n - i, &cp);
        rv = merge_heap_add_sym(h, vocab_map_find(&t->ordinary, p + i, len), (uint32_t)i, len);
        i += len;
    }
    for (uint32_t i = 0; rv == 0 && i + 1 < h->n_syms; i++)
        rv = push_pair(t, h, p, i);
    uint32_t sym;
    while (rv == 0 && merge_heap_apply_next(h, &sym)) {
        rv = push_pair(t, h, p, h->syms[sym].prev);
        if (rv == 0)
            rv = push_pair(t, h, p, sym);
    }
    for (uint32_t i = h->n_syms ? 0 : MERGE_NONE; rv == 0 && i != MERGE_NONE; i = h->syms[i].next) {
        const struct merge_sym *s = &h->syms[i];
        rv = s->id >= 0 ? tok_ids_push(out, s->id) : push_bytes(t, p + s->off, s->len, out);
    }
    return rv;
}

static int spm_encode_text(const struct tokenizer *t, const char *p, size_t n, bool after_special,
                           struct tok_ids *out) {
    struct tok_text escaped = {0};
    int rv = after_special && t->add_space_prefix
                 ? tok_text_add(&escaped, SPACE_MARK, SPACE_MARK_LEN)
                 : 0;
    for (size_t i = 0; rv == 0 && i < n;) {
        const char *space = memchr(p + i, ' ', n - i);
        size_t run = space ? (size_t)(space - p) - i : n - i;
        rv = tok_text_add(&escaped, p + i, run);
        if (rv == 0 && space)
            rv = tok_text_add(&escaped, SPACE_MARK, SPACE_MARK_LEN);
        i += run + (space ? 1 : 0);
    }
    struct merge_heap h = {0};
    if (rv == 0 && escaped.len > UINT32_MAX)
        rv = ERR_TOOBIG;
    for (size_t i = 0; rv == 0 && i < escaped.len;) {
        size_t end = word_end(t, escaped.p, i, escaped.len);
        rv = encode_word(t, &h, escaped.p + i, end - i, out);
        i = end;
    }
    merge_heap_fini(&h);
    tok_text_fini(&escaped);
    return rv;
}

const struct tok_algo tok_algo_spm = {
    .model = "llama",
    .init = spm_init,
    .decode_piece = spm_decode_piece,
    .encode_text = spm_encode_text,
    .default_bos = true,
};
