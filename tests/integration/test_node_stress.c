/* Several clients do everything at once to one small node: put, fetch, lookup with leases that are
 * given back or forgotten, cancel at any moment, vanish, evict, flush. Every byte that a fetch
 * calls good must be the one that was put; when all are gone nothing may be held: no lease, put,
 * reference, session.
 *
 *     test_node_stress [SEED [OPS]]      the seed is printed; the same seed, the same requests */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/check.h"
#include "common/checksum.h"
#include "tests/integration/node_fixture.h"

#define N_CLIENTS 4u
#define N_TAGS 160u
#define MAX_BLOCKS 16u
#define MAX_OPS_OPEN 6u
#define CHAIN 24u

struct stress;

enum op_kind { OP_PUT, OP_FETCH, OP_LOOKUP };

struct op {
    struct stress *s;
    enum op_kind kind;
    uint32_t client, tag, first, n;
    struct kv_call *call;
    bool is_open, keep_lease;
    struct block_id ids[CHAIN];
    uint8_t *bytes; /* [MAX_BLOCKS, NODE_PAYLOAD] */
    uint8_t *dst[MAX_BLOCKS];
    const uint8_t *src[MAX_BLOCKS];
    uint64_t sums[MAX_BLOCKS], ranges[MAX_BLOCKS][NODE_RANGES];
    const uint64_t *range_ptrs[MAX_BLOCKS];
};

struct stress {
    struct node_fixture f;
    struct kv_client *clients[N_CLIENTS];
    uint32_t ns[N_CLIENTS];
    struct op ops[N_CLIENTS][MAX_OPS_OPEN];
    uint64_t x;
    uint32_t n_open;
    uint64_t n_good, n_stored, n_canceled, n_found;
    uint8_t want[NODE_PAYLOAD];
};

static uint64_t seed = 1;
static uint32_t n_ops = 3000;

static uint32_t rnd(struct stress *s, uint32_t below) {
    s->x ^= s->x << 13;
    s->x ^= s->x >> 7;
    s->x ^= s->x << 17;
    return (uint32_t)((s->x >> 11) % below);
}

static void ended(struct op *o, int rv) {
    CHECK(o->is_open); /* exactly one callback */
    o->is_open = false;
    o->call = NULL;
    o->s->n_open--;
    o->s->n_canceled += rv == ERR_CANCELED;
}

static void on_put(void *arg, int rv, const struct kv_put_res *res) {
    struct op *o = arg;
    if (rv == 0) {
        o->s->n_stored += res->n_stored;
        CHECK(res->n_conflict == 0);
    }
    ended(o, rv);
}

static void on_block(void *arg, uint32_t i, int rv) {
    struct op *o = arg;
    if (rv != 0)
        return;
    node_payload(o->tag, o->first + i, o->s->want);
    if (memcmp(o->dst[i], o->s->want, NODE_PAYLOAD) != 0)
        fail_msg("seed %llu: chain %u block %u has wrong bytes", (unsigned long long)seed, o->tag,
                 o->first + i);
    o->s->n_good++;
}

static void on_fetch(void *arg, int rv, const struct kv_fetch_res *res) {
    (void)res;
    ended(arg, rv);
}

static void on_lookup(void *arg, int rv, const struct kv_lookup_res *res) {
    struct op *o = arg;
    if (rv == 0) {
        o->s->n_found += res->n_prefix;
        if (res->lease && !o->keep_lease && o->s->clients[o->client]) /* NULL while it closes */
            kv_client_release(o->s->clients[o->client], res->lease, res->n_prefix);
    }
    ended(o, rv);
}

static int start_put(struct op *o) {
    struct stress *s = o->s;
    for (uint32_t i = 0; i < o->n; i++) {
        uint8_t *p = o->bytes + (size_t)i * NODE_PAYLOAD;
        node_payload(o->tag, o->first + i, p);
        o->src[i] = p;
        o->range_ptrs[i] = o->ranges[i];
        o->sums[i] =
            checksum_block(p, node_range_sizes, NODE_RANGES, o->ids[o->first + i].b, o->ranges[i]);
    }
    struct kv_put q = {.ns = s->ns[o->client],
                       .chain = o->ids,
                       .first = o->first,
                       .n = o->n,
                       .payload = o->src,
                       .checksum = o->sums,
                       .range_checksums = o->range_ptrs,
                       .deadline_ms = 3000};
    return kv_client_put(s->clients[o->client], &q, on_put, o, &o->call);
}

static int start_op(struct op *o) {
    struct stress *s = o->s;
    o->tag = rnd(s, N_TAGS);
    node_chain(o->tag, o->ids, CHAIN);
    o->first = rnd(s, 3) ? 0 : rnd(s, CHAIN / 2);
    o->n = 1 + rnd(s, MIN(MAX_BLOCKS, CHAIN - o->first));
    o->kind = (enum op_kind)(rnd(s, 4) % 3); /* puts twice as often */
    if (o->kind == OP_PUT)
        return start_put(o);
    if (o->kind == OP_FETCH) {
        for (uint32_t i = 0; i < o->n; i++)
            o->dst[i] = o->bytes + (size_t)i * NODE_PAYLOAD;
        struct kv_fetch q = {.ns = s->ns[o->client],
                             .chain = o->ids,
                             .first = o->first,
                             .n = o->n,
                             .dst = o->dst,
                             .deadline_ms = 3000,
                             .on_block = on_block};
        return kv_client_fetch(s->clients[o->client], &q, on_fetch, o, &o->call);
    }
    o->keep_lease = rnd(s, 4) == 0; /* forgotten: it expires, or goes with its session */
    struct kv_lookup q = {.ns = s->ns[o->client],
                          .chain = o->ids,
                          .n = CHAIN,
                          .have = rnd(s, 3),
                          .flags = MSG_LOOKUP_F_TOUCH | MSG_LOOKUP_F_LEASE,
                          .deadline_ms = 3000};
    return kv_client_lookup(s->clients[o->client], &q, on_lookup, o, &o->call);
}

static void open_client(struct stress *s, uint32_t i) {
    node_fixture_connect(&s->f, MSG_ROLE_ADMIN, NULL);
    s->clients[i] = TAKE_PTR(s->f.client);
    s->ns[i] = s->f.ns;
}

static void close_client(struct stress *s, uint32_t i) {
    node_fixture_close_client(&s->f, TAKE_PTR(s->clients[i])); /* its calls end with ERR_CANCELED */
    for (uint32_t k = 0; k < MAX_OPS_OPEN; k++)
        CHECK(!s->ops[i][k].is_open);
}

static void on_evicted(void *arg, int rv, const char *text, const struct msg_evict_res *res) {
    (void)rv;
    (void)text;
    (void)res;
    --*(uint32_t *)arg;
}

static void evict_some(struct stress *s) {
    struct kv_call *k;
    struct block_id ids[CHAIN];
    node_chain(rnd(s, N_TAGS), ids, CHAIN);
    struct msg_evict_req m = {.n_ids = 1,
                              .ids = &ids[rnd(s, CHAIN)],
                              .digest = {s->f.ns_digest, DIGEST_BYTES},
                              .descendants = rnd(s, 2)};
    struct msg_flush_req all = {0};
    struct kv_client *c = s->clients[rnd(s, N_CLIENTS)];
    int rv = rnd(s, 200) ? kv_client_evict(c, 0, &m, 3000, on_evicted, &s->n_open, &k)
                         : kv_client_flush(c, 0, &all, 3000, on_evicted, &s->n_open, &k);
    s->n_open += rv == 0;
}

static void step(struct stress *s) {
    uint32_t ci = rnd(s, N_CLIENTS);
    struct op *o = &s->ops[ci][rnd(s, MAX_OPS_OPEN)];
    uint32_t what = rnd(s, 200);
    if (what == 0) {
        close_client(s, ci);
        open_client(s, ci);
    } else if (what < 4) {
        evict_some(s);
    } else if (o->is_open && what < 60) {
        kv_call_cancel(o->call);
    } else if (!o->is_open) {
        o->is_open = true;
        s->n_open++;
        if (start_op(o) < 0) {
            o->is_open = false;
            s->n_open--;
        }
    }
    for (uint32_t turns = rnd(s, 4); turns > 0; turns--)
        test_loop_turn(&s->f.tl);
}

static bool is_quiet(void *arg) {
    return ((struct stress *)arg)->n_open == 0;
}

static void test_everything_at_once(void **state) {
    (void)state;
    struct stress *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    s->x = seed * 0x9e3779b97f4a7c15ull + 1;
    printf("seed %llu, %u steps\n", (unsigned long long)seed, n_ops);
    node_fixture_init(&s->f);
    bool has_disk = seed % 2 == 0; /* and TCP; odd seeds: Unix socket, RAM only, far too small */
    if (has_disk) {
        node_fixture_disk(&s->f);
        s->f.cfg.ram_bytes = 32u << 20;
        s->f.cfg.disk_bytes = 64u << 20;
    } else {
        s->f.cfg.ram_bytes = 16u << 20;
    }
    s->f.cfg.lease_ttl_ms = 300;
    s->f.cfg.put_ttl_ms = 1000;
    s->f.cfg.disk_threads = 2;
    s->f.over_unix = !has_disk;
    node_fixture_start(&s->f);
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        open_client(s, i);
        for (uint32_t k = 0; k < MAX_OPS_OPEN; k++) {
            s->ops[i][k].s = s;
            s->ops[i][k].client = i;
            s->ops[i][k].bytes = malloc((size_t)MAX_BLOCKS * NODE_PAYLOAD);
            assert_non_null(s->ops[i][k].bytes);
        }
    }
    for (uint32_t i = 0; i < n_ops; i++)
        step(s);
    assert_true(test_loop_until_fn(&s->f.tl, is_quiet, s));
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        close_client(s, i);
    node_fixture_connect(&s->f, MSG_ROLE_ADMIN, NULL);
    struct msg_stats_res st = node_stats(&s->f);
    assert_int_equal(st.leases, 0);
    assert_int_equal(st.puts_open, 0);
    assert_int_equal(st.sessions, 1); /* the one that asks */
    assert_int_equal(st.corrupt, 0);
    assert_int_equal(st.conflicts, 0);
    printf("stored %llu, good %llu, found %llu, canceled %llu, evicted %llu\n",
           (unsigned long long)s->n_stored, (unsigned long long)s->n_good,
           (unsigned long long)s->n_found, (unsigned long long)s->n_canceled,
           (unsigned long long)st.evict_blocks);
    assert_true(s->n_stored > 0 && s->n_good > 0 && s->n_canceled > 0);
    assert_true(has_disk || st.evict_blocks > 0);
    node_fixture_fini(&s->f);
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        for (uint32_t k = 0; k < MAX_OPS_OPEN; k++)
            free(s->ops[i][k].bytes);
    free(s);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    n_ops = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 3000;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everything_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
