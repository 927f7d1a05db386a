/* slow_pread.c - preloaded into a worker: reads behind a file's beginning wait while the file that
 * INCIPIT_TEST_GATE names is there. Stands in for a model that takes minutes to load. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

/* With 64-bit offsets its symbol is pread64, as in the worker. */
ssize_t pread(int fd, void *p, size_t n, off_t off) {
    ssize_t (*real)(int, void *, size_t, off_t);
    const char *gate = getenv("INCIPIT_TEST_GATE");
    *(void **)&real = dlsym(RTLD_NEXT, "pread64");
    while (gate && off > 0 && access(gate, F_OK) == 0)
        usleep(1000);
    return real(fd, p, n, off);
}
