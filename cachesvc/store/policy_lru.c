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

static uint32_t lru_touch_chain(struct policy *p, uint32_t idx) {
    for (;;) {
        const struct dir_entry *e = dir_at(p->dir, idx);
        for (enum dir_tier t = DIR_RAM; t < DIR_TIERS; t++) {
            if (!(e->in_lru & BIT(t)))
                continue;
            struct policy_list *l = list_of(p, t, p->ns_class[e->ns], idx);
            if (l->warm != idx) {
                unlink_entry(p, l, t, idx);
                push_warm(p, l, t, idx);
            }
            stamp(p, t, idx);
        }
        if (e->parent == DIR_NONE)
            return e->depth;
        idx = e->parent;
    }
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
    .set_orphan = lru_set_orphan,
    .victim = lru_victim,
};

void policy_lru_init(struct policy *p, struct directory *dir, struct slots *ram, struct slots *disk,
                     const uint32_t *ns_class) {
    *p = (struct policy){.ops = &lru_ops, .dir = dir, .slots = {ram, disk}, .ns_class = ns_class};
    memset(p->lists, 0xff, sizeof(p->lists));
}
