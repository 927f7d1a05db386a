/* str.h - borrowed string views and a growing string builder.
 *
 * A view is never NUL-terminated by contract. A builder remembers the first failed allocation (oom)
 * and ignores what follows, so that a renderer is straight-line code with one check at its end; its
 * text is always NUL-terminated. Thread: one owner. */
#pragma once

#include <stdarg.h>

#include "common/compiler.h"

struct str {
    const char *p;
    size_t n;
};

#define STR(lit) ((struct str){(lit), sizeof(lit) - 1})
#define STR_FMT "%.*s" /* printf("x=" STR_FMT, STR_ARG(s)) */
#define STR_ARG(s) ((int)MIN((s).n, (size_t)INT32_MAX)), (s).p

static inline struct str str_of(const char *z) {
    return (struct str){z ? z : "", z ? strlen(z) : 0};
}
static inline bool str_eq(struct str a, struct str b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}
bool str_eq_nocase(struct str a, struct str b); /* ASCII only */
bool str_starts(struct str s, struct str prefix);
bool str_ends(struct str s, struct str suffix);
/* Offset of the first needle at or after from, or SIZE_MAX. */
size_t str_find(struct str s, struct str needle, size_t from);
static inline bool str_is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}
struct str str_trim(struct str s);                      /* spaces, tabs, CR, LF off both ends */
struct str str_cut(struct str s, size_t off, size_t n); /* clamped sub-view */
/* Takes the text up to sep off the front of *rest into *ret; false when *rest was used up. "a,,b,"
 * gives "a", "", "b". Start with *rest = the whole text. */
bool str_split(struct str *rest, char sep, struct str *ret);
/* The whole view as a decimal number; ERR_INVALID for anything else, signs and spaces included. */
int str_to_u64(struct str s, uint64_t *ret);
/* The whole view as a finite number, in the C locale's form. */
int str_to_f64(struct str s, double *ret);
char *str_dup(struct str s); /* heap, NUL-terminated; NULL when out of memory */
/* True when s is well-formed UTF-8 (no surrogates, no overlong forms). */
bool str_is_utf8(struct str s);
/* Bytes of the well-formed sequence at the front, 0 when there is none. */
size_t str_utf8_len(struct str s);

struct strbuf {
    char *p; /* NULL until the first byte */
    size_t len, cap;
    bool oom; /* sticky */
};

static inline void strbuf_init(struct strbuf *b) {
    *b = (struct strbuf){0};
}
void strbuf_fini(struct strbuf *b);  /* empty again, reusable */
void strbuf_clear(struct strbuf *b); /* keeps the memory */
void strbuf_reserve(struct strbuf *b, size_t more);
void strbuf_add(struct strbuf *b, const void *p, size_t n);
void strbuf_addf(struct strbuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void strbuf_vaddf(struct strbuf *b, const char *fmt, va_list ap) PRINTF_LIKE(2, 0);
static inline void strbuf_addz(struct strbuf *b, const char *z) {
    strbuf_add(b, z, strlen(z));
}
static inline void strbuf_addc(struct strbuf *b, char c) {
    strbuf_add(b, &c, 1);
}
static inline void strbuf_adds(struct strbuf *b, struct str s) {
    strbuf_add(b, s.p, s.n);
}
static inline struct str strbuf_view(const struct strbuf *b) {
    return (struct str){b->p ? b->p : "", b->len};
}
/* The text, owned by the caller (free()); the builder is empty again. NULL when oom. */
char *strbuf_steal(struct strbuf *b);
