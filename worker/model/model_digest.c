#include "worker/model/model_digest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define SETTLE_NS 2000000000ull

/* One line: everything that must match, then the digest. */
#define LINE_FORMAT                                                                                \
    "incipit-digest-2 dev=%" PRIu64 " ino=%" PRIu64 " size=%" PRIu64 " mtime=%" PRIu64             \
    " ctime=%" PRIu64 " parts=%" PRIu64 " "

static int format_line(char *dst, size_t cap, const struct gguf_file_id *id) {
    return snprintf(dst, cap, LINE_FORMAT, id->dev, id->ino, id->size, id->mtime_ns, id->ctime_ns,
                    id->parts);
}

/* false: no place to remember anything. */
static bool cache_dir(const struct model_digest_cfg *cfg, char *dst, size_t cap) {
    int n;
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cfg->cache_dir)
        n = snprintf(dst, cap, "%s", cfg->cache_dir);
    else if (xdg && xdg[0] == '/')
        n = snprintf(dst, cap, "%s/incipit", xdg);
    else if (home && home[0] == '/')
        n = snprintf(dst, cap, "%s/.cache/incipit", home);
    else
        return false;
    return n > 0 && (size_t)n < cap;
}

static bool cache_path(const struct model_digest_cfg *cfg, const char *dir, char *dst, size_t cap) {
    int n = snprintf(dst, cap, "%s/digest-%" PRIx64 "-%" PRIx64, dir, cfg->id.dev, cfg->id.ino);
    return n > 0 && (size_t)n < cap;
}

static bool read_line(const struct model_digest_cfg *cfg, const char *path,
                      uint8_t ret[DIGEST_BYTES]) {
    char want[256], have[512];
    int n = format_line(want, sizeof(want), &cfg->id);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, have, sizeof(have));
    (void)close(fd);
    if (got != (ssize_t)n + 2 * DIGEST_BYTES + 1 || have[got - 1] != '\n')
        return false;
    have[got - 1] = 0;
    return memcmp(have, want, (size_t)n) == 0 && digest_unhex(have + n, DIGEST_BYTES, ret) == 0;
}

/* mkdir -p; the last parts are made private, it is a user's cache. */
static void make_dirs(const char *dir) {
    char part[PATH_BYTES];
    size_t n = strlen(dir);
    if (n >= sizeof(part))
        return;
    memcpy(part, dir, n + 1);
    for (size_t i = 1; i <= n; i++)
        if (part[i] == '/' || part[i] == 0) {
            char c = part[i];
            part[i] = 0;
            (void)mkdir(part, 0700); /* mostly EEXIST; open() below tells the rest */
            part[i] = c;
        }
}

/* Written aside and renamed, so that a reader sees a whole line or none. */
static void write_line(const struct model_digest_cfg *cfg, const char *path,
                       const uint8_t digest[DIGEST_BYTES]) {
    char line[512], tmp[PATH_BYTES + 32], hex[2 * DIGEST_BYTES + 1];
    int n = format_line(line, sizeof(line), &cfg->id);
    digest_hex(digest, DIGEST_BYTES, hex);
    n += snprintf(line + n, sizeof(line) - (size_t)n, "%s\n", hex);
    int m = snprintf(tmp, sizeof(tmp), "%s.%ld", path, (long)getpid());
    if (m < 0 || (size_t)m >= sizeof(tmp))
        return;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return;
    bool ok = write(fd, line, (size_t)n) == n;
    ok = close(fd) == 0 && ok;
    if (!ok || rename(tmp, path) < 0)
        (void)unlink(tmp);
}

/* A place to remember the digest at, and a file that has settled. */
static bool find_place(const struct model_digest_cfg *cfg, char dir[PATH_BYTES],
                       char path[PATH_BYTES + 64]) {
    uint64_t newest = MAX(cfg->id.mtime_ns, cfg->id.ctime_ns);
    return (!cfg->cache_dir || cfg->cache_dir[0]) && cfg->now_ns >= SETTLE_NS &&
           newest <= cfg->now_ns - SETTLE_NS && cache_dir(cfg, dir, PATH_BYTES) &&
           cache_path(cfg, dir, path, PATH_BYTES + 64);
}

bool model_digest_recall(const struct model_digest_cfg *cfg, uint8_t ret[DIGEST_BYTES]) {
    char dir[PATH_BYTES], path[PATH_BYTES + 64];
    return find_place(cfg, dir, path) && read_line(cfg, path, ret);
}

void model_digest_remember(const struct model_digest_cfg *cfg, const uint8_t digest[DIGEST_BYTES]) {
    char dir[PATH_BYTES], path[PATH_BYTES + 64];
    if (!find_place(cfg, dir, path))
        return;
    make_dirs(dir);
    write_line(cfg, path, digest);
}
