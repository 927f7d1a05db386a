#include "common/buf.h"

#include "common/check.h"

static void release_heap(struct buf *b) {
    free(b->data);
    free(b);
}

struct buf *buf_new(size_t cap) {
    struct buf *b = malloc(sizeof(*b));
    if (!b)
        return NULL;
    size_t rounded = (cap + 63) & ~(size_t)63;
    if (rounded < cap || !(b->data = aligned_alloc(64, rounded ? rounded : 64))) {
        free(b);
        return NULL;
    }
    atomic_init(&b->refs, 1);
    b->len = 0;
    b->cap = cap;
    b->release = release_heap;
    b->owner = NULL;
    return b;
}

void buf_init_extern(struct buf *b, void *data, size_t len, void (*release)(struct buf *),
                     void *owner) {
    atomic_init(&b->refs, 1);
    b->len = b->cap = len;
    b->data = data;
    b->release = release;
    b->owner = owner;
}

struct buf *buf_ref(struct buf *b) {
    /* relaxed: the caller holds a reference already, so nothing can be released meanwhile. */
    unsigned before = atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    CHECK(before > 0);
    return b;
}

void buf_unref(struct buf *b) {
    /* acq_rel: whoever releases must see all other owners' accesses done. */
    if (b && atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1)
        b->release(b);
}
