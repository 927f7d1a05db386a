/* What an operator removes, and that it stays removed.
 *
 *   records in the log -> matching puts aborted -> what matches is invisible -> log synced -> answer
 *                                                          \-> taken out in slices -> headers cleared
 * What the record says holds from the moment it is in memory: a sweep that is not through yet makes
 * its blocks invisible (store_is_there), and puts are held against the whole log. So a flush costs
 * the loop and the disk one record, however many blocks it is. */
#include "cachesvc/store/store_priv.h"

#include "common/check.h"

#define SWEEP_STEPS 16384u             /* entries looked at in a slice */
#define SWEEP_REMOVALS 2048u           /* and blocks taken out */
#define CLOCK_SLACK_MS (600 * 1000ull) /* between the clocks of a pool */
#define LOG_RESERVE 256u
#define EXPIRE_NS (60 * NS_PER_S)

/* ---- matching ------------------------------------------------------------------------------ */

bool store_removal_matches(const struct block_store *s, uint32_t ns, const struct block_id *id,
                           const uint8_t *writer, uint64_t group, uint64_t time_ms) {
    struct removal_subject b = {s->ns[ns].digest, id, writer, group, time_ms};
    return removal_log_matches(&s->removals, &b);
}

static bool is_logged(void *arg, const struct dir_entry *e) {
    const struct block_store *s = arg;
    const struct origin *o = origins_at(&s->origins, (uint32_t)e->origin);
    return store_removal_matches(s, e->ns, &e->id, o->writer, o->group, e->time_ms);
}

static uint64_t key_u64(const uint8_t *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static bool sweep_matches(const struct block_store *s, const struct store_sweep *w,
                          const struct dir_entry *e) {
    uint64_t t = e->time_ms;
    const struct origin *o = origins_at(&s->origins, (uint32_t)e->origin);
    if ((w->ns != STORE_NONE && e->ns != w->ns) || t < w->r.from_ms || t > w->r.before_ms)
        return false;
    if (w->r.kind == DISK_REMOVE_WRITER)
        return memcmp(o->writer, w->r.key, sizeof(o->writer)) == 0;
    return w->r.kind != DISK_REMOVE_GROUP || o->group == key_u64(w->r.key);
}

bool store_is_doomed(const struct block_store *s, const struct dir_entry *e) {
    for (uint32_t i = 0; i < s->n_sweeps; i++)
        if (!s->sweeps[i].dry_run && sweep_matches(s, &s->sweeps[i], e))
            return true;
    return false;
}

/* ---- the log ------------------------------------------------------------------------------- */

int store_log_open(void *arg, uint32_t n_records) {
    struct block_store *s = arg;
    removal_log_fini(&s->removals);
    return removal_log_init(&s->removals, n_records);
}

int store_log_decode(void *arg, uint32_t page, const uint8_t p[DISK_PAGE]) {
    return removal_log_decode(&((struct block_store *)arg)->removals, page, p);
}

void store_log_encode(void *arg, uint32_t page, uint8_t ret[DISK_PAGE]) {
    removal_log_encode(&((struct block_store *)arg)->removals, page, ret);
}

/* Of the log's places some are for flushes, or a full log could not be helped by one. */
static bool has_room(struct block_store *s, uint64_t n, bool is_flush) {
    if (!is_flush)
        n += MIN(LOG_RESERVE, s->removals.cap / 8);
    if (removal_log_room(&s->removals) < n) {
        removal_log_compact(&s->removals);
        removal_log_synced(&s->removals, s->synced_seq);
        if (list_empty(&s->evicts))
            removal_log_drop_unsynced(&s->removals, s->synced_seq);
    }
    return removal_log_room(&s->removals) >= n;
}

static void log_record(struct block_store *s, struct disk_removal *r) {
    uint32_t page = 0;
    r->logged_ms = store_pool_ms(s);
    int rv = removal_log_add(&s->removals, r, &page);
    CHECK(rv == 0); /* has_room() */
    if (s->has_disk)
        disk_tier_log_mark(&s->disk, page);
}

/* ---- taking out ---------------------------------------------------------------------------- */

static void count_one(const struct block_store *s, struct store_evict *ev, uint32_t idx) {
    ev->n_blocks++;
    ev->n_deferred += store_at(s, idx)->leases > 0;
    ev->bytes += s->ns[store_at(s, idx)->ns].shape.payload_bytes;
}

static void remove_one(struct block_store *s, struct store_evict *ev, uint32_t idx) {
    if (ev)
        count_one(s, ev, idx);
    s->st.removed++;
    store_remove(s, idx);
}

static void sweep_slice(struct block_store *s, struct store_sweep *w) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < SWEEP_STEPS && n < SWEEP_REMOVALS && w->at < w->end; k++, w->at++) {
        const struct dir_entry *e = store_at(s, w->at);
        if (e->state != DIR_RESIDENT || !sweep_matches(s, w, e))
            continue;
        if (w->dry_run)
            count_one(s, w->ev, w->at);
        else
            remove_one(s, w->ev, w->at);
        n++;
    }
}

static void sweep_first(struct block_store *s) {
    sweep_slice(s, &s->sweeps[0]);
    struct store_sweep w = s->sweeps[0];
    if (w.at < w.end)
        return;
    if (w.ev)
        w.ev->is_sweeping = false;
    s->n_sweeps--;
    memmove(s->sweeps, s->sweeps + 1, s->n_sweeps * sizeof(*s->sweeps));
    if (s->has_disk && !w.dry_run)
        disk_tier_clear_stale(&s->disk);
}

/* ---- answers ------------------------------------------------------------------------------- */

static void answer(struct block_store *s, struct store_evict *ev, int rv) {
    list_remove(&ev->link);
    for (uint32_t i = 0; i < s->n_sweeps; i++) {
        if (s->sweeps[i].ev != ev)
            continue;
        s->sweeps[i].ev = NULL;
        s->sweeps[i].at = s->sweeps[i].dry_run ? s->sweeps[i].end : s->sweeps[i].at;
    }
    ev->cb(ev->arg, rv, ev->n_blocks, ev->bytes);
}

/* One of which nothing is left to wait for. */
static struct store_evict *find_done(struct block_store *s) {
    LIST_FOREACH(&s->evicts, l) {
        struct store_evict *ev = LIST_ENTRY(l, struct store_evict, link);
        if (ev->is_synced && !ev->is_sweeping && !ev->wants_clear)
            return ev;
    }
    return NULL;
}

static void progress(struct block_store *s);

static void on_logged(struct disk_wait *w, int rv) {
    struct block_store *s = CONTAINER_OF(w, struct block_store, evict_wait);
    uint64_t seq = s->evict_seq;
    s->evict_waiting = false;
    if (rv == 0) {
        s->synced_seq = seq;
        removal_log_synced(&s->removals, seq);
    }
    struct list all;
    list_move(&s->evicts, &all);
    for (struct list *l; (l = list_pop_front(&all));) {
        struct store_evict *ev = LIST_ENTRY(l, struct store_evict, link);
        list_push_back(&s->evicts, &ev->link);
        bool is_meant = !ev->is_synced && ev->seq <= seq;
        ev->is_synced |= is_meant && rv == 0;
        if (is_meant && rv < 0)
            answer(s, ev, rv);
    }
    progress(s);
}

/* No header is left that only the disk knows of: those in forgotten slots are cleared, and an extent
 * that changes hands has the generation that makes its old ones void. */
static bool is_cleared(const struct block_store *s) {
    return !disk_tier_is_clearing(&s->disk) && s->disk.format_ext == UINT32_MAX;
}

static void on_cleared(struct disk_wait *w, int rv) {
    struct block_store *s = CONTAINER_OF(w, struct block_store, clear_wait);
    s->clear_waiting = false;
    if (rv == 0 && s->disk.is_failing && s->disk.format_ext != UINT32_MAX)
        rv = ERR_UNAVAILABLE; /* the extent's header is not tried again before the disk is well */
    if (rv == 0 && !is_cleared(s))
        return; /* the pass goes on, or began again for somebody else */
    struct list all;
    list_move(&s->evicts, &all);
    for (struct list *l; (l = list_pop_front(&all));) {
        struct store_evict *ev = LIST_ENTRY(l, struct store_evict, link);
        list_push_back(&s->evicts, &ev->link);
        bool is_meant = ev->wants_clear;
        ev->wants_clear = false;
        if (is_meant && rv < 0)
            answer(s, ev, rv);
    }
    progress(s);
}

static bool any_unsynced(const struct block_store *s) {
    LIST_FOREACH(&s->evicts, l)
    if (!LIST_ENTRY(l, struct store_evict, link)->is_synced)
        return true;
    return false;
}

static bool any_wants_clear(const struct block_store *s) {
    LIST_FOREACH(&s->evicts, l)
    if (LIST_ENTRY(l, struct store_evict, link)->wants_clear)
        return true;
    return false;
}

static void progress(struct block_store *s) {
    if (!s->evict_waiting && any_unsynced(s)) {
        s->evict_waiting = true;
        s->evict_seq = s->removals.seq;
        disk_tier_wait(&s->disk, &s->evict_wait, DISK_WAIT_LOG, on_logged);
    }
    bool may_wait = s->has_disk && (is_cleared(s) || s->disk.is_failing);
    if (!s->clear_waiting && may_wait && any_wants_clear(s)) {
        s->clear_waiting = true;
        disk_tier_wait(&s->disk, &s->clear_wait, DISK_WAIT_ALL, on_cleared);
    }
    for (struct store_evict *ev; (ev = find_done(s));)
        answer(s, ev, 0);
}

void store_evict_tick(struct block_store *s, uint64_t now) {
    if (s->n_sweeps > 0)
        sweep_first(s);
    progress(s);
    /* A record may end when no header is left that it holds back. */
    bool is_quiet =
        s->n_sweeps == 0 && (!s->has_disk || (!disk_tier_is_clearing(&s->disk) &&
                                              !s->disk.is_failing && s->disk.n_failed == 0));
    if (now < s->expire_at || !is_quiet)
        return;
    s->expire_at = now + EXPIRE_NS;
    removal_log_expire(&s->removals, store_pool_ms(s));
}

void store_evict_close(struct block_store *s) {
    while (!list_empty(&s->evicts))
        answer(s, LIST_ENTRY(s->evicts.next, struct store_evict, link), ERR_CANCELED);
}

/* ---- evict --------------------------------------------------------------------------------- */

static int make_record(const struct block_store *s, const struct store_filter *f,
                       struct disk_removal *r) {
    uint64_t now = store_pool_ms(s);
    if ((f->ids != NULL) + f->by_writer + f->by_group > 1 || (f->ids && !f->by_ns) ||
        (f->by_time && f->time_from_ms > f->time_to_ms) || f->before_ms > now + CLOCK_SLACK_MS)
        return ERR_INVALID;
    *r = (struct disk_removal){
        .from_ms = f->by_time ? f->time_from_ms : 0,
        .before_ms = f->before_ms ? f->before_ms : now,
        .kind = f->ids         ? DISK_REMOVE_ID
                : f->by_writer ? DISK_REMOVE_WRITER
                : f->by_group  ? DISK_REMOVE_GROUP
                               : DISK_REMOVE_ALL,
    };
    if (f->by_time)
        r->before_ms = MIN(r->before_ms, f->time_to_ms);
    if (f->by_ns)
        memcpy(r->ns, f->digest, sizeof(r->ns));
    if (f->by_writer)
        memcpy(r->key, f->writer, sizeof(f->writer));
    for (int i = 0; f->by_group && i < 8; i++)
        r->key[i] = (uint8_t)(f->group >> 8 * i);
    return 0;
}

/* The named block and, with descendants, all below it that the directory knows; holes too, since
 * what lost its bytes here may be offered again. */
static uint64_t count_below(const struct block_store *s, const struct store_filter *f, uint32_t ns,
                            const struct block_id *id) {
    uint32_t root = ns == STORE_NONE ? DIR_NONE : dir_find(&s->dir, ns, id);
    uint64_t n = 1;
    if (root == DIR_NONE || !f->descendants)
        return 1;
    for (uint32_t cur = root; n <= s->removals.cap; n++)
        if ((cur = dir_walk(&s->dir, root, cur, true)) == DIR_NONE)
            break;
    return n;
}

static void log_below(struct block_store *s, const struct store_filter *f, uint32_t ns,
                      struct disk_removal *r, const struct block_id *id) {
    memcpy(r->key, id->b, sizeof(r->key));
    log_record(s, r);
    uint32_t root = ns == STORE_NONE ? DIR_NONE : dir_find(&s->dir, ns, id);
    if (root == DIR_NONE || !f->descendants)
        return;
    for (uint32_t cur = root; (cur = dir_walk(&s->dir, root, cur, true)) != DIR_NONE;) {
        memcpy(r->key, store_at(s, cur)->id.b, sizeof(r->key));
        log_record(s, r);
    }
}

/* A block with children stays as a hole while the walk goes on below it; one without takes along
 * only parents that have no other child, hence never what comes next. */
static void remove_below(struct block_store *s, struct store_evict *ev,
                         const struct store_filter *f, uint32_t ns, const struct block_id *id) {
    uint32_t root = ns == STORE_NONE ? DIR_NONE : dir_find(&s->dir, ns, id);
    for (uint32_t cur = root; cur != DIR_NONE;) {
        uint32_t next = dir_walk(&s->dir, root, cur, f->descendants);
        if (store_at(s, cur)->state == DIR_RESIDENT && is_logged(s, store_at(s, cur)))
            remove_one(s, ev, cur);
        cur = next;
    }
}

static int count_ids(const struct block_store *s, struct store_evict *ev,
                     const struct store_filter *f, uint32_t ns, const struct disk_removal *r) {
    for (uint32_t i = 0; ns != STORE_NONE && i < f->n_ids; i++) {
        uint32_t root = dir_find(&s->dir, ns, &f->ids[i]);
        uint32_t n = 0;
        for (uint32_t cur = root; cur != DIR_NONE && n <= s->removals.cap; n++) {
            const struct dir_entry *e = store_at(s, cur);
            uint64_t t = e->time_ms;
            if (e->state != DIR_HOLE && t >= r->from_ms && t <= r->before_ms)
                count_one(s, ev, cur);
            cur = dir_walk(&s->dir, root, cur, f->descendants);
        }
    }
    return 0;
}

static int evict_ids(struct block_store *s, struct store_evict *ev, const struct store_filter *f,
                     uint32_t ns, struct disk_removal *r) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < f->n_ids && n <= s->removals.cap; i++)
        n += count_below(s, f, ns, &f->ids[i]);
    if (!has_room(s, n, false))
        return ERR_NOSPACE;
    for (uint32_t i = 0; i < f->n_ids; i++)
        log_below(s, f, ns, r, &f->ids[i]);
    ev->n_blocks = ev->n_aborted = store_put_abort(s, is_logged, s, &ev->bytes);
    for (uint32_t i = 0; i < f->n_ids; i++)
        remove_below(s, ev, f, ns, &f->ids[i]);
    /* What the directory has forgotten has no record of its own: a descendant's header must go. */
    ev->wants_clear =
        f->descendants && s->has_disk && (s->disk.n_stale > 0 || s->disk.format_ext != UINT32_MAX);
    if (s->has_disk)
        disk_tier_clear_stale(&s->disk);
    return 0;
}

/* All of it: what is there is what goes, so that nobody has to count. */
static bool take_numbers(struct block_store *s, struct store_evict *ev,
                         const struct store_sweep *w) {
    if (w->dry_run || w->r.kind != DISK_REMOVE_ALL || w->r.from_ms > 0 ||
        w->r.before_ms < s->newest_ms || s->n_sweeps > 0)
        return false;
    for (uint32_t ns = 0; ns < s->n_ns; ns++) {
        if (w->ns != STORE_NONE && w->ns != ns)
            continue;
        ev->n_blocks += s->ns[ns].n_blocks;
        ev->bytes += s->ns[ns].n_blocks * s->ns[ns].shape.payload_bytes;
    }
    ev->n_deferred = store_lease_count(s, w->ns);
    return true;
}

static int evict_all(struct block_store *s, struct store_evict *ev, const struct store_filter *f,
                     uint32_t ns, struct disk_removal *r) {
    if (s->n_sweeps == STORE_MAX_SWEEPS)
        return ERR_BUSY;
    if (!f->dry_run && !has_room(s, 1, r->kind == DISK_REMOVE_ALL))
        return ERR_NOSPACE;
    if (!f->dry_run) {
        log_record(s, r);
        ev->n_blocks = ev->n_aborted = store_put_abort(s, is_logged, s, &ev->bytes);
    }
    if (f->by_ns && ns == STORE_NONE)
        return 0; /* nobody has such blocks here; the record is for whoever brings some */
    struct store_sweep *w = &s->sweeps[s->n_sweeps];
    *w = (struct store_sweep){
        .r = *r, .ns = f->by_ns ? ns : STORE_NONE, .end = s->dir.n_fresh, .dry_run = f->dry_run};
    if (!take_numbers(s, ev, w)) {
        w->ev = ev;
        ev->is_sweeping = true;
    }
    s->n_sweeps++;
    sweep_first(s);
    return 0;
}

void block_store_evict(struct block_store *s, struct store_evict *ev, const struct store_filter *f,
                       void (*cb)(void *arg, int rv, uint64_t n_blocks, uint64_t bytes),
                       void *arg) {
    *ev = (struct store_evict){.cb = cb, .arg = arg};
    struct disk_removal r;
    uint32_t ns = STORE_NONE;
    int rv = make_record(s, f, &r);
    if (rv == 0 && f->by_ns && block_store_ns_find(s, f->digest, &ns) < 0)
        ns = STORE_NONE;
    ev->before_ms = rv == 0 ? r.before_ms : 0;
    bool is_empty = rv == 0 && r.from_ms > r.before_ms;
    if (rv == 0 && !is_empty && f->ids && f->dry_run)
        rv = count_ids(s, ev, f, ns, &r);
    else if (rv == 0 && !is_empty)
        rv = f->ids ? evict_ids(s, ev, f, ns, &r) : evict_all(s, ev, f, ns, &r);
    if (rv < 0 || is_empty) {
        cb(arg, rv, 0, 0);
        return;
    }
    ev->seq = s->removals.seq;
    ev->is_synced = !s->has_disk || f->dry_run;
    list_push_back(&s->evicts, &ev->link);
    if (!s->has_disk) {
        s->synced_seq = ev->seq;
        removal_log_synced(&s->removals, ev->seq);
    }
    progress(s);
}
