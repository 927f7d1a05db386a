#include "worker/api/http_openai.h"

#include <sys/random.h>

#include "common/check.h"
#include "worker/api/api_priv.h"

#define RETRY_AFTER_S "1"

/* One HTTP request that generates; freed when all its choices are done. */
struct call {
    struct list link; /* http_openai.calls */
    struct http_openai *h;
    struct http_req *http;
    enum api_kind kind;
    struct loop_job parse; /* of a long body, in a pool */
    struct api_error err;
    struct api_request req;
    struct chat_prompt prompt; /* chat */
    struct tok_part *parts;    /* completion: [n] */
    struct render_ctx render;
    struct render_choice *choices; /* [n] */
    struct gen_request **gen;      /* [n] */
    enum finish_reason *why;       /* [n] */
    uint32_t n, n_open;
    uint8_t salt[BLOCK_SALT_BYTES];
    bool has_salt, is_streaming, is_gone;
    uint64_t last_write_ns;
    /* Why there will be no answer; status 0: none. The first one counts. */
    int fail_status;
    const char *fail_code;
    struct errbuf fail_text;
};

static void call_free(struct call *c) {
    list_remove(&c->link);
    for (uint32_t i = 0; i < c->n && c->gen; i++)
        gen_request_free(c->gen[i]);
    if (c->req.kind == API_CHAT)
        chat_prompt_fini(&c->prompt);
    free(c->parts);
    free(c->choices);
    free(c->gen);
    free(c->why);
    api_request_fini(&c->req);
    explicit_bzero(c->salt, sizeof(c->salt));
    free(c);
}

/* ---- failing ---- */

static const char *status_type(int status) {
    if (status == 429)
        return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

static void reply_failure(struct call *c) {
    if (c->is_streaming) { /* the status went out as 200: say it in the stream and cut it off */
        struct strbuf out;
        strbuf_init(&out);
        render_chunk_error(status_type(c->fail_status), c->fail_text.text, &out);
        (void)http_stream_write(c->http, out.p, out.len);
        strbuf_fini(&out);
        http_stream_end(c->http);
        return;
    }
    if (c->fail_status == 429)
        (void)http_reply_header(c->http, "Retry-After", RETRY_AFTER_S);
    http_reply_error(c->http, c->fail_status, status_type(c->fail_status), NULL, c->fail_code, "%s",
                     c->fail_text.text);
}

static void fail(struct call *c, int rv, const struct errbuf *eb) {
    if (c->fail_status)
        return;
    switch (rv) {
    case ERR_BUSY:
        c->fail_status = 429;
        c->fail_code = "queue_full";
        break;
    case ERR_CANCELED:
        c->fail_status = 503;
        c->fail_code = "shutting_down";
        break;
    case ERR_TOOBIG:
        c->fail_status = 400;
        c->fail_code = "context_length_exceeded";
        break;
    case ERR_INVALID:
    case ERR_UNSUPPORTED:
        c->fail_status = 400;
        break;
    default:
        c->fail_status = 500;
        break;
    }
    const char *text = eb && eb->text[0] ? eb->text : err_text(rv);
    (void)err_set(&c->fail_text, 0, "%s",
                  rv == ERR_BUSY ? "the queue is full; try again later" : text);
}

static void cancel_all(struct call *c) {
    for (uint32_t i = 0; i < c->n; i++)
        if (c->gen[i] && c->gen[i]->seq && c->why[i] == FINISH_NONE)
            engine_cancel(c->h->cfg.engine, c->gen[i]);
}

/* ---- streaming ---- */

static int stream_write(struct call *c, struct strbuf *out) {
    int rv = 0;
    if (!c->is_streaming) {
        (void)http_reply_header(c->http, "Cache-Control", "no-cache");
        (void)http_reply_header(c->http, "X-Accel-Buffering", "no"); /* nginx would gather events */
        rv = http_stream_begin(c->http, 200, "text/event-stream; charset=utf-8");
        c->is_streaming = true;
    }
    if (rv == 0 && out->len)
        rv = http_stream_write(c->http, out->p, out->len);
    c->last_write_ns = clock_mono_ns(c->h->cfg.clk);
    if (rv == ERR_BUSY) { /* megabytes unread: the client has stopped reading */
        log_warn(c->h->cfg.log, "client does not read its stream, cancelled", "id=%s",
                 http_req_id(c->http));
        fail(c, ERR_TIMEOUT, NULL);
        cancel_all(c);
    }
    return rv;
}

static uint32_t index_of(const struct call *c, const struct gen_request *r) {
    for (uint32_t i = 0; i < c->n; i++)
        if (c->gen[i] == r)
            return i;
    UNREACHABLE("a callback for a request that is not the call's");
}

/* What comes before a choice's first token. */
static void add_opening(struct call *c, uint32_t i, struct strbuf *out) {
    if (c->req.kind == API_CHAT)
        render_chunk_role(&c->render, i, out);
    else if (c->req.echo)
        render_chunk_prompt(&c->render, &c->choices[i], out);
}

static void on_tokens(struct gen_request *r, const struct gen_token *tok, size_t n) {
    struct call *c = r->data;
    if (!c->req.stream || c->is_gone || c->fail_status)
        return;
    uint32_t i = index_of(c, r);
    struct strbuf out;
    strbuf_init(&out);
    if (!c->choices[i].req) {
        c->choices[i].req = r;
        add_opening(c, i, &out);
    }
    render_chunk_tokens(&c->render, &c->choices[i], tok, n, &out);
    if (out.len)
        (void)stream_write(c, &out);
    strbuf_fini(&out);
}

static void end_stream_choice(struct call *c, uint32_t i) {
    struct strbuf out;
    strbuf_init(&out);
    if (!c->choices[i].req) {
        c->choices[i].req = c->gen[i];
        add_opening(c, i, &out);
    }
    render_chunk_finish(&c->render, &c->choices[i], c->why[i], &out);
    (void)stream_write(c, &out);
    strbuf_fini(&out);
}

static void end_stream(struct call *c) {
    struct strbuf out;
    strbuf_init(&out);
    if (c->req.include_usage)
        render_chunk_usage(&c->render, c->choices, c->n, &out);
    render_done(&out);
    (void)stream_write(c, &out);
    strbuf_fini(&out);
    http_stream_end(c->http);
}

/* ---- the end ---- */

static void answer_whole(struct call *c) {
    struct strbuf out;
    strbuf_init(&out);
    for (uint32_t i = 0; i < c->n; i++)
        c->choices[i].req = c->gen[i];
    render_answer(&c->render, c->choices, c->n, c->why, &out);
    http_reply_json(c->http, 200, strbuf_view(&out));
    strbuf_fini(&out);
}

/* What the access log tells of a generation. */
static void note_call(struct call *c) {
    uint64_t prompt = 0, completion = 0, cached = 0;
    const struct gen_usage *first = c->gen && c->gen[0] ? &c->gen[0]->usage : NULL;
    for (uint32_t i = 0; first && i < c->n && c->gen[i]; i++) {
        prompt += c->gen[i]->usage.n_prompt;
        completion += c->gen[i]->usage.n_completion;
        cached += gen_usage_cached(&c->gen[i]->usage);
    }
    if (c->render.id[0])
        http_req_note_text(c->http, "answer", c->render.id);
    http_req_note_u64(c->http, "prompt_tokens", prompt);
    http_req_note_u64(c->http, "cached_tokens", cached);
    http_req_note_u64(c->http, "tokens", completion);
    if (first && first->first_token_ns)
        http_req_note_u64(c->http, "ttft_ms",
                          (first->first_token_ns - first->submitted_ns) / NS_PER_MS);
    if (c->fail_status && c->is_streaming) /* else the error's answer notes it */
        http_req_note_text(c->http, "error", c->fail_text.text);
    http_req_note_text(c->http, "reason",
                       c->is_gone       ? "client gone"
                       : c->fail_status ? "error"
                                        : finish_reason_name(c->why[0]));
}

static void finish_call(struct call *c) {
    if (c->is_gone && !c->fail_status) {
        c->fail_status = 499; /* nobody reads it; the server only frees the request */
        (void)err_set(&c->fail_text, 0, "client closed the connection");
    }
    note_call(c);
    if (c->fail_status)
        reply_failure(c);
    else if (c->req.stream)
        end_stream(c);
    else
        answer_whole(c);
    call_free(c);
}

static void on_done(struct gen_request *r, enum finish_reason why) {
    struct call *c = r->data;
    uint32_t i = index_of(c, r);
    c->why[i] = why;
    if (why == FINISH_ERROR) {
        fail(c, r->err, &r->eb);
        cancel_all(c);
    } else if (why == FINISH_CANCELED && !c->is_gone) {
        struct errbuf eb;
        fail(c, err_set(&eb, ERR_CANCELED, "the worker is shutting down"), &eb);
    } else if (c->req.stream && !c->is_gone && !c->fail_status) {
        end_stream_choice(c, i);
    }
    if (--c->n_open == 0)
        finish_call(c);
}

static void on_gone(struct http_req *http, void *arg) {
    struct call *c = arg;
    (void)http;
    c->is_gone = true;
    cancel_all(c);
}

/* A client or a balancer between that waits for a byte would give up during a long prefill. */
static void on_keepalive(uv_timer_t *t) {
    struct http_openai *h = t->data;
    uint64_t now = clock_mono_ns(h->cfg.clk);
    LIST_FOREACH_SAFE(&h->calls, it, tmp) {
        struct call *c = LIST_ENTRY(it, struct call, link);
        if (!c->n_open) /* its body may be in a pool's hands */
            continue;
        if (!c->req.stream || c->is_gone || c->fail_status ||
            now - c->last_write_ns < h->cfg.keepalive_ms * NS_PER_MS)
            continue;
        struct strbuf out;
        strbuf_init(&out);
        strbuf_addz(&out, ": keep-alive\n\n");
        (void)stream_write(c, &out);
        strbuf_fini(&out);
    }
}

/* ---- beginning ---- */

static uint64_t random_seed(void) {
    uint64_t v = 0;
    return getrandom(&v, sizeof(v), 0) == (ssize_t)sizeof(v) ? v : uv_hrtime();
}

static void fill_gen(struct call *c, uint32_t i, struct str traceparent) {
    struct gen_request *g = c->gen[i];
    const struct api_request *q = &c->req;
    if (q->kind == API_CHAT) {
        g->parts = c->prompt.parts;
        g->n_parts = c->prompt.n;
        g->add_bos = true; /* the tokenizer leaves it out where the template wrote it */
    } else if (q->prompts[i].ids) {
        g->ids = q->prompts[i].ids;
        g->n_ids = q->prompts[i].n_ids;
    } else {
        c->choices[i].prompt = q->prompts[i].text;
        c->parts[i] =
            (struct tok_part){q->prompts[i].text.p, q->prompts[i].text.n, TOK_ORIGIN_USER};
        g->parts = &c->parts[i];
        g->n_parts = 1;
        g->add_bos = q->add_special_tokens;
    }
    g->sample = q->sample;
    if (!q->seed_set)
        g->sample.seed = random_seed();
    g->max_tokens = q->max_tokens;
    g->max_tokens_set = q->max_tokens_set;
    g->ignore_eog = q->ignore_eos;
    memcpy(g->stop, q->stop, sizeof(g->stop));
    g->n_stop = q->n_stop;
    g->logprobs = q->logprobs;
    g->n_top = q->n_top;
    g->prompt_logprobs = q->echo && q->logprobs;
    g->debug_logits = c->h->cfg.debug_logits;
    g->salt = c->has_salt ? c->salt : NULL;
    snprintf(g->trace_id, sizeof(g->trace_id), "%.*s",
             (int)MIN(traceparent.n, sizeof(g->trace_id) - 1), traceparent.p ? traceparent.p : "");
    g->on_tokens = on_tokens;
    g->on_done = on_done;
    g->data = c;
}

static int make_arrays(struct call *c) {
    c->n = c->req.kind == API_CHAT ? 1 : (uint32_t)c->req.n_prompts;
    c->choices = alloc_array(c->n, sizeof(*c->choices));
    c->gen = alloc_array(c->n, sizeof(struct gen_request *));
    c->why = alloc_array(c->n, sizeof(*c->why));
    c->parts = alloc_array(c->n, sizeof(*c->parts));
    if (!c->choices || !c->gen || !c->why || !c->parts)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < c->n; i++) {
        c->choices[i].index = i;
        c->gen[i] = gen_request_new();
        if (!c->gen[i])
            return ERR_NOMEM;
    }
    return 0;
}

static void fill_render(struct call *c) {
    struct http_openai *h = c->h;
    c->render = (struct render_ctx){.tok = h->cfg.tok,
                                    .kind = c->req.kind,
                                    .created = clock_wall_ns(h->cfg.clk) / NS_PER_S,
                                    .model = h->cfg.model_name,
                                    .worker = h->cfg.worker_name,
                                    .logprobs = c->req.logprobs,
                                    .echo = c->req.echo,
                                    .continuous_usage = c->req.continuous_usage,
                                    .debug_logits = h->cfg.debug_logits};
    snprintf(c->render.id, sizeof(c->render.id), "%s-%016llx",
             c->req.kind == API_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)sample_random(h->next_id, h->started_s));
    h->next_id++;
}

static void submit_all(struct call *c) {
    struct errbuf none = {{0}};
    struct str trace = http_req_header(c->http, "traceparent");
    c->n_open = 1; /* ours, so that no on_done ends the call while it is being submitted */
    for (uint32_t i = 0; i < c->n && !c->fail_status; i++) {
        fill_gen(c, i, trace);
        int rv = engine_submit(c->h->cfg.engine, c->gen[i]);
        if (rv == 0)
            c->n_open++;
        else
            fail(c, rv, &none);
    }
    if (c->fail_status)
        cancel_all(c);
    if (--c->n_open == 0)
        finish_call(c);
}

/* The body is parsed: rv, and e on ERR_INVALID. */
static void begin_call(struct call *c, int rv) {
    struct http_openai *h = c->h;
    struct errbuf eb = {{0}};
    if (c->is_gone || rv == ERR_CANCELED) {
        fail(c, ERR_CANCELED, NULL);
        finish_call(c);
        return;
    }
    if (rv < 0) {
        http_reply_error(c->http, c->err.status, "invalid_request_error", c->err.param, NULL, "%s",
                         c->err.text.text);
        call_free(c);
        return;
    }
    if (!api_serves(h, c->req.model)) {
        api_reply_no_model(h, c->http, c->req.model);
        call_free(c);
        return;
    }
    c->last_write_ns = clock_mono_ns(h->cfg.clk);
    rv = make_arrays(c);
    if (rv == 0 && c->req.kind == API_CHAT)
        rv = h->cfg.chat
                 ? chat_template_render(h->cfg.chat, c->req.msgs, c->req.n_msgs, true, &c->prompt,
                                        &eb)
                 : err_set(&eb, ERR_UNSUPPORTED, "this model has no usable chat template: %s",
                           h->cfg.chat_error ? h->cfg.chat_error : "none in the file");
    if (rv < 0) {
        fail(c, rv, &eb);
        finish_call(c);
        return;
    }
    fill_render(c);
    submit_all(c);
}

static int run_parse(struct loop_job *j) {
    struct call *c = CONTAINER_OF(j, struct call, parse);
    return api_request_parse(&c->req, c->kind, http_req_body(c->http), &c->err);
}

static void on_parsed(struct loop_job *j, int rv) {
    begin_call(CONTAINER_OF(j, struct call, parse), rv);
}

static void start_call(struct http_openai *h, struct http_req *r, enum api_kind kind) {
    const struct api_key *key;
    if (!api_authorize(h, r, &key))
        return;
    struct call *c = calloc(1, sizeof(*c));
    if (!c) {
        http_reply_error(r, 500, "server_error", NULL, NULL, "out of memory");
        return;
    }
    c->h = h;
    c->http = r;
    c->kind = kind;
    c->has_salt = key && key->has_salt;
    if (c->has_salt)
        memcpy(c->salt, key->salt, sizeof(c->salt));
    list_push_back(&h->calls, &c->link);
    http_req_on_gone(r, on_gone, c);
    c->parse = (struct loop_job){.run = run_parse, .done = on_parsed};
    if (http_req_body(r).n <= API_INLINE_BYTES || !h->cfg.work_long) {
        begin_call(c, run_parse(&c->parse));
        return;
    }
    int rv = loop_work_submit(h->cfg.work_long, &c->parse); /* the body stays as long as r */
    if (rv < 0) {
        fail(c, rv, NULL);
        finish_call(c);
    }
}

static void on_chat(struct http_req *r, void *arg) {
    start_call(arg, r, API_CHAT);
}
static void on_completion(struct http_req *r, void *arg) {
    start_call(arg, r, API_COMPLETION);
}

/* ---- life ---- */

int http_openai_reload(struct http_openai *h, struct errbuf *eb) {
    struct api_keys fresh;
    struct errbuf warn;
    if (!h->cfg.api_key_file || !*h->cfg.api_key_file)
        return 0;
    int rv = api_keys_load(&fresh, h->cfg.api_key_file, &warn, eb);
    if (warn.text[0])
        log_warn(h->cfg.log, "a file with secrets is open to others", "what=%s", warn.text);
    if (rv < 0)
        return rv;
    api_keys_fini(&h->keys);
    h->keys = fresh;
    return 0;
}

int http_openai_open(struct http_openai **ret, const struct http_openai_cfg *cfg,
                     struct errbuf *eb) {
    struct http_openai *h = calloc(1, sizeof(*h));
    if (!h)
        return ERR_NOMEM;
    h->cfg = *cfg;
    h->cfg.clk = cfg->clk ? cfg->clk : clock_real();
    h->cfg.keepalive_ms = cfg->keepalive_ms ? cfg->keepalive_ms : 15000;
    h->started_s = clock_wall_ns(h->cfg.clk) / NS_PER_S;
    h->next_id = random_seed();
    list_init(&h->calls);
    int rv = http_openai_reload(h, eb);
    if (rv < 0) {
        free(h);
        return rv;
    }
    uv_timer_init(cfg->loop, &h->keepalive);
    h->keepalive.data = h;
    uint64_t period = MAX(h->cfg.keepalive_ms / 4, 10u);
    uv_timer_start(&h->keepalive, on_keepalive, period, period);
    *ret = h;
    return 0;
}

static void on_timer_closed(uv_handle_t *t) {
    struct http_openai *h = t->data;
    void (*cb)(void *arg) = h->close_cb;
    void *arg = h->close_arg;
    api_keys_fini(&h->keys);
    free(h);
    cb(arg);
}

void http_openai_close(struct http_openai *h, void (*cb)(void *arg), void *arg) {
    CHECK(list_empty(&h->calls));
    h->close_cb = cb;
    h->close_arg = arg;
    uv_close((uv_handle_t *)&h->keepalive, on_timer_closed);
}

void http_openai_routes(struct http_openai *h, struct http_route *routes) {
    static const struct {
        const char *method, *path;
        http_handler_cb cb;
    } rows[HTTP_OPENAI_ROUTES] = {
        {"POST", "/v1/chat/completions", on_chat},  {"POST", "/v1/completions", on_completion},
        {"GET", "/v1/models", api_on_models},       {"GET", "/models", api_on_models},
        {"GET", "/v1/models/*", api_on_model},      {"POST", "/tokenize", api_on_tokenize},
        {"POST", "/detokenize", api_on_detokenize},
    };
    for (size_t i = 0; i < HTTP_OPENAI_ROUTES; i++)
        routes[i] = (struct http_route){.method = rows[i].method,
                                        .path = rows[i].path,
                                        .cb = rows[i].cb,
                                        .arg = h,
                                        .on_head = api_on_head};
}
