#include "common/http_metrics.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/test_loop.h"

#define TOY_METRICS(X) X(a_total, COUNTER, "a") X(b_bytes, GAUGE, "b")
struct toy_metrics {
    METRIC_FIELDS(TOY_METRICS)
};
METRIC_TABLE(toy_metrics, TOY_METRICS, "toy_")

struct fixture {
    struct test_loop tl;
    struct toy_metrics m;
    struct http_metrics_source source;
    struct http_metrics *hm;
    struct http_server *s;
    struct http_route routes[HTTP_METRICS_ROUTES];
    bool is_live, is_ready, closed[2];
    char text[8192];
};

static void refresh(void *arg) {
    METRIC_SET(&((struct fixture *)arg)->m, b_bytes, 77);
}
static bool live(void *arg, struct strbuf *json) {
    strbuf_addz(json, "\"engine\":\"x\"");
    return ((struct fixture *)arg)->is_live;
}
static bool ready(void *arg, struct strbuf *json) {
    (void)json;
    return ((struct fixture *)arg)->is_ready;
}
static void on_closed(void *arg) {
    *(bool *)arg = true;
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    struct errbuf eb;
    test_loop_setup(&f->tl);
    metric_init(toy_metrics_table(), &f->m);
    f->is_live = f->is_ready = true;
    f->source = (struct http_metrics_source){toy_metrics_table(), &f->m, "node=\"1\"", refresh, f};
    struct http_metrics_cfg mc = {.sources = &f->source,
                                  .n_sources = 1,
                                  .live = live,
                                  .ready = ready,
                                  .arg = f,
                                  .tick_ms = 1,
                                  .max_gap_ms = 50};
    assert_int_equal(http_metrics_open(&f->hm, &f->tl.loop, &mc), 0);
    http_metrics_routes(f->hm, f->routes);
    struct http_server_cfg hc = {
        .host = "127.0.0.1", .routes = f->routes, .n_routes = HTTP_METRICS_ROUTES};
    assert_int_equal(http_server_open(&f->s, &f->tl.loop, &hc, &eb), 0);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    http_server_close(f->s, on_closed, &f->closed[0]);
    http_metrics_close(f->hm, on_closed, &f->closed[1]);
    test_loop_teardown(&f->tl);
    assert_true(f->closed[0] && f->closed[1]);
    free(f);
    return 0;
}

static const char *get(struct fixture *f, const char *path) {
    char req[128];
    size_t n = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons(http_server_port(f->s)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    int len = snprintf(req, sizeof(req),
                       "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    assert_int_equal(send(fd, req, (size_t)len, MSG_NOSIGNAL), len);
    for (;;) {
        ssize_t k = recv(fd, f->text + n, sizeof(f->text) - 1 - n, MSG_DONTWAIT);
        if (k == 0)
            break;
        n += k > 0 ? (size_t)k : 0;
        test_loop_turn(&f->tl);
    }
    f->text[n] = '\0';
    close(fd);
    return f->text;
}

static void test_metrics(void **state) {
    struct fixture *f = *state;
    METRIC_INC(&f->m, a_total);
    get(f, "/metrics");
    /* E10: versions, restarts and memory of each daemon */
    static const char *const process[] = {
        "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total ",
        "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes ",
        "incipit_log_dropped_total 0\n",
        "incipit_log_suppressed_total 0\n",
        "process_virtual_memory_bytes ",
        "process_open_fds ",
        "process_max_fds ",
        "incipit_build_info{version=\"" INCIPIT_VERSION "\"} 1\n"};
    for (size_t i = 0; i < ARRAY_LEN(process); i++)
        assert_non_null(strstr(f->text, process[i]));
    double start = strtod(strstr(f->text, "\nprocess_start_time_seconds ") + 28, NULL);
    assert_true(start > (double)time(NULL) - 3600 && start < (double)time(NULL) + 2);
    assert_non_null(strstr(f->text, "Content-Type: text/plain; version=0.0.4"));
    assert_non_null(strstr(f->text, "toy_a_total{node=\"1\"} 1\n"));
    assert_non_null(strstr(f->text, "toy_b_bytes{node=\"1\"} 77\n")); /* refreshed when asked */
}

static void test_health_and_readiness(void **state) {
    struct fixture *f = *state;
    assert_non_null(strstr(get(f, "/healthz"), "200 OK"));
    assert_non_null(strstr(f->text, "\"loop_beat_age_ms\":"));
    assert_non_null(strstr(f->text, "\"engine\":\"x\""));
    assert_non_null(strstr(get(f, "/readyz"), "200 OK"));
    f->is_live = f->is_ready = false;
    assert_non_null(strstr(get(f, "/healthz"), "503"));
    assert_non_null(strstr(get(f, "/readyz"), "503"));
}

static void test_a_loop_that_stood_still_is_not_healthy(void **state) {
    struct fixture *f = *state;
    struct timespec gap = {0, 60 * 1000 * 1000};
    nanosleep(&gap, NULL); /* the loop does not turn meanwhile: that is the point */
    assert_true(http_metrics_beat_age_ms(f->hm) >= 50);
    assert_non_null(strstr(get(f, "/healthz"), "503"));
    assert_true(http_metrics_max_gap_ms(f->hm) >= 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_metrics, setup, teardown),
        cmocka_unit_test_setup_teardown(test_health_and_readiness, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_loop_that_stood_still_is_not_healthy, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
