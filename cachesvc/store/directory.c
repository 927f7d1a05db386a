#include "cachesvc/store/directory.h"

#include <sys/mman.h>

#include "common/check.h"
#include "common/err.h"

/* Ids come from clients, who could choose colliding ones; the seed keeps them from knowing which.
 */
static uint32_t slot_of(const struct directory *d, uint32_t ns, const struct block_id *id) {
    uint64_t w[4], h = d->seed ^ ns * 0xd6e8feb86659fd93ull;
    memcpy(w, id->b, sizeof(w));
    for (int i = 0; i < 4; i++) {
        h = (h ^ w[i]) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    return (uint32_t)((h >> 32) * d->n_table >> 32); /* any size will do, not only powers of two */
}

static uint32_t after(const struct directory *d, uint32_t at) {
    return at + 1 == d->n_table ? 0 : at + 1;
}

/* Steps from one place of the table forward to another. */
static uint32_t steps(const struct directory *d, uint32_t from, uint32_t to) {
    return to >= from ? to - from : to + d->n_table - from;
}

/* Lookups jump all over these arrays: with 4 KiB pages most of their time is page walks. A hint
 * only. */
static void want_huge_pages(void *p, size_t bytes) {
    uintptr_t from = ((uintptr_t)p + 4095) / 4096 * 4096, to = ((uintptr_t)p + bytes) / 4096 * 4096;
    if (to > from)
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
}

int dir_init(struct directory *d, uint32_t cap, uint64_t seed) {
    /* At most half full, so that a probe sequence stays a cache line or two. */
    uint64_t table = MAX(64ull, 2ull * cap);
    if (table > UINT32_MAX)
        return ERR_NOMEM;
    *d = (struct directory){
        .n_table = (uint32_t)table, .cap = cap, .free_head = DIR_NONE, .seed = seed};
    d->entries = alloc_array(cap, sizeof(*d->entries));
    d->table = malloc(table * sizeof(*d->table));
    if (!d->entries || !d->table) {
        dir_fini(d);
        return ERR_NOMEM;
    }
    want_huge_pages(d->entries, cap * sizeof(*d->entries));
    want_huge_pages(d->table, table * sizeof(*d->table));
    memset(d->table, 0xff, table * sizeof(*d->table));
    return 0;
}

void dir_fini(struct directory *d) {
    free(d->entries);
    free(d->table);
    *d = (struct directory){0};
}

static bool is_key(const struct dir_entry *e, uint32_t ns, const struct block_id *id) {
    return e->ns == ns && block_id_equal(&e->id, id);
}

uint32_t dir_find(const struct directory *d, uint32_t ns, const struct block_id *id) {
    for (uint32_t at = slot_of(d, ns, id);; at = after(d, at)) {
        uint32_t idx = d->table[at];
        if (idx == DIR_NONE || is_key(&d->entries[idx], ns, id))
            return idx;
    }
}

void dir_prefetch(const struct directory *d, uint32_t ns, const struct block_id *ids, uint32_t n) {
    uint32_t at[DIR_PREFETCH_MAX];
    n = MIN(n, DIR_PREFETCH_MAX);
    for (uint32_t i = 0; i < n; i++) {
        at[i] = slot_of(d, ns, &ids[i]);
        __builtin_prefetch(&d->table[at[i]]);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t idx = d->table[at[i]];
        if (idx == DIR_NONE)
            continue;
        __builtin_prefetch(&d->entries[idx]);
        __builtin_prefetch((const char *)&d->entries[idx] + 64);
    }
}

static uint32_t take_entry(struct directory *d) {
    uint32_t idx = d->free_head;
    if (idx != DIR_NONE)
        d->free_head = d->entries[idx].parent;
    else if (d->n_fresh < d->cap)
        idx = d->n_fresh++;
    return idx;
}

uint32_t dir_add(struct directory *d, uint32_t ns, const struct block_id *id) {
    uint32_t idx = take_entry(d);
    if (idx == DIR_NONE)
        return DIR_NONE;
    uint32_t at = slot_of(d, ns, id);
    for (; d->table[at] != DIR_NONE; at = after(d, at))
        CHECK(!is_key(&d->entries[d->table[at]], ns, id));
    d->table[at] = idx;
    d->n++;
    struct dir_links none = {DIR_NONE, DIR_NONE};
    d->entries[idx] = (struct dir_entry){
        .id = *id,
        .parent = DIR_NONE,
        .child = DIR_NONE,
        .sib_prev = DIR_NONE,
        .sib_next = DIR_NONE,
        .slot = {DIR_NONE, DIR_NONE},
        .lru = {none, none},
        .ns = (uint16_t)ns,
        .state = DIR_HOLE,
    };
    if (d->n_of_ns)
        d->n_of_ns[ns]++;
    return idx;
}

static uint32_t home_of(const struct directory *d, uint32_t idx) {
    return slot_of(d, d->entries[idx].ns, &d->entries[idx].id);
}

/* Linear probing needs no tombstones: pull back every follower whose own place lies at or before
 * the gap. */
static void table_remove(struct directory *d, uint32_t gap) {
    for (uint32_t at = after(d, gap); d->table[at] != DIR_NONE; at = after(d, at)) {
        uint32_t home = home_of(d, d->table[at]);
        if (steps(d, home, at) >= steps(d, gap, at)) {
            d->table[gap] = d->table[at];
            gap = at;
        }
    }
    d->table[gap] = DIR_NONE;
}

void dir_del(struct directory *d, uint32_t idx) {
    struct dir_entry *e = dir_at(d, idx);
    CHECK(e->parent == DIR_NONE && e->child == DIR_NONE && !e->list);
    CHECK(e->slot[DIR_RAM] == DIR_NONE && e->slot[DIR_DISK] == DIR_NONE);
    uint32_t at = home_of(d, idx);
    while (d->table[at] != idx)
        at = after(d, at);
    table_remove(d, at);
    if (d->n_of_ns)
        d->n_of_ns[e->ns]--;
    *e = (struct dir_entry){.parent = d->free_head, .child = DIR_NONE, .state = DIR_HOLE};
    d->free_head = idx;
    d->n--;
}

bool dir_is_held(const struct dir_entry *e) {
    return e->leases || e->pins || e->held_children || e->state == DIR_FILLING;
}

void dir_held_changed(struct directory *d, uint32_t idx, bool before) {
    for (;;) {
        struct dir_entry *e = dir_at(d, idx);
        bool now = dir_is_held(e);
        if (now != before && d->on_held)
            d->on_held(d->arg, idx);
        if (now == before || e->parent == DIR_NONE)
            return;
        idx = e->parent;
        struct dir_entry *p = dir_at(d, idx);
        before = dir_is_held(p);
        if (now)
            p->held_children++;
        else
            p->held_children--;
    }
}

void dir_set_state(struct directory *d, uint32_t idx, enum dir_state state) {
    bool before = dir_is_held(dir_at(d, idx));
    dir_at(d, idx)->state = (uint16_t)(state & 3);
    dir_held_changed(d, idx, before);
}

void dir_add_leases(struct directory *d, uint32_t idx, int n) {
    struct dir_entry *e = dir_at(d, idx);
    bool before = dir_is_held(e);
    CHECK((int)e->leases + n >= 0 && (int)e->leases + n <= UINT16_MAX);
    e->leases = (uint64_t)((int)e->leases + n) & UINT16_MAX;
    dir_held_changed(d, idx, before);
}

void dir_link_parent(struct directory *d, uint32_t idx, uint32_t parent) {
    struct dir_entry *e = dir_at(d, idx), *p = dir_at(d, parent);
    CHECK(e->parent == DIR_NONE && idx != parent);
    e->parent = parent;
    e->sib_prev = DIR_NONE;
    e->sib_next = p->child;
    if (p->child != DIR_NONE)
        dir_at(d, p->child)->sib_prev = idx;
    p->child = idx;
    p->n_children++;
    if (dir_is_held(e)) {
        bool before = dir_is_held(p);
        p->held_children++;
        dir_held_changed(d, parent, before);
    }
}

void dir_unlink_parent(struct directory *d, uint32_t idx) {
    struct dir_entry *e = dir_at(d, idx);
    if (e->parent == DIR_NONE)
        return;
    uint32_t parent = e->parent;
    struct dir_entry *p = dir_at(d, parent);
    if (e->sib_prev != DIR_NONE)
        dir_at(d, e->sib_prev)->sib_next = e->sib_next;
    else
        p->child = e->sib_next;
    if (e->sib_next != DIR_NONE)
        dir_at(d, e->sib_next)->sib_prev = e->sib_prev;
    e->parent = e->sib_prev = e->sib_next = DIR_NONE;
    p->n_children--;
    if (dir_is_held(e)) {
        bool before = dir_is_held(p);
        p->held_children--;
        dir_held_changed(d, parent, before);
    }
}

uint32_t dir_walk(const struct directory *d, uint32_t root, uint32_t cur, bool descend) {
    if (descend && dir_at(d, cur)->child != DIR_NONE)
        return dir_at(d, cur)->child;
    while (cur != root) {
        if (dir_at(d, cur)->sib_next != DIR_NONE)
            return dir_at(d, cur)->sib_next;
        cur = dir_at(d, cur)->parent;
    }
    return DIR_NONE;
}
