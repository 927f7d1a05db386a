/* Byte-level BPE: pre-tokenizer, one symbol a byte, then merges by rank, ties leftmost.
 *
 * The vocabulary spells each byte as a printable character (GPT-2's table); we turn the vocabulary into
 * bytes once and never the text into characters. */
#include "common/check.h"
#include "worker/text/merge_heap.h"
#include "worker/text/tokenizer_impl.h"
#include "worker/text/unicode.h"

/* GPT-2's table: the printable bytes of Latin-1 stand for themselves, the others are numbered from
 * U+0100 on, in order. */
static bool stands_for_itself(uint32_t b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

/* Byte spelled by the character cp, or -1. */
static int byte_of_char(uint32_t cp) {
    if (cp < 0x100)
        return stands_for_itself(cp) ? (int)cp : -1;
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 0x100; b++)
        if (!stands_for_itself(b) && next++ == cp)
            return (int)b;
    return -1;
}

/* A token whose spelling is not in GPT-2's table, and a special token, stand as they are. */
static uint32_t bpe_decode_piece(const struct tokenizer *t, struct tok_str text, int32_t type,
                                 char *ret) {
    (void)t;
    uint32_t n = 0;
    if (type == TOK_TYPE_NORMAL || type == TOK_TYPE_UNUSED) {
        for (uint32_t i = 0; i < text.len;) {
            uint32_t cp;
            i += utf8_decode(text.p + i, text.len - i, &cp);
            int b = byte_of_char(cp);
            if (b < 0)
                goto as_spelled;
            ret[n++] = (char)b;
        }
        return n;
    }
as_spelled:
    memcpy(ret, text.p, text.len);
    return text.len;
}

static int32_t find_ordinary(const struct tokenizer *t, const char *p, size_t len) {
    int32_t id = vocab_map_find(&t->by_text, p, len);
    return id >= 0 && !(t->flags[id] & TOK_FLAG_SPECIAL) ? id : -1;
}

/* "left right", split at the first space at index >= 1: a spelled text holds no space of its own, but
 * the first symbol may be one in odd files. */
static int add_merge(struct tokenizer *t, struct tok_str m, uint32_t rank, struct errbuf *eb) {
    const char *space = m.len > 1 ? memchr(m.p + 1, ' ', m.len - 1) : NULL;
    if (!space)
        return err_set(eb, ERR_INVALID, "tokenizer.ggml.merges: merge %u has no space", rank);
    size_t left_len = (size_t)(space - m.p), right_len = m.len - left_len - 1;
    char joined[1024];
    if (left_len + right_len > sizeof(joined))
        return err_set(eb, ERR_INVALID, "tokenizer.ggml.merges: merge %u is %u bytes long", rank,
                       m.len);
    memcpy(joined, m.p, left_len);
    memcpy(joined + left_len, space + 1, right_len);
    int32_t left = find_ordinary(t, m.p, left_len);
    int32_t right = find_ordinary(t, space + 1, right_len);
    int32_t merged = find_ordinary(t, joined, left_len + right_len);
    /* Also what keeps a merge from ever making a control token out of a user's text. */
    if (left < 0 || right < 0 || merged < 0)
        return err_set(
            eb, ERR_INVALID,
            "tokenizer.ggml.merges: merge %u '%.*s': a part or the whole is no ordinary token",
            rank, (int)MIN(m.len, 64u), m.p);
    merge_map_put(&t->merges, left, right, rank, merged);
    return 0;
}

static void find_bytes(struct tokenizer *t) {
    for (uint32_t b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    for (uint32_t id = 0; id < t->n_tokens; id++)
        if (t->pieces[id].len == 1 && !(t->flags[id] & TOK_FLAG_SPECIAL))
            t->byte_id[(uint8_t)t->pieces[id].p[0]] = (int32_t)id;
}

static int bpe_init(struct tokenizer *t, const struct tokenizer_src *src, struct errbuf *eb) {
    if (!src->pre)
        return err_set(
            eb, ERR_UNSUPPORTED,
            "tokenizer.ggml.pre is absent: the pre-tokenizer is unknown (convert the file anew)");
    int kind = pretok_find(src->pre);
    if (kind < 0) {
        char known[256];
        pretok_list(known, sizeof(known));
        return err_set(eb, ERR_UNSUPPORTED, "pre-tokenizer '%s' (tokenizer.ggml.pre); known: %s",
                       src->pre, known);
    }
    if (src->n_merges == 0)
        return err_set(eb, ERR_INVALID, "tokenizer.ggml.merges is absent");
    if (src->add_space_prefix == 1)
        return err_set(eb, ERR_UNSUPPORTED,
                       "tokenizer.ggml.add_space_prefix = true with a BPE vocabulary");
    t->pretok = (enum pretok_kind)kind;
    t->ignore_merges = pretok_ignores_merges(t->pretok);
    if (src->add_bos < 0)
        t->add_bos = pretok_default_bos(t->pretok);
    find_bytes(t);
    int rv = merge_map_init(&t->merges, src->n_merges);
    for (uint32_t i = 0; rv == 0 && i < src->n_merges; i++)
        rv = add_merge(t, src->merges[i], i, eb);
    if (rv < 0 || !t->ignore_merges)
        return rv;
    rv = vocab_map_init(&t->ordinary, t->pieces, t->n_tokens);
    for (uint32_t id = 0; rv == 0 && id < t->n_tokens; id++)
        if (t->pieces[id].len && !(t->flags[id] & TOK_FLAG_SPECIAL))
            vocab_map_put(&t->ordinary, (int32_t)id);
    return rv;
}

/* Candidate for the symbol at left and its neighbour, if the pair has a merge. */
static int push_pair(const struct tokenizer *t, struct merge_heap *h, uint32_t left) {
    if (left == MERGE_NONE || h->syms[left].next == MERGE_NONE)
        return 0;
    const struct merge_sym *l = &h->syms[left], *r = &h->syms[l->next];
    const struct merge_entry *e = merge_map_find(&t->merges, l->id, r->id);
    if (!e)
        return 0;
    return merge_heap_push(h, (struct merge_cand){0, e->rank, left, l->len + r->len, e->merged});
}

static int add_byte_syms(const struct tokenizer *t, struct merge_heap *h, const char *p, size_t n) {
    merge_heap_clear(h);
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(uint8_t)p[i]];
        /* Some vocabularies lack a few bytes (SmolLM2's: U+0004 and other controls, private planes).
         * They go, as in the peers; the unknown token would be a control token made by a user. */
        int rv = id < 0 ? 0 : merge_heap_add_sym(h, id, (uint32_t)i, 1);
        if (rv < 0)
            return rv;
    }
    return 0;
}

static int encode_piece(const struct tokenizer *t, struct merge_heap *h, const char *p, size_t n,
                        struct tok_ids *out) {
    if (t->ignore_merges) {
        int32_t id = vocab_map_find(&t->ordinary, p, n);
        if (id >= 0)
            return tok_ids_push(out, id);
    }
    if (!tokenizer_may_fit(t, p, n, out))
        return ERR_TOOBIG;
    int rv = add_byte_syms(t, h, p, n);
    for (uint32_t i = 0; rv == 0 && i + 1 < h->n_syms; i++)
        rv = push_pair(t, h, i);
    uint32_t sym;
    while (rv == 0 && merge_heap_apply_next(h, &sym)) {
        rv = push_pair(t, h, h->syms[sym].prev);
        if (rv == 0)
            rv = push_pair(t, h, sym);
    }
    if (rv < 0 || h->n_syms == 0)
        return rv;
    for (uint32_t i = 0; rv == 0 && i != MERGE_NONE; i = h->syms[i].next)
        rv = tok_ids_push(out, h->syms[i].id);
    return rv;
}

static int bpe_encode_text(const struct tokenizer *t, const char *p, size_t n, bool after_special,
                           struct tok_ids *out) {
    (void)after_special;
    struct merge_heap h = {0};
    struct pretok s;
    pretok_init(&s, t->pretok, p, n);
    int rv = 0;
    while (rv == 0) {
        size_t at = s.pos, len = pretok_next(&s);
        if (len == 0)
            break;
        rv = encode_piece(t, &h, p + at, len, out);
    }
    merge_heap_fini(&h);
    return rv;
}

const struct tok_algo tok_algo_bpe = {
    .model = "gpt2",
    .init = bpe_init,
    .decode_piece = bpe_decode_piece,
    .encode_text = bpe_encode_text,
    .default_bos = false,
};
