#include "common/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void test_parse_and_walk(void **state) {
    (void)state;
    struct errbuf eb;
    CLEANUP(json_freep) struct json_t *j = NULL;
    assert_int_equal(json_parse(STR("{\"b\":[1,2.5,true,null,\"x\\u00e4\"],\"a\":-7}"), &j, &eb),
                     0);
    const struct json_t *b = json_member(j, "b");
    assert_int_equal(json_kind(b), JSON_KIND_ARRAY);
    assert_int_equal(json_count(b), 5);
    assert_int_equal(json_int(json_item(b, 0)), 1);
    assert_true(json_num(json_item(b, 1)) == 2.5 && json_num(json_item(b, 0)) == 1.0);
    assert_true(json_truth(json_item(b, 2)));
    assert_int_equal(json_kind(json_item(b, 3)), JSON_KIND_NULL);
    assert_true(str_eq(json_text(json_item(b, 4)), STR("x\xc3\xa4")));
    assert_int_equal(json_int(json_member(j, "a")), -7);
    assert_int_equal(json_kind(json_member(j, "none")), JSON_KIND_NONE);
    assert_int_equal(json_kind(json_member(b, "not an object")), JSON_KIND_NONE);
    size_t n = 0;
    for (void *it = json_iter(j); it; it = json_iter_next(j, it), n++)
        assert_string_equal(json_iter_key(it), n ? "a" : "b"); /* file order */
    assert_int_equal(n, 2);
}

static void test_refuses(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "{",
                                      "{\"a\":1,\"a\":2}",
                                      "[\"\xff\"]",
                                      "[1] x",
                                      "nope",
                                      "[1e999-5]",
                                      "[99999999999999999999-]",
                                      "[-]",
                                      "{\"a\\u0000b\":1}",
                                      "[\"\\ud800]",
                                      "[\"\\u\"]"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct errbuf eb = {{0}};
        struct json_t *j = NULL;
        assert_int_equal(json_parse(str_of(bad[i]), &j, &eb), ERR_INVALID);
        assert_non_null(strstr(eb.text, "line"));
    }
}

/* F10: JSON that the library gives up on ("too big integer", "NUL byte", "unpaired surrogate"): what can be
 * judged by whoever knows the field is read. */
static void test_what_fits_no_type_is_read_as_near_as_it_goes(void **state) {
    (void)state;
    static const struct {
        const char *json;
        enum json_kind kind;
        double num;
        struct str text;
    } cases[] = {
        {"9223372036854775807", JSON_KIND_INT, 9223372036854775807.0, {0}},
        {"-9223372036854775808", JSON_KIND_INT, -9223372036854775808.0, {0}},
        {"9223372036854775808", JSON_KIND_REAL, 9223372036854770000.0, {0}},
        {"-99999999999999999999", JSON_KIND_REAL, -9999999999999999e4, {0}},
        {"1e999", JSON_KIND_REAL, 1e308, {0}},
        {"-123456.5e400", JSON_KIND_REAL, -1e308, {0}},
        {"\"a\\u0000b\"", JSON_KIND_STRING, 0, {"a\0b", 3}},
        {"\"\\ud83d\\ude00\"", JSON_KIND_STRING, 0, {"\xf0\x9f\x98\x80", 4}},
        {"\"\\ud800x\"", JSON_KIND_STRING, 0, {"\xef\xbf\xbdx", 4}},
        {"\"\\udc00\\ud800\"", JSON_KIND_STRING, 0, {"\xef\xbf\xbd\xef\xbf\xbd", 6}},
        {"\"\\ud83d\\u0041\"",
         JSON_KIND_STRING,
         0,
         {"\xef\xbf\xbd"
          "A",
          4}},
        {"\"\\\\ud800 12345678901234567890\"",
         JSON_KIND_STRING,
         0,
         {"\\ud800 12345678901234567890", 27}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[128];
        struct errbuf eb = {{0}};
        CLEANUP(json_freep) struct json_t *j = NULL;
        snprintf(text, sizeof(text), "[%s]", cases[i].json);
        if (json_parse(str_of(text), &j, &eb) < 0)
            fail_msg("%s: %s", text, eb.text);
        assert_int_equal(json_kind(json_item(j, 0)), cases[i].kind);
        assert_true(json_num(json_item(j, 0)) == cases[i].num || cases[i].kind == JSON_KIND_STRING);
        assert_true(str_eq(json_text(json_item(j, 0)), cases[i].text));
    }
    struct strbuf b = {0}; /* 400 digits */
    strbuf_addz(&b, "[-");
    for (int i = 0; i < 400; i++)
        strbuf_addc(&b, '7');
    strbuf_addz(&b, "]");
    CLEANUP(json_freep) struct json_t *j = NULL;
    assert_int_equal(json_parse(strbuf_view(&b), &j, NULL), 0);
    assert_true(json_num(json_item(j, 0)) == -1e308);
    strbuf_fini(&b);
}

/* "[" unit, unit, ... "]" with n commas */
static int parse_many(const char *unit, uint32_t n) {
    struct strbuf b;
    strbuf_init(&b);
    strbuf_addc(&b, '[');
    for (uint32_t i = 0; i <= n; i++) {
        if (i)
            strbuf_addc(&b, ',');
        strbuf_addz(&b, unit);
    }
    strbuf_addc(&b, ']');
    CLEANUP(json_freep) struct json_t *j = NULL;
    struct errbuf eb = {{0}};
    int rv = json_parse(strbuf_view(&b), &j, &eb);
    assert_true(rv == 0 || strstr(eb.text, "1048576 values, or 65536 arrays and objects"));
    strbuf_fini(&b);
    return rv;
}

/* A body of 16 MiB, "[{},{},...", cost 1.2 GiB beside itself, one of single digits 320 MiB. */
static void test_values_are_bounded(void **state) {
    (void)state;
    assert_int_equal(parse_many("1", JSON_MAX_VALUES - 1), 0);
    assert_int_equal(parse_many("1", JSON_MAX_VALUES), ERR_TOOBIG);
    assert_int_equal(parse_many("\"[{,\\\",\"", JSON_MAX_NODES), 0); /* a text is one */
    assert_int_equal(parse_many("[]", JSON_MAX_NODES - 2), 0);
    assert_int_equal(parse_many("{}", JSON_MAX_NODES - 1), ERR_TOOBIG);
}

static void test_writer_puts_commas_and_escapes(void **state) {
    (void)state;
    struct strbuf b;
    struct json_w w;
    strbuf_init(&b);
    json_w_init(&w, &b);
    json_w_obj(&w);
    json_w_kint(&w, "n", -3);
    json_w_key(&w, "l");
    json_w_arr(&w);
    json_w_num(&w, 0.1);
    json_w_num(&w, 3);
    json_w_num(&w, NAN);
    json_w_bool(&w, true);
    json_w_null(&w);
    json_w_arr(&w);
    json_w_end(&w);
    json_w_u64(&w, UINT64_MAX);
    json_w_end(&w);
    json_w_kstr(&w, "s\"", STR("a\n\"\\\x01\xc3\xa4\xff\x7f"));
    json_w_end(&w);
    assert_string_equal(b.p, "{\"n\":-3,\"l\":[0.1,3.0,null,true,null,[],18446744073709551615],"
                             "\"s\\\"\":\"a\\n\\\"\\\\\\u0001\xc3\xa4\xef\xbf\xbd\\u007f\"}");
    strbuf_fini(&b);
}

static void test_numbers_read_back_equal(void **state) {
    (void)state;
    static const double v[] = {0.0, -0.0, 1.0 / 3, 1e300, 5e-324, -2.5, 123456789.125, 1e21};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct strbuf b;
        struct json_w w;
        strbuf_init(&b);
        json_w_init(&w, &b);
        json_w_num(&w, v[i]);
        double back = strtod(b.p, NULL);
        assert_memory_equal(&back, &v[i], sizeof(back));
        strbuf_fini(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_and_walk),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_what_fits_no_type_is_read_as_near_as_it_goes),
        cmocka_unit_test(test_values_are_bounded),
        cmocka_unit_test(test_writer_puts_commas_and_escapes),
        cmocka_unit_test(test_numbers_read_back_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
