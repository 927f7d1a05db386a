/* Every op of the tier goes through here, so that what the disk owes us is known: how many ops, and
 * since when the oldest. A disk that answers nothing is as broken as one that answers with errors. */
#include "cachesvc/store/disk_tier_priv.h"
#include "common/check.h"

static void op_done(struct disk_op *op) {
    struct disk_tier *t = op->tier;
    CHECK(t->n_busy > 0);
    t->n_busy--;
    list_remove(&op->busy);
    op->then(op);
}

int disk_ops_submit(struct disk_tier *t, struct disk_op *op) {
    op->fd = t->fd;
    op->tier = t;
    op->then = op->done;
    op->done = op_done;
    op->since_ns = clock_mono_ns(t->cfg.clk);
    list_push_back(&t->busy, &op->busy);
    t->n_busy++;
    int rv = t->cfg.exec->submit(t->cfg.exec, op); /* 0: op is the other thread's now */
    if (rv < 0) {
        list_remove(&op->busy);
        t->n_busy--;
        op->done = op->then;
    }
    return rv;
}

uint64_t disk_tier_oldest_ns(const struct disk_tier *t) {
    if (list_empty(&t->busy))
        return 0;
    return clock_mono_ns(t->cfg.clk) - LIST_ENTRY(t->busy.next, struct disk_op, busy)->since_ns;
}

void disk_tier_fail(struct disk_tier *t, int rv, const char *what) {
    if (t->is_failing)
        return;
    t->is_failing = true;
    t->probe_at_ns = clock_mono_ns(t->cfg.clk) + DISK_PROBE_NS;
    char why[160];
    snprintf(why, sizeof(why), "%s: %s", what, err_text(rv));
    t->cfg.on_health(t->cfg.arg, why);
}

static void on_probed(struct disk_op *op) {
    struct disk_tier *t = op->arg;
    t->probe_busy = false;
    t->probe_at_ns = clock_mono_ns(t->cfg.clk) + DISK_PROBE_NS;
    t->n_sync_errors += op->rv < 0;
    if (op->rv < 0 || disk_tier_is_stalled(t))
        return;
    t->is_failing = false;
    t->cfg.on_health(t->cfg.arg, "a page was written, synced and read back");
}

/* The super block's second copy is the one page whose bytes never change: a torn probe costs what
 * the first copy repairs at the next start. */
static void probe(struct disk_tier *t, uint64_t now) {
    if (t->probe_busy || now < t->probe_at_ns || disk_tier_is_stalled(t))
        return;
    disk_super_encode(&t->super, t->probe_buf);
    t->probe_op = (struct disk_op){.kind = DISK_PROBE,
                                   .buf = t->probe_buf,
                                   .off = DISK_PAGE,
                                   .len = DISK_PAGE,
                                   .done = on_probed,
                                   .arg = t};
    t->probe_busy = disk_ops_submit(t, &t->probe_op) == 0;
}

void disk_ops_tick(struct disk_tier *t, uint64_t now) {
    if (disk_tier_is_stalled(t))
        disk_tier_fail(t, ERR_TIMEOUT, "an operation is under way for more than 10 s");
    if (t->is_failing)
        probe(t, now);
}
