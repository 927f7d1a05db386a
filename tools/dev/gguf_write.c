#include "tools/dev/gguf_write.h"

#include <errno.h>

#include "common/wire_cur.h"

void gguf_write_init(struct gguf_write *w) {
    *w = (struct gguf_write){.version = 3, .alignment = 32};
}

void gguf_write_fini(struct gguf_write *w) {
    if (w->file)
        (void)fclose(w->file);
    free(w->kv.p);
    free(w->dir.p);
    gguf_write_init(w);
}

static void put(struct gguf_write *w, struct gguf_write_buf *b, const void *p, size_t n) {
    if (w->err)
        return;
    if (b->len + n > b->cap) {
        size_t cap = MAX(2 * b->cap, b->len + n + 4096);
        uint8_t *grown = realloc(b->p, cap);
        if (!grown) {
            w->err = ERR_NOMEM;
            return;
        }
        b->p = grown;
        b->cap = cap;
    }
    if (n)
        memcpy(b->p + b->len, p, n);
    b->len += n;
}

static void put_uint(struct gguf_write *w, struct gguf_write_buf *b, uint64_t v, unsigned n) {
    uint8_t bytes[8];
    struct wire_cur c = wire_cur_write(bytes, sizeof(bytes));
    wire_cur_put_uint_(&c, v, n);
    put(w, b, bytes, n);
}

static void put_str(struct gguf_write *w, struct gguf_write_buf *b, const char *s, size_t n) {
    put_uint(w, b, n, 8);
    put(w, b, s, n);
}

static void begin_kv(struct gguf_write *w, const char *key, enum gguf_type type) {
    put_str(w, &w->kv, key, strlen(key));
    put_uint(w, &w->kv, type, 4);
    w->n_kv++;
}

static void begin_array(struct gguf_write *w, const char *key, enum gguf_type elem, size_t n) {
    begin_kv(w, key, GGUF_ARRAY);
    put_uint(w, &w->kv, elem, 4);
    put_uint(w, &w->kv, n, 8);
}

static uint32_t f32_bits(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}

void gguf_write_u32(struct gguf_write *w, const char *key, uint32_t v) {
    begin_kv(w, key, GGUF_U32);
    put_uint(w, &w->kv, v, 4);
}

void gguf_write_f32(struct gguf_write *w, const char *key, float v) {
    begin_kv(w, key, GGUF_F32);
    put_uint(w, &w->kv, f32_bits(v), 4);
}

void gguf_write_bool(struct gguf_write *w, const char *key, bool v) {
    begin_kv(w, key, GGUF_BOOL);
    put_uint(w, &w->kv, v, 1);
}

void gguf_write_str(struct gguf_write *w, const char *key, const char *v) {
    begin_kv(w, key, GGUF_STRING);
    put_str(w, &w->kv, v, strlen(v));
}

void gguf_write_str_array(struct gguf_write *w, const char *key, const char *const *v, size_t n) {
    begin_array(w, key, GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_str(w, &w->kv, v[i], strlen(v[i]));
}

void gguf_write_i32_array(struct gguf_write *w, const char *key, const int32_t *v, size_t n) {
    begin_array(w, key, GGUF_I32, n);
    for (size_t i = 0; i < n; i++)
        put_uint(w, &w->kv, (uint32_t)v[i], 4);
}

void gguf_write_f32_array(struct gguf_write *w, const char *key, const float *v, size_t n) {
    begin_array(w, key, GGUF_F32, n);
    for (size_t i = 0; i < n; i++)
        put_uint(w, &w->kv, f32_bits(v[i]), 4);
}

void gguf_write_kv(struct gguf_write *w, const struct gguf_kv *kv) {
    put_str(w, &w->kv, kv->key.p, kv->key.len);
    if (kv->is_array) {
        put_uint(w, &w->kv, GGUF_ARRAY, 4);
        put_uint(w, &w->kv, kv->type, 4);
        put_uint(w, &w->kv, kv->count, 8);
    } else {
        put_uint(w, &w->kv, kv->type, 4);
    }
    put(w, &w->kv, kv->data, kv->bytes);
    w->n_kv++;
}

void gguf_write_tensor(struct gguf_write *w, const char *name, uint32_t type, uint32_t n_dims,
                       const uint64_t *ne) {
    const struct gguf_tensor_type *ty = gguf_tensor_type(type);
    uint64_t n = 1;
    put_str(w, &w->dir, name, strlen(name));
    put_uint(w, &w->dir, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++) {
        put_uint(w, &w->dir, ne[d], 8);
        n *= ne[d];
    }
    put_uint(w, &w->dir, type, 4);
    put_uint(w, &w->dir, w->data_off, 8);
    w->n_tensors++;
    if (!ty) {
        w->err = w->err ? w->err : ERR_UNSUPPORTED;
        return;
    }
    uint64_t bytes = n / ty->block_items * ty->block_bytes;
    w->data_off += (bytes + w->alignment - 1) / w->alignment * w->alignment;
}

static void write_bytes(struct gguf_write *w, const void *p, size_t n) {
    if (!w->err && n && fwrite(p, 1, n, w->file) != n)
        w->err = errno ? -errno : ERR_NOSPACE;
}

int gguf_write_open(struct gguf_write *w, const char *path) {
    struct gguf_write_buf head = {NULL, 0, 0};
    put(w, &head, "GGUF", 4);
    put_uint(w, &head, w->version, 4);
    put_uint(w, &head, w->n_tensors, 8);
    put_uint(w, &head, w->n_kv, 8);
    if (!w->err && !(w->file = fopen(path, "wbe")))
        w->err = -errno;
    if (!w->err) {
        write_bytes(w, head.p, head.len);
        write_bytes(w, w->kv.p, w->kv.len);
        write_bytes(w, w->dir.p, w->dir.len);
        w->written = head.len + w->kv.len + w->dir.len;
        gguf_write_pad(w);
        w->written = 0;
    }
    free(head.p);
    return w->err;
}

void gguf_write_data(struct gguf_write *w, const void *p, size_t n) {
    write_bytes(w, p, n);
    w->written += n;
}

void gguf_write_pad(struct gguf_write *w) {
    while (!w->err && w->written % w->alignment != 0)
        gguf_write_data(w, "", 1);
}

int gguf_write_close(struct gguf_write *w) {
    if (!w->err && w->written != w->data_off)
        w->err = ERR_INVALID; /* data and directory disagree */
    if (w->file && fclose(w->file) != 0 && !w->err)
        w->err = -errno;
    w->file = NULL;
    return w->err;
}
