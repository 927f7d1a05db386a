/* gen_seq.c - what happens to one sequence, on the engine thread, without threads or libuv. */
#include "worker/sched/gen_seq.h"

#include "common/check.h"
#include "common/digest.h"

const struct sm_state gen_seq_states[SEQ_NR] = {
    [SEQ_WAIT] = {"wait", SM_INITIAL, BIT(SEQ_LOOKUP) | BIT(SEQ_READY) | BIT(SEQ_DONE)},
    [SEQ_LOOKUP] = {"lookup", 0, BIT(SEQ_FETCH) | BIT(SEQ_READY) | BIT(SEQ_DONE)},
    [SEQ_FETCH] = {"fetch", 0, BIT(SEQ_READY) | BIT(SEQ_DONE)},
    [SEQ_READY] = {"ready", 0, BIT(SEQ_PREFILL) | BIT(SEQ_DONE)},
    [SEQ_PREFILL] = {"prefill", 0, BIT(SEQ_DECODE) | BIT(SEQ_DONE)},
    [SEQ_DECODE] = {"decode", 0, BIT(SEQ_DONE)},
    [SEQ_DONE] = {"done", SM_FINAL, 0},
};

uint32_t gen_seq_need_pages(const struct gen_seq *s, uint32_t block_tok) {
    uint32_t rows = s->n_prompt + s->max_new - (s->max_new > 0);
    return (rows + block_tok - 1) / block_tok;
}

int gen_seq_init(struct gen_seq *s, struct gen_request_priv *p, struct page_pool *pool,
                 size_t page_bytes, uint32_t block_tok, size_t max_piece) {
    s->p = p;
    s->chain = kv_chain_ref(p->chain);
    s->n_prompt = (uint32_t)p->ids.n;
    s->max_new = p->max_new;
    s->n_lookup = (uint32_t)block_count_lookup(s->n_prompt, block_tok);
    memcpy(s->traceparent, p->pub.trace_id, sizeof(s->traceparent));
    s->traceparent[sizeof(s->traceparent) - 1] = '\0';
    sm_init(&s->sm, gen_seq_states, SEQ_NR, SEQ_WAIT);
    s->f_page = alloc_array(s->n_lookup, sizeof(*s->f_page));
    s->f_dst = alloc_array(s->n_lookup, sizeof(*s->f_dst));
    s->f_status = alloc_array(s->n_lookup, sizeof(*s->f_status));
    s->arrived = alloc_array(s->n_lookup, sizeof(*s->arrived));
    if (!s->f_page || !s->f_dst || !s->f_status || !s->arrived)
        return ERR_NOMEM;
    int rv = stop_init(&s->stop, p->pub.stop, p->pub.n_stop, max_piece);
    if (rv < 0)
        return rv;
    return seq_pages_init(&s->pages, pool, gen_seq_need_pages(s, block_tok), page_bytes);
}

void gen_seq_free(struct gen_seq *s) {
    CHECK(!s->pages.page || s->pages.n == 0); /* the pool is the engine thread's */
    seq_pages_fini(&s->pages);
    stop_fini(&s->stop);
    kv_chain_unref(s->chain);
    free(s->f_page);
    free(s->f_dst);
    free(s->f_status);
    free(s->arrived);
    free(s);
}

/* All pages it can ever need, now or not at all: what runs never waits for a page that another one holds,
 * so that requests can't wait for each other in a circle. */
bool gen_seq_admit(struct gen_seq *s, const struct page_index *x, uint32_t block_tok) {
    if (!s->p->pub.prompt_logprobs) /* scoring needs every row's logits: computes every row */
        seq_pages_adopt(&s->pages, x, s->chain->ids, s->n_lookup);
    if (!seq_pages_reserve(&s->pages, gen_seq_need_pages(s, block_tok))) {
        seq_pages_clear(&s->pages);
        return false;
    }
    s->n_named = s->n_put = s->pages.n;
    s->pos = s->n_local = s->pages.n * block_tok;
    return true;
}

/* Only between blocks and while no fetch has pages on loan: a page that is half written, or lent, is this
 * sequence's own and must not be replaced by another's of the same id. */
uint32_t gen_seq_adopt_more(struct gen_seq *s, const struct page_index *x, uint32_t block_tok) {
    if (s->op_active || s->p->pub.prompt_logprobs || s->pos % block_tok ||
        s->pages.n != s->pos / block_tok)
        return 0;
    uint32_t rows = block_tok * seq_pages_adopt(&s->pages, x, s->chain->ids, s->n_lookup);
    s->pos += rows;
    s->n_local += rows;
    s->n_named = MAX(s->n_named, s->pages.n);
    if (rows) /* whoever computed them puts them */
        s->n_put = MAX(s->n_put, s->pages.n);
    return rows;
}

void gen_seq_fetch_begin(struct gen_seq *s, uint32_t first, uint32_t n) {
    CHECK(first == s->pages.n && first + n <= s->n_lookup);
    s->f_first = s->f_next = first;
    s->f_n = n;
    s->f_gap = false;
    s->n_seen = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->f_page[i] = seq_pages_lend(&s->pages);
        CHECK(s->f_page[i] != PAGE_NONE); /* within the reservation */
        s->f_dst[i] = page_pool_bytes(s->pages.pool, s->f_page[i]);
        s->f_status[i] = BLOCK_PENDING;
    }
}

void gen_seq_fetch_mark(struct gen_seq *s, uint32_t i, int rv) {
    CHECK(i < s->f_n);
    if (s->f_status[i] == BLOCK_PENDING)
        s->f_status[i] = rv == 0 ? BLOCK_OK : BLOCK_BAD;
}

/* Puts fetched block b into the table; the prefix then reaches its end. Rows of b that were computed
 * meanwhile (pos inside it) are replaced by the same bits: that is what exactness is for. It is indexed at
 * once, being verified; whoever computed it has put it. */
static void install(struct gen_seq *s, struct page_index *x, uint32_t b, uint32_t block_tok) {
    uint32_t i = b - s->f_first, end = (b + 1) * block_tok;
    seq_pages_install(&s->pages, b, s->f_page[i]);
    s->f_status[i] = BLOCK_USED;
    s->n_remote += end - s->pos;
    s->pos = end;
    (void)page_index_insert(x, &s->chain->ids[b], s->pages.page[b]);
    s->n_named = MAX(s->n_named, b + 1);
    s->n_put = MAX(s->n_put, b + 1);
}

/* Blocks are taken in prefix order alone: a block behind a gap would be attended to by rows whose own
 * prefix is not there. f_next never goes back; a gap ends the run for good, since what is computed from
 * there on is this sequence's. */
bool gen_seq_absorb(struct gen_seq *s, struct page_index *x, uint32_t block_tok) {
    for (; !s->f_gap && s->f_next < s->f_first + s->f_n; s->f_next++) {
        uint32_t b = s->f_next, i = b - s->f_first;
        if ((b + 1) * block_tok <= s->pos)
            continue;                           /* computed before it came */
        s->f_gap = s->f_status[i] == BLOCK_BAD; /* ends the run, whatever stands behind it */
        if (s->f_gap)
            return true;
        if (s->f_status[i] != BLOCK_OK || b * block_tok > s->pos)
            return false;
        install(s, x, b, block_tok);
    }
    return true;
}

void gen_seq_fetch_end(struct gen_seq *s) {
    for (uint32_t i = 0; i < s->f_n; i++)
        if (s->f_status[i] != BLOCK_USED)
            seq_pages_give_back(&s->pages, s->f_page[i]);
    s->f_n = 0;
}

/* A page on loan to a fetch is written by the loop's thread and stands in no table until it is installed, so
 * nobody computes into it. When all that is reserved is on loan, rows wait until some of it is back. */
uint32_t gen_seq_writable(struct gen_seq *s, uint32_t want, uint32_t block_tok) {
    uint32_t last = (s->pos + want - 1) / block_tok;
    for (uint32_t b = s->pos / block_tok; b <= last; b++)
        if (!seq_pages_writable(&s->pages, b))
            return b * block_tok > s->pos ? b * block_tok - s->pos : 0;
    return want;
}

static void set_logprob(struct gen_logprob *lp, struct sampler *smp, const float *logits,
                        int32_t id, uint32_t n_top, struct sample_logprob *top) {
    lp->logprob = sampler_logprobs(smp, logits, id, n_top, top);
    lp->n_top = n_top;
    lp->top = n_top ? top : NULL;
}

enum finish_reason gen_seq_accept(struct gen_seq *s, const struct tokenizer *tok,
                                  struct sampler *smp, const float *logits, uint32_t n_vocab) {
    struct gen_request_priv *p = s->p;
    struct gen_request *r = &p->pub;
    if (s->n_out == 0 && r->debug_logits) {
        digest_sha256(logits, n_vocab * sizeof(*logits), r->usage.logits_digest);
        r->usage.has_logits_digest = true;
    }
    if (s->max_new == 0)
        return FINISH_LENGTH;
    int32_t id = sampler_pick(smp, &r->sample, logits, (uint64_t)s->n_prompt + s->n_out);
    struct gen_token *t = &p->tok[s->n_out];
    char *text = p->text + p->text_len;
    *t = (struct gen_token){.id = id, .text = text};
    if (r->logprobs)
        set_logprob(&t->lp, smp, logits, id, r->n_top,
                    r->n_top ? p->top + (size_t)s->n_out * r->n_top : NULL);
    s->n_out++;
    enum finish_reason why = FINISH_NONE;
    size_t n = 0;
    if (!r->ignore_eog && tokenizer_is_eog(tok, id)) {
        why = FINISH_STOP;
    } else if (!tokenizer_is_control(tok, id)) { /* control tokens are not text */
        struct tok_str piece = tokenizer_piece(tok, id);
        n = stop_feed(&s->stop, piece.p, piece.len, text);
        why = s->stop.hit ? FINISH_STOP : FINISH_NONE;
    }
    if (why == FINISH_NONE && s->n_out == s->max_new)
        why = FINISH_LENGTH;
    if (why != FINISH_NONE && !s->stop.hit)
        n += stop_flush(&s->stop, text + n);
    t->text_len = (uint32_t)n;
    p->text_len += n;
    CHECK(p->text_len <= p->text_cap);
    return why;
}

void gen_seq_score(struct gen_seq *s, struct sampler *smp, const float *logits, uint32_t n_vocab,
                   uint32_t pos0, uint32_t n) {
    struct gen_request_priv *p = s->p;
    uint32_t n_top = p->pub.n_top;
    for (uint32_t i = 0; i < n && pos0 + i + 1 < s->n_prompt; i++) {
        uint32_t at = pos0 + i + 1; /* row r predicts token r+1 */
        set_logprob(&p->prompt_lp[at], smp, logits + (size_t)i * n_vocab, p->ids.id[at], n_top,
                    p->prompt_top + (size_t)at * n_top);
    }
}
