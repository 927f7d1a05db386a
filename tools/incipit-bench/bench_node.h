/* bench_node.h - a cache node of our own for a measurement: a child process with a RAM tier only, in a
 * temporary folder, on free ports of loopback. Thread: one; blocks until the node is ready. */
#pragma once

#include "common/err.h"

struct bench_node {
    int pid;
    char dir[64];
    char tcp[32];   /* "127.0.0.1:PORT" */
    char unix_[96]; /* "unix:PATH" */
};

/* program NULL: incipit-cachesvc of the same build, else on PATH. */
int bench_node_start(struct bench_node *n, const char *program, uint64_t ram_bytes,
                     struct errbuf *eb);
void bench_node_stop(struct bench_node *n); /* nothing when it was never started */
