#include "common/http_server.h"

#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
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

/* Lets "X-Key: good" in. */
static bool on_guard(struct http_req *r, void *arg) {
    (void)arg;
    if (str_eq(http_req_header(r, "x-key"), STR("good")))
        return true;
    http_reply_error(r, 401, "invalid_request_error", NULL, NULL, "no key");
    return false;
}

static const struct http_route routes_template[] = {
    {.method = "GET", .path = "/hello", .cb = on_hello},
    {.method = "POST", .path = "/echo", .cb = on_echo},
    {.method = "GET", .path = "/hold", .cb = on_hold},
    {.method = "POST", .path = "/hold", .cb = on_hold},
    {.method = "GET", .path = "/tree/*", .cb = on_hello},
    {.method = "GET", .path = "/probe", .cb = on_hello, .is_probe = true},
    {.method = "POST", .path = "/guarded", .cb = on_echo, .on_head = on_guard},
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

/* From 127.0.0.<host>: another host is another client. */
static void client_open_from(struct client *c, struct fixture *f, uint32_t host) {
    memset(c, 0, sizeof(*c));
    c->f = f;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons(http_server_port(f->s)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000 + host)};
    assert_int_equal(bind(c->fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
}

static void client_open(struct client *c, struct fixture *f) {
    client_open_from(c, f, 1);
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
    client_send(&c, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_expect(&c, "\r\n\r\nhello");
    assert_non_null(strstr(c.in, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(c.in, "Content-Length: 5\r\n"));
    assert_non_null(strstr(c.in, "X-A: b\r\n"));
    assert_null(strstr(c.in, "Evil"));
    client_send(&c, "GET /hello?a=1&q=zwei HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
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
    const char *req = "\r\nPOST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabcde";
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
        &c, "HEAD /hello HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hello?q=end HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: "
         "chunked\r\n\r\n0\r\n\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: "
         "chunked\r\n\r\n0\r\n\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: +3\r\n\r\nabc", "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3, 3\r\n\r\nabc", "HTTP/1.1 400"},
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
    client_send(
        &c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nabcde"
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
    client_send(
        &c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
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
    client_send(c, "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
    int len = snprintf(text, sizeof(text), "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", path, n);
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
    one_shot(f, "POST /guarded HTTP/1.1\r\nHost: localhost\r\nX-Key: good\r\nContent-Length: 3\r\n\r\nabc",
             "\r\n\r\nabc");
    client_open(&c, f); /* who is still sending megabytes hears why, and is not reset */
    client_send(&c, "POST /guarded HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n800000\r\n");
    for (int i = 0; i < 20; i++)
        send_more(&c);
    client_expect(&c, "HTTP/1.1 401");
    client_expect(&c, "no key");
    client_close(&c);
    one_shot(f, "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n", "HTTP/1.1 404");
    one_shot(f, "PUT /guarded HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n", "HTTP/1.1 405");
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

static bool no_conns(void *arg) {
    struct http_server_stats st;
    http_server_stats(((struct fixture *)arg)->s, &st);
    return st.conns == 0;
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
    char byte[64];
    size_t n = 0;
    routes[0].cb = on_big;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    assert_int_equal(http_server_adopt(f->s, fds[0]), 0);
    static const char ask[] = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_int_equal(send(fds[1], ask, sizeof(ask) - 1, 0), sizeof(ask) - 1);
    while (!no_conns(f) && n < 256u << 10) {
        test_loop_turn(&f->tl);
        ssize_t k = recv(fds[1], byte, sizeof(byte), 0);
        n += k > 0 ? (size_t)k : 0;
        usleep(500);
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
    client_send(&c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    client_expect(&c, "100 Continue");
    client_expect(&c, "HTTP/1.1 408");
    client_close(&c);
    void *st = f;
    teardown(&st);
}

/* B8: a page whose name resolves to 127.0.0.1 (DNS rebinding). */
static void test_host_is_checked_on_loopback(void **state) {
    struct fixture *f = *state;
    static const char *const good[] = {"localhost", "LOCALHOST:8000", "localhost.", "a.localhost:1",
                                       "127.0.0.1:80", "10.1.2.3", "[::1]:8000"};
    static const char *const bad[] = {"evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80",
                                      "xlocalhost", "127.0.0.1x", "gate.example"};
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
    one_shot(f, "GET /hello?q=a HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: my-id.7\r\nTraceparent: 00-ab-cd-01\r\n"
                "X-Forwarded-For: 10.9.8.7\r\n\r\n", "X-Request-Id: my-id.7\r\n");
    client_open(&c, f); /* one that could forge a line is replaced */
    client_send(&c, "GET /hello HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\" status=\"1\r\nConnection: close\r\n\r\n");
    client_expect_eof(&c);
    const char *made = strstr(c.in, "X-Request-Id: ");
    assert_non_null(made);
    assert_int_equal(strspn(made + 14, "0123456789abcdef"), 16);
    client_close(&c);
    one_shot(f, "GET /probe HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200");
    one_shot(f, "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 404");
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
    assert_non_null(strstr(lines, "id=my-id.7 client=127.0.0.1 forwarded=10.9.8.7 trace=00-ab-cd-01 method=GET "
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
    client_send(&c, "GET /hello HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\nConnection: close\r\n\r\n");
    client_expect_eof(&c);
    assert_null(strstr(c.in, "Access-Control"));
    client_close(&c);
    static const char *const origins[] = {"https://a.example"};
    struct fixture *g = open_fixture((struct http_server_cfg){.cors_origins = origins, .n_cors = 1});
    client_open(&c, g);
    client_send(&c, "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\n"
                    "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, content-type\r\n\r\n");
    client_expect(&c, "\r\n\r\n");
    assert_non_null(strstr(c.in, "HTTP/1.1 204"));
    assert_null(strstr(c.in, "Content-Length")); /* RFC 9110 §8.6: not with a 204 */
    assert_non_null(strstr(c.in, "Access-Control-Allow-Origin: https://a.example\r\n"));
    assert_non_null(strstr(c.in, "Access-Control-Allow-Methods: POST, OPTIONS\r\n"));
    assert_non_null(strstr(c.in, "Access-Control-Allow-Headers: authorization, content-type\r\n"));
    c.n = 0;
    client_send(&c, "GET /hello HTTP/1.1\r\nHost: localhost\r\nOrigin: https://b.example\r\nConnection: close\r\n\r\n");
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

static void test_slow_head_and_body_time_out(void **state) {
    (void)state;
    struct fixture *f = open_fixture((struct http_server_cfg){
        .head_timeout_ms = 20, .body_timeout_ms = 20, .idle_timeout_ms = 30});
    one_shot(f, "GET /hel", "HTTP/1.1 408");
    one_shot(f, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab", "HTTP/1.1 408");
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
        T(test_idle_connections_give_way),
        T(test_who_holds_many_gives_way),
        T(test_probes_always_answer),
        T(test_the_head_alone_is_asked),
        T(test_half_closed_is_answered),
        T(test_client_gone_is_noticed_without_a_stream),
        T(test_host_is_checked_on_loopback),
        T(test_cors_is_an_option),
        T(test_drain_finishes_and_closes),
        T(test_close_waits_for_open_requests),
        T(test_every_allocation_may_fail),
        cmocka_unit_test(test_slow_head_and_body_time_out),
        cmocka_unit_test(test_requests_have_ids_and_lines),
        cmocka_unit_test(test_bodies_share_a_budget),
        cmocka_unit_test(test_client_that_reads_nothing_is_dropped),
        cmocka_unit_test(test_client_that_reads_hardly_is_dropped),
        cmocka_unit_test(test_silence_behind_a_100_continue_times_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
