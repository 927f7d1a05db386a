/* A: every bound has a share for each client. The policy at the head of share.h, as properties. */
#include "common/share.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define USERS 24u
#define TENANTS 3u
#define TOTAL 256u

struct fixture {
    struct share s;
    struct share_tenant tenant[TENANTS];
    struct share_user user[USERS];
    uint32_t n_tenants;
};

static uint32_t rnd(uint64_t *x, uint32_t n) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return (uint32_t)(*x >> 11) % n;
}

static void make(struct fixture *f, enum share_kind kind, uint64_t total, uint64_t unit,
                 uint32_t n_tenants) {
    share_init(&f->s, kind, total, unit);
    f->n_tenants = n_tenants;
    for (uint32_t i = 0; i < n_tenants; i++)
        share_tenant_init(&f->tenant[i], &f->s);
    for (uint32_t i = 0; i < USERS; i++)
        share_user_init(&f->user[i], &f->tenant[i % n_tenants]);
}

static uint64_t take_all(struct share_user *u, uint64_t n) {
    uint64_t got = 0;
    while (share_take(u, n))
        got += n;
    return got;
}

/* Everything comes back, whatever happened before. */
static void drop(struct fixture *f) {
    for (uint32_t i = 0; i < USERS; i++) {
        share_give(&f->user[i], f->user[i].used);
        share_user_fini(&f->user[i]);
    }
    for (uint32_t i = 0; i < f->n_tenants; i++)
        share_tenant_fini(&f->tenant[i]);
    assert_int_equal(f->s.used, 0);
    assert_int_equal(f->s.asked, 0);
    assert_int_equal(f->s.dipped, 0);
    assert_int_equal(f->s.n_wanting, 0);
    assert_int_equal(f->s.n_tenants, 0);
}

static void test_share_alone_takes_all_but_what_is_kept(void **state) {
    (void)state;
    struct fixture f;
    make(&f, SHARE_RUNNING, TOTAL, 1, 1);
    assert_int_equal(take_all(&f.user[0], 1), TOTAL - TOTAL / 8);
    drop(&f);
    make(&f, SHARE_TAKEN_BACK, TOTAL, 1, 1);
    assert_int_equal(take_all(&f.user[0], 1), TOTAL);
    drop(&f);
    make(&f, SHARE_RUNNING, TOTAL, 1, 2);
    assert_int_equal(take_all(&f.user[0], 1), TOTAL - 2 * (TOTAL / 8));
    drop(&f);
    make(&f, SHARE_RUNNING, 1, 1, 1); /* nothing can be kept of one unit */
    assert_int_equal(take_all(&f.user[0], 1), 1);
    drop(&f);
    make(&f, SHARE_RUNNING, 3, 1, 2); /* nor at two levels of three */
    assert_int_equal(take_all(&f.user[0], 1), 3);
    drop(&f);
}

/* However much the first has running, a newcomer is served at once, and comes to its share before the
 * first gets any of what it gives. */
static void test_share_newcomer_comes_to_its_share_first(void **state) {
    (void)state;
    struct fixture f;
    make(&f, SHARE_RUNNING, TOTAL, 1, 1);
    struct share_user *greedy = &f.user[0], *next = &f.user[1];
    take_all(greedy, 1);
    assert_int_equal(take_all(next, 1), TOTAL / 8 / 2);
    share_wait(next, 1);
    uint64_t share = share_of(next);
    while (next->used < share) {
        assert_int_equal(share_excess(greedy), greedy->used - share_of(greedy));
        share_give(greedy, 1);
        assert_false(share_take(greedy, 1));
        assert_true(share_take(next, 1));
        share_wait(next, 1);
    }
    share_wait(next, 0);
    assert_int_equal(f.s.used, TOTAL - TOTAL / 8 / 2);
    drop(&f);
}

/* One newcomer after the other that takes what it gets and never gives: the next finds some still. */
static void test_share_each_newcomer_finds_some(void **state) {
    (void)state;
    struct fixture f;
    make(&f, SHARE_RUNNING, TOTAL, 1, 1);
    take_all(&f.user[0], 1);
    uint64_t before = TOTAL;
    for (uint32_t i = 1; i <= 6; i++) {
        uint64_t got = take_all(&f.user[i], 1);
        assert_in_range(got, 1, before);
        before = got;
    }
    drop(&f);
}

/* Beyond its share one yields to others that wait, not to itself. */
static void test_share_own_waiting_is_no_obstacle(void **state) {
    (void)state;
    struct fixture f;
    make(&f, SHARE_RUNNING, 16, 1, 1);
    assert_true(share_take(&f.user[1], 1));
    share_wait(&f.user[0], 7); /* its share is 7 of 14 */
    assert_true(share_take(&f.user[2], 1));
    for (uint32_t i = 0; i < 4; i++)
        assert_true(share_take(&f.user[0], 1));
    assert_true(share_take(&f.user[0], 8)); /* beyond its share, all that is open */
    share_wait(&f.user[0], 1);
    assert_false(share_take(&f.user[0], 1));
    drop(&f);
}

/* What can be taken back: who waits below its share is served before who gave it. */
static void test_share_taken_back_goes_to_who_waits(void **state) {
    (void)state;
    struct fixture f;
    make(&f, SHARE_TAKEN_BACK, TOTAL, 4, 1);
    struct share_user *greedy = &f.user[0], *next = &f.user[1];
    assert_int_equal(take_all(greedy, 4), TOTAL);
    assert_false(share_take(next, 4));
    share_wait(next, 4);
    assert_int_equal(share_excess(greedy), TOTAL / 2);
    share_give(greedy, 4);
    assert_false(share_take(greedy, 4));
    assert_true(share_take(next, 4));
    share_wait(next, 0);
    share_give(greedy, 4);
    assert_true(share_take(greedy, 4)); /* nobody waits: what is free may be used */
    drop(&f);
}

static void test_share_tenants_divide_before_their_users(void **state) {
    (void)state;
    struct fixture f;
    const uint64_t eighth = TOTAL / 8;
    make(&f, SHARE_RUNNING, TOTAL, 1, 2);
    for (uint32_t i = 0; i < USERS; i += 2) /* all of tenant 0 */
        assert_true(share_take(&f.user[i], 1));
    for (uint32_t i = 0; i < USERS; i += 2)
        take_all(&f.user[i], 1);
    assert_int_equal(share_of(&f.user[0]), (TOTAL - 2 * eighth) / (USERS / 2));
    assert_true(f.s.dipped > 0); /* those below theirs: the users' eighth, never the tenants' */
    assert_true(f.s.used <= TOTAL - eighth);
    assert_true(take_all(&f.user[1], 1) >= eighth / 2);
    assert_int_equal(share_of(&f.user[1]), (TOTAL - 2 * eighth) / 2);
    drop(&f);
}

/* A7's kind: of two tenants that may come one came first and took all, before there was a second level. */
static void test_share_of_a_tenant_that_is_yet_to_come(void **state) {
    (void)state;
    struct share s;
    struct share_tenant first, late;
    struct share_user users[64], newcomer;
    share_init(&s, SHARE_RUNNING, 64, 1);
    share_expect_tenants(&s, 2);
    share_tenant_init(&first, &s);
    uint32_t n = 0;
    for (uint32_t i = 0; i < ARRAY_LEN(users); i++) { /* one each, every one below its share */
        share_user_init(&users[i], &first);
        n += share_take(&users[i], 1);
    }
    assert_int_equal(n, 64 - 64 / 8);
    share_tenant_init(&late, &s);
    share_user_init(&newcomer, &late);
    assert_true(share_take(&newcomer, 1));
    share_give(&newcomer, 1);
    share_user_fini(&newcomer);
    for (uint32_t i = 0; i < ARRAY_LEN(users); i++) {
        share_give(&users[i], users[i].used);
        share_user_fini(&users[i]);
    }
    share_tenant_fini(&late);
    share_tenant_fini(&first);
}

static void test_share_idle_users_cost_nothing(void **state) {
    (void)state;
    struct fixture f;
    make(&f, SHARE_RUNNING, TOTAL, 1, 1);
    for (uint32_t i = 1; i < USERS; i++) {
        assert_true(share_take(&f.user[i], 1));
        share_wait(&f.user[i], 3);
        share_wait(&f.user[i], 0);
        share_give(&f.user[i], 1);
    }
    assert_int_equal(share_of(&f.user[0]), TOTAL - TOTAL / 8);
    drop(&f);
}

static void test_share_move_changes_who_answers(void **state) {
    (void)state;
    struct fixture f;
    make(&f, SHARE_TAKEN_BACK, TOTAL, 1, 2);
    assert_true(share_take(&f.user[0], 10));
    share_move(&f.user[0], &f.user[1], 10);
    assert_int_equal(f.user[0].used, 0);
    assert_int_equal(f.tenant[1].used, 10);
    assert_int_equal(f.s.used, 10);
    assert_int_equal(f.s.n_wanting, 1);
    assert_int_equal(share_of(&f.user[1]), TOTAL);
    drop(&f);
}

static void test_share_smaller_total_grants_nothing_until_given(void **state) {
    (void)state;
    struct fixture f;
    make(&f, SHARE_TAKEN_BACK, TOTAL, 1, 1);
    take_all(&f.user[0], 1);
    share_set_total(&f.s, TOTAL / 2);
    assert_int_equal(share_free(&f.s), 0);
    assert_false(share_take(&f.user[1], 1));
    share_give(&f.user[0], TOTAL / 2 + 1);
    assert_true(share_take(&f.user[1], 1));
    drop(&f);
}

/* ---- random users ---- */

static uint64_t kept_of(const struct fixture *f) {
    return f->s.kind == SHARE_TAKEN_BACK ? 0 : MAX(f->s.total / 8, f->s.unit);
}
static uint64_t tenant_share(const struct fixture *f, const struct share_tenant *t) {
    uint64_t levels = f->n_tenants > 1 ? 2 : 1;
    uint64_t n = f->s.n_wanting + (t->n_wanting == 0);
    return MAX((f->s.total - levels * kept_of(f)) / n, f->s.unit);
}

static void check_sums(const struct fixture *f) {
    uint64_t used = 0, asked = 0, dipped = 0, of_tenant[TENANTS] = {0};
    uint32_t wanting[TENANTS] = {0}, n_wanting = 0;
    for (uint32_t i = 0; i < USERS; i++) {
        const struct share_user *u = &f->user[i];
        used += u->used;
        asked += u->asked;
        dipped += u->dipped;
        assert_true(u->dipped <= u->used);
        of_tenant[i % f->n_tenants] += u->used;
        wanting[i % f->n_tenants] += u->used > 0 || u->waits > 0;
    }
    assert_true(used <= f->s.total);
    assert_int_equal(used, f->s.used);
    assert_int_equal(asked, f->s.asked);
    assert_int_equal(dipped, f->s.dipped);
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        assert_int_equal(of_tenant[i], f->tenant[i].used);
        assert_int_equal(wanting[i], f->tenant[i].n_wanting);
        n_wanting += wanting[i] > 0;
    }
    assert_int_equal(n_wanting, f->s.n_wanting);
}

/* Refused below its share is only who asks for more than is left to it of what is kept; nobody above its
 * share takes of that; half of it is left for the next. */
static void check_take(struct fixture *f, struct share_user *u, uint64_t n) {
    bool multi = f->n_tenants > 1;
    bool within = u->used + n <= share_of(u);
    bool tenant_within = !multi || u->tenant->used + n <= tenant_share(f, u->tenant);
    uint64_t all_kept = kept_of(f) * (multi ? 2 : 1), open = f->s.total - all_kept;
    uint64_t from_open = f->s.used - f->s.dipped, left = all_kept - f->s.dipped;
    uint64_t dipped = f->s.dipped, own = u->dipped;
    uint64_t may =
        MIN(left - MIN(left, tenant_within ? 0 : kept_of(f)),
            MAX((left + own) / 2, f->s.unit) - MIN(own, MAX((left + own) / 2, f->s.unit)));
    bool got = share_take(u, n);
    if (within)
        assert_true(got == (from_open + n <= open || n <= may));
    else if (got)
        assert_true(f->s.used - f->s.dipped <= open && f->s.dipped == dipped);
    assert_true(f->s.dipped <= all_kept && f->s.used - f->s.dipped <= open);
}

static void random_users(enum share_kind kind, uint64_t total, uint64_t unit, uint32_t n_tenants) {
    struct fixture f;
    uint64_t x = 88172645463325252ull;
    make(&f, kind, total, unit, n_tenants);
    for (uint32_t step = 0; step < 20000; step++) {
        struct share_user *u = &f.user[rnd(&x, 1 + rnd(&x, USERS))];
        switch (rnd(&x, 6)) {
        case 0:
            share_give(u, rnd(&x, (uint32_t)u->used + 1));
            break;
        case 1:
            share_wait(u, rnd(&x, 2) ? 1 + rnd(&x, (uint32_t)unit) : 0);
            break;
        default:
            check_take(&f, u, 1 + rnd(&x, (uint32_t)unit));
        }
        check_sums(&f);
    }
    drop(&f);
}

static void test_share_random_users_keep_the_rule(void **state) {
    (void)state;
    for (uint32_t t = 1; t <= TENANTS; t++) {
        random_users(SHARE_RUNNING, TOTAL, 1, t);
        random_users(SHARE_RUNNING, 1u << 20, 70000, t);
        random_users(SHARE_RUNNING, 5, 1, t);
        random_users(SHARE_TAKEN_BACK, TOTAL, 9, t);
    }
}

/* Users that take one unit, hold it for a while and come again, served in turns: each of them comes to
 * its share, and the bound is never idle while somebody waits. */
static void test_share_turns_bring_everybody_to_its_share(void **state) {
    (void)state;
    struct fixture f;
    make(&f, SHARE_RUNNING, 64, 1, 1);
    uint64_t served[USERS] = {0}, oldest = 0;
    for (uint32_t step = 0; step < 10000; step++) {
        for (uint32_t i = 0; i < USERS; i++) {
            struct share_user *u = &f.user[(step + i) % USERS];
            share_wait(u, 1);
            served[(step + i) % USERS] += share_take(u, 1);
        }
        assert_true(step < 3 || f.s.used >= 64 - 64 / 8);
        for (uint32_t k = 0; k < USERS; k++) /* one of them ends */
            if (f.user[oldest++ % USERS].used) {
                share_give(&f.user[(oldest - 1) % USERS], 1);
                break;
            }
    }
    for (uint32_t i = 0; i < USERS; i++)
        assert_in_range(served[i], 10000 / USERS / 2, 10000 / USERS * 2);
    drop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share_alone_takes_all_but_what_is_kept),
        cmocka_unit_test(test_share_newcomer_comes_to_its_share_first),
        cmocka_unit_test(test_share_each_newcomer_finds_some),
        cmocka_unit_test(test_share_own_waiting_is_no_obstacle),
        cmocka_unit_test(test_share_taken_back_goes_to_who_waits),
        cmocka_unit_test(test_share_tenants_divide_before_their_users),
        cmocka_unit_test(test_share_of_a_tenant_that_is_yet_to_come),
        cmocka_unit_test(test_share_idle_users_cost_nothing),
        cmocka_unit_test(test_share_move_changes_who_answers),
        cmocka_unit_test(test_share_smaller_total_grants_nothing_until_given),
        cmocka_unit_test(test_share_random_users_keep_the_rule),
        cmocka_unit_test(test_share_turns_bring_everybody_to_its_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
