/* tiny_model.h - a tiny random GGUF in a temporary file, loaded; see tools/dev/tiny_gguf.h.
 *
 * Thread: any. Failure: CHECKs, a test without its model has nothing to say. */
#pragma once

#include "tools/dev/tiny_gguf.h"
#include "worker/model/weights.h"

struct tiny_model {
    char path[256]; /* removed by tiny_model_close() */
    struct model *model;
};

/* Only the file: for tests of programs and of the loader. */
void tiny_model_file(struct tiny_model *t, const struct tiny_spec *spec);
void tiny_model_open(struct tiny_model *t, const struct tiny_spec *spec);
void tiny_model_close(struct tiny_model *t);
