#include "tests/unit/cachesvc/store_fixture.h"

#include "cachesvc/store/origin.h"

static void test_pairs_are_kept_once_and_counted(void **state) {
    (void)state;
    struct origins t;
    assert_int_equal(origins_init(&t, 100), 0);
    uint8_t w[ORIGIN_WRITER_BYTES] = {0};
    assert_int_equal(origins_take(&t, w, 0), ORIGIN_NONE);
    for (uint32_t round = 0; round < 3; round++) {
        int at[100];
        for (uint32_t i = 0; i < 100; i++) {
            w[0] = (uint8_t)i;
            at[i] = origins_take(&t, w, 7);
            assert_true(at[i] > 0);
            assert_int_equal(origins_take(&t, w, 7), at[i]);
            assert_int_equal(origins_at(&t, (uint32_t)at[i])->writer[0], i);
        }
        assert_int_equal(origins_take(&t, w, 8), -1); /* full */
        for (uint32_t i = 0; i < 100; i++) {
            origins_give(&t, (uint32_t)at[i]);
            origins_give(&t, (uint32_t)at[i]);
        }
    }
    origins_give(&t, ORIGIN_NONE);
    origins_fini(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs_are_kept_once_and_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
