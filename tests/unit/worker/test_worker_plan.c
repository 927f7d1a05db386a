/* test_worker_plan.c - the memory that is told beforehand: known figures, and what a load really takes. */
#include "worker/worker_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/log.h"
#include "tests/support/tiny_model.h"
#include "worker/kernels/quant.h"
#include "worker/worker_model.h"

#define KIB 1024ull
#define MIB (KIB * KIB)

/* Figures that are well known, from the models' published shapes. */
static void test_known_models(void **state) {
    (void)state;
    static const struct {
        const char *name;
        struct plan_kv kv;
        uint64_t token_bytes;
        uint32_t context;
        uint64_t context_bytes;
    } cases[] = {
        {"Llama 3 8B", {32, 8, 128, KV_F16, KV_F16}, 128 * KIB, 8192, 1024 * MIB},
        {"Llama 3 8B as multi-head", {32, 32, 128, KV_F16, KV_F16}, 512 * KIB, 8192, 4096 * MIB},
        {"Llama 3 8B as multi-query", {32, 1, 128, KV_F16, KV_F16}, 16 * KIB, 8192, 128 * MIB},
        {"Llama 3 70B", {80, 8, 128, KV_F16, KV_F16}, 320 * KIB, 8192, 2560 * MIB},
        {"LLaMA 7B", {32, 32, 128, KV_F16, KV_F16}, 512 * KIB, 4096, 2048 * MIB},
        /* The 4.7 that is often quoted as its gigabytes at 2K are the megabytes of one token (4,718,592 bytes): 4.7 GB
         * are a thousand tokens. 2,048 take 9 GiB, 9.66 GB; half of that, 4.83 GB, is K or V alone. */
        {"GPT-3 175B", {96, 96, 128, KV_F16, KV_F16}, 4608 * KIB, 2048, 9216 * MIB},
        /* Other dtypes: 4, 34/32 and 18/32 bytes a value; K and V apart. */
        {"Llama 3 8B, f32", {32, 8, 128, KV_F32, KV_F32}, 256 * KIB, 8192, 2048 * MIB},
        {"Llama 3 8B, q8_0", {32, 8, 128, KV_Q8_0, KV_Q8_0}, 68 * KIB, 8192, 544 * MIB},
        {"Llama 3 8B, q4_0", {32, 8, 128, KV_Q4_0, KV_Q4_0}, 36 * KIB, 8192, 288 * MIB},
        {"Llama 3 8B, q8_0 and q4_0", {32, 8, 128, KV_Q8_0, KV_Q4_0}, 52 * KIB, 8192, 416 * MIB},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t bytes = plan_kv_token_bytes(&cases[i].kv);
        if (bytes != cases[i].token_bytes || bytes * cases[i].context != cases[i].context_bytes)
            fail_msg("%s: %llu bytes a token", cases[i].name, (unsigned long long)bytes);
    }
}

static void default_config(struct worker_config *cfg, const char *model) {
    char arg[300];
    struct errbuf eb;
    (void)snprintf(arg, sizeof(arg), "--model=%s", model);
    char prog_name[] = "incipit-worker", kv[] = "--kv-bytes=1048576", threads[] = "--threads=1",
         digest[] = "--digest-cache=none";
    char *argv[] = {prog_name, arg, kv, threads, digest, NULL};
    static char *env[] = {NULL};
    const struct cfg_prog prog = {.name = "incipit-worker"};
    if (cfg_load(worker_config_table(), &prog, cfg, 5, argv, env, stderr, &eb) != 0)
        fail_msg("%s", eb.text);
}

/* Each size of the outline is that of the model when it is loaded. */
static void test_outline_is_what_a_load_takes(void **state) {
    (void)state;
    for (int untied = 0; untied < 2; untied++) {
        struct tiny_spec spec = tiny_spec_of(QUANT_Q4_1);
        struct tiny_model tiny;
        struct worker_config cfg = {0};
        struct worker_model outline, loaded;
        struct log *log;
        struct errbuf eb = {""};
        spec.untied = untied;
        tiny_model_file(&tiny, &spec);
        default_config(&cfg, tiny.path);
        const struct log_cfg lc = {.prog = "test", .fd = 2, .level = LOG_LEVEL_ERROR};
        assert_int_equal(log_new(&log, &lc), 0);
        if (worker_model_outline(&outline, &cfg, &eb) < 0 ||
            worker_model_load(&loaded, &cfg, log, NULL, &eb) < 0)
            fail_msg("%s", eb.text);
        const struct model *o = outline.model, *l = loaded.model;
        assert_int_equal(o->sizes.packed, l->packed_bytes);
        assert_int_equal(o->sizes.raw, quant_row_bytes(l->embd_type, l->hp.n_embd) * l->hp.n_vocab);
        assert_null(o->embd);
        const size_t scratch = fwd_bytes(loaded.fwd); /* but for what malloc rounds up */
        assert_in_range(fwd_bytes(outline.fwd), scratch - 8192, scratch + 8192);
        assert_int_equal(outline.n_pages, loaded.n_pages);
        assert_int_equal(outline.layout.page_bytes, loaded.layout.page_bytes);
        const struct plan_kv kv = {l->hp.n_layer, l->hp.n_head_kv, l->hp.d_head, KV_F16, KV_F16};
        assert_int_equal(outline.layout.page_bytes, plan_kv_token_bytes(&kv) * cfg.block_tokens);
        worker_model_free(&outline);
        worker_model_free(&loaded);
        log_free(log);
        cfg_free(worker_config_table(), &cfg);
        tiny_model_close(&tiny);
    }
}

static void test_text_names_every_part(void **state) {
    (void)state;
    const struct tiny_spec spec = tiny_spec_of(QUANT_Q8_0);
    struct tiny_model tiny;
    struct worker_config cfg = {0};
    struct errbuf eb = {""};
    char *text = NULL;
    size_t n = 0;
    tiny_model_file(&tiny, &spec);
    default_config(&cfg, tiny.path);
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    assert_int_equal(worker_plan(&cfg, out, &eb), 0);
    assert_int_equal(fclose(out), 0);
    /* 2 layers, 4 heads, 2 KV heads of 16, f16. */
    static const char *const words[] = {
        "architecture llama, 2 layers, 4 heads, 2 KV heads of 16, context 2048",
        "weights",
        "vocabulary",
        "scratch",
        "KV pages        1.00 MiB   --kv-bytes: 128 pages of 32 tokens and 8.00 KiB, 4096 tokens",
        "in all",
        "f16   2 x 2 x 16 x 4 = 256\n",
        "f32   2 x 2 x 16 x 8 = 512\n",
        "4, multi-head                        512 B",
        "2, grouped-query: this               256 B",
        "1, multi-query                       128 B",
        "2048                            512.00 KiB",
        "--kv-bytes, 1.00 MiB                  4096",
        "the memory left",
    };
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (!strstr(text, words[i]))
            fail_msg("no '%s' in\n%s", words[i], text);
    free(text);
    cfg_free(worker_config_table(), &cfg);
    tiny_model_close(&tiny);
}

static void test_a_file_that_cannot_be_loaded_is_an_error(void **state) {
    (void)state;
    struct worker_config cfg = {0};
    struct errbuf eb = {""};
    default_config(&cfg, "/nonexistent.gguf");
    assert_true(worker_plan(&cfg, stderr, &eb) < 0);
    assert_non_null(strstr(eb.text, "/nonexistent.gguf"));
    cfg_free(worker_config_table(), &cfg);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_models),
        cmocka_unit_test(test_outline_is_what_a_load_takes),
        cmocka_unit_test(test_text_names_every_part),
        cmocka_unit_test(test_a_file_that_cannot_be_loaded_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
