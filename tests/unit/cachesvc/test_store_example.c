/* A public worked example of prefix caching, with its exact numbers: blocks of 4 tokens, 8 slots,
 * RAM only, words standing for tokens. */
#include "tests/unit/cachesvc/store_fixture.h"

#include "common/checksum.h"

#define B 4
#define SYSTEM "you are the support bot for acme corp . be brief ."
#define SALES "you are the sales bot for acme corp . be brief ."
#define R1 SYSTEM " how do i reset my password ?"

struct request {
    const char *text;
    uint32_t n_tok, n_hit, n_evicted;
};
static const struct request requests[] = {
    {R1, 19, 0, 0},
    {SYSTEM " where is my order ?", 17, 3, 0},
    {R1, 19, 4, 0},
    {SALES " where is my order ?", 17, 0, 1},
    {R1 " click forgot password on the login page . thanks , and my email ?", 33, 4, 4},
    {"translate to french : the cat sleeps on the warm mat today", 12, 0, 3},
    {SYSTEM " can i change my plan ?", 18, 3, 1},
};

static uint32_t tokenize(const char *text, int32_t *tok) {
    uint32_t n = 0;
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, " ");
        tok[n++] = (int32_t)checksum_xxh3(p, len);
        p += len + (p[len] == ' ');
    }
    return n;
}

static void put_chain(struct store_fx *f, const struct block_id *ids, uint32_t n) {
    struct store_put_block b[16] = {0};
    uint8_t status[16];
    uint32_t idx[16], n_idx = 0, done = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t payload[FX_PAYLOAD];
        uint64_t sums[FX_RANGES];
        memset(payload, ids[i].b[0], sizeof(payload));
        b[i] = (struct store_put_block){
            .id = ids[i],
            .depth = i,
            .checksum = checksum_block(payload, fx_range_sizes, FX_RANGES, ids[i].b, sums)};
        if (i > 0)
            b[i].parent = ids[i - 1];
    }
    struct store_put_args a = {.ns = f->ns, .n = n, .blocks = b};
    struct store_put *p;
    assert_int_equal(block_store_put_begin(f->ss, &a, status, &p, NULL), 0);
    if (!p)
        return;
    for (uint32_t i = 0; i < n; i++) {
        struct store_fill fill;
        if (status[i] != STORE_PUT_WANTED)
            continue;
        assert_int_equal(block_store_put_open(p, i, &fill), 0);
        memset(fill.payload, ids[i].b[0], FX_PAYLOAD);
        assert_int_equal(block_store_put_filled(f->s, &fill), 0);
        idx[n_idx++] = i;
    }
    struct store_commit c;
    assert_int_equal(block_store_put_commit(p, &c, idx, n_idx, &done, NULL, NULL), 1);
    assert_int_equal(done, n_idx);
    block_store_put_end(p);
}

static void test_worked_example_has_its_numbers(void **state) {
    (void)state;
    struct store_fx f;
    store_fx_open(&f, 8, 0);
    struct digest *d = digest_new();
    uint8_t ns_digest[DIGEST_BYTES] = {9};
    struct block_chain_cfg cfg = {.namespace_digest = ns_digest, .block_tok = B};
    uint32_t all = 0, served = 0;
    uint64_t evicted = 0;
    for (size_t r = 0; r < ARRAY_LEN(requests); r++) {
        int32_t tok[64];
        struct block_id ids[16];
        uint8_t where[16];
        uint32_t n_tok = tokenize(requests[r].text, tok);
        assert_int_equal(n_tok, requests[r].n_tok);
        block_chain(d, &cfg, tok, n_tok, ids);
        struct store_lookup l = {.ns = f.ns,
                                 .ids = ids,
                                 .n = (uint32_t)block_count_lookup(n_tok, B),
                                 .where = where,
                                 .flags = STORE_LOOKUP_TOUCH};
        assert_int_equal(block_store_lookup(f.s, NULL, &l), 0);
        assert_int_equal(l.n_run, requests[r].n_hit);
        put_chain(&f, ids, (uint32_t)block_count_put(n_tok, B));
        uint64_t now = store_fx_stats(&f).evicted;
        assert_int_equal(now - evicted, requests[r].n_evicted);
        evicted = now;
        all += n_tok;
        served += l.n_run * B;
    }
    assert_int_equal(all, 135);
    assert_int_equal(served, 56);
    assert_int_equal(all - served, 79);
    assert_int_equal(store_fx_stats(&f).now.blocks, 8);
    store_fx_check_idle(&f);
    digest_free(d);
    store_fx_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_worked_example_has_its_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
