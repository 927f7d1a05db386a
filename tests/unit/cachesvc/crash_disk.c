#include "tests/unit/cachesvc/crash_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/check.h"

#define SECTOR 512u

uint64_t crash_rand(uint64_t *seed) { /* xorshift64* */
    uint64_t x = *seed ? *seed : 1;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *seed = x;
    return x * 0x2545f4914f6cdd1dull >> 16;
}

void crash_disk_init(struct crash_disk *c, const char *dir, uint64_t seed) {
    *c = (struct crash_disk){.seed = seed};
    snprintf(c->path, sizeof(c->path), "%s/incipit.blocks", dir);
    crash_disk_settle(c);
}

static void forget_writes(struct crash_disk *c) {
    for (uint32_t i = 0; i < c->n; i++)
        free(c->writes[i].bytes);
    c->n = 0;
}

void crash_disk_fini(struct crash_disk *c) {
    forget_writes(c);
    free(c->writes);
    free(c->durable);
}

void crash_disk_settle(struct crash_disk *c) {
    forget_writes(c);
    int fd = open(c->path, O_RDONLY);
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    c->bytes = (uint64_t)st.st_size;
    free(c->durable);
    c->durable = malloc(c->bytes);
    CHECK(c->durable && pread(fd, c->durable, c->bytes, 0) == (ssize_t)c->bytes);
    close(fd);
}

static void wrote(struct crash_disk *c, const struct disk_op *op) {
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->writes = realloc(c->writes, c->cap * sizeof(*c->writes));
        CHECK(c->writes);
    }
    struct crash_write *w = &c->writes[c->n++];
    *w = (struct crash_write){op->off, op->len, malloc(op->len)};
    CHECK(w->bytes && op->off + op->len <= c->bytes);
    memcpy(w->bytes, op->buf, op->len);
}

void crash_disk_did(struct crash_disk *c, const struct disk_op *op) {
    bool writes = op->kind == DISK_WRITE || op->kind == DISK_WRITE_SYNC || op->kind == DISK_PROBE;
    bool syncs = op->kind == DISK_SYNC || op->kind == DISK_WRITE_SYNC || op->kind == DISK_PROBE;
    if (writes)
        wrote(c, op);
    for (uint32_t i = 0; syncs && i < c->n; i++)
        memcpy(c->durable + c->writes[i].off, c->writes[i].bytes, c->writes[i].len);
    if (syncs)
        forget_writes(c);
}

void crash_disk_sync_failed(struct crash_disk *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++)
        if (crash_rand(&c->seed) % 2)
            free(c->writes[i].bytes);
        else
            c->writes[n++] = c->writes[i];
    c->n = n;
}

void crash_disk_crash(struct crash_disk *c) {
    for (uint32_t i = 0; i < c->n; i++) {
        const struct crash_write *w = &c->writes[i];
        uint32_t fate = (uint32_t)(crash_rand(&c->seed) % 4); /* all, nothing, or some sectors */
        for (uint32_t at = 0; at < w->len; at += SECTOR) {
            bool kept = fate == 0 || (fate > 1 && crash_rand(&c->seed) % 2);
            c->n_kept += kept;
            c->n_lost += !kept;
            if (kept)
                memcpy(c->durable + w->off + at, w->bytes + at, SECTOR);
        }
    }
    forget_writes(c);
    int fd = open(c->path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, c->durable, c->bytes, 0) == (ssize_t)c->bytes);
    close(fd);
}
