#include "tests/unit/cachesvc/store_fixture.h"

#include <sched.h>

#include "cachesvc/store/ram_tier.h"

static struct ram_tier_cfg small(void) {
    return (struct ram_tier_cfg){
        .ram_bytes = 40 * 4096,
        .extent_bytes = 8 * 4096,
        .bounce_bytes = 8 * 4096,
        .min_slot_bytes = 4096,
        .huge_pages = true, /* falls back where there are none */
    };
}

static void test_slots_open_as_their_pages_are_touched(void **state) {
    (void)state;
    struct ram_tier t;
    struct ram_tier_cfg c = small();
    c.background_touch = true;
    assert_int_equal(ram_tier_init(&t, &c, NULL), 0);
    uint32_t cls = (uint32_t)slots_class(&t.slots, 4096), n = 0;
    while (n < 24) { /* 4 extents, one of them the reserve */
        uint32_t slot = ram_tier_take(&t, cls, n);
        if (slot == SLOT_NONE) {
            sched_yield();
            continue;
        }
        memset(ram_tier_at(&t, slot), 0xff, 4096); /* the toucher must not come back to it */
        n++;
    }
    while (atomic_load(&t.n_touched) < t.slots.cfg.n_extents)
        sched_yield();
    for (uint32_t ext = 0; ext < 3; ext++)
        for (uint32_t i = 0; i < 8; i++)
            assert_int_equal(ram_tier_at(&t, slot_code(ext, i))[4095], 0xff);
    assert_int_equal(ram_tier_take(&t, cls, 99), SLOT_NONE);
    assert_int_not_equal(ram_tier_take_reserve(&t, cls, 99), SLOT_NONE);
    ram_tier_fini(&t);
}

static void test_fini_stops_a_running_toucher(void **state) {
    (void)state;
    struct ram_tier t;
    struct ram_tier_cfg c = small();
    c.ram_bytes = 64 << 20;
    c.background_touch = true;
    assert_int_equal(ram_tier_init(&t, &c, NULL), 0);
    ram_tier_fini(&t);
}

static void test_a_slot_lives_as_long_as_owner_or_reference(void **state) {
    (void)state;
    struct ram_tier t;
    struct ram_tier_cfg c = small();
    assert_int_equal(ram_tier_init(&t, &c, NULL), 0);
    uint32_t cls = (uint32_t)slots_class(&t.slots, 4096), slot = ram_tier_take(&t, cls, 1);
    uint64_t generation = ram_tier_generation(&t, slot);
    ram_tier_ref(&t, slot);
    ram_tier_disown(&t, slot);
    assert_int_equal(t.slots.n_used, 1);
    assert_int_equal(ram_tier_generation(&t, slot), generation);
    ram_tier_unref(&t, slot);
    assert_int_equal(t.slots.n_used, 0);
    assert_int_equal(ram_tier_take(&t, cls, 2), slot);
    assert_true(ram_tier_generation(&t, slot) > generation);
    ram_tier_fini(&t);
}

static void test_too_small_is_said(void **state) {
    (void)state;
    struct ram_tier t;
    struct errbuf eb = {{0}};
    struct ram_tier_cfg c = small();
    c.ram_bytes = 4096;
    assert_int_equal(ram_tier_init(&t, &c, &eb), ERR_INVALID);
    assert_non_null(strstr(eb.text, "at least"));
    c = small();
    c.bounce_bytes = c.ram_bytes;
    assert_int_equal(ram_tier_init(&t, &c, &eb), ERR_INVALID);
    assert_non_null(strstr(eb.text, "kept for disk reads"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_open_as_their_pages_are_touched),
        cmocka_unit_test(test_fini_stops_a_running_toucher),
        cmocka_unit_test(test_a_slot_lives_as_long_as_owner_or_reference),
        cmocka_unit_test(test_too_small_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
