#include "common/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tests/support/fault.h"

static void test_the_last_reference_frees(void **state) {
    (void)state;
    struct buf *b = buf_new(100);
    assert_int_equal((uintptr_t)b->data % 64, 0);
    assert_int_equal(b->cap, 100);
    assert_int_equal(b->len, 0);
    memcpy(b->data, "hello", 5);
    struct buf *again = buf_ref(b);
    buf_unref(b);
    assert_memory_equal(again->data, "hello", 5);
    buf_unrefp(&again);
    assert_null(again);
    buf_unref(NULL);
}

static void on_release(struct buf *b) {
    ++*(int *)b->owner;
}

static void test_extern_is_given_back_once(void **state) {
    (void)state;
    struct buf b;
    int released = 0;
    char bytes[4] = "abc";
    buf_init_extern(&b, bytes, 3, on_release, &released);
    buf_ref(&b);
    buf_unref(&b);
    assert_int_equal(released, 0);
    buf_unref(&b);
    assert_int_equal(released, 1);
}

static void test_out_of_memory_is_null(void **state) {
    (void)state;
    for (uint64_t n = 0;; n++) {
        fault_arm(n);
        struct buf *b = buf_new(10);
        bool fired = fault_fired();
        fault_disarm();
        if (!fired) {
            buf_unref(b);
            break;
        }
        assert_null(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_reference_frees),
        cmocka_unit_test(test_extern_is_given_back_once),
        cmocka_unit_test(test_out_of_memory_is_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
