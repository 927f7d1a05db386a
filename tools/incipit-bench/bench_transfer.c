/* bench_transfer.c - GB/s of whole blocks through the real client and a cache node, beside raw sockets.
 *
 * For each transport and block size a node of its own is started. A repetition puts a fresh chain of
 * blocks and fetches it into pages, each in one call as a worker does it, then sends the same bytes
 * through a raw socket in both directions. Checksums are on: the node verifies what it takes, the client
 * what it receives; the client's checksums of a put are taken before the clock starts, since a worker
 * takes them on another thread. GB: 10^9 bytes. */
#include <unistd.h>
#include <uv.h>

#include "common/checksum.h"
#include "common/clock.h"
#include "common/digest.h"
#include "proto/kv_client.h"
#include "tools/incipit-bench/bench.h"
#include "tools/incipit-bench/bench_node.h"
#include "tools/incipit-bench/bench_raw.h"

#define DEADLINE_MS 30000
#define MAX_BLOCKS 1024u

#define TRANSFER_OPTIONS(X)                                                                        \
    X(cachesvc, STR, "", 0, 4096, false,                                                           \
      "the node's program; without it the one of the same build")                                  \
    X(reps, U32, 7, 5, BENCH_MAX_REPS, false, "repetitions")                                       \
    X(mib, U32, 128, 16, 512, false, "MiB moved a repetition")                                     \
    X(conns, U32, 1, 1, KV_CLIENT_MAX_DATA_CONNS, false, "data connections")                       \
    X(json, STR, "", 0, 4096, false, "file for all samples")
struct transfer_opts {
    CFG_FIELDS(TRANSFER_OPTIONS)
};
CFG_TABLE(transfer_opts, TRANSFER_OPTIONS)

/* A block size: SmolLM2-135M's and Llama-3-8B's, 32 tokens, f16. */
static const struct shape {
    const char *name;
    uint32_t range_bytes, n_ranges;
} shapes[] = {
    {"720 KiB", 24576, 30},
    {"4 MiB", 131072, 32},
};

struct transfer {
    uv_loop_t loop;
    uv_timer_t guard; /* ends a wait that lost its callback */
    struct bench_node node;
    struct kv_client *client;
    struct bench_raw *raw;
    const struct shape *shape;
    uint32_t ns, n; /* namespace handle, blocks a repetition */
    size_t block_bytes;
    uint8_t *src, *dst;             /* [n][block_bytes] */
    uint8_t **dst_at;               /* [n] */
    const uint8_t **src_at;         /* [n] */
    uint64_t *checksum, *range_sum; /* [n], [n][n_ranges] */
    uint32_t *range_sizes;          /* [n_ranges] */
    const uint64_t **range_at;      /* [n] */
    struct block_id *chain;         /* [n] */
    uint8_t digest[DIGEST_BYTES];
    bool up, done, late, closed;
    int rv;
    uint32_t n_good;
    uint32_t next_chain; /* chains used so far */
};

/* ---- waiting on the loop ---- */

static void on_guard(uv_timer_t *h) {
    ((struct transfer *)h->data)->late = true;
}

static int wait_for(struct transfer *t, const bool *flag) {
    t->late = false;
    uv_timer_start(&t->guard, on_guard, 2 * DEADLINE_MS, 0);
    while (!*flag && !t->late)
        uv_run(&t->loop, UV_RUN_ONCE);
    uv_timer_stop(&t->guard);
    return *flag ? 0 : ERR_TIMEOUT;
}

static void on_node(void *arg, uint32_t node, enum kv_node_state state, int err, const char *text) {
    struct transfer *t = arg;
    (void)node;
    t->up = state == KV_NODE_UP;
    if (err)
        fprintf(stderr, "incipit-bench: node: %s\n", text ? text : err_text(err));
}

/* ---- memory ---- */

static int alloc_all(struct transfer *t) {
    const size_t bytes = t->n * t->block_bytes;
    t->src = aligned_alloc(4096, bytes);
    t->dst = aligned_alloc(4096, bytes);
    t->dst_at = alloc_array(t->n, sizeof(*t->dst_at));
    t->src_at = alloc_array(t->n, sizeof(*t->src_at));
    t->checksum = alloc_array(t->n, sizeof(*t->checksum));
    t->range_sum = alloc_array((size_t)t->n * t->shape->n_ranges, sizeof(*t->range_sum));
    t->range_sizes = alloc_array(t->shape->n_ranges, sizeof(*t->range_sizes));
    t->range_at = alloc_array(t->n, sizeof(*t->range_at));
    t->chain = alloc_array(t->n, sizeof(*t->chain));
    return t->src && t->dst && t->dst_at && t->src_at && t->checksum && t->range_sum &&
                   t->range_sizes && t->range_at && t->chain
               ? 0
               : ERR_NOMEM;
}

/* Bytes that no shortcut could shrink: a linear congruential sequence a block. */
static void fill(struct transfer *t) {
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < t->n * t->block_bytes; i += 8) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        memcpy(t->src + i, &x, 8);
    }
    memset(t->dst, 0, t->n * t->block_bytes);
    for (uint32_t i = 0; i < t->shape->n_ranges; i++)
        t->range_sizes[i] = t->shape->range_bytes;
    for (uint32_t i = 0; i < t->n; i++) {
        t->src_at[i] = t->src + i * t->block_bytes;
        t->dst_at[i] = t->dst + i * t->block_bytes;
        uint64_t *sums = t->range_sum + (size_t)i * t->shape->n_ranges;
        for (uint32_t k = 0; k < t->shape->n_ranges; k++)
            sums[k] = checksum_xxh3(t->src_at[i] + (size_t)k * t->shape->range_bytes,
                                    t->shape->range_bytes);
        t->range_at[i] = sums;
    }
}

static void free_all(struct transfer *t) {
    free(t->src);
    free(t->dst);
    free(t->dst_at);
    free(t->src_at);
    free(t->checksum);
    free(t->range_sum);
    free(t->range_sizes);
    free(t->range_at);
    free(t->chain);
}

/* ---- client ---- */

static int make_namespace(struct transfer *t) {
    char text[128];
    const int len = snprintf(text, sizeof(text), "bench=transfer\npayload=%zu\nranges=%u\n",
                             t->block_bytes, t->shape->n_ranges);
    digest_sha256(text, (size_t)len, t->digest);
    struct kv_namespace ns = {.descriptor = text,
                              .descriptor_len = (size_t)len,
                              .range_sizes = t->range_sizes,
                              .n_ranges = t->shape->n_ranges,
                              .n_full = t->shape->n_ranges};
    memcpy(ns.digest, t->digest, sizeof(ns.digest));
    return kv_client_namespace(t->client, &ns, &t->ns);
}

static int connect_client(struct transfer *t, const char *addr, uint32_t conns, struct errbuf *eb) {
    const struct kv_client_cfg cfg = {.addrs = &addr,
                                      .n_addrs = 1,
                                      .role = MSG_ROLE_WORKER,
                                      .name = "incipit-bench",
                                      .n_data_conns = conns,
                                      .on_node = on_node,
                                      .on_node_arg = t};
    int rv = kv_client_open(&t->client, &t->loop, &cfg, eb);
    if (rv == 0)
        rv = make_namespace(t);
    return rv < 0 ? rv : wait_for(t, &t->up);
}

/* A chain that the node has not seen: tokens are the repetition's number. */
static void new_chain(struct transfer *t, uint32_t rep) {
    CLEANUP(digest_freep) struct digest *d = digest_new();
    int32_t tok[MAX_BLOCKS];
    for (uint32_t i = 0; i < t->n; i++)
        tok[i] = (int32_t)(rep * MAX_BLOCKS + i);
    const struct block_chain_cfg cfg = {.namespace_digest = t->digest, .block_tok = 1};
    block_chain(d, &cfg, tok, t->n, t->chain);
    for (uint32_t i = 0; i < t->n; i++)
        t->checksum[i] = checksum_of_sums(t->range_at[i], t->shape->n_ranges, t->chain[i].b);
}

static void on_put(void *arg, int rv, const struct kv_put_res *res) {
    struct transfer *t = arg;
    t->rv = rv;
    t->n_good = res ? res->n_stored : 0;
    for (uint32_t i = 0; res && i < t->n && t->rv == 0; i++)
        t->rv = res->status[i]; /* why the first one was not stored */
    t->done = true;
}

static void on_fetch(void *arg, int rv, const struct kv_fetch_res *res) {
    struct transfer *t = arg;
    t->rv = rv;
    t->n_good = res ? res->n_ok : 0;
    t->done = true;
}

/* Seconds, or < 0 with eb set. */
static double timed(struct transfer *t, const char *what, int started, uint64_t t0,
                    struct errbuf *eb) {
    int rv = started < 0 ? started : wait_for(t, &t->done);
    const double s = (double)(clock_mono_ns(clock_real()) - t0) * 1e-9;
    rv = rv < 0 ? rv : t->rv;
    if (rv == 0 && t->n_good == t->n)
        return s;
    err_set(eb, rv, "%s: %u of %u blocks, %s", what, t->n_good, t->n, err_text(rv));
    return -1;
}

static double put_all(struct transfer *t, struct errbuf *eb) {
    const struct kv_put q = {.ns = t->ns,
                             .chain = t->chain,
                             .n = t->n,
                             .payload = t->src_at,
                             .checksum = t->checksum,
                             .range_checksums = t->range_at,
                             .urgent = true,
                             .deadline_ms = DEADLINE_MS};
    struct kv_call *call;
    t->done = false;
    const uint64_t t0 = clock_mono_ns(clock_real());
    return timed(t, "put", kv_client_put(t->client, &q, on_put, t, &call), t0, eb);
}

static double fetch_all(struct transfer *t, struct errbuf *eb) {
    const struct kv_fetch q = {
        .ns = t->ns, .chain = t->chain, .n = t->n, .dst = t->dst_at, .deadline_ms = DEADLINE_MS};
    struct kv_call *call;
    t->done = false;
    const uint64_t t0 = clock_mono_ns(clock_real());
    return timed(t, "fetch", kv_client_fetch(t->client, &q, on_fetch, t, &call), t0, eb);
}

/* One repetition; rep 0 warms both sides up and is not counted. */
static int repeat(struct transfer *t, struct bench_report *r, const char *transport, uint32_t rep,
                  struct errbuf *eb) {
    const double gb = (double)(t->n * t->block_bytes) * 1e-9;
    new_chain(t, t->next_chain++);
    const double put = put_all(t, eb), fetch = put < 0 ? -1 : fetch_all(t, eb);
    if (put < 0 || fetch < 0)
        return ERR_INTERNAL;
    if (memcmp(t->src, t->dst, t->n * t->block_bytes) != 0)
        return err_set(eb, ERR_CORRUPT, "fetched bytes differ from those put");
    const double raw_put = bench_raw_put(t->raw), raw_fetch = bench_raw_fetch(t->raw);
    if (raw_put < 0 || raw_fetch < 0)
        return err_set(eb, ERR_CLOSED, "raw socket");
    if (rep == 0)
        return 0;
    struct bench_row *w = bench_row(r, "GB/s", "fetch %s %s", transport, t->shape->name);
    bench_add(&w->ours, gb / fetch);
    bench_add(&w->peer, gb / raw_fetch);
    w = bench_row(r, "GB/s", "put %s %s", transport, t->shape->name);
    bench_add(&w->ours, gb / put);
    bench_add(&w->peer, gb / raw_put);
    return 0;
}

static int run_open(struct transfer *t, const struct transfer_opts *o, bool tcp,
                    struct errbuf *eb) {
    const uint64_t bytes = t->n * t->block_bytes;
    int rv = alloc_all(t);
    if (rv < 0)
        return rv;
    fill(t);
    /* Everything that is put stays resident, with room for rounding, bounce slots and leases. */
    rv = bench_node_start(&t->node, o->cachesvc[0] ? o->cachesvc : NULL,
                          (o->reps + 2) * bytes * 5 / 4 + (256u << 20), eb);
    if (rv == 0)
        rv = bench_raw_open(&t->raw, tcp, t->dst, bytes, eb);
    if (rv == 0)
        rv = connect_client(t, tcp ? t->node.tcp : t->node.unix_, o->conns, eb);
    return rv;
}

static void on_closed(void *arg) {
    ((struct transfer *)arg)->closed = true;
}

static void run_close(struct transfer *t) {
    if (t->client) {
        kv_client_close(t->client, on_closed, t);
        while (!t->closed)
            uv_run(&t->loop, UV_RUN_ONCE);
    }
    uv_close((uv_handle_t *)&t->guard, NULL);
    uv_run(&t->loop, UV_RUN_DEFAULT);
    uv_loop_close(&t->loop);
    bench_raw_close(t->raw);
    bench_node_stop(&t->node);
    free_all(t);
}

static int run_one(const struct transfer_opts *o, bool tcp, const struct shape *s,
                   struct bench_report *r, struct errbuf *eb) {
    struct transfer t = {.shape = s, .block_bytes = (size_t)s->range_bytes * s->n_ranges};
    t.n = (uint32_t)MIN(((size_t)o->mib << 20) / t.block_bytes, (size_t)MAX_BLOCKS);
    uv_loop_init(&t.loop);
    uv_timer_init(&t.loop, &t.guard);
    t.guard.data = &t;
    int rv = run_open(&t, o, tcp, eb);
    /* Slots open as the node touches its memory in the background: until then a put is BUSY. */
    if (rv == 0)
        rv = repeat(&t, r, "", 0, eb);
    for (uint32_t i = 0; rv == ERR_INTERNAL && i < 300; i++) {
        usleep(100000);
        rv = repeat(&t, r, "", 0, eb);
    }
    for (uint32_t rep = 1; rv == 0 && rep <= o->reps; rep++)
        rv = repeat(&t, r, tcp ? "tcp" : "unix", rep, eb);
    run_close(&t);
    return rv;
}

int bench_transfer_main(int argc, char **argv) {
    struct transfer_opts o;
    const int usage = bench_args(transfer_opts_table(), &o, "transfer [OPTIONS]", argc, argv);
    if (usage)
        return usage - 1;
    struct bench_report r = {.what = "transfer", .peer = "raw socket"};
    struct errbuf eb = {""};
    bench_fact(&r, "bytes", "%u MiB a repetition, %u repetitions", o.mib, o.reps);
    bench_fact(&r, "connections", "%u", o.conns);
    int rv = 0;
    for (int tcp = 1; tcp >= 0 && rv == 0; tcp--)
        for (size_t i = 0; i < ARRAY_LEN(shapes) && rv == 0; i++)
            rv = run_one(&o, tcp, &shapes[i], &r, &eb);
    if (rv == 0) {
        bench_print(&r, stdout);
        rv = o.json[0] ? bench_write_json(&r, o.json, &eb) : 0;
    }
    strbuf_fini(&r.facts);
    cfg_free(transfer_opts_table(), &o);
    if (rv < 0)
        fprintf(stderr, "incipit-bench: %s: %s\n", eb.text, err_text(rv));
    return rv < 0;
}
