/* test_weight_mem.c - memory for packed weights: alignment, zeroes, no overlap, large requests. */
#include "worker/kernels/weight_mem.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static bool is_zero(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

static void test_take_gives_aligned_zeroed_memory_of_its_own(void **state) {
    (void)state;
    struct weight_mem *w = weight_mem_new();
    uint8_t *p[100];
    for (size_t i = 0; i < ARRAY_LEN(p); i++) {
        const size_t n = 1 + i * 7919; /* odd sizes; 40 MB in all, so more than one chunk */
        p[i] = weight_mem_take(w, n);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 64, 0);
        assert_true(is_zero(p[i], n));
        memset(p[i], (int)i + 1, n);
    }
    for (size_t i = 0; i < ARRAY_LEN(p); i++) {
        assert_int_equal(p[i][0], i + 1); /* nobody wrote over it */
        assert_int_equal(p[i][i * 7919], i + 1);
    }
    weight_mem_free(w);
}

static void test_take_larger_than_a_chunk_works(void **state) {
    (void)state;
    struct weight_mem *w = weight_mem_new();
    const size_t n = ((size_t)70 << 20) + 3;
    uint8_t *p = weight_mem_take(w, n);
    assert_non_null(p);
    p[0] = p[n - 1] = 1;
    assert_int_equal((uintptr_t)p % 64, 0);
    weight_mem_free(w);
}

static void test_take_of_impossible_sizes_is_null(void **state) {
    (void)state;
    struct weight_mem *w = weight_mem_new();
    assert_null(weight_mem_take(w, SIZE_MAX));
    assert_null(weight_mem_take(w, SIZE_MAX / 4));
    assert_non_null(weight_mem_take(w, 1)); /* still usable */
    weight_mem_free(w);
    weight_mem_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_gives_aligned_zeroed_memory_of_its_own),
        cmocka_unit_test(test_take_larger_than_a_chunk_works),
        cmocka_unit_test(test_take_of_impossible_sizes_is_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
