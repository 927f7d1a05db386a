#include "tests/support/fake_node.h"

#include "common/check.h"
#include "common/checksum.h"
#include "proto/kv_route.h"

enum { GRANT_HELLO = 1, GRANT_DATA = 2 };

struct fake_put {
    struct list link;
    uint64_t id;
    uint32_t n;
    uint32_t *block;     /* [n] index in node->blocks, UINT32_MAX: not wanted */
    struct list commits; /* struct fake_commit, waiting for payload */
};

struct fake_commit {
    struct list link;
    struct rpc_conn *conn;
    struct wire_hdr hdr;
    uint32_t *indexes;
    size_t n;
};

struct fake_fetch {
    struct list link;
    struct fake_node *node;
    struct rpc_conn *conn;
    struct wire_hdr hdr;
    struct block_id *ids;
    uint32_t n, next, first_range, n_ranges;
};

static struct fake_block *find(const struct fake_node *n, const struct block_id *id) {
    for (uint32_t i = 0; i < n->n_blocks; i++)
        if (block_id_equal(&n->blocks[i].id, id))
            return &n->blocks[i];
    return NULL;
}

const struct fake_block *fake_node_find(const struct fake_node *n, const struct block_id *id) {
    const struct fake_block *b = find(n, id);
    return b && b->is_visible ? b : NULL;
}

static struct fake_block *new_block(struct fake_node *n) {
    if (n->n_blocks == n->cap_blocks) {
        n->cap_blocks = n->cap_blocks ? n->cap_blocks * 2 : 64;
        n->blocks = realloc(n->blocks, n->cap_blocks * sizeof(*n->blocks));
        CHECK(n->blocks);
    }
    struct fake_block *b = &n->blocks[n->n_blocks++];
    *b = (struct fake_block){0};
    return b;
}

static struct fake_ns *new_ns(struct fake_node *n, const uint8_t *digest) {
    CHECK(n->n_ns < ARRAY_LEN(n->ns));
    struct fake_ns *ns = &n->ns[n->n_ns++];
    *ns = (struct fake_ns){0};
    memcpy(ns->digest, digest, sizeof(ns->digest));
    return ns;
}

uint32_t fake_node_add_ns(struct fake_node *n, const uint8_t digest[32], uint64_t payload_bytes,
                          uint32_t n_ranges) {
    struct fake_ns *ns = new_ns(n, digest);
    ns->payload_bytes = payload_bytes;
    ns->n_ranges = ns->n_full = n_ranges;
    ns->seg_blocks = KV_ROUTE_SEG_BLOCKS;
    for (uint32_t i = 0; i < n_ranges; i++)
        ns->range_sizes[i] = (uint32_t)(payload_bytes / n_ranges);
    return n->n_ns;
}

void fake_node_add(struct fake_node *n, uint32_t ns, const struct block_id *id,
                   const void *payload) {
    const struct fake_ns *s = &n->ns[ns - 1];
    struct fake_block *b = new_block(n);
    b->id = *id;
    b->ns = ns;
    b->payload = malloc(s->payload_bytes);
    b->sums = calloc(s->n_ranges, sizeof(*b->sums));
    CHECK(b->payload && b->sums);
    memcpy(b->payload, payload, s->payload_bytes);
    b->checksum = checksum_block(b->payload, s->range_sizes, s->n_ranges, id->b, b->sums);
    b->is_visible = true;
}

/* Counts the call; true when a knob already dealt with it (then *rv is the handler's result). */
static bool knob(struct fake_node *n, const struct rpc_call *c, int *rv) {
    n->calls[c->hdr.method]++;
    n->deadline_ms[c->hdr.method] = c->hdr.deadline_ms;
    *rv = 0;
    if (n->mute == c->hdr.method)
        return true;
    if (n->fail_method == c->hdr.method) {
        *rv = n->fail_err;
        return true;
    }
    return false;
}

static int reply(const struct fake_node *n, struct rpc_call *c) {
    int rv = rpc_call_reply(c);
    if (rv == 0 && n->repeat_method == c->hdr.method)
        rv = rpc_call_reply(c);
    return rv;
}

#define DECODE(name, m)                                                                            \
    struct msg_##name m;                                                                           \
    int rv;                                                                                        \
    struct fake_node *n = arg;                                                                     \
    if (knob(n, c, &rv))                                                                           \
        return rv;                                                                                 \
    rv = wire_msg_##name##_decode(c->scratch, c->msg, c->hdr.msg_len, &m, eb);                     \
    if (rv < 0)                                                                                    \
        return rv;
#define REPLY(name, m)                                                                             \
    (wire_msg_##name##_encode(c->scratch, m, c->out) < 0 ? ERR_TOOBIG : reply(n, c))

static int h_hello(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(hello_req, m)
    size_t want = n->token ? strlen(n->token) : 0;
    bool is_join = m.session_token.n > 0;
    if (!is_join && (m.token.n != want || (want && memcmp(m.token.p, n->token, want) != 0)))
        return err_set(eb, ERR_DENIED, "wrong token");
    uint8_t session[16] = "fake-session-00";
    rpc_conn_set_grants(c->conn, GRANT_HELLO | (is_join ? GRANT_DATA : 0));
    struct msg_hello_res res = {.version = WIRE_VERSION,
                                .node_id = n->node_id,
                                .epoch = 7,
                                .session_token = {session, is_join ? 0 : sizeof(session)},
                                .node_name = "fake",
                                .server_version = "0",
                                .max_message_bytes = WIRE_MAX_MSG_BYTES,
                                .max_payload_bytes = WIRE_MAX_PAYLOAD_BYTES,
                                .max_ids = WIRE_MAX_IDS,
                                .max_data_conns = 4,
                                .lease_ttl_ms = n->lease_ttl_ms,
                                .max_inflight = 64,
                                .conn = is_join};
    return REPLY(hello_res, &res);
}

static int h_register(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(register_ns_req, m)
    CHECK(m.digest.n == 32);
    uint32_t i = 0;
    while (i < n->n_ns && memcmp(n->ns[i].digest, m.digest.p, 32) != 0)
        i++;
    if (i == n->n_ns) {
        struct fake_ns *ns = new_ns(n, m.digest.p);
        CHECK(m.n_range_sizes <= ARRAY_LEN(ns->range_sizes));
        ns->n_ranges = (uint32_t)m.n_range_sizes;
        ns->n_full = m.n_full;
        ns->seg_blocks = m.seg_blocks;
        for (uint32_t k = 0; k < ns->n_ranges; k++)
            ns->payload_bytes += ns->range_sizes[k] = m.range_sizes[k];
    }
    struct msg_register_ns_res res = {.ns = i + 1, .slot_bytes = n->ns[i].payload_bytes};
    return REPLY(register_ns_res, &res);
}

static int h_lookup(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(lookup_req, m)
    snprintf(n->last_traceparent, sizeof(n->last_traceparent), "%s", m.traceparent);
    uint8_t *st = bump_alloc(c->scratch, m.n_ids ? m.n_ids : 1);
    struct msg_lookup_res res = {.status = {st, m.n_ids}};
    bool is_run = true;
    for (size_t i = 0; i < m.n_ids; i++) {
        st[i] = fake_node_find(n, &m.ids[i]) ? MSG_LOOKUP_RAM : MSG_LOOKUP_ABSENT;
        is_run = is_run && (st[i] == MSG_LOOKUP_RAM || i < m.have);
        res.n_prefix += is_run;
    }
    if ((m.flags & MSG_LOOKUP_F_LEASE) && res.n_prefix > m.have) {
        res.lease_id = n->next_id++;
        res.lease_first = m.have;
        res.lease_count = res.n_prefix - m.have;
        n->n_open_leases++;
    }
    return REPLY(lookup_res, &res);
}

static int h_touch(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(touch_req, m)
    struct msg_ack res = {.count = m.n_ids};
    return REPLY(ack, &res);
}

static int h_release(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(release_req, m)
    n->n_open_leases -= m.lease_id != 0;
    struct msg_ack res = {.count = 1};
    return REPLY(ack, &res);
}

static int h_heartbeat(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(heartbeat_req, m)
    n->n_heartbeat_leases = (uint32_t)m.n_lease_ids;
    struct msg_heartbeat_res res = {.renewed = (uint32_t)m.n_lease_ids};
    if (n->recall_lease)
        res.recalled = &n->recall_lease, res.n_recalled = 1;
    if (n->end_lease)
        res.ended = &n->end_lease, res.n_ended = 1;
    return REPLY(heartbeat_res, &res);
}

/* ---- fetch ---- */

static void fetch_free(struct fake_fetch *f) {
    list_remove(&f->link);
    rpc_conn_unref(f->conn);
    free(f->ids);
    free(f);
}

static int send_status(struct fake_fetch *f, uint32_t count, uint32_t status, bool is_last) {
    struct bump *scratch;
    struct buf *out;
    rpc_server_scratch(f->node->server, &scratch, &out);
    struct msg_fetch_block m = {.index = f->next, .count = count, .status = status};
    CHECK(wire_msg_fetch_block_encode(scratch, &m, out) == 0);
    return rpc_conn_reply(f->conn, &f->hdr, is_last, out->data, out->len, NULL);
}

static int send_hit(struct fake_fetch *f, const struct fake_block *b, bool is_last) {
    struct fake_node *n = f->node;
    const struct fake_ns *ns = &n->ns[b->ns - 1];
    struct bump *scratch;
    struct buf *out;
    rpc_server_scratch(n->server, &scratch, &out);
    struct msg_fetch_block m = {.index = f->next,
                                .count = 1,
                                .checksum = b->checksum,
                                .n_range_checksums = ns->n_ranges,
                                .range_checksums = b->sums,
                                .first_range = f->first_range,
                                .n_ranges =
                                    f->n_ranges ? f->n_ranges : ns->n_ranges - f->first_range};
    CHECK(wire_msg_fetch_block_encode(scratch, &m, out) == 0);
    uint32_t from = 0, bytes = 0;
    for (uint32_t i = 0; i < m.first_range + m.n_ranges; i++)
        *(i < m.first_range ? &from : &bytes) += ns->range_sizes[i];
    struct buf *payload = buf_new(bytes);
    CHECK(payload);
    memcpy(payload->data, b->payload + from, bytes);
    payload->len = bytes;
    if (n->corrupt_block >= 0 && n->corrupt_block-- == 0)
        payload->data[bytes / 2] ^= 1;
    return rpc_conn_reply(f->conn, &f->hdr, is_last, out->data, out->len, payload);
}

static void fetch_pump(struct fake_fetch *f) {
    while (f->next < f->n && rpc_conn_writable(f->conn)) {
        if (f->node->fetch_limit && f->next >= f->node->fetch_limit)
            return;
        const struct fake_block *b = fake_node_find(f->node, &f->ids[f->next]);
        if (f->node->swap_block >= 0 && f->node->swap_block-- == 0)
            b = &f->node->blocks[0];
        bool is_last = f->next + 1 == f->n;
        if ((b ? send_hit(f, b, is_last) : send_status(f, 1, MSG_FETCH_ABSENT, is_last)) ==
            ERR_BUSY)
            return;
        f->next++;
    }
    if (f->next == f->n || rpc_conn_is_closed(f->conn))
        fetch_free(f);
}

static int h_fetch(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(fetch_req, m)
    struct fake_fetch *f = calloc(1, sizeof(*f));
    CHECK(f);
    f->node = n;
    f->conn = rpc_conn_ref(c->conn);
    f->hdr = c->hdr;
    f->n = (uint32_t)m.n_ids;
    f->first_range = m.first_range;
    f->n_ranges = m.n_ranges;
    f->ids = calloc(m.n_ids, sizeof(*f->ids));
    CHECK(f->ids);
    memcpy(f->ids, m.ids, m.n_ids * sizeof(*f->ids));
    list_push_back(&n->fetches, &f->link);
    fetch_pump(f);
    return 0;
}

static void on_drain(void *arg, struct rpc_conn *c) {
    struct fake_node *n = arg;
    LIST_FOREACH_SAFE(&n->fetches, it, tmp) {
        struct fake_fetch *f = LIST_ENTRY(it, struct fake_fetch, link);
        if (f->conn == c)
            fetch_pump(f);
    }
}

static int h_cancel(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(cancel_req, m)
    LIST_FOREACH_SAFE(&n->fetches, it, tmp) {
        struct fake_fetch *f = LIST_ENTRY(it, struct fake_fetch, link);
        if (f->conn == c->conn && f->hdr.request_id == m.request_id) {
            n->n_canceled++;
            (void)rpc_conn_drop_queued(f->conn, f->hdr.request_id);
            (void)send_status(f, f->n - f->next, MSG_FETCH_CANCELED, true);
            fetch_free(f);
        }
    }
    struct msg_ack res = {0};
    c->out->len = 0; /* send_status() used it */
    return REPLY(ack, &res);
}

/* ---- put ---- */

static struct fake_put *find_put(struct fake_node *n, uint64_t id) {
    LIST_FOREACH(&n->puts, it) {
        struct fake_put *p = LIST_ENTRY(it, struct fake_put, link);
        if (p->id == id)
            return p;
    }
    return NULL;
}

static void commit_free(struct fake_commit *k) {
    list_remove(&k->link);
    rpc_conn_unref(k->conn);
    free(k->indexes);
    free(k);
}

static void put_free(struct fake_put *p) {
    while (!list_empty(&p->commits)) {
        struct fake_commit *k = LIST_ENTRY(p->commits.next, struct fake_commit, link);
        (void)rpc_conn_reply_error(k->conn, &k->hdr, ERR_CANCELED, "aborted");
        commit_free(k);
    }
    list_remove(&p->link);
    free(p->block);
    free(p);
}

static int h_put_begin(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(put_begin_req, m)
    if (m.n_parents != m.n_ids || m.n_depths != m.n_ids || m.n_checksums != m.n_ids)
        return err_set(eb, ERR_INVALID, "columns differ in length");
    struct fake_put *p = calloc(1, sizeof(*p));
    uint8_t *st = bump_alloc(c->scratch, m.n_ids ? m.n_ids : 1);
    CHECK(p && st);
    list_init(&p->commits);
    list_push_back(&n->puts, &p->link);
    p->id = n->next_id++;
    p->n = (uint32_t)m.n_ids;
    p->block = calloc(p->n + 1, sizeof(*p->block));
    CHECK(p->block);
    bool is_any = false;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct fake_block *old = find(n, &m.ids[i]);
        p->block[i] = UINT32_MAX;
        st[i] = !old                              ? MSG_PUT_WANTED
                : old->checksum != m.checksums[i] ? MSG_PUT_CONFLICT
                : old->is_visible                 ? MSG_PUT_PRESENT
                                                  : MSG_PUT_IN_FLIGHT;
        if (old)
            continue;
        struct fake_block *b = new_block(n);
        p->block[i] = n->n_blocks - 1;
        *b = (struct fake_block){.id = m.ids[i],
                                 .parent = m.parents[i],
                                 .depth = m.depths[i],
                                 .ns = m.ns,
                                 .checksum = m.checksums[i],
                                 .flags = m.block_flags.n ? m.block_flags.p[i] : 0};
        is_any = true;
    }
    struct msg_put_begin_res res = {.put_id = is_any ? p->id : 0, .status = {st, p->n}};
    if (!is_any)
        put_free(p);
    return REPLY(put_begin_res, &res);
}

static int s_put_data(void *arg, struct rpc_call *c, struct rpc_sink *ret, struct errbuf *eb) {
    struct fake_node *n = arg;
    struct msg_put_data m;
    int rv = wire_msg_put_data_decode(c->scratch, c->msg, c->hdr.msg_len, &m, eb);
    if (rv < 0)
        return rv;
    struct fake_put *p = find_put(n, m.put_id);
    if (!p || m.index >= p->n || p->block[m.index] == UINT32_MAX)
        return ERR_NOTFOUND;
    ret->dst = malloc(c->hdr.payload_len);
    CHECK(ret->dst);
    ret->u[0] = m.put_id;
    ret->u[1] = m.index;
    return 0;
}

static void a_put_data(void *arg, struct rpc_conn *c, struct rpc_sink *sink) {
    (void)arg, (void)c;
    free(sink->dst);
}

/* Answers COMMITs whose payloads are all there. */
static void put_progress(struct fake_node *n, struct fake_put *p) {
    LIST_FOREACH_SAFE(&p->commits, it, tmp) {
        struct fake_commit *k = LIST_ENTRY(it, struct fake_commit, link);
        bool is_ready = true;
        for (size_t i = 0; i < k->n; i++)
            is_ready = is_ready && n->blocks[p->block[k->indexes[i]]].payload;
        if (!is_ready)
            continue;
        struct bump *scratch;
        struct buf *out;
        rpc_server_scratch(n->server, &scratch, &out);
        uint8_t *st = bump_alloc(scratch, k->n);
        for (size_t i = 0; i < k->n; i++) {
            struct fake_block *b = &n->blocks[p->block[k->indexes[i]]];
            const struct fake_ns *ns = &n->ns[b->ns - 1];
            b->sums = calloc(ns->n_ranges, sizeof(*b->sums));
            uint64_t sum =
                checksum_block(b->payload, ns->range_sizes, ns->n_ranges, b->id.b, b->sums);
            b->is_visible = sum == b->checksum;
            st[i] = b->is_visible ? MSG_COMMIT_OK : MSG_COMMIT_CORRUPT;
        }
        struct msg_put_commit_res res = {.status = {st, k->n}};
        CHECK(wire_msg_put_commit_res_encode(scratch, &res, out) == 0);
        for (int i = 0; i < 1 + (n->repeat_method == WIRE_PUT_COMMIT); i++)
            (void)rpc_conn_reply(k->conn, &k->hdr, true, out->data, out->len, NULL);
        commit_free(k);
    }
}

static int h_put_data(void *arg, struct rpc_call *c, struct errbuf *eb) {
    struct fake_node *n = arg;
    (void)eb;
    n->calls[WIRE_PUT_DATA]++;
    struct fake_put *p = find_put(n, c->sink->u[0]);
    if (!p) { /* aborted meanwhile */
        free(c->sink->dst);
        return ERR_NOTFOUND;
    }
    n->blocks[p->block[c->sink->u[1]]].payload = c->sink->dst;
    put_progress(n, p);
    return 0;
}

static int h_put_commit(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(put_commit_req, m)
    struct fake_put *p = find_put(n, m.put_id);
    if (!p)
        return ERR_NOTFOUND;
    struct fake_commit *k = calloc(1, sizeof(*k));
    CHECK(k);
    k->conn = rpc_conn_ref(c->conn);
    k->hdr = c->hdr;
    k->n = m.n_indexes;
    k->indexes = calloc(m.n_indexes + 1, sizeof(*k->indexes));
    CHECK(k->indexes);
    memcpy(k->indexes, m.indexes, m.n_indexes * sizeof(*k->indexes));
    list_push_back(&p->commits, &k->link);
    put_progress(n, p);
    return 0;
}

static int h_put_abort(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(put_abort_req, m)
    struct fake_put *p = find_put(n, m.put_id);
    if (p)
        put_free(p);
    struct msg_ack res = {.count = p != NULL};
    return REPLY(ack, &res);
}

/* ---- admin ---- */

static int h_stats(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(stats_req, m)
    struct msg_stats_counter counter = {"fake_total", 2.5};
    struct msg_stats_res res = {.node_id = n->node_id,
                                .node_name = "fake",
                                .version = "0",
                                .blocks_ram = n->n_blocks,
                                .n_counters = 1,
                                .counters = &counter};
    return REPLY(stats_res, &res);
}

static struct msg_block_info info_of(const struct fake_node *n, const struct fake_block *b) {
    const struct fake_ns *ns = &n->ns[b->ns - 1];
    return (struct msg_block_info){.id = {b->id.b, 32},
                                   .parent = {b->parent.b, 32},
                                   .digest = {ns->digest, 32},
                                   .depth = b->depth,
                                   .state = MSG_BLOCK_RESIDENT,
                                   .ram = MSG_TIER_CLEAN,
                                   .payload_bytes = ns->payload_bytes,
                                   .checksum = b->checksum};
}

/* digest: empty for any */
static bool is_in(const struct fake_node *n, const struct fake_block *b,
                  const struct msg_bytes *digest) {
    return digest->n == 0 || memcmp(digest->p, n->ns[b->ns - 1].digest, 32) == 0;
}

/* Pages of at most 3, so that readers must follow the cursor. */
static int list_blocks(struct fake_node *n, struct rpc_call *c, const struct msg_list_req *m) {
    uint32_t at = 0, limit = m->limit ? MIN(m->limit, 3u) : 3u, k = 0;
    if (m->cursor.n == sizeof(at))
        memcpy(&at, m->cursor.p, sizeof(at));
    struct msg_block_info info[3];
    for (; at < n->n_blocks && k < limit; at++)
        if (n->blocks[at].is_visible && is_in(n, &n->blocks[at], &m->digest))
            info[k++] = info_of(n, &n->blocks[at]);
    struct msg_list_res res = {.n_blocks = k, .blocks = info};
    if (at < n->n_blocks)
        res.cursor = (struct msg_bytes){(uint8_t *)&at, sizeof(at)};
    return REPLY(list_res, &res);
}

static int h_list(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(list_req, m)
    if (m.what == MSG_LIST_BLOCKS)
        return list_blocks(n, c, &m);
    struct msg_namespace_info info[ARRAY_LEN(n->ns)];
    for (uint32_t i = 0; i < n->n_ns; i++)
        info[i] = (struct msg_namespace_info){.digest = {n->ns[i].digest, 32},
                                              .descriptor = {(uint8_t *)"block_tokens=4\n", 15},
                                              .payload_bytes = n->ns[i].payload_bytes,
                                              .n_ranges = n->ns[i].n_ranges,
                                              .n_range_sizes = n->ns[i].n_ranges,
                                              .range_sizes = n->ns[i].range_sizes,
                                              .n_full = n->ns[i].n_full,
                                              .seg_blocks = n->ns[i].seg_blocks};
    struct msg_session_info session = {
        .session = 1, .client_name = n->session_name, .peer = "unix", .role = MSG_ROLE_ADMIN};
    struct msg_list_res res = {0};
    if (m.what == MSG_LIST_NAMESPACES)
        res = (struct msg_list_res){.n_namespaces = n->n_ns, .namespaces = info};
    else
        res = (struct msg_list_res){.n_sessions = 1, .sessions = &session};
    return REPLY(list_res, &res);
}

static int h_inspect(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(inspect_req, m)
    if (m.id.n != 32)
        return ERR_INVALID;
    struct block_id id;
    memcpy(id.b, m.id.p, sizeof(id.b));
    const struct fake_block *b = NULL;
    for (uint32_t i = 0; i < n->n_blocks && !b; i++)
        if (n->blocks[i].is_visible && block_id_equal(&n->blocks[i].id, &id) &&
            is_in(n, &n->blocks[i], &m.digest))
            b = &n->blocks[i];
    if (!b)
        return err_set(eb, ERR_NOTFOUND, "no such block");
    struct msg_inspect_res res = {.block = info_of(n, b), .n_children = 1, .children = &id};
    return REPLY(inspect_res, &res);
}

/* By ids or by namespace. */
static int h_evict(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(evict_req, m)
    struct msg_evict_res res = {0};
    if (m.n_ids && !m.digest.n)
        return err_set(eb, ERR_INVALID, "Evict: ids without 'digest'");
    for (uint32_t i = 0; i < n->n_blocks; i++) {
        struct fake_block *b = &n->blocks[i];
        bool is_hit = m.n_ids == 0;
        for (size_t k = 0; k < m.n_ids; k++)
            is_hit = is_hit || block_id_equal(&m.ids[k], &b->id);
        is_hit = is_hit && b->is_visible && is_in(n, b, &m.digest);
        res.blocks += is_hit;
        res.bytes += is_hit ? n->ns[b->ns - 1].payload_bytes : 0;
        b->is_visible = b->is_visible && (!is_hit || m.dry_run);
    }
    return REPLY(evict_res, &res);
}

static int h_flush(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(flush_req, m)
    struct msg_evict_res res = {0};
    for (uint32_t i = 0; i < n->n_blocks; i++) {
        res.blocks += n->blocks[i].is_visible;
        n->blocks[i].is_visible = false;
    }
    return REPLY(evict_res, &res);
}

static int h_config_get(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(config_get_req, m)
    struct msg_config_item items[] = {{"log_level", n->log_level, "info", true, "how much is said"},
                                      {"ram_bytes", "64m", "1g", false, "the RAM tier"}};
    struct msg_config_get_res res = {.n_items = ARRAY_LEN(items), .items = items};
    if (m.name[0]) {
        res.n_items = 1;
        res.items = strcmp(m.name, "ram_bytes") == 0 ? &items[1] : &items[0];
        if (strcmp(m.name, res.items[0].name) != 0)
            return err_set(eb, ERR_NOTFOUND, "no option '%s'", m.name);
    }
    return REPLY(config_get_res, &res);
}

static int h_config_set(void *arg, struct rpc_call *c, struct errbuf *eb) {
    DECODE(config_set_req, m)
    if (strcmp(m.name, "log_level") != 0)
        return err_set(eb, ERR_DENIED, "option '%s' cannot change while running", m.name);
    snprintf(n->log_level, sizeof(n->log_level), "%s", m.value);
    struct msg_ack res = {.count = 1};
    return REPLY(ack, &res);
}

static const struct rpc_method methods[] = {
    {WIRE_HELLO, 0, h_hello, NULL, NULL},
    {WIRE_REGISTER_NS, GRANT_HELLO, h_register, NULL, NULL},
    {WIRE_LOOKUP, GRANT_HELLO, h_lookup, NULL, NULL},
    {WIRE_TOUCH, GRANT_HELLO, h_touch, NULL, NULL},
    {WIRE_RELEASE, GRANT_HELLO, h_release, NULL, NULL},
    {WIRE_HEARTBEAT, GRANT_HELLO, h_heartbeat, NULL, NULL},
    {WIRE_FETCH, GRANT_DATA, h_fetch, NULL, NULL},
    {WIRE_CANCEL, GRANT_HELLO, h_cancel, NULL, NULL},
    {WIRE_PUT_BEGIN, GRANT_HELLO, h_put_begin, NULL, NULL},
    {WIRE_PUT_DATA, GRANT_DATA, h_put_data, s_put_data, a_put_data},
    {WIRE_PUT_COMMIT, GRANT_HELLO, h_put_commit, NULL, NULL},
    {WIRE_PUT_ABORT, GRANT_HELLO, h_put_abort, NULL, NULL},
    {WIRE_STATS, GRANT_HELLO, h_stats, NULL, NULL},
    {WIRE_LIST, GRANT_HELLO, h_list, NULL, NULL},
    {WIRE_INSPECT, GRANT_HELLO, h_inspect, NULL, NULL},
    {WIRE_EVICT, GRANT_HELLO, h_evict, NULL, NULL},
    {WIRE_FLUSH, GRANT_HELLO, h_flush, NULL, NULL},
    {WIRE_CONFIG_GET, GRANT_HELLO, h_config_get, NULL, NULL},
    {WIRE_CONFIG_SET, GRANT_HELLO, h_config_set, NULL, NULL},
};

static void on_accept(void *arg, struct rpc_conn *c) {
    struct fake_node *n = arg;
    (void)c;
    n->n_conns++;
    n->n_accepted++;
}

static void on_gone(void *arg, struct rpc_conn *c) {
    struct fake_node *n = arg;
    n->n_conns--;
    LIST_FOREACH_SAFE(&n->fetches, it, tmp) {
        struct fake_fetch *f = LIST_ENTRY(it, struct fake_fetch, link);
        if (f->conn == c)
            fetch_free(f);
    }
}

int fake_node_open(struct fake_node *n, uv_loop_t *loop, const char *addr, uint16_t node_id) {
    *n = (struct fake_node){.loop = loop,
                            .node_id = node_id,
                            .corrupt_block = -1,
                            .swap_block = -1,
                            .next_id = 1,
                            .lease_ttl_ms = 5000,
                            .session_name = "me",
                            .log_level = "info"};
    list_init(&n->puts);
    list_init(&n->fetches);
    struct rpc_server_cfg cfg = {.methods = methods,
                                 .n_methods = ARRAY_LEN(methods),
                                 .arg = n,
                                 .on_accept = on_accept,
                                 .on_gone = on_gone,
                                 .on_drain = on_drain};
    struct rpc_addr a;
    struct errbuf eb;
    int rv = rpc_addr_parse(addr, &a, &eb);
    if (rv == 0)
        rv = rpc_server_open(&n->server, loop, &cfg, &eb);
    if (rv == 0)
        rv = rpc_server_listen(n->server, &a, &n->port, &eb);
    if (rv < 0)
        fprintf(stderr, "fake_node: %s\n", eb.text);
    return rv;
}

void fake_node_close(struct fake_node *n) {
    while (!list_empty(&n->puts))
        put_free(LIST_ENTRY(n->puts.next, struct fake_put, link));
    rpc_server_close(n->server, NULL, NULL);
    n->server = NULL;
}

void fake_node_fini(struct fake_node *n) {
    for (uint32_t i = 0; i < n->n_blocks; i++) {
        free(n->blocks[i].payload);
        free(n->blocks[i].sums);
    }
    free(n->blocks);
    n->blocks = NULL;
}
