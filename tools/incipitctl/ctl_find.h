/* ctl_find.h - walks of the nodes' lists, and from what an operator types to whole ids. */
#pragma once

#include "common/block_id.h"
#include "tools/incipitctl/ctl.h"

/* Every page of a list of one node, until on_page wants no more. */
struct ctl_pages {
    enum msg_list_what what;
    const uint8_t *digest; /* [32]: only blocks of this namespace; NULL: all */
    uint64_t left; /* entries wanted still; on_page counts it down itself; UINT64_MAX: all */
    void (*on_page)(void *arg, struct ctl_pages *p, const struct msg_list_res *m);
    void *arg;
    bool has_more; /* out: the node has entries beyond those wanted */
    struct ctl *c; /* private */
    uint8_t cursor[256];
    size_t n_cursor;
};
int ctl_list_pages(struct ctl *c, uint32_t node, struct ctl_pages *p);

#define CTL_MIN_PREFIX 4 /* digits; fewer name nobody in particular */

/* word: 64 digits, or the first ones of an id that some node lists, if just one begins so. CTL_OK, or it was said why
 * not: CTL_USAGE (no hex digits, or several begin with them), CTL_FAILED (no node lists one), as ctl_fail(). */
int ctl_find_block(struct ctl *c, const char *word, struct block_id *ret);
/* The same for a namespace's digest. */
int ctl_find_ns(struct ctl *c, const char *word, uint8_t ret[32]);
/* --ns: NULL in *ret when it was not given, else it points to digest. */
int ctl_opt_ns(struct ctl *c, uint8_t digest[32], const uint8_t **ret);
