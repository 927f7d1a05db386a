/* exact_points.h - which combinations of conditions the exactness test visits.
 *
 * A point gives one value to each factor. exact_points_pairs() returns a small set of points in which
 * every pair of values of every two factors occurs together at least once (a greedy covering array).
 * Thread: any. */
#pragma once

#include "common/compiler.h"

enum exact_factor {
    FACTOR_SOURCE,  /* cold, own pages, fetched copies */
    FACTOR_REUSE,   /* reused blocks, in sixteenths of what a lookup may name */
    FACTOR_CHUNK,   /* rows a step */
    FACTOR_BATCH,   /* sequences a step, 1..8 */
    FACTOR_SLOT,    /* place of the judged sequence among them */
    FACTOR_THREADS, /* 1, 2 */
    FACTOR_ISA,     /* scalar, avx2, avx512 */
    FACTOR_MODEL,   /* weight type or architecture */
    FACTOR_KV,      /* dtypes of K and of V */
    FACTOR_BLOCK,   /* tokens a page */
    FACTOR_LENGTH,  /* tokens of the prompt */
    N_FACTORS
};

struct exact_point {
    uint8_t v[N_FACTORS];
};

/* n_values[f] values a factor. Returns the number of points, *ret is the caller's to free. */
size_t exact_points_pairs(const uint8_t n_values[N_FACTORS], uint64_t seed,
                          struct exact_point **ret);
struct exact_point exact_point_random(const uint8_t n_values[N_FACTORS], uint64_t *rng);
uint64_t exact_random(uint64_t *rng); /* splitmix64 */
