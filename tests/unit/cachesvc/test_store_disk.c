/* The disk tier behind the store: write-behind, demotion, promotion, restart, removal that lasts.
 */
#include "tests/unit/cachesvc/store_fixture.h"

#include <fcntl.h>
#include <unistd.h>

static void test_blocks_leave_ram_for_disk_and_come_back(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 64);
    for (uint32_t c = 0; c < 6; c++) {
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
        store_fx_pump(&f);
    }
    assert_int_equal(store_fx_stats(&f).now.blocks, 24);
    assert_int_equal(store_fx_stats(&f).now.disk_blocks, 24);
    assert_int_equal(store_fx_where(&f, 0, 0), STORE_DISK);
    for (uint32_t c = 0; c < 6; c++)
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(store_fx_fetch(&f, c, i), 0);
    assert_int_equal(store_fx_where(&f, 5, 3), STORE_RAM);
    assert_true(store_fx_stats(&f).promoted >= 16);
    assert_int_equal(store_fx_stats(&f).now.disk_blocks, 24); /* promotion keeps the disk copy */
    assert_int_equal(store_fx_stats(&f).evicted, 0);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

struct got {
    int n, rv;
    struct store_ref ref[4];
};
static void on_got(void *arg, int rv, const struct store_ref *ref) {
    struct got *g = arg;
    g->rv = rv;
    if (rv == 0)
        g->ref[g->n] = *ref;
    g->n++;
}

static void test_readers_of_one_block_share_a_read(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 64);
    store_fx_put(&f, 1, 0, 4);
    store_fx_restart(&f, false);
    struct store_fetch fetch[4];
    struct block_id id = fx_id(1, 2);
    struct got g = {0};
    struct store_ref ref;
    for (int i = 0; i < 4; i++)
        assert_int_equal(block_store_fetch(f.s, &fetch[i], f.ns, &id, &ref, on_got, &g), 0);
    assert_int_equal(store_fx_stats(&f).now.reads_in_flight, 1);
    block_store_fetch_cancel(&fetch[1]);
    store_fx_pump(&f);
    assert_int_equal(g.n, 3);
    for (int i = 0; i < 3; i++)
        block_store_ref_drop(f.s, &g.ref[i]);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_restart_brings_all_written_blocks_back(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    store_fx_put_as(&f, 1, 0, 8, 0, "alice");
    f.wall_ns += 100 * NS_PER_S;
    store_fx_put_as(&f, 2, 3, 6, 0, "bob");
    store_fx_restart(&f, false);
    assert_int_equal(store_fx_stats(&f).recovered, 11);
    assert_int_equal(store_fx_lookup(&f, 1, 8, true), 8);
    assert_int_equal(store_fx_stats(&f).now.holes, 1);
    struct store_block_info info;
    struct block_id id = fx_id(2, 4);
    assert_int_equal(block_store_inspect(f.s, f.ns, &id, &info), 0);
    assert_string_equal((const char *)info.writer, "bob");
    assert_int_equal(info.put_time_ms, (FX_WALL_S + 100) * 1000);
    assert_int_equal(info.depth, 4);
    struct block_id parent = fx_id(2, 3);
    assert_true(block_id_equal(&info.parent, &parent));
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(store_fx_fetch(&f, 1, i), 0);
    store_fx_close(&f);
}

static void test_kill_loses_only_what_was_not_written(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    store_fx_put(&f, 1, 0, 4);
    store_fx_pump(&f);
    store_fx_put(&f, 2, 0, 4); /* disk work waits in the queue */
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_lookup(&f, 1, 4, true), 4);
    assert_int_equal(store_fx_lookup(&f, 2, 4, true), 0);
    assert_int_equal(store_fx_put(&f, 2, 0, 4), 4);
    store_fx_close(&f);
}

static void test_disk_evicts_leaf_first_to_nothing(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 16);
    for (uint32_t c = 0; c < 5; c++) {
        store_fx_put(&f, c, 0, 4);
        store_fx_pump(&f);
    }
    struct block_store_stats st = store_fx_stats(&f);
    assert_int_equal(st.now.disk_blocks, 16);
    assert_int_equal(st.evicted_disk, 4);
    assert_int_equal(store_fx_lookup(&f, 0, 4, false), 0);
    store_fx_put(&f, 5, 0, 2);
    store_fx_pump(&f);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 2);
    store_fx_close(&f);
}

static void test_lru_after_restart_keeps_parents_longest(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 16);
    store_fx_put(&f, 1, 0, 4);
    store_fx_pump(&f);
    store_fx_put(&f, 2, 0, 6);
    store_fx_pump(&f);
    store_fx_put(&f, 1, 4, 6); /* makes all of chain 1 newer than chain 2 */
    store_fx_restart(&f, false);
    store_fx_put(&f, 3, 0, 8);
    store_fx_pump(&f); /* 12 + 8 in 16 slots */
    assert_int_equal(store_fx_lookup(&f, 1, 6, false), 6);
    assert_int_equal(store_fx_lookup(&f, 2, 6, false), 2);
    store_fx_close(&f);
}

static void flip(struct store_fx *f, uint32_t chain, uint32_t depth) {
    /* the payload's first bytes are found in the file, one of them is changed */
    uint8_t want[FX_PAYLOAD], at[FX_SLOT];
    fx_payload(chain, depth, 0, want);
    char path[128];
    snprintf(path, sizeof(path), "%s/incipit.blocks", f->dir);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    bool found = false;
    for (off_t off = 0; pread(fd, at, sizeof(at), off) == (ssize_t)sizeof(at); off += FX_SLOT) {
        if (memcmp(at, want, 64) != 0)
            continue;
        at[100] ^= 1;
        assert_int_equal(pwrite(fd, at, sizeof(at), off), sizeof(at));
        found = true;
    }
    close(fd);
    assert_true(found);
}

static void test_bad_bytes_on_disk_are_a_miss_for_good(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 64);
    store_fx_put(&f, 1, 0, 4);
    store_fx_restart(&f, false);
    flip(&f, 1, 2);
    assert_int_equal(store_fx_fetch(&f, 1, 2), ERR_NOTFOUND);
    assert_int_equal(store_fx_stats(&f).disk_corrupt, 1);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 2);
    store_fx_pump(&f);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 2);
    assert_int_equal(store_fx_put(&f, 1, 2, 3), 1); /* heals */
    assert_int_equal(store_fx_fetch(&f, 1, 2), 0);
    store_fx_close(&f);
}

/* Slot headers do not say where ranges end: that waits for the first registration, reads do not. */
static void test_a_namespace_found_on_disk_learns_its_ranges(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 64);
    uint8_t digest[DIGEST_BYTES] = {77};
    uint32_t own = f.ns, ns;
    assert_int_equal(block_store_ns_register(f.s, digest, &fx_shape, &f.ns, NULL), 0);
    store_fx_put(&f, 1, 0, 2);
    f.ns = own;
    store_fx_restart(&f, false);
    assert_int_equal(block_store_ns_find(f.s, digest, &ns), 0);
    struct store_ns_info info;
    block_store_ns_info(f.s, ns, &info);
    assert_int_equal(info.n_disk, 2);
    assert_null(info.shape.range_sizes);
    own = f.ns;
    f.ns = ns;
    assert_int_equal(store_fx_fetch(&f, 1, 1), 0);
    struct store_ns_shape other = fx_shape;
    other.payload_bytes += 64;
    const uint32_t sizes[FX_RANGES] = {64, 1920, 1024, 1088};
    other.range_sizes = sizes;
    assert_int_equal(block_store_ns_register(f.s, digest, &other, &ns, NULL), ERR_INVALID);
    assert_int_equal(block_store_ns_register(f.s, digest, &fx_shape, &ns, NULL), 0);
    block_store_ns_info(f.s, ns, &info);
    assert_memory_equal(info.shape.range_sizes, fx_range_sizes, sizeof(fx_range_sizes));
    assert_int_equal(store_fx_put(&f, 1, 2, 3), 1);
    f.ns = own;
    store_fx_close(&f);
}

static void test_a_read_error_drops_the_block(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 64);
    store_fx_put(&f, 1, 0, 2);
    store_fx_restart(&f, false);
    f.x.fail_reads = true;
    assert_int_equal(store_fx_fetch(&f, 1, 1), ERR_NOTFOUND);
    assert_int_equal(store_fx_stats(&f).disk_read_error, 1);
    assert_int_equal(store_fx_where(&f, 1, 1), STORE_ABSENT);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_evict_survives_a_crash(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    store_fx_put_as(&f, 1, 0, 4, 0, "alice");
    store_fx_put_as(&f, 2, 0, 4, 0, "bob");
    store_fx_pump(&f);
    store_fx_put_as(&f, 3, 0, 3, 0, "bob"); /* its writes are in flight */
    struct store_filter bob = {.by_writer = true, .writer = "bob"};
    assert_int_equal(store_fx_evict(&f, &bob), 7);
    store_fx_pump(&f);
    assert_int_equal(store_fx_stats(&f).now.disk_used_bytes, 4 * FX_SLOT);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 4);
    assert_int_equal(store_fx_lookup(&f, 2, 4, false), 0);
    assert_int_equal(store_fx_lookup(&f, 3, 3, false), 0);
    assert_int_equal(store_fx_stats(&f).now.blocks, 4);
    store_fx_close(&f);
}

static void test_flush_also_clears_what_eviction_forgot(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 16);
    for (uint32_t c = 0; c < 4; c++) {
        store_fx_put(&f, c, 0, 4);
        store_fx_pump(&f);
    }
    /* room for a block: one leaves the disk, and its header stays while a write of the new one
     * fails */
    f.x.fail_all = true;
    store_fx_put(&f, 9, 0, 1);
    store_fx_pump(&f);
    f.x.fail_all = false;
    f.now_ns += 6 * NS_PER_S;
    struct store_filter all = {0};
    assert_true(store_fx_evict(&f, &all) > 0);
    assert_int_equal(store_fx_stats(&f).now.blocks, 0);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_stats(&f).now.blocks, 0);
    assert_int_equal(store_fx_stats(&f).recovered, 0);
    store_fx_close(&f);
}

/* The directory has forgotten the block, its header on disk has not: an operator who names it means
 * that too. */
static void test_evict_of_a_forgotten_block_keeps_it_from_returning(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 16);
    for (uint32_t c = 0; c < 4; c++) {
        store_fx_put(&f, c, 0, 4);
        store_fx_pump(&f);
    }
    f.x.fail_all = true;
    store_fx_put(&f, 9, 0, 1);
    store_fx_pump(&f);
    f.x.fail_all = false;
    assert_int_equal(store_fx_where(&f, 0, 3), STORE_ABSENT);
    struct block_id id = fx_id(0, 3);
    struct store_filter one = {.ids = &id, .n_ids = 1, .by_ns = true, .digest = FX_DIGEST};
    assert_int_equal(store_fx_evict(&f, &one), 0);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_stats(&f).recovered, 15);
    assert_int_equal(store_fx_where(&f, 0, 3), STORE_ABSENT);
    store_fx_close(&f);
}

static void test_without_flush_what_eviction_forgot_may_return_whole(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 16);
    for (uint32_t c = 0; c < 4; c++) {
        store_fx_put(&f, c, 0, 4);
        store_fx_pump(&f);
    }
    f.x.fail_all = true;
    store_fx_put(&f, 9, 0, 1);
    store_fx_pump(&f);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_stats(&f).recovered, 16);
    assert_int_equal(store_fx_fetch(&f, 0, 3), 0);
    store_fx_close(&f);
}

static void test_evict_by_time_id_and_descendants(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    store_fx_put(&f, 1, 0, 4);
    f.wall_ns += 50 * NS_PER_S;
    store_fx_put(&f, 2, 0, 4);
    struct store_filter t = {.by_time = true,
                             .time_from_ms = (FX_WALL_S + 50) * 1000,
                             .time_to_ms = (FX_WALL_S + 50) * 1000};
    assert_int_equal(store_fx_evict(&f, &t), 4);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 4);
    struct block_id id = fx_id(1, 2);
    struct store_filter one = {.ids = &id, .n_ids = 1, .by_ns = true, .digest = FX_DIGEST};
    assert_int_equal(store_fx_evict(&f, &one), 1);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 2);
    assert_int_equal(store_fx_where(&f, 1, 3), STORE_RAM);
    assert_int_equal(store_fx_put(&f, 1, 2, 3), 1);
    id = fx_id(1, 1);
    struct store_filter below = {
        .ids = &id, .n_ids = 1, .by_ns = true, .digest = FX_DIGEST, .descendants = true};
    assert_int_equal(store_fx_evict(&f, &below), 3);
    assert_int_equal(store_fx_stats(&f).now.blocks, 1);
    assert_int_equal(store_fx_stats(&f).now.holes, 0);
    store_fx_close(&f);
}

static void test_failing_disk_leaves_ram_serving(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 64);
    f.x.fail_all = true;
    for (uint32_t c = 0; c < 4; c++) {
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
        store_fx_pump(&f);
    }
    assert_int_equal(store_fx_stats(&f).now.disk_degraded, 1);
    assert_int_equal(store_fx_lookup(&f, 3, 4, false), 4);
    f.x.fail_all = false;
    f.now_ns += 6 * NS_PER_S;
    store_fx_pump(&f);
    store_fx_pump(&f);
    assert_int_equal(store_fx_stats(&f).now.disk_degraded, 0);
    assert_int_equal(store_fx_stats(&f).now.disk_blocks, 8);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_lookup(&f, 3, 4, false), 4);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_leave_ram_for_disk_and_come_back),
        cmocka_unit_test(test_readers_of_one_block_share_a_read),
        cmocka_unit_test(test_restart_brings_all_written_blocks_back),
        cmocka_unit_test(test_kill_loses_only_what_was_not_written),
        cmocka_unit_test(test_disk_evicts_leaf_first_to_nothing),
        cmocka_unit_test(test_lru_after_restart_keeps_parents_longest),
        cmocka_unit_test(test_bad_bytes_on_disk_are_a_miss_for_good),
        cmocka_unit_test(test_a_namespace_found_on_disk_learns_its_ranges),
        cmocka_unit_test(test_a_read_error_drops_the_block),
        cmocka_unit_test(test_evict_survives_a_crash),
        cmocka_unit_test(test_flush_also_clears_what_eviction_forgot),
        cmocka_unit_test(test_evict_of_a_forgotten_block_keeps_it_from_returning),
        cmocka_unit_test(test_without_flush_what_eviction_forgot_may_return_whole),
        cmocka_unit_test(test_evict_by_time_id_and_descendants),
        cmocka_unit_test(test_failing_disk_leaves_ram_serving),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
