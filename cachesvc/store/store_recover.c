/* The directory from the headers found on disk, one after the other as the scan comes to them.
 *
 * Of two headers with one id the higher put sequence wins; what the removal log names is dropped.
 * The order of use is gone with the process; put sequence stands in for it, with parents after
 * their children: a block counts as new as the newest block below it. Nothing is kept besides the
 * directory: while no block is in RAM, an entry's RAM links have room for that number, and the disk
 * list is sorted where it lies. */
#include "cachesvc/store/store_priv.h"

#include "common/check.h"

/* ---- blocks -------------------------------------------------------------------------------- */

static int find_ns(struct block_store *s, uint32_t slot, const struct disk_slot_hdr *h,
                   uint32_t *ret) {
    struct store_ns_shape shape = {.payload_bytes = h->payload_len, .n_ranges = h->n_ranges};
    int rv = store_ns_add(s, h->ns, &shape, ret, NULL);
    if (rv == 0 && s->ns[*ret].slot_bytes != slots_bytes(&s->disk.slots, slot))
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
    return store_at(s, idx)->depth + 1u == h->depth ? idx : DIR_NONE;
}

/* store_set_disk() without a place on a list: those are made of all at the end. */
static void set_disk(struct block_store *s, uint32_t idx, enum store_tier_state v) {
    struct dir_entry *e = store_at(s, idx);
    uint64_t in = v == TIER_CLEAN ? 1 : UINT64_MAX;
    e->disk = v & 7;
    s->st.now.disk_blocks += in;
    s->ns[e->ns].n_tier[DIR_DISK] += in;
}

/* An older copy of the same block gives way. False: h is the older one, or contradicts what is
 * there. */
static bool replace_older(struct block_store *s, uint32_t idx, const struct disk_slot_hdr *h) {
    struct dir_entry *e = store_at(s, idx);
    if (e->depth != h->depth)
        return false;
    if (e->state == DIR_HOLE)
        return true;
    if (dir_seq(e) >= h->put_seq ||
        (e->parent != DIR_NONE && !block_id_equal(&store_at(s, e->parent)->id, &h->parent)))
        return false;
    set_disk(s, idx, TIER_NONE);
    disk_tier_forget(&s->disk, e->slot[DIR_DISK], /* has_header= */ true);
    e->slot[DIR_DISK] = SLOT_NONE;
    origins_give(&s->origins, (uint32_t)e->origin);
    e->origin = ORIGIN_NONE;
    s->st.now.blocks--;
    s->ns[e->ns].n_blocks--;
    s->st.now.holes++;
    s->st.recovered--;
    s->st.recover_ignored++;
    dir_set_state(&s->dir, idx, DIR_HOLE);
    return true;
}

static void fill_entry(struct block_store *s, uint32_t idx, uint32_t slot, int origin,
                       const struct disk_slot_hdr *h) {
    struct dir_entry *e = store_at(s, idx);
    e->depth = h->depth & DIR_DEPTH_MAX;
    e->checksum = h->checksum;
    e->origin = (uint64_t)origin & UINT16_MAX;
    e->time_ms = h->put_time_ms & DIR_TIME_MAX;
    e->foreign = 0;
    dir_set_seq(e, h->put_seq);
    dir_set_state(&s->dir, idx, DIR_RESIDENT);
    e->slot[DIR_DISK] = slot;
    set_disk(s, idx, TIER_CLEAN);
    struct disk_slot *d = disk_tier_side(&s->disk, slot);
    d->owner = idx & DISK_OWNER_MAX;
    d->state = DS_LIVE;
    s->newest_ms = MAX(s->newest_ms, (uint64_t)e->time_ms);
    s->st.now.blocks++;
    s->ns[e->ns].n_blocks++;
    s->st.recovered++;
}

static bool add_block(struct block_store *s, uint32_t slot, const struct disk_slot_hdr *h) {
    uint32_t ns;
    if (h->depth > DIR_DEPTH_MAX || h->put_seq == 0 || h->encoding != DISK_ENC_RAW ||
        s->dir.cap - s->dir.n < 2 || find_ns(s, slot, h, &ns) < 0)
        return false;
    uint32_t idx = dir_find(&s->dir, ns, &h->id), parent = DIR_NONE;
    if (h->depth > 0 && (parent = find_parent(s, h, ns)) == DIR_NONE)
        return false;
    if (idx != DIR_NONE && !replace_older(s, idx, h))
        return false;
    int origin = origins_take(&s->origins, h->writer, h->group);
    if (origin < 0)
        return false;
    if (!slots_take_at(&s->disk.slots, slot)) {
        origins_give(&s->origins, (uint32_t)origin);
        return false;
    }
    if (idx == DIR_NONE)
        idx = dir_add(&s->dir, ns, &h->id);
    else
        s->st.now.holes--;
    if (parent != DIR_NONE && store_at(s, idx)->parent == DIR_NONE)
        dir_link_parent(&s->dir, idx, parent);
    fill_entry(s, idx, slot, origin, h);
    return true;
}

static bool on_found(void *arg, uint32_t slot, const struct disk_slot_hdr *h) {
    struct block_store *s = arg;
    struct removal_subject b = {h->ns, &h->id, h->writer, h->group, h->put_time_ms};
    s->seq = MAX(s->seq, h->put_seq);
    if (removal_log_matches(&s->removals, &b)) {
        s->st.recover_removed++;
        return false;
    }
    if (add_block(s, slot, h))
        return true;
    s->st.recover_ignored++;
    return false;
}

/* One numbering of slot sizes for both tiers. */
static int find_class(void *arg, uint32_t slot_bytes) {
    struct block_store *s = arg;
    int cls = slots_class(&s->ram.slots, slot_bytes);
    if (cls < 0)
        return cls;
    int disk_cls = slots_class(&s->disk.slots, slot_bytes);
    CHECK(disk_cls == cls);
    return cls;
}

/* ---- order --------------------------------------------------------------------------------- */

/* Until the lists are made: put sequence of the newest block at or below the entry. */
static uint64_t newest(const struct block_store *s, uint32_t idx) {
    const struct dir_links *l = &store_at(s, idx)->lru[DIR_RAM];
    return (uint64_t)l->next << 32 | l->prev;
}
static void set_newest(struct block_store *s, uint32_t idx, uint64_t seq) {
    store_at(s, idx)->lru[DIR_RAM] = (struct dir_links){(uint32_t)seq, (uint32_t)(seq >> 32)};
}
static uint32_t *next_of(const struct block_store *s, uint32_t idx) {
    return &store_at(s, idx)->lru[DIR_DISK].next;
}

/* Each entry below root after its children, which lend it their number. */
static void raise_newest(struct block_store *s, uint32_t root) {
    uint32_t cur = root;
    for (;;) {
        while (store_at(s, cur)->child != DIR_NONE)
            cur = store_at(s, cur)->child;
        for (; cur != root; cur = store_at(s, cur)->parent) {
            uint32_t up = store_at(s, cur)->parent;
            set_newest(s, up, MAX(newest(s, up), newest(s, cur)));
            if (store_at(s, cur)->sib_next != DIR_NONE)
                break;
        }
        if (cur == root)
            return;
        cur = store_at(s, cur)->sib_next;
    }
}

/* Of one age the deeper first, so that a parent comes after its children. */
static bool is_colder(const struct block_store *s, uint32_t a, uint32_t b) {
    uint64_t x = newest(s, a), y = newest(s, b);
    return x != y ? x < y : store_at(s, a)->depth >= store_at(s, b)->depth;
}

static uint32_t merge(const struct block_store *s, uint32_t a, uint32_t b) {
    uint32_t head = DIR_NONE, *link = &head;
    while (a != DIR_NONE && b != DIR_NONE) {
        uint32_t *from = is_colder(s, a, b) ? &a : &b;
        *link = *from;
        link = next_of(s, *from);
        *from = *link;
    }
    *link = a != DIR_NONE ? a : b;
    return head;
}

/* Merge sort over links: run k of the stack holds 2^k entries or none. */
static uint32_t sort_by_age(struct block_store *s) {
    uint32_t runs[32], all = DIR_NONE;
    memset(runs, 0xff, sizeof(runs));
    for (uint32_t i = 0; i < s->dir.n_fresh; i++) {
        if (store_at(s, i)->disk != TIER_CLEAN)
            continue;
        uint32_t run = i, k = 0;
        *next_of(s, i) = DIR_NONE;
        for (; runs[k] != DIR_NONE; k++) {
            run = merge(s, runs[k], run);
            runs[k] = DIR_NONE;
        }
        runs[k] = run;
    }
    for (uint32_t k = 0; k < ARRAY_LEN(runs); k++)
        all = runs[k] == DIR_NONE ? all : all == DIR_NONE ? runs[k] : merge(s, runs[k], all);
    return all;
}

static void flag_orphans(struct block_store *s, uint32_t root) {
    for (uint32_t cur = root; cur != DIR_NONE; cur = dir_walk(&s->dir, root, cur, true))
        store_at(s, cur)->orphan = store_orphan_below(s, store_at(s, cur)->parent);
}

/* Nothing is removed during recovery, so the entries in use are the first n_fresh. */
static void order_lists(struct block_store *s) {
    for (uint32_t i = 0; i < s->dir.n_fresh; i++)
        set_newest(s, i, dir_seq(store_at(s, i)));
    for (uint32_t i = 0; i < s->dir.n_fresh; i++) {
        if (store_at(s, i)->parent != DIR_NONE)
            continue;
        raise_newest(s, i);
        flag_orphans(s, i);
    }
    uint32_t all = sort_by_age(s);
    for (uint32_t i = 0; i < s->dir.n_fresh; i++)
        store_at(s, i)->lru[DIR_RAM] = (struct dir_links){DIR_NONE, DIR_NONE};
    for (uint32_t next; all != DIR_NONE; all = next) {
        next = *next_of(s, all);
        store_at(s, all)->lru[DIR_DISK] = (struct dir_links){DIR_NONE, DIR_NONE};
        store_settle_used(s, all);
    }
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

/* ---- all of it ----------------------------------------------------------------------------- */

static void say_skipped(const struct block_store *s, const struct disk_recover_stats *st) {
    char text[256];
    if (!s->cfg.on_note || st->n_skipped + st->n_refused == 0)
        return;
    snprintf(
        text, sizeof(text),
        "recovery of the disk tier left out %u extents that can't be read (the first is %u, at "
        "byte %llu) and %u of a slot size that does not fit the RAM tier",
        st->n_skipped, st->first_skipped,
        (unsigned long long)slots_extent_off(&s->disk.slots, st->first_skipped), st->n_refused);
    s->cfg.on_note(s->cfg.hook_arg, STORE_NOTE_ERROR, text);
}

int store_recover(struct block_store *s, struct errbuf *eb) {
    struct disk_recover_cfg cfg = {.found = on_found, .cls = find_class, .arg = s};
    struct disk_recover_stats st = {0};
    int rv = disk_recover(&s->disk, &cfg, &st, eb);
    if (rv < 0)
        return rv;
    s->synced_seq = s->removals.seq;
    s->st.recover_ignored += st.n_ignored;
    s->st.recover_skipped += st.n_skipped + st.n_refused;
    say_skipped(s, &st);
    order_lists(s);
    drop_empty_holes(s);
    if (s->st.recover_removed > 0)
        disk_tier_clear_stale(&s->disk);
    return 0;
}
