/* seq_pages.c - page table of one sequence.
 *
 * Books: n + n_reserved + pages lent out >= n_need once reserved, so whatever happens to a fetch, the
 * sequence can always be computed to its end. */
#include "worker/kv/seq_pages.h"

#include "common/check.h"

int seq_pages_init(struct seq_pages *s, struct page_pool *pool, uint32_t cap, size_t page_bytes) {
    *s = (struct seq_pages){.pool = pool, .cap = cap, .page_bytes = page_bytes};
    s->page = alloc_array(cap, sizeof(*s->page));
    s->ptr = alloc_array(cap, sizeof(*s->ptr));
    if (s->page && s->ptr)
        return 0;
    free(TAKE_PTR(s->page));
    free(TAKE_PTR(s->ptr));
    return ERR_NOMEM;
}

void seq_pages_clear(struct seq_pages *s) {
    while (s->n > 0)
        page_pool_unref(s->pool, s->page[--s->n]);
    if (s->n_reserved)
        page_pool_unreserve(s->pool, s->n_reserved);
    s->n_reserved = s->n_need = 0;
}

void seq_pages_fini(struct seq_pages *s) {
    if (!s->page)
        return;
    seq_pages_clear(s);
    free(TAKE_PTR(s->page));
    free(TAKE_PTR(s->ptr));
}

bool seq_pages_reserve(struct seq_pages *s, uint32_t n_need) {
    CHECK(n_need <= s->cap && n_need >= s->n && !s->n_reserved);
    if (!page_pool_reserve(s->pool, n_need - s->n))
        return false;
    s->n_reserved = n_need - s->n;
    s->n_need = n_need;
    return true;
}

static void set_entry(struct seq_pages *s, uint32_t i, uint32_t page) {
    CHECK(i < s->cap);
    s->page[i] = page;
    s->ptr[i] = page_pool_bytes(s->pool, page);
}

/* Takes a promise back when the sequence has more than it needs, makes one when it has less. */
static void settle(struct seq_pages *s) {
    if (s->n_reserved && s->n + s->n_reserved > s->n_need) {
        page_pool_unreserve(s->pool, 1);
        s->n_reserved--;
    } else if (s->n + s->n_reserved < s->n_need) {
        /* called right after a page went back: it is there */
        CHECK(page_pool_reserve(s->pool, 1));
        s->n_reserved++;
    }
}

uint32_t seq_pages_adopt(struct seq_pages *s, const struct page_index *x,
                         const struct block_id *ids, uint32_t n) {
    uint32_t before = s->n;
    while (s->n < n && s->n < s->cap) {
        uint32_t page = page_index_find(x, &ids[s->n]);
        if (page == PAGE_NONE)
            break;
        if (s->n_reserved) { /* the page found stands for one that was promised */
            page_pool_unreserve(s->pool, 1);
            s->n_reserved--;
        }
        if (!page_pool_revive(s->pool, page))
            break; /* only without a reservation: promised to somebody else */
        set_entry(s, s->n++, page);
    }
    return s->n - before;
}

static uint32_t take_own(struct seq_pages *s) {
    if (!s->n_reserved)
        return page_pool_take(s->pool);
    s->n_reserved--;
    return page_pool_take_reserved(s->pool);
}

bool seq_pages_writable(struct seq_pages *s, uint32_t i) {
    CHECK(i <= s->n && i < s->cap);
    if (i < s->n && page_pool_refs(s->pool, s->page[i]) == 1 &&
        !page_pool_is_indexed(s->pool, s->page[i]))
        return true;
    uint32_t page = take_own(s);
    if (page == PAGE_NONE)
        return false;
    if (i < s->n) { /* shared: readers keep the old one */
        uint32_t old = s->page[i];
        memcpy(page_pool_bytes(s->pool, page), s->ptr[i], s->page_bytes);
        set_entry(s, i, page);
        page_pool_unref(s->pool, old);
    } else {
        set_entry(s, s->n++, page);
    }
    return true;
}

uint32_t seq_pages_lend(struct seq_pages *s) {
    if (!s->n_reserved)
        return PAGE_NONE;
    s->n_reserved--;
    return page_pool_take_reserved(s->pool);
}

void seq_pages_install(struct seq_pages *s, uint32_t i, uint32_t take_page) {
    CHECK(i <= s->n);
    if (i == s->n) {
        set_entry(s, s->n++, take_page);
        return;
    }
    uint32_t old = s->page[i];
    set_entry(s, i, take_page);
    seq_pages_give_back(s, old);
}

void seq_pages_give_back(struct seq_pages *s, uint32_t take_page) {
    /* A promise can follow only from a page that is really free again. */
    bool last = page_pool_refs(s->pool, take_page) == 1;
    page_pool_unref(s->pool, take_page);
    if (last)
        settle(s);
}

void seq_pages_fork(struct seq_pages *dst, const struct seq_pages *src) {
    CHECK(dst->n == 0 && src->n <= dst->cap);
    for (uint32_t i = 0; i < src->n; i++) {
        page_pool_ref(src->pool, src->page[i]);
        set_entry(dst, dst->n++, src->page[i]);
    }
}
