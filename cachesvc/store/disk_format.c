#include "cachesvc/store/disk_format.h"

#include "common/checksum.h"
#include "common/wire_cur.h"

#define VERSION 1u
#define EXTENT_MAGIC 0x31584e49u /* "INX1" */
#define SLOT_MAGIC 0x31534e49u   /* "INS1" */
static const char super_magic[8] = {'I', 'N', 'C', 'I', 'P', 'I', 'T', '1'};

static void seal(uint8_t *p, size_t len) {
    struct wire_cur c = wire_cur_write(p + len - 4, 4);
    wire_cur_put_u32(&c, checksum_crc32c(0, p, len - 4));
}

static bool is_sealed(const uint8_t *p, size_t len) {
    struct wire_cur c = wire_cur_read(p + len - 4, 4);
    return wire_cur_u32(&c) == checksum_crc32c(0, p, len - 4);
}

void disk_super_encode(const struct disk_super *s, uint8_t ret[DISK_PAGE]) {
    memset(ret, 0, DISK_PAGE);
    struct wire_cur c = wire_cur_write(ret, DISK_PAGE);
    wire_cur_put(&c, super_magic, sizeof(super_magic));
    wire_cur_put_u32(&c, VERSION);
    wire_cur_put_u32(&c, s->min_slot_bytes);
    wire_cur_put_u64(&c, s->extent_bytes);
    wire_cur_put(&c, s->store_id, sizeof(s->store_id));
    seal(ret, DISK_PAGE);
}

int disk_super_decode(const uint8_t p[DISK_PAGE], struct disk_super *ret) {
    if (memcmp(p, super_magic, sizeof(super_magic)) != 0)
        return ERR_NOTFOUND;
    if (!is_sealed(p, DISK_PAGE))
        return ERR_CORRUPT;
    struct wire_cur c = wire_cur_read(p, DISK_PAGE);
    wire_cur_skip(&c, sizeof(super_magic));
    if (wire_cur_u32(&c) != VERSION)
        return ERR_UNSUPPORTED;
    ret->min_slot_bytes = wire_cur_u32(&c);
    ret->extent_bytes = wire_cur_u64(&c);
    wire_cur_copy(&c, ret->store_id, sizeof(ret->store_id));
    bool ok = ret->min_slot_bytes && ret->min_slot_bytes % DISK_PAGE == 0 && ret->extent_bytes &&
              ret->extent_bytes % DISK_PAGE == 0;
    return ok ? 0 : ERR_CORRUPT;
}

void disk_extent_encode(const struct disk_extent_hdr *h, uint8_t ret[DISK_PAGE]) {
    memset(ret, 0, DISK_PAGE);
    struct wire_cur c = wire_cur_write(ret, DISK_PAGE);
    wire_cur_put_u32(&c, EXTENT_MAGIC);
    wire_cur_put_u32(&c, VERSION);
    wire_cur_put_u32(&c, h->slot_bytes);
    wire_cur_put_u32(&c, h->n_slots);
    wire_cur_put_u64(&c, h->generation);
    wire_cur_put(&c, h->store_id, sizeof(h->store_id));
    seal(ret, DISK_PAGE);
}

int disk_extent_decode(const uint8_t p[DISK_PAGE], struct disk_extent_hdr *ret) {
    struct wire_cur c = wire_cur_read(p, DISK_PAGE);
    if (wire_cur_u32(&c) != EXTENT_MAGIC)
        return ERR_NOTFOUND;
    if (!is_sealed(p, DISK_PAGE))
        return ERR_CORRUPT;
    if (wire_cur_u32(&c) != VERSION)
        return ERR_UNSUPPORTED;
    ret->slot_bytes = wire_cur_u32(&c);
    ret->n_slots = wire_cur_u32(&c);
    ret->generation = wire_cur_u64(&c);
    wire_cur_copy(&c, ret->store_id, sizeof(ret->store_id));
    bool ok = ret->slot_bytes && ret->slot_bytes % DISK_PAGE == 0 && ret->n_slots &&
              ret->n_slots < UINT16_MAX;
    return ok ? 0 : ERR_CORRUPT;
}

void disk_slot_encode(const struct disk_slot_hdr *h, uint8_t ret[DISK_SLOT_HDR_BYTES]) {
    memset(ret, 0, DISK_SLOT_HDR_BYTES);
    struct wire_cur c = wire_cur_write(ret, DISK_SLOT_HDR_BYTES);
    wire_cur_put_u32(&c, SLOT_MAGIC);
    wire_cur_put_u16(&c, VERSION);
    wire_cur_put_u16(&c, h->flags);
    wire_cur_put_u64(&c, h->extent_generation);
    wire_cur_put_u64(&c, h->put_seq);
    wire_cur_put_u64(&c, h->put_time_s);
    wire_cur_put(&c, h->ns, sizeof(h->ns));
    wire_cur_put(&c, h->id.b, sizeof(h->id.b));
    wire_cur_put(&c, h->parent.b, sizeof(h->parent.b));
    wire_cur_put(&c, h->writer, sizeof(h->writer));
    wire_cur_put_u64(&c, h->group);
    wire_cur_put_u64(&c, h->checksum);
    wire_cur_put_u64(&c, h->generation);
    wire_cur_put_u32(&c, h->payload_len);
    wire_cur_put_u32(&c, h->n_ranges);
    wire_cur_put_u32(&c, h->depth);
    seal(ret, DISK_SLOT_HDR_BYTES);
}

int disk_slot_decode(const uint8_t p[DISK_SLOT_HDR_BYTES], struct disk_slot_hdr *ret) {
    struct wire_cur c = wire_cur_read(p, DISK_SLOT_HDR_BYTES);
    if (wire_cur_u32(&c) != SLOT_MAGIC)
        return ERR_NOTFOUND;
    if (!is_sealed(p, DISK_SLOT_HDR_BYTES))
        return ERR_CORRUPT;
    if (wire_cur_u16(&c) != VERSION)
        return ERR_UNSUPPORTED;
    ret->flags = wire_cur_u16(&c);
    ret->extent_generation = wire_cur_u64(&c);
    ret->put_seq = wire_cur_u64(&c);
    ret->put_time_s = wire_cur_u64(&c);
    wire_cur_copy(&c, ret->ns, sizeof(ret->ns));
    wire_cur_copy(&c, ret->id.b, sizeof(ret->id.b));
    wire_cur_copy(&c, ret->parent.b, sizeof(ret->parent.b));
    wire_cur_copy(&c, ret->writer, sizeof(ret->writer));
    ret->group = wire_cur_u64(&c);
    ret->checksum = wire_cur_u64(&c);
    ret->generation = wire_cur_u64(&c);
    ret->payload_len = wire_cur_u32(&c);
    ret->n_ranges = wire_cur_u32(&c);
    ret->depth = wire_cur_u32(&c);
    bool ok = ret->n_ranges && ret->n_ranges <= CHECKSUM_MAX_RANGES && ret->payload_len &&
              ret->payload_len % 64 == 0;
    return ok ? 0 : ERR_CORRUPT;
}
