#include "common/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX_BYTES                                                                             \
    (16u << 20) /* a hundred thousand keys; a device that never ends is refused */
#define READ_BYTES (64u << 10)

/* --- memory --- */

static size_t whole_pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

void *secret_resize(void *p, size_t was, size_t bytes) {
    size_t from = whole_pages(was), to = whole_pages(MAX(bytes, (size_t)1));
    if (p && from == to)
        return p;
    /* mremap keeps the advice: it belongs to the mapping, which moves with its pages. */
    void *q = p ? mremap(p, from, to, MREMAP_MAYMOVE)
                : mmap(NULL, to, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (q == MAP_FAILED)
        return NULL;
    if (!p)
        (void)madvise(q, to, MADV_DONTDUMP);
    return q;
}

void secret_free(void *p, size_t bytes) {
    if (!p)
        return;
    size_t n = whole_pages(MAX(bytes, (size_t)1));
    explicit_bzero(p, n);
    munmap(p, n);
}

char *secret_dup(const void *p, size_t n) {
    char *copy = secret_resize(NULL, 0, n + 1);
    if (copy && n)
        memcpy(copy, p, n);
    return copy;
}

/* --- files --- */

static int file_error(const struct secret_file *f, struct errbuf *eb, int rv, const char *text) {
    return err_set(eb, rv, "%s '%s': %s", f->what, f->path, text);
}

int secret_file_error(const struct secret_file *f, struct errbuf *eb, const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(eb, ERR_INVALID, "%s '%s', line %u: %s", f->what, f->path, f->line, text);
}

static int read_all(struct secret_file *f, int fd, struct errbuf *eb) {
    for (;;) {
        if (f->cap - f->n < READ_BYTES) {
            char *more = secret_resize(f->text, f->cap, f->cap + 2 * READ_BYTES);
            if (!more)
                return file_error(f, eb, ERR_NOMEM, "out of memory");
            f->text = more;
            f->cap += 2 * READ_BYTES;
        }
        ssize_t k = read(fd, f->text + f->n, READ_BYTES);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return file_error(f, eb, -errno, err_text(-errno));
        f->n += (size_t)k;
        if (k == 0)
            return 0;
        if (f->n > FILE_MAX_BYTES)
            return file_error(f, eb, ERR_TOOBIG, "more than 16 MiB");
    }
}

/* Bytes that an editor does not show would make a key that never matches. */
static int check_text(struct secret_file *f, struct errbuf *eb) {
    struct str all = {f->text, f->n};
    if (str_starts(all, STR("\xff\xfe")) || str_starts(all, STR("\xfe\xff")))
        return file_error(f, eb, ERR_INVALID, "UTF-16; save it as UTF-8");
    f->at = str_starts(all, STR("\xef\xbb\xbf")) ? 3 : 0; /* byte order mark of UTF-8 */
    f->line = 1;
    for (size_t i = f->at, k; i < f->n; i += k) {
        char c = f->text[i];
        k = str_utf8_len(str_cut(all, i, f->n));
        if (k == 0)
            return secret_file_error(f, eb, "byte %u is not UTF-8", (unsigned)(uint8_t)c);
        if (k == 1 && ((unsigned char)c < 0x20 || c == 0x7f) && c != '\n' && !str_is_blank(c))
            return secret_file_error(f, eb, "control character %u", (unsigned)c);
        f->line += c == '\n';
    }
    f->line = 0;
    return 0;
}

int secret_file_open(struct secret_file *f, const char *what, const char *path, struct errbuf *warn,
                     struct errbuf *eb) {
    *f = (struct secret_file){.what = what, .path = path};
    if (warn)
        warn->text[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return file_error(f, eb, -errno, err_text(-errno));
    struct stat st;
    int rv = fstat(fd, &st) < 0 ? file_error(f, eb, -errno, err_text(-errno)) : 0;
    if (rv == 0 && S_ISREG(st.st_mode) && (st.st_mode & (S_IRGRP | S_IROTH)))
        (void)err_set(warn, 0, "%s '%s' may be read by %s (mode %03o); 0600 is enough", what, path,
                      st.st_mode & S_IROTH ? "everybody" : "its group",
                      (unsigned)(st.st_mode & 0777));
    if (rv == 0)
        rv = read_all(f, fd, eb);
    close(fd);
    if (rv == 0)
        rv = check_text(f, eb);
    if (rv < 0)
        secret_file_close(f);
    return rv;
}

bool secret_word(struct str *rest, struct str *ret) {
    size_t from = 0;
    while (from < rest->n && str_is_blank(rest->p[from]))
        from++;
    size_t to = from;
    while (to < rest->n && !str_is_blank(rest->p[to]))
        to++;
    *ret = str_cut(*rest, from, to - from);
    *rest = str_cut(*rest, to, rest->n);
    return ret->n > 0;
}

bool secret_file_next(struct secret_file *f, struct str *ret_line) {
    while (f->at < f->n) {
        const char *p = f->text + f->at, *end = memchr(p, '\n', f->n - f->at);
        size_t n = end ? (size_t)(end - p) : f->n - f->at;
        struct str line = {p, n}, rest = line, word;
        f->at += n + 1;
        f->line++;
        if (!secret_word(&rest, &word) || word.p[0] == '#')
            continue;
        while (str_is_blank(line.p[line.n - 1]))
            line.n--;
        *ret_line = (struct str){word.p, line.n - (size_t)(word.p - line.p)};
        return true;
    }
    return false;
}

void secret_file_close(struct secret_file *f) {
    secret_free(f->text, f->cap);
    *f = (struct secret_file){.what = f->what, .path = f->path, .line = f->line};
}
