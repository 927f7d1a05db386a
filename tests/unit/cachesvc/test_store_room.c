/* Who leaves, and that room is found: whatever is held, however slow the disk is. */
#include "tests/unit/cachesvc/store_fixture.h"

static uint32_t lease(struct store_fx *f, struct store_session *ss, uint32_t chain, uint32_t n,
                      uint64_t *ret_id) {
    struct block_id ids[64];
    uint8_t where[64];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = fx_id(chain, i);
    struct store_lookup l = {
        .ns = f->ns, .ids = ids, .n = n, .where = where, .flags = STORE_LOOKUP_LEASE};
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

/* A12: one promise of a new size, never filled, made every other new size BUSY: its extent had never
 * been touched, so it was the oldest for everybody, and nothing else was tried. */
static void test_a_stalled_put_of_one_size_does_not_stop_another(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 0);
    uint32_t two = store_fx_big_ns(&f, 1, 2 * FX_SLOT - 64),
             three = store_fx_big_ns(&f, 2, 3 * FX_SLOT - 64);
    for (uint32_t c = 0; c < 16; c++)
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
    struct store_put_block b = fx_block(500, 0, 0);
    struct store_put_args a = {.ns = two, .n = 1, .blocks = &b};
    uint8_t st;
    struct store_put *p;
    struct store_fill stalled;
    assert_int_equal(block_store_put_begin(f.ss, &a, &st, &p, NULL), 0);
    assert_int_equal(block_store_put_open(p, 0, &stalled), 0); /* and no byte comes */
    for (uint32_t k = 600; k < 620; k++)
        assert_true(store_fx_put_big(&f, three, 3 * FX_SLOT - 64, k));
    assert_int_equal(store_fx_stats(&f).put_busy, 0);
    block_store_put_unfilled(f.s, &stalled);
    block_store_put_end(p);
    store_fx_check_lists(&f);
    store_fx_close(&f);
}

/* A12: the oldest extent may not leave, for one of its blocks is leased: the next one goes. */
static void test_a_held_oldest_extent_is_passed_over(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 0);
    uint32_t size = 3 * FX_SLOT - 64, three = store_fx_big_ns(&f, 2, size);
    for (uint32_t c = 0; c < 16; c++)
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
    uint64_t id;
    assert_int_equal(lease(&f, f.ss, 0, 4, &id), 4);
    for (uint32_t c = 1; c < 16; c++)
        assert_int_equal(store_fx_lookup(&f, c, 4, true), 4);
    for (uint32_t k = 600; k < 606; k++)
        assert_true(store_fx_put_big(&f, three, size, k));
    assert_int_equal(store_fx_lookup(&f, 0, 4, false), 4);
    store_fx_check_lists(&f);
    store_fx_close(&f);
}

/* C17: a first put of many blocks of a new size got one extent, the rest was BUSY: it gets as many as
 * are older. */
static void test_a_new_size_gets_as_many_extents_as_are_older(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 0); /* 8 extents */
    uint32_t size = 2 * FX_SLOT - 64, two = store_fx_big_ns(&f, 1, size);
    for (uint32_t c = 0; c < 16; c++)
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
    struct store_put_block b[20];
    uint8_t st[20];
    struct store_fill fill[20];
    for (uint32_t i = 0; i < 20; i++)
        b[i] = fx_block(700 + i, 0, 0);
    struct store_put_args a = {.ns = two, .n = 20, .blocks = b};
    struct store_put *p;
    assert_int_equal(block_store_put_begin(f.ss, &a, st, &p, NULL), 0);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(block_store_put_open(p, i, &fill[i]), 0); /* 4 an extent: 5 of them */
    assert_int_equal(store_fx_stats(&f).extent_moved, 5);
    block_store_put_end(p);
    for (uint32_t i = 0; i < 20; i++)
        block_store_put_unfilled(f.s, &fill[i]);
    store_fx_check_lists(&f);
    store_fx_close(&f);
}

/* MUTANT: extents are not stamped. Of two sizes the one in use keeps its extents. */
static void test_extents_leave_in_order_of_touch(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 0);
    uint32_t size = 2 * FX_SLOT - 64, two = store_fx_big_ns(&f, 1, size),
             three = store_fx_big_ns(&f, 2, 3 * FX_SLOT - 64);
    for (uint32_t c = 0; c < 8; c++)
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
    for (uint32_t k = 100; k < 116; k++) /* newer extents, older touches */
        assert_true(store_fx_put_big(&f, two, size, k));
    for (uint32_t c = 0; c < 8; c++)
        assert_int_equal(store_fx_lookup(&f, c, 4, true), 4);
    for (uint32_t k = 200; k < 208; k++) /* two a piece: all four extents of the idle size */
        assert_true(store_fx_put_big(&f, three, 3 * FX_SLOT - 64, k));
    for (uint32_t c = 0; c < 8; c++)
        assert_int_equal(store_fx_lookup(&f, c, 4, false), 4);
    for (uint32_t k = 100; k < 116; k++)
        assert_false(store_fx_has_big(&f, two, k));
    store_fx_check_lists(&f);
    store_fx_close(&f);
}

static void small_directory(struct block_store_cfg *c) {
    c->max_blocks = 48;
}

/* C16: a full directory always took from the first size: the one in use fell to nothing, the idle one
 * stayed. The oldest of all goes, whatever its size. */
static void test_a_full_directory_takes_the_oldest_of_all_sizes(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open_with(&f, 128, 0, small_directory);
    uint32_t size = 2 * FX_SLOT - 64, two = store_fx_big_ns(&f, 1, size);
    for (uint32_t k = 100; k < 124; k++) /* 24 that nobody wants any more */
        assert_true(store_fx_put_big(&f, two, size, k));
    for (uint32_t c = 0; c < 5; c++)
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t c = 0; c < 5; c++)
            assert_int_equal(store_fx_lookup(&f, c, 4, true), 4);
        assert_int_equal(store_fx_put(&f, 50 + round, 0, 4), 4);
    }
    for (uint32_t c = 0; c < 5; c++)
        assert_int_equal(store_fx_lookup(&f, c, 4, true), 4);
    uint32_t n = 0;
    for (uint32_t k = 100; k < 124; k++)
        n += store_fx_has_big(&f, two, k);
    assert_int_equal(n, 48 - 40);
    store_fx_close(&f);
}

/* MUTANT: touch skips the disk's list. What is used stays on disk, what is not goes, though both have
 * left RAM. */
static void test_touch_moves_the_disk_list(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 32);
    for (uint32_t c = 0; c < 7; c++) {
        store_fx_put(&f, c, 0, 4);
        store_fx_drain(&f);
    }
    assert_int_equal(store_fx_lookup(&f, 0, 4, true), 4);
    for (uint32_t c = 10; c < 15; c++) {
        store_fx_put(&f, c, 0, 4);
        store_fx_drain(&f);
    }
    assert_int_equal(store_fx_lookup(&f, 0, 4, false), 4);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 0);
    store_fx_close(&f);
}

/* MUTANT: commit does not touch. A new turn makes the whole conversation new, not only its own blocks. */
static void test_commit_touches_the_whole_chain(void **state) {
    (void)state;
    for (uint32_t n_disk = 0; n_disk <= 64; n_disk += 64) {
        struct store_fx f;
        store_fx_open(&f, 16, n_disk);
        store_fx_put(&f, 1, 0, 4);
        store_fx_put(&f, 2, 0, 4);
        store_fx_pump(&f);
        store_fx_put(&f, 1, 4, 5); /* its four are newer than those of 2 now */
        store_fx_put(&f, 3, 0, 4);
        store_fx_pump(&f);
        store_fx_put(&f, 4, 0, 7);
        for (uint32_t i = 0; i < 5; i++)
            assert_int_equal(store_fx_where(&f, 1, i), STORE_RAM);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(store_fx_where(&f, 2, i), n_disk ? STORE_DISK : STORE_ABSENT);
        store_fx_close(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held_blocks_at_the_cold_end_do_not_hide_the_others),
        cmocka_unit_test(test_held_blocks_stay_on_disk),
        cmocka_unit_test(test_a_slow_disk_is_never_worse_than_none),
        cmocka_unit_test(test_clean_blocks_leave_before_unwritten_ones),
        cmocka_unit_test(test_parents_outlive_children_whatever_the_order_of_writes),
        cmocka_unit_test(test_children_are_counted),
        cmocka_unit_test(test_a_stalled_put_of_one_size_does_not_stop_another),
        cmocka_unit_test(test_a_held_oldest_extent_is_passed_over),
        cmocka_unit_test(test_a_new_size_gets_as_many_extents_as_are_older),
        cmocka_unit_test(test_extents_leave_in_order_of_touch),
        cmocka_unit_test(test_a_full_directory_takes_the_oldest_of_all_sizes),
        cmocka_unit_test(test_touch_moves_the_disk_list),
        cmocka_unit_test(test_commit_touches_the_whole_chain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
