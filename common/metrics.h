/* metrics.h - metrics as tables, rendered as Prometheus text 0.0.4.
 *
 *     #define FOO_METRICS(X)                                                                     \
 *         X(fetch_total, COUNTER, "Fetch RPCs received")                                         \
 *         X(ram_used_bytes, GAUGE, "payload bytes held in RAM")                                  \
 *         X(fetch_seconds, HISTO, "frame complete to last byte", .buckets = &metric_buckets_rpc) \
 *         X(prompt_local, COUNTER, "prompt tokens by source", .name = "incipit_prompt_tokens_total", \
 *           .labels = "source=\"local\"")                                                        \
 *         X(vllm_ttft, HISTO, "...", .name = "vllm:time_to_first_token_seconds",                 \
 *           .buckets = &metric_buckets_vllm_ttft)
 *     struct foo_metrics { METRIC_FIELDS(FOO_METRICS) };
 *     METRIC_TABLE(foo_metrics, FOO_METRICS, "incipit_foo_")
 *             defines: const struct metric_table *foo_metrics_table(void)
 *
 *  type     C field               macros
 *  COUNTER  _Atomic uint64_t      METRIC_INC(m, f)  METRIC_ADD(m, f, n)
 *  GAUGE    _Atomic int64_t       METRIC_SET(m, f, v)  METRIC_ADD(m, f, n)
 *  FCOUNTER _Atomic uint64_t      METRIC_SETF(m, f, v): a total kept elsewhere, a double's bits
 *  FGAUGE   _Atomic uint64_t      METRIC_SETF(m, f, v): a double's bits
 *  HISTO    struct metric_histo   METRIC_OBSERVE(m, f, v)
 *
 * Exported name: .name, or the table's prefix + field. Rows of one name with different .labels
 * stand next to each other and share one HELP and TYPE. m may be NULL: nothing is counted.
 * Thread: any may count (relaxed atomics); rendering sees each value whole, not all at one instant.
 * */
#pragma once

#include <stdatomic.h>

#include "common/compiler.h"
#include "common/str.h"

#define METRIC_BUCKETS_MAX 40

struct metric_buckets {
    uint32_t n;
    double le[METRIC_BUCKETS_MAX]; /* upper edges, ascending; +Inf is implied */
};

/* vLLM's own edges, so that its dashboards work on our series, and finer ones from 1 ms on before them: a
 * hit takes less than its first. */
extern const struct metric_buckets metric_buckets_vllm_ttft; /* time to first token */
extern const struct metric_buckets
    metric_buckets_vllm_itl; /* between tokens, time per output token */
extern const struct metric_buckets
    metric_buckets_vllm_request; /* end to end, queue, prefill, decode */
extern const struct metric_buckets
    metric_buckets_vllm_tokens; /* prompt and generation lengths: 1,2,5,... */
extern const struct metric_buckets metric_buckets_rpc; /* seconds: 50 us ... 10 s */

struct metric_histo {
    const struct metric_buckets *buckets;
    _Atomic uint64_t count[METRIC_BUCKETS_MAX + 1]; /* own bucket only; summed when rendered */
    _Atomic uint64_t sum_bits;                      /* a double */
};

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_FCOUNTER, METRIC_FGAUGE, METRIC_HISTO };

struct metric_row {
    const char *field;
    enum metric_type type;
    size_t off;
    const char *help;
    const char *name;                     /* NULL: prefix + field */
    const char *labels;                   /* a="b",c="d" or NULL */
    const struct metric_buckets *buckets; /* NULL: metric_buckets_rpc */
};

struct metric_table {
    const char *prefix;
    const struct metric_row *rows;
    size_t n_rows, struct_bytes;
};

#define METRIC_CTYPE_COUNTER _Atomic uint64_t
#define METRIC_CTYPE_GAUGE _Atomic int64_t
#define METRIC_CTYPE_FCOUNTER _Atomic uint64_t
#define METRIC_CTYPE_FGAUGE _Atomic uint64_t
#define METRIC_CTYPE_HISTO struct metric_histo
#define METRIC_FIELD_(f, t, ...) METRIC_CTYPE_##t f;
#define METRIC_ROW_(f, t, ...) METRIC_ROW2_(f, t, __VA_ARGS__)
#define METRIC_ROW2_(f, t, help_, ...)                                                             \
    {.field = #f,                                                                                  \
     .type = METRIC_##t,                                                                           \
     .off = offsetof(metric_self_, f),                                                             \
     .help = help_,                                                                                \
     ##__VA_ARGS__},
#define METRIC_FIELDS(LIST) LIST(METRIC_FIELD_)
#define METRIC_TABLE(strct, LIST, prefix_)                                                         \
    static inline const struct metric_table *strct##_table(void) {                                 \
        typedef struct strct metric_self_;                                                         \
        static const struct metric_row rows[] = {LIST(METRIC_ROW_)};                               \
        static const struct metric_table table = {prefix_, rows, ARRAY_LEN(rows),                  \
                                                  sizeof(metric_self_)};                           \
        return &table;                                                                             \
    }

/* Zeroes m and points its histograms at their buckets. */
void metric_init(const struct metric_table *t, void *m);
/* Appends the table's text. common: labels put on every series (a="b"), or NULL. */
void metric_render(const struct metric_table *t, const void *m, const char *common,
                   struct strbuf *out);
/* Appends s as the inside of a label value: backslash, quote and newline escaped. */
void metric_label_escape(struct strbuf *out, struct str s);

void metric_histo_observe(struct metric_histo *h, double v);
uint64_t metric_histo_count(const struct metric_histo *h);
double metric_histo_sum(const struct metric_histo *h);

static inline uint64_t metric_f64_bits(double v) {
    uint64_t u;
    memcpy(&u, &v, sizeof(u));
    return u;
}

#define METRIC_ADD(m, f, v)                                                                        \
    do {                                                                                           \
        __typeof__(m) metric_m_ = (m); /* &x as m: no "always true" warning */                     \
        if (metric_m_)                                                                             \
            atomic_fetch_add_explicit(&metric_m_->f, (v), memory_order_relaxed);                   \
    } while (0)
#define METRIC_INC(m, f) METRIC_ADD(m, f, 1)
#define METRIC_SET(m, f, v)                                                                        \
    do {                                                                                           \
        __typeof__(m) metric_m_ = (m);                                                             \
        if (metric_m_)                                                                             \
            atomic_store_explicit(&metric_m_->f, (v), memory_order_relaxed);                       \
    } while (0)
#define METRIC_SETF(m, f, v) METRIC_SET(m, f, metric_f64_bits(v))
#define METRIC_OBSERVE(m, f, v)                                                                    \
    do {                                                                                           \
        __typeof__(m) metric_m_ = (m);                                                             \
        if (metric_m_)                                                                             \
            metric_histo_observe(&metric_m_->f, (v));                                              \
    } while (0)
