/* test_quant_encode.c - encoded rows come back within half a step of the type; files read back. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "tools/dev/gguf_write.h"
#include "tools/dev/quant_encode.h"
#include "worker/kernels/quant.h"
#include "worker/model/gguf_file.h"

#define N 256

static void fill(float *x, unsigned seed) {
    for (size_t i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-31f * (float)(1 + i / 32); /* another range each block */
    }
}

/* Largest error allowed in a block whose elements span [lo, hi]; most is the farthest element of the row,
 * which all scales of a K-quant's block are rounded to parts of. */
static float allowed(uint32_t dtype, float lo, float hi, float most) {
    const float amax = fmaxf(fabsf(lo), fabsf(hi)), slack = 1.02f; /* the scale's own rounding */
    const float span = fmaxf(hi, 0) - fminf(lo, 0);
    switch (dtype) {
    case QUANT_F32:
        return 0;
    case QUANT_F16:
        return amax * 0x1p-11f;
    case QUANT_BF16:
        return amax * 0x1p-8f;
    case QUANT_Q8_0:
        return slack * amax / 127 / 2 + amax / 1000;
    case QUANT_Q4_0: /* the side of the range without a level of its own may lose a whole step */
        return slack * amax / 8;
    case QUANT_Q5_0:
        return slack * amax / 16;
    case QUANT_Q4_1:
        return slack * (hi - lo) / 15 / 2 + amax / 500;
    case QUANT_Q5_1:
        return slack * (hi - lo) / 31 / 2 + amax / 500;
    case QUANT_Q2_K: /* half a step, half a step of the min, the top moved by half a step of the scale */
        return span / 3 / 2 + most / 15 + amax / 500;
    case QUANT_Q3_K: /* a whole step on the side that has no level, as Q4_0 */
        return amax / 4 + most / 31;
    case QUANT_Q4_K:
        return span / 15 / 2 + most / 63 + amax / 500;
    case QUANT_Q5_K:
        return span / 31 / 2 + most / 63 + amax / 500;
    case QUANT_Q6_K:
        return amax / 32 + most / 127 / 2 + amax / 500;
    case QUANT_IQ4_NL: /* steps up to 24 of 127, and 14 beyond the far end */
        return slack * amax * 14 / 127;
    case QUANT_IQ4_XS:
        return slack * amax * 14 / 127 + most / 31 / 2;
    default: /* MXFP4: a third of a step at the top, scales a factor of 2 apart */
        return slack * amax / 3;
    }
}

static void test_every_type_comes_back_within_a_step(void **state) {
    (void)state;
    size_t n_types;
    const struct quant_type *types = quant_type_table(&n_types);
    assert_true(n_types >= 16);
    for (size_t k = 0; k < n_types; k++) {
        float x[N], y[N];
        uint8_t bytes[4 * N];
        fill(x, (unsigned)k + 1);
        assert_true(quant_encode(types[k].dtype, bytes, x, N));
        quant_dequant(&types[k], y, bytes, N);
        float most = 0;
        for (size_t i = 0; i < N; i++)
            most = fmaxf(most, fabsf(x[i]));
        for (size_t b = 0; b < N; b += 32) {
            float lo = x[b], hi = x[b];
            for (size_t i = b; i < b + 32; i++) {
                lo = fminf(lo, x[i]);
                hi = fmaxf(hi, x[i]);
            }
            for (size_t i = b; i < b + 32; i++)
                if (!(fabsf(x[i] - y[i]) <= allowed(types[k].dtype, lo, hi, most)))
                    fail_msg("%s: %g came back as %g", types[k].name, (double)x[i], (double)y[i]);
        }
    }
}

static void test_zero_block_stays_zero(void **state) {
    (void)state;
    size_t n_types;
    const struct quant_type *types = quant_type_table(&n_types);
    for (size_t k = 0; k < n_types; k++) {
        float x[N] = {0}, y[N];
        uint8_t bytes[4 * N];
        assert_true(quant_encode(types[k].dtype, bytes, x, N));
        quant_dequant(&types[k], y, bytes, N);
        for (size_t i = 0; i < N; i++)
            assert_true(y[i] == 0);
    }
}

static void test_unknown_type_or_broken_block_refused(void **state) {
    (void)state;
    float x[33] = {0};
    uint8_t bytes[256];
    assert_false(quant_encode(21 /* IQ3_S */, bytes, x, 32));
    assert_false(quant_encode(QUANT_Q4_K, bytes, x, 32));
    assert_false(quant_encode(QUANT_Q8_0, bytes, x, 33));
}

static void test_written_file_reads_back(void **state) {
    (void)state;
    char path[] = "/tmp/gguf-write-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    struct gguf_write w;
    struct gguf_file *f = NULL;
    struct errbuf eb;
    const float a[3] = {1, 2, 3};
    const uint64_t ne[2] = {3, 1};
    gguf_write_init(&w);
    gguf_write_u32(&w, "u", 7);
    gguf_write_f32_array(&w, "f", a, 3);
    gguf_write_tensor(&w, "a", QUANT_F32, 1, ne);
    gguf_write_tensor(&w, "b", QUANT_F32, 2, ne);
    assert_int_equal(gguf_write_open(&w, path), 0);
    for (int i = 0; i < 2; i++) {
        gguf_write_data(&w, a, sizeof(a));
        gguf_write_pad(&w);
    }
    assert_int_equal(gguf_write_close(&w), 0);
    gguf_write_fini(&w);
    assert_int_equal(gguf_file_open(&f, path, &eb), 0);
    struct gguf *g = gguf_file_peek(f);
    float b[3];
    assert_int_equal(gguf_find_tensor(g, "b")->bytes, sizeof(b));
    assert_int_equal(gguf_file_read(f, gguf_find_tensor(g, "b"), b, &eb), 0);
    assert_memory_equal(b, a, sizeof(a));
    assert_true(gguf_elem_f32(gguf_find(g, "f"), 1) == 2);
    gguf_file_close(f);
    (void)unlink(path);
}

static void test_missing_tensor_bytes_noticed_at_close(void **state) {
    (void)state;
    struct gguf_write w;
    const uint64_t ne[1] = {8};
    gguf_write_init(&w);
    gguf_write_tensor(&w, "a", QUANT_F32, 1, ne);
    assert_int_equal(gguf_write_open(&w, "/dev/null"), 0);
    assert_int_equal(gguf_write_close(&w), ERR_INVALID);
    gguf_write_fini(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_comes_back_within_a_step),
        cmocka_unit_test(test_zero_block_stays_zero),
        cmocka_unit_test(test_unknown_type_or_broken_block_refused),
        cmocka_unit_test(test_written_file_reads_back),
        cmocka_unit_test(test_missing_tensor_bytes_noticed_at_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
