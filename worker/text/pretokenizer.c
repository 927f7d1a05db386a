#include "worker/text/pretokenizer.h"

#include "worker/text/unicode.h"

/* Code point at p[i..n): its value, class bits and length in bytes; len 0 at the end. */
struct cp {
    uint32_t v;
    unsigned cls, len;
};

#define CLS_SYMBOL 0u /* [^\s\p{L}\p{N}] */

static struct cp cp_at(const char *p, size_t i, size_t n) {
    struct cp c = {0};
    if (i < n) {
        c.len = utf8_decode(p + i, n - i, &c.v);
        c.cls = unicode_class(c.v);
    }
    return c;
}

/* End of the run of code points of class cls that starts at i. */
static size_t run_end(const char *p, size_t i, size_t n, unsigned cls) {
    for (;;) {
        struct cp c = cp_at(p, i, n);
        if (c.len == 0 || c.cls != cls)
            return i;
        i += c.len;
    }
}

/* \s+(?!\S) and then a lone \s: all but the last of a run, unless the run ends the text or is that one
 * code point. i stands on white space. */
static size_t space_run(const char *p, size_t i, size_t n) {
    size_t last = i, end = i;
    for (;;) {
        struct cp c = cp_at(p, end, n);
        if (c.len == 0 || c.cls != UNICODE_SPACE)
            break;
        last = end;
        end += c.len;
    }
    return end == n || last == i ? end : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d at the apostrophe at i; 0 when none. With fold, in any case; the long s
 * (U+017F) folds to s. */
static size_t contraction_len(const char *p, size_t i, size_t n, bool fold) {
    static const char *const tails[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (fold && n - i >= 3 && memcmp(p + i + 1, "\xC5\xBF", 2) == 0)
        return 3;
    for (size_t k = 0; k < ARRAY_LEN(tails); k++) {
        size_t len = strlen(tails[k]), j = 0;
        if (n - i - 1 < len)
            continue;
        while (j < len) {
            char c = p[i + 1 + j];
            if (fold && c >= 'A' && c <= 'Z')
                c = (char)(c + 32);
            if (c != tails[k][j])
                break;
            j++;
        }
        if (j == len)
            return 1 + len;
    }
    return 0;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t scan_gpt2(const char *p, size_t i, size_t n) {
    if (p[i] == '\'') {
        size_t len = contraction_len(p, i, n, /* fold= */ false);
        if (len)
            return len;
    }
    size_t start = i;
    struct cp c = cp_at(p, i, n);
    if (c.v == ' ') {
        struct cp next = cp_at(p, i + 1, n);
        if (next.len && next.cls != UNICODE_SPACE) {
            start = i + 1;
            c = next;
        }
    }
    if (c.cls == UNICODE_SPACE)
        return space_run(p, i, n) - i;
    return run_end(p, start, n, c.cls) - i;
}

static bool is_newline(uint32_t v) {
    return v == '\n' || v == '\r';
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line break of the run, if it has one. */
static size_t space_run_newlines(const char *p, size_t i, size_t n) {
    size_t end = i, after_newline = 0;
    for (;;) {
        struct cp c = cp_at(p, end, n);
        if (c.len == 0 || c.cls != UNICODE_SPACE)
            break;
        end += c.len;
        if (is_newline(c.v))
            after_newline = end;
    }
    return after_newline ? after_newline : space_run(p, i, n);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max_digits}| ?[^\s\p{L}\p{N}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t scan_llama(const char *p, size_t i, size_t n, unsigned max_digits) {
    if (p[i] == '\'') {
        size_t len = contraction_len(p, i, n, /* fold= */ true);
        if (len)
            return len;
    }
    struct cp c = cp_at(p, i, n);
    if (c.cls == UNICODE_LETTER)
        return run_end(p, i, n, UNICODE_LETTER) - i;
    if (c.cls == UNICODE_NUMBER) {
        size_t end = i;
        for (unsigned k = 0; k < max_digits; k++) {
            struct cp d = cp_at(p, end, n);
            if (d.len == 0 || d.cls != UNICODE_NUMBER)
                break;
            end += d.len;
        }
        return end - i;
    }
    struct cp next = cp_at(p, i + c.len, n);
    if (!is_newline(c.v) && next.len && next.cls == UNICODE_LETTER)
        return run_end(p, i + c.len, n, UNICODE_LETTER) - i;
    size_t symbols = c.v == ' ' && next.len ? i + 1 : i;
    size_t end = run_end(p, symbols, n, CLS_SYMBOL);
    if (end > symbols) {
        while (end < n && is_newline((uint8_t)p[end]))
            end++;
        return end - i;
    }
    return space_run_newlines(p, i, n) - i;
}

static size_t scan_llama_bpe(const char *p, size_t i, size_t n) {
    return scan_llama(p, i, n, 3);
}

static size_t scan_qwen2(const char *p, size_t i, size_t n) {
    return scan_llama(p, i, n, 1);
}

static const struct pretok_row {
    const char *name;
    size_t (*scan)(const char *p, size_t i, size_t n);
    bool
        digits_first; /* every \p{N} is a piece, and the rest is split as if the text ended there */
    bool ignore_merges, default_bos;
} rows[PRETOK_NR] = {
    [PRETOK_SMOLLM] = {"smollm", scan_gpt2, true, false, false},
    [PRETOK_GPT2] = {"gpt-2", scan_gpt2, false, false, false},
    [PRETOK_LLAMA_BPE] = {"llama-bpe", scan_llama_bpe, false, true, true},
    [PRETOK_QWEN2] = {"qwen2", scan_qwen2, false, false, false},
};

int pretok_find(const char *pre) {
    for (int k = 0; k < PRETOK_NR; k++)
        if (strcmp(rows[k].name, pre) == 0)
            return k;
    return -1;
}

const char *pretok_name(enum pretok_kind kind) {
    return rows[kind].name;
}

bool pretok_ignores_merges(enum pretok_kind kind) {
    return rows[kind].ignore_merges;
}

bool pretok_default_bos(enum pretok_kind kind) {
    return rows[kind].default_bos;
}

void pretok_init(struct pretok *s, enum pretok_kind kind, const char *p, size_t n) {
    *s = (struct pretok){.kind = kind, .p = p, .n = n, .fragment_end = 0};
}

/* First position at or after i with a \p{N}, or n. */
static size_t find_number(const char *p, size_t i, size_t n) {
    for (;;) {
        struct cp c = cp_at(p, i, n);
        if (c.len == 0 || c.cls == UNICODE_NUMBER)
            return i;
        i += c.len;
    }
}

size_t pretok_next(struct pretok *s) {
    const struct pretok_row *row = &rows[s->kind];
    if (s->pos >= s->n)
        return 0;
    size_t end = s->n;
    if (row->digits_first) {
        if (s->pos >= s->fragment_end)
            s->fragment_end = find_number(s->p, s->pos, s->n);
        if (s->pos == s->fragment_end) {
            size_t digit = cp_at(s->p, s->pos, s->n).len;
            s->pos += digit;
            return digit;
        }
        end = s->fragment_end;
    }
    size_t len = row->scan(s->p, s->pos, end);
    s->pos += len;
    return len;
}
