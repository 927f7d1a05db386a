/* Tenants, their sessions, and the leases that these hold.
 *
 * A leased block counts once in the total, whoever leases it, and its holders answer for its bytes
 * together: who joins takes half of what the one answers for that has waited longest, so that each
 * has about bytes / holders, at a constant cost. Who is refused below its share waits; on the next
 * tick the largest holder's leases are recalled, until what ends is what is waited for. Lease
 * numbers and blocks are bounded in the same way (s->lease_units): a lease without end of one small
 * block is as bad as many bytes. */
#include "cachesvc/store/store_priv.h"

#include "common/check.h"

/* A quarter as many leases as leased blocks: a lease costs as much as four blocks more. */
#define LEASE_UNITS 4u

/* ---- holders of a block -------------------------------------------------------------------- */

/* A leased block is on no RAM list, so its links are free: they name its holders. */
static uint32_t *first_holder(struct dir_entry *e) {
    return &e->lru[DIR_RAM].prev;
}
static uint32_t *last_holder(struct dir_entry *e) {
    return &e->lru[DIR_RAM].next;
}

static struct store_session *session_of_item(struct block_store *s, uint32_t at) {
    return s->leases[s->items[at].lease].ss;
}

static void holder_push(struct block_store *s, struct dir_entry *e, uint32_t at) {
    struct lease_item *it = &s->items[at];
    it->holder_prev = *last_holder(e);
    it->holder_next = DIR_NONE;
    if (it->holder_prev == DIR_NONE)
        *first_holder(e) = at;
    else
        s->items[it->holder_prev].holder_next = at;
    *last_holder(e) = at;
}

static void holder_take(struct block_store *s, struct dir_entry *e, uint32_t at) {
    struct lease_item *it = &s->items[at];
    if (it->holder_prev == DIR_NONE)
        *first_holder(e) = it->holder_next;
    else
        s->items[it->holder_prev].holder_next = it->holder_next;
    if (it->holder_next == DIR_NONE)
        *last_holder(e) = it->holder_prev;
    else
        s->items[it->holder_next].holder_prev = it->holder_prev;
}

static void move_charge(struct block_store *s, uint32_t from, uint32_t to, uint32_t bytes) {
    struct store_session *a = session_of_item(s, from), *b = session_of_item(s, to);
    if (a != b)
        share_move(&a->lease_bytes, &b->lease_bytes, bytes);
    s->items[from].charge -= bytes;
    s->items[to].charge += bytes;
}

/* ---- leases -------------------------------------------------------------------------------- */

static void ask(struct share_user *u, uint64_t n) {
    uint64_t share = share_of(u);
    if (u->used < share)
        share_wait(u, MIN(n, share - u->used));
}

void store_lease_ask(struct store_session *ss, uint64_t bytes, uint64_t blocks) {
    ask(&ss->lease_bytes, bytes);
    ask(&ss->lease_units, blocks + LEASE_UNITS);
    ss->waits_until = store_now(ss->s) + ss->s->cfg.lease_ttl_ns;
}

struct store_lease *store_lease_new(struct store_session *ss) {
    struct block_store *s = ss->s;
    uint32_t at = s->free_lease;
    if (at == DIR_NONE || !share_take(&ss->lease_units, LEASE_UNITS))
        return NULL;
    struct store_lease *l = &s->leases[at];
    s->free_lease = l->next_free;
    *l = (struct store_lease){.ss = ss,
                              .id = (++s->lease_serial & UINT32_MAX) << 32 | (at + 1),
                              .ends_ns = store_now(s) + s->cfg.lease_ttl_ns,
                              .items = DIR_NONE};
    list_push_back(&ss->leases, &l->link);
    list_push_back(&s->leases_by_end, &l->by_end);
    s->st.now.leases++;
    return l;
}

/* The block's bytes, for the first holder. */
static bool charge_first(struct block_store *s, struct store_session *ss, uint32_t bytes) {
    if (!share_take(&ss->lease_bytes, bytes))
        return false;
    s->st.now.leased_bytes += bytes;
    s->st.now.leased_blocks++;
    return true;
}

bool store_lease_add(struct store_lease *l, uint32_t idx) {
    struct block_store *s = l->ss->s;
    struct dir_entry *e = store_at(s, idx);
    uint32_t bytes = s->ns[e->ns].slot_bytes, at = s->free_item;
    if (at == DIR_NONE || e->leases == UINT16_MAX || !share_take(&l->ss->lease_units, 1))
        return false;
    if (e->leases == 0 && !charge_first(s, l->ss, bytes)) {
        share_give(&l->ss->lease_units, 1);
        return false;
    }
    struct lease_item *it = &s->items[at];
    s->free_item = it->next;
    *it = (struct lease_item){.entry = idx,
                              .slot = SLOT_NONE,
                              .next = l->items,
                              .lease = (uint32_t)(l - s->leases),
                              .charge = e->leases ? 0 : bytes};
    l->items = at;
    if (entry_in_ram(e)) {
        it->slot = e->slot[DIR_RAM];
        ram_tier_ref(&s->ram, it->slot);
    }
    dir_add_leases(&s->dir, idx, 1);
    store_settle(s, idx);
    if (e->leases == 1)
        *first_holder(e) = *last_holder(e) = DIR_NONE;
    uint32_t donor = *first_holder(e);
    holder_push(s, e, at);
    if (donor != DIR_NONE) {
        move_charge(s, donor, at, s->items[donor].charge / 2);
        holder_take(s, e, donor);
        holder_push(s, e, donor);
    }
    return true;
}

static void give_bytes(struct block_store *s, uint32_t at, uint32_t bytes) {
    share_give(&session_of_item(s, at)->lease_bytes, s->items[at].charge);
    s->st.now.leased_bytes -= bytes;
    s->st.now.leased_blocks--;
}

static void item_end(struct block_store *s, uint32_t at) {
    struct lease_item *it = &s->items[at];
    uint32_t idx = it->entry;
    if (it->slot != SLOT_NONE)
        ram_tier_unref(&s->ram, it->slot);
    if (idx == DIR_NONE)
        return; /* removed by an operator meanwhile */
    struct dir_entry *e = store_at(s, idx);
    holder_take(s, e, at);
    uint32_t heir = *first_holder(e);
    if (heir != DIR_NONE)
        move_charge(s, at, heir, it->charge);
    else
        give_bytes(s, at, s->ns[e->ns].slot_bytes);
    dir_add_leases(&s->dir, idx, -1);
    store_settle(s, idx);
}

void store_lease_free(struct store_lease *l) {
    struct block_store *s = l->ss->s;
    uint32_t n = 0;
    for (uint32_t at = l->items, next; at != DIR_NONE; at = next, n++) {
        next = s->items[at].next;
        item_end(s, at);
        s->items[at].next = s->free_item;
        s->free_item = at;
    }
    share_give(&l->ss->lease_units, n + LEASE_UNITS);
    s->recalled_bytes -= l->recalled_bytes;
    s->recalled_units -= l->recalled_units;
    list_remove(&l->link);
    list_remove(&l->by_end);
    l->id = 0;
    l->next_free = s->free_lease;
    s->free_lease = (uint32_t)(l - s->leases);
    s->st.now.leases--;
}

void store_lease_forget(struct block_store *s, uint32_t idx) {
    struct dir_entry *e = store_at(s, idx);
    if (!e->leases)
        return;
    for (uint32_t at = *first_holder(e); at != DIR_NONE; at = s->items[at].holder_next) {
        share_give(&session_of_item(s, at)->lease_bytes, s->items[at].charge);
        s->items[at].charge = 0;
        s->items[at].entry = DIR_NONE; /* its slot reference keeps the bytes */
    }
    s->st.now.leased_bytes -= s->ns[e->ns].slot_bytes;
    s->st.now.leased_blocks--;
    *first_holder(e) = *last_holder(e) = DIR_NONE;
    dir_add_leases(&s->dir, idx, -(int)e->leases);
}

uint64_t store_lease_count(struct block_store *s, uint32_t ns) {
    uint64_t n = 0;
    LIST_FOREACH(&s->leases_by_end, l) {
        uint32_t at = LIST_ENTRY(l, struct store_lease, by_end)->items;
        for (; at != DIR_NONE; at = s->items[at].next) {
            uint32_t idx = s->items[at].entry;
            if (idx == DIR_NONE || (ns != STORE_NONE && store_at(s, idx)->ns != ns))
                continue;
            n += *first_holder(store_at(s, idx)) == at; /* once, whoever leases it too */
        }
    }
    return n;
}

static struct store_lease *find_lease(struct store_session *ss, uint64_t id) {
    struct block_store *s = ss->s;
    uint32_t at = (uint32_t)id - 1;
    if (id == 0 || at >= s->n_leases_max || s->leases[at].id != id || s->leases[at].ss != ss)
        return NULL;
    return &s->leases[at];
}

/* Items are linked from the chain's end. */
int block_store_lease_ids(struct store_session *ss, uint64_t lease_id, uint32_t *ret_ns,
                          struct block_id *ret, uint32_t max) {
    struct block_store *s = ss->s;
    const struct store_lease *l = find_lease(ss, lease_id);
    uint32_t n = 0;
    if (!l)
        return ERR_NOTFOUND;
    for (uint32_t at = l->items; at != DIR_NONE; at = s->items[at].next)
        n++;
    if (n > max)
        return ERR_TOOBIG;
    *ret_ns = STORE_NONE;
    uint32_t i = n;
    for (uint32_t at = l->items; at != DIR_NONE; at = s->items[at].next) {
        const struct lease_item *it = &s->items[at];
        ret[--i] = it->entry == DIR_NONE ? (struct block_id){{0}} : store_at(s, it->entry)->id;
        if (it->entry != DIR_NONE)
            *ret_ns = store_at(s, it->entry)->ns;
    }
    return (int)n;
}

int block_store_release(struct store_session *ss, uint64_t lease_id) {
    struct store_lease *l = find_lease(ss, lease_id);
    if (!l)
        return ERR_NOTFOUND;
    store_lease_free(l);
    return 0;
}

/* ---- renewal and recall -------------------------------------------------------------------- */

static void live_on(struct block_store *s, struct store_lease *l) {
    l->ends_ns = store_now(s) + s->cfg.lease_ttl_ns;
    list_remove(&l->by_end);
    list_push_back(&s->leases_by_end, &l->by_end);
}

/* Named or not: its holder must hear of it, and has its time from the first answer that says so. */
static void tell_recalled(struct store_session *ss, struct store_heartbeat *h) {
    LIST_FOREACH(&ss->recalled, at) {
        struct store_lease *l = LIST_ENTRY(at, struct store_lease, link);
        if (h->n_recalled == h->max)
            return;
        h->recalled[h->n_recalled++] = l->id;
        if (!l->is_told)
            live_on(ss->s, l);
        l->is_told = true;
    }
}

void block_store_heartbeat(struct store_session *ss, struct store_heartbeat *h) {
    h->n_renewed = h->n_recalled = h->n_ended = 0;
    for (uint32_t i = 0; i < h->n; i++) {
        struct store_lease *l = find_lease(ss, h->ids[i]);
        if (!l && h->n_ended < h->max)
            h->ended[h->n_ended++] = h->ids[i];
        if (!l || l->is_recalled)
            continue;
        live_on(ss->s, l);
        h->n_renewed++;
    }
    tell_recalled(ss, h);
}

static void recall(struct block_store *s, struct store_lease *l) {
    l->is_recalled = true;
    list_remove(&l->link);
    list_push_back(&l->ss->recalled, &l->link);
    l->recalled_units = LEASE_UNITS;
    for (uint32_t at = l->items; at != DIR_NONE; at = s->items[at].next) {
        l->recalled_bytes += s->items[at].charge;
        l->recalled_units++;
    }
    s->recalled_bytes += l->recalled_bytes;
    s->recalled_units += l->recalled_units;
    s->st.lease_recalled++;
}

static struct share_user *user_of(struct store_session *ss, bool by_bytes) {
    return by_bytes ? &ss->lease_bytes : &ss->lease_units;
}

/* From whoever is furthest above its share, its oldest leases, until as much is on its way as is
 * asked for. */
static void recall_for_waiters(struct block_store *s, const struct share *sh, bool by_bytes) {
    const uint64_t *coming = by_bytes ? &s->recalled_bytes : &s->recalled_units;
    while (sh->asked > *coming) {
        struct store_lease *best = NULL;
        uint64_t most = 0;
        LIST_FOREACH(&s->live_sessions, at) {
            struct store_session *ss = LIST_ENTRY(at, struct store_session, link);
            uint64_t excess = share_excess(user_of(ss, by_bytes));
            if (excess <= most || list_empty(&ss->leases))
                continue;
            best = LIST_ENTRY(ss->leases.next, struct store_lease, link);
            most = excess;
        }
        if (!best)
            return;
        recall(s, best);
    }
}

void store_lease_tick(struct block_store *s, uint64_t now) {
    while (!list_empty(&s->leases_by_end)) {
        struct store_lease *l = LIST_ENTRY(s->leases_by_end.next, struct store_lease, by_end);
        if (now < l->ends_ns)
            break;
        store_lease_free(l);
        s->st.lease_expired++;
    }
    if (s->lease_bytes.asked || s->lease_units.asked)
        LIST_FOREACH(&s->live_sessions, at) { /* who asks no more waits no more */
            struct store_session *ss = LIST_ENTRY(at, struct store_session, link);
            if (now < ss->waits_until)
                continue;
            share_wait(&ss->lease_bytes, 0);
            share_wait(&ss->lease_units, 0);
        }
    recall_for_waiters(s, &s->lease_bytes, true);
    recall_for_waiters(s, &s->lease_units, false);
}

/* ---- sessions ------------------------------------------------------------------------------ */

static struct store_tenant *tenant_take(struct block_store *s, const void *name) {
    LIST_FOREACH(&s->live_tenants, at) {
        struct store_tenant *t = LIST_ENTRY(at, struct store_tenant, link);
        if (t->name != name)
            continue;
        t->n_sessions++;
        return t;
    }
    struct store_tenant *t =
        LIST_ENTRY(list_pop_front(&s->free_tenants), struct store_tenant, link);
    t->name = name;
    t->n_sessions = 1;
    share_tenant_init(&t->lease_bytes, &s->lease_bytes);
    share_tenant_init(&t->lease_units, &s->lease_units);
    share_tenant_init(&t->promises, &s->promises);
    share_tenant_init(&t->fills, &s->fills);
    list_push_back(&s->live_tenants, &t->link);
    return t;
}

static void tenant_give(struct block_store *s, struct store_tenant *t) {
    if (--t->n_sessions > 0)
        return;
    share_tenant_fini(&t->lease_bytes);
    share_tenant_fini(&t->lease_units);
    share_tenant_fini(&t->promises);
    share_tenant_fini(&t->fills);
    list_remove(&t->link);
    list_push_back(&s->free_tenants, &t->link);
}

int block_store_session_open(struct block_store *s, const void *tenant,
                             struct store_session **ret) {
    struct list *l = list_pop_front(&s->free_sessions);
    if (!l)
        return ERR_BUSY;
    struct store_session *ss = LIST_ENTRY(l, struct store_session, link);
    struct store_tenant *t = tenant_take(s, tenant);
    *ss = (struct store_session){.s = s, .tenant = t};
    list_init(&ss->leases);
    list_init(&ss->recalled);
    list_init(&ss->puts);
    share_user_init(&ss->lease_bytes, &t->lease_bytes);
    share_user_init(&ss->lease_units, &t->lease_units);
    share_user_init(&ss->promises, &t->promises);
    share_user_init(&ss->fills, &t->fills);
    list_push_back(&s->live_sessions, &ss->link);
    s->st.now.sessions++;
    *ret = ss;
    return 0;
}

static void free_all(struct list *leases) {
    while (!list_empty(leases))
        store_lease_free(LIST_ENTRY(leases->next, struct store_lease, link));
}

void block_store_session_close(struct store_session *ss) {
    if (!ss)
        return;
    struct block_store *s = ss->s;
    while (!list_empty(&ss->puts)) /* the last first: children's puts came later */
        store_put_free(LIST_ENTRY(ss->puts.prev, struct store_put, link));
    free_all(&ss->leases);
    free_all(&ss->recalled);
    share_user_fini(&ss->lease_bytes);
    share_user_fini(&ss->lease_units);
    share_user_fini(&ss->promises);
    share_user_fini(&ss->fills);
    tenant_give(s, ss->tenant);
    list_remove(&ss->link);
    list_push_back(&s->free_sessions, &ss->link);
    s->st.now.sessions--;
}

void block_store_session_info(const struct store_session *ss, struct store_session_info *ret) {
    *ret = (struct store_session_info){.leased_bytes = ss->lease_bytes.used};
    LIST_FOREACH(&ss->leases, at)
    ret->leases += at != NULL;
    LIST_FOREACH(&ss->recalled, at)
    ret->leases += at != NULL;
    LIST_FOREACH(&ss->puts, at)
    ret->puts += at != NULL;
}
