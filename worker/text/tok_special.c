#include "worker/text/tok_special.h"

#include "worker/text/tokenizer_impl.h"

void tok_frags_fini(struct tok_frags *f) {
    free(f->v);
    *f = (struct tok_frags){0};
}

static int frags_add(struct tok_frags *f, size_t off, size_t len, int32_t id) {
    if (len == 0)
        return 0;
    if (f->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 32;
        struct tok_frag *v = realloc(f->v, cap * sizeof(*v));
        if (!v)
            return ERR_NOMEM;
        f->v = v;
        f->cap = cap;
    }
    f->v[f->n++] = (struct tok_frag){off, len, id};
    return 0;
}

struct origins {
    const struct tok_part *parts;
    const size_t *end; /* [n] */
    size_t n;
};

/* Whether every byte of [off, off + len) is ours. One byte of a user's makes the match theirs. */
static bool is_template(const struct origins *o, size_t off, size_t len) {
    size_t lo = 0, hi = o->n;
    while (lo < hi) { /* first part that ends behind off */
        size_t mid = (lo + hi) / 2;
        if (o->end[mid] <= off)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < o->n; lo++) {
        if (o->parts[lo].len && o->parts[lo].origin != TOK_ORIGIN_TEMPLATE)
            return false;
        if (o->end[lo] >= off + len)
            return true;
    }
    return false;
}

static bool may_start(const struct tok_special_group *g, char c) {
    uint8_t b = (uint8_t)c;
    return g->first_byte[b / 32] >> (b % 32) & 1;
}

/* Cuts the tokens of one length out of one stretch, left to right. */
static int split_frag(const struct tokenizer *t, const struct tok_special_group *g,
                      const char *text, const struct origins *o, struct tok_frag frag,
                      struct tok_frags *out) {
    size_t start = frag.off, end = frag.off + frag.len;
    int rv = 0;
    for (size_t i = start; rv == 0 && i + g->len <= end;) {
        int32_t id = -1;
        if (may_start(g, text[i]))
            id = vocab_map_find(&t->specials, text + i, g->len);
        if (id < 0 || ((t->flags[id] & TOK_FLAG_CONTROL) && !is_template(o, i, g->len))) {
            i++;
            continue;
        }
        rv = frags_add(out, start, i - start, -1);
        if (rv == 0)
            rv = frags_add(out, i, g->len, id);
        i += g->len;
        start = i;
    }
    return rv < 0 ? rv : frags_add(out, start, end - start, -1);
}

int tok_special_split(const struct tokenizer *t, const char *text, size_t len,
                      const struct tok_part *parts, const size_t *part_end, size_t n_parts,
                      struct tok_frags *ret) {
    struct origins o = {parts, part_end, n_parts};
    struct tok_frags cur = {0};
    int rv = frags_add(&cur, 0, len, -1);
    for (uint32_t k = 0; rv == 0 && k < t->n_groups; k++) {
        struct tok_frags next = {0};
        for (size_t i = 0; rv == 0 && i < cur.n; i++) {
            if (cur.v[i].id >= 0)
                rv = frags_add(&next, cur.v[i].off, cur.v[i].len, cur.v[i].id);
            else
                rv = split_frag(t, &t->groups[k], text, &o, cur.v[i], &next);
        }
        tok_frags_fini(&cur);
        cur = next;
    }
    if (rv < 0) {
        tok_frags_fini(&cur);
        return rv;
    }
    *ret = cur;
    return 0;
}
