/* disk_tier.h - the disk tier: one preallocated file, its extents, and the queue of header changes.
 *
 * Headers are not kept in memory: a 4 KiB page of an extent's table is encoded, when it is written,
 * from what its eight slots hold at that moment (disk_tier.encode asks the directory). So a change
 * is only a mark on its page, and a write carries every change since the last one.
 *
 * Group commit. Marked pages wait in one queue. A round takes what is queued (bounded), writes it,
 * and when all of it is written syncs once; whoever waits for a change is told after the sync of
 * the round that carried it. At most one round runs, hence at most one write a page.
 *
 * Slots:  FREE -> WRITING (payload in flight) -> LIVE (its header belongs in the table) -> FREE or
 * CLEARING CLEARING -> CLEARED (in the running round) -> FREE (synced) Stale:  a FREE or WRITING
 * slot whose header on disk still names an old block: eviction forgets. After a restart such a
 * block is back, whole, if its slot was not reused; an operator's removal clears stale headers too.
 * Thread: loop thread; disk work through disk_exec. Memory: all in disk_tier_init(). */
#pragma once

#include "cachesvc/store/disk_format.h"
#include "cachesvc/store/disk_io.h"
#include "cachesvc/store/slots.h"

#define DISK_ROUND_OPS 8
#define DISK_ROUND_PAGES 16 /* adjacent pages of one write */

enum disk_slot_state { DS_FREE = 0, DS_WRITING, DS_LIVE, DS_CLEARING, DS_CLEARED };
enum disk_stale { STALE_NO = 0, STALE_YES, STALE_GOING };

struct disk_slot {
    uint32_t owner; /* directory entry of a LIVE or WRITING slot */
    uint32_t generation : 24;
    uint32_t state : 4; /* enum disk_slot_state */
    uint32_t stale : 4; /* enum disk_stale */
};

struct disk_wait { /* caller's memory */
    struct list link;
    void (*cb)(struct disk_wait *w, int rv);
    uint64_t target; /* pages ever queued when it began to wait */
    int rv;
};

struct disk_round_op {
    struct disk_op op;
    uint8_t *buf; /* [DISK_ROUND_PAGES * DISK_PAGE] */
    uint32_t page, n_pages;
};

struct disk_tier_cfg {
    const char *data_dir;
    uint64_t disk_bytes, extent_bytes; /* extent_bytes 0: the file's, or chosen for a new one */
    uint32_t min_slot_bytes;
    bool buffered;
    struct disk_exec *exec;
    /* Fills the header of the block that owner holds; extent and slot generation are the tier's. */
    void (*encode)(void *arg, uint32_t owner, struct disk_slot_hdr *ret);
    /* An extent was formatted, or failed to be: try again to make room. */
    void (*on_format)(void *arg, int rv);
    /* Headers could not be written; disk_tier_tick() tries again, so call that after a pause. */
    void (*on_error)(void *arg);
    void *arg;
};

struct disk_tier {
    struct disk_tier_cfg cfg;
    int fd;
    bool is_direct;
    struct disk_super super;
    struct slots slots;
    struct disk_slot *side;    /* [slots_dense] */
    uint64_t *extent_gen;      /* [n_extents] */
    uint64_t n_stale, n_syncs; /* stale slots; syncs done */

    uint32_t pages_per_extent;
    uint32_t *queue;     /* ring of page numbers, each at most once */
    uint8_t *page_flags; /* [n_pages] */
    uint32_t n_pages, q_head, q_len, n_failed;
    uint64_t n_queued, n_taken, n_synced; /* pages ever */
    struct list waits;                    /* by rising target */
    struct disk_round_op round[DISK_ROUND_OPS];
    uint32_t round_n, round_pending;
    int round_rv;
    bool round_active;
    uint8_t *round_bufs;
    struct disk_op sync_op;

    struct disk_op format_op;
    uint32_t format_ext; /* UINT32_MAX: none */
    bool format_failed;
    uint8_t *format_buf; /* [DISK_PAGE] */
    uint32_t n_busy;     /* ops in the executor */
};

/* Opens or makes the file, locks it, preallocates it. Nothing is read yet but the super block. */
int disk_tier_init(struct disk_tier *t, const struct disk_tier_cfg *cfg, struct errbuf *eb);
void disk_tier_fini(struct disk_tier *t); /* only when disk_tier_is_idle() */
bool disk_tier_is_idle(const struct disk_tier *t);

/* A slot to write a payload to: WRITING, owned. SLOT_NONE: format an extent or make room. */
uint32_t disk_tier_take(struct disk_tier *t, uint32_t cls, uint32_t owner);
/* Gives a free extent to cls and writes its header; on_format follows. False: none free, or one is
 * under way. */
bool disk_tier_format(struct disk_tier *t, uint32_t cls);
/* The same for an open extent without used slots, of whatever class. False: one is under way. */
bool disk_tier_reformat(struct disk_tier *t, uint32_t ext, uint32_t cls);

/* The payload is written: the header now belongs in the table; w is told when it is synced. */
void disk_tier_publish(struct disk_tier *t, uint32_t slot, struct disk_wait *w,
                       void (*cb)(struct disk_wait *, int));
/* Forgets the slot's content: free at once, its header stays until reuse. */
void disk_tier_forget(struct disk_tier *t, uint32_t slot, bool has_header);
/* Clears the header of a LIVE slot; free when that is synced. */
void disk_tier_clear(struct disk_tier *t, uint32_t slot);
void disk_tier_clear_stale(struct disk_tier *t);
/* cb when every change so far is synced, or could not be (rv); may come from inside the call. */
void disk_tier_wait(struct disk_tier *t, struct disk_wait *w, void (*cb)(struct disk_wait *, int));
void disk_tier_tick(struct disk_tier *t); /* tries failed writes again */

/* Reads or writes a slot's whole content. 0 or ERR_BUSY. done sees op->rv. */
int disk_tier_submit(struct disk_tier *t, struct disk_op *op, enum disk_op_kind kind, uint32_t slot,
                     uint8_t *buf);
void disk_tier_op_done(struct disk_tier *t); /* call it first in the done of such an op */

static inline struct disk_slot *disk_tier_side(const struct disk_tier *t, uint32_t slot) {
    return &t->side[slots_dense(&t->slots, slot)];
}

/* ---- start-up scan: disk_recover.c ---- */
struct disk_found {
    uint32_t slot;
    struct disk_slot_hdr hdr;
};
/* Reads all tables, gives extents their classes, returns valid headers in a malloc'd array (rising
 * put_seq). *ret_ignored counts broken ones. */
int disk_recover(struct disk_tier *t, struct disk_found **ret, uint64_t *ret_n,
                 uint64_t *ret_ignored, struct errbuf *eb);
