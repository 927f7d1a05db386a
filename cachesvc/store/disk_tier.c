/* Extents and slots of the disk tier. */
#include "cachesvc/store/disk_tier.h"

#include <sys/random.h>

#include "cachesvc/store/disk_tier_priv.h"
#include "common/check.h"

/* Pages that the clearing pass may have in the queue: headers of new blocks wait behind no more. */
#define CLEAR_PAGES 32u
#define CLEAR_STEPS 16384u /* slots looked at in a tick */

/* ---- extents ------------------------------------------------------------------------------- */

static void on_formatted(struct disk_op *op) {
    struct disk_tier *t = op->arg;
    if (op->rv == 0 && t->format_errors != t->n_sync_errors)
        op->rv = -5; /* EIO: another sync was told of our write's end */
    else
        t->n_sync_errors += op->rv < 0;
    t->format_failed = op->rv < 0;
    if (op->rv < 0) {
        /* Not opened: until its header is there, the old one would vouch for what is written now.
         * The tick tries again. */
        disk_tier_fail(t, op->rv, "write of an extent's header");
        return;
    }
    slots_open(&t->slots, t->format_ext);
    t->format_ext = UINT32_MAX;
    t->cfg.on_format(t->cfg.arg);
}

static void submit_format(struct disk_tier *t) {
    struct disk_extent_hdr h = {
        .slot_bytes = t->slots.class_bytes[t->slots.ext[t->format_ext].cls],
        .n_slots = t->slots.ext[t->format_ext].n_slots,
        .generation = t->extent_gen[t->format_ext],
    };
    memcpy(h.store_id, t->super.store_id, sizeof(h.store_id));
    disk_extent_encode(&h, t->format_buf);
    t->format_op = (struct disk_op){
        .kind = DISK_WRITE_SYNC,
        .buf = t->format_buf,
        .off = slots_extent_off(&t->slots, t->format_ext),
        .len = DISK_PAGE,
        .done = on_formatted,
        .arg = t,
    };
    t->format_errors = t->n_sync_errors;
    t->format_failed = disk_ops_submit(t, &t->format_op) < 0;
}

/* Random, so that neither an old header nor a payload made to look like one can carry it, and so
 * that it needs no memory of generations past: an extent whose header is lost may be given away. */
static uint64_t new_generation(uint64_t old) {
    uint64_t gen = 0;
    do {
        if (getrandom(&gen, sizeof(gen), 0) != sizeof(gen))
            gen = old + 1; /* never seen: the kernel has no less than 256 bytes at once */
    } while (gen == 0 || gen == old);
    return gen;
}

/* The new generation must be on disk before a payload is: old slot headers, and bytes of payloads
 * that look like some, then belong to a generation that is gone. */
static void begin_format(struct disk_tier *t, uint32_t ext) {
    t->format_ext = ext;
    t->extent_gen[ext] = new_generation(t->extent_gen[ext]);
    for (uint32_t i = 0; i < t->slots.max_per_extent; i++) {
        struct disk_slot *s = disk_tier_side(t, slot_code(ext, i));
        disk_set_stale(t, s, STALE_NO);
        s->state = DS_FREE;
    }
    submit_format(t);
}

bool disk_tier_format(struct disk_tier *t, uint32_t cls) {
    if (t->format_ext != UINT32_MAX)
        return false;
    uint32_t ext = slots_assign(&t->slots, cls, /* reserve= */ false);
    if (ext == UINT32_MAX)
        return false;
    CHECK(t->slots.ext[ext].n_busy == 0); /* a free extent has no headers to write */
    begin_format(t, ext);
    return true;
}

bool disk_tier_reformat(struct disk_tier *t, uint32_t ext, uint32_t cls) {
    if (t->format_ext != UINT32_MAX || t->slots.ext[ext].n_busy > 0)
        return false;
    slots_unassign(&t->slots, ext);
    slots_assign_at(&t->slots, ext, cls);
    begin_format(t, ext);
    return true;
}

/* ---- slots --------------------------------------------------------------------------------- */

uint32_t disk_tier_take(struct disk_tier *t, uint32_t cls, uint32_t owner) {
    uint32_t slot = slots_take(&t->slots, cls);
    if (slot == SLOT_NONE)
        return SLOT_NONE;
    struct disk_slot *s = disk_tier_side(t, slot);
    CHECK(s->state == DS_FREE);
    s->state = DS_WRITING;
    s->owner = owner & DISK_OWNER_MAX;
    return slot;
}

void disk_tier_publish(struct disk_tier *t, uint32_t slot, struct disk_wait *w,
                       void (*cb)(struct disk_wait *, int)) {
    struct disk_slot *s = disk_tier_side(t, slot);
    CHECK(s->state == DS_WRITING);
    s->state = DS_LIVE;
    disk_pages_mark(t, disk_page_of(t, slot));
    disk_pages_wait(t, w, disk_page_of(t, slot), cb);
}

void disk_tier_forget(struct disk_tier *t, uint32_t slot, bool has_header) {
    struct disk_slot *s = disk_tier_side(t, slot);
    CHECK(s->state == DS_LIVE || s->state == DS_WRITING);
    s->state = DS_FREE;
    if (has_header)
        disk_set_stale(t, s, STALE_YES);
    slots_give(&t->slots, slot);
}

void disk_tier_clear_stale(struct disk_tier *t) {
    t->clear_at = 0;
}

/* The pass goes on by extents, since slots of one share table pages. */
static void clear_some(struct disk_tier *t) {
    if (t->clear_at == UINT64_MAX)
        return;
    uint32_t max = t->slots.max_per_extent;
    uint64_t end = (uint64_t)t->slots.cfg.n_extents * max;
    for (uint32_t n = 0; n < CLEAR_STEPS && t->q_len < CLEAR_PAGES && t->clear_at < end; n++) {
        uint32_t ext = (uint32_t)(t->clear_at / max), i = (uint32_t)(t->clear_at % max);
        const struct slots_extent *x = &t->slots.ext[ext];
        if (t->n_stale == 0) {
            t->clear_at = end;
        } else if ((x->state != EXTENT_OPEN && x->state != EXTENT_CLOSED) || i >= x->n_slots) {
            t->clear_at = (uint64_t)(ext + 1) * max;
        } else {
            if (disk_tier_side(t, slot_code(ext, i))->stale == STALE_YES)
                disk_pages_mark(t, disk_page_of(t, slot_code(ext, i)));
            t->clear_at++;
        }
    }
    if (t->clear_at >= end)
        t->clear_at = UINT64_MAX;
}

int disk_tier_submit(struct disk_tier *t, struct disk_op *op, enum disk_op_kind kind, uint32_t slot,
                     uint8_t *buf) {
    op->kind = kind;
    op->buf = buf;
    op->off = slots_off(&t->slots, slot);
    op->len = slots_bytes(&t->slots, slot);
    return disk_ops_submit(t, op);
}

/* ---- tick ---------------------------------------------------------------------------------- */

void disk_tier_tick(struct disk_tier *t) {
    uint64_t now = clock_mono_ns(t->cfg.clk);
    disk_ops_tick(t, now);
    if (t->format_failed && !t->is_failing)
        submit_format(t);
    clear_some(t);
    disk_pages_tick(t, now);
}

bool disk_tier_is_idle(const struct disk_tier *t) {
    return t->n_busy == 0 && !t->round_active;
}
