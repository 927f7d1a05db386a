#include "cachesvc/index/index.h"

#include "common/check.h"

struct index_seg index_seg_of(const uint8_t ns_digest[DIGEST_BYTES], const struct block_id *first) {
    uint8_t text[DIGEST_BYTES + BLOCK_ID_BYTES], digest[DIGEST_BYTES];
    struct index_seg seg;
    memcpy(text, ns_digest, DIGEST_BYTES);
    memcpy(text + DIGEST_BYTES, first->b, BLOCK_ID_BYTES);
    digest_sha256(text, sizeof(text), digest);
    memcpy(seg.b, digest, sizeof(seg.b));
    return seg;
}

/* One node needs no table of its own here: its directory is the index. What is left is to count, so that
 * the figures mean the same with and without Redis, and to name this start. */
struct index_mem {
    struct index base;
    uint32_t epoch;
    struct index_stats stats;
};

static struct index_mem *self(const struct index *ix) {
    return CONTAINER_OF((struct index *)(uintptr_t)ix, struct index_mem, base);
}
static void mem_publish(struct index *ix, const struct index_seg *seg) {
    (void)seg;
    self(ix)->stats.published++;
}
static void mem_withdraw(struct index *ix, const struct index_seg *seg) {
    (void)seg;
    self(ix)->stats.withdrawn++;
}
static void mem_rescan(struct index *ix) {
    (void)ix; /* the directory is the index */
}
static uint32_t mem_epoch(const struct index *ix) {
    return self(ix)->epoch;
}
static void mem_stats(const struct index *ix, struct index_stats *ret) {
    *ret = self(ix)->stats;
}
static void mem_close(struct index *ix, void (*cb)(void *arg), void *arg) {
    free(self(ix));
    cb(arg);
}

int index_mem_open(struct index **ret, const struct clock *clk) {
    static const struct index_ops ops = {mem_publish, mem_withdraw, mem_rescan,
                                         mem_epoch,   mem_stats,    mem_close};
    struct index_mem *m = calloc(1, sizeof(*m));
    if (!m)
        return ERR_NOMEM;
    m->base.ops = &ops;
    m->epoch = (uint32_t)(clock_wall_ns(clk) / NS_PER_S);
    m->stats.state = INDEX_MEM;
    *ret = &m->base;
    return 0;
}
