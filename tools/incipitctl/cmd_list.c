#include "tools/incipitctl/ctl_find.h"

struct lister;

/* One row for each thing that can be listed. */
struct list_kind {
    const char *name; /* also the JSON key */
    enum msg_list_what what;
    const char *header;
    size_t (*print)(struct lister *l, const struct msg_list_res *m); /* entries printed */
};

struct lister {
    struct ctl *c;
    const struct list_kind *kind;
};

static const char *const tier_names[] = {"-", "reading", "writing", "clean", "dirty"};
static const char *const state_names[] = {"filling", "resident", "hole"};
#define NAME_OF(names, v) ((v) < ARRAY_LEN(names) ? (names)[v] : "?")

static void json_block(struct ctl *c, const struct msg_block_info *b) {
    json_w_obj(&c->w);
    ctl_json_hex(c, "id", b->id);
    ctl_json_hex(c, "parent", b->parent);
    ctl_json_hex(c, "namespace", b->digest);
    ctl_json_u64(c, "depth", b->depth);
    ctl_json_text(c, "state", NAME_OF(state_names, b->state));
    ctl_json_text(c, "ram", NAME_OF(tier_names, b->ram));
    ctl_json_text(c, "disk", NAME_OF(tier_names, b->disk));
    ctl_json_u64(c, "payload_bytes", b->payload_bytes);
    ctl_json_u64(c, "leases", b->leases);
    ctl_json_u64(c, "pins", b->pins);
    ctl_json_u64(c, "children", b->n_children);
    ctl_json_u64(c, "put_time_ms", b->put_time_ms);
    json_w_end(&c->w);
}

static size_t print_blocks(struct lister *l, const struct msg_list_res *m) {
    struct ctl *c = l->c;
    for (size_t i = 0; i < m->n_blocks; i++) {
        const struct msg_block_info *b = &m->blocks[i];
        char id[65], size[32], age[32];
        if (c->opt.json)
            json_block(c, b);
        else
            fprintf(c->out, "%s %5u %-8s %-7s %-7s %10s %6u %8s\n", ctl_hex(b->id, id), b->depth,
                    NAME_OF(state_names, b->state), NAME_OF(tier_names, b->ram),
                    NAME_OF(tier_names, b->disk), ctl_bytes(b->payload_bytes, size), b->leases,
                    ctl_age_of(b->put_time_ms, age));
    }
    return m->n_blocks;
}

static void json_namespace(struct ctl *c, const struct msg_namespace_info *n) {
    json_w_obj(&c->w);
    ctl_json_hex(c, "digest", n->digest);
    json_w_kstr(&c->w, "descriptor", (struct str){(const char *)n->descriptor.p, n->descriptor.n});
    ctl_json_u64(c, "payload_bytes", n->payload_bytes);
    ctl_json_u64(c, "n_ranges", n->n_ranges);
    json_w_key(&c->w, "range_sizes");
    json_w_arr(&c->w);
    for (size_t i = 0; i < n->n_range_sizes; i++)
        json_w_u64(&c->w, n->range_sizes[i]);
    json_w_end(&c->w);
    ctl_json_u64(c, "n_full", n->n_full);
    ctl_json_u64(c, "seg_blocks", n->seg_blocks);
    ctl_json_u64(c, "slot_bytes", n->slot_bytes);
    ctl_json_u64(c, "blocks_ram", n->blocks_ram);
    ctl_json_u64(c, "blocks_disk", n->blocks_disk);
    json_w_end(&c->w);
}

static size_t print_namespaces(struct lister *l, const struct msg_list_res *m) {
    struct ctl *c = l->c;
    for (size_t i = 0; i < m->n_namespaces; i++) {
        const struct msg_namespace_info *n = &m->namespaces[i];
        char digest[65], size[32], text[1024];
        if (c->opt.json) {
            json_namespace(c, n);
            continue;
        }
        fprintf(c->out, "%s %10s %8llu %8llu\n", ctl_hex(n->digest, digest),
                ctl_bytes(n->payload_bytes, size), (unsigned long long)n->blocks_ram,
                (unsigned long long)n->blocks_disk);
        struct str rest = {(const char *)n->descriptor.p, n->descriptor.n}, line;
        while (str_split(&rest, '\n', &line))
            if (line.n)
                fprintf(c->out, "    %s\n", ctl_clean(line, text, sizeof(text)));
    }
    return m->n_namespaces;
}

static size_t print_sessions(struct lister *l, const struct msg_list_res *m) {
    static const char *const roles[] = {"?", "worker", "reader", "admin", "node"};
    struct ctl *c = l->c;
    for (size_t i = 0; i < m->n_sessions; i++) {
        const struct msg_session_info *s = &m->sessions[i];
        char age[32], name[128], peer[128];
        if (!c->opt.json) {
            fprintf(c->out, "%8llu %-24s %-24s %-6s %4u %6u %5u %8s\n",
                    (unsigned long long)s->session,
                    ctl_clean(str_of(s->client_name), name, sizeof(name)),
                    ctl_clean(str_of(s->peer), peer, sizeof(peer)), NAME_OF(roles, s->role),
                    s->data_conns, s->leases, s->puts_open, ctl_age(s->age_ms, age));
            continue;
        }
        json_w_obj(&c->w);
        ctl_json_u64(c, "session", s->session);
        ctl_json_text(c, "client_name", s->client_name);
        ctl_json_text(c, "peer", s->peer);
        ctl_json_text(c, "role", NAME_OF(roles, s->role));
        ctl_json_u64(c, "data_conns", s->data_conns);
        ctl_json_u64(c, "leases", s->leases);
        ctl_json_u64(c, "puts_open", s->puts_open);
        ctl_json_u64(c, "age_ms", s->age_ms);
        json_w_end(&c->w);
    }
    return m->n_sessions;
}

static const struct list_kind kinds[] = {
    {"blocks", MSG_LIST_BLOCKS,
     "ID                                                               DEPTH STATE    RAM     "
     "DISK          BYTES LEASES      AGE\n",
     print_blocks},
    {"namespaces", MSG_LIST_NAMESPACES,
     "DIGEST                                                            BLOCK SIZE   IN RAM  ON "
     "DISK\n",
     print_namespaces},
    {"sessions", MSG_LIST_SESSIONS,
     " SESSION CLIENT                   PEER                     ROLE   DATA LEASES  PUTS      "
     "AGE\n",
     print_sessions},
};

static void on_page(void *arg, struct ctl_pages *p, const struct msg_list_res *m) {
    struct lister *l = arg;
    size_t n = l->kind->print(l, m);
    p->left -= MIN(p->left, (uint64_t)n);
}

static int list_node(struct lister *l, uint32_t node, const uint8_t *digest) {
    struct ctl *c = l->c;
    struct ctl_pages p = {.what = l->kind->what,
                          .digest = digest,
                          .left = c->opt.limit ? c->opt.limit : UINT64_MAX,
                          .on_page = on_page,
                          .arg = l};
    int code = ctl_list_pages(c, node, &p);
    if (code == CTL_OK && p.has_more)
        ctl_say(c, "%s has more; see --limit", ctl_node_addr(c, node));
    return code;
}

int cmd_list_run(struct ctl *c) {
    struct lister l = {.c = c, .kind = &kinds[0]};
    uint8_t digest[32];
    const uint8_t *ns;
    if (c->n_args == 1) {
        l.kind = NULL;
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
            if (strcmp(kinds[i].name, c->args[0]) == 0)
                l.kind = &kinds[i];
        if (!l.kind)
            return ctl_usage(c, "list what? blocks, namespaces or sessions");
    }
    int code = ctl_opt_ns(c, digest, &ns);
    if (code != CTL_OK)
        return code;
    json_w_key(&c->w, l.kind->name);
    json_w_arr(&c->w);
    if (!c->opt.json)
        fputs(l.kind->header, c->out);
    for (uint32_t i = 0; i < ctl_n_nodes(c); i++) {
        if (!ctl_node_is_up(c, i)) {
            code = CTL_FAILED;
            continue;
        }
        if (ctl_n_nodes(c) > 1 && !c->opt.json)
            fprintf(c->out, "-- %s\n", ctl_node_addr(c, i));
        int rv = list_node(&l, i, ns);
        code = rv == CTL_OK ? code : rv;
    }
    json_w_end(&c->w);
    return code;
}
