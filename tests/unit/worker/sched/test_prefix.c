/* test_prefix.c - the way to the cache service and back: whatever it does, the answer is the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/worker/sched/engine_fixture.h"
#include "worker/kv/prefix_put.h"

static const char SYS[] =
    "you are the support bot for acme corp . be brief ."; /* 12 blocks and 2 */
#define BLOCKS 12u
#define ANSWER 8u

static struct engine_fx fx;

/* The service holds the prompt's blocks; the engine is a new one that has nothing. */
static int setup(void **state) {
    struct fx_req q;
    engine_fx_init(&fx);
    engine_fx_open(&fx);
    fx_req_init(&q, &fx, SYS, 1);
    fx_run(&fx, &q);
    fx_req_fini(&q);
    fx_wait_puts(&fx);
    engine_fx_close_engine(&fx);
    if (fx.fake.n_put_blocks != BLOCKS)
        return -1;
    fx.fake.n_puts = fx.fake.n_lookups = fx.fake.n_fetches = fx.fake.n_put_blocks = 0;
    metric_init(worker_metrics_table(), &fx.met);
    *state = &fx;
    return 0;
}
static int teardown(void **state) {
    (void)state;
    engine_fx_fini(&fx);
    return 0;
}

static struct gen_usage ask(const char *text) {
    struct fx_req q;
    int32_t want[ANSWER];
    fx_req_init(&q, &fx, text, ANSWER);
    fx_run(&fx, &q);
    fx_expect(text, ANSWER, want);
    assert_int_equal(q.why, FINISH_LENGTH);
    assert_memory_equal(q.ids, want, sizeof(want));
    struct gen_usage u = q.usage;
    fx_req_fini(&q);
    return u;
}

/* Opens an engine that measures a slow prefill in its warm-up: patience, a tenth of it, is then long
 * enough for a busy test machine, and short enough to run out in a test. */
static void open_patient(void) {
    atomic_store(&fx.model.step_us, 200000);
    engine_fx_open(&fx);
    while (atomic_load(&fx.model.steps) < 2)
        uv_run(&fx.loop, UV_RUN_NOWAIT);
    atomic_store(&fx.model.step_us, 0);
}

static void test_hit_fetches_every_full_block(void **state) {
    (void)state;
    engine_fx_open(&fx);
    struct gen_usage u = ask(SYS);
    assert_int_equal(u.n_remote, 48);
    assert_int_equal(u.n_local, 0);
    assert_int_equal(fx.fake.n_blocks_sent, BLOCKS);
    fx_wait_puts(&fx);
    assert_int_equal(fx.fake.n_put_blocks, 2); /* what was generated; nothing fetched is put back */
    u = ask(SYS);
    assert_int_equal(u.n_local, 48); /* fetched pages serve the next one, too */
    assert_int_equal(fx.fake.n_fetches, 1);
    assert_int_equal(atomic_load(&fx.met.prompt_tokens_remote_total), 48);
    assert_int_equal(atomic_load(&fx.met.prompt_tokens_local_total), 48);
    assert_int_equal(atomic_load(&fx.met.prompt_tokens_computed_total), 4);
}

static void test_each_number_of_resident_blocks_gives_the_same_answer(void **state) {
    (void)state;
    fx.fake.put_status = ERR_BUSY; /* what is missing stays missing */
    for (uint32_t n = 0; n <= BLOCKS; n++) {
        engine_fx_open(&fx);
        for (uint32_t i = 0; i < BLOCKS; i++)
            fx.fake.block[i].there = i < n;
        struct gen_usage u = ask(SYS);
        assert_int_equal(u.n_remote, n * FX_B);
        fx_wait_puts(&fx);
        engine_fx_close_engine(&fx);
    }
}

static void test_prefix_ends_at_a_hole(void **state) {
    (void)state;
    engine_fx_open(&fx);
    fx.fake.block[5].there = false;
    struct gen_usage u = ask(SYS);
    assert_int_equal(u.n_remote, 5 * FX_B);
    fx_wait_puts(&fx);
    assert_int_equal(fx.fake.n_put_blocks, 1 + 2); /* the hole and the answer; the rest was there */
}

static void test_blocks_may_come_in_any_order(void **state) {
    (void)state;
    engine_fx_open(&fx);
    fx.fake.reverse = true;
    assert_int_equal(ask(SYS).n_remote, 48);
}

static void test_broken_block_ends_the_run(void **state) {
    (void)state;
    for (uint32_t at = 0; at < BLOCKS; at++) {
        engine_fx_open(&fx);
        fx.fake.corrupt_at = at;
        assert_int_equal(ask(SYS).n_remote, at * FX_B);
        engine_fx_close_engine(&fx);
    }
}

/* Silence after each number of blocks: computing goes on from the first missing one. */
static void test_stalled_fetch_is_overtaken(void **state) {
    (void)state;
    fx.cfg.fetch = FETCH_AUTO;
    for (uint32_t n = 0; n < BLOCKS; n += 3) {
        atomic_store(&fx.model.steps, 0);
        open_patient();
        breaker_init(&fx.remote.breaker);
        fx.fake.fetch_limit = n;
        uint64_t t0 = clock_mono_ns(clock_real());
        assert_int_equal(ask(SYS).n_remote, n * FX_B);
        /* patience is 60 ms here, a stall without it would be 2 s */
        assert_true(clock_mono_ns(clock_real()) - t0 < 1500 * NS_PER_MS);
        engine_fx_close_engine(&fx);
    }
    assert_true(atomic_load(&fx.met.fetch_late_total) >= 4);
}

/* Blocks that come while computing: both race, whoever is first wins, nothing differs. */
static void test_slow_fetch_races_with_computing(void **state) {
    (void)state;
    fx.cfg.fetch = FETCH_AUTO;
    fx.cfg.chunk_tok = 4;
    fx.cfg.max_seqs = 4;
    for (uint32_t us = 500; us <= 4000; us *= 2) {
        engine_fx_open(&fx);
        fx.fake.block_delay_ms = 3;
        atomic_store(&fx.model.step_us, us);
        struct gen_usage u = ask(SYS);
        assert_true(u.n_remote <= 48);
        engine_fx_close_engine(&fx);
    }
}

/* All pages lent to the fetch and none to spare: computing waits for them to come back. */
static void test_overtaking_with_no_page_to_spare(void **state) {
    (void)state;
    fx.cfg.fetch = FETCH_AUTO;
    fx.cfg.n_pages = (50 + ANSWER - 1 + FX_B - 1) / FX_B;
    atomic_store(&fx.model.steps, 0);
    open_patient();
    fx.fake.fetch_limit = 2;
    assert_int_equal(ask(SYS).n_remote, 8);
}

static void test_silent_lookup_is_a_miss_and_opens_the_breaker(void **state) {
    (void)state;
    fx.cfg.fetch = FETCH_AUTO;
    engine_fx_open(&fx);
    fx.fake.lookup_silent = true;
    fx.fake.put_silent = true; /* else its successes would speak for the service */
    for (int i = 0; i < 6; i++) {
        char text[64];
        snprintf(text, sizeof(text), "%d%s", i, SYS);
        assert_int_equal(ask(text).n_remote, 0);
    }
    assert_int_equal(fx.fake.n_lookups, 3);
    assert_int_equal(fx.remote.breaker.state, BREAKER_OPEN);
}

static void test_errors_are_misses(void **state) {
    (void)state;
    engine_fx_open(&fx);
    fx.fake.lookup_rv = ERR_PROTO;
    assert_int_equal(ask(SYS).n_remote, 0);
    assert_int_equal(atomic_load(&fx.met.lookup_failed_total), 1);
    engine_fx_close_engine(&fx);
    engine_fx_open(&fx);
    fx.fake.lookup_rv = 0;
    fx.fake.down = true;
    assert_int_equal(ask(SYS).n_remote, 0);
    fx_wait_puts(&fx); /* dropped, not waiting for ever */
    fx.fake.down = false;
    assert_int_equal(ask("other text that is long enough").n_remote, 0);
}

static void test_never_asks_nothing_but_puts(void **state) {
    (void)state;
    fx.cfg.fetch = FETCH_NEVER;
    engine_fx_open(&fx);
    assert_int_equal(ask(SYS).n_remote, 0);
    fx_wait_puts(&fx);
    assert_int_equal(fx.fake.n_lookups, 0);
    assert_true(fx.fake.n_puts > 0);
}

/* Measured: a fetch takes longer than computing. Then auto declines. */
static void test_auto_declines_what_computing_beats(void **state) {
    (void)state;
    fx.cfg.fetch = FETCH_AUTO;
    engine_fx_open(&fx);
    fx.fake.block_delay_ms = 2;
    for (int i = 0; i < 3; i++) {
        (void)ask(SYS);
        engine_fx_close_engine(&fx);
        engine_fx_open(&fx);
    }
    /* one engine, two different prompts that share nothing: the second one knows the rates */
    static const char other[] = "another long text that the service shall know of too .";
    (void)ask(other);
    fx_wait_puts(&fx);
    engine_fx_close_engine(&fx);
    engine_fx_open(&fx);
    (void)ask(SYS);
    uint32_t before = fx.fake.n_fetches;
    (void)ask(other);
    assert_int_equal(fx.fake.n_fetches, before);
    assert_true(atomic_load(&fx.met.fetch_declined_total) <=
                1); /* 0: the lookup was late already */
}

static void test_failed_put_drops_the_rest_of_the_chain(void **state) {
    (void)state;
    char text[160];
    engine_fx_open(&fx);
    fx.fake.put_status = ERR_BUSY;
    snprintf(text, sizeof(text), "%s%s%s", "0123456789", SYS, SYS); /* 27 blocks: four jobs */
    (void)ask(text);
    fx_wait_puts(&fx);
    assert_in_range(fx.fake.n_puts, 1, PUT_IN_FLIGHT);
    assert_true(atomic_load(&fx.met.put_dropped_total) > 0);
    assert_int_equal(fx.fake.n_put_blocks, 0);
    fx.fake.put_status = 0;
    (void)ask("a different prompt");
    fx_wait_puts(&fx);
    assert_true(fx.fake.n_put_blocks > 0); /* other chains go on */
}

static void test_put_queue_is_bounded(void **state) {
    (void)state;
    fx.cfg.put_queue_blocks = 8;
    fx.fake.put_silent = true;
    engine_fx_open(&fx);
    for (int i = 0; i < 5; i++) {
        char text[80];
        snprintf(text, sizeof(text), "%d%s", i, SYS);
        (void)ask(text);
        assert_true(atomic_load(&fx.met.pending_puts) <= 8);
    }
    assert_true(atomic_load(&fx.met.put_dropped_total) > 0);
}

/* Owned here, evicted there: the lookup says so and the blocks are put again. */
static void test_owned_blocks_that_the_service_lost_are_put_again(void **state) {
    (void)state;
    char longer[160];
    engine_fx_open(&fx);
    (void)ask(SYS);
    fx_wait_puts(&fx);
    for (uint32_t i = 0; i < fx.fake.n_blocks; i++)
        fx.fake.block[i].there = false;
    fx.fake.n_put_blocks = 0;
    snprintf(longer, sizeof(longer), "%s and what else is there", SYS);
    assert_int_equal(ask(longer).n_local, 48);
    fx_wait_puts(&fx);
    assert_true(fx.fake.n_put_blocks >= BLOCKS);
    assert_true(fx.fake.block[fx.fake.n_blocks - 1].there);
}

static void test_node_that_came_back_empty_is_filled_from_own_pages(void **state) {
    (void)state;
    engine_fx_open(&fx);
    (void)ask(SYS);
    fx_wait_puts(&fx);
    for (uint32_t i = 0; i < fx.fake.n_blocks; i++)
        fx.fake.block[i].there = false;
    fx.fake.n_put_blocks = 0;
    assert_int_equal(ask(SYS).n_local, 48);
    fx_wait_puts(&fx);
    assert_int_equal(fx.fake.n_put_blocks,
                     2); /* the answer's blocks: nobody knows that the rest is gone */
    engine_cache_is_back(fx.engine);
    fx.fake.n_put_blocks = 0;
    while (fx.fake.n_put_blocks < BLOCKS) {
        assert_int_equal(ask(SYS).n_local, 48);
        fx_wait_puts(&fx);
    }
}

static void test_own_pages_are_touched_in_batches(void **state) {
    (void)state;
    engine_fx_open(&fx);
    (void)ask(SYS);
    for (int i = 0; i < 10; i++)
        (void)ask(SYS);
    while (fx.fake.n_touched_blocks < 10 * BLOCKS)
        uv_run(&fx.loop, UV_RUN_ONCE);
    assert_true(fx.fake.n_touches < 10);
    assert_int_equal(fx.fake.n_lookups, 1);
    /* What is used stays warm, and holds until it is here. */
    assert_int_equal(fx.fake.lookup_flags, MSG_LOOKUP_F_TOUCH | MSG_LOOKUP_F_LEASE);
}

static void test_cancel_during_a_fetch_lets_go_of_pages(void **state) {
    (void)state;
    struct fx_req q;
    engine_fx_open(&fx);
    fx.fake.fetch_limit = 3;
    fx_req_init(&q, &fx, SYS, 5);
    assert_int_equal(fx_submit(&q), 0);
    while (fx.fake.n_blocks_sent < 3)
        uv_run(&fx.loop, UV_RUN_ONCE);
    engine_cancel(fx.engine, q.r);
    fx_wait(&fx, &q, 1);
    assert_int_equal(q.why, FINISH_CANCELED);
    fx_req_fini(&q);
    fx.fake.fetch_limit = UINT32_MAX;
    assert_int_equal(gen_usage_cached(&(struct gen_usage){.n_local = 1, .n_remote = 2}), 3);
    struct gen_usage u = ask(SYS);
    assert_int_equal(gen_usage_cached(&u), 48);
}

static void test_close_during_a_fetch(void **state) {
    (void)state;
    struct fx_req q;
    engine_fx_open(&fx);
    fx.fake.fetch_limit = 3;
    fx_req_init(&q, &fx, SYS, 5);
    assert_int_equal(fx_submit(&q), 0);
    while (fx.fake.n_blocks_sent < 3)
        uv_run(&fx.loop, UV_RUN_ONCE);
    engine_fx_close_engine(&fx);
    assert_int_equal(q.why, FINISH_CANCELED);
    fx_req_fini(&q);
}

/* A lease keeps slots from eviction: it must not last as long as the answer does. */
static void test_lease_ends_with_the_fetch_not_with_the_request(void **state) {
    (void)state;
    struct fx_req q;
    for (int miss = 0; miss < 2; miss++) {
        engine_fx_open(&fx);
        atomic_store(&fx.model.step_us, 1000);
        fx_req_init(&q, &fx, miss ? "a text that the service has never heard of" : SYS, 100);
        assert_int_equal(fx_submit(&q), 0);
        while (q.n_tokens < 20)
            uv_run(&fx.loop, UV_RUN_ONCE);
        assert_int_equal(q.n_done, 0);
        assert_int_equal(fx.fake.n_leases_open, 0);
        assert_int_equal(fx.fake.n_lookups, miss + 1);
        engine_cancel(fx.engine, q.r);
        fx_wait(&fx, &q, 1);
        fx_req_fini(&q);
        engine_fx_close_engine(&fx);
    }
}

static void test_fetching_takes_no_batch_slot(void **state) {
    (void)state;
    struct fx_req slow, fast;
    fx.cfg.max_seqs = 1;
    engine_fx_open(&fx);
    fx.fake.fetch_limit = 3;
    fx_req_init(&slow, &fx, SYS, 5);
    assert_int_equal(fx_submit(&slow), 0);
    while (fx.fake.n_blocks_sent < 3)
        uv_run(&fx.loop, UV_RUN_ONCE);
    fx_req_init(&fast, &fx, "abc", 5); /* no full block: nothing to look up */
    fx_run(&fx, &fast);
    assert_int_equal(fast.why, FINISH_LENGTH);
    assert_int_equal(slow.n_done, 0);
    engine_cancel(fx.engine, slow.r);
    fx_wait(&fx, &slow, 1);
    fx_req_fini(&slow);
    fx_req_fini(&fast);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(test_hit_fetches_every_full_block),
        T(test_each_number_of_resident_blocks_gives_the_same_answer),
        T(test_prefix_ends_at_a_hole),
        T(test_blocks_may_come_in_any_order),
        T(test_broken_block_ends_the_run),
        T(test_stalled_fetch_is_overtaken),
        T(test_slow_fetch_races_with_computing),
        T(test_overtaking_with_no_page_to_spare),
        T(test_silent_lookup_is_a_miss_and_opens_the_breaker),
        T(test_errors_are_misses),
        T(test_never_asks_nothing_but_puts),
        T(test_auto_declines_what_computing_beats),
        T(test_failed_put_drops_the_rest_of_the_chain),
        T(test_put_queue_is_bounded),
        T(test_owned_blocks_that_the_service_lost_are_put_again),
        T(test_node_that_came_back_empty_is_filled_from_own_pages),
        T(test_own_pages_are_touched_in_batches),
        T(test_cancel_during_a_fetch_lets_go_of_pages),
        T(test_close_during_a_fetch),
        T(test_lease_ends_with_the_fetch_not_with_the_request),
        T(test_fetching_takes_no_batch_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
