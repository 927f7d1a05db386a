/* bench_attn - attention of one layer (9 heads, 3 KV heads, 64 wide, pages of 32), one thread.
 *
 * bench_attn [isa [K dtype [V dtype]]]     f16 without
 *
 * Prefill: the last 16 rows of the context in one call, one layer. Decode: one row; layers take turns over
 * more memory than L2 holds, as in a real pass. Calls are short, so that on a shared machine some are whole. Operations: 4 * 64 per head and visible position. */
#include "bench_util.h"

#include "common/check.h"
#include "worker/kernels/attn_paged.h"

#define MAX_CTX 8192
#define ROWS 16
#define N_LAYERS 16
#define B 32
#define D 64
#define HEADS 9
#define KV_HEADS 3

struct rig {
    const struct kern_ops *ops;
    struct attn_shape shape;
    struct attn_scratch *scratch;
    uint8_t *pages[MAX_CTX / B];
    float *q, *out;
    uint32_t pos0, rows, layers;
    size_t layer_bytes;
};

static void run(void *arg) {
    struct rig *r = arg;
    struct attn_seq seq = {.q = r->q,
                           .out = r->out,
                           .q_stride = HEADS * D,
                           .out_stride = HEADS * D,
                           .pages = (const uint8_t *const *)r->pages,
                           .n_rows = r->rows,
                           .pos0 = r->pos0};
    for (uint32_t l = 0; l < r->layers; l++) {
        struct attn_shape s = r->shape;
        s.k_off += l * r->layer_bytes;
        s.k_scale_off += l * r->layer_bytes;
        s.v_off += l * r->layer_bytes;
        s.v_scale_off += l * r->layer_bytes;
        attn_paged(r->ops, NULL, r->scratch, &s, &seq, 1);
    }
}

static void bench(struct rig *r, uint32_t pos0, uint32_t rows, double peak) {
    r->pos0 = pos0;
    r->rows = rows;
    const double kv = (double)r->layer_bytes * ((pos0 + rows + B - 1) / B);
    r->layers = rows == 1 ? MIN(N_LAYERS, 1 + (uint32_t)(8e6 / kv)) : 1;
    double s = best_s(run, r, 0.5) / r->layers, ops = 0;
    for (uint32_t i = 0; i < rows; i++)
        ops += 4.0 * D * HEADS * (pos0 + i + 1);
    printf("%4u rows at %4u: %8.3f ms a layer, %6.1f GFLOPS, %3.0f%% of peak, K and V once at "
           "%5.1f GB/s\n",
           rows, pos0, s * 1e3, ops / s * 1e-9, peak > 0 ? 100 * ops / s / peak : 0, kv / s * 1e-9);
}

static int kv_dtype_of(const char *name, enum kv_dtype *ret) {
    for (unsigned t = 0; t < KV_N_DTYPES; t++)
        if (strcmp(name, kv_dtype_name((enum kv_dtype)t)) == 0) {
            *ret = (enum kv_dtype)t;
            return 0;
        }
    return ERR_UNSUPPORTED;
}

int main(int argc, char **argv) {
    struct errbuf eb;
    struct rig r = {.ops = kernels_pick(argc > 1 ? argv[1] : NULL, &eb)};
    if (!r.ops) {
        fprintf(stderr, "bench_attn: %s\n", eb.text);
        return 1;
    }
    struct kv_layout_cfg layout = {.n_kv_head = KV_HEADS, .d_head = D, .block_tok = B};
    if ((argc > 2 && kv_dtype_of(argv[2], &layout.k_dtype) < 0) ||
        (argc > 3 && kv_dtype_of(argv[3], &layout.v_dtype) < 0)) {
        fputs("bench_attn: dtypes are f16, f32, q8_0, q4_0\n", stderr);
        return 1;
    }
    struct kv_place at;
    r.layer_bytes = kv_range_place(&layout, &at);
    r.shape = (struct attn_shape){.n_head = HEADS,
                                  .n_kv_head = KV_HEADS,
                                  .head_dim = D,
                                  .block_tokens = B,
                                  .k_dtype = layout.k_dtype,
                                  .v_dtype = layout.v_dtype,
                                  .k_off = at.k,
                                  .k_scale_off = at.k_scale,
                                  .v_off = at.v,
                                  .v_scale_off = at.v_scale,
                                  .scale = 0.125f};
    struct attn_scratch_cfg cfg = {HEADS, KV_HEADS, D, MAX_CTX, 1, 1};
    CHECK(attn_scratch_new(&r.scratch, &cfg) == 0);
    size_t page = (r.layer_bytes * N_LAYERS + 4095) / 4096 * 4096;
    for (size_t i = 0; i < ARRAY_LEN(r.pages); i++) {
        r.pages[i] = aligned_alloc(4096, page);
        CHECK(r.pages[i]);
        for (size_t k = 0; k < page / 2; k++) /* halves around 0.5 */
            ((uint16_t *)(void *)r.pages[i])[k] = (uint16_t)(0x3800 + k * 40503 % 509);
    }
    r.q = alloc_array(ROWS * HEADS * D, sizeof(float));
    r.out = alloc_array(ROWS * HEADS * D, sizeof(float));
    CHECK(r.q && r.out);
    for (size_t i = 0; i < ROWS * HEADS * D; i++)
        r.q[i] = (float)(i * 40503 % 1021) * 0.0002f - 0.1f;
    double peak = peak_fma();
    printf("%s, K in %s, V in %s; peak FMA %.0f GFLOPS\n", r.ops->name,
           kv_dtype_name(r.shape.k_dtype), kv_dtype_name(r.shape.v_dtype), peak * 1e-9);
    bench(&r, 2048 - ROWS, ROWS, peak);
    bench(&r, 8192 - ROWS, ROWS, peak);
    bench(&r, 127, 1, peak);
    bench(&r, 511, 1, peak);
    bench(&r, 2047, 1, peak);
    bench(&r, 8191, 1, peak);
    attn_scratch_free(r.scratch);
    for (size_t i = 0; i < ARRAY_LEN(r.pages); i++)
        free(r.pages[i]);
    free(r.q);
    free(r.out);
    return 0;
}
