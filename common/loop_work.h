/* loop_work.h - a pool of threads with a bounded queue that feeds one libuv loop.
 *
 * A job gets its inputs by value or by reference, touches nothing else while run() is on a pool
 * thread, and is handed back on the loop thread through done(). Jobs start in order of submission;
 * their ends come in any order. Each accepted job gets exactly one done(): rv is run()'s result, or
 * ERR_CANCELED when the pool was closed before it started. Nothing is promised about which thread
 * runs what.
 * Thread: all calls on the loop thread; run() on a pool thread. */
#pragma once

#include <uv.h>

#include "common/compiler.h"
#include "common/list.h"

struct loop_work; /* opaque */

struct loop_job { /* embedded in the caller's own; zero it before the first submit */
    int (*run)(struct loop_job *j);           /* pool thread */
    void (*done)(struct loop_job *j, int rv); /* loop thread; may free or resubmit j */
    /* private */
    struct list link;
    struct loop_work *w;
    int rv;
    int where; /* under the pool's lock */
};

struct loop_work_cfg {
    uint32_t n_threads;  /* at least 1 */
    uint32_t max_queued; /* jobs waiting, running ones apart; at least 1 */
    const char *name;    /* thread name, at most 15 bytes */
};

/* 0, or an error and nothing was started. */
int loop_work_open(struct loop_work **ret, uv_loop_t *loop, const struct loop_work_cfg *cfg);
/* Cancels what waits, lets what runs end (without blocking the loop); then all done() calls, then
 * cb, then w is gone. */
void loop_work_close(struct loop_work *w, void (*cb)(void *arg), void *arg);

/* 0; ERR_BUSY when the queue is full; ERR_CANCELED after close. On error done() is not called. */
int loop_work_submit(struct loop_work *w, struct loop_job *j);
