/* test_prefix_policy.c - fetch or compute, late or not, the breaker; on numbers alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/err.h"
#include "worker/kv/prefix_policy.h"

#define MS NS_PER_MS

static void test_mode_names(void **state) {
    (void)state;
    enum fetch_mode m = FETCH_AUTO;
    assert_int_equal(fetch_mode_parse("never", &m), 0);
    assert_int_equal(m, FETCH_NEVER);
    assert_int_equal(fetch_mode_parse("Auto", &m), ERR_INVALID);
}

static void test_auto_always_fetches_before_a_measurement(void **state) {
    (void)state;
    struct prefix_rates r = {0};
    assert_true(prefix_decide_fetch(FETCH_AUTO, &r, 1u << 30, 32));
    prefix_rates_add_prefill(&r, 100, 100 * MS);
    assert_true(prefix_decide_fetch(FETCH_AUTO, &r, 1u << 30, 32));
    assert_false(prefix_decide_fetch(FETCH_NEVER, &r, 1, 32));
    assert_false(prefix_decide_fetch(FETCH_ALWAYS, &r, 0, 0));
}

static void test_auto_compares_measured_times(void **state) {
    (void)state;
    struct prefix_rates r = {0};
    prefix_rates_add_prefill(&r, 100, 100 * MS); /* 1 ms a token */
    /* 10 blocks of 1 MB: first after 6 ms, then one each 1 ms: t0 = 5 ms */
    prefix_rates_add_fetch(&r, 10000000, 10, 6 * MS, 15 * MS);
    assert_true(r.fetch_t0_ns > 4.9e6 && r.fetch_t0_ns < 5.1e6);
    assert_true(prefix_decide_fetch(FETCH_AUTO, &r, 1000000, 7));   /* 6 ms against 7 */
    assert_false(prefix_decide_fetch(FETCH_AUTO, &r, 1000000, 5));  /* 6 ms against 5 */
    assert_true(prefix_decide_fetch(FETCH_ALWAYS, &r, 1000000, 5)); /* asked for */
}

static void test_single_block_fetches_are_measured_too(void **state) {
    (void)state;
    struct prefix_rates r = {0};
    prefix_rates_add_fetch(&r, 1000000, 1, 2 * MS, 2 * MS);
    assert_true(r.fetch_ns_per_byte > 1.9 && r.fetch_ns_per_byte < 2.1);
    prefix_rates_add_fetch(&r, 1000000, 1, 3 * MS, 3 * MS);
    assert_true(r.fetch_t0_ns > 0.9e6);
}

static void test_patience_is_five_ms_or_a_tenth(void **state) {
    (void)state;
    struct prefix_rates r = {0};
    assert_int_equal(prefix_patience_ns(&r, 1000), 5 * MS);
    prefix_rates_add_prefill(&r, 1, 1 * MS);
    assert_int_equal(prefix_patience_ns(&r, 40), 5 * MS);
    assert_int_equal(prefix_patience_ns(&r, 2000), 200 * MS);
}

static void test_slow_fetch_is_late_only_past_patience_and_when_computing_wins(void **state) {
    (void)state;
    struct prefix_rates r = {0};
    prefix_rates_add_prefill(&r, 1, 1 * MS);
    /* 32 blocks, 1024 tokens: computing takes 1024 ms, patience 102 ms */
    struct prefix_progress p = {.elapsed_ns = 100 * MS, .n_done = 1, .n_blocks = 32, .n_tok = 1024};
    assert_false(prefix_is_late(FETCH_AUTO, &r, &p));
    p.elapsed_ns = 103 * MS; /* 103 ms a block: 31 more take 3193, computing them 992 */
    assert_true(prefix_is_late(FETCH_AUTO, &r, &p));
    assert_false(prefix_is_late(FETCH_ALWAYS, &r, &p));
    p.n_done = 20; /* 12 more take 62 ms, computing 384 */
    assert_false(prefix_is_late(FETCH_AUTO, &r, &p));
    p.idle_ns = 102 * MS;
    assert_false(prefix_is_late(FETCH_AUTO, &r, &p));
    p.idle_ns = 104 * MS; /* ... but nothing has come for longer than patience */
    assert_true(prefix_is_late(FETCH_AUTO, &r, &p));
    p.n_done = 32;
    assert_false(prefix_is_late(FETCH_AUTO, &r, &p));
}

static void test_silent_service_is_late_soon_after_patience(void **state) {
    (void)state;
    struct prefix_rates r = {0};
    prefix_rates_add_prefill(&r, 1, 1 * MS);
    struct prefix_progress p = {
        .elapsed_ns = 103 * MS, .idle_ns = 103 * MS, .n_blocks = 32, .n_tok = 1024};
    assert_true(prefix_is_late(FETCH_AUTO, &r, &p));
}

static void test_stall_ends_even_always_and_unmeasured(void **state) {
    (void)state;
    struct prefix_rates r = {0};
    struct prefix_progress p = {
        .elapsed_ns = 2500 * MS, .idle_ns = 2500 * MS, .n_blocks = 4, .n_tok = 128};
    assert_true(prefix_is_late(FETCH_ALWAYS, &r, &p));
    assert_true(prefix_is_late(FETCH_AUTO, &r, &p));
    p.idle_ns = 100 * MS;
    assert_false(prefix_is_late(FETCH_ALWAYS, &r, &p));
    assert_true(prefix_check_after_ns(FETCH_ALWAYS, &r, &p) >= 1900 * MS);
}

static void test_breaker_opens_after_three_failures_in_a_row(void **state) {
    (void)state;
    struct breaker b;
    breaker_init(&b);
    breaker_fail(&b, 0);
    breaker_fail(&b, 0);
    breaker_ok(&b);
    breaker_fail(&b, 0);
    breaker_fail(&b, 0);
    assert_true(breaker_allow(&b, 0));
    breaker_fail(&b, 1000);
    assert_int_equal(b.state, BREAKER_OPEN);
    assert_false(breaker_allow(&b, 1000 + BREAKER_WAIT_MIN_NS - 1));
}

/* MUTANTS prefix_policy.c, no backoff: each probe that fails doubles the wait, up to a bound; a success
 * starts over. */
static void test_breaker_waits_twice_as_long_after_each_failed_probe(void **state) {
    (void)state;
    struct breaker b;
    breaker_init(&b);
    uint64_t t = 0, wait = BREAKER_WAIT_MIN_NS;
    for (uint32_t i = 0; i < BREAKER_MAX_FAIL; i++)
        breaker_fail(&b, t);
    for (int probe = 0; probe < 12; probe++) {
        assert_false(breaker_allow(&b, t + wait - 1));
        t += wait;
        assert_true(breaker_allow(&b, t));
        breaker_fail(&b, t);
        wait = MIN(2 * wait, BREAKER_WAIT_MAX_NS);
    }
    assert_int_equal(wait, BREAKER_WAIT_MAX_NS);
    assert_true(breaker_allow(&b, t + wait));
    breaker_ok(&b);
    for (uint32_t i = 0; i < BREAKER_MAX_FAIL; i++)
        breaker_fail(&b, t);
    assert_true(breaker_allow(&b, t + BREAKER_WAIT_MIN_NS));
}

static void test_breaker_half_open_lets_one_probe_through(void **state) {
    (void)state;
    struct breaker b;
    breaker_init(&b);
    for (int i = 0; i < 3; i++)
        breaker_fail(&b, 0);
    uint64_t t = BREAKER_WAIT_MIN_NS;
    assert_true(breaker_allow(&b, t));
    assert_false(breaker_allow(&b, t)); /* one at a time */
    breaker_void(&b);                   /* the client went away: says nothing */
    assert_true(breaker_allow(&b, t));
    breaker_fail(&b, t); /* waits twice as long now */
    assert_false(breaker_allow(&b, t + 2 * BREAKER_WAIT_MIN_NS - 1));
    t += 2 * BREAKER_WAIT_MIN_NS;
    assert_true(breaker_allow(&b, t));
    breaker_ok(&b);
    assert_int_equal(b.state, BREAKER_CLOSED);
    assert_true(breaker_allow(&b, t));
    assert_true(breaker_allow(&b, t));
}

static void test_breaker_wait_is_bounded(void **state) {
    (void)state;
    struct breaker b;
    breaker_init(&b);
    uint64_t t = 0;
    for (int i = 0; i < 3; i++)
        breaker_fail(&b, t);
    for (int i = 0; i < 40; i++) {
        t = b.open_until_ns;
        assert_true(breaker_allow(&b, t));
        breaker_fail(&b, t);
    }
    assert_int_equal(b.open_until_ns - t, BREAKER_WAIT_MAX_NS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mode_names),
        cmocka_unit_test(test_auto_always_fetches_before_a_measurement),
        cmocka_unit_test(test_auto_compares_measured_times),
        cmocka_unit_test(test_single_block_fetches_are_measured_too),
        cmocka_unit_test(test_patience_is_five_ms_or_a_tenth),
        cmocka_unit_test(test_slow_fetch_is_late_only_past_patience_and_when_computing_wins),
        cmocka_unit_test(test_silent_service_is_late_soon_after_patience),
        cmocka_unit_test(test_stall_ends_even_always_and_unmeasured),
        cmocka_unit_test(test_breaker_opens_after_three_failures_in_a_row),
        cmocka_unit_test(test_breaker_waits_twice_as_long_after_each_failed_probe),
        cmocka_unit_test(test_breaker_half_open_lets_one_probe_through),
        cmocka_unit_test(test_breaker_wait_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
