#include "tools/incipitctl/ctl_chain.h"

/* A block and its parent, as one node tells them. */
struct edge {
    struct block_id id, parent;
    uint32_t node;
    bool is_used;
};

struct edges {
    struct ctl *c;
    const uint8_t *ns;
    struct edge *v;
    size_t n, cap;
    uint32_t node; /* that is being asked */
    bool is_oom;
};

static bool is_none(const struct block_id *id) {
    static const struct block_id none;
    return block_id_equal(id, &none);
}

static void add(struct edges *s, const struct edge *e) {
    if (s->n == s->cap) {
        size_t cap = s->cap * 2;
        struct edge *v = realloc(s->v, cap * sizeof(*v));
        if (!v) {
            s->is_oom = true;
            return;
        }
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = *e;
}

/* ---- what the nodes tell ---- */

static void on_page(void *arg, struct ctl_pages *p, const struct msg_list_res *m) {
    struct edges *s = arg;
    for (size_t i = 0; i < m->n_blocks && !s->is_oom; i++) {
        const struct msg_block_info *b = &m->blocks[i];
        struct edge e = {.node = s->node};
        if (b->id.n != 32)
            continue;
        memcpy(e.id.b, b->id.p, 32);
        if (b->parent.n == 32)
            memcpy(e.parent.b, b->parent.p, 32);
        add(s, &e);
    }
    if (s->is_oom)
        p->left = 0;
}

struct look {
    struct ctl *c;
    bool is_there;
    struct block_id parent;
};

static void on_inspect(void *arg, int rv, const char *text, const struct msg_inspect_res *m) {
    struct look *l = arg;
    l->is_there = rv == 0;
    if (rv == 0 && m->block.parent.n == 32)
        memcpy(l->parent.b, m->block.parent.p, 32);
    ctl_done(l->c, rv, text);
}

static int inspect(struct ctl *c, uint32_t node, const struct block_id *id, const uint8_t ns[32],
                   struct look *l) {
    struct msg_inspect_req m = {.id = {id->b, 32}, .digest = {ns, 32}};
    *l = (struct look){.c = c};
    int rv = ctl_wait(
        c, kv_client_inspect(c->client, node, &m, ctl_deadline_ms(c), on_inspect, l, NULL));
    return rv < 0 && rv != ERR_NOTFOUND ? ctl_fail(c, rv, ctl_node_addr(c, node)) : CTL_OK;
}

int ctl_has_block(struct ctl *c, const struct block_id *id, const uint8_t ns[32], bool *ret) {
    int code = CTL_OK;
    *ret = false;
    for (uint32_t i = 0; i < ctl_n_nodes(c) && code == CTL_OK && !*ret; i++) {
        struct look l = {0};
        if (ctl_node_is_up(c, i))
            code = inspect(c, i, id, ns, &l);
        *ret = l.is_there;
    }
    return code;
}

/* ---- holes ---- */

static int by_id(const void *a, const void *b) {
    return memcmp(((const struct edge *)a)->id.b, ((const struct edge *)b)->id.b, 32);
}

static int by_parent(const void *a, const void *b) {
    const struct edge *x = a, *y = b;
    int rv = memcmp(x->parent.b, y->parent.b, 32);
    if (rv == 0)
        rv = memcmp(x->id.b, y->id.b, 32);
    return rv ? rv : (int)x->node - (int)y->node;
}

/* A block that lost its bytes and has children is in no list, but the chain goes through it: upwards from every
 * parent that no node listed. n_listed: edges in front, sorted by id. */
static int climb(struct edges *s, size_t n_listed, struct block_id at, uint32_t node) {
    struct edge key = {.id = at};
    while (!is_none(&key.id) && !bsearch(&key, s->v, n_listed, sizeof(key), by_id)) {
        struct look l;
        int code = inspect(s->c, node, &key.id, s->ns, &l);
        if (code != CTL_OK || !l.is_there || is_none(&l.parent))
            return code;
        struct edge e = {.id = key.id, .parent = l.parent, .node = node};
        add(s, &e);
        if (s->is_oom)
            return CTL_OK;
        key.id = l.parent;
    }
    return CTL_OK;
}

/* Each such parent once a node: children of one lie together when sorted by it. */
static int add_holes(struct edges *s) {
    size_t n = s->n;
    int code = CTL_OK;
    CLEANUP(freep) struct edge *up = alloc_array(n + 1, sizeof(*up));
    if (!up)
        return ctl_fail(s->c, ERR_NOMEM, "evict");
    memcpy(up, s->v, n * sizeof(*up));
    qsort(up, n, sizeof(*up), by_parent);
    qsort(s->v, n, sizeof(*s->v), by_id);
    uint32_t asked = 0; /* bit a node, of this parent */
    for (size_t i = 0; i < n && code == CTL_OK && !s->is_oom; i++) {
        if (i > 0 && !block_id_equal(&up[i].parent, &up[i - 1].parent))
            asked = 0;
        if (!(asked & 1u << up[i].node))
            code = climb(s, n, up[i].parent, up[i].node);
        asked |= 1u << up[i].node;
    }
    return code;
}

/* ---- downwards ---- */

static size_t first_below(const struct edges *s, const struct block_id *parent) {
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (memcmp(s->v[mid].parent.b, parent->b, 32) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The same child at another node comes next to it, and what was named may be below what was named, too. */
static void take(struct ctl_chain *ch, uint32_t n_named, const struct edge *e) {
    uint32_t at = 0;
    while (at < n_named && !block_id_equal(&ch->blocks[at].id, &e->id))
        at++;
    if (at == n_named && ch->n > n_named && block_id_equal(&ch->blocks[ch->n - 1].id, &e->id))
        at = ch->n - 1;
    else if (at == n_named)
        ch->blocks[at = ch->n++] = (struct ctl_chain_block){.id = e->id};
    ch->blocks[at].below_at |= 1u << e->node;
}

static void add_named(struct ctl_chain *ch, const struct block_id *id) {
    for (uint32_t i = 0; i < ch->n; i++)
        if (block_id_equal(&ch->blocks[i].id, id))
            return;
    ch->blocks[ch->n++].id = *id;
}

/* Each edge is gone along once, so that a node that lists a circle holds nobody up. */
static int walk_down(struct edges *s, const struct block_id *named, uint32_t n,
                     struct ctl_chain *ch) {
    ch->blocks = alloc_array(n + s->n, sizeof(*ch->blocks));
    if (!ch->blocks || s->n > UINT32_MAX / 2)
        return ctl_fail(s->c, ERR_NOMEM, "evict");
    for (uint32_t i = 0; i < n; i++)
        add_named(ch, &named[i]);
    uint32_t n_named = ch->n;
    qsort(s->v, s->n, sizeof(*s->v), by_parent);
    for (uint32_t k = 0; k < ch->n; k++) {
        const struct block_id id = ch->blocks[k].id;
        for (size_t i = first_below(s, &id); i < s->n && block_id_equal(&s->v[i].parent, &id);
             i++) {
            if (s->v[i].is_used)
                break;
            s->v[i].is_used = true;
            take(ch, n_named, &s->v[i]);
        }
    }
    return CTL_OK;
}

int ctl_chain_find(struct ctl *c, const uint8_t ns[32], const struct block_id *named, uint32_t n,
                   struct ctl_chain *ret) {
    struct edges s = {.c = c, .ns = ns, .cap = 1024};
    s.v = alloc_array(s.cap, sizeof(*s.v));
    int code = s.v ? CTL_OK : ctl_fail(c, ERR_NOMEM, "evict");
    *ret = (struct ctl_chain){0};
    for (uint32_t i = 0; i < ctl_n_nodes(c) && code == CTL_OK; i++) {
        struct ctl_pages p = {.what = MSG_LIST_BLOCKS,
                              .digest = ns,
                              .left = UINT64_MAX,
                              .on_page = on_page,
                              .arg = &s};
        s.node = i;
        if (ctl_node_is_up(c, i))
            code = ctl_list_pages(c, i, &p);
    }
    if (code == CTL_OK)
        code = add_holes(&s);
    if (code == CTL_OK && s.is_oom)
        code = ctl_fail(c, ERR_NOMEM, "evict");
    if (code == CTL_OK)
        code = walk_down(&s, named, n, ret);
    free(s.v);
    return code;
}

void ctl_chain_fini(struct ctl_chain *ch) {
    free(ch->blocks);
    *ch = (struct ctl_chain){0};
}

uint32_t ctl_chain_tops(const struct ctl_chain *ch, uint32_t node, struct block_id *ret) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < ch->n; i++)
        if (!(ch->blocks[i].below_at & 1u << node))
            ret[n++] = ch->blocks[i].id;
    return n;
}
