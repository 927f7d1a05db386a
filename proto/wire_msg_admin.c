#include "proto/wire_msg.h"

#include "proto/admin.pb-c.h"
#include "proto/wire_msg_conv.h"

/* One field list a message; wire_msg_conv.h makes both conversions of it. */

/* clang-format off */
#define NO_FIELDS(F) F(NONE, none)
WIRE_MSG_DEFINE(stats_req, Incipit__StatsReq, incipit__stats_req, NO_FIELDS)

#define STATS_COUNTER_FIELDS(F) F(STR, name) F(NUM, value)
WIRE_CONV_DEFINE(stats_counter, Incipit__StatsCounter, incipit__stats_counter,
                 STATS_COUNTER_FIELDS)

#define STATS_RES_FIELDS(F)                                                                        \
    F(NUM, node_id) F(STR, node_name) F(STR, version) F(NUM, epoch) F(NUM, uptime_ms)              \
    F(NUM, state) F(NUM, ram_bytes) F(NUM, ram_used_bytes) F(NUM, disk_bytes)                      \
    F(NUM, disk_used_bytes) F(NUM, max_blocks) F(NUM, blocks_ram) F(NUM, blocks_disk)              \
    F(NUM, holes) F(NUM, leases) F(NUM, pins) F(NUM, puts_open) F(NUM, sessions)                   \
    F(NUM, connections) F(NUM, namespaces) F(NUM, lookup_blocks) F(NUM, lookup_hits)               \
    F(NUM, fetch_blocks) F(NUM, put_blocks) F(NUM, evict_blocks) F(NUM, conflicts)                 \
    F(NUM, corrupt) F(NUM, index_state) F(MSGS, counters, stats_counter)
WIRE_MSG_DEFINE(stats_res, Incipit__StatsRes, incipit__stats_res, STATS_RES_FIELDS)

#define LIST_REQ_FIELDS(F) F(NUM, what) F(BYTES, cursor) F(NUM, limit) F(B32, digest)
WIRE_MSG_DEFINE(list_req, Incipit__ListReq, incipit__list_req, LIST_REQ_FIELDS)

#define BLOCK_INFO_FIELDS(F)                                                                       \
    F(B32, id) F(B32, parent) F(B32, digest) F(NUM, depth) F(NUM, state) F(NUM, ram) F(NUM, disk)  \
    F(NUM, payload_bytes) F(NUM, checksum) F(NUM, generation) F(NUM, leases) F(NUM, pins)          \
    F(NUM, n_children) F(NUM, put_time_ms) F(NUM, put_seq) F(B16, writer) F(NUM, group)            \
    F(BOOL, foreign) F(NUM, encoding) F(NUM, stored_bytes)
WIRE_CONV_DEFINE(block_info, Incipit__BlockInfo, incipit__block_info, BLOCK_INFO_FIELDS)

#define NAMESPACE_INFO_FIELDS(F)                                                                   \
    F(B32, digest) F(BYTES, descriptor) F(NUM, payload_bytes) F(NUM, n_ranges)                     \
    F(NUM, slot_bytes) F(NUM, blocks_ram) F(NUM, blocks_disk) F(NUMS, range_sizes)                 \
    F(NUM, n_full) F(NUM, seg_blocks)
WIRE_CONV_DEFINE(namespace_info, Incipit__NamespaceInfo, incipit__namespace_info,
                 NAMESPACE_INFO_FIELDS)

#define SESSION_INFO_FIELDS(F)                                                                     \
    F(NUM, session) F(STR, client_name) F(STR, peer) F(NUM, role) F(NUM, data_conns)               \
    F(NUM, leases) F(NUM, puts_open) F(NUM, age_ms)
WIRE_CONV_DEFINE(session_info, Incipit__SessionInfo, incipit__session_info, SESSION_INFO_FIELDS)

#define LIST_RES_FIELDS(F)                                                                         \
    F(MSGS, blocks, block_info) F(MSGS, namespaces, namespace_info)                                \
    F(MSGS, sessions, session_info) F(BYTES, cursor)
WIRE_MSG_DEFINE(list_res, Incipit__ListRes, incipit__list_res, LIST_RES_FIELDS)

#define INSPECT_REQ_FIELDS(F) F(B32, id) F(B32, digest)
WIRE_MSG_DEFINE(inspect_req, Incipit__InspectReq, incipit__inspect_req, INSPECT_REQ_FIELDS)

#define INSPECT_RES_FIELDS(F)                                                                      \
    F(MSG, block, block_info) F(IDS, children) F(NUMS, range_checksums) F(NUMS, nodes)
WIRE_MSG_DEFINE(inspect_res, Incipit__InspectRes, incipit__inspect_res, INSPECT_RES_FIELDS)

#define EVICT_REQ_FIELDS(F)                                                                        \
    F(IDS, ids) F(BOOL, descendants) F(B32, digest) F(NUM, from_ms) F(NUM, to_ms) F(B16, writer)   \
    F(BOOL, dry_run) F(NUM, before_ms) F(NUM, group)
WIRE_MSG_DEFINE(evict_req, Incipit__EvictReq, incipit__evict_req, EVICT_REQ_FIELDS)

#define EVICT_RES_FIELDS(F)                                                                        \
    F(NUM, blocks) F(NUM, bytes) F(NUM, deferred) F(NUM, puts_aborted) F(NUM, before_ms)
WIRE_MSG_DEFINE(evict_res, Incipit__EvictRes, incipit__evict_res, EVICT_RES_FIELDS)

#define FLUSH_REQ_FIELDS(F) F(B32, digest) F(NUM, before_ms)
WIRE_MSG_DEFINE(flush_req, Incipit__FlushReq, incipit__flush_req, FLUSH_REQ_FIELDS)

#define PIN_REQ_FIELDS(F) F(IDS, ids) F(BOOL, descendants) F(STR, label) F(B32, digest)
WIRE_MSG_DEFINE(pin_req, Incipit__PinReq, incipit__pin_req, PIN_REQ_FIELDS)

#define PIN_RES_FIELDS(F) F(NUM, blocks) F(NUM, absent) F(NUM, over_limit)
WIRE_MSG_DEFINE(pin_res, Incipit__PinRes, incipit__pin_res, PIN_RES_FIELDS)

#define SCRUB_REQ_FIELDS(F) F(NUM, op) F(NUM, bytes_per_s)
WIRE_MSG_DEFINE(scrub_req, Incipit__ScrubReq, incipit__scrub_req, SCRUB_REQ_FIELDS)

#define SCRUB_RES_FIELDS(F) F(NUM, running) F(NUM, checked) F(NUM, corrupt) F(NUM, left)
WIRE_MSG_DEFINE(scrub_res, Incipit__ScrubRes, incipit__scrub_res, SCRUB_RES_FIELDS)

#define DRAIN_REQ_FIELDS(F) F(BOOL, on) F(NUM, grace_ms)
WIRE_MSG_DEFINE(drain_req, Incipit__DrainReq, incipit__drain_req, DRAIN_REQ_FIELDS)

#define CONFIG_GET_REQ_FIELDS(F) F(STR, name)
WIRE_MSG_DEFINE(config_get_req, Incipit__ConfigGetReq, incipit__config_get_req,
                CONFIG_GET_REQ_FIELDS)

#define CONFIG_ITEM_FIELDS(F)                                                                      \
    F(STR, name) F(STR, value) F(STR, default_value) F(BOOL, live) F(STR, help)
WIRE_CONV_DEFINE(config_item, Incipit__ConfigItem, incipit__config_item, CONFIG_ITEM_FIELDS)

#define CONFIG_GET_RES_FIELDS(F) F(MSGS, items, config_item)
WIRE_MSG_DEFINE(config_get_res, Incipit__ConfigGetRes, incipit__config_get_res,
                CONFIG_GET_RES_FIELDS)

#define CONFIG_SET_REQ_FIELDS(F) F(STR, name) F(STR, value)
WIRE_MSG_DEFINE(config_set_req, Incipit__ConfigSetReq, incipit__config_set_req,
                CONFIG_SET_REQ_FIELDS)

#define EVENTS_REQ_FIELDS(F) F(NUM, kinds) F(NUM, after_seq)
WIRE_MSG_DEFINE(events_req, Incipit__EventsReq, incipit__events_req, EVENTS_REQ_FIELDS)

#define EVENT_FIELDS(F)                                                                            \
    F(NUM, seq) F(NUM, time_ms) F(NUM, kind) F(IDS, ids) F(STR, text) F(NUM, lost)
WIRE_MSG_DEFINE(event, Incipit__Event, incipit__event, EVENT_FIELDS)
/* clang-format on */
