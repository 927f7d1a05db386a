#include "worker/text/merge_heap.h"

#include "common/err.h"

void merge_heap_fini(struct merge_heap *h) {
    free(h->syms);
    free(h->cands);
    *h = (struct merge_heap){0};
}

void merge_heap_clear(struct merge_heap *h) {
    h->n_syms = h->n_cands = 0;
}

/* Room for one more element of size bytes. */
static int grow(void **p, size_t n, size_t *cap, size_t size) {
    if (n < *cap)
        return 0;
    size_t more = *cap ? 2 * *cap : 64;
    void *q = realloc(*p, more * size);
    if (!q)
        return ERR_NOMEM;
    *p = q;
    *cap = more;
    return 0;
}

int merge_heap_add_sym(struct merge_heap *h, int32_t id, uint32_t off, uint32_t len) {
    int rv = grow((void **)&h->syms, h->n_syms, &h->cap_syms, sizeof(*h->syms));
    if (rv < 0)
        return rv;
    uint32_t i = (uint32_t)h->n_syms++;
    h->syms[i] = (struct merge_sym){id, off, len, i ? i - 1 : MERGE_NONE, MERGE_NONE};
    if (i)
        h->syms[i - 1].next = i;
    return 0;
}

static bool before(const struct merge_cand *a, const struct merge_cand *b) {
    if (a->neg_score < b->neg_score || a->neg_score > b->neg_score)
        return a->neg_score < b->neg_score;
    if (a->rank != b->rank)
        return a->rank < b->rank;
    return a->left < b->left;
}

int merge_heap_push(struct merge_heap *h, struct merge_cand c) {
    int rv = grow((void **)&h->cands, h->n_cands, &h->cap_cands, sizeof(*h->cands));
    if (rv < 0)
        return rv;
    size_t i = h->n_cands++;
    while (i) {
        size_t up = (i - 1) / 2;
        if (!before(&c, &h->cands[up]))
            break;
        h->cands[i] = h->cands[up];
        i = up;
    }
    h->cands[i] = c;
    return 0;
}

static struct merge_cand pop(struct merge_heap *h) {
    struct merge_cand top = h->cands[0], last = h->cands[--h->n_cands];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= h->n_cands)
            break;
        if (c + 1 < h->n_cands && before(&h->cands[c + 1], &h->cands[c]))
            c++;
        if (!before(&h->cands[c], &last))
            break;
        h->cands[i] = h->cands[c];
        i = c;
    }
    h->cands[i] = last;
    return top;
}

bool merge_heap_apply_next(struct merge_heap *h, uint32_t *ret_sym) {
    while (h->n_cands) {
        struct merge_cand c = pop(h);
        struct merge_sym *l = &h->syms[c.left];
        if (l->len == 0 || l->next == MERGE_NONE)
            continue;
        struct merge_sym *r = &h->syms[l->next];
        /* Lengths only grow, so the sum is the pushed one only if neither side changed since. */
        if (l->len + r->len != c.len)
            continue;
        l->len = c.len;
        l->id = c.merged;
        l->next = r->next;
        if (r->next != MERGE_NONE)
            h->syms[r->next].prev = c.left;
        r->len = 0;
        *ret_sym = c.left;
        return true;
    }
    return false;
}
