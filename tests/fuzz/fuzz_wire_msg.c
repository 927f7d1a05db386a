/* fuzz_wire_msg.c - a message through its decoder; what decodes must encode, and decode to the same again.
 *
 * The first byte chooses the message type. */
#include "common/check.h"
#include "tests/unit/proto/wire_samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ARENA_BYTES (64u << 10)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0 || size > 16384)
        return 0;
    const struct wire_sample *s = &wire_samples[data[0] % n_wire_samples];
    struct bump dec, enc;
    uint64_t m[WIRE_SAMPLE_STRUCT_BYTES / 8], again[WIRE_SAMPLE_STRUCT_BYTES / 8];
    CHECK(bump_init(&dec, ARENA_BYTES) == 0 && bump_init(&enc, 4 * ARENA_BYTES) == 0);
    struct buf *a = buf_new(4 * ARENA_BYTES), *b = buf_new(4 * ARENA_BYTES);
    CHECK(a && b);
    if (s->decode(&dec, data + 1, size - 1, m, NULL) == 0) {
        CHECK(s->encode(&enc, m, a) == 0);
        bump_reset(&enc);
        CHECK(s->decode(&enc, a->data, a->len, again, NULL) == 0);
        bump_reset(&dec);
        CHECK(s->encode(&dec, again, b) == 0 || dec.used > ARENA_BYTES / 2);
        CHECK(b->len == 0 || (a->len == b->len && memcmp(a->data, b->data, a->len) == 0));
    }
    buf_unref(a);
    buf_unref(b);
    bump_fini(&dec);
    bump_fini(&enc);
    return 0;
}
