/* Opening the disk file: made, locked, preallocated, its geometry checked. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachesvc/store/disk_tier.h"

#define FILE_NAME "incipit.blocks"
#define EXTENT_DEFAULT (64ull << 20)
#define EXTENT_SMALLEST (8ull << 20)

static int open_file(struct disk_tier *t, const char *path, struct errbuf *eb) {
    int flags = O_RDWR | O_CREAT | O_CLOEXEC;
    if (!t->cfg.buffered)
        t->fd = open(path, flags | O_DIRECT, 0600);
    t->is_direct = t->fd >= 0;
    if (t->fd < 0 &&
        (t->cfg.buffered || errno == EINVAL)) /* tmpfs and some others know no O_DIRECT */
        t->fd = open(path, flags, 0600);
    if (t->fd < 0)
        return err_set(eb, -errno, "open '%s': %s", path, strerror(errno));
    if (flock(t->fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK
                   ? err_set(eb, ERR_EXISTS, "'%s' is in use by another process", path)
                   : err_set(eb, -errno, "lock '%s': %s", path, strerror(errno));
    return 0;
}

/* A new file gets its blocks now, so that a full disk is found at start and not by a put. */
static int preallocate(struct disk_tier *t, const char *path, struct errbuf *eb) {
    struct stat st;
    if (fstat(t->fd, &st) < 0)
        return err_set(eb, -errno, "stat '%s': %s", path, strerror(errno));
    bool is_new = st.st_size == 0;
    if ((uint64_t)st.st_size > t->cfg.disk_bytes && ftruncate(t->fd, (off_t)t->cfg.disk_bytes) < 0)
        return err_set(eb, -errno, "shrink '%s': %s", path, strerror(errno));
    int rv = posix_fallocate(t->fd, 0, (off_t)t->cfg.disk_bytes);
    if (rv == 0)
        return 0;
    if (is_new)
        (void)unlink(path); /* or a half-filled disk stays full */
    return err_set(eb, -rv, "'%s' needs %llu bytes of disk: %s", path,
                   (unsigned long long)t->cfg.disk_bytes, strerror(rv));
}

static uint64_t choose_extent(const struct disk_tier_cfg *cfg) {
    if (cfg->extent_bytes)
        return cfg->extent_bytes;
    /* A small tier still wants several extents, since each belongs to one slot size. */
    uint64_t each = cfg->disk_bytes / 16 / DISK_PAGE * DISK_PAGE;
    return MAX(EXTENT_SMALLEST, MIN(each, EXTENT_DEFAULT));
}

static int page_io(struct disk_tier *t, bool write, uint8_t *buf) {
    ssize_t n = write ? pwrite(t->fd, buf, DISK_PAGE, 0) : pread(t->fd, buf, DISK_PAGE, 0);
    if (n != (ssize_t)DISK_PAGE)
        return n < 0 ? -errno : -EIO;
    return write && fdatasync(t->fd) < 0 ? -errno : 0;
}

static bool is_zero(const uint8_t *p, size_t n) {
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

static int super_block(struct disk_tier *t, const char *path, struct errbuf *eb) {
    int rv = page_io(t, false, t->format_buf);
    if (rv < 0)
        return err_set(eb, rv, "read '%s': %s", path, err_text(rv));
    rv = disk_super_decode(t->format_buf, &t->super);
    if (rv == ERR_NOTFOUND && is_zero(t->format_buf, DISK_PAGE)) {
        t->super = (struct disk_super){t->cfg.min_slot_bytes, choose_extent(&t->cfg), {0}};
        if (getrandom(t->super.store_id, sizeof(t->super.store_id), 0) != sizeof(t->super.store_id))
            return err_set(eb, -errno, "random bytes");
        disk_super_encode(&t->super, t->format_buf);
        rv = page_io(t, true, t->format_buf);
        return rv < 0 ? err_set(eb, rv, "write '%s': %s", path, err_text(rv)) : 0;
    }
    if (rv < 0)
        return err_set(eb, rv, "'%s' is not a block file of this version; move it away", path);
    if (t->cfg.extent_bytes && t->cfg.extent_bytes != t->super.extent_bytes)
        return err_set(eb, ERR_INVALID, "'%s' has extents of %llu bytes, not %llu; move it away",
                       path, (unsigned long long)t->super.extent_bytes,
                       (unsigned long long)t->cfg.extent_bytes);
    if (t->cfg.min_slot_bytes != t->super.min_slot_bytes)
        return err_set(eb, ERR_INVALID,
                       "'%s' has a smallest slot of %u bytes, not %u; move it away", path,
                       t->super.min_slot_bytes, t->cfg.min_slot_bytes);
    return 0;
}

static int check_size(const struct disk_tier *t, const char *path, uint64_t extent_bytes,
                      struct errbuf *eb) {
    if (t->cfg.disk_bytes >= DISK_PAGE + extent_bytes)
        return 0;
    return err_set(eb, ERR_INVALID, "'%s': %llu bytes are too few for one extent of %llu", path,
                   (unsigned long long)t->cfg.disk_bytes, (unsigned long long)extent_bytes);
}

/* Everything that may refuse the file comes before its size is changed: shrinking loses blocks. */
static int check_before_resize(struct disk_tier *t, const char *path, struct errbuf *eb) {
    struct stat st;
    if (fstat(t->fd, &st) < 0)
        return err_set(eb, -errno, "stat '%s': %s", path, strerror(errno));
    if (st.st_size == 0)
        return check_size(t, path, choose_extent(&t->cfg), eb);
    if (st.st_size < (off_t)DISK_PAGE)
        return err_set(eb, ERR_CORRUPT, "'%s' is not a block file; move it away", path);
    int rv = super_block(t, path, eb);
    return rv < 0 ? rv : check_size(t, path, t->super.extent_bytes, eb);
}

static int tables(struct disk_tier *t, struct errbuf *eb) {
    uint64_t n = (t->cfg.disk_bytes - DISK_PAGE) / t->super.extent_bytes;
    struct slots_cfg sc = {
        .base_off = DISK_PAGE,
        .extent_bytes = t->super.extent_bytes,
        .n_extents = (uint32_t)MIN(n, SLOTS_MAX_EXTENTS),
        .min_slot_bytes = t->cfg.min_slot_bytes,
        .head_bytes = DISK_PAGE,
        .table_entry_bytes = DISK_SLOT_HDR_BYTES,
    };
    int rv = slots_init(&t->slots, &sc);
    if (rv < 0)
        return err_set(eb, rv, "disk tier: %s", err_text(rv));
    t->pages_per_extent = (t->slots.max_per_extent + DISK_HDRS_A_PAGE - 1) / DISK_HDRS_A_PAGE;
    t->n_pages = sc.n_extents * t->pages_per_extent;
    t->side = alloc_array((size_t)sc.n_extents * t->slots.max_per_extent, sizeof(*t->side));
    t->extent_gen = alloc_array(sc.n_extents, sizeof(*t->extent_gen));
    t->queue = alloc_array(t->n_pages, sizeof(*t->queue));
    t->page_flags = alloc_array(t->n_pages, 1);
    t->round_bufs = aligned_alloc(DISK_PAGE, (size_t)DISK_ROUND_OPS * DISK_ROUND_PAGES * DISK_PAGE);
    if (!t->side || !t->extent_gen || !t->queue || !t->page_flags || !t->round_bufs)
        return err_set(eb, ERR_NOMEM, "disk tier tables");
    for (uint32_t i = 0; i < DISK_ROUND_OPS; i++)
        t->round[i].buf = t->round_bufs + (size_t)i * DISK_ROUND_PAGES * DISK_PAGE;
    return 0;
}

int disk_tier_init(struct disk_tier *t, const struct disk_tier_cfg *cfg, struct errbuf *eb) {
    *t = (struct disk_tier){.cfg = *cfg, .fd = -1, .format_ext = UINT32_MAX};
    list_init(&t->waits);
    char path[4096];
    if ((size_t)snprintf(path, sizeof(path), "%s/" FILE_NAME, cfg->data_dir) >= sizeof(path))
        return err_set(eb, ERR_INVALID, "data directory: name too long");
    t->format_buf = aligned_alloc(DISK_PAGE, DISK_PAGE);
    int rv = t->format_buf ? 0 : err_set(eb, ERR_NOMEM, "disk tier");
    if (rv == 0)
        rv = open_file(t, path, eb);
    if (rv == 0)
        rv = check_before_resize(t, path, eb);
    if (rv == 0)
        rv = preallocate(t, path, eb);
    if (rv == 0)
        rv = super_block(t, path, eb);
    if (rv == 0)
        rv = tables(t, eb);
    if (rv < 0)
        disk_tier_fini(t);
    return rv;
}

void disk_tier_fini(struct disk_tier *t) {
    if (t->fd >= 0)
        close(t->fd);
    slots_fini(&t->slots);
    free(t->side);
    free(t->extent_gen);
    free(t->queue);
    free(t->page_flags);
    free(t->round_bufs);
    free(t->format_buf);
    *t = (struct disk_tier){.fd = -1};
}
