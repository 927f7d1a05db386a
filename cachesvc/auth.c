#include "cachesvc/auth.h"

#include <openssl/crypto.h>

#include "common/secret.h"
#include "proto/wire_msg.h"

static const struct {
    const char *name;
    uint32_t role;
} role_names[] = {
    {"worker", MSG_ROLE_WORKER}, {"reader", MSG_ROLE_READER}, {"admin", MSG_ROLE_ADMIN}};

static int parse_line(struct str line, struct auth_token *ret, const char **ret_why) {
    struct str word;
    *ret = (struct auth_token){0};
    (void)secret_word(&line, &word); /* a line has one */
    for (size_t i = 0; i < ARRAY_LEN(role_names); i++)
        if (str_eq(word, str_of(role_names[i].name)))
            ret->role = role_names[i].role;
    *ret_why = "the role is not worker, reader or admin";
    if (!ret->role)
        return ERR_INVALID;
    *ret_why = "no token behind the role";
    if (!secret_word(&line, &word))
        return ERR_INVALID;
    *ret_why = "a token needs at least 16 characters";
    if (word.n < 16)
        return ERR_INVALID;
    digest_sha256(word.p, word.n, ret->digest);
    while (secret_word(&line, &word)) {
        char hex[2 * DIGEST_BYTES + 1] = "";
        *ret_why = "at most 8 namespace digests of 64 hex digits";
        if (ret->n_ns == ARRAY_LEN(ret->ns) || word.n != 2 * DIGEST_BYTES)
            return ERR_INVALID;
        memcpy(hex, word.p, word.n);
        if (digest_unhex(hex, DIGEST_BYTES, ret->ns[ret->n_ns++]) < 0)
            return ERR_INVALID;
    }
    return 0;
}

static int add_token(struct auth *a, const struct auth_token *t) {
    struct auth_token *more =
        secret_resize(a->tokens, a->n * sizeof(*more), (a->n + 1) * sizeof(*more));
    if (!more)
        return ERR_NOMEM;
    a->tokens = more;
    a->tokens[a->n++] = *t;
    return 0;
}

_Static_assert(sizeof(struct auth_token) == 9 * DIGEST_BYTES + 8, "auth_find() compares it whole");

int auth_load(struct auth *a, const char *path, struct errbuf *warn, struct errbuf *eb) {
    struct secret_file f;
    struct str line;
    *a = (struct auth){0};
    int rv = secret_file_open(&f, "token file", path, warn, eb);
    while (rv == 0 && secret_file_next(&f, &line)) {
        struct auth_token t;
        const char *why = "out of memory";
        rv = parse_line(line, &t, &why);
        if (rv == 0)
            rv = add_token(a, &t);
        if (rv < 0)
            (void)secret_file_error(&f, eb, "%s", why);
    }
    if (rv == 0 && a->n == 0)
        rv = err_set(eb, ERR_INVALID, "token file '%s' holds no token", path);
    secret_file_close(&f);
    if (rv < 0)
        auth_fini(a);
    return rv;
}

void auth_fini(struct auth *a) {
    secret_free(a->tokens, a->n * sizeof(*a->tokens));
    *a = (struct auth){0};
}

int auth_check(const struct auth *a, const void *token, size_t len, uint32_t role,
               const struct auth_token **ret) {
    *ret = NULL;
    if (a->n == 0)
        return 0;
    uint8_t digest[DIGEST_BYTES];
    digest_sha256(token, len, digest);
    /* Every row is compared in full, so the time tells nothing about how far a guess got. */
    for (uint32_t i = 0; i < a->n; i++)
        if (CRYPTO_memcmp(digest, a->tokens[i].digest, DIGEST_BYTES) == 0 &&
            a->tokens[i].role == role)
            *ret = &a->tokens[i];
    return *ret ? 0 : ERR_DENIED;
}

const struct auth_token *auth_find(const struct auth *a, const struct auth_token *row) {
    for (uint32_t i = 0; i < a->n; i++)
        if (memcmp(&a->tokens[i], row, sizeof(*row)) == 0) /* no padding; parsed onto zeros */
            return &a->tokens[i];
    return NULL;
}

bool auth_ns_allowed(const struct auth_token *t, const uint8_t digest[DIGEST_BYTES]) {
    if (!auth_is_bound(t))
        return true;
    for (uint32_t i = 0; i < t->n_ns; i++)
        if (memcmp(t->ns[i], digest, DIGEST_BYTES) == 0)
            return true;
    return false;
}

bool auth_covers(const struct auth_token *t, const struct auth_token *other) {
    if (!auth_is_bound(t))
        return true;
    if (!auth_is_bound(other))
        return false;
    for (uint32_t i = 0; i < other->n_ns; i++)
        if (!auth_ns_allowed(t, other->ns[i]))
            return false;
    return true;
}
