/* Namespaces: digests to small numbers, and numbers to slot classes. A number or a class of which
 * nobody holds anything goes to the next who needs one. */
#include "cachesvc/store/store_priv.h"

#include "common/check.h"

int block_store_ns_find(const struct block_store *s, const uint8_t digest[DIGEST_BYTES],
                        uint32_t *ret_ns) {
    for (uint32_t i = 0; i < s->n_ns; i++) {
        if (memcmp(s->ns[i].digest, digest, DIGEST_BYTES) != 0)
            continue;
        *ret_ns = i;
        return 0;
    }
    return ERR_NOTFOUND;
}

static int check_shape(const struct store_ns_shape *sh, struct errbuf *eb) {
    if (sh->n_ranges == 0 || sh->n_ranges > CHECKSUM_MAX_RANGES || sh->n_full > sh->n_ranges)
        return err_set(eb, ERR_INVALID, "%u ranges of which %u are full; want 1 to %u",
                       sh->n_ranges, sh->n_full, CHECKSUM_MAX_RANGES);
    uint64_t sum = 0;
    for (uint32_t i = 0; sh->range_sizes && i < sh->n_ranges; i++) {
        if (sh->range_sizes[i] == 0 || sh->range_sizes[i] % CHECKSUM_RANGE_ALIGN)
            return err_set(eb, ERR_INVALID, "range %u has %u bytes, no multiple of %u", i,
                           sh->range_sizes[i], CHECKSUM_RANGE_ALIGN);
        sum += sh->range_sizes[i];
    }
    if (sh->range_sizes && (sum != sh->payload_bytes || sh->seg_blocks == 0))
        return err_set(eb, ERR_INVALID,
                       "ranges of %llu bytes in blocks of %u, segments of %u blocks",
                       (unsigned long long)sum, sh->payload_bytes, sh->seg_blocks);
    return 0;
}

/* Nobody has registered it and nothing is of it: a number that may mean another namespace. A removal that is
 * being swept names namespaces by number. */
static bool ns_is_idle(const struct block_store *s, uint32_t ns) {
    return s->ns[ns].n_users == 0 && s->ns_entries[ns] == 0 && s->n_sweeps == 0;
}

/* A class of which no extent is, and no namespace but idle ones: those are forgotten. */
static int reuse_class(struct block_store *s, uint32_t slot_bytes) {
    uint64_t used = slots_classes_used(&s->ram.slots);
    if (s->has_disk)
        used |= slots_classes_used(&s->disk.slots);
    for (uint32_t i = 0; i < s->n_ns; i++)
        if (!ns_is_idle(s, i))
            used |= 1ull << s->ns_class[i];
    if (used == UINT64_MAX)
        return ERR_BUSY;
    uint32_t cls = (uint32_t)__builtin_ctzll(~used);
    for (uint32_t i = 0; i < s->n_ns; i++)
        if (s->ns_class[i] == cls)
            memset(s->ns[i].digest, 0, DIGEST_BYTES);
    slots_class_set(&s->ram.slots, cls, slot_bytes);
    if (s->has_disk)
        slots_class_set(&s->disk.slots, cls, slot_bytes);
    return (int)cls;
}

static int shape_class(struct block_store *s, const struct store_ns_shape *sh,
                       uint32_t *ret_slot_bytes, struct errbuf *eb) {
    uint64_t slot = ((uint64_t)sh->payload_bytes + 12ull * sh->n_ranges + 4095) / 4096 * 4096;
    slot = MAX(slot, s->cfg.min_slot_bytes);
    if (slot > UINT32_MAX || !slots_per_extent(&s->ram.slots, (uint32_t)slot) ||
        (s->has_disk && !slots_per_extent(&s->disk.slots, (uint32_t)slot)))
        return err_set(eb, ERR_INVALID, "a block of %u bytes does not fit an extent",
                       sh->payload_bytes);
    *ret_slot_bytes = (uint32_t)slot;
    s->lease_bytes.unit = MAX(s->lease_bytes.unit, slot);
    s->promises.unit = MAX(s->promises.unit, slot);
    s->fills.unit = MAX(s->fills.unit, slot);
    int cls = slots_class(&s->ram.slots, (uint32_t)slot);
    if (cls == ERR_BUSY)
        cls = reuse_class(s, (uint32_t)slot);
    if (cls >= 0 && s->has_disk)
        CHECK(slots_class(&s->disk.slots, (uint32_t)slot) ==
              cls); /* one numbering for both tiers */
    return cls < 0 ? err_set(eb, cls, "too many block sizes") : cls;
}

static void keep_ranges(struct block_store *s, uint32_t ns, const struct store_ns_shape *shape) {
    struct store_ns_shape *sh = &s->ns[ns].shape;
    *sh = *shape;
    if (!shape->range_sizes)
        return;
    uint32_t *own = s->range_sizes + (size_t)ns * CHECKSUM_MAX_RANGES;
    memcpy(own, shape->range_sizes, sh->n_ranges * sizeof(*own));
    sh->range_sizes = own;
}

/* A namespace found on disk has no more than its headers say until somebody registers it. */
static bool same_shape(const struct store_ns_shape *a, const struct store_ns_shape *b) {
    if (a->payload_bytes != b->payload_bytes || a->n_ranges != b->n_ranges)
        return false;
    return !a->range_sizes || !b->range_sizes ||
           (a->n_full == b->n_full && a->seg_blocks == b->seg_blocks &&
            memcmp(a->range_sizes, b->range_sizes, a->n_ranges * sizeof(*a->range_sizes)) == 0);
}

int store_ns_add(struct block_store *s, const uint8_t digest[DIGEST_BYTES],
                 const struct store_ns_shape *shape, uint32_t *ret_ns, struct errbuf *eb) {
    uint32_t ns;
    int rv = check_shape(shape, eb);
    if (rv < 0)
        return rv;
    bool is_known = block_store_ns_find(s, digest, &ns) == 0;
    if (is_known && (same_shape(&s->ns[ns].shape, shape) || !ns_is_idle(s, ns))) {
        if (!same_shape(&s->ns[ns].shape, shape))
            return err_set(eb, ERR_INVALID, "the namespace is known with another block shape");
        if (!s->ns[ns].shape.range_sizes && shape->range_sizes) {
            keep_ranges(s, ns, shape);
            if (s->cfg.on_segs_known)
                s->cfg.on_segs_known(s->cfg.hook_arg);
        }
        *ret_ns = ns;
        return 0;
    }
    for (uint32_t i = 0; i < s->n_ns && !is_known; i++) {
        is_known = s->n_ns == s->cfg.max_namespaces && ns_is_idle(s, i);
        ns = i;
    }
    if (!is_known && s->n_ns == s->cfg.max_namespaces)
        return err_set(eb, ERR_BUSY, "%u namespaces are in use, the limit", s->n_ns);
    uint32_t slot_bytes = 0;
    int cls = shape_class(s, shape, &slot_bytes, eb);
    if (cls < 0)
        return cls;
    if (!is_known)
        ns = s->n_ns++;
    struct store_ns *n = &s->ns[ns];
    *n = (struct store_ns){.slot_bytes = slot_bytes};
    memcpy(n->digest, digest, DIGEST_BYTES);
    keep_ranges(s, ns, shape);
    s->ns_class[ns] = (uint32_t)cls;
    *ret_ns = ns;
    return 0;
}

int block_store_ns_register(struct block_store *s, const uint8_t digest[DIGEST_BYTES],
                            const struct store_ns_shape *shape, uint32_t *ret_ns,
                            struct errbuf *eb) {
    if (!shape->range_sizes)
        return err_set(eb, ERR_INVALID, "no range sizes");
    return store_ns_add(s, digest, shape, ret_ns, eb);
}

void block_store_ns_hold(struct block_store *s, uint32_t ns) {
    s->ns[ns].n_users++;
}

void block_store_ns_drop(struct block_store *s, uint32_t ns) {
    CHECK(s->ns[ns].n_users > 0);
    s->ns[ns].n_users--;
}

uint32_t block_store_ns_count(const struct block_store *s) {
    return s->n_ns;
}

void block_store_ns_info(const struct block_store *s, uint32_t ns, struct store_ns_info *ret) {
    const struct store_ns *n = &s->ns[ns];
    *ret = (struct store_ns_info){.shape = n->shape,
                                  .slot_bytes = n->slot_bytes,
                                  .is_idle = ns_is_idle(s, ns),
                                  .n_ram = n->n_tier[DIR_RAM],
                                  .n_disk = n->n_tier[DIR_DISK]};
    memcpy(ret->digest, n->digest, DIGEST_BYTES);
}
