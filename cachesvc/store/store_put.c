/* Put: begin, fill, verify, commit. A block's way:
 *
 *   WAITING --open--> OPEN --filled, checksum fits--> FILLED --commit--> DONE (visible)
 *      \                \--unfilled, wrong checksum, timeout, session gone--> DEAD
 *
 * WAITING is a promise: an entry that holds its ancestors, but no slot. Promises and slots of puts are
 * shared among sessions, each within max_put_bytes: promises can be taken back, slots can't.
 * The slot of an OPEN block is referenced by its fill, so that bytes still arriving for a dead
 * block never land in somebody else's. */
#include "cachesvc/store/store_priv.h"

#include "common/check.h"
#include "common/checksum.h"

/* ---- begin --------------------------------------------------------------------------------- */

/* What is already known of the block; STORE_PUT_WANTED: a hole, to be written. */
static enum store_put_status offer_known(const struct block_store *s,
                                         const struct store_put_block *b,
                                         const struct dir_entry *e) {
    if (e->depth != b->depth)
        return STORE_PUT_BAD;
    if (e->parent != DIR_NONE && !block_id_equal(&store_at(s, e->parent)->id, &b->parent))
        return STORE_PUT_BAD;
    if (e->state == DIR_HOLE)
        return STORE_PUT_WANTED;
    if (e->checksum != b->checksum)
        return STORE_PUT_CONFLICT;
    return e->state == DIR_FILLING ? STORE_PUT_IN_FLIGHT : STORE_PUT_PRESENT;
}

/* The parent's entry, made as a hole if it has none; DIR_NONE at depth 0. */
static uint32_t resolve_parent(struct block_store *s, uint32_t ns,
                               const struct store_put_block *b) {
    if (b->depth == 0)
        return DIR_NONE;
    uint32_t idx = dir_find(&s->dir, ns, &b->parent);
    if (idx == DIR_NONE) {
        idx = dir_add(&s->dir, ns, &b->parent);
        struct dir_entry *p = store_at(s, idx);
        p->depth = (b->depth - 1) & DIR_DEPTH_MAX;
        p->foreign = (b->flags & STORE_PUT_PARENT_ELSEWHERE) != 0;
        s->st.now.holes++;
    }
    return idx;
}

/* What a block inherits from its parent in the same put: below one that is refused nothing is taken,
 * for it would be an orphan from the start; below a bad one nothing can be right. */
static enum store_put_status inherited(const struct store_put_args *a, const uint8_t *status,
                                       uint32_t i) {
    const struct block_id *parent = &a->blocks[i].parent;
    for (uint32_t k = i; a->blocks[i].depth > 0 && k-- > 0;) {
        if (!block_id_equal(&a->blocks[k].id, parent))
            continue;
        if (status[k] == STORE_PUT_BAD)
            return STORE_PUT_BAD;
        bool is_refused = status[k] == STORE_PUT_BUSY || status[k] == STORE_PUT_CONFLICT ||
                          status[k] == STORE_PUT_REMOVED;
        return is_refused ? STORE_PUT_BUSY : STORE_PUT_WANTED;
    }
    return STORE_PUT_WANTED;
}

/* When the block was first put: what the client says of it, but nothing comes from the future. */
static uint64_t origin_ms(const struct block_store *s, const struct store_put_block *b) {
    uint64_t now = store_pool_ms(s);
    return b->time_ms ? MIN(b->time_ms, now) : now;
}

/* Not more than could be filled now. Below its share a session that is refused waits for the rest of
 * its put: others' promises are taken back for it (store_put_tick()). */
static bool promise(struct store_put *p, uint32_t n_left) {
    struct store_session *ss = p->ss;
    uint64_t bytes = ss->s->ns[p->ns].slot_bytes;
    if (share_may(&ss->fills, ss->promises.used + bytes) && share_take(&ss->promises, bytes))
        return true;
    uint64_t share = share_of(&ss->promises);
    if (ss->promises.used < share) {
        share_wait(&ss->promises, MIN(n_left * bytes, share - ss->promises.used));
        ss->promise_waits_until = store_now(ss->s) + ss->s->cfg.put_ttl_ns;
    }
    return false;
}

/* A place in the directory for a block nobody has: a promise, without a slot until its bytes come, for
 * which nothing that is there goes. It holds all ancestors from here on. */
static enum store_put_status begin_block(struct block_store *s, struct store_put *p,
                                         const struct store_put_args *a, uint32_t i) {
    const struct store_put_block *b = &a->blocks[i];
    if (s->dir.cap - s->dir.n < 2 || !store_may_take_ram(s, s->ns_class[a->ns]) ||
        !promise(p, a->n - i))
        return STORE_PUT_BUSY;
    int origin = origins_take(&s->origins, b->writer ? b->writer : a->writer, a->group);
    if (origin < 0) {
        share_give(&p->ss->promises, s->ns[p->ns].slot_bytes);
        return STORE_PUT_BUSY;
    }
    uint32_t n_before = s->dir.n, parent = resolve_parent(s, a->ns, b),
             idx = dir_find(&s->dir, a->ns, &b->id);
    if (idx == DIR_NONE)
        idx = dir_add(&s->dir, a->ns, &b->id);
    else
        s->st.now.holes--;
    struct dir_entry *e = store_at(s, idx);
    e->depth = b->depth & DIR_DEPTH_MAX;
    e->checksum = b->checksum;
    e->origin = (uint64_t)origin & UINT16_MAX;
    e->time_ms = origin_ms(s, b) & DIR_TIME_MAX;
    if (e->parent == DIR_NONE && parent != DIR_NONE)
        dir_link_parent(&s->dir, idx, parent);
    dir_set_state(&s->dir, idx, DIR_FILLING);
    *dir_busy_with(e) = (uint32_t)(p - s->puts);
    s->st.now.filling_blocks++;
    p->blk[i] = (struct put_blk){.entry = idx,
                                 .slot = SLOT_NONE,
                                 .n_entries = (s->dir.n - n_before) & 3,
                                 .state = PUT_BLK_WAITING};
    s->n_promised += p->blk[i].n_entries;
    return STORE_PUT_WANTED;
}

static bool parent_fits(const struct block_store *s, uint32_t ns, const struct store_put_block *b) {
    if (b->depth == 0)
        return true;
    uint32_t idx = dir_find(&s->dir, ns, &b->parent);
    return !block_id_equal(&b->id, &b->parent) &&
           (idx == DIR_NONE || store_at(s, idx)->depth == b->depth - 1);
}

static void count_status(struct block_store *s, uint8_t status) {
    s->st.put_wanted += status == STORE_PUT_WANTED;
    s->st.put_present += status == STORE_PUT_PRESENT;
    s->st.put_in_flight += status == STORE_PUT_IN_FLIGHT;
    s->st.conflict += status == STORE_PUT_CONFLICT;
    s->st.put_busy += status == STORE_PUT_BUSY;
    s->st.put_bad += status == STORE_PUT_BAD;
    s->st.put_removed += status == STORE_PUT_REMOVED;
}

static enum store_put_status offer(struct block_store *s, struct store_put *p,
                                   const struct store_put_args *a, uint32_t i,
                                   const uint8_t *status) {
    const struct store_put_block *b = &a->blocks[i];
    if (b->depth > DIR_DEPTH_MAX || !parent_fits(s, a->ns, b))
        return STORE_PUT_BAD;
    if (store_removal_matches(s, a->ns, &b->id, b->writer ? b->writer : a->writer, a->group,
                              origin_ms(s, b)))
        return STORE_PUT_REMOVED;
    uint32_t idx = dir_find(&s->dir, a->ns, &b->id);
    if (idx != DIR_NONE && store_at(s, idx)->state == DIR_RESIDENT &&
        !store_is_there(s, store_at(s, idx))) {
        store_remove(s, idx); /* its sweep has not come to it yet */
        idx = dir_find(&s->dir, a->ns, &b->id);
    }
    enum store_put_status st =
        idx == DIR_NONE ? STORE_PUT_WANTED : offer_known(s, b, store_at(s, idx));
    if (st == STORE_PUT_WANTED)
        st = inherited(a, status, i);
    if (st == STORE_PUT_WANTED)
        st = begin_block(s, p, a, i);
    if (st == STORE_PUT_PRESENT)
        p->blk[i].state = PUT_BLK_PRESENT;
    return st;
}

int block_store_put_begin(struct store_session *ss, const struct store_put_args *a, uint8_t *status,
                          struct store_put **ret, struct errbuf *eb) {
    struct block_store *s = ss->s;
    *ret = NULL;
    if (a->ns >= s->n_ns || !s->ns[a->ns].shape.range_sizes || a->n == 0 ||
        a->n > s->cfg.max_put_blocks)
        return err_set(eb, ERR_INVALID, "put of %u blocks in namespace %u", a->n, a->ns);
    struct list *l = list_pop_front(&s->free_puts);
    if (!l)
        return err_set(eb, ERR_BUSY, "no put free");
    struct store_put *p = LIST_ENTRY(l, struct store_put, link);
    p->ss = ss;
    p->id = ++s->put_serial;
    p->ns = a->ns;
    p->n = a->n;
    p->deadline = store_now(s) + s->cfg.put_ttl_ns;
    list_init(&p->commits);
    memset(p->blk, 0, a->n * sizeof(*p->blk));
    list_push_back(&ss->puts, &p->link);
    s->st.now.puts++;
    bool has_wanted = false;
    for (uint32_t i = 0; i < a->n; i++) {
        status[i] = (uint8_t)offer(s, p, a, i, status);
        has_wanted |= status[i] == STORE_PUT_WANTED;
        count_status(s, status[i]);
    }
    if (has_wanted)
        *ret = p;
    else
        store_put_free(p);
    return 0;
}

uint64_t block_store_put_id(const struct store_put *p) {
    return p->id;
}

struct store_put *block_store_put_find(struct store_session *ss, uint64_t put_id) {
    LIST_FOREACH(&ss->puts, l) {
        struct store_put *p = LIST_ENTRY(l, struct store_put, link);
        if (p->id == put_id)
            return p;
    }
    return NULL;
}

/* ---- commit -------------------------------------------------------------------------------- */

/* The block is no promise any more. */
static void keep_promise(struct store_put *p, struct put_blk *b) {
    struct block_store *s = p->ss->s;
    share_give(&p->ss->promises, s->ns[p->ns].slot_bytes);
    s->n_promised -= b->n_entries;
}

static void release_bytes(struct store_put *p, struct put_blk *b) {
    struct block_store *s = p->ss->s;
    if (b->state == PUT_BLK_WAITING)
        keep_promise(p, b);
    else
        share_give(&p->ss->fills, s->ns[p->ns].slot_bytes);
    s->st.now.filling_blocks--;
}

/* The end of its hold touches the whole chain (store_on_held()). */
static void publish(struct block_store *s, struct store_put *p, struct put_blk *b) {
    uint32_t idx = b->entry;
    struct dir_entry *e = store_at(s, idx);
    release_bytes(p, b);
    b->state = PUT_BLK_DONE;
    dir_set_seq(e, ++s->seq);
    s->newest_ms = MAX(s->newest_ms, (uint64_t)e->time_ms);
    s->ns[e->ns].n_blocks++;
    e->foreign = 0;
    dir_set_state(&s->dir, idx, DIR_RESIDENT);
    store_set_orphan(s, idx, store_orphan_below(s, e->parent));
    store_set_ram(s, idx, TIER_DIRTY);
    store_recalc_orphans(s, idx);
    s->st.now.blocks++;
    s->st.committed++;
    store_behind_push(s, idx);
    if (s->cfg.on_seg_visible && store_is_seg_first(s, e))
        s->cfg.on_seg_visible(s->cfg.hook_arg, s->ns[e->ns].digest, &e->id);
}

static void commit_resolved(struct store_commit *c, bool ok) {
    c->n_done += ok;
    if (--c->n_wait > 0 || c->in_call)
        return;
    list_remove(&c->link);
    if (c->cb)
        c->cb(c->arg, c->n_done);
}

int block_store_put_commit(struct store_put *p, struct store_commit *c, const uint32_t *idx,
                           uint32_t n, uint32_t *ret_done, store_commit_cb cb, void *arg) {
    struct block_store *s = p->ss->s;
    for (uint32_t k = 0; k < n; k++)
        if (idx[k] >= p->n || p->blk[idx[k]].commit || p->blk[idx[k]].state == PUT_BLK_DONE)
            return ERR_INVALID;
    *c = (struct store_commit){.cb = cb, .arg = arg, .put = p, .in_call = true};
    list_push_back(&p->commits, &c->link);
    p->deadline = store_now(s) + s->cfg.put_ttl_ns;
    for (uint32_t k = 0; k < n; k++) {
        struct put_blk *b = &p->blk[idx[k]];
        if (b->state == PUT_BLK_FILLED) {
            publish(s, p, b);
            c->n_done++;
        } else if (b->state == PUT_BLK_WAITING || b->state == PUT_BLK_OPEN) {
            b->commit = c;
            c->n_wait++;
        } else {
            c->n_done +=
                b->state == PUT_BLK_PRESENT || b->state == PUT_BLK_DONE; /* DONE: named twice */
        }
    }
    store_behind_pump(s);
    c->in_call = false;
    if (c->n_wait > 0)
        return 0;
    list_remove(&c->link);
    *ret_done = c->n_done;
    return 1;
}

void block_store_put_commit_cancel(struct store_commit *c) {
    list_remove(&c->link);
    for (uint32_t i = 0; i < c->put->n; i++) {
        struct put_blk *b = &c->put->blk[i];
        if (b->commit == c)
            *b = (struct put_blk){.entry = b->entry,
                                  .slot = b->slot,
                                  .n_entries = b->n_entries,
                                  .state = b->state,
                                  .is_named = true};
    }
}

/* ---- fill ---------------------------------------------------------------------------------- */

static void kill_block(struct block_store *s, struct store_put *p, struct put_blk *b, int why) {
    struct store_commit *c = b->commit;
    uint32_t idx = b->entry;
    release_bytes(p, b);
    b->state = PUT_BLK_DEAD;
    b->why = (int16_t)why;
    b->commit = NULL;
    if (b->slot != SLOT_NONE) {
        store_set_ram(s, idx, TIER_NONE);
        ram_tier_disown(&s->ram, b->slot);
        store_at(s, idx)->slot[DIR_RAM] = SLOT_NONE;
    }
    store_lose_bytes(s, idx);
    s->st.aborted++;
    if (c)
        commit_resolved(c, false);
}

/* Its bytes come now: it gets a slot, for which something colder may go, and counts as an entry. */
static int take_slot(struct block_store *s, struct store_put *p, struct put_blk *b) {
    uint32_t slot_bytes = s->ns[p->ns].slot_bytes, slot;
    if (!share_take(&p->ss->fills, slot_bytes))
        return ERR_BUSY;
    if (!store_ensure_entries(s, b->n_entries) ||
        store_take_ram(s, s->ns_class[p->ns], b->entry, /* may_lose= */ true, &slot) < 0) {
        share_give(&p->ss->fills, slot_bytes);
        return ERR_BUSY;
    }
    keep_promise(p, b);
    b->state = PUT_BLK_OPEN;
    b->slot = slot;
    store_at(s, b->entry)->slot[DIR_RAM] = slot;
    store_set_ram(s, b->entry, TIER_WRITING);
    return 0;
}

int block_store_put_open(struct store_put *p, uint32_t i, struct store_fill *ret) {
    struct block_store *s = p->ss->s;
    if (i >= p->n)
        return ERR_NOTFOUND;
    struct put_blk *b = &p->blk[i];
    if (b->state != PUT_BLK_WAITING)
        return b->state == PUT_BLK_OPEN || b->state == PUT_BLK_FILLED ? ERR_EXISTS : ERR_NOTFOUND;
    if (take_slot(s, p, b) < 0) {
        s->st.put_busy++;
        kill_block(s, p, b, ERR_BUSY);
        return ERR_BUSY;
    }
    ram_tier_ref(&s->ram, b->slot);
    *ret = (struct store_fill){ram_tier_at(&s->ram, b->slot), s->ns[p->ns].shape.payload_bytes,
                               b->slot};
    return 0;
}

/* The open block that owns the slot, or NULL when it was aborted meanwhile. */
static struct put_blk *block_of_slot(struct block_store *s, uint32_t slot,
                                     struct store_put **ret_put) {
    uint32_t owner = ram_tier_side(&s->ram, slot)->owner;
    if (owner == DIR_NONE)
        return NULL;
    struct store_put *p = &s->puts[*dir_busy_with(store_at(s, owner))];
    for (uint32_t i = 0; i < p->n; i++)
        if (p->blk[i].state == PUT_BLK_OPEN && p->blk[i].slot == slot) {
            *ret_put = p;
            return &p->blk[i];
        }
    return NULL;
}

/* Sums behind the payload, then where each range ends, then zeros: the slot as it lies on disk.
 * Little-endian hosts only, as the rest of the project. */
static bool take_sums(struct block_store *s, const struct store_put *p, uint8_t *payload,
                      const struct dir_entry *e) {
    const struct store_ns *ns = &s->ns[p->ns];
    const struct store_ns_shape *sh = &ns->shape;
    uint64_t *sums = (uint64_t *)(void *)(payload + sh->payload_bytes);
    uint64_t got = checksum_block(payload, sh->range_sizes, sh->n_ranges, e->id.b, sums);
    uint32_t *ends = (uint32_t *)(void *)(sums + sh->n_ranges), end = 0;
    for (uint32_t i = 0; i < sh->n_ranges; i++)
        ends[i] = end += sh->range_sizes[i];
    uint8_t *rest = (uint8_t *)(ends + sh->n_ranges);
    memset(rest, 0, (size_t)(payload + ns->slot_bytes - rest));
    return got == e->checksum;
}

int block_store_put_filled(struct block_store *s, struct store_fill *f) {
    struct store_put *p = NULL;
    struct put_blk *b = block_of_slot(s, f->slot, &p);
    if (!b) {
        ram_tier_unref(&s->ram, f->slot);
        return ERR_CANCELED;
    }
    bool ok = take_sums(s, p, f->payload, store_at(s, b->entry));
    ram_tier_unref(&s->ram, f->slot);
    p->deadline = store_now(s) + s->cfg.put_ttl_ns;
    if (!ok) {
        s->st.put_corrupt++;
        kill_block(s, p, b, ERR_CORRUPT);
        return ERR_CORRUPT;
    }
    b->state = PUT_BLK_FILLED;
    if (b->commit || b->is_named) {
        struct store_commit *c = TAKE_PTR(b->commit);
        publish(s, p, b);
        store_behind_pump(s);
        if (c)
            commit_resolved(c, true);
    }
    return 0;
}

void block_store_put_unfilled(struct block_store *s, struct store_fill *f) {
    struct store_put *p = NULL;
    struct put_blk *b = block_of_slot(s, f->slot, &p);
    ram_tier_unref(&s->ram, f->slot);
    if (b)
        kill_block(s, p, b, ERR_CANCELED);
}

/* ---- end ----------------------------------------------------------------------------------- */

static bool is_open(const struct put_blk *b) {
    return b->state == PUT_BLK_WAITING || b->state == PUT_BLK_OPEN || b->state == PUT_BLK_FILLED;
}

/* True: a commit was called back, which may have ended any put. */
static bool abort_in_put(struct block_store *s, struct store_put *p,
                         bool (*is_meant)(void *arg, const struct dir_entry *e), void *arg,
                         uint64_t *n) {
    for (uint32_t i = 0; i < p->n; i++) {
        struct put_blk *b = &p->blk[i];
        if (!is_open(b) || !is_meant(arg, store_at(s, b->entry)))
            continue;
        bool calls_back = b->commit && b->commit->n_wait == 1;
        (*n)++;
        kill_block(s, p, b, ERR_CANCELED);
        if (calls_back)
            return true;
    }
    return false;
}

uint64_t store_put_abort(struct block_store *s,
                         bool (*is_meant)(void *arg, const struct dir_entry *e), void *arg,
                         uint64_t *ret_bytes) {
    uint64_t n = 0;
    bool again;
    *ret_bytes = 0;
    do {
        again = false;
        LIST_FOREACH(&s->live_sessions, l) {
            struct store_session *ss = LIST_ENTRY(l, struct store_session, link);
            LIST_FOREACH(&ss->puts, k) {
                struct store_put *p = LIST_ENTRY(k, struct store_put, link);
                uint64_t n_here = 0;
                uint64_t payload = s->ns[p->ns].shape.payload_bytes;
                again = abort_in_put(s, p, is_meant, arg, &n_here);
                n += n_here;
                *ret_bytes += n_here * payload;
                if (again)
                    break;
            }
            if (again)
                break;
        }
    } while (again);
    return n;
}

/* Children before parents, so that no hole is made and filled with nothing. The handle goes first
 * out of its session's list: a commit callback may look there. */
void store_put_free(struct store_put *p) {
    struct block_store *s = p->ss->s;
    list_remove(&p->link);
    for (uint32_t i = p->n; i-- > 0;) {
        struct put_blk *b = &p->blk[i];
        if (b->state == PUT_BLK_WAITING || b->state == PUT_BLK_OPEN || b->state == PUT_BLK_FILLED)
            kill_block(s, p, b, ERR_CANCELED);
    }
    CHECK(list_empty(&p->commits));
    p->n = 0;
    s->st.now.puts--;
    list_push_back(&s->free_puts, &p->link);
}

int block_store_put_result(const struct store_put *p, uint32_t i) {
    const struct put_blk *b = &p->blk[i];
    if (b->state == PUT_BLK_DEAD)
        return b->why;
    return b->state == PUT_BLK_DONE || b->state == PUT_BLK_PRESENT ? 0 : ERR_NOTFOUND;
}

void block_store_put_end(struct store_put *p) {
    store_put_free(p);
}

static struct store_put *find_expired(struct block_store *s, uint64_t now) {
    LIST_FOREACH(&s->live_sessions, l) {
        struct store_session *ss = LIST_ENTRY(l, struct store_session, link);
        LIST_FOREACH(&ss->puts, k)
        if (now >= LIST_ENTRY(k, struct store_put, link)->deadline)
            return LIST_ENTRY(k, struct store_put, link);
    }
    return NULL;
}

/* The newest promise of whoever is furthest above its share. */
static struct put_blk *find_excess(struct block_store *s, struct store_put **ret_put) {
    struct store_session *best = NULL;
    uint64_t most = 0;
    LIST_FOREACH(&s->live_sessions, l) {
        struct store_session *ss = LIST_ENTRY(l, struct store_session, link);
        if (share_excess(&ss->promises) > most) {
            most = share_excess(&ss->promises);
            best = ss;
        }
    }
    for (struct list *l = best ? best->puts.prev : NULL; l && l != &best->puts; l = l->prev) {
        struct store_put *p = *ret_put = LIST_ENTRY(l, struct store_put, link);
        for (uint32_t i = p->n; i-- > 0;)
            if (p->blk[i].state == PUT_BLK_WAITING)
                return &p->blk[i];
    }
    return NULL;
}

/* Not from inside a BEGIN, for it calls commits back. */
static void take_back(struct block_store *s, uint64_t now) {
    struct store_put *p;
    struct put_blk *b;
    while (s->promises.asked > share_free(&s->promises) && (b = find_excess(s, &p))) {
        s->st.put_recalled++;
        kill_block(s, p, b, ERR_BUSY);
    }
    LIST_FOREACH(&s->live_sessions, l) { /* who asks no more waits no more */
        struct store_session *ss = LIST_ENTRY(l, struct store_session, link);
        if (now >= ss->promise_waits_until)
            share_wait(&ss->promises, 0);
    }
}

/* One at a time from the start: the commits that are called back may end other puts. */
void store_put_tick(struct block_store *s, uint64_t now) {
    for (struct store_put *p; (p = find_expired(s, now));) {
        s->st.put_expired++;
        store_put_free(p);
    }
    if (s->promises.asked)
        take_back(s, now);
}
