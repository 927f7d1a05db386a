/* test_http_limits.c - who may connect, stay and take how much; and that whatever is left open ends. */
#include <malloc.h>

#include "common/process.h"
#include "tests/support/resident.h"
#include "tests/unit/common/http_fixture.h"

/* A10: 65 idle connections made /healthz answer 503 for 75 s. The one that is idle longest gives way. */
static void test_idle_connections_give_way(void **state) {
    struct fixture *f = *state;
    struct client c[8], more;
    for (int i = 0; i < 8; i++) {
        client_open(&c[i], f);
        client_send(&c[i], "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client_expect(&c[i], "hello");
    }
    client_open(&more, f);
    client_send(&more, "GET /hello?q=ninth HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_expect(&more, "ninth");
    client_expect_eof(&c[0]);
    struct http_server_stats st;
    http_server_stats(f->s, &st);
    assert_int_equal(st.evicted_total, 1);
    for (int i = 1; i < 8; i++) { /* the others are still there */
        c[i].n = 0;
        client_send(&c[i], "GET /hello?q=again HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client_expect(&c[i], "again");
        client_close(&c[i]);
    }
    client_close(&c[0]);
    client_close(&more);
}

/* A10: of two clients the one with many connections pays, whatever it does with them. */
static void test_who_holds_many_gives_way(void **state) {
    struct fixture *f = *state;
    struct client one, many[12];
    client_open_from(&one, f, 2);
    client_send(&one, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_expect(&one, "hello");
    for (int i = 0; i < 12; i++) {
        client_open_from(&many[i], f, 3);
        client_send(&many[i], "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client_expect(&many[i], "hello");
    }
    one.n = 0;
    client_send(&one, "GET /hello?q=still HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_expect(&one, "still");
    for (int i = 0; i < 12; i++)
        client_close(&many[i]);
    client_close(&one);
}

/* A10: with every connection at work probes are answered, others are told. */
static void test_probes_always_answer(void **state) {
    struct fixture *f = *state;
    struct client c[8];
    struct http_req *held[8];
    for (int i = 0; i < 8; i++) {
        f->held = NULL;
        hold(f, &c[i]);
        held[i] = f->held;
    }
    one_shot(f, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 503");
    one_shot(f, "GET /probe HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200");
    for (int i = 0; i < 8; i++) {
        http_reply(held[i], 200, NULL, STR("late"));
        client_expect(&c[i], "late");
        client_close(&c[i]);
    }
}

static void send_body(struct client *c, const char *path, size_t n) {
    static char text[400u << 10];
    int len =
        snprintf(text, sizeof(text),
                 "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", path, n);
    size_t all = (size_t)len + n, at = 0;
    memset(text + len, 'x', n);
    for (int i = 0; at < all && i < 20000; i++) {
        ssize_t k = send(c->fd, text + at, all - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        at += k > 0 ? (size_t)k : 0;
        test_loop_turn(&c->f->tl);
        if (k < 0)
            break; /* refused meanwhile */
    }
}

/* 200 KiB whatever the other side says by now. */
static void send_more(struct client *c) {
    static char text[200u << 10];
    for (size_t at = 0; at < sizeof(text);) {
        ssize_t k = send(c->fd, text + at, sizeof(text) - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        assert_true(k > 0 || errno == EAGAIN);
        at += k > 0 ? (size_t)k : 0;
        test_loop_turn(&c->f->tl);
    }
}

/* A9: 40 bodies of 16 MB were read before the key was looked at. */
static void test_the_head_alone_is_asked(void **state) {
    struct fixture *f = *state;
    struct client c;
    client_open(&c, f);
    client_send(&c, "POST /guarded HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n");
    client_expect(&c, "HTTP/1.1 401"); /* not a byte of the body was sent */
    client_expect_eof(&c);             /* and what would come is no request */
    assert_null(strstr(c.in, "100 Continue"));
    assert_int_equal(f->n_calls, 0);
    client_close(&c);
    one_shot(
        f,
        "POST /guarded HTTP/1.1\r\nHost: localhost\r\nX-Key: good\r\nContent-Length: 3\r\n\r\nabc",
        "\r\n\r\nabc");
    client_open(&c, f); /* who is still sending megabytes hears why, and is not reset */
    client_send(&c, "POST /guarded HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                    "chunked\r\n\r\n800000\r\n");
    for (int i = 0; i < 20; i++)
        send_more(&c);
    client_expect(&c, "HTTP/1.1 401");
    client_expect(&c, "no key");
    client_close(&c);
    one_shot(f, "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n",
             "HTTP/1.1 404");
    one_shot(f, "PUT /guarded HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n",
             "HTTP/1.1 405");
}

/* A9: all bodies share one budget; who fills it is told, others are not. */
static void test_bodies_share_a_budget(void **state) {
    (void)state;
    struct fixture *f = open_fixture(
        (struct http_server_cfg){.max_body_bytes = 1u << 20, .max_bodies_bytes = 512u << 10});
    struct client a, b, other;
    client_open_from(&a, f, 2);
    send_body(&a, "/hold", 300u << 10);
    assert_true(test_loop_until_fn(&f->tl, has_held, f));
    struct http_req *held = f->held;
    client_open_from(&b, f, 2);
    send_body(&b, "/echo", 300u << 10);
    client_expect(&b, "HTTP/1.1 503");
    client_expect(&b, "Retry-After: ");
    client_open_from(&other, f, 3);
    send_body(&other, "/echo", 50u << 10);
    client_expect(&other, "HTTP/1.1 200");
    http_reply(held, 200, NULL, STR("done"));
    client_expect(&a, "done");
    client_close(&b);
    client_open_from(&b, f, 2);
    send_body(&b, "/hold", 300u << 10); /* what was held is free again */
    f->held = NULL;
    assert_true(test_loop_until_fn(&f->tl, has_held, f));
    http_reply(f->held, 200, NULL, STR("done"));
    client_expect(&b, "done");
    client_close(&a);
    client_close(&b);
    client_close(&other);
    void *st = f;
    teardown(&st);
}

static bool no_conns(void *arg) {
    struct http_server_stats st;
    http_server_stats(((struct fixture *)arg)->s, &st);
    return st.conns == 0;
}

/* Bodies of many clients that grow side by side cost what they have, and nothing when they are gone: the heap kept
 * as much again in holes, for ever. */
static void test_bodies_cost_their_bytes(void **state) {
    (void)state;
    enum { N = 60, PART = 64 << 10, PARTS = 40, BUDGET = 64 << 20, SLACK = 4 << 20 };
    static struct client c[N];
    static char part[PART];
    struct fixture *f = open_fixture((struct http_server_cfg){
        .max_conns = 2 * N, .max_body_bytes = PART * PARTS * 2, .max_bodies_bytes = BUDGET});
    memset(c, 1, sizeof(c));
    uint64_t before = resident_bytes(), most = before;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            client_open_from(&c[i], f, 2 + (uint32_t)i);
            client_send(
                &c[i], "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n");
        }
        for (int k = 0; k < PARTS * N; k++) {
            (void)!send(c[k % N].fd, part, PART - (size_t)(k % N) * 512,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
            test_loop_turn(&f->tl);
            most = MAX(most, resident_bytes());
        }
        for (int i = 0; i < N; i++)
            client_close(&c[i]);
        assert_true(test_loop_until_fn(&f->tl, no_conns, f));
    }
    uint64_t now = resident_bytes();
    printf("bodies of %d MiB: %llu MiB more, %llu behind them\n", BUDGET >> 20,
           (unsigned long long)(most - before) >> 20,
           (unsigned long long)(now - MIN(now, before)) >> 20);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what is freed */
    assert_true(most - before <= BUDGET + SLACK);
    assert_true(now - MIN(now, before) <= SLACK);
#endif
    void *st = f;
    teardown(&st);
}

static void on_big(struct http_req *r, void *arg) {
    static char big[8u << 20];
    (void)arg;
    http_reply(r, 200, NULL, (struct str){big, sizeof(big)});
}

/* A client that reads nothing is dropped, answered or streamed to. */
static void test_client_that_reads_nothing_is_dropped(void **state) {
    (void)state;
    struct fixture *f = open_fixture((struct http_server_cfg){.stall_timeout_ms = 30});
    routes[0].cb = on_big;
    struct client c;
    client_open(&c, f);
    client_send(&c, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_expect(&c, "HTTP/1.1 200");
    assert_true(test_loop_until_fn(&f->tl, no_conns, f));
    client_close(&c);
    hold(f, &c);
    static char chunk[1u << 20];
    assert_int_equal(http_stream_begin(f->held, 200, NULL), 0);
    for (int i = 0; i < 64 && !f->n_gone; i++) { /* more than the kernel keeps for it */
        (void)http_stream_write(f->held, chunk, sizeof(chunk));
        test_loop_turn(&f->tl);
    }
    assert_true(test_loop_until_fn(&f->tl, has_gone, f));
    http_stream_end(f->held);
    client_close(&c);
    void *st = f;
    teardown(&st);
}

/* One that takes a few bytes now and then would have its answer, and its place, for ever. */
static void test_client_that_reads_hardly_is_dropped(void **state) {
    (void)state;
    struct fixture *f = open_fixture((struct http_server_cfg){.stall_timeout_ms = 60});
    int fds[2], small = 1;
    char byte[256];
    size_t n = 0;
    routes[0].cb = on_big;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    assert_int_equal(http_server_adopt(f->s, fds[0]), 0);
    static const char ask[] = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_int_equal(send(fds[1], ask, sizeof(ask) - 1, 0), sizeof(ask) - 1);
    while (!no_conns(f) && n < 512u << 10) {
        test_loop_turn(&f->tl);
        ssize_t k = recv(fds[1], byte, sizeof(byte), 0);
        n += k > 0 ? (size_t)k : 0;
        usleep(1000);
    }
    assert_true(no_conns(f));
    close(fds[1]);
    void *st = f;
    teardown(&st);
}

/* "Expect: 100-continue" and then nothing: the answer to it must not have stopped the clock. */
static void test_silence_behind_a_100_continue_times_out(void **state) {
    (void)state;
    struct fixture *f = open_fixture((struct http_server_cfg){.body_timeout_ms = 30});
    struct client c;
    client_open(&c, f);
    client_send(&c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: "
                    "100-continue\r\nContent-Length: 3\r\n\r\n");
    client_expect(&c, "100 Continue");
    client_expect(&c, "HTTP/1.1 408");
    client_close(&c);
    void *st = f;
    teardown(&st);
}

/* B8: a page whose name resolves to 127.0.0.1 (DNS rebinding). */
static void test_host_is_checked_on_loopback(void **state) {
    struct fixture *f = *state;
    static const char *const good[] = {"localhost",     "LOCALHOST:8000", "localhost.",
                                       "a.localhost:1", "127.0.0.1:80",   "10.1.2.3",
                                       "[::1]:8000"};
    static const char *const bad[] = {"evil.example",
                                      "127.0.0.1.evil.example",
                                      "localhost.evil.example:80",
                                      "xlocalhost",
                                      "127.0.0.1x",
                                      "gate.example"};
    char req[256];
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        snprintf(req, sizeof(req), "GET /hello HTTP/1.1\r\nHost: %s\r\n\r\n", good[i]);
        one_shot(f, req, "HTTP/1.1 200");
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        snprintf(req, sizeof(req), "GET /hello HTTP/1.1\r\nHost: %s\r\n\r\n", bad[i]);
        one_shot(f, req, "HTTP/1.1 403");
    }
    static const char *const names[] = {"gate.example"};
    struct fixture *g = open_fixture((struct http_server_cfg){.hosts = names, .n_hosts = 1});
    one_shot(g, "GET /hello HTTP/1.1\r\nHost: Gate.example:81\r\n\r\n", "HTTP/1.1 200");
    one_shot(g, "GET /hello HTTP/1.1\r\nHost: evil.example\r\n\r\n", "HTTP/1.1 403");
    void *st = g;
    teardown(&st);
    g = open_fixture((struct http_server_cfg){.any_host = true});
    one_shot(g, "GET /hello HTTP/1.1\r\nHost: evil.example\r\n\r\n", "HTTP/1.1 200");
    st = g;
    teardown(&st);
}

static void test_slow_head_and_body_time_out(void **state) {
    (void)state;
    struct fixture *f = open_fixture((struct http_server_cfg){
        .head_timeout_ms = 20, .body_timeout_ms = 20, .idle_timeout_ms = 30});
    one_shot(f, "GET /hel", "HTTP/1.1 408");
    one_shot(f, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab",
             "HTTP/1.1 408");
    struct client c;
    client_open(&c, f);
    client_expect_eof(&c); /* idle: closed without a word */
    assert_int_equal(c.n, 0);
    client_close(&c);
    void *st = f;
    teardown(&st);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN); /* as the daemons do: libuv does not */
    process_memory();
    mallopt(M_PERTURB, 0); /* the test runner's setting would touch all that is allocated */
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_idle_connections_give_way),
        T(test_who_holds_many_gives_way),
        T(test_probes_always_answer),
        T(test_the_head_alone_is_asked),
        T(test_host_is_checked_on_loopback),
        cmocka_unit_test(test_slow_head_and_body_time_out),
        cmocka_unit_test(test_bodies_share_a_budget),
        cmocka_unit_test(test_bodies_cost_their_bytes),
        cmocka_unit_test(test_client_that_reads_nothing_is_dropped),
        cmocka_unit_test(test_client_that_reads_hardly_is_dropped),
        cmocka_unit_test(test_silence_behind_a_100_continue_times_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
