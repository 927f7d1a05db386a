/* bench_util.h - time and measured peaks for the kernel benches.
 *
 * One thread, the best of many runs: what the code can do, also on a machine that others use. (A
 * virtual machine's CPU clocks are too coarse for the best of anything.) The peak is a loop of independent instructions in registers. */
#pragma once

#include <time.h>

#include "common/compiler.h"
#include "worker/kernels/kernels.h"

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Best time of one call over at least min_s seconds. */
static inline double best_s(void (*fn)(void *), void *arg, double min_s) {
    double best = 1e9, t0 = now_s();
    for (int i = 0; i < 5 || now_s() - t0 < min_s; i++) {
        double a = now_s();
        fn(arg);
        double b = now_s() - a;
        best = MIN(best, b);
    }
    return best;
}

/* Operations a second (a multiply and an add are two) of the widest FMA and, where the CPU has them, of
 * the VNNI dot product; 0: not measured on this CPU. */
double peak_fma(void);
double peak_dot(void);
