/* Fetch: a stream of payload frames, in request order.
 *
 *   request --> window of WINDOW blocks asked of the store (RAM: at once; disk: read into RAM)
 *           --> head of the window ready and the connection writable: one frame, straight from the slot
 *           --> ... --> last block: flag END, stream given back
 *
 * The connection's room paces the stream (svc_on_drain pumps); a queued frame holds its slot by itself, so
 * a stream may end, and its session too, while the kernel still takes bytes. */
#include "cachesvc/svc.h"

#include "common/check.h"

#define WINDOW 8u

enum block_state { BLOCK_PENDING = 1, BLOCK_READY, BLOCK_FAILED };

struct fetch_stream;
struct fetch_block {
    struct store_fetch f;
    struct store_ref ref; /* BLOCK_READY */
    struct fetch_stream *stream;
    uint8_t state, status; /* enum block_state; enum msg_fetch_status when failed */
};

struct fetch_stream {
    struct list link; /* session.streams */
    struct cachesvc *svc;
    struct session *session;
    struct rpc_conn *conn; /* referenced */
    struct wire_hdr hdr;
    uint64_t recv_ns, deadline_ns; /* 0: none */
    uint32_t ns, n, n_started, n_sent;
    uint32_t first_range, n_ranges; /* what is sent of each block */
    bool is_pumping;
    struct fetch_block block[WINDOW]; /* block i sits at i % WINDOW */
    struct block_id ids[];            /* [n], max_ids at most */
};

/* A payload on its way to the kernel; its release gives the slot back. */
struct fetch_send {
    struct buf buf;
    struct store_ref ref;
    struct cachesvc *svc;
};

int svc_fetch_init(struct cachesvc *s) {
    size_t bytes = sizeof(struct fetch_stream) + s->cfg->max_ids * sizeof(struct block_id);
    int rv = slabpool_init(&s->streams, s->cfg->max_fetches, bytes);
    if (rv < 0)
        return rv;
    /* A connection queues at most 128 frames; this many are queued on all of them together. */
    rv = slabpool_init(&s->sends, 8192, sizeof(struct fetch_send));
    if (rv < 0)
        slabpool_fini(&s->streams);
    return rv;
}

void svc_fetch_fini(struct cachesvc *s) {
    slabpool_fini(&s->sends);
    slabpool_fini(&s->streams);
}

static void release_send(struct buf *b) {
    struct fetch_send *send = b->owner;
    block_store_ref_drop(send->svc->store, &send->ref);
    slabpool_give(&send->svc->sends, send);
}

static void stream_end(struct fetch_stream *st) {
    struct cachesvc *s = st->svc;
    for (uint32_t i = st->n_sent; i < st->n_started; i++) {
        struct fetch_block *b = &st->block[i % WINDOW];
        if (b->state == BLOCK_PENDING)
            block_store_fetch_cancel(&b->f);
        else if (b->state == BLOCK_READY)
            block_store_ref_drop(s->store, &b->ref);
    }
    METRIC_OBSERVE(&s->met, fetch_seconds, (double)(clock_mono_ns(s->clk) - st->recv_ns) * 1e-9);
    list_remove(&st->link);
    rpc_conn_unref(st->conn);
    slabpool_give(&s->streams, st);
    METRIC_SET(&s->met, fetch_streams, (int64_t)slabpool_in_use(&s->streams));
}

/* ---- frames ---- */

static int send_status(struct fetch_stream *st, uint32_t index, uint32_t count, uint32_t status) {
    struct bump *scratch;
    struct buf *out;
    rpc_server_scratch(st->svc->rpc, &scratch, &out);
    struct msg_fetch_block m = {.index = index, .count = count, .status = status};
    int rv = wire_msg_fetch_block_encode(scratch, &m, out);
    if (rv < 0)
        return rv;
    return rpc_conn_reply(st->conn, &st->hdr, index + count == st->n, out->data, out->len, NULL);
}

static uint64_t load_u64(const uint8_t *p) {
    uint64_t v = 0;
    for (unsigned i = 0; i < 8; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static uint32_t load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Where range i begins in the payload; i may be one behind the last. */
static uint32_t range_off(const struct store_ref *ref, uint32_t i) {
    return i ? load_u32(ref->ends + 4 * (i - 1)) : 0;
}

static int send_payload(struct fetch_stream *st, uint32_t index, struct store_ref *take_ref) {
    struct cachesvc *s = st->svc;
    struct bump *scratch;
    struct buf *out;
    rpc_server_scratch(s->rpc, &scratch, &out);
    struct fetch_send *send = slabpool_take(&s->sends);
    uint64_t *sums = bump_alloc(scratch, take_ref->n_ranges * sizeof(*sums));
    if (!send || !sums) {
        slabpool_give(&s->sends, send);
        block_store_ref_drop(s->store, take_ref);
        return send_status(st, index, 1, MSG_FETCH_BUSY);
    }
    for (uint32_t i = 0; i < take_ref->n_ranges; i++)
        sums[i] = load_u64(take_ref->sums + 8 * i);
    struct msg_fetch_block m = {.index = index,
                                .count = 1,
                                .status = MSG_FETCH_OK,
                                .checksum = take_ref->checksum,
                                .n_range_checksums = take_ref->n_ranges,
                                .range_checksums = sums,
                                .first_range = st->first_range,
                                .n_ranges = st->n_ranges};
    send->svc = s;
    send->ref = *take_ref;
    uint32_t from = range_off(take_ref, st->first_range);
    uint32_t bytes = range_off(take_ref, st->first_range + st->n_ranges) - from;
    buf_init_extern(&send->buf, (void *)(uintptr_t)(send->ref.payload + from), bytes, release_send,
                    send);
    int rv = wire_msg_fetch_block_encode(scratch, &m, out);
    if (rv < 0) {
        buf_unref(&send->buf);
        return rv;
    }
    METRIC_INC(&s->met, fetch_block_total);
    METRIC_ADD(&s->met, fetch_bytes_total, bytes);
    return rpc_conn_reply(st->conn, &st->hdr, index + 1 == st->n, out->data, out->len, &send->buf);
}

/* ---- the pump ---- */

static void pump(struct fetch_stream *st);

static uint8_t status_of(int rv) {
    if (rv == ERR_BUSY)
        return MSG_FETCH_BUSY;
    if (rv == ERR_CORRUPT)
        return MSG_FETCH_CORRUPT;
    return rv == ERR_CANCELED ? MSG_FETCH_CANCELED : MSG_FETCH_ABSENT;
}

static void on_loaded(void *arg, int rv, const struct store_ref *ref) {
    struct fetch_block *b = arg;
    b->state = rv < 0 ? BLOCK_FAILED : BLOCK_READY;
    if (rv < 0)
        b->status = status_of(rv);
    else
        b->ref = *ref;
    pump(b->stream);
}

static void start_block(struct fetch_stream *st) {
    struct fetch_block *b = &st->block[st->n_started % WINDOW];
    *b = (struct fetch_block){.stream = st, .state = BLOCK_PENDING};
    int rv = block_store_fetch(st->svc->store, &b->f, st->ns, &st->ids[st->n_started], &b->ref,
                               on_loaded, b);
    if (rv == 1)
        b->state = BLOCK_READY;
    else if (rv < 0) {
        b->state = BLOCK_FAILED;
        b->status = status_of(rv);
    }
    st->n_started++;
}

static int send_head(struct fetch_stream *st) {
    struct fetch_block *b = &st->block[st->n_sent % WINDOW];
    uint32_t index = st->n_sent++;
    if (b->state == BLOCK_READY)
        return send_payload(st, index, &b->ref);
    return send_status(st, index, 1, b->status);
}

/* Gives st back when it is done or its connection cannot take more. */
static void pump(struct fetch_stream *st) {
    if (st->is_pumping)
        return;
    st->is_pumping = true;
    int rv = 0;
    while (rv == 0 && st->n_sent < st->n) {
        while (st->n_started < st->n && st->n_started - st->n_sent < WINDOW)
            start_block(st);
        if (st->block[st->n_sent % WINDOW].state == BLOCK_PENDING || !rpc_conn_writable(st->conn))
            break;
        rv = send_head(st);
    }
    st->is_pumping = false;
    if (rv < 0 || st->n_sent == st->n)
        stream_end(st); /* rv < 0: the connection is closing; its client sees that */
}

/* ---- methods ---- */

int svc_fetch(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct session *ss = session_of(call->conn)->session;
    struct msg_fetch_req m;
    uint32_t ns;
    int rv = SVC_DECODE(call, fetch_req, &m, eb);
    if (rv == 0)
        rv = svc_check_ids(s, m.n_ids, eb);
    if (rv == 0)
        rv = svc_check_ns(s, call, m.ns, &ns, eb);
    if (rv < 0)
        return rv;
    if (m.flags)
        return err_set(eb, ERR_UNIMPLEMENTED, "Fetch: maps are a feature this node does not have");
    struct store_ns_info info;
    block_store_ns_info(s->store, ns, &info);
    if (m.first_range >= info.shape.n_ranges || m.n_ranges > info.shape.n_ranges - m.first_range)
        return err_set(eb, ERR_INVALID, "Fetch: %u ranges from %u on, a block has %u", m.n_ranges,
                       m.first_range, info.shape.n_ranges);
    if (m.n_ids == 0)
        return err_set(eb, ERR_INVALID, "Fetch: no ids");
    struct fetch_stream *st = slabpool_take(&s->streams);
    if (!st) {
        METRIC_INC(&s->met, fetch_busy_total);
        return err_set(eb, ERR_BUSY, "Fetch: %u streams are under way", s->cfg->max_fetches);
    }
    st->svc = s;
    st->session = ss;
    st->conn = rpc_conn_ref(call->conn);
    st->hdr = call->hdr;
    st->recv_ns = call->recv_ns;
    st->deadline_ns = call->hdr.deadline_ms ? call->recv_ns + call->hdr.deadline_ms * NS_PER_MS : 0;
    st->ns = ns;
    st->n = (uint32_t)m.n_ids;
    st->first_range = m.first_range;
    st->n_ranges = m.n_ranges ? m.n_ranges : info.shape.n_ranges - m.first_range;
    memcpy(st->ids, m.ids, m.n_ids * sizeof(*m.ids));
    list_push_back(&ss->streams, &st->link);
    METRIC_SET(&s->met, fetch_streams, (int64_t)slabpool_in_use(&s->streams));
    pump(st);
    return 0;
}

/* Says what will not come and ends the stream. */
static void stream_cancel(struct fetch_stream *st) {
    uint32_t from = st->n_sent;
    (void)rpc_conn_drop_queued(st->conn, st->hdr.request_id);
    (void)send_status(st, from, st->n - from, MSG_FETCH_CANCELED);
    stream_end(st);
}

int svc_cancel(void *arg, struct rpc_call *call, struct errbuf *eb) {
    (void)arg;
    struct session_conn *here = session_of(call->conn);
    struct msg_cancel_req m;
    int rv = SVC_DECODE(call, cancel_req, &m, eb);
    if (rv < 0)
        return rv;
    uint32_t number = m.conn ? m.conn : here->number;
    uint64_t found = 0;
    LIST_FOREACH_SAFE(&here->session->streams, it, tmp) {
        struct fetch_stream *st = LIST_ENTRY(it, struct fetch_stream, link);
        struct session_conn *sc = session_of(st->conn);
        if (sc && sc->number == number && st->hdr.request_id == m.request_id) {
            stream_cancel(st);
            found++;
        }
    }
    /* stream_cancel() used the server's scratch, which is the call's. */
    bump_reset(call->scratch);
    call->out->len = 0;
    return svc_reply_ack(call, found);
}

void svc_fetch_pump_conn(struct cachesvc *s, struct session *ss, const struct rpc_conn *c) {
    (void)s;
    LIST_FOREACH_SAFE(&ss->streams, it, tmp) {
        struct fetch_stream *st = LIST_ENTRY(it, struct fetch_stream, link);
        if (st->conn == c)
            pump(st);
    }
}

void svc_fetch_end(struct cachesvc *s, struct session *ss, const struct rpc_conn *c) {
    (void)s;
    LIST_FOREACH_SAFE(&ss->streams, it, tmp) {
        struct fetch_stream *st = LIST_ENTRY(it, struct fetch_stream, link);
        if (!c || st->conn == c)
            stream_end(st);
    }
}

void svc_fetch_tick(struct cachesvc *s) {
    uint64_t now = clock_mono_ns(s->clk);
    LIST_FOREACH(&s->sessions.all, at) {
        struct session *ss = LIST_ENTRY(at, struct session, link);
        LIST_FOREACH_SAFE(&ss->streams, it, tmp) {
            struct fetch_stream *st = LIST_ENTRY(it, struct fetch_stream, link);
            if (st->deadline_ns && now > st->deadline_ns)
                stream_cancel(st);
        }
    }
}
