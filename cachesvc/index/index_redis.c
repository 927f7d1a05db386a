/* The Redis index: written behind, never waited for. Keys and values, bytes exactly as here:
 *
 *   "s:" + 16 bytes         hash of a segment (index_seg_of()): field = node's number, u16 LE; value =
 *                           that node's epoch, u32 LE. No command reads it first. Expires after
 *                           entry_ttl_s, renewed by a full pass three times in that span
 *   incipit:epoch:<n>       the last epoch of node n, decimal, for ever
 *   incipit:node:<n>        hash of texts: addr; epoch, time (Unix ms of this writing), weight (MiB),
 *                           capacity (bytes), load (thousandths of it in use), state (enum
 *                           msg_node_state) in decimal; store (16 bytes), mac in lower-case hex, mac
 *                           empty without a pool key. Expires after node_ttl_s, renewed three times
 *                           in that span. Entries with another epoch than this are dead
 *   incipit:pool            the pool's id, 32 hex digits, by the first node, for ever
 *
 * What becomes visible or goes is appended to a ring (backlog) and sent from the loop in pipelined
 * batches. A full pass over the store (scan) follows every join, a full ring and every error, so
 * whatever was lost on the way comes again. Withdrawals that are lost leave a wrong hint until it
 * expires; readers check hints anyway.
 *
 *   DOWN --connected--> JOIN --epoch--> RENEW --record accepted--> SERVE: ring first, then the pass
 *    ^ ^                 ^   |            |                        |  |
 *    |  `---- lost ------|---+------------+------------------------'  |
 *    `-- refused --------|-- (an error that another server or login may not give: reconnect) -'
 *                 HELD <-'-- any other error, or our number taken; a renewal later JOIN
 *
 * In SERVE each renewal first reads what the last one wrote: a record that is gone or another, or
 * another epoch, tells of a Redis that was flushed or loaded with an old dump behind a connection that
 * never broke, and everything is published again. */
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <sys/random.h>
#include <uv.h>

#include "cachesvc/index/index.h"
#include "cachesvc/index/redis_conn.h"
#include "common/check.h"
#include "common/log.h"
#include "common/sm.h"
#include "common/str.h"

#define TICK_MS 20u
#define MAX_OUTSTANDING 2048u /* commands in the pipeline: 2 ms of a Redis, 100 KB of requests */
#define SCAN_SEGS 64u
#define SCANS_PER_TICK 8u
#define CLOSE_LINGER_MS 300u
#define MAX_ARGS 20
#define MAX_SAID 8u /* reasons told apart in one time without Redis */

enum { IX_DOWN, IX_JOIN, IX_RENEW, IX_SERVE, IX_HELD, IX_CLOSING, IX_NR };
static const struct sm_state ix_states[IX_NR] = {
    [IX_DOWN] = {"down", SM_INITIAL, BIT(IX_DOWN) | BIT(IX_JOIN) | BIT(IX_CLOSING)},
    [IX_JOIN] = {"join", 0, BIT(IX_RENEW) | BIT(IX_HELD) | BIT(IX_DOWN) | BIT(IX_CLOSING)},
    [IX_RENEW] = {"renew", 0, BIT(IX_SERVE) | BIT(IX_HELD) | BIT(IX_DOWN) | BIT(IX_CLOSING)},
    [IX_SERVE] = {"serve", 0, BIT(IX_JOIN) | BIT(IX_HELD) | BIT(IX_DOWN) | BIT(IX_CLOSING)},
    [IX_HELD] = {"held", 0, BIT(IX_JOIN) | BIT(IX_DOWN) | BIT(IX_CLOSING)},
    [IX_CLOSING] = {"closing", SM_FINAL, 0},
};

enum op { OP_PUBLISH = 1, OP_WITHDRAW };
enum tag { /* of a command; above them the round (x->round) in which it was sent */
           TAG_OTHER,
           TAG_PUBLISH,
           TAG_WITHDRAW,
           TAG_EPOCH,
           TAG_EPOCH_CHECK,
           TAG_RECORD,
           TAG_RECORD_CHECK,
           TAG_BITS = 8
};

struct entry {
    struct index_seg seg;
    uint8_t op;
};

struct index_redis {
    struct index base;
    struct index_redis_cfg cfg;
    const struct clock *clk;
    char *node_addr;
    struct redis_conn *conn;
    uv_timer_t tick;
    struct sm sm;
    uint64_t round;     /* one a join: answers to what an earlier one asked change no state */
    struct entry *ring; /* [cfg.max_backlog] */
    uint32_t head, n;
    uint32_t epoch;
    bool epoch_final; /* the first answer has come: it does not rise again */
    uint32_t passes;  /* full passes still due: 1 under way or wanted, 2 another after it */
    uint64_t scan_cursor;
    uint64_t held_until_ns, next_pass_ns, next_record_ns;
    uint64_t record_time_ms, checked_time_ms; /* "time" last written; what the check must find */
    char pool[33];
    uint32_t said[MAX_SAID], n_said; /* reasons already logged since it was last well */
    struct index_stats stats;
    uint32_t closing; /* parts still open */
    void (*close_cb)(void *arg);
    void *close_arg;
};

static struct index_redis *self(const struct index *ix) {
    return CONTAINER_OF((struct index *)(uintptr_t)ix, struct index_redis, base);
}

/* ---- commands ---- */

static void on_reply(void *arg, uint64_t tag, const struct redisReply *r);

static int cmd(struct index_redis *x, enum tag tag, int argc, const struct str *args) {
    const char *argv[MAX_ARGS];
    size_t len[MAX_ARGS];
    CHECK(argc <= MAX_ARGS);
    for (int i = 0; i < argc; i++) {
        argv[i] = args[i].p;
        len[i] = args[i].n;
    }
    return redis_conn_cmd(x->conn, argc, argv, len, on_reply, x, x->round << TAG_BITS | tag);
}
#define CMD(x, tag, ...)                                                                           \
    cmd((x), (tag), (int)ARRAY_LEN(((struct str[]){__VA_ARGS__})), (struct str[]){__VA_ARGS__})

struct text { /* of a key or a number */
    char p[48];
};
#define TEXT(...) text_of(&(struct text){{0}}, __VA_ARGS__)
static struct str text_of(struct text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
static struct str text_of(struct text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->p, sizeof(t->p), fmt, ap);
    va_end(ap);
    CHECK(n >= 0 && (size_t)n < sizeof(t->p));
    return (struct str){t->p, (size_t)n};
}

struct seg_text {
    char key[2 + INDEX_SEG_BYTES], field[2], value[4];
};

static void seg_text_of(const struct index_redis *x, const struct index_seg *seg,
                        struct seg_text *ret) {
    memcpy(ret->key, "s:", 2);
    memcpy(ret->key + 2, seg->b, INDEX_SEG_BYTES);
    for (unsigned i = 0; i < 2; i++)
        ret->field[i] = (char)(x->cfg.node_id >> (8 * i) & 0xff);
    for (unsigned i = 0; i < 4; i++)
        ret->value[i] = (char)(x->epoch >> (8 * i) & 0xff);
}

static int send_publish(struct index_redis *x, const struct index_seg *seg) {
    struct seg_text t;
    seg_text_of(x, seg, &t);
    struct str key = {t.key, sizeof(t.key)};
    int rv = CMD(x, TAG_PUBLISH, STR("HSET"), key, {t.field, sizeof(t.field)},
                 {t.value, sizeof(t.value)});
    return rv < 0 ? rv : CMD(x, TAG_OTHER, STR("EXPIRE"), key, TEXT("%u", x->cfg.entry_ttl_s));
}

static int send_withdraw(struct index_redis *x, const struct index_seg *seg) {
    struct seg_text t;
    seg_text_of(x, seg, &t);
    return CMD(x, TAG_WITHDRAW, STR("HDEL"), {t.key, sizeof(t.key)}, {t.field, sizeof(t.field)});
}

/* ---- states ---- */

static uint64_t record_period_ns(const struct index_redis *x) {
    return x->cfg.node_ttl_s * NS_PER_S / 3;
}

static void want_pass(struct index_redis *x) {
    x->passes = x->passes ? 2 : 1;
}

/* Once a reason for each time without Redis: a server that refuses is met again at every attempt. */
static bool is_news(struct index_redis *x, const char *why) {
    uint32_t h = 2166136261u;
    for (const char *c = why; *c && *c != ' ' && *c != ':'; c++)
        h = (h ^ (uint8_t)*c) * 16777619u;
    for (uint32_t i = 0; i < x->n_said; i++)
        if (x->said[i] == h)
            return false;
    if (x->n_said == MAX_SAID)
        return false;
    x->said[x->n_said++] = h;
    return true;
}

/* Whatever way out of SERVE: the gauge says what happened to the last write. */
static void leave(struct index_redis *x, uint32_t next, const char *why) {
    x->stats.state = INDEX_REDIS_DOWN;
    x->round++;
    if (is_news(x, why))
        log_warn(x->cfg.log, "Redis takes nothing, its entries wait", "addr=%s why=%s", x->cfg.addr,
                 why);
    sm_move(&x->sm, next);
}

static void hold(struct index_redis *x, const char *why) {
    x->held_until_ns = clock_mono_ns(x->clk) + record_period_ns(x);
    leave(x, IX_HELD, why);
}

static void join(struct index_redis *x) {
    sm_move(&x->sm, IX_JOIN);
    x->round++;
    x->passes = 1;
    x->scan_cursor = 0;
    int rv = CMD(x, TAG_OTHER, STR("SET"), STR("incipit:pool"), str_of(x->pool), STR("NX"));
    if (rv == 0)
        rv = CMD(x, TAG_EPOCH, STR("GET"), TEXT("incipit:epoch:%u", x->cfg.node_id));
    if (rv < 0)
        hold(x, err_text(rv));
}

static int write_record(struct index_redis *x) {
    struct index_node node = {0};
    char store[2 * INDEX_STORE_ID_BYTES + 1];
    if (x->cfg.node)
        x->cfg.node(x->cfg.arg, &node);
    /* Never the same twice: it tells this writing from an older one. */
    x->record_time_ms = MAX(clock_wall_ns(x->clk) / NS_PER_MS, x->record_time_ms + 1);
    x->next_record_ns = clock_mono_ns(x->clk) + record_period_ns(x);
    digest_hex(x->cfg.store_id, INDEX_STORE_ID_BYTES, store);
    uint64_t load =
        node.capacity_bytes ? node.used_bytes / ((node.capacity_bytes + 999) / 1000) : 0;
    struct str key = TEXT("incipit:node:%u", x->cfg.node_id);
    int rv = CMD(x, TAG_RECORD, STR("HSET"), key, STR("addr"), str_of(x->node_addr), STR("epoch"),
                 TEXT("%u", x->epoch), STR("store"), str_of(store), STR("time"),
                 TEXT("%" PRIu64, x->record_time_ms), STR("weight"), TEXT("%u", x->cfg.weight),
                 STR("capacity"), TEXT("%" PRIu64, node.capacity_bytes), STR("load"),
                 TEXT("%" PRIu64, load), STR("state"), TEXT("%u", node.state), STR("mac"), STR(""));
    return rv < 0 ? rv : CMD(x, TAG_OTHER, STR("EXPIRE"), key, TEXT("%u", x->cfg.node_ttl_s));
}

/* What the last writing left, then the next one. */
static void renew_record(struct index_redis *x) {
    x->checked_time_ms = x->record_time_ms;
    int rv = CMD(x, TAG_RECORD_CHECK, STR("HMGET"), TEXT("incipit:node:%u", x->cfg.node_id),
                 STR("epoch"), STR("time"));
    if (rv == 0)
        rv = CMD(x, TAG_EPOCH_CHECK, STR("GET"), TEXT("incipit:epoch:%u", x->cfg.node_id));
    if (rv == 0)
        rv = write_record(x);
    if (rv < 0)
        hold(x, err_text(rv));
}

/* ---- answers ---- */

static uint64_t number_of(const struct redisReply *r) {
    uint64_t v = 0;
    if (r && r->type == REDIS_REPLY_STRING)
        (void)str_to_u64((struct str){r->str, (size_t)r->len}, &v);
    return v;
}

/* Two processes with one number would bid each other up for ever: the older one keeps still. */
static void number_is_taken(struct index_redis *x, uint64_t theirs) {
    char why[128];
    snprintf(why, sizeof(why),
             "TAKEN another node writes under number %u: epoch %u, theirs %" PRIu64, x->cfg.node_id,
             x->epoch, theirs);
    x->stats.errors++;
    hold(x, why);
}

static void on_epoch(struct index_redis *x, uint64_t stored) {
    if (!x->epoch_final && stored >= x->epoch && stored < UINT32_MAX)
        x->epoch = (uint32_t)stored + 1;
    else if (stored > x->epoch) {
        number_is_taken(x, stored);
        return;
    }
    x->epoch_final = true;
    sm_move(&x->sm, IX_RENEW);
    int rv = CMD(x, TAG_OTHER, STR("SET"), TEXT("incipit:epoch:%u", x->cfg.node_id),
                 TEXT("%u", x->epoch));
    if (rv == 0)
        rv = write_record(x);
    if (rv < 0)
        hold(x, err_text(rv));
}

static void on_check(struct index_redis *x, uint64_t epoch, bool is_ours) {
    if (epoch > x->epoch) {
        number_is_taken(x, epoch);
    } else if (!is_ours) {
        log_warn(x->cfg.log, "Redis has lost what was written, publishing all segments again");
        join(x);
    }
}

static void on_record(struct index_redis *x) {
    if (sm_at(&x->sm) != IX_RENEW)
        return;
    sm_move(&x->sm, IX_SERVE);
    x->stats.state = INDEX_REDIS_UP;
    x->n_said = 0;
    redis_conn_settled(x->conn);
    log_info(x->cfg.log, "Redis takes the index", "addr=%s epoch=%u", x->cfg.addr, x->epoch);
}

/* Errors of this server or this login: the name may lead to another server by now, the password may
 * have been changed, and a replica becomes a primary. */
static bool is_worth_a_reconnect(const char *error) {
    static const char *const codes[] = {"READONLY", "MASTERDOWN", "LOADING",     "NOPERM",
                                        "NOAUTH",   "WRONGPASS",  "CLUSTERDOWN", "MOVED"};
    for (size_t i = 0; i < ARRAY_LEN(codes); i++)
        if (strncmp(error, codes[i], strlen(codes[i])) == 0)
            return true;
    return false;
}

static void on_error(struct index_redis *x, const char *error, bool is_of_now) {
    x->stats.errors++;
    if (!is_of_now || sm_at(&x->sm) == IX_DOWN || sm_at(&x->sm) == IX_HELD)
        return;
    if (is_worth_a_reconnect(error))
        redis_conn_refuse(x->conn, error);
    else
        hold(x, error);
}

static void on_reply(void *arg, uint64_t tag, const struct redisReply *r) {
    struct index_redis *x = arg;
    bool is_of_now = tag >> TAG_BITS == x->round;
    if (!r || x->closing)
        return; /* the connection is lost: on_down() has to do with it */
    if (r->type == REDIS_REPLY_ERROR) {
        on_error(x, r->str, is_of_now);
        return;
    }
    switch ((enum tag)(tag & (BIT(TAG_BITS) - 1))) {
    case TAG_PUBLISH:
        x->stats.published++;
        break;
    case TAG_WITHDRAW:
        x->stats.withdrawn++;
        break;
    case TAG_EPOCH:
        if (is_of_now)
            on_epoch(x, number_of(r));
        break;
    case TAG_EPOCH_CHECK:
        if (is_of_now)
            on_check(x, number_of(r), number_of(r) == x->epoch);
        break;
    case TAG_RECORD_CHECK:
        if (is_of_now) {
            bool has_both = r->type == REDIS_REPLY_ARRAY && r->elements == 2;
            uint64_t epoch = has_both ? number_of(r->element[0]) : 0;
            uint64_t time = has_both ? number_of(r->element[1]) : 0;
            on_check(x, epoch, epoch == x->epoch && time == x->checked_time_ms);
        }
        break;
    case TAG_RECORD:
        if (is_of_now)
            on_record(x);
        break;
    default:
        break;
    }
}

/* ---- sending ---- */

/* The ring first, in order; false when the pipeline is full or the connection gone. */
static bool pump_ring(struct index_redis *x) {
    while (x->n) {
        const struct entry *e = &x->ring[x->head];
        if (redis_conn_outstanding(x->conn) >= MAX_OUTSTANDING)
            return false;
        int rv = e->op == OP_PUBLISH ? send_publish(x, &e->seg) : send_withdraw(x, &e->seg);
        if (rv < 0)
            return false;
        x->head = (x->head + 1) % x->cfg.max_backlog;
        x->n--;
    }
    return true;
}

/* Some steps of the full pass; what the store says is there now needs no place in the ring. */
static void pump_scan(struct index_redis *x, uint64_t now) {
    struct index_seg segs[SCAN_SEGS];
    if (now >= x->next_pass_ns && x->passes == 0)
        want_pass(x);
    for (uint32_t k = 0; k < SCANS_PER_TICK && x->passes; k++) {
        if (!x->cfg.scan || redis_conn_outstanding(x->conn) + 2 * SCAN_SEGS > MAX_OUTSTANDING)
            return;
        uint32_t n = x->cfg.scan(x->cfg.arg, &x->scan_cursor, segs, SCAN_SEGS);
        for (uint32_t i = 0; i < n; i++) {
            if (send_publish(x, &segs[i]) < 0) {
                want_pass(x); /* the cursor is past what was not sent */
                return;
            }
            x->stats.republished++;
        }
        if (x->scan_cursor == 0) {
            x->passes--;
            x->next_pass_ns = now + x->cfg.entry_ttl_s * NS_PER_S / 3;
        }
    }
}

static void on_tick(uv_timer_t *t) {
    struct index_redis *x = t->data;
    uint64_t now = clock_mono_ns(x->clk);
    if (sm_at(&x->sm) == IX_HELD && now >= x->held_until_ns)
        join(x);
    if (sm_at(&x->sm) == IX_SERVE && now >= x->next_record_ns)
        renew_record(x);
    if (sm_at(&x->sm) == IX_SERVE && pump_ring(x))
        pump_scan(x, now);
}

static void append(struct index_redis *x, const struct index_seg *seg, enum op op) {
    if (x->n == x->cfg.max_backlog) {
        x->stats.dropped++;
        if (x->passes < 2)
            want_pass(x);
        return;
    }
    x->ring[(x->head + x->n) % x->cfg.max_backlog] = (struct entry){*seg, (uint8_t)op};
    x->n++;
}

/* ---- the connection ---- */

static void on_up(void *arg) {
    struct index_redis *x = arg;
    x->stats.reconnects++;
    join(x);
}

static void on_down(void *arg, const char *why) {
    struct index_redis *x = arg;
    if (x->closing)
        return;
    x->stats.errors++;
    leave(x, IX_DOWN, why);
}

/* ---- operations ---- */

static void op_publish(struct index *ix, const struct index_seg *seg) {
    append(self(ix), seg, OP_PUBLISH);
}
static void op_withdraw(struct index *ix, const struct index_seg *seg) {
    append(self(ix), seg, OP_WITHDRAW);
}
static void op_rescan(struct index *ix) {
    want_pass(self(ix));
}
static uint32_t op_epoch(const struct index *ix) {
    return self(ix)->epoch;
}
static void op_stats(const struct index *ix, struct index_stats *ret) {
    *ret = self(ix)->stats;
    ret->backlog = self(ix)->n;
}

static void part_closed(void *arg) {
    struct index_redis *x = arg;
    if (--x->closing)
        return;
    void (*cb)(void *arg2) = x->close_cb;
    void *cb_arg = x->close_arg;
    free(x->ring);
    free(x->node_addr);
    free(x);
    cb(cb_arg);
}

static void on_tick_closed(uv_handle_t *h) {
    part_closed(h->data);
}

/* A node that stops in peace takes its record along, so that nobody asks it any more. */
static void op_close(struct index *ix, void (*cb)(void *arg), void *arg) {
    struct index_redis *x = self(ix);
    if (sm_at(&x->sm) == IX_SERVE)
        (void)CMD(x, TAG_OTHER, STR("DEL"), TEXT("incipit:node:%u", x->cfg.node_id));
    sm_move(&x->sm, IX_CLOSING);
    x->closing = 2;
    x->close_cb = cb;
    x->close_arg = arg;
    redis_conn_close(x->conn, CLOSE_LINGER_MS, part_closed, x);
    uv_close((uv_handle_t *)&x->tick, on_tick_closed);
}

int index_redis_set_password(struct index *ix, const char *password) {
    return redis_conn_set_password(self(ix)->conn, password);
}

static int init(struct index_redis *x, const struct index_redis_cfg *cfg) {
    static const struct index_ops ops = {op_publish, op_withdraw, op_rescan,
                                         op_epoch,   op_stats,    op_close};
    uint8_t pool[16];
    x->base.ops = &ops;
    x->cfg = *cfg;
    x->clk = cfg->clk ? cfg->clk : clock_real();
    x->cfg.max_backlog = cfg->max_backlog ? cfg->max_backlog : 65536;
    x->cfg.entry_ttl_s = cfg->entry_ttl_s ? cfg->entry_ttl_s : 86400;
    x->cfg.node_ttl_s = cfg->node_ttl_s ? cfg->node_ttl_s : 15;
    x->cfg.weight = MAX(cfg->weight, 1u);
    x->epoch = (uint32_t)(clock_wall_ns(x->clk) / NS_PER_S);
    x->stats.state = INDEX_REDIS_DOWN;
    sm_init(&x->sm, ix_states, IX_NR, IX_DOWN);
    if (getrandom(pool, sizeof(pool), 0) != (ssize_t)sizeof(pool))
        return ERR_INTERNAL;
    digest_hex(pool, sizeof(pool), x->pool);
    x->node_addr = str_dup(str_of(cfg->node_addr));
    x->ring = alloc_array(x->cfg.max_backlog, sizeof(*x->ring));
    return x->node_addr && x->ring ? 0 : ERR_NOMEM;
}

int index_redis_open(struct index **ret, const struct index_redis_cfg *cfg, struct errbuf *eb) {
    struct index_redis *x = calloc(1, sizeof(*x));
    if (!x)
        return err_set(eb, ERR_NOMEM, "out of memory");
    int rv = init(x, cfg);
    struct redis_conn_cfg cc = {.addr = cfg->addr,
                                .user = cfg->user,
                                .password = cfg->password,
                                .db = cfg->db,
                                .on_up = on_up,
                                .on_down = on_down,
                                .arg = x};
    if (rv == 0) {
        rv = redis_conn_open(&x->conn, cfg->loop, &cc, eb);
        if (rv == 0) {
            CHECK(uv_timer_init(cfg->loop, &x->tick) == 0); /* cannot fail */
            x->tick.data = x;
            uv_timer_start(&x->tick, on_tick, TICK_MS, TICK_MS);
            *ret = &x->base;
            return 0;
        }
    } else {
        err_set(eb, rv, "Redis index: %s", err_text(rv));
    }
    free(x->ring);
    free(x->node_addr);
    free(x);
    return rv;
}
