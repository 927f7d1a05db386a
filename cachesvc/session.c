#include "cachesvc/session.h"

#include <openssl/crypto.h>
#include <sys/random.h>

#include "common/check.h"
#include "common/secret.h"
#include "proto/wire_msg.h"

/* ---- tokens ---- */

static const struct {
    const char *name;
    uint32_t role;
} role_names[] = {{"worker", MSG_ROLE_WORKER}, {"reader", MSG_ROLE_READER}, {"admin", MSG_ROLE_ADMIN}};

static int parse_line(struct str line, struct auth_token *ret, const char **ret_why) {
    struct str word;
    *ret = (struct auth_token){0};
    (void)secret_word(&line, &word); /* a line has one */
    for (size_t i = 0; i < ARRAY_LEN(role_names); i++)
        if (str_eq(word, str_of(role_names[i].name)))
            ret->role = role_names[i].role;
    *ret_why = "the role is not worker, reader or admin";
    if (!ret->role)
        return ERR_INVALID;
    *ret_why = "no token behind the role";
    if (!secret_word(&line, &word))
        return ERR_INVALID;
    *ret_why = "a token needs at least 16 characters";
    if (word.n < 16)
        return ERR_INVALID;
    digest_sha256(word.p, word.n, ret->digest);
    while (secret_word(&line, &word)) {
        char hex[2 * DIGEST_BYTES + 1] = "";
        *ret_why = "at most 8 namespace digests of 64 hex digits";
        if (ret->n_ns == ARRAY_LEN(ret->ns) || word.n != 2 * DIGEST_BYTES)
            return ERR_INVALID;
        memcpy(hex, word.p, word.n);
        if (digest_unhex(hex, DIGEST_BYTES, ret->ns[ret->n_ns++]) < 0)
            return ERR_INVALID;
    }
    return 0;
}

static int add_token(struct auth *a, const struct auth_token *t) {
    struct auth_token *more =
        secret_resize(a->tokens, a->n * sizeof(*more), (a->n + 1) * sizeof(*more));
    if (!more)
        return ERR_NOMEM;
    a->tokens = more;
    a->tokens[a->n++] = *t;
    return 0;
}

int auth_load(struct auth *a, const char *path, struct errbuf *warn, struct errbuf *eb) {
    struct secret_file f;
    struct str line;
    *a = (struct auth){0};
    int rv = secret_file_open(&f, "token file", path, warn, eb);
    while (rv == 0 && secret_file_next(&f, &line)) {
        struct auth_token t;
        const char *why = "out of memory";
        rv = parse_line(line, &t, &why);
        if (rv == 0)
            rv = add_token(a, &t);
        if (rv < 0)
            (void)secret_file_error(&f, eb, "%s", why);
    }
    if (rv == 0 && a->n == 0)
        rv = err_set(eb, ERR_INVALID, "token file '%s' holds no token", path);
    secret_file_close(&f);
    if (rv < 0)
        auth_fini(a);
    return rv;
}

void auth_fini(struct auth *a) {
    secret_free(a->tokens, a->n * sizeof(*a->tokens));
    *a = (struct auth){0};
}

int auth_check(const struct auth *a, const void *token, size_t len, uint32_t role,
               const struct auth_token **ret) {
    *ret = NULL;
    if (a->n == 0)
        return 0;
    uint8_t digest[DIGEST_BYTES];
    digest_sha256(token, len, digest);
    /* Every row is compared in full, so the time tells nothing about how far a guess got. */
    for (uint32_t i = 0; i < a->n; i++)
        if (CRYPTO_memcmp(digest, a->tokens[i].digest, DIGEST_BYTES) == 0 && a->tokens[i].role == role)
            *ret = &a->tokens[i];
    return *ret ? 0 : ERR_DENIED;
}

/* ---- sessions ---- */

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

bool session_ns_allowed(const struct session *s, const uint8_t digest[DIGEST_BYTES]) {
    if (!s->auth || s->auth->n_ns == 0)
        return true;
    for (uint32_t i = 0; i < s->auth->n_ns; i++)
        if (memcmp(s->auth->ns[i], digest, DIGEST_BYTES) == 0)
            return true;
    return false;
}
