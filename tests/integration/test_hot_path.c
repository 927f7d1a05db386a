/* Between a whole request and the last byte of its answer a node allocates nothing: Lookup, Touch
 * and Fetch hits are asked a thousand times over a bare socket, by a client that does not allocate
 * either, and malloc is counted. */
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/bump.h"
#include "common/check.h"
#include "proto/wire_frame.h"
#include "proto/wire_msg.h"
#include "tests/integration/node_fixture.h"
#include "tests/support/fault.h"

#define N_BLOCKS 8u
#define ROUNDS 1000u

struct raw { /* a connection; answers are read whole into in[] */
    struct node_fixture *f;
    int fd;
    uint64_t next_id;
    size_t have;
    uint8_t in[WIRE_HDR_BYTES + 65536 + NODE_PAYLOAD];
};

struct fixture {
    struct node_fixture nf;
    struct raw control, data;
    struct bump scratch;
    struct buf *msg;
    struct block_id ids[N_BLOCKS];
    uint32_t ns;
};

static void raw_open(struct raw *r, struct node_fixture *nf) {
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons(cachesvc_rpc_port(nf->node)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    r->f = nf;
    r->have = 0;
    r->next_id = 1;
    r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(r->fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
}

static void raw_send(struct raw *r, uint16_t method, const struct buf *msg) {
    uint8_t out[WIRE_HDR_BYTES + 1024]; /* in one piece: two would wait for each other's ACK */
    struct wire_hdr h = {.version = WIRE_VERSION,
                         .method = method,
                         .request_id = r->next_id++,
                         .msg_len = (uint32_t)msg->len};
    CHECK(msg->len <= sizeof(out) - WIRE_HDR_BYTES);
    wire_hdr_encode(&h, msg->data, out);
    memcpy(out + WIRE_HDR_BYTES, msg->data, msg->len);
    size_t n = WIRE_HDR_BYTES + msg->len;
    CHECK(send(r->fd, out, n, MSG_NOSIGNAL) == (ssize_t)n);
}

/* The next frame, at r->in; the node works meanwhile, on this very thread. */
static struct wire_hdr raw_recv(struct raw *r) {
    const struct wire_limits lim = {65536, NODE_PAYLOAD};
    struct wire_hdr h = {0};
    for (;;) {
        int64_t more = wire_frame_read(&lim, r->in, r->have, &h);
        CHECK(more >= 0);
        size_t want =
            more == 0 ? WIRE_HDR_BYTES + (size_t)h.msg_len + h.payload_len : r->have + (size_t)more;
        if (more == 0 && r->have == want)
            break;
        ssize_t k = recv(r->fd, r->in + r->have, want - r->have, MSG_DONTWAIT);
        CHECK(k > 0 || (k < 0 && errno == EAGAIN));
        r->have += k > 0 ? (size_t)k : 0;
        if (k < 0)
            test_loop_turn(&r->f->tl);
    }
    r->have = 0;
    if (h.flags & WIRE_F_ERROR)
        fail_msg("method %u: error frame", h.method);
    return h;
}

#define ENCODE(f, name, ...)                                                                       \
    do {                                                                                           \
        struct msg_##name m_ = {__VA_ARGS__};                                                      \
        bump_reset(&(f)->scratch);                                                                 \
        (f)->msg->len = 0;                                                                         \
        CHECK(wire_msg_##name##_encode(&(f)->scratch, &m_, (f)->msg) == 0);                        \
    } while (0)

static void open_session(struct fixture *f) {
    static const char text[] = "block=32\ndtype=f16\nmodel=test\n"; /* node_fixture's */
    struct errbuf eb;
    struct msg_hello_res hello;
    struct msg_register_ns_res ns;
    uint8_t token[16];
    raw_open(&f->control, &f->nf);
    ENCODE(f, hello_req, .version_min = 2, .version_max = 2, .role = MSG_ROLE_WORKER,
           .client_name = "raw");
    raw_send(&f->control, WIRE_HELLO, f->msg);
    struct wire_hdr h = raw_recv(&f->control);
    CHECK(wire_msg_hello_res_decode(&f->scratch, f->control.in + WIRE_HDR_BYTES, h.msg_len, &hello,
                                    &eb) == 0);
    memcpy(token, hello.session_token.p, sizeof(token));
    raw_open(&f->data, &f->nf);
    ENCODE(f, hello_req, .version_min = 2, .version_max = 2,
           .session_token = {token, sizeof(token)});
    raw_send(&f->data, WIRE_HELLO, f->msg);
    raw_recv(&f->data);
    ENCODE(f, register_ns_req, .digest = {f->nf.ns_digest, 32},
           .descriptor = {(const uint8_t *)text, sizeof(text) - 1}, .range_sizes = node_range_sizes,
           .n_range_sizes = NODE_RANGES, .n_full = NODE_RANGES, .seg_blocks = 8);
    raw_send(&f->control, WIRE_REGISTER_NS, f->msg);
    h = raw_recv(&f->control);
    CHECK(wire_msg_register_ns_res_decode(&f->scratch, f->control.in + WIRE_HDR_BYTES, h.msg_len,
                                          &ns, &eb) == 0);
    f->ns = ns.ns;
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    int st[N_BLOCKS];
    node_fixture_init(&f->nf);
    node_fixture_start(&f->nf);
    node_fixture_connect(&f->nf, MSG_ROLE_WORKER, NULL);
    assert_int_equal(node_put(&f->nf, 1, 0, N_BLOCKS, -1, st), 0);
    node_fixture_disconnect(&f->nf); /* from here on only the bare client talks */
    node_chain(1, f->ids, N_BLOCKS);
    assert_int_equal(bump_init(&f->scratch, 1u << 20), 0);
    f->msg = buf_new(65536);
    open_session(f);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    close(f->control.fd);
    close(f->data.fd);
    bump_fini(&f->scratch);
    buf_unref(f->msg);
    node_fixture_fini(&f->nf);
    free(f);
    return 0;
}

static void lookup(struct fixture *f) {
    struct errbuf eb;
    struct msg_lookup_res res;
    ENCODE(f, lookup_req, .ns = f->ns, .ids = f->ids, .n_ids = N_BLOCKS,
           .flags = MSG_LOOKUP_F_TOUCH | MSG_LOOKUP_F_LEASE);
    raw_send(&f->control, WIRE_LOOKUP, f->msg);
    struct wire_hdr h = raw_recv(&f->control);
    CHECK(wire_msg_lookup_res_decode(&f->scratch, f->control.in + WIRE_HDR_BYTES, h.msg_len, &res,
                                     &eb) == 0);
    CHECK(res.n_prefix == N_BLOCKS && res.lease_count == N_BLOCKS);
    ENCODE(f, release_req, .lease_id = res.lease_id, .used = 1);
    raw_send(&f->control, WIRE_RELEASE, f->msg);
    raw_recv(&f->control);
    ENCODE(f, touch_req, .ns = f->ns, .ids = &f->ids[N_BLOCKS - 1], .n_ids = 1);
    raw_send(&f->control, WIRE_TOUCH, f->msg);
    raw_recv(&f->control);
}

static void fetch(struct fixture *f) {
    struct errbuf eb;
    struct msg_fetch_block res;
    ENCODE(f, fetch_req, .ns = f->ns, .ids = f->ids, .n_ids = N_BLOCKS);
    raw_send(&f->data, WIRE_FETCH, f->msg);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        struct wire_hdr h = raw_recv(&f->data);
        bump_reset(&f->scratch);
        CHECK(wire_msg_fetch_block_decode(&f->scratch, f->data.in + WIRE_HDR_BYTES, h.msg_len, &res,
                                          &eb) == 0);
        CHECK(res.index == i && res.status == MSG_FETCH_OK && h.payload_len == NODE_PAYLOAD);
        CHECK(((h.flags & WIRE_F_END) != 0) == (i + 1 == N_BLOCKS));
    }
}

static void test_lookup_hit_allocates_nothing(void **state) {
    struct fixture *f = *state;
    lookup(f); /* whatever the first time takes */
    uint64_t before = malloc_probe_count();
    assert_true(before > 0); /* the count is alive */
    for (uint32_t i = 0; i < ROUNDS; i++)
        lookup(f);
    assert_int_equal(malloc_probe_count() - before, 0);
}

static void test_fetch_hit_allocates_nothing(void **state) {
    struct fixture *f = *state;
    fetch(f);
    uint64_t before = malloc_probe_count();
    assert_true(before > 0); /* the count is alive */
    for (uint32_t i = 0; i < ROUNDS / N_BLOCKS; i++)
        fetch(f);
    assert_int_equal(malloc_probe_count() - before, 0);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lookup_hit_allocates_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fetch_hit_allocates_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
