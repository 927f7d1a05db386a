#include "common/bump.h"

#include "common/err.h"

int bump_init(struct bump *b, size_t cap_bytes) {
    b->base = aligned_alloc(64, (cap_bytes + 63) & ~(size_t)63);
    b->cap = cap_bytes;
    b->used = 0;
    return b->base ? 0 : ERR_NOMEM;
}

void bump_fini(struct bump *b) {
    free(b->base);
    *b = (struct bump){0};
}

void bump_reset(struct bump *b) {
    b->used = 0;
}

void *bump_alloc(struct bump *b, size_t bytes) {
    size_t at = (b->used + 15) & ~(size_t)15;
    if (at > b->cap || bytes > b->cap - at)
        return NULL;
    b->used = at + bytes;
    return b->base + at;
}
