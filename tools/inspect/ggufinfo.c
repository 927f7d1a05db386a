/* ggufinfo - what a GGUF file holds: metadata and tensor directory, after all the loader's checks.
 *
 *   ggufinfo FILE            everything, long arrays cut
 *   ggufinfo --keys FILE     metadata only
 *   ggufinfo --tensors FILE  tensors only */
#include <inttypes.h>

#include "common/compiler.h"
#include "common/err.h"
#include "common/process.h"
#include "worker/model/gguf.h"

#define SHOWN_ELEMENTS 6
#define SHOWN_BYTES 160

static const char *type_name(enum gguf_type t) {
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return (size_t)t < ARRAY_LEN(names) ? names[t] : "?";
}

/* Also of types that no kernel serves: this program only reads. */
static const char *tensor_type_name(uint32_t t) {
    const struct gguf_tensor_type *type = gguf_tensor_type(t);
    return type ? type->name : "?";
}

static void print_bytes(struct gguf_str s) {
    size_t n = MIN(s.len, (size_t)SHOWN_BYTES);
    putchar('"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
    printf("\"%s", s.len > n ? " ..." : "");
}

static void print_number(const struct gguf_kv *kv, uint64_t i) {
    switch (kv->type) {
    case GGUF_F32:
    case GGUF_F64:
        printf("%g", (double)gguf_elem_f32(kv, i));
        break;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        printf("%" PRId64, gguf_elem_i64(kv, i));
        break;
    case GGUF_BOOL:
        fputs(gguf_elem_u64(kv, i) ? "true" : "false", stdout);
        break;
    default:
        printf("%" PRIu64, gguf_elem_u64(kv, i));
        break;
    }
}

static void print_kv(const struct gguf_kv *kv) {
    printf("%-44.*s ", (int)kv->key.len, kv->key.p);
    if (kv->is_array)
        printf("%s[%" PRIu64 "] ", type_name(kv->type), kv->count);
    else
        printf("%s ", type_name(kv->type));
    uint64_t n = MIN(kv->count, (uint64_t)SHOWN_ELEMENTS);
    struct gguf_str_iter it = {.kv = kv};
    for (uint64_t i = 0; i < n; i++) {
        struct gguf_str s;
        if (i)
            fputs(", ", stdout);
        if (kv->type != GGUF_STRING)
            print_number(kv, i);
        else if (gguf_str_next(&it, &s))
            print_bytes(s);
    }
    puts(kv->count > n ? ", ..." : "");
}

static void print_tensor(const struct gguf_tensor *t) {
    char shape[96];
    size_t at = 0;
    for (uint32_t d = 0; d < MAX(t->n_dims, 1u) && at < sizeof(shape); d++)
        at += (size_t)snprintf(shape + at, sizeof(shape) - at, "%s%" PRIu64, d ? " x " : "",
                               t->ne[d]);
    printf("%-40.*s %-6s %-24s %12zu bytes\n", (int)t->name.len, t->name.p,
           tensor_type_name(t->type), shape, t->bytes);
}

static void print_summary(const struct gguf *g) {
    size_t by_type[64] = {0}, total = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        by_type[MIN(t->type, 63u)]++;
        total += t->bytes;
    }
    printf("%zu tensors, %zu bytes:", gguf_n_tensors(g), total);
    for (uint32_t t = 0; t < ARRAY_LEN(by_type); t++)
        if (by_type[t])
            printf(" %zu %s", by_type[t], tensor_type_name(t));
    putchar('\n');
}

int main(int argc, char **argv) {
    process_stdio();
    bool keys = true, tensors = true;
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--keys") == 0)
            tensors = false;
        else if (strcmp(argv[i], "--tensors") == 0)
            keys = false;
        else if (argv[i][0] == '-' || path)
            path = "";
        else
            path = argv[i];
    }
    if (!path || !*path) {
        fputs("usage: ggufinfo [--keys | --tensors] FILE\n", argc == 2 ? stdout : stderr);
        return argc == 2 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    struct errbuf eb = {{0}};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    int rv = gguf_open(&g, path, &eb);
    if (rv < 0) {
        fprintf(stderr, "ggufinfo: %s\n", eb.text);
        return 1;
    }
    printf("%s: GGUF version %u, %zu keys\n", path, gguf_version(g), gguf_n_kv(g));
    for (size_t i = 0; keys && i < gguf_n_kv(g); i++)
        print_kv(gguf_kv_at(g, i));
    print_summary(g);
    for (size_t i = 0; tensors && i < gguf_n_tensors(g); i++)
        print_tensor(gguf_tensor_at(g, i));
    return 0;
}
