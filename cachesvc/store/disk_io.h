/* disk_io.h - one read, write or sync of the disk file, done off the loop.
 *
 * A disk_op belongs to its submitter and is embedded in something pooled; between submit and done
 * it is the executor's. done() comes on the loop thread, exactly once for each accepted op. The
 * executor is an interface, so that tests can run ops when they like, fail, hang, lose or tear them.
 * Thread: submit and done on the loop thread; disk_op_run() on any. */
#pragma once

#include "common/block_id.h"
#include "common/list.h"

enum disk_op_kind {
    DISK_READ_BLOCK, /* len bytes, then the checksums of the payload and of sums and id */
    DISK_READ,
    DISK_WRITE,
    DISK_SYNC,
    DISK_WRITE_SYNC,
    DISK_PROBE, /* WRITE_SYNC, then reads the bytes back into buf + len and compares */
};

struct disk_op {
    struct list link; /* the executor's */
    enum disk_op_kind kind;
    int fd;
    uint8_t *buf; /* 4096-aligned, stays until done */
    uint64_t off;
    uint32_t len;                     /* a multiple of 4096 */
    uint32_t payload_bytes, n_ranges; /* READ_BLOCK */
    uint64_t checksum;                /* READ_BLOCK: what the directory says */
    struct block_id id;               /* READ_BLOCK: whose bytes these must be */
    int rv;                           /* 0, -errno, ERR_CORRUPT */
    void (*done)(struct disk_op *op);
    void *arg;
    /* the disk tier's, from its submit to its done */
    struct list busy;
    uint64_t since_ns;
    void (*then)(struct disk_op *op);
    struct disk_tier *tier;
};

struct disk_exec {
    /* 0, or ERR_BUSY: queue full, done is not called. */
    int (*submit)(struct disk_exec *x, struct disk_op *op);
};

/* Does op here and now and sets op->rv. */
void disk_op_run(struct disk_op *op);

/* Production: the pool of common/loop_work.h, which the caller owns. depth: ops in the pool at
 * once. */
struct loop_work;
int disk_exec_loop_new(struct disk_exec **ret, struct loop_work *w, uint32_t depth);
void disk_exec_loop_free(struct disk_exec *x); /* no op may be in it */
