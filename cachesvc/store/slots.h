/* slots.h - extents and slots: one allocator for both tiers, pure (no memory behind it, no I/O).
 *
 * A tier is n_extents equal extents from base_off on. An extent that is in use belongs to one
 * class, that is to one slot size, and is cut into as many slots of it as fit behind its head
 * (disk: header and table; RAM: nothing). Namespaces of one slot size share a class. The last
 * n_reserve extents serve only slots_take_reserve(). A slot's name (code) is extent << 16 | index.
 *
 * Extents move between sizes: the one that has not been touched for longest goes first. So open ones
 * stand in a list in the order of their newest touch, whatever their size, and each knows how many of
 * its slots may leave: finding one costs a step or two.
 * Thread:  one owner.
 * Memory:  all in slots_init(). */
#pragma once

#include "common/compiler.h"

#define SLOT_NONE UINT32_MAX
#define SLOTS_MAX_CLASSES 64
#define SLOTS_MAX_EXTENTS 65535u

struct slots_cfg {
    uint64_t base_off, extent_bytes; /* multiples of 4096 */
    uint32_t n_extents, n_reserve;   /* n_reserve of them at the end */
    uint32_t min_slot_bytes;
    uint32_t head_bytes, table_entry_bytes; /* extent head; one table entry for each slot */
};

enum extent_state {
    EXTENT_FREE = 0, /* no class */
    EXTENT_CLOSED =
        1, /* has a class, its slots are not given out (being formatted, not touched yet) */
    EXTENT_OPEN = 2,
    EXTENT_BARRED = 3, /* could not be read: not used while the store is open */
};

struct slots_extent {
    uint64_t touch;          /* newest touch of a slot in it */
    uint32_t prev, next;     /* of its class's list of extents with free slots; UINT32_MAX ends */
    uint32_t colder, warmer; /* of all open ones in order of touch */
    uint16_t cls, n_slots, n_used, free_head, n_fresh;
    uint16_t n_idle[2]; /* used slots that may leave; [1]: only if need be */
    uint16_t n_busy;    /* disk: pages of its table that are queued, in flight or failed */
    uint8_t state;
    bool listed;
};

struct slots {
    struct slots_cfg cfg;
    uint32_t max_per_extent;
    uint32_t n_classes;
    uint32_t class_bytes[SLOTS_MAX_CLASSES];
    uint32_t class_avail[SLOTS_MAX_CLASSES][2]; /* heads of those lists; [1]: reserve extents */
    uint32_t n_free_extents, free_hint;         /* not counting the reserve */
    struct slots_extent *ext;                   /* [n_extents] */
    uint16_t *next_free;                        /* [n_extents * max_per_extent] */
    uint64_t n_used, used_bytes;
    uint64_t lost_bytes;       /* of extents in use: what is left beside their slots and heads */
    uint32_t coldest, warmest; /* open extents, not of the reserve */
};

int slots_init(struct slots *s, const struct slots_cfg *cfg); /* 0, ERR_NOMEM, ERR_INVALID */
void slots_fini(struct slots *s);

/* Class for a slot size (a multiple of 4096), made on first use. ERR_INVALID: does not fit an
 * extent or is under the minimum; ERR_BUSY: too many sizes. */
int slots_class(struct slots *s, uint32_t slot_bytes);
/* Bit c: class c has extents. One step an extent. */
uint64_t slots_classes_used(const struct slots *s);
/* Another slot size for a class that has none. */
void slots_class_set(struct slots *s, uint32_t cls, uint32_t slot_bytes);
/* Size of extents for a tier of that many bytes, about `want` and of use to the last byte: a little
 * above a power of two, so that blocks of one, with their sums behind them, fill an extent. */
uint64_t slots_fit_extent(uint64_t tier_bytes, uint64_t want);
uint32_t slots_per_extent(const struct slots *s, uint32_t slot_bytes);

/* SLOT_NONE: no open extent of the class has a free slot. */
uint32_t slots_take(struct slots *s, uint32_t cls);
uint32_t slots_take_reserve(struct slots *s, uint32_t cls);
/* A given slot, at recovery. false: out of range or taken. */
bool slots_take_at(struct slots *s, uint32_t slot);
void slots_give(struct slots *s, uint32_t slot);

/* A free extent for cls, CLOSED; UINT32_MAX without. slots_open() then gives its slots out. */
uint32_t slots_assign(struct slots *s, uint32_t cls, bool reserve);
uint32_t slots_next_free(const struct slots *s); /* the one it would give, not of the reserve */
void slots_assign_at(struct slots *s, uint32_t ext, uint32_t cls); /* recovery: that one, CLOSED */
void slots_open(struct slots *s, uint32_t ext);
/* Open, without used slots: back to FREE. */
void slots_unassign(struct slots *s, uint32_t ext);
/* Keeps new slots from being taken while its live ones leave. */
void slots_close(struct slots *s, uint32_t ext);

void slots_bar(struct slots *s, uint32_t ext); /* a free one */

/* Of the open extents (not of the reserve, not busy) of which all used slots may leave, the one whose
 * newest touch is the oldest; an empty one is older than all. hard: those that may leave if need be,
 * too. UINT32_MAX: none among the oldest SLOTS_SEARCH. */
#define SLOTS_SEARCH 1024u
uint32_t slots_find_oldest(const struct slots *s, bool hard);
/* One more (n = 1) or less (-1) of the extent's used slots may leave. */
void slots_note_idle(struct slots *s, uint32_t slot, bool hard, int n);
/* Stamps rise from call to call. A new extent counts as touched when it is opened. */
void slots_touch(struct slots *s, uint32_t slot, uint64_t stamp);

static inline uint32_t slot_extent(uint32_t slot) {
    return slot >> 16;
}
static inline uint32_t slot_index(uint32_t slot) {
    return slot & 0xffff;
}
static inline uint32_t slot_code(uint32_t ext, uint32_t i) {
    return ext << 16 | i;
}
/* Number of a slot for side arrays of n_extents * max_per_extent: all first slots, then all second
 * ones. So what is never used, because slots are larger than the smallest size, lies together at the
 * end, and its memory is never touched. */
static inline size_t slots_dense(const struct slots *s, uint32_t slot) {
    return (size_t)slot_index(slot) * s->cfg.n_extents + slot_extent(slot);
}
static inline uint32_t slots_bytes(const struct slots *s, uint32_t slot) {
    return s->class_bytes[s->ext[slot_extent(slot)].cls];
}
static inline bool slots_is_reserve(const struct slots *s, uint32_t ext) {
    return ext >= s->cfg.n_extents - s->cfg.n_reserve;
}
static inline uint64_t slots_extent_off(const struct slots *s, uint32_t ext) {
    return s->cfg.base_off + ext * s->cfg.extent_bytes;
}
uint64_t slots_off(const struct slots *s,
                   uint32_t slot); /* of the slot's bytes, from the file's begin */
uint64_t slots_table_off(const struct slots *s, uint32_t slot); /* of its table entry */
