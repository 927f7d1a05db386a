#include "worker/text/unicode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

static pcre2_code *compile(const char *pattern) {
    int err;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &err, &at, NULL);
    assert_non_null(re);
    return re;
}

/* Every code point against PCRE2, which knows a Unicode version of its own: where that is ours (Debian 12)
 * none may differ, else only code points that the newer version added. */
static void test_classes_equal_pcre2(void **state) {
    (void)state;
    enum { N = 7 };
    static const char *const patterns[N] = {
        "^\\p{L}$", "^\\p{N}$", "^\\s$", "^[\\p{Lu}\\p{Lt}]$", "^\\p{Ll}$", "^\\p{M}$", "^\\p{P}$"};
    const unsigned cls[N] = {UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE, UNICODE_UPPER,
                             UNICODE_LOWER,  UNICODE_MARK,   UNICODE_PUNCT};
    pcre2_code *re[N];
    for (int k = 0; k < N; k++)
        re[k] = compile(patterns[k]);
    pcre2_match_data *md = pcre2_match_data_create(4, NULL);
    char version[32];
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    bool same_version = strcmp(version, unicode_version()) == 0;
    unsigned differ = 0, missing = 0;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        unsigned len = utf8_encode(cp, s);
        for (int k = 0; k < N; k++) {
            bool theirs =
                pcre2_match(re[k], (PCRE2_SPTR)s, len, 0, PCRE2_NO_UTF_CHECK, md, NULL) >= 0;
            bool ours = ((unicode_class(cp) | unicode_detail(cp)) & cls[k]) != 0;
            /* PCRE2's $ also matches before a last line break, and U+180E changed sides long ago. */
            if (ours == theirs || cp == 0x180E)
                continue;
            differ++;
            missing += ours && !theirs;
        }
    }
    pcre2_match_data_free(md);
    for (int k = 0; k < N; k++)
        pcre2_code_free(re[k]);
    assert_int_equal(missing, 0);
    if (same_version)
        assert_int_equal(differ, 0);
}

static void test_no_code_point_has_two_classes(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x110000; cp++) {
        unsigned c = unicode_class(cp), d = unicode_detail(cp);
        assert_int_equal(c & (c - 1), 0);
        assert_int_equal(d & (d - 1), 0);
    }
    assert_int_equal(unicode_class(UNICODE_BAD_BYTE), 0);
}

static void test_utf8_round_trip(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        uint32_t back;
        unsigned len = utf8_encode(cp, s);
        unsigned got = utf8_decode(s, len, &back);
        if (cp >= 0xD800 && cp < 0xE000) {
            assert_int_equal(back, UNICODE_BAD_BYTE);
            assert_int_equal(got, 1);
            continue;
        }
        assert_int_equal(back, cp);
        assert_int_equal(got, len);
    }
}

static void test_utf8_bad_sequences_are_one_byte_each(void **state) {
    (void)state;
    static const char *const bad[] = {"\x80",
                                      "\xC0\x80",
                                      "\xC1\xBF",
                                      "\xE0\x80\x80",
                                      "\xED\xA0\x80",
                                      "\xF0\x80\x80\x80",
                                      "\xF4\x90\x80\x80",
                                      "\xF5\x80\x80\x80",
                                      "\xE2\x82",
                                      "\xE2\x28\xA1",
                                      "\xFF"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        uint32_t cp;
        assert_int_equal(utf8_decode(bad[i], strlen(bad[i]), &cp), 1);
        assert_int_equal(cp, UNICODE_BAD_BYTE);
        assert_false(utf8_is_valid(bad[i], strlen(bad[i])));
    }
    assert_true(utf8_is_valid("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 10));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes_equal_pcre2),
        cmocka_unit_test(test_no_code_point_has_two_classes),
        cmocka_unit_test(test_utf8_round_trip),
        cmocka_unit_test(test_utf8_bad_sequences_are_one_byte_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
