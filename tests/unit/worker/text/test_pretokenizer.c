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

/* x?head*tail+ and x?head+tail*, what follows each, then the rest. */
#define CASED(after, digits)                                                                       \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"     \
    "+" after "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}" \
    "\\p{M}]*" after "|\\p{N}" digits                                                              \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* As tokenizer.json files and llama.cpp have them: each expression in its turn cuts every piece so far into
 * its matches and what lies between, a piece being a text of its own. */
#define MAX_PASSES 4
static const struct {
    enum pretok_kind kind;
    const char *regex[MAX_PASSES];
} kinds[] = {
    {PRETOK_GPT2, {GPT2}},
    {PRETOK_SMOLLM, {"\\p{N}", GPT2}},
    {PRETOK_LLAMA_BPE, {LLAMA("3")}},
    {PRETOK_DBRX, {LLAMA("3")}},
    {PRETOK_QWEN2, {LLAMA("1")}},
    {PRETOK_GPT4O, {CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}")}},
    {PRETOK_TEKKEN, {CASED("", "")}},
    {PRETOK_DEFAULT, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};
static pcre2_code *compiled[ARRAY_LEN(kinds)][MAX_PASSES];

static pcre2_code *compile(const char *pattern) {
    int err;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &err, &at, NULL);
    assert_non_null(re);
    assert_int_equal(pcre2_jit_compile(re, PCRE2_JIT_COMPLETE), 0);
    return re;
}

static int setup(void **state) {
    (void)state;
    assert_int_equal(ARRAY_LEN(kinds), PRETOK_NR);
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
        for (int i = 0; i < MAX_PASSES && kinds[k].regex[i]; i++)
            compiled[k][i] = compile(kinds[k].regex[i]);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
        for (int i = 0; i < MAX_PASSES; i++)
            pcre2_code_free(compiled[k][i]);
    return 0;
}

/* Marks starts and ends of the matches in p[0..n). */
static void cut_piece(pcre2_code *re, pcre2_match_data *md, const char *p, size_t n, bool *edge) {
    for (size_t off = 0; off < n;) {
        int rv = pcre2_match(re, (PCRE2_SPTR)p, n, off, PCRE2_NO_UTF_CHECK, md, NULL);
        if (rv < 0) {
            assert_int_equal(rv, PCRE2_ERROR_NOMATCH);
            return;
        }
        const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);
        edge[ov[0]] = edge[ov[1]] = true;
        off = ov[1];
    }
}

static void check_text(const char *p, size_t n) {
    pcre2_match_data *md = pcre2_match_data_create(4, NULL);
    bool *edge = malloc(n + 1), *next = malloc(n + 1);
    assert_true(edge && next);
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        memset(edge, 0, n + 1);
        edge[0] = edge[n] = true;
        for (int i = 0; i < MAX_PASSES && compiled[k][i]; i++) {
            memcpy(next, edge, n + 1);
            for (size_t start = 0, end = 1; end <= n; end++) {
                if (!edge[end])
                    continue;
                cut_piece(compiled[k][i], md, p + start, end - start, next + start);
                start = end;
            }
            memcpy(edge, next, n + 1);
        }
        struct pretok s;
        pretok_init(&s, kinds[k].kind, p, n);
        for (size_t start = 0, end = 1; end <= n; end++) {
            if (!edge[end])
                continue;
            size_t at = s.pos, len = pretok_next(&s);
            if (at != start || len != end - start)
                fail_msg("%s at byte %zu: '%.*s', the expressions give %zu bytes from %zu",
                         pretok_name(s.kind), at, (int)MIN(len + 8, n - at), p + at, end - start,
                         start);
            start = end;
        }
        assert_int_equal(pretok_next(&s), 0);
    }
    free(edge);
    free(next);
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
    /* With a letter without case, one of title case, a mark, the slash and a number beyond ASCII. */
    static const char *const alphabet[] = {
        " ", "\n",       "\t",           "'",        "s",        "L",       "1", "!", "/",
        "$", "\xC3\xA9", "\xE3\x81\x82", "\xC7\x85", "\xCC\x81", "\xD9\xA3"};
    enum { N = ARRAY_LEN(alphabet), LEN = 5 };
    char all[4 * LEN];
    unsigned total = 1;
    for (int i = 0; i < LEN; i++)
        total *= N;
    /* One long text would let neighbours touch, so each string stands alone; every seventh, for time. */
    for (unsigned v = 0; v < total; v += 7) {
        size_t n = 0;
        for (unsigned i = 0, x = v; i < LEN; i++, x /= N) {
            const char *s = alphabet[x % N];
            memcpy(all + n, s, strlen(s));
            n += strlen(s);
        }
        check_text(all, n);
    }
}

static void test_unknown_name_is_refused(void **state) {
    (void)state;
    assert_int_equal(pretok_find("smollm"), PRETOK_SMOLLM);
    assert_int_equal(pretok_find("gpt-2"), PRETOK_GPT2);
    assert_int_equal(pretok_find("default"), PRETOK_DEFAULT);
    assert_int_equal(pretok_find("refact"), PRETOK_SMOLLM);
    assert_int_equal(pretok_find("deepseek-r1-qwen"), PRETOK_QWEN2);
    assert_int_equal(pretok_find("smaug-bpe"), PRETOK_DBRX);
    assert_int_equal(pretok_find("llama4"), PRETOK_GPT4O);
    assert_int_equal(pretok_find("deepseek-v3"), -1);
    assert_int_equal(pretok_find(""), -1);
    /* The message of a refusal names each that is known. */
    char known[256];
    unsigned n = 0;
    pretok_list(known, sizeof(known));
    char *rest = known;
    for (char *name; (name = strsep(&rest, ",")) != NULL; n++)
        assert_true(pretok_find(name[0] == ' ' ? name + 1 : name) >= 0);
    assert_true(n > PRETOK_NR);
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
    return cmocka_run_group_tests(tests, setup, teardown);
}
