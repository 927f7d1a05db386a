/* bench_forward - tokens per second of the forward pass alone, on a real model file.
 *
 * bench_forward MODEL.gguf [threads] [isa] [f16|f32]
 *
 * Median of several runs. Prefill: one chunk of n rows from position 0, logits of the last. Decode: one
 * row at a position behind a filled context, logits and all, without sampling. */
#include <time.h>

#include "common/check.h"
#include "worker/model/forward.h"

#define MAX_CTX 2304
#define BLOCK_TOK 32
#define MAX_RUNS 15

struct rig {
    struct model *model;
    struct fwd *fwd;
    struct kern_team *team;
    uint8_t *pages[MAX_CTX / BLOCK_TOK];
    int32_t tok[MAX_CTX];
    float *logits;
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double step_s(struct rig *r, uint32_t pos0, uint32_t n) {
    const struct fwd_seq seq = {
        .tok = r->tok + pos0,
        .n_tok = n,
        .pos0 = pos0,
        .pages = r->pages,
        .n_logits = 1,
        .logits = r->logits,
        .decode = n == 1,
    };
    double t0 = now_s();
    CHECK(fwd_step(r->fwd, &seq, 1) == 0);
    return now_s() - t0;
}

static void report(struct rig *r, const char *what, uint32_t pos0, uint32_t n, int runs) {
    double s[MAX_RUNS];
    step_s(r, pos0, n);
    for (int i = 0; i < runs; i++)
        s[i] = step_s(r, pos0, n);
    qsort(s, (size_t)runs, sizeof s[0], by_value);
    printf("%-8s %5u rows at %5u: %9.3f ms, %8.1f tokens/s\n", what, n, pos0, s[runs / 2] * 1e3,
           n / s[runs / 2]);
}

static int open_rig(struct rig *r, int argc, char **argv, struct errbuf *eb) {
    unsigned threads = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1;
    const struct kern_ops *ops = kernels_pick(argc > 3 ? argv[3] : NULL, eb);
    const struct model_load_cfg load = {.path = argv[1]};
    if (!ops)
        return ERR_UNSUPPORTED;
    int rv = kern_team_new(&r->team, threads, eb);
    if (rv >= 0)
        rv = model_load(&r->model, &load, eb);
    if (rv < 0)
        return rv;
    struct kv_dtypes kv = {KV_F16, KV_F16};
    if (argc > 4 && (kv_dtype_parse(argv[4], &kv.k) < 0 || kv_dtype_parse(argv[4], &kv.v) < 0))
        return err_set(eb, ERR_INVALID, "KV dtype '%s'", argv[4]);
    const struct fwd_cfg cfg = {
        .max_rows = 2048,
        .max_seqs = 1,
        .max_logit_rows = 1,
        .max_ctx = MAX_CTX,
        .block_tok = BLOCK_TOK,
        .kv = kv,
        .ops = ops,
        .team = r->team,
    };
    const size_t page = (model_page_bytes(r->model, BLOCK_TOK, cfg.kv) + 4095) & ~(size_t)4095;
    for (size_t i = 0; i < ARRAY_LEN(r->pages); i++) {
        r->pages[i] = aligned_alloc(4096, page);
        CHECK(r->pages[i]);
        memset(r->pages[i], 0, page);
    }
    for (int32_t i = 0; i < MAX_CTX; i++)
        r->tok[i] = i * 7919 % (int32_t)r->model->hp.n_vocab;
    r->logits = alloc_array(r->model->hp.n_vocab, sizeof(float));
    printf("%s, %u threads, %s\n", argv[1], threads, ops->name);
    return r->logits ? fwd_new(&r->fwd, r->model, &cfg, eb) : ERR_NOMEM;
}

int main(int argc, char **argv) {
    struct rig r = {0};
    struct errbuf eb = {{0}};
    if (argc < 2) {
        fprintf(stderr, "usage: bench_forward MODEL.gguf [threads] [isa] [f16|f32]\n");
        return 2;
    }
    if (open_rig(&r, argc, argv, &eb) < 0) {
        fprintf(stderr, "bench_forward: %s\n", eb.text);
        return 1;
    }
    report(&r, "prefill", 0, 512, 7);
    report(&r, "prefill", 0, 128, 9);
    report(&r, "prefill", 512, 32, 9);
    report(&r, "prefill", 512, 8, 9);
    report(&r, "decode", 128, 1, 15);
    report(&r, "decode", 512, 1, 15);
    report(&r, "prefill", 0, 2048, 3);
    report(&r, "decode", 2048, 1, 15);
    fwd_free(r.fwd);
    model_free(r.model);
    kern_team_free(r.team);
    free(r.logits);
    for (size_t i = 0; i < ARRAY_LEN(r.pages); i++)
        free(r.pages[i]);
    return 0;
}
