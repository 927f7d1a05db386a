#include "common/check.h"

#include <execinfo.h>
#include <stdio.h>
#include <unistd.h>

NORETURN void check_failed(const char *file, int line, const char *text) {
    void *frames[64];
    fprintf(stderr, "%s:%d: check failed: %s\n", file, line, text);
    fflush(stderr);
    int n = backtrace(frames, (int)ARRAY_LEN(frames));
    backtrace_symbols_fd(frames, n, STDERR_FILENO);
    abort();
}
