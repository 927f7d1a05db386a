/* The hot path of the store allocates nothing; a store that cannot have its memory says so and
 * leaks none. */
#include "tests/unit/cachesvc/store_fixture.h"

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
            assert_int_equal(block_store_session_open(s, &f.ss), 0);
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
        cmocka_unit_test(test_each_allocation_of_the_start_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
