/* sampler.h - from one row of logits to one token, and to log-probabilities.
 *
 * The result depends on the logits' bits, the parameters and the position alone: the generator is
 * counter-based on (seed, position), so a token does not depend on what was sampled before or beside it.
 * exp and log are our own, in double precision from additions and multiplications only, so that the same
 * logits give the same token on every CPU and C library.
 *
 * Order of the filters: temperature, min-p, top-k, top-p over what the first two left. Equal logits are
 * ordered by the lowest id, in greedy choice, top-k, top-p and top_logprobs alike.
 *
 * Thread:  one owner (the engine thread).
 * Memory:  scratch for n_vocab candidates in sampler_new(); nothing allocates later. */
#pragma once

#include "common/compiler.h"

#define SAMPLE_MAX_TOP 20 /* OpenAI's bound of top_logprobs */

struct sample_params {
    float temperature; /* 0: greedy, and all that follows is without effect */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    uint32_t top_k;    /* 0: off */
    uint64_t seed;
};

struct sample_logprob {
    int32_t id;
    float logprob; /* natural logarithm, of the raw logits' softmax */
};

struct sampler; /* opaque */

int sampler_new(struct sampler **ret, uint32_t n_vocab); /* 0 or ERR_NOMEM */
void sampler_free(struct sampler *s);                    /* NULL is a no-op */

/* logits [n_vocab] f32; a NaN is taken for minus infinity. position: of the token to be chosen. */
int32_t sampler_pick(struct sampler *s, const struct sample_params *p, const float *logits,
                     uint64_t position);

/* Log-probability of id, and of the n_top (at most SAMPLE_MAX_TOP and n_vocab) likeliest tokens in
 * ret_top, likeliest first. From the raw logits: temperature and filters do not enter. */
float sampler_logprobs(struct sampler *s, const float *logits, int32_t id, uint32_t n_top,
                       struct sample_logprob *ret_top);

/* 64 random bits that depend on nothing but (seed, counter). */
uint64_t sample_random(uint64_t seed, uint64_t counter);
/* exp(x) for x <= 0, 0 below -700; log(x) for x > 0. Within 2 units in the last place. */
double sample_exp(double x);
void sample_exp8(const double x[8], double ret[8]); /* eight of the same, x in [-700, 0] */
double sample_log(double x);
