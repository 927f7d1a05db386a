/* tok_special.h - cuts special tokens out of a prompt, longest first.
 *
 * Thread: any. Internal to worker/text. */
#pragma once

#include "worker/text/tokenizer.h"

/* A stretch of the joined text: one special token (id >= 0) or text between two (id -1). */
struct tok_frag {
    size_t off, len;
    int32_t id;
};

struct tok_frags {
    struct tok_frag *v; /* [n], in order of the text, covering all of it */
    size_t n, cap;
};
void tok_frags_fini(struct tok_frags *f);

/* text is the parts joined; part_end[i] is the offset behind part i. 0 or ERR_NOMEM. */
int tok_special_split(const struct tokenizer *t, const char *text, size_t len,
                      const struct tok_part *parts, const size_t *part_end, size_t n_parts,
                      struct tok_frags *ret);
