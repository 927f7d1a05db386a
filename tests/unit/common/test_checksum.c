#include "common/checksum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/digest.h"
#include "common/err.h"

/* CRC-32C bit by bit: RFC 3720, appendix B.4 has the vectors. */
static uint32_t slow_crc32c(const uint8_t *p, size_t n) {
    uint32_t c = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
    }
    return ~c;
}

static void test_crc32c(void **state) {
    (void)state;
    uint8_t b[300];
    for (size_t i = 0; i < sizeof(b); i++)
        b[i] = (uint8_t)(i * 7 + 3);
    uint8_t zeros[32] = {0};
    assert_int_equal(checksum_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(checksum_crc32c(0, zeros, 32), 0x8a9136aa);
    for (size_t off = 0; off < 9; off++)
        for (size_t n = 0; n < 64; n++)
            assert_int_equal(checksum_crc32c(0, b + off, n), slow_crc32c(b + off, n));
    for (size_t cut = 0; cut <= sizeof(b); cut += 13) /* in two pieces */
        assert_int_equal(checksum_crc32c(checksum_crc32c(0, b, cut), b + cut, sizeof(b) - cut),
                         slow_crc32c(b, sizeof(b)));
}

static void test_xxh3_and_blocks(void **state) {
    (void)state;
    /* the example of proto/WIRE.md: two ranges of 64 and 128 bytes; sums by tests/golden/frames.py */
    static const uint32_t sizes[2] = {64, 128};
    uint8_t b[192], id[32], other[32] = {0};
    uint64_t r[2], all[CHECKSUM_MAX_RANGES] = {0};
    for (uint8_t i = 0; i < 192; i++)
        b[i] = i;
    for (uint8_t i = 0; i < 32; i++)
        id[i] = i;
    assert_true(checksum_block(b, sizes, 2, id, r) == 0xcec2d40f23060544ull);
    assert_true(r[0] == 0x6187eb9089b0ed55ull);
    assert_true(r[1] == 0x4e9e12f3c5267f30ull);
    assert_true(checksum_of_sums(r, 2, id) == 0xcec2d40f23060544ull);
    assert_true(checksum_xxh3("", 0) == 0x2d06800538d394c2ull); /* xxHash's own test vector */
    /* F23: another block's name over the same bytes and sums */
    assert_true(checksum_of_sums(r, 2, other) != 0xcec2d40f23060544ull);
    b[191] ^= 1;
    assert_true(checksum_block(b, sizes, 2, id, r) != 0xcec2d40f23060544ull);
    assert_true(checksum_of_sums(all, CHECKSUM_MAX_RANGES, id) !=
                checksum_of_sums(all, CHECKSUM_MAX_RANGES - 1, id));
}

static void test_sha256(void **state) {
    (void)state;
    uint8_t d[DIGEST_BYTES], back[DIGEST_BYTES];
    char hex[2 * DIGEST_BYTES + 1];
    digest_sha256("abc", 3, d); /* FIPS 180-4 */
    digest_hex(d, sizeof(d), hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(digest_unhex(hex, DIGEST_BYTES, back), 0);
    assert_memory_equal(d, back, sizeof(d));
    hex[5] = 'x';
    assert_int_equal(digest_unhex(hex, DIGEST_BYTES, back), ERR_INVALID);
    struct digest *c = digest_new();
    for (int round = 0; round < 2; round++) { /* a context may be used again */
        digest_begin(c);
        digest_update(c, "a", 1);
        digest_update(c, "", 0);
        digest_update(c, "bc", 2);
        digest_end(c, back);
        assert_memory_equal(d, back, sizeof(d));
    }
    digest_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c),
        cmocka_unit_test(test_xxh3_and_blocks),
        cmocka_unit_test(test_sha256),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
