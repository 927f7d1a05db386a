# Redis.
INDEX = "unit/cachesvc/index_redis unit/cachesvc/redis_conn integration/index_redis"

mutant("epoch-of-another-life-is-kept", "cachesvc/index/index_redis.c", "        x->epoch = (uint32_t)stored + 1;",
       "        x->epoch = (uint32_t)stored;", INDEX)
mutant("old-dump-goes-unnoticed", "cachesvc/index/index_redis.c",
       "on_check(x, epoch, epoch == x->epoch && time == x->checked_time_ms);", "on_check(x, epoch, time == time);", INDEX)
mutant("flushed-redis-goes-unnoticed", "cachesvc/index/index_redis.c",
       "on_check(x, number_of(r), number_of(r) == x->epoch);", "on_check(x, number_of(r), true);", INDEX,
       survives="the node's record, asked in the same breath, is gone from a flushed Redis too")
mutant("readonly-redis-is-kept", "cachesvc/index/index_redis.c", "    if (is_worth_a_reconnect(error))",
       "    if (0 && is_worth_a_reconnect(error))", INDEX)
mutant("no-backoff-to-redis", "cachesvc/index/redis_conn.c",
       "c->backoff_ms ? MIN(c->backoff_ms * 2, c->cfg.backoff_max_ms) : c->cfg.backoff_min_ms;",
       "c->cfg.backoff_min_ms;", INDEX)
mutant("field-bytes-big-endian", "cachesvc/index/index_redis.c", "ret->field[i] = (char)(x->cfg.node_id >> (8 * i) & 0xff);",
       "ret->field[i] = (char)(x->cfg.node_id >> (8 * (1 - i)) & 0xff);", "unit/cachesvc/index_redis")
mutant('loading-is-no-reconnect', 'cachesvc/index/index_redis.c', '"LOADING",  ',
       '"LOADINX",  ', 'unit/cachesvc/index_redis')
mutant("each-refusal-logged", "cachesvc/index/index_redis.c", "    if (is_news(x, why))\n",
       "    if (is_news(x, why) || 1)\n", "unit/cachesvc/index_redis")
mutant("full-ring-asks-no-pass", "cachesvc/index/index_redis.c", "        if (x->passes < 2)\n            want_pass(x);\n",
       "", "unit/cachesvc/index_redis")
mutant("gauge-up-when-connected", "cachesvc/index/index_redis.c", "    x->stats.reconnects++;\n",
       "    x->stats.reconnects++;\n    x->stats.state = INDEX_REDIS_UP;\n", "unit/cachesvc/index_redis")
mutant("segment-key-ignores-namespace", "cachesvc/index/index_mem.c", "memcpy(text, ns_digest, DIGEST_BYTES);",
       "memset(text, 0, DIGEST_BYTES);(void)ns_digest;", "unit/cachesvc/index_redis")
mutant("second-address-not-tried", "cachesvc/index/redis_conn.c", "if (c->next_addr < c->n_addrs) {\n        c->deadline_ns",
       "if (0) {\n        c->deadline_ns", "unit/cachesvc/redis_conn")
mutant("backoff-never-reset", "cachesvc/index/redis_conn.c", "    c->backoff_ms = 0;\n    c->n_addrs",
       "    c->n_addrs", "unit/cachesvc/redis_conn")
mutant("backoff-reset-when-up", "cachesvc/index/redis_conn.c", "    sm_move(&c->sm, RC_UP);\n",
       "    sm_move(&c->sm, RC_UP);\n    c->backoff_ms = 0;\n", "unit/cachesvc/redis_conn")
mutant("no-reply-deadline", "cachesvc/index/redis_conn.c", "if (c->outstanding && now >= c->deadline_ns)",
       "if (0)", "unit/cachesvc/redis_conn")
mutant("gone-not-told", "cachesvc/store/store_room.c", "        tell_gone(s, store_at(s, idx));\n",
       "        if (0) tell_gone(s, store_at(s, idx));\n", "unit/cachesvc/store_segs")
mutant("every-block-told", "cachesvc/store/store_priv.h", "return seg && e->depth % seg == 0;",
       "return seg != 0;", "unit/cachesvc/store_segs")
mutant("holes-not-listed", "cachesvc/store/store_admin.c", "e->state == DIR_RESIDENT || (e->state == DIR_HOLE && e->child != DIR_NONE)",
       "e->state == DIR_RESIDENT", "unit/cachesvc/store_segs")
