/* sm.h - checked state machines: a const table of states and allowed moves; a forbidden move
 * aborts.
 *
 *     static const struct sm_state get_states[GET_NR] = {
 *         [GET_START] = {"start", SM_INITIAL, BIT(GET_RAM) | BIT(GET_FAILED)}, ...
 *     };
 * At most 32 states. Thread: one owner. */
#pragma once

#include "common/compiler.h"

#define SM_INITIAL 1u
#define SM_FINAL 2u

struct sm_state {
    const char *name;
    unsigned flags;
    uint32_t next; /* bit i: a move to state i is allowed */
};

struct sm {
    const struct sm_state *states;
    uint32_t n, cur;
};

void sm_init(struct sm *m, const struct sm_state *states, size_t n_states, uint32_t initial);
void sm_move(struct sm *m,
             uint32_t next); /* aborts, naming both states, when the table forbids it */
bool sm_may(const struct sm *m, uint32_t next);
static inline uint32_t sm_at(const struct sm *m) {
    return m->cur;
}
static inline const char *sm_name(const struct sm *m) {
    return m->states[m->cur].name;
}
static inline bool sm_is_final(const struct sm *m) {
    return (m->states[m->cur].flags & SM_FINAL) != 0;
}
