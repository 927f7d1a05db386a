/* worker_fixture.c - see the header. */
#include "tests/integration/worker_fixture.h"

#include "common/check.h"

static int step(void *ctx, const struct fwd_seq *seqs, uint32_t n) {
    return fwd_step(ctx, seqs, n);
}

static void on_node(void *arg, uint32_t node, enum kv_node_state state, int err, const char *text) {
    struct worker_fx *w = arg;
    (void)node;
    (void)err;
    (void)text;
    if (state == KV_NODE_UP && w->engine)
        engine_cache_is_back(w->engine);
}

static void open_client(struct worker_fx *w, const char *addr) {
    uint32_t ns;
    const struct kv_client_cfg cc = {.addrs = &addr,
                                     .n_addrs = 1,
                                     .role = MSG_ROLE_WORKER,
                                     .n_data_conns = 2,
                                     .backoff_min_ms = 20,
                                     .on_node = on_node,
                                     .on_node_arg = w};
    CHECK(kv_client_open(&w->client, w->loop, &cc, NULL) == 0);
    struct kv_namespace nsd = {
        .descriptor = w->m->ns.text,
        .descriptor_len = w->m->ns.len,
        .range_sizes = w->m->layout.range_sizes,
        .n_ranges = w->m->layout.cfg.n_layer,
        .n_full = w->m->layout.n_full,
    };
    memcpy(nsd.digest, w->m->ns.digest, sizeof(nsd.digest));
    CHECK(kv_client_namespace(w->client, &nsd, &ns) == 0);
    kv_remote_init_client(&w->remote, w->client, ns, clock_real());
    while (!kv_client_nodes_up(w->client))
        uv_run(w->loop, UV_RUN_ONCE);
}

void worker_fx_open(struct worker_fx *w, uv_loop_t *loop, const struct worker_model *m,
                    const struct worker_config *cfg, const char *addr, enum fetch_mode fetch) {
    struct errbuf eb = {{0}};
    memset(w, 0, sizeof(*w));
    w->loop = loop;
    w->m = m;
    metric_init(worker_metrics_table(), &w->met);
    const struct fwd_cfg fc = {
        .max_rows = cfg->chunk_tokens,
        .max_seqs = cfg->max_seqs,
        .max_logit_rows = m->max_logit_rows,
        .max_ctx = m->max_ctx,
        .block_tok = cfg->block_tokens,
        .kv = m->kv,
        .ops = m->ops,
    };
    CHECK(fwd_new(&w->fwd, m->model, &fc, &eb) == 0);
    const struct loop_work_cfg wc = {.n_threads = 1, .max_queued = 1000, .name = "text"};
    CHECK(loop_work_open(&w->work, loop, &wc) == 0);
    if (addr)
        open_client(w, addr);
    struct engine_cfg ec = {
        .loop = loop,
        .work = w->work,
        .clk = clock_real(),
        .tok = m->tok,
        .fwd = {.step = step,
                .ctx = w->fwd,
                .n_vocab = m->model->hp.n_vocab,
                .page_bytes = m->layout.page_bytes,
                .range_sizes = m->layout.range_sizes,
                .n_ranges = m->model->hp.n_layer},
        .block_tok = cfg->block_tokens,
        .max_ctx = m->max_ctx,
        .max_seqs = cfg->max_seqs,
        .chunk_tok = cfg->chunk_tokens,
        .max_logit_rows = m->max_logit_rows,
        .max_queue = cfg->max_queue,
        .n_pages = m->n_pages,
        .fetch = fetch,
        .remote = addr ? &w->remote : NULL,
        .put_queue_blocks = cfg->put_queue_blocks,
        .met = &w->met,
    };
    memcpy(ec.namespace_digest, m->ns.digest, DIGEST_BYTES);
    CHECK(engine_open(&w->engine, &ec, &eb) == 0);
}

static void on_closed(void *data) {
    ((struct worker_fx *)data)->n_closing--;
}

void worker_fx_close(struct worker_fx *w) {
    w->n_closing = 1;
    engine_close(w->engine, on_closed, w);
    while (w->n_closing)
        uv_run(w->loop, UV_RUN_ONCE);
    w->n_closing = w->client ? 2 : 1;
    if (w->client)
        kv_client_close(w->client, on_closed, w);
    loop_work_close(w->work, on_closed, w);
    while (w->n_closing)
        uv_run(w->loop, UV_RUN_ONCE);
    fwd_free(w->fwd);
}

void worker_fx_wait_puts(struct worker_fx *w) {
    while (atomic_load(&w->met.pending_puts) > 0)
        uv_run(w->loop, UV_RUN_ONCE);
}

static void on_done(struct gen_request *r, enum finish_reason why) {
    struct answer *a = r->data;
    a->n_done++;
    a->why = why;
    a->usage = r->usage;
    a->n = r->usage.n_completion;
    for (uint32_t i = 0; i < a->n && i < ARRAY_LEN(a->ids); i++)
        a->ids[i] = r->out[i].id;
    memcpy(a->logits, r->usage.logits_digest, sizeof(a->logits));
    a->ns = r->usage.done_ns - r->usage.submitted_ns;
    gen_request_free(r);
}

void worker_fx_ask(struct worker_fx *w, struct answer *a, const int32_t *tok, uint32_t n,
                   uint32_t n_new, const uint8_t *salt) {
    memset(a, 0, sizeof(*a));
    struct gen_request *r = gen_request_new();
    CHECK(r);
    a->r = r;
    r->ids = tok;
    r->n_ids = n;
    r->sample.temperature = 0;
    r->max_tokens = n_new;
    r->max_tokens_set = true;
    r->ignore_eog = true;
    r->debug_logits = true;
    r->salt = salt;
    r->on_done = on_done;
    r->data = a;
    CHECK(engine_submit(w->engine, r) == 0);
}

void worker_fx_wait(struct worker_fx *w, struct answer *a) {
    while (!a->n_done)
        uv_run(w->loop, UV_RUN_ONCE);
}
