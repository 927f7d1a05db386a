/* tiny_gguf.h - a random model small enough for tests, with a vocabulary that the whole worker can use.
 *
 * Byte-level BPE (pre "smollm") of 256 bytes, some merges and the three ChatML control tokens; the plain
 * ChatML template. The same spec and seed give the same file, byte for byte.
 * Thread: any. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"

struct model_arch;

enum tiny_rope { TINY_ROPE_PLAIN, TINY_ROPE_LINEAR, TINY_ROPE_YARN, TINY_ROPE_LONG };

struct tiny_spec {
    const struct model_arch *arch; /* what its row has is there */
    uint32_t type;                 /* of the matrices, GGUF's number */
    uint32_t embd_type;            /* of token_embd (and of output unless tied) */
    uint32_t n_layer, n_embd, n_head, n_head_kv, d_head, n_ff, n_ctx;
    uint32_t window;     /* 0: none */
    uint32_t n_expert;   /* 2 of them compute a row; 0: dense */
    bool untied;         /* an output.weight of its own */
    bool rope_freqs;     /* with a tensor of RoPE divisors */
    enum tiny_rope rope; /* scaling, by 4 of a trained context of 64, longrope's of 1024 */
    uint64_t seed;
};

/* 2 layers of 4 heads, 2 KV heads, head dimension 16 (types in blocks of 256: 64), tied, context 2048. */
struct tiny_spec tiny_spec_of(uint32_t type);

/* Of an architecture, float weights, as small as its options allow: each kind of layer is there, windows are
 * of 24 positions, heads wider than the embedding's share where the row norms them. False: not known. */
bool tiny_spec_of_arch(const char *arch, struct tiny_spec *ret);

/* Tokens of the vocabulary; fixed. */
uint32_t tiny_gguf_n_vocab(void);
int tiny_gguf_write(const struct tiny_spec *s, const char *path);
