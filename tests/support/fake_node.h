/* fake_node.h - a cache node in memory, over the real rpc_server: what kv_client's users are tested
 * against. No eviction, no tiers; knobs make it misbehave.
 *
 * Thread: the loop's. */
#pragma once

#include <uv.h>

#include "common/block_id.h"
#include "common/checksum.h"
#include "common/list.h"
#include "proto/rpc_server.h"
#include "proto/wire_msg.h"

struct fake_block {
    struct block_id id, parent;
    uint32_t depth, ns;
    uint8_t flags;
    uint64_t checksum;
    uint64_t *sums;   /* [n_ranges] */
    uint8_t *payload; /* NULL: announced, not received */
    bool is_visible;
};

struct fake_ns {
    uint8_t digest[32];
    uint64_t payload_bytes;
    uint32_t n_ranges, n_full, seg_blocks;
    uint32_t range_sizes[CHECKSUM_MAX_RANGES];
};

struct fake_put;
struct fake_fetch;

struct fake_node {
    struct rpc_server *server;
    uv_loop_t *loop;
    uint16_t node_id;
    uint16_t port;
    struct fake_ns ns[16];
    uint32_t n_ns;
    struct fake_block *blocks;
    uint32_t n_blocks, cap_blocks;
    struct list puts, fetches;
    uint32_t n_conns, n_accepted;
    uint64_t next_id;
    const char *token;        /* NULL: none wanted */
    const char *session_name; /* of the one session it lists */
    char log_level[16];       /* the one option that may be set */
    /* what it saw */
    uint32_t calls[128]; /* by method */
    uint32_t n_open_leases, n_canceled;
    uint32_t n_heartbeat_leases; /* named by the last Heartbeat */
    uint32_t deadline_ms[128];   /* of the last request, by method */
    char last_traceparent[64];
    /* knobs */
    uint16_t mute;        /* this method gets no answer */
    uint16_t fail_method; /* this one gets fail_err */
    int fail_err;
    uint16_t repeat_method; /* this one is answered twice */
    int32_t corrupt_block;  /* flip a byte of the n-th block sent from now on; -1: none */
    int32_t swap_block; /* answer the n-th block asked for with the first of all blocks; -1: none */
    uint32_t lease_ttl_ms;
    uint64_t recall_lease, end_lease; /* told in each answer to Heartbeat; 0: none */
    uint32_t fetch_limit;             /* blocks sent of one fetch before it hangs; 0: all */
};

/* Listens on 127.0.0.1 (port 0) or on a Unix path. */
int fake_node_open(struct fake_node *n, uv_loop_t *loop, const char *addr, uint16_t node_id);
/* Drops all connections and stops listening; fake_node_fini() after the loop ran. */
void fake_node_close(struct fake_node *n);
void fake_node_fini(struct fake_node *n);
/* Adds a namespace of n_ranges equal ranges; its number. */
uint32_t fake_node_add_ns(struct fake_node *n, const uint8_t digest[32], uint64_t payload_bytes,
                          uint32_t n_ranges);
/* Puts a block directly; payload, of its namespace's size, is copied. */
void fake_node_add(struct fake_node *n, uint32_t ns, const struct block_id *id,
                   const void *payload);
const struct fake_block *fake_node_find(const struct fake_node *n, const struct block_id *id);
