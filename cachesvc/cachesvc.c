#include "cachesvc/cachesvc.h"

#include <unistd.h>

#include "cachesvc/svc.h"
#include "common/check.h"
#include "common/machine.h"
#include "common/str.h"

#define TICK_MS 50u

/* svc.h's struct with what only opening and closing need. */
struct node {
    struct cachesvc svc; /* first: struct cachesvc * is struct node * */
    uint16_t rpc_port;
    bool has_timers, has_denials, has_streams, has_puts, has_sessions;
    uint32_t closing; /* parts whose close callback is still out */
    void (*close_cb)(void *arg);
    void *close_arg;
};

static struct node *node_of(struct cachesvc *s) {
    return CONTAINER_OF(s, struct node, svc);
}

/* ---- probes and gauges ---- */

static void refresh(void *arg) {
    struct cachesvc *s = arg;
    struct block_store_stats st;
    struct rpc_server_stats rpc;
    struct index_stats ix;
    block_store_stats(s->store, &st);
    store_metrics_refresh(&s->store_met, &st);
    rpc_server_stats(s->rpc, &rpc);
    METRIC_SET(&s->met, connections, (int64_t)rpc.conns);
    METRIC_SET(&s->met, connections_refused_total, rpc.refused);
    METRIC_SET(&s->met, connections_gave_way_total, rpc.gave_way);
    METRIC_SET(&s->met, connections_late_total, rpc.late);
    METRIC_SET(&s->met, received_bytes, (int64_t)rpc.bytes_received);
    METRIC_SET(&s->met, rpc_total, rpc.requests);
    METRIC_SET(&s->met, rpc_error_total, rpc.errors);
    METRIC_SET(&s->met, rpc_protocol_error_total, rpc.protocol_errors);
    METRIC_SET(&s->met, queued_bytes, (int64_t)rpc.bytes_queued);
    s->index->ops->stats(s->index, &ix);
    METRIC_SET(&s->met, index_state, (int64_t)ix.state);
    METRIC_SET(&s->met, index_published_total, ix.published);
    METRIC_SET(&s->met, index_withdrawn_total, ix.withdrawn);
    METRIC_SET(&s->met, index_dropped_total, ix.dropped);
    METRIC_SET(&s->met, index_error_total, ix.errors);
    METRIC_SET(&s->met, index_reconnect_total, ix.reconnects);
    METRIC_SET(&s->met, index_backlog, (int64_t)ix.backlog);
}

static bool is_ready(void *arg, struct strbuf *json) {
    struct cachesvc *s = arg;
    static const char *const names[] = {"starting", "ready", "draining", "stopping"};
    strbuf_addf(json, "\"node\":\"%s\",\"phase\":\"%s\"", s->name, names[s->phase]);
    return s->phase == SVC_READY;
}

/* ---- opening, part by part ---- */

static int check_binds(const struct cachesvc_config *cfg, struct errbuf *eb) {
    if (cfg->listen.n == 0 && !*cfg->unix_listen)
        return err_set(eb, ERR_INVALID, "neither --listen nor --unix-listen: nobody could connect");
    for (uint32_t i = 0; i < cfg->listen.n; i++) {
        struct rpc_addr a;
        int rv = rpc_addr_parse(cfg->listen.v[i], &a, eb);
        if (rv < 0)
            return err_wrap(eb, rv, "--listen");
        int is_public = rpc_addr_is_public(&a, eb);
        if (is_public < 0)
            return err_wrap(eb, is_public, "--listen");
        if (is_public && !*cfg->token_file && !cfg->insecure_no_auth)
            return err_set(
                eb, ERR_DENIED,
                "--listen %s is reachable from other hosts and there is no --token-file; "
                "--insecure-no-auth allows it all the same",
                cfg->listen.v[i]);
    }
    return 0;
}

static int open_pools(struct node *n, struct errbuf *eb) {
    struct cachesvc *s = &n->svc;
    const struct cachesvc_config *cfg = s->cfg;
    /* The unit of bytes is the largest request, and what a frame under way counts for at most. */
    const struct session_limit limits[N_BOUNDS] = {
        [BOUND_STREAMS] = {cfg->max_fetches, 1},
        [BOUND_WAITING] = {cfg->max_waiting_bytes, 1024 + cfg->max_ids * BLOCK_ID_BYTES},
        [BOUND_READS] = {cfg->disk_queue, 1},
        [BOUND_SENDS] = {cfg->ram_bytes / 4, cfg->ram_bytes / 256},
        [BOUND_PUTS] = {cfg->max_puts, 1},
        [BOUND_NAMESPACES] = {SESSION_MAX_NS, 1},
        [BOUND_COMMITS] = {cfg->max_commits, 1},
        [BOUND_REMOVALS] = {SVC_MAX_REMOVALS, 1},
        [BOUND_SESSIONS] = {cfg->max_sessions, 1}};
    int rv = session_table_init(&s->sessions, cfg->max_sessions, limits);
    n->has_sessions = rv == 0;
    session_table_expect(&s->sessions, s->auth.n);
    if (rv == 0)
        rv = svc_session_init(s);
    n->has_denials = rv == 0;
    if (rv == 0)
        rv = svc_fetch_init(s);
    n->has_streams = rv == 0;
    if (rv == 0)
        rv = svc_put_init(s);
    n->has_puts = rv == 0;
    return rv < 0 ? err_set(eb, rv, "pools of sessions, fetches and puts: %s", err_text(rv)) : 0;
}

static void on_seg_visible(void *arg, const uint8_t digest[DIGEST_BYTES],
                           const struct block_id *first) {
    struct cachesvc *s = arg;
    if (!s->index)
        return; /* closing */
    struct index_seg seg = index_seg_of(digest, first);
    s->index->ops->publish(s->index, &seg);
}

static void on_seg_gone(void *arg, const uint8_t digest[DIGEST_BYTES],
                        const struct block_id *first) {
    struct cachesvc *s = arg;
    if (!s->index)
        return;
    struct index_seg seg = index_seg_of(digest, first);
    s->index->ops->withdraw(s->index, &seg);
}

static void on_segs_known(void *arg) {
    struct cachesvc *s = arg;
    if (s->index)
        s->index->ops->rescan(s->index);
}

static void on_note(void *arg, enum store_note level, const char *text) {
    struct cachesvc *s = arg;
    if (level == STORE_NOTE_ERROR)
        log_error(s->log, "store", "what=%s", text);
    else if (level == STORE_NOTE_WARN)
        log_warn(s->log, "store", "what=%s", text);
    else
        log_info(s->log, "store", "what=%s", text);
}

/* The RAM tier is touched page by page at start: too large a one would end in the kernel's killing
 * of some process, not in an error. */
static int check_ram(struct cachesvc *s, struct errbuf *eb) {
    struct machine m;
    machine_read(&m, "");
    uint64_t ram = s->cfg->ram_bytes;
    if (m.memory_bytes == 0 || ram <= m.memory_bytes - m.memory_bytes / 16)
        return 0;
    const char *who = m.has_memory_limit ? "its control group may have" : "this machine has";
    if (ram > m.memory_bytes)
        return err_set(eb, ERR_INVALID, "--ram-bytes %llu: %s %llu", (unsigned long long)ram, who,
                       (unsigned long long)m.memory_bytes);
    log_warn(s->log, "the RAM tier leaves less than a sixteenth of the memory to all else",
             "ram_bytes=%llu memory_bytes=%llu", (unsigned long long)ram,
             (unsigned long long)m.memory_bytes);
    return 0;
}

static int open_store(struct cachesvc *s, struct errbuf *eb) {
    const struct cachesvc_config *cfg = s->cfg;
    int ram_rv = check_ram(s, eb);
    if (ram_rv < 0)
        return ram_rv;
    bool has_disk = *cfg->disk_dir && cfg->disk_bytes;
    if (!*cfg->disk_dir != !cfg->disk_bytes)
        return err_set(eb, ERR_INVALID, "--disk-dir and --disk-bytes go together");
    if (has_disk) {
        struct loop_work_cfg w = {.n_threads = cfg->disk_threads,
                                  .max_queued = cfg->disk_queue + STORE_DISK_JOBS,
                                  .name = "disk"};
        int rv = loop_work_open(&s->disk_pool, s->loop, &w);
        if (rv < 0)
            return err_set(eb, rv, "disk threads: %s", err_text(rv));
    }
    struct block_store_cfg c = {.ram_bytes = cfg->ram_bytes,
                                .disk_bytes = has_disk ? cfg->disk_bytes : 0,
                                .data_dir = has_disk ? cfg->disk_dir : NULL,
                                .min_slot_bytes = cfg->min_slot_bytes,
                                .no_huge_pages = !cfg->huge_pages,
                                .max_blocks = cfg->max_blocks,
                                .max_namespaces = SESSION_MAX_NS,
                                .max_sessions = cfg->max_sessions,
                                .max_puts = cfg->max_puts,
                                .max_put_blocks = cfg->max_put_blocks,
                                .max_disk_reads = cfg->disk_queue,
                                .lease_ttl_ns = cfg->lease_ttl_ms * NS_PER_MS,
                                .put_ttl_ns = cfg->put_ttl_ms * NS_PER_MS,
                                .buffered_io = cfg->buffered_io,
                                .disk_reformat = cfg->disk_reformat,
                                .clk = s->clk,
                                .work = s->disk_pool,
                                .on_seg_visible = on_seg_visible,
                                .on_seg_gone = on_seg_gone,
                                .on_segs_known = on_segs_known,
                                .on_note = on_note,
                                .hook_arg = s};
    return block_store_open(&s->store, &c, eb);
}

static void index_node_of(void *arg, struct index_node *ret) {
    struct cachesvc *s = arg;
    struct block_store_stats st;
    block_store_stats(s->store, &st);
    *ret = (struct index_node){
        .capacity_bytes = st.now.ram_bytes + st.now.disk_bytes,
        .used_bytes = st.now.ram_used_bytes + st.now.disk_used_bytes,
        .state = s->phase == SVC_STARTING ? MSG_NODE_STARTING
                 : s->phase == SVC_READY  ? MSG_NODE_READY
                                          : MSG_NODE_DRAINING,
    };
}

#define SCAN_MAX 64u
static uint32_t index_scan(void *arg, uint64_t *cursor, struct index_seg *ret, uint32_t max) {
    struct cachesvc *s = arg;
    struct store_seg segs[SCAN_MAX];
    struct store_ns_info info;
    uint32_t n = block_store_list_segs(s->store, cursor, segs, MIN(max, SCAN_MAX)), ns = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (segs[i].ns != ns)
            block_store_ns_info(s->store, ns = segs[i].ns, &info);
        ret[i] = index_seg_of(info.digest, &segs[i].first);
    }
    return n;
}

static int open_index(struct node *n, struct errbuf *eb) {
    struct cachesvc *s = &n->svc;
    const struct cachesvc_config *cfg = s->cfg;
    if (!*cfg->redis)
        return index_mem_open(&s->index, s->clk);
    char password[SVC_PASSWORD_BYTES];
    int rv = svc_load_password(s, password, eb);
    if (rv < 0)
        return rv;
    const char *addr = *cfg->advertise ? cfg->advertise
                       : cfg->listen.n ? cfg->listen.v[0]
                                       : cfg->unix_listen;
    struct index_redis_cfg c = {
        .loop = s->loop,
        .clk = s->clk,
        .log = s->log,
        .addr = cfg->redis,
        .user = cfg->redis_user,
        .password = password,
        .db = cfg->redis_db,
        .node_id = (uint16_t)cfg->node_id,
        .node_addr = addr,
        .weight = (uint32_t)MIN((cfg->ram_bytes + cfg->disk_bytes) >> 20, UINT32_MAX),
        .max_backlog = cfg->redis_backlog,
        .node = index_node_of,
        .scan = index_scan,
        .arg = s};
    const uint8_t *id = block_store_disk_id(s->store);
    if (id)
        memcpy(c.store_id, id, sizeof(c.store_id));
    rv = index_redis_open(&s->index, &c, eb);
    explicit_bzero(password, sizeof(password)); /* the index has its own */
    return rv;
}

static int listen_all(struct node *n, struct errbuf *eb) {
    struct cachesvc *s = &n->svc;
    for (uint32_t i = 0; i < s->cfg->listen.n; i++) {
        struct rpc_addr a;
        uint16_t port = 0;
        int rv = rpc_addr_parse(s->cfg->listen.v[i], &a, eb);
        if (rv == 0)
            rv = rpc_server_listen(s->rpc, &a, &port, eb);
        if (rv < 0)
            return err_wrap(eb, rv, "--listen %s", s->cfg->listen.v[i]);
        n->rpc_port = n->rpc_port ? n->rpc_port : port;
    }
    if (!*s->cfg->unix_listen)
        return 0;
    struct rpc_addr a = {.is_unix = true};
    snprintf(a.host, sizeof(a.host), "%s", s->cfg->unix_listen);
    int rv = rpc_server_listen(s->rpc, &a, NULL, eb);
    return rv < 0 ? err_wrap(eb, rv, "--unix-listen %s", s->cfg->unix_listen) : 0;
}

static int open_rpc(struct node *n, struct errbuf *eb) {
    struct cachesvc *s = &n->svc;
    const char *cc = s->cfg->tcp_congestion;
    struct rpc_server_cfg c = {.methods = svc_methods,
                               .n_methods = svc_n_methods,
                               .arg = s,
                               .on_gone = svc_on_gone,
                               .on_drain = svc_on_drain,
                               .on_request = svc_on_request,
                               .conn = {.max_out_bytes = s->cfg->max_inflight_bytes, .clk = s->clk},
                               .sock = {.tcp_congestion = strcmp(cc, "auto") == 0 ? NULL : cc,
                                        .dead_ms = s->cfg->tcp_dead_ms},
                               .grants_timeout_ms = s->cfg->hello_timeout_ms,
                               .stall_timeout_ms = s->cfg->stall_timeout_ms,
                               .frame_timeout_ms = s->cfg->frame_timeout_ms,
                               .max_received_bytes = s->cfg->max_received_bytes,
                               .max_conns = s->cfg->max_sessions * (1 + s->cfg->max_data_conns),
                               .clk = s->clk};
    int rv = rpc_server_open(&s->rpc, s->loop, &c, eb);
    return rv < 0 ? rv : listen_all(n, eb);
}

static int open_http(struct cachesvc *s, struct errbuf *eb) {
    s->sources[0] = (struct http_metrics_source){
        .table = cachesvc_metrics_table(), .m = &s->met, .refresh = refresh, .arg = s};
    s->sources[1] =
        (struct http_metrics_source){.table = store_metrics_table(), .m = &s->store_met};
    struct http_metrics_cfg mc = {.sources = s->sources,
                                  .n_sources = ARRAY_LEN(s->sources),
                                  .log = s->log,
                                  .ready = is_ready,
                                  .arg = s};
    int rv = http_metrics_open(&s->probes, s->loop, &mc);
    if (rv < 0)
        return err_set(eb, rv, "probes: %s", err_text(rv));
    if (!*s->cfg->http_listen)
        return 0;
    struct rpc_addr a; /* the same address forms */
    rv = rpc_addr_parse(s->cfg->http_listen, &a, eb);
    uint64_t port = 0;
    if (rv == 0 && !a.is_unix)
        rv = str_to_u64(str_of(a.port), &port);
    if (rv < 0 || port > UINT16_MAX)
        return err_set(eb, ERR_INVALID, "--http-listen %s is not an address", s->cfg->http_listen);
    http_metrics_routes(s->probes, s->routes);
    struct http_server_cfg hc = {.host = a.is_unix ? s->cfg->http_listen : a.host,
                                 .port = (uint16_t)port,
                                 .routes = s->routes,
                                 .n_routes = ARRAY_LEN(s->routes),
                                 .log = s->log,
                                 .max_conns = 64};
    rv = http_server_open(&s->http, s->loop, &hc, eb);
    return rv < 0 ? err_wrap(eb, rv, "--http-listen %s", s->cfg->http_listen) : 0;
}

static void on_tick(uv_timer_t *t) {
    struct cachesvc *s = t->data;
    if (!s->store)
        return; /* closed: the last parts are on their way */
    block_store_tick(
        s->store); /* also while closing: drain and close of the store move on in here */
    if (s->phase == SVC_STOPPING)
        return;
    svc_fetch_tick(s);
    svc_put_tick(s);
    svc_admin_tick(s);
    svc_session_tick(s);
    if (s->phase == SVC_DRAINING && s->daemon && cachesvc_is_drained(s))
        svc_drained(s->daemon);
}

static int open_parts(struct node *n, struct errbuf *eb) {
    struct cachesvc *s = &n->svc;
    int rv = check_binds(s->cfg, eb);
    if (rv == 0 && *s->cfg->token_file)
        rv = svc_load_tokens(s, &s->auth, eb);
    if (rv == 0)
        rv = open_pools(n, eb);
    if (rv == 0)
        rv = open_store(s, eb);
    if (rv == 0)
        rv = open_index(n, eb);
    if (rv == 0)
        rv = open_rpc(n, eb);
    if (rv == 0)
        rv = open_http(s, eb);
    return rv;
}

/* ---- closing: what feeds others first; parts that are NULL were never opened ----
 *
 *   rpc (its on_gone ends the sessions), http, probes --> store drained --> store --> index, disk
 * pool, tick
 *   --> pools, memory */

static void part_closed(struct node *n, void (*next)(struct node *n)) {
    CHECK(n->closing > 0);
    if (--n->closing == 0)
        next(n);
}

static void finish(struct node *n) {
    struct cachesvc *s = &n->svc;
    if (n->has_puts)
        svc_put_fini(s);
    if (n->has_streams)
        svc_fetch_fini(s);
    if (n->has_denials)
        svc_session_fini(s);
    if (n->has_sessions)
        session_table_fini(&s->sessions);
    auth_fini(&s->auth);
    for (size_t i = 0; i < ARRAY_LEN(s->descriptor); i++)
        free(s->descriptor[i].text);
    void (*cb)(void *arg) = n->close_cb;
    void *arg = n->close_arg;
    free(n);
    cb(arg);
}

static void on_back_closed(void *arg) {
    part_closed(arg, finish);
}
static void on_timer_closed(uv_handle_t *h) {
    on_back_closed(node_of(h->data));
}

static void close_back(struct node *n) {
    struct cachesvc *s = &n->svc;
    n->closing = 1;
    if (s->index) {
        n->closing++;
        s->index->ops->close(TAKE_PTR(s->index), on_back_closed, n);
    }
    if (s->disk_pool) {
        n->closing++;
        loop_work_close(TAKE_PTR(s->disk_pool), on_back_closed, n);
    }
    if (n->has_timers) {
        n->closing += 2;
        uv_close((uv_handle_t *)&s->tick, on_timer_closed);
        uv_close((uv_handle_t *)&s->wake, on_timer_closed);
    }
    on_back_closed(n);
}

static void on_store_closed(void *arg, int rv) {
    struct node *n = arg;
    if (rv < 0) {
        /* Threads of ours hang in the kernel with our memory in hand: neither they nor it can be
         * had back, and whoever sent SIGTERM waits. */
        log_error(n->svc.log, "the disk does not give its work back: leaving as it is", "err=%s",
                  err_text(rv));
        log_flush(n->svc.log);
        _exit(SVC_EXIT_FAILED);
    }
    n->svc.store = NULL;
    close_back(n);
}

static void on_store_drained(void *arg, int rv) {
    struct node *n = arg;
    if (rv < 0)
        log_warn(n->svc.log, "not everything reached the disk", "err=%s", err_text(rv));
    block_store_close(n->svc.store, on_store_closed, n);
}

static void close_store(struct node *n) {
    /* Slots whose send the kernel never took are given back by rpc_server_close(), before this. */
    if (n->svc.store)
        block_store_drain(n->svc.store, on_store_drained, n);
    else
        close_back(n);
}

static void on_front_closed(void *arg) {
    part_closed(arg, close_store);
}

/* Until here connections end one by one, and what ends with them asks the server for its scratch. */
static void on_rpc_closed(void *arg) {
    struct node *n = arg;
    n->svc.rpc = NULL;
    on_front_closed(n);
}

void cachesvc_close(struct cachesvc *s, void (*cb)(void *arg), void *arg) {
    struct node *n = node_of(s);
    CHECK(s->phase != SVC_STOPPING);
    s->phase = SVC_STOPPING;
    n->close_cb = cb;
    n->close_arg = arg;
    n->closing = 1;
    if (s->rpc) {
        n->closing++;
        rpc_server_close(s->rpc, on_rpc_closed, n);
    }
    if (s->http) {
        n->closing++;
        http_server_close(TAKE_PTR(s->http), on_front_closed, n);
    }
    if (s->probes) {
        n->closing++;
        http_metrics_close(TAKE_PTR(s->probes), on_front_closed, n);
    }
    on_front_closed(n);
}

void cachesvc_drain(struct cachesvc *s) {
    if (s->phase != SVC_READY)
        return;
    s->phase = SVC_DRAINING;
    rpc_server_stop_listening(s->rpc);
}

bool cachesvc_is_drained(const struct cachesvc *s) {
    return s->phase >= SVC_DRAINING && slabpool_in_use(&s->streams) == 0 && s->n_waiting == 0 &&
           slabpool_in_use(&s->commits) == 0 && s->evicts_open == 0;
}

uint16_t cachesvc_rpc_port(const struct cachesvc *s) {
    return CONTAINER_OF((struct cachesvc *)(uintptr_t)s, struct node, svc)->rpc_port;
}
uint16_t cachesvc_http_port(const struct cachesvc *s) {
    return s->http ? http_server_port(s->http) : 0;
}

static void set_true(void *arg) {
    *(bool *)arg = true;
}

int cachesvc_open(struct cachesvc **ret, const struct cachesvc_env *env,
                  const struct cachesvc_config *cfg, struct errbuf *eb) {
    struct node *n = calloc(1, sizeof(*n));
    if (!n)
        return ERR_NOMEM;
    struct cachesvc *s = &n->svc;
    s->loop = env->loop;
    s->clk = env->clk ? env->clk : clock_real();
    s->log = env->log;
    s->daemon = env->daemon;
    s->cfg = cfg;
    s->started_ns = clock_mono_ns(s->clk);
    if (*cfg->node_name)
        snprintf(s->name, sizeof(s->name), "%s", cfg->node_name);
    else
        snprintf(s->name, sizeof(s->name), "node-%u", cfg->node_id);
    metric_init(cachesvc_metrics_table(), &s->met);
    metric_init(store_metrics_table(), &s->store_met);
    int rv = open_parts(n, eb);
    if (rv < 0) {
        bool is_closed = false;
        cachesvc_close(s, set_true, &is_closed);
        while (!is_closed)
            uv_run(env->loop, UV_RUN_ONCE);
        return rv;
    }
    uv_timer_init(s->loop, &s->tick);
    uv_idle_init(s->loop, &s->wake);
    s->tick.data = s->wake.data = s;
    n->has_timers = true;
    uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    s->phase = SVC_READY;
    *ret = s;
    return 0;
}

/* ---- the daemon ---- */

static int daemon_start(struct svc *d, void *cfg, struct errbuf *eb) {
    struct cachesvc_env env = {.loop = d->loop, .clk = d->clk, .log = d->log, .daemon = d};
    struct cachesvc *s = NULL;
    int rv = cachesvc_open(&s, &env, cfg, eb);
    if (rv < 0)
        return rv;
    d->data = s;
    struct block_store_stats st;
    block_store_stats(s->store, &st);
    log_info(d->log, "node is ready", "node=%s ram_bytes=%llu disk_bytes=%llu recovered=%llu",
             s->name, (unsigned long long)st.now.ram_bytes, (unsigned long long)st.now.disk_bytes,
             (unsigned long long)st.recovered);
    svc_ready(d, "rpc_port=%u http_port=%u", cachesvc_rpc_port(s), cachesvc_http_port(s));
    return 0;
}

static void daemon_drain(struct svc *d) {
    cachesvc_drain(d->data);
}
static int daemon_reload(struct svc *d, struct errbuf *eb) {
    return cachesvc_reload(d->data, eb);
}
static void on_daemon_closed(void *arg) {
    (void)arg;
}
static void daemon_stop(struct svc *d) {
    cachesvc_close(d->data, on_daemon_closed, NULL);
}

int cachesvc_main(int argc, char **argv) {
    static const struct svc_ops ops = {
        .prog = {"incipit-cachesvc", "one node of the prefix cache: KV blocks in RAM and on disk"},
        .start = daemon_start,
        .drain = daemon_drain,
        .reload = daemon_reload,
        .stop = daemon_stop};
    struct svc_ops with_table = ops;
    with_table.table = cachesvc_config_table();
    return svc_main(&with_table, argc, argv);
}
