#include "tests/support/test_loop.h"

#include "common/check.h"

#define GUARD_MS 10000u

static void on_guard(uv_timer_t *h) {
    struct test_loop *t = h->data;
    t->timed_out = true;
}

void test_loop_setup(struct test_loop *t) {
    CHECK(uv_loop_init(&t->loop) == 0);
    CHECK(uv_timer_init(&t->loop, &t->guard) == 0);
    t->guard.data = t;
    t->timed_out = false;
}

static void print_handle(uv_handle_t *h, void *arg) {
    (void)arg;
    fprintf(stderr, "test_loop: still alive: %s%s\n", uv_handle_type_name(h->type),
            uv_is_closing(h) ? " (closing)" : "");
}

/* The guard is active but unreferenced, so that a loop without other work returns at once. */
static void guard_start(struct test_loop *t) {
    t->timed_out = false;
    uv_timer_start(&t->guard, on_guard, GUARD_MS, 0);
    uv_unref((uv_handle_t *)&t->guard);
}

void test_loop_teardown(struct test_loop *t) {
    guard_start(t);
    while (!t->timed_out && uv_run(&t->loop, UV_RUN_ONCE)) {
    }
    uv_close((uv_handle_t *)&t->guard, NULL);
    uv_run(&t->loop, UV_RUN_NOWAIT);
    if (uv_loop_close(&t->loop) != 0) {
        uv_walk(&t->loop, print_handle, NULL);
        UNREACHABLE("handles are still alive");
    }
}

bool test_loop_until_fn(struct test_loop *t, bool (*pred)(void *arg), void *arg) {
    guard_start(t);
    uv_ref((uv_handle_t *)&t->guard); /* wait for events of other loops and threads, too */
    while (!pred(arg) && !t->timed_out)
        uv_run(&t->loop, UV_RUN_ONCE);
    uv_timer_stop(&t->guard);
    return pred(arg);
}

static bool is_set(void *arg) {
    return *(const bool *)arg;
}

bool test_loop_until(struct test_loop *t, const bool *flag) {
    return test_loop_until_fn(t, is_set, (void *)(uintptr_t)flag);
}

void test_loop_turn(struct test_loop *t) {
    uv_run(&t->loop, UV_RUN_NOWAIT);
}
