/* buf.h - refcounted byte buffers from socket to slot to socket.
 *
 * Bytes are immutable once refs > 1. `release` returns the memory to where it
 * came from (free(), a pool, a slot), on whatever thread drops the last reference.
 * Thread: buf_ref/buf_unref any thread; contents belong to the single owner until shared. */
#pragma once

#include <stdatomic.h>

#include "common/compiler.h"

struct buf {
    atomic_uint refs;
    size_t len, cap; /* bytes used, bytes there */
    uint8_t *data;   /* 64-byte aligned from buf_new() */
    void (*release)(struct buf *b);
    void *owner; /* for release */
};

/* Heap buffer of cap bytes, len 0, refs 1. NULL when out of memory. */
struct buf *buf_new(size_t cap);
/* An embedded buffer over memory that somebody else owns; refs 1. */
void buf_init_extern(struct buf *b, void *data, size_t len, void (*release)(struct buf *),
                     void *owner);

struct buf *buf_ref(struct buf *b); /* +1, returns b */
void buf_unref(struct buf *b);      /* -1, releases at zero; NULL is a no-op */

static inline void buf_unrefp(struct buf **b) {
    buf_unref(*b);
    *b = NULL;
}
