/* gguf_file.c - a model file into memory of our own: its head, then its tensors front to back. */
#include "worker/model/gguf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/checksum.h"

#define HEAD_FIRST_BYTES ((size_t)1 << 20)
#define HEAD_MAX_BYTES ((size_t)1 << 30) /* real heads: up to 20 MB, a vocabulary */
/* Hashed while it is still in the core's cache. */
#define PART_BYTES ((size_t)256 << 10)

/* Names of parts hold five digits. */
#define MAX_PARTS 99999u
#define PART_SUFFIX_LEN (sizeof("-00001-of-00002.gguf") - 1)

struct part {
    int fd;
    struct gguf_file_id id;
};

struct gguf_file {
    struct part *part; /* [n_parts] */
    uint32_t n_parts;
    struct gguf_file_id id; /* of all */
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
           a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns && a->parts == b->parts;
}

/* --- the names of a split model's parts --- */

/* Number and count in a part's name, both from 1. False: the name of a single file, and nothing is set. */
static bool parse_part_name(const char *path, uint32_t *ret_no, uint32_t *ret_count) {
    size_t n = strlen(path);
    char again[PART_SUFFIX_LEN + 1];
    if (n <= PART_SUFFIX_LEN)
        return false;
    const char *suffix = path + n - PART_SUFFIX_LEN;
    uint32_t no = (uint32_t)strtoul(suffix + 1, NULL, 10) % (MAX_PARTS + 1);
    uint32_t count = (uint32_t)strtoul(suffix + 10, NULL, 10) % (MAX_PARTS + 1);
    (void)snprintf(again, sizeof(again), "-%05u-of-%05u.gguf", no, count);
    if (strcmp(again, suffix) != 0)
        return false;
    *ret_no = no;
    *ret_count = count;
    return true;
}

size_t gguf_file_stem(const char *path) {
    uint32_t no, count;
    size_t n = strlen(path);
    if (parse_part_name(path, &no, &count))
        return n - PART_SUFFIX_LEN;
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0 ? n - 5 : n;
}

/* Part k from 0 of count beside path, itself the name of a part. Freed by the caller. */
static char *part_path(const char *path, uint32_t k, uint32_t count) {
    size_t stem = strlen(path) - PART_SUFFIX_LEN;
    char *p = malloc(stem + PART_SUFFIX_LEN + 1);
    if (p) {
        memcpy(p, path, stem);
        (void)snprintf(p + stem, PART_SUFFIX_LEN + 1, "-%05u-of-%05u.gguf", k + 1, count);
    }
    return p;
}

/* Adds a part to what stands for all before it; the first one starts it. */
static void fold_id(struct gguf_file_id *all, const struct gguf_file_id *part, uint32_t k) {
    if (k == 0) {
        *all = *part;
        return;
    }
    const struct gguf_file_id both[2] = {*all, *part};
    all->parts = checksum_xxh3(both, sizeof(both));
    all->size += part->size;
    all->mtime_ns = MAX(all->mtime_ns, part->mtime_ns);
    all->ctime_ns = MAX(all->ctime_ns, part->ctime_ns);
}

int gguf_file_id_of(const char *path, struct gguf_file_id *ret) {
    uint32_t no, count;
    bool is_split = parse_part_name(path, &no, &count) && count > 1;
    struct gguf_file_id all = {0};
    for (uint32_t k = 0; k < (is_split ? count : 1); k++) {
        struct stat st;
        char *other = is_split ? part_path(path, k, count) : NULL;
        int rv = is_split && !other ? -ENOMEM : stat(other ? other : path, &st) < 0 ? -errno : 0;
        free(other);
        if (rv < 0)
            return rv;
        const struct gguf_file_id id = id_from_stat(&st);
        fold_id(&all, &id, k);
    }
    *ret = all;
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
static int read_head(const struct part *p, struct gguf **ret, struct errbuf *eb) {
    for (size_t cap = HEAD_FIRST_BYTES;; cap *= 2) {
        size_t n = (size_t)MIN((uint64_t)cap, p->id.size);
        uint8_t *bytes = malloc(n);
        bool is_short = false;
        if (!bytes)
            return err_set(eb, ERR_NOMEM, "head of %zu bytes", n);
        int rv = read_at(p->fd, 0, bytes, n, eb);
        if (rv == 0)
            rv = gguf_parse_head(ret, bytes, n, p->id.size, &is_short, eb);
        if (rv == 0)
            return 0;
        free(bytes);
        if (is_short && cap >= HEAD_MAX_BYTES)
            return err_set(eb, ERR_TOOBIG, "its metadata passes %zu bytes", HEAD_MAX_BYTES);
        if (!is_short)
            return rv;
    }
}

static int open_part(struct part *p, const char *path, struct gguf **ret, struct errbuf *eb) {
    struct stat st;
    p->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (p->fd < 0)
        return err_set(eb, -errno, "open: %s", err_text(-errno));
    if (fstat(p->fd, &st) < 0)
        return err_set(eb, -errno, "stat: %s", err_text(-errno));
    if (!S_ISREG(st.st_mode))
        return err_set(eb, ERR_INVALID, "not a regular file");
    if (st.st_size == 0)
        return err_set(eb, ERR_CORRUPT, "the file is empty");
    p->id = id_from_stat(&st);
    (void)posix_fadvise(p->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return read_head(p, ret, eb);
}

/* The name and the head of the file that was asked for say the same, and that it is the first part. */
static int check_first(const char *path, const struct gguf_split *s, struct errbuf *eb) {
    uint32_t no = 1, count = 1;
    bool named = parse_part_name(path, &no, &count);
    if (!named && s->count > 1)
        return err_set(eb, ERR_INVALID,
                       "part %u of %u of a split model, but its name does not end in "
                       "-%05u-of-%05u.gguf: the other parts cannot be found",
                       s->no + 1, s->count, s->no + 1, s->count);
    if (no != s->no + 1 || count != s->count)
        return err_set(eb, ERR_CORRUPT, "its name says part %u of %u, its head part %u of %u", no,
                       count, s->no + 1, s->count);
    if (s->no != 0)
        return err_set(eb, ERR_INVALID,
                       "part %u of %u of a split model: name the first part instead", s->no + 1,
                       s->count);
    return 0;
}

static int open_other(struct gguf_file *f, const char *path, uint32_t k, struct gguf **ret,
                      struct errbuf *eb) {
    char *other = part_path(path, k, f->n_parts);
    if (!other)
        return err_set(eb, ERR_NOMEM, "part");
    int rv = open_part(&f->part[k], other, ret, eb);
    const struct gguf_split *s = rv == 0 ? gguf_split(*ret) : NULL;
    if (s && (s->no != k || s->count != f->n_parts))
        rv = err_set(eb, ERR_CORRUPT, "its head says part %u of %u", s->no + 1, s->count);
    if (rv < 0)
        rv = err_wrap(eb, rv, "part %u of %u, '%s'", k + 1, f->n_parts, other);
    free(other);
    return rv;
}

static int open_others(struct gguf_file *f, const char *path, struct errbuf *eb) {
    const uint32_t n = gguf_split(f->gguf)->count;
    struct gguf **rest = alloc_array(n, sizeof(struct gguf *));
    struct part *part = realloc(f->part, n * sizeof(*part));
    int rv = rest && part ? 0 : err_set(eb, ERR_NOMEM, "%u parts", n);
    if (part) {
        f->part = part;
        f->n_parts = n;
    }
    for (uint32_t k = 1; k < f->n_parts; k++)
        f->part[k].fd = -1;
    for (uint32_t k = 1; rv == 0 && k < f->n_parts; k++) {
        rv = open_other(f, path, k, &rest[k - 1], eb);
        fold_id(&f->id, &f->part[k].id, k);
    }
    if (rv == 0)
        rv = gguf_join(f->gguf, rest, f->n_parts - 1, eb);
    for (uint32_t k = 1; rest && rv < 0 && k < f->n_parts; k++)
        gguf_free(rest[k - 1]);
    free(rest);
    return rv;
}

static int open_file(struct gguf_file *f, const char *path, struct errbuf *eb) {
    f->part = calloc(1, sizeof(*f->part));
    if (!f->part)
        return err_set(eb, ERR_NOMEM, "gguf file");
    f->n_parts = 1;
    int rv = open_part(&f->part[0], path, &f->gguf, eb);
    if (rv == 0)
        rv = check_first(path, gguf_split(f->gguf), eb);
    if (rv < 0)
        return rv;
    f->id = f->part[0].id;
    return gguf_split(f->gguf)->count > 1 ? open_others(f, path, eb) : 0;
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
    for (uint32_t k = 0; k < f->n_parts; k++)
        if (f->part[k].fd >= 0)
            (void)close(f->part[k].fd);
    free(f->part);
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
    for (uint32_t k = 0; k < f->n_parts; k++) {
        struct stat st;
        if (fstat(f->part[k].fd, &st) < 0)
            return false;
        struct gguf_file_id now = id_from_stat(&st);
        if (!gguf_file_id_equal(&now, &f->part[k].id))
            return false;
    }
    return true;
}

int gguf_file_read(struct gguf_file *f, const struct gguf_tensor *t, void *dst, struct errbuf *eb) {
    return read_at(f->part[t->part].fd, t->off, dst, t->bytes, eb);
}

/* --- the walk --- */

struct walk {
    struct gguf_file *f;
    const struct gguf_walk *w;
    struct digest *digest;   /* of the part that is read; NULL: none is wanted */
    struct part *part;       /* that is read */
    uint8_t *own;            /* as large as the largest tensor */
    uint64_t off;            /* in the part; all before it went into the digest */
    uint8_t buf[PART_BYTES]; /* what lies between tensors and behind the last one */
};

/* n bytes from off into dst and the digest. */
static int read_range(struct walk *k, uint64_t off, uint8_t *dst, uint64_t n, struct errbuf *eb) {
    for (uint64_t at = 0; at < n;) {
        size_t part = (size_t)MIN(n - at, (uint64_t)PART_BYTES);
        int rv = read_at(k->part->fd, off + at, dst + at, part, eb);
        if (rv < 0)
            return rv;
        if (k->digest)
            digest_update(k->digest, dst + at, part);
        at += part;
    }
    return 0;
}

static int read_gap(struct walk *k, uint64_t to, struct errbuf *eb) {
    int rv = 0;
    while (k->digest && rv == 0 && k->off < to) {
        uint64_t n = MIN(to - k->off, (uint64_t)PART_BYTES);
        rv = read_range(k, k->off, k->buf, n, eb);
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

/* The tensors of part no, of which *i is the first. The head that was parsed is what the digest gets, not what
 * the file holds by now. */
static int walk_part(struct walk *k, uint32_t no, size_t *i, uint8_t ret[DIGEST_BYTES],
                     struct errbuf *eb) {
    const struct gguf *g = k->f->gguf;
    size_t head_len;
    const uint8_t *head = gguf_head(g, no, &head_len);
    k->part = &k->f->part[no];
    k->off = head_len;
    if (k->digest) {
        digest_begin(k->digest);
        digest_update(k->digest, head, head_len);
    }
    int rv = 0;
    for (; rv >= 0 && *i < gguf_n_tensors(g) && gguf_tensor_at(g, *i)->part == no; (*i)++)
        rv = walk_tensor(k, *i, eb);
    if (rv >= 0)
        rv = read_gap(k, k->part->id.size, eb);
    if (k->digest)
        digest_end(k->digest, ret);
    return rv;
}

static int walk_all(struct walk *k, struct errbuf *eb) {
    const struct gguf *g = k->f->gguf;
    const uint32_t n = k->f->n_parts;
    size_t largest = 1, i = 0;
    for (size_t t = 0; t < gguf_n_tensors(g); t++)
        largest = MAX(largest, gguf_tensor_at(g, t)->bytes);
    k->own = malloc(largest); /* pages that stay unused cost nothing */
    uint8_t(*digest)[DIGEST_BYTES] = alloc_array(n, DIGEST_BYTES);
    int rv = k->own && digest ? 0 : err_set(eb, ERR_NOMEM, "tensor of %zu bytes", largest);
    for (uint32_t no = 0; rv >= 0 && no < n; no++)
        rv = walk_part(k, no, &i, digest[no], eb);
    if (rv >= 0 && k->digest && n == 1)
        memcpy(k->w->ret_digest, digest, DIGEST_BYTES);
    else if (rv >= 0 && k->digest)
        digest_sha256(digest, (size_t)n * DIGEST_BYTES, k->w->ret_digest);
    free(digest);
    free(k->own);
    return rv < 0 ? rv : 0;
}

int gguf_file_walk(struct gguf_file *f, const struct gguf_walk *w, struct errbuf *eb) {
    struct walk *k = calloc(1, sizeof(*k));
    if (!k)
        return err_set(eb, ERR_NOMEM, "walk");
    k->f = f;
    k->w = w;
    k->digest = w->ret_digest ? digest_new() : NULL;
    int rv = w->ret_digest && !k->digest ? err_set(eb, ERR_NOMEM, "digest") : walk_all(k, eb);
    digest_free(k->digest);
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
