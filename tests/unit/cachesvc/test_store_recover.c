/* What recovery makes of headers that contradict each other, edited into the file by hand. */
#include "tests/unit/cachesvc/store_fixture.h"

#include <fcntl.h>
#include <unistd.h>

#include "cachesvc/store/disk_format.h"
#include "common/checksum.h"

#define TABLE_OFF                                                                                  \
    ((off_t)(FX_HEAD + DISK_PAGE)) /* of the first extent: 16 slots of 4 KiB, two pages */
#define SLOTS_OFF (TABLE_OFF + (off_t)(2 * DISK_PAGE))

static int open_blocks(const struct store_fx *f) {
    char path[128];
    snprintf(path, sizeof(path), "%s/incipit.blocks", f->dir);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

static void read_slot(int fd, uint32_t i, struct disk_slot_hdr *ret) {
    uint8_t p[DISK_SLOT_HDR_BYTES];
    assert_int_equal(pread(fd, p, sizeof(p), TABLE_OFF + (off_t)(i * sizeof(p))), sizeof(p));
    assert_int_equal(disk_slot_decode(p, ret), 0);
}

static void write_slot(int fd, uint32_t i, const struct disk_slot_hdr *h) {
    uint8_t p[DISK_SLOT_HDR_BYTES];
    disk_slot_encode(h, p);
    assert_int_equal(pwrite(fd, p, sizeof(p), TABLE_OFF + (off_t)(i * sizeof(p))), sizeof(p));
}

static void copy_payload(int fd, uint32_t from, uint32_t to) {
    uint8_t p[FX_SLOT];
    assert_int_equal(pread(fd, p, sizeof(p), SLOTS_OFF + from * FX_SLOT), sizeof(p));
    assert_int_equal(pwrite(fd, p, sizeof(p), SLOTS_OFF + to * FX_SLOT), sizeof(p));
}

static void start(struct store_fx *f) {
    struct errbuf eb = {{0}};
    if (store_fx_start(f, &eb) < 0)
        fail_msg("%s", eb.text);
}

/* MUTANT store_recover: of two headers with one id the higher put sequence wins, in whatever order
 * the scan meets them, and the other does not come back with the restart after. */
static void test_the_newer_of_two_headers_wins(void **state) {
    (void)state;
    for (uint32_t copy_to = 0; copy_to < 10; copy_to += 9) {
        struct store_fx f;
        store_fx_open(&f, 16, 32);
        assert_int_equal(store_fx_put(&f, 9, 0, 1), 1); /* slot 0 */
        assert_int_equal(store_fx_put(&f, 1, 0, 4), 4);
        store_fx_stop(&f, false);
        int fd = open_blocks(&f);
        uint32_t at = 1;
        struct disk_slot_hdr h, newer;
        for (struct block_id id = fx_id(1, 2);; at++) {
            read_slot(fd, at, &h);
            if (block_id_equal(&h.id, &id))
                break;
        }
        newer = h;
        newer.put_seq += 100;
        memcpy(newer.writer, "newer", 6);
        copy_payload(fd, at, copy_to);
        write_slot(fd, copy_to, &newer); /* before it, in chain 9's place, or behind it */
        close(fd);
        for (int again = 0; again < 3; again++) {
            start(&f);
            struct store_block_info info;
            struct block_id id = fx_id(1, 2);
            assert_int_equal(block_store_inspect(f.s, f.ns, &id, &info), 0);
            assert_string_equal((const char *)info.writer, "newer");
            assert_int_equal(store_fx_lookup(&f, 1, 4, false), 4);
            assert_int_equal(store_fx_stats(&f).now.blocks, copy_to ? 5 : 4);
            assert_int_equal(store_fx_stats(&f).now.holes, 0);
            assert_int_equal(store_fx_fetch(&f, 1, 2), 0);
            store_fx_stop(&f, again % 2);
        }
        store_fx_close(&f);
    }
}

/* MUTANT scan_table: what an earlier generation of the extent left in the table is not there. */
static void test_a_header_of_another_generation_is_ignored(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 32);
    assert_int_equal(store_fx_put(&f, 1, 0, 4), 4);
    store_fx_stop(&f, false);
    int fd = open_blocks(&f);
    struct disk_slot_hdr h;
    for (uint32_t i = 0; i < 4; i++) {
        read_slot(fd, i, &h);
        h.extent_generation++;
        write_slot(fd, i, &h);
    }
    close(fd);
    start(&f);
    assert_int_equal(store_fx_stats(&f).recovered, 0);
    assert_int_equal(store_fx_stats(&f).now.blocks, 0);
    store_fx_close(&f);
}

/* C3: the extent whose header is lost is given away with a generation that none of its old headers
 * has; before, it got the number it had, and seven flushed blocks were back. */
static void test_a_lost_extent_header_brings_nothing_back(void **state) {
    (void)state;
    struct store_fx f;
    struct crash_disk disk;
    store_fx_open(&f, 24, 16); /* one extent */
    crash_disk_init(&disk, f.dir, 1);
    f.x.crash = &disk;
    assert_int_equal(store_fx_put(&f, 1, 0, 15), 15); /* seven headers in the table's second page */
    store_fx_stop(&f, false);
    int fd = open_blocks(&f);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, FX_HEAD + 50), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, FX_HEAD + 50), 1);
    close(fd);
    start(&f);
    assert_int_equal(store_fx_put(&f, 2, 0, 1), 1);
    store_fx_drain(&f);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_stats(&f).recovered, 1); /* the new one alone */
    struct store_filter all = {0};
    assert_int_equal(store_fx_evict(&f, &all), 1);
    store_fx_restart(&f, true);
    assert_int_equal(store_fx_stats(&f).now.blocks, 0);
    store_fx_close(&f);
    crash_disk_fini(&disk);
}

/* MUTANT begin_format: an extent that goes to another size and back does not bring its first blocks
 * with it. */
static void test_an_extent_that_changed_hands_twice_forgets(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 32, 16); /* one extent */
    static const uint32_t sizes[] = {4032, 4032};
    struct store_ns_shape shape = {
        .payload_bytes = 8064, .n_ranges = 2, .n_full = 2, .seg_blocks = 8, .range_sizes = sizes};
    uint8_t digest[DIGEST_BYTES] = {77};
    uint64_t gens[3];
    for (uint32_t turn = 0; turn < 3; turn++) {
        int fd = open_blocks(&f);
        struct disk_extent_hdr eh;
        uint8_t p[DISK_PAGE];
        struct store_filter all = {0};
        uint32_t big;
        if (turn == 1) { /* the other size: header alone counts here */
            assert_int_equal(block_store_ns_register(f.s, digest, &shape, &big, NULL), 0);
            struct store_put_block b = {.id = fx_id(50, 0), .checksum = 1};
            struct store_put_args a = {.ns = big, .n = 1, .blocks = &b};
            struct store_fill fill;
            uint64_t sums[2];
            uint8_t st;
            struct store_put *put;
            static uint8_t zeros[8064];
            b.checksum = checksum_block(zeros, sizes, 2, b.id.b, sums);
            assert_int_equal(block_store_put_begin(f.ss, &a, &st, &put, NULL), 0);
            assert_int_equal(block_store_put_open(put, 0, &fill), 0);
            memset(fill.payload, 0, 8064);
            assert_int_equal(block_store_put_filled(f.s, &fill), 0);
            struct store_commit c;
            uint32_t idx = 0, done;
            assert_int_equal(block_store_put_commit(put, &c, &idx, 1, &done, NULL, NULL), 1);
            block_store_put_end(put);
        } else {
            assert_int_equal(store_fx_put(&f, turn, 0, 4), 4);
        }
        store_fx_drain(&f);
        assert_int_equal(pread(fd, p, sizeof(p), FX_HEAD), sizeof(p));
        assert_int_equal(disk_extent_decode(p, &eh), 0);
        gens[turn] = eh.generation;
        close(fd);
        if (turn < 2)
            (void)store_fx_evict(&f, &all);
        store_fx_pump(&f);
    }
    assert_true(gens[0] != gens[1] && gens[1] != gens[2] && gens[0] != gens[2]);
    store_fx_close(&f);
}

/* C10: the restart's order: by put sequence, and a parent is never older than a child. */
static void test_parents_come_after_their_children(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 16);
    store_fx_put(&f, 1, 0, 3); /* old root, ... */
    store_fx_put(&f, 2, 0, 6);
    store_fx_put(&f, 1, 3, 6); /* ... new leaves: the whole chain is new */
    store_fx_restart(&f, false);
    for (uint32_t n = 5; n > 0; n--) { /* chain 2 goes first, from its leaf */
        store_fx_put(&f, 30 + n, 0, n == 5 ? 5 : 1);
        store_fx_drain(&f);
        assert_int_equal(store_fx_lookup(&f, 1, 6, false), 6);
        assert_int_equal(store_fx_lookup(&f, 2, 6, false), n);
    }
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_newer_of_two_headers_wins),
        cmocka_unit_test(test_a_header_of_another_generation_is_ignored),
        cmocka_unit_test(test_a_lost_extent_header_brings_nothing_back),
        cmocka_unit_test(test_an_extent_that_changed_hands_twice_forgets),
        cmocka_unit_test(test_parents_come_after_their_children),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
