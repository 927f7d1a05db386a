/* checksum.h - XXH3-64 for payloads, CRC32C for headers and messages.
 *
 * Not for adversaries: identity is SHA-256 (block_id.h); these find broken bytes.
 * Thread: any. */
#pragma once

#include "common/compiler.h"

uint64_t checksum_xxh3(const void *p, size_t n);

/* Streaming XXH3-64, for bytes that arrive in pieces. */
struct checksum_stream; /* opaque, heap */
struct checksum_stream *checksum_stream_new(void);
void checksum_stream_free(struct checksum_stream *s);
void checksum_stream_reset(struct checksum_stream *s);
void checksum_stream_update(struct checksum_stream *s, const void *p, size_t n);
uint64_t checksum_stream_digest(const struct checksum_stream *s);

/* XXH3-64 over a list of range checksums as little-endian u64: a block's checksum (design: one XXH3-64
 * per layer, the block checksum over the list of them). */
uint64_t checksum_of_list(const uint64_t *ranges, size_t n);

/* Payload of n_ranges equal ranges: writes ranges[n_ranges], returns the block checksum. */
uint64_t checksum_block(const void *payload, size_t range_bytes, size_t n_ranges, uint64_t *ranges);

/* CRC-32C (Castagnoli, reflected, init and xor 0xffffffff); crc = 0 to begin, or the value so far. */
uint32_t checksum_crc32c(uint32_t crc, const void *p, size_t n);
