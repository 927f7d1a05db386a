/* arch.h - the table of model architectures: one row each.
 *
 * A row reads and validates its metadata keys into model_hparams, and refuses by name every key whose
 * effect it does not implement. Tensor names are common to all rows and bound by weights.c, which
 * refuses any tensor that is left over: a bias that nobody adds would give wrong text, quietly.
 *
 * Thread: any; everything is constant. */
#pragma once

#include "worker/model/gguf.h"
#include "worker/model/weights.h"

struct model_arch {
    const char *name; /* general.architecture, and the prefix of its keys */
    bool rope_neox;
    int (*read_hparams)(const struct model_arch *a, const struct gguf *g, struct model_hparams *ret,
                        struct errbuf *eb);
};

/* NULL: not implemented. */
const struct model_arch *model_arch_find(struct gguf_str name);

int arch_llama_read_hparams(const struct model_arch *a, const struct gguf *g,
                            struct model_hparams *ret, struct errbuf *eb);
