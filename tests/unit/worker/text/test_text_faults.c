/* Every allocation of building, encoding, decoding and rendering fails once: an error comes back, nothing
 * leaks (ASan), and what was there before still works. */
#include "worker/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tests/support/fault.h"
#include "worker/text/chat_template.h"

#define T(s)                                                                                       \
    { s, sizeof(s) - 1 }
#define CHATML                                                                                     \
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"         \
    "{{ '<|im_start|>system\\nhi<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + " \
    "'\\n' + "                                                                                     \
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"        \
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"

static const struct tok_str tokens[] = {T("<s>"), T("</s>"), T("<unk>"), T("<0x41>"),
                                        T("a"),   T("b"),    T("ab"),    T("[u]")};
static const int32_t types[] = {3, 3, 2, 6, 1, 1, 1, 4};
static const float scores[] = {0, 0, 0, 0, -1, -2, -3, 0};
static const struct tok_str merges[] = {T("a b")};

static struct tokenizer_src source(const char *model) {
    struct tokenizer_src s = TOKENIZER_SRC_EMPTY;
    s.model = model;
    s.pre = "llama-bpe"; /* the one with a second map */
    s.n_tokens = ARRAY_LEN(tokens);
    s.tokens = tokens;
    s.types = types;
    s.scores = scores;
    s.merges = merges;
    s.n_merges = 1;
    s.bos_id = 0;
    s.eos_id = 1;
    s.unk_id = 2;
    return s;
}

/* Runs step until no allocation is left to fail; each failure must be ERR_NOMEM. */
static void each_failure(int (*step)(void *arg), void *arg) {
    uint64_t n = 0;
    for (;; n++) {
        fault_arm(n);
        int rv = step(arg);
        bool fired = fault_fired();
        fault_disarm();
        if (!fired) {
            assert_int_equal(rv, 0);
            break;
        }
        assert_int_equal(rv, ERR_NOMEM);
    }
    assert_true(n > 0);
}

static int build(void *arg) {
    struct tokenizer_src s = source(arg);
    struct tokenizer *t = NULL;
    struct errbuf eb = {""};
    int rv = tokenizer_new(&t, &s, &eb);
    if (rv == 0)
        tokenizer_free(t);
    else
        assert_true(eb.text[0] != '\0');
    return rv;
}

static int encode(void *arg) {
    /* Long enough that every array grows more than once. */
    char text[2048];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = "ab [u]<s>\n"[i % 10];
    const struct tok_part parts[] = {{text, 1000, TOK_ORIGIN_TEMPLATE},
                                     {text, sizeof(text), TOK_ORIGIN_USER}};
    struct tok_ids ids = {0};
    struct tok_text back = {0};
    int rv = tokenizer_encode(arg, parts, 2, true, &ids, NULL);
    if (rv == 0)
        rv = tokenizer_decode(arg, ids.id, ids.n, true, &back, NULL);
    tok_ids_fini(&ids);
    tok_text_fini(&back);
    return rv;
}

static int make_template(void *arg) {
    struct chat_template *ct = NULL;
    int rv = chat_template_new(&ct, CHATML, sizeof(CHATML) - 1, (struct tok_str)T("<s>"),
                               (struct tok_str)T("</s>"), NULL);
    (void)arg;
    if (rv == 0)
        chat_template_free(ct);
    return rv;
}

static int render(void *arg) {
    const struct chat_msg m = {T("user"), T("hello")};
    struct chat_prompt p = {0};
    int rv = chat_template_render(arg, &m, 1, true, &p, NULL);
    if (rv == 0)
        chat_prompt_fini(&p);
    return rv;
}

static void test_building(void **state) {
    (void)state;
    char bpe[] = "gpt2", spm[] = "llama";
    each_failure(build, bpe);
    each_failure(build, spm);
}

static void test_encoding(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2", "llama"};
    for (size_t i = 0; i < 2; i++) {
        struct tokenizer_src s = source(models[i]);
        struct tokenizer *t = NULL;
        assert_int_equal(tokenizer_new(&t, &s, NULL), 0);
        each_failure(encode, t);
        tokenizer_free(t);
    }
}

static void test_templates(void **state) {
    (void)state;
    struct chat_template *ct = NULL;
    each_failure(make_template, NULL);
    assert_int_equal(chat_template_new(&ct, CHATML, sizeof(CHATML) - 1, (struct tok_str)T("<s>"),
                                       (struct tok_str)T("</s>"), NULL),
                     0);
    each_failure(render, ct);
    chat_template_free(ct);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_building),
        cmocka_unit_test(test_encoding),
        cmocka_unit_test(test_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
