/* weight_mem.h - memory for packed weights, handed out front to back from large chunks of huge pages.
 *
 * A decode step walks all weights once in order. On pages of 4 KiB it spends a sixth of its time on
 * address translation and on prefetches that stop at a page's end (measured: 243 against 291 tokens/s
 * for a model of 135M parameters, one thread), and one matrix rarely fills a huge page by itself.
 *
 * Thread: one at a time; the memory itself belongs to whoever took it.
 * Memory: everything goes at once in weight_mem_free(). Zeroed, 64-byte aligned. */
#pragma once

#include "common/compiler.h"

struct weight_mem; /* opaque */

struct weight_mem *weight_mem_new(void);    /* NULL when out of memory */
void weight_mem_free(struct weight_mem *w); /* NULL is a no-op */
/* NULL when out of memory. */
void *weight_mem_take(struct weight_mem *w, size_t bytes);
