#include "tests/unit/cachesvc/store_fixture.h"

#include "cachesvc/store/disk_format.h"

static uint8_t golden[2 * DISK_PAGE + DISK_SLOT_HDR_BYTES];

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
    const uint8_t *p = golden + 2 * DISK_PAGE;
    assert_int_equal(disk_slot_decode(p, &h), 0);
    assert_int_equal(h.flags, DISK_SLOT_FOREIGN_PARENT);
    assert_int_equal(h.extent_generation, 7);
    assert_int_equal(h.put_seq, 0x123456789a);
    assert_int_equal(h.put_time_s, 1700000000);
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
    uint8_t again[DISK_SLOT_HDR_BYTES];
    disk_slot_encode(&h, again);
    assert_memory_equal(again, p, DISK_SLOT_HDR_BYTES);
}

static void test_any_flipped_bit_is_refused(void **state) {
    (void)state;
    uint8_t p[DISK_SLOT_HDR_BYTES];
    struct disk_slot_hdr h;
    for (uint32_t bit = 0; bit < 8 * sizeof(p); bit++) {
        memcpy(p, golden + 2 * DISK_PAGE, sizeof(p));
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
        cmocka_unit_test(test_any_flipped_bit_is_refused),
        cmocka_unit_test(test_zeros_are_no_header),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
