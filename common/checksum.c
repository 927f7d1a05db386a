#include "common/checksum.h"

#include <xxhash.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
/* The library's plain entry points are SSE2; these choose AVX2 or AVX-512 by CPUID (2.5 times as
 * fast) and take the same names. */
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif
#endif

#include "common/check.h"

uint64_t checksum_xxh3(const void *p, size_t n) {
    return XXH3_64bits(p, n);
}

uint64_t checksum_of_sums(const uint64_t *sums, size_t n, const uint8_t id[CHECKSUM_ID_BYTES]) {
    /* Through bytes, so that a big-endian host would compute the same. */
    uint8_t bytes[8 * CHECKSUM_MAX_RANGES + CHECKSUM_ID_BYTES];
    CHECK(n <= CHECKSUM_MAX_RANGES);
    for (size_t i = 0; i < n; i++)
        for (unsigned b = 0; b < 8; b++)
            bytes[8 * i + b] = (uint8_t)(sums[i] >> (8 * b));
    memcpy(bytes + 8 * n, id, CHECKSUM_ID_BYTES);
    return XXH3_64bits(bytes, 8 * n + CHECKSUM_ID_BYTES);
}

uint64_t checksum_block(const void *payload, const uint32_t *range_sizes, size_t n_ranges,
                        const uint8_t id[CHECKSUM_ID_BYTES], uint64_t *ret_sums) {
    const uint8_t *p = payload;
    for (size_t i = 0; i < n_ranges; p += range_sizes[i++])
        ret_sums[i] = XXH3_64bits(p, range_sizes[i]);
    return checksum_of_sums(ret_sums, n_ranges, id);
}

/* Bitwise table for CPUs without the instruction; polynomial 0x1EDC6F41 reflected (RFC 3720, B.4).
 * */
static uint32_t crc32c_soft(uint32_t crc, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++)
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_hw(uint32_t crc, const uint8_t *p,
                                                            size_t n) {
    uint64_t c = crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        c = _mm_crc32_u64(c, v);
    }
    uint32_t c32 = (uint32_t)c;
    for (; n; p++, n--)
        c32 = _mm_crc32_u8(c32, *p);
    return c32;
}
#endif

uint32_t checksum_crc32c(uint32_t crc, const void *p, size_t n) {
    crc = ~crc;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc32c_hw(crc, p, n);
#endif
    return ~crc32c_soft(crc, p, n);
}
