/* index.h - which node holds which segment, as the rest of the node sees it. A hint, never the truth.
 *
 * A segment is what one node owns of a chain together: seg_blocks blocks (RegisterNamespace), named by
 * its first block's id. A node tells of a segment when its first block becomes visible, and takes that
 * back when the first block's entry, resident or hole, leaves the directory: it stays while any block
 * below it does.
 *
 * index_mem_open() is the embedded index: one node needs no other, since its directory answers.
 * index_redis_open() writes behind into Redis. Nothing here ever waits: publish and withdraw append
 * to a bounded backlog; what does not fit is counted and comes again with the next full republish.
 *
 * Thread: loop thread only, callbacks too. */
#pragma once

#include "common/block_id.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/err.h"

typedef struct uv_loop_s uv_loop_t;
struct log;

#define INDEX_SEG_BYTES 16
#define INDEX_STORE_ID_BYTES 16

/* The first bytes of SHA-256(namespace digest || first id): no two namespaces share one. */
struct index_seg {
    uint8_t b[INDEX_SEG_BYTES];
};
struct index_seg index_seg_of(const uint8_t ns_digest[DIGEST_BYTES], const struct block_id *first);

/* REDIS_UP: the last write was accepted. */
enum index_state { INDEX_MEM = 0, INDEX_REDIS_UP = 1, INDEX_REDIS_DOWN = 2 };

struct index_stats {
    enum index_state state;
    uint64_t published, withdrawn; /* segments written, in all */
    uint64_t dropped;              /* backlog full: left to the next republish */
    uint64_t errors, reconnects, republished;
    uint64_t backlog; /* segments waiting now */
};

struct index; /* opaque */
struct index_ops {
    void (*publish)(struct index *ix, const struct index_seg *seg);
    void (*withdraw)(struct index *ix, const struct index_seg *seg);
    /* Everything once more, in the background: the scan will find what was not announced. */
    void (*rescan)(struct index *ix);
    /* This start of the node. Known from the beginning; may rise once, when Redis tells of a later
     * one. */
    uint32_t (*epoch)(const struct index *ix);
    void (*stats)(const struct index *ix, struct index_stats *ret);
    /* Frees ix, then calls cb. */
    void (*close)(struct index *ix, void (*cb)(void *arg), void *arg);
};
struct index {
    const struct index_ops *ops;
};

int index_mem_open(struct index **ret, const struct clock *clk);

struct index_node { /* what the node's record says; read when it is written */
    uint64_t capacity_bytes, used_bytes;
    uint32_t state; /* enum msg_node_state */
};

struct index_redis_cfg {
    uv_loop_t *loop;
    const struct clock *clk;     /* NULL: the real one */
    struct log *log;             /* NULL: silent */
    const char *addr;            /* host:port or unix:/path; borrowed, as all texts here */
    const char *user, *password; /* AUTH; NULL or "": none */
    uint32_t db;
    uint16_t node_id;
    const char *node_addr;                  /* what clients connect to; in the node's record */
    uint32_t weight;                        /* of its share, MiB; 0: 1 */
    uint8_t store_id[INDEX_STORE_ID_BYTES]; /* zeros: it has none */
    uint32_t max_backlog;                   /* segments; 0: 65,536 */
    uint32_t entry_ttl_s;                   /* 0: 86,400 */
    uint32_t node_ttl_s;                    /* 0: 15 */
    void (*node)(void *arg, struct index_node *ret); /* may be NULL */
    /* Segments whose first block has an entry, for republishing and renewal: at most max into ret,
     * *cursor 0 to begin and 0 again at the end; one call does a bounded amount of work. */
    uint32_t (*scan)(void *arg, uint64_t *cursor, struct index_seg *ret, uint32_t max);
    void *arg;
};
/* Connects in the background; an absent Redis is not an error. ERR_INVALID: the address. */
int index_redis_open(struct index **ret, const struct index_redis_cfg *cfg, struct errbuf *eb);
/* For the next login, after the file was read again. ERR_NOMEM: the old one stays. */
int index_redis_set_password(struct index *ix, const char *password);
