/* gen_request.c - a request's memory and its first step: tokens and block ids, on the pool. */
#include "worker/sched/gen_request_priv.h"

#include "common/check.h"

const char *finish_reason_name(enum finish_reason r) {
    static const char *const names[] = {"none", "stop", "length", "canceled", "error"};
    return names[r];
}

struct gen_request *gen_request_new(void) {
    struct gen_request_priv *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->pub.sample.temperature = 1;
    p->pub.sample.top_p = 1;
    return &p->pub;
}

void gen_request_free(struct gen_request *r) {
    if (!r)
        return;
    struct gen_request_priv *p = gen_request_priv(r);
    tok_ids_fini(&p->ids);
    free(p->tok);
    free(p->text);
    free(p->top);
    free(p->prompt_lp);
    free(p->prompt_top);
    kv_chain_unref(p->chain);
    free(p);
}

static int fail(struct gen_request *r, int rv) {
    r->err = rv;
    return rv;
}

static int check_ids(struct gen_request *r, const struct gen_prepare_cfg *cfg) {
    struct tok_ids *ids = &gen_request_priv(r)->ids;
    if (!ids->n)
        return err_set(&r->eb, ERR_INVALID, "the prompt is empty");
    for (size_t i = 0; i < ids->n; i++)
        if (ids->id[i] < 0 || (uint32_t)ids->id[i] >= cfg->n_vocab)
            return err_set(&r->eb, ERR_INVALID,
                           "token id %d at position %zu is outside the vocabulary", (int)ids->id[i],
                           i);
    return 0;
}

/* Tokens of a prompt that are counted at least, so that an error can tell by how much it is too long;
 * what lies far beyond is not worth the time. */
static size_t count_limit(const struct gen_prepare_cfg *cfg) {
    return 2 * (size_t)cfg->max_ctx + 64;
}

static int take_prompt(struct gen_request *r, const struct gen_prepare_cfg *cfg) {
    struct tok_ids *ids = &gen_request_priv(r)->ids;
    if (r->n_parts) {
        ids->max = count_limit(cfg);
        int rv = tokenizer_encode(cfg->tok, r->parts, r->n_parts, r->add_bos, ids, &r->eb);
        return rv == ERR_TOOBIG
                   ? err_set(&r->eb, rv,
                             "the prompt has more than %zu tokens; the context limit is %u",
                             ids->max, cfg->max_ctx)
                   : rv;
    }
    for (size_t i = 0; i < r->n_ids; i++)
        if (tok_ids_push(ids, r->ids[i]) < 0) /* no max: they are there already */
            return err_set(&r->eb, ERR_NOMEM, "prompt");
    return 0;
}

/* max_new, or an error that tells the numbers. */
static int check_length(struct gen_request *r, const struct gen_prepare_cfg *cfg) {
    struct gen_request_priv *p = gen_request_priv(r);
    size_t n = p->ids.n, limit = cfg->max_ctx;
    /* rows written: all but the last generated token's */
    size_t pool_tok = (size_t)cfg->n_pages * cfg->block_tok + 1;
    if (r->max_tokens_set && r->max_tokens == 0)
        limit = MIN(limit, pool_tok - 1);
    else
        limit = MIN(limit, pool_tok);
    size_t want = r->max_tokens_set ? r->max_tokens : 1;
    if (n + want > limit)
        return err_set(
            &r->eb, ERR_TOOBIG,
            "the prompt has %zu tokens and %zu more are asked for; the context limit is %zu", n,
            want, limit);
    p->max_new = (uint32_t)(r->max_tokens_set ? want : limit - n);
    return 0;
}

static int alloc_outputs(struct gen_request *r, const struct gen_prepare_cfg *cfg) {
    struct gen_request_priv *p = gen_request_priv(r);
    size_t n = p->ids.n, max_piece = tokenizer_max_piece(cfg->tok);
    p->tok = alloc_array(p->max_new, sizeof(*p->tok));
    /* A byte may become a three-byte U+FFFD; what is never written costs no memory. */
    p->text_cap = 3 * (max_piece * p->max_new + STOP_MAX_BYTES + 4 + max_piece);
    p->text = malloc(p->text_cap);
    if (r->logprobs && r->n_top)
        p->top = alloc_array((size_t)p->max_new * r->n_top, sizeof(*p->top));
    if (r->prompt_logprobs) {
        p->prompt_lp = alloc_array(n, sizeof(*p->prompt_lp));
        p->prompt_top = alloc_array(n * MAX(r->n_top, 1u), sizeof(*p->prompt_top));
    }
    size_t rows = n + p->max_new;
    p->chain = kv_chain_new((uint32_t)(rows / cfg->block_tok) + 1);
    if (!p->tok || !p->text || !p->chain || (r->logprobs && r->n_top && !p->top) ||
        (r->prompt_logprobs && (!p->prompt_lp || !p->prompt_top)))
        return err_set(&r->eb, ERR_NOMEM, "request");
    return 0;
}

static int make_chain(struct gen_request *r, const struct gen_prepare_cfg *cfg) {
    struct gen_request_priv *p = gen_request_priv(r);
    CLEANUP(digest_freep) struct digest *d = digest_new();
    if (!d)
        return err_set(&r->eb, ERR_NOMEM, "digest");
    const struct block_chain_cfg bc = {
        .namespace_digest = cfg->namespace_digest,
        .salt = r->salt,
        .n_public_blocks = r->n_public_blocks,
        .block_tok = cfg->block_tok,
    };
    block_chain(d, &bc, p->ids.id, p->ids.n, p->chain->ids);
    return 0;
}

int gen_request_prepare(struct gen_request *r, const struct gen_prepare_cfg *cfg) {
    struct gen_request_priv *p = gen_request_priv(r);
    int rv = take_prompt(r, cfg);
    if (rv == 0)
        rv = check_ids(r, cfg);
    if (rv == 0)
        rv = check_length(r, cfg);
    if (rv == 0)
        rv = alloc_outputs(r, cfg);
    if (rv == 0)
        rv = make_chain(r, cfg);
    if (rv == 0 && r->n_top > SAMPLE_MAX_TOP)
        rv = err_set(&r->eb, ERR_INVALID, "more than %d top log-probabilities", SAMPLE_MAX_TOP);
    if (rv < 0)
        return fail(r, rv);
    r->prompt = p->ids.id;
    r->usage.n_prompt = (uint32_t)p->ids.n;
    r->out = p->tok;
    r->prompt_lp = p->prompt_lp;
    return 0;
}
