/* The Redis index against the stand-in: what it writes, and what it makes good after trouble. */
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "cachesvc/index/index.h"
#include "tests/support/resp_server.h"
#include "tests/support/test_loop.h"

#define NODE 513u /* 0x0201: the order of its bytes shows */

struct fx {
    struct test_loop tl;
    struct resp_server srv;
    struct index *ix;
    struct block_id ids[64]; /* what the store holds */
    uint32_t n_ids;
    uint32_t want_keys;
    bool closed;
};

static uint32_t scan(void *arg, uint64_t *cursor, struct block_id *ret, uint32_t max) {
    struct fx *f = arg;
    uint32_t n = 0;
    for (; *cursor < f->n_ids && n < max && n < 5; (*cursor)++)
        ret[n++] = f->ids[*cursor];
    if (*cursor >= f->n_ids)
        *cursor = 0;
    return n;
}

static void on_closed(void *arg) {
    ((struct fx *)arg)->closed = true;
}

static void setup(struct fx *f, uint32_t n_ids, uint32_t backlog) {
    memset(f, 0, sizeof(*f));
    test_loop_setup(&f->tl);
    resp_server_open(&f->srv, &f->tl.loop);
    for (uint32_t i = 0; i < ARRAY_LEN(f->ids); i++)
        memset(f->ids[i].b, (int)i + 1, sizeof(f->ids[i].b));
    f->n_ids = n_ids;
    char addr[64];
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", f->srv.port);
    struct index_redis_cfg cfg = {.loop = &f->tl.loop,
                                  .addr = addr,
                                  .node_id = NODE,
                                  .node_addr = "10.0.0.7:7070",
                                  .max_backlog = backlog,
                                  .node_ttl_s = 1,
                                  .scan = scan,
                                  .arg = f};
    assert_int_equal(index_redis_open(&f->ix, &cfg, NULL), 0);
}

static void teardown(struct fx *f) {
    f->ix->ops->close(f->ix, on_closed, f);
    assert_true(test_loop_until(&f->tl, &f->closed));
    resp_server_close(&f->srv);
    test_loop_teardown(&f->tl);
}

static const struct resp_key *block_key(const struct fx *f, uint32_t i) {
    char key[34] = "b:";
    memcpy(key + 2, f->ids[i].b, 32);
    return resp_server_find(&f->srv, key, sizeof(key));
}

static uint32_t n_block_keys(const struct fx *f) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < ARRAY_LEN(f->ids); i++) {
        const struct resp_key *k = block_key(f, i);
        n += k && k->ttl_s > 0;
    }
    return n;
}

static bool has_all(void *arg) {
    struct fx *f = arg;
    return n_block_keys(f) == f->want_keys;
}
static bool has_record(void *arg) {
    struct fx *f = arg;
    return resp_server_find(&f->srv, "incipit:node:513", 16) &&
           resp_server_find(&f->srv, "incipit:epoch:513", 17);
}

static void test_keys_fields_and_record_are_as_documented(void **state) {
    (void)state;
    struct fx f;
    setup(&f, 3, 0);
    f.want_keys = 3;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    assert_true(test_loop_until_fn(&f.tl, has_record, &f));
    const struct resp_key *k = block_key(&f, 0);
    uint32_t epoch = f.ix->ops->epoch(f.ix);
    assert_int_equal(k->value_len, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal((uint8_t)k->value[i], epoch >> (8 * i) & 0xff);
    assert_int_equal(k->ttl_s, 86400);
    k = resp_server_find(&f.srv, "incipit:node:513", 16);
    char json[257] = "", want[32];
    memcpy(json, k->value, k->value_len);
    snprintf(want, sizeof(want), "\"epoch\":%u", epoch);
    assert_non_null(strstr(json, want));
    assert_non_null(strstr(json, "10.0.0.7:7070"));
    teardown(&f);
    assert_null(resp_server_find(&f.srv, "incipit:node:513",
                                 16)); /* a node that stops takes its record along */
}

static void test_publish_and_withdraw_follow(void **state) {
    (void)state;
    struct fx f;
    setup(&f, 0, 0);
    assert_true(test_loop_until_fn(&f.tl, has_record, &f));
    for (uint32_t i = 0; i < 10; i++)
        f.ix->ops->publish(f.ix, &f.ids[i]);
    f.want_keys = 10;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    for (uint32_t i = 0; i < 4; i++)
        f.ix->ops->withdraw(f.ix, &f.ids[i]);
    f.want_keys = 6;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    teardown(&f);
}

static void test_a_flush_is_noticed_and_made_good(void **state) {
    (void)state;
    struct fx f;
    setup(&f, 12, 0);
    f.want_keys = 12;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    assert_true(test_loop_until_fn(&f.tl, has_record, &f));
    resp_server_flush(&f.srv);
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    assert_true(test_loop_until_fn(&f.tl, has_record, &f));
    teardown(&f);
}

static void test_a_lost_connection_is_made_good(void **state) {
    (void)state;
    struct fx f;
    setup(&f, 12, 0);
    f.want_keys = 12;
    f.srv.close_after = 9; /* in the middle of the first pass */
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    assert_true(f.srv.n_accepted >= 2);
    teardown(&f);
}

static void test_the_backlog_is_bounded_and_what_it_lost_comes_again(void **state) {
    (void)state;
    struct fx f;
    setup(&f, 0, 8);
    for (uint32_t i = 0; i < 40; i++) /* the loop has not turned yet: nothing can leave */
        f.ix->ops->publish(f.ix, &f.ids[i]);
    struct index_stats st;
    f.ix->ops->stats(f.ix, &st);
    assert_int_equal(st.backlog, 8);
    assert_int_equal(st.dropped, 32);
    f.n_ids = 40;
    f.want_keys = 40;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    teardown(&f);
}

static void test_a_later_stored_epoch_is_outbid(void **state) {
    (void)state;
    struct fx f;
    setup(&f, 0, 0);
    struct resp_key *k = &f.srv.keys[f.srv.n_keys++];
    *k = (struct resp_key){
        .key = "incipit:epoch:513", .key_len = 17, .value = "4000000000", .value_len = 10};
    assert_true(test_loop_until_fn(&f.tl, has_record, &f));
    assert_true(f.ix->ops->epoch(f.ix) == 4000000001u);
    teardown(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_fields_and_record_are_as_documented),
        cmocka_unit_test(test_publish_and_withdraw_follow),
        cmocka_unit_test(test_a_flush_is_noticed_and_made_good),
        cmocka_unit_test(test_a_lost_connection_is_made_good),
        cmocka_unit_test(test_the_backlog_is_bounded_and_what_it_lost_comes_again),
        cmocka_unit_test(test_a_later_stored_epoch_is_outbid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
