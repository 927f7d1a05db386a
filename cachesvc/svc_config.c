/* What changes while a node runs: options by ConfigGet and ConfigSet, files of secrets by SIGHUP. */
#include "cachesvc/cachesvc.h"
#include "cachesvc/svc.h"
#include "common/secret.h"

#define VALUE_BYTES 8192u /* an option's value as text: the longest row is a list of addresses */

/* ---- ConfigGet, ConfigSet ---- */

/* Options are the node's, not a namespace's, and name paths and addresses. */
static int check_caller(struct rpc_call *call, struct errbuf *eb) {
    const struct session *ss = session_of(call->conn)->session;
    const char *method = wire_method_name(call->hdr.method);
    if (auth_is_bound(ss->auth))
        return err_set(eb, ERR_DENIED, "%s: this token is bound to namespaces", method);
    if (!(ss->features & WIRE_FEAT_CONFIG))
        return err_set(eb, ERR_UNIMPLEMENTED, "%s: Hello did not ask for this feature", method);
    return 0;
}

static const char *value_of(struct bump *b, const struct cfg_opt *o, const void *cfg) {
    char text[VALUE_BYTES];
    if (cfg_get(cachesvc_config_table(), cfg, o->name, text, sizeof(text)) < 0)
        return NULL;
    size_t n = strlen(text) + 1;
    char *copy = bump_alloc(b, n);
    return copy ? memcpy(copy, text, n) : NULL;
}

static int get_items(struct cachesvc *s, struct rpc_call *call, const char *name,
                     const struct cachesvc_config *defaults, struct errbuf *eb) {
    const struct cfg_table *t = cachesvc_config_table();
    bool all = !name || !*name;
    struct msg_config_item *items = bump_alloc(call->scratch, t->n_opts * sizeof(*items));
    size_t n = 0;
    for (size_t i = 0; items && i < t->n_opts; i++) {
        const struct cfg_opt *o = &t->opts[i];
        if (!all && strcmp(o->name, name) != 0)
            continue;
        items[n++] = (struct msg_config_item){.name = o->name,
                                              .value = value_of(call->scratch, o, s->cfg),
                                              .default_value = value_of(call->scratch, o, defaults),
                                              .live = o->live,
                                              .help = o->help};
        if (!items[n - 1].value || !items[n - 1].default_value)
            items = NULL;
    }
    if (!items)
        return err_set(eb, ERR_NOMEM, "ConfigGet: no room for the answer");
    if (n == 0)
        return err_set(eb, ERR_NOTFOUND, "ConfigGet: no option '%s'", name);
    struct msg_config_get_res res = {.n_items = n, .items = items};
    return SVC_REPLY(call, config_get_res, &res);
}

int svc_config_get(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct msg_config_get_req m;
    struct cachesvc_config defaults;
    int rv = check_caller(call, eb);
    if (rv == 0)
        rv = SVC_DECODE(call, config_get_req, &m, eb);
    if (rv < 0 || (rv = cfg_defaults(cachesvc_config_table(), &defaults)) < 0)
        return rv;
    rv = get_items(arg, call, m.name, &defaults, eb);
    cfg_free(cachesvc_config_table(), &defaults);
    return rv;
}

int svc_config_set(void *arg, struct rpc_call *call, struct errbuf *eb) {
    struct cachesvc *s = arg;
    struct msg_config_set_req m;
    int rv = check_caller(call, eb);
    if (rv == 0)
        rv = SVC_DECODE(call, config_set_req, &m, eb);
    if (rv < 0)
        return rv;
    if (!s->daemon)
        return err_set(eb, ERR_UNIMPLEMENTED, "ConfigSet: this node is part of another program");
    rv = svc_set_option(s->daemon, m.name ? m.name : "", m.value ? m.value : "", eb);
    return rv < 0 ? rv : svc_reply_ack(call, 1);
}

/* ---- files of secrets ---- */

static void warn_readable(struct cachesvc *s, const struct errbuf *warn) {
    if (warn->text[0])
        log_warn(s->log, "a file with secrets is open to others", "what=%s", warn->text);
}

int svc_load_tokens(struct cachesvc *s, struct auth *ret, struct errbuf *eb) {
    struct errbuf warn;
    *ret = (struct auth){0};
    if (!*s->cfg->token_file)
        return 0;
    int rv = auth_load(ret, s->cfg->token_file, &warn, eb);
    warn_readable(s, &warn);
    return rv;
}

/* The file's one line: blanks inside a password are its own. */
int svc_load_password(struct cachesvc *s, char ret[SVC_PASSWORD_BYTES], struct errbuf *eb) {
    const char *path = s->cfg->redis_password_file;
    struct secret_file f;
    struct errbuf warn;
    struct str line, more;
    ret[0] = '\0';
    if (!*path)
        return 0;
    int rv = secret_file_open(&f, "--redis-password-file", path, &warn, eb);
    if (rv < 0)
        return rv;
    if (!secret_file_next(&f, &line)) {
        rv = err_set(eb, ERR_INVALID, "--redis-password-file '%s' holds no password", path);
    } else if (line.n >= SVC_PASSWORD_BYTES) {
        rv = secret_file_error(&f, eb, "a password has at most %u bytes", SVC_PASSWORD_BYTES - 1);
    } else {
        memcpy(ret, line.p, line.n);
        ret[line.n] = '\0';
    }
    if (rv == 0 && secret_file_next(&f, &more))
        rv = secret_file_error(&f, eb, "a second password");
    secret_file_close(&f);
    warn_readable(s, &warn);
    return rv;
}

int cachesvc_reload(struct cachesvc *s, struct errbuf *eb) {
    struct auth fresh;
    char password[SVC_PASSWORD_BYTES];
    int rv = svc_load_tokens(s, &fresh, eb);
    if (rv < 0)
        return rv;
    rv = *s->cfg->redis ? svc_load_password(s, password, eb) : 0;
    if (rv == 0 && *s->cfg->redis && *password)
        rv = index_redis_set_password(s->index, password);
    explicit_bzero(password, sizeof(password));
    if (rv < 0) {
        auth_fini(&fresh);
        return rv;
    }
    svc_replace_tokens(s, &fresh);
    return 0;
}
