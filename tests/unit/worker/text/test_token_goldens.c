/* Our ids of the mixed corpus against those that independent implementations gave (recorded by
 * tests/golden/tokens/make_goldens.py: Hugging Face tokenizers for BPE, sentencepiece for SPM). */
#include "worker/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tests/support/token_corpus.h"
#include "tests/support/token_vocab.h"

static const char *seed_path, *golden_dir;

/* Where a vocabulary comes from: an environment variable that names a file, or a folder and a name. */
struct golden {
    const char *name, *env, *file, *pre;
};

static void check_segment(const struct tokenizer *t, const struct tok_text *text, FILE *golden,
                          unsigned i) {
    struct tok_part part = {text->p, text->len, TOK_ORIGIN_USER};
    struct tok_ids ids = {0};
    struct errbuf eb;
    assert_int_equal(tokenizer_encode(t, &part, 1, /* add_bos= */ false, &ids, &eb), 0);
    uint8_t sum[DIGEST_BYTES];
    char hex[17], want_hex[17];
    size_t want_n;
    digest_sha256(ids.id, ids.n * sizeof(int32_t), sum);
    digest_hex(sum, 8, hex);
    if (fscanf(golden, "%zu %16s", &want_n, want_hex) != 2)
        fail_msg("segment %u is not recorded", i);
    if (ids.n != want_n || strcmp(hex, want_hex) != 0)
        fail_msg(
            "segment %u: %zu ids, recorded %zu (tests/golden/tokens/make_goldens.py shows where)",
            i, ids.n, want_n);
    tok_ids_fini(&ids);
}

/* What was cut into ids comes back as it was, but for bytes that the vocabulary cannot spell. */
static void check_round_trip(const struct tokenizer *t, const struct tok_text *text) {
    struct tok_part part = {text->p, text->len, TOK_ORIGIN_USER};
    struct tok_ids ids = {0};
    struct tok_text back = {0};
    assert_int_equal(tokenizer_encode(t, &part, 1, false, &ids, NULL), 0);
    assert_int_equal(tokenizer_decode(t, ids.id, ids.n, false, &back, NULL), 0);
    assert_int_equal(back.len, text->len);
    assert_memory_equal(back.p, text->p, text->len);
    tok_ids_fini(&ids);
    tok_text_fini(&back);
}

static void run(const struct golden *g) {
    const char *where = getenv(g->env);
    char path[1024];
    if (!where || !*where) {
        print_message("%s: %s is not set, skipped\n", g->name, g->env);
        skip();
    }
    snprintf(path, sizeof(path), g->file ? "%s/%s" : "%s", where, g->file);
    struct tokenizer *t;
    struct token_corpus *c;
    struct tok_text text = {0};
    size_t bytes = 0;
    assert_int_equal(token_vocab_load(&t, path, g->pre), 0);
    assert_int_equal(token_corpus_open(&c, seed_path), 0);
    snprintf(path, sizeof(path), "%s/%s.txt", golden_dir, g->name);
    FILE *golden = fopen(path, "r");
    assert_non_null(golden);
    for (unsigned i = 0; i < TOKEN_CORPUS_SEGMENTS; i++) {
        token_corpus_segment(c, i, &text);
        bytes += text.len;
        check_segment(t, &text, golden, i);
        if (i < 16)
            check_round_trip(t, &text);
    }
    assert_true(bytes > 1u << 20);
    fclose(golden);
    tok_text_fini(&text);
    token_corpus_close(c);
    tokenizer_free(t);
}

#define GOLDEN(id, ...)                                                                            \
    static void test_##id(void **state) {                                                          \
        (void)state;                                                                               \
        static const struct golden g = {__VA_ARGS__};                                              \
        run(&g);                                                                                   \
    }
GOLDEN(smollm, "smollm2-smollm", "INCIPIT_TEST_MODEL", NULL, NULL)
GOLDEN(gpt2, "smollm2-gpt-2", "INCIPIT_TEST_MODEL", NULL, "gpt-2")
GOLDEN(llama_bpe, "smollm2-llama-bpe", "INCIPIT_TEST_MODEL", NULL, "llama-bpe")
GOLDEN(qwen2, "smollm2-qwen2", "INCIPIT_TEST_MODEL", NULL, "qwen2")
GOLDEN(llama3, "llama3", "INCIPIT_TEST_VOCABS", "llama3.gguf", NULL)
GOLDEN(llama2, "llama2", "INCIPIT_TEST_VOCABS", "llama2.gguf", NULL)
GOLDEN(gemma, "gemma", "INCIPIT_TEST_GEMMA", NULL, NULL)

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    seed_path = argv[1];
    golden_dir = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm),    cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama_bpe), cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_llama3),    cmocka_unit_test(test_llama2),
        cmocka_unit_test(test_gemma),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
