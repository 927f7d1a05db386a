/* worker_metrics.h - the worker's metrics, one row each (common/metrics.h renders them).
 *
 * Ours begin with incipit_worker_; the same events appear under vLLM's names, which dashboards and
 * routers read, with their vllm: prefix. One writer a metric: the engine thread unless a row says loop. */
#pragma once

#include "common/metrics.h"

/*    name                             type     help */
#define WORKER_METRICS(X)                                                                          \
    X(requests_running, GAUGE, "requests in prefill or decode")                                    \
    X(requests_waiting, GAUGE, "accepted requests that do not compute yet")                        \
    X(requests_stop_total, COUNTER, "requests ended by an end token or stop string")               \
    X(requests_length_total, COUNTER, "requests ended by max_tokens or the context limit")         \
    X(requests_canceled_total, COUNTER, "requests ended by their client or by shutdown")           \
    X(requests_error_total, COUNTER, "requests ended by an error")                                 \
    X(prompt_tokens_local_total, COUNTER, "prompt rows taken from own pages")                      \
    X(prompt_tokens_remote_total, COUNTER, "prompt rows fetched from the cache service")           \
    X(prompt_tokens_computed_total, COUNTER, "prompt rows computed")                               \
    X(generation_tokens_total, COUNTER, "tokens generated")                                        \
    X(steps_total, COUNTER, "forward passes")                                                      \
    X(step_rows_total, COUNTER, "rows in them")                                                    \
    X(kv_pages_total, GAUGE, "KV pages there are")                                                 \
    X(kv_pages_used, GAUGE, "KV pages referenced by requests, fetches or puts")                    \
    X(kv_pages_cached, GAUGE, "KV pages kept for reuse, free to take")                             \
    X(kv_pages_evicted_total, COUNTER, "cached KV pages taken back")                               \
    X(lookup_blocks_total, COUNTER, "blocks asked for at the cache service")                       \
    X(lookup_resident_total, COUNTER, "of these, resident there")                                  \
    X(lookup_failed_total, COUNTER, "lookups that ended as a miss through an error")               \
    X(fetch_declined_total, COUNTER, "resident prefixes that computing beats")                     \
    X(fetch_block_total, COUNTER, "blocks fetched and verified")                                   \
    X(fetch_bytes_total, COUNTER, "payload bytes of them")                                         \
    X(fetch_failed_total, COUNTER, "fetches that ended before their last block")                   \
    X(fetch_late_total, COUNTER, "fetches that computing overtook")                                \
    X(put_block_total, COUNTER, "blocks put")                                                      \
    X(put_present_total, COUNTER, "blocks that the service had already")                           \
    X(put_dropped_total, COUNTER, "full pages not put: queue full, or their parent was not put")   \
    X(put_failed_total, COUNTER, "puts that failed")                                               \
    X(put_conflict_total, COUNTER, "puts refused: same id, other bytes")                           \
    X(pending_puts, GAUGE, "full pages waiting to be put or on their way")                         \
    X(cache_breaker_state, GAUGE, "0 closed, 1 open, 2 half-open")                                 \
    X(cache_connected, GAUGE, "1: a session with the cache service stands")                        \
    X(numerics_mismatch, GAUGE, "1: the self-test's digest is not the contract's; no cache")       \
    X(model_changed, GAUGE, "1: the model file changed since it was loaded; not ready")            \
    X(time_to_first_token_seconds, HISTO, "accepted to first token")                               \
    X(inter_token_latency_seconds, HISTO, "between two tokens of a request")                       \
    X(request_queue_time_seconds, HISTO, "accepted to first row computed")                         \
    X(request_prefill_time_seconds, HISTO, "first row computed to first token")                    \
    X(request_decode_time_seconds, HISTO, "first token to last")                                   \
    X(e2e_request_latency_seconds, HISTO, "accepted to done")                                      \
    X(fetch_seconds, HISTO, "lookup to last block used")
