/* Tokens and what they allow. */
#include "cachesvc/auth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "proto/wire_msg.h"
#include "tests/support/tmpdir.h"

#define DIGEST_A "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static int load(struct auth *a, const char *text, struct errbuf *eb) {
    struct tmpdir d;
    char path[512];
    tmpdir_setup(&d);
    tmpdir_write(&d, "tokens", text, strlen(text));
    int rv = auth_load(a, tmpdir_join(&d, "tokens", path, sizeof(path)), NULL, eb);
    tmpdir_teardown(&d);
    return rv;
}

static int check(const struct auth *a, const char *token, uint32_t role) {
    const struct auth_token *row;
    return auth_check(a, token, strlen(token), role, &row);
}

static void test_roles_and_tokens(void **state) {
    (void)state;
    struct auth a = {0};
    struct errbuf eb;
    assert_int_equal(load(&a,
                          "worker   worker-token-0123\n\nadmin admin-token-012345\r\nreader "
                          "reader-token-0123 " DIGEST_A "\n",
                          &eb),
                     0);
    assert_int_equal(a.n, 3);
    assert_int_equal(check(&a, "worker-token-0123", MSG_ROLE_WORKER), 0);
    assert_int_equal(check(&a, "worker-token-0123", MSG_ROLE_ADMIN), ERR_DENIED);
    assert_int_equal(check(&a, "admin-token-012345", MSG_ROLE_ADMIN), 0);
    assert_int_equal(check(&a, "worker-token-012", MSG_ROLE_WORKER), ERR_DENIED);   /* a prefix */
    assert_int_equal(check(&a, "worker-token-01234", MSG_ROLE_WORKER), ERR_DENIED); /* longer */
    assert_int_equal(check(&a, "", MSG_ROLE_WORKER), ERR_DENIED);
    auth_fini(&a);
}

static void test_no_tokens_opens_every_role(void **state) {
    (void)state;
    struct auth a = {0};
    assert_int_equal(check(&a, "", MSG_ROLE_ADMIN), 0);
    assert_int_equal(check(&a, "whatever", MSG_ROLE_WORKER), 0);
}

static void test_namespaces_of_a_token(void **state) {
    (void)state;
    struct auth a = {0};
    struct errbuf eb;
    uint8_t allowed[DIGEST_BYTES], other[DIGEST_BYTES] = {1};
    assert_int_equal(load(&a, "worker worker-token-0123 " DIGEST_A "\n", &eb), 0);
    assert_int_equal(digest_unhex(DIGEST_A, DIGEST_BYTES, allowed), 0);
    assert_true(auth_ns_allowed(&a.tokens[0], allowed));
    assert_false(auth_ns_allowed(&a.tokens[0], other));
    assert_true(auth_ns_allowed(NULL, other)); /* no tokens configured */
    auth_fini(&a);
}

static void test_bad_files_name_the_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {{"worker short\n", "line 1"},
                 {"worker worker-token-0123\nking king-token-012345\n", "line 2"},
                 {"worker\n", "line 1"},
                 {"worker worker-token-0123 nothex\n", "line 1"},
                 {"\n\n", "no token"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct auth a = {0};
        struct errbuf eb = {{0}};
        assert_true(load(&a, cases[i].text, &eb) < 0);
        if (!strstr(eb.text, cases[i].want))
            fail_msg("'%s' lacks '%s'", eb.text, cases[i].want);
        auth_fini(&a);
    }
    struct auth a = {0};
    struct errbuf eb;
    assert_true(auth_load(&a, "/nonexistent/tokens", NULL, &eb) < 0);
}

/* B7: tabs work for the node as for its clients, and what a long comment says is no token: past 2,047
 * bytes it was read as a line of its own and opened a session. */
static void test_tabs_and_long_comments(void **state) {
    (void)state;
    char text[5000] = "\xef\xbb\xbf"
                      "worker\tworker-token-0123\r\n# ";
    struct auth a = {0};
    struct errbuf eb;
    size_t n = strlen(text);
    memset(text + n, 'x', 2060);
    snprintf(text + n + 2013, sizeof(text) - n - 2013,
             "worker token-of-a-comment\nadmin  admin-token-012345 ");
    assert_int_equal(load(&a, text, &eb), 0);
    assert_int_equal(a.n, 2);
    assert_int_equal(check(&a, "worker-token-0123", MSG_ROLE_WORKER), 0);
    assert_int_equal(check(&a, "admin-token-012345", MSG_ROLE_ADMIN), 0);
    assert_int_equal(check(&a, "token-of-a-comment", MSG_ROLE_WORKER), ERR_DENIED);
    auth_fini(&a);
}

/* B1: a token sees what another may do only when all of that is its own. */
static void test_who_may_see_whom(void **state) {
    (void)state;
    struct auth_token all = {0}, a = {.n_ns = 1, .ns = {{1}}}, ab = {.n_ns = 2, .ns = {{1}, {2}}};
    assert_true(auth_covers(NULL, NULL)); /* no tokens configured */
    assert_true(auth_covers(&all, &ab));
    assert_true(auth_covers(&ab, &a));
    assert_true(auth_covers(&ab, &ab));
    assert_false(auth_covers(&a, &ab));
    assert_false(auth_covers(&ab, &all));
    assert_false(auth_covers(&a, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roles_and_tokens),
        cmocka_unit_test(test_no_tokens_opens_every_role),
        cmocka_unit_test(test_namespaces_of_a_token),
        cmocka_unit_test(test_who_may_see_whom),
        cmocka_unit_test(test_bad_files_name_the_line),
        cmocka_unit_test(test_tabs_and_long_comments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
