/* token_vocab.h - a tokenizer from a GGUF file, for tests. */
#pragma once

#include "worker/text/tokenizer.h"

/* pre: NULL takes the file's. Prints why to stderr and returns a negative code on failure. */
int token_vocab_load(struct tokenizer **ret, const char *gguf_path, const char *pre);
