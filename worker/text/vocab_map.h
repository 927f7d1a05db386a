/* vocab_map.h - two small hash tables of the tokenizers: text to id, and pair of ids to merge.
 *
 * Open addressing at half load, built once, then read-only.
 * Thread: any once built. */
#pragma once

#include "common/compiler.h"
#include "worker/text/tokenizer.h"

/* Text to id. The texts are borrowed: texts[id] must outlive the map. */
struct vocab_map {
    const struct tok_str *texts;
    uint32_t mask;
    int32_t *slots; /* [mask + 1], -1 empty */
};
int vocab_map_init(struct vocab_map *m, const struct tok_str *texts,
                   uint32_t n_max); /* 0, ERR_NOMEM */
void vocab_map_fini(struct vocab_map *m);
/* A text that is there already gets the new id: the last of two equal tokens counts, as in the peers. */
void vocab_map_put(struct vocab_map *m, int32_t id);
int32_t vocab_map_find(const struct vocab_map *m, const char *p, size_t len); /* -1: absent */

/* (left id, right id) to (rank, id of the joined token). */
struct merge_entry {
    int32_t left, right; /* left -1: empty slot */
    uint32_t rank;
    int32_t merged;
};
struct merge_map {
    uint32_t mask;
    struct merge_entry *slots; /* [mask + 1] */
};
int merge_map_init(struct merge_map *m, uint32_t n_max); /* 0, ERR_NOMEM */
void merge_map_fini(struct merge_map *m);
/* The first rank of a pair stays. */
void merge_map_put(struct merge_map *m, int32_t left, int32_t right, uint32_t rank, int32_t merged);
const struct merge_entry *merge_map_find(const struct merge_map *m, int32_t left, int32_t right);
