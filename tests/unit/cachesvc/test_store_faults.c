/* Every write fails once, every write is torn once at each 512 bytes: the store that comes back
 * serves whole blocks or misses, never wrong bytes (store_fx_fetch compares them), and takes new
 * puts. */
#include "tests/unit/cachesvc/store_fixture.h"

#define CHAINS 4
#define DEPTH 4

/* More than the disk holds, so that slots are reused and stale headers lie about. */
static void work(struct store_fx *f) {
    for (uint32_t c = 0; c < CHAINS + 2; c++) {
        (void)store_fx_put(f, c, 0, DEPTH);
        store_fx_pump(f);
    }
}

static uint32_t n_whole(struct store_fx *f) {
    uint32_t n = 0;
    for (uint32_t c = 0; c < CHAINS + 2; c++)
        for (uint32_t i = 0; i < DEPTH; i++)
            n += store_fx_fetch(f, c, i) == 0;
    return n;
}

static uint32_t writes_in_all(void) {
    struct store_fx f;
    store_fx_open(&f, 8, 16);
    work(&f);
    uint32_t n = f.x.n_writes;
    store_fx_close(&f);
    return n;
}

static void check_after_restart(struct store_fx *f) {
    store_fx_restart(f, true);
    struct block_store_stats st = store_fx_stats(f);
    assert_true(st.now.disk_blocks <= 16);
    (void)n_whole(f);
    assert_int_equal(store_fx_put(f, 77, 0, DEPTH), DEPTH);
    store_fx_pump(f);
    assert_int_equal(store_fx_fetch(f, 77, DEPTH - 1), 0);
    store_fx_check_idle(f);
}

static void test_each_write_fails_once(void **state) {
    (void)state;
    uint32_t n = writes_in_all();
    assert_true(n > 20);
    for (uint32_t k = 1; k <= n; k++) {
        struct store_fx f;
        store_fx_open(&f, 8, 16);
        f.x.fail_write = k;
        work(&f);
        assert_int_equal(store_fx_lookup(&f, CHAINS + 1, DEPTH, false), DEPTH); /* RAM serves */
        f.now_ns += 6 * NS_PER_S; /* the disk is tried again */
        store_fx_pump(&f);
        store_fx_pump(&f);
        assert_int_equal(store_fx_stats(&f).now.disk_degraded, 0);
        assert_int_equal(store_fx_put(&f, 50, 0, 2), 2);
        store_fx_drain(&f);
        assert_int_equal(store_fx_stats(&f).now.writes_in_flight, 0);
        check_after_restart(&f);
        store_fx_close(&f);
    }
}

static void test_power_goes_at_each_sector_of_each_write(void **state) {
    (void)state;
    uint32_t n = writes_in_all();
    for (uint32_t k = 1; k <= n; k++)
        for (uint32_t bytes = 0; bytes <= FX_SLOT; bytes += 512) {
            struct store_fx f;
            store_fx_open(&f, 8, 16);
            f.x.tear_write = k;
            f.x.tear_bytes = bytes;
            work(&f);
            check_after_restart(&f);
            store_fx_close(&f);
        }
}

static void on_evicted(void *arg, int rv, uint64_t n_blocks, uint64_t bytes) {
    (void)n_blocks;
    (void)bytes;
    *(int *)arg = rv;
}

/* An evict that was answered holds, wherever the power went before or after. */
static void test_answered_evict_holds_at_each_cut(void **state) {
    (void)state;
    for (uint32_t k = 1;; k++) {
        struct store_fx f;
        store_fx_open(&f, 8, 32);
        for (uint32_t c = 0; c < CHAINS; c++) {
            store_fx_put(&f, c, 0, DEPTH);
            store_fx_pump(&f);
        }
        uint32_t before = f.x.n_writes;
        f.x.tear_write = before + k;
        f.x.tear_bytes = 512 * (k % 8);
        struct store_filter all = {0};
        struct store_evict ev;
        int answer = 1;
        block_store_evict(f.s, &ev, &all, on_evicted, &answer);
        store_fx_pump(&f);
        bool was_cut = f.x.is_dead;
        if (!was_cut)
            assert_int_equal(answer, 0);
        store_fx_restart(&f, true);
        if (answer == 0)
            assert_int_equal(store_fx_stats(&f).now.blocks, 0);
        (void)n_whole(&f);
        store_fx_close(&f);
        if (!was_cut)
            break;
    }
}

static void test_failed_header_clears_are_tried_again(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 32);
    store_fx_put(&f, 1, 0, 4);
    store_fx_pump(&f);
    f.x.fail_all = true;
    struct store_filter all = {0};
    struct store_evict ev;
    int answer = 1;
    block_store_evict(f.s, &ev, &all, on_evicted, &answer);
    for (int i = 0; i < 3; i++) {
        struct list *l = f.x.queue.next;
        if (l == &f.x.queue)
            break;
        list_remove(l);
        struct disk_op *op = LIST_ENTRY(l, struct disk_op, link);
        op->rv = -5;
        op->done(op);
    }
    assert_true(answer < 0); /* not promised */
    f.x.fail_all = false;
    f.now_ns += 6 * NS_PER_S;
    store_fx_pump(&f);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_stats(&f).now.blocks, 0);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_write_fails_once),
        cmocka_unit_test(test_power_goes_at_each_sector_of_each_write),
        cmocka_unit_test(test_answered_evict_holds_at_each_cut),
        cmocka_unit_test(test_failed_header_clears_are_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
