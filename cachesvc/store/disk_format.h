/* disk_format.h - what the disk file looks like, format 2. Pure: bytes in, structs out.
 *
 * Little-endian throughout; every header carries a CRC-32C over all its bytes before it.
 *
 *   file     super block (4096 bytes), the same again, removal log, then equal extents
 *   extent   extent header (4096 bytes), table of slot headers (512 bytes each, padded to 4096), slots
 *   slot     stored bytes, then at their length rounded up to 8 the trailer: n_ranges u64 XXH3-64 (one
 *            a range, of its raw bytes), then n_ranges u32 (where each range ends in the stored bytes),
 *            padded with zeros to slot_bytes
 *
 * Super block, 4096 bytes, in pages 0 and 1: one is written and synced before the other is touched
 *                                                                   off len
 *   magic          "INCIPIT2"                                         0   8
 *   version        2                                                  8   4
 *   min_slot_bytes smallest slot size                                12   4
 *   extent_bytes   size of an extent                                 16   8
 *   store_id       random, made with the file                        24  16
 *   pool_id        of the pool that the node joined, zero: none      40  16
 *   node_number    in that pool, 65535: none                         56   2
 *   reserved       zero                                              58   6
 *   log_off        where the removal log begins                      64   8
 *   log_bytes      its size, a multiple of 4096                      72   8
 *   reserved       zero                                              80 4012
 *   crc32c         over bytes 0..4091                              4092   4
 *
 * Removal record, 128 bytes; a record of zeros is free
 *   seq            rises with every record                            0   8
 *   before_ms      Unix ms: a block's put time lies in                8   8
 *   logged_ms      when it was written                               16   8
 *   from_ms        from_ms..before_ms, both inclusive                24   8
 *   kind           1 all, 2 writer, 3 id, 4 group                    32   2
 *   reserved       zero                                              34   6
 *   namespace      digest; zeros: every one (not with an id)         40  32
 *   key            id (32), writer (16) or group (8), then zeros     72  32
 *   reserved       zero                                             104  20
 *   crc32c         over bytes 0..123                                124   4
 *
 * Extent header, 4096 bytes
 *   magic          "INX1"                                             0   4
 *   version        1                                                  4   4
 *   slot_bytes     stored bytes and trailer, a multiple of 4096       8   4
 *   n_slots        entries of the table                              12   4
 *   generation     another one each time the extent changes hands    16   8
 *   store_id                                                         24  16
 *   reserved       zero                                              40 4052
 *   crc32c         over bytes 0..4091                              4092   4
 *
 * Slot header, 512 bytes: it never crosses a sector
 *   magic          "INS1"                                             0   4
 *   version        2                                                  4   2
 *   flags          bit 0: the parent belongs to another node          6   2
 *   extent_generation  another one than the extent's: ignored         8   8
 *   put_seq        rises with every commit of the store              16   8
 *   put_time_ms    Unix ms: when the block was first put anywhere    24   8
 *   namespace      digest                                            32  32
 *   id                                                               64  32
 *   parent         zero at depth 0                                   96  32
 *   writer         who computed it                                  128  16
 *   group          accounting group                                 144   8
 *   checksum       XXH3-64 over range checksums and id              152   8
 *   generation     of the slot: another one with each new content   160   8
 *   payload_len    raw bytes, a multiple of 64                      168   4
 *   n_ranges       ranges of the payload, 1 to 512                  172   4
 *   depth          of the block in its chain                        176   4
 *   encoding       0: raw                                           180   2
 *   reserved       zero                                             182   2
 *   stored_len     bytes in the slot; raw: payload_len              184   4
 *   reserved       zero                                             188 320
 *   crc32c         over bytes 0..507                                508   4
 * A slot header of zeros is an empty slot. */
#pragma once

#include "common/block_id.h"
#include "common/err.h"

#define DISK_PAGE 4096u
#define DISK_SLOT_HDR_BYTES 512u
#define DISK_HDRS_A_PAGE (DISK_PAGE / DISK_SLOT_HDR_BYTES)
#define DISK_STORE_ID_BYTES 16
#define DISK_SLOT_FOREIGN_PARENT 1u
#define DISK_LOG_OFF (2ull * DISK_PAGE)
#define DISK_REMOVAL_BYTES 128u
#define DISK_REMOVALS_A_PAGE (DISK_PAGE / DISK_REMOVAL_BYTES)
#define DISK_LOG_RECORDS 65536u /* of a new file */
#define DISK_NODE_NONE UINT16_MAX
#define DISK_ENC_RAW 0u
#define DISK_MAX_RANGES 512u
#define DISK_RANGE_ALIGN 64u

struct disk_super {
    uint32_t min_slot_bytes;
    uint64_t extent_bytes, log_off, log_bytes;
    uint8_t store_id[DISK_STORE_ID_BYTES], pool_id[DISK_STORE_ID_BYTES];
    uint16_t node_number;
};
enum disk_removal_kind {
    DISK_REMOVE_ALL = 1,
    DISK_REMOVE_WRITER = 2,
    DISK_REMOVE_ID = 3,
    DISK_REMOVE_GROUP = 4,
};
struct disk_removal {
    uint64_t seq, from_ms, before_ms, logged_ms;
    uint16_t kind;
    uint8_t ns[DIGEST_BYTES], key[32];
};
struct disk_extent_hdr {
    uint32_t slot_bytes, n_slots;
    uint64_t generation;
    uint8_t store_id[DISK_STORE_ID_BYTES];
};
struct disk_slot_hdr {
    uint16_t flags;
    uint64_t extent_generation, put_seq, put_time_ms, group, checksum, generation;
    uint8_t ns[DIGEST_BYTES];
    struct block_id id, parent;
    uint8_t writer[16];
    uint32_t payload_len, n_ranges, depth, stored_len;
    uint16_t encoding;
};

void disk_super_encode(const struct disk_super *s, uint8_t ret[DISK_PAGE]);
void disk_removal_encode(const struct disk_removal *r, uint8_t ret[DISK_REMOVAL_BYTES]);
void disk_extent_encode(const struct disk_extent_hdr *h, uint8_t ret[DISK_PAGE]);
void disk_slot_encode(const struct disk_slot_hdr *h, uint8_t ret[DISK_SLOT_HDR_BYTES]);

/* 0; ERR_NOTFOUND: no header there (zeros or something else); ERR_CORRUPT: ours but broken;
 * ERR_UNSUPPORTED: another version. Fields are checked for what can be checked without context. */
int disk_super_decode(const uint8_t p[DISK_PAGE], struct disk_super *ret);
int disk_removal_decode(const uint8_t p[DISK_REMOVAL_BYTES], struct disk_removal *ret);
int disk_extent_decode(const uint8_t p[DISK_PAGE], struct disk_extent_hdr *ret);
int disk_slot_decode(const uint8_t p[DISK_SLOT_HDR_BYTES], struct disk_slot_hdr *ret);

/* Where the trailer begins, and bytes of a slot that holds it too (not yet rounded to 4096). */
static inline uint64_t disk_trailer_off(uint32_t stored_len) {
    return ((uint64_t)stored_len + 7) / 8 * 8;
}
static inline uint64_t disk_slot_need(uint32_t stored_len, uint32_t n_ranges) {
    return disk_trailer_off(stored_len) + 12ull * n_ranges;
}
