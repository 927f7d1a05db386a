/* bench_report.c - samples, the table for people and the JSON for machines. */
#include "tools/incipit-bench/bench.h"

#include <errno.h>
#include <stdarg.h>

#include "common/json.h"

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const struct bench_samples *s, double q) {
    if (!s->n)
        return 0;
    double v[BENCH_MAX_REPS];
    memcpy(v, s->v, s->n * sizeof(*v));
    qsort(v, s->n, sizeof(*v), by_value);
    const double at = q * (s->n - 1);
    const uint32_t lo = (uint32_t)at;
    const uint32_t hi = MIN(lo + 1, s->n - 1);
    return v[lo] + (v[hi] - v[lo]) * (at - lo);
}

double bench_median(const struct bench_samples *s) {
    return quantile(s, 0.5);
}
double bench_min(const struct bench_samples *s) {
    return quantile(s, 0);
}
double bench_max(const struct bench_samples *s) {
    return quantile(s, 1);
}

struct bench_row *bench_row(struct bench_report *r, const char *unit, const char *fmt, ...) {
    char name[sizeof(r->rows[0].name)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    for (uint32_t i = 0; i < r->n_rows; i++)
        if (strcmp(r->rows[i].name, name) == 0)
            return &r->rows[i];
    /* More points than rows can only come from a longer list of options than the parser lets in. */
    struct bench_row *row = &r->rows[MIN(r->n_rows, BENCH_MAX_ROWS - 1)];
    r->n_rows = MIN(r->n_rows + 1, BENCH_MAX_ROWS);
    memcpy(row->name, name, sizeof(name));
    row->unit = unit;
    return row;
}

void bench_fact(struct bench_report *r, const char *key, const char *fmt, ...) {
    strbuf_addf(&r->facts, "%s: ", key);
    va_list ap;
    va_start(ap, fmt);
    strbuf_vaddf(&r->facts, fmt, ap);
    va_end(ap);
    strbuf_add(&r->facts, "\n", 1);
}

void bench_print(const struct bench_report *r, FILE *out) {
    fprintf(out, "%.*s\n", (int)r->facts.len, r->facts.p ? r->facts.p : "");
    fprintf(out, "%-26s %10s %21s", r->what, "median", "min .. max");
    if (r->peer)
        fprintf(out, " %12s %21s %7s", r->peer, "min .. max", "ratio");
    fputc('\n', out);
    for (uint32_t i = 0; i < r->n_rows; i++) {
        const struct bench_row *w = &r->rows[i];
        const double ours = bench_median(&w->ours), peer = bench_median(&w->peer);
        fprintf(out, "%-26s %10.2f %9.2f .. %8.2f", w->name, ours, bench_min(&w->ours),
                bench_max(&w->ours));
        if (w->peer.n && peer > 0)
            fprintf(out, " %12.2f %9.2f .. %8.2f %7.2f", peer, bench_min(&w->peer),
                    bench_max(&w->peer), ours / peer);
        fprintf(out, "  %s\n", w->unit);
    }
    fflush(out);
}

static void write_samples(struct json_w *j, const char *key, const struct bench_samples *s) {
    json_w_key(j, key);
    json_w_arr(j);
    for (uint32_t i = 0; i < s->n; i++)
        json_w_num(j, s->v[i]);
    json_w_end(j);
}

static void write_num(struct json_w *j, const char *key, double v) {
    json_w_key(j, key);
    json_w_num(j, v);
}

static void write_row(struct json_w *j, const struct bench_row *w) {
    json_w_obj(j);
    json_w_kstr(j, "name", str_of(w->name));
    json_w_kstr(j, "unit", str_of(w->unit));
    write_num(j, "median", bench_median(&w->ours));
    write_num(j, "min", bench_min(&w->ours));
    write_num(j, "max", bench_max(&w->ours));
    write_samples(j, "samples", &w->ours);
    if (w->peer.n) {
        write_num(j, "peer_median", bench_median(&w->peer));
        write_samples(j, "peer_samples", &w->peer);
        write_num(j, "ratio", bench_median(&w->ours) / bench_median(&w->peer));
    }
    json_w_end(j);
}

static void write_facts(struct json_w *j, struct str facts) {
    struct str line;
    json_w_key(j, "facts");
    json_w_obj(j);
    while (str_split(&facts, '\n', &line)) {
        const size_t at = str_find(line, STR(": "), 0);
        if (at == SIZE_MAX)
            continue;
        char key[64];
        snprintf(key, sizeof(key), "%.*s", (int)MIN(at, sizeof(key) - 1), line.p);
        json_w_kstr(j, key, str_cut(line, at + 2, line.n));
    }
    json_w_end(j);
}

int bench_write_json(const struct bench_report *r, const char *path, struct errbuf *eb) {
    struct strbuf out;
    struct json_w j;
    strbuf_init(&out);
    json_w_init(&j, &out);
    json_w_obj(&j);
    json_w_kstr(&j, "what", str_of(r->what));
    if (r->peer)
        json_w_kstr(&j, "peer", str_of(r->peer));
    write_facts(&j, (struct str){r->facts.p, r->facts.len});
    json_w_key(&j, "rows");
    json_w_arr(&j);
    for (uint32_t i = 0; i < r->n_rows; i++)
        write_row(&j, &r->rows[i]);
    json_w_end(&j);
    json_w_end(&j);
    int rv = out.oom ? ERR_NOMEM : 0;
    FILE *f = rv ? NULL : fopen(path, "w");
    if (!rv && !f)
        rv = err_set(eb, -errno, "open '%s'", path);
    if (f) {
        const bool ok = fwrite(out.p, 1, out.len, f) == out.len && fputc('\n', f) != EOF;
        if (fclose(f) != 0 || !ok)
            rv = err_set(eb, -EIO, "write '%s'", path);
    }
    strbuf_fini(&out);
    return rv;
}

uint32_t bench_points(const struct cfg_list *l, uint32_t max, uint32_t *ret, uint32_t cap) {
    uint32_t n = 0;
    for (; n < l->n; n++) {
        uint64_t v;
        if (n == cap || str_to_u64(str_of(l->v[n]), &v) < 0 || v < 1 || v > max)
            return 0;
        ret[n] = (uint32_t)v;
    }
    return n;
}

int bench_args(const struct cfg_table *t, void *cfg, const char *usage, int argc, char **argv) {
    struct cfg_asked asked;
    struct errbuf eb;
    int rv = cfg_args(t, cfg, argc, argv, &asked, NULL, &eb);
    if (rv == 0 && asked.first_word < argc)
        rv = err_set(&eb, ERR_INVALID, "unexpected argument '%s'", argv[asked.first_word]);
    if (rv == 0)
        return 0;
    if (rv == CFG_DONE) {
        printf("usage: incipit-bench %s\n", usage);
        for (size_t i = 0; i < t->n_opts; i++)
            cfg_help_row(&t->opts[i], stdout);
    } else {
        fprintf(stderr, "incipit-bench: %s\nusage: incipit-bench %s\n", eb.text, usage);
    }
    cfg_free(t, cfg);
    return rv == CFG_DONE ? 1 : 3;
}
