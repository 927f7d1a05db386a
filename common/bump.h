/* bump.h - bump arena for per-request scratch: many small allocations, one reset.
 *
 * Fixed capacity from bump_init(); never grows, so bump_alloc() may return NULL.
 * Thread: one owner at a time. */
#pragma once

#include "common/compiler.h"

struct bump {
    uint8_t *base;
    size_t cap, used; /* bytes */
};

int bump_init(struct bump *b, size_t cap_bytes); /* 0 or ERR_NOMEM */
void bump_fini(struct bump *b);
void bump_reset(struct bump *b);
/* 16-byte aligned, uninitialised; NULL when it does not fit. */
void *bump_alloc(struct bump *b, size_t bytes);
