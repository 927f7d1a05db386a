/* store_fixture.h - a small store on a fake clock, with disk work run by hand.
 *
 * Ops wait in a queue until store_fx_pump(); they can fail, hang, be torn, or be lost (a crash: what
 * was not written yet never will be; with a crash_disk also what was not synced). Blocks are numbered chains: block (chain, depth) has an id, a
 * payload and a checksum that follow from the two numbers and a variant. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "cachesvc/store/block_store.h"
#include "cachesvc/store/disk_io.h"
#include "tests/unit/cachesvc/crash_disk.h"

#define FX_PAYLOAD 4032u /* with 4 ranges: one 4 KiB slot */
#define FX_RANGES 4u
extern const uint32_t fx_range_sizes[FX_RANGES];
extern const struct store_ns_shape fx_shape;
#define FX_SLOT 4096u
#define FX_DIGEST                                                                                  \
    { 1, 2, 3 }
#define FX_RECORDS 64u      /* of the removal log: two pages */
#define FX_HEAD (4 * 4096u) /* super block, twice, and the log */
#define FX_WALL_S 1700000000ull

struct fx_exec {
    struct disk_exec exec;
    struct list queue;
    uint32_t n_writes;   /* seen so far */
    uint32_t fail_write; /* this write (from 1) fails with EIO; 0: none */
    bool fail_all;
    uint32_t tear_write; /* only tear_bytes of this write reach the file, then the power is gone */
    uint32_t tear_bytes;
    bool is_dead; /* nothing reaches the file any more */
    bool fail_reads, fail_syncs;
    uint32_t n_ops, fail_op; /* the op with this number (from 1) fails with EIO; 0: none */
    uint32_t hang_op;        /* and this one comes back only when store_fx_unhang() says so */
    struct list hung;
    uint64_t shuffle;         /* not 0: seed of the order in which ops end */
    struct crash_disk *crash; /* NULL: a sync changes nothing */
};

struct store_fx {
    struct block_store_cfg cfg;
    struct block_store *s;
    struct store_session *ss;
    uint32_t ns;
    struct fx_exec x;
    struct clock clk;
    uint64_t now_ns, wall_ns;
    char dir[64];                        /* empty without a disk */
    uint32_t n_gone, n_visible, n_known; /* calls of the hooks for the index */
    struct block_id last_gone, last_visible;
    uint32_t n_notes;
    char note[512]; /* the last one, with its level in front */
};

/* n_ram, n_disk: slots of 4 KiB in extents of 8 and 16; n_disk 0: RAM only. */
void store_fx_open(struct store_fx *f, uint32_t n_ram, uint32_t n_disk);
/* The same with limits changed before the start. */
void store_fx_open_with(struct store_fx *f, uint32_t n_ram, uint32_t n_disk,
                        void (*change)(struct block_store_cfg *c));
void store_fx_close(struct store_fx *f); /* and removes the directory */
/* Ends the store (drained, or as if killed now) and opens it again on the same file. */
void store_fx_restart(struct store_fx *f, bool crash);
void store_fx_stop(struct store_fx *f, bool crash);
int store_fx_start(struct store_fx *f, struct errbuf *eb);
void store_fx_pump(struct store_fx *f);    /* runs disk work until there is none, ticks */
bool store_fx_run_one(struct store_fx *f); /* one op; false: there is none */
void store_fx_unhang(struct store_fx *f);
void store_fx_drain(struct store_fx *f);

struct block_id fx_id(uint32_t chain, uint32_t depth);
void fx_payload(uint32_t chain, uint32_t depth, uint32_t variant, uint8_t ret[FX_PAYLOAD]);
uint64_t fx_checksum(uint32_t chain, uint32_t depth, uint32_t variant);
struct store_put_block fx_block(uint32_t chain, uint32_t depth, uint32_t variant);

/* Puts blocks [from, to) of the chain; number made visible. */
uint32_t store_fx_put(struct store_fx *f, uint32_t chain, uint32_t from, uint32_t to);
uint32_t store_fx_put_as(struct store_fx *f, uint32_t chain, uint32_t from, uint32_t to,
                         uint32_t variant, const char *writer);
/* Another namespace of the same shape. */
uint32_t store_fx_ns(struct store_fx *f, uint8_t key);
/* Run from block 0, with the touch flag or without any. */
uint32_t store_fx_lookup(struct store_fx *f, uint32_t chain, uint32_t n, bool touch);
enum store_where store_fx_where(struct store_fx *f, uint32_t chain, uint32_t depth);
/* 0 and right bytes, or the miss's code; wrong bytes fail the test. */
int store_fx_fetch(struct store_fx *f, uint32_t chain, uint32_t depth);
uint64_t store_fx_evict(struct store_fx *f,
                        const struct store_filter *filter); /* pumps; blocks removed */
struct block_store_stats store_fx_stats(const struct store_fx *f);
/* Each entry is on the lists where its state belongs; on no list is a child warmer than the nearest
 * ancestor there. */
void store_fx_check_lists(const struct store_fx *f);
/* Registers blocks of one range of that many bytes; puts one of it, made of key, and fetches it. */
uint32_t store_fx_big_ns(struct store_fx *f, uint8_t key, uint32_t bytes);
bool store_fx_put_big(struct store_fx *f, uint32_t ns, uint32_t bytes, uint32_t key);
/* Touches it, too. */
bool store_fx_has_big(struct store_fx *f, uint32_t ns, uint32_t key);
/* Counters add up, nothing is held. */
void store_fx_check_idle(const struct store_fx *f);
