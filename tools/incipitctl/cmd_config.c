#include "tools/incipitctl/ctl.h"

struct config_arg {
    struct ctl *c;
    bool wants_help; /* one option was named: say all about it */
};

static void print_item(struct config_arg *a, const struct msg_config_item *it) {
    struct ctl *c = a->c;
    char name[128], value[1024], def[1024], help[1024];
    ctl_clean(str_of(it->name), name, sizeof(name));
    ctl_clean(str_of(it->value), value, sizeof(value));
    fprintf(c->out, "  %-28s %s%s\n", name, value, it->live ? "  (live)" : "");
    if (a->wants_help)
        fprintf(c->out, "    %s; default: %s\n", ctl_clean(str_of(it->help), help, sizeof(help)),
                ctl_clean(str_of(it->default_value), def, sizeof(def)));
}

static void json_option(struct ctl *c, const struct msg_config_item *it) {
    json_w_obj(&c->w);
    ctl_json_text(c, "name", it->name);
    ctl_json_text(c, "value", it->value);
    ctl_json_text(c, "default", it->default_value);
    json_w_key(&c->w, "live");
    json_w_bool(&c->w, it->live);
    ctl_json_text(c, "help", it->help);
    json_w_end(&c->w);
}

static void on_get(void *arg, int rv, const char *text, const struct msg_config_get_res *m) {
    struct config_arg *a = arg;
    for (size_t i = 0; rv == 0 && i < m->n_items; i++) {
        if (a->c->opt.json)
            json_option(a->c, &m->items[i]);
        else
            print_item(a, &m->items[i]);
    }
    ctl_done(a->c, rv, text);
}

static void on_set(void *arg, int rv, const char *text, const struct msg_ack *m) {
    (void)m;
    ctl_done(arg, rv, text);
}

static int get_of(struct ctl *c, uint32_t node, const char *name) {
    struct config_arg a = {c, name[0] != '\0'};
    struct msg_config_get_req m = {.name = name};
    if (!c->opt.json)
        fprintf(c->out, "%s\n", ctl_node_addr(c, node));
    json_w_obj(&c->w);
    ctl_json_text(c, "address", ctl_node_addr(c, node));
    json_w_key(&c->w, "options");
    json_w_arr(&c->w);
    int rv = ctl_wait(
        c, kv_client_config_get(c->client, node, &m, ctl_deadline_ms(c), on_get, &a, NULL));
    json_w_end(&c->w);
    json_w_end(&c->w);
    return rv;
}

static int set_of(struct ctl *c, uint32_t node, const char *name, const char *value) {
    struct msg_config_set_req m = {.name = name, .value = value};
    int rv =
        ctl_wait(c, kv_client_config_set(c->client, node, &m, ctl_deadline_ms(c), on_set, c, NULL));
    char clean[256];
    if (rv == 0 && !c->opt.json)
        fprintf(c->out, "%s: %s is set\n", ctl_node_addr(c, node),
                ctl_clean(str_of(name), clean, sizeof(clean)));
    if (rv == 0)
        json_w_strz(&c->w, ctl_node_addr(c, node));
    return rv;
}

int cmd_config_run(struct ctl *c) {
    bool is_get = strcmp(c->args[0], "get") == 0, is_set = strcmp(c->args[0], "set") == 0;
    if (!(is_get && c->n_args <= 2) && !(is_set && c->n_args == 3))
        return ctl_usage(c, "config get [NAME], or config set NAME VALUE");
    /* Names are written both ways: log_level in files, --log-level on command lines. */
    char name[128];
    snprintf(name, sizeof(name), "%s", c->n_args > 1 ? c->args[1] : "");
    for (char *p = name; *p; p++)
        *p = *p == '-' ? '_' : *p;
    int code = CTL_OK;
    json_w_key(&c->w, is_get ? "nodes" : "set");
    json_w_arr(&c->w);
    for (uint32_t i = 0; i < ctl_n_nodes(c); i++) {
        if (!ctl_node_is_up(c, i)) {
            code = CTL_FAILED;
            continue;
        }
        int rv = is_get ? get_of(c, i, name) : set_of(c, i, name, c->args[2]);
        if (rv < 0)
            code = ctl_fail(c, rv, ctl_node_addr(c, i));
    }
    json_w_end(&c->w);
    return code;
}
