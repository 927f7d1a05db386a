/* fuzz_tokenizer.c - any text through each algorithm, and any bytes as a vocabulary.
 *
 * Byte 0 chooses: 0-7 a BPE pre-tokenizer (enum pretok_kind), 8 SPM, 9 the vocabulary itself. Text is cut into parts at
 * bytes 0xFE; every second part is the template's. Held: no control token comes out of a user's bytes, and
 * what goes in comes out again. */
#include "common/check.h"
#include "worker/text/pretokenizer.h"
#include "worker/text/tokenizer.h"
#include "worker/text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_PARTS 64
#define N_SPECIAL 4
#define N_MERGED 5
#define N_TOK (256 + N_SPECIAL + N_MERGED + 1)
#define SPACE_MARK "\xE2\x96\x81" /* SPM's spelling of the space */

static const char *const specials[N_SPECIAL] = {"<|im_start|>", "<|im_end|>", "<s>", "[[user]]"};
static const char *const merged[N_MERGED][3] = {{"a", "b", "ab"},
                                                {"t", "h", "th"},
                                                {"th", "e", "the"},
                                                {"\xC4\xA0", "the", "\xC4\xA0the"},
                                                {"\xC4\x8A", "\xC4\x8A", "\xC4\x8A\xC4\x8A"}};

struct vocab {
    struct tok_str tokens[N_TOK];
    int32_t types[N_TOK];
    float scores[N_TOK];
    struct tok_str merges[N_MERGED];
    char text[256][8], merge_text[N_MERGED][24];
    uint32_t n;
};

static void add(struct vocab *v, const char *text, size_t len, int32_t type) {
    v->tokens[v->n] = (struct tok_str){text, (uint32_t)len};
    v->types[v->n] = type;
    v->scores[v->n] = -(float)v->n;
    v->n++;
}

/* All bytes, so that nothing is lost on the way; a few merges; three control tokens and a user's. */
static void fill(struct vocab *v, bool spm) {
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; b++) {
        bool self = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE);
        size_t len = spm ? (size_t)snprintf(v->text[b], 8, "<0x%02X>", b)
                         : utf8_encode(self ? b : next++, v->text[b]);
        add(v, v->text[b], len, spm ? TOK_TYPE_BYTE : TOK_TYPE_NORMAL);
    }
    for (uint32_t i = 0; i < N_SPECIAL; i++)
        add(v, specials[i], strlen(specials[i]),
            i == N_SPECIAL - 1 ? TOK_TYPE_USER_DEFINED : TOK_TYPE_CONTROL);
    for (uint32_t i = 0; i < N_MERGED; i++) {
        int n = snprintf(v->merge_text[i], sizeof(v->merge_text[i]), "%s %s", merged[i][0],
                         merged[i][1]);
        v->merges[i] = (struct tok_str){v->merge_text[i], (uint32_t)n};
        add(v, merged[i][2], strlen(merged[i][2]), TOK_TYPE_NORMAL);
    }
    if (spm)
        add(v, SPACE_MARK, 3, TOK_TYPE_NORMAL);
}

static struct tokenizer *make(unsigned which) {
    struct vocab *v = calloc(1, sizeof(*v));
    CHECK(v);
    bool spm = which == PRETOK_NR;
    fill(v, spm);
    struct tokenizer_src s = TOKENIZER_SRC_EMPTY;
    s.model = spm ? "llama" : "gpt2";
    s.pre = spm ? NULL : pretok_name((enum pretok_kind)which);
    s.n_tokens = v->n;
    s.tokens = v->tokens;
    s.types = v->types;
    s.scores = v->scores;
    s.merges = v->merges;
    s.n_merges = N_MERGED;
    s.bos_id = 256 + 2;
    s.eos_id = 256 + 1;
    s.unk_id = spm ? 256 : -1;
    s.add_space_prefix = 0;
    s.add_bos = 0;
    struct tokenizer *t = NULL;
    CHECK(tokenizer_new(&t, &s, NULL) == 0);
    free(v);
    return t;
}

static size_t split(const char *p, size_t n, struct tok_part *parts) {
    size_t n_parts = 0, start = 0;
    for (size_t i = 0; i <= n && n_parts < MAX_PARTS; i++)
        if (i == n || (uint8_t)p[i] == 0xFE || n_parts == MAX_PARTS - 1) {
            size_t end = n_parts == MAX_PARTS - 1 ? n : i;
            parts[n_parts] = (struct tok_part){p + start, end - start,
                                               n_parts % 2 ? TOK_ORIGIN_TEMPLATE : TOK_ORIGIN_USER};
            n_parts++;
            start = i + 1;
            if (end == n)
                break;
        }
    return n_parts;
}

static void try_text(unsigned which, const char *p, size_t n) {
    struct tokenizer *t = make(which);
    struct tok_part parts[MAX_PARTS];
    size_t n_parts = split(p, n, parts);
    struct tok_ids ids = {0};
    struct tok_text joined = {0}, back = {0};
    CHECK(tokenizer_encode(t, parts, n_parts, false, &ids, NULL) == 0);
    CHECK(tokenizer_decode(t, ids.id, ids.n, true, &back, NULL) == 0);
    for (size_t i = 0; i < n_parts; i++)
        CHECK(tok_text_add(&joined, parts[i].p, parts[i].len) == 0);
    /* SPM cannot tell a space from its mark, which a text may hold as well. */
    if (!memmem(joined.p ? joined.p : "", joined.len, SPACE_MARK, 3))
        CHECK(joined.len == back.len && memcmp(joined.p ? joined.p : "", back.p, back.len) == 0);
    ids.n = 0;
    struct tok_part all = {joined.p, joined.len, TOK_ORIGIN_USER};
    CHECK(tokenizer_encode(t, &all, 1, false, &ids, NULL) == 0);
    for (size_t i = 0; i < ids.n; i++)
        CHECK(!tokenizer_is_control(t, ids.id[i]));
    tok_ids_fini(&ids);
    tok_text_fini(&joined);
    tok_text_fini(&back);
    tokenizer_free(t);
}

/* Tokens are the input cut at 0xFE, their types from their first byte; merges are the tokens with a space. */
static void try_vocab(const char *p, size_t n) {
    enum { MAX = 64 };
    struct tok_part parts[MAX_PARTS];
    struct tok_str tokens[MAX];
    int32_t types[MAX];
    float scores[MAX];
    size_t n_tok = MIN(split(p, n, parts), (size_t)MAX);
    for (size_t i = 0; i < n_tok; i++) {
        tokens[i] = (struct tok_str){parts[i].p, (uint32_t)parts[i].len};
        types[i] = parts[i].len ? parts[i].p[0] % 8 : 1;
        scores[i] = (float)types[i];
    }
    struct tokenizer_src s = TOKENIZER_SRC_EMPTY;
    s.model = n % 2 ? "gpt2" : "llama";
    s.pre = "gpt-2";
    s.n_tokens = s.n_merges = (uint32_t)n_tok;
    s.tokens = s.merges = tokens;
    s.types = types;
    s.scores = scores;
    struct tokenizer *t = NULL;
    struct errbuf eb;
    if (tokenizer_new(&t, &s, &eb) < 0)
        return;
    struct tok_ids ids = {0};
    CHECK(tokenizer_encode(t, parts, n_tok, true, &ids, NULL) == 0);
    tok_ids_fini(&ids);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    unsigned which = data[0] % (PRETOK_NR + 2);
    if (which == PRETOK_NR + 1)
        try_vocab((const char *)data + 1, size - 1);
    else
        try_text(which, (const char *)data + 1, size - 1);
    return 0;
}
