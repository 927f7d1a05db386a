/* What an operator removed stays removed, on a disk that works, fails, hangs or is not there; and what
 * a failing disk does to everybody else. */
#include "tests/unit/cachesvc/store_fixture.h"

#include "cachesvc/store/removal_log.h"
#include "common/checksum.h"

static void on_evicted(void *arg, int rv, uint64_t n_blocks, uint64_t bytes) {
    (void)n_blocks;
    (void)bytes;
    *(int *)arg = rv;
}

static struct store_filter by_id(const struct block_id *id) {
    return (struct store_filter){.ids = id, .n_ids = 1, .by_ns = true, .digest = FX_DIGEST};
}

static void open_crashing(struct store_fx *f, struct crash_disk *d, uint32_t n_ram,
                          uint32_t n_disk) {
    store_fx_open(f, n_ram, n_disk);
    crash_disk_init(d, f->dir, 3);
    f->x.crash = d;
}

static void close_crashing(struct store_fx *f, struct crash_disk *d) {
    store_fx_close(f);
    crash_disk_fini(d);
}

static void pass_time(struct store_fx *f, uint64_t seconds) {
    f->now_ns += seconds * NS_PER_S;
    f->wall_ns += seconds * NS_PER_S;
    store_fx_pump(f);
    store_fx_pump(f);
}

/* Status of a put of one block with an origin. */
static uint8_t offer(struct store_fx *f, uint32_t chain, const char *origin_writer, uint64_t ms,
                     uint64_t group) {
    struct store_put_block b = fx_block(chain, 0, 0);
    uint8_t w[STORE_WRITER_BYTES] = {0}, status = 99;
    struct store_put_args a = {.ns = f->ns, .n = 1, .blocks = &b, .group = group};
    struct store_put *p;
    if (origin_writer) {
        memcpy(w, origin_writer, strlen(origin_writer));
        b.writer = w;
    }
    b.time_ms = ms;
    memcpy(a.writer, "session", 7);
    assert_int_equal(block_store_put_begin(f->ss, &a, &status, &p, NULL), 0);
    if (p)
        block_store_put_end(p);
    return status;
}

/* C1: an Evict that could not be written is an error, and the same again, which removes nothing any
 * more, is done only when it is on the disk. */
static void test_an_evict_again_after_an_error_is_done_when_it_is_synced(void **state) {
    (void)state;
    for (int what = 0; what < 3; what++) {
        struct store_fx f;
        struct crash_disk d;
        open_crashing(&f, &d, 16, 32);
        assert_int_equal(store_fx_put(&f, 1, 0, 4), 4);
        store_fx_drain(&f);
        struct block_id id = fx_id(1, 0);
        struct store_filter flt = what == 0 ? by_id(&id)
                                  : what == 1
                                      ? (struct store_filter){.by_writer = true, .writer = "writer"}
                                      : (struct store_filter){0};
        flt.descendants = true;
        struct store_evict ev;
        int answer = 1;
        f.x.fail_all = true;
        block_store_evict(f.s, &ev, &flt, on_evicted, &answer);
        store_fx_pump(&f);
        assert_true(answer < 0);
        assert_int_equal(store_fx_lookup(&f, 1, 4, false), 0);
        answer = 1;
        block_store_evict(f.s, &ev, &flt, on_evicted, &answer);
        assert_int_not_equal(answer, 0); /* nothing was written yet, so nothing is promised */
        store_fx_pump(&f);
        assert_true(answer < 0);
        f.x.fail_all = false;
        assert_int_equal(store_fx_evict(&f, &flt), 0); /* at once: an operator needs no probe */
        store_fx_restart(&f, true);
        assert_int_equal(store_fx_stats(&f).now.blocks, 0);
        close_crashing(&f, &d);
    }
}

/* C2: a page of the old table that is still on its way when the extent goes to another size lands on
 * the first block there. */
static void test_an_extent_with_a_page_in_flight_changes_nothing(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 32,
                  16); /* one extent: its table has two pages for small slots, one for big */
    static const uint32_t sizes[] = {4032, 4032};
    struct store_ns_shape shape = {
        .payload_bytes = 8064, .n_ranges = 2, .n_full = 2, .seg_blocks = 8, .range_sizes = sizes};
    uint8_t digest[DIGEST_BYTES] = {77}, bytes[8064], st;
    uint32_t big, idx = 0, done;
    assert_int_equal(block_store_ns_register(f.s, digest, &shape, &big, NULL), 0);
    assert_int_equal(store_fx_put(&f, 1, 0, 12), 12);
    store_fx_drain(&f);
    struct store_filter all = {0};
    struct store_evict ev;
    int answer = 1;
    block_store_evict(f.s, &ev, &all, on_evicted, &answer);
    while (answer == 1)
        assert_true(store_fx_run_one(&f));
    block_store_tick(f.s); /* zeros for the old headers are on their way, and hang */
    f.x.hang_op = f.x.n_ops + 1;
    assert_true(store_fx_run_one(&f));

    struct block_id id = fx_id(50, 0);
    uint64_t sums[2];
    memset(bytes, 5, sizeof(bytes));
    struct store_put_block b = {.id = id, .checksum = checksum_block(bytes, sizes, 2, id.b, sums)};
    struct store_put_args a = {.ns = big, .n = 1, .blocks = &b};
    struct store_put *put;
    struct store_fill fill;
    struct store_commit c;
    assert_int_equal(block_store_put_begin(f.ss, &a, &st, &put, NULL), 0);
    assert_int_equal(block_store_put_open(put, 0, &fill), 0);
    memcpy(fill.payload, bytes, sizeof(bytes));
    assert_int_equal(block_store_put_filled(f.s, &fill), 0);
    assert_int_equal(block_store_put_commit(put, &c, &idx, 1, &done, NULL, NULL), 1);
    block_store_put_end(put);
    for (int i = 0; i < 50; i++) {
        store_fx_run_one(&f);
        block_store_tick(f.s);
    }
    store_fx_unhang(&f);
    store_fx_drain(&f);
    store_fx_restart(&f, false);
    assert_int_equal(block_store_ns_register(f.s, digest, &shape, &big, NULL), 0);
    struct store_block_info info;
    assert_int_equal(block_store_inspect(f.s, big, &id, &info), 0);
    uint32_t ns = f.ns;
    f.ns = big;
    assert_int_equal(store_fx_where(&f, 50, 0), STORE_DISK);
    f.ns = ns;
    struct store_fetch sf;
    struct store_ref ref;
    assert_int_equal(block_store_fetch(f.s, &sf, big, &id, &ref, NULL, NULL), 0);
    block_store_fetch_cancel(&sf);
    store_fx_pump(&f);
    assert_int_equal(store_fx_stats(&f).disk_corrupt, 0);
    assert_int_equal(store_fx_stats(&f).promoted, 1);
    store_fx_close(&f);
}

/* C13, the other way round: descendants that only the disk knows of lie in an extent that is about to
 * change hands. Until its new header is synced they may come back, so the evict is not done. */
static void test_an_evict_waits_for_the_extent_that_changes_hands(void **state) {
    (void)state;
    struct store_fx f;
    struct crash_disk d;
    open_crashing(&f, &d, 8, 16); /* one extent */
    static const uint32_t sizes[] = {4032, 4032};
    struct store_ns_shape shape = {
        .payload_bytes = 8064, .n_ranges = 2, .n_full = 2, .seg_blocks = 8, .range_sizes = sizes};
    uint8_t digest[DIGEST_BYTES] = {77}, bytes[8064], st;
    uint32_t big, idx = 0, done;
    assert_int_equal(block_store_ns_register(f.s, digest, &shape, &big, NULL), 0);
    assert_int_equal(store_fx_put(&f, 1, 0, 4), 4);
    store_fx_drain(&f);
    struct block_id first = fx_id(1, 0), id = fx_id(50, 0);
    uint64_t sums[2];
    memset(bytes, 5, sizeof(bytes));
    /* Big blocks want RAM and then the disk's one extent: the chain is forgotten on the way. */
    for (uint32_t k = 0; k < 6; k++) {
        id = fx_id(50 + k, 0);
        struct store_put_block b = {.id = id,
                                    .checksum = checksum_block(bytes, sizes, 2, id.b, sums)};
        struct store_put_args a = {.ns = big, .n = 1, .blocks = &b};
        struct store_put *put;
        struct store_fill fill;
        struct store_commit c;
        assert_int_equal(block_store_put_begin(f.ss, &a, &st, &put, NULL), 0);
        if (!put || block_store_put_open(put, 0, &fill) < 0)
            continue;
        memcpy(fill.payload, bytes, sizeof(bytes));
        assert_int_equal(block_store_put_filled(f.s, &fill), 0);
        assert_int_equal(block_store_put_commit(put, &c, &idx, 1, &done, NULL, NULL), 1);
        block_store_put_end(put);
    }
    for (int i = 0; i < 5; i++)
        block_store_tick(f.s);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 0);
    struct store_filter flt = by_id(&first);
    flt.descendants = true;
    struct store_evict ev;
    int answer = 1;
    block_store_evict(f.s, &ev, &flt, on_evicted, &answer);
    /* Everything but the extent's header reaches the disk. */
    f.x.hang_op = f.x.n_ops + 1;
    store_fx_pump(&f);
    assert_false(list_empty(&f.x.hung));
    assert_int_equal(answer, 1);
    f.x.hang_op = 0;
    store_fx_unhang(&f);
    store_fx_pump(&f);
    for (int i = 0; answer == 1 && i < 20; i++)
        store_fx_pump(&f);
    assert_int_equal(answer, 0);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 0);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(store_fx_where(&f, 1, i), STORE_ABSENT);
    close_crashing(&f, &d);
}

/* C15: a flush of everything or of a namespace is one write and one sync, whatever it removes. */
static void test_a_flush_is_one_synced_write(void **state) {
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        struct store_fx f;
        store_fx_open(&f, 64, 128);
        for (uint32_t c = 0; c < 20; c++) {
            assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
            store_fx_pump(&f);
        }
        store_fx_drain(&f);
        struct store_filter flt = {.by_ns = !whole, .digest = FX_DIGEST};
        struct store_evict ev;
        int answer = 1;
        uint32_t before = f.x.n_ops;
        block_store_evict(f.s, &ev, &flt, on_evicted, &answer);
        while (answer == 1)
            assert_true(store_fx_run_one(&f));
        assert_int_equal(answer, 0);
        assert_int_equal(f.x.n_ops - before, 2);
        assert_int_equal(ev.n_blocks, 80);
        assert_int_equal(ev.bytes, 80 * FX_PAYLOAD);
        store_fx_restart(&f, true); /* headers are all still there */
        assert_int_equal(store_fx_stats(&f).now.blocks, 0);
        assert_int_equal(store_fx_stats(&f).recover_removed, 80);
        store_fx_pump(&f); /* and are cleared now, so that the record may end one day */
        for (int i = 0; i < 20; i++)
            store_fx_pump(&f);
        store_fx_restart(&f, true);
        assert_int_equal(store_fx_stats(&f).recover_removed, 0);
        store_fx_close(&f);
    }
}

/* C15: blocks that are many leave in slices, and are invisible at once. */
static void test_what_is_removed_is_invisible_before_it_is_taken_out(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 6000, 0);
    for (uint32_t c = 0; c < 100; c++)
        assert_int_equal(store_fx_put_as(&f, c, 0, 50, 0, c % 2 ? "odd" : "even"), 50);
    struct store_filter flt = {.by_writer = true, .writer = "odd"};
    struct store_evict ev;
    int answer = 1;
    block_store_evict(f.s, &ev, &flt, on_evicted, &answer);
    assert_int_equal(answer, 1); /* the numbers are not there yet */
    assert_true(store_fx_stats(&f).now.blocks > 2500);
    struct store_block_info info;
    struct block_id id = fx_id(99, 49), ids[2] = {fx_id(99, 49), fx_id(98, 49)};
    assert_int_equal(store_fx_lookup(&f, 99, 50, true), 0);
    assert_int_equal(store_fx_fetch(&f, 99, 49), ERR_NOTFOUND);
    assert_int_equal(block_store_inspect(f.s, f.ns, &id, &info), ERR_NOTFOUND);
    assert_int_equal(block_store_touch(f.s, f.ns, ids, 2), 1);
    assert_int_equal(store_fx_lookup(&f, 98, 50, true), 50);
    uint64_t cursor = 0;
    uint32_t n_listed = 0;
    do {
        struct store_block_info list[64];
        struct store_filter odd = {.by_writer = true, .writer = "odd"};
        n_listed += block_store_list(f.s, &odd, &cursor, list, 64);
    } while (cursor);
    assert_int_equal(n_listed, 0);
    assert_int_equal(store_fx_put_as(&f, 99, 0, 50, 0, "odd"), 50); /* anew, and it stays */
    while (answer == 1)
        block_store_tick(f.s);
    assert_int_equal(answer, 0);
    assert_int_equal(ev.n_blocks, 2450); /* fifty were gone when the sweep came to them */
    assert_int_equal(store_fx_stats(&f).now.blocks, 2550);
    assert_int_equal(store_fx_lookup(&f, 99, 50, false), 50);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_puts_of_what_was_removed_are_refused(void **state) {
    (void)state;
    for (uint32_t n_disk = 0; n_disk < 64; n_disk += 32) {
        struct store_fx f;
        store_fx_open(&f, 16, n_disk);
        uint64_t now = FX_WALL_S * 1000;
        struct block_id id = fx_id(1, 0);
        struct store_filter one = by_id(&id);
        store_fx_put(&f, 1, 0, 1);
        assert_int_equal(store_fx_evict(&f, &one), 1);
        assert_int_equal(offer(&f, 1, "w", now - 5, 0), STORE_PUT_REMOVED);
        assert_int_equal(offer(&f, 1, "w", now, 0), STORE_PUT_REMOVED); /* equal included */
        assert_int_equal(offer(&f, 1, "w", 0, 0), STORE_PUT_WANTED);    /* computed after it */
        assert_int_equal(offer(&f, 2, "w", now - 5, 0), STORE_PUT_WANTED);
        uint32_t ns = f.ns;
        f.ns = store_fx_ns(&f, 1);
        assert_int_equal(offer(&f, 1, "w", now - 5, 0), STORE_PUT_WANTED); /* another namespace's */
        f.ns = ns;
        struct store_filter bob = {.by_writer = true, .writer = "bob"};
        assert_int_equal(store_fx_evict(&f, &bob), 0);
        assert_int_equal(offer(&f, 3, "bob", now - 5, 0), STORE_PUT_REMOVED);
        assert_int_equal(offer(&f, 3, "eve", now - 5, 0), STORE_PUT_WANTED);
        assert_int_equal(offer(&f, 3, NULL, now - 5, 0),
                         STORE_PUT_WANTED); /* the session's writer */
        struct store_filter group = {
            .by_group = true, .group = 7, .by_ns = true, .digest = FX_DIGEST};
        assert_int_equal(store_fx_evict(&f, &group), 0);
        assert_int_equal(offer(&f, 4, "eve", now - 5, 7), STORE_PUT_REMOVED);
        assert_int_equal(offer(&f, 4, "eve", now - 5, 8), STORE_PUT_WANTED);
        assert_int_equal(store_fx_stats(&f).put_removed, 4);
        if (n_disk) {
            store_fx_restart(&f, true); /* and the next process knows it too */
            assert_int_equal(offer(&f, 1, "w", now - 5, 0), STORE_PUT_REMOVED);
            assert_int_equal(offer(&f, 4, "eve", now - 5, 7), STORE_PUT_REMOVED);
        }
        store_fx_check_idle(&f);
        store_fx_close(&f);
    }
}

/* Nothing comes from the future, or a removal of today would not reach it. */
static void test_an_origin_to_come_is_now(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 0);
    struct store_put_block b = fx_block(1, 0, 0);
    b.time_ms = FX_WALL_S * 1000 + 3600000;
    struct store_put_args a = {.ns = f.ns, .n = 1, .blocks = &b};
    struct store_put *p;
    struct store_fill fill;
    struct store_commit c;
    uint8_t status;
    uint32_t idx = 0, done;
    assert_int_equal(block_store_put_begin(f.ss, &a, &status, &p, NULL), 0);
    assert_int_equal(block_store_put_open(p, 0, &fill), 0);
    fx_payload(1, 0, 0, fill.payload);
    assert_int_equal(block_store_put_filled(f.s, &fill), 0);
    assert_int_equal(block_store_put_commit(p, &c, &idx, 1, &done, NULL, NULL), 1);
    block_store_put_end(p);
    struct store_block_info info;
    assert_int_equal(block_store_inspect(f.s, f.ns, &b.id, &info), 0);
    assert_true(info.put_time_ms <= FX_WALL_S * 1000 + 1);
    struct store_filter all = {0};
    assert_int_equal(store_fx_evict(&f, &all), 1);
    store_fx_close(&f);
}

static void test_origin_travels_to_disk_and_to_readers(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 32);
    struct store_put_block b = fx_block(1, 0, 0);
    uint8_t w[STORE_WRITER_BYTES] = "computed by me";
    b.writer = w;
    b.time_ms = 1650000000123;
    struct store_put_args a = {.ns = f.ns, .n = 1, .blocks = &b, .writer = "only carried it"};
    struct store_put *p;
    struct store_fill fill;
    struct store_commit c;
    uint8_t status;
    uint32_t idx = 0, done;
    assert_int_equal(block_store_put_begin(f.ss, &a, &status, &p, NULL), 0);
    assert_int_equal(block_store_put_open(p, 0, &fill), 0);
    fx_payload(1, 0, 0, fill.payload);
    assert_int_equal(block_store_put_filled(f.s, &fill), 0);
    assert_int_equal(block_store_put_commit(p, &c, &idx, 1, &done, NULL, NULL), 1);
    block_store_put_end(p);
    store_fx_restart(&f, false);
    struct store_fetch sf;
    struct store_ref ref;
    for (int again = 0; again < 2; again++) { /* from the disk, then from RAM */
        int rv = block_store_fetch(f.s, &sf, f.ns, &b.id, &ref, NULL, NULL);
        if (rv == 0) {
            block_store_fetch_cancel(&sf);
            store_fx_pump(&f);
            rv = block_store_fetch(f.s, &sf, f.ns, &b.id, &ref, NULL, NULL);
        }
        assert_int_equal(rv, 1);
        assert_memory_equal(ref.writer, w, sizeof(w));
        assert_true(ref.time_ms == 1650000000123);
        block_store_ref_drop(f.s, &ref);
    }
    store_fx_close(&f);
}

static void test_before_says_what_is_meant(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 32);
    store_fx_put(&f, 1, 0, 2);
    f.wall_ns += 10 * NS_PER_S;
    store_fx_put(&f, 2, 0, 2);
    struct store_filter all = {.before_ms = (FX_WALL_S + 5) * 1000};
    struct store_evict ev;
    int answer = 1;
    block_store_evict(f.s, &ev, &all, on_evicted, &answer);
    store_fx_pump(&f);
    assert_int_equal(answer, 0);
    assert_true(ev.before_ms == (FX_WALL_S + 5) * 1000);
    assert_int_equal(store_fx_lookup(&f, 1, 2, false), 0);
    assert_int_equal(store_fx_lookup(&f, 2, 2, false), 2);
    all.before_ms = 0; /* now, answered back */
    answer = 1;
    block_store_evict(f.s, &ev, &all, on_evicted, &answer);
    store_fx_pump(&f);
    assert_true(ev.before_ms >= (FX_WALL_S + 10) * 1000 && ev.before_ms < (FX_WALL_S + 11) * 1000);
    assert_int_equal(store_fx_stats(&f).now.blocks, 0);
    store_fx_close(&f);
}

static void test_what_no_record_can_say_is_refused(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 32);
    store_fx_put(&f, 1, 0, 2);
    struct block_id id = fx_id(1, 0);
    const struct store_filter bad[] = {
        {.ids = &id, .n_ids = 1},
        {.ids = &id, .n_ids = 1, .by_ns = true, .digest = FX_DIGEST, .by_writer = true},
        {.by_writer = true, .by_group = true},
        {.by_time = true, .time_from_ms = 5, .time_to_ms = 4},
        {.before_ms = FX_WALL_S * 1000 + 3600000},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct store_evict ev;
        int answer = 1;
        block_store_evict(f.s, &ev, &bad[i], on_evicted, &answer);
        assert_int_equal(answer, ERR_INVALID);
    }
    assert_int_equal(store_fx_lookup(&f, 1, 2, false), 2);
    assert_int_equal(store_fx_stats(&f).now.removal_records, 0);
    store_fx_close(&f);
}

static void test_a_full_log_refuses_ids_and_takes_a_flush(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 64); /* 64 records, eight of them for flushes */
    struct block_id ids[57];
    for (uint32_t i = 0; i < 57; i++)
        ids[i] = fx_id(i, 0);
    store_fx_put(&f, 56, 0, 3);
    struct store_filter flt = {.ids = ids, .n_ids = 57, .by_ns = true, .digest = FX_DIGEST};
    struct store_evict ev;
    int answer = 1;
    block_store_evict(f.s, &ev, &flt, on_evicted, &answer);
    assert_int_equal(answer, ERR_NOSPACE);
    assert_int_equal(store_fx_lookup(&f, 56, 3, false), 3); /* refused whole */
    flt.n_ids = 56;
    assert_int_equal(store_fx_evict(&f, &flt), 0);
    assert_int_equal(store_fx_stats(&f).now.removal_records, 56);
    flt.ids = &ids[56];
    flt.n_ids = 1;
    answer = 1;
    block_store_evict(f.s, &ev, &flt, on_evicted, &answer);
    assert_int_equal(answer, ERR_NOSPACE);
    struct store_filter ns = {.by_ns = true, .digest = FX_DIGEST};
    assert_int_equal(store_fx_evict(&f, &ns), 3);
    assert_int_equal(store_fx_stats(&f).now.removal_records, 1); /* it says all that they said */
    assert_int_equal(store_fx_evict(&f, &flt), 0);
    f.x.fail_all = true; /* flushes that are never synced do not fill the log either */
    for (int i = 0; i < 80; i++) {
        f.wall_ns += NS_PER_S;
        answer = 1;
        block_store_evict(f.s, &ev, &ns, on_evicted, &answer);
        store_fx_pump(&f);
        assert_true(answer < 0 && answer != ERR_NOSPACE);
    }
    f.x.fail_all = false;
    assert_int_equal(store_fx_evict(&f, &ns), 0);
    store_fx_close(&f);
}

static void test_records_end_after_thirty_days(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 32);
    store_fx_put(&f, 1, 0, 2);
    store_fx_drain(&f);
    struct store_filter all = {0};
    assert_int_equal(store_fx_evict(&f, &all), 2);
    pass_time(&f, 29 * 86400);
    assert_int_equal(store_fx_stats(&f).now.removal_records, 1);
    pass_time(&f, 86400 + 60);
    assert_int_equal(store_fx_stats(&f).now.removal_records, 0);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_stats(&f).now.blocks, 0); /* its headers were cleared long ago */
    store_fx_close(&f);
}

/* E11: a dry run counts what the evict would remove, descendants too, and changes nothing. */
static void test_a_dry_run_counts_what_would_go(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 32);
    store_fx_put(&f, 1, 0, 5);
    store_fx_put_as(&f, 2, 0, 3, 0, "bob");
    struct block_id id = fx_id(1, 1);
    struct store_filter chain = by_id(&id), bob = {.by_writer = true, .writer = "bob"}, all = {0};
    chain.descendants = true;
    struct store_filter *each[] = {&chain, &bob, &all};
    static const uint64_t want[] = {4, 3, 8};
    for (int i = 0; i < 3; i++) {
        each[i]->dry_run = true;
        assert_int_equal(store_fx_evict(&f, each[i]), want[i]);
    }
    assert_int_equal(store_fx_stats(&f).now.blocks, 8);
    assert_int_equal(store_fx_stats(&f).now.removal_records, 0);
    assert_int_equal(store_fx_lookup(&f, 1, 5, false), 5);
    chain.dry_run = false;
    assert_int_equal(store_fx_evict(&f, &chain), 4);
    store_fx_close(&f);
}

/* An evict aborts puts under way that it means, and only those. */
static void test_matching_puts_are_aborted(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 32);
    struct store_put_block b[2] = {fx_block(1, 0, 0), fx_block(2, 0, 0)};
    struct store_put_args a = {.ns = f.ns, .n = 2, .blocks = b};
    struct store_put *p;
    struct store_fill fill[2];
    struct store_commit c;
    uint8_t st[2];
    uint32_t idx[] = {0, 1}, done = 0;
    assert_int_equal(block_store_put_begin(f.ss, &a, st, &p, NULL), 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(block_store_put_open(p, i, &fill[i]), 0);
        fx_payload(1 + i, 0, 0, fill[i].payload);
    }
    struct store_filter one = by_id(&b[0].id);
    assert_int_equal(store_fx_evict(&f, &one), 1);
    assert_int_equal(block_store_put_filled(f.s, &fill[0]), ERR_CANCELED);
    assert_int_equal(block_store_put_filled(f.s, &fill[1]), 0);
    assert_int_equal(block_store_put_commit(p, &c, idx, 2, &done, NULL, NULL), 1);
    assert_int_equal(done, 1);
    block_store_put_end(p);
    assert_int_equal(store_fx_where(&f, 1, 0), STORE_ABSENT);
    assert_int_equal(store_fx_where(&f, 2, 0), STORE_RAM);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_evict_again_after_an_error_is_done_when_it_is_synced),
        cmocka_unit_test(test_an_extent_with_a_page_in_flight_changes_nothing),
        cmocka_unit_test(test_an_evict_waits_for_the_extent_that_changes_hands),
        cmocka_unit_test(test_a_flush_is_one_synced_write),
        cmocka_unit_test(test_what_is_removed_is_invisible_before_it_is_taken_out),
        cmocka_unit_test(test_puts_of_what_was_removed_are_refused),
        cmocka_unit_test(test_an_origin_to_come_is_now),
        cmocka_unit_test(test_origin_travels_to_disk_and_to_readers),
        cmocka_unit_test(test_before_says_what_is_meant),
        cmocka_unit_test(test_what_no_record_can_say_is_refused),
        cmocka_unit_test(test_a_full_log_refuses_ids_and_takes_a_flush),
        cmocka_unit_test(test_records_end_after_thirty_days),
        cmocka_unit_test(test_a_dry_run_counts_what_would_go),
        cmocka_unit_test(test_matching_puts_are_aborted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
