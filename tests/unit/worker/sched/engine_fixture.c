/* engine_fixture.c - fake model, fake service, requests. */
#include "tests/unit/worker/sched/engine_fixture.h"

#include <time.h>

#include "common/check.h"

/* --- the model --- */

static const uint32_t range_sizes[FX_RANGES] = {FX_PAGE / FX_RANGES, FX_PAGE / FX_RANGES};

static uint64_t mix(uint64_t a, uint64_t b) {
    return sample_random(a, b);
}

static uint64_t page_get(uint8_t *const *pages, uint32_t p) {
    uint64_t v, w;
    const uint8_t *page = pages[p / FX_B];
    memcpy(&v, page + (p % FX_B) * 8, 8);
    memcpy(&w, page + FX_B * 8 + (p % FX_B) * 8, 8);
    CHECK(w == ~v); /* both ranges of a page belong together */
    return v;
}

static void page_set(uint8_t *const *pages, uint32_t p, uint64_t v) {
    uint64_t w = ~v;
    uint8_t *page = pages[p / FX_B];
    memcpy(page + (p % FX_B) * 8, &v, 8);
    memcpy(page + FX_B * 8 + (p % FX_B) * 8, &w, 8);
}

static int32_t choice(uint64_t v) {
    return 'a' + (int32_t)(v % 26);
}

static void fake_logits(uint64_t v, float *out) {
    for (uint32_t i = 0; i < FX_VOCAB; i++)
        out[i] = (float)(mix(v, i) >> 44) * 1e-6f;
    out[choice(v)] = 10.f;
}

static void wait_for_permit(struct fake_model *m) {
    while (atomic_load(&m->is_paced)) {
        if (atomic_load(&m->permits) > 0) {
            atomic_fetch_sub(&m->permits, 1);
            break;
        }
        atomic_store(&m->is_held, true);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    atomic_store(&m->is_held, false);
}

static int fake_step(void *ctx, const struct fwd_seq *seqs, uint32_t n) {
    struct fake_model *m = ctx;
    uint32_t rows = 0, us = atomic_load(&m->step_us);
    int rv = atomic_load(&m->fail_rv);
    wait_for_permit(m);
    if (us)
        nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000},
                  NULL); /* a model that takes time */
    if (rv < 0)
        return rv;
    for (uint32_t i = 0; i < n; i++) {
        const struct fwd_seq *s = &seqs[i];
        for (uint32_t k = 0; k < s->n_tok; k++) {
            uint32_t p = s->pos0 + k;
            uint64_t prev = p ? page_get(s->pages, p - 1) : 7;
            uint64_t v = mix(prev, (uint64_t)(uint32_t)s->tok[k]);
            page_set(s->pages, p, v);
            if (s->err && s->tok[k] == atomic_load(&m->poison))
                *s->err = ERR_NUMERIC;
            if (s->n_tok - k <= s->n_logits)
                fake_logits(v, s->logits + (size_t)(k - (s->n_tok - s->n_logits)) * FX_VOCAB);
        }
        rows += s->n_tok;
    }
    bool is_mixed = false;
    for (uint32_t i = 0; i < n; i++)
        is_mixed |= seqs[i].decode;
    if (is_mixed && rows > atomic_load(&m->max_mixed_rows))
        atomic_store(&m->max_mixed_rows, rows);
    if (m->clock)
        atomic_fetch_add(&m->clock->ns, m->ns_a_step + rows * m->ns_a_row);
    atomic_fetch_add(&m->steps, 1);
    atomic_fetch_add(&m->rows, rows);
    if (rows > atomic_load(&m->max_rows))
        atomic_store(&m->max_rows, rows);
    if (n > atomic_load(&m->max_seqs))
        atomic_store(&m->max_seqs, n);
    return 0;
}

void fx_expect(const char *text, uint32_t n, int32_t *ids) {
    uint64_t v = 7;
    for (size_t i = 0; text[i]; i++)
        v = mix(v, (uint8_t)text[i]);
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = choice(v);
        v = mix(v, (uint64_t)ids[i]);
    }
}

/* --- the tokenizer: one token a byte --- */

/* GPT-2's map: a printable byte stands for itself, the k-th other one for U+0100 + k. */
static uint32_t byte_char(uint32_t b) {
    uint32_t k = 0;
    for (uint32_t i = 0;; i++) {
        bool printable = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        if (i == b)
            return printable ? i : 256 + k;
        k += !printable;
    }
}

static struct tokenizer *byte_tokenizer(void) {
    static char spell[256][3];
    struct tok_str tokens[FX_VOCAB];
    int32_t types[FX_VOCAB];
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = byte_char(b), n = 0;
        if (c < 0x80) {
            spell[b][n++] = (char)c;
        } else {
            spell[b][n++] = (char)(0xc0 | c >> 6);
            spell[b][n++] = (char)(0x80 | (c & 0x3f));
        }
        tokens[b] = (struct tok_str){spell[b], n};
        types[b] = TOK_TYPE_NORMAL;
    }
    tokens[FX_EOG] = (struct tok_str){"<|im_end|>", 10};
    tokens[FX_CTRL] = (struct tok_str){"<|ctrl|>", 8};
    types[FX_EOG] = types[FX_CTRL] = TOK_TYPE_CONTROL;
    /* BPE wants at least one merge: of two bytes that no test uses */
    static const char merged[] = "\xc4\x81\xc4\x82", merge[] = "\xc4\x81 \xc4\x82";
    tokens[258] = (struct tok_str){merged, 4};
    types[258] = TOK_TYPE_NORMAL;
    const struct tok_str merges[1] = {{merge, 5}};
    struct tokenizer_src src = TOKENIZER_SRC_EMPTY;
    src.model = "gpt2";
    src.pre = "gpt-2";
    src.n_tokens = FX_VOCAB;
    src.tokens = tokens;
    src.types = types;
    src.merges = merges;
    src.n_merges = 1;
    src.eos_id = FX_EOG;
    struct tokenizer *t = NULL;
    struct errbuf eb = {{0}};
    if (tokenizer_new(&t, &src, &eb) < 0) {
        fprintf(stderr, "%s\n", eb.text);
        abort();
    }
    return t;
}

/* --- the service --- */

enum call_kind { CALL_LOOKUP, CALL_FETCH, CALL_PUT, CALL_TOUCH };

struct kv_call {
    struct list link;
    struct fake_remote *f;
    enum call_kind kind;
    uv_timer_t timer;
    bool canceled, silent;
    int rv;
    union {
        kv_lookup_cb lookup;
        kv_fetch_cb fetch;
        kv_put_cb put;
        kv_done_cb done;
    } cb;
    void *arg;
    struct kv_lookup lookup;
    struct kv_fetch fetch;
    struct kv_put put;
    uint32_t at, n_ok, n_bad;
};

static int find(struct fake_remote *f, const struct block_id *id) {
    for (uint32_t i = 0; i < f->n_blocks; i++)
        if (f->block[i].there && block_id_equal(&f->block[i].id, id))
            return (int)i;
    return -1;
}

static void call_freed(uv_handle_t *h) {
    free(CONTAINER_OF(h, struct kv_call, timer));
}

static void end_lookup(struct kv_call *c) {
    uint8_t status[REMOTE_MAX] = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->lookup.n; i++)
        status[i] = find(c->f, &c->lookup.chain[i]) >= 0 ? MSG_LOOKUP_RAM : MSG_LOOKUP_ABSENT;
    while (n < c->lookup.n && (n < c->lookup.have || status[n] != MSG_LOOKUP_ABSENT))
        n++;
    static const struct kv_lease lease = {.n = 1};
    const struct kv_lookup_res res = {
        .status = status, .n = c->lookup.n, .n_prefix = n, .lease = &lease};
    if (c->rv == 0)
        c->f->n_leases_open++;
    c->cb.lookup(c->arg, c->rv, c->rv == 0 ? &res : NULL);
}

static void end_put(struct kv_call *c) {
    int status[64];
    for (uint32_t i = 0; i < c->put.n; i++) {
        struct fake_remote *f = c->f;
        status[i] = c->rv < 0 ? c->rv : f->put_status;
        if (status[i] != 0 || find(f, &c->put.chain[c->put.first + i]) >= 0)
            continue;
        CHECK(f->n_blocks < REMOTE_MAX);
        f->block[f->n_blocks].id = c->put.chain[c->put.first + i];
        memcpy(f->block[f->n_blocks].bytes, c->put.payload[i], FX_PAGE);
        f->block[f->n_blocks++].there = true;
        f->n_put_blocks++;
    }
    const struct kv_put_res res = {.status = status};
    c->cb.put(c->arg, c->rv, c->rv == 0 ? &res : NULL);
}

static void call_end(struct kv_call *c) {
    list_remove(&c->link);
    uv_timer_stop(&c->timer);
    switch (c->kind) {
    case CALL_LOOKUP:
        end_lookup(c);
        break;
    case CALL_FETCH:
        c->cb.fetch(c->arg, c->rv, NULL);
        break;
    case CALL_PUT:
        end_put(c);
        break;
    default:
        c->cb.done(c->arg, c->rv);
    }
    uv_close((uv_handle_t *)&c->timer, call_freed);
}

/* One block; false at the end of the fetch. */
static bool fetch_one(struct kv_call *c) {
    struct fake_remote *f = c->f;
    if (c->at == c->fetch.n)
        return false;
    uint32_t i = f->reverse ? c->fetch.n - 1 - c->at : c->at;
    c->at++;
    int at = find(f, &c->fetch.chain[c->fetch.first + i]);
    int rv = at < 0 ? ERR_NOTFOUND : i == f->corrupt_at ? ERR_CORRUPT : 0;
    if (at >= 0)
        memcpy(c->fetch.dst[i], f->block[at].bytes, FX_PAGE);
    if (rv == ERR_CORRUPT)
        c->fetch.dst[i][3] ^= 1;
    f->n_blocks_sent++;
    c->fetch.on_block(c->arg, i, rv);
    return true;
}

static void on_timer(uv_timer_t *t) {
    struct kv_call *c = t->data;
    if (c->canceled || c->rv < 0) {
        call_end(c);
        return;
    }
    if (c->kind == CALL_FETCH) {
        if (c->at >= c->f->fetch_limit)
            return; /* silence */
        if (fetch_one(c)) {
            uv_timer_start(t, on_timer, c->f->block_delay_ms, 0);
            return;
        }
    }
    call_end(c);
}

static struct kv_call *call_new(struct fake_remote *f, enum call_kind kind, void *arg, bool silent,
                                struct kv_call **ret) {
    struct kv_call *c = calloc(1, sizeof(*c));
    CHECK(c);
    c->f = f;
    c->kind = kind;
    c->arg = arg;
    uv_timer_init(f->loop, &c->timer);
    c->timer.data = c;
    list_push_back(&f->calls, &c->link);
    if (!silent)
        uv_timer_start(&c->timer, on_timer, 0, 0);
    *ret = c;
    return c;
}

static int fk_lookup(void *ctx, const struct kv_lookup *q, kv_lookup_cb cb, void *arg,
                     struct kv_call **ret) {
    struct fake_remote *f = ctx;
    struct kv_call *c = call_new(f, CALL_LOOKUP, arg, f->lookup_silent, ret);
    f->n_lookups++;
    c->lookup = *q;
    f->lookup_flags = q->flags;
    c->cb.lookup = cb;
    c->rv = f->lookup_rv;
    return 0;
}
static int fk_fetch(void *ctx, const struct kv_fetch *q, kv_fetch_cb cb, void *arg,
                    struct kv_call **ret) {
    struct fake_remote *f = ctx;
    struct kv_call *c = call_new(f, CALL_FETCH, arg, false, ret);
    f->n_fetches++;
    c->fetch = *q;
    c->cb.fetch = cb;
    return 0;
}
static int fk_put(void *ctx, const struct kv_put *q, kv_put_cb cb, void *arg,
                  struct kv_call **ret) {
    struct fake_remote *f = ctx;
    struct kv_call *c = call_new(f, CALL_PUT, arg, f->put_silent, ret);
    f->n_puts++;
    c->put = *q;
    c->cb.put = cb;
    return 0;
}
static int fk_touch(void *ctx, const struct kv_touch *q, kv_done_cb cb, void *arg,
                    struct kv_call **ret) {
    struct fake_remote *f = ctx;
    struct kv_call *c = call_new(f, CALL_TOUCH, arg, false, ret);
    f->n_touches++;
    for (uint32_t i = 0; i < q->n_chains; i++)
        f->n_touched_blocks += q->lens[i];
    c->cb.done = cb;
    return 0;
}
static void fk_release(void *ctx, const struct kv_lease *lease, uint32_t used) {
    struct fake_remote *f = ctx;
    (void)lease;
    (void)used;
    f->n_leases_open--;
}
static void fk_cancel(void *ctx, struct kv_call *c) {
    struct fake_remote *f = ctx;
    f->n_cancels++;
    c->canceled = true;
    c->rv = ERR_CANCELED;
    uv_timer_start(&c->timer, on_timer, 0, 0);
}
static bool fk_is_up(void *ctx) {
    return !((struct fake_remote *)ctx)->down;
}

static const struct kv_remote_ops fake_ops = {
    .lookup = fk_lookup,
    .fetch = fk_fetch,
    .put = fk_put,
    .touch = fk_touch,
    .release = fk_release,
    .cancel = fk_cancel,
    .is_up = fk_is_up,
};

/* --- the whole --- */

static uint64_t fx_clock_ns(const struct clock *c) {
    return atomic_load(&CONTAINER_OF((struct clock *)(uintptr_t)c, struct fx_clock, clk)->ns);
}

void engine_fx_use_clock(struct engine_fx *f, uint64_t ns_a_step, uint64_t ns_a_row) {
    f->clock.clk = (struct clock){fx_clock_ns, fx_clock_ns};
    atomic_store(&f->clock.ns, NS_PER_S);
    f->model.clock = &f->clock;
    f->model.ns_a_step = ns_a_step;
    f->model.ns_a_row = ns_a_row;
    f->cfg.clk = &f->clock.clk;
}

void engine_fx_init(struct engine_fx *f) {
    memset(f, 0, sizeof(*f));
    CHECK(uv_loop_init(&f->loop) == 0);
    f->tok = byte_tokenizer();
    const struct loop_work_cfg wc = {.n_threads = 1, .max_queued = 1000, .name = "text"};
    CHECK(loop_work_open(&f->work, &f->loop, &wc) == 0);
    f->fake.loop = &f->loop;
    list_init(&f->fake.calls);
    f->fake.fetch_limit = f->fake.corrupt_at = UINT32_MAX;
    kv_remote_init(&f->remote, &fake_ops, &f->fake, clock_real());
    metric_init(worker_metrics_table(), &f->met);
    f->cfg = (struct engine_cfg){
        .loop = &f->loop,
        .work = f->work,
        .clk = clock_real(),
        .tok = f->tok,
        .fwd = {.step = fake_step,
                .ctx = &f->model,
                .n_vocab = FX_VOCAB,
                .page_bytes = FX_PAGE,
                .range_sizes = range_sizes,
                .n_ranges = FX_RANGES},
        .namespace_digest = {1, 2, 3},
        .block_tok = FX_B,
        .max_ctx = 200,
        .max_seqs = 4,
        .chunk_tok = 16,
        .max_logit_rows = 8,
        .max_queue = 64,
        .n_pages = 100,
        .fetch = FETCH_ALWAYS,
        .remote = &f->remote,
        .put_queue_blocks = 64,
        .met = &f->met,
    };
}

void engine_fx_open(struct engine_fx *f) {
    struct errbuf eb = {{0}};
    f->steps_at_open = atomic_load(&f->model.steps);
    int rv = engine_open(&f->engine, &f->cfg, &eb);
    if (rv < 0)
        fprintf(stderr, "engine_open: %s\n", eb.text);
    CHECK(rv == 0);
}

static void on_closed(void *data) {
    ((struct engine_fx *)data)->n_closed++;
}

void engine_fx_close_engine(struct engine_fx *f) {
    uint32_t before = f->n_closed;
    engine_close(f->engine, on_closed, f);
    while (f->n_closed == before)
        uv_run(&f->loop, UV_RUN_ONCE);
    f->engine = NULL;
}

void engine_fx_fini(struct engine_fx *f) {
    if (f->engine)
        engine_fx_close_engine(f);
    loop_work_close(f->work, NULL, NULL);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&f->loop) == 0);
    tokenizer_free(f->tok);
    CHECK(f->fake.n_leases_open == 0);
}

static void on_tokens(struct gen_request *r, const struct gen_token *tok, size_t n) {
    struct fx_req *q = r->data;
    CHECK(!q->n_done);
    for (size_t i = 0; i < n; i++) {
        if (q->n_tokens < ARRAY_LEN(q->ids))
            q->ids[q->n_tokens] = tok[i].id;
        q->n_tokens++;
        CHECK(q->len + tok[i].text_len < sizeof(q->text));
        memcpy(q->text + q->len, tok[i].text, tok[i].text_len);
        q->len += tok[i].text_len;
    }
    if (q->cancel_after && q->n_tokens >= q->cancel_after)
        engine_cancel(q->f->engine, r);
}

static void on_done(struct gen_request *r, enum finish_reason why) {
    struct fx_req *q = r->data;
    q->n_done++;
    q->why = why;
    q->usage = r->usage;
    q->err = r->err;
}

void fx_req_init(struct fx_req *q, struct engine_fx *f, const char *text, uint32_t max_tokens) {
    memset(q, 0, sizeof(*q));
    q->f = f;
    q->r = gen_request_new();
    q->part = (struct tok_part){text, strlen(text), TOK_ORIGIN_USER};
    q->r->parts = &q->part;
    q->r->n_parts = 1;
    q->r->sample.temperature = 0;
    q->r->max_tokens = max_tokens;
    q->r->max_tokens_set = true;
    q->r->on_tokens = on_tokens;
    q->r->on_done = on_done;
    q->r->data = q;
}

int fx_submit(struct fx_req *q) {
    return engine_submit(q->f->engine, q->r);
}

void fx_wait(struct engine_fx *f, struct fx_req *q, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        while (!q[i].n_done)
            uv_run(&f->loop, UV_RUN_ONCE);
}

void fx_run(struct engine_fx *f, struct fx_req *q) {
    CHECK(fx_submit(q) == 0);
    fx_wait(f, q, 1);
}

void fx_wait_puts(struct engine_fx *f) {
    while (atomic_load(&f->met.pending_puts) > 0)
        uv_run(&f->loop, UV_RUN_ONCE);
}

void fx_req_fini(struct fx_req *q) {
    gen_request_free(q->r);
}

void fx_hold(struct engine_fx *f) {
    while (atomic_load(&f->model.steps) < f->steps_at_open + 2) /* the warm-up's are let be */
        uv_run(&f->loop, UV_RUN_NOWAIT);
    atomic_store(&f->model.permits, 0);
    atomic_store(&f->model.is_paced, true);
}

void fx_steps(struct engine_fx *f, int n) {
    uint64_t t0 = clock_mono_ns(clock_real());
    atomic_fetch_add(&f->model.permits, n);
    while (atomic_load(&f->model.permits) > 0 || !atomic_load(&f->model.is_held)) {
        CHECK(clock_mono_ns(clock_real()) - t0 <
              30 * NS_PER_S); /* there are not so many steps to do */
        uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    uv_run(&f->loop, UV_RUN_NOWAIT); /* what the last step said */
}

void fx_go(struct engine_fx *f) {
    atomic_store(&f->model.is_paced, false);
}

struct fence {
    struct loop_job job;
    bool done;
};

static int fence_run(struct loop_job *j) {
    (void)j;
    return 0;
}

static void fence_done(struct loop_job *j, int rv) {
    (void)rv;
    CONTAINER_OF(j, struct fence, job)->done = true;
}

void fx_fence(struct engine_fx *f) {
    struct fence x = {.job = {.run = fence_run, .done = fence_done}};
    CHECK(loop_work_submit(f->work, &x.job) == 0); /* one thread: behind all that was submitted */
    while (!x.done)
        uv_run(&f->loop, UV_RUN_ONCE);
}
