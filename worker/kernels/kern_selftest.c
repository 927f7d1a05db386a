/* kern_selftest.c - see the header. Inputs come from a counter-based integer hash, so that no library
 * call can change them; sizes are small enough for the scalar table at start-up. */
#include "worker/kernels/kern_selftest.h"

#include "worker/kernels/attn_paged.h"
#include "worker/kernels/experts.h"
#include "worker/kernels/matmul.h"
#include "worker/kernels/matmul_blas.h"

#define MAX_ROWS 239
#define MAX_IN 512
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
static void fill_weights(struct bench *b, const struct quant_type *t, uint32_t n_out,
                         uint32_t n_in) {
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
        } else if (t->dtype == QUANT_MXFP4) {
            b->weights[at] = (uint8_t)(bits % (QUANT_MXFP4_MAX_E + 1));
        } else {
            memcpy(b->weights + at + t->d_at, half, t->has_min ? 4 : 2);
        }
    }
}

/* The small shape alone also runs with as many rows as a kernel treats specially. */
static int test_matmul(struct bench *b, const struct quant_type *t, uint32_t n_out, uint32_t n_in) {
    static const uint32_t row_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,       9,
                                          10, 11, 12, 13, 14, 15, 33, MAX_ROWS};
    const size_t n_counts = ARRAY_LEN(row_counts) - (n_out > 16);
    fill_weights(b, t, n_out, n_in);
    struct packed_src src = {t->dtype, n_out, n_in, b->weights, quant_row_bytes(t, n_in) * n_out,
                             false,    NULL};
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
        const uint32_t block = types[i].block_items; /* of K-quants one or two records */
        int rv = test_matmul(b, &types[i], 35, MAX(160, 2 * block));
        if (rv == 0 && !types[i].unit) /* records are computed a panel at a time */
            rv = test_matmul(b, &types[i], MAX_OUT, 64);
        if (rv == 0)
            rv = test_matmul(b, &types[i], 16, MAX(32, block));
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
        b->ops->gelu_mul(b->y, b->x, b->z, n);
        feed(b, b->y, n * sizeof(float));
        b->ops->swiglu_oai(b->y, b->x, b->z, n);
        feed(b, b->y, n * sizeof(float));
        b->ops->softcap(b->y, n, 0.7f); /* on both sides of tanh's joint */
        feed(b, b->y, n * sizeof(float));
        b->ops->scale(b->y, n, 1.7f);
        feed(b, b->y, n * sizeof(float));
        b->ops->add(b->x, b->z, n);
        feed(b, b->x, n * sizeof(float));
        b->ops->add_scaled(b->x, b->z, 0.3f, n);
        feed(b, b->x, n * sizeof(float));
    }
}

/* Choices with and without ties. */
static void test_experts(struct bench *b) {
    for (uint32_t n = 2; n <= 64; n += 31) {
        struct expert_choice c[8];
        fill(b, b->x, n);
        for (uint32_t tie = 0; tie < 2; tie++) {
            (void)experts_choose(b->x, n, MIN(n, 8u), c);
            feed(b, c, MIN(n, 8u) * sizeof c[0]);
            b->x[n - 1] = b->x[n / 2] = b->x[c[0].id];
        }
    }
}

/* The first positions, and each power of two with its neighbours up to where a context ends. */
static int test_rope(struct bench *b) {
    float factors[16], cs[32];
    for (size_t i = 0; i < 16; i++)
        factors[i] = 1.0f + (float)(i * i) * 0.125f;
    for (int with_factors = 0; with_factors < 2; with_factors++) {
        const struct rope_cfg cfg = {.n_rot = 32,
                                     .base = with_factors ? 500000.0f : 10000.0f,
                                     .freq_scale = with_factors ? 0.25f : 1.0f,
                                     .freq_factors = with_factors ? factors : NULL};
        struct rope *r;
        int rv = rope_new(&r, &cfg, NULL);
        if (rv < 0)
            return rv;
        for (uint32_t top = 1; top <= 1u << 20; top *= 2)
            for (uint32_t pos = top - 1; pos <= top; pos++) {
                rope_rows(r, pos, 1, cs);
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

/* Attention of one shape: heads of a KV head, dtype, and how the positions come. */
struct attn_case {
    uint32_t n_head, n_kv;
    enum kv_dtype k, v;
    uint32_t n_pos, chunk; /* all but the last position in chunks, the last one alone */
    struct kern_team *team;
    uint32_t window;
    float softcap;
    bool sinks;
};

#define ATTN_D 48 /* floats: half a pair of registers over */
#define ATTN_D_SCALED 64
#define ATTN_B 32
#define ATTN_MAX_POS 577

/* Rows [pos, pos + n): K and V into the pages, then attention over them. */
static void attn_chunk(struct bench *b, const struct attn_case *c, const struct attn_shape *shape,
                       uint8_t **pages, float *q, float *out, uint32_t pos, uint32_t n) {
    const size_t n_q = (size_t)c->n_head * shape->head_dim,
                 n_kv = (size_t)c->n_kv * shape->head_dim;
    float *k = out + c->n_pos * n_q, *v = k + c->n_pos * n_kv;
    const struct attn_kv_rows rows = {k + pos * n_kv, v + pos * n_kv, n_kv, n_kv, pages, n, pos};
    (void)attn_store_kv(b->ops, shape, &rows);
    const struct attn_seq seq = {
        q + pos * n_q, out + pos * n_q, n_q, n_q, (const uint8_t *const *)pages, n, pos};
    if (c->team && pos + n < c->n_pos) /* a split is of a few rows behind many */
        return;
    attn_paged(b->ops, c->team, b->attn, shape, &seq, 1);
}

static int test_attn(struct bench *b, const struct attn_case *c) {
    enum { MAX_PAGES = (ATTN_MAX_POS + ATTN_B - 1) / ATTN_B };
    const uint32_t d = kv_is_scaled(c->k) || kv_is_scaled(c->v) ? ATTN_D_SCALED : ATTN_D;
    float sinks[16];
    const struct kv_layout_cfg layout = {1, c->n_kv, d, ATTN_B, c->k, c->v, NULL};
    struct kv_place at;
    const size_t page_bytes = kv_range_place(&layout, &at),
                 n_pages = (c->n_pos + ATTN_B - 1) / ATTN_B;
    const struct attn_shape shape = {.n_head = c->n_head,
                                     .n_kv_head = c->n_kv,
                                     .head_dim = d,
                                     .block_tokens = ATTN_B,
                                     .k_dtype = c->k,
                                     .v_dtype = c->v,
                                     .scale = 0.25f,
                                     .k_off = at.k,
                                     .k_scale_off = at.k_scale,
                                     .v_off = at.v,
                                     .v_scale_off = at.v_scale,
                                     .window = c->window,
                                     .softcap = c->softcap,
                                     .sinks = c->sinks ? sinks : NULL};
    const size_t n_row = ((size_t)2 * c->n_head + 2 * c->n_kv) * d;
    uint8_t *mem = malloc(n_pages * page_bytes), *pages[MAX_PAGES];
    float *q = calloc(c->n_pos * n_row, sizeof *q), *out = q + (size_t)c->n_pos * c->n_head * d;
    if (!mem || !q) {
        free(mem);
        free(q);
        return ERR_NOMEM;
    }
    memset(mem, 0xff, n_pages * page_bytes); /* NaNs where nothing was stored */
    for (size_t i = 0; i < n_pages; i++)
        pages[i] = mem + i * page_bytes;
    fill(b, q, c->n_pos * n_row);
    fill(b, sinks, c->n_head);
    for (uint32_t pos = 0, n; pos < c->n_pos; pos += n) {
        n = pos + 1 < c->n_pos ? MIN(c->chunk, c->n_pos - 1 - pos) : 1;
        attn_chunk(b, c, &shape, pages, q, out, pos, n);
    }
    feed(b, mem, n_pages * page_bytes);
    feed(b, out, (size_t)c->n_pos * c->n_head * d * sizeof *out);
    free(mem);
    free(q);
    return 0;
}

/* A chunk of n rows has n times as many pairs as a KV head has query heads: 1 to 12 of them share a walk. */
static int test_attn_groups(struct bench *b, enum kv_dtype k, enum kv_dtype v) {
    static const uint8_t groups[] = {1, 2, 3, 4, 8};
    int rv = 0;
    for (size_t i = 0; rv == 0 && i < ARRAY_LEN(groups); i++) {
        struct attn_case c = {.n_head = 2u * groups[i], .n_kv = 2, .k = k, .v = v, .n_pos = 18};
        for (c.chunk = 1; rv == 0 && c.chunk <= 5; c.chunk++)
            rv = test_attn(b, &c);
        c.n_pos = 41, c.chunk = 40;
        if (rv == 0)
            rv = test_attn(b, &c);
    }
    return rv;
}

/* Windows that end inside a tile of 16, a page and a block of rows; soft caps; sinks. */
static int test_attn_spans(struct bench *b) {
    static const struct attn_case cases[] = {
        {.n_head = 6, .n_kv = 2, .n_pos = 97, .chunk = 40, .window = 1},
        {.n_head = 2,
         .n_kv = 2,
         .k = KV_F32,
         .v = KV_F32,
         .n_pos = 97,
         .chunk = 12,
         .window = 19,
         .sinks = true},
        {.n_head = 6,
         .n_kv = 2,
         .v = KV_F32,
         .n_pos = 120,
         .chunk = 33,
         .window = 45,
         .softcap = 1.5f},
        {.n_head = 6,
         .n_kv = 2,
         .k = KV_F32,
         .n_pos = 120,
         .chunk = 64,
         .window = 70,
         .sinks = true},
        {.n_head = 8, .n_kv = 2, .n_pos = 50, .chunk = 24, .softcap = 20.0f, .sinks = true},
        {.n_head = 2,
         .n_kv = 2,
         .k = KV_Q8_0,
         .v = KV_Q8_0,
         .n_pos = 97,
         .chunk = 12,
         .window = 19},
        {.n_head = 2,
         .n_kv = 2,
         .k = KV_Q4_0,
         .v = KV_Q4_0,
         .n_pos = 97,
         .chunk = 12,
         .window = 19},
    };
    int rv = 0;
    for (size_t i = 0; rv == 0 && i < ARRAY_LEN(cases); i++)
        rv = test_attn(b, &cases[i]);
    return rv;
}

static int test_attns(struct bench *b) {
    static const enum kv_dtype types[] = {KV_F16, KV_F32, KV_Q8_0, KV_Q4_0};
    struct kern_team *team;
    int rv = kern_team_new(&team, 2, NULL);
    for (size_t i = 0; rv == 0 && i < ARRAY_LEN(types); i++) {
        rv = test_attn_groups(b, types[i], types[i]);
        /* 3 blocks on 2 threads and a long context: split. */
        const struct attn_case split = {.n_head = 3,
                                        .n_kv = 3,
                                        .k = types[i],
                                        .v = types[i],
                                        .n_pos = ATTN_MAX_POS,
                                        .chunk = 64,
                                        .team = team};
        if (rv == 0)
            rv = test_attn(b, &split);
    }
    if (rv == 0)
        rv = test_attn_spans(b);
    kern_team_free(team);
    return rv;
}

/* Quantised K and V, as stored. */
static void test_kv_rows(struct bench *b) {
    int8_t q[96];
    uint16_t scale[3];
    for (int i = 0; i < 32; i++)
        for (int q4 = 0; q4 < 2; q4++) {
            fill(b, b->x, 96);
            for (int k = 0; k < 96 && i % 4 == 3; k++)
                b->x[k] *= 0x1p-24f; /* scales among the half denormals */
            (void)kv_quant_row(q, scale, b->x, 96, q4 ? KV_Q4_0 : KV_Q8_0);
            feed(b, q, sizeof q);
            feed(b, scale, sizeof scale);
        }
}

static int run_all(struct bench *b) {
    int rv = test_products(b);
    test_rows(b);
    test_experts(b);
    if (rv == 0)
        rv = test_rope(b);
    if (rv == 0)
        rv = test_attns(b);
    test_kv_rows(b);
    return rv;
}

int kern_selftest_run(const struct kern_ops *ops, uint8_t ret[DIGEST_BYTES]) {
    kern_fp_init();
    struct bench *b = calloc(1, sizeof *b);
    if (!b)
        return ERR_NOMEM;
    b->ops = ops;
    b->digest = digest_new();
    struct attn_scratch_cfg cfg = {.n_head = 16,
                                   .n_kv_head = 2,
                                   .head_dim = ATTN_D_SCALED,
                                   .max_ctx = ATTN_MAX_POS,
                                   .max_seqs = 1,
                                   .n_threads = 2};
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

/* Contract version 2. A change of any bit above needs a new version and a new constant. */
static const uint8_t golden[DIGEST_BYTES] = {
    0x98, 0xfa, 0x77, 0x10, 0x1b, 0x44, 0xa1, 0xac, 0xd7, 0x6c, 0x9a, 0xd2, 0xba, 0xc1, 0xbb, 0x58,
    0x89, 0xf8, 0x1f, 0x02, 0x38, 0xad, 0x6b, 0xbf, 0x6a, 0xb6, 0xe9, 0xd5, 0x28, 0x22, 0x9a, 0x3c,
};

const uint8_t *kern_selftest_golden(void) {
    return golden;
}

void kern_numerics_id(const uint8_t digest[DIGEST_BYTES], const struct matmul_blas *blas,
                      char ret[KERN_NUMERICS_ID_MAX]) {
    char hex[2 * DIGEST_BYTES + 1];
    digest_hex(digest, DIGEST_BYTES, hex);
    if (blas)
        snprintf(ret, KERN_NUMERICS_ID_MAX, "%d-%s-openblas-%.32s-%.32s", KERN_CONTRACT_VERSION,
                 hex, matmul_blas_version(blas), matmul_blas_core(blas));
    else
        snprintf(ret, KERN_NUMERICS_ID_MAX, "%d-%s", KERN_CONTRACT_VERSION, hex);
}
