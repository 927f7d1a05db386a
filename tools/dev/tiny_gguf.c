#include "tools/dev/tiny_gguf.h"

#include <math.h>

#include "tools/dev/gguf_write.h"
#include "tools/dev/quant_encode.h"
#include "worker/kernels/quant.h"

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
    return (struct tiny_spec){
        .type = type,
        .embd_type = type,
        .n_layer = 2,
        .n_embd = 64,
        .n_head = 4,
        .n_head_kv = 2,
        .n_ff = 160,
        .n_ctx = 2048,
        .seed = 1,
    };
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

static void write_hparams(struct gguf_write *w, const struct tiny_spec *s) {
    gguf_write_str(w, "general.architecture", "llama");
    gguf_write_str(w, "general.name", "tiny");
    gguf_write_u32(w, "llama.block_count", s->n_layer);
    gguf_write_u32(w, "llama.context_length", s->n_ctx);
    gguf_write_u32(w, "llama.embedding_length", s->n_embd);
    gguf_write_u32(w, "llama.feed_forward_length", s->n_ff);
    gguf_write_u32(w, "llama.attention.head_count", s->n_head);
    gguf_write_u32(w, "llama.attention.head_count_kv", s->n_head_kv);
    gguf_write_u32(w, "llama.rope.dimension_count", s->n_embd / s->n_head);
    gguf_write_f32(w, "llama.rope.freq_base", 10000.0f);
    gguf_write_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
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
static void tensor(struct tiny_walk *k, const char *name, uint32_t type, uint32_t n_cols,
                   uint32_t n_rows, float middle, float spread) {
    const uint64_t ne[2] = {n_cols, n_rows};
    if (!k->data) {
        gguf_write_tensor(k->w, name, type, n_rows > 1 ? 2 : 1, ne);
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

/* Spread keeps the variance of what passes through. */
static void matrix(struct tiny_walk *k, const char *name, uint32_t type, uint32_t n_in,
                   uint32_t n_out) {
    tensor(k, name, type, n_in, n_out, 0, sqrtf(3.0f / (float)n_in));
}

static void layer_tensors(struct tiny_walk *k, uint32_t i) {
    const struct tiny_spec *s = k->s;
    const uint32_t n_kv = s->n_embd / s->n_head * s->n_head_kv;
    const struct {
        const char *name;
        uint32_t n_in, n_out; /* n_out 0: a norm */
    } rows[] = {
        {"attn_norm", s->n_embd, 0},           {"attn_q", s->n_embd, s->n_embd},
        {"attn_k", s->n_embd, n_kv},           {"attn_v", s->n_embd, n_kv},
        {"attn_output", s->n_embd, s->n_embd}, {"ffn_norm", s->n_embd, 0},
        {"ffn_gate", s->n_embd, s->n_ff},      {"ffn_up", s->n_embd, s->n_ff},
        {"ffn_down", s->n_ff, s->n_embd},
    };
    for (size_t j = 0; j < ARRAY_LEN(rows); j++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "blk.%u.%s.weight", i, rows[j].name);
        if (rows[j].n_out)
            matrix(k, name, s->type, rows[j].n_in, rows[j].n_out);
        else
            tensor(k, name, QUANT_F32, rows[j].n_in, 1, 1.0f, 0.2f);
    }
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
        tensor(k, "rope_freqs.weight", QUANT_F32, s->n_embd / s->n_head / 2, 1, 4.0f, 3.0f);
}

int tiny_gguf_write(const struct tiny_spec *s, const char *path) {
    struct gguf_write w;
    gguf_write_init(&w);
    write_hparams(&w, s);
    write_vocab(&w);
    const size_t max_cols = MAX(s->n_embd, s->n_ff);
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
