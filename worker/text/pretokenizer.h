/* pretokenizer.h - cuts text into the pieces inside which BPE merges.
 *
 * The peers do this with regular expressions; here each one is a hand-written scanner over our own
 * Unicode tables (one pass, no backtracking beyond a run of white space), checked against PCRE2 in
 * tests. Bytes that are not UTF-8 count as symbols.
 * Thread: any; a struct pretok is its caller's. */
#pragma once

#include "common/compiler.h"

enum pretok_kind {
    PRETOK_SMOLLM,
    PRETOK_GPT2,
    PRETOK_LLAMA_BPE,
    PRETOK_QWEN2,
    PRETOK_DBRX, /* llama-bpe's expression, with merges and without BOS */
    PRETOK_GPT4O,
    PRETOK_TEKKEN,
    PRETOK_DEFAULT,
    PRETOK_NR
};

struct pretok {
    enum pretok_kind kind;
    const char *p;
    size_t n, pos;
    /* Kinds that cut the text first: end of the stretch, and of the scanner's piece, that pos is in. */
    size_t stretch_end, piece_end;
};

/* Kind for the value of tokenizer.ggml.pre; -1 when we have no scanner for it. */
int pretok_find(const char *pre);
/* All names that pretok_find() takes, for a message. */
void pretok_list(char *ret, size_t size);
const char *pretok_name(enum pretok_kind kind);
/* Merging is skipped for a piece that is a token as it stands. */
bool pretok_ignores_merges(enum pretok_kind kind);
/* Whether this family puts BOS in front when the file does not say. */
bool pretok_default_bos(enum pretok_kind kind);

void pretok_init(struct pretok *s, enum pretok_kind kind, const char *p, size_t n);
/* Length of the next piece, which starts at s->p + s->pos before the call; 0 at the end. */
size_t pretok_next(struct pretok *s);
