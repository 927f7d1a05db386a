/* wire_frame.h - the 32-byte frame header and an incremental reader. WIRE.md is the specification.
 *
 * Frame, little-endian:                                           off len
 *   magic        "INCP"                                             0   4
 *   version      2                                                  4   1
 *   flags        WIRE_F_*                                           5   1
 *   method       enum wire_method                                   6   2
 *   request_id   chosen by the asker, unique among its open ones     8   8
 *   msg_len      bytes of the protobuf message                     16   4
 *   payload_len  raw bytes behind the message                      20   4
 *   deadline_ms  time left for the answer when sent, 0: none       24   4
 *   crc32c       over bytes 0..27 and the message                  28   4
 *   message      [msg_len], then payload [payload_len] (its checksums travel in the message)
 *
 * Pure: no I/O, no allocation. Thread: any; a reader has one owner. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"

#define WIRE_HDR_BYTES 32
#define WIRE_MAGIC 0x50434e49u /* "INCP" */
#define WIRE_VERSION 2         /* layout of the header as in 1; messages and checksums differ */

#define WIRE_F_RESPONSE 0x01u /* else a request */
#define WIRE_F_END 0x02u      /* last frame of this request's answer */
#define WIRE_F_ERROR 0x04u    /* the message is Error; always with RESPONSE and END */
#define WIRE_F_ONEWAY 0x08u   /* a request that gets no answer, not even an error */
#define WIRE_F_KNOWN 0x0fu

/* Limits that both sides start with; Hello's answer may lower them. */
#define WIRE_MAX_MSG_BYTES (1u << 20)
#define WIRE_MAX_PAYLOAD_BYTES (256u << 20)
#define WIRE_MAX_IDS 8192u
#define WIRE_MAX_HELLO_BYTES 4096u /* of a message before Hello was answered; no payload then */
#define WIRE_SESSION_TOKEN_BYTES 16
#define WIRE_WRITER_BYTES 16

/* name, number: stable for ever; data methods below 64, admin from there. */
#define WIRE_METHODS(X)                                                                            \
    X(HELLO, 1, "Hello")                                                                           \
    X(REGISTER_NS, 2, "RegisterNamespace")                                                         \
    X(LOOKUP, 3, "Lookup")                                                                         \
    X(TOUCH, 4, "Touch")                                                                           \
    X(FETCH, 5, "Fetch")                                                                           \
    X(CANCEL, 6, "Cancel")                                                                         \
    X(PUT_BEGIN, 7, "PutBegin")                                                                    \
    X(PUT_DATA, 8, "PutData")                                                                      \
    X(PUT_COMMIT, 9, "PutCommit")                                                                  \
    X(PUT_ABORT, 10, "PutAbort")                                                                   \
    X(RELEASE, 11, "Release")                                                                      \
    X(WAIT, 12, "Wait")                                                                            \
    X(HEARTBEAT, 13, "Heartbeat")                                                                  \
    X(MEMBERS, 14, "Members")                                                                      \
    X(CLAIM, 15, "Claim")                                                                          \
    X(HANDOVER_LIST, 16, "HandoverList")                                                           \
    X(CLAIM_MARK, 17, "ClaimMark")                                                                 \
    X(CLAIM_PROGRESS, 18, "ClaimProgress")                                                         \
    X(STATS, 64, "Stats")                                                                          \
    X(LIST, 65, "List")                                                                            \
    X(INSPECT, 66, "Inspect")                                                                      \
    X(EVICT, 67, "Evict")                                                                          \
    X(FLUSH, 68, "Flush")                                                                          \
    X(PIN, 69, "Pin")                                                                              \
    X(UNPIN, 70, "Unpin")                                                                          \
    X(SCRUB, 71, "Scrub")                                                                          \
    X(DRAIN, 72, "Drain")                                                                          \
    X(CONFIG_GET, 73, "ConfigGet")                                                                 \
    X(CONFIG_SET, 74, "ConfigSet")                                                                 \
    X(EVENTS, 75, "Events")
#define X(name, number, text) WIRE_##name = number,
enum wire_method { WIRE_METHODS(X) };
#undef X
/* "Lookup"; "method" for an unknown number. Static storage. */
const char *wire_method_name(uint16_t method);

/* Feature bits of Hello. A bit is on only when both sides have it; this version's nodes set
 * none. */
#define WIRE_FEAT_MAP 0x02ull      /* memory file over a Unix socket: LookupRes.map_* */
#define WIRE_FEAT_CLAIMS 0x04ull   /* Claim, ClaimMark, ClaimProgress, Wait, status claimed */
#define WIRE_FEAT_HINTS 0x08ull    /* status hint, hint_nodes, hint_epochs */
#define WIRE_FEAT_PIN 0x10ull      /* Pin, Unpin */
#define WIRE_FEAT_SCRUB 0x20ull    /* Scrub */
#define WIRE_FEAT_CONFIG 0x40ull   /* ConfigGet, ConfigSet */
#define WIRE_FEAT_EVENTS 0x80ull   /* Events */
#define WIRE_FEAT_MEMBERS 0x100ull /* Members */
#define WIRE_FEAT_DRAIN 0x200ull   /* Drain */

struct wire_hdr {
    uint8_t version;
    uint8_t flags;
    uint16_t method;
    uint64_t request_id;
    uint32_t msg_len, payload_len; /* bytes */
    uint32_t deadline_ms;
    uint32_t crc32c; /* set by encode */
};

/* Writes the header for hdr and its message to ret, CRC included; hdr->msg_len bytes at msg. */
void wire_hdr_encode(const struct wire_hdr *hdr, const void *msg, uint8_t ret[WIRE_HDR_BYTES]);
/* 0; ERR_PROTO wrong magic or unknown flag; ERR_UNSUPPORTED another version (the fields are filled
 * then, for an error answer). The CRC is not checked: it needs the message. */
int wire_hdr_decode(const uint8_t p[WIRE_HDR_BYTES], struct wire_hdr *ret);
/* 0 or ERR_CORRUPT. raw is the header as received. */
int wire_hdr_check_crc(const uint8_t raw[WIRE_HDR_BYTES], const void *msg, uint32_t msg_len);

/* What the reader allows. */
struct wire_limits {
    uint32_t max_msg_bytes, max_payload_bytes;
};

/* Incremental reader: give it the bytes received so far for one frame, header first. Looks at [p,
 * p+n); returns
 *   > 0  this many more bytes are needed (at least) before the next call can say more,
 *   0    header and message are whole and right: *ret is filled, the message is at p +
 * WIRE_HDR_BYTES, the
 *        payload begins behind it,
 *   < 0  ERR_PROTO, ERR_UNSUPPORTED (version), ERR_TOOBIG (a length over the limits), ERR_CORRUPT
 * (CRC). */
int64_t wire_frame_read(const struct wire_limits *lim, const uint8_t *p, size_t n,
                        struct wire_hdr *ret);

/* Error codes on the wire and ours: WIRE.md, "Error codes". */
uint32_t wire_err_to_code(int rv);
int wire_err_from_code(uint32_t code);
