#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "common/bump.h"
#include "proto/rpc_conn.h"
#include "proto/rpc_sock.h"
#include "proto/wire_msg.h"
#include "tests/support/fake_clock.h"

#define PAYLOAD_MAX (1u << 20)

/* One connection under test; the other end of its socketpair is a plain descriptor. */
struct fixture {
    uv_loop_t loop;
    struct rpc_conn *conn;
    int peer;
    bool is_gone, is_closed;
    /* what the callbacks saw */
    int n_head, n_frame, n_abort, n_drain, n_close, close_err;
    bool has_close_hdr;
    struct wire_hdr last, close_hdr;
    uint8_t msg[2048];
    uint8_t *dst; /* [PAYLOAD_MAX] */
    size_t part_max;
    int n_parts;
    /* what they do */
    bool drop_payload, close_in_head, close_in_frame, pause_in_frame;
    int head_rv;
    int n_released;
};

static void on_closed(struct rpc_conn *c, void *arg) {
    struct fixture *f = arg;
    (void)c;
    f->is_closed = true;
}

static void close_conn(struct fixture *f) {
    rpc_conn_close(f->conn, on_closed);
    f->is_gone = true;
}

static void on_part(struct rpc_sink *s, size_t got) {
    struct fixture *f = s->ctx;
    assert_true(got > f->part_max || f->n_parts == 0);
    f->part_max = got;
    f->n_parts++;
}

static int on_head(struct rpc_conn *c, void *arg, const struct wire_hdr *h, const uint8_t *msg,
                   struct rpc_sink *ret) {
    struct fixture *f = arg;
    (void)c, (void)msg;
    f->n_head++;
    f->n_parts = 0;
    f->part_max = 0;
    if (f->close_in_head)
        close_conn(f);
    if (h->payload_len && !f->drop_payload)
        *ret = (struct rpc_sink){.dst = f->dst, .part = on_part, .ctx = f};
    return f->head_rv;
}

static void on_frame(struct rpc_conn *c, void *arg, const struct wire_hdr *h, const uint8_t *msg,
                     struct rpc_sink *sink) {
    struct fixture *f = arg;
    f->n_frame++;
    f->last = *h;
    memcpy(f->msg, msg, MIN(h->msg_len, (uint32_t)sizeof(f->msg)));
    if (sink->dst)
        assert_int_equal(f->part_max, h->payload_len);
    if (f->pause_in_frame)
        rpc_conn_pause(c, true);
    if (f->close_in_frame)
        close_conn(f);
}

static void on_abort(struct rpc_conn *c, void *arg, struct rpc_sink *sink) {
    struct fixture *f = arg;
    (void)c, (void)sink;
    f->n_abort++;
}

static void on_drain(struct rpc_conn *c, void *arg) {
    struct fixture *f = arg;
    (void)c;
    f->n_drain++;
}

static void on_broken(struct rpc_conn *c, void *arg, int err, const struct wire_hdr *h) {
    struct fixture *f = arg;
    (void)c;
    f->n_close++;
    f->close_err = err;
    f->has_close_hdr = h != NULL;
    if (h)
        f->close_hdr = *h;
}

static const struct rpc_conn_ops ops = {on_head, on_frame, on_abort, on_drain, on_broken};

static void open_pair(struct fixture *f, const struct rpc_conn_cfg *cfg) {
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    assert_int_equal(rpc_conn_open(&f->conn, &f->loop, fd[0], false, cfg, &ops, f), 0);
    f->peer = fd[1];
}

static int setup_with(void **state, const struct clock *clk) {
    struct fixture *f = calloc(1, sizeof(*f));
    uv_loop_init(&f->loop);
    f->dst = malloc(PAYLOAD_MAX);
    struct rpc_conn_cfg cfg = {.limits = {4096, PAYLOAD_MAX},
                               .max_out_frames = 8,
                               .max_out_bytes = 2 * PAYLOAD_MAX,
                               .writable_bytes = 65536,
                               .clk = clk};
    open_pair(f, &cfg);
    *state = f;
    return 0;
}

static int setup(void **state) {
    return setup_with(state, NULL);
}

/* Every look at the clock takes a third of a slice. */
static int setup_slow(void **state) {
    static struct fake_clock fc;
    fake_clock_init(&fc);
    fc.step_ns = RPC_CONN_SLICE_NS / 3;
    return setup_with(state, &fc.clk);
}

static void turn(struct fixture *f, int n) {
    for (int i = 0; i < n; i++)
        uv_run(&f->loop, UV_RUN_NOWAIT);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    if (!f->is_gone)
        close_conn(f);
    turn(f, 5);
    assert_true(f->is_closed);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    assert_int_equal(f->n_head, f->n_frame + f->n_abort + (f->head_rv < 0));
    close(f->peer);
    free(f->dst);
    free(f);
    return 0;
}

/* A frame with recognisable bytes; returns its length. */
static size_t make_frame(uint8_t *p, uint64_t id, uint32_t msg_len, uint32_t payload_len) {
    uint8_t *msg = p + WIRE_HDR_BYTES;
    for (uint32_t i = 0; i < msg_len + payload_len; i++)
        msg[i] = (uint8_t)(i * 7 + id);
    struct wire_hdr h = {.version = WIRE_VERSION,
                         .flags = WIRE_F_RESPONSE,
                         .method = 5,
                         .request_id = id,
                         .msg_len = msg_len,
                         .payload_len = payload_len};
    wire_hdr_encode(&h, msg, p);
    return WIRE_HDR_BYTES + (size_t)msg_len + payload_len;
}

static void write_all(struct fixture *f, const uint8_t *p, size_t n) {
    while (n > 0) {
        ssize_t k = write(f->peer, p, n);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
        turn(f, 1);
    }
    turn(f, 2);
}

static size_t read_some(struct fixture *f, uint8_t *p, size_t n) {
    ssize_t k = read(f->peer, p, n);
    turn(f, 1);
    return k > 0 ? (size_t)k : 0;
}

static void on_release(struct buf *b) {
    struct fixture *f = b->owner;
    f->n_released++;
}

static int send_frame(struct fixture *f, uint64_t id, struct buf *payload) {
    struct wire_hdr h = {.method = 5, .request_id = id, .flags = WIRE_F_RESPONSE};
    return rpc_conn_send(f->conn, &h, "message", 7, payload);
}

/* ---- receiving ---- */

static void test_frames_in_pieces_of_every_size(void **state) {
    struct fixture *f = *state;
    static uint8_t stream[3 * 4096];
    size_t n = make_frame(stream, 1, 100, 300);
    n += make_frame(stream + n, 2, 0, 0);
    n += make_frame(stream + n, 3, 3000, 5);
    for (size_t piece = 1; piece <= n; piece += piece < 80 ? 1 : 37) {
        int heads = f->n_head, frames = f->n_frame;
        for (size_t at = 0; at < n; at += piece)
            write_all(f, stream + at, MIN(piece, n - at));
        assert_int_equal(f->n_head, heads + 3);
        assert_int_equal(f->n_frame, frames + 3);
        assert_int_equal(f->last.request_id, 3);
        for (uint32_t i = 0; i < 5; i++) /* the last payload */
            assert_int_equal(f->dst[i], (uint8_t)((3000 + i) * 7 + 3));
        for (uint32_t i = 0; i < 2048; i++)
            assert_int_equal(f->msg[i], (uint8_t)(i * 7 + 3));
    }
    assert_int_equal(f->n_close, 0);
}

/* A: one read brought forty requests, and whoever came behind waited until all of them were served. */
static void test_a_peer_has_a_slice_of_each_turn(void **state) {
    struct fixture *f = *state;
    static uint8_t stream[40 * 64];
    size_t n = 0;
    for (uint64_t i = 1; i <= 40; i++)
        n += make_frame(stream + n, i, 8, 8);
    assert_int_equal(write(f->peer, stream, n), (ssize_t)n);
    int n_turns = 0;
    for (int was = 0; f->n_frame < 40; was = f->n_frame, n_turns++) {
        turn(f, 1);
        assert_in_range(f->n_frame - was, 1, 4); /* at least one, however long it takes */
    }
    assert_true(n_turns >= 10);
    assert_int_equal(f->last.request_id, 40);
}

static void test_large_payload_lands_at_its_destination(void **state) {
    struct fixture *f = *state;
    uint8_t *p = malloc(PAYLOAD_MAX + 4096);
    size_t n = make_frame(p, 9, 11, PAYLOAD_MAX);
    write_all(f, p, n);
    assert_int_equal(f->n_frame, 1);
    assert_memory_equal(f->dst, p + WIRE_HDR_BYTES + 11, PAYLOAD_MAX);
    assert_true(f->n_parts > 1); /* checked while it arrives, not at its end */
    free(p);
}

static void test_payload_without_destination_is_dropped(void **state) {
    struct fixture *f = *state;
    uint8_t p[8192];
    f->drop_payload = true;
    memset(f->dst, 0xee, 100);
    write_all(f, p, make_frame(p, 1, 10, 5000));
    write_all(f, p, make_frame(p, 2, 10, 0));
    assert_int_equal(f->n_frame, 2);
    assert_int_equal(f->dst[0], 0xee);
}

static void test_redirect_midway_stops_writing(void **state) {
    struct fixture *f = *state;
    uint8_t p[8192];
    size_t n = make_frame(p, 1, 10, 5000);
    write_all(f, p, 1000);
    assert_false(rpc_conn_redirect(f->conn, &n)); /* somebody else's */
    assert_true(rpc_conn_redirect(f->conn, f));
    memset(f->dst, 0xee, 5000);
    write_all(f, p + 1000, n - 1000);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(f->dst[i], 0xee);
    assert_int_equal(f->n_frame, 1);
}

static void test_peer_gone_between_frames_is_closed(void **state) {
    struct fixture *f = *state;
    uint8_t p[256];
    write_all(f, p, make_frame(p, 1, 10, 10));
    shutdown(f->peer, SHUT_WR);
    turn(f, 2);
    assert_int_equal(f->n_close, 1);
    assert_int_equal(f->close_err, ERR_CLOSED);
    assert_int_equal(f->n_abort, 0);
}

static void test_peer_gone_inside_a_payload_aborts_it(void **state) {
    struct fixture *f = *state;
    uint8_t p[8192];
    make_frame(p, 1, 10, 5000);
    write_all(f, p, 2000);
    shutdown(f->peer, SHUT_WR);
    turn(f, 2);
    assert_int_equal(f->n_abort, 1);
    assert_int_equal(f->n_close, 1);
}

static void test_close_inside_a_payload_aborts_it(void **state) {
    struct fixture *f = *state;
    uint8_t p[8192];
    make_frame(p, 1, 10, 5000);
    write_all(f, p, 2000);
    close_conn(f);
    assert_int_equal(f->n_abort, 1);
    turn(f, 3);
    assert_int_equal(f->n_close, 0);
}

static void test_callbacks_may_close(void **state) {
    struct fixture *f = *state;
    uint8_t p[512];
    size_t n = make_frame(p, 1, 10, 20);
    n += make_frame(p + n, 2, 10, 20);
    f->close_in_frame = true;
    assert_int_equal(write(f->peer, p, n), n);
    turn(f, 3);
    assert_int_equal(f->n_frame, 1);
    assert_true(f->is_closed);
}

static void test_on_head_may_close(void **state) {
    struct fixture *f = *state;
    uint8_t p[512];
    f->close_in_head = true;
    size_t n = make_frame(p, 1, 10, 20);
    assert_int_equal(write(f->peer, p, n), n);
    turn(f, 3);
    assert_int_equal(f->n_frame, 0);
    assert_int_equal(f->n_abort, 1);
}

static void test_on_head_error_ends_the_connection(void **state) {
    struct fixture *f = *state;
    uint8_t p[512];
    f->head_rv = ERR_NOMEM;
    write_all(f, p, make_frame(p, 1, 10, 20));
    assert_int_equal(f->close_err, ERR_NOMEM);
    assert_int_equal(f->n_frame, 0);
}

static void test_pause_keeps_buffered_frames_until_resumed(void **state) {
    struct fixture *f = *state;
    uint8_t p[512];
    size_t n = make_frame(p, 1, 10, 0);
    n += make_frame(p + n, 2, 10, 0);
    n += make_frame(p + n, 3, 10, 0);
    f->pause_in_frame = true;
    write_all(f, p, n);
    assert_int_equal(f->n_frame, 1);
    f->pause_in_frame = false;
    rpc_conn_pause(f->conn, false);
    turn(f, 2);
    assert_int_equal(f->n_frame, 3);
}

static void broken_frame(struct fixture *f, size_t at, uint8_t value, int want_err, bool want_hdr) {
    uint8_t p[256];
    size_t n = make_frame(p, 77, 10, 0);
    p[at] = value;
    write_all(f, p, n);
    assert_int_equal(f->n_close, 1);
    assert_int_equal(f->close_err, want_err);
    assert_int_equal(f->has_close_hdr, want_hdr);
    if (want_hdr)
        assert_int_equal(f->close_hdr.request_id, 77);
}

static void test_wrong_magic_breaks(void **state) {
    broken_frame(*state, 0, 'X', ERR_PROTO, false);
}

static void test_other_version_breaks_and_names_the_request(void **state) {
    broken_frame(*state, 4, 9, ERR_UNSUPPORTED, true);
}

static void test_wrong_crc_breaks_and_names_the_request(void **state) {
    broken_frame(*state, WIRE_HDR_BYTES, 0xff, ERR_CORRUPT, true);
}

static void test_overlong_message_breaks_before_it_is_read(void **state) {
    broken_frame(*state, 19, 0xff, ERR_TOOBIG, true);
}

/* ---- sending ---- */

static void test_sent_frames_arrive_whole_and_payloads_are_given_back(void **state) {
    struct fixture *f = *state;
    struct buf b[3];
    uint8_t *payload = malloc(500000), *got = malloc(2000000);
    for (int i = 0; i < 500000; i++)
        payload[i] = (uint8_t)(i * 13);
    for (int i = 0; i < 3; i++) {
        buf_init_extern(&b[i], payload, 500000, on_release, f);
        assert_int_equal(send_frame(f, (uint64_t)i, &b[i]), 0);
    }
    assert_true(f->n_released < 3); /* more than the socket takes at once */
    assert_false(rpc_conn_writable(f->conn));
    size_t n = 0, k;
    while ((k = read_some(f, got + n, 70001)) > 0 || rpc_conn_queued_bytes(f->conn) > 0)
        n += k;
    assert_int_equal(n, 3 * (WIRE_HDR_BYTES + 7 + 500000));
    assert_int_equal(f->n_released, 3);
    for (int i = 0; i < 3; i++) {
        const uint8_t *at = got + (size_t)i * (WIRE_HDR_BYTES + 7 + 500000);
        assert_int_equal(wire_hdr_check_crc(at, at + WIRE_HDR_BYTES, 7), 0);
        assert_memory_equal(at + WIRE_HDR_BYTES + 7, payload, 500000);
    }
    assert_int_equal(f->n_drain, 1);
    free(payload);
    free(got);
}

static void test_full_queue_is_busy_and_drains(void **state) {
    struct fixture *f = *state;
    uint8_t *payload = calloc(1, 400000), sink[65536];
    struct buf b[20];
    int n_ok = 0, rv = 0;
    for (int i = 0; i < 20 && rv == 0; i++) {
        buf_init_extern(&b[i], payload, 400000, on_release, f);
        rv = send_frame(f, (uint64_t)i, &b[i]);
        n_ok += rv == 0;
    }
    assert_int_equal(rv, ERR_BUSY);
    assert_in_range(n_ok, 4, 9);
    assert_true(rpc_conn_queued_bytes(f->conn) <= 2 * PAYLOAD_MAX);
    assert_true(f->n_released < n_ok); /* the refused one and what went out at once */
    while (rpc_conn_queued_bytes(f->conn) > 0)
        read_some(f, sink, sizeof(sink));
    turn(f, 2);
    assert_int_equal(f->n_released, n_ok + 1);
    assert_int_equal(f->n_drain, 1);
    free(payload);
}

static void test_close_with_frames_queued_gives_payloads_back(void **state) {
    struct fixture *f = *state;
    uint8_t *payload = calloc(1, 600000);
    struct buf b[3];
    for (int i = 0; i < 3; i++) {
        buf_init_extern(&b[i], payload, 600000, on_release, f);
        assert_int_equal(send_frame(f, 1, &b[i]), 0);
    }
    close_conn(f);
    assert_int_equal(f->n_released, 3);
    struct buf late;
    buf_init_extern(&late, payload, 10, on_release, f);
    struct rpc_conn *c = f->conn;
    struct wire_hdr h = {.method = 1};
    assert_int_equal(rpc_conn_send(c, &h, NULL, 0, &late), ERR_CLOSED);
    assert_int_equal(f->n_released, 4); /* consumed also on error */
    free(payload);
}

static void test_peer_gone_while_sending_breaks(void **state) {
    struct fixture *f = *state;
    uint8_t *payload = calloc(1, 900000);
    static struct buf b; /* queued until the teardown closes the connection */
    buf_init_extern(&b, payload, 900000, on_release, f);
    assert_int_equal(send_frame(f, 1, &b), 0);
    close(f->peer);
    f->peer = open("/dev/null", O_RDONLY);
    turn(f, 3);
    assert_int_equal(f->n_close, 1);
    assert_true(f->close_err < 0);
    free(payload);
}

static void test_dropped_request_goes_on_from_a_copy(void **state) {
    struct fixture *f = *state;
    size_t each = WIRE_HDR_BYTES + 7 + 700000, n = 0, k;
    uint8_t *payload = malloc(700000), *got = malloc(3 * each);
    struct buf b[3];
    for (int i = 0; i < 700000; i++)
        payload[i] = (uint8_t)(i >> 3);
    for (int i = 0; i < 3; i++) {
        buf_init_extern(&b[i], payload, 700000, on_release, f);
        assert_int_equal(send_frame(f, i == 2 ? 6 : 5, &b[i]), 0);
    }
    assert_int_equal(rpc_conn_drop_queued(f->conn, 5), 0);
    assert_int_equal(f->n_released, 2); /* the half sent and the waiting one */
    assert_int_equal(rpc_conn_drop_queued(f->conn, 6), 0);
    assert_int_equal(f->n_released, 3);
    uint8_t *want = malloc(700000);
    memcpy(want, payload, 700000);
    memset(payload, 0xee, 700000); /* the caller does with it what it likes */
    while ((k = read_some(f, got + n, 100000)) > 0 || rpc_conn_queued_bytes(f->conn) > 0)
        n += k;
    assert_int_equal(n, each);
    assert_memory_equal(got + WIRE_HDR_BYTES + 7, want, 700000);
    free(payload);
    free(want);
    free(got);
}

static void test_long_message_is_sent_from_the_heap(void **state) {
    struct fixture *f = *state;
    uint8_t msg[3000], got[4096];
    struct wire_hdr h = {.method = 1, .request_id = 1};
    memset(msg, 'm', sizeof(msg));
    assert_int_equal(rpc_conn_send(f->conn, &h, msg, sizeof(msg), NULL), 0);
    assert_int_equal(read_some(f, got, sizeof(got)), WIRE_HDR_BYTES + sizeof(msg));
    assert_memory_equal(got + WIRE_HDR_BYTES, msg, sizeof(msg));
}

static void test_close_after_flush_sends_everything_first(void **state) {
    struct fixture *f = *state;
    uint8_t *payload = calloc(1, 900000), *got = malloc(1000000);
    struct buf b;
    buf_init_extern(&b, payload, 900000, on_release, f);
    assert_int_equal(send_frame(f, 1, &b), 0);
    rpc_conn_close_after_flush(f->conn, 5000, on_closed);
    f->is_gone = true;
    size_t n = 0;
    ssize_t k;
    while ((k = read(f->peer, got + n, 1000000 - n)) != 0) {
        n += k > 0 ? (size_t)k : 0;
        turn(f, 1);
    }
    assert_int_equal(n, WIRE_HDR_BYTES + 7 + 900000);
    assert_false(f->is_closed); /* it waits for the peer's end */
    shutdown(f->peer, SHUT_WR);
    turn(f, 4);
    assert_true(f->is_closed);
    free(payload);
    free(got);
}

static void test_stalled_tells_how_long_nothing_moved(void **state) {
    struct fixture *f = *state;
    assert_int_equal(rpc_conn_stalled_ns(f->conn), 0);
    uint8_t *payload = calloc(1, 900000);
    static struct buf b; /* queued until the teardown closes the connection */
    buf_init_extern(&b, payload, 900000, on_release, f);
    send_frame(f, 1, &b);
    assert_true(rpc_conn_stalled_ns(f->conn) > 0);
    rpc_conn_drop_queued(f->conn, 1);
    free(payload);
}

static void test_connect_refused_is_told(void **state) {
    struct fixture *f = *state;
    close_conn(f);
    turn(f, 3);
    f->is_gone = f->is_closed = false;
    /* A port that was just closed: bind without listen. */
    int hole = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    assert_int_equal(bind(hole, (struct sockaddr *)&a, len), 0);
    assert_int_equal(getsockname(hole, (struct sockaddr *)&a, &len), 0);
    int fd = rpc_sock_connect((struct sockaddr *)&a, len, NULL);
    assert_true(fd >= 0);
    struct rpc_conn_cfg cfg = {.connecting = true};
    assert_int_equal(rpc_conn_open(&f->conn, &f->loop, fd, true, &cfg, &ops, f), 0);
    assert_int_equal(send_frame(f, 1, NULL), 0); /* waits for the connection */
    turn(f, 5);
    assert_int_equal(f->n_close, 1);
    assert_int_equal(f->close_err, -ECONNREFUSED);
    close(hole);
}

static void test_reply_error_is_an_error_message(void **state) {
    struct fixture *f = *state;
    uint8_t got[1024];
    struct wire_hdr h, req = {.method = WIRE_LOOKUP, .request_id = 42};
    assert_int_equal(rpc_conn_reply_error(f->conn, &req, ERR_BUSY, "later"), 0);
    size_t n = read_some(f, got, sizeof(got));
    struct wire_limits lim = {1000, 1000};
    assert_int_equal(wire_frame_read(&lim, got, n, &h), 0);
    assert_int_equal(h.flags, WIRE_F_RESPONSE | WIRE_F_END | WIRE_F_ERROR);
    struct bump scratch;
    assert_int_equal(bump_init(&scratch, 4096), 0);
    struct msg_error m;
    assert_int_equal(wire_msg_error_decode(&scratch, got + WIRE_HDR_BYTES, h.msg_len, &m, NULL), 0);
    assert_int_equal(wire_err_from_code(m.code), ERR_BUSY);
    assert_string_equal(m.text, "later");
    bump_fini(&scratch);
}

static void test_address_forms(void **state) {
    struct rpc_addr a;
    struct errbuf eb;
    struct fixture *f = *state;
    (void)f;
    assert_int_equal(rpc_addr_parse("127.0.0.1:7070", &a, &eb), 0);
    assert_string_equal(a.host, "127.0.0.1");
    assert_string_equal(a.port, "7070");
    assert_int_equal(rpc_addr_is_public(&a, &eb), 0);
    assert_int_equal(rpc_addr_parse("[::1]:80", &a, &eb), 0);
    assert_string_equal(a.host, "::1");
    assert_int_equal(rpc_addr_parse("unix:/run/x.sock", &a, &eb), 0);
    assert_true(a.is_unix);
    assert_string_equal(a.host, "/run/x.sock");
    assert_int_equal(rpc_addr_parse("/run/x.sock", &a, &eb), 0);
    assert_int_equal(rpc_addr_parse("0.0.0.0:1", &a, &eb), 0);
    assert_int_equal(rpc_addr_is_public(&a, &eb), 1);
    static const char *const bad[] = {"",     "host",   "host:", ":80", "h:65536",
                                      "h:8a", "::1:80", "unix:", "h:-1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(rpc_addr_parse(bad[i], &a, &eb), ERR_INVALID);
}

/* A label of 64 characters: refused by each resolver without a question on the wire. */
#define NO_NAME "0123456789012345678901234567890123456789012345678901234567890123.invalid"

/* G7: "Permission denied" for a directory that is not there, "reachable from other hosts" for a name that
 * leads nowhere. */
static void test_listen_errors_say_what_is_wrong(void **state) {
    static const struct {
        const char *addr, *want;
    } cases[] = {{"unix:/nonexistent/s", "the directory '/nonexistent' does not exist"},
                 {"unix:/dev/null/s", "'/dev/null' is no directory"},
                 {"unix:/dev/null", "is no socket"},
                 {"unix:/proc/s", "'/proc/s'"}};
    struct rpc_addr a;
    struct errbuf eb;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(rpc_addr_parse(cases[i].addr, &a, &eb), 0);
        assert_true(rpc_sock_listen(&a, 1, NULL, &eb) < 0);
        if (!strstr(eb.text, cases[i].want))
            fail_msg("'%s' lacks '%s'", eb.text, cases[i].want);
    }
    assert_int_equal(rpc_addr_parse(NO_NAME ":80", &a, &eb), 0);
    assert_int_equal(rpc_addr_is_public(&a, &eb), ERR_INVALID);
    assert_non_null(strstr(eb.text, "address '" NO_NAME "': "));
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(test_listen_errors_say_what_is_wrong),
        T(test_frames_in_pieces_of_every_size),
        cmocka_unit_test_setup_teardown(test_a_peer_has_a_slice_of_each_turn, setup_slow, teardown),
        T(test_large_payload_lands_at_its_destination),
        T(test_payload_without_destination_is_dropped),
        T(test_redirect_midway_stops_writing),
        T(test_peer_gone_between_frames_is_closed),
        T(test_peer_gone_inside_a_payload_aborts_it),
        T(test_close_inside_a_payload_aborts_it),
        T(test_callbacks_may_close),
        T(test_on_head_may_close),
        T(test_on_head_error_ends_the_connection),
        T(test_pause_keeps_buffered_frames_until_resumed),
        T(test_wrong_magic_breaks),
        T(test_other_version_breaks_and_names_the_request),
        T(test_wrong_crc_breaks_and_names_the_request),
        T(test_overlong_message_breaks_before_it_is_read),
        T(test_sent_frames_arrive_whole_and_payloads_are_given_back),
        T(test_full_queue_is_busy_and_drains),
        T(test_close_with_frames_queued_gives_payloads_back),
        T(test_peer_gone_while_sending_breaks),
        T(test_dropped_request_goes_on_from_a_copy),
        T(test_long_message_is_sent_from_the_heap),
        T(test_close_after_flush_sends_everything_first),
        T(test_stalled_tells_how_long_nothing_moved),
        T(test_connect_refused_is_told),
        T(test_reply_error_is_an_error_message),
        T(test_address_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
