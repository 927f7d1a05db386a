#include "kern_fixture.h"

#include "worker/kernels/matmul_blas.h"

#define N_OUT 150
#define N_IN 256
#define MAX_ROWS 100

struct fixture {
    struct matmul_blas *blas; /* NULL: a build without OpenBLAS, or one that computes wrong here */
    struct kern_team *team;
    struct matmul_scratch *scratch;
    float x[MAX_ROWS * N_IN], want[MAX_ROWS * N_OUT], got[MAX_ROWS * N_OUT];
    uint32_t pos[MAX_ROWS];
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct errbuf eb;
    if (kern_team_new(&f->team, 3, NULL) < 0 ||
        matmul_scratch_new(&f->scratch, MAX_ROWS, N_IN, 3) < 0)
        return -1;
    if (matmul_blas_new(&f->blas, N_IN, 3, &eb) < 0) {
        fprintf(stderr, "skipped: %s\n", eb.text);
        f->blas = NULL;
    }
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    matmul_blas_free(f->blas);
    kern_team_free(f->team);
    matmul_scratch_free(f->scratch);
    free(f);
    return 0;
}

static void run(struct fixture *f, struct kern_team *team, const struct packed_mat *m,
                uint32_t first, uint32_t rows, float *y) {
    struct matmul_env env = {kernels_pick(NULL, NULL), team, f->scratch, f->blas};
    struct matmul_in in = {f->x + first * N_IN, N_IN, rows, f->pos + first};
    struct matmul_out out = {m, y, N_OUT};
    matmul(&env, &in, &out, 1);
}

/* Rows of two sequences, cut in chunks of any size, with and without a team: the bits of a row come
 * from its inputs and position alone, and they are near the double product of the dequantised row. */
static void test_row_depends_on_position_and_input_alone(void **state) {
    struct fixture *f = *state;
    if (!f->blas)
        skip();
    struct rng r = {12};
    size_t n_types;
    const struct quant_type *types = quant_type_table(&n_types);
    fill_input(&r, IN_NORMAL, f->x, MAX_ROWS * N_IN);
    for (uint32_t i = 0; i < MAX_ROWS; i++)
        f->pos[i] = i < 60 ? 45 + i : i - 60;
    for (size_t t = 0; t < n_types; t++) {
        size_t bytes;
        uint8_t *w = random_weights(&r, &types[t], N_OUT, N_IN, false, &bytes);
        struct packed_src src = {types[t].dtype, N_OUT, N_IN, w, bytes, true, NULL};
        struct packed_mat *m;
        assert_int_equal(packed_mat_new(&m, &src, NULL), 0);
        run(f, NULL, m, 0, MAX_ROWS, f->want);
        for (uint32_t chunk = 1; chunk < 40; chunk += 6) {
            for (uint32_t at = 0; at < MAX_ROWS; at += chunk)
                run(f, chunk % 4 == 1 ? f->team : NULL, m, at, MIN(chunk, MAX_ROWS - at),
                    f->got + at * N_OUT);
            assert_same_bits(f->got, f->want, MAX_ROWS * N_OUT, types[t].name);
        }
        float row[N_IN];
        for (uint32_t o = 0; o < N_OUT; o++) {
            quant_dequant_row(&types[t], row, w, o, N_IN);
            for (uint32_t i = 0; i < MAX_ROWS; i++) {
                double sum = 0, mag = 0;
                for (int k = 0; k < N_IN; k++) {
                    sum += (double)row[k] * (double)f->x[i * N_IN + (uint32_t)k];
                    mag += fabs((double)row[k] * (double)f->x[i * N_IN + (uint32_t)k]);
                }
                assert_true(fabs((double)f->want[i * N_OUT + o] - sum) <= 1e-6 * mag);
            }
        }
        packed_mat_free(m);
        free(w);
    }
}

/* Without positions (decode, logits) the exact kernels compute, whatever the mode. */
static void test_rows_without_position_are_exact(void **state) {
    struct fixture *f = *state;
    if (!f->blas)
        skip();
    struct rng r = {13};
    size_t bytes;
    const struct quant_type *t = quant_type_find(QUANT_Q8_0);
    uint8_t *w = random_weights(&r, t, N_OUT, N_IN, false, &bytes);
    struct packed_src src = {t->dtype, N_OUT, N_IN, w, bytes, true, NULL};
    struct packed_mat *m;
    assert_int_equal(packed_mat_new(&m, &src, NULL), 0);
    fill_input(&r, IN_NORMAL, f->x, 3 * N_IN);
    struct matmul_env env = {kernels_pick(NULL, NULL), NULL, f->scratch, NULL};
    struct matmul_in in = {f->x, N_IN, 3, NULL};
    struct matmul_out want = {m, f->want, N_OUT}, got = {m, f->got, N_OUT};
    matmul(&env, &in, &want, 1);
    env.blas = f->blas;
    matmul(&env, &in, &got, 1);
    assert_same_bits(f->got, f->want, 3 * N_OUT, "decode rows");
    packed_mat_free(m);
    free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_depends_on_position_and_input_alone),
        cmocka_unit_test(test_rows_without_position_are_exact),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
