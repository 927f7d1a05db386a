/* Sessions: how they come up, what they hold, how they end. */
#include "tests/support/fake_clock.h"
#include "tests/unit/proto/kv_client_fixture.h"

static void test_leases_are_renewed_until_given_back(void **state) {
    struct fixture *f = *state;
    f->nodes[0].lease_ttl_ms = 6;
    open_client(f, NULL, 1);
    run_until(f, &f->n_up, 1);
    put_and_wait(f, 0, 10);
    assert_int_equal(f->nodes[0].calls[WIRE_HEARTBEAT], 0);
    assert_int_equal(do_lookup(f, 10, 0, MSG_LOOKUP_F_LEASE), 0);
    uint64_t end = uv_hrtime() + 5000000000ull;
    while (f->nodes[0].calls[WIRE_HEARTBEAT] < 3 && uv_hrtime() < end)
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_true(f->nodes[0].calls[WIRE_HEARTBEAT] >= 3);
    assert_int_equal(f->nodes[0].n_heartbeat_leases, 1); /* by its id, no other is renewed */
    kv_client_release(f->client, &f->lease, 0);
    while (f->nodes[0].calls[WIRE_RELEASE] == 0)
        turn(f, 1);
    uint32_t n = f->nodes[0].calls[WIRE_HEARTBEAT];
    uint64_t later = uv_hrtime() + 20000000;
    while (uv_hrtime() < later)
        turn(f, 1);
    assert_int_equal(f->nodes[0].calls[WIRE_HEARTBEAT], n);
}

/* A3: a lease that the node wants back, or that has ended there, is named no more; the other goes on. */
static void leases_told_off(struct fixture *f, uint64_t *told) {
    f->nodes[0].lease_ttl_ms = 6;
    open_client(f, NULL, 1);
    run_until(f, &f->n_up, 1);
    put_and_wait(f, 0, 10);
    assert_int_equal(do_lookup(f, 10, 0, MSG_LOOKUP_F_LEASE), 0);
    run_until(f, &f->n_done, 2);
    struct kv_lease first = f->lease;
    assert_int_equal(do_lookup(f, 10, 0, MSG_LOOKUP_F_LEASE), 0);
    run_until(f, &f->n_done, 3);
    uint64_t end = uv_hrtime() + 5000000000ull;
    while (f->nodes[0].n_heartbeat_leases < 2 && uv_hrtime() < end)
        uv_run(&f->loop, UV_RUN_ONCE);
    *told = first.part[0].lease_id;
    while (f->nodes[0].n_heartbeat_leases > 1 && uv_hrtime() < end)
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->nodes[0].n_heartbeat_leases, 1);
    kv_client_release(f->client, &first, 0); /* still said: the node may have it yet */
    while (f->nodes[0].calls[WIRE_RELEASE] == 0 && uv_hrtime() < end)
        turn(f, 1);
    assert_int_equal(f->nodes[0].calls[WIRE_RELEASE], 1);
}

static void test_a_recalled_lease_is_not_renewed(void **state) {
    struct fixture *f = *state;
    leases_told_off(f, &f->nodes[0].recall_lease);
}

static void test_an_ended_lease_is_not_renewed(void **state) {
    struct fixture *f = *state;
    leases_told_off(f, &f->nodes[0].end_lease);
}

static void test_node_down_fails_calls_at_once_then_comes_back(void **state) {
    struct fixture *f = *state;
    put_and_wait(f, 0, 4);
    f->nodes[0].mute = WIRE_LOOKUP;
    assert_int_equal(do_lookup(f, 4, 0, 0), 0);
    turn(f, 5);
    close_node(f, 0);
    run_until(f, &f->n_done, 2); /* the call under way */
    assert_true(f->rv < 0);
    assert_int_equal(do_lookup(f, 4, 0, 0), ERR_UNAVAILABLE);
    assert_int_equal(kv_client_nodes_up(f->client), 0);
    fake_node_fini(&f->nodes[0]);
    char addr[64];
    snprintf(addr, sizeof(addr), "%s", f->addrs[0]);
    turn(f, 20);
    assert_int_equal(fake_node_open(&f->nodes[0], &f->loop, addr, 10), 0);
    f->is_node_open[0] = true;
    run_until(f, &f->n_up, 2);
    put_and_wait(f, 0, 4); /* the namespace was registered again */
    assert_int_equal(f->put.n_stored, 4);
}

static void test_wrong_token_is_denied_and_told(void **state) {
    struct fixture *f = *state;
    f->nodes[0].token = "right";
    open_client(f, "wrong", 1);
    run_until(f, &f->n_down, 1);
    assert_int_equal(f->last_down, ERR_DENIED);
    struct kv_node_info info;
    kv_client_node_info(f->client, 0, &info);
    assert_int_equal(info.state, KV_NODE_DOWN);
    assert_non_null(strstr(info.last_text, "wrong token"));
    /* E6: a token that was read again serves with the next attempt */
    assert_int_equal(kv_client_set_token(f->client, "right", 5), 0);
    run_until(f, &f->n_up, 1);
}

static void test_absent_node_is_no_error(void **state) {
    struct fixture *f = *state;
    snprintf(f->addrs[0], sizeof(f->addrs[0]), "unix:/tmp/kvt-%d-absent.sock", (int)getpid());
    open_client(f, NULL, 1);
    run_until(f, &f->n_down, 2);
    assert_int_equal(do_fetch(f, 0, 4, DEADLINE_MS, NULL), ERR_UNAVAILABLE);
}

static void test_control_only_client_is_complete_without_payload(void **state) {
    struct fixture *f = *state;
    open_client(f, NULL, 0);
    run_until(f, &f->n_up, 1);
    assert_int_equal(do_lookup(f, 4, 0, 0), 0);
    run_until(f, &f->n_done, 1);
    assert_int_equal(f->rv, 0);
    assert_int_equal(do_fetch(f, 0, 4, DEADLINE_MS, NULL), ERR_INVALID);
    assert_int_equal(do_put(f, 0, 4, DEADLINE_MS, NULL), ERR_INVALID);
}

/* Connections that cannot be made for want of memory are attempts like others: it comes up
 * later. */
static void test_connecting_without_memory_is_tried_again(void **state) {
    struct fixture *f = *state;
    for (uint64_t n = 0; n < 12; n++) {
        f->n_up = 0;
        open_client(f, NULL, 1);
        fault_arm(n);
        turn(f, 3);
        fault_disarm();
        run_until(f, &f->n_up, 1);
        f->is_client_closed = false;
        close_client(f);
        while (!f->is_client_closed)
            uv_run(&f->loop, UV_RUN_ONCE);
    }
}

/* F24: an answer is taken once. A node that answered Hello twice made the client open its data connections
 * twice over. What comes to an id that nothing waits for ends the session and changes nothing else. */
static void answered_twice(struct fixture *f, uint16_t method) {
    f->nodes[0].repeat_method = method;
    if (method == WIRE_TOUCH)
        assert_int_equal(do_touch(f), 0);
    else if (method == WIRE_LOOKUP)
        assert_int_equal(do_lookup(f, 4, 0, MSG_LOOKUP_F_LEASE), 0);
    else if (method == WIRE_PUT_BEGIN || method == WIRE_PUT_COMMIT)
        assert_int_equal(do_put(f, 0, 4, DEADLINE_MS, NULL), 0);
    else
        open_client(f, NULL, 1);
    run_until(f, &f->n_down, 1);
    assert_int_equal(f->last_down, ERR_PROTO);
    struct kv_node_info info;
    kv_client_node_info(f->client, 0, &info);
    assert_string_equal(info.last_text, "an answer to nothing that waits for one");
}

static void test_hello_answered_twice_ends_the_session(void **state) {
    struct fixture *f = *state;
    answered_twice(f, WIRE_HELLO);
    assert_true(f->nodes[0].n_accepted <= 2); /* control and one data connection, not two */
    assert_int_equal(f->n_up, 0);
    f->nodes[0].repeat_method = 0;
    run_until(f, &f->n_up, 1);
}

static void test_register_answered_twice_ends_the_session(void **state) {
    answered_twice(*state, WIRE_REGISTER_NS);
}

static void test_lookup_answered_twice_ends_the_session(void **state) {
    struct fixture *f = *state;
    answered_twice(f, WIRE_LOOKUP);
    run_until(f, &f->n_done, 1);
    assert_int_equal(f->rv, 0); /* the first answer counts */
    assert_int_equal(f->nodes[0].calls[WIRE_RELEASE], 0);
}

static void test_touch_answered_twice_ends_the_session(void **state) {
    answered_twice(*state, WIRE_TOUCH);
}

static void test_put_begin_answered_twice_ends_the_session(void **state) {
    answered_twice(*state, WIRE_PUT_BEGIN);
}

static void test_put_commit_answered_twice_ends_the_session(void **state) {
    answered_twice(*state, WIRE_PUT_COMMIT);
}

static void cancel_lookups(struct fixture *f, int n) {
    for (int i = 0; i < n && f->n_down == 0; i++) {
        struct kv_call *call;
        struct kv_lookup q = {.ns = f->ns, .chain = f->chain, .n = 4, .deadline_ms = DEADLINE_MS};
        assert_int_equal(kv_client_lookup(f->client, &q, on_lookup, f, &call), 0);
        kv_call_cancel(call);
        if (i % 64 == 63)
            turn(f, 20);
    }
}

/* Answers to what was given up are awaited and dropped, however many. */
static void test_late_answers_do_not_harm_the_session(void **state) {
    struct fixture *f = *state;
    cancel_lookups(f, 3000);
    run_until(f, (const int *)&f->nodes[0].calls[WIRE_LOOKUP], 3000);
    assert_int_equal(f->n_down, 0);
    put_and_wait(f, 0, 4);
}

static void test_a_node_that_answers_nothing_is_left(void **state) {
    struct fixture *f = *state;
    f->nodes[0].mute = WIRE_LOOKUP;
    cancel_lookups(f, 1100);
    run_until(f, &f->n_down, 1);
    assert_int_equal(f->last_down, ERR_TIMEOUT);
    f->nodes[0].mute = 0;
    run_until(f, &f->n_up, 2);
    put_and_wait(f, 0, 4);
}

static void test_a_silent_node_is_left(void **state) {
    struct fixture *f = *state;
    struct fake_clock clk;
    fake_clock_init(&clk);
    f->clk = &clk.clk;
    f->nodes[0].lease_ttl_ms = 6;
    open_client(f, NULL, 1);
    run_until(f, &f->n_up, 1);
    put_and_wait(f, 0, 4);
    f->nodes[0].mute = WIRE_HEARTBEAT;
    assert_int_equal(do_lookup(f, 4, 0, MSG_LOOKUP_F_LEASE), 0);
    run_until(f, (const int *)&f->nodes[0].calls[WIRE_HEARTBEAT], 1);
    fake_clock_advance_ms(&clk, 31000);
    run_until(f, &f->n_down, 1);
    assert_int_equal(f->last_down, ERR_TIMEOUT);
}

/* MUTANTS: deadlines not sent. Every request says how long its answer is worth something. */
static void test_requests_carry_their_deadline(void **state) {
    struct fixture *f = *state;
    static const uint16_t methods[] = {WIRE_LOOKUP, WIRE_TOUCH, WIRE_FETCH, WIRE_PUT_BEGIN,
                                       WIRE_PUT_COMMIT};
    put_and_wait(f, 0, 4);
    assert_int_equal(do_lookup(f, 4, 0, 0), 0);
    assert_int_equal(do_touch(f), 0);
    assert_int_equal(do_fetch(f, 0, 4, DEADLINE_MS, NULL), 0);
    run_until(f, &f->n_done, 4);
    for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
        uint32_t ms = f->nodes[0].deadline_ms[methods[i]];
        if (ms == 0 || ms > DEADLINE_MS)
            fail_msg("%s: %u ms", wire_method_name(methods[i]), ms);
    }
    assert_int_equal(f->nodes[0].deadline_ms[WIRE_HELLO], 2000); /* connect_timeout_ms's default */
}

/* MUTANTS: no backoff. The pause doubles from attempt to attempt, a quarter less at most, up to its limit;
 * the loop's own next timer tells. */
struct pauses {
    uv_loop_t *loop;
    int ms[5], n;
};

/* Its timer has just been set. */
static void note_pause(void *arg, uint32_t node, enum kv_node_state state, int err,
                       const char *text) {
    struct pauses *p = arg;
    (void)node, (void)err, (void)text;
    if (state == KV_NODE_DOWN && p->n < (int)ARRAY_LEN(p->ms))
        p->ms[p->n++] = uv_backend_timeout(p->loop);
}

static void test_attempts_back_off(void **state) {
    struct fixture *f = *state;
    struct pauses p = {.loop = &f->loop};
    const char *addrs[1] = {"unix:/nonexistent/kvt.sock"};
    struct kv_client_cfg cfg = {.addrs = addrs,
                                .n_addrs = 1,
                                .role = MSG_ROLE_WORKER,
                                .backoff_min_ms = 8,
                                .backoff_max_ms = 50,
                                .on_node = note_pause,
                                .on_node_arg = &p};
    struct errbuf eb;
    close_node(f, 0); /* its timers are none of ours */
    turn(f, 5);
    assert_int_equal(kv_client_open(&f->client, &f->loop, &cfg, &eb), 0);
    static const int want[] = {8, 16, 32, 50, 50};
    while (p.n < 5)
        uv_run(&f->loop, UV_RUN_ONCE);
    for (int i = 0; i < 5; i++)
        if (p.ms[i] > want[i] || p.ms[i] < want[i] * 3 / 4)
            fail_msg("attempt %d: %d ms, want %d", i, p.ms[i], want[i]);
    close_client(f);
    while (!f->is_client_closed)
        uv_run(&f->loop, UV_RUN_ONCE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        T(test_leases_are_renewed_until_given_back, setup_no_client),
        T(test_a_recalled_lease_is_not_renewed, setup_no_client),
        T(test_an_ended_lease_is_not_renewed, setup_no_client),
        T(test_node_down_fails_calls_at_once_then_comes_back, setup_tcp),
        T(test_node_down_fails_calls_at_once_then_comes_back, setup_unix),
        T(test_wrong_token_is_denied_and_told, setup_no_client),
        T(test_absent_node_is_no_error, setup_no_client),
        T(test_control_only_client_is_complete_without_payload, setup_no_client),
        T(test_connecting_without_memory_is_tried_again, setup_no_client),
        T(test_hello_answered_twice_ends_the_session, setup_no_client),
        T(test_register_answered_twice_ends_the_session, setup_no_client),
        T(test_lookup_answered_twice_ends_the_session, setup_tcp),
        T(test_touch_answered_twice_ends_the_session, setup_tcp),
        T(test_put_begin_answered_twice_ends_the_session, setup_tcp),
        T(test_put_commit_answered_twice_ends_the_session, setup_tcp),
        T(test_late_answers_do_not_harm_the_session, setup_tcp),
        T(test_a_node_that_answers_nothing_is_left, setup_tcp),
        T(test_a_silent_node_is_left, setup_no_client),
        T(test_requests_carry_their_deadline, setup_tcp),
        T(test_attempts_back_off, setup_no_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
