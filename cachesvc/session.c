#include "cachesvc/session.h"

#include <openssl/crypto.h>
#include <sys/random.h>

#include "common/check.h"

int session_table_init(struct session_table *t, uint32_t max_sessions) {
    list_init(&t->all);
    t->next_number = 1;
    return slabpool_init(&t->pool, max_sessions, sizeof(struct session));
}

void session_table_fini(struct session_table *t) {
    CHECK(list_empty(&t->all));
    slabpool_fini(&t->pool);
}

int session_open(struct session_table *t, struct block_store *store, struct rpc_conn *conn,
                 struct session **ret) {
    struct session *s = slabpool_take(&t->pool);
    if (!s)
        return ERR_BUSY;
    int rv = block_store_session_open(store, &s->store);
    if (rv == 0 && getrandom(s->token, sizeof(s->token), 0) != (ssize_t)sizeof(s->token)) {
        block_store_session_close(s->store);
        rv = ERR_INTERNAL;
    }
    if (rv < 0) {
        slabpool_give(&t->pool, s);
        return rv;
    }
    s->number = t->next_number++;
    list_init(&s->streams);
    list_init(&s->puts);
    for (uint32_t i = 0; i < SESSION_MAX_DATA; i++)
        s->data[i] = (struct session_conn){.session = s, .number = i + 1};
    s->control = (struct session_conn){.session = s, .conn = rpc_conn_ref(conn)};
    rpc_conn_set_user(conn, &s->control);
    list_push_back(&t->all, &s->link);
    *ret = s;
    return 0;
}

void session_free(struct session_table *t, struct session *s) {
    CHECK(list_empty(&s->streams) && list_empty(&s->puts));
    for (uint32_t i = 0; i < SESSION_MAX_DATA; i++)
        CHECK(!s->data[i].conn);
    block_store_session_close(s->store);
    list_remove(&s->link);
    explicit_bzero(s->token, sizeof(s->token));
    slabpool_give(&t->pool, s);
}

struct session *session_find(struct session_table *t, const uint8_t token[WIRE_SESSION_TOKEN_BYTES]) {
    struct session *found = NULL;
    LIST_FOREACH(&t->all, it) {
        struct session *s = LIST_ENTRY(it, struct session, link);
        if (CRYPTO_memcmp(s->token, token, WIRE_SESSION_TOKEN_BYTES) == 0)
            found = s;
    }
    return found;
}

int session_join(struct session *s, struct rpc_conn *conn, uint32_t max_data, struct session_conn **ret) {
    for (uint32_t i = 0; i < MIN(max_data, (uint32_t)SESSION_MAX_DATA); i++) {
        if (s->data[i].conn)
            continue;
        s->data[i].conn = rpc_conn_ref(conn);
        rpc_conn_set_user(conn, &s->data[i]);
        *ret = &s->data[i];
        return 0;
    }
    return ERR_BUSY;
}

uint32_t session_n_data(const struct session *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < SESSION_MAX_DATA; i++)
        n += s->data[i].conn != NULL;
    return n;
}

bool session_may_use_ns(const struct session *s, uint32_t handle) {
    uint32_t ns = handle - 1;
    return handle > 0 && ns < SESSION_MAX_NS && (s->ns_registered[ns / 64] >> (ns % 64) & 1);
}

void session_note_ns(struct session *s, uint32_t ns) {
    CHECK(ns < SESSION_MAX_NS);
    s->ns_registered[ns / 64] |= 1ull << (ns % 64);
}
