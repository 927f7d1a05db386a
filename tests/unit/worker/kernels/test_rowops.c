#include "kern_fixture.h"

#include "worker/kernels/kern_impl.h"

#define N_MAX 200

static float in1[N_MAX], in2[N_MAX], want[N_MAX], got[N_MAX];

/* Every row operation for every length up to 200 and every kind of input. */
static void test_rows_of_every_length_give_the_bits_of_the_reference(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {2};
    for (size_t n = 1; n <= N_MAX; n++)
        for (enum input_kind kind = 0; kind < IN_KINDS; kind++) {
            /* squares of huge numbers overflow: then the norm is 0 or NaN alike */
            fill_input(&r, kind, in1, n);
            fill_input(&r, IN_NORMAL, in2, n);
            for (size_t i = 1; i < n_tables; i++) {
                t[0]->rms_norm(want, in1, in2, n, 1e-5f);
                t[i]->rms_norm(got, in1, in2, n, 1e-5f);
                assert_same_bits(got, want, n, "rms_norm");
                t[0]->silu_mul(want, in1, in2, n);
                t[i]->silu_mul(got, in1, in2, n);
                assert_same_bits(got, want, n, "silu_mul");
                t[0]->gelu_mul(want, in1, in2, n);
                t[i]->gelu_mul(got, in1, in2, n);
                assert_same_bits(got, want, n, "gelu_mul");
                t[0]->swiglu_oai(want, in1, in2, n);
                t[i]->swiglu_oai(got, in1, in2, n);
                assert_same_bits(got, want, n, "swiglu_oai");
                for (int op = 0; op < 2; op++) { /* in place, nothing behind n */
                    memcpy(want, in1, sizeof want);
                    memcpy(got, in1, sizeof got);
                    (op ? t[0]->softcap : t[0]->scale)(want, n, 3.3f);
                    (op ? t[i]->softcap : t[i]->scale)(got, n, 3.3f);
                    assert_same_bits(got, want, N_MAX, op ? "softcap" : "scale");
                }
                memcpy(want, in2, sizeof want);
                memcpy(got, in2, sizeof got);
                t[0]->add(want, in1, n);
                t[i]->add(got, in1, n);
                assert_same_bits(got, want, N_MAX, "add"); /* nothing behind n either */
                t[0]->add_scaled(want, in1, 0.3f, n);
                t[i]->add_scaled(got, in1, 0.3f, n);
                assert_same_bits(got, want, N_MAX, "add_scaled");
            }
        }
}

static void test_rms_norm_is_near_the_double_formula(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {3};
    for (size_t n = 1; n <= N_MAX; n += 7) {
        fill_input(&r, IN_NORMAL, in1, n);
        fill_input(&r, IN_NORMAL, in2, n);
        double s = 0;
        for (size_t i = 0; i < n; i++)
            s += (double)in1[i] * (double)in1[i];
        double scale = 1 / sqrt(s / (double)n + 1e-5);
        for (size_t k = 0; k < n_tables; k++) {
            t[k]->rms_norm(got, in1, in2, n, 1e-5f);
            for (size_t i = 0; i < n; i++) {
                double w = (double)in1[i] * scale * (double)in2[i];
                assert_true(fabs((double)got[i] - w) <= 1e-6 * fabs(w) + 1e-30);
            }
        }
    }
}

/* An order-sensitive input: 1 in every lane first, then values whose sum depends on where they go. The
 * contract's order written down once more, without the reference's helpers. */
static void test_rms_norm_sums_by_index_mod_16_and_then_the_tree(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {4};
    for (size_t i = 0; i < N_MAX; i++) {
        in1[i] = rng_input(&r, IN_MIXED);
        in2[i] = 1.0f;
    }
    float a[16] = {0};
    for (size_t i = 0; i < N_MAX; i++)
        a[i % 16] = fmaf(in1[i], in1[i], a[i % 16]);
    float b[8], c[4];
    for (int l = 0; l < 8; l++)
        b[l] = a[l] + a[l + 8];
    for (int l = 0; l < 4; l++)
        c[l] = b[l] + b[l + 4];
    float s = (c[0] + c[2]) + (c[1] + c[3]);
    float scale = 1.0f / sqrtf(s / (float)N_MAX + 1e-5f);
    for (size_t k = 0; k < n_tables; k++) {
        t[k]->rms_norm(got, in1, in2, N_MAX, 1e-5f);
        for (size_t i = 0; i < N_MAX; i++)
            assert_true(got[i] == in1[i] * scale);
    }
}

static void test_exp_is_near_and_ends_where_the_contract_says(void **state) {
    (void)state;
    assert_true(kern_ref_exp(0.0f) == 1.0f);
    assert_true(kern_ref_exp(-60.00001f) == 0.0f);
    assert_true(kern_ref_exp(-60.0f) > 0.0f);
    assert_true(kern_ref_exp(-INFINITY) == 0.0f);
    assert_true(kern_ref_exp(1000.0f) == kern_ref_exp(88.0f));
    assert_true(isnan(kern_ref_exp(NAN)));
    for (float x = -60.0f; x <= 88.0f; x += 0.00371f) {
        double e = exp((double)x);
        assert_true(fabs((double)kern_ref_exp(x) - e) <= 2.5e-7 * e);
    }
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

static double gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

/* Both over all exponents and both signs, 16 lanes at a time: exp's whole domain. */
static void test_activations_over_the_whole_range_of_floats(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    for (uint32_t bits = 0; bits < 0xff800000u; bits += 0x000fffc1u) {
        if (bits > 0x7f800000u && bits < 0x80000000u)
            continue;
        for (size_t i = 0; i < 16; i++) {
            uint32_t u = bits + (uint32_t)i * 977;
            memcpy(&in1[i], &u, 4);
            in2[i] = 1.0f;
        }
        for (int gelu = 0; gelu < 2; gelu++) {
            (gelu ? t[0]->gelu_mul : t[0]->silu_mul)(want, in1, in2, 16);
            for (size_t k = 1; k < n_tables; k++) {
                (gelu ? t[k]->gelu_mul : t[k]->silu_mul)(got, in1, in2, 16);
                assert_same_bits(got, want, 16, gelu ? "gelu" : "silu");
            }
            for (size_t i = 0; i < 16; i++) {
                double g = (double)in1[i], y = gelu ? gelu_tanh(g) : silu(g);
                if (isfinite(g) &&
                    fabs(g) < (gelu ? 4 : 50)) /* beyond, gelu's left side is exp's rounding */
                    assert_true(fabs((double)want[i] - y) <=
                                (gelu ? 1e-5 : 1e-6) * fabs(y) + 1e-37);
            }
        }
    }
}

/* tanh changes its formula at 1/16; its ends are exact, and a NaN stays one. */
static void test_softcap_over_the_whole_range_of_floats(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    for (uint32_t bits = 0; bits < 0xff800000u; bits += 0x0003ffc1u) {
        if (bits > 0x7f800000u && bits < 0x80000000u)
            continue;
        for (size_t i = 0; i < 16; i++) {
            uint32_t u = bits + (uint32_t)i * 977;
            memcpy(&in1[i], &u, 4);
        }
        for (float c = 1.0f; c < 100.0f; c += 29.0f) {
            memcpy(want, in1, sizeof want);
            t[0]->softcap(want, 16, c);
            for (size_t k = 1; k < n_tables; k++) {
                memcpy(got, in1, sizeof got);
                t[k]->softcap(got, 16, c);
                assert_same_bits(got, want, 16, "softcap");
            }
            for (size_t i = 0; i < 16; i++) {
                double y = (double)c * tanh((double)in1[i] / (double)c);
                if (isnan(y))
                    assert_true(isnan(want[i]));
                else
                    assert_true(fabs((double)want[i] - y) <= 4e-6 * fabs(y) + 1e-37);
            }
        }
    }
    assert_true(kern_ref_softcap(INFINITY, 30.0f) == 30.0f &&
                kern_ref_softcap(-1e30f, 30.0f) == -30.0f);
    assert_true(signbit(kern_ref_softcap(-0.0f, 30.0f)));
    for (size_t k = 0; k < n_tables; k++) { /* the joint itself, in vectors and in their tail */
        for (size_t i = 0; i < 19; i++)
            got[i] = i % 2 ? -0x1p-4f : 0x1p-4f;
        t[k]->softcap(got, 19, 1.0f);
        for (size_t i = 0; i < 19; i++)
            assert_true(got[i] == kern_ref_softcap(i % 2 ? -0x1p-4f : 0x1p-4f, 1.0f));
    }
    /* The formula's own bits on both sides of the joint. */
    float x = 0x1.fffffep-5f, x2 = x * x;
    assert_true(kern_ref_softcap(x, 1.0f) ==
                fmaf(x * x2, fmaf(x2, fmaf(x2, -17.0f / 315.0f, 2.0f / 15.0f), -1.0f / 3.0f), x));
    assert_true(kern_ref_softcap(-0x1p-4f, 1.0f) ==
                -(1.0f - 2.0f / (kern_ref_exp(0x1p-3f) + 1.0f)));
}

static void test_swiglu_oai_clamps_and_keeps_nans(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    const double cases[][2] = {{1, 2}, {-3, 0.5}, {7, -7}, {9, 8}, {-20, -9}, {0, 0}};
    float g[ARRAY_LEN(cases) + 2], u[ARRAY_LEN(g)], y[ARRAY_LEN(g)];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        g[i] = (float)cases[i][0];
        u[i] = (float)cases[i][1];
    }
    g[ARRAY_LEN(cases)] = u[ARRAY_LEN(cases) + 1] = NAN;
    u[ARRAY_LEN(cases)] = g[ARRAY_LEN(cases) + 1] = 1;
    for (size_t k = 0; k < n_tables; k++) {
        t[k]->swiglu_oai(y, g, u, ARRAY_LEN(g));
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            double gate = MIN(cases[i][0], 7), up = MAX(MIN(cases[i][1], 7), -7);
            double exact = gate / (1 + exp(-1.702 * gate)) * (up + 1);
            assert_true(fabs((double)y[i] - exact) <= 1e-6 * fabs(exact) + 1e-20);
        }
        assert_true(isnan(y[ARRAY_LEN(cases)]) && isnan(y[ARRAY_LEN(cases) + 1]));
    }
}

static void test_rope_kernels_give_the_bits_of_the_reference(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {5};
    float cs[128], x[3 * 160], y[3 * 160];
    for (uint32_t n_rot = 2; n_rot <= 128; n_rot += 2) {
        const struct rope_cfg cfg = {.n_rot = n_rot, .base = 10000.0f, .freq_scale = 1.0f};
        struct rope *rope;
        assert_int_equal(rope_new(&rope, &cfg, NULL), 0);
        rope_rows(rope, 1234 + n_rot, 1, cs);
        rope_free(rope);
        for (size_t k = 1; k < n_tables; k++) {
            fill_input(&r, IN_NORMAL, x, ARRAY_LEN(x));
            memcpy(y, x, sizeof x);
            t[0]->rope_norm(x, cs, 3, 160, n_rot);
            t[k]->rope_norm(y, cs, 3, 160, n_rot);
            assert_same_bits(y, x, ARRAY_LEN(x), "rope_norm");
            t[0]->rope_neox(x, cs, 3, 160, n_rot);
            t[k]->rope_neox(y, cs, 3, 160, n_rot);
            assert_same_bits(y, x, ARRAY_LEN(x), "rope_neox");
        }
    }
}

/* libm in double is the judge; the angle itself must be right to float precision at any position. */
static void test_rope_angles_are_those_of_the_formula(void **state) {
    (void)state;
    static const uint32_t positions[] = {0, 1, 2, 77, 2047, 32767, 131071, 1048575};
    float factors[32], cs[64];
    for (int i = 0; i < 32; i++)
        factors[i] = 1.0f + (float)i * 0.25f;
    for (int variant = 0; variant < 4; variant++) {
        const struct rope_cfg cfg = {.n_rot = 64,
                                     .base = variant % 2 ? 500000.0f : 10000.0f,
                                     .freq_scale = variant % 2 ? 0.125f : 1.0f,
                                     .freq_factors = variant / 2 ? factors : NULL};
        struct rope *rope;
        assert_int_equal(rope_new(&rope, &cfg, NULL), 0);
        for (size_t p = 0; p < ARRAY_LEN(positions); p++) {
            rope_rows(rope, positions[p], 1, cs);
            for (int i = 0; i < 32; i++) {
                double f = pow((double)cfg.base, -2.0 * i / 64) * (double)cfg.freq_scale;
                double angle = positions[p] * (variant / 2 ? f / (double)factors[i] : f);
                assert_true(fabs((double)cs[i] - cos(angle)) < 1e-7);
                assert_true(fabs((double)cs[32 + i] - sin(angle)) < 1e-7);
            }
        }
        rope_free(rope);
    }
}

/* YaRN's angle of pair i at a position, by libm, from the paper. */
static double yarn_angle(const struct rope_cfg *c, int i, double pos) {
    const double pairs = c->n_rot / 2.0, ln_base = log((double)c->base), tau = 2 * acos(-1.0);
    double fast = pairs * log(c->yarn_orig_ctx / ((double)c->beta_fast * tau)) / ln_base;
    double slow = pairs * log(c->yarn_orig_ctx / ((double)c->beta_slow * tau)) / ln_base;
    fast = MAX(floor(fast), 0);
    slow = MIN(ceil(slow), c->n_rot - 1.0);
    const double scaled = MIN(MAX((i - fast) / (slow - fast), 0), 1);
    return pos * pow((double)c->base, -i / pairs) * (scaled * (double)c->freq_scale + 1 - scaled);
}

static void test_rope_yarn_scales_slow_pairs_and_the_magnitude(void **state) {
    (void)state;
    const struct rope_cfg cfg = {.n_rot = 64,
                                 .base = 1e6f,
                                 .freq_scale = 0.25f,
                                 .magnitude = 1.5f,
                                 .yarn_orig_ctx = 32768,
                                 .beta_fast = 32,
                                 .beta_slow = 1};
    struct rope *rope;
    float cs[64];
    const double magnitude = 1.5 * (1 + 0.1 * log(4));
    assert_int_equal(rope_new(&rope, &cfg, NULL), 0);
    for (uint32_t pos = 1; pos < 200000; pos = pos * 3 + 1) {
        rope_rows(rope, pos, 1, cs);
        for (int i = 0; i < 32; i++) {
            double angle = yarn_angle(&cfg, i, pos);
            assert_true(fabs((double)cs[i] - magnitude * cos(angle)) < 2e-7);
            assert_true(fabs((double)cs[32 + i] - magnitude * sin(angle)) < 2e-7);
        }
    }
    rope_free(rope);
}

static void test_rope_rotates_the_pairs_of_its_variant(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    const float cs[4] = {0.0f, 1.0f, 1.0f, 0.0f}; /* first pair by 90 degrees, second not at all */
    for (size_t k = 0; k < n_tables; k++) {
        float norm[6] = {1, 2, 3, 4, 5, 6}, neox[6] = {1, 2, 3, 4, 5, 6};
        t[k]->rope_norm(norm, cs, 1, 6, 4);
        t[k]->rope_neox(neox, cs, 1, 6, 4);
        assert_true(norm[0] == -2 && norm[1] == 1 && norm[2] == 3 && norm[3] == 4);
        assert_true(neox[0] == -3 && neox[2] == 1 && neox[1] == 2 && neox[3] == 4);
        assert_true(norm[4] == 5 && norm[5] == 6 && neox[4] == 5 && neox[5] == 6);
    }
}

static void test_rope_refuses_bad_parameters(void **state) {
    (void)state;
    struct rope *r;
    float zero[2] = {1.0f, 0.0f};
    const struct rope_cfg ok = {.n_rot = 4, .base = 10000.0f, .freq_scale = 1.0f};
    struct rope_cfg bad[6] = {ok, ok, ok, ok, ok, ok};
    bad[0].n_rot = 3;
    bad[1].base = 0.5f;
    bad[2].freq_scale = NAN;
    bad[3].freq_factors = zero;
    bad[4].magnitude = -1.0f;
    bad[5].yarn_orig_ctx = 64; /* without its turns */
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(rope_new(&r, &bad[i], NULL), ERR_INVALID);
}

static void test_pick_knows_its_names(void **state) {
    (void)state;
    struct errbuf eb;
    assert_non_null(kernels_pick(NULL, &eb));
    assert_string_equal(kernels_pick("scalar", &eb)->name, "scalar");
    assert_null(kernels_pick("mmx", &eb));
    assert_non_null(strstr(eb.text, "mmx"));
}

int main(int argc, char **argv) {
    int rc = kern_isa_arg(argc, argv);
    if (rc >= 0)
        return rc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_every_length_give_the_bits_of_the_reference),
        cmocka_unit_test(test_rms_norm_is_near_the_double_formula),
        cmocka_unit_test(test_rms_norm_sums_by_index_mod_16_and_then_the_tree),
        cmocka_unit_test(test_exp_is_near_and_ends_where_the_contract_says),
        cmocka_unit_test(test_activations_over_the_whole_range_of_floats),
        cmocka_unit_test(test_softcap_over_the_whole_range_of_floats),
        cmocka_unit_test(test_swiglu_oai_clamps_and_keeps_nans),
        cmocka_unit_test(test_rope_kernels_give_the_bits_of_the_reference),
        cmocka_unit_test(test_rope_angles_are_those_of_the_formula),
        cmocka_unit_test(test_rope_yarn_scales_slow_pairs_and_the_magnitude),
        cmocka_unit_test(test_rope_rotates_the_pairs_of_its_variant),
        cmocka_unit_test(test_rope_refuses_bad_parameters),
        cmocka_unit_test(test_pick_knows_its_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
