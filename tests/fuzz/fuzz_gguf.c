/* fuzz_gguf.c - the GGUF loader, vocabulary reader and packer of weights on any bytes: an error or a checked
 * file. */
#include "worker/kernels/matmul.h"
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

/* Any bytes are weights of their type, or refused for a scale. */
static void take_weights(const struct gguf_tensor *t, const uint8_t *bytes) {
    const struct quant_type *q = quant_type_find(t->type);
    struct packed_mat *m;
    float row[512];
    if (!q || t->n_elem == 0 || t->n_elem > 1u << 16)
        return;
    if (t->ne[0] <= ARRAY_LEN(row))
        quant_dequant(q, row, bytes, (size_t)t->ne[0]);
    const struct packed_src src = {
        t->type, (uint32_t)(t->n_elem / t->ne[0]), (uint32_t)t->ne[0], bytes, t->bytes, false,
        NULL};
    if (packed_mat_new(&m, &src, NULL) == 0)
        packed_mat_free(m);
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
        take_weights(t, data + t->off);
    }
    __asm__ volatile("" : : "r"(sink)); /* the reads may not be optimised away */
    struct gguf_vocab v;
    if (gguf_vocab_read(&v, g, &eb) == 0)
        gguf_vocab_fini(&v);
    gguf_free(g);
    return 0;
}
