/* worker_config.h - the worker's options, one row each (common/config.h turns rows into parser, --help,
 * environment names, dump and docs).
 *
 * Option names are the fields' with '-' for '_'. Sizes take K, M, G suffixes (powers of 1024). */
#pragma once

#include "common/config.h"

/*    field            type  default      min   max          live   help */
#define WORKER_CONFIG(X)                                                                           \
    X(model, STR, "", 0, 4096, false, "GGUF file to serve")                                        \
    X(model_name, STR, "", 0, 200, false, "name in /v1/models; empty: from the file")              \
    X(listen, STR, "127.0.0.1:8000", 0, 256, false, "HTTP address:port")                           \
    X(insecure_no_auth, BOOL, false, 0, 1, false,                                                  \
      "allow listening beyond loopback without --api-key-file")                                    \
    X(api_key_file, STR, "", 0, 4096, false, "file with API keys, one a line: key [tenant salt]")  \
    X(cache, LIST, "", 0, 4096, false,                                                             \
      "cache service, unix:PATH or HOST:PORT; repeatable; none: no cache")                         \
    X(token_file, STR, "", 0, 4096, false, "file with the token for the cache service")            \
    X(fetch, STR, "auto", 0, 16, false,                                                            \
      "auto: when measured faster than computing; always; never")                                  \
    X(threads, U32, 0, 0, 1024, false, "kernel threads; 0: one a core")                            \
    X(isa, STR, "", 0, 32, false, "force kernels: scalar, avx2, avx512; empty: by CPU")            \
    X(numerics, STR, "exact", 0, 16, false, "exact, or blas (OpenBLAS in prefill)")                \
    X(kv_dtype, STR, "f16", 0, 16, false, "K and V in pages: f16 or f32")                          \
    X(block_tokens, U32, 32, 4, 1024, false, "tokens in a block, a power of two")                  \
    X(max_context, U32, 0, 0, 1u << 20, false,                                                     \
      "most tokens of one request, prompt and answer; 0: the model's")                             \
    X(kv_bytes, SIZE, 1ull << 30, 1ull << 20, 1ull << 44, false, "memory for KV pages")            \
    X(kv_pages, U32, 0, 0, 1u << 24, false, "KV pages; 0: from --kv-bytes")                        \
    X(chunk_tokens, U32, 256, 1, 8192, false, "most rows computed in one step")                    \
    X(max_seqs, U32, 16, 1, 256, false, "most sequences computed in one step")                     \
    X(max_queue, U32, 128, 1, 1u << 16, false, "requests that may wait; more get 429")             \
    X(put_queue_blocks, U32, 256, 0, 1u << 20, false,                                              \
      "full pages that may wait to be put; 0: nothing is put")                                     \
    X(drain_ms, U32, 30000, 0, 3600000, false, "after SIGTERM, running requests get this long")    \
    X(debug_logits, BOOL, false, 0, 1, false,                                                      \
      "add the SHA-256 of the first token's logits to each answer")                                \
    X(log_level, STR, "info", 0, 16, true, "error, warn, info, debug")

CONFIG_STRUCT(worker_config, WORKER_CONFIG);
