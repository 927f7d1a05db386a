/* The two growing arrays of tokenizer.h. */
#include "worker/text/tokenizer.h"

void tok_ids_fini(struct tok_ids *v) {
    free(v->id);
    *v = (struct tok_ids){0};
}

int tok_ids_push(struct tok_ids *v, int32_t id) {
    if (v->max && v->n >= v->max)
        return ERR_TOOBIG;
    if (v->n == v->cap) {
        size_t cap = v->cap ? 2 * v->cap : 256;
        int32_t *p = realloc(v->id, cap * sizeof(*p));
        if (!p)
            return ERR_NOMEM;
        v->id = p;
        v->cap = cap;
    }
    v->id[v->n++] = id;
    return 0;
}

void tok_text_fini(struct tok_text *v) {
    free(v->p);
    *v = (struct tok_text){0};
}

int tok_text_add(struct tok_text *v, const void *p, size_t n) {
    if (v->cap - v->len <= n) {
        size_t cap = MAX(2 * v->cap, v->len + n + 64);
        char *q = realloc(v->p, cap);
        if (!q)
            return ERR_NOMEM;
        v->p = q;
        v->cap = cap;
    }
    if (n)
        memcpy(v->p + v->len, p, n);
    v->len += n;
    v->p[v->len] = '\0';
    return 0;
}
