#include "kern_fixture.h"

#include "worker/kernels/matmul_blas.h"

#define MAX_ROWS 239 /* 18 row tiles: AVX-512 changes its way at 16 */
#define MAX_IN 1024
#define MAX_OUT 100

struct fixture {
    const struct kern_ops *tables[2];
    size_t n_tables;
    struct rng rng;
    struct kern_team *team;
    struct matmul_scratch *scratch;
    float x[MAX_ROWS * MAX_IN], want[MAX_ROWS * MAX_OUT], got[MAX_ROWS * MAX_OUT];
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    f->n_tables = kern_tables(f->tables);
    f->rng.s = 1;
    if (kern_team_new(&f->team, 3, NULL) < 0 ||
        matmul_scratch_new(&f->scratch, MAX_ROWS, MAX_IN, 3) < 0)
        return -1;
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    kern_team_free(f->team);
    matmul_scratch_free(f->scratch);
    free(f);
    return 0;
}

/* Columns that are not too many and whole blocks of the type. */
static uint32_t whole_blocks(const struct quant_type *t, uint32_t n_in) {
    return (n_in + t->block_items - 1) / t->block_items * t->block_items;
}

static struct packed_mat *pack(const struct quant_type *t, uint32_t n_out, uint32_t n_in,
                               const uint8_t *w, size_t n) {
    struct packed_src src = {t->dtype, n_out, n_in, w, n, true, NULL};
    struct packed_mat *m;
    struct errbuf eb;
    if (packed_mat_new(&m, &src, &eb) < 0)
        fail_msg("pack: %s", eb.text);
    return m;
}

static void run(struct fixture *f, const struct kern_ops *ops, struct kern_team *team,
                const struct packed_mat *m, const float *x, uint32_t rows, float *y) {
    struct matmul_env env = {.ops = ops, .team = team, .scratch = f->scratch};
    struct matmul_in in = {.x = x, .x_stride = packed_mat_n_in(m), .n_rows = rows};
    struct matmul_out out = {.w = m, .y = y, .y_stride = packed_mat_n_out(m)};
    matmul(&env, &in, &out, 1);
}

/* Every table, every type, all output tails, 1 .. 239 rows, kinds of input: bits of the reference. */
static void test_all_tables_give_the_bits_of_the_reference(void **state) {
    struct fixture *f = *state;
    static const uint32_t outs[] = {1, 5, 15, 16, 17, 31, 33, 64, 65, 79, 100};
    static const uint32_t ins[] = {32, 64, 96, 160, 576};
    size_t n_types;
    const struct quant_type *types = quant_type_table(&n_types);
    for (uint32_t c = 0; c < 1120; c++) {
        const struct quant_type *t = &types[c % n_types];
        uint32_t n_out = outs[c / n_types % ARRAY_LEN(outs)], n_in = ins[c % ARRAY_LEN(ins)];
        uint32_t rows = 1 + (c % 4 ? c * 37 % 70 : c * 37 % MAX_ROWS);
        if (t->block_items == 1)
            n_in -= c % 7; /* float types take any k */
        n_in = whole_blocks(t, n_in);
        size_t bytes;
        uint8_t *w = random_weights(&f->rng, t, n_out, n_in, c % 3 == 0, &bytes);
        struct packed_mat *m = pack(t, n_out, n_in, w, bytes);
        fill_input(&f->rng, (enum input_kind)(c % IN_KINDS), f->x, (size_t)rows * n_in);
        run(f, f->tables[0], NULL, m, f->x, rows, f->want);
        for (size_t i = 1; i < f->n_tables; i++) {
            memset(f->got, 0xa5, sizeof f->got);
            run(f, f->tables[i], NULL, m, f->x, rows, f->got);
            char what[96];
            snprintf(what, sizeof what, "%s %s %u x %u, %u rows", f->tables[i]->name, t->name,
                     n_out, n_in, rows);
            assert_same_bits(f->got, f->want, (size_t)rows * n_out, what);
        }
        packed_mat_free(m);
        free(w);
    }
}

/* A row alone, in every row count up to two tiles, and with a team: the same bits. */
static void test_row_alone_equals_row_in_company(void **state) {
    struct fixture *f = *state;
    enum { N_OUT = 71, ROWS = 31 };
    size_t n_types;
    const struct quant_type *types = quant_type_table(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        const uint32_t N_IN = whole_blocks(&types[t], 64);
        size_t bytes;
        uint8_t *w = random_weights(&f->rng, &types[t], N_OUT, N_IN, false, &bytes);
        struct packed_mat *m = pack(&types[t], N_OUT, N_IN, w, bytes);
        fill_input(&f->rng, IN_NORMAL, f->x, ROWS * N_IN);
        for (size_t i = 0; i < f->n_tables; i++) {
            for (uint32_t r = 0; r < ROWS; r++)
                run(f, f->tables[i], NULL, m, f->x + r * N_IN, 1, f->want + r * N_OUT);
            for (uint32_t rows = 2; rows <= ROWS; rows++) {
                run(f, f->tables[i], rows % 2 ? f->team : NULL, m, f->x, rows, f->got);
                assert_same_bits(f->got, f->want, (size_t)rows * N_OUT, types[t].name);
            }
        }
        packed_mat_free(m);
        free(w);
    }
}

/* Independent of packing and of every kernel: dequantised weights times the activations in double.
 * The allowed error is the contract's own: one rounding to 1/254 of the block's largest activation. */
static void check_against_double(struct fixture *f, const struct quant_type *t, uint32_t rows,
                                 uint32_t n_out, uint32_t n_in) {
    size_t bytes;
    n_in = whole_blocks(t, n_in);
    uint8_t *w = random_weights(&f->rng, t, n_out, n_in, false, &bytes);
    struct packed_mat *m = pack(t, n_out, n_in, w, bytes);
    float *row = malloc(n_in * sizeof *row);
    fill_input(&f->rng, IN_NORMAL, f->x, (size_t)rows * n_in);
    for (size_t i = 0; i < f->n_tables; i++) {
        run(f, f->tables[i], NULL, m, f->x, rows, f->got);
        for (uint32_t o = 0; o < n_out; o++) {
            quant_dequant_row(t, row, w, o, n_in);
            for (uint32_t r = 0; r < rows; r++) {
                double sum = 0, mag = 0, mag_w = 0;
                for (uint32_t k = 0; k < n_in; k++) {
                    sum += (double)row[k] * (double)f->x[r * n_in + k];
                    mag += fabs((double)row[k] * (double)f->x[r * n_in + k]);
                    mag_w += fabs((double)row[k]);
                }
                double tol = mag * 1e-6 + (t->block_items > 1 ? mag_w * 3.0 / 254 : 0);
                double err = fabs((double)f->got[r * n_out + o] - sum);
                if (!(err <= tol))
                    fail_msg("%s %s row %u output %u: %g, double says %g", f->tables[i]->name,
                             t->name, r, o, (double)f->got[r * n_out + o], sum);
            }
        }
    }
    free(row);
    packed_mat_free(m);
    free(w);
}

static void test_product_is_near_the_double_product(void **state) {
    struct fixture *f = *state;
    size_t n_types;
    const struct quant_type *types = quant_type_table(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        check_against_double(f, &types[t], 1, 37, 576);
        check_against_double(f, &types[t], 9, 48, 96);
        check_against_double(f, &types[t], 29, 20, 64);
    }
}

/* When activations are whole numbers up to 127 with a 127 in each block, nothing is rounded before the
 * float sums: the result must match a double of the same numbers to float precision. */
static void test_whole_number_activations_lose_nothing(void **state) {
    struct fixture *f = *state;
    enum { N_OUT = 33, N_IN = 256, ROWS = 17 };
    size_t n_types;
    const struct quant_type *types = quant_type_table(&n_types);
    float row[N_IN];
    for (size_t t = 0; t < n_types; t++) {
        size_t bytes;
        uint8_t *w = random_weights(&f->rng, &types[t], N_OUT, N_IN, false, &bytes);
        struct packed_mat *m = pack(&types[t], N_OUT, N_IN, w, bytes);
        for (size_t i = 0; i < ROWS * N_IN; i++)
            f->x[i] = i % 32 == 5 ? -127.0f : (float)((int)(rng_u32(&f->rng) % 255) - 127);
        for (size_t i = 0; i < f->n_tables; i++) {
            run(f, f->tables[i], f->team, m, f->x, ROWS, f->got);
            for (uint32_t o = 0; o < N_OUT; o++) {
                quant_dequant_row(&types[t], row, w, o, N_IN);
                for (uint32_t r = 0; r < ROWS; r++) {
                    double sum = 0, mag = 0;
                    for (uint32_t k = 0; k < N_IN; k++) {
                        sum += (double)row[k] * (double)f->x[r * N_IN + k];
                        mag += fabs((double)row[k] * (double)f->x[r * N_IN + k]);
                    }
                    double err = fabs((double)f->got[r * N_OUT + o] - sum);
                    assert_true(err <= mag * 1e-6);
                }
            }
        }
        packed_mat_free(m);
        free(w);
    }
}

/* Q, K, V of different types and sizes in one call equal three calls; strides are respected. */
static void test_several_outs_equal_single_calls(void **state) {
    struct fixture *f = *state;
    enum { N_IN = 256, ROWS = 20, STRIDE = 80, N = 8 };
    static const uint32_t dtypes[N] = {QUANT_Q2_K, QUANT_Q4_0, QUANT_Q8_0, QUANT_F16,
                                       QUANT_Q4_1, QUANT_Q4_0, QUANT_Q6_K, QUANT_Q4_K};
    static const uint32_t n_outs[N] = {40, 70, 17, 33, 48, 1, 20, 31};
    struct packed_mat *m[N];
    uint8_t *w[N];
    float *y[N];
    struct matmul_out outs[N];
    for (size_t i = 0; i < N; i++) {
        size_t bytes;
        const struct quant_type *t = quant_type_find(dtypes[i]);
        w[i] = random_weights(&f->rng, t, n_outs[i], N_IN, false, &bytes);
        m[i] = pack(t, n_outs[i], N_IN, w[i], bytes);
        y[i] = malloc(ROWS * STRIDE * sizeof(float));
        for (size_t k = 0; k < ROWS * STRIDE; k++)
            y[i][k] = 12345.0f;
        outs[i] = (struct matmul_out){m[i], y[i], STRIDE};
    }
    fill_input(&f->rng, IN_NORMAL, f->x, ROWS * (N_IN + 3));
    struct matmul_env env = {
        .ops = kernels_pick(NULL, NULL), .team = f->team, .scratch = f->scratch};
    struct matmul_in in = {.x = f->x, .x_stride = N_IN + 3, .n_rows = ROWS};
    matmul(&env, &in, outs, N);
    for (size_t i = 0; i < N; i++) {
        for (uint32_t r = 0; r < ROWS; r++) {
            run(f, f->tables[0], NULL, m[i], f->x + r * (N_IN + 3), 1, f->want);
            assert_same_bits(y[i] + r * STRIDE, f->want, n_outs[i], "several outs");
            for (size_t o = n_outs[i]; o < STRIDE; o++)
                assert_true(y[i][r * STRIDE + o] == 12345.0f);
        }
        packed_mat_free(m[i]);
        free(w[i]);
        free(y[i]);
    }
}

static void test_nan_input_stays_in_its_row(void **state) {
    struct fixture *f = *state;
    enum { N_OUT = 20, ROWS = 9 };
    size_t n_types;
    const struct quant_type *types = quant_type_table(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        const uint32_t N_IN = whole_blocks(&types[t], 64);
        size_t bytes;
        uint8_t *w = random_weights(&f->rng, &types[t], N_OUT, N_IN, false, &bytes);
        struct packed_mat *m = pack(&types[t], N_OUT, N_IN, w, bytes);
        fill_input(&f->rng, IN_NORMAL, f->x, ROWS * N_IN);
        f->x[4 * N_IN + 40] = NAN;
        for (size_t i = 0; i < f->n_tables; i++) {
            run(f, f->tables[i], NULL, m, f->x, ROWS, f->got);
            for (size_t k = 0; k < ROWS * N_OUT; k++)
                assert_int_equal(isnan(f->got[k]) != 0, k / N_OUT == 4);
        }
        packed_mat_free(m);
        free(w);
    }
}

static void test_pack_refuses_bad_input(void **state) {
    (void)state;
    uint8_t w[2 * 18] = {0};
    struct packed_mat *m;
    struct packed_src src = {21 /* IQ3_S */, 1, 256, w, 110, false, NULL};
    assert_int_equal(packed_mat_new(&m, &src, NULL), ERR_UNSUPPORTED);
    src = (struct packed_src){QUANT_Q4_0, 2, 33, w, sizeof w, false, NULL};
    assert_int_equal(packed_mat_new(&m, &src, NULL), ERR_INVALID);
    src = (struct packed_src){QUANT_Q4_0, 2, 32, w, sizeof w - 1, false, NULL};
    assert_int_equal(packed_mat_new(&m, &src, NULL), ERR_INVALID);
    src.n_bytes++;
    w[18 + 1] = 0x7c; /* the second row's scale is infinite */
    assert_int_equal(packed_mat_new(&m, &src, NULL), ERR_CORRUPT);
    w[18 + 1] = 0x7b;
    assert_int_equal(packed_mat_new(&m, &src, NULL), 0);
    packed_mat_free(m);
    struct errbuf eb;
    src = (struct packed_src){QUANT_MXFP4, 2, 32, w, 34, false, NULL};
    w[17] = QUANT_MXFP4_MAX_E + 1;
    assert_int_equal(packed_mat_new(&m, &src, &eb), ERR_CORRUPT);
    assert_string_equal(eb.text,
                        "mxfp4 weights: scale of block 0 of row 1 has an exponent above 232");
    w[17]--;
    assert_int_equal(packed_mat_new(&m, &src, NULL), 0);
    packed_mat_free(m);
}

/* What is kept a weight: llama.cpp's bits and at most a tenth more. */
static void test_packed_weights_take_the_file_s_bits(void **state) {
    struct fixture *f = *state;
    static const uint32_t dtypes[] = {
        QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0, QUANT_Q5_1,   QUANT_Q8_0,   QUANT_Q2_K, QUANT_Q3_K,
        QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL, QUANT_IQ4_XS, QUANT_MXFP4};
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
        const struct quant_type *t = quant_type_find(dtypes[i]);
        size_t bytes;
        uint8_t *w = random_weights(&f->rng, t, 64, 2048, false, &bytes);
        struct packed_mat *m = pack(t, 64, 2048, w, bytes);
        assert_in_range(packed_mat_bytes(m), bytes, bytes + bytes / 10);
        packed_mat_free(m);
        free(w);
    }
}

int main(int argc, char **argv) {
    int rc = kern_isa_arg(argc, argv);
    if (rc >= 0)
        return rc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_tables_give_the_bits_of_the_reference),
        cmocka_unit_test(test_row_alone_equals_row_in_company),
        cmocka_unit_test(test_product_is_near_the_double_product),
        cmocka_unit_test(test_whole_number_activations_lose_nothing),
        cmocka_unit_test(test_several_outs_equal_single_calls),
        cmocka_unit_test(test_nan_input_stays_in_its_row),
        cmocka_unit_test(test_pack_refuses_bad_input),
        cmocka_unit_test(test_packed_weights_take_the_file_s_bits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
