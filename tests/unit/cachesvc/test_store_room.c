/* Who leaves, and that room is found: whatever is held, however slow the disk is. */
#include "tests/unit/cachesvc/store_fixture.h"

static uint32_t lease(struct store_fx *f, struct store_session *ss, uint32_t chain, uint32_t n,
                      uint64_t *ret_id) {
    struct block_id ids[64];
    uint8_t where[64];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = fx_id(chain, i);
    struct store_lookup l = {.ns = f->ns,
                             .ids = ids,
                             .n = n,
                             .where = where,
                             .flags = STORE_LOOKUP_LEASE};
    assert_int_equal(block_store_lookup(f->s, ss, &l), 0);
    *ret_id = l.lease_id;
    return l.n_leased;
}

static void many_leases(struct block_store_cfg *c) {
    c->max_lease_blocks = 8192;
}

/* A4: 1,100 leased blocks at the cold end, then puts of twice what may go: after 1,972 of them every
 * put was BUSY, for the search gave up after 1,024 refused entries. */
static void test_held_blocks_at_the_cold_end_do_not_hide_the_others(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open_with(&f, 3072, 0, many_leases);
    uint64_t id;
    for (uint32_t c = 0; c < 55; c++) {
        assert_int_equal(store_fx_put(&f, c, 0, 20), 20);
        assert_int_equal(lease(&f, f.ss, c, 20, &id), 20);
    }
    for (uint32_t c = 100; c < 300; c++)
        assert_int_equal(store_fx_put(&f, c, 0, 20), 20);
    assert_int_equal(store_fx_stats(&f).put_busy, 0);
    for (uint32_t c = 0; c < 55; c++)
        assert_int_equal(store_fx_lookup(&f, c, 20, false), 20);
    store_fx_check_lists(&f);
    store_fx_close(&f);
}

/* MUTANT: held blocks may leave the disk. All of RAM and disk is asked for several times over; what a
 * lease holds is found and whole. */
static void test_held_blocks_stay_on_disk(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 32);
    store_fx_put(&f, 1, 0, 6);
    store_fx_drain(&f);
    uint64_t id;
    assert_int_equal(lease(&f, f.ss, 1, 6, &id), 6);
    for (uint32_t c = 10; c < 40; c++) {
        (void)store_fx_put(&f, c, 0, 4);
        store_fx_pump(&f);
    }
    assert_true(store_fx_stats(&f).evicted_disk > 0);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(store_fx_fetch(&f, 1, i), 0);
    store_fx_check_lists(&f);
    assert_int_equal(block_store_release(f.ss, id), 0);
    /* the copies on disk were held, not only those in RAM */
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_lookup(&f, 1, 6, false), 6);
    store_fx_close(&f);
}

/* C4: RAM of 16 blocks before a disk that finishes nothing: all puts were BUSY once RAM was dirty. The
 * coldest leave unwritten, counted, and the newest are found, as without a disk. */
static void test_a_slow_disk_is_never_worse_than_none(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 24, 256);
    for (uint32_t c = 0; c < 20; c++) /* no op is run */
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
    struct block_store_stats st = store_fx_stats(&f);
    assert_int_equal(st.put_busy, 0);
    assert_true(st.evicted_unwritten > 0);
    uint32_t n = 0;
    for (uint32_t c = 16; c < 20; c++)
        n += store_fx_lookup(&f, c, 4, false);
    assert_int_equal(n, 16); /* the last 16 but what is being written: eight of the first */
    store_fx_check_lists(&f);
    store_fx_drain(&f);
    store_fx_check_lists(&f);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* C4: a clean block leaves before one that the disk has not, however old that one is. */
static void test_clean_blocks_leave_before_unwritten_ones(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 24, 256);
    for (uint32_t c = 10; c < 15; c++)
        store_fx_put(&f, c, 0, 4);
    store_fx_drain(&f);
    uint32_t before = (uint32_t)store_fx_stats(&f).evicted_unwritten;
    for (uint32_t c = 20; c < 25; c++) /* not written: they take the clean ones' places */
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
    assert_int_equal(store_fx_stats(&f).evicted_unwritten, before);
    for (uint32_t c = 10; c < 15; c++)
        assert_int_equal(store_fx_lookup(&f, c, 4, false), 4); /* on disk */
    store_fx_close(&f);
}

/* C10: writes that end in random order took 3.4% of parents from the disk before their children;
 * untouched chains lost their heads first. Parents outlive children: no hole is ever left. */
static void test_parents_outlive_children_whatever_the_order_of_writes(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 128);
    f.x.shuffle = 12345;
    for (uint32_t c = 0; c < 200; c++) {
        (void)store_fx_put(&f, c, 0, 8);
        store_fx_pump(&f);
        store_fx_check_lists(&f);
        assert_int_equal(store_fx_stats(&f).now.holes, 0);
    }
    assert_true(store_fx_stats(&f).evicted_disk > 1000);
    store_fx_close(&f);
}

/* A6: children were counted by walking them; the count is kept. */
static void test_children_are_counted(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 32, 0);
    store_fx_put(&f, 1, 0, 1);
    struct store_put_block b[20];
    uint8_t st[20];
    for (uint32_t i = 0; i < 20; i++) {
        b[i] = fx_block(100 + i, 1, 0);
        b[i].parent = fx_id(1, 0);
    }
    struct store_put_args a = {.ns = f.ns, .n = 20, .blocks = b};
    struct store_put *p;
    assert_int_equal(block_store_put_begin(f.ss, &a, st, &p, NULL), 0);
    struct block_id id = fx_id(1, 0);
    struct store_block_info info;
    assert_int_equal(block_store_inspect(f.s, f.ns, &id, &info), 0);
    assert_int_equal(info.n_children, 20);
    block_store_put_end(p);
    assert_int_equal(block_store_inspect(f.s, f.ns, &id, &info), 0);
    assert_int_equal(info.n_children, 0);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held_blocks_at_the_cold_end_do_not_hide_the_others),
        cmocka_unit_test(test_held_blocks_stay_on_disk),
        cmocka_unit_test(test_a_slow_disk_is_never_worse_than_none),
        cmocka_unit_test(test_clean_blocks_leave_before_unwritten_ones),
        cmocka_unit_test(test_parents_outlive_children_whatever_the_order_of_writes),
        cmocka_unit_test(test_children_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
