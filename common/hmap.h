/* hmap.h - open-addressing map from 32-byte ids to 32-bit indexes; no malloc after init.
 *
 * The map holds 8 bytes a place, {hash, index}; the id itself lives in the caller's entry and is
 * read back through key(), so that an entry's id is stored once. Linear probing with backward-shift
 * removal: no tombstones, so lookups do not slow down with age. The hash mixes all 32 bytes with a
 * seed, since the ids come from outside and could be chosen to collide.
 * Thread: one owner. */
#pragma once

#include "common/compiler.h"

#define HMAP_ID_BYTES 32
#define HMAP_NONE UINT32_MAX

/* Borrowed pointer to the 32-byte id of entry index. */
typedef const uint8_t *(*hmap_key_fn)(const void *arg, uint32_t index);

struct hmap_place {
    uint32_t hash, index; /* index HMAP_NONE: free */
};

struct hmap {
    struct hmap_place *places; /* [mask + 1] */
    uint32_t mask, n, max;
    uint64_t seed;
    hmap_key_fn key;
    const void *arg;
};

/* Room for max entries (at most 2^30). 0, ERR_INVALID or ERR_NOMEM. */
int hmap_init(struct hmap *m, uint32_t max, uint64_t seed, hmap_key_fn key, const void *arg);
void hmap_fini(struct hmap *m);

uint32_t hmap_find(const struct hmap *m, const uint8_t id[HMAP_ID_BYTES]); /* index or HMAP_NONE */
/* key(index) must already give id. 0, ERR_EXISTS or ERR_NOSPACE. */
int hmap_insert(struct hmap *m, const uint8_t id[HMAP_ID_BYTES], uint32_t index);
bool hmap_remove(struct hmap *m, const uint8_t id[HMAP_ID_BYTES]); /* key() must still work */
void hmap_clear(struct hmap *m);
/* Walks all entries in no order: start with *cursor = 0, until HMAP_NONE. No change in between. */
uint32_t hmap_next(const struct hmap *m, uint32_t *cursor);
