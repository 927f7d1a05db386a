/* page_pool.c - pages by number; the state of a page follows from refs and the indexed mark.
 *
 *            take                    unref, not indexed
 *   free --------------> used (refs>0) ----------------> free
 *     ^                    |   ^
 *     | evict, un-index    |   | revive
 *     +-------- cached <---+---+
 *            (refs 0, indexed)                                                        */
#include "worker/kv/page_pool.h"

#include <sys/mman.h>

#include "common/check.h"
#include "common/list.h"

#define PAGE_ALIGN 4096u

struct page {
    struct list link; /* free list, or LRU of cached pages (head: oldest) */
    uint32_t refs;
    bool indexed;
};

struct page_pool {
    uint8_t *base;
    size_t stride, map_bytes;
    struct page *pages; /* [n_pages] */
    struct list free, lru;
    uint32_t n_pages, n_free, n_cached, n_reserved;
    uint64_t n_evicted;
    page_evict_cb on_evict;
    void *on_evict_ctx;
};

int page_pool_new(struct page_pool **ret, uint32_t n_pages, size_t page_bytes, struct errbuf *eb) {
    if (!n_pages || n_pages == PAGE_NONE || !page_bytes || page_bytes > SIZE_MAX / 2 / n_pages)
        return err_set(eb, ERR_INVALID, "KV pool of %u pages of %zu bytes", n_pages, page_bytes);
    struct page_pool *p = calloc(1, sizeof(*p));
    if (!p)
        return err_set(eb, ERR_NOMEM, "KV pool");
    p->stride = (page_bytes + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN;
    p->map_bytes = p->stride * n_pages;
    p->pages = alloc_array(n_pages, sizeof(*p->pages));
    void *m = MAP_FAILED;
    /* Memory is committed as pages are first written; the mapping itself costs address space only. */
    if (p->pages)
        m = mmap(NULL, p->map_bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) {
        (void)err_set(eb, ERR_NOMEM, "KV pool of %zu bytes", p->map_bytes);
        free(p->pages);
        free(p);
        return ERR_NOMEM;
    }
    (void)madvise(m, p->map_bytes, MADV_HUGEPAGE); /* fewer TLB misses; fine if refused */
    p->base = m;
    p->n_pages = p->n_free = n_pages;
    list_init(&p->free);
    list_init(&p->lru);
    for (uint32_t i = 0; i < n_pages; i++)
        list_push_back(&p->free, &p->pages[i].link);
    *ret = p;
    return 0;
}

void page_pool_free(struct page_pool *p) {
    if (!p)
        return;
    munmap(p->base, p->map_bytes);
    free(p->pages);
    free(p);
}

void page_pool_prefault(struct page_pool *p, size_t n_bytes) {
#ifdef MADV_POPULATE_WRITE /* Linux 5.14 */
    (void)madvise(p->base, MIN(n_bytes, p->map_bytes), MADV_POPULATE_WRITE);
#else
    (void)p;
    (void)n_bytes;
#endif
}

void page_pool_on_evict(struct page_pool *p, page_evict_cb cb, void *ctx) {
    p->on_evict = cb;
    p->on_evict_ctx = ctx;
}

static struct page *at(const struct page_pool *p, uint32_t page) {
    CHECK(page < p->n_pages);
    return &p->pages[page];
}

uint8_t *page_pool_bytes(const struct page_pool *p, uint32_t page) {
    CHECK(page < p->n_pages);
    return p->base + p->stride * page;
}

static uint32_t n_available(const struct page_pool *p) {
    return p->n_free + p->n_cached;
}

bool page_pool_reserve(struct page_pool *p, uint32_t n) {
    if (n > n_available(p) - p->n_reserved)
        return false;
    p->n_reserved += n;
    return true;
}

void page_pool_unreserve(struct page_pool *p, uint32_t n) {
    CHECK(n <= p->n_reserved);
    p->n_reserved -= n;
}

/* A free page, else the oldest cached one. */
static uint32_t take_any(struct page_pool *p) {
    struct list *l = list_pop_front(&p->free);
    if (l) {
        p->n_free--;
    } else {
        l = list_pop_front(&p->lru);
        CHECK(l); /* free + cached >= reserved */
        p->n_cached--;
        p->n_evicted++;
        struct page *victim = LIST_ENTRY(l, struct page, link);
        victim->indexed = false;
        if (p->on_evict)
            p->on_evict(p->on_evict_ctx, (uint32_t)(victim - p->pages));
    }
    struct page *pg = LIST_ENTRY(l, struct page, link);
    CHECK(pg->refs == 0 && !pg->indexed);
    pg->refs = 1;
    return (uint32_t)(pg - p->pages);
}

uint32_t page_pool_take_reserved(struct page_pool *p) {
    page_pool_unreserve(p, 1);
    return take_any(p);
}

uint32_t page_pool_take(struct page_pool *p) {
    return n_available(p) > p->n_reserved ? take_any(p) : PAGE_NONE;
}

void page_pool_ref(struct page_pool *p, uint32_t page) {
    struct page *pg = at(p, page);
    CHECK(pg->refs > 0);
    pg->refs++;
}

void page_pool_unref(struct page_pool *p, uint32_t page) {
    struct page *pg = at(p, page);
    CHECK(pg->refs > 0);
    if (--pg->refs > 0)
        return;
    if (pg->indexed) {
        list_push_back(&p->lru, &pg->link);
        p->n_cached++;
    } else {
        list_push_front(&p->free, &pg->link); /* its lines may still be in a CPU cache */
        p->n_free++;
    }
}

uint32_t page_pool_refs(const struct page_pool *p, uint32_t page) {
    return at(p, page)->refs;
}

bool page_pool_revive(struct page_pool *p, uint32_t page) {
    struct page *pg = at(p, page);
    if (pg->refs > 0) {
        pg->refs++;
        return true;
    }
    CHECK(pg->indexed);
    if (n_available(p) <= p->n_reserved)
        return false;
    list_remove(&pg->link);
    p->n_cached--;
    pg->refs = 1;
    return true;
}

void page_pool_set_indexed(struct page_pool *p, uint32_t page, bool indexed) {
    struct page *pg = at(p, page);
    CHECK(!indexed || pg->refs > 0);
    if (pg->indexed && !indexed && pg->refs == 0) {
        list_remove(&pg->link);
        p->n_cached--;
        list_push_back(&p->free, &pg->link);
        p->n_free++;
    }
    pg->indexed = indexed;
}

bool page_pool_is_indexed(const struct page_pool *p, uint32_t page) {
    return at(p, page)->indexed;
}

struct page_pool_stats page_pool_stats(const struct page_pool *p) {
    return (struct page_pool_stats){
        .n_pages = p->n_pages,
        .n_free = p->n_free,
        .n_cached = p->n_cached,
        .n_used = p->n_pages - p->n_free - p->n_cached,
        .n_reserved = p->n_reserved,
        .n_evicted = p->n_evicted,
    };
}
