#include "tests/unit/cachesvc/store_fixture.h"

#include "cachesvc/store/slots.h"

static const struct slots_cfg disk_like = {
    .base_off = 4096,
    .extent_bytes = 64 * 4096,
    .n_extents = 6,
    .n_reserve = 1,
    .min_slot_bytes = 4096,
    .head_bytes = 4096,
    .table_entry_bytes = 512,
};

static uint32_t open_extent(struct slots *s, uint32_t cls) {
    uint32_t ext = slots_assign(s, cls, false);
    if (ext != UINT32_MAX)
        slots_open(s, ext);
    return ext;
}

static void test_slots_fill_an_extent_without_overlap(void **state) {
    (void)state;
    struct slots s;
    assert_int_equal(slots_init(&s, &disk_like), 0);
    int cls = slots_class(&s, 3 * 4096);
    assert_true(cls >= 0);
    uint32_t ext = open_extent(&s, (uint32_t)cls);
    uint32_t n = 0;
    uint64_t last_end = 0;
    for (uint32_t slot; (slot = slots_take(&s, (uint32_t)cls)) != SLOT_NONE; n++) {
        uint64_t off = slots_off(&s, slot);
        assert_int_equal(off % 4096, 0);
        assert_true(off >= last_end);
        assert_true(slots_table_off(&s, slot) + 512 <= slots_off(&s, slot_code(ext, 0)));
        last_end = off + 3 * 4096;
    }
    assert_int_equal(n, slots_per_extent(&s, 3 * 4096));
    assert_true(last_end <= slots_extent_off(&s, ext) + disk_like.extent_bytes);
    assert_true(last_end + 3 * 4096 > slots_extent_off(&s, ext) + disk_like.extent_bytes);
    slots_fini(&s);
}

static void test_slots_random_take_and_give_agree_with_a_set(void **state) {
    (void)state;
    struct slots s;
    assert_int_equal(slots_init(&s, &disk_like), 0);
    uint32_t cls = (uint32_t)slots_class(&s, 4096), held[512], n = 0, rnd = 7;
    for (int i = 0; i < 20000; i++) {
        rnd = rnd * 1664525 + 1013904223;
        if (rnd >> 31 || n == 0) {
            uint32_t slot = slots_take(&s, cls);
            if (slot == SLOT_NONE && open_extent(&s, cls) != UINT32_MAX)
                slot = slots_take(&s, cls);
            if (slot == SLOT_NONE)
                continue;
            for (uint32_t k = 0; k < n; k++)
                assert_int_not_equal(held[k], slot);
            assert_false(slots_is_reserve(&s, slot_extent(slot)));
            held[n++] = slot;
        } else {
            uint32_t k = (rnd >> 8) % n;
            slots_give(&s, held[k]);
            held[k] = held[--n];
        }
        assert_int_equal(s.n_used, n);
        assert_int_equal(s.used_bytes, n * 4096ull);
    }
    slots_fini(&s);
}

static void test_sizes_out_of_range_are_refused(void **state) {
    (void)state;
    struct slots s;
    assert_int_equal(slots_init(&s, &disk_like), 0);
    assert_int_equal(slots_class(&s, 4097), ERR_INVALID);
    assert_int_equal(slots_class(&s, 64 * 4096), ERR_INVALID); /* the head leaves no room */
    for (uint32_t i = 0; i < SLOTS_MAX_CLASSES && i < 60; i++)
        assert_int_equal(slots_class(&s, (i + 1) * 4096), i);
    slots_fini(&s);
}

static void test_reserve_changes_size_when_it_is_empty(void **state) {
    (void)state;
    struct slots s;
    assert_int_equal(slots_init(&s, &disk_like), 0);
    uint32_t a = (uint32_t)slots_class(&s, 4096), b = (uint32_t)slots_class(&s, 8192);
    uint32_t one = slots_take_reserve(&s, a);
    assert_true(slots_is_reserve(&s, slot_extent(one)));
    assert_int_equal(slots_take_reserve(&s, b), SLOT_NONE);
    slots_give(&s, one);
    assert_int_not_equal(slots_take_reserve(&s, b), SLOT_NONE);
    slots_fini(&s);
}

static void test_take_at_takes_that_slot_once(void **state) {
    (void)state;
    struct slots s;
    assert_int_equal(slots_init(&s, &disk_like), 0);
    uint32_t cls = (uint32_t)slots_class(&s, 4096), ext = open_extent(&s, cls);
    assert_true(slots_take_at(&s, slot_code(ext, 5)));
    assert_false(slots_take_at(&s, slot_code(ext, 5)));
    assert_true(slots_take_at(&s, slot_code(ext, 0)));
    assert_false(slots_take_at(&s, slot_code(ext, 60000)));
    uint32_t n = 2;
    for (uint32_t slot; (slot = slots_take(&s, cls)) != SLOT_NONE; n++)
        assert_true(slot_index(slot) != 5 && slot_index(slot) != 0);
    assert_int_equal(n, slots_per_extent(&s, 4096));
    slots_fini(&s);
}

/* What a tier of that size keeps of blocks of that payload and number of layers, as a percentage. */
static uint32_t percent_used(uint64_t tier, uint64_t payload, uint32_t n_ranges, bool is_disk,
                             uint64_t *ret_lost) {
    struct slots s;
    struct slots_cfg c = {.base_off = 0,
                          .extent_bytes = slots_fit_extent(tier, MIN(tier / 16, 64ull << 20)),
                          .min_slot_bytes = 64 << 10,
                          .head_bytes = is_disk ? 4096 : 0,
                          .table_entry_bytes = is_disk ? 512 : 0};
    c.n_extents = (uint32_t)(tier / c.extent_bytes);
    assert_int_equal(slots_init(&s, &c), 0);
    uint32_t slot = (uint32_t)((payload + 12 * n_ranges + 4095) / 4096 * 4096);
    int cls = slots_class(&s, slot);
    assert_true(cls >= 0);
    uint64_t n = 0;
    for (uint32_t x = 0; x < 4; x++) {
        uint32_t ext = slots_assign(&s, (uint32_t)cls, false);
        slots_open(&s, ext);
        while (slots_take(&s, (uint32_t)cls) != SLOT_NONE)
            n++;
    }
    *ret_lost = s.lost_bytes;
    uint32_t percent = (uint32_t)(n / 4 * c.n_extents * payload * 100 / tier);
    slots_fini(&s);
    return percent;
}

/* C11: blocks of 4, 8 and 16 MiB lost 6 to 25% of extents of 64 MiB, and a RAM tier of a power of two
 * part of itself: extents fit their slots, and what is lost is a figure. */
static void test_extents_fit_their_slots(void **state) {
    (void)state;
    uint64_t lost;
    for (uint32_t is_disk = 0; is_disk < 2; is_disk++) {
        for (uint64_t payload = 512 << 10; payload <= 16ull << 20; payload *= 2) {
            assert_true(percent_used(64ull << 30, payload, 32, is_disk, &lost) >= 98);
            assert_true(lost < 4 * (1ull << 20));
        }
        assert_true(percent_used(64ull << 30, 737280, 30, is_disk, &lost) >= 98);
    }
    assert_true(percent_used(64ull << 20, 512 << 10, 32, false, &lost) >=
                92); /* 105 of 128 before */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_fill_an_extent_without_overlap),
        cmocka_unit_test(test_slots_random_take_and_give_agree_with_a_set),
        cmocka_unit_test(test_sizes_out_of_range_are_refused),
        cmocka_unit_test(test_reserve_changes_size_when_it_is_empty),
        cmocka_unit_test(test_take_at_takes_that_slot_once),
        cmocka_unit_test(test_extents_fit_their_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
