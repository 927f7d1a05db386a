/* sample_math.c - exp, log and random bits whose results are the same on every CPU and C library.
 *
 * Only +, -, *, / on doubles (each exactly rounded by IEEE 754) in a written order; the build forbids
 * contraction. libm's versions differ in the last bit between releases and between CPUs with and
 * without fused multiply-add, and a last bit can change the token that a draw lands on. */
#include "worker/sample/sampler.h"

static const double LN2_HI = 6.93147180369123816490e-01; /* 33 bits: k * LN2_HI is exact */
static const double LN2_LO = 1.90821492927058770002e-10;

/* 1.5 * 2^52: adding it rounds to the nearest integer, which then stands in the low bits. */
static const double ROUND = 6755399441055744.0;

/* Eight at a time: the compiler makes of it what the CPU has; each lane's operations and their order, and
 * so its bits, are those written here. */
typedef double f64x8 __attribute__((vector_size(64)));
typedef int64_t i64x8 __attribute__((vector_size(64)));

static double bits_to_double(uint64_t u) {
    double d;
    memcpy(&d, &u, sizeof(d));
    return d;
}

/* exp(x) = 2^k * exp(r), |r| <= ln2/2, Taylor to r^13: its remainder is below 2^-56. x in [-700, 0], so
 * 2^k stays a normal number. */
void sample_exp8(const double x[8], double ret[8]) {
    f64x8 v, t, kd, r, p;
    i64x8 bits;
    memcpy(&v, x, sizeof(v));
    t = v * 1.4426950408889634 + ROUND;
    kd = t - ROUND;
    r = (v - kd * LN2_HI) - kd * LN2_LO;
    p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    memcpy(&bits, &t, sizeof(bits));
    bits = (bits + 1023) << 52; /* the low bits of t are k; what stands above them is shifted out */
    memcpy(&v, &bits, sizeof(v));
    p = p * v;
    memcpy(ret, &p, sizeof(p));
}

double sample_exp(double x) {
    if (!(x >= -700.0)) /* NaN too */
        return 0.0;
    const double in[8] = {MIN(x, 0.0)};
    double out[8];
    sample_exp8(in, out);
    return out[0];
}

/* log(x) = e*ln2 + 2*atanh(s), s = (m-1)/(m+1), m in [sqrt(1/2), sqrt(2)); |s| < 0.172. */
double sample_log(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof(u));
    int64_t e = (int64_t)(u >> 52) - 1023;
    double m = bits_to_double((u & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0), q = s * s;
    double p = 1.0 / 23.0;
    for (int i = 21; i >= 3; i -= 2)
        p = p * q + 1.0 / (double)i;
    double tail = s * q * p;
    return (double)e * LN2_HI + (2.0 * s + (2.0 * tail + (double)e * LN2_LO));
}

static uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014) over both words, one after the other, so that
 * neighbouring seeds and neighbouring counters are equally unrelated. */
uint64_t sample_random(uint64_t seed, uint64_t counter) {
    uint64_t a = mix64(seed + 0x9e3779b97f4a7c15ull);
    return mix64(a ^ mix64(counter * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull));
}
