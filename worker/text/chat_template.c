#include "worker/text/chat_template.h"

#include "worker/text/chat_template_canon.h"

/* Stands for the default system message in a row's text: any literal there makes the same family. */
#define HOLE "\x01"

#define CHATML_LOOP                                                                                \
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"        \
    "{% endfor %}"                                                                                 \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define CHATML_DEFAULT_SYSTEM                                                                      \
    "{% for message in messages %}"                                                                \
    "{% if loop.first and messages[0]['role'] != 'system' %}"                                      \
    "{{ '<|im_start|>system\\n" HOLE "<|im_end|>\\n' }}{% endif %}"
#define GENERATION_PROMPT_UNSET                                                                    \
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% "      \
    "endif %}"
#define LLAMA3_LOOP                                                                                \
    "{% set loop_messages = messages %}{% for message in loop_messages %}"                         \
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "      \
    "message['content'] | trim + '<|eot_id|>' %}"                                                  \
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"                  \
    "{{ content }}{% endfor %}"
#define LLAMA3_GENERATION "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"

static const char smollm2_system[] =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

/* One row a way of writing a family's template. Several rows of one family print the same, except
 * where a column says so. */
static const struct template_row {
    enum chat_family family;
    const char *text;
    bool always_generation; /* writes the generation prompt whether asked or not */
} rows[] = {
    {CHAT_FAMILY_CHATML, "{% for message in messages %}" CHATML_LOOP, false},
    {CHAT_FAMILY_CHATML, GENERATION_PROMPT_UNSET "{% for message in messages %}" CHATML_LOOP,
     false},
    {CHAT_FAMILY_CHATML, CHATML_DEFAULT_SYSTEM CHATML_LOOP, false},
    {CHAT_FAMILY_CHATML, GENERATION_PROMPT_UNSET CHATML_DEFAULT_SYSTEM CHATML_LOOP, false},
    {CHAT_FAMILY_LLAMA3, LLAMA3_LOOP LLAMA3_GENERATION, true},
    {CHAT_FAMILY_LLAMA3,
     LLAMA3_LOOP "{% if add_generation_prompt %}" LLAMA3_GENERATION "{% endif %}", false},
};

/* What stands around a message, and what is done to it. */
static const struct family_row {
    const char *name;
    const char *role_open, *role_close, *turn_end;
    bool trim_content, writes_bos;
} families[] = {
    [CHAT_FAMILY_CHATML] = {"chatml", "<|im_start|>", "\n", "<|im_end|>\n", false, false},
    [CHAT_FAMILY_SMOLLM2] = {"smollm2", "<|im_start|>", "\n", "<|im_end|>\n", false, false},
    [CHAT_FAMILY_LLAMA3] = {"llama-3", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>",
                            true, true},
};

/* The only roles; their spelling is ours, so it may stand in a TEMPLATE part. */
static const char *const roles[] = {"system", "user", "assistant"};

struct chat_template {
    enum chat_family family;
    bool always_generation;
    struct tok_text system; /* default system message; len 0: none */
    struct tok_text bos;
};

/* Undoes the canonical form's escapes. */
static int unquote(struct tok_text *out, const char *p, size_t n) {
    int rv = 0;
    for (size_t i = 0; rv == 0 && i < n; i++) {
        char ch = p[i];
        if (ch == '\\' && i + 1 < n) {
            ch = p[++i];
            if (ch == 'n')
                ch = '\n';
        }
        rv = tok_text_add(out, &ch, 1);
    }
    return rv;
}

/* Length of what both begin with; *ret_equal when the whole matches, the hole taking any text up to
 * what follows it in the pattern. */
static size_t match_canon(const struct tok_text *pattern, const struct tok_text *text,
                          bool *ret_equal, struct tok_str *ret_hole) {
    size_t i = 0;
    *ret_equal = false;
    *ret_hole = (struct tok_str){"", 0};
    while (i < pattern->len && i < text->len && pattern->p[i] == text->p[i])
        i++;
    if (i == pattern->len && i == text->len) {
        *ret_equal = true;
        return i;
    }
    if (i == pattern->len || pattern->p[i] != HOLE[0])
        return i;
    /* The rest of the pattern must be exactly the rest of the text. The hole stays inside one literal,
     * so a quote that closes it early cannot hide in there. */
    size_t rest = pattern->len - i - 1;
    if (text->len < i + rest || memcmp(text->p + text->len - rest, pattern->p + i + 1, rest) != 0)
        return i;
    size_t hole = text->len - rest - i;
    if (memchr(text->p + i, '\n', hole))
        return i;
    *ret_equal = true;
    *ret_hole = (struct tok_str){text->p + i, (uint32_t)hole};
    return text->len;
}

static int refuse(const struct tok_text *text, size_t best, const char *family, struct errbuf *eb) {
    /* From the start of the line that differs. */
    size_t start = MIN(best, text->len);
    while (start && text->p[start - 1] != '\n')
        start--;
    size_t end = start;
    while (end < text->len && text->p[end] != '\n' && end - start < 120)
        end++;
    if (start == end)
        return err_set(eb, ERR_UNSUPPORTED,
                       "chat template of no known family (chatml, smollm2, llama-3): nearest %s, "
                       "but it ends early",
                       family);
    return err_set(
        eb, ERR_UNSUPPORTED,
        "chat template of no known family (chatml, smollm2, llama-3): nearest %s, differs at: %.*s",
        family, (int)(end - start), text->p + start);
}

static int adopt(struct chat_template *ct, const struct template_row *row, struct tok_str hole,
                 struct tok_str bos) {
    ct->family = row->family;
    ct->always_generation = row->always_generation;
    int rv = unquote(&ct->system, hole.p, hole.len);
    if (rv == 0)
        rv = tok_text_add(&ct->bos, bos.p, bos.len);
    if (rv == 0 && ct->system.len == strlen(smollm2_system) &&
        memcmp(ct->system.p, smollm2_system, ct->system.len) == 0)
        ct->family = CHAT_FAMILY_SMOLLM2;
    return rv;
}

static int recognise(struct chat_template *ct, const struct tok_text *text, struct tok_str bos,
                     struct errbuf *eb) {
    size_t best = 0, best_row = 0;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct tok_text pattern = {0};
        bool equal = false;
        struct tok_str hole = {"", 0};
        int rv = chat_template_canon(rows[i].text, strlen(rows[i].text), &pattern, eb);
        size_t common = rv < 0 ? 0 : match_canon(&pattern, text, &equal, &hole);
        tok_text_fini(&pattern);
        if (rv < 0)
            return rv;
        if (equal)
            return adopt(ct, &rows[i], hole, bos);
        if (common > best) {
            best = common;
            best_row = i;
        }
    }
    return refuse(text, best, families[rows[best_row].family].name, eb);
}

int chat_template_new(struct chat_template **ret, const char *text, size_t len, struct tok_str bos,
                      struct errbuf *eb) {
    if (!text || len == 0)
        return err_set(eb, ERR_NOTFOUND,
                       "the model file has no chat template (tokenizer.chat_template)");
    struct chat_template *ct = calloc(1, sizeof(*ct));
    struct tok_text canon = {0};
    int rv = ct ? chat_template_canon(text, len, &canon, eb) : ERR_NOMEM;
    if (rv == 0)
        rv = recognise(ct, &canon, bos, eb);
    tok_text_fini(&canon);
    if (rv < 0) {
        chat_template_free(ct);
        return rv == ERR_NOMEM ? err_set(eb, rv, "chat template") : rv;
    }
    *ret = ct;
    return 0;
}

/* Each "<|...|>" of text is one control token. */
static int check_marks(const char *text, const struct tokenizer *tok, const char *family,
                       struct errbuf *eb) {
    for (const char *p = text; (p = strstr(p, "<|")) != NULL; p += 2) {
        const char *end = strstr(p, "|>");
        size_t len = end ? (size_t)(end + 2 - p) : 0;
        if (len && !tokenizer_is_control(tok, tokenizer_find(tok, p, len)))
            return err_set(eb, ERR_UNSUPPORTED,
                           "template family %s: the vocabulary has no control token '%.*s'", family,
                           (int)len, p);
    }
    return 0;
}

int chat_template_of_family(struct chat_template **ret, enum chat_family family,
                            const struct tokenizer *tok, struct errbuf *eb) {
    const struct family_row *f = &families[family];
    int rv = check_marks(f->role_open, tok, f->name, eb);
    if (rv == 0)
        rv = check_marks(f->role_close, tok, f->name, eb);
    if (rv == 0)
        rv = check_marks(f->turn_end, tok, f->name, eb);
    if (rv < 0)
        return rv;
    struct chat_template *ct = calloc(1, sizeof(*ct));
    struct tok_str bos = tokenizer_piece(tok, tokenizer_bos(tok));
    if (!ct)
        return err_set(eb, ERR_NOMEM, "chat template");
    ct->family = family;
    rv = tok_text_add(&ct->bos, bos.p, bos.len);
    if (rv == 0 && family == CHAT_FAMILY_SMOLLM2)
        rv = tok_text_add(&ct->system, smollm2_system, strlen(smollm2_system));
    if (rv < 0) {
        chat_template_free(ct);
        return err_set(eb, rv, "chat template");
    }
    *ret = ct;
    return 0;
}

void chat_template_free(struct chat_template *ct) {
    if (!ct)
        return;
    tok_text_fini(&ct->system);
    tok_text_fini(&ct->bos);
    free(ct);
}

enum chat_family chat_template_family(const struct chat_template *ct) {
    return ct->family;
}

const char *chat_template_family_name(const struct chat_template *ct) {
    return families[ct->family].name;
}

static void add_part(struct chat_prompt *p, const char *s, size_t len, enum tok_origin origin) {
    if (len)
        p->parts[p->n++] = (struct tok_part){s, len, origin};
}

static void add_template(struct chat_prompt *p, const char *s) {
    add_part(p, s, strlen(s), TOK_ORIGIN_TEMPLATE);
}

static const char *find_role(struct tok_str role) {
    for (size_t i = 0; i < ARRAY_LEN(roles); i++)
        if (strlen(roles[i]) == role.len && memcmp(roles[i], role.p, role.len) == 0)
            return roles[i];
    return NULL;
}

/* Jinja's trim: white space as Python's str.strip() sees it, of which chat text has the ASCII part and
 * U+00A0, U+1680, U+2000..U+200A, U+2028, U+2029, U+202F, U+205F, U+3000, U+0085. */
static bool space_at(const char *p, size_t n, size_t *len) {
    static const char *const wide[] = {"\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80",
                                       "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF",
                                       "\xE2\x81\x9F", "\xE3\x80\x80"};
    uint8_t b = (uint8_t)p[0];
    *len = 1;
    if (b == ' ' || (b >= 9 && b <= 13) || (b >= 0x1C && b <= 0x1F))
        return true;
    *len = 3;
    if (n >= 3 && memcmp(p, "\xE2\x80", 2) == 0 && (uint8_t)p[2] >= 0x80 && (uint8_t)p[2] <= 0x8A)
        return true;
    for (size_t i = 0; i < ARRAY_LEN(wide); i++) {
        *len = strlen(wide[i]);
        if (n >= *len && memcmp(p, wide[i], *len) == 0)
            return true;
    }
    return false;
}

static struct tok_str trim(struct tok_str s) {
    size_t len;
    while (s.len && space_at(s.p, s.len, &len)) {
        s.p += len;
        s.len -= (uint32_t)len;
    }
    for (;;) {
        size_t back = 1;
        while (back <= MIN(s.len, 3u) && !(space_at(s.p + s.len - back, back, &len) && len == back))
            back++;
        if (s.len == 0 || back > MIN(s.len, 3u))
            return s;
        s.len -= (uint32_t)back;
    }
}

static void add_message(struct chat_prompt *p, const struct family_row *f, const char *role,
                        struct tok_str content, enum tok_origin origin) {
    if (f->trim_content)
        content = trim(content);
    add_template(p, f->role_open);
    add_template(p, role);
    add_template(p, f->role_close);
    add_part(p, content.p, content.len, origin);
    add_template(p, f->turn_end);
}

int chat_template_render(const struct chat_template *ct, const struct chat_msg *msgs, size_t n_msgs,
                         bool add_generation_prompt, struct chat_prompt *ret, struct errbuf *eb) {
    const struct family_row *f = &families[ct->family];
    if (n_msgs == 0)
        return err_set(eb, ERR_INVALID, "messages is empty");
    for (size_t i = 0; i < n_msgs; i++)
        if (!find_role(msgs[i].role))
            return err_set(eb, ERR_INVALID,
                           "messages[%zu].role '%.*s': known are system, user, assistant", i,
                           (int)MIN(msgs[i].role.len, 32u), msgs[i].role.p);
    struct chat_prompt p = {0};
    p.parts =
        alloc_array(5 * n_msgs + 9, sizeof(*p.parts)); /* default system, BOS, generation prompt */
    if (!p.parts)
        return err_set(eb, ERR_NOMEM, "prompt of %zu messages", n_msgs);
    if (f->writes_bos)
        add_part(&p, ct->bos.p, ct->bos.len, TOK_ORIGIN_TEMPLATE);
    if (ct->system.len && strcmp(find_role(msgs[0].role), "system") != 0)
        add_message(&p, f, "system", (struct tok_str){ct->system.p, (uint32_t)ct->system.len},
                    TOK_ORIGIN_TEMPLATE);
    for (size_t i = 0; i < n_msgs; i++)
        add_message(&p, f, find_role(msgs[i].role), msgs[i].content, TOK_ORIGIN_USER);
    if (add_generation_prompt || ct->always_generation) {
        add_template(&p, f->role_open);
        add_template(&p, "assistant");
        add_template(&p, f->role_close);
    }
    *ret = p;
    return 0;
}

void chat_prompt_fini(struct chat_prompt *p) {
    free(p->parts);
    *p = (struct chat_prompt){0};
}
