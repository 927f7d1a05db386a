#include <time.h>

#include "common/digest.h"
#include "tools/incipitctl/ctl_chain.h"

struct evict_sum {
    struct ctl *c;
    bool is_begun; /* some node was asked */
    struct msg_evict_res sum;
};

static void on_evict(void *arg, int rv, const char *text, const struct msg_evict_res *m) {
    struct evict_sum *s = arg;
    if (rv == 0) {
        s->sum.blocks += m->blocks;
        s->sum.bytes += m->bytes;
        s->sum.deferred += m->deferred;
        s->sum.puts_aborted += m->puts_aborted;
        s->sum.before_ms = m->before_ms;
    }
    ctl_done(s->c, rv, text);
}

static void print_sum(struct evict_sum *s, const char *verb) {
    struct ctl *c = s->c;
    char bytes[32];
    if (c->opt.json) {
        ctl_json_u64(c, "blocks", s->sum.blocks);
        ctl_json_u64(c, "bytes", s->sum.bytes);
        ctl_json_u64(c, "deferred", s->sum.deferred);
        ctl_json_u64(c, "puts_aborted", s->sum.puts_aborted);
        json_w_key(&c->w, "dry_run");
        json_w_bool(&c->w, c->opt.dry_run);
        return;
    }
    fprintf(c->out, "%s %llu blocks, %s", verb, (unsigned long long)s->sum.blocks,
            ctl_bytes(s->sum.bytes, bytes));
    if (s->sum.deferred)
        fprintf(c->out, "; %llu of them are leased and free their memory later",
                (unsigned long long)s->sum.deferred);
    if (s->sum.puts_aborted)
        fprintf(c->out, "; %llu puts aborted", (unsigned long long)s->sum.puts_aborted);
    fputc('\n', c->out);
}

/* Unix seconds, or 90s, 30m, 2h, 7d ago. In ms. */
static int parse_time(struct ctl *c, const char *text, uint64_t *ret_ms) {
    struct str s = str_of(text);
    uint64_t v, unit = 0;
    if (s.n > 0) {
        char last = s.p[s.n - 1];
        unit = last == 's' ? 1 : last == 'm' ? 60 : last == 'h' ? 3600 : last == 'd' ? 86400 : 0;
    }
    if (str_to_u64(unit ? str_cut(s, 0, s.n - 1) : s, &v) < 0 || v > UINT64_MAX / 86400000) {
        ctl_usage(c, "'%s' is no time: Unix seconds, or 90s, 30m, 2h, 7d ago", text);
        return ERR_INVALID;
    }
    uint64_t now_s = (uint64_t)time(NULL);
    uint64_t at_s = unit ? now_s - MIN(now_s, v * unit) : v;
    *ret_ms = at_s * 1000;
    return 0;
}

/* Everything but ids and their namespace. */
static int parse_selector(struct ctl *c, struct msg_evict_req *m, uint8_t writer[16]) {
    const struct ctl_opts *o = &c->opt;
    *m = (struct msg_evict_req){.descendants = o->chain, .dry_run = o->dry_run};
    if (o->writer[0]) {
        if (strlen(o->writer) != 32 || digest_unhex(o->writer, 16, writer) < 0)
            return ctl_usage(c, "--writer wants 32 hex digits");
        m->writer = (struct msg_bytes){writer, 16};
    }
    if ((o->from[0] && parse_time(c, o->from, &m->from_ms) < 0) ||
        (o->to[0] && parse_time(c, o->to, &m->to_ms) < 0))
        return CTL_USAGE;
    if (c->n_args == 0 && !o->ns[0] && !o->writer[0] && !o->from[0] && !o->to[0])
        return ctl_usage(c, "evict what? ids, --ns, --writer, --from or --to (everything: flush)");
    if (o->chain && c->n_args == 0)
        return ctl_usage(c, "--chain goes with ids");
    return CTL_OK;
}

/* m->n_ids are named in requests of as many as the node takes. One time for all nodes: what the first one applied. */
static int evict_at(struct evict_sum *s, uint32_t node, struct msg_evict_req m) {
    struct ctl *c = s->c;
    struct kv_node_info info;
    kv_client_node_info(c->client, node, &info);
    s->is_begun = true;
    size_t left = m.n_ids;
    do {
        m.n_ids = MIN(left, info.max_ids);
        m.before_ms = s->sum.before_ms;
        int rv = ctl_wait(
            c, kv_client_evict(c->client, node, &m, ctl_slow_deadline_ms(c), on_evict, s, NULL));
        if (rv < 0)
            return ctl_fail(c, rv, ctl_node_addr(c, node));
        left -= m.n_ids;
        m.ids += m.n_ids;
    } while (left > 0);
    return CTL_OK;
}

/* The chain's ids, when there is one, else m's, at every node. A node that is down still has its blocks. */
static int evict_everywhere(struct evict_sum *s, struct msg_evict_req *m,
                            const struct ctl_chain *ch) {
    CLEANUP(freep) struct block_id *tops = alloc_array(ch->n, sizeof(*tops));
    int code = tops ? CTL_OK : ctl_fail(s->c, ERR_NOMEM, "evict");
    for (uint32_t i = 0; tops && i < ctl_n_nodes(s->c); i++) {
        if (ch->n) {
            m->n_ids = ctl_chain_tops(ch, i, tops);
            m->ids = tops;
        }
        int rv = !ctl_node_is_up(s->c, i) ? CTL_FAILED
                 : ch->n && !m->n_ids     ? CTL_OK
                                          : evict_at(s, i, *m);
        code = rv == CTL_OK ? code : rv;
    }
    return code;
}

/* ---- ids ---- */

struct namespaces {
    uint8_t (*digest)[32];
    size_t n;
    bool is_oom;
};

static void add_namespace(struct namespaces *all, const uint8_t digest[32]) {
    for (size_t i = 0; i < all->n; i++)
        if (memcmp(all->digest[i], digest, 32) == 0)
            return;
    void *v = realloc(all->digest, (all->n + 1) * sizeof(*all->digest));
    all->is_oom |= !v;
    if (!v)
        return;
    all->digest = v;
    memcpy(all->digest[all->n++], digest, 32);
}

static void on_namespaces(void *arg, struct ctl_pages *p, const struct msg_list_res *m) {
    (void)p;
    for (size_t i = 0; i < m->n_namespaces; i++)
        if (m->namespaces[i].digest.n == 32)
            add_namespace(arg, m->namespaces[i].digest.p);
}

/* Those that the ids may be in: the one of --ns, else every one that some node lists. */
static int find_namespaces(struct ctl *c, struct namespaces *ret) {
    uint8_t digest[32];
    const uint8_t *ns;
    int code = ctl_opt_ns(c, digest, &ns);
    if (ns)
        add_namespace(ret, ns);
    for (uint32_t i = 0; !ns && code == CTL_OK && i < ctl_n_nodes(c); i++) {
        struct ctl_pages p = {
            .what = MSG_LIST_NAMESPACES, .left = UINT64_MAX, .on_page = on_namespaces, .arg = ret};
        if (ctl_node_is_up(c, i))
            code = ctl_list_pages(c, i, &p);
    }
    return ret->is_oom ? ctl_fail(c, ERR_NOMEM, "evict") : code;
}

/* The ids that some node has in this namespace, in front; where there is but one namespace, nobody has to be asked. */
static int choose_ids(struct ctl *c, const struct namespaces *all, size_t at,
                      const struct block_id *ids, uint32_t *n_found, struct block_id *ret,
                      uint32_t *ret_n) {
    int code = CTL_OK;
    *ret_n = 0;
    for (uint32_t i = 0; i < c->n_args && code == CTL_OK; i++) {
        bool is_there = all->n == 1;
        if (!is_there)
            code = ctl_has_block(c, &ids[i], all->digest[at], &is_there);
        n_found[i] += is_there;
        if (is_there)
            ret[(*ret_n)++] = ids[i];
    }
    return code;
}

static int evict_in(struct evict_sum *s, const struct msg_evict_req *selector, const uint8_t ns[32],
                    const struct block_id *ids, uint32_t n) {
    struct msg_evict_req m = *selector;
    struct ctl_chain ch = {0};
    m.ids = ids;
    m.n_ids = n;
    m.digest = (struct msg_bytes){ns, 32};
    int code = s->c->opt.chain ? ctl_chain_find(s->c, ns, ids, n, &ch) : CTL_OK;
    if (code == CTL_OK)
        code = evict_everywhere(s, &m, &ch);
    ctl_chain_fini(&ch);
    return code;
}

/* Every id in every namespace that has it, which is said where it is more than one. */
static int evict_ids(struct evict_sum *s, const struct msg_evict_req *m,
                     const struct namespaces *all, const struct block_id *ids,
                     struct block_id *chosen, uint32_t *n_found) {
    struct ctl *c = s->c;
    int code = CTL_OK;
    for (size_t i = 0; i < all->n; i++) {
        uint32_t n;
        int rv = choose_ids(c, all, i, ids, n_found, chosen, &n);
        if (rv == CTL_OK && n > 0)
            rv = evict_in(s, m, all->digest[i], chosen, n);
        code = rv == CTL_OK ? code : rv;
    }
    for (uint32_t i = 0; i < c->n_args && code == CTL_OK; i++) {
        if (n_found[i] == 0) {
            ctl_say(c, "no node has %s in any namespace; for what may still come, name it: --ns",
                    c->args[i]);
            code = CTL_FAILED;
        }
        if (n_found[i] > 1)
            fprintf(c->err,
                    "incipitctl: %s is in %u namespaces: meant in each (one of them: --ns)\n",
                    c->args[i], n_found[i]);
    }
    return code;
}

static int run_ids(struct evict_sum *s, const struct msg_evict_req *m) {
    struct ctl *c = s->c;
    struct namespaces all = {0};
    CLEANUP(freep) struct block_id *ids = alloc_array(c->n_args, sizeof(*ids));
    CLEANUP(freep) struct block_id *chosen = alloc_array(c->n_args, sizeof(*chosen));
    CLEANUP(freep) uint32_t *n_found = alloc_array(c->n_args, sizeof(*n_found));
    int code = ids && chosen && n_found ? CTL_OK : ctl_fail(c, ERR_NOMEM, "evict");
    for (uint32_t i = 0; i < c->n_args && code == CTL_OK; i++)
        code = ctl_find_block(c, c->args[i], &ids[i]);
    if (code == CTL_OK)
        code = find_namespaces(c, &all);
    if (code == CTL_OK)
        code = evict_ids(s, m, &all, ids, chosen, n_found);
    free(all.digest);
    return code;
}

int cmd_evict_run(struct ctl *c) {
    uint8_t digest[32], writer[16];
    const uint8_t *ns;
    struct msg_evict_req m;
    struct evict_sum s = {.c = c};
    int code = parse_selector(c, &m, writer);
    if (code != CTL_OK)
        return code;
    code = c->n_args ? run_ids(&s, &m) : ctl_opt_ns(c, digest, &ns);
    if (code == CTL_OK && !c->n_args) {
        m.digest = (struct msg_bytes){ns, ns ? 32 : 0};
        code = evict_everywhere(&s, &m, &(struct ctl_chain){0});
    }
    if (s.is_begun || code == CTL_OK)
        print_sum(&s, c->opt.dry_run ? "would evict" : "evicted");
    return code;
}

int cmd_flush_run(struct ctl *c) {
    uint8_t digest[32];
    struct msg_flush_req m = {0};
    if (!c->opt.yes)
        return ctl_usage(c, "flush takes everything away; say --yes");
    const uint8_t *ns;
    int code = ctl_opt_ns(c, digest, &ns);
    if (code != CTL_OK)
        return code;
    m.digest = (struct msg_bytes){ns, ns ? 32 : 0};
    struct evict_sum s = {.c = c};
    for (uint32_t i = 0; i < ctl_n_nodes(c); i++) {
        if (!ctl_node_is_up(c, i)) {
            code = CTL_FAILED;
            continue;
        }
        m.before_ms = s.sum.before_ms;
        int rv = ctl_wait(
            c, kv_client_flush(c->client, i, &m, ctl_slow_deadline_ms(c), on_evict, &s, NULL));
        if (rv < 0)
            code = ctl_fail(c, rv, ctl_node_addr(c, i));
    }
    print_sum(&s, "flushed");
    return code;
}
