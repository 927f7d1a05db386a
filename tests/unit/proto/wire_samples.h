/* wire_samples.h - one instance of each message with every field set to something that is not the default.
 * Shared by the round trip test and the corpus maker of the fuzzer. */
#pragma once

#include "proto/wire_msg.h"

/* A message as a table row: the type's two functions and an instance. */
struct wire_sample {
    const char *name;
    int n_fields;      /* highest field number */
    uint64_t reserved; /* bit i - 1 for each number i below it that does not exist */
    int (*encode)(struct bump *scratch, const void *m, struct buf *dst);
    int (*decode)(struct bump *scratch, const uint8_t *p, size_t n, void *ret, struct errbuf *eb);
    const void *m;
};
extern const struct wire_sample wire_samples[];
extern const size_t n_wire_samples;
/* Bytes enough for any decoded struct. */
#define WIRE_SAMPLE_STRUCT_BYTES 1024
