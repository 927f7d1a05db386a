/* test_gguf.c - the loader takes good files, and refuses each kind of bad one with a reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/tiny_model.h"
#include "worker/kernels/quant.h"
#include "worker/model/gguf.h"

/* A file under construction. */
struct file {
    uint8_t b[8192];
    size_t n;
};

static void put(struct file *f, uint64_t v, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        f->b[f->n++] = (uint8_t)(v >> (8 * i));
}

static void put_text(struct file *f, const char *s) {
    put(f, strlen(s), 8);
    memcpy(f->b + f->n, s, strlen(s));
    f->n += strlen(s);
}

static struct file begin(uint32_t version, uint64_t n_tensors, uint64_t n_kv) {
    struct file f = {.b = "GGUF", .n = 4};
    put(&f, version, 4);
    put(&f, n_tensors, 8);
    put(&f, n_kv, 8);
    return f;
}

static void key_u32(struct file *f, const char *key, uint32_t v) {
    put_text(f, key);
    put(f, GGUF_U32, 4);
    put(f, v, 4);
}

static void tensor(struct file *f, const char *name, uint64_t n, uint32_t type, uint64_t off) {
    put_text(f, name);
    put(f, 1, 4);
    put(f, n, 8);
    put(f, type, 4);
    put(f, off, 8);
}

static void pad(struct file *f, size_t to) {
    while (f->n % to)
        put(f, 0, 1);
}

static struct gguf *parse_ok(const struct file *f) {
    struct gguf *g = NULL;
    struct errbuf eb = {.text = ""};
    int rv = gguf_parse(&g, f->b, f->n, &eb);
    if (rv < 0)
        print_message("%s\n", eb.text);
    assert_int_equal(rv, 0);
    return g;
}

/* Refused with this code and a text that holds the words. */
static void refused(const struct file *f, int rv, const char *words) {
    struct gguf *g = NULL;
    struct errbuf eb = {.text = ""};
    assert_int_equal(gguf_parse(&g, f->b, f->n, &eb), rv);
    assert_null(g);
    if (!strstr(eb.text, words))
        print_message("'%s' lacks '%s'\n", eb.text, words);
    assert_non_null(strstr(eb.text, words));
}

static void test_parse_every_scalar_type_reads_back(void **state) {
    (void)state;
    struct file f = begin(2, 0, 6);
    key_u32(&f, "u", 7);
    put_text(&f, "i8");
    put(&f, GGUF_I8, 4);
    put(&f, 0xfe, 1);
    put_text(&f, "f");
    put(&f, GGUF_F32, 4);
    put(&f, 0x3fc00000, 4); /* 1.5 */
    put_text(&f, "d");
    put(&f, GGUF_F64, 4);
    put(&f, 0x4004000000000000ull, 8); /* 2.5 */
    put_text(&f, "yes");
    put(&f, GGUF_BOOL, 4);
    put(&f, 1, 1);
    put_text(&f, "s");
    put(&f, GGUF_STRING, 4);
    put_text(&f, "hello");
    struct gguf *g = parse_ok(&f);
    struct errbuf eb;
    uint32_t u;
    float v;
    bool yes;
    struct gguf_str s;
    assert_int_equal(gguf_version(g), 2);
    assert_int_equal(gguf_get_u32(g, "u", &u, &eb), 1);
    assert_int_equal(u, 7);
    assert_int_equal(gguf_elem_i64(gguf_find(g, "i8"), 0), -2);
    assert_int_equal(gguf_get_u32(g, "i8", &u, &eb), ERR_INVALID); /* negative */
    assert_non_null(strstr(eb.text, "i8"));
    assert_int_equal(gguf_get_f32(g, "f", &v, &eb), 1);
    assert_true(v == 1.5f);
    assert_int_equal(gguf_get_f32(g, "d", &v, &eb), 1);
    assert_true(v == 2.5f);
    assert_int_equal(gguf_get_f32(g, "u", &v, &eb), 1);
    assert_true(v == 7);
    assert_int_equal(gguf_get_f32(g, "s", &v, &eb), ERR_INVALID);
    assert_int_equal(gguf_get_bool(g, "yes", &yes, &eb), 1);
    assert_true(yes);
    assert_int_equal(gguf_get_str(g, "s", &s, &eb), 1);
    assert_true(gguf_str_is(s, "hello"));
    assert_int_equal(gguf_get_u32(g, "absent", &u, &eb), 0);
    assert_null(gguf_find(g, "absent"));
    gguf_free(g);
}

static void test_parse_arrays_read_back(void **state) {
    (void)state;
    struct file f = begin(3, 0, 2);
    put_text(&f, "n");
    put(&f, GGUF_ARRAY, 4);
    put(&f, GGUF_U16, 4);
    put(&f, 3, 8);
    put(&f, 0x000300020001ull, 6);
    put_text(&f, "words");
    put(&f, GGUF_ARRAY, 4);
    put(&f, GGUF_STRING, 4);
    put(&f, 2, 8);
    put_text(&f, "one");
    put_text(&f, "");
    struct gguf *g = parse_ok(&f);
    const struct gguf_kv *kv = gguf_find(g, "n");
    assert_int_equal(kv->count, 3);
    assert_int_equal(gguf_elem_u64(kv, 2), 3);
    struct gguf_str_iter it = {.kv = gguf_find(g, "words")};
    struct gguf_str s;
    assert_true(gguf_str_next(&it, &s));
    assert_true(gguf_str_is(s, "one"));
    assert_true(gguf_str_next(&it, &s));
    assert_int_equal(s.len, 0);
    assert_false(gguf_str_next(&it, &s));
    gguf_free(g);
}

static void test_parse_tensor_data_starts_at_alignment(void **state) {
    (void)state;
    struct file f = begin(3, 2, 1);
    key_u32(&f, "general.alignment", 64);
    tensor(&f, "a", 3, QUANT_F32, 0);
    tensor(&f, "b", 32, QUANT_Q8_0, 64);
    pad(&f, 64);
    size_t data = f.n;
    f.n += 64 + 34;
    struct gguf *g = parse_ok(&f);
    const struct gguf_tensor *a = gguf_find_tensor(g, "a"), *b = gguf_find_tensor(g, "b");
    assert_int_equal(a->off, data);
    assert_int_equal(a->bytes, 12);
    assert_int_equal(b->off, data + 64);
    assert_int_equal(b->bytes, 34);
    assert_int_equal(b->ne[1], 1);
    assert_null(gguf_find_tensor(g, "c"));
    gguf_free(g);
    f.n--; /* one byte short: tensor b runs past the end */
    refused(&f, ERR_CORRUPT, "tensor 'b'");
}

static void test_parse_foreign_headers_refused(void **state) {
    (void)state;
    struct file f = begin(3, 0, 0);
    f.b[0] = 'X';
    refused(&f, ERR_CORRUPT, "not a GGUF");
    f = begin(1, 0, 0);
    refused(&f, ERR_UNSUPPORTED, "version 1");
    f = begin(4, 0, 0);
    refused(&f, ERR_UNSUPPORTED, "version 4");
    f = begin(0x03000000, 0, 0);
    refused(&f, ERR_UNSUPPORTED, "big-endian");
    f = begin(3, 0, 0);
    f.n = 20;
    refused(&f, ERR_CORRUPT, "header");
}

static void test_parse_impossible_counts_refused_before_allocation(void **state) {
    (void)state;
    struct file f = begin(3, UINT64_MAX, 0);
    refused(&f, ERR_CORRUPT, "number of tensors");
    f = begin(3, 0, 1ull << 60);
    refused(&f, ERR_CORRUPT, "number of metadata keys");
    f = begin(3, 0, 1);
    put_text(&f, "a");
    put(&f, GGUF_ARRAY, 4);
    put(&f, GGUF_U64, 4);
    put(&f, 1ull << 61, 8); /* times 8 wraps to 0 */
    refused(&f, ERR_CORRUPT, "key 'a'");
}

static void test_parse_bad_keys_refused(void **state) {
    (void)state;
    struct file f = begin(3, 0, 2);
    key_u32(&f, "twice", 1);
    key_u32(&f, "twice", 2);
    refused(&f, ERR_CORRUPT, "'twice' stands twice");
    f = begin(3, 0, 1);
    key_u32(&f, "", 1);
    refused(&f, ERR_CORRUPT, "empty");
    f = begin(3, 0, 1);
    put_text(&f, "t");
    put(&f, 13, 4);
    put(&f, 0, 8);
    refused(&f, ERR_CORRUPT, "value type 13");
    f = begin(3, 0, 1);
    put_text(&f, "nested");
    put(&f, GGUF_ARRAY, 4);
    put(&f, GGUF_ARRAY, 4);
    put(&f, 0, 8);
    refused(&f, ERR_CORRUPT, "nested");
    f = begin(3, 0, 1);
    put_text(&f, "s");
    put(&f, GGUF_STRING, 4);
    put(&f, UINT64_MAX, 8);
    refused(&f, ERR_CORRUPT, "key 's'");
}

static void test_parse_bad_alignment_refused(void **state) {
    (void)state;
    const uint32_t bad[] = {0, 1, 4, 24, 33, 1u << 21, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct file f = begin(3, 0, 1);
        key_u32(&f, "general.alignment", bad[i]);
        refused(&f, ERR_CORRUPT, "general.alignment");
    }
}

static void test_parse_split_file_refused_by_part(void **state) {
    (void)state;
    struct file f = begin(3, 0, 2);
    key_u32(&f, "split.no", 1);
    key_u32(&f, "split.count", 3);
    refused(&f, ERR_UNSUPPORTED, "part 2 of 3");
    f = begin(3, 0, 2);
    key_u32(&f, "split.no", 3);
    key_u32(&f, "split.count", 3);
    refused(&f, ERR_CORRUPT, "split.no 3");
}

static void test_parse_bad_tensors_refused(void **state) {
    (void)state;
    struct file f = begin(3, 1, 0);
    tensor(&f, "t", 33, QUANT_Q8_0, 0);
    pad(&f, 32);
    f.n += 64;
    refused(&f, ERR_CORRUPT, "whole Q8_0 blocks");
    f = begin(3, 1, 0);
    tensor(&f, "t", 4, 99, 0);
    f.n += 64;
    refused(&f, ERR_UNSUPPORTED, "unknown tensor type 99");
    f = begin(3, 1, 0);
    tensor(&f, "t", 4, QUANT_F32, 32);
    f.n += 128;
    refused(&f, ERR_CORRUPT, "offset 32, expected 0");
    f = begin(3, 1, 0);
    tensor(&f, "t", 0, QUANT_F32, 0);
    refused(&f, ERR_CORRUPT, "impossible dimensions");
    f = begin(3, 1, 0);
    tensor(&f, "t", 1ull << 62, QUANT_F32, 0); /* 2^64 bytes */
    refused(&f, ERR_CORRUPT, "impossible size");
    f = begin(3, 2, 0);
    tensor(&f, "t", 8, QUANT_F32, 0);
    tensor(&f, "t", 8, QUANT_F32, 32);
    pad(&f, 32);
    f.n += 64;
    refused(&f, ERR_CORRUPT, "'t' stands twice");
    f = begin(3, 1, 0);
    put_text(&f, "t");
    put(&f, 5, 4);
    f.n += 64;
    refused(&f, ERR_CORRUPT, "5 dimensions");
}

static void test_parse_product_of_dimensions_overflow_refused(void **state) {
    (void)state;
    struct file f = begin(3, 1, 0);
    put_text(&f, "t");
    put(&f, 2, 4);
    put(&f, 1ull << 33, 8);
    put(&f, 1ull << 33, 8);
    put(&f, QUANT_F32, 4);
    put(&f, 0, 8);
    refused(&f, ERR_CORRUPT, "impossible dimensions");
}

/* Every cut of a real file is refused, and none reads outside (ASan watches an exact-size copy). */
static void test_parse_any_truncation_refused(void **state) {
    (void)state;
    struct tiny_model t;
    struct tiny_spec spec = tiny_spec_of(QUANT_Q4_1);
    tiny_model_file(&t, &spec);
    FILE *f = fopen(t.path, "rb");
    assert_non_null(f);
    static uint8_t all[1 << 20];
    size_t n = fread(all, 1, sizeof(all), f);
    (void)fclose(f);
    assert_true(n > 0 && n < sizeof(all));
    for (size_t cut = 0; cut < n; cut += cut < 2000 ? 1 : 97) {
        uint8_t *copy = malloc(cut ? cut : 1);
        assert_non_null(copy);
        memcpy(copy, all, cut);
        struct gguf *g = NULL;
        struct errbuf eb;
        int rv = gguf_parse(&g, copy, cut, &eb);
        free(copy);
        if (rv == 0) /* only padding behind the last tensor may go */
            assert_true(n - cut < 32);
        gguf_free(g);
    }
    tiny_model_close(&t);
}

static void test_open_names_the_file_in_errors(void **state) {
    (void)state;
    struct gguf *g = NULL;
    struct errbuf eb;
    assert_true(gguf_open(&g, "/nonexistent/x.gguf", &eb) < 0);
    assert_non_null(strstr(eb.text, "/nonexistent/x.gguf"));
    assert_int_equal(gguf_open(&g, "/", &eb), ERR_INVALID);
    assert_non_null(strstr(eb.text, "not a regular file"));
    assert_null(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_every_scalar_type_reads_back),
        cmocka_unit_test(test_parse_arrays_read_back),
        cmocka_unit_test(test_parse_tensor_data_starts_at_alignment),
        cmocka_unit_test(test_parse_foreign_headers_refused),
        cmocka_unit_test(test_parse_impossible_counts_refused_before_allocation),
        cmocka_unit_test(test_parse_bad_keys_refused),
        cmocka_unit_test(test_parse_bad_alignment_refused),
        cmocka_unit_test(test_parse_split_file_refused_by_part),
        cmocka_unit_test(test_parse_bad_tensors_refused),
        cmocka_unit_test(test_parse_product_of_dimensions_overflow_refused),
        cmocka_unit_test(test_parse_any_truncation_refused),
        cmocka_unit_test(test_open_names_the_file_in_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
