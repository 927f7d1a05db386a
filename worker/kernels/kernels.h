/* kernels.h - operations of the forward pass, one table per instruction set, chosen once.
 *
 * EXACTNESS (contract version KERN_CONTRACT_VERSION). Row r of every operation depends only on that
 * row's inputs and the weights: never on batch size, chunk, slot, thread count or instruction set.
 * kernels_ref.c (plain C with fmaf) is the definition; the other tables give the same bits. All
 * arithmetic is IEEE single with round to nearest even, denormals kept; rounded operations are
 * + - * / sqrt fma, in exactly the order below. No libm call but fmaf and sqrtf.
 *
 *   tree16(a)      a[l] += a[l+8] for l < 8, then a[l+4] for l < 4, a[l+2], a[l+1]; the sum is a[0].
 *   activations    per row and 32-block: amax = largest |x|; below 2^-100 the block is all zero
 *                  with scale 0. Else da = amax / 127, q[i] = rint_even(x[i] * (127 / amax)),
 *                  sa = da * (float)sum(q).
 *   quantised W    per output: acc = +0; for each 32-block b in order: idot = sum over the block of
 *                  (u - offset) * q, an exact integer; t = dw * (float)idot; acc = fma(t, da, acc);
 *                  types with a min: acc = fma(mw, sa, acc). dw, mw are the file's f16.
 *   float W        per output: acc = +0; for k ascending: acc = fma(w[k], x[k], acc).
 *   rms_norm       16 lanes by index mod 16: lane = fma(x, x, lane) ascending; s = tree16(lanes);
 *                  r = 1 / sqrt(s / n + eps); y = (x * r) * w.
 *   rope           pair (a, b): a' = fma(a, c, -(b * s)), b' = fma(b, c, a * s).
 *   exp            0 below -60, argument capped at 88; else n = rint_even(x * log2 e),
 *                  polynomial in kernels_ref.c, times 2^n.
 *   silu_mul       y = (g / (1 + exp(-g))) * u.
 *   attention      q' = q * scale; score = fma chain over ascending d of q'[d] * k[d]; m = exact
 *                  maximum; p = exp(score - m); z = tree16 of 16 lane sums by position mod 16,
 *                  ascending; o[d] = fma chain over ascending positions of p * v[d], times (1 / z).
 *   sin, cos       rope.c: angles, series and reduction in double with + - * / only, rounded to
 *                  single once.
 *   K, V to f16    round to nearest even; attention of the same step reads the rounded values.
 *
 * NaNs stay NaNs, but their payload is not part of the contract. Why sums are cut in 16 lanes and
 * outputs are interleaved by 16: that is what AVX-512 and two AVX2 registers do without a shuffle,
 * and each output stays one chain that scalar code can follow.
 *
 * Thread: every operation may run on any thread; none allocates.
 * Memory: pointers need no alignment beyond their type's; in and out may be the same row where it
 *         says so. */
#pragma once

#include "common/err.h"

#define KERN_CONTRACT_VERSION 1

struct kern_impl; /* private to worker/kernels: tiles of products and attention (kern_impl.h) */

struct kern_ops {
    const char *name; /* "scalar", "avx2", "avx512" */

    /* y[n] = rms_norm(x[n]) * w[n]. y may be x. */
    void (*rms_norm)(float *y, const float *x, const float *w, size_t n, float eps);

    /* Rotates the first n_rot of each head's head_dim floats of x [n_head, head_dim] in place.
     * cs is one position's row of rope_rows(): cos[n_rot/2], sin[n_rot/2].
     * norm: pairs (2i, 2i+1); neox: pairs (i, i + n_rot/2). */
    void (*rope_norm)(float *x, const float *cs, size_t n_head, size_t head_dim, size_t n_rot);
    void (*rope_neox)(float *x, const float *cs, size_t n_head, size_t head_dim, size_t n_rot);

    /* y[i] = silu(gate[i]) * up[i]. y may be gate or up. */
    void (*silu_mul)(float *y, const float *gate, const float *up, size_t n);
    /* y[i] += x[i]: residuals and biases. */
    void (*add)(float *y, const float *x, size_t n);

    const struct kern_impl *impl;
};

/* |x[i]| < limit for all i; a NaN is not. */
bool kern_all_below(const float *x, size_t n, float limit);

/* isa NULL: the best this CPU has. Else "scalar", "avx2" or "avx512"; NULL with a text when the name
 * is unknown or the CPU or the build lacks it. */
const struct kern_ops *kernels_pick(const char *isa, struct errbuf *eb);

/* RoPE angles. */
struct rope_cfg {
    uint32_t n_rot; /* rotated floats of a head, even */
    float base; /* rope.freq_base */
    float freq_scale; /* linear scaling: 1 / factor; 1 without */
    const float *freq_factors; /* [n_rot/2] divisors (rope_freqs.weight) or NULL; copied */
};
struct rope; /* opaque, read-only after rope_new() */
int rope_new(struct rope **ret, const struct rope_cfg *cfg, struct errbuf *eb);
void rope_free(struct rope *r); /* NULL is a no-op */
/* cs [n, n_rot]: for each position pos0 .. pos0+n-1 first cos[n_rot/2], then sin[n_rot/2]. About
 * 1 microsecond a position; the same for all layers and heads, so compute it once a step. */
void rope_rows(const struct rope *r, uint32_t pos0, uint32_t n, float *cs);
