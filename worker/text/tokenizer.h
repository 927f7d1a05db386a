/* tokenizer.h - bytes to token ids and back, for the vocabularies that GGUF files carry.
 *
 * Built once from plain data (worker/model fills struct tokenizer_src from the file), read-only after.
 * Two algorithms: byte-level BPE ("gpt2") with the pre-tokenizers of pretokenizer.h, and SPM ("llama"). Another model,
 * pre-tokenizer or flag is refused by its name: a wrong split still gives text, only worse text.
 *
 * Special tokens are cut out first, longest text first. Control tokens match only in bytes of origin
 * TEMPLATE, so that a user's "<|im_end|>" stays five ordinary tokens; user-defined tokens (type 4)
 * match in both. Text between special tokens is one run whatever its origin: the split at the border of
 * two parts is that of the joined text.
 *
 * Thread:  any, at the same time; encode and decode allocate their own scratch.
 * Memory:  tokenizer_new copies what it keeps. struct tok_ids and struct tok_text grow with malloc.
 * Units:   ids are int32; lengths are bytes. */
#pragma once

#include "common/compiler.h"
#include "common/digest.h"
#include "common/err.h"

struct tok_str {
    const char *p; /* not NUL-terminated */
    uint32_t len;
};

/* Values of tokenizer.ggml.token_type. */
enum tok_type {
    TOK_TYPE_NORMAL = 1,
    TOK_TYPE_UNKNOWN = 2,
    TOK_TYPE_CONTROL = 3,
    TOK_TYPE_USER_DEFINED = 4,
    TOK_TYPE_UNUSED = 5,
    TOK_TYPE_BYTE = 6,
};

/* The keys tokenizer.ggml.* as they stand in the file. Ids -1 and flags -1 mean: the key is absent. */
struct tokenizer_src {
    const char *model; /* "gpt2" (BPE) or "llama" (SPM) */
    const char *pre;   /* NULL when absent; BPE then refuses */
    uint32_t n_tokens, n_merges;
    const struct tok_str *tokens; /* [n_tokens], as spelled in the file */
    const float *scores;          /* [n_tokens] or NULL; SPM needs them */
    const int32_t *types;         /* [n_tokens] or NULL: all normal */
    const struct tok_str *merges; /* [n_merges] "left right"; BPE needs them */
    int32_t bos_id, eos_id, eot_id, eom_id, unk_id, pad_id;
    int8_t add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
};

/* An empty source: all ids and flags absent. */
#define TOKENIZER_SRC_EMPTY                                                                        \
    ((struct tokenizer_src){.bos_id = -1,                                                          \
                            .eos_id = -1,                                                          \
                            .eot_id = -1,                                                          \
                            .eom_id = -1,                                                          \
                            .unk_id = -1,                                                          \
                            .pad_id = -1,                                                          \
                            .add_bos = -1,                                                         \
                            .add_eos = -1,                                                         \
                            .add_space_prefix = -1,                                                \
                            .remove_extra_whitespaces = -1})

enum tok_origin {
    TOK_ORIGIN_USER = 0, /* whatever came in from outside */
    TOK_ORIGIN_TEMPLATE, /* our own template's text */
};

struct tok_part {
    const char *p;
    size_t len;
    enum tok_origin origin;
};

/* Growing array of ids; start with {0}, or with the most it may hold. */
struct tok_ids {
    int32_t *id; /* [n] */
    size_t n, cap;
    size_t max; /* 0: any number */
};
void tok_ids_fini(struct tok_ids *v);
int tok_ids_push(struct tok_ids *v, int32_t id); /* 0, ERR_NOMEM or ERR_TOOBIG (max) */

/* Growing bytes; start with {0}. Always NUL-terminated once something was added. */
struct tok_text {
    char *p;
    size_t len, cap;
};
void tok_text_fini(struct tok_text *v);
int tok_text_add(struct tok_text *v, const void *p, size_t n); /* 0 or ERR_NOMEM */

struct tokenizer; /* opaque, immutable */

/* ERR_UNSUPPORTED names the model, pre-tokenizer or flag that is not implemented; ERR_INVALID names
 * what is wrong with the vocabulary. */
int tokenizer_new(struct tokenizer **ret, const struct tokenizer_src *src, struct errbuf *eb);
void tokenizer_free(struct tokenizer *t); /* NULL is a no-op */
static inline void tokenizer_freep(struct tokenizer **t) {
    tokenizer_free(*t);
}

/* Appends the ids of the joined parts. add_bos: put BOS in front if the vocabulary asks for it, unless
 * the parts already begin with it. ERR_TOOBIG as soon as it is certain that out->max is not enough: by
 * length alone where no token is that long, so that the work is bounded by max and not by the text. */
int tokenizer_encode(const struct tokenizer *t, const struct tok_part *parts, size_t n_parts,
                     bool add_bos, struct tok_ids *out, struct errbuf *eb);

/* The bytes of one token as they appear in running text; may be half a character. Control tokens give
 * their spelling; see tokenizer_is_control. Borrowed, lives as long as t. id outside the vocabulary:
 * an empty string. */
struct tok_str tokenizer_piece(const struct tokenizer *t, int32_t id);

/* Appends the bytes of ids. Control tokens are left out unless with_control. With an SPM vocabulary the
 * space that encode put in front of the text goes again. ERR_INVALID for an id outside the vocabulary. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool with_control,
                     struct tok_text *out, struct errbuf *eb);

/* Id of the token spelled so in the file, or -1. */
int32_t tokenizer_find(const struct tokenizer *t, const char *p, size_t len);

bool tokenizer_is_eog(const struct tokenizer *t, int32_t id); /* ends a generation */
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
uint32_t tokenizer_n_tokens(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *t); /* -1: none */
bool tokenizer_adds_bos(const struct tokenizer *t);
/* Longest piece in bytes, to size buffers. */
size_t tokenizer_max_piece(const struct tokenizer *t);

/* Memory it takes. */
size_t tokenizer_bytes(const struct tokenizer *t);

/* SHA-256 over everything that changes ids: algorithm, pre-tokenizer, vocabulary, types, scores,
 * merges, flags, special ids, our Unicode version. Enters the namespace. */
void tokenizer_digest(const struct tokenizer *t, uint8_t ret[DIGEST_BYTES]);
