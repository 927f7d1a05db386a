/* checksum.h - XXH3-64 for payloads, CRC32C for headers and messages.
 *
 * Not for adversaries: identity is SHA-256 (block_id.h); these find broken bytes.
 * Thread: any. */
#pragma once

#include "common/compiler.h"

uint64_t checksum_xxh3(const void *p, size_t n);

/* A block's payload is a run of ranges (one a layer), each with an XXH3-64 of its own. The block
 * checksum is XXH3-64 over (the range sums as u64 little-endian || the 32 bytes of the block's id),
 * so that bytes belong to their id: another block's bytes with their own sums do not fit. */
#define CHECKSUM_ID_BYTES 32
#define CHECKSUM_MAX_RANGES 512u /* of one block, on the wire and on disk */
#define CHECKSUM_RANGE_ALIGN 64u /* bytes of each range are a multiple of this */
uint64_t checksum_of_sums(const uint64_t *sums, size_t n, const uint8_t id[CHECKSUM_ID_BYTES]);
/* Writes ret_sums[n_ranges], returns the block checksum. */
uint64_t checksum_block(const void *payload, const uint32_t *range_sizes, size_t n_ranges,
                        const uint8_t id[CHECKSUM_ID_BYTES], uint64_t *ret_sums);

/* CRC-32C (Castagnoli, reflected, init and xor 0xffffffff); crc = 0 to begin, or the value so far. */
uint32_t checksum_crc32c(uint32_t crc, const void *p, size_t n);
