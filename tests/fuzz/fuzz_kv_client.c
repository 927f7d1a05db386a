/* fuzz_kv_client.c - whole sessions of the client against a node that the input makes misbehave.
 *
 * Each request that the client sends takes one byte of the input: how it is answered, from rightly over
 * late, twice, garbled or to nobody, to a closed connection (enum trick); some take more bytes. When the
 * input has ended everything is answered rightly. Frames have right lengths and CRCs, so that what is
 * inside them is what is tried. Checked: each call calls back exactly once, nothing is written outside the
 * destinations, a block that is reported as fetched has the bytes that it was put with, and everything is
 * given back (with ASan: no leak, no stray access). */
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "common/check.h"
#include "proto/kv_client.h"
#include "proto/wire_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_BLOCKS 3u
#define N_RANGES 2u
#define PAYLOAD 192u
#define N_CALLS 6
#define MAX_CONNS 4
#define MAX_TURNS 120
#define DEADLINE_MS 60000u

static const uint32_t range_sizes[N_RANGES] = {64, 128};

enum trick {
    RIGHT,
    GARBLED,
    RAW,
    TWICE,
    OTHER_ID,
    CLOSE,
    ERROR_ANSWER,
    NOT_LAST,
    NOTHING,
    PAYLOAD_TOO,
    N_TRICKS
};

struct conn {
    int fd;
    uint8_t in[1u << 16];
    size_t n;
};

struct world {
    uv_loop_t loop;
    const uint8_t *p, *end; /* the input */
    int listener;
    char path[64];
    struct conn conn[MAX_CONNS];
    int n_conns;
    _Alignas(16) uint8_t arena[1u << 15];
    uint8_t msg_bytes[1u << 13];
    struct bump scratch;
    struct buf msg;
    struct kv_client *client;
    uint32_t ns;
    struct block_id chain[N_BLOCKS];
    uint8_t payload[PAYLOAD], dst[N_BLOCKS][PAYLOAD + 8];
    uint64_t sums[N_RANGES], checksum[N_BLOCKS];
    bool is_started, is_closed;
    int n_called_back, n_begun;
};

static uint8_t take(struct world *w) {
    return w->p < w->end ? *w->p++ : RIGHT;
}

/* ---- the node ---- */

static void send_all(struct conn *c, const uint8_t *p, size_t n) {
    while (n > 0 && c->fd >= 0) {
        ssize_t k = send(c->fd, p, n, MSG_NOSIGNAL);
        if (k <= 0) /* the buffer takes all that this sends: the peer is gone */
            return;
        p += k;
        n -= (size_t)k;
    }
}

static void send_frame(struct conn *c, struct wire_hdr h, const uint8_t *msg, size_t msg_len,
                       const uint8_t *payload, size_t payload_len) {
    uint8_t head[WIRE_HDR_BYTES];
    h.version = WIRE_VERSION;
    h.msg_len = (uint32_t)msg_len;
    h.payload_len = (uint32_t)payload_len;
    h.deadline_ms = 0;
    wire_hdr_encode(&h, msg, head);
    send_all(c, head, sizeof(head));
    send_all(c, msg, msg_len);
    send_all(c, payload, payload_len);
}

/* What the right answer depends on. */
struct asked {
    bool is_join;
    size_t n_ids;
    uint8_t id[N_BLOCKS]; /* position in the chain */
};

static struct asked read_request(struct world *w, const struct wire_hdr *h, const uint8_t *msg) {
    struct asked a = {.n_ids = 1};
    struct msg_hello_req hello;
    struct msg_fetch_req fetch;
    w->scratch.used = 0;
    if (h->method == WIRE_HELLO) {
        CHECK(wire_msg_hello_req_decode(&w->scratch, msg, h->msg_len, &hello, NULL) == 0);
        a.is_join = hello.session_token.n > 0;
    } else if (h->method == WIRE_FETCH) {
        CHECK(wire_msg_fetch_req_decode(&w->scratch, msg, h->msg_len, &fetch, NULL) == 0);
        CHECK(fetch.n_ids <= N_BLOCKS);
        a.n_ids = fetch.n_ids;
        for (size_t i = 0; i < fetch.n_ids; i++)
            a.id[i] = (uint8_t)(fetch.ids[i].b[0] - 1);
    }
    return a;
}

/* The right answer to a request, into w->msg; *ret_payload bytes of w->payload behind it. */
static void right_answer(struct world *w, const struct wire_hdr *h, const struct asked *a,
                         uint32_t index, size_t *ret_payload) {
    static const uint8_t token[WIRE_SESSION_TOKEN_BYTES] = {1}, ones[N_BLOCKS] = {1, 1, 1},
                         zeros[64] = {0};
    w->scratch.used = 0;
    w->msg.len = 0;
    *ret_payload = 0;
#define ANSWER(name, ...)                                                                          \
    CHECK(wire_msg_##name##_encode(&w->scratch, &(struct msg_##name){__VA_ARGS__}, &w->msg) == 0)
    switch (h->method) {
    case WIRE_HELLO:
        ANSWER(hello_res, .version = WIRE_VERSION, .node_id = 1, .epoch = 1, .max_ids = 64,
               .session_token = {token, a->is_join ? 0 : sizeof(token)}, .max_data_conns = 2,
               .lease_ttl_ms = 3);
        break;
    case WIRE_REGISTER_NS:
        ANSWER(register_ns_res, .ns = 1);
        break;
    case WIRE_LOOKUP:
        ANSWER(lookup_res, .status = {ones, N_BLOCKS}, .n_prefix = N_BLOCKS, .lease_id = 5);
        break;
    case WIRE_FETCH:
        ANSWER(fetch_block, .index = index, .count = 1, .checksum = w->checksum[a->id[index]],
               .range_checksums = w->sums, .n_range_checksums = N_RANGES, .n_ranges = N_RANGES);
        *ret_payload = PAYLOAD;
        break;
    case WIRE_PUT_BEGIN:
        ANSWER(put_begin_res, .put_id = 9, .status = {zeros, N_BLOCKS});
        break;
    case WIRE_PUT_COMMIT:
        ANSWER(put_commit_res, .status = {zeros, N_BLOCKS});
        break;
    case WIRE_HEARTBEAT:
        ANSWER(heartbeat_res, .renewed = 1);
        break;
    default:
        ANSWER(ack, .count = 1);
    }
}

/* One frame of an answer, played as the input says. */
static void play(struct world *w, struct conn *c, const struct wire_hdr *req, const struct asked *a,
                 uint32_t index) {
    bool is_last = index + 1 == a->n_ids;
    struct wire_hdr h = {.method = req->method,
                         .request_id = req->request_id,
                         .flags = (uint8_t)(WIRE_F_RESPONSE | (is_last ? WIRE_F_END : 0))};
    size_t n_payload;
    int n = 1;
    right_answer(w, req, a, index, &n_payload);
    switch (take(w) % N_TRICKS) {
    case GARBLED:
        if (w->msg.len)
            w->msg.data[take(w) % w->msg.len] ^= take(w);
        break;
    case RAW:
        w->msg.len = take(w);
        w->msg.len = MIN(w->msg.len, (size_t)(w->end - w->p));
        memcpy(w->msg.data, w->p, w->msg.len);
        w->p += w->msg.len;
        break;
    case TWICE:
        n = 2;
        break;
    case OTHER_ID:
        h.request_id ^= take(w);
        break;
    case CLOSE:
        shutdown(c->fd, SHUT_RDWR);
        return;
    case ERROR_ANSWER:
        h.flags = WIRE_F_RESPONSE | WIRE_F_END | WIRE_F_ERROR;
        w->msg.len = 0;
        ANSWER(error, .code = take(w), .text = "no");
        n_payload = 0;
        break;
    case NOT_LAST:
        h.flags ^= WIRE_F_END;
        break;
    case NOTHING:
        return;
    case PAYLOAD_TOO:
        n_payload = take(w) % (PAYLOAD + 1);
        break;
    default:
        break;
    }
    while (n-- > 0)
        send_frame(c, h, w->msg.data, w->msg.len, w->payload, n_payload);
}

static void on_request(struct world *w, struct conn *c, const struct wire_hdr *h,
                       const uint8_t *msg) {
    if (h->flags & WIRE_F_ONEWAY)
        return;
    struct asked a = read_request(w, h, msg);
    for (uint32_t i = 0; i < a.n_ids; i++)
        play(w, c, h, &a, i);
}

static void read_requests(struct world *w, struct conn *c) {
    static const struct wire_limits lim = {WIRE_MAX_MSG_BYTES, WIRE_MAX_PAYLOAD_BYTES};
    ssize_t k = recv(c->fd, c->in + c->n, sizeof(c->in) - c->n, MSG_DONTWAIT);
    if (k == 0 || (k < 0 && errno != EAGAIN)) {
        close(c->fd);
        c->fd = -1;
        return;
    }
    c->n += k > 0 ? (size_t)k : 0;
    struct wire_hdr h;
    for (size_t whole; c->fd >= 0 && wire_frame_read(&lim, c->in, c->n, &h) == 0; c->n -= whole) {
        whole = WIRE_HDR_BYTES + (size_t)h.msg_len + h.payload_len;
        if (c->n < whole)
            return;
        on_request(w, c, &h, c->in + WIRE_HDR_BYTES);
        memmove(c->in, c->in + whole, c->n - whole);
    }
}

static void node_turn(struct world *w) {
    while (w->n_conns < MAX_CONNS) {
        int fd = accept4(w->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            break;
        w->conn[w->n_conns++].fd = fd;
    }
    for (int i = 0; i < w->n_conns; i++)
        if (w->conn[i].fd >= 0)
            read_requests(w, &w->conn[i]);
}

/* ---- the client ---- */

static void on_lookup(void *arg, int rv, const struct kv_lookup_res *res) {
    struct world *w = arg;
    w->n_called_back++;
    if (rv == 0)
        kv_client_release(w->client, res->lease, 1);
}
static void on_block(void *arg, uint32_t i, int rv) {
    struct world *w = arg;
    CHECK(i < N_BLOCKS && (rv != 0 || memcmp(w->dst[i], w->payload, PAYLOAD) == 0));
}
static void on_fetch(void *arg, int rv, const struct kv_fetch_res *res) {
    (void)rv;
    CHECK(res->n_ok + res->n_miss + res->n_corrupt <= N_BLOCKS);
    ((struct world *)arg)->n_called_back++;
}
static void on_put(void *arg, int rv, const struct kv_put_res *res) {
    (void)rv, (void)res;
    ((struct world *)arg)->n_called_back++;
}
static void on_done(void *arg, int rv) {
    (void)rv;
    ((struct world *)arg)->n_called_back++;
}

static void start_calls(struct world *w) {
    static uint8_t *dst[N_BLOCKS];
    static const uint8_t *src[N_BLOCKS];
    static const uint64_t *sums[N_BLOCKS];
    static const struct block_id *chains[1];
    static const uint32_t lens[1] = {N_BLOCKS};
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        dst[i] = w->dst[i];
        src[i] = w->payload;
        sums[i] = w->sums;
    }
    chains[0] = w->chain;
    struct kv_lookup l = {
        .ns = w->ns, .chain = w->chain, .n = N_BLOCKS, .flags = 3, .deadline_ms = DEADLINE_MS};
    struct kv_fetch f = {.ns = w->ns,
                         .chain = w->chain,
                         .n = N_BLOCKS,
                         .dst = dst,
                         .deadline_ms = DEADLINE_MS,
                         .on_block = on_block};
    struct kv_put p = {.ns = w->ns,
                       .chain = w->chain,
                       .n = N_BLOCKS,
                       .payload = src,
                       .checksum = w->checksum,
                       .range_checksums = sums,
                       .deadline_ms = DEADLINE_MS};
    struct kv_touch t = {
        .ns = w->ns, .chains = chains, .lens = lens, .n_chains = 1, .deadline_ms = DEADLINE_MS};
    struct kv_call *call;
    w->is_started = true;
    w->n_begun += kv_client_lookup(w->client, &l, on_lookup, w, NULL) == 0;
    w->n_begun += kv_client_fetch(w->client, &f, on_fetch, w, NULL) == 0;
    w->n_begun += kv_client_put(w->client, &p, on_put, w, NULL) == 0;
    w->n_begun += kv_client_touch(w->client, &t, on_done, w, NULL) == 0;
    int rv = kv_client_lookup(w->client, &l, on_lookup, w, &call); /* whose answer comes too late */
    w->n_begun += rv == 0;
    if (rv == 0)
        kv_call_cancel(call);
}

static void on_closed(void *arg) {
    ((struct world *)arg)->is_closed = true;
}

static void setup(struct world *w) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(w->path, sizeof(w->path), "/tmp/fuzz-kv-%d.sock", (int)getpid());
    snprintf(un.sun_path, sizeof(un.sun_path), "%s", w->path);
    w->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    unlink(w->path);
    CHECK(bind(w->listener, (struct sockaddr *)&un, sizeof(un)) == 0 &&
          listen(w->listener, 8) == 0);
    CHECK(uv_loop_init(&w->loop) == 0);
    w->scratch = (struct bump){.base = w->arena, .cap = sizeof(w->arena)};
    w->msg = (struct buf){.data = w->msg_bytes, .cap = sizeof(w->msg_bytes)};
    for (uint32_t i = 0; i < PAYLOAD; i++)
        w->payload[i] = (uint8_t)(i * 7);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        w->chain[i].b[0] = (uint8_t)(i + 1);
        w->checksum[i] = checksum_block(w->payload, range_sizes, N_RANGES, w->chain[i].b, w->sums);
        memset(w->dst[i] + PAYLOAD, 0xee, 8);
    }
    char addr[80];
    snprintf(addr, sizeof(addr), "unix:%s", w->path);
    const char *addrs[1] = {addr};
    struct kv_client_cfg cfg = {.addrs = addrs,
                                .n_addrs = 1,
                                .role = MSG_ROLE_WORKER,
                                .n_data_conns = 2,
                                .backoff_min_ms = 1,
                                .backoff_max_ms = 1};
    struct kv_namespace ns = {.digest = {1},
                              .descriptor = "a=1\n",
                              .descriptor_len = 4,
                              .range_sizes = range_sizes,
                              .n_ranges = N_RANGES,
                              .n_full = N_RANGES};
    CHECK(kv_client_open(&w->client, &w->loop, &cfg, NULL) == 0);
    CHECK(kv_client_namespace(w->client, &ns, &w->ns) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct world *w = calloc(1, sizeof(*w));
    CHECK(w);
    w->p = data;
    w->end = data + size;
    setup(w);
    for (int i = 0; i < MAX_TURNS; i++) {
        uv_run(&w->loop, UV_RUN_NOWAIT);
        node_turn(w);
        if (!w->is_started && kv_client_nodes_up(w->client))
            start_calls(w);
        if (w->is_started && w->n_called_back == w->n_begun && w->p == w->end)
            break;
    }
    kv_client_close(w->client, on_closed, w);
    for (int i = 0; i < 1000 && !w->is_closed; i++)
        uv_run(&w->loop, UV_RUN_NOWAIT);
    CHECK(w->is_closed && w->n_called_back == w->n_begun && w->n_begun <= N_CALLS);
    uv_run(&w->loop, UV_RUN_NOWAIT);
    CHECK(uv_loop_close(&w->loop) == 0);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        for (uint32_t k = 0; k < 8; k++)
            CHECK(w->dst[i][PAYLOAD + k] == 0xee);
    for (int i = 0; i < w->n_conns; i++)
        if (w->conn[i].fd >= 0)
            close(w->conn[i].fd);
    close(w->listener);
    unlink(w->path);
    free(w);
    return 0;
}
