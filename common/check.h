/* check.h - assertions for our own mistakes. Input from outside is never asserted.
 *
 * CHECK is cheap and always on; DCHECK may be slow (links of each list that changes, common/list.h)
 * and is on with -Ddcheck=true.
 * Thread: any. */
#pragma once

#include "common/compiler.h"

/* Prints file, line and text with a backtrace to stderr, then aborts. */
NORETURN void check_failed(const char *file, int line, const char *text);

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (UNLIKELY(!(x)))                                                                        \
            check_failed(__FILE__, __LINE__, #x);                                                  \
    } while (0)

#define UNREACHABLE(why) check_failed(__FILE__, __LINE__, "unreachable: " why)

#ifdef INCIPIT_DCHECK
#define DCHECK(x) CHECK(x)
#else
#define DCHECK(x)                                                                                  \
    do {                                                                                           \
        (void)sizeof(x);                                                                           \
    } while (0)
#endif
