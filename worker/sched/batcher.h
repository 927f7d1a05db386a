/* batcher.h - BATCH SCHEDULER: which rows go into the next forward pass. Pure.
 *
 * Decode first: each decoding sequence gets its one row, so that no prompt, however long, stops the
 * tokens of others. Prompts share what is left of the row budget, cut to max_prefill_rows: one half is the
 * oldest prompt's, which so ends within twice its own time whatever else comes; the other half is shared
 * equally, so that a short prompt is through at once beside long ones. What one does not need is the
 * others'.
 * Sequences that wait (for pages, a lookup, a fetch) are not candidates and take no slot.
 *
 * Thread: any. Units: rows (tokens). */
#pragma once

#include "common/compiler.h"

struct batch_limits {
    uint32_t max_rows; /* of one step */
    uint32_t
        max_prefill_rows;    /* of prompts in it: bounds how long the step keeps decodes waiting */
    uint32_t max_seqs;       /* in one step */
    uint32_t max_logit_rows; /* rows with logits in one step */
};

struct batch_cand {
    bool decode;       /* one row, logits wanted */
    uint32_t n_left;   /* prefill: prompt rows to compute, >= 1 */
    bool all_logits;   /* prefill: every row needs logits (echo), not only the prompt's last */
    uint32_t n_rows;   /* out: rows in this step, 0: not in it */
    uint32_t n_logits; /* out: of them, the last n_logits need logits */
};

struct batch_plan {
    uint32_t n_seqs, n_rows, n_logits;
    uint32_t n_decode, n_prefill; /* sequences of each kind */
    uint32_t next_rr;             /* pass as rr of the next call */
};

/* cands [n] in order of arrival; n_rows and n_logits of each are written. rr: where decoding sequences
 * take their turn when there are more of them than fit (round robin). */
struct batch_plan batch_choose(const struct batch_limits *lim, struct batch_cand *cands, uint32_t n,
                               uint32_t rr);
