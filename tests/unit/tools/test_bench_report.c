/* test_bench_report.c - medians, rows, lists of numbers, the JSON, and the peer's output. */
#include "tools/incipit-bench/bench.h"
#include "tools/incipit-bench/bench_peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/json.h"

static void test_median_of_odd_even_and_none(void **state) {
    (void)state;
    struct bench_samples s = {.n = 0};
    assert_true(bench_median(&s) == 0);
    bench_add(&s, 9);
    bench_add(&s, 1);
    bench_add(&s, 5);
    assert_true(bench_median(&s) == 5);
    bench_add(&s, 100);
    assert_true(bench_median(&s) == 7);
    assert_true(bench_min(&s) == 1 && bench_max(&s) == 100);
}

static void test_add_beyond_capacity_is_ignored(void **state) {
    (void)state;
    struct bench_samples s = {.n = 0};
    for (uint32_t i = 0; i < BENCH_MAX_REPS + 5; i++)
        bench_add(&s, i);
    assert_int_equal(s.n, BENCH_MAX_REPS);
}

static void test_row_is_found_again_by_name(void **state) {
    (void)state;
    static struct bench_report r = {.what = "test"};
    struct bench_row *a = bench_row(&r, "x", "prefill %u", 128u);
    assert_ptr_not_equal(a, bench_row(&r, "x", "prefill %u", 512u));
    assert_ptr_equal(a, bench_row(&r, "x", "prefill %u", 128u));
    assert_int_equal(r.n_rows, 2);
}

static void test_points_are_numbers_in_bounds_only(void **state) {
    (void)state;
    uint32_t v[3];
    const char *const good[] = {"128", "512", "2048"};
    assert_int_equal(bench_points(&(struct cfg_list){good, 3}, 4096, v, 3), 3);
    assert_int_equal(v[0], 128);
    assert_int_equal(v[2], 2048);
    assert_int_equal(bench_points(&(struct cfg_list){good, 3}, 4096, v, 2), 0);
    const char *const bad[] = {"", "0", "5000", "12x", "-1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(bench_points(&(struct cfg_list){&bad[i], 1}, 4096, v, 3), 0);
}

static char *read_file(const char *path) {
    static char text[4096];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = 0;
    fclose(f);
    return text;
}

static void test_json_has_medians_samples_and_ratio(void **state) {
    (void)state;
    static struct bench_report r = {.what = "engine", .peer = "other"};
    char path[] = "/tmp/bench-report-XXXXXX";
    struct errbuf eb = {""};
    close(mkstemp(path));
    bench_fact(&r, "threads", "%u", 2u);
    struct bench_row *w = bench_row(&r, "tokens/s", "decode");
    for (int i = 1; i <= 5; i++) {
        bench_add(&w->ours, 2.0 * i);
        bench_add(&w->peer, i);
    }
    assert_int_equal(bench_write_json(&r, path, &eb), 0);
    CLEANUP(json_freep) struct json_t *doc = NULL;
    assert_int_equal(json_parse(str_of(read_file(path)), &doc, &eb), 0);
    const struct json_t *row = json_item(json_member(doc, "rows"), 0);
    assert_true(json_num(json_member(row, "median")) == 6);
    assert_true(json_num(json_member(row, "peer_median")) == 3);
    assert_true(json_num(json_member(row, "ratio")) == 2);
    assert_int_equal(json_count(json_member(row, "samples")), 5);
    assert_string_equal(json_text(json_member(json_member(doc, "facts"), "threads")).p, "2");
    strbuf_fini(&r.facts);
    unlink(path);
}

/* A stand-in for llama-bench that prints what it is given. */
static void write_program(const char *path, const char *body) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", body);
    fclose(f);
    assert_int_equal(chmod(path, 0755), 0);
}

static void test_peer_output_gives_its_rate_or_an_error(void **state) {
    (void)state;
    char dir[] = "/tmp/bench-peer-XXXXXX", path[64];
    struct errbuf eb = {""};
    double rate = 0;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/llama-bench", dir);
    const struct bench_peer p = {
        .program = path, .model = "m", .k_type = "f16", .v_type = "f16", .threads = 1};
    write_program(path, "echo '[{\"n_prompt\": 512, \"avg_ts\": 165.5}]'; echo chatter >&2");
    assert_int_equal(bench_peer_run(&p, 512, 0, 0, &rate, &eb), 0);
    assert_true(rate == 165.5);
    write_program(path, "echo '[]'");
    assert_true(bench_peer_run(&p, 512, 0, 0, &rate, &eb) < 0);
    write_program(path, "echo nonsense");
    assert_true(bench_peer_run(&p, 512, 0, 0, &rate, &eb) < 0);
    write_program(path, "exit 3");
    assert_true(bench_peer_run(&p, 512, 0, 0, &rate, &eb) < 0);
    unlink(path);
    assert_true(bench_peer_run(&p, 512, 0, 0, &rate, &eb) < 0);
    rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_median_of_odd_even_and_none),
        cmocka_unit_test(test_add_beyond_capacity_is_ignored),
        cmocka_unit_test(test_row_is_found_again_by_name),
        cmocka_unit_test(test_points_are_numbers_in_bounds_only),
        cmocka_unit_test(test_json_has_medians_samples_and_ratio),
        cmocka_unit_test(test_peer_output_gives_its_rate_or_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
