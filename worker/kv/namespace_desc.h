/* namespace_desc.h - what must be equal for two KV blocks to be interchangeable, and its digest.
 *
 * The descriptor is text: lines "key=value\n", keys in ASCII order, integers in decimal, floats as 8
 * lower-case hex digits of their IEEE bits, digests as 64 hex digits. namespace_digest is its SHA-256.
 * One changed field gives another namespace and so zero hits (design.md 4).
 *
 * Thread: any; one owner a builder. */
#pragma once

#include "common/compiler.h"
#include "common/digest.h"
#include "common/err.h"

#define NAMESPACE_DESC_MAX_BYTES 4096
#define NAMESPACE_DESC_MAX_ITEMS 64
/* Of design.md 5's page layout; a change of the bytes bumps it. */
#define NAMESPACE_LAYOUT_VERSION 1

struct namespace_desc {
    char text[NAMESPACE_DESC_MAX_BYTES]; /* the lines, sorted; NUL-terminated */
    size_t len;
    uint8_t digest[DIGEST_BYTES];
};

/* Gathers items in any order. */
struct namespace_desc_builder {
    struct {
        char key[48];
        char value[256];
    } item[NAMESPACE_DESC_MAX_ITEMS];
    size_t n;
    int err; /* sticky; namespace_desc_finish() returns it */
};

void namespace_desc_begin(struct namespace_desc_builder *b);
/* key: [a-z0-9_.]+; value: printable ASCII without a line end. A bad one makes finish fail. */
void namespace_desc_add(struct namespace_desc_builder *b, const char *key, const char *value);
void namespace_desc_add_u64(struct namespace_desc_builder *b, const char *key, uint64_t v);
void namespace_desc_add_f32(struct namespace_desc_builder *b, const char *key, float v);
void namespace_desc_add_hex(struct namespace_desc_builder *b, const char *key, const uint8_t *p, size_t n);
/* ERR_INVALID: a bad item or a key given twice. ERR_TOOBIG: too many items or bytes. */
int namespace_desc_finish(struct namespace_desc_builder *b, struct namespace_desc *ret);

/* The fields that every worker adds besides the model's own parameters (model_params()). */
struct namespace_desc_common {
    const uint8_t *tokenizer_digest; /* [32] */
    uint32_t block_tok;
    const char *kv_dtype;    /* "f16" */
    const char *numerics_id; /* kernels' kern_selftest: contract version and digest, printable */
};
void namespace_desc_add_common(struct namespace_desc_builder *b, const struct namespace_desc_common *c);
