/* merge_heap.h - the working set of one merge run: symbols in a doubly linked list, candidates in a
 * binary heap. n symbols cost O(n log n), so a megabyte without a space is as harmless as prose.
 *
 * Both algorithms share it; they differ in the key (merge rank, or score) and in what a symbol is.
 * Thread: one owner. Memory: grows with malloc, reused between pieces. */
#pragma once

#include "common/compiler.h"

/* A live symbol covers bytes [off, off + len); len 0: swallowed by its left neighbour. */
struct merge_sym {
    int32_t id; /* BPE: token id; SPM: token id or -1 */
    uint32_t off, len;
    uint32_t prev, next; /* index, MERGE_NONE at the ends */
};
#define MERGE_NONE UINT32_MAX

/* Join the symbol at `left` with its right neighbour. Stale when the joined length is no longer `len`,
 * or when left was swallowed. Order: smaller key first, then further left. */
struct merge_cand {
    float neg_score; /* SPM: -score; BPE: 0 */
    uint32_t rank;   /* BPE: merge rank; SPM: 0 */
    uint32_t left, len;
    int32_t merged;
};

struct merge_heap {
    struct merge_sym *syms;
    size_t n_syms, cap_syms;
    struct merge_cand *cands;
    size_t n_cands, cap_cands;
};

void merge_heap_fini(struct merge_heap *h);
void merge_heap_clear(struct merge_heap *h);
/* Appends a symbol and links it behind the last one. 0 or ERR_NOMEM. */
int merge_heap_add_sym(struct merge_heap *h, int32_t id, uint32_t off, uint32_t len);
int merge_heap_push(struct merge_heap *h, struct merge_cand c); /* 0 or ERR_NOMEM */
/* Next candidate that still holds, applied: its symbol grew, the right one is gone. False: none left. */
bool merge_heap_apply_next(struct merge_heap *h, uint32_t *ret_sym);
