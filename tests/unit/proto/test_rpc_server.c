#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "proto/rpc_server.h"
#include "proto/wire_msg.h"

/* A server with three methods; the client is a plain descriptor. */
struct fixture {
    uv_loop_t loop;
    struct rpc_server *server;
    int peer;
    bool is_closed;
    int n_echo, n_gone, n_accept, n_sunk, n_sink_abort;
    uint64_t now_ns;
    struct clock clk;
    uint8_t dst[8192];
    int sink_rv;
    struct rpc_conn *conn;
    struct bump scratch;
};

static int h_hello(void *arg, struct rpc_call *c, struct errbuf *eb) {
    (void)arg, (void)eb;
    rpc_conn_set_grants(c->conn, 1);
    return rpc_call_reply(c);
}

/* Answers the id that was asked for, through scratch and out. */
static int h_echo(void *arg, struct rpc_call *c, struct errbuf *eb) {
    struct fixture *f = arg;
    struct msg_cancel_req m;
    f->n_echo++;
    int rv = wire_msg_cancel_req_decode(c->scratch, c->msg, c->hdr.msg_len, &m, eb);
    if (rv < 0)
        return rv;
    if (m.request_id == 13)
        return err_set(eb, ERR_NOTFOUND, "no thirteen");
    struct msg_ack ack = {.count = m.request_id};
    rv = wire_msg_ack_encode(c->scratch, &ack, c->out);
    return rv < 0 ? rv : rpc_call_reply(c);
}

static int s_data(void *arg, struct rpc_call *c, struct rpc_sink *ret, struct errbuf *eb) {
    struct fixture *f = arg;
    (void)c;
    if (f->sink_rv < 0)
        return err_set(eb, f->sink_rv, "no slot");
    ret->dst = f->dst;
    return 0;
}

static int h_data(void *arg, struct rpc_call *c, struct errbuf *eb) {
    struct fixture *f = arg;
    (void)eb;
    f->n_sunk += c->sink != NULL;
    return rpc_call_reply(c);
}

static void a_data(void *arg, struct rpc_conn *c, struct rpc_sink *s) {
    struct fixture *f = arg;
    (void)c, (void)s;
    f->n_sink_abort++;
}

static const struct rpc_method methods[] = {
    {WIRE_HELLO, 0, h_hello, NULL, NULL},
    {WIRE_CANCEL, 1, h_echo, NULL, NULL},
    {WIRE_PUT_DATA, 1, h_data, s_data, a_data},
};

static void on_accept(void *arg, struct rpc_conn *c) {
    struct fixture *f = arg;
    f->n_accept++;
    f->conn = c;
}

static void on_gone(void *arg, struct rpc_conn *c) {
    struct fixture *f = arg;
    (void)c;
    f->n_gone++;
}

static uint64_t fake_now(const struct clock *c) {
    return CONTAINER_OF(c, struct fixture, clk)->now_ns;
}

static void adopt(struct fixture *f) {
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    assert_int_equal(rpc_server_adopt(f->server, fd[0]), 0);
    f->peer = fd[1];
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    uv_loop_init(&f->loop);
    f->clk = (struct clock){fake_now, fake_now};
    struct rpc_server_cfg cfg = {.methods = methods,
                                 .n_methods = ARRAY_LEN(methods),
                                 .arg = f,
                                 .on_accept = on_accept,
                                 .on_gone = on_gone,
                                 .clk = &f->clk,
                                 .conn.limits = {4096, 8192},
                                 .max_conns = 2,
                                 .conn.max_out_frames = 16,
                                 .grants_timeout_ms = 4};
    assert_int_equal(rpc_server_open(&f->server, &f->loop, &cfg, NULL), 0);
    assert_int_equal(bump_init(&f->scratch, 4096), 0);
    adopt(f);
    *state = f;
    return 0;
}

static void turn(struct fixture *f, int n) {
    for (int i = 0; i < n; i++)
        uv_run(&f->loop, UV_RUN_NOWAIT);
}

static void on_server_closed(void *arg) {
    ((struct fixture *)arg)->is_closed = true;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rpc_server_close(f->server, on_server_closed, f);
    turn(f, 5);
    assert_true(f->is_closed);
    assert_int_equal(f->n_gone, f->n_accept);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    close(f->peer);
    bump_fini(&f->scratch);
    free(f);
    return 0;
}

static size_t make(uint8_t *p, uint16_t method, uint8_t flags, uint64_t id, const uint8_t *msg,
                   uint32_t n, uint32_t payload_len) {
    struct wire_hdr h = {.version = WIRE_VERSION,
                         .flags = flags,
                         .method = method,
                         .request_id = id,
                         .msg_len = n,
                         .payload_len = payload_len};
    wire_hdr_encode(&h, msg, p);
    if (n)
        memcpy(p + WIRE_HDR_BYTES, msg, n);
    memset(p + WIRE_HDR_BYTES + n, 'p', payload_len);
    return WIRE_HDR_BYTES + n + payload_len;
}

static void send_bytes(struct fixture *f, const uint8_t *p, size_t n) {
    assert_int_equal(write(f->peer, p, n), n);
    turn(f, 3);
}

static void ask(struct fixture *f, uint16_t method, uint8_t flags, uint64_t id, const uint8_t *msg,
                uint32_t n, uint32_t payload_len) {
    uint8_t p[8192 + 256];
    send_bytes(f, p, make(p, method, flags, id, msg, n, payload_len));
}

static void hello(struct fixture *f) {
    uint8_t sink[256];
    ask(f, WIRE_HELLO, 0, 1, NULL, 0, 0);
    assert_int_equal(read(f->peer, sink, sizeof(sink)), WIRE_HDR_BYTES);
}

/* The next answer; its error code, or 0 with *ret_count of an Ack. -1: nothing; -2: end of
 * stream. */
static int answer(struct fixture *f, uint64_t want_id, uint64_t *ret_count) {
    uint8_t p[1024];
    ssize_t n = recv(f->peer, p, WIRE_HDR_BYTES, MSG_WAITALL);
    if (n <= 0)
        return n == 0 ? -2 : -1;
    struct wire_hdr h;
    assert_int_equal(wire_hdr_decode(p, &h), 0);
    assert_int_equal(h.request_id, want_id);
    assert_true(h.flags & WIRE_F_RESPONSE);
    assert_true(h.flags & WIRE_F_END);
    if (h.msg_len)
        assert_int_equal(recv(f->peer, p + WIRE_HDR_BYTES, h.msg_len, MSG_WAITALL), h.msg_len);
    assert_int_equal(wire_hdr_check_crc(p, p + WIRE_HDR_BYTES, h.msg_len), 0);
    bump_reset(&f->scratch);
    if (h.flags & WIRE_F_ERROR) {
        struct msg_error e;
        assert_int_equal(
            wire_msg_error_decode(&f->scratch, p + WIRE_HDR_BYTES, h.msg_len, &e, NULL), 0);
        return (int)e.code;
    }
    struct msg_ack a;
    assert_int_equal(wire_msg_ack_decode(&f->scratch, p + WIRE_HDR_BYTES, h.msg_len, &a, NULL), 0);
    if (ret_count)
        *ret_count = a.count;
    return 0;
}

static const uint8_t cancel_5[] = {0x08, 5}, cancel_13[] = {0x08, 13}, garbage[] = {0xff, 0xff};

static void test_request_is_answered(void **state) {
    struct fixture *f = *state;
    uint64_t count;
    hello(f);
    ask(f, WIRE_CANCEL, 0, 9, cancel_5, 2, 0);
    assert_int_equal(answer(f, 9, &count), 0);
    assert_int_equal(count, 5);
}

static void test_pipelined_requests_are_all_answered(void **state) {
    struct fixture *f = *state;
    uint8_t p[1024];
    size_t n = 0;
    hello(f);
    for (uint64_t id = 1; id <= 20; id++) /* more than the write queue has frames */
        n += make(p + n, WIRE_CANCEL, 0, id, cancel_5, 2, 0);
    send_bytes(f, p, n);
    for (uint64_t id = 1; id <= 20; id++)
        assert_int_equal(answer(f, id, NULL), 0);
    assert_int_equal(f->n_echo, 20);
}

static void test_handler_error_is_answered_with_its_code(void **state) {
    struct fixture *f = *state;
    hello(f);
    ask(f, WIRE_CANCEL, 0, 2, cancel_13, 2, 0);
    assert_int_equal(answer(f, 2, NULL), 4);
}

static void test_malformed_message_is_answered_and_goes_on(void **state) {
    struct fixture *f = *state;
    hello(f);
    ask(f, WIRE_CANCEL, 0, 3, garbage, 2, 0);
    assert_int_equal(answer(f, 3, NULL), 13);
    ask(f, WIRE_CANCEL, 0, 4, cancel_5, 2, 0);
    assert_int_equal(answer(f, 4, NULL), 0);
}

static void test_unknown_method_is_unimplemented(void **state) {
    struct fixture *f = *state;
    hello(f);
    ask(f, WIRE_WAIT, 0, 5, NULL, 0, 0);
    assert_int_equal(answer(f, 5, NULL), 2);
    ask(f, 60000, 0, 6, NULL, 0, 100); /* its payload is skipped */
    assert_int_equal(answer(f, 6, NULL), 2);
    ask(f, WIRE_CANCEL, 0, 7, cancel_5, 2, 0);
    assert_int_equal(answer(f, 7, NULL), 0);
}

static void test_method_before_hello_is_denied(void **state) {
    struct fixture *f = *state;
    ask(f, WIRE_CANCEL, 0, 5, cancel_5, 2, 0);
    assert_int_equal(answer(f, 5, NULL), 5);
    assert_int_equal(f->n_echo, 0);
}

static void test_payload_where_none_belongs_is_bad_request(void **state) {
    struct fixture *f = *state;
    hello(f);
    ask(f, WIRE_CANCEL, 0, 5, cancel_5, 2, 50);
    assert_int_equal(answer(f, 5, NULL), 1);
    assert_int_equal(f->n_echo, 0);
}

static void test_oneway_gets_no_answer_not_even_an_error(void **state) {
    struct fixture *f = *state;
    hello(f);
    ask(f, WIRE_CANCEL, WIRE_F_ONEWAY, 5, cancel_13, 2, 0);
    ask(f, WIRE_CANCEL, WIRE_F_ONEWAY, 6, cancel_5, 2, 0);
    assert_int_equal(f->n_echo, 2);
    ask(f, WIRE_PIN, WIRE_F_ONEWAY, 7, NULL, 0, 0);
    assert_int_equal(answer(f, 0, NULL), -1);
}

static void test_payload_goes_to_the_sink(void **state) {
    struct fixture *f = *state;
    hello(f);
    ask(f, WIRE_PUT_DATA, 0, 5, cancel_5, 2, 3000);
    assert_int_equal(answer(f, 5, NULL), 0);
    assert_int_equal(f->n_sunk, 1);
    assert_int_equal(f->dst[2999], 'p');
}

static void test_sink_error_drops_the_payload_and_answers(void **state) {
    struct fixture *f = *state;
    hello(f);
    f->sink_rv = ERR_NOSPACE;
    ask(f, WIRE_PUT_DATA, 0, 5, cancel_5, 2, 3000);
    assert_int_equal(answer(f, 5, NULL), 11);
    assert_int_equal(f->dst[0], 0);
    assert_int_equal(f->n_sunk, 0);
}

static void test_peer_gone_inside_a_payload_aborts_the_sink(void **state) {
    struct fixture *f = *state;
    uint8_t p[8192];
    hello(f);
    make(p, WIRE_PUT_DATA, 0, 5, cancel_5, 2, 3000);
    send_bytes(f, p, 1000);
    shutdown(f->peer, SHUT_RDWR);
    turn(f, 3);
    assert_int_equal(f->n_sink_abort, 1);
    assert_int_equal(f->n_gone, 1);
}

static void broken(struct fixture *f, size_t at, uint8_t value, int want_code) {
    uint8_t p[256];
    hello(f);
    size_t n = make(p, WIRE_CANCEL, 0, 5, cancel_5, 2, 0);
    p[at] = value;
    send_bytes(f, p, n);
    if (want_code)
        assert_int_equal(answer(f, 5, NULL), want_code);
    turn(f, 2);
    assert_int_equal(answer(f, 0, NULL), -2);
}

static void test_wrong_magic_closes(void **state) {
    broken(*state, 1, 0, 0);
}

static void test_unknown_version_is_answered_then_closed(void **state) {
    broken(*state, 4, 3, 14);
}

/* A client of version 1 learns why in a frame that it can read: its own version's. */
static void test_version_1_is_answered_in_version_1_then_closed(void **state) {
    struct fixture *f = *state;
    uint8_t p[256];
    size_t n = make(p, WIRE_HELLO, 0, 5, NULL, 0, 0);
    p[4] = 1;
    send_bytes(f, p, n);
    n = (size_t)recv(f->peer, p, sizeof(p), 0);
    assert_true(n > WIRE_HDR_BYTES);
    assert_int_equal(p[4], 1);
    assert_int_equal(p[5], WIRE_F_RESPONSE | WIRE_F_END | WIRE_F_ERROR);
    assert_int_equal(wire_hdr_check_crc(p, p + WIRE_HDR_BYTES, (uint32_t)n - WIRE_HDR_BYTES), 0);
    struct msg_error e;
    assert_int_equal(
        wire_msg_error_decode(&f->scratch, p + WIRE_HDR_BYTES, n - WIRE_HDR_BYTES, &e, NULL), 0);
    assert_int_equal(e.code, 14);
    turn(f, 2);
    assert_int_equal(recv(f->peer, p, 1, 0), 0);
}

static void test_wrong_crc_is_answered_then_closed(void **state) {
    broken(*state, WIRE_HDR_BYTES + 1, 99, 10);
}

static void test_overlong_message_is_answered_then_closed(void **state) {
    broken(*state, 18, 1, 7);
}

static void test_overlong_payload_is_answered_then_closed(void **state) {
    broken(*state, 23, 0xff, 7);
}

/* A8: connections that announced a message of 1 MiB before Hello and sent part of it held it all. */
static void test_before_hello_only_a_small_message_is_read(void **state) {
    struct fixture *f = *state;
    uint8_t p[64];
    make(p, WIRE_HELLO, 0, 5, cancel_5, 2, 0);
    p[16] = 1;
    p[17] = 0x10; /* 4,097 bytes of message */
    send_bytes(f, p, WIRE_HDR_BYTES);
    assert_int_equal(answer(f, 5, NULL), 7);
    turn(f, 2);
    assert_int_equal(answer(f, 0, NULL), -2);
}

static void test_before_hello_no_payload_is_read(void **state) {
    struct fixture *f = *state;
    uint8_t p[64];
    size_t n = make(p, WIRE_HELLO, 0, 5, NULL, 0, 1);
    send_bytes(f, p, n);
    assert_int_equal(answer(f, 5, NULL), 7);
    turn(f, 2);
    assert_int_equal(answer(f, 0, NULL), -2);
}

/* A8: after Hello half a message stayed for ever. A frame has its time, from the first byte of its header
 * to the last of its payload; a connection between frames has all of it. */
static void late(struct fixture *f, uint32_t msg_len, uint32_t payload_len, size_t sent) {
    uint8_t p[512];
    hello(f);
    f->now_ns = NS_PER_S;
    make(p, WIRE_PUT_DATA, 0, 5, cancel_5, msg_len, payload_len);
    send_bytes(f, p, sent);
    f->now_ns = 59 * NS_PER_S;
    uint64_t end = uv_hrtime() + 5000000; /* sweeps come every 2 ms */
    while (uv_hrtime() < end)
        turn(f, 1);
    assert_int_equal(f->n_gone, 0);
    f->now_ns = 62 * NS_PER_S;
    end = uv_hrtime() + 3000000000ull;
    while (f->n_gone == 0 && uv_hrtime() < end)
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->n_gone, 1);
    struct rpc_server_stats st;
    rpc_server_stats(f->server, &st);
    assert_int_equal(st.late, 1);
}

static void test_half_a_header_is_late(void **state) {
    late(*state, 0, 0, 10);
}
static void test_half_a_message_is_late(void **state) {
    late(*state, 2, 0, WIRE_HDR_BYTES + 1);
}
static void test_half_a_payload_is_late(void **state) {
    struct fixture *f = *state;
    late(f, 2, 100, WIRE_HDR_BYTES + 2 + 50);
    assert_int_equal(f->n_sink_abort, 1);
}

/* D: deadlines hold for every method, from the request's first byte: what is read too late is not done. */
static void test_a_request_read_after_its_time_is_not_done(void **state) {
    struct fixture *f = *state;
    uint8_t p[64];
    struct wire_hdr h = {.version = WIRE_VERSION,
                         .method = WIRE_CANCEL,
                         .request_id = 5,
                         .msg_len = 2,
                         .deadline_ms = 10};
    hello(f);
    for (int late = 0; late < 2; late++) {
        f->now_ns = (1 + (uint64_t)late) * NS_PER_S;
        wire_hdr_encode(&h, cancel_5, p);
        memcpy(p + WIRE_HDR_BYTES, cancel_5, 2);
        send_bytes(f, p, 20);
        f->now_ns += (late ? 11 : 10) * NS_PER_MS;
        send_bytes(f, p + 20, WIRE_HDR_BYTES + 2 - 20);
        assert_int_equal(answer(f, 5, NULL), late ? 8 : 0);
        assert_int_equal(f->n_echo, 1);
    }
}

static void test_no_frame_is_not_late(void **state) {
    struct fixture *f = *state;
    hello(f);
    ask(f, WIRE_CANCEL, 0, 5, cancel_5, 2, 0);
    assert_int_equal(answer(f, 5, NULL), 0);
    f->now_ns = 3600 * NS_PER_S;
    uint64_t end = uv_hrtime() + 8000000;
    while (uv_hrtime() < end)
        turn(f, 1);
    assert_int_equal(f->n_gone, 0);
}

static void test_answer_sent_to_a_server_closes(void **state) {
    struct fixture *f = *state;
    hello(f);
    ask(f, WIRE_CANCEL, WIRE_F_RESPONSE, 5, cancel_5, 2, 0);
    assert_int_equal(answer(f, 0, NULL), -2);
}

static void test_silent_connection_is_closed_after_a_while(void **state) {
    struct fixture *f = *state;
    uint64_t end = uv_hrtime() + 3000000000ull;
    f->now_ns = 5 * NS_PER_MS;
    while (f->n_gone == 0 && uv_hrtime() < end)
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->n_gone, 1);
}

static void test_connections_over_the_limit_are_refused(void **state) {
    struct fixture *f = *state;
    char path[64];
    snprintf(path, sizeof(path), "unix:/tmp/rpcs-%d.sock", (int)getpid());
    struct rpc_addr a;
    assert_int_equal(rpc_addr_parse(path, &a, NULL), 0);
    assert_int_equal(rpc_server_listen(f->server, &a, NULL, NULL), 0);
    assert_int_equal(rpc_server_listen(f->server, &a, NULL, NULL), ERR_EXISTS);
    turn(f, 4); /* the second one's probe of the first comes and goes */
    uint8_t p[64];
    size_t n = make(p, WIRE_HELLO, 0, 1, NULL, 0, 0);
    hello(f); /* the fixture's own */
    int fd[4];
    for (int i = 0; i < 4; i++) {
        fd[i] = rpc_sock_connect_unix(a.host, NULL);
        assert_true(fd[i] >= 0);
        if (i == 1)
            assert_int_equal(write(fd[i], p, n), n);
        turn(f, 4);
    }
    /* 0 had said nothing when 1 came; 1 has said Hello, as the fixture's: 2 and 3 are turned away. */
    struct rpc_server_stats st;
    rpc_server_stats(f->server, &st);
    assert_int_equal(st.conns, 2);
    assert_int_equal(st.gave_way, 1);
    assert_int_equal(st.refused, 2);
    assert_int_equal(read(fd[0], p, 1), 0);
    assert_int_equal(read(fd[1], p, 1), 1);
    for (int i = 0; i < 4; i++)
        close(fd[i]);
    turn(f, 3);
    rpc_server_stop_listening(f->server);
    turn(f, 2);
    assert_true(access(a.host, F_OK) < 0); /* its file goes with it */
}

static void test_stale_socket_file_is_replaced(void **state) {
    struct fixture *f = *state;
    struct rpc_addr a = {.is_unix = true};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(a.host, sizeof(a.host), "/tmp/rpcs-stale-%d.sock", (int)getpid());
    snprintf(un.sun_path, sizeof(un.sun_path), "%.100s", a.host);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
    close(fd); /* the file stays, as after a kill */
    assert_int_equal(rpc_server_listen(f->server, &a, NULL, NULL), 0);
    rpc_server_stop_listening(f->server);
    turn(f, 2);
    fd = open(a.host, O_CREAT | O_WRONLY, 0600);
    close(fd);
    assert_int_equal(rpc_server_listen(f->server, &a, NULL, NULL), ERR_EXISTS); /* not ours */
    unlink(a.host);
}

static void test_peer_that_reads_nothing_stops_being_served(void **state) {
    struct fixture *f = *state;
    uint8_t p[64];
    hello(f);
    size_t n = make(p, WIRE_CANCEL, 0, 1, cancel_5, 2, 0);
    /* Until our own writes find the socket full: the server has stopped reading. */
    int full = 0;
    for (int i = 0; i < 200000 && full < 50; i++) {
        full = write(f->peer, p, n) < 0 ? full + 1 : 0;
        turn(f, 1);
    }
    assert_int_equal(full, 50);
    struct rpc_server_stats st;
    rpc_server_stats(f->server, &st);
    assert_int_equal(st.conns, 1); /* paused, not dropped */
    /* It reads again: everything is answered. */
    int echoed = f->n_echo;
    uint8_t sink[65536];
    for (int i = 0; i < 1000; i++) {
        (void)!read(f->peer, sink, sizeof(sink));
        turn(f, 1);
    }
    assert_true(f->n_echo > echoed);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(test_request_is_answered),
        T(test_pipelined_requests_are_all_answered),
        T(test_handler_error_is_answered_with_its_code),
        T(test_malformed_message_is_answered_and_goes_on),
        T(test_unknown_method_is_unimplemented),
        T(test_method_before_hello_is_denied),
        T(test_payload_where_none_belongs_is_bad_request),
        T(test_oneway_gets_no_answer_not_even_an_error),
        T(test_payload_goes_to_the_sink),
        T(test_sink_error_drops_the_payload_and_answers),
        T(test_peer_gone_inside_a_payload_aborts_the_sink),
        T(test_wrong_magic_closes),
        T(test_unknown_version_is_answered_then_closed),
        T(test_version_1_is_answered_in_version_1_then_closed),
        T(test_wrong_crc_is_answered_then_closed),
        T(test_overlong_message_is_answered_then_closed),
        T(test_overlong_payload_is_answered_then_closed),
        T(test_before_hello_only_a_small_message_is_read),
        T(test_before_hello_no_payload_is_read),
        T(test_half_a_header_is_late),
        T(test_half_a_message_is_late),
        T(test_half_a_payload_is_late),
        T(test_no_frame_is_not_late),
        T(test_a_request_read_after_its_time_is_not_done),
        T(test_answer_sent_to_a_server_closes),
        T(test_silent_connection_is_closed_after_a_while),
        T(test_connections_over_the_limit_are_refused),
        T(test_stale_socket_file_is_replaced),
        T(test_peer_that_reads_nothing_stops_being_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
