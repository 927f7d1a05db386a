/* tmpdir.h - a directory for one test, removed with all that is in it. */
#pragma once

#include "common/compiler.h"

struct tmpdir {
    char path[256];
};

void tmpdir_setup(struct tmpdir *t); /* under TMPDIR or /tmp; aborts when there is none */
void tmpdir_teardown(struct tmpdir *t);
/* path/name into ret; returns ret. */
char *tmpdir_join(const struct tmpdir *t, const char *name, char *ret, size_t cap);
/* Writes a whole file there. */
void tmpdir_write(const struct tmpdir *t, const char *name, const void *p, size_t n);
