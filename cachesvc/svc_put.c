/* Put, in two phases:
 *
 *   BEGIN (control) --> statuses, slots reserved
 *   DATA  (data connections, one-way) --> received straight into the slot, checksummed there
 *   COMMIT (control) --> waits for the payloads it names, answers one status a block
 *   last COMMIT answered, ABORT, or the session's end --> the put is gone
 *
 * Each index of a COMMIT is committed by itself, so that the answer can say which one failed. */
#include "cachesvc/svc.h"

#include "common/check.h"

struct put_rec {
    struct list link; /* session.puts */
    uint64_t put_id;
    uint32_t n_open; /* commits that wait */
    bool last;       /* a COMMIT with `last` came: end when none waits */
    struct list commits;
    uint32_t n;
    uint8_t begun[]; /* [n]: what BEGIN answered, enum store_put_status */
};

struct commit_ctx;
struct commit_item {
    struct store_commit c;
    struct commit_ctx *ctx;
    bool waits;
};

struct commit_ctx {
    struct list link; /* put_rec.commits */
    struct cachesvc *svc;
    struct session *session;
    struct put_rec *rec;
    struct rpc_conn *conn; /* referenced */
    struct wire_hdr hdr;
    uint64_t deadline_ns; /* 0: none */
    uint32_t n, n_waiting;
    uint8_t *status;            /* [n], behind the items */
    uint32_t *index;            /* [n], the same */
    struct commit_item items[]; /* [max_put_blocks] */
};

int svc_put_init(struct cachesvc *s) {
    int rv =
        slabpool_init(&s->puts, s->cfg->max_puts, sizeof(struct put_rec) + s->cfg->max_put_blocks);
    if (rv < 0)
        return rv;
    size_t bytes = sizeof(struct commit_ctx) +
                   s->cfg->max_put_blocks * (sizeof(struct commit_item) + sizeof(uint32_t) + 1);
    rv = slabpool_init(&s->commits, s->cfg->max_commits, bytes);
    if (rv < 0)
        slabpool_fini(&s->puts);
    return rv;
}

void svc_put_fini(struct cachesvc *s) {
    slabpool_fini(&s->commits);
    slabpool_fini(&s->puts);
}

static struct put_rec *find_rec(struct session *ss, uint64_t put_id) {
    LIST_FOREACH(&ss->puts, it) {
        struct put_rec *r = LIST_ENTRY(it, struct put_rec, link);
        if (r->put_id == put_id)
            return r;
    }
    return NULL;
}

/* ---- ends ---- */

static void free_ctx(struct commit_ctx *ctx) {
    list_remove(&ctx->link);
    rpc_conn_unref(ctx->conn);
    share_give(&ctx->session->bound[BOUND_COMMITS], 1);
    slabpool_give(&ctx->svc->commits, ctx);
}

/* What waits for this put is told; every request gets its answer, once. */
static void cancel_commits(struct put_rec *r) {
    LIST_FOREACH_SAFE(&r->commits, it, tmp) {
        struct commit_ctx *ctx = LIST_ENTRY(it, struct commit_ctx, link);
        for (uint32_t i = 0; i < ctx->n; i++)
            if (ctx->items[i].waits)
                block_store_put_commit_cancel(&ctx->items[i].c);
        (void)rpc_conn_reply_error(ctx->conn, &ctx->hdr, ERR_CANCELED,
                                   "Commit: the put was aborted");
        free_ctx(ctx);
    }
    r->n_open = 0;
}

static void end_put(struct cachesvc *s, struct session *ss, struct put_rec *r) {
    struct store_put *p = block_store_put_find(ss->store, r->put_id);
    if (p)
        block_store_put_end(p);
    list_remove(&r->link);
    share_give(&ss->bound[BOUND_PUTS], 1);
    slabpool_give(&s->puts, r);
}

void svc_put_end_session(struct cachesvc *s, struct session *ss) {
    LIST_FOREACH_SAFE(&ss->puts, it, tmp) {
        struct put_rec *r = LIST_ENTRY(it, struct put_rec, link);
        cancel_commits(r);
        end_put(s, ss, r);
    }
}

/* ---- BEGIN ---- */

static int check_begin(const struct cachesvc *s, const struct msg_put_begin_req *m,
                       struct errbuf *eb) {
    if (m->n_ids == 0 || m->n_ids > s->cfg->max_put_blocks)
        return err_set(eb, m->n_ids ? ERR_TOOBIG : ERR_INVALID,
                       "Put: %zu blocks, 1 to %u are taken", m->n_ids, s->cfg->max_put_blocks);
    if (m->n_parents != m->n_ids || m->n_depths != m->n_ids || m->n_checksums != m->n_ids ||
        (m->block_flags.n != 0 && m->block_flags.n != m->n_ids) ||
        (m->origin_writers.n != 0 && m->origin_writers.n != m->n_ids * STORE_WRITER_BYTES) ||
        (m->n_origin_times_ms != 0 && m->n_origin_times_ms != m->n_ids))
        return err_set(eb, ERR_INVALID,
                       "Put: ids, parents, depths, checksums, flags and origins differ in number");
    return 0;
}

static void fill_blocks(const struct msg_put_begin_req *m, struct store_put_block *b) {
    for (size_t i = 0; i < m->n_ids; i++) {
        uint8_t flags = m->block_flags.n ? m->block_flags.p[i] : 0;
        b[i] = (struct store_put_block){
            .id = m->ids[i],
            .parent = m->parents[i],
            .depth = m->depths[i],
            .writer = m->origin_writers.n ? m->origin_writers.p + i * STORE_WRITER_BYTES : NULL,
            .time_ms = m->n_origin_times_ms ? m->origin_times_ms[i] : 0,
            .flags = flags & MSG_PUT_BF_PARENT_ELSEWHERE ? STORE_PUT_PARENT_ELSEWHERE : 0u,
            .checksum = m->checksums[i]};
    }
}

/* Puts that expired in the store leave their records behind; they go when the session's share is used up, so
 * that who never commits is stopped by its share alone, and for as long as its puts live. */
static struct put_rec *take_rec(struct cachesvc *s, struct session *ss) {
    struct share_user *u = &ss->bound[BOUND_PUTS];
    if (!share_may(u, 1))
        LIST_FOREACH_SAFE(&ss->puts, it, tmp) {
            struct put_rec *old = LIST_ENTRY(it, struct put_rec, link);
            if (old->n_open == 0 && !block_store_put_find(ss->store, old->put_id))
                end_put(s, ss, old);
        }
    if (!share_take(u, 1))
        return NULL;
    struct put_rec *r = slabpool_take(&s->puts);
    CHECK(r); /* the pool is as large as the bound */
    return r;
}

static void give_rec(struct cachesvc *s, struct session *ss, struct put_rec *r) {
    share_give(&ss->bound[BOUND_PUTS], 1);
    slabpool_give(&s->puts, r);
}

/* Two workers computed different bytes for one block: the numerics of one of them are broken. */
static void log_conflicts(struct cachesvc *s, struct rpc_call *call,
                          const struct msg_put_begin_req *m, const uint8_t *status) {
    uint32_t n = 0, first = 0;
    for (uint32_t i = 0; i < m->n_ids; i++)
        if (status[i] == STORE_PUT_CONFLICT && n++ == 0)
            first = i;
    if (n == 0)
        return;
    char hex[2 * BLOCK_ID_BYTES + 1];
    const struct session *ss = session_of(call->conn)->session;
    digest_hex(m->ids[first].b, BLOCK_ID_BYTES, hex);
    log_warn(s->log, "blocks were offered with other bytes than the resident ones",
             "session=%llu client=%s peer=%s blocks=%u first=%s trace=%s",
             (unsigned long long)ss->number, ss->name, rpc_conn_peer(call->conn), n, hex, s->trace);
}

int svc_put_begin(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct session *ss = session_of(call->conn)->session;
    struct msg_put_begin_req m;
    struct store_put_args a = {0};
    int rv = SVC_DECODE(call, put_begin_req, &m, eb);
    if (rv < 0)
        return rv;
    svc_note_trace(s, m.traceparent);
    rv = check_begin(s, &m, eb);
    if (rv == 0)
        rv = svc_check_ns(s, call, m.ns, &a.ns, eb);
    if (rv < 0)
        return rv;
    struct store_put_block *blocks = bump_alloc(call->scratch, m.n_ids * sizeof(*blocks));
    uint8_t *status = bump_alloc(call->scratch, m.n_ids);
    if (!blocks || !status)
        return ERR_TOOBIG;
    struct put_rec *r = take_rec(s, ss);
    if (!r)
        return session_refuse(ss, BOUND_PUTS, "Put", eb);
    fill_blocks(&m, blocks);
    a.blocks = blocks;
    a.n = (uint32_t)m.n_ids;
    a.group = m.group;
    memcpy(a.writer, m.writer.n == sizeof(a.writer) ? m.writer.p : ss->writer, sizeof(a.writer));
    struct store_put *p = NULL;
    rv = block_store_put_begin(ss->store, &a, status, &p, eb);
    if (rv < 0 || !p) {
        give_rec(s, ss, r);
        if (rv < 0)
            return err_wrap(eb, rv, "Put");
    } else {
        r->put_id = block_store_put_id(p);
        r->n = a.n;
        memcpy(r->begun, status, r->n);
        list_init(&r->commits);
        list_push_back(&ss->puts, &r->link);
    }
    log_conflicts(s, call, &m, status);
    struct msg_put_begin_res res = {.put_id = p ? block_store_put_id(p) : 0,
                                    .status = {status, m.n_ids},
                                    .ttl_ms = s->cfg->put_ttl_ms};
    return SVC_REPLY(call, put_begin_res, &res);
}

/* ---- DATA ---- */

/* The fill travels in the sink: payload pointer as ctx, the two numbers in u[]. */
static struct store_fill fill_of(const struct rpc_sink *sink) {
    return (struct store_fill){
        .payload = sink->ctx, .payload_bytes = (uint32_t)sink->u[0], .slot = (uint32_t)sink->u[1]};
}

int svc_put_sink(void *arg, struct rpc_call *call, struct rpc_sink *ret, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct session *ss = session_of(call->conn)->session;
    struct msg_put_data m;
    int rv = SVC_DECODE(call, put_data, &m, eb);
    if (rv < 0)
        return rv;
    struct store_put *p = block_store_put_find(ss->store, m.put_id);
    struct store_fill fill;
    if (!p)
        return err_set(eb, ERR_NOTFOUND, "PutData: no such put");
    rv = block_store_put_open(p, m.index, &fill);
    if (rv < 0)
        return err_set(eb, rv, "PutData: block %u is not awaited", m.index);
    if (fill.payload_bytes != call->hdr.payload_len) {
        block_store_put_unfilled(s->store, &fill);
        return err_set(eb, ERR_INVALID, "PutData: %u bytes, a block has %u", call->hdr.payload_len,
                       fill.payload_bytes);
    }
    ret->dst = fill.payload;
    ret->ctx = fill.payload;
    ret->u[0] = fill.payload_bytes;
    ret->u[1] = fill.slot;
    return 0;
}

/* With ONEWAY, as clients send it, COMMIT tells how it ended. */
int svc_put_data(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    if (!call->sink || !call->sink->ctx)
        return err_set(eb, ERR_INVALID, "PutData: no payload");
    struct store_fill fill = fill_of(call->sink);
    METRIC_INC(&s->met, put_block_total);
    METRIC_ADD(&s->met, put_bytes_total, fill.payload_bytes);
    int rv = block_store_put_filled(s->store, &fill);
    if (rv == ERR_CORRUPT)
        log_warn(s->log, "put payload does not match its checksum", "peer=%s",
                 rpc_conn_peer(call->conn));
    if (rv < 0)
        return err_set(eb, rv, "PutData: %s",
                       rv == ERR_CORRUPT ? "the bytes do not match the checksum"
                                         : "the block was aborted");
    return svc_reply_ack(call, 1);
}

void svc_put_sink_abort(void *arg, struct rpc_conn *c, struct rpc_sink *sink) {
    struct cachesvc *s = arg;
    (void)c;
    struct store_fill fill = fill_of(sink);
    block_store_put_unfilled(s->store, &fill);
}

/* ---- COMMIT, ABORT ---- */

/* All of ctx's blocks are decided. */
static void finish_commit(struct commit_ctx *ctx) {
    struct cachesvc *s = ctx->svc;
    struct put_rec *r = ctx->rec;
    struct bump *scratch;
    struct buf *out;
    rpc_server_scratch(s->rpc, &scratch, &out);
    struct msg_put_commit_res res = {.status = {ctx->status, ctx->n}};
    if (wire_msg_put_commit_res_encode(scratch, &res, out) == 0)
        (void)rpc_conn_reply(ctx->conn, &ctx->hdr, true, out->data, out->len, NULL);
    struct session *ss = ctx->session;
    free_ctx(ctx);
    if (--r->n_open == 0 && r->last)
        end_put(s, ss, r);
}

/* Why a block is visible, or is not. p is NULL when the put has gone. */
static uint8_t status_of(const struct put_rec *r, const struct store_put *p, uint32_t index,
                         bool is_done) {
    if (index >= r->n)
        return MSG_COMMIT_ABORTED;
    switch (r->begun[index]) {
    case STORE_PUT_CONFLICT:
        return MSG_COMMIT_CONFLICT;
    case STORE_PUT_BUSY:
        return MSG_COMMIT_NOSPACE;
    case STORE_PUT_WANTED:
        break;
    default:
        return is_done ? MSG_COMMIT_PRESENT : MSG_COMMIT_ABORTED;
    }
    if (is_done || !p)
        return is_done ? MSG_COMMIT_OK : MSG_COMMIT_ABORTED;
    switch (block_store_put_result(p, index)) {
    case 0: /* by an earlier commit */
        return MSG_COMMIT_PRESENT;
    case ERR_CORRUPT:
        return MSG_COMMIT_CORRUPT;
    case ERR_BUSY:
        return MSG_COMMIT_NOSPACE;
    default:
        return MSG_COMMIT_ABORTED;
    }
}

static void on_committed(void *arg, uint32_t n_done) {
    struct commit_item *item = arg;
    struct commit_ctx *ctx = item->ctx;
    size_t i = (size_t)(item - ctx->items);
    const struct store_put *p = block_store_put_find(ctx->session->store, ctx->rec->put_id);
    item->waits = false;
    ctx->status[i] = status_of(ctx->rec, p, ctx->index[i], n_done > 0);
    if (--ctx->n_waiting == 0)
        finish_commit(ctx);
}

static void commit_items(struct commit_ctx *ctx, struct store_put *p) {
    for (uint32_t i = 0; i < ctx->n; i++) {
        struct commit_item *item = &ctx->items[i];
        uint32_t done = 0;
        *item = (struct commit_item){.ctx = ctx};
        int rv =
            p ? block_store_put_commit(p, &item->c, &ctx->index[i], 1, &done, on_committed, item)
              : ERR_NOTFOUND;
        item->waits = rv == 0;
        ctx->n_waiting += rv == 0;
        if (rv != 0)
            ctx->status[i] = status_of(ctx->rec, p, ctx->index[i], rv == 1 && done);
    }
}

int svc_put_commit(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct session *ss = session_of(call->conn)->session;
    struct msg_put_commit_req m;
    int rv = SVC_DECODE(call, put_commit_req, &m, eb);
    if (rv < 0)
        return rv;
    struct put_rec *r = find_rec(ss, m.put_id);
    if (!r)
        return err_set(eb, ERR_NOTFOUND, "Commit: no such put");
    if (m.n_indexes > s->cfg->max_put_blocks)
        return err_set(eb, ERR_TOOBIG, "Commit: %zu blocks", m.n_indexes);
    if (!share_take(&ss->bound[BOUND_COMMITS], 1))
        return session_refuse(ss, BOUND_COMMITS, "Commit", eb);
    struct commit_ctx *ctx = slabpool_take(&s->commits);
    CHECK(ctx); /* the pool is as large as the bound */
    ctx->svc = s;
    ctx->session = ss;
    ctx->rec = r;
    ctx->conn = rpc_conn_ref(call->conn);
    ctx->hdr = call->hdr;
    ctx->n = (uint32_t)m.n_indexes;
    if (call->hdr.deadline_ms)
        ctx->deadline_ns = call->recv_ns + call->hdr.deadline_ms * NS_PER_MS;
    ctx->index = (uint32_t *)(void *)&ctx->items[s->cfg->max_put_blocks];
    ctx->status = (uint8_t *)&ctx->index[s->cfg->max_put_blocks];
    if (ctx->n) /* none, with `last`: the put ends, and there is no list to copy */
        memcpy(ctx->index, m.indexes, ctx->n * sizeof(*m.indexes));
    list_push_back(&r->commits, &ctx->link);
    r->n_open++;
    r->last |= m.last;
    ctx->n_waiting = 1; /* ours, so that no callback finishes ctx while it is being filled */
    commit_items(ctx, block_store_put_find(ss->store, m.put_id));
    if (--ctx->n_waiting == 0)
        finish_commit(ctx);
    return 0;
}

/* The commit stands: what still comes is made visible, until the put itself ends. */
static void expire(struct commit_ctx *ctx) {
    struct put_rec *r = ctx->rec;
    for (uint32_t i = 0; i < ctx->n; i++)
        if (ctx->items[i].waits)
            block_store_put_commit_cancel(&ctx->items[i].c);
    (void)rpc_conn_reply_error(ctx->conn, &ctx->hdr, ERR_TIMEOUT,
                               "Commit: payloads have not come; what comes is taken all the same");
    free_ctx(ctx);
    r->n_open--;
}

void svc_put_tick(struct cachesvc *s) {
    uint64_t now = clock_mono_ns(s->clk);
    LIST_FOREACH(&s->sessions.all, at) {
        struct session *ss = LIST_ENTRY(at, struct session, link);
        LIST_FOREACH(&ss->puts, it) {
            struct put_rec *r = LIST_ENTRY(it, struct put_rec, link);
            LIST_FOREACH_SAFE(&r->commits, cit, tmp) {
                struct commit_ctx *ctx = LIST_ENTRY(cit, struct commit_ctx, link);
                if (ctx->deadline_ns && now > ctx->deadline_ns)
                    expire(ctx);
            }
        }
    }
}

int svc_put_abort(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct session *ss = session_of(call->conn)->session;
    struct msg_put_abort_req m;
    int rv = SVC_DECODE(call, put_abort_req, &m, eb);
    if (rv < 0)
        return rv;
    struct put_rec *r = find_rec(ss, m.put_id);
    if (r) {
        cancel_commits(r);
        end_put(s, ss, r);
    }
    return svc_reply_ack(call, r != NULL);
}
