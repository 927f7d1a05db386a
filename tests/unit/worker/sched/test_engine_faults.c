/* test_engine_faults.c - every allocation fails once; a decode step makes none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/fault.h"
#include "tests/unit/worker/sched/engine_fixture.h"

static const char SYS[] = "you are the support bot for acme corp . be brief .";

static struct engine_fx fx;
static uint64_t count_at[128];

static void on_tokens(struct gen_request *r, const struct gen_token *tok, size_t n) {
    struct fx_req *q = r->data;
    (void)tok;
    for (size_t i = 0; i < n; i++)
        if (q->n_tokens < ARRAY_LEN(count_at))
            count_at[q->n_tokens++] = malloc_probe_count();
}

/* Over a hundred tokens: 25 blocks fill, get their ids, enter the index and are put. */
static void test_decode_allocates_nothing(void **state) {
    (void)state;
    struct fx_req q;
    engine_fx_init(&fx);
    fx.cfg.remote = NULL; /* the fake service allocates */
    engine_fx_open(&fx);
    fx_req_init(&q, &fx, SYS, 120);
    q.r->on_tokens = on_tokens;
    q.r->logprobs = true;
    q.r->n_top = 5;
    q.r->sample.temperature = 0.7f;
    q.r->sample.top_p = 0.9f;
    fx_run(&fx, &q);
    assert_int_equal(q.n_tokens, 120);
    assert_int_equal(count_at[119], count_at[0]);
    fx_req_fini(&q);
    engine_fx_fini(&fx);
}

static void test_each_failed_allocation_while_opening_leaves_nothing(void **state) {
    (void)state;
    engine_fx_init(&fx);
    uint64_t n = 0;
    for (;; n++) {
        struct errbuf eb = {{0}};
        fault_arm(n);
        int rv = engine_open(&fx.engine, &fx.cfg, &eb);
        bool fired = fault_fired();
        fault_disarm();
        if (!fired) {
            assert_int_equal(rv, 0);
            break;
        }
        if (rv == 0)
            engine_fx_close_engine(&fx);
        else
            assert_int_equal(rv, ERR_NOMEM);
    }
    assert_true(n > 10);
    engine_fx_fini(&fx);
}

static void test_each_failed_allocation_of_a_request_is_an_error_or_an_answer(void **state) {
    (void)state;
    engine_fx_init(&fx);
    fx.cfg.remote = NULL;
    engine_fx_open(&fx);
    uint32_t n_failed = 0;
    for (uint64_t n = 0;; n++) {
        struct fx_req q;
        int32_t want[6];
        fx_req_init(&q, &fx, SYS, 6);
        q.r->prompt_logprobs = true;
        q.r->logprobs = true;
        q.r->n_top = 2;
        fault_arm(n);
        int rv = fx_submit(&q);
        if (rv == 0)
            fx_wait(&fx, &q, 1);
        bool fired = fault_fired();
        fault_disarm();
        if (rv < 0) {
            assert_int_equal(rv, ERR_NOMEM);
            assert_int_equal(q.n_done, 0);
        } else if (q.why == FINISH_ERROR) {
            assert_int_equal(q.err, ERR_NOMEM);
            n_failed++;
        } else {
            fx_expect(SYS, 6, want);
            assert_memory_equal(q.ids, want, sizeof(want));
        }
        fx_req_fini(&q);
        if (!fired)
            break;
    }
    assert_true(n_failed > 8);
    assert_int_equal(engine_n_open(fx.engine), 0);
    engine_fx_fini(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_allocates_nothing),
        cmocka_unit_test(test_each_failed_allocation_while_opening_leaves_nothing),
        cmocka_unit_test(test_each_failed_allocation_of_a_request_is_an_error_or_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
