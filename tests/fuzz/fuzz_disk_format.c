/* What a disk file may hold: any bytes. Decoders must refuse or give fields that encode to the same
 * header. Each piece is also tried with its CRC made right, or nearly nothing would pass it. */
#include "cachesvc/store/disk_format.h"
#include "common/check.h"
#include "common/checksum.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void slot(const uint8_t *p) {
    struct disk_slot_hdr h, twice;
    uint8_t again[DISK_SLOT_HDR_BYTES];
    if (disk_slot_decode(p, &h) < 0)
        return;
    CHECK(h.n_ranges > 0 && h.n_ranges <= DISK_MAX_RANGES && h.stored_len <= h.payload_len);
    disk_slot_encode(&h, again);
    CHECK(disk_slot_decode(again, &twice) == 0 && memcmp(&h.id, &twice.id, sizeof(h.id)) == 0);
}

static void removal(const uint8_t *p) {
    struct disk_removal r, twice;
    uint8_t again[DISK_REMOVAL_BYTES], thrice[DISK_REMOVAL_BYTES];
    if (disk_removal_decode(p, &r) < 0)
        return;
    CHECK(r.from_ms <= r.before_ms && r.kind >= DISK_REMOVE_ALL && r.kind <= DISK_REMOVE_GROUP);
    disk_removal_encode(&r, again);
    CHECK(disk_removal_decode(again, &twice) == 0);
    disk_removal_encode(&twice, thrice);
    CHECK(memcmp(again, thrice, sizeof(again)) == 0);
}

static void page(const uint8_t *p) {
    struct disk_super s;
    struct disk_extent_hdr e;
    if (disk_super_decode(p, &s) == 0)
        CHECK(s.extent_bytes > 0 && s.min_slot_bytes > 0 && s.log_bytes > 0);
    if (disk_extent_decode(p, &e) == 0)
        CHECK(e.slot_bytes > 0 && e.n_slots > 0);
}

static void each(const uint8_t *data, size_t size, size_t piece, void (*decode)(const uint8_t *p)) {
    uint8_t sealed[DISK_PAGE];
    for (size_t off = 0; off + piece <= size; off += piece) {
        decode(data + off);
        memcpy(sealed, data + off, piece);
        uint32_t crc = checksum_crc32c(0, sealed, piece - 4);
        for (size_t i = 0; i < 4; i++)
            sealed[piece - 4 + i] = (uint8_t)(crc >> 8 * i);
        decode(sealed);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    each(data, size, DISK_SLOT_HDR_BYTES, slot);
    each(data, size, DISK_REMOVAL_BYTES, removal);
    each(data, size, DISK_PAGE, page);
    return 0;
}
