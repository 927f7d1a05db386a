/* experts.h - which experts compute a row, and with what weights.
 *
 * The words are kernels.h's ("experts"). Thread: any. Nothing allocates. */
#pragma once

#include "common/compiler.h"

#define EXPERTS_MAX_USED 64

struct expert_choice {
    uint32_t id;
    float weight;
};

/* The n_used largest of n logits and their softmax, by ascending id: ret [n_used]. False when a logit is a NaN
 * or none is finite; ret is then the first n_used experts with weight 0. n_used <= n, at most EXPERTS_MAX_USED. */
bool experts_choose(const float *logits, uint32_t n, uint32_t n_used, struct expert_choice *ret);
