/* fuzz_http.c - bytes of a client through a whole HTTP server: one end of a socketpair, real loop.
 *
 * The first byte is the size of the pieces they arrive in. Whatever comes, each answer begins as
 * one, no request stays open, the connection ends, and a request in the clear afterwards is still
 * served. */
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "common/check.h"
#include "common/http_server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct world {
    uv_loop_t loop;
    struct http_server *s;
    char out[1u << 18];
    size_t n;
};

static void on_echo(struct http_req *r, void *arg) {
    (void)arg;
    struct str body = http_req_body(r);
    struct str q = http_req_query_get(r, "q");
    CHECK(body.n <= 4096 && http_req_path(r).n > 0);
    CHECK(http_req_header(r, "transfer-encoding").p == NULL ||
          http_req_header(r, "content-length").p == NULL);
    if (q.p && http_stream_begin(r, 200, "text/plain") == 0)
        (void)http_stream_write(r, body.p, body.n);
    if (q.p)
        http_stream_end(r);
    else
        http_reply(r, 200, "text/plain", body);
}

static const struct http_route routes[] = {{.method = "GET", .path = "/e*", .cb = on_echo},
                                           {.method = "POST", .path = "/e*", .cb = on_echo}};

static void pull(struct world *w, int fd, bool *ret_eof) {
    uv_run(&w->loop, UV_RUN_NOWAIT);
    for (;;) {
        if (w->n == sizeof(w->out))
            w->n = 0; /* pipelined answers without end: only the newest bytes matter */
        ssize_t k = recv(fd, w->out + w->n, sizeof(w->out) - w->n, MSG_DONTWAIT);
        if (k <= 0) {
            *ret_eof = k == 0 || errno != EAGAIN;
            return;
        }
        w->n += (size_t)k;
    }
}

static void talk(struct world *w, const uint8_t *p, size_t n, size_t piece) {
    int fds[2];
    bool eof = false;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    CHECK(http_server_adopt(w->s, fds[0]) == 0);
    w->n = 0;
    for (size_t at = 0; at < n && !eof;) {
        ssize_t k = send(fds[1], p + at, MIN(piece, n - at), MSG_NOSIGNAL);
        if (k > 0)
            at += (size_t)k;
        else if (errno != EAGAIN)
            break;
        pull(w, fds[1], &eof);
    }
    for (int i = 0; i < 4 && !eof; i++)
        pull(w, fds[1], &eof);
    CHECK(w->n == 0 || (w->n >= 9 && memcmp(w->out, "HTTP/1.1 ", 9) == 0));
    close(fds[1]);
    for (int i = 0; i < 8; i++)
        uv_run(&w->loop, UV_RUN_NOWAIT);
    struct http_server_stats st;
    http_server_stats(w->s, &st);
    CHECK(st.conns == 0 && st.requests_open == 0);
}

static void on_closed(void *arg) {
    *(bool *)arg = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char clear[] =
        "POST /e HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nok";
    if (size < 1 ||
        size > 60000) /* below the server's read-ahead, so that answers begin at out[0] */
        return 0;
    signal(SIGPIPE, SIG_IGN);
    struct world *w = calloc(1, sizeof(*w));
    struct http_server_cfg cfg = {.routes = routes,
                                  .n_routes = ARRAY_LEN(routes),
                                  .max_head_bytes = 2048,
                                  .max_body_bytes = 4096};
    bool closed = false;
    CHECK(w && uv_loop_init(&w->loop) == 0 && http_server_open(&w->s, &w->loop, &cfg, NULL) == 0);
    talk(w, data + 1, size - 1, data[0] ? data[0] : 4096);
    talk(w, (const uint8_t *)clear, sizeof(clear) - 1, sizeof(clear));
    CHECK(w->n > 20 && memcmp(w->out, "HTTP/1.1 200 OK", 15) == 0 &&
          memcmp(w->out + w->n - 2, "ok", 2) == 0);
    http_server_close(w->s, on_closed, &closed);
    while (uv_run(&w->loop, UV_RUN_NOWAIT)) {
    }
    CHECK(closed && uv_loop_close(&w->loop) == 0);
    free(w);
    return 0;
}
