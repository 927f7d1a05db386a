/* fuzz_wire_frame.c - bytes of a connection through the incremental reader, whole and in pieces.
 *
 * The first byte is the size of the pieces. Both ways must see the same frames and end the same way. */
#include "common/check.h"
#include "common/checksum.h"
#include "proto/wire_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct wire_limits lim = {.max_msg_bytes = 4096, .max_payload_bytes = 4096};

struct seen {
    uint32_t n_frames, crc;
    int64_t end; /* 0: bytes ran out, else the error */
};

static struct seen read_stream(const uint8_t *p, size_t n, size_t piece) {
    struct seen s = {0};
    size_t at = 0, have = 0; /* have: bytes after at that have "arrived" */
    while (s.end == 0) {
        struct wire_hdr h;
        int64_t r = wire_frame_read(&lim, p + at, have, &h);
        if (r < 0) {
            s.end = r;
            break;
        }
        size_t whole = r == 0 ? WIRE_HDR_BYTES + (size_t)h.msg_len + h.payload_len : 0;
        if (r == 0 && have >= whole) {
            s.n_frames++;
            s.crc = checksum_crc32c(s.crc, p + at, whole);
            at += whole;
            have -= whole;
            continue;
        }
        CHECK(r <= (int64_t)lim.max_msg_bytes + WIRE_HDR_BYTES);
        size_t left = n - at - have;
        if (left == 0)
            break;
        have += MIN(piece, left);
    }
    return s;
}

static void try_both(const uint8_t *p, size_t n, size_t piece) {
    struct seen whole = read_stream(p, n, SIZE_MAX);
    struct seen pieces = read_stream(p, n, piece);
    CHECK(whole.n_frames == pieces.n_frames && whole.crc == pieces.crc && whole.end == pieces.end);
}

static uint32_t get_u32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Makes each frame's CRC right, as far as frames follow each other; garbage has none that is. */
static void seal(uint8_t *p, size_t n) {
    for (size_t at = 0; n - at >= WIRE_HDR_BYTES;) {
        size_t msg_len = get_u32(p + at + 16), payload_len = get_u32(p + at + 20);
        if (msg_len > n - at - WIRE_HDR_BYTES)
            return;
        uint32_t crc = checksum_crc32c(0, p + at, WIRE_HDR_BYTES - 4);
        crc = checksum_crc32c(crc, p + at + WIRE_HDR_BYTES, msg_len);
        for (size_t i = 0; i < 4; i++)
            p[at + WIRE_HDR_BYTES - 4 + i] = (uint8_t)(crc >> 8 * i);
        at += WIRE_HDR_BYTES + msg_len;
        if (payload_len > n - at)
            return;
        at += payload_len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2)
        return 0;
    try_both(data + 1, size - 1, (size_t)data[0] + 1);
    uint8_t *sealed = malloc(size - 1);
    CHECK(sealed);
    memcpy(sealed, data + 1, size - 1);
    seal(sealed, size - 1);
    try_both(sealed, size - 1, (size_t)data[0] + 1);
    free(sealed);
    return 0;
}
