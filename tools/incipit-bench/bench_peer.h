/* bench_peer.h - one measurement of llama.cpp by its own llama-bench. Thread: one; blocks. */
#pragma once

#include "common/err.h"

struct bench_peer {
    const char *program, *model;
    const char *k_type, *v_type; /* "f16", "f32", "q8_0", "q4_0" */
    uint32_t threads;
};

/* Prefill of n_prompt, or decode of n_gen after depth tokens (the other is 0), once after a warm-up of
 * its own. *ret: tokens a second. */
int bench_peer_run(const struct bench_peer *p, uint32_t n_prompt, uint32_t n_gen, uint32_t depth,
                   double *ret, struct errbuf *eb);
