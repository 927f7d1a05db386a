#include "tools/incipitctl/ctl.h"

#include <stdarg.h>

#include "common/check.h"
#include "proto/kv_token.h"

static const struct ctl_cmd commands[] = {
    {"status", "status", "state, capacity and counters of each node", "", "", 0, 0, cmd_status_run},
    {"list", "list [blocks|namespaces|sessions] [--ns DIGEST] [--limit N]",
     "blocks (default), namespaces or sessions", "", "limit ns", 0, 1, cmd_list_run},
    {"inspect", "inspect ID... [--ns DIGEST]", "everything a node knows about a block",
     "ID: 64 hex digits, or the first ones where no other block begins with them. Exit code 1 when "
     "no node has an\n"
     "entry.\n",
     "ns", 1, CTL_MAX_ARGS, cmd_inspect_run},
    {"lookup",
     "lookup (--text TEXT | --chat TEXT | --request FILE) --worker URL | --tokens LIST | --ids "
     "ID...",
     "which blocks of a prompt are where; touches and leases nothing", "",
     "text chat request worker tokens ids ns salt_file", 0, CTL_MAX_ARGS, cmd_lookup_run},
    {"evict",
     "evict [ID...] [--chain] [--ns DIGEST] [--from T] [--to T] [--writer HEX] [--dry-run]",
     "take blocks away for good; all given conditions must hold",
     "ID: 64 hex digits, or the first ones where no other block begins with them; without --ns it "
     "is meant in each\n"
     "namespace that has it. A chain's blocks are looked for at every node that is named: name the "
     "whole pool.\n"
     "T: Unix seconds, or 90s, 30m, 2h, 7d for that long ago.\n",
     "chain ns from to writer dry_run", 0, CTL_MAX_ARGS, cmd_evict_run},
    {"flush", "flush [--ns DIGEST] --yes", "take away everything, or one namespace", "", "ns yes",
     0, 0, cmd_flush_run},
    {"config", "config get [NAME] | config set NAME VALUE",
     "options of the running nodes; set those marked live",
     "A value that was set holds until the node restarts or reads its file again (SIGHUP).\n", "",
     1, 3, cmd_config_run},
};

/* ---- options ---- */

CFG_TABLE(ctl_opts, CTL_OPTIONS)
static const char common_options[] = "node token_file timeout_ms json";

static const struct ctl_cmd *find_command(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* names: words of a row of `commands` */
static bool has_name(const char *names, const char *name) {
    struct str rest = str_of(names), word;
    while (str_split(&rest, ' ', &word))
        if (str_eq(word, str_of(name)))
            return true;
    return false;
}

static void print_options(FILE *f, const char *names) {
    const struct cfg_table *t = ctl_opts_table();
    for (size_t i = 0; i < t->n_opts; i++)
        if (has_name(names, t->opts[i].name))
            cfg_help_row(&t->opts[i], f);
}

static void print_help(FILE *f, const struct ctl_cmd *cmd) {
    if (cmd) {
        fprintf(f, "incipitctl [options] %s\n\n%s\n%s%s", cmd->usage, cmd->summary,
                cmd->details[0] ? "\n" : "", cmd->details);
        fputs(cmd->options[0] ? "\n" : "", f);
        print_options(f, cmd->options);
    } else {
        fprintf(f, "incipitctl [options] COMMAND ...: look at and change cache nodes\n\n"
                   "commands\n");
        for (size_t i = 0; i < ARRAY_LEN(commands); i++)
            fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
        fprintf(f, "  incipitctl COMMAND --help says more\n");
    }
    fprintf(f, "\noptions\n");
    print_options(f, common_options);
    fprintf(
        f,
        "  --version\n\nexit codes: 0 ok, 1 failed or not found, 2 usage, 3 no node reachable\n");
}

/* The words of the command line and which options the command takes; an enum ctl_exit. */
static int parse(struct ctl *c, int argc, char *const *argv, const struct ctl_cmd **ret_cmd,
                 struct cfg_asked *asked) {
    const struct cfg_table *t = ctl_opts_table();
    struct errbuf eb;
    bool given[CTL_N_OPTIONS] = {0};
    int rv = cfg_args(t, &c->opt, argc, argv, asked, given, &eb);
    if (rv < 0)
        return ctl_usage(c, "%s", eb.text);
    const char *name = asked->first_word < argc ? argv[asked->first_word] : NULL;
    c->args = (const char *const *)argv + asked->first_word + 1;
    c->n_args = name ? (uint32_t)(argc - asked->first_word - 1) : 0;
    *ret_cmd = name ? find_command(name) : NULL;
    if (asked->version)
        return CTL_OK;
    if (name && !*ret_cmd)
        return ctl_usage(c, "unknown command '%s'", name);
    if (asked->help)
        return CTL_OK;
    if (!name)
        return ctl_usage(c, "a command is missing");
    const struct ctl_cmd *cmd = *ret_cmd;
    for (size_t i = 0; i < t->n_opts; i++)
        if (given[i] && !has_name(cmd->options, t->opts[i].name) &&
            !has_name(common_options, t->opts[i].name))
            return ctl_usage(c, "'%s' does not take the option '%s'", cmd->name, t->opts[i].name);
    if (c->n_args < cmd->min_args || c->n_args > cmd->max_args)
        return ctl_usage(c, "usage: incipitctl %s", cmd->usage);
    c->has_slow_default = !given[cfg_find(t, "timeout_ms") - t->opts];
    const char *env = getenv("INCIPIT_NODE");
    if (given[cfg_find(t, "node") - t->opts] || !env || !env[0])
        return CTL_OK;
    rv = cfg_put(t, &c->opt, "node", env, &eb);
    return rv < 0 ? ctl_usage(c, "INCIPIT_NODE: %s", eb.text) : CTL_OK;
}

/* ---- the client ---- */

static void on_node(void *arg, uint32_t node, enum kv_node_state state, int err, const char *text) {
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
    const char *path = c->opt.token_file[0] ? c->opt.token_file : getenv("INCIPIT_TOKEN_FILE");
    if (!path || !path[0])
        return CTL_OK;
    int rv = kv_token_load(path, MSG_ROLE_ADMIN, token, ret_n, &warn, &eb);
    if (warn.text[0])
        fprintf(c->err, "incipitctl: warning: %s\n", warn.text);
    if (rv == 0)
        return CTL_OK;
    ctl_say(c, "%s", eb.text);
    return CTL_FAILED;
}

/* Up, or tried once: then there is something to say about it. */
static bool every_node_is_settled(struct ctl *c) {
    for (uint32_t i = 0; i < c->opt.node.n; i++) {
        struct kv_node_info info;
        kv_client_node_info(c->client, i, &info);
        if (info.state != KV_NODE_UP && info.last_err == 0)
            return false;
    }
    return true;
}

/* Another program's port answers with bytes that are no frame, or closes: the commonest slip is the node's HTTP port. */
static void say_down(struct ctl *c, const struct kv_node_info *info) {
    if (info->last_err == ERR_PROTO && strcmp(info->last_text, err_text(ERR_PROTO)) == 0)
        ctl_say(c,
                "node %s: something answers there, but no cache node's RPC (the node's --listen, "
                "default port 7070; "
                "HTTP is another one)",
                info->addr);
    else
        ctl_say(c, "node %s: %s", info->addr,
                info->last_err ? info->last_text : "no answer in time");
}

static int connect_nodes(struct ctl *c) {
    char token[KV_TOKEN_MAX_BYTES];
    size_t token_len;
    struct errbuf eb;
    int rv = read_token(c, token, &token_len);
    if (rv != CTL_OK)
        return rv;
    struct kv_client_cfg cfg = {.addrs = c->opt.node.v,
                                .n_addrs = c->opt.node.n,
                                .token = token_len ? token : NULL,
                                .token_len = token_len,
                                .role = MSG_ROLE_ADMIN,
                                .name = "incipitctl",
                                .connect_timeout_ms = c->opt.timeout_ms,
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
    for (uint32_t i = 0; i < c->opt.node.n; i++) {
        struct kv_node_info info;
        kv_client_node_info(c->client, i, &info);
        is_denied = is_denied || info.last_err == ERR_DENIED;
        if (info.state != KV_NODE_UP)
            say_down(c, &info);
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

/* The object of --json, closed and printed. */
static void print_json(struct ctl *c) {
    json_w_key(&c->w, "errors");
    json_w_arr(&c->w);
    if (c->errors.len)
        json_w_raw(&c->w, strbuf_view(&c->errors));
    json_w_end(&c->w);
    json_w_end(&c->w);
    if (c->json.oom || c->errors.oom)
        fputs("incipitctl: out of memory\n", c->err);
    else
        fprintf(c->out, STR_FMT "\n", STR_ARG(strbuf_view(&c->json)));
}

static int run_command(struct ctl *c, const struct ctl_cmd *cmd) {
    int rv = uv_loop_init(&c->loop);
    if (rv < 0)
        return ctl_fail(c, rv, "event loop");
    rv = connect_nodes(c);
    if (rv == CTL_OK)
        rv = cmd->run(c);
    disconnect(c);
    return uv_loop_close(&c->loop) == 0 ? rv : CTL_FAILED;
}

int ctl_main(int argc, char *const *argv, FILE *out, FILE *err) {
    struct ctl *c = calloc(1, sizeof(*c));
    const struct ctl_cmd *cmd = NULL;
    struct cfg_asked asked = {0};
    if (!c)
        return CTL_FAILED;
    c->out = out;
    c->err = err;
    json_w_init(&c->w, &c->json);
    json_w_obj(&c->w);
    int rv = parse(c, argc, argv, &cmd, &asked);
    if (rv == CTL_OK && asked.version)
        fprintf(out, "incipitctl %s\n", INCIPIT_VERSION);
    else if (rv == CTL_OK && asked.help)
        print_help(out, cmd);
    else if (rv == CTL_OK)
        rv = run_command(c, cmd);
    if (c->opt.json && !asked.version && !asked.help)
        print_json(c);
    if (fflush(out) != 0)
        rv = CTL_FAILED;
    strbuf_fini(&c->json);
    strbuf_fini(&c->errors);
    cfg_free(ctl_opts_table(), &c->opt);
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

uint32_t ctl_n_nodes(const struct ctl *c) {
    return c->opt.node.n;
}

bool ctl_node_is_up(const struct ctl *c, uint32_t node) {
    struct kv_node_info info;
    kv_client_node_info(c->client, node, &info);
    return info.state == KV_NODE_UP;
}

const char *ctl_node_addr(const struct ctl *c, uint32_t node) {
    return c->opt.node.v[node];
}

const char *ctl_node_of_id(const struct ctl *c, uint32_t node_id, char ret[48]) {
    for (uint32_t i = 0; i < ctl_n_nodes(c); i++) {
        struct kv_node_info info;
        kv_client_node_info(c->client, i, &info);
        if (info.state == KV_NODE_UP && info.node_id == node_id)
            return info.addr;
    }
    snprintf(ret, 48, "node %u (not asked)", node_id);
    return ret;
}

static void say(struct ctl *c, const char *fmt, va_list ap) {
    char raw[1024], clean[2048];
    vsnprintf(raw, sizeof(raw), fmt, ap);
    ctl_clean(str_of(raw), clean, sizeof(clean));
    fprintf(c->err, "incipitctl: %s\n", clean);
    strbuf_addz(&c->errors, c->errors.len ? ",\"" : "\"");
    json_escape(&c->errors, str_of(raw));
    strbuf_addc(&c->errors, '"');
}

void ctl_say(struct ctl *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(c, fmt, ap);
    va_end(ap);
}

int ctl_usage(struct ctl *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(c, fmt, ap);
    va_end(ap);
    fputs("try incipitctl --help\n", c->err);
    return CTL_USAGE;
}

int ctl_fail(struct ctl *c, int rv, const char *what) {
    ctl_say(c, "%s: %s", what, c->text[0] ? c->text : err_text(rv));
    return rv == ERR_UNAVAILABLE || rv == ERR_CLOSED ? CTL_UNREACHABLE : CTL_FAILED;
}

uint32_t ctl_deadline_ms(const struct ctl *c) {
    return c->opt.timeout_ms;
}

uint32_t ctl_slow_deadline_ms(const struct ctl *c) {
    return c->has_slow_default ? 60000 : c->opt.timeout_ms;
}
