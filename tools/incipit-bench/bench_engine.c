/* bench_engine.c - tokens a second of the forward pass, alone or beside llama-bench.
 *
 * Prefill N: N new tokens from an empty context in chunks, logits of the last row only. Decode at
 * context C: after C tokens, one token a step with its logits. The same definitions as llama-bench's
 * pp N and tg N @ d C, and as there no sampling. Every repetition measures all points of ours and then all
 * of the peer's, so that both see the same minutes of the machine. */
#include <unistd.h>

#include "common/clock.h"
#include "tools/incipit-bench/bench.h"
#include "tools/incipit-bench/bench_peer.h"
#include "worker/kernels/kern_threads.h"
#include "worker/kernels/kernels.h"
#include "worker/model/forward.h"

#define MAX_POINTS 8
#define BLOCK_TOK 32

#define ENGINE_OPTIONS(X)                                                                          \
    X(model, STR, "", 0, 4096, false, "GGUF file; required")                                       \
    X(threads, U32, 1, 1, KERN_TEAM_MAX, false, "threads of both sides")                           \
    X(isa, STR, "", 0, 64, false, "scalar, avx2, avx512; without it the best of this CPU")         \
    X(k_dtype, ENUM, "f16", "f16|f32|q8_0|q4_0", 0, false, "K in pages")                           \
    X(v_dtype, ENUM, "f16", "f16|f32|q8_0|q4_0", 0, false, "V in pages")                           \
    X(prefill, LIST, "128,512,2048", 1, MAX_POINTS, false, "prompt lengths")                       \
    X(decode_context, LIST, "1,512,2048", 1, MAX_POINTS, false,                                    \
      "tokens before the decode, 1 for an empty context")                                          \
    X(decode_tokens, U32, 128, 4, 4096, false,                                                     \
      "tokens generated a repetition; a quarter beyond 1024 of context")                           \
    X(chunk, U32, 512, 1, 8192, false, "rows a step in prefill")                                   \
    X(reps, U32, 5, 5, BENCH_MAX_REPS, false, "repetitions")                                       \
    X(llama_bench, STR, "", 0, 4096, false, "program of llama.cpp to measure beside it")           \
    X(peer_model, STR, "", 0, 4096, false, "GGUF file for it; without it --model")                 \
    X(json, STR, "", 0, 4096, false, "file for all samples")
struct engine_config {
    CFG_FIELDS(ENGINE_OPTIONS)
};
CFG_TABLE(engine_config, ENGINE_OPTIONS)

struct engine_opts {
    struct engine_config cfg;
    uint32_t prefill[MAX_POINTS], n_prefill;
    uint32_t decode_ctx[MAX_POINTS], n_decode;
    struct kv_dtypes kv;
};

struct engine {
    const struct kern_ops *ops;
    struct kern_team *team;
    struct model *model;
    struct fwd *fwd;
    uint8_t *memory, **pages;
    float *logits;
    uint32_t max_ctx;
    uint32_t chunk;
};

/* 0: go on; else the exit code + 1. */
static int parse(struct engine_opts *o, int argc, char **argv) {
    const struct engine_config *c = &o->cfg;
    int rv =
        bench_args(engine_config_table(), &o->cfg, "engine --model FILE [OPTIONS]", argc, argv);
    if (rv)
        return rv;
    o->kv = (struct kv_dtypes){(enum kv_dtype)c->k_dtype, (enum kv_dtype)c->v_dtype};
    o->n_prefill = bench_points(&c->prefill, 1u << 16, o->prefill, MAX_POINTS);
    o->n_decode = bench_points(&c->decode_context, 1u << 16, o->decode_ctx, MAX_POINTS);
    const char *bad = !o->n_prefill  ? "--prefill"
                      : !o->n_decode ? "--decode-context"
                      : !c->model[0] ? "--model"
                                     : NULL;
    if (!bad)
        return 0;
    fprintf(stderr, "incipit-bench: %s is missing or wrong (engine --help)\n", bad);
    cfg_free(engine_config_table(), &o->cfg);
    return 3;
}

/* Long contexts get fewer tokens, so that a repetition stays short; the rate is what counts. */
static uint32_t tokens_at(const struct engine_opts *o, uint32_t ctx) {
    return ctx > 1024 ? MAX(o->cfg.decode_tokens / 4, 4u) : o->cfg.decode_tokens;
}

static uint32_t ctx_needed(const struct engine_opts *o) {
    uint32_t n = 1;
    for (uint32_t i = 0; i < o->n_prefill; i++)
        n = MAX(n, o->prefill[i]);
    for (uint32_t i = 0; i < o->n_decode; i++)
        n = MAX(n, o->decode_ctx[i] + tokens_at(o, o->decode_ctx[i]));
    return n;
}

static int make_pages(struct engine *e, struct kv_dtypes kv) {
    const size_t bytes = model_page_bytes(e->model, BLOCK_TOK, kv);
    const size_t n = (e->max_ctx + BLOCK_TOK - 1) / BLOCK_TOK;
    e->memory = aligned_alloc(64, (bytes * n + 63) / 64 * 64);
    e->pages = alloc_array(n, sizeof(*e->pages));
    e->logits = alloc_array(e->model->hp.n_vocab, sizeof(*e->logits));
    if (!e->memory || !e->pages || !e->logits)
        return ERR_NOMEM;
    memset(e->memory, 0, bytes * n); /* page faults now, not in the measurement */
    for (size_t i = 0; i < n; i++)
        e->pages[i] = e->memory + i * bytes;
    return 0;
}

static int engine_open(struct engine *e, const struct engine_opts *o, struct errbuf *eb) {
    e->max_ctx = ctx_needed(o);
    e->chunk = o->cfg.chunk;
    e->ops = kernels_pick(o->cfg.isa[0] ? o->cfg.isa : NULL, eb);
    if (!e->ops)
        return ERR_UNSUPPORTED;
    int rv = kern_team_new(&e->team, o->cfg.threads, eb);
    if (rv < 0)
        return rv;
    const struct model_load_cfg mc = {.path = o->cfg.model};
    rv = model_load(&e->model, &mc, eb);
    if (rv < 0)
        return rv;
    if (e->max_ctx > e->model->hp.n_ctx)
        return err_set(eb, ERR_TOOBIG, "the model's context is %u tokens", e->model->hp.n_ctx);
    const struct fwd_cfg fc = {.max_rows = o->cfg.chunk,
                               .max_seqs = 1,
                               .max_logit_rows = 1,
                               .max_ctx = e->max_ctx,
                               .block_tok = BLOCK_TOK,
                               .kv = o->kv,
                               .ops = e->ops,
                               .team = e->team};
    rv = fwd_new(&e->fwd, e->model, &fc, eb);
    return rv < 0 ? rv : make_pages(e, o->kv);
}

static void engine_close(struct engine *e) {
    free(e->logits);
    free(e->pages);
    free(e->memory);
    fwd_free(e->fwd);
    model_free(e->model);
    kern_team_free(e->team);
}

/* Any ids do: a forward pass takes as long for one token as for another. */
static int32_t token_at(const struct engine *e, uint32_t pos) {
    return (int32_t)(pos * 2654435761u % e->model->hp.n_vocab);
}

static void step(struct engine *e, uint32_t pos, uint32_t n, bool logits) {
    int32_t tok[8192];
    for (uint32_t i = 0; i < n; i++)
        tok[i] = token_at(e, pos + i);
    const struct fwd_seq s = {.tok = tok,
                              .n_tok = n,
                              .pos0 = pos,
                              .pages = e->pages,
                              .n_logits = logits,
                              .logits = logits ? e->logits : NULL};
    if (fwd_step(e->fwd, &s, 1) < 0)
        abort(); /* sizes were checked in engine_open() */
}

static void prefill(struct engine *e, uint32_t n) {
    for (uint32_t at = 0; at < n; at += e->chunk) {
        const uint32_t rows = MIN(e->chunk, n - at);
        step(e, at, rows, at + rows == n);
    }
}

static double seconds(void) {
    return (double)clock_mono_ns(clock_real()) * 1e-9;
}

static void measure_ours(struct engine *e, const struct engine_opts *o, struct bench_report *r) {
    for (uint32_t i = 0; i < o->n_prefill; i++) {
        const double t0 = seconds();
        prefill(e, o->prefill[i]);
        bench_add(&bench_row(r, "tokens/s", "prefill %u", o->prefill[i])->ours,
                  o->prefill[i] / (seconds() - t0));
    }
    for (uint32_t i = 0; i < o->n_decode; i++) {
        const uint32_t ctx = o->decode_ctx[i] - (o->decode_ctx[i] == 1), n = tokens_at(o, ctx);
        prefill(e, ctx);
        const double t0 = seconds();
        for (uint32_t k = 0; k < n; k++)
            step(e, ctx + k, 1, true);
        bench_add(&bench_row(r, "tokens/s", "decode %u @ %u", n, ctx)->ours, n / (seconds() - t0));
    }
}

static int measure_peer(const struct engine_opts *o, struct bench_report *r, struct errbuf *eb) {
    struct bench_peer p = {.program = o->cfg.llama_bench,
                           .threads = o->cfg.threads,
                           .model = o->cfg.peer_model[0] ? o->cfg.peer_model : o->cfg.model,
                           .k_type = kv_dtype_name(o->kv.k),
                           .v_type = kv_dtype_name(o->kv.v)};
    for (uint32_t i = 0; i < o->n_prefill; i++) {
        double ts;
        const int rv = bench_peer_run(&p, o->prefill[i], 0, 0, &ts, eb);
        if (rv < 0)
            return rv;
        bench_add(&bench_row(r, "tokens/s", "prefill %u", o->prefill[i])->peer, ts);
    }
    for (uint32_t i = 0; i < o->n_decode; i++) {
        const uint32_t ctx = o->decode_ctx[i] - (o->decode_ctx[i] == 1), n = tokens_at(o, ctx);
        double ts;
        const int rv = bench_peer_run(&p, 0, n, ctx, &ts, eb);
        if (rv < 0)
            return rv;
        bench_add(&bench_row(r, "tokens/s", "decode %u @ %u", n, ctx)->peer, ts);
    }
    return 0;
}

static int run(const struct engine_opts *o, struct engine *e, struct bench_report *r,
               struct errbuf *eb) {
    int rv = engine_open(e, o, eb);
    if (rv < 0)
        return rv;
    bench_fact(r, "model", "%s", o->cfg.model);
    bench_fact(r, "kernels", "%s", e->ops->name);
    bench_fact(r, "threads", "%u", o->cfg.threads);
    bench_fact(r, "kv", "%s %s", kv_dtype_name(o->kv.k), kv_dtype_name(o->kv.v));
    bench_fact(r, "chunk", "%u", o->cfg.chunk);
    prefill(e, MIN(e->max_ctx, e->chunk)); /* warms caches and clocks; not counted */
    for (uint32_t i = 0; i < o->cfg.reps; i++) {
        if (isatty(2))
            fprintf(stderr, "\rrepetition %u of %u", i + 1, o->cfg.reps);
        measure_ours(e, o, r);
        rv = o->cfg.llama_bench[0] ? measure_peer(o, r, eb) : 0;
        if (rv < 0)
            return rv;
    }
    if (isatty(2))
        fputs("\r", stderr);
    return 0;
}

int bench_engine_main(int argc, char **argv) {
    struct engine_opts o;
    const int usage = parse(&o, argc, argv);
    if (usage)
        return usage - 1;
    struct bench_report r = {.what = "engine", .peer = o.cfg.llama_bench[0] ? "llama.cpp" : NULL};
    struct errbuf eb = {""};
    struct engine e = {0};
    int rv = run(&o, &e, &r, &eb);
    engine_close(&e);
    if (rv == 0) {
        bench_print(&r, stdout);
        rv = o.cfg.json[0] ? bench_write_json(&r, o.cfg.json, &eb) : 0;
    }
    strbuf_fini(&r.facts);
    cfg_free(engine_config_table(), &o.cfg);
    if (rv < 0)
        fprintf(stderr, "incipit-bench: %s: %s\n", eb.text, err_text(rv));
    return rv < 0;
}
