#include "tests/support/fake_clock.h"

static uint64_t fake_mono(const struct clock *c) {
    struct fake_clock *fc = CONTAINER_OF((struct clock *)(uintptr_t)c, struct fake_clock, clk);
    return fc->mono_ns += fc->step_ns;
}

static uint64_t fake_wall(const struct clock *c) {
    return ((const struct fake_clock *)(const void *)c)->wall_ns;
}

void fake_clock_init(struct fake_clock *fc) {
    *fc = (struct fake_clock){
        .clk = {fake_mono, fake_wall}, .mono_ns = NS_PER_S, .wall_ns = 1767225600ull * NS_PER_S};
}

void fake_clock_advance_ms(struct fake_clock *fc, uint64_t ms) {
    fc->mono_ns += ms * NS_PER_MS;
    fc->wall_ns += ms * NS_PER_MS;
}
