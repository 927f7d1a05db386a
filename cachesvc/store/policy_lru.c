/* Why LRU needs no special care for leaves: a touch walks from the deepest block to block 0, so on
 * any list a parent sits warmer than its children, and the cold end is a leaf of what is left. Only
 * two things break that order: a block that lost its bytes while it has children (its descendants
 * then sit on the orphan list, which is emptied first), and held blocks, which the store refuses by
 * the accept function. */
#include "cachesvc/store/policy.h"

#include "common/check.h"

static struct policy_list *list_of(struct policy *p, enum dir_tier tier, uint32_t cls,
                                   uint32_t idx) {
    return &p->lists[tier][cls][dir_at(p->dir, idx)->orphan];
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

static void lru_insert(struct policy *p, enum dir_tier tier, uint32_t cls, uint32_t idx) {
    struct dir_entry *e = dir_at(p->dir, idx);
    CHECK(!(e->in_lru & BIT(tier)));
    e->in_lru = (uint16_t)((e->in_lru | BIT(tier)) & 3);
    const struct dir_entry *up = e->parent == DIR_NONE ? NULL : dir_at(p->dir, e->parent);
    bool is_beside = up && (up->in_lru & BIT(tier)) && up->orphan == e->orphan && up->ns == e->ns;
    if (is_beside)
        push_below(p, list_of(p, tier, cls, idx), tier, e->parent, idx);
    else
        push_warm(p, list_of(p, tier, cls, idx), tier, idx);
    stamp(p, tier, idx);
}

static void lru_remove(struct policy *p, enum dir_tier tier, uint32_t cls, uint32_t idx) {
    struct dir_entry *e = dir_at(p->dir, idx);
    CHECK(e->in_lru & BIT(tier));
    unlink_entry(p, list_of(p, tier, cls, idx), tier, idx);
    e->in_lru = (uint16_t)((e->in_lru & ~BIT(tier)) & 3);
}

/* below: just colder than that entry when it is on the same list, else to the warm end. */
static void touch_one(struct policy *p, enum dir_tier t, uint32_t idx, uint32_t below) {
    const struct dir_entry *e = dir_at(p->dir, idx);
    if (!(e->in_lru & BIT(t)))
        return;
    struct policy_list *l = list_of(p, t, p->ns_class[e->ns], idx);
    const struct dir_entry *b = below == DIR_NONE ? NULL : dir_at(p->dir, below);
    if (b && (b->in_lru & BIT(t)) && b->orphan == e->orphan) {
        unlink_entry(p, l, t, idx);
        push_below(p, l, t, below, idx);
    } else if (l->warm != idx) {
        unlink_entry(p, l, t, idx);
        push_warm(p, l, t, idx);
    }
    stamp(p, t, idx);
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

/* The nearest entry from idx up that is on the tier's list. */
static uint32_t listed_above(const struct policy *p, enum dir_tier t, uint32_t idx,
                             uint32_t *steps) {
    while (idx != DIR_NONE && *steps > 0 && !(dir_at(p->dir, idx)->in_lru & BIT(t))) {
        idx = dir_at(p->dir, idx)->parent;
        --*steps;
    }
    return idx;
}

static void lru_touch_branch(struct policy *p, uint32_t idx, uint32_t *steps) {
    uint32_t n = untouched_above(p, idx, *steps), top = idx, below[DIR_TIERS];
    *steps -= n;
    for (uint32_t i = 0; i < n; i++) {
        dir_at(p->dir, top)->touched = 1;
        top = dir_at(p->dir, top)->parent;
    }
    for (enum dir_tier t = DIR_RAM; t < DIR_TIERS; t++)
        below[t] = n ? listed_above(p, t, top, steps) : DIR_NONE;
    for (; n > 0; n--, idx = dir_at(p->dir, idx)->parent)
        for (enum dir_tier t = DIR_RAM; t < DIR_TIERS; t++)
            touch_one(p, t, idx, below[t]);
}

static void lru_touch_end(struct policy *p, uint32_t idx) {
    for (; idx != DIR_NONE && dir_at(p->dir, idx)->touched; idx = dir_at(p->dir, idx)->parent)
        dir_at(p->dir, idx)->touched = 0;
}

static void lru_set_orphan(struct policy *p, uint32_t cls, uint32_t idx, bool orphan) {
    struct dir_entry *e = dir_at(p->dir, idx);
    if (e->orphan == orphan)
        return;
    for (enum dir_tier t = DIR_RAM; t < DIR_TIERS; t++)
        if (e->in_lru & BIT(t))
            unlink_entry(p, list_of(p, t, cls, idx), t, idx);
    e->orphan = orphan;
    for (enum dir_tier t = DIR_RAM; t < DIR_TIERS; t++)
        if (e->in_lru & BIT(t))
            push_warm(p, list_of(p, t, cls, idx), t, idx);
}

static uint32_t lru_victim(struct policy *p, enum dir_tier tier, uint32_t cls, uint32_t max_steps,
                           policy_accept_fn accept, void *arg) {
    for (int orphans = 1; orphans >= 0; orphans--) {
        uint32_t idx = p->lists[tier][cls][orphans].cold;
        for (; idx != DIR_NONE && max_steps > 0; max_steps--) {
            if (accept(arg, idx))
                return idx;
            idx = links(p, tier, idx)->next;
        }
    }
    return DIR_NONE;
}

static const struct policy_ops lru_ops = {
    .name = "lru",
    .insert = lru_insert,
    .remove = lru_remove,
    .touch_chain = lru_touch_chain,
    .touch_branch = lru_touch_branch,
    .touch_end = lru_touch_end,
    .set_orphan = lru_set_orphan,
    .victim = lru_victim,
};

void policy_lru_init(struct policy *p, struct directory *dir, struct slots *ram, struct slots *disk,
                     const uint32_t *ns_class) {
    *p = (struct policy){.ops = &lru_ops, .dir = dir, .slots = {ram, disk}, .ns_class = ns_class};
    memset(p->lists, 0xff, sizeof(p->lists));
}
