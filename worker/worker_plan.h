/* worker_plan.h - MEMORY TOLD BEFOREHAND: what a model file will take, from its metadata alone (--plan).
 *
 * Thread: any. */
#pragma once

#include "worker/kernels/kv_layout.h"
#include "worker/worker_config.h"

/* What decides the size of K and V: of grouped-query attention n_kv_head is less than the query heads, of
 * multi-query attention 1, of multi-head attention as many. */
struct plan_kv {
    uint32_t n_layer, n_kv_head, d_head;
    enum kv_dtype k_dtype, v_dtype;
};

/* n_layer x n_kv_head x d_head x (bytes of a K value + bytes of a V value): 2 for f16, 4 for f32, 34/32 for q8_0
 * and 18/32 for q4_0, whose head sizes are multiples of 32. */
uint64_t plan_kv_token_bytes(const struct plan_kv *kv);

/* Prints the plan for cfg->model under the other options. eb as of worker_model_load(). */
int worker_plan(const struct worker_config *cfg, FILE *out, struct errbuf *eb);
