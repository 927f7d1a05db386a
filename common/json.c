#include "common/json.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>

#include "common/check.h"
#include "common/digest.h"

/* The code unit of "\uXXXX" at p, or -1. */
static int escaped_unit(const char *p, const char *end) {
    uint8_t b[2];
    char hex[5] = "";
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u')
        return -1;
    memcpy(hex, p + 2, 4);
    return digest_unhex(hex, 2, b) < 0 ? -1 : b[0] << 8 | b[1];
}

/* Behind the string that opens at p; lone surrogates in it become U+FFFD. */
static char *mend_string(char *p, const char *end) {
    for (p++; p < end && *p != '"'; p++) {
        if (*p != '\\')
            continue;
        int unit = escaped_unit(p, end), next = unit < 0 ? -1 : escaped_unit(p + 6, end);
        if (unit >= 0xd800 && unit < 0xdc00 && next >= 0xdc00 && next < 0xe000) {
            p += 11;
        } else if (unit >= 0xd800 && unit < 0xe000) {
            memcpy(p + 2, "fffd", 4);
            p += 5;
        } else {
            p++; /* what is escaped ends no string */
        }
    }
    return p < end ? p + 1 : p;
}

/* Behind the number at p. An integer that the library can't hold gets an exponent, a number beyond
 * double the largest one, in the room that it has. */
static char *mend_number(char *p, const char *end) {
    char *at = p + (*p == '-'), *q = at;
    bool is_int = true;
    for (; q < end && (isdigit((unsigned char)*q) || strchr(".eE+-", *q)); q++)
        is_int &= isdigit((unsigned char)*q) != 0;
    size_t n = (size_t)(q - at);
    if (n < 5 || *at == '0') /* neither is reached: 1e309 has five characters */
        return q;
    char *parsed;
    double v = strtod(at, &parsed); /* the text ends with a NUL */
    if (parsed != q)
        return q; /* no number at all: the parser's business */
    if (!isfinite(v) || n > 308) {
        memset(at + 2, '0', n - 2);
        memcpy(at, "1e", 2);
        memcpy(at + n - 3, "308", 3);
    } else if (is_int) {
        errno = 0;
        (void)strtoll(p, NULL, 10);
        if (errno == ERANGE) /* at least 19 digits: the last four are below a double's precision */
            memcpy(at + n - 4, "e004", 4);
    }
    return q;
}

/* In place, so that positions in messages stay true. ERR_TOOBIG: a comma or bracket for each value, and there are
 * too many. */
static int mend(char *p, const char *end) {
    uint32_t n_values = 0, n_nodes = 0;
    while (p < end && n_values <= JSON_MAX_VALUES && n_nodes <= JSON_MAX_NODES) {
        bool opens = *p == '[' || *p == '{';
        n_nodes += opens;
        n_values += opens || *p == ',';
        if (*p == '"')
            p = mend_string(p, end);
        else if (*p == '-' || isdigit((unsigned char)*p))
            p = mend_number(p, end);
        else
            p++;
    }
    return n_values > JSON_MAX_VALUES || n_nodes > JSON_MAX_NODES ? ERR_TOOBIG : 0;
}

int json_parse(struct str text, struct json_t **ret, struct errbuf *eb) {
    json_error_t e;
    char *copy = str_dup(text);
    if (!copy)
        return err_set(eb, ERR_NOMEM, "JSON of %zu bytes", text.n);
    if (mend(copy, copy + text.n) < 0) {
        free(copy);
        return err_set(eb, ERR_TOOBIG, "JSON of more than %u values, or %u arrays and objects",
                       JSON_MAX_VALUES, JSON_MAX_NODES);
    }
    json_t *j = json_loadb(copy, text.n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    free(copy);
    if (!j)
        return err_set(eb, ERR_INVALID, "JSON, line %d column %d: %s", e.line, e.column, e.text);
    *ret = j;
    return 0;
}

void json_free(struct json_t *doc) {
    json_decref(doc);
}

enum json_kind json_kind(const struct json_t *j) {
    if (!j)
        return JSON_KIND_NONE;
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return JSON_KIND_OBJECT;
    case JSON_ARRAY:
        return JSON_KIND_ARRAY;
    case JSON_STRING:
        return JSON_KIND_STRING;
    case JSON_INTEGER:
        return JSON_KIND_INT;
    case JSON_REAL:
        return JSON_KIND_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return JSON_KIND_BOOL;
    default:
        return JSON_KIND_NULL;
    }
}

const char *json_kind_name(enum json_kind k) {
    static const char *const names[] = {
        [JSON_KIND_NONE] = "nothing",   [JSON_KIND_NULL] = "null",
        [JSON_KIND_BOOL] = "a boolean", [JSON_KIND_INT] = "an integer",
        [JSON_KIND_REAL] = "a number",  [JSON_KIND_STRING] = "a string",
        [JSON_KIND_ARRAY] = "an array", [JSON_KIND_OBJECT] = "an object",
    };
    return (size_t)k < ARRAY_LEN(names) ? names[k] : "?";
}

const struct json_t *json_member(const struct json_t *obj, const char *key) {
    return json_is_object(obj) ? json_object_get(obj, key) : NULL;
}

const struct json_t *json_item(const struct json_t *arr, size_t i) {
    return json_is_array(arr) ? json_array_get(arr, i) : NULL;
}

size_t json_count(const struct json_t *j) {
    return json_is_array(j) ? json_array_size(j) : json_is_object(j) ? json_object_size(j) : 0;
}

struct str json_text(const struct json_t *j) {
    if (!json_is_string(j))
        return STR("");
    return (struct str){json_string_value(j), json_string_length(j)};
}

int64_t json_int(const struct json_t *j) {
    return json_is_integer(j) ? json_integer_value(j) : 0;
}

double json_num(const struct json_t *j) {
    return json_number_value(j);
}

bool json_truth(const struct json_t *j) {
    return json_is_true(j);
}

/* jansson's iterators take a non-const object but do not change it. */
static json_t *mutable(const struct json_t *j) {
    return (json_t *)(uintptr_t)j;
}

void *json_iter(const struct json_t *obj) {
    return json_is_object(obj) ? json_object_iter(mutable(obj)) : NULL;
}

void *json_iter_next(const struct json_t *obj, void *it) {
    return json_object_iter_next(mutable(obj), it);
}

const char *json_iter_key(void *it) {
    return json_object_iter_key(it);
}

const struct json_t *json_iter_value(void *it) {
    return json_object_iter_value(it);
}

void json_escape(struct strbuf *out, struct str s) {
    static const char short_form[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                      ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    size_t plain = 0; /* start of what can be copied as it is */
    for (size_t i = 0; i < s.n;) {
        unsigned char c = (unsigned char)s.p[i];
        size_t len = str_utf8_len(str_cut(s, i, 4));
        char esc = c < sizeof(short_form) ? short_form[c] : 0;
        if (len && c >= 0x20 && !esc && c != 0x7f) {
            i += len;
            continue;
        }
        strbuf_add(out, s.p + plain, i - plain);
        if (!len)
            strbuf_addz(out, "\xef\xbf\xbd"); /* U+FFFD for each bad byte */
        else if (esc)
            strbuf_addf(out, "\\%c", esc);
        else
            strbuf_addf(out, "\\u%04x", c);
        plain = ++i;
    }
    strbuf_add(out, s.p + plain, s.n - plain);
}

void json_w_init(struct json_w *w, struct strbuf *out) {
    *w = (struct json_w){.out = out};
}

static void before_value(struct json_w *w) {
    uint32_t level = BIT(w->depth);
    CHECK(w->after_key || !(w->is_obj & level)); /* a value in an object follows its key */
    if (!w->after_key && (w->filled & level))
        strbuf_addc(w->out, ',');
    w->filled |= level;
    w->after_key = false;
}

static void open_level(struct json_w *w, bool is_obj) {
    before_value(w);
    CHECK(w->depth < 31);
    strbuf_addc(w->out, is_obj ? '{' : '[');
    w->depth++;
    w->filled &= ~BIT(w->depth);
    w->is_obj = is_obj ? w->is_obj | BIT(w->depth) : w->is_obj & ~BIT(w->depth);
}

void json_w_obj(struct json_w *w) {
    open_level(w, true);
}

void json_w_arr(struct json_w *w) {
    open_level(w, false);
}

void json_w_end(struct json_w *w) {
    CHECK(w->depth > 0 && !w->after_key);
    strbuf_addc(w->out, w->is_obj & BIT(w->depth) ? '}' : ']');
    w->depth--;
}

void json_w_key(struct json_w *w, const char *key) {
    CHECK((w->is_obj & BIT(w->depth)) && !w->after_key);
    if (w->filled & BIT(w->depth))
        strbuf_addc(w->out, ',');
    strbuf_addc(w->out, '"');
    json_escape(w->out, str_of(key));
    strbuf_addz(w->out, "\":");
    w->after_key = true;
}

void json_w_str(struct json_w *w, struct str s) {
    before_value(w);
    strbuf_addc(w->out, '"');
    json_escape(w->out, s);
    strbuf_addc(w->out, '"');
}

void json_w_int(struct json_w *w, int64_t v) {
    before_value(w);
    strbuf_addf(w->out, "%" PRId64, v);
}

void json_w_u64(struct json_w *w, uint64_t v) {
    before_value(w);
    strbuf_addf(w->out, "%" PRIu64, v);
}

void json_w_num(struct json_w *w, double v) {
    char text[40];
    before_value(w);
    if (!isfinite(v)) {
        strbuf_addz(w->out, "null"); /* JSON has no other word for it */
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        double back = strtod(text, NULL);
        if (memcmp(&back, &v, sizeof(v)) == 0)
            break;
    }
    strbuf_addz(w->out, text);
    if (!strpbrk(text, ".e"))
        strbuf_addz(w->out, ".0"); /* stays a real when read back */
}

void json_w_bool(struct json_w *w, bool v) {
    before_value(w);
    strbuf_addz(w->out, v ? "true" : "false");
}

void json_w_null(struct json_w *w) {
    before_value(w);
    strbuf_addz(w->out, "null");
}

void json_w_raw(struct json_w *w, struct str json) {
    before_value(w);
    strbuf_adds(w->out, json);
}
