/* A8: half-received long messages of many peers: bounded in all, a share each, served in turns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "proto/rpc_in.h"
#include "proto/wire_frame.h"

#define N 8
#define MSG_BYTES (900u << 10)
#define TOTAL (4u << 20)

struct fixture {
    struct rpc_in_pool pool;
    struct rpc_in in[N];
    int order[N], n_woken;
};
static struct fixture *fx; /* rpc_in knows nothing of who embeds it */

static void on_wake(struct rpc_in *in) {
    fx->order[fx->n_woken++ % N] = (int)(in - fx->in);
}

static int setup(void **state) {
    struct fixture *f = fx = calloc(1, sizeof(*f));
    rpc_in_pool_init(&f->pool, TOTAL);
    for (int i = 0; i < N; i++)
        assert_int_equal(rpc_in_init(&f->in[i], &f->pool, on_wake), 0);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < N; i++)
        rpc_in_fini(&f->in[i]);
    assert_int_equal(f->pool.share.used, 0);
    assert_true(list_empty(&f->pool.waiting));
    share_tenant_fini(&f->pool.tenant);
    free(f);
    return 0;
}

/* A header is here and says how much is to come. */
static int announce(struct rpc_in *in) {
    in->len += WIRE_HDR_BYTES;
    return rpc_in_reserve(in, MSG_BYTES);
}

static void test_a_small_message_takes_nothing_of_the_pool(void **state) {
    struct fixture *f = *state;
    f->in[0].len = 100;
    f->in[0].bytes[99] = 7;
    assert_int_equal(rpc_in_reserve(&f->in[0], 8000), 0);
    assert_int_equal(f->pool.share.used, 0);
    f->in[0].off = 90; /* consumed: room is made by moving the rest */
    assert_int_equal(rpc_in_reserve(&f->in[0], RPC_IN_BYTES - 10), 0);
    assert_int_equal(f->in[0].bytes[9], 7);
    assert_int_equal(f->pool.share.used, 0);
}

static void test_what_all_hold_stays_within_the_pool(void **state) {
    struct fixture *f = *state;
    int n_granted = 0;
    for (int i = 0; i < N; i++)
        n_granted += announce(&f->in[i]) == 0;
    assert_in_range(n_granted, 2, 4);
    assert_true(f->pool.share.used <= TOTAL);
    for (int i = 0; i < N; i++)
        assert_int_equal(f->in[i].is_blocked, f->in[i].bytes == f->in[i].small);
}

static void test_who_waits_longest_is_next(void **state) {
    struct fixture *f = *state;
    int n_granted = 0;
    for (int i = 0; i < N; i++)
        n_granted += announce(&f->in[i]) == 0;
    for (int done = 0, next = n_granted; next < N; done++) {
        f->in[done].off = f->in[done].len; /* its message is through */
        rpc_in_settle(&f->in[done]);
        assert_ptr_equal(f->in[done].bytes, f->in[done].small);
        for (int k = 0; k < f->n_woken; k++) {
            int i = f->order[k];
            if (rpc_in_reserve(&f->in[i], MSG_BYTES) == 0)
                assert_int_equal(i, next++);
        }
        f->n_woken = 0;
        assert_true(f->pool.share.used <= TOTAL);
    }
}

/* One peer that opens everything it can leaves the eighth that is kept: a newcomer is served at once. */
static void test_a_newcomer_finds_room(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < N - 1; i++)
        (void)announce(&f->in[i]);
    f->in[N - 1].len = WIRE_HDR_BYTES;
    f->in[0].off = f->in[0].len;
    rpc_in_settle(&f->in[0]);
    uint64_t free_bytes = share_free(&f->pool.share);
    assert_true(free_bytes >= MSG_BYTES);
}

static void test_a_buffer_may_go_while_it_waits(void **state) {
    struct fixture *f = *state;
    int i = 0;
    while (announce(&f->in[i]) == 0)
        i++;
    rpc_in_fini(&f->in[i]);
    assert_int_equal(rpc_in_init(&f->in[i], &f->pool, on_wake), 0);
    f->in[0].off = f->in[0].len;
    rpc_in_settle(&f->in[0]);
    assert_int_equal(f->n_woken, 0);
}

/* What follows a long message in the buffer comes along into the small one. */
static void test_the_rest_survives_the_way_back(void **state) {
    struct fixture *f = *state;
    struct rpc_in *in = &f->in[0];
    assert_int_equal(announce(in), 0);
    in->len += MSG_BYTES;
    in->off = in->len - 3;
    memcpy(in->bytes + in->off, "abc", 3);
    rpc_in_settle(in);
    assert_ptr_equal(in->bytes, in->small);
    assert_int_equal(in->len - in->off, 3);
    assert_memory_equal(in->bytes + in->off, "abc", 3);
    assert_int_equal(f->pool.share.used, 0);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(test_a_small_message_takes_nothing_of_the_pool),
        T(test_what_all_hold_stays_within_the_pool),
        T(test_who_waits_longest_is_next),
        T(test_a_newcomer_finds_room),
        T(test_a_buffer_may_go_while_it_waits),
        T(test_the_rest_survives_the_way_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
