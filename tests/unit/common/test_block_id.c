/* Block ids against tests/golden/block_id.json, which tests/golden/block_id.py computes from the
 * definition. */
#include "common/block_id.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/json.h"

static const char *golden_path; /* argv[1] */

static struct json_t *load_golden(void) {
    static char text[1u << 16];
    struct errbuf eb;
    struct json_t *j = NULL;
    FILE *f = fopen(golden_path, "re");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof(text), f);
    fclose(f);
    assert_int_equal(json_parse((struct str){text, n}, &j, &eb), 0);
    return j;
}

static void unhex(const struct json_t *j, uint8_t *ret) {
    assert_int_equal(json_text(j).n, 64);
    assert_int_equal(digest_unhex(json_text(j).p, 32, ret), 0);
}

static void check_case(const struct json_t *c, const uint8_t *ns_digest) {
    int32_t tok[256];
    struct block_id ids[256], one[256];
    uint8_t salt[32], want[32];
    struct digest *d = digest_new();
    const struct json_t *toks = json_member(c, "tokens"), *want_ids = json_member(c, "ids");
    struct block_chain_cfg cfg = {.namespace_digest = ns_digest,
                                  .n_public_blocks = (uint32_t)json_int(json_member(c, "n_public")),
                                  .block_tok = (uint32_t)json_int(json_member(c, "block"))};
    size_t n = json_count(toks);
    if (json_kind(json_member(c, "salt")) == JSON_KIND_STRING) {
        unhex(json_member(c, "salt"), salt);
        cfg.salt = salt;
    }
    for (size_t i = 0; i < n; i++)
        tok[i] = (int32_t)json_int(json_item(toks, i));
    assert_int_equal(block_count_put(n, cfg.block_tok), json_count(want_ids));
    block_chain(d, &cfg, tok, n, ids);
    for (size_t i = 0; i < json_count(want_ids); i++) {
        unhex(json_item(want_ids, i), want);
        assert_memory_equal(ids[i].b, want, 32);
        block_chain_next(d, &cfg, tok + i * cfg.block_tok, i,
                         one); /* block by block gives the same */
        assert_true(block_id_equal(&ids[i], &one[i]));
    }
    digest_free(d);
}

static void test_golden_vectors(void **state) {
    (void)state;
    CLEANUP(json_freep) struct json_t *j = load_golden();
    uint8_t ns_digest[32], want[32];
    struct block_id root;
    unhex(json_member(j, "namespace_digest"), ns_digest);
    unhex(json_member(j, "root"), want);
    block_id_root(ns_digest, &root);
    assert_memory_equal(root.b, want, 32);
    const struct json_t *cases = json_member(j, "cases");
    assert_true(json_count(cases) >= 5);
    for (size_t i = 0; i < json_count(cases); i++)
        check_case(json_item(cases, i), ns_digest);
}

/* Each input reaches every id behind it and none before it. */
static void test_one_changed_input_changes_all_that_follows(void **state) {
    (void)state;
    uint8_t ns[32] = {1}, salt[32] = {0};
    int32_t tok[40];
    struct block_id a[10], b[10];
    struct digest *d = digest_new();
    struct block_chain_cfg cfg = {.namespace_digest = ns, .salt = salt, .block_tok = 4};
    for (int i = 0; i < 40; i++)
        tok[i] = i;
    block_chain(d, &cfg, tok, 40, a);
    tok[17] ^= 1;
    block_chain(d, &cfg, tok, 40, b);
    for (int i = 0; i < 10; i++)
        assert_int_equal(block_id_equal(&a[i], &b[i]), i < 4);
    tok[17] ^= 1;
    salt[31] = 1; /* another tenant */
    block_chain(d, &cfg, tok, 40, b);
    for (int i = 0; i < 10; i++)
        assert_false(block_id_equal(&a[i], &b[i]));
    cfg.n_public_blocks = 3;
    block_chain(d, &cfg, tok, 40, b);
    for (int i = 0; i < 10; i++)
        assert_int_equal(block_id_equal(&a[i], &b[i]), i < 3);
    ns[0] = 2;
    block_chain(d, &cfg, tok, 40, b);
    assert_false(block_id_equal(&a[0], &b[0]));
    digest_free(d);
}

static void test_counts(void **state) {
    (void)state;
    assert_int_equal(block_count_lookup(0, 4), 0);
    assert_int_equal(block_count_lookup(4, 4), 0); /* the last token is always computed */
    assert_int_equal(block_count_lookup(5, 4), 1);
    assert_int_equal(block_count_put(4, 4), 1);
    assert_int_equal(block_count_put(7, 4), 1);
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    golden_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_vectors),
        cmocka_unit_test(test_one_changed_input_changes_all_that_follows),
        cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
