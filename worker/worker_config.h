/* worker_config.h - the worker's options, one row each (common/config.h turns rows into the parser of
 * command line, environment and file, --help and the example file). */
#pragma once

#include "common/config.h"
#include "common/svc_main.h"

/*    field            type  default      min   max          live   help */
#define WORKER_CONFIG(X)                                                                           \
    SVC_OPTIONS(X)                                                                                 \
    SVC_LAME_DUCK_OPTION(X)                                                                        \
    X(model, STR, "", 0, 4096, false, "GGUF file to serve; required")                              \
    X(model_name, STR, "", 0, 200, false, "name in /v1/models; empty: the file's")                 \
    X(served_name, LIST, "", 0, 64, false,                                                         \
      "further name that requests may ask for; repeatable. Any other is answered 404")             \
    X(any_model, BOOL, false, 0, 0, false, "serve whatever model name a request asks for")         \
    X(name, STR, "", 0, 64, false, "this worker's name in answers and logs; empty: host:port")     \
    X(listen, STR, "127.0.0.1:8000", 1, 256, false, "HTTP address:port, or unix:PATH")             \
    X(insecure_no_auth, BOOL, false, 0, 0, false,                                                  \
      "allow listening beyond loopback without --api-key-file")                                    \
    X(allowed_host, LIST, "", 0, 64, false,                                                        \
      "name taken in Host beside addresses and localhost, or *; repeatable. Asked for on "         \
      "loopback "                                                                                  \
      "without --api-key-file, since a web page can point a name of its own there")                \
    X(cors_origin, LIST, "", 0, 64, false,                                                         \
      "origin of web pages that may use the API, https://NAME[:PORT], or *; repeatable")           \
    X(access_log, BOOL, true, 0, 0, false,                                                         \
      "log a line for each request: id, client, status, tokens, times; probes when they fail")     \
    X(http_max_conns, U32, 1024, 8, 65536, false,                                                  \
      "HTTP connections; beyond, those without a request give way")                                \
    X(http_body_bytes, U64, 16u << 20, 1024, 1u << 30, false, "largest request body")              \
    X(http_bodies_bytes, U64, 256u << 20, 1u << 20, 1ull << 40, false,                             \
      "all request bodies together; one client's share of it is answered 503 beyond")              \
    X(api_key_file, STR, "", 0, 4096, false,                                                       \
      "file with API keys, one a line: KEY [SALT as 64 hex digits]")                               \
    X(cache, LIST, "", 0, 64, false,                                                               \
      "cache node, unix:PATH or HOST:PORT; repeatable; none: no cache")                            \
    X(token_file, STR, "", 0, 4096, false, "file with the token for the cache nodes")              \
    X(fetch, ENUM, "auto", "auto|always|never", 0, false,                                          \
      "resident prefixes: auto: fetch when measured faster than computing; always: also from a "   \
      "node that hangs, which costs 2 to 4 s a request until the breaker opens; never")            \
    X(threads, U32, 0, 0, 1024, false, "kernel threads; 0: one a core")                            \
    X(isa, STR, "", 0, 32, false, "force kernels by name (scalar, avx2, avx512); empty: by CPU")   \
    X(numerics, ENUM, "exact", "exact|blas", 0, false, "kernels of prefill; blas: OpenBLAS")       \
    X(k_dtype, ENUM, "f16", "f16|f32|q8_0|q4_0", 0, false,                                         \
      "K in pages, memory and cache; q8_0 takes 17/32 of f16's bytes, q4_0 9/32")                  \
    X(v_dtype, ENUM, "f16", "f16|f32|q8_0|q4_0", 0, false, "V, as --k-dtype; the two are apart")   \
    X(block_tokens, U32, 32, 4, 1024, false, "tokens in a block, a power of two")                  \
    X(max_context, U32, 0, 0, 1u << 20, false,                                                     \
      "most tokens of one request, prompt and answer; 0: the model's")                             \
    X(kv_bytes, U64, 1ull << 30, 1ull << 16, 1ull << 44, false,                                    \
      "memory for KV pages; a request reserves its prompt and max_tokens, or the context without " \
      "them")                                                                                      \
    X(chunk_tokens, U32, 256, 1, 8192, false, "most rows computed in one step")                    \
    X(chunk_ms, U32, 100, 0, 60000, false,                                                         \
      "time that prompts may take of a step beside requests that generate, ms; 0: chunk-tokens "   \
      "alone bounds it")                                                                           \
    X(max_seqs, U32, 16, 1, 256, false, "most sequences computed in one step")                     \
    X(max_queue, U32, 128, 1, 1u << 16, false, "requests that may wait; more get 429")             \
    X(engine_hang_ms, U32, 60000, 1000, 3600000, true,                                             \
      "/healthz fails when no step ended for this long (and for ten of usual length), ms")         \
    X(put_queue_blocks, U32, 256, 0, 1u << 20, false,                                              \
      "full pages that may wait to be put; 0: nothing is put")                                     \
    X(chat_template, ENUM, "auto",                                                                 \
      "auto|chatml|smollm2|llama-3|gemma-2|gemma-3|mistral|mixtral|qwen3", 0, false,               \
      "family of the chat template; auto: the file's, which must be one of them")                  \
    X(digest_cache, STR, "", 0, 4096, false,                                                       \
      "folder that remembers weight digests; empty: the user's cache folder; none: off")           \
    X(plan, BOOL, false, 0, 0, false,                                                              \
      "print what memory the model will take under these options, from the file's metadata, and "  \
      "exit")                                                                                      \
    X(debug_logits, BOOL, false, 0, 0, false,                                                      \
      "add the SHA-256 of the first token's logits to answers")

struct worker_config {
    CFG_FIELDS(WORKER_CONFIG)
};
CFG_TABLE(worker_config, WORKER_CONFIG)
