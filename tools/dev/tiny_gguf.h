/* tiny_gguf.h - a random llama small enough for tests, with a vocabulary that the whole worker can use.
 *
 * Byte-level BPE (pre "smollm") of 256 bytes, some merges and the three ChatML control tokens; the plain
 * ChatML template. The same spec and seed give the same file, byte for byte.
 * Thread: any. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"

struct tiny_spec {
    uint32_t type;      /* of the matrices, GGUF's number */
    uint32_t embd_type; /* of token_embd (and of output unless tied) */
    uint32_t n_layer, n_embd, n_head, n_head_kv, n_ff, n_ctx;
    bool untied;     /* an output.weight of its own */
    bool rope_freqs; /* with a tensor of RoPE divisors */
    uint64_t seed;
};

/* 2 layers of 4 heads, 2 KV heads, head dimension 16, tied, context 2048. */
struct tiny_spec tiny_spec_of(uint32_t type);

/* Tokens of the vocabulary; fixed. */
uint32_t tiny_gguf_n_vocab(void);
int tiny_gguf_write(const struct tiny_spec *s, const char *path);
