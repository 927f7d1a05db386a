/* The Redis index against the stand-in: what it writes, and what it makes good after trouble. */
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <unistd.h>

#include "cachesvc/index/index.h"
#include "common/log.h"
#include "tests/support/resp_server.h"
#include "tests/support/test_loop.h"

static struct log *f_log; /* of the next index; NULL: silent */

#define NODE 513u /* 0x0201: the order of its bytes shows */

struct fx {
    char addr[64]; /* the index borrows it */
    struct test_loop tl;
    struct resp_server srv;
    struct index *ix;
    struct index_seg segs[64]; /* what the store holds */
    uint32_t n_segs;
    uint32_t want_keys;
    bool closed, saw_up;
};

static uint32_t scan(void *arg, uint64_t *cursor, struct index_seg *ret, uint32_t max) {
    struct fx *f = arg;
    uint32_t n = 0;
    for (; *cursor < f->n_segs && n < max && n < 5; (*cursor)++)
        ret[n++] = f->segs[*cursor];
    if (*cursor >= f->n_segs)
        *cursor = 0;
    return n;
}

static void node_of(void *arg, struct index_node *ret) {
    (void)arg;
    *ret = (struct index_node){.capacity_bytes = 2000, .used_bytes = 500, .state = 1};
}

static void on_closed(void *arg) {
    ((struct fx *)arg)->closed = true;
}

static void setup(struct fx *f, uint32_t n_segs, uint32_t backlog) {
    memset(f, 0, sizeof(*f));
    test_loop_setup(&f->tl);
    resp_server_open(&f->srv, &f->tl.loop);
    for (uint32_t i = 0; i < ARRAY_LEN(f->segs); i++)
        memset(f->segs[i].b, (int)i + 1, sizeof(f->segs[i].b));
    f->n_segs = n_segs;
    snprintf(f->addr, sizeof(f->addr), "127.0.0.1:%u", f->srv.port);
    struct index_redis_cfg cfg = {.loop = &f->tl.loop,
                                  .addr = f->addr,
                                  .log = f_log,
                                  .node_id = NODE,
                                  .node_addr = "10.0.0.7:7070",
                                  .weight = 96,
                                  .store_id = {0xab},
                                  .node = node_of,
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

static const struct resp_key *seg_key(const struct fx *f, uint32_t i) {
    char key[18] = "s:";
    memcpy(key + 2, f->segs[i].b, 16);
    return resp_server_find(&f->srv, key, sizeof(key));
}

static uint32_t n_seg_keys(const struct fx *f) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < ARRAY_LEN(f->segs); i++) {
        const struct resp_key *k = seg_key(f, i);
        n += k && k->ttl_s > 0;
    }
    return n;
}

static bool has_all(void *arg) {
    struct fx *f = arg;
    return n_seg_keys(f) == f->want_keys;
}
static bool has_record(void *arg) {
    struct fx *f = arg;
    return resp_server_find(&f->srv, "incipit:node:513", 16) &&
           resp_server_find(&f->srv, "incipit:epoch:513", 17);
}

/* The key of a segment: committed bytes, computed by another program. */
static void test_segment_keys_are_golden(void **state) {
    (void)state;
    uint8_t digest[DIGEST_BYTES];
    struct block_id first;
    static const uint8_t want[INDEX_SEG_BYTES] = {0x69, 0x2a, 0xd7, 0xb1, 0x73, 0x4f, 0x46, 0x94,
                                                  0x91, 0xcd, 0x14, 0x12, 0x94, 0x70, 0x0a, 0x02};
    for (uint32_t i = 0; i < 32; i++) {
        digest[i] = (uint8_t)i;
        first.b[i] = (uint8_t)(0x80 + i);
    }
    struct index_seg seg = index_seg_of(digest, &first);
    assert_memory_equal(seg.b, want, sizeof(want));
    digest[0] ^= 1; /* another namespace, another key */
    seg = index_seg_of(digest, &first);
    assert_memory_not_equal(seg.b, want, sizeof(want));
}

/* Each byte that goes to Redis: a number's order or a field's name changes for all nodes at once, or not. */
static void test_bytes_on_the_wire_are_golden(void **state) {
    (void)state;
    struct fx f;
    char want[4096], pool[64] = "", key[19] = "s:\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1";
    setup(&f, 1, 0);
    f.want_keys = 1;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    uint32_t epoch = f.ix->ops->epoch(f.ix);
    const struct resp_key *k = resp_server_find(&f.srv, "incipit:pool", 12);
    memcpy(pool, k->value, k->value_len);
    assert_int_equal(strspn(pool, "0123456789abcdef"), 32);
    const char *time = strstr(f.srv.raw, "$4\r\ntime\r\n$13\r\n") + 15;
    int n = snprintf(want, sizeof(want),
                     "*4\r\n$3\r\nSET\r\n$12\r\nincipit:pool\r\n$32\r\n%s\r\n$2\r\nNX\r\n"
                     "*2\r\n$3\r\nGET\r\n$17\r\nincipit:epoch:513\r\n"
                     "*3\r\n$3\r\nSET\r\n$17\r\nincipit:epoch:513\r\n$10\r\n%u\r\n"
                     "*20\r\n$4\r\nHSET\r\n$16\r\nincipit:node:513\r\n"
                     "$4\r\naddr\r\n$13\r\n10.0.0.7:7070\r\n$5\r\nepoch\r\n$10\r\n%u\r\n"
                     "$5\r\nstore\r\n$32\r\nab000000000000000000000000000000\r\n"
                     "$4\r\ntime\r\n$13\r\n%.13s\r\n$6\r\nweight\r\n$2\r\n96\r\n"
                     "$8\r\ncapacity\r\n$4\r\n2000\r\n$4\r\nload\r\n$3\r\n250\r\n"
                     "$5\r\nstate\r\n$1\r\n1\r\n$3\r\nmac\r\n$0\r\n\r\n"
                     "*3\r\n$6\r\nEXPIRE\r\n$16\r\nincipit:node:513\r\n$1\r\n1\r\n"
                     "*4\r\n$4\r\nHSET\r\n$18\r\n%s\r\n$2\r\n\x01\x02\r\n$4\r\n",
                     pool, epoch, epoch, time, key);
    for (uint32_t i = 0; i < 4; i++)
        want[n++] = (char)(epoch >> (8 * i) & 0xff);
    n += snprintf(want + n, sizeof(want) - (size_t)n,
                  "\r\n*3\r\n$6\r\nEXPIRE\r\n$18\r\n%s\r\n$5\r\n86400\r\n", key);
    assert_true(f.srv.n_raw >= (size_t)n);
    assert_memory_equal(f.srv.raw, want, (size_t)n);
    f.srv.n_raw = 0;
    f.ix->ops->withdraw(f.ix, &f.segs[0]);
    f.want_keys = 0;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    n = snprintf(want, sizeof(want), "*3\r\n$4\r\nHDEL\r\n$18\r\n%s\r\n$2\r\n\x01\x02\r\n", key);
    assert_non_null(memmem(f.srv.raw, f.srv.n_raw, want, (size_t)n));
    teardown(&f);
    assert_null(
        resp_server_find(&f.srv, "incipit:node:513", 16)); /* a node that stops takes it along */
}

static void test_publish_and_withdraw_follow(void **state) {
    (void)state;
    struct fx f;
    setup(&f, 0, 0);
    assert_true(test_loop_until_fn(&f.tl, has_record, &f));
    for (uint32_t i = 0; i < 10; i++)
        f.ix->ops->publish(f.ix, &f.segs[i]);
    f.want_keys = 10;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    for (uint32_t i = 0; i < 4; i++)
        f.ix->ops->withdraw(f.ix, &f.segs[i]);
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
        f.ix->ops->publish(f.ix, &f.segs[i]);
    struct index_stats st;
    f.ix->ops->stats(f.ix, &st);
    assert_int_equal(st.backlog, 8);
    assert_int_equal(st.dropped, 32);
    f.n_segs = 40;
    f.want_keys = 40;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    teardown(&f);
}

static bool has_passed(void *arg) {
    struct fx *f = arg;
    struct index_stats st;
    f->ix->ops->stats(f->ix, &st);
    return st.republished >= f->n_segs && n_seg_keys(f) >= f->n_segs && st.state == INDEX_REDIS_UP;
}

/* The same while all is well: no join follows that would bring a pass by itself. */
static void test_what_a_full_backlog_lost_comes_without_a_reconnect(void **state) {
    (void)state;
    struct fx f;
    setup(&f, 1, 8);
    assert_true(test_loop_until_fn(&f.tl, has_passed, &f));
    for (uint32_t i = 1; i < 40; i++)
        f.ix->ops->publish(f.ix, &f.segs[i]);
    f.n_segs = f.want_keys = 40;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    assert_int_equal(f.srv.n_accepted, 1);
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

static struct index_stats stats(const struct fx *f) {
    struct index_stats st;
    f->ix->ops->stats(f->ix, &st);
    return st;
}
static bool is_up(void *arg) {
    return stats(arg).state == INDEX_REDIS_UP;
}
static bool is_down(void *arg) {
    return stats(arg).state == INDEX_REDIS_DOWN && stats(arg).errors > 0;
}
static bool is_accepted_again(void *arg) {
    struct fx *f = arg;
    f->saw_up |= is_up(f);
    return f->srv.n_accepted >= f->want_keys;
}

/* G3: behind one address a replica takes the primary's place, or the login loses its rights: the
 * connection was kept for ever, the gauge said connected, and nothing was written. */
static void test_a_server_that_refuses_is_left_and_the_gauge_says_so(void **state) {
    (void)state;
    static const char *const errors[] = {"READONLY You can't write against a read only replica.",
                                         "MASTERDOWN Link with MASTER is down",
                                         "LOADING dataset in memory", "NOPERM no permissions",
                                         "NOAUTH Authentication required."};
    for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
        struct fx f;
        setup(&f, 5, 0);
        f.want_keys = 5;
        assert_true(test_loop_until_fn(&f.tl, is_up, &f));
        assert_true(test_loop_until_fn(&f.tl, has_all, &f));
        f.srv.write_error = errors[i];
        f.ix->ops->publish(f.ix, &f.segs[10]);
        assert_true(test_loop_until_fn(&f.tl, is_down, &f));
        f.want_keys = 3; /* tried anew, again and again; being connected is not being up */
        assert_true(test_loop_until_fn(&f.tl, is_accepted_again, &f));
        assert_false(f.saw_up); /* at no time */
        f.srv.write_error = NULL;
        assert_true(test_loop_until_fn(&f.tl, is_up, &f));
        teardown(&f);
    }
}

/* Other errors would be met again by a new connection: this one waits, then everything is sent again. */
static void test_other_errors_hold_the_index_and_are_made_good(void **state) {
    (void)state;
    struct fx f;
    setup(&f, 5, 0);
    f.srv.write_error = "OOM command not allowed when used memory > 'maxmemory'.";
    assert_true(test_loop_until_fn(&f.tl, is_down, &f));
    f.srv.write_error = NULL;
    f.want_keys = 5;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    assert_true(is_up(&f));
    assert_int_equal(f.srv.n_accepted, 1);
    teardown(&f);
}

/* G3: said once: a server that refuses is met again at each attempt, for hours. */
static void test_refusals_are_logged_once(void **state) {
    (void)state;
    struct fx f;
    int fds[2];
    char text[8192];
    assert_int_equal(pipe(fds), 0);
    struct log_cfg lc = {.prog = "t", .fd = fds[1], .sync = true};
    assert_int_equal(log_new(&f_log, &lc), 0);
    setup(&f, 0, 0);
    f.srv.write_error = "READONLY replica";
    f.want_keys = 4;
    assert_true(test_loop_until_fn(&f.tl, is_accepted_again, &f));
    f.srv.write_error = NULL;
    assert_true(test_loop_until_fn(&f.tl, is_up, &f));
    teardown(&f);
    log_free(f_log);
    f_log = NULL;
    ssize_t n = read(fds[0], text, sizeof(text) - 1);
    text[MAX(n, 0)] = '\0';
    char *first = strstr(text, "READONLY");
    assert_non_null(first);
    assert_null(strstr(first + 1, "READONLY"));
    close(fds[0]);
    close(fds[1]);
}

static void set_value(struct fx *f, const char *key, const char *value) {
    for (uint32_t i = 0; i < f->srv.n_keys; i++) {
        struct resp_key *k = &f->srv.keys[i];
        if (k->key_len == strlen(key) && memcmp(k->key, key, k->key_len) == 0) {
            k->value_len = (uint32_t)strlen(value);
            memcpy(k->value, value, k->value_len);
        }
    }
}

/* G5: an old dump behind a connection that never broke: the record was there, so nothing was noticed and
 * nothing published again for 8 hours. */
static void test_an_old_dump_is_noticed_by_its_values(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        struct fx f;
        char old[64];
        setup(&f, 9, 0);
        f.want_keys = 9;
        assert_true(test_loop_until_fn(&f.tl, is_up, &f));
        assert_true(test_loop_until_fn(&f.tl, has_all, &f));
        uint32_t epoch = f.ix->ops->epoch(f.ix);
        resp_server_flush(&f.srv);
        struct resp_key *k = &f.srv.keys[f.srv.n_keys++];
        *k = (struct resp_key){.key = "incipit:epoch:513", .key_len = 17};
        k = &f.srv.keys[f.srv.n_keys++];
        *k = (struct resp_key){.key = "incipit:node:513", .key_len = 16};
        snprintf(old, sizeof(old), "%u",
                 which ? epoch : epoch - 100); /* the same start: only the time tells */
        set_value(&f, "incipit:epoch:513", old);
        snprintf(old, sizeof(old), "epoch=%u\ntime=1700000000000\n", which ? epoch : epoch - 100);
        set_value(&f, "incipit:node:513", old);
        assert_true(test_loop_until_fn(&f.tl, has_all, &f));
        assert_int_equal(f.srv.n_accepted, 1);
        teardown(&f);
    }
}

/* Two processes with one number bid each other up for ever; the older one keeps still instead. */
static void test_a_number_taken_by_another_is_left_to_it(void **state) {
    (void)state;
    struct fx f;
    setup(&f, 3, 0);
    f.want_keys = 3;
    assert_true(test_loop_until_fn(&f.tl, has_all, &f));
    uint32_t epoch = f.ix->ops->epoch(f.ix);
    set_value(&f, "incipit:epoch:513", "4100000000");
    assert_true(test_loop_until_fn(&f.tl, is_down, &f));
    assert_int_equal(f.ix->ops->epoch(f.ix), epoch);
    const struct resp_key *k = resp_server_find(&f.srv, "incipit:epoch:513", 17);
    assert_memory_equal(k->value, "4100000000", 10);
    teardown(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segment_keys_are_golden),
        cmocka_unit_test(test_bytes_on_the_wire_are_golden),
        cmocka_unit_test(test_publish_and_withdraw_follow),
        cmocka_unit_test(test_a_flush_is_noticed_and_made_good),
        cmocka_unit_test(test_a_lost_connection_is_made_good),
        cmocka_unit_test(test_the_backlog_is_bounded_and_what_it_lost_comes_again),
        cmocka_unit_test(test_what_a_full_backlog_lost_comes_without_a_reconnect),
        cmocka_unit_test(test_a_later_stored_epoch_is_outbid),
        cmocka_unit_test(test_a_server_that_refuses_is_left_and_the_gauge_says_so),
        cmocka_unit_test(test_other_errors_hold_the_index_and_are_made_good),
        cmocka_unit_test(test_refusals_are_logged_once),
        cmocka_unit_test(test_an_old_dump_is_noticed_by_its_values),
        cmocka_unit_test(test_a_number_taken_by_another_is_left_to_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
