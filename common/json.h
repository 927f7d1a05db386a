/* json.h - reading through jansson behind names of our own, writing straight into a strbuf.
 *
 * Only json.c includes jansson. Values handed out are borrowed from the document and live as long
 * as it. Duplicate keys, a NUL in a key and invalid UTF-8 are refused. What is JSON but fits no type of
 * ours is read as near as it goes, so that whoever knows the field can judge it: an integer beyond int64
 * is a REAL, a number beyond double is +-1e308, an escaped surrogate without its other half is U+FFFD.
 * Thread: one owner a document. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"
#include "common/str.h"

struct json_t; /* jansson's; opaque here */

enum json_kind {
    JSON_KIND_NONE, /* NULL: no such member */
    JSON_KIND_NULL,
    JSON_KIND_BOOL,
    JSON_KIND_INT,
    JSON_KIND_REAL,
    JSON_KIND_STRING,
    JSON_KIND_ARRAY,
    JSON_KIND_OBJECT
};

/* A value costs 40 to 130 bytes of memory, an array or object 130 to 230, though two characters can write it: so a
 * document costs no more than some 140 MiB beside its texts. A prompt of a million token ids fits. */
#define JSON_MAX_VALUES (1u << 20)
#define JSON_MAX_NODES (1u << 16) /* of these arrays and objects */

/* ERR_INVALID with line and column in eb; ERR_TOOBIG: more values than may be. */
int json_parse(struct str text, struct json_t **ret, struct errbuf *eb);
void json_free(struct json_t *doc);
static inline void json_freep(struct json_t **doc) {
    json_free(*doc);
    *doc = NULL;
}

/* All of these take NULL and give NONE, NULL, 0 or "". */
enum json_kind json_kind(const struct json_t *j);
const char *json_kind_name(enum json_kind k); /* "an integer", for messages */
const struct json_t *json_member(const struct json_t *obj, const char *key);
const struct json_t *json_item(const struct json_t *arr, size_t i);
size_t json_count(const struct json_t *arr_or_obj);
struct str json_text(const struct json_t *j); /* NUL-terminated behind n */
int64_t json_int(const struct json_t *j);
double json_num(const struct json_t *j); /* INT or REAL */
bool json_truth(const struct json_t *j);
static inline bool json_is_num(const struct json_t *j) {
    return json_kind(j) == JSON_KIND_INT || json_kind(j) == JSON_KIND_REAL;
}

/* Members of an object in file order: for (it = json_iter(o); it; it = json_iter_next(o, it)). */
void *json_iter(const struct json_t *obj);
void *json_iter_next(const struct json_t *obj, void *it);
const char *json_iter_key(void *it);
const struct json_t *json_iter_value(void *it);

/* Writer: commas and quotes are its business, order is the caller's.
 *     json_w_init(&w, &out); json_w_obj(&w); json_w_key(&w, "n"); json_w_int(&w, 3); json_w_end(&w); */
struct json_w {
    struct strbuf *out;
    uint32_t depth;  /* at most 31; beyond aborts */
    uint32_t is_obj; /* bit per level */
    uint32_t filled; /* bit per level: a comma is due */
    bool after_key;
};

void json_w_init(struct json_w *w, struct strbuf *out);
void json_w_obj(struct json_w *w);
void json_w_arr(struct json_w *w);
void json_w_end(struct json_w *w); /* closes the innermost */
void json_w_key(struct json_w *w, const char *key);
void json_w_str(struct json_w *w, struct str s); /* bytes that are not UTF-8 become U+FFFD */
void json_w_int(struct json_w *w, int64_t v);
void json_w_u64(struct json_w *w, uint64_t v);
void json_w_num(struct json_w *w, double v); /* shortest form that reads back; not finite: null */
void json_w_bool(struct json_w *w, bool v);
void json_w_null(struct json_w *w);
void json_w_raw(struct json_w *w, struct str json); /* a finished value */
static inline void json_w_strz(struct json_w *w, const char *z) {
    json_w_str(w, str_of(z));
}
static inline void json_w_kstr(struct json_w *w, const char *k, struct str s) {
    json_w_key(w, k);
    json_w_str(w, s);
}
static inline void json_w_kint(struct json_w *w, const char *k, int64_t v) {
    json_w_key(w, k);
    json_w_int(w, v);
}

/* Appends s escaped, without quotes; the text of an event stream holds no raw newline after it. */
void json_escape(struct strbuf *out, struct str s);
