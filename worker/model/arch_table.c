/* arch_table.c - one row an architecture. Sources: the models' published definitions (transformers'
 * modeling files) and the tensor names that llama.cpp's converter gives them. */
#include "worker/model/arch.h"

static const struct model_arch archs[] = {
    {
        .name = "llama", /* Llama 2 and 3, Mistral, Mixtral, SmolLM2 */
        .norms = NORM_PRE,
        .maybe_biases = BIAS_QKV | BIAS_OUT | BIAS_FFN,
        /* Mistral 7B's first version: every layer; Mixtral */
        .keys = KEYS_WINDOW | KEYS_EXPERTS,
    },
    {
        .name = "smollm3",
        .norms = NORM_PRE,
        .rope_period = 4,
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
    {
        .name = "qwen3moe",
        .rope_neox = true,
        .experts = true,
        .norms = NORM_PRE,
        .qk_norm = QK_NORM_HEAD,
        .keys = KEYS_EXPERTS,
    },
    {
        .name = "gemma2",
        .rope_neox = true,
        .embd_sqrt = true,
        .act = ACT_GELU_TANH,
        .norms = NORM_PRE | NORM_POST,
        .keys = KEYS_WINDOW | KEYS_SOFTCAP,
        .window_period = 2,
        .attn_softcap = 50,
        .logit_softcap = 30,
        .embd_scaled_layers = 46, /* 27B */
    },
    {
        .name = "gemma3",
        .rope_neox = true,
        .embd_sqrt = true,
        .act = ACT_GELU_TANH,
        .norms = NORM_PRE | NORM_POST,
        .qk_norm = QK_NORM_HEAD,
        .keys = KEYS_WINDOW | KEYS_SOFTCAP,
        .window_period = 6,
        .local_rope_base = 10000,
        .embd_scaled_layers = 62, /* 27B */
    },
    {
        .name = "phi3", /* Phi 3, Phi 3.5, Phi 4 mini */
        .rope_neox = true,
        .rope_part = true,
        .fused = true,
        .norms = NORM_PRE,
        .keys = KEYS_WINDOW | KEYS_LONGROPE,
    },
    {
        .name = "granite",
        .norms = NORM_PRE,
        .maybe_biases = BIAS_QKV | BIAS_OUT | BIAS_FFN,
        .keys = KEYS_SCALES,
    },
    {
        .name = "granitemoe",
        .experts = true,
        .norms = NORM_PRE,
        .maybe_biases = BIAS_QKV | BIAS_OUT,
        .keys = KEYS_SCALES | KEYS_EXPERTS,
    },
    {
        .name = "gpt-oss",
        .rope_neox = true,
        .yarn_between = true,
        .experts = true,
        .sinks = true,
        .act = ACT_SWIGLU_OAI,
        .norms = NORM_PRE,
        .ffn_norm = "post_attention_norm",
        .biases = BIAS_QKV | BIAS_OUT | BIAS_EXPERTS,
        .keys = KEYS_WINDOW | KEYS_EXPERTS,
        .window_period = 2,
    },
    {
        .name = "olmo2",
        .rope_neox = true,
        .norms = NORM_POST,
        .qk_norm = QK_NORM_ROW,
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
