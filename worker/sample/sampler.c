/* sampler.c - SAMPLING: temperature, min-p, top-k, top-p, seeded draw; log-probabilities.
 *
 * One pass turns logits into candidates (relative probabilities, the likeliest is 1). Where order
 * matters (top-k, top-p) the candidates become a heap and only as many are popped as are kept, which for
 * usual settings is a few dozen of tens of thousands. */
#include "worker/sample/sampler.h"

#include <math.h>

#include "common/check.h"
#include "common/err.h"

struct cand {
    float logit;
    int32_t id;
    double p; /* exp((logit - max) / temperature) */
};

struct sampler {
    uint32_t n_vocab;
    struct cand *cand; /* [n_vocab] */
};

/* Below this the relative probability (1e-26) cannot matter to a 53-bit draw. */
static const double Z_MIN = -60.0;

int sampler_new(struct sampler **ret, uint32_t n_vocab) {
    struct sampler *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->n_vocab = n_vocab;
    s->cand = alloc_array(n_vocab, sizeof(*s->cand));
    if (!s->cand) {
        free(s);
        return ERR_NOMEM;
    }
    *ret = s;
    return 0;
}

void sampler_free(struct sampler *s) {
    if (!s)
        return;
    free(s->cand);
    free(s);
}

static float sane(float logit) {
    return logit == logit ? logit : -INFINITY;
}

#define LANES 16

/* The largest logit; minus infinity when there is none. Lanes, so that no comparison waits for the one
 * before it. A NaN compares false and so never wins. */
static float max_logit(const float *logits, uint32_t n) {
    float m[LANES];
    uint32_t i = 0;
    for (uint32_t j = 0; j < LANES; j++)
        m[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++)
            m[j] = logits[i + j] > m[j] ? logits[i + j] : m[j];
    for (; i < n; i++)
        m[0] = logits[i] > m[0] ? logits[i] : m[0];
    for (uint32_t j = 1; j < LANES; j++)
        m[0] = m[j] > m[0] ? m[j] : m[0];
    return m[0];
}

/* Lowest id of the largest logit; 0 when all are minus infinity or NaN. */
static uint32_t argmax(const float *logits, uint32_t n) {
    float m = max_logit(logits, n);
    for (uint32_t i = 0; i < n && m > -INFINITY; i++)
        if (logits[i] == m)
            return i;
    return 0;
}

/* a before b: likelier, and of equals the lower id */
static bool before(const struct cand *a, const struct cand *b) {
    return a->logit > b->logit || (!(a->logit < b->logit) && a->id < b->id);
}

static void sift_down(struct cand *h, uint32_t n, uint32_t i) {
    struct cand c = h[i];
    for (;;) {
        uint32_t k = 2 * i + 1;
        if (k >= n)
            break;
        if (k + 1 < n && before(&h[k + 1], &h[k]))
            k++;
        if (!before(&h[k], &c))
            break;
        h[i] = h[k];
        i = k;
    }
    h[i] = c;
}

/* The best of h[0..n) moves to h[n-1]; what remains is a heap of n-1. */
static struct cand *pop_best(struct cand *h, uint32_t n) {
    struct cand top = h[0];
    h[0] = h[n - 1];
    h[n - 1] = top;
    sift_down(h, n - 1, 0);
    return &h[n - 1];
}

/* Relative probabilities of logits[0..m), m <= 8; 0 below Z_MIN. */
static void probs8(const float *logits, uint32_t m, float max, double inv_t, double ret[8]) {
    double z[8];
    for (uint32_t j = 0; j < 8; j++) {
        double d = j < m ? ((double)logits[j] - (double)max) * inv_t : Z_MIN;
        z[j] = d >= Z_MIN ? MIN(d, 0.0) : Z_MIN; /* NaN too */
    }
    sample_exp8(z, ret);
    for (uint32_t j = 0; j < 8; j++)
        ret[j] = z[j] > Z_MIN ? ret[j] : 0.0;
}

static uint32_t collect(struct sampler *s, const struct sample_params *p, const float *logits,
                        float max) {
    double inv_t = 1.0 / (double)p->temperature, q[8], min_p = (double)p->min_p;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i += 8) {
        uint32_t m = MIN(s->n_vocab - i, 8u);
        probs8(logits + i, m, max, inv_t, q);
        for (uint32_t j = 0; j < m; j++)
            if (q[j] > 0 && q[j] >= min_p)
                s->cand[n++] =
                    (struct cand){.logit = logits[i + j], .id = (int32_t)(i + j), .p = q[j]};
    }
    return n;
}

static double sum_p(const struct cand *c, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += c[i].p;
    return sum;
}

/* Moves the candidates of at least min_p to the front; returns their number. */
static uint32_t partition(struct cand *c, uint32_t n, double min_p) {
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].p < min_p)
            continue;
        struct cand t = c[k];
        c[k++] = c[i];
        c[i] = t;
    }
    return k;
}

/* How many candidates, at the front, are sure to hold everything that top-k and top-p can keep: only they
 * need an order. Usually a few dozen of tens of thousands. */
static uint32_t narrow(struct cand *c, uint32_t n, uint32_t k, double mass) {
    static const double levels[] = {5e-2, 1e-3, 1e-5};
    for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
        uint32_t m = partition(c, n, levels[i]);
        if (m >= k || (mass > 0 && sum_p(c, m) >= mass * (1 + 1e-9)))
            return m;
    }
    return n;
}

/* Applies top-k and top-p. Kept are cand[*ret_n - kept .. *ret_n), likeliest last, or all n as they are. */
static uint32_t filter(struct sampler *s, const struct sample_params *p, uint32_t n,
                       uint32_t *ret_n) {
    bool by_p = p->top_p < 1.0f, by_k = p->top_k && p->top_k < n;
    uint32_t k = by_k ? p->top_k : n;
    *ret_n = n;
    if (!by_k && !by_p)
        return n;
    double mass = by_k ? 0 : (double)p->top_p * sum_p(s->cand, n);
    *ret_n = n = narrow(s->cand, n, k, mass);
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(s->cand, n, i);
    if (by_k) {
        for (uint32_t i = 0; i < k; i++)
            pop_best(s->cand, n - i);
        if (!by_p)
            return k;
        mass = (double)p->top_p * sum_p(s->cand + (n - k), k); /* of what top-k leaves */
    }
    k = MIN(k, n);
    double cum = 0;
    for (uint32_t i = 0; i < k; i++) {
        cum += by_k ? s->cand[n - 1 - i].p : pop_best(s->cand, n - i)->p;
        if (cum >= mass)
            return i + 1;
    }
    return k;
}

int32_t sampler_pick(struct sampler *s, const struct sample_params *p, const float *logits,
                     uint64_t position) {
    uint32_t best = argmax(logits, s->n_vocab);
    if (!(p->temperature > 0.0f) || !(sane(logits[best]) > -INFINITY))
        return (int32_t)best;
    uint32_t n = collect(s, p, logits, logits[best]);
    if (n <= 1) /* none only if min_p > 1 */
        return (int32_t)best;
    uint32_t kept = filter(s, p, n, &n);
    const struct cand *c = s->cand + (n - kept);
    double u = (double)(sample_random(p->seed, position) >> 11) * 0x1p-53;
    double at = u * sum_p(c, kept), cum = 0;
    for (uint32_t i = 0; i < kept; i++) {
        cum += c[i].p;
        if (at < cum)
            return c[i].id;
    }
    return c[kept - 1].id; /* rounding of the last sum */
}

float sampler_logprobs(struct sampler *s, const float *logits, int32_t id, uint32_t n_top,
                       struct sample_logprob *ret_top) {
    CHECK(n_top <= SAMPLE_MAX_TOP && id >= 0 && (uint32_t)id < s->n_vocab);
    float max = max_logit(logits, s->n_vocab);
    double sum = 0, q[8];
    struct cand top[SAMPLE_MAX_TOP + 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i += 8) {
        uint32_t m = MIN(s->n_vocab - i, 8u);
        probs8(logits + i, m, max, 1.0, q);
        for (uint32_t j = 0; j < m; j++)
            sum += q[j];
    }
    for (uint32_t i = 0; i < s->n_vocab && n_top; i++) {
        struct cand c = {.logit = sane(logits[i]), .id = (int32_t)i};
        if (n == n_top && !before(&c, &top[n - 1]))
            continue;
        uint32_t at = n < n_top ? n++ : n - 1; /* insertion: n_top is small */
        for (; at > 0 && before(&c, &top[at - 1]); at--)
            top[at] = top[at - 1];
        top[at] = c;
    }
    double lse = (double)max + sample_log(sum);
    for (uint32_t i = 0; i < n_top; i++)
        ret_top[i] = i < n ? (struct sample_logprob){top[i].id, (float)((double)top[i].logit - lse)}
                           : (struct sample_logprob){-1, -INFINITY};
    return (float)((double)sane(logits[id]) - lse);
}
