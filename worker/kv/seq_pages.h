/* seq_pages.h - page table of one sequence: which page holds which positions.
 *
 * Entry i holds positions i*B .. i*B+B-1. A sequence's pages come out of its reservation (page_pool.h).
 * Pages may be shared: before rows are written, seq_pages_writable() makes the page the sequence's own,
 * by copying a shared last, partly filled one.
 *
 * Thread: the engine thread. Memory: tables for cap pages in seq_pages_init(); nothing grows. */
#pragma once

#include "worker/kv/page_index.h"

struct seq_pages {
    struct page_pool *pool;
    uint32_t *page;      /* [n] */
    uint8_t **ptr;       /* [n] the same pages' bytes, for the forward pass */
    uint32_t n, cap;     /* pages */
    uint32_t n_need;     /* what was reserved for: n grows to this and no further */
    uint32_t n_reserved; /* of that, promised and not yet taken */
    size_t page_bytes;
};

int seq_pages_init(struct seq_pages *s, struct page_pool *pool, uint32_t cap, size_t page_bytes);
/* Lets go of everything, last page first, so that of a chain the beginning is the youngest in the LRU. */
void seq_pages_fini(struct seq_pages *s);

/* Promises the sequence n_need pages in all, those it has included. False: nothing changed. */
bool seq_pages_reserve(struct seq_pages *s, uint32_t n_need);
/* Lets go of pages and promises, keeps the table for another try. */
void seq_pages_clear(struct seq_pages *s);

/* Appends the resident pages that are named ids[s->n ... n), up to the first gap. Returns how many. */
uint32_t seq_pages_adopt(struct seq_pages *s, const struct page_index *x,
                         const struct block_id *ids, uint32_t n);

/* Makes entry i (at most s->n) exist and belong to this sequence alone; a shared page is copied. False:
 * no page left (the reservation is out on loan, or was never made). */
bool seq_pages_writable(struct seq_pages *s, uint32_t i);

/* A page out of the reservation that is not in the table yet: the destination of a fetch. PAGE_NONE:
 * the reservation is used up. The caller gives it back by _install or _give_back. */
uint32_t seq_pages_lend(struct seq_pages *s);
/* Puts a lent page in place of entry i, or appends it (i == s->n). */
void seq_pages_install(struct seq_pages *s, uint32_t i, uint32_t take_page);
void seq_pages_give_back(struct seq_pages *s, uint32_t take_page);

/* dst (initialised, empty) shares all pages of src. */
void seq_pages_fork(struct seq_pages *dst, const struct seq_pages *src);
