#include "common/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <signal.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/fake_clock.h"

struct fixture {
    struct fake_clock fc;
    struct log *l;
    int fds[2];
    char text[65536];
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    fake_clock_init(&f->fc);
    assert_int_equal(pipe(f->fds), 0);
    struct log_cfg cfg = {.prog = "toy",
                          .clk = &f->fc.clk,
                          .fd = f->fds[1],
                          .level = LOG_LEVEL_INFO,
                          .burst = 2,
                          .sync = true};
    assert_int_equal(log_new(&f->l, &cfg), 0);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    log_free(f->l);
    close(f->fds[0]);
    close(f->fds[1]);
    free(f);
    return 0;
}

static const char *drain(struct fixture *f) {
    ssize_t n = read(f->fds[0], f->text, sizeof(f->text) - 1);
    f->text[n > 0 ? n : 0] = '\0';
    return f->text;
}

static void test_line_form(void **state) {
    struct fixture *f = *state;
    log_debug(f->l, "below the level", "x=%d", 1);
    log_warn(f->l, "disk read failed", "slot=%u err=%s", 7u, "bad\nthing\x1b");
    assert_string_equal(
        drain(f), "ts=2026-01-01T00:00:00.000Z level=warn prog=toy event=\"disk read failed\" "
                  "slot=7 err=\"bad\\nthing\\u001b\"\n");
    log_info(f->l, "plain");
    assert_string_equal(drain(f), "ts=2026-01-01T00:00:00.000Z level=info prog=toy event=plain\n");
    log_info(NULL, "swallowed", "x=%d", 1);
}

static void many(struct fixture *f, int n) {
    for (int i = 0; i < n; i++)
        log_info(f->l, "repeats", "i=%d", i);
}

static void test_repeats_are_suppressed_and_counted(void **state) {
    struct fixture *f = *state;
    many(f, 10);
    drain(f);
    assert_non_null(strstr(f->text, "i=1\n"));
    assert_null(strstr(f->text, "i=2\n"));
    assert_int_equal(log_suppressed_total(f->l), 8);
    log_info(f->l, "another event"); /* has its own window */
    assert_non_null(strstr(drain(f), "another"));
    fake_clock_advance_ms(&f->fc, 1001);
    many(f, 1);
    assert_non_null(strstr(drain(f), " suppressed=8 i=0\n"));
}

static void test_long_line_is_cut_not_overrun(void **state) {
    struct fixture *f = *state;
    char big[5000];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    log_error(f->l, "big", "v=%s", big);
    drain(f);
    assert_in_range(strlen(f->text), 1000, 2048);
    assert_int_equal(f->text[strlen(f->text) - 1], '\n');
}

static void test_full_ring_drops_and_counts(void **state) {
    (void)state;
    int fds[2];
    struct log *l;
    assert_int_equal(pipe(fds), 0);
    struct log_cfg cfg = {.prog = "toy", .fd = fds[1], .ring_bytes = 4096, .burst = 100000};
    assert_int_equal(log_new(&l, &cfg), 0);
    for (int i = 0; i < 5000; i++) /* nobody reads: pipe and ring fill up */
        log_info(l, "flood", "pad=%0100d", i);
    assert_true(log_dropped_total(l) > 0);
    close(fds[0]); /* the writer sees EPIPE and gives up waiting */
    log_free(l);
    close(fds[1]);
}

/* E6: SIGTERM is bounded: whoever reads our stderr may have stopped reading, and the end of the log
 * waited for it for ever. */
static void test_end_does_not_wait_for_a_reader_that_hangs(void **state) {
    (void)state;
    int fds[2];
    struct log *l;
    assert_int_equal(pipe(fds), 0);
    struct log_cfg cfg = {.prog = "toy", .fd = fds[1], .burst = 100000};
    assert_int_equal(log_new(&l, &cfg), 0);
    for (int i = 0; i < 1000; i++)
        log_info(l, "flood", "pad=%0100d", i);
    log_flush(l);
    log_free(l);
    close(fds[0]); /* the thread that was left behind ends; fds[1] is its own until then */
}

int main(void) {
    alarm(60);
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_line_form, setup, teardown),
        cmocka_unit_test_setup_teardown(test_repeats_are_suppressed_and_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_line_is_cut_not_overrun, setup, teardown),
        cmocka_unit_test(test_full_ring_drops_and_counts),
        cmocka_unit_test(test_end_does_not_wait_for_a_reader_that_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
