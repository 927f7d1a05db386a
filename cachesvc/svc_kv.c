/* What the store answers from memory: RegisterNamespace, Lookup, Touch, Release, Heartbeat. */
#include "cachesvc/svc.h"

#include "common/check.h"

#define RECALLED_MAX 256u /* told in one answer beyond the number of named leases */

/* ---- RegisterNamespace ---- */

/* Of a number that meant another namespace before, the text is another. */
static int remember_descriptor(struct cachesvc *s, uint32_t ns, const struct msg_bytes *text) {
    struct svc_descriptor *d = &s->descriptor[ns];
    if (d->text && d->len == text->n && memcmp(d->text, text->p, text->n) == 0)
        return 0;
    char *own = malloc(text->n + 1);
    if (!own)
        return ERR_NOMEM;
    memcpy(own, text->p, text->n);
    own[text->n] = '\0';
    free(d->text);
    *d = (struct svc_descriptor){own, text->n};
    return 0;
}

void svc_kv_end_session(struct cachesvc *s, struct session *ss) {
    for (uint32_t ns = 0; ns < SESSION_MAX_NS; ns++) {
        struct store_ns_info info;
        if (!session_may_use_ns(ss, ns + 1))
            continue;
        block_store_ns_drop(s->store, ns);
        block_store_ns_info(s->store, ns, &info);
        if (!info.is_idle)
            continue;
        free(s->descriptor[ns].text);
        s->descriptor[ns] = (struct svc_descriptor){0};
    }
    share_give(&ss->bound[BOUND_NAMESPACES], ss->bound[BOUND_NAMESPACES].used);
}

/* Who brings a namespace in has it counted until its session ends; who joins others does not. */
static int add_ns(struct cachesvc *s, struct session *ss, const uint8_t digest[DIGEST_BYTES],
                  const struct store_ns_shape *shape, uint32_t *ret_ns, struct errbuf *eb) {
    struct store_ns_info info = {.is_idle = true};
    if (block_store_ns_find(s->store, digest, ret_ns) == 0)
        block_store_ns_info(s->store, *ret_ns, &info);
    if (info.is_idle && !share_take(&ss->bound[BOUND_NAMESPACES], 1))
        return session_refuse(ss, BOUND_NAMESPACES, "RegisterNamespace", eb);
    int rv = block_store_ns_register(s->store, digest, shape, ret_ns, eb);
    if (rv < 0 && info.is_idle)
        share_give(&ss->bound[BOUND_NAMESPACES], 1);
    return rv;
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
        return err_set(eb, ERR_INVALID,
                       "RegisterNamespace: blocks of %llu bytes are over the limit",
                       (unsigned long long)bytes);
    *ret = (struct store_ns_shape){.payload_bytes = (uint32_t)bytes,
                                   .n_ranges = (uint32_t)m->n_range_sizes,
                                   .n_full = m->n_full,
                                   .seg_blocks = m->seg_blocks,
                                   .range_sizes = m->range_sizes};
    return 0;
}

int svc_register_ns(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct session *ss = session_of(call->conn)->session;
    struct msg_register_ns_req m;
    int rv = SVC_DECODE(call, register_ns_req, &m, eb);
    if (rv < 0)
        return rv;
    if (m.descriptor.n > SVC_MAX_DESCRIPTOR)
        return err_set(eb, ERR_INVALID, "RegisterNamespace: a descriptor of %zu bytes, at most %u",
                       m.descriptor.n, SVC_MAX_DESCRIPTOR);
    uint8_t digest[DIGEST_BYTES];
    digest_sha256(m.descriptor.p, m.descriptor.n, digest);
    if (m.digest.n != DIGEST_BYTES || memcmp(digest, m.digest.p, DIGEST_BYTES) != 0)
        return err_set(eb, ERR_INVALID,
                       "RegisterNamespace: the digest is not that of the descriptor");
    if (!auth_ns_allowed(ss->auth, digest))
        return err_set(eb, ERR_DENIED, "RegisterNamespace: not one of this token's namespaces");
    struct store_ns_shape shape;
    uint32_t ns;
    rv = shape_of(&m, &shape, eb);
    if (rv < 0)
        return rv;
    /* What nobody has filled, a reader can't read. */
    if (ss->role == MSG_ROLE_READER && block_store_ns_find(s->store, digest, &ns) < 0)
        return err_set(eb, ERR_NOTFOUND, "RegisterNamespace: no worker has registered it here");
    rv = add_ns(s, ss, digest, &shape, &ns, eb);
    if (rv < 0)
        return err_wrap(eb, rv, "RegisterNamespace");
    CHECK(ns < SESSION_MAX_NS); /* the store's limit */
    if (session_note_ns(ss, ns))
        block_store_ns_hold(s->store, ns);
    rv = remember_descriptor(s, ns, &m.descriptor);
    if (rv < 0)
        return rv;
    struct store_ns_info info;
    block_store_ns_info(s->store, ns, &info);
    struct msg_register_ns_res res = {
        .ns = ns + 1, .slot_bytes = info.slot_bytes, .resident_blocks = info.n_ram + info.n_disk};
    return SVC_REPLY(call, register_ns_res, &res);
}

/* ---- Lookup, Touch, Release, Heartbeat ---- */

int svc_lookup(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct session *ss = session_of(call->conn)->session;
    struct msg_lookup_req m;
    struct store_lookup l = {0};
    int rv = SVC_DECODE(call, lookup_req, &m, eb);
    if (rv < 0)
        return rv;
    svc_note_trace(s, m.traceparent);
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
              (unsigned long long)ss->number, l.n, l.have, l.n_run, l.n_leased, s->trace);
    return rv;
}

int svc_touch(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_touch_req m;
    uint32_t ns;
    int rv = SVC_DECODE(call, touch_req, &m, eb);
    if (rv < 0)
        return rv;
    svc_note_trace(s, m.traceparent);
    rv = svc_check_ids(s, m.n_ids, eb);
    if (rv == 0)
        rv = svc_check_ns(s, call, m.ns, &ns, eb);
    if (rv < 0)
        return rv;
    return svc_reply_ack(call, block_store_touch(s->store, ns, m.ids, (uint32_t)m.n_ids));
}

int svc_release(void *arg, struct rpc_call *call, struct errbuf *eb) {
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

int svc_heartbeat(void *arg, struct rpc_call *call, struct errbuf *eb) {
    (void)arg;
    struct msg_heartbeat_req m;
    int rv = SVC_DECODE(call, heartbeat_req, &m, eb);
    if (rv < 0)
        return rv;
    /* Recalled ones are told whether named or not. */
    uint32_t max = (uint32_t)m.n_lease_ids + RECALLED_MAX;
    uint64_t *recalled = bump_alloc(call->scratch, max * sizeof(*recalled));
    uint64_t *ended = bump_alloc(call->scratch, max * sizeof(*ended));
    if (!recalled || !ended)
        return ERR_TOOBIG;
    struct store_heartbeat h = {.ids = m.lease_ids,
                                .n = (uint32_t)m.n_lease_ids,
                                .max = max,
                                .recalled = recalled,
                                .ended = ended};
    block_store_heartbeat(session_of(call->conn)->session->store, &h);
    struct msg_heartbeat_res res = {.renewed = h.n_renewed,
                                    .n_recalled = h.n_recalled,
                                    .recalled = recalled,
                                    .n_ended = h.n_ended,
                                    .ended = ended};
    return SVC_REPLY(call, heartbeat_res, &res);
}
