#include "worker/kv/namespace_desc.h"

#include <inttypes.h>

void namespace_desc_begin(struct namespace_desc_builder *b) {
    b->n = 0;
    b->err = 0;
}

static bool is_good_key(const char *s) {
    for (const char *p = s; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '_' || *p == '.'))
            return false;
    return *s != 0;
}

/* Values may be empty; a '\n' would forge a second line. */
static bool is_good_value(const char *s) {
    for (; *s; s++)
        if (*s < 0x20 || *s > 0x7e)
            return false;
    return true;
}

void namespace_desc_add(struct namespace_desc_builder *b, const char *key, const char *value) {
    if (b->err)
        return;
    if (!is_good_key(key) || !is_good_value(value)) {
        b->err = ERR_INVALID;
        return;
    }
    if (b->n == NAMESPACE_DESC_MAX_ITEMS || strlen(key) >= sizeof(b->item[0].key) ||
        strlen(value) >= sizeof(b->item[0].value)) {
        b->err = ERR_TOOBIG;
        return;
    }
    memcpy(b->item[b->n].key, key, strlen(key) + 1);
    memcpy(b->item[b->n].value, value, strlen(value) + 1);
    b->n++;
}

void namespace_desc_add_u64(struct namespace_desc_builder *b, const char *key, uint64_t v) {
    char text[24];
    (void)snprintf(text, sizeof(text), "%" PRIu64, v);
    namespace_desc_add(b, key, text);
}

void namespace_desc_add_f32(struct namespace_desc_builder *b, const char *key, float v) {
    uint32_t bits;
    char text[12];
    memcpy(&bits, &v, sizeof(bits));
    (void)snprintf(text, sizeof(text), "%08" PRIx32, bits);
    namespace_desc_add(b, key, text);
}

void namespace_desc_add_hex(struct namespace_desc_builder *b, const char *key, const uint8_t *p,
                            size_t n) {
    char text[2 * DIGEST_BYTES + 1];
    if (n > DIGEST_BYTES) {
        b->err = b->err ? b->err : ERR_TOOBIG;
        return;
    }
    digest_hex(p, n, text);
    namespace_desc_add(b, key, text);
}

void namespace_desc_add_common(struct namespace_desc_builder *b,
                               const struct namespace_desc_common *c) {
    namespace_desc_add_hex(b, "tokenizer", c->tokenizer_digest, DIGEST_BYTES);
    namespace_desc_add_u64(b, "block_tokens", c->block_tok);
    namespace_desc_add(b, "kv_dtype", c->kv_dtype);
    namespace_desc_add_u64(b, "layout_version", NAMESPACE_LAYOUT_VERSION);
    namespace_desc_add(b, "numerics", c->numerics_id);
}

static int by_key(const void *a, const void *b) {
    /* The key is the item's first field; ASCII order is strcmp's for these characters. */
    return strcmp(a, b);
}

int namespace_desc_finish(struct namespace_desc_builder *b, struct namespace_desc *ret) {
    if (b->err)
        return b->err;
    qsort(b->item, b->n, sizeof(b->item[0]), by_key);
    struct namespace_desc d = {.len = 0};
    for (size_t i = 0; i < b->n; i++) {
        if (i > 0 && strcmp(b->item[i - 1].key, b->item[i].key) == 0)
            return ERR_INVALID;
        size_t room = sizeof(d.text) - d.len;
        int n = snprintf(d.text + d.len, room, "%s=%s\n", b->item[i].key, b->item[i].value);
        if (n < 0 || (size_t)n >= room)
            return ERR_TOOBIG;
        d.len += (size_t)n;
    }
    digest_sha256(d.text, d.len, d.digest);
    *ret = d;
    return 0;
}
