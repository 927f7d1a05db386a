/* test_stop.c - stop strings across tokens, UTF-8 across tokens, invalid bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/sample/stop.h"

struct run {
    char text[4096];
    size_t len;
    bool hit;
    uint32_t which;
    size_t after[64]; /* length after each feed */
};

static void feed_all(struct run *r, const char *const *stops, const char *const *pieces) {
    struct stop s;
    struct stop_str strs[STOP_MAX_STRINGS];
    uint32_t n = 0;
    *r = (struct run){0};
    for (; stops && stops[n]; n++)
        strs[n] = (struct stop_str){stops[n], strlen(stops[n])};
    assert_int_equal(stop_init(&s, strs, n, 64), 0);
    assert_true(stop_max_out(&s) < sizeof(r->text) / 2);
    for (size_t i = 0; pieces[i]; i++) {
        r->len += stop_feed(&s, pieces[i], strlen(pieces[i]), r->text + r->len);
        r->after[i] = r->len;
    }
    r->hit = s.hit;
    r->which = s.which;
    r->len += stop_flush(&s, r->text + r->len);
    r->text[r->len] = '\0';
    stop_fini(&s);
}

#define LISTOF(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_text_without_stops_passes_at_once(void **state) {
    (void)state;
    struct run r;
    feed_all(&r, NULL, LISTOF("Hello", ", ", "world"));
    assert_string_equal(r.text, "Hello, world");
    assert_int_equal(r.after[0], 5);
    assert_int_equal(r.after[1], 7);
}

static void test_stop_string_over_three_tokens_is_cut(void **state) {
    (void)state;
    struct run r;
    feed_all(&r, LISTOF("END"), LISTOF("abc E", "N", "D and more", "x"));
    assert_true(r.hit);
    assert_string_equal(r.text, "abc ");
    assert_int_equal(r.after[0], 4); /* the E is held, the rest is not */
    assert_int_equal(r.after[1], 4);
}

static void test_false_start_is_released(void **state) {
    (void)state;
    struct run r;
    feed_all(&r, LISTOF("aab"), LISTOF("a", "a", "a", "c"));
    assert_false(r.hit);
    assert_string_equal(r.text, "aaac");
    assert_int_equal(r.after[1], 0);
    assert_int_equal(r.after[2], 1); /* "aa" may still begin "aab" */
    assert_int_equal(r.after[3], 4);
}

static void test_held_text_leaves_at_the_end(void **state) {
    (void)state;
    struct run r;
    feed_all(&r, LISTOF("###"), LISTOF("a##"));
    assert_int_equal(r.after[0], 1);
    assert_string_equal(r.text, "a##");
}

static void test_earliest_stop_wins(void **state) {
    (void)state;
    struct run r;
    feed_all(&r, LISTOF("world", "lo"), LISTOF("hello world"));
    assert_string_equal(r.text, "hel");
    assert_int_equal(r.which, 1);
    feed_all(&r, LISTOF("xy", "x"), LISTOF("abx"));
    assert_string_equal(r.text, "ab");
    assert_int_equal(r.which, 1);
}

static void test_character_over_tokens_is_held_until_whole(void **state) {
    (void)state;
    struct run r;
    feed_all(&r, NULL, LISTOF("a\xf0\x9f", "\x98", "\x80z"));
    assert_int_equal(r.after[0], 1);
    assert_int_equal(r.after[1], 1);
    assert_int_equal(r.after[2], 6);
    assert_string_equal(r.text, "a\xf0\x9f\x98\x80z");
}

static void test_invalid_bytes_become_replacement_characters(void **state) {
    (void)state;
    struct run r;
    const char *const rep = "\xef\xbf\xbd";
    char want[64];
    feed_all(&r, NULL, LISTOF("a\xff\x80z"));
    snprintf(want, sizeof(want), "a%s%sz", rep, rep);
    assert_string_equal(r.text, want);
    feed_all(&r, NULL, LISTOF("\xe2\x82", "z")); /* a beginning that goes on wrongly: one error */
    snprintf(want, sizeof(want), "%sz", rep);
    assert_string_equal(r.text, want);
    feed_all(&r, NULL,
             LISTOF("\xed\xa0\x80\xc0\xaf\xf4\x90")); /* surrogate, over-long, too large */
    for (size_t i = 0; i < r.len; i += 3)
        assert_memory_equal(r.text + i, rep, 3);
    assert_int_equal(r.len, 7 * 3);
}

/* F11: the end cuts a character; U+FFFD in its place was text that nobody had generated. */
static void test_character_cut_by_the_end_is_held_back(void **state) {
    (void)state;
    struct run r;
    feed_all(&r, NULL, LISTOF("q\xe2\x82"));
    assert_string_equal(r.text, "q");
    feed_all(&r, NULL, LISTOF("q", "\xf0", "\x9f\x98"));
    assert_string_equal(r.text, "q");
    feed_all(&r, LISTOF("##"), LISTOF("a#\xe2")); /* behind a beginning of a stop string */
    assert_string_equal(r.text, "a#");
    feed_all(&r, LISTOF("END"), LISTOF("a\xe2\x82", "END")); /* by a stop string */
    assert_string_equal(r.text, "a");
    feed_all(&r, NULL, LISTOF("q\xe2\x82\xff")); /* but this one can never become a character */
    assert_string_equal(r.text, "q\xef\xbf\xbd\xef\xbf\xbd");
}

static void test_stop_string_of_two_characters_after_cut_one(void **state) {
    (void)state;
    struct run r;
    feed_all(&r, LISTOF("\xc3\xa9!"), LISTOF("caf\xc3", "\xa9", "!x"));
    assert_true(r.hit);
    assert_string_equal(r.text, "caf");
}

static void test_bad_stop_strings_are_refused(void **state) {
    (void)state;
    static char big[STOP_MAX_BYTES + 1];
    struct stop s;
    struct stop_str e = {"", 0}, b = {big, sizeof(big)};
    assert_int_equal(stop_init(&s, &e, 1, 8), ERR_INVALID);
    assert_int_equal(stop_init(&s, &b, 1, 8), ERR_INVALID);
    stop_fini(&s);
}

/* Every way of cutting one text into two or three feeds gives the same text. */
static void test_cuts_do_not_matter(void **state) {
    (void)state;
    const char *const text = "ab\xe2\x82\xac STO STOP\xf0\x9f\x98\x80 after";
    size_t n = strlen(text);
    for (size_t i = 0; i <= n; i++) {
        for (size_t j = i; j <= n; j++) {
            char a[64] = {0}, b[64] = {0}, c[64] = {0};
            memcpy(a, text, i);
            memcpy(b, text + i, j - i);
            memcpy(c, text + j, n - j);
            struct run r;
            feed_all(&r, LISTOF("STOP", "xyz"), LISTOF(a, b, c));
            assert_string_equal(r.text, "ab\xe2\x82\xac STO ");
            assert_true(r.hit);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_without_stops_passes_at_once),
        cmocka_unit_test(test_stop_string_over_three_tokens_is_cut),
        cmocka_unit_test(test_false_start_is_released),
        cmocka_unit_test(test_held_text_leaves_at_the_end),
        cmocka_unit_test(test_earliest_stop_wins),
        cmocka_unit_test(test_character_over_tokens_is_held_until_whole),
        cmocka_unit_test(test_invalid_bytes_become_replacement_characters),
        cmocka_unit_test(test_character_cut_by_the_end_is_held_back),
        cmocka_unit_test(test_stop_string_of_two_characters_after_cut_one),
        cmocka_unit_test(test_bad_stop_strings_are_refused),
        cmocka_unit_test(test_cuts_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
