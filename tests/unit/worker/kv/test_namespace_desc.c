/* test_namespace_desc.c - the descriptor's text and digest against committed vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker/kv/namespace_desc.h"

static char golden_path[512];

/* The model of the committed vector: SmolLM2-135M's shape, made-up digests. Added in another order than
 * the file's on purpose. */
static void add_all(struct namespace_desc_builder *b) {
    uint8_t weights[DIGEST_BYTES], tokenizer[DIGEST_BYTES];
    memset(weights, 0x11, sizeof(weights));
    memset(tokenizer, 0x22, sizeof(tokenizer));
    const struct namespace_desc_common common = {
        .tokenizer_digest = tokenizer,
        .block_tok = 32,
        .kv_dtype = "f16",
        .numerics_id = "1-3333333333333333333333333333333333333333333333333333333333333333",
    };
    namespace_desc_begin(b);
    namespace_desc_add_common(b, &common);
    namespace_desc_add_hex(b, "weights", weights, sizeof(weights));
    namespace_desc_add(b, "architecture", "llama");
    namespace_desc_add_u64(b, "n_layer", 30);
    namespace_desc_add_u64(b, "n_head_kv", 3);
    namespace_desc_add_u64(b, "d_head", 64);
    namespace_desc_add_f32(b, "rope_base", 100000.0f);
    namespace_desc_add_f32(b, "rms_eps", 1e-5f);
}

static void test_descriptor_matches_golden_file(void **state) {
    (void)state;
    struct namespace_desc_builder b;
    struct namespace_desc d;
    char want[NAMESPACE_DESC_MAX_BYTES + 128], hex[2 * DIGEST_BYTES + 1];
    FILE *f = fopen(golden_path, "rb");
    assert_non_null(f);
    size_t n = fread(want, 1, sizeof(want) - 1, f);
    (void)fclose(f);
    want[n] = 0;
    add_all(&b);
    assert_int_equal(namespace_desc_finish(&b, &d), 0);
    digest_hex(d.digest, DIGEST_BYTES, hex);
    /* The file: the digest's line, then the descriptor. */
    char have[sizeof(want)];
    (void)snprintf(have, sizeof(have), "%s\n%s", hex, d.text);
    assert_string_equal(have, want);
}

static void test_any_changed_field_changes_the_digest(void **state) {
    (void)state;
    struct namespace_desc_builder b, c;
    struct namespace_desc d, e;
    add_all(&b);
    const size_t n = b.n;
    assert_int_equal(namespace_desc_finish(&b, &d), 0);
    for (size_t i = 0; i < n; i++) {
        add_all(&c);
        char *last = &c.item[i].value[strlen(c.item[i].value) - 1];
        *last = *last == '7' ? '8' : '7';
        assert_int_equal(namespace_desc_finish(&c, &e), 0);
        assert_memory_not_equal(d.digest, e.digest, DIGEST_BYTES);
    }
}

static void test_bad_items_refused(void **state) {
    (void)state;
    const char *bad[][2] = {{"", "v"}, {"Key", "v"}, {"a=b", "v"}, {"k", "two\nlines"}, {"k", "\x7f"}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct namespace_desc_builder b;
        struct namespace_desc d = {.len = 77};
        namespace_desc_begin(&b);
        namespace_desc_add(&b, bad[i][0], bad[i][1]);
        namespace_desc_add(&b, "fine", "v");
        assert_int_equal(namespace_desc_finish(&b, &d), ERR_INVALID);
        assert_int_equal(d.len, 77);
    }
}

static void test_key_given_twice_refused(void **state) {
    (void)state;
    struct namespace_desc_builder b;
    struct namespace_desc d;
    namespace_desc_begin(&b);
    namespace_desc_add_u64(&b, "n_layer", 1);
    namespace_desc_add(&b, "other", "");
    namespace_desc_add_u64(&b, "n_layer", 1);
    assert_int_equal(namespace_desc_finish(&b, &d), ERR_INVALID);
}

static void test_too_much_refused(void **state) {
    (void)state;
    struct namespace_desc_builder b;
    struct namespace_desc d;
    char key[16], value[256];
    memset(value, 'v', 255);
    value[255] = 0;
    namespace_desc_begin(&b);
    for (int i = 0; i < 20; i++) { /* 20 * 255 > 4096 */
        (void)snprintf(key, sizeof(key), "k%d", i);
        namespace_desc_add(&b, key, value);
    }
    assert_int_equal(namespace_desc_finish(&b, &d), ERR_TOOBIG);
    namespace_desc_begin(&b);
    for (int i = 0; i <= NAMESPACE_DESC_MAX_ITEMS; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        namespace_desc_add(&b, key, "");
    }
    assert_int_equal(namespace_desc_finish(&b, &d), ERR_TOOBIG);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptor_matches_golden_file),
        cmocka_unit_test(test_any_changed_field_changes_the_digest),
        cmocka_unit_test(test_bad_items_refused),
        cmocka_unit_test(test_key_given_twice_refused),
        cmocka_unit_test(test_too_much_refused),
    };
    (void)snprintf(golden_path, sizeof(golden_path), "%s", argc > 1 ? argv[1] : "descriptor.txt");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
