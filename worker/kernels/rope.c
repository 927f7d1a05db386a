/* Angles, sine and cosine in double with + - * / only: every machine computes the same bits. The
 * error, about 1e-16 times the angle, disappears in the final rounding to single. */
#include "worker/kernels/kernels.h"

#include "common/check.h"

struct rope {
    uint32_t n_rot;
    double magnitude; /* of cos and sin */
    double freq[];    /* [n_rot/2] radians a position */
};

static const double ln2_hi = 0x1.62e42fee00000p-1;  /* upper 33 bits of ln 2: products with small */
static const double ln2_lo = 0x1.a39ef35793c76p-33; /* integers are exact */

/* Natural logarithm of a positive normal number: x = m * 2^e, ln m by the series of atanh. */
static double ln_pos(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int e = (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &u, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double z = (m - 1.0) / (m + 1.0); /* |z| < 0.172: 12 terms reach 2^-60 */
    double z2 = z * z;
    double sum = 0.0;
    for (int k = 23; k >= 1; k -= 2)
        sum = sum * z2 + 1.0 / (double)k;
    return 2.0 * z * sum + (double)e * ln2_lo + (double)e * ln2_hi;
}

/* exp for |x| < 700: x = n ln 2 + r, Taylor in r, times 2^n. */
static double exp_any(double x) {
    double t = x * 1.4426950408889634;
    int n = (int)(t < 0 ? t - 0.5 : t + 0.5);
    double r = (x - (double)n * ln2_hi) - (double)n * ln2_lo;
    double p = 1.0;
    for (int k = 20; k >= 1; k--)
        p = 1.0 + p * r / (double)k;
    uint64_t u = (uint64_t)(n + 1023) << 52;
    double scale;
    memcpy(&scale, &u, sizeof scale);
    return p * scale;
}

/* x >= 0 reduced to [-pi/4, pi/4] with pi/2 in three parts of 33, 33 and 53 bits; the products with
 * the quadrant number are exact while it has at most 20 bits (angles up to 1.6 million). */
static void sin_cos(double x, double magnitude, float *ret_sin, float *ret_cos) {
    double q = (double)(int64_t)(x * 0.63661977236758134 + 0.5);
    double r =
        ((x - q * 0x1.921fb54400000p+0) - q * 0x1.0b4611a600000p-34) - q * 0x1.3198a2e037073p-69;
    double r2 = r * r;
    double s = 0.0, c = 0.0;
    for (int k = 19; k >= 1; k -= 2) { /* k! by nested division: r2/2/3, r2/4/5, ... */
        s = 1.0 - s * r2 / (double)((k + 1) * (k + 2));
        c = 1.0 - c * r2 / (double)(k * (k + 1));
    }
    s *= r * magnitude;
    c *= magnitude;
    switch ((int64_t)q & 3) {
    case 0:
        *ret_sin = (float)s, *ret_cos = (float)c;
        break;
    case 1:
        *ret_sin = (float)c, *ret_cos = (float)-s;
        break;
    case 2:
        *ret_sin = (float)-s, *ret_cos = (float)-c;
        break;
    default:
        *ret_sin = (float)-c, *ret_cos = (float)s;
        break;
    }
}

/* The pair, as a real number, that turns `turns` times within the trained context. */
static double yarn_pair(const struct rope_cfg *c, double turns) {
    return (double)c->n_rot * ln_pos((double)c->yarn_orig_ctx / (turns * 6.283185307179586)) /
           (2.0 * ln_pos((double)c->base));
}

static double clamped(double x, double least, double most) {
    return x < least ? least : x > most ? most : x;
}

/* Frequency multipliers of YaRN (arXiv 2309.00071, section 3.2): pairs that turn beta_fast times or more
 * within the trained context keep their angle, those of beta_slow or fewer are scaled, a ramp between. */
static void apply_yarn(struct rope *r, const struct rope_cfg *c) {
    const double most = (double)c->n_rot - 1.0, scale = (double)c->freq_scale;
    const double slow = clamped(yarn_pair(c, (double)c->beta_slow), 0.0, most);
    double low = clamped(yarn_pair(c, (double)c->beta_fast), 0.0, most), high = slow;
    if (!c->yarn_between) {
        low = (double)(int64_t)low;
        high = (double)(int64_t)slow + ((double)(int64_t)slow < slow ? 1.0 : 0.0);
    }
    const double width = high - low > 1e-3 ? high - low : 1e-3;
    for (uint32_t i = 0; i < c->n_rot / 2; i++) {
        double ramp = clamped(((double)i - low) / width, 0.0, 1.0); /* 1: scaled */
        r->freq[i] *= ramp * scale + (1.0 - ramp);
    }
    r->magnitude *= 1.0 + 0.1 * ln_pos(1.0 / scale);
}

static int check_cfg(const struct rope_cfg *cfg, struct errbuf *eb) {
    if (cfg->n_rot == 0 || cfg->n_rot % 2 != 0 || cfg->n_rot > 65536)
        return err_set(eb, ERR_INVALID, "rope: %u rotated dimensions", cfg->n_rot);
    if (!(cfg->base >= 1.0f && cfg->base <= 1e12f))
        return err_set(eb, ERR_INVALID, "rope: frequency base %g", (double)cfg->base);
    if (!(cfg->freq_scale > 0.0f && cfg->freq_scale <= 1.0f))
        return err_set(eb, ERR_INVALID, "rope: frequency scale %g", (double)cfg->freq_scale);
    if (!(cfg->magnitude >= 0.0f && cfg->magnitude <= 100.0f))
        return err_set(eb, ERR_INVALID, "rope: magnitude %g", (double)cfg->magnitude);
    if (cfg->yarn_orig_ctx && !(cfg->base > 1.0f && cfg->beta_slow > 0.0f &&
                                cfg->beta_fast > cfg->beta_slow && cfg->beta_fast <= 1e6f))
        return err_set(eb, ERR_INVALID, "rope: YaRN from %g to %g turns, base %g",
                       (double)cfg->beta_fast, (double)cfg->beta_slow, (double)cfg->base);
    for (uint32_t i = 0; cfg->freq_factors && i < cfg->n_rot / 2; i++)
        if (!(cfg->freq_factors[i] >= 1e-3f && cfg->freq_factors[i] <= 1e6f))
            return err_set(eb, ERR_INVALID, "rope: frequency factor %u is %g", i,
                           (double)cfg->freq_factors[i]);
    return 0;
}

int rope_new(struct rope **ret, const struct rope_cfg *cfg, struct errbuf *eb) {
    int rv = check_cfg(cfg, eb);
    if (rv < 0)
        return rv;
    const uint32_t half = cfg->n_rot / 2;
    struct rope *r = malloc(sizeof *r + half * sizeof r->freq[0]);
    if (!r)
        return err_set(eb, ERR_NOMEM, "rope");
    r->n_rot = cfg->n_rot;
    r->magnitude = cfg->magnitude != 0.0f ? (double)cfg->magnitude : 1.0;
    const double scale = cfg->yarn_orig_ctx ? 1.0 : (double)cfg->freq_scale;
    const double ln_base = ln_pos((double)cfg->base);
    for (uint32_t i = 0; i < half; i++) {
        double factor = cfg->freq_factors ? (double)cfg->freq_factors[i] : 1.0;
        double f = exp_any(-(2.0 * (double)i / (double)cfg->n_rot) * ln_base);
        r->freq[i] = f / factor * scale;
    }
    if (cfg->yarn_orig_ctx)
        apply_yarn(r, cfg);
    *ret = r;
    return 0;
}

void rope_digest(const struct rope *const *groups, size_t n, uint8_t ret[DIGEST_BYTES]) {
    struct digest *d = digest_new();
    CHECK(d);
    digest_begin(d);
    for (size_t i = 0; i < n; i++) {
        const struct rope *r = groups[i];
        const uint32_t half = r->n_rot / 2;
        digest_update(d, &half, sizeof half); /* little-endian machines only, as all pages */
        digest_update(d, r->freq, half * sizeof r->freq[0]);
        digest_update(d, &r->magnitude, sizeof r->magnitude);
    }
    digest_end(d, ret);
    digest_free(d);
}

void rope_free(struct rope *r) {
    free(r);
}

void rope_rows(const struct rope *r, uint32_t pos0, uint32_t n, float *cs) {
    uint32_t half = r->n_rot / 2;
    for (uint32_t p = 0; p < n; p++, cs += r->n_rot)
        for (uint32_t i = 0; i < half; i++)
            sin_cos((double)(pos0 + p) * r->freq[i], r->magnitude, &cs[half + i], &cs[i]);
}
