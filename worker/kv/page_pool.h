/* page_pool.h - KV PAGE POOL: fixed pages in one mapping, reference counts, reservations.
 *
 * A page is free (on the free list), used (refs > 0) or cached (refs 0, named by the page index, on the
 * LRU list, taken back when somebody needs it). A reservation is a promise of pages to come: the pool
 * keeps free + cached >= reserved at all times, so page_pool_take_reserved() cannot fail.
 *
 * Thread:  the engine thread. Page bytes may be read and written elsewhere (fetch, put) while that user
 *          holds a reference.
 * Memory:  one anonymous mapping of n_pages * page_bytes rounded up to 4096; descriptors beside it.
 * Units:   pages are numbered 0..n_pages-1. */
#pragma once

#include "common/block_id.h"
#include "common/compiler.h"
#include "common/err.h"

#define PAGE_NONE UINT32_MAX

struct page_pool; /* opaque */

/* Called when a cached page is taken back for other use: its name must leave the index. */
typedef void (*page_evict_cb)(void *ctx, uint32_t page);

int page_pool_new(struct page_pool **ret, uint32_t n_pages, size_t page_bytes, struct errbuf *eb);
void page_pool_free(struct page_pool *p); /* NULL is a no-op */
/* Makes the kernel back the first n_bytes (the pages that are taken first) now instead of in the middle of
 * a fetch. A hint: nothing depends on its success. */
void page_pool_prefault(struct page_pool *p, size_t n_bytes);
void page_pool_on_evict(struct page_pool *p, page_evict_cb cb, void *ctx);

/* 4096-aligned, page_bytes long. */
uint8_t *page_pool_bytes(const struct page_pool *p, uint32_t page);

/* True: n pages more are promised. False: nothing changed. */
bool page_pool_reserve(struct page_pool *p, uint32_t n);
void page_pool_unreserve(struct page_pool *p, uint32_t n);
/* A page out of the caller's reservation, which shrinks by one. refs 1, bytes undefined. */
uint32_t page_pool_take_reserved(struct page_pool *p);
/* A page beyond all reservations, or PAGE_NONE. */
uint32_t page_pool_take(struct page_pool *p);

void page_pool_ref(struct page_pool *p, uint32_t page); /* used: +1 */
void page_pool_unref(struct page_pool *p,
                     uint32_t page); /* -1; at 0 free, or cached when indexed */
uint32_t page_pool_refs(const struct page_pool *p, uint32_t page);
/* A cached or used page by its name (page_index): +1 reference. False: it is cached and taking it would
 * break a promise to somebody else. */
bool page_pool_revive(struct page_pool *p, uint32_t page);

/* The index's mark. Clearing it on an unreferenced page frees the page. */
void page_pool_set_indexed(struct page_pool *p, uint32_t page, bool indexed);
bool page_pool_is_indexed(const struct page_pool *p, uint32_t page);

struct page_pool_stats {
    uint32_t n_pages, n_free, n_used, n_cached, n_reserved;
    uint64_t n_evicted; /* cached pages taken back so far */
};
struct page_pool_stats page_pool_stats(const struct page_pool *p);
