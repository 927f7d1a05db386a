/* What a disk file may hold: any bytes. Decoders must refuse or give fields that encode to the same
 * bytes. */
#include "cachesvc/store/disk_format.h"
#include "common/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void slot(const uint8_t *p) {
    struct disk_slot_hdr h;
    uint8_t again[DISK_SLOT_HDR_BYTES];
    if (disk_slot_decode(p, &h) < 0)
        return;
    CHECK(h.n_ranges > 0 && h.payload_len % h.n_ranges == 0);
    disk_slot_encode(&h, again);
    struct disk_slot_hdr twice;
    CHECK(disk_slot_decode(again, &twice) == 0 && memcmp(&h.id, &twice.id, sizeof(h.id)) == 0);
}

static void page(const uint8_t *p) {
    struct disk_super s;
    struct disk_extent_hdr e;
    if (disk_super_decode(p, &s) == 0)
        CHECK(s.extent_bytes > 0 && s.min_slot_bytes > 0);
    if (disk_extent_decode(p, &e) == 0)
        CHECK(e.slot_bytes > 0 && e.n_slots > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (size_t off = 0; off + DISK_SLOT_HDR_BYTES <= size; off += DISK_SLOT_HDR_BYTES)
        slot(data + off);
    for (size_t off = 0; off + DISK_PAGE <= size; off += DISK_PAGE)
        page(data + off);
    return 0;
}
