/* http_fixture.h - an HTTP server with a few routes on a test's loop, and a client on a plain socket. */
#pragma once

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

static inline void on_echo(struct http_req *r, void *arg) {
    struct fixture *f = arg;
    f->n_calls++;
    struct str b = http_req_body(r);
    snprintf(f->body, sizeof(f->body), STR_FMT, STR_ARG(b));
    http_reply(r, 200, "text/plain", b);
}

static inline void on_hello(struct http_req *r, void *arg) {
    struct fixture *f = arg;
    f->n_calls++;
    assert_int_equal(http_reply_header(r, "X-A", "b"), 0);
    assert_int_equal(http_reply_header(r, "X-A", "b\r\nEvil: 1"), ERR_INVALID);
    struct str q = http_req_query_get(r, "q");
    http_reply(r, 200, "text/plain", q.p ? q : STR("hello"));
}

static inline void on_gone(struct http_req *r, void *arg) {
    struct fixture *f = arg;
    f->n_gone++;
    assert_true(http_req_is_gone(r));
}

static inline void on_hold(struct http_req *r, void *arg) {
    struct fixture *f = arg;
    f->n_calls++;
    f->held = r;
    http_req_on_gone(r, on_gone, f);
}

/* Lets "X-Key: good" in. */
static inline bool on_guard(struct http_req *r, void *arg) {
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

static inline void on_closed(void *arg) {
    *(bool *)arg = true;
}

static struct http_route routes[ARRAY_LEN(routes_template)];

static inline struct fixture *open_fixture(struct http_server_cfg cfg) {
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

static inline int setup(void **state) {
    *state = open_fixture((struct http_server_cfg){
        .max_head_bytes = 1024, .max_body_bytes = 64, .max_unsent_bytes = 4096, .max_conns = 8});
    return 0;
}

static inline int teardown(void **state) {
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
static inline void client_open_from(struct client *c, struct fixture *f, uint32_t host) {
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

static inline void client_open(struct client *c, struct fixture *f) {
    client_open_from(c, f, 1);
}

static inline void client_send(struct client *c, const char *z) {
    assert_int_equal(send(c->fd, z, strlen(z), MSG_NOSIGNAL), (ssize_t)strlen(z));
}

static inline void client_pull(struct client *c) {
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

static inline uint32_t count(const char *hay, const char *needle) {
    uint32_t n = 0;
    for (const char *p = hay; (p = strstr(p, needle)); p += strlen(needle))
        n++;
    return n;
}

/* Turns the loop until the text came, or the connection ended. */
static inline void client_expect(struct client *c, const char *want) {
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

static inline void client_expect_eof(struct client *c) {
    for (int i = 0; i < 20000 && !c->eof; i++) {
        test_loop_turn(&c->f->tl);
        client_pull(c);
        if (i > 100)
            usleep(100);
    }
    assert_true(c->eof);
}

static inline void client_close(struct client *c) {
    close(c->fd);
}

static inline void one_shot(struct fixture *f, const char *request, const char *want) {
    struct client c;
    client_open(&c, f);
    client_send(&c, request);
    client_expect(&c, want);
    client_close(&c);
}

static inline bool has_held(void *arg) {
    return ((struct fixture *)arg)->held != NULL;
}

static inline bool has_gone(void *arg) {
    return ((struct fixture *)arg)->n_gone > 0;
}

static inline void hold(struct fixture *f, struct client *c) {
    client_open(c, f);
    client_send(c, "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(test_loop_until_fn(&f->tl, has_held, f));
}
