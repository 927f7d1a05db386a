/* Lookup and touch: answered from memory. */
#include "cachesvc/store/store_priv.h"

/* ---- touch --------------------------------------------------------------------------------- */

/* One chain, from the deepest named block that has an entry up to an unknown parent; the rest of a
 * chain whose segments lie on several nodes begins again at the next named block above that. */
static void touch_named(struct block_store *s, uint32_t ns, const struct block_id *ids,
                        uint32_t n) {
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
    struct store_lease *lease = l->n_run ? store_lease_new(ss) : NULL;
    for (; lease && l->n_leased < l->n_run; l->n_leased++) {
        uint32_t i = l->have + l->n_leased, idx = dir_find(&s->dir, l->ns, &l->ids[i]);
        if (!store_lease_add(lease, idx))
            break;
        uint32_t slot = store_at(s, idx)->slot[DIR_RAM];
        if (l->locs && l->where[i] == STORE_RAM)
            l->locs[i] = (struct store_loc){slots_off(&s->ram.slots, slot),
                                            ram_tier_generation(&s->ram, slot)};
    }
    uint64_t n_refused = l->n_run - l->n_leased;
    if (n_refused)
        store_lease_ask(ss, n_refused * s->ns[l->ns].slot_bytes, n_refused);
    if (lease && l->n_leased == 0) {
        store_lease_free(lease);
    } else if (lease) {
        l->lease_id = lease->id;
        s->st.lease_granted++;
    }
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
