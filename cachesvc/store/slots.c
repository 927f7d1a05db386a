#include "cachesvc/store/slots.h"

#include "common/check.h"
#include "common/err.h"

#define NONE UINT32_MAX
#define IDX_NONE UINT16_MAX

static uint64_t head_bytes(const struct slots *s, uint64_t n_slots) {
    uint64_t table = n_slots * s->cfg.table_entry_bytes;
    return s->cfg.head_bytes + (table + 4095) / 4096 * 4096;
}

uint32_t slots_per_extent(const struct slots *s, uint32_t slot_bytes) {
    if (s->cfg.extent_bytes <= s->cfg.head_bytes)
        return 0;
    uint64_t each = (uint64_t)slot_bytes + s->cfg.table_entry_bytes;
    uint64_t n = (s->cfg.extent_bytes - s->cfg.head_bytes) / each;
    /* Rounding the table up to a page may cost the last slot. */
    while (n > 0 && head_bytes(s, n) + n * slot_bytes > s->cfg.extent_bytes)
        n--;
    return n < IDX_NONE ? (uint32_t)n : IDX_NONE - 1u;
}

uint64_t slots_fit_extent(uint64_t tier_bytes, uint64_t want) {
    uint64_t n = tier_bytes / (want + want / 128);
    return tier_bytes / MAX(n, 1u) / 4096 * 4096;
}

int slots_init(struct slots *s, const struct slots_cfg *cfg) {
    *s = (struct slots){.cfg = *cfg};
    if (cfg->n_extents > SLOTS_MAX_EXTENTS || cfg->n_reserve > cfg->n_extents ||
        cfg->min_slot_bytes == 0 || cfg->min_slot_bytes % 4096 || cfg->extent_bytes % 4096)
        return ERR_INVALID;
    s->max_per_extent = slots_per_extent(s, cfg->min_slot_bytes);
    s->n_free_extents = cfg->n_extents - cfg->n_reserve;
    s->ext = alloc_array(cfg->n_extents, sizeof(*s->ext));
    s->next_free = alloc_array((size_t)cfg->n_extents * s->max_per_extent, sizeof(*s->next_free));
    if (!s->ext || !s->next_free) {
        slots_fini(s);
        return ERR_NOMEM;
    }
    memset(s->class_avail, 0xff, sizeof(s->class_avail));
    s->coldest = s->warmest = NONE;
    for (uint32_t i = 0; i < cfg->n_extents; i++)
        s->ext[i] = (struct slots_extent){
            .prev = NONE, .next = NONE, .colder = NONE, .warmer = NONE, .cls = IDX_NONE};
    return 0;
}

void slots_fini(struct slots *s) {
    free(s->ext);
    free(s->next_free);
    s->ext = NULL;
    s->next_free = NULL;
}

int slots_class(struct slots *s, uint32_t slot_bytes) {
    for (uint32_t c = 0; c < s->n_classes; c++)
        if (s->class_bytes[c] == slot_bytes)
            return (int)c;
    if (slot_bytes % 4096 || slot_bytes < s->cfg.min_slot_bytes ||
        slots_per_extent(s, slot_bytes) == 0)
        return ERR_INVALID;
    if (s->n_classes == SLOTS_MAX_CLASSES)
        return ERR_BUSY;
    s->class_bytes[s->n_classes] = slot_bytes;
    return (int)s->n_classes++;
}

uint64_t slots_classes_used(const struct slots *s) {
    uint64_t used = 0;
    for (uint32_t e = 0; e < s->cfg.n_extents; e++)
        if (s->ext[e].state == EXTENT_CLOSED || s->ext[e].state == EXTENT_OPEN)
            used |= 1ull << s->ext[e].cls;
    return used;
}

void slots_class_set(struct slots *s, uint32_t cls, uint32_t slot_bytes) {
    CHECK(cls < s->n_classes && slots_per_extent(s, slot_bytes) > 0);
    s->class_bytes[cls] = slot_bytes;
}

static uint32_t *avail_head(struct slots *s, uint32_t ext) {
    return &s->class_avail[s->ext[ext].cls][slots_is_reserve(s, ext)];
}

static void list_in(struct slots *s, uint32_t ext) {
    struct slots_extent *x = &s->ext[ext];
    uint32_t *head = avail_head(s, ext);
    if (x->listed)
        return;
    x->listed = true;
    x->prev = NONE;
    x->next = *head;
    if (*head != NONE)
        s->ext[*head].prev = ext;
    *head = ext;
}

static void list_out(struct slots *s, uint32_t ext) {
    struct slots_extent *x = &s->ext[ext];
    if (!x->listed)
        return;
    x->listed = false;
    if (x->prev != NONE)
        s->ext[x->prev].next = x->next;
    else
        *avail_head(s, ext) = x->next;
    if (x->next != NONE)
        s->ext[x->next].prev = x->prev;
    x->prev = x->next = NONE;
}

/* ---- order of touch ---- */

static bool has_age(const struct slots *s, uint32_t ext) {
    return s->ext[ext].state == EXTENT_OPEN && !slots_is_reserve(s, ext);
}

static void age_out(struct slots *s, uint32_t ext) {
    struct slots_extent *x = &s->ext[ext];
    if (x->colder != NONE)
        s->ext[x->colder].warmer = x->warmer;
    else
        s->coldest = x->warmer;
    if (x->warmer != NONE)
        s->ext[x->warmer].colder = x->colder;
    else
        s->warmest = x->colder;
    x->colder = x->warmer = NONE;
}

static void age_in_warm(struct slots *s, uint32_t ext) {
    struct slots_extent *x = &s->ext[ext];
    x->colder = s->warmest;
    x->warmer = NONE;
    if (s->warmest != NONE)
        s->ext[s->warmest].warmer = ext;
    else
        s->coldest = ext;
    s->warmest = ext;
}

static void age_in_cold(struct slots *s, uint32_t ext) {
    struct slots_extent *x = &s->ext[ext];
    x->colder = NONE;
    x->warmer = s->coldest;
    if (s->coldest != NONE)
        s->ext[s->coldest].colder = ext;
    else
        s->warmest = ext;
    s->coldest = ext;
}

/* ---- slots ---- */

static void account(struct slots *s, uint32_t ext, int sign) {
    uint64_t bytes = s->class_bytes[s->ext[ext].cls];
    if (sign > 0) {
        s->n_used++;
        s->used_bytes += bytes;
        s->ext[ext].n_used++;
    } else {
        s->n_used--;
        s->used_bytes -= bytes;
        if (--s->ext[ext].n_used == 0 &&
            has_age(s, ext)) { /* of no use to anybody: the first to go */
            s->ext[ext].touch = 0;
            age_out(s, ext);
            age_in_cold(s, ext);
        }
    }
}

static uint32_t take_in(struct slots *s, uint32_t ext) {
    struct slots_extent *x = &s->ext[ext];
    uint32_t i = x->free_head;
    if (i != IDX_NONE)
        x->free_head = s->next_free[slots_dense(s, slot_code(ext, i))];
    else
        i = x->n_fresh++;
    account(s, ext, 1);
    if (x->n_used == x->n_slots)
        list_out(s, ext);
    return slot_code(ext, i);
}

uint32_t slots_take(struct slots *s, uint32_t cls) {
    uint32_t ext = s->class_avail[cls][0];
    return ext == NONE ? SLOT_NONE : take_in(s, ext);
}

uint32_t slots_take_reserve(struct slots *s, uint32_t cls) {
    uint32_t ext = s->class_avail[cls][1];
    /* Reserve extents change class as soon as they are empty: whoever needs one now may have it. */
    for (uint32_t i = s->cfg.n_extents - s->cfg.n_reserve; ext == NONE && i < s->cfg.n_extents;
         i++) {
        if (s->ext[i].n_used)
            continue;
        if (s->ext[i].state != EXTENT_FREE)
            slots_unassign(s, i);
        slots_assign_at(s, i, cls);
        slots_open(s, i);
        ext = i;
    }
    return ext == NONE ? SLOT_NONE : take_in(s, ext);
}

bool slots_take_at(struct slots *s, uint32_t slot) {
    uint32_t ext = slot_extent(slot), i = slot_index(slot);
    if (ext >= s->cfg.n_extents || s->ext[ext].state == EXTENT_FREE || i >= s->ext[ext].n_slots)
        return false;
    struct slots_extent *x = &s->ext[ext];
    /* Fresh slots up to i go to the free list first; then i is taken out of it. */
    while (x->n_fresh <= i) {
        s->next_free[slots_dense(s, slot_code(ext, x->n_fresh))] = x->free_head;
        x->free_head = x->n_fresh++;
    }
    uint16_t *link = &x->free_head;
    while (*link != IDX_NONE && *link != i)
        link = &s->next_free[slots_dense(s, slot_code(ext, *link))];
    if (*link == IDX_NONE)
        return false;
    *link = s->next_free[slots_dense(s, slot)];
    account(s, ext, 1);
    if (x->n_used == x->n_slots)
        list_out(s, ext);
    return true;
}

void slots_give(struct slots *s, uint32_t slot) {
    uint32_t ext = slot_extent(slot);
    struct slots_extent *x = &s->ext[ext];
    CHECK(ext < s->cfg.n_extents && x->n_used > 0 && slot_index(slot) < x->n_slots);
    s->next_free[slots_dense(s, slot)] = x->free_head;
    x->free_head = (uint16_t)slot_index(slot);
    account(s, ext, -1);
    if (x->state == EXTENT_OPEN)
        list_in(s, ext);
}

static uint64_t lost_in(const struct slots *s, uint32_t ext) {
    const struct slots_extent *x = &s->ext[ext];
    return s->cfg.extent_bytes - head_bytes(s, x->n_slots) -
           (uint64_t)x->n_slots * s->class_bytes[x->cls];
}

static uint32_t first_free(const struct slots *s, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++)
        if (s->ext[i].state == EXTENT_FREE)
            return i;
    return NONE;
}

uint32_t slots_next_free(const struct slots *s) {
    uint32_t n_normal = s->cfg.n_extents - s->cfg.n_reserve;
    return s->n_free_extents ? first_free(s, s->free_hint, n_normal) : NONE;
}

uint32_t slots_assign(struct slots *s, uint32_t cls, bool reserve) {
    uint32_t n_normal = s->cfg.n_extents - s->cfg.n_reserve;
    uint32_t ext = reserve ? first_free(s, n_normal, s->cfg.n_extents) : slots_next_free(s);
    if (ext == NONE)
        return NONE;
    slots_assign_at(s, ext, cls);
    if (!reserve)
        s->free_hint = ext + 1;
    return ext;
}

void slots_assign_at(struct slots *s, uint32_t ext, uint32_t cls) {
    struct slots_extent *x = &s->ext[ext];
    CHECK(x->state == EXTENT_FREE && cls < s->n_classes);
    *x = (struct slots_extent){
        .prev = NONE,
        .next = NONE,
        .colder = NONE,
        .warmer = NONE,
        .n_busy = x->n_busy,
        .cls = (uint16_t)cls,
        .n_slots = (uint16_t)slots_per_extent(s, s->class_bytes[cls]),
        .free_head = IDX_NONE,
        .state = EXTENT_CLOSED,
    };
    s->lost_bytes += lost_in(s, ext);
    if (!slots_is_reserve(s, ext))
        s->n_free_extents--;
}

void slots_open(struct slots *s, uint32_t ext) {
    CHECK(s->ext[ext].state == EXTENT_CLOSED);
    s->ext[ext].state = EXTENT_OPEN;
    if (has_age(s, ext)) {
        s->ext[ext].touch = s->warmest == NONE ? 0 : s->ext[s->warmest].touch;
        age_in_warm(s, ext);
    }
    if (s->ext[ext].n_used < s->ext[ext].n_slots)
        list_in(s, ext);
}

void slots_close(struct slots *s, uint32_t ext) {
    CHECK(s->ext[ext].state == EXTENT_OPEN);
    list_out(s, ext);
    if (has_age(s, ext))
        age_out(s, ext);
    s->ext[ext].state = EXTENT_CLOSED;
}

void slots_unassign(struct slots *s, uint32_t ext) {
    struct slots_extent *x = &s->ext[ext];
    CHECK(x->state != EXTENT_FREE && x->n_used == 0);
    list_out(s, ext);
    if (has_age(s, ext))
        age_out(s, ext);
    s->lost_bytes -= lost_in(s, ext);
    x->state = EXTENT_FREE;
    if (!slots_is_reserve(s, ext)) {
        s->n_free_extents++;
        s->free_hint = MIN(s->free_hint, ext);
    }
}

void slots_bar(struct slots *s, uint32_t ext) {
    CHECK(s->ext[ext].state == EXTENT_FREE && !slots_is_reserve(s, ext));
    s->ext[ext].state = EXTENT_BARRED;
    s->n_free_extents--;
}

uint32_t slots_find_oldest(const struct slots *s, bool hard) {
    uint32_t ext = s->coldest;
    for (uint32_t n = 0; ext != NONE && n < SLOTS_SEARCH; n++, ext = s->ext[ext].warmer) {
        const struct slots_extent *x = &s->ext[ext];
        if (x->n_used == x->n_idle[0] + (hard ? x->n_idle[1] : 0) && x->n_busy == 0)
            return ext;
    }
    return NONE;
}

void slots_note_idle(struct slots *s, uint32_t slot, bool hard, int n) {
    struct slots_extent *x = &s->ext[slot_extent(slot)];
    x->n_idle[hard] = (uint16_t)(x->n_idle[hard] + n);
    DCHECK(x->n_idle[0] + x->n_idle[1] <= x->n_used);
}

void slots_touch(struct slots *s, uint32_t slot, uint64_t stamp) {
    uint32_t ext = slot_extent(slot);
    s->ext[ext].touch = stamp;
    if (s->warmest == ext || !has_age(s, ext))
        return;
    age_out(s, ext);
    age_in_warm(s, ext);
}

uint64_t slots_off(const struct slots *s, uint32_t slot) {
    const struct slots_extent *x = &s->ext[slot_extent(slot)];
    return slots_extent_off(s, slot_extent(slot)) + head_bytes(s, x->n_slots) +
           (uint64_t)slot_index(slot) * s->class_bytes[x->cls];
}

uint64_t slots_table_off(const struct slots *s, uint32_t slot) {
    return slots_extent_off(s, slot_extent(slot)) + s->cfg.head_bytes +
           (uint64_t)slot_index(slot) * s->cfg.table_entry_bytes;
}
