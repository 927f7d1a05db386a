#include "tests/support/tmpdir.h"

#include <ftw.h>

#include "common/check.h"

void tmpdir_setup(struct tmpdir *t) {
    const char *base = getenv("TMPDIR");
    int n = snprintf(t->path, sizeof(t->path), "%s/incipit-test-XXXXXX", base ? base : "/tmp");
    CHECK(n > 0 && (size_t)n < sizeof(t->path));
    CHECK(mkdtemp(t->path));
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void tmpdir_teardown(struct tmpdir *t) {
    nftw(t->path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

char *tmpdir_join(const struct tmpdir *t, const char *name, char *ret, size_t cap) {
    int n = snprintf(ret, cap, "%s/%s", t->path, name);
    CHECK(n > 0 && (size_t)n < cap);
    return ret;
}

void tmpdir_write(const struct tmpdir *t, const char *name, const void *p, size_t n) {
    char path[512];
    FILE *f = fopen(tmpdir_join(t, name, path, sizeof(path)), "we");
    CHECK(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}
