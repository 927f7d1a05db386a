/* rpc_conn_impl.h - private to rpc_conn*.c.
 *
 *   rpc_conn.c       life, polling, receiving
 *   rpc_conn_send.c  the write queue
 * Thread: the loop's. */
#pragma once

#include <uv.h>

#include "common/check.h"
#include "common/list.h"
#include "proto/rpc_conn.h"

#define RPC_CONN_MAGIC 0x6e6e6f43u

/* One frame in the write queue. Header and message are in one piece: inline, or in `heap` when
 * long. */
struct out_frame {
    struct list link;
    uint64_t request_id;
    size_t head_len; /* header and message */
    size_t sent;     /* of head_len + the payload's length */
    uint8_t *heap;
    struct buf *payload;
    uint8_t inl[WIRE_HDR_BYTES + RPC_CONN_INLINE_MSG];
};

/*   CONNECTING --writable--> OPEN --error--> BROKEN --close--> CLOSED
 *        \--------error--------^   \--close_after_flush--> LINGER --flushed, EOF, timeout-->
 * CLOSED */
enum conn_state { CONN_CONNECTING, CONN_OPEN, CONN_BROKEN, CONN_LINGER, CONN_CLOSED };

struct rpc_conn {
    uint32_t magic;
    uint32_t refs; /* the owner's, until the close callback, and those of rpc_conn_ref() */
    enum conn_state state;
    int fd;
    bool is_tcp, is_paused, is_kicked, is_corked, want_drain, is_shut;
    int live;    /* uv handles that may still call back */
    int pending; /* error found while sending, told from the loop */
    uint32_t grants;
    void *user;
    struct rpc_conn_cfg cfg;
    const struct rpc_conn_ops *ops;
    void *arg;
    rpc_conn_close_cb close_cb;
    uv_poll_t poll;
    int poll_events; /* that poll waits for */
    uv_timer_t linger;

    /* Receiving. in[in_off..in_len) is not yet consumed; while a payload is under way the frame's
     * header and message stay at in + frame_off. */
    uint8_t *in;
    size_t in_cap, in_off, in_len, in_need;
    size_t frame_off;
    struct wire_hdr hdr;
    struct rpc_sink sink;
    bool is_in_payload;
    size_t pay_left;
    uint64_t last_read_ns;

    /* Sending. */
    struct list out, out_free;
    uint32_t n_out, n_made;    /* queued; pool entries that were ever used */
    struct out_frame *out_pool; /* [cfg.max_out_frames], touched only as far as needed */
    uint64_t out_bytes, last_write_ns;
    char peer[80];
};

/* What the poll handle waits for, from the state and the queue. */
void rpc_conn_update_poll(struct rpc_conn *c);
/* Something is to be done from the loop: an error to tell, buffered frames to read, on_drain. */
void rpc_conn_kick(struct rpc_conn *c);

/* Writes until the queue is empty or the kernel full. An error waits in c->pending for the loop,
 * so that no callback runs inside rpc_conn_send(). */
void rpc_conn_flush(struct rpc_conn *c);
/* Drops every queued frame; payload references are given back. */
void rpc_conn_drop_queue(struct rpc_conn *c);
/* Below the marks that rpc_conn_writable() promises. */
bool rpc_conn_has_room(const struct rpc_conn *c);
