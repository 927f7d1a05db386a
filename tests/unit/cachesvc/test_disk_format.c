#include "tests/unit/cachesvc/store_fixture.h"

#include "cachesvc/store/disk_format.h"
#include "common/checksum.h"

#define SLOT_AT (2 * DISK_PAGE)
#define REMOVALS_AT (SLOT_AT + DISK_SLOT_HDR_BYTES)
static uint8_t golden[REMOVALS_AT + 4 * DISK_REMOVAL_BYTES];

static int load(void **state) {
    (void)state;
    FILE *f = fopen(GOLDEN_DIR "/disk_format.bin", "rb");
    if (!f)
        return -1;
    size_t n = fread(golden, 1, sizeof(golden), f);
    fclose(f);
    return n == sizeof(golden) ? 0 : -1;
}

static void test_golden_super_block(void **state) {
    (void)state;
    struct disk_super s;
    assert_int_equal(disk_super_decode(golden, &s), 0);
    assert_int_equal(s.min_slot_bytes, 65536);
    assert_int_equal(s.extent_bytes, 64 << 20);
    assert_int_equal(s.store_id[0], 0xa0);
    assert_int_equal(s.pool_id[15], 0xcf);
    assert_int_equal(s.node_number, 513);
    assert_int_equal(s.log_off, DISK_LOG_OFF);
    assert_int_equal(s.log_bytes, DISK_LOG_RECORDS * DISK_REMOVAL_BYTES);
    uint8_t again[DISK_PAGE];
    disk_super_encode(&s, again);
    assert_memory_equal(again, golden, DISK_PAGE);
}

static void test_golden_extent_header(void **state) {
    (void)state;
    struct disk_extent_hdr h;
    assert_int_equal(disk_extent_decode(golden + DISK_PAGE, &h), 0);
    assert_int_equal(h.slot_bytes, 741376);
    assert_int_equal(h.n_slots, 90);
    assert_int_equal(h.generation, 7);
    uint8_t again[DISK_PAGE];
    disk_extent_encode(&h, again);
    assert_memory_equal(again, golden + DISK_PAGE, DISK_PAGE);
}

static void test_golden_slot_header(void **state) {
    (void)state;
    struct disk_slot_hdr h;
    const uint8_t *p = golden + SLOT_AT;
    assert_int_equal(disk_slot_decode(p, &h), 0);
    assert_int_equal(h.flags, DISK_SLOT_FOREIGN_PARENT);
    assert_int_equal(h.extent_generation, 7);
    assert_int_equal(h.put_seq, 0x123456789a);
    assert_int_equal(h.put_time_ms, 1700000000123);
    assert_int_equal(h.ns[31], 31);
    assert_int_equal(h.id.b[0], 32);
    assert_int_equal(h.parent.b[0], 64);
    assert_int_equal(h.writer[15], 111);
    assert_true(h.group == 0xfedcba9876543210ull);
    assert_true(h.checksum == 0x0123456789abcdefull);
    assert_int_equal(h.generation, 11);
    assert_int_equal(h.payload_len, 737280);
    assert_int_equal(h.n_ranges, 30);
    assert_int_equal(h.depth, 46);
    assert_int_equal(h.encoding, 1);
    assert_int_equal(h.stored_len, 512);
    uint8_t again[DISK_SLOT_HDR_BYTES];
    disk_slot_encode(&h, again);
    assert_memory_equal(again, p, DISK_SLOT_HDR_BYTES);
}

static void test_golden_removal_records(void **state) {
    (void)state;
    struct disk_removal r[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t *p = golden + REMOVALS_AT + i * DISK_REMOVAL_BYTES;
        uint8_t again[DISK_REMOVAL_BYTES];
        assert_int_equal(disk_removal_decode(p, &r[i]), 0);
        assert_int_equal(r[i].seq, i + 1);
        assert_int_equal(r[i].before_ms, 1700000000123);
        assert_int_equal(r[i].logged_ms, 1700000000456);
        assert_int_equal(r[i].kind, i + 1); /* all, writer, id, group */
        disk_removal_encode(&r[i], again);
        assert_memory_equal(again, p, sizeof(again));
    }
    assert_int_equal(r[0].ns[31], 0);
    assert_int_equal(r[1].from_ms, 1600000000000);
    assert_int_equal(r[1].ns[31], 31);
    assert_int_equal(r[1].key[15], 111);
    assert_int_equal(r[2].key[31], 63);
    assert_int_equal(r[3].key[0], 0x10);
}

static void test_removal_records_that_say_nothing_are_refused(void **state) {
    (void)state;
    uint8_t p[DISK_REMOVAL_BYTES];
    struct disk_removal r;
    const struct disk_removal bad[] = {
        {.seq = 1, .kind = 0, .before_ms = 5},
        {.seq = 1, .kind = 5, .before_ms = 5},
        {.seq = 1, .kind = DISK_REMOVE_ALL, .from_ms = 6, .before_ms = 5},
        {.seq = 1, .kind = DISK_REMOVE_ALL, .before_ms = 5, .key = {1}},
        {.seq = 1, .kind = DISK_REMOVE_WRITER, .before_ms = 5, .key = {[16] = 1}},
        {.seq = 1, .kind = DISK_REMOVE_GROUP, .before_ms = 5, .key = {[8] = 1}},
        {.seq = 1, .kind = DISK_REMOVE_ID, .before_ms = 5, .key = {1}}, /* of which namespace? */
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        disk_removal_encode(&bad[i], p);
        assert_int_equal(disk_removal_decode(p, &r), ERR_CORRUPT);
    }
    memset(p, 0, sizeof(p));
    assert_int_equal(disk_removal_decode(p, &r), ERR_NOTFOUND);
}

/* C7: what another version wrote is told from what is broken, also in its first bytes. */
static void test_other_version_and_broken_are_told_apart(void **state) {
    (void)state;
    static uint8_t p[DISK_PAGE];
    struct disk_super s;
    memcpy(p, golden, sizeof(p));
    p[7] = '1'; /* format 1 as it was: sealed over its own bytes */
    p[8] = 1;
    assert_int_equal(disk_super_decode(p, &s), ERR_CORRUPT);
    uint32_t crc = checksum_crc32c(0, p, DISK_PAGE - 4);
    for (uint32_t i = 0; i < 4; i++)
        p[DISK_PAGE - 4 + i] = (uint8_t)(crc >> 8 * i);
    assert_int_equal(disk_super_decode(p, &s), ERR_UNSUPPORTED);
    for (uint32_t bit = 0; bit < 8 * 80; bit++) {
        memcpy(p, golden, sizeof(p));
        p[bit / 8] = (uint8_t)(p[bit / 8] ^ (1u << bit % 8));
        assert_int_equal(disk_super_decode(p, &s), ERR_CORRUPT);
    }
}

static void test_any_flipped_bit_is_refused(void **state) {
    (void)state;
    uint8_t p[DISK_SLOT_HDR_BYTES];
    struct disk_slot_hdr h;
    for (uint32_t bit = 0; bit < 8 * sizeof(p); bit++) {
        memcpy(p, golden + SLOT_AT, sizeof(p));
        p[bit / 8] = (uint8_t)(p[bit / 8] ^ (1u << bit % 8));
        assert_int_equal(disk_slot_decode(p, &h), bit < 32 ? ERR_NOTFOUND : ERR_CORRUPT);
    }
}

static void test_zeros_are_no_header(void **state) {
    (void)state;
    static const uint8_t zeros[DISK_PAGE];
    struct disk_slot_hdr h;
    struct disk_extent_hdr e;
    struct disk_super s;
    assert_int_equal(disk_slot_decode(zeros, &h), ERR_NOTFOUND);
    assert_int_equal(disk_extent_decode(zeros, &e), ERR_NOTFOUND);
    assert_int_equal(disk_super_decode(zeros, &s), ERR_NOTFOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_super_block),
        cmocka_unit_test(test_golden_extent_header),
        cmocka_unit_test(test_golden_slot_header),
        cmocka_unit_test(test_golden_removal_records),
        cmocka_unit_test(test_removal_records_that_say_nothing_are_refused),
        cmocka_unit_test(test_other_version_and_broken_are_told_apart),
        cmocka_unit_test(test_any_flipped_bit_is_refused),
        cmocka_unit_test(test_zeros_are_no_header),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
