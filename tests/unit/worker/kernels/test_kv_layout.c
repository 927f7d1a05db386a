/* test_kv_layout.c - pages of every dtype against golden bytes; what the layout refuses.
 *
 * Rows are stored as the forward pass stores them. argv[1]: tests/golden/kv_layout.txt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "common/digest.h"
#include "worker/kernels/attn_paged.h"
#include "worker/kernels/quant.h"

#define L 3
#define H 2
#define D 32
#define B 16

static const char *golden_path;
static const uint32_t window[L] = {0, 4, 0};

static float value(uint32_t i) {
    uint32_t tok = i / (H * D) % B, h = i * 0x9e3779b9u + 0x7f4a7c15u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    h ^= h >> 16;
    float x = (float)((int32_t)(h >> 8) - (1 << 23)) * 0x1p-21f;
    switch (tok) {
    case 0:
        return 0.0f;
    case 1:
        return x * 0x1p-30f;
    case 2:
        return i % 2 ? 3.0f : -3.0f;
    case 3:
        return x * 0x1p12f;
    default:
        return x;
    }
}

/* As the forward pass writes it, a token at a time. */
static void fill_page(const struct kv_layout *l, uint8_t *page) {
    float x[2][H * D];
    for (uint32_t layer = 0; layer < L; layer++)
        for (uint32_t tok = 0; tok < B; tok++) {
            const struct kv_place *p = &l->layer[layer];
            const struct attn_shape shape = {.n_head = H,
                                             .n_kv_head = H,
                                             .head_dim = D,
                                             .block_tokens = B,
                                             .k_dtype = l->cfg.k_dtype,
                                             .v_dtype = l->cfg.v_dtype,
                                             .k_off = p->k,
                                             .k_scale_off = p->k_scale,
                                             .v_off = p->v,
                                             .v_scale_off = p->v_scale};
            const struct attn_kv_rows rows = {x[0], x[1], H * D, H * D, &page, 1, tok};
            for (uint32_t is_v = 0; is_v < 2; is_v++)
                for (uint32_t i = 0; i < H * D; i++)
                    x[is_v][i] = value(((is_v * L + layer) * B + tok) * H * D + i);
            assert_true(attn_store_kv(kernels_pick(NULL, NULL), &shape, &rows));
        }
}

static enum kv_dtype dtype_of(const char *name) {
    for (unsigned t = 0; t < KV_N_DTYPES; t++)
        if (strcmp(name, kv_dtype_name((enum kv_dtype)t)) == 0)
            return (enum kv_dtype)t;
    fail_msg("dtype '%s'", name);
    return KV_F16;
}

static void test_pages_match_the_golden_bytes(void **state) {
    (void)state;
    char kd[8], vd[8], sizes[64], sha[72], first[16384], have[16384];
    unsigned n_full, n = 0;
    uint8_t digest[DIGEST_BYTES];
    FILE *f = fopen(golden_path, "rb");
    assert_non_null(f);
    for (; fscanf(f, "%7s %7s %u %63s %71s %16383s", kd, vd, &n_full, sizes, sha, first) == 6;
         n++) {
        struct kv_layout l;
        const struct kv_layout_cfg cfg = {.n_layer = L,
                                          .n_kv_head = H,
                                          .d_head = D,
                                          .block_tok = B,
                                          .k_dtype = dtype_of(kd),
                                          .v_dtype = dtype_of(vd),
                                          .window = window};
        assert_int_equal(kv_layout_init(&l, &cfg, NULL), 0);
        assert_int_equal(l.n_full, n_full);
        (void)snprintf(have, sizeof(have), "%u,%u,%u", l.range_sizes[0], l.range_sizes[1],
                       l.range_sizes[2]);
        assert_string_equal(have, sizes);
        uint8_t *page = calloc(1, l.page_bytes);
        fill_page(&l, page);
        if (first[0] != '-') {
            digest_hex(page, l.range_sizes[0], have);
            assert_string_equal(have, first);
        }
        digest_sha256(page, l.page_bytes, digest);
        digest_hex(digest, DIGEST_BYTES, have);
        assert_string_equal(have, sha);
        free(page);
        kv_layout_fini(&l);
    }
    (void)fclose(f);
    assert_int_equal(n, 6);
}

static void test_ranges_are_full_layers_then_windows(void **state) {
    (void)state;
    struct kv_layout l;
    const uint32_t w[6] = {128, 0, 128, 128, 0, 128};
    struct kv_layout_cfg c = {
        .n_layer = 6, .n_kv_head = 1, .d_head = 64, .block_tok = 32, .window = w};
    const uint32_t want[6] = {2, 0, 3, 4, 1, 5};
    assert_int_equal(kv_layout_init(&l, &c, NULL), 0);
    assert_int_equal(l.n_full, 2);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(l.layer[i].range, want[i]);
        assert_int_equal(l.layer[i].k, (size_t)want[i] * l.range_sizes[0]);
    }
    kv_layout_fini(&l);
    c.window = NULL;
    assert_int_equal(kv_layout_init(&l, &c, NULL), 0);
    assert_int_equal(l.n_full, 6);
    assert_int_equal(l.layer[4].range, 4);
    kv_layout_fini(&l);
}

static void test_sizes_are_those_of_the_models(void **state) {
    (void)state;
    const struct {
        uint32_t n_layer, n_kv, d;
        enum kv_dtype t;
        size_t want;
    } cases[] = {
        {30, 3, 64, KV_F16, 737280},
        {32, 8, 128, KV_F16, 4 << 20},
        {32, 8, 128, KV_Q8_0, (4 << 20) * 17 / 32},
        {32, 8, 128, KV_Q4_0, (4 << 20) * 9 / 32},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct kv_layout l;
        const struct kv_layout_cfg c = {.n_layer = cases[i].n_layer,
                                        .n_kv_head = cases[i].n_kv,
                                        .d_head = cases[i].d,
                                        .block_tok = 32,
                                        .k_dtype = cases[i].t,
                                        .v_dtype = cases[i].t};
        assert_int_equal(kv_layout_init(&l, &c, NULL), 0);
        assert_int_equal(l.page_bytes, cases[i].want);
        kv_layout_fini(&l);
    }
}

static void test_shapes_that_do_not_fit_refused(void **state) {
    (void)state;
    const struct kv_layout_cfg ok = {.n_layer = 2, .n_kv_head = 2, .d_head = 64, .block_tok = 32};
    struct kv_layout_cfg c[6] = {ok, ok, ok, ok, ok, ok};
    struct errbuf eb;
    struct kv_layout l;
    c[0].n_layer = 0;
    c[1].n_layer = KV_MAX_RANGES + 1;
    c[2].d_head = 10, c[2].n_kv_head = 1, c[2].block_tok = 4; /* 160 bytes a layer */
    c[3].k_dtype = KV_Q8_0, c[3].d_head = 48;
    c[4].v_dtype = KV_Q4_0, c[4].block_tok = 8;
    c[5].d_head = 1u << 20, c[5].block_tok = 1024; /* beyond 32 bits */
    const int want[6] = {ERR_TOOBIG,      ERR_TOOBIG,      ERR_UNSUPPORTED,
                         ERR_UNSUPPORTED, ERR_UNSUPPORTED, ERR_UNSUPPORTED};
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        assert_int_equal(kv_layout_init(&l, &c[i], &eb), want[i]);
        assert_true(eb.text[0] != 0);
    }
}

static void test_rows_that_cannot_be_rounded_are_errors(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -9e6f};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        for (int q4 = 0; q4 < 2; q4++) {
            float x[2 * D] = {1, 2, 3};
            int8_t q[2 * D];
            uint16_t s[2];
            x[D + 7] = bad[i];
            assert_false(kv_quant_row(q, s, x, 2 * D, q4 ? KV_Q4_0 : KV_Q8_0));
        }
    float x[D] = {0}; /* the largest that has a finite scale: 65504 * 127 rounds there */
    int8_t q[D];
    uint16_t s;
    x[3] = 65504.0f * 127.0f;
    assert_true(kv_quant_row(q, &s, x, D, KV_Q8_0));
    assert_int_equal(q[3], 127);
    assert_int_equal(q[4], 0);
}

int main(int argc, char **argv) {
    assert_int_equal(argc, 2);
    golden_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_match_the_golden_bytes),
        cmocka_unit_test(test_ranges_are_full_layers_then_windows),
        cmocka_unit_test(test_sizes_are_those_of_the_models),
        cmocka_unit_test(test_shapes_that_do_not_fit_refused),
        cmocka_unit_test(test_rows_that_cannot_be_rounded_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
