/* matmul_blas.h - linear layers of prefill through OpenBLAS (--numerics blas).
 *
 * The fast way on CPUs for which we have no vector kernel, and an independent check in tests. OpenBLAS
 * is not exact by contract, but with a constant 32-row tile, a row always in slot position mod 32, one
 * thread a call and N cut at fixed places, a row's bits depend only on OpenBLAS's version and core
 * type: those join the numerics id. Decode rows go through the exact kernels.
 *
 * Thread: matmul_blas_* calls from one thread; the products run on the team inside matmul().
 * Memory: all of it is allocated in matmul_blas_new(). */
#pragma once

#include "common/err.h"

struct matmul_blas; /* opaque */

/* Loads OpenBLAS with one thread of its own and compares it with a scalar product: ERR_CORRUPT when it
 * computes wrong (old builds take new CPUs for others). ERR_UNSUPPORTED in a build without OpenBLAS or
 * on a machine without it. Sets OPENBLAS_NUM_THREADS in the environment: call it at start. */
int matmul_blas_new(struct matmul_blas **ret, uint32_t max_n_in, unsigned n_threads,
                    struct errbuf *eb);
void matmul_blas_free(struct matmul_blas *b);                 /* NULL is a no-op */
const char *matmul_blas_core(const struct matmul_blas *b);    /* "SkylakeX" and so on */
const char *matmul_blas_version(const struct matmul_blas *b); /* "0.3.21" */
