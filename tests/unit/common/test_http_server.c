/* test_http_server.c - what HTTP says: requests, answers, refusals, streams, ends. */
#include "tests/unit/common/http_fixture.h"

static void test_keep_alive_serves_two(void **state) {
    struct client c;
    client_open(&c, *state);
    client_send(&c, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_expect(&c, "\r\n\r\nhello");
    assert_non_null(strstr(c.in, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(c.in, "Content-Length: 5\r\n"));
    assert_non_null(strstr(c.in, "X-A: b\r\n"));
    assert_null(strstr(c.in, "Evil"));
    client_send(&c,
                "GET /hello?a=1&q=zwei HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    client_expect(&c, "\r\n\r\nzwei");
    client_expect_eof(&c);
    client_close(&c);
}

static void test_pipelined_requests_are_answered_in_order(void **state) {
    struct client c;
    client_open(&c, *state);
    client_send(&c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\noneGET "
                    "/hello?q=two HTTP/1.1\r\nHost: localhost\r\n\r\n"
                    "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                    "chunked\r\n\r\n3\r\nthr\r\n2;x=y\r\nee\r\n0\r\nT: v\r\n\r\n"
                    "GET /hello?q=four HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
    const char *req =
        "\r\nPOST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabcde";
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
    client_send(&c, "HEAD /hello HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hello?q=end "
                    "HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
        {"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404"},
        {"PUT /hello HTTP/1.1\r\nHost: localhost\r\n\r\n", "Allow: GET, HEAD"},
        {"POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 405"},
        {"nonsense\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\r\nHost: localhost\r\nHost: y\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\nHost: x\n\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\r\nHost: localhost\r\nA: b\rC: d\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n", "HTTP/1.1 400"},
        /* B8: a line that continues the one before; another server reads two */
        {"GET /hello HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c: d\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\r\nHost: localhost\r\nA: b\r\n\tc\r\n\r\n", "HTTP/1.1 400"},
        {"GET /hello HTTP/1.1\r\n Host: localhost\r\n\r\n", "HTTP/1.1 400"},
        /* B8: compressed bodies are said not to be read */
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 3"
         "\r\n\r\nabc",
         "HTTP/1.1 415"},
        {"GET /hello HTTP/2.0\r\nHost: localhost\r\n\r\n", "HTTP/1.1 505"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65\r\n\r\n", "HTTP/1.1 413"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n41\r\n"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "HTTP/1.1 413"},
        /* smuggling */
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: "
         "4\r\n\r\nabc",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: "
         "chunked\r\n\r\n0\r\n\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, "
         "chunked\r\n\r\n0\r\n\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
         "chunked\r\nTransfer-Encoding: "
         "chunked\r\n\r\n0\r\n\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: +3\r\n\r\nabc", "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3, 3\r\n\r\nabc",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\nContent-Length: 3\r\n\r\nabc",
         "HTTP/1.1 417"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        one_shot(f, cases[i].request, cases[i].want);
    char big[4096] = "GET /hello HTTP/1.1\r\nHost: localhost\r\nA: ";
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
    client_send(&c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                    "5\r\nContent-Length: 5\r\n\r\nabcde"
                    "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_expect(&c, "HTTP/1.1 400");
    client_expect_eof(&c);
    assert_non_null(strstr(c.in, "Connection: close"));
    assert_int_equal(count(c.in, "HTTP/1.1"), 1); /* what follows is not taken for a request */
    client_close(&c);
}

static void test_expect_continue(void **state) {
    struct client c;
    client_open(&c, *state);
    client_send(&c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: "
                    "100-continue\r\nContent-Length: 3\r\n\r\n");
    client_expect(&c, "HTTP/1.1 100 Continue\r\n\r\n");
    client_send(&c, "abc");
    client_expect(&c, "\r\n\r\nabc");
    client_close(&c);
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
    client_send(
        &c,
        "GET /hello?q=next HTTP/1.1\r\nHost: localhost\r\n\r\n"); /* waits for the stream's end */
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
    assert_null(strstr(c.in, "\r\n0\r\n\r\n"));
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

/* F20: a client that ends its sending side behind its request got no answer. */
static void test_half_closed_is_answered(void **state) {
    struct fixture *f = *state;
    struct client c;
    client_open(&c, f);
    client_send(&c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\noneGET "
                    "/hello?q=two HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_int_equal(shutdown(c.fd, SHUT_WR), 0);
    client_expect(&c, "\r\n\r\ntwo"); /* both of them */
    client_expect_eof(&c);
    client_close(&c);

    hold(f, &c); /* the answer is not there yet when the end comes */
    assert_int_equal(shutdown(c.fd, SHUT_WR), 0);
    client_expect(&c, "100 Continue");
    assert_int_equal(f->n_gone, 0);
    http_reply(f->held, 200, NULL, STR("late"));
    client_expect(&c, "\r\n\r\nlate");
    client_expect_eof(&c);
    client_close(&c);
}

/* F20: and one that left altogether is still noticed before anything is written for it. */
static void test_client_gone_is_noticed_without_a_stream(void **state) {
    struct fixture *f = *state;
    struct client c;
    hold(f, &c);
    client_close(&c);
    assert_true(test_loop_until_fn(&f->tl, has_gone, f));
    http_reply(f->held, 200, NULL, STR("nobody"));
}

/* E8: which request failed, where, why? One line each, and an id that both sides know. */
static void test_requests_have_ids_and_lines(void **state) {
    (void)state;
    struct client c;
    struct log *log;
    int fds[2];
    static char lines[16384];
    assert_int_equal(pipe(fds), 0);
    const struct log_cfg lc = {.prog = "t", .fd = fds[1], .sync = true, .burst = 1};
    assert_int_equal(log_new(&log, &lc), 0);
    struct fixture *f = open_fixture((struct http_server_cfg){.log = log, .access_log = true});
    one_shot(f,
             "GET /hello?q=a HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: my-id.7\r\nTraceparent: "
             "00-ab-cd-01\r\n"
             "X-Forwarded-For: 10.9.8.7\r\n\r\n",
             "X-Request-Id: my-id.7\r\n");
    client_open(&c, f); /* one that could forge a line is replaced */
    client_send(&c, "GET /hello HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\" "
                    "status=\"1\r\nConnection: close\r\n\r\n");
    client_expect_eof(&c);
    const char *made = strstr(c.in, "X-Request-Id: ");
    assert_non_null(made);
    assert_int_equal(strspn(made + 14, "0123456789abcdef"), 16);
    client_close(&c);
    one_shot(f, "GET /probe HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200");
    one_shot(f, "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n",
             "HTTP/1.1 404");
    one_shot(f, "GARBAGE\r\n\r\n", "HTTP/1.1 400");
    hold(f, &c);
    client_close(&c);
    assert_true(test_loop_until_fn(&f->tl, has_gone, f));
    http_reply(f->held, 200, NULL, STR("nobody"));
    void *st = f;
    teardown(&st);
    log_free(log);
    close(fds[1]);
    ssize_t n = read(fds[0], lines, sizeof(lines) - 1);
    close(fds[0]);
    assert_true(n > 0);
    assert_int_equal(count(lines, "event=request"), 5); /* no limit, and no probe */
    assert_non_null(
        strstr(lines, "id=my-id.7 client=127.0.0.1 forwarded=10.9.8.7 trace=00-ab-cd-01 method=GET "
                      "path=/hello status=200 bytes="));
    assert_null(strstr(lines, "status=1"));
    assert_non_null(strstr(lines, "path=/nowhere status=404"));
    assert_non_null(strstr(lines, "status=400"));
    assert_non_null(strstr(lines, "path=/hold status=499"));
}

/* F18: OPTIONS was 405, and no page could read an answer. */
static void test_cors_is_an_option(void **state) {
    struct fixture *f = *state;
    struct client c;
    one_shot(f, "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\n\r\n", "Allow: POST, OPTIONS");
    client_open(&c, f);
    client_send(&c, "GET /hello HTTP/1.1\r\nHost: localhost\r\nOrigin: "
                    "https://a.example\r\nConnection: close\r\n\r\n");
    client_expect_eof(&c);
    assert_null(strstr(c.in, "Access-Control"));
    client_close(&c);
    static const char *const origins[] = {"https://a.example"};
    struct fixture *g =
        open_fixture((struct http_server_cfg){.cors_origins = origins, .n_cors = 1});
    client_open(&c, g);
    client_send(&c, "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\n"
                    "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
                    "authorization, content-type\r\n\r\n");
    client_expect(&c, "\r\n\r\n");
    assert_non_null(strstr(c.in, "HTTP/1.1 204"));
    assert_null(strstr(c.in, "Content-Length")); /* RFC 9110 §8.6: not with a 204 */
    assert_non_null(strstr(c.in, "Access-Control-Allow-Origin: https://a.example\r\n"));
    assert_non_null(strstr(c.in, "Access-Control-Allow-Methods: POST, OPTIONS\r\n"));
    assert_non_null(strstr(c.in, "Access-Control-Allow-Headers: authorization, content-type\r\n"));
    c.n = 0;
    client_send(&c, "GET /hello HTTP/1.1\r\nHost: localhost\r\nOrigin: "
                    "https://b.example\r\nConnection: close\r\n\r\n");
    client_expect_eof(&c);
    assert_null(strstr(c.in, "Access-Control"));
    assert_non_null(strstr(c.in, "Vary: Origin"));
    client_close(&c);
    void *st = g;
    teardown(&st);
}

static void test_drain_finishes_and_closes(void **state) {
    struct fixture *f = *state;
    struct client idle, busy;
    client_open(&idle, f);
    client_send(&idle, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
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

/* The n-th allocation fails, for every n: the client gets an answer or a closed connection, the
 * next one is served. */
static void test_every_allocation_may_fail(void **state) {
    struct fixture *f = *state;
    for (uint64_t n = 0;; n++) {
        struct client c;
        client_open(&c, f);
        client_send(&c, "POST /echo?x=1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                        "chunked\r\nConnection: close\r\n\r\n"
                        "3\r\nabc\r\n0\r\n\r\n");
        fault_arm(n);
        client_expect_eof(&c);
        bool fired = fault_fired();
        fault_disarm();
        client_close(&c);
        one_shot(f, "GET /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "hello");
        if (!fired) {
            assert_true(n >= 4);
            break;
        }
    }
}

/* G7: see test_rpc_conn.c. */
static void test_listen_errors_say_what_is_wrong(void **state) {
    static const struct {
        const char *host, *want;
    } cases[] = {{"unix:/nonexistent/s", "the directory '/nonexistent' does not exist"},
                 {"unix:/dev/null/s", "'/dev/null' is no directory"},
                 {"0123456789012345678901234567890123456789012345678901234567890123.invalid",
                  "HTTP listen: address '0123"},
                 {"192.0.2.1", "192.0.2.1 port 0: "}}; /* for documentation: nobody's */
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct http_server_cfg cfg = {.host = cases[i].host};
        struct http_server *s;
        struct errbuf eb;
        assert_true(http_server_open(&s, &f->tl.loop, &cfg, &eb) < 0);
        if (!strstr(eb.text, cases[i].want))
            fail_msg("'%s' lacks '%s'", eb.text, cases[i].want);
    }
}

int main(void) {
    signal(SIGPIPE, SIG_IGN); /* as the daemons do: libuv does not */
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_listen_errors_say_what_is_wrong),
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
        T(test_half_closed_is_answered),
        T(test_client_gone_is_noticed_without_a_stream),
        T(test_cors_is_an_option),
        T(test_drain_finishes_and_closes),
        T(test_close_waits_for_open_requests),
        T(test_every_allocation_may_fail),
        cmocka_unit_test(test_requests_have_ids_and_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
