/* E8, E9, H: what operators see of a node. Each row of its metrics is brought about here by what its help
 * says, and read where Prometheus reads it: a row without a scenario fails. Log lines of what is refused. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "cachesvc/svc.h"
#include "common/check.h"
#include "tests/integration/raw_client.h"
#include "tests/support/fake_clock.h"
#include "tests/support/resp_server.h"

#define LONG 200u

static bool seen[64]; /* by row of the table; all tests of this program together */

struct world {
    struct node_fixture f;
    struct fake_clock clk;
    struct resp_server redis;
    char log_path[300];
    int log_fd;
};

static struct cachesvc *svc(struct world *w) {
    return w->f.node;
}

static int setup(void **state) {
    struct world *w = calloc(1, sizeof(*w));

    node_fixture_init(&w->f);
    tmpdir_write(&w->f.dir, "log", "", 0);
    tmpdir_join(&w->f.dir, "log", w->log_path, sizeof(w->log_path));
    FILE *file = fopen(w->log_path, "ae");
    CHECK(file);
    w->log_fd = dup(fileno(file));
    fclose(file);
    struct log_cfg lc = {.prog = "node", .fd = w->log_fd, .sync = true};
    CHECK(log_new(&w->f.log, &lc) == 0);

    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    struct log *log = w->f.log;
    node_fixture_fini(&w->f);
    log_free(log);
    close(w->log_fd);
    free(w);
    return 0;
}

/* The line of the log with all of these words in it. */
static void assert_logged(struct world *w, const char *a, const char *b, const char *c) {
    static char text[1u << 16];
    FILE *f = fopen(w->log_path, "re");
    assert_non_null(f);
    bool found = false;
    while (!found && fgets(text, sizeof(text), f))
        found = strstr(text, a) && strstr(text, b) && strstr(text, c);
    fclose(f);
    if (!found)
        fail_msg("no log line with '%s', '%s' and '%s'", a, b, c);
}

/* The value on /metrics; its row is seen. Of a histogram: the count, where what was observed has a sum. */
static double metric(struct world *w, const char *field) {
    static char text[1u << 18];
    const struct metric_table *t = cachesvc_metrics_table();
    char name[128];
    size_t row = 0;
    while (row < t->n_rows && strcmp(t->rows[row].field, field) != 0)
        row++;
    assert_true(row < t->n_rows);
    seen[row] = true;
    const char *suffix = t->rows[row].type == METRIC_HISTO ? "_count" : "";
    snprintf(name, sizeof(name), "\n%s%s%s ", t->prefix, field, suffix);
    node_http_get(&w->f, "/metrics", text, sizeof(text));
    const char *at = strstr(text, name);
    if (!at)
        fail_msg("no%sin /metrics", name);
    return strtod(at + strlen(name), NULL);
}
#define SEE(w, field, want) assert_true(metric(w, #field) == (double)(want))

static void start(struct world *w, const char *token) {
    node_fixture_start(&w->f);
    node_fixture_connect(&w->f, MSG_ROLE_WORKER, token);
}

/* ---- metrics ---- */

static void test_a_workers_day(void **state) {
    struct world *w = *state;
    int st[8];
    start(w, NULL);
    SEE(w, sessions, 1);
    SEE(w, connections, 3); /* control and two of data */
    SEE(w, index_state, 0);
    assert_int_equal(node_put(&w->f, 1, 0, 8, -1, st), 0);
    SEE(w, put_block_total, 8);
    SEE(w, put_bytes_total, 8 * NODE_PAYLOAD);
    SEE(w, lookup_seconds, 0);
    assert_int_equal(node_lookup(&w->f, 1, 8, 0), 8);
    SEE(w, lookup_seconds, 1);
    SEE(w, fetch_seconds, 0);
    assert_int_equal(node_fetch(&w->f, 1, 0, 8, st), 0);
    assert_true(metric(w, "fetch_seconds") >= 1);
    SEE(w, fetch_block_total, 8);
    SEE(w, fetch_bytes_total, 8 * NODE_PAYLOAD);
    double before = metric(w, "rpc_total");
    assert_int_equal(node_lookup(&w->f, 1, 8, 0), 8);
    SEE(w, rpc_total, before + 1);
    node_fixture_disconnect(&w->f);
    for (int i = 0; i < 2000 && slabpool_in_use(&svc(w)->sessions.pool); i++)
        test_loop_turn(&w->f.tl);
    SEE(w, sessions, 0);
}

static void test_what_is_refused(void **state) {
    struct world *w = *state;
    struct raw r;
    node_fixture_tokens(&w->f);
    w->f.cfg.max_sessions = 1;
    w->f.cfg.max_data_conns = 1;
    node_fixture_start(&w->f);
    SEE(w, hello_denied_total, 0);
    raw_open(&r, &w->f, 0);
    assert_int_equal(raw_hello(&r, MSG_ROLE_WORKER, "no-such-token-here", NULL), ERR_DENIED);
    raw_close(&r);
    SEE(w, hello_denied_total, 1);
    assert_logged(w, "a Hello was refused", "peer=127.0.0.1", "role=1");

    SEE(w, rpc_error_total, 0);
    raw_open(&r, &w->f, 0);
    assert_int_equal(raw_hello(&r, MSG_ROLE_WORKER, NODE_TOKEN, NULL), 0);
    static const char trace[] = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
    struct msg_lookup_req q = {.ns = 77, .traceparent = trace};
    assert_true(raw_answer(&r, RAW_SEND(&r, lookup_req, WIRE_LOOKUP, &q)));
    assert_int_equal(raw_error(&r), ERR_INVALID);
    SEE(w, rpc_error_total, 1);
    assert_logged(w, "a request was refused", "method=Lookup session=", trace);
    assert_logged(w, "a request was refused", "err=ERR_INVALID", "77");

    SEE(w, connections_refused_total, 0);
    SEE(w, connections_gave_way_total, 0);
    struct raw more[3], joined;
    for (int i = 0; i < 3; i++)
        raw_open(&more[i], &w->f, 0); /* two are allowed in all */
    assert_false(raw_read(&more[0]));
    assert_false(raw_read(&more[1]));
    SEE(w, connections_gave_way_total, 2);
    SEE(w, rpc_protocol_error_total, 0);
    assert_int_equal(send(more[2].fd, "GET / HTTP/1.1\r\nHost: node\r\n\r\n\r\n", 32, MSG_NOSIGNAL),
                     32);
    (void)raw_read(&more[2]);
    SEE(w, rpc_protocol_error_total, 1);
    for (int i = 0; i < 3; i++)
        raw_close(&more[i]);
    raw_open(&joined, &w->f, 0); /* nobody is left who could give way */
    assert_int_equal(raw_hello(&joined, MSG_ROLE_WORKER, NULL, &r), 0);
    raw_open(&more[0], &w->f, 0);
    assert_false(raw_read(&more[0]));
    SEE(w, connections_refused_total, 1);
    raw_close(&more[0]);
    raw_close(&joined);
    raw_close(&r);
}

/* A8, A11: half a message, and a client that says nothing. */
static void test_what_is_left_open_ends(void **state) {
    struct world *w = *state;
    struct raw r;
    w->f.cfg.frame_timeout_ms = 100;
    w->f.cfg.session_silence_ms = 2500; /* not before the frame is late */
    node_fixture_start(&w->f);
    raw_open(&r, &w->f, 0);
    assert_int_equal(raw_hello(&r, MSG_ROLE_WORKER, NULL, NULL), 0);
    SEE(w, received_bytes, 0);
    SEE(w, connections_late_total, 0);
    SEE(w, sessions_silent_total, 0);
    struct wire_hdr h = {
        .version = WIRE_VERSION, .method = WIRE_LOOKUP, .request_id = 2, .msg_len = 1u << 20};
    static uint8_t msg[1u << 20];
    uint8_t head[WIRE_HDR_BYTES];
    wire_hdr_encode(&h, msg, head);
    assert_int_equal(send(r.fd, head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
    assert_int_equal(send(r.fd, msg, 20000, MSG_NOSIGNAL), 20000);
    while (metric(w, "received_bytes") < (double)(1u << 20) &&
           metric(w, "connections_late_total") == 0)
        raw_turn(&r);
    assert_false(raw_read(&r));
    SEE(w, connections_late_total, 1);
    SEE(w, received_bytes, 0);
    raw_close(&r);

    raw_open(&r, &w->f, 0);
    assert_int_equal(raw_hello(&r, MSG_ROLE_WORKER, NULL, NULL), 0);
    assert_false(raw_read(&r));
    SEE(w, sessions_silent_total, 1);
    assert_logged(w, "session silent, ended", "client=raw", "peer=127.0.0.1");
    raw_close(&r);
}

static void test_conflicts_are_logged(void **state) {
    struct world *w = *state;
    int st[2];
    start(w, NULL);
    assert_int_equal(node_put(&w->f, 4, 0, 2, -1, st), 0);
    assert_int_equal(node_put(&w->f, 4, 0, 2, 1, st), 0);
    assert_int_equal(st[1], ERR_CONFLICT);
    struct block_id ids[2];
    char hex[2 * BLOCK_ID_BYTES + 1];
    node_chain(4, ids, 2);
    digest_hex(ids[1].b, BLOCK_ID_BYTES, hex);
    assert_logged(w, "offered with other bytes", "client=test", hex);
}

static void test_one_line_a_request(void **state) {
    struct world *w = *state;
    int st[2];
    w->f.cfg.access_log = true;
    start(w, NULL);
    assert_int_equal(node_put(&w->f, 4, 0, 2, -1, st), 0);
    assert_int_equal(node_fetch(&w->f, 4, 0, 2, st), 0);
    assert_logged(w, "event=request ", "method=PutBegin session=1", "peer=");
    assert_logged(w, "event=request ", "method=Fetch session=1", "request=");
    assert_logged(w, "event=\"fetch ended\"", "blocks=", "us=");
}

static bool is_dropped(void *arg) {
    struct world *w = arg;
    fake_clock_advance_ms(&w->clk, 250);
    return svc(w)->met.slow_reader_dropped_total > 0;
}

static void test_a_reader_that_does_not_read(void **state) {
    struct world *w = *state;
    struct raw_peer p;
    struct block_id id, ids[LONG];
    int st[1];
    fake_clock_init(&w->clk);
    w->f.clk = &w->clk.clk;
    w->f.cfg.max_fetches = 1;
    w->f.cfg.max_waiting = 1;
    start(w, NULL);
    assert_int_equal(node_put(&w->f, 1, 0, 1, -1, st), 0);
    raw_peer_open(&p, &w->f, 4096);
    node_chain(1, &id, 1);
    for (uint32_t i = 0; i < LONG; i++)
        ids[i] = id;
    struct msg_fetch_req q = {.ns = p.handle, .ids = ids, .n_ids = LONG};
    for (int i = 0; i < 3; i++)
        (void)RAW_SEND(&p.data, fetch_req, WIRE_FETCH, &q);
    for (int i = 0; i < 2000 && svc(w)->met.fetch_busy_total == 0; i++)
        test_loop_turn(&w->f.tl);
    SEE(w, fetch_streams, 1);
    SEE(w, fetch_waiting, 1);
    SEE(w, fetch_busy_total, 1);
    assert_true(metric(w, "queued_bytes") >= NODE_PAYLOAD);
    SEE(w, slow_reader_dropped_total, 0);
    assert_true(test_loop_until_fn(&w->f.tl, is_dropped, w));
    SEE(w, slow_reader_dropped_total, 1);
    assert_logged(w, "a reader was dropped", "client=raw", "taken_bytes=");
    raw_peer_close(&p);
}

static struct index_stats index_stats(struct world *w) {
    struct index_stats st;
    svc(w)->index->ops->stats(svc(w)->index, &st);
    return st;
}
static bool is_connected(void *arg) {
    return index_stats(arg).state == INDEX_REDIS_UP;
}
static bool is_published(void *arg) {
    return index_stats(arg).published >= 1;
}
static bool is_withdrawn(void *arg) {
    return index_stats(arg).withdrawn >= 1;
}
static bool has_failed(void *arg) {
    return index_stats(arg).errors >= 1;
}
static bool is_lost(void *arg) {
    return index_stats(arg).state == INDEX_REDIS_DOWN;
}
static void on_flushed(void *arg, int rv, const char *text, const struct msg_evict_res *res) {
    (void)text;
    (void)res;
    assert_int_equal(rv, 0);
    *(bool *)arg = true;
}

static void test_the_index(void **state) {
    struct world *w = *state;
    char addr[64];
    struct kv_call *k;
    int st[1];
    bool done = false;
    resp_server_open(&w->redis, &w->f.tl.loop);
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", w->redis.port);
    node_fixture_set(&w->f, "redis", addr);
    w->f.cfg.redis_backlog = 64;
    node_fixture_start(&w->f);
    node_fixture_connect(&w->f, MSG_ROLE_ADMIN, NULL);
    assert_true(test_loop_until_fn(&w->f.tl, is_connected, w));
    SEE(w, index_state, 1);
    SEE(w, index_reconnect_total, 1);
    assert_int_equal(node_put(&w->f, 1, 0, 1, -1, st), 0);
    assert_true(test_loop_until_fn(&w->f.tl, is_published, w));
    SEE(w, index_published_total, 1);
    SEE(w, index_withdrawn_total, 0);
    assert_int_equal(
        kv_client_flush(w->f.client, 0, &(struct msg_flush_req){0}, 5000, on_flushed, &done, &k),
        0);
    assert_true(test_loop_until(&w->f.tl, &done));
    assert_true(test_loop_until_fn(&w->f.tl, is_withdrawn, w));
    SEE(w, index_withdrawn_total, 1);
    SEE(w, index_error_total, 0);
    w->redis.error = "ERR no";
    assert_int_equal(node_put(&w->f, 2, 0, 1, -1, st), 0);
    assert_true(test_loop_until_fn(&w->f.tl, has_failed, w));
    assert_true(metric(w, "index_error_total") >= 1);
    SEE(w, index_dropped_total, 0);
    resp_server_close(&w->redis);
    assert_true(test_loop_until_fn(&w->f.tl, is_lost, w));
    SEE(w, index_state, 2);
    for (uint32_t tag = 10; tag < 80; tag++)
        assert_int_equal(node_put(&w->f, tag, 0, 1, -1, st), 0);
    SEE(w, index_backlog, 64);
    assert_true(metric(w, "index_dropped_total") >= 1);
}

/* After the others. */
static void test_every_row_was_seen(void **state) {
    (void)state;
    const struct metric_table *t = cachesvc_metrics_table();
    assert_true(t->n_rows <= ARRAY_LEN(seen));
    for (size_t i = 0; i < t->n_rows; i++)
        if (!seen[i])
            fail_msg("no test sees %s%s", t->prefix, t->rows[i].field);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_a_workers_day),
        T(test_what_is_refused),
        T(test_what_is_left_open_ends),
        T(test_conflicts_are_logged),
        T(test_one_line_a_request),
        T(test_a_reader_that_does_not_read),
        T(test_the_index),
        cmocka_unit_test(test_every_row_was_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
