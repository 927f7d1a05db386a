#include "worker/model/gguf.h"

#include "common/check.h"
#include "common/wire_cur.h"

/* Limits against files made to exhaust us; real models stay far below. */
#define MAX_KV (1u << 16)
#define MAX_TENSORS (1u << 18)
#define MAX_KEY_BYTES 65535u
#define MAX_STRING_BYTES (1u << 30)
#define MAX_ARRAY_ITEMS (1u << 30)
#define MAX_NAME_BYTES 63u /* ggml's own limit, less its NUL */
#define MAX_ALIGNMENT (1u << 20)
#define DEFAULT_ALIGNMENT 32u

#define MIN_KV_BYTES (8 + 1 + 4 + 1)         /* key length, key, type, smallest value */
#define MIN_TENSOR_BYTES (8 + 1 + 4 + 4 + 8) /* name length, name, n_dims, type, offset */

struct gguf {
    const uint8_t *bytes;
    size_t len; /* of bytes: at least the head */
    uint64_t file_len;
    void *owned; /* bytes, or NULL when they are the caller's */
    uint32_t version, alignment;
    struct gguf_kv *kv;
    struct gguf_tensor *tensor;
    uint32_t n_kv, n_tensors;
    uint32_t *kv_by_key, *tensor_by_name; /* indexes in name order */
    struct gguf_split split;
    struct gguf **rest; /* [split.count - 1] once joined: their bytes hold names of ours */
    size_t data_off;    /* start of the data section in the file */
};

static const struct gguf_tensor_type tensor_types[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
};

const struct gguf_tensor_type *gguf_tensor_type(uint32_t id) {
    for (size_t i = 0; i < ARRAY_LEN(tensor_types); i++)
        if (tensor_types[i].id == id)
            return &tensor_types[i];
    return NULL;
}

/* Bytes of one element; 0 for strings, arrays and unknown numbers. */
static size_t value_bytes(uint32_t type) {
    switch (type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL:
        return 1;
    case GGUF_U16:
    case GGUF_I16:
        return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32:
        return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

/* For messages: at most 64 bytes of a name that came from the file, nothing unprintable. */
static const char *show(struct gguf_str s, char out[68]) {
    size_t n = MIN(s.len, (size_t)64);
    for (size_t i = 0; i < n; i++)
        out[i] = s.p[i] >= 0x20 && s.p[i] < 0x7f ? s.p[i] : '?';
    out[n] = 0;
    return out;
}

static struct gguf_str read_string(struct wire_cur *c, uint64_t max) {
    uint64_t n = wire_cur_u64(c);
    if (n > max) {
        c->err = ERR_TOOBIG; /* ERR_CORRUPT is "the bytes end here" */
        return (struct gguf_str){.p = ""};
    }
    const uint8_t *p = wire_cur_bytes(c, (size_t)n);
    return p ? (struct gguf_str){(const char *)p, (size_t)n} : (struct gguf_str){.p = ""};
}

static int read_header(struct gguf *g, struct wire_cur *c, struct errbuf *eb) {
    const uint8_t *magic = wire_cur_bytes(c, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return err_set(eb, ERR_CORRUPT, "not a GGUF file (the first four bytes are not 'GGUF')");
    g->version = wire_cur_u32(c);
    if (c->err)
        return err_set(eb, ERR_CORRUPT, "the file ends within its header");
    if (g->version == 1)
        return err_set(eb, ERR_UNSUPPORTED, "GGUF version 1 is not supported; convert it anew");
    if ((g->version & 0xffff) == 0 && g->version != 0)
        return err_set(eb, ERR_UNSUPPORTED, "a big-endian GGUF file; little-endian is needed");
    if (g->version != 2 && g->version != 3)
        return err_set(eb, ERR_UNSUPPORTED, "GGUF version %u is not supported (2 and 3 are)",
                       g->version);
    uint64_t n_tensors = wire_cur_u64(c), n_kv = wire_cur_u64(c);
    if (c->err)
        return err_set(eb, ERR_CORRUPT, "the file ends within its header");
    /* Both bounds also by what the file could hold, so that a short file allocates little. */
    if (n_kv > MAX_KV || n_kv > g->file_len / MIN_KV_BYTES)
        return err_set(eb, ERR_CORRUPT, "impossible number of metadata keys (%llu)",
                       (unsigned long long)n_kv);
    if (n_tensors > MAX_TENSORS || n_tensors > g->file_len / MIN_TENSOR_BYTES)
        return err_set(eb, ERR_CORRUPT, "impossible number of tensors (%llu)",
                       (unsigned long long)n_tensors);
    g->n_kv = (uint32_t)n_kv;
    g->n_tensors = (uint32_t)n_tensors;
    return 0;
}

static int read_value(struct wire_cur *c, struct gguf_kv *kv, struct errbuf *eb) {
    char name[68];
    uint32_t type = wire_cur_u32(c);
    kv->count = 1;
    if (type == GGUF_ARRAY) {
        kv->is_array = true;
        type = wire_cur_u32(c);
        kv->count = wire_cur_u64(c);
        if (!c->err && kv->count > MAX_ARRAY_ITEMS)
            return err_set(eb, ERR_CORRUPT, "key '%s': array of %llu elements", show(kv->key, name),
                           (unsigned long long)kv->count);
    }
    if (c->err)
        return err_set(eb, ERR_CORRUPT, "key '%s': the file ends here", show(kv->key, name));
    size_t elem = value_bytes(type);
    if (!elem && type != GGUF_STRING)
        return err_set(eb, ERR_CORRUPT, "key '%s': unknown or nested value type %u",
                       show(kv->key, name), type);
    kv->type = (enum gguf_type)type;
    size_t start = c->off;
    kv->data = c->p + start;
    if (elem)
        wire_cur_skip(c, elem * (size_t)kv->count); /* at most 2^33: no wrap */
    else
        for (uint64_t i = 0; i < kv->count && !c->err; i++)
            (void)read_string(c, MAX_STRING_BYTES);
    if (c->err)
        return err_set(eb, ERR_CORRUPT, "key '%s': its value runs past the end of the file",
                       show(kv->key, name));
    kv->bytes = c->off - start;
    return 0;
}

static int read_kvs(struct gguf *g, struct wire_cur *c, struct errbuf *eb) {
    g->kv = alloc_array(g->n_kv, sizeof(*g->kv));
    if (!g->kv)
        return err_set(eb, ERR_NOMEM, "%u metadata keys", g->n_kv);
    for (uint32_t i = 0; i < g->n_kv; i++) {
        g->kv[i].key = read_string(c, MAX_KEY_BYTES);
        if (c->err || g->kv[i].key.len == 0)
            return err_set(eb, ERR_CORRUPT, "metadata key %u of %u is empty, too long or cut off",
                           i + 1, g->n_kv);
        int rv = read_value(c, &g->kv[i], eb);
        if (rv < 0)
            return rv;
    }
    return 0;
}

static int str_order(struct gguf_str a, struct gguf_str b) {
    int d = memcmp(a.p, b.p, MIN(a.len, b.len));
    return d ? d : (a.len > b.len) - (a.len < b.len);
}

static int kv_order(const void *a, const void *b, void *g) {
    const struct gguf_kv *kv = ((const struct gguf *)g)->kv;
    return str_order(kv[*(const uint32_t *)a].key, kv[*(const uint32_t *)b].key);
}

static int tensor_order(const void *a, const void *b, void *g) {
    const struct gguf_tensor *t = ((const struct gguf *)g)->tensor;
    return str_order(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

/* Index in name order. Sorting rather than comparing all pairs: a hostile file cannot make it slow.
 * Sets *ret_dup to an entry whose twin stands beside it, or n. */
static uint32_t *sorted_index(struct gguf *g, uint32_t n,
                              int (*order)(const void *, const void *, void *), uint32_t *ret_dup) {
    uint32_t *idx = alloc_array(n, sizeof(*idx));
    if (!idx)
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        idx[i] = i;
    qsort_r(idx, n, sizeof(*idx), order, g);
    *ret_dup = n;
    for (uint32_t i = 1; i < n; i++)
        if (order(&idx[i - 1], &idx[i], g) == 0)
            *ret_dup = idx[i];
    return idx;
}

static int index_kvs(struct gguf *g, struct errbuf *eb) {
    char name[68];
    uint32_t dup;
    g->kv_by_key = sorted_index(g, g->n_kv, kv_order, &dup);
    if (!g->kv_by_key)
        return err_set(eb, ERR_NOMEM, "index of %u keys", g->n_kv);
    if (dup < g->n_kv)
        return err_set(eb, ERR_CORRUPT, "key '%s' stands twice in the file",
                       show(g->kv[dup].key, name));
    return 0;
}

/* Keys that change how the rest of the file is read. */
static int read_file_keys(struct gguf *g, struct errbuf *eb) {
    g->alignment = DEFAULT_ALIGNMENT;
    int rv = gguf_get_u32(g, "general.alignment", &g->alignment, eb);
    if (rv < 0)
        return rv;
    uint32_t a = g->alignment;
    if (a < 8 || a > MAX_ALIGNMENT || (a & (a - 1)) != 0)
        return err_set(eb, ERR_CORRUPT, "general.alignment %u is not a power of two from 8 to %u",
                       a, MAX_ALIGNMENT);
    struct gguf_split *sp = &g->split;
    sp->count = 1;
    rv = gguf_get_u32(g, "split.count", &sp->count, eb);
    if (rv >= 0)
        rv = gguf_get_u32(g, "split.no", &sp->no, eb);
    if (rv >= 0)
        rv = gguf_get_u32(g, "split.tensors.count", &sp->n_tensors, eb);
    if (sp->count == 0)
        sp->count = 1; /* as llama-gguf-split leaves it in a file that it joined */
    if (rv >= 0 && sp->no >= sp->count)
        return err_set(eb, ERR_CORRUPT, "split.no %u with split.count %u", sp->no, sp->count);
    return rv < 0 ? rv : 0;
}

/* Element count and byte size without overflow. */
static int size_tensor(struct gguf_tensor *t, struct errbuf *eb) {
    char name[68];
    uint64_t n = 1;
    for (uint32_t d = 0; d < GGUF_MAX_DIMS; d++)
        if (t->ne[d] == 0 || __builtin_mul_overflow(n, t->ne[d], &n) || n > INT64_MAX)
            return err_set(eb, ERR_CORRUPT, "tensor '%s': impossible dimensions",
                           show(t->name, name));
    const struct gguf_tensor_type *ty = gguf_tensor_type(t->type);
    if (!ty)
        return err_set(eb, ERR_UNSUPPORTED, "tensor '%s': unknown tensor type %u",
                       show(t->name, name), t->type);
    if (t->ne[0] % ty->block_items != 0)
        return err_set(eb, ERR_CORRUPT, "tensor '%s': rows of %llu are not whole %s blocks of %u",
                       show(t->name, name), (unsigned long long)t->ne[0], ty->name,
                       ty->block_items);
    uint64_t bytes;
    if (__builtin_mul_overflow(n / ty->block_items, (uint64_t)ty->block_bytes, &bytes) ||
        bytes > INT64_MAX)
        return err_set(eb, ERR_CORRUPT, "tensor '%s': impossible size", show(t->name, name));
    t->n_elem = n;
    t->bytes = (size_t)bytes;
    return 0;
}

static int read_tensor_info(struct wire_cur *c, struct gguf_tensor *t, uint64_t *ret_off,
                            struct errbuf *eb) {
    char name[68];
    t->name = read_string(c, MAX_NAME_BYTES);
    t->n_dims = wire_cur_u32(c);
    if (c->err || t->name.len == 0)
        return err_set(eb, ERR_CORRUPT, "a tensor's name is empty, too long or cut off");
    if (t->n_dims > GGUF_MAX_DIMS)
        return err_set(eb, ERR_CORRUPT, "tensor '%s': %u dimensions", show(t->name, name),
                       t->n_dims);
    for (uint32_t d = 0; d < GGUF_MAX_DIMS; d++)
        t->ne[d] = d < t->n_dims ? wire_cur_u64(c) : 1;
    t->type = wire_cur_u32(c);
    *ret_off = wire_cur_u64(c);
    if (c->err)
        return err_set(eb, ERR_CORRUPT, "tensor '%s': the file ends here", show(t->name, name));
    return size_tensor(t, eb);
}

static int index_tensors(struct gguf *g, struct errbuf *eb) {
    char name[68];
    uint32_t dup;
    uint32_t *index = sorted_index(g, g->n_tensors, tensor_order, &dup);
    if (!index)
        return err_set(eb, ERR_NOMEM, "index of %u tensors", g->n_tensors);
    free(g->tensor_by_name);
    g->tensor_by_name = index;
    if (dup < g->n_tensors)
        return err_set(eb, ERR_CORRUPT, "tensor '%s' stands twice in the %s",
                       show(g->tensor[dup].name, name), g->split.count > 1 ? "model" : "file");
    return 0;
}

/* Directory first, places after: the data section starts behind the last entry. Offsets must be
 * what a writer gives, each tensor padded to the alignment, so overlapping tensors cannot exist. */
static int read_tensors(struct gguf *g, struct wire_cur *c, struct errbuf *eb) {
    char name[68];
    g->tensor = alloc_array(g->n_tensors, sizeof(*g->tensor));
    if (!g->tensor)
        return err_set(eb, ERR_NOMEM, "%u tensors", g->n_tensors);
    uint64_t next = 0;
    const uint64_t pad = g->alignment - 1;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensor[i];
        uint64_t off = 0;
        int rv = read_tensor_info(c, t, &off, eb);
        if (rv < 0)
            return rv;
        if (off != next)
            return err_set(eb, ERR_CORRUPT, "tensor '%s': offset %llu, expected %llu",
                           show(t->name, name), (unsigned long long)off, (unsigned long long)next);
        if (t->bytes > g->file_len || off > g->file_len)
            return err_set(eb, ERR_CORRUPT, "tensor '%s' is larger than the file; truncated?",
                           show(t->name, name));
        next = (off + t->bytes + pad) & ~pad;
    }
    g->data_off = (size_t)((c->off + pad) & ~pad);
    uint64_t at = g->data_off;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensor[i];
        if (at > g->file_len || t->bytes > g->file_len - at)
            return err_set(eb, ERR_CORRUPT, "tensor '%s' runs past the end of the file; truncated?",
                           show(t->name, name));
        t->off = at;
        at = (at + t->bytes + pad) & ~pad;
    }
    return index_tensors(g, eb);
}

static int parse(struct gguf *g, struct wire_cur *c, struct errbuf *eb) {
    int rv = read_header(g, c, eb);
    if (rv >= 0)
        rv = read_kvs(g, c, eb);
    if (rv >= 0)
        rv = index_kvs(g, eb);
    if (rv >= 0)
        rv = read_file_keys(g, eb);
    if (rv >= 0)
        rv = read_tensors(g, c, eb);
    return rv < 0 ? rv : 0;
}

int gguf_parse_head(struct gguf **ret, uint8_t *bytes, size_t len, uint64_t file_len,
                    bool *ret_short, struct errbuf *eb) {
    CLEANUP(gguf_freep) struct gguf *g = calloc(1, sizeof(*g));
    *ret_short = false;
    if (!g)
        return err_set(eb, ERR_NOMEM, "gguf");
    g->bytes = bytes;
    g->len = len;
    g->file_len = file_len;
    struct wire_cur c = wire_cur_read(bytes, len);
    int rv = parse(g, &c, eb);
    /* The padding before the data belongs to the head too. */
    *ret_short = (c.err == ERR_CORRUPT || g->data_off > len) && len < file_len;
    if (rv < 0)
        return rv;
    if (*ret_short)
        return err_set(eb, ERR_CORRUPT, "the file ends within its head");
    g->owned = bytes;
    *ret = TAKE_PTR(g);
    return 0;
}

int gguf_parse(struct gguf **ret, const void *bytes, size_t len, struct errbuf *eb) {
    bool is_short;
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    int rv = gguf_parse_head(&g, (uint8_t *)(uintptr_t)bytes, len, len, &is_short, eb);
    if (rv < 0)
        return rv;
    g->owned = NULL;
    if (g->split.count > 1)
        return err_set(eb, ERR_UNSUPPORTED, "part %u of %u of a split model alone", g->split.no + 1,
                       g->split.count);
    *ret = TAKE_PTR(g);
    return 0;
}

int gguf_join(struct gguf *first, struct gguf **rest, size_t n, struct errbuf *eb) {
    uint64_t total = first->n_tensors;
    for (size_t i = 0; i < n; i++)
        total += rest[i]->n_tensors;
    if (total != first->split.n_tensors || total > MAX_TENSORS)
        return err_set(
            eb, ERR_CORRUPT,
            "split.tensors.count is %u, but the parts have %llu tensors: they are not of "
            "one model",
            first->split.n_tensors, (unsigned long long)total);
    struct gguf_tensor *all = realloc(first->tensor, (size_t)total * sizeof(*all) + 1);
    struct gguf **parts = alloc_array(n, sizeof(struct gguf *));
    if (all)
        first->tensor = all;
    if (!all || !parts) {
        free(parts);
        return err_set(eb, ERR_NOMEM, "%llu tensors", (unsigned long long)total);
    }
    const uint32_t own = first->n_tensors;
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < rest[i]->n_tensors; k++) {
            struct gguf_tensor *t = &all[first->n_tensors++];
            *t = rest[i]->tensor[k];
            t->part = (uint32_t)i + 1;
        }
    int rv = index_tensors(first, eb);
    if (rv < 0) {
        first->n_tensors = own; /* the names of the others are not ours to keep */
        free(parts);
        return rv;
    }
    memcpy(parts, rest, n * sizeof(struct gguf *));
    first->rest = parts;
    return 0;
}

void gguf_free(struct gguf *g) {
    if (!g)
        return;
    for (uint32_t i = 0; g->rest && i + 1 < g->split.count; i++)
        gguf_free(g->rest[i]);
    free(g->rest);
    free(g->owned);
    free(g->kv);
    free(g->tensor);
    free(g->kv_by_key);
    free(g->tensor_by_name);
    free(g);
}

const struct gguf_split *gguf_split(const struct gguf *g) {
    return &g->split;
}

const uint8_t *gguf_head(const struct gguf *g, uint32_t part, size_t *ret_len) {
    if (part) {
        CHECK(g->rest && part < g->split.count);
        g = g->rest[part - 1];
    }
    *ret_len =
        MIN(g->data_off, g->len); /* a file without tensors may end before the padding does */
    return g->bytes;
}

uint32_t gguf_version(const struct gguf *g) {
    return g->version;
}

size_t gguf_n_kv(const struct gguf *g) {
    return g->n_kv;
}

size_t gguf_n_tensors(const struct gguf *g) {
    return g->n_tensors;
}

const struct gguf_kv *gguf_kv_at(const struct gguf *g, size_t i) {
    CHECK(i < g->n_kv);
    return &g->kv[i];
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i) {
    CHECK(i < g->n_tensors);
    return &g->tensor[i];
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key) {
    const struct gguf_str want = {key, strlen(key)};
    size_t lo = 0, hi = g->n_kv;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct gguf_kv *kv = &g->kv[g->kv_by_key[mid]];
        int d = str_order(want, kv->key);
        if (d == 0)
            return kv;
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name) {
    const struct gguf_str want = {name, strlen(name)};
    size_t lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct gguf_tensor *t = &g->tensor[g->tensor_by_name[mid]];
        int d = str_order(want, t->name);
        if (d == 0)
            return t;
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}
