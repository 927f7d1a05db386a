/* test_prefix_hit_equals_cold.c - two workers and a cache node: logits and tokens after a hit equal those
 * of a cold prefill, bit for bit, whatever part was fetched and whatever became of the node meanwhile.
 *
 * A real node where a real one can do it; the scripted node of tests/support where it has to misbehave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cachesvc/cachesvc.h"
#include "common/check.h"
#include "proto/wire_frame.h"
#include "tests/integration/worker_fixture.h"
#include "tests/support/fake_node.h"
#include "tests/support/tiny_model.h"

#define B 16u
#define N_PROMPT 163u
#define N_BLOCKS ((N_PROMPT - 1) / B)
#define N_NEW 20u

struct fixture {
    uv_loop_t loop;
    struct tiny_model tiny;
    struct worker_config cfg_owned, cfg; /* cfg: a copy with this test's values */
    struct worker_model m;
    struct cachesvc_config node_cfg_owned, node_cfg;
    struct cachesvc *node;
    char addr[64];
    int32_t tok[N_PROMPT];
    struct answer cold; /* without any cache */
    bool closed;
};

#define TYPE_REAL UINT32_MAX          /* the model that INCIPIT_TEST_MODEL names */
#define TYPE_WINDOWS (UINT32_MAX - 1) /* six layers of seven see 24 positions */

static const struct variant {
    uint32_t type;
    struct kv_dtypes kv;
} variants[] = {
    {0 /* F32 */, {KV_F16, KV_F16}},  {1 /* F16 */, {KV_F16, KV_F16}},
    {3 /* Q4_1 */, {KV_F16, KV_F16}}, {8 /* Q8_0 */, {KV_F16, KV_F16}},
    {3, {KV_Q8_0, KV_Q8_0}},          {8, {KV_Q4_0, KV_Q4_0}},
    {1, {KV_Q8_0, KV_F16}},           {8, {KV_F32, KV_Q4_0}},
    {TYPE_WINDOWS, {KV_F16, KV_F16}}, {TYPE_WINDOWS, {KV_Q4_0, KV_Q8_0}},
    {TYPE_REAL, {KV_F16, KV_F16}},    {TYPE_REAL, {KV_Q8_0, KV_Q4_0}},
};

static void on_node_closed(void *arg) {
    ((struct fixture *)arg)->closed = true;
}

static void node_open(struct fixture *f) {
    struct errbuf eb = {{0}};
    const struct cachesvc_env env = {.loop = &f->loop};
    if (cachesvc_open(&f->node, &env, &f->node_cfg, &eb) < 0)
        fail_msg("cachesvc_open: %s", eb.text);
    snprintf(f->addr, sizeof(f->addr), "127.0.0.1:%u", cachesvc_rpc_port(f->node));
}

static void node_close(struct fixture *f) {
    f->closed = false;
    cachesvc_close(f->node, on_node_closed, f);
    while (!f->closed)
        uv_run(&f->loop, UV_RUN_ONCE);
    f->node = NULL;
}

static void ask(struct worker_fx *w, struct answer *a, const struct fixture *f,
                const uint8_t *salt) {
    worker_fx_ask(w, a, f->tok, N_PROMPT, N_NEW, salt);
    worker_fx_wait(w, a);
}

static void fixture_open(struct fixture *f, struct variant v) {
    static const char *const listen[] = {"127.0.0.1:0"};
    struct errbuf eb = {{0}};
    struct worker_fx w;
    memset(f, 0, sizeof(*f));
    CHECK(uv_loop_init(&f->loop) == 0);
    CHECK(cfg_defaults(worker_config_table(), &f->cfg_owned) == 0);
    CHECK(cfg_defaults(cachesvc_config_table(), &f->node_cfg_owned) == 0);
    f->cfg = f->cfg_owned;
    f->node_cfg = f->node_cfg_owned;
    if (v.type == TYPE_REAL) {
        f->cfg.model = getenv("INCIPIT_TEST_MODEL");
    } else {
        struct tiny_spec spec = tiny_spec_of(v.type);
        CHECK(v.type != TYPE_WINDOWS || tiny_spec_of_arch("gemma3", &spec));
        spec.d_head = 32; /* scaled KV's least */
        tiny_model_file(&f->tiny, &spec);
        f->cfg.model = f->tiny.path;
    }
    f->cfg.block_tokens = B;
    f->cfg.k_dtype = v.kv.k;
    f->cfg.v_dtype = v.kv.v;
    f->cfg.chunk_tokens = 24;
    f->cfg.kv_bytes = 32 << 20;
    f->cfg.threads = 1;
    f->cfg.digest_cache = "none";
    if (worker_model_load(&f->m, &f->cfg, NULL, NULL, &eb) < 0)
        fail_msg("%s", eb.text);
    assert_true(f->m.numerics_ok);
    assert_int_equal(f->m.layout.n_full, v.type == TYPE_WINDOWS ? 1 : f->m.layout.cfg.n_layer);
    for (uint32_t i = 0; i < N_PROMPT; i++)
        f->tok[i] = (int32_t)(sample_random(3, i) % 256);
    f->node_cfg.listen.v = listen;
    f->node_cfg.listen.n = 1;
    f->node_cfg.http_listen = "";
    f->node_cfg.ram_bytes = 32 << 20;
    f->node_cfg.min_slot_bytes = 4096;
    worker_fx_open(&w, &f->loop, &f->m, &f->cfg, NULL, FETCH_AUTO);
    ask(&w, &f->cold, f, NULL);
    worker_fx_close(&w);
    assert_int_equal(f->cold.n, N_NEW);
    assert_int_equal(gen_usage_cached(&f->cold.usage), 0);
}

static void fixture_close(struct fixture *f) {
    worker_model_free(&f->m);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&f->loop) == 0);
    cfg_free(worker_config_table(), &f->cfg_owned);
    cfg_free(cachesvc_config_table(), &f->node_cfg_owned);
    if (f->tiny.path[0])
        remove(f->tiny.path);
}

static void expect_cold(const struct fixture *f, const struct answer *a) {
    assert_int_equal(a->why, FINISH_LENGTH);
    assert_int_equal(a->n, N_NEW);
    assert_memory_equal(a->logits, f->cold.logits, sizeof(a->logits));
    assert_memory_equal(a->ids, f->cold.ids, N_NEW * sizeof(a->ids[0]));
}

static void test_hit_on_another_worker_equals_cold(void **state) {
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(variants); t++) {
        if (variants[t].type == TYPE_REAL && !getenv("INCIPIT_TEST_MODEL"))
            continue;
        struct fixture f;
        struct worker_fx a, b;
        struct answer first, hit, again;
        fixture_open(&f, variants[t]);
        node_open(&f);
        worker_fx_open(&a, &f.loop, &f.m, &f.cfg, f.addr, FETCH_ALWAYS);
        worker_fx_open(&b, &f.loop, &f.m, &f.cfg, f.addr, FETCH_ALWAYS);
        ask(&a, &first, &f, NULL);
        expect_cold(&f, &first);
        assert_int_equal(gen_usage_cached(&first.usage), 0);
        worker_fx_wait_puts(&a);
        ask(&b, &hit, &f, NULL);
        expect_cold(&f, &hit);
        assert_int_equal(hit.usage.n_remote, N_BLOCKS * B);
        assert_int_equal(hit.usage.n_local, 0);
        ask(&b, &again, &f, NULL);
        expect_cold(&f, &again);
        assert_int_equal(again.usage.n_local, N_BLOCKS * B);
        worker_fx_close(&a);
        worker_fx_close(&b);
        node_close(&f);
        fixture_close(&f);
    }
}

/* Another salt each time gives other ids, so the node holds exactly n blocks of this prompt. */
static void test_each_number_of_fetched_blocks_equals_cold(void **state) {
    (void)state;
    struct fixture f;
    struct worker_fx a, b;
    fixture_open(&f, (struct variant){3, {KV_F16, KV_F16}});
    node_open(&f);
    worker_fx_open(&a, &f.loop, &f.m, &f.cfg, f.addr, FETCH_ALWAYS);
    worker_fx_open(&b, &f.loop, &f.m, &f.cfg, f.addr, FETCH_ALWAYS);
    for (uint32_t n = 0; n <= N_BLOCKS; n++) {
        uint8_t salt[32] = {(uint8_t)(n + 1)};
        struct answer part, hit;
        worker_fx_ask(&a, &part, f.tok, n * B + 1, 1, salt);
        worker_fx_wait(&a, &part);
        worker_fx_wait_puts(&a);
        ask(&b, &hit, &f, salt);
        expect_cold(&f, &hit);
        assert_int_equal(hit.usage.n_remote, n * B);
        worker_fx_wait_puts(&b);
    }
    worker_fx_close(&a);
    worker_fx_close(&b);
    node_close(&f);
    fixture_close(&f);
}

static void test_many_at_once_with_a_cache_equal_cold(void **state) {
    (void)state;
    struct fixture f;
    struct worker_fx a, b;
    struct answer x[12];
    fixture_open(&f, (struct variant){8, {KV_F16, KV_F16}});
    node_open(&f);
    worker_fx_open(&a, &f.loop, &f.m, &f.cfg, f.addr, FETCH_AUTO);
    worker_fx_open(&b, &f.loop, &f.m, &f.cfg, f.addr, FETCH_AUTO);
    for (uint32_t i = 0; i < ARRAY_LEN(x); i++)
        worker_fx_ask(i % 2 ? &a : &b, &x[i], f.tok, N_PROMPT, N_NEW, NULL);
    for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
        worker_fx_wait(&a, &x[i]);
        expect_cold(&f, &x[i]);
    }
    worker_fx_close(&a);
    worker_fx_close(&b);
    node_close(&f);
    fixture_close(&f);
}

static void test_node_gone_and_back(void **state) {
    (void)state;
    struct fixture f;
    struct worker_fx a, b;
    struct answer x;
    char port[64];
    fixture_open(&f, (struct variant){3, {KV_F16, KV_F16}});
    node_open(&f);
    worker_fx_open(&a, &f.loop, &f.m, &f.cfg, f.addr, FETCH_ALWAYS);
    worker_fx_open(&b, &f.loop, &f.m, &f.cfg, f.addr, FETCH_ALWAYS);
    snprintf(port, sizeof(port), "%s", f.addr);
    node_close(&f);
    ask(&a, &x, &f, NULL);
    expect_cold(&f, &x);
    const char *const again[] = {port};
    f.node_cfg.listen.v = again;
    node_open(&f);
    while (!kv_client_nodes_up(a.client) || !kv_client_nodes_up(b.client))
        uv_run(&f.loop, UV_RUN_ONCE);
    uint64_t put_before = atomic_load(&a.met.put_block_total);
    do { /* all from own pages, but the new node lacks them: put again */
        ask(&a, &x, &f, NULL);
        expect_cold(&f, &x);
        assert_int_equal(x.usage.n_local, N_BLOCKS * B);
        worker_fx_wait_puts(&a);
    } while (atomic_load(&a.met.put_block_total) < put_before + N_BLOCKS);
    ask(&b, &x, &f, NULL);
    expect_cold(&f, &x);
    assert_int_equal(x.usage.n_remote, N_BLOCKS * B);
    worker_fx_close(&a);
    worker_fx_close(&b);
    node_close(&f);
    fixture_close(&f);
}

/* --- a node that misbehaves --- */

struct scripted {
    struct fixture f;
    struct fake_node node;
    struct worker_fx w;
};

/* The node holds the whole prompt; w is a new worker that owns nothing. */
static void scripted_open(struct scripted *s, enum fetch_mode fetch) {
    struct answer x;
    fixture_open(&s->f, (struct variant){3, {KV_F16, KV_F16}});
    CHECK(fake_node_open(&s->node, &s->f.loop, "127.0.0.1:0", 1) == 0);
    snprintf(s->f.addr, sizeof(s->f.addr), "127.0.0.1:%u", s->node.port);
    worker_fx_open(&s->w, &s->f.loop, &s->f.m, &s->f.cfg, s->f.addr, FETCH_ALWAYS);
    ask(&s->w, &x, &s->f, NULL);
    worker_fx_wait_puts(&s->w);
    worker_fx_close(&s->w);
    worker_fx_open(&s->w, &s->f.loop, &s->f.m, &s->f.cfg, s->f.addr, fetch);
}

static void scripted_close(struct scripted *s, bool node_is_open) {
    worker_fx_close(&s->w);
    if (node_is_open)
        fake_node_close(&s->node);
    uv_run(&s->f.loop, UV_RUN_DEFAULT);
    fake_node_fini(&s->node);
    fixture_close(&s->f);
}

static void test_node_killed_after_each_number_of_blocks(void **state) {
    (void)state;
    for (uint32_t n = 1; 2 * n < N_BLOCKS; n++) {
        struct scripted s;
        struct answer x;
        scripted_open(&s, FETCH_ALWAYS);
        s.node.fetch_limit = n;
        worker_fx_ask(&s.w, &x, s.f.tok, N_PROMPT, N_NEW, NULL);
        while (atomic_load(&s.w.met.fetch_block_total) < n)
            uv_run(&s.f.loop, UV_RUN_ONCE);
        fake_node_close(&s.node); /* all connections break */
        worker_fx_wait(&s.w, &x);
        expect_cold(&s.f, &x);
        assert_true(x.usage.n_remote < N_BLOCKS * B); /* the limit is per stream; there are two */
        scripted_close(&s, false);
    }
}

static void test_stalled_node_costs_little_and_nothing_differs(void **state) {
    (void)state;
    for (uint32_t n = 0; n < 6; n += 2) {
        struct scripted s;
        struct answer x;
        scripted_open(&s, FETCH_AUTO);
        s.node.fetch_limit = n ? n : 1;
        s.node.mute = n ? 0 : (uint16_t)WIRE_LOOKUP;
        ask(&s.w, &x, &s.f, NULL);
        expect_cold(&s.f, &x);
        /* 5 ms of patience on a loaded test machine; waiting the stall out would be 2 s */
        assert_true(x.ns < s.f.cold.ns * 11 / 10 + 1500 * NS_PER_MS);
        scripted_close(&s, true);
    }
}

static void test_broken_block_is_computed(void **state) {
    (void)state;
    for (int32_t n = 0; n < (int32_t)N_BLOCKS; n += 3) {
        struct scripted s;
        struct answer x;
        scripted_open(&s, FETCH_ALWAYS);
        s.node.corrupt_block = n;
        ask(&s.w, &x, &s.f, NULL);
        expect_cold(&s.f, &x);
        assert_true(x.usage.n_remote < N_BLOCKS * B);
        assert_int_equal(x.usage.n_remote % B, 0);
        scripted_close(&s, true);
    }
}

/* The cache takes layers of a multiple of 64 bytes: said at start, with the option that made it so. */
static void test_layers_that_are_no_multiple_of_64_bytes_are_refused(void **state) {
    (void)state;
    struct worker_config cfg;
    struct worker_model m;
    struct tiny_model tiny;
    struct errbuf eb = {{0}};
    struct tiny_spec spec = tiny_spec_of(1 /* F16 */);
    spec.n_embd = 32;
    spec.n_head = 16;
    spec.d_head = 2;
    spec.n_head_kv = 1;
    CHECK(cfg_defaults(worker_config_table(), &cfg) == 0);
    tiny_model_file(&tiny, &spec);
    struct worker_config mine = cfg;
    mine.model = tiny.path;
    mine.block_tokens = 4; /* K and V: 2 * 1 head * 2 * 4 tokens * 2 bytes */
    mine.digest_cache = "none";
    assert_int_equal(worker_model_load(&m, &mine, NULL, NULL, &eb), ERR_UNSUPPORTED);
    assert_non_null(strstr(
        eb.text,
        "--block-tokens 4, --k-dtype f16, --v-dtype f16: a layer of a KV block has 32 bytes"));
    remove(tiny.path);
    cfg_free(worker_config_table(), &cfg);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hit_on_another_worker_equals_cold),
        cmocka_unit_test(test_each_number_of_fetched_blocks_equals_cold),
        cmocka_unit_test(test_many_at_once_with_a_cache_equal_cold),
        cmocka_unit_test(test_node_gone_and_back),
        cmocka_unit_test(test_node_killed_after_each_number_of_blocks),
        cmocka_unit_test(test_stalled_node_costs_little_and_nothing_differs),
        cmocka_unit_test(test_broken_block_is_computed),
        cmocka_unit_test(test_layers_that_are_no_multiple_of_64_bytes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
