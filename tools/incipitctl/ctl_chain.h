/* ctl_chain.h - blocks by id in a pool: the namespace that an id is in, and what continues it, at whichever node
 * that lies. A chain is cut in segments that go to several nodes; where one begins at a node, that node does not know
 * what is before its parent, so that only who asks all of them sees the chain. */
#pragma once

#include "common/block_id.h"
#include "tools/incipitctl/ctl_find.h"

/* Whether some node has an entry for the block in this namespace; an enum ctl_exit. */
int ctl_has_block(struct ctl *c, const struct block_id *id, const uint8_t ns[32], bool *ret);

struct ctl_chain_block {
    struct block_id id;
    uint32_t below_at; /* bit a node (its index): there it hangs below another block of the chain */
};
struct ctl_chain {
    struct ctl_chain_block *blocks; /* [n]; the named ones first, each once */
    uint32_t n;
};

/* The named blocks and all that continues them, as far as the nodes that answer know. Costs a list of the whole namespace
 * at each of them. An enum ctl_exit; free with ctl_chain_fini() in any case. */
int ctl_chain_find(struct ctl *c, const uint8_t ns[32], const struct block_id *named, uint32_t n,
                   struct ctl_chain *ret);
void ctl_chain_fini(struct ctl_chain *ch);
/* What to name to one node: all of the chain but what it finds below these by itself. ret: [ch->n]. */
uint32_t ctl_chain_tops(const struct ctl_chain *ch, uint32_t node, struct block_id *ret);
