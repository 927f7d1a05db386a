/* token_corpus.h - a mixed text of over a megabyte, the same on every machine, for the tokenizers.
 *
 * Cut from the lines of tests/golden/tokens/corpus_seed.txt: prose, other scripts, code, symbols, odd
 * white space, contractions in every case, digits, and stretches where all of that is mixed character
 * by character. The recorded ids in tests/golden/tokens/ are of this text, so a change here means
 * recording them anew.
 * Thread: one owner. */
#pragma once

#include "common/compiler.h"
#include "worker/text/tokenizer.h"

#define TOKEN_CORPUS_SEGMENTS 160
#define TOKEN_CORPUS_SEGMENT_BYTES                                                                 \
    8192 /* at least; a segment ends with the piece that crosses it */

struct token_corpus; /* opaque */
int token_corpus_open(struct token_corpus **ret,
                      const char *seed_path); /* 0 or -1 with a line on stderr */
void token_corpus_close(struct token_corpus *c);
/* Clears and fills text with segment i. */
void token_corpus_segment(const struct token_corpus *c, unsigned i, struct tok_text *text);
