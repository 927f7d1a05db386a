/* gguf_file.c - a model file into memory of our own: its head, then its tensors front to back. */
#include "worker/model/gguf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD_FIRST_BYTES ((size_t)1 << 20)
#define HEAD_MAX_BYTES ((size_t)1 << 30) /* real heads: up to 20 MB, a vocabulary */
/* Hashed while it is still in the core's cache. */
#define PART_BYTES ((size_t)256 << 10)

struct gguf_file {
    int fd;
    struct gguf_file_id id;
    struct gguf *gguf;
};

static uint64_t time_ns(const struct timespec *t) {
    return (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec;
}

static struct gguf_file_id id_from_stat(const struct stat *st) {
    return (struct gguf_file_id){
        .dev = (uint64_t)st->st_dev,
        .ino = (uint64_t)st->st_ino,
        .size = (uint64_t)st->st_size,
        .mtime_ns = time_ns(&st->st_mtim),
        .ctime_ns = time_ns(&st->st_ctim),
    };
}

bool gguf_file_id_equal(const struct gguf_file_id *a, const struct gguf_file_id *b) {
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
           a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

int gguf_file_id_of(const char *path, struct gguf_file_id *ret) {
    struct stat st;
    if (stat(path, &st) < 0)
        return -errno;
    *ret = id_from_stat(&st);
    return 0;
}

/* n bytes from off, all of them. */
static int read_at(int fd, uint64_t off, uint8_t *dst, size_t n, struct errbuf *eb) {
    while (n) {
        ssize_t got = pread(fd, dst, n, (off_t)off);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set(eb, -errno, "read: %s", err_text(-errno));
        if (got == 0)
            return err_set(eb, ERR_CORRUPT, "the file was cut short while it was being read");
        dst += got;
        off += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

/* A head says nowhere how long it is: so many bytes, and twice as many while they are too few. */
static int read_head(struct gguf_file *f, struct errbuf *eb) {
    for (size_t cap = HEAD_FIRST_BYTES;; cap *= 2) {
        size_t n = (size_t)MIN((uint64_t)cap, f->id.size);
        uint8_t *bytes = malloc(n);
        bool is_short = false;
        if (!bytes)
            return err_set(eb, ERR_NOMEM, "head of %zu bytes", n);
        int rv = read_at(f->fd, 0, bytes, n, eb);
        if (rv == 0)
            rv = gguf_parse_head(&f->gguf, bytes, n, f->id.size, &is_short, eb);
        if (rv == 0)
            return 0;
        free(bytes);
        if (is_short && cap >= HEAD_MAX_BYTES)
            return err_set(eb, ERR_TOOBIG, "its metadata passes %zu bytes", HEAD_MAX_BYTES);
        if (!is_short)
            return rv;
    }
}

static int open_file(struct gguf_file *f, const char *path, struct errbuf *eb) {
    struct stat st;
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (f->fd < 0)
        return err_set(eb, -errno, "open: %s", err_text(-errno));
    if (fstat(f->fd, &st) < 0)
        return err_set(eb, -errno, "stat: %s", err_text(-errno));
    if (!S_ISREG(st.st_mode))
        return err_set(eb, ERR_INVALID, "not a regular file");
    if (st.st_size == 0)
        return err_set(eb, ERR_CORRUPT, "the file is empty");
    f->id = id_from_stat(&st);
    (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return read_head(f, eb);
}

int gguf_file_open(struct gguf_file **ret, const char *path, struct errbuf *eb) {
    struct gguf_file *f = calloc(1, sizeof(*f));
    if (!f)
        return err_set(eb, ERR_NOMEM, "gguf file");
    int rv = open_file(f, path, eb);
    if (rv < 0) {
        gguf_file_close(f);
        return err_wrap(eb, rv, "'%s'", path);
    }
    *ret = f;
    return 0;
}

void gguf_file_close(struct gguf_file *f) {
    if (!f)
        return;
    if (f->fd >= 0)
        (void)close(f->fd);
    gguf_free(f->gguf);
    free(f);
}

struct gguf *gguf_file_peek(struct gguf_file *f) {
    return f->gguf;
}

struct gguf *gguf_file_take(struct gguf_file *f) {
    return TAKE_PTR(f->gguf);
}

const struct gguf_file_id *gguf_file_id(const struct gguf_file *f) {
    return &f->id;
}

bool gguf_file_is_same(const struct gguf_file *f) {
    struct stat st;
    if (fstat(f->fd, &st) < 0)
        return false;
    struct gguf_file_id now = id_from_stat(&st);
    return gguf_file_id_equal(&now, &f->id);
}

int gguf_file_read(struct gguf_file *f, const struct gguf_tensor *t, void *dst, struct errbuf *eb) {
    return read_at(f->fd, t->off, dst, t->bytes, eb);
}

/* --- the walk --- */

struct walk {
    struct gguf_file *f;
    const struct gguf_walk *w;
    uint8_t *own;             /* as large as the largest tensor */
    uint64_t off;             /* all before it went into the digest */
    uint8_t part[PART_BYTES]; /* what lies between tensors and behind the last one */
};

/* n bytes from off into dst and the digest. */
static int read_range(struct walk *k, uint64_t off, uint8_t *dst, uint64_t n, struct errbuf *eb) {
    for (uint64_t at = 0; at < n;) {
        size_t part = (size_t)MIN(n - at, (uint64_t)PART_BYTES);
        int rv = read_at(k->f->fd, off + at, dst + at, part, eb);
        if (rv < 0)
            return rv;
        if (k->w->digest)
            digest_update(k->w->digest, dst + at, part);
        at += part;
    }
    return 0;
}

static int read_gap(struct walk *k, uint64_t to, struct errbuf *eb) {
    int rv = 0;
    while (k->w->digest && rv == 0 && k->off < to) {
        uint64_t n = MIN(to - k->off, (uint64_t)PART_BYTES);
        rv = read_range(k, k->off, k->part, n, eb);
        k->off += n;
    }
    return rv;
}

static int walk_tensor(struct walk *k, size_t i, struct errbuf *eb) {
    const struct gguf_tensor *t = gguf_tensor_at(k->f->gguf, i);
    uint8_t *dst = NULL;
    int rv = read_gap(k, t->off, eb);
    if (rv >= 0)
        rv = k->w->place(k->w->arg, i, &dst, eb);
    if (rv >= 0)
        rv = read_range(k, t->off, dst ? dst : k->own, t->bytes, eb);
    if (rv < 0)
        return rv;
    k->off = t->off + t->bytes;
    return k->w->take(k->w->arg, i, dst ? dst : k->own, eb);
}

/* The head that was parsed is what the digest gets, not what the file holds by now. */
static int walk_all(struct walk *k, struct errbuf *eb) {
    const struct gguf *g = k->f->gguf;
    size_t head_len, largest = 1;
    const uint8_t *head = gguf_head(g, &head_len);
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        largest = MAX(largest, gguf_tensor_at(g, i)->bytes);
    k->own = malloc(largest); /* pages that stay unused cost nothing */
    if (!k->own)
        return err_set(eb, ERR_NOMEM, "tensor of %zu bytes", largest);
    if (k->w->digest)
        digest_update(k->w->digest, head, head_len);
    k->off = head_len;
    int rv = 0;
    for (size_t i = 0; rv >= 0 && i < gguf_n_tensors(g); i++)
        rv = walk_tensor(k, i, eb);
    free(k->own);
    return rv < 0 ? rv : read_gap(k, k->f->id.size, eb);
}

int gguf_file_walk(struct gguf_file *f, const struct gguf_walk *w, struct errbuf *eb) {
    struct walk *k = malloc(sizeof(*k));
    if (!k)
        return err_set(eb, ERR_NOMEM, "walk");
    k->f = f;
    k->w = w;
    int rv = walk_all(k, eb);
    free(k);
    return rv;
}

int gguf_open(struct gguf **ret, const char *path, struct errbuf *eb) {
    struct gguf_file *f;
    int rv = gguf_file_open(&f, path, eb);
    if (rv < 0)
        return rv;
    *ret = gguf_file_take(f);
    gguf_file_close(f);
    return 0;
}
