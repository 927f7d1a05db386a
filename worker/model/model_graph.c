#include "worker/model/model_graph.h"

static void add_u32(struct strbuf *out, const char *key, uint32_t v) {
    strbuf_addf(out, "%s=%u\n", key, v);
}

static void add_f32(struct strbuf *out, const char *key, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof(bits));
    strbuf_addf(out, "%s=%08x\n", key, bits);
}

/* The same of every layer. */
static void add_layers(struct strbuf *out, const char *key, const struct model *m, uint32_t v) {
    strbuf_addf(out, "%s=", key);
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        strbuf_addf(out, i ? ",%u" : "%u", v);
    strbuf_addf(out, "\n");
}

static void add_rope_groups(struct strbuf *out, const struct model *m) {
    strbuf_addf(out, "rope_group=");
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        strbuf_addf(out, i ? ",%d" : "%d", m->hp.layer[i].rope);
    strbuf_addf(out, "\n");
}

static void add_windows(struct strbuf *out, const struct model *m) {
    strbuf_addf(out, "window=");
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        strbuf_addf(out, i ? ",%u" : "%u", m->hp.layer[i].window);
    strbuf_addf(out, "\n");
}

static const char *const act_names[] = {
    [ACT_SILU] = "silu", [ACT_GELU_TANH] = "gelu_tanh", [ACT_SWIGLU_OAI] = "swiglu_oai"};
static const char *const norm_places[] = {
    [NORM_PRE] = "pre", [NORM_POST] = "post", [NORM_PRE | NORM_POST] = "both"};

/* Options of graphs to come stand here too, at the value that means "not there", so that adding one changes
 * no namespace of a model that does not use it. */
void model_graph_text(const struct model *m, struct strbuf *out) {
    const struct model_hparams *hp = &m->hp;
    strbuf_addf(out, "activation=%s\n", act_names[hp->act]);
    add_f32(out, "attn_scale", hp->attn_scale);
    add_layers(out, "attn_sink", m, hp->sinks);
    add_f32(out, "attn_softcap", hp->attn_softcap);
    add_layers(out, "d_head", m, hp->d_head);
    add_f32(out, "embd_scale", hp->embd_scale);
    add_layers(out, "expert_count", m, hp->n_expert);
    add_layers(out, "expert_used", m, hp->n_expert_used);
    add_f32(out, "logit_scale", hp->logit_scale);
    add_f32(out, "logit_softcap", hp->logit_softcap);
    add_u32(out, "n_embd", hp->n_embd);
    add_layers(out, "n_ff", m, hp->n_ff);
    add_layers(out, "n_head", m, hp->n_head);
    add_layers(out, "n_head_kv", m, hp->n_head_kv);
    add_u32(out, "n_layer", hp->n_layer);
    add_layers(out, "n_rot", m, hp->n_rot);
    add_u32(out, "n_vocab", hp->n_vocab);
    strbuf_addf(out, "norm=rms\n");
    add_f32(out, "norm_eps", hp->rms_eps);
    strbuf_addf(out, "norm_place=%s\n", norm_places[hp->norms]);
    add_u32(out, "qk_norm", hp->qk_norm);
    add_f32(out, "residual_scale", hp->residual_scale);
    add_rope_groups(out, m);
    strbuf_addf(out, "rope_pairs=%s\n", hp->rope_neox ? "halves" : "neighbours");
    add_u32(out, "tied", hp->tied);
    add_windows(out, m);
}

int model_graph_digest(const struct model *m, uint8_t ret[DIGEST_BYTES]) {
    struct strbuf text;
    strbuf_init(&text);
    model_graph_text(m, &text);
    struct str view = strbuf_view(&text);
    bool ok = !text.oom;
    if (ok)
        digest_sha256(view.p, view.n, ret);
    strbuf_fini(&text);
    return ok ? 0 : ERR_NOMEM;
}
