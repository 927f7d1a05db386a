/* The Redis index: written behind, never waited for.
 *
 *   b:<32 id bytes>       hash: field = node id, u16 LE; value = that node's epoch, u32 LE. Expires
 *                         after entry_ttl_s, renewed by a full pass three times in that span.
 *   incipit:epoch:<n>     the last epoch of node n, decimal, for ever
 *   incipit:node:<n>      JSON {"addr","epoch","capacity_bytes","used_bytes"}; expires after
 *                         node_ttl_s, renewed three times in that span. An entry with another
 *                         epoch than this is dead.
 *
 * What becomes visible or goes is appended to a ring (backlog) and sent from the loop in pipelined
 * batches. A full pass over the store (scan) follows every connect, a lost node record (Redis was
 * flushed), a full ring and every error answer, so whatever was lost on the way comes again.
 * Withdrawals that are lost leave a wrong hint until it expires; readers check hints anyway.
 *
 *   connect --> GET epoch --> SET epoch, node record --> serve: ring first, then the pass   */
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <uv.h>

#include "cachesvc/index/index.h"
#include "cachesvc/index/redis_conn.h"
#include "common/check.h"
#include "common/json.h"
#include "common/log.h"
#include "common/str.h"

#define TICK_MS 20u
#define MAX_OUTSTANDING 2048u /* commands in the pipeline */
#define SCAN_IDS 64u
#define SCANS_PER_TICK 8u
#define RETRY_NS (5 * NS_PER_S) /* after an error answer (loading, read-only, out of memory) */
#define CLOSE_LINGER_MS 300u

enum op { OP_PUBLISH = 1, OP_WITHDRAW, OP_SCAN };
enum tag {
    TAG_PUBLISH,
    TAG_WITHDRAW,
    TAG_EXPIRE,
    TAG_EPOCH_GET,
    TAG_EPOCH_SET,
    TAG_NODE_GET,
    TAG_NODE_SET,
    TAG_DEL
};

struct entry {
    struct block_id id;
    uint8_t op;
};

struct index_redis {
    struct index base;
    struct index_redis_cfg cfg;
    const struct clock *clk;
    char *node_addr;
    struct redis_conn *conn;
    uv_timer_t tick;
    struct entry *ring; /* [cfg.max_backlog] */
    uint32_t head, n;
    uint32_t epoch;
    bool epoch_asked, epoch_known; /* of this connection; entries are sent only then */
    bool epoch_final;              /* the first answer has come: it does not rise again */
    bool node_known;               /* the record was written on this connection */
    bool scanning, scan_again;
    uint64_t scan_cursor, scan_not_before_ns, next_scan_ns, next_node_ns;
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
    const char *argv[6];
    size_t len[6];
    CHECK(argc <= 6);
    for (int i = 0; i < argc; i++) {
        argv[i] = args[i].p;
        len[i] = args[i].n;
    }
    return redis_conn_cmd(x->conn, argc, argv, len, on_reply, x, tag);
}

static struct str key_of(const struct block_id *id, char key[2 + BLOCK_ID_BYTES]) {
    memcpy(key, "b:", 2);
    memcpy(key + 2, id->b, BLOCK_ID_BYTES);
    return (struct str){key, 2 + BLOCK_ID_BYTES};
}

static struct str node_field(const struct index_redis *x, char field[2]) {
    field[0] = (char)(x->cfg.node_id & 0xff);
    field[1] = (char)(x->cfg.node_id >> 8);
    return (struct str){field, 2};
}

static int send_publish(struct index_redis *x, const struct block_id *id) {
    char key[2 + BLOCK_ID_BYTES], field[2], value[4], ttl[16];
    for (unsigned i = 0; i < 4; i++)
        value[i] = (char)(x->epoch >> (8 * i) & 0xff);
    int n = snprintf(ttl, sizeof(ttl), "%u", x->cfg.entry_ttl_s);
    struct str k = key_of(id, key);
    int rv =
        cmd(x, TAG_PUBLISH, 4, (struct str[]){STR("HSET"), k, node_field(x, field), {value, 4}});
    if (rv == 0)
        rv = cmd(x, TAG_EXPIRE, 3, (struct str[]){STR("EXPIRE"), k, {ttl, (size_t)n}});
    return rv;
}

static int send_withdraw(struct index_redis *x, const struct block_id *id) {
    char key[2 + BLOCK_ID_BYTES], field[2];
    return cmd(x, TAG_WITHDRAW, 3,
               (struct str[]){STR("HDEL"), key_of(id, key), node_field(x, field)});
}

static struct str named_key(const struct index_redis *x, const char *what, char *buf, size_t cap) {
    int n = snprintf(buf, cap, "incipit:%s:%u", what, x->cfg.node_id);
    return (struct str){buf, (size_t)n};
}

static void ask_epoch(struct index_redis *x) {
    char key[40];
    x->epoch_asked = cmd(x, TAG_EPOCH_GET, 2,
                         (struct str[]){STR("GET"), named_key(x, "epoch", key, sizeof(key))}) == 0;
}

static void write_node(struct index_redis *x) {
    char key[40], ttl[16];
    struct strbuf json;
    struct json_w w;
    uint64_t capacity = 0, used = 0;
    if (x->cfg.load)
        x->cfg.load(x->cfg.arg, &capacity, &used);
    strbuf_init(&json);
    json_w_init(&w, &json);
    json_w_obj(&w);
    json_w_kstr(&w, "addr", str_of(x->node_addr));
    json_w_kint(&w, "epoch", x->epoch);
    json_w_key(&w, "capacity_bytes");
    json_w_u64(&w, capacity);
    json_w_key(&w, "used_bytes");
    json_w_u64(&w, used);
    json_w_end(&w);
    int n = snprintf(ttl, sizeof(ttl), "%u", x->cfg.node_ttl_s);
    struct str k = named_key(x, "node", key, sizeof(key));
    /* Read before it is written: a record that was there and is not any more tells of a flush. */
    if (!json.oom && cmd(x, TAG_NODE_GET, 2, (struct str[]){STR("GET"), k}) == 0)
        (void)cmd(x, TAG_NODE_SET, 5,
                  (struct str[]){STR("SET"), k, strbuf_view(&json), STR("EX"), {ttl, (size_t)n}});
    strbuf_fini(&json);
    x->next_node_ns = clock_mono_ns(x->clk) + x->cfg.node_ttl_s * NS_PER_S / 3;
}

static void want_scan(struct index_redis *x) {
    if (x->scanning)
        x->scan_again = true;
    else
        x->scanning = true;
}

/* ---- answers ---- */

static void on_epoch(struct index_redis *x, const struct redisReply *r) {
    uint64_t stored = 0;
    char key[40], text[16];
    if (r->type == REDIS_REPLY_STRING)
        (void)str_to_u64((struct str){r->str, (size_t)r->len}, &stored);
    if (!x->epoch_final && stored >= x->epoch && stored < UINT32_MAX)
        x->epoch = (uint32_t)stored + 1;
    else if (stored > x->epoch)
        log_error(x->cfg.log, "another node writes under this number",
                  "node_id=%u epoch=%u theirs=%" PRIu64, x->cfg.node_id, x->epoch, stored);
    x->epoch_final = x->epoch_known = true;
    int n = snprintf(text, sizeof(text), "%u", x->epoch);
    (void)cmd(
        x, TAG_EPOCH_SET, 3,
        (struct str[]){STR("SET"), named_key(x, "epoch", key, sizeof(key)), {text, (size_t)n}});
    x->node_known = false;
    x->scan_cursor = 0;
    x->scanning = true;
    x->scan_again = false;
    write_node(x);
}

static void on_error(struct index_redis *x, const struct redisReply *r) {
    x->stats.errors++;
    log_warn(x->cfg.log, "Redis refuses a command", "err=%.200s", r->str);
    x->scan_not_before_ns = clock_mono_ns(x->clk) + RETRY_NS;
    want_scan(x);
}

static void on_reply(void *arg, uint64_t tag, const struct redisReply *r) {
    struct index_redis *x = arg;
    if (!r || x->closing)
        return; /* the connection is lost: on_down() has to do with it */
    if (r->type == REDIS_REPLY_ERROR) {
        on_error(x, r);
        if (tag == TAG_EPOCH_GET)
            x->epoch_asked = false; /* again from the tick */
        return;
    }
    switch ((enum tag)tag) {
    case TAG_PUBLISH:
        x->stats.published++;
        break;
    case TAG_WITHDRAW:
        x->stats.withdrawn++;
        break;
    case TAG_EPOCH_GET:
        on_epoch(x, r);
        break;
    case TAG_NODE_GET:
        if (r->type == REDIS_REPLY_NIL && x->node_known) {
            log_warn(x->cfg.log, "Redis has lost the node's record, publishing all blocks again");
            want_scan(x);
            x->epoch_known = x->epoch_asked = false; /* its epoch is gone, too */
        }
        break;
    case TAG_NODE_SET:
        x->node_known = true;
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
        int rv = e->op == OP_PUBLISH ? send_publish(x, &e->id) : send_withdraw(x, &e->id);
        if (rv < 0)
            return false;
        x->head = (x->head + 1) % x->cfg.max_backlog;
        x->n--;
    }
    return true;
}

/* Some steps of the full pass; what the store says is there now needs no place in the ring. */
static void pump_scan(struct index_redis *x, uint64_t now) {
    struct block_id ids[SCAN_IDS];
    if (now >= x->next_scan_ns)
        want_scan(x);
    for (uint32_t k = 0; k < SCANS_PER_TICK && x->scanning && now >= x->scan_not_before_ns; k++) {
        if (!x->cfg.scan || redis_conn_outstanding(x->conn) + 2 * SCAN_IDS > MAX_OUTSTANDING)
            return;
        uint32_t n = x->cfg.scan(x->cfg.arg, &x->scan_cursor, ids, SCAN_IDS);
        for (uint32_t i = 0; i < n; i++) {
            if (send_publish(x, &ids[i]) < 0)
                return;
            x->stats.republished++;
        }
        if (x->scan_cursor == 0) {
            x->scanning = x->scan_again;
            x->scan_again = false;
            x->next_scan_ns = now + x->cfg.entry_ttl_s * NS_PER_S / 3;
        }
    }
}

static void on_tick(uv_timer_t *t) {
    struct index_redis *x = t->data;
    uint64_t now = clock_mono_ns(x->clk);
    if (!redis_conn_is_up(x->conn))
        return;
    if (!x->epoch_known) {
        if (!x->epoch_asked)
            ask_epoch(x);
        return;
    }
    if (now >= x->next_node_ns)
        write_node(x);
    if (pump_ring(x))
        pump_scan(x, now);
}

static void append(struct index_redis *x, const struct block_id *id, enum op op) {
    if (x->n == x->cfg.max_backlog) {
        x->stats.dropped++;
        want_scan(x);
        return;
    }
    x->ring[(x->head + x->n) % x->cfg.max_backlog] = (struct entry){*id, (uint8_t)op};
    x->n++;
}

/* ---- the connection ---- */

static void on_up(void *arg) {
    struct index_redis *x = arg;
    x->stats.reconnects++;
    x->stats.state = INDEX_REDIS_UP;
    log_info(x->cfg.log, "Redis is reachable", "addr=%s", x->cfg.addr);
    x->epoch_known = x->epoch_asked = false;
}

static void on_down(void *arg, const char *why) {
    struct index_redis *x = arg;
    if (x->stats.state == INDEX_REDIS_UP || x->stats.errors == 0)
        log_warn(x->cfg.log, "Redis is not reachable", "addr=%s why=%s", x->cfg.addr, why);
    x->stats.errors++;
    x->stats.state = INDEX_REDIS_DOWN;
    x->epoch_known = x->epoch_asked = false;
}

/* ---- operations ---- */

static void op_publish(struct index *ix, const struct block_id *id) {
    append(self(ix), id, OP_PUBLISH);
}
static void op_withdraw(struct index *ix, const struct block_id *id) {
    append(self(ix), id, OP_WITHDRAW);
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
    char key[40];
    x->closing = 2;
    x->close_cb = cb;
    x->close_arg = arg;
    if (x->epoch_known)
        (void)cmd(x, TAG_DEL, 2,
                  (struct str[]){STR("DEL"), named_key(x, "node", key, sizeof(key))});
    redis_conn_close(x->conn, CLOSE_LINGER_MS, part_closed, x);
    uv_close((uv_handle_t *)&x->tick, on_tick_closed);
}

static int init(struct index_redis *x, const struct index_redis_cfg *cfg) {
    static const struct index_ops ops = {op_publish, op_withdraw, op_epoch, op_stats, op_close};
    x->base.ops = &ops;
    x->cfg = *cfg;
    x->clk = cfg->clk ? cfg->clk : clock_real();
    x->cfg.max_backlog = cfg->max_backlog ? cfg->max_backlog : 65536;
    x->cfg.entry_ttl_s = cfg->entry_ttl_s ? cfg->entry_ttl_s : 86400;
    x->cfg.node_ttl_s = cfg->node_ttl_s ? cfg->node_ttl_s : 15;
    x->epoch = (uint32_t)(clock_wall_ns(x->clk) / NS_PER_S);
    x->stats.state = INDEX_REDIS_DOWN;
    x->next_scan_ns = UINT64_MAX; /* the first pass follows the connect */
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
        err_set(eb, rv, "out of memory");
    }
    free(x->ring);
    free(x->node_addr);
    free(x);
    return rv;
}
