/* test_batcher.c - decode first, budget, order, logits room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/sched/batcher.h"

static const struct batch_limits LIM = {
    .max_rows = 64, .max_prefill_rows = 64, .max_seqs = 4, .max_logit_rows = 8};

static void test_decode_goes_before_earlier_prompt(void **state) {
    (void)state;
    struct batch_cand c[3] = {{.n_left = 500}, {.decode = true}, {.decode = true}};
    struct batch_plan p = batch_choose(&LIM, c, 3, 0);
    assert_int_equal(c[1].n_rows, 1);
    assert_int_equal(c[2].n_rows, 1);
    assert_int_equal(c[0].n_rows, 62); /* what they leave */
    assert_int_equal(c[0].n_logits, 0);
    assert_int_equal(p.n_rows, 64);
    assert_int_equal(p.n_decode, 2);
    assert_int_equal(p.n_prefill, 1);
}

/* F2: a one-token request waited 88 s behind a prompt of 8,000 tokens that took every row of every step. */
static void test_a_short_prompt_passes_a_long_one(void **state) {
    (void)state;
    struct batch_cand c[2] = {{.n_left = 8000}, {.n_left = 20}};
    struct batch_plan p = batch_choose(&LIM, c, 2, 0);
    assert_int_equal(c[1].n_rows, 20);
    assert_int_equal(c[1].n_logits, 1); /* through in one step */
    assert_int_equal(c[0].n_rows, 44);  /* and nothing is left unused */
    assert_int_equal(p.n_rows, 64);
}

static void test_prompts_share_the_budget(void **state) {
    (void)state;
    struct batch_cand c[3] = {{.n_left = 40}, {.n_left = 10}, {.n_left = 100}};
    struct batch_plan p = batch_choose(&LIM, c, 3, 0);
    assert_int_equal(c[0].n_rows, 32); /* the oldest: half of the step at least */
    assert_int_equal(c[0].n_logits, 0);
    assert_int_equal(c[1].n_rows, 10);
    assert_int_equal(c[1].n_logits, 1);
    assert_int_equal(c[2].n_rows, 22); /* what the second does not need */
    assert_int_equal(p.n_logits, 1);
    struct batch_cand d[4] = {{.n_left = 500}, {.n_left = 500}, {.n_left = 500}, {.n_left = 500}};
    batch_choose(&LIM, d, 4, 0);
    assert_int_equal(d[0].n_rows, 32);
    assert_int_equal(d[1].n_rows + d[2].n_rows + d[3].n_rows, 32);
    for (int i = 1; i < 4; i++)
        assert_in_range(d[i].n_rows, 10, 12);
}

/* F2: what a step may take of prompts is bounded, so that decodes go on. */
static void test_prefill_rows_are_bounded_apart(void **state) {
    (void)state;
    struct batch_limits lim = LIM;
    lim.max_prefill_rows = 16;
    struct batch_cand c[3] = {{.n_left = 500}, {.decode = true}, {.n_left = 3}};
    struct batch_plan p = batch_choose(&lim, c, 3, 0);
    assert_int_equal(c[0].n_rows, 13);
    assert_int_equal(c[1].n_rows, 1);
    assert_int_equal(c[2].n_rows, 3);
    assert_int_equal(p.n_rows, 17);
}

static void test_more_decoders_than_slots_take_turns(void **state) {
    (void)state;
    struct batch_cand c[6];
    uint32_t served[6] = {0}, rr = 0;
    for (int i = 0; i < 6; i++)
        c[i] = (struct batch_cand){.decode = true};
    for (int step = 0; step < 9; step++) {
        struct batch_plan p = batch_choose(&LIM, c, 6, rr);
        assert_int_equal(p.n_seqs, 4);
        rr = p.next_rr;
        for (int i = 0; i < 6; i++)
            served[i] += c[i].n_rows;
    }
    for (int i = 0; i < 6; i++)
        assert_int_equal(served[i], 6); /* 36 rows, fair */
}

static void test_echo_is_limited_by_logit_rows(void **state) {
    (void)state;
    struct batch_cand c[2] = {{.n_left = 30, .all_logits = true}, {.n_left = 5}};
    struct batch_plan p = batch_choose(&LIM, c, 2, 0);
    assert_int_equal(c[0].n_rows, 8);
    assert_int_equal(c[0].n_logits, 8);
    assert_int_equal(c[1].n_rows, 4); /* no room for its last row's logits */
    assert_int_equal(c[1].n_logits, 0);
    assert_int_equal(p.n_logits, 8);
}

static void test_last_row_waits_alone_without_logit_room(void **state) {
    (void)state;
    struct batch_cand c[2] = {{.n_left = 8, .all_logits = true}, {.n_left = 1}};
    struct batch_plan p = batch_choose(&LIM, c, 2, 0);
    assert_int_equal(c[1].n_rows, 0);
    assert_int_equal(p.n_seqs, 1);
}

static void test_nothing_to_do_is_an_empty_plan(void **state) {
    (void)state;
    struct batch_cand c[1] = {{.n_left = 0}};
    assert_int_equal(batch_choose(&LIM, c, 1, 0).n_seqs, 0);
    assert_int_equal(batch_choose(&LIM, NULL, 0, 3).n_rows, 0);
}

/* Any mixture: limits hold, and as long as there is a candidate something is chosen. */
static void test_limits_hold_for_random_mixtures(void **state) {
    (void)state;
    uint32_t r = 7;
    for (int round = 0; round < 20000; round++) {
        struct batch_cand c[12];
        r = r * 1664525u + 1013904223u;
        uint32_t n = (r >> 10) % 12, any = 0;
        for (uint32_t i = 0; i < n; i++) {
            r = r * 1664525u + 1013904223u;
            c[i] = (struct batch_cand){
                .decode = (r >> 9) & 1, .n_left = (r >> 12) % 90, .all_logits = (r >> 20) & 1};
            any |= c[i].decode || c[i].n_left;
        }
        struct batch_plan p = batch_choose(&LIM, c, n, n ? r % n : 0);
        assert_true(p.n_rows <= 64 && p.n_seqs <= 4 && p.n_logits <= 8);
        assert_int_equal(any, p.n_seqs > 0);
        uint32_t rows = 0;
        for (uint32_t i = 0; i < n; i++) {
            rows += c[i].n_rows;
            assert_true(c[i].decode ? c[i].n_rows <= 1 : c[i].n_rows <= c[i].n_left);
            if (!c[i].decode && c[i].n_rows && c[i].n_rows == c[i].n_left)
                assert_true(c[i].n_logits > 0);
        }
        assert_int_equal(rows, p.n_rows);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_goes_before_earlier_prompt),
        cmocka_unit_test(test_a_short_prompt_passes_a_long_one),
        cmocka_unit_test(test_prompts_share_the_budget),
        cmocka_unit_test(test_prefill_rows_are_bounded_apart),
        cmocka_unit_test(test_more_decoders_than_slots_take_turns),
        cmocka_unit_test(test_echo_is_limited_by_logit_rows),
        cmocka_unit_test(test_last_row_waits_alone_without_logit_room),
        cmocka_unit_test(test_nothing_to_do_is_an_empty_plan),
        cmocka_unit_test(test_limits_hold_for_random_mixtures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
