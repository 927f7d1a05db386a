/* test_kv_block.c - offsets cover the page exactly once; hashes see the filled rows only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/checksum.h"
#include "worker/kv/kv_block.h"

static const struct kv_layout L = {
    .n_layer = 2, .n_kv_head = 3, .d_head = 4, .block_tok = 8, .elem_bytes = 2};

static void test_design_page_size(void **state) {
    (void)state;
    const struct kv_layout smollm2 = {
        .n_layer = 30, .n_kv_head = 3, .d_head = 64, .block_tok = 32, .elem_bytes = 2};
    assert_int_equal(kv_layout_page_bytes(&smollm2), 737280); /* design.md 5 */
    const struct kv_layout llama3_8b = {
        .n_layer = 32, .n_kv_head = 8, .d_head = 128, .block_tok = 32, .elem_bytes = 2};
    assert_int_equal(kv_layout_page_bytes(&llama3_8b), 4 << 20);
}

static void test_offsets_cover_the_page_once(void **state) {
    (void)state;
    uint8_t seen[4096] = {0};
    size_t n = kv_layout_page_bytes(&L), count = 0;
    assert_true(n <= sizeof(seen));
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t h = 0; h < 3; h++)
            for (uint32_t d = 0; d < 4; d++)
                for (uint32_t t = 0; t < 8; t++) {
                    seen[kv_layout_k_off(&L, l, h, d, t)]++;
                    seen[kv_layout_v_off(&L, l, h, t, d)]++;
                    count += 4;
                }
    assert_int_equal(count, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(seen[i], i % 2 == 0);
    /* K is d-major: tokens are neighbours; V is token-major */
    assert_int_equal(kv_layout_k_off(&L, 0, 0, 0, 1) - kv_layout_k_off(&L, 0, 0, 0, 0), 2);
    assert_int_equal(kv_layout_v_off(&L, 0, 0, 0, 1) - kv_layout_v_off(&L, 0, 0, 0, 0), 2);
    assert_true(kv_layout_v_off(&L, 1, 0, 0, 0) > kv_layout_k_off(&L, 1, 2, 3, 7));
}

static void test_rows_hash_ignores_unfilled_rows(void **state) {
    (void)state;
    uint8_t a[4096], b[4096];
    for (size_t i = 0; i < sizeof(a); i++)
        a[i] = b[i] = (uint8_t)(i * 7);
    b[kv_layout_k_off(&L, 1, 2, 3, 5)] ^= 1;
    b[kv_layout_v_off(&L, 0, 1, 6, 2)] ^= 1;
    assert_int_equal(kv_block_rows_hash(&L, a, 5), kv_block_rows_hash(&L, b, 5));
    assert_int_not_equal(kv_block_rows_hash(&L, a, 6), kv_block_rows_hash(&L, b, 6));
    assert_int_not_equal(kv_block_rows_hash(&L, a, 4), kv_block_rows_hash(&L, a, 5));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_design_page_size),
        cmocka_unit_test(test_offsets_cover_the_page_once),
        cmocka_unit_test(test_rows_hash_ignores_unfilled_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
