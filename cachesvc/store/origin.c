#include "cachesvc/store/origin.h"

#include "common/check.h"
#include "common/err.h"

int origins_init(struct origins *t, uint32_t most) {
    uint32_t cap = MIN(most, UINT16_MAX - 1u) + 1, buckets = 16;
    while (buckets < cap)
        buckets *= 2;
    *t = (struct origins){.cap = cap, .mask = buckets - 1, .free_head = 1};
    t->o = alloc_array(cap, sizeof(*t->o));
    t->bucket = alloc_array(buckets, sizeof(*t->bucket));
    if (!t->o || !t->bucket) {
        origins_fini(t);
        return ERR_NOMEM;
    }
    for (uint32_t i = 1; i < cap; i++)
        t->o[i].next = i + 1 < cap ? i + 1 : 0;
    if (cap == 1)
        t->free_head = 0;
    return 0;
}

void origins_fini(struct origins *t) {
    free(t->o);
    free(t->bucket);
    *t = (struct origins){0};
}

static uint32_t *bucket_of(const struct origins *t, const uint8_t *writer, uint64_t group) {
    uint64_t w[2];
    memcpy(w, writer, sizeof(w));
    uint64_t h = (w[0] ^ w[1] * 0x9e3779b97f4a7c15ull ^ group) * 0xd6e8feb86659fd93ull;
    return &t->bucket[(uint32_t)(h >> 32) & t->mask];
}

int origins_take(struct origins *t, const uint8_t writer[ORIGIN_WRITER_BYTES], uint64_t group) {
    static const uint8_t nobody[ORIGIN_WRITER_BYTES];
    if (group == 0 && memcmp(writer, nobody, sizeof(nobody)) == 0)
        return ORIGIN_NONE;
    uint32_t *head = bucket_of(t, writer, group);
    for (uint32_t i = *head; i != 0; i = t->o[i].next) {
        if (t->o[i].group != group || memcmp(t->o[i].writer, writer, ORIGIN_WRITER_BYTES) != 0)
            continue;
        t->o[i].n_users++;
        return (int)i;
    }
    uint32_t i = t->free_head;
    if (i == 0)
        return -1;
    t->free_head = t->o[i].next;
    t->o[i] = (struct origin){.group = group, .n_users = 1, .next = *head};
    memcpy(t->o[i].writer, writer, ORIGIN_WRITER_BYTES);
    *head = i;
    return (int)i;
}

void origins_give(struct origins *t, uint32_t number) {
    struct origin *o = &t->o[number];
    if (number == ORIGIN_NONE)
        return;
    CHECK(o->n_users > 0);
    if (--o->n_users > 0)
        return;
    uint32_t *link = bucket_of(t, o->writer, o->group);
    while (*link != number)
        link = &t->o[*link].next;
    *link = o->next;
    o->next = t->free_head;
    t->free_head = number;
}
