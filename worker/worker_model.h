/* worker_model.h - everything that is loaded once and then only read: kernels, weights, tokenizer,
 * template, namespace; and the forward pass over them.
 *
 * Thread: loaded by one thread before it is used; then read-only, but fwd is the engine thread's. */
#pragma once

#include <stdatomic.h>

#include "common/checksum.h"
#include "common/log.h"
#include "worker/kernels/kern_selftest.h"
#include "worker/kv/namespace_desc.h"
#include "worker/model/forward.h"
#include "worker/text/chat_template.h"
#include "worker/text/tokenizer.h"
#include "worker/worker_config.h"

struct worker_model {
    const struct kern_ops *ops;
    struct kern_team *team;
    struct matmul_blas *blas; /* NULL: numerics exact */
    struct model *model;
    struct fwd *fwd;
    struct tokenizer *tok;
    struct chat_template *chat; /* NULL: chat_error says why */
    char chat_error[256];
    char name[256]; /* in /v1/models */
    struct kv_dtypes kv;
    uint32_t max_ctx, max_logit_rows;
    struct kv_layout layout;
    uint32_t n_pages;
    char numerics_id[KERN_NUMERICS_ID_MAX];
    bool numerics_ok; /* the self-test gave the contract's digest */
    struct namespace_desc ns;
};

/* A load as others see it; any thread. */
struct worker_loading {
    _Atomic uint64_t done, total; /* bytes of the file; total 0: not opened yet */
    atomic_bool cancel;           /* ends the load with ERR_CANCELED at the next tensor */
};

/* Any one thread; it takes as long as the file is. eb says what is wrong with which file or option. On
 * error nothing is left. ld may be NULL. */
int worker_model_load(struct worker_model *m, const struct worker_config *cfg, struct log *log,
                      struct worker_loading *ld, struct errbuf *eb);
/* Every decision of a load, but neither weights nor what only they need: no tokenizer, template or namespace. */
int worker_model_outline(struct worker_model *m, const struct worker_config *cfg,
                         struct errbuf *eb);
void worker_model_free(struct worker_model *m); /* also half loaded */
