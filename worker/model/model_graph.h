/* model_graph.h - what a model computes, as text, for the namespace: two models whose texts (and RoPE
 * digests, weights, tokenizers) are equal give equal K and V for equal tokens.
 *
 * Thread: any. */
#pragma once

#include "common/digest.h"
#include "common/str.h"
#include "worker/model/weights.h"

/* Lines "key=value\n", keys in ASCII order: every effective option of the graph, those included that this
 * architecture leaves at their default; per-layer values as lists with commas; integers in decimal, floats
 * as 8 lower-case hex digits of their IEEE bits. */
void model_graph_text(const struct model *m, struct strbuf *out);
/* SHA-256 of that text. ERR_NOMEM is the only failure. */
int model_graph_digest(const struct model *m, uint8_t ret[DIGEST_BYTES]);
