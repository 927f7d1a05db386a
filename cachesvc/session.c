#include "cachesvc/session.h"

#include <openssl/crypto.h>
#include <sys/random.h>

#include "common/check.h"
#include "common/str.h"

/* ---- tenants ---- */

static int tenant_take(struct session_table *t, const struct auth_token *auth,
                       struct tenant **ret) {
    LIST_FOREACH(&t->tenants, it) {
        struct tenant *old = LIST_ENTRY(it, struct tenant, link);
        if (auth ? memcmp(old->auth.digest, auth->digest, DIGEST_BYTES) == 0 : !old->has_auth) {
            old->n_sessions++;
            *ret = old;
            return 0;
        }
    }
    struct tenant *n = calloc(1, sizeof(*n)); /* with a Hello: not a hot path */
    if (!n)
        return ERR_NOMEM;
    n->has_auth = auth != NULL;
    if (auth)
        n->auth = *auth;
    n->n_sessions = 1;
    for (int i = 0; i < N_BOUNDS; i++)
        share_tenant_init(&n->bound[i], &t->bound[i]);
    list_push_back(&t->tenants, &n->link);
    *ret = n;
    return 0;
}

static void tenant_give(struct tenant *n) {
    if (--n->n_sessions > 0)
        return;
    for (int i = 0; i < N_BOUNDS; i++)
        share_tenant_fini(&n->bound[i]);
    list_remove(&n->link);
    free(n);
}

/* ---- sessions ---- */

int session_table_init(struct session_table *t, uint32_t max_sessions,
                       const struct session_limit limit[N_BOUNDS]) {
    list_init(&t->all);
    list_init(&t->tenants);
    for (int i = 0; i < N_BOUNDS; i++)
        share_init(&t->bound[i], SHARE_RUNNING, limit[i].total, limit[i].unit);
    t->next_number = 1;
    return slabpool_init(&t->pool, max_sessions, sizeof(struct session));
}

void session_table_expect(struct session_table *t, uint32_t n_tokens) {
    for (int i = 0; i < N_BOUNDS; i++)
        share_expect_tenants(&t->bound[i], n_tokens);
}

void session_table_fini(struct session_table *t) {
    CHECK(list_empty(&t->all) && list_empty(&t->tenants));
    slabpool_fini(&t->pool);
}

int session_refuse(const struct session *s, enum bound bound, const char *method,
                   struct errbuf *eb) {
    static const char *const names[N_BOUNDS] = {[BOUND_STREAMS] = "fetch streams",
                                                [BOUND_WAITING] = "bytes of waiting fetches",
                                                [BOUND_READS] = "reads",
                                                [BOUND_SENDS] = "bytes under way",
                                                [BOUND_PUTS] = "open puts",
                                                [BOUND_COMMITS] = "waiting commits",
                                                [BOUND_NAMESPACES] = "namespaces brought in",
                                                [BOUND_REMOVALS] = "removals under way",
                                                [BOUND_SESSIONS] = "sessions"};
    const struct share_user *u = &s->bound[bound];
    const struct share *of = u->tenant->of;
    return err_set(eb, ERR_BUSY,
                   "%s: %s: %llu of %llu are taken, %llu of them by its tenant, %llu by this "
                   "session, whose share is %llu",
                   method, names[bound], (unsigned long long)of->used,
                   (unsigned long long)of->total, (unsigned long long)u->tenant->used,
                   (unsigned long long)u->used, (unsigned long long)share_of(u));
}

static void close_parts(struct session *s) {
    share_give(&s->bound[BOUND_SESSIONS], s->bound[BOUND_SESSIONS].used);
    for (int i = 0; i < N_BOUNDS; i++)
        share_user_fini(&s->bound[i]);
    tenant_give(s->tenant);
}

static int open_parts(struct session_table *t, struct block_store *store,
                      const struct auth_token *auth, struct session *s, struct errbuf *eb) {
    if (getrandom(s->token, sizeof(s->token), 0) != (ssize_t)sizeof(s->token))
        return ERR_INTERNAL;
    int rv = tenant_take(t, auth, &s->tenant);
    if (rv < 0)
        return rv;
    for (int i = 0; i < N_BOUNDS; i++)
        share_user_init(&s->bound[i], &s->tenant->bound[i]);
    rv = share_take(&s->bound[BOUND_SESSIONS], 1)
             ? block_store_session_open(store, s->tenant, &s->store)
             : session_refuse(s, BOUND_SESSIONS, "Hello", eb);
    if (rv < 0)
        close_parts(s);
    return rv;
}

int session_open(struct session_table *t, struct block_store *store, struct rpc_conn *conn,
                 const struct auth_token *auth, struct session **ret, struct errbuf *eb) {
    struct session *s = slabpool_take(&t->pool);
    if (!s)
        return err_set(eb, ERR_BUSY, "Hello: all %llu sessions are taken",
                       (unsigned long long)t->bound[BOUND_SESSIONS].total);
    int rv = open_parts(t, store, auth, s, eb);
    if (rv < 0) {
        slabpool_give(&t->pool, s);
        return rv;
    }
    s->number = t->next_number++;
    s->auth = s->tenant->has_auth ? &s->tenant->auth : NULL;
    list_init(&s->streams);
    list_init(&s->waiting);
    list_init(&s->turn);
    list_init(&s->sends);
    list_init(&s->puts);
    list_init(&s->removals);
    for (uint32_t i = 0; i < SESSION_MAX_DATA; i++)
        s->data[i] = (struct session_conn){.session = s, .number = i + 1};
    s->control = (struct session_conn){.session = s, .conn = rpc_conn_ref(conn)};
    rpc_conn_set_user(conn, &s->control);
    list_push_back(&t->all, &s->link);
    *ret = s;
    return 0;
}

void session_free(struct session_table *t, struct session *s) {
    CHECK(list_empty(&s->streams) && list_empty(&s->waiting) && list_empty(&s->sends) &&
          list_empty(&s->puts) && list_empty(&s->removals));
    for (uint32_t i = 0; i < SESSION_MAX_DATA; i++)
        CHECK(!s->data[i].conn);
    block_store_session_close(s->store); /* before its tenant: the address is its name there */
    close_parts(s);
    list_remove(&s->link);
    explicit_bzero(s->token, sizeof(s->token));
    slabpool_give(&t->pool, s);
}

/* Neither C0 nor C1 controls, nor what turns the direction of a terminal's line. */
static bool is_printable(const char *p, size_t n) {
    const unsigned char *u = (const unsigned char *)p;
    if (n == 1)
        return u[0] >= 0x20 && u[0] != 0x7f;
    if (n == 2)
        return u[0] != 0xc2 || u[1] >= 0xa0;
    bool is_general = n == 3 && u[0] == 0xe2 && (u[1] == 0x80 || u[1] == 0x81);
    return !(is_general && ((u[1] == 0x80 && (u[2] >= 0xa8 || (u[2] >= 0x8b && u[2] <= 0x8f))) ||
                            (u[1] == 0x81 && u[2] >= 0xa0)));
}

void session_set_name(struct session *s, const char *name) {
    struct str rest = str_of(name);
    size_t at = 0;
    while (rest.n > 0) {
        size_t n = str_utf8_len(rest), take = MAX(n, (size_t)1);
        bool is_good = n > 0 && is_printable(rest.p, n);
        if (at + (is_good ? n : 1) >= sizeof(s->name))
            break;
        if (is_good)
            memcpy(s->name + at, rest.p, n);
        else
            s->name[at] = '?';
        at += is_good ? n : 1;
        rest = str_cut(rest, take, rest.n);
    }
    s->name[at] = '\0';
}

struct session *session_find(struct session_table *t,
                             const uint8_t token[WIRE_SESSION_TOKEN_BYTES]) {
    struct session *found = NULL;
    LIST_FOREACH(&t->all, it) {
        struct session *s = LIST_ENTRY(it, struct session, link);
        if (CRYPTO_memcmp(s->token, token, WIRE_SESSION_TOKEN_BYTES) == 0)
            found = s;
    }
    return found;
}

int session_join(struct session *s, struct rpc_conn *conn, uint32_t max_data,
                 struct session_conn **ret) {
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

bool session_note_ns(struct session *s, uint32_t ns) {
    CHECK(ns < SESSION_MAX_NS);
    if (session_may_use_ns(s, ns + 1))
        return false;
    s->ns_registered[ns / 64] |= 1ull << (ns % 64);
    return true;
}
