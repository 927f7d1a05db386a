/* slabpool.h - a fixed number of equal objects, allocated once. An empty pool means "at a limit".
 *
 * Objects given back are poisoned under ASan, so that a use after give is found.
 * Thread: one owner. */
#pragma once

#include "common/compiler.h"

struct slabpool {
    uint8_t *base;
    void *free_head; /* links live in the free objects */
    size_t obj_bytes, n, in_use, peak;
    uint64_t *taken; /* bitmap, for CHECKs against a double give */
};

int slabpool_init(struct slabpool *p, size_t n, size_t obj_bytes); /* 0, ERR_INVALID, ERR_NOMEM */
void slabpool_fini(struct slabpool *p); /* aborts when objects are still out */
/* 64-byte aligned, zeroed; NULL when all are out. */
void *slabpool_take(struct slabpool *p);
void slabpool_give(struct slabpool *p, void *obj); /* NULL is a no-op */
static inline size_t slabpool_in_use(const struct slabpool *p) {
    return p->in_use;
}
