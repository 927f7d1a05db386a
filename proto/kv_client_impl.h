/* kv_client_impl.h - private to kv_client*.c: nodes, calls, and their parts.
 *
 * A call is cut into parts, each with one node (and for payload one data connection); a part has
 * one or more requests on the wire, found again by request id. An answer is taken once: what a node says
 * to an id that was answered, or never asked, is no answer, and ends its session. The answer to a request
 * that was given up meanwhile (deadline, cancel) is awaited by a req without a part and dropped on
 * arrival, payload included.
 *
 *   kv_client.c         open, close, calls, deadlines, dispatch, admin calls
 *   kv_client_node.c    a node's session: connect, Hello, namespaces, backoff
 *   kv_client_lookup.c  Lookup, Touch, Release
 *   kv_client_fetch.c   Fetch
 *   kv_client_put.c     Put
 * Thread: the loop's. */
#pragma once

#include <uv.h>

#include "common/bump.h"
#include "common/check.h"
#include "common/list.h"
#include "proto/kv_client.h"
#include "proto/rpc_conn.h"
#include "proto/rpc_sock.h"

#define KV_MAX_NS 16u
#define KV_BUCKETS 256u
#define KV_MAX_GIVEN_UP 1024u /* with so many unanswered, a node is as good as dead */
#define KV_SILENCE_MS 30000u  /* a Heartbeat unanswered for so long: the node hangs */
#define KV_IDLE_HEARTBEAT_MS 60000u
#define KV_MAX_LINKS (1 + KV_CLIENT_MAX_DATA_CONNS)

struct kv_node;
struct kv_part;

/* One connection of a session: 0 control, 1.. data. */
struct kv_link {
    struct kv_node *node;
    struct rpc_conn *conn; /* NULL: none */
    uint64_t hello_id;
    bool is_ready;
};

struct kv_node {
    struct kv_client *client;
    uint32_t index;
    char *addr_text;
    struct rpc_addr addr;
    enum kv_node_state state;
    uint32_t epoch_tag;         /* counts sessions */
    struct msg_hello_res hello; /* numbers only; its pointers are not kept */
    uint8_t session_token[WIRE_SESSION_TOKEN_BYTES];
    uint32_t n_links; /* wanted in this session */
    struct kv_link links[KV_MAX_LINKS];
    uint32_t ns_handle[KV_MAX_NS]; /* the node's; 0: not registered in this session */
    uint64_t ns_req[KV_MAX_NS];
    uv_timer_t timer; /* CONNECTING: handshake limit; DOWN: next attempt; UP: heartbeat */
    uint64_t *leases; /* [n_leases] granted in this session; not given back, recalled or ended */
    uint32_t n_leases, cap_leases;
    bool is_overdue; /* it answers too little: the session ends with the next turn */
    uint64_t heartbeat_id, heartbeat_ns; /* the last one sent, when; id 0: answered */
    uv_getaddrinfo_t gai;
    bool gai_active;
    struct sockaddr_storage sa; /* resolved, for this attempt's connections */
    socklen_t sa_len;
    uint32_t attempts;   /* since it was last up */
    uint32_t jitter;     /* state of a small generator */
    struct list putting; /* parts of puts that have payload to send */
    int last_err;
    char last_text[160];
};

struct kv_ns {
    struct kv_namespace def; /* descriptor and range_sizes owned */
    uint64_t payload_bytes;  /* sum of range_sizes */
};

/* One request on the wire. */
struct kv_req {
    struct list link; /* in the client's bucket while it waits for an answer */
    uint64_t id;
    struct kv_part *part; /* NULL: given up, its answer is dropped */
    struct kv_node *node;
    struct rpc_conn *conn; /* it was sent on; valid while linked */
    uint16_t method;
    uint32_t first, count; /* put: which wanted blocks this COMMIT names */
};

struct kv_call_ops {
    /* Where the payload of an answer goes. NULL: answers have none, and one frame. */
    int (*on_head)(struct kv_part *p, const struct wire_hdr *h, const uint8_t *msg,
                   struct rpc_sink *ret);
    /* An answer without error. < 0: the node broke the protocol. The part ends itself with
     * kv_part_end(). */
    int (*on_frame)(struct kv_part *p, struct kv_req *req, const struct wire_hdr *h,
                    const uint8_t *msg, struct rpc_sink *sink);
    /* A request was answered with an error; NULL: the part ends with it. */
    void (*on_error)(struct kv_part *p, struct kv_req *req, int rv);
    /* The part ended: note its result. From then on no request of it is on the wire. NULL:
     * nothing. */
    void (*on_part_end)(struct kv_part *p, int rv);
    /* Deadline or cancel: tell the node, let go of memory. NULL: nothing. */
    void (*on_abandon)(struct kv_part *p);
    /* Run the user's callback. */
    void (*deliver)(struct kv_call *call);
};

struct kv_part {
    struct kv_call *call;
    struct kv_node *node;
    uint32_t epoch_tag; /* of the node's session that it belongs to */
    bool is_live;
    struct kv_req req;
    uint32_t n;    /* blocks */
    uint32_t *idx; /* [n] position in the caller's arrays */
    /* fetch */
    uint64_t *sums;       /* [n_ranges] of the block under way */
    uint32_t at;          /* its local index */
    uint32_t n_checked;   /* the next range to compare */
    size_t checked_bytes; /* their bytes */
    bool is_bad;
    /* put: kv_client_put.c */
    struct list putting; /* in node->putting */
    uint64_t put_id, data_id;
    uint32_t n_wanted, n_sent, n_commits_open;
    uint32_t *wanted;       /* [n_wanted] local indexes */
    struct buf *bufs;       /* [n_wanted] over the caller's memory */
    struct kv_req *commits; /* one for each group */
    uint32_t n_commits;
};

struct kv_call {
    struct list link; /* client->calls, then client->finished */
    struct kv_client *client;
    const struct kv_call_ops *ops;
    void *arg;
    uint64_t deadline_ns;
    int rv;        /* how it ended */
    int first_err; /* of its parts */
    uint32_t n_ok; /* parts that ended well */
    uint32_t n_live;
    bool is_starting, is_finished;
    void *mem;      /* arrays of the parts, freed with the call */
    uint8_t *bytes; /* message of an answer or statuses, freed with the call */
    size_t n_bytes;
    char text[160]; /* the node's words */
    union {
        struct {
            struct kv_lookup q;
            kv_lookup_cb cb;
            struct kv_lease lease;
        } lookup;
        struct {
            struct kv_fetch q;
            kv_fetch_cb cb;
            struct kv_fetch_res res;
            const struct kv_ns *ns;
            uint32_t end_range;  /* q.first_range + ranges wanted */
            uint64_t part_bytes; /* of these ranges */
        } fetch;
        struct {
            struct kv_put q;
            kv_put_cb cb;
            struct kv_put_res res;
            int *status;
            const struct kv_ns *ns;
        } put;
        struct {
            kv_done_cb cb;
        } done;
        struct {
            void (*cb)(void); /* cast back by the deliver function of its kind */
        } any;
    } u;
    uint32_t n_parts;
    struct kv_part parts[];
};

struct kv_client {
    uv_loop_t *loop;
    struct kv_client_cfg cfg; /* pointers inside are ours */
    struct kv_node *nodes;    /* [cfg.n_addrs] */
    struct kv_ns ns[KV_MAX_NS];
    uint32_t n_ns, n_calls;
    uint64_t next_id;
    struct list calls, finished;
    struct list buckets[KV_BUCKETS];
    struct kv_req given_up[KV_MAX_GIVEN_UP];
    struct list given_up_free;
    uv_timer_t deadline;
    uint64_t deadline_armed_ns; /* 0: not armed */
    uv_idle_t deliver;
    struct bump scratch;
    struct buf *out;
    int live; /* uv handles, connections and lookups of names that may still call back */
    bool is_closing;
    void (*close_cb)(void *arg);
    void *close_arg;
};

/* ---- kv_client.c ---- */

/* The live nodes that know ns: their indexes and ids; the number. */
uint32_t kv_client_live(const struct kv_client *c, uint32_t ns, uint32_t *ret_index,
                        uint16_t *ret_id);
/* Owner of each of n blocks from first on as index of a node (ret[n]); < 0 when no node is up. */
int kv_client_route(const struct kv_client *c, uint32_t ns, const struct block_id *chain,
                    uint32_t first, uint32_t n, uint32_t *ret);
int kv_call_new(struct kv_client *c, const struct kv_call_ops *ops, uint32_t n_parts,
                uint32_t deadline_ms, void *arg, struct kv_call **ret);
void kv_call_free(struct kv_call *call); /* before kv_call_begin() only */
/* Registers the call; its requests may be sent now, between begin and started. */
void kv_call_begin(struct kv_call *call);
/* All first requests are out (or failed). */
void kv_call_started(struct kv_call *call, struct kv_call **ret);
/* Part k talks to this node. */
struct kv_part *kv_part_init(struct kv_call *call, uint32_t k, struct kv_node *node);
/* Sends a request with the client's encode buffer as message; its answer comes to the part. */
int kv_part_send(struct kv_part *p, struct kv_req *req, struct rpc_conn *conn, uint16_t method);
/* No part waits for it any more. If its answer is still to come, that is dropped. */
void kv_req_forget(struct kv_req *req);
/* The node's connections are gone, and with them what was to come on them. */
void kv_client_forget_given_up(struct kv_client *c, const struct kv_node *n);
void kv_part_end(struct kv_part *p, int rv);
/* Ends the call now with rv: abandons its parts. */
void kv_call_end(struct kv_call *call, int rv);
/* Scratch and encode buffer, reset. */
struct buf *kv_client_out(struct kv_client *c);
uint32_t kv_call_left_ms(const struct kv_call *call);
/* One way, nobody waits for it. */
void kv_client_oneway(struct kv_client *c, struct rpc_conn *conn, uint16_t method);
void kv_client_release_live(struct kv_client *c); /* one less that may call back */
/* A session ended: its parts end with err. */
void kv_client_node_lost(struct kv_client *c, struct kv_node *n, int err);

/* An answer for nobody: gives back what it granted. */
void kv_client_late(struct kv_client *c, struct kv_link *l, const struct wire_hdr *h,
                    const uint8_t *msg);
extern const struct rpc_conn_ops kv_client_conn_ops;

/* ---- kv_client_node.c ---- */

int kv_node_init(struct kv_node *n, struct kv_client *c, uint32_t index, const char *addr,
                 struct errbuf *eb);
void kv_node_open(struct kv_node *n);  /* takes the uv handles, starts */
void kv_node_close(struct kv_node *n); /* live counter of the client falls as it goes */
void kv_node_free(struct kv_node *n);  /* what init took */
void kv_node_fail(struct kv_node *n, int err, const char *text);
void kv_node_overdue(struct kv_node *n); /* the same, soon: for callers inside a call's end */
/* A lease was granted: it is renewed from now on. 0 or ERR_NOMEM. */
int kv_node_add_lease(struct kv_node *n, uint64_t lease_id);
/* It is renewed no more; nothing if it isn't. */
void kv_node_drop_lease(struct kv_node *n, uint64_t lease_id);
/* Answers to Hello, RegisterNamespace and Heartbeat. */
void kv_node_on_answer(struct kv_link *l, const struct wire_hdr *h, const uint8_t *msg);
void kv_node_register(struct kv_node *n, uint32_t ns);
static inline struct rpc_conn *kv_node_control(struct kv_node *n) {
    return n->links[0].conn;
}
static inline uint32_t kv_node_n_data(const struct kv_node *n) {
    return n->n_links - 1;
}

/* ---- kv_client_put.c ---- */
void kv_put_pump(struct kv_node *n); /* a data connection has room */
void kv_put_late(struct kv_client *c, struct kv_link *l, const struct wire_hdr *h,
                 const uint8_t *msg);
/* ---- kv_client_lookup.c ---- */
void kv_lookup_late(struct kv_client *c, struct kv_link *l, const struct wire_hdr *h,
                    const uint8_t *msg);
