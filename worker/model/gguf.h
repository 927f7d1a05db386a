/* gguf.h - GGUF HEAD: the model file's metadata and tensor directory, distrusted throughout.
 *
 * Versions 2 and 3, little-endian. Everything the file says is checked once when it is parsed: after
 * that each string and array lies in memory, each tensor inside the file, and every product of sizes is
 * exact. Version 1 and big-endian files are refused with a message that says so. A split model's parts
 * are each parsed and then joined; the tensors' bytes are gguf_file.h's, and so are the parts' names.
 *
 * Thread:  read-only after opening, so any thread.
 * Memory:  strings and arrays point into the head's bytes and live as long as the struct gguf.
 * Units:   sizes are bytes, dimensions are elements; ne[0] is the fastest dimension. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"

/* Metadata value types as the file numbers them. */
enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
};

/* Bytes of the file, not NUL-terminated, perhaps not UTF-8. */
struct gguf_str {
    const char *p;
    size_t len;
};

struct gguf_kv {
    struct gguf_str key;
    enum gguf_type type; /* of the value; of the elements when is_array */
    bool is_array;
    uint64_t count;      /* elements; 1 for a scalar */
    const uint8_t *data; /* first element, unaligned */
    size_t bytes;        /* of all elements */
};

#define GGUF_MAX_DIMS 4

struct gguf_tensor {
    struct gguf_str name;
    uint32_t n_dims;            /* 0 to 4 */
    uint64_t ne[GGUF_MAX_DIMS]; /* 1 beyond n_dims */
    uint32_t type;              /* GGUF's number: kernels/quant.h has the table */
    uint64_t n_elem;
    uint32_t part; /* of a split model, from 0 */
    uint64_t off;  /* of its first byte in the file, a multiple of general.alignment */
    size_t bytes;
};

/* Every tensor type that the format names, also those without kernels here. */
struct gguf_tensor_type {
    uint32_t id;
    const char *name;     /* "Q4_1" */
    uint16_t block_items; /* elements a block */
    uint16_t block_bytes;
};
const struct gguf_tensor_type *
gguf_tensor_type(uint32_t id); /* NULL when the format has no such type */

struct gguf; /* opaque */

/* A whole file's bytes, which the caller keeps alive and unchanged until gguf_free(). ERR_INVALID,
 * ERR_UNSUPPORTED or ERR_CORRUPT: not a GGUF file that we take, eb says why; a part of a split model alone is
 * none. */
int gguf_parse(struct gguf **ret, const void *bytes, size_t len, struct errbuf *eb);
/* The first len bytes of a file of file_len; freed by gguf_free() when 0 is returned. On an error
 * *ret_short says whether more bytes could mend it. */
int gguf_parse_head(struct gguf **ret, uint8_t *bytes, size_t len, uint64_t file_len,
                    bool *ret_short, struct errbuf *eb);
/* What a head says of the model's parts; of a whole file {0, 1, 0}. */
struct gguf_split {
    uint32_t no, count; /* split.no from 0, split.count */
    uint32_t n_tensors; /* split.tensors.count: of all parts */
};
const struct gguf_split *gguf_split(const struct gguf *g);
/* Adds the other parts' tensors to the first part, in order. 0: rest[] belongs to first. ERR_CORRUPT: they are not
 * the parts of one model. The caller has checked each part's split.no and split.count. */
int gguf_join(struct gguf *first, struct gguf **rest, size_t n, struct errbuf *eb);
/* A file's head; the file is closed again (gguf_file.h also reads its tensors). eb names it. */
int gguf_open(struct gguf **ret, const char *path, struct errbuf *eb);
void gguf_free(struct gguf *g); /* NULL is a no-op */
static inline void gguf_freep(struct gguf **g) {
    gguf_free(*g);
    *g = NULL;
}

/* What was parsed: everything before the first tensor's bytes. */
const uint8_t *gguf_head(const struct gguf *g, uint32_t part, size_t *ret_len);
uint32_t gguf_version(const struct gguf *g);
size_t gguf_n_kv(const struct gguf *g);
size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_kv *gguf_kv_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
/* NULL when absent. */
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* Typed reads of scalars. 1: there, *ret set. 0: absent, *ret untouched. ERR_INVALID: of another kind or
 * out of range, eb names the key. Whatever type holds the value is taken when the value fits: any integer for
 * u32 and u64, integers up to 2^24 for a float, integers 0 and 1 for a bool. */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret, struct errbuf *eb);
int gguf_get_u64(const struct gguf *g, const char *key, uint64_t *ret, struct errbuf *eb);
int gguf_get_f32(const struct gguf *g, const char *key, float *ret, struct errbuf *eb);
int gguf_get_bool(const struct gguf *g, const char *key, bool *ret, struct errbuf *eb);
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *ret, struct errbuf *eb);
/* An array of integers of any type, each within [least, most]; *ret borrowed. */
int gguf_get_int_array(const struct gguf *g, const char *key, int64_t least, int64_t most,
                       const struct gguf_kv **ret, struct errbuf *eb);
/* An array of the element type asked for, F64 also where F32 is; *ret borrowed. */
int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type elem,
                   const struct gguf_kv **ret, struct errbuf *eb);

bool gguf_is_integer(enum gguf_type t); /* bool is none */
/* Element i of a scalar or array; i < count and a fitting type are the caller's duty (CHECKed). */
uint64_t gguf_elem_u64(const struct gguf_kv *kv,
                       uint64_t i); /* integers and bool; negative: wraps */
int64_t gguf_elem_i64(const struct gguf_kv *kv, uint64_t i);
float gguf_elem_f32(const struct gguf_kv *kv, uint64_t i); /* F32 or F64 */

/* Strings have no fixed size: walk them in order. Set it to {kv->data} first; i counts for you. */
struct gguf_str_iter {
    const struct gguf_kv *kv;
    uint64_t i;
    size_t off;
};
bool gguf_str_next(struct gguf_str_iter *it, struct gguf_str *ret); /* false at the end */

static inline bool gguf_str_is(struct gguf_str s, const char *text) {
    return s.len == strlen(text) && memcmp(s.p, text, s.len) == 0;
}
