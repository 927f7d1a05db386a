/* The order in which blocks leave: parents outlive children, whatever was touched and how. */
#include "tests/unit/cachesvc/store_fixture.h"

#include "cachesvc/store/policy.h"

#define CAP 70000u

struct tree {
    struct directory dir;
    struct policy p;
    uint32_t cls;
};

static void tree_open(struct tree *t) {
    *t = (struct tree){0};
    assert_int_equal(dir_init(&t->dir, CAP, 7), 0);
    policy_lru_init(&t->p, &t->dir, NULL, NULL, &t->cls);
}

static void tree_close(struct tree *t) {
    dir_fini(&t->dir);
}

/* A resident block in the tiers of the mask. */
static uint32_t grow(struct tree *t, uint32_t key, uint32_t parent, uint32_t tiers) {
    struct block_id id = fx_id(key, 0);
    uint32_t idx = dir_add(&t->dir, 0, &id);
    struct dir_entry *e = dir_at(&t->dir, idx);
    e->depth = parent == DIR_NONE ? 0 : (dir_at(&t->dir, parent)->depth + 1) & DIR_DEPTH_MAX;
    if (parent != DIR_NONE)
        dir_link_parent(&t->dir, idx, parent);
    dir_set_state(&t->dir, idx, DIR_RESIDENT);
    for (enum dir_tier k = DIR_RAM; k < DIR_TIERS; k++)
        if (tiers & BIT(k))
            t->p.ops->place(&t->p, k, 0, idx, DIR_MAIN, false);
    return idx;
}

/* Place of an entry counted from the cold end. */
static uint32_t place(const struct tree *t, enum dir_tier tier, uint32_t idx) {
    uint32_t n = 0, at = t->p.lists[tier][0][DIR_MAIN].cold;
    for (; at != DIR_NONE && at != idx; at = dir_at(&t->dir, at)->lru[tier].next)
        n++;
    assert_int_equal(at, idx);
    return n;
}

/* A5: Touch of one deep id 4,096 times walked to block 0 for each; a path is walked once a request. */
static void test_a_path_is_walked_once_a_request(void **state) {
    (void)state;
    struct tree t;
    tree_open(&t);
    uint32_t idx = DIR_NONE, first = 0;
    for (uint32_t i = 0; i < 10000; i++) {
        idx = grow(&t, i, idx, BIT(DIR_RAM) | BIT(DIR_DISK));
        first = i ? first : idx;
    }
    uint32_t other = grow(&t, 20000, DIR_NONE, BIT(DIR_RAM) | BIT(DIR_DISK)), steps = 50000;
    for (uint32_t i = 0; i < 4096; i++)
        t.p.ops->touch_branch(&t.p, idx, &steps);
    assert_true(steps >= 50000 - 10000 - 1);
    for (uint32_t i = 0; i < 4096; i++)
        t.p.ops->touch_end(&t.p, idx);
    assert_int_equal(place(&t, DIR_RAM, other), 0);
    assert_int_equal(place(&t, DIR_RAM, first), 10000);
    assert_int_equal(place(&t, DIR_DISK, first), 10000); /* MUTANT: the disk's list is skipped */
    /* the marks are gone: the next request walks again */
    t.p.ops->touch_branch(&t.p, other, &steps);
    t.p.ops->touch_end(&t.p, other);
    t.p.ops->touch_branch(&t.p, idx, &steps);
    t.p.ops->touch_end(&t.p, idx);
    assert_int_equal(place(&t, DIR_RAM, first), 10000);
    tree_close(&t);
}

/* A5: what one request may cost is bounded; the rest stays as old as it was, in order. */
static void test_a_request_walks_a_bounded_number_of_blocks(void **state) {
    (void)state;
    struct tree t;
    tree_open(&t);
    uint32_t a = DIR_NONE, b = DIR_NONE, a0 = 0;
    for (uint32_t i = 0; i < 100; i++) {
        a = grow(&t, i, a, BIT(DIR_RAM));
        a0 = i ? a0 : a;
    }
    for (uint32_t i = 0; i < 100; i++)
        b = grow(&t, 1000 + i, b, BIT(DIR_RAM));
    uint32_t steps = 150;
    t.p.ops->touch_branch(&t.p, b, &steps);
    t.p.ops->touch_branch(&t.p, a, &steps); /* would be 100 more */
    t.p.ops->touch_end(&t.p, b);
    t.p.ops->touch_end(&t.p, a);
    assert_int_equal(place(&t, DIR_RAM, a), 0);
    assert_int_equal(place(&t, DIR_RAM, a0), 99);
    steps = 99;
    assert_int_equal(t.p.ops->touch_chain(&t.p, a, &steps), 0);
    assert_int_equal(place(&t, DIR_RAM, a), 0);
    steps = 100;
    assert_int_equal(t.p.ops->touch_chain(&t.p, a, &steps), 0);
    assert_int_equal(place(&t, DIR_RAM, a0), 199);
    tree_close(&t);
}

/* A5: the branches of a tree, named in any order, leave it ordered: no child is newer than its parent,
 * in either tier, also where a tier lacks some of the blocks. */
static void test_branches_touched_together_keep_the_order(void **state) {
    (void)state;
    enum { N = 300 };
    struct tree t;
    tree_open(&t);
    uint32_t idx[N], rnd = 5;
    for (uint32_t i = 0; i < N; i++) {
        rnd = rnd * 1664525 + 1013904223;
        idx[i] = grow(&t, i, i < 3 ? DIR_NONE : idx[(rnd >> 8) % i], 1 + (rnd >> 20) % 3);
    }
    for (uint32_t i = 0; i < N; i++) {
        uint32_t steps = N;
        (void)t.p.ops->touch_chain(&t.p, idx[i], &steps);
    }
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t steps = 100000, named[8];
        for (uint32_t k = 0; k < 8; k++) {
            rnd = rnd * 1664525 + 1013904223;
            named[k] = idx[(rnd >> 8) % N];
            t.p.ops->touch_branch(&t.p, named[k], &steps);
        }
        for (uint32_t k = 0; k < 8; k++)
            t.p.ops->touch_end(&t.p, named[k]);
        for (uint32_t i = 0; i < N; i++) {
            const struct dir_entry *e = dir_at(&t.dir, idx[i]);
            assert_false(e->touched);
            for (enum dir_tier k = DIR_RAM; k < DIR_TIERS; k++) {
                uint32_t up = e->parent;
                while (up != DIR_NONE && dir_list(dir_at(&t.dir, up), k) != DIR_MAIN)
                    up = dir_at(&t.dir, up)->parent;
                if (up != DIR_NONE && dir_list(e, k) == DIR_MAIN)
                    assert_true(place(&t, k, up) > place(&t, k, idx[i]));
            }
        }
    }
    tree_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_path_is_walked_once_a_request),
        cmocka_unit_test(test_a_request_walks_a_bounded_number_of_blocks),
        cmocka_unit_test(test_branches_touched_together_keep_the_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
