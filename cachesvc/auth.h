/* auth.h - the token file: who may do what, and with which namespaces.
 *
 * Without tokens every role is open and no namespace is closed: a row is NULL then.
 * Thread: one owner. Memory: rows lie where no core dump shows them (common/secret.h). */
#pragma once

#include "common/digest.h"
#include "common/err.h"

/* A role with its token, one line of --token-file. */
struct auth_token {
    uint8_t digest[DIGEST_BYTES]; /* SHA-256 of the token: equal lengths for the comparison */
    uint32_t role;                /* enum msg_role */
    uint32_t n_ns;                /* 0: every namespace */
    uint8_t ns[8][DIGEST_BYTES];
};
struct auth {
    struct auth_token *tokens; /* [n]; n = 0: no tokens configured, every role is open */
    uint32_t n;
};
/* Reads the file; eb names the line, warn (may be NULL) who else may read it (common/secret.h). */
int auth_load(struct auth *a, const char *path, struct errbuf *warn, struct errbuf *eb);
void auth_fini(struct auth *a);
/* The matching row; *ret stays NULL when no tokens are configured. ERR_DENIED. Takes the same time for every
 * wrong token. */
int auth_check(const struct auth *a, const void *token, size_t len, uint32_t role,
               const struct auth_token **ret);

/* The row that says exactly the same (token, role, namespaces), e.g. in a file that was read again; or NULL. */
const struct auth_token *auth_find(const struct auth *a, const struct auth_token *row);

/* Whether a row names namespaces; one that names none may use all. */
static inline bool auth_is_bound(const struct auth_token *t) {
    return t && t->n_ns > 0;
}
bool auth_ns_allowed(const struct auth_token *t, const uint8_t digest[DIGEST_BYTES]);
/* Whether every namespace of other is t's too: only then may t see what other does. */
bool auth_covers(const struct auth_token *t, const struct auth_token *other);
