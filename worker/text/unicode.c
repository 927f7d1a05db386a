#include "worker/text/unicode.h"

#include "worker/text/unicode_tables.h"

const char *unicode_version(void) {
    return UNICODE_TABLES_VERSION;
}

static bool in_ranges(const struct unicode_range *r, size_t n, uint32_t cp) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > r[mid].hi)
            lo = mid + 1;
        else if (cp < r[mid].lo)
            hi = mid;
        else
            return true;
    }
    return false;
}

unsigned unicode_class(uint32_t cp) {
    if (cp < 0x80) {
        if ((cp | 0x20) - 'a' < 26)
            return UNICODE_LETTER;
        if (cp - '0' < 10)
            return UNICODE_NUMBER;
        return cp == ' ' || cp - 9 < 5 ? UNICODE_SPACE : 0;
    }
    if (in_ranges(unicode_letter, ARRAY_LEN(unicode_letter), cp))
        return UNICODE_LETTER;
    if (in_ranges(unicode_number, ARRAY_LEN(unicode_number), cp))
        return UNICODE_NUMBER;
    return in_ranges(unicode_space, ARRAY_LEN(unicode_space), cp) ? UNICODE_SPACE : 0;
}

unsigned unicode_detail(uint32_t cp) {
    static const struct {
        const struct unicode_range *ranges;
        size_t n;
        unsigned cls;
    } tables[] = {
        {unicode_lower, ARRAY_LEN(unicode_lower), UNICODE_LOWER},
        {unicode_upper, ARRAY_LEN(unicode_upper), UNICODE_UPPER},
        {unicode_punct, ARRAY_LEN(unicode_punct), UNICODE_PUNCT},
        {unicode_mark, ARRAY_LEN(unicode_mark), UNICODE_MARK},
    };
    if (cp < 0x80 && (cp | 0x20) - 'a' < 26)
        return cp & 0x20 ? UNICODE_LOWER : UNICODE_UPPER;
    for (size_t i = 0; i < ARRAY_LEN(tables); i++)
        if (in_ranges(tables[i].ranges, tables[i].n, cp))
            return tables[i].cls;
    return 0;
}

/* Length that the first byte announces and the smallest code point of that length (0: no first byte). */
static unsigned announced_length(uint8_t b, uint32_t *min) {
    if (b >= 0xC2 && b <= 0xDF) {
        *min = 0x80;
        return 2;
    }
    if (b >= 0xE0 && b <= 0xEF) {
        *min = 0x800;
        return 3;
    }
    if (b >= 0xF0 && b <= 0xF4) {
        *min = 0x10000;
        return 4;
    }
    return 0;
}

unsigned utf8_decode(const char *p, size_t n, uint32_t *ret_cp) {
    uint8_t b = (uint8_t)p[0];
    if (b < 0x80) {
        *ret_cp = b;
        return 1;
    }
    uint32_t min = 0;
    unsigned len = announced_length(b, &min);
    *ret_cp = UNICODE_BAD_BYTE;
    if (len == 0 || len > n)
        return 1;
    uint32_t cp = b & (0x7Fu >> len);
    for (unsigned i = 1; i < len; i++) {
        uint8_t c = (uint8_t)p[i];
        if ((c & 0xC0) != 0x80)
            return 1;
        cp = cp << 6 | (c & 0x3Fu);
    }
    if (cp < min || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        return 1;
    *ret_cp = cp;
    return len;
}

unsigned utf8_encode(uint32_t cp, char *p) {
    if (cp < 0x80) {
        p[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        p[0] = (char)(0xC0 | cp >> 6);
        p[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        p[0] = (char)(0xE0 | cp >> 12);
        p[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        p[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    p[0] = (char)(0xF0 | cp >> 18);
    p[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    p[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    p[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool utf8_is_valid(const char *p, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += utf8_decode(p + i, n - i, &cp);
        if (cp == UNICODE_BAD_BYTE)
            return false;
    }
    return true;
}
