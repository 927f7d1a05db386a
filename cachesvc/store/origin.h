/* origin.h - who put a block: (writer, accounting group) pairs, kept once and named by a number.
 *
 * Few writers put many blocks, and a directory entry has no room for 24 bytes of each.
 * Thread: loop thread. Memory: all in origins_init(). */
#pragma once

#include "common/compiler.h"

#define ORIGIN_NONE 0u /* no writer, group 0: always there, not counted */
#define ORIGIN_WRITER_BYTES 16

struct origin {
    uint8_t writer[ORIGIN_WRITER_BYTES];
    uint64_t group;
    uint32_t n_users; /* blocks */
    uint32_t next;    /* of its bucket, or of the free ones; 0 ends */
};

struct origins {
    struct origin *o; /* [cap] */
    uint32_t *bucket; /* [mask + 1], numbers; 0: empty */
    uint32_t cap, mask, free_head;
};

/* At most `most` pairs at once, and 65,535. 0, ERR_NOMEM. */
int origins_init(struct origins *t, uint32_t most);
void origins_fini(struct origins *t);
/* Number of the pair, counted once more; -1: no room, or the table is full of pairs in use. */
int origins_take(struct origins *t, const uint8_t writer[ORIGIN_WRITER_BYTES], uint64_t group);
void origins_give(struct origins *t, uint32_t number);
static inline const struct origin *origins_at(const struct origins *t, uint32_t number) {
    return &t->o[number];
}
