/* The Redis index against the real redis-server: absent at start, killed, flushed, protected, too
 * slow a ring. Exit code 77 (skipped) where redis-server is not installed. */
#include "cachesvc/index/index.h"

#include <hiredis/hiredis.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/test_loop.h"
#include "tests/support/tmpdir.h"

#define N_HELD 200u

struct fixture {
    struct test_loop tl;
    struct tmpdir dir;
    char sock[300], addr[310];
    pid_t redis;
    struct index *ix;
    struct index_seg held[N_HELD];
    uint32_t n_held;
    bool closed;
    struct index_redis_cfg cfg;
};

static struct index_seg seg_of(uint32_t i) {
    struct index_seg seg = {{0}};
    memcpy(seg.b, &i, sizeof(i));
    seg.b[15] = '\r'; /* raw bytes, not text */
    seg.b[14] = '\n';
    return seg;
}

static uint32_t scan(void *arg, uint64_t *cursor, struct index_seg *ret, uint32_t max) {
    struct fixture *f = arg;
    uint32_t n = 0;
    for (; *cursor < f->n_held && n < MIN(max, 7u); n++)
        ret[n] = f->held[(*cursor)++];
    if (*cursor >= f->n_held)
        *cursor = 0;
    return n;
}

static void node_of(void *arg, struct index_node *ret) {
    (void)arg;
    *ret = (struct index_node){.capacity_bytes = 1000, .used_bytes = 10, .state = 1};
}

static void start_redis(struct fixture *f, const char *password) {
    f->redis = fork();
    assert_true(f->redis >= 0);
    if (f->redis == 0) {
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", f->sock, "--save", "",
               "--appendonly", "no", "--loglevel", "warning", "--logfile", "/dev/null", "--dir",
               f->dir.path, password ? "--requirepass" : (char *)NULL, password, (char *)NULL);
        _exit(127);
    }
}

static void stop_redis(struct fixture *f) {
    if (f->redis <= 0)
        return;
    kill(f->redis, SIGKILL);
    waitpid(f->redis, NULL, 0);
    f->redis = 0;
    unlink(f->sock);
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    test_loop_setup(&f->tl);
    tmpdir_setup(&f->dir);
    tmpdir_join(&f->dir, "redis.sock", f->sock, sizeof(f->sock));
    snprintf(f->addr, sizeof(f->addr), "unix:%s", f->sock);
    f->cfg = (struct index_redis_cfg){.loop = &f->tl.loop,
                                      .addr = f->addr,
                                      .node_id = 0x0207,
                                      .node_addr = "n7:7070",
                                      .node_ttl_s = 1,
                                      .node = node_of,
                                      .scan = scan,
                                      .arg = f};
    *state = f;
    return 0;
}

static void on_closed(void *arg) {
    *(bool *)arg = true;
}

static void close_index(struct fixture *f) {
    f->closed = false;
    f->ix->ops->close(f->ix, on_closed, &f->closed);
    assert_true(test_loop_until(&f->tl, &f->closed));
    f->ix = NULL;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    if (f->ix)
        close_index(f);
    stop_redis(f);
    test_loop_teardown(&f->tl);
    tmpdir_teardown(&f->dir);
    free(f);
    return 0;
}

static void open_index(struct fixture *f) {
    struct errbuf eb;
    if (index_redis_open(&f->ix, &f->cfg, &eb) < 0)
        fail_msg("%s", eb.text);
}

static struct index_stats stats(const struct fixture *f) {
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

/* A second, blocking client looks at what is really there. */
static redisContext *look(const struct fixture *f) {
    redisContext *c = redisConnectUnix(f->sock);
    if (c && c->err) {
        redisFree(c);
        return NULL;
    }
    return c;
}

/* Epoch of our node in the segment's entry; 0: none. */
static uint32_t entry_epoch(const struct fixture *f, const struct index_seg *seg) {
    redisContext *c = look(f);
    uint32_t epoch = 0;
    const char field[2] = {0x07, 0x02}; /* u16 LE */
    if (!c)
        return 0;
    redisReply *r = redisCommand(c, "HGET s:%b %b", seg->b, sizeof(seg->b), field, (size_t)2);
    if (r && r->type == REDIS_REPLY_STRING && r->len == 4)
        memcpy(&epoch, r->str, 4);
    if (r)
        freeReplyObject(r);
    redisFree(c);
    return epoch;
}

static bool all_held_are_there(void *arg) {
    struct fixture *f = arg;
    for (uint32_t i = 0; i < f->n_held; i++)
        if (entry_epoch(f, &f->held[i]) != f->ix->ops->epoch(f->ix))
            return false;
    return true;
}

static bool none_is_there(void *arg) {
    struct fixture *f = arg;
    for (uint32_t i = 0; i < f->n_held; i++)
        if (entry_epoch(f, &f->held[i]))
            return false;
    return true;
}

static char *get_text(const struct fixture *f, const char *cmd, char *ret, size_t cap) {
    redisContext *c = look(f);
    assert_non_null(c);
    redisReply *r = redisCommand(c, cmd);
    assert_non_null(r);
    if (r->type == REDIS_REPLY_INTEGER)
        snprintf(ret, cap, "%lld", r->integer);
    else
        snprintf(ret, cap, "%s", r->str ? r->str : "(nil)");
    freeReplyObject(r);
    redisFree(c);
    return ret;
}

static void publish_held(struct fixture *f, uint32_t n) {
    for (uint32_t i = f->n_held; i < n; i++) {
        f->held[i] = seg_of(i);
        f->ix->ops->publish(f->ix, &f->held[i]);
    }
    f->n_held = n;
}

static void test_absent_at_start_then_published(void **state) {
    struct fixture *f = *state;
    char text[300];
    open_index(f);
    publish_held(f, 20);
    assert_true(test_loop_until_fn(&f->tl, is_down, f));
    start_redis(f, NULL);
    assert_true(test_loop_until_fn(&f->tl, is_up, f));
    assert_true(test_loop_until_fn(&f->tl, all_held_are_there, f));
    assert_string_equal(get_text(f, "HGET incipit:node:519 addr", text, sizeof(text)), "n7:7070");
    assert_string_equal(get_text(f, "HGET incipit:node:519 capacity", text, sizeof(text)), "1000");
    assert_string_equal(get_text(f, "HGET incipit:node:519 load", text, sizeof(text)), "10");
    assert_int_equal(strlen(get_text(f, "GET incipit:pool", text, sizeof(text))), 32);
    get_text(f, "GET incipit:epoch:519", text, sizeof(text));
    assert_int_equal(strtoul(text, NULL, 10), f->ix->ops->epoch(f->ix));
    /* entries expire by themselves */
    redisContext *c = look(f);
    redisReply *r = redisCommand(c, "TTL s:%b", f->held[0].b, sizeof(f->held[0].b));
    assert_true(r && r->integer > 86000 && r->integer <= 86400);
    freeReplyObject(r);
    redisFree(c);
    for (uint32_t i = 0; i < f->n_held; i++)
        f->ix->ops->withdraw(f->ix, &f->held[i]);
    assert_true(test_loop_until_fn(&f->tl, none_is_there, f));
    f->n_held = 0;
    close_index(f);
    assert_string_equal(get_text(f, "HGET incipit:node:519 addr", text, sizeof(text)),
                        "(nil)"); /* leaves in peace */
}

static void test_killed_redis_gets_everything_again(void **state) {
    struct fixture *f = *state;
    start_redis(f, NULL);
    open_index(f);
    publish_held(f, N_HELD);
    assert_true(test_loop_until_fn(&f->tl, is_up, f));
    assert_true(test_loop_until_fn(&f->tl, all_held_are_there, f));
    stop_redis(f);
    assert_true(test_loop_until_fn(&f->tl, is_down, f));
    start_redis(f, NULL); /* empty */
    assert_true(test_loop_until_fn(&f->tl, is_up, f));
    assert_true(test_loop_until_fn(&f->tl, all_held_are_there, f));
    assert_true(stats(f).republished >= N_HELD);
}

static void test_flushed_redis_gets_everything_again(void **state) {
    struct fixture *f = *state;
    char text[64];
    start_redis(f, NULL);
    open_index(f);
    publish_held(f, 50);
    assert_true(test_loop_until_fn(&f->tl, all_held_are_there, f));
    get_text(f, "FLUSHALL", text, sizeof(text));
    assert_true(none_is_there(f));
    assert_true(test_loop_until_fn(&f->tl, all_held_are_there, f));
    assert_int_equal(stats(f).reconnects, 1); /* noticed without losing the connection */
}

static void test_epoch_is_above_the_stored_one(void **state) {
    struct fixture *f = *state;
    char text[64];
    start_redis(f, NULL);
    open_index(f);
    assert_true(test_loop_until_fn(&f->tl, is_up, f));
    uint32_t first = f->ix->ops->epoch(f->ix);
    close_index(f);
    get_text(f, "SET incipit:epoch:519 4000000000", text, sizeof(text));
    open_index(f);
    publish_held(f, 1);
    assert_true(test_loop_until_fn(&f->tl, is_up, f));
    while (entry_epoch(f, &f->held[0]) == 0)
        test_loop_turn(&f->tl);
    assert_true(first < 4000000000u);
    assert_int_equal(f->ix->ops->epoch(f->ix), 4000000001u);
    assert_int_equal(entry_epoch(f, &f->held[0]), 4000000001u);
}

static void test_full_ring_is_counted_and_made_good(void **state) {
    struct fixture *f = *state;
    f->cfg.max_backlog = 16;
    open_index(f);
    publish_held(f, 100); /* Redis is not there */
    assert_int_equal(stats(f).backlog, 16);
    assert_int_equal(stats(f).dropped, 84);
    start_redis(f, NULL);
    assert_true(test_loop_until_fn(&f->tl, is_up, f));
    assert_true(test_loop_until_fn(&f->tl, all_held_are_there, f));
}

static void on_beat(uv_timer_t *t) {
    ++*(uint32_t *)t->data;
}

/* A Redis that stands still costs nothing but its index: the loop turns on, and all is made good
 * later. */
static void test_stopped_redis_never_blocks_the_loop(void **state) {
    struct fixture *f = *state;
    uint32_t beats = 0;
    uv_timer_t beat;
    start_redis(f, NULL);
    open_index(f);
    assert_true(test_loop_until_fn(&f->tl, is_up, f));
    uv_timer_init(&f->tl.loop, &beat);
    beat.data = &beats;
    uv_timer_start(&beat, on_beat, 10, 10);
    kill(f->redis, SIGSTOP);
    uint64_t t0 = uv_hrtime();
    publish_held(f, N_HELD);
    assert_true(test_loop_until_fn(&f->tl, is_down, f));
    uint64_t ms = (uv_hrtime() - t0) / 1000000;
    assert_in_range(ms, 4000, 9000); /* the answer that did not come */
    assert_true(beats > ms / 10 / 2);
    uv_close((uv_handle_t *)&beat, NULL);
    kill(f->redis, SIGCONT);
    assert_true(test_loop_until_fn(&f->tl, is_up, f));
    assert_true(test_loop_until_fn(&f->tl, all_held_are_there, f));
}

static void test_password(void **state) {
    struct fixture *f = *state;
    start_redis(f, "sesame");
    f->cfg.password = "wrong";
    open_index(f);
    assert_true(test_loop_until_fn(&f->tl, is_down, f));
    close_index(f);
    f->cfg.password = "sesame";
    open_index(f);
    assert_true(test_loop_until_fn(&f->tl, is_up, f));
}

static void test_bad_address_is_refused(void **state) {
    struct fixture *f = *state;
    struct errbuf eb;
    static const char *const bad[] = {"nohost", "h:0", "h:70000", ":1", "unix:"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        f->cfg.addr = bad[i];
        assert_int_equal(index_redis_open(&f->ix, &f->cfg, &eb), ERR_INVALID);
        f->ix = NULL;
    }
}

int main(void) {
    signal(SIGPIPE, SIG_IGN); /* as svc_main() does */
    if (system("command -v redis-server >/dev/null") != 0)
        return 77;
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_absent_at_start_then_published),
        T(test_killed_redis_gets_everything_again),
        T(test_flushed_redis_gets_everything_again),
        T(test_epoch_is_above_the_stored_one),
        T(test_full_ring_is_counted_and_made_good),
        T(test_stopped_redis_never_blocks_the_loop),
        T(test_password),
        T(test_bad_address_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
