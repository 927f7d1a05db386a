/* kern_selftest.c - see the header. Inputs come from a counter-based integer hash, so that no library
 * call can change them; sizes are small enough for the scalar table at start-up. */
#include "worker/kernels/kern_selftest.h"

#include "worker/kernels/attn_paged.h"
#include "worker/kernels/matmul.h"
#include "worker/kernels/matmul_blas.h"

#define MAX_ROWS 239
#define MAX_IN 160
#define MAX_OUT 147 /* nine panels and a tail: the widest groups of panels that a kernel has */

struct bench {
    const struct kern_ops *ops;
    struct digest *digest;
    struct matmul_scratch *mm;
    struct attn_scratch *attn;
    uint32_t counter; /* of the input generator */
    float x[MAX_ROWS * MAX_IN], y[MAX_ROWS * MAX_OUT], z[MAX_IN];
    uint8_t weights[MAX_OUT * MAX_IN * 4];
};

static uint32_t next_u32(struct bench *b) {
    uint32_t h = b->counter++ * 0x9e3779b9u + 0x7f4a7c15u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

/* In (-4, 4), exact in float. */
static float next_f32(struct bench *b) {
    return (float)(int32_t)(next_u32(b) >> 8) * 0x1p-21f - 4.0f;
}

static void fill(struct bench *b, float *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        p[i] = next_f32(b);
}

static void feed(struct bench *b, const void *p, size_t n) {
    digest_update(b->digest, p, n);
}

/* File bytes of a matrix: random quants, but scales and floats of sensible size. */
static void fill_weights(struct bench *b, const struct quant_type *t, uint32_t n_out, uint32_t n_in) {
    size_t n = quant_row_bytes(t, n_in) * n_out;
    for (size_t i = 0; i < n; i++)
        b->weights[i] = (uint8_t)next_u32(b);
    for (size_t at = 0; at < n; at += t->block_bytes) {
        uint16_t half[2] = {quant_f32_to_f16(next_f32(b)), quant_f32_to_f16(next_f32(b))};
        float f = next_f32(b);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        if (t->dtype == QUANT_F32) {
            memcpy(b->weights + at, &f, 4);
        } else if (t->dtype == QUANT_BF16) {
            half[0] = (uint16_t)(bits >> 16);
            memcpy(b->weights + at, half, 2);
        } else {
            memcpy(b->weights + at, half, t->has_min ? 4 : 2);
        }
    }
}

/* The small shape alone also runs with as many rows as a kernel treats specially. */
static int test_matmul(struct bench *b, const struct quant_type *t, uint32_t n_out, uint32_t n_in) {
    static const uint32_t row_counts[] = {1, 7, 14, 15, 33, MAX_ROWS};
    const size_t n_counts = ARRAY_LEN(row_counts) - (n_out > 16);
    fill_weights(b, t, n_out, n_in);
    struct packed_src src = {t->dtype, n_out, n_in, b->weights, quant_row_bytes(t, n_in) * n_out,
                             false, NULL};
    struct packed_mat *w;
    int rv = packed_mat_new(&w, &src, NULL);
    if (rv < 0)
        return rv;
    struct matmul_env env = {.ops = b->ops, .scratch = b->mm};
    for (size_t i = 0; i < n_counts; i++) {
        fill(b, b->x, (size_t)row_counts[i] * n_in);
        struct matmul_in in = {.x = b->x, .x_stride = n_in, .n_rows = row_counts[i]};
        struct matmul_out out = {.w = w, .y = b->y, .y_stride = n_out};
        matmul(&env, &in, &out, 1);
        feed(b, b->y, (size_t)row_counts[i] * n_out * sizeof(float));
    }
    packed_mat_free(w);
    return 0;
}

static int test_products(struct bench *b) {
    size_t n;
    const struct quant_type *types = quant_type_table(&n);
    for (size_t i = 0; i < n; i++) {
        int rv = test_matmul(b, &types[i], 35, MAX_IN);
        if (rv == 0)
            rv = test_matmul(b, &types[i], MAX_OUT, 64);
        if (rv == 0)
            rv = test_matmul(b, &types[i], 16, 32);
        if (rv < 0)
            return rv;
    }
    return 0;
}

static void test_rows(struct bench *b) {
    for (uint32_t n = 1; n <= 65; n += n < 34 ? 1 : 31) {
        fill(b, b->x, n);
        fill(b, b->z, n);
        b->ops->rms_norm(b->y, b->x, b->z, n, 1e-5f);
        feed(b, b->y, n * sizeof(float));
        b->ops->silu_mul(b->y, b->x, b->z, n);
        feed(b, b->y, n * sizeof(float));
        b->ops->add(b->x, b->z, n);
        feed(b, b->x, n * sizeof(float));
    }
}

static int test_rope(struct bench *b) {
    static const uint32_t positions[] = {0, 1, 31, 1000, 8191, 131071};
    float factors[16], cs[32];
    for (size_t i = 0; i < 16; i++)
        factors[i] = 1.0f + (float)(i * i) * 0.125f;
    for (int with_factors = 0; with_factors < 2; with_factors++) {
        struct rope_cfg cfg = {32, with_factors ? 500000.0f : 10000.0f, with_factors ? 0.25f : 1.0f,
                               with_factors ? factors : NULL};
        struct rope *r;
        int rv = rope_new(&r, &cfg, NULL);
        if (rv < 0)
            return rv;
        for (size_t i = 0; i < ARRAY_LEN(positions); i++) {
            rope_rows(r, positions[i], 1, cs);
            feed(b, cs, sizeof cs);
            fill(b, b->x, 3 * 48);
            b->ops->rope_norm(b->x, cs, 3, 48, 32);
            b->ops->rope_neox(b->x, cs, 3, 48, 32);
            feed(b, b->x, 3 * 48 * sizeof(float));
        }
        rope_free(r);
    }
    return 0;
}

/* 41 positions in pages of 32: rows 0..39 in a chunk, then one more. */
static int test_attn(struct bench *b, enum kv_dtype dtype) {
    enum { N_HEAD = 6, N_KV = 2, D = 48, B = 32, N = 41, PAGES = 2 };
    struct attn_shape shape = {.n_head = N_HEAD, .n_kv_head = N_KV, .head_dim = D, .block_tokens = B,
                               .dtype = dtype, .scale = 0.25f};
    shape.v_off = attn_kv_bytes(&shape);
    size_t page_bytes = 2 * shape.v_off;
    uint8_t *mem = malloc(PAGES * page_bytes);
    float *qkv = malloc((size_t)N * (2 * N_HEAD + 2 * N_KV) * D * sizeof *qkv);
    if (!mem || !qkv) {
        free(mem);
        free(qkv);
        return ERR_NOMEM;
    }
    memset(mem, 0xff, PAGES * page_bytes); /* NaNs where nothing was stored */
    uint8_t *pages[PAGES] = {mem, mem + page_bytes};
    float *q = qkv, *k = q + N * N_HEAD * D, *v = k + N * N_KV * D, *out = v + N * N_KV * D;
    fill(b, q, N * N_HEAD * D);
    fill(b, k, N * N_KV * D);
    fill(b, v, N * N_KV * D);
    for (uint32_t pos = 0; pos < N; pos += pos == 0 ? N - 1 : 1) {
        uint32_t n = pos == 0 ? N - 1 : 1;
        struct attn_kv_rows rows = {k + pos * N_KV * D, v + pos * N_KV * D, N_KV * D, N_KV * D, pages, n,
                                    pos};
        attn_store_kv(b->ops, &shape, &rows);
        struct attn_seq seq = {q + pos * N_HEAD * D, out + pos * N_HEAD * D, N_HEAD * D, N_HEAD * D,
                               (const uint8_t *const *)pages, n, pos};
        attn_paged(b->ops, NULL, b->attn, &shape, &seq, 1);
    }
    feed(b, mem, PAGES * page_bytes);
    feed(b, out, (size_t)N * N_HEAD * D * sizeof *out);
    free(mem);
    free(qkv);
    return 0;
}

static int run_all(struct bench *b) {
    int rv = test_products(b);
    test_rows(b);
    if (rv == 0)
        rv = test_rope(b);
    if (rv == 0)
        rv = test_attn(b, KV_F16);
    if (rv == 0)
        rv = test_attn(b, KV_F32);
    return rv;
}

int kern_selftest_run(const struct kern_ops *ops, uint8_t ret[DIGEST_BYTES]) {
    kern_fp_init();
    struct bench *b = calloc(1, sizeof *b);
    if (!b)
        return ERR_NOMEM;
    b->ops = ops;
    b->digest = digest_new();
    struct attn_scratch_cfg cfg = {.n_head = 6, .n_kv_head = 2, .head_dim = 48, .max_ctx = 48,
                                   .max_seqs = 1, .n_threads = 1};
    int rv = b->digest ? 0 : ERR_NOMEM;
    if (rv == 0)
        rv = matmul_scratch_new(&b->mm, MAX_ROWS, MAX_IN, 1);
    if (rv == 0)
        rv = attn_scratch_new(&b->attn, &cfg);
    if (rv == 0) {
        digest_begin(b->digest);
        rv = run_all(b);
        digest_end(b->digest, ret);
    }
    attn_scratch_free(b->attn);
    matmul_scratch_free(b->mm);
    digest_free(b->digest);
    free(b);
    return rv;
}

/* Contract version 1. A change of any bit above needs a new version and a new constant. */
static const uint8_t golden[DIGEST_BYTES] = {
    0xcb, 0xbd, 0xde, 0x81, 0x2f, 0x88, 0x90, 0xb6, 0x02, 0x91, 0x48, 0x2f, 0x9b, 0xef, 0x77, 0x39,
    0xe6, 0xbf, 0x23, 0xdb, 0x31, 0xb4, 0x2f, 0x41, 0x44, 0xe0, 0x4a, 0x18, 0x4d, 0x31, 0xf9, 0xa8,
};

const uint8_t *kern_selftest_golden(void) {
    return golden;
}

void kern_numerics_id(const uint8_t digest[DIGEST_BYTES], const struct matmul_blas *blas,
                      char ret[KERN_NUMERICS_ID_MAX]) {
    char hex[2 * DIGEST_BYTES + 1];
    digest_hex(digest, DIGEST_BYTES, hex);
    if (blas)
        snprintf(ret, KERN_NUMERICS_ID_MAX, "%d-%s-openblas-%.32s-%.32s", KERN_CONTRACT_VERSION, hex,
                 matmul_blas_version(blas), matmul_blas_core(blas));
    else
        snprintf(ret, KERN_NUMERICS_ID_MAX, "%d-%s", KERN_CONTRACT_VERSION, hex);
}
