/* arch.h - the table of model architectures: one row each, a description and no program.
 *
 * A row says which options its graph has; arch_keys.c reads the metadata keys that the row allows into
 * model_hparams and refuses by name every other one; weights.c asks for the tensors that the options need,
 * or may have, and refuses any that is left over: a bias that nobody adds would give wrong text, quietly.
 * forward.c reads options and knows no architecture.
 *
 * Thread: any; everything is constant. */
#pragma once

#include "worker/model/gguf.h"
#include "worker/model/weights.h"

/* Biases of products. */
enum { BIAS_QKV = 1, BIAS_OUT = 2, BIAS_FFN = 4, BIAS_EXPERTS = 8 /* and the router */ };

/* Groups of optional keys; a key of a group that a row does not read may only be absent or zero. */
enum {
    KEYS_WINDOW = 1,   /* attention.sliding_window */
    KEYS_SOFTCAP = 2,  /* attn_ and final_logit_softcapping */
    KEYS_SCALES = 4,   /* embedding_scale, residual_scale, logit_scale (a divisor) */
    KEYS_EXPERTS = 16, /* expert_count, expert_used_count, expert_feed_forward_length */
    KEYS_LONGROPE = 8, /* tensors rope_factors_long and rope_factors_short */
};

struct model_arch {
    const char *name;  /* general.architecture, and the prefix of its keys */
    bool rope_neox;    /* pairs (i, i + n_rot/2); else adjacent pairs */
    bool rope_part;    /* rope.dimension_count may be less than a head */
    bool fused;        /* attn_qkv: q, k, v; ffn_up: gate, up */
    bool experts;      /* there must be some */
    bool sinks;        /* attn_sinks */
    bool yarn_between; /* rope_cfg */
    bool embd_sqrt;    /* embedding rows are multiplied by sqrt(n_embd) */
    enum model_act act;
    uint8_t norms;        /* NORM_PRE, NORM_POST */
    const char *ffn_norm; /* name of the feed-forward's; NULL: ffn_norm */
    enum model_qk_norm qk_norm;
    uint8_t biases, maybe_biases; /* BIAS_*: there must be, there may be */
    uint8_t keys;                 /* KEYS_* */
    /* With a window, layer i sees everything iff i % period == period - 1; 0: no layer does. */
    uint16_t window_period;
    uint16_t rope_period;  /* layer i does not rotate iff i % period == period - 1; 0: all rotate */
    float local_rope_base; /* of window layers, which then are not scaled; 0: as the others */
    float attn_softcap, logit_softcap; /* when the key is absent */
    /* The size of this many layers scales its scores by 1 / sqrt(n_embd / n_head), not by the head's. */
    uint16_t embd_scaled_layers;
};

/* NULL: not implemented. */
const struct model_arch *model_arch_find(struct gguf_str name);
/* All rows. */
const struct model_arch *model_arch_table(size_t *ret_n);

/* max_ctx: positions that a sequence may have, 0: the trained number; it chooses longrope's side. */
int model_arch_read(const struct model_arch *a, const struct gguf *g, uint32_t max_ctx,
                    struct model_hparams *ret, struct errbuf *eb);
