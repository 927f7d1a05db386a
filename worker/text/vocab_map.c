#include "worker/text/vocab_map.h"

static uint32_t table_size(uint32_t n) {
    uint32_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

static uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0x9E3779B97F4A7C15ull;
    return h ^ h >> 29;
}

/* Eight bytes a step; the length goes in first so that zero padding cannot make two texts equal. */
static uint32_t hash_text(const char *p, size_t len) {
    uint64_t h = len * 0xD6E8FEB86659FD93ull;
    while (len >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = mix(h ^ w);
        p += 8;
        len -= 8;
    }
    if (len) {
        uint64_t w = 0;
        memcpy(&w, p, len);
        h = mix(h ^ w);
    }
    return (uint32_t)mix(h);
}

static uint32_t hash_pair(int32_t left, int32_t right) {
    return (uint32_t)mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

int vocab_map_init(struct vocab_map *m, const struct tok_str *texts, uint32_t n_max) {
    uint32_t size = table_size(n_max);
    m->texts = texts;
    m->mask = size - 1;
    m->slots = alloc_array(size, sizeof(*m->slots));
    if (!m->slots)
        return ERR_NOMEM;
    memset(m->slots, 0xFF, size * sizeof(*m->slots));
    return 0;
}

void vocab_map_fini(struct vocab_map *m) {
    free(m->slots);
    m->slots = NULL;
}

/* Slot that holds the text, or the empty slot where it would go. */
static uint32_t vocab_slot(const struct vocab_map *m, const char *p, size_t len) {
    uint32_t i = hash_text(p, len) & m->mask;
    while (m->slots[i] >= 0) {
        const struct tok_str *s = &m->texts[m->slots[i]];
        if (s->len == len && memcmp(s->p, p, len) == 0)
            break;
        i = (i + 1) & m->mask;
    }
    return i;
}

void vocab_map_put(struct vocab_map *m, int32_t id) {
    const struct tok_str *s = &m->texts[id];
    m->slots[vocab_slot(m, s->p, s->len)] = id;
}

int32_t vocab_map_find(const struct vocab_map *m, const char *p, size_t len) {
    return m->slots[vocab_slot(m, p, len)];
}

int merge_map_init(struct merge_map *m, uint32_t n_max) {
    uint32_t size = table_size(n_max);
    m->mask = size - 1;
    m->slots = alloc_array(size, sizeof(*m->slots));
    if (!m->slots)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < size; i++)
        m->slots[i].left = -1;
    return 0;
}

void merge_map_fini(struct merge_map *m) {
    free(m->slots);
    m->slots = NULL;
}

static struct merge_entry *merge_slot(const struct merge_map *m, int32_t left, int32_t right) {
    uint32_t i = hash_pair(left, right) & m->mask;
    while (m->slots[i].left >= 0 && (m->slots[i].left != left || m->slots[i].right != right))
        i = (i + 1) & m->mask;
    return &m->slots[i];
}

void merge_map_put(struct merge_map *m, int32_t left, int32_t right, uint32_t rank,
                   int32_t merged) {
    struct merge_entry *e = merge_slot(m, left, right);
    if (e->left < 0)
        *e = (struct merge_entry){left, right, rank, merged};
}

const struct merge_entry *merge_map_find(const struct merge_map *m, int32_t left, int32_t right) {
    const struct merge_entry *e = merge_slot(m, left, right);
    return e->left < 0 ? NULL : e;
}
