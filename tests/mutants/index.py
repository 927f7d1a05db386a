# Redis.
INDEX = "unit/cachesvc/index_redis unit/cachesvc/redis_conn integration/index_redis"

mutant("epoch-of-another-life-is-kept", "cachesvc/index/index_redis.c", "        x->epoch = (uint32_t)stored + 1;",
       "        x->epoch = (uint32_t)stored;", INDEX)
mutant("old-dump-goes-unnoticed", "cachesvc/index/index_redis.c",
       "on_check(x, epoch, epoch == x->epoch && time == x->checked_time_ms);", "on_check(x, epoch, time == time);", INDEX)
mutant("flushed-redis-goes-unnoticed", "cachesvc/index/index_redis.c",
       "on_check(x, number_of(r), number_of(r) == x->epoch);", "on_check(x, number_of(r), true);", INDEX)
mutant("readonly-redis-is-kept", "cachesvc/index/index_redis.c", "    if (is_worth_a_reconnect(error))",
       "    if (0 && is_worth_a_reconnect(error))", INDEX)
mutant("no-backoff-to-redis", "cachesvc/index/redis_conn.c",
       "c->backoff_ms ? MIN(c->backoff_ms * 2, c->cfg.backoff_max_ms) : c->cfg.backoff_min_ms;",
       "c->cfg.backoff_min_ms;", INDEX)
