/* The store against a model that knows only what must hold:
 *   - a block that is found was committed, was not removed by an operator since, and has its own
 * bytes;
 *   - while nothing leaves (RAM only, room enough) every committed block is found;
 *   - after a crash nothing that an answered removal took comes back;
 *   - counters add up; at idle nothing is held; a leased block stays.
 * Seed: INCIPIT_SEED, else a fixed one; printed. INCIPIT_STEPS makes it long. */
#include "tests/unit/cachesvc/store_fixture.h"

#define CHAINS 12u
#define DEPTH 10u

struct model {
    struct store_fx f;
    uint64_t rnd;
    bool committed[CHAINS][DEPTH]; /* since the last removal */
    bool may_be[CHAINS][DEPTH];    /* removal not answered, or in the middle of a crash */
    uint64_t lease_id;
    uint32_t lease_chain, lease_n;
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

static void check_block(struct model *m, uint32_t c, uint32_t d) {
    if (store_fx_where(&m->f, c, d) == STORE_ABSENT)
        return;
    assert_true(m->committed[c][d]);
    int rv = store_fx_fetch(&m->f, c, d);
    assert_true(rv == 0 || rv == ERR_BUSY || rv == ERR_NOTFOUND);
}

static void check_all(struct model *m) {
    for (uint32_t c = 0; c < CHAINS; c++)
        for (uint32_t d = 0; d < DEPTH; d++)
            check_block(m, c, d);
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
        m->committed[c][d] |= store_fx_where(&m->f, c, d) != STORE_ABSENT;
    /* what was committed and left again at once is neither found now nor later, unless from disk */
    for (uint32_t d = from; d < to; d++)
        m->committed[c][d] |= m->may_be[c][d];
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
            assert_int_equal(block_store_put_open(m->open_put, i, &m->fills[m->n_fills++]), 0);
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

static void step_lease(struct model *m) {
    struct block_id ids[DEPTH];
    uint8_t where[DEPTH];
    if (m->lease_id) {
        /* nothing but an operator takes a leased block: each of them is still there */
        for (uint32_t d = 0; d < m->lease_n; d++)
            assert_true(store_fx_where(&m->f, m->lease_chain, d) != STORE_ABSENT);
        assert_int_equal(block_store_release(m->f.ss, m->lease_id), 0);
        m->lease_id = 0;
        return;
    }
    m->lease_chain = draw(m, CHAINS);
    for (uint32_t d = 0; d < DEPTH; d++)
        ids[d] = fx_id(m->lease_chain, d);
    struct store_lookup l = {.ns = m->f.ns,
                             .ids = ids,
                             .n = DEPTH,
                             .where = where,
                             .flags = STORE_LOOKUP_LEASE | STORE_LOOKUP_TOUCH};
    assert_int_equal(block_store_lookup(m->f.s, m->f.ss, &l), 0);
    m->lease_id = l.lease_id;
    m->lease_n = l.n_leased;
}

static void removed(struct model *m, uint32_t c, uint32_t d) {
    m->committed[c][d] = false;
    m->may_be[c][d] = false;
    if (m->lease_id && m->lease_chain == c && m->lease_n > d)
        m->lease_n = d;
}

static void step_evict(struct model *m) {
    end_put(m);
    uint32_t c = draw(m, CHAINS), d = draw(m, DEPTH);
    struct block_id id = fx_id(c, d);
    bool below = draw(m, 2), all = draw(m, 12) == 0;
    struct store_filter f = {.ids = all ? NULL : &id,
                             .n_ids = 1,
                             .descendants = below,
                             .by_ns = !all,
                             .digest = FX_DIGEST};
    (void)store_fx_evict(&m->f, &f);
    for (uint32_t i = 0; i < CHAINS; i++)
        for (uint32_t k = 0; k < DEPTH; k++)
            if (all || (i == c && (k == d || (below && k > d && m->committed[c][k] &&
                                              store_fx_where(&m->f, c, k) == STORE_ABSENT))))
                removed(m, i, k);
    assert_true(store_fx_where(&m->f, c, d) == STORE_ABSENT);
}

static void step_restart(struct model *m) {
    end_put(m);
    m->lease_id = 0;
    store_fx_restart(&m->f, draw(m, 2));
    assert_int_equal(store_fx_stats(&m->f).disk_corrupt, 0);
    check_all(m);
}

static void step_pump(struct model *m) {
    store_fx_pump(&m->f);
}

static void renew(struct model *m) {
    struct store_heartbeat h = {.ids = &m->lease_id, .n = m->lease_id != 0};
    block_store_heartbeat(m->f.ss, &h);
    assert_int_equal(h.n_renewed, m->lease_id != 0);
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
    step_put,    step_put,    step_put,   step_put,   step_half_put, step_conflict,
    step_lookup, step_lookup, step_fetch, step_fetch, step_lease,    step_lease,
    step_evict,  step_pump,   step_pump,  step_time,  step_faults,   step_restart,
};

static uint64_t env(const char *name, uint64_t otherwise) {
    const char *v = getenv(name);
    return v ? strtoull(v, NULL, 10) : otherwise;
}

static void run(uint32_t n_ram, uint32_t n_disk, uint64_t seed, uint64_t n_steps) {
    print_message("seed %llu: %u RAM slots, %u disk slots, %llu steps\n", (unsigned long long)seed,
                  n_ram, n_disk, (unsigned long long)n_steps);
    static struct model m;
    m = (struct model){.rnd = seed * 0x9e3779b97f4a7c15ull + 1};
    store_fx_open(&m.f, n_ram, n_disk);
    m.f.x.shuffle = seed;
    bool nothing_leaves = n_disk == 0 && n_ram >= CHAINS * DEPTH;
    for (uint64_t i = 0; i < n_steps; i++) {
        uint32_t k = draw(&m, ARRAY_LEN(steps));
        if (n_disk == 0 && (steps[k] == step_restart || steps[k] == step_faults))
            continue;
        steps[k](&m);
        if (i % 64 == 0)
            check_all(&m);
        for (uint32_t c = 0; nothing_leaves && i % 64 == 0 && c < CHAINS; c++)
            for (uint32_t d = 0; d < DEPTH; d++)
                assert_int_equal(store_fx_where(&m.f, c, d) != STORE_ABSENT, m.committed[c][d]);
    }
    end_put(&m);
    if (m.lease_id)
        assert_int_equal(block_store_release(m.f.ss, m.lease_id), 0);
    store_fx_pump(&m.f);
    check_all(&m);
    store_fx_check_idle(&m.f);
    store_fx_close(&m.f);
}

static void test_model_ram_that_holds_everything(void **state) {
    (void)state;
    run(136, 0, env("INCIPIT_SEED", 1), env("INCIPIT_STEPS", 4000));
}
static void test_model_small_ram(void **state) {
    (void)state;
    run(24, 0, env("INCIPIT_SEED", 2), env("INCIPIT_STEPS", 4000));
}
static void test_model_ram_and_larger_disk(void **state) {
    (void)state;
    run(24, 96, env("INCIPIT_SEED", 3), env("INCIPIT_STEPS", 4000));
}
static void test_model_disk_smaller_than_ram(void **state) {
    (void)state;
    run(48, 16, env("INCIPIT_SEED", 4), env("INCIPIT_STEPS", 4000));
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
