/* svc.h - the whole node, and the handlers of its methods. Private to cachesvc/.
 *
 * Handlers turn a message into store calls and back; they hold no state of their own but streams, puts and
 * commits, which live in fixed pools: an empty pool is ERR_BUSY to the client.
 * Thread: loop thread. */
#pragma once

#include <uv.h>

#include "cachesvc/cachesvc_config.h"
#include "cachesvc/cachesvc_metrics.h"
#include "cachesvc/index/index.h"
#include "cachesvc/session.h"
#include "cachesvc/store/block_store.h"
#include "common/http_metrics.h"
#include "common/http_server.h"
#include "common/log.h"
#include "common/loop_work.h"
#include "common/svc_main.h"
#include "proto/rpc_server.h"
#include "proto/wire_msg.h"

enum svc_phase { SVC_STARTING, SVC_READY, SVC_DRAINING, SVC_STOPPING };

struct svc_descriptor { /* of a namespace; [number] */
    char *text;
    size_t len;
};

struct cachesvc {
    uv_loop_t *loop;
    const struct clock *clk;
    struct log *log;
    const struct cachesvc_config *cfg;
    struct svc *daemon; /* NULL in tests */
    enum svc_phase phase;
    uint64_t started_ns;
    char name[64];

    struct auth auth;
    struct session_table sessions;
    struct block_store *store;
    struct loop_work *disk_pool;
    struct index *index;
    struct rpc_server *rpc;
    struct http_metrics *probes;
    struct http_server *http;
    struct http_metrics_source sources[2];
    struct http_route routes[HTTP_METRICS_ROUTES];
    uv_timer_t tick;
    uv_idle_t
        wake; /* active while something given back may serve who waits: the loop does not sleep then */

    struct list denied; /* struct svc_denied, svc_session.c */
    struct slabpool denials;
    struct slabpool streams; /* struct fetch_stream, svc_fetch.c */
    struct slabpool sends;   /* struct fetch_send */
    struct list turns;       /* sessions with fetches that wait for a stream */
    struct list held;        /* streams that wait for a share of reads or bytes */
    uint32_t n_waiting;      /* fetches that wait, of all sessions */
    uint64_t fetch_level;    /* session.fetch_time of the turn taken last */
    struct slabpool puts;    /* struct put_rec, svc_put.c */
    struct slabpool commits; /* struct commit_ctx */
    struct svc_descriptor descriptor[SESSION_MAX_NS];

    char trace[56]; /* svc_trace() of the request under way, noted by its handler; "" else */

    struct cachesvc_metrics met;
    struct store_metrics store_met;
    uint32_t evicts_open;
};

#define SVC_FEATURES WIRE_FEAT_CONFIG /* what this version offers in Hello */

extern const struct rpc_method svc_methods[];
extern const size_t svc_n_methods;

/* Encodes a message into call->out and queues it; rv of either. */
#define SVC_REPLY(call, name, m)                                                                   \
    ({                                                                                             \
        int rv_ = wire_msg_##name##_encode((call)->scratch, (m), (call)->out);                     \
        rv_ < 0 ? rv_ : rpc_call_reply(call);                                                      \
    })
#define SVC_DECODE(call, name, m, eb)                                                              \
    wire_msg_##name##_decode((call)->scratch, (call)->msg, (call)->hdr.msg_len, (m), (eb))

int svc_reply_ack(struct rpc_call *call, uint64_t count);
/* ERR_INVALID with a text unless this session registered the handle; *ret_ns is the store's number. */
int svc_check_ns(struct cachesvc *s, struct rpc_call *call, uint32_t handle, uint32_t *ret_ns,
                 struct errbuf *eb);
int svc_check_ids(struct cachesvc *s, size_t n_ids, struct errbuf *eb);
/* The caller's trace id as it may be logged: "" unless it has the W3C form. */
const char *svc_trace(const char *traceparent);
/* Keeps it for the log lines of the request under way. */
void svc_note_trace(struct cachesvc *s, const char *traceparent);
/* rpc_server's on_request: one line a request with --access-log, and what was refused always. */
void svc_on_request(void *arg, struct rpc_conn *c, const struct wire_hdr *h, int rv,
                    const char *text);

/* svc_kv.c */
#define SVC_MAX_DESCRIPTOR 4096u /* bytes; it stays in memory while the namespace is known */
void svc_kv_end_session(struct cachesvc *s, struct session *ss); /* its namespaces */
int svc_register_ns(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_lookup(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_touch(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_release(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_heartbeat(void *arg, struct rpc_call *call, struct errbuf *eb);

/* svc_session.c */
#define SVC_MAX_DENIED 256u /* refusals that wait to be told */
int svc_session_init(struct cachesvc *s);
void svc_session_fini(struct cachesvc *s); /* after the connections */
void svc_session_tick(struct cachesvc *s);
int svc_hello(void *arg, struct rpc_call *call, struct errbuf *eb);
void svc_on_gone(void *arg, struct rpc_conn *c);
void svc_on_drain(void *arg, struct rpc_conn *c);

/* Takes the rows of *take_fresh; sessions whose own is not among them end. */
void svc_replace_tokens(struct cachesvc *s, struct auth *take_fresh);

/* svc_config.c */
#define SVC_PASSWORD_BYTES 512u
int svc_load_tokens(struct cachesvc *s, struct auth *ret,
                    struct errbuf *eb); /* none without a file */
int svc_load_password(struct cachesvc *s, char ret[SVC_PASSWORD_BYTES], struct errbuf *eb);
int svc_config_get(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_config_set(void *arg, struct rpc_call *call, struct errbuf *eb);

/* svc_fetch.c */
int svc_fetch_init(struct cachesvc *s);
void svc_fetch_fini(struct cachesvc *s);
int svc_fetch(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_cancel(void *arg, struct rpc_call *call, struct errbuf *eb);
void svc_fetch_pump_conn(struct cachesvc *s, struct session *ss, struct rpc_conn *c);
/* Ends the streams of one connection, or (c NULL) all of the session's. */
void svc_fetch_end(struct cachesvc *s, struct session *ss, const struct rpc_conn *c);
void svc_fetch_tick(struct cachesvc *s); /* deadlines, and readers that are too slow */
void svc_fetch_turns(uv_idle_t *p);      /* p->data: the cachesvc; serves who waits, stops p */

/* svc_put.c */
int svc_put_init(struct cachesvc *s);
void svc_put_fini(struct cachesvc *s);
int svc_put_begin(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_put_data(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_put_sink(void *arg, struct rpc_call *call, struct rpc_sink *ret, struct errbuf *eb);
void svc_put_sink_abort(void *arg, struct rpc_conn *c, struct rpc_sink *sink);
int svc_put_commit(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_put_abort(void *arg, struct rpc_call *call, struct errbuf *eb);
void svc_put_tick(struct cachesvc *s); /* deadlines of commits */
void svc_put_end_session(struct cachesvc *s, struct session *ss);

/* svc_list.c */
int svc_list(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_inspect(void *arg, struct rpc_call *call, struct errbuf *eb);

/* svc_admin.c */
#define SVC_MAX_REMOVALS 16u /* under way at once */
/* Narrows f to the namespace that an admin method names, within those of the session's token. ERR_DENIED with
 * a text for another's, whether it is known here or not, and where a bound token names none. */
int svc_filter_ns(struct rpc_call *call, const struct msg_bytes *digest, struct store_filter *f,
                  struct errbuf *eb);
void svc_admin_tick(struct cachesvc *s);        /* removals whose deadline passed */
void svc_admin_end_session(struct session *ss); /* removals under way go on without it */
int svc_stats(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_evict(void *arg, struct rpc_call *call, struct errbuf *eb);
int svc_flush(void *arg, struct rpc_call *call, struct errbuf *eb);
