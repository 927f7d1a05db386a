/* bench_matmul - speed of products by weight type and number of rows, one thread.
 *
 * bench_matmul [isa|best] [type]
 *
 * The matrix is SmolLM2-135M's feed-forward (1536 x 576; types in blocks of 256: as many weights, 1152 x 768);
 * 24 of them take turns, so that few rows find the weights in L3 as in a real pass, not in L2. Share: of the measured peak (VNNI for quantised
 * weights, FMA for float ones); for one row the rate of weight bytes says more. */
#include "bench_util.h"

#include "common/check.h"
#include "worker/kernels/matmul.h"

#define N_WEIGHTS (1536 * 576)
#define MAX_IN 768
#define MAX_OUT 1536
#define MAX_ROWS 512
#define N_MATS 24

struct rig {
    struct matmul_env env;
    struct packed_mat *mats[N_MATS];
    float *x, *y;
    uint32_t rows, n_in, n_out;
};

static void run(void *arg) {
    struct rig *r = arg;
    struct matmul_in in = {.x = r->x, .x_stride = r->n_in, .n_rows = r->rows};
    for (size_t i = 0; i < N_MATS; i++) {
        struct matmul_out out = {.w = r->mats[i], .y = r->y, .y_stride = r->n_out};
        matmul(&r->env, &in, &out, 1);
    }
}

static void bench_type(struct rig *r, const struct quant_type *t, double peak_int,
                       double peak_float) {
    static const uint32_t row_counts[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};
    r->n_in = t->block_items == 256 ? 768 : 576;
    r->n_out = N_WEIGHTS / r->n_in;
    size_t bytes = quant_row_bytes(t, r->n_in) * r->n_out;
    uint8_t *w = calloc(1, bytes);
    CHECK(w);
    for (size_t i = 0; i < bytes; i++)
        w[i] = (uint8_t)(i * 2654435761u >> 13 & 0x3f);
    for (size_t i = 0; t->dtype == QUANT_MXFP4 && i < bytes; i += t->block_bytes)
        w[i] = 118; /* else denormals, which are slow */
    struct packed_src src = {t->dtype, r->n_out, r->n_in, w, bytes, false, NULL};
    for (size_t i = 0; i < N_MATS; i++)
        CHECK(packed_mat_new(&r->mats[i], &src, NULL) == 0);
    double peak = t->block_items > 1 && peak_int > 0 ? peak_int : peak_float;
    for (size_t i = 0; i < ARRAY_LEN(row_counts); i++) {
        r->rows = row_counts[i];
        double s = best_s(run, r, 0.15) / N_MATS;
        double ops = 2.0 * N_WEIGHTS * r->rows / s;
        printf("%-6s %4u rows: %8.1f GOPS, %4.0f%% of peak, %6.1f GB/s of weights\n", t->name,
               r->rows, ops * 1e-9, peak > 0 ? 100 * ops / peak : 0,
               (double)packed_mat_bytes(r->mats[0]) / s * 1e-9);
    }
    for (size_t i = 0; i < N_MATS; i++)
        packed_mat_free(r->mats[i]);
    free(w);
}

int main(int argc, char **argv) {
    struct errbuf eb;
    struct rig r = {
        .env.ops = kernels_pick(argc > 1 && strcmp(argv[1], "best") != 0 ? argv[1] : NULL, &eb)};
    if (!r.env.ops) {
        fprintf(stderr, "bench_matmul: %s\n", eb.text);
        return 1;
    }
    double dot = peak_dot(), fma = peak_fma();
    printf("%s; peaks: FMA %.0f GFLOPS, VNNI %.0f GOPS\n", r.env.ops->name, fma * 1e-9, dot * 1e-9);
    CHECK(matmul_scratch_new(&r.env.scratch, MAX_ROWS, MAX_IN, 1) == 0);
    r.x = alloc_array(MAX_ROWS * MAX_IN, sizeof(float));
    r.y = alloc_array(MAX_ROWS * MAX_OUT, sizeof(float));
    CHECK(r.x && r.y);
    for (size_t i = 0; i < MAX_ROWS * MAX_IN; i++)
        r.x[i] = (float)(i * 40503 % 1021) * 0.002f - 1.0f;
    size_t n;
    const struct quant_type *types = quant_type_table(&n);
    for (size_t i = 0; i < n; i++)
        if (argc < 3 || strcmp(argv[2], types[i].name) == 0)
            bench_type(&r, &types[i], dot, fma);
    matmul_scratch_free(r.env.scratch);
    free(r.x);
    free(r.y);
    return 0;
}
