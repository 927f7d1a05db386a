/* test_loop.h - a libuv loop for tests that fails, naming them, when handles are still alive at the
 * end.
 *
 *     struct test_loop tl;
 *     test_loop_setup(&tl); ... test_loop_until(&tl, &flag); ... test_loop_teardown(&tl);
 * Thread: the test's. */
#pragma once

#include <uv.h>

#include "common/compiler.h"

struct test_loop {
    uv_loop_t loop;
    uv_timer_t guard; /* ends a wait that nothing else would end */
    bool timed_out;
};

void test_loop_setup(struct test_loop *t);
/* Runs the loop until it is empty, at most 10 s, then closes it; prints what is still open and
 * aborts. */
void test_loop_teardown(struct test_loop *t);
/* Turns the loop until *flag (false: 10 s passed). */
bool test_loop_until(struct test_loop *t, const bool *flag);
/* One turn without waiting. */
void test_loop_turn(struct test_loop *t);
/* Turns the loop until the predicate holds, waiting for events in between; false after 10 s. */
bool test_loop_until_fn(struct test_loop *t, bool (*pred)(void *arg), void *arg);
