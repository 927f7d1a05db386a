/* page_index.h - block id to resident page: reuse of KV inside this process, its first cache tier.
 *
 * Holds no references: a page stays in the index while sequences use it and after they let it go, until
 * the pool takes it back (the index is the pool's evict callback) or it is removed.
 *
 * Thread:  the engine thread.
 * Memory:  a table of at least twice n_pages entries, allocated in page_index_new(). */
#pragma once

#include "worker/kv/page_pool.h"

struct page_index; /* opaque */

/* Registers itself as pool's evict callback; pool outlives it. */
int page_index_new(struct page_index **ret, struct page_pool *pool);
void page_index_free(struct page_index *x); /* NULL is a no-op */

/* The page named id, or PAGE_NONE. Takes no reference. */
uint32_t page_index_find(const struct page_index *x, const struct block_id *id);
/* Names a used page. False: the id has a page already (or the page a name); nothing changed. */
bool page_index_insert(struct page_index *x, const struct block_id *id, uint32_t page);
void page_index_remove(struct page_index *x, uint32_t page); /* no-op when it has no name */
uint32_t page_index_count(const struct page_index *x);

/* How many of ids[0..n) are resident, from the first one without a gap. */
uint32_t page_index_run(const struct page_index *x, const struct block_id *ids, uint32_t n);
