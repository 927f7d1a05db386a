/* Write-behind: each committed block goes to disk soon, so that whoever leaves RAM is usually
 * clean.
 *
 *   RAM dirty -> disk slot -> payload written -> header marked -> synced: clean in both tiers
 * A few writes at a time: reads of waiting workers share the same disk. When the disk fails, RAM
 * serves alone for a while and blocks leave it unwritten; then the disk is tried again. */
#include "cachesvc/store/store_priv.h"

#include "common/check.h"

void store_behind_encode(void *arg, uint32_t owner, struct disk_slot_hdr *ret) {
    const struct block_store *s = arg;
    const struct dir_entry *e = store_at(s, owner);
    const struct store_ns *ns = &s->ns[e->ns];
    ret->put_seq = dir_seq(e);
    ret->generation = dir_seq(e); /* a slot's new content has a new sequence number */
    const struct origin *o = origins_at(&s->origins, (uint32_t)e->origin);
    ret->put_time_ms = e->time_ms;
    ret->group = o->group;
    ret->checksum = e->checksum;
    ret->id = e->id;
    memcpy(ret->ns, ns->digest, sizeof(ret->ns));
    memcpy(ret->writer, o->writer, sizeof(ret->writer));
    ret->payload_len = ns->shape.payload_bytes;
    ret->stored_len = ns->shape.payload_bytes;
    ret->n_ranges = ns->shape.n_ranges;
    ret->depth = e->depth;
    if (e->parent != DIR_NONE) {
        const struct dir_entry *p = store_at(s, e->parent);
        ret->parent = p->id;
        ret->flags = p->state == DIR_HOLE && p->foreign ? DISK_SLOT_FOREIGN_PARENT : 0;
    }
}

void store_behind_push(struct block_store *s, uint32_t idx) {
    if (!s->has_disk)
        return;
    if (s->behind_n == s->behind_cap) { /* twice in the ring and stale: found again on tick */
        s->rescan_dirty = true;
        return;
    }
    s->behind[(s->behind_head + s->behind_n++) % s->behind_cap] =
        (struct entry_ref){idx, dir_seq(store_at(s, idx))};
}

static bool is_wanted(const struct block_store *s, struct entry_ref r) {
    const struct dir_entry *e = store_at(s, r.idx);
    return store_ref_is_live(s, r) && e->ram == TIER_DIRTY && e->disk == TIER_NONE &&
           !e->disk_declined;
}

static bool is_ours(const struct store_write *w) {
    const struct dir_entry *e = store_at(w->s, w->e.idx);
    return store_ref_is_live(w->s, w->e) && e->disk == TIER_WRITING &&
           e->slot[DIR_DISK] == w->disk_slot;
}

static void finish(struct store_write *w) {
    struct block_store *s = w->s;
    s->st.now.writes_in_flight--;
    list_push_back(&s->free_writes, &w->link);
    store_behind_pump(s);
}

static void give_up(struct store_write *w, bool has_header) {
    struct block_store *s = w->s;
    if (is_ours(w)) {
        store_set_disk(s, w->e.idx, TIER_NONE);
        store_at(s, w->e.idx)->slot[DIR_DISK] = SLOT_NONE;
    }
    disk_tier_forget(&s->disk, w->disk_slot, has_header);
}

static void on_header(struct disk_wait *wait, int rv) {
    struct store_write *w = CONTAINER_OF(wait, struct store_write, wait);
    struct block_store *s = w->s;
    if (w->sync_errors != s->disk.n_sync_errors)
        rv = rv < 0 ? rv : -5 /* EIO: the payload may be what was lost */;
    s->st.disk_write_error += rv < 0;
    if (is_ours(w) && rv < 0) {
        give_up(w, /* has_header= */ true);
    } else if (is_ours(w)) {
        if (store_at(s, w->e.idx)->ram == TIER_DIRTY)
            store_set_ram(s, w->e.idx, TIER_CLEAN);
        store_set_disk(s, w->e.idx, TIER_CLEAN);
        s->st.disk_written++;
    } /* else an operator removed the block, and its slot is being cleared */
    finish(w);
}

static void on_payload(struct disk_op *op) {
    struct store_write *w = CONTAINER_OF(op, struct store_write, op);
    struct block_store *s = w->s;
    ram_tier_unref(&s->ram, w->ram_slot);
    if (op->rv < 0 || !is_ours(w)) {
        if (op->rv < 0) {
            s->st.disk_write_error++;
            disk_tier_fail(&s->disk, op->rv, "write of a block");
        }
        give_up(
            w, /* has_header= */ false); /* what the table says of the slot is as stale as it was */
        finish(w);
        return;
    }
    disk_tier_publish(&s->disk, w->disk_slot, &w->wait, on_header);
}

/* 1: the write is under way; 0: wait; ERR_NOSPACE: nothing on disk may leave for it; ERR_BUSY. */
static int start_write(struct block_store *s, struct entry_ref r) {
    struct dir_entry *e = store_at(s, r.idx);
    uint32_t cls = store_cls(s, e), slot = disk_tier_take(&s->disk, cls, r.idx);
    if (slot == SLOT_NONE) {
        int rv = store_make_disk_room(s, cls);
        if (rv <= 0)
            return rv == 0 ? 0 : ERR_NOSPACE;
        slot = disk_tier_take(&s->disk, cls, r.idx);
        if (slot == SLOT_NONE)
            return 0;
    }
    struct store_write *w = LIST_ENTRY(list_pop_front(&s->free_writes), struct store_write, link);
    w->s = s;
    w->e = r;
    w->disk_slot = slot;
    w->sync_errors = s->disk.n_sync_errors;
    w->ram_slot = e->slot[DIR_RAM];
    w->op = (struct disk_op){.done = on_payload};
    if (disk_tier_submit(&s->disk, &w->op, DISK_WRITE, slot, ram_tier_at(&s->ram, w->ram_slot)) <
        0) {
        disk_tier_forget(&s->disk, slot, false);
        list_push_back(&s->free_writes, &w->link);
        return 0;
    }
    ram_tier_ref(&s->ram, w->ram_slot);
    e->slot[DIR_DISK] = slot;
    store_set_disk(s, r.idx, TIER_WRITING);
    s->st.now.writes_in_flight++;
    return 1;
}

void store_behind_pump(struct block_store *s) {
    while (store_disk_works(s) && !s->is_closing && s->behind_n > 0 &&
           !list_empty(&s->free_writes)) {
        struct entry_ref r = s->behind[s->behind_head];
        int rv = is_wanted(s, r) ? start_write(s, r) : 1;
        if (rv == 0)
            return;
        if (rv < 0) {
            store_at(s, r.idx)->disk_declined = 1;
            store_settle(s, r.idx);
        }
        s->behind_head = --s->behind_n == 0 ? 0 : (s->behind_head + 1) % s->behind_cap;
    }
}

void store_behind_tick(struct block_store *s) {
    if (!s->has_disk)
        return;
    disk_tier_tick(&s->disk);
    if (s->disk.is_failing) {
        /* Who waits for a read that hangs has better things to do. */
        if (disk_tier_is_stalled(&s->disk))
            store_reads_cancel(s, ERR_NOTFOUND);
        return;
    }
    if (s->rescan_dirty) {
        s->rescan_dirty = false;
        for (uint32_t i = 0; i < s->dir.n_fresh; i++) {
            const struct dir_entry *e = store_at(s, i);
            if (e->state == DIR_RESIDENT && e->ram == TIER_DIRTY && e->disk == TIER_NONE &&
                !e->disk_declined)
                store_behind_push(s, i);
        }
    }
    store_behind_pump(s);
}
