#include "cachesvc/store/ram_tier.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/check.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define PAGE 4096u
#define HUGE_PAGE (2ull << 20)

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

/* One memory file, mapped. 0 or -errno. */
static int map_file(struct ram_tier *t, unsigned flags) {
    int fd = memfd_create("incipit-ram", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0)
        return -errno;
    uint64_t bytes = flags & MFD_HUGETLB ? round_up(t->bytes, HUGE_PAGE) : t->bytes;
    void *p = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        int rv = -errno;
        close(fd);
        return rv;
    }
    t->fd = fd;
    t->base = p;
    t->bytes = bytes;
    return 0;
}

static void unmap(struct ram_tier *t) {
    if (t->base)
        munmap(t->base, t->bytes);
    if (t->fd >= 0)
        close(t->fd);
    t->base = NULL;
    t->fd = -1;
}

/* Makes pages be there. A reservation is no allocation: a limit of a container on huge pages shows at
 * the first touch, as a signal (Bus error) to whoever touches, and as an error here. 0 or -errno. */
static int populate(const struct ram_tier *t, uint64_t off, uint64_t len) {
    uint64_t unit = t->huge ? HUGE_PAGE : PAGE, from = off / unit * unit;
    uint64_t to = MIN(round_up(off + len, unit), t->bytes);
    return madvise(t->base + from, to - from, MADV_POPULATE_WRITE) == 0 ? 0 : -errno;
}

static bool map_huge(struct ram_tier *t, const struct ram_tier_cfg *cfg) {
    if (map_file(t, MFD_HUGETLB) < 0)
        return false; /* none reserved on this machine, as on most */
    t->huge = true;
    int rv = populate(t, 0, t->slots.cfg.base_off);
    if (rv == 0)
        return true;
    unmap(t);
    t->huge = false;
    t->bytes = cfg->ram_bytes;
    snprintf(t->note, sizeof(t->note),
             "huge pages are there but may not be used (%s; a limit on them?): the RAM tier has "
             "normal pages; --huge-pages=false says so at once",
             err_text(rv));
    return false;
}

static int map_any(struct ram_tier *t, const struct ram_tier_cfg *cfg, struct errbuf *eb) {
    if (!cfg->huge_pages || !map_huge(t, cfg)) {
        int rv = map_file(t, 0);
        if (rv < 0)
            return err_set(eb, rv, "RAM tier of %llu bytes: %s", (unsigned long long)t->bytes,
                           err_text(rv));
        if (cfg->huge_pages) /* a hint; most hosts refuse it for memory files */
            (void)madvise(t->base, t->bytes, MADV_HUGEPAGE);
    }
    (void)madvise(t->base, t->bytes, MADV_DONTDUMP); /* what clients said is in no core file */
    return 0;
}

/* Extents come in order, so "touched" is one number. Faulting by the kernel where it can, else a
 * byte a page. What can't be had is never opened. */
static void *touch_extents(void *arg) {
    struct ram_tier *t = arg;
    const struct slots_cfg *c = &t->slots.cfg;
    for (uint32_t i = 0; i < c->n_extents && !atomic_load(&t->stop); i++) {
        /* The reserve lies at the end and must serve first. */
        uint32_t ext = (i + c->n_extents - c->n_reserve) % c->n_extents;
        uint64_t from = slots_extent_off(&t->slots, ext);
        int rv = populate(t, from, c->extent_bytes);
        if (rv < 0 && (t->huge || rv != -EINVAL)) {
            atomic_store(&t->touch_rv, rv);
            break;
        }
        for (uint64_t off = 0; rv < 0 && off < c->extent_bytes; off += PAGE) /* an old kernel */
            ((volatile uint8_t *)t->base)[from + off] = 0;
        atomic_store_explicit(&t->n_touched, i + 1, memory_order_release);
    }
    return NULL;
}

const char *ram_tier_note(struct ram_tier *t) {
    int rv = atomic_load_explicit(&t->touch_rv, memory_order_relaxed);
    if (rv != 0 && !t->is_told) {
        t->is_told = true;
        snprintf(t->note, sizeof(t->note), "of the RAM tier only %llu bytes can be had: %s",
                 (unsigned long long)atomic_load(&t->n_touched) * t->slots.cfg.extent_bytes,
                 err_text(rv));
    }
    if (!t->note[0])
        return NULL;
    memcpy(t->said, t->note, sizeof(t->said));
    t->note[0] = '\0';
    return t->said;
}

static uint64_t head_bytes(uint64_t ram_bytes, uint32_t min_slot_bytes) {
    return round_up(ram_bytes / min_slot_bytes * sizeof(uint64_t), PAGE);
}

uint64_t ram_tier_room(uint64_t ram_bytes, uint32_t min_slot_bytes) {
    uint64_t head = head_bytes(ram_bytes, min_slot_bytes);
    return ram_bytes - MIN(head, ram_bytes);
}

static int cut(struct ram_tier *t, const struct ram_tier_cfg *cfg, struct errbuf *eb) {
    uint64_t head = head_bytes(cfg->ram_bytes, cfg->min_slot_bytes);
    CHECK(cfg->extent_bytes > 0);
    uint64_t n = ram_tier_room(cfg->ram_bytes, cfg->min_slot_bytes) / cfg->extent_bytes;
    uint64_t n_reserve = (cfg->bounce_bytes + cfg->extent_bytes - 1) / cfg->extent_bytes;
    if (n <= n_reserve) /* whole MiB, with room for the larger head that these need */
        return err_set(
            eb, ERR_INVALID,
            "RAM tier of %llu bytes: at least %llu are needed, as extents have %llu and %llu of "
            "them are kept for disk reads",
            (unsigned long long)cfg->ram_bytes,
            (unsigned long long)round_up((n_reserve + 1) * cfg->extent_bytes + head + 1, 1u << 20),
            (unsigned long long)cfg->extent_bytes, (unsigned long long)n_reserve);
    if (n > SLOTS_MAX_EXTENTS)
        return err_set(eb, ERR_INVALID, "RAM tier: %llu extents are too many",
                       (unsigned long long)n);
    struct slots_cfg sc = {
        .base_off = head,
        .extent_bytes = cfg->extent_bytes,
        .n_extents = (uint32_t)n,
        .n_reserve = (uint32_t)n_reserve,
        .min_slot_bytes = cfg->min_slot_bytes,
    };
    int rv = slots_init(&t->slots, &sc);
    if (rv < 0)
        return err_set(eb, rv, "RAM tier: %s", err_text(rv));
    t->side = alloc_array(n * t->slots.max_per_extent, sizeof(*t->side));
    if (!t->side)
        return err_set(eb, ERR_NOMEM, "RAM tier: slot table");
    memset(t->side, 0xff, n * t->slots.max_per_extent * sizeof(*t->side)); /* no owners */
    return 0;
}

int ram_tier_init(struct ram_tier *t, const struct ram_tier_cfg *cfg, struct errbuf *eb) {
    *t =
        (struct ram_tier){.fd = -1, .bytes = cfg->ram_bytes, .min_slot_bytes = cfg->min_slot_bytes};
    int rv = cut(t, cfg, eb);
    if (rv == 0)
        rv = map_any(t, cfg, eb);
    if (rv < 0) {
        ram_tier_fini(t);
        return rv;
    }
    /* Whoever gets the descriptor later may map it for reading only, and its size is what it is. */
    if (fcntl(t->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) <
        0) {
        rv = err_set(eb, -errno, "seal the memory file");
        ram_tier_fini(t);
        return rv;
    }
    t->gens = (_Atomic uint64_t *)(void *)t->base;
    atomic_store(&t->n_touched, t->slots.cfg.n_extents);
    if (cfg->background_touch) {
        atomic_store(&t->n_touched, 0);
        t->toucher_runs = pthread_create(&t->toucher, NULL, touch_extents, t) == 0;
        if (!t->toucher_runs) /* a later start, nothing else */
            (void)touch_extents(t);
    }
    return 0;
}

void ram_tier_fini(struct ram_tier *t) {
    if (t->toucher_runs) {
        atomic_store(&t->stop, true);
        pthread_join(t->toucher, NULL);
    }
    unmap(t);
    slots_fini(&t->slots);
    free(t->side);
    *t = (struct ram_tier){.fd = -1};
}

static bool is_touched(const struct ram_tier *t, uint32_t ext) {
    const struct slots_cfg *c = &t->slots.cfg;
    uint32_t order = (ext + c->n_reserve) % c->n_extents;
    return order < atomic_load_explicit(&t->n_touched, memory_order_acquire);
}

static uint32_t hand_out(struct ram_tier *t, uint32_t slot, uint32_t owner) {
    if (slot == SLOT_NONE)
        return SLOT_NONE;
    *ram_tier_side(t, slot) = (struct ram_slot){.owner = owner};
    /* release: no byte of the new payload may be seen with the old generation */
    uint64_t unit = slots_off(&t->slots, slot) / t->min_slot_bytes;
    atomic_fetch_add_explicit(&t->gens[unit], 1, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    return slot;
}

uint32_t ram_tier_take(struct ram_tier *t, uint32_t cls, uint32_t owner) {
    uint32_t slot = slots_take(&t->slots, cls);
    if (slot != SLOT_NONE)
        return hand_out(t, slot, owner);
    uint32_t ext = slots_assign(&t->slots, cls, /* reserve= */ false);
    if (ext == UINT32_MAX)
        return SLOT_NONE;
    if (!is_touched(t, ext)) { /* soon; whoever asks evicts or comes back */
        slots_unassign(&t->slots, ext);
        return SLOT_NONE;
    }
    slots_open(&t->slots, ext);
    return hand_out(t, slots_take(&t->slots, cls), owner);
}

bool ram_tier_has_free(const struct ram_tier *t, uint32_t cls) {
    uint32_t ext = slots_next_free(&t->slots);
    return t->slots.class_avail[cls][0] != UINT32_MAX || (ext != UINT32_MAX && is_touched(t, ext));
}

uint32_t ram_tier_take_reserve(struct ram_tier *t, uint32_t cls, uint32_t owner) {
    return hand_out(t, slots_take_reserve(&t->slots, cls), owner);
}

void ram_tier_disown(struct ram_tier *t, uint32_t slot) {
    struct ram_slot *s = ram_tier_side(t, slot);
    CHECK(s->owner != DIR_NONE);
    s->owner = DIR_NONE;
    if (s->refs == 0)
        slots_give(&t->slots, slot);
}

void ram_tier_ref(struct ram_tier *t, uint32_t slot) {
    if (ram_tier_side(t, slot)->refs++ == 0)
        t->n_refs++;
}

void ram_tier_unref(struct ram_tier *t, uint32_t slot) {
    struct ram_slot *s = ram_tier_side(t, slot);
    CHECK(s->refs > 0);
    if (--s->refs > 0)
        return;
    t->n_refs--;
    if (s->owner == DIR_NONE)
        slots_give(&t->slots, slot);
}

uint64_t ram_tier_generation(const struct ram_tier *t, uint32_t slot) {
    return atomic_load_explicit(&t->gens[slots_off(&t->slots, slot) / t->min_slot_bytes],
                                memory_order_acquire);
}
