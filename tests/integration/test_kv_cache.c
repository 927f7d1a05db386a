/* test_kv_cache - generation with and without the KV cache: same tokens, same hidden states to the last
 * bit, and K/V rows computed fall from the sum over steps to the number of positions. K and V of earlier
 * positions do not change as the context grows.
 *
 * On a tiny model, and on a real one when INCIPIT_TEST_MODEL names it. */
#include "common/check.h"
#include "tests/support/greedy.h"
#include "tests/support/tiny_model.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/quant.h"
#include "worker/model/forward.h"

#define N_PROMPT 24
#define N_GEN 16
#define N_ALL (N_PROMPT + N_GEN)
#define BLOCK 16
#define N_PAGES ((N_ALL + BLOCK - 1) / BLOCK)

struct generation {
    int32_t tok[N_ALL];
    float *hidden; /* [N_GEN, n_embd] of the rows that chose the tokens */
    uint64_t kv_rows;
    uint8_t *pages[N_PAGES];
    size_t page_bytes;
};

static void garbage_pages(struct generation *g) {
    for (int i = 0; i < N_PAGES; i++)
        memset(g->pages[i], 0xff, g->page_bytes);
}

static void generation_open(struct generation *g, const struct model *m) {
    g->page_bytes = model_page_bytes(m, BLOCK, (struct kv_dtypes){KV_F16, KV_F16});
    g->hidden = alloc_array((size_t)N_GEN * m->hp.n_embd, sizeof(float));
    CHECK(g->hidden);
    for (int i = 0; i < N_PAGES; i++)
        CHECK(g->pages[i] = aligned_alloc(64, (g->page_bytes + 63) & ~(size_t)63));
    garbage_pages(g);
    for (int i = 0; i < N_PROMPT; i++)
        g->tok[i] = (int32_t)((uint32_t)i * 97u % m->hp.n_vocab);
}

static void generation_close(struct generation *g) {
    free(g->hidden);
    for (int i = 0; i < N_PAGES; i++)
        free(g->pages[i]);
}

/* Bytes of the first whole page after each step must stay what they were. */
static bool first_page_kept(const struct generation *g, uint8_t *copy, uint32_t step) {
    if (step == 0)
        memcpy(copy, g->pages[0], g->page_bytes);
    return memcmp(copy, g->pages[0], g->page_bytes) == 0;
}

static bool generate(const struct model *m, struct generation *g, bool cached) {
    struct fwd *f;
    struct errbuf eb;
    const struct fwd_cfg cfg = {.max_rows = N_ALL,
                                .max_seqs = 1,
                                .max_ctx = N_ALL,
                                .block_tok = BLOCK,
                                .ops = kernels_pick(NULL, &eb)};
    CHECK(cfg.ops && fwd_new(&f, m, &cfg, &eb) == 0);
    const size_t n_embd = m->hp.n_embd;
    float *hidden = alloc_array(N_ALL * n_embd, sizeof(float));
    float *logits = alloc_array(m->hp.n_vocab, sizeof(float));
    uint8_t *copy = malloc(g->page_bytes);
    CHECK(hidden && logits && copy);
    bool ok = true;
    for (uint32_t i = 0; i < N_GEN; i++) {
        const uint32_t n = N_PROMPT + i, pos0 = cached && i ? n - 1 : 0;
        if (!cached)
            garbage_pages(g);
        const struct fwd_seq s = {.tok = g->tok + pos0,
                                  .n_tok = n - pos0,
                                  .pos0 = pos0,
                                  .pages = g->pages,
                                  .n_logits = 1,
                                  .logits = logits,
                                  .hidden = hidden};
        CHECK(fwd_step(f, &s, 1) == 0);
        memcpy(g->hidden + i * n_embd, hidden + (n - pos0 - 1) * n_embd, n_embd * sizeof(float));
        g->tok[n] = greedy(logits, m->hp.n_vocab);
        ok = first_page_kept(g, copy, i) && ok;
    }
    g->kv_rows = fwd_stats(f).kv_rows;
    free(hidden);
    free(logits);
    free(copy);
    fwd_free(f);
    return ok;
}

static bool expect(bool ok, const char *what) {
    if (!ok)
        printf("FAIL: %s\n", what);
    return ok;
}

static bool compare(const struct model *m) {
    struct generation with, without;
    generation_open(&with, m);
    generation_open(&without, m);
    bool ok = expect(generate(m, &with, true), "K and V of the first page stay, cached");
    ok =
        expect(generate(m, &without, false), "K and V of the first page stay, computed anew") && ok;
    ok = expect(memcmp(with.tok, without.tok, sizeof(with.tok)) == 0, "same tokens") && ok;
    ok = expect(memcmp(with.hidden, without.hidden, N_GEN * m->hp.n_embd * sizeof(float)) == 0,
                "same hidden states") &&
         ok;
    uint64_t sum = 0;
    for (uint64_t n = N_PROMPT; n < N_ALL; n++)
        sum += n;
    ok = expect(without.kv_rows == sum * m->hp.n_layer, "rows without the cache: the sum") && ok;
    ok = expect(with.kv_rows == (uint64_t)(N_ALL - 1) * m->hp.n_layer, "rows with it: n") && ok;
    printf("%s: %d prompt and %d generated tokens, %u layers: %llu K/V rows without the cache, "
           "%llu with\n",
           m->hp.name, N_PROMPT, N_GEN, m->hp.n_layer, (unsigned long long)without.kv_rows,
           (unsigned long long)with.kv_rows);
    generation_close(&with);
    generation_close(&without);
    return ok;
}

int main(void) {
    struct tiny_model tiny;
    struct tiny_spec spec = tiny_spec_of(QUANT_Q8_0);
    tiny_model_open(&tiny, &spec);
    bool ok = compare(tiny.model);
    tiny_model_close(&tiny);
    const char *path = getenv("INCIPIT_TEST_MODEL");
    if (path && *path) {
        struct model *m;
        struct errbuf eb = {.text = ""};
        const struct model_load_cfg cfg = {.path = path, .digest_cache_dir = ""};
        ok = expect(model_load(&m, &cfg, &eb) == 0, eb.text) && ok;
        if (ok) {
            ok = compare(m);
            model_free(m);
        }
    }
    return ok ? 0 : 1;
}
