#include "common/str.h"

#include <math.h>

#include "common/err.h"

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

bool str_eq_nocase(struct str a, struct str b) {
    if (a.n != b.n)
        return false;
    for (size_t i = 0; i < a.n; i++)
        if (lower(a.p[i]) != lower(b.p[i]))
            return false;
    return true;
}

bool str_starts(struct str s, struct str prefix) {
    return s.n >= prefix.n && (prefix.n == 0 || memcmp(s.p, prefix.p, prefix.n) == 0);
}

bool str_ends(struct str s, struct str suffix) {
    return s.n >= suffix.n && str_starts(str_cut(s, s.n - suffix.n, suffix.n), suffix);
}

size_t str_find(struct str s, struct str needle, size_t from) {
    if (from > s.n)
        return SIZE_MAX;
    if (needle.n == 0)
        return from;
    if (s.n == 0) /* its p may be NULL */
        return SIZE_MAX;
    const char *at = memmem(s.p + from, s.n - from, needle.p, needle.n);
    return at ? (size_t)(at - s.p) : SIZE_MAX;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

struct str str_trim(struct str s) {
    while (s.n && is_blank(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n && is_blank(s.p[s.n - 1]))
        s.n--;
    return s;
}

struct str str_cut(struct str s, size_t off, size_t n) {
    if (off >= s.n)
        return (struct str){s.p + s.n, 0};
    return (struct str){s.p + off, MIN(n, s.n - off)};
}

bool str_split(struct str *rest, char sep, struct str *ret) {
    if (rest->n == 0)
        return false;
    const char *at = memchr(rest->p, sep, rest->n);
    size_t n = at ? (size_t)(at - rest->p) : rest->n;
    *ret = (struct str){rest->p, n};
    *rest = str_cut(*rest, n + 1, SIZE_MAX);
    return true;
}

int str_to_u64(struct str s, uint64_t *ret) {
    uint64_t v = 0;
    if (s.n == 0)
        return ERR_INVALID;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return ERR_INVALID;
        if (__builtin_mul_overflow(v, 10u, &v) ||
            __builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v))
            return ERR_INVALID;
    }
    *ret = v;
    return 0;
}

int str_to_f64(struct str s, double *ret) {
    char tmp[64], *end;
    /* strtod would also take blanks, hex, "inf" and "nan" */
    for (size_t i = 0; i < s.n; i++)
        if (!strchr("0123456789+-.eE", s.p[i]) || s.p[i] == '\0')
            return ERR_INVALID;
    if (s.n == 0 || s.n >= sizeof(tmp))
        return ERR_INVALID;
    memcpy(tmp, s.p, s.n);
    tmp[s.n] = '\0';
    double v = strtod(tmp, &end);
    if (*end != '\0' || end == tmp || !isfinite(v))
        return ERR_INVALID;
    *ret = v;
    return 0;
}

char *str_dup(struct str s) {
    char *z = malloc(s.n + 1);
    if (!z)
        return NULL;
    if (s.n)
        memcpy(z, s.p, s.n);
    z[s.n] = '\0';
    return z;
}

/* Bytes of the sequence at p (n > 0 bytes there), 0 when it is malformed: Unicode 15, table 3-7. */
static size_t utf8_len(const unsigned char *p, size_t n) {
    unsigned char lo = 0x80, hi = 0xbf;
    size_t len;
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        len = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        len = 3;
        lo = p[0] == 0xe0 ? 0xa0 : lo; /* no overlong form */
        hi = p[0] == 0xed ? 0x9f : hi; /* no surrogate */
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        len = 4;
        lo = p[0] == 0xf0 ? 0x90 : lo;
        hi = p[0] == 0xf4 ? 0x8f : hi; /* up to U+10FFFF */
    } else {
        return 0;
    }
    if (n < len || p[1] < lo || p[1] > hi)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

bool str_is_utf8(struct str s) {
    for (size_t i = 0; i < s.n;) {
        size_t len = utf8_len((const unsigned char *)s.p + i, s.n - i);
        if (!len)
            return false;
        i += len;
    }
    return true;
}

size_t str_utf8_len(struct str s) {
    return s.n ? utf8_len((const unsigned char *)s.p, s.n) : 0;
}

void strbuf_fini(struct strbuf *b) {
    free(b->p);
    strbuf_init(b);
}

void strbuf_clear(struct strbuf *b) {
    b->len = 0;
    b->oom = false;
    if (b->p)
        b->p[0] = '\0';
}

void strbuf_reserve(struct strbuf *b, size_t more) {
    if (b->oom || more < b->cap - b->len)
        return; /* strictly less: a NUL follows */
    size_t need;
    if (__builtin_add_overflow(b->len, more, &need) || need > SIZE_MAX / 2) {
        b->oom = true;
        return;
    }
    size_t cap = MAX(b->cap * 2, MAX(need + 1, (size_t)64));
    char *p = realloc(b->p, cap);
    if (!p) {
        b->oom = true;
        return;
    }
    b->p = p;
    b->cap = cap;
}

void strbuf_add(struct strbuf *b, const void *p, size_t n) {
    strbuf_reserve(b, n);
    if (b->oom)
        return;
    if (n)
        memcpy(b->p + b->len, p, n);
    b->len += n;
    b->p[b->len] = '\0';
}

void strbuf_vaddf(struct strbuf *b, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    strbuf_reserve(b, 128);
    if (!b->oom) {
        int n = vsnprintf(b->p + b->len, b->cap - b->len, fmt, ap);
        if (n >= 0 && (size_t)n >= b->cap - b->len) {
            b->p[b->len] = '\0';
            strbuf_reserve(b, (size_t)n + 1);
            if (!b->oom)
                n = vsnprintf(b->p + b->len, b->cap - b->len, fmt, again);
        }
        if (n >= 0 && !b->oom)
            b->len += (size_t)n;
    }
    va_end(again);
}

void strbuf_addf(struct strbuf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    strbuf_vaddf(b, fmt, ap);
    va_end(ap);
}

char *strbuf_steal(struct strbuf *b) {
    strbuf_add(b, "", 0); /* at least a NUL */
    char *p = b->oom ? NULL : TAKE_PTR(b->p);
    free(b->p);
    strbuf_init(b);
    return p;
}
