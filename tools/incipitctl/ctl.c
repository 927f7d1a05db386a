#include "tools/incipitctl/ctl.h"

#include <stdarg.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/digest.h"
#include "proto/kv_token.h"

#define DEFAULT_NODE "127.0.0.1:7070"
#define DEFAULT_TIMEOUT_MS 5000

static const struct ctl_cmd commands[] = {
    {"status", "status", "state, capacity and counters of each node", "", 0, 0, 0, cmd_status_run},
    {"list", "list [blocks|namespaces|sessions] [--ns DIGEST] [--limit N]",
     "blocks (default), namespaces or sessions",
     "  --limit N    at most N entries a node, 0 for all (default 50)\n"
     "  --ns DIGEST  only blocks of this namespace (64 hex digits)\n",
     CTL_O_LIMIT | CTL_O_NS, 0, 1, cmd_list_run},
    {"inspect", "inspect ID...", "everything a node knows about a block",
     "  ID           64 hex digits; exit code 1 when no node has an entry\n", 0, 1, CTL_MAX_ARGS,
     cmd_inspect_run},
    {"lookup",
     "lookup (--text TEXT | --chat TEXT) --worker URL | --tokens LIST | --ids ID...",
     "which blocks of a prompt are where; touches and leases nothing",
     "  --text TEXT      a completion prompt, made into tokens by the worker at --worker\n"
     "  --chat TEXT      one user message, with the worker's chat template\n"
     "  --worker URL     http://host:port of any worker of the pool\n"
     "  --tokens LIST    token ids, comma separated, or @FILE\n"
     "  --ids            the arguments are block ids, first block first\n"
     "  --ns DIGEST      the namespace; needed when the nodes have more than one\n"
     "  --salt-file FILE the tenant's salt, 64 hex digits (default: public blocks)\n",
     CTL_O_LOOKUP | CTL_O_NS, 0, CTL_MAX_ARGS, cmd_lookup_run},
    {"evict",
     "evict [ID...] [--chain] [--ns DIGEST] [--from T] [--to T] [--writer HEX] [--dry-run]",
     "take blocks away for good; all given conditions must hold",
     "  --chain      with the ids: and everything that continues them\n"
     "  --from T     put at T or later: Unix seconds, or 30m, 2h, 7d for that long ago\n"
     "  --to T       put before T\n"
     "  --writer HEX put by this writer (32 hex digits, see inspect)\n"
     "  --dry-run    count only\n",
     CTL_O_SELECT | CTL_O_NS, 0, CTL_MAX_ARGS, cmd_evict_run},
    {"flush", "flush [--ns DIGEST] --yes", "take away everything, or one namespace",
     "  --yes        required: there is no way back\n", CTL_O_NS | CTL_O_YES, 0, 0, cmd_flush_run},
};

/* ---- options ---- */

enum opt_kind { OPT_FLAG, OPT_TEXT, OPT_NUM, OPT_NODE };
struct opt_row {
    const char *name;
    enum opt_kind kind;
    size_t off;
    uint32_t group; /* 0: every command takes it */
};
#define OFF(f) offsetof(struct ctl_opts, f)
static const struct opt_row options[] = {
    {"--node", OPT_NODE, 0, 0},
    {"--token-file", OPT_TEXT, OFF(token_file), 0},
    {"--timeout-ms", OPT_NUM, OFF(timeout_ms), 0},
    {"--json", OPT_FLAG, OFF(json), 0},
    {"--help", OPT_FLAG, OFF(help), 0},
    {"-h", OPT_FLAG, OFF(help), 0},
    {"--version", OPT_FLAG, OFF(version), 0},
    {"--limit", OPT_NUM, OFF(limit), CTL_O_LIMIT},
    {"--ns", OPT_TEXT, OFF(ns), CTL_O_NS},
    {"--worker", OPT_TEXT, OFF(worker), CTL_O_LOOKUP},
    {"--text", OPT_TEXT, OFF(text), CTL_O_LOOKUP},
    {"--chat", OPT_TEXT, OFF(chat), CTL_O_LOOKUP},
    {"--tokens", OPT_TEXT, OFF(tokens), CTL_O_LOOKUP},
    {"--ids", OPT_FLAG, OFF(ids), CTL_O_LOOKUP},
    {"--salt-file", OPT_TEXT, OFF(salt_file), CTL_O_LOOKUP},
    {"--chain", OPT_FLAG, OFF(chain), CTL_O_SELECT},
    {"--writer", OPT_TEXT, OFF(writer), CTL_O_SELECT},
    {"--from", OPT_TEXT, OFF(from), CTL_O_SELECT},
    {"--to", OPT_TEXT, OFF(to), CTL_O_SELECT},
    {"--dry-run", OPT_FLAG, OFF(dry_run), CTL_O_SELECT},
    {"--yes", OPT_FLAG, OFF(yes), CTL_O_YES},
};

static const struct ctl_cmd *find_command(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void print_help(FILE *f, const struct ctl_cmd *cmd) {
    if (cmd) {
        fprintf(f, "incipitctl [options] %s\n\n%s\n", cmd->usage, cmd->summary);
        fprintf(f, "%s%s", cmd->details[0] ? "\n" : "", cmd->details);
    } else {
        fprintf(f, "incipitctl [options] COMMAND ...: look at and change cache nodes\n\n"
                   "commands\n");
        for (size_t i = 0; i < ARRAY_LEN(commands); i++)
            fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
        fprintf(f, "  incipitctl COMMAND --help says more\n");
    }
    fprintf(f,
            "\noptions\n"
            "  --node ADDR        host:port or unix:/path; repeat it for every node of the pool\n"
            "                     (default: INCIPIT_NODE, comma separated, else " DEFAULT_NODE ")\n"
            "  --token-file FILE  admin token (default: INCIPIT_TOKEN_FILE)\n"
            "  --timeout-ms N     for connecting and for each call (default %d)\n"
            "  --json             machine readable output\n"
            "  --version\n"
            "\nexit codes: 0 ok, 1 failed or not found, 2 usage, 3 no node reachable\n",
            DEFAULT_TIMEOUT_MS);
}

int ctl_usage(struct ctl *c, const char *fmt, ...) {
    va_list ap;
    fputs("incipitctl: ", c->err);
    va_start(ap, fmt);
    vfprintf(c->err, fmt, ap);
    va_end(ap);
    fputs("\ntry incipitctl --help\n", c->err);
    return CTL_USAGE;
}

/* One option with its value (NULL when the command line ends there). */
static int set_option(struct ctl *c, const struct opt_row *o, const char *value) {
    void *field = (char *)&c->opt + o->off;
    if (o->kind == OPT_FLAG) {
        *(bool *)field = true;
        return CTL_OK;
    }
    if (!value)
        return ctl_usage(c, "%s wants a value", o->name);
    if (o->kind == OPT_TEXT)
        *(const char **)field = value;
    else if (o->kind == OPT_NUM && str_to_u64(str_of(value), field) < 0)
        return ctl_usage(c, "%s wants a number, not '%s'", o->name, value);
    else if (o->kind == OPT_NODE && c->opt.n_nodes == CTL_MAX_NODES)
        return ctl_usage(c, "more than %d nodes", CTL_MAX_NODES);
    else if (o->kind == OPT_NODE)
        c->opt.nodes[c->opt.n_nodes++] = value;
    return CTL_OK;
}

static const struct opt_row *find_option(const char *name, size_t n) {
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        if (strlen(options[i].name) == n && memcmp(options[i].name, name, n) == 0)
            return &options[i];
    return NULL;
}

/* Options and words in any order; the first word is the command. */
static int parse(struct ctl *c, int argc, char *const *argv, const char **ret_cmd,
                 uint32_t *ret_groups) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (a[0] != '-' || a[1] == '\0') {
            if (!*ret_cmd)
                *ret_cmd = a;
            else if (c->opt.n_args == CTL_MAX_ARGS)
                return ctl_usage(c, "too many arguments");
            else
                c->opt.args[c->opt.n_args++] = a;
            continue;
        }
        const char *eq = a[1] == '-' ? strchr(a, '=') : NULL;
        const struct opt_row *o = find_option(a, eq ? (size_t)(eq - a) : strlen(a));
        if (!o)
            return ctl_usage(c, "unknown option '%s'", a);
        if (eq && o->kind == OPT_FLAG)
            return ctl_usage(c, "%s takes no value", o->name);
        *ret_groups |= o->group;
        bool takes_next = o->kind != OPT_FLAG && !eq;
        int rv = set_option(c, o, eq ? eq + 1 : takes_next && i + 1 < argc ? argv[i + 1] : NULL);
        if (rv != CTL_OK)
            return rv;
        i += takes_next;
    }
    return CTL_OK;
}

/* ---- the client ---- */

static void on_node(void *arg, uint32_t node, enum kv_node_state state, int err,
                    const char *text) {
    struct ctl *c = arg;
    (void)node, (void)state, (void)err, (void)text;
    c->n_node_events++;
}

static void on_wait_timeout(uv_timer_t *t) {
    *(bool *)t->data = true;
}

static int read_token(struct ctl *c, char token[KV_TOKEN_MAX_BYTES], size_t *ret_n) {
    struct errbuf eb, warn;
    *ret_n = 0;
    const char *path = c->opt.token_file ? c->opt.token_file : getenv("INCIPIT_TOKEN_FILE");
    if (!path || !path[0])
        return CTL_OK;
    int rv = kv_token_load(path, MSG_ROLE_ADMIN, token, ret_n, &warn, &eb);
    if (warn.text[0])
        fprintf(c->err, "incipitctl: warning: %s\n", warn.text);
    if (rv == 0)
        return CTL_OK;
    fprintf(c->err, "incipitctl: %s\n", eb.text);
    return CTL_FAILED;
}

/* Up, or tried once: then there is something to say about it. */
static bool every_node_is_settled(struct ctl *c) {
    for (uint32_t i = 0; i < c->opt.n_nodes; i++) {
        struct kv_node_info info;
        kv_client_node_info(c->client, i, &info);
        if (info.state != KV_NODE_UP && info.last_err == 0)
            return false;
    }
    return true;
}

static int connect_nodes(struct ctl *c) {
    char token[KV_TOKEN_MAX_BYTES];
    size_t token_len;
    struct errbuf eb;
    int rv = read_token(c, token, &token_len);
    if (rv != CTL_OK)
        return rv;
    struct kv_client_cfg cfg = {.addrs = c->opt.nodes,
                                .n_addrs = c->opt.n_nodes,
                                .token = token_len ? token : NULL,
                                .token_len = token_len,
                                .role = MSG_ROLE_ADMIN,
                                .name = "incipitctl",
                                .connect_timeout_ms = (uint32_t)c->opt.timeout_ms,
                                .on_node = on_node,
                                .on_node_arg = c};
    rv = kv_client_open(&c->client, &c->loop, &cfg, &eb);
    explicit_bzero(token, sizeof(token));
    if (rv < 0)
        return ctl_usage(c, "%s", eb.text);
    bool is_late = false;
    uv_timer_t timer;
    uv_timer_init(&c->loop, &timer);
    timer.data = &is_late;
    uv_timer_start(&timer, on_wait_timeout, c->opt.timeout_ms, 0);
    while (!every_node_is_settled(c) && !is_late)
        uv_run(&c->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&c->loop, UV_RUN_NOWAIT);
    bool is_denied = false;
    for (uint32_t i = 0; i < c->opt.n_nodes; i++) {
        struct kv_node_info info;
        kv_client_node_info(c->client, i, &info);
        is_denied = is_denied || info.last_err == ERR_DENIED;
        if (info.state != KV_NODE_UP)
            fprintf(c->err, "incipitctl: node %s: %s\n", info.addr,
                    info.last_err ? info.last_text : "no answer in time");
    }
    if (kv_client_nodes_up(c->client) > 0)
        return CTL_OK;
    return is_denied ? CTL_FAILED : CTL_UNREACHABLE;
}

static void on_client_closed(void *arg) {
    ((struct ctl *)arg)->is_closed = true;
}

static void disconnect(struct ctl *c) {
    if (!c->client)
        return;
    kv_client_close(c->client, on_client_closed, c);
    while (!c->is_closed)
        uv_run(&c->loop, UV_RUN_ONCE);
    c->client = NULL;
}

/* ---- running a command ---- */

static int check_command(struct ctl *c, const struct ctl_cmd *cmd, uint32_t groups) {
    if (groups & ~cmd->options)
        return ctl_usage(c, "'%s' does not take one of these options", cmd->name);
    if (c->opt.n_args < cmd->min_args || c->opt.n_args > cmd->max_args)
        return ctl_usage(c, "usage: incipitctl %s", cmd->usage);
    if (c->opt.timeout_ms == 0 || c->opt.timeout_ms > 3600000)
        return ctl_usage(c, "--timeout-ms must be 1 to 3600000");
    return CTL_OK;
}

/* INCIPIT_NODE, or the default; the text must outlive the options. */
static void default_nodes(struct ctl *c, char *text, size_t cap) {
    const char *env = getenv("INCIPIT_NODE");
    snprintf(text, cap, "%s", env && env[0] ? env : DEFAULT_NODE);
    char *at = text;
    while (at && c->opt.n_nodes < CTL_MAX_NODES) {
        char *comma = strchr(at, ',');
        if (comma)
            *comma = '\0';
        if (at[0])
            c->opt.nodes[c->opt.n_nodes++] = at;
        at = comma ? comma + 1 : NULL;
    }
}

static int run_command(struct ctl *c, const struct ctl_cmd *cmd) {
    char env_nodes[1024];
    if (c->opt.n_nodes == 0)
        default_nodes(c, env_nodes, sizeof(env_nodes));
    int rv = uv_loop_init(&c->loop);
    if (rv < 0)
        return ctl_fail(c, rv, "event loop");
    json_w_init(&c->w, &c->json);
    rv = connect_nodes(c);
    if (rv == CTL_OK)
        rv = cmd->run(c);
    disconnect(c);
    if (c->json.len && !c->json.oom)
        fprintf(c->out, STR_FMT "\n", STR_ARG(strbuf_view(&c->json)));
    strbuf_fini(&c->json);
    rv = uv_loop_close(&c->loop) == 0 ? rv : CTL_FAILED;
    return fflush(c->out) == 0 ? rv : CTL_FAILED;
}

int ctl_main(int argc, char *const *argv, FILE *out, FILE *err) {
    struct ctl *c = calloc(1, sizeof(*c));
    if (!c)
        return CTL_FAILED;
    c->out = out;
    c->err = err;
    c->opt.timeout_ms = DEFAULT_TIMEOUT_MS;
    c->opt.limit = 50;
    const char *name = NULL;
    uint32_t groups = 0;
    int rv = parse(c, argc, argv, &name, &groups);
    const struct ctl_cmd *cmd = name ? find_command(name) : NULL;
    if (rv != CTL_OK)
        goto out;
    if (c->opt.version) {
        fprintf(out, "incipitctl %s\n", INCIPIT_VERSION);
    } else if (name && !cmd) {
        rv = ctl_usage(c, "unknown command '%s'", name);
    } else if (c->opt.help) {
        print_help(out, cmd);
    } else if (!cmd) {
        print_help(err, NULL);
        rv = CTL_USAGE;
    } else {
        rv = check_command(c, cmd, groups);
        rv = rv == CTL_OK ? run_command(c, cmd) : rv;
    }
out:
    free(c);
    return rv;
}

/* ---- for commands ---- */

void ctl_done(struct ctl *c, int rv, const char *text) {
    c->is_done = true;
    c->rv = rv;
    snprintf(c->text, sizeof(c->text), "%s", text ? text : "");
}

int ctl_wait(struct ctl *c, int started) {
    if (started < 0) {
        ctl_done(c, started, "");
        return started;
    }
    while (!c->is_done)
        uv_run(&c->loop, UV_RUN_ONCE);
    c->is_done = false;
    return c->rv;
}

bool ctl_node_is_up(const struct ctl *c, uint32_t node) {
    struct kv_node_info info;
    kv_client_node_info(c->client, node, &info);
    return info.state == KV_NODE_UP;
}

const char *ctl_node_addr(const struct ctl *c, uint32_t node) {
    return c->opt.nodes[node];
}

int ctl_fail(struct ctl *c, int rv, const char *what) {
    fprintf(c->err, "incipitctl: %s: %s\n", what, c->text[0] ? c->text : err_text(rv));
    return rv == ERR_UNAVAILABLE || rv == ERR_CLOSED ? CTL_UNREACHABLE : CTL_FAILED;
}

uint32_t ctl_deadline_ms(const struct ctl *c) {
    return (uint32_t)c->opt.timeout_ms;
}

uint32_t ctl_slow_deadline_ms(const struct ctl *c) {
    return c->opt.timeout_ms == DEFAULT_TIMEOUT_MS ? 60000 : (uint32_t)c->opt.timeout_ms;
}

int ctl_parse_id(struct ctl *c, const char *hex, uint8_t ret[32]) {
    if (strlen(hex) == 64 && digest_unhex(hex, 32, ret) == 0)
        return 0;
    ctl_usage(c, "'%s' is not 64 hex digits", hex);
    return ERR_INVALID;
}

const char *ctl_hex(struct msg_bytes b, char ret[65]) {
    ret[0] = '\0';
    digest_hex(b.p, MIN(b.n, (size_t)32), ret);
    return ret;
}

void ctl_json_hex(struct ctl *c, const char *key, struct msg_bytes b) {
    char hex[65];
    ctl_json_text(c, key, ctl_hex(b, hex));
}

void ctl_json_u64(struct ctl *c, const char *key, uint64_t v) {
    json_w_key(&c->w, key);
    json_w_u64(&c->w, v);
}

void ctl_json_text(struct ctl *c, const char *key, const char *v) {
    json_w_kstr(&c->w, key, str_of(v));
}

const char *ctl_bytes(uint64_t n, char ret[32]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)n;
    size_t u = 0;
    while (v >= 1024 && u + 1 < ARRAY_LEN(unit)) {
        v /= 1024;
        u++;
    }
    snprintf(ret, 32, u == 0 ? "%.0f %s" : "%.1f %s", v, unit[u]);
    return ret;
}

const char *ctl_age(uint64_t ms, char ret[32]) {
    unsigned long long s = ms / 1000;
    if (s < 60)
        snprintf(ret, 32, "%llu.%llus", s, (unsigned long long)(ms % 1000 / 100));
    else if (s < 3600)
        snprintf(ret, 32, "%llum %llus", s / 60, s % 60);
    else if (s < 86400)
        snprintf(ret, 32, "%lluh %llum", s / 3600, s / 60 % 60);
    else
        snprintf(ret, 32, "%llud %lluh", s / 86400, s / 3600 % 24);
    return ret;
}

const char *ctl_age_of(uint64_t unix_ms, char ret[32]) {
    uint64_t now_ms = clock_wall_ns(clock_real()) / NS_PER_MS;
    if (unix_ms == 0) {
        snprintf(ret, 32, "-");
        return ret;
    }
    /* The node's clock may be ahead of ours. */
    return ctl_age(now_ms > unix_ms ? now_ms - unix_ms : 0, ret);
}

struct str ctl_descriptor_value(struct msg_bytes descriptor, const char *key) {
    struct str rest = {(const char *)descriptor.p, descriptor.n}, line;
    size_t n = strlen(key);
    while (str_split(&rest, '\n', &line))
        if (line.n > n && memcmp(line.p, key, n) == 0 && line.p[n] == '=')
            return str_cut(line, n + 1, line.n);
    return (struct str){"", 0};
}
