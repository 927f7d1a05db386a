/* bench.h - what the subcommands of incipit-bench share: samples, and a report as table and JSON.
 *
 * A row holds the samples of one measurement and, where a peer was measured beside it in the same run,
 * the peer's; runs of both alternate, so that a slow minute of the machine hits both. Medians are
 * compared, never means. Thread: one. */
#pragma once

#include "common/config.h"
#include "common/err.h"
#include "common/str.h"

#define BENCH_MAX_REPS 101u
#define BENCH_MAX_ROWS 32u

struct bench_samples {
    double v[BENCH_MAX_REPS];
    uint32_t n;
};
static inline void bench_add(struct bench_samples *s, double v) {
    if (s->n < BENCH_MAX_REPS)
        s->v[s->n++] = v;
}
double bench_median(const struct bench_samples *s); /* 0 for none */
double bench_min(const struct bench_samples *s);
double bench_max(const struct bench_samples *s);

struct bench_row {
    char name[64];                   /* "prefill 512" */
    const char *unit;                /* "tokens/s": more is better */
    struct bench_samples ours, peer; /* peer.n 0: not measured */
};

struct bench_report {
    const char *what;    /* "engine" */
    const char *peer;    /* "llama.cpp", "raw socket"; NULL: none */
    struct strbuf facts; /* `key: value` lines about the run: model, threads, CPU */
    struct bench_row rows[BENCH_MAX_ROWS];
    uint32_t n_rows;
};
/* The row of that name, made when it is not there yet. */
struct bench_row *bench_row(struct bench_report *r, const char *unit, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
void bench_fact(struct bench_report *r, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
void bench_print(const struct bench_report *r, FILE *out);
/* {"what", "peer", "facts": {...}, "rows": [{"name", "unit", "median", "min", "max", "samples",
 *  "peer_median", "peer_samples", "ratio"}]} */
int bench_write_json(const struct bench_report *r, const char *path, struct errbuf *eb);

/* Items that are numbers from 1 to max; at most cap of them. Returns how many, 0 for anything else. */
uint32_t bench_points(const struct cfg_list *l, uint32_t max, uint32_t *ret, uint32_t cap);
/* A subcommand's options. 0: go on, and cfg_free() at the end; else the exit code + 1, and what had to be said was. */
int bench_args(const struct cfg_table *t, void *cfg, const char *usage, int argc, char **argv);

/* Subcommands; argv[0] is the subcommand's name. Exit codes: 0, 1 failed, 2 usage. */
int bench_engine_main(int argc, char **argv);
int bench_perplexity_main(int argc, char **argv);
int bench_transfer_main(int argc, char **argv);
