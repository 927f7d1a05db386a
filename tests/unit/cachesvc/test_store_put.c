/* Put in two phases, write-once, parents, holes, sessions. RAM only. */
#include "tests/unit/cachesvc/store_fixture.h"

static int begin(struct store_fx *f, const struct store_put_block *b, uint32_t n, uint8_t *status,
                 struct store_put **p) {
    struct store_put_args a = {.ns = f->ns, .n = n, .blocks = b};
    return block_store_put_begin(f->ss, &a, status, p, NULL);
}

static void fill(struct store_fx *f, struct store_put *p, uint32_t i, uint32_t chain,
                 uint32_t depth, int want) {
    struct store_fill fl;
    assert_int_equal(block_store_put_open(p, i, &fl), 0);
    fx_payload(chain, depth, 0, fl.payload);
    if (want == ERR_CORRUPT)
        fl.payload[FX_PAYLOAD - 1] ^= 1;
    assert_int_equal(block_store_put_filled(f->s, &fl), want);
}

static void test_nothing_is_visible_before_commit(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    struct store_put_block b = fx_block(1, 0, 0);
    uint8_t st;
    struct store_put *p;
    assert_int_equal(begin(&f, &b, 1, &st, &p), 0);
    assert_int_equal(store_fx_where(&f, 1, 0), STORE_ABSENT);
    fill(&f, p, 0, 1, 0, 0);
    assert_int_equal(store_fx_where(&f, 1, 0), STORE_ABSENT);
    assert_int_equal(store_fx_fetch(&f, 1, 0), ERR_NOTFOUND);
    struct store_commit c;
    uint32_t idx = 0, done;
    assert_int_equal(block_store_put_commit(p, &c, &idx, 1, &done, NULL, NULL), 1);
    assert_int_equal(done, 1);
    assert_int_equal(store_fx_where(&f, 1, 0), STORE_RAM);
    assert_int_equal(store_fx_fetch(&f, 1, 0), 0);
    assert_int_equal(f.n_visible, 1);
    block_store_put_end(p);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* F23: bytes with checksums that fit each other, under another block's name: stored under that name, and
 * whoever fetched it computed with another block's K and V. */
static void test_bytes_of_another_block_are_corrupt(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    struct store_put_block b = fx_block(1, 0, 0);
    b.checksum = fx_checksum(2, 0, 0);
    uint8_t st;
    struct store_put *p;
    assert_int_equal(begin(&f, &b, 1, &st, &p), 0);
    struct store_fill fl;
    assert_int_equal(block_store_put_open(p, 0, &fl), 0);
    fx_payload(2, 0, 0, fl.payload);
    assert_int_equal(block_store_put_filled(f.s, &fl), ERR_CORRUPT);
    assert_int_equal(store_fx_where(&f, 1, 0), STORE_ABSENT);
    block_store_put_end(p);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* Where the ranges of a block end is part of what its namespace is. */
static void test_shapes(void **state) {
    (void)state;
    struct store_fx f;
    uint8_t digest[DIGEST_BYTES] = {77};
    uint32_t ns, again, sizes[FX_RANGES];
    store_fx_open(&f, 8, 0);
    memcpy(sizes, fx_range_sizes, sizeof(sizes));
    struct store_ns_shape sh = fx_shape;
    sh.range_sizes = sizes;
    sizes[0] = 100;
    sh.payload_bytes += 36;
    assert_int_equal(block_store_ns_register(f.s, digest, &sh, &ns, NULL), ERR_INVALID);
    sizes[0] = 64;
    assert_int_equal(block_store_ns_register(f.s, digest, &sh, &ns, NULL),
                     ERR_INVALID); /* the sum */
    sh.payload_bytes -= 36;
    sh.n_full = FX_RANGES + 1;
    assert_int_equal(block_store_ns_register(f.s, digest, &sh, &ns, NULL), ERR_INVALID);
    sh.n_full = FX_RANGES;
    assert_int_equal(block_store_ns_register(f.s, digest, &sh, &ns, NULL), 0);
    assert_int_equal(block_store_ns_register(f.s, digest, &sh, &again, NULL), 0);
    assert_int_equal(again, ns);
    block_store_ns_hold(f.s, ns);
    sh.seg_blocks++;
    assert_int_equal(block_store_ns_register(f.s, digest, &sh, &again, NULL), ERR_INVALID);
    sh.seg_blocks--;
    sh.n_full--;
    assert_int_equal(block_store_ns_register(f.s, digest, &sh, &again, NULL), ERR_INVALID);
    sh.n_full++;
    sizes[2] += 64;
    sizes[3] -= 64;
    assert_int_equal(block_store_ns_register(f.s, digest, &sh, &again, NULL), ERR_INVALID);
    block_store_ns_drop(f.s, ns); /* nobody's and empty: what was said of it binds nobody */
    assert_int_equal(block_store_ns_register(f.s, digest, &sh, &again, NULL), 0);
    store_fx_close(&f);
}

static void on_commit(void *arg, uint32_t n_done) {
    *(int *)arg = (int)n_done;
}

static void test_commit_waits_for_the_payloads_it_names(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    struct store_put_block b[2] = {fx_block(1, 0, 0), fx_block(1, 1, 0)};
    uint8_t st[2];
    struct store_put *p;
    assert_int_equal(begin(&f, b, 2, st, &p), 0);
    struct store_commit c;
    uint32_t idx[2] = {0, 1}, done;
    int told = -1;
    assert_int_equal(block_store_put_commit(p, &c, idx, 2, &done, on_commit, &told), 0);
    fill(&f, p, 0, 1, 0, 0);
    assert_int_equal(told, -1);
    assert_int_equal(store_fx_lookup(&f, 1, 2, false), 1);
    fill(&f, p, 1, 1, 1, ERR_CORRUPT);
    assert_int_equal(told, 1);
    assert_int_equal(store_fx_lookup(&f, 1, 2, false), 1);
    assert_int_equal(store_fx_stats(&f).put_corrupt, 1);
    block_store_put_end(p);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_statuses_of_known_ids(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    store_fx_put(&f, 1, 0, 1);
    struct store_put_block first = fx_block(2, 0, 0);
    uint8_t st[3];
    struct store_put *p, *q;
    assert_int_equal(begin(&f, &first, 1, st, &p), 0);
    struct store_put_block b[3] = {fx_block(1, 0, 0), fx_block(2, 0, 0), fx_block(2, 0, 1)};
    assert_int_equal(begin(&f, b, 3, st, &q), 0);
    assert_null(q);
    assert_int_equal(st[0], STORE_PUT_PRESENT);
    assert_int_equal(st[1], STORE_PUT_IN_FLIGHT);
    assert_int_equal(st[2], STORE_PUT_CONFLICT);
    struct store_put_block other = fx_block(1, 0, 5);
    assert_int_equal(begin(&f, &other, 1, st, &q), 0);
    assert_int_equal(st[0], STORE_PUT_CONFLICT);
    assert_int_equal(store_fx_stats(&f).conflict, 2);
    assert_int_equal(store_fx_fetch(&f, 1, 0), 0); /* what was there stays */
    block_store_put_end(p);
    store_fx_close(&f);
}

/* B3: one bad block refused the whole put; it refuses itself and what stands on it. */
static void test_a_bad_block_refuses_itself_and_what_stands_on_it(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 0);
    store_fx_put(&f, 1, 0, 2);
    store_fx_put(&f, 3, 5, 6); /* its hole at depth 4 knows its depth from its child */
    struct store_put_block b[] = {
        fx_block(2, 0, 0), fx_block(1, 2, 0), fx_block(1, 3, 0), fx_block(1, 1, 0),
        fx_block(1, 1, 0), fx_block(6, 1, 0), fx_block(3, 4, 0), fx_block(2, 1, 0),
    };
    b[1].depth = 3;            /* its parent has depth 1 */
    b[2].depth = 4;            /* stands on it */
    b[3].depth = 2;            /* known with depth 1 */
    b[4].parent = fx_id(9, 0); /* known with another parent */
    b[5].parent = b[5].id;
    b[6].depth = 5; /* the hole has depth 4 */
    uint8_t st[ARRAY_LEN(b)];
    struct store_put *p;
    assert_int_equal(begin(&f, b, ARRAY_LEN(b), st, &p), 0);
    assert_int_equal(st[0], STORE_PUT_WANTED);
    for (uint32_t i = 1; i <= 6; i++)
        assert_int_equal(st[i], STORE_PUT_BAD);
    assert_int_equal(st[7], STORE_PUT_WANTED);
    assert_int_equal(store_fx_stats(&f).put_bad, 6);
    fill(&f, p, 0, 2, 0, 0);
    fill(&f, p, 7, 2, 1, 0);
    struct store_commit c;
    uint32_t idx[2] = {0, 7}, done;
    assert_int_equal(block_store_put_commit(p, &c, idx, 2, &done, NULL, NULL), 1);
    assert_int_equal(done, 2);
    block_store_put_end(p);
    assert_int_equal(store_fx_lookup(&f, 2, 2, false), 2);
    assert_int_equal(store_fx_lookup(&f, 1, 2, false), 2); /* what was there stays */
    assert_int_equal(store_fx_stats(&f).now.blocks, 5);
    assert_int_equal(store_fx_stats(&f).now.holes, 1);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

/* A block whose parent was refused is not taken: it would lie below a hole from the start. */
static void test_the_child_of_a_refused_block_is_not_taken(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    store_fx_put(&f, 1, 0, 1);
    struct store_put_block b[3] = {fx_block(1, 0, 1), fx_block(1, 1, 0), fx_block(1, 2, 0)};
    uint8_t st[3];
    struct store_put *p;
    assert_int_equal(begin(&f, b, 3, st, &p), 0);
    assert_null(p);
    assert_int_equal(st[0], STORE_PUT_CONFLICT);
    assert_int_equal(st[1], STORE_PUT_BUSY);
    assert_int_equal(st[2], STORE_PUT_BUSY);
    assert_int_equal(store_fx_stats(&f).now.blocks, 1);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_a_hole_stops_lookup_until_it_is_filled(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 16, 0);
    store_fx_put(&f, 1, 0, 2);
    store_fx_put(&f, 1, 3, 5);
    assert_int_equal(store_fx_lookup(&f, 1, 5, true), 2);
    assert_int_equal(store_fx_stats(&f).now.holes, 1);
    struct store_block_info info;
    struct block_id id = fx_id(1, 2);
    assert_int_equal(block_store_inspect(f.s, f.ns, &id, &info), 0);
    assert_true(info.hole && info.depth == 2 && info.n_children == 1);
    assert_int_equal(store_fx_put(&f, 1, 2, 3), 1);
    assert_int_equal(store_fx_lookup(&f, 1, 5, true), 5);
    assert_int_equal(store_fx_stats(&f).now.holes, 0);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_blocks_below_a_hole_leave_first(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    store_fx_put(&f, 1, 0, 4); /* older than the orphans */
    store_fx_put(&f, 2, 1, 5); /* block 0 is missing */
    store_fx_put(&f, 3, 0, 3);
    assert_int_equal(store_fx_lookup(&f, 1, 4, false), 4);
    assert_int_equal(store_fx_where(&f, 2, 4), STORE_ABSENT);
    assert_int_equal(store_fx_where(&f, 2, 1), STORE_RAM); /* leaf first among them too */
    store_fx_close(&f);
}

static void test_filling_a_hole_frees_its_orphans(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    store_fx_put(&f, 1, 0, 3);
    store_fx_put(&f, 2, 1, 4);
    store_fx_put(&f, 2, 0, 1); /* now 1 is the older chain */
    store_fx_put(&f, 3, 0, 2);
    assert_int_equal(store_fx_lookup(&f, 2, 4, false), 4);
    assert_int_equal(store_fx_lookup(&f, 1, 3, false), 2);
    store_fx_close(&f);
}

static void test_a_foreign_parent_changes_no_order(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 4, 0);
    store_fx_put(&f, 1, 0, 2);
    struct store_put_block b[2] = {fx_block(2, 8, 0), fx_block(2, 9, 0)};
    b[0].flags = STORE_PUT_PARENT_ELSEWHERE;
    uint8_t st[2];
    struct store_put *p;
    assert_int_equal(begin(&f, b, 2, st, &p), 0);
    fill(&f, p, 0, 2, 8, 0);
    fill(&f, p, 1, 2, 9, 0);
    struct store_commit c;
    uint32_t idx[2] = {0, 1}, done;
    assert_int_equal(block_store_put_commit(p, &c, idx, 2, &done, NULL, NULL), 1);
    block_store_put_end(p);
    store_fx_put(&f, 3, 0, 2); /* evicts chain 1, the older */
    assert_int_equal(store_fx_where(&f, 2, 9), STORE_RAM);
    assert_int_equal(store_fx_where(&f, 1, 0), STORE_ABSENT);
    store_fx_close(&f);
}

static void test_a_dying_session_gives_everything_back(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    struct store_session *dying;
    assert_int_equal(block_store_session_open(f.s, NULL, &dying), 0);
    struct store_put_block b[3] = {fx_block(1, 0, 0), fx_block(1, 1, 0), fx_block(1, 2, 0)};
    struct store_put_args a = {.ns = f.ns, .n = 3, .blocks = b};
    uint8_t st[3];
    struct store_put *p;
    assert_int_equal(block_store_put_begin(dying, &a, st, &p, NULL), 0);
    struct store_fill open;
    assert_int_equal(block_store_put_open(p, 0, &open), 0);
    fill(&f, p, 1, 1, 1, 0);
    struct store_commit c;
    uint32_t idx = 2, done;
    int told = -1;
    assert_int_equal(block_store_put_commit(p, &c, &idx, 1, &done, on_commit, &told), 0);
    block_store_session_close(dying);
    assert_int_equal(told, 0);
    /* the slot that still receives is nobody's, and not reused */
    assert_int_equal(store_fx_stats(&f).now.ram_used_bytes, FX_SLOT);
    assert_int_equal(store_fx_put(&f, 2, 0, 7), 7);
    memset(open.payload, 0xee, open.payload_bytes);
    assert_int_equal(block_store_put_filled(f.s, &open), ERR_CANCELED);
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(store_fx_fetch(&f, 2, i), 0);
    assert_int_equal(store_fx_stats(&f).now.ram_used_bytes, 7 * FX_SLOT);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

struct ends {
    struct store_session *ss;
    uint64_t put_id;
    int n_done;
};
static void on_commit_end_other(void *arg, uint32_t n_done) {
    struct ends *e = arg;
    e->n_done = (int)n_done;
    block_store_put_end(block_store_put_find(e->ss, e->put_id));
}

static void test_a_put_without_progress_expires(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    struct store_put_block b = fx_block(1, 0, 0);
    uint8_t st;
    struct store_put *p;
    assert_int_equal(begin(&f, &b, 1, &st, &p), 0);
    struct store_put_block b2 = fx_block(2, 0, 0);
    struct store_put *q;
    assert_int_equal(begin(&f, &b2, 1, &st, &q), 0);
    uint64_t id = block_store_put_id(p), other = block_store_put_id(q);
    struct store_commit c;
    uint32_t idx = 0, done;
    struct ends e = {f.ss, other, -1};
    assert_int_equal(block_store_put_commit(p, &c, &idx, 1, &done, on_commit_end_other, &e), 0);
    f.now_ns += 31 * NS_PER_S;
    block_store_tick(f.s);
    assert_int_equal(e.n_done,
                     0); /* the waiting commit was told, and ended the other put from in there */
    assert_null(block_store_put_find(f.ss, id));
    assert_null(block_store_put_find(f.ss, other));
    assert_int_equal(store_fx_stats(&f).put_expired, 1);
    assert_int_equal(store_fx_stats(&f).now.ram_used_bytes, 0);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_limits_answer_busy(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    struct store_put_block b[10];
    uint8_t st[10];
    for (uint32_t i = 0; i < 10; i++)
        b[i] = fx_block(1, i, 0);
    struct store_put *p;
    assert_int_equal(begin(&f, b, 10, st, &p), 0);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(st[i], STORE_PUT_WANTED);
    assert_int_equal(store_fx_stats(&f).now.ram_used_bytes, 0); /* slots are taken as bytes come */
    struct store_fill fl[10];
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(block_store_put_open(p, i, &fl[i]), i < 8 ? 0 : ERR_BUSY);
    assert_int_equal(block_store_put_result(p, 9), ERR_BUSY);
    assert_int_equal(block_store_put_result(p, 0), ERR_NOTFOUND);
    block_store_put_end(p);
    for (uint32_t i = 0; i < 8; i++)
        block_store_put_unfilled(f.s, &fl[i]);
    assert_int_equal(store_fx_stats(&f).now.ram_used_bytes, 0);
    store_fx_check_idle(&f);
    store_fx_close(&f);
}

static void test_a_full_directory_makes_room_and_stays_bounded(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 64, 0);
    for (uint32_t chain = 0; chain < 400;
         chain++) /* a hole each: twice as many entries as blocks */
        (void)store_fx_put(&f, chain, 7, 8);
    struct block_store_stats st = store_fx_stats(&f);
    assert_true(st.now.blocks + st.now.holes <= st.now.max_blocks);
    assert_int_equal(st.now.blocks, st.now.holes);
    assert_int_equal(st.now.blocks, 64);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_visible_before_commit),
        cmocka_unit_test(test_bytes_of_another_block_are_corrupt),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_commit_waits_for_the_payloads_it_names),
        cmocka_unit_test(test_statuses_of_known_ids),
        cmocka_unit_test(test_a_bad_block_refuses_itself_and_what_stands_on_it),
        cmocka_unit_test(test_the_child_of_a_refused_block_is_not_taken),
        cmocka_unit_test(test_a_hole_stops_lookup_until_it_is_filled),
        cmocka_unit_test(test_blocks_below_a_hole_leave_first),
        cmocka_unit_test(test_filling_a_hole_frees_its_orphans),
        cmocka_unit_test(test_a_foreign_parent_changes_no_order),
        cmocka_unit_test(test_a_dying_session_gives_everything_back),
        cmocka_unit_test(test_a_put_without_progress_expires),
        cmocka_unit_test(test_limits_answer_busy),
        cmocka_unit_test(test_a_full_directory_makes_room_and_stays_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
