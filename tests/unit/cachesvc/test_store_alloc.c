/* The hot path of the store allocates nothing; a store that cannot have its memory says so and
 * leaks none. */
#include "tests/support/resident.h"
#include "tests/unit/cachesvc/store_fixture.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "cachesvc/store/disk_tier.h"
#include "cachesvc/store/directory.h"
#include "tests/support/fault.h"

static void test_lookup_fetch_and_put_allocate_nothing(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    store_fx_put(&f, 1, 0, 8);
    store_fx_pump(&f);
    struct block_id ids[8];
    uint8_t where[8];
    for (uint32_t i = 0; i < 8; i++)
        ids[i] = fx_id(1, i);
    struct store_put_block b[64];
    for (uint32_t i = 0; i < 64; i++)
        b[i] = fx_block(100 + i, 0, 0);
    uint64_t before = malloc_probe_count();
    for (uint32_t i = 0; i < 64; i++) {
        struct store_lookup l = {.ns = f.ns,
                                 .ids = ids,
                                 .n = 8,
                                 .where = where,
                                 .flags = STORE_LOOKUP_TOUCH | STORE_LOOKUP_LEASE};
        struct store_put_args a = {.ns = f.ns, .n = 1, .blocks = &b[i]};
        struct store_put *p;
        struct store_fill fill;
        struct store_ref ref;
        struct store_fetch fetch;
        uint8_t st;
        (void)block_store_lookup(f.s, f.ss, &l);
        if (block_store_fetch(f.s, &fetch, f.ns, &ids[i % 8], &ref, NULL, NULL) == 1)
            block_store_ref_drop(f.s, &ref);
        (void)block_store_put_begin(f.ss, &a, &st, &p, NULL);
        if (p && block_store_put_open(p, 0, &fill) == 0) {
            memset(fill.payload, 0, fill.payload_bytes); /* the checksum refuses it */
            (void)block_store_put_filled(f.s, &fill);
        }
        if (p)
            block_store_put_end(p);
        if (l.lease_id)
            (void)block_store_release(f.ss, l.lease_id);
        store_fx_pump(&f);
    }
    assert_int_equal(malloc_probe_count() - before, 0);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* C14: what is on disk costs recovery no memory besides the directory's, which is there anyway: a
 * start with blocks allocates as much as one without. */
static void test_recovery_allocates_nothing_for_blocks(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 512);
    store_fx_stop(&f, false);
    uint64_t bytes[2];
    for (int with_blocks = 0; with_blocks < 2; with_blocks++) {
        uint64_t before = malloc_probe_bytes();
        struct errbuf eb = {{0}};
        assert_int_equal(store_fx_start(&f, &eb), 0);
        bytes[with_blocks] = malloc_probe_bytes() - before;
        assert_int_equal(store_fx_stats(&f).recovered, with_blocks ? 480 : 0);
        for (uint32_t c = 0; c < 10 && !with_blocks; c++) {
            assert_int_equal(store_fx_put(&f, c, 0, 48), 48);
            store_fx_drain(&f);
        }
        store_fx_stop(&f, false);
    }
    assert_int_equal(bytes[0], bytes[1]);
    store_fx_close(&f);
}

/* C12: what a block costs in memory while it is on disk, all of it. Pages are eight slots each: one
 * place in the queue and a byte of flags. The pool of 65,536 removal records is apart. */
static void test_a_block_costs_128_bytes_at_most(void **state) {
    (void)state;
    static const struct {
        const char *what;
        double bytes;
    } budget[] = {
        {"entry", sizeof(struct dir_entry)},
        {"table, half full at most", 2 * sizeof(uint32_t)},
        {"disk slot", sizeof(struct disk_slot)},
        {"free list of slots", sizeof(uint16_t)},
        {"page's place in the queue", sizeof(uint32_t) / 8.0},
        {"page's flags", 1 / 8.0},
    };
    double sum = 0;
    for (size_t i = 0; i < ARRAY_LEN(budget); i++)
        sum += budget[i].bytes;
    assert_true(sum <= 128);
    struct directory d;
    for (uint32_t cap = 1000; cap < 200000; cap = cap * 3 / 2) {
        assert_int_equal(dir_init(&d, cap, 1), 0);
        assert_true(d.n_table <= 2 * cap && d.n_table >= 2 * (cap - 1));
        dir_fini(&d);
    }
}

/* C12: slots much larger than the smallest cost what they are, not what there might have been: 1 TiB
 * in blocks of 724 KiB, 64 KiB being the smallest, is 1.5 million slots and not 17 million. */
static void test_side_arrays_cost_what_is_used(void **state) {
    (void)state;
    struct slots s;
    struct slots_cfg cfg = {.base_off = 4096,
                            .extent_bytes = 64 << 20,
                            .n_extents = 16384,
                            .min_slot_bytes = 65536,
                            .head_bytes = 4096,
                            .table_entry_bytes = 512};
    (void)mallopt(M_PERTURB, 0); /* the test runner's, which writes to all of it */
    uint64_t before = resident_bytes();
    assert_int_equal(slots_init(&s, &cfg), 0);
    struct disk_slot *side = calloc((size_t)cfg.n_extents * s.max_per_extent, sizeof(*side));
    assert_non_null(side);
    int cls = slots_class(&s, 724 << 10);
    assert_true(cls >= 0);
    uint64_t n = 0;
    for (uint32_t e = 0; e < cfg.n_extents; e++)
        slots_open(&s, slots_assign(&s, (uint32_t)cls, false));
    for (uint32_t slot; (slot = slots_take(&s, (uint32_t)cls)) != SLOT_NONE; n++)
        side[slots_dense(&s, slot)].owner = n & DISK_OWNER_MAX;
    for (uint32_t e = 0; e < cfg.n_extents; e++) /* so that the free list is written, too */
        slots_give(&s, slot_code(e, e % 80));
    assert_true(n > 1400000);
    uint64_t used = resident_bytes() - before,
             extents = cfg.n_extents * sizeof(struct slots_extent);
    assert_true(used < 8 * n + extents);
    free(side);
    slots_fini(&s);
}

static void test_each_allocation_of_the_start_may_fail(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    store_fx_put(&f, 1, 0, 8);
    store_fx_stop(&f, false);
    for (uint64_t n = 0;; n++) {
        struct errbuf eb = {{0}};
        struct block_store *s = NULL;
        fault_arm(n);
        int rv = block_store_open(&s, &f.cfg, &eb);
        bool fired = fault_fired();
        fault_disarm();
        if (rv == 0) {
            assert_false(fired);
            f.s = s;
            assert_int_equal(block_store_session_open(s, NULL, &f.ss), 0);
            break;
        }
        assert_true(fired);
        assert_int_equal(rv, ERR_NOMEM);
    }
    assert_int_equal(store_fx_lookup(&f, 1, 8, false), 8);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lookup_fetch_and_put_allocate_nothing),
        cmocka_unit_test(test_recovery_allocates_nothing_for_blocks),
        cmocka_unit_test(test_a_block_costs_128_bytes_at_most),
        cmocka_unit_test(test_side_arrays_cost_what_is_used),
        cmocka_unit_test(test_each_allocation_of_the_start_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
