/* The small ones: bump, err, list, sm, wire_cur, clock. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/bump.h"
#include "common/check.h"
#include "common/err.h"
#include "common/list.h"
#include "common/sm.h"
#include "common/wire_cur.h"
#include "tests/support/fake_clock.h"

static void test_bump(void **state) {
    (void)state;
    struct bump b;
    assert_int_equal(bump_init(&b, 64), 0);
    uint8_t *x = bump_alloc(&b, 1), *y = bump_alloc(&b, 1);
    assert_int_equal((uintptr_t)x % 16, 0);
    assert_ptr_equal(y, x + 16);
    assert_non_null(bump_alloc(&b, 32));
    assert_null(bump_alloc(&b, 1));
    assert_null(bump_alloc(&b, SIZE_MAX)); /* no wrap */
    bump_reset(&b);
    assert_ptr_equal(bump_alloc(&b, 64), x);
    bump_fini(&b);
}

static void test_err_wraps_and_names(void **state) {
    (void)state;
    struct errbuf eb = {{0}};
    assert_int_equal(err_set(&eb, ERR_CORRUPT, "tensor '%s'", "x"), ERR_CORRUPT);
    assert_int_equal(err_wrap(&eb, ERR_CORRUPT, "load %d", 7), ERR_CORRUPT);
    assert_string_equal(eb.text, "load 7: tensor 'x'");
    assert_int_equal(err_set(NULL, -ENOENT, "nobody reads this"), -ENOENT);
    assert_string_equal(err_name(ERR_NOSPACE), "ERR_NOSPACE");
    assert_string_equal(err_text(ERR_TIMEOUT), "deadline passed");
    assert_non_null(strstr(err_text(-ENOENT), "No such file"));
    for (int i = 0; i < 200; i++)
        err_wrap(&eb, ERR_CORRUPT, "a level with many words in it");
    assert_in_range(strlen(eb.text), 100, sizeof(eb.text) - 1); /* cut, not overrun */
}

struct node {
    struct list link;
    int v;
};

static void test_list(void **state) {
    (void)state;
    struct list head, other;
    struct node n[4] = {{.v = 0}, {.v = 1}, {.v = 2}, {.v = 3}};
    list_init(&head);
    assert_null(list_pop_front(&head));
    for (int i = 0; i < 3; i++)
        list_push_back(&head, &n[i].link);
    list_push_front(&head, &n[3].link);
    static const int want[] = {3, 0, 2};
    list_remove(&n[1].link);
    list_remove(&n[1].link); /* harmless */
    assert_false(list_is_linked(&n[1].link));
    int i = 0;
    LIST_FOREACH(&head, it) {
        assert_int_equal(LIST_ENTRY(it, struct node, link)->v, want[i++]);
    }
    assert_int_equal(i, 3);
    list_move(&head, &other);
    assert_true(list_empty(&head));
    assert_ptr_equal(list_pop_back(&other), &n[2].link);
    LIST_FOREACH_SAFE(&other, it, tmp) {
        list_remove(it);
    }
    assert_true(list_empty(&other));
}

enum { S_A, S_B, S_C, S_NR };
static const struct sm_state states[S_NR] = {
    [S_A] = {"a", SM_INITIAL, BIT(S_B)},
    [S_B] = {"b", 0, BIT(S_A) | BIT(S_C)},
    [S_C] = {"c", SM_FINAL, 0},
};

/* The exit signal of a child that does what must abort. */
static int child_signal(void (*fn)(void)) {
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        (void)!freopen("/dev/null", "w", stderr);
        fn();
        _exit(0);
    }
    int st = 0;
    waitpid(pid, &st, 0);
    return WIFSIGNALED(st) ? WTERMSIG(st) : 0;
}

static void forbidden_move(void) {
    struct sm m;
    sm_init(&m, states, S_NR, S_A);
    sm_move(&m, S_C);
}

static void failed_check(void) {
    CHECK(1 + 1 == 3);
}

static void test_sm_allows_and_aborts(void **state) {
    (void)state;
    struct sm m;
    sm_init(&m, states, S_NR, S_A);
    assert_false(sm_may(&m, S_C));
    assert_false(sm_may(&m, 99));
    sm_move(&m, S_B);
    sm_move(&m, S_A);
    sm_move(&m, S_B);
    sm_move(&m, S_C);
    assert_string_equal(sm_name(&m), "c");
    assert_true(sm_is_final(&m));
    assert_int_equal(child_signal(forbidden_move), SIGABRT);
    assert_int_equal(child_signal(failed_check), SIGABRT);
}

static void test_wire_cur_error_sticks(void **state) {
    (void)state;
    uint8_t bytes[16];
    struct wire_cur w = wire_cur_write(bytes, sizeof(bytes));
    wire_cur_put_u8(&w, 0x01);
    wire_cur_put_u16(&w, 0x0302);
    wire_cur_put_u32(&w, 0x07060504);
    wire_cur_put_u64(&w, 0x0f0e0d0c0b0a0908ull);
    assert_int_equal(w.err, 0);
    for (uint8_t i = 0; i < 15; i++)
        assert_int_equal(bytes[i], i + 1); /* little-endian, no padding */
    wire_cur_put_u16(&w, 1);
    assert_int_equal(w.err, ERR_CORRUPT);
    struct wire_cur r = wire_cur_read(bytes, 7);
    assert_int_equal(wire_cur_u8(&r), 1);
    wire_cur_skip(&r, 2);
    assert_int_equal(wire_cur_u32(&r), 0x07060504);
    assert_int_equal(wire_cur_u8(&r), 0); /* past the end */
    assert_int_equal(r.err, ERR_CORRUPT);
    r.len = 16;
    assert_int_equal(wire_cur_u8(&r), 0); /* for good */
    r = wire_cur_read(bytes, 4);
    assert_null(wire_cur_bytes(&r, SIZE_MAX)); /* no wrap */
}

static void test_clocks(void **state) {
    (void)state;
    struct fake_clock fc;
    fake_clock_init(&fc);
    uint64_t t = clock_mono_ns(&fc.clk), w = clock_wall_ns(&fc.clk);
    fake_clock_advance_ms(&fc, 5);
    assert_int_equal(clock_mono_ns(&fc.clk) - t, 5 * NS_PER_MS);
    assert_int_equal(clock_wall_ns(&fc.clk) - w, 5 * NS_PER_MS);
    uint64_t a = clock_mono_ns(clock_real());
    assert_true(clock_mono_ns(clock_real()) >= a);
    assert_true(clock_wall_ns(clock_real()) > 1700000000ull * NS_PER_S);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bump),
        cmocka_unit_test(test_err_wraps_and_names),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_sm_allows_and_aborts),
        cmocka_unit_test(test_wire_cur_error_sticks),
        cmocka_unit_test(test_clocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
