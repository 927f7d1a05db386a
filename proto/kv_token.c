#include "proto/kv_token.h"

#include "common/secret.h"

static const char *const role_names[] = {
    [MSG_ROLE_WORKER] = "worker", [MSG_ROLE_READER] = "reader", [MSG_ROLE_ADMIN] = "admin"};

static bool is_role(struct str word) {
    for (size_t i = MSG_ROLE_WORKER; i <= MSG_ROLE_ADMIN; i++)
        if (str_eq(word, str_of(role_names[i])))
            return true;
    return false;
}

/* The first line of the role; a file without any role: its first word. */
static struct str find_token(struct secret_file *f, enum msg_role role, bool *ret_has_roles) {
    struct str line, none = {"", 0}, bare = none;
    while (secret_file_next(f, &line)) {
        struct str word, second;
        (void)secret_word(&line, &word); /* a line has one */
        if (!secret_word(&line, &second)) {
            bare = bare.n ? bare : word;
        } else if (is_role(word)) {
            *ret_has_roles = true;
            if (str_eq(word, str_of(role_names[role])))
                return second;
        }
    }
    return *ret_has_roles ? none : bare;
}

static int take_token(struct secret_file *f, enum msg_role role, char ret[KV_TOKEN_MAX_BYTES],
                      size_t *ret_len, struct errbuf *eb) {
    bool has_roles = false;
    struct str token = find_token(f, role, &has_roles);
    if (token.n > KV_TOKEN_MAX_BYTES)
        return err_set(eb, ERR_TOOBIG, "token file '%s': a token has at most %d bytes", f->path,
                       KV_TOKEN_MAX_BYTES);
    if (token.n) {
        memcpy(ret, token.p, token.n);
        *ret_len = token.n;
        return 0;
    }
    return has_roles ? err_set(eb, ERR_NOTFOUND, "token file '%s' has no line for the role %s",
                               f->path, role_names[role])
                     : err_set(eb, ERR_INVALID, "token file '%s' holds no token", f->path);
}

int kv_token_load(const char *path, enum msg_role role, char ret[KV_TOKEN_MAX_BYTES],
                  size_t *ret_len, struct errbuf *warn, struct errbuf *eb) {
    struct secret_file f;
    int rv = secret_file_open(&f, "token file", path, warn, eb);
    if (rv < 0)
        return rv;
    rv = take_token(&f, role, ret, ret_len, eb);
    secret_file_close(&f);
    return rv;
}
