/* disk_tier_priv.h - between the disk tier's own files, each of which stands on those before it:
 *
 *   disk_ops.c     ops in the executor, how old they are, health and probe
 *   disk_pages.c   page marks, rounds, waits
 *   disk_tier.c    extents, slots, the clearing pass */
#pragma once

#include "cachesvc/store/disk_tier.h"

/* disk_ops.c: op->done comes after the tier's own books. 0 or ERR_BUSY. */
int disk_ops_submit(struct disk_tier *t, struct disk_op *op);
void disk_ops_tick(struct disk_tier *t, uint64_t now);

/* disk_pages.c */
void disk_pages_mark(struct disk_tier *t, uint32_t page);
void disk_pages_start(struct disk_tier *t); /* a round, when there is something for one */
void disk_pages_wait(struct disk_tier *t, struct disk_wait *w, uint32_t page,
                     void (*cb)(struct disk_wait *, int));
void disk_pages_tick(struct disk_tier *t, uint64_t now);
static inline uint32_t disk_page_of(const struct disk_tier *t, uint32_t slot) {
    return slot_extent(slot) * t->pages_per_extent + slot_index(slot) / DISK_HDRS_A_PAGE;
}
void disk_set_stale(struct disk_tier *t, struct disk_slot *s, enum disk_stale v);
