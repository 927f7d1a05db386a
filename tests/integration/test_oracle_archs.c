/* test_oracle_archs.c - every architecture against transformers' recorded logits (tests/golden/archs).
 *
 * The model is tiny and random, F32 weights and pages, so nothing is rounded but sums: all logits equal
 * within 1e-4 of the largest, greedy tokens equal. The prompt is eight windows long and comes in chunks.
 *
 * argv[1]: tests/golden/archs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/greedy.h"
#include "tests/support/tiny_model.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/quant.h"
#include "worker/model/arch.h"
#include "worker/model/forward.h"

/* One line an architecture, and one for each way to scale its angles. */
static const struct arch_case {
    const char *name, *arch;
    enum tiny_rope rope;
    bool rope_freqs;
    uint32_t window, n_expert; /* 0: the row's */
    uint32_t max_ctx;          /* 0: the model's */
} cases[] = {
    {.name = "llama", .arch = "llama"},
    {.name = "llama-factors", .arch = "llama", .rope_freqs = true},
    {.name = "llama-window", .arch = "llama", .window = 24},
    {.name = "llama-experts", .arch = "llama", .n_expert = 8},
    {.name = "llama-linear", .arch = "llama", .rope = TINY_ROPE_LINEAR},
    {.name = "qwen2", .arch = "qwen2"},
    {.name = "qwen2-yarn", .arch = "qwen2", .rope = TINY_ROPE_YARN},
    {.name = "qwen3", .arch = "qwen3"},
    {.name = "qwen3moe", .arch = "qwen3moe"},
    {.name = "smollm3", .arch = "smollm3"},
    {.name = "gemma2", .arch = "gemma2"},
    {.name = "gemma3", .arch = "gemma3"},
    {.name = "gemma3-linear", .arch = "gemma3", .rope = TINY_ROPE_LINEAR},
    {.name = "phi3", .arch = "phi3"},
    {.name = "phi3-window", .arch = "phi3", .window = 24},
    {.name = "phi3-long", .arch = "phi3", .rope = TINY_ROPE_LONG},
    {.name = "phi3-short", .arch = "phi3", .rope = TINY_ROPE_LONG, .max_ctx = 1024},
    {.name = "granite", .arch = "granite"},
    {.name = "granitemoe", .arch = "granitemoe"},
    {.name = "gpt-oss", .arch = "gpt-oss", .rope = TINY_ROPE_YARN},
    {.name = "olmo2", .arch = "olmo2"},
};

#define BLOCK 16
#define MAX_TOK 256
#define MAX_POSITIONS 4
#define CHUNK 50

static const char *golden_dir;

struct golden {
    uint32_t n_tok, n_greedy, n_pos;
    int32_t tok[MAX_TOK], greedy[MAX_TOK];
    uint32_t pos[MAX_POSITIONS];
    float *logits[MAX_POSITIONS]; /* [n_vocab] */
};

static uint32_t read_tokens(FILE *f, const char *word, int32_t *tok) {
    char have[16];
    uint32_t n;
    assert_int_equal(fscanf(f, "%15s %u", have, &n), 2);
    assert_string_equal(have, word);
    assert_true(n <= MAX_TOK);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(fscanf(f, "%d", &tok[i]), 1);
    return n;
}

static void golden_open(struct golden *g, const char *name, uint32_t n_vocab) {
    char path[600];
    (void)snprintf(path, sizeof(path), "%s/%s.txt", golden_dir, name);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("no %s: make_goldens.py makes it", path);
    *g = (struct golden){.n_tok = 0};
    g->n_tok = read_tokens(f, "tokens", g->tok);
    g->n_greedy = read_tokens(f, "greedy", g->greedy);
    while (g->n_pos < MAX_POSITIONS && fscanf(f, " logits %u", &g->pos[g->n_pos]) == 1) {
        float *row = g->logits[g->n_pos++] = calloc(n_vocab, sizeof(float));
        assert_non_null(row);
        for (uint32_t i = 0; i < n_vocab; i++)
            assert_int_equal(fscanf(f, "%f", &row[i]), 1);
    }
    assert_true(g->n_pos >= 2 && g->n_tok + g->n_greedy <= MAX_TOK);
    (void)fclose(f);
}

static void golden_close(struct golden *g) {
    for (uint32_t i = 0; i < g->n_pos; i++)
        free(g->logits[i]);
}

struct run {
    struct tiny_model tiny;
    struct fwd *fwd;
    uint8_t *pages[MAX_TOK / BLOCK];
    float *logits; /* [CHUNK, n_vocab] */
};

static void run_open(struct run *r, const struct arch_case *c) {
    struct errbuf eb = {""};
    struct tiny_spec spec;
    assert_true(tiny_spec_of_arch(c->arch, &spec));
    spec.rope = c->rope;
    spec.rope_freqs = c->rope_freqs;
    spec.window = c->window ? c->window : spec.window;
    spec.n_expert = c->n_expert ? c->n_expert : spec.n_expert;
    tiny_model_file(&r->tiny, &spec);
    const struct model_load_cfg load = {
        .path = r->tiny.path, .digest_cache_dir = "", .max_ctx = c->max_ctx};
    if (model_load(&r->tiny.model, &load, &eb) < 0)
        fail_msg("%s: %s", c->name, eb.text);
    assert_int_equal(r->tiny.model->sizes.packed, r->tiny.model->packed_bytes); /* --plan */
    const struct fwd_cfg cfg = {
        .max_rows = CHUNK,
        .max_seqs = 1,
        .max_ctx = MAX_TOK,
        .block_tok = BLOCK,
        .kv = {KV_F32, KV_F32},
        .ops = kernels_pick(NULL, &eb),
    };
    assert_int_equal(fwd_new(&r->fwd, r->tiny.model, &cfg, &eb), 0);
    const size_t bytes = model_page_bytes(r->tiny.model, BLOCK, (struct kv_dtypes){KV_F32, KV_F32});
    for (size_t i = 0; i < ARRAY_LEN(r->pages); i++) {
        r->pages[i] = aligned_alloc(64, bytes);
        assert_non_null(r->pages[i]);
    }
    r->logits = calloc((size_t)CHUNK * r->tiny.model->hp.n_vocab, sizeof(float));
    assert_non_null(r->logits);
}

static void run_close(struct run *r) {
    for (size_t i = 0; i < ARRAY_LEN(r->pages); i++)
        free(r->pages[i]);
    free(r->logits);
    fwd_free(r->fwd);
    tiny_model_close(&r->tiny);
}

/* Logits of rows [pos, pos + n). */
static void step(struct run *r, const int32_t *tok, uint32_t pos, uint32_t n) {
    int err = -1;
    const struct fwd_seq s = {.tok = tok,
                              .n_tok = n,
                              .pos0 = pos,
                              .pages = r->pages,
                              .n_logits = n,
                              .logits = r->logits,
                              .err = &err};
    assert_int_equal(fwd_step(r->fwd, &s, 1), 0);
    assert_int_equal(err, 0);
}

static double worst_difference(const float *have, const float *want, uint32_t n) {
    double most = 0, diff = 0;
    for (uint32_t i = 0; i < n; i++) {
        most = MAX(most, fabs((double)want[i]));
        diff = MAX(diff, fabs((double)have[i] - (double)want[i]));
    }
    return diff / most;
}

static void check_case(const struct arch_case *c) {
    struct run r;
    struct golden g;
    run_open(&r, c);
    const uint32_t n_vocab = r.tiny.model->hp.n_vocab;
    golden_open(&g, c->name, n_vocab);
    double worst = 0;
    int32_t next = -1;
    for (uint32_t at = 0; at < g.n_tok; at += CHUNK) {
        const uint32_t n = MIN((uint32_t)CHUNK, g.n_tok - at);
        step(&r, g.tok + at, at, n);
        for (uint32_t p = 0; p < g.n_pos; p++)
            if (g.pos[p] >= at && g.pos[p] < at + n)
                worst = MAX(worst, worst_difference(r.logits + (g.pos[p] - at) * n_vocab,
                                                    g.logits[p], n_vocab));
        next = greedy(r.logits + (n - 1) * n_vocab, n_vocab);
    }
    print_message("%-16s largest difference %.1e of the largest logit\n", c->name, worst);
    assert_true(worst < 1e-4);
    for (uint32_t i = 0; i < g.n_greedy; i++) {
        assert_int_equal(next, g.greedy[i]);
        step(&r, &next, g.n_tok + i, 1);
        next = greedy(r.logits, n_vocab);
    }
    golden_close(&g);
    run_close(&r);
}

static void test_logits_and_greedy_tokens_equal_the_recorded_ones(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_case(&cases[i]);
}

static void test_every_architecture_has_a_case(void **state) {
    (void)state;
    size_t n;
    const struct model_arch *a = model_arch_table(&n);
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        for (size_t k = 0; k < ARRAY_LEN(cases); k++)
            found |= strcmp(cases[k].name, a[i].name) == 0;
        if (!found)
            fail_msg("architecture %s is not compared with anything", a[i].name);
    }
}

int main(int argc, char **argv) {
    assert_int_equal(argc, 2);
    golden_dir = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_architecture_has_a_case),
        cmocka_unit_test(test_logits_and_greedy_tokens_equal_the_recorded_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
