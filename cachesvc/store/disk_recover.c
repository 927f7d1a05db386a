/* The start-up scan: extent headers and tables only, several extents at a time. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cachesvc/store/disk_tier.h"

#define SCANNERS 4

struct scan {
    struct disk_tier *t;
    atomic_uint next_extent;
};
struct scanner {
    struct scan *scan;
    pthread_t thread;
    struct disk_found *found;
    uint64_t n, cap, ignored;
    int rv;
};
/* What pass one says of an extent, kept in the tier's own arrays until pass two gives it its class.
 */

static int read_at(int fd, uint8_t *buf, size_t len, uint64_t off) {
    for (size_t got = 0; got < len;) {
        ssize_t n = pread(fd, buf + got, len - got, (off_t)(off + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        got += (size_t)n;
    }
    return 0;
}

static int keep(struct scanner *sc, uint32_t slot, const struct disk_slot_hdr *h) {
    if (sc->n == sc->cap) {
        uint64_t cap = sc->cap ? sc->cap * 2 : 256;
        struct disk_found *p = realloc(sc->found, cap * sizeof(*p));
        if (!p)
            return ERR_NOMEM;
        sc->found = p;
        sc->cap = cap;
    }
    sc->found[sc->n++] = (struct disk_found){slot, *h};
    return 0;
}

static int scan_table(struct scanner *sc, uint32_t ext, const struct disk_extent_hdr *eh,
                      const uint8_t *table) {
    for (uint32_t i = 0; i < eh->n_slots; i++) {
        struct disk_slot_hdr h;
        int rv = disk_slot_decode(table + (size_t)i * DISK_SLOT_HDR_BYTES, &h);
        bool fits = rv == 0 && h.extent_generation == eh->generation &&
                    (uint64_t)h.payload_len + 12ull * h.n_ranges <= eh->slot_bytes;
        if (!fits) {
            sc->ignored += rv == ERR_CORRUPT || rv == ERR_UNSUPPORTED;
            continue;
        }
        rv = keep(sc, slot_code(ext, i), &h);
        if (rv < 0)
            return rv;
    }
    return 0;
}

static int scan_extent(struct scanner *sc, uint32_t ext, uint8_t *buf) {
    struct disk_tier *t = sc->scan->t;
    uint64_t off = slots_extent_off(&t->slots, ext);
    int rv = read_at(t->fd, buf, DISK_PAGE, off);
    if (rv < 0)
        return rv;
    struct disk_extent_hdr eh;
    rv = disk_extent_decode(buf, &eh);
    if (rv < 0) {
        sc->ignored += rv == ERR_CORRUPT || rv == ERR_UNSUPPORTED;
        return 0;
    }
    t->extent_gen[ext] = eh.generation; /* a broken or foreign one too: the next must differ */
    bool is_ours = memcmp(eh.store_id, t->super.store_id, sizeof(eh.store_id)) == 0 &&
                   eh.slot_bytes >= t->cfg.min_slot_bytes &&
                   eh.n_slots == slots_per_extent(&t->slots, eh.slot_bytes);
    if (!is_ours) {
        sc->ignored++;
        return 0;
    }
    t->slots.ext[ext].touch = eh.slot_bytes; /* for pass two */
    uint64_t table =
        ((uint64_t)eh.n_slots * DISK_SLOT_HDR_BYTES + DISK_PAGE - 1) / DISK_PAGE * DISK_PAGE;
    rv = read_at(t->fd, buf, table, off + DISK_PAGE);
    return rv < 0 ? rv : scan_table(sc, ext, &eh, buf);
}

static void *scan_thread(void *arg) {
    struct scanner *sc = arg;
    struct disk_tier *t = sc->scan->t;
    uint8_t *buf = aligned_alloc(DISK_PAGE, MAX(1u, t->pages_per_extent) * (size_t)DISK_PAGE);
    sc->rv = buf ? 0 : ERR_NOMEM;
    while (sc->rv == 0) {
        uint32_t ext = atomic_fetch_add(&sc->scan->next_extent, 1);
        if (ext >= t->slots.cfg.n_extents)
            break;
        sc->rv = scan_extent(sc, ext, buf);
    }
    free(buf);
    return NULL;
}

static int give_classes(struct disk_tier *t) {
    for (uint32_t ext = 0; ext < t->slots.cfg.n_extents; ext++) {
        uint32_t slot_bytes = (uint32_t)t->slots.ext[ext].touch;
        t->slots.ext[ext].touch = 0;
        if (slot_bytes == 0)
            continue;
        int cls = slots_class(&t->slots, slot_bytes);
        if (cls < 0)
            continue; /* too many sizes: the extent counts as free */
        slots_assign_at(&t->slots, ext, (uint32_t)cls);
        slots_open(&t->slots, ext);
    }
    return 0;
}

static int by_seq(const void *a, const void *b) {
    uint64_t x = ((const struct disk_found *)a)->hdr.put_seq,
             y = ((const struct disk_found *)b)->hdr.put_seq;
    return (x > y) - (x < y);
}

int disk_recover(struct disk_tier *t, struct disk_found **ret, uint64_t *ret_n,
                 uint64_t *ret_ignored, struct errbuf *eb) {
    struct scan scan = {.t = t};
    struct scanner sc[SCANNERS] = {0};
    bool started[SCANNERS] = {false};
    for (int i = 0; i < SCANNERS; i++) {
        sc[i].scan = &scan;
        started[i] = i > 0 && pthread_create(&sc[i].thread, NULL, scan_thread, &sc[i]) == 0;
    }
    scan_thread(&sc[0]); /* this thread scans too, so one that did not start costs only time */
    uint64_t n = 0, ignored = 0;
    int rv = 0;
    for (int i = 0; i < SCANNERS; i++) {
        if (started[i])
            pthread_join(sc[i].thread, NULL);
        rv = rv ? rv : sc[i].rv;
        n += sc[i].n;
        ignored += sc[i].ignored;
    }
    struct disk_found *all = rv == 0 ? alloc_array(n, sizeof(*all)) : NULL;
    rv = rv == 0 && !all ? ERR_NOMEM : rv;
    uint64_t at = 0;
    for (int i = 0; i < SCANNERS; i++) {
        if (all && sc[i].n)
            memcpy(all + at, sc[i].found, sc[i].n * sizeof(*all));
        at += sc[i].n;
        free(sc[i].found);
    }
    if (rv < 0)
        return err_set(eb, rv, "scan of the disk tier: %s", err_text(rv));
    qsort(all, n, sizeof(*all), by_seq);
    *ret = all;
    *ret_n = n;
    *ret_ignored = ignored;
    return give_classes(t);
}
