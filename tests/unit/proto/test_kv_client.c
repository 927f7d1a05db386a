#include "tests/unit/proto/kv_client_fixture.h"

/* ---- tests ---- */

static void test_put_then_fetch_returns_the_same_bytes(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 40);
    assert_int_equal(f->put.n_stored, 40);
    assert_int_equal(f->put.bytes_sent, 40 * PAYLOAD_BYTES);
    assert_int_equal(do_lookup(f, 48, 0, 0), 0);
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->rv, 0);
    assert_int_equal(f->n_prefix, 40);
    assert_int_equal(f->status[39], MSG_LOOKUP_RAM);
    assert_int_equal(f->status[40], MSG_LOOKUP_ABSENT);
    assert_int_equal(do_fetch(f, 3, 40, DEADLINE_MS, NULL), 0);
    run_until(f, &f->n_done, 3);
    assert_int_equal(f->rv, 0);
    assert_int_equal(f->fetch.n_ok, 37);
    assert_int_equal(f->fetch.n_miss, 3);
    assert_int_equal(f->n_block_cbs, 40);
    for (uint32_t i = 3; i < 40; i++) {
        assert_int_equal(f->block_rv[i - 3], 0);
        assert_memory_equal(f->dst[i], f->payload[i], PAYLOAD_BYTES);
    }
    assert_int_equal(f->block_rv[37], ERR_NOTFOUND);
}

/* One call may have more blocks than a node takes in one BEGIN. */
static void test_put_of_many_blocks_is_cut_into_begins(void **state) {
    enum { N = 300 };
    struct fixture *f = *state;
    static struct block_id chain[N];
    static const uint8_t *payload[N];
    static const uint64_t *sums[N];
    static uint64_t checksum[N];
    for (uint32_t i = 0; i < N; i++) {
        uint32_t seed = 1000 + i;
        digest_sha256(&seed, sizeof(seed), chain[i].b);
        payload[i] = f->payload[i % MAX_BLOCKS];
        sums[i] = f->sums[i % MAX_BLOCKS];
        checksum[i] = checksum_of_sums(sums[i], N_RANGES, chain[i].b);
    }
    struct kv_put q = {.ns = f->ns,
                       .chain = chain,
                       .n = N,
                       .payload = payload,
                       .checksum = checksum,
                       .range_checksums = sums,
                       .deadline_ms = DEADLINE_MS};
    assert_int_equal(kv_client_put(f->client, &q, on_put_count, f, NULL), 0);
    run_until(f, &f->n_done, 1);
    assert_int_equal(f->rv, 0);
    assert_int_equal(f->put.n_stored, N);
    assert_int_equal(f->nodes[0].calls[WIRE_PUT_BEGIN], 3);
    for (uint32_t i = 0; i < N; i++) {
        const struct fake_block *b = fake_node_find(&f->nodes[0], &chain[i]);
        assert_non_null(b);
        assert_int_equal(b->depth, i);
        assert_memory_equal(b->payload, payload[i], PAYLOAD_BYTES);
    }
}

static void test_put_twice_says_present_and_sends_nothing(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 5);
    put_and_wait(f, 0, 5);
    assert_int_equal(f->put.n_present, 5);
    assert_int_equal(f->put.bytes_sent, 0);
    assert_int_equal(f->put_status[0], ERR_EXISTS);
}

static void test_put_other_checksum_is_conflict(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 1);
    f->payload[0][5] ^= 1;
    f->checksum[0] =
        checksum_block(f->payload[0], range_sizes, N_RANGES, f->chain[0].b, f->sums[0]);
    put_and_wait(f, 0, 1);
    assert_int_equal(f->put.n_conflict, 1);
    assert_int_equal(f->put_status[0], ERR_CONFLICT);
}

static void test_put_wrong_checksum_is_corrupt(void **state) {
    struct fixture *f = *state;
    f->checksum[0] ^= 1;
    put_and_wait(f, 0, 1);
    assert_int_equal(f->put_status[0], ERR_CORRUPT);
    assert_null(fake_node_find(&f->nodes[0], &f->chain[0]));
}

/* F23: a node answers block 3 with block 0's bytes, sums and checksum, which fit each other: taken, and
 * a wrong token that no check sees. The checksum covers the id, so it is a bad block, and a miss. */
static void test_fetch_of_another_blocks_bytes_is_corrupt(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 8);
    f->nodes[0].swap_block = 3;
    assert_int_equal(do_fetch(f, 0, 8, DEADLINE_MS, NULL), 0);
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->rv, 0);
    assert_int_equal(f->fetch.n_ok, 7);
    assert_int_equal(f->fetch.n_corrupt, 1);
}

static void test_put_names_parent_and_depth(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 2, 3);
    const struct fake_block *b = fake_node_find(&f->nodes[0], &f->chain[3]);
    assert_non_null(b);
    assert_int_equal(b->depth, 3);
    assert_true(block_id_equal(&b->parent, &f->chain[2]));
    assert_int_equal(b->flags, 0);
}

static void test_fetch_flipped_bit_is_corrupt_and_only_that_block(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 8);
    f->nodes[0].corrupt_block = 2;
    assert_int_equal(do_fetch(f, 0, 8, DEADLINE_MS, NULL), 0);
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->rv, 0);
    assert_int_equal(f->fetch.n_ok, 7);
    assert_int_equal(f->fetch.n_corrupt, 1);
}

/* Ranges 2 and 3 of a block: what they bring is verified by all the block's sums; a flipped bit, another
 * block's ranges, are found. */
static void test_fetch_of_a_run_of_ranges_is_verified(void **state) {
    struct fixture *f = *state;
    const uint32_t off = range_sizes[0] + range_sizes[1], bytes = range_sizes[2] + range_sizes[3];
    put_and_wait(f, 0, 4);
    struct kv_fetch q = {.ns = f->ns,
                         .chain = f->chain,
                         .n = 4,
                         .dst = f->dst,
                         .first_range = 2,
                         .n_ranges = 2,
                         .deadline_ms = DEADLINE_MS,
                         .on_block = on_block};
    assert_int_equal(kv_client_fetch(f->client, &q, on_fetch, f, NULL), 0);
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->fetch.n_ok, 4);
    assert_int_equal(f->fetch.bytes, 4 * bytes);
    for (uint32_t i = 0; i < 4; i++) {
        assert_memory_equal(f->dst[i], f->payload[i] + off, bytes);
        assert_int_equal(f->dst[i][bytes], 0);
    }
    f->nodes[0].corrupt_block = 1;
    assert_int_equal(kv_client_fetch(f->client, &q, on_fetch, f, NULL), 0);
    run_until(f, &f->n_done, 3);
    assert_int_equal(f->fetch.n_corrupt, 1);
    f->nodes[0].swap_block = 2;
    assert_int_equal(kv_client_fetch(f->client, &q, on_fetch, f, NULL), 0);
    run_until(f, &f->n_done, 4);
    assert_int_equal(f->fetch.n_corrupt, 1);
}

static void test_fetch_skips_blocks_without_destination(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 4);
    uint8_t *dst[4] = {f->dst[0], NULL, f->dst[2], NULL};
    struct kv_fetch q = {
        .ns = f->ns, .chain = f->chain, .n = 4, .dst = dst, .deadline_ms = DEADLINE_MS};
    assert_int_equal(kv_client_fetch(f->client, &q, on_fetch, f, NULL), 0);
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->fetch.n_ok, 2);
    assert_memory_equal(f->dst[2], f->payload[2], PAYLOAD_BYTES);
}

static void test_lookup_lease_is_released_once(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 10);
    assert_int_equal(do_lookup(f, 10, 2, MSG_LOOKUP_F_LEASE | MSG_LOOKUP_F_TOUCH), 0);
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->lease.n, 1);
    assert_int_equal(f->nodes[0].n_open_leases, 1);
    assert_string_equal(f->nodes[0].last_traceparent, "00-abc");
    kv_client_release(f->client, &f->lease, 8);
    int calls = 0;
    while (f->nodes[0].calls[WIRE_RELEASE] == 0 && calls++ < 1000)
        turn(f, 1);
    assert_int_equal(f->nodes[0].n_open_leases, 0);
}

static void test_lookup_canceled_gives_its_late_lease_back(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 10);
    struct kv_call *call;
    struct kv_lookup q = {.ns = f->ns,
                          .chain = f->chain,
                          .n = 10,
                          .flags = MSG_LOOKUP_F_LEASE,
                          .deadline_ms = DEADLINE_MS};
    assert_int_equal(kv_client_lookup(f->client, &q, on_lookup, f, &call), 0);
    kv_call_cancel(call);
    assert_int_equal(f->n_done, 1); /* never from inside */
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->rv, ERR_CANCELED);
    for (int i = 0; i < 1000 && f->nodes[0].calls[WIRE_RELEASE] == 0; i++)
        turn(f, 1);
    assert_int_equal(f->nodes[0].calls[WIRE_RELEASE], 1);
    assert_int_equal(f->nodes[0].n_open_leases, 0);
}

static void test_lookup_no_answer_ends_at_deadline(void **state) {
    struct fixture *f = *state;
    f->nodes[0].mute = WIRE_LOOKUP;
    struct kv_lookup q = {.ns = f->ns, .chain = f->chain, .n = 4, .deadline_ms = 20};
    assert_int_equal(kv_client_lookup(f->client, &q, on_lookup, f, NULL), 0);
    run_until(f, &f->n_done, 1);
    assert_int_equal(f->rv, ERR_TIMEOUT);
}

static void test_lookup_error_answer_is_its_code(void **state) {
    struct fixture *f = *state;
    f->nodes[0].fail_method = WIRE_LOOKUP;
    f->nodes[0].fail_err = ERR_BUSY;
    assert_int_equal(do_lookup(f, 4, 0, 0), 0);
    run_until(f, &f->n_done, 1);
    assert_int_equal(f->rv, ERR_BUSY);
}

static void test_touch_is_acknowledged(void **state) {
    struct fixture *f = *state;
    const struct block_id *chains[2] = {f->chain, f->chain};
    uint32_t lens[2] = {20, 3};
    struct kv_touch q = {
        .ns = f->ns, .chains = chains, .lens = lens, .n_chains = 2, .deadline_ms = DEADLINE_MS};
    assert_int_equal(kv_client_touch(f->client, &q, on_done, f, NULL), 0);
    run_until(f, &f->n_done, 1);
    assert_int_equal(f->rv, 0);
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_nodes; i++)
        n += f->nodes[i].calls[WIRE_TOUCH];
    assert_true(n >= 1);
}

static void test_fetch_canceled_midway_leaves_memory_alone(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, MAX_BLOCKS);
    assert_int_equal(do_fetch(f, 0, MAX_BLOCKS, DEADLINE_MS, &f->cancel_on_block), 0);
    while (f->cancel_on_block)
        uv_run(&f->loop, UV_RUN_ONCE);
    uint32_t n_cbs = f->n_block_cbs;
    for (uint32_t i = 0; i < MAX_BLOCKS; i++)
        memset(f->dst[i], 0xee, PAYLOAD_BYTES);
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->rv, ERR_CANCELED);
    turn(f, 200);
    assert_int_equal(f->n_block_cbs, n_cbs);
    for (uint32_t i = 0; i < MAX_BLOCKS; i++)
        for (uint32_t k = 0; k < PAYLOAD_BYTES; k += 997)
            assert_int_equal(f->dst[i][k], 0xee);
    /* and the session still works */
    assert_int_equal(do_fetch(f, 0, 4, DEADLINE_MS, NULL), 0);
    run_until(f, &f->n_done, 3);
    assert_int_equal(f->fetch.n_ok, 4);
    assert_int_equal(f->n_up, 1);
}

static void test_fetch_hanging_node_ends_at_deadline_with_what_came(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 8);
    f->nodes[0].fetch_limit = 1;
    assert_int_equal(do_fetch(f, 0, 8, 50, NULL), 0);
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->rv, ERR_TIMEOUT);
    assert_true(f->fetch.n_ok >= 1 && f->fetch.n_ok <= 2); /* one a data connection */
    for (int i = 0; i < 1000 && f->nodes[0].n_canceled == 0; i++)
        turn(f, 1);
    assert_true(f->nodes[0].n_canceled >= 1);
}

static void test_put_canceled_gives_sources_back(void **state) {
    struct fixture *f = *state;
    struct kv_call *call;
    assert_int_equal(do_put(f, 0, MAX_BLOCKS, DEADLINE_MS, &call), 0);
    while (f->nodes[0].calls[WIRE_PUT_BEGIN] == 0)
        uv_run(&f->loop, UV_RUN_ONCE);
    turn(f, 2);
    kv_call_cancel(call);
    run_until(f, &f->n_done, 1);
    assert_int_equal(f->rv, ERR_CANCELED);
    for (uint32_t i = 0; i < MAX_BLOCKS; i++) { /* a use after free if anything still reads them */
        free(f->payload[i]);
        f->payload[i] = NULL;
    }
    turn(f, 500);
    assert_int_equal(f->nodes[0].calls[WIRE_PUT_ABORT], 1);
    assert_int_equal(f->n_up, 1);
}

static void test_put_commit_error_ends_put(void **state) {
    struct fixture *f = *state;
    f->nodes[0].fail_method = WIRE_PUT_COMMIT;
    f->nodes[0].fail_err = ERR_NOSPACE;
    put_and_wait(f, 0, 12);
    assert_int_equal(f->put_status[0], ERR_NOSPACE);
    assert_int_equal(f->put.n_stored, 0);
}

static void test_close_with_calls_open_cancels_each_once(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 16);
    f->nodes[0].mute = WIRE_LOOKUP;
    assert_int_equal(do_lookup(f, 4, 0, 0), 0);
    assert_int_equal(do_fetch(f, 0, 16, DEADLINE_MS, NULL), 0);
    assert_int_equal(do_put(f, 16, 16, DEADLINE_MS, NULL), 0);
    turn(f, 1);
    close_client(f);
    while (!f->is_client_closed)
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->n_done, 4);
    assert_int_equal(f->rv, ERR_CANCELED);
}

static void on_stats(void *arg, int rv, const char *text, const struct msg_stats_res *m) {
    struct fixture *f = arg;
    f->n_done++;
    f->rv = rv;
    assert_string_equal(text, "");
    assert_int_equal(m->blocks_ram, 3);
    assert_int_equal(m->n_counters, 1);
    assert_string_equal(m->counters[0].name, "fake_total");
}

static void on_pin(void *arg, int rv, const char *text, const struct msg_pin_res *m) {
    struct fixture *f = arg;
    f->n_done++;
    f->rv = rv;
    assert_null(m);
    assert_non_null(strstr(text, "Pin"));
}

static void test_admin_calls_answer_and_unknown_is_unimplemented(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 3);
    struct msg_stats_req stats = {0};
    assert_int_equal(kv_client_stats(f->client, 0, &stats, DEADLINE_MS, on_stats, f, NULL), 0);
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->rv, 0);
    struct msg_pin_req pin = {.n_ids = 1, .ids = f->chain};
    assert_int_equal(kv_client_pin(f->client, 0, &pin, DEADLINE_MS, on_pin, f, NULL), 0);
    run_until(f, &f->n_done, 3);
    assert_int_equal(f->rv, ERR_UNIMPLEMENTED);
}

static void test_three_nodes_share_a_chain_by_segment(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, MAX_BLOCKS);
    assert_int_equal(f->put.n_stored, MAX_BLOCKS);
    uint32_t owner[MAX_BLOCKS];
    uint16_t ids[3] = {10, 11, 12};
    kv_route_chain(f->chain, 0, MAX_BLOCKS, KV_ROUTE_SEG_BLOCKS, ids, 3, owner);
    uint32_t n_nodes_used = 0;
    for (uint32_t i = 0; i < 3; i++)
        n_nodes_used += f->nodes[i].n_blocks > 0;
    assert_true(n_nodes_used >= 2); /* 8 segments over 3 nodes */
    for (uint32_t i = 0; i < MAX_BLOCKS; i++) {
        const struct fake_block *b = fake_node_find(&f->nodes[owner[i]], &f->chain[i]);
        assert_non_null(b);
        bool is_elsewhere = i > 0 && owner[i] != owner[i - 1];
        assert_int_equal(b->flags, is_elsewhere ? MSG_PUT_BF_PARENT_ELSEWHERE : 0);
    }
    assert_int_equal(do_lookup(f, MAX_BLOCKS, 5, MSG_LOOKUP_F_LEASE), 0);
    run_until(f, &f->n_done, 2);
    assert_int_equal(f->n_prefix, MAX_BLOCKS);
    assert_int_equal(f->lease.n, n_nodes_used);
    assert_int_equal(do_fetch(f, 1, MAX_BLOCKS - 1, DEADLINE_MS, NULL), 0);
    run_until(f, &f->n_done, 3);
    assert_int_equal(f->fetch.n_ok, MAX_BLOCKS - 1);
    for (uint32_t i = 1; i < MAX_BLOCKS; i++)
        assert_memory_equal(f->dst[i], f->payload[i], PAYLOAD_BYTES);
}

/* Else both would be asked for the same segments, by half of the clients each. */
static void test_two_nodes_of_one_number_are_not_both_used(void **state) {
    struct fixture *f = *state;
    close_client(f);
    f->is_client_closed = false;
    f->nodes[1].node_id = f->nodes[0].node_id;
    f->n_up = f->n_down = 0;
    open_client(f, NULL, 1);
    run_until(f, &f->n_down, 1);
    uint32_t n_refused = 0;
    for (uint32_t i = 0; i < 3; i++) {
        struct kv_node_info info;
        kv_client_node_info(f->client, i, &info);
        n_refused += info.last_err == ERR_CONFLICT;
    }
    assert_int_equal(n_refused, 1);
}

static void test_three_nodes_one_dies_during_a_put(void **state) {
    struct fixture *f = *state;
    assert_int_equal(do_put(f, 0, MAX_BLOCKS, DEADLINE_MS, NULL), 0);
    while (f->nodes[1].calls[WIRE_PUT_BEGIN] == 0)
        uv_run(&f->loop, UV_RUN_ONCE);
    close_node(f, 1);
    run_until(f, &f->n_done, 1);
    assert_true(f->rv < 0);
    assert_true(f->put.n_stored > 0);
    run_until(f, &f->n_down, 1);
    put_and_wait(f, 0, MAX_BLOCKS); /* over the two that live */
    assert_int_equal(f->put.n_stored + f->put.n_present, MAX_BLOCKS);
}

/* Failure is a parameter: the n-th allocation of a start fails, for every n until none does. */
static void test_start_without_memory_fails_cleanly(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 16);
    for (int kind = 0; kind < 4; kind++) {
        bool fired = true;
        for (uint64_t n = 0; fired; n++) {
            int target = f->n_done + 1;
            assert_true(n < 50);
            fault_arm(n);
            int rv = kind == 0   ? do_lookup(f, 16, 0, 0)
                     : kind == 1 ? do_fetch(f, 0, 16, DEADLINE_MS, NULL)
                     : kind == 2 ? do_put(f, 8, 16, DEADLINE_MS, NULL)
                                 : do_touch(f);
            fired = fault_fired();
            fault_disarm();
            if (rv == 0)
                run_until(f, &f->n_done, target); /* exactly one callback */
            else
                assert_int_equal(rv, ERR_NOMEM); /* and none at all */
            assert_int_equal(f->n_done, target - (rv < 0));
        }
        assert_int_equal(f->rv, 0);
    }
    assert_int_equal(f->n_up, 1); /* the session never suffered */
}

static void test_open_without_memory_fails_cleanly(void **state) {
    struct fixture *f = *state;
    const char *addrs[1] = {f->addrs[0]};
    static const uint8_t writer[16] = {1};
    struct kv_client_cfg cfg = {.addrs = addrs,
                                .n_addrs = 1,
                                .token = "t",
                                .token_len = 1,
                                .role = MSG_ROLE_WORKER,
                                .n_data_conns = 1,
                                .writer = writer,
                                .tcp_congestion = "reno",
                                .on_node = on_node,
                                .on_node_arg = f};
    struct errbuf eb;
    bool fired = true;
    uint64_t n = 0;
    f->nodes[0].token = "t";
    for (; fired; n++) {
        fault_arm(n);
        int rv = kv_client_open(&f->client, &f->loop, &cfg, &eb);
        fired = fault_fired();
        fault_disarm();
        assert_int_equal(rv, fired ? ERR_NOMEM : 0);
    }
    assert_true(n > 6);
    run_until(f, &f->n_up, 1);
}

static void test_bad_arguments_are_refused(void **state) {
    struct fixture *f = *state;
    assert_int_equal(do_lookup(f, 0, 0, 0), ERR_INVALID);
    struct kv_lookup q = {.ns = 9, .chain = f->chain, .n = 1, .deadline_ms = 10};
    assert_int_equal(kv_client_lookup(f->client, &q, on_lookup, f, NULL), ERR_INVALID);
    q.ns = f->ns;
    q.deadline_ms = 0;
    assert_int_equal(kv_client_lookup(f->client, &q, on_lookup, f, NULL), ERR_INVALID);
    const uint32_t odd[2] = {64, 63}, none[2] = {64, 0};
    struct kv_namespace ns = {.range_sizes = odd, .n_ranges = 2};
    uint32_t out;
    assert_int_equal(kv_client_namespace(f->client, &ns, &out), ERR_INVALID);
    ns.range_sizes = none;
    assert_int_equal(kv_client_namespace(f->client, &ns, &out), ERR_INVALID);
    ns = (struct kv_namespace){.range_sizes = range_sizes, .n_ranges = N_RANGES, .n_full = 7};
    assert_int_equal(kv_client_namespace(f->client, &ns, &out), ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        T(test_put_then_fetch_returns_the_same_bytes, setup_tcp),
        T(test_put_then_fetch_returns_the_same_bytes, setup_unix),
        T(test_put_of_many_blocks_is_cut_into_begins, setup_tcp),
        T(test_put_twice_says_present_and_sends_nothing, setup_tcp),
        T(test_put_other_checksum_is_conflict, setup_tcp),
        T(test_put_wrong_checksum_is_corrupt, setup_tcp),
        T(test_put_names_parent_and_depth, setup_tcp),
        T(test_fetch_flipped_bit_is_corrupt_and_only_that_block, setup_tcp),
        T(test_fetch_of_another_blocks_bytes_is_corrupt, setup_tcp),
        T(test_fetch_of_a_run_of_ranges_is_verified, setup_tcp),
        T(test_fetch_skips_blocks_without_destination, setup_tcp),
        T(test_lookup_lease_is_released_once, setup_tcp),
        T(test_lookup_canceled_gives_its_late_lease_back, setup_tcp),
        T(test_lookup_no_answer_ends_at_deadline, setup_tcp),
        T(test_lookup_error_answer_is_its_code, setup_tcp),
        T(test_touch_is_acknowledged, setup_three),
        T(test_fetch_canceled_midway_leaves_memory_alone, setup_tcp),
        T(test_fetch_canceled_midway_leaves_memory_alone, setup_unix),
        T(test_fetch_hanging_node_ends_at_deadline_with_what_came, setup_tcp),
        T(test_put_canceled_gives_sources_back, setup_tcp),
        T(test_put_canceled_gives_sources_back, setup_unix),
        T(test_put_commit_error_ends_put, setup_tcp),
        T(test_close_with_calls_open_cancels_each_once, setup_tcp),
        T(test_admin_calls_answer_and_unknown_is_unimplemented, setup_tcp),
        T(test_three_nodes_share_a_chain_by_segment, setup_three),
        T(test_two_nodes_of_one_number_are_not_both_used, setup_three),
        T(test_three_nodes_one_dies_during_a_put, setup_three),
        T(test_start_without_memory_fails_cleanly, setup_tcp),
        T(test_open_without_memory_fails_cleanly, setup_no_client),
        T(test_bad_arguments_are_refused, setup_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
