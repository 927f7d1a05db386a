#include "tests/support/tiny_model.h"

#include <unistd.h>

#include "common/check.h"

void tiny_model_file(struct tiny_model *t, const struct tiny_spec *spec) {
    const char *tmp = getenv("TMPDIR");
    t->model = NULL;
    int n = snprintf(t->path, sizeof(t->path), "%s/tiny-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    CHECK(n > 0 && (size_t)n < sizeof(t->path));
    int fd = mkstemp(t->path);
    CHECK(fd >= 0);
    (void)close(fd);
    CHECK(tiny_gguf_write(spec, t->path) == 0);
}

void tiny_model_open(struct tiny_model *t, const struct tiny_spec *spec) {
    struct errbuf eb;
    tiny_model_file(t, spec);
    const struct model_load_cfg cfg = {.path = t->path, .keep_raw = true, .digest_cache_dir = ""};
    int rv = model_load(&t->model, &cfg, &eb);
    if (rv < 0)
        fprintf(stderr, "tiny model: %s\n", eb.text);
    CHECK(rv == 0);
}

void tiny_model_close(struct tiny_model *t) {
    model_free(TAKE_PTR(t->model));
    (void)unlink(t->path);
}
