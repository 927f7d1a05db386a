/* fuzz_node_session.c - whole sessions at a real node, in any order and with anything wrong.
 *
 * The input is a program: a byte says what is sent (enum op), the bytes behind it by which connection, with
 * which ids, indexes, lengths and numbers: those that the node gave out before, or others. Messages are
 * encoded, then perhaps garbled; frames have right lengths and CRCs, payloads the sums that were announced,
 * unless the program says otherwise, so that what is behind these checks is what is tried. Time is the
 * program's. Checked: each frame of the node can be read, a block that is fetched has the sums that its frame
 * names, and when all connections are gone the node has no session, lease, put, stream, commit or slot under
 * way and closes (with ASan: no leak, no stray access). */
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "cachesvc/cachesvc.h"
#include "cachesvc/svc.h"
#include "common/check.h"
#include "common/checksum.h"
#include "common/digest.h"
#include "tests/support/fake_clock.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_CONNS 6
#define N_TOKENS 4
#define N_SHAPES 3
#define N_IDS 8u
#define MAX_IDS 16u
#define MAX_RANGES 2u
#define MAX_PAYLOAD 32768u
#define MAX_OPS 200
#define MAX_NUMBERS 8
#define MAX_FETCHES 64
#define CLOSE_TURNS 2000

static const uint32_t shapes[N_SHAPES][MAX_RANGES] = {{64, 128}, {4096, 64}, {16384, 16384}};

enum op {
    OP_OPEN,
    OP_HELLO,
    OP_REGISTER,
    OP_LOOKUP,
    OP_TOUCH,
    OP_FETCH,
    OP_CANCEL,
    OP_PUT_BEGIN,
    OP_PUT_DATA,
    OP_PUT_COMMIT,
    OP_PUT_ABORT,
    OP_RELEASE,
    OP_HEARTBEAT,
    OP_STATS,
    OP_LIST,
    OP_INSPECT,
    OP_EVICT,
    OP_FLUSH,
    OP_CONFIG,
    OP_CLOSE,
    OP_DEAF,
    OP_TICK,
    OP_TURN,
    OP_GARBLE,
    OP_CUT,
    OP_RAW,
    OP_DRAIN,
    N_OPS
};

/* Numbers that the node gave out, the latest. */
struct numbers {
    uint64_t v[MAX_NUMBERS];
    uint32_t n;
};

struct fetch { /* what an answer must fit; its place is its request id's */
    uint64_t request_id;
    uint32_t n_ids;
    uint8_t id[MAX_IDS];
};

struct conn {
    int fd;
    bool is_deaf; /* does not read */
    size_t n;
    uint8_t in[1u << 17];
};

struct world {
    uv_loop_t loop;
    struct fake_clock clock;
    struct cachesvc_config cfg;
    struct cachesvc *node;
    const uint8_t *p, *end; /* the program */
    char path[64];
    uint64_t next_id;
    uint8_t tokens[N_TOKENS][WIRE_SESSION_TOKEN_BYTES];
    uint32_t n_tokens;
    uint32_t shape_of[256]; /* of a handle; 0 where it is not known */
    uint8_t digest[N_SHAPES][DIGEST_BYTES];
    uint8_t shape_of_request[256]; /* of the last registrations */
    struct numbers puts, leases, requests;
    struct fetch fetches[MAX_FETCHES];
    uint8_t flip_at, flip_by; /* the next message's */
    uint8_t cut;              /* of the next frame, bytes / 8; 0: whole */
    bool is_closed;
    struct bump scratch;
    struct buf msg;
};
/* Large, and none of it needs to be zero. */
static struct conn conns[N_CONNS];
static _Alignas(16) uint8_t arena[1u << 18];
static uint8_t msg_bytes[1u << 14], payload[MAX_PAYLOAD + 64];

static uint8_t take(struct world *w) {
    return w->p < w->end ? *w->p++ : 0;
}

static void note(struct numbers *n, uint64_t v) {
    n->v[n->n++ % MAX_NUMBERS] = v;
}
/* The k-th last one that the node gave out, or any small number. */
static uint64_t take_number(struct world *w, const struct numbers *n) {
    uint8_t b = take(w);
    return b < 0xe0 && n->n ? n->v[(n->n - 1 - b % MIN(n->n, MAX_NUMBERS)) % MAX_NUMBERS] : b;
}

/* ---- blocks: a chain of N_IDS; an id beyond it was never put ---- */

static struct block_id id_of(uint8_t i) {
    struct block_id id = {{(uint8_t)(i + 1)}};
    return id;
}
static uint32_t payload_bytes(uint32_t shape) {
    return shapes[shape][0] + shapes[shape][1];
}
/* The payload of block i, of which there are two kinds; returns its checksum. */
static uint64_t make_payload(uint32_t shape, uint8_t i, bool is_other,
                             uint64_t ret_sums[MAX_RANGES]) {
    struct block_id id = id_of(i);
    memset(payload, i * 2 + is_other, sizeof(payload));
    return checksum_block(payload, shapes[shape], MAX_RANGES, id.b, ret_sums);
}

/* ---- frames out and in ---- */

static void hang_up(struct conn *c) {
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

static void send_all(struct world *w, struct conn *c, const uint8_t *p, size_t n) {
    for (int i = 0; n > 0 && c->fd >= 0 && i < 16; i++) {
        ssize_t k = send(c->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno != EAGAIN) {
            hang_up(c);
            return;
        }
        p += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
        if (n > 0)
            uv_run(&w->loop, UV_RUN_NOWAIT);
    }
    if (n > 0) /* the node does not read now: what follows would be no frame */
        hang_up(c);
}

/* w->msg as the message of a frame; returns its request id. */
static uint64_t send_frame(struct world *w, struct conn *c, uint16_t method, uint8_t flags,
                           uint32_t n_payload, uint32_t deadline_ms) {
    static uint8_t frame[WIRE_HDR_BYTES + sizeof(msg_bytes) + sizeof(payload)];
    struct wire_hdr h = {.version = WIRE_VERSION,
                         .flags = flags,
                         .method = method,
                         .request_id = w->next_id++,
                         .msg_len = (uint32_t)w->msg.len,
                         .payload_len = n_payload,
                         .deadline_ms = deadline_ms};
    if (w->flip_by && w->msg.len)
        w->msg.data[w->flip_at % w->msg.len] ^= w->flip_by;
    wire_hdr_encode(&h, w->msg.data, frame);
    memcpy(frame + WIRE_HDR_BYTES, w->msg.data, w->msg.len);
    memcpy(frame + WIRE_HDR_BYTES + w->msg.len, payload, n_payload);
    size_t n = WIRE_HDR_BYTES + w->msg.len + n_payload;
    send_all(w, c, frame, w->cut ? MIN(n, w->cut * 8u) : n);
    w->flip_by = w->cut = 0;
    return h.request_id;
}

#define ENCODE(name, ...)                                                                          \
    do {                                                                                           \
        struct msg_##name m_ = {__VA_ARGS__};                                                      \
        w->scratch.used = w->msg.len = 0;                                                          \
        CHECK(wire_msg_##name##_encode(&w->scratch, &m_, &w->msg) == 0);                           \
    } while (0)
#define SEND(name, method, ...)                                                                    \
    do {                                                                                           \
        ENCODE(name, __VA_ARGS__);                                                                 \
        uint8_t d_ = take(w);                                                                      \
        send_frame(w, c, (method), 0, 0, d_ % 8 == 7 ? d_ : 0);                                    \
    } while (0)

static void check_block(struct world *w, const struct wire_hdr *h, const uint8_t *msg) {
    const struct fetch *f = &w->fetches[h->request_id % MAX_FETCHES];
    struct msg_fetch_block b;
    CHECK(wire_msg_fetch_block_decode(&w->scratch, msg, h->msg_len, &b, NULL) == 0);
    if (f->request_id != h->request_id || b.status != MSG_FETCH_OK)
        return;
    CHECK(b.index < f->n_ids);
    if (b.first_range != 0 || b.n_ranges != MAX_RANGES)
        return;
    struct block_id id = id_of(f->id[b.index]);
    uint64_t sums[MAX_RANGES];
    for (uint32_t i = 0; i < N_SHAPES; i++)
        if (payload_bytes(i) == h->payload_len) {
            CHECK(checksum_block(msg + h->msg_len, shapes[i], MAX_RANGES, id.b, sums) ==
                  b.checksum);
            return;
        }
    CHECK(h->payload_len == 0);
}

static void on_answer(struct world *w, const struct wire_hdr *h, const uint8_t *msg) {
    w->scratch.used = 0;
    CHECK(h->flags & WIRE_F_RESPONSE);
    if (h->flags & WIRE_F_ERROR)
        return;
#define DECODE(name, ret)                                                                          \
    CHECK(wire_msg_##name##_decode(&w->scratch, msg, h->msg_len, (ret), NULL) == 0)
    if (h->method == WIRE_HELLO) {
        struct msg_hello_res r;
        DECODE(hello_res, &r);
        if (r.session_token.n)
            memcpy(w->tokens[w->n_tokens++ % N_TOKENS], r.session_token.p, r.session_token.n);
    } else if (h->method == WIRE_REGISTER_NS) {
        struct msg_register_ns_res r;
        DECODE(register_ns_res, &r);
        w->shape_of[r.ns % ARRAY_LEN(w->shape_of)] =
            w->shape_of_request[h->request_id % ARRAY_LEN(w->shape_of_request)];
    } else if (h->method == WIRE_LOOKUP) {
        struct msg_lookup_res r;
        DECODE(lookup_res, &r);
        if (r.lease_id)
            note(&w->leases, r.lease_id);
    } else if (h->method == WIRE_PUT_BEGIN) {
        struct msg_put_begin_res r;
        DECODE(put_begin_res, &r);
        if (r.put_id)
            note(&w->puts, r.put_id);
    } else if (h->method == WIRE_FETCH) {
        check_block(w, h, msg);
    }
}

static void read_answers(struct world *w, struct conn *c) {
    static const struct wire_limits lim = {WIRE_MAX_MSG_BYTES, WIRE_MAX_PAYLOAD_BYTES};
    if (c->fd < 0 || c->is_deaf)
        return;
    ssize_t k = recv(c->fd, c->in + c->n, sizeof(c->in) - c->n, MSG_DONTWAIT);
    bool is_gone = k == 0 || (k < 0 && errno != EAGAIN);
    c->n += k > 0 ? (size_t)k : 0;
    struct wire_hdr h;
    size_t at = 0;
    for (;;) {
        int64_t need = wire_frame_read(&lim, c->in + at, c->n - at, &h);
        CHECK(need >= 0);
        size_t whole = WIRE_HDR_BYTES + (need ? 0 : (size_t)h.msg_len + h.payload_len);
        if (need > 0 || c->n - at < whole)
            break;
        on_answer(w, &h, c->in + at + WIRE_HDR_BYTES);
        at += whole;
    }
    memmove(c->in, c->in + at, c->n - at);
    c->n -= at;
    if (is_gone)
        hang_up(c);
}

static void turn(struct world *w) {
    uv_run(&w->loop, UV_RUN_NOWAIT);
    for (int i = 0; i < N_CONNS; i++)
        read_answers(w, &conns[i]);
}

/* ---- time ---- */

static void fire(uv_handle_t *h, void *arg) {
    (void)arg;
    uv_timer_t *t = (uv_timer_t *)h;
    if (h->type == UV_TIMER && uv_is_active(h) && !uv_is_closing(h) && uv_timer_get_repeat(t))
        uv_timer_start(t, t->timer_cb, 0, uv_timer_get_repeat(t));
}
/* Time passes, and all that ticks does. */
static void tick(struct world *w, uint64_t ms) {
    fake_clock_advance_ms(&w->clock, ms);
    uv_walk(&w->loop, fire, NULL);
    turn(w);
}

/* ---- what is sent ---- */

static void op_open(struct world *w, struct conn *c) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof(un.sun_path), "%s", w->path);
    hang_up(c);
    c->n = 0;
    c->is_deaf = false;
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd >= 0 && connect(c->fd, (struct sockaddr *)&un, sizeof(un)) < 0)
        hang_up(c); /* it drains */
}

static void op_hello(struct world *w, struct conn *c) {
    uint8_t role = take(w), join = take(w);
    SEND(
        hello_req, WIRE_HELLO, .version_min = role & 0x80 ? 9 : WIRE_VERSION,
        .version_max = role & 0x40 ? 1 : WIRE_VERSION, .role = role & 7,
        .features = role & 0x20 ? 0 : UINT64_MAX, .client_name = "fuzz",
        .session_token = {w->tokens[join % N_TOKENS], join >= 0x80 ? WIRE_SESSION_TOKEN_BYTES : 0});
}

static void op_register(struct world *w, struct conn *c) {
    uint8_t b = take(w), shape = b % N_SHAPES, other = take(w) % 8 == 7;
    char text[16];
    int n = snprintf(text, sizeof(text), "shape=%u\n", shape);
    w->shape_of_request[w->next_id % ARRAY_LEN(w->shape_of_request)] = shape;
    SEND(register_ns_req, WIRE_REGISTER_NS, .digest = {w->digest[shape], DIGEST_BYTES},
         .descriptor = {(const uint8_t *)text, (size_t)n - other},
         .range_sizes = shapes[b >= 0xf0 ? (shape + 1) % N_SHAPES : shape],
         .n_range_sizes = MAX_RANGES, .n_full = b >= 0xe0 ? 1 : MAX_RANGES, .seg_blocks = 4);
}

struct ids {
    uint32_t n, ns;
    uint8_t which[MAX_IDS];
    struct block_id id[MAX_IDS];
};
/* A handle, and a run of ids of the chain, or any of them. */
static void take_ids(struct world *w, struct ids *ret) {
    uint8_t b = take(w), first = take(w);
    memset(ret, 0, sizeof(*ret));
    ret->ns = b & 7;
    ret->n = b >> 3 & (MAX_IDS - 1);
    for (uint32_t i = 0; i < ret->n; i++) {
        ret->which[i] = b & 0x80 ? take(w) % 10 : (uint8_t)((first % N_IDS + i) % 12);
        ret->id[i] = id_of(ret->which[i]);
    }
}

static void op_lookup(struct world *w, struct conn *c) {
    struct ids ids;
    take_ids(w, &ids);
    uint8_t b = take(w);
    SEND(lookup_req, WIRE_LOOKUP, .ns = ids.ns, .ids = ids.id, .n_ids = ids.n, .flags = b & 15,
         .have = b >> 4, .group = b);
}
static void op_touch(struct world *w, struct conn *c) {
    struct ids ids;
    take_ids(w, &ids);
    SEND(touch_req, WIRE_TOUCH, .ns = ids.ns, .ids = ids.id, .n_ids = ids.n);
}
static void op_fetch(struct world *w, struct conn *c) {
    struct ids ids;
    take_ids(w, &ids);
    uint8_t b = take(w);
    uint64_t lease = b & 1 ? take_number(w, &w->leases) : 0;
    struct fetch *f = &w->fetches[w->next_id % MAX_FETCHES];
    *f = (struct fetch){.request_id = w->next_id, .n_ids = ids.n};
    if (w->flip_by) /* other ids than these, perhaps */
        f->request_id = 0;
    memcpy(f->id, ids.which, sizeof(f->id));
    note(&w->requests, w->next_id);
    SEND(fetch_req, WIRE_FETCH, .ns = ids.ns, .ids = ids.id, .n_ids = ids.n, .lease_id = lease,
         .first_range = b >> 2 & 3, .n_ranges = b >> 4 & 3, .flags = b >= 0xc0);
}
static void op_cancel(struct world *w, struct conn *c) {
    uint64_t id = take_number(w, &w->requests);
    SEND(cancel_req, WIRE_CANCEL, .request_id = id, .conn = take(w) % 8);
}

static void op_put_begin(struct world *w, struct conn *c) {
    struct ids ids;
    struct block_id parents[MAX_IDS] = {0};
    uint32_t depths[MAX_IDS];
    uint64_t checksums[MAX_IDS], sums[MAX_RANGES];
    take_ids(w, &ids);
    uint8_t b = take(w);
    uint32_t shape = w->shape_of[ids.ns];
    for (uint32_t i = 0; i < ids.n; i++) {
        depths[i] = ids.which[i] + (b & 2 ? i : 0);
        if (ids.which[i])
            parents[i] = id_of((uint8_t)(ids.which[i] - (b & 4 ? 2 : 1)));
        checksums[i] = make_payload(shape, ids.which[i], b & 1, sums);
    }
    uint32_t n_less = b & 8 && ids.n ? 1 : 0;
    SEND(put_begin_req, WIRE_PUT_BEGIN, .ns = ids.ns, .ids = ids.id, .n_ids = ids.n,
         .parents = parents, .n_parents = ids.n, .depths = depths, .n_depths = ids.n - n_less,
         .checksums = checksums, .n_checksums = ids.n, .group = b, .priority = b >> 4);
}

/* The payload of a block for a put's index; sums may be told along. */
static void op_put_data(struct world *w, struct conn *c) {
    uint64_t put = take_number(w, &w->puts), sums[MAX_RANGES];
    uint8_t index = take(w), which = take(w), b = take(w);
    uint32_t shape = b % N_SHAPES, n = payload_bytes(shape);
    (void)make_payload(shape, which % 12, (b & 0x80) != 0, sums);
    if (b & 0x40)
        n = b & 0x20 ? n + 1 : take(w);
    ENCODE(put_data, .put_id = put, .index = index % 20, .range_checksums = sums,
           .n_range_checksums = b & 0x10 ? MAX_RANGES : 0);
    send_frame(w, c, WIRE_PUT_DATA, b & 8 ? 0 : WIRE_F_ONEWAY, n, 0);
}
static void op_put_commit(struct world *w, struct conn *c) {
    uint64_t put = take_number(w, &w->puts);
    uint8_t b = take(w), first = take(w);
    uint32_t index[MAX_IDS], n = b & (MAX_IDS - 1);
    for (uint32_t i = 0; i < n; i++)
        index[i] = b & 0x40 ? take(w) : first % 4 + i;
    SEND(put_commit_req, WIRE_PUT_COMMIT, .put_id = put, .indexes = index, .n_indexes = n,
         .last = b >= 0x80);
}
static void op_put_abort(struct world *w, struct conn *c) {
    SEND(put_abort_req, WIRE_PUT_ABORT, .put_id = take_number(w, &w->puts));
}
static void op_release(struct world *w, struct conn *c) {
    uint64_t lease = take_number(w, &w->leases);
    SEND(release_req, WIRE_RELEASE, .lease_id = lease, .used = take(w));
}
static void op_heartbeat(struct world *w, struct conn *c) {
    uint64_t leases[4];
    uint32_t n = take(w) % 5;
    for (uint32_t i = 0; i < n; i++)
        leases[i] = take_number(w, &w->leases);
    SEND(heartbeat_req, WIRE_HEARTBEAT, .lease_ids = leases, .n_lease_ids = n);
}

/* ---- what operators send ---- */

static struct msg_bytes take_digest(struct world *w) {
    uint8_t b = take(w);
    return (struct msg_bytes){w->digest[b % N_SHAPES], b >= 0xc0 ? 0 : DIGEST_BYTES};
}
static void op_list(struct world *w, struct conn *c) {
    struct msg_bytes digest = take_digest(w);
    uint8_t b = take(w), n = b >> 4;
    uint8_t cursor[16];
    for (uint32_t i = 0; i < n; i++)
        cursor[i] = take(w);
    SEND(list_req, WIRE_LIST, .what = b & 3, .limit = b >> 2 & 3, .digest = digest,
         .cursor = {cursor, n});
}
static void op_inspect(struct world *w, struct conn *c) {
    struct msg_bytes digest = take_digest(w);
    struct block_id id = id_of(take(w) % 12);
    SEND(inspect_req, WIRE_INSPECT, .id = {id.b, BLOCK_ID_BYTES}, .digest = digest);
}
static void op_evict(struct world *w, struct conn *c) {
    struct ids ids;
    static const uint8_t writer[WIRE_WRITER_BYTES];
    take_ids(w, &ids);
    struct msg_bytes digest = take_digest(w);
    uint8_t b = take(w);
    SEND(evict_req, WIRE_EVICT, .ids = ids.id, .n_ids = ids.n, .digest = digest,
         .descendants = b & 1, .dry_run = b & 2, .group = b & 4 ? take(w) : 0,
         .writer = {writer, b & 8 ? sizeof(writer) : 0}, .from_ms = b & 16 ? take(w) : 0,
         .to_ms = b & 32 ? UINT64_MAX : 0, .before_ms = b & 64 ? take(w) : 0);
}
static void op_flush(struct world *w, struct conn *c) {
    struct msg_bytes digest = take_digest(w);
    SEND(flush_req, WIRE_FLUSH, .digest = digest);
}
static void op_config(struct world *w, struct conn *c) {
    static const char *const names[] = {"hello_delay_ms", "min_reader_bytes", "access_log",
                                        "ram_bytes", ""};
    static const char *const values[] = {"0", "1", "true", "false", "x", ""};
    uint8_t b = take(w);
    if (b & 0x80)
        SEND(config_set_req, WIRE_CONFIG_SET, .name = names[b % ARRAY_LEN(names)],
             .value = values[b / 8 % ARRAY_LEN(values)]);
    else
        SEND(config_get_req, WIRE_CONFIG_GET, .name = names[b % ARRAY_LEN(names)]);
}
static void op_raw(struct world *w, struct conn *c) {
    uint8_t method = take(w), flags = take(w), n = take(w), n_payload = take(w);
    w->msg.len = 0;
    for (uint32_t i = 0; i < n && w->p < w->end; i++)
        w->msg.data[w->msg.len++] = take(w);
    send_frame(w, c, method, flags & WIRE_F_KNOWN, n_payload, 0);
}

static void run_op(struct world *w) {
    uint8_t op = take(w) % N_OPS;
    struct conn *c = &conns[take(w) % N_CONNS];
    switch ((enum op)op) {
#define OP(name, fn)                                                                               \
    case OP_##name:                                                                                \
        fn(w, c);                                                                                  \
        break;
        OP(OPEN, op_open)
        OP(HELLO, op_hello)
        OP(REGISTER, op_register)
        OP(LOOKUP, op_lookup)
        OP(TOUCH, op_touch)
        OP(FETCH, op_fetch)
        OP(CANCEL, op_cancel)
        OP(PUT_BEGIN, op_put_begin)
        OP(PUT_DATA, op_put_data)
        OP(PUT_COMMIT, op_put_commit)
        OP(PUT_ABORT, op_put_abort)
        OP(RELEASE, op_release)
        OP(HEARTBEAT, op_heartbeat)
        OP(LIST, op_list)
        OP(INSPECT, op_inspect)
        OP(EVICT, op_evict)
        OP(FLUSH, op_flush)
        OP(CONFIG, op_config)
        OP(RAW, op_raw)
    case OP_STATS:
        SEND(stats_req, WIRE_STATS, 0);
        break;
    case OP_CLOSE:
        hang_up(c);
        break;
    case OP_DEAF:
        c->is_deaf = !c->is_deaf;
        break;
    case OP_TICK:
        tick(w, 1ull << take(w) % 18);
        break;
    case OP_GARBLE:
        w->flip_at = take(w);
        w->flip_by = take(w);
        break;
    case OP_CUT:
        w->cut = take(w);
        break;
    case OP_DRAIN:
        if (take(w) == 0xdd)
            cachesvc_drain(w->node);
        break;
    case OP_TURN:
    case N_OPS:
        break;
    }
    if (op != OP_GARBLE && op != OP_CUT)
        turn(w);
}

/* ---- the node ---- */

static void set_text(struct cachesvc_config *cfg, const char *name, const char *value) {
    const struct cfg_opt *o = cfg_find(cachesvc_config_table(), name);
    char **at = (char **)(void *)((char *)cfg + o->off);
    free(*at);
    *at = strdup(value);
    CHECK(*at);
}

/* Few of everything, so that its bounds are reached. */
static void setup(struct world *w) {
    char *argv[] = {(char *)(uintptr_t) "node", (char *)(uintptr_t) "--listen=", NULL};
    struct errbuf eb = {{0}};
    CHECK(uv_loop_init(&w->loop) == 0);
    fake_clock_init(&w->clock);
    CHECK(cfg_load(cachesvc_config_table(), &(struct cfg_prog){"node", ""}, &w->cfg, 2, argv, NULL,
                   stdout, &eb) == 0);
    snprintf(w->path, sizeof(w->path), "/tmp/fuzz-node-%d.sock", (int)getpid());
    set_text(&w->cfg, "unix_listen", w->path);
    set_text(&w->cfg, "http_listen", "");
    w->cfg.huge_pages = false;
    w->cfg.ram_bytes = 1u << 20;
    w->cfg.min_slot_bytes = 4096;
    w->cfg.max_blocks = 24;
    w->cfg.max_sessions = 3;
    w->cfg.max_data_conns = 2;
    w->cfg.max_fetches = 3;
    w->cfg.max_waiting = 3;
    w->cfg.max_puts = 4;
    w->cfg.max_put_blocks = 8;
    w->cfg.max_commits = 3;
    w->cfg.max_ids = 12;
    w->cfg.disk_queue = 8;
    w->cfg.max_inflight_bytes = 1u << 20;
    struct cachesvc_env env = {.loop = &w->loop, .clk = &w->clock.clk};
    CHECK(cachesvc_open(&w->node, &env, &w->cfg, &eb) == 0);
    w->scratch = (struct bump){.base = arena, .cap = sizeof(arena)};
    w->msg = (struct buf){.data = msg_bytes, .cap = sizeof(msg_bytes)};
    w->next_id = 1;
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        char text[16];
        int n = snprintf(text, sizeof(text), "shape=%u\n", i);
        digest_sha256(text, (size_t)n, w->digest[i]);
    }
    for (int i = 0; i < N_CONNS; i++)
        conns[i].fd = -1;
    for (int i = 0; i < 20; i++) /* a young node opens its slots bit by bit */
        tick(w, 50);
}

/* Nobody is there any more: nothing may be left of them. */
static void check_empty(struct world *w) {
    const struct cachesvc *s = w->node;
    struct block_store_stats st;
    block_store_stats(s->store, &st);
    CHECK(slabpool_in_use(&s->sessions.pool) == 0 && st.now.sessions == 0);
    CHECK(slabpool_in_use(&s->streams) == 0 && slabpool_in_use(&s->sends) == 0);
    CHECK(slabpool_in_use(&s->puts) == 0 && slabpool_in_use(&s->commits) == 0);
    CHECK(s->n_waiting == 0 && s->evicts_open == 0);
    CHECK(st.now.leases == 0 && st.now.leased_blocks == 0 && st.now.leased_bytes == 0);
    CHECK(st.now.puts == 0 && st.now.put_bytes == 0 && st.now.promised_bytes == 0);
    CHECK(st.now.refs == 0 && st.now.filling_blocks == 0 && st.now.reads_in_flight == 0);
}

static void on_closed(void *arg) {
    ((struct world *)arg)->is_closed = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct world *w = calloc(1, sizeof(*w));
    CHECK(w);
    w->p = data;
    w->end = data + size;
    setup(w);
    for (int i = 0; i < MAX_OPS && w->p < w->end; i++)
        run_op(w);
    bool hangs_up = size % 4 != 0; /* else the node closes while they are all there */
    if (hangs_up) {
        for (int i = 0; i < N_CONNS; i++)
            hang_up(&conns[i]);
        for (int i = 0; i < 6; i++)
            tick(w, 50);
        check_empty(w);
    }
    cachesvc_close(w->node, on_closed, w);
    for (int i = 0; i < CLOSE_TURNS && !w->is_closed; i++)
        tick(w, 1);
    CHECK(w->is_closed);
    for (int i = 0; i < N_CONNS; i++)
        hang_up(&conns[i]);
    uv_run(&w->loop, UV_RUN_NOWAIT);
    CHECK(uv_loop_close(&w->loop) == 0);
    cfg_free(cachesvc_config_table(), &w->cfg);
    free(w);
    return 0;
}
