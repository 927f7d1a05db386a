/* Opening the disk file: found or made, locked, its super block read or repaired, its size set, the
 * removal log read.
 *
 * A new file is made under another name and renamed when its super block is synced, so that a block
 * file whose super block says nothing is always a broken one, never a young one. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cachesvc/store/disk_tier_priv.h"

#define FILE_NAME "incipit.blocks"
#define EXTENT_DEFAULT (64ull << 20)
#define EXTENT_SMALLEST (8ull << 20)
#define LOG_CHUNK_PAGES 64u

typedef unsigned long long ull;

/* ---- the file ------------------------------------------------------------------------------ */

static int open_file(struct disk_tier *t, const char *path, int extra, struct errbuf *eb) {
    int flags = O_RDWR | O_CLOEXEC | extra;
    t->fd = t->cfg.buffered ? -1 : open(path, flags | O_DIRECT, 0600);
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

static void close_file(struct disk_tier *t) {
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
}

/* All blocks of the file are taken now, so that a full disk is found at start and not by a put. The
 * room is asked for first, and what was taken in vain is given back: a full file system is full for
 * everybody on the host. */
static int set_size(const struct disk_tier *t, const char *path, struct errbuf *eb) {
    uint64_t want = t->cfg.disk_bytes;
    struct stat st;
    struct statvfs fs;
    if (fstat(t->fd, &st) < 0 || fstatvfs(t->fd, &fs) < 0)
        return err_set(eb, -errno, "stat '%s': %s", path, strerror(errno));
    uint64_t was = (uint64_t)st.st_size, taken = (uint64_t)st.st_blocks * 512;
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (fs.f_blocks > 0 && want > taken && want - taken > room) /* 0: it does not say */
        return err_set(eb, -ENOSPC, "'%s' needs %llu more bytes of disk, %llu are free", path,
                       (ull)(want - taken), (ull)room);
    if (was > want && ftruncate(t->fd, (off_t)want) < 0)
        return err_set(eb, -errno, "shrink '%s': %s", path, strerror(errno));
    int rv = posix_fallocate(t->fd, 0, (off_t)want);
    if (rv == 0)
        return 0;
    if (was < want && ftruncate(t->fd, (off_t)was) < 0)
        rv = rv ? rv : errno;
    return err_set(eb, -rv, "'%s' needs %llu bytes of disk: %s", path, (ull)want, strerror(rv));
}

/* ---- geometry ------------------------------------------------------------------------------ */

static uint64_t log_bytes_new(const struct disk_tier_cfg *cfg) {
    uint64_t n = cfg->log_records ? cfg->log_records : DISK_LOG_RECORDS;
    return (n * DISK_REMOVAL_BYTES + DISK_PAGE - 1) / DISK_PAGE * DISK_PAGE;
}

/* A small tier still wants several extents, since each belongs to one slot size; a large one no more
 * than there are numbers for. */
static uint64_t choose_extent(const struct disk_tier_cfg *cfg) {
    if (cfg->extent_bytes)
        return cfg->extent_bytes;
    uint64_t each = cfg->disk_bytes / 16 / DISK_PAGE * DISK_PAGE;
    uint64_t least = cfg->disk_bytes / SLOTS_MAX_EXTENTS / DISK_PAGE * DISK_PAGE + DISK_PAGE;
    uint64_t want = MAX(least, MAX(EXTENT_SMALLEST, MIN(each, EXTENT_DEFAULT)));
    uint64_t head = DISK_LOG_OFF + log_bytes_new(cfg);
    return slots_fit_extent(cfg->disk_bytes - MIN(head, cfg->disk_bytes), want);
}

static int check_size(const struct disk_tier *t, const char *path, const struct disk_super *s,
                      struct errbuf *eb) {
    uint64_t head = s->log_off + s->log_bytes, bytes = t->cfg.disk_bytes;
    /* Of a new file the extent was cut to what there is: one slot of the smallest size has to fit. */
    uint64_t extent = MAX(s->extent_bytes, 2 * DISK_PAGE + (uint64_t)t->cfg.min_slot_bytes);
    if (bytes < head + extent)
        return err_set(
            eb, ERR_INVALID,
            "'%s': %llu bytes are too few: %llu are needed, %llu for the super block and "
            "the removal log and %llu for one extent",
            path, (ull)bytes, (ull)(head + extent), (ull)head, (ull)extent);
    uint64_t most = s->extent_bytes * SLOTS_MAX_EXTENTS + head;
    if ((bytes - head) / s->extent_bytes > SLOTS_MAX_EXTENTS)
        return err_set(eb, ERR_INVALID,
                       "'%s' has extents of %llu bytes: of %llu bytes it can use %llu at most; ask "
                       "for less, or for a new file by --disk-reformat",
                       path, (ull)s->extent_bytes, (ull)bytes, (ull)most);
    if (s->extent_bytes / t->cfg.min_slot_bytes >= UINT16_MAX)
        return err_set(eb, ERR_INVALID,
                       "%llu bytes of disk are too many for slots from %u bytes on: raise "
                       "--min-slot-bytes",
                       (ull)bytes, t->cfg.min_slot_bytes);
    return 0;
}

static int check_geometry(const struct disk_tier *t, const char *path, struct errbuf *eb) {
    const struct disk_super *s = &t->super;
    if (t->cfg.extent_bytes && t->cfg.extent_bytes != s->extent_bytes)
        return err_set(eb, ERR_INVALID, "'%s' has extents of %llu bytes, not %llu; move it away",
                       path, (ull)s->extent_bytes, (ull)t->cfg.extent_bytes);
    if (t->cfg.min_slot_bytes != s->min_slot_bytes)
        return err_set(eb, ERR_INVALID,
                       "'%s' has a smallest slot of %u bytes, not %u; move it away, or ask for a "
                       "new file by --disk-reformat",
                       path, s->min_slot_bytes, t->cfg.min_slot_bytes);
    return check_size(t, path, s, eb);
}

/* ---- super block --------------------------------------------------------------------------- */

static int page_io(const struct disk_tier *t, bool write, uint8_t *buf, uint64_t off) {
    ssize_t n = write ? pwrite(t->fd, buf, DISK_PAGE, (off_t)off)
                      : pread(t->fd, buf, DISK_PAGE, (off_t)off);
    if (n != (ssize_t)DISK_PAGE)
        return n < 0 ? -errno : -EIO;
    return write && fdatasync(t->fd) < 0 ? -errno : 0;
}

/* One copy is synced before the other is touched: a whole one is there at any moment. */
static int write_super(struct disk_tier *t) {
    disk_super_encode(&t->super, t->format_buf);
    int rv = page_io(t, true, t->format_buf, 0);
    return rv < 0 ? rv : page_io(t, true, t->format_buf, DISK_PAGE);
}

static int new_store_id(struct disk_tier *t) {
    return getrandom(t->super.store_id, DISK_STORE_ID_BYTES, 0) == DISK_STORE_ID_BYTES ? 0 : -errno;
}

static int read_copy(struct disk_tier *t, uint64_t off, struct disk_super *ret) {
    int rv = page_io(t, false, t->format_buf, off);
    return rv < 0 ? rv : disk_super_decode(t->format_buf, ret);
}

/* The first copy is written first, so it is the newer one where both are whole. */
static int read_super(struct disk_tier *t, const char *path, struct errbuf *eb) {
    struct disk_super a, b;
    int rv_a = read_copy(t, 0, &a), rv_b = read_copy(t, DISK_PAGE, &b);
    if (rv_a == ERR_UNSUPPORTED || (rv_a < 0 && rv_b == ERR_UNSUPPORTED))
        return err_set(eb, ERR_UNSUPPORTED,
                       "'%s' is a block file of another format (this program writes format 2); it "
                       "was left as it is: move it away, or ask for a new one by --disk-reformat",
                       path);
    if (rv_a < 0 && rv_b < 0)
        return err_set(eb, ERR_UNAVAILABLE,
                       "'%s': both copies of its super block are broken (%s); it was left as it "
                       "is: move it away, or ask for a new one by --disk-reformat",
                       path, err_text(rv_a));
    t->super = rv_a == 0 ? a : b;
    uint8_t pages[2][DISK_PAGE];
    disk_super_encode(&t->super, pages[0]);
    if (rv_b == 0)
        disk_super_encode(&b, pages[1]);
    if (rv_a == 0 && rv_b == 0 && memcmp(pages[0], pages[1], DISK_PAGE) == 0)
        return 0;
    disk_super_encode(&t->super, t->format_buf);
    int rv = page_io(t, true, t->format_buf, rv_a == 0 ? DISK_PAGE : 0);
    (void)err_set(eb, 0, "one copy of the super block of '%s' was broken and %s", path,
                  rv < 0 ? "can't be written" : "is repaired");
    return 0;
}

/* ---- a new file ---------------------------------------------------------------------------- */

static int plan_new(struct disk_tier *t, const char *path, struct errbuf *eb) {
    t->super = (struct disk_super){.min_slot_bytes = t->cfg.min_slot_bytes,
                                   .extent_bytes = choose_extent(&t->cfg),
                                   .log_off = DISK_LOG_OFF,
                                   .log_bytes = log_bytes_new(&t->cfg),
                                   .node_number = DISK_NODE_NONE};
    return check_size(t, path, &t->super, eb);
}

static int fill_new(struct disk_tier *t, const char *path, struct errbuf *eb) {
    int rv = 0;
    if (ftruncate(t->fd, 0) < 0) /* what a start that was killed here has left */
        return err_set(eb, -errno, "empty '%s': %s", path, strerror(errno));
    rv = set_size(t, path, eb);
    if (rv < 0)
        return rv;
    rv = new_store_id(t);
    if (rv == 0)
        rv = write_super(t);
    if (rv == 0 && fsync(t->fd) < 0)
        rv = -errno;
    return rv < 0 ? err_set(eb, rv, "write '%s': %s", path, err_text(rv)) : 0;
}

static int sync_dir(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rv = fsync(fd) < 0 ? -errno : 0;
    close(fd);
    return rv;
}

static int make_file(struct disk_tier *t, const char *path, struct errbuf *eb) {
    char young[4096 + 8];
    snprintf(young, sizeof(young), "%s.new", path);
    int rv = plan_new(t, path, eb);
    if (rv == 0)
        rv = open_file(t, young, O_CREAT, eb);
    if (rv < 0)
        return rv;
    rv = fill_new(t, young, eb);
    if (rv == 0 && rename(young, path) < 0)
        rv = err_set(eb, -errno, "rename '%s': %s", young, strerror(errno));
    if (rv < 0) {
        (void)unlink(young);
        return rv;
    }
    rv = sync_dir(t->cfg.data_dir);
    return rv < 0 ? err_set(eb, rv, "sync '%s': %s", t->cfg.data_dir, err_text(rv)) : 0;
}

/* Everything that may refuse the file comes before its size is changed: shrinking loses blocks. */
static int use_file(struct disk_tier *t, const char *path, struct errbuf *eb) {
    struct stat st;
    if (fstat(t->fd, &st) < 0)
        return err_set(eb, -errno, "stat '%s': %s", path, strerror(errno));
    if (st.st_size < (off_t)DISK_LOG_OFF)
        return err_set(
            eb, ERR_UNAVAILABLE,
            "'%s' is no block file: it has %llu bytes, a super block alone %llu; move it "
            "away, or ask for a new one by --disk-reformat",
            path, (ull)st.st_size, (ull)DISK_LOG_OFF);
    int rv = read_super(t, path, eb);
    return rv < 0 ? rv : check_geometry(t, path, eb);
}

static int find_or_make(struct disk_tier *t, const char *path, struct errbuf *eb) {
    int rv = open_file(t, path, 0, eb);
    if (rv == -ENOENT) {
        eb->text[0] = '\0'; /* a text beside success is a warning, and this is none */
        return make_file(t, path, eb);
    }
    if (rv < 0)
        return rv;
    rv = use_file(t, path, eb);
    if (rv == 0)
        return set_size(t, path, eb);
    if (!t->cfg.reformat)
        return rv;
    if (plan_new(t, path, eb) < 0)
        return ERR_INVALID;
    /* Under its lock: nobody else has it open. Its room is free once it is closed. */
    if (unlink(path) < 0)
        return err_set(eb, -errno, "remove '%s': %s", path, strerror(errno));
    close_file(t);
    rv = make_file(t, path, eb);
    return rv < 0 ? rv
                  : err_set(eb, 0, "'%s' was refused, and is a new one by --disk-reformat", path);
}

/* ---- removal log --------------------------------------------------------------------------- */

static int read_log(struct disk_tier *t) {
    uint8_t *buf = aligned_alloc(DISK_PAGE, LOG_CHUNK_PAGES * (size_t)DISK_PAGE);
    if (!buf)
        return ERR_NOMEM;
    int rv = 0;
    uint32_t n = disk_tier_log_pages(t);
    for (uint32_t at = 0; rv == 0 && at < n; at += LOG_CHUNK_PAGES) {
        uint32_t pages = MIN(n - at, LOG_CHUNK_PAGES);
        struct disk_op op = {.kind = DISK_READ,
                             .fd = t->fd,
                             .buf = buf,
                             .off = t->super.log_off + (uint64_t)at * DISK_PAGE,
                             .len = pages * DISK_PAGE};
        disk_op_run(&op);
        rv = op.rv;
        for (uint32_t i = 0; rv == 0 && i < pages; i++)
            rv = t->cfg.log_decode(t->cfg.arg, at + i, buf + (size_t)i * DISK_PAGE);
    }
    free(buf);
    return rv;
}

/* The new store id first: from then on no extent is ours, whatever becomes of the log. */
static int open_empty(struct disk_tier *t, struct errbuf *eb) {
    int rv = new_store_id(t);
    if (rv == 0)
        rv = write_super(t);
    memset(t->format_buf, 0, DISK_PAGE);
    for (uint32_t i = 0; rv == 0 && i < disk_tier_log_pages(t); i++)
        if (pwrite(t->fd, t->format_buf, DISK_PAGE, (off_t)(t->super.log_off + i * DISK_PAGE)) !=
            (ssize_t)DISK_PAGE)
            rv = -errno;
    if (rv == 0 && fdatasync(t->fd) < 0)
        rv = -errno;
    return rv < 0 ? err_set(eb, ERR_UNAVAILABLE, "the disk tier can't be emptied: %s", err_text(rv))
                  : err_set(eb, 0, "the removal log can't be read: the disk tier starts empty");
}

/* What was removed must not come back: without the log nobody knows what that was. */
static int open_log(struct disk_tier *t, struct errbuf *eb) {
    uint32_t n = disk_tier_log_pages(t) * DISK_REMOVALS_A_PAGE;
    int rv = t->cfg.log_open(t->cfg.arg, n);
    if (rv == 0)
        rv = read_log(t);
    bool is_lost = rv < 0 && rv != ERR_NOMEM;
    if (is_lost)
        rv = t->cfg.log_open(t->cfg.arg, n);
    if (rv < 0)
        return err_set(eb, rv, "removal log");
    return is_lost ? open_empty(t, eb) : 0;
}

/* ---- the tier ------------------------------------------------------------------------------ */

static int tables(struct disk_tier *t, struct errbuf *eb) {
    uint64_t head = t->super.log_off + t->super.log_bytes;
    struct slots_cfg sc = {
        .base_off = head,
        .extent_bytes = t->super.extent_bytes,
        .n_extents = (uint32_t)((t->cfg.disk_bytes - head) / t->super.extent_bytes),
        .min_slot_bytes = t->cfg.min_slot_bytes,
        .head_bytes = DISK_PAGE,
        .table_entry_bytes = DISK_SLOT_HDR_BYTES,
    };
    int rv = slots_init(&t->slots, &sc);
    if (rv < 0)
        return err_set(eb, rv, "disk tier: %s", err_text(rv));
    t->pages_per_extent = (t->slots.max_per_extent + DISK_HDRS_A_PAGE - 1) / DISK_HDRS_A_PAGE;
    t->n_table_pages = sc.n_extents * t->pages_per_extent;
    t->n_pages = t->n_table_pages + disk_tier_log_pages(t);
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
    *t =
        (struct disk_tier){.cfg = *cfg, .fd = -1, .format_ext = UINT32_MAX, .clear_at = UINT64_MAX};
    list_init(&t->waits);
    list_init(&t->busy);
    char path[4096];
    if ((size_t)snprintf(path, sizeof(path), "%s/" FILE_NAME, cfg->data_dir) >= sizeof(path))
        return err_set(eb, ERR_INVALID, "data directory: name too long");
    t->format_buf = aligned_alloc(DISK_PAGE, DISK_PAGE);
    t->probe_buf = aligned_alloc(DISK_PAGE, 2 * DISK_PAGE);
    int rv = t->format_buf && t->probe_buf ? 0 : err_set(eb, ERR_NOMEM, "disk tier");
    if (rv == 0)
        rv = find_or_make(t, path, eb);
    if (rv == 0)
        rv = open_log(t, eb);
    if (rv == 0)
        rv = tables(t, eb);
    if (rv < 0)
        disk_tier_fini(t);
    return rv;
}

void disk_tier_fini(struct disk_tier *t) {
    close_file(t);
    slots_fini(&t->slots);
    free(t->side);
    free(t->extent_gen);
    free(t->queue);
    free(t->page_flags);
    free(t->round_bufs);
    free(t->format_buf);
    free(t->probe_buf);
    *t = (struct disk_tier){.fd = -1};
}
