#include "cachesvc/store/disk_io.h"

#include <errno.h>
#include <unistd.h>

#include "common/checksum.h"
#include "common/err.h"

static int read_full(const struct disk_op *op) {
    for (uint32_t got = 0; got < op->len;) {
        ssize_t n = pread(op->fd, op->buf + got, op->len - got, (off_t)(op->off + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EIO; /* the file is preallocated: its end is never in a slot */
        got += (uint32_t)n;
    }
    return 0;
}

static int write_full(const struct disk_op *op) {
    for (uint32_t put = 0; put < op->len;) {
        ssize_t n = pwrite(op->fd, op->buf + put, op->len - put, (off_t)(op->off + put));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        put += (uint32_t)n;
    }
    return 0;
}

static int sync_file(const struct disk_op *op) {
    return fdatasync(op->fd) < 0 ? -errno : 0;
}

/* The list of sums is little-endian on disk, so its checksum can be taken where it lies. */
static int verify(const struct disk_op *op) {
    const uint8_t *sums = op->buf + op->payload_bytes;
    if (checksum_xxh3(sums, 8ull * op->n_ranges) != op->checksum)
        return ERR_CORRUPT;
    uint32_t range = op->payload_bytes / op->n_ranges;
    for (uint32_t i = 0; i < op->n_ranges; i++) {
        uint64_t want = 0;
        for (int b = 7; b >= 0; b--)
            want = want << 8 | sums[8 * i + (uint32_t)b];
        if (checksum_xxh3(op->buf + (size_t)i * range, range) != want)
            return ERR_CORRUPT;
    }
    return 0;
}

void disk_op_run(struct disk_op *op) {
    switch (op->kind) {
    case DISK_READ_BLOCK:
        op->rv = read_full(op);
        if (op->rv == 0)
            op->rv = verify(op);
        break;
    case DISK_WRITE:
        op->rv = write_full(op);
        break;
    case DISK_SYNC:
        op->rv = sync_file(op);
        break;
    case DISK_WRITE_SYNC:
        op->rv = write_full(op);
        if (op->rv == 0)
            op->rv = sync_file(op);
        break;
    }
}
