#include "worker/api/openai_render.h"

#include <math.h>

#include "common/check.h"
#include "common/digest.h"

/* OpenAI's stand-in for minus infinity, which JSON cannot say. */
#define NO_LOGPROB (-9999.0)

/* ---- token texts ---- */

static struct str piece_of(const struct render_ctx *c, int32_t id) {
    struct tok_str s = tokenizer_piece(c->tok, id);
    return (struct str){s.p, s.len};
}

/* A token that is not UTF-8 by itself is spelled as its bytes, so that two different tokens never look
 * alike in a map (OpenAI's completions do the same). */
static void write_token_text(const struct render_ctx *c, struct json_w *w, int32_t id,
                             bool as_key) {
    struct str s = piece_of(c, id);
    struct strbuf b;
    strbuf_init(&b);
    if (str_is_utf8(s)) {
        strbuf_adds(&b, s);
    } else {
        strbuf_addz(&b, "bytes:");
        for (size_t i = 0; i < s.n; i++)
            strbuf_addf(&b, "\\x%02x", (unsigned char)s.p[i]);
    }
    strbuf_addc(&b, '\0');
    if (as_key) /* a key ends at a NUL byte, which a token may hold; nothing else would be written then */
        json_w_key(w, b.p ? b.p : "");
    else
        json_w_str(w, (struct str){b.p ? b.p : "", b.len ? b.len - 1 : 0});
    strbuf_fini(&b);
}

static uint64_t count_chars(struct str s) {
    uint64_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    return n;
}

static void write_logprob(struct json_w *w, float logprob) {
    json_w_num(w, isfinite(logprob) ? (double)logprob : NO_LOGPROB);
}

/* ---- chat logprobs: {"content": [{token, logprob, bytes, top_logprobs}]} ---- */

static void write_token_entry(const struct render_ctx *c, struct json_w *w, int32_t id,
                              float logprob) {
    struct str s = piece_of(c, id);
    json_w_key(w, "token");
    json_w_str(w, s);
    json_w_key(w, "logprob");
    write_logprob(w, logprob);
    json_w_key(w, "bytes");
    json_w_arr(w);
    for (size_t i = 0; i < s.n; i++)
        json_w_int(w, (unsigned char)s.p[i]);
    json_w_end(w);
}

static void write_chat_logprobs(const struct render_ctx *c, struct json_w *w,
                                const struct gen_token *tok, size_t n) {
    json_w_key(w, "logprobs");
    if (!c->logprobs) {
        json_w_null(w);
        return;
    }
    json_w_obj(w);
    json_w_key(w, "content");
    json_w_arr(w);
    for (size_t i = 0; i < n; i++) {
        json_w_obj(w);
        write_token_entry(c, w, tok[i].id, tok[i].lp.logprob);
        json_w_key(w, "top_logprobs");
        json_w_arr(w);
        for (uint32_t k = 0; k < tok[i].lp.n_top; k++) {
            json_w_obj(w);
            write_token_entry(c, w, tok[i].lp.top[k].id, tok[i].lp.top[k].logprob);
            json_w_end(w);
        }
        json_w_end(w);
        json_w_end(w);
    }
    json_w_end(w);
    json_w_key(w, "refusal");
    json_w_null(w);
    json_w_end(w);
}

/* ---- completion logprobs: four parallel lists ---- */

struct lp_run { /* tokens with log-probabilities, from the prompt or generated */
    const int32_t *ids;
    const struct gen_token *tok; /* used when ids is NULL */
    const struct gen_logprob *lp;
    size_t n;
};

static int32_t run_id(const struct lp_run *r, size_t i) {
    return r->ids ? r->ids[i] : r->tok[i].id;
}
static const struct gen_logprob *run_lp(const struct lp_run *r, size_t i) {
    if (r->ids)
        return i == 0 || !r->lp ? NULL : &r->lp[i]; /* nothing predicts a text's first token */
    return &r->tok[i].lp;
}

static void write_top_map(const struct render_ctx *c, struct json_w *w,
                          const struct gen_logprob *lp) {
    if (!lp) {
        json_w_null(w);
        return;
    }
    json_w_obj(w);
    for (uint32_t k = 0; k < lp->n_top; k++) {
        write_token_text(c, w, lp->top[k].id, true);
        write_logprob(w, lp->top[k].logprob);
    }
    json_w_end(w);
}

/* Code points that token i of run r adds to the text. BOS in front of a prompt that came as text is not in
 * it, nor is the space that SPM puts there; and a control token that was generated has no text. */
static uint64_t token_chars(const struct render_ctx *c, const struct render_choice *ch,
                            const struct lp_run *r, size_t i) {
    int32_t id = run_id(r, i);
    struct str s = piece_of(c, id);
    bool as_text = ch->prompt.p || !r->ids;
    if (as_text && tokenizer_is_control(c->tok, id))
        return 0;
    uint64_t n = count_chars(s);
    bool is_first = r->ids && ch->chars == 0 && s.n && s.p[0] == ' ';
    return is_first && ch->prompt.n && ch->prompt.p[0] != ' ' ? n - 1 : n;
}

static void write_completion_logprobs(const struct render_ctx *c, struct json_w *w,
                                      const struct lp_run *runs, size_t n_runs,
                                      struct render_choice *ch) {
    json_w_key(w, "logprobs");
    if (!c->logprobs) {
        json_w_null(w);
        return;
    }
    json_w_obj(w);
    json_w_key(w, "tokens");
    json_w_arr(w);
    for (size_t r = 0; r < n_runs; r++)
        for (size_t i = 0; i < runs[r].n; i++)
            write_token_text(c, w, run_id(&runs[r], i), false);
    json_w_end(w);
    json_w_key(w, "token_logprobs");
    json_w_arr(w);
    for (size_t r = 0; r < n_runs; r++)
        for (size_t i = 0; i < runs[r].n; i++) {
            const struct gen_logprob *lp = run_lp(&runs[r], i);
            if (lp)
                write_logprob(w, lp->logprob);
            else
                json_w_null(w);
        }
    json_w_end(w);
    json_w_key(w, "top_logprobs");
    json_w_arr(w);
    for (size_t r = 0; r < n_runs; r++)
        for (size_t i = 0; i < runs[r].n; i++)
            write_top_map(c, w, run_lp(&runs[r], i));
    json_w_end(w);
    json_w_key(w, "text_offset");
    json_w_arr(w);
    for (size_t r = 0; r < n_runs; r++)
        for (size_t i = 0; i < runs[r].n; i++) {
            json_w_u64(w, ch->chars);
            ch->chars += token_chars(c, ch, &runs[r], i);
        }
    json_w_end(w);
    json_w_end(w);
}

/* ---- frame of every answer ---- */

static const char *object_name(const struct render_ctx *c, bool is_chunk) {
    if (c->kind == API_COMPLETION)
        return "text_completion";
    return is_chunk ? "chat.completion.chunk" : "chat.completion";
}

static void begin(const struct render_ctx *c, struct json_w *w, struct strbuf *out, bool is_chunk) {
    if (is_chunk)
        strbuf_addz(out, "data: ");
    json_w_init(w, out);
    json_w_obj(w);
    json_w_kstr(w, "id", str_of(c->id));
    json_w_kstr(w, "object", str_of(object_name(c, is_chunk)));
    json_w_kint(w, "created", (int64_t)c->created);
    json_w_kstr(w, "model", str_of(c->model));
}

static void end_chunk(struct json_w *w, struct strbuf *out) {
    json_w_end(w);
    strbuf_addz(out, "\n\n");
}

static const char *finish_text(enum finish_reason why) {
    return why == FINISH_LENGTH ? "length" : "stop";
}

static void write_finish(struct json_w *w, enum finish_reason why) {
    json_w_key(w, "finish_reason");
    if (why == FINISH_NONE)
        json_w_null(w);
    else
        json_w_strz(w, finish_text(why));
}

static void write_usage(struct json_w *w, const struct render_choice *ch, size_t n) {
    uint64_t prompt = 0, completion = 0, cached = 0;
    for (size_t i = 0; i < n; i++) {
        prompt += ch[i].req->usage.n_prompt;
        completion += ch[i].req->usage.n_completion;
        cached += gen_usage_cached(&ch[i].req->usage);
    }
    json_w_key(w, "usage");
    json_w_obj(w);
    json_w_kint(w, "prompt_tokens", (int64_t)prompt);
    json_w_kint(w, "completion_tokens", (int64_t)completion);
    json_w_kint(w, "total_tokens", (int64_t)(prompt + completion));
    json_w_key(w, "prompt_tokens_details");
    json_w_obj(w);
    json_w_kint(w, "cached_tokens", (int64_t)cached);
    json_w_end(w);
    json_w_end(w);
}

/* The choice's so far. What came from which source is known at the end. */
static void write_usage_so_far(struct json_w *w, const struct render_choice *ch) {
    int64_t prompt = ch->req->usage.n_prompt, completion = ch->n_tokens;
    json_w_key(w, "usage");
    json_w_obj(w);
    json_w_kint(w, "prompt_tokens", prompt);
    json_w_kint(w, "completion_tokens", completion);
    json_w_kint(w, "total_tokens", prompt + completion);
    json_w_end(w);
}

/* Ours beside OpenAI's: who answered, where the prompt's rows came from. Of the first choice. */
static void write_extra(const struct render_ctx *c, struct json_w *w, const struct gen_request *r) {
    const struct gen_usage *u = &r->usage;
    json_w_key(w, "incipit");
    json_w_obj(w);
    json_w_kstr(w, "worker", str_of(c->worker));
    json_w_key(w, "prompt_tokens_by_source");
    json_w_obj(w);
    json_w_kint(w, "local", u->n_local);
    json_w_kint(w, "remote", u->n_remote);
    json_w_kint(w, "computed", (int64_t)u->n_prompt - u->n_local - u->n_remote);
    json_w_end(w);
    if (u->first_token_ns > u->submitted_ns) {
        json_w_key(w, "ttft_ms");
        json_w_num(w, (double)((u->first_token_ns - u->submitted_ns) / 1000) / 1000.0);
    }
    if (c->debug_logits && u->has_logits_digest) {
        char hex[2 * DIGEST_BYTES + 1];
        digest_hex(u->logits_digest, DIGEST_BYTES, hex);
        json_w_kstr(w, "first_logits_sha256", str_of(hex));
    }
    json_w_end(w);
}

/* ---- whole answers ---- */

static void add_prompt_text(const struct render_ctx *c, const struct render_choice *ch,
                            struct strbuf *out) {
    const struct gen_request *r = ch->req;
    struct tok_text t = {0};
    if (ch->prompt.p) {
        strbuf_adds(out, ch->prompt);
        return;
    }
    struct errbuf eb;
    if (tokenizer_decode(c->tok, r->prompt, r->usage.n_prompt, true, &t, &eb) == 0)
        strbuf_add(out, t.p, t.len);
    tok_text_fini(&t);
}

static void write_choice(const struct render_ctx *c, struct json_w *w, struct render_choice *ch,
                         enum finish_reason why) {
    const struct gen_request *r = ch->req;
    struct strbuf text;
    strbuf_init(&text);
    if (c->echo)
        add_prompt_text(c, ch, &text);
    for (uint32_t i = 0; i < r->usage.n_completion; i++)
        strbuf_add(&text, r->out[i].text, r->out[i].text_len);
    json_w_obj(w);
    json_w_kint(w, "index", ch->index);
    if (c->kind == API_CHAT) {
        json_w_key(w, "message");
        json_w_obj(w);
        json_w_kstr(w, "role", STR("assistant"));
        json_w_kstr(w, "content", strbuf_view(&text));
        json_w_key(w, "refusal");
        json_w_null(w);
        json_w_end(w);
        write_chat_logprobs(c, w, r->out, r->usage.n_completion);
    } else {
        json_w_kstr(w, "text", strbuf_view(&text));
        struct lp_run runs[2] = {
            {.ids = r->prompt, .lp = r->prompt_lp, .n = c->echo ? r->usage.n_prompt : 0},
            {.tok = r->out, .n = r->usage.n_completion}};
        write_completion_logprobs(c, w, runs, ARRAY_LEN(runs), ch);
    }
    write_finish(w, why);
    json_w_end(w);
    strbuf_fini(&text);
}

void render_answer(const struct render_ctx *c, struct render_choice *choices, size_t n,
                   const enum finish_reason *why, struct strbuf *out) {
    struct json_w w;
    begin(c, &w, out, false);
    json_w_key(&w, "choices");
    json_w_arr(&w);
    for (size_t i = 0; i < n; i++)
        write_choice(c, &w, &choices[i], why[i]);
    json_w_end(&w);
    write_usage(&w, choices, n);
    write_extra(c, &w, choices[0].req);
    json_w_end(&w);
}

/* ---- chunks ---- */

static void begin_choice(const struct render_ctx *c, struct json_w *w, struct strbuf *out,
                         uint32_t index) {
    begin(c, w, out, true);
    json_w_key(w, "choices");
    json_w_arr(w);
    json_w_obj(w);
    json_w_kint(w, "index", index);
}

void render_chunk_role(const struct render_ctx *c, uint32_t index, struct strbuf *out) {
    struct json_w w;
    begin_choice(c, &w, out, index);
    json_w_key(&w, "delta");
    json_w_obj(&w);
    json_w_kstr(&w, "role", STR("assistant"));
    json_w_kstr(&w, "content", STR(""));
    json_w_end(&w);
    json_w_key(&w, "logprobs");
    json_w_null(&w);
    write_finish(&w, FINISH_NONE);
    json_w_end(&w);
    json_w_end(&w);
    end_chunk(&w, out);
}

void render_chunk_prompt(const struct render_ctx *c, struct render_choice *ch, struct strbuf *out) {
    const struct gen_request *r = ch->req;
    struct json_w w;
    struct strbuf text;
    strbuf_init(&text);
    add_prompt_text(c, ch, &text);
    begin_choice(c, &w, out, ch->index);
    json_w_kstr(&w, "text", strbuf_view(&text));
    struct lp_run run = {.ids = r->prompt, .lp = r->prompt_lp, .n = r->usage.n_prompt};
    write_completion_logprobs(c, &w, &run, 1, ch);
    write_finish(&w, FINISH_NONE);
    json_w_end(&w);
    json_w_end(&w);
    end_chunk(&w, out);
    strbuf_fini(&text);
}

void render_chunk_tokens(const struct render_ctx *c, struct render_choice *ch,
                         const struct gen_token *tok, size_t n, struct strbuf *out) {
    struct strbuf text;
    strbuf_init(&text);
    ch->n_tokens += (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        strbuf_add(&text, tok[i].text, tok[i].text_len);
    if (text.len == 0 &&
        !c->logprobs) { /* half a character, or a possible stop string: nothing to say */
        strbuf_fini(&text);
        return;
    }
    struct json_w w;
    begin_choice(c, &w, out, ch->index);
    if (c->kind == API_CHAT) {
        json_w_key(&w, "delta");
        json_w_obj(&w);
        json_w_kstr(&w, "content", strbuf_view(&text));
        json_w_end(&w);
        write_chat_logprobs(c, &w, tok, n);
    } else {
        json_w_kstr(&w, "text", strbuf_view(&text));
        struct lp_run run = {.tok = tok, .n = n};
        write_completion_logprobs(c, &w, &run, 1, ch);
    }
    write_finish(&w, FINISH_NONE);
    json_w_end(&w);
    json_w_end(&w);
    if (c->continuous_usage)
        write_usage_so_far(&w, ch);
    end_chunk(&w, out);
    strbuf_fini(&text);
}

void render_chunk_finish(const struct render_ctx *c, const struct render_choice *ch,
                         enum finish_reason why, struct strbuf *out) {
    struct json_w w;
    begin_choice(c, &w, out, ch->index);
    if (c->kind == API_CHAT) {
        json_w_key(&w, "delta");
        json_w_obj(&w);
        json_w_end(&w);
    } else {
        json_w_kstr(&w, "text", STR(""));
    }
    json_w_key(&w, "logprobs");
    json_w_null(&w);
    write_finish(&w, why);
    json_w_end(&w);
    json_w_end(&w);
    write_extra(c, &w, ch->req);
    end_chunk(&w, out);
}

void render_chunk_usage(const struct render_ctx *c, const struct render_choice *choices, size_t n,
                        struct strbuf *out) {
    struct json_w w;
    begin(c, &w, out, true);
    json_w_key(&w, "choices");
    json_w_arr(&w);
    json_w_end(&w);
    write_usage(&w, choices, n);
    end_chunk(&w, out);
}

void render_chunk_error(const char *type, const char *text, struct strbuf *out) {
    struct json_w w;
    strbuf_addz(out, "data: ");
    json_w_init(&w, out);
    json_w_obj(&w);
    json_w_key(&w, "error");
    json_w_obj(&w);
    json_w_kstr(&w, "message", str_of(text));
    json_w_kstr(&w, "type", str_of(type));
    json_w_end(&w);
    end_chunk(&w, out);
}

void render_done(struct strbuf *out) {
    strbuf_addz(out, "data: [DONE]\n\n");
}
