#include "tests/unit/cachesvc/store_fixture.h"

#include "cachesvc/store/directory.h"

static void test_find_after_random_adds_and_deletes(void **state) {
    (void)state;
    enum { N = 512 };
    struct directory d;
    assert_int_equal(dir_init(&d, N, 42), 0);
    uint32_t idx[2 * N];
    memset(idx, 0xff, sizeof(idx));
    uint32_t rnd = 1;
    for (int i = 0; i < 20000; i++) {
        rnd = rnd * 1664525 + 1013904223;
        uint32_t k = rnd >> 8 & (2 * N - 1);
        struct block_id id = fx_id(1, k);
        assert_int_equal(dir_find(&d, 0, &id), idx[k]);
        if (idx[k] != DIR_NONE) {
            dir_del(&d, idx[k]);
            idx[k] = DIR_NONE;
        } else {
            bool is_full = d.n == N;
            idx[k] = dir_add(&d, 0, &id);
            assert_int_equal(idx[k] == DIR_NONE, is_full);
        }
    }
    for (uint32_t k = 0; k < 2 * N; k++) {
        struct block_id id = fx_id(1, k);
        assert_int_equal(dir_find(&d, 0, &id), idx[k]);
    }
    dir_fini(&d);
}

static uint32_t add(struct directory *d, uint32_t k, uint32_t parent) {
    struct block_id id = fx_id(2, k);
    uint32_t idx = dir_add(d, 0, &id);
    if (parent != DIR_NONE)
        dir_link_parent(d, idx, parent);
    return idx;
}

static void test_a_lease_holds_all_ancestors_and_no_sibling(void **state) {
    (void)state;
    struct directory d;
    assert_int_equal(dir_init(&d, 16, 1), 0);
    uint32_t a = add(&d, 0, DIR_NONE), b = add(&d, 1, a), c = add(&d, 2, b), x = add(&d, 3, a);
    dir_add_leases(&d, c, 1);
    dir_add_leases(&d, c, 1);
    assert_true(dir_is_held(dir_at(&d, a)) && dir_is_held(dir_at(&d, b)) &&
                dir_is_held(dir_at(&d, c)));
    assert_false(dir_is_held(dir_at(&d, x)));
    dir_set_state(&d, x, DIR_FILLING);
    assert_int_equal(dir_at(&d, a)->held_children, 2);
    dir_add_leases(&d, c, -1);
    assert_true(dir_is_held(dir_at(&d, b)));
    dir_add_leases(&d, c, -1);
    assert_false(dir_is_held(dir_at(&d, b)));
    assert_true(dir_is_held(dir_at(&d, a)));
    dir_unlink_parent(&d, x);
    assert_false(dir_is_held(dir_at(&d, a)));
    dir_link_parent(&d, x, c); /* a held entry brings its hold along */
    assert_true(dir_is_held(dir_at(&d, a)));
    dir_fini(&d);
}

static void test_walk_visits_a_subtree_once_parents_first(void **state) {
    (void)state;
    struct directory d;
    assert_int_equal(dir_init(&d, 16, 1), 0);
    uint32_t top = add(&d, 9, DIR_NONE), a = add(&d, 0, top), b = add(&d, 1, a), c = add(&d, 2, a),
             e = add(&d, 4, b);
    (void)add(&d, 5, top); /* not below a */
    uint32_t seen = 0, n = 0;
    for (uint32_t cur = a; cur != DIR_NONE; cur = dir_walk(&d, a, cur, true), n++) {
        if (cur != a)
            assert_true(seen & BIT(dir_at(&d, cur)->parent));
        seen |= BIT(cur);
    }
    assert_int_equal(n, 4);
    assert_int_equal(seen, BIT(a) | BIT(b) | BIT(c) | BIT(e));
    assert_int_equal(dir_walk(&d, a, a, false), DIR_NONE);
    dir_fini(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find_after_random_adds_and_deletes),
        cmocka_unit_test(test_a_lease_holds_all_ancestors_and_no_sibling),
        cmocka_unit_test(test_walk_visits_a_subtree_once_parents_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
