/* engine_step.c - the engine thread: mail, admission, one forward pass, tokens; and again. */
#include <time.h>

#include "common/check.h"
#include "worker/sched/engine_priv.h"

#define WARM_ROWS 64u
/* FETCH_ALWAYS waits this long for a lookup's answer. */
#define LOOKUP_ALWAYS_MS 2000u
/* Nobody waits so long for it, but an answer until then says that the service lives. */
#define LOOKUP_DEADLINE_MS 500u
/* Fewer rows say more about reading the weights than about prefill. */
#define RATE_MIN_ROWS 16u
/* Prompts' rows of a step, at least: fewer would only read the weights again and again. */
#define CHUNK_MIN_ROWS 16u
/* Nobody decodes: a step may be this much longer, only newcomers wait for it. */
#define CHUNK_ALONE 4u
/* Requests behind one that waits for pages that are looked at each round. */
#define OVERTAKE_SEEN 16u
#define IDLE_WAIT_NS (250 * NS_PER_MS)
/* Pages backed by memory from the start; a first hit need not wait for the kernel to clear more. */
#define PREFAULT_BYTES ((size_t)128 << 20)

int engine_core_init(struct engine *e, struct errbuf *eb) {
    const struct engine_cfg *c = &e->cfg;
    list_init(&e->waiting);
    list_init(&e->active);
    list_init(&e->released);
    e->limits = (struct batch_limits){
        .max_rows = c->chunk_tok, .max_seqs = c->max_seqs, .max_logit_rows = c->max_logit_rows};
    int rv = page_pool_new(&e->pool, c->n_pages, c->fwd.page_bytes, eb);
    if (rv < 0)
        return rv;
    e->digest = digest_new();
    e->logits = alloc_array((size_t)c->max_logit_rows * c->fwd.n_vocab, sizeof(*e->logits));
    e->runnable = alloc_array(c->max_seqs, sizeof(*e->runnable));
    e->cand = alloc_array(c->max_seqs, sizeof(*e->cand));
    e->fseq = alloc_array(c->max_seqs, sizeof(*e->fseq));
    e->in_step = alloc_array(c->max_seqs, sizeof(*e->in_step));
    rv = page_index_new(&e->index, e->pool);
    if (rv == 0)
        rv = sampler_new(&e->sampler, c->fwd.n_vocab);
    if (rv == 0)
        rv = engine_puts_init(e);
    if (rv < 0 || !e->digest || !e->logits || !e->runnable || !e->cand || !e->fseq || !e->in_step)
        return err_set(eb, ERR_NOMEM, "engine");
    METRIC_SET(c->met, kv_pages, c->n_pages);
    return 0;
}

void engine_core_fini(struct engine *e) {
    engine_puts_fini(e);
    sampler_free(e->sampler);
    page_index_free(e->index);
    page_pool_free(e->pool);
    digest_free(e->digest);
    free(e->logits);
    free(e->runnable);
    free(e->cand);
    free(e->fseq);
    free(e->in_step);
}

static uint64_t now_ns(const struct engine *e) {
    return clock_mono_ns(e->cfg.clk);
}

static double seconds(uint64_t from_ns, uint64_t to_ns) {
    return (double)(to_ns - from_ns) * 1e-9;
}

/* --- what goes to the loop --- */

static void fill_tokens(struct gen_seq *s, void *arg) {
    (void)arg;
    s->out.n_out = s->n_out;
}

static void fill_lookup(struct gen_seq *s, void *arg) {
    s->out.lookup = true;
    s->out.have = s->pages.n;
    s->out.deadline_ms = *(uint32_t *)arg;
}

static void fill_fetch(struct gen_seq *s, void *arg) {
    (void)arg;
    s->out.fetch = true;
    s->out.first = s->f_first;
    s->out.n = s->f_n;
}

static void fill_cancel(struct gen_seq *s, void *arg) {
    s->out.cancel = true;
    s->out.cancel_late = *(bool *)arg;
}

static void fill_touch(struct gen_seq *s, void *arg) {
    (void)arg;
    s->out.touch = true;
    s->out.n_touch = s->pages.n;
}

static void fill_done(struct gen_seq *s, void *arg) {
    s->out.n_out = s->n_out;
    s->out.done = true;
    s->out.why = *(enum finish_reason *)arg;
}

static void fill_give_lease(struct gen_seq *s, void *arg) {
    (void)arg;
    s->out.give_lease = true;
}

static void fill_released(struct gen_seq *s, void *arg) {
    (void)arg;
    s->out.released = true;
}

static void op_cancel(struct engine *e, struct gen_seq *s, bool late) {
    if (!s->op_active || s->op_canceled)
        return;
    s->op_canceled = true;
    engine_post(e, s, fill_cancel, &late);
}

/* Late, and computing was through before anything at all had come: what the breaker counts. */
static bool was_silent(const struct gen_seq *s) {
    return s->is_late && s->n_seen == 0;
}

/* --- the end of a sequence --- */

/* Lets go of everything once the service has. */
static void release_if_over(struct engine *e, struct gen_seq *s) {
    if (sm_at(&s->sm) != SEQ_DONE || s->op_active)
        return;
    list_remove(&s->link);
    seq_pages_clear(&s->pages);
    list_push_back(&e->released, &s->link); /* not before this round's last look at s */
}

static void post_released(struct engine *e) {
    struct list *l;
    while ((l = list_pop_front(&e->released))) {
        struct gen_seq *s = LIST_ENTRY(l, struct gen_seq, link);
        engine_post(e, s, fill_released, NULL);
    }
}

static void count_end(struct engine *e, struct gen_seq *s, enum finish_reason why, uint64_t now) {
    struct worker_metrics *m = e->cfg.met;
    struct gen_usage *u = &s->p->pub.usage;
    if (why == FINISH_STOP)
        METRIC_INC(m, requests_stop_total);
    else if (why == FINISH_LENGTH)
        METRIC_INC(m, requests_length_total);
    else if (why == FINISH_CANCELED)
        METRIC_INC(m, requests_canceled_total);
    else
        METRIC_INC(m, requests_error_total);
    if (s->was_waiting_gauge)
        METRIC_ADD(m, requests_waiting, -1);
    s->was_waiting_gauge = false;
    METRIC_OBSERVE(m, e2e_request_latency_seconds, seconds(u->submitted_ns, now));
    if (u->first_token_ns)
        METRIC_OBSERVE(m, request_decode_time_seconds, seconds(u->first_token_ns, now));
    METRIC_OBSERVE(m, request_generation_tokens, (double)s->n_out);
}

static void finish(struct engine *e, struct gen_seq *s, enum finish_reason why) {
    uint32_t state = sm_at(&s->sm);
    if (state == SEQ_DONE)
        return;
    uint64_t now = now_ns(e);
    struct gen_usage *u = &s->p->pub.usage;
    if (state == SEQ_PREFILL || state == SEQ_DECODE)
        e->n_running--;
    if (state != SEQ_WAIT)
        e->n_admitted--;
    else
        e->n_waiting--;
    u->n_completion = s->n_out;
    u->n_local = s->n_local;
    u->n_remote = s->n_remote;
    u->done_ns = now;
    count_end(e, s, why, now);
    sm_move(&s->sm, SEQ_DONE);
    s->p = NULL; /* the API may free it from the post on */
    engine_post(e, s, fill_done, &why);
    op_cancel(e, s, was_silent(s) && why != FINISH_CANCELED);
    release_if_over(e, s);
}

static void fail(struct engine *e, struct gen_seq *s, int rv, const char *what) {
    if (sm_at(&s->sm) == SEQ_DONE)
        return;
    s->p->pub.err = err_set(&s->p->pub.eb, rv, "%s: %s", what, err_text(rv));
    finish(e, s, FINISH_ERROR);
}

/* --- admission and the prefix path --- */

static void become_ready(struct gen_seq *s) {
    if (sm_at(&s->sm) != SEQ_READY)
        sm_move(&s->sm, SEQ_READY);
}

static uint64_t lookup_patience_ns(const struct engine *e, const struct gen_seq *s) {
    if (e->cfg.fetch == FETCH_ALWAYS)
        return LOOKUP_ALWAYS_MS * NS_PER_MS;
    return prefix_patience_ns(&e->rates, (s->n_lookup - s->pages.n) * e->cfg.block_tok);
}

static void start_lookup(struct engine *e, struct gen_seq *s) {
    uint32_t deadline_ms = e->cfg.fetch == FETCH_ALWAYS ? LOOKUP_ALWAYS_MS : LOOKUP_DEADLINE_MS;
    s->f_begin_ns = now_ns(e);
    s->is_late = false;
    s->op_active = true;
    s->op_canceled = false;
    engine_post(e, s, fill_lookup, &deadline_ms);
}

static void admit(struct engine *e, struct gen_seq *s) {
    list_remove(&s->link);
    list_push_back(&e->active, &s->link);
    e->n_admitted++;
    bool scoring = s->p->pub.prompt_logprobs;
    if (e->cfg.remote && !scoring && s->pages.n < s->n_lookup && e->cfg.fetch != FETCH_NEVER) {
        METRIC_ADD(e->cfg.met, external_queries_total, s->n_prompt - s->pos);
        sm_move(&s->sm, SEQ_LOOKUP);
        start_lookup(e, s);
        return;
    }
    if (e->cfg.remote && s->pages.n && now_ns(e) < e->audit_ns)
        start_lookup(e,
                     s); /* nobody waits for it: does the service still have what is owned here? */
    else if (e->cfg.remote &&
             s->pages.n) /* served from own pages: keep it hot at the service, too */
        engine_post(e, s, fill_touch, NULL);
    become_ready(s);
}

/* Of a line that does not move: a short one may pass its head, so often that the head's wait stays bounded
 * by its own turn and that many short requests. */
static bool may_pass(const struct engine *e, const struct gen_seq *head, const struct gen_seq *s) {
    uint32_t B = e->cfg.block_tok;
    return head->n_passed < ENGINE_OVERTAKE_MAX &&
           gen_seq_need_pages(s, B) <= gen_seq_need_pages(head, B) / 4;
}

/* Head of the line first: no request starves behind smaller ones. */
static void admit_waiting(struct engine *e) {
    struct gen_seq *head = NULL; /* the one that does not fit */
    uint32_t n_seen = 0;
    LIST_FOREACH_SAFE(&e->waiting, it, tmp) {
        struct gen_seq *s = LIST_ENTRY(it, struct gen_seq, link);
        if (e->n_admitted >= 2 * e->cfg.max_seqs || n_seen == OVERTAKE_SEEN)
            break;
        n_seen += head != NULL;
        if (head && !may_pass(e, head, s))
            continue;
        if (!gen_seq_admit(s, e->index, e->cfg.block_tok)) {
            head = head ? head : s;
            continue;
        }
        if (head) {
            head->n_passed++;
            METRIC_INC(e->cfg.met, requests_overtaking_total);
        }
        e->n_waiting--;
        admit(e, s);
    }
    e->pages_short = head != NULL;
}

static void on_lookup_done(struct engine *e, struct gen_seq *s, int rv, uint32_t n_prefix,
                           uint32_t first_absent) {
    s->op_active = false;
    if (rv == 0 && sm_at(&s->sm) != SEQ_DONE && first_absent < s->n_put) {
        uint32_t n_put = s->n_put;
        s->n_put = first_absent; /* owned here, lacking there: put it again */
        engine_puts_add(e, s, n_put);
    }
    if (sm_at(&s->sm) != SEQ_LOOKUP) { /* late, finished, or nobody waited */
        engine_post(e, s, fill_give_lease, NULL);
        release_if_over(e, s);
        return;
    }
    uint32_t have = s->pages.n, B = e->cfg.block_tok;
    uint32_t n = rv == 0 && n_prefix > have ? MIN(n_prefix, s->n_lookup) - have : 0;
    METRIC_ADD(e->cfg.met, lookup_resident_total, n);
    if (n &&
        !prefix_decide_fetch(e->cfg.fetch, &e->rates, (uint64_t)n * e->cfg.fwd.page_bytes, n * B)) {
        METRIC_INC(e->cfg.met, fetch_declined_total);
        n = 0;
    }
    if (!n) {
        engine_post(e, s, fill_give_lease, NULL); /* slots that nobody will read */
        become_ready(s);
        return;
    }
    gen_seq_fetch_begin(s, have, n);
    sm_move(&s->sm, SEQ_FETCH);
    s->op_active = true;
    s->op_canceled = false;
    s->f_last_ns = now_ns(e);
    engine_post(e, s, fill_fetch, NULL);
}

/* Takes up what a fetch has brought; ends it when the rest is of no use. */
static void absorb(struct engine *e, struct gen_seq *s) {
    if (!gen_seq_absorb(s, e->index, e->cfg.block_tok))
        return;
    if (s->f_gap && s->op_active && !s->op_canceled)
        METRIC_INC(e->cfg.met,
                   fetch_failed_total); /* what is canceled for it is not counted again */
    op_cancel(e, s, was_silent(s));
    if (sm_at(&s->sm) == SEQ_FETCH)
        become_ready(s);
}

static void on_fetch_end(struct engine *e, struct gen_seq *s, int rv) {
    uint32_t bad = 0;
    for (uint32_t i = 0; i < s->f_n; i++)
        bad += s->f_status[i] == BLOCK_BAD || s->f_status[i] == BLOCK_PENDING;
    if (bad && !s->op_canceled)
        METRIC_INC(e->cfg.met, fetch_failed_total);
    (void)rv;
    if (sm_at(&s->sm) != SEQ_DONE)
        (void)gen_seq_absorb(s, e->index, e->cfg.block_tok);
    s->op_active = false;
    gen_seq_fetch_end(s);
    if (sm_at(&s->sm) == SEQ_FETCH)
        become_ready(s);
    release_if_over(e, s);
}

static struct prefix_progress progress(const struct engine *e, const struct gen_seq *s) {
    uint64_t now = now_ns(e);
    return (struct prefix_progress){
        .elapsed_ns = now - s->f_begin_ns,
        .idle_ns = now - s->f_last_ns,
        .n_done = s->f_next - s->f_first,
        .n_blocks = s->f_n,
        .n_tok = s->f_n * e->cfg.block_tok,
    };
}

/* Returns ns until s should be looked at again. */
static uint64_t check_late(struct engine *e, struct gen_seq *s) {
    uint32_t state = sm_at(&s->sm);
    if (state == SEQ_LOOKUP) {
        uint64_t elapsed = now_ns(e) - s->f_begin_ns, patience = lookup_patience_ns(e, s);
        if (elapsed <= patience)
            return patience - elapsed + 1;
    } else if (state == SEQ_FETCH) {
        struct prefix_progress p = progress(e, s);
        if (!prefix_is_late(e->cfg.fetch, &e->rates, &p))
            return prefix_check_after_ns(e->cfg.fetch, &e->rates, &p);
    } else {
        return IDLE_WAIT_NS;
    }
    METRIC_INC(e->cfg.met, fetch_late_total);
    s->is_late = true; /* and goes on: what still comes may be ahead of computing */
    become_ready(s);
    return 0;
}

static uint64_t check_all_late(struct engine *e) {
    uint64_t wait = IDLE_WAIT_NS;
    LIST_FOREACH_SAFE(&e->active, it, tmp) {
        struct gen_seq *s = LIST_ENTRY(it, struct gen_seq, link);
        if (s->op_active)
            wait = MIN(wait, check_late(e, s));
    }
    return wait;
}

/* --- mail --- */

static void read_mail(struct engine *e, struct gen_seq *s, const struct seq_mail_in *m) {
    if (m->start) {
        list_push_back(&e->waiting, &s->link);
        e->n_waiting++;
        s->was_waiting_gauge = true;
    }
    if (m->lookup_done)
        on_lookup_done(e, s, m->lookup_rv, m->n_prefix, m->first_absent);
    bool news = s->n_seen < m->n_arrived;
    for (; s->n_seen < m->n_arrived; s->n_seen++)
        gen_seq_fetch_mark(s, s->arrived[s->n_seen].i, s->arrived[s->n_seen].rv);
    if (news && sm_at(&s->sm) != SEQ_DONE) {
        s->f_last_ns = now_ns(e);
        absorb(e, s);
    }
    if (m->cancel)
        finish(e, s, FINISH_CANCELED);
    if (m->fetch_end)
        on_fetch_end(e, s, m->fetch_rv);
}

/* False: told to stop. Waits up to wait_ns for mail. */
static bool take_mail(struct engine *e, uint64_t wait_ns) {
    struct list puts;
    pthread_mutex_lock(&e->lock);
    if (wait_ns && list_empty(&e->in_seqs) && list_empty(&e->in_puts) && !e->stop) {
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        uint64_t at = (uint64_t)ts.tv_nsec + wait_ns;
        ts.tv_sec += (time_t)(at / NS_PER_S);
        ts.tv_nsec = (long)(at % NS_PER_S);
        pthread_cond_timedwait(&e->wake, &e->lock, &ts);
    }
    bool stop = e->stop;
    list_move(&e->in_puts, &puts);
    e->audit_ns = e->audit_until_ns;
    e->rates.fetch_t0_ns = e->fetch_news.fetch_t0_ns;
    e->rates.fetch_ns_per_byte = e->fetch_news.fetch_ns_per_byte;
    struct list *l;
    while ((l = list_pop_front(&e->in_seqs))) {
        struct gen_seq *s = CONTAINER_OF(l, struct gen_seq, in.link);
        struct seq_mail_in m = s->in;
        s->in.queued = s->in.start = s->in.cancel = s->in.lookup_done = s->in.fetch_end = false;
        pthread_mutex_unlock(&e->lock);
        read_mail(e, s, &m);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    while ((l = list_pop_front(&puts)))
        engine_puts_back(e, LIST_ENTRY(l, struct put_job, link));
    return !stop;
}

/* --- one step --- */

static void begin_prefill(struct engine *e, struct gen_seq *s) {
    uint64_t now = now_ns(e);
    struct gen_usage *u = &s->p->pub.usage;
    struct worker_metrics *m = e->cfg.met;
    sm_move(&s->sm, SEQ_PREFILL);
    e->n_running++;
    u->started_ns = s->started_ns = now;
    METRIC_OBSERVE(m, request_queue_time_seconds, seconds(u->submitted_ns, now));
    METRIC_OBSERVE(m, request_prompt_tokens, (double)s->n_prompt);
    if (s->was_waiting_gauge)
        METRIC_ADD(m, requests_waiting, -1);
    s->was_waiting_gauge = false;
}

/* Fills runnable[] and cand[]; a READY sequence moves up when a slot is free. */
static uint32_t gather(struct engine *e) {
    uint32_t n = 0;
    LIST_FOREACH(&e->active, it) {
        struct gen_seq *s = LIST_ENTRY(it, struct gen_seq, link);
        if (sm_at(&s->sm) == SEQ_READY && e->n_running < e->cfg.max_seqs)
            begin_prefill(e, s);
        if (sm_at(&s->sm) != SEQ_PREFILL && sm_at(&s->sm) != SEQ_DECODE)
            continue;
        bool decode = sm_at(&s->sm) == SEQ_DECODE;
        if (!decode)
            (void)gen_seq_adopt_more(s, e->index, e->cfg.block_tok);
        e->runnable[n] = s;
        e->cand[n++] = (struct batch_cand){
            .decode = decode,
            .n_left = decode ? 1 : s->n_prompt - s->pos,
            .all_logits = !decode && s->p->pub.prompt_logprobs,
        };
    }
    return n;
}

/* One sequence's part of the step; false when its pages are still out on loan to a fetch. */
static bool add_to_step(struct engine *e, struct gen_seq *s, const struct batch_cand *c,
                        uint32_t at, float *logits) {
    uint32_t rows = gen_seq_writable(s, c->n_rows, e->cfg.block_tok);
    if (rows < c->n_rows)
        op_cancel(e, s, true); /* what it still holds is needed to compute */
    if (!rows)
        return false;
    s->n_rows = rows;
    s->step_err = 0;
    e->in_step[at] = s;
    e->fseq[at] = (struct fwd_seq){
        .tok = c->decode ? &s->p->tok[s->n_out - 1].id : s->p->ids.id + s->pos,
        .n_tok = rows,
        .pos0 = s->pos,
        .pages = s->pages.ptr,
        .n_logits = rows < c->n_rows && !c->all_logits ? 0 : MIN(c->n_logits, rows),
        .logits = logits,
        .decode = c->decode,
        .err = &s->step_err,
    };
    return true;
}

/* Names what became full, offers it to the index and to the service. */
static void after_rows(struct engine *e, struct gen_seq *s) {
    uint32_t B = e->cfg.block_tok, n_full = s->pos / B;
    uint32_t n_prompt_full = s->n_prompt / B;
    if (n_full <= s->n_named)
        return;
    if (n_full > n_prompt_full && e->cfg.fwd.decode_private)
        n_full = n_prompt_full;   /* a page with a decoded row stays private */
    if (n_full > n_prompt_full) { /* ids of the prompt's blocks are there already */
        const struct block_chain_cfg bc = {
            .namespace_digest = e->cfg.namespace_digest,
            .salt = s->p->pub.salt,
            .n_public_blocks = s->p->pub.n_public_blocks,
            .block_tok = B,
        };
        for (uint32_t b = MAX(s->n_named, n_prompt_full); b < n_full; b++) {
            int32_t tok[1024];
            for (uint32_t i = 0; i < B; i++) {
                uint32_t at = b * B + i;
                tok[i] = at < s->n_prompt ? s->p->ids.id[at] : s->p->tok[at - s->n_prompt].id;
            }
            block_chain_next(e->digest, &bc, tok, b, s->chain->ids);
        }
    }
    for (uint32_t b = s->n_named; b < n_full; b++)
        (void)page_index_insert(e->index, &s->chain->ids[b], s->pages.page[b]);
    s->n_named = MAX(s->n_named, n_full);
    engine_puts_add(e, s, n_full);
}

static void first_token(struct engine *e, struct gen_seq *s, uint64_t now) {
    struct worker_metrics *m = e->cfg.met;
    struct gen_usage *u = &s->p->pub.usage;
    u->first_token_ns = now;
    METRIC_OBSERVE(m, time_to_first_token_seconds, seconds(u->submitted_ns, now));
    METRIC_OBSERVE(m, request_prefill_time_seconds, seconds(s->started_ns, now));
    METRIC_ADD(m, prompt_tokens_total, s->n_prompt);
    METRIC_ADD(m, prompt_tokens_local_total, s->n_local);
    METRIC_ADD(m, prompt_tokens_remote_total, s->n_remote);
    METRIC_ADD(m, prompt_tokens_reused_total, s->n_local + s->n_remote);
    METRIC_ADD(m, prompt_tokens_computed_total, s->n_prompt - s->n_local - s->n_remote);
    sm_move(&s->sm, SEQ_DECODE);
}

/* Rows of s were computed: advance, sample when its logits are there. */
static void after_step(struct engine *e, struct gen_seq *s, const struct fwd_seq *f, uint64_t now) {
    bool prefill = sm_at(&s->sm) == SEQ_PREFILL;
    uint32_t pos0 = s->pos;
    s->pos += f->n_tok;
    after_rows(e, s);
    if (prefill && s->op_active && s->f_n)
        absorb(e,
               s); /* a block that came out of order may follow now, or all of them are overtaken */
    if (!f->n_logits)
        return;
    if (prefill && s->p->pub.prompt_logprobs)
        gen_seq_score(s, e->sampler, f->logits, e->cfg.fwd.n_vocab, pos0, f->n_tok);
    if (prefill && s->pos < s->n_prompt)
        return;
    if (prefill)
        first_token(e, s, now);
    else
        METRIC_OBSERVE(e->cfg.met, inter_token_latency_seconds, seconds(s->last_tok_ns, now));
    s->last_tok_ns = now;
    const float *last = f->logits + (size_t)(f->n_logits - 1) * e->cfg.fwd.n_vocab;
    uint32_t n_before = s->n_out;
    enum finish_reason why = gen_seq_accept(s, e->cfg.tok, e->sampler, last, e->cfg.fwd.n_vocab);
    METRIC_ADD(e->cfg.met, generation_tokens_total, s->n_out - n_before);
    if (why != FINISH_NONE)
        finish(e, s, why);
    else
        engine_post(e, s, fill_tokens, NULL);
}

/* Rows of prompts that a step may take on: as many as were measured to fit chunk_ms, or the time of a step
 * of decodes where that is longer (a large model reads its weights for so long anyway). */
static uint32_t prefill_rows(const struct engine *e, const struct batch_cand *c, uint32_t n) {
    double per_row = e->rates.prefill_ns_per_tok;
    uint32_t max = e->cfg.chunk_tok, factor = CHUNK_ALONE;
    if (!e->cfg.chunk_ms || !(per_row > 0))
        return max;
    for (uint32_t i = 0; i < n; i++)
        if (c[i].decode)
            factor = 1;
    double ns = MAX((double)e->cfg.chunk_ms * NS_PER_MS * factor, e->decode_step_ns);
    return (uint32_t)MIN(MAX(ns / per_row, (double)CHUNK_MIN_ROWS), (double)max);
}

static void measure(struct engine *e, const struct batch_plan *p, uint32_t n_rows, uint64_t ns) {
    uint64_t avg = atomic_load_explicit(&e->step_ns, memory_order_relaxed);
    atomic_store_explicit(&e->step_ns, avg - avg / 8 + ns / 8, memory_order_relaxed);
    METRIC_INC(e->cfg.met, steps_total);
    METRIC_ADD(e->cfg.met, step_rows_total, n_rows);
    if (p->n_prefill && n_rows >= RATE_MIN_ROWS)
        prefix_rates_add_prefill(&e->rates, n_rows, ns);
    if (!p->n_prefill)
        e->decode_step_ns += ((double)ns - e->decode_step_ns) / 8;
}

/* Returns false when there was nothing to compute. */
static bool step(struct engine *e) {
    uint32_t n = gather(e), n_seqs = 0, n_rows = 0;
    e->limits.max_prefill_rows = prefill_rows(e, e->cand, n);
    struct batch_plan p = batch_choose(&e->limits, e->cand, n, e->rr);
    float *logits = e->logits;
    e->rr = p.next_rr;
    for (uint32_t i = 0; i < n; i++) {
        if (!e->cand[i].n_rows || !add_to_step(e, e->runnable[i], &e->cand[i], n_seqs, logits))
            continue;
        logits += (size_t)e->fseq[n_seqs].n_logits * e->cfg.fwd.n_vocab;
        n_rows += e->fseq[n_seqs].n_tok;
        n_seqs++;
    }
    if (!n_seqs)
        return false;
    uint64_t begin = now_ns(e);
    int rv = e->cfg.fwd.step(e->cfg.fwd.ctx, e->fseq, n_seqs);
    uint64_t end = now_ns(e);
    measure(e, &p, n_rows, end - begin);
    for (uint32_t i = 0; i < n_seqs; i++) {
        int err = rv < 0 ? rv : e->in_step[i]->step_err;
        if (err == ERR_NUMERIC)
            METRIC_INC(e->cfg.met, requests_numeric_total);
        if (err < 0) /* and so its rows are never named: neither indexed nor put */
            fail(e, e->in_step[i], err, "forward pass");
        else
            after_step(e, e->in_step[i], &e->fseq[i], end);
    }
    return true;
}

static void gauges(struct engine *e) {
    struct page_pool_stats st = page_pool_stats(e->pool);
    struct worker_metrics *m = e->cfg.met;
    METRIC_SET(m, requests_running, e->n_running);
    METRIC_SET(m, requests_waiting_pages, e->pages_short ? e->n_waiting : 0);
    METRIC_SET(m, kv_pages_used, st.n_used);
    METRIC_SET(m, kv_pages_cached, st.n_cached);
    METRIC_SET(m, kv_pages_reserved, st.n_reserved);
    METRIC_SET(m, kv_pages_evicted_total, st.n_evicted);
    METRIC_SETF(m, kv_usage_ratio, (double)st.n_used / st.n_pages);
}

/* A short prefill over scratch pages: touches the weights, and lateness has something to compare with
 * from the first request on. */
static void warm_up(struct engine *e) {
    uint32_t B = e->cfg.block_tok;
    uint32_t rows = MIN(MIN(WARM_ROWS, e->cfg.chunk_tok), MIN(e->cfg.max_ctx, e->cfg.n_pages * B));
    uint8_t *ptr[WARM_ROWS];
    uint32_t page[WARM_ROWS], n = (rows + B - 1) / B;
    int32_t tok[WARM_ROWS] = {0};
    if (rows < RATE_MIN_ROWS)
        return;
    for (uint32_t i = 0; i < n; i++) {
        page[i] = page_pool_take(e->pool);
        ptr[i] = page_pool_bytes(e->pool, page[i]);
    }
    const struct fwd_seq f = {.tok = tok, .n_tok = rows, .pages = ptr};
    for (int round = 0; round < 2; round++) { /* the first one pays for the page faults */
        uint64_t begin = now_ns(e);
        if (e->cfg.fwd.step(e->cfg.fwd.ctx, &f, 1) < 0)
            break;
        e->rates.prefill_ns_per_tok = 0;
        prefix_rates_add_prefill(&e->rates, rows, now_ns(e) - begin);
    }
    for (uint32_t i = 0; i < n; i++)
        page_pool_unref(e->pool, page[i]);
}

void engine_run(struct engine *e) {
    uint64_t wait = 0;
    page_pool_prefault(e->pool, PREFAULT_BYTES);
    warm_up(e);
    atomic_store_explicit(&e->heartbeat_ns, now_ns(e), memory_order_relaxed);
    atomic_store(&e->is_warm, true);
    while (take_mail(e, wait)) {
        atomic_store_explicit(&e->heartbeat_ns, now_ns(e), memory_order_relaxed);
        admit_waiting(e);
        wait = check_all_late(e);
        engine_poke_loop(e); /* lookups and fetches run while the others compute */
        if (step(e))
            wait = 0;
        gauges(e);
        post_released(e);
        engine_poke_loop(e);
    }
    CHECK(list_empty(&e->waiting) && list_empty(&e->active));
}
