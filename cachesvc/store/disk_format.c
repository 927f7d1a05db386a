#include "cachesvc/store/disk_format.h"

#include "common/checksum.h"
#include "common/wire_cur.h"

#define SUPER_VERSION 2u
#define EXTENT_VERSION 1u
#define SLOT_VERSION 2u
#define EXTENT_MAGIC 0x31584e49u /* "INX1" */
#define SLOT_MAGIC 0x31534e49u   /* "INS1" */
static const char super_magic[8] = {'I', 'N', 'C', 'I', 'P', 'I', 'T', '2'};
#define MAGIC_ANY 7 /* bytes that every version's magic begins with */

static void seal(uint8_t *p, size_t len) {
    struct wire_cur c = wire_cur_write(p + len - 4, 4);
    wire_cur_put_u32(&c, checksum_crc32c(0, p, len - 4));
}

static bool is_sealed(const uint8_t *p, size_t len) {
    struct wire_cur c = wire_cur_read(p + len - 4, 4);
    return wire_cur_u32(&c) == checksum_crc32c(0, p, len - 4);
}

static bool is_zero(const uint8_t *p, size_t n) {
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

void disk_super_encode(const struct disk_super *s, uint8_t ret[DISK_PAGE]) {
    memset(ret, 0, DISK_PAGE);
    struct wire_cur c = wire_cur_write(ret, DISK_PAGE);
    wire_cur_put(&c, super_magic, sizeof(super_magic));
    wire_cur_put_u32(&c, SUPER_VERSION);
    wire_cur_put_u32(&c, s->min_slot_bytes);
    wire_cur_put_u64(&c, s->extent_bytes);
    wire_cur_put(&c, s->store_id, sizeof(s->store_id));
    wire_cur_put(&c, s->pool_id, sizeof(s->pool_id));
    wire_cur_put_u16(&c, s->node_number);
    wire_cur_put_zeros(&c, 6);
    wire_cur_put_u64(&c, s->log_off);
    wire_cur_put_u64(&c, s->log_bytes);
    seal(ret, DISK_PAGE);
}

/* Every version so far seals its first page alike, so a whole block of another one is told from a
 * broken one of ours. */
int disk_super_decode(const uint8_t p[DISK_PAGE], struct disk_super *ret) {
    if (memcmp(p, super_magic, MAGIC_ANY) != 0)
        return is_zero(p, DISK_PAGE) ? ERR_NOTFOUND : ERR_CORRUPT;
    if (!is_sealed(p, DISK_PAGE))
        return ERR_CORRUPT;
    struct wire_cur c = wire_cur_read(p, DISK_PAGE);
    wire_cur_skip(&c, sizeof(super_magic));
    if (wire_cur_u32(&c) != SUPER_VERSION || p[MAGIC_ANY] != super_magic[MAGIC_ANY])
        return ERR_UNSUPPORTED;
    struct disk_super s = {.min_slot_bytes = wire_cur_u32(&c), .extent_bytes = wire_cur_u64(&c)};
    wire_cur_copy(&c, s.store_id, sizeof(s.store_id));
    wire_cur_copy(&c, s.pool_id, sizeof(s.pool_id));
    s.node_number = wire_cur_u16(&c);
    wire_cur_skip(&c, 6);
    s.log_off = wire_cur_u64(&c);
    s.log_bytes = wire_cur_u64(&c);
    bool ok = s.min_slot_bytes && s.min_slot_bytes % DISK_PAGE == 0 && s.extent_bytes &&
              s.extent_bytes % DISK_PAGE == 0 && s.log_off >= DISK_LOG_OFF &&
              s.log_off % DISK_PAGE == 0 && s.log_bytes && s.log_bytes % DISK_PAGE == 0 &&
              s.log_off < 1ull << 40 && s.log_bytes < 1ull << 40;
    if (ok)
        *ret = s;
    return ok ? 0 : ERR_CORRUPT;
}

void disk_removal_encode(const struct disk_removal *r, uint8_t ret[DISK_REMOVAL_BYTES]) {
    memset(ret, 0, DISK_REMOVAL_BYTES);
    struct wire_cur c = wire_cur_write(ret, DISK_REMOVAL_BYTES);
    wire_cur_put_u64(&c, r->seq);
    wire_cur_put_u64(&c, r->before_ms);
    wire_cur_put_u64(&c, r->logged_ms);
    wire_cur_put_u64(&c, r->from_ms);
    wire_cur_put_u16(&c, r->kind);
    wire_cur_put_zeros(&c, 6);
    wire_cur_put(&c, r->ns, sizeof(r->ns));
    wire_cur_put(&c, r->key, sizeof(r->key));
    seal(ret, DISK_REMOVAL_BYTES);
}

static size_t key_bytes(uint16_t kind) {
    static const uint8_t bytes[] = {
        [DISK_REMOVE_ALL] = 0,
        [DISK_REMOVE_WRITER] = 16,
        [DISK_REMOVE_ID] = 32,
        [DISK_REMOVE_GROUP] = 8,
    };
    return kind >= DISK_REMOVE_ALL && kind <= DISK_REMOVE_GROUP ? bytes[kind] : SIZE_MAX;
}

int disk_removal_decode(const uint8_t p[DISK_REMOVAL_BYTES], struct disk_removal *ret) {
    if (is_zero(p, DISK_REMOVAL_BYTES))
        return ERR_NOTFOUND;
    if (!is_sealed(p, DISK_REMOVAL_BYTES))
        return ERR_CORRUPT;
    struct wire_cur c = wire_cur_read(p, DISK_REMOVAL_BYTES);
    ret->seq = wire_cur_u64(&c);
    ret->before_ms = wire_cur_u64(&c);
    ret->logged_ms = wire_cur_u64(&c);
    ret->from_ms = wire_cur_u64(&c);
    ret->kind = wire_cur_u16(&c);
    wire_cur_skip(&c, 6);
    wire_cur_copy(&c, ret->ns, sizeof(ret->ns));
    wire_cur_copy(&c, ret->key, sizeof(ret->key));
    size_t n = key_bytes(ret->kind);
    bool ok = n <= sizeof(ret->key) && ret->from_ms <= ret->before_ms &&
              (n == sizeof(ret->key) || is_zero(ret->key + n, sizeof(ret->key) - n)) &&
              (ret->kind != DISK_REMOVE_ID || !is_zero(ret->ns, sizeof(ret->ns)));
    return ok ? 0 : ERR_CORRUPT;
}

void disk_extent_encode(const struct disk_extent_hdr *h, uint8_t ret[DISK_PAGE]) {
    memset(ret, 0, DISK_PAGE);
    struct wire_cur c = wire_cur_write(ret, DISK_PAGE);
    wire_cur_put_u32(&c, EXTENT_MAGIC);
    wire_cur_put_u32(&c, EXTENT_VERSION);
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
    if (wire_cur_u32(&c) != EXTENT_VERSION)
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
    wire_cur_put_u16(&c, SLOT_VERSION);
    wire_cur_put_u16(&c, h->flags);
    wire_cur_put_u64(&c, h->extent_generation);
    wire_cur_put_u64(&c, h->put_seq);
    wire_cur_put_u64(&c, h->put_time_ms);
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
    wire_cur_put_u16(&c, h->encoding);
    wire_cur_put_zeros(&c, 2);
    wire_cur_put_u32(&c, h->stored_len);
    seal(ret, DISK_SLOT_HDR_BYTES);
}

int disk_slot_decode(const uint8_t p[DISK_SLOT_HDR_BYTES], struct disk_slot_hdr *ret) {
    struct wire_cur c = wire_cur_read(p, DISK_SLOT_HDR_BYTES);
    if (wire_cur_u32(&c) != SLOT_MAGIC)
        return ERR_NOTFOUND;
    if (!is_sealed(p, DISK_SLOT_HDR_BYTES))
        return ERR_CORRUPT;
    if (wire_cur_u16(&c) != SLOT_VERSION)
        return ERR_UNSUPPORTED;
    ret->flags = wire_cur_u16(&c);
    ret->extent_generation = wire_cur_u64(&c);
    ret->put_seq = wire_cur_u64(&c);
    ret->put_time_ms = wire_cur_u64(&c);
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
    ret->encoding = wire_cur_u16(&c);
    wire_cur_skip(&c, 2);
    ret->stored_len = wire_cur_u32(&c);
    bool ok = ret->n_ranges && ret->n_ranges <= DISK_MAX_RANGES && ret->payload_len &&
              ret->payload_len % DISK_RANGE_ALIGN == 0 && ret->stored_len &&
              ret->stored_len <= ret->payload_len &&
              (ret->encoding != DISK_ENC_RAW || ret->stored_len == ret->payload_len);
    return ok ? 0 : ERR_CORRUPT;
}
