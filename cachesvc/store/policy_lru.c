/* Why LRU needs no special care for leaves: a touch walks from the deepest block to block 0, so on
 * any list a parent sits warmer than its children, and the cold end is a leaf of what is left. What
 * comes to a list later (a write or a read that ends, a send) goes just below its nearest ancestor
 * there, or to the warm end when it has none: then what is above it comes above it too, since it
 * finds that same place. A block that lost its bytes while it has children breaks the order: its
 * descendants sit on the orphans' list, which is emptied first. */
#include "cachesvc/store/policy.h"

#include "common/check.h"

/* How far up place() looks for an ancestor. Longer runs without one arise only when a whole chain is
 * held, or never reached the disk: its blocks then come to the warm end. */
#define NEAREST_STEPS 1024u
#define JUNCTION_STEPS 64u /* the same for each branch of one request */

static struct policy_list *list_of(struct policy *p, enum dir_tier tier, uint32_t cls,
                                   uint32_t idx) {
    return &p->lists[tier][cls][dir_list(dir_at(p->dir, idx), tier)];
}

static struct dir_links *links(struct policy *p, enum dir_tier tier, uint32_t idx) {
    return &dir_at(p->dir, idx)->lru[tier];
}

static void unlink_entry(struct policy *p, struct policy_list *l, enum dir_tier tier,
                         uint32_t idx) {
    struct dir_links *k = links(p, tier, idx);
    if (k->prev != DIR_NONE)
        links(p, tier, k->prev)->next = k->next;
    else
        l->cold = k->next;
    if (k->next != DIR_NONE)
        links(p, tier, k->next)->prev = k->prev;
    else
        l->warm = k->prev;
    *k = (struct dir_links){DIR_NONE, DIR_NONE};
}

static void push_warm(struct policy *p, struct policy_list *l, enum dir_tier tier, uint32_t idx) {
    struct dir_links *k = links(p, tier, idx);
    *k = (struct dir_links){l->warm, DIR_NONE};
    if (l->warm != DIR_NONE)
        links(p, tier, l->warm)->next = idx;
    else
        l->cold = idx;
    l->warm = idx;
}

/* On the cold side of at, which is on the list. */
static void push_below(struct policy *p, struct policy_list *l, enum dir_tier tier, uint32_t at,
                       uint32_t idx) {
    struct dir_links *k = links(p, tier, idx), *a = links(p, tier, at);
    *k = (struct dir_links){a->prev, at};
    if (a->prev != DIR_NONE)
        links(p, tier, a->prev)->next = idx;
    else
        l->cold = idx;
    a->prev = idx;
}

static void stamp(struct policy *p, enum dir_tier tier, uint32_t idx) {
    uint32_t slot = dir_at(p->dir, idx)->slot[tier];
    if (slot != SLOT_NONE && p->slots[tier])
        slots_touch(p->slots[tier], slot, ++p->stamp);
}

static bool is_on(const struct policy *p, enum dir_tier t, uint32_t idx, enum dir_list list) {
    return dir_list(dir_at(p->dir, idx), t) == list;
}

/* The nearest entry from idx up that is on that list of the tier. */
static uint32_t nearest(const struct policy *p, enum dir_tier t, uint32_t idx, enum dir_list list,
                        uint32_t max) {
    for (; idx != DIR_NONE && !is_on(p, t, idx, list); idx = dir_at(p->dir, idx)->parent)
        if (max-- == 0)
            return DIR_NONE;
    return idx;
}

/* Its extent knows how many of its blocks may leave. */
static void note_idle(struct policy *p, enum dir_tier t, uint32_t idx, int n) {
    const struct dir_entry *e = dir_at(p->dir, idx);
    if (!is_on(p, t, idx, DIR_UNLISTED) && p->slots[t])
        slots_note_idle(p->slots[t], e->slot[t], is_on(p, t, idx, DIR_DIRTY), n);
}

static void lru_place(struct policy *p, enum dir_tier t, uint32_t cls, uint32_t idx,
                      enum dir_list list, bool is_used) {
    struct dir_entry *e = dir_at(p->dir, idx);
    if (is_on(p, t, idx, list) && (list == DIR_UNLISTED || !is_used))
        return;
    if (!is_on(p, t, idx, DIR_UNLISTED))
        unlink_entry(p, list_of(p, t, cls, idx), t, idx);
    note_idle(p, t, idx, -1);
    dir_set_list(e, t, list);
    note_idle(p, t, idx, 1);
    if (list == DIR_UNLISTED)
        return;
    uint32_t up = is_used ? DIR_NONE : nearest(p, t, e->parent, list, NEAREST_STEPS);
    if (up != DIR_NONE)
        push_below(p, &p->lists[t][cls][list], t, up, idx);
    else
        push_warm(p, &p->lists[t][cls][list], t, idx);
    stamp(p, t, idx);
}

/* below: just colder than that entry when it is on the same list, else to the warm end. What is on
 * no list is used all the same: its extent is not the oldest. */
static void touch_one(struct policy *p, enum dir_tier t, uint32_t idx, uint32_t below) {
    const struct dir_entry *e = dir_at(p->dir, idx);
    stamp(p, t, idx);
    if (is_on(p, t, idx, DIR_UNLISTED))
        return;
    struct policy_list *l = list_of(p, t, p->ns_class[e->ns], idx);
    if (below != DIR_NONE) {
        unlink_entry(p, l, t, idx);
        push_below(p, l, t, below, idx);
    } else if (l->warm != idx) {
        unlink_entry(p, l, t, idx);
        push_warm(p, l, t, idx);
    }
}

/* Entries from idx up to a touched one, or to the chain's beginning; 0: more than max. */
static uint32_t untouched_above(const struct policy *p, uint32_t idx, uint32_t max) {
    uint32_t n = 0;
    for (; idx != DIR_NONE && !dir_at(p->dir, idx)->touched; idx = dir_at(p->dir, idx)->parent)
        if (++n > max)
            return 0;
    return n;
}

static uint32_t lru_touch_chain(struct policy *p, uint32_t idx, uint32_t *steps) {
    /* The walk is never longer than the depth says: count only where that might be too much. */
    if (dir_at(p->dir, idx)->depth >= *steps && untouched_above(p, idx, *steps) == 0)
        return 0;
    for (;; --*steps) {
        for (enum dir_tier t = DIR_RAM; t < DIR_TIERS; t++)
            touch_one(p, t, idx, DIR_NONE);
        if (dir_at(p->dir, idx)->parent == DIR_NONE)
            return dir_at(p->dir, idx)->depth;
        idx = dir_at(p->dir, idx)->parent;
    }
}

static void lru_touch_branch(struct policy *p, uint32_t idx, uint32_t *steps) {
    uint32_t n = untouched_above(p, idx, *steps), top = idx;
    uint32_t below[DIR_TIERS][DIR_LISTS];
    bool is_known[DIR_TIERS][DIR_LISTS] = {{false}};
    *steps -= n;
    for (uint32_t i = 0; i < n; i++) {
        dir_at(p->dir, top)->touched = 1;
        top = dir_at(p->dir, top)->parent;
    }
    for (; n > 0; n--, idx = dir_at(p->dir, idx)->parent)
        for (enum dir_tier t = DIR_RAM; t < DIR_TIERS; t++) {
            enum dir_list l = dir_list(dir_at(p->dir, idx), t);
            if (l != DIR_UNLISTED && !is_known[t][l]) {
                is_known[t][l] = true;
                below[t][l] = nearest(p, t, top, l, JUNCTION_STEPS);
            }
            touch_one(p, t, idx, l == DIR_UNLISTED ? DIR_NONE : below[t][l]);
        }
}

static void lru_touch_end(struct policy *p, uint32_t idx) {
    for (; idx != DIR_NONE && dir_at(p->dir, idx)->touched; idx = dir_at(p->dir, idx)->parent)
        dir_at(p->dir, idx)->touched = 0;
}

static uint32_t lru_victim(const struct policy *p, enum dir_tier tier, uint32_t cls,
                           enum dir_list list, uint32_t max_steps, policy_accept_fn accept,
                           void *arg) {
    uint32_t idx = p->lists[tier][cls][list].cold;
    for (; idx != DIR_NONE && max_steps > 0; max_steps--) {
        if (!accept || accept(arg, idx))
            return idx;
        idx = dir_at(p->dir, idx)->lru[tier].next;
    }
    return DIR_NONE;
}

static const struct policy_ops lru_ops = {
    .name = "lru",
    .place = lru_place,
    .touch_chain = lru_touch_chain,
    .touch_branch = lru_touch_branch,
    .touch_end = lru_touch_end,
    .victim = lru_victim,
};

void policy_lru_init(struct policy *p, struct directory *dir, struct slots *ram, struct slots *disk,
                     const uint32_t *ns_class) {
    *p = (struct policy){.ops = &lru_ops, .dir = dir, .slots = {ram, disk}, .ns_class = ns_class};
    memset(p->lists, 0xff, sizeof(p->lists));
}
