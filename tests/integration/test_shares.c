/* A1 and its kind: what one session does, or leaves undone, never stops another. Hostile sessions send frames
 * by hand; the one that works is the real client. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <cmocka.h>

#include "cachesvc/svc.h"
#include "common/check.h"
#include "tests/integration/raw_client.h"
#include "tests/support/fake_clock.h"

#define CHAIN 8u
#define LONG 200u /* blocks of a fetch that no socket buffer holds */

struct world {
    struct node_fixture f;
    struct fake_clock clk;
};

static struct cachesvc *svc(struct world *w) {
    return w->f.node;
}

static struct session *session_number(struct world *w, uint64_t nth) {
    LIST_FOREACH(&svc(w)->sessions.all, it) {
        if (nth-- == 0)
            return LIST_ENTRY(it, struct session, link);
    }
    fail();
    return NULL;
}

static void work_starts(struct world *w) {
    int st[CHAIN];
    node_fixture_start(&w->f);
    node_fixture_connect(&w->f, MSG_ROLE_WORKER, NULL);
    assert_int_equal(node_put(&w->f, 1, 0, CHAIN, -1, st), 0);
}

/* What a worker does, all of it without a BUSY. */
static void work_goes_on(struct world *w, uint32_t tag) {
    int st[CHAIN];
    assert_int_equal(node_fetch(&w->f, 1, 0, CHAIN, st), 0);
    for (uint32_t i = 0; i < CHAIN; i++)
        assert_int_equal(st[i], 0);
    assert_int_equal(node_put(&w->f, tag, 0, 2, -1, st), 0);
    assert_int_equal(st[0], 0);
    assert_int_equal(st[1], 0);
    assert_int_equal(node_lookup(&w->f, 1, CHAIN, MSG_LOOKUP_F_LEASE | MSG_LOOKUP_F_TOUCH), CHAIN);
}

static uint64_t ask_fetch(struct raw_peer *p, uint32_t n, uint32_t deadline_ms) {
    struct block_id one, ids[LONG];
    node_chain(1, &one, 1);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = one;
    struct msg_fetch_req q = {.ns = p->handle, .ids = ids, .n_ids = n};
    raw_encode_begin(&p->data);
    assert_int_equal(wire_msg_fetch_req_encode(&p->data.scratch, &q, p->data.out), 0);
    return raw_send(&p->data, WIRE_FETCH, 0, NULL, 0, deadline_ms);
}

/* Until the last frame of that answer; its status. */
static int end_of(struct raw_peer *p, uint64_t id) {
    struct msg_fetch_block m;
    while (raw_answer(&p->data, id))
        if (p->data.hdr.flags & WIRE_F_END) {
            int rv = raw_error(&p->data);
            if (rv < 0)
                return rv;
            assert_int_equal(RAW_DECODE(&p->data, fetch_block, &m), 0);
            return (int)m.status;
        }
    return ERR_CLOSED;
}

static int setup(void **state) {
    struct world *w = calloc(1, sizeof(*w));
    node_fixture_init(&w->f);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    node_fixture_fini(&w->f);
    free(w);
    return 0;
}

/* ---- streams ---- */

/* A1: 300 fetches of a session that never reads; every other session was told BUSY for ever. */
static void test_a_reader_that_never_reads_stops_nobody(void **state) {
    struct world *w = *state;
    struct raw_peer h;
    work_starts(w);
    raw_peer_open(&h, &w->f, 4096);
    for (uint32_t i = 0; i < 300; i++)
        (void)ask_fetch(&h, LONG, 0);
    struct session *ss = session_number(w, 1);
    for (int i = 0; i < 2000 && ss->n_waiting == 0; i++)
        test_loop_turn(&w->f.tl);
    assert_int_equal(ss->bound[BOUND_STREAMS].used,
                     256 - 256 / 8); /* alone: all but what is kept */
    assert_true(ss->n_waiting > 0);
    for (uint32_t i = 0; i < 20; i++)
        work_goes_on(w, 100 + i);
    assert_int_equal(svc(w)->met.fetch_busy_total, 0);
    raw_peer_close(&h);
}

/* A: a fetch of 4,096 ids was answered in one go, 4,096 frames of it, while everybody waited. */
static void test_a_long_stream_goes_in_slices(void **state) {
    struct world *w = *state;
    static struct block_id ids[4096];
    struct raw_peer h;
    struct msg_fetch_block m;
    fake_clock_init(&w->clk);
    w->f.clk = &w->clk.clk;
    work_starts(w);
    raw_peer_open(&h, &w->f, 0);
    w->clk.step_ns = RPC_CONN_SLICE_NS / 10;
    struct msg_fetch_req q = {.ns = h.handle, .ids = ids, .n_ids = ARRAY_LEN(ids)};
    uint64_t id = RAW_SEND(&h.data, fetch_req, WIRE_FETCH, &q), n = 0;
    struct session *ss = session_number(w, 1);
    for (int i = 0; i < 2000 && !ss->bound[BOUND_STREAMS].used; i++)
        test_loop_turn(&w->f.tl);
    work_goes_on(w, 100);
    assert_int_equal(ss->bound[BOUND_STREAMS].used, 1); /* it is not through yet */
    while (n < ARRAY_LEN(ids)) {
        assert_true(raw_answer(&h.data, id));
        assert_int_equal(RAW_DECODE(&h.data, fetch_block, &m), 0);
        assert_int_equal(m.index, n);
        assert_int_equal(m.status, MSG_FETCH_ABSENT);
        n += m.count;
    }
    assert_true(h.data.hdr.flags & WIRE_F_END);
    raw_peer_close(&h);
}

/* A1: what Hello promises is true: so many requests of a session are taken, whatever the others do. */
static void test_max_inflight_is_true(void **state) {
    struct world *w = *state;
    struct raw_peer h, p;
    uint64_t ids[20];
    w->f.cfg.max_fetches = 1;
    w->f.cfg.max_waiting = 12;
    work_starts(w);
    raw_peer_open(&h, &w->f, 4096);
    (void)ask_fetch(&h, LONG, 0); /* holds the only stream */
    raw_peer_open(&p, &w->f, 4096);
    assert_int_equal(p.control.max_inflight, 12);
    for (uint32_t i = 0; i < 13; i++)
        ids[i] = ask_fetch(&p, 2, 0);
    assert_int_equal(end_of(&p, ids[12]), ERR_BUSY); /* one more than was promised */
    raw_peer_close(&h);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(end_of(&p, ids[i]), MSG_FETCH_OK);
    assert_int_equal(svc(w)->met.fetch_busy_total, 1);
    raw_peer_close(&p);
}

/* A1: in turns by bytes: who got less is next, however many requests the other has waiting. */
static void test_waiting_sessions_take_turns(void **state) {
    struct world *w = *state;
    struct raw_peer h, a, b;
    w->f.cfg.max_fetches = 1;
    work_starts(w);
    raw_peer_open(&h, &w->f, 4096);
    (void)ask_fetch(&h, LONG, 0);
    raw_peer_open(&a, &w->f, 4096);
    raw_peer_open(&b, &w->f, 4096);
    uint64_t first = ask_fetch(&a, LONG, 0);
    (void)ask_fetch(&a, LONG, 0);
    (void)ask_fetch(&a, LONG, 0);
    (void)ask_fetch(&b, LONG, 0);
    struct session *sa = session_number(w, 2), *sb = session_number(w, 3);
    for (int i = 0; i < 2000 && sa->n_waiting + sb->n_waiting < 4; i++)
        test_loop_turn(&w->f.tl);
    assert_int_equal(sa->n_waiting, 3);
    assert_int_equal(sb->n_waiting, 1);
    raw_peer_close(&h);
    assert_int_equal(end_of(&a, first), MSG_FETCH_OK);
    for (int i = 0; i < 2000 && sb->n_waiting; i++)
        test_loop_turn(&w->f.tl);
    assert_int_equal(sb->n_waiting, 0);
    assert_int_equal(sa->n_waiting, 2);
    raw_peer_close(&a);
    raw_peer_close(&b);
}

static bool has_no_streams(void *arg) {
    struct cachesvc *s = arg;
    return slabpool_in_use(&s->streams) == 0 && s->n_waiting == 0;
}

/* A deadline ends a stream that nobody reads, and a request that waits for its turn. */
static void test_deadlines_end_streams_and_waiting(void **state) {
    struct world *w = *state;
    struct raw_peer h, p;
    w->f.cfg.max_fetches = 1;
    work_starts(w);
    raw_peer_open(&h, &w->f, 4096);
    raw_peer_open(&p, &w->f, 4096);
    (void)ask_fetch(&h, LONG, 0);
    for (int i = 0; i < 2000 && list_empty(&session_number(w, 1)->streams); i++)
        test_loop_turn(&w->f.tl);
    assert_int_equal(end_of(&p, ask_fetch(&p, LONG, 50)), ERR_TIMEOUT);
    assert_int_equal(slabpool_in_use(&svc(w)->streams), 1); /* the other goes on */
    raw_peer_close(&h);
    uint64_t runs = ask_fetch(&p, LONG, 50);
    assert_true(test_loop_until_fn(&w->f.tl, has_no_streams, svc(w)));
    assert_int_equal(end_of(&p, runs), MSG_FETCH_CANCELED);
    raw_peer_close(&p);
}

/* Cancel finds both, from the control connection too. */
static void test_cancel_finds_streams_and_waiting(void **state) {
    struct world *w = *state;
    struct raw_peer p;
    struct msg_ack ack;
    w->f.cfg.max_fetches = 1;
    work_starts(w);
    raw_peer_open(&p, &w->f, 4096);
    uint64_t ids[2] = {ask_fetch(&p, LONG, 0), ask_fetch(&p, LONG, 0)};
    for (int i = 0; i < 2000 && session_number(w, 1)->n_waiting == 0; i++)
        test_loop_turn(&w->f.tl);
    for (int i = 1; i >= 0; i--) {
        struct msg_cancel_req q = {.request_id = ids[i], .conn = p.data.conn};
        assert_true(raw_answer(&p.control, RAW_SEND(&p.control, cancel_req, WIRE_CANCEL, &q)));
        assert_int_equal(RAW_DECODE(&p.control, ack, &ack), 0);
        assert_int_equal(ack.count, 1);
    }
    assert_true(has_no_streams(svc(w)));
    assert_int_equal(end_of(&p, ids[0]), MSG_FETCH_CANCELED);
    raw_peer_close(&p);
}

static uint64_t refs(struct world *w) {
    struct block_store_stats st;
    block_store_stats(svc(w)->store, &st);
    return st.now.refs;
}

static bool is_alone(void *arg) {
    struct world *w = arg;
    return slabpool_in_use(&svc(w)->sessions.pool) == 1;
}

/* What was ready for a reader that goes away is given back: its slots may leave again. */
static void test_a_reader_that_goes_leaves_no_slot_held(void **state) {
    struct world *w = *state;
    struct raw_peer p;
    work_starts(w);
    raw_peer_open(&p, &w->f, 4096);
    for (uint32_t i = 0; i < 4; i++)
        (void)ask_fetch(&p, LONG, 0);
    for (int i = 0; i < 2000 && session_number(w, 1)->bound[BOUND_STREAMS].used < 4; i++)
        test_loop_turn(&w->f.tl);
    assert_true(refs(w) > 0);
    raw_peer_close(&p);
    assert_true(test_loop_until_fn(&w->f.tl, is_alone, w));
    assert_int_equal(refs(w), 0);
    for (int i = 0; i < N_BOUNDS; i++) /* the worker itself and its namespace stay */
        assert_int_equal(svc(w)->sessions.bound[i].used,
                         i == BOUND_NAMESPACES || i == BOUND_SESSIONS);
}

/* A1: frames under way hold slots of the RAM tier: a session's share of them, and others go on. */
static void test_bytes_under_way_are_shared(void **state) {
    struct world *w = *state;
    struct raw_peer h[3];
    work_starts(w);
    for (int k = 0; k < 3; k++) {
        raw_peer_open(&h[k], &w->f, 4096);
        (void)ask_fetch(&h[k], LONG, 0);
    }
    for (int i = 0; i < 2000; i++)
        test_loop_turn(&w->f.tl);
    const struct share *b = &svc(w)->sessions.bound[BOUND_SENDS];
    assert_int_equal(b->total, w->f.cfg.ram_bytes / 4);
    assert_true(b->used < b->total); /* three that never read, each bit of what they can get */
    for (uint32_t i = 0; i < 5; i++)
        work_goes_on(w, 100 + i);
    for (int k = 0; k < 3; k++)
        raw_peer_close(&h[k]);
}

/* ---- the rate of a reader ---- */

static bool is_dropped(void *arg) {
    struct world *w = arg;
    fake_clock_advance_ms(&w->clk, 250);
    return svc(w)->met.slow_reader_dropped_total > 0;
}

/* A1: who takes too little of what it asked for is dropped; who asks for nothing is not. */
static void test_a_reader_below_the_least_rate_is_dropped(void **state) {
    struct world *w = *state;
    struct raw_peer slow, idle;
    fake_clock_init(&w->clk);
    w->f.clk = &w->clk.clk;
    work_starts(w);
    raw_peer_open(&slow, &w->f, 4096);
    raw_peer_open(&idle, &w->f, 4096);
    uint64_t id = ask_fetch(&slow, LONG, 0);
    assert_true(test_loop_until_fn(&w->f.tl, is_dropped, w));
    assert_int_equal(end_of(&slow, id), ERR_CLOSED);
    assert_int_equal(svc(w)->met.slow_reader_dropped_total, 1);
    id = ask_fetch(&idle, 1, 0);
    assert_int_equal(end_of(&idle, id), MSG_FETCH_OK);
    raw_peer_close(&slow);
    raw_peer_close(&idle);
}

/* ---- puts ---- */

static uint64_t begin(struct raw_peer *p, uint8_t name, uint32_t n) {
    struct block_id ids[16], parents[16] = {{{0}}};
    uint32_t depths[16];
    uint64_t sums[16];
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (struct block_id){{name, (uint8_t)i, 7}};
        parents[i] = i ? ids[i - 1] : (struct block_id){{0}};
        depths[i] = i;
        sums[i] = i;
    }
    struct msg_put_begin_req q = {.ns = p->handle,
                                  .ids = ids,
                                  .n_ids = n,
                                  .parents = parents,
                                  .n_parents = n,
                                  .depths = depths,
                                  .n_depths = n,
                                  .checksums = sums,
                                  .n_checksums = n};
    struct msg_put_begin_res res = {0};
    assert_true(raw_answer(&p->control, RAW_SEND(&p->control, put_begin_req, WIRE_PUT_BEGIN, &q)));
    if (raw_error(&p->control) == 0)
        assert_int_equal(RAW_DECODE(&p->control, put_begin_res, &res), 0);
    return res.put_id;
}

/* A1: commits that wait for payloads that never come: all places were one session's. */
static void test_commits_that_wait_stop_nobody(void **state) {
    struct world *w = *state;
    struct raw_peer h;
    uint32_t index = 0;
    w->f.cfg.max_commits = 16;
    work_starts(w);
    raw_peer_open(&h, &w->f, 4096);
    uint64_t put_id = begin(&h, 1, 16), last = 0;
    assert_true(put_id != 0);
    struct msg_put_commit_req q = {.put_id = put_id, .indexes = &index, .n_indexes = 1};
    for (index = 0; index < 16; index++)
        last = RAW_SEND(&h.control, put_commit_req, WIRE_PUT_COMMIT, &q);
    assert_true(raw_answer(&h.control, last));
    assert_int_equal(raw_error(&h.control), ERR_BUSY); /* itself */
    assert_string_equal(raw_error_text(&h.control),
                        "Commit: waiting commits: 14 of 16 are taken, 14 of them by its tenant, "
                        "14 by this session, whose share is 14");
    assert_int_equal(session_number(w, 1)->bound[BOUND_COMMITS].used, 16 - 16 / 8);
    for (uint32_t i = 0; i < 5; i++)
        work_goes_on(w, 100 + i);
    raw_peer_close(&h);
}

/* ---- namespaces ---- */

static int register_one(struct raw *r, uint32_t name, uint32_t bytes) {
    char text[64];
    uint8_t digest[DIGEST_BYTES];
    size_t n = (size_t)snprintf(text, sizeof(text), "name=%u\n", name);
    digest_sha256(text, n, digest);
    struct msg_register_ns_req q = {.digest = {digest, DIGEST_BYTES},
                                    .descriptor = {(const uint8_t *)text, n},
                                    .range_sizes = &bytes,
                                    .n_range_sizes = 1,
                                    .n_full = 1,
                                    .seg_blocks = 8};
    assert_true(raw_answer(r, RAW_SEND(r, register_ns_req, WIRE_REGISTER_NS, &q)));
    return raw_error(r);
}

/* A7: 256 namespaces, or 64 sizes, of a session that has long ended: every new one was refused until the node
 * restarted. While it lives it has its share of them. */
static void test_namespaces_and_sizes_come_back(void **state) {
    struct world *w = *state;
    uint32_t n = 0;
    work_starts(w);
    for (uint32_t round = 0; round < 3; round++) {
        struct raw_peer h, p;
        uint32_t made = 0;
        raw_peer_open(&h, &w->f, 0);
        while (made < 300 && register_one(&h.control, n++, 4096 * (1 + made % 50)) == 0)
            made++;
        assert_int_equal(raw_error(&h.control), ERR_BUSY);
        assert_in_range(made, SESSION_MAX_NS / 2, SESSION_MAX_NS - SESSION_MAX_NS / 8);
        raw_peer_open(&p, &w->f, 0); /* who comes has its own */
        for (uint32_t i = 0; i < 8; i++)
            assert_int_equal(register_one(&p.control, n++, 4096 * (51 + i)), 0);
        work_goes_on(w, 100 + round);
        raw_peer_close(&p);
        raw_peer_close(&h);
        assert_true(test_loop_until_fn(&w->f.tl, is_alone, w));
        for (uint32_t i = 0; i < SESSION_MAX_NS; i++) /* the fixture's own alone */
            if (svc(w)->descriptor[i].text)
                assert_string_equal(svc(w)->descriptor[i].text, NODE_DESCRIPTOR);
    }
    /* 120 sizes one after the other, of 64 that there can be at a time. */
    for (uint32_t round = 0; round < 3; round++) {
        struct raw_peer p;
        raw_peer_open(&p, &w->f, 0);
        for (uint32_t i = 0; i < 40; i++)
            assert_int_equal(register_one(&p.control, n++, 64 * 1024 + 4096 * (round * 40 + i)), 0);
        raw_peer_close(&p);
        assert_true(test_loop_until_fn(&w->f.tl, is_alone, w));
    }
    work_goes_on(w, 200);
}

/* "too many namespaces came from this session" was said to one that had brought none: others had them all. */
static void test_a_refusal_says_who_has_the_bound(void **state) {
    struct world *w = *state;
    static struct raw_peer p[32];
    uint32_t n_peers = 0, n = 0, made;
    char want[128];
    work_starts(w);
    do {
        raw_peer_open(&p[n_peers], &w->f, 0);
        for (made = 0; register_one(&p[n_peers].control, n, 4096) == 0; made++)
            n++;
        assert_int_equal(raw_error(&p[n_peers].control), ERR_BUSY);
    } while (++n_peers < ARRAY_LEN(p) && made > 0);
    assert_int_equal(made, 0);
    snprintf(want, sizeof(want),
             "namespaces brought in: %u of %u are taken, %u of them by its tenant, 0 by", n + 1,
             SESSION_MAX_NS, n + 1);
    assert_non_null(strstr(raw_error_text(&p[n_peers - 1].control), want));
    while (n_peers > 0)
        raw_peer_close(&p[--n_peers]);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_a_reader_that_never_reads_stops_nobody),
        T(test_a_long_stream_goes_in_slices),
        T(test_max_inflight_is_true),
        T(test_waiting_sessions_take_turns),
        T(test_deadlines_end_streams_and_waiting),
        T(test_cancel_finds_streams_and_waiting),
        T(test_a_reader_that_goes_leaves_no_slot_held),
        T(test_bytes_under_way_are_shared),
        T(test_a_reader_below_the_least_rate_is_dropped),
        T(test_commits_that_wait_stop_nobody),
        T(test_namespaces_and_sizes_come_back),
        T(test_a_refusal_says_who_has_the_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
