#include "tools/incipitctl/ctl.h"

static const char *const node_states[] = {"starting", "ready", "draining"};
static const char *const index_states[] = {"embedded", "redis connected", "redis down"};

static const char *name_of(const char *const *names, size_t n, uint32_t v) {
    return v < n ? names[v] : "unknown";
}

static double percent(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

static void print_tier(struct ctl *c, const char *name, uint64_t used, uint64_t all,
                       uint64_t blocks) {
    char a[32], b[32];
    fprintf(c->out, "  %-10s %s of %s (%.0f%%), %llu blocks\n", name, ctl_bytes(used, a),
            ctl_bytes(all, b), percent(used, all), (unsigned long long)blocks);
}

#define LL(x) ((unsigned long long)(x))

static void print_human(struct ctl *c, const char *addr, const struct msg_stats_res *m) {
    char age[32], name[128], version[128];
    fprintf(c->out, "%s  node %u%s%s  %s  up %s  version %s\n", addr, m->node_id,
            m->node_name[0] ? " " : "", ctl_clean(str_of(m->node_name), name, sizeof(name)),
            name_of(node_states, ARRAY_LEN(node_states), m->state), ctl_age(m->uptime_ms, age),
            ctl_clean(str_of(m->version), version, sizeof(version)));
    print_tier(c, "RAM", m->ram_used_bytes, m->ram_bytes, m->blocks_ram);
    if (m->disk_bytes)
        print_tier(c, "disk", m->disk_used_bytes, m->disk_bytes, m->blocks_disk);
    fprintf(c->out, "  %-10s at most %llu entries, %llu holes\n", "directory", LL(m->max_blocks),
            LL(m->holes));
    fprintf(c->out, "  %-10s %llu of %llu blocks asked for (%.1f%%)\n", "hits", LL(m->lookup_hits),
            LL(m->lookup_blocks), percent(m->lookup_hits, m->lookup_blocks));
    fprintf(c->out,
            "  %-10s %llu fetched, %llu stored, %llu evicted, %llu conflicts, "
            "%llu corrupt\n",
            "blocks", LL(m->fetch_blocks), LL(m->put_blocks), LL(m->evict_blocks), LL(m->conflicts),
            LL(m->corrupt));
    fprintf(c->out,
            "  %-10s %u sessions, %u connections, %llu leases, %llu pins, %llu puts open, "
            "%u namespaces\n",
            "clients", m->sessions, m->connections, LL(m->leases), LL(m->pins), LL(m->puts_open),
            m->namespaces);
    fprintf(c->out, "  %-10s %s\n", "index",
            name_of(index_states, ARRAY_LEN(index_states), m->index_state));
}

/* Every number of the answer under its field's name. */
/* clang-format off */
#define STATS_NUMBERS(X)                                                                           \
    X(node_id) X(epoch) X(uptime_ms) X(ram_bytes) X(ram_used_bytes) X(disk_bytes)                  \
    X(disk_used_bytes) X(max_blocks) X(blocks_ram) X(blocks_disk) X(holes) X(leases) X(pins)       \
    X(puts_open) X(sessions) X(connections) X(namespaces) X(lookup_blocks) X(lookup_hits)          \
    X(fetch_blocks) X(put_blocks) X(evict_blocks) X(conflicts) X(corrupt)
/* clang-format on */

static void print_json(struct ctl *c, const char *addr, const struct msg_stats_res *m) {
    json_w_obj(&c->w);
    ctl_json_text(c, "address", addr);
    ctl_json_text(c, "node_name", m->node_name);
    ctl_json_text(c, "version", m->version);
    ctl_json_text(c, "state", name_of(node_states, ARRAY_LEN(node_states), m->state));
    ctl_json_text(c, "index", name_of(index_states, ARRAY_LEN(index_states), m->index_state));
#define X(f) ctl_json_u64(c, #f, m->f);
    STATS_NUMBERS(X)
#undef X
    json_w_key(&c->w, "counters");
    json_w_obj(&c->w);
    for (size_t i = 0; i < m->n_counters; i++) {
        json_w_key(&c->w, m->counters[i].name);
        json_w_num(&c->w, m->counters[i].value);
    }
    json_w_end(&c->w);
    json_w_end(&c->w);
}

struct stats_arg {
    struct ctl *c;
    const char *addr;
};

static void on_stats(void *arg, int rv, const char *text, const struct msg_stats_res *m) {
    struct stats_arg *a = arg;
    if (rv == 0 && a->c->opt.json)
        print_json(a->c, a->addr, m);
    else if (rv == 0)
        print_human(a->c, a->addr, m);
    ctl_done(a->c, rv, text);
}

int cmd_status_run(struct ctl *c) {
    int code = CTL_OK;
    json_w_key(&c->w, "nodes");
    json_w_arr(&c->w);
    for (uint32_t i = 0; i < ctl_n_nodes(c); i++) {
        if (!ctl_node_is_up(c, i)) {
            code = CTL_FAILED; /* said when connecting */
            continue;
        }
        struct stats_arg a = {c, ctl_node_addr(c, i)};
        struct msg_stats_req m = {0};
        int rv =
            ctl_wait(c, kv_client_stats(c->client, i, &m, ctl_deadline_ms(c), on_stats, &a, NULL));
        if (rv < 0)
            code = ctl_fail(c, rv, a.addr);
    }
    json_w_end(&c->w);
    return code;
}
