/* Sessions and everything that the store answers from memory: Hello, RegisterNamespace, Lookup, Touch,
 * Release, Heartbeat; and the method table. Fetch and Put have files of their own. */
#include "cachesvc/svc.h"

#include "common/check.h"

int svc_reply_ack(struct rpc_call *call, uint64_t count) {
    struct msg_ack m = {.count = count};
    return SVC_REPLY(call, ack, &m);
}

int svc_check_ns(struct cachesvc *s, struct rpc_call *call, uint32_t handle, uint32_t *ret_ns,
                 struct errbuf *eb) {
    (void)s;
    if (!session_may_use_ns(session_of(call->conn)->session, handle))
        return err_set(eb, ERR_INVALID, "namespace handle %u is not registered in this session", handle);
    *ret_ns = handle - 1;
    return 0;
}

int svc_check_ids(struct cachesvc *s, size_t n_ids, struct errbuf *eb) {
    if (n_ids > s->cfg->max_ids)
        return err_set(eb, ERR_TOOBIG, "%zu ids in one request, the limit is %u", n_ids, s->cfg->max_ids);
    return 0;
}

/* ---- Hello ---- */

static uint32_t role_grants(uint32_t role) {
    uint32_t g = GRANT_SESSION | GRANT_CONTROL | GRANT_READ;
    if (role != MSG_ROLE_READER)
        g |= GRANT_WRITE;
    if (role == MSG_ROLE_ADMIN)
        g |= GRANT_ADMIN;
    return g;
}

static int open_session(struct cachesvc *s, struct rpc_call *call, const struct msg_hello_req *m,
                        struct session **ret, struct errbuf *eb) {
    const struct auth_token *token;
    if (m->role < MSG_ROLE_WORKER || m->role > MSG_ROLE_ADMIN)
        return err_set(eb, ERR_INVALID, "Hello: role %u is unknown", m->role);
    if (auth_check(&s->auth, m->token.p, m->token.n, m->role, &token) < 0) {
        METRIC_INC(&s->met, hello_denied_total);
        return err_set(eb, ERR_DENIED, "Hello: no such token for this role");
    }
    struct session *ss;
    int rv = session_open(&s->sessions, s->store, call->conn, &ss);
    if (rv < 0)
        return err_set(eb, rv, "Hello: no session free");
    ss->role = m->role;
    ss->auth = token;
    ss->opened_ns = call->recv_ns;
    snprintf(ss->name, sizeof(ss->name), "%s", m->client_name ? m->client_name : "");
    if (m->writer.n == sizeof(ss->writer))
        memcpy(ss->writer, m->writer.p, sizeof(ss->writer));
    rpc_conn_set_grants(call->conn, role_grants(m->role));
    METRIC_SET(&s->met, sessions, (int64_t)slabpool_in_use(&s->sessions.pool));
    log_info(s->log, "session opened", "session=%llu client=%s peer=%s role=%u",
             (unsigned long long)ss->number, ss->name, rpc_conn_peer(call->conn), m->role);
    *ret = ss;
    return 0;
}

static int join_session(struct cachesvc *s, struct rpc_call *call, const struct msg_hello_req *m,
                        struct session_conn **ret, struct errbuf *eb) {
    struct session *ss = session_find(&s->sessions, m->session_token.p);
    if (!ss)
        return err_set(eb, ERR_DENIED, "Hello: no such session to join");
    int rv = session_join(ss, call->conn, s->cfg->max_data_conns, ret);
    if (rv < 0)
        return err_set(eb, rv, "Hello: the session has its %u data connections", s->cfg->max_data_conns);
    rpc_conn_set_grants(call->conn, GRANT_SESSION | GRANT_DATA | GRANT_READ |
                                        (ss->role != MSG_ROLE_READER ? GRANT_WRITE : 0u));
    return 0;
}

int svc_hello(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_hello_req m;
    int rv = SVC_DECODE(call, hello_req, &m, eb);
    if (rv < 0)
        return rv;
    if (session_of(call->conn))
        return err_set(eb, ERR_PROTO, "Hello: said before on this connection");
    if (m.version_min > WIRE_VERSION || m.version_max < WIRE_VERSION)
        return err_set(eb, ERR_UNSUPPORTED, "Hello: this node speaks version %d", WIRE_VERSION);
    if (s->phase != SVC_READY)
        return err_set(eb, ERR_UNAVAILABLE, "Hello: the node is draining");
    struct msg_hello_res res = {.version = WIRE_VERSION,
                                .node_id = s->cfg->node_id,
                                .epoch = s->index->ops->epoch(s->index),
                                .node_name = s->name,
                                .server_version = INCIPIT_VERSION,
                                .max_message_bytes = WIRE_MAX_MSG_BYTES,
                                .max_payload_bytes = WIRE_MAX_PAYLOAD_BYTES,
                                .max_ids = s->cfg->max_ids,
                                .max_data_conns = s->cfg->max_data_conns,
                                .lease_ttl_ms = s->cfg->lease_ttl_ms,
                                .max_inflight = s->cfg->max_fetches};
    if (m.session_token.n > 0) {
        struct session_conn *sc;
        rv = join_session(s, call, &m, &sc, eb);
        if (rv < 0)
            return rv;
        res.conn = sc->number;
        return SVC_REPLY(call, hello_res, &res);
    }
    struct session *ss = NULL;
    rv = open_session(s, call, &m, &ss, eb);
    if (rv < 0)
        return rv;
    res.session_token = (struct msg_bytes){ss->token, sizeof(ss->token)};
    return SVC_REPLY(call, hello_res, &res);
}

/* ---- the end of connections and sessions ---- */

static void forget_conn(struct session_conn *sc) {
    rpc_conn_set_user(sc->conn, NULL);
    rpc_conn_unref(TAKE_PTR(sc->conn));
}

static void end_session(struct cachesvc *s, struct session *ss) {
    svc_fetch_end(s, ss, NULL);
    svc_put_end_session(s, ss);
    for (uint32_t i = 0; i < SESSION_MAX_DATA; i++) {
        struct rpc_conn *c = ss->data[i].conn;
        if (!c)
            continue;
        rpc_conn_set_user(c, NULL);
        rpc_server_drop_conn(s->rpc, c);
        rpc_conn_unref(TAKE_PTR(ss->data[i].conn));
    }
    forget_conn(&ss->control);
    log_info(s->log, "session ended", "session=%llu client=%s", (unsigned long long)ss->number,
             ss->name);
    session_free(&s->sessions, ss);
    METRIC_SET(&s->met, sessions, (int64_t)slabpool_in_use(&s->sessions.pool));
}

void svc_on_gone(void *arg, struct rpc_conn *c) {
    struct cachesvc *s = arg;
    struct session_conn *sc = session_of(c);
    if (!sc)
        return;
    if (sc->number == 0) {
        end_session(s, sc->session);
        return;
    }
    svc_fetch_end(s, sc->session, c);
    forget_conn(sc);
}

void svc_on_drain(void *arg, struct rpc_conn *c) {
    struct session_conn *sc = session_of(c);
    if (sc)
        svc_fetch_pump_conn(arg, sc->session, c);
}

/* ---- RegisterNamespace ---- */

static int remember_descriptor(struct cachesvc *s, uint32_t ns, const struct msg_bytes *text) {
    struct svc_descriptor *d = &s->descriptor[ns];
    if (d->text)
        return 0; /* of the same digest, so the same text */
    d->text = malloc(text->n + 1);
    if (!d->text)
        return ERR_NOMEM;
    memcpy(d->text, text->p, text->n);
    d->text[text->n] = '\0';
    d->len = text->n;
    return 0;
}

static int shape_of(const struct msg_register_ns_req *m, struct store_ns_shape *ret,
                    struct errbuf *eb) {
    if (m->n_range_sizes == 0 || m->n_range_sizes > CHECKSUM_MAX_RANGES)
        return err_set(eb, ERR_INVALID, "RegisterNamespace: %zu ranges, want 1 to %u",
                       m->n_range_sizes, CHECKSUM_MAX_RANGES);
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->n_range_sizes; i++)
        bytes += m->range_sizes[i];
    if (bytes > WIRE_MAX_PAYLOAD_BYTES)
        return err_set(eb, ERR_INVALID, "RegisterNamespace: blocks of %llu bytes are over the limit",
                       (unsigned long long)bytes);
    *ret = (struct store_ns_shape){.payload_bytes = (uint32_t)bytes,
                                   .n_ranges = (uint32_t)m->n_range_sizes,
                                   .n_full = m->n_full,
                                   .seg_blocks = m->seg_blocks,
                                   .range_sizes = m->range_sizes};
    return 0;
}

static int register_ns(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct session *ss = session_of(call->conn)->session;
    struct msg_register_ns_req m;
    int rv = SVC_DECODE(call, register_ns_req, &m, eb);
    if (rv < 0)
        return rv;
    uint8_t digest[DIGEST_BYTES];
    digest_sha256(m.descriptor.p, m.descriptor.n, digest);
    if (m.digest.n != DIGEST_BYTES || memcmp(digest, m.digest.p, DIGEST_BYTES) != 0)
        return err_set(eb, ERR_INVALID, "RegisterNamespace: the digest is not that of the descriptor");
    if (!session_ns_allowed(ss, digest))
        return err_set(eb, ERR_DENIED, "RegisterNamespace: not one of this token's namespaces");
    struct store_ns_shape shape;
    rv = shape_of(&m, &shape, eb);
    if (rv < 0)
        return rv;
    uint32_t ns;
    rv = block_store_ns_register(s->store, digest, &shape, &ns, eb);
    if (rv < 0)
        return err_wrap(eb, rv, "RegisterNamespace");
    if (ns >= SESSION_MAX_NS)
        return err_set(eb, ERR_BUSY, "RegisterNamespace: too many namespaces");
    rv = remember_descriptor(s, ns, &m.descriptor);
    if (rv < 0)
        return rv;
    session_note_ns(ss, ns);
    struct store_ns_info info;
    block_store_ns_info(s->store, ns, &info);
    struct msg_register_ns_res res = {
        .ns = ns + 1, .slot_bytes = info.slot_bytes, .resident_blocks = info.n_ram + info.n_disk};
    return SVC_REPLY(call, register_ns_res, &res);
}

/* ---- Lookup, Touch, Release, Heartbeat ---- */

static int lookup(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct session *ss = session_of(call->conn)->session;
    struct msg_lookup_req m;
    struct store_lookup l = {0};
    int rv = SVC_DECODE(call, lookup_req, &m, eb);
    if (rv == 0)
        rv = svc_check_ids(s, m.n_ids, eb);
    if (rv == 0)
        rv = svc_check_ns(s, call, m.ns, &l.ns, eb);
    if (rv < 0)
        return rv;
    if (m.have > m.n_ids)
        return err_set(eb, ERR_INVALID, "Lookup: have %u of %zu ids", m.have, m.n_ids);
    l.ids = m.ids;
    l.n = (uint32_t)m.n_ids;
    l.have = m.have;
    /* A claim is never granted yet; the asker then computes, as it would after a claim of its own. */
    l.flags = (m.flags & MSG_LOOKUP_F_TOUCH ? STORE_LOOKUP_TOUCH : 0u) |
              (m.flags & MSG_LOOKUP_F_LEASE ? STORE_LOOKUP_LEASE : 0u);
    l.where = bump_alloc(call->scratch, m.n_ids + 1);
    if (!l.where)
        return ERR_TOOBIG;
    memset(l.where, STORE_ABSENT, m.n_ids + 1);
    rv = block_store_lookup(s->store, ss->store, &l);
    if (rv < 0)
        return err_set(eb, rv, "Lookup");
    struct msg_lookup_res res = {.status = {l.where, m.n_ids},
                                 .n_prefix = l.have + l.n_run,
                                 .lease_id = l.lease_id,
                                 .lease_first = l.have,
                                 .lease_count = l.n_leased,
                                 .lease_ttl_ms = s->cfg->lease_ttl_ms};
    rv = SVC_REPLY(call, lookup_res, &res);
    METRIC_OBSERVE(&s->met, lookup_seconds, (double)(clock_mono_ns(s->clk) - call->recv_ns) * 1e-9);
    log_debug(s->log, "lookup", "session=%llu ids=%u have=%u run=%u leased=%u trace=%s",
              (unsigned long long)ss->number, l.n, l.have, l.n_run, l.n_leased,
              m.traceparent ? m.traceparent : "");
    return rv;
}

static int touch(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_touch_req m;
    uint32_t ns;
    int rv = SVC_DECODE(call, touch_req, &m, eb);
    if (rv == 0)
        rv = svc_check_ids(s, m.n_ids, eb);
    if (rv == 0)
        rv = svc_check_ns(s, call, m.ns, &ns, eb);
    if (rv < 0)
        return rv;
    return svc_reply_ack(call, block_store_touch(s->store, ns, m.ids, (uint32_t)m.n_ids));
}

static int release(void *arg, struct rpc_call *call, struct errbuf *eb) {
    (void)arg;
    struct msg_release_req m;
    int rv = SVC_DECODE(call, release_req, &m, eb);
    if (rv < 0)
        return rv;
    /* An expired lease is as good as a released one. */
    bool had = m.lease_id != 0 &&
               block_store_release(session_of(call->conn)->session->store, m.lease_id) == 0;
    return svc_reply_ack(call, had);
}

static int heartbeat(void *arg, struct rpc_call *call, struct errbuf *eb) {
    (void)arg;
    struct msg_heartbeat_req m;
    int rv = SVC_DECODE(call, heartbeat_req, &m, eb);
    if (rv < 0)
        return rv;
    block_store_session_heartbeat(session_of(call->conn)->session->store);
    return svc_reply_ack(call, m.n_lease_ids);
}

/* ---- method table: name, number, grants, handler; methods without a row answer UNIMPLEMENTED ---- */

#define CONTROL_READ (GRANT_CONTROL | GRANT_READ)
const struct rpc_method svc_methods[] = {
    {WIRE_HELLO, 0, svc_hello, NULL, NULL},
    {WIRE_REGISTER_NS, CONTROL_READ, register_ns, NULL, NULL},
    {WIRE_LOOKUP, CONTROL_READ, lookup, NULL, NULL},
    {WIRE_TOUCH, CONTROL_READ, touch, NULL, NULL},
    {WIRE_FETCH, GRANT_DATA | GRANT_READ, svc_fetch, NULL, NULL},
    {WIRE_CANCEL, GRANT_SESSION, svc_cancel, NULL, NULL},
    {WIRE_PUT_BEGIN, GRANT_CONTROL | GRANT_WRITE, svc_put_begin, NULL, NULL},
    {WIRE_PUT_DATA, GRANT_DATA | GRANT_WRITE, svc_put_data, svc_put_sink, svc_put_sink_abort},
    {WIRE_PUT_COMMIT, GRANT_CONTROL | GRANT_WRITE, svc_put_commit, NULL, NULL},
    {WIRE_PUT_ABORT, GRANT_CONTROL | GRANT_WRITE, svc_put_abort, NULL, NULL},
    {WIRE_RELEASE, CONTROL_READ, release, NULL, NULL},
    {WIRE_HEARTBEAT, CONTROL_READ, heartbeat, NULL, NULL},
    {WIRE_STATS, CONTROL_READ, svc_stats, NULL, NULL},
    {WIRE_LIST, CONTROL_READ, svc_list, NULL, NULL},
    {WIRE_INSPECT, CONTROL_READ, svc_inspect, NULL, NULL},
    {WIRE_EVICT, GRANT_CONTROL | GRANT_ADMIN, svc_evict, NULL, NULL},
    {WIRE_FLUSH, GRANT_CONTROL | GRANT_ADMIN, svc_flush, NULL, NULL},
};
const size_t svc_n_methods = ARRAY_LEN(svc_methods);
