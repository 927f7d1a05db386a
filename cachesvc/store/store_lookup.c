/* Lookup, touch, and what sessions hold. */
#include "cachesvc/store/store_priv.h"

#include "common/check.h"

/* ---- touch --------------------------------------------------------------------------------- */

/* One chain, from the deepest named block that has an entry up to an unknown parent; the rest of a
 * chain whose segments lie on several nodes begins again at the next named block above that. */
static void touch_named(struct block_store *s, uint32_t ns, const struct block_id *ids, uint32_t n) {
    uint32_t reached = UINT32_MAX, steps = STORE_TOUCH_STEPS;
    for (uint32_t i = n; i-- > 0;) {
        uint32_t idx = dir_find(&s->dir, ns, &ids[i]);
        if (idx != DIR_NONE && store_at(s, idx)->depth < reached)
            reached = s->policy.ops->touch_chain(&s->policy, idx, &steps);
        if (reached == 0)
            return;
    }
}

uint32_t block_store_touch(struct block_store *s, uint32_t ns, const struct block_id *ids,
                           uint32_t n) {
    uint32_t n_resident = 0, steps = STORE_TOUCH_STEPS;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t idx = dir_find(&s->dir, ns, &ids[i]);
        if (idx == DIR_NONE)
            continue;
        n_resident += store_is_there(s, store_at(s, idx));
        s->policy.ops->touch_branch(&s->policy, idx, &steps);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t idx = dir_find(&s->dir, ns, &ids[i]);
        if (idx != DIR_NONE)
            s->policy.ops->touch_end(&s->policy, idx);
    }
    return n_resident;
}

/* ---- leases -------------------------------------------------------------------------------- */

static bool lease_block(struct block_store *s, struct store_lease *l, uint32_t idx) {
    struct dir_entry *e = store_at(s, idx);
    uint64_t bytes = e->leases ? 0 : s->ns[e->ns].slot_bytes;
    if (s->free_item == DIR_NONE || e->leases == UINT16_MAX ||
        s->st.now.leased_bytes + bytes > s->lease_cap_bytes)
        return false;
    uint32_t at = s->free_item;
    struct lease_item *it = &s->items[at];
    s->free_item = it->next;
    *it = (struct lease_item){{idx, dir_seq(e)}, SLOT_NONE, l->items};
    l->items = at;
    if (entry_in_ram(e)) {
        it->slot = e->slot[DIR_RAM];
        ram_tier_ref(&s->ram, it->slot);
    }
    s->st.now.leased_bytes += bytes;
    s->st.now.leased_blocks += e->leases == 0;
    dir_add_leases(&s->dir, idx, 1);
    store_settle(s, idx);
    return true;
}

static void unlease_block(struct block_store *s, const struct lease_item *it) {
    if (it->slot != SLOT_NONE)
        ram_tier_unref(&s->ram, it->slot);
    struct dir_entry *e = store_at(s, it->e.idx);
    if (!store_ref_is_live(s, it->e) || e->leases == 0)
        return; /* removed by an operator meanwhile */
    dir_add_leases(&s->dir, it->e.idx, -1);
    store_settle(s, it->e.idx);
    if (e->leases == 0) {
        s->st.now.leased_bytes -= s->ns[e->ns].slot_bytes;
        s->st.now.leased_blocks--;
    }
}

static struct store_lease *lease_new(struct block_store *s, struct store_session *ss) {
    uint32_t at = s->free_lease;
    if (at == DIR_NONE)
        return NULL;
    struct store_lease *l = &s->leases[at];
    s->free_lease = l->next_free;
    *l = (struct store_lease){.id = (++s->lease_serial & UINT32_MAX) << 32 | (at + 1),
                              .items = DIR_NONE};
    list_push_back(&ss->leases, &l->link);
    s->st.now.leases++;
    return l;
}

static void lease_free(struct block_store *s, struct store_lease *l) {
    for (uint32_t at = l->items; at != DIR_NONE;) {
        struct lease_item *it = &s->items[at];
        uint32_t next = it->next;
        unlease_block(s, it);
        it->next = s->free_item;
        s->free_item = at;
        at = next;
    }
    list_remove(&l->link);
    l->id = 0;
    l->next_free = s->free_lease;
    s->free_lease = (uint32_t)(l - s->leases);
    s->st.now.leases--;
}

int block_store_release(struct store_session *ss, uint64_t lease_id) {
    struct block_store *s = ss->s;
    uint32_t at = (uint32_t)lease_id - 1;
    if (at >= s->n_leases_max || s->leases[at].id != lease_id)
        return ERR_NOTFOUND;
    LIST_FOREACH(&ss->leases, l) {
        if (l != &s->leases[at].link)
            continue;
        lease_free(s, &s->leases[at]);
        return 0;
    }
    return ERR_NOTFOUND;
}

/* ---- lookup -------------------------------------------------------------------------------- */

/* What lies on a failing disk is absent until that works again. */
static enum store_where where_is(const struct block_store *s, const struct dir_entry *e) {
    if (!store_is_there(s, e))
        return STORE_ABSENT;
    if (entry_in_ram(e))
        return STORE_RAM;
    return store_disk_works(s) ? STORE_DISK : STORE_ABSENT;
}

static void count_lookup(struct block_store *s, const struct store_lookup *l) {
    s->st.lookup++;
    s->st.lookup_block += l->n - l->have;
    s->st.miss_block += l->n - l->have - l->n_run;
    for (uint32_t i = l->have; i < l->have + l->n_run; i++) {
        s->st.hit_ram_block += l->where[i] == STORE_RAM;
        s->st.hit_disk_block += l->where[i] == STORE_DISK;
    }
}

static void lease_run(struct block_store *s, struct store_session *ss, struct store_lookup *l) {
    struct store_lease *lease = l->n_run ? lease_new(s, ss) : NULL;
    if (!lease)
        return;
    for (; l->n_leased < l->n_run; l->n_leased++) {
        uint32_t i = l->have + l->n_leased, idx = dir_find(&s->dir, l->ns, &l->ids[i]);
        if (!lease_block(s, lease, idx))
            break;
        uint32_t slot = store_at(s, idx)->slot[DIR_RAM];
        if (l->locs && l->where[i] == STORE_RAM)
            l->locs[i] = (struct store_loc){slots_off(&s->ram.slots, slot),
                                            ram_tier_generation(&s->ram, slot)};
    }
    if (l->n_leased == 0) {
        lease_free(s, lease);
        return;
    }
    l->lease_id = lease->id;
    s->st.lease_granted++;
    block_store_session_heartbeat(ss);
}

int block_store_lookup(struct block_store *s, struct store_session *ss, struct store_lookup *l) {
    l->n_run = l->n_leased = 0;
    l->lease_id = 0;
    if (l->ns >= s->n_ns || l->have > l->n || ((l->flags & STORE_LOOKUP_LEASE) && !ss))
        return ERR_INVALID;
    bool in_run = true;
    for (uint32_t i = 0; i < l->n; i++) {
        if (i % DIR_PREFETCH_MAX == 0)
            dir_prefetch(&s->dir, l->ns, l->ids + i, l->n - i);
        uint32_t idx = dir_find(&s->dir, l->ns, &l->ids[i]);
        l->where[i] = (uint8_t)(idx == DIR_NONE ? STORE_ABSENT : where_is(s, store_at(s, idx)));
        if (l->locs)
            l->locs[i] = (struct store_loc){0, 0};
        if (i >= l->have) {
            in_run = in_run && l->where[i] != STORE_ABSENT;
            l->n_run += in_run;
        }
    }
    if (l->flags & STORE_LOOKUP_LEASE)
        lease_run(s, ss, l);
    if (l->flags & STORE_LOOKUP_TOUCH) {
        count_lookup(s, l);
        touch_named(s, l->ns, l->ids, l->n);
    }
    return 0;
}

/* ---- sessions ------------------------------------------------------------------------------ */

int block_store_session_open(struct block_store *s, struct store_session **ret) {
    struct list *l = list_pop_front(&s->free_sessions);
    if (!l)
        return ERR_BUSY;
    struct store_session *ss = LIST_ENTRY(l, struct store_session, link);
    ss->s = s;
    list_init(&ss->leases);
    list_init(&ss->puts);
    block_store_session_heartbeat(ss);
    list_push_back(&s->live_sessions, &ss->link);
    s->st.now.sessions++;
    *ret = ss;
    return 0;
}

void block_store_session_close(struct store_session *ss) {
    if (!ss)
        return;
    struct block_store *s = ss->s;
    while (!list_empty(&ss->puts))
        store_put_free(
            LIST_ENTRY(ss->puts.prev, struct store_put, link)); /* children's puts came later */
    while (!list_empty(&ss->leases))
        lease_free(s, LIST_ENTRY(ss->leases.next, struct store_lease, link));
    list_remove(&ss->link);
    list_push_back(&s->free_sessions, &ss->link);
    s->st.now.sessions--;
}

void block_store_session_heartbeat(struct store_session *ss) {
    ss->alive_until = store_now(ss->s) + ss->s->cfg.lease_ttl_ns;
}

void store_lease_tick(struct block_store *s, uint64_t now) {
    LIST_FOREACH(&s->live_sessions, l) {
        struct store_session *ss = LIST_ENTRY(l, struct store_session, link);
        while (now >= ss->alive_until && !list_empty(&ss->leases)) {
            lease_free(s, LIST_ENTRY(ss->leases.next, struct store_lease, link));
            s->st.lease_expired++;
        }
    }
}
