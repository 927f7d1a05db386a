/* policy.h - which block goes first. The store asks; it never walks a list itself.
 *
 * Lists are kept by tier and slot class, since room of one slot size is made among blocks of that
 * size.
 * Thread:  loop thread.
 * Memory:  links live in the directory entries. */
#pragma once

#include "cachesvc/store/directory.h"
#include "cachesvc/store/slots.h"

struct policy;

/* May idx leave the tier now? */
typedef bool (*policy_accept_fn)(void *arg, uint32_t idx);

struct policy_ops {
    const char *name;
    /* Bytes of idx arrived in the tier: just colder than its parent when that is there (a child is
     * never newer than its parent: COMMIT touched both), else at the warm end. */
    void (*insert)(struct policy *p, enum dir_tier tier, uint32_t cls, uint32_t idx);
    void (*remove)(struct policy *p, enum dir_tier tier, uint32_t cls, uint32_t idx);
    /* idx and everything above it, in every tier it is in: the tail first, the head last, so that a
     * parent is never older than its child. Walks through holes up to block 0 or an unknown parent.
     * Returns the depth where it ended. A chain of more than *steps is left alone: 0. */
    uint32_t (*touch_chain)(struct policy *p, uint32_t idx, uint32_t *steps);
    /* The same for many chains in one request: where an earlier one has walked it stops, and places
     * its own part just below. After all of them touch_end() of each, which takes the marks back. */
    void (*touch_branch)(struct policy *p, uint32_t idx, uint32_t *steps);
    void (*touch_end)(struct policy *p, uint32_t idx);
    /* idx moved below a hole, or out from below one; the entry's flag is set here. */
    void (*set_orphan)(struct policy *p, uint32_t cls, uint32_t idx, bool orphan);
    /* Coldest acceptable entry, orphans first; DIR_NONE when none is found within max_steps. */
    uint32_t (*victim)(struct policy *p, enum dir_tier tier, uint32_t cls, uint32_t max_steps,
                       policy_accept_fn accept, void *arg);
};

struct policy_list {
    uint32_t cold, warm; /* ends: entry indexes or DIR_NONE */
};

struct policy {
    const struct policy_ops *ops;
    struct directory *dir;
    struct slots *slots[DIR_TIERS]; /* for the newest touch of an extent; NULL: no such tier */
    const uint32_t *ns_class;       /* [namespaces] slot class of a namespace */
    uint64_t stamp;                 /* of touches, ever rising */
    struct policy_list lists[DIR_TIERS][SLOTS_MAX_CLASSES][2]; /* [1]: orphans */
};

/* The reference: least recently used, whole chains at a time. */
void policy_lru_init(struct policy *p, struct directory *dir, struct slots *ram, struct slots *disk,
                     const uint32_t *ns_class);
