/* The store against a model that knows only what must hold:
 *   - a block that is found was committed, in its namespace, was not removed by an operator since,
 *     and has its own bytes;
 *   - while nothing leaves (RAM only, room enough) every committed block is found;
 *   - after a crash nothing that an answered removal took comes back;
 *   - counters add up; at idle nothing is held;
 *   - a leased block stays until its lease is released, is not renewed, or is recalled and told so;
 *   - lists and extents are where the states of the blocks say.
 * Two namespaces use the same ids, a third has another slot size; three sessions hold leases.
 * Seed: INCIPIT_SEED, else a fixed one; printed. INCIPIT_STEPS makes it long. */
#include "tests/unit/cachesvc/store_fixture.h"

#define CHAINS 12u
#define DEPTH 10u
#define SPACES 2u  /* namespaces of one size, with the same ids */
#define BIGS 24u   /* blocks of another size */
#define HOLDERS 9u /* leases, three a session */
#define BIG_BYTES (3 * FX_SLOT - 64)

struct holder {
    uint64_t id; /* 0: none */
    uint64_t ends_ns;
    uint32_t space, chain, n;
    bool is_recalled;
};

struct model {
    struct store_fx f;
    uint64_t rnd;
    uint32_t space, ns[SPACES], big;       /* space: of the running step; f.ns follows */
    bool committed[SPACES][CHAINS][DEPTH]; /* since the last removal */
    bool big_committed[BIGS];
    struct store_session *ss[3];
    struct holder held[HOLDERS];
    struct store_put *open_put; /* begun, not finished */
    struct store_fill fills[DEPTH];
    uint32_t n_fills;
};

static uint32_t draw(struct model *m, uint32_t n) {
    m->rnd ^= m->rnd << 13;
    m->rnd ^= m->rnd >> 7;
    m->rnd ^= m->rnd << 17;
    return (uint32_t)(m->rnd >> 33) % n;
}

static void in_space(struct model *m, uint32_t space) {
    m->space = space;
    m->f.ns = m->ns[space];
}

static void open_all(struct model *m) {
    m->ns[0] = m->f.ns;
    m->ns[1] = store_fx_ns(&m->f, 1);
    m->big = store_fx_big_ns(&m->f, 1, BIG_BYTES);
    for (size_t i = 0; i < ARRAY_LEN(m->ss); i++)
        assert_int_equal(block_store_session_open(m->f.s, NULL, &m->ss[i]), 0);
}

static void close_all(struct model *m) {
    for (size_t i = 0; i < ARRAY_LEN(m->ss); i++)
        block_store_session_close(m->ss[i]);
    memset(m->held, 0, sizeof(m->held));
    m->f.ns = m->ns[0];
}

static void check_block(struct model *m, uint32_t c, uint32_t d) {
    if (store_fx_where(&m->f, c, d) == STORE_ABSENT)
        return;
    assert_true(m->committed[m->space][c][d]);
    int rv = store_fx_fetch(&m->f, c, d);
    assert_true(rv == 0 || rv == ERR_BUSY || rv == ERR_NOTFOUND);
}

static void check_all(struct model *m) {
    for (uint32_t space = 0; space < SPACES; space++) {
        in_space(m, space);
        for (uint32_t c = 0; c < CHAINS; c++)
            for (uint32_t d = 0; d < DEPTH; d++)
                check_block(m, c, d);
    }
    for (uint32_t k = 0; k < BIGS; k++)
        if (store_fx_has_big(&m->f, m->big, 1000 + k))
            assert_true(m->big_committed[k]);
    struct block_store_stats st = store_fx_stats(&m->f);
    assert_true(st.lookup_block == st.hit_ram_block + st.hit_disk_block + st.miss_block);
    assert_true(st.now.blocks <= st.now.max_blocks);
    assert_true(st.put_wanted == st.committed + st.aborted + st.now.filling_blocks);
    store_fx_check_lists(&m->f);
}

static void end_put(struct model *m) {
    if (!m->open_put)
        return;
    block_store_put_end(m->open_put);
    m->open_put = NULL;
    for (uint32_t i = 0; i < m->n_fills; i++)
        block_store_put_unfilled(m->f.s, &m->fills[i]);
    m->n_fills = 0;
}

static void step_put(struct model *m) {
    uint32_t c = draw(m, CHAINS), from = draw(m, 4) ? 0 : draw(m, DEPTH),
             to = from + 1 + draw(m, DEPTH - from);
    uint32_t n = store_fx_put(&m->f, c, from, to);
    for (uint32_t d = from; n > 0 && d < to; d++)
        m->committed[m->space][c][d] |= store_fx_where(&m->f, c, d) != STORE_ABSENT;
}

static void step_big(struct model *m) {
    uint32_t k = draw(m, BIGS);
    m->big_committed[k] |= store_fx_put_big(&m->f, m->big, BIG_BYTES, 1000 + k);
}

static void step_half_put(struct model *m) {
    end_put(m);
    uint32_t c = draw(m, CHAINS), n = 1 + draw(m, DEPTH);
    struct store_put_block b[DEPTH];
    uint8_t st[DEPTH];
    for (uint32_t i = 0; i < n; i++)
        b[i] = fx_block(c, i, 0);
    struct store_put_args a = {.ns = m->f.ns, .n = n, .blocks = b};
    assert_int_equal(block_store_put_begin(m->f.ss, &a, st, &m->open_put, NULL), 0);
    for (uint32_t i = 0; m->open_put && i < n; i++)
        if (st[i] == STORE_PUT_WANTED && draw(m, 2))
            m->n_fills += block_store_put_open(m->open_put, i, &m->fills[m->n_fills]) == 0;
}

static void step_conflict(struct model *m) {
    uint32_t c = draw(m, CHAINS), d = draw(m, DEPTH);
    if (store_fx_where(&m->f, c, d) == STORE_ABSENT)
        return;
    struct store_put_block b = fx_block(c, d, 3);
    uint8_t st;
    struct store_put *p;
    struct store_put_args a = {.ns = m->f.ns, .n = 1, .blocks = &b};
    assert_int_equal(block_store_put_begin(m->f.ss, &a, &st, &p, NULL), 0);
    assert_int_equal(st, STORE_PUT_CONFLICT);
}

static void step_lookup(struct model *m) {
    (void)store_fx_lookup(&m->f, draw(m, CHAINS), DEPTH, draw(m, 3) > 0);
}

static void step_fetch(struct model *m) {
    check_block(m, draw(m, CHAINS), draw(m, DEPTH));
}

/* Released: either it ended before, for which there is a reason, or each of its blocks is there. */
static void release(struct model *m, uint32_t i) {
    struct holder *h = &m->held[i];
    in_space(m, h->space);
    if (block_store_release(m->ss[i / 3], h->id) < 0)
        assert_true(m->f.now_ns >= h->ends_ns);
    h->id = 0;
}

static void step_lease(struct model *m) {
    uint32_t i = draw(m, HOLDERS);
    struct holder *h = &m->held[i];
    if (h->id) {
        struct store_heartbeat ask = {.ids = &h->id, .n = 1};
        uint64_t was = m->f.now_ns;
        block_store_heartbeat(m->ss[i / 3], &ask);
        if (ask.n_renewed) { /* alive: nothing but an operator takes its blocks */
            h->ends_ns = was + 5 * NS_PER_S;
            in_space(m, h->space);
            for (uint32_t d = 0; d < h->n; d++)
                assert_true(store_fx_where(&m->f, h->chain, d) != STORE_ABSENT);
        }
        release(m, i);
        return;
    }
    struct block_id ids[DEPTH];
    uint8_t where[DEPTH];
    *h = (struct holder){.space = m->space, .chain = draw(m, CHAINS)};
    for (uint32_t d = 0; d < DEPTH; d++)
        ids[d] = fx_id(h->chain, d);
    struct store_lookup l = {.ns = m->f.ns,
                             .ids = ids,
                             .n = DEPTH,
                             .where = where,
                             .flags = STORE_LOOKUP_LEASE | STORE_LOOKUP_TOUCH};
    assert_int_equal(block_store_lookup(m->f.s, m->ss[i / 3], &l), 0);
    h->id = l.lease_id;
    h->n = l.n_leased;
    h->ends_ns = m->f.now_ns + 5 * NS_PER_S;
}

static void removed(struct model *m, uint32_t space, uint32_t c, uint32_t d) {
    m->committed[space][c][d] = false;
    for (uint32_t i = 0; i < HOLDERS; i++)
        if (m->held[i].space == space && m->held[i].chain == c)
            m->held[i].n = MIN(m->held[i].n, d);
}

static void step_evict(struct model *m) {
    end_put(m);
    uint32_t c = draw(m, CHAINS), d = draw(m, DEPTH);
    struct block_id id = fx_id(c, d);
    bool below = draw(m, 2), all = draw(m, 12) == 0;
    struct store_filter f = {
        .ids = all ? NULL : &id, .n_ids = 1, .descendants = below, .by_ns = !all};
    struct store_ns_info info;
    block_store_ns_info(m->f.s, m->f.ns, &info);
    memcpy(f.digest, info.digest, DIGEST_BYTES);
    (void)store_fx_evict(&m->f, &f);
    uint32_t space = m->space;
    for (uint32_t i = 0; i < CHAINS * DEPTH; i++)
        for (uint32_t sp = 0; all && sp < SPACES; sp++)
            removed(m, sp, i / DEPTH, i % DEPTH);
    if (all)
        memset(m->big_committed, 0, sizeof(m->big_committed));
    for (uint32_t k = d; !all && k < DEPTH; k++)
        if (k == d ||
            (below && m->committed[space][c][k] && store_fx_where(&m->f, c, k) == STORE_ABSENT))
            removed(m, space, c, k);
    assert_true(store_fx_where(&m->f, c, d) == STORE_ABSENT);
}

static void step_restart(struct model *m) {
    end_put(m);
    close_all(m);
    store_fx_restart(&m->f, draw(m, 2));
    open_all(m);
    assert_int_equal(store_fx_stats(&m->f).disk_corrupt, 0);
    check_all(m);
}

static void step_pump(struct model *m) {
    store_fx_pump(&m->f);
}

/* Each session renews what it holds, but is sometimes silent. A recalled lease has its time from when
 * it is told. */
static void renew(struct model *m) {
    for (uint32_t i = 0; i < HOLDERS; i++) {
        struct holder *h = &m->held[i];
        uint64_t recalled[HOLDERS], ended[HOLDERS];
        if (!h->id || draw(m, 4) == 0)
            continue;
        struct store_heartbeat b = {
            .ids = &h->id, .n = 1, .max = HOLDERS, .recalled = recalled, .ended = ended};
        block_store_heartbeat(m->ss[i / 3], &b);
        if (b.n_renewed)
            h->ends_ns = m->f.now_ns + 5 * NS_PER_S;
        else if (b.n_ended)
            assert_true(m->f.now_ns >= h->ends_ns);
        for (uint32_t k = 0; k < b.n_recalled; k++)
            for (uint32_t j = i / 3 * 3; j < i / 3 * 3 + 3; j++) {
                if (m->held[j].id != recalled[k] || m->held[j].is_recalled)
                    continue;
                m->held[j].is_recalled = true;
                m->held[j].ends_ns = m->f.now_ns + 5 * NS_PER_S;
            }
    }
}

static void step_time(struct model *m) {
    m->f.now_ns += NS_PER_S / 2;
    renew(m);
    block_store_tick(m->f.s);
}

static void step_faults(struct model *m) {
    m->f.x.fail_all = draw(m, 3) == 0;
    store_fx_pump(&m->f);
    m->f.x.fail_all = false;
    m->f.now_ns += 6 * NS_PER_S;
    renew(m);
    store_fx_pump(&m->f);
}

static void (*const steps[])(struct model *) = {
    step_put,    step_put,    step_put,   step_put,    step_half_put, step_conflict,
    step_lookup, step_lookup, step_fetch, step_fetch,  step_lease,    step_lease,
    step_lease,  step_lease,  step_big,   step_time,   step_time,     step_evict,
    step_pump,   step_pump,   step_time,  step_faults, step_restart,
};

static uint64_t env(const char *name, uint64_t otherwise) {
    const char *v = getenv(name);
    return v ? strtoull(v, NULL, 10) : otherwise;
}

static void long_log(struct block_store_cfg *c) {
    c->removal_records = 65536;
    if (c->disk_bytes)
        c->disk_bytes += 65536 * 128;
}

static void run(uint32_t n_ram, uint32_t n_disk, uint64_t seed, uint64_t n_steps) {
    print_message("seed %llu: %u RAM slots, %u disk slots, %llu steps\n", (unsigned long long)seed,
                  n_ram, n_disk, (unsigned long long)n_steps);
    static struct model m;
    m = (struct model){.rnd = seed * 0x9e3779b97f4a7c15ull + 1};
    store_fx_open_with(&m.f, n_ram, n_disk, long_log);
    m.f.x.shuffle = seed;
    open_all(&m);
    bool nothing_leaves = n_disk == 0 && n_ram >= SPACES * CHAINS * DEPTH;
    for (uint64_t i = 0; i < n_steps; i++) {
        uint32_t k = draw(&m, ARRAY_LEN(steps));
        if (n_disk == 0 && (steps[k] == step_restart || steps[k] == step_faults))
            continue;
        if (nothing_leaves && steps[k] == step_big)
            continue;
        in_space(&m, draw(&m, SPACES));
        steps[k](&m);
        if (i % 64 == 0)
            check_all(&m);
        for (uint32_t n = 0; nothing_leaves && i % 64 == 0 && n < SPACES * CHAINS * DEPTH; n++) {
            uint32_t space = n / (CHAINS * DEPTH), c = n / DEPTH % CHAINS, d = n % DEPTH;
            in_space(&m, space);
            assert_int_equal(store_fx_where(&m.f, c, d) != STORE_ABSENT, m.committed[space][c][d]);
        }
    }
    end_put(&m);
    for (uint32_t i = 0; i < HOLDERS; i++)
        if (m.held[i].id)
            release(&m, i);
    store_fx_pump(&m.f);
    check_all(&m);
    close_all(&m);
    store_fx_check_idle(&m.f);
    store_fx_close(&m.f);
}

static void test_model_ram_that_holds_everything(void **state) {
    (void)state;
    run(280, 0, env("INCIPIT_SEED", 1), env("INCIPIT_STEPS", 2500));
}
static void test_model_small_ram(void **state) {
    (void)state;
    run(24, 0, env("INCIPIT_SEED", 2), env("INCIPIT_STEPS", 2500));
}
static void test_model_ram_and_larger_disk(void **state) {
    (void)state;
    run(24, 96, env("INCIPIT_SEED", 3), env("INCIPIT_STEPS", 2500));
}
static void test_model_disk_smaller_than_ram(void **state) {
    (void)state;
    run(48, 16, env("INCIPIT_SEED", 4), env("INCIPIT_STEPS", 2500));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_ram_that_holds_everything),
        cmocka_unit_test(test_model_small_ram),
        cmocka_unit_test(test_model_ram_and_larger_disk),
        cmocka_unit_test(test_model_disk_smaller_than_ram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
