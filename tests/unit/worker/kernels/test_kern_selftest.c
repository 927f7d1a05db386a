#include "kern_fixture.h"

#include "worker/kernels/kern_selftest.h"
#include "worker/kernels/matmul_blas.h"

/* The committed digest on every instruction set of this machine. When it fails after a change of a
 * kernel, the change broke the contract: see kernels.h before touching the constant. */
static void test_every_table_computes_the_golden_digest(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    for (size_t k = 0; k < n_tables; k++) {
        uint8_t digest[DIGEST_BYTES];
        assert_int_equal(kern_selftest_run(t[k], digest), 0);
        assert_memory_equal(digest, kern_selftest_golden(), DIGEST_BYTES);
    }
}

/* A table that sums in another order must not pass: here rms_norm adds its lanes backwards. */
static void backwards_norm(float *y, const float *x, const float *w, size_t n, float eps) {
    float lane[16] = {0}, s = 0.0f;
    for (size_t i = n; i-- > 0;)
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    for (int l = 0; l < 16; l++)
        s += lane[l];
    float r = 1.0f / sqrtf(s / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] * r) * w[i];
}

static void test_other_order_of_summation_is_noticed(void **state) {
    (void)state;
    struct kern_ops broken = *kernels_pick(NULL, NULL);
    broken.rms_norm = backwards_norm;
    uint8_t digest[DIGEST_BYTES];
    assert_int_equal(kern_selftest_run(&broken, digest), 0);
    assert_memory_not_equal(digest, kern_selftest_golden(), DIGEST_BYTES);
}

static void test_id_names_version_digest_and_blas(void **state) {
    (void)state;
    char id[KERN_NUMERICS_ID_MAX];
    kern_numerics_id(kern_selftest_golden(), NULL, id);
    assert_int_equal(strlen(id), 2 + 64);
    assert_memory_equal(id, "1-", 2);
    struct matmul_blas *b;
    if (matmul_blas_new(&b, 64, 1, NULL) == 0) {
        kern_numerics_id(kern_selftest_golden(), b, id);
        assert_non_null(strstr(id, "-openblas-"));
        assert_non_null(strstr(id, matmul_blas_core(b)));
        assert_non_null(strstr(id, matmul_blas_version(b)));
        matmul_blas_free(b);
    }
}

int main(int argc, char **argv) {
    int rc = kern_isa_arg(argc, argv);
    if (rc >= 0)
        return rc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_table_computes_the_golden_digest),
        cmocka_unit_test(test_other_order_of_summation_is_noticed),
        cmocka_unit_test(test_id_names_version_digest_and_blas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
