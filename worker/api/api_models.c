/* GET /v1/models and /v1/models/NAME. */
#include "worker/api/api_priv.h"

bool api_serves(const struct http_openai *h, struct str model) {
    bool ok = h->cfg.any_model || model.n == 0 || str_eq(model, str_of(h->cfg.model_name));
    for (size_t i = 0; i < h->cfg.n_aliases; i++)
        ok |= str_eq(model, str_of(h->cfg.aliases[i]));
    return ok;
}

void api_reply_no_model(const struct http_openai *h, struct http_req *r, struct str model) {
    http_reply_error(r, 404, "invalid_request_error", "model", "model_not_found",
                     "the model '%.*s' is not served here; this worker serves '%s'",
                     (int)MIN(model.n, 200u), model.p, h->cfg.model_name);
}

static void write_model(struct json_w *w, const struct http_openai *h, const char *id) {
    char hex[2 * DIGEST_BYTES + 1];
    digest_hex(h->cfg.namespace_digest, DIGEST_BYTES, hex);
    json_w_obj(w);
    json_w_kstr(w, "id", str_of(id));
    json_w_kstr(w, "object", STR("model"));
    json_w_kint(w, "created", (int64_t)h->started_s);
    json_w_kstr(w, "owned_by", STR("incipit"));
    json_w_kint(w, "max_model_len", h->cfg.max_ctx);
    json_w_key(w, "incipit");
    json_w_obj(w);
    json_w_kstr(w, "worker", str_of(h->cfg.worker_name));
    json_w_kstr(w, "namespace", str_of(hex));
    json_w_kint(w, "block_tokens", h->cfg.block_tok);
    json_w_kint(w, "max_context", h->cfg.max_ctx);
    json_w_key(w, "chat_template");
    if (h->cfg.chat)
        json_w_strz(w, chat_template_family_name(h->cfg.chat));
    else
        json_w_null(w);
    json_w_end(w);
    json_w_end(w);
}

void api_on_models(struct http_req *r, void *arg) {
    struct http_openai *h = arg;
    const struct api_key *key;
    if (!api_authorize(h, r, &key))
        return;
    struct strbuf out;
    struct json_w w;
    strbuf_init(&out);
    json_w_init(&w, &out);
    json_w_obj(&w);
    json_w_kstr(&w, "object", STR("list"));
    json_w_key(&w, "data");
    json_w_arr(&w);
    write_model(&w, h, h->cfg.model_name);
    for (size_t i = 0; i < h->cfg.n_aliases; i++)
        write_model(&w, h, h->cfg.aliases[i]);
    json_w_end(&w);
    json_w_end(&w);
    http_reply_json(r, 200, strbuf_view(&out));
    strbuf_fini(&out);
}

/* %XX undone: a model's name may hold '/' and ':'. */
static void unescape(struct str s, struct strbuf *out) {
    for (size_t i = 0; i < s.n; i++) {
        uint8_t byte;
        const char hex[3] = {i + 2 < s.n ? s.p[i + 1] : '\0', i + 2 < s.n ? s.p[i + 2] : '\0',
                             '\0'};
        if (s.p[i] == '%' && digest_unhex(hex, 1, &byte) == 0) {
            strbuf_addc(out, (char)byte);
            i += 2;
        } else {
            strbuf_addc(out, s.p[i]);
        }
    }
}

void api_on_model(struct http_req *r, void *arg) {
    struct http_openai *h = arg;
    const struct api_key *key;
    if (!api_authorize(h, r, &key))
        return;
    struct str path = http_req_path(r);
    struct strbuf name, out;
    struct json_w w;
    strbuf_init(&name);
    strbuf_init(&out);
    unescape(str_cut(path, sizeof("/v1/models/") - 1, path.n), &name);
    if (api_serves(h, strbuf_view(&name))) {
        strbuf_addc(&name, '\0');
        json_w_init(&w, &out);
        write_model(&w, h, name.p ? name.p : "");
        http_reply_json(r, 200, strbuf_view(&out));
    } else {
        api_reply_no_model(h, r, strbuf_view(&name));
    }
    strbuf_fini(&name);
    strbuf_fini(&out);
}
