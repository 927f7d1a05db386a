#include "common/digest.h"

#include <openssl/evp.h>

#include "common/check.h"
#include "common/err.h"

struct digest {
    EVP_MD *md;
    EVP_MD_CTX *ctx;
};

struct digest *digest_new(void) {
    struct digest *d = calloc(1, sizeof(*d));
    if (!d)
        return NULL;
    d->md = EVP_MD_fetch(NULL, "SHA256", NULL);
    d->ctx = EVP_MD_CTX_new();
    if (!d->md || !d->ctx) {
        digest_free(d);
        return NULL;
    }
    return d;
}

void digest_free(struct digest *d) {
    if (!d)
        return;
    EVP_MD_CTX_free(d->ctx);
    EVP_MD_free(d->md);
    free(d);
}

void digest_begin(struct digest *d) {
    CHECK(EVP_DigestInit_ex2(d->ctx, d->md, NULL) == 1);
}
void digest_update(struct digest *d, const void *p, size_t n) {
    CHECK(EVP_DigestUpdate(d->ctx, p, n) == 1);
}
void digest_end(struct digest *d, uint8_t ret[DIGEST_BYTES]) {
    unsigned len = 0;
    CHECK(EVP_DigestFinal_ex(d->ctx, ret, &len) == 1 && len == DIGEST_BYTES);
}

void digest_sha256(const void *p, size_t n, uint8_t ret[DIGEST_BYTES]) {
    unsigned len = 0;
    CHECK(EVP_Digest(p, n, ret, &len, EVP_sha256(), NULL) == 1 && len == DIGEST_BYTES);
}

void digest_hex(const uint8_t *p, size_t n, char *ret) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        ret[2 * i] = digits[p[i] >> 4];
        ret[2 * i + 1] = digits[p[i] & 15];
    }
    ret[2 * n] = '\0';
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int digest_unhex(const char *hex, size_t n, uint8_t *ret) {
    if (strlen(hex) != 2 * n)
        return ERR_INVALID;
    for (size_t i = 0; i < n; i++) {
        int hi = hex_value(hex[2 * i]), lo = hex_value(hex[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return ERR_INVALID;
        ret[i] = (uint8_t)(hi << 4 | lo);
    }
    return 0;
}
