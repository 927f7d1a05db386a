#include "tools/incipitctl/ctl_find.h"

#include <ctype.h>

#include "common/digest.h"

#define PAGE 256u
#define HEX_DIGITS 64u /* of an id or a digest */

static void on_list(void *arg, int rv, const char *text, const struct msg_list_res *m) {
    struct ctl_pages *p = arg;
    p->n_cursor = 0;
    if (rv == 0 && m->cursor.n > sizeof(p->cursor))
        rv = ERR_PROTO;
    if (rv == 0) {
        p->n_cursor = m->cursor.n;
        if (m->cursor.n)
            memcpy(p->cursor, m->cursor.p, m->cursor.n);
        p->on_page(p->arg, p, m);
    }
    ctl_done(p->c, rv, text);
}

int ctl_list_pages(struct ctl *c, uint32_t node, struct ctl_pages *p) {
    p->c = c;
    p->n_cursor = 0;
    do {
        struct msg_list_req m = {.what = p->what,
                                 .cursor = {p->cursor, p->n_cursor},
                                 .limit = (uint32_t)MIN(p->left, (uint64_t)PAGE),
                                 .digest = {p->digest, p->digest ? 32 : 0}};
        int rv =
            ctl_wait(c, kv_client_list(c->client, node, &m, ctl_deadline_ms(c), on_list, p, NULL));
        if (rv < 0)
            return ctl_fail(c, rv, ctl_node_addr(c, node));
    } while (p->n_cursor > 0 && p->left > 0);
    p->has_more = p->n_cursor > 0;
    return CTL_OK;
}

/* ---- prefixes ---- */

struct finder {
    const char *word;
    size_t n; /* digits */
    uint8_t first[32], second[32];
    uint32_t n_found; /* 0, 1, 2: at least two */
};

static void look_at(struct finder *f, struct ctl_pages *p, struct msg_bytes b) {
    char hex[HEX_DIGITS + 1];
    if (b.n != 32 || f->n_found == 2)
        return;
    digest_hex(b.p, 32, hex);
    if (strncasecmp(hex, f->word, f->n) != 0 || (f->n_found && memcmp(f->first, b.p, 32) == 0))
        return;
    memcpy(f->n_found ? f->second : f->first, b.p, 32);
    if (++f->n_found == 2)
        p->left = 0; /* enough is known */
}

static void on_page(void *arg, struct ctl_pages *p, const struct msg_list_res *m) {
    for (size_t i = 0; i < m->n_blocks; i++)
        look_at(arg, p, m->blocks[i].id);
    for (size_t i = 0; i < m->n_namespaces; i++)
        look_at(arg, p, m->namespaces[i].digest);
}

static bool is_hex(const char *word, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isxdigit((unsigned char)word[i]))
            return false;
    return true;
}

static int find(struct ctl *c, enum msg_list_what what, const char *word, uint8_t ret[32]) {
    const char *kind = what == MSG_LIST_BLOCKS ? "block" : "namespace";
    struct finder f = {.word = word, .n = strlen(word)};
    if (f.n < CTL_MIN_PREFIX || f.n > HEX_DIGITS || !is_hex(word, f.n))
        return ctl_usage(c, "'%s' is no %s: %d to %u hex digits", word, kind, CTL_MIN_PREFIX,
                         HEX_DIGITS);
    if (f.n == HEX_DIGITS)
        return digest_unhex(word, 32, ret) == 0 ? CTL_OK : CTL_USAGE;
    for (uint32_t i = 0; i < ctl_n_nodes(c) && f.n_found < 2; i++) {
        struct ctl_pages p = {.what = what, .left = UINT64_MAX, .on_page = on_page, .arg = &f};
        int code = ctl_node_is_up(c, i) ? ctl_list_pages(c, i, &p) : CTL_OK;
        if (code != CTL_OK)
            return code;
    }
    char a[HEX_DIGITS + 1], b[HEX_DIGITS + 1];
    digest_hex(f.first, 32, a);
    digest_hex(f.second, 32, b);
    if (f.n_found == 2)
        return ctl_usage(c, "'%s' is the beginning of several %ss, of %s and %s among others", word,
                         kind, a, b);
    if (f.n_found == 0) {
        ctl_say(c, "no node has a %s that begins with %s", kind, word);
        return CTL_FAILED;
    }
    memcpy(ret, f.first, 32);
    return CTL_OK;
}

int ctl_find_block(struct ctl *c, const char *word, struct block_id *ret) {
    return find(c, MSG_LIST_BLOCKS, word, ret->b);
}

int ctl_find_ns(struct ctl *c, const char *word, uint8_t ret[32]) {
    return find(c, MSG_LIST_NAMESPACES, word, ret);
}

int ctl_opt_ns(struct ctl *c, uint8_t digest[32], const uint8_t **ret) {
    *ret = NULL;
    if (!c->opt.ns[0])
        return CTL_OK;
    int code = ctl_find_ns(c, c->opt.ns, digest);
    *ret = code == CTL_OK ? digest : NULL;
    return code;
}
