#include "common/hmap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/err.h"
#include "tests/support/fault.h"

#define N 512u

struct fixture {
    struct hmap m;
    uint8_t ids[N][HMAP_ID_BYTES];
};

static const uint8_t *key(const void *arg, uint32_t index) {
    return ((const struct fixture *)arg)->ids[index];
}

static uint64_t next_random(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static struct fixture *make(uint32_t max) {
    struct fixture *f = calloc(1, sizeof(*f));
    uint64_t x = 88172645463325252ull;
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t k = 0; k < HMAP_ID_BYTES; k++)
            f->ids[i][k] = (uint8_t)next_random(&x);
    assert_int_equal(hmap_init(&f->m, max, 1234, key, f), 0);
    return f;
}

static void drop(struct fixture *f) {
    hmap_fini(&f->m);
    free(f);
}

static void test_insert_find_remove(void **state) {
    (void)state;
    struct fixture *f = make(3);
    assert_int_equal(hmap_find(&f->m, f->ids[0]), HMAP_NONE);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(hmap_insert(&f->m, f->ids[i], i), 0);
    assert_int_equal(hmap_insert(&f->m, f->ids[1], 1), ERR_EXISTS);
    assert_int_equal(hmap_insert(&f->m, f->ids[3], 3), ERR_NOSPACE);
    assert_int_equal(hmap_find(&f->m, f->ids[2]), 2);
    assert_true(hmap_remove(&f->m, f->ids[1]));
    assert_false(hmap_remove(&f->m, f->ids[1]));
    assert_int_equal(hmap_insert(&f->m, f->ids[3], 3), 0);
    assert_int_equal(hmap_find(&f->m, f->ids[1]), HMAP_NONE);
    hmap_clear(&f->m);
    assert_int_equal(hmap_find(&f->m, f->ids[2]), HMAP_NONE);
    drop(f);
}

/* A long random walk beside a plain array of what must be in it: backward shift is easy to get
 * wrong. */
static void test_random_walk_against_a_model(void **state) {
    (void)state;
    struct fixture *f = make(300);
    bool in[N] = {false};
    uint32_t n = 0;
    uint64_t x = 42;
    uint64_t before = malloc_probe_count();
    for (int step = 0; step < 200000; step++) {
        uint32_t i = (uint32_t)(next_random(&x) % N);
        if (next_random(&x) & 1) {
            int want = in[i] ? ERR_EXISTS : n == 300 ? ERR_NOSPACE : 0;
            assert_int_equal(hmap_insert(&f->m, f->ids[i], i), want);
            n += want == 0;
            in[i] = in[i] || want == 0;
        } else {
            assert_int_equal(hmap_remove(&f->m, f->ids[i]), in[i]);
            n -= in[i];
            in[i] = false;
        }
        if (step % 1000 == 0)
            for (uint32_t k = 0; k < N; k++)
                assert_int_equal(hmap_find(&f->m, f->ids[k]), in[k] ? k : HMAP_NONE);
    }
    assert_int_equal(malloc_probe_count(), before); /* no allocation after init */
    uint32_t cursor = 0, seen = 0;
    for (uint32_t i; (i = hmap_next(&f->m, &cursor)) != HMAP_NONE; seen++) {
        assert_true(in[i]);
        in[i] = false;
    }
    assert_int_equal(seen, n);
    drop(f);
}

/* Ids that agree in their first 24 bytes, as somebody who wants collisions would choose them. */
static void test_ids_equal_at_the_front_spread(void **state) {
    (void)state;
    struct fixture *f = make(N);
    uint32_t longest = 0, run = 0;
    for (uint32_t i = 0; i < N; i++) {
        memset(f->ids[i], 7, HMAP_ID_BYTES);
        memcpy(f->ids[i] + 28, &i, 4);
        assert_int_equal(hmap_insert(&f->m, f->ids[i], i), 0);
    }
    for (uint32_t i = 0; i <= f->m.mask; i++) {
        run = f->m.places[i].index == HMAP_NONE ? 0 : run + 1;
        longest = MAX(longest, run);
    }
    assert_in_range(longest, 1, 80);
    drop(f);
}

static void test_init_refuses(void **state) {
    (void)state;
    struct hmap m;
    assert_int_equal(hmap_init(&m, 0, 1, key, NULL), ERR_INVALID);
    assert_int_equal(hmap_init(&m, UINT32_MAX, 1, key, NULL), ERR_INVALID);
    fault_arm(0);
    assert_int_equal(hmap_init(&m, 8, 1, key, NULL), ERR_NOMEM);
    fault_disarm();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_insert_find_remove),
        cmocka_unit_test(test_random_walk_against_a_model),
        cmocka_unit_test(test_ids_equal_at_the_front_spread),
        cmocka_unit_test(test_init_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
