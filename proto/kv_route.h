/* kv_route.h - which node owns a block: rendezvous hashing of segments of a chain.
 *
 * A chain is cut in segments of seg_blocks (8) from block 0; a segment is named by its first id
 * and owned by the node whose hash with that id is highest. Adding or losing a node therefore
 * moves only its share, and every client decides the same without talking. Two clients must use
 * the same seg_blocks. Pure. Thread: any. */
#pragma once

#include "common/block_id.h"

#define KV_ROUTE_SEG_BLOCKS 8u

/* Index into node_ids (the numbers nodes state in Hello) of the owner. n_nodes > 0. */
uint32_t kv_route_owner(const struct block_id *seg_first, const uint16_t *node_ids,
                        uint32_t n_nodes);
/* The n_owners best, best first (replicas); min(n_owners, n_nodes) are written, their number
 * returned. */
uint32_t kv_route_owners(const struct block_id *seg_first, const uint16_t *node_ids,
                         uint32_t n_nodes, uint32_t n_owners, uint32_t *ret);
/* Owner of each of chain[first .. first+n): ret[n]. */
void kv_route_chain(const struct block_id *chain, uint32_t first, uint32_t n, uint32_t seg_blocks,
                    const uint16_t *node_ids, uint32_t n_nodes, uint32_t *ret);
