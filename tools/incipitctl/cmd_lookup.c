#include "common/block_id.h"
#include "common/secret.h"
#include "proto/wire_frame.h"
#include "tools/incipitctl/ctl.h"
#include "tools/incipitctl/ctl_find.h"
#include "tools/incipitctl/ctl_tokens.h"

/* tokens or ids -> chain -> Lookup without any flag -> table. Tokens of a text come from a worker,
 * since only workers have a tokenizer; the namespace comes from the nodes, which keep each
 * descriptor. */

struct lookup {
    struct ctl *c;
    /* namespace */
    struct kv_namespace ns;
    uint32_t range_sizes[CHECKSUM_MAX_RANGES];
    char *descriptor;
    const uint8_t *want; /* --ns, while the namespaces are listed */
    uint32_t n_namespaces, block_tok;
    /* prompt */
    int32_t *tok;
    size_t n_tok;
    struct block_id *ids;
    uint32_t n_ids;
    uint32_t *owner; /* [n_ids] index of the node that is asked */
};

static void lookup_fini(struct lookup *l) {
    free(l->descriptor);
    free(l->tok);
    free(l->ids);
    free(l->owner);
}

/* ---- namespace ---- */

static void on_namespaces(void *arg, struct ctl_pages *p, const struct msg_list_res *m) {
    struct lookup *l = arg;
    (void)p;
    for (size_t i = 0; i < m->n_namespaces; i++) {
        const struct msg_namespace_info *n = &m->namespaces[i];
        if (n->digest.n != 32 || n->n_range_sizes > ARRAY_LEN(l->range_sizes) ||
            (l->want && memcmp(n->digest.p, l->want, 32) != 0))
            continue;
        if (l->descriptor && memcmp(n->digest.p, l->ns.digest, 32) == 0)
            continue; /* another node's */
        l->n_namespaces++;
        free(l->descriptor);
        l->descriptor = str_dup((struct str){(const char *)n->descriptor.p, n->descriptor.n});
        memcpy(l->ns.digest, n->digest.p, 32);
        l->ns.descriptor = l->descriptor;
        l->ns.descriptor_len = n->descriptor.n;
        if (n->n_range_sizes)
            memcpy(l->range_sizes, n->range_sizes, n->n_range_sizes * sizeof(*n->range_sizes));
        l->ns.range_sizes = l->range_sizes;
        l->ns.n_ranges = (uint32_t)n->n_range_sizes;
        l->ns.n_full = n->n_full;
        l->ns.seg_blocks = n->seg_blocks;
    }
}

static int find_namespace(struct lookup *l) {
    struct ctl *c = l->c;
    uint8_t digest[32];
    int code = ctl_opt_ns(c, digest, &l->want);
    for (uint32_t i = 0; i < ctl_n_nodes(c) && code == CTL_OK; i++) {
        struct ctl_pages p = {
            .what = MSG_LIST_NAMESPACES, .left = UINT64_MAX, .on_page = on_namespaces, .arg = l};
        if (ctl_node_is_up(c, i))
            code = ctl_list_pages(c, i, &p);
    }
    l->want = NULL;
    if (code != CTL_OK)
        return code;
    if (l->n_namespaces && !l->descriptor)
        return ctl_fail(c, ERR_NOMEM, "lookup");
    if (l->n_namespaces == 0) {
        ctl_say(c, "no node has %s namespace", c->opt.ns[0] ? "that" : "a");
        return CTL_FAILED;
    }
    if (l->n_namespaces > 1)
        return ctl_usage(c, "the nodes have several namespaces; choose one with --ns "
                            "(incipitctl list namespaces)");
    uint64_t b;
    struct msg_bytes d = {(const uint8_t *)l->descriptor, l->ns.descriptor_len};
    if (str_to_u64(ctl_descriptor_value(d, "block_tokens"), &b) < 0 || b == 0 || b > 65536) {
        ctl_say(c, "the namespace's descriptor has no block_tokens");
        return CTL_FAILED;
    }
    l->block_tok = (uint32_t)b;
    return CTL_OK;
}

/* ---- chain ---- */

static int read_salt(struct ctl *c, uint8_t salt[32]) {
    struct secret_file f;
    struct str line, word;
    struct errbuf warn, eb;
    if (secret_file_open(&f, "salt file", c->opt.salt_file, &warn, &eb) < 0) {
        ctl_say(c, "%s", eb.text);
        return CTL_FAILED;
    }
    if (warn.text[0])
        fprintf(c->err, "incipitctl: warning: %s\n", warn.text);
    char hex[65] = "";
    bool ok =
        secret_file_next(&f, &line) && secret_word(&line, &word) && word.n == 64 && line.n == 0;
    if (ok)
        memcpy(hex, word.p, 64);
    ok = ok && digest_unhex(hex, 32, salt) == 0 && !secret_file_next(&f, &line);
    explicit_bzero(hex, sizeof(hex));
    secret_file_close(&f);
    return ok ? CTL_OK : ctl_usage(c, "'%s' does not hold 64 hex digits", c->opt.salt_file);
}

static int chain_from_tokens(struct lookup *l) {
    struct ctl *c = l->c;
    uint8_t salt[32];
    if (c->opt.salt_file[0]) {
        int code = read_salt(c, salt);
        if (code != CTL_OK)
            return code;
    }
    /* Like a worker: the last token is always computed, so it names no block. */
    size_t n = block_count_lookup(l->n_tok, l->block_tok);
    struct digest *d = digest_new();
    l->ids = alloc_array(l->n_tok / l->block_tok + 1, sizeof(*l->ids));
    if (!d || !l->ids) {
        digest_free(d);
        return ctl_fail(c, ERR_NOMEM, "lookup");
    }
    struct block_chain_cfg cfg = {.namespace_digest = l->ns.digest,
                                  .salt = c->opt.salt_file[0] ? salt : NULL,
                                  .block_tok = l->block_tok};
    block_chain(d, &cfg, l->tok, n * l->block_tok, l->ids);
    l->n_ids = (uint32_t)n;
    digest_free(d);
    return CTL_OK;
}

static int chain_from_args(struct lookup *l) {
    struct ctl *c = l->c;
    l->ids = alloc_array(c->n_args, sizeof(*l->ids));
    if (!l->ids)
        return ctl_fail(c, ERR_NOMEM, "lookup");
    for (uint32_t i = 0; i < c->n_args; i++) {
        int code = ctl_find_block(c, c->args[i], &l->ids[i]);
        if (code != CTL_OK)
            return code;
    }
    l->n_ids = c->n_args;
    return CTL_OK;
}

/* ---- asking and printing ---- */

/* The node that each block's segment belongs to, among those that are up. */
static void find_owners(struct lookup *l) {
    struct ctl *c = l->c;
    uint16_t id[CTL_MAX_NODES];
    uint32_t index[CTL_MAX_NODES], n = 0;
    for (uint32_t i = 0; i < ctl_n_nodes(c); i++) {
        struct kv_node_info info;
        kv_client_node_info(c->client, i, &info);
        if (info.state != KV_NODE_UP)
            continue;
        index[n] = i;
        id[n++] = (uint16_t)info.node_id;
    }
    if (n == 0)
        return;
    kv_route_chain(l->ids, 0, l->n_ids, KV_ROUTE_SEG_BLOCKS, id, n, l->owner);
    for (uint32_t i = 0; i < l->n_ids; i++)
        l->owner[i] = index[l->owner[i]];
}

static const char *status_name(uint8_t s) {
    static const char *const names[] = {"absent", "ram", "disk", "claimed", "hint"};
    return s < ARRAY_LEN(names) ? names[s] : "?";
}

static void print_table(struct lookup *l, const uint8_t *status, uint32_t n_prefix) {
    struct ctl *c = l->c;
    fprintf(c->out, "%u of %u full blocks in front are resident", n_prefix, l->n_ids);
    if (l->tok)
        fprintf(c->out, " (%u of %zu tokens)", n_prefix * l->block_tok, l->n_tok);
    fprintf(c->out, "\nBLOCK TOKENS           WHERE   NODE                     ID\n");
    for (uint32_t i = 0; i < l->n_ids; i++) {
        char hex[65], range[32];
        snprintf(range, sizeof(range), "%u..%u", i * l->block_tok, (i + 1) * l->block_tok - 1);
        fprintf(c->out, "%5u %-16s %-7s %-24s %s\n", i, range, status_name(status[i]),
                ctl_node_addr(c, l->owner[i]), ctl_hex((struct msg_bytes){l->ids[i].b, 32}, hex));
    }
}

static void print_json(struct lookup *l, const uint8_t *status, uint32_t n_prefix) {
    struct ctl *c = l->c;
    ctl_json_hex(c, "namespace", (struct msg_bytes){l->ns.digest, 32});
    ctl_json_u64(c, "block_tokens", l->block_tok);
    ctl_json_u64(c, "tokens", l->n_tok);
    ctl_json_u64(c, "resident_prefix_blocks", n_prefix);
    json_w_key(&c->w, "blocks");
    json_w_arr(&c->w);
    for (uint32_t i = 0; i < l->n_ids; i++) {
        json_w_obj(&c->w);
        ctl_json_u64(c, "index", i);
        ctl_json_hex(c, "id", (struct msg_bytes){l->ids[i].b, 32});
        ctl_json_text(c, "where", status_name(status[i]));
        ctl_json_text(c, "node", ctl_node_addr(c, l->owner[i]));
        json_w_end(&c->w);
    }
    json_w_end(&c->w);
}

static void on_lookup(void *arg, int rv, const struct kv_lookup_res *res) {
    struct lookup *l = arg;
    if (rv == 0 && l->c->opt.json)
        print_json(l, res->status, res->n_prefix);
    else if (rv == 0)
        print_table(l, res->status, res->n_prefix);
    ctl_done(l->c, rv, "");
}

static void on_late(uv_timer_t *t) {
    *(bool *)t->data = true;
}

/* The namespace is registered in the background; until then no node counts as reachable for it. */
static int ask(struct lookup *l) {
    struct ctl *c = l->c;
    uint32_t ns;
    int rv = kv_client_namespace(c->client, &l->ns, &ns);
    if (rv < 0)
        return rv;
    struct kv_lookup q = {
        .ns = ns, .chain = l->ids, .n = l->n_ids, .deadline_ms = ctl_deadline_ms(c)};
    bool is_late = false;
    uv_timer_t timer;
    uv_timer_init(&c->loop, &timer);
    timer.data = &is_late;
    uv_timer_start(&timer, on_late, c->opt.timeout_ms, 0);
    do {
        uv_run(&c->loop, UV_RUN_ONCE);
        find_owners(l);
        rv = kv_client_lookup(c->client, &q, on_lookup, l, NULL);
    } while (rv == ERR_UNAVAILABLE && !is_late);
    rv = ctl_wait(c, rv);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&c->loop, UV_RUN_NOWAIT);
    return rv;
}

static int check_options(struct ctl *c) {
    const struct ctl_opts *o = &c->opt;
    bool is_text = o->text[0] || o->chat[0] || o->request[0];
    if ((o->text[0] != 0) + (o->chat[0] != 0) + (o->request[0] != 0) + (o->tokens[0] != 0) +
            o->ids !=
        1)
        return ctl_usage(c, "want one of --text, --chat, --request, --tokens, --ids");
    if (is_text && !o->worker[0])
        return ctl_usage(c, "--text, --chat and --request need --worker, which makes the tokens");
    if (o->ids != (c->n_args > 0))
        return ctl_usage(c, "block ids go with --ids");
    return CTL_OK;
}

static int run(struct lookup *l) {
    struct ctl *c = l->c;
    int code = find_namespace(l);
    if (code == CTL_OK && !c->opt.ids)
        code = ctl_tokens(c, &l->tok, &l->n_tok);
    if (code == CTL_OK)
        code = c->opt.ids ? chain_from_args(l) : chain_from_tokens(l);
    if (code != CTL_OK)
        return code;
    if (l->n_ids > WIRE_MAX_IDS)
        return ctl_fail(c, ERR_TOOBIG, "lookup");
    l->owner = alloc_array(l->n_ids, sizeof(*l->owner));
    if (!l->owner)
        return ctl_fail(c, ERR_NOMEM, "lookup");
    if (l->n_ids == 0) {
        /* Shorter than a block and one token: nothing to ask. */
        if (c->opt.json)
            print_json(l, NULL, 0);
        else
            print_table(l, NULL, 0);
        return CTL_OK;
    }
    int rv = ask(l);
    return rv < 0 ? ctl_fail(c, rv, "lookup") : CTL_OK;
}

int cmd_lookup_run(struct ctl *c) {
    struct lookup l = {.c = c};
    int code = check_options(c);
    if (code == CTL_OK)
        code = run(&l);
    lookup_fini(&l);
    return code;
}
