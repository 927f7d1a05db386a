/* greedy.h - the choice of temperature 0, apart from the sampler's: the largest logit, the lowest id on ties.
 *
 * Thread: any. */
#pragma once

#include <stdint.h>

static inline int32_t greedy(const float *logits, uint32_t n) {
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[at])
            at = i;
    return (int32_t)at;
}
