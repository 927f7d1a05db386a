#include "worker/kv/namespace_desc.h"

static bool is_good_text(const char *s) {
    for (const char *p = s; *p; p++)
        if (*p < 0x20 || *p > 0x7e)
            return false;
    return *s != 0;
}

int namespace_desc_make(struct namespace_desc *ret, const struct namespace_parts *p) {
    char graph[2 * DIGEST_BYTES + 1], rope[sizeof(graph)], tokenizer[sizeof(graph)],
        weights[sizeof(graph)];
    struct namespace_desc d = {.len = 0};
    if (!is_good_text(p->arch) || !is_good_text(p->k_dtype) || !is_good_text(p->v_dtype) ||
        !is_good_text(p->numerics))
        return ERR_INVALID;
    digest_hex(p->graph, DIGEST_BYTES, graph);
    digest_hex(p->rope, DIGEST_BYTES, rope);
    digest_hex(p->tokenizer, DIGEST_BYTES, tokenizer);
    digest_hex(p->weights, DIGEST_BYTES, weights);
    int n = snprintf(
        d.text, sizeof(d.text),
        "arch=%s\nb=%u\ngraph=%s\nk_dtype=%s\nlayout=%u\nnumerics=%s\nrope=%s\ntokenizer=%s\n"
        "v_dtype=%s\nweights=%s\n",
        p->arch, p->block_tok, graph, p->k_dtype, p->layout, p->numerics, rope, tokenizer,
        p->v_dtype, weights);
    if (n < 0 || (size_t)n >= sizeof(d.text))
        return ERR_TOOBIG;
    d.len = (size_t)n;
    digest_sha256(d.text, d.len, d.digest);
    *ret = d;
    return 0;
}
