/* B1, B2: who may call what. A matrix of role x namespace x connection for every method, made from the node's
 * own method table and asked of a living node: a method without a row here fails. A token bound to namespace
 * A sees, counts and changes nothing of B; no role but admin lists ids. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <cmocka.h>

#include "cachesvc/store/store_priv.h"
#include "cachesvc/svc.h"
#include "common/checksum.h"
#include "tests/integration/raw_client.h"

#define DESC_A "block=32\nmodel=a\n"
#define DESC_B "block=32\nmodel=b\n"

enum conn_kind { CONTROL, DATA, NO_HELLO, N_KINDS };
enum ns_of { OWN, FOREIGN };
#define R(role) (1u << MSG_ROLE_##role)
#define ALL (R(WORKER) | R(READER) | R(ADMIN))

struct tenant_under_test {
    struct raw *r;          /* the connection that asks */
    uint32_t handle;        /* namespace handle, own or another tenant's */
    const uint8_t *digest;  /* of the same */
    struct block_id ids[2]; /* resident in it */
};

/* Sends a request that is right in all but who asks; returns the request id. */
typedef uint64_t (*ask_fn)(const struct tenant_under_test *t);

static uint64_t ask_hello(const struct tenant_under_test *t) {
    struct msg_hello_req q = {.version_min = WIRE_VERSION, .version_max = WIRE_VERSION};
    return RAW_SEND(t->r, hello_req, WIRE_HELLO, &q); /* role 0: no session comes of it */
}
static uint64_t ask_register(const struct tenant_under_test *t) {
    const char *d = t->ids[0].b[0] == 'B' ? DESC_B : DESC_A;
    struct msg_register_ns_req q = {.digest = {t->digest, DIGEST_BYTES},
                                    .descriptor = {(const uint8_t *)d, strlen(d)},
                                    .range_sizes = node_range_sizes,
                                    .n_range_sizes = NODE_RANGES,
                                    .n_full = NODE_RANGES,
                                    .seg_blocks = 8};
    return RAW_SEND(t->r, register_ns_req, WIRE_REGISTER_NS, &q);
}
static uint64_t ask_lookup(const struct tenant_under_test *t) {
    struct msg_lookup_req q = {.ns = t->handle, .ids = t->ids, .n_ids = 2, .flags = 3};
    return RAW_SEND(t->r, lookup_req, WIRE_LOOKUP, &q);
}
static uint64_t ask_touch(const struct tenant_under_test *t) {
    struct msg_touch_req q = {.ns = t->handle, .ids = t->ids, .n_ids = 2};
    return RAW_SEND(t->r, touch_req, WIRE_TOUCH, &q);
}
static uint64_t ask_fetch(const struct tenant_under_test *t) {
    struct msg_fetch_req q = {.ns = t->handle, .ids = t->ids, .n_ids = 2};
    return RAW_SEND(t->r, fetch_req, WIRE_FETCH, &q);
}
static uint64_t ask_cancel(const struct tenant_under_test *t) {
    struct msg_cancel_req q = {.request_id = 1u << 30};
    return RAW_SEND(t->r, cancel_req, WIRE_CANCEL, &q);
}
static uint64_t ask_put_begin(const struct tenant_under_test *t) {
    struct block_id parents[1] = {{{0}}};
    uint32_t depth = 0;
    uint64_t sum = 1; /* another checksum than the resident one's: nothing is begun by it */
    struct msg_put_begin_req q = {.ns = t->handle,
                                  .ids = t->ids,
                                  .n_ids = 1,
                                  .parents = parents,
                                  .n_parents = 1,
                                  .depths = &depth,
                                  .n_depths = 1,
                                  .checksums = &sum,
                                  .n_checksums = 1};
    return RAW_SEND(t->r, put_begin_req, WIRE_PUT_BEGIN, &q);
}
static uint64_t ask_put_data(const struct tenant_under_test *t) {
    static const uint8_t bytes[64];
    struct msg_put_data q = {.put_id = 1u << 30};
    raw_encode_begin(t->r);
    (void)wire_msg_put_data_encode(&t->r->scratch, &q, t->r->out);
    return raw_send(t->r, WIRE_PUT_DATA, 0, bytes, sizeof(bytes), 0);
}
static uint64_t ask_put_commit(const struct tenant_under_test *t) {
    struct msg_put_commit_req q = {.put_id = 1u << 30};
    return RAW_SEND(t->r, put_commit_req, WIRE_PUT_COMMIT, &q);
}
static uint64_t ask_put_abort(const struct tenant_under_test *t) {
    struct msg_put_abort_req q = {.put_id = 1u << 30};
    return RAW_SEND(t->r, put_abort_req, WIRE_PUT_ABORT, &q);
}
static uint64_t ask_release(const struct tenant_under_test *t) {
    struct msg_release_req q = {.lease_id = 1u << 30};
    return RAW_SEND(t->r, release_req, WIRE_RELEASE, &q);
}
static uint64_t ask_heartbeat(const struct tenant_under_test *t) {
    struct msg_heartbeat_req q = {0};
    return RAW_SEND(t->r, heartbeat_req, WIRE_HEARTBEAT, &q);
}
static uint64_t ask_stats(const struct tenant_under_test *t) {
    struct msg_stats_req q = {0};
    return RAW_SEND(t->r, stats_req, WIRE_STATS, &q);
}
static uint64_t ask_list(const struct tenant_under_test *t) {
    struct msg_list_req q = {.what = MSG_LIST_BLOCKS, .digest = {t->digest, DIGEST_BYTES}};
    return RAW_SEND(t->r, list_req, WIRE_LIST, &q);
}
static uint64_t ask_inspect(const struct tenant_under_test *t) {
    struct msg_inspect_req q = {.id = {t->ids[0].b, BLOCK_ID_BYTES}};
    return RAW_SEND(t->r, inspect_req, WIRE_INSPECT, &q);
}
/* Nothing is removed by the matrix: its own namespace is needed again. */
static uint64_t ask_evict(const struct tenant_under_test *t) {
    bool is_own = t->ids[0].b[0] != 'B';
    struct msg_evict_req q = {.digest = {t->digest, DIGEST_BYTES}, .dry_run = is_own};
    return RAW_SEND(t->r, evict_req, WIRE_EVICT, &q);
}
static uint64_t ask_flush(const struct tenant_under_test *t) {
    static const uint8_t empty[DIGEST_BYTES] = {
        0xee}; /* one of the tokens' namespaces, never filled */
    bool is_own = t->ids[0].b[0] != 'B';
    struct msg_flush_req q = {.digest = {is_own ? empty : t->digest, DIGEST_BYTES}};
    return RAW_SEND(t->r, flush_req, WIRE_FLUSH, &q);
}

/* Options are the node's: no token that is bound to namespaces asks for them. */
static uint64_t ask_config_get(const struct tenant_under_test *t) {
    struct msg_config_get_req q = {.name = "ram_bytes"};
    return RAW_SEND(t->r, config_get_req, WIRE_CONFIG_GET, &q);
}
static uint64_t ask_config_set(const struct tenant_under_test *t) {
    struct msg_config_set_req q = {.name = "log_level", .value = "debug"};
    return RAW_SEND(t->r, config_set_req, WIRE_CONFIG_SET, &q);
}

/* What is right. roles: who is not told DENIED, on the connection kinds in `on`. own: what these then get
 * for their own namespace; foreign: for another's, the same where the request names none. */
static const struct row {
    uint16_t method;
    uint32_t roles, on; /* bits of roles, of connection kinds */
    int own, foreign;
    ask_fn ask;
} rows[] = {
#define ON(kind) (1u << (kind))
    {WIRE_HELLO, ALL, ON(CONTROL) | ON(DATA), ERR_PROTO, ERR_PROTO, ask_hello},
    {WIRE_REGISTER_NS, ALL, ON(CONTROL), 0, ERR_DENIED, ask_register},
    {WIRE_LOOKUP, ALL, ON(CONTROL), 0, ERR_INVALID, ask_lookup},
    {WIRE_TOUCH, ALL, ON(CONTROL), 0, ERR_INVALID, ask_touch},
    {WIRE_FETCH, ALL, ON(DATA), 0, ERR_INVALID, ask_fetch},
    {WIRE_CANCEL, ALL, ON(CONTROL) | ON(DATA), 0, 0, ask_cancel},
    {WIRE_PUT_BEGIN, R(WORKER) | R(ADMIN), ON(CONTROL), 0, ERR_INVALID, ask_put_begin},
    {WIRE_PUT_DATA, R(WORKER) | R(ADMIN), ON(DATA), ERR_NOTFOUND, ERR_NOTFOUND, ask_put_data},
    {WIRE_PUT_COMMIT, R(WORKER) | R(ADMIN), ON(CONTROL), ERR_NOTFOUND, ERR_NOTFOUND,
     ask_put_commit},
    {WIRE_PUT_ABORT, R(WORKER) | R(ADMIN), ON(CONTROL), 0, 0, ask_put_abort},
    {WIRE_RELEASE, ALL, ON(CONTROL), 0, 0, ask_release},
    {WIRE_HEARTBEAT, ALL, ON(CONTROL), 0, 0, ask_heartbeat},
    {WIRE_STATS, ALL, ON(CONTROL), 0, 0, ask_stats},
    {WIRE_LIST, R(ADMIN), ON(CONTROL), 0, ERR_DENIED, ask_list},
    {WIRE_INSPECT, R(ADMIN), ON(CONTROL), 0, ERR_NOTFOUND, ask_inspect},
    {WIRE_EVICT, R(ADMIN), ON(CONTROL), 0, ERR_DENIED, ask_evict},
    {WIRE_FLUSH, R(ADMIN), ON(CONTROL), 0, ERR_DENIED, ask_flush},
    {WIRE_CONFIG_GET, R(ADMIN), ON(CONTROL), ERR_DENIED, ERR_DENIED, ask_config_get},
    {WIRE_CONFIG_SET, R(ADMIN), ON(CONTROL), ERR_DENIED, ERR_DENIED, ask_config_set},
};

static const struct row *row_of(uint16_t method) {
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].method == method)
            return &rows[i];
    fail_msg("%s (%u) has a row in the method table and none in the matrix",
             wire_method_name(method), method);
    return NULL;
}

/* ---- the node, two tenants, two blocks each ---- */

struct world {
    struct node_fixture f;
    struct raw control[MSG_ROLE_ADMIN + 1], data[MSG_ROLE_ADMIN + 1], bare;
    struct raw other, other_data;                     /* tenant B's worker */
    uint32_t handle[MSG_ROLE_NODE + 1], other_handle; /* a node has none */
    uint8_t digest_a[DIGEST_BYTES], digest_b[DIGEST_BYTES];
    struct block_id ids_a[2], ids_b[2];
};

static const char *const tokens[] = {[MSG_ROLE_WORKER] = "token-of-a-worker",
                                     [MSG_ROLE_READER] = "token-of-a-reader",
                                     [MSG_ROLE_ADMIN] = "token-of-an-admin"};
#define TOKEN_B "token-of-b-worker"
#define TOKEN_ALL "token-of-everyone"

static void make_tokens(struct world *w) {
    char a[65], b[65], text[2048];
    digest_sha256(DESC_A, strlen(DESC_A), w->digest_a);
    digest_sha256(DESC_B, strlen(DESC_B), w->digest_b);
    digest_hex(w->digest_a, DIGEST_BYTES, a);
    digest_hex(w->digest_b, DIGEST_BYTES, b);
    snprintf(text, sizeof(text),
             "worker %s %s\nreader %s %s\nadmin %s %s ee%062d\nworker %s %s\nadmin %s\n",
             tokens[MSG_ROLE_WORKER], a, tokens[MSG_ROLE_READER], a, tokens[MSG_ROLE_ADMIN], a, 0,
             TOKEN_B, b, TOKEN_ALL);
    node_fixture_token_file(&w->f, text);
}

/* A chain of two blocks with right sums, by hand. */
static void put_two(struct raw *control, struct raw *data, uint32_t handle,
                    const struct block_id *ids) {
    static uint8_t bytes[NODE_PAYLOAD];
    uint64_t sums[2], ranges[NODE_RANGES];
    struct block_id parents[2] = {{{0}}, ids[0]};
    uint32_t depths[2] = {0, 1}, index[2] = {0, 1};
    for (uint32_t i = 0; i < 2; i++) {
        node_payload(ids[0].b[0], i, bytes);
        sums[i] = checksum_block(bytes, node_range_sizes, NODE_RANGES, ids[i].b, ranges);
    }
    struct msg_put_begin_req q = {.ns = handle,
                                  .ids = ids,
                                  .n_ids = 2,
                                  .parents = parents,
                                  .n_parents = 2,
                                  .depths = depths,
                                  .n_depths = 2,
                                  .checksums = sums,
                                  .n_checksums = 2};
    struct msg_put_begin_res res = {0};
    for (int i = 0; i < 2000 && !res.put_id; i++) { /* a young node opens its slots bit by bit */
        assert_true(raw_answer(control, RAW_SEND(control, put_begin_req, WIRE_PUT_BEGIN, &q)));
        assert_int_equal(raw_error(control), 0);
        assert_int_equal(RAW_DECODE(control, put_begin_res, &res), 0);
        if (!res.put_id)
            raw_turn(control);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct msg_put_data d = {.put_id = res.put_id, .index = i};
        node_payload(ids[0].b[0], i, bytes);
        raw_encode_begin(data);
        assert_int_equal(wire_msg_put_data_encode(&data->scratch, &d, data->out), 0);
        raw_send(data, WIRE_PUT_DATA, WIRE_F_ONEWAY, bytes, NODE_PAYLOAD, 0);
    }
    struct msg_put_commit_req c = {
        .put_id = res.put_id, .indexes = index, .n_indexes = 2, .last = true};
    struct msg_put_commit_res done;
    assert_true(raw_answer(control, RAW_SEND(control, put_commit_req, WIRE_PUT_COMMIT, &c)));
    assert_int_equal(raw_error(control), 0);
    assert_int_equal(RAW_DECODE(control, put_commit_res, &done), 0);
    assert_int_equal(done.status.p[0], MSG_COMMIT_OK);
    assert_int_equal(done.status.p[1], MSG_COMMIT_OK);
}

static void open_pair(struct world *w, struct raw *control, struct raw *data, uint32_t role,
                      const char *token) {
    raw_open(control, &w->f, 0);
    assert_int_equal(raw_hello(control, role, token, NULL), 0);
    raw_open(data, &w->f, 0);
    assert_int_equal(raw_hello(data, role, token, control), 0);
}

static int setup(void **state) {
    struct world *w = calloc(1, sizeof(*w));
    node_fixture_init(&w->f);
    make_tokens(w);
    node_fixture_start(&w->f);
    for (uint32_t i = 0; i < 2; i++) {
        w->ids_a[i].b[0] = 'A';
        w->ids_b[i].b[0] = 'B';
        w->ids_a[i].b[1] = w->ids_b[i].b[1] = (uint8_t)i;
    }
    open_pair(w, &w->other, &w->other_data, MSG_ROLE_WORKER, TOKEN_B);
    assert_int_equal(raw_register(&w->other, DESC_B, &w->other_handle), 0);
    put_two(&w->other, &w->other_data, w->other_handle, w->ids_b);
    for (uint32_t role = MSG_ROLE_WORKER; role <= MSG_ROLE_ADMIN; role++) {
        open_pair(w, &w->control[role], &w->data[role], role, tokens[role]);
        assert_int_equal(raw_register(&w->control[role], DESC_A, &w->handle[role]), 0);
        if (role == MSG_ROLE_WORKER)
            put_two(&w->control[role], &w->data[role], w->handle[role], w->ids_a);
    }
    raw_open(&w->bare, &w->f, 0);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    for (uint32_t role = MSG_ROLE_WORKER; role <= MSG_ROLE_ADMIN; role++) {
        raw_close(&w->data[role]);
        raw_close(&w->control[role]);
    }
    raw_close(&w->bare);
    raw_close(&w->other_data);
    raw_close(&w->other);
    node_fixture_fini(&w->f);
    free(w);
    return 0;
}

/* ---- the matrix ---- */

static struct raw *conn_of(struct world *w, enum conn_kind kind, uint32_t role) {
    if (role == MSG_ROLE_NODE)
        return &w->bare;
    return kind == CONTROL ? &w->control[role] : kind == DATA ? &w->data[role] : &w->bare;
}

static int want_of(const struct row *row, enum conn_kind kind, uint32_t role, enum ns_of ns) {
    if (kind == NO_HELLO || role == MSG_ROLE_NODE) /* a Hello without a role opens nothing */
        return row->method == WIRE_HELLO      ? ERR_INVALID
               : row->method == WIRE_PUT_DATA ? ERR_TOOBIG /* A8: no payload before Hello */
                                              : ERR_DENIED;
    if (!(row->on & ON(kind)) || !(row->roles & (1u << role)))
        return ERR_DENIED;
    return ns == OWN ? row->own : row->foreign;
}

static void try_one(struct world *w, const struct row *row, enum conn_kind kind, uint32_t role,
                    enum ns_of ns) {
    struct tenant_under_test t = {.r = conn_of(w, kind, role),
                                  .handle = ns == OWN ? w->handle[role] : w->other_handle,
                                  .digest = ns == OWN ? w->digest_a : w->digest_b};
    memcpy(t.ids, ns == OWN ? w->ids_a : w->ids_b, sizeof(t.ids));
    int want = want_of(row, kind, role, ns);
    int got = raw_answer(t.r, row->ask(&t)) ? raw_error(t.r) : ERR_CLOSED;
    if (got != want)
        fail_msg("%s, role %u, connection %d, namespace %d: %s, not %s",
                 wire_method_name(row->method), role, kind, ns, err_name(got), err_name(want));
    if (t.r == &w->bare && got == ERR_TOOBIG) { /* which ended the connection */
        raw_close(t.r);
        raw_open(t.r, &w->f, 0);
    }
}

/* A new one: it has little time to say Hello, and one try. As node of the pool that try is refused, whoever's
 * token or session it names, and the connection is as before: no method answers it. */
static void open_bare(struct world *w, enum conn_kind kind, uint32_t role) {
    raw_close(&w->bare);
    raw_open(&w->bare, &w->f, 0);
    if (role != MSG_ROLE_NODE || kind == NO_HELLO)
        return;
    int rv = raw_hello(&w->bare, role, tokens[MSG_ROLE_ADMIN],
                       kind == DATA ? &w->control[MSG_ROLE_ADMIN] : NULL);
    assert_int_equal(rv, ERR_INVALID);
}

static void test_every_method_for_everyone(void **state) {
    struct world *w = *state;
    for (size_t i = 0; i < svc_n_methods; i++) {
        const struct row *row = row_of(svc_methods[i].method);
        for (uint32_t role = MSG_ROLE_WORKER; role <= MSG_ROLE_NODE; role++)
            for (int kind = 0; kind < N_KINDS; kind++) {
                open_bare(w, (enum conn_kind)kind, role);
                try_one(w, row, (enum conn_kind)kind, role, OWN);
                open_bare(w, (enum conn_kind)kind, role);
                try_one(w, row, (enum conn_kind)kind, role, FOREIGN);
            }
    }
    assert_int_equal(svc_n_methods, ARRAY_LEN(rows)); /* none here that the node does not have */
    /* Tenant B lost nothing by it all. */
    struct tenant_under_test t = {.r = &w->other, .handle = w->other_handle};
    struct msg_lookup_res res;
    memcpy(t.ids, w->ids_b, sizeof(t.ids));
    assert_true(raw_answer(&w->other, ask_lookup(&t)));
    assert_int_equal(RAW_DECODE(&w->other, lookup_res, &res), 0);
    assert_int_equal(res.n_prefix, 2);
}

static void test_methods_without_a_row_are_unimplemented(void **state) {
    struct world *w = *state;
    struct raw *r = &w->control[MSG_ROLE_ADMIN];
#define X(name, number, text) number,
    static const uint16_t numbers[] = {WIRE_METHODS(X)};
#undef X
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        bool has_row = false;
        for (size_t k = 0; k < svc_n_methods; k++)
            has_row |= svc_methods[k].method == numbers[i];
        if (has_row)
            continue;
        raw_encode_begin(r);
        assert_true(raw_answer(r, raw_send(r, numbers[i], 0, NULL, 0, 0)));
        assert_int_equal(raw_error(r), ERR_UNIMPLEMENTED);
    }
}

/* What is no method's business: roles that the node does not know, a role that the token does not have. */
static void test_hello_opens_no_other_role(void **state) {
    struct world *w = *state;
    static const struct {
        uint32_t role;
        const char *token;
        int want;
    } cases[] = {{0, "token-of-an-admin", ERR_INVALID},
                 {MSG_ROLE_NODE, "token-of-an-admin", ERR_INVALID},
                 {MSG_ROLE_NODE, TOKEN_ALL, ERR_INVALID},
                 {MSG_ROLE_NODE, NULL, ERR_INVALID},
                 {MSG_ROLE_NODE + 1, "token-of-an-admin", ERR_INVALID},
                 {MSG_ROLE_ADMIN, "token-of-a-worker", ERR_DENIED},
                 {MSG_ROLE_WORKER, "token-of-a-reader", ERR_DENIED},
                 {MSG_ROLE_WORKER, NULL, ERR_DENIED}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct raw r;
        raw_open(&r, &w->f, 0);
        assert_int_equal(raw_hello(&r, cases[i].role, cases[i].token, NULL), cases[i].want);
        raw_close(&r);
    }
}

/* B6: one connection is one guess: the answer waits, what was sent behind it is not read, the connection
 * ends. 99,000 a second were answered on one connection, without a log line. */
static void test_a_wrong_token_ends_its_connection(void **state) {
    struct world *w = *state;
    struct cachesvc *s = w->f.node;
    struct raw r;
    uint64_t denied = s->met.hello_denied_total, requests;
    struct rpc_server_stats st;
    raw_open(&r, &w->f, 0);
    rpc_server_stats(s->rpc, &st);
    requests = st.requests;
    for (int i = 0; i < 100; i++) {
        struct msg_hello_req q = {.version_min = WIRE_VERSION,
                                  .version_max = WIRE_VERSION,
                                  .role = MSG_ROLE_WORKER,
                                  .token = {(const uint8_t *)"a-guess-of-a-token", 18}};
        (void)RAW_SEND(&r, hello_req, WIRE_HELLO, &q);
    }
    assert_true(raw_answer(&r, 1));
    assert_int_equal(raw_error(&r), ERR_DENIED);
    assert_false(raw_read(&r));
    assert_true(r.is_closed);
    assert_int_equal(s->met.hello_denied_total, denied + 1);
    rpc_server_stats(s->rpc, &st);
    assert_int_equal(st.requests, requests + 1);
    raw_close(&r);
}

/* A7: a reader can't make namespaces, and no descriptor is large. */
static void test_namespaces_are_made_by_workers_and_small(void **state) {
    struct world *w = *state;
    struct raw admin;
    uint32_t handle;
    char text[4098];
    node_fixture_token_file(&w->f, "worker " TOKEN_ALL "\nreader " TOKEN_B "\n");
    node_fixture_stop(&w->f);
    node_fixture_start(&w->f);
    raw_open(&admin, &w->f, 0);
    assert_int_equal(raw_hello(&admin, MSG_ROLE_WORKER, TOKEN_ALL, NULL), 0);
    struct raw reader;
    raw_open(&reader, &w->f, 0);
    assert_int_equal(raw_hello(&reader, MSG_ROLE_READER, TOKEN_B, NULL), 0);
    assert_int_equal(raw_register(&reader, DESC_A, &handle), ERR_NOTFOUND);
    assert_int_equal(raw_register(&admin, DESC_A, &handle), 0);
    assert_int_equal(raw_register(&reader, DESC_A, &handle), 0);
    memset(text, 'x', sizeof(text));
    text[4097] = '\0';
    assert_int_equal(raw_register(&admin, text, &handle), ERR_INVALID);
    text[4096] = '\0';
    assert_int_equal(raw_register(&admin, text, &handle), 0);
    raw_close(&reader);
    raw_close(&admin);
}

/* ---- what is seen ---- */

struct seen {
    uint32_t rows, foreign;
};

static struct seen list(struct world *w, struct raw *r, uint32_t what, const uint8_t *digest) {
    struct seen n = {0};
    struct msg_list_req q = {
        .what = what, .limit = 1, .digest = {digest, digest ? DIGEST_BYTES : 0}};
    uint8_t cursor[16];
    for (int i = 0; i < 100; i++) { /* page by page */
        struct msg_list_res res;
        assert_true(raw_answer(r, RAW_SEND(r, list_req, WIRE_LIST, &q)));
        if (raw_error(r) < 0)
            return (struct seen){UINT32_MAX, 0};
        assert_int_equal(RAW_DECODE(r, list_res, &res), 0);
        n.rows += (uint32_t)(res.n_blocks + res.n_namespaces + res.n_sessions);
        for (size_t k = 0; k < res.n_blocks; k++)
            n.foreign += memcmp(res.blocks[k].digest.p, w->digest_b, DIGEST_BYTES) == 0;
        for (size_t k = 0; k < res.n_namespaces; k++)
            n.foreign += memcmp(res.namespaces[k].digest.p, w->digest_b, DIGEST_BYTES) == 0;
        for (size_t k = 0; k < res.n_sessions; k++)
            n.foreign += res.sessions[k].session == 1; /* the first that was opened: B's worker */
        if (!res.cursor.n)
            break;
        assert_true(res.cursor.n <= sizeof(cursor));
        memcpy(cursor, res.cursor.p, res.cursor.n);
        q.cursor = (struct msg_bytes){cursor, res.cursor.n};
    }
    return n;
}

/* A bound admin sees its own, page by page; one that is bound to nothing sees all. */
static void test_lists_show_the_tokens_own(void **state) {
    struct world *w = *state;
    struct raw *bound = &w->control[MSG_ROLE_ADMIN], all;
    raw_open(&all, &w->f, 0);
    assert_int_equal(raw_hello(&all, MSG_ROLE_ADMIN, TOKEN_ALL, NULL), 0);
    struct seen n = list(w, bound, MSG_LIST_BLOCKS, w->digest_a);
    assert_int_equal(n.rows, 2);
    assert_int_equal(n.foreign, 0);
    assert_int_equal(list(w, bound, MSG_LIST_BLOCKS, NULL).rows, UINT32_MAX); /* must name one */
    n = list(w, bound, MSG_LIST_NAMESPACES, NULL);
    assert_int_equal(n.rows, 1);
    assert_int_equal(n.foreign, 0);
    n = list(w, bound, MSG_LIST_SESSIONS, NULL);
    assert_int_equal(n.rows, 3); /* A's worker, reader and admin */
    assert_int_equal(n.foreign, 0);
    assert_int_equal(list(w, &all, MSG_LIST_BLOCKS, NULL).rows, 4);
    assert_int_equal(list(w, &all, MSG_LIST_NAMESPACES, NULL).rows, 2);
    assert_int_equal(list(w, &all, MSG_LIST_NAMESPACES, w->digest_b).rows, 1);
    assert_int_equal(list(w, &all, MSG_LIST_SESSIONS, NULL).rows, 5);
    raw_close(&all);
}

static struct msg_stats_res stats(struct raw *r) {
    struct tenant_under_test t = {.r = r};
    struct msg_stats_res res;
    assert_true(raw_answer(r, ask_stats(&t)));
    assert_int_equal(RAW_DECODE(r, stats_res, &res), 0);
    return res;
}

static void test_stats_and_touch_count_the_tokens_own(void **state) {
    struct world *w = *state;
    for (uint32_t role = MSG_ROLE_WORKER; role <= MSG_ROLE_ADMIN; role++) {
        struct msg_stats_res st = stats(&w->control[role]);
        assert_int_equal(st.blocks_ram, 2);
        assert_int_equal(st.namespaces, 1);
        /* The admin's token covers one namespace more, so that it alone sees the admin. */
        assert_int_equal(st.sessions, role == MSG_ROLE_ADMIN ? 3 : 2);
        assert_int_equal(st.ram_used_bytes / NODE_PAYLOAD, 2);
        assert_true(st.ram_bytes > 0);
        /* What only the whole node has. */
        assert_int_equal(st.n_counters, 0);
        assert_int_equal(st.max_blocks | st.leases | st.puts_open | st.holes, 0);
        assert_int_equal(st.lookup_blocks | st.lookup_hits | st.fetch_blocks | st.put_blocks |
                             st.evict_blocks | st.conflicts | st.corrupt,
                         0);
    }
    struct tenant_under_test t = {.r = &w->control[MSG_ROLE_READER],
                                  .handle = w->handle[MSG_ROLE_READER]};
    struct msg_ack ack;
    memcpy(t.ids, w->ids_b, sizeof(t.ids)); /* B's ids under A's handle */
    assert_true(raw_answer(t.r, ask_touch(&t)));
    assert_int_equal(RAW_DECODE(t.r, ack, &ack), 0);
    assert_int_equal(ack.count, 0);
    struct msg_lookup_res res;
    assert_true(raw_answer(t.r, ask_lookup(&t)));
    assert_int_equal(RAW_DECODE(t.r, lookup_res, &res), 0);
    assert_int_equal(res.n_prefix, 0);
}

/* What the store shares among tenants, it shares among tokens: each has its own there, and only one. */
static void test_the_store_tells_tokens_apart(void **state) {
    struct world *w = *state;
    struct raw again;
    raw_open(&again, &w->f, 0);
    assert_int_equal(raw_hello(&again, MSG_ROLE_WORKER, tokens[MSG_ROLE_WORKER], NULL), 0);
    uint32_t n_sessions[4] = {0}, n = 0;
    LIST_FOREACH(&w->f.node->store->live_tenants, it) {
        assert_true(n < ARRAY_LEN(n_sessions));
        n_sessions[n++] = LIST_ENTRY(it, struct store_tenant, link)->n_sessions;
    }
    assert_int_equal(n, 4);
    assert_int_equal(n_sessions[0], 1); /* B's worker was first */
    assert_int_equal(n_sessions[1], 2); /* A's worker, twice now */
    raw_close(&again);
}

/* A: one token's sessions took all there are, and an administrator could not even ask who holds them. */
static void test_one_token_leaves_sessions_to_the_others(void **state) {
    (void)state;
    static struct node_fixture f;
    static struct raw r[17];
    struct raw admin;
    node_fixture_init(&f);
    f.cfg.max_sessions = 16;
    node_fixture_token_file(&f, "worker " TOKEN_ALL "\nadmin " TOKEN_B "\n");
    node_fixture_start(&f);
    uint32_t n = 0;
    int rv = 0;
    for (; rv == 0 && n < ARRAY_LEN(r); n++) {
        raw_open(&r[n], &f, 0);
        rv = raw_hello(&r[n], MSG_ROLE_WORKER, TOKEN_ALL, NULL);
    }
    assert_int_equal(rv, ERR_BUSY);
    assert_string_equal(raw_error_text(&r[n - 1]),
                        "Hello: sessions: 14 of 16 are taken, 14 of them by its tenant, 0 by this "
                        "session, whose share is 1");
    assert_int_equal(n - 1, 14); /* an eighth is kept for tokens below their share */
    raw_open(&admin, &f, 0);
    assert_int_equal(raw_hello(&admin, MSG_ROLE_ADMIN, TOKEN_B, NULL), 0);
    raw_close(&admin);
    while (n > 0)
        raw_close(&r[--n]);
    node_fixture_fini(&f);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_every_method_for_everyone),
        T(test_methods_without_a_row_are_unimplemented),
        T(test_hello_opens_no_other_role),
        T(test_a_wrong_token_ends_its_connection),
        T(test_namespaces_are_made_by_workers_and_small),
        T(test_lists_show_the_tokens_own),
        T(test_stats_and_touch_count_the_tokens_own),
        T(test_the_store_tells_tokens_apart),
        cmocka_unit_test(test_one_token_leaves_sessions_to_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
