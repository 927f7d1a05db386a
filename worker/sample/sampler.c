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

static uint32_t argmax(const float *logits, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (sane(logits[i]) > sane(logits[best]))
            best = i;
    return best;
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

static uint32_t collect(struct sampler *s, const struct sample_params *p, const float *logits, float max) {
    double inv_t = 1.0 / (double)p->temperature;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        float l = sane(logits[i]);
        double z = l < max ? ((double)l - (double)max) * inv_t : 0.0;
        if (z < Z_MIN)
            continue;
        double q = sample_exp(z);
        if (q < (double)p->min_p)
            continue;
        s->cand[n++] = (struct cand){.logit = l, .id = (int32_t)i, .p = q};
    }
    return n;
}

static double sum_p(const struct cand *c, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += c[i].p;
    return sum;
}

/* Applies top-k and top-p. The kept ones end at s->cand + *n, likeliest last; returns their number. */
static uint32_t filter(struct sampler *s, const struct sample_params *p, uint32_t n) {
    bool top_p = p->top_p < 1.0f;
    uint32_t k = p->top_k && p->top_k < n ? p->top_k : n;
    if (k == n && !top_p)
        return n;
    double total = sum_p(s->cand, n);
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(s->cand, n, i);
    if (k < n && top_p) { /* top-p is over what top-k left */
        for (uint32_t i = 0; i < k; i++)
            pop_best(s->cand, n - i);
        total = sum_p(s->cand + (n - k), k);
        double cum = 0;
        for (uint32_t i = 0; i < k; i++) {
            cum += s->cand[n - 1 - i].p;
            if (cum >= (double)p->top_p * total)
                return i + 1;
        }
        return k;
    }
    double cum = 0;
    for (uint32_t i = 0; i < k; i++) {
        cum += pop_best(s->cand, n - i)->p;
        if (top_p && cum >= (double)p->top_p * total)
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
    uint32_t kept = filter(s, p, n);
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
    double max = (double)sane(logits[argmax(logits, s->n_vocab)]), sum = 0;
    struct cand top[SAMPLE_MAX_TOP + 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        struct cand c = {.logit = sane(logits[i]), .id = (int32_t)i};
        sum += sample_exp((double)c.logit - max);
        if (!n_top || (n == n_top && !before(&c, &top[n - 1])))
            continue;
        uint32_t at = n < n_top ? n++ : n - 1; /* insertion: n_top is small */
        for (; at > 0 && before(&c, &top[at - 1]); at--)
            top[at] = top[at - 1];
        top[at] = c;
    }
    double lse = max + sample_log(sum);
    for (uint32_t i = 0; i < n_top; i++)
        ret_top[i] = i < n ? (struct sample_logprob){top[i].id, (float)((double)top[i].logit - lse)}
                           : (struct sample_logprob){-1, -INFINITY};
    return (float)((double)sane(logits[id]) - lse);
}
