/* http_metrics.h - GET /metrics, /healthz and /readyz for both daemons.
 *
 * /metrics ends with the process's own figures (common/process.h).
 * /healthz is 200 while the loop turns: it carries the age of the loop's heartbeat and turns 503
 * when the largest gap of the last seconds exceeds max_gap_ms or the live hook says no. /readyz is
 * 200 when the ready hook says so. Hooks append JSON members ("\"model\":\"x\"", commas between) or
 * nothing.
 * Thread: loop thread. */
#pragma once

#include <uv.h>

#include "common/compiler.h"
#include "common/http_server.h"
#include "common/metrics.h"

struct http_metrics; /* opaque */

struct http_metrics_source {
    const struct metric_table *table;
    const void *m;
    const char *common;         /* labels for every series, or NULL */
    void (*refresh)(void *arg); /* set gauges that are computed when asked; may be NULL */
    void *arg;
};

struct http_metrics_cfg {
    const struct http_metrics_source *sources; /* borrowed */
    size_t n_sources;
    const struct log *log;                         /* whose lost lines are counted; may be NULL */
    bool (*live)(void *arg, struct strbuf *json);  /* may be NULL: live */
    bool (*ready)(void *arg, struct strbuf *json); /* may be NULL: ready */
    void *arg;
    uint32_t tick_ms;    /* 0: 500 */
    uint32_t max_gap_ms; /* 0: 10,000 */
};

int http_metrics_open(struct http_metrics **ret, uv_loop_t *loop,
                      const struct http_metrics_cfg *cfg);
void http_metrics_close(struct http_metrics *h, void (*cb)(void *arg), void *arg);

#define HTTP_METRICS_ROUTES 3
/* Fills routes[HTTP_METRICS_ROUTES] for an http_server; h outlives that server. */
void http_metrics_routes(struct http_metrics *h, struct http_route *routes);
/* Milliseconds: since the last beat, and the longest gap between two beats of the last 10 s or so.
 * */
uint64_t http_metrics_beat_age_ms(const struct http_metrics *h);
uint64_t http_metrics_max_gap_ms(const struct http_metrics *h);
