/* worker_plan.c - takes the decisions of a load, reads no tensor, and prints the sizes. */
#include "worker/worker_plan.h"

#include <inttypes.h>
#include <stdarg.h>

#include "common/machine.h"
#include "worker/model/gguf_vocab.h"
#include "worker/worker_model.h"

#define SCALE_TOKENS 32u /* whole blocks of every dtype's scales */

uint64_t plan_kv_token_bytes(const struct plan_kv *kv) {
    const enum kv_dtype types[2] = {kv->k_dtype, kv->v_dtype};
    uint64_t bytes = 0;
    for (int i = 0; i < 2; i++)
        bytes += kv_run_bytes(types[i], kv->n_kv_head, kv->d_head, SCALE_TOKENS) +
                 kv_scale_bytes(types[i], kv->n_kv_head, kv->d_head, SCALE_TOKENS);
    return bytes * kv->n_layer / SCALE_TOKENS;
}

/* --- numbers as people read them --- */

struct size_text {
    char s[32];
};

static struct size_text size_text(uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct size_text t;
    double v = (double)bytes;
    size_t u = 0;
    for (; v >= 1024 && u + 1 < ARRAY_LEN(units); u++)
        v /= 1024;
    (void)snprintf(t.s, sizeof(t.s), u ? "%.2f %s" : "%.0f %s", v, units[u]);
    return t;
}

PRINTF_LIKE(4, 5)
static void put(FILE *out, const char *what, uint64_t bytes, const char *fmt, ...) {
    va_list ap;
    fprintf(out, "  %-12s%12s   ", what, size_text(bytes).s);
    va_start(ap, fmt);
    vfprintf(out, fmt, ap);
    va_end(ap);
    fputc('\n', out);
}

/* --- the plan --- */

struct plan {
    const struct worker_config *cfg;
    struct worker_model m; /* its head, forward pass and layout; no weights */
    uint64_t vocabulary, fixed, memory;
    enum kv_dtype dtypes[KV_N_DTYPES]; /* for K and V both, that the model's heads allow */
    size_t n_dtypes;
};

static int size_vocabulary(struct plan *p, struct errbuf *eb) {
    struct gguf_vocab v;
    struct tokenizer *t = NULL;
    int rv = gguf_vocab_read(&v, p->m.model->gguf, eb);
    if (rv < 0)
        return rv;
    rv = tokenizer_new(&t, &v.src, eb);
    gguf_vocab_fini(&v);
    if (rv < 0)
        return rv;
    size_t head;
    (void)gguf_head(p->m.model->gguf, 0, &head);
    p->vocabulary = tokenizer_bytes(t) + head;
    tokenizer_free(t);
    return 0;
}

static void find_dtypes(struct plan *p) {
    for (int t = 0; t < KV_N_DTYPES; t++) {
        const struct kv_dtypes both = {(enum kv_dtype)t, (enum kv_dtype)t};
        struct kv_layout l = {0};
        if (model_kv_layout(&l, p->m.model, p->cfg->block_tokens, both, NULL) == 0)
            p->dtypes[p->n_dtypes++] = both.k;
        kv_layout_fini(&l);
    }
}

static struct plan_kv kv_of(const struct plan *p, enum kv_dtype t, uint32_t n_kv_head) {
    const struct model_hparams *hp = &p->m.model->hp;
    return (struct plan_kv){hp->n_layer, n_kv_head, hp->d_head, t, t};
}

static uint64_t token_bytes(const struct plan *p, enum kv_dtype t) {
    const struct plan_kv kv = kv_of(p, t, p->m.model->hp.n_head_kv);
    return plan_kv_token_bytes(&kv);
}

static void print_model(const struct plan *p, FILE *out) {
    const struct model_hparams *hp = &p->m.model->hp;
    uint32_t n_window = 0, window = 0;
    for (uint32_t i = 0; i < hp->n_layer; i++)
        if (hp->layer[i].window) {
            n_window++;
            window = hp->layer[i].window;
        }
    fprintf(out, "%s: architecture %s, %u layers, %u heads, %u KV heads of %u, context %u\n",
            p->m.name, hp->arch, hp->n_layer, hp->n_head, hp->n_head_kv, hp->d_head, p->m.max_ctx);
    if (n_window)
        fprintf(out, "%u of the layers read the last %u positions alone; a page holds all layers\n",
                n_window, window);
    fputc('\n', out);
}

static void print_taken(struct plan *p, FILE *out) {
    const struct worker_config *cfg = p->cfg;
    const struct model *m = p->m.model;
    const struct model_sizes *z = &m->sizes;
    const uint64_t weights = z->packed + z->raw + z->vectors, scratch = fwd_bytes(p->m.fwd);
    const uint64_t pages = (uint64_t)p->m.n_pages * p->m.layout.page_bytes;
    p->fixed = weights + scratch + p->vocabulary;
    put(out, "weights", weights, "matrices packed for the kernels %s, rows as in the file %s",
        size_text(z->packed).s, size_text(z->raw).s);
    put(out, "vocabulary", p->vocabulary, "%u tokens, with the file's metadata", m->hp.n_vocab);
    put(out, "scratch", scratch, "%u rows, %u sequences, %u threads", cfg->chunk_tokens,
        cfg->max_seqs, kern_team_size(p->m.team));
    put(out, "KV pages", pages, "--kv-bytes: %u pages of %u tokens and %s, %" PRIu64 " tokens",
        p->m.n_pages, cfg->block_tokens, size_text(p->m.layout.page_bytes).s,
        (uint64_t)p->m.n_pages * cfg->block_tokens);
    put(out, "in all", p->fixed + pages, "of %s; while loading %s more, the largest tensor",
        size_text(p->memory).s, size_text(z->largest).s);
}

static void print_formula(const struct plan *p, FILE *out) {
    const struct model_hparams *hp = &p->m.model->hp;
    fprintf(out,
            "\nKV bytes of a token = layers x KV heads x head size x (bytes of a K value + of a V "
            "value)\n");
    for (size_t i = 0; i < p->n_dtypes; i++) {
        const enum kv_dtype t = p->dtypes[i];
        const uint64_t bytes = token_bytes(p, t);
        fprintf(out, "  %-5s %u x %u x %u x %g = %" PRIu64 "\n", kv_dtype_name(t), hp->n_layer,
                hp->n_head_kv, hp->d_head,
                (double)bytes / ((double)hp->n_layer * hp->n_head_kv * hp->d_head), bytes);
    }
}

static void print_header(const struct plan *p, FILE *out, const char *what) {
    fprintf(out, "\n  %-28s", what);
    for (size_t i = 0; i < p->n_dtypes; i++)
        fprintf(out, "%14s", kv_dtype_name(p->dtypes[i]));
    fputc('\n', out);
}

static void print_heads(const struct plan *p, FILE *out) {
    const struct model_hparams *hp = &p->m.model->hp;
    const struct {
        const char *name;
        uint32_t n;
    } rows[] = {{"multi-head", hp->n_head}, {"grouped-query", hp->n_head_kv}, {"multi-query", 1}};
    print_header(p, out, "KV heads: a token takes");
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        char what[64];
        if (r == 1 && (rows[r].n == hp->n_head || rows[r].n == 1))
            continue; /* it is one of the others */
        (void)snprintf(what, sizeof(what), "%u, %s%s", rows[r].n, rows[r].name,
                       rows[r].n == hp->n_head_kv ? ": this" : "");
        fprintf(out, "  %-28s", what);
        for (size_t i = 0; i < p->n_dtypes; i++) {
            const struct plan_kv kv = kv_of(p, p->dtypes[i], rows[r].n);
            fprintf(out, "%14s", size_text(plan_kv_token_bytes(&kv)).s);
        }
        fputc('\n', out);
    }
}

static void print_contexts(const struct plan *p, FILE *out) {
    static const uint32_t contexts[] = {2048, 8192, 32768, 131072};
    print_header(p, out, "tokens: they take");
    for (size_t c = 0; c <= ARRAY_LEN(contexts); c++) {
        const uint32_t n = c < ARRAY_LEN(contexts) ? contexts[c] : p->m.max_ctx;
        if (c < ARRAY_LEN(contexts) && n >= p->m.max_ctx)
            continue;
        fprintf(out, "  %-28u", n);
        for (size_t i = 0; i < p->n_dtypes; i++)
            fprintf(out, "%14s", size_text(token_bytes(p, p->dtypes[i]) * n).s);
        fputc('\n', out);
    }
}

static void print_fit(const struct plan *p, FILE *out) {
    const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {{"--kv-bytes", p->cfg->kv_bytes},
                {"the memory left", p->memory > p->fixed ? p->memory - p->fixed : 0}};
    print_header(p, out, "memory: so many tokens fit");
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        char what[64];
        (void)snprintf(what, sizeof(what), "%s, %s", rows[r].name, size_text(rows[r].bytes).s);
        fprintf(out, "  %-28s", what);
        for (size_t i = 0; i < p->n_dtypes; i++)
            fprintf(out, "%14" PRIu64, rows[r].bytes / token_bytes(p, p->dtypes[i]));
        fputc('\n', out);
    }
}

int worker_plan(const struct worker_config *cfg, FILE *out, struct errbuf *eb) {
    struct plan p = {.cfg = cfg};
    struct machine mach;
    machine_read(&mach, "");
    p.memory = mach.memory_bytes;
    int rv = worker_model_outline(&p.m, cfg, eb);
    if (rv < 0)
        return rv;
    rv = size_vocabulary(&p, eb);
    if (rv == 0) {
        find_dtypes(&p);
        print_model(&p, out);
        print_taken(&p, out);
        print_formula(&p, out);
        print_heads(&p, out);
        print_contexts(&p, out);
        print_fit(&p, out);
    }
    worker_model_free(&p.m);
    return rv;
}
