/* Bytes to a request: a look at the raw head, llhttp's callbacks, and what llhttp lets through. */
#include "common/http_priv.h"

#define TRAILER_MAX_BYTES 8192u

enum { SCAN_BEFORE, SCAN_HEAD, SCAN_AFTER };

/* --- llhttp's callbacks --- */

static int refuse(struct http_link *c, int status, const char *text) {
    c->fail_status = status;
    c->fail_text = text;
    return HPE_USER;
}

static int on_url(llhttp_t *p, const char *at, size_t n) {
    struct http_req *r = ((struct http_link *)p->data)->req;
    r->target.n += (uint32_t)n; /* first in the buffer, so it is contiguous */
    strbuf_add(&r->head, at, n);
    return 0;
}

/* Trailers are read and dropped. */
static int add_trailer(struct http_link *c, size_t n) {
    c->trailer_bytes += n;
    return c->trailer_bytes > TRAILER_MAX_BYTES ? refuse(c, 431, "trailers too large") : 0;
}

static int on_header_field(llhttp_t *p, const char *at, size_t n) {
    struct http_link *c = p->data;
    struct http_req *r = c->req;
    if (c->head_done)
        return add_trailer(c, n);
    if (r->n_headers == 0 || c->value_open) { /* a new one */
        if (r->n_headers == HTTP_HEADERS_MAX)
            return refuse(c, 431, "too many headers");
        strbuf_addc(&r->head, '\0');
        r->headers[r->n_headers].name = (struct http_span){(uint32_t)r->head.len, 0};
        r->n_headers++;
        c->value_open = false;
    }
    r->headers[r->n_headers - 1].name.n += (uint32_t)n;
    strbuf_add(&r->head, at, n);
    return 0;
}

static int on_header_value(llhttp_t *p, const char *at, size_t n) {
    struct http_link *c = p->data;
    struct http_req *r = c->req;
    if (c->head_done)
        return add_trailer(c, n);
    struct http_span *v = &r->headers[r->n_headers - 1].value;
    if (!c->value_open) {
        strbuf_addc(&r->head, '\0');
        *v = (struct http_span){(uint32_t)r->head.len, 0};
        c->value_open = true;
    }
    v->n += (uint32_t)n;
    strbuf_add(&r->head, at, n);
    return 0;
}

/* A page whose name was made to resolve to a loopback address (DNS rebinding) sends its own name here;
 * an address or "localhost" can't be another's. */
static bool is_own_host(const struct http_server *s, struct str host) {
    struct sockaddr_in v4;
    char name[64];
    if (str_starts(host, STR("[")))
        return str_find(host, STR("]"), 0) != SIZE_MAX;
    host = str_cut(host, 0, str_find(host, STR(":"), 0));
    if (str_ends(host, STR(".")))
        host.n--;
    for (size_t i = 0; i < s->cfg.n_hosts; i++)
        if (str_eq_nocase(host, str_of(s->cfg.hosts[i])))
            return true;
    snprintf(name, sizeof(name), STR_FMT, STR_ARG(host));
    return str_eq_nocase(host, STR("localhost")) ||
           (host.n > 10 && str_eq_nocase(str_cut(host, host.n - 10, 10), STR(".localhost"))) ||
           (host.n < sizeof(name) && uv_ip4_addr(name, 0, &v4) == 0);
}

/* What llhttp lets through or another server might read differently (request smuggling). */
static int check_framing(struct http_link *c, llhttp_t *p) {
    struct http_req *r = c->req;
    uint32_t n_host = http_req_count_header(r, "host");
    if (p->http_major != 1 || p->http_minor > 1)
        return refuse(c, 505, "HTTP/1.0 and HTTP/1.1 are spoken here");
    if (n_host > 1 || (!r->is_http10 && n_host == 0))
        return refuse(c, 400, "one Host header is required");
    if (http_req_count_header(r, "content-length") > 1)
        return refuse(c, 400, "more than one Content-Length");
    uint32_t n_te = http_req_count_header(r, "transfer-encoding");
    if (n_te && (n_te > 1 || r->is_http10 || http_req_count_header(r, "content-length") ||
                 !str_eq_nocase(str_trim(http_req_header(r, "transfer-encoding")), STR("chunked"))))
        return refuse(c, 400,
                      "Transfer-Encoding may only be 'chunked', once, without Content-Length");
    if (http_req_count_header(r, "content-length") && p->content_length > c->s->cfg.max_body_bytes)
        return refuse(c, 413, "request body too large");
    return 0;
}

static int check_head(struct http_link *c, llhttp_t *p) {
    struct http_req *r = c->req;
    int rv = check_framing(c, p);
    if (rv)
        return rv;
    struct str host = http_req_header(r, "host");
    if (c->s->check_host && host.p && !is_own_host(c->s, str_trim(host)))
        return refuse(c, 403, "Host names neither this address nor an allowed name");
    struct str coding = http_req_header(r, "content-encoding");
    if (coding.n && !str_eq_nocase(coding, STR("identity")))
        return refuse(c, 415, "Content-Encoding is not supported: send the body as it is");
    struct str expect = http_req_header(r, "expect");
    if (expect.p && !str_eq_nocase(expect, STR("100-continue")))
        return refuse(c, 417, "only 'Expect: 100-continue' is known");
    return 0;
}

static int on_headers_complete(llhttp_t *p) {
    struct http_link *c = p->data;
    struct http_req *r = c->req;
    c->head_done = true;
    r->is_http10 = p->http_major == 1 && p->http_minor == 0;
    r->is_head = p->method == HTTP_HEAD;
    r->keep_alive = llhttp_should_keep_alive(p) != 0;
    p->upgrade = 0; /* no protocol is offered: the request is served as it is */
    if (r->head.oom)
        return refuse(c, 503, "out of memory");
    http_req_take_id(r);
    int rv = check_head(c, p);
    if (rv)
        return rv;
    bool has_body = p->content_length > 0 || http_req_count_header(r, "transfer-encoding");
    if (!has_body)
        return 0;
    r->body_left = true;
    if (!c->s->on_head(c))
        return HPE_USER; /* answered: r is gone */
    if (http_req_header(r, "expect").p && !r->is_http10)
        http_conn_write(&c->conn, STR("HTTP/1.1 100 Continue\r\n\r\n"), STR(""), STR(""));
    if (http_conn_is_gone(&c->conn))
        return HPE_USER;
    sm_move(&c->conn.sm, CONN_BODY);
    http_conn_arm(&c->conn, c->s->cfg.body_timeout_ms);
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t n) {
    struct http_link *c = p->data;
    int status = http_req_add_body(c->req, at, n);
    if (status == 413)
        return refuse(c, 413, "request body too large");
    return status ? refuse(c, status,
                           "too little memory is left for request bodies, which all clients share")
                  : 0;
}

static int on_message_complete(llhttp_t *p) {
    ((struct http_link *)p->data)->req->body_left = false;
    return HPE_PAUSED; /* one request at a time; what follows waits in pending */
}

void http_parse_settings(llhttp_settings_t *t) {
    llhttp_settings_init(t);
    t->on_url = on_url;
    t->on_header_field = on_header_field;
    t->on_header_value = on_header_value;
    t->on_headers_complete = on_headers_complete;
    t->on_body = on_body;
    t->on_message_complete = on_message_complete;
}

/* --- the raw head --- */

/* Size; bare CR or LF, and lines that continue the one before (obsolete folding), all of which llhttp
 * accepts in places and another server reads otherwise. 0 or an HTTP status. */
static int scan_head(struct http_link *c, const char *p, size_t n) {
    struct http_scan *s = &c->scan;
    for (size_t i = 0; i < n && s->at != SCAN_AFTER; i++) {
        char ch = p[i];
        if (s->at == SCAN_BEFORE) {
            if (ch == '\r' || ch == '\n') {
                if (++s->bytes > 8)
                    return 400;
                continue; /* blank lines before a request are skipped */
            }
            s->at = SCAN_HEAD;
            s->bytes = 0;
        }
        if ((ch == '\n') != (s->prev == '\r'))
            return 400;
        if (s->blank && (ch == ' ' || ch == '\t'))
            return 400;
        if (ch == '\n') {
            if (s->blank)
                s->at = SCAN_AFTER;
            s->blank = s->line_done = true;
        } else if (ch != '\r') {
            s->blank = false;
        }
        s->prev = ch;
        if (++s->bytes > c->s->cfg.max_head_bytes)
            return s->line_done ? 431 : 414;
    }
    return 0;
}

void http_parse_begin(struct http_link *c) {
    c->scan = (struct http_scan){.at = SCAN_BEFORE};
    c->trailer_bytes = 0;
    c->head_done = c->value_open = false;
    c->fail_status = 0;
    c->route = NULL;
    llhttp_init(&c->parser, HTTP_REQUEST, &c->s->settings);
    c->parser.data = c;
}

enum http_parsed http_parse_feed(struct http_link *c, const char *p, size_t n, size_t *ret_used) {
    c->fail_status = scan_head(c, p, n);
    if (c->fail_status) {
        c->fail_text = c->fail_status == 400 ? "malformed request head" : "request head too large";
        return HTTP_PARSED_REFUSED;
    }
    llhttp_errno_t e = llhttp_execute(&c->parser, p, n);
    if (e == HPE_OK)
        return HTTP_PARSED_MORE;
    if (e == HPE_PAUSED) {
        *ret_used = (size_t)(llhttp_get_error_pos(&c->parser) - p);
        return HTTP_PARSED_WHOLE;
    }
    if (!c->req || http_conn_is_gone(&c->conn))
        return HTTP_PARSED_BAD; /* on_head has answered, or nobody is there */
    if (!c->fail_status)
        refuse(c, e == HPE_INVALID_VERSION ? 505 : 400, "malformed request");
    return HTTP_PARSED_REFUSED;
}
