/* store_priv.h - struct block_store, shared by the store's own files only.
 *
 *   block_store.c    open, close, stats
 *   store_ns.c       namespaces
 *   store_lookup.c   lookup, touch
 *   store_lease.c    tenants, sessions, leases
 *   store_room.c     who leaves when room is needed
 *   store_put.c      begin, fill, commit, abort
 *   store_fetch.c    RAM hit, disk read, promotion
 *   store_behind.c   RAM to disk, drain
 *   store_admin.c    list, inspect
 *   store_evict.c    what an operator removes, and that it stays removed
 *   store_recover.c  directory from the disk's headers
 *
 * An entry index that outlives a call travels with the put sequence it was taken with (struct
 * entry_ref); a FILLING entry is known to its put, which the RAM slot's aux names. */
#pragma once

#include "cachesvc/store/block_store.h"
#include "cachesvc/store/directory.h"
#include "cachesvc/store/disk_tier.h"
#include "cachesvc/store/origin.h"
#include "cachesvc/store/policy.h"
#include "cachesvc/store/ram_tier.h"
#include "cachesvc/store/removal_log.h"
#include "common/share.h"

#define STORE_MAX_WRITES 8
#define STORE_CLOSE_NS (12 * NS_PER_S) /* longer than it takes to see that the disk hangs */

struct entry_ref {
    uint32_t idx;
    uint64_t seq;
};

struct store_ns {
    uint8_t digest[DIGEST_BYTES];
    struct store_ns_shape shape;
    uint32_t slot_bytes;
    uint32_t n_users;                     /* block_store_ns_hold() */
    uint64_t n_blocks, n_tier[DIR_TIERS]; /* resident; by tier */
};

struct lease_item {                    /* one block of one lease */
    uint32_t entry;                    /* DIR_NONE: an operator removed the block */
    uint32_t slot;                     /* RAM slot held, SLOT_NONE without */
    uint32_t next;                     /* of the lease, DIR_NONE ends; also the free list */
    uint32_t holder_prev, holder_next; /* items of the same block */
    uint32_t lease;                    /* pool index */
    uint32_t charge;                   /* bytes that its session answers for */
};
struct store_lease {
    struct list link;   /* of its session */
    struct list by_end; /* of all, by rising ends_ns */
    struct store_session *ss;
    uint64_t id; /* serial << 32 | pool index + 1 */
    uint64_t ends_ns, recalled_bytes;
    uint32_t items, next_free, recalled_units;
    bool is_recalled, is_told;
};

struct store_tenant {
    struct list link; /* live or free */
    const void *name;
    uint32_t n_sessions;
    struct share_tenant lease_bytes, lease_units, promises, fills;
};

struct store_session {
    struct list link; /* active or free */
    struct block_store *s;
    struct store_tenant *tenant;
    struct list leases, recalled, puts;
    struct share_user lease_bytes, lease_units; /* store_lease.c */
    struct share_user promises, fills;          /* store_put.c */
    uint64_t waits_until, promise_waits_until;  /* mono ns; it has been refused some */
};

enum put_blk_state {
    PUT_BLK_IDLE = 0,
    PUT_BLK_PRESENT,
    PUT_BLK_WAITING,
    PUT_BLK_OPEN,
    PUT_BLK_FILLED,
    PUT_BLK_DONE,
    PUT_BLK_DEAD
};
struct put_blk {
    uint32_t entry, slot; /* slot: SLOT_NONE until its bytes come */
    uint8_t n_entries;    /* new ones for it: its own, and a hole for its parent */
    uint8_t state;
    int16_t why;                 /* of a DEAD one */
    bool is_named;               /* in a commit whose callback was cancelled */
    struct store_commit *commit; /* waits for it */
};
struct store_put {
    struct list link; /* of its session, or free */
    struct list commits;
    struct store_session *ss;
    uint64_t id, deadline;
    uint32_t ns, n;
    struct put_blk *blk; /* [max_put_blocks] */
};

struct store_read {
    struct disk_op op;
    struct list link;    /* free list */
    struct list waiters; /* store_fetch.link */
    struct block_store *s;
    struct entry_ref e;
    uint8_t writer[STORE_WRITER_BYTES]; /* of the block, which may be gone when the read ends */
    uint64_t time_ms;
    uint32_t ram_slot;
    bool is_bounce;
};
struct store_write {
    struct disk_op op;
    struct disk_wait wait;
    struct list link; /* free list */
    struct block_store *s;
    struct entry_ref e;
    uint32_t ram_slot, disk_slot;
    uint64_t sync_errors; /* the tier's, when the payload was submitted */
};

/* A removal whose blocks are invisible, and are taken out of the directory a slice at a time. */
struct store_sweep {
    struct disk_removal r;
    uint32_t ns; /* STORE_NONE: every one */
    uint32_t at, end;
    bool dry_run;           /* only counts */
    struct store_evict *ev; /* NULL: it has its numbers */
};

struct block_store {
    struct block_store_cfg cfg;
    const struct clock *clk;
    struct disk_exec *exec, *own_exec;
    struct directory dir;
    struct origins origins;
    struct policy policy;
    struct ram_tier ram;
    struct disk_tier disk;
    bool has_disk, disk_unusable, is_closing;

    struct store_ns *ns;   /* [max_namespaces] */
    uint32_t *range_sizes; /* [max_namespaces][CHECKSUM_MAX_RANGES] */
    uint32_t *ns_class;
    uint32_t *ns_entries; /* in the directory */
    uint32_t n_ns;

    uint64_t seq, lease_serial, put_serial;
    struct block_store_stats st; /* st.now: what is cheap to keep */

    struct store_session *sessions;
    struct list free_sessions, live_sessions;
    struct store_tenant *tenants; /* [max_sessions] */
    struct list free_tenants, live_tenants;
    struct share lease_bytes, lease_units, promises, fills;
    struct list leases_by_end;
    uint64_t recalled_bytes, recalled_units; /* on their way back */
    uint32_t n_promised; /* directory entries of blocks whose bytes have not come */
    struct store_lease *leases;
    struct lease_item *items;
    uint32_t n_leases_max, free_lease, free_item;
    struct store_put *puts;
    struct put_blk *put_blks;
    struct list free_puts;
    struct store_read *reads;
    struct list free_reads;

    struct entry_ref *behind; /* ring of blocks to write, [behind_cap] */
    uint64_t behind_head, behind_n, behind_cap;
    struct store_write writes[STORE_MAX_WRITES];
    struct list free_writes;
    bool rescan_dirty; /* the ring lost some: look through the directory on tick */

    struct removal_log removals;
    uint64_t newest_ms; /* put time of the newest block seen */
    uint64_t expire_at; /* mono ns */
    struct store_sweep sweeps[STORE_MAX_SWEEPS];
    uint32_t n_sweeps;
    struct list evicts; /* store_evict.link: not answered yet */
    struct disk_wait evict_wait, clear_wait;
    bool evict_waiting, clear_waiting;
    uint64_t evict_seq, synced_seq; /* last record that the wait under way covers; that is synced */

    block_store_cb drain_cb, close_cb;
    void *drain_arg, *close_arg;
    struct disk_wait drain_wait;
    bool drain_waiting;
    uint64_t close_by; /* mono ns */
};

/* Never of a namespace that was found on disk and not registered since. */
static inline bool store_is_seg_first(const struct block_store *s, const struct dir_entry *e) {
    uint32_t seg = s->ns[e->ns].shape.seg_blocks;
    return seg && e->depth % seg == 0;
}
static inline struct dir_entry *store_at(const struct block_store *s, uint32_t idx) {
    return dir_at(&s->dir, idx);
}
static inline uint64_t store_now(const struct block_store *s) {
    return clock_mono_ns(s->clk);
}
static inline uint32_t store_cls(const struct block_store *s, const struct dir_entry *e) {
    return s->ns_class[e->ns];
}
static inline bool store_ref_is_live(const struct block_store *s, struct entry_ref r) {
    return dir_seq(dir_at(&s->dir, r.idx)) == r.seq &&
           dir_at(&s->dir, r.idx)->state == DIR_RESIDENT;
}
static inline bool entry_in_ram(const struct dir_entry *e) {
    return e->ram == TIER_CLEAN || e->ram == TIER_DIRTY;
}
static inline bool store_disk_works(const struct block_store *s) {
    return s->has_disk && !s->disk.is_failing;
}
/* Resident, and not of what an operator removed. */
bool store_is_doomed(const struct block_store *s, const struct dir_entry *e);
static inline bool store_is_there(const struct block_store *s, const struct dir_entry *e) {
    return e->state == DIR_RESIDENT && (s->n_sweeps == 0 || !store_is_doomed(s, e));
}
/* Unix ms as the pool counts: never before a block or a removal that is there. */
static inline uint64_t store_pool_ms(const struct block_store *s) {
    uint64_t now = clock_wall_ns(s->clk) / NS_PER_MS;
    return MAX(now, MAX(s->newest_ms, s->removals.max_before_ms + 1));
}

/* Keep entry states, the policy's lists and the gauges in step. The slot must be there. */
void store_set_ram(struct block_store *s, uint32_t idx, enum store_tier_state v);
void store_set_disk(struct block_store *s, uint32_t idx, enum store_tier_state v);

/* store_room.c */
/* Puts the entry on the lists where its state belongs; after a change of its slot's references. */
void store_settle(struct block_store *s, uint32_t idx);
void store_settle_used(struct block_store *s, uint32_t idx); /* as if touched now */
void store_on_held(void *arg, uint32_t idx);                 /* dir.on_held */
void store_set_orphan(struct block_store *s, uint32_t idx, bool orphan);
/* may_lose: rather than fail, drops a block that waits for its write to disk. 0, ERR_BUSY. */
int store_take_ram(struct block_store *s, uint32_t cls, uint32_t owner, bool may_lose,
                   uint32_t *ret_slot);
/* False: nothing in RAM is free now, and nothing may leave it (with several sizes: not looked for). */
bool store_may_take_ram(struct block_store *s, uint32_t cls);
/* 1: a disk slot of cls is free now; 0: soon (on_format); ERR_BUSY: nothing may leave. */
int store_make_disk_room(struct block_store *s, uint32_t cls);
bool store_ensure_entries(struct block_store *s, uint32_t n); /* n more that are no promises */
void store_drop_ram_copy(struct block_store *s, uint32_t idx);
/* The entry has no bytes any more: a hole if it has children, else gone, with parents that were
 * holes for it alone. It must be neither leased nor in a list. */
void store_lose_bytes(struct block_store *s, uint32_t idx);
void store_recalc_orphans(struct block_store *s, uint32_t root);
bool store_orphan_below(const struct block_store *s, uint32_t parent);

/* Takes everything from an entry at once, whatever state it is in; operator and bad bytes. clear:
 * its disk header too. */
void store_remove(struct block_store *s, uint32_t idx);

/* store_put.c */
/* Aborts the open blocks that are meant; how many, and their payload bytes. */
uint64_t store_put_abort(struct block_store *s,
                         bool (*is_meant)(void *arg, const struct dir_entry *e), void *arg,
                         uint64_t *ret_bytes);
void store_put_free(struct store_put *p);
void store_put_tick(struct block_store *s, uint64_t now);
/* store_fetch.c */
void store_reads_cancel(struct block_store *s, int rv);
/* store_behind.c */
void store_behind_push(struct block_store *s, uint32_t idx);
void store_behind_pump(struct block_store *s);
void store_behind_tick(struct block_store *s);
void store_behind_encode(void *arg, uint32_t owner, struct disk_slot_hdr *ret);
/* store_lease.c */
struct store_lease *store_lease_new(struct store_session *ss); /* NULL: no more for it now */
bool store_lease_add(struct store_lease *l, uint32_t idx);     /* false: no more for it now */
void store_lease_free(struct store_lease *l);
/* A session was refused that much: what it lacks of its share is recalled from others. */
void store_lease_ask(struct store_session *ss, uint64_t bytes, uint64_t blocks);
/* The block goes although it is leased: holders keep its bytes, not the block. */
/* Leased blocks of the namespace (STORE_NONE: of all), each once; looks at every lease. */
uint64_t store_lease_count(struct block_store *s, uint32_t ns);
void store_lease_forget(struct block_store *s, uint32_t idx);
void store_lease_tick(struct block_store *s, uint64_t now);
/* store_evict.c */
void store_evict_tick(struct block_store *s, uint64_t now);
void store_evict_close(struct block_store *s);
bool store_removal_matches(const struct block_store *s, uint32_t ns, const struct block_id *id,
                           const uint8_t *writer, uint64_t group, uint64_t time_ms);
int store_log_open(void *arg, uint32_t n_records);
int store_log_decode(void *arg, uint32_t page, const uint8_t p[DISK_PAGE]);
void store_log_encode(void *arg, uint32_t page, uint8_t ret[DISK_PAGE]);
/* store_recover.c */
int store_recover(struct block_store *s, struct errbuf *eb);
/* store_ns.c */
/* shape without range_sizes: what a slot header says of them; the first registration says the rest. */
int store_ns_add(struct block_store *s, const uint8_t digest[DIGEST_BYTES],
                 const struct store_ns_shape *shape, uint32_t *ret_ns, struct errbuf *eb);
