/* fake_clock.h - time that moves only when a test says so. Thread: one owner. */
#pragma once

#include "common/clock.h"

struct fake_clock {
    struct clock clk; /* pass &fc.clk */
    uint64_t mono_ns, wall_ns;
    uint64_t
        step_ns; /* that passes with each look at the monotonic time, as if work took it; 0 at first */
};

void fake_clock_init(struct fake_clock *fc); /* 1 s after boot, 2026-01-01 */
void fake_clock_advance_ms(struct fake_clock *fc, uint64_t ms);
