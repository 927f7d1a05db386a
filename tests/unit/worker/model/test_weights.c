/* test_weights.c - a model is taken whole or refused by the name of what is wrong or not implemented. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/tiny_model.h"
#include "tools/dev/gguf_write.h"
#include "worker/kernels/quant.h"

/* How a tiny model's file is changed before it is loaded. */
struct edit {
    const char *drop_key, *drop_tensor;
    void (*add_keys)(struct gguf_write *w);
    const char *put_tensor; /* replaces the one of this name, or is added */
    uint32_t put_type;
    uint64_t put_ne[2];
    float put_value; /* of F32 elements; other types get zero bytes */
};

struct fixture {
    struct tiny_model tiny;
    char path[300];
    struct model *model;
    struct errbuf eb;
};

static int setup(void **state) {
    static struct fixture f;
    struct tiny_spec spec = tiny_spec_of(QUANT_Q8_0);
    memset(&f, 0, sizeof(f));
    tiny_model_file(&f.tiny, &spec);
    (void)snprintf(f.path, sizeof(f.path), "%s.edited", f.tiny.path);
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    model_free(f->model);
    (void)unlink(f->path);
    tiny_model_close(&f->tiny);
    return 0;
}

static bool is(const struct gguf_str s, const char *name) {
    return name && gguf_str_is(s, name);
}

static void put_data(struct gguf_write *w, const struct edit *e) {
    static uint8_t zeros[1 << 16];
    const struct gguf_tensor_type *t = gguf_tensor_type(e->put_type);
    size_t n = (size_t)(e->put_ne[0] * MAX(e->put_ne[1], 1));
    if (e->put_type == QUANT_F32)
        for (size_t i = 0; i < n; i++)
            gguf_write_data(w, &e->put_value, 4);
    else
        gguf_write_data(w, zeros, n / t->block_items * t->block_bytes);
    gguf_write_pad(w);
}

static void announce_put(struct gguf_write *w, const struct edit *e) {
    gguf_write_tensor(w, e->put_tensor, e->put_type, e->put_ne[1] ? 2 : 1, e->put_ne);
}

static void rewrite(struct fixture *f, const struct edit *e) {
    struct gguf *g;
    struct gguf_write w;
    gguf_write_init(&w);
    assert_int_equal(gguf_open(&g, f->tiny.path, &f->eb), 0);
    for (size_t i = 0; i < gguf_n_kv(g); i++)
        if (!is(gguf_kv_at(g, i)->key, e->drop_key))
            gguf_write_kv(&w, gguf_kv_at(g, i));
    if (e->add_keys)
        e->add_keys(&w);
    for (int data = 0; data < 2; data++) {
        bool put = false;
        for (size_t i = 0; i < gguf_n_tensors(g); i++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, i);
            char name[64];
            (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.len, t->name.p);
            if (is(t->name, e->drop_tensor))
                continue;
            bool replaced = is(t->name, e->put_tensor);
            put |= replaced;
            if (data && replaced) {
                put_data(&w, e);
            } else if (data) {
                gguf_write_data(&w, t->data, t->bytes);
                gguf_write_pad(&w);
            } else if (replaced) {
                announce_put(&w, e);
            } else {
                gguf_write_tensor(&w, name, t->type, t->n_dims, t->ne);
            }
        }
        if (e->put_tensor && !put && data)
            put_data(&w, e);
        else if (e->put_tensor && !put)
            announce_put(&w, e);
        if (!data)
            assert_int_equal(gguf_write_open(&w, f->path), 0);
    }
    assert_int_equal(gguf_write_close(&w), 0);
    gguf_write_fini(&w);
    gguf_free(g);
}

static int load(struct fixture *f, const struct edit *e) {
    rewrite(f, e);
    const struct model_load_cfg cfg = {.path = f->path, .digest_cache_dir = ""};
    return model_load(&f->model, &cfg, &f->eb);
}

static void refused(struct fixture *f, const struct edit *e, int want, const char *words) {
    int rv = load(f, e);
    if (rv != want || !strstr(f->eb.text, words))
        print_message("%s: '%s' should hold '%s'\n", err_name(rv), f->eb.text, words);
    assert_int_equal(rv, want);
    assert_non_null(strstr(f->eb.text, words));
    assert_null(f->model);
}

static void test_load_gives_hparams_and_digest(void **state) {
    struct fixture *f = *state;
    assert_int_equal(load(f, &(struct edit){.drop_key = NULL}), 0);
    const struct model_hparams *hp = &f->model->hp;
    assert_string_equal(hp->arch, "llama");
    assert_string_equal(hp->name, "tiny");
    assert_int_equal(hp->n_layer, 2);
    assert_int_equal(hp->n_embd, 64);
    assert_int_equal(hp->d_head, 16);
    assert_int_equal(hp->n_head_kv, 2);
    assert_int_equal(hp->n_vocab, tiny_gguf_n_vocab());
    assert_true(hp->attn_scale == 0.25f);
    assert_true(hp->tied);
    size_t len;
    uint8_t want[DIGEST_BYTES];
    const void *bytes = gguf_bytes(f->model->gguf, &len);
    digest_sha256(bytes, len, want);
    assert_memory_equal(f->model->digest, want, DIGEST_BYTES);
    /* 2 layers of K and V, 2 heads of 16, 32 tokens, 2 bytes */
    assert_int_equal(model_page_bytes(f->model, 32, KV_F16), 2 * 2 * 2 * 16 * 32 * 2);
}

#define KEYS(name, call)                                                                           \
    static void name(struct gguf_write *w) {                                                       \
        call;                                                                                      \
    }
KEYS(keys_experts, gguf_write_u32(w, "llama.expert_count", 8))
KEYS(keys_no_experts, gguf_write_u32(w, "llama.expert_count", 0))
KEYS(keys_window, gguf_write_u32(w, "llama.attention.sliding_window", 4096))
KEYS(keys_softcap, gguf_write_f32(w, "llama.final_logit_softcapping", 30))
KEYS(keys_yarn, gguf_write_str(w, "llama.rope.scaling.type", "yarn"))
KEYS(keys_linear, gguf_write_f32(w, "llama.rope.scaling.factor", 4))
KEYS(keys_unknown, gguf_write_u32(w, "llama.attention.novelty", 1))
KEYS(keys_half_rot, gguf_write_u32(w, "llama.rope.dimension_count", 8))
KEYS(keys_arch, gguf_write_str(w, "general.architecture", "qwen99"))
KEYS(keys_kv_same, gguf_write_i32_array(w, "llama.attention.head_count_kv", (int[]){2, 2}, 2))
KEYS(keys_kv_mixed, gguf_write_i32_array(w, "llama.attention.head_count_kv", (int[]){2, 1}, 2))
KEYS(keys_kv_three, gguf_write_u32(w, "llama.attention.head_count_kv", 3))
KEYS(keys_nan_eps, gguf_write_f32(w, "llama.attention.layer_norm_rms_epsilon", NAN))
KEYS(keys_no_layers, gguf_write_u32(w, "llama.block_count", 0))

static void test_keys_without_implementation_refused_by_name(void **state) {
    struct fixture *f = *state;
    const struct {
        void (*add)(struct gguf_write *w);
        const char *drop, *words;
        int want;
    } cases[] = {
        {keys_experts, NULL, "llama.expert_count", ERR_UNSUPPORTED},
        {keys_window, NULL, "llama.attention.sliding_window", ERR_UNSUPPORTED},
        {keys_softcap, NULL, "llama.final_logit_softcapping", ERR_UNSUPPORTED},
        {keys_yarn, NULL, "'yarn'", ERR_UNSUPPORTED},
        {keys_unknown, NULL, "llama.attention.novelty", ERR_UNSUPPORTED},
        {keys_half_rot, "llama.rope.dimension_count", "rope.dimension_count", ERR_UNSUPPORTED},
        {keys_arch, "general.architecture", "'qwen99'", ERR_UNSUPPORTED},
        {keys_kv_mixed, "llama.attention.head_count_kv", "head_count_kv", ERR_UNSUPPORTED},
        {keys_kv_three, "llama.attention.head_count_kv", "KV heads", ERR_INVALID},
        {keys_nan_eps, "llama.attention.layer_norm_rms_epsilon", "epsilon", ERR_INVALID},
        {keys_no_layers, "llama.block_count", "block_count", ERR_INVALID},
        {NULL, "llama.embedding_length", "llama.embedding_length", ERR_INVALID},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(f, &(struct edit){.add_keys = cases[i].add, .drop_key = cases[i].drop},
                cases[i].want, cases[i].words);
}

static void test_keys_that_are_off_or_linear_accepted(void **state) {
    struct fixture *f = *state;
    assert_int_equal(load(f, &(struct edit){.add_keys = keys_no_experts}), 0);
    model_free(TAKE_PTR(f->model));
    assert_int_equal(load(f, &(struct edit){.add_keys = keys_kv_same,
                                            .drop_key = "llama.attention.head_count_kv"}), 0);
    assert_int_equal(f->model->hp.n_head_kv, 2);
    model_free(TAKE_PTR(f->model));
    assert_int_equal(load(f, &(struct edit){.add_keys = keys_linear}), 0);
    assert_true(f->model->hp.rope_scale == 0.25f);
}

static void test_tensors_that_do_not_fit_refused_by_name(void **state) {
    struct fixture *f = *state;
    const struct {
        struct edit e;
        const char *words;
        int want;
    } cases[] = {
        {{.drop_tensor = "blk.1.ffn_up.weight"}, "'blk.1.ffn_up.weight' is missing", ERR_INVALID},
        {{.drop_tensor = "token_embd.weight"}, "'token_embd.weight' is missing", ERR_INVALID},
        {{.put_tensor = "blk.0.attn_q.bias", .put_type = QUANT_F32, .put_ne = {64}},
         "'blk.0.attn_q.bias' is not used", ERR_UNSUPPORTED},
        {{.put_tensor = "blk.0.attn_k.weight", .put_type = QUANT_Q8_0, .put_ne = {32, 64}},
         "shape [32, 64", ERR_INVALID},
        {{.put_tensor = "blk.1.attn_norm.weight", .put_type = QUANT_F16, .put_ne = {64}},
         "'blk.1.attn_norm.weight': weights of type F16", ERR_UNSUPPORTED},
        {{.put_tensor = "blk.1.ffn_down.weight", .put_type = 20, .put_ne = {160, 64}},
         "'blk.1.ffn_down.weight': weights of type IQ4_NL", ERR_UNSUPPORTED},
        {{.put_tensor = "output_norm.weight", .put_type = QUANT_F32, .put_ne = {64}, .put_value = NAN},
         "'output_norm.weight': element 0", ERR_CORRUPT},
        {{.put_tensor = "rope_freqs.weight", .put_type = QUANT_F32, .put_ne = {8}, .put_value = 0},
         "factor 0 is zero", ERR_CORRUPT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(f, &cases[i].e, cases[i].want, cases[i].words);
}

static void test_file_changed_notices_touch_and_removal(void **state) {
    struct fixture *f = *state;
    assert_int_equal(load(f, &(struct edit){.drop_key = NULL}), 0);
    assert_false(model_file_changed(f->model));
    const struct timespec times[2] = {{1, 0}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, f->path, times, 0), 0);
    assert_true(model_file_changed(f->model));
    assert_int_equal(unlink(f->path), 0);
    assert_true(model_file_changed(f->model));
}

static const char *param(const struct model_param *p, size_t n, const char *key) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(p[i].key, key) == 0)
            return p[i].value;
    return "absent";
}

static void test_params_are_effective_values(void **state) {
    struct fixture *f = *state;
    struct model_param p[MODEL_MAX_PARAMS];
    char hex[2 * DIGEST_BYTES + 1];
    assert_int_equal(load(f, &(struct edit){.add_keys = keys_linear}), 0);
    size_t n = model_params(f->model, p);
    assert_true(n <= MODEL_MAX_PARAMS);
    digest_hex(f->model->digest, DIGEST_BYTES, hex);
    assert_string_equal(param(p, n, "weights"), hex);
    assert_string_equal(param(p, n, "architecture"), "llama");
    assert_string_equal(param(p, n, "rope_scale"), "3e800000"); /* 0.25 */
    assert_string_equal(param(p, n, "rope_base"), "461c4000");  /* 10000 */
    assert_string_equal(param(p, n, "n_head_kv"), "2");
}

static void test_kv_dtype_names(void **state) {
    (void)state;
    enum kv_dtype t = KV_F16;
    assert_int_equal(kv_dtype_parse("f32", &t), 0);
    assert_int_equal(t, KV_F32);
    assert_int_equal(kv_dtype_parse("q8_0", &t), ERR_UNSUPPORTED);
    assert_int_equal(t, KV_F32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_load_gives_hparams_and_digest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys_without_implementation_refused_by_name, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_keys_that_are_off_or_linear_accepted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tensors_that_do_not_fit_refused_by_name, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_file_changed_notices_touch_and_removal, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_params_are_effective_values, setup, teardown),
        cmocka_unit_test(test_kv_dtype_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
