/* config.h - options as tables: one row gives the struct field, the parser of three sources,
 * --help, the example file and the operator's get and set.
 *
 *     #define FOO_CONFIG(X)                                                                      \
 *         X(listen_port, U32, 7070, 1, 65535, false, "RPC port")                                 \
 *         X(ram_bytes, U64, 1ull << 30, 1u << 26, 1ull << 44, false, "RAM tier budget")          \
 *         X(fetch, ENUM, "auto", "auto|always|never", 0, true, "when to fetch")                  \
 *         X(cache, LIST, "", 0, 64, false, "address of a cache node; repeatable")                \
 *         X(model, STR, "", 0, 4096, false, "GGUF file")                                         \
 *         X(verbose, BOOL, false, 0, 0, true, "say more")                                        \
 *         X(ratio, F64, 0.5, 0.0, 1.0, true, "share of ...")
 *     struct foo_config { CFG_FIELDS(FOO_CONFIG) };
 *     CFG_TABLE(foo_config, FOO_CONFIG)      defines: const struct cfg_table *foo_config_table(void)
 *
 *  type  C field             min, max
 *  U32   uint32_t            bounds of the value; a name ending in _bytes takes suffixes k, m, g, t (1024^n)
 *  U64   uint64_t            the same
 *  F64   double              bounds of the value
 *  BOOL  bool                unused (0); on the command line --x, --x=off, --no-x
 *  STR   const char *        bounds of the length; never NULL
 *  LIST  struct cfg_list     bounds of the number of items; items joined by commas, option repeatable;
 *                            of several sources the strongest one's list counts
 *  ENUM  uint32_t            min = "first|second|..."; the value is the index, so list an enum in its order
 *
 * Sources, weakest first: default, a file (--config FILE or INCIPIT_CONFIG; lines `name = value` of any length, no
 * sections, comments behind # or ;), environment INCIPIT_<NAME>, command line --some-name VALUE. A variable INCIPIT_* that
 * names no option is somebody else's (an environment is shared); an unknown name in file or command
 * line is an error.
 * live: may be changed by cfg_set() and cfg_reload() while the daemon runs; who uses such a row reads
 * it from the struct each time, on the loop thread.
 * Thread: none of its own. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"

struct cfg_list {
    const char *const *v; /* [n] */
    uint32_t n;
};

enum cfg_type { CFG_U32, CFG_U64, CFG_F64, CFG_BOOL, CFG_STR, CFG_LIST, CFG_ENUM };

struct cfg_opt { /* a row; filled by CFG_TABLE only */
    const char *name;
    enum cfg_type type;
    size_t off;
    bool live;
    const char *help;
    uint64_t def_u, min_u, max_u;
    double def_f, min_f, max_f;
    const char *def_s, *names;
};

struct cfg_table {
    const struct cfg_opt *opts;
    size_t n_opts, struct_bytes;
};

struct cfg_prog {
    const char *name;    /* "incipit-cachesvc" */
    const char *summary; /* one line for --help */
};

#define CFG_CTYPE_U32 uint32_t
#define CFG_CTYPE_U64 uint64_t
#define CFG_CTYPE_F64 double
#define CFG_CTYPE_BOOL bool
#define CFG_CTYPE_STR const char *
#define CFG_CTYPE_LIST struct cfg_list
#define CFG_CTYPE_ENUM uint32_t
#define CFG_INIT_U32(d, lo, hi) .def_u = (d), .min_u = (lo), .max_u = (hi)
#define CFG_INIT_U64(d, lo, hi) .def_u = (d), .min_u = (lo), .max_u = (hi)
#define CFG_INIT_F64(d, lo, hi) .def_f = (d), .min_f = (lo), .max_f = (hi)
#define CFG_INIT_BOOL(d, lo, hi) .def_u = (d)
#define CFG_INIT_STR(d, lo, hi) .def_s = (d), .min_u = (lo), .max_u = (hi)
#define CFG_INIT_LIST(d, lo, hi) .def_s = (d), .min_u = (lo), .max_u = (hi)
#define CFG_INIT_ENUM(d, lo, hi) .def_s = (d), .names = (lo)

#define CFG_FIELD_(f, t, d, lo, hi, live_, help_) CFG_CTYPE_##t f;
#define CFG_ROW_(f, t, d, lo, hi, live_, help_)                                                    \
    {.name = #f,                                                                                   \
     .type = CFG_##t,                                                                              \
     .off = offsetof(cfg_self_, f),                                                                \
     .live = (live_),                                                                              \
     .help = (help_),                                                                              \
     CFG_INIT_##t(d, lo, hi)},
#define CFG_FIELDS(LIST) LIST(CFG_FIELD_)
#define CFG_TABLE(strct, LIST)                                                                     \
    static inline const struct cfg_table *strct##_table(void) {                                    \
        typedef struct strct cfg_self_;                                                            \
        static const struct cfg_opt opts[] = {LIST(CFG_ROW_)};                                     \
        static const struct cfg_table table = {opts, ARRAY_LEN(opts), sizeof(cfg_self_)};          \
        return &table;                                                                             \
    }

#define CFG_DONE 1 /* --help, --version or --dump-config was printed to out */

/* Fills *cfg (of the table's struct) from all sources. 0: run; CFG_DONE: exit with 0; negative: the
 * text in eb names the option and its source. Free with cfg_free() after 0; after others there is
 * nothing to free. envp as environ. */
int cfg_load(const struct cfg_table *t, const struct cfg_prog *prog, void *cfg, int argc,
             char *const *argv, char *const *envp, FILE *out, struct errbuf *eb);
/* For tools: the command line alone, options and words in any order; argv[*ret_first_word..argc) are the words then
 * (argv is permuted). *cfg holds the defaults at least, also after an error. given[i], if not NULL, [n_opts]: row i was
 * named. CFG_DONE: --help or --version was asked for, and nothing was printed. Free with cfg_free(), whatever it
 * returned but ERR_NOMEM. */
struct cfg_asked {
    bool help, version;
    int first_word;
};
int cfg_args(const struct cfg_table *t, void *cfg, int argc, char *const *argv,
             struct cfg_asked *ret, bool *given, struct errbuf *eb);
/* All defaults, nothing else. */
int cfg_defaults(const struct cfg_table *t, void *cfg);
void cfg_free(const struct cfg_table *t, void *cfg);

/* The operator's set: live rows only (ERR_DENIED), known names only (ERR_NOTFOUND), bounds
 * (ERR_INVALID). An error changes nothing. */
int cfg_set(const struct cfg_table *t, void *cfg, const char *name, const char *value,
            struct errbuf *eb);
/* What SIGHUP does: the sources are read anew as cfg_load() read them. Rows marked live get their new
 * value; differs is called for each row, live or not, whose value is not the one in cfg (other rows
 * keep theirs until a restart). Negative, with eb: nothing has changed. */
int cfg_reload(const struct cfg_table *t, const struct cfg_prog *prog, void *cfg, int argc,
               char *const *argv, char *const *envp,
               void (*differs)(void *arg, const struct cfg_opt *o), void *arg, struct errbuf *eb);
/* The same of any row, before a program runs: a tool's own sources. */
int cfg_put(const struct cfg_table *t, void *cfg, const char *name, const char *value,
            struct errbuf *eb);
/* Writes the value as text that cfg_set() would read back; ERR_NOTFOUND, ERR_TOOBIG. */
int cfg_get(const struct cfg_table *t, const void *cfg, const char *name, char *ret, size_t cap);
/* Row by name; NULL when there is none. Pointer to its field inside cfg. */
const struct cfg_opt *cfg_find(const struct cfg_table *t, const char *name);
static inline const void *cfg_field(const struct cfg_opt *o, const void *cfg) {
    return (const char *)cfg + o->off;
}

void cfg_help(const struct cfg_table *t, const struct cfg_prog *prog, FILE *out);
/* One row of it: --name VALUE, help, bounds, default. */
void cfg_help_row(const struct cfg_opt *o, FILE *out);
/* A commented example file: every option with type, bounds, default and help, commented out. */
void cfg_dump(const struct cfg_table *t, const struct cfg_prog *prog, FILE *out);
