/* Who leaves when room is needed: RAM slots, disk slots, directory entries, and extents between
 * sizes. */
#include "cachesvc/store/store_priv.h"

#include "common/check.h"

#define NODE_STEPS 64u   /* entries of a list that are looked at when the directory is full */
#define LEAF_STEPS 4096u /* and blocks below one */

/* ---- who may leave ------------------------------------------------------------------------- */

/* A RAM copy is in use by readers' leases, pins, sends and writes to disk (refs). Without a clean
 * copy on disk it is the only one: what holds the block holds it too. */
static enum dir_list ram_list(struct block_store *s, const struct dir_entry *e) {
    if (e->state != DIR_RESIDENT || !entry_in_ram(e) || e->leases || e->pins ||
        e->disk == TIER_WRITING || ram_tier_side(&s->ram, e->slot[DIR_RAM])->refs)
        return DIR_UNLISTED;
    if (e->disk != TIER_CLEAN && dir_is_held(e))
        return DIR_UNLISTED;
    if (e->orphan)
        return DIR_ORPHANS;
    return e->ram == TIER_DIRTY && s->has_disk && !e->disk_declined ? DIR_DIRTY : DIR_MAIN;
}

static enum dir_list disk_list(const struct dir_entry *e) {
    if (e->disk != TIER_CLEAN || e->ram == TIER_READING || dir_is_held(e))
        return DIR_UNLISTED;
    return e->orphan ? DIR_ORPHANS : DIR_MAIN;
}

static void settle(struct block_store *s, uint32_t idx, bool is_used) {
    const struct dir_entry *e = store_at(s, idx);
    const struct policy_ops *ops = s->policy.ops;
    ops->place(&s->policy, DIR_RAM, store_cls(s, e), idx, ram_list(s, e), is_used);
    ops->place(&s->policy, DIR_DISK, store_cls(s, e), idx, disk_list(e), is_used);
}

void store_settle(struct block_store *s, uint32_t idx) {
    settle(s, idx, /* is_used= */ false);
}

void store_settle_used(struct block_store *s, uint32_t idx) {
    settle(s, idx, /* is_used= */ true);
}

/* What was held has been in use until now. The end of a hold comes from the tail upwards, so each
 * parent gets above its child. */
void store_on_held(void *arg, uint32_t idx) {
    struct block_store *s = arg;
    settle(s, idx, /* is_used= */ !dir_is_held(store_at(s, idx)));
}

/* Whole subtrees move, children first: each to the warm end gives the order. */
void store_set_orphan(struct block_store *s, uint32_t idx, bool orphan) {
    if (store_at(s, idx)->orphan == orphan)
        return;
    store_at(s, idx)->orphan = orphan;
    store_settle_used(s, idx);
}

void store_set_ram(struct block_store *s, uint32_t idx, enum store_tier_state v) {
    struct dir_entry *e = store_at(s, idx);
    bool was = entry_in_ram(e), was_dirty = e->ram == TIER_DIRTY;
    e->ram = v & 7;
    int in = (int)entry_in_ram(e) - (int)was, dirty = (int)(v == TIER_DIRTY) - (int)was_dirty;
    s->st.now.ram_blocks += (uint64_t)in;
    s->st.now.dirty_blocks += (uint64_t)dirty;
    s->ns[e->ns].n_tier[DIR_RAM] += (uint64_t)in;
    store_settle(s, idx);
}

void store_set_disk(struct block_store *s, uint32_t idx, enum store_tier_state v) {
    struct dir_entry *e = store_at(s, idx);
    int in = (int)(v == TIER_CLEAN) - (int)(e->disk == TIER_CLEAN);
    e->disk = v & 7;
    s->st.now.disk_blocks += (uint64_t)in;
    s->ns[e->ns].n_tier[DIR_DISK] += (uint64_t)in;
    store_settle(s, idx);
}

/* ---- holes and orphans --------------------------------------------------------------------- */

static bool makes_orphans(const struct dir_entry *e) {
    return e->state == DIR_HOLE && !e->foreign;
}

bool store_orphan_below(const struct block_store *s, uint32_t parent) {
    return parent != DIR_NONE &&
           (makes_orphans(store_at(s, parent)) || store_at(s, parent)->orphan);
}

/* First of the siblings from c on whose flag does not fit its parent's state any more. */
static uint32_t next_changed(const struct block_store *s, uint32_t c, bool want) {
    while (c != DIR_NONE && store_at(s, c)->orphan == want)
        c = store_at(s, c)->sib_next;
    return c;
}

/* The children of root fit its new state again, and theirs them. Children move before their
 * parents, so that on the new list too a parent is warmer. A child whose flag is right has a
 * subtree that is right. */
void store_recalc_orphans(struct block_store *s, uint32_t root) {
    const struct dir_entry *r = store_at(s, root);
    bool want = makes_orphans(r) || r->orphan;
    uint32_t cur = next_changed(s, r->child, want);
    while (cur != DIR_NONE) {
        /* Down as far as something changes. Below an inner hole nothing does when orphans are
         * freed. */
        for (;;) {
            const struct dir_entry *e = store_at(s, cur);
            uint32_t c = !want && makes_orphans(e) ? DIR_NONE : next_changed(s, e->child, want);
            if (c == DIR_NONE)
                break;
            cur = c;
        }
        for (;;) {
            const struct dir_entry *e = store_at(s, cur);
            store_set_orphan(s, cur, want);
            uint32_t sib = next_changed(s, e->sib_next, want);
            if (sib != DIR_NONE) {
                cur = sib;
                break;
            }
            cur = e->parent;
            if (cur == root)
                return;
        }
    }
}

/* A put that died before its first block was visible takes back what was never told; readers of the
 * index lose nothing by that. */
static void tell_gone(struct block_store *s, const struct dir_entry *e) {
    if (s->cfg.on_seg_gone && store_is_seg_first(s, e))
        s->cfg.on_seg_gone(s->cfg.hook_arg, s->ns[e->ns].digest, &e->id);
}

static void remove_entry(struct block_store *s, uint32_t idx) {
    for (;;) {
        uint32_t parent = store_at(s, idx)->parent;
        dir_unlink_parent(&s->dir, idx);
        origins_give(&s->origins, (uint32_t)store_at(s, idx)->origin);
        tell_gone(s, store_at(s, idx));
        dir_del(&s->dir, idx);
        if (parent == DIR_NONE || store_at(s, parent)->state != DIR_HOLE ||
            store_at(s, parent)->child != DIR_NONE)
            return;
        s->st.now.holes--;
        idx = parent;
    }
}

void store_lose_bytes(struct block_store *s, uint32_t idx) {
    struct dir_entry *e = store_at(s, idx);
    CHECK(e->slot[DIR_RAM] == SLOT_NONE && e->slot[DIR_DISK] == SLOT_NONE && !e->leases &&
          !e->list);
    if (e->state == DIR_RESIDENT) {
        s->st.now.blocks--;
        s->ns[e->ns].n_blocks--;
    }
    dir_set_state(&s->dir, idx, DIR_HOLE);
    dir_set_seq(e, 0);
    e->checksum = 0;
    e->disk_declined = 0;
    origins_give(&s->origins, (uint32_t)e->origin);
    e->origin = ORIGIN_NONE;
    if (e->child == DIR_NONE) {
        remove_entry(s, idx);
        return;
    }
    s->st.now.holes++;
    store_recalc_orphans(s, idx);
}

/* ---- RAM ----------------------------------------------------------------------------------- */

void store_drop_ram_copy(struct block_store *s, uint32_t idx) {
    struct dir_entry *e = store_at(s, idx);
    e->disk_declined = 0;
    store_set_ram(s, idx, TIER_NONE);
    ram_tier_disown(&s->ram, e->slot[DIR_RAM]);
    e->slot[DIR_RAM] = SLOT_NONE;
}

static bool may_leave_ram(const struct block_store *s, uint32_t idx) {
    return dir_list(store_at(s, idx), DIR_RAM) != DIR_UNLISTED;
}

static void count_unwritten(struct block_store *s, uint32_t idx) {
    s->st.evicted_unwritten +=
        dir_list(store_at(s, idx), DIR_RAM) == DIR_DIRTY && store_disk_works(s);
}

static void evict_ram(struct block_store *s, uint32_t idx) {
    bool is_last = store_at(s, idx)->disk != TIER_CLEAN;
    store_drop_ram_copy(s, idx);
    s->st.evicted_ram++;
    if (is_last) {
        s->st.evicted++;
        store_lose_bytes(s, idx);
    }
}

/* Blocks below one that is gone are of no use: they go too. What is held never lies below what may
 * leave. */
static void drop_below(struct block_store *s, uint32_t idx,
                       bool (*drop)(struct block_store *, uint32_t)) {
    while (store_at(s, idx)->child != DIR_NONE) {
        uint32_t c = store_at(s, idx)->child;
        while (store_at(s, c)->child != DIR_NONE)
            c = store_at(s, c)->child;
        if (!drop(s, c))
            return;
    }
}

static bool drop_ram_leaf(struct block_store *s, uint32_t idx) {
    if (!may_leave_ram(s, idx) || store_at(s, idx)->disk == TIER_CLEAN)
        return false;
    evict_ram(s, idx);
    return true;
}

static bool move_in_ram(struct block_store *s, uint32_t idx) {
    struct dir_entry *e = store_at(s, idx);
    uint32_t from = e->slot[DIR_RAM], to = ram_tier_take(&s->ram, store_cls(s, e), idx);
    if (to == SLOT_NONE || slot_extent(to) == slot_extent(from)) {
        if (to != SLOT_NONE)
            ram_tier_disown(&s->ram, to);
        return false;
    }
    memcpy(ram_tier_at(&s->ram, to), ram_tier_at(&s->ram, from), slots_bytes(&s->ram.slots, from));
    bool is_dirty = dir_list(e, DIR_RAM) == DIR_DIRTY;
    slots_note_idle(&s->ram.slots, from, is_dirty, -1);
    slots_note_idle(&s->ram.slots, to, is_dirty, 1);
    e->slot[DIR_RAM] = to;
    ram_tier_disown(&s->ram, from);
    return true;
}

/* The extent whose newest touch is the oldest of all goes to another slot size. may_lose: also with
 * blocks that wait for their write. */
static bool steal_ram_extent(struct block_store *s, uint32_t cls, bool may_lose) {
    uint32_t ext = slots_find_oldest(&s->ram.slots, may_lose);
    if (ext == UINT32_MAX || s->ram.slots.ext[ext].cls == cls)
        return false;
    slots_close(&s->ram.slots, ext);
    for (uint32_t i = 0; i < s->ram.slots.ext[ext].n_slots; i++) {
        uint32_t owner = ram_tier_side(&s->ram, slot_code(ext, i))->owner;
        if (owner == DIR_NONE || move_in_ram(s, owner))
            continue;
        if (store_at(s, owner)->disk != TIER_CLEAN)
            drop_below(s, owner, drop_ram_leaf);
        count_unwritten(s, owner);
        evict_ram(s, owner);
    }
    slots_unassign(&s->ram.slots, ext);
    s->st.extent_moved++;
    return true;
}

/* Orphans first; then what is on disk too, or has no disk to go to; when there is none of those, the
 * coldest that waits for its write: a slow disk must not be worse than none. */
static uint32_t ram_victim(struct block_store *s, uint32_t cls, bool may_lose) {
    static const enum dir_list order[] = {DIR_ORPHANS, DIR_MAIN, DIR_DIRTY};
    for (size_t i = 0; i < ARRAY_LEN(order) - !may_lose; i++) {
        uint32_t idx = s->policy.ops->victim(&s->policy, DIR_RAM, cls, order[i], 1, NULL, NULL);
        if (idx == DIR_NONE)
            continue;
        count_unwritten(s, idx);
        return idx;
    }
    return DIR_NONE;
}

bool store_may_take_ram(struct block_store *s, uint32_t cls) {
    if (ram_tier_has_free(&s->ram, cls) || s->ram.slots.n_classes > 1)
        return true;
    for (enum dir_list l = DIR_MAIN; l < DIR_LISTS; l++)
        if (s->policy.ops->victim(&s->policy, DIR_RAM, cls, l, 1, NULL, NULL) != DIR_NONE)
            return true;
    return false;
}

int store_take_ram(struct block_store *s, uint32_t cls, uint32_t owner, bool may_lose,
                   uint32_t *ret_slot) {
    for (int tries = 0; tries < 4; tries++) {
        uint32_t slot = ram_tier_take(&s->ram, cls, owner);
        if (slot != SLOT_NONE) {
            *ret_slot = slot;
            return 0;
        }
        if (s->ram.slots.n_classes > 1 && steal_ram_extent(s, cls, false))
            continue;
        uint32_t idx = ram_victim(s, cls, may_lose);
        if (idx == DIR_NONE && may_lose && steal_ram_extent(s, cls, true))
            continue;
        if (idx == DIR_NONE)
            break;
        evict_ram(s, idx);
    }
    return ERR_BUSY;
}

/* ---- disk ---------------------------------------------------------------------------------- */

static bool may_leave_disk(const struct block_store *s, uint32_t idx) {
    return dir_list(store_at(s, idx), DIR_DISK) != DIR_UNLISTED;
}

static void evict_disk(struct block_store *s, uint32_t idx) {
    struct dir_entry *e = store_at(s, idx);
    /* What is in RAM has been the coldest on disk: not there again before it leaves RAM. */
    e->disk_declined = entry_in_ram(e);
    store_set_disk(s, idx, TIER_NONE);
    disk_tier_forget(&s->disk, e->slot[DIR_DISK], /* has_header= */ true);
    e->slot[DIR_DISK] = SLOT_NONE;
    s->st.evicted_disk++;
    if (entry_in_ram(e)) {
        store_set_ram(s, idx, TIER_DIRTY);
    } else {
        s->st.evicted++;
        store_lose_bytes(s, idx);
    }
}

static bool drop_disk_leaf(struct block_store *s, uint32_t idx) {
    if (!may_leave_disk(s, idx) || entry_in_ram(store_at(s, idx)))
        return false;
    evict_disk(s, idx);
    return true;
}

static bool steal_disk_extent(struct block_store *s, uint32_t cls) {
    uint32_t ext = slots_find_oldest(&s->disk.slots, false);
    if (ext == UINT32_MAX || s->disk.slots.ext[ext].cls == cls)
        return false;
    for (uint32_t i = 0; i < s->disk.slots.ext[ext].n_slots; i++) {
        struct disk_slot *d = disk_tier_side(&s->disk, slot_code(ext, i));
        if (d->state != DS_LIVE)
            continue;
        uint32_t owner = d->owner;
        if (!entry_in_ram(store_at(s, owner)))
            drop_below(s, owner, drop_disk_leaf);
        evict_disk(s, owner);
    }
    s->st.extent_moved++;
    return disk_tier_reformat(&s->disk, ext, cls);
}

int store_make_disk_room(struct block_store *s, uint32_t cls) {
    if (disk_tier_format(&s->disk, cls) || s->disk.format_ext != UINT32_MAX)
        return 0;
    if (s->disk.slots.n_classes > 1 && steal_disk_extent(s, cls))
        return 0;
    uint32_t idx = s->policy.ops->victim(&s->policy, DIR_DISK, cls, DIR_ORPHANS, 1, NULL, NULL);
    if (idx == DIR_NONE)
        idx = s->policy.ops->victim(&s->policy, DIR_DISK, cls, DIR_MAIN, 1, NULL, NULL);
    if (idx == DIR_NONE) /* an extent may be free for another size when its headers are written */
        return s->disk.n_busy_extents ? 0 : ERR_BUSY;
    evict_disk(s, idx);
    return 1;
}

/* ---- directory ----------------------------------------------------------------------------- */

/* What lies below a block that is not held is not held either; the first way down ends at a leaf. */
static uint32_t leaf_below(const struct block_store *s, uint32_t idx) {
    for (uint32_t n = 0; store_at(s, idx)->child != DIR_NONE; idx = store_at(s, idx)->child)
        if (++n > LEAF_STEPS)
            return DIR_NONE;
    return idx;
}

/* Only an entry without children leaves the directory, with all copies it has. */
static bool may_leave_node(void *arg, uint32_t idx) {
    const struct block_store *s = arg;
    if (dir_is_held(store_at(s, idx)))
        return false;
    uint32_t leaf = leaf_below(s, idx);
    if (leaf == DIR_NONE)
        return false;
    const struct dir_entry *e = store_at(s, leaf);
    return (e->ram == TIER_NONE || may_leave_ram(s, leaf)) &&
           (e->disk == TIER_NONE || may_leave_disk(s, leaf));
}

static void evict_node(struct block_store *s, uint32_t idx) {
    struct dir_entry *e = store_at(s, idx);
    if (e->disk == TIER_CLEAN) {
        bool was_in_ram = entry_in_ram(e);
        evict_disk(s, idx);
        if (!was_in_ram)
            return;
    }
    evict_ram(s, idx);
}

/* When the extent of the entry's slot was last used: how old the entry is, as against those of other
 * sizes. */
static uint64_t extent_touch(const struct block_store *s, enum dir_tier t, uint32_t idx) {
    const struct slots *sl = t == DIR_RAM ? &s->ram.slots : &s->disk.slots;
    return sl->ext[slot_extent(store_at(s, idx)->slot[t])].touch;
}

/* The oldest of all sizes in both tiers: a leaf at or below it. */
static uint32_t node_victim(struct block_store *s) {
    static const enum dir_list order[] = {DIR_ORPHANS, DIR_MAIN, DIR_DIRTY};
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        uint32_t best = DIR_NONE;
        uint64_t best_touch = UINT64_MAX;
        for (enum dir_tier t = DIR_RAM; t <= (s->has_disk ? DIR_DISK : DIR_RAM); t++)
            for (uint32_t c = 0; c < s->ram.slots.n_classes; c++) {
                uint32_t idx = s->policy.ops->victim(&s->policy, t, c, order[i], NODE_STEPS,
                                                     may_leave_node, s);
                if (idx == DIR_NONE || extent_touch(s, t, idx) >= best_touch)
                    continue;
                best = idx;
                best_touch = extent_touch(s, t, idx);
            }
        if (best != DIR_NONE)
            return leaf_below(s, best);
    }
    return DIR_NONE;
}

bool store_ensure_entries(struct block_store *s, uint32_t n) {
    while (s->dir.n - s->n_promised + n > s->cfg.max_blocks) {
        uint32_t idx = node_victim(s);
        if (idx == DIR_NONE)
            return false;
        evict_node(s, idx);
    }
    return true;
}

/* ---- removal by force ---------------------------------------------------------------------- */

void store_remove(struct block_store *s, uint32_t idx) {
    struct dir_entry *e = store_at(s, idx);
    CHECK(e->state == DIR_RESIDENT);
    store_lease_forget(s, idx);
    bool was_held = dir_is_held(e);
    e->pins = 0;
    dir_held_changed(&s->dir, idx, was_held);
    if (entry_in_ram(e)) {
        store_drop_ram_copy(s, idx);
    } else if (e->ram == TIER_READING) { /* the read's own reference keeps the slot until it ends */
        store_set_ram(s, idx, TIER_NONE);
        ram_tier_disown(&s->ram, e->slot[DIR_RAM]);
        e->slot[DIR_RAM] = SLOT_NONE;
    }
    if (e->disk != TIER_NONE) {
        store_set_disk(s, idx, TIER_NONE);
        /* A payload in flight has no header yet; its write gives the slot back when it ends. */
        if (disk_tier_side(&s->disk, e->slot[DIR_DISK])->state == DS_LIVE)
            disk_tier_forget(&s->disk, e->slot[DIR_DISK], /* has_header= */ true);
        e->slot[DIR_DISK] = SLOT_NONE;
    }
    store_lose_bytes(s, idx);
}
