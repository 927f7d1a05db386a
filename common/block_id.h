/* block_id.h - the chained name of a token block.
 *
 *   root        = SHA-256("incipit/1" || namespace_digest)
 *   block_id[i] = SHA-256(block_id[i-1] || salt[32] || token[i*B] ... token[i*B+B-1] as u32 LE)
 *   block_id[-1] = root
 *
 * A block id therefore names its own tokens and everything before them. salt is 32 zero bytes for public
 * blocks, else the tenant's secret. A lookup names floor((n-1)/B) blocks, since the last token's logits
 * must be computed; a put names floor(n/B).
 * Thread: any; a chain context belongs to one owner. */
#pragma once

#include "common/compiler.h"
#include "common/digest.h"

#define BLOCK_ID_BYTES 32
#define BLOCK_SALT_BYTES 32

struct block_id {
    uint8_t b[BLOCK_ID_BYTES];
};
_Static_assert(sizeof(struct block_id) == 32, "block id is 32 bytes on the wire and on disk");

static inline bool block_id_equal(const struct block_id *x, const struct block_id *y) {
    return memcmp(x->b, y->b, BLOCK_ID_BYTES) == 0;
}

void block_id_root(const uint8_t namespace_digest[DIGEST_BYTES], struct block_id *ret);

/* salts: one 32-byte salt per block is chosen by salt(i): NULL means the zero salt for all. */
struct block_chain_cfg {
    const uint8_t *namespace_digest; /* [32] */
    const uint8_t *salt;             /* [32] or NULL for the public (zero) salt */
    uint32_t n_public_blocks;        /* blocks below this index take the zero salt in any case */
    uint32_t block_tok;              /* B */
};

/* Writes n_tok/B ids to ret, which has room for them. d is scratch. */
void block_chain(struct digest *d, const struct block_chain_cfg *cfg, const int32_t *tok,
                 size_t n_tok, struct block_id *ret);
/* One block more: ids[0..i) are there, tok [B] are the tokens of block i; writes ids[i]. */
void block_chain_next(struct digest *d, const struct block_chain_cfg *cfg, const int32_t *tok,
                      size_t i, struct block_id *ids);

static inline size_t block_count_lookup(size_t n_tok, uint32_t block_tok) {
    return n_tok ? (n_tok - 1) / block_tok : 0;
}
static inline size_t block_count_put(size_t n_tok, uint32_t block_tok) {
    return n_tok / block_tok;
}
