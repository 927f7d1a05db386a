#include "common/loop_work.h"

#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/err.h"
#include "tests/support/test_loop.h"

struct task {
    struct loop_job job;
    atomic_bool *gate; /* run() spins until it opens */
    atomic_int began, ran;
    int rv, n_done;
    struct task *resubmit_once;
    struct loop_work *w;
};

static int run_task(struct loop_job *j) {
    struct task *t = CONTAINER_OF(j, struct task, job);
    atomic_fetch_add(&t->began, 1);
    while (t->gate && !atomic_load(t->gate))
        sched_yield();
    atomic_fetch_add(&t->ran, 1);
    return 7;
}

static void done_task(struct loop_job *j, int rv) {
    struct task *t = CONTAINER_OF(j, struct task, job);
    t->rv = rv;
    t->n_done++;
    if (t->resubmit_once) {
        t->resubmit_once = NULL;
        assert_int_equal(loop_work_submit(t->w, j), 0);
    }
}

static void task_init(struct task *t, struct loop_work *w, atomic_bool *gate) {
    memset(t, 0, sizeof(*t));
    t->job.run = run_task;
    t->job.done = done_task;
    t->gate = gate;
    t->w = w;
}

struct fixture {
    struct test_loop tl;
    struct loop_work *w;
    bool closed;
};

static void on_closed(void *arg) {
    *(bool *)arg = true;
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    test_loop_setup(&f->tl);
    struct loop_work_cfg cfg = {.n_threads = 2, .max_queued = 4, .name = "test"};
    assert_int_equal(loop_work_open(&f->w, &f->tl.loop, &cfg), 0);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    if (f->w)
        loop_work_close(f->w, on_closed, &f->closed);
    test_loop_teardown(&f->tl);
    assert_true(f->closed);
    free(f);
    return 0;
}

static bool is_done(void *arg) {
    return ((struct task *)arg)->n_done > 0;
}

static bool has_two(void *arg) {
    return ((struct task *)arg)->n_done == 2;
}

static void test_submit_runs_and_reports(void **state) {
    struct fixture *f = *state;
    struct task t;
    task_init(&t, f->w, NULL);
    t.resubmit_once = &t;
    assert_int_equal(loop_work_submit(f->w, &t.job), 0);
    assert_true(test_loop_until_fn(&f->tl, has_two, &t));
    assert_int_equal(t.rv, 7);
    assert_int_equal(atomic_load(&t.ran), 2);
}

static void test_full_queue_is_busy(void **state) {
    struct fixture *f = *state;
    atomic_bool gate = false;
    struct task t[16];
    int n_ok = 0, n_busy = 0;
    bool taken[16];
    for (int i = 0; i < 16; i++) {
        task_init(&t[i], f->w, &gate);
        int rv = loop_work_submit(f->w, &t[i].job);
        taken[i] = rv == 0; /* not the first ones only: a thread may make room in between */
        n_ok += rv == 0;
        n_busy += rv == ERR_BUSY;
    }
    assert_int_equal(n_ok + n_busy, 16);
    assert_in_range(n_ok, 4, 6); /* 4 waiting and up to 2 running */
    atomic_store(&gate, true);
    for (int i = 0; i < 16; i++)
        if (taken[i])
            assert_true(test_loop_until_fn(&f->tl, is_done, &t[i]));
    for (int i = 0; i < 16; i++)
        assert_int_equal(t[i].n_done, taken[i]);
}

static void test_close_ends_every_job_once(void **state) {
    struct fixture *f = *state;
    atomic_bool gate = false;
    struct task t[5];
    for (int i = 0; i < 2; i++) {
        task_init(&t[i], f->w, &gate);
        assert_int_equal(loop_work_submit(f->w, &t[i].job), 0);
    }
    while (!atomic_load(&t[0].began) || !atomic_load(&t[1].began))
        sched_yield();
    for (int i = 2; i < 5; i++) {
        task_init(&t[i], f->w, &gate);
        assert_int_equal(loop_work_submit(f->w, &t[i].job), 0);
    }
    loop_work_close(f->w, on_closed, &f->closed);
    assert_true(test_loop_until_fn(&f->tl, is_done, &t[4]));
    assert_false(f->closed); /* two still run */
    struct task late;
    task_init(&late, f->w, NULL);
    assert_int_equal(loop_work_submit(f->w, &late.job), ERR_CANCELED);
    atomic_store(&gate, true);
    assert_true(test_loop_until(&f->tl, &f->closed));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(t[i].n_done, 1);
        assert_int_equal(t[i].rv, i < 2 ? 7 : ERR_CANCELED);
    }
    f->w = NULL;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_submit_runs_and_reports, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_queue_is_busy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_close_ends_every_job_once, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
