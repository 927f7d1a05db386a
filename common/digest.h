/* digest.h - SHA-256 through libcrypto, the algorithm fetched once a context (a fetch per call is three
 * times as slow for short messages). Thread: one owner a context. */
#pragma once

#include "common/compiler.h"

#define DIGEST_BYTES 32

struct digest;                   /* opaque */
struct digest *digest_new(void); /* NULL when libcrypto cannot give SHA-256 */
void digest_free(struct digest *d);
static inline void digest_freep(struct digest **d) {
    digest_free(*d);
}

void digest_begin(struct digest *d);
void digest_update(struct digest *d, const void *p, size_t n);
void digest_end(struct digest *d, uint8_t ret[DIGEST_BYTES]);

/* One shot; aborts only if libcrypto is unusable. */
void digest_sha256(const void *p, size_t n, uint8_t ret[DIGEST_BYTES]);
/* 2*n lower-case digits and a NUL. */
void digest_hex(const uint8_t *p, size_t n, char *ret);
/* Exactly 2*n digits, either case; 0 or ERR_INVALID. */
int digest_unhex(const char *hex, size_t n, uint8_t *ret);
