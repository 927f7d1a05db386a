#include "common/loop_work.h"

#include <pthread.h>

#include "common/check.h"
#include "common/err.h"

enum where { OUTSIDE, WAITING, RUNNING, DONE }; /* where a job is; struct loop_job.where */

struct loop_work {
    uv_async_t wakeup;
    struct loop_work_cfg cfg;
    void (*close_cb)(void *arg); /* set by close */
    void *close_arg;
    bool closing;       /* loop thread's copy of stop */
    bool in_dispatch;   /* the close waits for the end of a round of done() calls */
    pthread_t *threads; /* [cfg.n_threads] */

    pthread_mutex_t lock; /* covers the rest */
    pthread_cond_t work;
    struct list waiting, done;
    uint32_t n_waiting, n_running, n_done;
    bool stop;
};

static void *pool_main(void *arg) {
    struct loop_work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct list *n = list_pop_front(&w->waiting);
        if (!n) {
            if (w->stop)
                break;
            pthread_cond_wait(&w->work, &w->lock);
            continue;
        }
        struct loop_job *j = LIST_ENTRY(n, struct loop_job, link);
        w->n_waiting--;
        w->n_running++;
        j->where = RUNNING;
        pthread_mutex_unlock(&w->lock);
        int rv = j->run(j);
        pthread_mutex_lock(&w->lock);
        w->n_running--;
        w->n_done++;
        j->rv = rv;
        j->where = DONE;
        list_push_back(&w->done, &j->link);
        uv_async_send(&w->wakeup); /* under the lock: the handle cannot be closed before */
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void on_wakeup_closed(uv_handle_t *h) {
    struct loop_work *w = h->data;
    void (*cb)(void *arg) = w->close_cb;
    void *arg = w->close_arg;
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    free(w->threads);
    free(w);
    if (cb)
        cb(arg);
}

/* Only when nothing waits, runs or has an undelivered end: then the threads are at most on their
 * way out. */
static void maybe_finish(struct loop_work *w) {
    pthread_mutex_lock(&w->lock);
    bool busy = w->n_waiting || w->n_running || w->n_done;
    pthread_mutex_unlock(&w->lock);
    if (!w->closing || w->in_dispatch || busy || uv_is_closing((uv_handle_t *)&w->wakeup))
        return;
    for (uint32_t i = 0; i < w->cfg.n_threads; i++)
        pthread_join(w->threads[i], NULL);
    uv_close((uv_handle_t *)&w->wakeup, on_wakeup_closed);
}

static void on_wakeup(uv_async_t *h) {
    struct loop_work *w = h->data;
    struct list done, *n;
    pthread_mutex_lock(&w->lock);
    list_move(&w->done, &done); /* sends coalesce, so drain all of it */
    pthread_mutex_unlock(&w->lock);
    w->in_dispatch = true;
    while ((n = list_pop_front(&done))) {
        struct loop_job *j = LIST_ENTRY(n, struct loop_job, link);
        pthread_mutex_lock(&w->lock);
        w->n_done--;
        j->where = OUTSIDE;
        pthread_mutex_unlock(&w->lock);
        j->done(j, j->rv); /* no lock held; may free j, resubmit it or close w */
    }
    w->in_dispatch = false;
    maybe_finish(w);
}

static void stop_threads(struct loop_work *w, uint32_t n) {
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(w->threads[i], NULL);
}

static int start_threads(struct loop_work *w) {
    for (uint32_t i = 0; i < w->cfg.n_threads; i++) {
        int e = pthread_create(&w->threads[i], NULL, pool_main, w);
        if (e) {
            stop_threads(w, i);
            return -e;
        }
        if (w->cfg.name)
            pthread_setname_np(w->threads[i], w->cfg.name);
    }
    return 0;
}

int loop_work_open(struct loop_work **ret, uv_loop_t *loop, const struct loop_work_cfg *cfg) {
    if (cfg->n_threads == 0 || cfg->max_queued == 0)
        return ERR_INVALID;
    struct loop_work *w = calloc(1, sizeof(*w));
    if (!w)
        return ERR_NOMEM;
    w->cfg = *cfg;
    list_init(&w->waiting);
    list_init(&w->done);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    w->threads = alloc_array(cfg->n_threads, sizeof(*w->threads));
    int rv = w->threads ? uv_async_init(loop, &w->wakeup, on_wakeup) : ERR_NOMEM;
    if (rv < 0)
        goto err_after_locks;
    w->wakeup.data = w;
    rv = start_threads(w);
    if (rv < 0) {
        uv_close((uv_handle_t *)&w->wakeup, on_wakeup_closed); /* frees w, without a callback */
        return rv;
    }
    *ret = w;
    return 0;
err_after_locks:
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    free(w->threads);
    free(w);
    return rv;
}

int loop_work_submit(struct loop_work *w, struct loop_job *j) {
    int rv = 0;
    pthread_mutex_lock(&w->lock);
    CHECK(j->where == OUTSIDE);
    if (w->stop) {
        rv = ERR_CANCELED;
    } else if (w->n_waiting >= w->cfg.max_queued) {
        rv = ERR_BUSY;
    } else {
        j->where = WAITING;
        j->w = w;
        list_push_back(&w->waiting, &j->link);
        w->n_waiting++;
        pthread_cond_signal(&w->work);
    }
    pthread_mutex_unlock(&w->lock);
    return rv;
}

/* Under the lock. */
static void cancel_waiting(struct loop_work *w, struct loop_job *j) {
    list_remove(&j->link);
    w->n_waiting--;
    w->n_done++;
    j->rv = ERR_CANCELED;
    j->where = DONE;
    list_push_back(&w->done, &j->link);
}

void loop_work_close(struct loop_work *w, void (*cb)(void *arg), void *arg) {
    CHECK(!w->closing);
    w->closing = true;
    w->close_cb = cb;
    w->close_arg = arg;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    while (!list_empty(&w->waiting))
        cancel_waiting(w, LIST_ENTRY(w->waiting.next, struct loop_job, link));
    pthread_cond_broadcast(&w->work);
    uv_async_send(&w->wakeup);
    pthread_mutex_unlock(&w->lock);
}
