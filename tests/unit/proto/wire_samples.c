#include "tests/unit/proto/wire_samples.h"

static const uint8_t b16[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t b32[32] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6};
static const struct block_id ids[2] = {{{1, 2, 3}}, {{4, 5, 6}}};
static const uint32_t u32s[3] = {1, 0, 4000000000u};
static const uint64_t u64s[2] = {0, UINT64_MAX};

#define B16                                                                                        \
    { b16, 16 }
#define B32                                                                                        \
    { b32, 32 }
#define BYTES(s)                                                                                   \
    { (const uint8_t *)(s), sizeof(s) - 1 }
#define IDS .n_ids = 2, .ids = ids
#define SAMPLE(name) static const struct msg_##name name

SAMPLE(error) = {.code = 3, .text = "busy"};
SAMPLE(ack) = {.count = 1ull << 40};
SAMPLE(hello_req) = {1, 2, 3, 4, BYTES("secret"), "name", B16, B16, 5, 6};
SAMPLE(hello_res) = {1, 2, 3, 4, B16, "node", "0.1.0", 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
SAMPLE(register_ns_req) = {B32, BYTES("a=1\n"), 3, u32s, 2, 8};
SAMPLE(register_ns_res) = {1, 4096, 5};
SAMPLE(lookup_req) = {.ns = 1, IDS, .have = 1, .flags = 11, .traceparent = "00-1", .group = 4};
SAMPLE(lookup_res) = {.status = BYTES("\1\2\0"),
                      .n_prefix = 2,
                      .lease_id = 3,
                      .lease_first = 1,
                      .lease_count = 2,
                      .lease_ttl_ms = 5000,
                      .n_hint_nodes = 3,
                      .hint_nodes = u32s,
                      .claim_id = 4,
                      .claim_first = 5,
                      .claim_wait_ms = 6,
                      .n_map_offset = 2,
                      .n_map_generation = 2,
                      .map_offset = u64s,
                      .map_generation = u64s,
                      .claim_home = 7,
                      .why = BYTES("\3\0"),
                      .n_why_age_s = 3,
                      .why_age_s = u32s,
                      .n_map_checksums = 2,
                      .map_checksums = u64s,
                      .n_hint_epochs = 2,
                      .hint_epochs = u64s};
SAMPLE(touch_req) = {.ns = 1, IDS, .traceparent = "t"};
SAMPLE(fetch_req) = {.ns = 1,
                     IDS,
                     .lease_id = 2,
                     .first_range = 3,
                     .n_ranges = 4,
                     .flags = 1,
                     .traceparent = "t",
                     .group = 5};
SAMPLE(fetch_block) = {.index = 1,
                       .count = 2,
                       .status = 3,
                       .checksum = UINT64_MAX,
                       .n_range_checksums = 2,
                       .range_checksums = u64s,
                       .first_range = 4,
                       .n_ranges = 5,
                       .map_offset = 6,
                       .map_generation = 7,
                       .origin_writer = B16,
                       .origin_time_ms = 8};
SAMPLE(cancel_req) = {5, 2};
SAMPLE(put_begin_req) = {.ns = 1,
                         IDS,
                         .n_parents = 2,
                         .parents = ids,
                         .n_depths = 3,
                         .depths = u32s,
                         .n_checksums = 2,
                         .checksums = u64s,
                         .block_flags = BYTES("\0\1"),
                         .writer = B16,
                         .group = 2,
                         .priority = 1,
                         .claim_id = 3,
                         .traceparent = "t",
                         .origin_writers = B32,
                         .n_origin_times_ms = 2,
                         .origin_times_ms = u64s};
SAMPLE(put_begin_res) = {1, BYTES("\0\1"), 3};
SAMPLE(put_data) = {1, 2, 2, u64s};
SAMPLE(put_commit_req) = {1, 3, u32s, true};
SAMPLE(put_commit_res) = {BYTES("\0\2")};
SAMPLE(put_abort_req) = {1};
SAMPLE(release_req) = {1, 2, 3};
SAMPLE(wait_req) = {.ns = 1, IDS, .traceparent = "t", .claim_id = 2, .home_node = 3};
SAMPLE(wait_event) = {1, 2, 3};
SAMPLE(heartbeat_req) = {2, 2, u64s, u64s};
SAMPLE(heartbeat_res) = {1, 2, 2, u64s, u64s};
SAMPLE(members_req) = {true, 2};
static const struct msg_member members[2] = {{1, "a:1", 2, 3, 4, BYTES("mac"), 5, 1, B16, 6, 7},
                                             {.address = ""}};
static const uint8_t removal[MSG_REMOVAL_BYTES] = {1, 2, 3};
SAMPLE(members_res) = {2, members, 5, 6, B16, {removal, sizeof(removal)}};
SAMPLE(claim_req) = {.ns = 1, IDS, .expect_ms = 2, .group = 3, .traceparent = "t"};
SAMPLE(claim_res) = {1, 2, 3, 4, 5};
SAMPLE(claim_mark_req) = {.ns = 1, .claim_id = 2, .home_node = 3, IDS, .ttl_ms = 4};
SAMPLE(claim_progress) = {1, 2, 3};
SAMPLE(handover_list_req) = {B32, 1, 2, BYTES("cur"), 3};
SAMPLE(handover_list_res) = {IDS,
                             .n_parents = 2,
                             .parents = ids,
                             .n_depths = 3,
                             .depths = u32s,
                             .n_checksums = 2,
                             .checksums = u64s,
                             .origin_writers = B32,
                             .n_origin_times_ms = 2,
                             .origin_times_ms = u64s,
                             .n_groups = 2,
                             .groups = u64s,
                             .n_ages_s = 3,
                             .ages_s = u32s,
                             .block_flags = BYTES("\0\1"),
                             .cursor = BYTES("next")};

SAMPLE(stats_req) = {0};
static const struct msg_stats_counter counters[2] = {{"x_total", 1.5}, {"y", -0.25}};
SAMPLE(stats_res) = {1,  "n", "v", 2,  3,  1,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                     13, 14,  15,  16, 17, 18, 19, 20, 21, 22, 23, 24, 2,  2,  counters};
SAMPLE(list_req) = {1, BYTES("cur"), 10, B32};
#define BLOCK_INFO                                                                                 \
    { B32, B32, B32, 1, 1, 3, 4, 100, 5, 6, 7, 8, 9, 10, 11, B16, 12, true, 13, 14 }
static const struct msg_block_info blocks[1] = {BLOCK_INFO};
static const struct msg_namespace_info namespaces[1] = {
    {B32, BYTES("a=1\n"), 1, 2, 4, 5, 6, 3, u32s, 7, 8}};
static const struct msg_session_info sessions[1] = {{1, "w", "p:1", 1, 2, 3, 4, 5}};
SAMPLE(list_res) = {1, 1, 1, blocks, namespaces, sessions, BYTES("next")};
SAMPLE(inspect_req) = {B32, B32};
SAMPLE(inspect_res) = {BLOCK_INFO, 2, ids, 2, u64s, 3, u32s};
SAMPLE(evict_req) = {2, ids, true, B32, 1, 2, B16, true, 3, 4};
SAMPLE(evict_res) = {1, 2, 3, 4, 5};
SAMPLE(flush_req) = {B32, 1};
SAMPLE(pin_req) = {2, ids, true, "why", B32};
SAMPLE(pin_res) = {1, 2, 3};
SAMPLE(scrub_req) = {1, 2};
SAMPLE(scrub_res) = {1, 2, 3, 4};
SAMPLE(drain_req) = {true, 100};
SAMPLE(config_get_req) = {"ram_bytes"};
static const struct msg_config_item items[1] = {{"a", "b", "c", true, "help"}};
SAMPLE(config_get_res) = {1, items};
SAMPLE(config_set_req) = {"a", "b"};
SAMPLE(events_req) = {1, 2};
SAMPLE(event) = {1, 2, 3, 2, ids, "t", 4};

#define X(name)                                                                                    \
    static int name##_enc(struct bump *s, const void *m, struct buf *dst) {                        \
        return wire_msg_##name##_encode(s, m, dst);                                                \
    }                                                                                              \
    static int name##_dec(struct bump *s, const uint8_t *p, size_t n, void *ret,                   \
                          struct errbuf *eb) {                                                     \
        _Static_assert(sizeof(struct msg_##name) <= WIRE_SAMPLE_STRUCT_BYTES, "room");             \
        return wire_msg_##name##_decode(s, p, n, ret, eb);                                         \
    }
WIRE_MSGS_KV(X)
WIRE_MSGS_ADMIN(X)
#undef X

#define ROW_BUT(name, n_fields, reserved)                                                          \
    { #name, n_fields, reserved, name##_enc, name##_dec, &name }
#define ROW(name, n_fields) ROW_BUT(name, n_fields, 0)
const struct wire_sample wire_samples[] = {
    ROW(error, 2),
    ROW(ack, 1),
    ROW(hello_req, 10),
    ROW(hello_res, 18),
    ROW_BUT(register_ns_req, 8, 0x1c),
    ROW(register_ns_res, 3),
    ROW_BUT(lookup_req, 7, 0x20),
    ROW(lookup_res, 17),
    ROW(touch_req, 3),
    ROW(fetch_req, 8),
    ROW(fetch_block, 11),
    ROW(cancel_req, 2),
    ROW(put_begin_req, 13),
    ROW(put_begin_res, 3),
    ROW(put_data, 3),
    ROW(put_commit_req, 3),
    ROW(put_commit_res, 1),
    ROW(put_abort_req, 1),
    ROW(release_req, 3),
    ROW(wait_req, 5),
    ROW(wait_event, 3),
    ROW(heartbeat_req, 2),
    ROW(heartbeat_res, 3),
    ROW(members_req, 2),
    ROW(members_res, 5),
    ROW(claim_req, 5),
    ROW(claim_res, 5),
    ROW(claim_mark_req, 5),
    ROW(claim_progress, 3),
    ROW(handover_list_req, 5),
    ROW(handover_list_res, 10),
    ROW(stats_req, 0),
    ROW(stats_res, 29),
    ROW(list_req, 4),
    ROW(list_res, 4),
    ROW(inspect_req, 2),
    ROW(inspect_res, 4),
    ROW(evict_req, 9),
    ROW(evict_res, 5),
    ROW(flush_req, 2),
    ROW(pin_req, 4),
    ROW(pin_res, 3),
    ROW(scrub_req, 2),
    ROW(scrub_res, 4),
    ROW(drain_req, 2),
    ROW(config_get_req, 1),
    ROW(config_get_res, 1),
    ROW(config_set_req, 2),
    ROW(events_req, 2),
    ROW(event, 6),
};
const size_t n_wire_samples = ARRAY_LEN(wire_samples);
