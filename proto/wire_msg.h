/* wire_msg.h - the schema as plain structs; what other folders see of kvcache.proto and
 * admin.proto.
 *
 * Each message has
 *   int wire_msg_X_decode(struct bump *scratch, const uint8_t *p, size_t n, struct msg_X *ret,
 * struct errbuf *eb);
 *       0, ERR_PROTO (not such a message, or a field of a wrong length), ERR_TOOBIG (does not fit
 * scratch).
 *       Everything that ret points to lives in scratch, nothing in p.
 *   int wire_msg_X_encode(struct bump *scratch, const struct msg_X *m, struct buf *dst);
 *       appends to dst; 0 or ERR_TOOBIG (over dst's capacity or scratch's). Borrows everything.
 * Neither allocates from the heap. Strings are never NULL after decoding and may be NULL for
 * encoding. Field meanings: the .proto files. Thread: any; scratch and dst have one owner. */
#pragma once

#include "common/block_id.h"
#include "common/buf.h"
#include "common/bump.h"
#include "common/compiler.h"
#include "common/err.h"

/* ---- values that travel as numbers ---- */

enum msg_role {
    MSG_ROLE_WORKER = 1,
    MSG_ROLE_READER = 2,
    MSG_ROLE_ADMIN = 3,
    MSG_ROLE_NODE = 4,
};

/* one byte a block in msg_lookup_res.status and msg_wait_event.status */
enum msg_lookup_status {
    MSG_LOOKUP_ABSENT = 0,
    MSG_LOOKUP_RAM = 1,
    MSG_LOOKUP_DISK = 2,
    MSG_LOOKUP_CLAIMED = 3,
    MSG_LOOKUP_HINT = 4,
};
#define MSG_LOOKUP_F_TOUCH 1u
#define MSG_LOOKUP_F_LEASE 2u
#define MSG_LOOKUP_F_WHY 8u

enum msg_fetch_status {
    MSG_FETCH_OK = 0,
    MSG_FETCH_ABSENT = 1,
    MSG_FETCH_BUSY = 2,
    MSG_FETCH_CORRUPT = 3,
    MSG_FETCH_CANCELED = 4,
    MSG_FETCH_MAPPED = 5,
};
#define MSG_FETCH_F_MAP 1u

enum msg_put_status {
    MSG_PUT_WANTED = 0,
    MSG_PUT_PRESENT = 1,
    MSG_PUT_IN_FLIGHT = 2,
    MSG_PUT_CONFLICT = 3,
    MSG_PUT_BUSY = 4,
    MSG_PUT_BAD = 5,
    MSG_PUT_REMOVED = 6,
};
#define MSG_PUT_BF_PARENT_ELSEWHERE 1u

enum msg_commit_status {
    MSG_COMMIT_OK = 0,
    MSG_COMMIT_PRESENT = 1,
    MSG_COMMIT_CORRUPT = 2,
    MSG_COMMIT_ABORTED = 3,
    MSG_COMMIT_CONFLICT = 4,
    MSG_COMMIT_NOSPACE = 5,
};

enum msg_list_what { MSG_LIST_BLOCKS = 1, MSG_LIST_NAMESPACES = 2, MSG_LIST_SESSIONS = 3 };
enum msg_node_state { MSG_NODE_STARTING = 0, MSG_NODE_READY = 1, MSG_NODE_DRAINING = 2 };
enum msg_index_state { MSG_INDEX_MEM = 0, MSG_INDEX_REDIS_UP = 1, MSG_INDEX_REDIS_DOWN = 2 };
enum msg_block_state { MSG_BLOCK_FILLING = 0, MSG_BLOCK_RESIDENT = 1, MSG_BLOCK_HOLE = 2 };
enum msg_tier_state {
    MSG_TIER_NONE = 0,
    MSG_TIER_READING = 1,
    MSG_TIER_WRITING = 2,
    MSG_TIER_CLEAN = 3,
    MSG_TIER_DIRTY = 4,
};

/* Bytes of any length. */
struct msg_bytes {
    const uint8_t *p;
    size_t n;
};

/* ---- any method ---- */

struct msg_error {
    uint32_t code; /* wire_err_from_code() */
    const char *text;
};
struct msg_ack {
    uint64_t count;
};

/* ---- data methods ---- */

struct msg_hello_req {
    uint32_t version_min, version_max;
    uint64_t features;
    uint32_t role; /* enum msg_role */
    struct msg_bytes token;
    const char *client_name;
    struct msg_bytes session_token; /* 0 or 16 bytes */
    struct msg_bytes writer;        /* 0 or 16 bytes */
    uint32_t node_id;
    uint64_t node_epoch;
};
struct msg_hello_res {
    uint32_t version;
    uint64_t features;
    uint32_t node_id;
    uint64_t epoch;
    struct msg_bytes session_token; /* 0 or 16 bytes */
    const char *node_name;
    const char *server_version;
    uint32_t max_message_bytes;
    uint64_t max_payload_bytes;
    uint32_t max_ids, max_data_conns, lease_ttl_ms, max_inflight, conn;
    uint64_t map_bytes;
    uint32_t min_slot_bytes;
    uint64_t map_table_offset, pool_time_ms;
};

struct msg_register_ns_req {
    struct msg_bytes digest; /* 32 bytes */
    struct msg_bytes descriptor;
    size_t n_range_sizes;
    const uint32_t *range_sizes;
    uint32_t n_full, seg_blocks;
};
struct msg_register_ns_res {
    uint32_t ns;
    uint64_t slot_bytes, resident_blocks;
};

struct msg_lookup_req {
    uint32_t ns;
    size_t n_ids;
    const struct block_id *ids; /* [n_ids] */
    uint32_t have, flags;       /* MSG_LOOKUP_F_* */
    const char *traceparent;
    uint64_t group;
};
struct msg_lookup_res {
    struct msg_bytes status; /* enum msg_lookup_status a byte */
    uint32_t n_prefix;
    uint64_t lease_id;
    uint32_t lease_first, lease_count, lease_ttl_ms;
    size_t n_hint_nodes;
    const uint32_t *hint_nodes;
    uint64_t claim_id;
    uint32_t claim_first, claim_wait_ms;
    size_t n_map_offset, n_map_generation;
    const uint64_t *map_offset, *map_generation;
    uint32_t claim_home;
    struct msg_bytes why; /* a byte an id, or empty */
    size_t n_why_age_s, n_map_checksums, n_hint_epochs;
    const uint32_t *why_age_s;
    const uint64_t *map_checksums, *hint_epochs;
};

struct msg_touch_req { /* answer: msg_ack */
    uint32_t ns;
    size_t n_ids;
    const struct block_id *ids;
    const char *traceparent;
};

struct msg_fetch_req {
    uint32_t ns;
    size_t n_ids;
    const struct block_id *ids;
    uint64_t lease_id;
    uint32_t first_range, n_ranges, flags;
    const char *traceparent;
    uint64_t group;
};
struct msg_fetch_block { /* one a frame; payload behind it with MSG_FETCH_OK */
    uint32_t index, count, status;
    uint64_t checksum;
    size_t n_range_checksums;
    const uint64_t *range_checksums;
    uint32_t first_range, n_ranges;
    uint64_t map_offset, map_generation;
    struct msg_bytes origin_writer; /* 0 or 16 bytes */
    uint64_t origin_time_ms;
};

struct msg_cancel_req { /* answer: msg_ack */
    uint64_t request_id;
    uint32_t conn;
};

struct msg_put_begin_req {
    uint32_t ns;
    size_t n_ids, n_parents, n_depths, n_checksums; /* all equal in a valid request */
    const struct block_id *ids, *parents;
    const uint32_t *depths;
    const uint64_t *checksums;
    struct msg_bytes block_flags; /* MSG_PUT_BF_* a byte, or empty */
    struct msg_bytes writer;      /* 0 or 16 bytes */
    uint64_t group;
    uint32_t priority;
    uint64_t claim_id;
    const char *traceparent;
    struct msg_bytes origin_writers; /* [n_ids] of 16 bytes each, or empty */
    size_t n_origin_times_ms;        /* n_ids or 0 */
    const uint64_t *origin_times_ms;
};
struct msg_put_begin_res {
    uint64_t put_id;
    struct msg_bytes status; /* enum msg_put_status a byte */
    uint32_t ttl_ms;
};
struct msg_put_data { /* one-way; payload behind it */
    uint64_t put_id;
    uint32_t index;
    size_t n_range_checksums;
    const uint64_t *range_checksums;
};
struct msg_put_commit_req {
    uint64_t put_id;
    size_t n_indexes;
    const uint32_t *indexes;
    bool last;
};
struct msg_put_commit_res {
    struct msg_bytes status; /* enum msg_commit_status a byte, in the order of indexes */
};
struct msg_put_abort_req { /* answer: msg_ack */
    uint64_t put_id;
};

struct msg_release_req { /* answer: msg_ack */
    uint64_t lease_id;
    uint32_t used;
    uint64_t claim_id;
};
struct msg_wait_req {
    uint32_t ns;
    size_t n_ids;
    const struct block_id *ids;
    const char *traceparent;
    uint64_t claim_id;
    uint32_t home_node;
};
struct msg_wait_event {
    uint32_t index, count, status;
};
struct msg_heartbeat_req {
    size_t n_lease_ids, n_claim_ids;
    const uint64_t *lease_ids, *claim_ids;
};
struct msg_heartbeat_res {
    uint32_t renewed;
    size_t n_recalled, n_ended;
    const uint64_t *recalled, *ended;
};
struct msg_members_req {
    bool follow;
    uint64_t after_removal;
};
struct msg_member {
    uint32_t node_id;
    const char *address;
    uint64_t epoch, capacity_bytes, used_bytes;
    struct msg_bytes mac;
    uint32_t weight, state;    /* enum msg_node_state */
    struct msg_bytes store_id; /* 0 or 16 bytes */
    uint64_t time_ms;
    uint32_t load;
};
#define MSG_HOT_BYTES 16
#define MSG_REMOVAL_BYTES 128
struct msg_members_res {
    size_t n_members;
    const struct msg_member *members;
    uint64_t version;
    uint32_t placement_version;
    struct msg_bytes hot, removals; /* MSG_HOT_BYTES, MSG_REMOVAL_BYTES each */
};

struct msg_claim_req {
    uint32_t ns;
    size_t n_ids;
    const struct block_id *ids;
    uint32_t expect_ms;
    uint64_t group;
    const char *traceparent;
};
struct msg_claim_res {
    uint64_t claim_id, taken_id;
    uint32_t covered, done, eta_ms;
};
struct msg_claim_mark_req { /* answer: msg_ack */
    uint32_t ns;
    uint64_t claim_id;
    uint32_t home_node;
    size_t n_ids;
    const struct block_id *ids;
    uint32_t ttl_ms;
};
struct msg_claim_progress { /* one-way */
    uint64_t claim_id;
    uint32_t done, eta_ms;
};

struct msg_handover_list_req {
    struct msg_bytes digest; /* 0 or 32 bytes */
    uint32_t node_id, placement_version;
    struct msg_bytes cursor;
    uint32_t limit;
};
struct msg_handover_list_res { /* one entry a block in each list */
    size_t n_ids, n_parents, n_depths, n_checksums;
    const struct block_id *ids, *parents;
    const uint32_t *depths;
    const uint64_t *checksums;
    struct msg_bytes origin_writers; /* 16 bytes each */
    size_t n_origin_times_ms, n_groups, n_ages_s;
    const uint64_t *origin_times_ms, *groups;
    const uint32_t *ages_s;
    struct msg_bytes block_flags, cursor;
};

/* ---- admin methods ---- */

struct msg_stats_req {
    char none; /* no fields */
};
struct msg_stats_counter {
    const char *name;
    double value;
};
struct msg_stats_res {
    uint32_t node_id;
    const char *node_name, *version;
    uint64_t epoch, uptime_ms;
    uint32_t state; /* enum msg_node_state */
    uint64_t ram_bytes, ram_used_bytes, disk_bytes, disk_used_bytes;
    uint64_t max_blocks, blocks_ram, blocks_disk, holes, leases, pins, puts_open;
    uint32_t sessions, connections, namespaces;
    uint64_t lookup_blocks, lookup_hits, fetch_blocks, put_blocks, evict_blocks, conflicts, corrupt;
    uint32_t index_state; /* enum msg_index_state */
    size_t n_counters;
    const struct msg_stats_counter *counters;
};

struct msg_list_req {
    uint32_t what; /* enum msg_list_what */
    struct msg_bytes cursor;
    uint32_t limit;
    struct msg_bytes digest; /* 0 or 32 bytes */
};
struct msg_block_info {
    struct msg_bytes id, parent, digest; /* 32 bytes each; parent and digest may be empty */
    uint32_t depth, state, ram, disk;    /* enum msg_block_state, msg_tier_state */
    uint64_t payload_bytes, checksum, generation;
    uint32_t leases, pins, n_children;
    uint64_t put_time_ms, put_seq;
    struct msg_bytes writer; /* 0 or 16 bytes */
    uint64_t group;
    bool foreign;
    uint32_t encoding;
    uint64_t stored_bytes;
};
struct msg_namespace_info {
    struct msg_bytes digest, descriptor;
    uint64_t payload_bytes;
    uint32_t n_ranges;
    uint64_t slot_bytes, blocks_ram, blocks_disk;
    size_t n_range_sizes; /* 0: found on disk and not registered since the node's start */
    const uint32_t *range_sizes;
    uint32_t n_full, seg_blocks;
};
struct msg_session_info {
    uint64_t session;
    const char *client_name, *peer;
    uint32_t role, data_conns, leases, puts_open;
    uint64_t age_ms;
};
struct msg_list_res {
    size_t n_blocks, n_namespaces, n_sessions;
    const struct msg_block_info *blocks;
    const struct msg_namespace_info *namespaces;
    const struct msg_session_info *sessions;
    struct msg_bytes cursor;
};

struct msg_inspect_req {
    struct msg_bytes id, digest; /* 32 bytes each */
};
struct msg_inspect_res {
    struct msg_block_info block;
    size_t n_children;
    const struct block_id *children;
    size_t n_range_checksums;
    const uint64_t *range_checksums;
    size_t n_nodes;
    const uint32_t *nodes;
};

struct msg_evict_req {
    size_t n_ids;
    const struct block_id *ids;
    bool descendants;
    struct msg_bytes digest; /* 0 or 32 bytes */
    uint64_t from_ms, to_ms;
    struct msg_bytes writer; /* 0 or 16 bytes */
    bool dry_run;
    uint64_t before_ms, group;
};
struct msg_evict_res { /* also of Flush */
    uint64_t blocks, bytes, deferred, puts_aborted, before_ms;
};
struct msg_flush_req {
    struct msg_bytes digest; /* 0 or 32 bytes */
    uint64_t before_ms;
};

struct msg_pin_req { /* also of Unpin */
    size_t n_ids;
    const struct block_id *ids;
    bool descendants;
    const char *label;
    struct msg_bytes digest; /* 32 bytes */
};
struct msg_pin_res {
    uint64_t blocks, absent, over_limit;
};
struct msg_scrub_req {
    uint32_t op;
    uint64_t bytes_per_s;
};
struct msg_scrub_res {
    uint32_t running;
    uint64_t checked, corrupt, left;
};
struct msg_drain_req { /* answer: msg_ack */
    bool on;
    uint32_t grace_ms;
};
struct msg_config_get_req {
    const char *name;
};
struct msg_config_item {
    const char *name, *value, *default_value;
    bool live;
    const char *help;
};
struct msg_config_get_res {
    size_t n_items;
    const struct msg_config_item *items;
};
struct msg_config_set_req { /* answer: msg_ack */
    const char *name, *value;
};
struct msg_events_req {
    uint64_t kinds, after_seq;
};
struct msg_event {
    uint64_t seq, time_ms;
    uint32_t kind;
    size_t n_ids;
    const struct block_id *ids;
    const char *text;
    uint64_t lost;
};

/* Every message that may stand at the top of a frame. */
#define WIRE_MSGS_KV(X)                                                                            \
    X(error)                                                                                       \
    X(ack)                                                                                         \
    X(hello_req)                                                                                   \
    X(hello_res)                                                                                   \
    X(register_ns_req)                                                                             \
    X(register_ns_res)                                                                             \
    X(lookup_req)                                                                                  \
    X(lookup_res)                                                                                  \
    X(touch_req)                                                                                   \
    X(fetch_req)                                                                                   \
    X(fetch_block)                                                                                 \
    X(cancel_req)                                                                                  \
    X(put_begin_req)                                                                               \
    X(put_begin_res)                                                                               \
    X(put_data)                                                                                    \
    X(put_commit_req)                                                                              \
    X(put_commit_res)                                                                              \
    X(put_abort_req)                                                                               \
    X(release_req)                                                                                 \
    X(wait_req)                                                                                    \
    X(wait_event)                                                                                  \
    X(heartbeat_req)                                                                               \
    X(heartbeat_res)                                                                               \
    X(members_req)                                                                                 \
    X(members_res)                                                                                 \
    X(claim_req)                                                                                   \
    X(claim_res)                                                                                   \
    X(claim_mark_req)                                                                              \
    X(claim_progress)                                                                              \
    X(handover_list_req)                                                                           \
    X(handover_list_res)
#define WIRE_MSGS_ADMIN(X)                                                                         \
    X(stats_req)                                                                                   \
    X(stats_res)                                                                                   \
    X(list_req)                                                                                    \
    X(list_res)                                                                                    \
    X(inspect_req)                                                                                 \
    X(inspect_res)                                                                                 \
    X(evict_req)                                                                                   \
    X(evict_res)                                                                                   \
    X(flush_req)                                                                                   \
    X(pin_req)                                                                                     \
    X(pin_res)                                                                                     \
    X(scrub_req)                                                                                   \
    X(scrub_res)                                                                                   \
    X(drain_req)                                                                                   \
    X(config_get_req)                                                                              \
    X(config_get_res)                                                                              \
    X(config_set_req)                                                                              \
    X(events_req)                                                                                  \
    X(event)

#define X(name)                                                                                    \
    int wire_msg_##name##_decode(struct bump *scratch, const uint8_t *p, size_t n,                 \
                                 struct msg_##name *ret, struct errbuf *eb);                       \
    int wire_msg_##name##_encode(struct bump *scratch, const struct msg_##name *m, struct buf *dst);
WIRE_MSGS_KV(X)
WIRE_MSGS_ADMIN(X)
#undef X
