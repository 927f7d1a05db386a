/* kern_threads.h - a persistent team of threads with one operation: parallel-for.
 *
 * Which thread computes which item never changes a bit of the result (kernels.h), so items are handed
 * out first come, first served. A call returns when all items are done; it does not wait for a team
 * member that was late to wake up, so a busy machine costs help but no stall.
 *
 * Thread:  one caller at a time (the engine's thread). A team of 1 has no threads of its own.
 * Memory:  all of it is allocated in kern_team_new().
 * Floats:  FTZ and DAZ are off and rounding is to nearest in every fn call, the caller's thread too. */
#pragma once

#include "common/err.h"

#define KERN_TEAM_MAX 256

struct kern_team; /* opaque */

/* n_threads counts the caller: 1 .. KERN_TEAM_MAX. */
int kern_team_new(struct kern_team **ret, unsigned n_threads, struct errbuf *eb);
void kern_team_free(struct kern_team *t);           /* joins the threads; NULL is a no-op */
unsigned kern_team_size(const struct kern_team *t); /* 1 for NULL */

/* Items [begin, end); thread is 0 (the caller) .. size - 1, for per-thread scratch. */
typedef void (*kern_fn)(void *arg, size_t begin, size_t end, unsigned thread);

/* Calls fn over [0, n) in pieces of at most grain items. t NULL: the caller does all. */
void kern_team_for(struct kern_team *t, size_t n, size_t grain, kern_fn fn, void *arg);

/* Puts this thread's float unit into the contract's state: no FTZ, no DAZ, round to nearest.
 * kern_team_for() does it itself; call it in a thread that calls row operations directly. */
void kern_fp_init(void);
