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
 *   gelu_mul       t = .79788456 * fma((.044715 * g) * g, g, g); y = (g / (1 + exp(-2 * t))) * u.
 *   swiglu_oai     g = min(g, 7), u = min(max(u, -7), 7); y = (g / (1 + exp(-(1.702 * g)))) * (u + 1).
 *   softcap        c * tanh(x / c), with a = |x / c|: below 2^-4 fma(a * a^2, p, a), p = fma(a^2,
 *                  fma(a^2, -17/315, 2/15), -1/3); else 1 - 2 / (exp(2 * a) + 1); the sign of x.
 *   scale          y = y * c.
 *   attention      q' = q * scale; score = fma chain over ascending d of q'[d] * k[d], softcapped where
 *                  the layer says so; m = exact maximum; p = exp(score - m); z = tree16 of 16 lane sums
 *                  by position mod 16, ascending; o[d] = fma chain over ascending positions of p * v[d],
 *                  times (1 / z). Window W: over positions max(0, i - W + 1) .. i, nothing else is a term.
 *                  Sink: joins the maximum, its exp(sink - m) is added to z after the tree.
 *   sin, cos       rope.c: angles, series and reduction in double with + - * / only, rounded to
 *                  single once.
 *   K, V to f16    round to nearest even; attention of the same step reads the rounded values.
 *   K, V to q8_0   and q4_0: kv_quant_row(), once, when the row is stored.
 *   experts        the router is float W. Order by logit descending, then id ascending; over the chosen, in
 *                  that order, sum of exp(logit - first); weight = exp times (1 / sum). Output:
 *                  acc = fma(weight, y, acc) by ascending id from +0. Grouping rows changes nothing.
 *   finite         a row whose K or V is not finite in the page's dtype, or whose logits have no finite
 *                  maximum (a router's too), is an error; nothing of it is shared.
 *
 * Fixed here, and to be computed so by whoever adds it (its outputs then join the self-test):
 *
 *   K-quants       unit = 32 columns, ascending; activations as above give i8 q, da, sa = da * (float)sum(q).
 *                  idot = sum w*q; idot16_0, idot16_1 and s0, s1: sums of w*q and q of the unit's halves;
 *                  sc, m of the unit; sc0, sc1, m0, m1 of its halves. t = dw * (float)I,
 *                  acc = fma(t, da, acc), then the unit's min, then the next unit.
 *     Q4_K Q5_K IQ4_XS   I = idot, dw = d * sc (IQ4_XS: sc = ls - 32).
 *     Q2_K Q3_K Q6_K     I = sc0 * idot16_0 + sc1 * idot16_1, dw = d; |I| < 2^24 is converted.
 *     mins               Q4_K, Q5_K: acc = fma(-(dmin * m), sa, acc). Q2_K: M = m0 * s0 + m1 * s1,
 *                        acc = fma(-(dmin * (float)M), da, acc).
 *     IQ4_NL MXFP4       table values as i8 (MXFP4's doubled), dw = d or 2^(e - 128), denormals kept;
 *                        e > 232 is refused at load.
 *     embedding rows     w = fma(d * sc, (float)q, -(dmin * m)); without mins (d * sc) * (float)q.
 *   quantised KV   score: the scaled q row is quantised per 32 as an activation row is;
 *                  acc = fma(sk * (float)idot, sq, acc), ascending. Value: v = sv * (float)q,
 *                  acc = fma(p, v, acc), ascending positions.
 *   bias, residual or embedding scale: one rounded operation of its own (embedding: sqrtf((float)n)).
 *
 * NaNs stay NaNs, but their payload is not part of the contract. Why sums are cut in 16 lanes and
 * outputs are interleaved by 16: that is what AVX-512 and two AVX2 registers do without a shuffle,
 * and each output stays one chain that scalar code can follow.
 *
 * Thread: every operation may run on any thread; none allocates.
 * Memory: pointers need no alignment beyond their type's; in and out may be the same row where it
 *         says so. */
#pragma once

#include "common/digest.h"
#include "common/err.h"

#define KERN_CONTRACT_VERSION 2

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
    /* y[i] = gelu_tanh(gate[i]) * up[i]. y may be gate or up. */
    void (*gelu_mul)(float *y, const float *gate, const float *up, size_t n);
    /* y[i] = swiglu_oai(gate[i], up[i]), gpt-oss's. y may be gate or up. */
    void (*swiglu_oai)(float *y, const float *gate, const float *up, size_t n);
    /* y[i] = c * tanh(y[i] / c); c > 0. */
    void (*softcap)(float *y, size_t n, float c);
    /* y[i] *= c. */
    void (*scale)(float *y, size_t n, float c);
    /* y[i] += x[i]: residuals and biases. */
    void (*add)(float *y, const float *x, size_t n);
    /* y[i] = fma(c, x[i], y[i]): an expert's part of a row. */
    void (*add_scaled)(float *y, const float *x, float c, size_t n);

    const struct kern_impl *impl;
};

/* |x[i]| < limit for all i; a NaN is not. */
bool kern_all_below(const float *x, size_t n, float limit);

/* isa NULL: the best this CPU has. Else "scalar", "avx2" or "avx512"; NULL with a text when the name
 * is unknown or the CPU or the build lacks it. */
const struct kern_ops *kernels_pick(const char *isa, struct errbuf *eb);

/* RoPE angles of a group of layers that rotate alike. */
struct rope_cfg {
    uint32_t n_rot;            /* rotated floats of a head, even */
    float base;                /* rope.freq_base */
    float freq_scale;          /* 1 / scaling factor; 1 without */
    const float *freq_factors; /* [n_rot/2] divisors (rope_freqs.weight) or NULL; copied */
    float magnitude;           /* of cos and sin; 0: 1 */
    uint32_t yarn_orig_ctx;    /* trained context: freq_scale is YaRN's; 0: of every pair */
    float beta_fast,
        beta_slow;     /* YaRN: turns within it above which nothing, below which all is scaled */
    bool yarn_between; /* its ramp begins and ends between pairs; else at whole ones */
};
struct rope; /* opaque, read-only after rope_new() */
int rope_new(struct rope **ret, const struct rope_cfg *cfg, struct errbuf *eb);
void rope_free(struct rope *r); /* NULL is a no-op */
/* SHA-256 over the groups: u32 number of frequencies, the frequencies in radians a position and the magnitude
 * of cos and sin, f64, all little-endian. */
void rope_digest(const struct rope *const *groups, size_t n, uint8_t ret[DIGEST_BYTES]);
/* cs [n, n_rot]: for each position pos0 .. pos0+n-1 first cos[n_rot/2], then sin[n_rot/2]. About
 * 1 microsecond a position; the same for all layers and heads, so compute it once a step. */
void rope_rows(const struct rope *r, uint32_t pos0, uint32_t n, float *cs);
