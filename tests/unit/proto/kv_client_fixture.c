#include "tests/unit/proto/kv_client_fixture.h"

const uint32_t range_sizes[N_RANGES] = {20032, 64, 39936, 30016, 29888, 64};

void on_node(void *arg, uint32_t node, enum kv_node_state state, int err, const char *text) {
    struct fixture *f = arg;
    (void)node, (void)text;
    f->n_up += state == KV_NODE_UP;
    f->n_down += state == KV_NODE_DOWN;
    if (err)
        f->last_down = err;
}

void run_until(struct fixture *f, const int *counter, int target) {
    uint64_t end = uv_hrtime() + 10000000000ull;
    while (*counter < target && uv_hrtime() < end)
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_true(*counter >= target);
}

void turn(struct fixture *f, int n) {
    for (int i = 0; i < n; i++)
        uv_run(&f->loop, UV_RUN_NOWAIT);
}

void open_client(struct fixture *f, const char *token, uint32_t n_data) {
    const char *addrs[3] = {f->addrs[0], f->addrs[1], f->addrs[2]};
    struct kv_client_cfg cfg = {.addrs = addrs,
                                .n_addrs = f->n_nodes,
                                .token = token,
                                .token_len = token ? strlen(token) : 0,
                                .role = MSG_ROLE_WORKER,
                                .n_data_conns = n_data,
                                .backoff_min_ms = 5,
                                .backoff_max_ms = 20,
                                .on_node = on_node,
                                .on_node_arg = f,
                                .clk = f->clk};
    struct errbuf eb;
    assert_int_equal(kv_client_open(&f->client, &f->loop, &cfg, &eb), 0);
    struct kv_namespace ns = {.digest = {1, 2, 3},
                              .descriptor = "a=1\n",
                              .descriptor_len = 4,
                              .range_sizes = range_sizes,
                              .n_ranges = N_RANGES,
                              .n_full = N_RANGES};
    assert_int_equal(kv_client_namespace(f->client, &ns, &f->ns), 0);
}

void make_chain(struct fixture *f) {
    for (uint32_t i = 0; i < MAX_BLOCKS; i++) {
        digest_sha256(&i, sizeof(i), f->chain[i].b);
        f->payload[i] = malloc(PAYLOAD_BYTES);
        f->dst[i] = calloc(1, PAYLOAD_BYTES);
        assert_true(f->payload[i] && f->dst[i]);
        for (uint32_t k = 0; k < PAYLOAD_BYTES; k++)
            f->payload[i][k] = (uint8_t)(k * 31 + i * 7 + (k >> 8));
        f->checksum[i] =
            checksum_block(f->payload[i], range_sizes, N_RANGES, f->chain[i].b, f->sums[i]);
    }
}

int setup_nodes(void **state, uint32_t n_nodes, bool is_unix) {
    struct fixture *f = calloc(1, sizeof(*f));
    uv_loop_init(&f->loop);
    f->n_nodes = n_nodes;
    for (uint32_t i = 0; i < n_nodes; i++) {
        if (is_unix)
            snprintf(f->addrs[i], sizeof(f->addrs[i]), "unix:/tmp/kvt-%d-%u.sock", (int)getpid(),
                     i);
        else
            snprintf(f->addrs[i], sizeof(f->addrs[i]), "127.0.0.1:0");
        assert_int_equal(fake_node_open(&f->nodes[i], &f->loop, f->addrs[i], (uint16_t)(10 + i)),
                         0);
        f->is_node_open[i] = true;
        if (!is_unix)
            snprintf(f->addrs[i], sizeof(f->addrs[i]), "127.0.0.1:%u", f->nodes[i].port);
    }
    make_chain(f);
    *state = f;
    return 0;
}

int setup_tcp(void **state) {
    int rv = setup_nodes(state, 1, false);
    struct fixture *f = *state;
    open_client(f, NULL, 2);
    run_until(f, &f->n_up, 1);
    return rv;
}

int setup_unix(void **state) {
    int rv = setup_nodes(state, 1, true);
    struct fixture *f = *state;
    open_client(f, NULL, 1);
    run_until(f, &f->n_up, 1);
    return rv;
}

int setup_three(void **state) {
    int rv = setup_nodes(state, 3, false);
    struct fixture *f = *state;
    open_client(f, NULL, 2);
    run_until(f, &f->n_up, 3);
    return rv;
}

void on_client_closed(void *arg) {
    ((struct fixture *)arg)->is_client_closed = true;
}

void close_client(struct fixture *f) {
    if (!f->client)
        return;
    kv_client_close(f->client, on_client_closed, f);
    f->client = NULL;
}

void close_node(struct fixture *f, uint32_t i) {
    fake_node_close(&f->nodes[i]);
    f->is_node_open[i] = false;
}

int teardown(void **state) {
    struct fixture *f = *state;
    close_client(f);
    for (uint32_t i = 0; i < f->n_nodes; i++)
        if (f->is_node_open[i])
            close_node(f, i);
    uint64_t end = uv_hrtime() + 5000000000ull;
    while (uv_run(&f->loop, UV_RUN_NOWAIT) && uv_hrtime() < end) {
    }
    assert_int_equal(uv_loop_close(&f->loop), 0); /* no handle left alive */
    for (uint32_t i = 0; i < f->n_nodes; i++)
        fake_node_fini(&f->nodes[i]);
    for (uint32_t i = 0; i < MAX_BLOCKS; i++) {
        free(f->payload[i]);
        free(f->dst[i]);
    }
    free(f);
    return 0;
}

/* ---- callbacks ---- */

void on_lookup(void *arg, int rv, const struct kv_lookup_res *res) {
    struct fixture *f = arg;
    f->n_done++;
    f->rv = rv;
    if (!res)
        return;
    memcpy(f->status, res->status, res->n);
    f->n_prefix = res->n_prefix;
    f->lease = *res->lease;
}

void on_block(void *arg, uint32_t i, int rv) {
    struct fixture *f = arg;
    f->block_rv[i] = rv;
    f->n_block_cbs++;
    if (f->cancel_on_block) {
        kv_call_cancel(f->cancel_on_block);
        f->cancel_on_block = NULL;
    }
}

void on_fetch(void *arg, int rv, const struct kv_fetch_res *res) {
    struct fixture *f = arg;
    f->n_done++;
    f->rv = rv;
    f->fetch = *res;
}

void on_put(void *arg, int rv, const struct kv_put_res *res) {
    struct fixture *f = arg;
    f->n_done++;
    f->rv = rv;
    f->put = *res;
    for (uint32_t i = 0; i < MAX_BLOCKS && i < res->n_stored + res->n_present; i++)
        f->put_status[i] = res->status[i];
    f->put_status[0] = res->status[0];
}

void on_put_count(void *arg, int rv, const struct kv_put_res *res) {
    struct fixture *f = arg;
    f->n_done++;
    f->rv = rv;
    f->put = *res;
}

void on_done(void *arg, int rv) {
    struct fixture *f = arg;
    f->n_done++;
    f->rv = rv;
}

int do_lookup(struct fixture *f, uint32_t n, uint32_t have, uint32_t flags) {
    struct kv_lookup q = {.ns = f->ns,
                          .chain = f->chain,
                          .n = n,
                          .have = have,
                          .flags = flags,
                          .traceparent = "00-abc",
                          .deadline_ms = DEADLINE_MS};
    return kv_client_lookup(f->client, &q, on_lookup, f, NULL);
}

int do_fetch(struct fixture *f, uint32_t first, uint32_t n, uint32_t deadline_ms,
             struct kv_call **ret) {
    struct kv_fetch q = {.ns = f->ns,
                         .chain = f->chain,
                         .first = first,
                         .n = n,
                         .dst = f->dst + first,
                         .deadline_ms = deadline_ms,
                         .on_block = on_block};
    return kv_client_fetch(f->client, &q, on_fetch, f, ret);
}

static const uint64_t *sum_ptrs[MAX_BLOCKS];

int do_put(struct fixture *f, uint32_t first, uint32_t n, uint32_t deadline_ms,
           struct kv_call **ret) {
    for (uint32_t i = 0; i < MAX_BLOCKS; i++)
        sum_ptrs[i] = f->sums[i];
    struct kv_put q = {.ns = f->ns,
                       .chain = f->chain,
                       .first = first,
                       .n = n,
                       .payload = (const uint8_t *const *)f->payload + first,
                       .checksum = f->checksum + first,
                       .range_checksums = sum_ptrs + first,
                       .deadline_ms = deadline_ms};
    return kv_client_put(f->client, &q, on_put, f, ret);
}

int do_touch(struct fixture *f) {
    const struct block_id *chains[1] = {f->chain};
    uint32_t lens[1] = {12};
    struct kv_touch q = {
        .ns = f->ns, .chains = chains, .lens = lens, .n_chains = 1, .deadline_ms = DEADLINE_MS};
    return kv_client_touch(f->client, &q, on_done, f, NULL);
}

void put_and_wait(struct fixture *f, uint32_t first, uint32_t n) {
    int target = f->n_done + 1;
    assert_int_equal(do_put(f, first, n, DEADLINE_MS, NULL), 0);
    run_until(f, &f->n_done, target);
    assert_int_equal(f->rv, 0);
}

int setup_no_client(void **state) {
    return setup_nodes(state, 1, false);
}
