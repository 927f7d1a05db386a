/* The start-up scan: extent headers and tables only, several extents at a time. What is found goes
 * to the directory at once, one header after the other under a lock: nothing is kept twice. An
 * extent that can't be read is left alone and counted, the rest serves. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cachesvc/store/disk_tier.h"
#include "cachesvc/store/disk_tier_priv.h"

#define SCANNERS 4

struct scan {
    struct disk_tier *t;
    const struct disk_recover_cfg *cfg;
    atomic_uint next_extent;
    pthread_mutex_t lock; /* slots, the directory behind found(), stats */
    struct disk_recover_stats st;
    int rv;
};

static int read_at(const struct disk_tier *t, uint8_t *buf, uint32_t len, uint64_t off) {
    struct disk_op op = {.kind = DISK_READ, .fd = t->fd, .buf = buf, .len = len, .off = off};
    disk_op_run(&op);
    return op.rv;
}

static void skipped(struct scan *sc, uint32_t ext) {
    if (sc->st.n_skipped++ == 0 || ext < sc->st.first_skipped)
        sc->st.first_skipped = ext;
}

static void mark_stale(struct disk_tier *t, uint32_t slot) {
    disk_set_stale(t, disk_tier_side(t, slot), STALE_YES);
}

/* Under the lock. Broken headers of this generation count as stale: zeros are due there. */
static void take_table(struct scan *sc, uint32_t ext, const struct disk_extent_hdr *eh,
                       const uint8_t *table) {
    struct disk_tier *t = sc->t;
    int cls = sc->cfg->cls(sc->cfg->arg, eh->slot_bytes);
    if (cls < 0) {
        sc->st.n_refused++;
        return;
    }
    slots_assign_at(&t->slots, ext, (uint32_t)cls);
    slots_open(&t->slots, ext);
    for (uint32_t i = 0; i < eh->n_slots; i++) {
        struct disk_slot_hdr h;
        int rv = disk_slot_decode(table + (size_t)i * DISK_SLOT_HDR_BYTES, &h);
        sc->st.n_ignored += rv == ERR_CORRUPT || rv == ERR_UNSUPPORTED;
        if (rv < 0 || h.extent_generation != eh->generation)
            continue;
        bool fits = disk_slot_need(h.stored_len, h.n_ranges) <= eh->slot_bytes;
        if (!fits || !sc->cfg->found(sc->cfg->arg, slot_code(ext, i), &h))
            mark_stale(t, slot_code(ext, i));
    }
}

static void scan_extent(struct scan *sc, uint32_t ext, uint8_t *buf) {
    struct disk_tier *t = sc->t;
    uint64_t off = slots_extent_off(&t->slots, ext);
    struct disk_extent_hdr eh = {0};
    int rv = read_at(t, buf, DISK_PAGE, off), hdr_rv = ERR_NOTFOUND;
    if (rv == 0)
        hdr_rv = disk_extent_decode(buf, &eh);
    bool is_ours = hdr_rv == 0 &&
                   memcmp(eh.store_id, t->super.store_id, sizeof(eh.store_id)) == 0 &&
                   eh.slot_bytes >= t->cfg.min_slot_bytes &&
                   eh.n_slots == slots_per_extent(&t->slots, eh.slot_bytes);
    uint32_t table = (eh.n_slots * DISK_SLOT_HDR_BYTES + DISK_PAGE - 1) / DISK_PAGE * DISK_PAGE;
    if (is_ours)
        rv = read_at(t, buf, table, off + DISK_PAGE);
    pthread_mutex_lock(&sc->lock);
    t->extent_gen[ext] = eh.generation; /* a foreign one too: the next must differ */
    if (rv < 0)
        slots_bar(&t->slots, ext);
    if (rv < 0 || hdr_rv == ERR_CORRUPT || hdr_rv == ERR_UNSUPPORTED)
        skipped(sc, ext);
    else if (is_ours)
        take_table(sc, ext, &eh, buf);
    pthread_mutex_unlock(&sc->lock);
}

static void *scan_thread(void *arg) {
    struct scan *sc = arg;
    struct disk_tier *t = sc->t;
    uint8_t *buf = aligned_alloc(DISK_PAGE, MAX(1u, t->pages_per_extent) * (size_t)DISK_PAGE);
    while (buf) {
        uint32_t ext = atomic_fetch_add(&sc->next_extent, 1);
        if (ext >= t->slots.cfg.n_extents)
            break;
        scan_extent(sc, ext, buf);
    }
    if (!buf) {
        pthread_mutex_lock(&sc->lock);
        sc->rv = ERR_NOMEM;
        pthread_mutex_unlock(&sc->lock);
    }
    free(buf);
    return NULL;
}

int disk_recover(struct disk_tier *t, const struct disk_recover_cfg *cfg,
                 struct disk_recover_stats *ret, struct errbuf *eb) {
    struct scan sc = {.t = t, .cfg = cfg};
    pthread_mutex_init(&sc.lock, NULL);
    pthread_t threads[SCANNERS];
    bool started[SCANNERS] = {false};
    for (int i = 1; i < SCANNERS; i++)
        started[i] = pthread_create(&threads[i], NULL, scan_thread, &sc) == 0;
    scan_thread(&sc); /* this thread scans too, so one that did not start costs only time */
    for (int i = 1; i < SCANNERS; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&sc.lock);
    *ret = sc.st;
    return sc.rv < 0 ? err_set(eb, sc.rv, "scan of the disk tier: %s", err_text(sc.rv)) : 0;
}
