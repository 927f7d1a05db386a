#include "proto/kv_client_impl.h"

#include "common/secret.h"

#define SCRATCH_BYTES (4u << 20)

/* ---- open and close ---- */

static void ns_free(struct kv_ns *ns) {
    free((void *)(uintptr_t)ns->def.descriptor);
    free((void *)(uintptr_t)ns->def.range_sizes);
}

/* Everything that is not a uv handle. */
static void client_free(struct kv_client *c) {
    for (uint32_t i = 0; c->nodes && i < c->cfg.n_addrs; i++)
        kv_node_free(&c->nodes[i]);
    for (uint32_t i = 0; i < c->n_ns; i++)
        ns_free(&c->ns[i]);
    free(c->nodes);
    secret_free((void *)(uintptr_t)c->cfg.token, c->cfg.token_len + 1);
    free((void *)(uintptr_t)c->cfg.name);
    free((void *)(uintptr_t)c->cfg.writer);
    free((void *)(uintptr_t)c->cfg.tcp_congestion);
    bump_fini(&c->scratch);
    buf_unref(c->out);
    free(c);
}

static void *copy_bytes(const void *p, size_t n) {
    void *q = p ? malloc(n ? n : 1) : NULL;
    if (q && n)
        memcpy(q, p, n);
    return q;
}

/* Defaults, and copies of what cfg points to. */
static int copy_cfg(struct kv_client *c, const struct kv_client_cfg *cfg) {
    c->cfg = *cfg;
    c->cfg.addrs = NULL;
    c->cfg.token = cfg->token ? secret_dup(cfg->token, cfg->token_len) : NULL;
    c->cfg.writer = copy_bytes(cfg->writer, WIRE_WRITER_BYTES);
    c->cfg.name = strdup(cfg->name ? cfg->name : "client");
    c->cfg.tcp_congestion = cfg->tcp_congestion ? strdup(cfg->tcp_congestion) : NULL;
    if (!c->cfg.max_calls)
        c->cfg.max_calls = 256;
    if (!c->cfg.connect_timeout_ms)
        c->cfg.connect_timeout_ms = 2000;
    if (!c->cfg.backoff_min_ms)
        c->cfg.backoff_min_ms = 50;
    if (!c->cfg.backoff_max_ms)
        c->cfg.backoff_max_ms = 5000;
    if (!c->cfg.clk)
        c->cfg.clk = clock_real();
    bool has_all = c->cfg.name && (c->cfg.token || !cfg->token) &&
                   (c->cfg.writer || !cfg->writer) &&
                   (c->cfg.tcp_congestion || !cfg->tcp_congestion);
    return has_all ? 0 : ERR_NOMEM;
}

int kv_client_set_token(struct kv_client *c, const void *token, size_t len) {
    char *copy = secret_dup(token, len);
    if (!copy)
        return ERR_NOMEM;
    secret_free((void *)(uintptr_t)c->cfg.token, c->cfg.token_len + 1);
    c->cfg.token = copy;
    c->cfg.token_len = len;
    return 0;
}

int kv_client_open(struct kv_client **ret, uv_loop_t *loop, const struct kv_client_cfg *cfg,
                   struct errbuf *eb) {
    if (cfg->n_addrs == 0 || cfg->n_addrs > KV_CLIENT_MAX_NODES ||
        cfg->n_data_conns > KV_CLIENT_MAX_DATA_CONNS)
        return err_set(eb, ERR_INVALID, "want 1 to %u addresses, 0 to %u data connections",
                       KV_CLIENT_MAX_NODES, KV_CLIENT_MAX_DATA_CONNS);
    struct kv_client *c = calloc(1, sizeof(*c));
    if (!c)
        return err_set(eb, ERR_NOMEM, "cache client");
    c->loop = loop;
    c->next_id = 1;
    list_init(&c->calls);
    list_init(&c->finished);
    for (uint32_t i = 0; i < KV_BUCKETS; i++)
        list_init(&c->buckets[i]);
    list_init(&c->given_up_free);
    for (uint32_t i = 0; i < KV_MAX_GIVEN_UP; i++)
        list_push_back(&c->given_up_free, &c->given_up[i].link);
    int rv = copy_cfg(c, cfg);
    c->nodes = calloc(cfg->n_addrs, sizeof(*c->nodes));
    c->out = buf_new(WIRE_MAX_MSG_BYTES);
    if (rv < 0 || !c->nodes || !c->out || bump_init(&c->scratch, SCRATCH_BYTES) < 0)
        rv = err_set(eb, ERR_NOMEM, "cache client");
    for (uint32_t i = 0; rv == 0 && i < cfg->n_addrs; i++)
        rv = kv_node_init(&c->nodes[i], c, i, cfg->addrs[i], eb);
    if (rv < 0) {
        client_free(c);
        return rv;
    }
    uv_timer_init(loop, &c->deadline);
    uv_idle_init(loop, &c->deliver);
    c->deadline.data = c->deliver.data = c;
    c->live = 2;
    for (uint32_t i = 0; i < cfg->n_addrs; i++)
        kv_node_open(&c->nodes[i]);
    *ret = c;
    return 0;
}

/* The last thing that could call back did. Runs the owner's callback after the memory is gone, so
 * that the owner may free whatever it lent us. */
void kv_client_release_live(struct kv_client *c) {
    if (--c->live > 0 || !c->is_closing)
        return;
    void (*cb)(void *) = c->close_cb;
    void *arg = c->close_arg;
    client_free(c);
    if (cb)
        cb(arg);
}

static void on_handle_closed(uv_handle_t *h) {
    kv_client_release_live(h->data);
}

static void on_deliver(uv_idle_t *h);

void kv_client_close(struct kv_client *c, void (*cb)(void *arg), void *arg) {
    CHECK(!c->is_closing);
    c->close_cb = cb;
    c->close_arg = arg;
    LIST_FOREACH_SAFE(&c->calls, it, tmp)
    kv_call_end(LIST_ENTRY(it, struct kv_call, link), ERR_CANCELED);
    c->is_closing = true;
    for (uint32_t i = 0; i < c->cfg.n_addrs; i++)
        kv_node_close(&c->nodes[i]);
    uv_close((uv_handle_t *)&c->deadline, on_handle_closed);
    uv_idle_start(&c->deliver, on_deliver); /* the last callbacks, then it closes itself */
}

/* ---- nodes ---- */

uint32_t kv_client_nodes_up(const struct kv_client *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->cfg.n_addrs; i++)
        n += c->nodes[i].state == KV_NODE_UP;
    return n;
}

void kv_client_node_info(const struct kv_client *c, uint32_t node, struct kv_node_info *ret) {
    CHECK(node < c->cfg.n_addrs);
    const struct kv_node *n = &c->nodes[node];
    *ret = (struct kv_node_info){.addr = n->addr_text,
                                 .state = n->state,
                                 .node_id = n->hello.node_id,
                                 .max_ids = n->hello.max_ids,
                                 .epoch = n->hello.epoch,
                                 .features = n->hello.features,
                                 .last_err = n->last_err};
    memcpy(ret->last_text, n->last_text, sizeof(ret->last_text));
}

static bool is_shape_ok(const struct kv_namespace *ns, uint64_t *ret_bytes) {
    if (ns->n_ranges == 0 || ns->n_ranges > CHECKSUM_MAX_RANGES || ns->n_full > ns->n_ranges)
        return false;
    for (uint32_t i = 0; i < ns->n_ranges; i++) {
        if (ns->range_sizes[i] == 0 || ns->range_sizes[i] % CHECKSUM_RANGE_ALIGN)
            return false;
        *ret_bytes += ns->range_sizes[i];
    }
    return *ret_bytes <= WIRE_MAX_PAYLOAD_BYTES;
}

int kv_client_namespace(struct kv_client *c, const struct kv_namespace *ns, uint32_t *ret_ns) {
    uint64_t payload_bytes = 0;
    if (!is_shape_ok(ns, &payload_bytes))
        return ERR_INVALID;
    if (c->n_ns == KV_MAX_NS)
        return ERR_TOOBIG;
    uint32_t i = c->n_ns;
    struct kv_ns *own = &c->ns[i];
    *own = (struct kv_ns){.def = *ns, .payload_bytes = payload_bytes};
    own->def.descriptor = copy_bytes(ns->descriptor, ns->descriptor_len);
    own->def.range_sizes = copy_bytes(ns->range_sizes, ns->n_ranges * sizeof(*ns->range_sizes));
    if (!own->def.descriptor || !own->def.range_sizes) {
        ns_free(own);
        return ERR_NOMEM;
    }
    if (!own->def.seg_blocks)
        own->def.seg_blocks = KV_ROUTE_SEG_BLOCKS;
    *ret_ns = c->n_ns++;
    for (uint32_t k = 0; k < c->cfg.n_addrs; k++)
        if (c->nodes[k].links[0].is_ready)
            kv_node_register(&c->nodes[k], i);
    return 0;
}

/* A node that is up but has not registered this namespace yet is not live for it: a chain must not
 * be spread over nodes that would refuse it. */
uint32_t kv_client_live(const struct kv_client *c, uint32_t ns, uint32_t *ret_index,
                        uint16_t *ret_id) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->cfg.n_addrs && !c->is_closing; i++) {
        const struct kv_node *node = &c->nodes[i];
        if (node->state != KV_NODE_UP || node->ns_handle[ns] == 0)
            continue;
        ret_index[n] = i;
        ret_id[n++] = (uint16_t)node->hello.node_id;
    }
    return n;
}

/* Live nodes only: when one goes, the others take its segments over, and every client does so
 * alike. */
int kv_client_route(const struct kv_client *c, uint32_t ns, const struct block_id *chain,
                    uint32_t first, uint32_t n, uint32_t *ret) {
    uint32_t index[KV_CLIENT_MAX_NODES];
    uint16_t id[KV_CLIENT_MAX_NODES];
    uint32_t n_live = kv_client_live(c, ns, index, id);
    if (n_live == 0)
        return ERR_UNAVAILABLE;
    kv_route_chain(chain, first, n, c->ns[ns].def.seg_blocks, id, n_live, ret);
    for (uint32_t i = 0; i < n; i++)
        ret[i] = index[ret[i]];
    return 0;
}

/* ---- calls ---- */

struct buf *kv_client_out(struct kv_client *c) {
    bump_reset(&c->scratch);
    c->out->len = 0;
    return c->out;
}

int kv_call_new(struct kv_client *c, const struct kv_call_ops *ops, uint32_t n_parts,
                uint32_t deadline_ms, void *arg, struct kv_call **ret) {
    if (c->is_closing)
        return ERR_CLOSED;
    if (deadline_ms == 0)
        return ERR_INVALID;
    if (c->n_calls >= c->cfg.max_calls)
        return ERR_BUSY;
    struct kv_call *call = calloc(1, sizeof(*call) + n_parts * sizeof(call->parts[0]));
    if (!call)
        return ERR_NOMEM;
    list_init(&call->link);
    call->client = c;
    call->ops = ops;
    call->arg = arg;
    call->n_parts = n_parts;
    call->deadline_ns = clock_mono_ns(c->cfg.clk) + deadline_ms * NS_PER_MS;
    *ret = call;
    return 0;
}

void kv_call_free(struct kv_call *call) {
    free(call->mem);
    free(call->bytes);
    free(call);
}

uint32_t kv_call_left_ms(const struct kv_call *call) {
    uint64_t now = clock_mono_ns(call->client->cfg.clk);
    uint64_t left = call->deadline_ns > now ? (call->deadline_ns - now) / NS_PER_MS : 0;
    return (uint32_t)MAX(left, (uint64_t)1); /* 0 would mean: no deadline */
}

static void on_deadline(uv_timer_t *t);

/* One timer for all calls, set to the earliest deadline. It fires at most once for nothing: when
 * the call it was set for has ended meanwhile. */
static void arm_deadline(struct kv_client *c, uint64_t at_ns) {
    if (c->deadline_armed_ns != 0 && c->deadline_armed_ns <= at_ns)
        return;
    uint64_t now = clock_mono_ns(c->cfg.clk);
    uint64_t ms = at_ns > now ? (at_ns - now + NS_PER_MS - 1) / NS_PER_MS : 0;
    c->deadline_armed_ns = at_ns;
    uv_update_time(c->loop); /* its "now" may be as old as the last turn of a long one */
    uv_timer_start(&c->deadline, on_deadline, ms, 0);
}

static struct kv_call *first_due(struct kv_client *c) {
    struct kv_call *first = NULL;
    LIST_FOREACH(&c->calls, it) {
        struct kv_call *call = LIST_ENTRY(it, struct kv_call, link);
        if (!first || call->deadline_ns < first->deadline_ns)
            first = call;
    }
    return first;
}

static void on_deadline(uv_timer_t *t) {
    struct kv_client *c = t->data;
    uint64_t now = clock_mono_ns(c->cfg.clk);
    struct kv_call *first;
    c->deadline_armed_ns = 0;
    /* One at a time: the end of one may, with its node, end others. */
    while ((first = first_due(c)) && first->deadline_ns <= now)
        kv_call_end(first, ERR_TIMEOUT);
    if (first)
        arm_deadline(c, first->deadline_ns);
}

void kv_call_begin(struct kv_call *call) {
    struct kv_client *c = call->client;
    call->is_starting = true;
    c->n_calls++;
    list_push_back(&c->calls, &call->link);
    arm_deadline(c, call->deadline_ns);
}

/* From now on only the callback is outstanding; cancel does nothing any more. */
static void call_finish(struct kv_call *call, int rv) {
    call->rv = rv;
    call->is_finished = true;
    list_remove(&call->link);
    list_push_back(&call->client->finished, &call->link);
    uv_idle_start(&call->client->deliver, on_deliver);
}

/* Its parts have all ended by themselves. Whether some failing matters is for deliver() to say. */
static void check_finished(struct kv_call *call) {
    if (call->n_live == 0 && !call->is_starting && !call->is_finished)
        call_finish(call, call->first_err);
}

void kv_call_started(struct kv_call *call, struct kv_call **ret) {
    call->is_starting = false;
    if (ret)
        *ret = call;
    check_finished(call);
}

/* Callbacks run here, one turn later and outside of everything. */
static void on_deliver(uv_idle_t *h) {
    struct kv_client *c = h->data;
    struct list batch;
    list_move(&c->finished, &batch);
    while (!list_empty(&batch)) {
        struct kv_call *call = LIST_ENTRY(list_pop_front(&batch), struct kv_call, link);
        bump_reset(&c->scratch);
        call->ops->deliver(call);
        c->n_calls--;
        kv_call_free(call);
    }
    if (!list_empty(&c->finished))
        return;
    uv_idle_stop(h);
    if (c->is_closing && !uv_is_closing((uv_handle_t *)h))
        uv_close((uv_handle_t *)h, on_handle_closed);
}

struct kv_part *kv_part_init(struct kv_call *call, uint32_t k, struct kv_node *node) {
    struct kv_part *p = &call->parts[k];
    p->call = call;
    p->node = node;
    p->epoch_tag = node->epoch_tag;
    p->is_live = true;
    list_init(&p->req.link);
    list_init(&p->putting);
    call->n_live++;
    return p;
}

static struct list *bucket(struct kv_client *c, uint64_t id) {
    return &c->buckets[id % KV_BUCKETS];
}

/* Ids count up over the whole client and are never used twice, so a late answer cannot meet a new
 * request. */
int kv_part_send(struct kv_part *p, struct kv_req *req, struct rpc_conn *conn, uint16_t method) {
    struct kv_client *c = p->call->client;
    *req = (struct kv_req){.id = c->next_id++,
                           .part = p,
                           .node = p->node,
                           .conn = conn,
                           .method = method,
                           .first = req->first,
                           .count = req->count};
    struct wire_hdr h = {
        .method = method, .request_id = req->id, .deadline_ms = kv_call_left_ms(p->call)};
    int rv = rpc_conn_send(conn, &h, c->out->data, c->out->len, NULL);
    list_init(&req->link);
    if (rv == 0)
        list_push_back(bucket(c, req->id), &req->link);
    else
        req->conn = NULL;
    return rv;
}

static void req_answered(struct kv_req *req) {
    list_remove(&req->link);
    req->conn = NULL;
}

void kv_req_forget(struct kv_req *req) {
    if (!req->part || !req->conn) /* never sent, or answered */
        return;
    struct kv_part *p = req->part;
    struct kv_client *c = p->call->client;
    struct kv_req ghost = {
        .id = req->id, .node = req->node, .conn = req->conn, .method = req->method};
    req_answered(req);
    if (p->epoch_tag != p->node->epoch_tag || c->is_closing)
        return; /* its connection is gone */
    struct list *l = list_pop_front(&c->given_up_free);
    if (!l) {
        kv_node_overdue(p->node);
        return;
    }
    struct kv_req *g = LIST_ENTRY(l, struct kv_req, link);
    *g = ghost;
    list_init(&g->link);
    list_push_back(bucket(c, g->id), &g->link);
}

static void given_up_done(struct kv_client *c, struct kv_req *g) {
    req_answered(g);
    list_push_back(&c->given_up_free, &g->link);
}

void kv_client_forget_given_up(struct kv_client *c, const struct kv_node *n) {
    for (uint32_t i = 0; i < KV_MAX_GIVEN_UP; i++)
        if (c->given_up[i].conn && c->given_up[i].node == n)
            given_up_done(c, &c->given_up[i]);
}

/* A part is through, well or not. The call goes on with the others; the first error is kept. */
void kv_part_end(struct kv_part *p, int rv) {
    if (!p->is_live)
        return;
    struct kv_call *call = p->call;
    p->is_live = false;
    kv_req_forget(&p->req);
    if (rv == 0)
        call->n_ok++;
    else if (call->first_err == 0)
        call->first_err = rv;
    call->n_live--;
    if (call->ops->on_part_end)
        call->ops->on_part_end(p, rv);
    check_finished(call);
}

/* Deadline, cancel, close: parts that still run are given up. What arrives for them later is
 * dropped by request id, payload included. */
void kv_call_end(struct kv_call *call, int rv) {
    if (call->is_finished)
        return;
    for (uint32_t i = 0; i < call->n_parts; i++) {
        struct kv_part *p = &call->parts[i];
        if (!p->is_live)
            continue;
        p->is_live = false;
        call->n_live--;
        if (call->ops->on_abandon)
            call->ops->on_abandon(p);
        kv_req_forget(&p->req);
    }
    call_finish(call, rv);
}

void kv_call_cancel(struct kv_call *call) {
    kv_call_end(call, ERR_CANCELED);
}

/* Parts end one by one through the normal way, so that a call over several nodes keeps what the
 * others brought. */
void kv_client_node_lost(struct kv_client *c, struct kv_node *n, int err) {
    LIST_FOREACH_SAFE(&c->calls, it, tmp) {
        struct kv_call *call = LIST_ENTRY(it, struct kv_call, link);
        for (uint32_t i = 0; i < call->n_parts && !call->is_finished; i++)
            if (call->parts[i].is_live && call->parts[i].node == n)
                kv_part_end(&call->parts[i], err);
    }
}

void kv_client_oneway(struct kv_client *c, struct rpc_conn *conn, uint16_t method) {
    struct wire_hdr h = {.method = method, .request_id = c->next_id++, .flags = WIRE_F_ONEWAY};
    (void)rpc_conn_send(conn, &h, c->out->data, c->out->len, NULL);
}

/* ---- dispatch ---- */

/* The connection must match, too: another one of the same node has no business with this id. */
static struct kv_req *find_req(struct kv_client *c, const struct rpc_conn *conn, uint64_t id) {
    LIST_FOREACH(bucket(c, id), it) {
        struct kv_req *r = LIST_ENTRY(it, struct kv_req, link);
        if (r->id == id)
            return r->conn == conn ? r : NULL;
    }
    return NULL;
}

static bool is_session_method(uint16_t method) {
    return method == WIRE_HELLO || method == WIRE_REGISTER_NS || method == WIRE_HEARTBEAT;
}

/* Where a payload goes. For a request that nobody waits for: nowhere, the bytes are read and
 * dropped, so that cancel costs no connection. */
static int on_head(struct rpc_conn *conn, void *arg, const struct wire_hdr *h, const uint8_t *msg,
                   struct rpc_sink *ret_sink) {
    struct kv_client *c = ((struct kv_link *)arg)->node->client;
    if (!(h->flags & WIRE_F_RESPONSE))
        return ERR_PROTO; /* nodes ask nothing */
    if (h->payload_len == 0)
        return 0;
    struct kv_req *req = find_req(c, conn, h->request_id);
    if (!req)
        return ERR_PROTO;
    if (!req->part || (h->flags & WIRE_F_ERROR))
        return 0; /* the bytes are dropped */
    if (!req->part->call->ops->on_head || h->method != req->method)
        return ERR_PROTO;
    bump_reset(&c->scratch);
    return req->part->call->ops->on_head(req->part, h, msg, ret_sink);
}

static void on_error_answer(struct kv_client *c, struct kv_req *req, const struct wire_hdr *h,
                            const uint8_t *msg) {
    struct kv_part *p = req->part;
    struct msg_error e = {.text = ""};
    (void)wire_msg_error_decode(&c->scratch, msg, h->msg_len, &e, NULL);
    int rv = wire_err_from_code(e.code);
    snprintf(p->call->text, sizeof(p->call->text), "%s", e.text);
    if (p->call->ops->on_error)
        p->call->ops->on_error(p, req, rv);
    else
        kv_part_end(p, rv);
}

/* A frame is whole. Hello, RegisterNamespace and Heartbeat belong to the session, the rest to a part. */
static void on_frame(struct rpc_conn *conn, void *arg, const struct wire_hdr *h, const uint8_t *msg,
                     struct rpc_sink *sink) {
    struct kv_link *l = arg;
    struct kv_client *c = l->node->client;
    if (is_session_method(h->method)) {
        kv_node_on_answer(l, h, msg);
        return;
    }
    bump_reset(&c->scratch);
    struct kv_req *req = find_req(c, conn, h->request_id);
    if (!req || h->method != req->method) {
        kv_node_fail(l->node, ERR_PROTO, "an answer to nothing that waits for one");
        return;
    }
    struct kv_part *p = req->part;
    bool is_last = h->flags & WIRE_F_END;
    if (!p) {
        if (is_last)
            given_up_done(c, req);
        if (!(h->flags & WIRE_F_ERROR))
            kv_client_late(c, l, h, msg);
        return;
    }
    if (is_last)
        req_answered(req);
    if (h->flags & WIRE_F_ERROR) {
        on_error_answer(c, req, h, msg);
        return;
    }
    int rv =
        is_last || p->call->ops->on_head ? p->call->ops->on_frame(p, req, h, msg, sink) : ERR_PROTO;
    if (rv < 0 && l->conn == conn)
        kv_node_fail(l->node, rv, "malformed answer");
}

/* An answer that came too late may have granted something that would be held until the session
 * ends. */
void kv_client_late(struct kv_client *c, struct kv_link *l, const struct wire_hdr *h,
                    const uint8_t *msg) {
    if (h->method == WIRE_LOOKUP)
        kv_lookup_late(c, l, h, msg);
    else if (h->method == WIRE_PUT_BEGIN)
        kv_put_late(c, l, h, msg);
}

static void on_drain(struct rpc_conn *conn, void *arg) {
    struct kv_link *l = arg;
    (void)conn;
    kv_put_pump(l->node);
}

static void on_broken(struct rpc_conn *conn, void *arg, int err, const struct wire_hdr *h) {
    struct kv_link *l = arg;
    (void)conn, (void)h;
    kv_node_fail(l->node, err, err_text(err));
}

const struct rpc_conn_ops kv_client_conn_ops = {on_head, on_frame, NULL, on_drain, on_broken};

/* ---- admin calls: one node, one request, one answer ---- */

static int on_unary_frame(struct kv_part *p, struct kv_req *req, const struct wire_hdr *h,
                          const uint8_t *msg, struct rpc_sink *sink) {
    struct kv_call *call = p->call;
    (void)req, (void)sink;
    /* Kept as bytes and decoded for the callback, which comes in another turn. */
    call->bytes = malloc(h->msg_len ? h->msg_len : 1);
    call->n_bytes = h->msg_len;
    if (call->bytes && h->msg_len)
        memcpy(call->bytes, msg, h->msg_len);
    kv_part_end(p, call->bytes ? 0 : ERR_NOMEM);
    return 0;
}

/* The request is in the client's encode buffer. */
static int unary_start(struct kv_client *c, const struct kv_call_ops *ops, uint32_t node,
                       uint16_t method, uint32_t deadline_ms, void (*cb)(void), void *arg,
                       struct kv_call **ret) {
    if (node >= c->cfg.n_addrs)
        return ERR_INVALID;
    struct kv_node *n = &c->nodes[node];
    if (n->state != KV_NODE_UP)
        return ERR_UNAVAILABLE;
    struct kv_call *call;
    int rv = kv_call_new(c, ops, 1, deadline_ms, arg, &call);
    if (rv < 0)
        return rv;
    call->u.any.cb = cb;
    kv_call_begin(call);
    struct kv_part *p = kv_part_init(call, 0, n);
    rv = kv_part_send(p, &p->req, kv_node_control(n), method);
    if (rv < 0)
        kv_part_end(p, rv);
    kv_call_started(call, ret);
    return 0;
}

#define UNARY_DELIVER(name, res)                                                                   \
    static void name##_deliver(struct kv_call *call) {                                             \
        kv_##name##_cb cb = (kv_##name##_cb)call->u.any.cb;                                        \
        struct msg_##res m;                                                                        \
        int rv = call->rv;                                                                         \
        if (rv == 0)                                                                               \
            rv = wire_msg_##res##_decode(&call->client->scratch, call->bytes, call->n_bytes, &m,   \
                                         NULL);                                                    \
        cb(call->arg, rv, call->text, rv == 0 ? &m : NULL);                                        \
    }                                                                                              \
    static const struct kv_call_ops name##_ops = {.on_frame = on_unary_frame,                      \
                                                  .deliver = name##_deliver};

#define X(name, method, req, res)                                                                  \
    UNARY_DELIVER(name, res)                                                                       \
    int kv_client_##name(struct kv_client *c, uint32_t node, const struct msg_##req *m,            \
                         uint32_t deadline_ms, kv_##name##_cb cb, void *arg,                       \
                         struct kv_call **ret) {                                                   \
        struct buf *out = kv_client_out(c);                                                        \
        int rv = wire_msg_##req##_encode(&c->scratch, m, out);                                     \
        return rv < 0 ? rv                                                                         \
                      : unary_start(c, &name##_ops, node, WIRE_##method, deadline_ms,              \
                                    (void (*)(void))cb, arg, ret);                                 \
    }
KV_ADMIN_CALLS(X)
#undef X
