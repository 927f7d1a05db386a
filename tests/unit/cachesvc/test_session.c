/* What a session knows by itself. Sessions at a node: tests/integration/. */
#include "cachesvc/svc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/str.h"

static void test_namespace_handles(void **state) {
    (void)state;
    struct session s = {0};
    assert_false(session_may_use_ns(&s, 0));
    assert_false(session_may_use_ns(&s, 1));
    session_note_ns(&s, 0);
    session_note_ns(&s, SESSION_MAX_NS - 1);
    assert_true(session_may_use_ns(&s, 1)); /* handle = number + 1 */
    assert_true(session_may_use_ns(&s, SESSION_MAX_NS));
    assert_false(session_may_use_ns(&s, 2));
    assert_false(session_may_use_ns(&s, SESSION_MAX_NS + 1));
    assert_false(session_may_use_ns(&s, UINT32_MAX));
}

/* B5: a client's name goes into log lines and lists as it came: what is not printable UTF-8 becomes '?', and
 * what is too long is cut between characters. */
static void test_names_are_printable(void **state) {
    (void)state;
    static const struct {
        const char *name, *want;
    } cases[] = {
        {NULL, ""},
        {"worker-1 (host)", "worker-1 (host)"},
        {"gr\xc3\xbc\xc3\x9f \xe4\xb8\x96 \xf0\x9f\x98\x80",
         "gr\xc3\xbc\xc3\x9f \xe4\xb8\x96 \xf0\x9f\x98\x80"},
        {"a\nlevel=error\tb\x7f\x1b[2J", "a?level=error?b??[2J"},
        {"\xc2\x85\xc2\x9b\xc2\xa0", "??\xc2\xa0"}, /* C1 controls */
        {"\xe2\x80\xae\xe2\x81\xa6\xe2\x80\xa8\xe2\x80\x8b.",
         "????."},                           /* direction, line, zero width */
        {"\xff\xc3:\xed\xa0\x80", "??:???"}, /* not UTF-8 */
    };
    struct session s;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        session_set_name(&s, cases[i].name);
        assert_string_equal(s.name, cases[i].want);
    }
    char text[81];
    for (int i = 0; i < 80; i++)
        text[i] = i % 2 ? '\xbc' : '\xc3';
    text[80] = '\0';
    session_set_name(&s, text);
    assert_int_equal(strlen(s.name), SESSION_NAME_BYTES - 2); /* 31 whole characters */
    assert_true(str_is_utf8(str_of(s.name)));
}

/* B5: the caller's trace id is logged when it is one. */
static void test_trace_ids_have_their_form(void **state) {
    (void)state;
    static const char good[] = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
    assert_string_equal(svc_trace(good), good);
    static const char *const bad[] = {NULL,
                                      "",
                                      "x",
                                      "00-0123456789ABCDEF0123456789abcdef-0123456789abcdef-01",
                                      "00-0123456789abcdef0123456789abcdef-0123456789abcdef-0\n",
                                      "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01x",
                                      "00_0123456789abcdef0123456789abcdef-0123456789abcdef-01"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_string_equal(svc_trace(bad[i]), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_printable),
        cmocka_unit_test(test_trace_ids_have_their_form),
        cmocka_unit_test(test_namespace_handles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
