/* Leases, references, generations, touch, several slot sizes. */
#include "tests/unit/cachesvc/store_fixture.h"

#include <sys/mman.h>
#include <unistd.h>

static struct store_lookup lease(struct store_fx *f, struct store_session *ss, uint32_t chain,
                                 uint32_t n, uint32_t have, struct store_loc *locs) {
    static struct block_id ids[64];
    static uint8_t where[64];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = fx_id(chain, i);
    struct store_lookup l = {.ns = f->ns,
                             .ids = ids,
                             .n = n,
                             .have = have,
                             .where = where,
                             .locs = locs,
                             .flags = STORE_LOOKUP_LEASE | STORE_LOOKUP_TOUCH};
    assert_int_equal(block_store_lookup(f->s, ss, &l), 0);
    return l;
}

static void test_leased_blocks_and_their_ancestors_stay(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    store_fx_put(&f, 1, 0, 4);
    struct store_lookup l =
        lease(&f, f.ss, 1, 4, 3, NULL); /* block 3 only: 0..2 are the caller's own */
    assert_int_equal(l.n_run, 1);
    assert_int_equal(l.n_leased, 1);
    for (uint32_t c = 2; c < 6; c++)
        store_fx_put(&f, c, 0, 4);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 4);
    assert_int_equal(block_store_release(f.ss, l.lease_id), 0);
    assert_int_equal(block_store_release(f.ss, l.lease_id), ERR_NOTFOUND);
    store_fx_put(&f, 6, 0, 8);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 0);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_leases_stop_at_four_fifths(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 0);
    store_fx_put(&f, 1, 0, 16);
    struct store_lookup l = lease(&f, f.ss, 1, 16, 0, NULL);
    assert_int_equal(l.n_run, 16);
    assert_int_equal(l.n_leased, 12);
    block_store_release(f.ss, l.lease_id);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_a_leased_block_read_from_disk_stays_in_ram(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 64);
    store_fx_put(&f, 1, 0, 4);
    store_fx_restart(&f, false);
    struct store_lookup l = lease(&f, f.ss, 1, 4, 0, NULL);
    assert_int_equal(l.n_leased, 4);
    assert_int_equal(store_fx_fetch(&f, 1, 2), 0);
    for (uint32_t c = 2; c < 6; c++) {
        store_fx_put(&f, c, 0, 4);
        store_fx_pump(&f);
    }
    assert_int_equal(store_fx_where(&f, 1, 2), STORE_RAM);
    assert_int_equal(block_store_release(f.ss, l.lease_id), 0);
    store_fx_put(&f, 6, 0, 4);
    store_fx_pump(&f);
    store_fx_put(&f, 7, 0, 4);
    assert_int_equal(store_fx_where(&f, 1, 2), STORE_DISK);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_when_all_is_held_the_reserve_serves_disk_reads(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 64);
    store_fx_put(&f, 1, 0, 4);
    store_fx_pump(&f);
    for (uint32_t c = 2; c < 4; c++) {
        store_fx_put(&f, c, 0, 4);
        store_fx_pump(&f);
    }
    struct store_ref held[8];
    struct store_fetch fetch;
    for (uint32_t i = 0; i < 8; i++) {
        struct block_id id = fx_id(2 + i / 4, i % 4);
        assert_int_equal(block_store_fetch(f.s, &fetch, f.ns, &id, &held[i], NULL, NULL), 1);
    }
    assert_int_equal(store_fx_fetch(&f, 1, 0), 0);
    assert_int_equal(store_fx_fetch(&f, 1, 3), 0);
    assert_int_equal(store_fx_stats(&f).bounced, 2);
    assert_int_equal(store_fx_where(&f, 1, 3), STORE_DISK);
    struct store_put_block b = fx_block(8, 0, 0);
    struct store_put_args a = {.ns = f.ns, .n = 1, .blocks = &b};
    uint8_t st;
    struct store_put *p;
    assert_int_equal(block_store_put_begin(f.ss, &a, &st, &p, NULL), 0);
    assert_int_equal(st, STORE_PUT_BUSY); /* the reserve is not for puts */
    for (uint32_t i = 0; i < 8; i++)
        block_store_ref_drop(f.s, &held[i]);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_a_silent_session_loses_its_leases(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    store_fx_put(&f, 1, 0, 4);
    struct store_lookup l = lease(&f, f.ss, 1, 4, 0, NULL);
    f.now_ns += 4 * NS_PER_S;
    struct store_heartbeat h = {.ids = &l.lease_id, .n = 1};
    block_store_heartbeat(f.ss, &h);
    assert_int_equal(h.n_renewed, 1);
    f.now_ns += 4 * NS_PER_S;
    block_store_tick(f.s);
    assert_int_equal(store_fx_stats(&f).now.leased_blocks, 4);
    f.now_ns += 2 * NS_PER_S;
    block_store_tick(f.s);
    assert_int_equal(store_fx_stats(&f).lease_expired, 1);
    assert_int_equal(block_store_release(f.ss, l.lease_id), ERR_NOTFOUND);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_leases_belong_to_their_session(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    store_fx_put(&f, 1, 0, 4);
    struct store_session *other;
    assert_int_equal(block_store_session_open(f.s, NULL, &other), 0);
    struct store_lookup l = lease(&f, other, 1, 4, 0, NULL);
    assert_int_equal(block_store_release(f.ss, l.lease_id), ERR_NOTFOUND);
    block_store_session_close(other);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_evict_hides_a_leased_block_and_keeps_its_bytes(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    store_fx_put(&f, 1, 0, 2);
    struct store_loc locs[2];
    struct store_lookup l = lease(&f, f.ss, 1, 2, 0, locs);
    struct store_ref ref;
    struct store_fetch fetch;
    struct block_id id = fx_id(1, 0);
    assert_int_equal(block_store_fetch(f.s, &fetch, f.ns, &id, &ref, NULL, NULL), 1);
    struct store_filter all = {0};
    assert_int_equal(store_fx_evict(&f, &all), 2);
    assert_int_equal(store_fx_lookup(&f, 1, 2, false), 0);
    assert_int_equal(store_fx_put(&f, 2, 0, 6), 6); /* fills all other slots */
    uint8_t want[FX_PAYLOAD];
    fx_payload(1, 0, 0, want);
    assert_memory_equal(ref.payload, want, FX_PAYLOAD);
    assert_int_equal(store_fx_put(&f, 1, 0, 2), 2); /* the same ids are new blocks in other slots */
    assert_memory_equal(ref.payload, want, FX_PAYLOAD);
    assert_int_equal(store_fx_stats(&f).now.ram_used_bytes, 8 * FX_SLOT);
    block_store_release(f.ss, l.lease_id);
    block_store_ref_drop(f.s, &ref);
    assert_int_equal(store_fx_stats(&f).now.ram_used_bytes, 6 * FX_SLOT);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static uint64_t generation_at(const struct store_fx *f, uint64_t file_off) {
    /* as a mapping worker reads it: from the file, without asking the node */
    uint64_t g;
    off_t at = (off_t)(file_off / block_store_min_slot_bytes(f->s) * sizeof(g));
    assert_int_equal(pread(block_store_memfd(f->s), &g, sizeof(g), at), sizeof(g));
    return g;
}

static void test_generation_changes_before_a_slot_is_reused(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 4, 0);
    store_fx_put(&f, 1, 0, 4);
    struct store_loc locs[4];
    struct store_lookup l = lease(&f, f.ss, 1, 4, 0, locs);
    assert_int_equal(l.n_leased, 3); /* four fifths of four */
    for (uint32_t i = 0; i < 3; i++)
        assert_true(locs[i].generation > 0 &&
                    generation_at(&f, locs[i].file_off) == locs[i].generation);
    assert_int_equal(locs[3].generation, 0);
    block_store_release(f.ss, l.lease_id);
    store_fx_put(&f, 2, 0, 4);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(generation_at(&f, locs[i].file_off) > locs[i].generation);
    store_fx_close(&f);
}

static void test_memory_file_is_sealed(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    int fd = block_store_memfd(f.s);
    assert_true(pwrite(fd, "x", 1, 0) < 0);
    assert_true(ftruncate(fd, 4096) < 0);
    assert_ptr_equal(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    void *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    munmap(p, 4096);
    store_fx_close(&f);
}

static void test_touch_walks_the_whole_chain_whatever_was_named(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    store_fx_put(&f, 1, 0, 4);
    store_fx_put(&f, 2, 0, 4);
    struct block_id last = fx_id(1, 3);
    block_store_touch(f.s, f.ns, &last, 1);
    store_fx_put(&f, 3, 0, 4);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 4);
    assert_int_equal(store_fx_lookup(&f, 2, 4, false), 0);
    store_fx_close(&f);
}

static void test_lookup_without_flags_changes_nothing(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    store_fx_put(&f, 1, 0, 4);
    store_fx_put(&f, 2, 0, 4);
    struct block_store_stats before = store_fx_stats(&f);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 4);
    struct block_store_stats after = store_fx_stats(&f);
    assert_memory_equal(&before, &after, sizeof(before));
    store_fx_put(&f, 3, 0, 4);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 0);
    store_fx_close(&f);
}

/* Extents go where the blocks are, and back; in both tiers. */
static void move_extents(uint32_t n_disk) {
    struct store_fx f;
    store_fx_open(&f, 64, n_disk);
    uint8_t digest[DIGEST_BYTES] = {55};
    const uint32_t size = 3 * FX_SLOT;
    struct store_ns_shape shape = {size, 1, 1, 8, &size};
    uint32_t big;
    assert_int_equal(block_store_ns_register(f.s, digest, &shape, &big, NULL), 0);
    for (uint32_t c = 0; c < 40; c++) {
        (void)store_fx_put(&f, c, 0, 4);
        store_fx_pump(&f);
    }
    for (uint32_t k = 100; k < 160; k++) {
        assert_int_equal(store_fx_put_big(&f, big, shape.payload_bytes, k), 1);
        store_fx_pump(&f);
    }
    struct store_ns_info info;
    block_store_ns_info(f.s, big, &info);
    assert_true(info.n_ram >= 8);
    assert_true(store_fx_stats(&f).extent_moved > 0);
    if (n_disk) { /* headers of the size that was there before belong to a generation that is gone
                   */
        store_fx_restart(&f, true);
        assert_int_equal(block_store_ns_register(f.s, digest, &shape, &big, NULL), 0);
        for (uint32_t c = 0; c < 40; c++)
            for (uint32_t i = 0; i < 4; i++)
                (void)store_fx_fetch(&f, c, i);
        assert_int_equal(store_fx_stats(&f).disk_corrupt, 0);
    }
    for (uint32_t c = 200; c < 240; c++) {
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
        store_fx_pump(&f);
    }
    assert_int_equal(store_fx_lookup(&f, 239, 4, false), 4);
    store_fx_check_lists(&f);
    assert_int_equal(store_fx_fetch(&f, 239, 3), 0);
    for (uint32_t c = 0; c < 240; c++)
        for (uint32_t i = 0; i < 4; i++)
            if (store_fx_where(&f, c, i) != STORE_ABSENT)
                assert_int_equal(store_fx_fetch(&f, c, i), 0);
    store_fx_check_idle(&f);
    if (n_disk) {
        store_fx_restart(&f, true);
        uint32_t n = 0;
        for (uint32_t c = 0; c < 240; c++)
            for (uint32_t i = 0; i < 4; i++)
                n += store_fx_fetch(&f, c, i) == 0;
        assert_true(n > 0);
        assert_int_equal(store_fx_stats(&f).disk_corrupt, 0);
    }
    store_fx_close(&f);
}

static void test_extents_move_between_sizes_in_ram(void **state) {
    (void)state;
    move_extents(0);
}

static void test_extents_move_between_sizes_on_disk(void **state) {
    (void)state;
    move_extents(96);
}

/* The extent's new header is there, no slot header yet: the table still shows those of the old
 * size. */
static void test_old_headers_die_with_their_generation(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 16);
    uint8_t digest[DIGEST_BYTES] = {55};
    const uint32_t size = 3 * FX_SLOT;
    struct store_ns_shape shape = {size, 1, 1, 8, &size};
    uint32_t big;
    assert_int_equal(block_store_ns_register(f.s, digest, &shape, &big, NULL), 0);
    store_fx_put(&f, 1, 0, 16);
    store_fx_pump(&f);
    assert_int_equal(store_fx_stats(&f).now.disk_blocks, 16);
    f.x.tear_write = f.x.n_writes + 2; /* the format goes through, the payload behind it does not */
    assert_int_equal(store_fx_put_big(&f, big, shape.payload_bytes, 100), 1);
    store_fx_put(&f, 2, 0, 1); /* wakes the writer */
    store_fx_pump(&f);
    store_fx_pump(&f);
    assert_true(f.x.is_dead);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_stats(&f).recovered, 0);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leased_blocks_and_their_ancestors_stay),
        cmocka_unit_test(test_leases_stop_at_four_fifths),
        cmocka_unit_test(test_a_leased_block_read_from_disk_stays_in_ram),
        cmocka_unit_test(test_when_all_is_held_the_reserve_serves_disk_reads),
        cmocka_unit_test(test_a_silent_session_loses_its_leases),
        cmocka_unit_test(test_leases_belong_to_their_session),
        cmocka_unit_test(test_evict_hides_a_leased_block_and_keeps_its_bytes),
        cmocka_unit_test(test_generation_changes_before_a_slot_is_reused),
        cmocka_unit_test(test_memory_file_is_sealed),
        cmocka_unit_test(test_touch_walks_the_whole_chain_whatever_was_named),
        cmocka_unit_test(test_lookup_without_flags_changes_nothing),
        cmocka_unit_test(test_extents_move_between_sizes_in_ram),
        cmocka_unit_test(test_extents_move_between_sizes_on_disk),
        cmocka_unit_test(test_old_headers_die_with_their_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
