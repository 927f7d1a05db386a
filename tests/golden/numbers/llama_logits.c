/* llama_logits.c - what llama.cpp computes for given token ids; built by hand against its library.
 *
 *   llama_logits score  MODEL IDS KV OUT         f32 logits [n, n_vocab] of every position
 *   llama_logits greedy MODEL IDS KV OUT MAX     ids that follow, one most likely token at a time
 *
 * IDS is a file of u32; KV is f16 or f32 (type of the KV cache); OUT is overwritten. greedy stops
 * before an end-of-generation token. One thread, chunks of 512, no flash attention. */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static llama_token *ids;
static int n_ids;

static int load_ids(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return -1;
    fseek(f, 0, SEEK_END);
    n_ids = (int)(ftell(f) / 4);
    rewind(f);
    ids = calloc((size_t)n_ids + 1, 4);
    int ok = ids && fread(ids, 4, (size_t)n_ids, f) == (size_t)n_ids;
    fclose(f);
    return ok ? 0 : -1;
}

static int decode(struct llama_context *c, const llama_token *t, int n, int pos, int all) {
    struct llama_batch b = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        b.token[i] = t[i];
        b.pos[i] = pos + i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = all || i == n - 1;
    }
    b.n_tokens = n;
    int rv = llama_decode(c, b);
    llama_batch_free(b);
    return rv;
}

static int score(struct llama_context *c, int n_vocab, FILE *out) {
    for (int at = 0; at < n_ids; at += 512) {
        int n = n_ids - at < 512 ? n_ids - at : 512;
        if (decode(c, ids + at, n, at, 1))
            return -1;
        for (int i = 0; i < n; i++)
            fwrite(llama_get_logits_ith(c, i), 4, (size_t)n_vocab, out);
    }
    return 0;
}

static int greedy(struct llama_context *c, const struct llama_vocab *v, int max, FILE *out) {
    int n_vocab = llama_vocab_n_tokens(v);
    int n = n_ids < 512 ? n_ids : 512;
    if (decode(c, ids, n, 0, 0))
        return -1;
    for (int pos = n; max-- > 0; pos++) {
        const float *z = llama_get_logits_ith(c, -1);
        llama_token best = 0;
        for (int i = 1; i < n_vocab; i++)
            if (z[i] > z[best])
                best = i;
        if (llama_vocab_is_eog(v, best))
            break;
        fwrite(&best, 4, 1, out);
        if (decode(c, &best, 1, pos, 0))
            return -1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 6 || load_ids(argv[3]) < 0) {
        fprintf(stderr, "usage: llama_logits score|greedy MODEL IDS f16|f32 OUT [MAX]\n");
        return 2;
    }
    llama_backend_init();
    struct llama_model *m = llama_model_load_from_file(argv[2], llama_model_default_params());
    if (!m)
        return 1;
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = 4096;
    p.n_batch = p.n_ubatch = 512;
    p.n_threads = p.n_threads_batch = 1;
    p.type_k = p.type_v = strcmp(argv[4], "f32") ? GGML_TYPE_F16 : GGML_TYPE_F32;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *c = llama_init_from_model(m, p);
    FILE *out = fopen(argv[5], "wb");
    if (!c || !out)
        return 1;
    const struct llama_vocab *v = llama_model_get_vocab(m);
    int rv = strcmp(argv[1], "score") ? greedy(c, v, argc > 6 ? atoi(argv[6]) : 64, out)
                                      : score(c, llama_vocab_n_tokens(v), out);
    fclose(out);
    return rv ? 1 : 0;
}
