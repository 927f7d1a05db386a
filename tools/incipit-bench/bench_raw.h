/* bench_raw.h - the same bytes through a plain blocking socket, between this process and a child.
 *
 * What a socket can do on this machine at its best: one stream, no frames, no checksums, reads of at
 * most 256 KiB on TCP, reno on loopback, a send buffer of 1 MiB on Unix sockets (the settings of our own
 * connections), the child's memory in huge pages as a node's is. Source and destination are as large as a
 * repetition, so both sides touch cold memory.
 *
 * Thread: one; blocks. Memory: bench_raw_open() allocates both sides' buffers. */
#pragma once

#include "common/err.h"

struct bench_raw;

/* bytes: of one repetition; buf: ours, [bytes], for both directions; borrowed. */
int bench_raw_open(struct bench_raw **ret, bool tcp, uint8_t *buf, size_t bytes, struct errbuf *eb);
void bench_raw_close(struct bench_raw *r); /* ends the child; NULL is a no-op */
/* Seconds to receive (fetch) or to send and have acknowledged (put) one repetition; < 0 on an error. */
double bench_raw_fetch(struct bench_raw *r);
double bench_raw_put(struct bench_raw *r);
