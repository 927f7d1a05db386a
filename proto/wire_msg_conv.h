/* wire_msg_conv.h - private to wire_msg*.c: one field list a message makes both conversions.
 *
 * A field list is a macro L(F) with rows F(KIND, field); the plain struct and the protobuf-c
 * struct use the same field names. Kinds:
 *   NUM    number                                BOOL   bool
 *   STR    char * (NULL encodes as "")           BYTES  struct msg_bytes of any length
 *   B16, B32   struct msg_bytes, 0 or 16 / 32 bytes, anything else is refused
 *   B16S, B128S   struct msg_bytes, any number of pieces of 16 / 128 bytes
 *   IDS    n_f, const struct block_id *f: one packed bytes of n_f * 32
 *   NUMS   n_f, const uint32_t or uint64_t *f
 *   MSGS   F(MSGS, f, sub): n_f, const struct msg_sub *f      MSG   F(MSG, f, sub): one embedded
 * Thread: any. Memory: the caller's bump arena. */
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "proto/wire_msg.h"

/* Unpacks into scratch; NULL when malformed, or with *ret_err = ERR_TOOBIG when scratch is too
 * small. */
const ProtobufCMessage *wire_conv_unpack(const ProtobufCMessageDescriptor *d, struct bump *scratch,
                                         const uint8_t *p, size_t n, int *ret_err);
/* Appends the packed message to dst, or ERR_TOOBIG. */
int wire_conv_pack(const ProtobufCMessage *pb, struct buf *dst);
int wire_conv_bad_len(struct errbuf *eb, const char *field, size_t len, size_t want);

#define WIRE_DEC_NUM(f) ret->f = pb->f;
#define WIRE_DEC_BOOL(f) ret->f = pb->f != 0;
#define WIRE_DEC_STR(f) ret->f = pb->f ? pb->f : "";
#define WIRE_DEC_BYTES(f) ret->f = (struct msg_bytes){pb->f.data, pb->f.len};
#define WIRE_DEC_FIXED(f, bytes)                                                                   \
    if (pb->f.len != 0 && pb->f.len != (bytes))                                                    \
        return wire_conv_bad_len(eb, #f, pb->f.len, bytes);                                        \
    WIRE_DEC_BYTES(f)
#define WIRE_DEC_B16(f) WIRE_DEC_FIXED(f, 16)
#define WIRE_DEC_B32(f) WIRE_DEC_FIXED(f, 32)
#define WIRE_DEC_PIECES(f, bytes)                                                                  \
    if (pb->f.len % (bytes) != 0)                                                                  \
        return wire_conv_bad_len(eb, #f, pb->f.len, bytes);                                        \
    WIRE_DEC_BYTES(f)
#define WIRE_DEC_B16S(f) WIRE_DEC_PIECES(f, 16)
#define WIRE_DEC_B128S(f) WIRE_DEC_PIECES(f, 128)
#define WIRE_DEC_IDS(f)                                                                            \
    if (pb->f.len % BLOCK_ID_BYTES != 0)                                                           \
        return wire_conv_bad_len(eb, #f, pb->f.len, BLOCK_ID_BYTES);                               \
    ret->n_##f = pb->f.len / BLOCK_ID_BYTES;                                                       \
    ret->f = (const struct block_id *)(const void *)pb->f.data;
#define WIRE_DEC_NUMS(f)                                                                           \
    ret->n_##f = pb->n_##f;                                                                        \
    ret->f = pb->f;
#define WIRE_DEC_MSGS(f, sub)                                                                      \
    ret->n_##f = pb->n_##f;                                                                        \
    ret->f = NULL;                                                                                 \
    if (pb->n_##f > 0) {                                                                           \
        struct msg_##sub *arr = bump_alloc(scratch, pb->n_##f * sizeof(*arr));                     \
        if (!arr)                                                                                  \
            return err_set(eb, ERR_TOOBIG, "%zu %s", pb->n_##f, #f);                               \
        ret->f = arr;                                                                              \
        for (size_t i = 0; i < pb->n_##f; i++) {                                                   \
            int rv = sub##_from_pb(scratch, pb->f[i], &arr[i], eb);                                \
            if (rv < 0)                                                                            \
                return rv;                                                                         \
        }                                                                                          \
    }
#define WIRE_DEC_MSG(f, sub)                                                                       \
    if (!pb->f)                                                                                    \
        return err_set(eb, ERR_PROTO, "%s is missing", #f);                                        \
    if (sub##_from_pb(scratch, pb->f, &ret->f, eb) < 0)                                            \
        return ERR_PROTO;
#define WIRE_DEC_NONE(f) ret->f = 0;
#define WIRE_DEC(kind, ...) WIRE_DEC_##kind(__VA_ARGS__)

/* protobuf-c takes pointers to non-const and does not write through them when packing. */
#define WIRE_ENC_NUM(f) pb->f = m->f;
#define WIRE_ENC_BOOL(f) pb->f = m->f;
#define WIRE_ENC_STR(f) pb->f = (char *)(uintptr_t)(m->f ? m->f : "");
#define WIRE_ENC_BYTES(f) pb->f = (ProtobufCBinaryData){m->f.n, (uint8_t *)(uintptr_t)m->f.p};
#define WIRE_ENC_B16(f) WIRE_ENC_BYTES(f)
#define WIRE_ENC_B32(f) WIRE_ENC_BYTES(f)
#define WIRE_ENC_B16S(f) WIRE_ENC_BYTES(f)
#define WIRE_ENC_B128S(f) WIRE_ENC_BYTES(f)
#define WIRE_ENC_IDS(f)                                                                            \
    pb->f = (ProtobufCBinaryData){m->n_##f * BLOCK_ID_BYTES, (uint8_t *)(uintptr_t)m->f};
#define WIRE_ENC_NUMS(f)                                                                           \
    pb->n_##f = m->n_##f;                                                                          \
    pb->f = (void *)(uintptr_t)m->f;
#define WIRE_ENC_MSGS(f, sub)                                                                      \
    pb->n_##f = m->n_##f;                                                                          \
    pb->f = NULL;                                                                                  \
    if (m->n_##f > 0) {                                                                            \
        pb->f = bump_alloc(scratch, m->n_##f * sizeof(pb->f[0]));                                  \
        __typeof__(pb->f[0]) arr = bump_alloc(scratch, m->n_##f * sizeof(*arr));                   \
        if (!pb->f || !arr)                                                                        \
            return ERR_TOOBIG;                                                                     \
        for (size_t i = 0; i < m->n_##f; i++) {                                                    \
            pb->f[i] = &arr[i];                                                                    \
            int rv = sub##_to_pb(scratch, &m->f[i], &arr[i]);                                      \
            if (rv < 0)                                                                            \
                return rv;                                                                         \
        }                                                                                          \
    }
#define WIRE_ENC_MSG(f, sub)                                                                       \
    pb->f = bump_alloc(scratch, sizeof(*pb->f));                                                   \
    if (!pb->f || sub##_to_pb(scratch, &m->f, pb->f) < 0)                                          \
        return ERR_TOOBIG;
#define WIRE_ENC_NONE(f)
#define WIRE_ENC(kind, ...) WIRE_ENC_##kind(__VA_ARGS__)

/* Both conversions of one message. name: ours; Pb: the generated type; pb: its function prefix. */
#define WIRE_CONV_DEFINE(name, Pb, pbname, FIELDS)                                                 \
    static int name##_from_pb(struct bump *scratch, const Pb *pb, struct msg_##name *ret,          \
                              struct errbuf *eb) {                                                 \
        (void)scratch, (void)pb, (void)eb;                                                         \
        FIELDS(WIRE_DEC)                                                                           \
        return 0;                                                                                  \
    }                                                                                              \
    static int name##_to_pb(struct bump *scratch, const struct msg_##name *m, Pb *pb) {            \
        (void)scratch, (void)m;                                                                    \
        pbname##__init(pb);                                                                        \
        FIELDS(WIRE_ENC)                                                                           \
        return 0;                                                                                  \
    }

/* And the public pair, for messages that stand at the top of a frame. */
#define WIRE_MSG_DEFINE(name, Pb, pbname, FIELDS)                                                  \
    WIRE_CONV_DEFINE(name, Pb, pbname, FIELDS)                                                     \
    int wire_msg_##name##_decode(struct bump *scratch, const uint8_t *p, size_t n,                 \
                                 struct msg_##name *ret, struct errbuf *eb) {                      \
        int rv = ERR_PROTO;                                                                        \
        const ProtobufCMessage *pb = wire_conv_unpack(&pbname##__descriptor, scratch, p, n, &rv);  \
        if (!pb)                                                                                   \
            return err_set(eb, rv, "malformed message " #name);                                    \
        rv = name##_from_pb(scratch, (const Pb *)(const void *)pb, ret, eb);                       \
        return rv < 0 ? err_wrap(eb, rv, #name) : 0;                                               \
    }                                                                                              \
    int wire_msg_##name##_encode(struct bump *scratch, const struct msg_##name *m,                 \
                                 struct buf *dst) {                                                \
        Pb pb;                                                                                     \
        int rv = name##_to_pb(scratch, m, &pb);                                                    \
        return rv < 0 ? rv : wire_conv_pack(&pb.base, dst);                                        \
    }
