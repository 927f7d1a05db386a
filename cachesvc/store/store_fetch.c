/* Fetch: from RAM at once, from disk by one read that everybody who wants the block shares.
 *
 *   in RAM -------------------------------------------------> ref
 *   on disk -> slot (RAM, else reserve) -> read + checksums --> ref, the block is in RAM now
 *                                             \--bad bytes----> block dropped, counted, miss
 * Promotion keeps the disk copy. A read into the reserve leaves nothing behind. */
#include "cachesvc/store/store_priv.h"

#include "common/check.h"

/* What is being sent may not leave. */
static void use_slot(struct block_store *s, uint32_t slot,
                     void (*change)(struct ram_tier *, uint32_t)) {
    uint32_t owner = ram_tier_side(&s->ram, slot)->owner;
    change(&s->ram, slot);
    if (owner != DIR_NONE)
        store_settle(s, owner);
}

static void fill_ref(struct block_store *s, const struct store_ns *ns, uint64_t checksum,
                     const uint8_t *writer, uint64_t time_ms, uint32_t slot,
                     struct store_ref *ret) {
    const uint8_t *p = ram_tier_at(&s->ram, slot);
    *ret = (struct store_ref){
        .payload = p,
        .sums = p + ns->shape.payload_bytes,
        .ends = p + ns->shape.payload_bytes + 8 * (size_t)ns->shape.n_ranges,
        .payload_bytes = ns->shape.payload_bytes,
        .n_ranges = ns->shape.n_ranges,
        .checksum = checksum,
        .file_off = slots_off(&s->ram.slots, slot),
        .slot = slot,
        .time_ms = time_ms,
    };
    memcpy(ret->writer, writer, sizeof(ret->writer));
    use_slot(s, slot, ram_tier_ref);
    s->st.now.refs++;
}

void block_store_ref_drop(struct block_store *s, struct store_ref *ref) {
    use_slot(s, ref->slot, ram_tier_unref);
    s->st.now.refs--;
    *ref = (struct store_ref){.slot = SLOT_NONE};
}

static void tell_waiters(struct store_read *r, int rv, const struct store_ns *ns) {
    struct block_store *s = r->s;
    for (struct list *l; (l = list_pop_front(&r->waiters));) {
        struct store_fetch *f = LIST_ENTRY(l, struct store_fetch, link);
        f->read = NULL;
        struct store_ref ref = {.slot = SLOT_NONE};
        if (rv == 0) {
            fill_ref(s, ns, r->op.checksum, r->writer, r->time_ms, r->ram_slot, &ref);
            s->st.fetch_disk++;
        } else {
            s->st.fetch_miss++;
        }
        f->cb(f->arg, rv, rv == 0 ? &ref : NULL);
    }
}

/* The block is whole and its entry still wants it. */
static void arrived(struct store_read *r) {
    struct block_store *s = r->s;
    uint32_t idx = r->e.idx;
    struct dir_entry *e = store_at(s, idx);
    if (r->is_bounce) {
        store_set_ram(s, idx, TIER_NONE);
        ram_tier_disown(&s->ram, r->ram_slot); /* refs keep it until the last send has ended */
        e->slot[DIR_RAM] = SLOT_NONE;
        s->st.bounced++;
        return;
    }
    store_set_ram(s, idx, TIER_CLEAN);
    s->st.promoted++;
}

static void on_read(struct disk_op *op) {
    struct store_read *r = CONTAINER_OF(op, struct store_read, op);
    struct block_store *s = r->s;
    struct dir_entry *e = store_at(s, r->e.idx);
    bool is_live =
        store_ref_is_live(s, r->e) && e->ram == TIER_READING && e->slot[DIR_RAM] == r->ram_slot;
    const struct store_ns *ns = &s->ns[e->ns];
    int rv = is_live ? op->rv : ERR_NOTFOUND;
    if (is_live && rv == 0) {
        arrived(r);
    } else if (is_live) {
        s->st.disk_corrupt += rv == ERR_CORRUPT;
        s->st.disk_read_error += rv != ERR_CORRUPT;
        if (rv != ERR_CORRUPT)
            disk_tier_fail(&s->disk, rv, "read of a block");
        /* Its headers too, old ones as well: they vouch for bytes that are not there. */
        store_remove(s, r->e.idx);
        disk_tier_clear_stale(&s->disk);
        rv = ERR_NOTFOUND;
    }
    s->st.now.reads_in_flight--;
    tell_waiters(r, s->is_closing ? ERR_CANCELED : rv, ns);
    use_slot(s, r->ram_slot, ram_tier_unref);
    list_push_back(&s->free_reads, &r->link);
}

static int take_slot(struct block_store *s, uint32_t idx, struct store_read *r) {
    uint32_t cls = store_cls(s, store_at(s, idx));
    r->is_bounce = false;
    /* A copy of what the disk has is worth less than a block that it has not: rather the reserve. */
    if (store_take_ram(s, cls, idx, /* may_lose= */ false, &r->ram_slot) == 0)
        return 0;
    r->ram_slot = ram_tier_take_reserve(&s->ram, cls, idx);
    r->is_bounce = true;
    return r->ram_slot == SLOT_NONE ? ERR_BUSY : 0;
}

static struct store_read *start_read(struct block_store *s, uint32_t idx) {
    struct list *l = list_pop_front(&s->free_reads);
    if (!l)
        return NULL;
    struct store_read *r = LIST_ENTRY(l, struct store_read, link);
    struct dir_entry *e = store_at(s, idx);
    if (take_slot(s, idx, r) < 0) {
        list_push_back(&s->free_reads, &r->link);
        return NULL;
    }
    r->s = s;
    r->e = (struct entry_ref){idx, dir_seq(e)};
    memcpy(r->writer, origins_at(&s->origins, (uint32_t)e->origin)->writer, sizeof(r->writer));
    r->time_ms = e->time_ms;
    list_init(&r->waiters);
    r->op = (struct disk_op){
        .payload_bytes = s->ns[e->ns].shape.payload_bytes,
        .n_ranges = s->ns[e->ns].shape.n_ranges,
        .checksum = e->checksum,
        .id = e->id,
        .done = on_read,
    };
    ram_tier_ref(&s->ram, r->ram_slot);
    if (disk_tier_submit(&s->disk, &r->op, DISK_READ_BLOCK, e->slot[DIR_DISK],
                         ram_tier_at(&s->ram, r->ram_slot)) < 0) {
        ram_tier_disown(&s->ram, r->ram_slot);
        ram_tier_unref(&s->ram, r->ram_slot);
        list_push_back(&s->free_reads, &r->link);
        return NULL;
    }
    e->slot[DIR_RAM] = r->ram_slot;
    store_set_ram(s, idx, TIER_READING);
    *dir_busy_with(e) = (uint32_t)(r - s->reads);
    s->st.now.reads_in_flight++;
    return r;
}

int block_store_fetch(struct block_store *s, struct store_fetch *f, uint32_t ns,
                      const struct block_id *id, struct store_ref *ret_ref, store_fetch_cb cb,
                      void *arg) {
    uint32_t idx = dir_find(&s->dir, ns, id);
    if (idx == DIR_NONE || !store_is_there(s, store_at(s, idx)) || s->is_closing) {
        s->st.fetch_miss++;
        return ERR_NOTFOUND;
    }
    struct dir_entry *e = store_at(s, idx);
    if (entry_in_ram(e)) {
        fill_ref(s, &s->ns[ns], e->checksum, origins_at(&s->origins, (uint32_t)e->origin)->writer,
                 e->time_ms, e->slot[DIR_RAM], ret_ref);
        s->st.fetch_ram++;
        return 1;
    }
    if (!store_disk_works(s)) { /* a read might fail or hang, and would drop the block */
        s->st.fetch_miss++;
        return ERR_NOTFOUND;
    }
    struct store_read *r =
        e->ram == TIER_READING ? &s->reads[*dir_busy_with(e)] : start_read(s, idx);
    if (!r) {
        s->st.fetch_busy++;
        return ERR_BUSY;
    }
    *f = (struct store_fetch){.cb = cb, .arg = arg, .s = s, .read = r};
    list_push_back(&r->waiters, &f->link);
    return 0;
}

void block_store_fetch_cancel(struct store_fetch *f) {
    if (!f->read)
        return;
    list_remove(&f->link);
    f->read = NULL;
}

void store_reads_cancel(struct block_store *s, int rv) {
    for (uint32_t i = 0; i < s->cfg.max_disk_reads; i++)
        if (s->reads[i].s && !list_empty(&s->reads[i].waiters))
            tell_waiters(&s->reads[i], rv, NULL);
}
