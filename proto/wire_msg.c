#include "proto/wire_msg.h"

#include "proto/kvcache.pb-c.h"
#include "proto/wire_msg_conv.h"

/* ---- protobuf-c over a bump arena ---- */

struct conv_alloc {
    struct bump *scratch;
    bool is_full;
};

static void *conv_alloc_take(void *data, size_t bytes) {
    struct conv_alloc *a = data;
    void *p = bump_alloc(a->scratch, bytes ? bytes : 1);
    if (!p)
        a->is_full = true;
    return p;
}

/* The arena is reset as a whole. */
static void conv_alloc_give(void *data, void *p) {
    (void)data, (void)p;
}

const ProtobufCMessage *wire_conv_unpack(const ProtobufCMessageDescriptor *d, struct bump *scratch,
                                         const uint8_t *p, size_t n, int *ret_err) {
    struct conv_alloc a = {.scratch = scratch};
    ProtobufCAllocator pa = {conv_alloc_take, conv_alloc_give, &a};
    const ProtobufCMessage *m = protobuf_c_message_unpack(d, &pa, n, p);
    if (!m)
        *ret_err = a.is_full ? ERR_TOOBIG : ERR_PROTO;
    return m;
}

int wire_conv_pack(const ProtobufCMessage *pb, struct buf *dst) {
    size_t n = protobuf_c_message_get_packed_size(pb);
    if (n > dst->cap - dst->len)
        return ERR_TOOBIG;
    dst->len += protobuf_c_message_pack(pb, dst->data + dst->len);
    return 0;
}

int wire_conv_bad_len(struct errbuf *eb, const char *field, size_t len, size_t want) {
    return err_set(eb, ERR_PROTO, "%s has %zu bytes, wants %zu", field, len, want);
}

/* ---- the messages: one field list each ---- */
/* clang-format off */

#define ERROR_FIELDS(F) F(NUM, code) F(STR, text)
WIRE_MSG_DEFINE(error, Incipit__Error, incipit__error, ERROR_FIELDS)

#define ACK_FIELDS(F) F(NUM, count)
WIRE_MSG_DEFINE(ack, Incipit__Ack, incipit__ack, ACK_FIELDS)

#define HELLO_REQ_FIELDS(F)                                                                        \
    F(NUM, version_min) F(NUM, version_max) F(NUM, features) F(NUM, role) F(BYTES, token)          \
    F(STR, client_name) F(B16, session_token) F(B16, writer) F(NUM, node_id) F(NUM, node_epoch)
WIRE_MSG_DEFINE(hello_req, Incipit__HelloReq, incipit__hello_req, HELLO_REQ_FIELDS)

#define HELLO_RES_FIELDS(F)                                                                        \
    F(NUM, version) F(NUM, features) F(NUM, node_id) F(NUM, epoch) F(B16, session_token)           \
    F(STR, node_name) F(STR, server_version) F(NUM, max_message_bytes) F(NUM, max_payload_bytes)   \
    F(NUM, max_ids) F(NUM, max_data_conns) F(NUM, lease_ttl_ms) F(NUM, max_inflight)           \
    F(NUM, conn) F(NUM, map_bytes) F(NUM, min_slot_bytes) F(NUM, map_table_offset)                 \
    F(NUM, pool_time_ms)
WIRE_MSG_DEFINE(hello_res, Incipit__HelloRes, incipit__hello_res, HELLO_RES_FIELDS)

#define REGISTER_NS_REQ_FIELDS(F)                                                                  \
    F(B32, digest) F(BYTES, descriptor) F(NUMS, range_sizes) F(NUM, n_full) F(NUM, seg_blocks)
WIRE_MSG_DEFINE(register_ns_req, Incipit__RegisterNamespaceReq, incipit__register_namespace_req,
                REGISTER_NS_REQ_FIELDS)

#define REGISTER_NS_RES_FIELDS(F) F(NUM, ns) F(NUM, slot_bytes) F(NUM, resident_blocks)
WIRE_MSG_DEFINE(register_ns_res, Incipit__RegisterNamespaceRes, incipit__register_namespace_res,
                REGISTER_NS_RES_FIELDS)

#define LOOKUP_REQ_FIELDS(F)                                                                       \
    F(NUM, ns) F(IDS, ids) F(NUM, have) F(NUM, flags) F(STR, traceparent) F(NUM, group)
WIRE_MSG_DEFINE(lookup_req, Incipit__LookupReq, incipit__lookup_req, LOOKUP_REQ_FIELDS)

#define LOOKUP_RES_FIELDS(F)                                                                       \
    F(BYTES, status) F(NUM, n_prefix) F(NUM, lease_id) F(NUM, lease_first) F(NUM, lease_count)     \
    F(NUM, lease_ttl_ms) F(NUMS, hint_nodes) F(NUM, claim_id) F(NUM, claim_first)                  \
    F(NUM, claim_wait_ms) F(NUMS, map_offset) F(NUMS, map_generation) F(NUM, claim_home)           \
    F(BYTES, why) F(NUMS, why_age_s) F(NUMS, map_checksums) F(NUMS, hint_epochs)
WIRE_MSG_DEFINE(lookup_res, Incipit__LookupRes, incipit__lookup_res, LOOKUP_RES_FIELDS)

#define TOUCH_REQ_FIELDS(F) F(NUM, ns) F(IDS, ids) F(STR, traceparent)
WIRE_MSG_DEFINE(touch_req, Incipit__TouchReq, incipit__touch_req, TOUCH_REQ_FIELDS)

#define FETCH_REQ_FIELDS(F)                                                                        \
    F(NUM, ns) F(IDS, ids) F(NUM, lease_id) F(NUM, first_range) F(NUM, n_ranges) F(NUM, flags)     \
    F(STR, traceparent) F(NUM, group)
WIRE_MSG_DEFINE(fetch_req, Incipit__FetchReq, incipit__fetch_req, FETCH_REQ_FIELDS)

#define FETCH_BLOCK_FIELDS(F)                                                                      \
    F(NUM, index) F(NUM, count) F(NUM, status) F(NUM, checksum) F(NUMS, range_checksums)           \
    F(NUM, first_range) F(NUM, n_ranges) F(NUM, map_offset) F(NUM, map_generation)                 \
    F(B16, origin_writer) F(NUM, origin_time_ms)
WIRE_MSG_DEFINE(fetch_block, Incipit__FetchBlock, incipit__fetch_block, FETCH_BLOCK_FIELDS)

#define CANCEL_REQ_FIELDS(F) F(NUM, request_id) F(NUM, conn)
WIRE_MSG_DEFINE(cancel_req, Incipit__CancelReq, incipit__cancel_req, CANCEL_REQ_FIELDS)

#define PUT_BEGIN_REQ_FIELDS(F)                                                                    \
    F(NUM, ns) F(IDS, ids) F(IDS, parents) F(NUMS, depths) F(NUMS, checksums)                      \
    F(BYTES, block_flags) F(B16, writer) F(NUM, group) F(NUM, priority) F(NUM, claim_id)           \
    F(STR, traceparent) F(B16S, origin_writers) F(NUMS, origin_times_ms)
WIRE_MSG_DEFINE(put_begin_req, Incipit__PutBeginReq, incipit__put_begin_req, PUT_BEGIN_REQ_FIELDS)

#define PUT_BEGIN_RES_FIELDS(F) F(NUM, put_id) F(BYTES, status) F(NUM, ttl_ms)
WIRE_MSG_DEFINE(put_begin_res, Incipit__PutBeginRes, incipit__put_begin_res, PUT_BEGIN_RES_FIELDS)

#define PUT_DATA_FIELDS(F) F(NUM, put_id) F(NUM, index) F(NUMS, range_checksums)
WIRE_MSG_DEFINE(put_data, Incipit__PutData, incipit__put_data, PUT_DATA_FIELDS)

#define PUT_COMMIT_REQ_FIELDS(F) F(NUM, put_id) F(NUMS, indexes) F(BOOL, last)
WIRE_MSG_DEFINE(put_commit_req, Incipit__PutCommitReq, incipit__put_commit_req,
                PUT_COMMIT_REQ_FIELDS)

#define PUT_COMMIT_RES_FIELDS(F) F(BYTES, status)
WIRE_MSG_DEFINE(put_commit_res, Incipit__PutCommitRes, incipit__put_commit_res,
                PUT_COMMIT_RES_FIELDS)

#define PUT_ABORT_REQ_FIELDS(F) F(NUM, put_id)
WIRE_MSG_DEFINE(put_abort_req, Incipit__PutAbortReq, incipit__put_abort_req, PUT_ABORT_REQ_FIELDS)

#define RELEASE_REQ_FIELDS(F) F(NUM, lease_id) F(NUM, used) F(NUM, claim_id)
WIRE_MSG_DEFINE(release_req, Incipit__ReleaseReq, incipit__release_req, RELEASE_REQ_FIELDS)

#define WAIT_REQ_FIELDS(F)                                                                         \
    F(NUM, ns) F(IDS, ids) F(STR, traceparent) F(NUM, claim_id) F(NUM, home_node)
WIRE_MSG_DEFINE(wait_req, Incipit__WaitReq, incipit__wait_req, WAIT_REQ_FIELDS)

#define WAIT_EVENT_FIELDS(F) F(NUM, index) F(NUM, count) F(NUM, status)
WIRE_MSG_DEFINE(wait_event, Incipit__WaitEvent, incipit__wait_event, WAIT_EVENT_FIELDS)

#define HEARTBEAT_REQ_FIELDS(F) F(NUMS, lease_ids) F(NUMS, claim_ids)
WIRE_MSG_DEFINE(heartbeat_req, Incipit__HeartbeatReq, incipit__heartbeat_req, HEARTBEAT_REQ_FIELDS)

#define HEARTBEAT_RES_FIELDS(F) F(NUM, renewed) F(NUMS, recalled) F(NUMS, ended)
WIRE_MSG_DEFINE(heartbeat_res, Incipit__HeartbeatRes, incipit__heartbeat_res, HEARTBEAT_RES_FIELDS)

#define MEMBERS_REQ_FIELDS(F) F(BOOL, follow) F(NUM, after_removal)
WIRE_MSG_DEFINE(members_req, Incipit__MembersReq, incipit__members_req, MEMBERS_REQ_FIELDS)

#define MEMBER_FIELDS(F)                                                                           \
    F(NUM, node_id) F(STR, address) F(NUM, epoch) F(NUM, capacity_bytes) F(NUM, used_bytes)        \
    F(BYTES, mac) F(NUM, weight) F(NUM, state) F(B16, store_id) F(NUM, time_ms) F(NUM, load)
WIRE_CONV_DEFINE(member, Incipit__Member, incipit__member, MEMBER_FIELDS)

#define MEMBERS_RES_FIELDS(F)                                                                      \
    F(MSGS, members, member) F(NUM, version) F(NUM, placement_version) F(B16S, hot)                \
    F(B128S, removals)
WIRE_MSG_DEFINE(members_res, Incipit__MembersRes, incipit__members_res, MEMBERS_RES_FIELDS)

#define CLAIM_REQ_FIELDS(F)                                                                        \
    F(NUM, ns) F(IDS, ids) F(NUM, expect_ms) F(NUM, group) F(STR, traceparent)
WIRE_MSG_DEFINE(claim_req, Incipit__ClaimReq, incipit__claim_req, CLAIM_REQ_FIELDS)

#define CLAIM_RES_FIELDS(F)                                                                        \
    F(NUM, claim_id) F(NUM, taken_id) F(NUM, covered) F(NUM, done) F(NUM, eta_ms)
WIRE_MSG_DEFINE(claim_res, Incipit__ClaimRes, incipit__claim_res, CLAIM_RES_FIELDS)

#define CLAIM_MARK_REQ_FIELDS(F)                                                                   \
    F(NUM, ns) F(NUM, claim_id) F(NUM, home_node) F(IDS, ids) F(NUM, ttl_ms)
WIRE_MSG_DEFINE(claim_mark_req, Incipit__ClaimMarkReq, incipit__claim_mark_req,
                CLAIM_MARK_REQ_FIELDS)

#define CLAIM_PROGRESS_FIELDS(F) F(NUM, claim_id) F(NUM, done) F(NUM, eta_ms)
WIRE_MSG_DEFINE(claim_progress, Incipit__ClaimProgress, incipit__claim_progress,
                CLAIM_PROGRESS_FIELDS)

#define HANDOVER_LIST_REQ_FIELDS(F)                                                                \
    F(B32, digest) F(NUM, node_id) F(NUM, placement_version) F(BYTES, cursor) F(NUM, limit)
WIRE_MSG_DEFINE(handover_list_req, Incipit__HandoverListReq, incipit__handover_list_req,
                HANDOVER_LIST_REQ_FIELDS)

#define HANDOVER_LIST_RES_FIELDS(F)                                                                \
    F(IDS, ids) F(IDS, parents) F(NUMS, depths) F(NUMS, checksums) F(B16S, origin_writers)         \
    F(NUMS, origin_times_ms) F(NUMS, groups) F(NUMS, ages_s) F(BYTES, block_flags)                 \
    F(BYTES, cursor)
WIRE_MSG_DEFINE(handover_list_res, Incipit__HandoverListRes, incipit__handover_list_res,
                HANDOVER_LIST_RES_FIELDS)
/* clang-format on */
