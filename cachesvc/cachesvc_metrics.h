/* cachesvc_metrics.h - the node's own metrics; the store's counters are a table of their own, made from
 * block_store.h (prefix incipit_store_). One writer: the loop thread. */
#pragma once

#include "cachesvc/store/block_store.h"
#include "common/metrics.h"

#define CACHESVC_METRICS(X)                                                                        \
    X(sessions, GAUGE, "client sessions")                                                          \
    X(connections, GAUGE, "RPC connections")                                                       \
    X(connections_refused_total, COUNTER, "connections over the limit")                            \
    X(connections_gave_way_total, COUNTER, "connections without a Hello closed for a newer one")   \
    X(connections_late_total, COUNTER,                                                             \
      "connections ended for a frame or Hello that took too long")                                 \
    X(received_bytes, GAUGE, "buffers of long messages that are half received")                    \
    X(sessions_silent_total, COUNTER, "sessions ended because they sent nothing")                  \
    X(hello_denied_total, COUNTER, "sessions refused for their token or role")                     \
    X(rpc_total, COUNTER, "requests received")                                                     \
    X(rpc_error_total, COUNTER, "requests answered with an error")                                 \
    X(rpc_protocol_error_total, COUNTER, "connections that broke the protocol")                    \
    X(lookup_seconds, HISTO, "Lookup: request complete to answer queued")                          \
    X(fetch_seconds, HISTO,                                                                        \
      "Fetch: request complete to last frame queued, or to its end; waiting included")             \
    X(fetch_streams, GAUGE, "fetch streams under way")                                             \
    X(fetch_waiting, GAUGE, "fetches that wait for their turn")                                    \
    X(slow_reader_dropped_total, COUNTER, "connections ended because they took too little")        \
    X(fetch_block_total, COUNTER, "blocks queued to readers")                                      \
    X(fetch_bytes_total, COUNTER, "payload bytes of them")                                         \
    X(fetch_busy_total, COUNTER, "fetches refused: no room left in which they could wait")         \
    X(put_block_total, COUNTER, "payloads received")                                               \
    X(put_bytes_total, COUNTER, "payload bytes received")                                          \
    X(queued_bytes, GAUGE, "payload bytes waiting on connections")                                 \
    X(index_state, GAUGE, "0 embedded, 1 Redis reachable, 2 Redis not reachable")                  \
    X(index_published_total, COUNTER, "entries written to the index")                              \
    X(index_withdrawn_total, COUNTER, "entries withdrawn from the index")                          \
    X(index_dropped_total, COUNTER, "entries left to the next republish: backlog full")            \
    X(index_error_total, COUNTER, "Redis commands that failed")                                    \
    X(index_reconnect_total, COUNTER, "connections made to Redis")                                 \
    X(index_backlog, GAUGE, "entries waiting for Redis")

struct cachesvc_metrics {
    METRIC_FIELDS(CACHESVC_METRICS)
};
METRIC_TABLE(cachesvc_metrics, CACHESVC_METRICS, "incipit_cachesvc_")

/* What block_store_stats() tells, in the form that metric_render() takes. */
struct store_metrics {
#define X(name, help) _Atomic uint64_t name;
    STORE_COUNTERS(X)
#undef X
#define X(name, help) _Atomic int64_t now_##name;
    STORE_GAUGES(X)
#undef X
};
const struct metric_table *store_metrics_table(void);
void store_metrics_refresh(struct store_metrics *m, const struct block_store_stats *st);
