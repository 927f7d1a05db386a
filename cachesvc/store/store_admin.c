/* What an operator sees and removes. */
#include "cachesvc/store/store_priv.h"

#define LIST_STEPS 4096u

static bool entry_matches(const struct block_store *s, const struct dir_entry *e,
                          const struct store_filter *f, bool resident_only) {
    if (e->state == DIR_HOLE || (resident_only && e->state != DIR_RESIDENT))
        return false;
    if (f->by_ns && e->ns != f->ns)
        return false;
    const struct origin *o = origins_at(&s->origins, (uint32_t)e->origin);
    if (f->by_writer && memcmp(o->writer, f->writer, sizeof(o->writer)) != 0)
        return false;
    /* A block that is being written has no put time yet; it is newer than anything there. */
    if (f->by_time && e->state == DIR_FILLING)
        return f->time_to_ms == UINT64_MAX;
    return !f->by_time || (e->time_ms >= f->time_from_ms && e->time_ms <= f->time_to_ms);
}

static void remove_one(struct block_store *s, struct store_evict *ev, uint32_t idx) {
    struct dir_entry *e = store_at(s, idx);
    ev->n_blocks++;
    ev->bytes += s->ns[e->ns].shape.payload_bytes;
    s->st.removed++;
    if (e->state == DIR_FILLING)
        store_abort_filling(s, idx);
    else
        store_remove(s, idx);
}

static bool wants(const struct block_store *s, const struct store_filter *f, uint32_t idx,
                  bool filling) {
    const struct dir_entry *e = store_at(s, idx);
    return (e->state == DIR_FILLING) == filling && entry_matches(s, e, f, false);
}

/* Whatever is being written below id (or id itself). An abort calls commits back, and they may end
 * puts: so the walk begins again after each. */
static void abort_below(struct block_store *s, struct store_evict *ev, const struct store_filter *f,
                        uint32_t ns, const struct block_id *id) {
    uint32_t root, cur;
    do {
        root = dir_find(&s->dir, ns, id);
        for (cur = root; cur != DIR_NONE; cur = dir_walk(&s->dir, root, cur, f->descendants))
            if (wants(s, f, cur, /* filling= */ true))
                break;
        if (cur != DIR_NONE)
            remove_one(s, ev, cur);
    } while (cur != DIR_NONE);
}

/* A block with children stays as a hole while the walk goes on below it; one without takes along
 * only parents that have no other child, hence never what comes next. */
static void remove_below(struct block_store *s, struct store_evict *ev,
                         const struct store_filter *f, uint32_t ns, const struct block_id *id) {
    abort_below(s, ev, f, ns, id);
    uint32_t root = dir_find(&s->dir, ns, id);
    for (uint32_t cur = root; cur != DIR_NONE;) {
        uint32_t next = dir_walk(&s->dir, root, cur, f->descendants);
        if (wants(s, f, cur, /* filling= */ false))
            remove_one(s, ev, cur);
        cur = next;
    }
}

static void on_synced(struct disk_wait *w, int rv) {
    struct block_store *s = CONTAINER_OF(w, struct block_store, evict_wait);
    s->evict_waiting = false;
    s->evict_rv = rv;
    struct list done;
    list_move(&s->evicts, &done);
    /* Those that came after this wait began need one of their own. */
    for (struct list *l; (l = list_pop_front(&done));) {
        struct store_evict *ev = LIST_ENTRY(l, struct store_evict, link);
        if (rv == 0 && (ev->target > w->target || s->disk.format_ext != UINT32_MAX)) {
            list_push_back(&s->evicts, &ev->link);
            continue;
        }
        ev->cb(ev->arg, rv, ev->n_blocks, ev->bytes);
    }
    store_evict_progress(s);
}

/* An extent that is being given a new generation still has its old headers on disk: wait for that
 * too. The tier tells us of its end (on_format), and then this runs again. */
void store_evict_progress(struct block_store *s) {
    if (s->evict_waiting || list_empty(&s->evicts))
        return;
    if (s->disk.format_ext != UINT32_MAX && !s->disk.format_failed)
        return;
    s->evict_waiting = true;
    disk_tier_wait(&s->disk, &s->evict_wait, on_synced);
}

void block_store_evict(struct block_store *s, struct store_evict *ev, const struct store_filter *f,
                       void (*cb)(void *arg, int rv, uint64_t n_blocks, uint64_t bytes),
                       void *arg) {
    *ev = (struct store_evict){.cb = cb, .arg = arg};
    if (f->ids) {
        uint32_t from = f->by_ns ? f->ns : 0, to = f->by_ns ? f->ns + 1 : s->n_ns;
        for (uint32_t ns = from; ns < to; ns++)
            for (uint32_t i = 0; i < f->n_ids; i++)
                remove_below(s, ev, f, ns, &f->ids[i]);
    } else {
        for (uint32_t i = 0; i < s->dir.n_fresh; i++)
            if (s->dir.entries[i].state != DIR_HOLE && entry_matches(s, store_at(s, i), f, false))
                remove_one(s, ev, i);
    }
    if (!s->has_disk) {
        cb(arg, 0, ev->n_blocks, ev->bytes);
        return;
    }
    /* Stale headers name blocks that the directory has forgotten, so which of them match is not
     * known: all go. They were evicted; nothing but a restart could have brought them back. */
    disk_tier_clear_stale(&s->disk);
    ev->target = s->disk.n_queued;
    list_push_back(&s->evicts, &ev->link);
    store_evict_progress(s);
}

/* ---- looking ------------------------------------------------------------------------------- */

const char *store_tier_state_name(uint8_t state) {
    static const char *const names[] = {"none", "reading", "writing", "clean", "dirty"};
    return state < ARRAY_LEN(names) ? names[state] : "?";
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
    if (idx == DIR_NONE)
        return ERR_NOTFOUND;
    describe(s, idx, ret);
    return 0;
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
        if (entry_matches(s, e, f, true) && is_named(e, f))
            describe(s, (uint32_t)at, &ret[n++]);
    }
    *cursor = at >= s->dir.n_fresh ? 0 : at;
    return n;
}
