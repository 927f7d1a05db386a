#include "tests/unit/cachesvc/store_fixture.h"

#include <errno.h>
#include <unistd.h>

#include "cachesvc/store/store_priv.h"
#include "common/checksum.h"

/* ---- disk work by hand --------------------------------------------------------------------- */

static int submit(struct disk_exec *exec, struct disk_op *op) {
    struct fx_exec *x = CONTAINER_OF(exec, struct fx_exec, exec);
    list_push_back(&x->queue, &op->link);
    return 0;
}

static void run_op(struct fx_exec *x, struct disk_op *op) {
    bool is_write = op->kind == DISK_WRITE || op->kind == DISK_WRITE_SYNC || op->kind == DISK_PROBE;
    x->n_writes += is_write;
    if (x->is_dead || x->n_ops == x->fail_op ||
        (is_write && (x->fail_all || x->n_writes == x->fail_write)) ||
        (x->fail_reads && op->kind == DISK_READ_BLOCK) ||
        (x->fail_syncs && op->kind != DISK_READ_BLOCK && op->kind != DISK_WRITE)) {
        bool syncs = op->kind == DISK_SYNC || op->kind == DISK_WRITE_SYNC || op->kind == DISK_PROBE;
        if (x->crash && syncs && !x->is_dead)
            crash_disk_sync_failed(x->crash);
        op->rv = -EIO;
        return;
    }
    if (is_write && x->n_writes == x->tear_write) {
        uint32_t len = MIN(x->tear_bytes, op->len);
        if (len)
            assert_int_equal(pwrite(op->fd, op->buf, len, (off_t)op->off), len);
        x->is_dead = true;
        op->rv = -EIO;
        return;
    }
    disk_op_run(op);
    if (x->crash && op->rv == 0)
        crash_disk_did(x->crash, op);
}

/* Ops that are in the executor together may end in any order. */
static struct list *pick(struct fx_exec *x) {
    uint32_t n = 0;
    LIST_FOREACH(&x->queue, l)
    n++;
    if (n == 0)
        return NULL;
    uint32_t k = x->shuffle ? (uint32_t)(crash_rand(&x->shuffle) % n) : 0;
    struct list *l = x->queue.next;
    while (k-- > 0)
        l = l->next;
    list_remove(l);
    return l;
}

static bool run_one(struct fx_exec *x) {
    struct list *l = pick(x);
    if (!l)
        return false;
    struct disk_op *op = LIST_ENTRY(l, struct disk_op, link);
    if (++x->n_ops == x->hang_op && !x->is_dead) {
        list_push_back(&x->hung, &op->link);
        return true;
    }
    run_op(x, op);
    op->done(op);
    return true;
}

bool store_fx_run_one(struct store_fx *f) {
    return run_one(&f->x);
}

void store_fx_unhang(struct store_fx *f) {
    for (struct list *l; (l = list_pop_front(&f->x.hung));)
        list_push_back(&f->x.queue, l);
}

/* The clock stands still here: a store that finds new work for ever is broken. */
#define PUMP_OPS 100000

static void run_all(struct fx_exec *x, int *n) {
    while (run_one(x))
        assert_true(++*n < PUMP_OPS);
}

void store_fx_pump(struct store_fx *f) {
    int n = 0;
    do {
        run_all(&f->x, &n);
        block_store_tick(f->s);
    } while (!list_empty(&f->x.queue));
}

/* ---- store --------------------------------------------------------------------------------- */

static uint64_t fx_mono(const struct clock *c) {
    return CONTAINER_OF(c, struct store_fx, clk)->now_ns;
}
static uint64_t fx_wall(const struct clock *c) {
    return CONTAINER_OF(c, struct store_fx, clk)->wall_ns;
}
const uint32_t fx_range_sizes[FX_RANGES] = {64, 1920, 1024, 1024};
const struct store_ns_shape fx_shape = {.payload_bytes = FX_PAYLOAD,
                                        .n_ranges = FX_RANGES,
                                        .n_full = 3,
                                        .seg_blocks = 8,
                                        .range_sizes = fx_range_sizes};

static void on_seg_gone(void *arg, const uint8_t digest[DIGEST_BYTES],
                        const struct block_id *first) {
    struct store_fx *f = arg;
    (void)digest;
    f->last_gone = *first;
    f->n_gone++;
}
static void on_seg_visible(void *arg, const uint8_t digest[DIGEST_BYTES],
                           const struct block_id *first) {
    struct store_fx *f = arg;
    (void)digest;
    f->last_visible = *first;
    f->n_visible++;
}
static void on_segs_known(void *arg) {
    ((struct store_fx *)arg)->n_known++;
}

static void on_note(void *arg, enum store_note level, const char *text) {
    struct store_fx *f = arg;
    f->n_notes++;
    snprintf(f->note, sizeof(f->note), "%d %s", (int)level, text);
}

int store_fx_start(struct store_fx *f, struct errbuf *eb) {
    f->x =
        (struct fx_exec){.exec = {.submit = submit}, .crash = f->x.crash, .shuffle = f->x.shuffle};
    list_init(&f->x.queue);
    list_init(&f->x.hung);
    f->cfg.exec = &f->x.exec;
    f->cfg.hook_arg = f;
    f->cfg.clk = &f->clk;
    int rv = block_store_open(&f->s, &f->cfg, eb);
    if (rv < 0)
        return rv;
    if (f->x.crash)
        crash_disk_settle(f->x.crash);
    assert_int_equal(block_store_session_open(f->s, NULL, &f->ss), 0);
    uint8_t digest[DIGEST_BYTES] = FX_DIGEST;
    assert_int_equal(block_store_ns_register(f->s, digest, &fx_shape, &f->ns, eb), 0);
    return 0;
}

void store_fx_open(struct store_fx *f, uint32_t n_ram, uint32_t n_disk) {
    store_fx_open_with(f, n_ram, n_disk, NULL);
}

void store_fx_open_with(struct store_fx *f, uint32_t n_ram, uint32_t n_disk,
                        void (*change)(struct block_store_cfg *c)) {
    *f = (struct store_fx){
        .clk = {fx_mono, fx_wall}, .now_ns = NS_PER_S, .wall_ns = FX_WALL_S * NS_PER_S};
    uint32_t head = (n_ram + 1) * 8 + 4096; /* generation table, generously */
    f->cfg = (struct block_store_cfg){
        .ram_bytes = (uint64_t)n_ram * FX_SLOT + head / FX_SLOT * FX_SLOT,
        .ram_extent_bytes = n_ram % 8 ? FX_SLOT : 8 * FX_SLOT,
        .min_slot_bytes = FX_SLOT,
        .max_blocks = 4 * (n_ram + n_disk) + 16,
        .max_put_bytes = 4ull * n_ram * FX_SLOT, /* what limits is RAM */
        .max_namespaces = 4,
        .max_sessions = 4,
        .max_puts = 8,
        .max_put_blocks = 64,
        .max_lease_blocks = 256,
        .max_disk_reads = 32,
        .no_huge_pages = true,
        .no_background_touch = true,
        .buffered_io = true,
        .on_seg_gone = on_seg_gone,
        .on_seg_visible = on_seg_visible,
        .on_segs_known = on_segs_known,
        .on_note = on_note,
    };
    if (n_disk) {
        /* memory where there is some: the syncs of a shared disk would cost minutes, and prove
         * nothing here */
        bool has_shm = access("/dev/shm", W_OK) == 0;
        snprintf(f->dir, sizeof(f->dir), "%s/store-fx-XXXXXX", has_shm ? "/dev/shm" : "/tmp");
        assert_non_null(mkdtemp(f->dir));
        f->cfg.data_dir = f->dir;
        f->cfg.disk_extent_bytes = 4096 + 2 * 4096 + 16 * FX_SLOT;
        f->cfg.removal_records = FX_RECORDS;
        f->cfg.disk_bytes = FX_HEAD + n_disk / 16 * f->cfg.disk_extent_bytes;
        f->cfg.bounce_bytes = f->cfg.ram_extent_bytes;
        f->cfg.ram_bytes += f->cfg.bounce_bytes;
    }
    if (change)
        change(&f->cfg);
    struct errbuf eb = {{0}};
    if (store_fx_start(f, &eb) < 0)
        fail_msg("%s", eb.text);
}

static void on_done(void *arg, int rv) {
    *(int *)arg = rv;
}

void store_fx_drain(struct store_fx *f) {
    int rv = 1;
    block_store_drain(f->s, on_done, &rv);
    for (int i = 0; rv == 1 && i < 1000; i++)
        store_fx_pump(f);
    assert_int_equal(rv, 0);
}

void store_fx_stop(struct store_fx *f, bool crash) {
    block_store_session_close(f->ss);
    if (!crash)
        store_fx_drain(f);
    f->x.is_dead |= crash;
    store_fx_unhang(f);
    int rv = 1, n = 0;
    block_store_close(f->s, on_done, &rv);
    for (int i = 0; rv == 1 && i < 1000; i++) {
        run_all(&f->x, &n);
        block_store_tick(f->s);
    }
    assert_int_equal(rv, 0);
    f->s = NULL;
    if (crash && f->x.crash)
        crash_disk_crash(f->x.crash);
}

void store_fx_restart(struct store_fx *f, bool crash) {
    store_fx_stop(f, crash);
    struct errbuf eb = {{0}};
    if (store_fx_start(f, &eb) < 0)
        fail_msg("%s", eb.text);
}

void store_fx_close(struct store_fx *f) {
    if (f->s)
        store_fx_stop(f, true);
    if (f->dir[0]) {
        char path[128];
        snprintf(path, sizeof(path), "%s/incipit.blocks", f->dir);
        (void)unlink(path);
        (void)rmdir(f->dir);
    }
}

/* ---- blocks -------------------------------------------------------------------------------- */

struct block_id fx_id(uint32_t chain, uint32_t depth) {
    struct block_id id;
    uint32_t key[2] = {chain, depth};
    digest_sha256(key, sizeof(key), id.b);
    return id;
}

void fx_payload(uint32_t chain, uint32_t depth, uint32_t variant, uint8_t ret[FX_PAYLOAD]) {
    uint64_t x = ((uint64_t)chain << 32 | depth) * 0x9e3779b97f4a7c15ull + variant * 77777ull + 1;
    for (uint32_t i = 0; i < FX_PAYLOAD; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        ret[i] = (uint8_t)(x >> 32);
    }
}

uint64_t fx_checksum(uint32_t chain, uint32_t depth, uint32_t variant) {
    uint8_t p[FX_PAYLOAD];
    uint64_t sums[FX_RANGES];
    fx_payload(chain, depth, variant, p);
    return checksum_block(p, fx_range_sizes, FX_RANGES, fx_id(chain, depth).b, sums);
}

struct store_put_block fx_block(uint32_t chain, uint32_t depth, uint32_t variant) {
    struct store_put_block b = {
        .id = fx_id(chain, depth), .depth = depth, .checksum = fx_checksum(chain, depth, variant)};
    if (depth > 0)
        b.parent = fx_id(chain, depth - 1);
    return b;
}

/* ---- calls --------------------------------------------------------------------------------- */

uint32_t store_fx_put_as(struct store_fx *f, uint32_t chain, uint32_t from, uint32_t to,
                         uint32_t variant, const char *writer) {
    struct store_put_block b[256];
    uint8_t status[256];
    uint32_t idx[256], n = 0;
    struct store_put_args a = {.ns = f->ns, .n = to - from, .blocks = b};
    for (uint32_t i = from; i < to; i++)
        b[i - from] = fx_block(chain, i, variant);
    memcpy(a.writer, writer, strlen(writer));
    struct store_put *p;
    struct errbuf eb;
    assert_int_equal(block_store_put_begin(f->ss, &a, status, &p, &eb), 0);
    if (!p)
        return 0;
    for (uint32_t i = 0; i < a.n; i++) {
        struct store_fill fill;
        if (status[i] != STORE_PUT_WANTED)
            continue;
        int rv = block_store_put_open(p, i, &fill);
        assert_true(rv == 0 || rv == ERR_BUSY);
        if (rv < 0)
            break;
        fx_payload(chain, from + i, variant, fill.payload);
        assert_int_equal(block_store_put_filled(f->s, &fill), 0);
        idx[n++] = i;
    }
    struct store_commit c;
    uint32_t done = 0;
    assert_int_equal(block_store_put_commit(p, &c, idx, n, &done, NULL, NULL), 1);
    block_store_put_end(p);
    return done;
}

uint32_t store_fx_put(struct store_fx *f, uint32_t chain, uint32_t from, uint32_t to) {
    return store_fx_put_as(f, chain, from, to, 0, "writer");
}

uint32_t store_fx_ns(struct store_fx *f, uint8_t key) {
    uint8_t digest[DIGEST_BYTES] = {9, 9, key};
    uint32_t ns;
    assert_int_equal(block_store_ns_register(f->s, digest, &fx_shape, &ns, NULL), 0);
    return ns;
}

uint32_t store_fx_big_ns(struct store_fx *f, uint8_t key, uint32_t bytes) {
    uint8_t digest[DIGEST_BYTES] = {8, 8, key};
    struct store_ns_shape shape = {bytes, 1, 1, 8, &bytes};
    uint32_t ns;
    assert_int_equal(block_store_ns_register(f->s, digest, &shape, &ns, NULL), 0);
    return ns;
}

bool store_fx_put_big(struct store_fx *f, uint32_t ns, uint32_t bytes, uint32_t key) {
    struct store_put_block b = fx_block(key, 0, 0);
    struct store_put_args a = {.ns = ns, .n = 1, .blocks = &b};
    uint8_t *p = calloc(1, bytes), st;
    memset(p, (int)key, bytes);
    uint64_t sum;
    b.checksum = checksum_block(p, &bytes, 1, b.id.b, &sum);
    struct store_put *put;
    assert_int_equal(block_store_put_begin(f->ss, &a, &st, &put, NULL), 0);
    uint32_t done = 0;
    struct store_fill fill;
    if (put && block_store_put_open(put, 0, &fill) == 0) {
        memcpy(fill.payload, p, bytes);
        assert_int_equal(block_store_put_filled(f->s, &fill), 0);
        struct store_commit c;
        uint32_t idx = 0;
        assert_int_equal(block_store_put_commit(put, &c, &idx, 1, &done, NULL, NULL), 1);
    }
    if (put)
        block_store_put_end(put);
    free(p);
    return done;
}

bool store_fx_has_big(struct store_fx *f, uint32_t ns, uint32_t key) {
    struct block_id id = fx_id(key, 0);
    uint8_t where;
    struct store_lookup l = {
        .ns = ns, .ids = &id, .n = 1, .where = &where, .flags = STORE_LOOKUP_TOUCH};
    assert_int_equal(block_store_lookup(f->s, NULL, &l), 0);
    return where != STORE_ABSENT;
}

uint32_t store_fx_lookup(struct store_fx *f, uint32_t chain, uint32_t n, bool touch) {
    struct block_id ids[256];
    uint8_t where[256];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = fx_id(chain, i);
    struct store_lookup l = {
        .ns = f->ns, .ids = ids, .n = n, .where = where, .flags = touch ? STORE_LOOKUP_TOUCH : 0};
    assert_int_equal(block_store_lookup(f->s, NULL, &l), 0);
    return l.n_run;
}

enum store_where store_fx_where(struct store_fx *f, uint32_t chain, uint32_t depth) {
    struct block_id id = fx_id(chain, depth);
    uint8_t where;
    struct store_lookup l = {.ns = f->ns, .ids = &id, .n = 1, .where = &where};
    assert_int_equal(block_store_lookup(f->s, NULL, &l), 0);
    return where;
}

struct fetched {
    int rv;
    struct store_ref ref;
};

static void on_fetched(void *arg, int rv, const struct store_ref *ref) {
    struct fetched *r = arg;
    r->rv = rv;
    if (rv == 0)
        r->ref = *ref;
}

int store_fx_fetch(struct store_fx *f, uint32_t chain, uint32_t depth) {
    struct block_id id = fx_id(chain, depth);
    struct store_fetch fetch;
    struct fetched r = {.rv = 1};
    int rv = block_store_fetch(f->s, &fetch, f->ns, &id, &r.ref, on_fetched, &r);
    if (rv < 0)
        return rv;
    for (int i = 0; rv == 0 && r.rv == 1 && i < 100; i++)
        store_fx_pump(f);
    if (rv == 0 && r.rv < 0)
        return r.rv;
    assert_true(rv == 1 || r.rv == 0);
    uint8_t want[FX_PAYLOAD];
    fx_payload(chain, depth, 0, want);
    assert_memory_equal(r.ref.payload, want, FX_PAYLOAD);
    assert_true(r.ref.checksum == fx_checksum(chain, depth, 0));
    block_store_ref_drop(f->s, &r.ref);
    return 0;
}

struct evicted {
    int rv;
    uint64_t n;
};

static void on_evicted(void *arg, int rv, uint64_t n_blocks, uint64_t bytes) {
    struct evicted *e = arg;
    assert_true(bytes >= n_blocks * FX_PAYLOAD);
    *e = (struct evicted){rv, n_blocks};
}

uint64_t store_fx_evict(struct store_fx *f, const struct store_filter *filter) {
    struct store_evict ev;
    struct evicted e = {1, 0};
    block_store_evict(f->s, &ev, filter, on_evicted, &e);
    for (int i = 0; e.rv == 1 && i < 100; i++)
        store_fx_pump(f);
    assert_int_equal(e.rv, 0);
    return e.n;
}

struct block_store_stats store_fx_stats(const struct store_fx *f) {
    struct block_store_stats st;
    block_store_stats(f->s, &st);
    return st;
}

static enum dir_list want_ram_list(struct block_store *s, const struct dir_entry *e) {
    bool is_only = e->disk != TIER_CLEAN;
    if (e->state != DIR_RESIDENT || !entry_in_ram(e) || e->leases || e->pins ||
        e->disk == TIER_WRITING || (is_only && dir_is_held(e)) ||
        ram_tier_side(&s->ram, e->slot[DIR_RAM])->refs)
        return DIR_UNLISTED;
    if (e->orphan)
        return DIR_ORPHANS;
    return is_only && s->has_disk && !e->disk_declined ? DIR_DIRTY : DIR_MAIN;
}

static enum dir_list want_disk_list(const struct dir_entry *e) {
    if (e->disk != TIER_CLEAN || dir_is_held(e) || e->ram == TIER_READING)
        return DIR_UNLISTED;
    return e->orphan ? DIR_ORPHANS : DIR_MAIN;
}

static void check_order(const struct block_store *s, enum dir_tier t, uint32_t cls,
                        enum dir_list list) {
    uint32_t n = 0, *place = calloc(s->dir.n_fresh + 1, sizeof(*place));
    for (uint32_t at = s->policy.lists[t][cls][list].cold; at != DIR_NONE;
         at = store_at(s, at)->lru[t].next) {
        assert_int_equal(dir_list(store_at(s, at), t), list);
        place[at] = ++n;
    }
    for (uint32_t i = 0; i < s->dir.n_fresh; i++) {
        uint32_t up = place[i] ? store_at(s, i)->parent : DIR_NONE;
        while (up != DIR_NONE && !place[up])
            up = store_at(s, up)->parent;
        if (up != DIR_NONE)
            assert_true(place[up] > place[i]);
    }
    free(place);
}

static void check_idle_counts(const struct block_store *s, enum dir_tier t,
                              const struct slots *sl) {
    for (uint32_t x = 0; x < sl->cfg.n_extents; x++) {
        uint32_t n[2] = {0, 0};
        for (uint32_t i = 0; i < s->dir.n_fresh; i++) {
            const struct dir_entry *e = store_at(s, i);
            if (dir_list(e, t) != DIR_UNLISTED && slot_extent(e->slot[t]) == x)
                n[dir_list(e, t) == DIR_DIRTY]++;
        }
        assert_int_equal(sl->ext[x].n_idle[0], n[0]);
        assert_int_equal(sl->ext[x].n_idle[1], n[1]);
    }
    uint64_t touch = 0;
    for (uint32_t x = sl->coldest; x != UINT32_MAX; x = sl->ext[x].warmer) {
        assert_true(sl->ext[x].touch >= touch);
        touch = sl->ext[x].touch;
    }
}

void store_fx_check_lists(const struct store_fx *f) {
    check_idle_counts(f->s, DIR_RAM, &f->s->ram.slots);
    if (f->s->has_disk)
        check_idle_counts(f->s, DIR_DISK, &f->s->disk.slots);
    struct block_store *s = f->s;
    for (uint32_t i = 0; i < s->dir.n_fresh; i++) {
        const struct dir_entry *e = store_at(s, i);
        assert_int_equal(dir_list(e, DIR_RAM), want_ram_list(s, e));
        assert_int_equal(dir_list(e, DIR_DISK), want_disk_list(e));
    }
    for (uint32_t c = 0; c < s->ram.slots.n_classes; c++)
        for (enum dir_list l = DIR_MAIN; l < DIR_LISTS; l++) {
            check_order(s, DIR_RAM, c, l);
            if (s->has_disk)
                check_order(s, DIR_DISK, c, l);
        }
}

void store_fx_check_idle(const struct store_fx *f) {
    struct block_store_stats st = store_fx_stats(f);
    assert_true(st.lookup_block == st.hit_ram_block + st.hit_disk_block + st.miss_block);
    assert_int_equal(st.now.leased_blocks, 0);
    assert_int_equal(st.now.leased_bytes, 0);
    assert_int_equal(st.now.leases, 0);
    assert_int_equal(st.now.refs, 0);
    assert_int_equal(st.now.puts, 0);
    assert_int_equal(st.now.put_bytes, 0);
    assert_int_equal(st.now.promised_bytes, 0);
    assert_int_equal(st.now.filling_blocks, 0);
    assert_int_equal(st.now.reads_in_flight, 0);
}
