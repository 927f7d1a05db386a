/* bench_engine.c - tokens a second of the forward pass, alone or beside llama-bench.
 *
 * Prefill N: N new tokens from an empty context in chunks, logits of the last row only. Decode at
 * context C: after C tokens, one token a step with its logits. The same definitions as llama-bench's
 * pp N and tg N @ d C, and as there no sampling. Every repetition measures all points of ours and then all
 * of the peer's, so that both see the same minutes of the machine. */
#include <getopt.h>
#include <unistd.h>

#include "common/clock.h"
#include "tools/incipit-bench/bench.h"
#include "tools/incipit-bench/bench_peer.h"
#include "worker/kernels/kern_threads.h"
#include "worker/kernels/kernels.h"
#include "worker/model/forward.h"

#define MAX_POINTS 8
#define BLOCK_TOK 32

struct engine_opts {
    const char *model, *isa, *json, *llama_bench, *peer_model;
    uint32_t threads, reps, chunk;
    uint32_t prefill[MAX_POINTS], n_prefill;
    uint32_t decode_ctx[MAX_POINTS], n_decode;
    uint32_t decode_tokens;
    enum kv_dtype kv;
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

static const char help[] =
    "usage: incipit-bench engine --model FILE [OPTIONS]\n"
    "  --model FILE          GGUF file\n"
    "  --threads N           threads of both sides (1)\n"
    "  --isa NAME            scalar, avx2, avx512 (best of this CPU)\n"
    "  --kv-dtype T          f16 or f32 (f16)\n"
    "  --prefill LIST        prompt lengths (128,512,2048)\n"
    "  --decode-context LIST tokens before the decode, 1 for an empty context (1,512,2048)\n"
    "  --decode-tokens N     tokens generated a repetition (128; a quarter beyond 1024 of context)\n"
    "  --chunk N             rows a step in prefill (512)\n"
    "  --reps N              repetitions, at least 5 (5)\n"
    "  --llama-bench PATH    measure llama.cpp's llama-bench beside it\n"
    "  --peer-model FILE     GGUF file for llama-bench (--model)\n"
    "  --json FILE           write all samples\n";

enum { OPT_MODEL, OPT_THREADS, OPT_ISA, OPT_KV, OPT_PREFILL, OPT_CTX, OPT_TOKENS, OPT_CHUNK,
       OPT_REPS, OPT_LLAMA, OPT_PEER_MODEL, OPT_JSON, OPT_HELP };
static const struct option options[] = {
    {"model", required_argument, NULL, OPT_MODEL},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"isa", required_argument, NULL, OPT_ISA},
    {"kv-dtype", required_argument, NULL, OPT_KV},
    {"prefill", required_argument, NULL, OPT_PREFILL},
    {"decode-context", required_argument, NULL, OPT_CTX},
    {"decode-tokens", required_argument, NULL, OPT_TOKENS},
    {"chunk", required_argument, NULL, OPT_CHUNK},
    {"reps", required_argument, NULL, OPT_REPS},
    {"llama-bench", required_argument, NULL, OPT_LLAMA},
    {"peer-model", required_argument, NULL, OPT_PEER_MODEL},
    {"json", required_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, OPT_HELP},
    {0},
};

static bool set_option(struct engine_opts *o, int c, const char *v) {
    switch (c) {
    case OPT_MODEL: o->model = v; return true;
    case OPT_THREADS: return bench_parse_u32(v, 1, KERN_TEAM_MAX, &o->threads);
    case OPT_ISA: o->isa = v; return true;
    case OPT_KV: return kv_dtype_parse(v, &o->kv) == 0;
    case OPT_PREFILL: return (o->n_prefill = bench_parse_list(v, 1u << 16, o->prefill, MAX_POINTS));
    case OPT_CTX: return (o->n_decode = bench_parse_list(v, 1u << 16, o->decode_ctx, MAX_POINTS));
    case OPT_TOKENS: return bench_parse_u32(v, 4, 4096, &o->decode_tokens);
    case OPT_CHUNK: return bench_parse_u32(v, 1, 8192, &o->chunk);
    case OPT_REPS: return bench_parse_u32(v, 5, BENCH_MAX_REPS, &o->reps);
    case OPT_LLAMA: o->llama_bench = v; return true;
    case OPT_PEER_MODEL: o->peer_model = v; return true;
    case OPT_JSON: o->json = v; return true;
    default: return false;
    }
}

/* 0: go on; else the exit code + 1. */
static int parse(struct engine_opts *o, int argc, char **argv) {
    *o = (struct engine_opts){.threads = 1, .reps = 5, .chunk = 512, .decode_tokens = 128,
                              .prefill = {128, 512, 2048}, .n_prefill = 3,
                              .decode_ctx = {1, 512, 2048}, .n_decode = 3};
    int c, at;
    optind = 1;
    while ((c = getopt_long(argc, argv, "", options, &at)) != -1) {
        if (c == OPT_HELP) {
            fputs(help, stdout);
            return 1;
        }
        if (c == '?' || !set_option(o, c, optarg)) {
            if (c != '?')
                fprintf(stderr, "incipit-bench: bad value for --%s: '%s'\n", options[at].name, optarg);
            return 3;
        }
    }
    if (!o->model || optind != argc) {
        fputs(help, stderr);
        return 3;
    }
    return 0;
}

/* Long contexts get fewer tokens, so that a repetition stays short; the rate is what counts. */
static uint32_t tokens_at(const struct engine_opts *o, uint32_t ctx) {
    return ctx > 1024 ? MAX(o->decode_tokens / 4, 4u) : o->decode_tokens;
}

static uint32_t ctx_needed(const struct engine_opts *o) {
    uint32_t n = 1;
    for (uint32_t i = 0; i < o->n_prefill; i++)
        n = MAX(n, o->prefill[i]);
    for (uint32_t i = 0; i < o->n_decode; i++)
        n = MAX(n, o->decode_ctx[i] + tokens_at(o, o->decode_ctx[i]));
    return n;
}

static int make_pages(struct engine *e, enum kv_dtype kv) {
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
    e->chunk = o->chunk;
    e->ops = kernels_pick(o->isa, eb);
    if (!e->ops)
        return ERR_UNSUPPORTED;
    int rv = kern_team_new(&e->team, o->threads, eb);
    if (rv < 0)
        return rv;
    const struct model_load_cfg mc = {.path = o->model};
    rv = model_load(&e->model, &mc, eb);
    if (rv < 0)
        return rv;
    if (e->max_ctx > e->model->hp.n_ctx)
        return err_set(eb, ERR_TOOBIG, "the model's context is %u tokens", e->model->hp.n_ctx);
    const struct fwd_cfg fc = {.max_rows = o->chunk, .max_seqs = 1, .max_logit_rows = 1,
                               .max_ctx = e->max_ctx, .block_tok = BLOCK_TOK, .kv_dtype = o->kv,
                               .ops = e->ops, .team = e->team};
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
    const struct fwd_seq s = {.tok = tok, .n_tok = n, .pos0 = pos, .pages = e->pages,
                              .n_logits = logits, .logits = logits ? e->logits : NULL};
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
    struct bench_peer p = {.program = o->llama_bench, .threads = o->threads,
                           .model = o->peer_model ? o->peer_model : o->model,
                           .kv_type = kv_dtype_name(o->kv)};
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
    bench_fact(r, "model", "%s", o->model);
    bench_fact(r, "kernels", "%s", e->ops->name);
    bench_fact(r, "threads", "%u", o->threads);
    bench_fact(r, "kv", "%s", kv_dtype_name(o->kv));
    bench_fact(r, "chunk", "%u", o->chunk);
    prefill(e, MIN(e->max_ctx, e->chunk)); /* warms caches and clocks; not counted */
    for (uint32_t i = 0; i < o->reps; i++) {
        if (isatty(2))
            fprintf(stderr, "\rrepetition %u of %u", i + 1, o->reps);
        measure_ours(e, o, r);
        rv = o->llama_bench ? measure_peer(o, r, eb) : 0;
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
    struct bench_report r = {.what = "engine", .peer = o.llama_bench ? "llama.cpp" : NULL};
    struct errbuf eb = {""};
    struct engine e = {0};
    int rv = run(&o, &e, &r, &eb);
    engine_close(&e);
    if (rv == 0) {
        bench_print(&r, stdout);
        rv = o.json ? bench_write_json(&r, o.json, &eb) : 0;
    }
    strbuf_fini(&r.facts);
    if (rv < 0)
        fprintf(stderr, "incipit-bench: %s: %s\n", eb.text, err_text(rv));
    return rv < 0;
}
