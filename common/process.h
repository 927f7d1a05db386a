/* process.h - this process as the system sees it: standard streams, its service manager, its figures.
 *
 * Thread: process_stdio() before any other; the rest: any one at a time. */
#pragma once

#include "common/log.h"
#include "common/metrics.h"

/* Opens /dev/null for each of the descriptors 0 to 2 that is closed. First thing in main(): else the
 * next socket or file gets that number, and what is printed goes into it. */
void process_stdio(void);

/* Blocks of 128 KiB and more lie on pages of their own from now on, and these go back to the system when they are freed.
 * glibc would raise that size with each large block that is freed, up to 32 MiB: request bodies and messages that grow
 * would then lie on the heap among holes as large as they, and what a client made a daemon hold once would stay. */
void process_memory(void);

/* The most descriptors that may be had without asking: the soft limit becomes the hard one. */
void process_raise_files(void);

/* Tells systemd (NOTIFY_SOCKET, see sd_notify(3)) e.g. "READY=1"; nothing without it. */
void process_notify(const char *state);

/*    field                type      help */
#define PROCESS_METRICS(X)                                                                         \
    X(cpu_seconds_total, FCOUNTER, "user and system CPU time")                                     \
    X(start_time_seconds, FGAUGE, "start of the process, Unix time")                               \
    X(resident_memory_bytes, GAUGE, "memory in RAM, the cache's own tier included")                \
    X(virtual_memory_bytes, GAUGE, "address space")                                                \
    X(open_fds, GAUGE, "open file descriptors")                                                    \
    X(max_fds, GAUGE, "file descriptors the process may have")                                     \
    X(build_info, GAUGE, "always 1; the version as a label", .name = "incipit_build_info",         \
      .labels = "version=\"" INCIPIT_VERSION "\"")                                                 \
    X(log_dropped_total, COUNTER, "log lines lost because nobody read them in time",               \
      .name = "incipit_log_dropped_total")                                                         \
    X(log_suppressed_total, COUNTER, "log lines held back because their event repeats",            \
      .name = "incipit_log_suppressed_total")
struct process_metrics {
    METRIC_FIELDS(PROCESS_METRICS)
};
METRIC_TABLE(process_metrics, PROCESS_METRICS, "process_")

/* Zero at first; what /proc does not tell stays as it was. log may be NULL. */
void process_metrics_refresh(struct process_metrics *m, const struct log *log);
