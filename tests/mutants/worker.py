# Pages, prefixes, batches, requests, the HTTP edge.
PREFIX = "unit/worker/sched/prefix unit/worker/sched/engine unit/worker/kv/prefix_policy integration/prefix_hit_equals_cold"
SCHED = "unit/worker/sched/engine unit/worker/sched/engine_metrics unit/worker/sched/batcher"
API = "unit/worker/api/http_openai unit/worker/api/openai_parse integration/worker_program"

mutant("tenants-salt-dropped", "worker/api/http_openai.c", "    g->salt = c->has_salt ? c->salt : NULL;",
       "    g->salt = NULL;", API)
mutant("any-key-passes", "worker/api/api_keys.c", "    if (*ret_key)\n        return true;\n",
       "    if (*ret_key || value.n)\n        return true;\n", API)
mutant("key-is-asked-after-the-body", "worker/api/api_keys.c",
       "    if (!api_authorize(arg, r, &key))\n        return false;\n    if (strcmp",
       "    (void)key;\n    (void)arg;\n    if (strcmp", API)
mutant("any-model-is-served", "worker/api/api_models.c", "bool ok = h->cfg.any_model || model.n == 0 ||", "bool ok = true ||", API)
mutant("text-plain-is-taken", "worker/api/api_keys.c",
       "strcmp(http_req_method(r), \"POST\") != 0 || is_json(http_req_header(r, \"content-type\"))",
       "r || is_json(http_req_header(r, \"content-type\"))", API)
mutant("first-token-without-the-queue", "worker/sched/engine_step.c",
       "METRIC_OBSERVE(m, time_to_first_token_seconds, seconds(u->submitted_ns, now));",
       "METRIC_OBSERVE(m, time_to_first_token_seconds, seconds(s->started_ns, now));", SCHED)
mutant("queue-time-is-zero", "worker/sched/engine_step.c",
       "METRIC_OBSERVE(m, request_queue_time_seconds, seconds(u->submitted_ns, now));",
       "METRIC_OBSERVE(m, request_queue_time_seconds, seconds(now, now));", SCHED)
mutant("breaker-without-backoff", "worker/kv/prefix_policy.c",
       "        b->wait_ns = MIN(2 * b->wait_ns, BREAKER_WAIT_MAX_NS);", "        b->wait_ns = BREAKER_WAIT_MIN_NS;", PREFIX)
mutant("breaker-never-opens", "worker/kv/prefix_policy.c", "    else if (b->n_fail < BREAKER_MAX_FAIL)\n        return;",
       "    else\n        return;", PREFIX)
mutant("breaker-lets-all-probe", "worker/kv/prefix_policy.c", "if (b->state != BREAKER_HALF_OPEN || b->probing)",
       "if (b->state != BREAKER_HALF_OPEN)", PREFIX)
mutant("auto-fetches-what-is-slower", "worker/kv/prefix_policy.c", "return fetch < r->prefill_ns_per_tok * n_tok;",
       "return fetch < 10 * r->prefill_ns_per_tok * n_tok;", PREFIX)
mutant("silent-node-is-waited-for", "worker/kv/prefix_policy.c", "    if (p->idle_ns >= STALL_NS)\n        return true;\n", "", PREFIX)
mutant("late-fetch-goes-on", "worker/kv/prefix_policy.c", "return time_left_ns(p) > r->prefill_ns_per_tok * left;",
       "return time_left_ns(p) < 0 && left > 0;", PREFIX)
mutant("put-goes-on-after-a-drop", "worker/kv/prefix_put.c",
       "        atomic_store_explicit(&j->chain->put_dropped, true, memory_order_relaxed);\n",
       "        (void)res;\n", PREFIX)
mutant("checksum-of-a-put-with-another-id", "worker/kv/prefix_put.c", "j->chain->ids[j->first + i].b,", "j->chain->ids[j->first].b,", PREFIX)
mutant("lease-is-not-given-back", "worker/kv/prefix_fetch.c", "    f->r->ops->release(f->r->ctx, &f->lease, n_used);",
       "    (void)n_used;", PREFIX)
mutant("lookup-without-touch", "worker/kv/prefix_fetch.c", ".flags = MSG_LOOKUP_F_TOUCH | MSG_LOOKUP_F_LEASE,",
       ".flags = MSG_LOOKUP_F_LEASE,", PREFIX)
mutant("lookup-without-lease", "worker/kv/prefix_fetch.c", ".flags = MSG_LOOKUP_F_TOUCH | MSG_LOOKUP_F_LEASE,",
       ".flags = MSG_LOOKUP_F_TOUCH,", PREFIX)
mutant("gap-is-passed-over", "worker/sched/gen_seq.c", "        if (s->f_gap)\n            return true;\n",
       "        s->f_gap = false;\n", PREFIX,
       survives="what stands behind a gap does not begin at the position that was reached, and is not taken for that")
mutant("bad-block-is-used", "worker/sched/gen_seq.c", "s->f_status[i] = rv == 0 ? BLOCK_OK : BLOCK_BAD;",
       "s->f_status[i] = rv <= 0 ? BLOCK_OK : BLOCK_BAD;", PREFIX)
mutant("shared-page-is-written", "worker/kv/seq_pages.c",
       "page_pool_refs(s->pool, s->page[i]) == 1 &&\n        !page_pool_is_indexed(s->pool, s->page[i]))",
       "page_pool_refs(s->pool, s->page[i]) >= 1)", "unit/worker/kv/page_pool " + SCHED)
mutant("index-loses-who-probed-past", "worker/kv/page_index.c",
       "            x->table[i] = x->table[j];\n            i = j;", "            (void)h;", "unit/worker/kv/page_pool")
mutant("prompts-before-answers", "worker/sched/batcher.c",
       "    add_decodes(lim, &p, cands, n, rr);\n    add_prefills(lim, &p, cands, n);",
       "    add_prefills(lim, &p, cands, n);\n    add_decodes(lim, &p, cands, n, rr);", SCHED)
mutant("answers-take-no-turns", "worker/sched/batcher.c", "        p->next_rr = (i + 1) % n;", "        p->next_rr = 0;", SCHED)
mutant("oldest-prompt-takes-all", "worker/sched/batcher.c", "oldest->n_rows = MIN(oldest->n_left, (budget + 1) / 2);",
       "oldest->n_rows = MIN(oldest->n_left, budget);", SCHED)
mutant("window-one-longer", "worker/model/forward.c", "f->shape.window = f->m->hp.layer[i].window;",
       "f->shape.window = f->m->hp.layer[i].window + 1;", "integration/oracle_archs")
mutant("local-layers-rotate-as-the-others", "worker/model/arch_keys.c", "local && hp->n_rope > 1",
       "local && hp->n_rope > 2", "integration/oracle_archs")
mutant("windows-not-in-the-layout", "worker/model/weights.c", "window[i] = m->hp.layer[i].window;",
       "window[i] = 0;", "unit/worker/model/weights")
mutant("tie-of-experts-to-the-last", "worker/kernels/experts.c", "(logits[a] == logits[b] && a < b)",
       "(logits[a] == logits[b] && a > b)", "unit/worker/kernels/experts")
mutant("expert-weights-not-normed", "worker/kernels/experts.c", "p[i] * r}", "p[i]}",
       "unit/worker/kernels/experts integration/oracle_archs")
mutant("sinks-left-out", "worker/model/forward.c", "f->shape.sinks = l->sinks;", "f->shape.sinks = NULL;",
       "integration/oracle_archs")
mutant("yarn-always-at-whole-pairs", "worker/kernels/rope.c", "if (!c->yarn_between) {", "if (c->n_rot) {",
       "integration/oracle_archs unit/worker/model/model_graph")
mutant("expert-bias-of-the-first", "worker/model/forward_experts.c", "table + id * n", "table + 0 * id * n",
       "integration/oracle_archs")
mutant("ctime-of-the-model-ignored", "worker/model/gguf_file.c", " && a->ctime_ns == b->ctime_ns &&", " &&",
       "unit/worker/model/weights unit/worker/model/model_digest integration/worker_program")
mutant("parts-of-a-split-model-not-watched", "worker/model/gguf_file.c",
       "all->parts = checksum_xxh3(both, sizeof(both));", "all->parts = both[0].parts;",
       "unit/worker/model/gguf_split")
mutant("a-word-cut-under-a-token", "worker/text/tokenizer_spm.c", "t->glue[b / 32] |= 1u << (b % 32);", "(void)b;",
       "unit/worker/text/tokenizer_spm")
mutant("heads-may-take-for-ever", "common/http_server.c", "    http_conn_arm(&c->conn, c->s->cfg.head_timeout_ms);",
       "    http_conn_arm(&c->conn, UINT32_MAX / 2);", "unit/common/http_limits")
mutant("fetched-blocks-counted-twice", "worker/sched/engine_thread.c", "        METRIC_INC(e->cfg.met, fetch_block_total);",
       "        METRIC_ADD(e->cfg.met, fetch_block_total, 2);", PREFIX + " unit/worker/sched/engine_metrics")
mutant("client-that-reads-nothing-stays", "common/http_conn.c",
       "            arm_stall(c); /* slow, but it moves */\n        else\n            http_conn_drop(c);",
       "            arm_stall(c); /* slow, but it moves */\n        else\n            arm_stall(c);", "unit/common/http_limits")
mutant("large-blocks-on-the-heap", "common/process.c", "(void)mallopt(M_MMAP_THRESHOLD, 128 << 10);", "", "unit/common/http_limits")
mutant("sighup-lost-before-the-loop", "common/svc_main.c", "    hold_signals(true);\n", "    signal(SIGHUP, SIG_IGN);\n", "unit/common/svc_main")
