/* resident.h - bytes of this process that are in RAM, for tests of what stays when something is gone.
 *
 * Thread: any. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

/* 0 when /proc does not tell. */
static inline uint64_t resident_bytes(void) {
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    int n = f ? fscanf(f, "%*u %llu", &pages) : 0;
    if (f)
        fclose(f);
    return n == 1 ? pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}
