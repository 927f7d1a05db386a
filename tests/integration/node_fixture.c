#include "tests/integration/node_fixture.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/check.h"
#include "common/checksum.h"
#include "common/digest.h"

#define DEADLINE_MS 8000u

const uint32_t node_range_sizes[NODE_RANGES] = {16384, 8192, 24576, 16384};

void node_fixture_set(struct node_fixture *f, const char *name, const char *value) {
    const struct cfg_opt *o = cfg_find(cachesvc_config_table(), name);
    char **at = (char **)(void *)((char *)&f->cfg + o->off);
    free(*at);
    *at = strdup(value);
    CHECK(*at);
}

void node_fixture_init(struct node_fixture *f) {
    struct errbuf eb;
    memset(f, 0, sizeof(*f));
    test_loop_setup(&f->tl);
    tmpdir_setup(&f->dir);
    char *argv[] = {(char *)(uintptr_t) "node", (char *)(uintptr_t) "--listen=127.0.0.1:0",
                    (char *)(uintptr_t) "--http-listen=127.0.0.1:0", NULL};
    int rv = cfg_load(cachesvc_config_table(), &(struct cfg_prog){"node", ""}, &f->cfg, 3, argv,
                      NULL, stdout, &eb);
    if (rv != 0) {
        fprintf(stderr, "%s\n", eb.text);
        CHECK(rv == 0);
    }
    tmpdir_join(&f->dir, "node.sock", f->unix_path, sizeof(f->unix_path));
    node_fixture_set(f, "unix_listen", f->unix_path);
    f->cfg.ram_bytes = 16u << 20;
    f->cfg.min_slot_bytes = 4096;
    f->cfg.hello_delay_ms = 10;
}

void node_fixture_disk(struct node_fixture *f) {
    node_fixture_set(f, "disk_dir", f->dir.path);
    f->cfg.disk_bytes = 256u << 20;
    f->cfg.ram_bytes = 64u << 20; /* the reserve for disk reads is a whole extent */
}

void node_fixture_tokens(struct node_fixture *f) {
    node_fixture_token_file(f, "worker " NODE_TOKEN "\nadmin " NODE_ADMIN_TOKEN "\n");
}

void node_fixture_token_file(struct node_fixture *f, const char *text) {
    tmpdir_write(&f->dir, "tokens", text, strlen(text));
    node_fixture_set(f, "token_file",
                     tmpdir_join(&f->dir, "tokens", f->token_path, sizeof(f->token_path)));
}

void node_fixture_start(struct node_fixture *f) {
    struct cachesvc_env env = {.loop = &f->tl.loop, .clk = f->clk, .log = f->log};
    struct errbuf eb = {{0}};
    int rv = cachesvc_open(&f->node, &env, &f->cfg, &eb);
    if (rv < 0)
        fprintf(stderr, "node: %s\n", eb.text);
    CHECK(rv == 0);
}

static void set_true(void *arg) {
    *(bool *)arg = true;
}

void node_fixture_stop(struct node_fixture *f) {
    bool closed = false;
    cachesvc_drain(f->node);
    cachesvc_close(f->node, set_true, &closed);
    CHECK(test_loop_until(&f->tl, &closed));
    f->node = NULL;
}

void node_fixture_fini(struct node_fixture *f) {
    node_fixture_disconnect(f);
    if (f->node)
        node_fixture_stop(f);
    test_loop_teardown(&f->tl);
    cfg_free(cachesvc_config_table(), &f->cfg);
    tmpdir_teardown(&f->dir);
}

struct kv_client *node_fixture_client(struct node_fixture *f, enum msg_role role,
                                      const char *token) {
    char tcp[64], un[320];
    struct kv_client *c;
    struct errbuf eb;
    snprintf(tcp, sizeof(tcp), "127.0.0.1:%u", cachesvc_rpc_port(f->node));
    snprintf(un, sizeof(un), "unix:%s", f->unix_path);
    const char *addr = f->over_unix ? un : tcp;
    struct kv_client_cfg cfg = {.addrs = &addr,
                                .n_addrs = 1,
                                .role = role,
                                .token = token,
                                .token_len = token ? strlen(token) : 0,
                                .n_data_conns = 2,
                                .name = "test",
                                .backoff_min_ms = 5,
                                .backoff_max_ms = 20};
    CHECK(kv_client_open(&c, &f->tl.loop, &cfg, &eb) == 0);
    return c;
}

static bool is_up(void *arg) {
    return kv_client_nodes_up(arg) == 1;
}

bool node_fixture_wait_up(struct node_fixture *f, struct kv_client *c) {
    return test_loop_until_fn(&f->tl, is_up, c);
}

void node_fixture_connect(struct node_fixture *f, enum msg_role role, const char *token) {
    static const char text[] = NODE_DESCRIPTOR;
    struct kv_namespace ns = {.descriptor = text,
                              .descriptor_len = sizeof(text) - 1,
                              .range_sizes = node_range_sizes,
                              .n_ranges = NODE_RANGES,
                              .n_full = NODE_RANGES};
    digest_sha256(text, sizeof(text) - 1, ns.digest);
    memcpy(f->ns_digest, ns.digest, 32);
    f->client = node_fixture_client(f, role, token);
    CHECK(kv_client_namespace(f->client, &ns, &f->ns) == 0);
    CHECK(node_fixture_wait_up(f, f->client));
}

void node_fixture_close_client(struct node_fixture *f, struct kv_client *c) {
    bool closed = false;
    kv_client_close(c, set_true, &closed);
    CHECK(test_loop_until(&f->tl, &closed));
}

void node_fixture_disconnect(struct node_fixture *f) {
    if (f->client)
        node_fixture_close_client(f, TAKE_PTR(f->client));
}

void node_chain(uint32_t tag, struct block_id *ret, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t name[2] = {tag, i};
        digest_sha256(name, sizeof(name), ret[i].b);
    }
}

void node_payload(uint32_t tag, uint32_t pos, uint8_t *ret) {
    uint64_t x = ((uint64_t)tag << 32) | pos | 1;
    for (size_t i = 0; i < NODE_PAYLOAD; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(ret + i, &x, 8);
    }
}

/* --- calls that wait --- */

struct call {
    bool done;
    int rv;
    int *status;
    uint32_t n;
};

static void on_put(void *arg, int rv, const struct kv_put_res *res) {
    struct call *c = arg;
    c->rv = rv;
    for (uint32_t i = 0; res && c->status && i < c->n; i++)
        c->status[i] = res->status[i];
    c->done = true;
}

int node_put_once(struct node_fixture *f, uint32_t tag, uint32_t first, uint32_t n, int lie,
                  int *status) {
    struct block_id *ids = calloc(first + n, sizeof(*ids));
    uint8_t *bytes = malloc((size_t)n * NODE_PAYLOAD);
    const uint8_t **payload = calloc(n, sizeof(*payload));
    uint64_t *sums = calloc(n, sizeof(*sums)), *ranges = calloc(n * NODE_RANGES, sizeof(*ranges));
    const uint64_t **range_ptrs = calloc(n, sizeof(*range_ptrs));
    CHECK(ids && bytes && payload && sums && ranges && range_ptrs);
    node_chain(tag, ids, first + n);
    for (uint32_t i = 0; i < n; i++) {
        payload[i] = bytes + (size_t)i * NODE_PAYLOAD;
        range_ptrs[i] = &ranges[i * NODE_RANGES];
        node_payload(tag, first + i, bytes + (size_t)i * NODE_PAYLOAD);
        sums[i] = checksum_block(payload[i], node_range_sizes, NODE_RANGES, ids[first + i].b,
                                 &ranges[i * NODE_RANGES]);
        sums[i] ^= (int)i == lie;
    }
    struct kv_put q = {.ns = f->ns,
                       .chain = ids,
                       .first = first,
                       .n = n,
                       .payload = payload,
                       .checksum = sums,
                       .range_checksums = range_ptrs,
                       .urgent = true,
                       .deadline_ms = DEADLINE_MS};
    struct call c = {.status = status, .n = n};
    struct kv_call *k;
    int rv = kv_client_put(f->client, &q, on_put, &c, &k);
    if (rv == 0) {
        CHECK(test_loop_until(&f->tl, &c.done));
        rv = c.rv;
    }
    free(ids);
    free(bytes);
    free(payload);
    free(sums);
    free(ranges);
    free(range_ptrs);
    return rv;
}

static void on_pause(uv_timer_t *t) {
    *(bool *)t->data = true;
}

static void on_pause_closed(uv_handle_t *h) {
    *(bool *)h->data = true;
}

static void pause_ms(struct node_fixture *f, uint32_t ms) {
    bool over = false, closed = false;
    uv_timer_t t;
    uv_timer_init(&f->tl.loop, &t);
    t.data = &over;
    uv_timer_start(&t, on_pause, ms, 0);
    CHECK(test_loop_until(&f->tl, &over));
    t.data = &closed;
    uv_close((uv_handle_t *)&t, on_pause_closed);
    CHECK(test_loop_until(&f->tl, &closed));
}

/* A young node opens its slots bit by bit and says BUSY until then. */
int node_put(struct node_fixture *f, uint32_t tag, uint32_t first, uint32_t n, int lie,
             int *status) {
    int rv = 0;
    for (int i = 0; i < 500; i++) {
        rv = node_put_once(f, tag, first, n, lie, status);
        bool is_busy = false;
        for (uint32_t k = 0; rv == 0 && k < n; k++)
            is_busy |= status[k] == ERR_BUSY;
        if (!is_busy)
            break;
        pause_ms(f, 5);
    }
    return rv;
}

static void on_fetch_block(void *arg, uint32_t i, int rv) {
    struct call *c = arg;
    c->status[i] = rv;
}

static void on_fetch(void *arg, int rv, const struct kv_fetch_res *res) {
    struct call *c = arg;
    (void)res;
    c->rv = rv;
    c->done = true;
}

int node_fetch(struct node_fixture *f, uint32_t tag, uint32_t first, uint32_t n, int *status) {
    struct block_id *ids = calloc(first + n, sizeof(*ids));
    uint8_t *bytes = calloc(n, NODE_PAYLOAD), *want = malloc(NODE_PAYLOAD);
    uint8_t **dst = calloc(n, sizeof(*dst));
    CHECK(ids && bytes && want && dst);
    node_chain(tag, ids, first + n);
    for (uint32_t i = 0; i < n; i++) {
        dst[i] = bytes + (size_t)i * NODE_PAYLOAD;
        status[i] = 1; /* no status yet */
    }
    struct call c = {.status = status, .n = n};
    struct kv_fetch q = {.ns = f->ns,
                         .chain = ids,
                         .first = first,
                         .n = n,
                         .dst = dst,
                         .deadline_ms = DEADLINE_MS,
                         .on_block = on_fetch_block};
    struct kv_call *k;
    int rv = kv_client_fetch(f->client, &q, on_fetch, &c, &k);
    if (rv == 0) {
        CHECK(test_loop_until(&f->tl, &c.done));
        rv = c.rv;
    }
    for (uint32_t i = 0; i < n; i++) {
        node_payload(tag, first + i, want);
        CHECK(status[i] != 0 || memcmp(dst[i], want, NODE_PAYLOAD) == 0);
    }
    free(ids);
    free(bytes);
    free(want);
    free(dst);
    return rv;
}

struct lookup_call {
    bool done;
    int rv;
    uint32_t n_prefix;
    struct kv_client *client;
};

static void on_lookup(void *arg, int rv, const struct kv_lookup_res *res) {
    struct lookup_call *c = arg;
    c->rv = rv;
    c->n_prefix = rv == 0 ? res->n_prefix : 0;
    if (rv == 0 && res->lease)
        kv_client_release(c->client, res->lease, 0);
    c->done = true;
}

uint32_t node_lookup(struct node_fixture *f, uint32_t tag, uint32_t n, uint32_t flags) {
    struct block_id *ids = calloc(n, sizeof(*ids));
    CHECK(ids);
    node_chain(tag, ids, n);
    struct lookup_call c = {.client = f->client};
    struct kv_lookup q = {
        .ns = f->ns, .chain = ids, .n = n, .flags = flags, .deadline_ms = DEADLINE_MS};
    struct kv_call *k;
    CHECK(kv_client_lookup(f->client, &q, on_lookup, &c, &k) == 0);
    CHECK(test_loop_until(&f->tl, &c.done));
    CHECK(c.rv == 0);
    free(ids);
    return c.n_prefix;
}

struct stats_call {
    bool done;
    int rv;
    struct msg_stats_res res;
};

static void on_stats(void *arg, int rv, const char *text, const struct msg_stats_res *res) {
    struct stats_call *c = arg;
    (void)text;
    c->rv = rv;
    if (res)
        c->res = *res;
    c->done = true;
}

struct msg_stats_res node_stats(struct node_fixture *f) {
    struct stats_call c = {0};
    struct kv_call *k;
    CHECK(kv_client_stats(f->client, 0, &(struct msg_stats_req){0}, DEADLINE_MS, on_stats, &c,
                          &k) == 0);
    CHECK(test_loop_until(&f->tl, &c.done));
    CHECK(c.rv == 0);
    c.res.counters = NULL; /* lived in the callback only */
    c.res.node_name = c.res.version = NULL;
    return c.res;
}

void node_http_get(struct node_fixture *f, const char *path, char *ret, size_t cap) {
    char req[128];
    size_t n = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons(cachesvc_http_port(f->node)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0);
    int len = snprintf(req, sizeof(req),
                       "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    CHECK(send(fd, req, (size_t)len, MSG_NOSIGNAL) == len);
    for (;;) {
        ssize_t k = recv(fd, ret + n, cap - 1 - n, MSG_DONTWAIT);
        if (k == 0)
            break;
        n += k > 0 ? (size_t)k : 0;
        test_loop_turn(&f->tl);
    }
    ret[n] = '\0';
    close(fd);
}
