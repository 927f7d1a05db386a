/* crash_disk.h - what a disk keeps when the power goes: everything up to the last sync, and of what
 * was written since then any sectors of 512 bytes, the others as they were.
 *
 * The file itself is what reads see. An executor tells of each op that it did; crash_disk_crash()
 * then turns the file into one of the files that could be left. Same seed, same file.
 * Thread: one owner. */
#pragma once

#include "cachesvc/store/disk_io.h"

struct crash_write {
    uint64_t off;
    uint32_t len;
    uint8_t *bytes;
};
struct crash_disk {
    char path[128];
    uint64_t seed;
    uint8_t *durable; /* [bytes] */
    uint64_t bytes;
    struct crash_write *writes; /* since the last sync, in order */
    uint32_t n, cap;
    uint32_t n_lost, n_kept; /* sectors of all crashes */
};

void crash_disk_init(struct crash_disk *c, const char *dir, uint64_t seed);
void crash_disk_fini(struct crash_disk *c);
void crash_disk_settle(struct crash_disk *c); /* the file as it is now is synced */
void crash_disk_did(struct crash_disk *c, const struct disk_op *op);
/* A sync failed: of what it should have kept the kernel forgets some, and later syncs succeed. */
void crash_disk_sync_failed(struct crash_disk *c);
void crash_disk_crash(struct crash_disk *c);

uint64_t crash_rand(uint64_t *seed);
