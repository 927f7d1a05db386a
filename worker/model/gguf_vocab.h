/* gguf_vocab.h - the keys tokenizer.* of a GGUF file as a tokenizer_src, and the chat template's text.
 *
 * Thread: any. Memory: the arrays are the vocabulary's, the strings point into the file's mapping, so
 * both must outlive the use of src (tokenizer_new() copies what it keeps). */
#pragma once

#include "common/compiler.h"
#include "common/err.h"
#include "worker/model/gguf.h"
#include "worker/text/tokenizer.h"

struct gguf_vocab {
    struct tokenizer_src src;
    char *model, *pre; /* NUL-terminated copies; pre NULL when absent */
    struct tok_str *tokens, *merges;
    float *scores;
    int32_t *types;
    struct gguf_str chat_template; /* len 0 when absent */
};

/* eb names the key that is missing, of a wrong type, or does not fit the others. */
int gguf_vocab_read(struct gguf_vocab *ret, const struct gguf *g, struct errbuf *eb);
void gguf_vocab_fini(struct gguf_vocab *v);
