#include "common/err.h"

#include <stdarg.h>
#include <stdio.h>

const char *err_text(int rv) {
    switch (rv) {
#define X(name, code, text)                                                                        \
    case name:                                                                                     \
        return text;
        ERR_LIST(X)
#undef X
    case 0:
        return "ok";
    case -4095: /* UV_EOF: libuv's only code that strerror does not know and that we meet */
        return "end of file";
    default:
        break;
    }
    if (rv < 0 && rv > -4095) {
        const char *s = strerrordesc_np(-rv);
        return s ? s : "unknown error";
    }
    return "unknown error";
}

const char *err_name(int rv) {
    switch (rv) {
#define X(name, code, text)                                                                        \
    case name:                                                                                     \
        return #name;
        ERR_LIST(X)
#undef X
    case 0:
        return "OK";
    case -4095:
        return "EOF";
    default:
        break;
    }
    if (rv < 0 && rv > -4095) {
        const char *s = strerrorname_np(-rv);
        return s ? s : "UNKNOWN";
    }
    return "UNKNOWN";
}

int err_set(struct errbuf *eb, int rv, const char *fmt, ...) {
    if (!eb)
        return rv;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(eb->text, sizeof(eb->text), fmt, ap);
    va_end(ap);
    return rv;
}

int err_wrap(struct errbuf *eb, int rv, const char *fmt, ...) {
    if (!eb)
        return rv;
    char inner[sizeof(eb->text)];
    memcpy(inner, eb->text, sizeof(inner));
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(eb->text, sizeof(eb->text), fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof(eb->text) - 3)
        return rv;
    /* By hand: what does not fit is cut off, on purpose. */
    size_t at = (size_t)n, len = MIN(strlen(inner), sizeof(eb->text) - 3 - at);
    memcpy(eb->text + at, ": ", 2);
    memcpy(eb->text + at + 2, inner, len);
    eb->text[at + 2 + len] = '\0';
    return rv;
}
