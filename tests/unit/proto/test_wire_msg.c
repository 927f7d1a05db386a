#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "proto/wire_frame.h"
#include "proto/wire_msg.h"
#include "tests/unit/proto/wire_samples.h"

struct fixture {
    struct bump enc, dec;
    struct buf *a, *b;
    uint64_t ret[WIRE_SAMPLE_STRUCT_BYTES / 8];
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    assert_int_equal(bump_init(&f->enc, 64 << 10), 0);
    assert_int_equal(bump_init(&f->dec, 64 << 10), 0);
    f->a = buf_new(64 << 10);
    f->b = buf_new(64 << 10);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    bump_fini(&f->enc);
    bump_fini(&f->dec);
    buf_unref(f->a);
    buf_unref(f->b);
    free(f);
    return 0;
}

static int encode(struct fixture *f, const struct wire_sample *s, const void *m, struct buf *dst) {
    bump_reset(&f->enc);
    dst->len = 0;
    return s->encode(&f->enc, m, dst);
}

static int decode(struct fixture *f, const struct wire_sample *s, const uint8_t *p, size_t n) {
    bump_reset(&f->dec);
    return s->decode(&f->dec, p, n, f->ret, NULL);
}

/* Bit i - 1 for each top level field number i in a well-formed message. */
static uint64_t fields_in(const uint8_t *p, size_t n) {
    uint64_t mask = 0;
    size_t i = 0;
    while (i < n) {
        uint64_t v[2] = {0, 0};
        for (int k = 0; k < 2; k++) { /* the tag, then a varint or a length */
            for (unsigned shift = 0;; shift += 7) {
                v[k] |= (uint64_t)(p[i] & 0x7f) << shift;
                if (!(p[i++] & 0x80))
                    break;
            }
            if (k == 0 && (v[0] & 7) == 1) {
                i += 8;
                break;
            }
        }
        if ((v[0] & 7) == 2)
            i += v[1];
        mask |= 1ull << ((v[0] >> 3) - 1);
    }
    assert_int_equal(i, n);
    return mask;
}

/* A field that somebody forgets in a field list of wire_msg*.c is missing on the wire. */
static void test_every_field_of_every_message_is_written(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < n_wire_samples; i++) {
        const struct wire_sample *s = &wire_samples[i];
        assert_int_equal(encode(f, s, s->m, f->a), 0);
        uint64_t want = ((1ull << s->n_fields) - 1) & ~s->reserved;
        if (fields_in(f->a->data, f->a->len) != want)
            fail_msg("%s: fields %llx", s->name,
                     (unsigned long long)fields_in(f->a->data, f->a->len));
    }
}

static void test_every_message_comes_back_as_it_was(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < n_wire_samples; i++) {
        const struct wire_sample *s = &wire_samples[i];
        assert_int_equal(encode(f, s, s->m, f->a), 0);
        assert_int_equal(decode(f, s, f->a->data, f->a->len), 0);
        assert_int_equal(encode(f, s, f->ret, f->b), 0);
        assert_int_equal(f->a->len, f->b->len);
        assert_memory_equal(f->a->data, f->b->data, f->a->len);
    }
}

static void test_decoded_values_are_the_encoded_ones(void **state) {
    struct fixture *f = *state;
    static const struct block_id ids[2] = {{{1}}, {{2}}};
    struct msg_lookup_req m = {.ns = 7,
                               .n_ids = 2,
                               .ids = ids,
                               .have = 1,
                               .flags = 5,
                               .traceparent = "00-x",
                               .group = 9},
                          r;
    assert_int_equal(wire_msg_lookup_req_encode(&f->enc, &m, f->a), 0);
    assert_int_equal(wire_msg_lookup_req_decode(&f->dec, f->a->data, f->a->len, &r, NULL), 0);
    memset(f->a->data, 0xcc, f->a->len); /* nothing of r points there */
    assert_int_equal(r.ns, 7);
    assert_int_equal(r.n_ids, 2);
    assert_memory_equal(r.ids, ids, sizeof(ids));
    assert_int_equal(r.have, 1);
    assert_int_equal(r.flags, 5);
    assert_string_equal(r.traceparent, "00-x");
    assert_int_equal(r.group, 9);
}

static void test_empty_message_decodes_to_defaults(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < n_wire_samples; i++) {
        int rv = decode(f, &wire_samples[i], NULL, 0);
        /* Inspect's answer must carry a block. */
        assert_int_equal(rv, strcmp(wire_samples[i].name, "inspect_res") == 0 ? ERR_PROTO : 0);
    }
    struct msg_error e;
    assert_int_equal(wire_msg_error_decode(&f->dec, NULL, 0, &e, NULL), 0);
    assert_string_equal(e.text, "");
}

static void test_truncated_messages_never_crash(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < n_wire_samples; i++) {
        const struct wire_sample *s = &wire_samples[i];
        assert_int_equal(encode(f, s, s->m, f->a), 0);
        for (size_t n = 0; n < f->a->len; n++) {
            uint8_t *exact = malloc(n + 1); /* so that ASan sees one byte too much */
            memcpy(exact + 1, f->a->data, n);
            int rv = decode(f, s, exact + 1, n);
            assert_true(rv == 0 || rv == ERR_PROTO);
            free(exact);
        }
    }
}

static void test_garbled_messages_never_crash(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < n_wire_samples; i++) {
        const struct wire_sample *s = &wire_samples[i];
        assert_int_equal(encode(f, s, s->m, f->a), 0);
        for (size_t at = 0; at < f->a->len; at++)
            for (unsigned k = 0; k < 8; k++) {
                f->a->data[at] ^= (uint8_t)(1u << k);
                int rv = decode(f, s, f->a->data, f->a->len);
                assert_true(rv == 0 || rv == ERR_PROTO || rv == ERR_TOOBIG);
                f->a->data[at] ^= (uint8_t)(1u << k);
            }
    }
}

static void test_ids_of_odd_length_are_refused(void **state) {
    struct fixture *f = *state;
    const uint8_t p[] = {0x12, 33, 1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16,
                         17,   18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33};
    struct msg_lookup_req r;
    struct errbuf eb;
    assert_int_equal(wire_msg_lookup_req_decode(&f->dec, p, sizeof(p), &r, &eb), ERR_PROTO);
    assert_string_equal(eb.text, "lookup_req: ids has 33 bytes, wants 32");
}

static void test_digest_of_wrong_length_is_refused(void **state) {
    struct fixture *f = *state;
    const uint8_t p[] = {0x0a, 3, 1, 2, 3};
    struct msg_flush_req r;
    assert_int_equal(wire_msg_flush_req_decode(&f->dec, p, sizeof(p), &r, NULL), ERR_PROTO);
}

static void test_unknown_fields_are_skipped(void **state) {
    struct fixture *f = *state;
    const uint8_t p[] = {0x08, 5, 0xf8, 0x3f, 9, 0xfa, 0x3f, 2, 'h', 'i'};
    struct msg_ack r;
    assert_int_equal(wire_msg_ack_decode(&f->dec, p, sizeof(p), &r, NULL), 0);
    assert_int_equal(r.count, 5);
}

/* Two bytes of message for a struct of 200: memory is bounded by the arena, not by the sender. */
static void test_many_empty_entries_do_not_fit_and_say_so(void **state) {
    struct fixture *f = *state;
    uint8_t p[4000];
    for (size_t i = 0; i < sizeof(p); i += 2) {
        p[i] = 0x0a;
        p[i + 1] = 0;
    }
    struct msg_list_res r;
    assert_int_equal(wire_msg_list_res_decode(&f->dec, p, sizeof(p), &r, NULL), ERR_TOOBIG);
}

static void test_encode_into_a_small_buffer_is_too_big(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < n_wire_samples; i++) {
        const struct wire_sample *s = &wire_samples[i];
        if (s->n_fields == 0)
            continue;
        assert_int_equal(encode(f, s, s->m, f->a), 0);
        struct buf small = {.data = f->b->data, .cap = f->a->len - 1};
        bump_reset(&f->enc);
        assert_int_equal(s->encode(&f->enc, s->m, &small), ERR_TOOBIG);
        assert_int_equal(small.len, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_field_of_every_message_is_written, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_every_message_comes_back_as_it_was, setup, teardown),
        cmocka_unit_test_setup_teardown(test_decoded_values_are_the_encoded_ones, setup, teardown),
        cmocka_unit_test_setup_teardown(test_empty_message_decodes_to_defaults, setup, teardown),
        cmocka_unit_test_setup_teardown(test_truncated_messages_never_crash, setup, teardown),
        cmocka_unit_test_setup_teardown(test_garbled_messages_never_crash, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ids_of_odd_length_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_digest_of_wrong_length_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unknown_fields_are_skipped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_empty_entries_do_not_fit_and_say_so, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_encode_into_a_small_buffer_is_too_big, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
