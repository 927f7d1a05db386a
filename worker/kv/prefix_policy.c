/* prefix_policy.c - fetch or compute, wait or go on, try or leave alone. */
#include "worker/kv/prefix_policy.h"

#include "common/err.h"

#define PATIENCE_MIN_NS (5 * NS_PER_MS)
/* FETCH_ALWAYS gives up after this long without a block: a stalled service, not a slow one. */
#define STALL_NS (2 * NS_PER_S)
#define RECHECK_NS (2 * NS_PER_MS)
/* weight of a new sample in a moving average */
#define EWMA_NEW 0.25

int fetch_mode_parse(const char *name, enum fetch_mode *ret) {
    static const char *const names[] = {"auto", "always", "never"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum fetch_mode)i;
            return 0;
        }
    }
    return ERR_INVALID;
}

static void ewma(double *avg, double sample) {
    *avg = *avg > 0 ? *avg + EWMA_NEW * (sample - *avg) : sample;
}

void prefix_rates_add_prefill(struct prefix_rates *r, uint32_t n_tok, uint64_t ns) {
    if (n_tok)
        ewma(&r->prefill_ns_per_tok, (double)ns / n_tok);
}

void prefix_rates_add_fetch(struct prefix_rates *r, uint64_t bytes, uint32_t n_blocks,
                            uint64_t first_ns, uint64_t total_ns) {
    if (!bytes || !n_blocks || total_ns < first_ns)
        return;
    if (n_blocks == 1) { /* one block tells only the sum; split it with the rate known so far */
        double moving = r->fetch_ns_per_byte * (double)bytes;
        if (r->fetch_ns_per_byte > 0 && (double)total_ns > moving)
            ewma(&r->fetch_t0_ns, (double)total_ns - moving);
        else
            ewma(&r->fetch_ns_per_byte, (double)total_ns / (double)bytes);
        return;
    }
    double per_block = (double)(total_ns - first_ns) / (n_blocks - 1);
    double t0 = (double)first_ns - per_block;
    ewma(&r->fetch_ns_per_byte, per_block * n_blocks / (double)bytes);
    ewma(&r->fetch_t0_ns, t0 > 0 ? t0 : 0);
}

uint64_t prefix_prefill_ns(const struct prefix_rates *r, uint32_t n_tok) {
    return (uint64_t)(r->prefill_ns_per_tok * n_tok);
}

bool prefix_decide_fetch(enum fetch_mode mode, const struct prefix_rates *r, uint64_t bytes,
                         uint32_t n_tok) {
    if (mode != FETCH_AUTO || !n_tok)
        return mode == FETCH_ALWAYS && n_tok;
    if (!(r->prefill_ns_per_tok > 0) || !(r->fetch_ns_per_byte > 0))
        return true;
    double fetch = r->fetch_t0_ns + r->fetch_ns_per_byte * (double)bytes;
    return fetch < r->prefill_ns_per_tok * n_tok;
}

uint64_t prefix_patience_ns(const struct prefix_rates *r, uint32_t n_tok) {
    uint64_t tenth = prefix_prefill_ns(r, n_tok) / 10;
    return MAX(tenth, PATIENCE_MIN_NS);
}

/* Time the missing blocks will take at the rate seen in this fetch. None there yet: as long again as was
 * waited already, the usual guess for something of unknown length. */
static double time_left_ns(const struct prefix_progress *p) {
    if (p->n_done == 0)
        return (double)p->elapsed_ns * p->n_blocks;
    return (double)p->elapsed_ns / p->n_done * (p->n_blocks - p->n_done);
}

bool prefix_is_late(enum fetch_mode mode, const struct prefix_rates *r,
                    const struct prefix_progress *p) {
    if (p->n_done >= p->n_blocks)
        return false;
    if (p->idle_ns >= STALL_NS)
        return true;
    if (mode == FETCH_ALWAYS || p->elapsed_ns <= prefix_patience_ns(r, p->n_tok))
        return false;
    if (!(r->prefill_ns_per_tok > 0))
        return false; /* nothing to compare with yet; a stall still ends it */
    if (p->idle_ns > prefix_patience_ns(r, p->n_tok))
        return true; /* a good start says nothing about a node that has stopped since */
    double left = (double)(p->n_blocks - p->n_done) / p->n_blocks * p->n_tok;
    return time_left_ns(p) > r->prefill_ns_per_tok * left;
}

uint64_t prefix_check_after_ns(enum fetch_mode mode, const struct prefix_rates *r,
                               const struct prefix_progress *p) {
    uint64_t patience = mode == FETCH_ALWAYS ? STALL_NS : prefix_patience_ns(r, p->n_tok);
    uint64_t seen = mode == FETCH_ALWAYS ? p->idle_ns : p->elapsed_ns;
    return seen < patience ? patience - seen + 1 : RECHECK_NS;
}

const char *breaker_state_name(enum breaker_state s) {
    static const char *const names[] = {"closed", "open", "half-open"};
    return names[s];
}

void breaker_init(struct breaker *b) {
    *b = (struct breaker){.wait_ns = BREAKER_WAIT_MIN_NS};
}

bool breaker_allow(struct breaker *b, uint64_t now_ns) {
    if (b->state == BREAKER_CLOSED)
        return true;
    if (b->state == BREAKER_OPEN && now_ns >= b->open_until_ns)
        b->state = BREAKER_HALF_OPEN;
    if (b->state != BREAKER_HALF_OPEN || b->probing)
        return false;
    b->probing = true;
    return true;
}

void breaker_ok(struct breaker *b) {
    breaker_init(b);
}

void breaker_fail(struct breaker *b, uint64_t now_ns) {
    b->n_fail++;
    if (b->state == BREAKER_OPEN)
        return; /* a call from before it opened */
    if (b->state == BREAKER_HALF_OPEN)
        b->wait_ns = MIN(2 * b->wait_ns, BREAKER_WAIT_MAX_NS);
    else if (b->n_fail < BREAKER_MAX_FAIL)
        return;
    b->state = BREAKER_OPEN;
    b->probing = false;
    b->open_until_ns = now_ns + b->wait_ns;
}

void breaker_void(struct breaker *b) {
    b->probing = false;
}
