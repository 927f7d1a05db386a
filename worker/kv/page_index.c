/* page_index.c - open addressing over page numbers; the ids lie in an array by page.
 *
 * Linear probing, deletion by shifting back, so there are no tombstones and a find ends at the first
 * empty entry. Ids are SHA-256 values: their first bytes are the hash. */
#include "worker/kv/page_index.h"

#include "common/check.h"

struct page_index {
    struct page_pool *pool;
    struct block_id *ids; /* [n_pages] by page, valid when the pool's mark is set */
    uint32_t *table;      /* [mask + 1] page numbers or PAGE_NONE */
    uint32_t mask, count;
};

static void forget(struct page_index *x, uint32_t page);

static void on_evict(void *ctx, uint32_t page) {
    forget(ctx, page);
}

int page_index_new(struct page_index **ret, struct page_pool *pool) {
    uint32_t n_pages = page_pool_stats(pool).n_pages, size = 16;
    while (size < 2ull * n_pages && size < (1u << 31))
        size *= 2;
    struct page_index *x = calloc(1, sizeof(*x));
    if (!x)
        return ERR_NOMEM;
    x->pool = pool;
    x->mask = size - 1;
    x->ids = alloc_array(n_pages, sizeof(*x->ids));
    x->table = alloc_array(size, sizeof(*x->table));
    if (!x->ids || !x->table) {
        page_index_free(x);
        return ERR_NOMEM;
    }
    memset(x->table, 0xff, size * sizeof(*x->table));
    page_pool_on_evict(pool, on_evict, x);
    *ret = x;
    return 0;
}

void page_index_free(struct page_index *x) {
    if (!x)
        return;
    free(x->ids);
    free(x->table);
    free(x);
}

static uint32_t home(const struct page_index *x, const struct block_id *id) {
    uint32_t h;
    memcpy(&h, id->b, sizeof(h));
    return h & x->mask;
}

/* Position of id, or of the empty entry where it would go. */
static uint32_t probe(const struct page_index *x, const struct block_id *id) {
    uint32_t i = home(x, id);
    while (x->table[i] != PAGE_NONE && !block_id_equal(&x->ids[x->table[i]], id))
        i = (i + 1) & x->mask;
    return i;
}

uint32_t page_index_find(const struct page_index *x, const struct block_id *id) {
    return x->table[probe(x, id)];
}

bool page_index_insert(struct page_index *x, const struct block_id *id, uint32_t page) {
    uint32_t i = probe(x, id);
    if (x->table[i] != PAGE_NONE || page_pool_is_indexed(x->pool, page))
        return false;
    x->ids[page] = *id;
    x->table[i] = page;
    x->count++;
    page_pool_set_indexed(x->pool, page, true);
    return true;
}

/* Takes the page's entry out of the table. Entries behind it move up when their home allows: entry j may
 * fill the hole i when i lies cyclically between its home and j. */
static void forget(struct page_index *x, uint32_t page) {
    uint32_t i = probe(x, &x->ids[page]);
    CHECK(x->table[i] == page);
    x->count--;
    for (uint32_t j = (i + 1) & x->mask; x->table[j] != PAGE_NONE; j = (j + 1) & x->mask) {
        uint32_t h = home(x, &x->ids[x->table[j]]);
        if (((j - h) & x->mask) >= ((j - i) & x->mask)) {
            x->table[i] = x->table[j];
            i = j;
        }
    }
    x->table[i] = PAGE_NONE;
}

void page_index_remove(struct page_index *x, uint32_t page) {
    if (!page_pool_is_indexed(x->pool, page))
        return;
    forget(x, page);
    page_pool_set_indexed(x->pool, page, false);
}

uint32_t page_index_count(const struct page_index *x) {
    return x->count;
}

uint32_t page_index_run(const struct page_index *x, const struct block_id *ids, uint32_t n) {
    uint32_t i = 0;
    while (i < n && page_index_find(x, &ids[i]) != PAGE_NONE)
        i++;
    return i;
}
