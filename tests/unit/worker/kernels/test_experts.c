/* test_experts.c - the router's choice: order, ties, weights, and what is no choice. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker/kernels/experts.h"

static void test_largest_are_chosen_and_listed_by_id(void **state) {
    (void)state;
    const float logits[6] = {1, 4, -2, 3, 0, 4.5f};
    struct expert_choice c[3];
    assert_true(experts_choose(logits, 6, 3, c));
    const uint32_t ids[3] = {1, 3, 5};
    double sum = 0;
    for (int i = 0; i < 3; i++)
        sum += exp((double)logits[ids[i]] - 4.5);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(c[i].id, ids[i]);
        assert_true(fabs((double)c[i].weight - exp((double)logits[ids[i]] - 4.5) / sum) < 1e-7);
    }
}

/* Equal logits: the lower ids, whatever stands around them. */
static void test_ties_go_to_the_lowest_ids(void **state) {
    (void)state;
    float logits[16];
    for (int i = 0; i < 16; i++)
        logits[i] = 0.25f;
    struct expert_choice c[4];
    assert_true(experts_choose(logits, 16, 4, c));
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(c[i].id, i);
        assert_true(c[i].weight == 0.25f);
    }
    logits[9] = 1;
    assert_true(experts_choose(logits, 16, 2, c));
    assert_int_equal(c[0].id, 0);
    assert_int_equal(c[1].id, 9);
    logits[0] = -0.0f;
    logits[1] = 0.0f;
    assert_true(experts_choose(logits, 2, 1, c)); /* zeros of both signs are equal */
    assert_int_equal(c[0].id, 0);
    assert_true(c[0].weight == 1.0f);
}

static void test_nan_and_infinity_are_no_choice(void **state) {
    (void)state;
    const float bad[3][3] = {{1, NAN, 2}, {1, INFINITY, 2}, {-INFINITY, -INFINITY, -INFINITY}};
    struct expert_choice c[2];
    for (int i = 0; i < 3; i++) {
        assert_false(experts_choose(bad[i], 3, 2, c));
        for (uint32_t k = 0; k < 2; k++)
            assert_true(c[k].id == k && c[k].weight == 0);
    }
    const float far[3] = {-INFINITY, 3, -1e30f}; /* one finite number is enough */
    assert_true(experts_choose(far, 3, 2, c));
    assert_true(c[0].id == 1 && c[0].weight == 1.0f && c[1].id == 2 && c[1].weight == 0.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_largest_are_chosen_and_listed_by_id),
        cmocka_unit_test(test_ties_go_to_the_lowest_ids),
        cmocka_unit_test(test_nan_and_infinity_are_no_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
