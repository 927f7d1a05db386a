#include "tests/support/token_vocab.h"

#include "worker/model/gguf.h"
#include "worker/model/gguf_vocab.h"

int token_vocab_load(struct tokenizer **ret, const char *gguf_path, const char *pre) {
    struct errbuf eb = {""};
    struct gguf *g = NULL;
    struct gguf_vocab v = {0};
    int rv = gguf_open(&g, gguf_path, &eb);
    if (rv == 0)
        rv = gguf_vocab_read(&v, g, &eb);
    if (rv == 0) {
        struct tokenizer_src src = v.src;
        if (pre)
            src.pre = pre;
        rv = tokenizer_new(ret, &src, &eb);
    }
    gguf_vocab_fini(&v);
    gguf_free(g);
    if (rv < 0)
        fprintf(stderr, "%s: %s\n", gguf_path, eb.text);
    return rv;
}
