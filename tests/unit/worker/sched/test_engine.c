/* test_engine.c - requests through the engine: tokens, reuse, limits, cancel, the end. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/worker/sched/engine_fixture.h"

static const char SYS[] =
    "you are the support bot for acme corp . be brief ."; /* 50 bytes: 12 blocks */

static struct engine_fx fx;

static int setup(void **state) {
    engine_fx_init(&fx);
    *state = &fx;
    return 0;
}
static int teardown(void **state) {
    (void)state;
    engine_fx_fini(&fx);
    return 0;
}

static void expect_answer(const struct fx_req *q, const char *text, uint32_t n) {
    int32_t want[128];
    fx_expect(text, n, want);
    assert_int_equal(q->n_tokens, n);
    assert_memory_equal(q->ids, want, n * sizeof(want[0]));
}

static void test_cold_request_computes_every_row_once(void **state) {
    (void)state;
    struct fx_req q;
    fx.cfg.remote = NULL;
    engine_fx_open(&fx);
    fx_req_init(&q, &fx, SYS, 10);
    fx_run(&fx, &q);
    expect_answer(&q, SYS, 10);
    assert_int_equal(q.why, FINISH_LENGTH);
    assert_int_equal(q.usage.n_prompt, 50);
    assert_int_equal(q.usage.n_completion, 10);
    assert_int_equal(gen_usage_cached(&q.usage), 0);
    assert_int_equal(q.len, 10);
    assert_int_equal(fx.model.rows - 2 * 16,
                     50 + 9); /* less the warm-up; the last token is not fed */
    assert_true(fx.model.max_rows <= 16);
    fx_req_fini(&q);
}

static void test_second_request_takes_own_pages(void **state) {
    (void)state;
    struct fx_req a, b, c;
    fx.cfg.remote = NULL;
    engine_fx_open(&fx);
    fx_req_init(&a, &fx, SYS, 4);
    fx_run(&fx, &a);
    fx_req_init(&b, &fx, SYS, 4);
    fx_run(&fx, &b);
    assert_int_equal(b.usage.n_local, 48); /* floor(49 / 4) * 4 */
    assert_memory_equal(a.ids, b.ids, 4 * sizeof(a.ids[0]));
    fx_req_init(&c, &fx, "you are the support bot for acme corp . be verbose .", 4);
    fx_run(&fx, &c);
    assert_int_equal(c.usage.n_local, 40); /* "... corp . " and "be b" differs */
    expect_answer(&c, "you are the support bot for acme corp . be verbose .", 4);
    fx_req_fini(&a);
    fx_req_fini(&b);
    fx_req_fini(&c);
}

struct gate {
    struct loop_job job;
    pthread_mutex_t shut;
    bool done;
};
static int wait_at_gate(struct loop_job *j) {
    struct gate *g = CONTAINER_OF(j, struct gate, job);
    pthread_mutex_lock(&g->shut);
    pthread_mutex_unlock(&g->shut);
    return 0;
}
static void gate_passed(struct loop_job *j, int rv) {
    (void)rv;
    CONTAINER_OF(j, struct gate, job)->done = true;
}
static void on_pool_closed(void *arg) {
    *(bool *)arg = true;
}

/* F12: a text that takes long has a thread of its own: here it is stuck, and short ones go on. */
static void test_long_text_holds_up_no_short_one(void **state) {
    (void)state;
    struct loop_work *pool;
    struct gate g = {.job = {.run = wait_at_gate, .done = gate_passed},
                     .shut = PTHREAD_MUTEX_INITIALIZER};
    const struct loop_work_cfg wc = {.n_threads = 1, .max_queued = 10, .name = "long"};
    struct fx_req big, small;
    bool closed = false;
    char *text = malloc(GEN_LONG_TEXT_BYTES + 2);
    memset(text, 'x', GEN_LONG_TEXT_BYTES + 1);
    text[GEN_LONG_TEXT_BYTES + 1] = '\0';
    assert_int_equal(loop_work_open(&pool, &fx.loop, &wc), 0);
    fx.cfg.remote = NULL;
    fx.cfg.work_long = pool;
    engine_fx_open(&fx);
    pthread_mutex_lock(&g.shut);
    assert_int_equal(loop_work_submit(pool, &g.job), 0);
    fx_req_init(&big, &fx, text, 1);
    assert_int_equal(fx_submit(&big), 0);
    fx_req_init(&small, &fx, SYS, 3);
    fx_run(&fx, &small);
    expect_answer(&small, SYS, 3);
    assert_int_equal(big.n_done, 0);
    pthread_mutex_unlock(&g.shut);
    fx_wait(&fx, &big, 1);
    assert_int_equal(big.why, FINISH_ERROR);
    assert_int_equal(big.err, ERR_TOOBIG); /* by its length: 64 KiB of a byte a token */
    fx_req_fini(&big);
    fx_req_fini(&small);
    engine_fx_close_engine(&fx);
    loop_work_close(pool, on_pool_closed, &closed);
    while (!closed)
        uv_run(&fx.loop, UV_RUN_ONCE);
    assert_true(g.done);
    free(text);
}

/* F1: a request without max_tokens reserves all the context, and the one token that somebody else wanted waited
 * behind the next of them. It passes, and the one in front is passed a bounded number of times. */
static void test_short_requests_pass_one_that_waits_for_pages(void **state) {
    (void)state;
    enum { N = ENGINE_OVERTAKE_MAX + 1 };
    struct fx_req big[2], small[N];
    static char text[N][16];
    fx.cfg.remote = NULL;
    fx.cfg.max_ctx = 400;
    engine_fx_open(&fx);
    fx_hold(&fx);
    for (int i = 0; i < 2; i++) { /* 75 of 100 pages each */
        fx_req_init(&big[i], &fx, i ? "the second" : "the first", 290);
        big[i].r->ignore_eog = true;
    }
    assert_int_equal(fx_submit(&big[0]), 0);
    fx_fence(&fx);
    fx_steps(&fx, 2);
    assert_int_equal(fx_submit(&big[1]), 0);
    for (int i = 0; i < N; i++) { /* in line behind it before anything moves */
        snprintf(text[i], sizeof(text[i]), "small %d", i);
        fx_req_init(&small[i], &fx, text[i], 2);
        assert_int_equal(fx_submit(&small[i]), 0);
    }
    fx_fence(&fx);
    fx_steps(&fx, 100);
    fx_wait(&fx, small, N - 1);
    assert_int_equal(big[0].n_done, 0);
    assert_int_equal(small[N - 1].n_done,
                     0); /* one too many: it keeps its place behind the second */
    assert_int_equal(atomic_load(&fx.met.requests_overtaking_total), ENGINE_OVERTAKE_MAX);
    assert_int_equal(atomic_load(&fx.met.requests_waiting_pages), 2);
    fx_go(&fx);
    fx_wait(&fx, &small[N - 1], 1);
    fx_wait(&fx, big, 2);
    for (int i = 0; i < N; i++) {
        expect_answer(&small[i], text[i], 2);
        fx_req_fini(&small[i]);
    }
    assert_true(big[1].usage.started_ns >= big[0].usage.done_ns);
    fx_req_fini(&big[0]);
    fx_req_fini(&big[1]);
    assert_int_equal(atomic_load(&fx.met.requests_waiting_pages), 0);
}

/* F2: a prompt of thousands of tokens held up everybody's next token for seconds. What it takes of a step is
 * bounded by time, as measured: a row takes 1 ms here. */
static void test_prompts_leave_time_to_those_that_generate(void **state) {
    (void)state;
    struct fx_req talk, prompt;
    char text[181];
    memset(text, 'p', sizeof(text) - 1);
    text[180] = '\0';
    fx.cfg.remote = NULL;
    fx.cfg.chunk_tok = 100;
    fx.cfg.chunk_ms = 20;
    engine_fx_use_clock(&fx, 0, NS_PER_MS);
    engine_fx_open(&fx);
    fx_hold(&fx);
    fx_req_init(&talk, &fx, "hello", 150);
    assert_int_equal(fx_submit(&talk), 0);
    fx_fence(&fx);
    fx_steps(&fx, 2);
    fx_req_init(&prompt, &fx, text, 2);
    assert_int_equal(fx_submit(&prompt), 0);
    fx_fence(&fx);
    fx_go(&fx);
    fx_wait(&fx, &prompt, 1);
    fx_wait(&fx, &talk, 1);
    expect_answer(&prompt, text, 2);
    assert_in_range(atomic_load(&fx.model.max_mixed_rows), 18, 21);
    assert_true(atomic_load(&fx.model.max_rows) <= 100);
    fx_req_fini(&talk);
    fx_req_fini(&prompt);
}

static void count_warm(void *arg) {
    ++*(int *)arg;
}

/* F8: ready before the warm-up: the first request took 1,075 ms, the second 11. */
static void test_warm_is_told_after_the_first_pass(void **state) {
    (void)state;
    int n_warm = 0;
    fx.cfg.on_warm = count_warm;
    fx.cfg.on_warm_arg = &n_warm;
    atomic_store(&fx.model.is_paced, true);
    engine_fx_open(&fx);
    while (!atomic_load(&fx.model.is_held)) /* in its first step */
        uv_run(&fx.loop, UV_RUN_NOWAIT);
    for (int i = 0; i < 3; i++)
        uv_run(&fx.loop, UV_RUN_ONCE); /* ticks */
    assert_int_equal(n_warm, 0);
    fx_go(&fx);
    while (!n_warm)
        uv_run(&fx.loop, UV_RUN_ONCE);
    for (int i = 0; i < 3; i++)
        uv_run(&fx.loop, UV_RUN_ONCE);
    assert_int_equal(n_warm, 1);
}

/* F8: an engine that hangs was "live" for 300 s. */
static void test_hung_engine_is_noticed(void **state) {
    (void)state;
    struct fx_req q;
    fx.cfg.remote = NULL;
    engine_fx_use_clock(&fx, NS_PER_S, 0);
    engine_fx_open(&fx);
    fx_hold(&fx);
    while (engine_is_hung(fx.engine, 1)) /* warm and idle: it beats */
        uv_run(&fx.loop, UV_RUN_ONCE);
    fx_req_init(&q, &fx, "hello", 12);
    assert_int_equal(fx_submit(&q), 0);
    fx_fence(&fx);
    fx_steps(&fx, 11);
    atomic_fetch_add(&fx.clock.ns, 5 * NS_PER_S);
    assert_false(engine_is_hung(fx.engine, 1000)); /* ten steps' time: a step takes one second */
    atomic_fetch_add(&fx.clock.ns, 10 * NS_PER_S);
    assert_true(engine_is_hung(fx.engine, 1000));
    assert_false(engine_is_hung(fx.engine, 60000));
    fx_go(&fx);
    fx_wait(&fx, &q, 1);
    while (engine_is_hung(fx.engine, 1000))
        uv_run(&fx.loop, UV_RUN_ONCE);
    fx_req_fini(&q);
}

/* A prompt of whole blocks: the last one must be computed, for its logits. */
static void test_last_token_is_always_computed(void **state) {
    (void)state;
    struct fx_req a, b;
    fx.cfg.remote = NULL;
    engine_fx_open(&fx);
    fx_req_init(&a, &fx, "abcdefgh", 3);
    fx_run(&fx, &a);
    fx_req_init(&b, &fx, "abcdefgh", 3);
    fx_run(&fx, &b);
    assert_int_equal(b.usage.n_local, 4);
    expect_answer(&b, "abcdefgh", 3);
    fx_req_fini(&a);
    fx_req_fini(&b);
}

static void test_generated_blocks_are_reused_by_the_next_turn(void **state) {
    (void)state;
    struct fx_req a, b;
    char turn2[128];
    fx.cfg.remote = NULL;
    engine_fx_open(&fx);
    fx_req_init(&a, &fx, SYS, 20);
    fx_run(&fx, &a);
    snprintf(turn2, sizeof(turn2), "%s%.20s and more", SYS, a.text);
    fx_req_init(&b, &fx, turn2, 2);
    fx_run(&fx, &b);
    assert_int_equal(b.usage.n_local, 68); /* rows 0..68 were written: 17 whole blocks */
    expect_answer(&b, turn2, 2);
    fx_req_fini(&a);
    fx_req_fini(&b);
}

static void test_private_decode_pages_are_not_reused(void **state) {
    (void)state;
    struct fx_req a, b;
    char turn2[128];
    fx.cfg.fwd.decode_private = true; /* numerics blas */
    engine_fx_open(&fx);
    fx_req_init(&a, &fx, SYS, 20);
    fx_run(&fx, &a);
    snprintf(turn2, sizeof(turn2), "%s%.20s and more", SYS, a.text);
    fx_req_init(&b, &fx, turn2, 2);
    fx_run(&fx, &b);
    assert_int_equal(b.usage.n_local, 48);
    fx_wait_puts(&fx);
    assert_int_equal(fx.fake.n_put_blocks, 12 + 19 - 12);
    fx_req_fini(&a);
    fx_req_fini(&b);
}

static void test_many_at_once_equal_alone(void **state) {
    (void)state;
    enum { N = 40 };
    static struct fx_req q[N];
    static char text[N][160];
    engine_fx_open(&fx);
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof(text[i]), "%.*s question %d ?", 10 + 3 * (i % 13), SYS, i % 7);
        fx_req_init(&q[i], &fx, text[i], 1 + (uint32_t)i % 9);
        assert_int_equal(fx_submit(&q[i]), 0);
    }
    fx_wait(&fx, q, N);
    for (int i = 0; i < N; i++) {
        expect_answer(&q[i], text[i], 1 + (uint32_t)i % 9);
        fx_req_fini(&q[i]);
    }
    assert_true(fx.model.max_seqs > 1);
    assert_true(fx.model.max_seqs <= 4);
    assert_true(fx.model.max_rows <= 16);
}

/* Room for one long request at a time: all finish, none waits for another's pages for ever. */
static void test_few_pages_never_deadlock(void **state) {
    (void)state;
    enum { N = 12 };
    static struct fx_req q[N];
    static char text[N][64];
    fx.cfg.n_pages = 12;
    fx.cfg.remote = NULL;
    engine_fx_open(&fx);
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof(text[i]), "%d this is prompt number %d", i, i);
        fx_req_init(&q[i], &fx, text[i], 20);
        assert_int_equal(fx_submit(&q[i]), 0);
    }
    fx_wait(&fx, q, N);
    for (int i = 0; i < N; i++) {
        expect_answer(&q[i], text[i], 20);
        fx_req_fini(&q[i]);
    }
    assert_int_equal(atomic_load(&fx.met.preemptions_total), 0);
    assert_true(atomic_load(&fx.met.kv_pages_evicted_total) > 0);
}

static void test_limits_are_refused_with_a_reason(void **state) {
    (void)state;
    struct fx_req q;
    engine_fx_open(&fx);
    fx_req_init(&q, &fx, SYS, 151);
    fx_run(&fx, &q);
    assert_int_equal(q.why, FINISH_ERROR);
    assert_int_equal(q.err, ERR_TOOBIG);
    assert_non_null(strstr(q.r->eb.text, "200"));
    fx_req_fini(&q);
    fx.model.step_us = 1000;
    fx_req_init(&q, &fx, SYS, 150);
    q.r->max_tokens_set = false; /* up to the limit */
    q.r->ignore_eog = true;
    q.cancel_after = 5;
    fx_run(&fx, &q);
    assert_int_equal(q.why, FINISH_CANCELED);
    fx_req_fini(&q);
    fx_req_init(&q, &fx, "x", 1);
    const int32_t bad[2] = {5, 9999};
    q.r->n_parts = 0;
    q.r->ids = bad;
    q.r->n_ids = 2;
    fx_run(&fx, &q);
    assert_int_equal(q.err, ERR_INVALID);
    fx_req_fini(&q);
}

static void test_full_queue_is_busy(void **state) {
    (void)state;
    enum { N = 7 };
    static struct fx_req q[N];
    fx.cfg.max_seqs = 2;
    fx.cfg.max_queue = 4;
    engine_fx_open(&fx);
    for (int i = 0; i < N; i++)
        fx_req_init(&q[i], &fx, SYS, 5);
    for (int i = 0; i < 6; i++)
        assert_int_equal(fx_submit(&q[i]), 0);
    assert_int_equal(fx_submit(&q[6]), ERR_BUSY);
    fx_wait(&fx, q, 6);
    assert_int_equal(fx_submit(&q[6]), 0);
    fx_wait(&fx, q, N);
    for (int i = 0; i < N; i++)
        fx_req_fini(&q[i]);
    assert_int_equal(engine_n_open(fx.engine), 0);
    assert_int_equal(atomic_load(&fx.met.requests_waiting), 0);
}

static void test_cancel_ends_within_a_chunk_and_frees_pages(void **state) {
    (void)state;
    struct fx_req q;
    engine_fx_open(&fx);
    fx.model.step_us = 1000;
    fx_req_init(&q, &fx, SYS, 140);
    q.cancel_after = 3;
    fx_run(&fx, &q);
    assert_int_equal(q.why, FINISH_CANCELED);
    assert_in_range(q.n_tokens, 3, 30);
    fx_req_fini(&q);
    fx_req_init(&q, &fx, SYS, 10); /* before anything has happened */
    assert_int_equal(fx_submit(&q), 0);
    engine_cancel(fx.engine, q.r);
    engine_cancel(fx.engine, q.r);
    fx_wait(&fx, &q, 1);
    assert_int_equal(q.why, FINISH_CANCELED);
    assert_int_equal(q.n_done, 1);
    fx_req_fini(&q);
    fx_req_init(&q, &fx, SYS, 2);
    fx_run(&fx, &q);
    assert_int_equal(q.why, FINISH_LENGTH);
    assert_int_equal(atomic_load(&fx.met.kv_pages_reserved), 0);
    fx_req_fini(&q);
}

static void test_failed_step_is_an_error_of_its_requests_only(void **state) {
    (void)state;
    struct fx_req q;
    engine_fx_open(&fx);
    fx_req_init(&q, &fx, "warm", 1);
    fx_run(&fx, &q);
    fx_req_fini(&q);
    atomic_store(&fx.model.fail_rv, ERR_INTERNAL);
    fx_req_init(&q, &fx, SYS, 5);
    fx_run(&fx, &q);
    assert_int_equal(q.why, FINISH_ERROR);
    assert_int_equal(q.err, ERR_INTERNAL);
    fx_req_fini(&q);
    atomic_store(&fx.model.fail_rv, 0);
    fx_req_init(&q, &fx, SYS, 5);
    fx_run(&fx, &q);
    expect_answer(&q, SYS, 5);
    fx_req_fini(&q);
}

/* F7: a row without a finite maximum was sampled (an empty text, 200) and its page put. Right: an error of
 * that request alone, counted; what it computed in that step is neither indexed nor put. */
static void test_row_that_is_not_finite_ends_its_request_and_leaves_no_page(void **state) {
    (void)state;
    static const char BAD[] = "you are the support bot for acme corp . be ~ brief .";
    struct fx_req good, bad;
    engine_fx_open(&fx);
    atomic_store(&fx.model.poison, '~');
    fx_req_init(&bad, &fx, BAD, 5);
    fx_req_init(&good, &fx, SYS, 5);
    assert_int_equal(fx_submit(&bad), 0);
    assert_int_equal(fx_submit(&good), 0);
    fx_wait(&fx, &bad, 1);
    fx_wait(&fx, &good, 1);
    assert_int_equal(bad.why, FINISH_ERROR);
    assert_int_equal(bad.err, ERR_NUMERIC);
    expect_answer(&good, SYS, 5);
    assert_int_equal(atomic_load(&fx.met.requests_numeric_total), 1);
    assert_int_equal(atomic_load(&fx.met.requests_error_total), 1);
    fx_wait_puts(&fx);
    uint32_t n_put = fx.fake.n_put_blocks;
    fx_req_fini(&bad);
    fx_req_fini(&good);
    atomic_store(&fx.model.poison, 0);
    fx_req_init(&bad, &fx, BAD, 5); /* the same prompt: nothing of the step that failed is found */
    fx_run(&fx, &bad);
    expect_answer(&bad, BAD, 5);
    assert_true(gen_usage_cached(&bad.usage) <= (uint32_t)(strchr(BAD, '~') - BAD));
    fx_wait_puts(&fx);
    assert_true(fx.fake.n_put_blocks > n_put); /* its own blocks were not there yet */
    fx_req_fini(&bad);
}

static void test_stop_string_ends_and_is_cut(void **state) {
    (void)state;
    struct fx_req q;
    int32_t ids[12];
    char stop[3];
    engine_fx_open(&fx);
    fx_expect(SYS, 12, ids);
    stop[0] = (char)ids[5];
    stop[1] = (char)ids[6];
    stop[2] = '\0';
    fx_req_init(&q, &fx, SYS, 12);
    q.r->stop[0] = (struct stop_str){stop, 2};
    q.r->n_stop = 1;
    fx_run(&fx, &q);
    assert_int_equal(q.why, FINISH_STOP);
    assert_int_equal(q.n_tokens, 7);
    assert_int_equal(q.len, 5);
    fx_req_fini(&q);
}

static void test_scoring_computes_every_row(void **state) {
    (void)state;
    struct fx_req a, q;
    engine_fx_open(&fx);
    fx_req_init(&a, &fx, SYS, 1);
    fx_run(&fx, &a);
    fx_req_init(&q, &fx, SYS, 0); /* max_tokens 0: score only */
    q.r->prompt_logprobs = true;
    q.r->n_top = 2;
    fx_run(&fx, &q);
    assert_int_equal(q.why, FINISH_LENGTH);
    assert_int_equal(q.n_tokens, 0);
    assert_int_equal(gen_usage_cached(&q.usage), 0);
    for (uint32_t i = 1; i < 50; i++) { /* token i's probability comes from row i-1 */
        int32_t best;
        char head[64];
        snprintf(head, sizeof(head), "%.*s", (int)i, SYS);
        fx_expect(head, 1, &best);
        assert_int_equal(q.r->prompt_lp[i].top[0].id, best);
        assert_true(q.r->prompt_lp[i].logprob < 0);
        assert_true(q.r->prompt_lp[i].top[0].logprob >= q.r->prompt_lp[i].logprob);
    }
    fx_req_fini(&a);
    fx_req_fini(&q);
}

static void test_logprobs_and_logits_digest(void **state) {
    (void)state;
    struct fx_req a, b;
    engine_fx_open(&fx);
    fx_req_init(&a, &fx, SYS, 3);
    a.r->logprobs = true;
    a.r->n_top = 3;
    a.r->debug_logits = true;
    fx_run(&fx, &a);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a.r->out[i].lp.top[0].id, a.ids[i]);
        assert_true(a.r->out[i].lp.logprob == a.r->out[i].lp.top[0].logprob);
    }
    assert_true(a.usage.has_logits_digest);
    fx_req_init(&b, &fx, SYS, 3);
    b.r->debug_logits = true;
    fx_run(&fx, &b);
    assert_int_equal(b.usage.n_local, 48);
    assert_memory_equal(a.usage.logits_digest, b.usage.logits_digest, 32);
    fx_req_fini(&a);
    fx_req_fini(&b);
}

static void test_salt_separates_tenants(void **state) {
    (void)state;
    static const uint8_t salt[32] = {9};
    struct fx_req a, b, c;
    engine_fx_open(&fx);
    fx_req_init(&a, &fx, SYS, 1);
    fx_run(&fx, &a);
    fx_wait_puts(&fx);
    fx_req_init(&b, &fx, SYS, 1);
    b.r->salt = salt;
    fx_run(&fx, &b);
    assert_int_equal(gen_usage_cached(&b.usage), 0);
    fx_req_init(&c, &fx, SYS, 1);
    c.r->salt = salt;
    fx_run(&fx, &c);
    assert_int_equal(c.usage.n_local, 48);
    fx_req_fini(&a);
    fx_req_fini(&b);
    fx_req_fini(&c);
}

static void on_drained(void *data) {
    ++*(int *)data;
}

static void test_drain_finishes_what_runs_and_refuses_more(void **state) {
    (void)state;
    struct fx_req q, r;
    int drained = 0;
    engine_fx_open(&fx);
    fx_req_init(&q, &fx, SYS, 30);
    fx_req_init(&r, &fx, SYS, 1);
    assert_int_equal(fx_submit(&q), 0);
    engine_drain(fx.engine, 5000, on_drained, &drained);
    assert_int_equal(drained, 0);
    assert_int_equal(fx_submit(&r), ERR_CANCELED);
    while (!drained)
        uv_run(&fx.loop, UV_RUN_ONCE);
    assert_int_equal(q.n_done, 1);
    expect_answer(&q, SYS, 30);
    assert_int_equal(atomic_load(&fx.met.pending_puts), 0); /* puts went out, too */
    assert_true(fx.fake.n_put_blocks >= 12);
    fx_req_fini(&q);
    fx_req_fini(&r);
}

static void test_close_cancels_everything(void **state) {
    (void)state;
    enum { N = 10 };
    static struct fx_req q[N];
    engine_fx_open(&fx);
    fx.fake.put_silent = true;
    fx.model.step_us = 500;
    for (int i = 0; i < N; i++) {
        fx_req_init(&q[i], &fx, SYS, 100);
        assert_int_equal(fx_submit(&q[i]), 0);
    }
    while (!q[0].n_tokens)
        uv_run(&fx.loop, UV_RUN_ONCE);
    engine_fx_close_engine(&fx);
    for (int i = 0; i < N; i++) {
        assert_int_equal(q[i].n_done, 1);
        assert_int_equal(q[i].why, FINISH_CANCELED);
        fx_req_fini(&q[i]);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(test_cold_request_computes_every_row_once),
        T(test_long_text_holds_up_no_short_one),
        T(test_warm_is_told_after_the_first_pass),
        T(test_hung_engine_is_noticed),
        T(test_short_requests_pass_one_that_waits_for_pages),
        T(test_prompts_leave_time_to_those_that_generate),
        T(test_second_request_takes_own_pages),
        T(test_last_token_is_always_computed),
        T(test_generated_blocks_are_reused_by_the_next_turn),
        T(test_private_decode_pages_are_not_reused),
        T(test_many_at_once_equal_alone),
        T(test_few_pages_never_deadlock),
        T(test_limits_are_refused_with_a_reason),
        T(test_full_queue_is_busy),
        T(test_cancel_ends_within_a_chunk_and_frees_pages),
        T(test_failed_step_is_an_error_of_its_requests_only),
        T(test_row_that_is_not_finite_ends_its_request_and_leaves_no_page),
        T(test_stop_string_ends_and_is_cut),
        T(test_scoring_computes_every_row),
        T(test_logprobs_and_logits_digest),
        T(test_salt_separates_tenants),
        T(test_drain_finishes_what_runs_and_refuses_more),
        T(test_close_cancels_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
