#include "common/hmap.h"

#include "common/check.h"
#include "common/err.h"

/* Folds 64x64 -> 128 bits back to 64, so that every input bit reaches every output bit. */
static uint64_t mix(uint64_t a, uint64_t b) {
    __uint128_t m = (__uint128_t)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static uint32_t hash_id(const struct hmap *m, const uint8_t *id) {
    uint64_t w[4];
    memcpy(w, id, sizeof(w));
    uint64_t h = mix(w[0] ^ m->seed ^ 0x9e3779b97f4a7c15ull, w[1] ^ 0xc2b2ae3d27d4eb4full);
    h = mix(h ^ w[2] ^ 0x165667b19e3779f9ull, w[3] ^ m->seed ^ 0xd6e8feb86659fd93ull);
    return (uint32_t)(h ^ (h >> 32));
}

int hmap_init(struct hmap *m, uint32_t max, uint64_t seed, hmap_key_fn key, const void *arg) {
    if (max == 0 || max > (1u << 30))
        return ERR_INVALID;
    uint64_t want = (uint64_t)max + max / 3 + 1; /* filled to three quarters at most */
    uint64_t n = 8;
    while (n < want)
        n *= 2;
    struct hmap_place *places = malloc((size_t)n * sizeof(*places));
    if (!places)
        return ERR_NOMEM;
    *m = (struct hmap){.places = places,
                       .mask = (uint32_t)(n - 1),
                       .max = max,
                       .seed = seed,
                       .key = key,
                       .arg = arg};
    hmap_clear(m);
    return 0;
}

void hmap_fini(struct hmap *m) {
    free(m->places);
    *m = (struct hmap){0};
}

void hmap_clear(struct hmap *m) {
    memset(m->places, 0xff, ((size_t)m->mask + 1) * sizeof(*m->places)); /* index = HMAP_NONE */
    m->n = 0;
}

/* Place of id, or the free place that ends its run. */
static uint32_t probe(const struct hmap *m, const uint8_t *id, uint32_t hash) {
    uint32_t at = hash & m->mask;
    for (;; at = (at + 1) & m->mask) {
        const struct hmap_place *p = &m->places[at];
        if (p->index == HMAP_NONE)
            return at;
        if (p->hash == hash && memcmp(m->key(m->arg, p->index), id, HMAP_ID_BYTES) == 0)
            return at;
    }
}

uint32_t hmap_find(const struct hmap *m, const uint8_t id[HMAP_ID_BYTES]) {
    return m->places[probe(m, id, hash_id(m, id))].index;
}

int hmap_insert(struct hmap *m, const uint8_t id[HMAP_ID_BYTES], uint32_t index) {
    CHECK(index != HMAP_NONE);
    uint32_t hash = hash_id(m, id);
    struct hmap_place *p = &m->places[probe(m, id, hash)];
    if (p->index != HMAP_NONE)
        return ERR_EXISTS;
    if (m->n == m->max)
        return ERR_NOSPACE;
    *p = (struct hmap_place){hash, index};
    m->n++;
    return 0;
}

/* Closes the gap: each later entry of the run moves back if its home place does not lie behind the
 * gap. */
static void shift_back(struct hmap *m, uint32_t gap) {
    uint32_t at = gap;
    for (;;) {
        at = (at + 1) & m->mask;
        struct hmap_place *p = &m->places[at];
        if (p->index == HMAP_NONE)
            break;
        uint32_t home = p->hash & m->mask;
        if (((at - home) & m->mask) >= ((at - gap) & m->mask)) {
            m->places[gap] = *p;
            gap = at;
        }
    }
    m->places[gap].index = HMAP_NONE;
}

bool hmap_remove(struct hmap *m, const uint8_t id[HMAP_ID_BYTES]) {
    uint32_t at = probe(m, id, hash_id(m, id));
    if (m->places[at].index == HMAP_NONE)
        return false;
    shift_back(m, at);
    m->n--;
    return true;
}

uint32_t hmap_next(const struct hmap *m, uint32_t *cursor) {
    while (*cursor <= m->mask) {
        uint32_t index = m->places[(*cursor)++].index;
        if (index != HMAP_NONE)
            return index;
    }
    return HMAP_NONE;
}
