#include "common/http_server.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/fault.h"
#include "tests/support/test_loop.h"

struct fixture {
    struct test_loop tl;
    struct http_server *s;
    bool closed;
    /* what the handlers saw */
    uint32_t n_calls, n_gone;
    struct http_req *held;
    char body[256];
    bool drained;
};

static void on_echo(struct http_req *r, void *arg) {
    struct fixture *f = arg;
    f->n_calls++;
    struct str b = http_req_body(r);
    snprintf(f->body, sizeof(f->body), STR_FMT, STR_ARG(b));
    http_reply(r, 200, "text/plain", b);
}

static void on_hello(struct http_req *r, void *arg) {
    struct fixture *f = arg;
    f->n_calls++;
    assert_int_equal(http_reply_header(r, "X-A", "b"), 0);
    assert_int_equal(http_reply_header(r, "X-A", "b\r\nEvil: 1"), ERR_INVALID);
    struct str q = http_req_query_get(r, "q");
    http_reply(r, 200, "text/plain", q.p ? q : STR("hello"));
}

static void on_gone(struct http_req *r, void *arg) {
    struct fixture *f = arg;
    f->n_gone++;
    assert_true(http_req_is_gone(r));
}

static void on_hold(struct http_req *r, void *arg) {
    struct fixture *f = arg;
    f->n_calls++;
    f->held = r;
    http_req_on_gone(r, on_gone, f);
}

static const struct http_route routes_template[] = {
    {"GET", "/hello", on_hello, NULL},  {"POST", "/echo", on_echo, NULL},
    {"GET", "/hold", on_hold, NULL},    {"POST", "/hold", on_hold, NULL},
    {"GET", "/tree/*", on_hello, NULL},
};

static void on_closed(void *arg) {
    *(bool *)arg = true;
}

static struct http_route routes[ARRAY_LEN(routes_template)];

static struct fixture *open_fixture(struct http_server_cfg cfg) {
    struct fixture *f = calloc(1, sizeof(*f));
    struct errbuf eb;
    test_loop_setup(&f->tl);
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        routes[i] = routes_template[i];
        routes[i].arg = f;
    }
    cfg.host = "127.0.0.1";
    cfg.routes = routes;
    cfg.n_routes = ARRAY_LEN(routes);
    assert_int_equal(http_server_open(&f->s, &f->tl.loop, &cfg, &eb), 0);
    return f;
}

static int setup(void **state) {
    *state = open_fixture((struct http_server_cfg){
        .max_head_bytes = 1024, .max_body_bytes = 64, .max_unsent_bytes = 4096, .max_conns = 8});
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    if (f->s)
        http_server_close(f->s, on_closed, &f->closed);
    test_loop_teardown(&f->tl);
    assert_true(f->closed);
    free(f);
    return 0;
}

/* --- a client on a plain socket --- */

struct client {
    struct fixture *f;
    int fd;
    char in[65536];
    size_t n;
    bool eof;
    const char *want;
};

static void client_open(struct client *c, struct fixture *f) {
    memset(c, 0, sizeof(*c));
    c->f = f;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons(http_server_port(f->s)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(c->fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
}

static void client_send(struct client *c, const char *z) {
    assert_int_equal(send(c->fd, z, strlen(z), MSG_NOSIGNAL), (ssize_t)strlen(z));
}

static void client_pull(struct client *c) {
    for (;;) {
        ssize_t k = recv(c->fd, c->in + c->n, sizeof(c->in) - 1 - c->n, MSG_DONTWAIT);
        if (k > 0)
            c->n += (size_t)k;
        else {
            c->eof |= k == 0;
            break;
        }
    }
    c->in[c->n] = '\0';
}

static uint32_t count(const char *hay, const char *needle) {
    uint32_t n = 0;
    for (const char *p = hay; (p = strstr(p, needle)); p += strlen(needle))
        n++;
    return n;
}

/* Turns the loop until the text came, or the connection ended. */
static void client_expect(struct client *c, const char *want) {
    for (int i = 0; i < 20000; i++) {
        client_pull(c);
        if (strstr(c->in, want))
            return;
        if (c->eof)
            break;
        test_loop_turn(&c->f->tl);
        if (i > 100)
            usleep(100);
    }
    fail_msg("no '%s' in '%s'", want, c->in);
}

static void client_expect_eof(struct client *c) {
    for (int i = 0; i < 20000 && !c->eof; i++) {
        test_loop_turn(&c->f->tl);
        client_pull(c);
        if (i > 100)
            usleep(100);
    }
    assert_true(c->eof);
}

static void client_close(struct client *c) {
    close(c->fd);
}

static void one_shot(struct fixture *f, const char *request, const char *want) {
    struct client c;
    client_open(&c, f);
    client_send(&c, request);
    client_expect(&c, want);
    client_close(&c);
}

/* --- tests --- */

static void test_keep_alive_serves_two(void **state) {
    struct client c;
    client_open(&c, *state);
    client_send(&c, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    client_expect(&c, "\r\n\r\nhello");
    assert_non_null(strstr(c.in, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(c.in, "Content-Length: 5\r\n"));
    assert_non_null(strstr(c.in, "X-A: b\r\n"));
    assert_null(strstr(c.in, "Evil"));
    client_send(&c, "GET /hello?a=1&q=zwei HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    client_expect(&c, "\r\n\r\nzwei");
    client_expect_eof(&c);
    client_close(&c);
}

static void test_pipelined_requests_are_answered_in_order(void **state) {
    struct client c;
    client_open(&c, *state);
    client_send(&c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\noneGET "
                    "/hello?q=two HTTP/1.1\r\nHost: x\r\n\r\n"
                    "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                    "chunked\r\n\r\n3\r\nthr\r\n2;x=y\r\nee\r\n0\r\nT: v\r\n\r\n"
                    "GET /hello?q=four HTTP/1.1\r\nHost: x\r\n\r\n");
    client_expect(&c, "\r\n\r\nfour");
    const char *a = strstr(c.in, "\r\n\r\none"), *b = strstr(c.in, "\r\n\r\ntwo"),
               *d = strstr(c.in, "\r\n\r\nthree");
    assert_true(a && b && d && a < b && b < d);
    client_close(&c);
}

static void test_byte_by_byte(void **state) {
    struct fixture *f = *state;
    struct client c;
    client_open(&c, f);
    const char *req = "\r\nPOST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde";
    for (const char *p = req; *p; p++) {
        char one[2] = {*p, 0};
        client_send(&c, one);
        test_loop_turn(&f->tl);
    }
    client_expect(&c, "\r\n\r\nabcde");
    assert_string_equal(f->body, "abcde");
    client_close(&c);
}

static void test_head_has_no_body(void **state) {
    struct client c;
    client_open(&c, *state);
    client_send(
        &c, "HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\nGET /hello?q=end HTTP/1.1\r\nHost: x\r\n\r\n");
    client_expect(&c, "end");
    assert_non_null(strstr(c.in, "Content-Length: 5\r\n"));
    assert_null(strstr(c.in, "hello\r"));
    assert_null(strstr(c.in, "\r\n\r\nhello"));
    client_close(&c);
}

static void test_refusals(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *request, *want;
    } cases[] = {
        {"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 404"},
        {"PUT /hello HTTP/1.1\r\nHost: x\r\n\r\n", "Allow: GET, HEAD"},
        {"POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 405"},
        {"nonsense\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\nHost: x\n\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/2.0\r\nHost: x\r\n\r\n", "HTTP/1.1 505"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 65\r\n\r\n", "HTTP/1.1 413"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n41\r\n"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "HTTP/1.1 413"},
        /* smuggling */
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: "
         "chunked\r\n\r\n0\r\n\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: "
         "chunked\r\n\r\n0\r\n\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc", "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: tea\r\nContent-Length: 3\r\n\r\nabc",
         "HTTP/1.1 417"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        one_shot(f, cases[i].request, cases[i].want);
    char big[4096] = "GET /hello HTTP/1.1\r\nHost: x\r\nA: ";
    memset(big + strlen(big), 'a', 2000);
    one_shot(f, big, "HTTP/1.1 431");
    memset(big, 'a', 2000);
    memcpy(big, "GET /", 5);
    one_shot(f, big, "HTTP/1.1 414");
    assert_int_equal(f->n_calls, 0);
}

static void test_refusal_ends_the_connection(void **state) {
    struct fixture *f = *state;
    struct client c;
    client_open(&c, f);
    client_send(
        &c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nabcde"
            "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    client_expect(&c, "HTTP/1.1 400");
    client_expect_eof(&c);
    assert_non_null(strstr(c.in, "Connection: close"));
    assert_int_equal(count(c.in, "HTTP/1.1"), 1); /* what follows is not taken for a request */
    client_close(&c);
}

static void test_expect_continue(void **state) {
    struct client c;
    client_open(&c, *state);
    client_send(
        &c, "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    client_expect(&c, "HTTP/1.1 100 Continue\r\n\r\n");
    client_send(&c, "abc");
    client_expect(&c, "\r\n\r\nabc");
    client_close(&c);
}

static bool has_held(void *arg) {
    return ((struct fixture *)arg)->held != NULL;
}

static bool has_gone(void *arg) {
    return ((struct fixture *)arg)->n_gone > 0;
}

static void hold(struct fixture *f, struct client *c) {
    client_open(c, f);
    client_send(c, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_true(test_loop_until_fn(&f->tl, has_held, f));
}

static void on_drained(struct http_req *r, void *arg) {
    struct fixture *f = arg;
    (void)r;
    f->drained = true;
}

static void test_stream_chunks_and_next_request(void **state) {
    struct fixture *f = *state;
    struct client c;
    hold(f, &c);
    client_send(&c,
                "GET /hello?q=next HTTP/1.1\r\nHost: x\r\n\r\n"); /* waits for the stream's end */
    http_stream_on_drained(f->held, on_drained, f);
    assert_int_equal(http_stream_begin(f->held, 200, "text/event-stream"), 0);
    assert_int_equal(http_stream_write(f->held, "data: 1\n\n", 9), 0);
    assert_int_equal(http_stream_write(f->held, "", 0), 0);
    assert_true(http_stream_unsent(f->held) > 0);
    client_expect(&c, "9\r\ndata: 1\n\n\r\n");
    assert_true(test_loop_until(&f->tl, &f->drained));
    assert_int_equal(http_stream_unsent(f->held), 0);
    assert_int_equal(f->n_calls, 1);
    http_stream_end(f->held);
    client_expect(&c, "\r\n0\r\n\r\n");
    client_expect(&c, "\r\n\r\nnext");
    client_close(&c);
}

static void test_stream_backpressure_is_busy(void **state) {
    struct fixture *f = *state;
    struct client c;
    static char big[1u << 20];
    hold(f, &c);
    assert_int_equal(http_stream_begin(f->held, 200, NULL), 0);
    int rv = 0;
    for (int i = 0; i < 64 && rv == 0; i++)
        rv = http_stream_write(f->held, big,
                               i < 40 ? sizeof(big) : 10); /* the client does not read */
    assert_int_equal(rv, ERR_BUSY);
    http_stream_abort(f->held);
    client_close(&c);
}

static void test_client_gone_is_told_once(void **state) {
    struct fixture *f = *state;
    struct client c;
    hold(f, &c);
    assert_int_equal(http_stream_begin(f->held, 200, NULL), 0);
    client_close(&c);
    assert_true(test_loop_until_fn(&f->tl, has_gone, f));
    assert_int_equal(f->n_gone, 1);
    assert_int_equal(http_stream_write(f->held, "x", 1), ERR_CLOSED);
    http_stream_end(f->held);
}

static void test_abort_does_not_look_complete(void **state) {
    struct fixture *f = *state;
    struct client c;
    hold(f, &c);
    assert_int_equal(http_stream_begin(f->held, 200, NULL), 0);
    assert_int_equal(http_stream_write(f->held, "x", 1), 0);
    client_expect(&c, "1\r\nx\r\n");
    http_stream_abort(f->held);
    client_expect_eof(&c);
    assert_null(strstr(c.in, "0\r\n\r\n"));
    client_close(&c);
}

static void test_http10_stream_ends_with_connection(void **state) {
    struct fixture *f = *state;
    struct client c;
    client_open(&c, f);
    client_send(&c, "GET /hold HTTP/1.0\r\n\r\n");
    assert_true(test_loop_until_fn(&f->tl, has_held, f));
    assert_int_equal(http_stream_begin(f->held, 200, NULL), 0);
    assert_int_equal(http_stream_write(f->held, "plain", 5), 0);
    http_stream_end(f->held);
    client_expect_eof(&c);
    assert_non_null(strstr(c.in, "\r\n\r\nplain"));
    assert_null(strstr(c.in, "chunked"));
    client_close(&c);
}

static void test_too_many_connections_is_503(void **state) {
    struct fixture *f = *state;
    struct client c[9];
    for (int i = 0; i < 8; i++) {
        client_open(&c[i], f);
        client_send(&c[i], "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
        client_expect(&c[i], "hello");
    }
    client_open(&c[8], f);
    client_expect(&c[8], "HTTP/1.1 503");
    for (int i = 0; i < 9; i++)
        client_close(&c[i]);
}

static void test_drain_finishes_and_closes(void **state) {
    struct fixture *f = *state;
    struct client idle, busy;
    client_open(&idle, f);
    client_send(&idle, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    client_expect(&idle, "hello");
    hold(f, &busy);
    http_server_drain(f->s);
    client_expect_eof(&idle);
    http_reply(f->held, 200, NULL, STR("late"));
    client_expect(&busy, "\r\n\r\nlate");
    assert_non_null(strstr(busy.in, "Connection: close"));
    client_expect_eof(&busy);
    client_close(&idle);
    client_close(&busy);
}

static void test_close_waits_for_open_requests(void **state) {
    struct fixture *f = *state;
    struct client c;
    hold(f, &c);
    http_server_close(f->s, on_closed, &f->closed);
    assert_true(test_loop_until_fn(&f->tl, has_gone, f));
    assert_false(f->closed);
    http_reply(f->held, 200, NULL, STR("nobody"));
    assert_true(f->closed);
    f->s = NULL;
    client_close(&c);
}

static void test_slow_head_and_body_time_out(void **state) {
    (void)state;
    struct fixture *f = open_fixture((struct http_server_cfg){
        .head_timeout_ms = 20, .body_timeout_ms = 20, .idle_timeout_ms = 30});
    one_shot(f, "GET /hel", "HTTP/1.1 408");
    one_shot(f, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", "HTTP/1.1 408");
    struct client c;
    client_open(&c, f);
    client_expect_eof(&c); /* idle: closed without a word */
    assert_int_equal(c.n, 0);
    client_close(&c);
    void *st = f;
    teardown(&st);
}

/* The n-th allocation fails, for every n: the client gets an answer or a closed connection, the
 * next one is served. */
static void test_every_allocation_may_fail(void **state) {
    struct fixture *f = *state;
    for (uint64_t n = 0;; n++) {
        struct client c;
        client_open(&c, f);
        client_send(&c, "POST /echo?x=1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                        "chunked\r\nConnection: close\r\n\r\n"
                        "3\r\nabc\r\n0\r\n\r\n");
        fault_arm(n);
        client_expect_eof(&c);
        bool fired = fault_fired();
        fault_disarm();
        client_close(&c);
        one_shot(f, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "hello");
        if (!fired) {
            assert_true(n >= 4);
            break;
        }
    }
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_keep_alive_serves_two),
        T(test_pipelined_requests_are_answered_in_order),
        T(test_byte_by_byte),
        T(test_head_has_no_body),
        T(test_refusals),
        T(test_refusal_ends_the_connection),
        T(test_expect_continue),
        T(test_stream_chunks_and_next_request),
        T(test_stream_backpressure_is_busy),
        T(test_client_gone_is_told_once),
        T(test_abort_does_not_look_complete),
        T(test_http10_stream_ends_with_connection),
        T(test_too_many_connections_is_503),
        T(test_drain_finishes_and_closes),
        T(test_close_waits_for_open_requests),
        T(test_every_allocation_may_fail),
        cmocka_unit_test(test_slow_head_and_body_time_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
