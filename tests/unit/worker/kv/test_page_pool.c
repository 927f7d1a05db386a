/* test_page_pool.c - pages, reservations, the index and page tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/kv/page_index.h"
#include "worker/kv/page_pool.h"
#include "worker/kv/seq_pages.h"

#define PAGE_BYTES 5000u

static struct block_id id_of(uint32_t n) {
    struct block_id id;
    digest_sha256(&n, sizeof(n), id.b);
    return id;
}

static struct page_pool *make(uint32_t n) {
    struct page_pool *p = NULL;
    assert_int_equal(page_pool_new(&p, n, PAGE_BYTES, NULL), 0);
    return p;
}

static void test_pages_are_aligned_and_apart(void **state) {
    (void)state;
    struct page_pool *p = make(3);
    uint32_t a = page_pool_take(p), b = page_pool_take(p);
    assert_int_equal((uintptr_t)page_pool_bytes(p, a) % 4096, 0);
    memset(page_pool_bytes(p, a), 1, PAGE_BYTES);
    memset(page_pool_bytes(p, b), 2, PAGE_BYTES);
    assert_int_equal(page_pool_bytes(p, a)[PAGE_BYTES - 1], 1);
    page_pool_free(p);
}

static void test_reservation_keeps_others_out(void **state) {
    (void)state;
    struct page_pool *p = make(4);
    assert_true(page_pool_reserve(p, 3));
    assert_false(page_pool_reserve(p, 2));
    assert_int_not_equal(page_pool_take(p), PAGE_NONE);
    assert_int_equal(page_pool_take(p), PAGE_NONE); /* three free ones, all promised */
    for (int i = 0; i < 3; i++)
        assert_int_not_equal(page_pool_take_reserved(p), PAGE_NONE);
    struct page_pool_stats s = page_pool_stats(p);
    assert_int_equal(s.n_used, 4);
    assert_int_equal(s.n_reserved, 0);
    page_pool_free(p);
}

static void test_cached_pages_go_oldest_first(void **state) {
    (void)state;
    struct page_pool *p = make(3);
    struct page_index *x = NULL;
    assert_int_equal(page_index_new(&x, p), 0);
    uint32_t pg[3];
    for (uint32_t i = 0; i < 3; i++) {
        struct block_id id = id_of(i);
        pg[i] = page_pool_take(p);
        assert_true(page_index_insert(x, &id, pg[i]));
    }
    page_pool_unref(p, pg[1]); /* oldest */
    page_pool_unref(p, pg[2]);
    page_pool_unref(p, pg[0]);
    assert_int_equal(page_pool_stats(p).n_cached, 3);
    struct block_id id1 = id_of(1), id2 = id_of(2), id0 = id_of(0);
    assert_true(page_pool_revive(p, page_index_find(x, &id2)));
    uint32_t got = page_pool_take(p);
    assert_int_equal(got, pg[1]);
    assert_int_equal(page_index_find(x, &id1), PAGE_NONE); /* its name went with it */
    assert_int_equal(page_index_find(x, &id0), pg[0]);
    assert_int_equal(page_pool_take(p), pg[0]);
    assert_int_equal(page_pool_take(p), PAGE_NONE); /* pg[2] is used */
    assert_int_equal(page_pool_stats(p).n_evicted, 2);
    page_index_free(x);
    page_pool_free(p);
}

static void test_promised_cached_page_cannot_be_revived_by_another(void **state) {
    (void)state;
    struct page_pool *p = make(1);
    struct page_index *x = NULL;
    assert_int_equal(page_index_new(&x, p), 0);
    struct block_id id = id_of(1);
    uint32_t pg = page_pool_take(p);
    assert_true(page_index_insert(x, &id, pg));
    page_pool_unref(p, pg);
    assert_true(page_pool_reserve(p, 1));
    assert_false(page_pool_revive(p, pg));
    page_pool_unreserve(p, 1);
    assert_true(page_pool_revive(p, pg));
    page_index_remove(x, pg);
    page_pool_unref(p, pg);
    assert_int_equal(page_pool_stats(p).n_free, 1);
    page_index_free(x);
    page_pool_free(p);
}

/* Against a plain array, with as many collisions as a full table gives. */
static void test_index_agrees_with_a_model(void **state) {
    (void)state;
    enum { PAGES = 200, IDS = 600 };
    struct page_pool *p = make(PAGES);
    struct page_index *x = NULL;
    assert_int_equal(page_index_new(&x, p), 0);
    uint32_t where[IDS], page_of[PAGES], n_free = PAGES;
    static uint32_t free_pages[PAGES];
    for (uint32_t i = 0; i < IDS; i++)
        where[i] = PAGE_NONE;
    for (uint32_t i = 0; i < PAGES; i++)
        free_pages[i] = page_pool_take(p);
    (void)page_of;
    uint32_t rnd = 12345;
    for (int step = 0; step < 20000; step++) {
        rnd = rnd * 1664525u + 1013904223u;
        uint32_t i = (rnd >> 8) % IDS;
        struct block_id id = id_of(i);
        id.b[0] &= 3; /* homes crowd together */
        id.b[1] = id.b[2] = id.b[3] = 0;
        if (where[i] != PAGE_NONE) {
            page_index_remove(x, where[i]);
            free_pages[n_free++] = where[i];
            where[i] = PAGE_NONE;
        } else if (n_free) {
            where[i] = free_pages[--n_free];
            assert_true(page_index_insert(x, &id, where[i]));
            assert_false(page_index_insert(x, &id, where[i]));
        }
        rnd = rnd * 1664525u + 1013904223u;
        uint32_t j = (rnd >> 8) % IDS;
        struct block_id idj = id_of(j);
        idj.b[0] &= 3;
        idj.b[1] = idj.b[2] = idj.b[3] = 0;
        assert_int_equal(page_index_find(x, &idj), where[j]);
    }
    assert_int_equal(page_index_count(x), PAGES - n_free);
    page_index_free(x);
    page_pool_free(p);
}

struct seq_fixture {
    struct page_pool *p;
    struct page_index *x;
    struct block_id ids[8];
};

static int seq_setup(void **state) {
    struct seq_fixture *f = calloc(1, sizeof(*f));
    f->p = make(8);
    assert_int_equal(page_index_new(&f->x, f->p), 0);
    for (uint32_t i = 0; i < 8; i++)
        f->ids[i] = id_of(100 + i);
    *state = f;
    return 0;
}

static int seq_teardown(void **state) {
    struct seq_fixture *f = *state;
    struct page_pool_stats s = page_pool_stats(f->p);
    assert_int_equal(s.n_used, 0); /* nothing leaked */
    assert_int_equal(s.n_reserved, 0);
    page_index_free(f->x);
    page_pool_free(f->p);
    free(f);
    return 0;
}

/* A sequence of n written pages, all named. */
static void seq_fill(struct seq_fixture *f, struct seq_pages *s, uint32_t n) {
    assert_int_equal(seq_pages_init(s, f->p, 8, PAGE_BYTES), 0);
    assert_true(seq_pages_reserve(s, n));
    for (uint32_t i = 0; i < n; i++) {
        assert_true(seq_pages_writable(s, i));
        memset(s->ptr[i], (int)i, PAGE_BYTES);
        page_index_insert(f->x, &f->ids[i], s->page[i]);
    }
}

static void test_adopted_pages_are_the_first_ones_and_shared(void **state) {
    struct seq_fixture *f = *state;
    struct seq_pages a, b;
    seq_fill(f, &a, 4);
    assert_int_equal(seq_pages_init(&b, f->p, 8, PAGE_BYTES), 0);
    assert_int_equal(seq_pages_adopt(&b, f->x, f->ids, 3), 3);
    assert_true(seq_pages_reserve(&b, 6));
    assert_int_equal(b.n_reserved, 3);
    assert_int_equal(page_pool_refs(f->p, a.page[2]), 2);
    assert_int_equal(b.page[2], a.page[2]);
    assert_int_equal(seq_pages_adopt(&b, f->x, f->ids, 8), 1); /* later: out of the reservation */
    assert_int_equal(b.n_reserved, 2);
    seq_pages_fini(&a);
    assert_int_equal(b.ptr[1][7], 1);
    seq_pages_fini(&b);
    assert_int_equal(page_pool_stats(f->p).n_cached, 4);
    /* released tail first: the head is the last to be taken back */
    for (int i = 0; i < 7; i++)
        (void)page_pool_take(f->p);
    assert_int_not_equal(page_index_find(f->x, &f->ids[0]), PAGE_NONE);
    assert_int_equal(page_index_find(f->x, &f->ids[1]), PAGE_NONE);
    for (uint32_t i = 0; i < 8; i++)
        if (page_pool_refs(f->p, i))
            page_pool_unref(f->p, i);
}

static void test_shared_last_page_is_copied_before_a_write(void **state) {
    struct seq_fixture *f = *state;
    struct seq_pages a, b;
    assert_int_equal(seq_pages_init(&a, f->p, 8, PAGE_BYTES), 0);
    assert_true(seq_pages_reserve(&a, 2));
    assert_true(seq_pages_writable(&a, 0));
    assert_true(seq_pages_writable(&a, 1));
    memset(a.ptr[1], 7, PAGE_BYTES);
    assert_int_equal(seq_pages_init(&b, f->p, 8, PAGE_BYTES), 0);
    seq_pages_fork(&b, &a);
    assert_ptr_equal(b.ptr[1], a.ptr[1]);
    assert_true(seq_pages_writable(&b, 1));
    assert_ptr_not_equal(b.ptr[1], a.ptr[1]);
    assert_int_equal(b.ptr[1][PAGE_BYTES - 1], 7); /* the rows that were there */
    b.ptr[1][0] = 9;
    assert_int_equal(a.ptr[1][0], 7);
    assert_ptr_equal(b.ptr[0], a.ptr[0]);
    assert_true(seq_pages_writable(&a, 1)); /* a is alone again: no copy */
    assert_int_equal(page_pool_stats(f->p).n_used, 3);
    seq_pages_fini(&a);
    seq_pages_fini(&b);
}

static void test_lent_pages_come_back_into_the_reservation(void **state) {
    struct seq_fixture *f = *state;
    struct seq_pages s;
    assert_int_equal(seq_pages_init(&s, f->p, 8, PAGE_BYTES), 0);
    assert_true(seq_pages_reserve(&s, 8));
    uint32_t lent[8];
    for (int i = 0; i < 8; i++)
        lent[i] = seq_pages_lend(&s);
    assert_int_equal(seq_pages_lend(&s), PAGE_NONE);
    assert_false(seq_pages_writable(&s, 0)); /* all of them are out */
    seq_pages_install(&s, 0, lent[0]);
    seq_pages_give_back(&s, lent[7]);
    assert_true(seq_pages_writable(&s, 1)); /* computing overtakes the fetch ... */
    seq_pages_install(&s, 1, lent[1]);      /* ... and block 1 comes after all */
    for (uint32_t i = 2; i < 7; i++)
        seq_pages_give_back(&s, lent[i]);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.n + s.n_reserved, 8);
    assert_int_equal(page_pool_stats(f->p).n_reserved, 6);
    for (uint32_t i = 2; i < 8; i++)
        assert_true(seq_pages_writable(&s, i));
    seq_pages_fini(&s);
}

static void test_overtaking_may_borrow_a_free_page(void **state) {
    struct seq_fixture *f = *state;
    struct seq_pages s;
    assert_int_equal(seq_pages_init(&s, f->p, 8, PAGE_BYTES), 0);
    assert_true(seq_pages_reserve(&s, 4));
    uint32_t lent[4];
    for (int i = 0; i < 4; i++)
        lent[i] = seq_pages_lend(&s);
    assert_true(seq_pages_writable(&s, 0)); /* from what nobody reserved */
    for (int i = 0; i < 4; i++)
        seq_pages_give_back(&s, lent[i]);
    assert_int_equal(s.n + s.n_reserved, 4); /* not more than it needs */
    assert_int_equal(page_pool_stats(f->p).n_used, 1);
    seq_pages_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_are_aligned_and_apart),
        cmocka_unit_test(test_reservation_keeps_others_out),
        cmocka_unit_test(test_cached_pages_go_oldest_first),
        cmocka_unit_test(test_promised_cached_page_cannot_be_revived_by_another),
        cmocka_unit_test(test_index_agrees_with_a_model),
        cmocka_unit_test_setup_teardown(test_adopted_pages_are_the_first_ones_and_shared, seq_setup,
                                        seq_teardown),
        cmocka_unit_test_setup_teardown(test_shared_last_page_is_copied_before_a_write, seq_setup,
                                        seq_teardown),
        cmocka_unit_test_setup_teardown(test_lent_pages_come_back_into_the_reservation, seq_setup,
                                        seq_teardown),
        cmocka_unit_test_setup_teardown(test_overtaking_may_borrow_a_free_page, seq_setup,
                                        seq_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
