/* api_priv.h - shared by the files of worker/api. */
#pragma once

#include "worker/api/http_openai.h"
#include "worker/api/openai_render.h"

struct api_key {                  /* a line of --api-key-file */
    uint8_t digest[DIGEST_BYTES]; /* SHA-256 of the key */
    uint8_t salt[BLOCK_SALT_BYTES];
    bool has_salt;
};

/* Longer bodies are parsed in a pool: 16 MiB take .4 s, in which no stream would get its tokens. */
#define API_INLINE_BYTES ((size_t)128 << 10)

struct api_keys {
    struct api_key *v; /* [n]; memory of common/secret.h */
    size_t n;
};

struct http_openai {
    struct http_openai_cfg cfg;
    struct api_keys keys;
    struct list calls; /* open generations */
    uv_timer_t keepalive;
    uint64_t next_id;
    uint64_t started_s; /* "created" of the model */
    void (*close_cb)(void *arg);
    void *close_arg;
};

/* True: the request may go on, *ret_key is its key (NULL without keys). False: it was answered with 401. */
bool api_authorize(struct http_openai *h, struct http_req *r, const struct api_key **ret_key);
/* warn: who else may read the file, or "". Free with api_keys_fini(). */
int api_keys_load(struct api_keys *ret, const char *path, struct errbuf *warn, struct errbuf *eb);
void api_keys_fini(struct api_keys *t);

/* Route hook: the key and the type of the body, before it is read. */
bool api_on_head(struct http_req *r, void *arg);

/* api_models.c */
/* Whether a request that names this model (p NULL or empty: none) is for what is served here. */
bool api_serves(const struct http_openai *h, struct str model);
void api_reply_no_model(const struct http_openai *h, struct http_req *r, struct str model);
void api_on_models(struct http_req *r, void *arg);
void api_on_model(struct http_req *r, void *arg); /* /v1/models/NAME */

/* api_text.c */
void api_on_tokenize(struct http_req *r, void *arg);
void api_on_detokenize(struct http_req *r, void *arg);
