#include "cachesvc/store/removal_log.h"

#include "common/check.h"
#include "common/checksum.h"

#define NONE UINT32_MAX

static const uint8_t every_ns[DIGEST_BYTES];

int removal_log_init(struct removal_log *l, uint32_t cap) {
    uint32_t table = 64;
    while (table < cap)
        table *= 2;
    *l = (struct removal_log){.cap = cap, .mask = table - 1, .free_head = NONE};
    l->recs = alloc_array(cap, sizeof(*l->recs));
    l->covered_by = alloc_array(cap, sizeof(*l->covered_by));
    l->next = alloc_array(cap, sizeof(*l->next));
    l->table = alloc_array(table, sizeof(*l->table));
    if (!l->recs || !l->covered_by || !l->next || !l->table) {
        removal_log_fini(l);
        return ERR_NOMEM;
    }
    memset(l->table, 0xff, table * sizeof(*l->table));
    return 0;
}

void removal_log_fini(struct removal_log *l) {
    free(l->recs);
    free(l->covered_by);
    free(l->next);
    free(l->table);
    *l = (struct removal_log){0};
}

/* ---- by key -------------------------------------------------------------------------------- */

static uint32_t *head_of(const struct removal_log *l, uint16_t kind, const uint8_t *ns,
                         const uint8_t key[32]) {
    uint8_t bytes[2 + DIGEST_BYTES + 32];
    bytes[0] = (uint8_t)kind;
    bytes[1] = 0;
    memcpy(bytes + 2, ns, DIGEST_BYTES);
    memcpy(bytes + 2 + DIGEST_BYTES, key, 32);
    return &l->table[(uint32_t)checksum_xxh3(bytes, sizeof(bytes)) & l->mask];
}

static bool same_key(const struct disk_removal *r, uint16_t kind, const uint8_t *ns,
                     const uint8_t key[32]) {
    return r->kind == kind && memcmp(r->ns, ns, sizeof(r->ns)) == 0 &&
           memcmp(r->key, key, sizeof(r->key)) == 0;
}

static bool is_every_ns(const uint8_t *ns) {
    return memcmp(ns, every_ns, sizeof(every_ns)) == 0;
}

static bool probe(const struct removal_log *l, uint16_t kind, const uint8_t *ns,
                  const uint8_t key[32], uint64_t time_ms) {
    if (l->n_kind[kind][!is_every_ns(ns)] == 0)
        return false;
    for (uint32_t i = *head_of(l, kind, ns, key); i != NONE; i = l->next[i]) {
        const struct disk_removal *r = &l->recs[i];
        if (time_ms >= r->from_ms && time_ms <= r->before_ms && same_key(r, kind, ns, key))
            return true;
    }
    return false;
}

static bool probe_both(const struct removal_log *l, uint16_t kind, const uint8_t *ns,
                       const uint8_t key[32], uint64_t time_ms) {
    return probe(l, kind, ns, key, time_ms) || probe(l, kind, every_ns, key, time_ms);
}

static void group_key(uint64_t group, uint8_t ret[32]) {
    memset(ret, 0, 32);
    for (int i = 0; i < 8; i++)
        ret[i] = (uint8_t)(group >> 8 * i);
}

bool removal_log_matches(const struct removal_log *l, const struct removal_subject *b) {
    static const uint8_t none[32];
    uint8_t writer[32] = {0}, group[32];
    if (l->n == 0 || b->time_ms > l->max_before_ms)
        return false;
    memcpy(writer, b->writer, 16);
    group_key(b->group, group);
    return probe_both(l, DISK_REMOVE_ALL, b->ns, none, b->time_ms) ||
           probe(l, DISK_REMOVE_ID, b->ns, b->id->b, b->time_ms) ||
           probe_both(l, DISK_REMOVE_WRITER, b->ns, writer, b->time_ms) ||
           probe_both(l, DISK_REMOVE_GROUP, b->ns, group, b->time_ms);
}

/* ---- in and out ---------------------------------------------------------------------------- */

static void put_at(struct removal_log *l, uint32_t i, const struct disk_removal *r) {
    uint32_t *head = head_of(l, r->kind, r->ns, r->key);
    l->recs[i] = *r;
    l->covered_by[i] = 0;
    l->next[i] = *head;
    *head = i;
    l->n++;
    l->n_kind[r->kind][!is_every_ns(r->ns)]++;
    l->seq = MAX(l->seq, r->seq);
    l->max_before_ms = MAX(l->max_before_ms, r->before_ms);
}

static void drop(struct removal_log *l, uint32_t i) {
    struct disk_removal *r = &l->recs[i];
    uint32_t *link = head_of(l, r->kind, r->ns, r->key);
    while (*link != i)
        link = &l->next[*link];
    *link = l->next[i];
    l->n_kind[r->kind][!is_every_ns(r->ns)]--;
    l->n_covered -= l->covered_by[i] != 0;
    l->n--;
    *r = (struct disk_removal){0};
    l->covered_by[i] = 0;
    l->next[i] = l->free_head;
    l->free_head = i;
}

static bool covers(const struct disk_removal *by, const struct disk_removal *r) {
    if (by == r || by->from_ms > r->from_ms || by->before_ms < r->before_ms ||
        (!is_every_ns(by->ns) && memcmp(by->ns, r->ns, sizeof(r->ns)) != 0))
        return false;
    return by->kind == DISK_REMOVE_ALL ||
           (by->kind == r->kind && memcmp(by->key, r->key, sizeof(r->key)) == 0);
}

static void cover(struct removal_log *l, uint32_t i, const struct disk_removal *by) {
    if (l->recs[i].seq == 0 || l->covered_by[i] || !covers(by, &l->recs[i]))
        return;
    l->covered_by[i] = by->seq;
    l->n_covered++;
}

static void cover_all(struct removal_log *l, const struct disk_removal *by) {
    if (by->kind == DISK_REMOVE_ALL)
        for (uint32_t i = 0; i < l->n_fresh; i++)
            cover(l, i, by);
    else
        for (uint32_t i = *head_of(l, by->kind, by->ns, by->key); i != NONE; i = l->next[i])
            cover(l, i, by);
}

int removal_log_add(struct removal_log *l, struct disk_removal *r, uint32_t *ret_page) {
    uint32_t i = l->free_head;
    if (i != NONE)
        l->free_head = l->next[i];
    else if (l->n_fresh < l->cap)
        i = l->n_fresh++;
    else
        return ERR_NOSPACE;
    r->seq = l->seq + 1;
    put_at(l, i, r);
    cover_all(l, &l->recs[i]);
    *ret_page = i / DISK_REMOVALS_A_PAGE;
    return 0;
}

void removal_log_synced(struct removal_log *l, uint64_t seq) {
    for (uint32_t i = 0; l->n_covered > 0 && i < l->n_fresh; i++)
        if (l->covered_by[i] && l->covered_by[i] <= seq)
            drop(l, i);
}

void removal_log_drop_unsynced(struct removal_log *l, uint64_t seq) {
    for (uint32_t i = 0; l->n_covered > 0 && i < l->n_fresh; i++)
        if (l->covered_by[i] && l->recs[i].seq > seq)
            drop(l, i);
}

void removal_log_expire(struct removal_log *l, uint64_t now_ms) {
    for (uint32_t i = 0; l->n > 0 && i < l->n_fresh; i++)
        if (l->recs[i].seq && l->recs[i].logged_ms + REMOVAL_LIFE_MS <= now_ms)
            drop(l, i);
}

void removal_log_compact(struct removal_log *l) {
    for (uint32_t i = 0; i < l->n_fresh; i++)
        if (l->recs[i].seq && l->recs[i].kind == DISK_REMOVE_ALL && !l->covered_by[i])
            cover_all(l, &l->recs[i]);
}

/* ---- bytes --------------------------------------------------------------------------------- */

/* Pages come in order; what is free below the last record goes to the free list by the way. */
int removal_log_decode(struct removal_log *l, uint32_t page, const uint8_t p[DISK_PAGE]) {
    for (uint32_t k = 0; k < DISK_REMOVALS_A_PAGE; k++) {
        struct disk_removal r;
        uint32_t i = page * DISK_REMOVALS_A_PAGE + k;
        int rv = disk_removal_decode(p + (size_t)k * DISK_REMOVAL_BYTES, &r);
        if (rv == ERR_NOTFOUND)
            continue;
        if (rv < 0 || i >= l->cap || r.seq == 0)
            return ERR_CORRUPT;
        while (l->n_fresh < i) {
            l->next[l->n_fresh] = l->free_head;
            l->free_head = l->n_fresh++;
        }
        l->n_fresh = i + 1;
        put_at(l, i, &r);
    }
    return 0;
}

void removal_log_encode(const struct removal_log *l, uint32_t page, uint8_t ret[DISK_PAGE]) {
    memset(ret, 0, DISK_PAGE);
    for (uint32_t k = 0; k < DISK_REMOVALS_A_PAGE; k++) {
        uint32_t i = page * DISK_REMOVALS_A_PAGE + k;
        if (i < l->n_fresh && l->recs[i].seq)
            disk_removal_encode(&l->recs[i], ret + (size_t)k * DISK_REMOVAL_BYTES);
    }
}
