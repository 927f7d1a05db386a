/* share.h - who may take how much of a bound: the same rule for streams, puts, bytes, leases, reads,
 * queued bytes, half-received messages, connections and namespaces.
 *
 * The policy
 * ----------
 * A bound (struct share) has a total of units: streams, bytes, slots. Users (struct share_user; mostly
 * a session) take and give units. Above them stand tenants (struct share_tenant; whom a user is
 * accounted to, such as the row of its token). Where there are no tenants, one holds every user.
 *
 * 1. A user wants some while it holds units or waits for some. Its share is
 *
 *        open part / tenants that want some / users of its tenant that want some, at least one unit
 *
 *    so a user that is alone may have all, and two hundred idle ones cost nobody anything.
 *
 * 2. What others leave free may be used beyond the share, and is given back first:
 *    - Units that can be taken back (leases, queued work, put slots without data): nothing is kept,
 *      the open part is the total, and a lone user may use all of it. Who is refused below its share
 *      tells share_wait(); the owner then takes back from a user with share_excess(), best from the
 *      largest. Nobody above its share gets what is freed before those have been served.
 *    - Units that can't (running streams, slots being filled, buffers, connections): an eighth of the
 *      total, at least one unit, is kept for users below their share, and with several tenants another
 *      eighth for tenants below theirs. The open part is the rest. So a newcomer always finds
 *      something, however much the others run; as they end it comes to its share, because from what
 *      they give nothing goes back to them while somebody waits below its share. Of what is kept one
 *      user takes at most half of what the others left of it, so the next newcomer finds some too.
 *
 * 3. A request above its user's share waits with that user; the owner keeps those lists, bounded, and
 *    after each share_give() serves users that wait in turns. A full list is answered BUSY: a user is
 *    refused because of what it asked for itself, never because of others.
 *
 * In short, share_take(u, n) is granted iff n fits
 *
 *    the open part, for u above its share together with what others wait for below theirs, or
 *    what is kept, for u within its share, less the tenants' eighth if its tenant is above its own.
 *
 * A unit (cfg.unit) is the largest amount that one take may ask for, such as the bytes of the largest
 * block: shares are never smaller, so every request can be granted at some time. A total of less than
 * two units a level keeps nothing.
 *
 * Thread: one owner. Memory: none but the structs, which the owner embeds; nothing is allocated.
 * Cost: constant, two divisions. */
#pragma once

#include "common/compiler.h"

enum share_kind {
    SHARE_RUNNING,    /* can't be taken back: an eighth is kept */
    SHARE_TAKEN_BACK, /* the owner can take units back: nothing is kept */
};

struct share {
    uint64_t total, unit;
    enum share_kind kind;
    uint64_t used;
    uint64_t dipped;     /* of used: taken of what is kept */
    uint64_t asked;      /* by users that wait, as far as it lay within their shares */
    uint32_t n_tenants;  /* initialised */
    uint32_t n_expected; /* that may come: their part is kept before they are there */
    uint32_t n_wanting;  /* tenants of which some user wants some */
};
struct share_tenant {
    struct share *of;
    uint64_t used;
    uint32_t n_wanting; /* users */
};
struct share_user {
    struct share_tenant *tenant;
    uint64_t used;
    uint64_t dipped; /* its part of share.dipped; given back first */
    uint64_t waits;  /* units it waits for; 0: none */
    uint64_t asked;  /* its part of share.asked */
};

/* unit 0: 1. */
void share_init(struct share *s, enum share_kind kind, uint64_t total, uint64_t unit);
/* Tenants that may come, beside those that are there: with more than one the tenants' part is kept
 * from the start, so that who comes first can't take it. */
void share_expect_tenants(struct share *s, uint32_t n);
void share_tenant_init(struct share_tenant *t, struct share *of);
void share_tenant_fini(struct share_tenant *t); /* its users must be gone */
void share_user_init(struct share_user *u, struct share_tenant *tenant);
void share_user_fini(struct share_user *u); /* aborts when it still holds units; waits no longer */
/* A live change; what is used beyond a smaller total stays until it is given. */
void share_set_total(struct share *s, uint64_t total);

/* Whether n units would be granted now. */
bool share_may(const struct share_user *u, uint64_t n);
/* Takes n units if they are granted; what the user waits for is n less then. */
bool share_take(struct share_user *u, uint64_t n);
void share_give(struct share_user *u, uint64_t n);
/* Another user answers for n of the units from now on, such as half of a slot that both lease. Always
 * granted: the total does not change. Both belong to one bound. */
void share_move(struct share_user *from, struct share_user *to, uint64_t n);
/* The user waits for n units in all from now on; 0: for none any more. */
void share_wait(struct share_user *u, uint64_t n);

/* Units, counting u as one that wants some. */
uint64_t share_of(const struct share_user *u);
/* What it holds beyond its share: what is to be taken back first. */
uint64_t share_excess(const struct share_user *u);
static inline uint64_t share_free(const struct share *s) {
    return s->used < s->total ? s->total - s->used : 0;
}
