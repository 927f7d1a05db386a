/* removal_log.h - what operators removed, so that it stays removed. Pure: no I/O, no clock.
 *
 * A record {what; namespace or all; from, before} matches a block whose put time lies in
 * from..before, both inclusive. The store refuses puts that match, recovery drops headers that do.
 * Records live in numbered places, 32 to a page, as on disk (disk_format.h); the disk tier writes
 * pages. A record that a newer one covers is dropped once the newer one is synced; any ends after
 * REMOVAL_LIFE_MS.
 * Thread: one owner. Memory: all in removal_log_init(). Units: Unix milliseconds. */
#pragma once

#include "cachesvc/store/disk_format.h"

#define REMOVAL_LIFE_MS (30ull * 24 * 3600 * 1000)

struct removal_log {
    struct disk_removal *recs; /* [cap]; seq 0: free */
    uint64_t *covered_by;      /* [cap] seq of the record that covers it, 0: none */
    uint32_t *next;            /* [cap] of its hash chain, or of the free list */
    uint32_t *table;           /* [mask + 1] heads by kind, namespace and key */
    uint32_t cap, mask, n, n_covered, free_head, n_fresh;
    uint32_t n_kind[DISK_REMOVE_GROUP + 1]
                   [2]; /* [1]: of one namespace; what there is to look for */
    uint64_t seq, max_before_ms;
};

/* What of a block a record can name. */
struct removal_subject {
    const uint8_t *ns; /* [DIGEST_BYTES] */
    const struct block_id *id;
    const uint8_t *writer; /* [16] */
    uint64_t group, time_ms;
};

int removal_log_init(struct removal_log *l, uint32_t cap); /* 0, ERR_NOMEM */
void removal_log_fini(struct removal_log *l);

bool removal_log_matches(const struct removal_log *l, const struct removal_subject *b);
static inline uint32_t removal_log_room(const struct removal_log *l) {
    return l->cap - l->n;
}
/* Gives r its seq; *ret_page is the page to write. ERR_NOSPACE: full, nothing was changed. */
int removal_log_add(struct removal_log *l, struct disk_removal *r, uint32_t *ret_page);
/* Everything up to seq is synced: what it covers goes. */
void removal_log_synced(struct removal_log *l, uint64_t seq);
void removal_log_expire(struct removal_log *l, uint64_t now_ms);
/* Records after seq, which were never synced, go at once when another covers them; for a full log
 * that nobody waits for. */
void removal_log_drop_unsynced(struct removal_log *l, uint64_t seq);
/* Looks for records covered by others that were not seen as such; for a full log. */
void removal_log_compact(struct removal_log *l);

int removal_log_decode(struct removal_log *l, uint32_t page, const uint8_t p[DISK_PAGE]);
void removal_log_encode(const struct removal_log *l, uint32_t page, uint8_t ret[DISK_PAGE]);
