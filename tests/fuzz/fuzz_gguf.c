/* fuzz_gguf.c - the GGUF loader and vocabulary reader on any bytes: an error or a checked file. */
#include "worker/model/gguf.h"
#include "worker/model/gguf_vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Everything the loader promises to lie inside the file is read. */
static uint64_t touch_kv(const struct gguf_kv *kv) {
    uint64_t sum = kv->key.len;
    if (kv->type == GGUF_STRING) {
        struct gguf_str_iter it = {.kv = kv};
        struct gguf_str s;
        while (gguf_str_next(&it, &s))
            sum += s.len ? (uint8_t)s.p[0] + (uint8_t)s.p[s.len - 1] : 0;
        return sum;
    }
    for (uint64_t i = 0; i < kv->count; i++)
        sum += kv->type == GGUF_F32 || kv->type == GGUF_F64 ? gguf_elem_f32(kv, i) > 0
                                                            : gguf_elem_u64(kv, i);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct errbuf eb;
    struct gguf *g;
    if (gguf_parse(&g, data, size, &eb) < 0)
        return 0;
    uint64_t sink = 0;
    for (size_t i = 0; i < gguf_n_kv(g); i++)
        sink += touch_kv(gguf_kv_at(g, i));
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        for (size_t k = 0; k < t->bytes; k++)
            sink += data[t->off + k];
    }
    __asm__ volatile("" : : "r"(sink)); /* the reads may not be optimised away */
    struct gguf_vocab v;
    if (gguf_vocab_read(&v, g, &eb) == 0)
        gguf_vocab_fini(&v);
    gguf_free(g);
    return 0;
}
