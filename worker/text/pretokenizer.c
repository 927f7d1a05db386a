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

/* \p{N}{1,max} */
static size_t digits_end(const char *p, size_t i, size_t n, unsigned max) {
    for (unsigned k = 0; k < max; k++) {
        struct cp d = cp_at(p, i, n);
        if (d.len == 0 || d.cls != UNICODE_NUMBER)
            break;
        i += d.len;
    }
    return i;
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
    if (c.cls == UNICODE_NUMBER)
        return digits_end(p, i, n, max_digits) - i;
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

/* The two halves of a word whose upper case letters come first: head = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}],
 * tail = [\p{Ll}\p{Lm}\p{Lo}\p{M}]. Letters without case and marks are both. */
enum { HALF_HEAD = BIT(0), HALF_TAIL = BIT(1) };

static unsigned halves_of(struct cp c) {
    if (c.len == 0)
        return 0;
    unsigned d = unicode_detail(c.v);
    if (d == UNICODE_UPPER || d == UNICODE_LOWER)
        return d == UNICODE_UPPER ? HALF_HEAD : HALF_TAIL;
    return d == UNICODE_MARK || c.cls == UNICODE_LETTER ? HALF_HEAD | HALF_TAIL : 0;
}

static size_t tail_end(const char *p, size_t i, size_t n) {
    for (struct cp c = cp_at(p, i, n); halves_of(c) & HALF_TAIL; c = cp_at(p, i, n))
        i += c.len;
    return i;
}

/* End of head* tail+ at i, or i. *ret_heads: end of head*, for the expression's second alternative. What
 * backtracking would find: with no tail behind the heads, the last head that is a tail too ends it. */
static size_t word_end(const char *p, size_t i, size_t n, size_t *ret_heads) {
    size_t at = i, after_both = i;
    struct cp c = cp_at(p, at, n);
    for (unsigned h = halves_of(c); h & HALF_HEAD; h = halves_of(c)) {
        at += c.len;
        if (h & HALF_TAIL)
            after_both = at;
        c = cp_at(p, at, n);
    }
    *ret_heads = at;
    return halves_of(c) & HALF_TAIL ? tail_end(p, at, n) : after_both;
}

/* x?head*tail+|x?head+tail* with x = [^\r\n\p{L}\p{N}], its optional character tried first; i when neither
 * is there. */
static size_t cased_word_end(const char *p, size_t i, size_t n) {
    struct cp c = cp_at(p, i, n);
    bool may_precede = c.cls != UNICODE_LETTER && c.cls != UNICODE_NUMBER && !is_newline(c.v);
    size_t second = i + c.len, heads[2] = {second, i};
    size_t end = may_precede ? word_end(p, second, n, &heads[0]) : second;
    if (end > second)
        return end;
    end = word_end(p, i, n, &heads[1]);
    if (end > i)
        return end;
    return heads[0] > second ? heads[0]
                             : heads[1]; /* no tail follows, else the first had matched */
}

/* x?head*tail+s?|x?head+tail*s?|\p{N}{1,max_digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * with s = (?i:'s|'t|'re|'ve|'m|'ll|'d), or without it. */
static size_t scan_cased(const char *p, size_t i, size_t n, unsigned max_digits, bool contraction) {
    size_t end = cased_word_end(p, i, n);
    if (end > i) {
        if (contraction && end < n && p[end] == '\'')
            end += contraction_len(p, end, n, /* fold= */ true);
        return end - i;
    }
    struct cp c = cp_at(p, i, n);
    if (c.cls == UNICODE_NUMBER)
        return digits_end(p, i, n, max_digits) - i;
    size_t symbols = c.v == ' ' && i + 1 < n ? i + 1 : i;
    end = run_end(p, symbols, n, CLS_SYMBOL);
    if (end == symbols)
        return space_run_newlines(p, i, n) - i;
    while (end < n && (is_newline((uint8_t)p[end]) || p[end] == '/'))
        end++;
    return end - i;
}

static size_t scan_gpt4o(const char *p, size_t i, size_t n) {
    return scan_cased(p, i, n, 3, true);
}

static size_t scan_tekken(const char *p, size_t i, size_t n) {
    return scan_cased(p, i, n, 1, false);
}

/* What the text is cut at before the scanner runs, which then sees each stretch as a text of its own. */
enum cut {
    CUT_NONE,
    CUT_NUMBERS, /* every \p{N} is a piece */
    CUT_PUNCT, /* runs of [\p{P}$+<=>^~|]; and the scanner's pieces again, at \p{N}+ and [0-9][0-9][0-9] */
};

static const struct pretok_row {
    const char *name;
    size_t (*scan)(const char *p, size_t i, size_t n);
    enum cut cut;
    bool ignore_merges, default_bos;
} rows[PRETOK_NR] = {
    [PRETOK_SMOLLM] = {"smollm", scan_gpt2, CUT_NUMBERS, false, false},
    [PRETOK_GPT2] = {"gpt-2", scan_gpt2, CUT_NONE, false, false},
    [PRETOK_LLAMA_BPE] = {"llama-bpe", scan_llama_bpe, CUT_NONE, true, true},
    [PRETOK_DBRX] = {"dbrx", scan_llama_bpe, CUT_NONE, false, false},
    [PRETOK_QWEN2] = {"qwen2", scan_qwen2, CUT_NONE, false, false},
    [PRETOK_GPT4O] = {"gpt-4o", scan_gpt4o, CUT_NONE, false, false},
    [PRETOK_TEKKEN] = {"tekken", scan_tekken, CUT_NONE, true, true},
    [PRETOK_DEFAULT] = {"default", scan_gpt2, CUT_PUNCT, false, false},
};

/* Other names that files use for a row. */
static const struct {
    const char *name;
    enum pretok_kind kind;
} aliases[] = {
    {"refact", PRETOK_SMOLLM},          {"starcoder", PRETOK_SMOLLM},
    {"command-r", PRETOK_SMOLLM},       {"llama3", PRETOK_LLAMA_BPE},
    {"llama-v3", PRETOK_LLAMA_BPE},     {"smaug-bpe", PRETOK_DBRX},
    {"deepseek-r1-qwen", PRETOK_QWEN2}, {"llama4", PRETOK_GPT4O},
};

int pretok_find(const char *pre) {
    for (int k = 0; k < PRETOK_NR; k++)
        if (strcmp(rows[k].name, pre) == 0)
            return k;
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++)
        if (strcmp(aliases[i].name, pre) == 0)
            return (int)aliases[i].kind;
    return -1;
}

void pretok_list(char *ret, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < PRETOK_NR + ARRAY_LEN(aliases) && n < size; i++)
        n += (size_t)snprintf(ret + n, size - n, "%s%s", i ? ", " : "",
                              i < PRETOK_NR ? rows[i].name : aliases[i - PRETOK_NR].name);
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
    *s = (struct pretok){.kind = kind, .p = p, .n = n, .stretch_end = 0};
}

static bool is_cut_punct(struct cp c) {
    if (c.v < 0x80 && c.v && strchr("$+<=>^~|", (int)c.v))
        return true;
    return unicode_detail(c.v) == UNICODE_PUNCT;
}

/* End of the stretch that starts at i: the code points that are cut at, or those that are not. */
static size_t stretch_end(enum cut cut, const char *p, size_t i, size_t n) {
    bool first = false;
    for (size_t at = i;;) {
        struct cp c = cp_at(p, at, n);
        bool is_cut = cut == CUT_NUMBERS ? c.cls == UNICODE_NUMBER : is_cut_punct(c);
        if (at == i)
            first = is_cut;
        if (c.len == 0 || is_cut != first)
            return at;
        at += c.len;
        if (first && cut == CUT_NUMBERS)
            return at;
    }
}

/* Of a piece [i, n) what stands before the next \p{N}; within a run of those, before the next
 * [0-9][0-9][0-9], or that. */
static size_t digit_group_end(const char *p, size_t i, size_t n) {
    bool in_number = cp_at(p, i, n).cls == UNICODE_NUMBER;
    for (size_t at = i;;) {
        struct cp c = cp_at(p, at, n);
        if (c.len == 0 || (c.cls == UNICODE_NUMBER) != in_number)
            return at;
        size_t group = at;
        while (in_number && group < n && group < at + 3 && p[group] >= '0' && p[group] <= '9')
            group++;
        if (group == at + 3)
            return at > i ? at : group;
        at += c.len;
    }
}

size_t pretok_next(struct pretok *s) {
    const struct pretok_row *row = &rows[s->kind];
    size_t start = s->pos;
    if (start >= s->n)
        return 0;
    if (start >= s->stretch_end)
        s->stretch_end = row->cut == CUT_NONE ? s->n : stretch_end(row->cut, s->p, start, s->n);
    if (row->cut != CUT_PUNCT) {
        s->pos += row->scan(s->p, start, s->stretch_end);
        return s->pos - start;
    }
    if (start >= s->piece_end)
        s->piece_end = start + row->scan(s->p, start, s->stretch_end);
    s->pos = digit_group_end(s->p, start, s->piece_end);
    return s->pos - start;
}
