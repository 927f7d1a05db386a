/* arch_table.c - one row an architecture. Sources: the models' published definitions (transformers'
 * modeling files) and the tensor names that llama.cpp's converter gives them. */
#include "worker/model/arch.h"

static const struct model_arch archs[] = {
    {
        .name = "llama", /* Llama 2 and 3, Mistral, SmolLM2 */
        .norms = NORM_PRE,
        .maybe_biases = BIAS_QKV | BIAS_OUT | BIAS_FFN,
    },
    {
        .name = "qwen2",
        .rope_neox = true,
        .norms = NORM_PRE,
        .biases = BIAS_QKV,
    },
    {
        .name = "qwen3",
        .rope_neox = true,
        .norms = NORM_PRE,
        .qk_norm = QK_NORM_HEAD,
    },
};

const struct model_arch *model_arch_table(size_t *ret_n) {
    *ret_n = ARRAY_LEN(archs);
    return archs;
}

const struct model_arch *model_arch_find(struct gguf_str name) {
    for (size_t i = 0; i < ARRAY_LEN(archs); i++)
        if (gguf_str_is(name, archs[i].name))
            return &archs[i];
    return NULL;
}
