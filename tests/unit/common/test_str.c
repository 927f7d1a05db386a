#include "common/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/err.h"

static void test_views(void **state) {
    (void)state;
    assert_true(str_eq(str_trim(STR(" \t a b\r\n")), STR("a b")));
    assert_true(str_eq_nocase(STR("Content-LENGTH"), STR("content-length")));
    assert_false(str_eq_nocase(STR("a"), STR("ab")));
    assert_true(str_ends(STR("ram_bytes"), STR("_bytes")));
    assert_false(str_ends(STR("s"), STR("_bytes")));
    assert_int_equal(str_find(STR("abcabc"), STR("c"), 3), 5);
    assert_true(str_find(STR("abc"), STR("x"), 0) == SIZE_MAX);
    assert_true(str_find((struct str){NULL, 0}, STR("x"), 0) == SIZE_MAX);
    assert_int_equal(str_cut(STR("abc"), 7, 9).n, 0);
    struct str rest = STR("a,,b,"), part;
    const char *want[] = {"a", "", "b"};
    size_t n = 0;
    while (str_split(&rest, ',', &part))
        assert_true(str_eq(part, str_of(want[n++])));
    assert_int_equal(n, 3);
}

static void test_numbers_refuse_what_is_not_one(void **state) {
    (void)state;
    uint64_t u;
    double d;
    assert_int_equal(str_to_u64(STR("18446744073709551615"), &u), 0);
    assert_true(u == UINT64_MAX);
    assert_int_equal(str_to_u64(STR("18446744073709551616"), &u), ERR_INVALID);
    assert_int_equal(str_to_u64(STR(""), &u), ERR_INVALID);
    assert_int_equal(str_to_u64(STR("+1"), &u), ERR_INVALID);
    assert_int_equal(str_to_u64(STR("1 "), &u), ERR_INVALID);
    assert_int_equal(str_to_f64(STR("-1.5e3"), &d), 0);
    assert_true(d == -1500.0);
    assert_int_equal(str_to_f64(STR("inf"), &d), ERR_INVALID);
    assert_int_equal(str_to_f64(STR("1e999"), &d), ERR_INVALID);
    assert_int_equal(str_to_f64(STR("0x10"), &d), ERR_INVALID);
}

static void test_utf8(void **state) {
    (void)state;
    assert_true(str_is_utf8(STR("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80")));
    assert_false(str_is_utf8(STR("\xc0\x80")));         /* overlong */
    assert_false(str_is_utf8(STR("\xed\xa0\x80")));     /* surrogate */
    assert_false(str_is_utf8(STR("\xf4\x90\x80\x80"))); /* past U+10FFFF */
    assert_false(str_is_utf8(STR("\xe2\x82")));         /* cut */
    assert_false(str_is_utf8(STR("\xff")));
}

static void test_builder_grows_and_steals(void **state) {
    (void)state;
    struct strbuf b;
    strbuf_init(&b);
    for (int i = 0; i < 1000; i++)
        strbuf_addf(&b, "%d,", i);
    assert_int_equal(b.len, 10 * 2 + 90 * 3 + 900 * 4);
    assert_int_equal(b.p[b.len], 0);
    char *z = strbuf_steal(&b);
    assert_int_equal(strlen(z), 3890);
    free(z);
    assert_null(b.p);
    char big[1000];
    memset(big, 'x', sizeof(big) - 1);
    big[999] = '\0';
    strbuf_addf(&b, "<%s>", big); /* longer than the first guess */
    assert_int_equal(b.len, 1001);
    strbuf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_numbers_refuse_what_is_not_one),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_builder_grows_and_steals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
