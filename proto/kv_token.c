#include "proto/kv_token.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "common/str.h"

static const char *const role_names[] = {
    [MSG_ROLE_WORKER] = "worker", [MSG_ROLE_READER] = "reader", [MSG_ROLE_ADMIN] = "admin"};

static int read_file(const char *path, char text[KV_TOKEN_MAX_BYTES], struct errbuf *eb) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(eb, -errno, "token file '%s': %s", path, err_text(-errno));
    ssize_t n = read(fd, text, KV_TOKEN_MAX_BYTES);
    int err = errno;
    close(fd);
    if (n < 0)
        return err_set(eb, -err, "token file '%s': %s", path, err_text(-err));
    if (n == KV_TOKEN_MAX_BYTES)
        return err_set(eb, ERR_TOOBIG, "token file '%s' is longer than a token file is", path);
    return (int)n;
}

/* The next word of *rest; empty at the end. */
static struct str next_word(struct str *rest) {
    *rest = str_trim(*rest);
    size_t n = 0;
    while (n < rest->n && rest->p[n] != ' ' && rest->p[n] != '\t')
        n++;
    struct str word = str_cut(*rest, 0, n);
    *rest = str_cut(*rest, n, rest->n);
    return word;
}

static bool is_role(struct str word) {
    for (size_t i = MSG_ROLE_WORKER; i <= MSG_ROLE_ADMIN; i++)
        if (str_eq(word, str_of(role_names[i])))
            return true;
    return false;
}

static struct str find_token(struct str text, enum msg_role role, bool *ret_has_roles) {
    struct str line, none = {"", 0}, bare = none;
    while (str_split(&text, '\n', &line)) {
        struct str rest = line, word = next_word(&rest), second = next_word(&rest);
        if (word.n == 0 || word.p[0] == '#')
            continue;
        if (second.n == 0) {
            bare = bare.n ? bare : word;
        } else if (is_role(word)) {
            *ret_has_roles = true;
            if (str_eq(word, str_of(role_names[role])))
                return second;
        }
    }
    return *ret_has_roles ? none : bare;
}

int kv_token_load(const char *path, enum msg_role role, char ret[KV_TOKEN_MAX_BYTES],
                  size_t *ret_len, struct errbuf *eb) {
    char text[KV_TOKEN_MAX_BYTES];
    int n = read_file(path, text, eb);
    if (n < 0)
        return n;
    bool has_roles = false;
    struct str token = find_token((struct str){text, (size_t)n}, role, &has_roles);
    if (token.n)
        memcpy(ret, token.p, token.n);
    *ret_len = token.n;
    explicit_bzero(text, sizeof(text));
    if (token.n)
        return 0;
    return has_roles ? err_set(eb, ERR_NOTFOUND, "token file '%s' has no line for the role %s",
                               path, role_names[role])
                     : err_set(eb, ERR_INVALID, "token file '%s' holds no token", path);
}
