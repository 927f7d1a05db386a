/* The beginning and the end of sessions and their connections. */
#include "cachesvc/svc.h"

#include "common/check.h"

static uint32_t role_grants(uint32_t role) {
    uint32_t g = GRANT_SESSION | GRANT_CONTROL | GRANT_READ;
    if (role != MSG_ROLE_READER)
        g |= GRANT_WRITE;
    if (role == MSG_ROLE_ADMIN)
        g |= GRANT_ADMIN;
    return g;
}

/* ---- who is refused ---- */

/* A Hello with a wrong token: its answer waits, nothing more is read from the connection, and then it ends.
 * So one connection is one guess, and the connections that have not said Hello are few. */
struct svc_denied {
    struct list link;      /* cachesvc.denied, by due_ns */
    struct rpc_conn *conn; /* referenced */
    struct wire_hdr hdr;
    uint64_t due_ns;
};

int svc_session_init(struct cachesvc *s) {
    list_init(&s->denied);
    return slabpool_init(&s->denials, SVC_MAX_DENIED, sizeof(struct svc_denied));
}

static void forget_denied(struct cachesvc *s, struct svc_denied *d) {
    list_remove(&d->link);
    rpc_conn_unref(d->conn);
    slabpool_give(&s->denials, d);
}

void svc_session_fini(struct cachesvc *s) {
    LIST_FOREACH_SAFE(&s->denied, it, tmp)
    forget_denied(s, LIST_ENTRY(it, struct svc_denied, link));
    slabpool_fini(&s->denials);
}

static int deny(struct cachesvc *s, struct rpc_call *call, const struct msg_hello_req *m) {
    METRIC_INC(&s->met, hello_denied_total);
    log_warn(s->log, "a Hello was refused: no such token for this role",
             "peer=%s role=%u total=%llu", rpc_conn_peer(call->conn), m->role,
             (unsigned long long)s->met.hello_denied_total);
    struct svc_denied *d = slabpool_take(&s->denials);
    if (!d) { /* so many at once are no operator's mistake */
        rpc_server_drop_conn(s->rpc, call->conn);
        return 0;
    }
    d->conn = rpc_conn_ref(call->conn);
    d->hdr = call->hdr;
    d->due_ns = call->recv_ns + s->cfg->hello_delay_ms * NS_PER_MS;
    list_push_back(&s->denied, &d->link);
    rpc_conn_pause(call->conn, true);
    return 0;
}

/* Since any of its connections brought a byte, ns. */
static uint64_t session_idle_ns(const struct session *ss) {
    uint64_t idle = rpc_conn_idle_ns(ss->control.conn);
    for (uint32_t i = 0; i < SESSION_MAX_DATA; i++)
        if (ss->data[i].conn)
            idle = MIN(idle, rpc_conn_idle_ns(ss->data[i].conn));
    return idle;
}

/* What a session holds must end when its client has stopped without saying so: keepalive finds a host
 * that is gone, this a process that hangs. Heartbeat is what a client sends when it has nothing to ask. */
static void end_silent(struct cachesvc *s) {
    LIST_FOREACH(&s->sessions.all, it) {
        struct session *ss = LIST_ENTRY(it, struct session, link);
        if (rpc_conn_is_closed(ss->control.conn) ||
            session_idle_ns(ss) <= s->cfg->session_silence_ms * NS_PER_MS)
            continue;
        METRIC_INC(&s->met, sessions_silent_total);
        log_warn(s->log, "session silent, ended", "session=%llu client=%s peer=%s",
                 (unsigned long long)ss->number, ss->name, rpc_conn_peer(ss->control.conn));
        rpc_server_drop_conn(s->rpc, ss->control.conn); /* the rest follows from the loop */
    }
}

void svc_session_tick(struct cachesvc *s) {
    end_silent(s);
    uint64_t now = clock_mono_ns(s->clk);
    LIST_FOREACH_SAFE(&s->denied, it, tmp) {
        struct svc_denied *d = LIST_ENTRY(it, struct svc_denied, link);
        if (now < d->due_ns)
            return;
        (void)rpc_conn_reply_error(d->conn, &d->hdr, ERR_DENIED,
                                   "Hello: no such token for this role");
        rpc_server_end_conn(s->rpc, d->conn);
        forget_denied(s, d);
    }
}

/* ---- Hello ---- */

/* *ret stays NULL when the answer is a refusal that waits. */
static int open_session(struct cachesvc *s, struct rpc_call *call, const struct msg_hello_req *m,
                        struct session **ret, struct errbuf *eb) {
    const struct auth_token *token;
    if (auth_check(&s->auth, m->token.p, m->token.n, m->role, &token) < 0)
        return deny(s, call, m);
    struct session *ss;
    int rv = session_open(&s->sessions, s->store, call->conn, token, &ss, eb);
    if (rv < 0)
        return rv;
    ss->role = m->role;
    ss->features = m->features & SVC_FEATURES;
    ss->opened_ns = call->recv_ns;
    session_set_name(ss, m->client_name);
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
        return err_set(eb, rv, "Hello: the session has its %u data connections",
                       s->cfg->max_data_conns);
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
    /* A data connection has its session's role; it need not name one. */
    if (m.role > MSG_ROLE_ADMIN || (m.role < MSG_ROLE_WORKER && m.session_token.n == 0))
        return err_set(eb, ERR_INVALID, "Hello: role %u is unknown", m.role);
    struct msg_hello_res res = {.version = WIRE_VERSION,
                                .features = m.features & SVC_FEATURES,
                                .node_id = s->cfg->node_id,
                                .epoch = s->index->ops->epoch(s->index),
                                .node_name = s->name,
                                .server_version = INCIPIT_VERSION,
                                .max_message_bytes = WIRE_MAX_MSG_BYTES,
                                .max_payload_bytes = WIRE_MAX_PAYLOAD_BYTES,
                                .max_ids = s->cfg->max_ids,
                                .max_data_conns = s->cfg->max_data_conns,
                                .lease_ttl_ms = s->cfg->lease_ttl_ms,
                                .max_inflight = s->cfg->max_waiting};
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
    if (rv < 0 || !ss)
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
    svc_admin_end_session(ss);
    svc_kv_end_session(s, ss);
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

/* ---- tokens that are read again ---- */

void svc_replace_tokens(struct cachesvc *s, struct auth *take_fresh) {
    LIST_FOREACH(&s->sessions.all, it) {
        struct session *ss = LIST_ENTRY(it, struct session, link);
        if (!ss->auth || auth_find(take_fresh, ss->auth))
            continue; /* without tokens at the start none come by a reload */
        log_info(s->log, "session ends, its token was changed or taken away",
                 "session=%llu client=%s", (unsigned long long)ss->number, ss->name);
        rpc_server_drop_conn(s->rpc, ss->control.conn); /* the rest when the loop goes on */
    }
    auth_fini(&s->auth);
    s->auth = *take_fresh;
    session_table_expect(&s->sessions, s->auth.n);
}
