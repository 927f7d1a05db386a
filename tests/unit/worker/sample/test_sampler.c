/* test_sampler.c - filters, ties, the seeded draw and log-probabilities. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/sample/sampler.h"

#define N 8

static struct sampler *make(uint32_t n) {
    struct sampler *s = NULL;
    assert_int_equal(sampler_new(&s, n), 0);
    return s;
}

/* Tokens that were drawn in 4,000 positions, as a bit set. */
static uint32_t drawn(const struct sample_params *p, const float *logits) {
    struct sampler *s = make(N);
    uint32_t set = 0;
    for (uint64_t pos = 0; pos < 4000; pos++)
        set |= 1u << sampler_pick(s, p, logits, pos);
    sampler_free(s);
    return set;
}

static const float LOGITS[N] = {0.f, 3.f, 1.f, 3.f, -1.f, 2.f, -50.f, 2.5f};

static void test_greedy_takes_lowest_id_of_equals(void **state) {
    (void)state;
    struct sampler *s = make(N);
    struct sample_params p = {.temperature = 0, .top_p = 1};
    assert_int_equal(sampler_pick(s, &p, LOGITS, 7), 1);
    float all_nan[N];
    for (int i = 0; i < N; i++)
        all_nan[i] = NAN;
    assert_int_equal(sampler_pick(s, &p, all_nan, 0), 0);
    all_nan[5] = -3.f;
    assert_int_equal(sampler_pick(s, &p, all_nan, 0), 5);
    p.temperature = 1;
    assert_int_equal(sampler_pick(s, &p, all_nan, 0), 5);
    sampler_free(s);
}

static void test_top_k_keeps_the_k_likeliest(void **state) {
    (void)state;
    struct sample_params p = {.temperature = 1, .top_p = 1, .seed = 1};
    p.top_k = 1;
    assert_int_equal(drawn(&p, LOGITS), 1u << 1); /* 1 and 3 are equal: the lower id */
    p.top_k = 2;
    assert_int_equal(drawn(&p, LOGITS), 1u << 1 | 1u << 3);
    p.top_k = 3;
    assert_int_equal(drawn(&p, LOGITS), 1u << 1 | 1u << 3 | 1u << 7);
    p.top_k = 0;
    assert_int_equal(drawn(&p, LOGITS), 0xbf); /* all but e^-53 */
}

static void test_top_p_keeps_the_smallest_set_that_reaches_p(void **state) {
    (void)state;
    /* e^3 twice, e^2.5, e^2, ... : probabilities .306 .306 .186 .113 .042 .015 .006 */
    struct sample_params p = {.temperature = 1, .seed = 2};
    p.top_p = 0.3f;
    assert_int_equal(drawn(&p, LOGITS), 1u << 1);
    p.top_p = 0.5f;
    assert_int_equal(drawn(&p, LOGITS), 1u << 1 | 1u << 3);
    p.top_p = 0.75f;
    assert_int_equal(drawn(&p, LOGITS), 1u << 1 | 1u << 3 | 1u << 7);
    p.top_k = 3; /* p of what top-k left: .383 .383 .233 */
    p.top_p = 0.7f;
    assert_int_equal(drawn(&p, LOGITS), 1u << 1 | 1u << 3);
    p.top_p = 0; /* never empty */
    assert_int_equal(drawn(&p, LOGITS), 1u << 1);
}

static void test_min_p_is_relative_to_the_likeliest(void **state) {
    (void)state;
    struct sample_params p = {.temperature = 1, .top_p = 1, .min_p = 0.5f, .seed = 3};
    assert_int_equal(drawn(&p, LOGITS), 1u << 1 | 1u << 3 | 1u << 7); /* e^-.5 = .61, e^-1 = .37 */
    p.min_p = 0.3f;
    assert_int_equal(drawn(&p, LOGITS), 1u << 1 | 1u << 3 | 1u << 7 | 1u << 5);
    p.min_p = 1.f;
    assert_int_equal(drawn(&p, LOGITS), 1u << 1 | 1u << 3);
    p.temperature = 2; /* e^-.25, e^-.5 */
    p.min_p = 0.6f;
    assert_int_equal(drawn(&p, LOGITS), 1u << 1 | 1u << 3 | 1u << 7 | 1u << 5);
}

static void test_draw_follows_the_distribution(void **state) {
    (void)state;
    const float logits[4] = {0.f, logf(2.f), logf(3.f), logf(4.f)}; /* .1 .2 .3 .4 */
    struct sampler *s = make(4);
    struct sample_params p = {.temperature = 1, .top_p = 1, .seed = 42};
    const int n = 200000;
    int hist[4] = {0};
    for (int i = 0; i < n; i++)
        hist[sampler_pick(s, &p, logits, (uint64_t)i)]++;
    for (int i = 0; i < 4; i++) /* five standard deviations */
        assert_true(fabs(hist[i] / (double)n - 0.1 * (i + 1)) < 5 * sqrt(0.24 / n));
    sampler_free(s);
}

static void test_draw_depends_on_seed_and_position_alone(void **state) {
    (void)state;
    struct sampler *a = make(N), *b = make(N);
    struct sample_params p = {.temperature = 1.3f, .top_p = 0.95f, .top_k = 5, .seed = 9}, q = p;
    q.seed = 10;
    int same = 0;
    for (uint64_t pos = 0; pos < 500; pos++) {
        int32_t t = sampler_pick(a, &p, LOGITS, pos);
        (void)sampler_pick(b, &q, LOGITS, pos + 17);
        assert_int_equal(sampler_pick(b, &p, LOGITS, pos), t);
        same += sampler_pick(b, &q, LOGITS, pos) == t;
    }
    assert_in_range(same, 50, 300); /* another seed is another sequence */
    sampler_free(a);
    sampler_free(b);
}

/* Values fixed once: a change would change every seeded answer. */
static void test_random_golden(void **state) {
    (void)state;
    assert_int_equal(sample_random(0, 0), 0x57b74577e39d30beull);
    assert_int_equal(sample_random(1, 0), 0xcc8a45b929f9cd56ull);
    assert_int_equal(sample_random(0, 1), 0x73f5d07973c29620ull);
    assert_int_equal(sample_random(UINT64_MAX, 12345), 0x6c8d310e299e67a5ull);
}

static void test_exp_log_agree_with_libm(void **state) {
    (void)state;
    for (int i = 0; i < 20000; i++) {
        double x = -700.0 * i / 20000.0 - 1e-9;
        double want = exp(x);
        assert_true(fabs(sample_exp(x) - want) <= 4e-16 * want);
        double y = exp((i - 10000) / 100.0) * (1 + i * 1e-7);
        double ref = log(y);
        assert_true(fabs(sample_log(y) - ref) <= 4e-16 * fabs(ref) + 1e-18);
    }
    assert_true(sample_exp(0) == 1.0);
    assert_true(sample_exp(-701) == 0.0);
    assert_true(sample_exp(-INFINITY) == 0.0);
    assert_true(sample_log(1.0) == 0.0);
}

static void test_logprobs_are_a_log_softmax_with_ties_by_id(void **state) {
    (void)state;
    struct sampler *s = make(N);
    struct sample_logprob top[5];
    float lp = sampler_logprobs(s, LOGITS, 2, 5, top);
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += exp((double)LOGITS[i]);
    assert_true(fabs((double)lp - (1.0 - log(sum))) < 1e-6);
    const int32_t want[5] = {1, 3, 7, 5, 2};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(top[i].id, want[i]);
        assert_true(fabs((double)top[i].logprob - ((double)LOGITS[want[i]] - log(sum))) < 1e-6);
    }
    assert_true(sampler_logprobs(s, LOGITS, 1, 0, NULL) == top[0].logprob);
    sampler_free(s);
}

#define V 3000
struct ref {
    float logit;
    int32_t id;
    double p;
};

static int by_likelihood(const void *pa, const void *pb) {
    const struct ref *a = pa, *b = pb;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* The definition, by sorting everything. */
static int32_t ref_pick(const struct sample_params *p, const float *logits, uint64_t pos) {
    static struct ref c[V];
    double max = -1e30, sum = 0, cum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < V; i++)
        max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < V; i++) {
        double q = sample_exp(((double)logits[i] - max) * (1.0 / (double)p->temperature));
        if (q > 1e-26 && q >= (double)p->min_p)
            c[n++] = (struct ref){logits[i], (int32_t)i, q};
    }
    uint32_t k = p->top_k && p->top_k < n ? p->top_k : n;
    bool sorted = k < n || p->top_p < 1.f;
    if (sorted)
        qsort(c, n, sizeof(c[0]), by_likelihood);
    for (uint32_t i = 0; i < k; i++)
        sum += c[i].p;
    uint32_t kept = k;
    for (uint32_t i = 0; i < k && p->top_p < 1.f; i++) {
        cum += c[i].p;
        kept = i + 1;
        if (cum >= (double)p->top_p * sum)
            break;
    }
    sum = cum = 0;
    for (uint32_t i = 0; i < kept; i++)
        sum += c[i].p;
    double at = (double)(sample_random(p->seed, pos) >> 11) * 0x1p-53 * sum;
    for (uint32_t i = 0; i < kept; i++) { /* filtered: from the least likely on */
        const struct ref *x = &c[sorted ? kept - 1 - i : i];
        cum += x->p;
        if (at < cum)
            return x->id;
    }
    return -1;
}

static void test_every_mixture_of_filters_agrees_with_a_sort(void **state) {
    (void)state;
    static float logits[V];
    struct sampler *s = make(V);
    uint32_t n_differ = 0;
    for (uint64_t round = 0; round < 1000; round++) {
        uint64_t r = sample_random(77, round);
        /* flat to peaked, many ties */
        float spread = (float)(1 + r % 40), steps = (float)(1 + (r >> 8) % 500);
        for (uint32_t i = 0; i < V; i++)
            logits[i] =
                floorf((float)(sample_random(round, i) >> 40) * 0x1p-24f * steps) / steps * spread;
        const float top_ps[] = {1.f, 0.99f, 0.9f, 0.5f, 0.1f, 0.f};
        const float min_ps[] = {0.f, 0.f, 0.01f, 0.3f};
        const uint32_t top_ks[] = {0, 1, 5, 40, 500, 2999, 5000};
        struct sample_params p = {.temperature = 0.2f + (float)((r >> 20) % 20) / 10.f,
                                  .top_p = top_ps[(r >> 30) % 6],
                                  .min_p = min_ps[(r >> 36) % 4],
                                  .top_k = top_ks[(r >> 40) % 7],
                                  .seed = round};
        for (uint64_t pos = 0; pos < 3; pos++)
            n_differ += sampler_pick(s, &p, logits, pos) != ref_pick(&p, logits, pos);
    }
    /* sums in another order may differ in their last bit and then, once in a long while, in a token */
    assert_true(n_differ <= 2);
    sampler_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_takes_lowest_id_of_equals),
        cmocka_unit_test(test_top_k_keeps_the_k_likeliest),
        cmocka_unit_test(test_top_p_keeps_the_smallest_set_that_reaches_p),
        cmocka_unit_test(test_min_p_is_relative_to_the_likeliest),
        cmocka_unit_test(test_draw_follows_the_distribution),
        cmocka_unit_test(test_draw_depends_on_seed_and_position_alone),
        cmocka_unit_test(test_random_golden),
        cmocka_unit_test(test_exp_log_agree_with_libm),
        cmocka_unit_test(test_logprobs_are_a_log_softmax_with_ties_by_id),
        cmocka_unit_test(test_every_mixture_of_filters_agrees_with_a_sort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
