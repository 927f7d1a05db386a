#include "worker/api/api_priv.h"

#include <errno.h>
#include <openssl/crypto.h>

static int parse_key_line(struct str line, struct api_key *ret) {
    struct str key, salt = {0};
    *ret = (struct api_key){0};
    if (!str_split(&line, ' ', &key) || key.n < 8)
        return ERR_INVALID;
    digest_sha256(key.p, key.n, ret->digest);
    salt = str_trim(line);
    if (salt.n == 0)
        return 0;
    char hex[2 * BLOCK_SALT_BYTES + 1] = "";
    if (salt.n != 2 * BLOCK_SALT_BYTES)
        return ERR_INVALID;
    memcpy(hex, salt.p, salt.n);
    ret->has_salt = true;
    return digest_unhex(hex, BLOCK_SALT_BYTES, ret->salt);
}

int api_keys_load(struct http_openai *h, const char *path, struct errbuf *eb) {
    CLEANUP(fclosep) FILE *f = fopen(path, "re");
    if (!f)
        return err_set(eb, -errno, "--api-key-file '%s': %s", path, err_text(-errno));
    char line[1024];
    for (unsigned n = 1; fgets(line, sizeof(line), f); n++) {
        struct str s = str_trim(str_of(line));
        if (s.n == 0 || s.p[0] == '#')
            continue;
        struct api_key k, *more = realloc(h->keys, (h->n_keys + 1) * sizeof(*more));
        if (!more)
            return ERR_NOMEM;
        h->keys = more;
        if (parse_key_line(s, &k) < 0)
            return err_set(eb, ERR_INVALID,
                           "--api-key-file '%s', line %u: want KEY (8 characters or more) [SALT as 64 hex digits]",
                           path, n);
        h->keys[h->n_keys++] = k;
    }
    explicit_bzero(line, sizeof(line));
    return h->n_keys ? 0 : err_set(eb, ERR_INVALID, "--api-key-file '%s' holds no key", path);
}

bool api_authorize(struct http_openai *h, struct http_req *r, const struct api_key **ret_key) {
    *ret_key = NULL;
    if (h->n_keys == 0)
        return true;
    struct str value = http_req_header(r, "authorization");
    if (str_starts(value, STR("Bearer ")))
        value = str_trim(str_cut(value, 7, value.n));
    else
        value = http_req_header(r, "x-api-key");
    uint8_t digest[DIGEST_BYTES];
    digest_sha256(value.p ? value.p : "", value.n, digest);
    /* All rows in full: the time does not tell how far a guess got. */
    for (size_t i = 0; i < h->n_keys; i++)
        if (CRYPTO_memcmp(digest, h->keys[i].digest, DIGEST_BYTES) == 0)
            *ret_key = &h->keys[i];
    if (*ret_key)
        return true;
    http_reply_error(r, 401, "invalid_request_error", NULL, "invalid_api_key",
                     "no such API key; send it as 'Authorization: Bearer KEY'");
    return false;
}
