/* gguf_value.c - typed reads of metadata values; the file's bounds were checked by gguf.c. */
#include "worker/model/gguf.h"

#include "common/check.h"
#include "common/wire_cur.h"

static uint64_t load_le(const uint8_t *p, unsigned n) {
    struct wire_cur c = wire_cur_read(p, n);
    return wire_cur_uint_(&c, n);
}

bool gguf_is_integer(enum gguf_type t) {
    return t != GGUF_F32 && t != GGUF_F64 && t != GGUF_STRING && t != GGUF_ARRAY && t != GGUF_BOOL;
}

int64_t gguf_elem_i64(const struct gguf_kv *kv, uint64_t i) {
    CHECK(i < kv->count && (gguf_is_integer(kv->type) || kv->type == GGUF_BOOL));
    switch (kv->type) {
    case GGUF_U8:
        return kv->data[i];
    case GGUF_BOOL:
        return kv->data[i] != 0;
    case GGUF_I8:
        return (int8_t)kv->data[i];
    case GGUF_U16:
        return (int64_t)load_le(kv->data + 2 * i, 2);
    case GGUF_I16:
        return (int16_t)load_le(kv->data + 2 * i, 2);
    case GGUF_U32:
        return (int64_t)load_le(kv->data + 4 * i, 4);
    case GGUF_I32:
        return (int32_t)load_le(kv->data + 4 * i, 4);
    default: /* U64 above INT64_MAX comes out negative */
        return (int64_t)load_le(kv->data + 8 * i, 8);
    }
}

uint64_t gguf_elem_u64(const struct gguf_kv *kv, uint64_t i) {
    return (uint64_t)gguf_elem_i64(kv, i);
}

float gguf_elem_f32(const struct gguf_kv *kv, uint64_t i) {
    CHECK(i < kv->count && (kv->type == GGUF_F32 || kv->type == GGUF_F64));
    if (kv->type == GGUF_F32) {
        uint32_t u = (uint32_t)load_le(kv->data + 4 * i, 4);
        float f;
        memcpy(&f, &u, 4);
        return f;
    }
    uint64_t u = load_le(kv->data + 8 * i, 8);
    double d;
    memcpy(&d, &u, 8);
    return (float)d;
}

bool gguf_str_next(struct gguf_str_iter *it, struct gguf_str *ret) {
    CHECK(it->kv->type == GGUF_STRING);
    if (it->i == it->kv->count)
        return false;
    size_t n = (size_t)load_le(it->kv->data + it->off, 8);
    *ret = (struct gguf_str){(const char *)it->kv->data + it->off + 8, n};
    it->off += 8 + n;
    it->i++;
    return true;
}

static int wrong_type(const char *key, const char *want, struct errbuf *eb) {
    return err_set(eb, ERR_INVALID, "key '%s' is not %s", key, want);
}

int gguf_get_u64(const struct gguf *g, const char *key, uint64_t *ret, struct errbuf *eb) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->is_array || !gguf_is_integer(kv->type))
        return wrong_type(key, "an integer", eb);
    int64_t v = gguf_elem_i64(kv, 0);
    if (v < 0 && kv->type != GGUF_U64)
        return wrong_type(key, "a non-negative integer", eb);
    *ret = (uint64_t)v;
    return 1;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret, struct errbuf *eb) {
    uint64_t v;
    int rv = gguf_get_u64(g, key, &v, eb);
    if (rv <= 0)
        return rv;
    if (v > UINT32_MAX)
        return wrong_type(key, "below 2^32", eb);
    *ret = (uint32_t)v;
    return 1;
}

int gguf_get_f32(const struct gguf *g, const char *key, float *ret, struct errbuf *eb) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (!kv->is_array && gguf_is_integer(kv->type)) { /* a whole number in an integer's type */
        int64_t v = gguf_elem_i64(kv, 0);
        if (v < -(1 << 24) || v > 1 << 24)
            return wrong_type(key, "a number that a float holds", eb);
        *ret = (float)v;
        return 1;
    }
    if (kv->is_array || (kv->type != GGUF_F32 && kv->type != GGUF_F64))
        return wrong_type(key, "a number", eb);
    *ret = gguf_elem_f32(kv, 0);
    return 1;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *ret, struct errbuf *eb) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->is_array || (kv->type != GGUF_BOOL && !gguf_is_integer(kv->type)))
        return wrong_type(key, "a bool", eb);
    int64_t v = gguf_elem_i64(kv, 0);
    if (v != 0 && v != 1)
        return wrong_type(key, "a bool (or 0 or 1)", eb);
    *ret = v;
    return 1;
}

int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *ret, struct errbuf *eb) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->is_array || kv->type != GGUF_STRING)
        return wrong_type(key, "a string", eb);
    struct gguf_str_iter it = {.kv = kv};
    (void)gguf_str_next(&it, ret);
    return 1;
}

int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type elem,
                   const struct gguf_kv **ret, struct errbuf *eb) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    bool fits = kv->type == elem || (elem == GGUF_F32 && kv->type == GGUF_F64);
    if (!kv->is_array || !fits)
        return wrong_type(key, elem == GGUF_STRING ? "an array of strings" : "an array of floats",
                          eb);
    *ret = kv;
    return 1;
}

int gguf_get_int_array(const struct gguf *g, const char *key, int64_t least, int64_t most,
                       const struct gguf_kv **ret, struct errbuf *eb) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (!kv->is_array || !gguf_is_integer(kv->type))
        return wrong_type(key, "an array of integers", eb);
    for (uint64_t i = 0; i < kv->count; i++) {
        int64_t v = gguf_elem_i64(kv, i);
        if (v < least || v > most || (kv->type == GGUF_U64 && v < 0))
            return err_set(eb, ERR_INVALID, "key '%s': element %llu is out of range (%lld to %lld)",
                           key, (unsigned long long)i, (long long)least, (long long)most);
    }
    *ret = kv;
    return 1;
}
