#include "worker/api/api_priv.h"

#include <openssl/crypto.h>

#include "common/secret.h"

static int parse_key_line(struct str line, struct api_key *ret) {
    struct str key, salt, more;
    *ret = (struct api_key){0};
    (void)secret_word(&line, &key); /* a line has one */
    if (key.n < 8)
        return ERR_INVALID;
    digest_sha256(key.p, key.n, ret->digest);
    if (!secret_word(&line, &salt))
        return 0;
    char hex[2 * BLOCK_SALT_BYTES + 1] = "";
    if (salt.n != 2 * BLOCK_SALT_BYTES || secret_word(&line, &more))
        return ERR_INVALID;
    memcpy(hex, salt.p, salt.n);
    ret->has_salt = true;
    int rv = digest_unhex(hex, BLOCK_SALT_BYTES, ret->salt);
    explicit_bzero(hex, sizeof(hex));
    return rv;
}

static int add_key(struct api_keys *t, const struct api_key *k) {
    struct api_key *more = secret_resize(t->v, t->n * sizeof(*more), (t->n + 1) * sizeof(*more));
    if (!more)
        return ERR_NOMEM;
    t->v = more;
    t->v[t->n++] = *k;
    return 0;
}

int api_keys_load(struct api_keys *ret, const char *path, struct errbuf *warn, struct errbuf *eb) {
    struct secret_file f;
    struct api_keys t = {0};
    struct str line;
    int rv = secret_file_open(&f, "--api-key-file", path, warn, eb);
    while (rv == 0 && secret_file_next(&f, &line)) {
        struct api_key k;
        if (parse_key_line(line, &k) < 0)
            rv = secret_file_error(&f, eb,
                                   "want KEY (8 characters or more) [SALT as 64 hex digits]");
        else if ((rv = add_key(&t, &k)) < 0)
            (void)secret_file_error(&f, eb, "out of memory");
        explicit_bzero(&k, sizeof(k));
    }
    if (rv == 0 && t.n == 0)
        rv = err_set(eb, ERR_INVALID, "--api-key-file '%s' holds no key", path);
    secret_file_close(&f);
    if (rv < 0)
        api_keys_fini(&t);
    else
        *ret = t;
    return rv;
}

void api_keys_fini(struct api_keys *t) {
    secret_free(t->v, t->n * sizeof(*t->v));
    *t = (struct api_keys){0};
}

bool api_authorize(struct http_openai *h, struct http_req *r, const struct api_key **ret_key) {
    *ret_key = NULL;
    if (h->keys.n == 0)
        return true;
    struct str value = http_req_header(r, "authorization");
    if (str_starts(value, STR("Bearer ")))
        value = str_trim(str_cut(value, 7, value.n));
    else
        value = http_req_header(r, "x-api-key");
    uint8_t digest[DIGEST_BYTES];
    digest_sha256(value.p ? value.p : "", value.n, digest);
    /* All rows in full: the time does not tell how far a guess got. */
    for (size_t i = 0; i < h->keys.n; i++)
        if (CRYPTO_memcmp(digest, h->keys.v[i].digest, DIGEST_BYTES) == 0)
            *ret_key = &h->keys.v[i];
    if (*ret_key)
        return true;
    http_reply_error(r, 401, "invalid_request_error", NULL, "invalid_api_key",
                     "no such API key; send it as 'Authorization: Bearer KEY'");
    return false;
}

static bool is_json(struct str type) {
    return str_eq_nocase(str_trim(str_cut(type, 0, str_find(type, STR(";"), 0))),
                         STR("application/json"));
}

bool api_on_head(struct http_req *r, void *arg) {
    const struct api_key *key;
    if (!api_authorize(arg, r, &key))
        return false;
    if (strcmp(http_req_method(r), "POST") != 0 || is_json(http_req_header(r, "content-type")))
        return true;
    http_reply_error(r, 415, "invalid_request_error", NULL, NULL,
                     "the body must be sent as 'Content-Type: application/json'");
    return false;
}
