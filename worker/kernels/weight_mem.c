/* weight_mem.c - chunks of anonymous memory, huge pages asked for. */
#include "worker/kernels/weight_mem.h"

#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define CHUNK_BYTES ((size_t)32 << 20) /* smallest; a larger matrix gets a chunk of its size */
#define ALIGN 64u

struct chunk {
    struct chunk *next;
    void *map;
    size_t map_bytes;
};

struct weight_mem {
    struct chunk *chunks;
    uint8_t *at; /* free part of the newest chunk */
    size_t left;
};

struct weight_mem *weight_mem_new(void) {
    return calloc(1, sizeof(struct weight_mem));
}

void weight_mem_free(struct weight_mem *w) {
    if (!w)
        return;
    while (w->chunks) {
        struct chunk *c = w->chunks;
        w->chunks = c->next;
        munmap(c->map, c->map_bytes);
        free(c);
    }
    free(w);
}

/* A chunk begins at a huge page's boundary, else the kernel could not use one for its first part. */
static bool add_chunk(struct weight_mem *w, size_t bytes) {
    if (bytes > SIZE_MAX / 2)
        return false;
    const size_t size = (MAX(bytes, CHUNK_BYTES) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    struct chunk *c = calloc(1, sizeof(*c));
    if (!c)
        return false;
    c->map_bytes = size + HUGE_PAGE;
    c->map = mmap(NULL, c->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->map == MAP_FAILED) {
        free(c);
        return false;
    }
    const uintptr_t first = ((uintptr_t)c->map + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    w->at = (uint8_t *)c->map + (first - (uintptr_t)c->map);
    w->left = size;
    (void)madvise(w->at, size,
                  MADV_HUGEPAGE); /* refused where there are none: slower, nothing else */
    c->next = w->chunks;
    w->chunks = c;
    return true;
}

void *weight_mem_take(struct weight_mem *w, size_t bytes) {
    if (bytes > SIZE_MAX / 2)
        return NULL;
    const size_t n = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (n > w->left && !add_chunk(w, n))
        return NULL;
    uint8_t *p = w->at;
    w->at += n;
    w->left -= n;
    return p;
}
