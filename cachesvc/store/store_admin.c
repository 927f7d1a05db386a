/* What an operator sees. */
#include "cachesvc/store/store_priv.h"

#define LIST_STEPS 4096u

static bool matches(const struct block_store *s, const struct dir_entry *e,
                    const struct store_filter *f) {
    const struct origin *o = origins_at(&s->origins, (uint32_t)e->origin);
    if (!store_is_there(s, e) ||
        (f->by_ns && memcmp(s->ns[e->ns].digest, f->digest, DIGEST_BYTES) != 0) ||
        (f->by_writer && memcmp(o->writer, f->writer, sizeof(o->writer)) != 0) ||
        (f->by_group && o->group != f->group))
        return false;
    return !f->by_time || (e->time_ms >= f->time_from_ms && e->time_ms <= f->time_to_ms);
}

static void describe(const struct block_store *s, uint32_t idx, struct store_block_info *ret) {
    const struct dir_entry *e = store_at(s, idx);
    const struct origin *o = origins_at(&s->origins, (uint32_t)e->origin);
    *ret = (struct store_block_info){
        .id = e->id,
        .group = o->group,
        .checksum = e->checksum,
        .put_seq = dir_seq(e),
        .put_time_ms = e->time_ms,
        .ns = e->ns,
        .depth = e->depth,
        .payload_bytes = s->ns[e->ns].shape.payload_bytes,
        .n_children = e->n_children,
        .leases = (uint32_t)e->leases,
        .pins = e->pins,
        .ram = (uint8_t)e->ram,
        .disk = (uint8_t)e->disk,
        .hole = e->state == DIR_HOLE,
        .filling = e->state == DIR_FILLING,
        .foreign = e->foreign,
    };
    if (e->parent != DIR_NONE)
        ret->parent = store_at(s, e->parent)->id;
    if (entry_in_ram(e))
        ret->ram_generation = ram_tier_generation(&s->ram, e->slot[DIR_RAM]);
    memcpy(ret->ns_digest, s->ns[e->ns].digest, DIGEST_BYTES);
    memcpy(ret->writer, o->writer, sizeof(ret->writer));
}

int block_store_inspect(const struct block_store *s, uint32_t ns, const struct block_id *id,
                        struct store_block_info *ret) {
    uint32_t idx = dir_find(&s->dir, ns, id);
    if (idx == DIR_NONE ||
        (store_at(s, idx)->state == DIR_RESIDENT && !store_is_there(s, store_at(s, idx))))
        return ERR_NOTFOUND;
    describe(s, idx, ret);
    return 0;
}

uint32_t block_store_children(const struct block_store *s, uint32_t ns, const struct block_id *id,
                              struct block_id *ret, uint32_t max) {
    uint32_t idx = dir_find(&s->dir, ns, id), n = 0;
    uint32_t at = idx == DIR_NONE ? DIR_NONE : store_at(s, idx)->child;
    for (; at != DIR_NONE && n < max; at = store_at(s, at)->sib_next)
        ret[n++] = store_at(s, at)->id;
    return n;
}

static bool is_named(const struct dir_entry *e, const struct store_filter *f) {
    for (uint32_t i = 0; i < f->n_ids; i++)
        if (block_id_equal(&e->id, &f->ids[i]))
            return true;
    return f->ids == NULL;
}

uint32_t block_store_list(const struct block_store *s, const struct store_filter *f,
                          uint64_t *cursor, struct store_block_info *ret, uint32_t max) {
    uint32_t n = 0, steps = 0;
    uint64_t at = *cursor;
    for (; at < s->dir.n_fresh && n < max && steps < LIST_STEPS; at++, steps++) {
        const struct dir_entry *e = store_at(s, (uint32_t)at);
        if (matches(s, e, f) && is_named(e, f))
            describe(s, (uint32_t)at, &ret[n++]);
    }
    *cursor = at >= s->dir.n_fresh ? 0 : at;
    return n;
}

uint32_t block_store_list_segs(const struct block_store *s, uint64_t *cursor, struct store_seg *ret,
                               uint32_t max) {
    uint32_t n = 0, steps = 0;
    uint64_t at = *cursor;
    for (; at < s->dir.n_fresh && n < max && steps < LIST_STEPS; at++, steps++) {
        const struct dir_entry *e = store_at(s, (uint32_t)at);
        /* a free entry looks like a hole without children, which there is none of */
        bool is_there = e->state == DIR_RESIDENT || (e->state == DIR_HOLE && e->child != DIR_NONE);
        if (is_there && store_is_seg_first(s, e))
            ret[n++] = (struct store_seg){e->ns, e->id};
    }
    *cursor = at >= s->dir.n_fresh ? 0 : at;
    return n;
}
