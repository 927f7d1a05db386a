/* fault.h - fails the n-th allocation of our own code, and counts them all.
 *
 * Linked with -Wl,--wrap=malloc and so on (test_fault_dep), which redirects the calls in our object
 * files and static libraries, not those inside shared libraries; the sanitizers' allocators stay
 * below. */
#pragma once

#include "common/compiler.h"

void fault_arm(
    uint64_t n);        /* the n-th allocation from now on fails, n from 0; later ones succeed */
bool fault_fired(void); /* since fault_arm() */
void fault_disarm(void);
uint64_t malloc_probe_count(void); /* allocations of our code so far, in all threads */
uint64_t malloc_probe_bytes(void); /* and their bytes */
