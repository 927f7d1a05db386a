/* ram_tier.h - the RAM tier: one memory file of ram_bytes, cut into extents and slots.
 *
 *   file:  u64 generation [ram_bytes / min_slot_bytes], rounded up to a page; then the extents, the
 *          last of which are the reserve for disk reads when nothing is free
 *
 * The generation of a slot at file offset o is entry o / min_slot_bytes of the table (slots are
 * never smaller, so no two share one). It is bumped before the bytes of a slot may change; a reader
 * that mapped the file compares it before and after (ARCHITECTURE.md, "Same host").
 * Thread:  loop thread; a thread of its own touches the pages at start, and an extent is used only
 *          then.
 * Memory:  mapped in ram_tier_init(), of huge pages where they can be had; never in a core file.
 * Units:   bytes. */
#pragma once

#include <stdatomic.h>
#include <pthread.h>

#include "cachesvc/store/directory.h"
#include "cachesvc/store/slots.h"
#include "common/err.h"

struct ram_tier_cfg {
    uint64_t ram_bytes, extent_bytes, bounce_bytes;
    uint32_t min_slot_bytes;
    bool huge_pages, background_touch;
};

struct ram_slot {
    uint32_t owner; /* directory entry, DIR_NONE: nobody, freed with the last ref */
    uint32_t refs;  /* sends, leases, fills and disk jobs that use the bytes */
};

struct ram_tier {
    int fd;
    uint8_t *base;
    uint64_t bytes;
    _Atomic uint64_t *gens; /* at base */
    uint32_t min_slot_bytes;
    struct slots slots;
    struct ram_slot *side; /* [slots_dense] */
    uint64_t n_refs;       /* slots with refs > 0 */
    bool huge;
    char note[256], said[256]; /* said: what ram_tier_note() gave last */
    bool is_told;

    pthread_t toucher;
    bool toucher_runs;
    atomic_bool stop;
    atomic_uint n_touched; /* extents whose pages are there */
    atomic_int touch_rv;   /* why there will be no more */
};

/* What a memory file of that size has for extents, behind its generation table. */
uint64_t ram_tier_room(uint64_t ram_bytes, uint32_t min_slot_bytes);
int ram_tier_init(struct ram_tier *t, const struct ram_tier_cfg *cfg, struct errbuf *eb);
void ram_tier_fini(struct ram_tier *t);
/* What an operator should know, said once; NULL: nothing new. */
const char *ram_tier_note(struct ram_tier *t);

/* Free slot of the class, from an extent of it or from a free one; bumps its generation. SLOT_NONE:
 * make room first. The owner holds it until ram_tier_disown(). */
uint32_t ram_tier_take(struct ram_tier *t, uint32_t cls, uint32_t owner);
/* Whether ram_tier_take() would find one. */
bool ram_tier_has_free(const struct ram_tier *t, uint32_t cls);
uint32_t ram_tier_take_reserve(struct ram_tier *t, uint32_t cls, uint32_t owner);
void ram_tier_disown(struct ram_tier *t, uint32_t slot);
void ram_tier_ref(struct ram_tier *t, uint32_t slot);
void ram_tier_unref(struct ram_tier *t, uint32_t slot);

static inline struct ram_slot *ram_tier_side(struct ram_tier *t, uint32_t slot) {
    return &t->side[slots_dense(&t->slots, slot)];
}
static inline uint8_t *ram_tier_at(const struct ram_tier *t, uint32_t slot) {
    return t->base + slots_off(&t->slots, slot);
}
uint64_t ram_tier_generation(const struct ram_tier *t, uint32_t slot);
