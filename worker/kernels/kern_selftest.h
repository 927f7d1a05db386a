/* kern_selftest.h - the numerics id: what this process really computes, as a digest.
 *
 * A fixed list of operations x weight types x shapes on generated inputs; SHA-256 over the outputs. The
 * list reaches each instantiation of a kernel that can run: 1 to 15 rows and two larger numbers, groups of
 * 1, 2, 3, 4 and 8 heads, attention split over a team, all tails, the sin/cos table. The same on every
 * instruction set and for every model, so two workers may share KV blocks exactly when their ids are equal.
 *
 * Thread: any. Takes hundredths of a second, without vector kernels half a second; allocates, starts a second thread. */
#pragma once

#include "common/digest.h"
#include "common/err.h"
#include "worker/kernels/kernels.h"

/* Longest numerics id with its NUL. */
#define KERN_NUMERICS_ID_MAX 192

struct matmul_blas; /* matmul_blas.h */

/* The digest this build computes with these operations. ERR_NOMEM is the only failure. */
int kern_selftest_run(const struct kern_ops *ops, uint8_t ret[DIGEST_BYTES]);
/* The digest committed with KERN_CONTRACT_VERSION. A worker whose run differs warns, shows it as a
 * metric and uses no cache. */
const uint8_t *kern_selftest_golden(void);
/* Text of the id: "<version>-<64 hex>", in blas mode with "-openblas-<version>-<core>" behind it. */
void kern_numerics_id(const uint8_t digest[DIGEST_BYTES], const struct matmul_blas *blas,
                      char ret[KERN_NUMERICS_ID_MAX]);
