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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    struct seen whole = read_stream(data + 1, size - 1, SIZE_MAX);
    struct seen pieces = read_stream(data + 1, size - 1, (size_t)data[0] + 1);
    CHECK(whole.n_frames == pieces.n_frames && whole.crc == pieces.crc &&
          whole.end == pieces.end);
    return 0;
}
