#include "cachesvc/store/disk_io.h"

#include <errno.h>
#include <unistd.h>

#include "common/checksum.h"
#include "common/err.h"
#include "common/wire_cur.h"

static int read_full(const struct disk_op *op, uint8_t *buf) {
    for (uint32_t got = 0; got < op->len;) {
        ssize_t n = pread(op->fd, buf + got, op->len - got, (off_t)(op->off + got));
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

/* Sums and id first: whatever else the slot holds then is this block's or is found out. The ends are
 * not summed; broken ones cut the payload where its sums do not fit. */
static int verify(const struct disk_op *op) {
    const uint8_t *trailer = op->buf + op->payload_bytes;
    uint64_t sums[CHECKSUM_MAX_RANGES];
    struct wire_cur c = wire_cur_read(trailer, 12ull * op->n_ranges);
    for (uint32_t i = 0; i < op->n_ranges; i++)
        sums[i] = wire_cur_u64(&c);
    if (checksum_of_sums(sums, op->n_ranges, op->id.b) != op->checksum)
        return ERR_CORRUPT;
    uint32_t at = 0;
    for (uint32_t i = 0; i < op->n_ranges; i++) {
        uint32_t end = wire_cur_u32(&c);
        if (end < at || end > op->payload_bytes || checksum_xxh3(op->buf + at, end - at) != sums[i])
            return ERR_CORRUPT;
        at = end;
    }
    return at == op->payload_bytes ? 0 : ERR_CORRUPT;
}

static int read_back(const struct disk_op *op) {
    int rv = read_full(op, op->buf + op->len);
    if (rv < 0)
        return rv;
    return memcmp(op->buf, op->buf + op->len, op->len) == 0 ? 0 : ERR_CORRUPT;
}

void disk_op_run(struct disk_op *op) {
    switch (op->kind) {
    case DISK_READ_BLOCK:
        op->rv = read_full(op, op->buf);
        if (op->rv == 0)
            op->rv = verify(op);
        break;
    case DISK_READ:
        op->rv = read_full(op, op->buf);
        break;
    case DISK_WRITE:
        op->rv = write_full(op);
        break;
    case DISK_SYNC:
        op->rv = sync_file(op);
        break;
    case DISK_WRITE_SYNC:
    case DISK_PROBE:
        op->rv = write_full(op);
        if (op->rv == 0)
            op->rv = sync_file(op);
        if (op->kind == DISK_PROBE && op->rv == 0)
            op->rv = read_back(op);
        break;
    }
}
