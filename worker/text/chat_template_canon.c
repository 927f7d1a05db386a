#include "worker/text/chat_template_canon.h"

#include <ctype.h>

#define MAX_TAG_TOKENS 512

enum tag { TAG_TEXT, TAG_EXPR, TAG_STMT, TAG_COMMENT };

struct canon {
    const char *p;
    size_t n, pos;
    struct tok_text *out;
    struct tok_text pending; /* literal text not yet written, so that neighbours join */
    struct errbuf *eb;
};

/* A token of a tag: a word, a number, an operator, or a string with its escapes undone. */
struct tag_token {
    bool is_string;
    struct tok_text s;
};

struct tag_tokens {
    struct tag_token v[MAX_TAG_TOKENS];
    size_t n;
};

static void tag_tokens_fini(struct tag_tokens *t) {
    for (size_t i = 0; i < t->n; i++)
        tok_text_fini(&t->v[i].s);
    t->n = 0;
}

static int add_str(struct tok_text *t, const char *s) {
    return tok_text_add(t, s, strlen(s));
}

static int add_quoted(struct tok_text *out, const char *p, size_t n) {
    int rv = add_str(out, "\"");
    for (size_t i = 0; rv == 0 && i < n; i++) {
        if (p[i] == '\n')
            rv = add_str(out, "\\n");
        else if (p[i] == '"' || p[i] == '\\')
            rv = add_str(out, p[i] == '"' ? "\\\"" : "\\\\");
        else
            rv = tok_text_add(out, &p[i], 1);
    }
    return rv < 0 ? rv : add_str(out, "\"");
}

static int flush_pending(struct canon *c) {
    if (c->pending.len == 0)
        return 0;
    int rv = add_str(c->out, "out ");
    if (rv == 0)
        rv = add_quoted(c->out, c->pending.p, c->pending.len);
    if (rv == 0)
        rv = add_str(c->out, "\n");
    c->pending.len = 0;
    return rv;
}

static int new_token(struct canon *c, struct tag_tokens *t, struct tag_token **ret) {
    if (t->n == MAX_TAG_TOKENS)
        return err_set(c->eb, ERR_UNSUPPORTED, "a tag of more than %d tokens", MAX_TAG_TOKENS);
    *ret = &t->v[t->n++];
    **ret = (struct tag_token){0};
    return tok_text_add(&(*ret)->s, "", 0);
}

/* String literal at *i, on its quote. */
static int lex_string(struct canon *c, struct tag_tokens *t, size_t *i, size_t end) {
    struct tag_token *tok = NULL;
    char quote = c->p[(*i)++];
    int rv = new_token(c, t, &tok);
    if (rv < 0)
        return rv;
    tok->is_string = true;
    while (*i < end && c->p[*i] != quote) {
        char ch = c->p[(*i)++];
        if (ch == '\\' && *i < end) {
            static const char from[] = "nrt\\'\"", to[] = "\n\r\t\\'\"";
            const char *at = strchr(from, c->p[*i]);
            /* Any other escape stays as written; then it equals only itself. */
            if (at && *at) {
                ch = to[at - from];
                (*i)++;
            }
        }
        rv = tok_text_add(&tok->s, &ch, 1);
        if (rv < 0)
            return rv;
    }
    if (*i == end)
        return err_set(c->eb, ERR_INVALID, "a string without its closing quote");
    (*i)++;
    return 0;
}

static bool is_word(char ch) {
    return isalnum((unsigned char)ch) || ch == '_' || (unsigned char)ch >= 0x80;
}

/* a.b becomes a [ "b" ]: the name behind a dot that follows an operand. */
static int lex_attribute(struct canon *c, struct tag_tokens *t, size_t *i, size_t end) {
    size_t start = ++*i;
    while (*i < end && is_word(c->p[*i]))
        (*i)++;
    struct tag_token *open = NULL, *name = NULL, *close = NULL;
    int rv = new_token(c, t, &open);
    if (rv == 0)
        rv = add_str(&open->s, "[");
    if (rv == 0)
        rv = new_token(c, t, &name);
    if (rv == 0) {
        name->is_string = true;
        rv = tok_text_add(&name->s, c->p + start, *i - start);
    }
    if (rv == 0)
        rv = new_token(c, t, &close);
    return rv < 0 ? rv : add_str(&close->s, "]");
}

static bool ends_operand(const struct tag_tokens *t) {
    if (t->n == 0)
        return false;
    const struct tag_token *last = &t->v[t->n - 1];
    char ch = last->s.len ? last->s.p[last->s.len - 1] : '\0';
    return !last->is_string && (is_word(ch) || ch == ']' || ch == ')');
}

static int lex_tag(struct canon *c, struct tag_tokens *t, size_t i, size_t end) {
    int rv = 0;
    while (rv == 0 && i < end) {
        char ch = c->p[i];
        if (isspace((unsigned char)ch)) {
            i++;
        } else if (ch == '\'' || ch == '"') {
            rv = lex_string(c, t, &i, end);
        } else if (ch == '.' && ends_operand(t) && i + 1 < end && is_word(c->p[i + 1]) &&
                   !isdigit((unsigned char)c->p[i + 1])) {
            rv = lex_attribute(c, t, &i, end);
        } else {
            size_t start = i++;
            if (is_word(ch))
                while (i < end && is_word(c->p[i]))
                    i++;
            else if (i < end && c->p[i] == '=' && strchr("=!<>", ch))
                i++;
            struct tag_token *tok = NULL;
            rv = new_token(c, t, &tok);
            if (rv == 0)
                rv = tok_text_add(&tok->s, c->p + start, i - start);
        }
    }
    return rv;
}

static bool is_op(const struct tag_token *t, const char *op) {
    return !t->is_string && strcmp(t->s.p, op) == 0;
}

/* "a" + "b" is one string unless a postfix binds to one of them. */
static int join_strings(struct tag_tokens *t) {
    size_t i = 0;
    while (i + 2 < t->n) {
        struct tag_token *a = &t->v[i], *b = &t->v[i + 2];
        const struct tag_token *next = i + 3 < t->n ? &t->v[i + 3] : NULL;
        bool postfix =
            next && (is_op(next, "|") || is_op(next, "[") || is_op(next, "(") || is_op(next, "*"));
        bool prefix = i > 0 && (is_op(&t->v[i - 1], "*") || is_op(&t->v[i - 1], "~") ||
                                is_op(&t->v[i - 1], "-"));
        if (!a->is_string || !is_op(&t->v[i + 1], "+") || !b->is_string || postfix || prefix) {
            i++;
            continue;
        }
        int rv = tok_text_add(&a->s, b->s.p, b->s.len);
        if (rv < 0)
            return rv;
        tok_text_fini(&t->v[i + 1].s);
        tok_text_fini(&t->v[i + 2].s);
        memmove(&t->v[i + 1], &t->v[i + 3], (t->n - i - 3) * sizeof(t->v[0]));
        t->n -= 2;
    }
    return 0;
}

static int write_tokens(struct tok_text *out, const struct tag_token *v, size_t n) {
    int rv = 0;
    for (size_t i = 0; rv == 0 && i < n; i++) {
        if (i)
            rv = add_str(out, " ");
        if (rv == 0)
            rv = v[i].is_string ? add_quoted(out, v[i].s.p, v[i].s.len)
                                : tok_text_add(out, v[i].s.p, v[i].s.len);
    }
    return rv < 0 ? rv : add_str(out, "\n");
}

/* An expression that only adds operands with filters, subscripts and calls may be printed piecewise. */
static bool is_plain_sum(const struct tag_tokens *t) {
    static const char *const binders[] = {
        "if", "else", "~",  "and", "or", "not", "in", "is", "-", "*", "/",
        "%",  "==",   "!=", "<",   ">",  "<=",  ">=", ",",  "{", "}"};
    for (size_t i = 0; i < t->n; i++)
        for (size_t k = 0; k < ARRAY_LEN(binders); k++)
            if (is_op(&t->v[i], binders[k]))
                return false;
    return true;
}

static int write_operand(struct canon *c, const struct tag_token *v, size_t n) {
    if (n == 1 && v[0].is_string)
        return tok_text_add(&c->pending, v[0].s.p, v[0].s.len);
    int rv = flush_pending(c);
    if (rv == 0)
        rv = add_str(c->out, "out ");
    return rv < 0 ? rv : write_tokens(c->out, v, n);
}

static int write_expr(struct canon *c, const struct tag_tokens *t) {
    if (!is_plain_sum(t))
        return write_operand(c, t->v, t->n);
    size_t start = 0;
    int depth = 0, rv = 0;
    for (size_t i = 0; rv == 0 && i <= t->n; i++) {
        if (i < t->n && (is_op(&t->v[i], "[") || is_op(&t->v[i], "(")))
            depth++;
        if (i < t->n && (is_op(&t->v[i], "]") || is_op(&t->v[i], ")")))
            depth--;
        if (i == t->n || (depth == 0 && is_op(&t->v[i], "+"))) {
            rv = write_operand(c, t->v + start, i - start);
            start = i + 1;
        }
    }
    return rv;
}

static int write_tag(struct canon *c, enum tag kind, size_t start, size_t end) {
    struct tag_tokens *t = calloc(1, sizeof(*t));
    if (!t)
        return ERR_NOMEM;
    int rv = lex_tag(c, t, start, end);
    if (rv == 0)
        rv = join_strings(t);
    if (rv == 0 && kind == TAG_EXPR)
        rv = write_expr(c, t);
    else if (rv == 0)
        rv = flush_pending(c);
    if (rv == 0 && kind == TAG_STMT)
        rv = write_tokens(c->out, t->v, t->n);
    tag_tokens_fini(t);
    free(t);
    return rv;
}

/* Kind of tag that opens at p[i], TAG_TEXT when none does. */
static enum tag tag_at(const struct canon *c, size_t i) {
    if (i + 1 >= c->n || c->p[i] != '{')
        return TAG_TEXT;
    switch (c->p[i + 1]) {
    case '{':
        return TAG_EXPR;
    case '%':
        return TAG_STMT;
    case '#':
        return TAG_COMMENT;
    default:
        return TAG_TEXT;
    }
}

/* End of the tag that opens at i: offset of its closing two characters. Quotes hide them. */
static size_t find_close(const struct canon *c, size_t i, enum tag kind) {
    char first = kind == TAG_EXPR ? '}' : kind == TAG_STMT ? '%' : '#';
    char quote = '\0';
    for (i += 2; i + 1 < c->n; i++) {
        char ch = c->p[i];
        if (kind != TAG_COMMENT && quote) {
            if (ch == '\\')
                i++;
            else if (ch == quote)
                quote = '\0';
        } else if (kind != TAG_COMMENT && (ch == '\'' || ch == '"')) {
            quote = ch;
        } else if (ch == first && c->p[i + 1] == '}') {
            return i;
        }
    }
    return c->n;
}

/* Text [start, end) in front of a tag, with what lstrip_blocks and a leading "-" take away. */
static int write_text(struct canon *c, size_t start, size_t end, enum tag next, bool next_strips) {
    size_t floor = start;
    if (next_strips) {
        while (end > floor && isspace((unsigned char)c->p[end - 1]))
            end--;
    } else if (next == TAG_STMT || next == TAG_COMMENT) {
        size_t line = end;
        while (line > floor && (c->p[line - 1] == ' ' || c->p[line - 1] == '\t'))
            line--;
        /* Only white space since the line began. */
        if (line == 0 || c->p[line - 1] == '\n')
            end = line;
    } else if (next == TAG_TEXT && end > start && c->p[end - 1] == '\n') {
        end--; /* the template's own last line break */
    }
    return tok_text_add(&c->pending, c->p + start, end - start);
}

/* What the closing side of a tag swallows: all white space with "-", else one line break after a
 * statement or comment. */
static size_t skip_after(const struct canon *c, size_t i, enum tag kind, bool strips) {
    if (strips)
        while (i < c->n && isspace((unsigned char)c->p[i]))
            i++;
    else if (kind != TAG_EXPR && i < c->n && c->p[i] == '\n')
        i++;
    return i;
}

static int canon_run(struct canon *c) {
    int rv = 0;
    while (rv == 0 && c->pos < c->n) {
        size_t open = c->pos;
        while (open < c->n && tag_at(c, open) == TAG_TEXT)
            open++;
        enum tag kind = tag_at(c, open);
        bool strips = open + 2 < c->n && c->p[open + 2] == '-';
        rv = write_text(c, c->pos, open, kind, kind != TAG_TEXT && strips);
        if (rv < 0 || kind == TAG_TEXT)
            return rv;
        size_t close = find_close(c, open, kind);
        if (close >= c->n)
            return err_set(c->eb, ERR_INVALID, "a tag that does not close");
        size_t start = open + 2 + (strips ? 1 : 0), end = close;
        bool strips_after = end > start && c->p[end - 1] == '-';
        if (kind != TAG_COMMENT)
            rv = write_tag(c, kind, start, end - (strips_after ? 1 : 0));
        c->pos = skip_after(c, close + 2, kind, strips_after);
    }
    return rv;
}

int chat_template_canon(const char *text, size_t len, struct tok_text *ret, struct errbuf *eb) {
    struct canon c = {.p = text, .n = len, .out = ret, .eb = eb};
    int rv = tok_text_add(ret, "", 0);
    if (rv == 0)
        rv = canon_run(&c);
    if (rv == 0)
        rv = flush_pending(&c);
    tok_text_fini(&c.pending);
    return rv;
}
