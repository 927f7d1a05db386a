/* rpc_server.h - listen, accept, limits and the method table; what a method means is the owner's.
 *
 * Dispatch of a request: unknown method -> UNIMPLEMENTED; grants missing -> DENIED; payload for a
 * method without sink -> BAD_REQUEST; deadline over -> DEADLINE; else the row's handler. An unknown version, a wrong CRC or a
 * length over the limits gets an error frame and the connection is closed. A request with
 * WIRE_F_ONEWAY gets no answer. A connection without a grant may send messages of WIRE_MAX_HELLO_BYTES
 * and no payload.
 *
 * Thread: the loop's. Memory: one scratch arena and one encode buffer for the whole server, valid
 * during a handler; connections as in rpc_conn.h. */
#pragma once

#include "common/bump.h"
#include "proto/rpc_conn.h"
#include "proto/rpc_sock.h"

struct rpc_server;

/* One request, valid during the handler. To answer later keep hdr by value and
 * rpc_conn_ref(conn). */
struct rpc_call {
    struct rpc_server *server;
    struct rpc_conn *conn;
    struct wire_hdr hdr;
    const uint8_t *msg;    /* [hdr.msg_len] */
    struct bump *scratch;  /* reset before the call */
    struct buf *out;       /* empty; encode the answer here, then rpc_call_reply() */
    struct rpc_sink *sink; /* handle(): where the payload went; NULL without payload */
    uint64_t recv_ns;      /* monotonic: its first byte was here; hdr.deadline_ms counts from it */
};

struct rpc_method {
    uint16_t method; /* enum wire_method */
    uint32_t need;   /* every one of these grant bits (rpc_conn_set_grants) */
    /* The frame is complete. 0: answered, or will be. < 0: the server answers with that error and
     * eb's text (nothing for WIRE_F_ONEWAY). */
    int (*handle)(void *arg, struct rpc_call *call, struct errbuf *eb);
    /* Where the payload goes; NULL: the method takes none. < 0: the payload is dropped and the
     * error answered. */
    int (*sink)(void *arg, struct rpc_call *call, struct rpc_sink *ret, struct errbuf *eb);
    /* The connection ended inside that payload. */
    void (*sink_abort)(void *arg, struct rpc_conn *c, struct rpc_sink *sink);
};

struct rpc_server_stats {
    /* Since open. refused: connections at the limit; gave_way: of these closed before their Hello;
     * late: a frame that took too long, a Hello that did not come. */
    uint64_t accepted, refused, gave_way, late, requests, errors, protocol_errors;
    uint32_t conns;
    uint64_t bytes_queued;   /* sum over connections */
    uint64_t bytes_received; /* held for messages over RPC_IN_BYTES that are not whole */
};

struct rpc_server_cfg {
    const struct rpc_method *methods; /* [n_methods], kept by the owner */
    size_t n_methods;
    void *arg;                                        /* for all callbacks below and in the table */
    void (*on_accept)(void *arg, struct rpc_conn *c); /* may be NULL */
    /* The connection is gone; the owner drops what it keeps for it (rpc_conn_user). May be NULL. */
    void (*on_gone)(void *arg, struct rpc_conn *c);
    void (*on_drain)(void *arg, struct rpc_conn *c); /* may be NULL */
    /* Each request, once: its handler has returned, or it was refused before (rv < 0, with the text that
     * is answered). May be NULL. */
    void (*on_request)(void *arg, struct rpc_conn *c, const struct wire_hdr *h, int rv,
                       const char *text);
    struct rpc_conn_cfg conn; /* limits; connecting is ignored */
    struct rpc_sock_opt sock;
    /* 0: 1024. At the limit the oldest connection without a grant gives way to a new one; when all have
     * grants, the new one is closed. */
    uint32_t max_conns;
    uint32_t grants_timeout_ms; /* for a connection without a grant (no Hello); 0: 5000 */
    uint32_t stall_timeout_ms;  /* a peer that takes nothing for this long is closed; 0: 30000 */
    uint32_t frame_timeout_ms;  /* from a frame's first byte to its last; 0: 60000 */
    uint64_t
        max_received_bytes;  /* messages over RPC_IN_BYTES that are not whole, in all; 0: 64 MiB */
    uint32_t scratch_bytes;  /* 0: 4 MiB */
    const struct clock *clk; /* NULL: clock_real() */
};

int rpc_server_open(struct rpc_server **ret, uv_loop_t *loop, const struct rpc_server_cfg *cfg,
                    struct errbuf *eb);
/* May be called several times: TCP and Unix. *ret_port (may be NULL) is the TCP port, for port
 * 0. */
int rpc_server_listen(struct rpc_server *s, const struct rpc_addr *a, uint16_t *ret_port,
                      struct errbuf *eb);
/* Takes a connected stream, e.g. one end of a socketpair in tests. Consumes fd also on error. */
int rpc_server_adopt(struct rpc_server *s, int take_fd);
/* No new connections; the living ones go on. */
void rpc_server_stop_listening(struct rpc_server *s);
/* Closes everything; on_gone is called for each connection; cb from the loop, then s is freed. */
void rpc_server_close(struct rpc_server *s, void (*cb)(void *arg), void *cb_arg);

static inline uint64_t rpc_call_deadline_ns(const struct rpc_call *call) { /* 0: none */
    return call->hdr.deadline_ms ? call->recv_ns + call->hdr.deadline_ms * NS_PER_MS : 0;
}
/* Answers from a handler (call->out) or later (a buffer of the owner's). */
int rpc_call_reply(struct rpc_call *call);
/* The server's scratch and encode buffer for answers outside a handler: both reset here, valid
 * until the loop runs on. */
void rpc_server_scratch(struct rpc_server *s, struct bump **ret_scratch, struct buf **ret_out);
/* Ends one connection, e.g. a session's data connections with its control connection. on_gone is
 * called from the loop. */
void rpc_server_drop_conn(struct rpc_server *s, struct rpc_conn *c);
/* The same after what is queued was sent, for a last answer. */
void rpc_server_end_conn(struct rpc_server *s, struct rpc_conn *c);
void rpc_server_stats(const struct rpc_server *s, struct rpc_server_stats *ret);
