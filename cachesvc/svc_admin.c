/* What operators ask: Stats, List, Inspect, Evict, Flush. Evict and Flush answer when what they removed can
 * no longer come back, which may wait for the disk. */
#include "cachesvc/svc.h"

#include "common/check.h"

#define LIST_MAX 256u    /* blocks in one answer */
#define MAX_EVICTS 16u   /* under way at once */

/* ---- Stats ---- */

static uint32_t node_state(const struct cachesvc *s) {
    if (s->phase == SVC_READY)
        return MSG_NODE_READY;
    return s->phase == SVC_STARTING ? MSG_NODE_STARTING : MSG_NODE_DRAINING;
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
    struct msg_stats_res res = {
        .node_id = s->cfg->node_id,
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

/* ---- List, Inspect ---- */

static struct msg_block_info block_info(const struct store_block_info *b) {
    static const uint8_t none[BLOCK_ID_BYTES];
    uint32_t state = b->hole ? MSG_BLOCK_HOLE : b->filling ? MSG_BLOCK_FILLING : MSG_BLOCK_RESIDENT;
    bool has_parent = memcmp(b->parent.b, none, sizeof(none)) != 0;
    return (struct msg_block_info){.id = {b->id.b, BLOCK_ID_BYTES},
                                   .parent = {b->parent.b, has_parent ? BLOCK_ID_BYTES : 0},
                                   .digest = {b->ns_digest, DIGEST_BYTES},
                                   .depth = b->depth,
                                   .state = state,
                                   .ram = b->ram,
                                   .disk = b->disk,
                                   .payload_bytes = b->payload_bytes,
                                   .checksum = b->checksum,
                                   .generation = b->ram_generation,
                                   .leases = b->leases,
                                   .pins = b->pins,
                                   .n_children = b->n_children,
                                   .put_time_ms = b->put_time_ms,
                                   .put_seq = b->put_seq,
                                   .writer = {b->writer, sizeof(b->writer)},
                                   .group = b->group,
                                   .foreign = b->foreign};
}

/* Only one filter number for the digest: 0 (none given), 1 (known) or ERR_NOTFOUND. */
static int filter_digest(struct cachesvc *s, const struct msg_bytes *digest, struct store_filter *f) {
    if (digest->n == 0)
        return 0;
    f->by_ns = true;
    return block_store_ns_find(s->store, digest->p, &f->ns) < 0 ? ERR_NOTFOUND : 1;
}

static int list_blocks(struct cachesvc *s, struct rpc_call *call, const struct msg_list_req *m) {
    struct msg_list_res res = {0};
    struct store_filter f = {0};
    uint32_t limit = m->limit && m->limit < LIST_MAX ? m->limit : LIST_MAX;
    uint64_t cursor = 0;
    if (m->cursor.n == sizeof(cursor))
        memcpy(&cursor, m->cursor.p, sizeof(cursor));
    struct store_block_info *infos = bump_alloc(call->scratch, limit * sizeof(*infos));
    struct msg_block_info *out = bump_alloc(call->scratch, limit * sizeof(*out));
    if (!infos || !out)
        return ERR_TOOBIG;
    if (filter_digest(s, &m->digest, &f) >= 0)
        res.n_blocks = block_store_list(s->store, &f, &cursor, infos, limit);
    for (size_t i = 0; i < res.n_blocks; i++)
        out[i] = block_info(&infos[i]);
    res.blocks = out;
    if (cursor != 0)
        res.cursor = (struct msg_bytes){(const uint8_t *)&cursor, sizeof(cursor)};
    return SVC_REPLY(call, list_res, &res);
}

static int list_namespaces(struct cachesvc *s, struct rpc_call *call) {
    uint32_t n = MIN(block_store_ns_count(s->store), (uint32_t)SESSION_MAX_NS);
    struct store_ns_info *infos = bump_alloc(call->scratch, (n + 1) * sizeof(*infos));
    struct msg_namespace_info *out = bump_alloc(call->scratch, (n + 1) * sizeof(*out));
    if (!infos || !out)
        return ERR_TOOBIG;
    for (uint32_t i = 0; i < n; i++) {
        block_store_ns_info(s->store, i, &infos[i]);
        const struct svc_descriptor *d = &s->descriptor[i];
        out[i] = (struct msg_namespace_info){.digest = {infos[i].digest, DIGEST_BYTES},
                                             .descriptor = {(const uint8_t *)d->text, d->len},
                                             .payload_bytes = infos[i].shape.payload_bytes,
                                             .n_ranges = infos[i].shape.n_ranges,
                                             .range_sizes = infos[i].shape.range_sizes,
                                             .n_range_sizes = infos[i].shape.range_sizes
                                                                  ? infos[i].shape.n_ranges
                                                                  : 0,
                                             .n_full = infos[i].shape.n_full,
                                             .seg_blocks = infos[i].shape.seg_blocks,
                                             .slot_bytes = infos[i].slot_bytes,
                                             .blocks_ram = infos[i].n_ram,
                                             .blocks_disk = infos[i].n_disk};
    }
    struct msg_list_res res = {.namespaces = out, .n_namespaces = n};
    return SVC_REPLY(call, list_res, &res);
}

static int list_sessions(struct cachesvc *s, struct rpc_call *call) {
    size_t n = 0, max = slabpool_in_use(&s->sessions.pool);
    struct msg_session_info *out = bump_alloc(call->scratch, (max + 1) * sizeof(*out));
    if (!out)
        return ERR_TOOBIG;
    LIST_FOREACH(&s->sessions.all, it) {
        const struct session *ss = LIST_ENTRY(it, struct session, link);
        uint32_t puts = 0;
        LIST_FOREACH(&ss->puts, p)
            puts += p != NULL;
        out[n++] = (struct msg_session_info){
            .session = ss->number,
            .client_name = ss->name,
            .peer = ss->control.conn ? rpc_conn_peer(ss->control.conn) : "",
            .role = ss->role,
            .data_conns = session_n_data(ss),
            .puts_open = puts,
            .age_ms = (clock_mono_ns(s->clk) - ss->opened_ns) / NS_PER_MS};
    }
    struct msg_list_res res = {.sessions = out, .n_sessions = n};
    return SVC_REPLY(call, list_res, &res);
}

int svc_list(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_list_req m;
    int rv = SVC_DECODE(call, list_req, &m, eb);
    if (rv < 0)
        return rv;
    switch (m.what) {
    case MSG_LIST_BLOCKS:
        return list_blocks(s, call, &m);
    case MSG_LIST_NAMESPACES:
        return list_namespaces(s, call);
    case MSG_LIST_SESSIONS:
        return list_sessions(s, call);
    default:
        return err_set(eb, ERR_INVALID, "List: what = %u is unknown", m.what);
    }
}

int svc_inspect(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_inspect_req m;
    struct store_block_info info;
    struct block_id id;
    int rv = SVC_DECODE(call, inspect_req, &m, eb);
    if (rv < 0)
        return rv;
    if (m.id.n != BLOCK_ID_BYTES)
        return err_set(eb, ERR_INVALID, "Inspect: an id has 32 bytes");
    memcpy(id.b, m.id.p, BLOCK_ID_BYTES);
    rv = ERR_NOTFOUND;
    for (uint32_t ns = 0; rv < 0 && ns < block_store_ns_count(s->store); ns++)
        rv = block_store_inspect(s->store, ns, &id, &info);
    if (rv < 0)
        return err_set(eb, rv, "Inspect: no such block");
    struct msg_inspect_res res = {.block = block_info(&info)};
    return SVC_REPLY(call, inspect_res, &res);
}

/* ---- Evict, Flush ---- */

struct evict_ctx {
    struct store_evict e;
    struct cachesvc *svc;
    struct rpc_conn *conn; /* referenced */
    struct wire_hdr hdr;
};

static void on_evicted(void *arg, int rv, uint64_t n_blocks, uint64_t bytes) {
    struct evict_ctx *ctx = arg;
    struct cachesvc *s = ctx->svc;
    struct bump *scratch;
    struct buf *out;
    rpc_server_scratch(s->rpc, &scratch, &out);
    struct msg_evict_res res = {.blocks = n_blocks, .bytes = bytes};
    if (rv < 0)
        (void)rpc_conn_reply_error(ctx->conn, &ctx->hdr, rv, "some headers could not be cleared on disk");
    else if (wire_msg_evict_res_encode(scratch, &res, out) == 0)
        (void)rpc_conn_reply(ctx->conn, &ctx->hdr, true, out->data, out->len, NULL);
    log_info(s->log, "blocks removed by an operator", "blocks=%llu bytes=%llu rv=%s",
             (unsigned long long)n_blocks, (unsigned long long)bytes, err_name(rv));
    s->evicts_open--;
    rpc_conn_unref(ctx->conn);
    free(ctx);
}

static int start_evict(struct cachesvc *s, struct rpc_call *call, const struct store_filter *f,
                       struct errbuf *eb) {
    if (s->evicts_open >= MAX_EVICTS)
        return err_set(eb, ERR_BUSY, "%u removals are under way", MAX_EVICTS);
    struct evict_ctx *ctx = calloc(1, sizeof(*ctx)); /* an operator's command: not a hot path */
    if (!ctx)
        return ERR_NOMEM;
    ctx->svc = s;
    ctx->conn = rpc_conn_ref(call->conn);
    ctx->hdr = call->hdr;
    s->evicts_open++;
    block_store_evict(s->store, &ctx->e, f, on_evicted, ctx);
    return 0;
}

static bool matches_time(const struct store_filter *f, const struct store_block_info *b) {
    return !f->by_time || (b->put_time_ms >= f->time_from_ms && b->put_time_ms <= f->time_to_ms);
}

/* What an Evict would remove, without removing it. */
static int count_only(struct cachesvc *s, struct rpc_call *call, const struct store_filter *f) {
    struct msg_evict_res res = {0};
    struct store_block_info *infos = bump_alloc(call->scratch, LIST_MAX * sizeof(*infos));
    if (!infos)
        return ERR_TOOBIG;
    uint64_t cursor = 0;
    do {
        uint32_t n = block_store_list(s->store, f, &cursor, infos, LIST_MAX);
        for (uint32_t i = 0; i < n; i++) {
            if (!matches_time(f, &infos[i]))
                continue;
            res.blocks++;
            res.bytes += infos[i].payload_bytes;
        }
    } while (cursor != 0);
    return SVC_REPLY(call, evict_res, &res);
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
    if (!m.n_ids && !m.digest.n && !by_time && !m.writer.n)
        return err_set(eb, ERR_INVALID, "Evict: nothing says which blocks (Flush removes all)");
    if (filter_digest(s, &m.digest, &f) < 0) {
        struct msg_evict_res none = {0};
        return SVC_REPLY(call, evict_res, &none);
    }
    f.ids = m.n_ids ? m.ids : NULL;
    f.n_ids = (uint32_t)m.n_ids;
    f.descendants = m.descendants;
    f.by_time = by_time;
    f.time_from_ms = m.from_ms;
    f.time_to_ms = m.to_ms ? m.to_ms : UINT64_MAX;
    f.by_writer = m.writer.n == sizeof(f.writer);
    if (f.by_writer)
        memcpy(f.writer, m.writer.p, sizeof(f.writer));
    return m.dry_run ? count_only(s, call, &f) : start_evict(s, call, &f, eb);
}

int svc_flush(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_flush_req m;
    struct store_filter f = {0};
    int rv = SVC_DECODE(call, flush_req, &m, eb);
    if (rv < 0)
        return rv;
    if (filter_digest(s, &m.digest, &f) < 0) {
        struct msg_evict_res none = {0};
        return SVC_REPLY(call, evict_res, &none);
    }
    return start_evict(s, call, &f, eb);
}
