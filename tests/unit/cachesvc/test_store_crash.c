/* Random work on a disk that loses, tears and reorders what was not synced, fails and hangs, with
 * seeds. After each crash, and in between:
 *
 *   what was answered as removed is not there, unless it was put again later
 *   what is listed is right: its bytes are those of its id in its namespace, or it is a miss
 *   what was clean on disk and visible when the power went is there
 *
 * INCIPIT_TEST_SEED runs one seed, INCIPIT_TEST_LONG many more. */
#include "tests/unit/cachesvc/store_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/checksum.h"

/* Instead of libc's: the disk is a model here, and thousands of syncs of a real one cost minutes where no
 * file system is memory. */
int fdatasync(int fd) {
    (void)fd;
    return 0;
}
int fsync(int fd) {
    (void)fd;
    return 0;
}

#define N_NS 3u
#define CHAINS 5u
#define DEPTH 5u
#define BIG 8064u /* a second slot size: 8 KiB with its trailer */
#define STEPS 250
#define MAX_REMOVALS 256
#define VERSIONS 60u

static const uint32_t small_sizes[] = {1024, 1024, 1024, 960}, big_sizes[] = {4032, 4032};
static const char *const writers[] = {"alice", "bob"};

/* A block as it was put once; eviction forgets, so any of them may come back. */
struct version {
    uint64_t seq, origin_ms;
    uint8_t writer, group;
    uint32_t
        life;     /* between two crashes: when it was put, or read whole from the disk. In that life
                    * clean means synced; what recovery calls clean is a hint */
    bool is_gone; /* removed, and answered so */
};
struct blk {
    struct version v[VERSIONS];
    uint32_t n;
};
struct removal {
    struct store_evict ev;
    int answer; /* 1: none yet */
    bool is_learnt;
    uint64_t covers[N_NS][CHAINS][DEPTH]; /* a bit a version */
};
struct world {
    struct store_fx f;
    struct crash_disk disk;
    uint64_t rnd;
    uint32_t life;
    uint32_t ns[N_NS];
    struct blk b[N_NS][CHAINS][DEPTH];
    struct removal r[MAX_REMOVALS];
    uint32_t n_removals, n_open;
    uint32_t n_kept; /* clean blocks that had to be there */
};

static uint32_t draw(struct world *w, uint32_t n) {
    return (uint32_t)(crash_rand(&w->rnd) % n);
}

/* ---- blocks -------------------------------------------------------------------------------- */

static uint32_t payload_bytes(uint32_t ns) {
    return ns == 2 ? BIG : FX_PAYLOAD;
}

static void fill(uint32_t ns, uint32_t c, uint32_t d, uint8_t *p) {
    uint64_t x = (uint64_t)(ns + 1) << 40 | c << 16 | d;
    for (uint32_t i = 0; i < payload_bytes(ns); i += 8) {
        uint64_t v = crash_rand(&x);
        memcpy(p + i, &v, 8);
    }
}

static uint64_t checksum(uint32_t ns, uint32_t c, uint32_t d) {
    uint8_t p[BIG];
    uint64_t sums[4];
    struct block_id id = fx_id(c, d);
    fill(ns, c, d, p);
    return checksum_block(p, ns == 2 ? big_sizes : small_sizes, ns == 2 ? 2 : 4, id.b, sums);
}

static void register_all(struct world *w) {
    for (uint32_t i = 0; i < N_NS; i++) {
        struct store_ns_shape shape = {.payload_bytes = payload_bytes(i),
                                       .n_ranges = i == 2 ? 2 : 4,
                                       .n_full = i == 2 ? 2 : 4,
                                       .seg_blocks = 8,
                                       .range_sizes = i == 2 ? big_sizes : small_sizes};
        uint8_t digest[DIGEST_BYTES] = {9, (uint8_t)(i + 1)};
        assert_int_equal(block_store_ns_register(w->f.s, digest, &shape, &w->ns[i], NULL), 0);
    }
}

static bool is_visible(struct world *w, uint32_t ns, uint32_t c, uint32_t d,
                       struct store_block_info *info) {
    struct block_id id = fx_id(c, d);
    return block_store_inspect(w->f.s, w->ns[ns], &id, info) == 0 && !info->hole && !info->filling;
}

struct got {
    int rv;
    struct store_ref ref;
};
static void on_got(void *arg, int rv, const struct store_ref *ref) {
    struct got *g = arg;
    g->rv = rv;
    if (rv == 0)
        g->ref = *ref;
}

static bool fetch(struct world *w, uint32_t ns, uint32_t c, uint32_t d) {
    struct block_id id = fx_id(c, d);
    struct store_fetch sf;
    struct got g = {.rv = 1};
    int rv = block_store_fetch(w->f.s, &sf, w->ns[ns], &id, &g.ref, on_got, &g);
    for (int i = 0; rv == 0 && g.rv == 1 && i < 1000; i++)
        store_fx_pump(&w->f);
    if (rv < 0 || (rv == 0 && g.rv != 0)) {
        if (rv == 0 && g.rv == 1)
            block_store_fetch_cancel(&sf);
        return false;
    }
    uint8_t want[BIG];
    fill(ns, c, d, want);
    assert_memory_equal(g.ref.payload, want, payload_bytes(ns));
    block_store_ref_drop(w->f.s, &g.ref);
    return true;
}

/* ---- what must hold ------------------------------------------------------------------------ */

#define FOREACH_BLOCK(ns, c, d)                                                                    \
    for (uint32_t ns = 0; ns < N_NS; ns++)                                                         \
        for (uint32_t c = 0; c < CHAINS; c++)                                                      \
            for (uint32_t d = 0; d < DEPTH; d++)

static void learn_answers(struct world *w) {
    for (uint32_t i = 0; i < w->n_removals; i++) {
        struct removal *r = &w->r[i];
        if (r->answer != 0 || r->is_learnt)
            continue;
        FOREACH_BLOCK(ns, c, d)
        for (uint32_t k = 0; k < w->b[ns][c][d].n; k++)
            w->b[ns][c][d].v[k].is_gone |= r->covers[ns][c][d] >> k & 1;
        r->is_learnt = true;
    }
}

static struct version *version_of(struct blk *b, uint64_t seq) {
    for (uint32_t k = b->n; k-- > 0;)
        if (b->v[k].seq == seq)
            return &b->v[k];
    return NULL;
}

static void check(struct world *w, const char *when) {
    learn_answers(w);
    FOREACH_BLOCK(ns, c, d) {
        struct store_block_info info;
        if (!is_visible(w, ns, c, d, &info))
            continue;
        struct version *v = version_of(&w->b[ns][c][d], info.put_seq);
        if (!v)
            fail_msg("%s: block %u/%u/%u was never put as %llu", when, ns, c, d,
                     (unsigned long long)info.put_seq);
        else if (v->is_gone)
            fail_msg("%s: block %u/%u/%u, put as %llu, is back", when, ns, c, d,
                     (unsigned long long)info.put_seq);
        struct block_id parent = fx_id(c, d - 1);
        assert_int_equal(info.depth, d);
        assert_true(info.checksum == checksum(ns, c, d));
        assert_true(info.put_time_ms == v->origin_ms);
        assert_memory_equal(info.writer, writers[v->writer], strlen(writers[v->writer]));
        assert_true(info.group == v->group);
        if (d > 0)
            assert_true(block_id_equal(&info.parent, &parent));
    }
}

/* ---- steps --------------------------------------------------------------------------------- */

static void step_put(struct world *w) {
    uint32_t ns = draw(w, N_NS), c = draw(w, CHAINS), n = 1 + draw(w, DEPTH);
    uint32_t wr = draw(w, 2), group = draw(w, 2);
    struct store_put_block blocks[DEPTH];
    uint8_t status[DEPTH];
    uint32_t idx[DEPTH], n_idx = 0, done = 0;
    bool is_old = draw(w, 4) == 0;
    uint64_t old_ms = w->f.wall_ns / NS_PER_MS - draw(w, 5000);
    memset(blocks, 0, sizeof(blocks));
    for (uint32_t d = 0; d < n; d++) {
        blocks[d] = (struct store_put_block){.id = fx_id(c, d),
                                             .depth = d,
                                             .checksum = checksum(ns, c, d),
                                             .time_ms = is_old ? old_ms : 0};
        if (d > 0)
            blocks[d].parent = fx_id(c, d - 1);
    }
    struct store_put_args a = {.ns = w->ns[ns], .n = n, .blocks = blocks, .group = group};
    memcpy(a.writer, writers[wr], strlen(writers[wr]));
    struct store_put *p;
    if (block_store_put_begin(w->f.ss, &a, status, &p, NULL) < 0 || !p)
        return;
    for (uint32_t d = 0; d < n; d++) {
        struct store_fill sf;
        if (status[d] != STORE_PUT_WANTED || block_store_put_open(p, d, &sf) < 0)
            continue;
        fill(ns, c, d, sf.payload);
        assert_int_equal(block_store_put_filled(w->f.s, &sf), 0);
        idx[n_idx++] = d;
    }
    struct store_commit cm;
    assert_int_equal(block_store_put_commit(p, &cm, idx, n_idx, &done, NULL, NULL), 1);
    assert_int_equal(done, n_idx);
    block_store_put_end(p);
    for (uint32_t i = 0; i < n_idx; i++) {
        struct store_block_info info;
        struct blk *b = &w->b[ns][c][idx[i]];
        assert_true(is_visible(w, ns, c, idx[i], &info));
        assert_true(b->n < VERSIONS);
        b->v[b->n++] = (struct version){.seq = info.put_seq,
                                        .origin_ms = info.put_time_ms,
                                        .writer = (uint8_t)wr,
                                        .group = (uint8_t)group,
                                        .life = w->life};
    }
}

static void on_evicted(void *arg, int rv, uint64_t n_blocks, uint64_t bytes) {
    (void)n_blocks;
    (void)bytes;
    *(int *)arg = rv;
}

/* Whether d lies below depth as far as the store can know: linked through what is visible, or not
 * visible itself (then its header, if there is one, was forgotten, and goes). */
static bool is_below(struct world *w, uint32_t ns, uint32_t c, uint32_t depth, uint32_t d) {
    struct store_block_info info;
    if (!is_visible(w, ns, c, d, &info))
        return true;
    for (uint32_t k = depth; k < d; k++)
        if (!is_visible(w, ns, c, k, &info))
            return false;
    return true;
}

static bool is_meant(const struct store_filter *f, const struct version *v) {
    if (f->by_writer && memcmp(f->writer, writers[v->writer], strlen(writers[v->writer])) != 0)
        return false;
    if (f->by_group && f->group != v->group)
        return false;
    return !f->by_time || (v->origin_ms >= f->time_from_ms && v->origin_ms <= f->time_to_ms);
}

/* Which versions a filter means. A version that was put before the last crash and lost in it may
 * share its number with a later one; the later one holds. */
static void cover(struct world *w, struct removal *r, const struct store_filter *f, uint32_t ns,
                  uint32_t chain, uint32_t depth) {
    FOREACH_BLOCK(n, c, d) {
        const struct blk *b = &w->b[n][c][d];
        if (f->by_ns && n != ns)
            continue;
        if (f->ids && (c != chain || (d != depth && !(f->descendants && d > depth &&
                                                      is_below(w, n, c, depth, d)))))
            continue;
        for (uint32_t k = 0; k < b->n; k++)
            r->covers[n][c][d] |= (uint64_t)is_meant(f, &b->v[k]) << k;
    }
}

static void step_evict(struct world *w) {
    if (w->n_removals == MAX_REMOVALS)
        return;
    struct removal *r = &w->r[w->n_removals++];
    uint32_t ns = draw(w, N_NS), c = draw(w, CHAINS), d = draw(w, DEPTH), kind = draw(w, 8);
    struct block_id id = fx_id(c, d);
    struct store_filter f = {.by_ns = kind < 4 || draw(w, 2), .digest = {9, (uint8_t)(ns + 1)}};
    kind = kind < 4 ? 0 : kind - 3; /* 0 id, 1 writer, 2 group, 3 time, 4 everything */
    if (kind == 0) {
        f.ids = &id;
        f.n_ids = 1;
        f.descendants = draw(w, 2);
    } else if (kind == 1) {
        f.by_writer = true;
        const char *name = writers[draw(w, 2)];
        memcpy(f.writer, name, strlen(name));
    } else if (kind == 2) {
        f.by_group = true;
        f.group = draw(w, 2);
    } else if (kind == 3) {
        f.by_time = true;
        f.time_from_ms = w->f.wall_ns / NS_PER_MS - 1000 - draw(w, 3000);
        f.time_to_ms = f.time_from_ms + draw(w, 3000);
    }
    *r = (struct removal){.answer = 1};
    cover(w, r, &f, ns, c, d);
    block_store_evict(w->f.s, &r->ev, &f, on_evicted, &r->answer);
}

static void step_ops(struct world *w) {
    for (uint32_t n = draw(w, 12); n > 0 && store_fx_run_one(&w->f); n--) {
    }
    if (draw(w, 2))
        block_store_tick(w->f.s);
}

static void step_time(struct world *w) {
    uint64_t ns = (uint64_t)(1 + draw(w, 800)) * NS_PER_MS;
    w->f.now_ns += ns;
    w->f.wall_ns += ns;
    block_store_tick(w->f.s);
}

static void step_fault(struct world *w) {
    switch (draw(w, 5)) {
    case 0:
        w->f.x.fail_op = w->f.x.n_ops + 1 + draw(w, 6);
        break;
    case 1:
        w->f.x.hang_op = w->f.x.n_ops + 1 + draw(w, 6);
        break;
    case 2:
        w->f.x.fail_syncs = !w->f.x.fail_syncs;
        break;
    case 3:
        w->f.x.fail_all = !w->f.x.fail_all;
        break;
    default: /* it is well again */
        w->f.x.fail_all = w->f.x.fail_syncs = false;
        store_fx_unhang(&w->f);
        w->f.now_ns += 6 * NS_PER_S;
        w->f.wall_ns += 6 * NS_PER_S;
        store_fx_pump(&w->f);
        store_fx_pump(&w->f);
        break;
    }
}

static void step_fetch(struct world *w) {
    (void)fetch(w, draw(w, N_NS), draw(w, CHAINS), draw(w, DEPTH));
}

static void forget_unanswered(struct world *w) {
    learn_answers(w);
    for (uint32_t i = 0; i < w->n_removals; i++)
        assert_int_not_equal(w->r[i].answer, 1); /* close answers them all */
    w->n_removals = 0;
}

static void step_crash(struct world *w) {
    bool clean[N_NS][CHAINS][DEPTH] = {{{false}}};
    struct store_block_info info;
    check(w, "before the crash");
    FOREACH_BLOCK(ns, c, d)
    clean[ns][c][d] = is_visible(w, ns, c, d, &info) && info.disk == TIER_CLEAN &&
                      version_of(&w->b[ns][c][d], info.put_seq)->life == w->life;
    w->life++;
    store_fx_stop(&w->f, true);
    forget_unanswered(w);
    struct errbuf eb = {{0}};
    if (store_fx_start(&w->f, &eb) < 0)
        fail_msg("%s", eb.text);
    register_all(w);
    check(w, "after the crash");
    FOREACH_BLOCK(ns, c, d) {
        bool is_there = is_visible(w, ns, c, d, &info);
        w->n_kept += clean[ns][c][d];
        if (!is_there && clean[ns][c][d])
            fail_msg("block %u/%u/%u was clean on disk and is lost", ns, c, d);
        if (!is_there)
            continue;
        bool is_whole = fetch(w, ns, c, d);
        struct block_store_stats st = store_fx_stats(&w->f);
        if (!is_whole && clean[ns][c][d])
            fail_msg("block %u/%u/%u was clean on disk and is broken: %llu corrupt, %llu busy", ns,
                     c, d, (unsigned long long)st.disk_corrupt, (unsigned long long)st.fetch_busy);
        if (is_whole)
            version_of(&w->b[ns][c][d], info.put_seq)->life = w->life;
    }
}

/* ---- runs ---------------------------------------------------------------------------------- */

static void run_seed(uint64_t seed, uint32_t *n_kept, uint32_t *n_lost) {
    static struct world w;
    w = (struct world){.rnd = seed};
    static const struct {
        void (*step)(struct world *w);
        uint32_t weight;
    } steps[] = {{step_put, 30},  {step_evict, 8},  {step_ops, 40}, {step_time, 8},
                 {step_fault, 6}, {step_fetch, 10}, {step_crash, 2}};
    /* More than the disk has room for, and both sizes want its extents. */
    store_fx_open(&w.f, 24 + 8 * draw(&w, 4), 48 + 16 * draw(&w, 3));
    crash_disk_init(&w.disk, w.f.dir, seed * 77 + 1);
    w.f.x.crash = &w.disk;
    w.f.x.shuffle = seed * 13 + 7;
    register_all(&w);
    for (int i = 0; i < STEPS; i++) {
        uint32_t k = draw(&w, 104), s = 0;
        for (; k >= steps[s].weight; s++)
            k -= steps[s].weight;
        steps[s].step(&w);
        check(&w, "in between");
    }
    step_crash(&w);
    step_crash(&w); /* and once more, from what recovery made of it */
    *n_kept += w.n_kept;
    *n_lost += w.disk.n_lost;
    store_fx_close(&w.f);
    crash_disk_fini(&w.disk);
}

static void test_random_work_and_crashes_keep_the_word(void **state) {
    (void)state;
    const char *one = getenv("INCIPIT_TEST_SEED");
    const char *is_long = getenv("INCIPIT_TEST_LONG");
    uint32_t n = is_long && *is_long ? 5000 : 100, n_kept = 0, n_lost = 0;
    if (one) {
        run_seed(strtoull(one, NULL, 10), &n_kept, &n_lost);
        return;
    }
    for (uint64_t seed = 1; seed <= n; seed++) {
        if (getenv("INCIPIT_TEST_VERBOSE"))
            fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        run_seed(seed, &n_kept, &n_lost);
    }
    assert_true(n_kept > n && n_lost > n); /* it is about something */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_work_and_crashes_keep_the_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
