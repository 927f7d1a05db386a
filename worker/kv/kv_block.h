/* kv_block.h - the bytes of one page: where K and V of a layer lie, and the page's checksums.
 *
 *   [layer 0..L-1] { K [kv_head][d][token]   V [kv_head][token][d] }     f16 or f32, little-endian
 *
 * The same bytes in a page, on the wire and in a slot. A layer is one contiguous range with an XXH3-64 of
 * its own; the block's checksum covers the list of them and the id (common/checksum.h).
 *
 * Thread: any. Units: offsets and sizes in bytes. */
#pragma once

#include "common/compiler.h"

struct kv_layout {
    uint32_t n_layer, n_kv_head, d_head;
    uint32_t block_tok;  /* B */
    uint32_t elem_bytes; /* 2: f16, 4: f32 */
};

size_t kv_layout_layer_bytes(const struct kv_layout *l); /* one range */
size_t kv_layout_page_bytes(const struct kv_layout *l);
size_t kv_layout_k_off(const struct kv_layout *l, uint32_t layer, uint32_t head, uint32_t d, uint32_t tok);
size_t kv_layout_v_off(const struct kv_layout *l, uint32_t layer, uint32_t head, uint32_t tok, uint32_t d);

/* XXH3-64 over the first n_tok rows of all layers: equal for two pages that hold the same rows, whatever
 * lies in the rest. For comparisons in tests and tools. */
uint64_t kv_block_rows_hash(const struct kv_layout *l, const uint8_t *page, uint32_t n_tok);
