/* stop.c - holding back what must not be sent yet. */
#include "worker/sample/stop.h"

#include "common/check.h"

int stop_init(struct stop *s, const struct stop_str *strs, uint32_t n, size_t max_feed) {
    *s = (struct stop){.max_feed = max_feed};
    if (n > STOP_MAX_STRINGS)
        return ERR_INVALID;
    for (uint32_t i = 0; i < n; i++) {
        if (!strs[i].len || strs[i].len > STOP_MAX_BYTES)
            return ERR_INVALID;
        s->str[i] = strs[i];
    }
    s->n_str = n;
    /* held after a feed: less than one stop string and less than one character */
    s->cap = max_feed + STOP_MAX_BYTES + 4;
    s->held = malloc(s->cap);
    return s->held ? 0 : ERR_NOMEM;
}

void stop_fini(struct stop *s) {
    free(s->held);
    *s = (struct stop){0};
}

size_t stop_max_out(const struct stop *s) {
    return 3 * s->cap; /* each byte may become a three-byte U+FFFD */
}

/* Length of the character at p: > 0 whole and valid; 0 valid so far but cut off at n; < 0: minus the
 * number of bytes that together are one error (the longest valid beginning, at least one byte).
 * Table 3-7 of the Unicode Standard. */
static int utf8_step(const uint8_t *p, size_t n) {
    uint8_t b = p[0], lo = 0x80, hi = 0xbf;
    int len;
    if (b < 0x80)
        return 1;
    if (b >= 0xc2 && b <= 0xdf)
        len = 2;
    else if (b >= 0xe0 && b <= 0xef)
        len = 3;
    else if (b >= 0xf0 && b <= 0xf4)
        len = 4;
    else
        return -1;
    if (b == 0xe0)
        lo = 0xa0; /* no over-long forms */
    else if (b == 0xed)
        hi = 0x9f; /* no surrogates */
    else if (b == 0xf0)
        lo = 0x90;
    else if (b == 0xf4)
        hi = 0x8f; /* nothing above U+10FFFF */
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return 0;
        if (p[i] < lo || p[i] > hi)
            return -i;
        lo = 0x80;
        hi = 0xbf;
    }
    return len;
}

/* Writes held[0..end) as valid UTF-8; a character cut off at end stays. Returns bytes written; *ret_used:
 * bytes of held that are done with. */
static size_t emit(const struct stop *s, size_t end, char *out, size_t *ret_used) {
    size_t at = 0, n = 0;
    while (at < end) {
        int len = utf8_step(s->held + at, end - at);
        if (len > 0) {
            memcpy(out + n, s->held + at, (size_t)len);
            n += (size_t)len;
            at += (size_t)len;
            continue;
        }
        if (len == 0)
            break;
        memcpy(out + n, "\xef\xbf\xbd", 3);
        n += 3;
        at += (size_t)-len;
    }
    *ret_used = at;
    return n;
}

static void drop_front(struct stop *s, size_t n) {
    memmove(s->held, s->held + n, s->n_held - n);
    s->n_held -= n;
}

/* The stop string that begins first in held (of equal beginnings the first in the list). */
static bool find_stop(struct stop *s, size_t *ret_at) {
    size_t best = SIZE_MAX;
    for (uint32_t i = 0; i < s->n_str; i++) {
        const uint8_t *hit = memmem(s->held, s->n_held, s->str[i].p, s->str[i].len);
        if (hit && (size_t)(hit - s->held) < best) {
            best = (size_t)(hit - s->held);
            s->which = i;
        }
    }
    *ret_at = best;
    return best != SIZE_MAX;
}

/* Length of the longest end of held that a stop string begins with. */
static size_t possible_stop(const struct stop *s) {
    size_t longest = 0;
    for (uint32_t i = 0; i < s->n_str; i++) {
        size_t n = MIN(s->str[i].len - 1, s->n_held);
        while (n > longest && memcmp(s->held + s->n_held - n, s->str[i].p, n) != 0)
            n--;
        longest = MAX(longest, n);
    }
    return longest;
}

size_t stop_feed(struct stop *s, const void *bytes, size_t n, char *out) {
    size_t used, at, written;
    if (s->hit)
        return 0;
    CHECK(n <= s->max_feed && s->n_held + n <= s->cap);
    if (n)
        memcpy(s->held + s->n_held, bytes, n);
    s->n_held += n;
    if (find_stop(s, &at)) {
        s->hit = true;
        written = emit(s, at, out, &used);
        s->n_held = 0;
        return written;
    }
    written = emit(s, s->n_held - possible_stop(s), out, &used);
    drop_front(s, used);
    return written;
}

size_t stop_flush(struct stop *s, char *out) {
    size_t used, written = emit(s, s->n_held, out, &used);
    s->n_held = 0;
    return written;
}
