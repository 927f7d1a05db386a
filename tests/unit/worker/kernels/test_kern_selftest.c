#include "kern_fixture.h"

#include "worker/kernels/kern_impl.h"
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
        char got[2 * DIGEST_BYTES + 1], want[2 * DIGEST_BYTES + 1];
        assert_int_equal(kern_selftest_run(t[k], digest), 0);
        digest_hex(digest, DIGEST_BYTES, got);
        digest_hex(kern_selftest_golden(), DIGEST_BYTES, want);
        assert_string_equal(got, want);
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

/* --- one instantiation alone computes something else --- */

static const struct kern_impl *real;
static unsigned wrong_dtype = KV_N_DTYPES;                       /* all */
static uint32_t wrong_rows, wrong_pairs, wrong_first, wrong_end; /* 0: none */
static bool wrong_split, wrong_cap, wrong_sink, wrong_window;

/* No later rounding hides a NaN. */
static void spoil(float *x) {
    *x = NAN;
}

static void quant_but(const struct mat_args *a, uint32_t begin, uint32_t end) {
    real->mat_quant(a, begin, end);
    if (a->tiles.n_rows == wrong_rows)
        spoil(a->y + begin * KERN_LANES);
}

static void float_but(const struct mat_args *a, uint32_t begin, uint32_t end) {
    real->mat_float(a, begin, end);
    if (a->tiles.n_rows == wrong_rows)
        spoil(a->y + begin * KERN_LANES);
}

static void values_but(const struct attn_block *b, const uint8_t *v, const uint16_t *vs,
                       uint32_t pos0, uint32_t t0, uint32_t t1, uint32_t first, uint32_t end) {
    real->attn_values(b, v, vs, pos0, t0, t1, first, end);
    if ((wrong_dtype != KV_N_DTYPES && b->v_dtype != wrong_dtype))
        return;
    if (b->rh == wrong_pairs || (first && first == wrong_first) ||
        (first == 0 && end == wrong_end) || (wrong_split && b->d1 - b->d0 < b->head_dim))
        spoil(b->acc + (size_t)(end - 1) * b->head_dim + b->d0);
}

static void scores_but(const struct attn_block *b, const uint8_t *k, const uint16_t *ks,
                       uint32_t pos0, uint32_t n) {
    real->attn_scores(b, k, ks, pos0, n);
    if (b->k_dtype == wrong_dtype && b->rh == wrong_pairs)
        spoil(b->s + (size_t)pos0 * b->rh);
}

static float softmax_but(const struct attn_block *b, uint32_t i, uint32_t first, uint32_t last,
                         float sink) {
    float rz = real->attn_softmax(b, i, first, last, sink);
    if ((wrong_cap && b->softcap > 0.0f) || (wrong_sink && sink > -INFINITY) ||
        (wrong_window && first % 16 != 0))
        spoil(&rz);
    return rz;
}

static bool is_noticed(const struct kern_impl *impl) {
    struct kern_ops ops = *kernels_pick(kern_isa, NULL);
    uint8_t digest[DIGEST_BYTES];
    ops.impl = impl;
    assert_int_equal(kern_selftest_run(&ops, digest), 0);
    return memcmp(digest, kern_selftest_golden(), DIGEST_BYTES) != 0;
}

/* F16: the self-test missed kernels of 2 to 6 rows, groups of 1, 2, 4 and 8 heads, and a split. Right: what
 * any number of rows or pairs runs is in the digest, so that no worker with a wrong one uses the cache. */
static void test_each_instantiation_is_in_the_digest(void **state) {
    (void)state;
    if (strcmp(kern_isa, "scalar") == 0)
        skip(); /* one loop for all shapes, and forty runs of it take a minute */
    real = kernels_pick(kern_isa, NULL)->impl;
    struct kern_impl quant = *real, floats = *real, values = *real;
    quant.mat_quant = quant_but;
    floats.mat_float = float_but;
    values.attn_values = values_but;
    for (wrong_rows = 1; wrong_rows <= KERN_TILE_ROWS + 1; wrong_rows++) {
        assert_true(is_noticed(&quant));
        assert_true(is_noticed(&floats));
    }
    wrong_rows = 0;
    static const uint8_t pairs[] = {1, 2, 3, 4, 6, 8, 12};
    struct kern_impl scores = *real;
    scores.attn_scores = scores_but;
    for (wrong_dtype = 0; wrong_dtype < KV_N_DTYPES; wrong_dtype++)
        for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
            wrong_pairs = pairs[i];
            assert_true(is_noticed(&values));
            assert_true(is_noticed(&scores));
        }
    wrong_pairs = 0;
    for (wrong_first = 1; wrong_first < KERN_ATTN_ROWS; wrong_first++)
        assert_true(is_noticed(&values));
    wrong_first = 0;
    for (wrong_end = 1; wrong_end < KERN_ATTN_ROWS; wrong_end++) /* a window's start */
        assert_true(is_noticed(&values));
    wrong_end = 0;
    wrong_split = true;
    assert_true(is_noticed(&values));
    wrong_split = false;
    struct kern_impl softmax = *real;
    softmax.attn_softmax = softmax_but;
    bool *const softmax_kinds[] = {&wrong_cap, &wrong_sink, &wrong_window};
    for (size_t i = 0; i < ARRAY_LEN(softmax_kinds); i++) {
        *softmax_kinds[i] = true;
        assert_true(is_noticed(&softmax));
        *softmax_kinds[i] = false;
    }
    assert_false(is_noticed(&softmax));
    assert_false(is_noticed(&values));
}

static void test_id_names_version_digest_and_blas(void **state) {
    (void)state;
    char id[KERN_NUMERICS_ID_MAX];
    kern_numerics_id(kern_selftest_golden(), NULL, id);
    assert_int_equal(strlen(id), 2 + 64);
    assert_memory_equal(id, "2-", 2);
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
        cmocka_unit_test(test_each_instantiation_is_in_the_digest),
        cmocka_unit_test(test_id_names_version_digest_and_blas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
