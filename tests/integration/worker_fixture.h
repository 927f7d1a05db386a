/* worker_fixture.h - a worker without HTTP: model, engine and the real client, on the test's loop.
 *
 * Thread: the loop's. Failure: CHECKs. */
#pragma once

#include <uv.h>

#include "common/loop_work.h"
#include "worker/kv/kv_remote.h"
#include "worker/sched/engine.h"
#include "worker/worker_metrics.h"
#include "worker/worker_model.h"

struct worker_fx {
    uv_loop_t *loop;
    const struct worker_model *m; /* shared: weights are read-only */
    struct worker_config cfg;
    struct fwd *fwd;
    struct loop_work *work;
    struct kv_client *client;
    struct kv_remote remote;
    struct worker_metrics met;
    struct engine *engine;
    uint32_t n_closing;
};

/* addr NULL: no cache. Waits for the session to stand. */
void worker_fx_open(struct worker_fx *w, uv_loop_t *loop, const struct worker_model *m,
                    const struct worker_config *cfg, const char *addr, enum fetch_mode fetch);
void worker_fx_close(struct worker_fx *w);
void worker_fx_wait_puts(struct worker_fx *w);

struct answer {
    int32_t ids[64];
    uint32_t n;
    uint8_t logits[32]; /* SHA-256 of the first token's */
    struct gen_usage usage;
    enum finish_reason why;
    uint64_t ns; /* submit to done */
    uint32_t n_done;
    struct gen_request *r;
};
/* Starts a greedy request for n_new tokens behind tok[0..n). */
void worker_fx_ask(struct worker_fx *w, struct answer *a, const int32_t *tok, uint32_t n,
                   uint32_t n_new, const uint8_t *salt);
void worker_fx_wait(struct worker_fx *w, struct answer *a);
