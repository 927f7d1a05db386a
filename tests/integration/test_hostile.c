/* A: for every bound one session at its worst, while another works: the other is never told BUSY, loses
 * nothing that it uses, and the node's memory stays within what its options say.
 *
 *     test_hostile [ROUNDS]      of work beside each hostile session; more are printed with steadier times
 *
 * Printed, not asserted: how long the worker's calls took alone and beside each. */
#include <malloc.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "cachesvc/svc.h"
#include "common/check.h"
#include "common/process.h"
#include "tests/support/resident.h"
#include "tests/integration/raw_client.h"

#define CHAIN 8u
#define LONG 200u
#define MANY 1000u /* hostile connections */

static uint32_t rounds = 12;
static const uint8_t zeros[WIRE_MAX_MSG_BYTES]; /* the longest message */

struct world {
    struct node_fixture f;
    struct raw_peer h; /* the hostile one */
    uint32_t step, tag;
    uint64_t put_id;
    uint32_t n_busy, n_ops;
    uint64_t us[4096], cpu_us[4096]; /* cpu: what a machine that others use does not blur */
};

/* ---- the hostile one: what does not fit its socket stays away, in the middle of a frame if need be ---- */

static void spew(struct raw *r, uint16_t method, uint8_t flags, uint32_t payload_len,
                 size_t payload_sent) {
    static uint8_t frame[WIRE_HDR_BYTES + WIRE_MAX_MSG_BYTES + NODE_PAYLOAD];
    struct wire_hdr hd = {.version = WIRE_VERSION,
                          .flags = flags,
                          .method = method,
                          .request_id = r->next_id++,
                          .msg_len = (uint32_t)r->out->len,
                          .payload_len = payload_len};
    if (r->is_closed)
        return;
    wire_hdr_encode(&hd, r->out->data, frame);
    memcpy(frame + WIRE_HDR_BYTES, r->out->data, r->out->len);
    size_t n = WIRE_HDR_BYTES + r->out->len + payload_sent;
    r->is_closed = send(r->fd, frame, n, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)n;
}
#define SPEW(r, name, method, m)                                                                   \
    (raw_encode_begin(r), (void)wire_msg_##name##_encode(&(r)->scratch, (m), (r)->out),            \
     spew((r), (method), 0, 0, 0))

static void same_id(uint32_t tag, struct block_id *ret, uint32_t n) {
    node_chain(tag, ret, 1);
    for (uint32_t i = 1; i < n; i++)
        ret[i] = ret[0];
}

static void fetches(struct world *w) {
    struct block_id ids[LONG];
    same_id(1, ids, LONG);
    struct msg_fetch_req q = {.ns = w->h.handle, .ids = ids, .n_ids = LONG};
    for (uint32_t i = 0; i < 40; i++)
        SPEW(&w->h.data, fetch_req, WIRE_FETCH, &q);
}

static void slow_reads(struct world *w) {
    if (w->step == 0)
        fetches(w);
    (void)raw_read(&w->h.data);
}

static void long_fetches(struct world *w) {
    static struct block_id ids[4096];
    same_id(77, ids, 4096); /* none of it is there */
    struct msg_fetch_req q = {.ns = w->h.handle, .ids = ids, .n_ids = 4096};
    for (uint32_t i = 0; i < 4; i++)
        SPEW(&w->h.data, fetch_req, WIRE_FETCH, &q);
}

static void put_begins(struct world *w) {
    struct block_id ids[64], parents[64] = {{{0}}};
    uint32_t depths[64] = {0};
    uint64_t sums[64] = {0};
    for (uint32_t k = 0; k < 4; k++) {
        for (uint32_t i = 0; i < 64; i++) /* 64 beginnings of chains */
            ids[i] = (struct block_id){{0xbe, (uint8_t)k, (uint8_t)i, (uint8_t)w->step}};
        struct msg_put_begin_req q = {.ns = w->h.handle,
                                      .ids = ids,
                                      .n_ids = 64,
                                      .parents = parents,
                                      .n_parents = 64,
                                      .depths = depths,
                                      .n_depths = 64,
                                      .checksums = sums,
                                      .n_checksums = 64};
        SPEW(&w->h.control, put_begin_req, WIRE_PUT_BEGIN, &q);
    }
}

/* Payloads that are announced and never come whole. */
static void half_payload(struct world *w) {
    if (w->step == 0) {
        put_begins(w);
        struct msg_put_begin_res res;
        assert_true(raw_read(&w->h.control));
        assert_int_equal(raw_error(&w->h.control), 0);
        assert_int_equal(RAW_DECODE(&w->h.control, put_begin_res, &res), 0);
        struct msg_put_data d = {.put_id = res.put_id};
        raw_encode_begin(&w->h.data);
        (void)wire_msg_put_data_encode(&w->h.data.scratch, &d, w->h.data.out);
        spew(&w->h.data, WIRE_PUT_DATA, WIRE_F_ONEWAY, NODE_PAYLOAD, NODE_PAYLOAD / 2);
    }
    put_begins(w);
}

static void commits(struct world *w) {
    if (w->step == 0) {
        struct msg_put_begin_res res;
        put_begins(w);
        assert_true(raw_read(&w->h.control));
        assert_int_equal(raw_error(&w->h.control), 0);
        assert_int_equal(RAW_DECODE(&w->h.control, put_begin_res, &res), 0);
        w->put_id = res.put_id;
    }
    for (uint32_t i = 0; i < 64; i++) {
        struct msg_put_commit_req q = {.put_id = w->put_id, .indexes = &i, .n_indexes = 1};
        SPEW(&w->h.control, put_commit_req, WIRE_PUT_COMMIT, &q);
    }
}

/* Everything of the worker's under lease, by a session that then only lives on. */
static void leases(struct world *w) {
    struct block_id ids[CHAIN];
    for (uint32_t tag = 1; tag < 60; tag++) {
        node_chain(tag, ids, CHAIN);
        struct msg_lookup_req q = {.ns = w->h.handle, .ids = ids, .n_ids = CHAIN, .flags = 3};
        SPEW(&w->h.control, lookup_req, WIRE_LOOKUP, &q);
    }
    struct msg_heartbeat_req hb = {0};
    SPEW(&w->h.control, heartbeat_req, WIRE_HEARTBEAT, &hb);
}

static void touches(struct world *w) {
    static struct block_id ids[4096];
    struct block_id chain[CHAIN];
    node_chain(1, chain, CHAIN);
    for (uint32_t i = 0; i < 4096; i++)
        ids[i] = chain[CHAIN - 1];
    struct msg_touch_req q = {.ns = w->h.handle, .ids = ids, .n_ids = 4096};
    for (uint32_t i = 0; i < 4; i++)
        SPEW(&w->h.control, touch_req, WIRE_TOUCH, &q);
}

static void lookups(struct world *w) {
    static struct block_id ids[4096];
    same_id(9, ids, 4096);
    struct msg_lookup_req q = {.ns = w->h.handle, .ids = ids, .n_ids = 4096, .flags = 3};
    for (uint32_t i = 0; i < 8; i++)
        SPEW(&w->h.control, lookup_req, WIRE_LOOKUP, &q);
}

static void namespaces(struct world *w) {
    for (uint32_t i = 0; i < 100; i++) {
        char text[64];
        uint8_t digest[DIGEST_BYTES];
        uint32_t bytes = 4096 * (1 + i);
        size_t n = (size_t)snprintf(text, sizeof(text), "n=%u\ns=%u\n", i, w->step);
        digest_sha256(text, n, digest);
        struct msg_register_ns_req q = {.digest = {digest, DIGEST_BYTES},
                                        .descriptor = {(const uint8_t *)text, n},
                                        .range_sizes = &bytes,
                                        .n_range_sizes = 1,
                                        .n_full = 1,
                                        .seg_blocks = 8};
        SPEW(&w->h.control, register_ns_req, WIRE_REGISTER_NS, &q);
    }
}

static void half_message(struct world *w) {
    static uint8_t part[WIRE_HDR_BYTES + 512 * 1024];
    struct wire_hdr hd = {
        .version = WIRE_VERSION, .method = WIRE_LOOKUP, .msg_len = WIRE_MAX_MSG_BYTES};
    if (w->step)
        return;
    wire_hdr_encode(&hd, zeros, part);
    (void)!send(w->h.control.fd, part, sizeof(part), MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)!send(w->h.data.fd, part, sizeof(part), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void flushes(struct world *w) {
    static const uint8_t other[DIGEST_BYTES] = {1};
    struct msg_flush_req q = {.digest = {other, DIGEST_BYTES}};
    for (uint32_t i = 0; i < 40; i++)
        SPEW(&w->h.control, flush_req, WIRE_FLUSH, &q);
}

static void lists(struct world *w) {
    struct msg_list_req q = {.what = MSG_LIST_BLOCKS};
    for (uint32_t i = 0; i < 40; i++)
        SPEW(&w->h.control, list_req, WIRE_LIST, &q);
}

static const struct hostile {
    const char *name;
    void (*step)(struct world *w);
} cases[] = {
    {"fetches, never read", fetches},
    {"fetches, read slowly", slow_reads},
    {"fetches of 4,096 absent ids", long_fetches},
    {"puts without data", put_begins},
    {"puts with half a payload", half_payload},
    {"commits without payloads", commits},
    {"leases on everything, renewed", leases},
    {"touches of one deep block", touches},
    {"lookups, answers never read", lookups},
    {"new namespaces and sizes", namespaces},
    {"half a message", half_message},
    {"flushes, never read", flushes},
    {"lists, never read", lists},
};

/* ---- the one that works ---- */

static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

struct began {
    uint64_t wall_ns, cpu_ns;
};

static struct began begin(void) {
    return (struct began){uv_hrtime(), cpu_ns()};
}

static void took(struct world *w, struct began b) {
    uint32_t at = w->n_ops++ % ARRAY_LEN(w->us);
    w->us[at] = (uv_hrtime() - b.wall_ns) / 1000;
    w->cpu_us[at] = (cpu_ns() - b.cpu_ns) / 1000;
}

static void work(struct world *w) {
    int st[CHAIN];
    struct began t = begin();
    assert_int_equal(node_lookup(&w->f, 1, CHAIN, MSG_LOOKUP_F_LEASE | MSG_LOOKUP_F_TOUCH), CHAIN);
    took(w, t);
    t = begin();
    assert_int_equal(node_fetch(&w->f, 1, 0, CHAIN, st), 0);
    took(w, t);
    for (uint32_t i = 0; i < CHAIN; i++)
        w->n_busy += (uint32_t)(st[i] != 0); /* it is there: a miss would be as bad */
    t = begin();
    assert_int_equal(node_put_once(&w->f, ++w->tag, 0, 2, -1, st), 0);
    took(w, t);
    w->n_busy += (uint32_t)(st[0] != 0) + (uint32_t)(st[1] != 0);
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void print_times(struct world *w, const char *name) {
    uint32_t n = MIN(w->n_ops, (uint32_t)ARRAY_LEN(w->us));
    qsort(w->us, n, sizeof(w->us[0]), by_size);
    qsort(w->cpu_us, n, sizeof(w->cpu_us[0]), by_size);
    printf("%-32s %5u calls  BUSY %u  p50 %5llu us  p99 %6llu us, of CPU %5llu us\n", name,
           w->n_ops, w->n_busy, (unsigned long long)w->us[n / 2],
           (unsigned long long)w->us[n - 1 - n / 100],
           (unsigned long long)w->cpu_us[n - 1 - n / 100]);
    w->n_ops = 0;
}

static int setup(void **state) {
    struct world *w = calloc(1, sizeof(*w));
    int st[CHAIN];
    node_fixture_init(&w->f);
    w->f.cfg.max_commits = 64;
    node_fixture_start(&w->f);
    node_fixture_connect(&w->f, MSG_ROLE_ADMIN, NULL);
    for (uint32_t tag = 1; tag <= 32; tag++) /* the whole RAM tier is open and full */
        assert_int_equal(node_put(&w->f, tag, 0, CHAIN, -1, st), 0);
    assert_int_equal(node_put(&w->f, 1, 0, CHAIN, -1, st), 0);
    w->tag = 1000;
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    node_fixture_fini(&w->f);
    free(w);
    return 0;
}

static void test_one_at_its_worst_stops_nobody(void **state) {
    struct world *w = *state;
    for (uint32_t i = 0; i < rounds; i++)
        work(w);
    print_times(w, "alone");
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        raw_peer_open_as(&w->h, &w->f, MSG_ROLE_ADMIN, 4096);
        for (w->step = 0; w->step < rounds; w->step++) {
            cases[c].step(w);
            work(w);
        }
        print_times(w, cases[c].name);
        assert_int_equal(w->n_busy, 0);
        raw_peer_close(&w->h);
    }
}

/* ---- memory ---- */

static bool are_gone(void *arg) {
    struct rpc_server_stats st;
    rpc_server_stats(((struct world *)arg)->f.node->rpc, &st);
    return st.conns < MANY / 2;
}

/* As many as the node takes, each with a session and half of the longest message. */
static void test_a_thousand_connections_take_what_is_stated(void **state) {
    struct world *w = *state;
    static uint8_t part[WIRE_HDR_BYTES + WIRE_MAX_MSG_BYTES - 1];
    static int fds[MANY];
    struct wire_hdr hd = {
        .version = WIRE_VERSION, .method = WIRE_LOOKUP, .msg_len = WIRE_MAX_MSG_BYTES};
    struct rlimit rl;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &rl), 0);
    rl.rlim_cur = rl.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &rl);
    if (rl.rlim_cur < 3 * MANY) {
        printf("skipped: %llu descriptors are too few\n", (unsigned long long)rl.rlim_cur);
        skip();
    }
    wire_hdr_encode(&hd, zeros, part);
    uint64_t before = resident_bytes();
    for (uint32_t i = 0; i < MANY; i++) {
        struct raw r;
        raw_open(&r, &w->f, 0);
        if (i % 2) /* half of them say Hello first */
            (void)raw_hello(&r, MSG_ROLE_WORKER, NULL, NULL);
        fds[i] = dup(r.fd);
        raw_close(&r);
    }
    size_t sent = 0;
    for (int turn = 0; turn < 5; turn++) /* not to its end */
        for (uint32_t i = 0; i < MANY; i++) {
            ssize_t k = send(fds[i], part, sizeof(part) / 8, MSG_DONTWAIT | MSG_NOSIGNAL);
            sent += k > 0 ? (size_t)k : 0;
            if (i % 50 == 0)
                test_loop_turn(&w->f.tl);
        }
    work(w);
    assert_int_equal(w->n_busy, 0);
    uint64_t now = resident_bytes(), grown = now - MIN(before, now);
    uint64_t limit =
        w->f.cfg.max_received_bytes + MANY * 48ull * 1024; /* ARCHITECTURE.md, "Limits" */
    printf("%u connections sent %zu MiB: %llu MiB more, the limit is %llu MiB\n", MANY, sent >> 20,
           (unsigned long long)grown >> 20, (unsigned long long)limit >> 20);
    assert_true(grown <= limit);
    for (uint32_t i = 0; i < MANY; i++)
        close(fds[i]);
    assert_true(test_loop_until_fn(&w->f.tl, are_gone, w));
    now = resident_bytes(), grown = now - MIN(before, now);
    printf("when they are gone: %llu MiB more\n", (unsigned long long)grown >> 20);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what is freed */
    assert_true(grown <= MANY * 20ull * 1024);
#endif
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    process_memory();
    mallopt(M_PERTURB, 0); /* the test runner's setting would touch all that is allocated */
    if (argc > 1)
        rounds = (uint32_t)strtoul(argv[1], NULL, 10);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_one_at_its_worst_stops_nobody),
        T(test_a_thousand_connections_take_what_is_stated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
