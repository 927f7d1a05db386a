#include "common/str.h"
#include "proto/kv_client_impl.h"

#include <netdb.h>
#include <unistd.h>

/*   DOWN --timer--> CONNECTING: [name] -> control: Hello -> namespaces, data connections: Hello ->
 * UP
 *     ^----- any failure, handshake limit, loss of any connection ------------------------------'
 *
 * A session lives and dies as a whole: with one of its connections gone the rest is closed, too,
 * since a client that fetches at half its width for hours is harder to notice than one that
 * reconnects. */

/* DOWN -> CONNECTING. Names are resolved each time, so that a node may move. */
static void attempt(struct kv_node *n);
static void on_timer(uv_timer_t *t);

int kv_node_init(struct kv_node *n, struct kv_client *c, uint32_t index, const char *addr,
                 struct errbuf *eb) {
    *n = (struct kv_node){.client = c, .index = index, .state = KV_NODE_DOWN};
    list_init(&n->putting);
    for (uint32_t i = 0; i < KV_MAX_LINKS; i++)
        n->links[i].node = n;
    n->jitter = (uint32_t)clock_mono_ns(c->cfg.clk) ^ (uint32_t)getpid() ^ index;
    n->n_links = 1 + c->cfg.n_data_conns;
    int rv = rpc_addr_parse(addr, &n->addr, eb);
    if (rv < 0)
        return rv;
    n->addr_text = strdup(addr);
    return n->addr_text ? 0 : ERR_NOMEM;
}

void kv_node_free(struct kv_node *n) {
    free(TAKE_PTR(n->addr_text));
    free(TAKE_PTR(n->leases));
}

void kv_node_open(struct kv_node *n) {
    uv_timer_init(n->client->loop, &n->timer);
    n->timer.data = n;
    n->client->live++;
    uv_timer_start(&n->timer, on_timer, 0, 0);
}

static void on_handle_closed(uv_handle_t *h) {
    struct kv_node *n = h->data;
    kv_client_release_live(n->client);
}

static void on_conn_closed(struct rpc_conn *conn, void *arg) {
    struct kv_link *l = arg;
    (void)conn;
    kv_client_release_live(l->node->client);
}

/* Closes every connection of the session. Their close callbacks come later; a new session may begin
 * before, since links forget the connection here. */
static void drop_links(struct kv_node *n) {
    for (uint32_t i = 0; i < KV_MAX_LINKS; i++) {
        struct kv_link *l = &n->links[i];
        l->is_ready = false;
        l->hello_id = 0;
        if (l->conn)
            rpc_conn_close(TAKE_PTR(l->conn), on_conn_closed);
    }
    kv_client_forget_given_up(n->client, n);
    n->n_leases = 0;
    n->heartbeat_id = 0;
    n->is_overdue = false;
    memset(n->ns_handle, 0, sizeof(n->ns_handle));
    memset(n->ns_req, 0, sizeof(n->ns_req));
}

void kv_node_close(struct kv_node *n) {
    n->state = KV_NODE_DOWN;
    drop_links(n);
    if (n->gai_active)
        (void)uv_cancel((uv_req_t *)&n->gai);
    uv_close((uv_handle_t *)&n->timer, on_handle_closed);
}

/* The owner's callback may close the client: always the last thing a function does. */
static void tell(struct kv_node *n, int err, const char *text) {
    struct kv_client *c = n->client;
    if (c->cfg.on_node && !c->is_closing)
        c->cfg.on_node(c->cfg.on_node_arg, n->index, n->state, err, text);
}

/* Doubles from attempt to attempt; up to a quarter less, so that workers do not come back in
 * step. */
static uint64_t backoff_ms(struct kv_node *n) {
    const struct kv_client_cfg *cfg = &n->client->cfg;
    uint64_t ms = cfg->backoff_min_ms;
    for (uint32_t i = 1; i < n->attempts && ms < cfg->backoff_max_ms; i++)
        ms *= 2;
    ms = MIN(ms, (uint64_t)cfg->backoff_max_ms);
    n->jitter = n->jitter * 1664525u + 1013904223u;
    return ms - (ms / 4 * (n->jitter >> 24)) / 256;
}

/* The one way down, from any state: connections, parts, leases and handles of the session end
 * together, and the next attempt is scheduled. */
void kv_node_fail(struct kv_node *n, int err, const char *text) {
    if (n->client->is_closing || n->state == KV_NODE_DOWN)
        return;
    n->state = KV_NODE_DOWN;
    n->epoch_tag++;
    n->last_err = err;
    snprintf(n->last_text, sizeof(n->last_text), "%s", text);
    n->attempts++;
    drop_links(n);
    uv_update_time(n->client->loop);
    uv_timer_start(&n->timer, on_timer, backoff_ms(n), 0);
    kv_client_node_lost(n->client, n, err);
    tell(n, err, text); /* last: it may close the client */
}

/* ---- heartbeat ---- */

/* Names the leases that are to live on; the answer names those that must not. */
static void send_heartbeat(struct kv_node *n) {
    struct kv_client *c = n->client;
    uint64_t now = clock_mono_ns(c->cfg.clk);
    if (n->heartbeat_id) {
        if (now - n->heartbeat_ns > KV_SILENCE_MS * NS_PER_MS)
            kv_node_fail(n, ERR_TIMEOUT, "no answer to Heartbeat");
        return;
    }
    n->heartbeat_ns = now;
    struct msg_heartbeat_req m = {.n_lease_ids = MIN(n->n_leases, n->hello.max_ids),
                                  .lease_ids = n->leases};
    struct buf *out = kv_client_out(c);
    int rv = wire_msg_heartbeat_req_encode(&c->scratch, &m, out);
    n->heartbeat_id = c->next_id++;
    struct wire_hdr h = {.method = WIRE_HEARTBEAT, .request_id = n->heartbeat_id};
    if (rv == 0)
        rv = rpc_conn_send(n->links[0].conn, &h, out->data, out->len, NULL);
    if (rv < 0)
        kv_node_fail(n, rv, "heartbeat");
}

/* Three to a lease's life while there are any; else seldom, so that the node knows that we live. */
static void arm_heartbeat(struct kv_node *n) {
    uint64_t ms = n->n_leases ? MAX(n->hello.lease_ttl_ms / 3, 1u) : KV_IDLE_HEARTBEAT_MS;
    if (n->state != KV_NODE_UP)
        return;
    uv_update_time(n->client->loop);
    uv_timer_start(&n->timer, on_timer, ms, ms);
}

int kv_node_add_lease(struct kv_node *n, uint64_t lease_id) {
    if (n->n_leases == n->cap_leases) {
        uint32_t cap = n->cap_leases ? 2 * n->cap_leases : 16;
        uint64_t *more = realloc(n->leases, cap * sizeof(*more));
        if (!more)
            return ERR_NOMEM;
        n->leases = more;
        n->cap_leases = cap;
    }
    n->leases[n->n_leases++] = lease_id;
    if (n->n_leases == 1)
        arm_heartbeat(n);
    return 0;
}

void kv_node_overdue(struct kv_node *n) {
    n->is_overdue = true;
    if (n->state == KV_NODE_UP)
        uv_timer_start(&n->timer, on_timer, 0, 0);
}

void kv_node_drop_lease(struct kv_node *n, uint64_t lease_id) {
    for (uint32_t i = 0; i < n->n_leases; i++) {
        if (n->leases[i] != lease_id)
            continue;
        n->leases[i] = n->leases[--n->n_leases];
        if (n->n_leases == 0)
            arm_heartbeat(n);
        return;
    }
}

/* A recalled lease is not renewed by the node any more and need not be named: a fetch under way holds its
 * blocks by itself, what it has not asked for yet may turn into misses. Its Release is still sent. */
static void on_heartbeat(struct kv_node *n, const struct wire_hdr *h, const uint8_t *msg) {
    struct msg_heartbeat_res m;
    if (wire_msg_heartbeat_res_decode(&n->client->scratch, msg, h->msg_len, &m, NULL) < 0) {
        kv_node_fail(n, ERR_PROTO, "Heartbeat: bad answer");
        return;
    }
    for (size_t i = 0; i < m.n_recalled; i++)
        kv_node_drop_lease(n, m.recalled[i]);
    for (size_t i = 0; i < m.n_ended; i++)
        kv_node_drop_lease(n, m.ended[i]);
}

static void on_timer(uv_timer_t *t) {
    struct kv_node *n = t->data;
    if (n->state == KV_NODE_UP && n->is_overdue)
        kv_node_fail(n, ERR_TIMEOUT, "too many requests without an answer");
    else if (n->state == KV_NODE_UP)
        send_heartbeat(n);
    else if (n->state == KV_NODE_CONNECTING)
        kv_node_fail(n, ERR_TIMEOUT, "connect and handshake took too long");
    else
        attempt(n);
}

/* ---- connecting ---- */

/* Queued before the connection is made: it leaves with the first writability. A join sends the
 * session token of the control connection's answer. */
static int send_hello(struct kv_link *l) {
    struct kv_node *n = l->node;
    struct kv_client *c = n->client;
    bool is_join = l != &n->links[0];
    struct msg_hello_req m = {.version_min = WIRE_VERSION,
                              .version_max = WIRE_VERSION,
                              .features = WIRE_FEAT_CONFIG, /* calls of ours that need one */
                              .role = (uint32_t)c->cfg.role,
                              .token = {c->cfg.token, c->cfg.token_len},
                              .client_name = c->cfg.name,
                              .writer = {c->cfg.writer, c->cfg.writer ? WIRE_WRITER_BYTES : 0}};
    if (is_join)
        m.session_token = (struct msg_bytes){n->session_token, sizeof(n->session_token)};
    struct buf *out = kv_client_out(c);
    int rv = wire_msg_hello_req_encode(&c->scratch, &m, out);
    if (rv < 0)
        return rv;
    l->hello_id = c->next_id++;
    struct wire_hdr h = {
        .method = WIRE_HELLO, .request_id = l->hello_id, .deadline_ms = c->cfg.connect_timeout_ms};
    return rpc_conn_send(l->conn, &h, out->data, out->len, NULL);
}

/* Never blocks: a refused TCP connection is told by on_close, a missing Unix socket here and
 * now. */
static int open_link(struct kv_link *l) {
    struct kv_node *n = l->node;
    struct kv_client *c = n->client;
    struct rpc_sock_opt opt = {.tcp_congestion = c->cfg.tcp_congestion};
    int fd = n->addr.is_unix ? rpc_sock_connect_unix(n->addr.host, &opt)
                             : rpc_sock_connect((struct sockaddr *)&n->sa, n->sa_len, &opt);
    if (fd < 0)
        return fd;
    struct rpc_conn_cfg cc = {.connecting = true, .clk = c->cfg.clk};
    int rv = rpc_conn_open(&l->conn, c->loop, fd, !n->addr.is_unix, &cc, &kv_client_conn_ops, l);
    if (rv < 0) {
        close(fd);
        return rv;
    }
    c->live++;
    return send_hello(l);
}

static void open_control(struct kv_node *n) {
    int rv = open_link(&n->links[0]);
    if (rv < 0)
        kv_node_fail(n, rv, err_text(rv));
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *res) {
    struct kv_node *n = req->data;
    struct kv_client *c = n->client;
    n->gai_active = false;
    if (!c->is_closing && n->state == KV_NODE_CONNECTING) {
        if (status < 0 || !res) {
            kv_node_fail(n, status < 0 ? status : ERR_UNAVAILABLE, "name is not known");
        } else {
            /* A name with several addresses: the next one at each attempt. */
            uint32_t n_addrs = 0;
            for (const struct addrinfo *ai = res; ai; ai = ai->ai_next)
                n_addrs++;
            const struct addrinfo *ai = res;
            for (uint32_t i = 0; i < n->attempts % n_addrs; i++)
                ai = ai->ai_next;
            n->sa_len = MIN(ai->ai_addrlen, (socklen_t)sizeof(n->sa));
            memcpy(&n->sa, ai->ai_addr, n->sa_len);
            open_control(n);
        }
    }
    uv_freeaddrinfo(res);
    kv_client_release_live(c);
}

static void attempt(struct kv_node *n) {
    struct kv_client *c = n->client;
    n->state = KV_NODE_CONNECTING;
    uv_timer_start(&n->timer, on_timer, c->cfg.connect_timeout_ms, 0);
    if (n->addr.is_unix) {
        open_control(n);
        return;
    }
    if (n->gai_active) /* the last attempt's is still out; its answer serves this one */
        return;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    n->gai.data = n;
    int rv = uv_getaddrinfo(c->loop, &n->gai, on_resolved, n->addr.host, n->addr.port, &hints);
    if (rv < 0) {
        kv_node_fail(n, rv, "resolve");
        return;
    }
    n->gai_active = true;
    c->live++;
}

/* ---- handshake ---- */

/* UP needs everything: the control connection, every data connection, every namespace. Callers
 * then never find half a session. */
static void check_up(struct kv_node *n) {
    if (n->state != KV_NODE_CONNECTING)
        return;
    for (uint32_t i = 0; i < n->n_links; i++)
        if (!n->links[i].is_ready)
            return;
    for (uint32_t i = 0; i < n->client->n_ns; i++)
        if (n->ns_handle[i] == 0)
            return;
    n->state = KV_NODE_UP;
    n->attempts = 0;
    n->last_err = 0;
    n->last_text[0] = '\0';
    arm_heartbeat(n);
    tell(n, 0, "");
}

void kv_node_register(struct kv_node *n, uint32_t ns) {
    struct kv_client *c = n->client;
    const struct kv_namespace *d = &c->ns[ns].def;
    struct msg_register_ns_req m = {
        .digest = {d->digest, sizeof(d->digest)},
        .descriptor = {(const uint8_t *)d->descriptor, d->descriptor_len},
        .n_range_sizes = d->n_ranges,
        .range_sizes = d->range_sizes,
        .n_full = d->n_full,
        .seg_blocks = d->seg_blocks};
    struct buf *out = kv_client_out(c);
    int rv = wire_msg_register_ns_req_encode(&c->scratch, &m, out);
    n->ns_req[ns] = c->next_id++;
    struct wire_hdr h = {.method = WIRE_REGISTER_NS, .request_id = n->ns_req[ns]};
    if (rv == 0)
        rv = rpc_conn_send(n->links[0].conn, &h, out->data, out->len, NULL);
    if (rv < 0)
        kv_node_fail(n, rv, "register namespace");
}

/* Two nodes with one id would both be asked for the same segments by half of the clients. */
static bool is_id_taken(const struct kv_node *n) {
    const struct kv_client *c = n->client;
    for (uint32_t i = 0; i < c->cfg.n_addrs; i++)
        if (i != n->index && c->nodes[i].links[0].is_ready && /* UP, or about to be */
            c->nodes[i].hello.node_id == n->hello.node_id)
            return true;
    return false;
}

/* The session is open: data connections and namespaces follow in parallel. Each step may fail the
 * node, which shows in the session's tag. */
static void on_control_hello(struct kv_node *n, const struct msg_hello_res *m) {
    struct kv_client *c = n->client;
    if (m->version != WIRE_VERSION || m->session_token.n != sizeof(n->session_token) ||
        m->node_id > UINT16_MAX) {
        kv_node_fail(n, ERR_PROTO, "Hello: no such version, session token or node id");
        return;
    }
    memcpy(n->session_token, m->session_token.p, sizeof(n->session_token));
    n->hello = *m;
    n->hello.session_token = (struct msg_bytes){0};
    n->hello.node_name = n->hello.server_version = NULL;
    if (is_id_taken(n)) {
        kv_node_fail(n, ERR_CONFLICT, "another of our nodes has the same node id");
        return;
    }
    n->links[0].is_ready = true;
    n->n_links = 1 + MIN(c->cfg.n_data_conns, m->max_data_conns);
    uint32_t tag = n->epoch_tag;
    for (uint32_t i = 1; i < n->n_links && n->epoch_tag == tag; i++) {
        int rv = open_link(&n->links[i]);
        if (rv < 0)
            kv_node_fail(n, rv, "open data connection");
    }
    for (uint32_t i = 0; i < c->n_ns && n->epoch_tag == tag; i++)
        kv_node_register(n, i);
    if (n->epoch_tag == tag)
        check_up(n);
}

static void on_register(struct kv_node *n, uint32_t ns, const struct wire_hdr *h,
                        const uint8_t *msg) {
    struct kv_client *c = n->client;
    struct msg_register_ns_res m;
    struct errbuf eb;
    if (wire_msg_register_ns_res_decode(&c->scratch, msg, h->msg_len, &m, &eb) < 0 || m.ns == 0) {
        kv_node_fail(n, ERR_PROTO, "RegisterNamespace: bad answer");
        return;
    }
    n->ns_handle[ns] = m.ns;
    check_up(n);
}

/* Which of the session's own requests this answers; 0: none that waits. */
static uint64_t *awaited(struct kv_link *l, const struct wire_hdr *h) {
    struct kv_node *n = l->node;
    uint64_t *at = NULL;
    if (h->method == WIRE_HELLO)
        at = &l->hello_id;
    else if (l == &n->links[0] && h->method == WIRE_HEARTBEAT)
        at = &n->heartbeat_id;
    for (uint32_t i = 0; i < n->client->n_ns && l == &n->links[0] && !at; i++)
        if (n->ns_req[i] == h->request_id)
            at = &n->ns_req[i];
    return at && *at == h->request_id && h->request_id ? at : NULL;
}

/* Refused: the session can't be. A refused Heartbeat only means that leases end sooner. */
static void on_refused(struct kv_node *n, const struct wire_hdr *h, const uint8_t *msg) {
    if (h->method == WIRE_HEARTBEAT)
        return;
    struct msg_error e = {.text = ""};
    (void)wire_msg_error_decode(&n->client->scratch, msg, h->msg_len, &e, NULL);
    char text[160]; /* e.text lives in scratch */
    snprintf(text, sizeof(text), "%s: %s", wire_method_name(h->method), e.text);
    kv_node_fail(n, wire_err_from_code(e.code), text);
}

static void on_hello(struct kv_link *l, const struct wire_hdr *h, const uint8_t *msg) {
    struct kv_node *n = l->node;
    struct msg_hello_res m;
    if (wire_msg_hello_res_decode(&n->client->scratch, msg, h->msg_len, &m, NULL) < 0) {
        kv_node_fail(n, ERR_PROTO, "Hello: bad answer");
        return;
    }
    if (l == &n->links[0]) {
        on_control_hello(n, &m);
        return;
    }
    l->is_ready = true;
    check_up(n);
}

void kv_node_on_answer(struct kv_link *l, const struct wire_hdr *h, const uint8_t *msg) {
    struct kv_node *n = l->node;
    uint64_t *at = awaited(l, h);
    bump_reset(&n->client->scratch);
    if (!at || !(h->flags & WIRE_F_END)) {
        kv_node_fail(n, ERR_PROTO, "an answer to nothing that waits for one");
        return;
    }
    *at = 0; /* taken once */
    if (h->flags & WIRE_F_ERROR)
        on_refused(n, h, msg);
    else if (h->method == WIRE_HELLO)
        on_hello(l, h, msg);
    else if (h->method == WIRE_HEARTBEAT)
        on_heartbeat(n, h, msg);
    else
        on_register(n, (uint32_t)(at - n->ns_req), h, msg);
}
