#include "proto/kv_route.h"

#include "common/check.h"
#include "common/checksum.h"

/* Score of a node for a segment: a hash of both. Ids are SHA-256 outputs, so the quality of the
 * mix is not critical; what matters is that every build computes the same. */
static uint64_t score(const struct block_id *seg_first, uint16_t node_id) {
    uint8_t key[BLOCK_ID_BYTES + 2];
    memcpy(key, seg_first->b, BLOCK_ID_BYTES);
    key[BLOCK_ID_BYTES] = (uint8_t)node_id;
    key[BLOCK_ID_BYTES + 1] = (uint8_t)(node_id >> 8);
    return checksum_xxh3(key, sizeof(key));
}

/* Ties, which equal node ids would make, go to the lower id, then to the earlier index. */
static bool is_better(uint64_t s, uint16_t id, uint64_t best, uint16_t best_id) {
    return s > best || (s == best && id < best_id);
}

uint32_t kv_route_owner(const struct block_id *seg_first, const uint16_t *node_ids,
                        uint32_t n_nodes) {
    CHECK(n_nodes > 0);
    uint32_t best = 0;
    uint64_t best_score = score(seg_first, node_ids[0]);
    for (uint32_t i = 1; i < n_nodes; i++) {
        uint64_t s = score(seg_first, node_ids[i]);
        if (is_better(s, node_ids[i], best_score, node_ids[best])) {
            best = i;
            best_score = s;
        }
    }
    return best;
}

uint32_t kv_route_owners(const struct block_id *seg_first, const uint16_t *node_ids,
                         uint32_t n_nodes, uint32_t n_owners, uint32_t *ret) {
    uint32_t n = MIN(n_owners, n_nodes);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t best = n_nodes;
        uint64_t best_score = 0;
        for (uint32_t i = 0; i < n_nodes; i++) {
            bool is_taken = false;
            for (uint32_t j = 0; j < k; j++)
                is_taken = is_taken || ret[j] == i;
            uint64_t s = score(seg_first, node_ids[i]);
            if (!is_taken &&
                (best == n_nodes || is_better(s, node_ids[i], best_score, node_ids[best]))) {
                best = i;
                best_score = s;
            }
        }
        ret[k] = best;
    }
    return n;
}

void kv_route_chain(const struct block_id *chain, uint32_t first, uint32_t n, uint32_t seg_blocks,
                    const uint16_t *node_ids, uint32_t n_nodes, uint32_t *ret) {
    uint32_t seg = UINT32_MAX, owner = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = (first + i) / seg_blocks;
        if (s != seg) {
            seg = s;
            owner = kv_route_owner(&chain[s * seg_blocks], node_ids, n_nodes);
        }
        ret[i] = owner;
    }
}
