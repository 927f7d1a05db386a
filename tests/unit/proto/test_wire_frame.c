#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "proto/wire_frame.h"

static const struct wire_limits lim = {.max_msg_bytes = 1000, .max_payload_bytes = 5000};

static size_t make(uint8_t *p, const char *msg, uint32_t payload_len) {
    struct wire_hdr h = {.version = WIRE_VERSION,
                         .flags = WIRE_F_RESPONSE | WIRE_F_END,
                         .method = WIRE_FETCH,
                         .request_id = 0x0102030405060708ull,
                         .msg_len = (uint32_t)strlen(msg),
                         .payload_len = payload_len,
                         .deadline_ms = 250};
    wire_hdr_encode(&h, msg, p);
    memcpy(p + WIRE_HDR_BYTES, msg, h.msg_len);
    return WIRE_HDR_BYTES + h.msg_len;
}

/* Offsets are the specification's: a client in another language relies on them. */
static void test_encode_puts_fields_where_the_page_says(void **state) {
    uint8_t p[128];
    (void)state;
    make(p, "hello", 0x11223344);
    assert_memory_equal(p, "INCP", 4);
    assert_int_equal(p[4], 2);
    assert_int_equal(p[5], 3);
    assert_int_equal(p[6] | p[7] << 8, 5);
    assert_int_equal(p[8], 8);
    assert_int_equal(p[15], 1);
    assert_int_equal(p[16], 5);
    assert_int_equal(p[20], 0x44);
    assert_int_equal(p[23], 0x11);
    assert_int_equal(p[24], 250);
}

static void test_read_needs_exactly_what_is_missing(void **state) {
    uint8_t p[128];
    struct wire_hdr h;
    (void)state;
    size_t n = make(p, "hello", 100);
    for (size_t got = 0; got < n; got++) {
        int64_t need = wire_frame_read(&lim, p, got, &h);
        assert_int_equal(need, got < WIRE_HDR_BYTES ? WIRE_HDR_BYTES - got : n - got);
    }
    assert_int_equal(wire_frame_read(&lim, p, n, &h), 0);
    assert_int_equal(h.request_id, 0x0102030405060708ull);
    assert_int_equal(h.method, WIRE_FETCH);
    assert_int_equal(h.payload_len, 100);
    assert_int_equal(h.deadline_ms, 250);
}

static void test_read_any_flipped_bit_is_refused(void **state) {
    uint8_t p[128];
    struct wire_hdr h;
    (void)state;
    size_t n = make(p, "hello", 100);
    for (size_t bit = 0; bit < n * 8; bit++) {
        p[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        int64_t r = wire_frame_read(&lim, p, n, &h);
        assert_true(r != 0); /* an error, or a length that waits for more and fails then */
        p[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
}

static void test_read_wrong_magic_is_proto_error(void **state) {
    uint8_t p[128];
    struct wire_hdr h;
    (void)state;
    size_t n = make(p, "x", 0);
    p[0] = 'G';
    assert_int_equal(wire_frame_read(&lim, p, n, &h), ERR_PROTO);
}

static void test_read_other_version_is_unsupported_and_names_the_request(void **state) {
    uint8_t p[128];
    struct wire_hdr h;
    (void)state;
    size_t n = make(p, "x", 0);
    p[4] = 1;
    assert_int_equal(wire_frame_read(&lim, p, n, &h), ERR_UNSUPPORTED);
    p[4] = 3;
    p[5] = 0xff; /* flags mean what that version says */
    assert_int_equal(wire_frame_read(&lim, p, n, &h), ERR_UNSUPPORTED);
    assert_int_equal(h.request_id, 0x0102030405060708ull);
}

static void test_read_unknown_flag_is_proto_error(void **state) {
    uint8_t p[128];
    struct wire_hdr h;
    (void)state;
    size_t n = make(p, "x", 0);
    p[5] |= 0x10;
    assert_int_equal(wire_frame_read(&lim, p, n, &h), ERR_PROTO);
}

static void test_read_lengths_over_limits_are_refused_by_the_header_alone(void **state) {
    uint8_t p[128];
    struct wire_hdr h;
    (void)state;
    make(p, "x", lim.max_payload_bytes + 1);
    assert_int_equal(wire_frame_read(&lim, p, WIRE_HDR_BYTES, &h), ERR_TOOBIG);
    make(p, "x", lim.max_payload_bytes);
    assert_int_equal(wire_frame_read(&lim, p, WIRE_HDR_BYTES, &h), 1);
    make(p, "x", 0);
    memset(p + 16, 0xff, 4); /* a message of 4 GiB */
    assert_int_equal(wire_frame_read(&lim, p, WIRE_HDR_BYTES, &h), ERR_TOOBIG);
}

static void test_error_codes_are_there_and_back(void **state) {
    (void)state;
    static const int crossing[] = {ERR_INVALID,  ERR_UNIMPLEMENTED, ERR_BUSY,        ERR_NOTFOUND,
                                   ERR_DENIED,   ERR_CONFLICT,      ERR_TOOBIG,      ERR_TIMEOUT,
                                   ERR_CANCELED, ERR_CORRUPT,       ERR_NOSPACE,     ERR_INTERNAL,
                                   ERR_PROTO,    ERR_UNSUPPORTED,   ERR_UNAVAILABLE, ERR_EXISTS};
    for (size_t i = 0; i < ARRAY_LEN(crossing); i++) {
        assert_int_equal(wire_err_to_code(crossing[i]), i + 1);
        assert_int_equal(wire_err_from_code((uint32_t)i + 1), crossing[i]);
    }
    assert_int_equal(wire_err_to_code(-5), 12); /* an errno is nobody's business outside */
    assert_int_equal(wire_err_from_code(999), ERR_INTERNAL);
}

static void test_method_names(void **state) {
    (void)state;
    assert_string_equal(wire_method_name(3), "Lookup");
    assert_string_equal(wire_method_name(75), "Events");
    assert_string_equal(wire_method_name(999), "method");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_puts_fields_where_the_page_says),
        cmocka_unit_test(test_read_needs_exactly_what_is_missing),
        cmocka_unit_test(test_read_any_flipped_bit_is_refused),
        cmocka_unit_test(test_read_wrong_magic_is_proto_error),
        cmocka_unit_test(test_read_other_version_is_unsupported_and_names_the_request),
        cmocka_unit_test(test_read_unknown_flag_is_proto_error),
        cmocka_unit_test(test_read_lengths_over_limits_are_refused_by_the_header_alone),
        cmocka_unit_test(test_error_codes_are_there_and_back),
        cmocka_unit_test(test_method_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
