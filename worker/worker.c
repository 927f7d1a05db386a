/* worker.c - WORKER: composition.
 *
 *   start  metrics, HTTP (all but the probes answer "loading") -> model, in a thread of its own ->
 *          pools -> cache client -> engine -> API -> first forward pass -> ready
 *   lame   SIGTERM: not ready any more, all is served (svc_main.c)
 *   drain  no new connections; running requests end, then the put queue
 *   stop   no new connections -> engine (what runs gets its error) -> HTTP (what was answered leaves) ->
 *          client, metrics, pools -> free. While it loads: the load is canceled first */
#include "worker/worker.h"

#include <errno.h>
#include <sys/random.h>

#include "common/check.h"
#include "common/http_metrics.h"
#include "common/loop_work.h"
#include "proto/kv_token.h"
#include "proto/rpc_sock.h"
#include "worker/api/http_openai.h"
#include "worker/kv/kv_remote.h"
#include "worker/sched/engine.h"
#include "worker/worker_config.h"
#include "worker/worker_metrics.h"
#include "worker/worker_model.h"
#include "worker/worker_plan.h"

/* After the last request a drain waits this long for puts. */
#define DRAIN_PUTS_MS 3000u
#define LOADING_RETRY_S "5"

struct worker {
    struct svc *svc;
    const struct worker_config *cfg;
    struct worker_metrics met;
    char vllm_labels[512];
    char name[128];
    struct rpc_addr listen;
    struct worker_model m;
    struct worker_loading loading;
    struct loop_work *loader; /* its one job is load; NULL: over */
    struct loop_job load;
    struct errbuf load_eb;
    bool is_loaded;                     /* m is there */
    struct loop_work *work, *work_long; /* text: short ones and puts; long ones */
    struct kv_client *client;           /* NULL: no cache */
    struct kv_remote remote;
    struct engine *engine;
    struct http_metrics_source sources[2];
    struct http_metrics *http_metrics;
    struct http_openai *api;
    struct http_route routes[HTTP_METRICS_ROUTES + HTTP_OPENAI_ROUTES + 1]; /* and /health */
    struct http_server *http;
    uint32_t n_closing; /* close callbacks to come */
    bool is_warm;       /* the first forward pass is done */
    uint64_t untried;   /* cache nodes by index whose first attempt is under way */
    bool is_serving;    /* warm and all tried */
    bool is_closing;
    bool is_model_changed; /* and said so */
    bool is_closed;        /* no handle of ours is open any more */
};

/* --- health --- */

/* Nothing is read from the file after the load, so a change of it is news for an operator, no more. */
static void watch_model_file(struct worker *w) {
    if (!w->is_loaded)
        return;
    bool changed = model_file_changed(w->m.model);
    METRIC_SET(&w->met, model_changed, changed);
    if (changed && !w->is_model_changed)
        log_warn(w->svc->log, "the model file changed; what was loaded serves on", "model=%s",
                 w->cfg->model);
    w->is_model_changed = changed;
}

static bool is_live(void *arg, struct strbuf *json) {
    struct worker *w = arg;
    watch_model_file(w);
    strbuf_addf(json, "\"phase\":\"%s\"", svc_phase(w->svc));
    if (!w->engine)
        return true; /* loading, or on its way out */
    uint64_t age = clock_mono_ns(w->svc->clk) - engine_heartbeat_ns(w->engine);
    strbuf_addf(json, ",\"engine_age_ms\":%llu", (unsigned long long)(age / NS_PER_MS));
    return !engine_is_hung(w->engine, w->cfg->engine_hang_ms);
}

/* Where a start is: bytes of the model read, then the first forward pass. */
static void add_progress(struct worker *w, struct strbuf *json) {
    uint64_t done = atomic_load(&w->loading.done), total = atomic_load(&w->loading.total);
    if (!w->is_serving)
        strbuf_addf(json, ",\"loading\":{\"bytes\":%llu,\"of\":%llu,\"step\":\"%s\"}",
                    (unsigned long long)done, (unsigned long long)total,
                    !w->is_loaded ? "model"
                    : w->is_warm  ? "cache nodes"
                                  : "first forward pass");
}

static bool is_ready(void *arg, struct strbuf *json) {
    struct worker *w = arg;
    bool draining = svc_is_draining(w->svc);
    watch_model_file(w);
    strbuf_addf(json, "\"phase\":\"%s\",\"model_changed\":%s,\"draining\":%s", svc_phase(w->svc),
                w->is_model_changed ? "true" : "false", draining ? "true" : "false");
    add_progress(w, json);
    return w->is_serving && !draining;
}

/* --- start --- */

/* Not before the warm-up, for which the first request would wait, nor before each cache node's first attempt
 * has come to something (2 s at most): the first requests would be computed although what they need is
 * there. */
static void begin_serving(struct worker *w) {
    if (w->is_serving || w->is_closing || !w->is_warm || w->untried)
        return; /* closing: nodes still come and go, HTTP is gone */
    w->is_serving = true;
    svc_ready(w->svc, "listen=%s port=%u model=%s name=%s", w->cfg->listen,
              http_server_port(w->http), w->m.name, w->name);
}

static void on_node(void *arg, uint32_t node, enum kv_node_state state, int err, const char *text) {
    struct worker *w = arg;
    if (state == KV_NODE_UP) {
        log_info(w->svc->log, "cache node up", "node=%u", node);
        if (w->engine)
            engine_cache_is_back(w->engine); /* another process, perhaps, with less in it */
    } else if (state == KV_NODE_DOWN) {
        log_warn(w->svc->log, "cache node down, computing without it", "node=%u err=%s text=%s",
                 node, err_name(err), text ? text : "");
    }
    if (state != KV_NODE_CONNECTING) {
        w->untried &= ~((uint64_t)1 << node);
        begin_serving(w);
    }
}

/* *ret_len 0: there is no token file. */
static int read_token(struct worker *w, char token[KV_TOKEN_MAX_BYTES], size_t *ret_len,
                      struct errbuf *eb) {
    struct errbuf warn;
    *ret_len = 0;
    if (!w->cfg->token_file[0])
        return 0;
    int rv = kv_token_load(w->cfg->token_file, MSG_ROLE_WORKER, token, ret_len, &warn, eb);
    if (warn.text[0])
        log_warn(w->svc->log, "a file with secrets is open to others", "what=%s", warn.text);
    return rv;
}

static int open_client(struct worker *w, struct errbuf *eb) {
    char token[KV_TOKEN_MAX_BYTES];
    size_t token_len;
    uint8_t writer[16];
    uint32_t ns = 0;
    if (!w->cfg->cache.n || !w->m.numerics_ok)
        return 0;
    int rv = read_token(w, token, &token_len, eb);
    if (rv < 0)
        return rv;
    if (getrandom(writer, sizeof(writer), 0) != (ssize_t)sizeof(writer))
        return err_set(eb, -errno, "random bytes");
    const struct kv_client_cfg cc = {
        .addrs = w->cfg->cache.v,
        .n_addrs = w->cfg->cache.n,
        .token = token_len ? token : NULL,
        .token_len = token_len,
        .role = MSG_ROLE_WORKER,
        .name = w->name,
        .writer = writer,
        .n_data_conns = 2,
        .clk = w->svc->clk,
        .on_node = on_node,
        .on_node_arg = w,
    };
    for (uint32_t i = 0; i < MIN(cc.n_addrs, KV_CLIENT_MAX_NODES); i++)
        w->untried |= (uint64_t)1 << i;
    rv = kv_client_open(&w->client, w->svc->loop, &cc, eb);
    explicit_bzero(token, sizeof(token));
    if (rv < 0)
        return err_wrap(eb, rv, "--cache");
    struct kv_namespace nsd = {
        .descriptor = w->m.ns.text,
        .descriptor_len = w->m.ns.len,
        .range_sizes = w->m.layout.range_sizes,
        .n_ranges = w->m.layout.cfg.n_layer,
        .n_full = w->m.layout.n_full,
    };
    memcpy(nsd.digest, w->m.ns.digest, sizeof(nsd.digest));
    rv = kv_client_namespace(w->client, &nsd, &ns);
    if (rv < 0)
        return err_set(eb, rv, "namespace: %s", err_text(rv));
    kv_remote_init_client(&w->remote, w->client, ns, w->svc->clk);
    return 0;
}

static int step(void *ctx, const struct fwd_seq *seqs, uint32_t n_seqs) {
    return fwd_step(ctx, seqs, n_seqs);
}

static void on_warm(void *arg) {
    struct worker *w = arg;
    w->is_warm = true;
    begin_serving(w);
}

static int open_engine(struct worker *w, struct errbuf *eb) {
    const struct worker_config *c = w->cfg;
    struct engine_cfg ec = {
        .loop = w->svc->loop,
        .work = w->work,
        .work_long = w->work_long,
        .clk = w->svc->clk,
        .tok = w->m.tok,
        .fwd = {.step = step,
                .ctx = w->m.fwd,
                .n_vocab = w->m.model->hp.n_vocab,
                .page_bytes = w->m.layout.page_bytes,
                .range_sizes = w->m.layout.range_sizes,
                .n_ranges = w->m.layout.cfg.n_layer,
                .decode_private = w->m.blas != NULL},
        .block_tok = c->block_tokens,
        .max_ctx = w->m.max_ctx,
        .max_seqs = c->max_seqs,
        .chunk_tok = c->chunk_tokens,
        .chunk_ms = c->chunk_ms,
        .max_logit_rows = w->m.max_logit_rows,
        .max_queue = c->max_queue,
        .n_pages = w->m.n_pages,
        .fetch = (enum fetch_mode)c->fetch,
        .remote = w->client ? &w->remote : NULL,
        .put_queue_blocks = c->put_queue_blocks,
        .on_warm = on_warm,
        .on_warm_arg = w,
        .met = &w->met,
    };
    memcpy(ec.namespace_digest, w->m.ns.digest, DIGEST_BYTES);
    return engine_open(&w->engine, &ec, eb);
}

static int open_metrics(struct worker *w, struct errbuf *eb) {
    w->sources[0] = (struct http_metrics_source){.table = worker_metrics_table(), .m = &w->met};
    w->sources[1] = (struct http_metrics_source){
        .table = worker_vllm_table(), .m = &w->met, .common = w->vllm_labels};
    const struct http_metrics_cfg mc = {
        .sources = w->sources,
        .n_sources = ARRAY_LEN(w->sources),
        .log = w->svc->log,
        .live = is_live,
        .ready = is_ready,
        .arg = w,
    };
    int rv = http_metrics_open(&w->http_metrics, w->svc->loop, &mc);
    return rv < 0 ? err_set(eb, rv, "metrics: %s", err_text(rv)) : 0;
}

/* The model's name is known when it is loaded. */
static void name_metrics(struct worker *w) {
    struct strbuf esc;
    strbuf_init(&esc);
    metric_label_escape(&esc, str_cut(str_of(w->m.name), 0, 200));
    struct str view = strbuf_view(&esc);
    snprintf(w->vllm_labels, sizeof(w->vllm_labels), "model_name=\"%.*s\"", (int)view.n, view.p);
    strbuf_fini(&esc);
}

static int open_api(struct worker *w, struct errbuf *eb) {
    const struct http_openai_cfg ac = {
        .loop = w->svc->loop,
        .clk = w->svc->clk,
        .log = w->svc->log,
        .engine = w->engine,
        .work = w->work,
        .work_long = w->work_long,
        .tok = w->m.tok,
        .chat = w->m.chat,
        .chat_error = w->m.chat_error,
        .model_name = w->m.name,
        .aliases = w->cfg->served_name.v,
        .n_aliases = w->cfg->served_name.n,
        .any_model = w->cfg->any_model,
        .worker_name = w->name,
        .max_ctx = w->m.max_ctx,
        .block_tok = w->cfg->block_tokens,
        .namespace_digest = w->m.ns.digest,
        .api_key_file = w->cfg->api_key_file,
        .debug_logits = w->cfg->debug_logits,
    };
    return http_openai_open(&w->api, &ac, eb);
}

/* Stands before every route of the API until there is one. */
static bool refuse_loading(struct http_req *r, void *arg) {
    (void)arg;
    (void)http_reply_header(r, "Retry-After", LOADING_RETRY_S);
    http_reply_error(r, 503, "server_error", NULL, "loading", "the model is being loaded");
    return false;
}

static int open_http(struct worker *w, struct errbuf *eb) {
    http_metrics_routes(w->http_metrics, w->routes);
    http_openai_routes(NULL, w->routes + HTTP_METRICS_ROUTES);
    for (size_t i = 0; i < HTTP_OPENAI_ROUTES; i++) {
        w->routes[HTTP_METRICS_ROUTES + i].on_head = refuse_loading;
        w->routes[HTTP_METRICS_ROUTES + i].arg = w;
    }
    /* The peers' name of /healthz. */
    for (size_t i = 0; i < HTTP_METRICS_ROUTES; i++)
        if (strcmp(w->routes[i].path, "/healthz") == 0) {
            w->routes[ARRAY_LEN(w->routes) - 1] = w->routes[i];
            w->routes[ARRAY_LEN(w->routes) - 1].path = "/health";
        }
    bool any_host = w->cfg->api_key_file[0] != '\0';
    for (uint32_t i = 0; i < w->cfg->allowed_host.n; i++)
        any_host |= strcmp(w->cfg->allowed_host.v[i], "*") == 0;
    char host[300];
    snprintf(host, sizeof(host), "%s%s", w->listen.is_unix ? "unix:" : "", w->listen.host);
    const struct http_server_cfg hc = {
        .host = host,
        .port = (uint16_t)strtoul(w->listen.port, NULL, 10),
        .routes = w->routes,
        .n_routes = ARRAY_LEN(w->routes),
        .log = w->svc->log,
        .access_log = w->cfg->access_log,
        .max_conns = w->cfg->http_max_conns,
        .max_body_bytes = w->cfg->http_body_bytes,
        .max_bodies_bytes = w->cfg->http_bodies_bytes,
        .any_host = any_host,
        .hosts = w->cfg->allowed_host.v,
        .n_hosts = w->cfg->allowed_host.n,
        .cors_origins = w->cfg->cors_origin.v,
        .n_cors = w->cfg->cors_origin.n,
    };
    int rv = http_server_open(&w->http, w->svc->loop, &hc, eb);
    return rv < 0 ? err_wrap(eb, rv, "--listen '%s'", w->cfg->listen) : 0;
}

static int check_listen(struct worker *w, struct errbuf *eb) {
    int rv = rpc_addr_parse(w->cfg->listen, &w->listen, eb);
    if (rv < 0)
        return err_wrap(eb, rv, "--listen");
    int is_public = rpc_addr_is_public(&w->listen, eb);
    if (is_public < 0)
        return err_wrap(eb, is_public, "--listen '%s'", w->cfg->listen);
    if (is_public && !w->cfg->api_key_file[0] && !w->cfg->insecure_no_auth)
        return err_set(eb, ERR_DENIED,
                       "--listen '%s' is not loopback: give --api-key-file, or --insecure-no-auth",
                       w->cfg->listen);
    return 0;
}

static void begin_close(struct worker *w);

/* Whatever was opened is closed again, so that a failed start leaves nothing behind. */
static int start_failed(struct worker *w, int rv) {
    uv_loop_t *loop = w->svc->loop;
    begin_close(w);
    while (!w->is_closed) /* the loop has other handles: the daemon's */
        uv_run(loop, UV_RUN_ONCE);
    free(w);
    return rv;
}

static int open_pools(struct worker *w, struct errbuf *eb) {
    struct loop_work_cfg wc = {
        .n_threads = 1, .max_queued = w->cfg->max_queue + 1024, .name = "text"};
    int rv = loop_work_open(&w->work, w->svc->loop, &wc);
    wc.name = "long text";
    if (rv == 0)
        rv = loop_work_open(&w->work_long, w->svc->loop, &wc);
    return rv < 0 ? err_set(eb, rv, "pool: %s", err_text(rv)) : 0;
}

static int run_load(struct loop_job *j) {
    struct worker *w = CONTAINER_OF(j, struct worker, load);
    return worker_model_load(&w->m, w->cfg, w->svc->log, &w->loading, &w->load_eb);
}

static int open_rest(struct worker *w, struct errbuf *eb) {
    name_metrics(w);
    METRIC_SET(&w->met, numerics_mismatch, !w->m.numerics_ok);
    METRIC_SET(&w->met, cache_nodes, w->m.numerics_ok ? w->cfg->cache.n : 0);
    int rv = open_pools(w, eb);
    if (rv == 0)
        rv = open_client(w, eb);
    if (rv == 0)
        rv = open_engine(w, eb);
    if (rv == 0)
        rv = open_api(w, eb);
    if (rv == 0)
        http_openai_routes(w->api, w->routes + HTTP_METRICS_ROUTES);
    return rv;
}

static void on_loaded(struct loop_job *j, int rv) {
    struct worker *w = CONTAINER_OF(j, struct worker, load);
    struct errbuf eb = w->load_eb;
    w->is_loaded = rv == 0;
    if (w->is_closing)
        return;
    if (rv == 0)
        rv = open_rest(w, &eb);
    if (rv < 0)
        svc_fail(w->svc, rv, eb.text);
}

static int start_load(struct worker *w, struct errbuf *eb) {
    const struct loop_work_cfg wc = {.n_threads = 1, .max_queued = 1, .name = "load"};
    w->load = (struct loop_job){.run = run_load, .done = on_loaded};
    int rv = loop_work_open(&w->loader, w->svc->loop, &wc);
    if (rv == 0)
        rv = loop_work_submit(w->loader, &w->load);
    return rv < 0 ? err_set(eb, rv, "loader: %s", err_text(rv)) : 0;
}

static int worker_start(struct svc *s, void *cfg, struct errbuf *eb) {
    struct worker *w = calloc(1, sizeof(*w));
    if (!w)
        return err_set(eb, ERR_NOMEM, "worker");
    w->svc = s;
    w->cfg = cfg;
    metric_init(worker_metrics_table(), &w->met);
    snprintf(w->vllm_labels, sizeof(w->vllm_labels), "model_name=\"\"");
    snprintf(w->name, sizeof(w->name), "%s", w->cfg->name[0] ? w->cfg->name : w->cfg->listen);
    int rv = check_listen(w, eb);
    if (rv == 0)
        rv = open_metrics(w, eb);
    if (rv == 0)
        rv = open_http(w, eb);
    if (rv == 0)
        rv = start_load(w, eb);
    if (rv < 0)
        return start_failed(w, rv);
    s->data = w;
    return 0;
}

/* --- reload --- */

/* Both files are read before either counts, so that an error leaves what was there. */
static int worker_reload(struct svc *s, struct errbuf *eb) {
    struct worker *w = s->data;
    char token[KV_TOKEN_MAX_BYTES];
    size_t token_len = 0;
    int rv = w->client ? read_token(w, token, &token_len, eb) : 0;
    if (rv == 0 && w->api)
        rv = http_openai_reload(w->api, eb);
    if (rv == 0 && token_len && (rv = kv_client_set_token(w->client, token, token_len)) < 0)
        (void)err_set(eb, rv, "token: %s", err_text(rv));
    explicit_bzero(token, sizeof(token));
    return rv;
}

/* --- drain and stop --- */

static void on_drained(void *data) {
    svc_drained(((struct worker *)data)->svc);
}

static void worker_drain(struct svc *s) {
    struct worker *w = s->data;
    http_server_drain(w->http);
    engine_drain(w->engine, DRAIN_PUTS_MS, on_drained, w);
}

static void on_rest_closed(void *data) {
    struct worker *w = data;
    w->is_closed = --w->n_closing == 0;
}

static void close_rest(struct worker *w) {
    struct loop_work *pools[] = {TAKE_PTR(w->work), TAKE_PTR(w->work_long), TAKE_PTR(w->loader)};
    w->n_closing = 1;
    if (w->api) {
        w->n_closing++;
        http_openai_close(TAKE_PTR(w->api), on_rest_closed, w);
    }
    if (w->client) {
        w->n_closing++;
        kv_client_close(TAKE_PTR(w->client), on_rest_closed, w);
    }
    if (w->http_metrics) {
        w->n_closing++;
        http_metrics_close(TAKE_PTR(w->http_metrics), on_rest_closed, w);
    }
    for (size_t i = 0; i < ARRAY_LEN(pools); i++)
        if (pools[i]) {
            w->n_closing++;
            loop_work_close(pools[i], on_rest_closed, w);
        }
    on_rest_closed(w);
}

static void on_http_closed(void *data) {
    close_rest(data);
}

/* Every request has its answer or its error now. */
static void on_engine_closed(void *data) {
    struct worker *w = data;
    if (w->http)
        http_server_close(TAKE_PTR(w->http), on_http_closed, w);
    else
        close_rest(w);
}

static void begin_close(struct worker *w) {
    w->is_serving = false;
    w->is_closing = true;
    atomic_store(&w->loading.cancel, true);
    if (w->http)
        http_server_drain(w->http);
    if (w->engine)
        engine_close(TAKE_PTR(w->engine), on_engine_closed, w);
    else
        on_engine_closed(w);
}

static void worker_stop(struct svc *s) {
    begin_close(s->data);
}

static void worker_free(struct svc *s) {
    struct worker *w = s->data;
    worker_model_free(&w->m); /* nothing where the load failed */
    free(w);
}

static int print_plan(void *cfg, FILE *out, struct errbuf *eb) {
    if (!((const struct worker_config *)cfg)->plan)
        return 0;
    int rv = worker_plan(cfg, out, eb);
    return rv < 0 ? rv : CFG_DONE;
}

int worker_main(int argc, char **argv) {
    const struct svc_ops ops = {
        .prog = {.name = "incipit-worker",
                 .summary = "serves a GGUF model over the OpenAI HTTP API"},
        .table = worker_config_table(),
        .instead = print_plan,
        .start = worker_start,
        .drain = worker_drain,
        .reload = worker_reload,
        .stop = worker_stop,
        .free = worker_free,
    };
    return svc_main(&ops, argc, argv);
}
