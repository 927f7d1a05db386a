/* block_store.h - the store of one node: opaque ids in, opaque bytes out. The contract of store/.
 *
 * Thread:  loop thread only, callbacks too. Payload memory behind a store_ref or an opened put may
 * be read or written by the loop's own socket calls. Memory:  all of it is taken in
 * block_store_open(); at a bound the answer is ERR_BUSY, never growth. Request structs
 * (store_fetch, store_commit, store_evict) belong to the caller and must stay until their callback
 * or their cancel. Units:   bytes; monotonic nanoseconds inside, Unix milliseconds in records.
 * Visible: a block can be found only after its COMMIT, with its checksum verified on our own copy.
 */
#pragma once

#include "common/block_id.h"
#include "common/checksum.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/err.h"
#include "common/list.h"

#define STORE_WRITER_BYTES 16
#define STORE_NONE UINT32_MAX
/* Disk jobs of the store besides reads; the pool's queue must take max_disk_reads and these. */
#define STORE_DISK_JOBS 24u
/* Removals whose blocks are still being taken out of the directory; more are BUSY. */
#define STORE_MAX_SWEEPS 16u

struct block_store; /* opaque */
struct disk_exec;   /* who runs disk work off the loop: disk_io.h */
struct loop_work;   /* common/loop_work.h */

/* ---- configuration ------------------------------------------------------------------------- */

enum store_note { STORE_NOTE_INFO, STORE_NOTE_WARN, STORE_NOTE_ERROR };

struct block_store_cfg {
    uint64_t ram_bytes;         /* whole memory file: generation table, reserve and slots */
    uint64_t disk_bytes;        /* 0: no disk tier */
    const char *data_dir;       /* for the disk tier; exists, writable */
    uint64_t ram_extent_bytes;  /* 0: chosen from ram_bytes */
    uint64_t disk_extent_bytes; /* 0: 64 MiB */
    uint64_t
        bounce_bytes; /* reserve for disk reads inside ram_bytes; 0: chosen, none without disk */
    uint32_t min_slot_bytes;   /* 0: 64 KiB; a multiple of 4096 */
    uint32_t max_blocks;       /* directory entries, holes too; 0: (ram + disk) / 256 KiB */
    uint32_t max_namespaces;   /* 0: 256 */
    uint32_t max_sessions;     /* 0: 1024 */
    uint32_t max_puts;         /* open puts in all; 0: 4096 */
    uint32_t max_put_blocks;   /* blocks of one put; 0: 256 */
    uint32_t max_lease_blocks; /* leased blocks in all, one per block and lease; 0: 262,144 */
    uint32_t max_disk_reads;   /* in flight and queued; 0: 256 */
    uint64_t
        max_put_bytes; /* slots of all open puts, and as much promised; 0: a quarter of ram_bytes */
    uint64_t lease_ttl_ns; /* 0: 5 s; a lease ends unless it is renewed */
    uint64_t put_ttl_ns;   /* 0: 30 s; a put without progress is aborted */
    bool no_huge_pages;
    bool no_background_touch; /* tests: all slots open at once */
    bool buffered_io;         /* tests and odd file systems: never try O_DIRECT */
    bool disk_reformat;       /* a block file that would be refused is replaced by a new one */
    uint32_t removal_records; /* of the log, for a new file; 0: 65,536 */
    const struct clock *clk;  /* NULL: the real one */
    struct loop_work
        *work; /* the disk pool (owned by the caller, outlives the store); NULL: exec */
    struct disk_exec *exec; /* tests: a pool of their own */

    /* First blocks of segments (depth a multiple of the namespace's seg_blocks), for the index: one
     * became visible; its entry, resident or hole, left the directory. A namespace found on disk was
     * registered: from now on its segments are known and block_store_list_segs() has them. Each may be
     * NULL. Called from inside store calls: do not call the store back from them. */
    void (*on_seg_visible)(void *arg, const uint8_t ns_digest[DIGEST_BYTES],
                           const struct block_id *first);
    void (*on_seg_gone)(void *arg, const uint8_t ns_digest[DIGEST_BYTES],
                        const struct block_id *first);
    void (*on_segs_known)(void *arg);
    /* What an operator should read in the log, said once a change: text is for a human. */
    void (*on_note)(void *arg, enum store_note level, const char *text);
    void *hook_arg;
};

/* Recovers what the disk tier holds before it returns; those blocks are not announced by
 * on_seg_visible, they can be listed. Errors are clear text in eb: disk full, directory locked by
 * another process, file of another format or geometry. A block file that can't be read is no error:
 * it is left as it is, RAM serves alone, on_note says so and the gauge disk_degraded stays 1. */
int block_store_open(struct block_store **ret, const struct block_store_cfg *cfg,
                     struct errbuf *eb);
/* Writes everything dirty to disk and syncs, then calls back (0 or an error: at once while the disk
 * fails). Drain and close call back from block_store_tick() (close without a disk: from inside the
 * call), so keep ticking. */
typedef void (*block_store_cb)(void *arg, int rv);
void block_store_drain(struct block_store *s, block_store_cb cb, void *arg);
/* Fails what is pending with ERR_CANCELED, waits for disk work in flight, frees everything, calls
 * back with 0. ERR_TIMEOUT: the disk has not given its work back in time; memory and descriptor are
 * still in its hands, nothing is freed, and the process had better end. Sessions must have been
 * closed. */
void block_store_close(struct block_store *s, block_store_cb cb, void *arg);

/* Leases and puts past their time, write-behind, disk retries. Call it about ten times a second. */
void block_store_tick(struct block_store *s);

/* 16 bytes that were drawn when the disk tier's file was made; NULL without one. */
const uint8_t *block_store_disk_id(const struct block_store *s);

/* The memory file, for descriptor passing and sendfile; sealed after our own mapping. */
int block_store_memfd(const struct block_store *s);
uint64_t block_store_memfd_bytes(const struct block_store *s);
/* The file begins with one u64 generation for each min_slot_bytes of the file: generation of the
 * slot at file offset o is entry o / min_slot_bytes. */
uint32_t block_store_min_slot_bytes(const struct block_store *s);

/* ---- namespaces ---------------------------------------------------------------------------- */

/* What the blocks of a namespace look like; said once by who registers it, the store stays blind to
 * what the ranges mean. */
struct store_ns_shape {
    uint32_t payload_bytes; /* sum of range_sizes */
    uint32_t n_ranges;      /* 1..CHECKSUM_MAX_RANGES */
    uint32_t n_full;        /* ranges of a block that is far away; n_ranges: every block whole */
    uint32_t seg_blocks;    /* blocks of a chain that one node owns together */
    const uint32_t *range_sizes; /* [n_ranges], multiples of CHECKSUM_RANGE_ALIGN; copied. NULL in
                                  * infos: found on disk and not registered since the start */
};
/* *ret_ns is a small number, the same for the same digest as long as somebody holds it or anything is there
 * of it; then another namespace may get the number, as another slot size may get that size's place.
 * ERR_INVALID: impossible shape, or the digest is known with another one. ERR_BUSY: too many. */
int block_store_ns_register(struct block_store *s, const uint8_t digest[DIGEST_BYTES],
                            const struct store_ns_shape *shape, uint32_t *ret_ns,
                            struct errbuf *eb);
void block_store_ns_hold(struct block_store *s, uint32_t ns); /* one for each drop */
void block_store_ns_drop(struct block_store *s, uint32_t ns);
int block_store_ns_find(const struct block_store *s, const uint8_t digest[DIGEST_BYTES],
                        uint32_t *ret_ns);

/* ---- sessions: owners of leases and puts --------------------------------------------------- */

struct store_session; /* opaque, from a fixed pool */
/* tenant: whom the session is accounted to, a name that is only compared; the open sessions of one
 * name share what one tenant may have (common/share.h). Nobody else may have the name until they are
 * closed. 0, ERR_BUSY. */
int block_store_session_open(struct block_store *s, const void *tenant, struct store_session **ret);
/* Releases its leases, aborts its puts; slots that still receive are freed when
 * block_store_put_filled() or _unfilled() ends them. NULL is a no-op. */
void block_store_session_close(struct store_session *ss);

/* Renews the leases that are named, for lease_ttl_ns from now, and no others. A recalled lease (its
 * session holds more than its share, and another lacks some of its own) is never renewed: it ends
 * lease_ttl_ns after the first heartbeat that says so. */
struct store_heartbeat {
    /* in */
    const uint64_t *ids; /* [n] lease ids */
    uint32_t n, max;     /* max: room for ids in each of the two lists below */
    /* out */
    uint64_t *recalled, *ended; /* [max]: of this session, named or not; named, but gone */
    uint32_t n_renewed, n_recalled, n_ended;
};
void block_store_heartbeat(struct store_session *ss, struct store_heartbeat *h);

struct store_session_info {
    uint64_t leased_bytes; /* what it answers for: each block by the number of its holders */
    uint32_t leases, puts;
};
void block_store_session_info(const struct store_session *ss, struct store_session_info *ret);

/* ---- lookup, touch, leases ----------------------------------------------------------------- */

enum store_where { STORE_ABSENT = 0, STORE_RAM = 1, STORE_DISK = 2 };
enum store_lookup_flags {
    STORE_LOOKUP_TOUCH = 1, /* counts and moves the chain to the warm end of both tiers */
    STORE_LOOKUP_LEASE = 2, /* needs a session */
};

struct
    store_loc { /* where a block's bytes are in the memory file; for mapping (ARCHITECTURE.md, "Same host") */
    uint64_t file_off, generation;
};

struct store_lookup {
    /* in */
    uint32_t ns;
    const struct block_id *ids; /* the whole chain, block 0 (or the segment's first) first */
    uint32_t n, have;           /* blocks [0, have) are already the caller's own */
    uint32_t flags;
    struct store_loc *locs; /* [n] or NULL; set for leased RAM blocks, generation 0 elsewhere */
    /* out */
    uint8_t *where;    /* [n], enum store_where */
    uint32_t n_run;    /* resident blocks from `have` to the first gap */
    uint32_t n_leased; /* the first n_leased of them */
    uint64_t lease_id; /* 0: none */
};
/* ss may be NULL without LEASE. Memory only, never waits. 0 or ERR_INVALID. */
int block_store_lookup(struct block_store *s, struct store_session *ss, struct store_lookup *l);
/* Ends of chains, in any number and order: each chain, tail first, up to block 0. What several have
 * in common is walked once, and STORE_TOUCH_STEPS blocks at most in all: the rest stays as old as it
 * was. How many of the ids are resident blocks of the namespace. */
#define STORE_TOUCH_STEPS 131072u
uint32_t block_store_touch(struct block_store *s, uint32_t ns, const struct block_id *ids,
                           uint32_t n);
/* The lease's blocks in the order of their chain, all zeros for one that an operator removed; *ret_ns is
 * STORE_NONE when none is left. How many; ERR_NOTFOUND (expired, or not this session's), ERR_TOOBIG. */
int block_store_lease_ids(struct store_session *ss, uint64_t lease_id, uint32_t *ret_ns,
                          struct block_id *ret, uint32_t max);
/* 0 or ERR_NOTFOUND (expired, or not this session's). */
int block_store_release(struct store_session *ss, uint64_t lease_id);

/* ---- fetch --------------------------------------------------------------------------------- */

/* A hold on one slot's bytes; give it back with block_store_ref_drop(). */
struct store_ref {
    const uint8_t *payload; /* [payload_bytes], then sums and ends, in the memory file */
    const uint8_t *sums;    /* [n_ranges] XXH3-64, little-endian u64 */
    const uint8_t *ends;    /* [n_ranges] where each range ends in payload, little-endian u32 */
    uint8_t writer[STORE_WRITER_BYTES]; /* who computed it */
    uint64_t time_ms;                   /* when it was first put anywhere */
    uint32_t payload_bytes, n_ranges;
    uint64_t checksum; /* of sums and id: common/checksum.h */
    uint64_t file_off; /* of payload in the memory file */
    uint32_t slot;     /* the store's */
};

/* rv 0: *ref is the callee's now. ERR_NOTFOUND: a miss (evicted, or its bytes were bad). */
typedef void (*store_fetch_cb)(void *arg, int rv, const struct store_ref *ref);
struct store_fetch { /* caller's memory; private but for cb and arg */
    struct list link;
    store_fetch_cb cb;
    void *arg;
    struct block_store *s;
    struct store_read *read;
};
/* 1: *ret_ref is filled now, no callback. 0: cb comes exactly once, never from inside this call.
 * ERR_NOTFOUND, ERR_BUSY: now, no callback. */
int block_store_fetch(struct block_store *s, struct store_fetch *f, uint32_t ns,
                      const struct block_id *id, struct store_ref *ret_ref, store_fetch_cb cb,
                      void *arg);
void block_store_fetch_cancel(struct store_fetch *f); /* no callback any more */
void block_store_ref_drop(struct block_store *s, struct store_ref *ref);

/* ---- put ----------------------------------------------------------------------------------- */

enum store_put_status {
    STORE_PUT_WANTED = 0,
    STORE_PUT_PRESENT = 1,
    STORE_PUT_IN_FLIGHT = 2,
    STORE_PUT_CONFLICT = 3,
    STORE_PUT_BUSY = 4,
    STORE_PUT_BAD = 5,     /* depth or parent do not fit, or it stands on such a block */
    STORE_PUT_REMOVED = 6, /* an operator removed what it is; it must be computed anew */
};
enum store_put_flags { STORE_PUT_PARENT_ELSEWHERE = 1 }; /* the parent belongs to another node */

struct store_put_block {
    struct block_id id,
        parent;            /* parent: of depth 0 it is the namespace's root, which has no entry */
    const uint8_t *writer; /* [STORE_WRITER_BYTES] who computed it; NULL: the put's */
    uint64_t time_ms;      /* when it was first put anywhere; 0, or later than now: now */
    uint32_t depth, flags;
    uint64_t checksum; /* of range checksums and id: common/checksum.h */
};
struct store_put_args {
    uint32_t ns, n;
    const struct store_put_block *blocks; /* [n], parents before children */
    uint8_t writer[STORE_WRITER_BYTES];
    uint64_t group;
};

struct store_put; /* opaque, from a fixed pool, lives until block_store_put_end() or its session
                     ends */

/* status[n] is filled on 0, one a block: one block's trouble never refuses its neighbours, but for
 * those that stand on it. *ret is NULL when nothing is wanted. ERR_INVALID: no blocks, too many, or
 * an unknown namespace. ERR_BUSY: no put free. Nothing was begun then. */
int block_store_put_begin(struct store_session *ss, const struct store_put_args *a, uint8_t *status,
                          struct store_put **ret, struct errbuf *eb);
uint64_t block_store_put_id(const struct store_put *p); /* unique while the store is open */
struct store_put *block_store_put_find(struct store_session *ss, uint64_t put_id);

/* Where block i's payload_bytes go; NULL when the block is not wanted, already filled, open, or
 * aborted. ERR_BUSY: no room now, block aborted. Until put_filled() or put_unfilled() the slot cannot be reused, whatever happens to the
 * put; call one of them exactly once for each open, also after the put or its session has ended. */
struct store_fill {
    uint8_t *payload;
    uint32_t payload_bytes, slot;
};
int block_store_put_open(struct store_put *p, uint32_t i,
                         struct store_fill *ret); /* 0, ERR_NOTFOUND, ERR_EXISTS, ERR_BUSY */
/* All bytes are there: takes the checksums of our copy. 0; ERR_CORRUPT: not the announced one,
 * block aborted; ERR_CANCELED: the block was aborted meanwhile. */
int block_store_put_filled(struct block_store *s, struct store_fill *f);
void block_store_put_unfilled(struct block_store *s, struct store_fill *f); /* block aborted */

/* n_done of the named blocks are visible now, the others are not and will not be. */
typedef void (*store_commit_cb)(void *arg, uint32_t n_done);
struct store_commit { /* caller's memory; private */
    struct list link;
    store_commit_cb cb;
    void *arg;
    struct store_put *put;
    uint32_t n_wait, n_done;
    bool in_call;
};
/* Names blocks of the put by index; waits for their payloads. Blocks that were not wanted count as
 * done when present. 1: done now, *ret_done set, no callback. 0: cb comes once, unless cancelled.
 * ERR_INVALID: an index out of range or already committed. */
int block_store_put_commit(struct store_put *p, struct store_commit *c, const uint32_t *idx,
                           uint32_t n, uint32_t *ret_done, store_commit_cb cb, void *arg);
void block_store_put_commit_cancel(
    struct store_commit *c); /* the commit stands, the callback does not */
/* How block i ended: 0 visible, or present before; ERR_CORRUPT, ERR_BUSY (no room when its bytes
 * came), ERR_CANCELED (its bytes never came, an operator); ERR_NOTFOUND: not at its end yet, or never
 * wanted. */
int block_store_put_result(const struct store_put *p, uint32_t i);
/* Aborts what is not committed; a waiting commit's callback is called. The handle is gone. */
void block_store_put_end(struct store_put *p);

/* ---- administration ------------------------------------------------------------------------ */

struct store_filter { /* all set conditions must hold; none set: everything */
    bool by_ns, by_time, by_writer, by_group;
    uint8_t digest[DIGEST_BYTES];      /* of the namespace; may be one nobody has registered */
    uint64_t time_from_ms, time_to_ms; /* put time, both inclusive */
    uint8_t writer[STORE_WRITER_BYTES];
    uint64_t group;
    const struct block_id *ids; /* NULL: any; read during the call only */
    uint32_t n_ids;
    bool descendants;   /* with ids: also everything below them */
    uint64_t before_ms; /* evict: what was put later is not meant; 0: now */
    bool dry_run;       /* evict: only counts */
};
/* Where a failed removal was refused, before anything was removed; ERR_INVALID: the filter names what
 * no record can say (ids without namespace; ids, writer and group together; a time to come);
 * ERR_NOSPACE: the removal log is full, a flush of the namespace takes its place; ERR_BUSY.
 * What an operator removed does not come back: a record of it is synced before the callback, and
 * neither a put nor the next start brings back what the record matches. Matching blocks are
 * invisible and matching puts aborted when the call returns. After another error than those above
 * they are, too, but nothing is promised of the next start. The callback may come from inside the
 * call. */
/* Private, in the caller's memory, but for what the callback may read: before_ms (what the record says),
 * n_deferred (of the blocks: leased, so that their memory follows later), n_aborted (of the blocks: in puts,
 * never visible). */
struct store_evict {
    struct list link;
    void (*cb)(void *arg, int rv, uint64_t n_blocks, uint64_t bytes);
    void *arg;
    uint64_t before_ms, n_blocks, bytes, n_deferred, n_aborted, seq;
    bool is_sweeping, is_synced, wants_clear;
};
void block_store_evict(struct block_store *s, struct store_evict *e, const struct store_filter *f,
                       void (*cb)(void *arg, int rv, uint64_t n_blocks, uint64_t bytes), void *arg);
/* Flush = block_store_evict() with an empty filter. */

struct store_block_info {
    struct block_id id, parent; /* parent all zero when unknown */
    uint8_t ns_digest[DIGEST_BYTES];
    uint8_t writer[STORE_WRITER_BYTES];
    uint64_t group, checksum, put_seq, put_time_ms, ram_generation;
    uint32_t ns, depth, payload_bytes, n_children, leases, pins;
    uint8_t ram, disk; /* enum store_tier_state */
    bool hole, filling, foreign;
};
enum store_tier_state {
    TIER_NONE = 0,
    TIER_READING = 1,
    TIER_WRITING = 2,
    TIER_CLEAN = 3,
    TIER_DIRTY = 4
};

int block_store_inspect(const struct block_store *s, uint32_t ns, const struct block_id *id,
                        struct store_block_info *ret);
/* Ids of its children, holes and filling ones too, at most max. */
uint32_t block_store_children(const struct block_store *s, uint32_t ns, const struct block_id *id,
                              struct block_id *ret, uint32_t max);
/* Resident blocks that match, at most max; *cursor 0 to begin, 0 again when the end was reached.
 * One call looks at a bounded number of entries, so it may return few or none before the end. */
uint32_t block_store_list(const struct block_store *s, const struct store_filter *f,
                          uint64_t *cursor, struct store_block_info *ret, uint32_t max);

/* First blocks of segments that have an entry, resident or hole; cursor and bound as above. */
struct store_seg {
    uint32_t ns;
    struct block_id first;
};
uint32_t block_store_list_segs(const struct block_store *s, uint64_t *cursor, struct store_seg *ret,
                               uint32_t max);

struct store_ns_info {
    uint8_t digest[DIGEST_BYTES];
    struct store_ns_shape shape;
    uint32_t slot_bytes;
    bool is_idle;           /* not held, nothing of it is there: the number may mean another soon */
    uint64_t n_ram, n_disk; /* resident blocks */
};
uint32_t block_store_ns_count(const struct block_store *s);
void block_store_ns_info(const struct block_store *s, uint32_t ns, struct store_ns_info *ret);

/* Counters since the start. lookup_block = hit_ram_block + hit_disk_block + miss_block, always: a
 * block behind the first gap is a miss. Only lookups with TOUCH count; blocks below `have` do not.
 */
#define STORE_COUNTERS(X)                                                                          \
    X(lookup, "chains looked up, with the flag touch")                                             \
    X(lookup_block, "blocks looked up")                                                            \
    X(hit_ram_block, "blocks found in RAM")                                                        \
    X(hit_disk_block, "blocks found on disk only")                                                 \
    X(miss_block, "blocks not found, or behind a gap")                                             \
    X(fetch_ram, "blocks served from RAM")                                                         \
    X(fetch_disk, "blocks served after a disk read")                                               \
    X(fetch_miss, "fetches of a block that was not there")                                         \
    X(fetch_busy, "fetches refused at a limit")                                                    \
    X(promoted, "blocks read from disk into RAM")                                                  \
    X(bounced, "blocks served from the reserve, not promoted")                                     \
    X(put_wanted, "blocks begun")                                                                  \
    X(put_present, "blocks offered that were resident")                                            \
    X(put_in_flight, "blocks offered that somebody else was writing")                              \
    X(put_busy, "blocks refused at a limit")                                                       \
    X(put_corrupt, "payloads that did not match their checksum")                                   \
    X(put_bad, "blocks whose parent or depth did not fit")                                         \
    X(put_removed, "blocks refused because an operator removed what they are")                     \
    X(put_recalled, "blocks begun, without bytes, taken back from who had more than its share")    \
    X(put_expired, "puts aborted for lack of progress")                                            \
    X(conflict, "blocks offered with another checksum than the resident one")                      \
    X(committed, "blocks made visible")                                                            \
    X(aborted, "blocks begun and not made visible")                                                \
    X(evicted, "blocks that left the node to make room")                                           \
    X(evicted_unwritten, "blocks that left RAM before the disk had taken them")                    \
    X(evicted_ram, "RAM copies dropped to make room")                                              \
    X(evicted_disk, "disk copies dropped to make room")                                            \
    X(removed, "blocks removed by an operator")                                                    \
    X(disk_written, "blocks written to disk")                                                      \
    X(disk_write_error, "disk writes that failed")                                                 \
    X(disk_read_error, "disk reads that failed")                                                   \
    X(disk_corrupt, "blocks whose bytes on disk were not what was written")                        \
    X(disk_sync, "syncs of the disk file")                                                         \
    X(recovered, "blocks found on disk at start")                                                  \
    X(recover_ignored, "headers at start that were broken or superseded")                          \
    X(recover_removed, "headers at start of blocks that an operator had removed")                  \
    X(recover_skipped, "extents at start whose header or table could not be read")                 \
    X(lease_granted, "leases granted")                                                             \
    X(lease_recalled, "leases asked back from who held more than its share")                       \
    X(lease_expired, "leases that ended without release")                                          \
    X(extent_moved, "extents moved between slot sizes")

#define STORE_GAUGES(X)                                                                            \
    X(ram_bytes, "RAM tier size")                                                                  \
    X(ram_used_bytes, "RAM slots in use")                                                          \
    X(ram_lost_bytes, "RAM in extents whose slots do not fill them")                               \
    X(disk_lost_bytes, "disk in extents whose slots do not fill them")                             \
    X(disk_bytes, "disk tier size")                                                                \
    X(disk_used_bytes, "disk slots in use")                                                        \
    X(blocks, "resident blocks")                                                                   \
    X(ram_blocks, "blocks in RAM")                                                                 \
    X(disk_blocks, "blocks on disk")                                                               \
    X(holes, "entries kept for their children")                                                    \
    X(max_blocks, "directory size")                                                                \
    X(dirty_blocks, "RAM blocks not on disk")                                                      \
    X(filling_blocks, "blocks begun, not visible yet")                                             \
    X(leased_blocks, "leased blocks")                                                              \
    X(leased_bytes, "slots under lease")                                                           \
    X(leases, "leases")                                                                            \
    X(refs, "slots held by sends in flight")                                                       \
    X(puts, "open puts")                                                                           \
    X(put_bytes, "slots of open puts")                                                             \
    X(promised_bytes, "blocks that puts may send, without slots yet")                              \
    X(sessions, "sessions")                                                                        \
    X(reads_in_flight, "disk reads in flight or queued")                                           \
    X(writes_in_flight, "disk writes in flight")                                                   \
    X(removal_records, "records in the removal log")                                               \
    X(disk_degraded, "1 while the disk fails and RAM serves alone")

struct block_store_stats {
#define X(name, help) uint64_t name;
    STORE_COUNTERS(X)
    struct {
        STORE_GAUGES(X)
    } now;
#undef X
};
void block_store_stats(const struct block_store *s, struct block_store_stats *ret);
