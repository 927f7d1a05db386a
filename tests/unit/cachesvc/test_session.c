/* What a session knows by itself. Sessions at a node: tests/integration/. */
#include "cachesvc/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_namespace_handles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
