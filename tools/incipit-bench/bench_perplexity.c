/* bench_perplexity.c - what K and V in fewer bits cost: perplexity of a text for each pair of KV dtypes.
 *
 * Perplexity is exp of the mean of -log p(next token | what is before it) over the text's tokens, in one
 * sequence from its first. A token's bytes are those of K and V in all layers. Pairs that the model's
 * heads do not fit are left out. Numbers do not depend on threads, chunk or instruction set. */
#include <errno.h>
#include <math.h>

#include "tools/incipit-bench/bench.h"
#include "worker/kernels/kern_threads.h"
#include "worker/kernels/kernels.h"
#include "worker/model/forward.h"
#include "worker/model/gguf_vocab.h"
#include "worker/text/tokenizer.h"

#define BLOCK_TOK 32
#define CHUNK 64 /* rows with logits of a whole vocabulary */
#define MAX_TEXT_BYTES (1u << 20)

#define PERPLEXITY_OPTIONS(X)                                                                      \
    X(model, STR, "", 0, 4096, false, "GGUF file; required")                                       \
    X(text, STR, "", 0, 4096, false,                                                               \
      "UTF-8 text; required; what the context does not hold is cut")                               \
    X(threads, U32, 1, 1, KERN_TEAM_MAX, false, "kernel threads")                                  \
    X(isa, STR, "", 0, 64, false, "scalar, avx2, avx512; without it the best of this CPU")

struct perplexity_config {
    CFG_FIELDS(PERPLEXITY_OPTIONS)
};
CFG_TABLE(perplexity_config, PERPLEXITY_OPTIONS)

struct run {
    struct perplexity_config cfg;
    const struct kern_ops *ops;
    struct kern_team *team;
    struct model *model;
    struct tok_ids ids;
    uint32_t n_tok;
};

static int read_text(const char *path, char *ret, size_t *len, struct errbuf *eb) {
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(eb, ERR_NOTFOUND, "text '%s': %s", path, strerror(errno));
    *len = fread(ret, 1, MAX_TEXT_BYTES + 1, f);
    const bool bad = ferror(f) != 0;
    (void)fclose(f);
    if (bad || *len > MAX_TEXT_BYTES)
        return err_set(eb, bad ? ERR_INVALID : ERR_TOOBIG, "text '%s': %s", path,
                       bad ? "cannot be read" : "larger than 1 MiB");
    return 0;
}

static int encode(struct run *r, const char *text, size_t len, struct errbuf *eb) {
    struct gguf_vocab v;
    struct tokenizer *t = NULL;
    int rv = gguf_vocab_read(&v, r->model->gguf, eb);
    if (rv < 0)
        return rv;
    rv = tokenizer_new(&t, &v.src, eb);
    const struct tok_part part = {text, len, TOK_ORIGIN_USER};
    if (rv == 0)
        rv = tokenizer_encode(t, &part, 1, /* add_bos= */ true, &r->ids, eb);
    tokenizer_free(t);
    gguf_vocab_fini(&v);
    if (rv < 0)
        return rv;
    r->n_tok = (uint32_t)MIN(r->ids.n, r->model->hp.n_ctx);
    if (r->n_tok < 2)
        return err_set(eb, ERR_INVALID, "the text has %u tokens, two are needed", r->n_tok);
    return 0;
}

static int run_open(struct run *r, struct errbuf *eb) {
    r->ops = kernels_pick(r->cfg.isa[0] ? r->cfg.isa : NULL, eb);
    if (!r->ops)
        return ERR_UNSUPPORTED;
    char *text = malloc(MAX_TEXT_BYTES + 1);
    size_t len = 0;
    int rv = text ? read_text(r->cfg.text, text, &len, eb) : err_set(eb, ERR_NOMEM, "text");
    if (rv == 0)
        rv = kern_team_new(&r->team, r->cfg.threads, eb);
    const struct model_load_cfg mc = {.path = r->cfg.model};
    if (rv == 0)
        rv = model_load(&r->model, &mc, eb);
    if (rv == 0)
        rv = encode(r, text, len, eb);
    free(text);
    return rv;
}

/* -log p of one token. */
static double surprise(const float *logits, uint32_t n, int32_t id) {
    double most = (double)logits[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        most = MAX(most, (double)logits[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - most);
    return log(sum) + most - (double)logits[id];
}

/* A step's rows, each judged by the token that follows it. */
static int score(const struct run *r, struct fwd *f, uint8_t **pages, float *logits, double *ret) {
    const uint32_t n_vocab = r->model->hp.n_vocab, n = r->n_tok - 1;
    double sum = 0;
    for (uint32_t at = 0, rows; at < n; at += rows) {
        rows = MIN(CHUNK, n - at);
        int err = 0;
        const struct fwd_seq s = {.tok = r->ids.id + at,
                                  .n_tok = rows,
                                  .pos0 = at,
                                  .pages = pages,
                                  .n_logits = rows,
                                  .logits = logits,
                                  .err = &err};
        const int rv = fwd_step(f, &s, 1);
        if (rv < 0 || err < 0)
            return rv < 0 ? rv : err;
        for (uint32_t i = 0; i < rows; i++)
            sum += surprise(logits + (size_t)i * n_vocab, n_vocab, r->ids.id[at + i + 1]);
    }
    *ret = exp(sum / n);
    return 0;
}

static int measure(const struct run *r, struct kv_dtypes kv, double *ret, struct errbuf *eb) {
    const struct fwd_cfg fc = {.max_rows = CHUNK,
                               .max_seqs = 1,
                               .max_ctx = r->n_tok,
                               .block_tok = BLOCK_TOK,
                               .kv = kv,
                               .ops = r->ops,
                               .team = r->team};
    struct fwd *f;
    int rv = fwd_new(&f, r->model, &fc, eb);
    if (rv < 0)
        return rv;
    const size_t n = (r->n_tok + BLOCK_TOK - 1) / BLOCK_TOK;
    const size_t bytes = (model_page_bytes(r->model, BLOCK_TOK, kv) + 63) / 64 * 64;
    uint8_t *memory = aligned_alloc(64, n * bytes), **pages = alloc_array(n, sizeof(*pages));
    float *logits = alloc_array((size_t)CHUNK * r->model->hp.n_vocab, sizeof(*logits));
    for (size_t i = 0; memory && pages && i < n; i++)
        pages[i] = memory + i * bytes;
    rv = !memory || !pages || !logits ? ERR_NOMEM : score(r, f, pages, logits, ret);
    if (rv < 0)
        (void)err_set(eb, rv, "K in %s, V in %s", kv_dtype_name(kv.k), kv_dtype_name(kv.v));
    free(logits);
    free(pages);
    free(memory);
    fwd_free(f);
    return rv;
}

static int measure_all(const struct run *r, struct errbuf *eb) {
    static const struct kv_dtypes pairs[] = {
        {KV_F16, KV_F16},   {KV_F32, KV_F32},   {KV_Q8_0, KV_F16},  {KV_Q8_0, KV_Q8_0},
        {KV_Q8_0, KV_Q4_0}, {KV_Q4_0, KV_Q8_0}, {KV_Q4_0, KV_Q4_0},
    };
    double base = 0, p = 0;
    printf("%s, %u tokens of %s\n\n%-5s %-5s %13s %12s %9s\n", r->cfg.model, r->n_tok, r->cfg.text,
           "K", "V", "bytes a token", "perplexity", "of f16");
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        struct kv_layout l = {0};
        int rv = model_kv_layout(&l, r->model, BLOCK_TOK, pairs[i], NULL);
        kv_layout_fini(&l);
        if (rv == 0)
            rv = measure(r, pairs[i], &p, eb);
        else if (kv_is_scaled(pairs[i].k) || kv_is_scaled(pairs[i].v))
            continue;
        if (rv < 0)
            return rv;
        base = i ? base : p;
        printf("%-5s %-5s %13zu %12.4f %+8.3f%%\n", kv_dtype_name(pairs[i].k),
               kv_dtype_name(pairs[i].v),
               model_page_bytes(r->model, BLOCK_TOK, pairs[i]) / BLOCK_TOK, p,
               100 * (p / base - 1));
        (void)fflush(stdout);
    }
    return 0;
}

int bench_perplexity_main(int argc, char **argv) {
    struct run r = {.ops = NULL};
    struct errbuf eb = {""};
    const int usage = bench_args(perplexity_config_table(), &r.cfg,
                                 "perplexity --model FILE --text FILE [OPTIONS]", argc, argv);
    if (usage)
        return usage - 1;
    const bool given = r.cfg.model[0] && r.cfg.text[0];
    int rv = given ? run_open(&r, &eb) : 0;
    if (given && rv == 0)
        rv = measure_all(&r, &eb);
    tok_ids_fini(&r.ids);
    model_free(r.model);
    kern_team_free(r.team);
    cfg_free(perplexity_config_table(), &r.cfg);
    if (!given)
        fputs("incipit-bench: --model and --text are required (perplexity --help)\n", stderr);
    else if (rv < 0)
        fprintf(stderr, "incipit-bench: %s: %s\n", eb.text, err_text(rv));
    return !given ? 2 : rv < 0;
}
