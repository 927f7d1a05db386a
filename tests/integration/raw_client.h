/* raw_client.h - frames to a node and back, one by one and in any order, right or wrong: for what the real
 * client never sends. It shares the node's loop and turns it while it waits.
 * Thread: the test's. */
#pragma once

#include "common/bump.h"
#include "common/digest.h"
#include "proto/wire_frame.h"
#include "proto/wire_msg.h"
#include "tests/integration/node_fixture.h"

struct raw {
    struct test_loop *tl;
    int fd;
    bool is_closed; /* by the node */
    uint64_t next_id;
    struct bump scratch; /* of the message encoded or decoded last */
    struct buf *out;     /* the message to send */
    uint8_t *in;
    size_t n_in, n_used; /* bytes received; of the frame given last */
    struct wire_hdr hdr; /* of that frame */
    const uint8_t *msg, *payload;
    uint8_t token[WIRE_SESSION_TOKEN_BYTES]; /* of the session, after raw_hello() */
    uint32_t conn;                           /* its number in the session */
    uint32_t max_inflight;
};

/* Over TCP; a small receive buffer when rcvbuf > 0. */
void raw_open(struct raw *r, struct node_fixture *f, int rcvbuf);
void raw_close(struct raw *r);

/* Sends r->out as the message of a frame; returns its request id. The node's loop turns while the socket is
 * full. */
uint64_t raw_send(struct raw *r, uint16_t method, uint8_t flags, const void *payload, uint32_t n,
                  uint32_t deadline_ms);
#define RAW_SEND(r, name, method, m)                                                               \
    (raw_encode_begin(r), (void)wire_msg_##name##_encode(&(r)->scratch, (m), (r)->out),            \
     raw_send((r), (method), 0, NULL, 0, 0))
void raw_encode_begin(struct raw *r);

/* Turns the loop, and sleeps until the node or this client has something to do. */
void raw_turn(struct raw *r);
/* The next frame into r->hdr, msg, payload; false when the node closed the connection or 10 s passed. */
bool raw_read(struct raw *r);
/* The first frame that answers this request; others are passed over. */
bool raw_answer(struct raw *r, uint64_t request_id);
/* 0, or the error that r->hdr answers with; ERR_CLOSED when there is none. */
int raw_error(struct raw *r);
const char *raw_error_text(struct raw *r); /* "" when there is none; until the next decode */
#define RAW_DECODE(r, name, ret)                                                                   \
    (bump_reset(&(r)->scratch),                                                                    \
     wire_msg_##name##_decode(&(r)->scratch, (r)->msg, (r)->hdr.msg_len, (ret), NULL))

/* Hello: a new session, or (join) a data connection of that one. The answer's error or 0. */
int raw_hello(struct raw *r, uint32_t role, const char *token, const struct raw *join);
/* RegisterNamespace with this descriptor and the fixture's shape. */
int raw_register(struct raw *r, const char *descriptor, uint32_t *ret_handle);

/* A worker's session with one data connection, and the fixture's own namespace registered in it. */
struct raw_peer {
    struct raw control, data;
    uint32_t handle;
};
void raw_peer_open(struct raw_peer *p, struct node_fixture *f, int data_rcvbuf);
void raw_peer_open_as(struct raw_peer *p, struct node_fixture *f, uint32_t role, int data_rcvbuf);
void raw_peer_close(struct raw_peer *p);
