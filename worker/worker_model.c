/* worker_model.c - from a file name to something that computes. */
#include "worker/worker_model.h"

#include <inttypes.h>

#include "common/machine.h"

#include "worker/kernels/kern_threads.h"
#include "worker/kernels/matmul_blas.h"
#include "worker/model/gguf_file.h"
#include "worker/model/gguf_vocab.h"
#include "worker/model/model_graph.h"

/* Rows with logits in one step, at least: echo's chunks are cut to it. */
#define LOGIT_ROWS_MIN 32u

/* log may be NULL. */
static int load_kernels(struct worker_model *m, const struct worker_config *cfg, struct log *log,
                        struct errbuf *eb) {
    struct machine mach;
    machine_read(&mach, "");
    m->ops = kernels_pick(cfg->isa[0] ? cfg->isa : NULL, eb);
    if (!m->ops)
        return err_wrap(eb, ERR_UNSUPPORTED, "--isa");
    if (log &&
        cfg->threads > mach.cpus) /* they would wait for each other while others have the CPU */
        log_warn(log, "more kernel threads than CPUs", "threads=%u cpus=%u", cfg->threads,
                 mach.cpus);
    uint32_t n = cfg->threads ? cfg->threads : mach.cpus;
    return kern_team_new(&m->team, MIN(n, (uint32_t)KERN_TEAM_MAX), eb);
}

/* Pages are touched as they are used: what does not fit would be killed for it under load. */
static int check_memory(const struct worker_config *cfg, struct log *log, struct errbuf *eb) {
    struct machine mach;
    struct gguf_file_id file;
    machine_read(&mach, "");
    if (!mach.memory_bytes)
        return 0;
    if (cfg->kv_bytes > mach.memory_bytes)
        return err_set(eb, ERR_TOOBIG,
                       "--kv-bytes %" PRIu64 " is more than the memory there is, %" PRIu64 "%s",
                       cfg->kv_bytes, mach.memory_bytes,
                       mach.has_memory_limit ? " (control group)" : "");
    if (gguf_file_id_of(cfg->model, &file) == 0 && file.size + cfg->kv_bytes > mach.memory_bytes)
        log_warn(log, "model and KV pages are more than the memory there is",
                 "model_bytes=%" PRIu64 " kv_bytes=%" PRIu64 " memory_bytes=%" PRIu64, file.size,
                 cfg->kv_bytes, mach.memory_bytes);
    return 0;
}

/* --model-name, else the file's name without folder, part and ending: what users know the model by. */
static void set_name(struct worker_model *m, const struct worker_config *cfg) {
    const char *base = strrchr(cfg->model, '/');
    base = base ? base + 1 : cfg->model;
    size_t n = gguf_file_stem(base);
    if (cfg->model_name[0])
        snprintf(m->name, sizeof(m->name), "%s", cfg->model_name);
    else
        snprintf(m->name, sizeof(m->name), "%.*s", (int)n, base);
}

static bool on_progress(void *arg, uint64_t done, uint64_t total) {
    struct worker_loading *ld = arg;
    atomic_store(&ld->total, total);
    atomic_store(&ld->done, done);
    return !atomic_load(&ld->cancel);
}

/* read: model_load() or model_outline(). */
static int
load_weights(struct worker_model *m, const struct worker_config *cfg, struct worker_loading *ld,
             int (*read)(struct model **, const struct model_load_cfg *, struct errbuf *),
             struct errbuf *eb) {
    if (!cfg->model[0])
        return err_set(eb, ERR_INVALID, "--model FILE is required");
    if (cfg->block_tokens & (cfg->block_tokens - 1))
        return err_set(eb, ERR_INVALID, "--block-tokens %u is no power of two", cfg->block_tokens);
    if (cfg->chunk_tokens < cfg->max_seqs)
        return err_set(eb, ERR_INVALID, "--chunk-tokens %u is less than --max-seqs %u",
                       cfg->chunk_tokens, cfg->max_seqs);
    m->kv = (struct kv_dtypes){(enum kv_dtype)cfg->k_dtype, (enum kv_dtype)cfg->v_dtype};
    const struct model_load_cfg mc = {
        .path = cfg->model,
        .keep_raw = cfg->numerics == 1,
        .progress = ld ? on_progress : NULL,
        .progress_arg = ld,
        .max_ctx = cfg->max_context,
        .digest_cache_dir = !cfg->digest_cache[0]                    ? NULL
                            : strcmp(cfg->digest_cache, "none") == 0 ? ""
                                                                     : cfg->digest_cache,
    };
    int rv = read(&m->model, &mc, eb);
    if (rv < 0)
        return err_wrap(eb, rv, "model '%s'", cfg->model);
    set_name(m, cfg);
    return 0;
}

/* The file's template, or the family that --chat-template names. */
static int load_template(struct worker_model *m, const struct worker_config *cfg,
                         const struct gguf_vocab *v, struct errbuf *eb) {
    struct errbuf why = {{0}};
    if (cfg->chat_template) { /* "auto" is 0, then the families in their order */
        int rv = chat_template_of_family(&m->chat, (enum chat_family)(cfg->chat_template - 1),
                                         m->tok, eb);
        return rv < 0 ? err_wrap(eb, rv, "--chat-template") : 0;
    }
    struct tok_str bos = tokenizer_piece(m->tok, tokenizer_bos(m->tok));
    struct tok_str eos = tokenizer_piece(m->tok, tokenizer_eos(m->tok));
    if (chat_template_new(&m->chat, v->chat_template.p, v->chat_template.len, bos, eos, &why) < 0)
        snprintf(m->chat_error, sizeof(m->chat_error),
                 "%.*s; --chat-template NAME uses a known one instead",
                 (int)sizeof(m->chat_error) - 64, why.text);
    return 0;
}

static int load_text(struct worker_model *m, const struct worker_config *cfg, struct errbuf *eb) {
    struct gguf_vocab v;
    int rv = gguf_vocab_read(&v, m->model->gguf, eb);
    if (rv < 0)
        return err_wrap(eb, rv, "vocabulary");
    rv = tokenizer_new(&m->tok, &v.src, eb);
    if (rv == 0 && tokenizer_n_tokens(m->tok) != m->model->hp.n_vocab)
        rv = err_set(eb, ERR_INVALID, "%u tokens, but the model's vocabulary has %u",
                     tokenizer_n_tokens(m->tok), m->model->hp.n_vocab);
    if (rv == 0)
        rv = load_template(m, cfg, &v, eb);
    gguf_vocab_fini(&v);
    return rv < 0 ? err_wrap(eb, rv, "tokenizer") : 0;
}

static int make_forward(struct worker_model *m, const struct worker_config *cfg,
                        struct errbuf *eb) {
    const struct model_hparams *hp = &m->model->hp;
    int rv;
    if (cfg->numerics == 1) {
        rv = matmul_blas_new(&m->blas, MAX(hp->n_ff, MAX(hp->n_embd, hp->n_head * hp->d_head)),
                             kern_team_size(m->team), eb);
        if (rv < 0)
            return err_wrap(eb, rv, "--numerics blas");
    }
    m->max_ctx = cfg->max_context ? MIN(cfg->max_context, hp->n_ctx) : hp->n_ctx;
    m->max_logit_rows = MIN(cfg->chunk_tokens, MAX(cfg->max_seqs, LOGIT_ROWS_MIN));
    rv = model_kv_layout(&m->layout, m->model, cfg->block_tokens, m->kv, eb);
    if (rv < 0)
        return err_wrap(eb, rv, "--block-tokens %u, --k-dtype %s, --v-dtype %s", cfg->block_tokens,
                        kv_dtype_name(m->kv.k), kv_dtype_name(m->kv.v));
    size_t stride = (m->layout.page_bytes + 4095) / 4096 * 4096;
    m->n_pages = (uint32_t)MIN(cfg->kv_bytes / stride, (uint64_t)1 << 24);
    if (!m->n_pages)
        return err_set(eb, ERR_INVALID, "--kv-bytes %llu holds no page of %zu bytes",
                       (unsigned long long)cfg->kv_bytes, stride);
    const struct fwd_cfg fc = {
        .max_rows = cfg->chunk_tokens,
        .max_seqs = cfg->max_seqs,
        .max_logit_rows = m->max_logit_rows,
        .max_ctx = m->max_ctx,
        .block_tok = cfg->block_tokens,
        .kv = m->kv,
        .ops = m->ops,
        .team = m->team,
        .blas = m->blas,
    };
    return fwd_new(&m->fwd, m->model, &fc, eb);
}

/* The self-test tells what this process really computes; its id is part of the namespace. */
static int make_namespace(struct worker_model *m, const struct worker_config *cfg,
                          struct errbuf *eb) {
    uint8_t digest[DIGEST_BYTES], graph[DIGEST_BYTES], rope[DIGEST_BYTES], tokenizer[DIGEST_BYTES];
    int rv = kern_selftest_run(m->ops, digest);
    if (rv < 0)
        return err_set(eb, rv, "numerics self-test");
    m->numerics_ok = memcmp(digest, kern_selftest_golden(), DIGEST_BYTES) == 0;
    kern_numerics_id(digest, m->blas, m->numerics_id);
    rv = model_graph_digest(m->model, graph);
    rope_digest((const struct rope *const *)m->model->rope, m->model->hp.n_rope, rope);
    tokenizer_digest(m->tok, tokenizer);
    const struct namespace_parts parts = {
        .arch = m->model->hp.arch,
        .block_tok = cfg->block_tokens,
        .graph = graph,
        .k_dtype = kv_dtype_name(m->layout.cfg.k_dtype),
        .v_dtype = kv_dtype_name(m->layout.cfg.v_dtype),
        .layout = KV_LAYOUT_VERSION,
        .numerics = m->numerics_id,
        .rope = rope,
        .tokenizer = tokenizer,
        .weights = m->model->digest,
    };
    if (rv == 0)
        rv = namespace_desc_make(&m->ns, &parts);
    return rv < 0 ? err_set(eb, rv, "namespace descriptor") : 0;
}

int worker_model_load(struct worker_model *m, const struct worker_config *cfg, struct log *log,
                      struct worker_loading *ld, struct errbuf *eb) {
    *m = (struct worker_model){0};
    int rv = check_memory(cfg, log, eb);
    if (rv == 0)
        rv = load_kernels(m, cfg, log, eb);
    if (rv == 0)
        rv = load_weights(m, cfg, ld, model_load, eb);
    if (rv == 0)
        rv = load_text(m, cfg, eb);
    if (rv == 0)
        rv = make_forward(m, cfg, eb);
    if (rv == 0)
        rv = make_namespace(m, cfg, eb);
    if (rv < 0) {
        worker_model_free(m);
        return rv;
    }
    char hex[2 * DIGEST_BYTES + 1];
    digest_hex(m->ns.digest, DIGEST_BYTES, hex);
    log_info(log, "model loaded",
             "name=%s arch=%s isa=%s threads=%u context=%u pages=%u page_bytes=%zu", m->name,
             m->model->hp.arch, m->ops->name, kern_team_size(m->team), m->max_ctx, m->n_pages,
             m->layout.page_bytes);
    log_info(log, "namespace", "digest=%s numerics=%s", hex, m->numerics_id);
    if (m->ops != kernels_pick("scalar", NULL) &&
        !attn_is_vectorised(m->model->hp.d_head, cfg->block_tokens))
        log_warn(log,
                 "attention runs without vector instructions: head size and --block-tokens are no "
                 "multiples of 16",
                 "d_head=%u block_tokens=%u", m->model->hp.d_head, cfg->block_tokens);
    if (!m->numerics_ok)
        log_warn(log, "numerics self-test differs from the contract, the cache is off", "id=%s",
                 m->numerics_id);
    if (!m->chat)
        log_warn(log, "no chat: template not supported", "why=%s", m->chat_error);
    return 0;
}

int worker_model_outline(struct worker_model *m, const struct worker_config *cfg,
                         struct errbuf *eb) {
    *m = (struct worker_model){0};
    int rv = load_kernels(m, cfg, NULL, eb);
    if (rv == 0)
        rv = load_weights(m, cfg, NULL, model_outline, eb);
    if (rv == 0)
        rv = make_forward(m, cfg, eb);
    if (rv < 0)
        worker_model_free(m);
    return rv;
}

void worker_model_free(struct worker_model *m) {
    kv_layout_fini(&m->layout);
    fwd_free(m->fwd);
    chat_template_free(m->chat);
    tokenizer_free(m->tok);
    model_free(m->model);
    matmul_blas_free(m->blas);
    kern_team_free(m->team);
    *m = (struct worker_model){0};
}
