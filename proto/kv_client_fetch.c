#include "proto/kv_client_impl.h"

#include "common/checksum.h"

/* A part is what one data connection of one node brings: blocks of a node go round robin over its
 * data connections. Each range (layer) is compared with its checksum as soon as it is whole, while
 * its bytes are still in the CPU's cache. All sums of a block come with it, also when few of its ranges do:
 * its checksum is over all of them. */

static const struct kv_fetch *query(const struct kv_part *p) {
    return &p->call->u.fetch.q;
}

/* Block i of the part has its final status. */
static void report(struct kv_part *p, uint32_t i, int rv) {
    struct kv_call *call = p->call;
    struct kv_fetch_res *res = &call->u.fetch.res;
    if (call->bytes[p->idx[i]])
        return;
    call->bytes[p->idx[i]] = 1;
    if (rv == 0) {
        res->n_ok++;
        res->bytes += call->u.fetch.part_bytes;
    } else if (rv == ERR_CORRUPT) {
        res->n_corrupt++;
    } else {
        res->n_miss++;
    }
    if (query(p)->on_block)
        query(p)->on_block(call->arg, p->idx[i], rv);
}

/* The part ended before all its blocks had a status. A callback may cancel the call: then no
 * more. */
static void report_rest(struct kv_part *p, int rv) {
    for (uint32_t i = 0; i < p->n && !p->call->is_finished; i++)
        report(p, i, rv);
}

/* ---- receiving a block ---- */

/* Called for each piece of a payload as it arrives. A wrong range does not stop the transfer: the
 * next block comes behind it on the same connection. */
static void on_payload_part(struct rpc_sink *s, size_t got) {
    struct kv_part *p = s->ctx;
    const uint32_t *range_sizes = p->call->u.fetch.ns->def.range_sizes;
    while (p->n_checked < p->call->u.fetch.end_range) {
        uint32_t size = range_sizes[p->n_checked];
        if (p->checked_bytes + size > got)
            break;
        if (checksum_xxh3(s->dst + p->checked_bytes, size) != p->sums[p->n_checked])
            p->is_bad = true;
        p->checked_bytes += size;
        p->n_checked++;
    }
}

/* A block is about to arrive. Everything the node says about it is checked before a byte of the
 * caller's memory is touched: index, sizes, and that it was not delivered before. */
static int on_fetch_head(struct kv_part *p, const struct wire_hdr *h, const uint8_t *msg,
                         struct rpc_sink *ret) {
    const struct kv_fetch *q = query(p);
    const struct kv_namespace *ns = &p->call->u.fetch.ns->def;
    struct msg_fetch_block m;
    int rv = wire_msg_fetch_block_decode(&p->call->client->scratch, msg, h->msg_len, &m, NULL);
    if (rv < 0 || m.status != MSG_FETCH_OK || m.index >= p->n ||
        h->payload_len != p->call->u.fetch.part_bytes || m.n_range_checksums != ns->n_ranges ||
        m.first_range != q->first_range)
        return ERR_PROTO;
    uint32_t i = p->idx[m.index];
    if (p->call->bytes[i])
        return ERR_PROTO; /* twice: the caller may read it already */
    memcpy(p->sums, m.range_checksums, ns->n_ranges * sizeof(*p->sums));
    p->at = m.index;
    p->n_checked = q->first_range;
    p->checked_bytes = 0;
    /* The block checksum ties the sums to the id: another block's bytes with their own sums are bad. */
    p->is_bad = checksum_of_sums(p->sums, ns->n_ranges, q->chain[q->first + i].b) != m.checksum;
    ret->dst = q->dst[i];
    ret->part = on_payload_part;
    ret->ctx = p;
    return 0;
}

static int status_to_err(uint32_t status) {
    switch (status) {
    case MSG_FETCH_BUSY:
        return ERR_BUSY;
    case MSG_FETCH_CORRUPT:
        return ERR_CORRUPT;
    case MSG_FETCH_CANCELED:
        return ERR_CANCELED;
    default:
        return ERR_NOTFOUND;
    }
}

/* A frame without payload: blocks that will not come, or the bare end of the stream. */
static int on_statuses(struct kv_part *p, const struct wire_hdr *h, const uint8_t *msg) {
    struct msg_fetch_block m;
    int rv = wire_msg_fetch_block_decode(&p->call->client->scratch, msg, h->msg_len, &m, NULL);
    if (rv < 0 || m.index > p->n || m.count > p->n - m.index ||
        (m.count > 0 && m.status == MSG_FETCH_OK))
        return ERR_PROTO;
    for (uint32_t i = 0; i < m.count && !p->call->is_finished; i++)
        report(p, m.index + i, status_to_err(m.status));
    return 0;
}

static int on_fetch_frame(struct kv_part *p, struct kv_req *req, const struct wire_hdr *h,
                          const uint8_t *msg, struct rpc_sink *sink) {
    (void)req;
    if (h->payload_len > 0) {
        bool is_whole = p->n_checked == p->call->u.fetch.end_range && sink->dst;
        report(p, p->at, is_whole && !p->is_bad ? 0 : ERR_CORRUPT);
    } else {
        int rv = on_statuses(p, h, msg);
        if (rv < 0)
            return rv;
    }
    if (h->flags & WIRE_F_END)
        kv_part_end(p, 0);
    return 0;
}

/* ---- ends ---- */

static void on_fetch_part_end(struct kv_part *p, int rv) {
    /* Inside kv_client_fetch() nothing is called back: deliver() does it. */
    if (!p->call->is_starting && !p->call->is_finished)
        report_rest(p, rv < 0 ? rv : ERR_NOTFOUND);
}

/* Cancel goes to the connection that the Fetch went to: in order behind it, and the node names
 * requests by connection. */
static void on_fetch_abandon(struct kv_part *p) {
    struct kv_client *c = p->call->client;
    struct rpc_conn *conn = p->req.conn;
    if (!conn)
        return;
    rpc_conn_redirect(conn, p); /* from now on the caller's memory is left alone */
    struct msg_cancel_req m = {.request_id = p->req.id};
    struct buf *out = kv_client_out(c);
    if (wire_msg_cancel_req_encode(&c->scratch, &m, out) == 0)
        kv_client_oneway(c, conn, WIRE_CANCEL);
}

/* Blocks that ended while the call was being started have no status yet: callbacks from inside a
 * call are forbidden, so they get it here. */
static void deliver_fetch(struct kv_call *call) {
    bool is_ended = call->rv == ERR_CANCELED || call->rv == ERR_TIMEOUT;
    for (uint32_t i = 0; i < call->n_parts && !is_ended; i++)
        for (uint32_t k = 0; k < call->parts[i].n; k++)
            report(&call->parts[i], k, call->rv < 0 ? call->rv : ERR_NOTFOUND);
    call->u.fetch.cb(call->arg, call->rv, &call->u.fetch.res);
}

static const struct kv_call_ops fetch_ops = {.on_head = on_fetch_head,
                                             .on_frame = on_fetch_frame,
                                             .on_part_end = on_fetch_part_end,
                                             .on_abandon = on_fetch_abandon,
                                             .deliver = deliver_fetch};

/* ---- starting ---- */

static int send_fetch(struct kv_part *p, struct rpc_conn *conn) {
    struct kv_client *c = p->call->client;
    const struct kv_fetch *q = query(p);
    if (p->n > p->node->hello.max_ids)
        return ERR_TOOBIG;
    struct buf *out = kv_client_out(c);
    struct block_id *ids = bump_alloc(&c->scratch, p->n * sizeof(*ids));
    for (uint32_t i = 0; ids && i < p->n; i++)
        ids[i] = q->chain[q->first + p->idx[i]];
    struct msg_fetch_req m = {.ns = p->node->ns_handle[q->ns],
                              .n_ids = p->n,
                              .ids = ids,
                              .first_range = q->first_range,
                              .n_ranges = q->n_ranges,
                              .traceparent = q->traceparent};
    int rv = ids ? wire_msg_fetch_req_encode(&c->scratch, &m, out) : ERR_TOOBIG;
    return rv < 0 ? rv : kv_part_send(p, &p->req, conn, WIRE_FETCH);
}

struct fetch_plan {
    uint32_t n_parts, n_wanted;
    uint16_t count[KV_CLIENT_MAX_NODES][KV_CLIENT_MAX_DATA_CONNS];
};

/* Which (node, data connection) brings block i; -1: it is skipped. */
static int plan_fetch(struct kv_client *c, const struct kv_fetch *q, const uint32_t *owner,
                      int32_t *slot, struct fetch_plan *plan) {
    uint32_t turn[KV_CLIENT_MAX_NODES] = {0};
    for (uint32_t i = 0; i < q->n; i++) {
        uint32_t n_data = kv_node_n_data(&c->nodes[owner[i]]);
        slot[i] = -1;
        if (!q->dst[i])
            continue;
        if (n_data == 0)
            return ERR_INVALID;
        uint32_t k = turn[owner[i]]++ % n_data;
        slot[i] = (int32_t)(owner[i] * KV_CLIENT_MAX_DATA_CONNS + k);
        plan->n_parts += plan->count[owner[i]][k]++ == 0;
        plan->n_wanted++;
    }
    return plan->n_wanted ? 0 : ERR_INVALID;
}

/* Parts with their index lists and sums, all inside call->mem. */
static int build_parts(struct kv_call *call, const int32_t *slot, const struct fetch_plan *plan,
                       struct rpc_conn **conns) {
    struct kv_client *c = call->client;
    const struct kv_fetch *q = &call->u.fetch.q;
    size_t sums_n = (size_t)plan->n_parts * call->u.fetch.ns->def.n_ranges;
    call->mem = calloc(1, sums_n * sizeof(uint64_t) + plan->n_wanted * sizeof(uint32_t));
    call->bytes = calloc(q->n, 1);
    if (!call->mem || !call->bytes)
        return ERR_NOMEM;
    uint64_t *sums = call->mem;
    uint32_t *idx = (uint32_t *)(void *)(sums + sums_n);
    struct kv_part *of[KV_CLIENT_MAX_NODES * KV_CLIENT_MAX_DATA_CONNS] = {0};
    for (uint32_t s = 0, k = 0; s < ARRAY_LEN(of); s++) {
        uint32_t node = s / KV_CLIENT_MAX_DATA_CONNS, d = s % KV_CLIENT_MAX_DATA_CONNS;
        if (!plan->count[node][d])
            continue;
        conns[k] = c->nodes[node].links[1 + d].conn;
        of[s] = kv_part_init(call, k++, &c->nodes[node]);
        of[s]->idx = idx;
        of[s]->sums = sums;
        idx += plan->count[node][d];
        sums += call->u.fetch.ns->def.n_ranges;
    }
    for (uint32_t i = 0; i < q->n; i++)
        if (slot[i] >= 0)
            of[slot[i]]->idx[of[slot[i]]->n++] = i;
    return 0;
}

/* The ranges that q names: one behind the last, or 0 when there are none such. */
static uint32_t end_range(const struct kv_fetch *q, const struct kv_namespace *ns) {
    if (q->first_range >= ns->n_ranges || q->n_ranges > ns->n_ranges - q->first_range)
        return 0;
    return q->n_ranges ? q->first_range + q->n_ranges : ns->n_ranges;
}

int kv_client_fetch(struct kv_client *c, const struct kv_fetch *q, kv_fetch_cb cb, void *arg,
                    struct kv_call **ret) {
    if (q->ns >= c->n_ns || q->n == 0 || q->n > WIRE_MAX_IDS || !end_range(q, &c->ns[q->ns].def))
        return ERR_INVALID;
    CLEANUP(freep) uint32_t *owner = alloc_array(q->n, sizeof(*owner));
    CLEANUP(freep) int32_t *slot = alloc_array(q->n, sizeof(*slot));
    struct fetch_plan plan = {0};
    if (!owner || !slot)
        return ERR_NOMEM;
    int rv = kv_client_route(c, q->ns, q->chain, q->first, q->n, owner);
    if (rv == 0)
        rv = plan_fetch(c, q, owner, slot, &plan);
    struct kv_call *call = NULL;
    if (rv == 0)
        rv = kv_call_new(c, &fetch_ops, plan.n_parts, q->deadline_ms, arg, &call);
    if (rv < 0)
        return rv;
    call->u.fetch.q = *q;
    call->u.fetch.cb = cb;
    call->u.fetch.ns = &c->ns[q->ns];
    call->u.fetch.end_range = end_range(q, &c->ns[q->ns].def);
    for (uint32_t i = q->first_range; i < call->u.fetch.end_range; i++)
        call->u.fetch.part_bytes += c->ns[q->ns].def.range_sizes[i];
    struct rpc_conn *conns[KV_CLIENT_MAX_NODES * KV_CLIENT_MAX_DATA_CONNS];
    rv = build_parts(call, slot, &plan, conns);
    if (rv < 0) {
        kv_call_free(call);
        return rv;
    }
    kv_call_begin(call);
    for (uint32_t k = 0; k < call->n_parts; k++) {
        rv = send_fetch(&call->parts[k], conns[k]);
        if (rv < 0)
            kv_part_end(&call->parts[k], rv);
    }
    kv_call_started(call, ret);
    return 0;
}
