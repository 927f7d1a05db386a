#include "tests/support/resp_server.h"

#include <strings.h>

#include "common/check.h"

#define MAX_ARGS 24

struct resp_conn {
    struct resp_conn *next;
    struct resp_server *s;
    uv_tcp_t tcp;
    char in[65536];
    size_t n_in;
};

struct arg {
    const char *p;
    size_t n;
};

struct resp_write {
    uv_write_t req;
    char bytes[1024];
};

/* ---- answers ------------------------------------------------------------------------------- */

static void on_written(uv_write_t *req, int status) {
    (void)status;
    free(CONTAINER_OF(req, struct resp_write, req));
}

static void send_piece(struct resp_conn *c, const char *p, size_t n) {
    struct resp_write *w = calloc(1, sizeof(*w));
    CHECK(w && n <= sizeof(w->bytes));
    memcpy(w->bytes, p, n);
    uv_buf_t b = uv_buf_init(w->bytes, (unsigned)n);
    if (uv_write(&w->req, (uv_stream_t *)&c->tcp, &b, 1, on_written) < 0)
        free(w);
}

static void answer(struct resp_conn *c, const char *p, size_t n) {
    if (c->s->is_doubling)
        send_piece(c, p, n);
    if (!c->s->drip) {
        send_piece(c, p, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        send_piece(c, p + i, 1);
}

static void answer_z(struct resp_conn *c, const char *z) {
    answer(c, z, strlen(z));
}

static void answer_bulk(struct resp_conn *c, const struct resp_key *k) {
    char out[600];
    int n = snprintf(out, sizeof(out), "$%u\r\n", k->value_len);
    memcpy(out + n, k->value, k->value_len);
    memcpy(out + n + k->value_len, "\r\n", 2);
    answer(c, out, (size_t)n + k->value_len + 2);
}

/* ---- keys ---------------------------------------------------------------------------------- */

const struct resp_key *resp_server_find(const struct resp_server *s, const void *key, size_t n) {
    for (uint32_t i = 0; i < s->n_keys; i++)
        if (s->keys[i].key_len == n && memcmp(s->keys[i].key, key, n) == 0)
            return &s->keys[i];
    return NULL;
}

static struct resp_key *find(struct resp_server *s, struct arg key) {
    return (struct resp_key *)(uintptr_t)resp_server_find(s, key.p, key.n);
}

static void set(struct resp_server *s, struct arg key, struct arg value) {
    struct resp_key *k = find(s, key);
    if (!k) {
        CHECK(s->n_keys < RESP_MAX_KEYS && key.n <= sizeof(k->key) && value.n <= sizeof(k->value));
        k = &s->keys[s->n_keys++];
        *k = (struct resp_key){.key_len = (uint32_t)key.n};
        memcpy(k->key, key.p, key.n);
    }
    k->value_len = (uint32_t)value.n;
    memcpy(k->value, value.p, value.n);
}

static bool del(struct resp_server *s, struct arg key) {
    struct resp_key *k = find(s, key);
    if (!k)
        return false;
    *k = s->keys[--s->n_keys];
    return true;
}

void resp_server_flush(struct resp_server *s) {
    s->n_keys = 0;
}

/* ---- commands ------------------------------------------------------------------------------ */

static bool is(struct arg a, const char *name) {
    return a.n == strlen(name) && strncasecmp(a.p, name, a.n) == 0;
}

/* Of a hash with several fields. */
static struct arg hash_field(const struct resp_key *k, struct arg field) {
    const char *at = k ? k->value : NULL, *end = k ? k->value + k->value_len : NULL;
    while (at < end) {
        const char *eq = memchr(at, '=', (size_t)(end - at)),
                   *nl = memchr(at, '\n', (size_t)(end - at));
        if (!eq || !nl)
            break;
        if ((size_t)(eq - at) == field.n && memcmp(at, field.p, field.n) == 0)
            return (struct arg){eq + 1, (size_t)(nl - eq - 1)};
        at = nl + 1;
    }
    return (struct arg){NULL, 0};
}

static void answer_hmget(struct resp_conn *c, const struct resp_key *k, const struct arg *a,
                         int n) {
    char out[256];
    size_t at = (size_t)snprintf(out, sizeof(out), "*%d\r\n", n);
    for (int i = 0; i < n; i++) {
        struct arg v = hash_field(k, a[i]);
        at += (size_t)(v.p ? snprintf(out + at, sizeof(out) - at, "$%zu\r\n%.*s\r\n", v.n, (int)v.n,
                                      v.p)
                           : snprintf(out + at, sizeof(out) - at, "$-1\r\n"));
    }
    answer(c, out, at);
}

static void hset(struct resp_server *s, const struct arg *a, int n) {
    char text[512];
    size_t at = 0;
    s->n_hset++;
    if (n == 4) {
        set(s, a[1], a[3]);
        return;
    }
    for (int i = 2; i + 1 < n; i += 2)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%.*s=%.*s\n", (int)a[i].n, a[i].p,
                               (int)a[i + 1].n, a[i + 1].p);
    set(s, a[1], (struct arg){text, at});
}

static bool is_write(struct arg a) {
    static const char *const names[] = {"SET", "HSET", "HDEL", "DEL", "EXPIRE"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (is(a, names[i]))
            return true;
    return false;
}

static void run_key_command(struct resp_conn *c, const struct arg *a, int n) {
    struct resp_server *s = c->s;
    struct resp_key *k = find(s, a[1]);
    if (is(a[0], "GET")) {
        if (k)
            answer_bulk(c, k);
        else
            answer_z(c, "$-1\r\n");
    } else if (is(a[0], "SET") && n == 4 && is(a[3], "NX") && k) {
        answer_z(c, "$-1\r\n");
    } else if (is(a[0], "SET") && n >= 3) {
        set(s, a[1], a[2]);
        answer_z(c, "+OK\r\n");
    } else if (is(a[0], "HSET") && n >= 4) {
        hset(s, a, n);
        answer_z(c, ":1\r\n");
    } else if (is(a[0], "HMGET") && n >= 3) {
        answer_hmget(c, k, a + 2, n - 2);
    } else if (is(a[0], "EXPIRE") && n == 3) {
        if (k)
            k->ttl_s = (uint32_t)strtoul(a[2].p, NULL, 10);
        answer_z(c, k ? ":1\r\n" : ":0\r\n");
    } else if (is(a[0], "DEL") || is(a[0], "HDEL")) {
        answer_z(c, del(s, a[1]) ? ":1\r\n" : ":0\r\n");
    } else {
        answer_z(c, "-ERR unknown command\r\n");
    }
}

static void on_closed(uv_handle_t *h) {
    free(CONTAINER_OF(h, struct resp_conn, tcp));
}

static void drop_conn(struct resp_conn *c) {
    struct resp_conn **link = &c->s->conns;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    uv_close((uv_handle_t *)&c->tcp, on_closed);
}

/* false: the connection is gone */
static bool run(struct resp_conn *c, const struct arg *a, int n) {
    struct resp_server *s = c->s;
    s->n_commands++;
    snprintf(s->last, sizeof(s->last), "%.*s", (int)a[0].n, a[0].p);
    if (s->close_after && --s->close_after == 0) {
        drop_conn(c);
        return false;
    }
    if (s->is_mute)
        return true;
    if (s->is_garbage)
        answer_z(c, "HTTP/1.1 400 Bad Request\r\n\r\n");
    else if (is(a[0], "AUTH"))
        answer_z(c, !s->password || is(a[n - 1], s->password) ? "+OK\r\n"
                                                              : "-WRONGPASS invalid password\r\n");
    else if (is(a[0], "SELECT"))
        answer_z(c, "+OK\r\n");
    else if (s->error || (s->write_error && is_write(a[0]))) {
        char out[256];
        answer(c, out,
               (size_t)snprintf(out, sizeof(out), "-%s\r\n", s->error ? s->error : s->write_error));
    } else if (n >= 2)
        run_key_command(c, a, n);
    else
        answer_z(c, "-ERR wrong number of arguments\r\n");
    return true;
}

/* ---- reading ------------------------------------------------------------------------------- */

/* A number after the sign at *at, its line's end skipped; -1: not all there. */
static long number(const struct resp_conn *c, size_t *at, char sign) {
    const char *end = memchr(c->in + *at, '\n', c->n_in - *at);
    if (!end)
        return -1;
    CHECK(c->in[*at] == sign);
    long v = strtol(c->in + *at + 1, NULL, 10);
    *at = (size_t)(end - c->in) + 1;
    return v;
}

/* Bytes of one whole command, 0 without. */
static size_t parse(const struct resp_conn *c, struct arg *a, int *ret_n) {
    size_t at = 0;
    if (c->n_in == 0)
        return 0;
    long n = number(c, &at, '*');
    CHECK(n <= MAX_ARGS);
    for (long i = 0; i < n; i++) {
        if (at >= c->n_in)
            return 0;
        long len = number(c, &at, '$');
        if (len < 0 || at + (size_t)len + 2 > c->n_in)
            return 0;
        a[i] = (struct arg){c->in + at, (size_t)len};
        at += (size_t)len + 2;
    }
    *ret_n = (int)n;
    return n > 0 ? at : 0;
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b) {
    (void)suggested;
    struct resp_conn *c = CONTAINER_OF(h, struct resp_conn, tcp);
    *b = uv_buf_init(c->in + c->n_in, (unsigned)(sizeof(c->in) - c->n_in));
}

static void on_read(uv_stream_t *st, ssize_t n, const uv_buf_t *b) {
    struct resp_conn *c = CONTAINER_OF(st, struct resp_conn, tcp);
    (void)b;
    if (n < 0) {
        drop_conn(c);
        return;
    }
    c->n_in += (size_t)n;
    struct arg a[MAX_ARGS];
    int n_arg = 0;
    for (size_t used; (used = parse(c, a, &n_arg)) > 0;) {
        if (!is(a[0], "AUTH") && !is(a[0], "SELECT") && c->s->n_raw + used <= sizeof(c->s->raw)) {
            memcpy(c->s->raw + c->s->n_raw, c->in, used);
            c->s->n_raw += used;
        }
        if (!run(c, a, n_arg))
            return;
        memmove(c->in, c->in + used, c->n_in - used);
        c->n_in -= used;
    }
}

static void on_connection(uv_stream_t *l, int status) {
    struct resp_server *s = CONTAINER_OF(l, struct resp_server, listener);
    struct resp_conn *c = calloc(1, sizeof(*c));
    CHECK(c && status == 0);
    c->s = s;
    CHECK(uv_tcp_init(l->loop, &c->tcp) == 0);
    CHECK(uv_accept(l, (uv_stream_t *)&c->tcp) == 0);
    c->next = s->conns;
    s->conns = c;
    s->n_accepted++;
    CHECK(uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) == 0);
}

/* ---- open and close ------------------------------------------------------------------------ */

bool resp_server_open_at(struct resp_server *s, uv_loop_t *loop, const char *ip, uint16_t port) {
    struct sockaddr_storage ss;
    struct sockaddr *a = (struct sockaddr *)&ss;
    int len = sizeof(ss);
    memset(s, 0, sizeof(*s));
    CHECK(uv_tcp_init(loop, &s->listener) == 0);
    CHECK((strchr(ip, ':') ? uv_ip6_addr(ip, port, (struct sockaddr_in6 *)&ss)
                           : uv_ip4_addr(ip, port, (struct sockaddr_in *)&ss)) == 0);
    if (uv_tcp_bind(&s->listener, a, 0) < 0 ||
        uv_listen((uv_stream_t *)&s->listener, 16, on_connection) < 0) {
        uv_close((uv_handle_t *)&s->listener, NULL);
        return false;
    }
    CHECK(uv_tcp_getsockname(&s->listener, a, &len) == 0);
    s->port = ntohs(strchr(ip, ':') ? ((struct sockaddr_in6 *)&ss)->sin6_port
                                    : ((struct sockaddr_in *)&ss)->sin_port);
    return true;
}

void resp_server_open(struct resp_server *s, uv_loop_t *loop) {
    CHECK(resp_server_open_at(s, loop, "127.0.0.1", 0));
}

void resp_server_drop_all(struct resp_server *s) {
    while (s->conns)
        drop_conn(s->conns);
}

void resp_server_close(struct resp_server *s) {
    resp_server_drop_all(s);
    uv_close((uv_handle_t *)&s->listener, NULL);
}
