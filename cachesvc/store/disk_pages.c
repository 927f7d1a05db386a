/* Pages that want writing: marks, rounds of group commit, and who waits for them. */
#include "cachesvc/store/disk_tier_priv.h"
#include "common/check.h"

/* Any of these keeps the page's extent from changing hands. */
#define PAGE_QUEUED 1u
#define PAGE_FLYING 2u
#define PAGE_FAILED 4u

static bool is_log(const struct disk_tier *t, uint32_t page) {
    return page >= t->n_table_pages;
}

static void set_flags(struct disk_tier *t, uint32_t page, uint8_t flags) {
    uint8_t was = t->page_flags[page];
    t->page_flags[page] = flags;
    uint32_t failed = (flags & PAGE_FAILED) != 0, was_failed = (was & PAGE_FAILED) != 0;
    t->n_failed += failed - was_failed;
    if (is_log(t, page)) {
        t->n_log_failed += failed - was_failed;
        return;
    }
    struct slots_extent *x = &t->slots.ext[page / t->pages_per_extent];
    bool was_busy = x->n_busy > 0;
    x->n_busy = (uint16_t)(x->n_busy + (flags != 0) - (was != 0));
    t->n_busy_extents += (uint32_t)(x->n_busy > 0) - (uint32_t)was_busy;
}

void disk_pages_mark(struct disk_tier *t, uint32_t page) {
    uint8_t was = t->page_flags[page];
    if (was & PAGE_QUEUED)
        return;
    set_flags(t, page, (uint8_t)((was | PAGE_QUEUED) & ~PAGE_FAILED));
    t->queue[(t->q_head + t->q_len++) % t->n_pages] = page;
    t->n_queued++;
}

static uint32_t pop_page(struct disk_tier *t) {
    uint32_t page = t->queue[t->q_head];
    t->q_head = (t->q_head + 1) % t->n_pages;
    if (--t->q_len == 0)
        t->q_head = 0; /* so that no more of the ring is ever touched than was once needed */
    t->n_taken++;
    set_flags(t, page, PAGE_FLYING);
    return page;
}

/* The page's slots; stops at the end of the extent's table. */
#define FOREACH_SLOT_OF_PAGE(t, page, slot)                                                        \
    for (uint32_t ext_ = (page) / (t)->pages_per_extent,                                           \
                  i_ = (page) % (t)->pages_per_extent * DISK_HDRS_A_PAGE,                          \
                  end_ = i_ + DISK_HDRS_A_PAGE, slot = slot_code(ext_, i_);                        \
         i_ < end_ && i_ < (t)->slots.ext[ext_].n_slots; i_++, slot = slot_code(ext_, i_))

void disk_set_stale(struct disk_tier *t, struct disk_slot *s, enum disk_stale v) {
    t->n_stale += (v != STALE_NO) - (uint64_t)(s->stale != STALE_NO);
    s->stale = v & 3;
}

static void encode_page(struct disk_tier *t, uint32_t page, uint8_t *buf) {
    if (is_log(t, page)) {
        t->cfg.log_encode(t->cfg.arg, page - t->n_table_pages, buf);
        return;
    }
    memset(buf, 0, DISK_PAGE);
    FOREACH_SLOT_OF_PAGE(t, page, slot) {
        struct disk_slot *s = disk_tier_side(t, slot);
        if (s->stale == STALE_YES)
            disk_set_stale(t, s, STALE_GOING);
        if (s->state != DS_LIVE)
            continue;
        struct disk_slot_hdr h = {0};
        t->cfg.encode(t->cfg.arg, s->owner, &h);
        h.extent_generation = t->extent_gen[slot_extent(slot)];
        disk_slot_encode(&h, buf + slot_index(slot) % DISK_HDRS_A_PAGE * DISK_SLOT_HDR_BYTES);
    }
}

static void settle_page(struct disk_tier *t, uint32_t page, bool ok) {
    if (!is_log(t, page))
        FOREACH_SLOT_OF_PAGE(t, page, slot) {
            struct disk_slot *s = disk_tier_side(t, slot);
            if (s->stale == STALE_GOING)
                disk_set_stale(t, s, ok ? STALE_NO : STALE_YES);
        }
    /* FAILED also when it is queued again: whoever waits for this write is told of this write. */
    set_flags(t, page, (uint8_t)((t->page_flags[page] & PAGE_QUEUED) | (ok ? 0 : PAGE_FAILED)));
}

/* ---- waits --------------------------------------------------------------------------------- */

static int verdict(const struct disk_tier *t, const struct disk_wait *w) {
    uint32_t n = w->page == DISK_WAIT_ALL   ? t->n_failed
                 : w->page == DISK_WAIT_LOG ? t->n_log_failed
                                            : (t->page_flags[w->page] & PAGE_FAILED) != 0;
    return n ? -5 /* EIO */ : 0;
}

/* Waiters of what this round has carried, in order. They are judged before the next round takes the
 * marks of what failed, and called after it has begun: what they add joins the one after it. */
static void judge_waiters(struct disk_tier *t, struct list *done) {
    list_init(done);
    while (!list_empty(&t->waits)) {
        struct disk_wait *w = LIST_ENTRY(t->waits.next, struct disk_wait, link);
        if (w->target > t->n_synced)
            break;
        list_remove(&w->link);
        w->rv = verdict(t, w);
        list_push_back(done, &w->link);
    }
}

static bool is_operators(const struct disk_wait *w) {
    return w->page == DISK_WAIT_LOG || w->page == DISK_WAIT_ALL;
}

void disk_pages_wait(struct disk_tier *t, struct disk_wait *w, uint32_t page,
                     void (*cb)(struct disk_wait *, int)) {
    *w = (struct disk_wait){.cb = cb, .page = page, .target = t->n_queued};
    list_init(&w->link);
    w->deadline_ns = is_operators(w) ? clock_mono_ns(t->cfg.clk) + DISK_STALL_NS : UINT64_MAX;
    if (w->target <= t->n_synced) {
        cb(w, verdict(t, w));
        return;
    }
    list_push_back(&t->waits, &w->link);
    disk_pages_start(t);
}

static void requeue_failed(struct disk_tier *t, uint32_t from) {
    uint32_t n = from ? t->n_log_failed : t->n_failed;
    for (uint32_t page = from; n > 0 && page < t->n_pages; page++) {
        if (!(t->page_flags[page] & PAGE_FAILED))
            continue;
        disk_pages_mark(t, page);
        n--;
    }
}

/* What was set aside as failed is part of what the caller asks for: it is written again first. */
void disk_tier_wait(struct disk_tier *t, struct disk_wait *w, uint32_t what,
                    void (*cb)(struct disk_wait *, int)) {
    requeue_failed(t, what == DISK_WAIT_LOG ? t->n_table_pages : 0);
    disk_pages_wait(t, w, what, cb);
}

void disk_tier_log_mark(struct disk_tier *t, uint32_t page) {
    disk_pages_mark(t, t->n_table_pages + page);
}

/* ---- rounds -------------------------------------------------------------------------------- */

static void end_round(struct disk_tier *t, int sync_rv) {
    if (sync_rv == 0 && t->round_errors != t->n_sync_errors)
        sync_rv = -5; /* EIO: another sync was told of our writes' end */
    int rv = sync_rv;
    for (uint32_t i = 0; i < t->round_n; i++) {
        const struct disk_round_op *r = &t->round[i];
        rv = rv ? rv : r->op.rv;
        for (uint32_t k = 0; k < r->n_pages; k++)
            settle_page(t, r->page + k, sync_rv == 0 && r->op.rv == 0);
    }
    t->n_synced = t->n_taken;
    t->round_active = false;
    t->n_sync_errors += sync_rv < 0 && t->round_errors == t->n_sync_errors;
    if (rv < 0)
        disk_tier_fail(t, rv, sync_rv < 0 ? "sync" : "write of headers");
    struct list done;
    judge_waiters(t, &done);
    disk_pages_start(t);
    for (struct list *l; (l = list_pop_front(&done));) {
        struct disk_wait *w = LIST_ENTRY(l, struct disk_wait, link);
        w->cb(w, w->rv);
    }
}

static void on_synced(struct disk_op *op) {
    struct disk_tier *t = op->arg;
    t->n_syncs++;
    end_round(t, op->rv);
}

static void round_part_done(struct disk_tier *t) {
    if (--t->round_pending > 0)
        return;
    t->sync_op = (struct disk_op){.kind = DISK_SYNC, .done = on_synced, .arg = t};
    int rv = disk_ops_submit(t, &t->sync_op);
    if (rv < 0)
        end_round(t, rv);
}

static void on_round_written(struct disk_op *op) {
    round_part_done(op->arg);
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
            bool begins =
                next == t->n_table_pages || (!is_log(t, next) && next % t->pages_per_extent == 0);
            if (next != r->page + r->n_pages || begins)
                break;
            (void)pop_page(t);
            r->n_pages++;
        }
    }
}

static uint64_t page_off(const struct disk_tier *t, uint32_t page) {
    if (is_log(t, page))
        return t->super.log_off + (uint64_t)(page - t->n_table_pages) * DISK_PAGE;
    return slots_extent_off(&t->slots, page / t->pages_per_extent) + DISK_PAGE +
           (uint64_t)(page % t->pages_per_extent) * DISK_PAGE;
}

static void submit_round_op(struct disk_tier *t, struct disk_round_op *r) {
    for (uint32_t k = 0; k < r->n_pages; k++)
        encode_page(t, r->page + k, r->buf + (size_t)k * DISK_PAGE);
    r->op = (struct disk_op){.kind = DISK_WRITE,
                             .buf = r->buf,
                             .off = page_off(t, r->page),
                             .len = r->n_pages * DISK_PAGE,
                             .done = on_round_written,
                             .arg = t};
    int rv = disk_ops_submit(t, &r->op);
    if (rv < 0) {
        r->op.rv = rv;
        round_part_done(t);
    }
}

/* While the disk fails, only what an operator waits for is tried. */
static bool may_start(const struct disk_tier *t) {
    if (t->round_active || t->q_len == 0)
        return false;
    if (!t->is_failing)
        return true;
    LIST_FOREACH(&t->waits, l)
    if (is_operators(LIST_ENTRY(l, struct disk_wait, link)))
        return true;
    return false;
}

void disk_pages_start(struct disk_tier *t) {
    if (!may_start(t))
        return;
    fill_round(t);
    t->round_active = true;
    t->round_errors = t->n_sync_errors;
    t->round_pending = t->round_n + 1; /* + 1: none may end the round while it is being submitted */
    for (uint32_t i = 0; i < t->round_n; i++)
        submit_round_op(t, &t->round[i]);
    round_part_done(t);
}

void disk_tier_cancel_waits(struct disk_tier *t) {
    struct list all;
    list_move(&t->waits, &all);
    for (struct list *l; (l = list_pop_front(&all));) {
        struct disk_wait *w = LIST_ENTRY(l, struct disk_wait, link);
        w->cb(w, ERR_CANCELED);
    }
}

static struct disk_wait *find_late(const struct disk_tier *t, uint64_t now) {
    LIST_FOREACH(&t->waits, l)
    if (now >= LIST_ENTRY(l, struct disk_wait, link)->deadline_ns)
        return LIST_ENTRY(l, struct disk_wait, link);
    return NULL;
}

void disk_pages_tick(struct disk_tier *t, uint64_t now) {
    for (struct disk_wait *w; (w = find_late(t, now));) {
        list_remove(&w->link);
        w->cb(w, ERR_TIMEOUT);
    }
    if (!t->is_failing)
        requeue_failed(t, 0);
    disk_pages_start(t);
}
