/* kill -9 of a process that puts, evicts and drains on a real disk file through the real pool; then
 * the file is opened here and compared with what the process had said before it died: P c   chain c
 * is about to be put        D   everything put so far is on disk e c   chain c is about to be
 * evicted    E c the evict was answered A chain whose last word is E holds nothing; one that was on
 * disk (D) and not touched since is whole; every block that is served has its own bytes.
 * INCIPIT_ROUNDS makes it long. */
#include "tests/unit/cachesvc/store_fixture.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "common/loop_work.h"
#include "tests/support/tmpdir.h"

#define CHAINS 40u
#define DEPTH 6u

struct real {
    uv_loop_t loop;
    struct loop_work *work;
    struct block_store *s;
    struct store_session *ss;
    uint32_t ns;
};

static void open_real(struct real *r, const char *dir) {
    assert_int_equal(uv_loop_init(&r->loop), 0);
    struct loop_work_cfg w = {.n_threads = 2, .max_queued = 512, .name = "disk"};
    assert_int_equal(loop_work_open(&r->work, &r->loop, &w), 0);
    struct block_store_cfg c = {
        .ram_bytes = 8 << 20,
        .ram_extent_bytes = 1 << 20,
        .disk_bytes = 16 << 20,
        .disk_extent_bytes = 1 << 20,
        .data_dir = dir,
        .min_slot_bytes = FX_SLOT,
        .max_blocks = 8192,
        .max_put_bytes = 4 << 20,
        .work = r->work,
        .no_huge_pages = true,
    };
    struct errbuf eb = {{0}};
    if (block_store_open(&r->s, &c, &eb) < 0)
        fail_msg("%s", eb.text);
    assert_int_equal(block_store_session_open(r->s, NULL, &r->ss), 0);
    uint8_t digest[DIGEST_BYTES] = {4};
    assert_int_equal(block_store_ns_register(r->s, digest, &fx_shape, &r->ns, &eb), 0);
}

static void turn(struct real *r) {
    uv_run(&r->loop, UV_RUN_NOWAIT);
    block_store_tick(r->s);
}

static void on_rv(void *arg, int rv) {
    *(int *)arg = rv;
}
static void on_evicted(void *arg, int rv, uint64_t n_blocks, uint64_t bytes) {
    (void)n_blocks;
    (void)bytes;
    *(int *)arg = rv;
}
static void on_work_closed(void *arg) {
    *(bool *)arg = true;
}

static void close_real(struct real *r) {
    int rv = 1;
    bool closed = false;
    block_store_session_close(r->ss);
    block_store_close(r->s, on_rv, &rv);
    while (rv == 1)
        turn(r);
    loop_work_close(r->work, on_work_closed, &closed);
    while (!closed)
        uv_run(&r->loop, UV_RUN_ONCE);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&r->loop), 0);
}

/* ---- the process that dies ----------------------------------------------------------------- */

static void say(int fd, char what, uint32_t chain) {
    uint8_t word[2] = {(uint8_t)what, (uint8_t)chain};
    if (write(fd, word, sizeof(word)) != (ssize_t)sizeof(word))
        _exit(1);
}

static void put_chain(struct real *r, uint32_t chain) {
    struct store_put_block b[DEPTH];
    uint8_t st[DEPTH];
    uint32_t idx[DEPTH], n = 0, done;
    for (uint32_t i = 0; i < DEPTH; i++)
        b[i] = fx_block(chain, i, 0);
    struct store_put_args a = {.ns = r->ns, .n = DEPTH, .blocks = b};
    struct store_put *p;
    if (block_store_put_begin(r->ss, &a, st, &p, NULL) < 0 || !p)
        return;
    for (uint32_t i = 0; i < DEPTH; i++) {
        struct store_fill f;
        if (st[i] != STORE_PUT_WANTED || block_store_put_open(p, i, &f) < 0)
            continue;
        fx_payload(chain, i, 0, f.payload);
        if (block_store_put_filled(r->s, &f) == 0)
            idx[n++] = i;
    }
    struct store_commit c;
    (void)block_store_put_commit(p, &c, idx, n, &done, NULL, NULL);
    block_store_put_end(p);
}

static void evict_chain(struct real *r, uint32_t chain, int fd) {
    struct block_id id = fx_id(chain, 0);
    struct store_filter f = {
        .ids = &id, .n_ids = 1, .by_ns = true, .digest = {4}, .descendants = true};
    struct store_evict ev;
    int rv = 1;
    say(fd, 'e', chain);
    block_store_evict(r->s, &ev, &f, on_evicted, &rv);
    while (rv == 1)
        turn(r);
    if (rv == 0)
        say(fd, 'E', chain);
}

static void drain(struct real *r, int fd) {
    int rv = 1;
    block_store_drain(r->s, on_rv, &rv);
    while (rv == 1)
        turn(r);
    if (rv == 0)
        say(fd, 'D', 0);
}

static void child(const char *dir, int fd, uint32_t seed) {
    struct real r;
    open_real(&r, dir);
    say(fd, 'O', 0);
    for (uint32_t rnd = seed * 2654435761u + 1;;) {
        rnd = rnd * 1664525 + 1013904223;
        uint32_t chain = (rnd >> 8) % CHAINS, what = (rnd >> 24) % 16;
        if (what == 0) {
            evict_chain(&r, chain, fd);
        } else if (what == 1) {
            drain(&r, fd);
        } else {
            say(fd, 'P', chain);
            put_chain(&r, chain);
        }
        turn(&r);
    }
}

/* ---- the one that looks -------------------------------------------------------------------- */

enum word { UNKNOWN, PUT, ON_DISK, GONE };

static void learn(enum word *said, const uint8_t *log, size_t n) {
    for (size_t i = 0; i + 1 < n; i += 2) {
        uint32_t c = log[i + 1];
        if (log[i] == 'P')
            said[c] =
                said[c] == ON_DISK ? ON_DISK : PUT; /* whole already: the put changes nothing */
        else if (log[i] == 'e')
            said[c] = UNKNOWN;
        else if (log[i] == 'E')
            said[c] = GONE;
        else if (log[i] == 'D')
            for (uint32_t k = 0; k < CHAINS; k++)
                said[k] = said[k] == PUT ? ON_DISK : said[k];
    }
    for (uint32_t k = 0; k < CHAINS; k++) /* in RAM at the end: anything may have become of it */
        said[k] = said[k] == PUT ? UNKNOWN : said[k];
}

struct got {
    int rv;
    struct store_ref ref;
};
static void on_fetched(void *arg, int rv, const struct store_ref *ref) {
    struct got *g = arg;
    g->rv = rv;
    if (rv == 0)
        g->ref = *ref;
}

static bool fetch_right(struct real *r, uint32_t chain, uint32_t depth) {
    struct block_id id = fx_id(chain, depth);
    struct store_fetch f;
    struct got g = {.rv = 1};
    int rv = block_store_fetch(r->s, &f, r->ns, &id, &g.ref, on_fetched, &g);
    while (rv == 0 && g.rv == 1)
        turn(r);
    if (rv < 0 || (rv == 0 && g.rv < 0))
        return false;
    uint8_t want[FX_PAYLOAD];
    fx_payload(chain, depth, 0, want);
    assert_memory_equal(g.ref.payload, want, FX_PAYLOAD);
    block_store_ref_drop(r->s, &g.ref);
    return true;
}

static uint32_t compare(const char *dir, const enum word *said) {
    struct real r;
    open_real(&r, dir);
    uint32_t n = 0;
    for (uint32_t c = 0; c < CHAINS; c++) {
        uint32_t whole = 0;
        for (uint32_t i = 0; i < DEPTH; i++)
            whole += fetch_right(&r, c, i);
        if (said[c] == GONE)
            assert_int_equal(whole, 0);
        if (said[c] == ON_DISK)
            assert_int_equal(whole, DEPTH);
        n += whole;
    }
    struct block_store_stats st;
    block_store_stats(r.s, &st);
    assert_int_equal(st.disk_corrupt, 0); /* headers go after payloads, so a kill tears nothing */
    close_real(&r);
    return n;
}

static void test_killed_store_keeps_its_word(void **state) {
    (void)state;
    struct tmpdir dir;
    tmpdir_setup(&dir);
    enum word said[CHAINS] = {UNKNOWN};
    const char *env = getenv("INCIPIT_ROUNDS");
    uint32_t n_rounds = env ? (uint32_t)strtoul(env, NULL, 10) : 12, found = 0;
    for (uint32_t round = 0; round < n_rounds; round++) {
        int pipefd[2];
        assert_int_equal(pipe(pipefd), 0);
        pid_t pid = fork();
        if (pid == 0) {
            close(pipefd[0]);
            child(dir.path, pipefd[1], round);
            _exit(0);
        }
        close(pipefd[1]);
        static uint8_t log[1 << 20];
        size_t n = 0, want = 2 * (40 + 97 * round % 400); /* so many words, then the kill */
        while (n < want) {
            ssize_t k = read(pipefd[0], log + n, want - n);
            assert_true(k > 0);
            n += (size_t)k;
        }
        kill(pid, SIGKILL);
        for (ssize_t k; n < sizeof(log) && (k = read(pipefd[0], log + n, sizeof(log) - n)) > 0;)
            n += (size_t)k;
        close(pipefd[0]);
        waitpid(pid, NULL, 0);
        learn(said, log, n);
        found += compare(dir.path, said);
    }
    assert_true(found > 0);
    tmpdir_teardown(&dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_store_keeps_its_word)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
