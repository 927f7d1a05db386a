#include "tools/incipitctl/ctl_find.h"

static const char *const tier_names[] = {"none", "reading", "writing", "clean", "dirty"};
static const char *const state_names[] = {"filling", "resident", "hole"};
#define NAME_OF(names, v) ((v) < ARRAY_LEN(names) ? (names)[v] : "?")

struct inspect_arg {
    struct ctl *c;
    uint32_t node;
};

static void row(struct ctl *c, const char *name, const char *value) {
    fprintf(c->out, "  %-13s %s\n", name, value);
}

static void row_u64(struct ctl *c, const char *name, uint64_t value) {
    fprintf(c->out, "  %-13s %llu\n", name, (unsigned long long)value);
}

static void print_human(struct inspect_arg *a, const struct msg_inspect_res *m) {
    struct ctl *c = a->c;
    const struct msg_block_info *b = &m->block;
    char t[65];
    fprintf(c->out, "%s\n", ctl_hex(b->id, t));
    row(c, "node", ctl_node_addr(c, a->node));
    row(c, "parent", b->parent.n ? ctl_hex(b->parent, t) : "none");
    row(c, "namespace", ctl_hex(b->digest, t));
    row_u64(c, "depth", b->depth);
    row(c, "state", NAME_OF(state_names, b->state));
    row(c, "RAM", NAME_OF(tier_names, b->ram));
    row(c, "disk", NAME_OF(tier_names, b->disk));
    row(c, "payload", ctl_bytes(b->payload_bytes, t));
    fprintf(c->out, "  %-13s %016llx\n", "checksum", (unsigned long long)b->checksum);
    row_u64(c, "generation", b->generation);
    row_u64(c, "leases", b->leases);
    row_u64(c, "pins", b->pins);
    row_u64(c, "put sequence", b->put_seq);
    row_u64(c, "put time ms", b->put_time_ms);
    row(c, "age", ctl_age_of(b->put_time_ms, t));
    row(c, "writer", b->writer.n ? ctl_hex(b->writer, t) : "unknown");
    row_u64(c, "group", b->group);
    if (b->foreign)
        row(c, "foreign", "yes: it belongs to another node");
    row_u64(c, "children", b->n_children);
    for (size_t i = 0; i < m->n_children; i++)
        row(c, "", ctl_hex((struct msg_bytes){m->children[i].b, 32}, t));
    for (size_t i = 0; i < m->n_nodes; i++)
        row(c, "index says", ctl_node_of_id(c, m->nodes[i], t));
}

static void print_json(struct inspect_arg *a, const struct msg_inspect_res *m) {
    struct ctl *c = a->c;
    const struct msg_block_info *b = &m->block;
    char sum[17];
    json_w_obj(&c->w);
    ctl_json_hex(c, "id", b->id);
    ctl_json_text(c, "node", ctl_node_addr(c, a->node));
    ctl_json_hex(c, "parent", b->parent);
    ctl_json_hex(c, "namespace", b->digest);
    ctl_json_u64(c, "depth", b->depth);
    ctl_json_text(c, "state", NAME_OF(state_names, b->state));
    ctl_json_text(c, "ram", NAME_OF(tier_names, b->ram));
    ctl_json_text(c, "disk", NAME_OF(tier_names, b->disk));
    ctl_json_u64(c, "payload_bytes", b->payload_bytes);
    snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)b->checksum);
    ctl_json_text(c, "checksum", sum);
    ctl_json_u64(c, "generation", b->generation);
    ctl_json_u64(c, "leases", b->leases);
    ctl_json_u64(c, "pins", b->pins);
    ctl_json_u64(c, "put_seq", b->put_seq);
    ctl_json_u64(c, "put_time_ms", b->put_time_ms);
    ctl_json_hex(c, "writer", b->writer);
    ctl_json_u64(c, "group", b->group);
    json_w_key(&c->w, "foreign");
    json_w_bool(&c->w, b->foreign);
    json_w_key(&c->w, "children");
    json_w_arr(&c->w);
    for (size_t i = 0; i < m->n_children; i++) {
        char hex[65];
        json_w_strz(&c->w, ctl_hex((struct msg_bytes){m->children[i].b, 32}, hex));
    }
    json_w_end(&c->w);
    json_w_key(&c->w, "index_nodes");
    json_w_arr(&c->w);
    for (size_t i = 0; i < m->n_nodes; i++) {
        char text[48];
        json_w_strz(&c->w, ctl_node_of_id(c, m->nodes[i], text));
    }
    json_w_end(&c->w);
    json_w_end(&c->w);
}

static void on_inspect(void *arg, int rv, const char *text, const struct msg_inspect_res *m) {
    struct inspect_arg *a = arg;
    if (rv == 0 && a->c->opt.json)
        print_json(a, m);
    else if (rv == 0)
        print_human(a, m);
    ctl_done(a->c, rv, text);
}

/* Asks every node; one that has it is enough. */
static int inspect_id(struct ctl *c, const uint8_t id[32], const uint8_t *ns, const char *hex) {
    uint32_t n_found = 0;
    int code = CTL_OK;
    for (uint32_t i = 0; i < ctl_n_nodes(c); i++) {
        if (!ctl_node_is_up(c, i))
            continue;
        struct inspect_arg a = {c, i};
        struct msg_inspect_req m = {.id = {id, 32}, .digest = {ns, ns ? 32 : 0}};
        int rv = ctl_wait(
            c, kv_client_inspect(c->client, i, &m, ctl_deadline_ms(c), on_inspect, &a, NULL));
        n_found += rv == 0;
        if (rv < 0 && rv != ERR_NOTFOUND)
            code = ctl_fail(c, rv, ctl_node_addr(c, i));
    }
    if (n_found == 0 && code == CTL_OK) {
        ctl_say(c, "no node has %s", hex);
        code = CTL_FAILED;
    }
    return code;
}

int cmd_inspect_run(struct ctl *c) {
    uint8_t digest[32];
    const uint8_t *ns;
    int code = ctl_opt_ns(c, digest, &ns);
    if (code != CTL_OK)
        return code;
    json_w_key(&c->w, "blocks");
    json_w_arr(&c->w);
    for (uint32_t i = 0; i < c->n_args; i++) {
        struct block_id id;
        int rv = ctl_find_block(c, c->args[i], &id);
        if (rv == CTL_OK)
            rv = inspect_id(c, id.b, ns, c->args[i]);
        code = rv == CTL_OK ? code : rv;
    }
    json_w_end(&c->w);
    return code;
}
