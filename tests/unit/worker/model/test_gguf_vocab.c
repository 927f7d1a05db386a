/* test_gguf_vocab.c - tokenizer keys of a file as plain data, and what the tokenizer makes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/tiny_model.h"
#include "tools/dev/gguf_write.h"
#include "worker/kernels/quant.h"
#include "worker/model/gguf_vocab.h"
#include "worker/text/chat_template.h"

/* A file with these keys only; reads it and expects the code and words of a refusal. */
static void refused(struct gguf_write *w, int want, const char *words) {
    const char *path = "/tmp/test-gguf-vocab.gguf";
    struct gguf *g = NULL;
    struct gguf_vocab v;
    struct errbuf eb = {.text = ""};
    assert_int_equal(gguf_write_open(w, path), 0);
    assert_int_equal(gguf_write_close(w), 0);
    gguf_write_fini(w);
    assert_int_equal(gguf_open(&g, path, &eb), 0);
    (void)remove(path);
    assert_int_equal(gguf_vocab_read(&v, g, &eb), want);
    if (!strstr(eb.text, words))
        print_message("'%s' lacks '%s'\n", eb.text, words);
    assert_non_null(strstr(eb.text, words));
    gguf_free(g);
}

static const char *const tokens[] = {"a", "b"};

static struct gguf_write two_tokens(void) {
    struct gguf_write w;
    gguf_write_init(&w);
    gguf_write_str(&w, "tokenizer.ggml.model", "gpt2");
    gguf_write_str_array(&w, "tokenizer.ggml.tokens", tokens, 2);
    return w;
}

static void test_missing_keys_named(void **state) {
    (void)state;
    struct gguf_write w;
    gguf_write_init(&w);
    refused(&w, ERR_INVALID, "tokenizer.ggml.model");
    gguf_write_init(&w);
    gguf_write_str(&w, "tokenizer.ggml.model", "gpt2");
    refused(&w, ERR_INVALID, "tokenizer.ggml.tokens");
}

static void test_misfits_named(void **state) {
    (void)state;
    struct gguf_write w = two_tokens();
    gguf_write_i32_array(&w, "tokenizer.ggml.token_type", (const int32_t[]){1, 1, 1}, 3);
    refused(&w, ERR_INVALID, "tokenizer.ggml.token_type");
    w = two_tokens();
    gguf_write_f32_array(&w, "tokenizer.ggml.scores", (const float[]){0}, 1);
    refused(&w, ERR_INVALID, "tokenizer.ggml.scores");
    w = two_tokens();
    gguf_write_u32(&w, "tokenizer.ggml.eos_token_id", 2);
    refused(&w, ERR_INVALID, "tokenizer.ggml.eos_token_id");
    w = two_tokens();
    gguf_write_u32(&w, "tokenizer.ggml.add_bos_token", 2);
    refused(&w, ERR_INVALID, "tokenizer.ggml.add_bos_token");
}

/* A key of any type and bytes. */
static void put_kv(struct gguf_write *w, const char *key, enum gguf_type type, uint64_t count,
                   bool is_array, const void *data, size_t bytes) {
    const struct gguf_kv kv = {.key = {key, strlen(key)},
                               .type = type,
                               .is_array = is_array,
                               .count = count,
                               .data = data,
                               .bytes = bytes};
    gguf_write_kv(w, &kv);
}

/* F21: token_type as 64-bit integers, scores as doubles and bos_token_id -1 in a signed type were refused for
 * their width. Right: a value that fits is taken; one that does not is refused by its key. */
static void test_values_that_fit_are_taken_whatever_their_type(void **state) {
    (void)state;
    const char *path = "/tmp/test-gguf-vocab-fit.gguf";
    const int64_t types[] = {1, 3}, wide[] = {1, INT64_C(1) << 40};
    const double scores[] = {-1.5, 0};
    const int32_t none = -1, bad = -2;
    const uint8_t one = 1;
    struct gguf_write w = two_tokens();
    struct gguf *g = NULL;
    struct gguf_vocab v;
    struct errbuf eb = {.text = ""};
    put_kv(&w, "tokenizer.ggml.token_type", GGUF_I64, 2, true, types, sizeof(types));
    put_kv(&w, "tokenizer.ggml.scores", GGUF_F64, 2, true, scores, sizeof(scores));
    put_kv(&w, "tokenizer.ggml.bos_token_id", GGUF_I32, 1, false, &none, sizeof(none));
    put_kv(&w, "tokenizer.ggml.eos_token_id", GGUF_U8, 1, false, &one, sizeof(one));
    put_kv(&w, "tokenizer.ggml.add_bos_token", GGUF_U8, 1, false, &one, sizeof(one));
    assert_int_equal(gguf_write_open(&w, path), 0);
    assert_int_equal(gguf_write_close(&w), 0);
    gguf_write_fini(&w);
    assert_int_equal(gguf_open(&g, path, &eb), 0);
    (void)remove(path);
    if (gguf_vocab_read(&v, g, &eb) != 0)
        fail_msg("%s", eb.text);
    assert_int_equal(v.src.types[1], 3);
    assert_true(v.src.scores[0] == -1.5f);
    assert_int_equal(v.src.bos_id, -1);
    assert_int_equal(v.src.eos_id, 1);
    assert_int_equal(v.src.add_bos, 1);
    gguf_vocab_fini(&v);
    gguf_free(g);
    w = two_tokens();
    put_kv(&w, "tokenizer.ggml.token_type", GGUF_I64, 2, true, wide, sizeof(wide));
    refused(&w, ERR_INVALID, "tokenizer.ggml.token_type");
    w = two_tokens();
    put_kv(&w, "tokenizer.ggml.bos_token_id", GGUF_I32, 1, false, &bad, sizeof(bad));
    refused(&w, ERR_INVALID, "tokenizer.ggml.bos_token_id");
}

static void test_tiny_model_vocabulary_encodes_and_decodes(void **state) {
    (void)state;
    struct tiny_model t;
    struct tiny_spec spec = tiny_spec_of(QUANT_F32);
    struct errbuf eb = {.text = ""};
    struct gguf *g = NULL;
    struct gguf_vocab v;
    struct tokenizer *tok = NULL;
    tiny_model_file(&t, &spec);
    assert_int_equal(gguf_open(&g, t.path, &eb), 0);
    assert_int_equal(gguf_vocab_read(&v, g, &eb), 0);
    assert_int_equal(v.src.n_tokens, tiny_gguf_n_vocab());
    assert_string_equal(v.src.pre, "smollm");
    assert_int_equal(v.src.bos_id, 1);
    assert_int_equal(v.src.eos_id, 2);
    assert_int_equal(v.src.eot_id, -1);
    assert_int_equal(v.src.add_bos, 0);
    assert_int_equal(v.src.types[2], TOK_TYPE_CONTROL);
    int rv = tokenizer_new(&tok, &v.src, &eb);
    if (rv < 0)
        print_message("%s\n", eb.text);
    assert_int_equal(rv, 0);
    const char *text = "in the store \xc3\xa9\n7\xf0\x9f\x98\x80";
    const struct tok_part part = {text, strlen(text), TOK_ORIGIN_USER};
    struct tok_ids ids = {0};
    struct tok_text out = {NULL, 0, 0};
    assert_int_equal(tokenizer_encode(tok, &part, 1, true, &ids, &eb), 0);
    assert_true(ids.n < strlen(text)); /* merges applied */
    assert_int_equal(tokenizer_decode(tok, ids.id, ids.n, true, &out, &eb), 0);
    assert_string_equal(out.p, text);
    struct chat_template *ct = NULL;
    rv = chat_template_new(&ct, v.chat_template.p, v.chat_template.len, (struct tok_str){"", 0},
                           (struct tok_str){"", 0}, &eb);
    if (rv < 0)
        print_message("%s\n", eb.text);
    assert_int_equal(rv, 0);
    assert_int_equal(chat_template_family(ct), CHAT_FAMILY_CHATML);
    chat_template_free(ct);
    tok_ids_fini(&ids);
    tok_text_fini(&out);
    tokenizer_free(tok);
    gguf_vocab_fini(&v);
    gguf_free(g);
    tiny_model_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_keys_named),
        cmocka_unit_test(test_misfits_named),
        cmocka_unit_test(test_values_that_fit_are_taken_whatever_their_type),
        cmocka_unit_test(test_tiny_model_vocabulary_encodes_and_decodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
