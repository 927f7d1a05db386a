/* The Redis connection against a server that misbehaves in ways a real one does not. */
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <hiredis/hiredis.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_come_in_pieces),
        cmocka_unit_test(test_no_answer_drops_the_connection_and_tells_each_command),
        cmocka_unit_test(test_a_server_that_accepts_and_says_nothing_is_not_up),
        cmocka_unit_test(test_garbage_drops_the_connection),
        cmocka_unit_test(test_closed_in_the_middle_of_a_pipeline),
        cmocka_unit_test(test_wrong_password_is_tried_again_and_said),
        cmocka_unit_test(test_close_with_commands_under_way_tells_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
