#include "kern_fixture.h"

#include "worker/kernels/kern_impl.h"

#define MAX_POS 160
#define MAX_PAGES 600
#define MAX_DIM 96

/* One sequence with its K and V in pages of random garbage, and its queries. */
struct world {
    struct attn_shape shape;
    uint32_t n_pos, n_pages;
    size_t page_bytes;
    uint8_t *mem, **pages;
    float *q, *k, *v, *out;
    struct attn_scratch *scratch;
};

/* Runs from `at` on; returns their end. */
static size_t place(struct attn_shape *s, size_t at) {
    const struct kv_layout_cfg c = {1,          s->n_kv_head, s->head_dim, s->block_tokens,
                                    s->k_dtype, s->v_dtype,   NULL};
    struct kv_place p;
    size_t bytes = kv_range_place(&c, &p);
    s->k_off = at + p.k, s->k_scale_off = at + p.k_scale;
    s->v_off = at + p.v, s->v_scale_off = at + p.v_scale;
    return at + bytes;
}

static void world_open(struct world *w, struct rng *r, struct attn_shape shape, uint32_t n_pos) {
    w->shape = shape;
    w->page_bytes = (place(&w->shape, 64) + 63) & ~(size_t)63; /* as if another layer were before */
    w->n_pos = n_pos;
    w->n_pages = (n_pos + shape.block_tokens - 1) / shape.block_tokens;
    w->mem = aligned_alloc(64, w->n_pages * w->page_bytes);
    w->pages = calloc(w->n_pages, sizeof *w->pages);
    memset(w->mem, 0xff, w->n_pages * w->page_bytes); /* NaN in every unfilled place */
    for (uint32_t i = 0; i < w->n_pages; i++)
        w->pages[i] = w->mem + (w->n_pages - 1 - i) * w->page_bytes;
    size_t n_q = (size_t)n_pos * shape.n_head * shape.head_dim;
    size_t n_kv = (size_t)n_pos * shape.n_kv_head * shape.head_dim;
    w->q = malloc(n_q * sizeof(float));
    w->out = malloc(n_q * sizeof(float));
    w->k = malloc(n_kv * sizeof(float));
    w->v = malloc(n_kv * sizeof(float));
    fill_input(r, IN_NORMAL, w->q, n_q);
    fill_input(r, IN_NORMAL, w->k, n_kv);
    fill_input(r, IN_NORMAL, w->v, n_kv);
    struct attn_scratch_cfg cfg = {shape.n_head, shape.n_kv_head, shape.head_dim, n_pos, 4, 5};
    assert_int_equal(attn_scratch_new(&w->scratch, &cfg), 0);
}

static void world_close(struct world *w) {
    attn_scratch_free(w->scratch);
    free(w->mem);
    free(w->pages);
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->out);
}

/* Rows [pos0, pos0 + n) as one chunk: store, then attend. */
static void world_chunk(struct world *w, const struct kern_ops *ops, struct kern_team *team,
                        uint32_t pos0, uint32_t n) {
    size_t nq = (size_t)w->shape.n_head * w->shape.head_dim;
    size_t nkv = (size_t)w->shape.n_kv_head * w->shape.head_dim;
    struct attn_kv_rows rows = {w->k + pos0 * nkv, w->v + pos0 * nkv, nkv, nkv, w->pages, n, pos0};
    attn_store_kv(ops, &w->shape, &rows);
    /* A page before the window may be gone. */
    const uint8_t *seen[MAX_PAGES];
    assert_true(w->n_pages <= MAX_PAGES);
    for (uint32_t i = 0; i < w->n_pages; i++)
        seen[i] = w->shape.window && (i + 1) * w->shape.block_tokens + w->shape.window <= pos0 + 1
                      ? NULL
                      : w->pages[i];
    struct attn_seq seq = {w->q + pos0 * nq, w->out + pos0 * nq, nq, nq, seen, n, pos0};
    attn_paged(ops, team, w->scratch, &w->shape, &seq, 1);
}

static void world_run(struct world *w, const struct kern_ops *ops, struct kern_team *team,
                      uint32_t chunk) {
    memset(w->mem, 0xff, w->n_pages * w->page_bytes);
    for (uint32_t pos = 0; pos < w->n_pos; pos += chunk)
        world_chunk(w, ops, team, pos, MIN(chunk, w->n_pos - pos));
}

/* What attention reads of one head's row of K or V. */
static void stored(enum kv_dtype t, const float *x, size_t n, double *ret) {
    int8_t q[MAX_DIM];
    uint16_t scale[MAX_DIM / KV_QBLOCK];
    if (kv_is_scaled(t))
        assert_true(kv_quant_row(q, scale, x, n, t));
    for (size_t d = 0; d < n; d++)
        ret[d] = kv_is_scaled(t) ? (double)quant_f16_to_f32(scale[d / KV_QBLOCK]) * q[d]
                 : t == KV_F16   ? (double)quant_f16_to_f32(quant_f32_to_f16(x[d]))
                                 : (double)x[d];
}

/* The scaled query, as scores read it: with scaled K rounded to 127 steps each way in blocks of 32. */
static void asked(const struct attn_shape *s, const float *x, double *ret) {
    for (size_t from = 0; from < s->head_dim; from += KV_QBLOCK) {
        double most = 0;
        for (size_t d = from; d < MIN(from + KV_QBLOCK, s->head_dim); d++)
            most = MAX(most, fabs((double)(x[d] * s->scale)));
        for (size_t d = from; d < MIN(from + KV_QBLOCK, s->head_dim); d++) {
            ret[d] = (double)(x[d] * s->scale);
            if (kv_is_scaled(s->k_dtype))
                ret[d] = nearbyint((double)((float)ret[d] * (127.0f / (float)most))) * most / 127;
        }
    }
}

/* Plain attention in double from the rounded K and V. */
static void check_against_double(const struct world *w, const char *what) {
    const struct attn_shape *s = &w->shape;
    size_t nq = (size_t)s->n_head * s->head_dim, nkv = (size_t)s->n_kv_head * s->head_dim;
    double p[MAX_POS], o[MAX_DIM], q[MAX_DIM], row_kv[MAX_DIM];
    for (uint32_t row = 0; row < w->n_pos; row++)
        for (uint32_t h = 0; h < s->n_head; h++) {
            size_t kv = h / (s->n_head / s->n_kv_head) * s->head_dim;
            const uint32_t from = s->window && row >= s->window ? row + 1 - s->window : 0;
            double m = s->sinks ? (double)s->sinks[h] : -INFINITY, z;
            asked(s, w->q + row * nq + h * s->head_dim, q);
            for (uint32_t j = from; j <= row; j++) {
                p[j] = 0;
                stored(s->k_dtype, w->k + j * nkv + kv, s->head_dim, row_kv);
                for (uint32_t d = 0; d < s->head_dim; d++)
                    p[j] += q[d] * row_kv[d];
                if (s->softcap > 0)
                    p[j] = (double)s->softcap * tanh(p[j] / (double)s->softcap);
                m = MAX(m, p[j]);
            }
            memset(o, 0, sizeof o);
            z = s->sinks ? exp((double)s->sinks[h] - m) : 0;
            for (uint32_t j = from; j <= row; j++) {
                p[j] = exp(p[j] - m);
                z += p[j];
                stored(s->v_dtype, w->v + j * nkv + kv, s->head_dim, row_kv);
                for (uint32_t d = 0; d < s->head_dim; d++)
                    o[d] += p[j] * row_kv[d];
            }
            for (uint32_t d = 0; d < s->head_dim; d++) {
                double err = fabs((double)w->out[row * nq + h * s->head_dim + d] - o[d] / z);
                if (!(err <= 2e-5))
                    fail_msg("%s: row %u head %u d %u: off by %g", what, row, h, d, err);
            }
        }
}

/* heads, KV heads, head size, B, dtypes, scale, then offsets that place() fills. */
#define SHAPE(h, kv, d, b, k, v, c, ...)                                                           \
    {                                                                                              \
        .n_head = h, .n_kv_head = kv, .head_dim = d, .block_tokens = b, .k_dtype = k,              \
        .v_dtype = v, .scale = c, __VA_ARGS__                                                      \
    }

static const float some_sinks[9] = {-1.5f, 2.0f, 0.25f, 5.0f, -80.0f, 0.0f, 1.0f, -0.5f, 3.0f};

static const struct attn_shape shapes[] = {
    SHAPE(9, 3, 64, 32, KV_F16, KV_F16, 0.125f, ),
    SHAPE(9, 3, 64, 16, KV_F32, KV_F32, 0.125f, ),
    SHAPE(2, 2, 48, 48, KV_F16, KV_F32, 0.15f, ),
    SHAPE(14, 2, 16, 64, KV_F16, KV_F16, 0.25f, ),
    SHAPE(4, 1, 80, 32, KV_F32, KV_F16, 0.11f, ),
    SHAPE(4, 2, 32, 4, KV_F16, KV_F16, 0.2f, ),
    SHAPE(3, 3, 20, 7, KV_F32, KV_F32, 0.2f, ),
    SHAPE(2, 1, 64, 1, KV_F16, KV_F16, 0.125f, ),
    /* Scaled K and V, alike, apart and beside floats; three blocks of 32 a head; B no multiple of 32. */
    SHAPE(9, 3, 64, 32, KV_Q8_0, KV_Q8_0, 0.125f, ),
    SHAPE(9, 3, 64, 16, KV_Q4_0, KV_Q4_0, 0.125f, ),
    SHAPE(14, 2, 32, 64, KV_Q8_0, KV_Q4_0, 0.2f, ),
    SHAPE(4, 1, 96, 48, KV_Q4_0, KV_F16, 0.1f, .window = 50, .sinks = some_sinks),
    SHAPE(3, 3, 32, 16, KV_F32, KV_Q8_0, 0.2f, .window = 5, .softcap = 2.0f),
    /* Windows of one position, of a piece of a page, of several pages, and wider than any chunk; caps
     * that bend and caps that clip; sinks. */
    SHAPE(9, 3, 64, 32, KV_F16, KV_F16, 0.125f, .window = 1),
    SHAPE(3, 3, 32, 16, KV_F32, KV_F32, 0.2f, .window = 5),
    SHAPE(9, 3, 64, 32, KV_F16, KV_F16, 0.125f, .window = 32, .softcap = 2.0f),
    SHAPE(4, 1, 80, 16, KV_F32, KV_F16, 0.11f, .window = 50, .softcap = 0.5f, .sinks = some_sinks),
    SHAPE(9, 3, 64, 32, KV_F16, KV_F16, 0.125f, .window = 100, .sinks = some_sinks),
    SHAPE(9, 3, 64, 32, KV_F16, KV_F16, 0.5f, .softcap = 30.0f, .sinks = some_sinks),
    SHAPE(3, 3, 20, 7, KV_F32, KV_F32, 0.2f, .window = 10, .softcap = 50.0f, .sinks = some_sinks),
};

/* Every shape, cut in chunks of many sizes, on the table under test, alone and with a team: one result,
 * which is near double's. The whole prompt in one chunk on the reference is the truth. */
static void test_output_depends_on_neither_chunk_nor_table_nor_team(void **state) {
    (void)state;
    static const uint32_t chunks[] = {1, 2, 3, 5, 12, 13, 31, 32, 64, MAX_POS};
    const struct kern_ops *t[2];
    const struct kern_ops *own = t[kern_tables(t) - 1];
    struct rng r = {7};
    struct kern_team *team;
    assert_int_equal(kern_team_new(&team, 3, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct world w;
        uint32_t n_pos = 97 + (uint32_t)i % 7 * 9;
        world_open(&w, &r, shapes[i], n_pos);
        size_t n = (size_t)n_pos * shapes[i].n_head * shapes[i].head_dim;
        float *want = malloc(n * sizeof *want);
        uint8_t *pages = malloc(w.n_pages * w.page_bytes);
        world_run(&w, t[0], NULL, n_pos);
        check_against_double(&w, "reference");
        memcpy(want, w.out, n * sizeof *want);
        memcpy(pages, w.mem, w.n_pages * w.page_bytes);
        for (size_t c = 0; c < ARRAY_LEN(chunks); c++) {
            char what[64];
            snprintf(what, sizeof what, "shape %zu %s chunk %u", i, own->name, chunks[c]);
            world_run(&w, own, c % 2 ? team : NULL, chunks[c]);
            assert_same_bits(w.out, want, n, what);
            assert_memory_equal(pages, w.mem, w.n_pages * w.page_bytes);
        }
        free(want);
        free(pages);
        world_close(&w);
    }
    kern_team_free(team);
}

/* An infinite or NaN V of a later position must not reach an earlier row of the same block. */
static void test_row_never_sees_what_comes_later(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {8};
    struct world w;
    world_open(&w, &r, shapes[0], 40);
    size_t nq = 9 * 64, nkv = 3 * 64;
    float *want = malloc(40 * nq * sizeof *want);
    world_run(&w, t[0], NULL, 40);
    memcpy(want, w.out, 40 * nq * sizeof *want);
    for (size_t d = 0; d < nkv; d++) {
        w.v[38 * nkv + d] = INFINITY;
        w.k[38 * nkv + d] = NAN;
        w.v[39 * nkv + d] = NAN;
    }
    for (size_t k = 0; k < n_tables; k++) {
        world_run(&w, t[k], NULL, 40);
        assert_same_bits(w.out, want, 38 * nq, t[k]->name);
        assert_true(isnan(w.out[38 * nq]));
    }
    free(want);
    world_close(&w);
}

/* Scores far apart: probabilities below exp(-60) are exactly 0, the winner's row comes out. */
static void test_peaked_scores_give_the_winner(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {9};
    struct world w;
    world_open(&w, &r, shapes[0], 70);
    for (size_t i = 0; i < 70 * 3 * 64; i++)
        w.k[i] = i / (3 * 64) == 33 ? 100.0f : -100.0f;
    for (size_t i = 0; i < 70 * 9 * 64; i++)
        w.q[i] = 1.0f;
    for (size_t k = 0; k < n_tables; k++) {
        world_run(&w, t[k], NULL, 16);
        for (size_t h = 0; h < 9; h++)
            for (size_t d = 0; d < 64; d++)
                assert_true(w.out[(69 * 9 + h) * 64 + d] ==
                            quant_f16_to_f32(quant_f32_to_f16(w.v[(33 * 3 + h / 3) * 64 + d])));
    }
    world_close(&w);
}

/* Where exp ends: the winner's V is 0, so what shines through is the other positions' probability. */
static void test_probability_ends_at_minus_60(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {14};
    struct world w;
    struct attn_shape s = SHAPE(1, 1, 16, 16, KV_F32, KV_F32, 1.0f, );
    world_open(&w, &r, s, 20);
    for (size_t k = 0; k < n_tables; k++)
        for (int inside = 0; inside < 2; inside++) {
            for (size_t i = 0; i < 20 * 16; i++) {
                w.q[i] = i % 16 == 0 ? 1.0f : 0.0f;
                w.k[i] = i / 16 == 19 ? 100.0f : inside ? 40.5f : 39.5f;
                w.v[i] = i / 16 == 19 ? 0.0f : 1.0f;
            }
            world_run(&w, t[k], NULL, 20);
            for (size_t d = 0; d < 16; d++)
                assert_int_equal(w.out[19 * 16 + d] > 0.0f, inside);
        }
    world_close(&w);
}

/* The contract's order, written out for one head without the reference's helpers. */
static void test_order_of_sums_is_the_contract(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {10};
    struct world w;
    struct attn_shape s = SHAPE(1, 1, 16, 16, KV_F32, KV_F32, 0.25f, );
    enum { N = 50, D = 16 };
    world_open(&w, &r, s, N);
    float p[N], lane[16] = {0}, o[D] = {0}, m = -INFINITY;
    float *q = w.q + (N - 1) * D;
    for (int j = 0; j < N; j++) {
        float acc = 0;
        for (int d = 0; d < D; d++)
            acc = fmaf(q[d] * 0.25f, w.k[j * D + d], acc);
        p[j] = acc;
        m = fmaxf(m, acc);
    }
    float sum8[8], sum4[4];
    for (int j = 0; j < N; j++) {
        p[j] = kern_ref_exp(p[j] - m);
        lane[j % 16] += p[j];
        for (int d = 0; d < D; d++)
            o[d] = fmaf(p[j], w.v[j * D + d], o[d]);
    }
    for (int l = 0; l < 8; l++)
        sum8[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++)
        sum4[l] = sum8[l] + sum8[l + 4];
    float rz = 1.0f / ((sum4[0] + sum4[2]) + (sum4[1] + sum4[3]));
    for (size_t k = 0; k < n_tables; k++) {
        world_run(&w, t[k], NULL, N);
        for (int d = 0; d < D; d++)
            assert_true(w.out[(N - 1) * D + d] == o[d] * rz);
    }
    world_close(&w);
}

/* The contract's order with scaled K and V: two blocks of 32, one position with a probability of 1. */
static void test_order_of_scaled_sums_is_the_contract(void **state) {
    (void)state;
    enum { N = 3, D = 64 };
    static const enum kv_dtype types[] = {KV_Q8_0, KV_Q4_0};
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {16};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct world w;
        struct attn_shape s = SHAPE(1, 1, D, 16, types[i], types[i], 0.25f, );
        world_open(&w, &r, s, N);
        int8_t k[N][D], v[N][D];
        uint16_t sk[N][2], sv[N][2];
        float p[N], m = -INFINITY, o[D] = {0}, z = 0.0f;
        for (int j = 0; j < N; j++) {
            assert_true(kv_quant_row(k[j], sk[j], w.k + j * D, D, types[i]));
            assert_true(kv_quant_row(v[j], sv[j], w.v + j * D, D, types[i]));
            p[j] = 0.0f;
            for (int b = 0; b < 2; b++) {
                float most = 0.0f;
                int32_t idot = 0;
                for (int d = b * 32; d < b * 32 + 32; d++)
                    most = fmaxf(most, fabsf(w.q[(N - 1) * D + d] * 0.25f));
                for (int d = b * 32; d < b * 32 + 32; d++)
                    idot += k[j][d] *
                            (int32_t)nearbyintf(w.q[(N - 1) * D + d] * 0.25f * (127.0f / most));
                p[j] = fmaf(quant_f16_to_f32(sk[j][b]) * (float)idot, most / 127.0f, p[j]);
            }
            m = fmaxf(m, p[j]);
        }
        for (int j = 0; j < N; j++) {
            p[j] = kern_ref_exp(p[j] - m);
            for (int d = 0; d < D; d++)
                o[d] = fmaf(p[j], quant_f16_to_f32(sv[j][d / 32]) * (float)v[j][d], o[d]);
        }
        z = (p[0] + p[2]) + p[1];
        for (size_t n = 0; n < n_tables; n++) {
            world_run(&w, t[n], NULL, N);
            for (int d = 0; d < D; d++)
                assert_true(w.out[(N - 1) * D + d] == o[d] * (1.0f / z));
        }
        world_close(&w);
    }
}

/* What can't be rounded is told, wherever in the row it stands, for K and V of each dtype; the row that
 * can, is not. */
static void test_row_errors_are_told_for_each_dtype(void **state) {
    (void)state;
    static const struct {
        float bad;
        bool is_error[KV_N_DTYPES]; /* f16, f32, q8_0, q4_0 */
    } cases[] = {
        {NAN, {true, true, true, true}},
        {-INFINITY, {true, true, true, true}},
        {3e38f, {true, false, true, true}},
        {8.4e6f, {true, false, true, true}},  /* 127 times the largest half and a bit */
        {5.5e5f, {true, false, false, true}}, /* 8 times */
        {7e4f, {true, false, false, false}},
        {6e4f, {false, false, false, false}},
    };
    struct rng r = {17};
    for (unsigned t = 0; t < KV_N_DTYPES; t++) {
        struct world w;
        struct attn_shape s = SHAPE(2, 2, 64, 16, (enum kv_dtype)t, (enum kv_dtype)t, 0.25f, );
        world_open(&w, &r, s, 2);
        const struct attn_kv_rows rows = {w.k, w.v, 128, 128, w.pages, 2, 0};
        assert_true(attn_store_kv(kernels_pick(kern_isa, NULL), &w.shape, &rows));
        for (size_t i = 0; i < ARRAY_LEN(cases); i++)
            for (int at = 0; at < 4; at++) { /* first and last of K and of V */
                float *x = (at < 2 ? w.k : w.v) + (at % 2 ? 255 : 0), was = *x;
                *x = cases[i].bad;
                assert_int_equal(attn_store_kv(kernels_pick(kern_isa, NULL), &w.shape, &rows),
                                 !cases[i].is_error[t]);
                *x = was;
            }
        world_close(&w);
    }
}

/* Several sequences of different lengths in one call, rows with strides, equal single calls. */
static void test_batch_of_sequences_equals_single_calls(void **state) {
    (void)state;
    struct rng r = {11};
    const struct kern_ops *ops = kernels_pick(NULL, NULL);
    struct kern_team *team;
    assert_int_equal(kern_team_new(&team, 3, NULL), 0);
    struct world w[3];
    float *got[3];
    struct attn_seq seqs[3];
    static const uint32_t n_pos[3] = {40, 97, 66}, n_new[3] = {1, 30, 1};
    for (int i = 0; i < 3; i++) {
        world_open(&w[i], &r, shapes[0], n_pos[i]);
        world_run(&w[i], ops, NULL, 32);
        got[i] = calloc(30 * 600, sizeof(float));
        seqs[i] = (struct attn_seq){w[i].q + (n_pos[i] - n_new[i]) * 576,
                                    got[i],
                                    576,
                                    600,
                                    (const uint8_t *const *)w[i].pages,
                                    n_new[i],
                                    n_pos[i] - n_new[i]};
    }
    attn_paged(ops, team, w[1].scratch, &w[0].shape, seqs, 3);
    for (int i = 0; i < 3; i++) {
        for (uint32_t row = 0; row < n_new[i]; row++)
            assert_same_bits(got[i] + row * 600, w[i].out + (n_pos[i] - n_new[i] + row) * 576, 576,
                             "batch");
        free(got[i]);
        world_close(&w[i]);
    }
    kern_team_free(team);
}

/* A long context and more threads than KV heads: blocks are split over the team. Every shape, 1 and 3
 * new rows, teams that divide the blocks and teams that do not. */
static void test_blocks_split_over_a_team_give_the_same_bits(void **state) {
    (void)state;
    const struct kern_ops *t[2];
    size_t n_tables = kern_tables(t);
    struct rng r = {15};
    static const unsigned sizes[] = {2, 4, 5};
    struct kern_team *teams[ARRAY_LEN(sizes)];
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        assert_int_equal(kern_team_new(&teams[i], sizes[i], NULL), 0);
    enum { N = 523 + 60 };
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct world w;
        world_open(&w, &r, shapes[i], N);
        size_t nq = (size_t)shapes[i].n_head * shapes[i].head_dim;
        float *want = malloc(3 * nq * sizeof *want);
        world_run(&w, t[n_tables - 1], NULL, 64);
        memcpy(want, w.out + (N - 3) * nq, 3 * nq * sizeof *want);
        for (size_t k = 0; k < n_tables; k++)
            for (size_t c = 0; c < ARRAY_LEN(sizes); c++)
                for (uint32_t rows = 1; rows <= 3; rows += 2) {
                    memset(w.out + (N - 3) * nq, 0, 3 * nq * sizeof *want);
                    world_chunk(&w, t[k], teams[c], N - rows, rows);
                    assert_same_bits(w.out + (N - rows) * nq, want + (3 - rows) * nq, rows * nq,
                                     "split");
                }
        free(want);
        world_close(&w);
    }
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        kern_team_free(teams[i]);
}

int main(int argc, char **argv) {
    int rc = kern_isa_arg(argc, argv);
    if (rc >= 0)
        return rc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_output_depends_on_neither_chunk_nor_table_nor_team),
        cmocka_unit_test(test_row_never_sees_what_comes_later),
        cmocka_unit_test(test_peaked_scores_give_the_winner),
        cmocka_unit_test(test_probability_ends_at_minus_60),
        cmocka_unit_test(test_order_of_sums_is_the_contract),
        cmocka_unit_test(test_order_of_scaled_sums_is_the_contract),
        cmocka_unit_test(test_row_errors_are_told_for_each_dtype),
        cmocka_unit_test(test_blocks_split_over_a_team_give_the_same_bits),
        cmocka_unit_test(test_batch_of_sequences_equals_single_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
