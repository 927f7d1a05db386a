/* engine_thread.c - the engine seen from the loop: submit, mail both ways, lookups, fetches, puts, the end.
 *
 * Closing: every request is canceled; when the last sequence has been released and puts and touches have
 * ended, the thread is told to stop and joined, then the two handles are closed, then the callback runs. */
#include <pthread.h>
#include <time.h>
#include <uv.h>

#include "common/check.h"
#include "worker/kv/prefix_touch.h"
#include "worker/sched/engine_priv.h"

#define TICK_MS TOUCH_EVERY_MS
/* Lateness ends a fetch long before; this only bounds a call that nobody waits for any more. */
#define FETCH_DEADLINE_MS 60000u
#define AUDIT_NS (60 * NS_PER_S)

struct engine_loop {
    struct engine *e;
    uv_async_t async;
    uv_timer_t tick;
    pthread_t thread;
    uint32_t n_handles; /* open uv handles */
    uint32_t n_open;    /* accepted, on_done not yet called */
    uint32_t n_seqs;    /* gen_seqs that exist */
    struct list seqs;   /* all of them, by loop_link */
    struct prefix_put put;
    struct prefix_touch touch;
    bool draining, closing, stopped, told_warm;
    uint64_t drain_puts_until_ns; /* 0: requests are still open */
    uint64_t drain_wait_ms;
    void (*drain_cb)(void *);
    void *drain_data;
    void (*close_cb)(void *);
    void *close_data;
};

static void progress_close(struct engine *e);
static void progress_drain(struct engine *e);

/* --- mailboxes --- */

/* Loop thread; the lock is held. Mail of one sequence gathers in one place, so that a box holds each
 * sequence once at most and posting never allocates, whatever the other side is doing: flags are or-ed,
 * counts only grow. The reader takes the flags it saw and leaves the counts (n_arrived, n_out), of which
 * it remembers how far it has read. */
static struct seq_mail_in *mail_to_engine(struct gen_seq *s) {
    if (!s->in.queued) {
        s->in.queued = true;
        list_push_back(&s->e->in_seqs, &s->in.link);
    }
    pthread_cond_signal(&s->e->wake);
    return &s->in;
}

/* The loop is not woken here but at two places of a round: many posts of one step cost one wake-up. */
void engine_post(struct engine *e, struct gen_seq *s, void (*fill)(struct gen_seq *s, void *arg),
                 void *arg) {
    pthread_mutex_lock(&e->lock);
    fill(s, arg);
    if (!s->out.queued) {
        s->out.queued = true;
        list_push_back(&e->out_seqs, &s->out.link);
    }
    pthread_mutex_unlock(&e->lock);
    e->loop_news = true;
}

void engine_poke_loop(struct engine *e) {
    if (!e->loop_news)
        return;
    e->loop_news = false;
    uv_async_send(&e->loop->async);
}

/* --- lookup and fetch --- */

static void answer_lookup(struct gen_seq *s, int rv, uint32_t n_prefix, uint32_t first_absent) {
    pthread_mutex_lock(&s->e->lock);
    struct seq_mail_in *m = mail_to_engine(s);
    m->lookup_done = true;
    m->lookup_rv = rv;
    m->n_prefix = n_prefix;
    m->first_absent = first_absent;
    pthread_mutex_unlock(&s->e->lock);
}

static void on_lookup(struct prefix_fetch *f, int rv, uint32_t n_prefix, uint32_t first_absent) {
    struct gen_seq *s = CONTAINER_OF(f, struct gen_seq, op);
    if (rv < 0 && rv != ERR_CANCELED)
        METRIC_INC(s->e->cfg.met, lookup_failed_total);
    answer_lookup(s, rv, n_prefix, first_absent);
}

static void on_block(struct prefix_fetch *f, uint32_t i, int rv) {
    struct gen_seq *s = CONTAINER_OF(f, struct gen_seq, op);
    struct engine *e = s->e;
    uint64_t now = clock_mono_ns(e->cfg.clk);
    pthread_mutex_lock(&e->lock);
    struct seq_mail_in *m = mail_to_engine(s);
    /* The entry before the count, both under the lock: the engine reads entries below a count that it took
     * under the lock, then without it. Each block arrives once, so [n_lookup] entries are enough. */
    s->arrived[m->n_arrived++] = (struct seq_arrival){.i = i, .rv = rv};
    if (rv == 0) {
        m->first_ns = m->first_ns ? m->first_ns : now;
        m->last_ns = now;
        s->n_ok++;
    }
    pthread_mutex_unlock(&e->lock);
    if (rv == 0) {
        METRIC_INC(e->cfg.met, fetch_block_total);
        METRIC_ADD(e->cfg.met, fetch_bytes_total, e->cfg.fwd.page_bytes);
    }
}

static void on_fetch_end(struct prefix_fetch *f, int rv) {
    struct gen_seq *s = CONTAINER_OF(f, struct gen_seq, op);
    struct engine *e = s->e;
    prefix_fetch_release(f, s->n_ok); /* the bytes are here: the slots may go */
    pthread_mutex_lock(&e->lock);
    struct seq_mail_in *m = mail_to_engine(s);
    m->fetch_end = true;
    m->fetch_rv = rv;
    if (s->n_ok) {
        METRIC_OBSERVE(e->cfg.met, fetch_seconds, (double)(m->last_ns - s->fetch_begin_ns) * 1e-9);
        prefix_rates_add_fetch(&e->fetch_news, (uint64_t)s->n_ok * e->cfg.fwd.page_bytes, s->n_ok,
                               m->first_ns - s->fetch_begin_ns, m->last_ns - s->fetch_begin_ns);
    }
    pthread_mutex_unlock(&e->lock);
}

static void start_lookup(struct gen_seq *s, uint32_t have, uint32_t deadline_ms) {
    s->op.on_lookup = on_lookup;
    s->op.on_block = on_block;
    s->op.on_end = on_fetch_end;
    s->op.traceparent = s->traceparent[0] ? s->traceparent : NULL;
    struct worker_metrics *m = s->e->cfg.met;
    int rv = prefix_lookup_start(&s->op, s->e->cfg.remote, s->chain->ids, s->n_lookup, have,
                                 deadline_ms);
    if (rv < 0) { /* never sent: no lookup, and none that failed */
        METRIC_INC(m, lookup_unsent_total);
        answer_lookup(s, rv, 0, s->n_lookup);
        return;
    }
    METRIC_INC(m, lookup_total);
    METRIC_ADD(m, lookup_blocks_total, s->n_lookup - have);
}

static void start_fetch(struct gen_seq *s, uint32_t first, uint32_t n) {
    s->fetch_begin_ns = clock_mono_ns(s->e->cfg.clk);
    int rv = prefix_fetch_start(&s->op, first, n, s->f_dst, FETCH_DEADLINE_MS);
    if (rv < 0)
        on_fetch_end(&s->op, rv);
}

/* --- puts --- */

static void on_put_done(struct put_job *j, const struct prefix_put_result *res) {
    struct engine *e = j->q->arg;
    struct worker_metrics *m = e->cfg.met;
    METRIC_ADD(m, put_block_total, res->n_stored);
    METRIC_ADD(m, put_present_total, res->n_present);
    METRIC_ADD(m, put_conflict_total, res->n_conflict);
    METRIC_ADD(m, put_failed_total, res->n_failed);
    METRIC_ADD(m, put_dropped_total, res->n_dropped);
    METRIC_ADD(m, pending_puts, -(int64_t)j->n);
    pthread_mutex_lock(&e->lock);
    list_push_back(&e->in_puts, &j->link);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    progress_drain(e);
    progress_close(e);
}

static void on_touch_idle(struct prefix_touch *t) {
    struct engine_loop *l = CONTAINER_OF(t, struct engine_loop, touch);
    progress_close(l->e);
}

/* --- what the engine thread said --- */

static void seq_drop(struct gen_seq *s) {
    struct engine_loop *l = s->e->loop;
    list_remove(&s->loop_link);
    l->n_seqs--;
    gen_seq_free(s);
}

/* r is the API's again and may be freed inside; s lives on until the engine has released it. */
static void seq_done(struct gen_seq *s, enum finish_reason why) {
    struct engine_loop *l = s->e->loop;
    struct gen_request *r = TAKE_PTR(s->r);
    l->n_open--;
    r->seq = NULL;
    r->on_done(r, why);
}

static void handle_seq(struct engine *e, struct gen_seq *s, const struct seq_mail_out *m) {
    struct engine_loop *l = e->loop;
    if (m->lookup)
        start_lookup(s, m->have, m->deadline_ms);
    if (m->fetch)
        start_fetch(s, m->first, m->n);
    if (m->cancel)
        prefix_fetch_cancel(&s->op, m->cancel_late);
    if (m->give_lease)
        prefix_fetch_release(&s->op, 0);
    if (m->touch) {
        METRIC_INC(e->cfg.met, touch_total);
        prefix_touch_add(&l->touch, s->chain, m->n_touch);
    }
    if (s->r && m->n_out > s->n_delivered) {
        uint32_t from = s->n_delivered;
        s->n_delivered = m->n_out;
        if (s->r->on_tokens)
            s->r->on_tokens(s->r, s->r->out + from, m->n_out - from);
    }
    if (m->done)
        seq_done(s, m->why);
    if (m->released) { /* the engine's last word: it has no pointer to s any more */
        prefix_fetch_release(&s->op,
                             0); /* if it still has one: canceled between lookup and fetch */
        pthread_mutex_lock(&e->lock);
        if (s->in.queued) /* a cancel that came too late */
            list_remove(&s->in.link);
        pthread_mutex_unlock(&e->lock);
        seq_drop(s);
    }
}

static void on_async(uv_async_t *h) {
    struct engine *e = h->data;
    struct list *l, puts;
    pthread_mutex_lock(&e->lock);
    list_move(&e->out_puts, &puts);
    while ((l = list_pop_front(&e->out_seqs))) {
        struct gen_seq *s = CONTAINER_OF(l, struct gen_seq, out.link);
        struct seq_mail_out m = s->out;
        s->out.queued = s->out.lookup = s->out.fetch = s->out.cancel = s->out.give_lease =
            s->out.touch = s->out.done = s->out.released = false;
        pthread_mutex_unlock(&e->lock);
        handle_seq(e, s, &m);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    while ((l = list_pop_front(&puts)))
        prefix_put_add(&e->loop->put, LIST_ENTRY(l, struct put_job, link));
    progress_drain(e);
    progress_close(e);
}

static void on_tick(uv_timer_t *h) {
    struct engine *e = h->data;
    struct kv_remote *r = e->cfg.remote;
    if (!e->loop->told_warm && atomic_load(&e->is_warm)) {
        e->loop->told_warm = true;
        if (e->cfg.on_warm)
            e->cfg.on_warm(e->cfg.on_warm_arg);
    }
    if (r) {
        prefix_touch_flush(&e->loop->touch);
        METRIC_SET(e->cfg.met, cache_breaker_state, r->breaker.state);
        METRIC_SET(e->cfg.met, cache_connected, r->ops->is_up(r->ctx));
    }
    progress_drain(e);
}

/* --- submit and cancel --- */

static int run_prepare(struct loop_job *j) {
    struct gen_seq *s = CONTAINER_OF(j, struct gen_seq, prepare);
    const struct engine_cfg *c = &s->e->cfg;
    const struct gen_prepare_cfg pc = {
        .tok = c->tok,
        .n_vocab = c->fwd.n_vocab,
        .max_ctx = c->max_ctx,
        .block_tok = c->block_tok,
        .n_pages = c->n_pages,
        .namespace_digest = c->namespace_digest,
    };
    return gen_request_prepare(s->r, &pc);
}

static void on_prepared(struct loop_job *j, int rv) {
    struct gen_seq *s = CONTAINER_OF(j, struct gen_seq, prepare);
    struct engine *e = s->e;
    const struct engine_cfg *c = &e->cfg;
    enum finish_reason why = FINISH_ERROR;
    if (s->is_canceled || rv == ERR_CANCELED)
        why = FINISH_CANCELED;
    else if (rv == 0)
        rv = gen_seq_init(s, gen_request_priv(s->r), e->pool, c->fwd.page_bytes, c->block_tok,
                          tokenizer_max_piece(c->tok));
    if (rv < 0 || why == FINISH_CANCELED) {
        if (why == FINISH_ERROR && !s->r->err)
            s->r->err = err_set(&s->r->eb, rv, "%s", err_text(rv));
        METRIC_ADD(c->met, requests_waiting, -1);
        if (why == FINISH_ERROR)
            METRIC_INC(c->met, requests_error_total);
        else
            METRIC_INC(c->met, requests_canceled_total);
        seq_done(s, why);
        seq_drop(s);
        progress_drain(e);
        progress_close(e);
        return;
    }
    s->with_engine = true;
    pthread_mutex_lock(&e->lock);
    mail_to_engine(s)->start = true;
    pthread_mutex_unlock(&e->lock);
}

/* A long text keeps its thread for a second: short ones must not wait behind it. */
static struct loop_work *pool_for(const struct engine *e, const struct gen_request *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_parts; i++)
        n += r->parts[i].len;
    return e->cfg.work_long && n > GEN_LONG_TEXT_BYTES ? e->cfg.work_long : e->cfg.work;
}

int engine_submit(struct engine *e, struct gen_request *r) {
    struct engine_loop *l = e->loop;
    if (l->draining || l->closing)
        return ERR_CANCELED;
    if (!r->on_done || (!r->n_parts && !r->n_ids))
        return ERR_INVALID;
    if (l->n_open >= e->cfg.max_seqs + e->cfg.max_queue)
        return ERR_BUSY;
    struct gen_seq *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->e = e;
    s->r = r;
    s->prepare = (struct loop_job){.run = run_prepare, .done = on_prepared};
    list_init(&s->link);
    list_init(&s->loop_link);
    r->usage = (struct gen_usage){.submitted_ns = clock_mono_ns(e->cfg.clk)};
    r->seq = s;
    int rv = loop_work_submit(pool_for(e, r), &s->prepare); /* r is the pool's from here on */
    if (rv < 0) {
        r->seq = NULL;
        free(s);
        return rv;
    }
    list_push_back(&l->seqs, &s->loop_link);
    l->n_seqs++;
    l->n_open++;
    METRIC_ADD(e->cfg.met, requests_waiting, 1);
    return 0;
}

/* Mail may go to a sequence until handle_seq() drops it, done or not: released comes behind done, and only
 * handle_seq() of this thread frees. */
static void cancel_seq(struct gen_seq *s) {
    struct engine *e = s->e;
    if (s->is_canceled || !s->r)
        return;
    s->is_canceled = true;
    if (!s->with_engine)
        return; /* on_prepared() sees it */
    pthread_mutex_lock(&e->lock);
    mail_to_engine(s)->cancel = true;
    pthread_mutex_unlock(&e->lock);
}

void engine_cancel(struct engine *e, struct gen_request *r) {
    (void)e;
    if (r->seq)
        cancel_seq(r->seq);
}

void engine_cache_is_back(struct engine *e) {
    if (!e->cfg.remote)
        return;
    breaker_init(&e->cfg.remote->breaker);
    pthread_mutex_lock(&e->lock);
    e->audit_until_ns = clock_mono_ns(e->cfg.clk) + AUDIT_NS;
    pthread_mutex_unlock(&e->lock);
}

/* --- drain and close --- */

static void progress_drain(struct engine *e) {
    struct engine_loop *l = e->loop;
    if (!l->draining || !l->drain_cb || l->n_open)
        return;
    uint64_t now = clock_mono_ns(e->cfg.clk);
    if (!l->drain_puts_until_ns)
        l->drain_puts_until_ns = now + l->drain_wait_ms * NS_PER_MS;
    bool idle = !e->cfg.remote || (prefix_put_idle(&l->put) && l->n_seqs == 0);
    if (!idle && now < l->drain_puts_until_ns)
        return; /* the tick looks again */
    void (*cb)(void *) = TAKE_PTR(l->drain_cb);
    cb(l->drain_data);
}

void engine_drain(struct engine *e, uint64_t put_wait_ms, void (*cb)(void *data), void *data) {
    struct engine_loop *l = e->loop;
    CHECK(!l->draining);
    l->draining = true;
    l->drain_wait_ms = put_wait_ms;
    l->drain_cb = cb;
    l->drain_data = data;
    uv_async_send(&l->async); /* never called back from inside this call */
}

static void on_handle_closed(uv_handle_t *h) {
    struct engine *e = h->data;
    struct engine_loop *l = e->loop;
    if (--l->n_handles > 0)
        return;
    void (*cb)(void *) = l->close_cb;
    void *data = l->close_data;
    engine_core_fini(e);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    free(l);
    free(e);
    cb(data);
}

/* Jobs that came back after the engine thread had stopped need nobody to take them: the pool goes. */
static void progress_close(struct engine *e) {
    struct engine_loop *l = e->loop;
    if (!l->closing || l->stopped || l->n_seqs || l->touch.call)
        return;
    pthread_mutex_lock(&e->lock);
    bool puts_out = !list_empty(&e->out_puts);
    pthread_mutex_unlock(&e->lock);
    if (puts_out || (e->cfg.remote && !prefix_put_idle(&l->put)))
        return;
    l->stopped = true;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    /* At most one idle round away: with no sequence left there is no step to wait for. Nothing is posted
     * after the join, so closing the handles loses no mail. */
    pthread_join(l->thread, NULL);
    uv_close((uv_handle_t *)&l->async, on_handle_closed);
    uv_close((uv_handle_t *)&l->tick, on_handle_closed);
}

void engine_close(struct engine *e, void (*cb)(void *data), void *data) {
    struct engine_loop *l = e->loop;
    CHECK(!l->closing);
    l->closing = true;
    l->drain_cb = NULL;
    l->close_cb = cb;
    l->close_data = data;
    LIST_FOREACH(&l->seqs, it)
    cancel_seq(LIST_ENTRY(it, struct gen_seq, loop_link));
    if (e->cfg.remote) {
        prefix_put_close(&l->put);
        prefix_touch_close(&l->touch);
    }
    uv_async_send(&l->async);
}

uint64_t engine_heartbeat_ns(const struct engine *e) {
    return atomic_load_explicit(&((struct engine *)(uintptr_t)e)->heartbeat_ns,
                                memory_order_relaxed);
}

bool engine_is_hung(const struct engine *e, uint64_t limit_ms) {
    struct engine *m = (struct engine *)(uintptr_t)e; /* atomics are read through it */
    uint64_t step_ns = atomic_load_explicit(&m->step_ns, memory_order_relaxed);
    uint64_t age = clock_mono_ns(e->cfg.clk) - engine_heartbeat_ns(e);
    return atomic_load(&m->is_warm) && age > MAX(limit_ms * NS_PER_MS, 10 * step_ns);
}

uint32_t engine_n_open(const struct engine *e) {
    return e->loop->n_open;
}

/* --- open --- */

static void *thread_main(void *arg) {
    engine_run(arg);
    return NULL;
}

static int check_cfg(const struct engine_cfg *c, struct errbuf *eb) {
    if (!c->block_tok || c->block_tok > 1024 || !c->max_seqs || !c->max_ctx ||
        c->chunk_tok < c->max_seqs || c->max_logit_rows < c->max_seqs)
        return err_set(eb, ERR_INVALID, "engine: limits do not fit each other");
    return 0;
}

static void init_sync(struct engine *e) {
    pthread_condattr_t attr;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &attr);
    pthread_condattr_destroy(&attr);
    list_init(&e->in_seqs);
    list_init(&e->in_puts);
    list_init(&e->out_seqs);
    list_init(&e->out_puts);
}

static void init_loop_part(struct engine *e, struct engine_loop *l) {
    l->e = e;
    list_init(&l->seqs);
    if (!e->cfg.remote)
        return;
    prefix_put_init(&l->put, e->cfg.remote, e->cfg.work, e->cfg.fwd.range_sizes,
                    e->cfg.fwd.n_ranges);
    l->put.on_done = on_put_done;
    l->put.arg = e;
    prefix_touch_init(&l->touch, e->cfg.remote);
    l->touch.on_idle = on_touch_idle;
}

/* Thread and handles, last: what follows them cannot fail. The thread posts nothing before it has mail. */
static int start(struct engine *e, struct errbuf *eb) {
    struct engine_loop *l = e->loop;
    if (pthread_create(&l->thread, NULL, thread_main, e) != 0)
        return err_set(eb, ERR_NOMEM, "engine thread");
    int rv = uv_async_init(e->cfg.loop, &l->async, on_async);
    if (rv < 0) {
        pthread_mutex_lock(&e->lock);
        e->stop = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(l->thread, NULL);
        return err_set(eb, rv, "engine: %s", err_text(rv));
    }
    uv_timer_init(e->cfg.loop, &l->tick);
    l->async.data = l->tick.data = e;
    uv_timer_start(&l->tick, on_tick, 1, TICK_MS);
    l->n_handles = 2;
    return 0;
}

int engine_open(struct engine **ret, const struct engine_cfg *cfg, struct errbuf *eb) {
    int rv = check_cfg(cfg, eb);
    if (rv < 0)
        return rv;
    struct engine *e = calloc(1, sizeof(*e));
    struct engine_loop *l = calloc(1, sizeof(*l));
    if (!e || !l) {
        free(e);
        free(l);
        return err_set(eb, ERR_NOMEM, "engine");
    }
    e->cfg = *cfg;
    e->loop = l;
    atomic_init(&e->heartbeat_ns, clock_mono_ns(cfg->clk));
    init_sync(e);
    init_loop_part(e, l);
    rv = engine_core_init(e, eb);
    if (rv == 0)
        rv = start(e, eb);
    if (rv < 0) {
        engine_core_fini(e);
        free(l);
        free(e);
        return rv;
    }
    *ret = e;
    return 0;
}
