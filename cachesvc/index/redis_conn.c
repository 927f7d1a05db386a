#include "cachesvc/index/redis_conn.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <netdb.h>
#include <stdlib.h>
#include <uv.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/list.h"
#include "common/secret.h"
#include "common/sm.h"
#include "common/str.h"

#define TICK_MS 50u
#define MAX_ADDRS 8u /* of a name, tried in turn */

enum { RC_WAIT, RC_RESOLVE, RC_CONNECT, RC_LOGIN, RC_UP, RC_CLOSING, RC_NR };
static const struct sm_state rc_states[RC_NR] = {
    [RC_WAIT] = {"wait", SM_INITIAL, BIT(RC_RESOLVE) | BIT(RC_CONNECT) | BIT(RC_CLOSING)},
    [RC_RESOLVE] = {"resolve", 0, BIT(RC_CONNECT) | BIT(RC_WAIT) | BIT(RC_CLOSING)},
    [RC_CONNECT] = {"connect", 0, BIT(RC_LOGIN) | BIT(RC_WAIT) | BIT(RC_CLOSING)},
    [RC_LOGIN] = {"login", 0, BIT(RC_UP) | BIT(RC_WAIT) | BIT(RC_CLOSING)},
    [RC_UP] = {"up", 0, BIT(RC_WAIT) | BIT(RC_CLOSING)},
    [RC_CLOSING] = {"closing", SM_FINAL, 0},
};

/* One attempt: the poll handle outlives the hiredis context by its close callback. */
struct redis_io {
    uv_poll_t poll;
    redisContext *rc; /* NULL once cut */
    int events;
    struct redis_conn *c;
};

struct redis_conn {
    uv_loop_t *loop;
    struct redis_conn_cfg cfg;
    char *host, *path; /* path: a Unix socket, else NULL */
    int port;
    char *user, *password; /* NULL: none; the password in memory of common/secret.h */
    uv_timer_t tick;
    uv_getaddrinfo_t resolve;
    char addrs[MAX_ADDRS][NI_MAXHOST]; /* numeric, as the resolver ordered them */
    uint32_t n_addrs, next_addr;       /* those from next_addr on have not been tried this time */
    struct sm sm;
    struct redis_io *io; /* the attempt or connection of now */
    uint32_t live;       /* tick, resolve under way, poll handles: the memory goes at zero */
    struct list pending; /* struct pending, in the order of their answers */
    uint32_t backoff_ms, outstanding, login_left;
    uint64_t deadline_ns; /* of the present state; UP: of the next answer; 0: none */
    char why[128];
    void (*close_cb)(void *arg);
    void *close_arg;
};

struct pending { /* a command without an answer yet */
    struct list link;
    redis_reply_cb cb;
    void *arg;
    uint64_t tag;
};

static void on_writable(struct redis_conn *c);
static void drop(struct redis_conn *c, const char *why);

/* ---- memory ---- */

static void free_password(struct redis_conn *c) {
    if (c->password)
        secret_free(c->password, strlen(c->password) + 1);
    c->password = NULL;
}

static void conn_free(struct redis_conn *c) {
    free_password(c);
    free(c->host);
    free(c->path);
    free(c->user);
    free(c);
}

static void release(struct redis_conn *c) {
    if (--c->live)
        return;
    void (*cb)(void *arg) = c->close_cb;
    void *arg = c->close_arg;
    conn_free(c);
    if (cb)
        cb(arg);
}

static void set_deadline(struct redis_conn *c, uint32_t ms) {
    c->deadline_ns = uv_hrtime() + ms * NS_PER_MS;
}

/* ---- events ---- */

static void on_poll(uv_poll_t *p, int status, int events);

static void watch(struct redis_io *io, int events) {
    if (io->events != events && uv_poll_start(&io->poll, events, on_poll) == 0)
        io->events = events;
}

/* Takes the first command that waits off the list and tells it; false without one. */
static bool tell_next(struct redis_conn *c, const struct redisReply *reply) {
    struct list *first = list_pop_front(&c->pending);
    if (!first)
        return false;
    struct pending *p = LIST_ENTRY(first, struct pending, link);
    c->outstanding--;
    if (reply)
        set_deadline(c, c->cfg.reply_timeout_ms);
    if (p->cb)
        p->cb(p->arg, p->tag, reply);
    free(p);
    return true;
}

/* What one read brought. A callback may end the connection: io is another one's or nobody's then. */
static void on_readable(struct redis_conn *c, struct redis_io *io) {
    void *reply = NULL;
    if (redisBufferRead(io->rc) != REDIS_OK) {
        drop(c, io->rc->errstr);
        return;
    }
    while (c->io == io && redisGetReply(io->rc, &reply) == REDIS_OK && reply) {
        const struct redisReply *r = reply;
        char why[128];
        snprintf(why, sizeof(why), "%s",
                 r->type == REDIS_REPLY_ERROR ? r->str : "an answer that nobody asked for");
        if (!tell_next(c, r)) /* e.g. "max number of clients reached" */
            drop(c, why);
        freeReplyObject(reply);
        reply = NULL;
    }
    if (c->io == io && io->rc->err)
        drop(c, io->rc->errstr);
}

static void on_poll(uv_poll_t *p, int status, int events) {
    struct redis_io *io = p->data;
    struct redis_conn *c = io->c;
    if (status < 0) {
        drop(c, uv_strerror(status));
        return;
    }
    if ((events & UV_READABLE) && sm_at(&c->sm) != RC_CONNECT)
        on_readable(c, io);
    if (c->io == io && (events & UV_WRITABLE))
        on_writable(c);
}

static void on_poll_closed(uv_handle_t *h) {
    struct redis_io *io = h->data;
    struct redis_conn *c = io->c;
    free(io);
    release(c);
}

/* Ends the attempt or connection of now. io is taken off first: the commands that wait see a connection
 * that is down. */
static void cut(struct redis_conn *c) {
    struct redis_io *io = TAKE_PTR(c->io);
    if (!io)
        return;
    uv_close((uv_handle_t *)&io->poll,
             on_poll_closed); /* stops polling now, so the socket may go */
    redisFree(TAKE_PTR(io->rc));
    while (tell_next(c, NULL)) {
    }
}

static void drop(struct redis_conn *c, const char *why) {
    if (sm_at(&c->sm) == RC_CLOSING) {
        cut(c); /* what lingered is told; the tick ends it */
        return;
    }
    snprintf(c->why, sizeof(c->why), "%s", why);
    sm_move(&c->sm, RC_WAIT);
    if (c->next_addr < c->n_addrs) {
        c->deadline_ns = 0; /* the name's next address with the next tick */
    } else {
        c->backoff_ms =
            c->backoff_ms ? MIN(c->backoff_ms * 2, c->cfg.backoff_max_ms) : c->cfg.backoff_min_ms;
        /* A quarter of jitter, so that the nodes of a pool do not come back in step. */
        set_deadline(c, c->backoff_ms + (uint32_t)(uv_hrtime() >> 10) % (c->backoff_ms / 4 + 1));
    }
    cut(c);
    if (c->cfg.on_down)
        c->cfg.on_down(c->cfg.arg, c->why);
}

/* ---- commands ---- */

/* Appended to what waits to be written; the next turn of the loop writes it all. */
static int send_cmd(struct redis_conn *c, int argc, const char *const *argv, const size_t *len,
                    redis_reply_cb cb, void *arg, uint64_t tag) {
    struct pending *p = malloc(sizeof(*p));
    if (!p)
        return ERR_NOMEM;
    *p = (struct pending){.cb = cb, .arg = arg, .tag = tag};
    if (redisAppendCommandArgv(c->io->rc, argc, (const char **)(uintptr_t)argv, len) != REDIS_OK) {
        free(p);
        return ERR_NOMEM;
    }
    list_push_back(&c->pending, &p->link);
    if (c->outstanding++ == 0)
        set_deadline(c, c->cfg.reply_timeout_ms);
    watch(c->io, UV_READABLE | UV_WRITABLE);
    return 0;
}

int redis_conn_cmd(struct redis_conn *c, int argc, const char *const *argv, const size_t *len,
                   redis_reply_cb cb, void *arg, uint64_t tag) {
    if (!redis_conn_is_up(c))
        return ERR_UNAVAILABLE;
    return send_cmd(c, argc, argv, len, cb, arg, tag);
}

bool redis_conn_is_up(const struct redis_conn *c) {
    return sm_at(&c->sm) == RC_UP && c->io;
}

uint32_t redis_conn_backoff_ms(const struct redis_conn *c) {
    return c->backoff_ms;
}

uint32_t redis_conn_outstanding(const struct redis_conn *c) {
    return c->outstanding;
}

/* ---- connecting ---- */

static void up(struct redis_conn *c) {
    sm_move(&c->sm, RC_UP);
    if (c->cfg.on_up)
        c->cfg.on_up(c->cfg.arg);
}

void redis_conn_settled(struct redis_conn *c) {
    c->backoff_ms = 0;
    c->n_addrs = c->next_addr = 0; /* when it is lost, the name is asked again */
}

void redis_conn_refuse(struct redis_conn *c, const char *why) {
    char copy[128]; /* why may be the reply's, which goes with the connection */
    if (!redis_conn_is_up(c))
        return;
    snprintf(copy, sizeof(copy), "%s", why);
    drop(c, copy);
}

static void on_login(void *arg, uint64_t tag, const struct redisReply *r) {
    struct redis_conn *c = arg;
    if (sm_at(&c->sm) != RC_LOGIN || !r)
        return;
    if (r->type == REDIS_REPLY_ERROR) {
        char why[128];
        snprintf(why, sizeof(why), "%s: %.100s", tag ? "SELECT" : "AUTH", r->str);
        drop(c, why);
        return;
    }
    if (--c->login_left == 0)
        up(c);
}

static int login_cmd(struct redis_conn *c, int argc, const char *const *argv, uint64_t tag) {
    size_t len[3];
    for (int i = 0; i < argc; i++)
        len[i] = strlen(argv[i]);
    c->login_left++;
    return send_cmd(c, argc, argv, len, on_login, c, tag);
}

static void login(struct redis_conn *c) {
    char db[16];
    int rv = 0;
    sm_move(&c->sm, RC_LOGIN);
    set_deadline(c, c->cfg.connect_timeout_ms);
    c->login_left = 0;
    snprintf(db, sizeof(db), "%u", c->cfg.db);
    if (c->password && c->user)
        rv = login_cmd(c, 3, (const char *[]){"AUTH", c->user, c->password}, 0);
    else if (c->password)
        rv = login_cmd(c, 2, (const char *[]){"AUTH", c->password}, 0);
    if (rv ==
        0) /* also a round trip when there is nothing to log in to: only an answer makes it up */
        rv = login_cmd(c, 2, (const char *[]){"SELECT", db}, 1);
    if (rv < 0)
        drop(c, err_text(rv));
}

static void on_connected(struct redis_conn *c) {
    int err = 0;
    socklen_t len = sizeof(err);
    if (getsockopt(c->io->rc->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
        err = errno;
    if (err)
        drop(c, err_text(-err));
    else
        login(c);
}

static void on_writable(struct redis_conn *c) {
    int done = 0;
    if (sm_at(&c->sm) == RC_CONNECT)
        on_connected(c);
    else if (redisBufferWrite(c->io->rc, &done) != REDIS_OK)
        drop(c, c->io->rc->errstr);
    else if (done)
        watch(c->io, UV_READABLE);
}

/* Takes rc. */
static void attach(struct redis_conn *c, redisContext *rc) {
    struct redis_io *io = rc && !rc->err ? calloc(1, sizeof(*io)) : NULL;
    if (!io || uv_poll_init(c->loop, &io->poll, rc->fd) < 0) {
        char why[128];
        snprintf(why, sizeof(why), "%s", rc && rc->err ? rc->errstr : "out of memory");
        free(io);
        if (rc)
            redisFree(rc);
        drop(c, why);
        return;
    }
    io->poll.data = io;
    io->rc = rc;
    io->c = c;
    c->io = io;
    c->live++;
    watch(io, UV_WRITABLE); /* connected, or not */
}

static void connect_next(struct redis_conn *c) {
    set_deadline(c, c->cfg.connect_timeout_ms);
    sm_move(&c->sm, RC_CONNECT);
    attach(c, redisConnectNonBlock(c->addrs[c->next_addr++], c->port));
}

static void take_addresses(struct redis_conn *c, const struct addrinfo *res) {
    c->n_addrs = c->next_addr = 0;
    for (; res && c->n_addrs < MAX_ADDRS; res = res->ai_next)
        if ((res->ai_family == AF_INET || res->ai_family == AF_INET6) &&
            getnameinfo(res->ai_addr, res->ai_addrlen, c->addrs[c->n_addrs], NI_MAXHOST, NULL, 0,
                        NI_NUMERICHOST) == 0)
            c->n_addrs++;
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *res) {
    struct redis_conn *c = req->data;
    if (sm_at(&c->sm) == RC_RESOLVE) {
        take_addresses(c, status == 0 ? res : NULL);
        if (c->n_addrs)
            connect_next(c);
        else
            drop(c, status < 0 ? uv_strerror(status) : "name without address");
    }
    uv_freeaddrinfo(res);
    release(c);
}

static void begin(struct redis_conn *c) {
    if (c->next_addr < c->n_addrs) {
        connect_next(c);
        return;
    }
    set_deadline(c, c->cfg.connect_timeout_ms);
    if (c->path) {
        sm_move(&c->sm, RC_CONNECT);
        attach(c, redisConnectUnixNonBlock(c->path));
        return;
    }
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    sm_move(&c->sm, RC_RESOLVE);
    c->resolve.data = c;
    int rv = uv_getaddrinfo(c->loop, &c->resolve, on_resolved, c->host, NULL, &hints);
    if (rv < 0)
        drop(c, uv_strerror(rv));
    else
        c->live++;
}

static void on_tick_closed(uv_handle_t *h) {
    release(h->data);
}

static void finish_close(struct redis_conn *c) {
    cut(c);
    uv_cancel((uv_req_t *)&c->resolve);
    uv_close((uv_handle_t *)&c->tick, on_tick_closed);
}

static void on_tick(uv_timer_t *t) {
    struct redis_conn *c = t->data;
    uint64_t now = uv_hrtime();
    switch (sm_at(&c->sm)) {
    case RC_WAIT:
        if (now >= c->deadline_ns)
            begin(c);
        break;
    case RC_UP:
        if (c->outstanding && now >= c->deadline_ns)
            drop(c, "no answer in time");
        break;
    case RC_CLOSING:
        if (!c->outstanding || !c->io || now >= c->deadline_ns)
            finish_close(c);
        break;
    case RC_RESOLVE: /* cannot be broken off safely; its callback goes on */
        break;
    default:
        if (now >= c->deadline_ns)
            drop(c, "connect timed out");
        break;
    }
}

/* ---- open and close ---- */

static char *dup_or_null(const char *z, bool *oom) {
    if (!z || !*z)
        return NULL;
    char *copy = strdup(z);
    *oom |= !copy;
    return copy;
}

/* "unix:PATH", "HOST:PORT", "[v6]:PORT" */
static int set_addr(struct redis_conn *c, const char *addr, struct errbuf *eb) {
    struct str s = str_of(addr);
    bool oom = false;
    if (str_starts(s, STR("unix:")) || str_starts(s, STR("/"))) {
        c->path = dup_or_null(addr[0] == '/' ? addr : addr + 5, &oom);
        return c->path ? 0 : err_set(eb, ERR_INVALID, "Redis address '%s' has no path", addr);
    }
    const char *colon = strrchr(addr, ':');
    uint64_t port = 0;
    if (!colon || colon == addr || str_to_u64(str_of(colon + 1), &port) < 0 || port == 0 ||
        port > 65535)
        return err_set(eb, ERR_INVALID, "Redis address '%s' is not HOST:PORT or unix:PATH", addr);
    struct str host = {addr, (size_t)(colon - addr)};
    if (host.n > 2 && host.p[0] == '[' && host.p[host.n - 1] == ']')
        host = str_cut(host, 1, host.n - 2);
    c->host = str_dup(host);
    c->port = (int)port;
    return c->host ? 0 : err_set(eb, ERR_NOMEM, "out of memory");
}

int redis_conn_set_password(struct redis_conn *c, const char *password) {
    char *copy = NULL;
    if (password && *password && !(copy = secret_dup(password, strlen(password))))
        return ERR_NOMEM;
    free_password(c);
    c->password = copy;
    return 0;
}

int redis_conn_open(struct redis_conn **ret, uv_loop_t *loop, const struct redis_conn_cfg *cfg,
                    struct errbuf *eb) {
    struct redis_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return err_set(eb, ERR_NOMEM, "out of memory");
    bool oom = false;
    c->loop = loop;
    c->cfg = *cfg;
    c->cfg.connect_timeout_ms = cfg->connect_timeout_ms ? cfg->connect_timeout_ms : 2000;
    c->cfg.reply_timeout_ms = cfg->reply_timeout_ms ? cfg->reply_timeout_ms : 5000;
    c->cfg.backoff_min_ms = cfg->backoff_min_ms ? cfg->backoff_min_ms : 100;
    c->cfg.backoff_max_ms = cfg->backoff_max_ms ? cfg->backoff_max_ms : 5000;
    c->user = dup_or_null(cfg->user, &oom);
    oom |= redis_conn_set_password(c, cfg->password) < 0;
    int rv = oom ? err_set(eb, ERR_NOMEM, "out of memory") : set_addr(c, cfg->addr, eb);
    if (rv == 0 && c->user && !c->password)
        rv = err_set(eb, ERR_INVALID, "a Redis user without a password");
    if (rv == 0)
        rv = uv_timer_init(loop, &c->tick);
    if (rv < 0) {
        conn_free(c);
        return rv;
    }
    c->tick.data = c;
    list_init(&c->pending);
    c->live = 1;
    sm_init(&c->sm, rc_states, RC_NR, RC_WAIT); /* deadline 0: the first tick connects */
    uv_timer_start(&c->tick, on_tick, 0, TICK_MS);
    *ret = c;
    return 0;
}

void redis_conn_close(struct redis_conn *c, uint32_t linger_ms, void (*cb)(void *arg), void *arg) {
    bool was_up = redis_conn_is_up(c);
    sm_move(&c->sm, RC_CLOSING);
    c->close_cb = cb;
    c->close_arg = arg;
    set_deadline(c, linger_ms);
    if (!was_up || !c->outstanding)
        finish_close(c);
}
