#include "worker/api/openai_parse.h"

#include <math.h>

#include "common/check.h"

int api_fail(struct api_error *e, const char *field, const char *fmt, ...) {
    va_list ap;
    e->status = 400;
    e->param = NULL;
    if (field) {
        snprintf(e->field, sizeof(e->field), "%s", field);
        e->param = e->field;
    }
    va_start(ap, fmt);
    vsnprintf(e->text.text, sizeof(e->text.text), fmt, ap);
    va_end(ap);
    return ERR_INVALID;
}

static int wrong_kind(struct api_error *e, const char *field, const char *want,
                      const struct json_t *v) {
    return api_fail(e, field, "'%s' must be %s, not %s", field, want, json_kind_name(json_kind(v)));
}

/* ---- values ---- */

static int get_bool(const struct json_t *v, const char *f, bool *ret, struct api_error *e) {
    if (json_kind(v) != JSON_KIND_BOOL)
        return wrong_kind(e, f, "true or false", v);
    *ret = json_truth(v);
    return 0;
}

static int get_float(const struct json_t *v, const char *f, double lo, double hi, float *ret,
                     struct api_error *e) {
    if (!json_is_num(v))
        return wrong_kind(e, f, "a number", v);
    double d = json_num(v);
    if (!(d >= lo && d <= hi))
        return api_fail(e, f, "'%s' must lie between %g and %g", f, lo, hi);
    *ret = (float)d;
    return 0;
}

/* 3.0 is 3, as encoders of languages without integers write it. */
static int get_int(const struct json_t *v, const char *f, int64_t *ret, struct api_error *e) {
    double d = json_num(v);
    if (json_kind(v) == JSON_KIND_REAL && d >= -0x1p53 && d <= 0x1p53 && floor(d) == d) {
        *ret = (int64_t)d;
        return 0;
    }
    if (json_kind(v) == JSON_KIND_REAL && floor(d) == d)
        return api_fail(e, f, "'%s' is beyond what an integer may be", f);
    if (json_kind(v) != JSON_KIND_INT)
        return wrong_kind(e, f, "an integer", v);
    *ret = json_int(v);
    return 0;
}

static int get_u32(const struct json_t *v, const char *f, uint32_t lo, uint32_t hi, uint32_t *ret,
                   struct api_error *e) {
    int64_t i = 0;
    int rv = get_int(v, f, &i, e);
    if (rv < 0)
        return rv;
    if (i < lo || i > hi)
        return api_fail(e, f, "'%s' must lie between %u and %u", f, lo, hi);
    *ret = (uint32_t)i;
    return 0;
}

int api_parse_ids(const struct json_t *arr, const char *field, int32_t **ret, size_t *ret_n,
                  struct api_error *e) {
    size_t n = json_count(arr);
    int32_t *ids = alloc_array(n, sizeof(*ids));
    if (!ids)
        return api_fail(e, field, "out of memory");
    for (size_t i = 0; i < n; i++) {
        int64_t id = -1;
        if (get_int(json_item(arr, i), field, &id, e) < 0 || id < 0 || id > INT32_MAX) {
            free(ids);
            return api_fail(e, field, "%s[%zu] is not a token id", field, i);
        }
        ids[i] = (int32_t)id;
    }
    *ret = ids;
    *ret_n = n;
    return 0;
}

/* Asks for nothing, whatever the field: null, false, "", [] and {}. */
static bool says_nothing(const struct json_t *v) {
    switch (json_kind(v)) {
    case JSON_KIND_NONE:
    case JSON_KIND_NULL:
        return true;
    case JSON_KIND_BOOL:
        return !json_truth(v);
    case JSON_KIND_STRING:
        return json_text(v).n == 0;
    case JSON_KIND_ARRAY:
    case JSON_KIND_OBJECT:
        return json_count(v) == 0;
    default:
        return false;
    }
}

/* ---- messages ---- */

/* An error at messages[at], the rest of the path behind it. */
static int fail_at(struct api_error *e, size_t at, const char *path, const char *why) {
    char field[sizeof(e->field)];
    snprintf(field, sizeof(field), "messages[%zu]%s", at, path);
    return api_fail(e, field, "%s %s", field, why);
}

static bool is_text_part(struct str type) {
    return str_eq(type, STR("text")) || str_eq(type, STR("input_text")) ||
           str_eq(type, STR("output_text"));
}

/* Text parts are put together with a line end between them, as other servers do. */
static int join_parts(struct api_request *r, const struct json_t *arr, size_t at,
                      struct tok_str *ret, struct api_error *e) {
    struct strbuf b;
    strbuf_init(&b);
    for (size_t i = 0; i < json_count(arr); i++) {
        const struct json_t *part = json_item(arr, i);
        if (!is_text_part(json_text(json_member(part, "type"))) ||
            json_kind(json_member(part, "text")) != JSON_KIND_STRING) {
            char path[40];
            strbuf_fini(&b);
            snprintf(path, sizeof(path), ".content[%zu]", i);
            return fail_at(e, at, path, "is not supported: only parts of type 'text' are");
        }
        if (i)
            strbuf_addc(&b, '\n');
        strbuf_adds(&b, json_text(json_member(part, "text")));
    }
    if (b.oom) {
        strbuf_fini(&b);
        return api_fail(e, NULL, "out of memory");
    }
    *ret = (struct tok_str){.len = (uint32_t)b.len};
    char *text = strbuf_steal(&b);
    ret->p = text ? text : "";
    if (text)
        r->joined[r->n_joined++] = text;
    return 0;
}

/* What a template, or a server for this model, might make text of. Any other key of a message is a
 * client's own note (id, date, annotations): no template reads it, so it can't change the output. */
static int check_message_fields(const struct json_t *msg, size_t at, struct api_error *e) {
    static const char *const telling[] = {"tool_calls",
                                          "tool_call_id",
                                          "function_call",
                                          "tool_responses",
                                          "reasoning_content",
                                          "reasoning",
                                          "reasoning_details",
                                          "thinking",
                                          "thinking_blocks",
                                          "refusal",
                                          "audio",
                                          "images",
                                          "videos",
                                          "documents",
                                          "tools",
                                          "prefix",
                                          "partial"};
    for (void *it = json_iter(msg); it; it = json_iter_next(msg, it)) {
        const char *key = json_iter_key(it);
        bool is_telling = false;
        for (size_t i = 0; i < ARRAY_LEN(telling); i++)
            is_telling |= strcmp(key, telling[i]) == 0;
        if (is_telling && !says_nothing(json_iter_value(it))) {
            char path[40];
            snprintf(path, sizeof(path), ".%s", key);
            return fail_at(e, at, path, "is not supported");
        }
    }
    return 0;
}

static int parse_message(struct api_request *r, const struct json_t *msg, size_t at,
                         struct api_error *e) {
    if (json_kind(msg) != JSON_KIND_OBJECT)
        return fail_at(e, at, "", "must be an object");
    int rv = check_message_fields(msg, at, e);
    if (rv < 0)
        return rv;
    const struct json_t *role = json_member(msg, "role"), *content = json_member(msg, "content");
    if (json_kind(role) != JSON_KIND_STRING)
        return fail_at(e, at, ".role", "must be a string");
    struct chat_msg *m = &r->msgs[at];
    struct str s = json_text(role);
    if (str_eq(s, STR("developer"))) /* OpenAI's newer name of it */
        s = STR("system");
    m->role = (struct tok_str){s.p, (uint32_t)s.n};
    if (json_kind(content) == JSON_KIND_ARRAY)
        return join_parts(r, content, at, &m->content, e);
    bool is_absent = json_kind(content) == JSON_KIND_NONE || json_kind(content) == JSON_KIND_NULL;
    if (json_kind(content) != JSON_KIND_STRING && !(is_absent && str_eq(s, STR("assistant"))))
        return fail_at(e, at, ".content", "must be a string or an array of text parts");
    s = json_text(content); /* an assistant that said nothing: "" */
    m->content = (struct tok_str){s.p, (uint32_t)s.n};
    return 0;
}

int api_parse_messages(struct api_request *r, const struct json_t *arr, struct api_error *e) {
    size_t n = json_count(arr);
    if (json_kind(arr) != JSON_KIND_ARRAY || n == 0 || n > API_MAX_MESSAGES)
        return api_fail(e, "messages", "'messages' must be an array of 1 to %d messages",
                        API_MAX_MESSAGES);
    r->msgs = alloc_array(n, sizeof(*r->msgs));
    r->joined = alloc_array(n, sizeof(*r->joined));
    if (!r->msgs || !r->joined)
        return api_fail(e, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        int rv = parse_message(r, json_item(arr, i), i, e);
        if (rv < 0)
            return rv;
    }
    r->n_msgs = n;
    return 0;
}

/* ---- prompts: text, ids, or an array of either ---- */

static int parse_one_prompt(const struct json_t *v, struct api_prompt *ret, struct api_error *e) {
    if (json_kind(v) == JSON_KIND_STRING) {
        ret->text = json_text(v);
        return 0;
    }
    if (json_kind(v) != JSON_KIND_ARRAY || json_count(v) == 0)
        return api_fail(e, "prompt", "'prompt' must be text, token ids, or an array of either");
    return api_parse_ids(v, "prompt", &ret->ids, &ret->n_ids, e);
}

static int parse_prompt(struct api_request *r, const struct json_t *v, struct api_error *e) {
    bool is_list =
        json_kind(v) == JSON_KIND_ARRAY && json_count(v) > 0 && !json_is_num(json_item(v, 0));
    size_t n = is_list ? json_count(v) : 1;
    if (n > API_MAX_PROMPTS)
        return api_fail(e, "prompt", "%zu prompts in one request, at most %d are taken", n,
                        API_MAX_PROMPTS);
    r->prompts = alloc_array(n, sizeof(*r->prompts));
    if (!r->prompts)
        return api_fail(e, NULL, "out of memory");
    r->n_prompts = n;
    for (size_t i = 0; i < n; i++) {
        int rv = parse_one_prompt(is_list ? json_item(v, i) : v, &r->prompts[i], e);
        if (rv < 0)
            return rv;
    }
    return 0;
}

/* ---- fields ---- */

typedef int (*field_fn)(struct api_request *r, const struct json_t *v, const char *f,
                        struct api_error *e);

static int f_messages(struct api_request *r, const struct json_t *v, const char *f,
                      struct api_error *e) {
    (void)f;
    return api_parse_messages(r, v, e);
}
static int f_prompt(struct api_request *r, const struct json_t *v, const char *f,
                    struct api_error *e) {
    (void)f;
    return parse_prompt(r, v, e);
}
static int f_model(struct api_request *r, const struct json_t *v, const char *f,
                   struct api_error *e) {
    if (json_kind(v) != JSON_KIND_STRING)
        return wrong_kind(e, f, "a string", v);
    r->model = json_text(v);
    return 0;
}
static int f_temperature(struct api_request *r, const struct json_t *v, const char *f,
                         struct api_error *e) {
    return get_float(v, f, 0, 1e6, &r->sample.temperature, e);
}
static int f_top_p(struct api_request *r, const struct json_t *v, const char *f,
                   struct api_error *e) {
    int rv = get_float(v, f, 0, 1, &r->sample.top_p, e);
    if (rv == 0 && !(r->sample.top_p > 0))
        return api_fail(e, f, "'top_p' must be above 0");
    return rv;
}
static int f_min_p(struct api_request *r, const struct json_t *v, const char *f,
                   struct api_error *e) {
    return get_float(v, f, 0, 1, &r->sample.min_p, e);
}
static int f_top_k(struct api_request *r, const struct json_t *v, const char *f,
                   struct api_error *e) {
    if (json_is_num(v) && json_num(v) == -1) { /* vLLM's "off" */
        r->sample.top_k = 0;
        return 0;
    }
    return get_u32(v, f, 0, 1u << 24, &r->sample.top_k, e);
}
static int f_seed(struct api_request *r, const struct json_t *v, const char *f,
                  struct api_error *e) {
    int64_t seed = 0;
    int rv = get_int(v, f, &seed, e);
    r->sample.seed = (uint64_t)seed;
    r->seed_set = true;
    return rv;
}
static int f_max_tokens(struct api_request *r, const struct json_t *v, const char *f,
                        struct api_error *e) {
    bool again = r->kind == API_CHAT && r->max_tokens_set; /* chat has two names and no default */
    uint32_t was = r->max_tokens;
    if (json_is_num(v) && json_num(v) == -1) { /* llama-server's "up to the context" */
        r->max_tokens_set = false;
        return 0;
    }
    int rv = get_u32(v, f, 0, 1u << 24, &r->max_tokens, e);
    r->max_tokens_set = true;
    if (rv == 0 && again && r->max_tokens != was)
        return api_fail(e, f, "'max_tokens' and 'max_completion_tokens' differ");
    return rv;
}
static int f_stream(struct api_request *r, const struct json_t *v, const char *f,
                    struct api_error *e) {
    return get_bool(v, f, &r->stream, e);
}
static int f_stream_options(struct api_request *r, const struct json_t *v, const char *f,
                            struct api_error *e) {
    if (json_kind(v) != JSON_KIND_OBJECT)
        return wrong_kind(e, f, "an object", v);
    for (void *it = json_iter(v); it; it = json_iter_next(v, it)) {
        const char *key = json_iter_key(it);
        bool ignored = false, *to = NULL;
        char path[sizeof(e->field)];
        snprintf(path, sizeof(path), "%s.%s", f, key);
        if (strcmp(key, "include_usage") == 0)
            to = &r->include_usage;
        else if (strcmp(key, "continuous_usage_stats") == 0) /* vLLM's */
            to = &r->continuous_usage;
        else if (strcmp(key, "include_obfuscation") == 0) /* only pads the stream; we never pad */
            to = &ignored;
        else if (says_nothing(json_iter_value(it)))
            continue;
        else
            return api_fail(e, path, "'%s' is not supported", path);
        if (json_kind(json_iter_value(it)) == JSON_KIND_NULL)
            continue;
        int rv = get_bool(json_iter_value(it), path, to, e);
        if (rv < 0)
            return rv;
    }
    return 0;
}
static int add_stop(struct api_request *r, const struct json_t *v, const char *f,
                    struct api_error *e) {
    struct str s = json_text(v);
    if (says_nothing(v))
        return 0;
    if (json_kind(v) != JSON_KIND_STRING || s.n > STOP_MAX_BYTES)
        return api_fail(e, f, "'stop' takes strings of 1 to %d bytes", STOP_MAX_BYTES);
    if (r->n_stop == STOP_MAX_STRINGS)
        return api_fail(e, f, "'stop' takes at most %d strings", STOP_MAX_STRINGS);
    r->stop[r->n_stop++] = (struct stop_str){s.p, s.n};
    return 0;
}
static int f_stop(struct api_request *r, const struct json_t *v, const char *f,
                  struct api_error *e) {
    if (json_kind(v) != JSON_KIND_ARRAY)
        return add_stop(r, v, f, e);
    int rv = 0;
    for (size_t i = 0; i < json_count(v) && rv == 0; i++)
        rv = add_stop(r, json_item(v, i), f, e);
    return rv;
}
static int f_logprobs(struct api_request *r, const struct json_t *v, const char *f,
                      struct api_error *e) {
    if (r->kind == API_CHAT)
        return get_bool(v, f, &r->logprobs, e);
    if (says_nothing(v)) /* false: chat's spelling */
        return 0;
    r->logprobs = true;
    return get_u32(v, f, 0, SAMPLE_MAX_TOP, &r->n_top, e);
}
static int f_top_logprobs(struct api_request *r, const struct json_t *v, const char *f,
                          struct api_error *e) {
    return get_u32(v, f, 0, SAMPLE_MAX_TOP, &r->n_top, e);
}
static int f_echo(struct api_request *r, const struct json_t *v, const char *f,
                  struct api_error *e) {
    return get_bool(v, f, &r->echo, e);
}
static int f_ignore_eos(struct api_request *r, const struct json_t *v, const char *f,
                        struct api_error *e) {
    return get_bool(v, f, &r->ignore_eos, e);
}
static int f_add_special(struct api_request *r, const struct json_t *v, const char *f,
                         struct api_error *e) {
    return get_bool(v, f, &r->add_special_tokens, e);
}
static int f_harmless(struct api_request *r, const struct json_t *v, const char *f,
                      struct api_error *e) {
    (void)r, (void)v, (void)f, (void)e;
    return 0;
}

/* Neutral values: the field is taken when it says what we do anyway. */
static int refuse(struct api_error *e, const char *f, const char *only) {
    return api_fail(e, f, "'%s' is not supported%s%s", f, *only ? "; the only value taken is " : "",
                    only);
}
static int f_must_be_one(struct api_request *r, const struct json_t *v, const char *f,
                         struct api_error *e) {
    (void)r;
    return json_is_num(v) && json_num(v) == 1.0 ? 0 : refuse(e, f, "1");
}
static int f_must_be_zero(struct api_request *r, const struct json_t *v, const char *f,
                          struct api_error *e) {
    (void)r;
    return json_is_num(v) && json_num(v) == 0.0 ? 0 : refuse(e, f, "0");
}
static int f_must_be_true(struct api_request *r, const struct json_t *v, const char *f,
                          struct api_error *e) {
    (void)r;
    return json_kind(v) == JSON_KIND_BOOL && json_truth(v) ? 0 : refuse(e, f, "true");
}
static int f_must_be_false(struct api_request *r, const struct json_t *v, const char *f,
                           struct api_error *e) {
    (void)r;
    return json_kind(v) == JSON_KIND_BOOL && !json_truth(v) ? 0 : refuse(e, f, "false");
}
static int f_must_be_empty(struct api_request *r, const struct json_t *v, const char *f,
                           struct api_error *e) {
    (void)r;
    return says_nothing(v) ? 0 : refuse(e, f, "");
}
/* Judged together with tool_choice, in check_whole(). */
static int f_tools(struct api_request *r, const struct json_t *v, const char *f,
                   struct api_error *e) {
    (void)e;
    if (!says_nothing(v))
        r->tools = f;
    return 0;
}
static int f_response_format(struct api_request *r, const struct json_t *v, const char *f,
                             struct api_error *e) {
    (void)r;
    return str_eq(json_text(json_member(v, "type")), STR("text"))
               ? 0
               : refuse(e, f, "{\"type\": \"text\"}");
}
static int f_tool_choice(struct api_request *r, const struct json_t *v, const char *f,
                         struct api_error *e) {
    struct str s = json_text(v);
    r->no_tools |= str_eq(s, STR("none"));
    return str_eq(s, STR("none")) || str_eq(s, STR("auto")) ? 0 : refuse(e, f, "\"none\"");
}
static int f_modalities(struct api_request *r, const struct json_t *v, const char *f,
                        struct api_error *e) {
    (void)r;
    bool is_text = json_count(v) == 1 && str_eq(json_text(json_item(v, 0)), STR("text"));
    return is_text ? 0 : refuse(e, f, "[\"text\"]");
}
static int f_cache_salt(struct api_request *r, const struct json_t *v, const char *f,
                        struct api_error *e) {
    (void)r, (void)v;
    return api_fail(
        e, f,
        "'cache_salt' is not taken from requests: the server's key file sets a tenant's salt");
}

#define IN_CHAT 1u
#define IN_COMPLETION 2u
#define IN_BOTH 3u
static const struct {
    const char *name;
    unsigned kinds;
    field_fn fn;
} fields[] = {
    {"model", IN_BOTH, f_model},
    {"messages", IN_CHAT, f_messages},
    {"prompt", IN_COMPLETION, f_prompt},
    {"temperature", IN_BOTH, f_temperature},
    {"top_p", IN_BOTH, f_top_p},
    {"top_k", IN_BOTH, f_top_k},
    {"min_p", IN_BOTH, f_min_p},
    {"seed", IN_BOTH, f_seed},
    {"max_tokens", IN_BOTH, f_max_tokens},
    {"max_completion_tokens", IN_CHAT, f_max_tokens},
    {"stop", IN_BOTH, f_stop},
    {"stream", IN_BOTH, f_stream},
    {"stream_options", IN_BOTH, f_stream_options},
    {"logprobs", IN_BOTH, f_logprobs},
    {"top_logprobs", IN_CHAT, f_top_logprobs},
    {"echo", IN_COMPLETION, f_echo},
    {"ignore_eos", IN_BOTH, f_ignore_eos},
    {"add_special_tokens", IN_COMPLETION, f_add_special},
    /* cannot change the output: notes of the client, hints to a scheduler or a cache, ways to think or to
     * speak that no template of ours writes down */
    {"user", IN_BOTH, f_harmless},
    {"metadata", IN_BOTH, f_harmless},
    {"store", IN_BOTH, f_harmless},
    {"service_tier", IN_BOTH, f_harmless},
    {"safety_identifier", IN_BOTH, f_harmless},
    {"prompt_cache_key", IN_BOTH, f_harmless},
    {"prompt_cache_retention", IN_BOTH, f_harmless},
    {"parallel_tool_calls", IN_CHAT, f_harmless},
    {"prediction", IN_CHAT, f_harmless}, /* promises speed, never another text */
    {"reasoning_effort", IN_CHAT, f_harmless},
    {"verbosity", IN_CHAT, f_harmless},
    {"chat_template_kwargs", IN_CHAT, f_harmless},
    {"request_id", IN_BOTH, f_harmless},
    {"priority", IN_BOTH, f_harmless},
    {"cache_prompt", IN_BOTH, f_harmless}, /* llama-server's; output is the same either way */
    {"id_slot", IN_BOTH, f_harmless},
    {"spaces_between_special_tokens", IN_BOTH, f_harmless}, /* none are in an answer */
    /* taken with the one value that is what we do */
    {"n", IN_BOTH, f_must_be_one},
    {"best_of", IN_BOTH, f_must_be_one},
    {"repetition_penalty", IN_BOTH, f_must_be_one},
    {"repeat_penalty", IN_BOTH, f_must_be_one},
    {"length_penalty", IN_BOTH, f_must_be_one},
    {"typical_p", IN_BOTH, f_must_be_one},
    {"presence_penalty", IN_BOTH, f_must_be_zero},
    {"frequency_penalty", IN_BOTH, f_must_be_zero},
    {"min_tokens", IN_BOTH, f_must_be_zero},
    {"mirostat", IN_BOTH, f_must_be_zero},
    {"logit_bias", IN_BOTH, f_must_be_empty},
    {"tools", IN_CHAT, f_tools},
    {"functions", IN_CHAT, f_tools},
    {"documents", IN_CHAT, f_must_be_empty},
    {"stop_token_ids", IN_BOTH, f_must_be_empty},
    {"allowed_token_ids", IN_BOTH, f_must_be_empty},
    {"bad_words", IN_BOTH, f_must_be_empty},
    {"guided_json", IN_BOTH, f_must_be_empty},
    {"guided_regex", IN_BOTH, f_must_be_empty},
    {"guided_choice", IN_BOTH, f_must_be_empty},
    {"guided_grammar", IN_BOTH, f_must_be_empty},
    {"structured_outputs", IN_BOTH, f_must_be_empty},
    {"grammar", IN_BOTH, f_must_be_empty},
    {"json_schema", IN_BOTH, f_must_be_empty},
    {"chat_template", IN_CHAT, f_must_be_empty},
    {"suffix", IN_COMPLETION, f_must_be_empty},
    {"echo", IN_CHAT, f_must_be_false},
    {"add_special_tokens", IN_CHAT, f_must_be_false}, /* the template writes them */
    {"tool_choice", IN_CHAT, f_tool_choice},
    {"function_call", IN_CHAT, f_tool_choice},
    {"response_format", IN_BOTH, f_response_format},
    {"modalities", IN_CHAT, f_modalities},
    {"add_generation_prompt", IN_CHAT, f_must_be_true},
    {"continue_final_message", IN_CHAT, f_must_be_false},
    {"skip_special_tokens", IN_BOTH, f_must_be_true},
    {"include_stop_str_in_output", IN_BOTH, f_must_be_false},
    {"return_tokens_as_token_ids", IN_BOTH, f_must_be_false},
    {"return_token_ids", IN_BOTH, f_must_be_false},
    {"use_beam_search", IN_BOTH, f_must_be_false},
    {"cache_salt", IN_BOTH, f_cache_salt},
};

static int parse_field(struct api_request *r, const char *key, const struct json_t *v,
                       struct api_error *e) {
    unsigned kind = r->kind == API_CHAT ? IN_CHAT : IN_COMPLETION;
    if (json_kind(v) == JSON_KIND_NULL) /* asks for nothing, whatever the field */
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if ((fields[i].kinds & kind) && strcmp(fields[i].name, key) == 0)
            return fields[i].fn(r, v, fields[i].name, e);
    return api_fail(e, key, "'%s' is not supported", key);
}

static int check_whole(struct api_request *r, struct api_error *e) {
    if (r->kind == API_CHAT && !r->msgs)
        return api_fail(e, "messages", "'messages' is missing");
    if (r->kind == API_COMPLETION && !r->prompts)
        return api_fail(e, "prompt", "'prompt' is missing");
    if (r->tools &&
        !r->no_tools) /* with "none" no call could come of them, and no template lists them */
        return api_fail(e, r->tools, "'%s' is not supported unless 'tool_choice' is \"none\"",
                        r->tools);
    if (r->kind == API_CHAT && r->n_top && !r->logprobs)
        return api_fail(e, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    if (r->kind == API_CHAT && r->max_tokens_set && r->max_tokens == 0)
        return api_fail(e, "max_tokens", "'max_tokens' must be at least 1");
    if (r->max_tokens_set && r->max_tokens == 0 && !r->echo)
        return api_fail(e, "max_tokens",
                        "'max_tokens': 0 is for scoring a text, with 'echo': true");
    return 0;
}

int api_request_parse(struct api_request *ret, enum api_kind kind, struct str body,
                      struct api_error *e) {
    struct api_request *r = ret;
    *r = (struct api_request){
        .kind = kind, .sample = {.temperature = 1, .top_p = 1}, .add_special_tokens = true};
    *e = (struct api_error){.status = 400};
    if (kind == API_COMPLETION) { /* OpenAI's default; chat runs to the end of the context */
        r->max_tokens_set = true;
        r->max_tokens = 16;
    }
    struct errbuf eb = {{0}};
    int rv = json_parse(body, &r->doc, &eb);
    if (rv == ERR_TOOBIG)
        return api_fail(e, NULL, "the body is too much: %s", eb.text);
    if (rv < 0)
        return str_is_utf8(body) ? api_fail(e, NULL, "the body is not JSON: %s", eb.text)
                                 : api_fail(e, NULL, "the body is not UTF-8");
    if (json_kind(r->doc) != JSON_KIND_OBJECT)
        rv = api_fail(e, NULL, "the body must be a JSON object");
    for (void *it = rv ? NULL : json_iter(r->doc); it && rv == 0; it = json_iter_next(r->doc, it))
        rv = parse_field(r, json_iter_key(it), json_iter_value(it), e);
    if (rv == 0)
        rv = check_whole(r, e);
    if (rv < 0)
        api_request_fini(r);
    return rv;
}

void api_request_fini(struct api_request *r) {
    for (size_t i = 0; i < r->n_joined; i++)
        free(r->joined[i]);
    for (size_t i = 0; i < r->n_prompts; i++)
        free(r->prompts[i].ids);
    free(r->joined);
    free(r->prompts);
    free(r->msgs);
    json_free(r->doc);
    *r = (struct api_request){0};
}
