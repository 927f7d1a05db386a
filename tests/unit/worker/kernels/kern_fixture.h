/* kern_fixture.h - what the kernel tests share: the tables this CPU can run, random numbers, and
 * matrices in GGUF bytes. */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>

#include "common/compiler.h"
#include "worker/kernels/attn_paged.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/matmul.h"
#include "worker/kernels/quant.h"

static const char *kern_isa = "scalar";

/* F15: kernels that this CPU or build lacks passed as OK without having run. argv[1] names the table under
 * test; without it the program is skipped, or fails where INCIPIT_TEST_REQUIRE_ISA lists the name. Returns
 * the exit code, or -1 to go on. */
static inline int kern_isa_arg(int argc, char **argv) {
    struct errbuf eb = {{0}};
    const char *must = getenv("INCIPIT_TEST_REQUIRE_ISA");
    kern_isa = argc > 1 ? argv[1] : kern_isa;
    if (kernels_pick(kern_isa, &eb))
        return -1;
    bool required = must && strstr(must, kern_isa);
    fprintf(stderr, "%s: %s\n", required ? "FAILED, required" : "SKIPPED", eb.text);
    return required ? 1 : 77;
}

/* The reference, and the table under test if it is another. */
static inline size_t kern_tables(const struct kern_ops *ret[2]) {
    ret[0] = kernels_pick("scalar", NULL);
    ret[1] = kernels_pick(kern_isa, NULL);
    return ret[1] == ret[0] ? 1 : 2;
}

struct rng {
    uint64_t s;
};

static inline uint32_t rng_u32(struct rng *r) { /* splitmix64 */
    uint64_t z = r->s += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)(z >> 32);
}

static inline float rng_float(struct rng *r) { /* [-1, 1) */
    return (float)(int32_t)rng_u32(r) * 0x1p-31f;
}

/* Kinds of input: what usual numbers do not reach. */
enum input_kind {
    IN_NORMAL,
    IN_TINY,
    IN_HUGE,
    IN_SPARSE,
    IN_MIXED,
    IN_DENORMAL,
    IN_ZERO,
    IN_KINDS
};

static inline float rng_input(struct rng *r, enum input_kind kind) {
    float f = rng_float(r);
    switch (kind) {
    case IN_TINY:
        return f * 0x1p-90f;
    case IN_HUGE:
        return f * 0x1p60f;
    case IN_SPARSE:
        return rng_u32(r) % 8 ? 0.0f : f;
    case IN_MIXED:
        return f * ldexpf(1.0f, (int)(rng_u32(r) % 40) - 20);
    case IN_DENORMAL:
        return f * 0x1p-127f;
    case IN_ZERO:
        return rng_u32(r) % 2 ? 0.0f : -0.0f;
    default:
        return f * 3.0f;
    }
}

static inline void fill_input(struct rng *r, enum input_kind kind, float *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        p[i] = rng_input(r, kind);
}

/* A finite half of any size: denormals and the largest too when wild. */
static inline uint16_t rng_half(struct rng *r, bool wild) {
    for (;;) {
        uint16_t h = wild ? (uint16_t)rng_u32(r) : quant_f32_to_f16(rng_float(r) * 0.1f);
        if ((h & 0x7c00) != 0x7c00)
            return h;
    }
}

/* GGUF bytes of a random matrix. */
static inline uint8_t *random_weights(struct rng *r, const struct quant_type *t, size_t n_out,
                                      size_t n_in, bool wild, size_t *ret_bytes) {
    size_t n = quant_row_bytes(t, n_in) * n_out;
    uint8_t *w = malloc(n);
    assert_non_null(w);
    for (size_t i = 0; i < n; i++)
        w[i] = (uint8_t)rng_u32(r);
    for (size_t at = 0; at < n; at += t->block_bytes) {
        uint16_t half[2] = {rng_half(r, wild), rng_half(r, wild)};
        float f = rng_input(r, wild ? IN_MIXED : IN_NORMAL);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        uint16_t bf16 = (uint16_t)(bits >> 16);
        if (t->dtype == QUANT_F32)
            memcpy(w + at, &f, 4);
        else if (t->dtype == QUANT_BF16)
            memcpy(w + at, &bf16, 2);
        else if (t->dtype == QUANT_MXFP4) /* 2^-3 and below, or of any size */
            w[at] = (uint8_t)(wild ? rng_u32(r) % (QUANT_MXFP4_MAX_E + 1) : 119 + rng_u32(r) % 6);
        else
            memcpy(w + at + t->d_at, half, t->has_min ? 4 : 2);
    }
    *ret_bytes = n;
    return w;
}

/* Equal bits; two NaNs are equal. Prints the first difference. */
static inline void assert_same_bits(const float *a, const float *b, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], 4) == 0 || (isnan(a[i]) && isnan(b[i])))
            continue;
        fail_msg("%s: element %zu is %a, should be %a", what, i, (double)a[i], (double)b[i]);
    }
}
