/* clock.h - time as a member, so that tests pass a fake one (tests/support/fake_clock.h).
 *
 * Durations and deadlines inside a process are monotonic nanoseconds; wall time is for records that
 * outlive it. Thread: any. */
#pragma once

#include "common/compiler.h"

#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

struct clock {
    uint64_t (*mono_ns)(const struct clock *c);
    uint64_t (*wall_ns)(const struct clock *c); /* since the Unix epoch */
};

const struct clock *clock_real(void);

static inline uint64_t clock_mono_ns(const struct clock *c) {
    return c->mono_ns(c);
}
static inline uint64_t clock_wall_ns(const struct clock *c) {
    return c->wall_ns(c);
}
