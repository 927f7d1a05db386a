/* What one session or tenant can take from the others: leases, puts. */
#include "tests/unit/cachesvc/store_fixture.h"

/* Names of tenants: compared by their addresses. */
static const char many[] = "many", one[] = "one";

static struct store_session *open_of(struct store_fx *f, const void *tenant) {
    struct store_session *ss;
    assert_int_equal(block_store_session_open(f->s, tenant, &ss), 0);
    return ss;
}

static struct store_session *open_session(struct store_fx *f) {
    return open_of(f, NULL);
}

static struct store_lookup lease(struct store_fx *f, struct store_session *ss, uint32_t chain,
                                 uint32_t n) {
    static struct block_id ids[256];
    static uint8_t where[256];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = fx_id(chain, i);
    struct store_lookup l = {.ns = f->ns,
                             .ids = ids,
                             .n = n,
                             .where = where,
                             .flags = STORE_LOOKUP_LEASE | STORE_LOOKUP_TOUCH};
    assert_int_equal(block_store_lookup(f->s, ss, &l), 0);
    return l;
}

static uint32_t begin(struct store_fx *f, struct store_session *ss, uint32_t chain, uint32_t n,
                      struct store_put **p) {
    struct store_put_block b[64];
    uint8_t st[64];
    uint32_t n_wanted = 0;
    for (uint32_t i = 0; i < n; i++)
        b[i] = fx_block(chain, i, 0);
    struct store_put_args a = {.ns = f->ns, .n = n, .blocks = b};
    assert_int_equal(block_store_put_begin(ss, &a, st, p, NULL), 0);
    for (uint32_t i = 0; i < n; i++)
        n_wanted += st[i] == STORE_PUT_WANTED;
    return n_wanted;
}

static struct store_heartbeat beat(struct store_session *ss, uint64_t id, uint64_t *lists) {
    struct store_heartbeat h = {
        .ids = &id, .n = 1, .max = 8, .recalled = lists, .ended = lists + 8};
    block_store_heartbeat(ss, &h);
    return h;
}

static void quarter(struct block_store_cfg *c) {
    c->max_put_bytes = 16 * FX_SLOT;
}

/* A2: four PutBegins of 256 blocks and no data reserved a quarter of RAM and evicted what was there; all
 * other puts were BUSY for 30 s. A promise takes nothing that is resident, and no more than its share
 * once somebody else wants some. */
static void test_promises_take_nothing_and_are_taken_back(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open_with(&f, 64, 0, quarter);
    for (uint32_t c = 0; c < 16; c++)
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
    struct store_session *bad = open_session(&f);
    struct store_put *p[4], *q;
    uint32_t n = 0;
    for (uint32_t i = 0; i < 4; i++)
        n += begin(&f, bad, 100 + i, 40, &p[i]);
    assert_true(n > 0 && n <= 16);
    assert_int_equal(store_fx_stats(&f).evicted, 0);
    assert_int_equal(store_fx_stats(&f).now.blocks, 64);
    /* what is filled is counted apart: who is refused now is served after the next tick */
    for (uint32_t i = 0; i < 3; i++) {
        n = begin(&f, f.ss, 200, 8, &q);
        if (q && n == 8)
            break;
        if (q)
            block_store_put_end(q);
        q = NULL;
        block_store_tick(f.s);
    }
    assert_int_equal(n, 8);
    block_store_put_end(q);
    assert_int_equal(store_fx_put(&f, 201, 0, 8), 8);
    assert_true(store_fx_stats(&f).put_recalled > 0);
    block_store_session_close(bad);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* A2: nor does a promise take an entry of the directory from what is there. */
static void full_directory(struct block_store_cfg *c) {
    c->max_blocks = 32;
}
static void test_promises_take_no_entries(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open_with(&f, 64, 0, full_directory);
    for (uint32_t c = 0; c < 8; c++)
        assert_int_equal(store_fx_put(&f, c, 0, 4), 4);
    struct store_put *p;
    assert_int_equal(begin(&f, f.ss, 50, 20, &p), 20);
    assert_int_equal(store_fx_stats(&f).now.blocks, 32);
    struct store_fill fill;
    assert_int_equal(block_store_put_open(p, 0, &fill), 0); /* bytes do */
    assert_int_equal(store_fx_stats(&f).now.blocks, 31);
    block_store_put_unfilled(f.s, &fill);
    block_store_put_end(p);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* MUTANT: the put budget is ignored. */
static void test_puts_stay_within_their_budget(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open_with(&f, 64, 0, quarter);
    struct store_put *p;
    uint32_t n = begin(&f, f.ss, 1, 40, &p), n_open = 0;
    assert_true(n <= 16);
    struct store_fill fill[40];
    for (uint32_t i = 0; i < n; i++)
        n_open += block_store_put_open(p, i, &fill[n_open]) == 0;
    assert_int_equal(n_open, n); /* what was promised is taken */
    struct store_session *other = open_session(&f);
    struct store_put *q;
    assert_true(begin(&f, other, 2, 1, &q) == 1); /* an eighth is kept for who has none */
    assert_int_equal(store_fx_stats(&f).now.put_bytes, n * FX_SLOT);
    block_store_put_end(p);
    for (uint32_t i = 0; i < n_open; i++)
        block_store_put_unfilled(f.s, &fill[i]);
    block_store_session_close(other);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* MUTANT: the time of a put in progress is not renewed. */
static void test_progress_keeps_a_put_alive(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 0);
    struct store_put *p;
    struct store_fill fill;
    assert_int_equal(begin(&f, f.ss, 1, 4, &p), 4);
    for (uint32_t i = 0; i < 4; i++) {
        f.now_ns += 20 * NS_PER_S;
        block_store_tick(f.s);
        assert_int_equal(block_store_put_open(p, i, &fill), 0);
        fx_payload(1, i, 0, fill.payload);
        assert_int_equal(block_store_put_filled(f.s, &fill), 0);
    }
    struct store_commit c;
    uint32_t idx[2] = {0, 1}, done;
    f.now_ns += 20 * NS_PER_S;
    block_store_tick(f.s);
    assert_int_equal(block_store_put_commit(p, &c, idx, 2, &done, NULL, NULL), 1);
    f.now_ns += 20 * NS_PER_S;
    block_store_tick(f.s);
    assert_int_equal(store_fx_stats(&f).put_expired, 0);
    f.now_ns += 20 * NS_PER_S;
    block_store_tick(f.s);
    assert_int_equal(store_fx_stats(&f).put_expired, 1);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* A3: leases without end of most of RAM, kept by heartbeats or by other leasing lookups. Only the named
 * leases are renewed, and no lookup renews any. */
static void test_only_named_leases_are_renewed(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 32, 0);
    store_fx_put(&f, 1, 0, 4);
    store_fx_put(&f, 2, 0, 4);
    uint64_t a = lease(&f, f.ss, 1, 4).lease_id, b = lease(&f, f.ss, 2, 4).lease_id, lists[16];
    f.now_ns += 4 * NS_PER_S;
    struct store_heartbeat h = beat(f.ss, a, lists);
    assert_true(h.n_renewed == 1 && h.n_recalled == 0 && h.n_ended == 0);
    uint64_t c = lease(&f, f.ss, 2, 4).lease_id;
    f.now_ns += 2 * NS_PER_S;
    block_store_tick(f.s);
    assert_int_equal(store_fx_stats(&f).lease_expired, 1); /* b */
    h = beat(f.ss, b, lists);
    assert_true(h.n_renewed == 0 && h.n_ended == 1 && h.ended[0] == b);
    assert_int_equal(block_store_release(f.ss, a), 0);
    assert_int_equal(block_store_release(f.ss, c), 0);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* A3: who is refused below its share gets the largest holder's leases recalled; a recalled lease is not
 * renewed and ends a lease's time after it was told, or by itself if nobody asks. */
static void test_the_largest_holder_gives_back(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 0); /* 51 may be leased */
    struct store_session *big = open_session(&f), *mid = open_session(&f);
    uint64_t id[12], lists[16];
    for (uint32_t c = 0; c < 12; c++)
        store_fx_put(&f, c, 0, 5);
    for (uint32_t c = 0; c < 9; c++)
        id[c] = lease(&f, big, c, 5).lease_id;
    id[9] = lease(&f, mid, 9, 5).lease_id;
    assert_int_equal(store_fx_stats(&f).now.leased_blocks, 50);
    assert_int_equal(lease(&f, f.ss, 10, 5).n_leased, 1);
    block_store_tick(f.s);
    assert_true(store_fx_stats(&f).lease_recalled >= 1);
    f.now_ns += 4 * NS_PER_S;
    struct store_heartbeat h = beat(mid, id[9], lists);
    assert_true(h.n_renewed == 1 && h.n_recalled == 0);
    h = beat(big, id[0], lists);
    assert_int_equal(h.n_renewed, 0); /* its oldest */
    assert_true(h.n_recalled >= 1 && h.recalled[0] == id[0]);
    for (uint32_t c = h.n_recalled; c < 9; c++)
        assert_int_equal(beat(big, id[c], lists).n_renewed, 1);
    f.now_ns += 4 * NS_PER_S; /* told at 4 s: until 9 s */
    (void)beat(mid, id[9], lists);
    for (uint32_t c = 0; c < 9; c++)
        h = beat(big, id[c], lists);
    block_store_tick(f.s);
    assert_int_equal(beat(big, id[0], lists).n_ended, 0);
    f.now_ns += 2 * NS_PER_S;
    block_store_tick(f.s);
    assert_int_equal(beat(big, id[0], lists).n_ended, 1);
    assert_int_equal(lease(&f, f.ss, 10, 5).n_leased, 5);
    block_store_session_close(big);
    block_store_session_close(mid);
    block_store_session_close(f.ss);
    f.ss = open_session(&f);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* A3: a block that many lease counts once in the total, and each answers for its part. */
static void test_holders_answer_for_a_block_together(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 0);
    struct store_session *other = open_session(&f);
    store_fx_put(&f, 1, 0, 40);
    uint64_t a = lease(&f, f.ss, 1, 40).lease_id;
    struct store_session_info info;
    block_store_session_info(f.ss, &info);
    assert_int_equal(info.leased_bytes, 40 * FX_SLOT);
    uint64_t b = lease(&f, other, 1, 40).lease_id;
    assert_int_equal(store_fx_stats(&f).now.leased_bytes, 40 * FX_SLOT);
    block_store_session_info(f.ss, &info);
    assert_int_equal(info.leased_bytes, 20 * FX_SLOT);
    block_store_session_info(other, &info);
    assert_int_equal(info.leased_bytes, 20 * FX_SLOT);
    assert_int_equal(info.leases, 1);
    assert_int_equal(block_store_release(f.ss, b), ERR_NOTFOUND);
    assert_int_equal(block_store_release(f.ss, a), 0);
    block_store_session_info(other, &info);
    assert_int_equal(info.leased_bytes, 40 * FX_SLOT);
    /* an operator takes them: nobody answers for them any more */
    struct store_filter all = {0};
    assert_int_equal(store_fx_evict(&f, &all), 40);
    block_store_session_info(other, &info);
    assert_int_equal(info.leased_bytes, 0);
    block_store_session_close(other);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void few_items(struct block_store_cfg *c) {
    c->max_lease_blocks = 256;
}

/* A3: not only bytes: leases without number of one block end at a share as well. */
static void test_leases_of_one_block_are_bounded_too(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open_with(&f, 64, 0, few_items);
    struct store_session *bad = open_session(&f);
    store_fx_put(&f, 1, 0, 8);
    uint32_t n = 0;
    while (lease(&f, bad, 1, 1).n_leased && n < 1000)
        n++;
    assert_true(n < 256);
    assert_int_equal(lease(&f, f.ss, 1, 8).n_leased, 0);
    uint64_t lists[16];
    block_store_tick(f.s);
    assert_true(beat(bad, 0, lists).n_recalled > 0);
    f.now_ns += 6 * NS_PER_S;
    block_store_tick(f.s);
    assert_int_equal(lease(&f, f.ss, 1, 8).n_leased, 8);
    block_store_session_close(bad);
    store_fx_close(&f);
}

/* Leases blocks [from, to) of as many chains, as long as it gets any. */
static uint32_t lease_each(struct store_fx *f, struct store_session *ss, uint32_t from, uint32_t to,
                           uint64_t *ids) {
    uint32_t n = 0;
    for (uint32_t c = from; c < to; c++)
        n += (ids[n] = lease(f, ss, c, 1).lease_id) != 0;
    return n;
}

static void beat_all(struct store_session *ss, const uint64_t *ids, uint32_t n) {
    uint64_t lists[128];
    struct store_heartbeat h = {
        .ids = ids, .n = n, .max = 64, .recalled = lists, .ended = lists + 64};
    block_store_heartbeat(ss, &h);
}

/* A3: the store's shares knew sessions alone, so that a tenant's part grew with its sessions: with two
 * against another tenant's one it kept two thirds. What may be leased is halved between the tenants. */
static void test_tenants_share_leases_before_sessions(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 0); /* 51 may be leased */
    struct store_session *a = open_of(&f, many), *b = open_of(&f, many), *c = open_of(&f, one);
    uint64_t of_a[20], of_b[20], of_c[20];
    for (uint32_t i = 0; i < 51; i++)
        store_fx_put(&f, i, 0, 1);
    store_fx_put(&f, 60, 0, 8);
    assert_int_equal(lease_each(&f, c, 0, 17, of_c), 17); /* a third */
    assert_int_equal(lease_each(&f, a, 17, 34, of_a), 17);
    assert_int_equal(lease_each(&f, b, 34, 51, of_b), 17);
    assert_int_equal(lease(&f, c, 60, 8).n_leased, 0);
    block_store_tick(f.s);
    for (uint32_t i = 0; i < 2; i++) {
        beat_all(a, of_a, 17);
        beat_all(b, of_b, 17);
        beat_all(c, of_c, 17);
        f.now_ns += 3 * NS_PER_S;
        block_store_tick(f.s);
    }
    assert_int_equal(lease(&f, c, 60, 8).n_leased, 8);
    block_store_session_close(a);
    block_store_session_close(b);
    block_store_session_close(c);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* A2: the same of promises. */
static void test_tenants_share_promises_before_sessions(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open_with(&f, 64, 0, quarter); /* 16 may be promised */
    struct store_session *a = open_of(&f, many), *b = open_of(&f, many), *c = open_of(&f, one);
    struct store_put *p, *q;
    (void)begin(&f, a, 100, 40, &p);
    (void)begin(&f, b, 101, 40, &q);
    uint32_t n = 0;
    for (uint32_t i = 0; i < 4 && n < 8; i++) {
        n = begin(&f, c, 102, 8, &p);
        if (p && n < 8)
            block_store_put_end(p);
        block_store_tick(f.s);
    }
    assert_int_equal(n, 8);
    block_store_session_close(a);
    block_store_session_close(b);
    block_store_session_close(c);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void quarter_and_sessions(struct block_store_cfg *c) {
    quarter(c);
    c->max_sessions = 8;
}

/* A2: and of slots that are being filled, which can't be taken back: what is kept for newcomers is not all
 * for those of the tenant that has the rest. */
static void test_a_tenant_leaves_slots_to_the_next(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open_with(&f, 64, 0, quarter_and_sessions);
    struct store_session *ss[4], *other = open_of(&f, one);
    struct store_fill fill[40];
    struct store_put *p;
    uint32_t n_open = 0;
    for (uint32_t i = 0; i < ARRAY_LEN(ss); i++) {
        ss[i] = open_of(&f, many);
        uint32_t n = begin(&f, ss[i], 100 + i, 40, &p);
        for (uint32_t k = 0; k < n; k++)
            n_open += block_store_put_open(p, k, &fill[n_open]) == 0;
    }
    assert_in_range(n_open, 12, 15);
    assert_true(begin(&f, other, 200, 1, &p) == 1);
    assert_int_equal(block_store_put_open(p, 0, &fill[n_open++]), 0);
    for (uint32_t i = 0; i < n_open; i++)
        block_store_put_unfilled(f.s, &fill[i]);
    for (uint32_t i = 0; i < ARRAY_LEN(ss); i++)
        block_store_session_close(ss[i]);
    block_store_session_close(other);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_promises_take_nothing_and_are_taken_back),
        cmocka_unit_test(test_promises_take_no_entries),
        cmocka_unit_test(test_puts_stay_within_their_budget),
        cmocka_unit_test(test_progress_keeps_a_put_alive),
        cmocka_unit_test(test_only_named_leases_are_renewed),
        cmocka_unit_test(test_the_largest_holder_gives_back),
        cmocka_unit_test(test_holders_answer_for_a_block_together),
        cmocka_unit_test(test_leases_of_one_block_are_bounded_too),
        cmocka_unit_test(test_tenants_share_leases_before_sessions),
        cmocka_unit_test(test_tenants_share_promises_before_sessions),
        cmocka_unit_test(test_a_tenant_leaves_slots_to_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
