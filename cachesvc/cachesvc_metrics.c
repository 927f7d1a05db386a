#include "cachesvc/cachesvc_metrics.h"

const struct metric_table *store_metrics_table(void) {
    static const struct metric_row rows[] = {
#define X(n, h)                                                                                    \
    {.field = #n "_total",                                                                         \
     .type = METRIC_COUNTER,                                                                       \
     .off = offsetof(struct store_metrics, n),                                                     \
     .help = h},
        STORE_COUNTERS(X)
#undef X
#define X(n, h)                                                                                    \
    {.field = #n, .type = METRIC_GAUGE, .off = offsetof(struct store_metrics, now_##n), .help = h},
            STORE_GAUGES(X)
#undef X
    };
    static const struct metric_table table = {"incipit_store_", rows, ARRAY_LEN(rows),
                                              sizeof(struct store_metrics)};
    return &table;
}

void store_metrics_refresh(struct store_metrics *m, const struct block_store_stats *st) {
#define X(n, h) atomic_store_explicit(&m->n, st->n, memory_order_relaxed);
    STORE_COUNTERS(X)
#undef X
#define X(n, h) atomic_store_explicit(&m->now_##n, (int64_t)st->now.n, memory_order_relaxed);
    STORE_GAUGES(X)
#undef X
}
