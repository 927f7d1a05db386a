/* test_engine_metrics.c - the worker's metrics as a contract: exact figures of known scenarios, and at the end
 * no row of the table that none of them has moved. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/worker/sched/engine_fixture.h"

static const char SYS[] =
    "you are the support bot for acme corp . be brief ."; /* 50 bytes: 12 blocks */

static struct engine_fx fx;
static bool moved[256]; /* by row */

static int setup(void **state) {
    (void)state;
    engine_fx_init(&fx);
    return 0;
}

/* Notes which rows differ from a fresh table, then starts afresh: gauges are noted where they are set. */
static void note(void) {
    static struct worker_metrics fresh;
    const struct metric_table *t = worker_metrics_table();
    metric_init(t, &fresh);
    assert_true(t->n_rows <= ARRAY_LEN(moved));
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct metric_row *r = &t->rows[i];
        const void *a = (const char *)&fx.met + r->off, *b = (const char *)&fresh + r->off;
        if (r->type == METRIC_HISTO)
            moved[i] |= metric_histo_count(a) != 0;
        else
            /* 64 bits whatever the type; the engine may still be running */
            moved[i] |= atomic_load((const _Atomic uint64_t *)a) !=
                        atomic_load((const _Atomic uint64_t *)b);
    }
}

static int teardown(void **state) {
    (void)state;
    note();
    engine_fx_fini(&fx);
    return 0;
}

#define COUNT(name) ((long long)atomic_load(&fx.met.name))
#define SUM_MS(name) ((long long)(metric_histo_sum(&fx.met.name) * 1000 + 0.5))
#define SAMPLES(name) ((long long)metric_histo_count(&fx.met.name))

static void reopen(void) {
    fx_wait_puts(&fx);
    engine_fx_close_engine(&fx);
    note();
    metric_init(worker_metrics_table(), &fx.met);
    engine_fx_open(&fx);
}

static enum finish_reason ask(const char *text, uint32_t n) {
    struct fx_req q;
    fx_req_init(&q, &fx, text, n);
    fx_run(&fx, &q);
    enum finish_reason why = q.why;
    fx_req_fini(&q);
    return why;
}

/* A step takes one second; a second request waits until the first, which has the only slot, is done. Mutants:
 * the time to the first token without the queue; a queue time of zero. */
static void test_times_add_up(void **state) {
    (void)state;
    struct fx_req a, b;
    fx.cfg.remote = NULL;
    fx.cfg.max_seqs = 1;
    fx.cfg.chunk_tok = 16;
    engine_fx_use_clock(&fx, NS_PER_S, 0);
    engine_fx_open(&fx);
    fx_hold(&fx);
    fx_req_init(&a, &fx, "the first", 3);
    fx_req_init(&b, &fx, "another", 2);
    assert_int_equal(fx_submit(&a), 0);
    assert_int_equal(fx_submit(&b), 0);
    fx_fence(&fx);
    fx_go(&fx);
    fx_wait(&fx, &a, 1);
    fx_wait(&fx, &b, 1);
    assert_int_equal(SUM_MS(request_queue_time_seconds), 0 + 3000);
    assert_int_equal(SUM_MS(request_prefill_time_seconds), 1000 + 1000);
    assert_int_equal(SUM_MS(time_to_first_token_seconds), 1000 + 4000);
    assert_int_equal(SUM_MS(inter_token_latency_seconds), 3 * 1000);
    assert_int_equal(SUM_MS(request_decode_time_seconds), 2000 + 1000);
    assert_int_equal(SUM_MS(e2e_request_latency_seconds), 3000 + 5000);
    assert_int_equal(SAMPLES(request_queue_time_seconds), 2);
    assert_int_equal(SAMPLES(time_to_first_token_seconds), 2);
    assert_int_equal(SAMPLES(inter_token_latency_seconds), 3);
    assert_int_equal(metric_histo_sum(&fx.met.request_prompt_tokens), 9 + 7);
    assert_int_equal(metric_histo_sum(&fx.met.request_generation_tokens), 3 + 2);
    assert_int_equal(COUNT(generation_tokens_total), 5);
    assert_int_equal(COUNT(prompt_tokens_total), 16);
    assert_int_equal(COUNT(prompt_tokens_computed_total), 16);
    assert_int_equal(COUNT(steps_total), 5);
    assert_int_equal(COUNT(step_rows_total), 9 + 2 + 7 + 1);
    assert_int_equal(COUNT(requests_length_total), 2);
    fx_req_fini(&a);
    fx_req_fini(&b);
}

/* Cold, then from the service, then from own pages. Mutant: blocks counted twice. */
static void test_blocks_are_counted_once(void **state) {
    (void)state;
    engine_fx_open(&fx);
    (void)ask(SYS, 1);
    fx_wait_puts(&fx);
    assert_int_equal(COUNT(lookup_total), 1);
    assert_int_equal(COUNT(lookup_blocks_total), 12);
    assert_int_equal(COUNT(lookup_resident_total), 0);
    assert_int_equal(COUNT(external_queries_total), 50);
    assert_int_equal(COUNT(put_block_total), 12);
    assert_int_equal(COUNT(pending_puts), 0);
    assert_int_equal(COUNT(kv_pages), 100);
    reopen();
    (void)ask(SYS, 1);
    assert_int_equal(COUNT(lookup_resident_total), 12);
    assert_int_equal(COUNT(fetch_block_total), 12);
    assert_int_equal(COUNT(fetch_bytes_total), 12 * FX_PAGE);
    assert_int_equal(SAMPLES(fetch_seconds), 1);
    assert_int_equal(COUNT(prompt_tokens_remote_total), 48);
    (void)ask(SYS, 1);
    fx_wait_puts(&fx);
    assert_int_equal(COUNT(lookup_total), 1); /* found at home: only touched */
    assert_int_equal(COUNT(touch_total), 1);
    assert_int_equal(COUNT(prompt_tokens_local_total), 48);
    assert_int_equal(COUNT(prompt_tokens_reused_total), 96);
    assert_int_equal(COUNT(prompt_tokens_computed_total), 4);
    assert_int_equal(COUNT(prompt_tokens_total), 100);
    assert_int_equal(COUNT(put_block_total), 0);
    assert_int_equal(COUNT(kv_pages_cached), 12);
    assert_int_equal(COUNT(kv_pages_used), 0);
}

/* A lookup that is not sent is none (it was counted, and as failed one too, when no node was up). */
static void test_what_goes_wrong_is_counted_where_it_did(void **state) {
    (void)state;
    engine_fx_open(&fx);
    fx.fake.down = true;
    (void)ask(SYS, 1);
    assert_int_equal(COUNT(lookup_total), 0);
    assert_int_equal(COUNT(lookup_failed_total), 0);
    assert_int_equal(COUNT(lookup_blocks_total), 0);
    assert_int_equal(COUNT(lookup_unsent_total), 1);
    fx_wait_puts(&fx);
    assert_int_equal(COUNT(put_failed_total) + COUNT(put_dropped_total), 12);
    fx.fake.down = false;
    reopen();
    fx.fake.lookup_rv = ERR_PROTO;
    (void)ask(SYS, 1);
    fx.fake.lookup_rv = 0;
    assert_int_equal(COUNT(lookup_total), 1);
    assert_int_equal(COUNT(lookup_failed_total), 1);
    assert_int_equal(COUNT(lookup_unsent_total), 0);
    reopen();
    fx.fake.corrupt_at = 3;
    (void)ask(SYS, 1);
    fx.fake.corrupt_at = UINT32_MAX;
    assert_int_equal(COUNT(fetch_failed_total), 1);
    assert_int_equal(COUNT(fetch_block_total), 12 - 1);
    assert_int_equal(COUNT(prompt_tokens_remote_total), 3 * FX_B);
}

static void test_puts_are_counted_by_their_end(void **state) {
    (void)state;
    static const struct {
        int status;
        long long stored, present, conflict, failed;
    } cases[] = {{0, 12, 0, 0, 0},
                 {ERR_EXISTS, 0, 12, 0, 0},
                 {ERR_CONFLICT, 0, 0, 12, 0},
                 {ERR_BUSY, 0, 0, 0, 12}};
    fx.cfg.fetch = FETCH_NEVER;
    engine_fx_open(&fx);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        fx.fake.put_status = cases[i].status;
        reopen();
        (void)ask(SYS, 1);
        fx_wait_puts(&fx);
        assert_int_equal(COUNT(put_block_total), cases[i].stored);
        assert_int_equal(COUNT(put_present_total), cases[i].present);
        assert_true((COUNT(put_conflict_total) > 0) == (cases[i].conflict > 0));
        assert_true((COUNT(put_failed_total) > 0) == (cases[i].failed > 0));
        long long all = COUNT(put_block_total) + COUNT(put_present_total) +
                        COUNT(put_conflict_total) + COUNT(put_failed_total) +
                        COUNT(put_dropped_total);
        assert_int_equal(all, 12);
    }
    fx.fake.put_status = 0;
    fx.fake.put_silent = true;
    reopen();
    (void)ask(SYS, 1);
    assert_int_equal(COUNT(pending_puts), 12);
    note();
}

static void test_ends_of_requests(void **state) {
    (void)state;
    struct fx_req q;
    engine_fx_open(&fx);
    fx_hold(&fx);
    fx_req_init(&q, &fx, SYS, 100);
    assert_int_equal(fx_submit(&q), 0);
    fx_fence(&fx);
    fx_steps(&fx, 6);
    engine_cancel(fx.engine, q.r);
    fx_go(&fx);
    fx_wait(&fx, &q, 1);
    fx_req_fini(&q);
    assert_int_equal(COUNT(requests_canceled_total), 1);
    atomic_store(&fx.model.fail_rv, ERR_INTERNAL);
    assert_int_equal(ask("what fails", 1), FINISH_ERROR);
    atomic_store(&fx.model.fail_rv, 0);
    assert_int_equal(COUNT(requests_error_total), 1);
    atomic_store(&fx.model.poison, '~');
    assert_int_equal(ask("not ~ finite", 1), FINISH_ERROR);
    atomic_store(&fx.model.poison, 0);
    assert_int_equal(COUNT(requests_numeric_total), 1);
    assert_int_equal(COUNT(requests_error_total), 2);
    int32_t first;
    char stop[2] = "";
    fx_expect("stop it", 1, &first);
    stop[0] = (char)first;
    fx_req_init(&q, &fx, "stop it", 5);
    q.r->stop[0] = (struct stop_str){stop, 1};
    q.r->n_stop = 1;
    fx_run(&fx, &q);
    fx_req_fini(&q);
    assert_int_equal(COUNT(requests_stop_total), 1);
    assert_int_equal(COUNT(requests_running), 0);
    assert_int_equal(COUNT(requests_waiting), 0);
}

/* Gauges while something runs, something waits and pages are short. */
static void test_gauges_tell_what_is_now(void **state) {
    (void)state;
    struct fx_req big[2], small;
    fx.cfg.remote = NULL;
    fx.cfg.max_ctx = 400;
    engine_fx_open(&fx);
    fx_hold(&fx);
    for (int i = 0; i < 2; i++) {
        fx_req_init(&big[i], &fx, i ? "the second" : "the first", 290);
        big[i].r->ignore_eog = true;
    }
    assert_int_equal(fx_submit(&big[0]), 0);
    fx_fence(&fx);
    fx_steps(&fx, 10);
    assert_int_equal(fx_submit(&big[1]), 0);
    fx_req_init(&small, &fx, "small", 2);
    assert_int_equal(fx_submit(&small), 0);
    fx_fence(&fx);
    fx_steps(&fx, 8);
    fx_wait(&fx, &small, 1);
    assert_int_equal(COUNT(requests_running), 1);
    assert_int_equal(COUNT(requests_waiting), 1);
    assert_int_equal(COUNT(requests_waiting_pages), 1);
    assert_int_equal(COUNT(requests_overtaking_total), 1);
    assert_true(COUNT(kv_pages_used) >= 4 && COUNT(kv_pages_reserved) > 50);
    assert_int_equal(COUNT(kv_pages_used) + COUNT(kv_pages_reserved), 75);
    note();
    fx_go(&fx);
    fx_wait(&fx, big, 2);
    for (int i = 0; i < 2; i++)
        fx_req_fini(&big[i]);
    fx_req_fini(&small);
    char text[24];
    for (int i = 0; i < 12; i++) { /* more than fits: cached pages are taken back */
        snprintf(text, sizeof(text), "%d a prompt of some", i);
        (void)ask(text, 60);
    }
    assert_true(COUNT(kv_pages_evicted_total) > 0);
}

/* Silence: late, and the third time the breaker opens. */
static void test_silent_service_is_late_and_left_alone(void **state) {
    (void)state;
    char text[64];
    fx.cfg.fetch = FETCH_AUTO;
    fx.fake.lookup_silent = fx.fake.put_silent = true;
    engine_fx_open(&fx);
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof(text), "%d%s", i, SYS);
        (void)ask(text, 1);
    }
    assert_int_equal(COUNT(fetch_late_total), 3);
    assert_int_equal(COUNT(lookup_total), 3);
    assert_int_equal(COUNT(lookup_unsent_total), 1);
    while (!COUNT(cache_breaker_state)) /* shown by the next tick */
        uv_run(&fx.loop, UV_RUN_ONCE);
    assert_int_equal(COUNT(cache_connected), 1);
}

/* Resident, and computing is measured to be faster: declined. */
static void test_what_computing_beats_is_declined(void **state) {
    (void)state;
    static const char other[] = "another long text that the service shall know of too .";
    engine_fx_open(&fx);
    (void)ask(SYS, 1);
    (void)ask(other, 1);
    fx.cfg.fetch = FETCH_AUTO;
    engine_fx_use_clock(&fx, 0, NS_PER_MS);
    fx.fake.n_blocks_sent = 0;
    fx.fake.block_delay_ms = 1;
    reopen();
    struct fx_req q;
    fx_req_init(&q, &fx, SYS, 1);
    fx_hold(&fx); /* however late they are, nothing is computed before all have come */
    assert_int_equal(fx_submit(&q), 0);
    for (uint32_t n = 0; n < 12; n = fx.fake.n_blocks_sent) {
        uv_run(&fx.loop, UV_RUN_ONCE);
        if (fx.fake.n_blocks_sent > n)
            atomic_fetch_add(&fx.clock.ns, NS_PER_S); /* a second a block */
    }
    while (!SAMPLES(fetch_seconds))
        uv_run(&fx.loop, UV_RUN_ONCE);
    fx_go(&fx);
    fx_wait(&fx, &q, 1);
    fx_req_fini(&q);
    assert_int_equal(COUNT(lookup_resident_total), 12);
    assert_int_equal(COUNT(fetch_declined_total), 0);
    (void)ask(other, 1);
    assert_int_equal(COUNT(fetch_declined_total), 1);
    assert_int_equal(COUNT(fetch_block_total), 12);
    assert_int_equal(COUNT(lookup_resident_total), 12 + 13);
}

/* E19: the first bucket of a request's times ended at .3 s; a hit takes .03. */
static void test_times_have_buckets_from_a_millisecond_on(void **state) {
    (void)state;
    const struct metric_table *tables[] = {worker_metrics_table(), worker_vllm_table()};
    for (size_t k = 0; k < ARRAY_LEN(tables); k++)
        for (size_t i = 0; i < tables[k]->n_rows; i++) {
            const struct metric_row *r = &tables[k]->rows[i];
            static struct worker_metrics m;
            metric_init(worker_metrics_table(), &m);
            if (r->type != METRIC_HISTO || !strstr(r->field, "seconds"))
                continue;
            const struct metric_histo *h = (const void *)((const char *)&m + r->off);
            uint32_t below = 0;
            for (uint32_t b = 0; b < h->buckets->n; b++)
                below += h->buckets->le[b] <= 0.03;
            if (h->buckets->le[0] > 0.001 || below < 4)
                fail_msg("%s: first edge %g", r->field, h->buckets->le[0]);
        }
}

/* Rows that no scenario here can move, and where they are asserted instead. */
static const char *const elsewhere[] = {
    "preemptions_total", /* stays 0: pages are reserved (test_few_pages_never_deadlock) */
    /* the program's own: tests/integration/test_worker_program.c, tests/e2e */
    "numerics_mismatch",
    "model_changed",
    "cache_nodes",
};

static void test_every_row_was_moved(void **state) {
    (void)state;
    const struct metric_table *t = worker_metrics_table();
    for (size_t i = 0; i < t->n_rows; i++) {
        bool known = moved[i];
        for (size_t k = 0; k < ARRAY_LEN(elsewhere); k++)
            known |= strcmp(t->rows[i].field, elsewhere[k]) == 0;
        if (!known)
            fail_msg("%s: no scenario moves it", t->rows[i].field);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(test_times_add_up),
        T(test_blocks_are_counted_once),
        T(test_what_goes_wrong_is_counted_where_it_did),
        T(test_puts_are_counted_by_their_end),
        T(test_ends_of_requests),
        T(test_gauges_tell_what_is_now),
        T(test_silent_service_is_late_and_left_alone),
        T(test_what_computing_beats_is_declined),
        cmocka_unit_test(test_times_have_buckets_from_a_millisecond_on),
        cmocka_unit_test(test_every_row_was_moved), /* last */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
