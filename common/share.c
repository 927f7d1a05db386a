#include "common/share.h"

#include "common/check.h"

#define KEPT_PART 8u /* an eighth of what can't be taken back is kept at each level */

void share_init(struct share *s, enum share_kind kind, uint64_t total, uint64_t unit) {
    *s = (struct share){.kind = kind, .total = total, .unit = MAX(unit, 1u)};
}

void share_set_total(struct share *s, uint64_t total) {
    s->total = total;
}

void share_expect_tenants(struct share *s, uint32_t n) {
    s->n_expected = n;
}

void share_tenant_init(struct share_tenant *t, struct share *of) {
    *t = (struct share_tenant){.of = of};
    of->n_tenants++;
}

void share_tenant_fini(struct share_tenant *t) {
    if (!t->of)
        return;
    CHECK(t->used == 0 && t->n_wanting == 0 && t->of->n_tenants > 0);
    t->of->n_tenants--;
    *t = (struct share_tenant){0};
}

static bool wants(const struct share_user *u) {
    return u->used > 0 || u->waits > 0;
}

/* Keeps the counts of who wants some, from which every share follows. */
static void note_wants(struct share_user *u, bool before) {
    bool now = wants(u);
    if (now == before)
        return;
    struct share_tenant *t = u->tenant;
    if (now) {
        if (t->n_wanting++ == 0)
            t->of->n_wanting++;
        return;
    }
    CHECK(t->n_wanting > 0);
    if (--t->n_wanting == 0)
        t->of->n_wanting--;
}

void share_user_init(struct share_user *u, struct share_tenant *tenant) {
    *u = (struct share_user){.tenant = tenant};
}

void share_user_fini(struct share_user *u) {
    if (!u->tenant)
        return;
    CHECK(u->used == 0);
    share_wait(u, 0);
    *u = (struct share_user){0};
}

/* ---- shares ---- */

static bool has_several(const struct share *s) {
    return MAX(s->n_tenants, s->n_expected) > 1;
}

/* Kept at one level for those below their share. */
static uint64_t kept(const struct share *s) {
    uint32_t levels = has_several(s) ? 2 : 1;
    if (s->kind == SHARE_TAKEN_BACK || s->total / s->unit < 2 * levels)
        return 0;
    return MAX(s->total / KEPT_PART, s->unit);
}

static uint64_t open_part(const struct share *s) {
    return s->total - kept(s) * (has_several(s) ? 2 : 1);
}

/* The tenant's share, counting it as one that wants some. */
static uint64_t share_of_tenant(const struct share_tenant *t) {
    uint32_t n = t->of->n_wanting + (t->n_wanting == 0);
    return MAX(open_part(t->of) / n, t->of->unit);
}

uint64_t share_of(const struct share_user *u) {
    const struct share_tenant *t = u->tenant;
    uint32_t n = t->n_wanting + !wants(u);
    return MAX(share_of_tenant(t) / n, t->of->unit);
}

uint64_t share_excess(const struct share_user *u) {
    uint64_t share = share_of(u);
    return u->used > share ? u->used - share : 0;
}

/* ---- take and give ---- */

enum source { REFUSED, FROM_OPEN, FROM_KEPT };

static enum source source_of(const struct share_user *u, uint64_t n) {
    const struct share_tenant *t = u->tenant;
    const struct share *s = t->of;
    uint64_t open = open_part(s), from_open = s->used - s->dipped;
    bool is_within = u->used + n <= share_of(u);
    uint64_t first = is_within ? 0 : s->asked - u->asked; /* what goes before */
    if (n > share_free(s))
        return REFUSED;
    if (from_open <= open && first <= open - from_open && n <= open - from_open - first)
        return FROM_OPEN;
    if (!is_within || s->dipped > s->total - open)
        return REFUSED;
    uint64_t left = s->total - open - s->dipped; /* of what is kept */
    bool is_over = has_several(s) && t->used + n > share_of_tenant(t);
    bool is_much = u->dipped + n > MAX((left + u->dipped) / 2, s->unit);
    return n + (is_over ? kept(s) : 0) > left || is_much ? REFUSED : FROM_KEPT;
}

bool share_may(const struct share_user *u, uint64_t n) {
    return source_of(u, n) != REFUSED;
}

bool share_take(struct share_user *u, uint64_t n) {
    enum source from = source_of(u, n);
    if (from == REFUSED)
        return false;
    struct share *s = u->tenant->of;
    bool before = wants(u);
    u->used += n;
    u->tenant->used += n;
    s->used += n;
    if (from == FROM_KEPT) {
        u->dipped += n;
        s->dipped += n;
    }
    u->waits -= MIN(n, u->waits);
    s->asked -= MIN(n, u->asked);
    u->asked -= MIN(n, u->asked);
    note_wants(u, before);
    return true;
}

static void give_dipped(struct share_user *u, uint64_t n) {
    uint64_t d = MIN(n, u->dipped);
    u->dipped -= d;
    u->tenant->of->dipped -= d;
}

void share_give(struct share_user *u, uint64_t n) {
    CHECK(n <= u->used);
    bool before = wants(u);
    give_dipped(u, n);
    u->used -= n;
    u->tenant->used -= n;
    u->tenant->of->used -= n;
    note_wants(u, before);
}

void share_move(struct share_user *from, struct share_user *to, uint64_t n) {
    CHECK(from->tenant->of == to->tenant->of && n <= from->used);
    bool from_before = wants(from), to_before = wants(to);
    give_dipped(from, n);
    from->used -= n;
    from->tenant->used -= n;
    to->used += n;
    to->tenant->used += n;
    note_wants(from, from_before);
    note_wants(to, to_before);
}

void share_wait(struct share_user *u, uint64_t n) {
    struct share *s = u->tenant->of;
    bool before = wants(u);
    s->asked -= u->asked;
    u->waits = n;
    note_wants(u, before);
    /* Only what lies within the share: those above theirs must not wait for each other. */
    uint64_t share = share_of(u);
    u->asked = u->used < share ? MIN(n, share - u->used) : 0;
    s->asked += u->asked;
}
