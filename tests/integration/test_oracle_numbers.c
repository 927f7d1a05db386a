/* Our forward pass against recorded float64 logits of the same GGUF (tests/golden/numbers/README.md).
 *
 * Each run scores the text's 2,294 tokens and compares every position's distribution with the
 * reference's 256 most likely tokens and the rest. The limits are the accuracy that a user may count
 * on: quantised weights with int8 activations no farther from the float computation than llama.cpp is,
 * float weights practically equal to it.
 *
 * INCIPIT_TEST_GEMMA (tools/dev/get-model gemma3) adds a model with windows. The others need
 * INCIPIT_TEST_MODEL (SmolLM2-135M-Instruct.Q4_1.gguf); the F32 and F16 copies are made from it
 * by mkmodel in a temporary folder. Without the model every test here is skipped. */
#include "tests/support/greedy.h"
#include "tests/integration/oracle_common.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define CHUNK 128 /* rows a step: their logits are 25 MB, Gemma's 134 MB */

struct figures {
    double kl;       /* mean KL divergence from the reference, nats */
    double same;     /* share of positions with the same most likely token */
    double ratio;    /* perplexity, ours over the reference's */
    double ratio_se; /* paired standard error of ratio */
};

/* log sum exp of z[n], in double. */
static double log_z(const float *z, size_t n) {
    double top = z[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        top = MAX(top, (double)z[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)z[i] - top);
    return top + log(sum);
}

/* KL(reference || ours) over the listed tokens and the rest. The listed probabilities are rounded to
 * steps of 1/2048 nat; scaled so that all sum to one, that adds about 1e-8 only. */
static double position_kl(const struct oracle_ref *r, uint32_t pos, const float *z, double lz) {
    double p_sum = 0, q_sum = 0, kl = 0;
    double rest = (double)oracle_rest_lp(r, pos);
    for (uint32_t i = 0; i < r->n_top; i++)
        p_sum += exp(oracle_lp(r, pos, i));
    double scale = log(-expm1(rest) / p_sum);
    for (uint32_t i = 0; i < r->n_top; i++) {
        double p = oracle_lp(r, pos, i) + scale;
        double q = (double)z[oracle_id(r, pos, i)] - lz;
        kl += exp(p) * (p - q);
        q_sum += exp(q);
    }
    return kl + exp(rest) * (rest - log(MAX(1.0 - q_sum, 1e-30)));
}

struct sums {
    double kl, diff, diff2;
    uint32_t same, n;
};

static void add_position(struct sums *s, const struct oracle_ref *r, uint32_t pos, const float *z) {
    double lz = log_z(z, r->n_vocab);
    s->kl += position_kl(r, pos, z, lz);
    s->same += greedy(z, r->n_vocab) == (int32_t)oracle_id(r, pos, 0);
    /* By how many nats we find the text's next token less likely than the reference does. */
    double d = (double)oracle_next_lp(r, pos) - ((double)z[r->tok[pos + 1]] - lz);
    s->diff += d;
    s->diff2 += d * d;
    s->n++;
}

static struct figures score(struct oracle_run *run, const struct oracle_ref *r) {
    struct sums s = {0};
    float *z = calloc((size_t)CHUNK * r->n_vocab, sizeof(*z));
    assert_non_null(z);
    for (uint32_t at = 0; at < r->n_tok; at += CHUNK) {
        uint32_t n = MIN((uint32_t)CHUNK, r->n_tok - at);
        oracle_step(run, r->tok + at, n, at, n, z);
        for (uint32_t i = 0; i < n && at + i + 1 < r->n_tok; i++)
            if ((at + i) % r->stride == 0)
                add_position(&s, r, at + i, z + (size_t)i * r->n_vocab);
    }
    free(z);
    double n = s.n, mean = s.diff / n;
    double var = (s.diff2 - n * mean * mean) / (n - 1);
    struct figures f = {.kl = s.kl / n, .same = s.same / n, .ratio = exp(mean)};
    f.ratio_se = f.ratio * sqrt(MAX(var, 0) / n);
    return f;
}

struct limits {
    const char *what;
    enum oracle_copy copy;
    enum kv_dtype kv;
    const char *ref;
    double kl_max, same_min;
};

static void check(const struct limits *l) {
    struct oracle_ref ref;
    oracle_ref_load(&ref, l->ref);
    struct oracle_run run;
    if (!oracle_run_open(&run, l->copy, l->kv, CHUNK, ref.n_tok)) {
        oracle_ref_free(&ref);
        skip();
    }
    assert_int_equal(run.model->hp.n_vocab, ref.n_vocab);
    struct figures f = score(&run, &ref);
    print_message("%-22s mean KL %.3e (limit %.1e)  same first choice %.2f%% (%.1f%%)  "
                  "perplexity ratio %.5f +- %.5f\n",
                  l->what, f.kl, l->kl_max, 100 * f.same, 100 * l->same_min, f.ratio, f.ratio_se);
    oracle_run_close(&run);
    oracle_ref_free(&ref);
    assert_true(f.kl >= 0 && f.kl <= l->kl_max);
    assert_true(f.same >= l->same_min);
    assert_true(fabs(f.ratio - 1) <= MAX(0.005, 2 * f.ratio_se));
}

static void test_q4_1_is_as_close_as_int8_gets(void **state) {
    (void)state;
    check(
        &(struct limits){"Q4_1, f16 KV", ORACLE_AS_IS, KV_F16, "reference_f32.bin", 4.5e-3, .965});
}

static void test_q4_1_with_f32_kv_is_as_close(void **state) {
    (void)state;
    check(
        &(struct limits){"Q4_1, f32 KV", ORACLE_AS_IS, KV_F32, "reference_f32.bin", 4.5e-3, .965});
}

static void test_f32_weights_equal_the_reference(void **state) {
    (void)state;
    check(&(struct limits){"F32, f32 KV", ORACLE_F32, KV_F32, "reference_f32.bin", 1e-5, .995});
}

static void test_f32_weights_with_f16_kv_stay_near(void **state) {
    (void)state;
    check(&(struct limits){"F32, f16 KV", ORACLE_F32, KV_F16, "reference_f32.bin", 1e-4, .995});
}

static void test_f16_weights_equal_the_reference(void **state) {
    (void)state;
    check(&(struct limits){"F16, f32 KV", ORACLE_F16, KV_F32, "reference_f16.bin", 1e-5, .995});
}

static void test_f16_weights_with_f16_kv_stay_near(void **state) {
    (void)state;
    check(&(struct limits){"F16, f16 KV", ORACLE_F16, KV_F16, "reference_f16.bin", 1e-4, .995});
}

/* 3,000 tokens, six windows of most layers; mixed K-quants. */
static void test_gemma3_is_as_close_as_int8_gets(void **state) {
    (void)state;
    check(&(struct limits){"Gemma 3, f16 KV", ORACLE_GEMMA, KV_F16, "reference_gemma3.bin", 4.5e-3,
                           .96});
}

int main(int argc, char **argv) {
    oracle_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_q4_1_is_as_close_as_int8_gets),
        cmocka_unit_test(test_gemma3_is_as_close_as_int8_gets),
        cmocka_unit_test(test_q4_1_with_f32_kv_is_as_close),
        cmocka_unit_test(test_f32_weights_equal_the_reference),
        cmocka_unit_test(test_f32_weights_with_f16_kv_stay_near),
        cmocka_unit_test(test_f16_weights_equal_the_reference),
        cmocka_unit_test(test_f16_weights_with_f16_kv_stay_near),
    };
    int rv = cmocka_run_group_tests(tests, NULL, NULL);
    oracle_exit();
    return rv;
}
