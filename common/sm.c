#include "common/sm.h"

#include "common/check.h"

void sm_init(struct sm *m, const struct sm_state *states, size_t n_states, uint32_t initial) {
    CHECK(n_states <= 32 && initial < n_states);
    CHECK(states[initial].flags & SM_INITIAL);
    *m = (struct sm){.states = states, .n = (uint32_t)n_states, .cur = initial};
}

bool sm_may(const struct sm *m, uint32_t next) {
    return next < m->n && (m->states[m->cur].next & BIT(next)) != 0;
}

void sm_move(struct sm *m, uint32_t next) {
    if (UNLIKELY(!sm_may(m, next))) {
        char text[128];
        snprintf(text, sizeof(text), "move from '%s' to '%s'", sm_name(m),
                 next < m->n ? m->states[next].name : "(none)");
        check_failed(__FILE__, __LINE__, text);
    }
    m->cur = next;
}
