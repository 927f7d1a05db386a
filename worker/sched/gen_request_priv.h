/* gen_request_priv.h - what stands behind a gen_request: prompt ids, outputs, chain.
 *
 * Thread: prepare on the pool; then the engine thread writes, the loop thread reads what was published. */
#pragma once

#include "worker/kv/prefix_put.h"
#include "worker/sched/gen_request.h"

struct gen_request_priv {
    struct gen_request pub; /* first: the API holds a pointer to it */
    struct tok_ids ids;     /* the prompt */
    uint32_t max_new;       /* tokens to generate at most */
    struct gen_token *tok;  /* [max_new] */
    char *text;             /* what the tokens' text points into */
    size_t text_len, text_cap;
    struct sample_logprob *top;        /* [max_new, n_top] */
    struct gen_logprob *prompt_lp;     /* [n_prompt] */
    struct sample_logprob *prompt_top; /* [n_prompt, n_top] */
    struct kv_chain *chain;            /* one reference, taken over by the sequence */
};

static inline struct gen_request_priv *gen_request_priv(struct gen_request *r) {
    return CONTAINER_OF(r, struct gen_request_priv, pub);
}

struct gen_prepare_cfg {
    const struct tokenizer *tok;
    uint32_t n_vocab, max_ctx, block_tok, n_pages;
    const uint8_t *namespace_digest;
};
/* Tokens, limits, output memory, block ids. On failure r->err and r->eb are set. */
int gen_request_prepare(struct gen_request *r, const struct gen_prepare_cfg *cfg);
