/* test_exactness - logits and KV bytes are the same bits however they were come by.
 *
 *   test_exactness [--long] [--points N] [--seed S] [--mkmodel PATH]
 *
 * Over {cold, own pages, fetched; each number of reused blocks} x chunk sizes x batches and slots x
 * threads x instruction sets x weight types and architectures x KV dtypes x page sizes x lengths, on tiny
 * random models: every pair of values, then random points of a printed seed. With INCIPIT_TEST_MODEL also a few points
 * on a real model and, with --mkmodel, on copies of it in other weight types. --long: twenty times as many.
 *
 * Seen to fail (100 random points are enough) for each of: RMS lanes summed downwards, the second half of
 * a page's values added first, the softmax sum begun at its last tile, minimum before scale in one-row
 * products, and one-row tiles of the scalar float product summed from the last k. */
#include <getopt.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"
#include "tests/integration/exact_points.h"
#include "tests/integration/exact_run.h"
#include "tests/support/tiny_model.h"
#include "worker/kernels/kern_threads.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/matmul_blas.h"
#include "worker/kernels/quant.h"
#include "worker/model/arch.h"

static const uint32_t chunks[] = {1, 2, 7, 16, 31, 32, 33, 64, 127, 512};
static const uint32_t types[] = {QUANT_F32,  QUANT_F16,    QUANT_BF16,   QUANT_Q8_0,
                                 QUANT_Q4_0, QUANT_Q4_1,   QUANT_Q5_0,   QUANT_Q5_1,
                                 QUANT_Q2_K, QUANT_Q3_K,   QUANT_Q4_K,   QUANT_Q5_K,
                                 QUANT_Q6_K, QUANT_IQ4_NL, QUANT_IQ4_XS, QUANT_MXFP4};
static const struct kv_dtypes kvs[] = {{KV_F16, KV_F16},   {KV_F32, KV_F32},  {KV_Q8_0, KV_Q8_0},
                                       {KV_Q4_0, KV_Q4_0}, {KV_Q8_0, KV_F16}, {KV_F32, KV_Q4_0}};
static const uint32_t blocks[] = {8, 16, 32}; /* scaled KV: 16 for 8 */
static const uint32_t lengths[] = {47, 161, 530};
static const char *const isas[] = {"scalar", "avx2", "avx512"};
static const char *const source_names[] = {"cold", "own", "fetched"};
/* One llama of each weight type, then one Q8_0 model of each row of the table of architectures. */
#define MAX_MODELS 32
#define MAX_THREADS 2
#define REUSE_STEPS 16

struct exactness {
    const struct kern_ops *ops[ARRAY_LEN(isas)]; /* [n_ops] what this CPU has; scalar first */
    uint8_t n_ops;
    struct kern_team *team[MAX_THREADS];
    struct tiny_model model[MAX_MODELS];
    const char *model_name[MAX_MODELS];
    uint8_t n_models;
    /* Made when first needed. */
    struct exact_ref ref[MAX_MODELS][ARRAY_LEN(kvs)][ARRAY_LEN(blocks)][ARRAY_LEN(lengths)];
    uint64_t seed;
    size_t n_run, n_failed;
};

static void describe(const struct exact_ref *r, const struct exact_conditions *c, const char *model,
                     char ret[256]) {
    (void)snprintf(
        ret, 256,
        "%s k=%s v=%s block=%u tokens=%u %s reuse=%u chunk=%u batch=%u slot=%u threads=%u "
        "isa=%s seed=%llu",
        model, kv_dtype_name(r->kv.k), kv_dtype_name(r->kv.v), r->block_tok, r->n_tok,
        source_names[c->source], c->source == SOURCE_COLD ? 0 : c->reuse_blocks, c->chunk, c->batch,
        c->slot % c->batch, c->threads, c->ops->name, (unsigned long long)c->seed);
}

static void judge(struct exactness *x, const struct exact_ref *r, const struct exact_conditions *c,
                  const char *model) {
    char why[256], what[256];
    x->n_run++;
    if (exact_run(r, c, why))
        return;
    describe(r, c, model, what);
    x->n_failed++;
    if (x->n_failed <= 20)
        printf("FAIL %s: %s\n", what, why);
}

static struct exact_ref *ref_of(struct exactness *x, const struct exact_point *p) {
    struct exact_ref *r =
        &x->ref[p->v[FACTOR_MODEL]][p->v[FACTOR_KV]][p->v[FACTOR_BLOCK]][p->v[FACTOR_LENGTH]];
    const struct kv_dtypes kv = kvs[p->v[FACTOR_KV]];
    const bool scaled = kv_is_scaled(kv.k) || kv_is_scaled(kv.v);
    if (!r->model) {
        *r = (struct exact_ref){
            .model = x->model[p->v[FACTOR_MODEL]].model,
            .kv = kv,
            .block_tok = scaled ? MAX(16, blocks[p->v[FACTOR_BLOCK]]) : blocks[p->v[FACTOR_BLOCK]],
            .n_tok = lengths[p->v[FACTOR_LENGTH]],
        };
        exact_ref_open(r, x->ops[0], 7);
    }
    return r;
}

static void judge_point(struct exactness *x, const struct exact_point *p, uint64_t seed) {
    const struct exact_ref *r = ref_of(x, p);
    const uint32_t most = (r->n_tok - 1) / r->block_tok; /* what a lookup may name */
    const struct exact_conditions c = {
        .source = (enum exact_source)p->v[FACTOR_SOURCE],
        .reuse_blocks = (p->v[FACTOR_REUSE] * most + REUSE_STEPS - 1) / REUSE_STEPS,
        .chunk = chunks[p->v[FACTOR_CHUNK]],
        .batch = p->v[FACTOR_BATCH] + 1u,
        .slot = p->v[FACTOR_SLOT],
        .threads = p->v[FACTOR_THREADS] + 1u,
        .ops = x->ops[p->v[FACTOR_ISA]],
        .team = x->team[p->v[FACTOR_THREADS]],
        .seed = seed,
    };
    judge(x, r, &c, x->model_name[p->v[FACTOR_MODEL]]);
}

static void tiny_points(struct exactness *x, size_t n_random, bool all_pairs) {
    const uint8_t n_values[N_FACTORS] = {
        [FACTOR_SOURCE] = N_SOURCES,
        [FACTOR_REUSE] = REUSE_STEPS + 1,
        [FACTOR_CHUNK] = ARRAY_LEN(chunks),
        [FACTOR_BATCH] = EXACT_MAX_BATCH,
        [FACTOR_SLOT] = EXACT_MAX_BATCH,
        [FACTOR_THREADS] = MAX_THREADS,
        [FACTOR_ISA] = x->n_ops,
        [FACTOR_MODEL] = x->n_models,
        [FACTOR_KV] = ARRAY_LEN(kvs),
        [FACTOR_BLOCK] = ARRAY_LEN(blocks),
        [FACTOR_LENGTH] = ARRAY_LEN(lengths),
    };
    struct exact_point *pairs = NULL;
    size_t n_pairs = all_pairs ? exact_points_pairs(n_values, 1, &pairs) : 0;
    for (size_t i = 0; i < n_pairs; i++)
        judge_point(x, &pairs[i], i);
    free(pairs);
    printf("tiny models: every pair of values: %zu points\n", n_pairs);
    uint64_t rng = x->seed;
    for (size_t i = 0; i < n_random; i++) {
        struct exact_point p = exact_point_random(n_values, &rng);
        judge_point(x, &p, exact_random(&rng));
    }
    printf("tiny models: %zu random points of seed %llu\n", n_random, (unsigned long long)x->seed);
}

static uint32_t below(uint64_t *rng, uint32_t n) {
    return (uint32_t)(exact_random(rng) % n);
}

/* The scalar kernels take seconds a hundred rows here, minutes with float weights: so prompts are short,
 * points few, and scalar ones fewer. */
static void real_model_points(struct exactness *x, const char *path, const char *what,
                              struct kv_dtypes kv, uint32_t n_tok, size_t n_points) {
    struct errbuf eb;
    struct model *m;
    const struct model_load_cfg load = {.path = path, .digest_cache_dir = ""};
    if (model_load(&m, &load, &eb) < 0) {
        printf("FAIL %s\n", eb.text);
        x->n_failed++;
        return;
    }
    struct exact_ref r = {.model = m, .kv = kv, .block_tok = 32, .n_tok = n_tok};
    exact_ref_open(&r, x->ops[0], 11);
    uint64_t rng = x->seed + 1;
    for (size_t i = 0; i < n_points; i++) {
        size_t isa = i % 5 == 4 || x->n_ops == 1 ? 0 : 1 + below(&rng, x->n_ops - 1u);
        uint32_t threads = 1 + below(&rng, MAX_THREADS);
        const struct exact_conditions c = {
            .source = (enum exact_source)(i % N_SOURCES),
            .reuse_blocks = 1 + below(&rng, (n_tok - 1) / 32),
            .chunk = chunks[below(&rng, ARRAY_LEN(chunks))],
            .batch = 1 + below(&rng, isa ? 4 : 1), /* companions cost what the judged one costs */
            .slot = below(&rng, 4),
            .threads = threads,
            .ops = x->ops[isa],
            .team = x->team[threads - 1],
            .seed = exact_random(&rng),
        };
        judge(x, &r, &c, what);
    }
    printf("%s, %s: %zu points\n", m->hp.name, what, n_points);
    exact_ref_close(&r);
    model_free(m);
}

/* Another weight type of the same model, by mkmodel. */
static void real_copy_points(struct exactness *x, const char *mkmodel, const char *from,
                             const char *type, size_t n_points) {
    char path[] = "/tmp/exactness-XXXXXX";
    int fd = mkstemp(path), status = -1;
    CHECK(fd >= 0);
    (void)close(fd);
    pid_t pid = fork();
    if (pid == 0) {
        execl(mkmodel, mkmodel, "--from", from, "--type", type, path, (char *)NULL);
        _exit(127);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    real_model_points(x, path, type, kvs[0], 41, n_points);
    (void)unlink(path);
}

static void real_models(struct exactness *x, const char *mkmodel, size_t n_points) {
    static const char *const copies[] = {"q8_0", "q4_0", "f16"};
    const char *path = getenv("INCIPIT_TEST_MODEL");
    if (!path || !*path) {
        printf("INCIPIT_TEST_MODEL is not set: tiny models only\n");
        return;
    }
    real_model_points(x, path, "as it is", kvs[0], 101, n_points);
    for (size_t i = 2; i < ARRAY_LEN(kvs); i++)
        real_model_points(x, path, "scaled KV", kvs[i], 41, n_points * 2 / 5);
    for (size_t i = 0; mkmodel && i < ARRAY_LEN(copies); i++)
        real_copy_points(x, mkmodel, path, copies[i], n_points * 2 / 5);
}

/* Numerics blas promises the same for rows that are not generated: any chunk, batch, slot and number of
 * threads. Its bits are not those of the exact kernels, so it has references of its own. */
static void blas_points(struct exactness *x, size_t n_points) {
    struct errbuf eb;
    struct matmul_blas *blas;
    if (matmul_blas_new(&blas, 256, MAX_THREADS, &eb) < 0) {
        printf("numerics blas left out: %s\n", eb.text);
        return;
    }
    uint64_t rng = x->seed + 2;
    const size_t a_model = MAX(n_points / x->n_models, (size_t)1), before = x->n_run;
    for (size_t t = 0; t < x->n_models; t++) {
        if (below(&rng, x->n_models) >= n_points) /* fewer points than models */
            continue;
        struct exact_ref r = {.model = x->model[t].model,
                              .blas = blas,
                              .kv = kvs[t % ARRAY_LEN(kvs)],
                              .block_tok = 32,
                              .n_tok = 161};
        exact_ref_open(&r, x->ops[x->n_ops - 1], 7);
        for (size_t i = 0; i < a_model; i++) {
            uint32_t threads = 1 + below(&rng, MAX_THREADS);
            const struct exact_conditions c = {
                .source = (enum exact_source)(i % N_SOURCES),
                .reuse_blocks = below(&rng, 6),
                .chunk = chunks[below(&rng, ARRAY_LEN(chunks))],
                .batch = 1 + below(&rng, EXACT_MAX_BATCH),
                .slot = below(&rng, EXACT_MAX_BATCH),
                .threads = threads,
                .ops = x->ops[below(&rng, x->n_ops)],
                .team = x->team[threads - 1],
                .seed = exact_random(&rng),
            };
            judge(x, &r, &c, "blas");
        }
        exact_ref_close(&r);
    }
    printf("numerics blas (%s %s): %zu points\n", matmul_blas_version(blas), matmul_blas_core(blas),
           x->n_run - before);
    matmul_blas_free(blas);
}

static void open_model(struct exactness *x, const struct tiny_spec *s, const char *name) {
    CHECK(x->n_models < MAX_MODELS);
    x->model_name[x->n_models] = name;
    struct tiny_spec wide = *s;
    wide.d_head = MAX(32u, s->d_head); /* scaled KV's least */
    tiny_model_open(&x->model[x->n_models++], &wide);
}

static void open_models(struct exactness *x) {
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct tiny_spec s = tiny_spec_of(types[i]);
        s.untied = i % 2; /* both kinds of head, and RoPE with and without divisors */
        s.rope_freqs = i / 2 % 2;
        s.n_layer = s.n_embd > 64 ? 1 : s.n_layer; /* sixteen times the arithmetic a layer */
        open_model(x, &s, quant_type_find(types[i])->name);
    }
    size_t n;
    const struct model_arch *a = model_arch_table(&n);
    for (size_t i = 0; i < n; i++) {
        struct tiny_spec s;
        CHECK(tiny_spec_of_arch(a[i].name, &s));
        s.type = s.embd_type = QUANT_Q8_0;
        open_model(x, &s, a[i].name);
    }
}

static void open_all(struct exactness *x) {
    struct errbuf eb;
    const char *must = getenv("INCIPIT_TEST_REQUIRE_ISA");
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct kern_ops *ops = kernels_pick(isas[i], &eb);
        if (ops)
            x->ops[x->n_ops++] = ops;
        else
            printf("isa %s left out: %s\n", isas[i], eb.text);
        CHECK(ops || !must ||
              !strstr(must, isas[i])); /* F15: where it was asked for, it must run */
    }
    CHECK(x->n_ops && strcmp(x->ops[0]->name, isas[0]) == 0);
    for (unsigned i = 0; i < MAX_THREADS; i++)
        CHECK(kern_team_new(&x->team[i], i + 1, &eb) == 0);
    open_models(x);
}

static void close_all(struct exactness *x) {
    struct exact_ref *r = &x->ref[0][0][0][0];
    for (size_t i = 0; i < sizeof(x->ref) / sizeof(*r); i++)
        if (r[i].model)
            exact_ref_close(&r[i]);
    for (size_t i = 0; i < x->n_models; i++)
        tiny_model_close(&x->model[i]);
    for (unsigned i = 0; i < MAX_THREADS; i++)
        kern_team_free(x->team[i]);
}

int main(int argc, char **argv) {
    static const struct option opts[] = {
        {"long", no_argument, NULL, 'l'},       {"points", required_argument, NULL, 'p'},
        {"seed", required_argument, NULL, 's'}, {"mkmodel", required_argument, NULL, 'm'},
        {"few", no_argument, NULL, 'f'},        {NULL, 0, NULL, 0},
    };
    static struct exactness x;
    const char *mkmodel = NULL;
    size_t n_random = 500, n_real = 10;
    bool few = false; /* for sanitizer builds: random points of the tiny models only */
    const char *is_long = getenv("INCIPIT_TEST_LONG");
    if (is_long && *is_long)
        n_random = 10000, n_real = 200;
    x.seed = (uint64_t)time(NULL);
    for (int c; (c = getopt_long(argc, argv, "", opts, NULL)) != -1;) {
        if (c == 'l')
            n_random = 10000, n_real = 200;
        else if (c == 'p')
            n_random = strtoul(optarg, NULL, 10);
        else if (c == 's')
            x.seed = strtoull(optarg, NULL, 10);
        else if (c == 'm')
            mkmodel = optarg;
        else if (c == 'f')
            few = true, n_random = 30;
        else
            return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("seed %llu\n", (unsigned long long)x.seed);
    open_all(&x);
    tiny_points(&x, n_random, !few);
    blas_points(&x, n_random / 5);
    if (!few)
        real_models(&x, mkmodel, n_real);
    close_all(&x);
    printf("%zu points run, %zu failed\n", x.n_run, x.n_failed);
    return x.n_failed ? 1 : 0;
}
