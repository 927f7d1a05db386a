/* SPM on a vocabulary small enough to check by hand. */
#include "worker/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define T(s)                                                                                       \
    { s, sizeof(s) - 1 }
#define SP "\xE2\x96\x81"

enum {
    UNK,
    BOS,
    EOS,
    BYTE_C3,
    BYTE_A9,
    BYTE_A,
    MARK,
    A,
    B,
    AB,
    BA,
    MARK_A,
    LT,
    EOS_TEXT,
    B_MARK_A,
    N_TOK
};
static const struct tok_str tokens[N_TOK] = {
    [UNK] = T("<unk>"),
    [BOS] = T("<s>"),
    [EOS] = T("</s>"),
    [BYTE_C3] = T("<0xC3>"),
    [BYTE_A9] = T("<0xA9>"),
    [BYTE_A] = T("<0x41>"),
    [MARK] = T(SP),
    [A] = T("a"),
    [B] = T("b"),
    [AB] = T("ab"),
    [BA] = T("ba"),
    [MARK_A] = T(SP "a"),
    [LT] = T("<"),
    [EOS_TEXT] = T("/s"),
    [B_MARK_A] = T("b" SP "a"),
};
static const int32_t types[N_TOK] = {2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static const float scores[N_TOK] = {0, 0, 0, 0, 0, 0, -5, -6, -7, -2, -1, -3, -8, -9, -4};

static struct tokenizer *make(int8_t space_prefix) {
    struct tokenizer_src s = TOKENIZER_SRC_EMPTY;
    s.model = "llama";
    s.n_tokens = N_TOK;
    s.tokens = tokens;
    s.types = types;
    s.scores = scores;
    s.add_space_prefix = space_prefix;
    struct tokenizer *t = NULL;
    struct errbuf eb = {""};
    if (tokenizer_new(&t, &s, &eb) < 0)
        fail_msg("%s", eb.text);
    return t;
}

#define EXPECT(t, text, origin, bos, ...)                                                          \
    do {                                                                                           \
        const struct tok_part part_ = {text, sizeof(text) - 1, origin};                            \
        const int32_t want_[] = {__VA_ARGS__};                                                     \
        struct tok_ids ids_ = {0};                                                                 \
        assert_int_equal(tokenizer_encode(t, &part_, 1, bos, &ids_, NULL), 0);                     \
        assert_int_equal(ids_.n, ARRAY_LEN(want_));                                                \
        assert_memory_equal(ids_.id, want_, sizeof(want_));                                        \
        tok_ids_fini(&ids_);                                                                       \
    } while (0)

static void test_merges_by_score(void **state) {
    (void)state;
    struct tokenizer *t = make(0);
    EXPECT(t, "ab", TOK_ORIGIN_USER, false, AB);
    EXPECT(t, "aba", TOK_ORIGIN_USER, false, A, BA); /* the higher score wins, not the left one */
    EXPECT(t, "baba", TOK_ORIGIN_USER, false, BA, BA);
    EXPECT(t, "a a", TOK_ORIGIN_USER, false, A, MARK_A);
    tokenizer_free(t);
}

/* Words are merged one by one, but not where a token reaches over the space. */
static void test_a_token_over_a_space(void **state) {
    (void)state;
    struct tokenizer *t = make(0);
    EXPECT(t, "b a", TOK_ORIGIN_USER, false, B_MARK_A);
    EXPECT(t, "ab a a  b", TOK_ORIGIN_USER, false, AB, MARK_A, MARK_A, MARK, MARK, B);
    tokenizer_free(t);
}

static void test_space_prefix_goes_in_and_comes_out(void **state) {
    (void)state;
    struct tokenizer *t = make(-1); /* absent: on */
    EXPECT(t, "a", TOK_ORIGIN_USER, true, BOS, MARK_A);
    EXPECT(t, "</s>a", TOK_ORIGIN_TEMPLATE, false, EOS, MARK_A); /* also behind a special token */
    const int32_t ids[] = {BOS, MARK_A, MARK_A};
    struct tok_text text = {0};
    assert_int_equal(tokenizer_decode(t, ids, 3, false, &text, NULL), 0);
    assert_string_equal(text.p, "a a");
    tok_text_fini(&text);
    tokenizer_free(t);
}

static void test_bytes_of_an_unknown_character(void **state) {
    (void)state;
    struct tokenizer *t = make(0);
    EXPECT(t, "a\xC3\xA9", TOK_ORIGIN_USER, false, A, BYTE_C3, BYTE_A9);
    EXPECT(t, "\xE2\x82\xAC", TOK_ORIGIN_USER, false, UNK); /* no token for its bytes either */
    assert_memory_equal(tokenizer_piece(t, BYTE_C3).p, "\xC3", 1);
    tokenizer_free(t);
}

/* llama.cpp merges "<", "/s", ">" up to the end token; a user could end a turn that way. */
static void test_typed_control_and_byte_tokens_stay_text(void **state) {
    (void)state;
    struct tokenizer *t = make(0);
    static const char *const typed[] = {"</s>", "<s>", "<0x41>", "<unk>"};
    for (size_t i = 0; i < ARRAY_LEN(typed); i++) {
        const struct tok_part part = {typed[i], strlen(typed[i]), TOK_ORIGIN_USER};
        struct tok_ids ids = {0};
        assert_int_equal(tokenizer_encode(t, &part, 1, false, &ids, NULL), 0);
        for (size_t k = 0; k < ids.n; k++)
            assert_true(ids.id[k] != BOS && ids.id[k] != EOS && ids.id[k] != BYTE_A);
        tok_ids_fini(&ids);
    }
    tokenizer_free(t);
}

static void test_scores_are_needed(void **state) {
    (void)state;
    struct tokenizer_src s = TOKENIZER_SRC_EMPTY;
    s.model = "llama";
    s.n_tokens = N_TOK;
    s.tokens = tokens;
    s.types = types;
    struct tokenizer *t = NULL;
    struct errbuf eb = {""};
    assert_int_equal(tokenizer_new(&t, &s, &eb), ERR_INVALID);
    assert_non_null(strstr(eb.text, "scores"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges_by_score),
        cmocka_unit_test(test_a_token_over_a_space),
        cmocka_unit_test(test_space_prefix_goes_in_and_comes_out),
        cmocka_unit_test(test_bytes_of_an_unknown_character),
        cmocka_unit_test(test_typed_control_and_byte_tokens_stay_text),
        cmocka_unit_test(test_scores_are_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
