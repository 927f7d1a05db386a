/* batcher.c - decode first, then prompts in order of arrival. */
#include "worker/sched/batcher.h"

static bool is_full(const struct batch_limits *lim, const struct batch_plan *p) {
    return p->n_seqs >= lim->max_seqs || p->n_rows >= lim->max_rows ||
           p->n_logits >= lim->max_logit_rows;
}

static void add(struct batch_plan *p, struct batch_cand *c, uint32_t n_rows, uint32_t n_logits) {
    c->n_rows = n_rows;
    c->n_logits = n_logits;
    p->n_seqs++;
    p->n_rows += n_rows;
    p->n_logits += n_logits;
}

static void add_decodes(const struct batch_limits *lim, struct batch_plan *p, struct batch_cand *cands,
                        uint32_t n, uint32_t rr) {
    for (uint32_t k = 0; k < n && !is_full(lim, p); k++) {
        uint32_t i = (rr + k) % n;
        if (!cands[i].decode)
            continue;
        add(p, &cands[i], 1, 1);
        p->n_decode++;
        p->next_rr = (i + 1) % n;
    }
}

static void add_prefills(const struct batch_limits *lim, struct batch_plan *p, struct batch_cand *cands,
                         uint32_t n) {
    for (uint32_t i = 0; i < n && p->n_seqs < lim->max_seqs && p->n_rows < lim->max_rows; i++) {
        struct batch_cand *c = &cands[i];
        if (c->decode || !c->n_left)
            continue;
        uint32_t rows = MIN(c->n_left, lim->max_rows - p->n_rows), logit_room;
        logit_room = lim->max_logit_rows - p->n_logits;
        if (c->all_logits)
            rows = MIN(rows, logit_room);
        else if (rows == c->n_left && !logit_room)
            rows--; /* the prompt's last row waits for a step with room for its logits */
        if (!rows)
            continue;
        add(p, c, rows, c->all_logits ? rows : rows == c->n_left);
        p->n_prefill++;
    }
}

struct batch_plan batch_choose(const struct batch_limits *lim, struct batch_cand *cands, uint32_t n,
                               uint32_t rr) {
    struct batch_plan p = {.next_rr = rr};
    for (uint32_t i = 0; i < n; i++)
        cands[i].n_rows = cands[i].n_logits = 0;
    add_decodes(lim, &p, cands, n, rr);
    add_prefills(lim, &p, cands, n);
    return p;
}
