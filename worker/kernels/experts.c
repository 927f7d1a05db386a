/* experts.c - the router's choice; kernels_ref.c's exp. */
#include "worker/kernels/experts.h"

#include <math.h>

#include "common/check.h"
#include "worker/kernels/kern_impl.h"

/* a comes before b: larger, or as large with the lower id. */
static bool is_before(const float *logits, uint32_t a, uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Ids of the largest, in order, by insertion: n_used is small. */
static void choose(const float *logits, uint32_t n, uint32_t n_used, uint32_t *id) {
    uint32_t have = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (have == n_used && !is_before(logits, e, id[have - 1]))
            continue;
        uint32_t at = have < n_used ? have++ : have - 1;
        for (; at > 0 && is_before(logits, e, id[at - 1]); at--)
            id[at] = id[at - 1];
        id[at] = e;
    }
}

static bool usable(const float *logits, uint32_t n) {
    float most = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return false;
        most = MAX(most, logits[i]);
    }
    return isfinite(most);
}

bool experts_choose(const float *logits, uint32_t n, uint32_t n_used, struct expert_choice *ret) {
    CHECK(n_used >= 1 && n_used <= n && n_used <= EXPERTS_MAX_USED);
    uint32_t id[EXPERTS_MAX_USED];
    float p[EXPERTS_MAX_USED], sum = 0.0f;
    for (uint32_t i = 0; i < n_used; i++)
        ret[i] = (struct expert_choice){.id = i};
    if (!usable(logits, n))
        return false;
    choose(logits, n, n_used, id);
    for (uint32_t i = 0; i < n_used; i++) {
        p[i] = kern_ref_exp(logits[id[i]] - logits[id[0]]);
        sum += p[i];
    }
    const float r = 1.0f / sum;
    for (uint32_t i = 0; i < n_used; i++) {
        uint32_t at = 0; /* place by ascending id */
        for (uint32_t k = 0; k < n_used; k++)
            at += id[k] < id[i];
        ret[at] = (struct expert_choice){id[i], p[i] * r};
    }
    return true;
}
