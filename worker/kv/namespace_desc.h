/* namespace_desc.h - what must be equal for two KV blocks to be interchangeable, and its digest.
 *
 * The descriptor is text: ten lines "key=value\n", keys in ASCII order, integers in decimal, digests as 64
 * lower-case hex digits. namespace_digest is its SHA-256. One changed field gives another namespace and so
 * zero hits. Vectors: tests/golden/namespace.
 *
 * Thread: any. */
#pragma once

#include "common/compiler.h"
#include "common/digest.h"
#include "common/err.h"

#define NAMESPACE_DESC_MAX_BYTES 1024

struct namespace_desc {
    char text[NAMESPACE_DESC_MAX_BYTES]; /* the lines; NUL-terminated */
    size_t len;
    uint8_t digest[DIGEST_BYTES];
};

struct namespace_parts {
    const char *arch;              /* "llama" */
    uint32_t block_tok;            /* b */
    const uint8_t *graph;          /* [32] model_graph_digest() */
    const char *k_dtype, *v_dtype; /* "f16" */
    uint32_t layout;               /* KV_LAYOUT_VERSION */
    const char *numerics;          /* kern_numerics_id(): contract version and digest */
    const uint8_t *rope;           /* [32] rope_digest() */
    const uint8_t *tokenizer;      /* [32] tokenizer_digest() */
    const uint8_t *weights;        /* [32] of the bytes that were loaded */
};

/* ERR_INVALID: a text is empty or not printable ASCII (a line end would forge a line). ERR_TOOBIG. */
int namespace_desc_make(struct namespace_desc *ret, const struct namespace_parts *p);
