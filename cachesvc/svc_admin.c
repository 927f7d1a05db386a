/* What operators ask and do: Stats, Evict, Flush, within the token's namespaces. Evict and Flush answer when
 * what they removed can no longer come back, which waits for one write to the disk. */
#include "cachesvc/svc.h"

#include "common/check.h"

int svc_filter_ns(struct rpc_call *call, const struct msg_bytes *digest, struct store_filter *f,
                  struct errbuf *eb) {
    const struct auth_token *auth = session_of(call->conn)->session->auth;
    const char *method = wire_method_name(call->hdr.method);
    if (digest->n == 0)
        return !auth_is_bound(auth)
                   ? 0
                   : err_set(eb, ERR_DENIED, "%s: this token is bound to namespaces: name one",
                             method);
    if (!auth_ns_allowed(auth, digest->p))
        return err_set(eb, ERR_DENIED, "%s: not one of this token's namespaces", method);
    f->by_ns = true;
    memcpy(f->digest, digest->p, sizeof(f->digest));
    return 0;
}

/* ---- Stats ---- */

static uint32_t node_state(const struct cachesvc *s) {
    if (s->phase == SVC_READY)
        return MSG_NODE_READY;
    return s->phase == SVC_STARTING ? MSG_NODE_STARTING : MSG_NODE_DRAINING;
}

/* A token that is bound to namespaces: the node's size, and of what it holds the token's part alone. */
static int stats_of_token(struct cachesvc *s, struct rpc_call *call, uint64_t ram_bytes,
                          uint64_t disk_bytes) {
    const struct auth_token *auth = session_of(call->conn)->session->auth;
    struct msg_stats_res res = {.node_id = s->cfg->node_id,
                                .node_name = s->name,
                                .version = INCIPIT_VERSION,
                                .epoch = s->index->ops->epoch(s->index),
                                .uptime_ms = (clock_mono_ns(s->clk) - s->started_ns) / NS_PER_MS,
                                .state = node_state(s),
                                .ram_bytes = ram_bytes,
                                .disk_bytes = disk_bytes};
    for (uint32_t i = 0; i < auth->n_ns; i++) {
        struct store_ns_info info;
        uint32_t ns;
        if (block_store_ns_find(s->store, auth->ns[i], &ns) < 0)
            continue;
        block_store_ns_info(s->store, ns, &info);
        res.namespaces++;
        res.blocks_ram += info.n_ram;
        res.blocks_disk += info.n_disk;
        res.ram_used_bytes += info.n_ram * info.slot_bytes;
        res.disk_used_bytes += info.n_disk * info.slot_bytes;
    }
    LIST_FOREACH(&s->sessions.all, it) {
        const struct session *ss = LIST_ENTRY(it, struct session, link);
        if (!auth_covers(auth, ss->auth))
            continue;
        res.sessions++;
        res.connections += 1 + session_n_data(ss);
    }
    return SVC_REPLY(call, stats_res, &res);
}

int svc_stats(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_stats_req m;
    int rv = SVC_DECODE(call, stats_req, &m, eb);
    if (rv < 0)
        return rv;
    struct block_store_stats st;
    struct rpc_server_stats rpc;
    struct index_stats ix;
    block_store_stats(s->store, &st);
    rpc_server_stats(s->rpc, &rpc);
    s->index->ops->stats(s->index, &ix);
    struct msg_stats_counter counters[] = {
#define X(n, help) {#n, (double)st.n},
        STORE_COUNTERS(X)
#undef X
    };
    if (auth_is_bound(session_of(call->conn)->session->auth))
        return stats_of_token(s, call, st.now.ram_bytes, st.now.disk_bytes);
    struct msg_stats_res res = {.node_id = s->cfg->node_id,
                                .node_name = s->name,
                                .version = INCIPIT_VERSION,
                                .epoch = s->index->ops->epoch(s->index),
                                .uptime_ms = (clock_mono_ns(s->clk) - s->started_ns) / NS_PER_MS,
                                .state = node_state(s),
                                .ram_bytes = st.now.ram_bytes,
                                .ram_used_bytes = st.now.ram_used_bytes,
                                .disk_bytes = st.now.disk_bytes,
                                .disk_used_bytes = st.now.disk_used_bytes,
                                .max_blocks = st.now.max_blocks,
                                .blocks_ram = st.now.ram_blocks,
                                .blocks_disk = st.now.disk_blocks,
                                .holes = st.now.holes,
                                .leases = st.now.leases,
                                .puts_open = st.now.puts,
                                .sessions = (uint32_t)slabpool_in_use(&s->sessions.pool),
                                .connections = rpc.conns,
                                .namespaces = block_store_ns_count(s->store),
                                .lookup_blocks = st.lookup_block,
                                .lookup_hits = st.hit_ram_block + st.hit_disk_block,
                                .fetch_blocks = st.fetch_ram + st.fetch_disk,
                                .put_blocks = st.committed,
                                .evict_blocks = st.evicted,
                                .conflicts = st.conflict,
                                .corrupt = st.put_corrupt + st.disk_corrupt,
                                .index_state = (uint32_t)ix.state,
                                .counters = counters,
                                .n_counters = ARRAY_LEN(counters)};
    return SVC_REPLY(call, stats_res, &res);
}

/* ---- Evict, Flush ---- */

struct evict_ctx {
    struct list link; /* session.removals */
    struct store_evict e;
    struct cachesvc *svc;
    struct session *session; /* NULL when it has ended: what was begun is done all the same */
    struct rpc_conn *conn;   /* referenced */
    struct wire_hdr hdr;
    uint64_t deadline_ns; /* 0: none */
    bool dry_run;
    bool is_answered; /* or nobody is left to answer: its time or its session was over first */
};

static const char *refusal(int rv) {
    switch (rv) {
    case ERR_NOSPACE:
        return "the removal log is full: flush the namespace, or evict by writer or group";
    case ERR_INVALID:
        return "'before_ms' is too far ahead of this node's clock";
    case ERR_BUSY:
        return "too many removals are under way";
    default:
        return "the removal is not on disk: the blocks are gone, but may return with a restart; "
               "ask again";
    }
}

static void answer_evict(struct evict_ctx *ctx, int rv, uint64_t n_blocks, uint64_t bytes) {
    struct bump *scratch;
    struct buf *out;
    rpc_server_scratch(ctx->svc->rpc, &scratch, &out);
    struct msg_evict_res res = {.blocks = n_blocks,
                                .bytes = bytes,
                                .deferred = ctx->e.n_deferred,
                                .puts_aborted = ctx->e.n_aborted,
                                .before_ms = ctx->e.before_ms};
    if (rv < 0)
        (void)rpc_conn_reply_error(ctx->conn, &ctx->hdr, rv, refusal(rv));
    else if (wire_msg_evict_res_encode(scratch, &res, out) == 0)
        (void)rpc_conn_reply(ctx->conn, &ctx->hdr, true, out->data, out->len, NULL);
}

static void on_evicted(void *arg, int rv, uint64_t n_blocks, uint64_t bytes) {
    struct evict_ctx *ctx = arg;
    struct cachesvc *s = ctx->svc;
    if (!ctx->is_answered)
        answer_evict(ctx, rv, n_blocks, bytes);
    if (!ctx->dry_run)
        log_info(s->log, "blocks removed by an operator", "blocks=%llu bytes=%llu rv=%s",
                 (unsigned long long)n_blocks, (unsigned long long)bytes, err_name(rv));
    s->evicts_open--;
    if (ctx->session)
        share_give(&ctx->session->bound[BOUND_REMOVALS], 1);
    list_remove(&ctx->link);
    rpc_conn_unref(ctx->conn);
    free(ctx);
}

static int start_evict(struct cachesvc *s, struct rpc_call *call, const struct store_filter *f,
                       struct errbuf *eb) {
    struct session *ss = session_of(call->conn)->session;
    if (!share_take(&ss->bound[BOUND_REMOVALS], 1))
        return session_refuse(ss, BOUND_REMOVALS, wire_method_name(call->hdr.method), eb);
    struct evict_ctx *ctx = calloc(1, sizeof(*ctx)); /* an operator's command: not a hot path */
    if (!ctx) {
        share_give(&ss->bound[BOUND_REMOVALS], 1);
        return ERR_NOMEM;
    }
    ctx->svc = s;
    ctx->session = ss;
    list_push_back(&ss->removals, &ctx->link);
    ctx->conn = rpc_conn_ref(call->conn);
    ctx->hdr = call->hdr;
    ctx->deadline_ns = rpc_call_deadline_ns(call);
    ctx->dry_run = f->dry_run;
    s->evicts_open++;
    block_store_evict(s->store, &ctx->e, f, on_evicted, ctx);
    return 0;
}

/* What was begun goes on; only the answer can't wait. */
void svc_admin_tick(struct cachesvc *s) {
    uint64_t now = clock_mono_ns(s->clk);
    LIST_FOREACH(&s->sessions.all, at) {
        struct session *ss = LIST_ENTRY(at, struct session, link);
        LIST_FOREACH(&ss->removals, it) {
            struct evict_ctx *ctx = LIST_ENTRY(it, struct evict_ctx, link);
            if (ctx->is_answered || !ctx->deadline_ns || now < ctx->deadline_ns)
                continue;
            ctx->is_answered = true;
            (void)rpc_conn_reply_error(ctx->conn, &ctx->hdr, ERR_TIMEOUT,
                                       "invisible, but not yet known to be on disk");
        }
    }
}

void svc_admin_end_session(struct session *ss) {
    for (struct list *l; (l = list_pop_front(&ss->removals));) {
        share_give(&ss->bound[BOUND_REMOVALS], 1);
        struct evict_ctx *ctx = LIST_ENTRY(l, struct evict_ctx, link);
        ctx->session = NULL;
        /* The disk may finish when even the server is gone, as it does while the node closes. */
        ctx->is_answered = true;
    }
}

int svc_evict(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_evict_req m;
    struct store_filter f = {0};
    int rv = SVC_DECODE(call, evict_req, &m, eb);
    if (rv == 0)
        rv = svc_check_ids(s, m.n_ids, eb);
    if (rv < 0)
        return rv;
    bool by_time = m.from_ms || m.to_ms;
    if (!m.n_ids && !m.digest.n && !by_time && !m.writer.n && !m.group)
        return err_set(eb, ERR_INVALID, "Evict: nothing says which blocks (Flush removes all)");
    if (m.n_ids && !m.digest.n)
        return err_set(eb, ERR_INVALID, "Evict: ids without 'digest', the namespace they are in");
    if ((m.n_ids > 0) + (m.writer.n > 0) + (m.group != 0) > 1)
        return err_set(eb, ERR_INVALID, "Evict: ids, 'writer' and 'group': only one of them");
    if (m.to_ms && m.from_ms >= m.to_ms)
        return err_set(eb, ERR_INVALID, "Evict: 'from_ms' is not before 'to_ms'");
    rv = svc_filter_ns(call, &m.digest, &f, eb);
    if (rv < 0)
        return rv;
    f.ids = m.n_ids ? m.ids : NULL;
    f.n_ids = (uint32_t)m.n_ids;
    f.descendants = m.descendants;
    f.by_time = by_time;
    f.time_from_ms = m.from_ms;
    f.time_to_ms = m.to_ms ? m.to_ms - 1 : UINT64_MAX; /* exclusive on the wire */
    f.by_writer = m.writer.n == sizeof(f.writer);
    if (f.by_writer)
        memcpy(f.writer, m.writer.p, sizeof(f.writer));
    f.by_group = m.group != 0;
    f.group = m.group;
    f.before_ms = m.before_ms;
    f.dry_run = m.dry_run;
    return start_evict(s, call, &f, eb);
}

int svc_flush(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_flush_req m;
    struct store_filter f = {0};
    int rv = SVC_DECODE(call, flush_req, &m, eb);
    if (rv < 0)
        return rv;
    rv = svc_filter_ns(call, &m.digest, &f, eb);
    f.before_ms = m.before_ms;
    return rv < 0 ? rv : start_evict(s, call, &f, eb);
}
