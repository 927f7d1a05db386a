/* A disk that fails or hangs: RAM serves alone, everybody gets an answer, it is said once a change, and
 * the disk is used again when a probe has shown that it works. */
#include "tests/unit/cachesvc/store_fixture.h"

static void on_rv(void *arg, int rv) {
    *(int *)arg = rv;
}
static void on_evicted(void *arg, int rv, uint64_t n_blocks, uint64_t bytes) {
    (void)n_blocks;
    (void)bytes;
    *(int *)arg = rv;
}

static void pass_time(struct store_fx *f, uint64_t seconds) {
    f->now_ns += seconds * NS_PER_S;
    f->wall_ns += seconds * NS_PER_S;
    store_fx_pump(f);
    store_fx_pump(f);
}

static uint64_t is_failing(const struct store_fx *f) {
    return store_fx_stats(f).now.disk_degraded;
}

static void got(void *arg, int rv, const struct store_ref *ref) {
    (void)ref;
    *(int *)arg = rv;
}

/* C6: whichever write fails, of a format, a payload or a header, it is seen. */
static void test_any_write_that_fails_is_seen(void **state) {
    (void)state;
    uint32_t n_tried = 0;
    for (uint32_t k = 1; k <= 8; k++) {
        struct store_fx f;
        store_fx_open(&f, 8, 64);
        f.x.fail_write = f.x.n_writes + k;
        store_fx_put(&f, 1, 0, 4);
        store_fx_pump(&f);
        if (f.x.n_writes >= f.x.fail_write) {
            n_tried++;
            assert_int_equal(is_failing(&f), 1);
        }
        store_fx_close(&f);
    }
    assert_true(n_tried >= 5);
}

/* C5: a write that never ends. RAM serves alone, puts go on, Evict and drain answer, and when the
 * write comes back after all the disk is used again. */
static void test_a_write_that_hangs_stops_nobody(void **state) {
    (void)state;
    for (uint32_t op = 1; op <= 8; op++) { /* a format, payloads, headers, syncs */
        struct store_fx f;
        store_fx_open(&f, 8, 64);
        f.x.hang_op = f.x.n_ops + op;
        store_fx_put(&f, 1, 0, 4);
        store_fx_pump(&f);
        if (list_empty(&f.x.hung)) {
            store_fx_close(&f);
            continue;
        }
        pass_time(&f, 5);
        assert_int_equal(is_failing(&f), 0);
        pass_time(&f, 6);
        assert_int_equal(is_failing(&f), 1);
        assert_int_equal(f.n_notes, 1);
        assert_non_null(strstr(f.note, "under way for more than"));
        for (uint32_t c = 10; c < 20; c++) {
            assert_int_equal(store_fx_put(&f, c, 0, 3), 3);
            store_fx_pump(&f);
            assert_int_equal(store_fx_lookup(&f, c, 3, true), 3);
        }
        assert_int_equal(store_fx_stats(&f).put_busy, 0);
        struct store_filter all = {0};
        struct store_evict ev;
        int answer = 1, drained = 1;
        block_store_evict(f.s, &ev, &all, on_evicted, &answer);
        store_fx_pump(&f);
        pass_time(&f, 11);
        assert_int_not_equal(answer, 1);
        block_store_drain(f.s, on_rv, &drained);
        store_fx_pump(&f);
        assert_true(drained < 0);
        assert_int_equal(is_failing(&f), 1);
        store_fx_unhang(&f);
        f.x.hang_op = 0;
        pass_time(&f, 6);
        pass_time(&f, 6);
        assert_int_equal(is_failing(&f), 0);
        assert_int_equal(f.n_notes, 2);
        assert_int_equal(store_fx_put(&f, 30, 0, 3), 3);
        store_fx_drain(&f);
        store_fx_restart(&f, true);
        assert_int_equal(store_fx_lookup(&f, 30, 3, false), 3);
        assert_int_equal(store_fx_stats(&f).now.blocks, 3); /* what was flushed is not back */
        store_fx_close(&f);
    }
}

/* C5: who waits for a read that hangs gets a miss in time. */
static void test_a_read_that_hangs_is_a_miss(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 64);
    store_fx_put(&f, 1, 0, 2);
    store_fx_restart(&f, false);
    struct store_fetch sf;
    struct store_ref ref;
    struct block_id id = fx_id(1, 1);
    int rv = 1;
    f.x.hang_op = f.x.n_ops + 1;
    assert_int_equal(block_store_fetch(f.s, &sf, f.ns, &id, &ref, got, &rv), 0);
    store_fx_pump(&f);
    pass_time(&f, 9);
    assert_int_equal(rv, 1);
    pass_time(&f, 2);
    assert_int_equal(rv, ERR_NOTFOUND);
    assert_int_equal(is_failing(&f), 1);
    assert_int_equal(store_fx_fetch(&f, 1, 0), ERR_NOTFOUND); /* and nobody begins another */
    assert_int_equal(store_fx_lookup(&f, 1, 2, false), 0);
    store_fx_unhang(&f);
    pass_time(&f, 6);
    pass_time(&f, 6);
    assert_int_equal(is_failing(&f), 0);
    assert_int_equal(store_fx_fetch(&f, 1, 0), 0);
    assert_int_equal(store_fx_fetch(&f, 1, 1), 0);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* C5: close ends although the disk keeps an op; what the op has in its hands is not freed. */
static void test_close_is_bounded(void **state) {
    (void)state;
    static struct store_fx f; /* stays reachable: its store is never freed */
    store_fx_open(&f, 8, 64);
    store_fx_put(&f, 1, 0, 4);
    f.x.hang_op = f.x.n_ops + 1;
    while (store_fx_run_one(&f)) {
    }
    block_store_session_close(f.ss);
    int rv = 1;
    block_store_close(f.s, on_rv, &rv);
    for (int i = 0; i < 30 && rv == 1; i++) {
        block_store_tick(f.s);
        f.now_ns += NS_PER_S;
    }
    assert_int_equal(rv, ERR_TIMEOUT);
    f.s = NULL;
    store_fx_close(&f);
}

/* C6: the gauge is true from the first failed op, write or read, until a probe succeeds; one note each
 * way, however long it lasts. */
static void test_failing_is_said_once_and_stays_true(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    f.x.fail_all = true;
    store_fx_put(&f, 1, 0, 4);
    store_fx_pump(&f);
    assert_int_equal(is_failing(&f), 1);
    assert_int_equal(f.n_notes, 1);
    assert_int_equal(f.note[0], '0' + STORE_NOTE_ERROR);
    for (int i = 0; i < 20; i++) {
        pass_time(&f, 3);
        assert_int_equal(is_failing(&f), 1);
        store_fx_put(&f, 20 + (uint32_t)i, 0, 1);
        store_fx_pump(&f);
    }
    assert_int_equal(f.n_notes, 1);
    f.x.fail_all = false;
    f.x.fail_syncs = true; /* a probe that can't sync is none */
    pass_time(&f, 6);
    assert_int_equal(is_failing(&f), 1);
    f.x.fail_syncs = false;
    pass_time(&f, 6);
    assert_int_equal(is_failing(&f), 0);
    assert_int_equal(f.n_notes, 2);
    assert_int_equal(f.note[0], '0' + STORE_NOTE_INFO);
    store_fx_drain(&f);
    assert_int_equal(store_fx_stats(&f).now.dirty_blocks, 0);
    store_fx_close(&f);
}

/* C6: failed reads set it too, and cost the block that could not be read, not the tier. */
static void test_failed_reads_count_as_failing(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 64);
    store_fx_put(&f, 1, 0, 4);
    store_fx_restart(&f, false);
    f.x.fail_reads = true;
    assert_int_equal(store_fx_fetch(&f, 1, 3), ERR_NOTFOUND);
    assert_int_equal(is_failing(&f), 1);
    assert_int_equal(store_fx_stats(&f).disk_read_error, 1);
    assert_non_null(strstr(f.note, "read of a block"));
    uint32_t n_ops = f.x.n_ops;
    assert_int_equal(store_fx_fetch(&f, 1, 0), ERR_NOTFOUND);
    assert_int_equal(f.x.n_ops, n_ops); /* not even tried */
    f.x.fail_reads = false;
    pass_time(&f, 6);
    assert_int_equal(is_failing(&f), 0);
    for (uint32_t d = 0; d < 3; d++)
        assert_int_equal(store_fx_fetch(&f, 1, d), 0);
    store_fx_close(&f);
}

/* C13: one EIO on an extent's header: it is tried again when the disk is well, and nothing waits for it
 * for ever. */
static void test_a_failed_format_is_tried_again(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64);
    f.x.fail_write = f.x.n_writes + 1;
    store_fx_put(&f, 1, 0, 4);
    store_fx_pump(&f);
    assert_int_equal(is_failing(&f), 1);
    assert_non_null(strstr(f.note, "extent's header"));
    struct store_filter all = {.by_writer = true, .writer = "nobody"};
    assert_int_equal(store_fx_evict(&f, &all), 0); /* answers, although the format is not through */
    pass_time(&f, 6);
    assert_int_equal(is_failing(&f), 0);
    store_fx_drain(&f);
    assert_int_equal(store_fx_stats(&f).now.disk_blocks, 4);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 4);
    store_fx_close(&f);
}

/* MUTANT drain_progress: a drain is done when nothing is unwritten, not before; with a table page that
 * can't be written it is an error (C1). */
static void test_drain_ends_when_all_is_on_disk(void **state) {
    (void)state;
    struct store_fx f;
    struct crash_disk d;
    store_fx_open(&f, 64, 64);
    crash_disk_init(&d, f.dir, 4);
    f.x.crash = &d;
    for (uint32_t c = 0; c < 6; c++)
        assert_int_equal(store_fx_put(&f, c, 0, 7), 7);
    int rv = 1;
    block_store_drain(f.s, on_rv, &rv);
    while (rv == 1) {
        block_store_tick(f.s);
        (void)store_fx_run_one(&f);
    }
    assert_int_equal(rv, 0);
    assert_int_equal(store_fx_stats(&f).now.dirty_blocks, 0);
    assert_int_equal(store_fx_stats(&f).now.writes_in_flight, 0);
    store_fx_restart(&f, true); /* the power goes at that moment */
    assert_int_equal(store_fx_stats(&f).now.blocks, 42);
    for (uint32_t c = 0; c < 6; c++)
        for (uint32_t i = 0; i < 7; i++)
            assert_int_equal(store_fx_fetch(&f, c, i), 0);
    store_fx_put(&f, 9, 0, 1);
    f.x.fail_syncs = true;
    rv = 1;
    block_store_drain(f.s, on_rv, &rv);
    for (int i = 0; rv == 1 && i < 100; i++)
        store_fx_pump(&f);
    assert_true(rv < 0);
    store_fx_close(&f);
    crash_disk_fini(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_write_that_fails_is_seen),
        cmocka_unit_test(test_a_write_that_hangs_stops_nobody),
        cmocka_unit_test(test_a_read_that_hangs_is_a_miss),
        cmocka_unit_test(test_close_is_bounded),
        cmocka_unit_test(test_failing_is_said_once_and_stays_true),
        cmocka_unit_test(test_failed_reads_count_as_failing),
        cmocka_unit_test(test_a_failed_format_is_tried_again),
        cmocka_unit_test(test_drain_ends_when_all_is_on_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
