/* policy.h - which block goes first. The store asks; it never walks a list itself.
 *
 * Lists are kept by tier and slot class, since room of one slot size is made among blocks of that
 * size. On a list is only what may leave: what is held, read, written or sent is on none, so the
 * search for a victim meets nobody who must stay.
 * Thread:  loop thread.
 * Memory:  links live in the directory entries. */
#pragma once

#include "cachesvc/store/directory.h"
#include "cachesvc/store/slots.h"

struct policy;

/* May idx leave now? */
typedef bool (*policy_accept_fn)(void *arg, uint32_t idx);

struct policy_ops {
    const char *name;
    /* Puts idx on a list of the tier, or takes it off (DIR_UNLISTED). As if touched now (is_used), or
     * just colder than its nearest ancestor on the same list: so a child is never newer than its
     * parent, in whatever order they come. Without such an ancestor to the warm end. */
    void (*place)(struct policy *p, enum dir_tier tier, uint32_t cls, uint32_t idx,
                  enum dir_list list, bool is_used);
    /* idx and everything above it, in every tier it is in: the tail first, the head last, so that a
     * parent is never older than its child. Walks through holes up to block 0 or an unknown parent.
     * Returns the depth where it ended. A chain of more than *steps is left alone: 0. */
    uint32_t (*touch_chain)(struct policy *p, uint32_t idx, uint32_t *steps);
    /* The same for many chains in one request: where an earlier one has walked it stops, and places
     * its own part just below. After all of them touch_end() of each, which takes the marks back. */
    void (*touch_branch)(struct policy *p, uint32_t idx, uint32_t *steps);
    void (*touch_end)(struct policy *p, uint32_t idx);
    /* Coldest acceptable entry of the list; DIR_NONE when none is found within max_steps. */
    uint32_t (*victim)(const struct policy *p, enum dir_tier tier, uint32_t cls, enum dir_list list,
                       uint32_t max_steps, policy_accept_fn accept, void *arg);
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
    struct policy_list lists[DIR_TIERS][SLOTS_MAX_CLASSES][DIR_LISTS];
};

/* The reference: least recently used, whole chains at a time. */
void policy_lru_init(struct policy *p, struct directory *dir, struct slots *ram, struct slots *disk,
                     const uint32_t *ns_class);
