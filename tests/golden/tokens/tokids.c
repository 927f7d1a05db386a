/* tokids - what the scripts beside it compare with: the corpus, and our ids of it.
 *
 *   tokids corpus SEED                 every segment: u32 little-endian length, bytes
 *   tokids golden SEED GGUF [PRE]      a line a segment: number of ids, start of their SHA-256
 *   tokids ids SEED GGUF SEGMENT [PRE] the ids of one segment, a line each */
#include "tests/support/token_corpus.h"
#include "tests/support/token_vocab.h"

static int encode(const struct tokenizer *t, const struct tok_text *text, struct tok_ids *ids) {
    struct tok_part part = {text->p, text->len, TOK_ORIGIN_USER};
    struct errbuf eb;
    ids->n = 0;
    int rv = tokenizer_encode(t, &part, 1, /* add_bos= */ false, ids, &eb);
    if (rv < 0)
        fprintf(stderr, "tokids: %s\n", eb.text);
    return rv;
}

static void print_corpus(const struct token_corpus *c) {
    struct tok_text text = {0};
    for (unsigned i = 0; i < TOKEN_CORPUS_SEGMENTS; i++) {
        token_corpus_segment(c, i, &text);
        uint32_t n = (uint32_t)text.len;
        uint8_t len[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
        fwrite(len, 1, 4, stdout);
        fwrite(text.p, 1, text.len, stdout);
    }
    tok_text_fini(&text);
}

static int print_ids(const struct token_corpus *c, const struct tokenizer *t, unsigned from,
                     unsigned to, bool digest) {
    struct tok_text text = {0};
    struct tok_ids ids = {0};
    int rv = 0;
    for (unsigned i = from; rv == 0 && i < to; i++) {
        token_corpus_segment(c, i, &text);
        rv = encode(t, &text, &ids);
        uint8_t sum[DIGEST_BYTES];
        char hex[2 * 8 + 1];
        digest_sha256(ids.id, ids.n * sizeof(int32_t), sum);
        digest_hex(sum, 8, hex);
        if (digest)
            printf("%zu %s\n", ids.n, hex);
        for (size_t k = 0; !digest && k < ids.n; k++)
            printf("%d\n", ids.id[k]);
    }
    tok_text_fini(&text);
    tok_ids_fini(&ids);
    return rv;
}

int main(int argc, char **argv) {
    struct token_corpus *c;
    struct tokenizer *t;
    if (argc < 3 || token_corpus_open(&c, argv[2]) < 0)
        return 2;
    int rv = 0;
    bool golden = strcmp(argv[1], "golden") == 0;
    if (argc == 3) {
        print_corpus(c);
    } else {
        int n_fixed = golden ? 4 : 5;
        if (argc < n_fixed ||
            token_vocab_load(&t, argv[3], argc > n_fixed ? argv[n_fixed] : NULL) < 0)
            return 2;
        unsigned from = golden ? 0 : (unsigned)strtoul(argv[4], NULL, 10);
        rv = print_ids(c, t, from, golden ? TOKEN_CORPUS_SEGMENTS : from + 1, golden);
        tokenizer_free(t);
    }
    token_corpus_close(c);
    return rv < 0;
}
