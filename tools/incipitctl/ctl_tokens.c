#include "tools/incipitctl/ctl_tokens.h"

#include <errno.h>

#include "tools/incipitctl/ctl_http.h"

#define MAX_DEPTH 24 /* of a request's JSON; json_w has room for a few levels more */

struct tokens {
    int32_t *v;
    size_t n, cap;
};

static int add_token(struct tokens *t, int64_t v) {
    if (v < 0 || v > INT32_MAX)
        return ERR_INVALID;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 1024;
        int32_t *more = realloc(t->v, cap * sizeof(*more));
        if (!more)
            return ERR_NOMEM;
        t->v = more;
        t->cap = cap;
    }
    t->v[t->n++] = (int32_t)v;
    return 0;
}

static int read_file(struct ctl *c, const char *path, struct strbuf *ret) {
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(path, "re");
    char piece[65536];
    size_t n;
    if (!f) {
        ctl_say(c, "'%s': %s", path, err_text(-errno));
        return CTL_FAILED;
    }
    while ((n = fread(piece, 1, sizeof(piece), f)) > 0)
        strbuf_add(ret, piece, n);
    int rv = ferror(f) ? -errno : ret->oom ? ERR_NOMEM : 0;
    if (!is_stdin)
        fclose(f);
    return rv < 0 ? ctl_fail(c, rv, path) : CTL_OK;
}

/* Decimal numbers with commas, blanks or brackets between them. */
static int parse_list(struct tokens *t, struct str s) {
    size_t i = 0;
    while (i < s.n) {
        if (strchr(", []\t\r\n", s.p[i])) {
            i++;
            continue;
        }
        size_t end = i;
        while (end < s.n && s.p[end] >= '0' && s.p[end] <= '9')
            end++;
        uint64_t v;
        if (str_to_u64(str_cut(s, i, end - i), &v) < 0 || v > INT32_MAX)
            return ERR_INVALID;
        int rv = add_token(t, (int64_t)v);
        if (rv < 0)
            return rv;
        i = end;
    }
    return 0;
}

static int from_list(struct ctl *c, struct tokens *t) {
    struct strbuf text = {0};
    int code = CTL_OK;
    if (c->opt.tokens[0] == '@')
        code = read_file(c, c->opt.tokens + 1, &text);
    else
        strbuf_addz(&text, c->opt.tokens);
    if (code == CTL_OK && parse_list(t, strbuf_view(&text)) < 0)
        code = ctl_usage(c, "--tokens wants token ids, comma separated, or @FILE");
    strbuf_fini(&text);
    return code;
}

/* ---- a request's prompt ---- */

static int copy_value(struct json_w *w, const struct json_t *j, unsigned depth) {
    int rv = depth > MAX_DEPTH ? ERR_TOOBIG : 0;
    switch (rv < 0 ? JSON_KIND_NONE : json_kind(j)) {
    case JSON_KIND_STRING:
        json_w_str(w, json_text(j));
        break;
    case JSON_KIND_INT:
        json_w_int(w, json_int(j));
        break;
    case JSON_KIND_REAL:
        json_w_num(w, json_num(j));
        break;
    case JSON_KIND_BOOL:
        json_w_bool(w, json_truth(j));
        break;
    case JSON_KIND_NULL:
    case JSON_KIND_NONE:
        json_w_null(w);
        break;
    case JSON_KIND_ARRAY:
        json_w_arr(w);
        for (size_t i = 0; rv == 0 && i < json_count(j); i++)
            rv = copy_value(w, json_item(j, i), depth + 1);
        json_w_end(w);
        break;
    case JSON_KIND_OBJECT:
        json_w_obj(w);
        for (void *it = json_iter(j); rv == 0 && it; it = json_iter_next(j, it)) {
            json_w_key(w, json_iter_key(it));
            rv = copy_value(w, json_iter_value(it), depth + 1);
        }
        json_w_end(w);
        break;
    }
    return rv;
}

/* What of a request makes its tokens, in the form of /tokenize; the rest (model, sampling, streaming) does not. A
 * prompt that is a list of token ids needs no worker: they go into t. */
static int prompt_of(const struct json_t *doc, struct tokens *t, struct strbuf *ret,
                     struct errbuf *eb) {
    const struct json_t *messages = json_member(doc, "messages"),
                        *prompt = json_member(doc, "prompt");
    bool has_chat = json_kind(messages) == JSON_KIND_ARRAY;
    struct json_w w;
    int rv = 0;
    if (json_kind(prompt) == JSON_KIND_ARRAY && json_count(prompt) == 1 &&
        json_kind(json_item(prompt, 0)) != JSON_KIND_INT)
        prompt = json_item(prompt, 0);
    if (has_chat == (json_kind(prompt) == JSON_KIND_STRING || json_kind(prompt) == JSON_KIND_ARRAY))
        return err_set(eb, ERR_INVALID, "want 'messages' or one 'prompt'");
    if (!has_chat && json_kind(prompt) == JSON_KIND_ARRAY) {
        for (size_t i = 0; rv == 0 && i < json_count(prompt); i++)
            rv = json_kind(json_item(prompt, i)) == JSON_KIND_INT
                     ? add_token(t, json_int(json_item(prompt, i)))
                     : ERR_INVALID;
        return rv < 0 ? err_set(eb, rv, "'prompt' is neither one text nor one list of token ids")
                      : 0;
    }
    json_w_init(&w, ret);
    json_w_obj(&w);
    json_w_key(&w, has_chat ? "messages" : "prompt");
    rv = copy_value(&w, has_chat ? messages : prompt, 1);
    json_w_end(&w);
    return rv < 0 ? err_set(eb, rv, "more than %d levels of JSON", MAX_DEPTH) : 0;
}

static int read_request(struct ctl *c, struct tokens *t, struct strbuf *ret) {
    struct strbuf text = {0};
    struct errbuf eb;
    CLEANUP(json_freep) struct json_t *doc = NULL;
    int code = read_file(c, c->opt.request, &text);
    if (code == CTL_OK &&
        (json_parse(strbuf_view(&text), &doc, &eb) < 0 || prompt_of(doc, t, ret, &eb) < 0)) {
        ctl_say(c, "%s: %s", c->opt.request, eb.text);
        code = CTL_FAILED;
    }
    strbuf_fini(&text);
    return code;
}

static void write_text(const struct ctl_opts *o, struct strbuf *ret) {
    struct json_w w;
    json_w_init(&w, ret);
    json_w_obj(&w);
    if (o->text[0]) {
        json_w_kstr(&w, "prompt", str_of(o->text));
    } else {
        json_w_key(&w, "messages");
        json_w_arr(&w);
        json_w_obj(&w);
        json_w_kstr(&w, "role", STR("user"));
        json_w_kstr(&w, "content", str_of(o->chat));
        json_w_end(&w);
        json_w_end(&w);
    }
    json_w_end(&w);
}

/* ---- asking a worker ---- */

static int of_answer(struct tokens *t, struct str body, struct errbuf *eb) {
    CLEANUP(json_freep) struct json_t *doc = NULL;
    int rv = json_parse(body, &doc, eb);
    if (rv < 0)
        return rv;
    const struct json_t *toks = json_member(doc, "tokens");
    if (json_kind(toks) != JSON_KIND_ARRAY)
        return err_set(eb, ERR_PROTO, "no tokens in the answer");
    for (size_t i = 0; rv == 0 && i < json_count(toks); i++)
        rv = json_kind(json_item(toks, i)) == JSON_KIND_INT
                 ? add_token(t, json_int(json_item(toks, i)))
                 : ERR_PROTO;
    return rv < 0 ? err_set(eb, rv, "token ids: %s", err_text(rv)) : 0;
}

static int ask_worker(struct ctl *c, struct tokens *t, struct str request) {
    struct strbuf body = {0};
    struct errbuf eb;
    int status = 0;
    int rv =
        ctl_http_post(c->opt.worker, "/tokenize", request, ctl_deadline_ms(c), &status, &body, &eb);
    if (rv == 0 && status != 200)
        rv = err_set(&eb, ERR_INVALID, "worker says %d: %.200s", status, body.p ? body.p : "");
    if (rv == 0)
        rv = of_answer(t, strbuf_view(&body), &eb);
    strbuf_fini(&body);
    if (rv == 0)
        return CTL_OK;
    ctl_say(c, "%s", eb.text);
    return rv == ERR_UNAVAILABLE ? CTL_UNREACHABLE : CTL_FAILED;
}

int ctl_tokens(struct ctl *c, int32_t **ret_tok, size_t *ret_n) {
    struct tokens t = {0};
    struct strbuf request = {0};
    int code = CTL_OK;
    if (c->opt.tokens[0])
        code = from_list(c, &t);
    else if (c->opt.request[0])
        code = read_request(c, &t, &request);
    else
        write_text(&c->opt, &request);
    if (code == CTL_OK && request.oom)
        code = ctl_fail(c, ERR_NOMEM, "request");
    if (code == CTL_OK && request.len)
        code = ask_worker(c, &t, strbuf_view(&request));
    strbuf_fini(&request);
    if (code == CTL_OK) {
        *ret_tok = t.v;
        *ret_n = t.n;
    } else {
        free(t.v);
    }
    return code;
}
