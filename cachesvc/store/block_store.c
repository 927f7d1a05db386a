#include "cachesvc/store/block_store.h"

#include <sys/random.h>

#include "cachesvc/store/store_priv.h"
#include "common/check.h"

/* ---- defaults ------------------------------------------------------------------------------ */

_Static_assert(STORE_MAX_WRITES + DISK_ROUND_OPS + 2 <= STORE_DISK_JOBS,
               "writes, a round, its sync, a format");

#define DEFAULT(field, value)                                                                      \
    do {                                                                                           \
        if (!(field))                                                                              \
            (field) = (value);                                                                     \
    } while (0)

static uint64_t clamp(uint64_t v, uint64_t lo, uint64_t hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

static void set_defaults(struct block_store_cfg *c) {
    DEFAULT(c->min_slot_bytes, 64u << 10);
    /* Several even in a small tier: one is the reserve for disk reads. */
    uint64_t least = MIN(8ull << 20, c->ram_bytes / 4);
    uint64_t extent = clamp(c->ram_bytes / 16, least, 64ull << 20) / 4096 * 4096;
    DEFAULT(c->ram_extent_bytes,
            slots_fit_extent(ram_tier_room(c->ram_bytes, c->min_slot_bytes), extent));
    if (c->disk_bytes)
        DEFAULT(c->bounce_bytes, c->ram_extent_bytes);
    uint64_t blocks = (c->ram_bytes + c->disk_bytes) / (256u << 10);
    DEFAULT(c->max_blocks, (uint32_t)clamp(blocks, 1024, DISK_OWNER_MAX));
    DEFAULT(c->max_namespaces, 256);
    DEFAULT(c->max_sessions, 1024);
    DEFAULT(c->max_puts, 1024);
    DEFAULT(c->max_put_blocks, 256);
    DEFAULT(c->max_lease_blocks, 262144);
    DEFAULT(c->max_disk_reads, 256);
    DEFAULT(c->max_put_bytes, c->ram_bytes / 4);
    DEFAULT(c->lease_ttl_ns, 5 * NS_PER_S);
    DEFAULT(c->put_ttl_ns, 30 * NS_PER_S);
    DEFAULT(c->removal_records, DISK_LOG_RECORDS);
    DEFAULT(c->clk, clock_real());
}

/* ---- open ---------------------------------------------------------------------------------- */

static void note(const struct block_store *s, enum store_note level, const char *text) {
    if (s->cfg.on_note)
        s->cfg.on_note(s->cfg.hook_arg, level, text);
}

static void on_format(void *arg) {
    store_behind_pump(arg);
}

static void on_health(void *arg, const char *why) {
    struct block_store *s = arg;
    char text[256];
    bool bad = s->disk.is_failing;
    snprintf(text, sizeof(text), "%s (%s)",
             bad ? "the disk tier fails: RAM serves alone" : "the disk tier works again", why);
    note(s, bad ? STORE_NOTE_ERROR : STORE_NOTE_INFO, text);
    s->rescan_dirty = true; /* blocks whose write was given up */
}

/* A tier that can't be read is left alone: the node serves from RAM and says so. */
static int open_tier(struct block_store *s, const struct disk_tier_cfg *dc, struct errbuf *eb) {
    struct errbuf said = {{0}};
    int rv = disk_tier_init(&s->disk, dc, &said);
    s->has_disk = rv == 0;
    s->disk_unusable = rv == ERR_UNAVAILABLE;
    if (rv < 0 && !s->disk_unusable)
        return err_set(eb, rv, "%s", said.text);
    if (s->disk_unusable)
        note(s, STORE_NOTE_ERROR, said.text);
    else if (said.text[0])
        note(s, STORE_NOTE_WARN, said.text);
    if (s->has_disk && !s->disk.is_direct && !s->cfg.buffered_io)
        note(s, STORE_NOTE_WARN,
             "the file system of the data directory refuses O_DIRECT: disk I/O is buffered");
    return 0;
}

static int open_disk(struct block_store *s, struct errbuf *eb) {
    if (!s->cfg.disk_bytes)
        return 0;
    s->exec = s->cfg.exec;
    if (!s->exec) {
        int rv =
            disk_exec_loop_new(&s->own_exec, s->cfg.work, s->cfg.max_disk_reads + STORE_DISK_JOBS);
        if (rv < 0)
            return err_set(eb, rv, "disk pool");
        s->exec = s->own_exec;
    }
    struct disk_tier_cfg dc = {
        .data_dir = s->cfg.data_dir,
        .disk_bytes = s->cfg.disk_bytes,
        .extent_bytes = s->cfg.disk_extent_bytes,
        .min_slot_bytes = s->cfg.min_slot_bytes,
        .log_records = s->cfg.removal_records,
        .buffered = s->cfg.buffered_io,
        .reformat = s->cfg.disk_reformat,
        .exec = s->exec,
        .clk = s->clk,
        .encode = store_behind_encode,
        .log_open = store_log_open,
        .log_decode = store_log_decode,
        .log_encode = store_log_encode,
        .on_format = on_format,
        .on_health = on_health,
        .arg = s,
    };
    return open_tier(s, &dc, eb);
}

static void init_pools(struct block_store *s) {
    const struct block_store_cfg *c = &s->cfg;
    for (uint32_t i = 0; i < c->max_sessions; i++)
        list_push_back(&s->free_sessions, &s->sessions[i].link);
    for (uint32_t i = 0; i < c->max_sessions; i++) /* each has a session */
        list_push_back(&s->free_tenants, &s->tenants[i].link);
    for (uint32_t i = 0; i < c->max_puts; i++) {
        s->puts[i].blk = s->put_blks + (size_t)i * c->max_put_blocks;
        list_push_back(&s->free_puts, &s->puts[i].link);
    }
    for (uint32_t i = 0; i < c->max_disk_reads; i++)
        list_push_back(&s->free_reads, &s->reads[i].link);
    for (uint32_t i = 0; i < STORE_MAX_WRITES; i++)
        list_push_back(&s->free_writes, &s->writes[i].link);
    for (uint32_t i = 0; i < s->n_leases_max; i++)
        s->leases[i].next_free = i + 1 < s->n_leases_max ? i + 1 : DIR_NONE;
    for (uint32_t i = 0; i < c->max_lease_blocks; i++)
        s->items[i].next = i + 1 < c->max_lease_blocks ? i + 1 : DIR_NONE;
}

static int take_memory(struct block_store *s) {
    const struct block_store_cfg *c = &s->cfg;
    s->n_leases_max = MAX(c->max_lease_blocks / 4, 16u);
    s->behind_cap = s->has_disk ? c->ram_bytes / c->min_slot_bytes + 1 : 0;
    s->ns = alloc_array(c->max_namespaces, sizeof(*s->ns));
    s->range_sizes = alloc_array((size_t)c->max_namespaces * CHECKSUM_MAX_RANGES, sizeof(uint32_t));
    s->ns_class = alloc_array(c->max_namespaces, sizeof(*s->ns_class));
    s->ns_entries = alloc_array(c->max_namespaces, sizeof(*s->ns_entries));
    s->sessions = alloc_array(c->max_sessions, sizeof(*s->sessions));
    s->tenants = alloc_array(c->max_sessions, sizeof(*s->tenants));
    s->leases = alloc_array(s->n_leases_max, sizeof(*s->leases));
    s->items = alloc_array(c->max_lease_blocks, sizeof(*s->items));
    s->puts = alloc_array(c->max_puts, sizeof(*s->puts));
    s->put_blks = alloc_array((size_t)c->max_puts * c->max_put_blocks, sizeof(*s->put_blks));
    s->reads = alloc_array(c->max_disk_reads, sizeof(*s->reads));
    s->behind = alloc_array(s->behind_cap, sizeof(*s->behind));
    if (!s->ns || !s->range_sizes || !s->ns_class || !s->ns_entries || !s->sessions ||
        !s->tenants || !s->leases || !s->items || !s->puts || !s->put_blks || !s->reads ||
        !s->behind)
        return ERR_NOMEM;
    init_pools(s);
    uint64_t seed;
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        seed = clock_wall_ns(s->clk);
    /* What puts have promised stands beside the blocks, with a hole each: nothing that is there goes
     * for a promise. */
    uint64_t promised =
        MIN(c->max_put_bytes / c->min_slot_bytes, (uint64_t)c->max_puts * c->max_put_blocks);
    uint64_t cap = c->max_blocks + 2 * promised;
    int rv = cap < DIR_NONE / 4 ? dir_init(&s->dir, (uint32_t)cap, seed) : ERR_NOMEM;
    s->dir.n_of_ns = s->ns_entries;
    s->dir.on_held = store_on_held;
    s->dir.arg = s;
    return rv < 0 ? rv : origins_init(&s->origins, c->max_blocks);
}

static void destroy(struct block_store *s) {
    if (s->has_disk)
        disk_tier_fini(&s->disk);
    if (s->own_exec)
        disk_exec_loop_free(s->own_exec);
    removal_log_fini(&s->removals);
    ram_tier_fini(&s->ram);
    dir_fini(&s->dir);
    origins_fini(&s->origins);
    free(s->ns);
    free(s->range_sizes);
    free(s->ns_class);
    free(s->ns_entries);
    free(s->sessions);
    free(s->tenants);
    free(s->leases);
    free(s->items);
    free(s->puts);
    free(s->put_blks);
    free(s->reads);
    free(s->behind);
    free(s);
}

/* The unit is the largest block's slot: it grows as namespaces come (shape_class() in store_ns.c). */
static void init_shares(struct block_store *s) {
    const struct slots_cfg *sc = &s->ram.slots.cfg;
    uint64_t lease_cap = (uint64_t)sc->n_extents * sc->extent_bytes / 5 * 4;
    uint32_t unit = s->cfg.min_slot_bytes;
    share_init(&s->lease_bytes, SHARE_TAKEN_BACK, lease_cap, unit);
    share_init(&s->lease_units, SHARE_TAKEN_BACK, s->cfg.max_lease_blocks, 0);
    share_init(&s->promises, SHARE_TAKEN_BACK, s->cfg.max_put_bytes, unit);
    share_init(&s->fills, SHARE_RUNNING, s->cfg.max_put_bytes, unit);
}

static int open_parts(struct block_store *s, struct errbuf *eb) {
    const struct block_store_cfg *c = &s->cfg;
    if (c->max_namespaces > UINT16_MAX || c->max_blocks >= DIR_NONE ||
        (c->disk_bytes && c->max_blocks > DISK_OWNER_MAX))
        return err_set(eb, ERR_INVALID, "store limits");
    struct ram_tier_cfg rc = {
        .ram_bytes = c->ram_bytes,
        .extent_bytes = c->ram_extent_bytes,
        .bounce_bytes = c->bounce_bytes,
        .min_slot_bytes = c->min_slot_bytes,
        .huge_pages = !c->no_huge_pages,
        .background_touch = !c->no_background_touch,
    };
    int rv = ram_tier_init(&s->ram, &rc, eb);
    if (rv == 0)
        rv = open_disk(s, eb);
    if (rv == 0 && !s->has_disk && store_log_open(s, c->removal_records) < 0)
        rv = err_set(eb, ERR_NOMEM, "removal log");
    if (rv < 0)
        return rv;
    rv = take_memory(s);
    if (rv < 0)
        return err_set(eb, rv, "store tables for %u blocks", c->max_blocks);
    init_shares(s);
    policy_lru_init(&s->policy, &s->dir, &s->ram.slots, s->has_disk ? &s->disk.slots : NULL,
                    s->ns_class);
    return s->has_disk ? store_recover(s, eb) : 0;
}

int block_store_open(struct block_store **ret, const struct block_store_cfg *cfg,
                     struct errbuf *eb) {
    struct block_store *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(eb, ERR_NOMEM, "store");
    s->cfg = *cfg;
    set_defaults(&s->cfg);
    s->clk = s->cfg.clk;
    s->ram.fd = -1;
    struct list *lists[] = {&s->free_sessions, &s->live_sessions, &s->free_tenants,
                            &s->live_tenants,  &s->leases_by_end, &s->free_puts,
                            &s->free_reads,    &s->free_writes,   &s->evicts};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        list_init(lists[i]);
    int rv = open_parts(s, eb);
    if (rv < 0) {
        destroy(s);
        return rv;
    }
    *ret = s;
    return 0;
}

/* ---- drain and close ----------------------------------------------------------------------- */

static void on_drain_synced(struct disk_wait *w, int rv) {
    struct block_store *s = CONTAINER_OF(w, struct block_store, drain_wait);
    s->drain_waiting = false;
    block_store_cb cb = TAKE_PTR(s->drain_cb);
    cb(s->drain_arg, rv);
}

static void drain_progress(struct block_store *s) {
    if (!s->drain_cb || s->drain_waiting)
        return;
    if (s->disk.is_failing) {
        block_store_cb cb = TAKE_PTR(s->drain_cb);
        cb(s->drain_arg, ERR_UNAVAILABLE);
        return;
    }
    if (s->behind_n > 0 || s->rescan_dirty || s->st.now.writes_in_flight > 0)
        return;
    s->drain_waiting = true;
    disk_tier_wait(&s->disk, &s->drain_wait, DISK_WAIT_ALL, on_drain_synced);
}

void block_store_drain(struct block_store *s, block_store_cb cb, void *arg) {
    CHECK(!s->drain_cb);
    if (!s->has_disk) {
        cb(arg, 0);
        return;
    }
    s->drain_cb = cb;
    s->drain_arg = arg;
    s->rescan_dirty = true;
    store_behind_pump(s);
}

static bool close_progress(struct block_store *s) {
    if (!s->close_cb)
        return false;
    if (s->has_disk && disk_tier_is_idle(&s->disk)) /* it fails, so nothing more will be written */
        disk_tier_cancel_waits(&s->disk);
    bool is_busy = s->has_disk && (!disk_tier_is_idle(&s->disk) || s->st.now.reads_in_flight ||
                                   s->st.now.writes_in_flight || s->evict_waiting ||
                                   s->clear_waiting || s->drain_waiting);
    if (is_busy && store_now(s) < s->close_by)
        return false;
    store_evict_close(s);
    if (is_busy) { /* threads may still write to our memory: it is theirs now */
        block_store_cb late = TAKE_PTR(s->close_cb);
        late(s->close_arg, ERR_TIMEOUT);
        return true;
    }
    block_store_cb cb = s->close_cb;
    void *arg = s->close_arg;
    destroy(s);
    cb(arg, 0);
    return true;
}

void block_store_close(struct block_store *s, block_store_cb cb, void *arg) {
    CHECK(!s->is_closing && list_empty(&s->live_sessions));
    s->is_closing = true;
    s->close_cb = cb;
    s->close_arg = arg;
    s->close_by = store_now(s) + STORE_CLOSE_NS;
    store_reads_cancel(s, ERR_CANCELED);
    if (s->drain_cb && !s->drain_waiting) {
        block_store_cb dcb = TAKE_PTR(s->drain_cb);
        dcb(s->drain_arg, ERR_CANCELED);
    }
    if (!s->has_disk) /* else from tick: the caller may be a callback out of the disk tier */
        (void)close_progress(s);
}

void block_store_tick(struct block_store *s) {
    if (s->is_closing) {
        if (!close_progress(s) && s->has_disk)
            disk_tier_tick(&s->disk);
        return;
    }
    uint64_t now = store_now(s);
    const char *text = ram_tier_note(&s->ram);
    if (text)
        note(s, STORE_NOTE_WARN, text);
    store_put_tick(s, now);
    store_lease_tick(s, now);
    store_evict_tick(s, now);
    store_behind_tick(s);
    drain_progress(s);
}

/* ---- memory file --------------------------------------------------------------------------- */

int block_store_memfd(const struct block_store *s) {
    return s->ram.fd;
}
uint64_t block_store_memfd_bytes(const struct block_store *s) {
    return s->ram.bytes;
}
const uint8_t *block_store_disk_id(const struct block_store *s) {
    return s->has_disk ? s->disk.super.store_id : NULL;
}

uint32_t block_store_min_slot_bytes(const struct block_store *s) {
    return s->cfg.min_slot_bytes;
}

/* ---- stats --------------------------------------------------------------------------------- */

void block_store_stats(const struct block_store *s, struct block_store_stats *ret) {
    *ret = s->st;
    ret->now.ram_bytes = s->ram.bytes;
    ret->now.ram_used_bytes = s->ram.slots.used_bytes;
    ret->now.disk_bytes = s->has_disk ? s->cfg.disk_bytes : 0;
    ret->now.disk_used_bytes = s->has_disk ? s->disk.slots.used_bytes : 0;
    ret->disk_sync = s->has_disk ? s->disk.n_syncs : 0;
    ret->now.disk_degraded = s->disk_unusable || (s->has_disk && s->disk.is_failing);
    ret->now.removal_records = s->removals.n;
    ret->now.max_blocks = s->cfg.max_blocks;
    ret->now.put_bytes = s->fills.used;
    ret->now.promised_bytes = s->promises.used;
    ret->now.ram_lost_bytes = s->ram.slots.lost_bytes;
    ret->now.disk_lost_bytes = s->has_disk ? s->disk.slots.lost_bytes : 0;
}
