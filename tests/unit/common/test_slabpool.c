#include "common/slabpool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/err.h"
#include "tests/support/fault.h"

static void test_take_until_empty_and_give_back(void **state) {
    (void)state;
    struct slabpool p;
    uint8_t *obj[70];
    assert_int_equal(slabpool_init(&p, 70, 100), 0);
    uint64_t before = malloc_probe_count();
    for (int i = 0; i < 70; i++) {
        obj[i] = slabpool_take(&p);
        assert_non_null(obj[i]);
        assert_int_equal((uintptr_t)obj[i] % 64, 0);
        for (int k = 0; k < 100; k++)
            assert_int_equal(obj[i][k], 0);
        memset(obj[i], 0xaa, 100);
        assert_true(i == 0 || obj[i] >= obj[i - 1] + 100);
    }
    assert_null(slabpool_take(&p));
    assert_int_equal(slabpool_in_use(&p), 70);
    slabpool_give(&p, obj[30]);
    slabpool_give(&p, NULL);
    assert_ptr_equal(slabpool_take(&p), obj[30]);
    assert_int_equal(obj[30][50], 0); /* zeroed again */
    for (int i = 0; i < 70; i++)
        slabpool_give(&p, obj[i]);
    assert_int_equal(slabpool_in_use(&p), 0);
    assert_int_equal(p.peak, 70);
    assert_int_equal(malloc_probe_count(), before);
    slabpool_fini(&p);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    struct slabpool p;
    uint32_t n = 0;
    for (;; n++) {
        fault_arm(n);
        int rv = slabpool_init(&p, 4, 8);
        bool fired = fault_fired();
        fault_disarm();
        if (!fired) {
            assert_int_equal(rv, 0);
            break;
        }
        assert_int_equal(rv, ERR_NOMEM);
    }
    assert_int_equal(n, 2);
    slabpool_fini(&p);
    assert_int_equal(slabpool_init(&p, 0, 8), ERR_INVALID);
    assert_int_equal(slabpool_init(&p, SIZE_MAX, 8), ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_until_empty_and_give_back),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
