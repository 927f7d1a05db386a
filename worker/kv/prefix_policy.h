/* prefix_policy.h - the decisions of the prefix path as pure functions: numbers in, a verdict out.
 *
 *   decide   fetch when measured t0 + bytes/bandwidth < measured prefill time, and always before there
 *            is a measurement
 *   late     past max(5 ms, a tenth of the prefill time) and projected later than computing
 *   breaker  stop paying for a dead service; half-open probes find out when it is back
 *
 * Thread: any; state structs have one owner. Units: nanoseconds, bytes, tokens. */
#pragma once

#include "common/clock.h"
#include "common/compiler.h"

enum fetch_mode { FETCH_AUTO = 0, FETCH_ALWAYS, FETCH_NEVER };
int fetch_mode_parse(const char *name, enum fetch_mode *ret); /* 0 or ERR_INVALID */

/* Moving averages of what was measured. 0 samples: unknown. */
struct prefix_rates {
    double prefill_ns_per_tok; /* 0: unknown */
    double fetch_t0_ns;        /* from the call to the first byte, at no load */
    double fetch_ns_per_byte;  /* 0: unknown */
};
void prefix_rates_add_prefill(struct prefix_rates *r, uint32_t n_tok, uint64_t ns);
/* first_ns: until the first block was there; total_ns: until the last one. */
void prefix_rates_add_fetch(struct prefix_rates *r, uint64_t bytes, uint32_t n_blocks,
                            uint64_t first_ns, uint64_t total_ns);

/* Time that computing n_tok rows takes; 0 when unknown. */
uint64_t prefix_prefill_ns(const struct prefix_rates *r, uint32_t n_tok);

bool prefix_decide_fetch(enum fetch_mode mode, const struct prefix_rates *r, uint64_t bytes,
                         uint32_t n_tok);

/* How long a lookup or fetch may go on before its projection is looked at: max(5 ms, a tenth of the
 * prefill time). */
uint64_t prefix_patience_ns(const struct prefix_rates *r, uint32_t n_tok);

/* A fetch as seen now. */
struct prefix_progress {
    uint64_t elapsed_ns;       /* since the lookup began */
    uint64_t idle_ns;          /* since the last block came (or the fetch began) */
    uint32_t n_done, n_blocks; /* blocks there, in order; blocks asked for */
    uint32_t n_tok;            /* tokens that the blocks hold */
};
/* True: compute from the first missing block now, whatever still arrives. FETCH_ALWAYS waits longer, as
 * long as blocks come at all. */
bool prefix_is_late(enum fetch_mode mode, const struct prefix_rates *r,
                    const struct prefix_progress *p);
/* When to ask again, ns from now. */
uint64_t prefix_check_after_ns(enum fetch_mode mode, const struct prefix_rates *r,
                               const struct prefix_progress *p);

/*   CLOSED --n failures--> OPEN --after a while--> HALF_OPEN --success--> CLOSED
 *                           ^----------failure--------/                          */
enum breaker_state { BREAKER_CLOSED = 0, BREAKER_OPEN = 1, BREAKER_HALF_OPEN = 2 };
const char *breaker_state_name(enum breaker_state s);

#define BREAKER_MAX_FAIL 3u
#define BREAKER_WAIT_MIN_NS (500 * NS_PER_MS)
#define BREAKER_WAIT_MAX_NS (30 * NS_PER_S)

struct breaker {
    enum breaker_state state;
    uint32_t n_fail; /* in a row */
    uint64_t wait_ns, open_until_ns;
    bool probing; /* half-open: one probe is out */
};
void breaker_init(struct breaker *b);
/* May a call be made now? In half-open one call at a time. Every allowed call must be answered by
 * breaker_ok(), breaker_fail() or breaker_void(). */
bool breaker_allow(struct breaker *b, uint64_t now_ns);
void breaker_ok(struct breaker *b);
void breaker_fail(struct breaker *b, uint64_t now_ns);
void breaker_void(struct breaker *b); /* ended without saying anything about the service */
