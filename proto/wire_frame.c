#include "proto/wire_frame.h"

#include "common/checksum.h"
#include "common/wire_cur.h"

#define HDR_CRC_OFF 28

const char *wire_method_name(uint16_t method) {
    switch (method) {
#define X(name, number, text)                                                                      \
    case number:                                                                                   \
        return text;
        WIRE_METHODS(X)
#undef X
    default:
        return "method";
    }
}

void wire_hdr_encode(const struct wire_hdr *hdr, const void *msg, uint8_t ret[WIRE_HDR_BYTES]) {
    struct wire_cur c = wire_cur_write(ret, WIRE_HDR_BYTES);
    wire_cur_put_u32(&c, WIRE_MAGIC);
    wire_cur_put_u8(&c, hdr->version);
    wire_cur_put_u8(&c, hdr->flags);
    wire_cur_put_u16(&c, hdr->method);
    wire_cur_put_u64(&c, hdr->request_id);
    wire_cur_put_u32(&c, hdr->msg_len);
    wire_cur_put_u32(&c, hdr->payload_len);
    wire_cur_put_u32(&c, hdr->deadline_ms);
    uint32_t crc = checksum_crc32c(0, ret, HDR_CRC_OFF);
    if (hdr->msg_len)
        crc = checksum_crc32c(crc, msg, hdr->msg_len);
    wire_cur_put_u32(&c, crc);
}

int wire_hdr_decode(const uint8_t p[WIRE_HDR_BYTES], struct wire_hdr *ret) {
    struct wire_cur c = wire_cur_read(p, WIRE_HDR_BYTES);
    uint32_t magic = wire_cur_u32(&c);
    ret->version = wire_cur_u8(&c);
    ret->flags = wire_cur_u8(&c);
    ret->method = wire_cur_u16(&c);
    ret->request_id = wire_cur_u64(&c);
    ret->msg_len = wire_cur_u32(&c);
    ret->payload_len = wire_cur_u32(&c);
    ret->deadline_ms = wire_cur_u32(&c);
    ret->crc32c = wire_cur_u32(&c);
    if (magic != WIRE_MAGIC)
        return ERR_PROTO;
    /* Before the flags: another version may give them other meanings. */
    if (ret->version != WIRE_VERSION)
        return ERR_UNSUPPORTED;
    return (ret->flags & ~WIRE_F_KNOWN) ? ERR_PROTO : 0;
}

/* The CRC covers the message as well, so it is a check of its own, after the message has arrived;
 * lengths were held against the limits before that. */
int wire_hdr_check_crc(const uint8_t raw[WIRE_HDR_BYTES], const void *msg, uint32_t msg_len) {
    struct wire_cur c = wire_cur_read(raw, WIRE_HDR_BYTES);
    wire_cur_skip(&c, HDR_CRC_OFF);
    uint32_t want = wire_cur_u32(&c);
    uint32_t crc = checksum_crc32c(0, raw, HDR_CRC_OFF);
    if (msg_len)
        crc = checksum_crc32c(crc, msg, msg_len);
    return crc == want ? 0 : ERR_CORRUPT;
}

int64_t wire_frame_read(const struct wire_limits *lim, const uint8_t *p, size_t n,
                        struct wire_hdr *ret) {
    if (n < WIRE_HDR_BYTES)
        return (int64_t)(WIRE_HDR_BYTES - n);
    int rv = wire_hdr_decode(p, ret);
    if (rv < 0)
        return rv;
    if (ret->msg_len > lim->max_msg_bytes || ret->payload_len > lim->max_payload_bytes)
        return ERR_TOOBIG;
    size_t whole = WIRE_HDR_BYTES + (size_t)ret->msg_len;
    if (n < whole)
        return (int64_t)(whole - n);
    return wire_hdr_check_crc(p, p + WIRE_HDR_BYTES, ret->msg_len);
}

/* One row an error that crosses the wire. Numbers are stable; several of ours may share none. */
static const struct {
    int rv;
    uint32_t code;
} err_codes[] = {
    {ERR_INVALID, 1},  {ERR_UNIMPLEMENTED, 2}, {ERR_BUSY, 3},         {ERR_NOTFOUND, 4},
    {ERR_DENIED, 5},   {ERR_CONFLICT, 6},      {ERR_TOOBIG, 7},       {ERR_TIMEOUT, 8},
    {ERR_CANCELED, 9}, {ERR_CORRUPT, 10},      {ERR_NOSPACE, 11},     {ERR_INTERNAL, 12},
    {ERR_PROTO, 13},   {ERR_UNSUPPORTED, 14},  {ERR_UNAVAILABLE, 15}, {ERR_EXISTS, 16},
};
#define ERR_CODE_INTERNAL 12u

/* Everything that is ours alone (out of memory, an errno) is INTERNAL outside. */
uint32_t wire_err_to_code(int rv) {
    for (size_t i = 0; i < ARRAY_LEN(err_codes); i++)
        if (err_codes[i].rv == rv)
            return err_codes[i].code;
    return ERR_CODE_INTERNAL;
}

int wire_err_from_code(uint32_t code) {
    for (size_t i = 0; i < ARRAY_LEN(err_codes); i++)
        if (err_codes[i].code == code)
            return err_codes[i].rv;
    return ERR_INTERNAL;
}
