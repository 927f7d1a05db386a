/* A whole node in this process, talked to by the real client over TCP and Unix sockets. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tests/integration/node_fixture.h"

static int setup_tcp(void **state) {
    struct node_fixture *f = malloc(sizeof(*f));
    node_fixture_init(f);
    node_fixture_start(f);
    node_fixture_connect(f, MSG_ROLE_ADMIN, NULL);
    *state = f;
    return 0;
}

static int setup_worker_unix(void **state) {
    struct node_fixture *f = malloc(sizeof(*f));
    node_fixture_init(f);
    f->over_unix = true;
    node_fixture_start(f);
    node_fixture_connect(f, MSG_ROLE_WORKER, NULL);
    *state = f;
    return 0;
}

static int setup_worker(void **state) {
    struct node_fixture *f = malloc(sizeof(*f));
    node_fixture_init(f);
    node_fixture_start(f);
    node_fixture_connect(f, MSG_ROLE_WORKER, NULL);
    *state = f;
    return 0;
}

static int setup_plain(void **state) {
    struct node_fixture *f = malloc(sizeof(*f));
    node_fixture_init(f);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    node_fixture_fini(*state);
    free(*state);
    return 0;
}

static void all(const int *status, uint32_t n, int want) {
    for (uint32_t i = 0; i < n; i++)
        if (status[i] != want)
            fail_msg("block %u: %d, not %d", i, status[i], want);
}

/* Over a connection of its own, since numbers of the node are for administrators. */
static struct msg_stats_res admin_stats(struct node_fixture *f) {
    struct kv_client *own = f->client;
    f->client =
        node_fixture_client(f, MSG_ROLE_ADMIN, f->cfg.token_file[0] ? NODE_ADMIN_TOKEN : NULL);
    assert_true(node_fixture_wait_up(f, f->client));
    struct msg_stats_res st = node_stats(f);
    node_fixture_close_client(f, f->client);
    f->client = own;
    return st;
}

static void test_put_lookup_fetch(void **state) {
    struct node_fixture *f = *state;
    int st[40];
    assert_int_equal(node_lookup(f, 1, 40, MSG_LOOKUP_F_TOUCH), 0);
    assert_int_equal(node_put(f, 1, 0, 40, -1, st), 0);
    all(st, 40, 0);
    assert_int_equal(node_lookup(f, 1, 40, MSG_LOOKUP_F_TOUCH | MSG_LOOKUP_F_LEASE), 40);
    assert_int_equal(node_fetch(f, 1, 0, 40, st), 0);
    all(st, 40, 0); /* every byte is compared in there */
    assert_int_equal(node_put(f, 1, 0, 40, -1, st), 0);
    all(st, 40, ERR_EXISTS);
    struct msg_stats_res s = admin_stats(f);
    assert_int_equal(s.blocks_ram, 40);
    assert_int_equal(s.put_blocks, 40);
    assert_int_equal(s.lookup_blocks, 80);
    assert_int_equal(s.lookup_hits, 40);
    assert_int_equal(s.fetch_blocks, 40);
    assert_int_equal(s.leases, 0); /* given back */
    assert_int_equal(s.puts_open, 0);
}

static void test_chain_grows_and_stops_at_the_gap(void **state) {
    struct node_fixture *f = *state;
    int st[16];
    assert_int_equal(node_put(f, 2, 0, 4, -1, st), 0);
    assert_int_equal(node_put(f, 2, 4, 4, -1, st), 0);
    assert_int_equal(node_put(f, 2, 9, 3, -1, st), 0); /* block 8 is a hole */
    all(st, 3, 0);
    assert_int_equal(node_lookup(f, 2, 16, 0), 8);
    assert_int_equal(node_fetch(f, 2, 6, 6, st), 0);
    static const int want[] = {0, 0, ERR_NOTFOUND, 0, 0, 0};
    assert_memory_equal(st, want, sizeof(want));
    assert_int_equal(node_put(f, 2, 8, 1, -1, st), 0);
    assert_int_equal(node_lookup(f, 2, 16, 0), 12);
}

static void test_wrong_checksum_is_never_visible(void **state) {
    struct node_fixture *f = *state;
    int st[3];
    assert_int_equal(node_put(f, 3, 0, 3, 1, st), 0);
    assert_int_equal(st[0], 0);
    assert_true(st[1] < 0 && st[1] != ERR_EXISTS);
    assert_int_equal(node_lookup(f, 3, 3, 0), 1);
    assert_int_equal(node_put(f, 3, 0, 3, -1, st), 0); /* the honest one is taken */
    assert_int_equal(node_lookup(f, 3, 3, 0), 3);
}

static void test_other_bytes_under_the_same_id_conflict(void **state) {
    struct node_fixture *f = *state;
    int st[2];
    assert_int_equal(node_put(f, 4, 0, 2, -1, st), 0);
    assert_int_equal(node_put(f, 4, 0, 2, 1, st), 0); /* another checksum for block 1 */
    assert_int_equal(st[0], ERR_EXISTS);
    assert_int_equal(st[1], ERR_CONFLICT);
    assert_int_equal(admin_stats(f).conflicts, 1);
    assert_int_equal(node_fetch(f, 4, 0, 2, st), 0);
    all(st, 2, 0);
}

static void test_more_than_fits_evicts_leaves_first(void **state) {
    struct node_fixture *f = *state;
    int st[60];
    for (uint32_t tag = 10; tag < 20; tag++)
        assert_int_equal(node_put(f, tag, 0, 40, -1, st), 0);
    struct msg_stats_res s = admin_stats(f);
    assert_true(s.evict_blocks > 0);
    assert_true(s.ram_used_bytes <= s.ram_bytes);
    uint32_t last = node_lookup(f, 19, 40, 0);
    assert_int_equal(last, 40);                /* the newest chain is whole */
    for (uint32_t tag = 10; tag < 20; tag++) { /* what is left of a chain is its beginning */
        uint32_t n = node_lookup(f, tag, 40, 0);
        assert_int_equal(node_fetch(f, tag, 0, 40, st), 0);
        for (uint32_t i = 0; i < 40; i++)
            assert_int_equal(st[i], i < n ? 0 : ERR_NOTFOUND);
    }
}

struct admin_call {
    bool done;
    int rv;
    struct msg_evict_res res;
    char text[200];
};

static void on_evict(void *arg, int rv, const char *text, const struct msg_evict_res *res) {
    struct admin_call *c = arg;
    c->rv = rv;
    snprintf(c->text, sizeof(c->text), "%s", text);
    if (res)
        c->res = *res;
    c->done = true;
}

static void test_evict_and_flush(void **state) {
    struct node_fixture *f = *state;
    struct block_id ids[8];
    struct kv_call *k;
    int st[8];
    node_chain(5, ids, 8);
    assert_int_equal(node_put(f, 5, 0, 8, -1, st), 0);
    struct admin_call c = {0};
    struct msg_evict_req m = {.ids = &ids[4], .n_ids = 1, .descendants = true, .dry_run = false};
    assert_int_equal(kv_client_evict(f->client, 0, &m, 5000, on_evict, &c, &k), 0);
    assert_true(test_loop_until(&f->tl, &c.done));
    assert_int_equal(c.rv, ERR_INVALID); /* the node guesses no namespace */
    assert_non_null(strstr(c.text, "'digest'"));
    assert_int_equal(node_lookup(f, 5, 8, 0), 8);
    const struct {
        struct msg_evict_req m;
        const char *word;
    } refused[] = {{{.from_ms = 2000, .to_ms = 2000}, "'from_ms' is not before 'to_ms'"},
                   {{.from_ms = 1, .group = 1, .writer = {ids[0].b, 16}}, "only one of them"},
                   {{.from_ms = 1, .before_ms = 1ull << 60}, "'before_ms'"}};
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        c = (struct admin_call){0};
        assert_int_equal(kv_client_evict(f->client, 0, &refused[i].m, 5000, on_evict, &c, &k), 0);
        assert_true(test_loop_until(&f->tl, &c.done));
        assert_int_equal(c.rv, ERR_INVALID);
        assert_non_null(strstr(c.text, refused[i].word));
    }
    assert_int_equal(node_lookup(f, 5, 8, 0), 8);
    c = (struct admin_call){0};
    m.digest = (struct msg_bytes){f->ns_digest, DIGEST_BYTES};
    assert_int_equal(kv_client_evict(f->client, 0, &m, 5000, on_evict, &c, &k), 0);
    assert_true(test_loop_until(&f->tl, &c.done));
    assert_int_equal(c.rv, 0);
    assert_int_equal(c.res.blocks, 4);
    assert_int_equal(c.res.bytes, 4 * NODE_PAYLOAD);
    assert_int_equal(node_lookup(f, 5, 8, 0), 4);
    c = (struct admin_call){0};
    assert_int_equal(
        kv_client_evict(f->client, 0, &(struct msg_evict_req){0}, 5000, on_evict, &c, &k), 0);
    assert_true(test_loop_until(&f->tl, &c.done));
    assert_int_equal(c.rv, ERR_INVALID); /* no condition at all would be Flush */
    c = (struct admin_call){0};
    assert_int_equal(
        kv_client_flush(f->client, 0, &(struct msg_flush_req){0}, 5000, on_evict, &c, &k), 0);
    assert_true(test_loop_until(&f->tl, &c.done));
    assert_int_equal(c.res.blocks, 4);
    assert_int_equal(node_lookup(f, 5, 8, 0), 0);
}

struct list_call {
    bool done;
    int rv;
    uint32_t n;
    struct block_id first;
    uint64_t payload;
};

static void on_list(void *arg, int rv, const char *text, const struct msg_list_res *res) {
    struct list_call *c = arg;
    (void)text;
    c->rv = rv;
    c->n = res ? (uint32_t)(res->n_blocks + res->n_namespaces + res->n_sessions) : 0;
    if (res && res->n_namespaces)
        c->payload = res->namespaces[0].payload_bytes;
    c->done = true;
}

static void on_inspect(void *arg, int rv, const char *text, const struct msg_inspect_res *res) {
    struct list_call *c = arg;
    (void)text;
    c->rv = rv;
    c->n = res ? res->block.depth : 0;
    c->done = true;
}

static uint32_t list(struct node_fixture *f, enum msg_list_what what, struct list_call *c) {
    struct kv_call *k;
    *c = (struct list_call){0};
    struct msg_list_req m = {.what = what};
    assert_int_equal(kv_client_list(f->client, 0, &m, 5000, on_list, c, &k), 0);
    assert_true(test_loop_until(&f->tl, &c->done));
    assert_int_equal(c->rv, 0);
    return c->n;
}

static void test_list_and_inspect(void **state) {
    struct node_fixture *f = *state;
    struct list_call c;
    struct block_id ids[5];
    struct kv_call *k;
    int st[5];
    node_chain(6, ids, 5);
    assert_int_equal(node_put(f, 6, 0, 5, -1, st), 0);
    assert_int_equal(list(f, MSG_LIST_BLOCKS, &c), 5);
    assert_int_equal(list(f, MSG_LIST_NAMESPACES, &c), 1);
    assert_int_equal(c.payload, NODE_PAYLOAD);
    assert_int_equal(list(f, MSG_LIST_SESSIONS, &c), 1);
    c = (struct list_call){0};
    struct msg_inspect_req m = {.id = {ids[3].b, 32}};
    assert_int_equal(kv_client_inspect(f->client, 0, &m, 5000, on_inspect, &c, &k), 0);
    assert_true(test_loop_until(&f->tl, &c.done));
    assert_int_equal(c.rv, 0);
    assert_int_equal(c.n, 3);
    c = (struct list_call){0};
    m.id.p = (const uint8_t *)"no such block, 32 bytes of name!";
    assert_int_equal(kv_client_inspect(f->client, 0, &m, 5000, on_inspect, &c, &k), 0);
    assert_true(test_loop_until(&f->tl, &c.done));
    assert_int_equal(c.rv, ERR_NOTFOUND);
}

static void on_pin(void *arg, int rv, const char *text, const struct msg_pin_res *res) {
    struct admin_call *c = arg;
    (void)text;
    (void)res;
    c->rv = rv;
    c->done = true;
}

static void test_later_methods_are_unimplemented(void **state) {
    struct node_fixture *f = *state;
    struct admin_call c = {0};
    struct kv_call *k;
    int st[1];
    assert_int_equal(kv_client_pin(f->client, 0, &(struct msg_pin_req){0}, 5000, on_pin, &c, &k),
                     0);
    assert_true(test_loop_until(&f->tl, &c.done));
    assert_int_equal(c.rv, ERR_UNIMPLEMENTED);
    assert_int_equal(node_put(f, 7, 0, 1, -1, st), 0); /* and the session goes on */
}

static void test_roles(void **state) {
    struct node_fixture *f = *state;
    struct admin_call c = {0};
    struct kv_call *k;
    int st[2];
    node_fixture_tokens(f);
    node_fixture_start(f);
    node_fixture_connect(f, MSG_ROLE_WORKER, NODE_TOKEN);
    assert_int_equal(node_put(f, 8, 0, 2, -1, st), 0);
    assert_int_equal(
        kv_client_flush(f->client, 0, &(struct msg_flush_req){0}, 5000, on_evict, &c, &k), 0);
    assert_true(test_loop_until(&f->tl, &c.done));
    assert_int_equal(c.rv, ERR_DENIED);
    assert_int_equal(node_lookup(f, 8, 2, 0), 2); /* a worker flushes nothing */
}

struct refused {
    struct kv_client *c;
    int err;
};

static bool is_refused(void *arg) {
    struct refused *r = arg;
    struct kv_node_info info;
    kv_client_node_info(r->c, 0, &info);
    r->err = info.last_err;
    return r->err != 0;
}

static void test_wrong_token_is_refused(void **state) {
    struct node_fixture *f = *state;
    static const struct {
        enum msg_role role;
        const char *token;
    } cases[] = {{MSG_ROLE_WORKER, NULL},
                 {MSG_ROLE_WORKER, "0123456789abcdef-worke"},
                 {MSG_ROLE_WORKER, "0123456789abcdef-worker "},
                 {MSG_ROLE_ADMIN, NODE_TOKEN}}; /* right token, another role */
    node_fixture_tokens(f);
    node_fixture_start(f);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct refused r = {node_fixture_client(f, cases[i].role, cases[i].token), 0};
        assert_true(test_loop_until_fn(&f->tl, is_refused, &r));
        assert_int_equal(r.err, ERR_DENIED);
        assert_int_equal(kv_client_nodes_up(r.c), 0);
        node_fixture_close_client(f, r.c);
    }
}

static void test_public_bind_needs_tokens(void **state) {
    struct node_fixture *f = *state;
    struct cachesvc_env env = {.loop = &f->tl.loop};
    struct errbuf eb = {{0}};
    static const char *const any = "0.0.0.0:0";
    struct cfg_list loopback = f->cfg.listen;
    f->cfg.listen.v = &any;
    assert_int_equal(cachesvc_open(&f->node, &env, &f->cfg, &eb), ERR_DENIED);
    assert_non_null(strstr(eb.text, "--insecure-no-auth"));
    f->node = NULL;
    f->cfg.insecure_no_auth = true;
    node_fixture_start(f);
    node_fixture_stop(f);
    f->cfg.insecure_no_auth = false;
    node_fixture_tokens(f);
    node_fixture_start(f);
    f->cfg.listen = loopback;
}

static void test_restart_keeps_the_disk_tier(void **state) {
    struct node_fixture *f = *state;
    int st[24];
    node_fixture_disk(f);
    node_fixture_start(f);
    node_fixture_connect(f, MSG_ROLE_ADMIN, NULL);
    assert_int_equal(node_put(f, 9, 0, 24, -1, st), 0);
    all(st, 24, 0);
    node_fixture_disconnect(f);
    node_fixture_stop(f); /* writes what is dirty */
    node_fixture_start(f);
    node_fixture_connect(f, MSG_ROLE_ADMIN, NULL);
    struct msg_stats_res s = node_stats(f);
    assert_int_equal(s.blocks_disk, 24);
    assert_int_equal(s.blocks_ram, 0);
    assert_int_equal(node_lookup(f, 9, 24, MSG_LOOKUP_F_TOUCH), 24);
    assert_int_equal(node_fetch(f, 9, 0, 24, st), 0);
    all(st, 24, 0);
    /* Promoted, once the RAM tier has room: it opens as its memory is touched in the background,
     * and until then disk reads go through the reserve. */
    for (int i = 0; i < 500 && node_stats(f).blocks_ram == 0; i++) {
        uv_sleep(10);
        assert_int_equal(node_fetch(f, 9, 0, 24, st), 0);
        all(st, 24, 0);
    }
    assert_true(node_stats(f).blocks_ram > 0);
}

static void test_session_limit_is_busy(void **state) {
    struct node_fixture *f = *state;
    f->cfg.max_sessions = 1;
    node_fixture_start(f);
    node_fixture_connect(f, MSG_ROLE_WORKER, NULL);
    struct refused r = {node_fixture_client(f, MSG_ROLE_WORKER, NULL), 0};
    assert_true(test_loop_until_fn(&f->tl, is_refused, &r));
    assert_int_equal(r.err, ERR_BUSY);
    node_fixture_disconnect(f); /* the place is free again */
    assert_true(node_fixture_wait_up(f, r.c));
    node_fixture_close_client(f, r.c);
}

struct fetch_call {
    bool done;
    int rv;
    uint32_t n_ok, n_busy;
};

static void on_some_block(void *arg, uint32_t i, int rv) {
    struct fetch_call *c = arg;
    (void)i;
    c->n_ok += rv == 0;
    c->n_busy += rv == ERR_BUSY;
}

static void on_some_fetch(void *arg, int rv, const struct kv_fetch_res *res) {
    struct fetch_call *c = arg;
    (void)res;
    c->rv = rv;
    c->done = true;
}

/* Four fetches where one is allowed: what is refused says BUSY, and afterwards all is as before. */
static void test_fetch_limit_is_busy(void **state) {
    struct node_fixture *f = *state;
    enum { N = 8, CALLS = 4 };
    static uint8_t bytes[CALLS][N][NODE_PAYLOAD];
    uint8_t *dst[CALLS][N];
    struct fetch_call c[CALLS] = {{0}};
    struct block_id ids[N];
    struct kv_call *k;
    int st[N];
    uint32_t n_ok = 0, n_refused = 0;
    f->cfg.max_fetches = 1;
    node_fixture_start(f);
    node_fixture_connect(f, MSG_ROLE_WORKER, NULL);
    assert_int_equal(node_put(f, 50, 0, N, -1, st), 0);
    node_chain(50, ids, N);
    for (int i = 0; i < CALLS; i++) {
        for (int b = 0; b < N; b++)
            dst[i][b] = bytes[i][b];
        struct kv_fetch q = {.ns = f->ns,
                             .chain = ids,
                             .n = N,
                             .dst = dst[i],
                             .deadline_ms = 5000,
                             .on_block = on_some_block};
        assert_int_equal(kv_client_fetch(f->client, &q, on_some_fetch, &c[i], &k), 0);
    }
    for (int i = 0; i < CALLS; i++) {
        assert_true(test_loop_until(&f->tl, &c[i].done));
        n_ok += c[i].n_ok == N;
        n_refused += c[i].rv == ERR_BUSY || c[i].n_busy == N;
    }
    assert_true(n_ok >= 1);
    assert_int_equal(n_ok + n_refused, CALLS);
    assert_int_equal(node_fetch(f, 50, 0, N, st), 0);
    all(st, N, 0);
}

/* A client that vanishes in the middle of everything leaves nothing behind. */
static void on_ignored_put(void *arg, int rv, const struct kv_put_res *res) {
    (void)res;
    *(int *)arg = rv;
}

static void test_vanished_client_leaves_nothing(void **state) {
    struct node_fixture *f = *state;
    enum { N = 32 };
    static uint8_t bytes[NODE_PAYLOAD];
    struct block_id ids[N];
    const uint8_t *payload[N];
    uint64_t sums[N], ranges[NODE_RANGES];
    const uint64_t *range_ptrs[N];
    node_chain(30, ids, N);
    memset(bytes, 7, sizeof(bytes));
    for (uint32_t i = 0; i < N; i++) {
        payload[i] = bytes;
        sums[i] = 1; /* never right */
        range_ptrs[i] = ranges;
    }
    memset(ranges, 0, sizeof(ranges));
    struct kv_put q = {.ns = f->ns,
                       .chain = ids,
                       .n = N,
                       .payload = payload,
                       .checksum = sums,
                       .range_checksums = range_ptrs,
                       .deadline_ms = 5000};
    for (int turns = 0; turns < 12; turns++) {
        struct kv_call *k;
        int rv = 1;
        assert_int_equal(kv_client_put(f->client, &q, on_ignored_put, &rv, &k), 0);
        for (int i = 0; i < turns; i++)
            test_loop_turn(&f->tl);
        node_fixture_disconnect(f);
        assert_true(rv <= 0);
        node_fixture_connect(f, MSG_ROLE_WORKER, NULL);
        assert_int_equal(node_lookup(f, 30, N, 0), 0);
    }
    struct msg_stats_res s = admin_stats(f);
    assert_int_equal(s.puts_open, 0);
    assert_int_equal(s.leases, 0);
    assert_int_equal(s.blocks_ram, 0);
    assert_int_equal(s.ram_used_bytes, 0);
    int st[4];
    assert_int_equal(node_put(f, 31, 0, 4, -1, st), 0);
    all(st, 4, 0);
}

static void test_http(void **state) {
    struct node_fixture *f = *state;
    static char text[1u << 18];
    int st[3];
    assert_int_equal(node_put(f, 40, 0, 3, -1, st), 0);
    node_http_get(f, "/healthz", text, sizeof(text));
    assert_non_null(strstr(text, "200 OK"));
    assert_non_null(strstr(text, "loop_beat_age_ms"));
    node_http_get(f, "/readyz", text, sizeof(text));
    assert_non_null(strstr(text, "200 OK"));
    node_http_get(f, "/metrics", text, sizeof(text));
    assert_non_null(strstr(text, "committed_total 3\n"));
    cachesvc_drain(f->node);
    node_http_get(f, "/readyz", text, sizeof(text));
    assert_non_null(strstr(text, "503"));
}

static void test_drain_refuses_new_sessions(void **state) {
    struct node_fixture *f = *state;
    int st[2];
    cachesvc_drain(f->node);
    assert_int_equal(node_lookup(f, 41, 2, 0), 0); /* the living session is still answered */
    assert_true(cachesvc_is_drained(f->node));
    (void)node_fetch(f, 41, 0, 2, st);
    all(st, 2, ERR_NOTFOUND);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
#define T(name, setup) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_put_lookup_fetch, setup_worker),
        T(test_put_lookup_fetch, setup_worker_unix),
        T(test_chain_grows_and_stops_at_the_gap, setup_worker),
        T(test_wrong_checksum_is_never_visible, setup_worker),
        T(test_other_bytes_under_the_same_id_conflict, setup_worker),
        T(test_more_than_fits_evicts_leaves_first, setup_worker_unix),
        T(test_evict_and_flush, setup_tcp),
        T(test_list_and_inspect, setup_tcp),
        T(test_later_methods_are_unimplemented, setup_tcp),
        T(test_roles, setup_plain),
        T(test_wrong_token_is_refused, setup_plain),
        T(test_public_bind_needs_tokens, setup_plain),
        T(test_restart_keeps_the_disk_tier, setup_plain),
        T(test_session_limit_is_busy, setup_plain),
        T(test_fetch_limit_is_busy, setup_plain),
        T(test_vanished_client_leaves_nothing, setup_worker),
        T(test_http, setup_worker),
        T(test_drain_refuses_new_sessions, setup_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
