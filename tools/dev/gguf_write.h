/* gguf_write.h - writes GGUF version 3 files, for tests and mkmodel.
 *
 * Order of use: keys, then tensors, then gguf_write_open(), then each tensor's bytes in the same order,
 * then gguf_write_close(). Errors are sticky and come out of gguf_write_close().
 * Thread: one owner. Memory: keys and directory are gathered in memory, tensor data is not. */
#pragma once

#include "common/compiler.h"
#include "common/err.h"
#include "worker/model/gguf.h"

struct gguf_write {
    FILE *file;
    struct gguf_write_buf {
        uint8_t *p;
        size_t len, cap;
    } kv, dir;
    uint64_t n_kv, n_tensors;
    uint64_t data_off; /* of the next tensor to be announced, in the data section */
    uint64_t written;  /* bytes of the data section */
    uint32_t version, alignment;
    int err;
};

void gguf_write_init(struct gguf_write *w);
void gguf_write_fini(struct gguf_write *w); /* closes the file if still open */

void gguf_write_u32(struct gguf_write *w, const char *key, uint32_t v);
void gguf_write_f32(struct gguf_write *w, const char *key, float v);
void gguf_write_bool(struct gguf_write *w, const char *key, bool v);
void gguf_write_str(struct gguf_write *w, const char *key, const char *v);
void gguf_write_str_array(struct gguf_write *w, const char *key, const char *const *v, size_t n);
void gguf_write_i32_array(struct gguf_write *w, const char *key, const int32_t *v, size_t n);
void gguf_write_f32_array(struct gguf_write *w, const char *key, const float *v, size_t n);
/* As it stands in another file. */
void gguf_write_kv(struct gguf_write *w, const struct gguf_kv *kv);

/* Announces a tensor; its size follows from type and dimensions. */
void gguf_write_tensor(struct gguf_write *w, const char *name, uint32_t type, uint32_t n_dims,
                       const uint64_t *ne);

int gguf_write_open(struct gguf_write *w, const char *path);
/* All bytes of the next tensor, in one call or several; pad ends it. */
void gguf_write_data(struct gguf_write *w, const void *p, size_t n);
void gguf_write_pad(struct gguf_write *w);
int gguf_write_close(struct gguf_write *w);

/* The model at from in n parts of as many tensors each, STEM-00001-of-0000n.gguf and so on: all keys in the first,
 * as llama-gguf-split cuts. */
int gguf_write_split(const char *from, const char *stem, uint32_t n, struct errbuf *eb);
