/* engine_puts.c - full pages become put jobs; pages of finished jobs are let go. Engine thread. */
#include "common/check.h"
#include "worker/sched/engine_priv.h"

int engine_puts_init(struct engine *e) {
    list_init(&e->put_free);
    e->n_put_jobs = e->cfg.remote ? e->cfg.put_queue_blocks : 0;
    e->put_jobs = alloc_array(e->n_put_jobs, sizeof(*e->put_jobs));
    if (!e->put_jobs)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < e->n_put_jobs; i++) {
        int rv = prefix_put_job_init(&e->put_jobs[i], e->cfg.fwd.n_ranges);
        if (rv < 0)
            return rv;
        list_push_back(&e->put_free, &e->put_jobs[i].link);
    }
    return 0;
}

void engine_puts_fini(struct engine *e) {
    for (uint32_t i = 0; e->put_jobs && i < e->n_put_jobs; i++)
        prefix_put_job_fini(&e->put_jobs[i]);
    free(TAKE_PTR(e->put_jobs));
}

static void send_job(struct engine *e, struct put_job *j) {
    METRIC_ADD(e->cfg.met, pending_puts, (int64_t)j->n);
    e->n_put_blocks += j->n;
    pthread_mutex_lock(&e->lock);
    list_push_back(&e->out_puts, &j->link);
    pthread_mutex_unlock(&e->lock);
    e->loop_news = true;
}

static struct put_job *fill_job(struct engine *e, struct gen_seq *s, uint32_t n) {
    struct put_job *j = LIST_ENTRY(list_pop_front(&e->put_free), struct put_job, link);
    j->chain = kv_chain_ref(s->chain);
    j->first = s->n_put;
    j->n = n;
    for (uint32_t i = 0; i < n; i++) {
        j->page[i] = s->pages.page[s->n_put + i];
        j->bytes[i] = s->pages.ptr[s->n_put + i];
        page_pool_ref(e->pool, j->page[i]); /* until the put is over, whatever becomes of s */
    }
    memcpy(j->traceparent, s->traceparent, sizeof(j->traceparent));
    return j;
}

void engine_puts_add(struct engine *e, struct gen_seq *s, uint32_t n_full) {
    while (s->n_put < n_full) {
        uint32_t n = MIN(n_full - s->n_put, PUT_JOB_BLOCKS);
        bool dropped = atomic_load_explicit(&s->chain->put_dropped, memory_order_relaxed);
        if (!dropped && e->n_put_jobs &&
            (list_empty(&e->put_free) || e->n_put_blocks + n > e->cfg.put_queue_blocks)) {
            /* full: the rest of the chain would have no parent */
            atomic_store_explicit(&s->chain->put_dropped, true, memory_order_relaxed);
            dropped = true;
        }
        if (dropped || !e->n_put_jobs) {
            if (dropped)
                METRIC_ADD(e->cfg.met, put_dropped_total, n_full - s->n_put);
            s->n_put = n_full;
            return;
        }
        send_job(e, fill_job(e, s, n));
        s->n_put += n;
    }
}

void engine_puts_back(struct engine *e, struct put_job *j) {
    for (uint32_t i = j->n; i-- > 0;)
        page_pool_unref(e->pool, j->page[i]);
    e->n_put_blocks -= j->n;
    list_push_back(&e->put_free, &j->link);
}
