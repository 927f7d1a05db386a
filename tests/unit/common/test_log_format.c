/* Pairs of a line: what a value may hold, in logfmt and in JSON. */
#include "common/log_format.h"

#include <inttypes.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/str.h"

static char text[4096];

static const char *line_of(bool json, size_t cap, const char *fmt, ...) PRINTF_LIKE(3, 4);
static const char *line_of(bool json, size_t cap, const char *fmt, ...) {
    struct log_line l;
    va_list ap;
    memset(text, '#', sizeof(text));
    log_line_begin(&l, text, cap, json);
    va_start(ap, fmt);
    log_line_vpairs(&l, fmt, ap);
    va_end(ap);
    log_line_end(&l);
    assert_in_range(l.n, 1, cap);
    assert_int_equal(text[l.n - 1], '\n');
    assert_int_equal(text[cap], '#'); /* nothing is written past the end */
    text[l.n - 1] = '\0';
    return text;
}
#define LOGFMT(...) line_of(false, 2048, __VA_ARGS__)
#define JSON(...) line_of(true, 2048, __VA_ARGS__)

static void test_plain_values_stand_as_they_are(void **state) {
    (void)state;
    assert_string_equal(LOGFMT(" a=%s b=%u c=%s:%u", "x/y", 7u, "host", 80u),
                        "a=x/y b=7 c=host:80");
    assert_string_equal(LOGFMT("a=%s", "gr\xc3\xbc\xc3\x9f"
                                       "e'"),
                        "a=gr\xc3\xbc\xc3\x9f"
                        "e'");
    assert_string_equal(LOGFMT(" "), "");
}

/* B5: a client's name with blanks and quotes forged fields, one with a newline lines; single quotes are
 * no quotes to a parser of logfmt. */
static void test_values_cannot_forge_fields_or_lines(void **state) {
    (void)state;
    assert_string_equal(LOGFMT("client=%s peer=%s", "x' role=3 y='", "p"),
                        "client=\"x' role=3 y='\" peer=p");
    assert_string_equal(LOGFMT("client=%s", "a\" level=error b=\""),
                        "client=\"a\\\" level=error b=\\\"\"");
    assert_string_equal(LOGFMT("v=%s", "a\nts=1"), "v=\"a\\nts=1\"");
    assert_string_equal(LOGFMT("v=%s", "back\\slash"), "v=back\\slash");
    assert_string_equal(LOGFMT("v=%s", "back\\ slash"), "v=\"back\\\\ slash\"");
    assert_string_equal(LOGFMT("v=%s", "a=b"), "v=\"a=b\"");
    assert_string_equal(LOGFMT("v=%s w=%s", "", (const char *)NULL), "v=\"\" w=-");
    assert_string_equal(LOGFMT("v=%s", "\x1b[2J\x7f\t"), "v=\"\\u001b[2J\\u007f\\t\"");
    assert_string_equal(LOGFMT("v=%s", "\xc2\x9b"
                                       "31m"),
                        "v=\"\\u009b31m\""); /* C1's CSI */
    assert_string_equal(LOGFMT("v=%s", "a\xe2\x80\xae"
                                       "b\xe2\x80\xa8"),
                        "v=\"a\\u202eb\\u2028\"");
    assert_string_equal(LOGFMT("v=%s", "a\xff\xc3"), "v=\"a\\ufffd\\ufffd\"");
    assert_string_equal(LOGFMT("v=%.3s", "a\xc3\xbc\xc3\xbc"), "v=a\xc3\xbc");
    assert_string_equal(LOGFMT("v=%.2s", "ab\xc3\xbc"), "v=ab");
    assert_string_equal(LOGFMT("v=" STR_FMT, STR_ARG(STR("a b"))), "v=\"a b\"");
}

static void test_conversions(void **state) {
    (void)state;
    assert_string_equal(
        LOGFMT("a=%d b=%llu c=%zu d=%" PRIu64 " e=%ld", -3, 1ull << 40, (size_t)5, UINT64_MAX, -9l),
        "a=-3 b=1099511627776 c=5 d=18446744073709551615 e=-9");
    assert_string_equal(
        LOGFMT("a=%08x b=%.3f c=%g d=%c e=%5d f=%-5dx g=%%", 0xabcu, 1.5, 0.25, 'q', 42, 7),
        "a=00000abc b=1.500 c=0.25 d=q e=\"   42\" f=\"7    x\" g=%");
    assert_string_equal(LOGFMT("a=%*d b=%.*s c=%.*s", 4, 5, 2, "xyz", -1, "all"),
                        "a=\"   5\" b=xy c=all");
    assert_string_equal(
        LOGFMT("a=%" PRIu16 " b=%" PRIx64, (uint16_t)65535, (uint64_t)0x1234567890ull),
        "a=65535 b=1234567890");
}

/* JSON of the same pairs parses, with the value that went in. */
static void test_json_lines_parse(void **state) {
    (void)state;
    json_t *doc =
        json_loads(JSON("n=%u z=%d f=%g inf=%g x=%x w=%03d seven=%s id=%s:%u s=%s e=%s", 7u, 0, 0.5,
                        1.0 / 0.0, 255u, -7, "7", "h", 80u, "a \"b\"\n\x01\xff", ""),
                   JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(doc);
    assert_int_equal(json_integer_value(json_object_get(doc, "n")), 7);
    assert_true(json_real_value(json_object_get(doc, "f")) == 0.5);
    assert_string_equal(json_string_value(json_object_get(doc, "inf")), "inf");
    assert_string_equal(json_string_value(json_object_get(doc, "w")), "-07");
    assert_true(json_is_integer(json_object_get(doc, "z")));
    assert_string_equal(json_string_value(json_object_get(doc, "seven")),
                        "7"); /* a text stays one */
    assert_string_equal(json_string_value(json_object_get(doc, "x")), "ff");
    assert_string_equal(json_string_value(json_object_get(doc, "id")), "h:80");
    assert_string_equal(json_string_value(json_object_get(doc, "s")), "a \"b\"\n\x01\xef\xbf\xbd");
    assert_string_equal(json_string_value(json_object_get(doc, "e")), "");
    json_decref(doc);
}

/* Whatever fits, a cut line still parses: quotes and the brace are closed. */
static void test_full_lines_stay_whole(void **state) {
    (void)state;
    char big[3000];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    for (size_t cap = 64; cap < 1400; cap++) {
        big[cap % 37] = '"';
        const char *json =
            line_of(true, cap, "first=%u big=%s num=%llu last=%u", 1u, big, 123456789012ull, 2u);
        json_t *doc = json_loads(json, 0, NULL);
        if (!doc)
            fail_msg("cap %zu: %s", cap, json);
        json_decref(doc);
        const char *text_line = line_of(false, cap, "first=%u big=%s last=%u", 1u, big, 2u);
        size_t quotes = 0;
        for (const char *p = text_line; *p; p++)
            quotes += *p == '"' && p[-1] != '\\';
        assert_int_equal(quotes, 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_values_stand_as_they_are),
        cmocka_unit_test(test_values_cannot_forge_fields_or_lines),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_json_lines_parse),
        cmocka_unit_test(test_full_lines_stay_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
