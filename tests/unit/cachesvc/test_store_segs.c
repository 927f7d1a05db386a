/* What the index is told of: first blocks of segments (8 blocks in the fixture), while they have an entry. */
#include "tests/unit/cachesvc/store_fixture.h"

/* All that are listed, in any order. */
static uint32_t list(const struct store_fx *f, struct store_seg *ret, uint32_t max) {
    uint64_t cursor = 0;
    uint32_t n = 0;
    do {
        assert_true(n + 4 <= max);
        n += block_store_list_segs(f->s, &cursor, ret + n, 4);
    } while (cursor);
    return n;
}

static bool lists(const struct store_fx *f, uint32_t chain, uint32_t depth) {
    struct store_seg segs[64];
    uint32_t n = list(f, segs, 64);
    struct block_id id = fx_id(chain, depth);
    for (uint32_t i = 0; i < n; i++)
        if (block_id_equal(&segs[i].first, &id))
            return segs[i].ns == f->ns;
    return false;
}

static uint64_t evict_one(struct store_fx *f, uint32_t chain, uint32_t depth, bool descendants) {
    struct block_id id = fx_id(chain, depth);
    struct store_filter filter = {
        .by_ns = true, .ids = &id, .n_ids = 1, .descendants = descendants};
    struct store_ns_info info;
    block_store_ns_info(f->s, f->ns, &info);
    memcpy(filter.digest, info.digest, DIGEST_BYTES);
    return store_fx_evict(f, &filter);
}

static void test_a_segment_is_told_once_by_its_first_block(void **state) {
    (void)state;
    struct store_fx f;
    struct store_seg segs[64];
    store_fx_open(&f, 64, 0);
    assert_int_equal(store_fx_put(&f, 1, 0, 8), 8);
    assert_int_equal(f.n_visible, 1);
    assert_int_equal(store_fx_put(&f, 1, 8, 20), 12);
    assert_int_equal(f.n_visible, 3);
    struct block_id at16 = fx_id(1, 16);
    assert_true(block_id_equal(&f.last_visible, &at16));
    assert_int_equal(list(&f, segs, 64), 3);
    assert_true(lists(&f, 1, 0) && lists(&f, 1, 8) && lists(&f, 1, 16) && !lists(&f, 1, 1));
    store_fx_close(&f);
}

/* It stays while any block below it does: a hole is still where the rest of the segment is. */
static void test_a_segment_goes_with_the_last_block_below_its_first(void **state) {
    (void)state;
    struct store_fx f;
    struct store_seg segs[64];
    store_fx_open(&f, 64, 0);
    store_fx_put(&f, 1, 0, 11);
    assert_int_equal(evict_one(&f, 1, 8, false), 1); /* two blocks lie below */
    assert_int_equal(store_fx_stats(&f).now.holes, 1);
    assert_int_equal(f.n_gone, 0);
    assert_true(lists(&f, 1, 8));
    assert_int_equal(evict_one(&f, 1, 9, true), 2); /* they go, and the hole with them */
    assert_int_equal(f.n_gone, 1);
    struct block_id at8 = fx_id(1, 8);
    assert_true(block_id_equal(&f.last_gone, &at8));
    assert_true(!lists(&f, 1, 8) && lists(&f, 1, 0));
    assert_int_equal(evict_one(&f, 1, 3, true), 5); /* no segment's first among them */
    assert_int_equal(f.n_gone, 1);
    assert_int_equal(evict_one(&f, 1, 0, true), 3);
    assert_int_equal(f.n_gone, 2);
    assert_int_equal(list(&f, segs, 64), 0);
    store_fx_close(&f);
}

/* What was found on disk has no segments until a client says how long they are. */
static void test_recovered_namespaces_are_known_when_registered(void **state) {
    (void)state;
    struct store_fx f;
    uint8_t disk_id[16];
    store_fx_open(&f, 64, 0);
    assert_null(block_store_disk_id(f.s)); /* RAM alone has no name that lasts */
    store_fx_close(&f);
    store_fx_open(&f, 32, 64);
    memcpy(disk_id, block_store_disk_id(f.s), sizeof(disk_id));
    store_fx_put(&f, 1, 0, 9);
    store_fx_restart(&f, false); /* the fixture registers its namespace again */
    assert_memory_equal(block_store_disk_id(f.s), disk_id, sizeof(disk_id));
    assert_int_equal(f.n_known, 1);
    assert_true(lists(&f, 1, 0) && lists(&f, 1, 8));
    uint32_t ns;
    struct store_ns_info info;
    block_store_ns_info(f.s, f.ns, &info);
    assert_int_equal(block_store_ns_register(f.s, info.digest, &fx_shape, &ns, NULL), 0);
    assert_int_equal(f.n_known, 1);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_segment_is_told_once_by_its_first_block),
        cmocka_unit_test(test_a_segment_goes_with_the_last_block_below_its_first),
        cmocka_unit_test(test_recovered_namespaces_are_known_when_registered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
