/* exact_run.h - one prompt computed under given conditions, compared bit for bit with a reference run.
 *
 * The reference is the scalar kernels, one thread, alone, in one chunk, from position 0. Every other way
 * to get the same rows must give the same logits and the same KV bytes. In numerics blas the reference
 * goes through OpenBLAS, and so do the judged rows; rows of generated tokens are other bits there.
 * Thread: the test's. Failure: CHECKs for what the test itself needs; differences are returned. */
#pragma once

#include "worker/model/forward.h"

#define EXACT_MAX_BATCH 8

enum exact_source { SOURCE_COLD, SOURCE_OWN, SOURCE_FETCHED, N_SOURCES };

struct exact_ref {
    const struct model *model;
    struct matmul_blas *blas; /* NULL: numerics exact */
    struct kv_dtypes kv;
    uint32_t block_tok, n_tok, n_pages;
    size_t page_bytes;
    struct kv_layout layout;
    int32_t *tok;
    float *logits;   /* [n_tok, n_vocab] */
    uint8_t **pages; /* [n_pages] rows beyond n_tok zero */
};
/* ops: the reference kernels. */
void exact_ref_open(struct exact_ref *r, const struct kern_ops *ops, uint64_t seed);
void exact_ref_close(struct exact_ref *r);

struct exact_conditions {
    enum exact_source source;
    uint32_t reuse_blocks; /* from the reference's pages; ignored when cold */
    uint32_t chunk, batch, slot, threads;
    const struct kern_ops *ops;
    struct kern_team *team; /* of that many threads */
    uint64_t seed;          /* of the companions and of which rows give logits */
};
/* True when all bits agree; else why holds the first difference. */
bool exact_run(const struct exact_ref *r, const struct exact_conditions *c, char why[256]);
