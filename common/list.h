/* list.h - intrusive doubly linked list, circular with a head. No allocation.
 *
 * An unlinked node points to itself, so list_remove() on it is harmless and list_is_linked() tells.
 * Thread: none of its own; whoever owns the head. */
#pragma once

#include "common/check.h"

struct list {
    struct list *prev, *next;
};

static inline void list_init(struct list *l) {
    l->prev = l->next = l;
}
static inline bool list_empty(const struct list *l) {
    return l->next == l;
}
static inline bool list_is_linked(const struct list *n) {
    return n->next != n;
}
/* n must belong to no list: a second one would lose its neighbours. */
static inline void list_insert_(struct list *n, struct list *prev, struct list *next) {
    DCHECK(prev->next == next && next->prev == prev);
    n->prev = prev;
    n->next = next;
    prev->next = n;
    next->prev = n;
}
static inline void list_push_back(struct list *l, struct list *n) {
    list_insert_(n, l->prev, l);
}
static inline void list_push_front(struct list *l, struct list *n) {
    list_insert_(n, l, l->next);
}
static inline void list_remove(struct list *n) {
    DCHECK(n->prev->next == n && n->next->prev == n);
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}
/* First node, unlinked; NULL when empty. */
static inline struct list *list_pop_front(struct list *l) {
    if (list_empty(l))
        return NULL;
    struct list *n = l->next;
    list_remove(n);
    return n;
}
static inline struct list *list_pop_back(struct list *l) {
    if (list_empty(l))
        return NULL;
    struct list *n = l->prev;
    list_remove(n);
    return n;
}
/* Moves all of from to the (initialised here) to; from is empty afterwards. */
static inline void list_move(struct list *from, struct list *to) {
    list_init(to);
    if (list_empty(from))
        return;
    to->next = from->next;
    to->prev = from->prev;
    to->next->prev = to;
    to->prev->next = to;
    list_init(from);
}

#define LIST_ENTRY(node, type, member) CONTAINER_OF(node, type, member)
#define LIST_FOREACH(l, it) for (struct list *it = (l)->next; it != (l); it = it->next)
/* it may be removed in the body */
#define LIST_FOREACH_SAFE(l, it, tmp)                                                              \
    for (struct list *it = (l)->next, *tmp = it->next; it != (l); it = tmp, tmp = it->next)
