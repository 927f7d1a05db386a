/* test_namespace_desc.c - the descriptor's text, digest and ids against committed vectors.
 *
 * argv[1]: tests/golden/namespace/descriptor.txt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/block_id.h"
#include "worker/kv/namespace_desc.h"

static char golden_path[512];
static uint8_t ones[32], threes[32], fours[32], fives[32];

static struct namespace_parts golden_parts(void) {
    memset(ones, 0x11, sizeof(ones));
    memset(threes, 0x33, sizeof(threes));
    memset(fours, 0x44, sizeof(fours));
    memset(fives, 0x55, sizeof(fives));
    return (struct namespace_parts){
        .arch = "llama",
        .block_tok = 32,
        .graph = ones,
        .k_dtype = "f16",
        .v_dtype = "f16",
        .layout = 2,
        .numerics = "2-2222222222222222222222222222222222222222222222222222222222222222",
        .rope = threes,
        .tokenizer = fours,
        .weights = fives,
    };
}

/* The first two blocks of tokens 0, 1, 2, ... in the namespace. */
static void first_ids(const struct namespace_desc *d, uint32_t block_tok, struct block_id ret[2]) {
    int32_t tok[128];
    struct digest *ctx = digest_new();
    assert_non_null(ctx);
    for (int i = 0; i < 128; i++)
        tok[i] = i;
    const struct block_chain_cfg c = {.namespace_digest = d->digest, .block_tok = block_tok};
    for (uint32_t b = 0; b < 2; b++)
        block_chain_next(ctx, &c, tok + b * block_tok, b, ret);
    digest_free(ctx);
}

static void test_descriptor_and_ids_match_the_golden_file(void **state) {
    (void)state;
    char want[2048], have[2048], hex[2 * DIGEST_BYTES + 1], id[2][2 * DIGEST_BYTES + 1];
    struct namespace_desc d;
    struct block_id ids[2];
    FILE *f = fopen(golden_path, "rb");
    assert_non_null(f);
    size_t n = fread(want, 1, sizeof(want) - 1, f);
    (void)fclose(f);
    want[n] = 0;
    const struct namespace_parts p = golden_parts();
    assert_int_equal(namespace_desc_make(&d, &p), 0);
    first_ids(&d, 32, ids);
    digest_hex(d.digest, DIGEST_BYTES, hex);
    digest_hex(ids[0].b, DIGEST_BYTES, id[0]);
    digest_hex(ids[1].b, DIGEST_BYTES, id[1]);
    (void)snprintf(have, sizeof(have), "%s\n%s%s\n%s\n", hex, d.text, id[0], id[1]);
    assert_string_equal(have, want);
}

/* One changed field gives zero hits: no id of the same tokens is the same. */
static void test_any_changed_field_changes_every_id(void **state) {
    (void)state;
    struct namespace_desc d, e;
    struct block_id a[2], b[2];
    const struct namespace_parts p = golden_parts();
    assert_int_equal(namespace_desc_make(&d, &p), 0);
    first_ids(&d, 32, a);
    struct namespace_parts other[10];
    for (int i = 0; i < 10; i++)
        other[i] = p;
    other[0].arch = "llamb";
    other[1].block_tok = 16;
    other[2].graph = fours;
    other[3].k_dtype = "f32";
    other[4].layout = 1;
    other[5].numerics = "2-2222222222222222222222222222222222222222222222222222222222222223";
    other[6].rope = fours;
    other[7].tokenizer = ones;
    other[8].v_dtype = "q8_0";
    other[9].weights = ones;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(namespace_desc_make(&e, &other[i]), 0);
        first_ids(&e, other[i].block_tok, b);
        assert_memory_not_equal(d.digest, e.digest, DIGEST_BYTES);
        assert_memory_not_equal(&a[0], &b[0], sizeof(a[0]));
        assert_memory_not_equal(&a[1], &b[1], sizeof(a[1]));
    }
}

static void test_text_that_could_forge_a_line_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"", "llama\nb=1", "ll\tama", "l\xc3\xa4ma", "llama\x7f"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct namespace_desc d = {.len = 77};
        for (int field = 0; field < 4; field++) {
            struct namespace_parts p = golden_parts();
            *(field == 0   ? &p.arch
              : field == 1 ? &p.k_dtype
              : field == 2 ? &p.v_dtype
                           : &p.numerics) = bad[i];
            assert_int_equal(namespace_desc_make(&d, &p), ERR_INVALID);
        }
        assert_int_equal(d.len, 77);
    }
    static char longest[NAMESPACE_DESC_MAX_BYTES + 1];
    memset(longest, 'a', sizeof(longest) - 1);
    struct namespace_desc d;
    struct namespace_parts p = golden_parts();
    p.numerics = longest;
    assert_int_equal(namespace_desc_make(&d, &p), ERR_TOOBIG);
}

int main(int argc, char **argv) {
    assert_int_equal(argc, 2);
    (void)snprintf(golden_path, sizeof(golden_path), "%s", argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptor_and_ids_match_the_golden_file),
        cmocka_unit_test(test_any_changed_field_changes_every_id),
        cmocka_unit_test(test_text_that_could_forge_a_line_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
