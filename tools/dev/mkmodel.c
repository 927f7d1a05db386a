/* mkmodel - GGUF files for tests: a tiny random model, or another file's weights in another type.
 *
 *   mkmodel [--arch A] [--type T] [--seed N] [--layers N] [--ctx N] [--untied]
 *           [--rope-freqs] [--rope S] [--window N] [--experts N] OUT
 *   mkmodel --from FILE --type T OUT     matrices dequantised and encoded as T, vectors kept F32
 *   mkmodel --from FILE --split N STEM   as it is, in N parts STEM-00001-of-0000N.gguf
 *
 * A: an architecture, llama unless given. S: linear, yarn, longrope.
 * T: a type of worker/kernels/quant.c; a matrix whose rows are no whole blocks of it keeps its own. */
#include <getopt.h>

#include "common/compiler.h"
#include "common/err.h"
#include "tools/dev/gguf_write.h"
#include "tools/dev/quant_encode.h"
#include "tools/dev/tiny_gguf.h"
#include "worker/kernels/quant.h"
#include "worker/model/gguf_file.h"

/* Matrices take the new type; vectors (norms, RoPE divisors) stay as they are. */
static uint32_t new_type(const struct gguf_tensor *t, const struct quant_type *to) {
    return t->n_dims > 1 && t->ne[0] % to->block_items == 0 ? to->dtype : t->type;
}

static int convert_tensor(struct gguf_write *w, const struct gguf_tensor *t, const uint8_t *data,
                          uint32_t type, struct errbuf *eb) {
    if (type == t->type) {
        gguf_write_data(w, data, t->bytes);
        return 0;
    }
    const struct quant_type *from = quant_type_find(t->type), *to = quant_type_find(type);
    if (!from)
        return err_set(eb, ERR_UNSUPPORTED, "tensor '%.*s': cannot read type %u", (int)t->name.len,
                       t->name.p, t->type);
    const size_t cols = (size_t)t->ne[0];
    float *row = alloc_array(cols, sizeof(*row));
    uint8_t *bytes = alloc_array(cols, sizeof(*row));
    int rv = row && bytes ? 0 : ERR_NOMEM;
    for (uint64_t r = 0; rv == 0 && r < t->n_elem / cols; r++) {
        quant_dequant_row(from, row, data, r, cols);
        if (quant_encode(type, bytes, row, cols))
            gguf_write_data(w, bytes, quant_row_bytes(to, cols));
    }
    free(row);
    free(bytes);
    return rv;
}

static int convert_into(struct gguf_write *w, struct gguf_file *f, const struct quant_type *to,
                        const char *path, struct errbuf *eb) {
    const struct gguf *g = gguf_file_peek(f);
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        /* Informative only, and no longer true. */
        if (!gguf_str_is(kv->key, "general.file_type"))
            gguf_write_kv(w, kv);
    }
    uint32_t align = 32;
    (void)gguf_get_u32(g, "general.alignment", &align, NULL);
    w->alignment = align;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char name[64];
        (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.len, t->name.p);
        gguf_write_tensor(w, name, new_type(t, to), t->n_dims, t->ne);
    }
    int rv = gguf_write_open(w, path);
    for (size_t i = 0; rv == 0 && i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        uint8_t *data = malloc(t->bytes);
        rv = data ? gguf_file_read(f, t, data, eb) : ERR_NOMEM;
        if (rv == 0)
            rv = convert_tensor(w, t, data, new_type(t, to), eb);
        gguf_write_pad(w);
        free(data);
    }
    return rv ? rv : gguf_write_close(w);
}

static int convert(const char *from, const struct quant_type *to, const char *path,
                   struct errbuf *eb) {
    CLEANUP(gguf_file_closep) struct gguf_file *f = NULL;
    int rv = gguf_file_open(&f, from, eb);
    if (rv < 0)
        return rv;
    struct gguf_write w;
    gguf_write_init(&w);
    rv = convert_into(&w, f, to, path, eb);
    gguf_write_fini(&w);
    return rv;
}

static int usage(FILE *f, int rc) {
    size_t n;
    const struct quant_type *t = quant_type_table(&n);
    fputs("usage: mkmodel [--arch A] [--type T] [--seed N] [--layers N] [--ctx N] [--untied] "
          "[--rope-freqs]\n"
          "               [--rope S] [--window N] [--experts N] OUT\n"
          "       mkmodel --from FILE --type T OUT\n"
          "       mkmodel --from FILE --split N STEM\n"
          "T:",
          f);
    for (size_t i = 0; i < n; i++)
        fprintf(f, " %s", t[i].name);
    fputc('\n', f);
    return rc;
}

static uint32_t number(const char *s) {
    return (uint32_t)strtoul(s, NULL, 10);
}

static bool parse_rope(const char *name, enum tiny_rope *ret) {
    static const char *const names[] = {
        [TINY_ROPE_LINEAR] = "linear", [TINY_ROPE_YARN] = "yarn", [TINY_ROPE_LONG] = "longrope"};
    for (unsigned i = TINY_ROPE_LINEAR; i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum tiny_rope)i;
            return true;
        }
    return false;
}

int main(int argc, char **argv) {
    static const struct option opts[] = {
        {"type", required_argument, NULL, 't'},    {"from", required_argument, NULL, 'f'},
        {"seed", required_argument, NULL, 's'},    {"layers", required_argument, NULL, 'l'},
        {"ctx", required_argument, NULL, 'c'},     {"untied", no_argument, NULL, 'u'},
        {"arch", required_argument, NULL, 'a'},    {"rope", required_argument, NULL, 'r'},
        {"rope-freqs", no_argument, NULL, 'd'},    {"window", required_argument, NULL, 'w'},
        {"help", no_argument, NULL, 'h'},          {"split", required_argument, NULL, 'n'},
        {"experts", required_argument, NULL, 'e'}, {NULL, 0, NULL, 0},
    };
    struct tiny_spec s = tiny_spec_of(QUANT_F32), of_type;
    const struct quant_type *type = quant_type_find(QUANT_F32);
    const char *from = NULL;
    uint32_t n_parts = 0;
    bool ok = true;
    for (int c; (c = getopt_long(argc, argv, "h", opts, NULL)) != -1;) {
        if (c == 't')
            type = quant_type_named(optarg);
        else if (c == 'f')
            from = optarg;
        else if (c == 'a') /* before the options that change it */
            ok = tiny_spec_of_arch(optarg, &s) && ok;
        else if (c == 'r')
            ok = parse_rope(optarg, &s.rope) && ok;
        else if (c == 'n')
            n_parts = number(optarg);
        else if (c == 's')
            s.seed = strtoull(optarg, NULL, 10);
        else if (c == 'l')
            s.n_layer = number(optarg);
        else if (c == 'c')
            s.n_ctx = number(optarg);
        else if (c == 'e')
            s.n_expert = number(optarg);
        else if (c == 'w')
            s.window = number(optarg);
        else if (c == 'u')
            s.untied = true;
        else if (c == 'd')
            s.rope_freqs = true;
        else
            return usage(c == 'h' ? stdout : stderr, c == 'h' ? 0 : 2);
    }
    if (!ok || !type || optind + 1 != argc || (n_parts && !from))
        return usage(stderr, 2);
    of_type = tiny_spec_of(type->dtype);
    s.type = s.embd_type = type->dtype;
    s.n_embd = MAX(s.n_embd, of_type.n_embd); /* rows of whole blocks */
    s.d_head = MAX(s.d_head, of_type.d_head);
    s.n_ff = MAX(s.n_ff, of_type.n_ff);
    struct errbuf eb = {.text = ""};
    int rv = n_parts ? gguf_write_split(from, argv[optind], n_parts, &eb)
             : from  ? convert(from, type, argv[optind], &eb)
                     : tiny_gguf_write(&s, argv[optind]);
    if (rv < 0)
        fprintf(stderr, "mkmodel: %s: %s\n", argv[optind], eb.text[0] ? eb.text : err_text(rv));
    return rv < 0 ? 1 : 0;
}
