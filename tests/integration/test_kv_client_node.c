/* test_kv_client_node - the client library against the real node: every data path, restarts and
 * kills, roles, and bytes that are no protocol. argv[1]: incipit-cachesvc. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "common/checksum.h"
#include "proto/kv_client.h"
#include "proto/rpc_sock.h"
#include "proto/wire_frame.h"
#include "tests/support/tmpdir.h"
#include "tools/incipitctl/ctl.h"

#define N_RANGES 4u
#define PAYLOAD_BYTES 120000u
#define N_BLOCKS 40u
#define MAX_NODES 2u
#define DEADLINE_MS 10000u
static const uint32_t range_sizes[N_RANGES] = {30016, 64, 59904, 30016};
#define WORKER_TOKEN "worker-token-0123456789"
#define ADMIN_TOKEN "admin-token-0123456789"

static const char ns_text[] = "block_tokens=4\nwho=test\n";

static const char *program; /* incipit-cachesvc, from main() */

struct node {
    pid_t pid;
    char sock[300], disk[300];
};

struct fixture {
    uv_loop_t loop;
    struct tmpdir dir;
    struct node node[MAX_NODES];
    uint32_t n_nodes;
    bool has_tokens;
    struct kv_client *client;
    bool is_closed;
    int n_up, n_down;
    char down_text[200];
    uint32_t ns;
    struct block_id chain[N_BLOCKS];
    uint8_t *src[N_BLOCKS], *dst[N_BLOCKS];
    uint64_t sums[N_BLOCKS][N_RANGES], checksum[N_BLOCKS];
    const uint64_t *sum_at[N_BLOCKS];
    int n_done, rv;
    uint32_t n_prefix, n_ok, n_miss, n_stored, n_present;
    struct kv_lease lease;
    uint64_t n_evicted;
};

/* ---- processes ---- */

static void start_node(struct fixture *f, uint32_t i) {
    struct node *n = &f->node[i];
    char name[32], log[300], id[8], tokens[300];
    snprintf(name, sizeof(name), "node%u.sock", i);
    tmpdir_join(&f->dir, name, n->sock, sizeof(n->sock));
    snprintf(name, sizeof(name), "disk%u", i);
    tmpdir_join(&f->dir, name, n->disk, sizeof(n->disk));
    tmpdir_join(&f->dir, "log", log, sizeof(log));
    tmpdir_join(&f->dir, "tokens", tokens, sizeof(tokens));
    snprintf(id, sizeof(id), "%u", i + 1);
    (void)mkdir(n->disk, 0700);
    n->pid = fork();
    assert_true(n->pid >= 0);
    if (n->pid > 0)
        return;
    int fd = open(log, O_CREAT | O_APPEND | O_WRONLY, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    execl(program, program, "--listen", "", "--http-listen", "", "--unix-listen", n->sock,
          "--node-id", id, "--ram-bytes", "64m", "--disk-dir", n->disk, "--disk-bytes", "128m",
          "--log-level", "warn", f->has_tokens ? "--token-file" : (char *)NULL, tokens,
          (char *)NULL);
    _exit(127);
}

static void kill_node(struct fixture *f, uint32_t i, int sig) {
    int status = 0;
    kill(f->node[i].pid, sig);
    waitpid(f->node[i].pid, &status, 0);
    /* An orderly stop is clean, under a sanitizer, too. */
    assert_true(sig != SIGTERM || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    f->node[i].pid = 0;
}

/* ---- client ---- */

static void on_node(void *arg, uint32_t node, enum kv_node_state state, int err, const char *text) {
    struct fixture *f = arg;
    (void)node, (void)err;
    f->n_up += state == KV_NODE_UP;
    f->n_down += state == KV_NODE_DOWN;
    if (state == KV_NODE_DOWN)
        snprintf(f->down_text, sizeof(f->down_text), "%s", text);
}

static void run_until(struct fixture *f, const int *counter, int target) {
    uint64_t end = uv_hrtime() + 20000000000ull;
    while (*counter < target && uv_hrtime() < end)
        uv_run(&f->loop, UV_RUN_ONCE);
    if (*counter < target)
        fail_msg("waited in vain; last: %s", f->down_text);
}

static void open_client(struct fixture *f, enum msg_role role, const char *token) {
    char text[MAX_NODES][320];
    const char *addrs[MAX_NODES];
    for (uint32_t i = 0; i < f->n_nodes; i++) {
        snprintf(text[i], sizeof(text[i]), "unix:%s", f->node[i].sock);
        addrs[i] = text[i];
    }
    struct kv_client_cfg cfg = {.addrs = addrs,
                                .n_addrs = f->n_nodes,
                                .role = role,
                                .token = token,
                                .token_len = token ? strlen(token) : 0,
                                .n_data_conns = 2,
                                .backoff_min_ms = 5,
                                .backoff_max_ms = 50,
                                .name = "roundtrip",
                                .on_node = on_node,
                                .on_node_arg = f};
    struct kv_namespace ns = {.descriptor = ns_text,
                              .descriptor_len = sizeof(ns_text) - 1,
                              .range_sizes = range_sizes,
                              .n_ranges = N_RANGES,
                              .n_full = N_RANGES};
    digest_sha256(ns_text, sizeof(ns_text) - 1, ns.digest);
    struct errbuf eb;
    assert_int_equal(kv_client_open(&f->client, &f->loop, &cfg, &eb), 0);
    assert_int_equal(kv_client_namespace(f->client, &ns, &f->ns), 0);
}

static void on_closed(void *arg) {
    ((struct fixture *)arg)->is_closed = true;
}

static void close_client(struct fixture *f) {
    if (!f->client)
        return;
    f->is_closed = false;
    kv_client_close(f->client, on_closed, f);
    while (!f->is_closed)
        uv_run(&f->loop, UV_RUN_ONCE);
    f->client = NULL;
}

static struct fixture *setup_nodes(uint32_t n, bool has_tokens) {
    struct fixture *f = calloc(1, sizeof(*f));
    uv_loop_init(&f->loop);
    tmpdir_setup(&f->dir);
    static const char tokens[] = "worker " WORKER_TOKEN "\nadmin " ADMIN_TOKEN "\n";
    tmpdir_write(&f->dir, "tokens", tokens, sizeof(tokens) - 1);
    f->n_nodes = n;
    f->has_tokens = has_tokens;
    for (uint32_t i = 0; i < n; i++)
        start_node(f, i);
    int32_t tok[N_BLOCKS];
    uint8_t ns[32] = {7};
    struct digest *d = digest_new();
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tok[i] = (int32_t)i;
    struct block_chain_cfg cfg = {.namespace_digest = ns, .block_tok = 1};
    block_chain(d, &cfg, tok, N_BLOCKS, f->chain);
    digest_free(d);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        f->src[i] = malloc(PAYLOAD_BYTES);
        f->dst[i] = calloc(1, PAYLOAD_BYTES);
        for (uint32_t k = 0; k < PAYLOAD_BYTES; k++)
            f->src[i][k] = (uint8_t)(i * 37 + k * 11 + (k >> 7));
        f->checksum[i] =
            checksum_block(f->src[i], range_sizes, N_RANGES, f->chain[i].b, f->sums[i]);
        f->sum_at[i] = f->sums[i];
    }
    return f;
}

static int setup(void **state) {
    struct fixture *f = *state = setup_nodes(1, false);
    open_client(f, MSG_ROLE_WORKER, NULL);
    run_until(f, &f->n_up, 1);
    return 0;
}

static int setup_two(void **state) {
    struct fixture *f = *state = setup_nodes(2, false);
    open_client(f, MSG_ROLE_WORKER, NULL);
    run_until(f, &f->n_up, 2);
    return 0;
}

static int setup_tokens(void **state) {
    *state = setup_nodes(1, true);
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    close_client(f);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    for (uint32_t i = 0; i < f->n_nodes; i++)
        if (f->node[i].pid)
            kill_node(f, i, SIGTERM);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        free(f->src[i]);
        free(f->dst[i]);
    }
    tmpdir_teardown(&f->dir);
    free(f);
    return 0;
}

/* ---- calls ---- */

static void on_put(void *arg, int rv, const struct kv_put_res *res) {
    struct fixture *f = arg;
    f->rv = rv;
    f->n_stored = res->n_stored;
    f->n_present = res->n_present;
    f->n_done++;
}

static void on_fetch(void *arg, int rv, const struct kv_fetch_res *res) {
    struct fixture *f = arg;
    f->rv = rv;
    f->n_ok = res->n_ok;
    f->n_miss = res->n_miss;
    f->n_done++;
}

static void on_lookup(void *arg, int rv, const struct kv_lookup_res *res) {
    struct fixture *f = arg;
    f->rv = rv;
    f->n_prefix = res ? res->n_prefix : 0;
    if (res)
        f->lease = *res->lease;
    f->n_done++;
}

static int start_put(struct fixture *f, uint32_t first, uint32_t n) {
    struct kv_put q = {.ns = f->ns,
                       .chain = f->chain,
                       .first = first,
                       .n = n,
                       .payload = (const uint8_t *const *)f->src + first,
                       .checksum = f->checksum + first,
                       .range_checksums = f->sum_at + first,
                       .deadline_ms = DEADLINE_MS};
    return kv_client_put(f->client, &q, on_put, f, NULL);
}

static int start_fetch(struct fixture *f, struct kv_call **ret) {
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        memset(f->dst[i], 0, PAYLOAD_BYTES);
    struct kv_fetch q = {
        .ns = f->ns, .chain = f->chain, .n = N_BLOCKS, .dst = f->dst, .deadline_ms = DEADLINE_MS};
    return kv_client_fetch(f->client, &q, on_fetch, f, ret);
}

static void done(struct fixture *f, int started) {
    int target = f->n_done + 1;
    assert_int_equal(started, 0);
    run_until(f, &f->n_done, target);
}

/* Memory opens in the background after a start: a put may be BUSY in part. */
static void put_all(struct fixture *f) {
    uint64_t end = uv_hrtime() + 15000000000ull;
    do {
        done(f, start_put(f, 0, N_BLOCKS));
        assert_int_equal(f->rv, 0);
    } while (f->n_stored + f->n_present < N_BLOCKS && uv_hrtime() < end);
    assert_int_equal(f->n_stored + f->n_present, N_BLOCKS);
}

static void lookup(struct fixture *f, uint32_t flags) {
    struct kv_lookup q = {
        .ns = f->ns, .chain = f->chain, .n = N_BLOCKS, .flags = flags, .deadline_ms = DEADLINE_MS};
    done(f, kv_client_lookup(f->client, &q, on_lookup, f, NULL));
}

static void expect_all_fetched(struct fixture *f) {
    done(f, start_fetch(f, NULL));
    assert_int_equal(f->rv, 0);
    assert_int_equal(f->n_ok, N_BLOCKS);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        assert_memory_equal(f->dst[i], f->src[i], PAYLOAD_BYTES);
}

static void on_evict(void *arg, int rv, const char *text, const struct msg_evict_res *m) {
    struct fixture *f = arg;
    (void)text;
    f->rv = rv;
    f->n_evicted = m ? m->blocks : 0;
    f->n_done++;
}

/* ---- tests ---- */

static void test_put_lookup_fetch_release(void **state) {
    struct fixture *f = *state;
    lookup(f, 0);
    assert_int_equal(f->n_prefix, 0);
    put_all(f);
    lookup(f, MSG_LOOKUP_F_TOUCH | MSG_LOOKUP_F_LEASE);
    assert_int_equal(f->n_prefix, N_BLOCKS);
    assert_int_equal(f->lease.n, 1);
    expect_all_fetched(f);
    kv_client_release(f->client, &f->lease, N_BLOCKS);
    done(f, start_put(f, 0, N_BLOCKS));
    assert_int_equal(f->n_present, N_BLOCKS);
}

/* Every run of ranges of a block: its bytes and no others, verified like a whole block's. */
static void test_fetch_of_runs_of_ranges(void **state) {
    struct fixture *f = *state;
    put_all(f);
    for (uint32_t first = 0, off = 0; first < N_RANGES; off += range_sizes[first++])
        for (uint32_t n = 0, bytes; first + n <= N_RANGES; n++) {
            bytes = 0;
            for (uint32_t i = first; i < (n ? first + n : N_RANGES); i++)
                bytes += range_sizes[i];
            memset(f->dst[0], 0, PAYLOAD_BYTES);
            memset(f->dst[1], 0, PAYLOAD_BYTES);
            struct kv_fetch q = {.ns = f->ns,
                                 .chain = f->chain,
                                 .n = 2,
                                 .dst = f->dst,
                                 .first_range = first,
                                 .n_ranges = n,
                                 .deadline_ms = DEADLINE_MS};
            done(f, kv_client_fetch(f->client, &q, on_fetch, f, NULL));
            assert_int_equal(f->rv, 0);
            assert_int_equal(f->n_ok, 2);
            for (uint32_t i = 0; i < 2; i++) {
                assert_memory_equal(f->dst[i], f->src[i] + off, bytes);
                for (uint32_t k = bytes; k < PAYLOAD_BYTES; k++)
                    assert_int_equal(f->dst[i][k], 0);
            }
        }
    struct kv_fetch q = {.ns = f->ns,
                         .chain = f->chain,
                         .n = 1,
                         .dst = f->dst,
                         .first_range = N_RANGES,
                         .deadline_ms = DEADLINE_MS};
    assert_int_equal(kv_client_fetch(f->client, &q, on_fetch, f, NULL), ERR_INVALID);
    q.first_range = 1;
    q.n_ranges = N_RANGES;
    assert_int_equal(kv_client_fetch(f->client, &q, on_fetch, f, NULL), ERR_INVALID);
}

static void test_killed_node_comes_back_with_its_disk(void **state) {
    struct fixture *f = *state;
    put_all(f);
    /* An orderly stop writes everything out; what comes back after kill -9 is what was on disk by
     * then. */
    kill_node(f, 0, SIGTERM);
    start_node(f, 0);
    run_until(f, &f->n_up, 2);
    lookup(f, 0);
    assert_int_equal(f->n_prefix, N_BLOCKS);
    kill_node(f, 0, SIGKILL);
    start_node(f, 0);
    run_until(f, &f->n_up, 3);
    lookup(f, 0);
    assert_int_equal(f->n_prefix, N_BLOCKS);
    uint64_t end = uv_hrtime() + 15000000000ull;
    do { /* RAM for disk reads opens in the background, too */
        done(f, start_fetch(f, NULL));
    } while (f->n_ok < N_BLOCKS && uv_hrtime() < end);
    expect_all_fetched(f);
}

static void test_kill_during_calls_ends_each_with_an_error(void **state) {
    struct fixture *f = *state;
    put_all(f);
    int target = f->n_done + 2;
    assert_int_equal(start_fetch(f, NULL), 0);
    assert_int_equal(start_put(f, 0, N_BLOCKS), 0);
    kill_node(f, 0, SIGKILL);
    run_until(f, &f->n_done, target);
    assert_true(f->rv <= 0);
    run_until(f, &f->n_down, 1);
    assert_int_equal(start_fetch(f, NULL), ERR_UNAVAILABLE);
    start_node(f, 0);
    run_until(f, &f->n_up, 2);
    put_all(f);
    expect_all_fetched(f);
}

static void test_canceled_fetch_leaves_the_session_whole(void **state) {
    struct fixture *f = *state;
    put_all(f);
    for (int i = 0; i < 20; i++) {
        struct kv_call *call;
        int target = f->n_done + 1;
        assert_int_equal(start_fetch(f, &call), 0);
        for (int k = 0; k < i; k++)
            uv_run(&f->loop, UV_RUN_NOWAIT);
        if (f->n_done < target)
            kv_call_cancel(call);
        run_until(f, &f->n_done, target);
    }
    expect_all_fetched(f);
    assert_int_equal(f->n_up, 1);
}

static void test_two_nodes_share_a_chain(void **state) {
    struct fixture *f = *state;
    put_all(f);
    lookup(f, 0);
    assert_int_equal(f->n_prefix, N_BLOCKS);
    expect_all_fetched(f);
    kill_node(f, 1, SIGKILL);
    run_until(f, &f->n_down, 1);
    lookup(f, 0); /* what the dead one had is a miss, what the living one has is not asked twice */
    assert_int_equal(f->rv, 0);
    assert_true(f->n_prefix < N_BLOCKS);
    put_all(f);
    expect_all_fetched(f);
}

static char *ctl_text; /* what the last ctl() printed */
static int ctl(struct fixture *f, ...) {
    static char program_name[] = "incipitctl", node[] = "--node";
    char addr[MAX_NODES][320], *argv[32] = {program_name};
    int argc = 1;
    for (uint32_t i = 0; i < f->n_nodes; i++) {
        snprintf(addr[i], sizeof(addr[i]), "unix:%s", f->node[i].sock);
        argv[argc++] = node;
        argv[argc++] = addr[i];
    }
    va_list ap;
    va_start(ap, f);
    for (const char *a; (a = va_arg(ap, const char *)) != NULL;)
        argv[argc++] = (char *)(uintptr_t)a;
    va_end(ap);
    free(ctl_text);
    size_t n;
    FILE *out = open_memstream(&ctl_text, &n);
    int rv = ctl_main(argc, argv, out, stderr);
    fclose(out);
    return rv;
}

static void expect_evicts(struct fixture *f, const char *verb, uint32_t at, const char *option,
                          uint32_t n) {
    char id[65], want[64];
    digest_hex(f->chain[at].b, 32, id);
    snprintf(want, sizeof(want), "%s %u blocks", verb, n);
    assert_int_equal(ctl(f, "evict", id, "--chain", option, NULL), 0);
    if (!strstr(ctl_text, want))
        fail_msg("%s, not %s", ctl_text, want);
}

/* A chain is the ids that the admin client finds at every owner. A node that has segments but not the
 * named block told nothing of them, and they stayed; from a hole, which no list shows, the same. */
static void test_a_chain_is_evicted_at_every_owner(void **state) {
    struct fixture *f = *state;
    char hole[65];
    put_all(f);
    digest_hex(f->chain[12].b, 32, hole);
    assert_int_equal(ctl(f, "evict", hole, NULL), 0);
    assert_non_null(strstr(ctl_text, "evicted 1 blocks"));
    expect_evicts(f, "would evict", 3, "--dry-run", N_BLOCKS - 4);
    expect_evicts(f, "evicted", 3, NULL, N_BLOCKS - 4);
    lookup(f, 0);
    assert_int_equal(f->n_prefix, 3);
    expect_evicts(f, "evicted", 0, NULL, 3);
    assert_int_equal(ctl(f, "--json", "list", NULL), 0);
    assert_non_null(strstr(ctl_text, "\"blocks\":[]"));
    free(ctl_text);
    ctl_text = NULL;
}

static void test_roles_and_tokens(void **state) {
    struct fixture *f = *state;
    open_client(f, MSG_ROLE_WORKER, WORKER_TOKEN);
    run_until(f, &f->n_up, 1);
    put_all(f);
    uint8_t digest[DIGEST_BYTES];
    digest_sha256(ns_text, sizeof(ns_text) - 1, digest);
    struct msg_evict_req m = {
        .n_ids = 1, .ids = f->chain, .descendants = true, .digest = {digest, sizeof(digest)}};
    done(f, kv_client_evict(f->client, 0, &m, DEADLINE_MS, on_evict, f, NULL));
    assert_int_equal(f->rv, ERR_DENIED);
    close_client(f);
    f->n_down = 0;
    open_client(f, MSG_ROLE_ADMIN, WORKER_TOKEN);
    run_until(f, &f->n_down, 1);
    close_client(f);
    open_client(f, MSG_ROLE_ADMIN, ADMIN_TOKEN);
    run_until(f, &f->n_up, 2);
    done(f, kv_client_evict(f->client, 0, &m, DEADLINE_MS, on_evict, f, NULL));
    assert_int_equal(f->rv, 0);
    assert_int_equal(f->n_evicted, N_BLOCKS);
    kill_node(f, 0, SIGKILL);
    start_node(f, 0);
    run_until(f, &f->n_up, 3);
    lookup(f, 0);
    assert_int_equal(f->n_prefix, 0); /* what an operator removed does not come back */
}

static char value[64]; /* of the option that was asked for last */
static void on_config_get(void *arg, int rv, const char *text, const struct msg_config_get_res *m) {
    struct fixture *f = arg;
    (void)text;
    f->rv = rv;
    if (rv == 0)
        snprintf(value, sizeof(value), "%s/%s/%d", m->items[0].value, m->items[0].default_value,
                 m->items[0].live);
    f->n_prefix = rv == 0 ? (uint32_t)m->n_items : 0;
    f->n_done++;
}
static void on_ack(void *arg, int rv, const char *text, const struct msg_ack *m) {
    struct fixture *f = arg;
    (void)text, (void)m;
    f->rv = rv;
    f->n_done++;
}

static const char *option(struct fixture *f, const char *name) {
    struct msg_config_get_req m = {.name = name};
    done(f, kv_client_config_get(f->client, 0, &m, DEADLINE_MS, on_config_get, f, NULL));
    return f->rv == 0 ? value : err_name(f->rv);
}
static int set_option(struct fixture *f, const char *name, const char *to) {
    struct msg_config_set_req m = {.name = name, .value = to};
    done(f, kv_client_config_set(f->client, 0, &m, DEADLINE_MS, on_ack, f, NULL));
    return f->rv;
}

/* E7: nothing could change the options that are marked live; others can't be changed by anything. */
static void test_live_options_change_and_others_do_not(void **state) {
    struct fixture *f = *state;
    open_client(f, MSG_ROLE_ADMIN, ADMIN_TOKEN);
    run_until(f, &f->n_up, 1);
    assert_string_equal(option(f, "log_level"), "warn/info/1");
    assert_int_equal(set_option(f, "log_level", "debug"), 0);
    assert_string_equal(option(f, "log_level"), "debug/info/1");
    assert_int_equal(set_option(f, "log_level", "loud"), ERR_INVALID);
    assert_int_equal(set_option(f, "ram_bytes", "128m"), ERR_DENIED);
    assert_int_equal(set_option(f, "no_such", "1"), ERR_NOTFOUND);
    assert_string_equal(option(f, "ram_bytes"), "64m/1g/0");
    assert_string_equal(option(f, "no_such"), "ERR_NOTFOUND");
    (void)option(f, "");
    assert_true(f->n_prefix > 30); /* all of them */
    kill(f->node[0].pid, SIGHUP);  /* what the sources say holds again */
    while (strcmp(option(f, "log_level"), "warn/info/1") != 0)
        uv_run(&f->loop, UV_RUN_NOWAIT);
    close_client(f);
    open_client(f, MSG_ROLE_WORKER, WORKER_TOKEN);
    run_until(f, &f->n_up, 2);
    assert_string_equal(option(f, "log_level"), "ERR_DENIED");
    assert_int_equal(set_option(f, "log_level", "debug"), ERR_DENIED);
}

/* E6: SIGHUP ended the node. Now it reads the tokens again: who has lost his is out, the others stay. */
static void test_sighup_reads_tokens_again(void **state) {
    struct fixture *f = *state;
    static const char without_old_admin[] =
        "worker " WORKER_TOKEN "\nadmin another-token-of-admins\n";
    static const char broken[] = "worker " WORKER_TOKEN "\nking " ADMIN_TOKEN "\n";
    static const char without_worker[] = "admin another-token-of-admins\n";
    open_client(f, MSG_ROLE_WORKER, WORKER_TOKEN);
    run_until(f, &f->n_up, 1);
    struct kv_client *worker = f->client;
    open_client(f, MSG_ROLE_ADMIN, ADMIN_TOKEN);
    run_until(f, &f->n_up, 2);
    tmpdir_write(&f->dir, "tokens", broken, sizeof(broken) - 1);
    kill(f->node[0].pid, SIGHUP);
    assert_string_equal(option(f, "node_id"), "1/1/0");
    tmpdir_write(&f->dir, "tokens", without_old_admin, sizeof(without_old_admin) - 1);
    kill(f->node[0].pid, SIGHUP);
    while (
        !strstr(f->down_text, "no such token")) { /* its session, then Hellos with the old token */
        int down = f->n_down;
        run_until(f, &f->n_down, down + 1);
    }
    assert_int_equal(kv_client_nodes_up(worker), 1);
    close_client(f);
    int up = f->n_up;
    open_client(f, MSG_ROLE_ADMIN, "another-token-of-admins");
    run_until(f, &f->n_up, up + 1);
    close_client(f);
    f->client = worker;
    lookup(f, 0);
    assert_int_equal(f->rv, 0);
    tmpdir_write(&f->dir, "tokens", without_worker, sizeof(without_worker) - 1);
    int downs = f->n_down;
    kill(f->node[0].pid, SIGHUP);
    run_until(f, &f->n_down, downs + 1);
    assert_int_equal(kv_client_nodes_up(worker), 0);
    assert_int_equal(waitpid(f->node[0].pid, NULL, WNOHANG), 0);
}

static void on_pin(void *arg, int rv, const char *text, const struct msg_pin_res *m) {
    struct fixture *f = arg;
    (void)text, (void)m;
    f->rv = rv;
    f->n_done++;
}

static void test_later_methods_are_unimplemented(void **state) {
    struct fixture *f = *state;
    struct msg_pin_req m = {.n_ids = 1, .ids = f->chain};
    done(f, kv_client_pin(f->client, 0, &m, DEADLINE_MS, on_pin, f, NULL));
    assert_int_equal(f->rv, ERR_UNIMPLEMENTED);
}

/* Bytes of a seeded generator, some behind a right header: the node drops them and serves on. */
static void test_garbage_does_not_harm_the_node(void **state) {
    struct fixture *f = *state;
    uint32_t seed = 12345;
    put_all(f);
    for (int i = 0; i < 200; i++) {
        uint8_t junk[4096];
        for (size_t k = 0; k < sizeof(junk); k++) {
            seed = seed * 1664525u + 1013904223u;
            junk[k] = (uint8_t)(seed >> 24);
        }
        if (i % 2) {
            struct wire_hdr h = {.version = WIRE_VERSION,
                                 .method = (uint16_t)(1 + junk[0] % 15),
                                 .request_id = 1,
                                 .msg_len = junk[1] % 100u,
                                 .payload_len = junk[2] * 8u};
            uint8_t hdr[WIRE_HDR_BYTES];
            wire_hdr_encode(&h, junk + WIRE_HDR_BYTES, hdr);
            memcpy(junk, hdr, sizeof(hdr));
        }
        int fd = rpc_sock_connect_unix(f->node[0].sock, NULL);
        assert_true(fd >= 0);
        (void)!send(fd, junk, sizeof(junk), MSG_NOSIGNAL);
        close(fd);
    }
    expect_all_fetched(f);
    assert_int_equal(f->n_up, 1);
    assert_int_equal(waitpid(f->node[0].pid, NULL, WNOHANG), 0);
}

#define T(fn, setup) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    program = argv[1];
    const struct CMUnitTest tests[] = {
        T(test_put_lookup_fetch_release, setup),
        T(test_fetch_of_runs_of_ranges, setup),
        T(test_killed_node_comes_back_with_its_disk, setup),
        T(test_kill_during_calls_ends_each_with_an_error, setup),
        T(test_canceled_fetch_leaves_the_session_whole, setup),
        T(test_two_nodes_share_a_chain, setup_two),
        T(test_roles_and_tokens, setup_tokens),
        T(test_live_options_change_and_others_do_not, setup_tokens),
        T(test_a_chain_is_evicted_at_every_owner, setup_two),
        T(test_sighup_reads_tokens_again, setup_tokens),
        T(test_later_methods_are_unimplemented, setup),
        T(test_garbage_does_not_harm_the_node, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
