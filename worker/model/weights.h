/* weights.h - a loaded model: hyper-parameters, bound and repacked weights, digest.
 *
 * model_load() validates every key, shape and type that the architecture reads, then reads the file once
 * from front to back into memory of its own: matrices repacked into the kernels' form, embedding rows as
 * in the file, the SHA-256 of what was read (or remembered). What it does not implement, and every
 * tensor that holds a NaN or an infinity, it refuses by name. After that nothing checks again and
 * nothing of the file is read or mapped: whatever becomes of it changes no answer.
 *
 * Thread:  read-only after loading, so any thread; model_file_changed() too.
 * Memory:  all of it is the model's. */
#pragma once

#include "common/digest.h"
#include "common/err.h"
#include "worker/kernels/attn_paged.h"
#include "worker/model/gguf_file.h"

struct model_arch;
struct packed_mat;
struct quant_type;
struct rope;

/* By its kv_dtype_name(); ERR_UNSUPPORTED. */
int kv_dtype_parse(const char *name, enum kv_dtype *ret);

enum model_act { ACT_SILU, ACT_GELU_TANH, ACT_SWIGLU_OAI };
/* Where a block's norm stands: before its products, after them (before the residual addition), or both. */
enum { NORM_PRE = 1, NORM_POST = 2 };
/* RMS norm of q and k before RoPE: of each head, or of the whole row. */
enum model_qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_ROW };

/* Angles of a group of layers that rotate alike. */
struct model_rope {
    float base;
    float scale;                /* angle multiplier: 1 / linear scaling factor */
    float magnitude;            /* of cos and sin, before YaRN's own */
    uint32_t yarn_orig_ctx;     /* 0: no YaRN */
    float beta_fast, beta_slow; /* of YaRN */
    bool yarn_between;          /* rope_cfg */
};
#define MODEL_MAX_ROPES 2

/* All effective options of the graph: the file's keys over its architecture's row (arch.h). */
struct model_hparams {
    char arch[32];           /* general.architecture */
    char name[128];          /* general.name, "" when absent; not NUL in between, cut to fit */
    uint32_t n_vocab, n_ctx; /* n_ctx: trained context length */
    uint32_t n_layer, n_embd, n_ff;     /* n_ff: of each expert, where there are some */
    uint32_t n_expert, n_expert_used;   /* 0: one dense feed-forward a layer */
    uint32_t n_head, n_head_kv, d_head; /* n_head is a multiple of n_head_kv */
    uint32_t n_rot;                     /* first floats of a head that are rotated, even */
    float rms_eps;
    bool rope_neox;   /* pairs (i, i + n_rot/2); else adjacent pairs */
    float attn_scale; /* 1/sqrt(d_head) unless file or row say otherwise */
    enum model_act act;
    uint8_t norms; /* NORM_* */
    enum model_qk_norm qk_norm;
    float embd_scale, residual_scale, logit_scale; /* factors, 1: none */
    float attn_softcap, logit_softcap;             /* 0: none */
    bool longrope, longrope_long;                  /* two sets of divisors; the longer one */
    uint32_t n_rope;                               /* groups */
    struct model_rope rope[MODEL_MAX_ROPES];
    struct {
        uint32_t window; /* positions that a row sees, itself included; 0: all before it */
        int32_t rope;    /* its group; -1: q and k are not rotated */
    } layer[KV_MAX_RANGES];
    bool sinks; /* a logit a head joins the softmax of each row */
    bool tied;  /* the head is token_embd */
};

/* Memory of the weights as the head of the file tells it: before anything is read. */
struct model_sizes {
    size_t packed;  /* matrices in the kernels' form */
    size_t raw;     /* the embedding's rows, and with keep_raw the matrices, as in the file */
    size_t vectors; /* norms and biases */
    size_t largest; /* tensor, for which a load has a buffer */
};

/* One transformer layer. Matrices map n_in features to n_out: y[r, o] = sum_i w[o, i] x[r, i]. What the
 * model does not have is NULL. */
struct model_layer {
    const float *attn_norm, *ffn_norm; /* [n_embd] before the products */
    const float *attn_post, *ffn_post; /* [n_embd] after them */
    const float *q_norm, *k_norm;      /* [d_head] or [heads * d_head] */
    struct packed_mat *qkv[3];         /* n_embd -> n_head * d_head, n_head_kv * d_head twice */
    const float *qkv_bias[3];          /* of their outputs, like the others */
    const float *sinks;                /* [n_head] */
    struct packed_mat *wo;             /* n_head * d_head -> n_embd */
    const float *wo_bias;
    struct packed_mat *gate_up[2]; /* n_embd -> n_ff */
    const float *gate_up_bias[2];
    struct packed_mat *w_down; /* n_ff -> n_embd */
    const float *w_down_bias;
    struct packed_mat *router;   /* n_embd -> n_expert, float; then instead of the three: */
    struct packed_mat **experts; /* [3][n_expert] gate, up, down of each */
    const float *router_bias;    /* [n_expert] */
    const float *expert_bias[3]; /* [n_expert, n_ff] twice, [n_expert, n_embd] */
};

struct model {
    struct model_hparams hp;
    const struct model_arch *arch;
    struct gguf *gguf; /* owned: metadata; its tensors' places in a file that is closed */
    char *path;
    struct gguf_file_id file; /* what was loaded */

    const struct quant_type *embd_type;
    const uint8_t *embd;                /* [n_vocab, n_embd] in the file's form, in weights */
    const float *output_norm;           /* [n_embd] */
    struct packed_mat *output;          /* n_embd -> n_vocab; packed from token_embd when tied */
    struct rope *rope[MODEL_MAX_ROPES]; /* [n_rope] */
    struct model_layer *layers;         /* [n_layer] */
    float *vectors;                     /* all norm weights and biases: copies */

    uint8_t digest[DIGEST_BYTES]; /* SHA-256 of the whole file, of the bytes that were loaded */
    bool digest_remembered;       /* by the cache, not computed now */
    struct model_sizes sizes;
    size_t packed_bytes;        /* memory of the repacked matrices */
    struct weight_mem *weights; /* holds them, embd and what keep_raw keeps */
};

struct model_load_cfg {
    const char *path;
    /* Positions that a sequence may have, 0: the trained number; chooses longrope's side. */
    uint32_t max_ctx;
    bool keep_raw; /* --numerics blas: the matrices' bytes as in the file are kept beside */
    /* Folder of the digest cache; NULL: $XDG_CACHE_HOME/incipit or ~/.cache/incipit; "": no cache. */
    const char *digest_cache_dir;
    /* From the loading thread, after each tensor: bytes so far and in all. False ends the load with
     * ERR_CANCELED. May be NULL. */
    bool (*progress)(void *arg, uint64_t done, uint64_t total);
    void *progress_arg;
};

/* eb names the key or tensor on ERR_UNSUPPORTED, ERR_INVALID and ERR_CORRUPT. ERR_CORRUPT also when the
 * file was cut short meanwhile, ERR_CONFLICT when it changed otherwise. */
int model_load(struct model **ret, const struct model_load_cfg *cfg, struct errbuf *eb);
/* All but the tensors: every check of keys, names, shapes and types is done, sizes is set, no weights are there. */
int model_outline(struct model **ret, const struct model_load_cfg *cfg, struct errbuf *eb);
void model_free(struct model *m); /* NULL is a no-op */

/* True when the file at the path is no longer the one that was loaded (replaced, touched, gone). Changes
 * no answer and no block: it tells an operator what the next start would load. One stat() call. */
bool model_file_changed(const struct model *m);

/* A KV page of block_tok positions, window layers last. Errors: kv_layout_init(). */
int model_kv_layout(struct kv_layout *ret, const struct model *m, uint32_t block_tok,
                    struct kv_dtypes t, struct errbuf *eb);
/* Its page_bytes. */
size_t model_page_bytes(const struct model *m, uint32_t block_tok, struct kv_dtypes t);
