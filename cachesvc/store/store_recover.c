/* The directory from the headers found on disk.
 *
 * Of two headers with one id the higher put sequence wins: so the highest come first. The order of
 * use is gone with the process; put sequence stands in for it, with parents after their children: a
 * block counts as new as the newest block below it. */
#include "cachesvc/store/store_priv.h"

#include "common/check.h"

static void mark_stale(struct block_store *s, uint32_t slot) {
    struct disk_slot *d = disk_tier_side(&s->disk, slot);
    s->disk.n_stale += d->stale == STALE_NO;
    d->stale = STALE_YES;
    s->st.recover_ignored++;
}

static int find_ns(struct block_store *s, const struct disk_found *f, uint32_t *ret) {
    const struct disk_slot_hdr *h = &f->hdr;
    struct store_ns_shape shape = {.payload_bytes = h->payload_len, .n_ranges = h->n_ranges};
    int rv = store_ns_add(s, h->ns, &shape, ret, NULL);
    if (rv == 0 && s->ns[*ret].slot_bytes != slots_bytes(&s->disk.slots, f->slot))
        return ERR_INVALID;
    return rv;
}

static uint32_t find_parent(struct block_store *s, const struct disk_slot_hdr *h, uint32_t ns) {
    uint32_t idx = dir_find(&s->dir, ns, &h->parent);
    if (idx == DIR_NONE) {
        idx = dir_add(&s->dir, ns, &h->parent);
        if (idx == DIR_NONE)
            return DIR_NONE;
        store_at(s, idx)->depth = (h->depth - 1) & DIR_DEPTH_MAX;
        store_at(s, idx)->foreign = h->flags & DISK_SLOT_FOREIGN_PARENT;
        s->st.now.holes++;
    }
    const struct dir_entry *p = store_at(s, idx);
    return p->depth + 1u == h->depth ? idx : DIR_NONE;
}

static bool fits(struct block_store *s, const struct disk_found *f, uint32_t *ret_ns) {
    const struct disk_slot_hdr *h = &f->hdr;
    if (h->depth > DIR_DEPTH_MAX || h->put_seq == 0 || s->dir.cap - s->dir.n < 2 ||
        find_ns(s, f, ret_ns) < 0)
        return false;
    uint32_t idx = dir_find(&s->dir, *ret_ns, &h->id);
    if (idx == DIR_NONE)
        return true;
    const struct dir_entry *e = store_at(s, idx);
    return e->state == DIR_HOLE && e->depth == h->depth;
}

static bool add_block(struct block_store *s, const struct disk_found *f) {
    const struct disk_slot_hdr *h = &f->hdr;
    uint32_t ns;
    if (!fits(s, f, &ns))
        return false;
    uint32_t parent = DIR_NONE;
    if (h->depth > 0 && (parent = find_parent(s, h, ns)) == DIR_NONE)
        return false;
    int origin = origins_take(&s->origins, h->writer, h->group);
    if (origin < 0)
        return false;
    if (!slots_take_at(&s->disk.slots, f->slot)) {
        origins_give(&s->origins, (uint32_t)origin);
        return false;
    }
    uint32_t idx = dir_find(&s->dir, ns, &h->id);
    if (idx == DIR_NONE)
        idx = dir_add(&s->dir, ns, &h->id);
    else
        s->st.now.holes--;
    struct dir_entry *e = store_at(s, idx);
    e->depth = h->depth & DIR_DEPTH_MAX;
    e->checksum = h->checksum;
    e->origin = (uint64_t)origin & UINT16_MAX;
    e->time_ms = h->put_time_s * 1000 & DIR_TIME_MAX;
    e->foreign = 0;
    dir_set_seq(e, h->put_seq);
    if (parent != DIR_NONE)
        dir_link_parent(&s->dir, idx, parent);
    dir_set_state(&s->dir, idx, DIR_RESIDENT);
    e->slot[DIR_DISK] = f->slot;
    store_set_disk(s, idx, TIER_CLEAN);
    struct disk_slot *d = disk_tier_side(&s->disk, f->slot);
    d->owner = idx;
    d->state = DS_LIVE;
    d->generation = h->generation & 0xffffff;
    s->st.now.blocks++;
    s->st.recovered++;
    return true;
}

struct rank {
    uint64_t newest; /* put sequence of the newest block at or below it */
    uint32_t idx, depth;
};

static int deepest_first(const void *a, const void *b) {
    const struct rank *x = a, *y = b;
    return (x->depth < y->depth) - (x->depth > y->depth);
}

static int coldest_first(const void *a, const void *b) {
    const struct rank *x = a, *y = b;
    if (x->newest != y->newest)
        return x->newest < y->newest ? -1 : 1;
    return deepest_first(a, b);
}

/* rank[n] of all entries in use; by_idx[idx] while newest climbs from children to parents. */
static int order_lists(struct block_store *s) {
    uint32_t n = 0;
    struct rank *rank = alloc_array(s->dir.n, sizeof(*rank));
    uint64_t *newest = alloc_array(s->dir.n_fresh, sizeof(*newest));
    int rv = rank && newest ? 0 : ERR_NOMEM;
    /* Nothing is removed during recovery, so the entries in use are the first n_fresh. */
    for (uint32_t i = 0; rv == 0 && i < s->dir.n_fresh; i++) {
        newest[i] = dir_seq(store_at(s, i));
        rank[n++] = (struct rank){0, i, store_at(s, i)->depth};
    }
    if (rv == 0)
        qsort(rank, n, sizeof(*rank), deepest_first);
    for (uint32_t i = 0; rv == 0 && i < n; i++) {
        uint32_t idx = rank[i].idx, parent = store_at(s, idx)->parent;
        rank[i].newest = newest[idx];
        if (parent != DIR_NONE)
            newest[parent] = MAX(newest[parent], newest[idx]);
    }
    for (uint32_t i = n; rv == 0 && i-- > 0;) /* parents first */
        store_at(s, rank[i].idx)->orphan = store_orphan_below(s, store_at(s, rank[i].idx)->parent);
    if (rv == 0)
        qsort(rank, n, sizeof(*rank), coldest_first);
    for (uint32_t i = 0; rv == 0 && i < n; i++) {
        uint32_t idx = rank[i].idx;
        store_settle_used(s, idx);
    }
    free(rank);
    free(newest);
    return rv;
}

/* Holes that were made for a block which then did not fit. */
static void drop_empty_holes(struct block_store *s) {
    for (uint32_t i = 0; i < s->dir.n_fresh; i++) {
        struct dir_entry *e = store_at(s, i);
        if (e->state == DIR_HOLE && e->child == DIR_NONE && dir_find(&s->dir, e->ns, &e->id) == i) {
            s->st.now.holes--;
            store_lose_bytes(s, i);
        }
    }
}

int store_recover(struct block_store *s, struct errbuf *eb) {
    struct disk_found *found = NULL;
    uint64_t n = 0;
    int rv = disk_recover(&s->disk, &found, &n, &s->st.recover_ignored, eb);
    if (rv < 0)
        return rv;
    for (uint32_t c = 0; rv == 0 && c < s->disk.slots.n_classes; c++)
        if (slots_class(&s->ram.slots, s->disk.slots.class_bytes[c]) != (int)c)
            rv = err_set(eb, ERR_INVALID,
                         "the disk holds blocks of %u bytes, more than an extent of the RAM tier",
                         s->disk.slots.class_bytes[c]);
    for (uint64_t i = n; rv == 0 && i-- > 0;) {
        const struct disk_found *f = &found[i];
        s->seq = MAX(s->seq, f->hdr.put_seq);
        if (s->disk.slots.ext[slot_extent(f->slot)].state == EXTENT_FREE)
            s->st.recover_ignored++;
        else if (!add_block(s, f))
            mark_stale(s, f->slot);
    }
    free(found);
    if (rv == 0)
        rv = order_lists(s);
    if (rv == 0)
        drop_empty_holes(s);
    return rv;
}
