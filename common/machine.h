/* machine.h - what this process may use of the machine: CPUs and memory, control groups included.
 *
 * A container sees all of its host's cores and memory and may use less: the least of the CPU affinity
 * and each cpu.max on the way to the root of the control groups (version 1: cpu.cfs_quota_us), the
 * least of the physical memory and each memory.max (version 1: memory.limit_in_bytes). What cannot
 * be read limits nothing.
 * Thread: any; reads files, so not for hot paths. */
#pragma once

#include "common/compiler.h"

struct machine {
    uint32_t
        cpus; /* at least 1; a part of a CPU is none, since a thread that waits for its share of
                              time holds up all that wait for it */
    uint64_t memory_bytes;                /* 0: not known */
    bool has_cpu_quota, has_memory_limit; /* the figure is a control group's */
};

/* root: put before /proc and /sys; "" but in tests. */
void machine_read(struct machine *ret, const char *root);
