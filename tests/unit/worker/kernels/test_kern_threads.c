#include "kern_fixture.h"

#include <stdatomic.h>

#include "worker/kernels/kern_threads.h"

#define N_ITEMS 1000

struct count {
    _Atomic unsigned hits[N_ITEMS];
    _Atomic unsigned bad_thread;
    unsigned size;
};

static void count_items(void *arg, size_t begin, size_t end, unsigned thread) {
    struct count *c = arg;
    if (thread >= c->size)
        atomic_fetch_add(&c->bad_thread, 1);
    for (size_t i = begin; i < end; i++)
        atomic_fetch_add(&c->hits[i], 1);
}

/* Thousands of rounds of changing size and grain, so that late members meet every state. */
static void test_every_item_is_done_once(void **state) {
    (void)state;
    static const unsigned sizes[] = {1, 2, 3, 8};
    static struct count c;
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        struct kern_team *t;
        assert_int_equal(kern_team_new(&t, sizes[s], NULL), 0);
        assert_int_equal(kern_team_size(t), sizes[s]);
        memset(&c, 0, sizeof c);
        c.size = sizes[s];
        unsigned rounds = 3000;
        for (unsigned r = 0; r < rounds; r++)
            kern_team_for(t, N_ITEMS - r % 7, 1 + r % 90, count_items, &c);
        for (size_t i = 0; i < N_ITEMS - 6; i++)
            assert_int_equal(c.hits[i], rounds);
        assert_int_equal(c.bad_thread, 0);
        kern_team_free(t);
    }
}

static void test_no_team_and_no_items_are_fine(void **state) {
    (void)state;
    static struct count c;
    c.size = 1;
    kern_team_for(NULL, 5, 2, count_items, &c);
    kern_team_for(NULL, 0, 1, count_items, &c);
    assert_int_equal(c.hits[4], 1);
    assert_int_equal(c.hits[5], 0);
    kern_team_free(NULL);
    struct kern_team *t;
    assert_int_equal(kern_team_new(&t, 0, NULL), ERR_INVALID);
    assert_int_equal(kern_team_new(&t, KERN_TEAM_MAX + 1, NULL), ERR_INVALID);
}

/* A denormal product survives on every thread, also when the caller's thread had FTZ on. */
static void denormal_item(void *arg, size_t begin, size_t end, unsigned thread) {
    (void)end, (void)thread;
    volatile float tiny = 0x1p-130f, half = 0.5f;
    ((volatile float *)arg)[begin] = tiny * half;
}

static void test_denormals_live_on_every_thread(void **state) {
    (void)state;
    struct kern_team *t;
    assert_int_equal(kern_team_new(&t, 3, NULL), 0);
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(0x9fc0); /* FTZ and DAZ */
#endif
    float out[64] = {0};
    kern_team_for(t, 64, 1, denormal_item, out);
    for (size_t i = 0; i < 64; i++)
        assert_true(out[i] == 0x1p-131f);
    kern_team_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_is_done_once),
        cmocka_unit_test(test_no_team_and_no_items_are_fine),
        cmocka_unit_test(test_denormals_live_on_every_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
