/* Byte-level BPE, special tokens and origins on a vocabulary small enough to check by hand. */
#include "worker/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define T(s)                                                                                       \
    { s, sizeof(s) - 1 }

/* \xC4\xA0 (U+0120) is GPT-2's spelling of the space, \xC3\x83\xC2\xA9 of the two bytes of e-acute. */
enum {
    END,
    IM_START,
    IM_END,
    A,
    B,
    C,
    D,
    SPACE,
    AB,
    ABC,
    SPACE_A,
    BC,
    BANG,
    USER,
    LT,
    PIPE,
    E1,
    E2,
    N_TOK
};
static const struct tok_str tokens[N_TOK] = {
    [END] = T("<|endoftext|>"),
    [IM_START] = T("<|im_start|>"),
    [IM_END] = T("<|im_end|>"),
    [A] = T("a"),
    [B] = T("b"),
    [C] = T("c"),
    [D] = T("d"),
    [SPACE] = T("\xC4\xA0"),
    [AB] = T("ab"),
    [ABC] = T("abc"),
    [SPACE_A] = T("\xC4\xA0"
                  "a"),
    [BC] = T("bc"),
    [BANG] = T("!"),
    [USER] = T("[user]"),
    [LT] = T("<"),
    [PIPE] = T("|"),
    [E1] = T("\xC3\x83"),
    [E2] = T("\xC2\xA9"),
};
static const int32_t types[N_TOK] = {3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 1, 1};
/* bc comes before ab, so "abc" is a + bc and the merge to abc needs "a bc". */
static const struct tok_str merges[] = {T("b c"), T("a b"), T("\xC4\xA0 a")};

static struct tokenizer_src source(const char *pre) {
    struct tokenizer_src s = TOKENIZER_SRC_EMPTY;
    s.model = "gpt2";
    s.pre = pre;
    s.n_tokens = N_TOK;
    s.tokens = tokens;
    s.types = types;
    s.merges = merges;
    s.n_merges = ARRAY_LEN(merges);
    s.bos_id = IM_START;
    s.eos_id = IM_END;
    s.unk_id = END;
    return s;
}

static struct tokenizer *make(const struct tokenizer_src *s) {
    struct tokenizer *t = NULL;
    struct errbuf eb = {""};
    if (tokenizer_new(&t, s, &eb) < 0)
        fail_msg("%s", eb.text);
    return t;
}

static void expect_parts(const struct tokenizer *t, const struct tok_part *parts, size_t n,
                         bool bos, const int32_t *want, size_t n_want) {
    struct tok_ids ids = {0};
    assert_int_equal(tokenizer_encode(t, parts, n, bos, &ids, NULL), 0);
    if (ids.n != n_want || (n_want && memcmp(ids.id, want, n_want * sizeof(*want)) != 0)) {
        for (size_t i = 0; i < ids.n; i++)
            print_message("id %d\n", ids.id[i]);
        fail_msg("%zu ids, wanted %zu", ids.n, n_want);
    }
    tok_ids_fini(&ids);
}

#define EXPECT(t, text, origin, bos, ...)                                                          \
    do {                                                                                           \
        const struct tok_part part_ = {text, sizeof(text) - 1, origin};                            \
        const int32_t want_[] = {__VA_ARGS__};                                                     \
        expect_parts(t, &part_, 1, bos, want_, ARRAY_LEN(want_));                                  \
    } while (0)

static void test_merges_by_rank(void **state) {
    (void)state;
    struct tokenizer_src s = source("gpt-2");
    struct tokenizer *t = make(&s);
    EXPECT(t, "ab", TOK_ORIGIN_USER, false, AB);
    EXPECT(t, "abc", TOK_ORIGIN_USER, false, A, BC); /* the lower rank wins, not the left one */
    EXPECT(t, "abab", TOK_ORIGIN_USER, false, AB, AB);
    EXPECT(t, "d ab!", TOK_ORIGIN_USER, false, D, SPACE, AB, BANG); /* "a b" ranks before " a" */
    EXPECT(t, "d ad", TOK_ORIGIN_USER, false, D, SPACE_A, D);
    expect_parts(t, NULL, 0, true, NULL, 0);
    tokenizer_free(t);
}

/* F12: a megabyte of one letter or of blanks kept the one text thread for .5 s before it was found too long. */
static void test_too_long_is_known_by_length(void **state) {
    (void)state;
    static char text[1u << 20];
    struct tokenizer_src s = source("gpt-2");
    struct tokenizer *t = make(&s);
    const struct tok_part part = {text, sizeof(text), TOK_ORIGIN_USER};
    static const char fill[] = {'a', ' ', 'd'};
    for (size_t i = 0; i < sizeof(fill); i++) {
        struct tok_ids ids = {.max = 100};
        memset(text, fill[i], sizeof(text));
        assert_int_equal(tokenizer_encode(t, &part, 1, false, &ids, NULL), ERR_TOOBIG);
        assert_int_equal(ids.n, 0); /* not one was made */
        tok_ids_fini(&ids);
    }
    struct tok_ids ids = {.max = 3};
    EXPECT(t, "ababab", TOK_ORIGIN_USER, false, AB, AB, AB);
    const struct tok_part three = {"ababab", 6, TOK_ORIGIN_USER},
                          four = {"abababab", 8, TOK_ORIGIN_USER};
    assert_int_equal(tokenizer_encode(t, &three, 1, false, &ids, NULL), 0);
    assert_int_equal(ids.n, 3);
    ids.n = 0;
    assert_int_equal(tokenizer_encode(t, &four, 1, false, &ids, NULL), ERR_TOOBIG);
    ids.n = 0;
    memset(text, 4, sizeof(text)); /* bytes that no token has give none: not too long */
    assert_int_equal(tokenizer_encode(t, &part, 1, false, &ids, NULL), 0);
    assert_int_equal(ids.n, 0);
    tok_ids_fini(&ids);
    tokenizer_free(t);
}

/* llama-bpe takes a whole piece that is a token without merging. */
static void test_ignore_merges(void **state) {
    (void)state;
    struct tokenizer_src s = source("llama-bpe");
    struct tokenizer *t = make(&s);
    EXPECT(t, "abc", TOK_ORIGIN_USER, false, ABC);
    EXPECT(t, "abcd", TOK_ORIGIN_USER, false, A, BC, D);
    tokenizer_free(t);
}

static void test_control_tokens_only_in_template_bytes(void **state) {
    (void)state;
    struct tokenizer_src s = source("gpt-2");
    struct tokenizer *t = make(&s);
    EXPECT(t, "<|im_end|>", TOK_ORIGIN_TEMPLATE, false, IM_END);
    struct tok_ids ids = {0};
    const struct tok_part user = {"<|im_end|>", 10, TOK_ORIGIN_USER};
    assert_int_equal(tokenizer_encode(t, &user, 1, false, &ids, NULL), 0);
    for (size_t i = 0; i < ids.n; i++)
        assert_false(tokenizer_is_control(t, ids.id[i]));
    ids.n = 0;
    /* A user's text that completes the template's, or is completed by it. */
    const struct tok_part split[] = {{"<|im_", 5, TOK_ORIGIN_TEMPLATE},
                                     {"end|>", 5, TOK_ORIGIN_USER},
                                     {"<|im_", 5, TOK_ORIGIN_USER},
                                     {"end|>", 5, TOK_ORIGIN_TEMPLATE}};
    assert_int_equal(tokenizer_encode(t, split, 4, false, &ids, NULL), 0);
    for (size_t i = 0; i < ids.n; i++)
        assert_false(tokenizer_is_control(t, ids.id[i]));
    tok_ids_fini(&ids);
    /* Two template parts are one text. */
    const struct tok_part joined[] = {split[0], split[3]};
    const int32_t want[] = {IM_END};
    expect_parts(t, joined, 2, false, want, 1);
    tokenizer_free(t);
}

static void test_user_defined_tokens_match_everywhere(void **state) {
    (void)state;
    struct tokenizer_src s = source("gpt-2");
    struct tokenizer *t = make(&s);
    EXPECT(t, "a[user]b", TOK_ORIGIN_USER, false, A, USER, B);
    EXPECT(t, "a[user]b", TOK_ORIGIN_TEMPLATE, false, A, USER, B);
    const struct tok_part split[] = {{"[us", 3, TOK_ORIGIN_TEMPLATE}, {"er]", 3, TOK_ORIGIN_USER}};
    const int32_t want[] = {USER};
    expect_parts(t, split, 2, false, want, 1);
    tokenizer_free(t);
}

/* Parts are joined before splitting: the border of two parts is no border of pieces. */
static void test_parts_join(void **state) {
    (void)state;
    struct tokenizer_src s = source("gpt-2");
    struct tokenizer *t = make(&s);
    const struct tok_part parts[] = {
        {"a", 1, TOK_ORIGIN_TEMPLATE}, {"", 0, TOK_ORIGIN_USER}, {"b", 1, TOK_ORIGIN_USER}};
    const int32_t want[] = {AB};
    expect_parts(t, parts, 3, false, want, 1);
    tokenizer_free(t);
}

/* vLLM PR 55288, llama-cpp-python 1501: a template that writes BOS and a tokenizer that adds it. */
static void test_bos_is_added_once(void **state) {
    (void)state;
    struct tokenizer_src s = source("gpt-2");
    s.add_bos = 1;
    struct tokenizer *t = make(&s);
    EXPECT(t, "a", TOK_ORIGIN_USER, true, IM_START, A);
    EXPECT(t, "a", TOK_ORIGIN_USER, false, A);
    EXPECT(t, "<|im_start|>a", TOK_ORIGIN_TEMPLATE, true, IM_START, A);
    const struct tok_part user = {"<|im_start|>a", 13, TOK_ORIGIN_USER};
    struct tok_ids ids = {0};
    assert_int_equal(tokenizer_encode(t, &user, 1, true, &ids, NULL), 0);
    assert_int_equal(ids.id[0], IM_START);
    assert_int_not_equal(ids.id[1], IM_START);
    tok_ids_fini(&ids);
    tokenizer_free(t);
    s.add_bos = 0;
    t = make(&s);
    EXPECT(t, "a", TOK_ORIGIN_USER, true, A);
    tokenizer_free(t);
}

static void test_pieces_and_decode(void **state) {
    (void)state;
    struct tokenizer_src s = source("gpt-2");
    struct tokenizer *t = make(&s);
    assert_int_equal(tokenizer_piece(t, SPACE_A).len, 2);
    assert_memory_equal(tokenizer_piece(t, SPACE_A).p, " a", 2);
    assert_memory_equal(tokenizer_piece(t, E1).p, "\xC3", 1); /* half a character */
    assert_int_equal(tokenizer_piece(t, N_TOK).len, 0);
    assert_int_equal(tokenizer_piece(t, -1).len, 0);
    const int32_t ids[] = {IM_START, E1, E2, SPACE_A, USER, IM_END};
    struct tok_text text = {0};
    struct errbuf eb = {""};
    assert_int_equal(tokenizer_decode(t, ids, 6, false, &text, &eb), 0);
    assert_string_equal(text.p, "\xC3\xA9 a[user]");
    text.len = 0;
    assert_int_equal(tokenizer_decode(t, ids, 6, true, &text, &eb), 0);
    assert_string_equal(text.p, "<|im_start|>\xC3\xA9 a[user]<|im_end|>");
    const int32_t bad[] = {A, N_TOK};
    assert_int_equal(tokenizer_decode(t, bad, 2, false, &text, &eb), ERR_INVALID);
    tok_text_fini(&text);
    assert_true(tokenizer_is_eog(t, IM_END));
    assert_true(tokenizer_is_eog(t, END)); /* by its spelling */
    assert_false(tokenizer_is_eog(t, A));
    assert_false(tokenizer_is_eog(t, -5));
    assert_int_equal(tokenizer_find(t, "abc", 3), ABC);
    assert_int_equal(tokenizer_find(t, "abcd", 4), -1);
    tokenizer_free(t);
}

static void expect_refused(const struct tokenizer_src *s, int want, const char *word) {
    struct tokenizer *t = NULL;
    struct errbuf eb = {""};
    assert_int_equal(tokenizer_new(&t, s, &eb), want);
    if (!strstr(eb.text, word))
        fail_msg("'%s' does not name '%s'", eb.text, word);
}

/* llama.cpp 7476: a wrong split gives text, only worse text, so it must not start. */
static void test_what_is_unknown_is_refused_by_name(void **state) {
    (void)state;
    struct tokenizer_src s = source("deepseek-v3");
    expect_refused(&s, ERR_UNSUPPORTED, "deepseek-v3");
    s = source(NULL);
    expect_refused(&s, ERR_UNSUPPORTED, "tokenizer.ggml.pre");
    s = source("gpt-2");
    s.model = "bert";
    expect_refused(&s, ERR_UNSUPPORTED, "bert");
    s = source("gpt-2");
    s.add_eos = 1;
    expect_refused(&s, ERR_UNSUPPORTED, "add_eos_token");
    s = source("gpt-2");
    s.bos_id = N_TOK;
    expect_refused(&s, ERR_INVALID, "special token");
    static const struct tok_str odd[] = {T("a x")};
    s = source("gpt-2");
    s.merges = odd;
    s.n_merges = 1;
    expect_refused(&s, ERR_INVALID, "merge 0");
}

/* A merge that would make a control token out of ordinary text is no merge. */
static void test_merge_into_control_token_is_refused(void **state) {
    (void)state;
    int32_t ty[N_TOK];
    memcpy(ty, types, sizeof(ty));
    ty[AB] = TOK_TYPE_CONTROL;
    struct tokenizer_src s = source("gpt-2");
    s.types = ty;
    expect_refused(&s, ERR_INVALID, "merge 1");
}

/* Everything that can change ids changes the digest. */
static void test_digest_covers_what_changes_ids(void **state) {
    (void)state;
    int32_t ty[N_TOK];
    struct tok_str tok[N_TOK];
    struct tok_str mg[ARRAY_LEN(merges)];
    uint8_t seen[7][DIGEST_BYTES];
    for (unsigned k = 0; k < ARRAY_LEN(seen); k++) {
        memcpy(ty, types, sizeof(ty));
        memcpy(tok, tokens, sizeof(tok));
        memcpy(mg, merges, sizeof(mg));
        struct tokenizer_src s = source(k == 1 ? "qwen2" : "gpt-2");
        s.tokens = tok;
        s.types = ty;
        s.merges = mg;
        if (k == 2)
            s.add_bos = 1;
        if (k == 3)
            s.n_merges--;
        if (k == 4)
            ty[USER] = TOK_TYPE_NORMAL;
        if (k == 5)
            tok[D] = (struct tok_str)T("e");
        if (k == 6)
            s.bos_id = END;
        struct tokenizer *t = make(&s);
        tokenizer_digest(t, seen[k]);
        tokenizer_free(t);
        for (unsigned j = 0; j < k; j++)
            assert_memory_not_equal(seen[j], seen[k], DIGEST_BYTES);
    }
    struct tokenizer_src s = source("gpt-2");
    struct tokenizer *t = make(&s);
    uint8_t again[DIGEST_BYTES];
    tokenizer_digest(t, again);
    assert_memory_equal(again, seen[0], DIGEST_BYTES);
    tokenizer_free(t);
}

/* A megabyte in one piece: the heap keeps it from costing its square (it would take minutes). */
static void test_one_long_piece(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    char *p = malloc(N);
    assert_non_null(p);
    for (size_t i = 0; i < N; i++)
        p[i] = "ab"[i % 2];
    struct tokenizer_src s = source("gpt-2");
    struct tokenizer *t = make(&s);
    struct tok_part part = {p, N, TOK_ORIGIN_USER};
    struct tok_ids ids = {0};
    assert_int_equal(tokenizer_encode(t, &part, 1, false, &ids, NULL), 0);
    assert_int_equal(ids.n, N / 2);
    tok_ids_fini(&ids);
    tokenizer_free(t);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges_by_rank),
        cmocka_unit_test(test_too_long_is_known_by_length),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_control_tokens_only_in_template_bytes),
        cmocka_unit_test(test_user_defined_tokens_match_everywhere),
        cmocka_unit_test(test_parts_join),
        cmocka_unit_test(test_bos_is_added_once),
        cmocka_unit_test(test_pieces_and_decode),
        cmocka_unit_test(test_what_is_unknown_is_refused_by_name),
        cmocka_unit_test(test_merge_into_control_token_is_refused),
        cmocka_unit_test(test_digest_covers_what_changes_ids),
        cmocka_unit_test(test_one_long_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
