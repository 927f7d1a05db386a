/* batcher.c - decode first, then prompts, which share. */
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

static void add_decodes(const struct batch_limits *lim, struct batch_plan *p,
                        struct batch_cand *cands, uint32_t n, uint32_t rr) {
    for (uint32_t k = 0; k < n && !is_full(lim, p); k++) {
        uint32_t i = (rr + k) % n;
        if (!cands[i].decode)
            continue;
        add(p, &cands[i], 1, 1);
        p->n_decode++;
        p->next_rr = (i + 1) % n;
    }
}

static bool is_prefill(const struct batch_cand *c) {
    return !c->decode && c->n_left;
}

/* In rounds, each prompt behind cands[0] that needs more gets an equal part of budget, the last of it in
 * order of arrival. Returns what nobody needs. */
static uint32_t share_rest(struct batch_cand *cands, uint32_t n, uint32_t budget) {
    uint32_t n_open = 0;
    for (uint32_t i = 1; i < n; i++)
        n_open += is_prefill(&cands[i]);
    while (budget && n_open) {
        uint32_t each = MAX(budget / n_open, 1u);
        n_open = 0;
        for (uint32_t i = 1; i < n && budget; i++) {
            struct batch_cand *c = &cands[i];
            if (!is_prefill(c) || c->n_rows == c->n_left)
                continue;
            uint32_t more = MIN(MIN(c->n_left - c->n_rows, each), budget);
            c->n_rows += more;
            budget -= more;
            n_open += c->n_rows < c->n_left;
        }
    }
    return budget;
}

/* Each prompt's rows in n_rows. */
static void share_rows(struct batch_cand *cands, uint32_t n, uint32_t budget) {
    uint32_t first = 0;
    while (first < n && !is_prefill(&cands[first]))
        first++;
    if (first == n)
        return;
    struct batch_cand *oldest = &cands[first];
    oldest->n_rows = MIN(oldest->n_left, (budget + 1) / 2);
    budget = share_rest(oldest, n - first, budget - oldest->n_rows);
    oldest->n_rows += MIN(oldest->n_left - oldest->n_rows, budget);
}

static void add_prefills(const struct batch_limits *lim, struct batch_plan *p,
                         struct batch_cand *cands, uint32_t n) {
    share_rows(cands, n, MIN(lim->max_rows - p->n_rows, lim->max_prefill_rows));
    for (uint32_t i = 0; i < n; i++) {
        struct batch_cand *c = &cands[i];
        uint32_t rows = is_prefill(c) ? c->n_rows : 0,
                 logit_room = lim->max_logit_rows - p->n_logits;
        if (c->decode)
            continue;
        c->n_rows = 0;
        if (c->all_logits)
            rows = MIN(rows, logit_room);
        else if (rows && rows == c->n_left && !logit_room)
            rows--; /* the prompt's last row waits for a step with room for its logits */
        if (!rows || p->n_seqs == lim->max_seqs)
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
