#include "common/metrics.h"

#include <inttypes.h>
#include <math.h>

#include "common/check.h"

const struct metric_buckets metric_buckets_vllm_ttft = {
    22, {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
         1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0}};
const struct metric_buckets metric_buckets_vllm_itl = {
    22, {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,  0.15, 0.2,  0.3,
         0.4,   0.5,    0.75,  1.0,  2.5,   5.0,  7.5,   10.0, 20.0, 40.0, 80.0}};
const struct metric_buckets metric_buckets_vllm_request = {
    29, {0.001, 0.0025, 0.005, 0.01,  0.025, 0.05,  0.1,   0.2,    0.3,   0.5,
         0.8,   1.0,    1.5,   2.0,   2.5,   5.0,   10.0,  15.0,   20.0,  30.0,
         40.0,  50.0,   60.0,  120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0}};
const struct metric_buckets metric_buckets_vllm_tokens = {
    16, {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}};
const struct metric_buckets metric_buckets_rpc = {18,
                                                  {0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025,
                                                   0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
                                                   2.5, 5.0, 7.5, 10.0}};

static void *row_field(const struct metric_row *r, void *m) {
    return (char *)m + r->off;
}

void metric_init(const struct metric_table *t, void *m) {
    memset(m, 0, t->struct_bytes);
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct metric_row *r = &t->rows[i];
        if (r->type == METRIC_HISTO) {
            struct metric_histo *h = row_field(r, m);
            h->buckets = r->buckets ? r->buckets : &metric_buckets_rpc;
        }
    }
}

static double bits_f64(uint64_t u) {
    double v;
    memcpy(&v, &u, sizeof(v));
    return v;
}

void metric_histo_observe(struct metric_histo *h, double v) {
    const struct metric_buckets *b = h->buckets;
    CHECK(b); /* metric_init() was forgotten */
    uint32_t i = 0;
    while (i < b->n && !(v <= b->le[i])) /* a NaN lands in +Inf */
        i++;
    atomic_fetch_add_explicit(&h->count[i], 1, memory_order_relaxed);
    uint64_t old = atomic_load_explicit(&h->sum_bits, memory_order_relaxed), new;
    do {
        new = metric_f64_bits(bits_f64(old) + v);
    } while (!atomic_compare_exchange_weak_explicit(&h->sum_bits, &old, new, memory_order_relaxed,
                                                    memory_order_relaxed));
}

uint64_t metric_histo_count(const struct metric_histo *h) {
    uint64_t n = 0;
    for (uint32_t i = 0; h->buckets && i <= h->buckets->n; i++)
        n += atomic_load_explicit(&h->count[i], memory_order_relaxed);
    return n;
}

double metric_histo_sum(const struct metric_histo *h) {
    return bits_f64(atomic_load_explicit(&h->sum_bits, memory_order_relaxed));
}

void metric_label_escape(struct strbuf *out, struct str s) {
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\n')
            strbuf_addz(out, "\\n");
        else if (s.p[i] == '\\' || s.p[i] == '"')
            strbuf_addf(out, "\\%c", s.p[i]);
        else
            strbuf_addc(out, s.p[i]);
    }
}

static void add_f64(struct strbuf *out, double v) {
    if (isnan(v))
        strbuf_addz(out, "NaN");
    else if (isinf(v))
        strbuf_addz(out, v > 0 ? "+Inf" : "-Inf");
    else
        strbuf_addf(out, "%.15g", v);
}

static void add_name(const struct metric_table *t, const struct metric_row *r, struct strbuf *out) {
    if (r->name)
        strbuf_addz(out, r->name);
    else
        strbuf_addf(out, "%s%s", t->prefix, r->field);
}

/* name suffix {common, row's labels, last} and a blank */
static void add_series(const struct metric_table *t, const struct metric_row *r, const char *suffix,
                       const char *common, const char *last, struct strbuf *out) {
    const char *parts[] = {common, r->labels, last};
    bool any = false;
    add_name(t, r, out);
    strbuf_addz(out, suffix);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (!parts[i] || !parts[i][0])
            continue;
        strbuf_addc(out, any ? ',' : '{');
        strbuf_addz(out, parts[i]);
        any = true;
    }
    strbuf_addz(out, any ? "} " : " ");
}

static void render_histo(const struct metric_table *t, const struct metric_row *r,
                         const struct metric_histo *h, const char *common, struct strbuf *out) {
    /* The histogram's own edges, not the row's: two tables may show one field under two names. */
    const struct metric_buckets *b = h->buckets   ? h->buckets
                                     : r->buckets ? r->buckets
                                                  : &metric_buckets_rpc;
    uint64_t cumulative = 0;
    for (uint32_t i = 0; i <= b->n; i++) {
        char le[40];
        if (i < b->n)
            snprintf(le, sizeof(le), b->le[i] == floor(b->le[i]) ? "le=\"%.1f\"" : "le=\"%.15g\"",
                     b->le[i]);
        else
            snprintf(le, sizeof(le), "le=\"+Inf\"");
        cumulative += atomic_load_explicit(&h->count[i], memory_order_relaxed);
        add_series(t, r, "_bucket", common, le, out);
        strbuf_addf(out, "%" PRIu64 "\n", cumulative);
    }
    add_series(t, r, "_sum", common, NULL, out);
    add_f64(out, metric_histo_sum(h));
    strbuf_addc(out, '\n');
    add_series(t, r, "_count", common, NULL, out);
    strbuf_addf(out, "%" PRIu64 "\n", cumulative);
}

static void render_row(const struct metric_table *t, const struct metric_row *r, const void *m,
                       const char *common, struct strbuf *out) {
    const void *f = (const char *)m + r->off;
    if (r->type == METRIC_HISTO) {
        render_histo(t, r, f, common, out);
        return;
    }
    add_series(t, r, "", common, NULL, out);
    if (r->type == METRIC_COUNTER)
        strbuf_addf(out, "%" PRIu64,
                    atomic_load_explicit((const _Atomic uint64_t *)f, memory_order_relaxed));
    else if (r->type == METRIC_GAUGE)
        strbuf_addf(out, "%" PRId64,
                    atomic_load_explicit((const _Atomic int64_t *)f, memory_order_relaxed));
    else
        add_f64(out,
                bits_f64(atomic_load_explicit((const _Atomic uint64_t *)f, memory_order_relaxed)));
    strbuf_addc(out, '\n');
}

/* Rows of one exported name are one family; only .name can make them so. */
static bool same_family(const struct metric_row *a, const struct metric_row *b) {
    return a->name && b->name && strcmp(a->name, b->name) == 0;
}

void metric_render(const struct metric_table *t, const void *m, const char *common,
                   struct strbuf *out) {
    static const char *const type_names[] = {
        [METRIC_COUNTER] = "counter", [METRIC_GAUGE] = "gauge",     [METRIC_FCOUNTER] = "counter",
        [METRIC_FGAUGE] = "gauge",    [METRIC_HISTO] = "histogram",
    };
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct metric_row *r = &t->rows[i];
        if (i == 0 || !same_family(r, &t->rows[i - 1])) {
            strbuf_addz(out, "# HELP ");
            add_name(t, r, out);
            strbuf_addf(out, " %s\n# TYPE ", r->help);
            add_name(t, r, out);
            strbuf_addf(out, " %s\n", type_names[r->type]);
        }
        render_row(t, r, m, common, out);
    }
}
