#include "common/block_id.h"

#include "common/check.h"

void block_id_root(const uint8_t namespace_digest[DIGEST_BYTES], struct block_id *ret) {
    static const char label[] = "incipit/1";
    uint8_t msg[sizeof(label) - 1 + DIGEST_BYTES];
    memcpy(msg, label, sizeof(label) - 1);
    memcpy(msg + sizeof(label) - 1, namespace_digest, DIGEST_BYTES);
    digest_sha256(msg, sizeof(msg), ret->b);
}

static void update_tokens(struct digest *d, const int32_t *tok, size_t n) {
    uint8_t bytes[4 * 64];
    while (n) {
        size_t m = MIN(n, (size_t)64);
        for (size_t i = 0; i < m; i++) {
            uint32_t t = (uint32_t)tok[i];
            for (unsigned b = 0; b < 4; b++)
                bytes[4 * i + b] = (uint8_t)(t >> (8 * b));
        }
        digest_update(d, bytes, 4 * m);
        tok += m;
        n -= m;
    }
}

void block_chain_next(struct digest *d, const struct block_chain_cfg *cfg, const int32_t *tok,
                      size_t i, struct block_id *ids) {
    static const uint8_t zero_salt[BLOCK_SALT_BYTES];
    struct block_id root;
    if (i == 0)
        block_id_root(cfg->namespace_digest, &root);
    bool is_public = !cfg->salt || i < cfg->n_public_blocks;
    digest_begin(d);
    digest_update(d, i ? ids[i - 1].b : root.b, BLOCK_ID_BYTES);
    digest_update(d, is_public ? zero_salt : cfg->salt, BLOCK_SALT_BYTES);
    update_tokens(d, tok, cfg->block_tok);
    digest_end(d, ids[i].b);
}

void block_chain(struct digest *d, const struct block_chain_cfg *cfg, const int32_t *tok,
                 size_t n_tok, struct block_id *ret) {
    CHECK(cfg->block_tok > 0);
    for (size_t i = 0; i < n_tok / cfg->block_tok; i++)
        block_chain_next(d, cfg, tok + i * cfg->block_tok, i, ret);
}
