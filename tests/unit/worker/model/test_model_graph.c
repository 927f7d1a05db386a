/* test_model_graph.c - the graph's text and RoPE's digest against committed vectors; every option shows.
 *
 * argv[1]: tests/golden/namespace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/tiny_model.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/quant.h"
#include "worker/model/model_graph.h"

static const char *golden;
static struct tiny_model tiny;

static FILE *open_golden(const char *name) {
    char path[600];
    (void)snprintf(path, sizeof(path), "%s/%s", golden, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    return f;
}

static void test_text_and_digest_match_the_golden_file(void **state) {
    (void)state;
    char want[2048], hex[2 * DIGEST_BYTES + 1];
    uint8_t digest[DIGEST_BYTES];
    FILE *f = open_golden("graph.txt");
    size_t n = fread(want, 1, sizeof(want) - 1, f);
    (void)fclose(f);
    want[n] = 0;
    struct strbuf text;
    strbuf_init(&text);
    model_graph_text(tiny.model, &text);
    strbuf_addc(&text, 0);
    assert_string_equal(text.p, strchr(want, '\n') + 1);
    strbuf_fini(&text);
    assert_int_equal(model_graph_digest(tiny.model, digest), 0);
    digest_hex(digest, DIGEST_BYTES, hex);
    assert_memory_equal(hex, want, 2 * DIGEST_BYTES);
}

/* One changed option gives another graph, so another namespace, so zero hits. */
static void test_each_hyperparameter_changes_the_digest(void **state) {
    (void)state;
    struct model_hparams *hp = &tiny.model->hp;
    const struct model_hparams was = *hp;
    uint8_t base[DIGEST_BYTES], other[DIGEST_BYTES];
    uint32_t *const numbers[] = {&hp->n_vocab, &hp->n_embd,    &hp->n_ff,
                                 &hp->n_head,  &hp->n_head_kv, &hp->d_head,
                                 &hp->n_rot,   &hp->n_expert,  &hp->n_expert_used};
    float *const floats[] = {&hp->rms_eps,        &hp->attn_scale,  &hp->embd_scale,
                             &hp->residual_scale, &hp->logit_scale, &hp->attn_softcap,
                             &hp->logit_softcap};
    bool *const flags[] = {&hp->rope_neox, &hp->tied, &hp->sinks};
    assert_int_equal(model_graph_digest(tiny.model, base), 0);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++, *hp = was) {
        (*numbers[i])++;
        assert_int_equal(model_graph_digest(tiny.model, other), 0);
        assert_memory_not_equal(base, other, DIGEST_BYTES);
    }
    for (size_t i = 0; i < ARRAY_LEN(floats); i++, *hp = was) {
        *floats[i] += MAX(*floats[i], 1.0f) * 0x1p-22f; /* the last bits */
        assert_int_equal(model_graph_digest(tiny.model, other), 0);
        assert_memory_not_equal(base, other, DIGEST_BYTES);
    }
    for (size_t i = 0; i < ARRAY_LEN(flags); i++, *hp = was) {
        *flags[i] = !*flags[i];
        assert_int_equal(model_graph_digest(tiny.model, other), 0);
        assert_memory_not_equal(base, other, DIGEST_BYTES);
    }
    for (int i = 0; i < 6; i++, *hp = was) {
        hp->n_layer -= i == 0;
        hp->act = i == 1 ? ACT_GELU_TANH : hp->act;
        hp->norms = i == 2 ? NORM_POST : hp->norms;
        hp->qk_norm = i == 3 ? QK_NORM_ROW : hp->qk_norm;
        hp->layer[1].window += i == 4;
        hp->layer[1].rope -= i == 5;
        assert_int_equal(model_graph_digest(tiny.model, other), 0);
        assert_memory_not_equal(base, other, DIGEST_BYTES);
    }
}

static void digest_of(const struct rope_cfg *c, uint8_t ret[DIGEST_BYTES]) {
    struct rope *r;
    assert_int_equal(rope_new(&r, c, NULL), 0);
    rope_digest((const struct rope *const[]){r}, 1, ret);
    rope_free(r);
}

static void test_rope_digest_matches_the_golden_file(void **state) {
    (void)state;
    FILE *f = open_golden("rope.txt");
    float base, scale, magnitude, local;
    unsigned n_rot, orig_ctx, n = 0;
    char want[2 * DIGEST_BYTES + 1], hex[2 * DIGEST_BYTES + 1];
    for (; fscanf(f, "%f %u %f %u %f %f %64s", &base, &n_rot, &scale, &orig_ctx, &magnitude, &local,
                  want) == 7;
         n++) {
        uint8_t d[DIGEST_BYTES];
        struct rope *r[2] = {NULL, NULL};
        const struct rope_cfg c[2] = {{.n_rot = n_rot,
                                       .base = base,
                                       .freq_scale = scale,
                                       .magnitude = magnitude,
                                       .yarn_orig_ctx = orig_ctx,
                                       .beta_fast = 32,
                                       .beta_slow = 1},
                                      {.n_rot = n_rot, .base = local, .freq_scale = 1}};
        for (int i = 0; i < (local > 0 ? 2 : 1); i++)
            assert_int_equal(rope_new(&r[i], &c[i], NULL), 0);
        rope_digest((const struct rope *const *)r, local > 0 ? 2 : 1, d);
        digest_hex(d, DIGEST_BYTES, hex);
        assert_string_equal(hex, want);
        rope_free(r[0]);
        rope_free(r[1]);
    }
    (void)fclose(f);
    assert_int_equal(n, 7);
}

static void test_each_rope_parameter_changes_the_digest(void **state) {
    (void)state;
    float factors[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const struct rope_cfg base = {.n_rot = 16, .base = 10000, .freq_scale = 1};
    struct rope_cfg other[8] = {base, base, base, base, base, base, base, base};
    uint8_t a[DIGEST_BYTES], b[DIGEST_BYTES];
    other[0].n_rot = 14;
    other[1].base = 10001;
    other[2].freq_scale = 0.5f;
    other[3].freq_factors = factors;
    other[4].magnitude = 1.5f;
    other[5].freq_scale = 0.5f;
    other[5].yarn_orig_ctx = 64;
    other[5].beta_fast = 32;
    other[5].beta_slow = 1;
    other[6] = other[5];
    other[6].beta_slow = 2;
    other[7] = other[5];
    other[7].yarn_between = true;
    digest_of(&base, a);
    digest_of(&other[3], b);
    assert_memory_equal(a, b, DIGEST_BYTES); /* factors of 1: the same angles, effectively */
    factors[7] = 8;
    for (size_t i = 0; i < ARRAY_LEN(other); i++) {
        digest_of(&other[i], b);
        assert_memory_not_equal(a, b, DIGEST_BYTES);
    }
    digest_of(&other[5], a);
    assert_memory_not_equal(a, b, DIGEST_BYTES); /* of other[7] */
}

int main(int argc, char **argv) {
    assert_int_equal(argc, 2);
    golden = argv[1];
    struct tiny_spec spec = tiny_spec_of(QUANT_Q8_0);
    tiny_model_open(&tiny, &spec);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_and_digest_match_the_golden_file),
        cmocka_unit_test(test_each_hyperparameter_changes_the_digest),
        cmocka_unit_test(test_rope_digest_matches_the_golden_file),
        cmocka_unit_test(test_each_rope_parameter_changes_the_digest),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tiny_model_close(&tiny);
    return rc;
}
