#include "tests/support/token_corpus.h"

#include "common/check.h"
#include "worker/text/unicode.h"

#define MAX_LINES 256
#define MAX_CLASSES 8

struct token_corpus {
    char *bytes;
    struct tok_str line[MAX_LINES];
    unsigned n_lines;
    unsigned first[MAX_CLASSES + 1]; /* class k: lines first[k] .. first[k + 1] */
    unsigned n_classes;
};

/* xorshift64*: fixed here, since libc's generators differ between machines. */
struct rng {
    uint64_t s;
};

static uint32_t rng_u32(struct rng *r) {
    r->s ^= r->s >> 12;
    r->s ^= r->s << 25;
    r->s ^= r->s >> 27;
    return (uint32_t)((r->s * 0x2545F4914F6CDD1Dull) >> 32);
}

static unsigned rng_below(struct rng *r, unsigned n) {
    return rng_u32(r) % n;
}

static void split_lines(struct token_corpus *c, size_t n) {
    for (size_t i = 0; i < n;) {
        char *nl = memchr(c->bytes + i, '\n', n - i);
        CHECK(nl);
        struct tok_str s = {c->bytes + i, (uint32_t)(nl - c->bytes - (ptrdiff_t)i)};
        i += s.len + 1;
        if (s.len > 3 && memcmp(s.p, "== ", 3) == 0) {
            CHECK(c->n_classes < MAX_CLASSES);
            c->first[c->n_classes++] = c->n_lines;
        } else if (s.len) {
            CHECK(c->n_lines < MAX_LINES);
            c->line[c->n_lines++] = s;
        }
    }
    c->first[c->n_classes] = c->n_lines;
}

int token_corpus_open(struct token_corpus **ret, const char *seed_path) {
    FILE *f = fopen(seed_path, "rb");
    if (!f) {
        fprintf(stderr, "token_corpus: cannot read %s\n", seed_path);
        return -1;
    }
    struct token_corpus *c = calloc(1, sizeof(*c));
    CHECK(c);
    c->bytes = malloc(1 << 20);
    CHECK(c->bytes);
    size_t n = fread(c->bytes, 1, 1 << 20, f);
    fclose(f);
    split_lines(c, n);
    *ret = c;
    return 0;
}

void token_corpus_close(struct token_corpus *c) {
    if (!c)
        return;
    free(c->bytes);
    free(c);
}

static void add(struct tok_text *t, const char *p, size_t n) {
    CHECK(tok_text_add(t, p, n) == 0);
}

static struct tok_str pick_line(const struct token_corpus *c, struct rng *r, unsigned cls) {
    unsigned n = c->first[cls + 1] - c->first[cls];
    return c->line[c->first[cls] + rng_below(r, n)];
}

static struct tok_str pick_any(const struct token_corpus *c, struct rng *r) {
    return c->line[rng_below(r, c->n_lines)];
}

static void add_space(struct tok_text *t, struct rng *r) {
    static const char *const spaces[] = {" ",
                                         " ",
                                         " ",
                                         "  ",
                                         "   ",
                                         "        ",
                                         "\n",
                                         "\n\n",
                                         "\n\n\n",
                                         "\r\n",
                                         "\r\n\r\n",
                                         "\r",
                                         "\t",
                                         "\t\t",
                                         " \n",
                                         "\n ",
                                         "\n    ",
                                         " \t ",
                                         "\v",
                                         "\f",
                                         "\xC2\xA0",
                                         "\xC2\x85",
                                         "\xE2\x80\x83",
                                         "\xE3\x80\x80",
                                         "\xE2\x80\xA8",
                                         "\xE2\x80\xAF",
                                         "\xE1\x9A\x80",
                                         " \r\n \n ",
                                         "\n\t\n",
                                         "                    "};
    const char *s = spaces[rng_below(r, ARRAY_LEN(spaces))];
    add(t, s, strlen(s));
}

static void add_number(struct tok_text *t, struct rng *r) {
    static const char *const formats[] = {"%u",   "%u.5", "0x%x",     "-%u", "%u,000",
                                          "1e%u", "%u%%", "%u/12/%u", "#%u", "v%u"};
    char s[64];
    /* One draw a statement: C leaves the order inside an expression open, and a sanitizer's build took another. */
    uint32_t v = rng_u32(r);
    v >>= rng_below(r, 32);
    int n = snprintf(s, sizeof(s), formats[rng_below(r, ARRAY_LEN(formats))], v, v % 31);
    add(t, s, (size_t)n);
}

static void add_contraction(struct tok_text *t, struct rng *r) {
    static const char *const tails[] = {
        "'s", "'t",  "'re", "'ve", "'m",  "'ll", "'d",        "'S", "'T", "'RE",          "'Ve",
        "'M", "'lL", "'D",  "'x",  "''s", " 's", "'\xC5\xBF", "'r", "'l", "\xE2\x80\x99s"};
    const char *s = tails[rng_below(r, ARRAY_LEN(tails))];
    add(t, s, strlen(s));
}

/* Words of a line, joined by something else than one space. */
static void add_respaced(struct tok_text *t, struct rng *r, struct tok_str line) {
    for (uint32_t i = 0; i < line.len; i++) {
        if (line.p[i] == ' ')
            add_space(t, r);
        else
            add(t, line.p + i, 1);
    }
    add_space(t, r);
}

/* A few neighbouring characters out of the middle of a line. */
static void add_snippet(struct tok_text *t, struct rng *r, struct tok_str line) {
    uint32_t start = rng_below(r, line.len), len = 1 + rng_below(r, 12);
    while (start > 0 && ((uint8_t)line.p[start] & 0xC0) == 0x80)
        start--;
    uint32_t end = MIN(start + len, line.len);
    while (end < line.len && ((uint8_t)line.p[end] & 0xC0) == 0x80)
        end++;
    add(t, line.p + start, end - start);
}

/* A letter or number of any script that our tables know, outside the private planes. */
static void add_code_point(struct tok_text *t, struct rng *r) {
    for (;;) {
        uint32_t cp = rng_below(r, 4) ? rng_below(r, 0x3000) : rng_below(r, 0x20000);
        char s[4];
        if (unicode_class(cp) == UNICODE_LETTER || unicode_class(cp) == UNICODE_NUMBER) {
            add(t, s, utf8_encode(cp, s));
            return;
        }
    }
}

static void add_mixture(const struct token_corpus *c, struct tok_text *t, struct rng *r) {
    switch (rng_below(r, 8)) {
    case 0:
        add_space(t, r);
        break;
    case 1:
        add_number(t, r);
        break;
    case 2:
        add_contraction(t, r);
        break;
    case 3:
        add_code_point(t, r);
        break;
    default:
        add_snippet(t, r, pick_any(c, r));
    }
}

static void add_lines(const struct token_corpus *c, struct tok_text *t, struct rng *r,
                      unsigned cls) {
    struct tok_str s = pick_line(c, r, cls);
    add(t, s.p, s.len);
    add(t, rng_below(r, 4) ? " " : "\n", 1);
}

void token_corpus_segment(const struct token_corpus *c, unsigned i, struct tok_text *text) {
    struct rng r = {0x9E3779B97F4A7C15ull * (i + 1)};
    text->len = 0;
    while (text->len < TOKEN_CORPUS_SEGMENT_BYTES) {
        switch (i % 8) {
        case 0:
            add_lines(c, text, &r, 0);
            break;
        case 1:
            add_lines(c, text, &r, 1 + rng_below(&r, 2));
            break;
        case 2:
            add_lines(c, text, &r, 3);
            break;
        case 3:
            add_lines(c, text, &r, 4 + rng_below(&r, 2));
            break;
        case 4:
            add_respaced(text, &r, pick_any(c, &r));
            break;
        case 5:
            add_number(text, &r);
            add_contraction(text, &r);
            add_space(text, &r);
            break;
        default:
            add_mixture(c, text, &r);
        }
    }
}
