#include "common/config.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>

#include "common/check.h"
#include "common/secret.h"
#include "common/str.h"

enum source { SRC_DEFAULT, SRC_FILE, SRC_ENV, SRC_CLI };

struct loading { /* one cfg_load() */
    const struct cfg_table *t;
    void *cfg;
    enum source source;
    uint8_t *list_source; /* [n_opts]: the source that wrote a list so far */
    struct errbuf *eb;
};

/* --- one value --- */

static void *field(const struct cfg_opt *o, void *cfg) {
    return (char *)cfg + o->off;
}

static bool takes_suffix(const struct cfg_opt *o) {
    return str_ends(str_of(o->name), STR("_bytes")) || str_eq(str_of(o->name), STR("bytes"));
}

static int parse_uint(const struct cfg_opt *o, struct str s, uint64_t *ret) {
    static const char suffixes[] = "kmgt";
    unsigned shift = 0;
    if (s.n > 1 && takes_suffix(o)) {
        const char *at = strchr(suffixes, tolower((unsigned char)s.p[s.n - 1]));
        if (at && *at) {
            shift = 10 * (unsigned)(at - suffixes + 1);
            s.n--;
        }
    }
    uint64_t v;
    if (str_to_u64(s, &v) < 0 || (shift && v > UINT64_MAX >> shift))
        return ERR_INVALID;
    *ret = v << shift;
    return 0;
}

/* "1g" for 1073741824 where the option takes suffixes, else the plain number. */
static void format_uint(const struct cfg_opt *o, uint64_t v, char *ret, size_t cap) {
    static const char suffixes[] = "tgmk";
    for (unsigned i = 0; takes_suffix(o) && v && i < 4; i++) {
        unsigned shift = 40 - 10 * i;
        if ((v & ((1ull << shift) - 1)) == 0) {
            snprintf(ret, cap, "%" PRIu64 "%c", v >> shift, suffixes[i]);
            return;
        }
    }
    snprintf(ret, cap, "%" PRIu64, v);
}

static int set_uint(const struct cfg_opt *o, void *cfg, struct str s, struct errbuf *eb) {
    uint64_t v = 0;
    char lo[32], hi[32];
    format_uint(o, o->min_u, lo, sizeof(lo));
    format_uint(o, o->max_u, hi, sizeof(hi));
    if (parse_uint(o, s, &v) < 0)
        return err_set(eb, ERR_INVALID, "'" STR_FMT "' is not a whole number%s (%s to %s)",
                       STR_ARG(s), takes_suffix(o) ? ", suffix k, m, g or t allowed" : "", lo, hi);
    if (v < o->min_u || v > o->max_u || (o->type == CFG_U32 && v > UINT32_MAX))
        return err_set(eb, ERR_INVALID, "'" STR_FMT "' is not in %s to %s", STR_ARG(s), lo, hi);
    if (o->type == CFG_U32)
        *(uint32_t *)field(o, cfg) = (uint32_t)v;
    else
        *(uint64_t *)field(o, cfg) = v;
    return 0;
}

static int set_f64(const struct cfg_opt *o, void *cfg, struct str s, struct errbuf *eb) {
    double v;
    if (str_to_f64(s, &v) < 0 || v < o->min_f || v > o->max_f)
        return err_set(eb, ERR_INVALID, "'" STR_FMT "' is not a number in %g to %g", STR_ARG(s),
                       o->min_f, o->max_f);
    *(double *)field(o, cfg) = v;
    return 0;
}

static int set_bool(const struct cfg_opt *o, void *cfg, struct str s, struct errbuf *eb) {
    static const char *const yes[] = {"true", "on", "yes", "1"};
    static const char *const no[] = {"false", "off", "no", "0"};
    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        if (str_eq_nocase(s, str_of(yes[i])) || str_eq_nocase(s, str_of(no[i]))) {
            *(bool *)field(o, cfg) = str_eq_nocase(s, str_of(yes[i]));
            return 0;
        }
    }
    return err_set(eb, ERR_INVALID, "'" STR_FMT "' is not true or false", STR_ARG(s));
}

static int set_str(const struct cfg_opt *o, void *cfg, struct str s, struct errbuf *eb) {
    if (s.n < o->min_u || s.n > o->max_u)
        return err_set(eb, ERR_INVALID, "length %zu is not in %" PRIu64 " to %" PRIu64, s.n,
                       o->min_u, o->max_u);
    char *z = str_dup(s);
    if (!z)
        return err_set(eb, ERR_NOMEM, "out of memory");
    const char **at = field(o, cfg);
    free((void *)(uintptr_t)*at);
    *at = z;
    return 0;
}

static void list_clear(struct cfg_list *l) {
    for (uint32_t i = 0; i < l->n; i++)
        free((void *)(uintptr_t)l->v[i]);
    free((void *)(uintptr_t)l->v);
    *l = (struct cfg_list){0};
}

static int list_push(struct cfg_list *l, struct str item) {
    const char **v = realloc((void *)(uintptr_t)l->v, (l->n + 1) * sizeof(*v));
    if (!v)
        return ERR_NOMEM;
    l->v = v;
    v[l->n] = str_dup(item);
    if (!v[l->n])
        return ERR_NOMEM;
    l->n++;
    return 0;
}

/* Appends; the minimum is checked when all sources have spoken. */
static int add_list(const struct cfg_opt *o, void *cfg, struct str s, struct errbuf *eb) {
    struct cfg_list *l = field(o, cfg);
    struct str item;
    while (str_split(&s, ',', &item)) {
        item = str_trim(item);
        if (item.n == 0)
            continue;
        if (l->n >= o->max_u)
            return err_set(eb, ERR_INVALID, "more than %" PRIu64 " items", o->max_u);
        if (list_push(l, item) < 0)
            return err_set(eb, ERR_NOMEM, "out of memory");
    }
    return 0;
}

static int set_enum(const struct cfg_opt *o, void *cfg, struct str s, struct errbuf *eb) {
    struct str rest = str_of(o->names), name;
    for (uint32_t i = 0; str_split(&rest, '|', &name); i++) {
        if (str_eq(name, s)) {
            *(uint32_t *)field(o, cfg) = i;
            return 0;
        }
    }
    return err_set(eb, ERR_INVALID, "'" STR_FMT "' is not one of %s", STR_ARG(s), o->names);
}

static int set_value(const struct cfg_opt *o, void *cfg, struct str s, struct errbuf *eb) {
    switch (o->type) {
    case CFG_U32:
    case CFG_U64:
        return set_uint(o, cfg, s, eb);
    case CFG_F64:
        return set_f64(o, cfg, s, eb);
    case CFG_BOOL:
        return set_bool(o, cfg, s, eb);
    case CFG_STR:
        return set_str(o, cfg, s, eb);
    case CFG_LIST:
        return add_list(o, cfg, s, eb);
    case CFG_ENUM:
        return set_enum(o, cfg, s, eb);
    }
    UNREACHABLE("option type");
}

static void enum_name(const struct cfg_opt *o, uint32_t index, char *ret, size_t cap) {
    struct str rest = str_of(o->names), name = STR("?");
    for (uint32_t i = 0; str_split(&rest, '|', &name) && i < index; i++) {
    }
    snprintf(ret, cap, STR_FMT, STR_ARG(name));
}

/* --- tables --- */

const struct cfg_opt *cfg_find(const struct cfg_table *t, const char *name) {
    for (size_t i = 0; i < t->n_opts; i++)
        if (strcmp(t->opts[i].name, name) == 0)
            return &t->opts[i];
    return NULL;
}

static int set_default(const struct cfg_opt *o, void *cfg) {
    switch (o->type) {
    case CFG_U32:
        *(uint32_t *)field(o, cfg) = (uint32_t)o->def_u;
        return 0;
    case CFG_U64:
        *(uint64_t *)field(o, cfg) = o->def_u;
        return 0;
    case CFG_F64:
        *(double *)field(o, cfg) = o->def_f;
        return 0;
    case CFG_BOOL:
        *(bool *)field(o, cfg) = o->def_u != 0;
        return 0;
    case CFG_STR: {
        char *z =
            str_dup(str_of(o->def_s)); /* a default may be shorter than the least length: unset */
        *(const char **)field(o, cfg) = z;
        return z ? 0 : ERR_NOMEM;
    }
    case CFG_LIST:
        return add_list(o, cfg, str_of(o->def_s), NULL);
    case CFG_ENUM: {
        struct errbuf eb;
        int rv = set_enum(o, cfg, str_of(o->def_s), &eb);
        CHECK(rv == 0); /* the table names a default that is none of its names */
        return rv;
    }
    }
    UNREACHABLE("option type");
}

int cfg_defaults(const struct cfg_table *t, void *cfg) {
    memset(cfg, 0, t->struct_bytes);
    for (size_t i = 0; i < t->n_opts; i++) {
        int rv = set_default(&t->opts[i], cfg);
        if (rv < 0) {
            cfg_free(t, cfg);
            return rv;
        }
    }
    return 0;
}

void cfg_free(const struct cfg_table *t, void *cfg) {
    for (size_t i = 0; i < t->n_opts; i++) {
        const struct cfg_opt *o = &t->opts[i];
        if (o->type == CFG_STR) {
            const char **at = field(o, cfg);
            free((void *)(uintptr_t)*at);
            *at = NULL;
        } else if (o->type == CFG_LIST) {
            list_clear(field(o, cfg));
        }
    }
}

int cfg_set(const struct cfg_table *t, void *cfg, const char *name, const char *value,
            struct errbuf *eb) {
    const struct cfg_opt *o = cfg_find(t, name);
    if (!o)
        return err_set(eb, ERR_NOTFOUND, "no option '%s'", name);
    if (!o->live)
        return err_set(eb, ERR_DENIED, "option '%s' cannot change while running", name);
    return cfg_put(t, cfg, name, value, eb);
}

int cfg_put(const struct cfg_table *t, void *cfg, const char *name, const char *value,
            struct errbuf *eb) {
    const struct cfg_opt *o = cfg_find(t, name);
    if (!o)
        return err_set(eb, ERR_NOTFOUND, "no option '%s'", name);
    struct cfg_list was = {0}, *list = o->type == CFG_LIST ? field(o, cfg) : NULL;
    if (list) { /* appended to while it loads: an error must leave what was there */
        was = *list;
        *list = (struct cfg_list){0};
    }
    int rv = set_value(o, cfg, str_of(value), eb);
    if (rv == 0 && list && list->n < o->min_u)
        rv = err_set(eb, ERR_INVALID, "at least %" PRIu64 " item(s) are needed", o->min_u);
    if (list) {
        list_clear(rv < 0 ? list : &was);
        if (rv < 0)
            *list = was;
    }
    return rv < 0 ? err_wrap(eb, rv, "option '%s'", name) : 0;
}

static void format_value(const struct cfg_opt *o, const void *cfg, struct strbuf *out) {
    const void *at = cfg_field(o, cfg);
    char text[64];
    switch (o->type) {
    case CFG_U32:
    case CFG_U64:
        format_uint(o, o->type == CFG_U32 ? *(const uint32_t *)at : *(const uint64_t *)at, text,
                    sizeof(text));
        strbuf_addz(out, text);
        break;
    case CFG_F64:
        strbuf_addf(out, "%.15g", *(const double *)at);
        break;
    case CFG_BOOL:
        strbuf_addz(out, *(const bool *)at ? "true" : "false");
        break;
    case CFG_STR:
        strbuf_addz(out, *(const char *const *)at);
        break;
    case CFG_LIST: {
        const struct cfg_list *l = at;
        for (uint32_t i = 0; i < l->n; i++)
            strbuf_addf(out, "%s%s", i ? "," : "", l->v[i]);
        break;
    }
    case CFG_ENUM:
        enum_name(o, *(const uint32_t *)at, text, sizeof(text));
        strbuf_addz(out, text);
        break;
    }
}

int cfg_get(const struct cfg_table *t, const void *cfg, const char *name, char *ret, size_t cap) {
    const struct cfg_opt *o = cfg_find(t, name);
    if (!o)
        return ERR_NOTFOUND;
    struct strbuf b;
    strbuf_init(&b);
    format_value(o, cfg, &b);
    int rv = b.oom ? ERR_NOMEM : b.len >= cap ? ERR_TOOBIG : 0;
    if (rv == 0)
        snprintf(ret, cap, STR_FMT, STR_ARG(strbuf_view(&b)));
    strbuf_fini(&b);
    return rv;
}

/* --- sources --- */

static int load_value(struct loading *l, const struct cfg_opt *o, struct str value) {
    uint8_t *wrote = &l->list_source[o - l->t->opts];
    if (o->type == CFG_LIST && *wrote != l->source) {
        list_clear(field(o, l->cfg)); /* a stronger source replaces, the same one appends */
        *wrote = (uint8_t)l->source;
    }
    return set_value(o, l->cfg, value, l->eb);
}

/* "name = value", or "name: value"; a ';' behind a blank begins a comment. */
static int load_line(struct loading *l, const struct secret_file *f, struct str line) {
    char key[128];
    size_t n = 0, end = 0;
    while (n < line.n && line.p[n] != '=' && line.p[n] != ':')
        n++;
    struct str name = str_trim(str_cut(line, 0, n)), value = str_cut(line, n + 1, line.n);
    if (n == line.n || name.n == 0)
        return secret_file_error(f, l->eb,
                                 line.p[0] == '[' ? "there are no sections" : "not 'name = value'");
    while (end < value.n && !(value.p[end] == ';' && (end == 0 || str_is_blank(value.p[end - 1]))))
        end++;
    snprintf(key, sizeof(key), STR_FMT, STR_ARG(name));
    for (char *c = key; *c; c++)
        *c = *c == '-' ? '_' : *c;
    const struct cfg_opt *o = cfg_find(l->t, key);
    if (!o)
        return secret_file_error(f, l->eb, "unknown option '" STR_FMT "'", STR_ARG(name));
    int rv = load_value(l, o, str_trim(str_cut(value, 0, end)));
    return rv < 0 ? err_wrap(l->eb, rv, "%s '%s', line %u: option '%s'", f->what, f->path, f->line,
                             o->name)
                  : 0;
}

/* By the reader of key files: lines of any length, so that no comment's rest becomes a line. */
static int load_file(struct loading *l, const char *path) {
    struct secret_file f;
    struct str line;
    int rv = secret_file_open(&f, "config file", path, NULL, l->eb);
    l->source = SRC_FILE;
    while (rv == 0 && secret_file_next(&f, &line))
        if (line.p[0] != ';')
            rv = load_line(l, &f, line);
    secret_file_close(&f);
    return rv;
}

static const char *env_get(char *const *envp, const char *name) {
    size_t n = strlen(name);
    for (; envp && *envp; envp++)
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=')
            return *envp + n + 1;
    return NULL;
}

static int load_env(struct loading *l, char *const *envp) {
    l->source = SRC_ENV;
    for (size_t i = 0; i < l->t->n_opts; i++) {
        char name[128];
        int n = snprintf(name, sizeof(name), "INCIPIT_%s", l->t->opts[i].name);
        CHECK(n > 0 && (size_t)n < sizeof(name));
        for (char *c = name; *c; c++)
            *c = (char)toupper((unsigned char)*c);
        const char *value = env_get(envp, name);
        int rv = value ? load_value(l, &l->t->opts[i], str_of(value)) : 0;
        if (rv < 0)
            return err_wrap(l->eb, rv, "environment variable %s", name);
    }
    return 0;
}

enum { OPT_HELP = 256 /* above any short option */, OPT_VERSION, OPT_DUMP, OPT_CONFIG, OPT_FIRST };

/* getopt's table: per option its name with dashes, and --no-name for booleans. */
struct cli_names {
    struct option *v;
    char (*text)[96];
};

static void cli_names_fini(struct cli_names *c) {
    free(c->v);
    free(c->text);
}

static int cli_names_init(struct cli_names *c, const struct cfg_table *t, bool is_tool) {
    size_t n = 0;
    c->v = alloc_array(2 * t->n_opts + 5, sizeof(*c->v));
    c->text = alloc_array(2 * t->n_opts, sizeof(*c->text));
    if (!c->v || !c->text)
        return ERR_NOMEM;
    c->v[n++] = (struct option){"help", no_argument, NULL, OPT_HELP};
    c->v[n++] = (struct option){"version", no_argument, NULL, OPT_VERSION};
    if (!is_tool) {
        c->v[n++] = (struct option){"dump-config", no_argument, NULL, OPT_DUMP};
        c->v[n++] = (struct option){"config", required_argument, NULL, OPT_CONFIG};
    }
    for (size_t i = 0; i < t->n_opts; i++) {
        bool is_bool = t->opts[i].type == CFG_BOOL;
        for (size_t no = 0; no <= is_bool; no++) {
            char *text = c->text[2 * i + no];
            snprintf(text, sizeof(*c->text), "%s%s", no ? "no-" : "", t->opts[i].name);
            for (char *p = text; *p; p++)
                *p = *p == '_' ? '-' : *p;
            c->v[n++] = (struct option){text,
                                        no        ? no_argument
                                        : is_bool ? optional_argument
                                                  : required_argument,
                                        NULL, (int)(OPT_FIRST + 2 * i + no)};
        }
    }
    return 0;
}

struct cli { /* what the command line asks for besides options */
    bool help, version, dump;
    const char *config;
    bool takes_words; /* in: words may stand among the options, and are moved behind them */
    int first_word;
    bool *given; /* in: [n_opts] or NULL */
};

/* Two passes: the first (l NULL) finds --config and the printing flags, the second sets the values,
 * for the file lies below the command line. */
static int walk_cli(struct loading *l, const struct cli_names *names, int argc, char *const *argv,
                    struct cli *ret, struct errbuf *eb) {
    optind = 0; /* GNU: start anew */
    opterr = 0;
    for (;;) {
        int at = optind ? optind : 1;
        int c = getopt_long(argc, argv, ret->takes_words ? ":h" : "+:h", names->v, NULL);
        if (c == -1)
            break;
        if (c == ':')
            return err_set(eb, ERR_INVALID, "option '%s' needs a value", argv[optind - 1]);
        if (c == '?')
            return err_set(eb, ERR_INVALID, "unknown option '%s'; see --help",
                           argv[ret->takes_words ? optind - 1 : at]);
        ret->help |= c == OPT_HELP || c == 'h';
        ret->version |= c == OPT_VERSION;
        ret->dump |= c == OPT_DUMP;
        if (c == OPT_CONFIG)
            ret->config = optarg;
        if (c < OPT_FIRST || !l)
            continue;
        size_t i = (size_t)(c - OPT_FIRST);
        const char *value = optarg ? optarg : i % 2 ? "false" : "true";
        if (ret->given)
            ret->given[i / 2] = true;
        int rv = load_value(l, &l->t->opts[i / 2], str_of(value));
        if (rv < 0)
            return err_wrap(eb, rv, "option --%s", names->text[i]);
    }
    ret->first_word = optind;
    if (optind < argc && !ret->takes_words)
        return err_set(eb, ERR_INVALID, "unexpected argument '%s'; see --help", argv[optind]);
    return 0;
}

static int check_lists(const struct cfg_table *t, const void *cfg, struct errbuf *eb) {
    for (size_t i = 0; i < t->n_opts; i++) {
        const struct cfg_opt *o = &t->opts[i];
        if (o->type == CFG_LIST && ((const struct cfg_list *)cfg_field(o, cfg))->n < o->min_u)
            return err_set(eb, ERR_INVALID, "option '%s' needs at least %" PRIu64 " item(s)",
                           o->name, o->min_u);
    }
    return 0;
}

/* Weakest first: each value overwrites what a weaker source said, so nothing has to remember where a
 * value came from, but for lists, which a source may give in several pieces. */
static int load_all(struct loading *l, const struct cli_names *names, const struct cli *cli,
                    int argc, char *const *argv, char *const *envp) {
    const char *file = cli->config ? cli->config : env_get(envp, "INCIPIT_CONFIG");
    struct cli again = {0};
    int rv = file ? load_file(l, file) : 0;
    if (rv == 0)
        rv = load_env(l, envp);
    l->source = SRC_CLI;
    if (rv == 0)
        rv = walk_cli(l, names, argc, argv, &again, l->eb);
    return rv == 0 ? check_lists(l->t, l->cfg, l->eb) : rv;
}

int cfg_load(const struct cfg_table *t, const struct cfg_prog *prog, void *cfg, int argc,
             char *const *argv, char *const *envp, FILE *out, struct errbuf *eb) {
    struct cli_names names = {0};
    struct cli cli = {0};
    struct errbuf own;
    struct loading l = {.t = t, .cfg = cfg, .eb = eb ? eb : &own};
    l.list_source = alloc_array(t->n_opts, 1);
    int rv = l.list_source ? cli_names_init(&names, t, false) : ERR_NOMEM;
    if (rv == 0)
        rv = walk_cli(NULL, &names, argc, argv, &cli, l.eb);
    if (rv == 0 && (cli.help || cli.version || cli.dump)) {
        if (cli.help)
            cfg_help(t, prog, out);
        else if (cli.version)
            fprintf(out, "%s %s\n", prog->name, INCIPIT_VERSION);
        else
            cfg_dump(t, prog, out);
        rv = CFG_DONE;
    }
    if (rv == 0 && (rv = cfg_defaults(t, cfg)) == 0) {
        rv = load_all(&l, &names, &cli, argc, argv, envp);
        if (rv < 0)
            cfg_free(t, cfg);
    }
    cli_names_fini(&names);
    free(l.list_source);
    return rv;
}

static size_t field_bytes(const struct cfg_opt *o) {
    static const size_t bytes[] = {
        [CFG_U32] = sizeof(uint32_t), [CFG_U64] = sizeof(uint64_t),
        [CFG_F64] = sizeof(double),   [CFG_BOOL] = sizeof(bool),
        [CFG_STR] = sizeof(char *),   [CFG_LIST] = sizeof(struct cfg_list),
        [CFG_ENUM] = sizeof(uint32_t)};
    return bytes[o->type];
}

/* The texts tell whether a value differs: two lists of equal items are one value. */
static bool value_differs(const struct cfg_opt *o, const void *a, const void *b) {
    struct strbuf ta, tb;
    strbuf_init(&ta);
    strbuf_init(&tb);
    format_value(o, a, &ta);
    format_value(o, b, &tb);
    bool differs = !str_eq(strbuf_view(&ta), strbuf_view(&tb));
    strbuf_fini(&ta);
    strbuf_fini(&tb);
    return differs;
}

int cfg_reload(const struct cfg_table *t, const struct cfg_prog *prog, void *cfg, int argc,
               char *const *argv, char *const *envp,
               void (*differs)(void *arg, const struct cfg_opt *o), void *arg, struct errbuf *eb) {
    void *fresh = alloc_array(1, t->struct_bytes);
    int rv = fresh ? cfg_load(t, prog, fresh, argc, argv, envp, stdout, eb)
                   : err_set(eb, ERR_NOMEM, "out of memory");
    for (size_t i = 0; rv == 0 && i < t->n_opts; i++) {
        const struct cfg_opt *o = &t->opts[i];
        if (!value_differs(o, cfg, fresh))
            continue;
        if (o->live) { /* swapped, so that what is freed with fresh is the old value */
            unsigned char was[sizeof(struct cfg_list)];
            memcpy(was, field(o, cfg), field_bytes(o));
            memcpy(field(o, cfg), field(o, fresh), field_bytes(o));
            memcpy(field(o, fresh), was, field_bytes(o));
        }
        differs(arg, o);
    }
    if (rv == 0)
        cfg_free(t, fresh);
    free(fresh);
    return MIN(rv, 0);
}

int cfg_args(const struct cfg_table *t, void *cfg, int argc, char *const *argv,
             struct cfg_asked *ret, bool *given, struct errbuf *eb) {
    struct cli_names names = {0};
    struct cli cli = {.takes_words = true, .given = given};
    struct loading l = {.t = t, .cfg = cfg, .eb = eb, .source = SRC_CLI};
    int rv = cfg_defaults(t, cfg);
    if (rv < 0)
        return err_set(eb, rv, "options: %s", err_text(rv));
    l.list_source = alloc_array(t->n_opts, 1);
    rv = l.list_source ? cli_names_init(&names, t, true) : ERR_NOMEM;
    if (rv == 0)
        rv = walk_cli(&l, &names, argc, argv, &cli, eb);
    *ret = (struct cfg_asked){cli.help, cli.version, cli.first_word};
    if (rv == 0)
        rv = cli.help || cli.version ? CFG_DONE : check_lists(t, cfg, eb);
    cli_names_fini(&names);
    free(l.list_source);
    return rv;
}

/* --- printing --- */

static void print_default(const struct cfg_opt *o, FILE *out) {
    char text[64];
    switch (o->type) {
    case CFG_U32:
    case CFG_U64:
        format_uint(o, o->def_u, text, sizeof(text));
        fputs(text, out);
        break;
    case CFG_F64:
        fprintf(out, "%g", o->def_f);
        break;
    case CFG_BOOL:
        fputs(o->def_u ? "true" : "false", out);
        break;
    default:
        fputs(o->def_s, out);
        break;
    }
}

/* "size, 64m to 16t" and the like */
static void print_kind(const struct cfg_opt *o, FILE *out) {
    char lo[32], hi[32];
    switch (o->type) {
    case CFG_U32:
    case CFG_U64:
        format_uint(o, o->min_u, lo, sizeof(lo));
        format_uint(o, o->max_u, hi, sizeof(hi));
        fprintf(out, "%s, %s to %s", takes_suffix(o) ? "bytes (k, m, g, t)" : "number", lo, hi);
        break;
    case CFG_F64:
        fprintf(out, "number, %g to %g", o->min_f, o->max_f);
        break;
    case CFG_BOOL:
        fputs("true or false", out);
        break;
    case CFG_STR:
        fputs("text", out);
        break;
    case CFG_LIST:
        fprintf(out, "list, %" PRIu64 " to %" PRIu64 " items", o->min_u, o->max_u);
        break;
    case CFG_ENUM:
        fputs(o->names, out);
        break;
    }
}

static void print_dashed(const char *name, FILE *out) {
    for (; *name; name++)
        fputc(*name == '_' ? '-' : *name, out);
}

void cfg_help(const struct cfg_table *t, const struct cfg_prog *prog, FILE *out) {
    fprintf(out, "%s: %s\n\nUsage: %s [--option VALUE]...\n\n", prog->name, prog->summary,
            prog->name);
    fputs("Sources, weakest first: default, --config FILE (name = value lines), environment\n"
          "INCIPIT_<NAME>, command line.\n\n"
          "  --config FILE\n      INI file with options; also INCIPIT_CONFIG\n"
          "  --dump-config\n      print a commented example file and exit\n"
          "  --version, --help\n      print and exit\n",
          out);
    for (size_t i = 0; i < t->n_opts; i++)
        cfg_help_row(&t->opts[i], out);
}

void cfg_help_row(const struct cfg_opt *o, FILE *out) {
    fputs("  --", out);
    print_dashed(o->name, out);
    fprintf(out, "%s\n      %s\n      [", o->type == CFG_BOOL ? "[=BOOL]" : " VALUE", o->help);
    print_kind(o, out);
    fputs("; default: ", out);
    print_default(o, out);
    fputs(o->live ? "; live]\n" : "]\n", out);
}

void cfg_dump(const struct cfg_table *t, const struct cfg_prog *prog, FILE *out) {
    fprintf(out, "; %s: options and their defaults. Printed by %s --dump-config.\n", prog->name,
            prog->name);
    for (size_t i = 0; i < t->n_opts; i++) {
        const struct cfg_opt *o = &t->opts[i];
        fprintf(out, "\n; %s\n; ", o->help);
        print_kind(o, out);
        fprintf(out, "%s\n;%s = ", o->live ? "; may change while running" : "", o->name);
        print_default(o, out);
        fputc('\n', out);
    }
}
