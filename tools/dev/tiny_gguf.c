#include "tools/dev/tiny_gguf.h"

#include <math.h>

#include "tools/dev/gguf_write.h"
#include "tools/dev/quant_encode.h"
#include "worker/kernels/quant.h"
#include "worker/model/arch.h"

#define N_CONTROL 3
#define N_BYTES 256
#define SPELLING_BYTES 16

/* Pairs of existing tokens, most frequent first; a leading space is spelled U+0120. */
static const char *const merges[] = {
    "\u0120 t",  "h e",      "\u0120 a",  "i n",       "r e",       "o n",      "\u0120t he",
    "e r",       "\u0120 s", "a t",       "\u0120 w",  "\u0120 o",  "e n",      "i t",
    "\u0120 c",  "o r",      "i s",       "a n",       "e s",       "\u0120 b", "e d",
    "\u0120 f",  "in g",     "\u0120 p",  "o u",       "\u0120a n", "a l",      "a r",
    "\u0120t o", "\u0120 m", "\u0120o f", "\u0120 in", "\u0120 d",  "\u0120 h", "\u0120an d",
    "i c",       "a s",      "l e",       "\u0120t h", "i on",      "o m",      "l l",
    "en t",      "\u0120 n", "\u0120 l",  "s t",       "v e",       "\u0120 e",
};

static const char *const control[N_CONTROL] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

static const char *const chatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";

struct tiny_spec tiny_spec_of(uint32_t type) {
    const struct quant_type *t = quant_type_find(type);
    const uint32_t block = t ? t->block_items : 1;
    return (struct tiny_spec){
        .arch = model_arch_find((struct gguf_str){"llama", 5}),
        .type = type,
        .embd_type = type,
        .n_layer = 2,
        .n_embd = MAX(64, block), /* rows are whole blocks */
        .n_head = 4,
        .n_head_kv = 2,
        .d_head = MAX(16, block / 4),
        .n_ff = MAX(160, block),
        .n_ctx = 2048,
        .seed = 1,
    };
}

bool tiny_spec_of_arch(const char *arch, struct tiny_spec *ret) {
    const struct model_arch *a = model_arch_find((struct gguf_str){arch, strlen(arch)});
    if (!a)
        return false;
    *ret = tiny_spec_of(QUANT_F32);
    ret->arch = a;
    ret->n_layer = MAX(2u, MAX(a->window_period, a->rope_period) + 1u);
    ret->d_head = a->qk_norm == QK_NORM_HEAD ? 32 : 16;
    ret->window = a->window_period ? 24 : 0;
    ret->n_expert = a->experts ? 6 : 0;
    return true;
}

uint32_t tiny_gguf_n_vocab(void) {
    return N_CONTROL + N_BYTES + ARRAY_LEN(merges);
}

/* GPT-2's printable spelling of a byte: itself where printable, else code points from 256 on. */
static void spell_byte(unsigned byte, char *dst) {
    bool printable =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    unsigned cp = byte;
    if (!printable) {
        cp = 256;
        for (unsigned b = 0; b < byte; b++)
            if (!((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae))
                cp++;
    }
    size_t n = 0;
    if (cp < 0x80) {
        dst[n++] = (char)cp;
    } else {
        dst[n++] = (char)(0xc0 | cp >> 6);
        dst[n++] = (char)(0x80 | (cp & 0x3f));
    }
    dst[n] = 0;
}

/* "a b" -> "ab". */
static void spell_merge(const char *merge, char *dst) {
    for (; *merge; merge++)
        if (*merge != ' ')
            *dst++ = *merge;
    *dst = 0;
}

static void write_vocab(struct gguf_write *w) {
    enum { N = N_CONTROL + N_BYTES + ARRAY_LEN(merges) };
    static const int32_t type_control = 3, type_normal = 1;
    char spelling[N][SPELLING_BYTES];
    const char *tokens[N];
    int32_t types[N];
    for (size_t i = 0; i < N; i++) {
        types[i] = i < N_CONTROL ? type_control : type_normal;
        tokens[i] = i < N_CONTROL ? control[i] : spelling[i];
        if (i >= N_CONTROL + N_BYTES)
            spell_merge(merges[i - N_CONTROL - N_BYTES], spelling[i]);
        else if (i >= N_CONTROL)
            spell_byte((unsigned)(i - N_CONTROL), spelling[i]);
    }
    gguf_write_str(w, "tokenizer.ggml.model", "gpt2");
    gguf_write_str(w, "tokenizer.ggml.pre", "smollm");
    gguf_write_str_array(w, "tokenizer.ggml.tokens", tokens, N);
    gguf_write_i32_array(w, "tokenizer.ggml.token_type", types, N);
    gguf_write_str_array(w, "tokenizer.ggml.merges", merges, ARRAY_LEN(merges));
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gguf_write_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    gguf_write_u32(w, "tokenizer.ggml.padding_token_id", 2);
    gguf_write_bool(w, "tokenizer.ggml.add_bos_token", false);
    gguf_write_bool(w, "tokenizer.ggml.add_space_prefix", false);
    gguf_write_str(w, "tokenizer.chat_template", chatml);
}

/* --- keys --- */

struct key {
    const char *arch;
    char text[96];
};

static const char *key(struct key *k, const char *name) {
    (void)snprintf(k->text, sizeof(k->text), "%s.%s", k->arch, name);
    return k->text;
}

static uint32_t n_rot(const struct tiny_spec *s) {
    return s->arch->rope_part ? s->d_head * 3 / 4 : s->d_head;
}

static void write_rope(struct gguf_write *w, const struct tiny_spec *s, struct key *k) {
    static const char *const names[] = {
        [TINY_ROPE_LINEAR] = "linear", [TINY_ROPE_YARN] = "yarn", [TINY_ROPE_LONG] = "longrope"};
    gguf_write_u32(w, key(k, "rope.dimension_count"), n_rot(s));
    gguf_write_f32(w, key(k, "rope.freq_base"), s->arch->local_rope_base > 0 ? 1e6f : 10000.0f);
    if (s->rope == TINY_ROPE_PLAIN)
        return;
    gguf_write_str(w, key(k, "rope.scaling.type"), names[s->rope]);
    gguf_write_f32(w, key(k, "rope.scaling.factor"), 4);
    gguf_write_u32(w, key(k, "rope.scaling.original_context_length"),
                   s->rope == TINY_ROPE_LONG ? 1024 : 64);
    if (s->rope == TINY_ROPE_LONG)
        gguf_write_f32(w, key(k, "rope.scaling.attn_factor"), 1.25f);
}

static void write_hparams(struct gguf_write *w, const struct tiny_spec *s) {
    struct key k = {.arch = s->arch->name};
    gguf_write_str(w, "general.architecture", s->arch->name);
    gguf_write_str(w, "general.name", "tiny");
    gguf_write_u32(w, key(&k, "block_count"), s->n_layer);
    gguf_write_u32(w, key(&k, "context_length"), s->n_ctx);
    gguf_write_u32(w, key(&k, "embedding_length"), s->n_embd);
    gguf_write_u32(w, key(&k, "feed_forward_length"), s->n_ff);
    gguf_write_u32(w, key(&k, "attention.head_count"), s->n_head);
    gguf_write_u32(w, key(&k, "attention.head_count_kv"), s->n_head_kv);
    gguf_write_u32(w, key(&k, "attention.key_length"), s->d_head);
    gguf_write_u32(w, key(&k, "attention.value_length"), s->d_head);
    gguf_write_f32(w, key(&k, "attention.layer_norm_rms_epsilon"), 1e-5f);
    write_rope(w, s, &k);
    if (s->n_expert) {
        gguf_write_u32(w, key(&k, "expert_count"), s->n_expert);
        gguf_write_u32(w, key(&k, "expert_used_count"), 2);
    }
    if (s->window)
        gguf_write_u32(w, key(&k, "attention.sliding_window"), s->window);
    if (s->arch->attn_softcap > 0) { /* near enough to bend what random weights give */
        gguf_write_f32(w, key(&k, "attn_logit_softcapping"), 2);
        gguf_write_f32(w, key(&k, "final_logit_softcapping"), 5);
    }
    if (s->arch->keys & KEYS_SCALES) {
        gguf_write_f32(w, key(&k, "embedding_scale"), 3);
        gguf_write_f32(w, key(&k, "residual_scale"), 0.5f);
        gguf_write_f32(w, key(&k, "attention.scale"), 0.2f);
        gguf_write_f32(w, key(&k, "logit_scale"), 2);
    }
}

/* --- tensors: one walk announces them, a second one writes their bytes --- */

struct tiny_walk {
    struct gguf_write *w;
    const struct tiny_spec *s;
    bool data; /* second walk */
    uint64_t rng;
    float *row;
    uint8_t *bytes;
    int err;
};

/* splitmix64 to a float in (-1, 1). */
static float next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return (float)(int32_t)(z >> 40) * 0x1p-23f - 1.0f;
}

/* Elements uniform in middle +- spread. */
static void tensor3(struct tiny_walk *k, const char *name, uint32_t type, const uint64_t ne[3],
                    float middle, float spread) {
    const uint32_t n_cols = (uint32_t)ne[0], n_rows = (uint32_t)(ne[1] * ne[2]);
    if (!k->data) {
        gguf_write_tensor(k->w, name, type, ne[2] > 1 ? 3 : ne[1] > 1 ? 2 : 1, ne);
        return;
    }
    const struct quant_type *t = quant_type_find(type);
    for (uint32_t r = 0; r < n_rows && !k->err; r++) {
        for (uint32_t c = 0; c < n_cols; c++)
            k->row[c] = middle + spread * next_random(&k->rng);
        if (!quant_encode(type, k->bytes, k->row, n_cols))
            k->err = ERR_UNSUPPORTED;
        else
            gguf_write_data(k->w, k->bytes, quant_row_bytes(t, n_cols));
    }
    gguf_write_pad(k->w);
}

static void tensor(struct tiny_walk *k, const char *name, uint32_t type, uint32_t n_cols,
                   uint32_t n_rows, float middle, float spread) {
    tensor3(k, name, type, (const uint64_t[3]){n_cols, n_rows, 1}, middle, spread);
}

/* Spread keeps the variance of what passes through. */
static void matrix(struct tiny_walk *k, const char *name, uint32_t type, uint32_t n_in,
                   uint32_t n_out) {
    tensor(k, name, type, n_in, n_out, 0, sqrtf(3.0f / (float)n_in));
}

/* One of each expert. */
static void matrices(struct tiny_walk *k, const char *name, uint32_t n_in, uint32_t n_out) {
    tensor3(k, name, k->s->type, (const uint64_t[3]){n_in, n_out, k->s->n_expert}, 0,
            sqrtf(3.0f / (float)n_in));
}

static const char *layer_name(char dst[64], uint32_t i, const char *name, const char *suffix) {
    (void)snprintf(dst, 64, "blk.%u.%s.%s", i, name, suffix);
    return dst;
}

static void norm(struct tiny_walk *k, uint32_t i, const char *name, uint32_t n) {
    char full[64];
    tensor(k, layer_name(full, i, name, "weight"), QUANT_F32, n, 1, 1.0f, 0.2f);
}

static void layer_matrix(struct tiny_walk *k, uint32_t i, const char *name, uint32_t n_in,
                         uint32_t n_out, bool bias) {
    char full[64];
    matrix(k, layer_name(full, i, name, "weight"), k->s->type, n_in, n_out);
    if (bias)
        tensor(k, layer_name(full, i, name, "bias"), QUANT_F32, n_out, 1, 0, 0.5f);
}

static void attention_tensors(struct tiny_walk *k, uint32_t i) {
    const struct tiny_spec *s = k->s;
    const uint32_t n_q = s->d_head * s->n_head, n_kv = s->d_head * s->n_head_kv;
    const bool per_head = s->arch->qk_norm == QK_NORM_HEAD, bias = s->arch->biases & BIAS_QKV;
    if (s->arch->fused) {
        layer_matrix(k, i, "attn_qkv", s->n_embd, n_q + 2 * n_kv, false);
    } else {
        layer_matrix(k, i, "attn_q", s->n_embd, n_q, bias);
        layer_matrix(k, i, "attn_k", s->n_embd, n_kv, bias);
        layer_matrix(k, i, "attn_v", s->n_embd, n_kv, bias);
    }
    if (s->arch->qk_norm != QK_NORM_NONE) {
        norm(k, i, "attn_q_norm", per_head ? s->d_head : n_q);
        norm(k, i, "attn_k_norm", per_head ? s->d_head : n_kv);
    }
    if (s->arch->sinks)
        norm(k, i, "attn_sinks", s->n_head);
    layer_matrix(k, i, "attn_output", n_q, s->n_embd, s->arch->biases & BIAS_OUT);
}

static void expert_tensors(struct tiny_walk *k, uint32_t i) {
    const struct tiny_spec *s = k->s;
    const struct {
        const char *name;
        uint32_t n_in, n_out;
    } kinds[3] = {{"ffn_gate_exps", s->n_embd, s->n_ff},
                  {"ffn_up_exps", s->n_embd, s->n_ff},
                  {"ffn_down_exps", s->n_ff, s->n_embd}};
    const bool bias = s->arch->biases & BIAS_EXPERTS;
    char full[64];
    matrix(k, layer_name(full, i, "ffn_gate_inp", "weight"), QUANT_F32, s->n_embd, s->n_expert);
    if (bias)
        tensor(k, layer_name(full, i, "ffn_gate_inp", "bias"), QUANT_F32, s->n_expert, 1, 0, 0.5f);
    for (size_t j = 0; j < ARRAY_LEN(kinds); j++) {
        matrices(k, layer_name(full, i, kinds[j].name, "weight"), kinds[j].n_in, kinds[j].n_out);
        if (bias)
            tensor(k, layer_name(full, i, kinds[j].name, "bias"), QUANT_F32, kinds[j].n_out,
                   s->n_expert, 0, 0.5f);
    }
}

static void feed_forward_tensors(struct tiny_walk *k, uint32_t i) {
    const struct tiny_spec *s = k->s;
    const bool bias = s->arch->biases & BIAS_FFN;
    if (!s->arch->fused)
        layer_matrix(k, i, "ffn_gate", s->n_embd, s->n_ff, bias);
    layer_matrix(k, i, "ffn_up", s->n_embd, s->arch->fused ? 2 * s->n_ff : s->n_ff, bias);
    layer_matrix(k, i, "ffn_down", s->n_ff, s->n_embd, bias);
}

static void layer_tensors(struct tiny_walk *k, uint32_t i) {
    const struct tiny_spec *s = k->s;
    if (s->arch->norms & NORM_PRE)
        norm(k, i, "attn_norm", s->n_embd);
    attention_tensors(k, i);
    if (s->arch->norms & NORM_POST)
        norm(k, i, "post_attention_norm", s->n_embd);
    if (s->arch->norms & NORM_PRE)
        norm(k, i, s->arch->ffn_norm ? s->arch->ffn_norm : "ffn_norm", s->n_embd);
    if (s->n_expert)
        expert_tensors(k, i);
    else
        feed_forward_tensors(k, i);
    if (s->arch->norms & NORM_POST)
        norm(k, i, "post_ffw_norm", s->n_embd);
}

static void walk(struct tiny_walk *k) {
    const struct tiny_spec *s = k->s;
    tensor(k, "token_embd.weight", s->embd_type, s->n_embd, tiny_gguf_n_vocab(), 0, 1.0f);
    for (uint32_t i = 0; i < s->n_layer; i++)
        layer_tensors(k, i);
    tensor(k, "output_norm.weight", QUANT_F32, s->n_embd, 1, 1.0f, 0.2f);
    if (s->untied)
        matrix(k, "output.weight", s->embd_type, s->n_embd, tiny_gguf_n_vocab());
    if (s->rope_freqs)
        tensor(k, "rope_freqs.weight", QUANT_F32, n_rot(s) / 2, 1, 4.0f, 3.0f);
    if (s->rope == TINY_ROPE_LONG) {
        tensor(k, "rope_factors_short.weight", QUANT_F32, n_rot(s) / 2, 1, 1.5f, 0.5f);
        tensor(k, "rope_factors_long.weight", QUANT_F32, n_rot(s) / 2, 1, 4.0f, 3.0f);
    }
}

int tiny_gguf_write(const struct tiny_spec *s, const char *path) {
    struct gguf_write w;
    gguf_write_init(&w);
    write_hparams(&w, s);
    write_vocab(&w);
    const size_t max_cols = MAX(s->n_embd, MAX(s->n_ff, 2 * s->d_head * s->n_head));
    struct tiny_walk k = {.w = &w, .s = s, .rng = s->seed};
    k.row = alloc_array(max_cols, sizeof(float));
    k.bytes = alloc_array(max_cols, sizeof(float));
    if (!k.row || !k.bytes)
        k.err = ERR_NOMEM;
    walk(&k);
    if (!k.err)
        k.err = gguf_write_open(&w, path);
    k.data = true;
    if (!k.err)
        walk(&k);
    int rv = k.err ? k.err : gguf_write_close(&w);
    gguf_write_fini(&w);
    free(k.row);
    free(k.bytes);
    return rv;
}
