#include "common/http_metrics.h"

#include <inttypes.h>

#include "common/err.h"
#include "common/process.h"

#define GAPS 20u /* ticks that the largest gap is taken over */

struct http_metrics {
    struct http_metrics_cfg cfg;
    uv_loop_t *loop;
    struct process_metrics process;
    uv_timer_t tick;
    uint64_t last_beat_ns;
    uint64_t gaps_ms[GAPS]; /* ring */
    uint32_t gap_at;
    void (*close_cb)(void *arg);
    void *close_arg;
};

static void on_tick(uv_timer_t *t) {
    struct http_metrics *h = t->data;
    uint64_t now = uv_hrtime();
    h->gaps_ms[h->gap_at] = (now - h->last_beat_ns) / 1000000u;
    h->gap_at = (h->gap_at + 1) % GAPS;
    h->last_beat_ns = now;
}

int http_metrics_open(struct http_metrics **ret, uv_loop_t *loop,
                      const struct http_metrics_cfg *cfg) {
    struct http_metrics *h = calloc(1, sizeof(*h));
    if (!h)
        return ERR_NOMEM;
    h->cfg = *cfg;
    h->cfg.tick_ms = cfg->tick_ms ? cfg->tick_ms : 500;
    h->cfg.max_gap_ms = cfg->max_gap_ms ? cfg->max_gap_ms : 10000;
    h->loop = loop;
    h->last_beat_ns = uv_hrtime();
    int rv = uv_timer_init(loop, &h->tick);
    if (rv < 0) {
        free(h);
        return rv;
    }
    h->tick.data = h;
    uv_timer_start(&h->tick, on_tick, h->cfg.tick_ms, h->cfg.tick_ms);
    *ret = h;
    return 0;
}

static void on_tick_closed(uv_handle_t *handle) {
    struct http_metrics *h = handle->data;
    void (*cb)(void *arg) = h->close_cb;
    void *arg = h->close_arg;
    free(h);
    if (cb)
        cb(arg);
}

void http_metrics_close(struct http_metrics *h, void (*cb)(void *arg), void *arg) {
    h->close_cb = cb;
    h->close_arg = arg;
    uv_close((uv_handle_t *)&h->tick, on_tick_closed);
}

uint64_t http_metrics_beat_age_ms(const struct http_metrics *h) {
    return (uv_hrtime() - h->last_beat_ns) / 1000000u;
}

uint64_t http_metrics_max_gap_ms(const struct http_metrics *h) {
    uint64_t max = http_metrics_beat_age_ms(h);
    for (uint32_t i = 0; i < GAPS; i++)
        max = MAX(max, h->gaps_ms[i]);
    return max;
}

static void on_metrics(struct http_req *r, void *arg) {
    struct http_metrics *h = arg;
    struct strbuf out;
    strbuf_init(&out);
    for (size_t i = 0; i < h->cfg.n_sources; i++) {
        const struct http_metrics_source *s = &h->cfg.sources[i];
        if (s->refresh)
            s->refresh(s->arg);
        metric_render(s->table, s->m, s->common, &out);
    }
    process_metrics_refresh(&h->process, h->cfg.log);
    metric_render(process_metrics_table(), &h->process, NULL, &out);
    if (out.oom)
        http_reply_error(r, 503, "server_error", NULL, NULL, "out of memory");
    else
        http_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", strbuf_view(&out));
    strbuf_fini(&out);
}

static void reply_state(struct http_req *r, bool ok, const char *word,
                        const struct strbuf *members) {
    struct strbuf out;
    strbuf_init(&out);
    strbuf_addf(&out, "{\"status\":\"%s\"", word);
    if (members->len)
        strbuf_addf(&out, "," STR_FMT, STR_ARG(strbuf_view(members)));
    strbuf_addz(&out, "}\n");
    http_reply_json(r, ok ? 200 : 503, strbuf_view(&out));
    strbuf_fini(&out);
}

static void on_healthz(struct http_req *r, void *arg) {
    struct http_metrics *h = arg;
    struct strbuf members, extra;
    strbuf_init(&members);
    strbuf_init(&extra);
    uint64_t gap = http_metrics_max_gap_ms(h);
    bool ok = gap <= h->cfg.max_gap_ms;
    strbuf_addf(&members, "\"loop_beat_age_ms\":%" PRIu64 ",\"loop_max_gap_ms\":%" PRIu64,
                http_metrics_beat_age_ms(h), gap);
    if (h->cfg.live)
        ok &= h->cfg.live(h->cfg.arg, &extra);
    if (extra.len)
        strbuf_addf(&members, "," STR_FMT, STR_ARG(strbuf_view(&extra)));
    reply_state(r, ok, ok ? "ok" : "failing", &members);
    strbuf_fini(&members);
    strbuf_fini(&extra);
}

static void on_readyz(struct http_req *r, void *arg) {
    struct http_metrics *h = arg;
    struct strbuf members;
    strbuf_init(&members);
    bool ok = !h->cfg.ready || h->cfg.ready(h->cfg.arg, &members);
    reply_state(r, ok, ok ? "ready" : "not ready", &members);
    strbuf_fini(&members);
}

void http_metrics_routes(struct http_metrics *h, struct http_route *routes) {
    static const struct {
        const char *path;
        http_handler_cb cb;
    } rows[HTTP_METRICS_ROUTES] = {
        {"/metrics", on_metrics}, {"/healthz", on_healthz}, {"/readyz", on_readyz}};
    for (size_t i = 0; i < HTTP_METRICS_ROUTES; i++)
        routes[i] = (struct http_route){
            .method = "GET", .path = rows[i].path, .cb = rows[i].cb, .arg = h, .is_probe = true};
}
