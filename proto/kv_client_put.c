#include "proto/kv_client_impl.h"

/* A part is one node's share of a put, at most PART_BLOCKS of it (nodes bound the blocks of one
 * BEGIN; BEGINs of a session are handled in order, and a parent that is still filling is a normal
 * parent):
 *
 *   BEGIN (control) -> statuses -> PutData for each wanted block (data connections, round robin,
 * as their
 *   queues have room) and, after every COMMIT_GROUP blocks, COMMIT (control), which waits at the
 * node for the
 *   payloads it names -> all COMMITs answered -> end
 *
 * The payload's memory is the caller's: whatever ends the part, queued frames are dropped first
 * and a half sent one goes on from a copy. */

#define PART_BLOCKS 128u
#define COMMIT_GROUP 8u
#define UNDECIDED 1 /* in status[], which else has 0 and errors */

static const struct kv_put *query(const struct kv_part *p) {
    return &p->call->u.put.q;
}

static void decide(struct kv_part *p, uint32_t local, int rv) {
    int *st = &p->call->u.put.status[p->idx[local]];
    if (*st == UNDECIDED)
        *st = rv;
}

static void no_release(struct buf *b) {
    (void)b; /* the memory is the caller's; the buffer lies in the call */
}

/* ---- ends ---- */

/* No byte of the caller is read after this: queued frames are dropped on every data connection,
 * the half sent one is detached from its source. */
static void let_go(struct kv_part *p) {
    struct kv_node *n = p->node;
    list_remove(&p->putting);
    for (uint32_t i = 0; i < p->n_commits; i++)
        kv_req_forget(&p->commits[i]);
    if (p->epoch_tag != n->epoch_tag)
        return; /* its connections are closed, their queues gone */
    int rv = 0;
    for (uint32_t i = 1; i < n->n_links && rv == 0; i++)
        if (n->links[i].conn)
            rv = rpc_conn_drop_queued(n->links[i].conn, p->data_id);
    if (rv < 0)
        kv_node_fail(n, rv, "put: no memory to finish a frame");
}

static void send_abort(struct kv_client *c, struct kv_node *n, uint64_t put_id) {
    struct msg_put_abort_req m = {.put_id = put_id};
    struct buf *out = kv_client_out(c);
    if (kv_node_control(n) && wire_msg_put_abort_req_encode(&c->scratch, &m, out) == 0)
        kv_client_oneway(c, kv_node_control(n), WIRE_PUT_ABORT);
}

static void on_put_part_end(struct kv_part *p, int rv) {
    for (uint32_t i = 0; i < p->n; i++)
        decide(p, i, rv < 0 ? rv : ERR_CANCELED);
    let_go(p);
}

static void on_put_abandon(struct kv_part *p) {
    if (p->put_id && p->epoch_tag == p->node->epoch_tag)
        send_abort(p->call->client, p->node, p->put_id);
    let_go(p);
}

/* The put is over when every wanted block is sent and every COMMIT answered. */
static void check_done(struct kv_part *p) {
    if (p->n_sent == p->n_wanted && p->n_commits_open == 0)
        kv_part_end(p, 0);
}

/* ---- sending ---- */

/* One block as one frame, straight from the caller's page. BUSY leaves the block for the next
 * pump. */
static int send_block(struct kv_part *p, struct rpc_conn *conn) {
    struct kv_client *c = p->call->client;
    const struct kv_put *q = query(p);
    uint32_t local = p->wanted[p->n_sent], i = p->idx[local];
    const struct kv_ns *ns = p->call->u.put.ns;
    struct msg_put_data m = {.put_id = p->put_id,
                             .index = local,
                             .n_range_checksums = ns->def.n_ranges,
                             .range_checksums = q->range_checksums[i]};
    struct buf *out = kv_client_out(c);
    int rv = wire_msg_put_data_encode(&c->scratch, &m, out);
    if (rv < 0)
        return rv;
    struct buf *b = &p->bufs[p->n_sent];
    buf_init_extern(b, (void *)(uintptr_t)q->payload[i], ns->payload_bytes, no_release, NULL);
    struct wire_hdr h = {.method = WIRE_PUT_DATA, .request_id = p->data_id, .flags = WIRE_F_ONEWAY};
    rv = rpc_conn_send(conn, &h, out->data, out->len, b);
    if (rv == 0)
        p->call->u.put.res.bytes_sent += ns->payload_bytes;
    return rv;
}

/* COMMIT for wanted[first .. n_sent). */
static int send_commit(struct kv_part *p, uint32_t first) {
    struct kv_client *c = p->call->client;
    struct msg_put_commit_req m = {.put_id = p->put_id,
                                   .indexes = p->wanted + first,
                                   .n_indexes = p->n_sent - first,
                                   .last = p->n_sent == p->n_wanted};
    struct buf *out = kv_client_out(c);
    struct kv_req *req = &p->commits[p->n_commits];
    req->first = first;
    req->count = p->n_sent - first;
    int rv = wire_msg_put_commit_req_encode(&c->scratch, &m, out);
    if (rv == 0)
        rv = kv_part_send(p, req, kv_node_control(p->node), WIRE_PUT_COMMIT);
    if (rv < 0)
        return rv;
    p->n_commits++;
    p->n_commits_open++;
    return 0;
}

/* As much as the queues take. < 0: the part cannot go on. */
static int pump_part(struct kv_part *p) {
    struct kv_node *n = p->node;
    uint32_t n_data = kv_node_n_data(n);
    while (p->n_sent < p->n_wanted) {
        struct rpc_conn *conn = n->links[1 + p->n_sent % n_data].conn;
        if (!rpc_conn_writable(conn))
            return 0;
        int rv = send_block(p, conn);
        if (rv == ERR_BUSY)
            return 0;
        if (rv < 0)
            return rv;
        p->n_sent++;
        uint32_t in_group = (p->n_sent - 1) % COMMIT_GROUP + 1;
        if (in_group == COMMIT_GROUP || p->n_sent == p->n_wanted)
            rv = send_commit(p, p->n_sent - in_group);
        if (rv < 0)
            return rv;
    }
    list_remove(&p->putting);
    return 0;
}

/* The node is told to drop its slots at once instead of after its timeout. */
static void fail_part(struct kv_part *p, int rv) {
    send_abort(p->call->client, p->node, p->put_id);
    kv_part_end(p, rv);
}

/* Room on some data connection. Parts are served in order of their BEGINs: children follow
 * parents. */
void kv_put_pump(struct kv_node *n) {
    if (n->state != KV_NODE_UP)
        return;
    LIST_FOREACH_SAFE(&n->putting, it, tmp) {
        struct kv_part *p = LIST_ENTRY(it, struct kv_part, putting);
        int rv = pump_part(p);
        if (rv < 0)
            fail_part(p, rv);
    }
}

/* ---- answers ---- */

static int begin_status_to_err(uint8_t st) {
    switch (st) {
    case MSG_PUT_PRESENT:
    case MSG_PUT_IN_FLIGHT: /* somebody else is storing the same bytes */
        return ERR_EXISTS;
    case MSG_PUT_CONFLICT:
        return ERR_CONFLICT;
    case MSG_PUT_BUSY:
        return ERR_BUSY;
    default:
        return ERR_INVALID;
    }
}

static int commit_status_to_err(uint8_t st) {
    switch (st) {
    case MSG_COMMIT_OK:
        return 0;
    case MSG_COMMIT_PRESENT:
        return ERR_EXISTS;
    case MSG_COMMIT_CORRUPT:
        return ERR_CORRUPT;
    case MSG_COMMIT_CONFLICT:
        return ERR_CONFLICT;
    case MSG_COMMIT_NOSPACE:
        return ERR_NOSPACE;
    default:
        return ERR_CANCELED;
    }
}

/* The node has reserved slots for what it wants; the rest is decided already. */
static int on_begin_answer(struct kv_part *p, const struct wire_hdr *h, const uint8_t *msg) {
    struct msg_put_begin_res m;
    int rv = wire_msg_put_begin_res_decode(&p->call->client->scratch, msg, h->msg_len, &m, NULL);
    if (rv < 0 || m.status.n != p->n)
        return ERR_PROTO;
    p->put_id = m.put_id;
    for (uint32_t i = 0; i < p->n; i++) {
        if (m.status.p[i] == MSG_PUT_WANTED)
            p->wanted[p->n_wanted++] = i;
        else
            decide(p, i, begin_status_to_err(m.status.p[i]));
    }
    if (p->n_wanted > 0 && p->put_id == 0)
        return ERR_PROTO;
    if (p->n_wanted == 0) {
        kv_part_end(p, 0);
        return 0;
    }
    list_push_back(&p->node->putting, &p->putting);
    rv = pump_part(p);
    if (rv < 0)
        fail_part(p, rv);
    return 0;
}

/* These blocks are visible to everybody now, or never will be. */
static int on_commit_answer(struct kv_part *p, struct kv_req *req, const struct wire_hdr *h,
                            const uint8_t *msg) {
    struct msg_put_commit_res m;
    int rv = wire_msg_put_commit_res_decode(&p->call->client->scratch, msg, h->msg_len, &m, NULL);
    if (rv < 0 || m.status.n != req->count)
        return ERR_PROTO;
    for (uint32_t i = 0; i < req->count; i++)
        decide(p, p->wanted[req->first + i], commit_status_to_err(m.status.p[i]));
    p->n_commits_open--;
    check_done(p);
    return 0;
}

static int on_put_frame(struct kv_part *p, struct kv_req *req, const struct wire_hdr *h,
                        const uint8_t *msg, struct rpc_sink *sink) {
    (void)sink;
    return req == &p->req ? on_begin_answer(p, h, msg) : on_commit_answer(p, req, h, msg);
}

/* A refused COMMIT costs its group only; later groups may still be taken. */
static void on_put_error(struct kv_part *p, struct kv_req *req, int rv) {
    if (req == &p->req) {
        kv_part_end(p, rv);
        return;
    }
    for (uint32_t i = 0; i < req->count; i++)
        decide(p, p->wanted[req->first + i], rv);
    p->n_commits_open--;
    check_done(p);
}

/* What no answer decided takes the call's own end. */
static void deliver_put(struct kv_call *call) {
    struct kv_put_res *res = &call->u.put.res;
    int *status = call->u.put.status;
    for (uint32_t i = 0; i < call->u.put.q.n; i++) {
        if (status[i] == UNDECIDED)
            status[i] = call->rv < 0 ? call->rv : ERR_CANCELED;
        res->n_stored += status[i] == 0;
        res->n_present += status[i] == ERR_EXISTS;
        res->n_conflict += status[i] == ERR_CONFLICT;
    }
    res->status = status;
    call->u.put.cb(call->arg, call->rv, res);
}

static const struct kv_call_ops put_ops = {.on_frame = on_put_frame,
                                           .on_error = on_put_error,
                                           .on_part_end = on_put_part_end,
                                           .on_abandon = on_put_abandon,
                                           .deliver = deliver_put};

void kv_put_late(struct kv_client *c, struct kv_link *l, const struct wire_hdr *h,
                 const uint8_t *msg) {
    struct msg_put_begin_res m;
    if (wire_msg_put_begin_res_decode(&c->scratch, msg, h->msg_len, &m, NULL) == 0 && m.put_id)
        send_abort(c, l->node, m.put_id);
}

/* ---- starting ---- */

/* The columns of BEGIN, in scratch. */
struct begin_cols {
    struct block_id *ids, *parents;
    uint32_t *depths;
    uint64_t *checksums;
    uint8_t *flags;
};

static bool take_cols(struct bump *b, uint32_t n, struct begin_cols *ret) {
    ret->ids = bump_alloc(b, n * sizeof(*ret->ids));
    ret->parents = bump_alloc(b, n * sizeof(*ret->parents));
    ret->depths = bump_alloc(b, n * sizeof(*ret->depths));
    ret->checksums = bump_alloc(b, n * sizeof(*ret->checksums));
    ret->flags = bump_alloc(b, n);
    return ret->ids && ret->parents && ret->depths && ret->checksums && ret->flags;
}

/* before: owner of each block's parent (of the first block: any number when it is block 0). */
static int send_begin(struct kv_part *p, const uint32_t *before) {
    struct kv_client *c = p->call->client;
    const struct kv_put *q = query(p);
    struct begin_cols col;
    if (p->n > p->node->hello.max_ids)
        return ERR_TOOBIG;
    struct buf *out = kv_client_out(c);
    if (!take_cols(&c->scratch, p->n, &col))
        return ERR_TOOBIG;
    for (uint32_t k = 0; k < p->n; k++) {
        uint32_t i = p->idx[k], depth = q->first + i;
        col.ids[k] = q->chain[depth];
        col.parents[k] = depth ? q->chain[depth - 1] : (struct block_id){0};
        col.depths[k] = depth;
        col.checksums[k] = q->checksum[i];
        col.flags[k] = depth && before[i] != p->node->index ? MSG_PUT_BF_PARENT_ELSEWHERE : 0;
    }
    struct msg_put_begin_req m = {.ns = p->node->ns_handle[q->ns],
                                  .n_ids = p->n,
                                  .n_parents = p->n,
                                  .n_depths = p->n,
                                  .n_checksums = p->n,
                                  .ids = col.ids,
                                  .parents = col.parents,
                                  .depths = col.depths,
                                  .checksums = col.checksums,
                                  .block_flags = {col.flags, p->n},
                                  .group = q->group,
                                  .priority = q->urgent,
                                  .traceparent = q->traceparent};
    int rv = wire_msg_put_begin_req_encode(&c->scratch, &m, out);
    return rv < 0 ? rv : kv_part_send(p, &p->req, kv_node_control(p->node), WIRE_PUT_BEGIN);
}

/* Memory for the parts, cut off piece by piece. */
struct put_mem {
    struct buf *bufs;
    struct kv_req *commits;
    uint32_t *idx;
};

static struct kv_part *cut_part(struct kv_call *call, uint32_t k, struct kv_node *node, uint32_t n,
                                struct put_mem *mem) {
    struct kv_part *p = kv_part_init(call, k, node);
    p->bufs = mem->bufs;
    p->commits = mem->commits;
    p->idx = mem->idx;
    p->wanted = mem->idx + n;
    p->data_id = call->client->next_id++;
    mem->bufs += n;
    mem->commits += n / COMMIT_GROUP + 1;
    mem->idx += 2 * n;
    return p;
}

/* Everything that the parts need, in one piece: bufs, commits, idx and wanted for n blocks in all.
 * Within a node the chain's order is kept from part to part. */
static int build_parts(struct kv_call *call, const uint32_t *owner, const uint32_t *count) {
    struct kv_client *c = call->client;
    uint32_t n = call->u.put.q.n, left[KV_CLIENT_MAX_NODES], n_parts = 0;
    size_t n_commits = n / COMMIT_GROUP + call->n_parts;
    call->mem = calloc(1, n * (sizeof(struct buf) + 2 * sizeof(uint32_t)) +
                              n_commits * sizeof(struct kv_req));
    call->u.put.status = alloc_array(n, sizeof(int));
    call->bytes = (uint8_t *)call->u.put.status;
    if (!call->mem || !call->bytes)
        return ERR_NOMEM;
    struct put_mem mem = {.bufs = call->mem};
    mem.commits = (struct kv_req *)(void *)(mem.bufs + n);
    mem.idx = (uint32_t *)(void *)(mem.commits + n_commits);
    struct kv_part *of[KV_CLIENT_MAX_NODES] = {0};
    memcpy(left, count, sizeof(left));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t o = owner[i];
        call->u.put.status[i] = UNDECIDED;
        if (!of[o] || of[o]->n == PART_BLOCKS) {
            uint32_t part_n = MIN(left[o], PART_BLOCKS);
            of[o] = cut_part(call, n_parts++, &c->nodes[o], part_n, &mem);
            left[o] -= part_n;
        }
        of[o]->idx[of[o]->n++] = i;
    }
    CHECK(n_parts == call->n_parts);
    return 0;
}

/* Blocks a node, and the parts they make. ERR_INVALID without data connections. */
static int count_parts(struct kv_client *c, const uint32_t *owner, uint32_t n, uint32_t *count,
                       uint32_t *ret_parts) {
    *ret_parts = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (kv_node_n_data(&c->nodes[owner[i]]) == 0)
            return ERR_INVALID;
        *ret_parts += count[owner[i]]++ % PART_BLOCKS == 0;
    }
    return 0;
}

int kv_client_put(struct kv_client *c, const struct kv_put *q, kv_put_cb cb, void *arg,
                  struct kv_call **ret) {
    if (q->ns >= c->n_ns || q->n == 0 || q->n > WIRE_MAX_IDS)
        return ERR_INVALID;
    /* With the parent of the first block, whose owner decides about parent_elsewhere. */
    uint32_t n_before = q->first > 0;
    CLEANUP(freep) uint32_t *owner = alloc_array(q->n + 1, sizeof(*owner));
    if (!owner)
        return ERR_NOMEM;
    int rv = kv_client_route(c, q->ns, q->chain, q->first - n_before, q->n + n_before,
                             owner + 1 - n_before);
    uint32_t n_parts, count[KV_CLIENT_MAX_NODES] = {0};
    if (rv == 0)
        rv = count_parts(c, owner + 1, q->n, count, &n_parts);
    struct kv_call *call = NULL;
    if (rv == 0)
        rv = kv_call_new(c, &put_ops, n_parts, q->deadline_ms, arg, &call);
    if (rv < 0)
        return rv;
    call->u.put.q = *q;
    call->u.put.cb = cb;
    call->u.put.ns = &c->ns[q->ns];
    rv = build_parts(call, owner + 1, count);
    if (rv < 0) {
        kv_call_free(call);
        return rv;
    }
    kv_call_begin(call);
    for (uint32_t k = 0; k < call->n_parts; k++) {
        rv = send_begin(&call->parts[k], owner);
        if (rv < 0)
            kv_part_end(&call->parts[k], rv);
    }
    kv_call_started(call, ret);
    return 0;
}
