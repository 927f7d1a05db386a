/* bench_attn - attention of one layer (9 heads, 3 KV heads, 64 wide, pages of 32, f16), one thread.
 *
 * bench_attn [isa]
 *
 * Prefill: the last 512 rows of the context in one call. Decode: one row; layers take turns over more
 * memory than L2 holds, as in a real pass. Operations: 4 * 64 per head and visible position. */
#include "bench_util.h"

#include "common/check.h"
#include "worker/kernels/attn_paged.h"

#define MAX_CTX 4096
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
    uint32_t pos0, rows;
};

static void run(void *arg) {
    struct rig *r = arg;
    size_t bytes = kv_run_bytes(KV_F16, KV_HEADS, D, B);
    struct attn_seq seq = {.q = r->q,
                           .out = r->out,
                           .q_stride = HEADS * D,
                           .out_stride = HEADS * D,
                           .pages = (const uint8_t *const *)r->pages,
                           .n_rows = r->rows,
                           .pos0 = r->pos0};
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        r->shape.k_off = 2 * bytes * l;
        r->shape.v_off = r->shape.k_off + bytes;
        attn_paged(r->ops, NULL, r->scratch, &r->shape, &seq, 1);
    }
}

static void bench(struct rig *r, uint32_t pos0, uint32_t rows, double peak) {
    r->pos0 = pos0;
    r->rows = rows;
    double s = best_s(run, r, 0.3) / N_LAYERS, ops = 0;
    for (uint32_t i = 0; i < rows; i++)
        ops += 4.0 * D * HEADS * (pos0 + i + 1);
    double kv = 2.0 * (double)kv_run_bytes(KV_F16, KV_HEADS, D, B) * ((pos0 + rows + B - 1) / B);
    printf("%4u rows at %4u: %8.3f ms a layer, %6.1f GFLOPS, %3.0f%% of peak, K and V once at "
           "%5.1f GB/s\n",
           rows, pos0, s * 1e3, ops / s * 1e-9, peak > 0 ? 100 * ops / s / peak : 0, kv / s * 1e-9);
}

int main(int argc, char **argv) {
    struct errbuf eb;
    struct rig r = {.ops = kernels_pick(argc > 1 ? argv[1] : NULL, &eb)};
    if (!r.ops) {
        fprintf(stderr, "bench_attn: %s\n", eb.text);
        return 1;
    }
    r.shape = (struct attn_shape){.n_head = HEADS,
                                  .n_kv_head = KV_HEADS,
                                  .head_dim = D,
                                  .block_tokens = B,
                                  .k_dtype = KV_F16,
                                  .v_dtype = KV_F16,
                                  .scale = 0.125f};
    struct attn_scratch_cfg cfg = {HEADS, KV_HEADS, D, MAX_CTX, 1, 1};
    CHECK(attn_scratch_new(&r.scratch, &cfg) == 0);
    size_t page = 2 * kv_run_bytes(KV_F16, KV_HEADS, D, B) * N_LAYERS;
    for (size_t i = 0; i < ARRAY_LEN(r.pages); i++) {
        r.pages[i] = aligned_alloc(4096, page);
        CHECK(r.pages[i]);
        for (size_t k = 0; k < page / 2; k++) /* halves around 0.5 */
            ((uint16_t *)(void *)r.pages[i])[k] = (uint16_t)(0x3800 + k * 40503 % 509);
    }
    r.q = alloc_array(512 * HEADS * D, sizeof(float));
    r.out = alloc_array(512 * HEADS * D, sizeof(float));
    CHECK(r.q && r.out);
    for (size_t i = 0; i < 512 * HEADS * D; i++)
        r.q[i] = (float)(i * 40503 % 1021) * 0.0002f - 0.1f;
    double peak = peak_fma();
    printf("%s; peak FMA %.0f GFLOPS\n", r.ops->name, peak * 1e-9);
    bench(&r, 0, 512, peak);
    bench(&r, 1536, 512, peak);
    bench(&r, 1024, 32, peak);
    bench(&r, 31, 1, peak);
    bench(&r, 127, 1, peak);
    bench(&r, 511, 1, peak);
    bench(&r, 1023, 1, peak);
    bench(&r, 2047, 1, peak);
    bench(&r, 4095, 1, peak);
    attn_scratch_free(r.scratch);
    for (size_t i = 0; i < ARRAY_LEN(r.pages); i++)
        free(r.pages[i]);
    free(r.q);
    free(r.out);
    return 0;
}
