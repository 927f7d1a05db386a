/* directory.h - every block this node knows: (namespace, id) to entry, and the tree of parents and
 * children.
 *
 * Thread:  loop thread.
 * Memory:  entries and table are taken in dir_init(); an entry has 112 bytes. Nothing allocates later;
 *          dir_add() answers DIR_NONE when full. An entry is named by its 32-bit
 *          index, which stays while the entry lives. An index that was kept across calls is checked
 *          with the entry's put sequence: a reused entry has another one, a hole has 0.
 * Keys:    an id means a block of one namespace only; the same id in another is another block, so
 *          that nothing a client says of its own blocks touches those of others.
 * States:  FILLING (a put writes it), RESIDENT (bytes in some tier), HOLE (no bytes, kept for
 *          children).
 * Held:    leased, pinned, filling, or with a held child. A held entry keeps its bytes in some tier,
 *          and so do its ancestors. The count of held children moves only when an entry's own answer
 *          changes, so a lease on a chain of n costs n steps, not n squared. */
#pragma once

#include "common/block_id.h"

#define DIR_NONE UINT32_MAX
#define DIR_DEPTH_MAX ((1u << 24) - 1)
#define DIR_TIME_MAX ((1ull << 48) - 1)

enum dir_tier { DIR_RAM = 0, DIR_DISK = 1, DIR_TIERS = 2 };
enum dir_state { DIR_FILLING = 0, DIR_RESIDENT = 1, DIR_HOLE = 2 };

struct dir_links { /* LRU list of one tier; towards the warm end is next */
    uint32_t prev, next;
};

/* Where an entry stands in a tier: nowhere while it may not leave, else on one of the lists. */
enum dir_list { DIR_UNLISTED = 0, DIR_MAIN = 1, DIR_ORPHANS = 2, DIR_DIRTY = 3, DIR_LISTS = 4 };

struct dir_entry {
    struct block_id id;
    uint64_t checksum;
    uint32_t parent, child; /* child: the first one */
    uint32_t sib_prev, sib_next;
    uint32_t slot[DIR_TIERS]; /* slots.h codes, DIR_NONE without */
    struct dir_links lru[DIR_TIERS];
    uint64_t time_ms : 48; /* origin: when it was first committed, Unix milliseconds */
    uint64_t origin : 16;  /* origin.h */
    uint64_t seq : 48;     /* put sequence of this node */
    uint64_t leases : 16;
    uint32_t held_children, n_children;
    uint32_t depth : 24;
    uint32_t pins : 8;
    uint16_t ns;
    uint16_t state : 2;
    uint16_t ram : 3, disk : 3; /* enum store_tier_state */
    uint16_t foreign : 1;       /* hole whose bytes belong to another node */
    uint16_t orphan : 1;        /* below a hole that is not foreign: evicted first */
    uint16_t disk_declined : 1; /* the disk has let it go: write it no more until it leaves RAM */
    uint16_t touched : 1;       /* by an earlier chain of the running request */
    uint16_t list : 4;          /* enum dir_list, two bits a tier */
};
_Static_assert(sizeof(struct dir_entry) <= 112, "directory entry");

struct directory {
    struct dir_entry *entries; /* [cap] */
    uint32_t *table;           /* [n_table], entry index or DIR_NONE; linear probing */
    uint32_t n_table, cap, n;
    uint32_t free_head; /* through .parent */
    uint32_t n_fresh;   /* entries never used yet begin here, so that start touches no memory */
    uint64_t seed;
    uint32_t *n_of_ns; /* entries of each namespace; the owner's, may be NULL */
    /* dir_is_held() of idx has another answer now. May be NULL. */
    void (*on_held)(void *arg, uint32_t idx);
    void *arg;
};

int dir_init(struct directory *d, uint32_t cap, uint64_t seed); /* 0, ERR_NOMEM */
void dir_fini(struct directory *d);

static inline struct dir_entry *dir_at(const struct directory *d, uint32_t idx) {
    return &d->entries[idx];
}
static inline uint64_t dir_seq(const struct dir_entry *e) {
    return e->seq;
}
static inline void dir_set_seq(struct dir_entry *e, uint64_t seq) {
    e->seq = seq & ((1ull << 48) - 1);
}
static inline enum dir_list dir_list(const struct dir_entry *e, enum dir_tier t) {
    return (enum dir_list)(e->list >> 2 * t & 3);
}
static inline void dir_set_list(struct dir_entry *e, enum dir_tier t, enum dir_list l) {
    e->list = ((e->list & ~(3u << 2 * t)) | (uint32_t)l << 2 * t) & 15;
}
/* Who is busy with the RAM slot of an entry that is filling or being read: the store's number of the
 * put or the read. Such an entry is on no disk list, so its links are free. */
static inline uint32_t *dir_busy_with(struct dir_entry *e) {
    return &e->lru[DIR_DISK].prev;
}
/* Index for an id of the namespace, or DIR_NONE. */
uint32_t dir_find(const struct directory *d, uint32_t ns, const struct block_id *id);
/* Starts the memory reads that dir_find() of these ids will need; a chain's entries lie anywhere. n
 * at most DIR_PREFETCH_MAX. */
#define DIR_PREFETCH_MAX 32u
void dir_prefetch(const struct directory *d, uint32_t ns, const struct block_id *ids, uint32_t n);
/* New entry, a hole without links; the id must not be there. DIR_NONE: full. */
uint32_t dir_add(struct directory *d, uint32_t ns, const struct block_id *id);
/* Without parent link, children, slots and LRU membership. */
void dir_del(struct directory *d, uint32_t idx);

void dir_link_parent(struct directory *d, uint32_t idx, uint32_t parent);
void dir_unlink_parent(struct directory *d, uint32_t idx); /* none: no-op */

bool dir_is_held(const struct dir_entry *e);
/* Call after anything that dir_is_held() reads has changed, with its answer before. */
void dir_held_changed(struct directory *d, uint32_t idx, bool before);
void dir_set_state(struct directory *d, uint32_t idx, enum dir_state state); /* keeps held counts */
void dir_add_leases(struct directory *d, uint32_t idx, int n);

/* Walk of the tree below root, root first and parents before children; DIR_NONE after the last.
 * descend: whether to go below cur. The entry cur may not be removed during the walk. */
uint32_t dir_walk(const struct directory *d, uint32_t root, uint32_t cur, bool descend);
