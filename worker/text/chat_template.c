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
#define ALTERNATE                                                                                  \
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"                               \
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}" \
    "{% endif %}"
#define GEMMA_ROLE                                                                                 \
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"                            \
    "{% else %}{% set role = message['role'] %}{% endif %}"
#define GEMMA_GENERATION "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
#define GEMMA2                                                                                     \
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"                                      \
    "{{ raise_exception('System role not supported') }}{% endif %}"                                \
    "{% for message in messages %}" ALTERNATE GEMMA_ROLE                                           \
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"      \
    "{% endfor %}" GEMMA_GENERATION
#define GEMMA3                                                                                     \
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"                                      \
    "{% if messages[0]['content'] is string %}"                                                    \
    "{% set first_user_prefix = messages[0]['content'] + '\\n\\n' %}{% else %}"                    \
    "{% set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' %}{% endif %}"        \
    "{% set loop_messages = messages[1:] %}{% else %}{% set first_user_prefix = '' %}"             \
    "{% set loop_messages = messages %}{% endif %}{% for message in loop_messages %}" ALTERNATE    \
        GEMMA_ROLE                                                                                 \
    "{{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else '') }}"           \
    "{% if message['content'] is string %}{{ message['content'] | trim }}"                         \
    "{% elif message['content'] is iterable %}{% for item in message['content'] %}"                \
    "{% if item['type'] == 'image' %}{{ '<start_of_image>' }}"                                     \
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}"            \
    "{% else %}{{ raise_exception('Invalid content type') }}{% endif %}"                           \
    "{{ '<end_of_turn>\\n' }}{% endfor %}" GEMMA_GENERATION
/* Of Mistral 7B Instruct and Mixtral before their tokenizers had tokens for [INST]. */
#define MISTRAL(after)                                                                             \
    "{{ bos_token }}{% for message in messages %}" ALTERNATE "{% if message['role'] == 'user' %}"  \
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}"                                            \
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token" after " }}"       \
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"              \
    "{% endif %}{% endfor %}"
#define LLAMA3_GENERATION "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"

static const char smollm2_system[] =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

static const char qwen_system[] =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

/* One row a way of writing a family's template. Several rows of one family print the same, except
 * where a column says so. */
static const struct template_row {
    enum chat_family family;
    const char *text;
    bool always_generation; /* writes the generation prompt whether asked or not */
    /* Instead of text: SHA-256 of the canonical form of a template that also knows tools, of which we have none, and
     * its default system message. */
    const char *sha256, *system;
} rows[] = {
    {CHAT_FAMILY_CHATML, "{% for message in messages %}" CHATML_LOOP, false, NULL, NULL},
    {CHAT_FAMILY_CHATML, GENERATION_PROMPT_UNSET "{% for message in messages %}" CHATML_LOOP, false,
     NULL, NULL},
    {CHAT_FAMILY_CHATML, CHATML_DEFAULT_SYSTEM CHATML_LOOP, false, NULL, NULL},
    {CHAT_FAMILY_CHATML, GENERATION_PROMPT_UNSET CHATML_DEFAULT_SYSTEM CHATML_LOOP, false, NULL,
     NULL},
    {CHAT_FAMILY_LLAMA3, LLAMA3_LOOP LLAMA3_GENERATION, true, NULL, NULL},
    {CHAT_FAMILY_LLAMA3,
     LLAMA3_LOOP "{% if add_generation_prompt %}" LLAMA3_GENERATION "{% endif %}", false, NULL,
     NULL},
    {CHAT_FAMILY_GEMMA2, GEMMA2, false, NULL, NULL},
    {CHAT_FAMILY_GEMMA3, GEMMA3, false, NULL, NULL},
    {CHAT_FAMILY_MISTRAL, MISTRAL(""), false, NULL, NULL},
    {CHAT_FAMILY_MIXTRAL, MISTRAL(" + ' '"), false, NULL, NULL},
    {CHAT_FAMILY_CHATML, NULL, false,
     "ea0fa57f5879e551ea9740bd89629261e37be77f3a91b8bcbec3f127ca76a0f7", qwen_system},
    {CHAT_FAMILY_QWEN3, NULL, false,
     "882da03c0fbdda8a2ab27907e83f42f7e3e5de4483db1b9f65af6111375e8449", NULL},
};

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, N_ROLES };
static const char *const role_names[N_ROLES] = {"system", "user", "assistant"};

/* What stands around a message, and what is done to it. */
static const struct family_row {
    const char *name;
    const char *open[N_ROLES], *close[N_ROLES]; /* NULL: the template does not take the role */
    const char *generation;                     /* the beginning of an answer */
    bool trim_content, writes_bos;
    bool
        alternates; /* user and assistant take turns, the user first; a system message only before them */
    bool eos_closes; /* the EOS token ends an answer, before its close */
    bool
        system_joins; /* the system message stands in the first turn, with a blank line behind it */
    bool drops_thoughts; /* of earlier answers, up to </think> */
} families[] = {
#define CHATML_ROW                                                                                 \
    .open = {"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"},             \
    .close = {"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"},                                     \
    .generation = "<|im_start|>assistant\n"
    [CHAT_FAMILY_CHATML] = {.name = "chatml", CHATML_ROW},
    [CHAT_FAMILY_SMOLLM2] = {.name = "smollm2", CHATML_ROW},
    [CHAT_FAMILY_LLAMA3] = {"llama-3",
                            {"<|start_header_id|>system<|end_header_id|>\n\n",
                             "<|start_header_id|>user<|end_header_id|>\n\n",
                             "<|start_header_id|>assistant<|end_header_id|>\n\n"},
                            {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"},
                            "<|start_header_id|>assistant<|end_header_id|>\n\n",
                            .trim_content = true,
                            .writes_bos = true},
    [CHAT_FAMILY_GEMMA2] = {"gemma-2",
                            {NULL, "<start_of_turn>user\n", "<start_of_turn>model\n"},
                            {NULL, "<end_of_turn>\n", "<end_of_turn>\n"},
                            "<start_of_turn>model\n",
                            .trim_content = true,
                            .writes_bos = true,
                            .alternates = true},
    [CHAT_FAMILY_GEMMA3] = {"gemma-3",
                            {"", "<start_of_turn>user\n", "<start_of_turn>model\n"},
                            {"\n\n", "<end_of_turn>\n", "<end_of_turn>\n"},
                            "<start_of_turn>model\n",
                            .trim_content = true,
                            .writes_bos = true,
                            .alternates = true,
                            .system_joins = true},
    [CHAT_FAMILY_MISTRAL] = {"mistral",
                             {NULL, "[INST] ", ""},
                             {NULL, " [/INST]", ""},
                             "",
                             .writes_bos = true,
                             .alternates = true,
                             .eos_closes = true},
    [CHAT_FAMILY_MIXTRAL] = {"mixtral",
                             {NULL, "[INST] ", ""},
                             {NULL, " [/INST]", " "},
                             "",
                             .writes_bos = true,
                             .alternates = true,
                             .eos_closes = true},
    [CHAT_FAMILY_QWEN3] = {.name = "qwen3", CHATML_ROW, .drops_thoughts = true},
};

struct chat_template {
    enum chat_family family;
    bool always_generation;
    struct tok_text system; /* default system message; len 0: none */
    struct tok_text bos, eos;
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

/* The families' names, for messages. */
static const char *known(char ret[128]) {
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(families) && n < 128; i++)
        n += (size_t)snprintf(ret + n, 128 - n, i ? ", %s" : "%s", families[i].name);
    return ret;
}

static int refuse(const struct tok_text *text, size_t best, const char *family, struct errbuf *eb) {
    char names[128];
    /* From the start of the line that differs. */
    size_t start = MIN(best, text->len);
    while (start && text->p[start - 1] != '\n')
        start--;
    size_t end = start;
    while (end < text->len && text->p[end] != '\n' && end - start < 120)
        end++;
    if (start == end)
        return err_set(eb, ERR_UNSUPPORTED,
                       "chat template of no known family (%s): nearest %s, but it ends early",
                       known(names), family);
    return err_set(eb, ERR_UNSUPPORTED,
                   "chat template of no known family (%s): nearest %s, differs at: %.*s",
                   known(names), family, (int)(end - start), text->p + start);
}

static int adopt(struct chat_template *ct, const struct template_row *row, struct tok_str hole) {
    ct->family = row->family;
    ct->always_generation = row->always_generation;
    int rv = row->system ? tok_text_add(&ct->system, row->system, strlen(row->system))
                         : unquote(&ct->system, hole.p, hole.len);
    if (rv == 0 && ct->system.len == strlen(smollm2_system) &&
        memcmp(ct->system.p, smollm2_system, ct->system.len) == 0)
        ct->family = CHAT_FAMILY_SMOLLM2;
    return rv;
}

static bool has_sha256(const struct tok_text *text, const char *hex) {
    uint8_t digest[DIGEST_BYTES];
    char own[2 * DIGEST_BYTES + 1];
    digest_sha256(text->p, text->len, digest);
    digest_hex(digest, DIGEST_BYTES, own);
    return strcmp(own, hex) == 0;
}

static int recognise(struct chat_template *ct, const struct tok_text *text, struct errbuf *eb) {
    size_t best = 0, best_row = 0;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct tok_text pattern = {0};
        bool equal = false;
        struct tok_str hole = {"", 0};
        if (rows[i].sha256) {
            if (has_sha256(text, rows[i].sha256))
                return adopt(ct, &rows[i], hole);
            continue;
        }
        int rv = chat_template_canon(rows[i].text, strlen(rows[i].text), &pattern, eb);
        size_t common = rv < 0 ? 0 : match_canon(&pattern, text, &equal, &hole);
        tok_text_fini(&pattern);
        if (rv < 0)
            return rv;
        if (equal)
            return adopt(ct, &rows[i], hole);
        if (common > best) {
            best = common;
            best_row = i;
        }
    }
    return refuse(text, best, families[rows[best_row].family].name, eb);
}

static int set_specials(struct chat_template *ct, struct tok_str bos, struct tok_str eos) {
    int rv = tok_text_add(&ct->bos, bos.p, bos.len);
    return rv < 0 ? rv : tok_text_add(&ct->eos, eos.p, eos.len);
}

int chat_template_new(struct chat_template **ret, const char *text, size_t len, struct tok_str bos,
                      struct tok_str eos, struct errbuf *eb) {
    if (!text || len == 0)
        return err_set(
            eb, ERR_NOTFOUND,
            "the model file has no chat template (tokenizer.chat_template): a base model, "
            "for completions");
    struct chat_template *ct = calloc(1, sizeof(*ct));
    struct tok_text canon = {0};
    int rv = ct ? chat_template_canon(text, len, &canon, eb) : ERR_NOMEM;
    if (rv == 0)
        rv = recognise(ct, &canon, eb);
    if (rv == 0)
        rv = set_specials(ct, bos, eos);
    tok_text_fini(&canon);
    if (rv < 0) {
        chat_template_free(ct);
        return rv == ERR_NOMEM ? err_set(eb, rv, "chat template") : rv;
    }
    *ret = ct;
    return 0;
}

/* Each "<...>" of text is one control token. */
static int check_marks(const char *text, const struct tokenizer *tok, const char *family,
                       struct errbuf *eb) {
    for (const char *p = text; p && (p = strchr(p, '<')) != NULL; p++) {
        const char *end = strchr(p, '>');
        size_t len = end ? (size_t)(end + 1 - p) : 0;
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
    int rv = 0;
    for (int r = 0; rv == 0 && r < N_ROLES; r++) {
        rv = check_marks(f->open[r], tok, f->name, eb);
        if (rv == 0)
            rv = check_marks(f->close[r], tok, f->name, eb);
    }
    if (rv < 0)
        return rv;
    struct chat_template *ct = calloc(1, sizeof(*ct));
    if (!ct)
        return err_set(eb, ERR_NOMEM, "chat template");
    ct->family = family;
    rv = set_specials(ct, tokenizer_piece(tok, tokenizer_bos(tok)),
                      tokenizer_piece(tok, tokenizer_eos(tok)));
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
    tok_text_fini(&ct->eos);
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

/* -1: no role of ours. */
static int find_role(struct tok_str role) {
    for (int i = 0; i < N_ROLES; i++)
        if (strlen(role_names[i]) == role.len && memcmp(role_names[i], role.p, role.len) == 0)
            return i;
    return -1;
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

static bool begins(struct tok_str s, const char *with) {
    return s.len >= strlen(with) && memcmp(s.p, with, strlen(with)) == 0;
}

/* What follows the last "</think>" and its line breaks. */
static struct tok_str without_thoughts(struct tok_str s) {
    static const char mark[] = "</think>";
    const char *end = s.p + s.len, *at = s.p, *next;
    while ((next = memmem(at, (size_t)(end - at), mark, strlen(mark))) != NULL)
        at = next + strlen(mark);
    if (at == s.p)
        return s;
    while (at < end && *at == '\n')
        at++;
    return (struct tok_str){at, (uint32_t)(end - at)};
}

/* opened: the turn that it stands in is there already. */
static void add_message(const struct chat_template *ct, struct chat_prompt *p, enum role role,
                        bool opened, struct tok_str content, enum tok_origin origin) {
    const struct family_row *f = &families[ct->family];
    if (f->drops_thoughts && role == ROLE_ASSISTANT)
        content = without_thoughts(content);
    if (f->trim_content && !(f->system_joins && role == ROLE_SYSTEM))
        content = trim(content);
    if (!opened)
        add_template(p, f->open[role]);
    add_part(p, content.p, content.len, origin);
    if (f->eos_closes && role == ROLE_ASSISTANT)
        add_part(p, ct->eos.p, ct->eos.len, TOK_ORIGIN_TEMPLATE);
    add_template(p, f->close[role]);
}

/* What the template itself would refuse, or would print in a way that we do not. */
static int check_message(const struct family_row *f, const struct chat_msg *msgs, size_t n,
                         size_t i, struct errbuf *eb) {
    const int role = find_role(msgs[i].role);
    if (role < 0)
        return err_set(eb, ERR_INVALID,
                       "messages[%zu].role '%.*s': known are system, user, assistant", i,
                       (int)MIN(msgs[i].role.len, 32u), msgs[i].role.p);
    if (!f->open[role])
        return err_set(eb, ERR_INVALID,
                       "messages[%zu].role '%s': the model's chat template (%s) does not take it",
                       i, role_names[role], f->name);
    const size_t turn = i - (f->system_joins && find_role(msgs[0].role) == ROLE_SYSTEM);
    if (f->alternates && !(f->system_joins && i == 0 && role == ROLE_SYSTEM) &&
        role != (turn % 2 ? ROLE_ASSISTANT : ROLE_USER))
        return err_set(
            eb, ERR_INVALID,
            "messages[%zu].role '%s': in the model's chat template (%s) user and assistant "
            "must alternate, the user first",
            i, role_names[role], f->name);
    /* There the thoughts of the answer since the last question are kept, and tools may have been asked. */
    if (f->drops_thoughts && ((role != ROLE_USER && i + 1 == n) ||
                              (role == ROLE_USER && begins(msgs[i].content, "<tool_response>"))))
        return err_set(eb, ERR_INVALID,
                       "messages[%zu]: the model's chat template (%s) is only supported up to a "
                       "user's question",
                       i, f->name);
    return 0;
}

int chat_template_render(const struct chat_template *ct, const struct chat_msg *msgs, size_t n_msgs,
                         bool add_generation_prompt, struct chat_prompt *ret, struct errbuf *eb) {
    const struct family_row *f = &families[ct->family];
    if (n_msgs == 0)
        return err_set(eb, ERR_INVALID, "messages is empty");
    for (size_t i = 0; i < n_msgs; i++) {
        int rv = check_message(f, msgs, n_msgs, i, eb);
        if (rv < 0)
            return rv;
    }
    /* A system message that joins a turn which is not there would be lost. */
    const bool joins = f->system_joins && find_role(msgs[0].role) == ROLE_SYSTEM;
    if (joins && n_msgs == 1)
        return err_set(eb, ERR_INVALID,
                       "messages: the model's chat template (%s) has no place for a system message "
                       "without a user's",
                       f->name);
    struct chat_prompt p = {0};
    p.parts =
        alloc_array(4 * n_msgs + 9, sizeof(*p.parts)); /* default system, BOS, generation prompt */
    if (!p.parts)
        return err_set(eb, ERR_NOMEM, "prompt of %zu messages", n_msgs);
    if (f->writes_bos)
        add_part(&p, ct->bos.p, ct->bos.len, TOK_ORIGIN_TEMPLATE);
    if (ct->system.len && find_role(msgs[0].role) != ROLE_SYSTEM)
        add_message(ct, &p, ROLE_SYSTEM, false,
                    (struct tok_str){ct->system.p, (uint32_t)ct->system.len}, TOK_ORIGIN_TEMPLATE);
    if (joins)
        add_template(&p, f->open[ROLE_USER]);
    for (size_t i = 0; i < n_msgs; i++)
        add_message(ct, &p, (enum role)find_role(msgs[i].role), joins && i < 2, msgs[i].content,
                    TOK_ORIGIN_USER);
    if (add_generation_prompt || ct->always_generation)
        add_template(&p, f->generation);
    *ret = p;
    return 0;
}

void chat_prompt_fini(struct chat_prompt *p) {
    free(p->parts);
    *p = (struct chat_prompt){0};
}
