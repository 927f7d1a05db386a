#include "proto/kv_client_impl.h"

/* Splits the blocks i of [0, n) by owner into parts, in order of i. Returns the number of parts;
 * their n and idx are set, idx inside call->mem. */
static uint32_t split_by_owner(struct kv_client *c, const uint32_t *owner, uint32_t n,
                               uint32_t *count) {
    uint32_t n_parts = 0;
    memset(count, 0, c->cfg.n_addrs * sizeof(*count));
    for (uint32_t i = 0; i < n; i++)
        n_parts += count[owner[i]]++ == 0;
    return n_parts;
}

static void fill_parts(struct kv_call *call, const uint32_t *owner, uint32_t n,
                       const uint32_t *count) {
    struct kv_client *c = call->client;
    struct kv_part *of_node[KV_CLIENT_MAX_NODES] = {0};
    uint32_t *mem = call->mem, k = 0;
    for (uint32_t j = 0; j < c->cfg.n_addrs; j++) {
        if (!count[j])
            continue;
        struct kv_part *p = kv_part_init(call, k++, &c->nodes[j]);
        p->idx = mem;
        mem += count[j];
        of_node[j] = p;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct kv_part *p = of_node[owner[i]];
        p->idx[p->n++] = i;
    }
}

/* Ids of a part's blocks, gathered for the message; NULL when scratch is too small. */
static struct block_id *gather_ids(struct kv_part *p, const struct block_id *chain) {
    struct block_id *ids = bump_alloc(&p->call->client->scratch, p->n * sizeof(*ids));
    for (uint32_t i = 0; ids && i < p->n; i++)
        ids[i] = chain[p->idx[i]];
    return ids;
}

static void send_release(struct kv_client *c, struct kv_node *n, uint64_t lease_id, uint32_t used) {
    struct msg_release_req m = {.lease_id = lease_id, .used = used};
    struct buf *out = kv_client_out(c);
    if (wire_msg_release_req_encode(&c->scratch, &m, out) == 0)
        kv_client_oneway(c, kv_node_control(n), WIRE_RELEASE);
}

/* ---- lookup ---- */

static int send_lookup(struct kv_part *p) {
    struct kv_call *call = p->call;
    struct kv_client *c = call->client;
    const struct kv_lookup *q = &call->u.lookup.q;
    if (p->n > p->node->hello.max_ids)
        return ERR_TOOBIG;
    struct buf *out = kv_client_out(c);
    struct msg_lookup_req m = {.ns = p->node->ns_handle[q->ns],
                               .n_ids = p->n,
                               .ids = gather_ids(p, q->chain),
                               .flags = q->flags,
                               .traceparent = q->traceparent};
    while (m.have < p->n && p->idx[m.have] < q->have)
        m.have++;
    int rv = m.ids ? wire_msg_lookup_req_encode(&c->scratch, &m, out) : ERR_TOOBIG;
    return rv < 0 ? rv : kv_part_send(p, &p->req, kv_node_control(p->node), WIRE_LOOKUP);
}

static int on_lookup_frame(struct kv_part *p, struct kv_req *req, const struct wire_hdr *h,
                           const uint8_t *msg, struct rpc_sink *sink) {
    struct kv_call *call = p->call;
    struct msg_lookup_res m;
    (void)req, (void)sink;
    int rv = wire_msg_lookup_res_decode(&call->client->scratch, msg, h->msg_len, &m, NULL);
    if (rv < 0 || m.status.n != p->n)
        return ERR_PROTO;
    for (uint32_t i = 0; i < p->n; i++)
        call->bytes[p->idx[i]] = m.status.p[i];
    if (m.lease_id && kv_node_add_lease(p->node, m.lease_id) < 0)
        send_release(call->client, p->node, m.lease_id, 0);
    else if (m.lease_id) {
        struct kv_lease *l = &call->u.lookup.lease;
        l->part[l->n].node = p->node->index;
        l->part[l->n].epoch_tag = p->node->epoch_tag;
        l->part[l->n++].lease_id = m.lease_id;
    }
    kv_part_end(p, 0);
    return 0;
}

/* A failed node's blocks stay ABSENT, so its share is computed. A lease is worth nothing to a
 * caller that learns of an error only: it goes back. */
static void deliver_lookup(struct kv_call *call) {
    const struct kv_lookup *q = &call->u.lookup.q;
    struct kv_lease *lease = &call->u.lookup.lease;
    /* Nodes that failed are misses: worth an error only when nobody answered. */
    bool is_ended = call->rv == ERR_CANCELED || (call->rv == ERR_TIMEOUT && call->n_ok == 0);
    if (is_ended || call->n_ok == 0) {
        kv_client_release(call->client, lease, 0);
        call->u.lookup.cb(call->arg, call->rv, NULL);
        return;
    }
    struct kv_lookup_res res = {.status = call->bytes, .n = q->n, .lease = lease};
    while (res.n_prefix < q->n &&
           (res.n_prefix < q->have || call->bytes[res.n_prefix] == MSG_LOOKUP_RAM ||
            call->bytes[res.n_prefix] == MSG_LOOKUP_DISK))
        res.n_prefix++;
    call->u.lookup.cb(call->arg, 0, &res);
}

static const struct kv_call_ops lookup_ops = {.on_frame = on_lookup_frame,
                                              .deliver = deliver_lookup};

int kv_client_lookup(struct kv_client *c, const struct kv_lookup *q, kv_lookup_cb cb, void *arg,
                     struct kv_call **ret) {
    if (q->ns >= c->n_ns || q->n == 0 || q->n > WIRE_MAX_IDS)
        return ERR_INVALID;
    uint32_t count[KV_CLIENT_MAX_NODES];
    CLEANUP(freep) uint32_t *owner = alloc_array(q->n, sizeof(*owner));
    if (!owner)
        return ERR_NOMEM;
    int rv = kv_client_route(c, q->ns, q->chain, 0, q->n, owner);
    if (rv < 0)
        return rv;
    struct kv_call *call;
    rv = kv_call_new(c, &lookup_ops, split_by_owner(c, owner, q->n, count), q->deadline_ms, arg,
                     &call);
    if (rv < 0)
        return rv;
    call->u.lookup.q = *q;
    call->u.lookup.cb = cb;
    call->mem = alloc_array(q->n, sizeof(uint32_t));
    call->bytes = calloc(q->n, 1); /* MSG_LOOKUP_ABSENT */
    if (!call->mem || !call->bytes) {
        kv_call_free(call);
        return ERR_NOMEM;
    }
    kv_call_begin(call);
    fill_parts(call, owner, q->n, count);
    for (uint32_t i = 0; i < call->n_parts; i++) {
        rv = send_lookup(&call->parts[i]);
        if (rv < 0)
            kv_part_end(&call->parts[i], rv);
    }
    kv_call_started(call, ret);
    return 0;
}

/* ---- touch ---- */

/* Any answer is good: Touch is advice, its count is of no use here. */
static int on_ack_frame(struct kv_part *p, struct kv_req *req, const struct wire_hdr *h,
                        const uint8_t *msg, struct rpc_sink *sink) {
    (void)req, (void)h, (void)msg, (void)sink;
    kv_part_end(p, 0);
    return 0;
}

static void deliver_done(struct kv_call *call) {
    call->u.done.cb(call->arg, call->rv);
}

static const struct kv_call_ops touch_ops = {.on_frame = on_ack_frame, .deliver = deliver_done};

/* The deepest block of each chain that this node owns; in scratch. */
static int send_touch(struct kv_part *p, const struct kv_touch *q, uint32_t *const *owners) {
    struct kv_client *c = p->call->client;
    struct buf *out = kv_client_out(c);
    struct block_id *ids = bump_alloc(&c->scratch, q->n_chains * sizeof(*ids));
    struct msg_touch_req m = {.ns = p->node->ns_handle[q->ns], .ids = ids};
    for (uint32_t k = 0; ids && k < q->n_chains; k++) {
        uint32_t i = q->lens[k];
        while (i > 0 && owners[k][i - 1] != p->node->index)
            i--;
        if (i > 0)
            ids[m.n_ids++] = q->chains[k][i - 1];
    }
    int rv = ids ? wire_msg_touch_req_encode(&c->scratch, &m, out) : ERR_TOOBIG;
    return rv < 0 ? rv : kv_part_send(p, &p->req, kv_node_control(p->node), WIRE_TOUCH);
}

int kv_client_touch(struct kv_client *c, const struct kv_touch *q, kv_done_cb cb, void *arg,
                    struct kv_call **ret) {
    size_t total = 0;
    for (uint32_t k = 0; k < q->n_chains; k++)
        total += q->lens[k];
    if (q->ns >= c->n_ns || total == 0 || q->n_chains > WIRE_MAX_IDS)
        return ERR_INVALID;
    CLEANUP(freep) uint32_t *owner = alloc_array(total, sizeof(*owner));
    CLEANUP(freep) uint32_t **owners = alloc_array(q->n_chains, sizeof(*owners));
    if (!owner || !owners)
        return ERR_NOMEM;
    bool has_part[KV_CLIENT_MAX_NODES] = {0};
    uint32_t n_parts = 0, at = 0;
    for (uint32_t k = 0; k < q->n_chains; k++) {
        owners[k] = owner + at;
        int rv = kv_client_route(c, q->ns, q->chains[k], 0, q->lens[k], owners[k]);
        if (rv < 0)
            return rv;
        at += q->lens[k];
    }
    for (size_t i = 0; i < total; i++) {
        n_parts += !has_part[owner[i]];
        has_part[owner[i]] = true;
    }
    struct kv_call *call;
    int rv = kv_call_new(c, &touch_ops, n_parts, q->deadline_ms, arg, &call);
    if (rv < 0)
        return rv;
    call->u.done.cb = cb;
    kv_call_begin(call);
    for (uint32_t j = 0, k = 0; j < c->cfg.n_addrs; j++) {
        if (!has_part[j])
            continue;
        struct kv_part *p = kv_part_init(call, k++, &c->nodes[j]);
        rv = send_touch(p, q, owners);
        if (rv < 0)
            kv_part_end(p, rv);
    }
    kv_call_started(call, ret);
    return 0;
}

/* ---- release ---- */

/* Only to the session that granted it: after a reconnect the node has released everything
 * itself. */
void kv_client_release(struct kv_client *c, const struct kv_lease *lease, uint32_t used) {
    for (uint32_t i = 0; i < lease->n && !c->is_closing; i++) {
        struct kv_node *n = &c->nodes[lease->part[i].node];
        /* A lease ended with its session. */
        if (n->state != KV_NODE_UP || n->epoch_tag != lease->part[i].epoch_tag)
            continue;
        send_release(c, n, lease->part[i].lease_id, used);
        kv_node_drop_lease(n, lease->part[i].lease_id);
    }
}

void kv_lookup_late(struct kv_client *c, struct kv_link *l, const struct wire_hdr *h,
                    const uint8_t *msg) {
    struct msg_lookup_res m;
    if (wire_msg_lookup_res_decode(&c->scratch, msg, h->msg_len, &m, NULL) == 0 && m.lease_id)
        send_release(c, l->node, m.lease_id, 0);
}
