/* The Redis connection against a server that misbehaves in ways a real one does not. */
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <hiredis/hiredis.h>
#include <netdb.h>

#include "cachesvc/index/redis_conn.h"
#include "tests/support/resp_server.h"
#include "tests/support/test_loop.h"

struct fx {
    struct test_loop tl;
    struct resp_server srv;
    struct redis_conn *c;
    uint32_t n_up, n_down, n_reply, n_lost, n_error;
    char why[128];
    bool closed;
};

static void on_up(void *arg) {
    ((struct fx *)arg)->n_up++;
}
static void on_down(void *arg, const char *why) {
    struct fx *f = arg;
    f->n_down++;
    snprintf(f->why, sizeof(f->why), "%s", why);
}
static void on_closed(void *arg) {
    ((struct fx *)arg)->closed = true;
}
static void on_reply(void *arg, uint64_t tag, const struct redisReply *r) {
    struct fx *f = arg;
    (void)tag;
    f->n_reply += r != NULL;
    f->n_lost += r == NULL;
    f->n_error += r && r->type == REDIS_REPLY_ERROR;
}

static void setup(struct fx *f, const char *password) {
    memset(f, 0, sizeof(*f));
    test_loop_setup(&f->tl);
    resp_server_open(&f->srv, &f->tl.loop);
    char addr[64];
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", f->srv.port);
    struct redis_conn_cfg cfg = {.addr = addr,
                                 .password = password,
                                 .connect_timeout_ms = 60,
                                 .reply_timeout_ms = 60,
                                 .backoff_min_ms = 1,
                                 .backoff_max_ms = 20,
                                 .on_up = on_up,
                                 .on_down = on_down,
                                 .arg = f};
    assert_int_equal(redis_conn_open(&f->c, &f->tl.loop, &cfg, NULL), 0);
}

static void teardown(struct fx *f) {
    redis_conn_close(f->c, 0, on_closed, f);
    assert_true(test_loop_until(&f->tl, &f->closed));
    assert_int_equal(f->srv.n_commands > 0, 1);
    resp_server_close(&f->srv);
    test_loop_teardown(&f->tl);
}

static bool is_up(void *arg) {
    return redis_conn_is_up(((struct fx *)arg)->c);
}
static bool is_down_twice(void *arg) {
    return ((struct fx *)arg)->n_down >= 2;
}
static bool is_answered(void *arg) {
    struct fx *f = arg;
    return f->n_reply + f->n_lost > 0 && redis_conn_outstanding(f->c) == 0;
}

static int get(struct fx *f, const char *key) {
    const char *argv[] = {"GET", key};
    size_t len[] = {3, strlen(key)};
    return redis_conn_cmd(f->c, 2, argv, len, on_reply, f, 7);
}

static void test_answers_come_in_pieces(void **state) {
    (void)state;
    struct fx f;
    setup(&f, NULL);
    f.srv.drip = true;
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    for (int i = 0; i < 20; i++)
        assert_int_equal(get(&f, "nothing"), 0);
    assert_true(test_loop_until_fn(&f.tl, is_answered, &f));
    assert_int_equal(f.n_reply, 20);
    teardown(&f);
}

static void test_no_answer_drops_the_connection_and_tells_each_command(void **state) {
    (void)state;
    struct fx f;
    setup(&f, NULL);
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    f.srv.is_mute = true;
    for (int i = 0; i < 5; i++)
        assert_int_equal(get(&f, "x"), 0);
    assert_true(test_loop_until_fn(&f.tl, is_answered, &f));
    assert_int_equal(f.n_lost, 5);
    assert_string_equal(f.why, "no answer in time");
    assert_int_equal(get(&f, "x"), ERR_UNAVAILABLE);
    f.srv.is_mute = false;
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    assert_int_equal(f.n_up, 2);
    teardown(&f);
}

static void test_a_server_that_accepts_and_says_nothing_is_not_up(void **state) {
    (void)state;
    struct fx f;
    setup(&f, NULL);
    f.srv.is_mute = true;
    assert_true(test_loop_until_fn(&f.tl, is_down_twice, &f));
    assert_int_equal(f.n_up, 0);
    assert_string_equal(f.why, "connect timed out");
    teardown(&f);
}

static void test_garbage_drops_the_connection(void **state) {
    (void)state;
    struct fx f;
    setup(&f, NULL);
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    f.srv.is_garbage = true;
    assert_int_equal(get(&f, "x"), 0);
    assert_true(test_loop_until_fn(&f.tl, is_down_twice, &f));
    assert_int_equal(f.n_lost, 1);
    f.srv.is_garbage = false;
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    teardown(&f);
}

/* An answer that nobody asked for: hiredis' asynchronous half aborted the node. */
static void test_more_answers_than_questions_end_the_connection(void **state) {
    (void)state;
    struct fx f;
    setup(&f, NULL);
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    f.srv.is_doubling = true;
    assert_int_equal(get(&f, "x"), 0);
    assert_true(test_loop_until_fn(&f.tl, is_down_twice, &f));
    assert_int_equal(f.n_reply, 1);
    assert_string_equal(f.why, "an answer that nobody asked for");
    f.srv.is_doubling = false;
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    teardown(&f);
}

static void test_closed_in_the_middle_of_a_pipeline(void **state) {
    (void)state;
    struct fx f;
    setup(&f, NULL);
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    f.srv.close_after = 4;
    for (int i = 0; i < 10; i++)
        assert_int_equal(get(&f, "x"), 0);
    assert_true(test_loop_until_fn(&f.tl, is_answered, &f));
    assert_int_equal(f.n_reply + f.n_lost, 10);
    assert_true(f.n_lost >= 7);
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    teardown(&f);
}

static void test_wrong_password_is_tried_again_and_said(void **state) {
    (void)state;
    struct fx f;
    setup(&f, "secret");
    f.srv.password = "another";
    assert_true(test_loop_until_fn(&f.tl, is_down_twice, &f));
    assert_int_equal(f.n_up, 0);
    assert_non_null(strstr(f.why, "WRONGPASS"));
    f.srv.password = "secret";
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    teardown(&f);
}

static void test_close_with_commands_under_way_tells_them(void **state) {
    (void)state;
    struct fx f;
    setup(&f, NULL);
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    f.srv.is_mute = true;
    for (int i = 0; i < 3; i++)
        assert_int_equal(get(&f, "x"), 0);
    teardown(&f);
    assert_int_equal(f.n_lost, 3);
}

/* ---- names with several addresses: "NAME" resolves to what the test says ---- */

static const char *const *resolve_to; /* numeric, NULL-terminated; NULL: the real resolver */

/* In place of libc's, for libuv, too. */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **ret) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!resolve_to || !host || strcmp(host, "two.test") != 0)
        return real(host, service, hints, ret);
    struct addrinfo **tail = ret;
    for (const char *const *ip = resolve_to; *ip; ip++) {
        if (real(*ip, service, hints, tail) != 0)
            return EAI_FAIL;
        tail = &(*tail)->ai_next;
    }
    return 0;
}

static void setup_named(struct fx *f, const char *const *ips) {
    memset(f, 0, sizeof(*f));
    test_loop_setup(&f->tl);
    resp_server_open(&f->srv, &f->tl.loop);
    resolve_to = ips;
    char addr[64];
    snprintf(addr, sizeof(addr), "two.test:%u", f->srv.port);
    struct redis_conn_cfg cfg = {.addr = addr,
                                 .connect_timeout_ms = 60,
                                 .backoff_min_ms = 600000, /* longer than the test may take */
                                 .backoff_max_ms = 600000,
                                 .on_up = on_up,
                                 .on_down = on_down,
                                 .arg = f};
    assert_int_equal(redis_conn_open(&f->c, &f->tl.loop, &cfg, NULL), 0);
}

/* G4: of a name with a dead first and a living second address only the first was tried, for ever; so was
 * localhost where it is ::1 first. */
static void test_every_address_of_a_name_is_tried(void **state) {
    (void)state;
    static const char *const cases[][4] = {
        {"127.0.0.2", "127.0.0.1"}, {"::1", "127.0.0.1"}, {"::1", "127.0.0.3", "127.0.0.1"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fx f;
        setup_named(&f, cases[i]);
        assert_true(test_loop_until_fn(&f.tl, is_up, &f));
        assert_true(f.n_down >= 1);
        teardown(&f);
    }
}

static void test_the_next_address_follows_one_that_is_mute_or_refused(void **state) {
    (void)state;
    static const char *const ips[] = {"127.0.0.2", "127.0.0.1", NULL};
    struct fx f;
    struct resp_server mute;
    setup_named(&f, ips);
    assert_true(resp_server_open_at(&mute, &f.tl.loop, "127.0.0.2", f.srv.port));
    mute.is_mute = true;
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    assert_true(mute.n_accepted == 1 && f.srv.n_accepted == 1);
    resp_server_close(&mute);
    teardown(&f);
    /* a replica first: its owner refuses it */
    setup_named(&f, ips);
    assert_true(resp_server_open_at(&mute, &f.tl.loop, "127.0.0.2", f.srv.port));
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    assert_int_equal(mute.n_accepted, 1);
    redis_conn_refuse(f.c, "READONLY");
    assert_false(redis_conn_is_up(f.c));
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    assert_int_equal(f.srv.n_accepted, 1);
    redis_conn_settled(f.c);
    resp_server_close(&mute);
    teardown(&f);
    resolve_to = NULL;
}

/* The backoff doubles while connections come up and serve nothing: SELECT is answered by a replica, too. */
static void test_backoff_grows_until_the_connection_serves(void **state) {
    (void)state;
    struct fx f;
    setup(&f, NULL);
    for (uint32_t i = 1; i <= 4; i++) {
        assert_true(test_loop_until_fn(&f.tl, is_up, &f));
        redis_conn_refuse(f.c, "READONLY");
        assert_int_equal(redis_conn_backoff_ms(f.c), 1u << (i - 1));
    }
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    redis_conn_settled(f.c);
    redis_conn_refuse(f.c, "READONLY");
    assert_int_equal(redis_conn_backoff_ms(f.c), 1);
    assert_string_equal(f.why, "READONLY");
    teardown(&f);
}

/* A password that was read again serves with the next login. */
static void test_a_new_password_serves_at_the_next_login(void **state) {
    (void)state;
    struct fx f;
    setup(&f, "old");
    f.srv.password = "new";
    assert_true(test_loop_until_fn(&f.tl, is_down_twice, &f));
    assert_int_equal(redis_conn_set_password(f.c, "new"), 0);
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    teardown(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_come_in_pieces),
        cmocka_unit_test(test_no_answer_drops_the_connection_and_tells_each_command),
        cmocka_unit_test(test_a_server_that_accepts_and_says_nothing_is_not_up),
        cmocka_unit_test(test_garbage_drops_the_connection),
        cmocka_unit_test(test_more_answers_than_questions_end_the_connection),
        cmocka_unit_test(test_closed_in_the_middle_of_a_pipeline),
        cmocka_unit_test(test_wrong_password_is_tried_again_and_said),
        cmocka_unit_test(test_close_with_commands_under_way_tells_them),
        cmocka_unit_test(test_every_address_of_a_name_is_tried),
        cmocka_unit_test(test_the_next_address_follows_one_that_is_mute_or_refused),
        cmocka_unit_test(test_backoff_grows_until_the_connection_serves),
        cmocka_unit_test(test_a_new_password_serves_at_the_next_login),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
