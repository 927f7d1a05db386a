/* The scanners against the regular expressions that they stand for, run by PCRE2. */
#include "worker/text/pretokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tests/support/token_corpus.h"
#include "worker/text/unicode.h"

static const char *seed_path;

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA(digits)                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1," digits "}"              \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    enum pretok_kind kind;
    const char *regex;
} kinds[] = {
    {PRETOK_GPT2, GPT2},
    {PRETOK_LLAMA_BPE, LLAMA("3")},
    {PRETOK_QWEN2, LLAMA("1")},
};

static pcre2_code *compile(const char *pattern) {
    int err;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &err, &at, NULL);
    assert_non_null(re);
    return re;
}

/* Every alternative is tried at each position and one always matches, so pieces are the matches. */
static void compare(pcre2_code *re, pcre2_match_data *md, const char *p, size_t n, size_t off,
                    size_t end, struct pretok *s) {
    while (off < end) {
        int rv =
            pcre2_match(re, (PCRE2_SPTR)p, end, off, PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, md, NULL);
        assert_true(rv > 0);
        const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);
        size_t at = s->pos, len = pretok_next(s);
        if (at != ov[0] || len != ov[1] - ov[0])
            fail_msg("%s at byte %zu: '%.*s', the expression gives %zu bytes", pretok_name(s->kind),
                     off, (int)MIN(len + 8, n - at), p + at, (size_t)(ov[1] - ov[0]));
        off = ov[1];
    }
}

static void check_text(const char *p, size_t n) {
    pcre2_match_data *md = pcre2_match_data_create(4, NULL);
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        pcre2_code *re = compile(kinds[k].regex);
        struct pretok s;
        pretok_init(&s, kinds[k].kind, p, n);
        compare(re, md, p, n, 0, n, &s);
        assert_int_equal(pretok_next(&s), 0);
        pcre2_code_free(re);
    }
    /* smollm: each number alone, gpt2 between, where the text ends before a number. */
    pcre2_code *gpt2 = compile(GPT2), *number = compile("\\p{N}");
    struct pretok s;
    pretok_init(&s, PRETOK_SMOLLM, p, n);
    for (size_t off = 0; off < n;) {
        int rv = pcre2_match(number, (PCRE2_SPTR)p, n, off, PCRE2_NO_UTF_CHECK, md, NULL);
        size_t start = rv > 0 ? pcre2_get_ovector_pointer(md)[0] : n;
        size_t end = rv > 0 ? pcre2_get_ovector_pointer(md)[1] : n;
        compare(gpt2, md, p, n, off, start, &s);
        if (end > start)
            assert_int_equal(pretok_next(&s), end - start);
        off = end;
    }
    pcre2_code_free(gpt2);
    pcre2_code_free(number);
    pcre2_match_data_free(md);
}

static void test_corpus(void **state) {
    (void)state;
    struct token_corpus *c;
    struct tok_text text = {0};
    assert_int_equal(token_corpus_open(&c, seed_path), 0);
    for (unsigned i = 0; i < 24; i++) {
        token_corpus_segment(c, i, &text);
        check_text(text.p, text.len);
    }
    tok_text_fini(&text);
    token_corpus_close(c);
}

/* All strings of up to five characters over an alphabet with one of each kind that the expressions
 * tell apart. */
static void test_all_short_strings(void **state) {
    (void)state;
    static const char *const alphabet[] = {" ", "\n", "\t", "'", "s", "L", "1", "!", "\xC3\xA9"};
    enum { N = 9, LEN = 5 };
    char *all = malloc(1 << 21);
    assert_non_null(all);
    unsigned total = 1;
    for (int i = 0; i < LEN; i++)
        total *= N;
    /* One long text would let neighbours touch, so each string stands alone; PCRE2 code is compiled per
     * call, hence only every seventh. */
    for (unsigned v = 0; v < total; v += 7) {
        size_t n = 0;
        for (unsigned i = 0, x = v; i < LEN; i++, x /= N) {
            const char *s = alphabet[x % N];
            memcpy(all + n, s, strlen(s));
            n += strlen(s);
        }
        check_text(all, n);
    }
    free(all);
}

static void test_unknown_name_is_refused(void **state) {
    (void)state;
    assert_int_equal(pretok_find("smollm"), PRETOK_SMOLLM);
    assert_int_equal(pretok_find("gpt-2"), PRETOK_GPT2);
    assert_int_equal(pretok_find("default"), -1);
    assert_int_equal(pretok_find(""), -1);
}

/* A run of white space or letters must not cost its square. */
static void test_long_runs_are_linear(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    char *p = malloc(N);
    assert_non_null(p);
    static const char fill[] = {' ', 'a', '\n', '!', '7'};
    for (size_t f = 0; f < sizeof(fill); f++) {
        memset(p, fill[f], N);
        for (int k = 0; k < PRETOK_NR; k++) {
            struct pretok s;
            size_t sum = 0, len;
            pretok_init(&s, (enum pretok_kind)k, p, N);
            while ((len = pretok_next(&s)) > 0)
                sum += len;
            assert_int_equal(sum, N);
        }
    }
    free(p);
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    seed_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_all_short_strings),
        cmocka_unit_test(test_unknown_name_is_refused),
        cmocka_unit_test(test_long_runs_are_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
