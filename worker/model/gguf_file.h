/* gguf_file.h - a GGUF FILE while it is read: by read() into memory of our own, never mapped.
 *
 * What a process computes with belongs to it: a file that is cut short while it is read is an error and
 * not a signal, and after gguf_file_close() nothing of it is looked at again.
 *
 * A split model is named by its first part, NAME-00001-of-0000N.gguf; the others lie beside it and are read
 * with it. They can be told from parts of another model by their numbers, counts and tensors alone.
 *
 * Thread: one owner. Memory: buffers of the head's size and of the largest tensor's. */
#pragma once

#include "common/digest.h"
#include "worker/model/gguf.h"

/* Which file it is, to notice that it is another one later. Of a split model: the first part's device and
 * inode, the sizes' sum, the newest times, and a checksum over all that of each part. */
struct gguf_file_id {
    uint64_t dev, ino, size, mtime_ns, ctime_ns;
    uint64_t parts; /* 0: a single file */
};
bool gguf_file_id_equal(const struct gguf_file_id *a, const struct gguf_file_id *b);
/* Of whatever is at path now, with the other parts where its name is a first part's; negative errno. */
int gguf_file_id_of(const char *path, struct gguf_file_id *ret);
/* Bytes of path before ".gguf" or "-00001-of-0000N.gguf": what the model is called. */
size_t gguf_file_stem(const char *path);

struct gguf_file; /* opaque */

/* Reads and checks the head, of a split model all heads. eb names the file, and the part at fault. */
int gguf_file_open(struct gguf_file **ret, const char *path, struct errbuf *eb);
void gguf_file_close(struct gguf_file *f); /* NULL is a no-op */
static inline void gguf_file_closep(struct gguf_file **f) {
    gguf_file_close(*f);
}

struct gguf *gguf_file_peek(struct gguf_file *f);
/* The head outlives the file: the caller's from now on. */
struct gguf *gguf_file_take(struct gguf_file *f);
const struct gguf_file_id *gguf_file_id(const struct gguf_file *f); /* when it was opened */
/* Is the open file as it was then? One fstat() a part. */
bool gguf_file_is_same(const struct gguf_file *f);

/* One tensor's bytes. ERR_CORRUPT: the file was cut short since. */
int gguf_file_read(struct gguf_file *f, const struct gguf_tensor *t, void *dst, struct errbuf *eb);

/* All tensors in the file's order, each byte read once. */
struct gguf_walk {
    /* [DIGEST_BYTES] SHA-256 of the file; of a split model, over its parts' in order. NULL: nothing but tensors
     * is read. */
    uint8_t *ret_digest;
    void *arg;
    /* Where tensor i goes: t->bytes of the caller's memory, or NULL for the walk's buffer. */
    int (*place)(void *arg, size_t i, uint8_t **ret, struct errbuf *eb);
    int (*take)(void *arg, size_t i, const uint8_t *bytes, struct errbuf *eb);
};
int gguf_file_walk(struct gguf_file *f, const struct gguf_walk *w, struct errbuf *eb);
