/* tokenizer_impl.h - what tokenizer.c and the two algorithms share. Nobody else includes this. */
#pragma once

#include "worker/text/pretokenizer.h"
#include "worker/text/tokenizer.h"
#include "worker/text/vocab_map.h"

/* Bumped when the code would give other ids for an unchanged vocabulary. */
#define TOKENIZER_REVISION 1

enum tok_flag {
    TOK_FLAG_EOG = BIT(0),
    TOK_FLAG_CONTROL =
        BIT(1), /* control and unknown: only in TEMPLATE bytes, no text of their own */
    TOK_FLAG_SPECIAL = BIT(2), /* cut out before everything else: control or user-defined */
};

/* False: n bytes of text give more tokens than out may still take, whatever they are. */
bool tokenizer_may_fit(const struct tokenizer *t, const char *p, size_t n,
                       const struct tok_ids *out);

/* Special tokens of one length in bytes. */
struct tok_special_group {
    uint32_t len;
    uint32_t first_byte[8]; /* bitmap of first bytes, to skip quickly */
};

struct tokenizer;

/* One row an algorithm. */
struct tok_algo {
    const char *model; /* tokenizer.ggml.model */
    int (*init)(struct tokenizer *t, const struct tokenizer_src *src, struct errbuf *eb);
    /* Bytes of an ordinary token in running text; writes at most text.len bytes, returns how many. */
    uint32_t (*decode_piece)(const struct tokenizer *t, struct tok_str text, int32_t type,
                             char *ret);
    /* Appends the ids of text without special tokens. after_special: the text begins the prompt or
     * follows a special token. */
    int (*encode_text)(const struct tokenizer *t, const char *p, size_t n, bool after_special,
                       struct tok_ids *out);
    bool default_bos;
};
extern const struct tok_algo tok_algo_bpe, tok_algo_spm;

struct tokenizer {
    const struct tok_algo *algo;
    uint32_t n_tokens;
    char *arena;            /* all texts, then all pieces */
    struct tok_str *texts;  /* [n_tokens] as in the file */
    struct tok_str *pieces; /* [n_tokens] as in running text */
    uint8_t *flags;         /* [n_tokens] enum tok_flag */
    size_t max_piece;
    struct vocab_map by_text;  /* every token */
    struct vocab_map specials; /* those with TOK_FLAG_SPECIAL */
    struct vocab_map
        ordinary; /* SPM: what a merge may make. BPE with ignore_merges: whole pieces */
    struct tok_special_group *groups; /* [n_groups] longest first */
    uint32_t n_groups;
    int32_t bos, eos;
    bool add_bos, add_space_prefix;
    uint8_t digest[DIGEST_BYTES];

    /* BPE */
    enum pretok_kind pretok;
    bool ignore_merges;
    struct merge_map merges;

    /* Both: the token of a single byte, or -1. */
    int32_t byte_id[256];
    int32_t unk;
    float *scores;    /* SPM: [n_tokens] */
    uint32_t glue[8]; /* SPM: bitmap of the bytes that stand before a space mark inside a token */
};
