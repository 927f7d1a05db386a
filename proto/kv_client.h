/* kv_client.h - the one client of the cache service, for worker and tools.
 *
 * For each node address it holds a session: one control connection and 1 to 4 data connections,
 * opened in the background, reconnected with backoff. Namespaces are registered once a session and
 * again after every reconnect. A chain is spread over the live nodes by kv_route.h.
 *
 * Calls: return 0 and then exactly one done callback, from the loop, never from inside the call
 * that started it, ERR_CANCELED after kv_call_cancel() and at close; or < 0 and no callback:
 * ERR_UNAVAILABLE (no node is up), ERR_BUSY (too many calls), ERR_INVALID. Every call has a
 * deadline, after which it ends with ERR_TIMEOUT. Arrays and pointers in arguments are borrowed
 * until the done callback, unless said otherwise; results are valid during the callback.
 *
 * Memory given as a destination is not written any more once the done callback has run or
 * kv_call_cancel() has returned. Memory given as a source may be reused from the done callback on.
 *
 * Thread: the loop's. Durations: ms. */
#pragma once

#include "common/block_id.h"
#include "common/checksum.h"
#include "common/clock.h"
#include "common/compiler.h"
#include "common/err.h"
#include "proto/kv_route.h"
#include "proto/wire_msg.h"

typedef struct uv_loop_s uv_loop_t;

struct kv_client;
struct kv_call; /* a call under way; dead after its done callback */

#define KV_CLIENT_MAX_NODES 64u
#define KV_CLIENT_MAX_DATA_CONNS 4u

enum kv_node_state { KV_NODE_DOWN, KV_NODE_CONNECTING, KV_NODE_UP };

struct kv_client_cfg {
    const char *const *addrs; /* [n_addrs], rpc_sock.h has the forms; copied */
    uint32_t n_addrs;
    const void *token; /* [token_len]; copied; NULL: none */
    size_t token_len;
    enum msg_role role;
    const char *name;                        /* for the node's listings; NULL: "client" */
    const uint8_t *writer;                   /* [16] or NULL: names this process in slot headers */
    uint32_t n_data_conns;                   /* 0..4; 0: calls without payload only */
    uint32_t max_calls;                      /* at once; 0: 256 */
    uint32_t connect_timeout_ms;             /* connect and handshake; 0: 2000 */
    uint32_t backoff_min_ms, backoff_max_ms; /* 0: 50, 5000 */
    const char *tcp_congestion;              /* as in rpc_sock.h */
    const struct clock *clk;                 /* NULL: clock_real() */
    /* A node came up (err 0) or went down (why; also each failed attempt). May be NULL. */
    void (*on_node)(void *arg, uint32_t node, enum kv_node_state state, int err, const char *text);
    void *on_node_arg;
};

/* Connects in the background; a node that is absent is no error. */
int kv_client_open(struct kv_client **ret, uv_loop_t *loop, const struct kv_client_cfg *cfg,
                   struct errbuf *eb);
/* For each Hello from now on; sessions that are up stay. ERR_NOMEM: the old one stays. */
int kv_client_set_token(struct kv_client *c, const void *token, size_t len);
/* Every call ends with ERR_CANCELED; then cb; then c is freed. */
void kv_client_close(struct kv_client *c, void (*cb)(void *arg), void *arg);

uint32_t kv_client_nodes_up(const struct kv_client *c);
struct kv_node_info {
    const char *addr; /* borrowed from the client */
    enum kv_node_state state;
    uint32_t node_id; /* these four from Hello, when UP */
    uint32_t max_ids;
    uint64_t epoch;
    uint64_t features;
    int last_err;        /* why it is not UP; 0: never tried or UP */
    char last_text[160]; /* the same for a human */
};
void kv_client_node_info(const struct kv_client *c, uint32_t node, struct kv_node_info *ret);

/* ---- namespaces ---- */

struct kv_namespace {
    uint8_t digest[32];
    const char *descriptor; /* [descriptor_len], copied */
    size_t descriptor_len;
    const uint32_t *range_sizes; /* [n_ranges] bytes, multiples of 64; copied */
    uint32_t n_ranges;           /* 1..CHECKSUM_MAX_RANGES */
    uint32_t n_full;             /* ranges that a far block needs; n_ranges without window layers */
    uint32_t seg_blocks; /* of a chain that go to one node together; 0: KV_ROUTE_SEG_BLOCKS */
};
/* *ret_ns is the handle for calls; valid for the client's life. A node that refuses the namespace
 * counts as down (kv_node_info.last_err). At most 16. */
int kv_client_namespace(struct kv_client *c, const struct kv_namespace *ns, uint32_t *ret_ns);

/* ---- lookup, touch, release ---- */

/* What a lookup leased, by node. A value: copy it; give it back once with kv_client_release(). */
struct kv_lease {
    uint32_t n;
    struct {
        uint32_t node;
        uint32_t epoch_tag; /* which session; a lease of a lost one is nothing */
        uint64_t lease_id;
    } part[KV_CLIENT_MAX_NODES];
};

struct kv_lookup {
    uint32_t ns;
    const struct block_id *chain; /* [n], from block 0 */
    uint32_t n;
    uint32_t have;           /* blocks from 0 that the caller owns already */
    uint32_t flags;          /* MSG_LOOKUP_F_TOUCH, _LEASE */
    const char *traceparent; /* may be NULL */
    uint32_t deadline_ms;
};
struct kv_lookup_res {
    const uint8_t *status; /* [n] enum msg_lookup_status; ABSENT for blocks of nodes that failed */
    uint32_t n;
    uint32_t n_prefix; /* from block 0 without a gap: below `have`, or RAM or DISK */
    const struct kv_lease *lease;
};
/* rv 0 when at least one node answered. */
typedef void (*kv_lookup_cb)(void *arg, int rv, const struct kv_lookup_res *res);
int kv_client_lookup(struct kv_client *c, const struct kv_lookup *q, kv_lookup_cb cb, void *arg,
                     struct kv_call **ret);

typedef void (*kv_done_cb)(void *arg, int rv);
/* Batched: the deepest used block of each chain, with its segment's first block for routing. */
struct kv_touch {
    uint32_t ns;
    const struct block_id *const *chains; /* [n_chains] each from block 0 */
    const uint32_t *lens;                 /* [n_chains] */
    uint32_t n_chains;
    uint32_t deadline_ms;
};
int kv_client_touch(struct kv_client *c, const struct kv_touch *q, kv_done_cb cb, void *arg,
                    struct kv_call **ret);

/* Fire and forget: no callback, no error that matters. used: blocks whose bytes were really used.
 * Until then the client renews the lease, so every lease must be given back. */
void kv_client_release(struct kv_client *c, const struct kv_lease *lease, uint32_t used);

/* ---- fetch ---- */

struct kv_fetch {
    uint32_t ns;
    const struct block_id *chain;   /* from block 0 (segments are counted from there) */
    uint32_t first, n;              /* chain[first .. first+n) */
    uint8_t *const *dst;            /* [n], room for the named ranges each; NULL skips that block */
    uint32_t first_range, n_ranges; /* of each block; n_ranges 0: all from first_range on */
    const char *traceparent;
    uint32_t deadline_ms;
    /* Each block, in any order: 0 (verified, at dst[i]), ERR_NOTFOUND, ERR_BUSY, ERR_CORRUPT, or
     * what ended its connection. i counts from `first`. May be NULL. */
    void (*on_block)(void *arg, uint32_t i, int rv);
};
struct kv_fetch_res {
    uint32_t n_ok, n_miss, n_corrupt;
    uint64_t bytes;
};
/* rv 0 when every block has a final status (which may be a miss). */
typedef void (*kv_fetch_cb)(void *arg, int rv, const struct kv_fetch_res *res);
int kv_client_fetch(struct kv_client *c, const struct kv_fetch *q, kv_fetch_cb cb, void *arg,
                    struct kv_call **ret);

/* ---- put ---- */

struct kv_put {
    uint32_t ns;
    const struct block_id *chain;           /* from block 0; parent of chain[i] is chain[i-1] */
    uint32_t first, n;                      /* chain[first .. first+n) */
    const uint8_t *const *payload;          /* [n], payload_bytes each */
    const uint64_t *checksum;               /* [n], block checksums */
    const uint64_t *const *range_checksums; /* [n][n_ranges] */
    uint64_t group;
    bool urgent; /* normal instead of low priority */
    const char *traceparent;
    uint32_t deadline_ms;
};
struct kv_put_res {
    /* [n]: 0 stored now, ERR_EXISTS was there, ERR_BUSY, ERR_CONFLICT, ERR_CORRUPT, ERR_NOSPACE,
     * ERR_CANCELED (aborted), or what ended its node's connection */
    const int *status;
    uint32_t n_stored, n_present, n_conflict;
    uint64_t bytes_sent;
};
/* rv 0 when every node answered, whatever the statuses. */
typedef void (*kv_put_cb)(void *arg, int rv, const struct kv_put_res *res);
int kv_client_put(struct kv_client *c, const struct kv_put *q, kv_put_cb cb, void *arg,
                  struct kv_call **ret);

/* Ends a call: its callback comes from the loop with ERR_CANCELED, unless it has already finished
 * and only the callback is outstanding. Destinations are left alone from now on. */
void kv_call_cancel(struct kv_call *call);

/* ---- admin: one node (its index in addrs) ---- */

#define KV_ADMIN_CALLS(X)                                                                          \
    /* name, method, request, answer */                                                            \
    X(stats, STATS, stats_req, stats_res)                                                          \
    X(list, LIST, list_req, list_res)                                                              \
    X(inspect, INSPECT, inspect_req, inspect_res)                                                  \
    X(evict, EVICT, evict_req, evict_res)                                                          \
    X(flush, FLUSH, flush_req, evict_res)                                                          \
    X(pin, PIN, pin_req, pin_res)                                                                  \
    X(unpin, UNPIN, pin_req, pin_res)                                                              \
    X(scrub, SCRUB, scrub_req, scrub_res)                                                          \
    X(drain, DRAIN, drain_req, ack)                                                                \
    X(config_get, CONFIG_GET, config_get_req, config_get_res)                                      \
    X(config_set, CONFIG_SET, config_set_req, ack)                                                 \
    X(members, MEMBERS, members_req, members_res)

/* The request is encoded at once, nothing is borrowed. text: the node's words for an error, else
 * "". */
#define X(name, method, req, res)                                                                  \
    typedef void (*kv_##name##_cb)(void *arg, int rv, const char *text,                            \
                                   const struct msg_##res *ret);                                   \
    int kv_client_##name(struct kv_client *c, uint32_t node, const struct msg_##req *m,            \
                         uint32_t deadline_ms, kv_##name##_cb cb, void *arg,                       \
                         struct kv_call **ret);
KV_ADMIN_CALLS(X)
#undef X
