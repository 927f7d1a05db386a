#include "common/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const struct metric_buckets three = {3, {0.5, 1, 10}};
#define TOY_METRICS(X)                                                                             \
    X(fetch_total, COUNTER, "fetches")                                                             \
    X(local, COUNTER, "tokens", .name = "incipit_tokens_total", .labels = "source=\"local\"")      \
    X(remote, COUNTER, "tokens", .name = "incipit_tokens_total", .labels = "source=\"remote\"")    \
    X(used_bytes, GAUGE, "bytes")                                                                  \
    X(share, FGAUGE, "share", .name = "vllm:kv_cache_usage_perc")                                  \
    X(seconds, HISTO, "time", .buckets = &three)                                                   \
    X(ttft, HISTO, "ttft", .name = "vllm:time_to_first_token_seconds",                             \
      .buckets = &metric_buckets_vllm_ttft)
struct toy_metrics {
    METRIC_FIELDS(TOY_METRICS)
};
METRIC_TABLE(toy_metrics, TOY_METRICS, "incipit_toy_")

static void has(const struct strbuf *b, const char *want) {
    if (!strstr(b->p, want))
        fail_msg("lacks: %s\nin:\n%s", want, b->p);
}

static void test_render(void **state) {
    (void)state;
    struct toy_metrics m;
    struct strbuf b;
    strbuf_init(&b);
    metric_init(toy_metrics_table(), &m);
    METRIC_INC(&m, fetch_total);
    METRIC_ADD(&m, fetch_total, 4);
    METRIC_ADD(&m, remote, 9);
    METRIC_SET(&m, used_bytes, -5);
    METRIC_SETF(&m, share, 0.25);
    METRIC_OBSERVE(&m, seconds, 0.5); /* an edge belongs to its bucket */
    METRIC_OBSERVE(&m, seconds, 0.75);
    METRIC_OBSERVE(&m, seconds, 11);
    METRIC_OBSERVE(&m, ttft, 0.07);
    metric_render(toy_metrics_table(), &m, "model=\"x\"", &b);
    has(&b, "# HELP incipit_toy_fetch_total fetches\n# TYPE incipit_toy_fetch_total counter\n"
            "incipit_toy_fetch_total{model=\"x\"} 5\n");
    has(&b, "# TYPE incipit_tokens_total "
            "counter\nincipit_tokens_total{model=\"x\",source=\"local\"} 0\n"
            "incipit_tokens_total{model=\"x\",source=\"remote\"} 9\n");
    has(&b, "incipit_toy_used_bytes{model=\"x\"} -5\n");
    has(&b, "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model=\"x\"} 0.25\n");
    has(&b,
        "incipit_toy_seconds_bucket{model=\"x\",le=\"0.5\"} 1\n"
        "incipit_toy_seconds_bucket{model=\"x\",le=\"1.0\"} 2\n"
        "incipit_toy_seconds_bucket{model=\"x\",le=\"10.0\"} 2\n"
        "incipit_toy_seconds_bucket{model=\"x\",le=\"+Inf\"} 3\n"
        "incipit_toy_seconds_sum{model=\"x\"} 12.25\nincipit_toy_seconds_count{model=\"x\"} 3\n");
    has(&b, "vllm:time_to_first_token_seconds_bucket{model=\"x\",le=\"0.06\"} 0\n"
            "vllm:time_to_first_token_seconds_bucket{model=\"x\",le=\"0.08\"} 1\n");
    strbuf_clear(&b);
    metric_render(toy_metrics_table(), &m, NULL, &b);
    has(&b, "incipit_toy_fetch_total 5\n");
    assert_int_equal(metric_histo_count(&m.seconds), 3);
    strbuf_fini(&b);
}

/* A second table over the same struct, as the worker's vLLM names are: its rows name no edges, and
 * the scrape once cut the histograms to the default edges, with everything slower than the 18th
 * edge missing from the count. */
#define ALIAS_METRICS(X) X(seconds, HISTO, "time", .name = "other:seconds")
static const struct metric_table *alias_table(void) {
    typedef struct toy_metrics metric_self_;
    static const struct metric_row rows[] = {ALIAS_METRICS(METRIC_ROW_)};
    static const struct metric_table table = {"", rows, ARRAY_LEN(rows), sizeof(metric_self_)};
    return &table;
}

static void test_render_histogram_of_another_table_keeps_its_edges(void **state) {
    (void)state;
    struct toy_metrics m;
    struct strbuf b;
    strbuf_init(&b);
    metric_init(toy_metrics_table(), &m);
    METRIC_OBSERVE(&m, seconds, 11);
    metric_render(alias_table(), &m, NULL, &b);
    has(&b, "other:seconds_bucket{le=\"0.5\"} 0\nother:seconds_bucket{le=\"1.0\"} 0\n"
            "other:seconds_bucket{le=\"10.0\"} 0\nother:seconds_bucket{le=\"+Inf\"} 1\n");
    has(&b, "other:seconds_count 1\n");
    strbuf_fini(&b);
}

static void test_null_metrics_count_nothing(void **state) {
    (void)state;
    struct toy_metrics *none = NULL;
    METRIC_INC(none, fetch_total);
    METRIC_SET(none, used_bytes, 1);
    METRIC_OBSERVE(none, seconds, 1.0);
}

static void test_label_escape(void **state) {
    (void)state;
    struct strbuf b;
    strbuf_init(&b);
    metric_label_escape(&b, STR("a\"b\\c\nd"));
    assert_string_equal(b.p, "a\\\"b\\\\c\\nd");
    strbuf_fini(&b);
}

static void test_buckets_ascend(void **state) {
    (void)state;
    const struct metric_buckets *all[] = {&metric_buckets_vllm_ttft, &metric_buckets_vllm_itl,
                                          &metric_buckets_vllm_request, &metric_buckets_vllm_tokens,
                                          &metric_buckets_rpc};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        for (uint32_t j = 1; j < all[i]->n; j++)
            assert_true(all[i]->le[j] > all[i]->le[j - 1]);
        assert_true(all[i]->le[all[i]->n] == 0.0); /* n counts all of them */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_render),
        cmocka_unit_test(test_render_histogram_of_another_table_keeps_its_edges),
        cmocka_unit_test(test_null_metrics_count_nothing),
        cmocka_unit_test(test_label_escape),
        cmocka_unit_test(test_buckets_ascend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
