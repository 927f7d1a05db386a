/* wire_cur.h - little-endian cursor with a sticky error, for fixed formats.
 *
 * After a short read every read gives 0 and err stays set, so a decoder is straight-line code with one
 * check at its end. No struct is ever cast onto bytes. Thread: one owner. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"

struct wire_cur {
    uint8_t *p; /* written through only by the put functions */
    size_t len, off;
    int err; /* 0 or ERR_CORRUPT */
};

static inline struct wire_cur wire_cur_read(const void *p, size_t len) {
    return (struct wire_cur){.p = (uint8_t *)(uintptr_t)p, .len = len};
}
static inline struct wire_cur wire_cur_write(void *p, size_t cap) {
    return (struct wire_cur){.p = p, .len = cap};
}
/* The next n bytes, or NULL with the error set. */
static inline uint8_t *wire_cur_bytes(struct wire_cur *c, size_t n) {
    if (c->err || n > c->len - c->off) {
        c->err = ERR_CORRUPT;
        return NULL;
    }
    uint8_t *at = c->p + c->off;
    c->off += n;
    return at;
}
static inline void wire_cur_skip(struct wire_cur *c, size_t n) {
    (void)wire_cur_bytes(c, n);
}
static inline uint64_t wire_cur_uint_(struct wire_cur *c, unsigned n) {
    const uint8_t *at = wire_cur_bytes(c, n);
    uint64_t v = 0;
    for (unsigned i = 0; at && i < n; i++)
        v |= (uint64_t)at[i] << (8 * i);
    return v;
}
static inline uint8_t wire_cur_u8(struct wire_cur *c) {
    return (uint8_t)wire_cur_uint_(c, 1);
}
static inline uint16_t wire_cur_u16(struct wire_cur *c) {
    return (uint16_t)wire_cur_uint_(c, 2);
}
static inline uint32_t wire_cur_u32(struct wire_cur *c) {
    return (uint32_t)wire_cur_uint_(c, 4);
}
static inline uint64_t wire_cur_u64(struct wire_cur *c) {
    return wire_cur_uint_(c, 8);
}
static inline void wire_cur_copy(struct wire_cur *c, void *dst, size_t n) {
    const uint8_t *at = wire_cur_bytes(c, n);
    if (at)
        memcpy(dst, at, n);
    else
        memset(dst, 0, n);
}
static inline void wire_cur_put_uint_(struct wire_cur *c, uint64_t v, unsigned n) {
    uint8_t *at = wire_cur_bytes(c, n);
    for (unsigned i = 0; at && i < n; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}
static inline void wire_cur_put_u8(struct wire_cur *c, uint8_t v) {
    wire_cur_put_uint_(c, v, 1);
}
static inline void wire_cur_put_u16(struct wire_cur *c, uint16_t v) {
    wire_cur_put_uint_(c, v, 2);
}
static inline void wire_cur_put_u32(struct wire_cur *c, uint32_t v) {
    wire_cur_put_uint_(c, v, 4);
}
static inline void wire_cur_put_u64(struct wire_cur *c, uint64_t v) {
    wire_cur_put_uint_(c, v, 8);
}
static inline void wire_cur_put(struct wire_cur *c, const void *src, size_t n) {
    uint8_t *at = wire_cur_bytes(c, n);
    if (at && n)
        memcpy(at, src, n);
}
static inline void wire_cur_put_zeros(struct wire_cur *c, size_t n) {
    uint8_t *at = wire_cur_bytes(c, n);
    if (at)
        memset(at, 0, n);
}
