/* Which blocks a record names, what one record makes of another, and that the log is on disk what it
 * is in memory. */
#include "tests/unit/cachesvc/store_fixture.h"

#include "cachesvc/store/removal_log.h"

static const uint8_t ns_a[DIGEST_BYTES] = {1}, ns_b[DIGEST_BYTES] = {2};
static const uint8_t bob[16] = "bob", eve[16] = "eve";

static struct disk_removal record(uint16_t kind, const uint8_t *ns, const void *key, size_t n,
                                  uint64_t from, uint64_t before) {
    struct disk_removal r = {
        .kind = kind, .from_ms = from, .before_ms = before, .logged_ms = before};
    if (ns)
        memcpy(r.ns, ns, sizeof(r.ns));
    if (n)
        memcpy(r.key, key, n);
    return r;
}

static bool hits(const struct removal_log *l, const uint8_t *ns, uint32_t n, const uint8_t *writer,
                 uint64_t group, uint64_t time_ms) {
    struct block_id id = fx_id(n, 0);
    struct removal_subject b = {ns, &id, writer, group, time_ms};
    return removal_log_matches(l, &b);
}

static void add(struct removal_log *l, struct disk_removal r) {
    uint32_t page;
    assert_int_equal(removal_log_add(l, &r, &page), 0);
    removal_log_synced(l, r.seq);
}

static void test_each_kind_names_what_it_says(void **state) {
    (void)state;
    struct removal_log l;
    assert_int_equal(removal_log_init(&l, 64), 0);
    struct block_id one = fx_id(1, 0);
    uint64_t group = 7;
    add(&l, record(DISK_REMOVE_ID, ns_a, one.b, sizeof(one.b), 0, 100));
    assert_true(hits(&l, ns_a, 1, bob, 0, 100)); /* equal included */
    assert_true(hits(&l, ns_a, 1, eve, 9, 0));
    assert_false(hits(&l, ns_a, 1, bob, 0, 101));
    assert_false(hits(&l, ns_b, 1, bob, 0, 100)); /* the same id elsewhere is another block */
    assert_false(hits(&l, ns_a, 2, bob, 0, 100));
    add(&l, record(DISK_REMOVE_WRITER, ns_b, bob, sizeof(bob), 50, 60));
    assert_true(hits(&l, ns_b, 3, bob, 0, 50));
    assert_false(hits(&l, ns_b, 3, bob, 0, 49));
    assert_false(hits(&l, ns_b, 3, eve, 0, 55));
    assert_false(hits(&l, ns_a, 3, bob, 0, 55));
    add(&l, record(DISK_REMOVE_GROUP, NULL, &group, sizeof(group), 0, 10));
    assert_true(hits(&l, ns_a, 3, eve, 7, 10));
    assert_true(hits(&l, ns_b, 3, eve, 7, 10));
    assert_false(hits(&l, ns_b, 3, eve, 8, 10));
    add(&l, record(DISK_REMOVE_ALL, ns_b, NULL, 0, 200, 300));
    assert_true(hits(&l, ns_b, 9, eve, 1, 300));
    assert_false(hits(&l, ns_b, 9, eve, 1, 199));
    assert_false(hits(&l, ns_a, 9, eve, 1, 250));
    add(&l, record(DISK_REMOVE_ALL, NULL, NULL, 0, 400, 400));
    assert_true(hits(&l, ns_a, 9, eve, 1, 400));
    removal_log_fini(&l);
}

static void test_a_flush_takes_the_place_of_what_it_covers(void **state) {
    (void)state;
    struct removal_log l;
    uint32_t page;
    assert_int_equal(removal_log_init(&l, 32), 0);
    for (uint32_t i = 0; i < 30; i++) {
        struct block_id id = fx_id(i, 0);
        add(&l, record(DISK_REMOVE_ID, i < 20 ? ns_a : ns_b, id.b, sizeof(id.b), 0, 100 + i));
    }
    struct disk_removal flush = record(DISK_REMOVE_ALL, ns_a, NULL, 0, 0, 110);
    assert_int_equal(removal_log_add(&l, &flush, &page), 0);
    assert_int_equal(l.n, 31); /* until it is synced the others are what is known */
    removal_log_synced(&l, flush.seq - 1);
    assert_int_equal(l.n, 31);
    removal_log_synced(&l, flush.seq);
    assert_int_equal(l.n, 31 - 11); /* 11..19 reach beyond it, 20.. are another namespace's */
    assert_true(hits(&l, ns_a, 25, bob, 0, 110));
    assert_true(hits(&l, ns_a, 15, bob, 0, 115));
    assert_false(hits(&l, ns_a, 14, bob, 0, 115));
    add(&l, record(DISK_REMOVE_ALL, NULL, NULL, 0, 0, 1000));
    assert_int_equal(l.n, 1);
    removal_log_fini(&l);
}

static void test_a_full_log_says_so_and_a_newer_word_on_the_same_needs_no_room(void **state) {
    (void)state;
    struct removal_log l;
    uint32_t page;
    assert_int_equal(removal_log_init(&l, 32), 0);
    struct block_id id;
    for (uint32_t i = 0; i < 32; i++) {
        id = fx_id(i, 0);
        add(&l, record(DISK_REMOVE_ID, ns_a, id.b, sizeof(id.b), 0, 100));
    }
    struct disk_removal more = record(DISK_REMOVE_WRITER, ns_a, bob, sizeof(bob), 0, 100);
    assert_int_equal(removal_log_add(&l, &more, &page), ERR_NOSPACE);
    assert_int_equal(l.n, 32);
    removal_log_expire(&l, 99 + REMOVAL_LIFE_MS);
    assert_int_equal(l.n, 32);
    removal_log_expire(&l, 100 + REMOVAL_LIFE_MS);
    assert_int_equal(l.n, 0);
    for (uint64_t t = 1; t < 100; t++) /* the newer one covers the older */
        add(&l, record(DISK_REMOVE_ID, ns_a, id.b, sizeof(id.b), 0, t));
    assert_int_equal(l.n, 1);
    removal_log_fini(&l);
}

/* Random records in and out, and the pages read back, agree with a plain list of all of them. */
static void test_pages_hold_what_memory_holds(void **state) {
    (void)state;
    struct removal_log l, back;
    struct disk_removal all[200];
    uint64_t seed = 5;
    assert_int_equal(removal_log_init(&l, 128), 0);
    uint32_t n = 0;
    for (; n < ARRAY_LEN(all); n++) {
        struct block_id id = fx_id((uint32_t)(crash_rand(&seed) % 20), 0);
        uint16_t kind = (uint16_t)(1 + crash_rand(&seed) % 4);
        uint64_t from = crash_rand(&seed) % 50, before = from + crash_rand(&seed) % 50;
        const uint8_t *ns = crash_rand(&seed) % 2 ? ns_a : ns_b;
        if (kind != DISK_REMOVE_ID && crash_rand(&seed) % 4 == 0)
            ns = NULL;
        const void *key = kind == DISK_REMOVE_ID ? id.b : crash_rand(&seed) % 2 ? bob : eve;
        static const size_t key_bytes[] = {0, 0, 16, 32, 8};
        all[n] = record(kind, ns, key, key_bytes[kind], from, before);
        uint32_t page;
        if (removal_log_add(&l, &all[n], &page) < 0)
            break;
        if (crash_rand(&seed) % 3 == 0)
            removal_log_synced(&l, all[n].seq);
    }
    assert_int_equal(removal_log_init(&back, 128), 0);
    for (uint32_t page = 0; page < 128 / DISK_REMOVALS_A_PAGE; page++) {
        uint8_t bytes[DISK_PAGE];
        removal_log_encode(&l, page, bytes);
        assert_int_equal(removal_log_decode(&back, page, bytes), 0);
    }
    assert_int_equal(back.n, l.n);
    assert_true(back.seq == l.seq && n > 100);
    for (int k = 0; k < 20000; k++) {
        uint32_t id = (uint32_t)(crash_rand(&seed) % 20);
        const uint8_t *ns = crash_rand(&seed) % 2 ? ns_a : ns_b;
        const uint8_t *w = crash_rand(&seed) % 2 ? bob : eve;
        uint64_t t = crash_rand(&seed) % 110, group = crash_rand(&seed) % 2;
        memcpy(&group, group ? bob : eve, sizeof(group));
        bool want = false;
        for (uint32_t i = 0; i < n && !want; i++) {
            static const uint8_t zero[DIGEST_BYTES];
            const struct disk_removal *r = &all[i];
            struct block_id b = fx_id(id, 0);
            want = t >= r->from_ms && t <= r->before_ms &&
                   (memcmp(r->ns, ns, 32) == 0 || memcmp(r->ns, zero, 32) == 0) &&
                   (r->kind == DISK_REMOVE_ALL ||
                    (r->kind == DISK_REMOVE_ID && memcmp(r->key, b.b, 32) == 0) ||
                    (r->kind == DISK_REMOVE_WRITER && memcmp(r->key, w, 16) == 0) ||
                    (r->kind == DISK_REMOVE_GROUP && memcmp(r->key, &group, 8) == 0));
        }
        assert_int_equal(hits(&l, ns, id, w, group, t), want);
        assert_int_equal(hits(&back, ns, id, w, group, t), want);
    }
    removal_log_fini(&l);
    removal_log_fini(&back);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind_names_what_it_says),
        cmocka_unit_test(test_a_flush_takes_the_place_of_what_it_covers),
        cmocka_unit_test(test_a_full_log_says_so_and_a_newer_word_on_the_same_needs_no_room),
        cmocka_unit_test(test_pages_hold_what_memory_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
