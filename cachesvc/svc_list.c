/* What operators look at: List and Inspect, page by page, and nothing outside the token's namespaces. */
#include "cachesvc/svc.h"

#define LIST_MAX 256u                /* rows in one answer */
#define LIST_TEXT_BYTES (256u << 10) /* descriptors in one answer, so that it fits a message */

static struct msg_block_info block_info(const struct store_block_info *b) {
    static const uint8_t none[BLOCK_ID_BYTES];
    uint32_t state = b->hole ? MSG_BLOCK_HOLE : b->filling ? MSG_BLOCK_FILLING : MSG_BLOCK_RESIDENT;
    bool has_parent = memcmp(b->parent.b, none, sizeof(none)) != 0;
    return (struct msg_block_info){.id = {b->id.b, BLOCK_ID_BYTES},
                                   .parent = {b->parent.b, has_parent ? BLOCK_ID_BYTES : 0},
                                   .digest = {b->ns_digest, DIGEST_BYTES},
                                   .depth = b->depth,
                                   .state = state,
                                   .ram = b->ram,
                                   .disk = b->disk,
                                   .payload_bytes = b->payload_bytes,
                                   .checksum = b->checksum,
                                   .generation = b->ram_generation,
                                   .leases = b->leases,
                                   .pins = b->pins,
                                   .n_children = b->n_children,
                                   .put_time_ms = b->put_time_ms,
                                   .put_seq = b->put_seq,
                                   .writer = {b->writer, sizeof(b->writer)},
                                   .group = b->group,
                                   .foreign = b->foreign};
}

/* A cursor is the number of the row to go on from; empty: from the first. */
static uint64_t cursor_of(const struct msg_list_req *m) {
    uint64_t cursor = 0;
    if (m->cursor.n == sizeof(cursor))
        memcpy(&cursor, m->cursor.p, sizeof(cursor));
    return cursor;
}

static int reply_page(struct rpc_call *call, struct msg_list_res *res, uint64_t cursor) {
    if (cursor != 0)
        res->cursor = (struct msg_bytes){(const uint8_t *)&cursor, sizeof(cursor)};
    return SVC_REPLY(call, list_res, res);
}

static int list_blocks(struct cachesvc *s, struct rpc_call *call, const struct msg_list_req *m,
                       uint32_t limit, struct errbuf *eb) {
    struct msg_list_res res = {0};
    struct store_filter f = {0};
    uint64_t cursor = cursor_of(m);
    struct store_block_info *infos = bump_alloc(call->scratch, limit * sizeof(*infos));
    struct msg_block_info *out = bump_alloc(call->scratch, limit * sizeof(*out));
    if (!infos || !out)
        return ERR_TOOBIG;
    int rv = svc_filter_ns(call, &m->digest, &f, eb);
    if (rv < 0)
        return rv;
    res.n_blocks = block_store_list(s->store, &f, &cursor, infos, limit);
    for (size_t i = 0; i < res.n_blocks; i++)
        out[i] = block_info(&infos[i]);
    res.blocks = out;
    return reply_page(call, &res, cursor);
}

static int list_namespaces(struct cachesvc *s, struct rpc_call *call, const struct msg_list_req *m,
                           uint32_t limit) {
    const struct session *ss = session_of(call->conn)->session;
    uint32_t n = MIN(block_store_ns_count(s->store), (uint32_t)SESSION_MAX_NS);
    struct store_ns_info *infos = bump_alloc(call->scratch, limit * sizeof(*infos));
    struct msg_namespace_info *out = bump_alloc(call->scratch, limit * sizeof(*out));
    if (!infos || !out)
        return ERR_TOOBIG;
    struct msg_list_res res = {.namespaces = out};
    size_t text_bytes = 0;
    uint64_t at = cursor_of(m);
    for (; at < n && res.n_namespaces < limit; at++) {
        const struct svc_descriptor *d = &s->descriptor[at];
        struct store_ns_info *info = &infos[res.n_namespaces];
        block_store_ns_info(s->store, (uint32_t)at, info);
        bool is_named = m->digest.n == 0 || memcmp(m->digest.p, info->digest, DIGEST_BYTES) == 0;
        if (info->is_idle || !is_named || !auth_ns_allowed(ss->auth, info->digest))
            continue;
        text_bytes += d->len;
        if (text_bytes > LIST_TEXT_BYTES && res.n_namespaces > 0)
            break;
        out[res.n_namespaces++] = (struct msg_namespace_info){
            .digest = {info->digest, DIGEST_BYTES},
            .descriptor = {(const uint8_t *)d->text, d->len},
            .payload_bytes = info->shape.payload_bytes,
            .n_ranges = info->shape.n_ranges,
            .range_sizes = info->shape.range_sizes,
            .n_range_sizes = info->shape.range_sizes ? info->shape.n_ranges : 0,
            .n_full = info->shape.n_full,
            .seg_blocks = info->shape.seg_blocks,
            .slot_bytes = info->slot_bytes,
            .blocks_ram = info->n_ram,
            .blocks_disk = info->n_disk};
    }
    return reply_page(call, &res, at < n ? at : 0);
}

static struct msg_session_info session_info(const struct cachesvc *s, const struct session *ss) {
    struct store_session_info info;
    block_store_session_info(ss->store, &info);
    return (struct msg_session_info){.session = ss->number,
                                     .client_name = ss->name,
                                     .peer =
                                         ss->control.conn ? rpc_conn_peer(ss->control.conn) : "",
                                     .role = ss->role,
                                     .data_conns = session_n_data(ss),
                                     .leases = info.leases,
                                     .puts_open = info.puts,
                                     .age_ms = (clock_mono_ns(s->clk) - ss->opened_ns) / NS_PER_MS};
}

/* Sessions stand in the order of their numbers. */
static int list_sessions(struct cachesvc *s, struct rpc_call *call, const struct msg_list_req *m,
                         uint32_t limit) {
    const struct session *own = session_of(call->conn)->session;
    uint64_t from = cursor_of(m), next = 0;
    struct msg_session_info *out = bump_alloc(call->scratch, limit * sizeof(*out));
    if (!out)
        return ERR_TOOBIG;
    struct msg_list_res res = {.sessions = out};
    LIST_FOREACH(&s->sessions.all, it) {
        const struct session *ss = LIST_ENTRY(it, struct session, link);
        if (ss->number < from || !auth_covers(own->auth, ss->auth))
            continue;
        if (res.n_sessions == limit) {
            next = ss->number;
            break;
        }
        out[res.n_sessions++] = session_info(s, ss);
    }
    return reply_page(call, &res, next);
}

int svc_list(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_list_req m;
    int rv = SVC_DECODE(call, list_req, &m, eb);
    if (rv < 0)
        return rv;
    uint32_t limit = m.limit && m.limit < LIST_MAX ? m.limit : LIST_MAX;
    switch (m.what) {
    case MSG_LIST_BLOCKS:
        return list_blocks(s, call, &m, limit, eb);
    case MSG_LIST_NAMESPACES:
        return list_namespaces(s, call, &m, limit);
    case MSG_LIST_SESSIONS:
        return list_sessions(s, call, &m, limit);
    default:
        return err_set(eb, ERR_INVALID, "List: what = %u is unknown", m.what);
    }
}

/* The block in the namespace that is named, or in the first of the token's that has it. A block of another
 * is no block: the answer tells nothing about what is there. */
static int find_block(struct cachesvc *s, const struct auth_token *auth,
                      const struct msg_bytes *digest, const struct block_id *id,
                      struct store_block_info *ret) {
    for (uint32_t ns = 0; ns < block_store_ns_count(s->store); ns++)
        if (block_store_inspect(s->store, ns, id, ret) == 0 &&
            auth_ns_allowed(auth, ret->ns_digest) &&
            (digest->n == 0 || memcmp(digest->p, ret->ns_digest, DIGEST_BYTES) == 0))
            return 0;
    return ERR_NOTFOUND;
}

static void no_callback(void *arg, int rv, const struct store_ref *ref) {
    (void)arg, (void)rv, (void)ref;
}

/* Of a block in RAM; nothing is read from disk for a look. */
static void add_sums(struct cachesvc *s, struct rpc_call *call, const struct store_block_info *info,
                     struct msg_inspect_res *res) {
    struct store_fetch f;
    struct store_ref ref;
    if (info->hole || info->filling || (info->ram != TIER_CLEAN && info->ram != TIER_DIRTY))
        return;
    int rv = block_store_fetch(s->store, &f, info->ns, &info->id, &ref, no_callback, NULL);
    if (rv == 0)
        block_store_fetch_cancel(&f);
    if (rv != 1)
        return;
    uint64_t *sums = bump_alloc(call->scratch, ref.n_ranges * sizeof(*sums));
    if (sums) {
        memcpy(sums, ref.sums, ref.n_ranges * sizeof(*sums));
        res->range_checksums = sums;
        res->n_range_checksums = ref.n_ranges;
    }
    block_store_ref_drop(s->store, &ref);
}

int svc_inspect(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    const struct session *ss = session_of(call->conn)->session;
    struct msg_inspect_req m;
    struct store_block_info info;
    struct block_id id;
    int rv = SVC_DECODE(call, inspect_req, &m, eb);
    if (rv < 0)
        return rv;
    if (m.id.n != BLOCK_ID_BYTES)
        return err_set(eb, ERR_INVALID, "Inspect: an id has 32 bytes");
    memcpy(id.b, m.id.p, BLOCK_ID_BYTES);
    rv = find_block(s, ss->auth, &m.digest, &id, &info);
    if (rv < 0)
        return err_set(eb, rv, "Inspect: no such block");
    struct block_id *children = bump_alloc(call->scratch, LIST_MAX * sizeof(*children));
    if (!children)
        return ERR_TOOBIG;
    struct msg_inspect_res res = {
        .block = block_info(&info),
        .children = children,
        .n_children = block_store_children(s->store, info.ns, &id, children, LIST_MAX)};
    add_sums(s, call, &info, &res);
    return SVC_REPLY(call, inspect_res, &res);
}
