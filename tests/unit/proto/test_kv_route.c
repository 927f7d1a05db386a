#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "proto/kv_route.h"

#define N_SEGS 4000u

static void seg_id(uint32_t i, struct block_id *ret) {
    digest_sha256(&i, sizeof(i), ret->b);
}

static void test_owner_of_known_ids_never_changes(void **state) {
    /* Every client and every version must agree: these were computed once and stay. */
    static const uint32_t want[8] = {2, 0, 2, 4, 3, 1, 4, 1};
    const uint16_t ids[5] = {0, 1, 2, 700, 65535};
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        struct block_id id;
        seg_id(i, &id);
        assert_int_equal(kv_route_owner(&id, ids, 5), want[i]);
    }
}

static void test_owner_does_not_depend_on_the_order_of_nodes(void **state) {
    const uint16_t a[4] = {3, 1, 9, 4}, b[4] = {9, 4, 3, 1};
    (void)state;
    for (uint32_t i = 0; i < 500; i++) {
        struct block_id id;
        seg_id(i, &id);
        assert_int_equal(a[kv_route_owner(&id, a, 4)], b[kv_route_owner(&id, b, 4)]);
    }
}

static void test_losing_a_node_moves_only_its_share(void **state) {
    const uint16_t all[5] = {1, 2, 3, 4, 5}, less[4] = {1, 2, 4, 5};
    uint32_t share[6] = {0};
    (void)state;
    for (uint32_t i = 0; i < N_SEGS; i++) {
        struct block_id id;
        seg_id(i, &id);
        uint16_t before = all[kv_route_owner(&id, all, 5)];
        uint16_t after = less[kv_route_owner(&id, less, 4)];
        share[before]++;
        if (before != 3)
            assert_int_equal(before, after);
    }
    for (int i = 1; i <= 5; i++) /* a fifth each, within five standard deviations */
        assert_in_range(share[i], N_SEGS / 5 - 130, N_SEGS / 5 + 130);
}

static void test_owners_are_distinct_and_begin_with_the_owner(void **state) {
    const uint16_t ids[5] = {1, 2, 3, 4, 5};
    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        struct block_id id;
        uint32_t o[5];
        seg_id(i, &id);
        assert_int_equal(kv_route_owners(&id, ids, 5, 3, o), 3);
        assert_int_equal(o[0], kv_route_owner(&id, ids, 5));
        assert_true(o[0] != o[1] && o[1] != o[2] && o[0] != o[2]);
        assert_int_equal(kv_route_owners(&id, ids, 2, 3, o), 2);
    }
}

static void test_chain_is_cut_from_block_zero_whatever_first_is(void **state) {
    struct block_id chain[40];
    const uint16_t ids[3] = {1, 2, 3};
    uint32_t whole[40], part[40];
    (void)state;
    for (uint32_t i = 0; i < 40; i++)
        seg_id(i, &chain[i]);
    kv_route_chain(chain, 0, 40, 8, ids, 3, whole);
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(whole[i], kv_route_owner(&chain[i / 8 * 8], ids, 3));
    for (uint32_t first = 0; first < 40; first++) {
        kv_route_chain(chain, first, 40 - first, 8, ids, 3, part);
        assert_memory_equal(part, whole + first, (40 - first) * sizeof(part[0]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owner_of_known_ids_never_changes),
        cmocka_unit_test(test_owner_does_not_depend_on_the_order_of_nodes),
        cmocka_unit_test(test_losing_a_node_moves_only_its_share),
        cmocka_unit_test(test_owners_are_distinct_and_begin_with_the_owner),
        cmocka_unit_test(test_chain_is_cut_from_block_zero_whatever_first_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
