#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <unistd.h>

#include <cmocka.h>

#include "proto/kv_token.h"

static char path[64]; /* of this process's test file */

static int load(const char *content, enum msg_role role, char *ret) {
    FILE *f = fopen(path, "w");
    fputs(content, f);
    fclose(f);
    char token[KV_TOKEN_MAX_BYTES];
    size_t n = 0;
    struct errbuf eb;
    int rv = kv_token_load(path, role, token, &n, NULL, &eb);
    ret[0] = '\0';
    if (rv == 0)
        snprintf(ret, 64, "%.*s", (int)n, token);
    unlink(path);
    return rv;
}

static void test_bare_token_is_for_any_role(void **state) {
    char t[64];
    (void)state;
    assert_int_equal(load("  s3cret\n", MSG_ROLE_WORKER, t), 0);
    assert_string_equal(t, "s3cret");
    assert_int_equal(load("# comment\n\ns3cret", MSG_ROLE_ADMIN, t), 0);
    assert_string_equal(t, "s3cret");
    assert_int_equal(load("admin\n", MSG_ROLE_WORKER, t), 0); /* one word is a token */
    assert_string_equal(t, "admin");
}

static void test_line_of_the_role_is_taken(void **state) {
    static const char text[] = "# pool\nadmin aaa\nworker  www 0011\r\nworker second\n";
    char t[64];
    (void)state;
    assert_int_equal(load(text, MSG_ROLE_WORKER, t), 0);
    assert_string_equal(t, "www");
    assert_int_equal(load(text, MSG_ROLE_ADMIN, t), 0);
    assert_string_equal(t, "aaa");
    assert_int_equal(load(text, MSG_ROLE_READER, t), ERR_NOTFOUND);
}

static void test_nothing_in_it_is_an_error(void **state) {
    char t[64];
    (void)state;
    assert_int_equal(load("", MSG_ROLE_WORKER, t), ERR_INVALID);
    assert_int_equal(load("# only\n  \n", MSG_ROLE_WORKER, t), ERR_INVALID);
    struct errbuf eb;
    char token[KV_TOKEN_MAX_BYTES];
    size_t n;
    assert_true(kv_token_load("/nowhere/at/all", MSG_ROLE_WORKER, token, &n, NULL, &eb) < 0);
    assert_non_null(strstr(eb.text, "/nowhere/at/all"));
}

int main(void) {
    snprintf(path, sizeof(path), "/tmp/kv-token-%d", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bare_token_is_for_any_role),
        cmocka_unit_test(test_line_of_the_role_is_taken),
        cmocka_unit_test(test_nothing_in_it_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
