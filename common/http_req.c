/* Requests as handlers see them, and the answers they give. */
#include "common/http_server.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <time.h>

#include "common/check.h"
#include "common/http_priv.h"
#include "common/json.h"
#include "common/log_format.h"

static const struct {
    int status;
    const char *text;
} statuses[] = {
    {200, "OK"},
    {201, "Created"},
    {204, "No Content"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {499, "Client Closed Request"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

const char *http_status_text(int status) {
    for (size_t i = 0; i < ARRAY_LEN(statuses); i++)
        if (statuses[i].status == status)
            return statuses[i].text;
    return "Status";
}

struct http_req *http_req_new(struct http_link *c) {
    struct http_req *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->s = c->s;
    r->c = c;
    r->peer = c->peer;
    r->peer->n_refs++;
    r->start_ns = uv_hrtime();
    r->handed_start = c->conn.handed;
    r->s->n_reqs++;
    http_req_take_id(r); /* made; a client's replaces it */
    return r;
}

void http_req_free(struct http_req *r) {
    if (!r)
        return;
    struct http_server *s = r->s;
    if (r->c)
        r->c->req = NULL;
    strbuf_fini(&r->head);
    strbuf_fini(&r->body);
    strbuf_fini(&r->reply_headers);
    share_give(&r->peer->bodies, r->body_bytes);
    http_peer_unref(r->peer);
    free(r);
    s->n_reqs--;
    s->on_freed(s);
}

void http_peer_unref(struct http_peer *p) {
    if (--p->n_refs)
        return;
    share_user_fini(&p->bodies);
    list_remove(&p->link);
    free(p);
}

int http_req_add_body(struct http_req *r, const char *p, size_t n) {
    if (n > r->s->cfg.max_body_bytes - r->body.len)
        return 413;
    if (!share_take(&r->peer->bodies, n))
        return 503;
    r->body_bytes += n;
    strbuf_add(&r->body, p, n);
    return r->body.oom ? 503 : 0;
}

static struct str span(const struct http_req *r, struct http_span at) {
    return (struct str){r->head.p + at.off, at.n};
}

const char *http_req_method(const struct http_req *r) {
    return r->method ? r->method : "";
}

/* The target in origin form; "http://host/path" loses its first part, as RFC 9112 §3.2.2 asks. */
static struct str target(const struct http_req *r) {
    struct str t = span(r, r->target);
    if (str_starts(t, STR("http://")) || str_starts(t, STR("https://"))) {
        size_t path = str_find(t, STR("/"), t.p[4] == 's' ? 8 : 7);
        return path == SIZE_MAX ? STR("/") : str_cut(t, path, SIZE_MAX);
    }
    return t;
}

struct str http_req_path(const struct http_req *r) {
    struct str t = target(r);
    return str_cut(t, 0, str_find(t, STR("?"), 0));
}

struct str http_req_query(const struct http_req *r) {
    struct str t = target(r);
    size_t q = str_find(t, STR("?"), 0);
    return q == SIZE_MAX ? STR("") : str_cut(t, q + 1, SIZE_MAX);
}

struct str http_req_query_get(const struct http_req *r, const char *key) {
    struct str rest = http_req_query(r), pair;
    while (str_split(&rest, '&', &pair)) {
        size_t eq = MIN(str_find(pair, STR("="), 0), pair.n);
        if (str_eq(str_cut(pair, 0, eq), str_of(key)))
            return str_cut(pair, eq + 1, SIZE_MAX);
    }
    return (struct str){NULL, 0};
}

struct str http_req_header(const struct http_req *r, const char *name) {
    for (uint32_t i = 0; i < r->n_headers; i++)
        if (str_eq_nocase(span(r, r->headers[i].name), str_of(name)))
            return span(r, r->headers[i].value);
    return (struct str){NULL, 0};
}

struct str http_req_body(const struct http_req *r) {
    return strbuf_view(&r->body);
}

uint32_t http_req_count_header(const struct http_req *r, const char *name) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_headers; i++)
        n += str_eq_nocase(span(r, r->headers[i].name), str_of(name));
    return n;
}

/* Plain enough for any log, header or URL. */
static bool is_id(struct str s) {
    bool ok = s.n > 0 && s.n < sizeof(((struct http_req *)0)->id);
    for (size_t i = 0; i < s.n && ok; i++)
        ok = isalnum((unsigned char)s.p[i]) || strchr("-_.:+/=@", s.p[i]);
    return ok;
}

void http_req_take_id(struct http_req *r) {
    struct str given = http_req_header(r, "x-request-id");
    if (is_id(given)) {
        snprintf(r->id, sizeof(r->id), STR_FMT, STR_ARG(given));
    } else if (!r->id[0]) {
        uint64_t v = (r->s->id_seed + r->s->n_ids++) * 0x9e3779b97f4a7c15u;
        snprintf(r->id, sizeof(r->id), "%016" PRIx64, v ^ v >> 29);
    }
}

const char *http_req_id(const struct http_req *r) {
    return r->id;
}

void http_req_note_u64(struct http_req *r, const char *key, uint64_t value) {
    CHECK(r->n_notes < HTTP_NOTES);
    r->notes[r->n_notes].key = key;
    r->notes[r->n_notes++].number = value;
}

void http_req_note_text(struct http_req *r, const char *key, const char *text) {
    CHECK(r->n_notes < HTTP_NOTES);
    r->notes[r->n_notes].key = key;
    r->notes[r->n_notes++].text = text;
}

void http_req_on_gone(struct http_req *r, void (*cb)(struct http_req *r, void *arg), void *arg) {
    r->gone_cb = cb;
    r->gone_arg = arg;
}

bool http_req_is_gone(const struct http_req *r) {
    return !r->c || http_conn_is_gone(&r->c->conn);
}

int http_reply_header(struct http_req *r, const char *name, const char *value) {
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return ERR_INVALID;
    strbuf_addf(&r->reply_headers, "%s: %s\r\n", name, value);
    return 0;
}

/* Status line and headers. length < 0: of unknown length (chunked, or until close). */
static void add_head(struct http_req *r, int status, const char *ctype, int64_t length, bool close,
                     struct strbuf *out) {
    char date[40];
    time_t now = time(NULL);
    struct tm tm;
    r->status = status;
    gmtime_r(&now, &tm);
    strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    strbuf_addf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, http_status_text(status), date);
    if (ctype)
        strbuf_addf(out, "Content-Type: %s\r\n", ctype);
    if (length >= 0 && status != 204)
        strbuf_addf(out, "Content-Length: %" PRId64 "\r\n", length);
    else if (length < 0 && !r->is_http10)
        strbuf_addz(out, "Transfer-Encoding: chunked\r\n");
    if (close)
        strbuf_addz(out, "Connection: close\r\n");
    else if (r->is_http10)
        strbuf_addz(out, "Connection: keep-alive\r\n");
    strbuf_addf(out, "X-Request-Id: %s\r\n", r->id);
    strbuf_adds(out, strbuf_view(&r->reply_headers));
    strbuf_addz(out, "\r\n");
}

static void add_text(struct log_line *line, const char *key, struct str s) {
    char text[256];
    if (!s.p)
        return;
    snprintf(text, sizeof(text), STR_FMT, STR_ARG(s));
    log_line_text(line, key, text);
}

static void fill_access(struct log_line *line, void *arg) {
    struct http_req *r = arg;
    log_line_text(line, "id", r->id);
    log_line_text(line, "client", r->peer->text);
    add_text(line, "forwarded", http_req_header(r, "x-forwarded-for"));
    add_text(line, "trace", http_req_header(r, "traceparent"));
    log_line_text(line, "method", http_req_method(r));
    add_text(line, "path", http_req_path(r));
    log_line_u64(line, "status",
                 (uint64_t)(r->status ? r->status : 499)); /* 499: gone before an answer */
    log_line_u64(line, "bytes", r->c ? r->c->conn.handed - r->handed_start : 0);
    log_line_u64(line, "ms", (uv_hrtime() - r->start_ns) / 1000000u);
    for (uint32_t i = 0; i < r->n_notes; i++) {
        if (r->notes[i].text)
            log_line_text(line, r->notes[i].key, r->notes[i].text);
        else
            log_line_u64(line, r->notes[i].key, r->notes[i].number);
    }
}

/* Takes r off its connection and frees it; the connection goes on. */
static void end(struct http_req *r, bool close_after) {
    struct http_link *c = r->c;
    if (r->s->cfg.access_log && (!r->is_probe || r->status != 200))
        log_record(r->s->cfg.log, "request", fill_access, r);
    if (c && !http_conn_is_gone(&c->conn)) {
        c->req = NULL;
        r->c = NULL;
        http_conn_answered(&c->conn, close_after);
    }
    http_req_free(r);
}

static bool must_close(const struct http_req *r) {
    return !r->keep_alive || r->body_left || r->s->draining ||
           r->c->n_requests >= r->s->cfg.max_requests_per_conn;
}

void http_reply(struct http_req *r, int status, const char *ctype, struct str body) {
    CHECK(!r->streaming);
    if (http_req_is_gone(r)) {
        end(r, true);
        return;
    }
    bool close = must_close(r);
    struct strbuf head;
    strbuf_init(&head);
    add_head(r, status, ctype, (int64_t)body.n, close, &head);
    if (head.oom)
        http_conn_drop(&r->c->conn);
    else
        http_conn_write(&r->c->conn, strbuf_view(&head), r->is_head ? STR("") : body, STR(""));
    strbuf_fini(&head);
    end(r, close);
}

void http_reply_json(struct http_req *r, int status, struct str body) {
    http_reply(r, status, "application/json", body);
}

void http_reply_error(struct http_req *r, int status, const char *type, const char *param,
                      const char *code, const char *fmt, ...) {
    struct strbuf text, json;
    struct json_w w;
    va_list ap;
    strbuf_init(&text);
    strbuf_init(&json);
    va_start(ap, fmt);
    strbuf_vaddf(&text, fmt, ap);
    va_end(ap);
    json_w_init(&w, &json);
    json_w_obj(&w);
    json_w_key(&w, "error");
    json_w_obj(&w);
    json_w_kstr(&w, "message", strbuf_view(&text));
    json_w_kstr(&w, "type", str_of(type));
    json_w_key(&w, "param");
    if (param)
        json_w_strz(&w, param);
    else
        json_w_null(&w);
    json_w_key(&w, "code");
    if (code)
        json_w_strz(&w, code);
    else
        json_w_null(&w);
    json_w_end(&w);
    json_w_end(&w);
    strbuf_addc(&json, '\n');
    http_req_note_text(r, "error", text.p ? text.p : ""); /* lives until r has ended, below */
    http_reply_json(r, status, strbuf_view(&json));
    strbuf_fini(&text);
    strbuf_fini(&json);
}

void http_req_refuse(struct http_req *r, int status, const char *text) {
    CHECK(!r->handed_out);
    r->handed_out = true;
    r->keep_alive = false;
    r->s->stats.bad_total++;
    log_debug(r->s->cfg.log, "http request refused", "status=%d why=%s", status, text);
    if (status == 503)
        (void)http_reply_header(r, "Retry-After", "1");
    http_reply_error(r, status, status == 503 ? "server_error" : "invalid_request_error", NULL,
                     NULL, "%s", text);
}

int http_stream_begin(struct http_req *r, int status, const char *ctype) {
    CHECK(!r->streaming);
    r->streaming = true;
    if (http_req_is_gone(r))
        return ERR_CLOSED;
    struct strbuf head;
    strbuf_init(&head);
    if (r->is_http10)
        r->keep_alive = false; /* its end is the connection's */
    r->keep_alive = !must_close(r);
    add_head(r, status, ctype, -1, !r->keep_alive, &head);
    if (head.oom)
        http_conn_drop(&r->c->conn);
    else
        http_conn_write(&r->c->conn, strbuf_view(&head), STR(""), STR(""));
    strbuf_fini(&head);
    return http_req_is_gone(r) ? ERR_CLOSED : 0;
}

size_t http_stream_unsent(const struct http_req *r) {
    return http_req_is_gone(r) ? 0 : r->c->conn.unsent;
}

int http_stream_write(struct http_req *r, const void *p, size_t n) {
    CHECK(r->streaming);
    if (http_req_is_gone(r))
        return ERR_CLOSED;
    if (n == 0 || r->is_head)
        return 0; /* an empty chunk would be the last one */
    size_t max = r->s->cfg.max_unsent_bytes;
    if (r->c->conn.unsent > max || (r->c->conn.unsent && n > max - r->c->conn.unsent))
        return ERR_BUSY;
    char size[24];
    int len = snprintf(size, sizeof(size), "%zx\r\n", n);
    if (r->is_http10)
        http_conn_write(&r->c->conn, STR(""), (struct str){p, n}, STR(""));
    else
        http_conn_write(&r->c->conn, (struct str){size, (size_t)len}, (struct str){p, n},
                        STR("\r\n"));
    return http_req_is_gone(r) ? ERR_CLOSED : 0;
}

void http_stream_on_drained(struct http_req *r, void (*cb)(struct http_req *r, void *arg),
                            void *arg) {
    r->drained_cb = cb;
    r->drained_arg = arg;
}

void http_stream_end(struct http_req *r) {
    CHECK(r->streaming);
    if (!http_req_is_gone(r) && !r->is_http10 && !r->is_head)
        http_conn_write(&r->c->conn, STR("0\r\n\r\n"), STR(""), STR(""));
    end(r, !r->keep_alive);
}

void http_stream_abort(struct http_req *r) {
    CHECK(r->streaming);
    if (!http_req_is_gone(r))
        http_conn_drop(&r->c->conn);
    end(r, true);
}
