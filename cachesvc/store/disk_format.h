/* disk_format.h - what the disk file looks like. Pure: bytes in, structs out.
 *
 * Little-endian throughout; every header carries a CRC-32C over all its bytes before it.
 *
 *   file     super block (4096 bytes), then equal extents
 *   extent   extent header (4096 bytes), table of slot headers (512 bytes each, padded to 4096), slots
 *   slot     payload, then its trailer: n_ranges u64 XXH3-64 (one a range), then n_ranges u32 (where
 *            each range ends in the payload), padded with zeros to slot_bytes
 *
 * Super block, 4096 bytes                                           off len
 *   magic          "INCIPIT1"                                         0   8
 *   version        1                                                  8   4
 *   min_slot_bytes smallest slot size                                12   4
 *   extent_bytes   size of an extent                                 16   8
 *   store_id       random, made with the file                        24  16
 *   reserved       zero                                              40 4052
 *   crc32c         over bytes 0..4091                              4092   4
 *
 * Extent header, 4096 bytes
 *   magic          "INX1"                                             0   4
 *   version        1                                                  4   4
 *   slot_bytes     payload and trailer, a multiple of 4096              8   4
 *   n_slots        entries of the table                              12   4
 *   generation     bumped when the extent changes hands              16   8
 *   store_id                                                         24  16
 *   reserved       zero                                              40 4052
 *   crc32c         over bytes 0..4091                              4092   4
 *
 * Slot header, 512 bytes: it never crosses a sector
 *   magic          "INS1"                                             0   4
 *   version        1                                                  4   2
 *   flags          bit 0: the parent belongs to another node          6   2
 *   extent_generation  another one than the extent's: ignored         8   8
 *   put_seq        rises with every commit of the store              16   8
 *   put_time_s     Unix seconds                                      24   8
 *   namespace      digest                                            32  32
 *   id                                                               64  32
 *   parent         zero at depth 0                                   96  32
 *   writer                                                          128  16
 *   group          accounting group                                 144   8
 *   checksum       XXH3-64 over range checksums and id              152   8
 *   generation     of the slot: bumped with each new content        160   8
 *   payload_len    bytes                                            168   4
 *   n_ranges       ranges of the payload, 1 to 512                  172   4
 *   depth          of the block in its chain                        176   4
 *   reserved       zero                                             180 328
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

struct disk_super {
    uint32_t min_slot_bytes;
    uint64_t extent_bytes;
    uint8_t store_id[DISK_STORE_ID_BYTES];
};
struct disk_extent_hdr {
    uint32_t slot_bytes, n_slots;
    uint64_t generation;
    uint8_t store_id[DISK_STORE_ID_BYTES];
};
struct disk_slot_hdr {
    uint16_t flags;
    uint64_t extent_generation, put_seq, put_time_s, group, checksum, generation;
    uint8_t ns[DIGEST_BYTES];
    struct block_id id, parent;
    uint8_t writer[16];
    uint32_t payload_len, n_ranges, depth;
};

void disk_super_encode(const struct disk_super *s, uint8_t ret[DISK_PAGE]);
void disk_extent_encode(const struct disk_extent_hdr *h, uint8_t ret[DISK_PAGE]);
void disk_slot_encode(const struct disk_slot_hdr *h, uint8_t ret[DISK_SLOT_HDR_BYTES]);

/* 0; ERR_NOTFOUND: no header there (zeros or something else); ERR_CORRUPT: ours but broken;
 * ERR_UNSUPPORTED: another version. Fields are checked for what can be checked without context. */
int disk_super_decode(const uint8_t p[DISK_PAGE], struct disk_super *ret);
int disk_extent_decode(const uint8_t p[DISK_PAGE], struct disk_extent_hdr *ret);
int disk_slot_decode(const uint8_t p[DISK_SLOT_HDR_BYTES], struct disk_slot_hdr *ret);
