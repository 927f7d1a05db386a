#include "kern_fixture.h"

#include "worker/kernels/kern_impl.h"

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* All 65,536 halves, by the definition. */
static void test_f16_to_f32_of_every_half(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        int exp = (int)(h >> 10 & 31), man = (int)(h & 1023);
        double v = exp == 0 ? ldexp(man, -24) : ldexp(1024 + man, exp - 25);
        float f = quant_f16_to_f32((uint16_t)h);
        if (exp == 31 && man)
            assert_true(isnan(f));
        else if (exp == 31)
            assert_true(isinf(f));
        else
            assert_true(fabs((double)f) == v);
        assert_int_equal(bits_of(f) >> 31, h >> 15);
        assert_int_equal(quant_f32_to_f16(f), h | (exp == 31 && man ? 0x200u : 0)); /* and back */
    }
}

/* Around every midpoint between two halves: below goes down, the midpoint to even, above goes up. */
static void test_f32_to_f16_rounds_half_to_even(void **state) {
    (void)state;
    for (uint16_t h = 0; h < 0x7bff; h++) {
        double a = (double)quant_f16_to_f32(h), b = (double)quant_f16_to_f32((uint16_t)(h + 1));
        float mid = (float)((a + b) / 2); /* exact: one more bit */
        assert_int_equal(quant_f32_to_f16(mid), h + (h & 1));
        assert_int_equal(quant_f32_to_f16(nextafterf(mid, 0.0f)), h);
        assert_int_equal(quant_f32_to_f16(nextafterf(mid, 1e9f)), h + 1);
    }
    assert_int_equal(quant_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(quant_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(quant_f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(quant_f32_to_f16(0x1p-25f), 0);
    assert_int_equal(quant_f32_to_f16(nextafterf(0x1p-25f, 1.0f)), 1);
    assert_int_equal(quant_f32_to_f16(-0x1p-149f), 0x8000);
}

static void test_f16_stores_of_all_tables_agree(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    enum { N = 67 };
    float x[N];
    uint16_t want[N], got[N];
    for (uint32_t bits = 0; bits < 0xffff0000u; bits += 0x1013) {
        for (uint32_t i = 0; i < N; i++) {
            uint32_t u = bits + i * 3;
            memcpy(&x[i], &u, 4);
        }
        for (size_t k = 0; k < n_tables; k++) {
            uint32_t n = 1 + bits / 0x1013 % N;
            t[k]->impl->f32_to_f16(k ? got : want, x, n);
            if (k)
                assert_memory_equal(got, want, n * 2);
        }
    }
}

/* Blocks written by hand from the format's description. */
static void test_dequant_of_known_blocks(void **state) {
    (void)state;
    float y[32];
    uint8_t q4_0[18] = {0x00, 0x40 /* 2.0 */, 0x80 | 0x0f};
    quant_type_find(QUANT_Q4_0)->dequant(y, q4_0, 32);
    assert_true(y[0] == 14.0f && y[16] == 0.0f && y[1] == -16.0f && y[31] == -16.0f);
    uint8_t q4_1[20] = {0x00, 0x38 /* .5 */, 0x00, 0xbc /* -1 */, 0x30 | 0x04};
    quant_type_find(QUANT_Q4_1)->dequant(y, q4_1, 32);
    assert_true(y[0] == 1.0f && y[16] == 0.5f && y[15] == -1.0f);
    uint8_t q5_0[22] = {0x00, 0x3c /* 1 */, 0x01, 0, 0x02, 0 /* fifth bits of 0 and 17 */,
                        0x23, 0x50};
    quant_dequant(quant_type_find(QUANT_Q5_0), y, q5_0, 32);
    assert_true(y[0] == 3.0f && y[16] == -14.0f && y[17] == 5.0f && y[2] == -16.0f);
    uint8_t q5_1[24] = {0x00, 0x3c, 0x00, 0x40 /* 2 */, 0, 0x80, 0, 0x80 /* 15 and 31 */};
    quant_dequant(quant_type_find(QUANT_Q5_1), y, q5_1, 32);
    assert_true(y[15] == 18.0f && y[31] == 18.0f && y[0] == 2.0f);
    uint8_t q8_0[34] = {0x00, 0x34 /* .25 */, 0x80, 0x7f};
    quant_type_find(QUANT_Q8_0)->dequant(y, q8_0, 32);
    assert_true(y[0] == -32.0f && y[1] == 31.75f && y[2] == 0.0f);
    uint8_t bf16[4] = {0x80, 0x3f, 0x40, 0xc0};
    quant_type_find(QUANT_BF16)->dequant(y, bf16, 2);
    assert_true(y[0] == 1.0f && y[1] == -3.0f);
}

/* Activations: rounding half to even, limits, blocks of zeros and of too small numbers. */
static void test_activations_round_half_to_even(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    float x[96] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -126.5f, 0.49999997f};
    x[32] = 0x1p-101f; /* below the floor: a block of zeros */
    x[64] = -3e38f;
    uint8_t tile[3 * ACT_ROW_BYTES];
    for (size_t k = 0; k < n_tables; k++) {
        memset(tile, 0x55, sizeof tile);
        t[k]->impl->quant_row(tile, 1, 0, x, 3, (struct act_class){8, false});
        static const int8_t q[8] = {127, 0, 2, 2, 0, -2, -126, 0};
        assert_memory_equal(tile, q, sizeof q);
        int32_t corr;
        int16_t sums[2];
        float da, sa;
        memcpy(&corr, tile + 32, 4);
        memcpy(&da, tile + 36, 4);
        memcpy(&sa, tile + 40, 4);
        memcpy(sums, tile + 44, 4);
        assert_int_equal(sums[0], 3);
        assert_int_equal(sums[1], 0);
        assert_int_equal(corr, KERN_MAGIC_BITS - 8 * 3);
        assert_true(da == 1.0f && sa == 3.0f);
        memcpy(&da, tile + ACT_ROW_BYTES + 36, 4);
        assert_true(da == 0.0f && tile[ACT_ROW_BYTES] == 0);
        assert_int_equal((int8_t)tile[2 * ACT_ROW_BYTES], -127);
        /* Each half corrected alone; x[20] is the second half's only one. */
        x[20] = 4.0f;
        t[k]->impl->quant_row(tile, 1, 0, x, 1, (struct act_class){32, true});
        int32_t corrs[4];
        memcpy(corrs, tile + 32, sizeof corrs);
        memcpy(sums, tile + 44, 4);
        assert_int_equal(corrs[0], KERN_MAGIC_BITS - 32 * 3);
        assert_int_equal(corrs[2], KERN_MAGIC_BITS - 32 * 4);
        assert_true(sums[0] == 3 && sums[1] == 4);
        x[20] = 0.0f;
    }
}

static void test_activations_of_all_tables_agree(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {6};
    float x[5 * 32];
    uint8_t want[3 * 5 * ACT_ROW_BYTES], got[sizeof want];
    for (int c = 0; c < 4000; c++) {
        fill_input(&r, (enum input_kind)(c % IN_KINDS), x, ARRAY_LEN(x));
        if (c % 11 == 0)
            x[c % 160] = INFINITY;
        for (size_t k = 0; k < n_tables; k++) {
            uint8_t *tile = k ? got : want;
            memset(tile, 0, sizeof want);
            t[k]->impl->quant_row(tile, 3, (uint32_t)c % 3, x, 5,
                                  (struct act_class){c % 2 ? 128 : 0, c % 5 == 0});
            if (k && c % 11) /* the NaN's payload may differ */
                assert_memory_equal(got, want, sizeof want);
        }
    }
}

int main(int argc, char **argv) {
    int rc = kern_isa_arg(argc, argv);
    if (rc >= 0)
        return rc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_to_f32_of_every_half),
        cmocka_unit_test(test_f32_to_f16_rounds_half_to_even),
        cmocka_unit_test(test_f16_stores_of_all_tables_agree),
        cmocka_unit_test(test_dequant_of_known_blocks),
        cmocka_unit_test(test_activations_round_half_to_even),
        cmocka_unit_test(test_activations_of_all_tables_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
