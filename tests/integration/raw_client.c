#include "tests/integration/raw_client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/check.h"

#define IN_BYTES (4u << 20)

void raw_open(struct raw *r, struct node_fixture *f, int rcvbuf) {
    memset(r, 0, sizeof(*r));
    r->tl = &f->tl;
    r->next_id = 1;
    r->in = malloc(IN_BYTES);
    r->out = buf_new(WIRE_MAX_MSG_BYTES);
    CHECK(r->in && r->out && bump_init(&r->scratch, 4u << 20) == 0);
    int one = 1;
    r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
    if (rcvbuf)
        CHECK(setsockopt(r->fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf)) == 0);
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons(cachesvc_rpc_port(f->node)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(connect(r->fd, (struct sockaddr *)&sa, sizeof(sa)) == 0);
}

void raw_close(struct raw *r) {
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
    free(r->in);
    buf_unref(r->out);
    bump_fini(&r->scratch);
}

void raw_encode_begin(struct raw *r) {
    bump_reset(&r->scratch);
    r->out->len = 0;
}

static void send_all(struct raw *r, const void *p, size_t n) {
    const uint8_t *at = p;
    for (int i = 0; n && i < 100000 && !r->is_closed; i++) {
        ssize_t k = send(r->fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k > 0) {
            at += k;
            n -= (size_t)k;
        } else {
            r->is_closed = errno != EAGAIN && errno != EINTR;
        }
        test_loop_turn(r->tl);
    }
}

uint64_t raw_send(struct raw *r, uint16_t method, uint8_t flags, const void *payload, uint32_t n,
                  uint32_t deadline_ms) {
    uint8_t raw[WIRE_HDR_BYTES];
    struct wire_hdr h = {.version = WIRE_VERSION,
                         .flags = flags,
                         .method = method,
                         .request_id = r->next_id++,
                         .msg_len = (uint32_t)r->out->len,
                         .payload_len = n,
                         .deadline_ms = deadline_ms};
    wire_hdr_encode(&h, r->out->data, raw);
    send_all(r, raw, sizeof(raw));
    send_all(r, r->out->data, r->out->len);
    send_all(r, payload, n);
    return h.request_id;
}

static bool has_frame(struct raw *r) {
    const struct wire_limits lim = {WIRE_MAX_MSG_BYTES, WIRE_MAX_PAYLOAD_BYTES};
    while (!r->is_closed) {
        ssize_t k = recv(r->fd, r->in + r->n_in, IN_BYTES - r->n_in, MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        r->is_closed = k <= 0;
        r->n_in += k > 0 ? (size_t)k : 0;
    }
    int64_t need = wire_frame_read(&lim, r->in, r->n_in, &r->hdr);
    CHECK(need >= 0);
    return need == 0 && r->n_in >= (size_t)WIRE_HDR_BYTES + r->hdr.msg_len + r->hdr.payload_len;
}

void raw_turn(struct raw *r) {
    test_loop_turn(r->tl);
    int ms = uv_backend_timeout(&r->tl->loop);
    struct pollfd p[2] = {{.fd = r->fd, .events = POLLIN},
                          {.fd = uv_backend_fd(&r->tl->loop), .events = POLLIN}};
    (void)poll(p, 2, ms < 0 || ms > 100 ? 100 : ms);
    test_loop_turn(r->tl);
}

bool raw_read(struct raw *r) {
    r->n_in -= r->n_used;
    memmove(r->in, r->in + r->n_used, r->n_in);
    r->n_used = 0;
    uint64_t until = uv_hrtime() + 10 * NS_PER_S;
    while (!has_frame(r)) {
        if (r->is_closed || uv_hrtime() > until)
            return false;
        raw_turn(r);
    }
    r->msg = r->in + WIRE_HDR_BYTES;
    r->payload = r->msg + r->hdr.msg_len;
    r->n_used = (size_t)WIRE_HDR_BYTES + r->hdr.msg_len + r->hdr.payload_len;
    return true;
}

bool raw_answer(struct raw *r, uint64_t request_id) {
    while (raw_read(r))
        if (r->hdr.request_id == request_id)
            return true;
    return false;
}

int raw_error(struct raw *r) {
    struct msg_error e;
    if (!(r->hdr.flags & WIRE_F_ERROR))
        return 0;
    CHECK(RAW_DECODE(r, error, &e) == 0);
    return wire_err_from_code(e.code);
}

const char *raw_error_text(struct raw *r) {
    struct msg_error e;
    if (!(r->hdr.flags & WIRE_F_ERROR))
        return "";
    CHECK(RAW_DECODE(r, error, &e) == 0);
    return e.text;
}

int raw_hello(struct raw *r, uint32_t role, const char *token, const struct raw *join) {
    struct msg_hello_req q = {.version_min = WIRE_VERSION,
                              .version_max = WIRE_VERSION,
                              .role = role,
                              .client_name = "raw",
                              .token = {(const uint8_t *)token, token ? strlen(token) : 0}};
    if (join)
        q.session_token = (struct msg_bytes){join->token, sizeof(join->token)};
    if (!raw_answer(r, RAW_SEND(r, hello_req, WIRE_HELLO, &q)))
        return ERR_CLOSED;
    int rv = raw_error(r);
    struct msg_hello_res res;
    if (rv < 0)
        return rv;
    CHECK(RAW_DECODE(r, hello_res, &res) == 0);
    if (!join)
        memcpy(r->token, res.session_token.p, sizeof(r->token));
    r->conn = res.conn;
    r->max_inflight = res.max_inflight;
    return 0;
}

int raw_register(struct raw *r, const char *descriptor, uint32_t *ret_handle) {
    uint8_t digest[DIGEST_BYTES];
    size_t n = strlen(descriptor);
    digest_sha256(descriptor, n, digest);
    struct msg_register_ns_req q = {.digest = {digest, DIGEST_BYTES},
                                    .descriptor = {(const uint8_t *)descriptor, n},
                                    .range_sizes = node_range_sizes,
                                    .n_range_sizes = NODE_RANGES,
                                    .n_full = NODE_RANGES,
                                    .seg_blocks = 8};
    if (!raw_answer(r, RAW_SEND(r, register_ns_req, WIRE_REGISTER_NS, &q)))
        return ERR_CLOSED;
    int rv = raw_error(r);
    struct msg_register_ns_res res;
    if (rv == 0) {
        CHECK(RAW_DECODE(r, register_ns_res, &res) == 0);
        *ret_handle = res.ns;
    }
    return rv;
}

void raw_peer_open(struct raw_peer *p, struct node_fixture *f, int data_rcvbuf) {
    raw_peer_open_as(p, f, MSG_ROLE_WORKER, data_rcvbuf);
}

void raw_peer_open_as(struct raw_peer *p, struct node_fixture *f, uint32_t role, int data_rcvbuf) {
    raw_open(&p->control, f, 0);
    CHECK(raw_hello(&p->control, role, NULL, NULL) == 0);
    CHECK(raw_register(&p->control, NODE_DESCRIPTOR, &p->handle) == 0);
    raw_open(&p->data, f, data_rcvbuf);
    CHECK(raw_hello(&p->data, role, NULL, &p->control) == 0);
}

void raw_peer_close(struct raw_peer *p) {
    raw_close(&p->data);
    raw_close(&p->control);
}
