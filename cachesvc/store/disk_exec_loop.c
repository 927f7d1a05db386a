/* disk_exec over common/loop_work: a fixed set of jobs, each carrying one op. */
#include "cachesvc/store/disk_io.h"
#include "common/check.h"
#include "common/err.h"
#include "common/loop_work.h"

struct exec_loop;

struct exec_job {
    struct loop_job job;
    struct exec_loop *x;
    struct disk_op *op;
    struct exec_job *next_free;
};
struct exec_loop {
    struct disk_exec exec;
    struct loop_work *w;
    struct exec_job *jobs, *free_jobs;
    uint32_t n_used;
};

static int run(struct loop_job *j) {
    struct disk_op *op = CONTAINER_OF(j, struct exec_job, job)->op;
    disk_op_run(op);
    return op->rv;
}

static void done(struct loop_job *j, int rv) {
    struct exec_job *ej = CONTAINER_OF(j, struct exec_job, job);
    struct disk_op *op = ej->op;
    op->rv = rv; /* run()'s, or ERR_CANCELED */
    ej->op = NULL;
    ej->next_free = ej->x->free_jobs;
    ej->x->free_jobs = ej;
    ej->x->n_used--;
    op->done(op);
}

static int submit(struct disk_exec *exec, struct disk_op *op) {
    struct exec_loop *x = CONTAINER_OF(exec, struct exec_loop, exec);
    struct exec_job *ej = x->free_jobs;
    if (!ej)
        return ERR_BUSY;
    struct exec_job *next = ej->next_free;
    *ej = (struct exec_job){.job = {.run = run, .done = done}, .x = x, .op = op};
    int rv = loop_work_submit(x->w, &ej->job);
    if (rv < 0) {
        ej->next_free = next;
        return rv;
    }
    x->free_jobs = next;
    x->n_used++;
    return 0;
}

int disk_exec_loop_new(struct disk_exec **ret, struct loop_work *w, uint32_t depth) {
    struct exec_loop *x = calloc(1, sizeof(*x));
    if (!x)
        return ERR_NOMEM;
    x->exec.submit = submit;
    x->w = w;
    x->jobs = alloc_array(depth, sizeof(*x->jobs));
    if (!x->jobs) {
        free(x);
        return ERR_NOMEM;
    }
    for (uint32_t i = 0; i < depth; i++)
        x->jobs[i].next_free = i + 1 < depth ? &x->jobs[i + 1] : NULL;
    x->free_jobs = x->jobs;
    *ret = &x->exec;
    return 0;
}

void disk_exec_loop_free(struct disk_exec *exec) {
    struct exec_loop *x = CONTAINER_OF(exec, struct exec_loop, exec);
    CHECK(x->n_used == 0);
    free(x->jobs);
    free(x);
}
