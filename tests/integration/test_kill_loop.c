/* test_kill_loop - kill -9 of a node with small tiers, again and again, in the middle of puts, Evicts,
 * Flushes and extents that change their slot size. After each start:
 *
 *   nothing that was answered as removed is back, unless it was put again
 *   what is listed is what was put, and its bytes are right or it is a miss
 *   what was clean on disk when a quiet node was killed is there, and whole
 *
 * argv[1]: incipit-cachesvc. Five loops; INCIPIT_TEST_LONG: 200. INCIPIT_TEST_SEED: another run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "common/checksum.h"
#include "common/digest.h"
#include "proto/kv_client.h"
#include "tests/support/tmpdir.h"

#define N_NS 4u
#define CHAINS 12u
#define DEPTH 8u
#define N_ALL (N_NS * CHAINS * DEPTH)
#define MAX_BYTES 400000u
#define DEADLINE_MS 20000u

static const uint32_t sizes[N_NS][2] = {
    {7936, 7936}, {32000, 32000}, {100032, 99968}, {200000, 200000}};
static const char *program; /* incipit-cachesvc, from main() */

struct blk {
    struct block_id id;
    uint64_t checksum, sums[2];
    uint64_t put, gone; /* events: last put that was taken; last removal that was answered */
    bool is_clean;      /* on disk, when the node was killed */
};
struct call {
    int n_done, rv;
    uint32_t n_ok;
    uint64_t n_evicted;
    int status[DEPTH];
    int n_open; /* calls that nobody waits for */
};
struct world {
    uv_loop_t loop;
    uv_timer_t timer;
    int n_ticks;
    struct tmpdir dir;
    pid_t pid;
    struct kv_client *worker, *admin;
    int n_up;
    bool is_closed;
    uint32_t ns[N_NS];
    uint8_t digest[N_NS][32];
    struct blk b[N_NS][CHAINS][DEPTH];
    struct block_id chain[N_NS][CHAINS][DEPTH];
    struct call c;
    uint64_t rnd, event;
    uint8_t *buf[DEPTH], *want;
    const uint8_t *payload[DEPTH]; /* of the put under way, until it ends */
    uint64_t checksum[DEPTH];
    const uint64_t *sums[DEPTH];
    /* what the last listing said */
    uint32_t n_listed, n_clean;
    bool has_more, mark_clean;
    uint8_t cursor[64];
    size_t cursor_n;
    uint64_t activity;
    /* of all loops */
    uint32_t n_checked, n_kept, n_removed, n_miss;
};

static uint32_t draw(struct world *w, uint32_t n) {
    w->rnd = w->rnd * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((w->rnd >> 33) % n);
}

static uint32_t bytes_of(uint32_t ns) {
    return sizes[ns][0] + sizes[ns][1];
}

static void fill(uint32_t ns, uint32_t c, uint32_t d, uint8_t *p) {
    uint64_t x = (uint64_t)ns << 32 | c << 16 | d;
    for (uint32_t i = 0; i < bytes_of(ns); i += 8) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        memcpy(p + i, &x, 8);
    }
}

/* ---- node and clients ---------------------------------------------------------------------- */

static void start_node(struct world *w) {
    char sock[300], disk[300], log[300];
    tmpdir_join(&w->dir, "node.sock", sock, sizeof(sock));
    tmpdir_join(&w->dir, "disk", disk, sizeof(disk));
    tmpdir_join(&w->dir, "log", log, sizeof(log));
    (void)mkdir(disk, 0700);
    w->pid = fork();
    assert_true(w->pid >= 0);
    if (w->pid > 0)
        return;
    int fd = open(log, O_CREAT | O_APPEND | O_WRONLY, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    execl(program, program, "--listen", "", "--http-listen", "", "--unix-listen", sock,
          "--ram-bytes", "48m", "--min-slot-bytes", "4k", "--disk-dir", disk, "--disk-bytes", "64m",
          "--log-level", "warn", (char *)NULL);
    _exit(127);
}

static void on_node(void *arg, uint32_t node, enum kv_node_state state, int err, const char *text) {
    struct world *w = arg;
    (void)node, (void)err, (void)text;
    w->n_up += state == KV_NODE_UP;
}

static void wait_for(struct world *w, const int *counter, int target) {
    uint64_t end = uv_hrtime() + 60000000000ull;
    while (*counter < target && uv_hrtime() < end)
        uv_run(&w->loop, UV_RUN_ONCE);
    assert_true(*counter >= target);
}

static struct kv_client *open_client(struct world *w, enum msg_role role) {
    char sock[300], addr[320];
    tmpdir_join(&w->dir, "node.sock", sock, sizeof(sock));
    snprintf(addr, sizeof(addr), "unix:%s", sock);
    const char *addrs[] = {addr};
    struct kv_client_cfg cfg = {.addrs = addrs,
                                .n_addrs = 1,
                                .role = role,
                                .n_data_conns = 1,
                                .backoff_min_ms = 5,
                                .backoff_max_ms = 50,
                                .name = "kill loop",
                                .on_node = on_node,
                                .on_node_arg = w};
    struct kv_client *c;
    struct errbuf eb = {{0}};
    if (kv_client_open(&c, &w->loop, &cfg, &eb) < 0)
        fail_msg("%s", eb.text);
    return c;
}

static void start(struct world *w) {
    start_node(w);
    w->n_up = 0;
    w->worker = open_client(w, MSG_ROLE_WORKER);
    w->admin = open_client(w, MSG_ROLE_ADMIN);
    for (uint32_t i = 0; i < N_NS; i++) {
        char text[64];
        int n = snprintf(text, sizeof(text), "block_tokens=4\nwho=kill%u\n", i);
        struct kv_namespace ns = {.descriptor = text,
                                  .descriptor_len = (size_t)n,
                                  .range_sizes = sizes[i],
                                  .n_ranges = 2,
                                  .n_full = 2};
        digest_sha256(text, (size_t)n, ns.digest);
        memcpy(w->digest[i], ns.digest, 32);
        assert_int_equal(kv_client_namespace(w->worker, &ns, &w->ns[i]), 0);
    }
    wait_for(w, &w->n_up, 2);
}

static void on_closed(void *arg) {
    ((struct world *)arg)->is_closed = true;
}

static void close_client(struct world *w, struct kv_client *c) {
    w->is_closed = false;
    kv_client_close(c, on_closed, w);
    while (!w->is_closed)
        uv_run(&w->loop, UV_RUN_ONCE);
}

static void stop(struct world *w) {
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
    close_client(w, w->worker);
    close_client(w, w->admin);
}

/* ---- calls --------------------------------------------------------------------------------- */

static void on_put(void *arg, int rv, const struct kv_put_res *res) {
    struct world *w = arg;
    w->c.rv = rv;
    for (uint32_t i = 0; i < DEPTH; i++)
        w->c.status[i] = res && res->status ? res->status[i] : ERR_CANCELED;
    w->c.n_done++;
}
static void on_put_blind(void *arg, int rv, const struct kv_put_res *res) {
    (void)rv, (void)res;
    ((struct world *)arg)->c.n_open--;
}
static void on_fetch(void *arg, int rv, const struct kv_fetch_res *res) {
    struct world *w = arg;
    w->c.rv = rv;
    w->c.n_ok = res ? res->n_ok : 0;
    w->c.n_done++;
}
static void on_evict(void *arg, int rv, const char *text, const struct msg_evict_res *m) {
    struct world *w = arg;
    (void)text;
    w->c.rv = rv;
    w->c.n_evicted = m ? m->blocks : 0;
    w->c.n_done++;
}
static void on_evict_blind(void *arg, int rv, const char *text, const struct msg_evict_res *m) {
    (void)rv, (void)text, (void)m;
    ((struct world *)arg)->c.n_open--;
}

static int put(struct world *w, uint32_t ns, uint32_t c, bool is_blind) {
    for (uint32_t d = 0; d < DEPTH; d++) {
        fill(ns, c, d, w->buf[d]);
        w->payload[d] = w->buf[d];
        w->checksum[d] = w->b[ns][c][d].checksum;
        w->sums[d] = w->b[ns][c][d].sums;
    }
    struct kv_put q = {.ns = w->ns[ns],
                       .chain = w->chain[ns][c],
                       .n = DEPTH,
                       .payload = w->payload,
                       .checksum = w->checksum,
                       .range_checksums = w->sums,
                       .urgent = true,
                       .deadline_ms = DEADLINE_MS};
    return kv_client_put(w->worker, &q, is_blind ? on_put_blind : on_put, w, NULL);
}

static void put_and_wait(struct world *w) {
    uint32_t ns = draw(w, N_NS), c = draw(w, CHAINS);
    int target = w->c.n_done + 1;
    assert_int_equal(put(w, ns, c, false), 0);
    wait_for(w, &w->c.n_done, target);
    w->event++;
    for (uint32_t d = 0; d < DEPTH; d++)
        if (w->c.status[d] == 0 || w->c.status[d] == ERR_EXISTS)
            w->b[ns][c][d].put = w->event;
}

/* 1: right, 0: a miss; wrong bytes fail the test. */
static int fetch_one(struct world *w, uint32_t ns, uint32_t c, uint32_t d) {
    memset(w->buf[0], 0, bytes_of(ns));
    struct kv_fetch q = {.ns = w->ns[ns],
                         .chain = w->chain[ns][c],
                         .first = d,
                         .n = 1,
                         .dst = w->buf,
                         .deadline_ms = DEADLINE_MS};
    int target = w->c.n_done + 1;
    assert_int_equal(kv_client_fetch(w->worker, &q, on_fetch, w, NULL), 0);
    wait_for(w, &w->c.n_done, target);
    if (w->c.n_ok == 0)
        return 0;
    fill(ns, c, d, w->want);
    assert_memory_equal(w->buf[0], w->want, bytes_of(ns));
    return 1;
}

/* A removal of one kind or another; with a wait it counts as answered. */
static void evict(struct world *w, bool is_blind) {
    uint32_t kind = draw(w, 10), ns = draw(w, N_NS), c = draw(w, CHAINS), d = draw(w, DEPTH);
    struct msg_evict_req m = {.n_ids = 1,
                              .ids = &w->chain[ns][c][d],
                              .descendants = draw(w, 2),
                              .digest = {w->digest[ns], 32}};
    struct msg_flush_req fl = {.digest = {w->digest[ns], kind == 9 ? 0 : 32}};
    bool is_flush = kind > 7;
    int target = w->c.n_done + 1;
    w->event++;
    int rv = is_flush ? kv_client_flush(w->admin, 0, &fl, DEADLINE_MS,
                                        is_blind ? on_evict_blind : on_evict, w, NULL)
                      : kv_client_evict(w->admin, 0, &m, DEADLINE_MS,
                                        is_blind ? on_evict_blind : on_evict, w, NULL);
    assert_int_equal(rv, 0);
    if (is_blind)
        return;
    wait_for(w, &w->c.n_done, target);
    assert_int_equal(w->c.rv, 0);
    w->n_removed += (uint32_t)w->c.n_evicted;
    for (uint32_t n = 0; n < N_NS; n++)
        for (uint32_t k = 0; k < CHAINS; k++)
            for (uint32_t i = 0; i < DEPTH; i++) {
                bool is_meant = is_flush ? kind == 9 || n == ns : n == ns && k == c && i == d;
                if (is_meant)
                    w->b[n][k][i].gone = w->event;
            }
}

/* ---- what is there ------------------------------------------------------------------------- */

static struct blk *find(struct world *w, const struct msg_block_info *m, uint32_t *ns, uint32_t *c,
                        uint32_t *d) {
    for (*ns = 0; *ns < N_NS; (*ns)++)
        if (memcmp(m->digest.p, w->digest[*ns], 32) == 0)
            break;
    for (*c = 0; *ns < N_NS && *c < CHAINS; (*c)++)
        for (*d = 0; *d < DEPTH; (*d)++)
            if (memcmp(m->id.p, w->chain[*ns][*c][*d].b, 32) == 0)
                return &w->b[*ns][*c][*d];
    return NULL;
}

static bool listed[N_NS][CHAINS][DEPTH]; /* by the last list_all(); test data */

static void on_list(void *arg, int rv, const char *text, const struct msg_list_res *m) {
    struct world *w = arg;
    (void)text;
    assert_int_equal(rv, 0);
    for (size_t i = 0; i < m->n_blocks; i++) {
        const struct msg_block_info *info = &m->blocks[i];
        uint32_t ns, c, d;
        struct blk *b = find(w, info, &ns, &c, &d);
        if (!b)
            fail_msg("a block is listed that nobody put");
        else if (b->put <= b->gone)
            fail_msg("block %u/%u/%u is back: put at %llu, removed at %llu", ns, c, d,
                     (unsigned long long)b->put, (unsigned long long)b->gone);
        assert_int_equal(info->depth, d);
        assert_true(info->checksum == b->checksum);
        assert_int_equal(info->payload_bytes, bytes_of(ns));
        listed[ns][c][d] = true;
        if (w->mark_clean)
            b->is_clean = info->disk == MSG_TIER_CLEAN;
        w->n_listed++;
    }
    w->has_more = m->cursor.n > 0;
    w->cursor_n = MIN(m->cursor.n, sizeof(w->cursor));
    if (w->has_more)
        memcpy(w->cursor, m->cursor.p, w->cursor_n);
    w->c.n_done++;
}

static void list_all(struct world *w, bool mark_clean) {
    memset(listed, 0, sizeof(listed));
    w->n_listed = 0;
    w->cursor_n = 0;
    w->mark_clean = mark_clean;
    do {
        struct msg_list_req m = {.what = MSG_LIST_BLOCKS, .cursor = {w->cursor, w->cursor_n}};
        int target = w->c.n_done + 1;
        assert_int_equal(kv_client_list(w->admin, 0, &m, DEADLINE_MS, on_list, w, NULL), 0);
        wait_for(w, &w->c.n_done, target);
    } while (w->has_more);
}

static void on_stats(void *arg, int rv, const char *text, const struct msg_stats_res *m) {
    struct world *w = arg;
    (void)text;
    assert_int_equal(rv, 0);
    w->activity = 0;
    for (size_t i = 0; i < m->n_counters; i++)
        if (strcmp(m->counters[i].name, "disk_written") == 0 ||
            strcmp(m->counters[i].name, "disk_sync") == 0 ||
            strcmp(m->counters[i].name, "evicted_disk") == 0)
            w->activity += (uint64_t)m->counters[i].value;
    w->c.n_done++;
}

static void on_timer(uv_timer_t *t) {
    ((struct world *)t->data)->n_ticks++;
}

/* Nothing was written for a while: then nothing leaves the disk either. */
static void wait_until_quiet(struct world *w) {
    int n_same = 0;
    uint64_t was = UINT64_MAX;
    uv_timer_start(&w->timer, on_timer, 60, 60);
    for (int i = 0; i < 200 && n_same < 4; i++) {
        struct msg_stats_req m = {0};
        int target = w->c.n_done + 1;
        assert_int_equal(kv_client_stats(w->admin, 0, &m, DEADLINE_MS, on_stats, w, NULL), 0);
        wait_for(w, &w->c.n_done, target);
        n_same = w->activity == was ? n_same + 1 : 0;
        was = w->activity;
        wait_for(w, &w->n_ticks, w->n_ticks + 1);
    }
    uv_timer_stop(&w->timer);
}

static void check_after_start(struct world *w) {
    list_all(w, false);
    for (uint32_t ns = 0; ns < N_NS; ns++)
        for (uint32_t c = 0; c < CHAINS; c++)
            for (uint32_t d = 0; d < DEPTH; d++) {
                struct blk *b = &w->b[ns][c][d];
                int is_right = listed[ns][c][d] ? fetch_one(w, ns, c, d) : 0;
                if (b->is_clean && !is_right)
                    fail_msg("block %u/%u/%u was clean on disk and is %s", ns, c, d,
                             listed[ns][c][d] ? "broken" : "lost");
                w->n_checked += listed[ns][c][d];
                w->n_kept += b->is_clean;
                w->n_miss += listed[ns][c][d] && !is_right;
                b->is_clean = false;
            }
}

/* ---- loops --------------------------------------------------------------------------------- */

static void work(struct world *w) {
    for (uint32_t n = 5 + draw(w, 25); n > 0; n--) {
        uint32_t what = draw(w, 20);
        if (what < 14)
            put_and_wait(w);
        else if (what < 17)
            evict(w, false);
        else
            (void)fetch_one(w, draw(w, N_NS), draw(w, CHAINS), draw(w, DEPTH));
    }
}

/* In the middle of things: puts and a removal of which nobody hears the end. */
static void begin_blind(struct world *w) {
    if (draw(w, 4) > 0) { /* one: its payloads lie in our buffers until it ends */
        uint32_t ns = draw(w, N_NS), c = draw(w, CHAINS);
        w->c.n_open++;
        assert_int_equal(put(w, ns, c, true), 0);
        w->event++;
        for (uint32_t d = 0; d < DEPTH; d++)
            w->b[ns][c][d].put = w->event;
    }
    if (draw(w, 3) == 0) {
        w->c.n_open++;
        evict(w, true);
    }
    for (uint32_t k = draw(w, 200); k > 0; k--)
        uv_run(&w->loop, UV_RUN_NOWAIT);
}

static void make_blocks(struct world *w) {
    for (uint32_t ns = 0; ns < N_NS; ns++)
        for (uint32_t c = 0; c < CHAINS; c++)
            for (uint32_t d = 0; d < DEPTH; d++) {
                struct blk *b = &w->b[ns][c][d];
                uint32_t key[3] = {ns, c, d};
                digest_sha256(key, sizeof(key), b->id.b);
                w->chain[ns][c][d] = b->id;
                fill(ns, c, d, w->want);
                b->checksum = checksum_block(w->want, sizes[ns], 2, b->id.b, b->sums);
            }
}

static void test_a_killed_node_keeps_its_word(void **state) {
    (void)state;
    static struct world w;
    const char *seed = getenv("INCIPIT_TEST_SEED");
    const char *is_long = getenv("INCIPIT_TEST_LONG");
    uint32_t n_loops = is_long && *is_long ? 200 : 5;
    w.rnd = seed ? strtoull(seed, NULL, 10) : 1;
    uv_loop_init(&w.loop);
    uv_timer_init(&w.loop, &w.timer);
    w.timer.data = &w;
    tmpdir_setup(&w.dir);
    for (uint32_t i = 0; i < DEPTH; i++)
        w.buf[i] = malloc(MAX_BYTES);
    w.want = malloc(MAX_BYTES);
    make_blocks(&w);
    for (uint32_t loop = 0; loop < n_loops; loop++) {
        start(&w);
        check_after_start(&w);
        work(&w);
        if (loop % 2 == 0) {
            wait_until_quiet(&w);
            list_all(&w, true);
        } else {
            begin_blind(&w);
        }
        stop(&w);
    }
    start(&w);
    check_after_start(&w);
    stop(&w);
    print_message(
        "%u loops: %u blocks removed, %u found after a start, %u of them misses, %u had to "
        "be there and were\n",
        n_loops, w.n_removed, w.n_checked, w.n_miss, w.n_kept);
    assert_true(w.n_removed > 0 && w.n_kept > 0);
    for (uint32_t i = 0; i < DEPTH; i++)
        free(w.buf[i]);
    free(w.want);
    uv_close((uv_handle_t *)&w.timer, NULL);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&w.loop), 0);
    tmpdir_teardown(&w.dir);
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    program = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_killed_node_keeps_its_word)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
