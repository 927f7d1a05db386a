#include "common/slabpool.h"

#include "common/check.h"
#include "common/err.h"

#if defined(__SANITIZE_ADDRESS__)
#define SLABPOOL_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLABPOOL_ASAN 1
#endif
#endif
#ifdef SLABPOOL_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) __asan_poison_memory_region((p), (n))
#define UNPOISON(p, n) __asan_unpoison_memory_region((p), (n))
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define SLABPOOL_ALIGN 64u

int slabpool_init(struct slabpool *p, size_t n, size_t obj_bytes) {
    size_t bytes, step = (obj_bytes + SLABPOOL_ALIGN - 1) & ~(size_t)(SLABPOOL_ALIGN - 1);
    if (n == 0 || obj_bytes == 0 || step < obj_bytes || __builtin_mul_overflow(n, step, &bytes))
        return ERR_INVALID;
    uint8_t *base = aligned_alloc(SLABPOOL_ALIGN, bytes);
    if (!base)
        return ERR_NOMEM;
    uint64_t *taken = alloc_array((n + 63) / 64, sizeof(*taken));
    if (!taken) {
        free(base);
        return ERR_NOMEM;
    }
    *p = (struct slabpool){.base = base, .obj_bytes = step, .n = n, .taken = taken};
    for (size_t i = n; i-- > 0;) { /* lowest address on top */
        void *obj = base + i * step;
        memcpy(obj, &p->free_head, sizeof(void *));
        p->free_head = obj;
    }
    POISON(base, bytes);
    return 0;
}

void slabpool_fini(struct slabpool *p) {
    CHECK(p->in_use == 0);
    if (p->base)
        UNPOISON(p->base, p->n * p->obj_bytes);
    free(p->base);
    free(p->taken);
    *p = (struct slabpool){0};
}

void *slabpool_take(struct slabpool *p) {
    uint8_t *obj = p->free_head;
    if (!obj)
        return NULL;
    UNPOISON(obj, p->obj_bytes);
    memcpy(&p->free_head, obj, sizeof(void *));
    memset(obj, 0, p->obj_bytes);
    size_t i = (size_t)(obj - p->base) / p->obj_bytes;
    p->taken[i / 64] |= 1ull << (i % 64);
    p->in_use++;
    p->peak = MAX(p->peak, p->in_use);
    return obj;
}

void slabpool_give(struct slabpool *p, void *obj) {
    if (!obj)
        return;
    size_t off = (size_t)((uint8_t *)obj - p->base), i = off / p->obj_bytes;
    CHECK((uint8_t *)obj >= p->base && i < p->n && off % p->obj_bytes == 0);
    CHECK(p->taken[i / 64] & (1ull << (i % 64))); /* not given twice */
    p->taken[i / 64] &= ~(1ull << (i % 64));
    memcpy(obj, &p->free_head, sizeof(void *));
    p->free_head = obj;
    p->in_use--;
    POISON(obj, p->obj_bytes);
}
