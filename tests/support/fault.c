#include "tests/support/fault.h"

#include <stdatomic.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *z);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *z);

/* The one place where a test has globals: the allocator is one. */
static _Atomic uint64_t total, bytes;
static _Atomic int64_t countdown = -1; /* -1: disarmed */
static atomic_bool fired;

static bool fails(size_t n) {
    atomic_fetch_add(&total, 1);
    atomic_fetch_add(&bytes, n);
    if (atomic_load(&countdown) < 0 || atomic_fetch_sub(&countdown, 1) != 0)
        return false;
    atomic_store(&fired, true);
    return true;
}

void fault_arm(uint64_t n) {
    atomic_store(&fired, false);
    atomic_store(&countdown, (int64_t)n);
}

bool fault_fired(void) {
    return atomic_load(&fired);
}

void fault_disarm(void) {
    atomic_store(&countdown, -1);
}

uint64_t malloc_probe_count(void) {
    return atomic_load(&total);
}

uint64_t malloc_probe_bytes(void) {
    return atomic_load(&bytes);
}

void *__wrap_malloc(size_t n) {
    return fails(n) ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size) {
    return fails(n * size) ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n) {
    return fails(n) ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n) {
    return fails(n) ? NULL : __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *z) {
    return fails(0) ? NULL : __real_strdup(z);
}
