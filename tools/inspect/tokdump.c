/* tokdump - text -> tokens -> block ids: the core idea in one screen.
 *
 *   tokdump MODEL.gguf TEXT             TEXT as a user's: what looks like a control token stays text
 *   tokdump --chat MODEL.gguf TEXT      TEXT as the user's message in the model's chat template
 *     --block-tokens N                  B, default 32
 *     --k-dtype T, --v-dtype T          f16 (default), f32, q8_0 or q4_0, parts of the namespace as B is
 *     --namespace HEX                   as /v1/models shows it; without, the namespace of a worker that runs
 *                                       here with this model, B and dtype, which loads the weights
 *
 * A '-' for TEXT reads standard input. */
#include <getopt.h>

#include "common/block_id.h"
#include "common/compiler.h"
#include "common/err.h"
#include "common/process.h"
#include "worker/model/gguf.h"
#include "worker/model/gguf_vocab.h"
#include "worker/text/chat_template.h"
#include "worker/text/tokenizer.h"
#include "worker/text/unicode.h"
#include "worker/worker_model.h"

#define MAX_TEXT_BYTES (16u << 20)

struct options {
    bool chat;
    uint32_t block_tok;
    uint8_t namespace_digest[DIGEST_BYTES];
    bool has_namespace;
    const char *model, *text;
    struct kv_dtypes kv;
};

struct dump {
    struct gguf *gguf;
    struct gguf_vocab vocab;
    struct tokenizer *tok;
    struct chat_template *chat;
    struct chat_prompt prompt;
    struct tok_ids ids;
    char *input; /* of standard input */
};

static void dump_fini(struct dump *d) {
    tok_ids_fini(&d->ids);
    chat_prompt_fini(&d->prompt);
    chat_template_free(d->chat);
    tokenizer_free(d->tok);
    gguf_vocab_fini(&d->vocab);
    gguf_free(d->gguf);
    free(d->input);
}

static int load(struct dump *d, const struct options *o, struct errbuf *eb) {
    int rv = gguf_open(&d->gguf, o->model, eb);
    if (rv == 0)
        rv = gguf_vocab_read(&d->vocab, d->gguf, eb);
    if (rv == 0)
        rv = tokenizer_new(&d->tok, &d->vocab.src, eb);
    if (rv < 0 || !o->chat)
        return rv;
    return chat_template_new(&d->chat, d->vocab.chat_template.p, d->vocab.chat_template.len,
                             tokenizer_piece(d->tok, tokenizer_bos(d->tok)),
                             tokenizer_piece(d->tok, tokenizer_eos(d->tok)), eb);
}

/* The namespace as the worker itself makes it: weights, tokenizer, layout, and what this CPU computes. */
static int find_namespace(struct options *o, struct errbuf *eb) {
    const struct cfg_table *table = worker_config_table();
    struct worker_config cfg;
    struct worker_model m;
    int rv = cfg_defaults(table, &cfg);
    if (rv < 0)
        return rv;
    struct worker_config mine = cfg; /* cfg's own texts are cfg_free()'s */
    mine.model = o->model;
    mine.k_dtype = o->kv.k;
    mine.v_dtype = o->kv.v;
    mine.block_tokens = o->block_tok;
    mine.threads = 1;
    rv = worker_model_load(&m, &mine, NULL, NULL, eb);
    if (rv == 0) {
        memcpy(o->namespace_digest, m.ns.digest, DIGEST_BYTES);
        worker_model_free(&m);
    }
    cfg_free(table, &cfg);
    return rv;
}

static int read_input(struct dump *d, struct tok_str *ret, struct errbuf *eb) {
    d->input = malloc(MAX_TEXT_BYTES);
    if (!d->input)
        return err_set(eb, ERR_NOMEM, "input");
    *ret = (struct tok_str){d->input, (uint32_t)fread(d->input, 1, MAX_TEXT_BYTES, stdin)};
    return 0;
}

static int encode(struct dump *d, const struct options *o, struct errbuf *eb) {
    struct tok_str text = {o->text, (uint32_t)strlen(o->text)};
    int rv = strcmp(o->text, "-") == 0 ? read_input(d, &text, eb) : 0;
    if (rv < 0)
        return rv;
    const struct tok_part part = {text.p, text.len, TOK_ORIGIN_USER};
    if (!o->chat)
        return tokenizer_encode(d->tok, &part, 1, /* add_bos= */ true, &d->ids, eb);
    const struct chat_msg msg = {{"user", 4}, text};
    rv = chat_template_render(d->chat, &msg, 1, /* add_generation_prompt= */ true, &d->prompt, eb);
    if (rv < 0)
        return rv;
    return tokenizer_encode(d->tok, d->prompt.parts, d->prompt.n, /* add_bos= */ true, &d->ids, eb);
}

/* Pieces between bars, so that spaces show; half a character as its bytes. */
static void print_piece(const struct tokenizer *t, int32_t id) {
    struct tok_str s = tokenizer_piece(t, id);
    bool is_whole = utf8_is_valid(s.p, s.len);
    for (uint32_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c < 0x20 || c == 0x7f || (c >= 0x80 && !is_whole))
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

static void print_block(const struct dump *d, const struct options *o, size_t block,
                        const struct block_id *id) {
    size_t from = block * o->block_tok, to = MIN(from + o->block_tok, d->ids.n);
    char hex[2 * BLOCK_ID_BYTES + 1];
    if (id) {
        digest_hex(id->b, BLOCK_ID_BYTES, hex);
        printf("\nblock %zu  tokens %zu..%zu  id %s\n", block, from, to - 1, hex);
    } else {
        printf("\nrest     tokens %zu..%zu  no full block: always computed\n", from, to - 1);
    }
    printf("  ");
    for (size_t i = from; i < to; i++) {
        putchar('|');
        print_piece(d->tok, d->ids.id[i]);
    }
    printf("|\n  ");
    for (size_t i = from; i < to; i++)
        printf("%d%s", d->ids.id[i], i + 1 < to ? " " : "\n");
}

static int print_all(const struct dump *d, const struct options *o) {
    size_t n = d->ids.n, full = block_count_put(n, o->block_tok);
    struct block_id *ids = alloc_array(full, sizeof(*ids));
    CLEANUP(digest_freep) struct digest *dg = digest_new();
    if (!ids || !dg) {
        free(ids);
        return ERR_NOMEM;
    }
    const struct block_chain_cfg cfg = {.namespace_digest = o->namespace_digest,
                                        .block_tok = o->block_tok};
    block_chain(dg, &cfg, d->ids.id, n, ids);
    uint8_t sum[DIGEST_BYTES];
    char hex[2 * DIGEST_BYTES + 1];
    tokenizer_digest(d->tok, sum);
    digest_hex(sum, DIGEST_BYTES, hex);
    printf("%zu tokens, %zu full blocks of %u; a lookup names %zu (the last token is always "
           "computed)\n",
           n, full, o->block_tok, block_count_lookup(n, o->block_tok));
    printf("tokenizer %s, vocabulary of %u\n", hex, tokenizer_n_tokens(d->tok));
    digest_hex(o->namespace_digest, DIGEST_BYTES, hex);
    printf("namespace %s%s\n", hex,
           o->has_namespace ? "" : ", of a worker with this model on this machine");
    for (size_t b = 0; b < full; b++)
        print_block(d, o, b, &ids[b]);
    if (n % o->block_tok)
        print_block(d, o, full, NULL);
    free(ids);
    return 0;
}

static int usage(FILE *f, int rc) {
    fputs(
        "usage: tokdump [--chat] [--block-tokens N] [--k-dtype T] [--v-dtype T] [--namespace HEX] "
        "MODEL.gguf TEXT\n"
        "  --chat     TEXT as the user's message in the model's chat template\n"
        "  a '-' for TEXT reads standard input\n",
        f);
    return rc;
}

static int parse_args(int argc, char **argv, struct options *o) {
    static const struct option longs[] = {{"chat", no_argument, NULL, 'c'},
                                          {"block-tokens", required_argument, NULL, 'b'},
                                          {"k-dtype", required_argument, NULL, 'k'},
                                          {"v-dtype", required_argument, NULL, 'v'},
                                          {"namespace", required_argument, NULL, 'n'},
                                          {NULL, 0, NULL, 0}};
    *o = (struct options){.block_tok = 32};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        char *end = NULL;
        if (c == 'c') {
            o->chat = true;
        } else if (c == 'b') {
            unsigned long v = strtoul(optarg, &end, 10);
            if (*end || v == 0 || v > 65536)
                return -1;
            o->block_tok = (uint32_t)v;
        } else if (c == 'k' || c == 'v') {
            if (kv_dtype_parse(optarg, c == 'k' ? &o->kv.k : &o->kv.v) < 0)
                return -1;
        } else if (c == 'n') {
            if (strlen(optarg) != 2 * DIGEST_BYTES ||
                digest_unhex(optarg, DIGEST_BYTES, o->namespace_digest) < 0)
                return -1;
            o->has_namespace = true;
        } else {
            return -1;
        }
    }
    if (argc - optind != 2)
        return -1;
    o->model = argv[optind];
    o->text = argv[optind + 1];
    return 0;
}

int main(int argc, char **argv) {
    process_stdio();
    struct options o;
    struct errbuf eb = {""};
    struct dump d = {0};
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return usage(stdout, 0);
    if (parse_args(argc, argv, &o) < 0)
        return usage(stderr, 2);
    int rv = load(&d, &o, &eb);
    if (rv == 0)
        rv = encode(&d, &o, &eb);
    if (rv == 0 && !o.has_namespace)
        rv = find_namespace(&o, &eb);
    if (rv == 0)
        rv = print_all(&d, &o);
    if (rv < 0)
        fprintf(stderr, "tokdump: %s\n", eb.text[0] ? eb.text : err_text(rv));
    dump_fini(&d);
    return rv < 0;
}
