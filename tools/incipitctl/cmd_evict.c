#include <time.h>

#include "common/digest.h"
#include "tools/incipitctl/ctl_find.h"

struct evict_sum {
    struct ctl *c;
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

static int parse_selector(struct ctl *c, struct msg_evict_req *m, struct block_id *ids,
                          uint8_t digest[32], uint8_t writer[16]) {
    const struct ctl_opts *o = &c->opt;
    for (uint32_t i = 0; i < c->n_args; i++) {
        int code = ctl_find_block(c, c->args[i], &ids[i]);
        if (code != CTL_OK)
            return code;
    }
    *m = (struct msg_evict_req){
        .n_ids = c->n_args, .ids = ids, .descendants = o->chain, .dry_run = o->dry_run};
    const uint8_t *ns;
    int code = ctl_opt_ns(c, digest, &ns);
    if (code != CTL_OK)
        return code;
    m->digest = (struct msg_bytes){ns, ns ? 32 : 0};
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

int cmd_evict_run(struct ctl *c) {
    CLEANUP(freep) struct block_id *ids = alloc_array(c->n_args, sizeof(*ids));
    uint8_t digest[32], writer[16];
    struct msg_evict_req m;
    if (!ids)
        return ctl_fail(c, ERR_NOMEM, "evict");
    int code = parse_selector(c, &m, ids, digest, writer);
    if (code != CTL_OK)
        return code;
    struct evict_sum s = {.c = c};
    for (uint32_t i = 0; i < ctl_n_nodes(c); i++) {
        if (!ctl_node_is_up(c, i)) {
            code = CTL_FAILED; /* its blocks are still there */
            continue;
        }
        /* One time for all nodes: what the first one applied. */
        m.before_ms = s.sum.before_ms;
        int rv = ctl_wait(
            c, kv_client_evict(c->client, i, &m, ctl_slow_deadline_ms(c), on_evict, &s, NULL));
        if (rv < 0)
            code = ctl_fail(c, rv, ctl_node_addr(c, i));
    }
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
