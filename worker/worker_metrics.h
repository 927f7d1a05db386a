/* worker_metrics.h - the worker's metrics, one row each (common/metrics.h renders them).
 *
 * Ours begin with incipit_worker_. A second table shows the same fields under vLLM's names, which
 * dashboards and routers read, old and new spelling; its tokens of prefixes are prompt tokens. The engine
 * thread writes most of them, the loop thread those of lookups, fetches and puts. */
#pragma once

#include "common/metrics.h"

/*    name                             type     help */
#define WORKER_METRICS(X)                                                                          \
    X(requests_running, GAUGE, "requests in prefill or decode")                                    \
    X(requests_waiting, GAUGE, "accepted requests that do not compute yet")                        \
    X(requests_waiting_pages, GAUGE, "of these, behind one that waits for KV pages to be free")    \
    X(requests_overtaking_total, COUNTER, "short requests that passed one waiting for KV pages")   \
    X(requests_stop_total, COUNTER, "requests ended by an end token or stop string")               \
    X(requests_length_total, COUNTER, "requests ended by max_tokens or the context limit")         \
    X(requests_canceled_total, COUNTER, "requests ended by their client or by shutdown")           \
    X(requests_error_total, COUNTER, "requests ended by an error")                                 \
    X(requests_numeric_total, COUNTER, "of these, because a result was no finite number")          \
    X(prompt_tokens_total, COUNTER, "prompt tokens of requests that began to compute")             \
    X(prompt_tokens_local_total, COUNTER, "prompt tokens by source",                               \
      .name = "incipit_worker_prompt_tokens_by_source_total", .labels = "source=\"local\"")        \
    X(prompt_tokens_remote_total, COUNTER, "prompt tokens by source",                              \
      .name = "incipit_worker_prompt_tokens_by_source_total", .labels = "source=\"remote\"")       \
    X(prompt_tokens_computed_total, COUNTER, "prompt tokens by source",                            \
      .name = "incipit_worker_prompt_tokens_by_source_total", .labels = "source=\"computed\"")     \
    X(prompt_tokens_reused_total, COUNTER, "prompt tokens not computed: local and remote")         \
    X(external_queries_total, COUNTER, "prompt tokens looked up at the cache service")             \
    X(generation_tokens_total, COUNTER, "tokens generated")                                        \
    X(preemptions_total, COUNTER, "sequences that lost their pages: 0, pages are reserved")        \
    X(steps_total, COUNTER, "forward passes")                                                      \
    X(step_rows_total, COUNTER, "rows in them")                                                    \
    X(kv_pages, GAUGE, "KV pages there are")                                                       \
    X(kv_pages_used, GAUGE, "KV pages referenced by requests, fetches or puts")                    \
    X(kv_pages_cached, GAUGE, "KV pages kept for reuse, free to take")                             \
    X(kv_pages_reserved, GAUGE, "KV pages promised to running requests, not yet taken")            \
    X(kv_pages_evicted_total, COUNTER, "cached KV pages taken back")                               \
    X(kv_usage_ratio, FGAUGE, "used share of the KV pages")                                        \
    X(lookup_total, COUNTER, "lookups sent to the cache service")                                  \
    X(lookup_blocks_total, COUNTER, "blocks asked for in them")                                    \
    X(lookup_resident_total, COUNTER, "of these, resident there")                                  \
    X(lookup_unsent_total, COUNTER, "lookups not sent: no node up, or the breaker is open")        \
    X(lookup_failed_total, COUNTER, "lookups that ended as a miss through an error")               \
    X(fetch_declined_total, COUNTER, "resident prefixes that computing beats")                     \
    X(fetch_block_total, COUNTER, "blocks fetched and verified")                                   \
    X(fetch_bytes_total, COUNTER, "payload bytes of them")                                         \
    X(fetch_failed_total, COUNTER, "fetches that ended before their last block")                   \
    X(fetch_late_total, COUNTER, "lookups and fetches that computing overtook")                    \
    X(touch_total, COUNTER, "chains touched for requests served from own pages")                   \
    X(put_block_total, COUNTER, "blocks put")                                                      \
    X(put_present_total, COUNTER, "blocks that the service had already")                           \
    X(put_dropped_total, COUNTER, "full pages not put: queue full, or their parent was not put")   \
    X(put_failed_total, COUNTER, "blocks whose put failed")                                        \
    X(put_conflict_total, COUNTER, "puts refused: same id, other bytes")                           \
    X(pending_puts, GAUGE, "full pages waiting to be put or on their way")                         \
    X(cache_breaker_state, GAUGE, "0 closed, 1 open, 2 half-open")                                 \
    X(cache_connected, GAUGE, "1: a session with a cache node stands")                             \
    X(cache_nodes, GAUGE,                                                                          \
      "cache nodes that are used: those of --cache, unless numerics are broken")                   \
    X(numerics_mismatch, GAUGE, "1: the self-test's digest is not the contract's; no cache")       \
    X(model_changed, GAUGE, "1: the model file changed since it was loaded; answers did not")      \
    X(time_to_first_token_seconds, HISTO, "accepted to first token",                               \
      .buckets = &metric_buckets_vllm_ttft)                                                        \
    X(inter_token_latency_seconds, HISTO, "between two tokens of a request",                       \
      .buckets = &metric_buckets_vllm_itl)                                                         \
    X(request_queue_time_seconds, HISTO, "accepted to first row computed",                         \
      .buckets = &metric_buckets_vllm_request)                                                     \
    X(request_prefill_time_seconds, HISTO, "first row computed to first token",                    \
      .buckets = &metric_buckets_vllm_request)                                                     \
    X(request_decode_time_seconds, HISTO, "first token to last",                                   \
      .buckets = &metric_buckets_vllm_request)                                                     \
    X(e2e_request_latency_seconds, HISTO, "accepted to done",                                      \
      .buckets = &metric_buckets_vllm_request)                                                     \
    X(request_prompt_tokens, HISTO, "prompt tokens of a request",                                  \
      .buckets = &metric_buckets_vllm_tokens)                                                      \
    X(request_generation_tokens, HISTO, "tokens generated for a request",                          \
      .buckets = &metric_buckets_vllm_tokens)                                                      \
    X(fetch_seconds, HISTO, "fetch begun to its last block there", .buckets = &metric_buckets_rpc)

struct worker_metrics {
    METRIC_FIELDS(WORKER_METRICS)
};
METRIC_TABLE(worker_metrics, WORKER_METRICS, "incipit_worker_")

#define WORKER_VLLM_METRICS(X)                                                                     \
    X(requests_running, GAUGE, "requests running", .name = "vllm:num_requests_running")            \
    X(requests_waiting, GAUGE, "requests waiting", .name = "vllm:num_requests_waiting")            \
    X(kv_usage_ratio, FGAUGE, "used share of KV pages", .name = "vllm:kv_cache_usage_perc")        \
    X(kv_usage_ratio, FGAUGE, "old spelling", .name = "vllm:gpu_cache_usage_perc")                 \
    X(prompt_tokens_total, COUNTER, "prompt tokens looked up in own pages",                        \
      .name = "vllm:prefix_cache_queries_total")                                                   \
    X(prompt_tokens_local_total, COUNTER, "of these, found",                                       \
      .name = "vllm:prefix_cache_hits_total")                                                      \
    X(prompt_tokens_total, COUNTER, "old spelling", .name = "vllm:gpu_prefix_cache_queries_total") \
    X(prompt_tokens_local_total, COUNTER, "old spelling",                                          \
      .name = "vllm:gpu_prefix_cache_hits_total")                                                  \
    X(external_queries_total, COUNTER, "prompt tokens looked up at the cache service",             \
      .name = "vllm:external_prefix_cache_queries_total")                                          \
    X(prompt_tokens_remote_total, COUNTER, "of these, fetched",                                    \
      .name = "vllm:external_prefix_cache_hits_total")                                             \
    X(preemptions_total, COUNTER, "preemptions", .name = "vllm:num_preemptions_total")             \
    X(prompt_tokens_total, COUNTER, "prompt tokens", .name = "vllm:prompt_tokens_total")           \
    X(prompt_tokens_computed_total, COUNTER, "prompt tokens by source",                            \
      .name = "vllm:prompt_tokens_by_source_total", .labels = "source=\"local_compute\"")          \
    X(prompt_tokens_local_total, COUNTER, "prompt tokens by source",                               \
      .name = "vllm:prompt_tokens_by_source_total", .labels = "source=\"local_cache_hit\"")        \
    X(prompt_tokens_remote_total, COUNTER, "prompt tokens by source",                              \
      .name = "vllm:prompt_tokens_by_source_total", .labels = "source=\"external_kv_transfer\"")   \
    X(prompt_tokens_reused_total, COUNTER, "prompt tokens not computed",                           \
      .name = "vllm:prompt_tokens_cached_total")                                                   \
    X(generation_tokens_total, COUNTER, "tokens generated",                                        \
      .name = "vllm:generation_tokens_total")                                                      \
    X(requests_stop_total, COUNTER, "requests done", .name = "vllm:request_success_total",         \
      .labels = "finished_reason=\"stop\"")                                                        \
    X(requests_length_total, COUNTER, "requests done", .name = "vllm:request_success_total",       \
      .labels = "finished_reason=\"length\"")                                                      \
    X(requests_canceled_total, COUNTER, "requests done", .name = "vllm:request_success_total",     \
      .labels = "finished_reason=\"abort\"")                                                       \
    X(requests_error_total, COUNTER, "requests done", .name = "vllm:request_success_total",        \
      .labels = "finished_reason=\"error\"")                                                       \
    X(time_to_first_token_seconds, HISTO, "accepted to first token",                               \
      .name = "vllm:time_to_first_token_seconds")                                                  \
    X(inter_token_latency_seconds, HISTO, "between two tokens of a request",                       \
      .name = "vllm:inter_token_latency_seconds")                                                  \
    X(request_queue_time_seconds, HISTO, "accepted to first row computed",                         \
      .name = "vllm:request_queue_time_seconds")                                                   \
    X(request_prefill_time_seconds, HISTO, "first row computed to first token",                    \
      .name = "vllm:request_prefill_time_seconds")                                                 \
    X(request_decode_time_seconds, HISTO, "first token to last",                                   \
      .name = "vllm:request_decode_time_seconds")                                                  \
    X(e2e_request_latency_seconds, HISTO, "accepted to done",                                      \
      .name = "vllm:e2e_request_latency_seconds")                                                  \
    X(request_prompt_tokens, HISTO, "prompt tokens of a request",                                  \
      .name = "vllm:request_prompt_tokens")                                                        \
    X(request_generation_tokens, HISTO, "tokens generated for a request",                          \
      .name = "vllm:request_generation_tokens")

static inline const struct metric_table *worker_vllm_table(void) {
    typedef struct worker_metrics metric_self_;
    static const struct metric_row rows[] = {WORKER_VLLM_METRICS(METRIC_ROW_)};
    static const struct metric_table table = {"vllm:", rows, ARRAY_LEN(rows), sizeof(metric_self_)};
    return &table;
}
