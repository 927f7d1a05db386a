/* kv_block.c - page layout and checksums. */
#include "worker/kv/kv_block.h"

#include "common/check.h"
#include "common/checksum.h"

static size_t half_bytes(const struct kv_layout *l) {
    return (size_t)l->n_kv_head * l->d_head * l->block_tok * l->elem_bytes;
}

size_t kv_layout_layer_bytes(const struct kv_layout *l) {
    return 2 * half_bytes(l);
}

size_t kv_layout_page_bytes(const struct kv_layout *l) {
    return l->n_layer * kv_layout_layer_bytes(l);
}

size_t kv_layout_k_off(const struct kv_layout *l, uint32_t layer, uint32_t head, uint32_t d,
                       uint32_t tok) {
    CHECK(layer < l->n_layer && head < l->n_kv_head && d < l->d_head && tok < l->block_tok);
    size_t elem = ((size_t)head * l->d_head + d) * l->block_tok + tok;
    return layer * kv_layout_layer_bytes(l) + elem * l->elem_bytes;
}

size_t kv_layout_v_off(const struct kv_layout *l, uint32_t layer, uint32_t head, uint32_t tok,
                       uint32_t d) {
    CHECK(layer < l->n_layer && head < l->n_kv_head && d < l->d_head && tok < l->block_tok);
    size_t elem = ((size_t)head * l->block_tok + tok) * l->d_head + d;
    return layer * kv_layout_layer_bytes(l) + half_bytes(l) + elem * l->elem_bytes;
}

uint64_t kv_block_rows_hash(const struct kv_layout *l, const uint8_t *page, uint32_t n_tok) {
    CHECK(n_tok <= l->block_tok);
    struct checksum_stream *s = checksum_stream_new();
    CHECK(s); /* tests and tools only */
    checksum_stream_reset(s);
    for (uint32_t layer = 0; layer < l->n_layer && n_tok; layer++) {
        for (uint32_t h = 0; h < l->n_kv_head; h++) {
            for (uint32_t d = 0; d < l->d_head; d++)
                checksum_stream_update(s, page + kv_layout_k_off(l, layer, h, d, 0),
                                       (size_t)n_tok * l->elem_bytes);
            checksum_stream_update(s, page + kv_layout_v_off(l, layer, h, 0, 0),
                                   (size_t)n_tok * l->d_head * l->elem_bytes);
        }
    }
    uint64_t hash = checksum_stream_digest(s);
    checksum_stream_free(s);
    return hash;
}
