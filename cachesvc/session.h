/* session.h - what a client holds at this node: one control connection, up to 4 data connections, its
 * leases and puts (in the store), its fetch streams and waiting commits.
 *
 *   Hello without a token on a new connection opens a session; that connection is its control connection.
 *   Hello with the session's 16-byte token joins a data connection.
 *   The loss of the control connection ends the session: streams stop, puts are aborted, leases released,
 *   data connections are dropped. The loss of a data connection ends what was streaming on it.
 *
 * Thread: loop thread. Memory: sessions come from a pool sized at start. */
#pragma once

#include "cachesvc/auth.h"
#include "cachesvc/store/block_store.h"
#include "common/list.h"
#include "common/share.h"
#include "common/slabpool.h"
#include "proto/rpc_server.h"

#define SESSION_MAX_DATA 4
#define SESSION_MAX_NS 256
#define SESSION_NAME_BYTES 64

/* Grant bits of a connection, compared by rpc_server with a method's needs. */
enum {
    GRANT_SESSION = 1u << 0, /* has said Hello */
    GRANT_CONTROL = 1u << 1,
    GRANT_DATA = 1u << 2,
    GRANT_READ = 1u << 3,  /* every role */
    GRANT_WRITE = 1u << 4, /* worker, admin */
    GRANT_ADMIN = 1u << 5,
};

/* What all sessions of a node divide among them, by the policy of common/share.h. */
enum bound {
    BOUND_STREAMS,    /* fetch streams that run */
    BOUND_WAITING,    /* bytes of fetch requests that wait for a stream */
    BOUND_READS,      /* blocks asked of the store, which may read them from disk */
    BOUND_SENDS,      /* bytes of slots that are held by frames on their way to readers */
    BOUND_PUTS,       /* open puts */
    BOUND_COMMITS,    /* commits that wait for payloads */
    BOUND_NAMESPACES, /* namespaces that sessions brought in */
    BOUND_REMOVALS,   /* Evicts and Flushes under way */
    BOUND_SESSIONS,   /* sessions themselves: one of its own each */
    N_BOUNDS,
};

/* Whom sessions are accounted to: those that came by one token; without tokens all are one tenant's. */
struct tenant {
    struct list link;       /* session_table.tenants */
    bool has_auth;          /* tokens are configured */
    struct auth_token auth; /* a copy: reading the file again changes no living session */
    uint32_t n_sessions;
    struct share_tenant bound[N_BOUNDS];
};

struct session;
struct session_conn { /* rpc_conn_user() of each connection that has said Hello */
    struct session *session;
    struct rpc_conn *conn; /* referenced; NULL when gone */
    uint32_t number;       /* 0 control, 1.. data */
    /* How fast the peer takes what it asked for, svc_fetch.c. */
    uint64_t fetched_bytes; /* queued to it, ever */
    uint64_t slow_since_ns,
        slow_bytes; /* since when its queue was never empty, and taken by then */
};

struct session {
    struct list link; /* of session_table */
    uint8_t token[WIRE_SESSION_TOKEN_BYTES];
    uint64_t number, opened_ns;
    uint32_t role;
    uint64_t features; /* WIRE_FEAT_* that both sides have */
    struct tenant *tenant;
    const struct auth_token *auth; /* the tenant's; NULL: no tokens configured */
    struct share_user bound[N_BOUNDS];
    char name[SESSION_NAME_BYTES];
    uint8_t writer[WIRE_WRITER_BYTES];
    struct session_conn control, data[SESSION_MAX_DATA];
    struct store_session *store;
    struct list streams; /* svc_fetch's, those that run */
    struct list waiting; /* its requests that wait for their turn; bounded */
    struct list turn;    /* of cachesvc.turns while some wait */
    struct list sends;   /* its frames on their way to the kernel */
    uint32_t n_waiting;
    uint64_t fetch_time;  /* bytes queued to it, counted from the others' level when it came */
    struct list puts;     /* svc_put's */
    struct list removals; /* svc_admin's, under way */
    uint64_t ns_registered[SESSION_MAX_NS / 64];
};

struct session_table {
    struct slabpool pool;
    struct list all; /* by number */
    struct list tenants;
    struct share bound[N_BOUNDS];
    uint64_t next_number;
};
struct session_limit {
    uint64_t total, unit;
};
/* Of how many tokens sessions may come: something of each bound is kept for those that have none. */
void session_table_expect(struct session_table *t, uint32_t n_tokens);
int session_table_init(struct session_table *t, uint32_t max_sessions,
                       const struct session_limit limit[N_BOUNDS]);
void session_table_fini(struct session_table *t);

/* ERR_BUSY at the limit. conn is referenced by the session from now on. auth NULL: no tokens configured. */
int session_open(struct session_table *t, struct block_store *store, struct rpc_conn *conn,
                 const struct auth_token *auth, struct session **ret, struct errbuf *eb);
/* ERR_BUSY, after a share_take() that was refused: who has how much of the bound, since it may be all with others. */
int session_refuse(const struct session *s, enum bound bound, const char *method,
                   struct errbuf *eb);
/* The client's word for itself, for logs and lists: what is not printable UTF-8 becomes '?', and what does not
 * fit is cut between characters. NULL: "". */
void session_set_name(struct session *s, const char *name);
/* Frees s; its streams and puts must have been ended. */
void session_free(struct session_table *t, struct session *s);
struct session *session_find(struct session_table *t,
                             const uint8_t token[WIRE_SESSION_TOKEN_BYTES]);
/* ERR_BUSY: no data connection left. */
int session_join(struct session *s, struct rpc_conn *conn, uint32_t max_data,
                 struct session_conn **ret);
uint32_t session_n_data(const struct session *s);

static inline struct session_conn *session_of(struct rpc_conn *c) {
    return rpc_conn_user(c);
}
/* Handles on the wire are the store's numbers + 1, so that 0 is never one. */
bool session_may_use_ns(const struct session *s, uint32_t handle);
bool session_note_ns(struct session *s, uint32_t ns); /* false: it was noted before */
