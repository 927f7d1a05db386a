#include "common/log_format.h"

#include <inttypes.h>

#include "common/check.h"
#include "common/str.h"

#define VALUE_BYTES 1024u /* of one value, before quoting */
#define ROOM_AT_END 3u    /* a closing quote, a brace, the newline */

struct value {
    char text[VALUE_BYTES];
    size_t n;
    unsigned parts;  /* conversions and pieces of plain text */
    bool is_numeric; /* the last of them was a number in decimal */
};

struct args {
    va_list ap;
};

/* --- what a value looks like --- */

/* Length of the character at the front of s and whether it may stand as it is. */
static size_t look_at(struct str s, bool *ret_plain) {
    const unsigned char *c = (const unsigned char *)s.p;
    size_t k = str_utf8_len(s);
    *ret_plain = k > 1 || (k == 1 && *c >= 0x20 && *c != 0x7f);
    if (k == 2 && c[0] == 0xc2 && c[1] < 0xa0)
        *ret_plain = false; /* C1: one of them begins a terminal's control sequence */
    if (k == 3 && c[0] == 0xe2 &&
        ((c[1] == 0x80 && c[2] >= 0xa8 && c[2] <= 0xae) ||
         (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9)))
        *ret_plain = false; /* U+2028 to 202E, 2066 to 2069: line ends and writing directions */
    return k;
}

/* At most six bytes a character; returns its length in s. */
static size_t escape(struct str s, char ret[8]) {
    static const struct {
        char raw, shown;
    } short_forms[] = {{'"', '"'}, {'\\', '\\'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
    const unsigned char *c = (const unsigned char *)s.p;
    for (size_t i = 0; i < ARRAY_LEN(short_forms); i++)
        if (s.p[0] == short_forms[i].raw) {
            snprintf(ret, 8, "\\%c", short_forms[i].shown);
            return 1;
        }
    bool plain;
    size_t k = look_at(s, &plain);
    if (plain)
        snprintf(ret, 8, "%.*s", (int)k, s.p);
    else if (k == 0)
        snprintf(ret, 8, "\\ufffd");
    else
        snprintf(ret, 8, "\\u%04x",
                 k == 1   ? (unsigned)c[0]
                 : k == 2 ? (c[0] & 0x1fu) << 6 | (c[1] & 0x3fu)
                          : (c[0] & 0xfu) << 12 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu));
    return MAX(k, (size_t)1);
}

static bool needs_quotes(struct str s) {
    for (size_t i = 0, k; i < s.n; i += k) {
        bool plain;
        k = look_at(str_cut(s, i, s.n), &plain);
        if (!plain || s.p[i] == ' ' || s.p[i] == '=' || s.p[i] == '"')
            return true;
    }
    return s.n == 0;
}

/* --- the line --- */

static bool add(struct log_line *l, const char *p, size_t n) {
    if (l->is_full || l->cap - l->n < n + ROOM_AT_END) {
        l->is_full = true;
        return false;
    }
    memcpy(l->p + l->n, p, n);
    l->n += n;
    return true;
}

static void add_quoted(struct log_line *l, struct str s) {
    if (!add(l, "\"", 1))
        return;
    char text[8];
    for (size_t i = 0; i < s.n;) {
        i += escape(str_cut(s, i, s.n), text);
        if (!add(l, text, strlen(text)))
            break;
    }
    l->p[l->n++] = '"'; /* has its room at the end */
}

/* The key and what parts it from the value, whole or not at all. */
static bool add_key(struct log_line *l, struct str key) {
    size_t was = l->n;
    const char *before = l->n == 0 ? (l->json ? "{\"" : "") : l->json ? ",\"" : " ";
    if (l->cap - l->n > key.n + 16 && add(l, before, strlen(before)) && add(l, key.p, key.n) &&
        add(l, l->json ? "\":" : "=", l->json ? 2 : 1))
        return true;
    l->n = was;
    l->is_full = true;
    return false;
}

static void add_pair(struct log_line *l, struct str key, struct str value, bool is_number) {
    if (l->is_full || !add_key(l, key))
        return;
    bool fits = l->cap - l->n >= value.n + ROOM_AT_END;
    if (fits && (l->json ? is_number : !needs_quotes(value)))
        (void)add(l, value.p, value.n);
    else
        add_quoted(l, value); /* also what will be cut */
}

void log_line_begin(struct log_line *l, char *p, size_t cap, bool json) {
    *l = (struct log_line){.p = p, .cap = cap, .json = json};
}

void log_line_text(struct log_line *l, const char *key, const char *value) {
    add_pair(l, str_of(key), str_of(value), false);
}

void log_line_u64(struct log_line *l, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    add_pair(l, str_of(key), str_of(text), true);
}

void log_line_end(struct log_line *l) {
    if (l->json)
        l->p[l->n++] = '}';
    l->p[l->n++] = '\n';
}

/* --- printf, a value at a time --- */

static void grow(struct value *v, int n) {
    v->n = n < 0 ? v->n : MIN(v->n + (size_t)n, VALUE_BYTES - 1);
    v->parts++;
}

/* A number after '.' or for the width, or the next argument for '*', in decimal behind spec. */
static const char *add_number(const char *f, struct args *a, char *spec, size_t cap) {
    size_t n = strlen(spec);
    if (*f == '*') {
        int k = va_arg(a->ap, int);
        if (k < 0 && n && spec[n - 1] == '.')
            spec[n - 1] = '\0'; /* a negative precision is none */
        else
            snprintf(spec + n, cap - n, "%d", k);
        return f + 1;
    }
    size_t digits = strspn(f, "0123456789");
    snprintf(spec + n, cap - n, "%.*s", (int)digits, f);
    return f + digits;
}

/* One conversion; f is behind its '%'. Each argument is taken as its own type, since what a va_list is
 * after a call that used it is not defined. Returns what follows it. */
static const char *convert(const char *f, struct args *a, struct value *v) {
    _Static_assert(sizeof(long) == 8 && sizeof(intmax_t) == 8, "l, ll, z, j and t are one length");
    char spec[64] = "%", *at = v->text + v->n;
    size_t cap = VALUE_BYTES - v->n, flags = strspn(f, "-+ #0");
    snprintf(spec + 1, 8, "%.*s", (int)flags, f);
    f = add_number(f + flags, a, spec, 40);
    if (*f == '.') {
        snprintf(spec + strlen(spec), 2, ".");
        f = add_number(f + 1, a, spec, 56);
    }
    size_t length = strspn(f, "hljzt"), n = strlen(spec);
    bool is_long = length && *f != 'h';
    f += length;
    v->is_numeric = strchr("diufeg", *f) != NULL;
    switch (*f) {
    case 'd':
    case 'i':
        snprintf(spec + n, 3, "j%c", *f);
        grow(v, snprintf(at, cap, spec,
                         (intmax_t)(is_long ? va_arg(a->ap, long) : va_arg(a->ap, int))));
        break;
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        snprintf(spec + n, 3, "j%c", *f);
        grow(v, snprintf(
                    at, cap, spec,
                    (uintmax_t)(is_long ? va_arg(a->ap, unsigned long) : va_arg(a->ap, unsigned))));
        break;
    case 'c':
        snprintf(spec + n, 3, "c");
        grow(v, snprintf(at, cap, spec, va_arg(a->ap, int)));
        break;
    case 'e':
    case 'f':
    case 'g':
        snprintf(spec + n, 3, "%c", *f);
        grow(v, snprintf(at, cap, spec, va_arg(a->ap, double)));
        break;
    case 's': {
        const char *z = va_arg(a->ap, const char *);
        snprintf(spec + n, 3, "s");
        grow(v, snprintf(at, cap, spec, z ? z : "-"));
        break;
    }
    case 'p':
        grow(v, snprintf(at, cap, "%p", va_arg(a->ap, void *)));
        break;
    case '%':
        grow(v, snprintf(at, cap, "%%"));
        break;
    default:
        UNREACHABLE("a conversion that log lines do not have");
    }
    return f + 1;
}

static const char *format_value(const char *f, struct args *a, struct value *v) {
    v->n = v->parts = 0;
    v->is_numeric = false;
    while (*f && *f != ' ') {
        if (*f == '%') {
            f = convert(f + 1, a, v);
            continue;
        }
        size_t n = strcspn(f, " %");
        v->is_numeric = false;
        grow(v, snprintf(v->text + v->n, VALUE_BYTES - v->n, "%.*s", (int)n, f));
        f += n;
    }
    return f;
}

/* Of what printf makes of a number: "inf", "nan", "007", " 7" and "+7" are none in JSON. */
static bool is_json_number(const char *z) {
    z += *z == '-';
    return *z == '0' ? z[1] < '0' || z[1] > '9' : *z > '0' && *z <= '9';
}

void log_line_vpairs(struct log_line *l, const char *fmt, va_list ap) {
    struct args a;
    struct value v;
    va_copy(a.ap, ap);
    for (const char *f = fmt + strspn(fmt, " "); *f; f += strspn(f, " ")) {
        struct str key = {f, strcspn(f, "= ")};
        f = format_value(f + key.n + (f[key.n] == '='), &a, &v);
        add_pair(l, key, (struct str){v.text, v.n},
                 v.is_numeric && v.parts == 1 && is_json_number(v.text));
    }
    va_end(a.ap);
}
