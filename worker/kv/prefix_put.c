/* prefix_put.c - queue -> checksums on the pool -> put -> done. */
#include "worker/kv/prefix_put.h"

#include "common/check.h"
#include "common/checksum.h"

struct kv_chain *kv_chain_new(uint32_t cap) {
    struct kv_chain *c = calloc(1, sizeof(*c) + (size_t)cap * sizeof(c->ids[0]));
    if (!c)
        return NULL;
    atomic_init(&c->refs, 1);
    c->cap = cap;
    return c;
}

struct kv_chain *kv_chain_ref(struct kv_chain *c) {
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void kv_chain_unref(struct kv_chain *c) {
    if (c && atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1)
        free(c);
}

int prefix_put_job_init(struct put_job *j, uint32_t n_ranges) {
    *j = (struct put_job){0};
    list_init(&j->link);
    j->ranges = alloc_array((size_t)PUT_JOB_BLOCKS * n_ranges, sizeof(*j->ranges));
    if (!j->ranges)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < PUT_JOB_BLOCKS; i++)
        j->range_ptr[i] = j->ranges + (size_t)i * n_ranges;
    return 0;
}

void prefix_put_job_fini(struct put_job *j) {
    free(TAKE_PTR(j->ranges));
}

void prefix_put_init(struct prefix_put *q, struct kv_remote *r, struct loop_work *work,
                     const uint32_t *range_sizes, uint32_t n_ranges) {
    *q =
        (struct prefix_put){.r = r, .work = work, .range_sizes = range_sizes, .n_ranges = n_ranges};
    list_init(&q->queue);
    list_init(&q->flying);
}

static void pump(struct prefix_put *q);

static void job_settle(struct put_job *j, int rv) {
    if (!j->probing)
        return;
    j->probing = false;
    kv_remote_result(j->q->r, rv);
}

/* The job's end, flying or not. */
static void job_end(struct put_job *j, const struct prefix_put_result *res) {
    struct prefix_put *q = j->q;
    if (res->n_stored + res->n_present < j->n)
        atomic_store_explicit(&j->chain->put_dropped, true, memory_order_relaxed);
    kv_chain_unref(TAKE_PTR(j->chain));
    list_remove(&j->link);
    q->on_done(j, res);
}

static void job_dropped(struct put_job *j) {
    job_end(j, &(struct prefix_put_result){.n_dropped = j->n});
}

static void flying_end(struct put_job *j, const struct prefix_put_result *res) {
    struct prefix_put *q = j->q;
    q->n_flying--;
    job_end(j, res);
    pump(q);
}

static void on_put_done(void *arg, int rv, const struct kv_put_res *res) {
    struct put_job *j = arg;
    struct prefix_put_result out = {0};
    j->call = NULL;
    job_settle(j, rv);
    if (rv == 0 && res) {
        for (uint32_t i = 0; i < j->n; i++) {
            int st = res->status[i];
            if (st == 0)
                out.n_stored++;
            else if (st == ERR_EXISTS)
                out.n_present++;
            else if (st == ERR_CONFLICT)
                out.n_conflict++;
        }
    }
    out.n_failed = j->n - out.n_stored - out.n_present - out.n_conflict;
    flying_end(j, &out);
}

static int run_checksums(struct loop_job *w) {
    struct put_job *j = CONTAINER_OF(w, struct put_job, work);
    for (uint32_t i = 0; i < j->n; i++)
        j->checksum[i] =
            checksum_block(j->bytes[i], j->q->range_sizes, j->q->n_ranges,
                           j->chain->ids[j->first + i].b, j->ranges + (size_t)i * j->q->n_ranges);
    return 0;
}

static int job_send(struct put_job *j) {
    struct prefix_put *q = j->q;
    if (!kv_remote_allow(q->r))
        return ERR_UNAVAILABLE;
    j->probing = true;
    const struct kv_put p = {
        .ns = q->r->ns,
        .chain = j->chain->ids,
        .first = j->first,
        .n = j->n,
        .payload = j->bytes,
        .checksum = j->checksum,
        .range_checksums = j->range_ptr,
        .traceparent = j->traceparent[0] ? j->traceparent : NULL,
        .deadline_ms = PUT_DEADLINE_MS,
    };
    int rv = q->r->ops->put(q->r->ctx, &p, on_put_done, j, &j->call);
    if (rv < 0)
        job_settle(j, ERR_CANCELED);
    return rv;
}

static void on_checksums(struct loop_job *w, int rv) {
    struct put_job *j = CONTAINER_OF(w, struct put_job, work);
    if (rv == 0 && !j->q->closing)
        rv = job_send(j);
    else if (rv == 0)
        rv = ERR_CANCELED;
    if (rv < 0)
        flying_end(j, &(struct prefix_put_result){.n_dropped = j->n});
}

static bool job_is_wanted(const struct put_job *j) {
    const struct prefix_put *q = j->q;
    return !q->closing && !atomic_load_explicit(&j->chain->put_dropped, memory_order_relaxed) &&
           q->r->ops->is_up(q->r->ctx);
}

static void pump(struct prefix_put *q) {
    while (q->n_flying < PUT_IN_FLIGHT && !list_empty(&q->queue)) {
        struct put_job *j = LIST_ENTRY(list_pop_front(&q->queue), struct put_job, link);
        if (!job_is_wanted(j)) {
            job_dropped(j);
            continue;
        }
        j->work = (struct loop_job){.run = run_checksums, .done = on_checksums};
        if (loop_work_submit(q->work, &j->work) < 0) {
            job_dropped(j);
            continue;
        }
        list_push_back(&q->flying, &j->link);
        q->n_flying++;
    }
}

void prefix_put_add(struct prefix_put *q, struct put_job *take_job) {
    CHECK(take_job->n && take_job->n <= PUT_JOB_BLOCKS);
    take_job->q = q;
    list_push_back(&q->queue, &take_job->link);
    pump(q);
}

void prefix_put_close(struct prefix_put *q) {
    if (q->closing)
        return;
    q->closing = true;
    LIST_FOREACH_SAFE(&q->flying, it, tmp) {
        struct put_job *j = LIST_ENTRY(it, struct put_job, link);
        job_settle(j, ERR_CANCELED);
        if (j->call)
            q->r->ops->cancel(q->r->ctx, j->call);
    }
    pump(q); /* drops what waits, as n_flying allows; the rest follows as the flying ones end */
}
