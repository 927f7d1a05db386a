/* test_alloc_failure.c - every allocation of loading a model fails once: an error, nothing leaked (the
 * sanitizer build watches), and the next try succeeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/tiny_model.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/quant.h"
#include "worker/model/forward.h"
#include "worker/model/gguf_vocab.h"

/* The linker leads every allocation of the program here (meson.build). */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t n);

static long countdown = -1; /* allocations until one fails; negative: none does */

static bool fails(void) {
    return countdown >= 0 && countdown-- == 0;
}

void *__wrap_malloc(size_t n) {
    return fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size) {
    return fails() ? NULL : __real_calloc(n, size);
}
void *__wrap_aligned_alloc(size_t align, size_t n) {
    return fails() ? NULL : __real_aligned_alloc(align, n);
}

struct loaded {
    struct model *model;
    struct gguf_vocab vocab;
    struct fwd *fwd;
};

static int load_all(const char *path, struct loaded *l, struct errbuf *eb) {
    const struct model_load_cfg cfg = {.path = path, .digest_cache_dir = ""};
    int rv = model_load(&l->model, &cfg, eb);
    if (rv < 0)
        return rv;
    rv = gguf_vocab_read(&l->vocab, l->model->gguf, eb);
    if (rv < 0)
        return rv;
    const struct fwd_cfg fc = {.max_rows = 32,
                               .max_seqs = 2,
                               .max_ctx = 64,
                               .block_tok = 16,
                               .ops = kernels_pick("scalar", NULL)};
    return fwd_new(&l->fwd, l->model, &fc, eb);
}

static void unload(struct loaded *l) {
    fwd_free(l->fwd);
    gguf_vocab_fini(&l->vocab);
    model_free(l->model);
    memset(l, 0, sizeof(*l));
}

static void test_load_each_allocation_fails_once(void **state) {
    (void)state;
    struct tiny_model t;
    struct tiny_spec spec = tiny_spec_of(QUANT_Q4_0);
    tiny_model_file(&t, &spec);
    struct loaded l;
    struct errbuf eb;
    memset(&l, 0, sizeof(l));
    long n = 0;
    int rv;
    do {
        eb.text[0] = 0;
        countdown = n;
        rv = load_all(t.path, &l, &eb);
        bool injected = countdown < 0;
        countdown = -1;
        unload(&l);
        if (!injected)
            break;
        assert_int_equal(rv, ERR_NOMEM);
        assert_true(eb.text[0] != 0);
    } while (++n < 10000);
    assert_int_equal(rv, 0);
    assert_true(n > 30); /* matrices, vectors, scratch: there were that many to fail */
    tiny_model_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_load_each_allocation_fails_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
