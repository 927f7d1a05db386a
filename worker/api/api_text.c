/* /tokenize and /detokenize, with vLLM's and llama-server's field names. The work runs in the pool: a
 * megabyte of text must not hold up the loop. User text never becomes a control token here either. */
#include "worker/api/api_priv.h"

struct text_job {
    struct loop_job job;
    struct http_openai *h;
    struct http_req *http;
    struct json_t *doc;
    struct api_request chat; /* messages */
    struct chat_prompt prompt;
    struct tok_part part, *parts;
    size_t n_parts;
    bool add_special, with_pieces, with_strs;
    int32_t *ids_in; /* detokenize */
    size_t n_in;
    struct tok_ids ids;
    struct tok_text text;
    struct errbuf eb;
    void (*begin)(struct text_job *j); /* once doc is there */
};

static void job_free(struct text_job *j) {
    chat_prompt_fini(&j->prompt);
    api_request_fini(&j->chat);
    tok_ids_fini(&j->ids);
    tok_text_fini(&j->text);
    free(j->ids_in);
    json_free(j->doc);
    free(j);
}

static void submit(struct text_job *j) {
    const struct http_openai_cfg *c = &j->h->cfg;
    bool is_long = c->work_long && http_req_body(j->http).n > GEN_LONG_TEXT_BYTES;
    int rv = loop_work_submit(is_long ? c->work_long : c->work, &j->job);
    if (rv == 0)
        return;
    (void)http_reply_header(j->http, "Retry-After", "1");
    http_reply_error(j->http, rv == ERR_BUSY ? 429 : 503, "server_error", NULL, NULL, "%s",
                     err_text(rv));
    job_free(j);
}

/* The body is parsed: rv. */
static void begin_job(struct text_job *j, int rv) {
    struct str model = json_text(json_member(j->doc, "model"));
    if (rv < 0 || json_kind(j->doc) != JSON_KIND_OBJECT) {
        http_reply_error(j->http, rv == ERR_CANCELED ? 503 : 400, "invalid_request_error", NULL,
                         NULL, "the body must be a JSON object: %s", j->eb.text);
        job_free(j);
    } else if (!api_serves(j->h, model)) {
        api_reply_no_model(j->h, j->http, model);
        job_free(j);
    } else {
        j->begin(j);
    }
}

static int run_parse(struct loop_job *job) {
    struct text_job *j = CONTAINER_OF(job, struct text_job, job);
    return json_parse(http_req_body(j->http), &j->doc, &j->eb);
}

static void on_parsed(struct loop_job *job, int rv) {
    begin_job(CONTAINER_OF(job, struct text_job, job), rv);
}

static void job_start(struct http_openai *h, struct http_req *r,
                      void (*begin)(struct text_job *j)) {
    const struct api_key *key;
    if (!api_authorize(h, r, &key))
        return;
    struct text_job *j = calloc(1, sizeof(*j));
    if (!j) {
        http_reply_error(r, 500, "server_error", NULL, NULL, "out of memory");
        return;
    }
    j->h = h;
    j->http = r;
    j->begin = begin;
    j->job = (struct loop_job){.run = run_parse, .done = on_parsed};
    if (http_req_body(r).n <= API_INLINE_BYTES || !h->cfg.work_long)
        begin_job(j, run_parse(&j->job));
    else
        submit(j);
}

static void refuse(struct text_job *j, const struct api_error *e) {
    http_reply_error(j->http, 400, "invalid_request_error", e->param, NULL, "%s", e->text.text);
    job_free(j);
}

static bool reply_if_failed(struct text_job *j, int rv) {
    if (rv >= 0)
        return false;
    http_reply_error(j->http, rv == ERR_CANCELED ? 503 : 400, "invalid_request_error", NULL, NULL,
                     "%s", j->eb.text[0] ? j->eb.text : err_text(rv));
    job_free(j);
    return true;
}

/* ---- /tokenize ---- */

static int run_encode(struct loop_job *job) {
    struct text_job *j = CONTAINER_OF(job, struct text_job, job);
    return tokenizer_encode(j->h->cfg.tok, j->parts, j->n_parts, j->add_special, &j->ids, &j->eb);
}

static void write_ids(struct text_job *j, struct json_w *w) {
    json_w_arr(w);
    for (size_t i = 0; i < j->ids.n; i++) {
        if (!j->with_pieces) {
            json_w_int(w, j->ids.id[i]);
            continue;
        }
        struct tok_str s = tokenizer_piece(j->h->cfg.tok, j->ids.id[i]);
        json_w_obj(w);
        json_w_kint(w, "id", j->ids.id[i]);
        json_w_key(w, "piece");
        if (str_is_utf8((struct str){s.p, s.len})) {
            json_w_str(w, (struct str){s.p, s.len});
        } else { /* half a character: its bytes, as llama-server gives them */
            json_w_arr(w);
            for (uint32_t b = 0; b < s.len; b++)
                json_w_int(w, (unsigned char)s.p[b]);
            json_w_end(w);
        }
        json_w_end(w);
    }
    json_w_end(w);
}

/* vLLM's token_strs; half a character shows as U+FFFD. */
static void write_strs(const struct text_job *j, struct json_w *w) {
    json_w_key(w, "token_strs");
    json_w_arr(w);
    for (size_t i = 0; i < j->ids.n; i++) {
        struct tok_str s = tokenizer_piece(j->h->cfg.tok, j->ids.id[i]);
        json_w_str(w, (struct str){s.p, s.len});
    }
    json_w_end(w);
}

static void on_encoded(struct loop_job *job, int rv) {
    struct text_job *j = CONTAINER_OF(job, struct text_job, job);
    if (reply_if_failed(j, rv))
        return;
    struct strbuf out;
    struct json_w w;
    strbuf_init(&out);
    json_w_init(&w, &out);
    json_w_obj(&w);
    json_w_kint(&w, "count", (int64_t)j->ids.n);
    json_w_kint(&w, "max_model_len", j->h->cfg.max_ctx);
    json_w_key(&w, "tokens");
    write_ids(j, &w);
    if (j->with_strs)
        write_strs(j, &w);
    json_w_end(&w);
    http_reply_json(j->http, 200, strbuf_view(&out));
    strbuf_fini(&out);
    job_free(j);
}

static int get_flag(const struct text_job *j, const char *name, bool *ret, struct api_error *e) {
    const struct json_t *v = json_member(j->doc, name);
    if (json_kind(v) == JSON_KIND_NONE || json_kind(v) == JSON_KIND_NULL)
        return 0;
    if (json_kind(v) != JSON_KIND_BOOL)
        return api_fail(e, name, "'%s' must be true or false", name);
    *ret = json_truth(v);
    return 0;
}

static int check_fields(const struct text_job *j, const char *const *known, size_t n,
                        struct api_error *e) {
    for (void *it = json_iter(j->doc); it; it = json_iter_next(j->doc, it)) {
        bool ok = false;
        for (size_t i = 0; i < n; i++)
            ok |= strcmp(known[i], json_iter_key(it)) == 0;
        if (!ok)
            return api_fail(e, json_iter_key(it), "'%s' is not supported", json_iter_key(it));
    }
    return 0;
}

static int parse_chat_source(struct text_job *j, const struct json_t *messages,
                             struct api_error *e) {
    bool add_generation = true;
    struct errbuf eb = {{0}};
    int rv = get_flag(j, "add_generation_prompt", &add_generation, e);
    if (rv == 0)
        rv = api_parse_messages(&j->chat, messages, e);
    if (rv < 0)
        return rv;
    if (!j->h->cfg.chat)
        return api_fail(e, "messages", "this model has no usable chat template: %s",
                        j->h->cfg.chat_error ? j->h->cfg.chat_error : "none in the file");
    rv = chat_template_render(j->h->cfg.chat, j->chat.msgs, j->chat.n_msgs, add_generation,
                              &j->prompt, &eb);
    if (rv < 0)
        return api_fail(e, "messages", "%s", eb.text);
    j->parts = j->prompt.parts;
    j->n_parts = j->prompt.n;
    j->add_special = true; /* as a generation does; a template that wrote BOS itself keeps one */
    return 0;
}

static int parse_tokenize(struct text_job *j, struct api_error *e) {
    static const char *const known[] = {
        "prompt",      "content",          "messages",    "add_special_tokens",
        "add_special", "parse_special",    "with_pieces", "add_generation_prompt",
        "model",       "return_token_strs"};
    int rv = check_fields(j, known, ARRAY_LEN(known), e);
    if (rv < 0)
        return rv;
    const struct json_t *messages = json_member(j->doc, "messages");
    const struct json_t *prompt = json_member(j->doc, "prompt"),
                        *content = json_member(j->doc, "content");
    bool parse_special = false;
    rv = get_flag(j, "with_pieces", &j->with_pieces, e);
    if (rv == 0)
        rv = get_flag(j, "return_token_strs", &j->with_strs, e);
    if (rv == 0)
        rv = get_flag(j, "parse_special", &parse_special, e);
    if (rv < 0)
        return rv;
    if (parse_special)
        return api_fail(e, "parse_special",
                        "'parse_special': text from outside never becomes a control token");
    if (json_kind(messages) == JSON_KIND_ARRAY)
        return parse_chat_source(j, messages, e);
    const struct json_t *text = json_kind(prompt) == JSON_KIND_STRING ? prompt : content;
    if (json_kind(text) != JSON_KIND_STRING)
        return api_fail(e, NULL, "one of 'prompt', 'content' (text) or 'messages' is needed");
    j->add_special = text == prompt; /* vLLM's default with its name, llama-server's with its own */
    rv = get_flag(j, "add_special_tokens", &j->add_special, e);
    if (rv == 0)
        rv = get_flag(j, "add_special", &j->add_special, e);
    struct str s = json_text(text);
    j->part = (struct tok_part){s.p, s.n, TOK_ORIGIN_USER};
    j->parts = &j->part;
    j->n_parts = 1;
    return rv;
}

static void begin_tokenize(struct text_job *j) {
    struct api_error e = {.status = 400};
    if (parse_tokenize(j, &e) < 0) {
        refuse(j, &e);
        return;
    }
    j->ids.max = 8 * (size_t)j->h->cfg.max_ctx +
                 64; /* no text of use is longer, and a thread is kept by it */
    j->job.run = run_encode;
    j->job.done = on_encoded;
    submit(j);
}

void api_on_tokenize(struct http_req *r, void *arg) {
    job_start(arg, r, begin_tokenize);
}

/* ---- /detokenize ---- */

static int run_decode(struct loop_job *job) {
    struct text_job *j = CONTAINER_OF(job, struct text_job, job);
    return tokenizer_decode(j->h->cfg.tok, j->ids_in, j->n_in, true, &j->text, &j->eb);
}

static void on_decoded(struct loop_job *job, int rv) {
    struct text_job *j = CONTAINER_OF(job, struct text_job, job);
    if (reply_if_failed(j, rv))
        return;
    struct strbuf out;
    struct json_w w;
    struct str text = {j->text.p ? j->text.p : "", j->text.len};
    strbuf_init(&out);
    json_w_init(&w, &out);
    json_w_obj(&w);
    json_w_kstr(&w, "prompt", text);  /* vLLM's name */
    json_w_kstr(&w, "content", text); /* llama-server's */
    json_w_end(&w);
    http_reply_json(j->http, 200, strbuf_view(&out));
    strbuf_fini(&out);
    job_free(j);
}

static void begin_detokenize(struct text_job *j) {
    static const char *const known[] = {"tokens", "model"};
    struct api_error e = {.status = 400};
    const struct json_t *tokens = json_member(j->doc, "tokens");
    int rv = check_fields(j, known, ARRAY_LEN(known), &e);
    if (rv == 0 && json_kind(tokens) != JSON_KIND_ARRAY)
        rv = api_fail(&e, "tokens", "'tokens' must be an array of token ids");
    if (rv == 0)
        rv = api_parse_ids(tokens, "tokens", &j->ids_in, &j->n_in, &e);
    if (rv < 0) {
        refuse(j, &e);
        return;
    }
    j->job.run = run_decode;
    j->job.done = on_decoded;
    submit(j);
}

void api_on_detokenize(struct http_req *r, void *arg) {
    job_start(arg, r, begin_detokenize);
}
