/* gguf_split.c - one model file as the parts of a split one. */
#include "tools/dev/gguf_write.h"
#include "worker/model/gguf_file.h"

static int write_part(struct gguf_write *w, struct gguf_file *f, size_t first, size_t end,
                      const char *path, struct errbuf *eb) {
    const struct gguf *g = gguf_file_peek(f);
    for (size_t i = first; i < end; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char name[64];
        (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.len, t->name.p);
        gguf_write_tensor(w, name, t->type, t->n_dims, t->ne);
    }
    int rv = gguf_write_open(w, path);
    for (size_t i = first; rv == 0 && i < end; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        uint8_t *data = malloc(t->bytes);
        rv = data ? gguf_file_read(f, t, data, eb) : ERR_NOMEM;
        if (rv == 0)
            gguf_write_data(w, data, t->bytes);
        gguf_write_pad(w);
        free(data);
    }
    return rv ? rv : gguf_write_close(w);
}

int gguf_write_split(const char *from, const char *stem, uint32_t n, struct errbuf *eb) {
    CLEANUP(gguf_file_closep) struct gguf_file *f = NULL;
    int rv = gguf_file_open(&f, from, eb);
    const struct gguf *g = rv == 0 ? gguf_file_peek(f) : NULL;
    const size_t n_tensors = g ? gguf_n_tensors(g) : 0;
    for (uint32_t k = 0; rv == 0 && k < n; k++) {
        char path[4096];
        struct gguf_write w;
        gguf_write_init(&w);
        for (size_t i = 0; k == 0 && i < gguf_n_kv(g); i++)
            gguf_write_kv(&w, gguf_kv_at(g, i));
        gguf_write_u32(&w, "split.no", k);
        gguf_write_u32(&w, "split.count", n);
        gguf_write_u32(&w, "split.tensors.count", (uint32_t)n_tensors);
        (void)snprintf(path, sizeof(path), "%s-%05u-of-%05u.gguf", stem, k + 1, n);
        rv = write_part(&w, f, n_tensors * k / n, n_tensors * (k + 1) / n, path, eb);
        gguf_write_fini(&w);
    }
    return rv;
}
