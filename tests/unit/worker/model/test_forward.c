/* test_forward.c - what the KV cache saves and what it must not change; limits; no allocation. */
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/greedy.h"
#include "tests/support/tiny_model.h"
#include "worker/kernels/kern_threads.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/quant.h"
#include "worker/model/forward.h"

/* The linker leads every allocation of the program here (meson.build). */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);

static size_t n_allocs, alloc_bytes; /* one thread allocates here */

void *__wrap_malloc(size_t n) {
    n_allocs++;
    alloc_bytes += n;
    return __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size) {
    n_allocs++;
    alloc_bytes += n * size;
    return __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t n) {
    n_allocs++;
    return __real_realloc(p, n);
}
void *__wrap_aligned_alloc(size_t align, size_t n) {
    n_allocs++;
    alloc_bytes += n;
    return __real_aligned_alloc(align, n);
}

#define BLOCK 16
#define MAX_PAGES 8

struct fixture {
    struct tiny_model tiny;
    struct kern_team *team;
    struct fwd *fwd;
    size_t page_bytes;
    uint32_t n_vocab, n_embd;
};

static int setup(void **state) {
    static struct fixture f;
    struct errbuf eb;
    struct tiny_spec spec = tiny_spec_of(QUANT_Q4_1);
    tiny_model_open(&f.tiny, &spec);
    const struct kern_ops *ops = kernels_pick(NULL, &eb);
    assert_non_null(ops);
    assert_int_equal(kern_team_new(&f.team, 2, &eb), 0);
    const struct fwd_cfg cfg = {
        .max_rows = 64,
        .max_seqs = 4,
        .max_logit_rows = 40,
        .max_ctx = BLOCK * MAX_PAGES,
        .block_tok = BLOCK,
        .ops = ops,
        .team = f.team,
    };
    assert_int_equal(fwd_new(&f.fwd, f.tiny.model, &cfg, &eb), 0);
    f.page_bytes = model_page_bytes(f.tiny.model, BLOCK, (struct kv_dtypes){KV_F16, KV_F16});
    f.n_vocab = f.tiny.model->hp.n_vocab;
    f.n_embd = f.tiny.model->hp.n_embd;
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    fwd_free(f->fwd);
    kern_team_free(f->team);
    tiny_model_close(&f->tiny);
    return 0;
}

struct pages {
    uint8_t *table[MAX_PAGES];
};

static void pages_open(const struct fixture *f, struct pages *p) {
    for (int i = 0; i < MAX_PAGES; i++) {
        p->table[i] = aligned_alloc(64, (f->page_bytes + 63) & ~(size_t)63);
        assert_non_null(p->table[i]);
        memset(p->table[i], 0xff, f->page_bytes);
    }
}

static void pages_close(struct pages *p) {
    for (int i = 0; i < MAX_PAGES; i++)
        free(p->table[i]);
}

#define N_PROMPT 4
#define N_GEN 6
#define N_ALL (N_PROMPT + N_GEN)

/* What a generation leaves behind. */
struct trace {
    int32_t tok[N_ALL];
    float hidden[N_GEN][64]; /* of the row that chose each token */
    uint64_t kv_rows;
};

/* Greedy generation. Without the cache every step computes all positions again, into fresh pages. */
static void generate(struct fixture *f, struct trace *t, bool cached) {
    static const int32_t prompt[N_PROMPT] = {70, 12, 300, 5};
    static float hidden[N_ALL][64];
    float *logits = malloc(f->n_vocab * sizeof(float));
    struct pages p;
    uint64_t before = fwd_stats(f->fwd).kv_rows;
    assert_int_equal(f->n_embd, 64);
    memcpy(t->tok, prompt, sizeof(prompt));
    pages_open(f, &p);
    for (uint32_t i = 0; i < N_GEN; i++) {
        uint32_t n = N_PROMPT + i, pos0 = cached && i > 0 ? n - 1 : 0;
        if (!cached) {
            pages_close(&p);
            pages_open(f, &p);
        }
        const struct fwd_seq s = {
            .tok = t->tok + pos0,
            .n_tok = n - pos0,
            .pos0 = pos0,
            .pages = p.table,
            .n_logits = 1,
            .logits = logits,
            .hidden = &hidden[0][0],
        };
        assert_int_equal(fwd_step(f->fwd, &s, 1), 0);
        memcpy(t->hidden[i], hidden[n - pos0 - 1], sizeof(t->hidden[i]));
        t->tok[n] = greedy(logits, f->n_vocab);
    }
    t->kv_rows = fwd_stats(f->fwd).kv_rows - before;
    pages_close(&p);
    free(logits);
}

/* What --plan tells: every buffer counts, and the structures are small. */
static void test_bytes_are_those_that_were_allocated(void **state) {
    struct fixture *f = *state;
    struct errbuf eb;
    struct fwd *fwd;
    const struct fwd_cfg cfg = {
        .max_rows = 256,
        .max_seqs = 4,
        .max_logit_rows = 40,
        .max_ctx = 2048,
        .block_tok = BLOCK,
        .ops = kernels_pick(NULL, &eb),
        .team = f->team,
    };
    struct tiny_model experts;
    struct tiny_spec spec;
    assert_true(tiny_spec_of_arch("qwen3moe", &spec));
    tiny_model_open(&experts, &spec);
    for (int i = 0; i < 2; i++) {
        alloc_bytes = 0;
        assert_int_equal(fwd_new(&fwd, i ? experts.model : f->tiny.model, &cfg, &eb), 0);
        assert_in_range(fwd_bytes(fwd), alloc_bytes - 4096, alloc_bytes + 32768);
        fwd_free(fwd);
    }
    tiny_model_close(&experts);
}

static void test_generate_cached_equals_uncached_with_fewer_rows(void **state) {
    struct fixture *f = *state;
    struct trace with, without;
    generate(f, &with, true);
    generate(f, &without, false);
    assert_memory_equal(with.tok, without.tok, sizeof(with.tok));
    assert_memory_equal(with.hidden, without.hidden, sizeof(with.hidden)); /* difference 0 */
    /* 2 layers: 2 * (4 + 5 + 6 + 7 + 8 + 9) against 2 * (4 + 5) */
    assert_int_equal(without.kv_rows, 78);
    assert_int_equal(with.kv_rows, 18);
}

static void step_ok(struct fixture *f, const struct fwd_seq *s, uint32_t n) {
    assert_int_equal(fwd_step(f->fwd, s, n), 0);
}

static const int32_t words[64] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 10, 20, 30, 40, 50, 60, 70, 80, 90};

static void test_earlier_pages_do_not_change_as_context_grows(void **state) {
    struct fixture *f = *state;
    struct pages p;
    pages_open(f, &p);
    struct fwd_seq s = {.tok = words, .n_tok = 2 * BLOCK, .pages = p.table};
    step_ok(f, &s, 1);
    uint8_t *copy = malloc(2 * f->page_bytes);
    memcpy(copy, p.table[0], f->page_bytes);
    memcpy(copy + f->page_bytes, p.table[1], f->page_bytes);
    for (uint32_t pos = 2 * BLOCK; pos < 4 * BLOCK; pos++) {
        s = (struct fwd_seq){
            .tok = words, .n_tok = 1, .pos0 = pos, .pages = p.table, .decode = true};
        step_ok(f, &s, 1);
    }
    assert_memory_equal(copy, p.table[0], f->page_bytes);
    assert_memory_equal(copy + f->page_bytes, p.table[1], f->page_bytes);
    free(copy);
    pages_close(&p);
}

/* Wherever the outputs lie, and whatever else is asked for, a sequence's logits are the same. */
static void test_logits_independent_of_where_and_how_many(void **state) {
    struct fixture *f = *state;
    struct pages p[3];
    const size_t row = f->n_vocab;
    float *joined = calloc(8 * row, sizeof(float)), *apart[3];
    for (int i = 0; i < 3; i++) {
        pages_open(f, &p[i]);
        apart[i] = calloc(3 * row, sizeof(float));
    }
    struct fwd_seq s[3];
    const uint32_t n_tok[3] = {5, 1, 9}, n_logits[3] = {3, 1, 2};
    for (int i = 0; i < 3; i++)
        s[i] = (struct fwd_seq){.tok = words + i,
                                .n_tok = n_tok[i],
                                .pages = p[i].table,
                                .n_logits = n_logits[i],
                                .logits = apart[i]};
    step_ok(f, s, 3);
    for (int i = 0, at = 0; i < 3; at += (int)n_logits[i], i++)
        s[i].logits = joined + (size_t)at * row;
    step_ok(f, s, 3);
    for (int i = 0, at = 0; i < 3; at += (int)n_logits[i], i++)
        assert_memory_equal(apart[i], joined + (size_t)at * row, n_logits[i] * row * sizeof(float));
    /* Alone, all rows, with hidden states. */
    float *hidden = calloc(9 * f->n_embd, sizeof(float)), *all = calloc(9 * row, sizeof(float));
    const struct fwd_seq one = {.tok = words + 2,
                                .n_tok = 9,
                                .pages = p[2].table,
                                .n_logits = 9,
                                .logits = all,
                                .hidden = hidden};
    step_ok(f, &one, 1);
    assert_memory_equal(all + 7 * row, apart[2], 2 * row * sizeof(float));
    for (int i = 0; i < 3; i++) {
        pages_close(&p[i]);
        free(apart[i]);
    }
    free(joined);
    free(hidden);
    free(all);
}

static void test_step_beyond_limits_refused_and_nothing_written(void **state) {
    struct fixture *f = *state;
    struct pages p;
    float logit;
    pages_open(f, &p);
    const struct fwd_seq ok = {.tok = words, .n_tok = 1, .pages = p.table};
    const struct fwd_seq many[5] = {ok, ok, ok, ok, ok};
    const int32_t bad_tok[2] = {3, (int32_t)f->n_vocab}, negative[1] = {-1};
    const struct {
        struct fwd_seq s;
        int want;
    } cases[] = {
        {{.tok = words, .n_tok = 0, .pages = p.table}, ERR_INVALID},
        {{.tok = bad_tok, .n_tok = 2, .pages = p.table}, ERR_INVALID},
        {{.tok = negative, .n_tok = 1, .pages = p.table}, ERR_INVALID},
        {{.tok = words, .n_tok = 1, .pages = p.table, .n_logits = 2, .logits = &logit},
         ERR_INVALID},
        {{.tok = words, .n_tok = 1, .pages = p.table, .n_logits = 1}, ERR_INVALID},
        {{.tok = words, .n_tok = 41, .pages = p.table, .n_logits = 41, .logits = &logit},
         ERR_TOOBIG},
        {{.tok = words, .n_tok = 2, .pos0 = BLOCK * MAX_PAGES - 1, .pages = p.table}, ERR_TOOBIG},
        {{.tok = words, .n_tok = 1, .pos0 = UINT32_MAX, .pages = p.table}, ERR_TOOBIG},
    };
    uint64_t rows = fwd_stats(f->fwd).rows;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_int_equal(fwd_step(f->fwd, &cases[i].s, 1), cases[i].want);
    assert_int_equal(fwd_step(f->fwd, many, 5), ERR_TOOBIG);
    const struct fwd_seq forty = {.tok = words, .n_tok = 40, .pages = p.table};
    const struct fwd_seq too_many_rows[2] = {forty, forty};
    assert_int_equal(fwd_step(f->fwd, too_many_rows, 2), ERR_TOOBIG);
    assert_int_equal(fwd_stats(f->fwd).rows, rows);
    for (size_t i = 0; i < f->page_bytes; i++)
        assert_int_equal(p.table[0][i], 0xff);
    assert_int_equal(fwd_step(f->fwd, NULL, 0), 0); /* an empty step is none */
    pages_close(&p);
}

static void test_steps_allocate_nothing(void **state) {
    struct fixture *f = *state;
    struct pages p[2];
    float *logits = malloc(2 * f->n_vocab * sizeof(float));
    pages_open(f, &p[0]);
    pages_open(f, &p[1]);
    size_t before = n_allocs;
    for (uint32_t i = 0; i < 20; i++) {
        const struct fwd_seq s[2] = {
            {.tok = words,
             .n_tok = 1,
             .pos0 = i,
             .pages = p[0].table,
             .n_logits = 1,
             .logits = logits,
             .decode = true},
            {.tok = words,
             .n_tok = 5,
             .pos0 = 5 * i,
             .pages = p[1].table,
             .n_logits = 1,
             .logits = logits + f->n_vocab},
        };
        step_ok(f, s, 2);
    }
    assert_int_equal(n_allocs, before);
    free(logits);
    pages_close(&p[0]);
    pages_close(&p[1]);
}

/* A library that left another rounding mode behind must not reach the bits. */
static void test_float_state_of_the_caller_does_not_matter(void **state) {
    struct fixture *f = *state;
    struct trace before, after;
    generate(f, &before, true);
    assert_int_equal(fesetround(FE_UPWARD), 0);
    generate(f, &after, true);
    assert_int_equal(fesetround(FE_TONEAREST), 0);
    assert_memory_equal(before.hidden, after.hidden, sizeof(before.hidden));
}

/* Multiplies a norm's weights, which lie in the model's own memory. */
static void scale_norm(const float *norm, uint32_t n, float by) {
    float *w = (float *)(uintptr_t)norm;
    for (uint32_t i = 0; i < n; i++)
        w[i] *= by;
}

#define SILENT_TOK 11 /* its embedding is zero, so K, V and logits are too, whatever the norms */

/* err of a step of two sequences: one of words, one of the silent token; logits of the last row or none. */
static void step_errs(struct fixture *f, struct fwd *fwd, bool with_logits, int ret[2]) {
    struct pages p[2];
    const int32_t silent[3] = {SILENT_TOK, SILENT_TOK, SILENT_TOK};
    float *logits = malloc(2 * f->n_vocab * sizeof(float));
    pages_open(f, &p[0]);
    pages_open(f, &p[1]);
    const struct fwd_seq s[2] = {
        {.tok = words,
         .n_tok = 20,
         .pages = p[0].table,
         .n_logits = with_logits,
         .logits = logits,
         .err = &ret[0]},
        {.tok = silent,
         .n_tok = 3,
         .pages = p[1].table,
         .n_logits = with_logits,
         .logits = logits + f->n_vocab,
         .err = &ret[1]},
    };
    ret[0] = ret[1] = 77;
    assert_int_equal(fwd_step(fwd, s, 2), 0);
    free(logits);
    pages_close(&p[0]);
    pages_close(&p[1]);
}

/* F7: K that overflows f16, NaNs, and logits without a finite maximum gave 200 and log-probability -9999, and
 * their pages could be put. Right: the sequence's error, and no other's of the same step. */
static void test_rows_that_are_not_finite_are_their_sequences_error(void **state) {
    struct fixture *f = *state;
    struct model *m = f->tiny.model;
    const uint32_t n = m->hp.n_embd;
    const size_t row_bytes = quant_row_bytes(m->embd_type, n);
    uint8_t *embd = (uint8_t *)(uintptr_t)m->embd + SILENT_TOK * row_bytes, kept[256];
    float norm[64];
    int err[2];
    assert_true(row_bytes <= sizeof(kept) && n == ARRAY_LEN(norm));
    memcpy(kept, embd, row_bytes);
    memset(embd, 0, row_bytes);
    const struct {
        const float *norm;
        float by;
        int prefill, with_logits; /* of the first sequence */
    } cases[] = {
        {m->layers[0].attn_norm, 1, 0, 0},
        {m->layers[1].attn_norm, 1e6f, ERR_NUMERIC, ERR_NUMERIC}, /* finite in f32, not in f16 */
        {m->layers[0].attn_norm, NAN, ERR_NUMERIC, ERR_NUMERIC},
        {m->output_norm, 2.5e38f, 0, ERR_NUMERIC},
        {m->output_norm, NAN, 0, ERR_NUMERIC},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        memcpy(norm, cases[i].norm, sizeof(norm));
        scale_norm(cases[i].norm, n, cases[i].by);
        step_errs(f, f->fwd, false, err);
        assert_int_equal(err[0], cases[i].prefill);
        bool nan = cases[i].by != cases[i].by;
        assert_int_equal(err[1], nan ? cases[i].prefill : 0);
        step_errs(f, f->fwd, true, err);
        assert_int_equal(err[0], cases[i].with_logits);
        assert_int_equal(err[1], nan ? cases[i].with_logits : 0);
        memcpy((float *)(uintptr_t)cases[i].norm, norm, sizeof(norm));
    }
    memcpy(embd, kept, row_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_are_those_that_were_allocated),
        cmocka_unit_test(test_generate_cached_equals_uncached_with_fewer_rows),
        cmocka_unit_test(test_earlier_pages_do_not_change_as_context_grows),
        cmocka_unit_test(test_logits_independent_of_where_and_how_many),
        cmocka_unit_test(test_step_beyond_limits_refused_and_nothing_written),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_rows_that_are_not_finite_are_their_sequences_error),
        cmocka_unit_test(test_float_state_of_the_caller_does_not_matter),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
