/* D: what the protocol's page says of answers, and a node did not do: each status of a commit, deadlines, a
 * Fetch that names its lease alone, what Inspect, List of sessions and Evict fill in. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <cmocka.h>

#include "cachesvc/svc.h"
#include "common/checksum.h"
#include "tests/integration/raw_client.h"

#define N 4u

struct world {
    struct node_fixture f;
    struct raw_peer p;
};

static int setup(void **state) {
    struct world *w = calloc(1, sizeof(*w));
    node_fixture_init(&w->f);
    node_fixture_start(&w->f);
    node_fixture_connect(&w->f, MSG_ROLE_ADMIN, NULL);
    raw_peer_open(&w->p, &w->f, 0);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    raw_peer_close(&w->p);
    node_fixture_fini(&w->f);
    free(w);
    return 0;
}

/* ---- puts by hand ---- */

/* BEGIN of the first two blocks of chain tag, then of chain tag + 1, n in all; block `lie` is announced with a
 * wrong checksum. */
static uint64_t begin(struct raw_peer *p, uint32_t tag, uint32_t n, uint32_t lie,
                      uint8_t *ret_status) {
    static uint8_t bytes[NODE_PAYLOAD];
    struct block_id ids[N], parents[N] = {{{0}}};
    uint32_t depths[N];
    uint64_t sums[N], ranges[NODE_RANGES];
    node_chain(tag, ids, 2);
    node_chain(tag + 1, ids + 2, 2);
    for (uint32_t i = 0; i < n; i++) {
        if (i % 2)
            parents[i] = ids[i - 1];
        depths[i] = i % 2;
        node_payload(tag + i / 2, i % 2, bytes);
        sums[i] =
            checksum_block(bytes, node_range_sizes, NODE_RANGES, ids[i].b, ranges) ^ (i == lie);
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
    struct msg_put_begin_res res;
    assert_true(raw_answer(&p->control, RAW_SEND(&p->control, put_begin_req, WIRE_PUT_BEGIN, &q)));
    assert_int_equal(raw_error(&p->control), 0);
    assert_int_equal(RAW_DECODE(&p->control, put_begin_res, &res), 0);
    assert_int_equal(res.status.n, n);
    memcpy(ret_status, res.status.p, n);
    return res.put_id;
}

/* Block i of the put gets the bytes of block pos of chain tag. */
static void data(struct raw_peer *p, uint64_t put_id, uint32_t tag, uint32_t pos, uint32_t i) {
    static uint8_t bytes[NODE_PAYLOAD];
    struct msg_put_data d = {.put_id = put_id, .index = i};
    node_payload(tag, pos, bytes);
    raw_encode_begin(&p->data);
    assert_int_equal(wire_msg_put_data_encode(&p->data.scratch, &d, p->data.out), 0);
    raw_send(&p->data, WIRE_PUT_DATA, WIRE_F_ONEWAY, bytes, NODE_PAYLOAD, 0);
}

static int commit(struct raw_peer *p, uint64_t put_id, uint32_t n, bool last, uint32_t deadline_ms,
                  uint8_t *ret_status) {
    static const uint32_t index[] = {0, 1, 2, 3};
    struct msg_put_commit_req q = {
        .put_id = put_id, .indexes = index, .n_indexes = n, .last = last};
    struct msg_put_commit_res res;
    raw_encode_begin(&p->control);
    assert_int_equal(wire_msg_put_commit_req_encode(&p->control.scratch, &q, p->control.out), 0);
    uint64_t id = raw_send(&p->control, WIRE_PUT_COMMIT, 0, NULL, 0, deadline_ms);
    assert_true(raw_answer(&p->control, id));
    int rv = raw_error(&p->control);
    if (rv == 0) {
        assert_int_equal(RAW_DECODE(&p->control, put_commit_res, &res), 0);
        assert_int_equal(res.status.n, n);
        memcpy(ret_status, res.status.p, n);
    }
    return rv;
}

static void test_commit_says_what_became_of_each_block(void **state) {
    struct world *w = *state;
    uint8_t st[N], done[N];
    int put[2];
    assert_int_equal(node_put(&w->f, 1, 0, 2, -1, put), 0);
    uint64_t id = begin(&w->p, 1, 4, 1, st); /* two are there, one with other bytes */
    static const uint8_t want[] = {STORE_PUT_PRESENT, STORE_PUT_CONFLICT, STORE_PUT_WANTED,
                                   STORE_PUT_WANTED};
    assert_memory_equal(st, want, sizeof(want));
    data(&w->p, id, 2, 0, 2);
    data(&w->p, id, 9, 1, 3); /* another chain's bytes */
    assert_int_equal(commit(&w->p, id, 4, false, 0, done), 0);
    static const uint8_t is[] = {MSG_COMMIT_PRESENT, MSG_COMMIT_CONFLICT, MSG_COMMIT_OK,
                                 MSG_COMMIT_CORRUPT};
    assert_memory_equal(done, is, sizeof(is));
    assert_int_equal(commit(&w->p, id, 3, true, 0, done), 0); /* once more: it is there */
    assert_int_equal(done[2], MSG_COMMIT_PRESENT);
    assert_int_equal(commit(&w->p, id, 1, true, 0, done), ERR_NOTFOUND); /* the put is over */
}

/* A commit's deadline ends its waiting, not the put: what comes then is taken. */
static void test_commit_has_a_deadline(void **state) {
    struct world *w = *state;
    uint8_t st[N], done[N];
    uint64_t id = begin(&w->p, 7, 1, N, st);
    assert_int_equal(commit(&w->p, id, 1, false, 60, done), ERR_TIMEOUT);
    data(&w->p, id, 7, 0, 0);
    assert_int_equal(commit(&w->p, id, 1, true, 5000, done), 0);
    assert_true(done[0] == MSG_COMMIT_OK || done[0] == MSG_COMMIT_PRESENT);
    assert_int_equal(node_lookup(&w->f, 7, 1, 0), 1);
}

/* ---- leases ---- */

static uint64_t lease(struct world *w, uint32_t tag, uint32_t n) {
    struct raw *r = &w->p.control;
    struct block_id ids[N];
    struct msg_lookup_res res;
    node_chain(tag, ids, n);
    struct msg_lookup_req q = {
        .ns = w->p.handle, .ids = ids, .n_ids = n, .flags = MSG_LOOKUP_F_LEASE};
    assert_true(raw_answer(r, RAW_SEND(r, lookup_req, WIRE_LOOKUP, &q)));
    assert_int_equal(raw_error(r), 0);
    assert_int_equal(RAW_DECODE(r, lookup_res, &res), 0);
    assert_int_equal(res.lease_count, n);
    return res.lease_id;
}

static void test_fetch_of_a_lease_is_its_blocks(void **state) {
    struct world *w = *state;
    struct raw *r = &w->p.data;
    static uint8_t want[NODE_PAYLOAD];
    int put[N];
    assert_int_equal(node_put(&w->f, 3, 0, N, -1, put), 0);
    struct msg_fetch_req q = {.ns = w->p.handle, .lease_id = lease(w, 3, N)};
    uint64_t id = RAW_SEND(r, fetch_req, WIRE_FETCH, &q);
    for (uint32_t i = 0; i < N; i++) {
        struct msg_fetch_block m;
        assert_true(raw_answer(r, id));
        assert_int_equal(raw_error(r), 0);
        assert_int_equal(RAW_DECODE(r, fetch_block, &m), 0);
        assert_int_equal(m.index, i);
        assert_int_equal(m.status, MSG_FETCH_OK);
        node_payload(3, i, want);
        assert_memory_equal(r->payload, want, NODE_PAYLOAD);
    }
    assert_true(r->hdr.flags & WIRE_F_END);
    q.lease_id ^= 1ull << 40;
    assert_true(raw_answer(r, RAW_SEND(r, fetch_req, WIRE_FETCH, &q)));
    assert_int_equal(raw_error(r), ERR_NOTFOUND);
    q.lease_id = 0;
    assert_true(raw_answer(r, RAW_SEND(r, fetch_req, WIRE_FETCH, &q)));
    assert_int_equal(raw_error(r), ERR_INVALID);
}

/* ---- what administrators are told ---- */

struct told {
    bool done;
    int rv;
    uint32_t n_children, n_sums, n_leases, n_puts;
    struct block_id child;
    struct msg_evict_res evict;
};

static void on_inspect(void *arg, int rv, const char *text, const struct msg_inspect_res *res) {
    struct told *t = arg;
    (void)text;
    t->rv = rv;
    if (res) {
        t->n_children = (uint32_t)res->n_children;
        t->n_sums = (uint32_t)res->n_range_checksums;
        if (res->n_children)
            t->child = res->children[0];
    }
    t->done = true;
}

static void test_inspect_tells_children_and_checksums(void **state) {
    struct world *w = *state;
    struct told t = {0};
    struct block_id ids[2];
    struct kv_call *k;
    int put[2];
    node_chain(5, ids, 2);
    assert_int_equal(node_put(&w->f, 5, 0, 2, -1, put), 0);
    struct msg_inspect_req m = {.id = {ids[0].b, BLOCK_ID_BYTES},
                                .digest = {w->f.ns_digest, DIGEST_BYTES}};
    assert_int_equal(kv_client_inspect(w->f.client, 0, &m, 5000, on_inspect, &t, &k), 0);
    assert_true(test_loop_until(&w->f.tl, &t.done));
    assert_int_equal(t.rv, 0);
    assert_int_equal(t.n_children, 1);
    assert_memory_equal(t.child.b, ids[1].b, BLOCK_ID_BYTES);
    assert_int_equal(t.n_sums, NODE_RANGES);
    static const uint8_t other[DIGEST_BYTES] = {1};
    t = (struct told){0};
    m.digest.p = other;
    assert_int_equal(kv_client_inspect(w->f.client, 0, &m, 5000, on_inspect, &t, &k), 0);
    assert_true(test_loop_until(&w->f.tl, &t.done));
    assert_int_equal(t.rv, ERR_NOTFOUND);
}

static void on_list(void *arg, int rv, const char *text, const struct msg_list_res *res) {
    struct told *t = arg;
    (void)text;
    t->rv = rv;
    for (size_t i = 0; res && i < res->n_sessions; i++) {
        t->n_leases += res->sessions[i].leases;
        t->n_puts += res->sessions[i].puts_open;
    }
    t->done = true;
}

static void on_evict(void *arg, int rv, const char *text, const struct msg_evict_res *res) {
    struct told *t = arg;
    (void)text;
    t->rv = rv;
    if (res)
        t->evict = *res;
    t->done = true;
}

static void test_leases_and_puts_are_told(void **state) {
    struct world *w = *state;
    struct told t = {0};
    struct kv_call *k;
    uint8_t st[N];
    int put[N];
    assert_int_equal(node_put(&w->f, 6, 0, N, -1, put), 0);
    (void)lease(w, 6, 3);
    (void)begin(&w->p, 8, 2, N, st);
    struct msg_list_req m = {.what = MSG_LIST_SESSIONS};
    assert_int_equal(kv_client_list(w->f.client, 0, &m, 5000, on_list, &t, &k), 0);
    assert_true(test_loop_until(&w->f.tl, &t.done));
    assert_int_equal(t.n_leases, 1);
    assert_int_equal(t.n_puts, 1);
    for (int by_ids = 0; by_ids < 2; by_ids++) {
        struct block_id ids[N];
        node_chain(6, ids, N);
        struct msg_evict_req e = {.digest = {w->f.ns_digest, DIGEST_BYTES}};
        if (by_ids) { /* the whole namespace has gone with the first round: once more */
            assert_int_equal(node_put(&w->f, 9, 0, N, -1, put), 0);
            (void)lease(w, 9, 2);
            node_chain(9, ids, N);
            e.ids = ids;
            e.n_ids = N;
        }
        t = (struct told){0};
        assert_int_equal(kv_client_evict(w->f.client, 0, &e, 5000, on_evict, &t, &k), 0);
        assert_true(test_loop_until(&w->f.tl, &t.done));
        assert_int_equal(t.rv, 0);
        assert_int_equal(t.evict.deferred, by_ids ? 2 : 3);
        assert_int_equal(t.evict.puts_aborted, by_ids ? 0 : 2);
        assert_true(t.evict.before_ms > 0);
    }
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_commit_says_what_became_of_each_block),
        T(test_commit_has_a_deadline),
        T(test_fetch_of_a_lease_is_its_blocks),
        T(test_inspect_tells_children_and_checksums),
        T(test_leases_and_puts_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
