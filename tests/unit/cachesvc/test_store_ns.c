/* Namespaces: nothing that is said in one shows in another. */
#include "tests/unit/cachesvc/store_fixture.h"

/* Runs the call as a client of the namespace. */
#define IN_NS(f, n, expr)                                                                          \
    ({                                                                                             \
        uint32_t old_ = (f)->ns;                                                                   \
        (f)->ns = (n);                                                                             \
        typeof(expr) rv_ = (expr);                                                                 \
        (f)->ns = old_;                                                                            \
        rv_;                                                                                       \
    })

static uint8_t begin_one(struct store_fx *f, uint32_t ns, const struct store_put_block *b,
                         struct store_put **p) {
    struct store_put_args a = {.ns = ns, .n = 1, .blocks = b};
    uint8_t st = 99;
    assert_int_equal(block_store_put_begin(f->ss, &a, &st, p, NULL), 0);
    return st;
}

/* B3: A puts a child whose parent is B's next block, with another depth; then A names that id itself.
 * B's own put of it goes on as if A were not there, and A's is answered as one of an unknown id. */
static void test_a_child_that_names_anothers_parent_changes_nothing_for_it(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    uint32_t a = store_fx_ns(&f, 1), b = f.ns;
    store_fx_put(&f, 1, 0, 2);
    struct store_put_block child = fx_block(7, 9, 0);
    child.parent = fx_id(1, 2); /* B's next */
    struct store_put *p;
    assert_int_equal(begin_one(&f, a, &child, &p), STORE_PUT_WANTED);
    assert_int_equal(IN_NS(&f, b, store_fx_put(&f, 1, 2, 4)), 4 - 2);
    assert_int_equal(store_fx_lookup(&f, 1, 4, true), 4);
    /* as unknown as any: another checksum is no conflict, the same one is not present */
    struct store_put_block known = fx_block(1, 0, 5), same = fx_block(1, 1, 0);
    struct store_put *q, *r;
    assert_int_equal(begin_one(&f, a, &known, &q), STORE_PUT_WANTED);
    assert_int_equal(begin_one(&f, a, &same, &r), STORE_PUT_WANTED);
    assert_int_equal(store_fx_stats(&f).conflict, 0);
    block_store_put_end(r);
    block_store_put_end(q);
    block_store_put_end(p);
    assert_int_equal(store_fx_lookup(&f, 1, 4, true), 4);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* B3, through holes and orphans: A's hole at an id of B does not make B's children orphans, and B's
 * eviction of its own does not touch A's. */
static void test_anothers_hole_makes_no_orphans(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    uint32_t a = store_fx_ns(&f, 1);
    store_fx_put(&f, 1, 0, 3);
    assert_int_equal(IN_NS(&f, a, store_fx_put(&f, 1, 1, 3)), 2); /* a hole at (1, 0) */
    store_fx_put(&f, 2, 0, 5);                                    /* two must go: A's orphans */
    assert_int_equal(store_fx_lookup(&f, 1, 3, false), 3);
    assert_int_equal(IN_NS(&f, a, store_fx_where(&f, 1, 1)), STORE_ABSENT);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* B1: Touch, inspect, fetch and evict by id see the ids of their namespace only. */
static void test_ids_of_another_namespace_are_unknown_everywhere(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    uint32_t a = store_fx_ns(&f, 1);
    store_fx_put(&f, 1, 0, 4);
    store_fx_put(&f, 2, 0, 4);
    struct block_id ids[2] = {fx_id(1, 3), fx_id(2, 3)};
    assert_int_equal(block_store_touch(f.s, a, ids, 2), 0);
    assert_int_equal(block_store_touch(f.s, f.ns, ids, 2), 2);
    struct store_block_info info;
    assert_int_equal(block_store_inspect(f.s, a, &ids[0], &info), ERR_NOTFOUND);
    assert_int_equal(IN_NS(&f, a, store_fx_fetch(&f, 1, 3)), ERR_NOTFOUND);
    struct store_filter flt = {.by_ns = true, .ids = ids, .n_ids = 2, .descendants = true};
    struct store_ns_info of_a, of_b;
    block_store_ns_info(f.s, a, &of_a);
    block_store_ns_info(f.s, f.ns, &of_b);
    memcpy(flt.digest, of_a.digest, sizeof(flt.digest));
    assert_int_equal(store_fx_evict(&f, &flt), 0);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 4);
    /* the same ids in both are two blocks */
    assert_int_equal(IN_NS(&f, a, store_fx_put(&f, 1, 0, 4)), 4);
    assert_int_equal(store_fx_stats(&f).now.blocks, 12);
    assert_int_equal(store_fx_evict(&f, &flt), 1);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 4);
    memcpy(flt.digest, of_b.digest, sizeof(flt.digest));
    assert_int_equal(store_fx_evict(&f, &flt), 2);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_child_that_names_anothers_parent_changes_nothing_for_it),
        cmocka_unit_test(test_anothers_hole_makes_no_orphans),
        cmocka_unit_test(test_ids_of_another_namespace_are_unknown_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
