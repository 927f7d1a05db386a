/* Fetch: a stream of payload frames, in request order.
 *
 *   request --> a stream within the session's share --> window of WINDOW blocks asked of the store (RAM: at
 *           |                                           once; disk: read into RAM)
 *           |       --> head of the window ready, the connection writable, a share of the bytes under way
 *           |           --> one frame, straight from the slot --> ... --> last block: flag END
 *           \-> no stream free, or above its share: waits in the session, at most max_waiting of them; more
 *               are BUSY. As streams end, sessions take turns: next is the one to which the fewest bytes went.
 *
 * The connection's room paces the stream (svc_on_drain pumps); a queued frame holds its slot by itself, so
 * a stream may end, and its session too, while the kernel still takes bytes. A stream that finds no share of
 * reads or of bytes under way is held until some are given back. */
#include "cachesvc/svc.h"

#include "common/check.h"

#define WINDOW 8u
#define RATE_WINDOW_NS (10 * NS_PER_S) /* over which a reader's rate is taken */
#define SENDS_MIN 1024u
#define SENDS_MAX 65536u

enum block_state { BLOCK_PENDING = 1, BLOCK_READY, BLOCK_FAILED };

struct fetch_stream;
struct fetch_block {
    struct store_fetch f;
    struct store_ref ref; /* BLOCK_READY */
    struct fetch_stream *stream;
    uint8_t state, status; /* enum block_state; enum msg_fetch_status when failed */
};

struct fetch_ask {
    struct session *session;
    struct rpc_conn *conn; /* referenced */
    struct wire_hdr hdr;
    uint64_t recv_ns, deadline_ns; /* 0: none */
    uint32_t ns, n;
    uint32_t first_range, n_ranges; /* what is sent of each block */
};

struct fetch_stream {
    struct list link; /* session.streams */
    struct list held; /* cachesvc.held, while it wants a share of reads or bytes */
    struct cachesvc *svc;
    struct fetch_ask ask;
    uint32_t n_started, n_sent;
    bool is_pumping;
    struct fetch_block block[WINDOW]; /* block i sits at i % WINDOW */
    struct block_id ids[];            /* [ask.n], max_ids at most */
};

struct fetch_wait {
    struct list link; /* session.waiting */
    struct fetch_ask ask;
    struct block_id ids[]; /* [ask.n] */
};

/* A payload on its way to the kernel; its release gives the slot back. */
struct fetch_send {
    struct list link; /* session.sends */
    struct buf buf;
    struct store_ref ref;
    struct cachesvc *svc;
    struct session *session; /* NULL when it has ended */
    uint64_t charged;        /* of its BOUND_SENDS */
};

int svc_fetch_init(struct cachesvc *s) {
    list_init(&s->turns);
    list_init(&s->held);
    size_t bytes = sizeof(struct fetch_stream) + s->cfg->max_ids * sizeof(struct block_id);
    int rv = slabpool_init(&s->streams, s->cfg->max_fetches, bytes);
    if (rv < 0)
        return rv;
    uint64_t n = s->sessions.bound[BOUND_SENDS].total / s->cfg->min_slot_bytes;
    rv = slabpool_init(&s->sends, MIN(MAX(n, SENDS_MIN), SENDS_MAX), sizeof(struct fetch_send));
    if (rv < 0)
        slabpool_fini(&s->streams);
    return rv;
}

void svc_fetch_fini(struct cachesvc *s) {
    slabpool_fini(&s->sends);
    slabpool_fini(&s->streams);
}

static void note_streams(struct cachesvc *s) {
    METRIC_SET(&s->met, fetch_streams, (int64_t)slabpool_in_use(&s->streams));
    METRIC_SET(&s->met, fetch_waiting, (int64_t)s->n_waiting);
}

static struct share_user *bound_of(struct fetch_stream *st, enum bound b) {
    return &st->ask.session->bound[b];
}

/* What was given back may be what somebody waits for: looked at before the loop sleeps again, never from
 * inside the call that gave it, which may be in the middle of a send. */
static void kick(struct cachesvc *s) {
    if (!list_empty(&s->turns) || !list_empty(&s->held))
        uv_idle_start(&s->wake, svc_fetch_turns);
}

static void give_back(struct cachesvc *s, struct share_user *u, uint64_t n) {
    share_give(u, n);
    kick(s);
}

static void release_send(struct buf *b) {
    struct fetch_send *send = b->owner;
    struct cachesvc *s = send->svc;
    block_store_ref_drop(s->store, &send->ref);
    if (send->session)
        share_give(&send->session->bound[BOUND_SENDS], send->charged);
    list_remove(&send->link);
    slabpool_give(&s->sends, send);
    kick(s);
}

static void stream_end(struct fetch_stream *st) {
    struct cachesvc *s = st->svc;
    struct session *ss = st->ask.session;
    for (uint32_t i = st->n_sent; i < st->n_started; i++) {
        struct fetch_block *b = &st->block[i % WINDOW];
        if (b->state == BLOCK_PENDING) {
            block_store_fetch_cancel(&b->f);
            give_back(s, bound_of(st, BOUND_READS), 1);
        } else if (b->state == BLOCK_READY) {
            block_store_ref_drop(s->store, &b->ref);
        }
    }
    uint64_t took_ns = clock_mono_ns(s->clk) - st->ask.recv_ns;
    METRIC_OBSERVE(&s->met, fetch_seconds, (double)took_ns * 1e-9);
    if (s->cfg->access_log)
        log_info(s->log, "fetch ended", "session=%llu request=%llu blocks=%u of=%u us=%llu",
                 (unsigned long long)ss->number, (unsigned long long)st->ask.hdr.request_id,
                 st->n_sent, st->ask.n, (unsigned long long)took_ns / 1000);
    list_remove(&st->link);
    list_remove(&st->held);
    rpc_conn_unref(st->ask.conn);
    slabpool_give(&s->streams, st);
    if (list_empty(&ss->streams)) {
        share_wait(&ss->bound[BOUND_READS], 0);
        share_wait(&ss->bound[BOUND_SENDS], 0);
    }
    give_back(s, &ss->bound[BOUND_STREAMS], 1);
    note_streams(s);
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
    return rpc_conn_reply(st->ask.conn, &st->ask.hdr, index + count == st->ask.n, out->data,
                          out->len, NULL);
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

static int send_payload(struct fetch_stream *st, uint32_t index, struct fetch_send *send) {
    struct cachesvc *s = st->svc;
    struct bump *scratch;
    struct buf *out;
    rpc_server_scratch(s->rpc, &scratch, &out);
    const struct store_ref *ref = &send->ref;
    uint64_t *sums = bump_alloc(scratch, ref->n_ranges * sizeof(*sums));
    for (uint32_t i = 0; sums && i < ref->n_ranges; i++)
        sums[i] = load_u64(ref->sums + 8 * i);
    struct msg_fetch_block m = {.index = index,
                                .count = 1,
                                .status = MSG_FETCH_OK,
                                .checksum = ref->checksum,
                                .n_range_checksums = ref->n_ranges,
                                .range_checksums = sums,
                                .first_range = st->ask.first_range,
                                .n_ranges = st->ask.n_ranges,
                                .origin_writer = {ref->writer, sizeof(ref->writer)},
                                .origin_time_ms = ref->time_ms};
    int rv = sums ? wire_msg_fetch_block_encode(scratch, &m, out) : ERR_TOOBIG;
    if (rv < 0) {
        buf_unref(&send->buf);
        return rv;
    }
    METRIC_INC(&s->met, fetch_block_total);
    METRIC_ADD(&s->met, fetch_bytes_total, send->buf.len);
    struct session_conn *sc = session_of(st->ask.conn);
    if (sc)
        sc->fetched_bytes += send->buf.len;
    st->ask.session->fetch_time += send->buf.len;
    return rpc_conn_reply(st->ask.conn, &st->ask.hdr, index + 1 == st->ask.n, out->data, out->len,
                          &send->buf);
}

/* ---- the pump ---- */

static void pump(struct fetch_stream *st, uint64_t end_ns);

/* When what is begun now has had its slice of this turn. */
static uint64_t slice_end(const struct cachesvc *s) {
    return clock_mono_ns(s->clk) + RPC_CONN_SLICE_NS;
}

static uint8_t status_of(int rv) {
    if (rv == ERR_BUSY)
        return MSG_FETCH_BUSY;
    if (rv == ERR_CORRUPT)
        return MSG_FETCH_CORRUPT;
    return rv == ERR_CANCELED ? MSG_FETCH_CANCELED : MSG_FETCH_ABSENT;
}

static void on_loaded(void *arg, int rv, const struct store_ref *ref) {
    struct fetch_block *b = arg;
    struct fetch_stream *st = b->stream;
    b->state = rv < 0 ? BLOCK_FAILED : BLOCK_READY;
    if (rv < 0)
        b->status = status_of(rv);
    else
        b->ref = *ref;
    give_back(st->svc, bound_of(st, BOUND_READS), 1);
    pump(st, slice_end(st->svc));
}

/* False: no share of reads is left. What turns out to be in RAM needs none. */
static bool start_block(struct fetch_stream *st) {
    struct fetch_block *b = &st->block[st->n_started % WINDOW];
    if (!share_take(bound_of(st, BOUND_READS), 1))
        return false;
    *b = (struct fetch_block){.stream = st, .state = BLOCK_PENDING};
    int rv = block_store_fetch(st->svc->store, &b->f, st->ask.ns, &st->ids[st->n_started], &b->ref,
                               on_loaded, b);
    if (rv == 1)
        b->state = BLOCK_READY;
    else if (rv < 0) {
        b->state = BLOCK_FAILED;
        b->status = status_of(rv);
    }
    if (rv != 0)
        give_back(st->svc, bound_of(st, BOUND_READS), 1);
    st->n_started++;
    return true;
}

/* A block that is larger than a unit of that share counts as one unit. */
static uint64_t send_charge(const struct cachesvc *s, const struct fetch_block *b) {
    return MIN((uint64_t)b->ref.payload_bytes, s->sessions.bound[BOUND_SENDS].unit);
}

/* Takes the ready block's slot over; NULL when no share of the bytes under way is left. */
static struct fetch_send *take_send(struct fetch_stream *st, struct fetch_block *b) {
    struct cachesvc *s = st->svc;
    struct share_user *u = bound_of(st, BOUND_SENDS);
    uint64_t charge = send_charge(s, b);
    struct fetch_send *send = share_may(u, charge) ? slabpool_take(&s->sends) : NULL;
    if (!send)
        return NULL;
    CHECK(share_take(u, charge));
    send->svc = s;
    send->session = st->ask.session;
    send->charged = charge;
    send->ref = b->ref;
    uint32_t from = range_off(&send->ref, st->ask.first_range);
    uint32_t bytes = range_off(&send->ref, st->ask.first_range + st->ask.n_ranges) - from;
    buf_init_extern(&send->buf, (void *)(uintptr_t)(send->ref.payload + from), bytes, release_send,
                    send);
    list_push_back(&st->ask.session->sends, &send->link);
    return send;
}

static void hold(struct fetch_stream *st, enum bound b, uint64_t n) {
    share_wait(bound_of(st, b), n);
    if (!list_is_linked(&st->held))
        list_push_back(&st->svc->held, &st->held);
}

/* False: not now; somebody will pump again. *rv < 0: the connection is closing. */
static bool send_head(struct fetch_stream *st, int *rv) {
    struct fetch_block *b = &st->block[st->n_sent % WINDOW];
    if (b->state == BLOCK_PENDING || !rpc_conn_writable(st->ask.conn))
        return false;
    if (b->state != BLOCK_READY) {
        *rv = send_status(st, st->n_sent++, 1, b->status);
        return true;
    }
    struct fetch_send *send = take_send(st, b);
    if (!send) {
        hold(st, BOUND_SENDS, send_charge(st->svc, b));
        return false;
    }
    *rv = send_payload(st, st->n_sent++, send);
    return true;
}

/* Sends until the slice is over, and then goes on from on_drain. Gives st back when it is done or its connection cannot
 * take more. */
static void pump(struct fetch_stream *st, uint64_t end_ns) {
    if (st->is_pumping)
        return;
    st->is_pumping = true;
    int rv = 0;
    bool goes_on = true;
    while (goes_on && rv == 0 && st->n_sent < st->ask.n) {
        bool is_refused = false;
        while (!is_refused && st->n_started < st->ask.n && st->n_started - st->n_sent < WINDOW)
            is_refused = !start_block(st);
        if (st->n_started == st->n_sent) {
            hold(st, BOUND_READS, 1);
            break;
        }
        goes_on = send_head(st, &rv);
        if (goes_on && clock_mono_ns(st->svc->clk) >= end_ns) {
            rpc_conn_go_on(st->ask.conn);
            goes_on = false;
        }
    }
    st->is_pumping = false;
    if (rv < 0 || st->n_sent == st->ask.n)
        stream_end(st); /* rv < 0: the connection is closing; its client sees that */
}

/* ---- turns ---- */

/* False: above the session's share. */
static bool start_stream(struct cachesvc *s, const struct fetch_ask *take_ask,
                         const struct block_id *ids) {
    struct session *ss = take_ask->session;
    if (!share_take(&ss->bound[BOUND_STREAMS], 1))
        return false;
    struct fetch_stream *st = slabpool_take(&s->streams);
    CHECK(st); /* the pool is as large as the bound */
    st->svc = s;
    st->ask = *take_ask;
    list_init(&st->held);
    memcpy(st->ids, ids, st->ask.n * sizeof(*ids));
    list_push_back(&ss->streams, &st->link);
    note_streams(s);
    pump(st, slice_end(s));
    return true;
}

static size_t wait_bytes(uint32_t n) {
    return sizeof(struct fetch_wait) + n * sizeof(struct block_id);
}

static int wait_for_turn(struct cachesvc *s, const struct fetch_ask *ask,
                         const struct block_id *ids, struct errbuf *eb) {
    struct session *ss = ask->session;
    size_t bytes = wait_bytes(ask->n);
    bool is_full = ss->n_waiting >= s->cfg->max_waiting;
    if (is_full || !share_take(&ss->bound[BOUND_WAITING], bytes)) {
        METRIC_INC(&s->met, fetch_busy_total);
        return is_full ? err_set(eb, ERR_BUSY,
                                 "Fetch: %u requests of this session are waiting, the limit",
                                 ss->n_waiting)
                       : session_refuse(ss, BOUND_WAITING, "Fetch", eb);
    }
    struct fetch_wait *w = malloc(bytes); /* only what is above a share comes here */
    if (!w) {
        share_give(&ss->bound[BOUND_WAITING], bytes);
        return ERR_NOMEM;
    }
    w->ask = *ask;
    rpc_conn_ref(ask->conn);
    memcpy(w->ids, ids, ask->n * sizeof(*ids));
    list_push_back(&ss->waiting, &w->link);
    if (ss->n_waiting++ == 0) {
        ss->fetch_time = s->fetch_level;
        list_push_back(&s->turns, &ss->turn);
    }
    s->n_waiting++;
    share_wait(&ss->bound[BOUND_STREAMS], ss->n_waiting);
    note_streams(s);
    return 0;
}

/* The connection's reference is the caller's. */
static void unwait(struct cachesvc *s, struct fetch_wait *w) {
    struct session *ss = w->ask.session;
    list_remove(&w->link);
    share_give(&ss->bound[BOUND_WAITING], wait_bytes(w->ask.n));
    s->n_waiting--;
    if (--ss->n_waiting == 0)
        list_remove(&ss->turn);
    share_wait(&ss->bound[BOUND_STREAMS], ss->n_waiting);
    note_streams(s);
}

static void drop_wait(struct cachesvc *s, struct fetch_wait *w) {
    unwait(s, w);
    rpc_conn_unref(w->ask.conn);
    free(w);
}

/* The waiting session that may have a stream and to which the fewest bytes went. */
static struct session *next_turn(struct cachesvc *s) {
    struct session *best = NULL;
    LIST_FOREACH(&s->turns, it) {
        struct session *ss = LIST_ENTRY(it, struct session, turn);
        if (share_may(&ss->bound[BOUND_STREAMS], 1) && (!best || ss->fetch_time < best->fetch_time))
            best = ss;
    }
    return best;
}

void svc_fetch_turns(uv_idle_t *p) {
    struct cachesvc *s = p->data;
    uv_idle_stop(p);
    struct list held;
    list_move(&s->held, &held);
    uint64_t end_ns = slice_end(s);
    for (struct list *l; (l = list_pop_front(&held));) {
        struct fetch_stream *st = LIST_ENTRY(l, struct fetch_stream, held);
        if (clock_mono_ns(s->clk) < end_ns)
            pump(st, end_ns);
        else
            rpc_conn_go_on(st->ask.conn);
    }
    struct session *ss;
    while ((ss = next_turn(s))) {
        if (clock_mono_ns(s->clk) >= end_ns) {
            kick(s); /* somebody may go on at once */
            return;
        }
        struct fetch_wait *w = LIST_ENTRY(ss->waiting.next, struct fetch_wait, link);
        s->fetch_level = ss->fetch_time;
        unwait(s, w);
        CHECK(start_stream(s, &w->ask, w->ids));
        free(w);
    }
}

/* ---- methods ---- */

/* A Fetch that names no ids means all blocks of its lease. */
static int ids_of_lease(struct cachesvc *s, struct rpc_call *call, struct msg_fetch_req *m,
                        uint32_t ns, struct errbuf *eb) {
    struct session *ss = session_of(call->conn)->session;
    struct block_id *ids = bump_alloc(call->scratch, s->cfg->max_ids * sizeof(*ids));
    uint32_t of = STORE_NONE;
    if (!ids)
        return ERR_TOOBIG;
    if (!m->lease_id)
        return err_set(eb, ERR_INVALID, "Fetch: neither ids nor a lease");
    int n = block_store_lease_ids(ss->store, m->lease_id, &of, ids, s->cfg->max_ids);
    if (n < 0)
        return err_set(eb, n, "Fetch: no such lease in this session");
    if (n == 0 || (of != STORE_NONE && of != ns))
        return err_set(eb, ERR_INVALID, "Fetch: the lease is not of this namespace");
    m->ids = ids;
    m->n_ids = (size_t)n;
    return 0;
}

int svc_fetch(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_fetch_req m;
    struct fetch_ask ask = {.session = session_of(call->conn)->session,
                            .conn = call->conn,
                            .hdr = call->hdr,
                            .recv_ns = call->recv_ns};
    int rv = SVC_DECODE(call, fetch_req, &m, eb);
    if (rv < 0)
        return rv;
    svc_note_trace(s, m.traceparent);
    rv = svc_check_ids(s, m.n_ids, eb);
    if (rv == 0)
        rv = svc_check_ns(s, call, m.ns, &ask.ns, eb);
    if (rv < 0)
        return rv;
    if (m.flags)
        return err_set(eb, ERR_UNIMPLEMENTED, "Fetch: maps are a feature this node does not have");
    struct store_ns_info info;
    block_store_ns_info(s->store, ask.ns, &info);
    if (m.first_range >= info.shape.n_ranges || m.n_ranges > info.shape.n_ranges - m.first_range)
        return err_set(eb, ERR_INVALID, "Fetch: %u ranges from %u on, a block has %u", m.n_ranges,
                       m.first_range, info.shape.n_ranges);
    ask.first_range = m.first_range;
    ask.n_ranges = m.n_ranges ? m.n_ranges : info.shape.n_ranges - m.first_range;
    if (m.n_ids == 0) {
        rv = ids_of_lease(s, call, &m, ask.ns, eb);
        if (rv < 0)
            return rv;
    }
    ask.n = (uint32_t)m.n_ids;
    if (call->hdr.deadline_ms)
        ask.deadline_ns = call->recv_ns + call->hdr.deadline_ms * NS_PER_MS;
    if (!list_empty(&ask.session->waiting)) /* behind those that came before it */
        return wait_for_turn(s, &ask, m.ids, eb);
    rpc_conn_ref(ask.conn);
    if (start_stream(s, &ask, m.ids))
        return 0;
    rpc_conn_unref(ask.conn);
    return wait_for_turn(s, &ask, m.ids, eb);
}

/* Says what will not come and ends the stream. */
static void stream_cancel(struct fetch_stream *st) {
    uint32_t from = st->n_sent;
    (void)rpc_conn_drop_queued(st->ask.conn, st->ask.hdr.request_id);
    (void)send_status(st, from, st->ask.n - from, MSG_FETCH_CANCELED);
    stream_end(st);
}

/* The same of one that never ran. */
static void wait_cancel(struct cachesvc *s, struct fetch_wait *w) {
    struct bump *scratch;
    struct buf *out;
    rpc_server_scratch(s->rpc, &scratch, &out);
    struct msg_fetch_block m = {.count = w->ask.n, .status = MSG_FETCH_CANCELED};
    if (wire_msg_fetch_block_encode(scratch, &m, out) == 0)
        (void)rpc_conn_reply(w->ask.conn, &w->ask.hdr, true, out->data, out->len, NULL);
    drop_wait(s, w);
}

static bool is_named(const struct fetch_ask *a, uint32_t number, uint64_t request_id) {
    const struct session_conn *sc = session_of(a->conn);
    return sc && sc->number == number && a->hdr.request_id == request_id;
}

int svc_cancel(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct session_conn *here = session_of(call->conn);
    struct msg_cancel_req m;
    int rv = SVC_DECODE(call, cancel_req, &m, eb);
    if (rv < 0)
        return rv;
    uint32_t number = m.conn ? m.conn : here->number;
    uint64_t found = 0;
    LIST_FOREACH_SAFE(&here->session->streams, it, tmp) {
        struct fetch_stream *st = LIST_ENTRY(it, struct fetch_stream, link);
        if (is_named(&st->ask, number, m.request_id)) {
            stream_cancel(st);
            found++;
        }
    }
    LIST_FOREACH_SAFE(&here->session->waiting, wit, wtmp) {
        struct fetch_wait *w = LIST_ENTRY(wit, struct fetch_wait, link);
        if (is_named(&w->ask, number, m.request_id)) {
            wait_cancel(s, w);
            found++;
        }
    }
    /* The cancelled used the server's scratch, which is the call's. */
    bump_reset(call->scratch);
    call->out->len = 0;
    return svc_reply_ack(call, found);
}

/* In turns: who has been served stands behind the others. */
void svc_fetch_pump_conn(struct cachesvc *s, struct session *ss, struct rpc_conn *c) {
    uint64_t end_ns = slice_end(s);
    uint32_t n = 0;
    LIST_FOREACH(&ss->streams, it)
    n++;
    for (; n > 0 && !list_empty(&ss->streams); n--) {
        struct fetch_stream *st = LIST_ENTRY(ss->streams.next, struct fetch_stream, link);
        bool is_meant = st->ask.conn == c;
        if (is_meant && clock_mono_ns(s->clk) >= end_ns) {
            rpc_conn_go_on(c);
            return;
        }
        list_remove(&st->link);
        list_push_back(&ss->streams, &st->link);
        if (is_meant)
            pump(st, end_ns);
    }
}

void svc_fetch_end(struct cachesvc *s, struct session *ss, const struct rpc_conn *c) {
    LIST_FOREACH_SAFE(&ss->waiting, wit, wtmp) {
        struct fetch_wait *w = LIST_ENTRY(wit, struct fetch_wait, link);
        if (!c || w->ask.conn == c)
            drop_wait(s, w);
    }
    LIST_FOREACH_SAFE(&ss->streams, it, tmp) {
        struct fetch_stream *st = LIST_ENTRY(it, struct fetch_stream, link);
        if (!c || st->ask.conn == c)
            stream_end(st);
    }
    if (c)
        return;
    for (struct list *l;
         (l = list_pop_front(&ss->sends));) { /* the kernel still takes their bytes */
        struct fetch_send *send = LIST_ENTRY(l, struct fetch_send, link);
        give_back(s, &ss->bound[BOUND_SENDS], send->charged);
        send->session = NULL;
    }
}

/* ---- time ---- */

/* A reader that never lets its queue run empty and takes less than the least rate over a whole window holds
 * streams and slots that others could have. */
static void check_rate(struct cachesvc *s, struct session_conn *sc, uint64_t now) {
    if (!sc->conn || !s->cfg->min_reader_bytes)
        return;
    uint64_t queued = rpc_conn_queued_bytes(sc->conn);
    uint64_t taken = sc->fetched_bytes > queued ? sc->fetched_bytes - queued : 0;
    bool is_over = queued > 0 && sc->slow_since_ns && now - sc->slow_since_ns >= RATE_WINDOW_NS;
    if (is_over &&
        taken - sc->slow_bytes < s->cfg->min_reader_bytes * (RATE_WINDOW_NS / NS_PER_S)) {
        METRIC_INC(&s->met, slow_reader_dropped_total);
        log_warn(s->log, "a reader was dropped: it takes less than --min-reader-bytes",
                 "session=%llu client=%s peer=%s taken_bytes=%llu window_s=%llu",
                 (unsigned long long)sc->session->number, sc->session->name,
                 rpc_conn_peer(sc->conn), (unsigned long long)(taken - sc->slow_bytes),
                 (unsigned long long)(RATE_WINDOW_NS / NS_PER_S));
        rpc_server_drop_conn(s->rpc, sc->conn);
    }
    if (queued == 0 || !sc->slow_since_ns || is_over) {
        sc->slow_since_ns = now;
        sc->slow_bytes = taken;
    }
}

static void tick_session(struct cachesvc *s, struct session *ss, uint64_t now) {
    LIST_FOREACH_SAFE(&ss->streams, it, tmp) {
        struct fetch_stream *st = LIST_ENTRY(it, struct fetch_stream, link);
        if (st->ask.deadline_ns && now > st->ask.deadline_ns)
            stream_cancel(st);
    }
    LIST_FOREACH_SAFE(&ss->waiting, wit, wtmp) {
        struct fetch_wait *w = LIST_ENTRY(wit, struct fetch_wait, link);
        if (w->ask.deadline_ns && now > w->ask.deadline_ns) {
            (void)rpc_conn_reply_error(w->ask.conn, &w->ask.hdr, ERR_TIMEOUT,
                                       "Fetch: no stream became free in time");
            drop_wait(s, w);
        }
    }
    check_rate(s, &ss->control, now);
    for (uint32_t i = 0; i < SESSION_MAX_DATA; i++)
        check_rate(s, &ss->data[i], now);
}

void svc_fetch_tick(struct cachesvc *s) {
    uint64_t now = clock_mono_ns(s->clk);
    LIST_FOREACH_SAFE(&s->sessions.all, at, tmp)
    tick_session(s, LIST_ENTRY(at, struct session, link), now);
}
