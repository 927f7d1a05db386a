/* compiler.h - what every file may assume about the compiler, and what no file may call.
 *
 * Included first by every header of ours. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h> /* MIN and MAX: libuv's header brings them anyway */

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define BIT(n) (1u << (n))

#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* Cleanup attribute for locals: CLEANUP(buf_unrefp) struct buf *b = ...; the function gets &b. */
#define CLEANUP(fn) __attribute__((cleanup(fn)))

/* Move a pointer out of its holder; the holder (and its cleanup) then sees NULL. */
#define TAKE_PTR(p)                                                                                \
    ({                                                                                             \
        __typeof__(p) take_ptr_ = (p);                                                             \
        (p) = NULL;                                                                                \
        take_ptr_;                                                                                 \
    })

#define PRINTF_LIKE(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))
#define MUST_CHECK __attribute__((warn_unused_result))
#define NORETURN __attribute__((noreturn))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline void freep(void *pp) {
    void **p = pp;
    free(*p);
    *p = NULL;
}

static inline void fclosep(FILE **f) {
    if (*f)
        fclose(*f);
}

/* n * size without wrap; NULL on overflow, like calloc. */
static inline void *alloc_array(size_t n, size_t size) {
    return calloc(n ? n : 1, size ? size : 1);
}

/* Functions whose safe form exists and is short. A use does not compile. Their headers come first,
 * above, since a declaration after the poison would not compile either. */
#pragma GCC poison strcpy strcat sprintf vsprintf atoi atol strtok gets
