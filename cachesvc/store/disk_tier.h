/* disk_tier.h - the disk tier: one preallocated file, its extents, and the queue of page changes.
 *
 * Headers are not kept in memory: a 4 KiB page of an extent's table is encoded, when it is written,
 * from what its eight slots hold at that moment (cfg.encode asks the directory). So a change is
 * only a mark on its page, and a write carries every change since the last one. Pages of the
 * removal log go the same way (cfg.log_encode), numbered behind the tables' pages.
 *
 * Group commit. Marked pages wait in one queue. A round takes what is queued (bounded), writes it,
 * and when all of it is written syncs once; whoever waits for a change is told after the sync of
 * the round that carried it. At most one round runs, hence at most one write a page. A page whose
 * write failed is set aside (FAILED) until the disk is well again; who waits for it is told so.
 *
 * An extent changes hands only while none of its table's pages is queued, in flight or failed: such
 * a page would be written over what the new owner keeps there. Each time it gets a generation that
 * nothing on the disk can carry yet (64 random bits), so that no header or payload of the past
 * speaks for it.
 *
 * Slots:  FREE -> WRITING (payload in flight) -> LIVE (its header belongs in the table) -> FREE
 * Stale:  a FREE or WRITING slot whose header on disk still names an old block: eviction forgets.
 *         After a restart such a block is back, whole, if its slot was not reused and the removal
 *         log does not name it. A clearing pass writes zeros over all stale headers, some a tick.
 * Health: an op that fails, or is under way for longer than stall_ns, makes the tier FAILING; then
 *         nothing but what an operator waits for is written, until a probe (a page written, synced
 *         and read back) succeeds.
 * Thread: loop thread; disk work through disk_exec. Memory: all in disk_tier_init(). */
#pragma once

#include "cachesvc/store/disk_format.h"
#include "cachesvc/store/disk_io.h"
#include "cachesvc/store/slots.h"
#include "common/clock.h"

#define DISK_ROUND_OPS 8
#define DISK_ROUND_PAGES 16           /* adjacent pages of one write */
#define DISK_STALL_NS (10 * NS_PER_S) /* an op that takes longer is a fault */
#define DISK_PROBE_NS (5 * NS_PER_S)  /* between probes of a failing disk */

enum disk_slot_state { DS_FREE = 0, DS_WRITING, DS_LIVE };
enum disk_stale { STALE_NO = 0, STALE_YES, STALE_GOING };

#define DISK_OWNER_MAX ((1u << 28) - 1)
struct disk_slot {
    uint32_t owner : 28; /* directory entry of a LIVE or WRITING slot */
    uint32_t state : 2;  /* enum disk_slot_state */
    uint32_t stale : 2;  /* enum disk_stale */
};

/* What a wait is for besides one page. */
#define DISK_WAIT_LOG (UINT32_MAX - 1) /* every page of the removal log */
#define DISK_WAIT_ALL UINT32_MAX       /* every page */

struct disk_wait { /* caller's memory */
    struct list link;
    void (*cb)(struct disk_wait *w, int rv);
    uint64_t target; /* pages ever queued when it began to wait */
    uint64_t deadline_ns;
    uint32_t page;
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
    uint32_t log_records; /* of a new file; 0: DISK_LOG_RECORDS */
    bool buffered;
    bool reformat; /* replaces a file that would be refused */
    struct disk_exec *exec;
    const struct clock *clk;
    /* Fills the header of the block that owner holds; the extent's generation is the tier's. */
    void (*encode)(void *arg, uint32_t owner, struct disk_slot_hdr *ret);
    /* The log is empty and has room for so many records. 0, ERR_NOMEM. */
    int (*log_open)(void *arg, uint32_t n_records);
    /* One page of the removal log, from disk (0, ERR_CORRUPT) and for it. */
    int (*log_decode)(void *arg, uint32_t page, const uint8_t p[DISK_PAGE]);
    void (*log_encode)(void *arg, uint32_t page, uint8_t ret[DISK_PAGE]);
    /* An extent was formatted, or failed to be: try again to make room. */
    void (*on_format)(void *arg);
    /* Once for each change of is_failing. */
    void (*on_health)(void *arg, const char *why);
    void *arg;
};

struct disk_tier {
    struct disk_tier_cfg cfg;
    int fd;
    bool is_direct;
    struct disk_super super;
    struct slots slots;
    struct disk_slot *side; /* [slots_dense] */
    uint64_t *extent_gen;   /* [n_extents] */
    uint64_t n_stale, n_syncs;
    /* A sync that fails may have lost any write before it for good, and no later sync says so: who
     * wrote before it and waits for one after it has to write again. */
    uint64_t n_sync_errors;

    uint32_t pages_per_extent;
    uint32_t *queue;         /* ring of page numbers, each at most once */
    uint8_t *page_flags;     /* [n_pages] */
    uint32_t n_busy_extents; /* with pages that keep them from changing hands */
    uint32_t n_table_pages, n_pages, q_head, q_len, n_failed, n_log_failed;
    uint64_t n_queued, n_taken, n_synced; /* pages ever */
    struct list waits;                    /* by rising target */
    struct disk_round_op round[DISK_ROUND_OPS];
    uint32_t round_n, round_pending;
    uint64_t round_errors, format_errors; /* n_sync_errors when they began */
    bool round_active;
    uint8_t *round_bufs;
    struct disk_op sync_op;

    struct disk_op format_op;
    uint32_t format_ext; /* UINT32_MAX: none */
    bool format_failed;
    uint8_t *format_buf; /* [DISK_PAGE] */

    uint64_t
        clear_at; /* dense slot where the clearing pass goes on; UINT64_MAX: none is under way */

    struct list busy; /* disk_op.busy, oldest first */
    uint32_t n_busy;
    bool is_failing, probe_busy;
    uint64_t probe_at_ns;
    struct disk_op probe_op;
    uint8_t *probe_buf; /* [2 * DISK_PAGE]: the super block's second copy, and room to read it */
};

/* Opens or makes the file, locks it, preallocates it, reads the removal log. 0; ERR_UNAVAILABLE: the
 * file is there and its super block can't be read: nothing was changed, RAM may serve alone; other
 * errors are for whoever started the node. Text in eb, also where 0 came with a remark. */
int disk_tier_init(struct disk_tier *t, const struct disk_tier_cfg *cfg, struct errbuf *eb);
void disk_tier_fini(struct disk_tier *t); /* only when disk_tier_is_idle() */
bool disk_tier_is_idle(const struct disk_tier *t);

/* A slot to write a payload to: WRITING, owned. SLOT_NONE: format an extent or make room. */
uint32_t disk_tier_take(struct disk_tier *t, uint32_t cls, uint32_t owner);
/* Gives a free extent to cls and writes its header; on_format follows. False: none free, or one is
 * under way. */
bool disk_tier_format(struct disk_tier *t, uint32_t cls);
/* The same for an open extent without used slots, of whatever class. False: one is under way, or
 * pages of this extent are. */
bool disk_tier_reformat(struct disk_tier *t, uint32_t ext, uint32_t cls);

/* The payload is written: the header now belongs in the table; w is told when it is synced. */
void disk_tier_publish(struct disk_tier *t, uint32_t slot, struct disk_wait *w,
                       void (*cb)(struct disk_wait *, int));
/* Forgets the slot's content: free at once, its header stays until reuse. */
void disk_tier_forget(struct disk_tier *t, uint32_t slot, bool has_header);
/* Begins (again) the pass that clears all stale headers. */
void disk_tier_clear_stale(struct disk_tier *t);
static inline bool disk_tier_is_clearing(const struct disk_tier *t) {
    return t->clear_at != UINT64_MAX;
}

/* ---- removal log ---- */
static inline uint32_t disk_tier_log_pages(const struct disk_tier *t) {
    return (uint32_t)(t->super.log_bytes / DISK_PAGE);
}
void disk_tier_log_mark(struct disk_tier *t, uint32_t page);

/* DISK_WAIT_LOG or DISK_WAIT_ALL: cb(0) when all of that is synced as it is now; an error when some
 * of it could not be written, or not in time. May come from inside the call. */
void disk_tier_wait(struct disk_tier *t, struct disk_wait *w, uint32_t what,
                    void (*cb)(struct disk_wait *, int));

/* Who still waits is told ERR_CANCELED; while it is idle. */
void disk_tier_cancel_waits(struct disk_tier *t);

/* ---- health ---- */
void disk_tier_tick(struct disk_tier *t);
/* An op of the submitter's failed with rv. */
void disk_tier_fail(struct disk_tier *t, int rv, const char *what);
/* For how long the oldest op has been under way. */
uint64_t disk_tier_oldest_ns(const struct disk_tier *t);
static inline bool disk_tier_is_stalled(const struct disk_tier *t) {
    return disk_tier_oldest_ns(t) > DISK_STALL_NS;
}

/* Reads or writes a slot's whole content. 0 or ERR_BUSY. done sees op->rv. */
int disk_tier_submit(struct disk_tier *t, struct disk_op *op, enum disk_op_kind kind, uint32_t slot,
                     uint8_t *buf);

static inline struct disk_slot *disk_tier_side(const struct disk_tier *t, uint32_t slot) {
    return &t->side[slots_dense(&t->slots, slot)];
}

/* ---- start-up scan: disk_recover.c ---- */
struct disk_recover_cfg {
    /* For each header that its extent vouches for, one call at a time, by several threads. False:
     * of no use, its slot is stale. The extent has its class and is open. */
    bool (*found)(void *arg, uint32_t slot, const struct disk_slot_hdr *hdr);
    /* Class of a slot size; negative: the extent counts as free. */
    int (*cls)(void *arg, uint32_t slot_bytes);
    void *arg;
};
struct disk_recover_stats {
    uint64_t n_ignored;                /* headers that were broken */
    uint32_t n_skipped, first_skipped; /* extents whose header or table could not be read */
    uint32_t n_refused;                /* extents of no class */
};
/* Reads all tables. Nothing is kept but what found() keeps. */
int disk_recover(struct disk_tier *t, const struct disk_recover_cfg *cfg,
                 struct disk_recover_stats *ret, struct errbuf *eb);
