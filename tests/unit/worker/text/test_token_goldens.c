/* Our ids of the mixed corpus against those that independent implementations gave (recorded by
 * tests/golden/tokens/make_goldens.py: Hugging Face tokenizers for BPE, sentencepiece for SPM), and of
 * llama.cpp's own test texts against what it expects of its vocabularies. */
#include "worker/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tests/support/token_corpus.h"
#include "tests/support/token_vocab.h"

static const char *seed_path, *golden_dir;

/* Where a vocabulary comes from: an environment variable that names a file, or a folder and a name. */
struct golden {
    const char *name, *oracle, *env, *file, *pre;
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
    print_message("%s: %zu bytes, ids as %s gave them\n", g->name, bytes, g->oracle);
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
#define HF "Hugging Face tokenizers"
#define SENTENCEPIECE "sentencepiece"
GOLDEN(smollm, "smollm2-smollm", HF, "INCIPIT_TEST_MODEL", NULL, NULL)
GOLDEN(gpt2, "smollm2-gpt-2", HF, "INCIPIT_TEST_MODEL", NULL, "gpt-2")
GOLDEN(llama_bpe, "smollm2-llama-bpe", HF, "INCIPIT_TEST_MODEL", NULL, "llama-bpe")
GOLDEN(qwen2, "smollm2-qwen2", HF, "INCIPIT_TEST_MODEL", NULL, "qwen2")
GOLDEN(dbrx, "smollm2-dbrx", HF, "INCIPIT_TEST_MODEL", NULL, "dbrx")
GOLDEN(gpt_4o, "smollm2-gpt-4o", HF, "INCIPIT_TEST_MODEL", NULL, "gpt-4o")
GOLDEN(tekken, "smollm2-tekken", HF, "INCIPIT_TEST_MODEL", NULL, "tekken")
GOLDEN(default, "smollm2-default", HF, "INCIPIT_TEST_MODEL", NULL, "default")
GOLDEN(llama3, "llama3", HF, "INCIPIT_TEST_VOCABS", "llama3.gguf", NULL)
GOLDEN(llama2, "llama2", SENTENCEPIECE, "INCIPIT_TEST_VOCABS", "llama2.gguf", NULL)
GOLDEN(gemma, "gemma", SENTENCEPIECE, "INCIPIT_TEST_GEMMA", NULL, NULL)

/* --- llama.cpp's vocabularies: NAME.gguf, NAME.gguf.inp with the texts, NAME.gguf.out with a line of ids each --- */

static void read_all(struct tok_text *ret, const char *path) {
    FILE *f = fopen(path, "rb");
    char buf[4096];
    if (!f)
        fail_msg("%s cannot be read", path);
    for (size_t n; (n = fread(buf, 1, sizeof(buf), f)) > 0;)
        assert_int_equal(tok_text_add(ret, buf, n), 0);
    fclose(f);
}

static void check_line(const struct tokenizer *t, struct tok_part text, const char *line,
                       unsigned i) {
    struct tok_ids ids = {0};
    assert_int_equal(tokenizer_encode(t, &text, 1, /* add_bos= */ false, &ids, NULL), 0);
    char *end;
    size_t n = 0;
    for (const char *p = line;; p = end, n++) {
        long want = strtol(p, &end, 10);
        if (end == p || memchr(p, '\n', (size_t)(end - p)))
            break;
        if (n >= ids.n || ids.id[n] != want)
            fail_msg("text %u '%.*s': id %zu is not %ld", i, (int)MIN(text.len, (size_t)64), text.p,
                     n, want);
    }
    assert_int_equal(n, ids.n);
    tok_ids_fini(&ids);
}

static void check_expectations(const char *name) {
    const char *dir = getenv("INCIPIT_TEST_VOCABS");
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[1024];
    struct tokenizer *t;
    struct tok_text texts = {0}, lines = {0};
    if (!dir || !*dir) {
        print_message("%s: INCIPIT_TEST_VOCABS is not set, skipped\n", name);
        skip();
    }
    snprintf(path, sizeof(path), "%s/ggml-vocab-%s.gguf", dir, name);
    assert_int_equal(token_vocab_load(&t, path, NULL), 0);
    snprintf(path, sizeof(path), "%s/ggml-vocab-%s.gguf.inp", dir, name);
    read_all(&texts, path);
    snprintf(path, sizeof(path), "%s/ggml-vocab-%s.gguf.out", dir, name);
    read_all(&lines, path);
    unsigned n = 0;
    const char *line = lines.p;
    for (const char *p = texts.p, *end; (end = strstr(p, separator)) != NULL; n++) {
        assert_non_null(line);
        check_line(t, (struct tok_part){p, (size_t)(end - p), TOK_ORIGIN_USER}, line, n);
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
        p = end + strlen(separator);
    }
    assert_true(n > 30);
    print_message("%s: %u texts, ids as llama.cpp's expectation file has them\n", name, n);
    tok_text_fini(&texts);
    tok_text_fini(&lines);
    tokenizer_free(t);
}

static void test_llama_cpp_vocabs(void **state) {
    (void)state;
    static const char *const names[] = {"gpt-2", "llama-bpe", "llama-spm", "phi-3",
                                        "qwen2", "refact",    "starcoder", "command-r"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        check_expectations(names[i]);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    seed_path = argv[1];
    golden_dir = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm),    cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama_bpe), cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_dbrx),      cmocka_unit_test(test_gpt_4o),
        cmocka_unit_test(test_tekken),    cmocka_unit_test(test_default),
        cmocka_unit_test(test_llama3),    cmocka_unit_test(test_llama2),
        cmocka_unit_test(test_gemma),     cmocka_unit_test(test_llama_cpp_vocabs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
