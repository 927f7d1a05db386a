#include "cachesvc/store/disk_tier.h"

#include "common/check.h"

#define PAGE_QUEUED 1u
#define PAGE_FAILED 2u

/* ---- pages and rounds ---------------------------------------------------------------------- */

static uint32_t page_of(const struct disk_tier *t, uint32_t slot) {
    return slot_extent(slot) * t->pages_per_extent + slot_index(slot) / DISK_HDRS_A_PAGE;
}

static void start_round(struct disk_tier *t);

static void queue_page(struct disk_tier *t, uint32_t page) {
    if (t->page_flags[page] & PAGE_QUEUED)
        return;
    t->page_flags[page] |= PAGE_QUEUED;
    t->queue[(t->q_head + t->q_len++) % t->n_pages] = page;
    t->n_queued++;
}

static void mark(struct disk_tier *t, uint32_t slot) {
    queue_page(t, page_of(t, slot));
}

static uint32_t pop_page(struct disk_tier *t) {
    uint32_t page = t->queue[t->q_head];
    t->q_head = (t->q_head + 1) % t->n_pages;
    t->q_len--;
    t->n_taken++;
    t->page_flags[page] &= (uint8_t)~PAGE_QUEUED;
    return page;
}

/* The page's slots; stops at the end of the extent's table. */
#define FOREACH_SLOT_OF_PAGE(t, page, slot)                                                        \
    for (uint32_t ext_ = (page) / (t)->pages_per_extent,                                           \
                  i_ = (page) % (t)->pages_per_extent * DISK_HDRS_A_PAGE,                          \
                  end_ = i_ + DISK_HDRS_A_PAGE, slot = slot_code(ext_, i_);                        \
         i_ < end_ && i_ < (t)->slots.ext[ext_].n_slots; i_++, slot = slot_code(ext_, i_))

static void set_stale(struct disk_tier *t, struct disk_slot *s, enum disk_stale v) {
    t->n_stale += (v != STALE_NO) - (uint64_t)(s->stale != STALE_NO);
    s->stale = v & 15;
}

static void encode_page(struct disk_tier *t, uint32_t page, uint8_t *buf) {
    memset(buf, 0, DISK_PAGE);
    FOREACH_SLOT_OF_PAGE(t, page, slot) {
        struct disk_slot *s = disk_tier_side(t, slot);
        if (s->stale == STALE_YES)
            set_stale(t, s, STALE_GOING);
        if (s->state == DS_CLEARING)
            s->state = DS_CLEARED;
        if (s->state != DS_LIVE)
            continue;
        struct disk_slot_hdr h = {0};
        t->cfg.encode(t->cfg.arg, s->owner, &h);
        h.extent_generation = t->extent_gen[slot_extent(slot)];
        h.generation = s->generation;
        disk_slot_encode(&h, buf + slot_index(slot) % DISK_HDRS_A_PAGE * DISK_SLOT_HDR_BYTES);
    }
}

static void settle_page(struct disk_tier *t, uint32_t page, bool ok) {
    FOREACH_SLOT_OF_PAGE(t, page, slot) {
        struct disk_slot *s = disk_tier_side(t, slot);
        if (s->stale == STALE_GOING)
            set_stale(t, s, ok ? STALE_NO : STALE_YES);
        if (s->state == DS_CLEARED && ok) {
            s->state = DS_FREE;
            slots_give(&t->slots, slot);
        } else if (s->state == DS_CLEARED) {
            s->state = DS_CLEARING;
        }
    }
    if (!ok && !(t->page_flags[page] & PAGE_FAILED)) {
        t->page_flags[page] |= PAGE_FAILED;
        t->n_failed++;
    }
}

/* Waiters of what is synced now, or failed now, in order. A callback may begin new waits. */
static void tell_waiters(struct disk_tier *t, int rv) {
    struct list done;
    list_init(&done);
    while (!list_empty(&t->waits)) {
        struct disk_wait *w = LIST_ENTRY(t->waits.next, struct disk_wait, link);
        if (w->target > t->n_synced)
            break;
        list_remove(&w->link);
        w->rv = rv < 0 ? rv : w->rv;
        list_push_back(&done, &w->link);
    }
    for (struct list *l; (l = list_pop_front(&done));) {
        struct disk_wait *w = LIST_ENTRY(l, struct disk_wait, link);
        w->cb(w, w->rv);
    }
}

static void end_round(struct disk_tier *t) {
    int rv = t->round_rv;
    for (uint32_t i = 0; i < t->round_n; i++)
        for (uint32_t k = 0; k < t->round[i].n_pages; k++)
            settle_page(t, t->round[i].page + k, rv == 0);
    t->n_synced = t->n_taken;
    t->round_active = false;
    if (rv < 0)
        t->cfg.on_error(t->cfg.arg);
    /* The next round first: what the callbacks add can still join the one after it. */
    start_round(t);
    tell_waiters(t, rv);
}

static void on_synced(struct disk_op *op) {
    struct disk_tier *t = op->arg;
    t->n_busy--;
    t->n_syncs++;
    t->round_rv = op->rv;
    end_round(t);
}

static void on_round_written(struct disk_op *op) {
    struct disk_tier *t = op->arg;
    t->n_busy--;
    if (op->rv < 0 && t->round_rv == 0)
        t->round_rv = op->rv;
    if (--t->round_pending > 0)
        return;
    if (t->round_rv == 0) {
        t->sync_op = (struct disk_op){.kind = DISK_SYNC, .fd = t->fd, .done = on_synced, .arg = t};
        t->round_rv = t->cfg.exec->submit(t->cfg.exec, &t->sync_op);
        if (t->round_rv == 0) {
            t->n_busy++;
            return;
        }
    }
    end_round(t);
}

/* Takes queued pages; neighbours that follow one another in the queue share a write. */
static void fill_round(struct disk_tier *t) {
    t->round_n = 0;
    while (t->q_len > 0 && t->round_n < DISK_ROUND_OPS) {
        struct disk_round_op *r = &t->round[t->round_n++];
        r->page = pop_page(t);
        r->n_pages = 1;
        while (t->q_len > 0 && r->n_pages < DISK_ROUND_PAGES) {
            uint32_t next = t->queue[t->q_head];
            if (next != r->page + r->n_pages || next % t->pages_per_extent == 0)
                break;
            (void)pop_page(t);
            r->n_pages++;
        }
    }
}

static void start_round(struct disk_tier *t) {
    if (t->round_active || t->q_len == 0)
        return;
    fill_round(t);
    t->round_active = true;
    t->round_rv = 0;
    t->round_pending = t->round_n + 1; /* + 1: none may end the round while it is being submitted */
    for (uint32_t i = 0; i < t->round_n; i++) {
        struct disk_round_op *r = &t->round[i];
        for (uint32_t k = 0; k < r->n_pages; k++)
            encode_page(t, r->page + k, r->buf + (size_t)k * DISK_PAGE);
        uint32_t ext = r->page / t->pages_per_extent;
        r->op = (struct disk_op){
            .kind = DISK_WRITE,
            .fd = t->fd,
            .buf = r->buf,
            .off = slots_extent_off(&t->slots, ext) + DISK_PAGE +
                   (uint64_t)(r->page % t->pages_per_extent) * DISK_PAGE,
            .len = r->n_pages * DISK_PAGE,
            .done = on_round_written,
            .arg = t,
        };
        int rv = t->cfg.exec->submit(t->cfg.exec,
                                     &r->op); /* taken: r->op.rv is the other thread's now */
        t->n_busy++;
        if (rv < 0) {
            r->op.rv = rv;
            on_round_written(&r->op);
        }
    }
    struct disk_op none = {.arg = t};
    t->n_busy++;
    on_round_written(&none);
}

void disk_tier_wait(struct disk_tier *t, struct disk_wait *w, void (*cb)(struct disk_wait *, int)) {
    w->cb = cb;
    w->rv = t->format_failed ? -5 /* EIO */ : 0;
    w->target = t->n_queued;
    list_init(&w->link);
    if (w->target <= t->n_synced && t->format_ext == UINT32_MAX) {
        cb(w, w->rv);
        return;
    }
    list_push_back(&t->waits, &w->link);
    start_round(t);
}

void disk_tier_tick(struct disk_tier *t) {
    for (uint32_t page = 0; t->n_failed > 0 && page < t->n_pages; page++) {
        if (!(t->page_flags[page] & PAGE_FAILED))
            continue;
        t->page_flags[page] &= (uint8_t)~PAGE_FAILED;
        t->n_failed--;
        queue_page(t, page);
    }
    start_round(t);
}

/* ---- extents ------------------------------------------------------------------------------- */

static void submit_format(struct disk_tier *t);

static void on_formatted(struct disk_op *op) {
    struct disk_tier *t = op->arg;
    t->n_busy--;
    if (op->rv == 0) {
        slots_open(&t->slots, t->format_ext);
        t->format_ext = UINT32_MAX;
        t->format_failed = false;
    } else {
        /* Not opened: until its header is there, the old one would vouch for what is written now.
         */
        t->format_failed = true;
    }
    tell_waiters(t, op->rv);
    t->cfg.on_format(t->cfg.arg, op->rv);
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
        .fd = t->fd,
        .buf = t->format_buf,
        .off = slots_extent_off(&t->slots, t->format_ext),
        .len = DISK_PAGE,
        .done = on_formatted,
        .arg = t,
    };
    t->format_failed = t->cfg.exec->submit(t->cfg.exec, &t->format_op) < 0;
    if (!t->format_failed)
        t->n_busy++;
}

/* The new generation must be on disk before a payload is: old slot headers, and bytes of payloads
 * that look like some, then belong to a generation that is gone. */
static void begin_format(struct disk_tier *t, uint32_t ext) {
    t->format_ext = ext;
    t->extent_gen[ext]++;
    for (uint32_t i = 0; i < t->slots.max_per_extent; i++) {
        struct disk_slot *s = disk_tier_side(t, slot_code(ext, i));
        set_stale(t, s, STALE_NO);
        s->state = DS_FREE;
    }
    submit_format(t);
}

bool disk_tier_format(struct disk_tier *t, uint32_t cls) {
    if (t->format_ext != UINT32_MAX) {
        if (t->format_failed)
            submit_format(t);
        return false;
    }
    uint32_t ext = slots_assign(&t->slots, cls, /* reserve= */ false);
    if (ext == UINT32_MAX)
        return false;
    begin_format(t, ext);
    return true;
}

bool disk_tier_reformat(struct disk_tier *t, uint32_t ext, uint32_t cls) {
    if (t->format_ext != UINT32_MAX)
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
    s->owner = owner;
    s->generation = (s->generation + 1) & 0xffffff;
    return slot;
}

void disk_tier_publish(struct disk_tier *t, uint32_t slot, struct disk_wait *w,
                       void (*cb)(struct disk_wait *, int)) {
    struct disk_slot *s = disk_tier_side(t, slot);
    CHECK(s->state == DS_WRITING);
    s->state = DS_LIVE;
    mark(t, slot);
    disk_tier_wait(t, w, cb);
}

void disk_tier_forget(struct disk_tier *t, uint32_t slot, bool has_header) {
    struct disk_slot *s = disk_tier_side(t, slot);
    CHECK(s->state == DS_LIVE || s->state == DS_WRITING);
    s->state = DS_FREE;
    if (has_header)
        set_stale(t, s, STALE_YES);
    slots_give(&t->slots, slot);
}

void disk_tier_clear(struct disk_tier *t, uint32_t slot) {
    struct disk_slot *s = disk_tier_side(t, slot);
    CHECK(s->state == DS_LIVE);
    s->state = DS_CLEARING;
    mark(t, slot);
    start_round(t);
}

void disk_tier_clear_stale(struct disk_tier *t) {
    if (t->n_stale == 0)
        return;
    for (uint32_t ext = 0; ext < t->slots.cfg.n_extents; ext++) {
        if (t->slots.ext[ext].state == EXTENT_FREE)
            continue;
        for (uint32_t i = 0; i < t->slots.ext[ext].n_slots; i++)
            if (disk_tier_side(t, slot_code(ext, i))->stale != STALE_NO)
                mark(t, slot_code(ext, i));
    }
    start_round(t);
}

int disk_tier_submit(struct disk_tier *t, struct disk_op *op, enum disk_op_kind kind, uint32_t slot,
                     uint8_t *buf) {
    op->kind = kind;
    op->fd = t->fd;
    op->buf = buf;
    op->off = slots_off(&t->slots, slot);
    op->len = slots_bytes(&t->slots, slot);
    int rv = t->cfg.exec->submit(t->cfg.exec, op);
    if (rv == 0)
        t->n_busy++;
    return rv;
}

void disk_tier_op_done(struct disk_tier *t) {
    CHECK(t->n_busy > 0);
    t->n_busy--;
}

bool disk_tier_is_idle(const struct disk_tier *t) {
    return t->n_busy == 0 && !t->round_active;
}
